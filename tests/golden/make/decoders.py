"""Random small configurations of the decoders that transformers has, and what transformers makes of each: decoders.json, a list of cases with the
configuration, tensors' names and shapes, tokens, targets, some of the logits (float64), the loss, the largest magnitude and some elements of
every gradient, a greedy text of 64 tokens, and how far torch.autocast in bfloat16 is from these logits and gradients.

    python decoders.py [NAME …]           needs torch, transformers 5; names of FAMILIES: only their cases are made again
    python decoders.py --check FOLDER …   loads what mezzo exported of a case and compares logits (FOLDER/case.json says which case)
    python decoders.py --peft MEZZO FOLDER …   needs peft: random adapters on such folders, imported and exported by MEZZO, apart and merged

Weights are not stored: both sides make them by `number` from a tensor's name, its elements' indices and the case's seed. A seed is taken where no
choice of the greedy text is near, and where FP32 is near to FP64.
"""
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile

import numpy
import torch
import transformers
from safetensors.torch import load_file, save_file

DATA = pathlib.Path(__file__).resolve().parent.parent / "data"
CONTEXT, TOKENS, TEXT, PROMPT, SOME = 96, 12, 64, 4, 6
COMMON = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "attn_implementation": "eager"}


def compute_in_fp64():
    """transformers computes norms, routers and their softmax in FP32 whatever a model is in: what it asks for as FP32 becomes FP64 of a FP64 tensor.
    Tables of positions stay in FP32, as part of the model."""
    to, softmax, call = torch.Tensor.to, torch.nn.functional.softmax, torch.nn.Module.__call__
    wide = [True]

    def wider(tensor, kind):
        return torch.float64 if wide[0] and kind is torch.float32 and tensor.dtype is torch.float64 else kind

    def called(module, *rest, **named):
        before, wide[0] = wide[0], wide[0] and not type(module).__name__.endswith("RotaryEmbedding")
        try:
            return call(module, *rest, **named)
        finally:
            wide[0] = before

    torch.nn.Module.__call__ = called
    torch.Tensor.float = lambda x, **named: x.to(torch.float32)
    torch.Tensor.to = lambda x, *rest, **named: to(x, *[wider(x, one) for one in rest], **{k: wider(x, v) for k, v in named.items()})
    torch.nn.functional.softmax = lambda x, dim=None, dtype=None, **named: softmax(x, dim=dim, dtype=wider(x, dtype), **named)


def number(name, n, seed):
    """n numbers in [-0.5, 0.5) from 32-bit hashes."""
    h = 2166136261
    for byte in f"{name}#{seed}".encode():
        h = (h ^ byte) * 16777619 & 0xFFFFFFFF
    with numpy.errstate(over="ignore"):
        x = numpy.uint32(h) + numpy.arange(n, dtype=numpy.uint32) * numpy.uint32(2654435761)
        x = (x ^ (x >> numpy.uint32(16))) * numpy.uint32(2246822519)
        x = (x ^ (x >> numpy.uint32(13))) * numpy.uint32(3266489917)
        x = x ^ (x >> numpy.uint32(16))
    return x.astype(numpy.float64) / 2.0**32 - 0.5


def weight(name, shape, seed):
    """Norms' weights around 1 (or 0, where the family adds 1), biases around 0, matrices that keep magnitudes."""
    x = number(name, math.prod(shape), seed).reshape(shape)
    if len(shape) == 1:
        return (x * 0.4 + (0.0 if name.endswith("bias") else 1.0)).astype(numpy.float32)
    scale = 3.0 if "embed" in name or name == "lm_head.weight" else 5.0 / math.sqrt(shape[-1])
    return (x * scale).astype(numpy.float32)


def common(r, kind):
    heads = r.choice([2, 4])
    size = r.choice([4, 8])
    c = {"vocab_size": r.choice([29, 31]), "hidden_size": heads * size, "intermediate_size": r.choice([20, 28]),
         "num_hidden_layers": 2, "num_attention_heads": heads, "max_position_embeddings": CONTEXT, "tie_word_embeddings": r.random() < 0.5}
    if kind != "gpt_neox":
        c["num_key_value_heads"] = r.choice([1, 2])
        c["rms_norm_eps"] = r.choice([1e-5, 1e-6])
    return c


def rope(r, kinds=("default", "linear", "llama3", "yarn"), **more):
    kind = r.choice(kinds)
    scaled = {"default": {}, "linear": {"factor": 4.0}, "yarn": {"factor": 4.0, "original_max_position_embeddings": 24},
              "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 24}}[kind]
    return {"rope_parameters": {"rope_type": kind, "rope_theta": r.choice([100.0, 10000.0, 500000.0]), **scaled, **more}}


def windows(r):
    return r.choice([{}, {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": r.choice([0, 1])}])


def llama(r):
    return {**common(r, "llama"), **rope(r), "attention_bias": r.random() < 0.5, "mlp_bias": r.random() < 0.5, "head_dim": r.choice([4, 6])}


def mistral(r):
    return {**common(r, "mistral"), **rope(r), "head_dim": r.choice([4, 6, 8]), "sliding_window": r.choice([None, 5, 7, 200])}


def qwen2(r):
    return {**common(r, "qwen2"), **rope(r), **windows(r)}


def qwen3(r):
    return {**common(r, "qwen3"), **rope(r), "head_dim": r.choice([4, 6, 8]), "attention_bias": r.random() < 0.5, **windows(r)}


def smollm3(r):
    c = {**common(r, "smollm3"), **rope(r), "attention_bias": r.random() < 0.5, "mlp_bias": r.random() < 0.5, "num_hidden_layers": 3}
    return {**c, "no_rope_layer_interval": r.choice([2, 3, 4])}


def phi3(r):
    return {**common(r, "phi3"), **rope(r, ["default"], partial_rotary_factor=r.choice([1.0, 0.5])), "sliding_window": r.choice([None, 4, 9])}


def longrope(r):
    """Phi-3's, of texts longer and shorter than the original context."""
    c, part, original = common(r, "phi3"), r.choice([1.0, 0.5]), r.choice([8, 24])
    half = int(c["hidden_size"] // c["num_attention_heads"] * part) // 2
    scaled = {name: [round(r.uniform(1, most), 3) for _ in range(half)] for name, most in (("short_factor", 1.3), ("long_factor", 6))}
    attention = r.choice([{}, {"attention_factor": 1.19}, {"factor": 3.0}])
    return {**c, "original_max_position_embeddings": original, "sliding_window": r.choice([None, 9]),
            "rope_parameters": {"rope_type": "longrope", "rope_theta": r.choice([100.0, 10000.0]), "partial_rotary_factor": part,
                                "original_max_position_embeddings": original, **scaled, **attention}}


def olmo2(r):
    return {**common(r, "olmo2"), **rope(r), "attention_bias": r.random() < 0.5}


def gpt_neox(r):
    return {**common(r, "gpt_neox"), **rope(r, partial_rotary_factor=r.choice([1.0, 0.5])), "layer_norm_eps": r.choice([1e-5, 1e-6])}


def sequential_neox(r):
    return {**gpt_neox(r), "use_parallel_residual": False}


def gpt2(r):
    heads = r.choice([2, 4])
    return {"vocab_size": r.choice([29, 31]), "n_embd": heads * r.choice([4, 8]), "n_inner": r.choice([None, 20, 28]), "n_layer": 2, "n_head": heads,
            "n_positions": CONTEXT, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def glm4_moe(r):
    c = {**common(r, "glm4_moe"), **rope(r, ["default"], partial_rotary_factor=0.5), "tie_word_embeddings": False, "num_hidden_layers": 3}
    groups = r.choice([1, 2])
    return {**c, "head_dim": r.choice([4, 8]), "attention_bias": r.random() < 0.5, "use_qk_norm": r.random() < 0.5, "n_routed_experts": 4,
            "n_group": groups, "topk_group": r.randrange(1, groups + 1), "num_experts_per_tok": r.choice([1, 2]), "n_shared_experts": r.choice([1, 2]),
            "moe_intermediate_size": r.choice([8, 12]), "first_k_dense_replace": r.choice([1, 2]), "norm_topk_prob": r.random() < 0.5,
            "routed_scaling_factor": r.choice([1.0, 1.5])}


def mixtral(r):
    return {**common(r, "mixtral"), **rope(r), "head_dim": r.choice([4, 6, 8]), "sliding_window": r.choice([None, 5]), "num_local_experts": r.choice([3, 4]),
            "num_experts_per_tok": r.choice([1, 2])}


def qwen3_moe(r):
    return {**common(r, "qwen3_moe"), **rope(r), "head_dim": r.choice([4, 6, 8]), "attention_bias": r.random() < 0.5, "num_experts": r.choice([4, 6]),
            "num_experts_per_tok": r.choice([1, 2, 3]), "moe_intermediate_size": r.choice([8, 12]), "norm_topk_prob": r.random() < 0.5}


def gemma(r):
    return {**common(r, "gemma"), **rope(r), "head_dim": r.choice([4, 6, 8]), "attention_bias": r.random() < 0.5}


def gemma2(r):
    c = {**common(r, "gemma2"), **rope(r), "head_dim": r.choice([4, 6, 8]), "attention_bias": r.random() < 0.5, "num_hidden_layers": r.choice([2, 3])}
    return {**c, "sliding_window": r.choice([4, 6]), "query_pre_attn_scalar": r.choice([5, 8, 16]), "attn_logit_softcapping": r.choice([None, 0.7, 2.0]),
            "final_logit_softcapping": r.choice([None, 15.0, 30.0])}


def gemma3_text(r):
    c = {**common(r, "gemma3_text"), "head_dim": r.choice([4, 6, 8]), "attention_bias": r.random() < 0.5, "num_hidden_layers": 3}
    every, full = r.choice([0, 2, 3]), rope(r, ["default", "linear"])["rope_parameters"]
    return {**c, "sliding_window": r.choice([4, 6, 200]), "query_pre_attn_scalar": r.choice([5, 8, 16]), "final_logit_softcapping": r.choice([None, 15.0]),
            "layer_types": ["full_attention" if every and (i + 1) % every == 0 else "sliding_attention" for i in range(3)],
            "rope_parameters": {"full_attention": full, "sliding_attention": {"rope_type": "default", "rope_theta": r.choice([50.0, 700.0])}}}


FAMILIES = [llama, mistral, qwen2, qwen3, smollm3, phi3, olmo2, gpt_neox, mixtral, qwen3_moe, gemma, gemma2, gemma3_text, longrope, sequential_neox, gpt2,
            glm4_moe]
TYPES = {longrope: "phi3", sequential_neox: "gpt_neox"}  # where it is not the name


def saved(model, folder):
    """The tensors by the names that save_pretrained gives them, which the model's own need not be."""
    model.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def opened(folder, kind=torch.float64):
    """Experts one by one: grouped products do not take FP64."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", experts_implementation="eager")
    return (model.double() if kind is torch.float64 else model).eval()


def load(config, folder, seed):
    """A model with the weights of a seed, and its tensors' shapes."""
    model = transformers.AutoModelForCausalLM.from_config(config)
    shapes = {name: list(t.shape) for name, t in saved(model, folder).items()}
    save_file({n: torch.from_numpy(weight(n, s, seed)) for n, s in shapes.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    return opened(folder), shapes


def gradients(model, folder, tokens):
    """Logits, the loss and the gradients of all tensors."""
    logits = model(tokens).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.roll(-1, 1).flatten())
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.grad)
    return logits, loss, {n: t.double() for n, t in saved(model, folder).items() if "e_score_correction_bias" not in n}  # which has none


def well_conditioned(folder, tokens, exact):
    """Whether FP32 gives the gradients within 1e-5 of their largest, half of what a test allows another FP32."""
    rounded = gradients(opened(folder, torch.float32), folder / "rounded", tokens)[2]
    return all((rounded[n] - t).abs().max() <= 1e-5 * max(t.abs().max().item(), 0.05) for n, t in exact.items())


def kept(logits):
    return logits[:, ::6].flatten()


def autocast_distances(folder, tokens, exact_logits, exact):
    """Roots of the mean squares of (autocast's - exact)/largest, over the logits and the gradients' elements that are stored."""
    model = opened(folder, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        logits, _, rounded = gradients(model, folder / "autocast", tokens)
    off = [((torch.tensor(some(rounded[n])) - torch.tensor(some(t))) / t.abs().max()).double() for n, t in exact.items() if t.abs().max() > 1e-6]
    logits = (kept(logits).double() - kept(exact_logits)) / exact_logits.abs().max()
    return [float(f"{x.square().mean().sqrt().item():.6g}") for x in (logits, torch.cat(off))]


def greedy(model, prompt):
    tokens, least = prompt, math.inf
    with torch.no_grad():
        for _ in range(TEXT):
            best = model(tokens[None]).logits[0, -1].topk(2)
            least = min(least, (best[0][0] - best[0][1]).item())
            tokens = torch.cat([tokens, best[1][:1]])
    return tokens[len(prompt):].tolist(), least


def picked(n):
    return [i * n // SOME for i in range(SOME)] if n > SOME else list(range(n))


def some(t):
    flat = t.detach().double().flatten().tolist()
    return [float(f"{flat[i]:.8g}") for i in picked(len(flat))]


def case(family, index, folder):
    r = random.Random(f"{family.__name__} {index}")
    for seed in range(200):
        config = transformers.AutoConfig.for_model(TYPES.get(family, family.__name__), **family(r), **COMMON)
        model, tensors = load(config, folder, seed)
        tokens = torch.tensor([[r.randrange(config.vocab_size) for _ in range(TOKENS)] for _ in range(2)])
        text, least = greedy(model, tokens[0, :PROMPT])
        if not (least > 0.004 and len(set(text)) > 3):
            continue
        written = json.loads((folder / "config.json").read_text())
        logits, loss, exact = gradients(model, folder / "exact", tokens)
        logits = logits.detach()
        if well_conditioned(folder, tokens, exact):
            break
    else:
        raise SystemExit(f"{family.__name__}: no seed")
    targets = tokens.roll(-1, 1)
    return {"family": family.__name__, "seed": seed, "config": written, "tensors": tensors, "tokens": tokens.tolist(), "targets": targets.tolist(),
            "largest": float(f"{logits.abs().max().item():.8g}"), "logits": [float(f"{x:.8g}") for x in kept(logits).tolist()],
            "autocast": autocast_distances(folder, tokens, logits, exact), "loss": loss.item(), "gradients": {n: [float(f"{t.abs().max().item():.8g}"), some(t)] for n, t in exact.items()}, "text": text}


def check(folder):
    stored = json.loads((pathlib.Path(folder) / "case.json").read_text())
    model = opened(folder)
    with torch.no_grad():
        got = kept(model(torch.tensor(stored["tokens"])).logits)
    error = (got - torch.tensor(stored["logits"])).abs().max().item() / stored["largest"]
    print(f"{folder}: {type(model).__name__}, largest difference {error:.2g} of the largest logit")
    assert error < 1e-5


def logits_of(model, stored):
    with torch.no_grad():
        return model(torch.tensor(stored["tokens"])).logits


def check_adapters(mezzo, folder):
    """Adapters that PEFT wrote give PEFT's logits after MEZZO imported them: exported again as adapters, and merged."""
    import peft
    folder = pathlib.Path(folder)
    stored = json.loads((folder / "case.json").read_text())
    neox = ["query_key_value", "dense_h_to_4h"]
    names = {"gpt_neox": neox, "sequential_neox": neox, "phi3": ["qkv_proj", "down_proj"], "gpt2": ["c_attn", "c_fc"]}.get(
        stored["family"], ["q_proj", "v_proj", "o_proj"])
    model = peft.get_peft_model(opened(folder), peft.LoraConfig(r=3, lora_alpha=5, target_modules=names, init_lora_weights=False))
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        for name, p in model.named_parameters():
            if "lora_" in name:
                p.data = torch.from_numpy(number(name, p.numel(), 7).astype(numpy.float32)).reshape(p.shape)
        model.save_pretrained(scratch / "theirs")
        want, plain = logits_of(model.double(), stored), logits_of(opened(folder), stored)
        run = [mezzo, "import", folder, "--adapter", scratch / "theirs", "--tokenizer", "none", "--out", scratch / "run"]
        apart, merged = ([mezzo, "export", scratch / "run", "--out", scratch / out, *rest] for out, rest in (("ours", ["--adapter"]), ("merged", [])))
        for command in (run, apart, merged):
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        results = [logits_of(peft.PeftModel.from_pretrained(opened(folder), scratch / "ours").double(), stored),
                   logits_of(opened(scratch / "merged"), stored)]
    errors = [((got - want).abs().max() / want.abs().max()).item() for got in results]
    change = ((want - plain).abs().max() / want.abs().max()).item()
    print(f"{folder.name}: adapters change logits by {change:.2g}; exported apart {errors[0]:.2g}, merged {errors[1]:.2g} of the largest off")
    assert max(errors) < 1e-5 < change


if __name__ == "__main__":
    torch.set_num_threads(1)
    compute_in_fp64()
    if sys.argv[1:2] == ["--check"]:
        for path in sys.argv[2:]:
            check(path)
    elif sys.argv[1:2] == ["--peft"]:
        for path in sys.argv[3:]:
            check_adapters(sys.argv[2], path)
    else:
        with tempfile.TemporaryDirectory() as folder:
            wanted = [f for f in FAMILIES if f.__name__ in sys.argv[1:] or not sys.argv[1:]]
            stored = json.loads((DATA / "decoders.json").read_text())["cases"] if sys.argv[1:] else []
            cases = [c for f in FAMILIES for c in ([case(f, i, pathlib.Path(folder)) for i in range(5)] if f in wanted else
                                                   [c for c in stored if c["family"] == f.__name__])]
        made = f"tests/golden/make/decoders.py, torch {torch.__version__}, transformers {transformers.__version__}"
        lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
        (DATA / "decoders.json").write_text(f'{{"origin": "{made}", "cases": [\n{lines}\n]}}\n')
        print(len(cases), "cases")
