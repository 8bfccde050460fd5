"""What torch.autocast("cuda") decides: the output dtype of every op, and of every step of the toy model and a GPT-2 block.

    python3 autocast_table.py [OUT.csv]        (default: tests/golden/data/autocast.csv)

On a machine with a CUDA device everything runs there, backward included. Without one the same CUDA op lists are asked through
fake tensors, which dispatch as CUDA tensors do and compute nothing; backward needs a device, so gradient columns are "-".
The first line says which of the two made the file and with which PyTorch.

Columns: precision (the autocast dtype), case ("op", "toy" or "gpt2_block"), op (Mezzo's name; toy and block rows are in
program order), name (which step, or how the inputs differ), inputs (dtypes of the float tensor inputs, joined by +, "-" where
there is none), output, grads (dtypes of the gradients of those float inputs that are leaves, in order).
"""

import contextlib
import csv
import os
import sys
import warnings

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from store import path_of

SHORT = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp64"}
REAL = torch.cuda.is_available()


@contextlib.contextmanager
def cuda_autocast(dtype):
    """torch.autocast("cuda") switches itself off where no device is; the state behind it can be set all the same."""
    if REAL:
        with torch.autocast("cuda", dtype=dtype):
            yield
        return
    enabled, before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        torch.set_autocast_enabled("cuda", enabled)
        torch.set_autocast_dtype("cuda", before)


def tensor(*shape, dtype=torch.float32):
    return torch.ones(shape, device="cuda", dtype=dtype, requires_grad=True)


def ids(*shape):
    return torch.zeros(shape, device="cuda", dtype=torch.long)


def dtypes(tensors):
    return "+".join(SHORT[t.dtype] for t in tensors) or "-"


class Table:
    def __init__(self):
        self.rows = []

    def add(self, low, case, op, name, inputs, output, grads="-"):
        self.rows.append([SHORT[low], case, op, name, dtypes(inputs), SHORT[output.dtype], grads])

    def op(self, low, op, name, fn, *inputs):
        with cuda_autocast(low):
            result = fn(*inputs)
        outputs = result if isinstance(result, (tuple, list)) else [result]
        assert len({o.dtype for o in outputs}) == 1
        grads = "-"
        if REAL:
            sum(o.float().sum() for o in outputs).backward()
            grads = dtypes([x.grad for x in inputs])
        self.add(low, "op", op, name, inputs, outputs[0], grads)


ATTENTION = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)  # noqa: E731
UNARY = {
    "scale": lambda x: x * 0.5, "relu": F.relu, "silu": F.silu, "softmax": lambda x: F.softmax(x, -1),
    "sum": lambda x: x.sum(), "mean": lambda x: x.mean(), "dropout": lambda x: F.dropout(x, 0.5),
    "reshape": lambda x: x.reshape(-1), "split": lambda x: x.split(4, dim=1),
}


def ops(table, low):
    full, half = torch.float32, low
    for kinds in ((full, full), (half, full), (full, half), (half, half)):
        name = "+".join(SHORT[k] for k in kinds)
        a, b = kinds
        table.op(low, "linear", name, F.linear, tensor(8, 8, dtype=a), tensor(8, 8, dtype=b))
        table.op(low, "linear", name + " bias", F.linear, tensor(8, 8, dtype=a), tensor(8, 8, dtype=b), tensor(8, dtype=b))
        table.op(low, "matmul", name, torch.matmul, tensor(2, 8, 8, dtype=a), tensor(2, 8, 8, dtype=b))
        for op, fn in (("add", torch.add), ("mul", torch.mul), ("concat", lambda x, y: torch.cat([x, y], 1))):
            table.op(low, op, name, fn, tensor(8, 8, dtype=a), tensor(8, 8, dtype=b))
        table.op(low, "layernorm", name, lambda x, w, c: F.layer_norm(x, (8,), w, c), tensor(8, 8, dtype=a),
                 tensor(8, dtype=b), tensor(8, dtype=b))
    for kind in (full, half):
        name = SHORT[kind]
        for op, fn in UNARY.items():
            table.op(low, op, name, fn, tensor(8, 8, dtype=kind))
        table.op(low, "gelu", name + " tanh", lambda x: F.gelu(x, approximate="tanh"), tensor(8, 8, dtype=kind))
        table.op(low, "gelu", name + " erf", F.gelu, tensor(8, 8, dtype=kind))
        table.op(low, "embedding", name, lambda w: F.embedding(ids(4, 3), w), tensor(8, 8, dtype=kind))
        table.op(low, "cross_entropy", name, lambda x: F.cross_entropy(x, ids(8)), tensor(8, 8, dtype=kind))
        table.op(low, "attention", name, ATTENTION, *(tensor(2, 2, 16, 16, dtype=kind) for _ in range(3)))
    table.op(low, "attention", "mixed", ATTENTION, tensor(2, 2, 16, 16), tensor(2, 2, 16, 16, dtype=half),
             tensor(2, 2, 16, 16, dtype=half))


class Steps:
    """Runs a model one named step at a time and keeps a row for each."""

    def __init__(self, table, low, case):
        self.table, self.low, self.case, self.params = table, low, case, []

    def param(self, *shape):
        self.params.append(tensor(*shape))
        return self.params[-1]

    def __call__(self, op, name, fn, *inputs):
        with cuda_autocast(self.low):
            y = fn(*inputs)
        self.table.add(self.low, self.case, op, name, inputs, y[0] if isinstance(y, tuple) else y)
        return y

    def finish(self, loss):
        """One more row: the parameters, and their gradients after a backward pass outside the region."""
        grads = "-"
        if REAL:
            loss.backward()
            kinds = {SHORT[p.grad.dtype] for p in self.params}
            grads = "+".join(sorted(kinds))
        self.table.add(self.low, self.case, "parameters", "all", [], self.params[0], grads)


def toy(table, low):
    s = Steps(table, low, "toy")
    fc1, w, b, fc2 = s.param(10, 5), s.param(10), s.param(10), s.param(3, 10)
    x = tensor(8, 5).detach()
    h = s("linear", "fc1", F.linear, x, fc1)
    h = s("relu", "relu", F.relu, h)
    h = s("layernorm", "ln", lambda x, w, b: F.layer_norm(x, (10,), w, b), h, w, b)
    h = s("linear", "fc2", F.linear, h, fc2)
    s.finish(s("cross_entropy", "loss", lambda x: F.cross_entropy(x, ids(8)), h))


def gpt2_block(table, low):
    s = Steps(table, low, "gpt2_block")
    b, t, c, heads, vocabulary = 2, 16, 32, 2, 61
    wte, wpe = s.param(vocabulary, c), s.param(t, c)
    norms = [(s.param(c), s.param(c)) for _ in range(3)]
    attn, proj = (s.param(3 * c, c), s.param(3 * c)), (s.param(c, c), s.param(c))
    fc, mlp = (s.param(4 * c, c), s.param(4 * c)), (s.param(c, 4 * c), s.param(c))
    norm = lambda x, w, d: F.layer_norm(x, (c,), w, d)  # noqa: E731

    tok = s("embedding", "wte", lambda w: F.embedding(ids(b, t), w), wte)
    pos = s("embedding", "wpe", lambda w: F.embedding(ids(t), w), wpe)
    x = s("add", "embeddings", torch.add, tok, pos)
    x = s("dropout", "embd_drop", lambda x: F.dropout(x, 0.1), x)
    h = s("layernorm", "ln_1", norm, x, *norms[0])
    h = s("linear", "attn.c_attn", F.linear, h, *attn)
    qkv = s("split", "attn.split", lambda h: h.split(c, dim=2), h)
    q, k, v = (s("reshape", "attn." + n, lambda p: p.view(b, t, heads, c // heads).transpose(1, 2), p)
               for n, p in zip("qkv", qkv))
    h = s("attention", "attn.sdpa", ATTENTION, q, k, v)
    h = s("reshape", "attn.merge", lambda h: h.transpose(1, 2).reshape(b, t, c), h)
    h = s("linear", "attn.c_proj", F.linear, h, *proj)
    h = s("dropout", "attn.resid_drop", lambda x: F.dropout(x, 0.1), h)
    x = s("add", "attn.residual", torch.add, x, h)
    h = s("layernorm", "ln_2", norm, x, *norms[1])
    h = s("linear", "mlp.c_fc", F.linear, h, *fc)
    h = s("gelu", "mlp.gelu", lambda h: F.gelu(h, approximate="tanh"), h)
    h = s("linear", "mlp.c_proj", F.linear, h, *mlp)
    h = s("dropout", "mlp.drop", lambda x: F.dropout(x, 0.1), h)
    x = s("add", "mlp.residual", torch.add, x, h)
    h = s("layernorm", "ln_f", norm, x, *norms[2])
    h = s("linear", "lm_head", F.linear, h, wte)
    h = s("reshape", "logits", lambda h: h.reshape(b * t, vocabulary), h)
    s.finish(s("cross_entropy", "loss", lambda x: F.cross_entropy(x, ids(b * t)), h))


def main():
    warnings.simplefilter("ignore")
    out = sys.argv[1] if len(sys.argv) > 1 else path_of("autocast.csv")
    table = Table()
    with contextlib.nullcontext() if REAL else FakeTensorMode():
        for low in (torch.float16, torch.bfloat16):
            ops(table, low)
            toy(table, low)
            gpt2_block(table, low)
    device = torch.cuda.get_device_name() if REAL else "fake CUDA tensors"
    with open(out, "w", encoding="utf-8", newline="") as f:
        f.write(f"# torch {torch.__version__}, {device}, tests/golden/make/autocast_table.py\n")
        writer = csv.writer(f, lineterminator="\n")
        writer.writerow(["precision", "case", "op", "name", "inputs", "output", "grads"])
        writer.writerows(table.rows)
    print(f"{out}: {len(table.rows)} rows, {os.path.getsize(out)} bytes")


if __name__ == "__main__":
    main()
