"""GPT-2's loss and gradients by Mezzo against PyTorch at float64, beside what PyTorch's own formats are off by.

usage: torch_gradients.py make IN.safetensors [--layers N --heads N --width N --vocab N --context N --batch N --length N]
       torch_gradients.py compare IN.safetensors RESULT.safetensors...
`make` writes random weights and a batch (124M's sizes unless told otherwise): N(0, 0.02^2) matrices, biases too, norms around 1, so that
no gradient is zero. Each RESULT is what bench_gradients wrote of IN. `compare` prints a CSV row a result, and one for each of PyTorch's own
(fp32, tf32, bf16, fp16 on a GPU, and fp8 from compute capability 8.9 on: torchao's tensorwise recipe, a scale a tensor from its largest
magnitude, in the layers that Mezzo's fp8 takes; fp32 and bf16 on a CPU): the relative error of the loss, and of the gradients the root mean square of the
error over that of the gradient, all elements together and of the worst tensor. Exit code 1 where a result of Mezzo is off by more than
twice what PyTorch's same precision is in any tensor, or 1.25 times in all together (tests/golden/test_amp.c says why); of fp32, whose errors
depend on the order of sums alone, by four times and three times. MEZZO_COMMIT goes into the rows.
"""
import contextlib, os, sys
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
SIZES = ""  # how IN was made, where not as 124M


def make(path, options):
    size = {"layers": 12, "heads": 12, "width": 768, "vocab": 50257, "context": 1024, "batch": 4, "length": 256}
    for key, value in zip(options[::2], options[1::2]):
        size[key[2:]] = int(value)
    torch.manual_seed(5)
    C, V = size["width"], size["vocab"]
    shapes = {"wte.weight": (V, C), "wpe.weight": (size["context"], C), "ln_f.weight": (C,), "ln_f.bias": (C,)}
    for n in range(size["layers"]):
        for name, shape in {"attn.c_attn": (3 * C, C), "attn.c_proj": (C, C), "mlp.c_fc": (4 * C, C), "mlp.c_proj": (C, 4 * C)}.items():
            shapes[f"h.{n}.{name}.weight"], shapes[f"h.{n}.{name}.bias"] = shape, shape[:1]
        for name in ("ln_1", "ln_2"):
            shapes[f"h.{n}.{name}.weight"] = shapes[f"h.{n}.{name}.bias"] = (C,)
    tensors = {name: torch.randn(shape) * 0.02 + (1 if "ln_" in name and name.endswith("weight") else 0) for name, shape in shapes.items()}
    tensors["wte.weight"] *= 4  # logits that differ: a trained model's softmax is not flat
    batch = torch.randint(0, V, (2, size["batch"], size["length"]), dtype=torch.int32)
    tensors["tokens"], tensors["targets"] = batch[0].clone(), batch[1].clone()
    keys = {"layers": "layers", "heads": "heads", "width": "d_model", "vocab": "vocab", "context": "seq_len"}
    save_file(tensors, path, {"made": " ".join(options), "model": "gpt2", **{keys[k]: str(size[k]) for k in keys}})


class Float8Linear(torch.autograd.Function):
    """torchao's tensorwise float8 training: E4M3 forward, E5M2 gradients, current scales, BF16 results."""

    @staticmethod
    def narrow(x, format):
        scale = x.abs().max().float().clamp(min=1e-12) / torch.finfo(format).max
        return (x.float() / scale).clamp(torch.finfo(format).min, torch.finfo(format).max).to(format), scale

    @staticmethod
    def product(a, b, fast):  # a [m, k], b [n, k] -> [m, n]
        return torch._scaled_mm(a[0], b[0].t(), scale_a=a[1], scale_b=b[1], out_dtype=torch.bfloat16, use_fast_accum=fast)

    @staticmethod
    def forward(ctx, x, w, b):
        x8, w8 = Float8Linear.narrow(x, torch.float8_e4m3fn), Float8Linear.narrow(w, torch.float8_e4m3fn)
        ctx.save_for_backward(*x8, *w8)
        return Float8Linear.product(x8, w8, True) + b

    @staticmethod
    def backward(ctx, dy):
        x8, xs, w8, ws = ctx.saved_tensors
        dy8, ds = Float8Linear.narrow(dy, torch.float8_e5m2)
        dx = Float8Linear.product((dy8, ds), (w8.t().contiguous(), ws), False)
        dw = Float8Linear.product((dy8.t().contiguous(), ds), (x8.t().contiguous(), xs), False)
        return dx, dw, dy.sum(0)


def loss_and_gradients(path, dtype, low=None, scale=1.0, fp8=False):
    """Loss and {name: gradient}, at float64 on the CPU's or GPU's memory."""
    with safe_open(path, "pt", DEVICE) as f:
        layers, heads = int(f.metadata()["layers"]), int(f.metadata()["heads"])
        p = {k: f.get_tensor(k) for k in f.keys()}
    tokens, targets = p.pop("tokens").long(), p.pop("targets").long()
    p = {k: v.to(dtype).requires_grad_() for k, v in p.items()}
    B, T = tokens.shape
    C = p["wte.weight"].shape[1]

    def norm(x, name):
        return F.layer_norm(x, (C,), p[name + ".weight"], p[name + ".bias"], torch.tensor(1e-5).item())

    def linear(x, name):
        if fp8 and 0 < int(name.split(".")[1]) < layers - 1:
            rows = x.to(torch.bfloat16).reshape(B * T, -1)
            y = Float8Linear.apply(rows, p[name + ".weight"].to(torch.bfloat16), p[name + ".bias"].to(torch.bfloat16))
            return y.view(B, T, -1)
        return F.linear(x, p[name + ".weight"], p[name + ".bias"])

    with torch.autocast(DEVICE, low) if low else contextlib.nullcontext():
        x = F.embedding(tokens, p["wte.weight"]) + p["wpe.weight"][:T]
        for n in range(layers):
            h = f"h.{n}."
            q, k, v = linear(norm(x, h + "ln_1"), h + "attn.c_attn").view(B, T, 3, heads, C // heads).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, C)
            x = x + linear(y, h + "attn.c_proj")
            x = x + linear(F.gelu(linear(norm(x, h + "ln_2"), h + "mlp.c_fc"), approximate="tanh"), h + "mlp.c_proj")
        logits = F.linear(norm(x, "ln_f"), p["wte.weight"])
        loss = F.cross_entropy(logits.view(B * T, -1).to(torch.float64 if dtype == torch.float64 else torch.float32), targets.view(-1))
    (loss * scale).backward()
    return loss.item(), {k: v.grad.double() / scale for k, v in p.items()}


def judge(loss, gradients, true_loss, true):
    """loss error; error of all; {tensor: error}: relative, root mean square"""
    squares = {k: ((gradients[k] - g).square().sum().item(), g.square().sum().item()) for k, g in true.items()}
    whole = (sum(e for e, _ in squares.values()) / sum(s for _, s in squares.values())) ** 0.5
    return abs(loss - true_loss) / true_loss, whole, {k: (e / s) ** 0.5 for k, (e, s) in squares.items()}


def row(who, device, precision, result, peer=None):
    loss, whole, tensors = result
    worst = max(tensors, key=tensors.get)
    cells = [who, f'"{device}"', precision, f"{loss:.3g}", f"{whole:.4g}", worst, f"{tensors[worst]:.4g}"]
    good = True
    if peer:
        ratios = {k: tensors[k] / peer[2][k] for k in tensors}
        most, total = max(ratios, key=ratios.get), whole / peer[1]
        good = ratios[most] <= (4 if precision == "fp32" else 2) and total <= (3 if precision == "fp32" else 1.25)
        cells += [f"{total:.3f}", most, f"{ratios[most]:.3f}", "yes" if good else "NO"]
    else:
        cells += [""] * 4
    cells += [os.environ.get("MEZZO_COMMIT", "unknown"), f'"torch_gradients.py make IN {SIZES}"'.replace(" \"", "\"")]
    print(",".join(cells), flush=True)
    return good


def compare(path, results):
    global SIZES
    with safe_open(path, "pt") as f:
        SIZES = f.metadata().get("made", "")
    torch.backends.cuda.matmul.allow_tf32 = False
    true_loss, true = loss_and_gradients(path, torch.float64)
    name = torch.cuda.get_device_name() if GPU else "cpu"
    print("system,device,precision,loss_relative_error,gradient_relative_error,worst_tensor,its_relative_error,"
          "of_torchs_error,worst_beside_torch,times_torchs,within,commit,command")
    ways = {"fp32": {}, "bf16": {"low": torch.bfloat16}}
    if GPU:
        ways |= {"tf32": {}, "fp16": {"low": torch.float16, "scale": 65536.0}}
        if torch.cuda.get_device_capability() >= (8, 9):
            ways |= {"fp8": {"low": torch.bfloat16, "fp8": True}}
    peers = {}
    for precision, way in ways.items():
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        try:
            peers[precision] = judge(*loss_and_gradients(path, torch.float32, **way), true_loss, true)
        except RuntimeError as error:
            if precision != "fp8":
                raise
            print(f"torch has no fp8 here: {error}".splitlines()[0], file=sys.stderr)
            continue
        row(f"torch {torch.__version__}", name, precision, peers[precision])
    good = True
    for result in results:
        with safe_open(result, "pt", DEVICE) as f:
            about = f.metadata()
            found = judge(f.get_tensor("loss").item(), {k: f.get_tensor("grad." + k).double() for k in true}, true_loss, true)
        good &= row("mezzo", about["device"], about["precision"], found, peers.get(about["precision"]))
    return good


if len(sys.argv) >= 3 and sys.argv[1] == "make":
    make(sys.argv[2], sys.argv[3:])
elif len(sys.argv) >= 4 and sys.argv[1] == "compare":
    sys.exit(0 if compare(sys.argv[2], sys.argv[3:]) else 1)
else:
    sys.exit(__doc__)
