"""Random small configurations of the decoders that transformers has, and what transformers makes of each: decoders.json, a list of cases with the
configuration, tensors' names and shapes, tokens, targets, some of the logits (float64), the loss, the largest magnitude and some elements of
every gradient, and a greedy text of 64 tokens.

    python decoders.py                    needs torch, transformers 5
    python decoders.py --check FOLDER …   loads what mezzo exported of a case and compares logits (FOLDER/case.json says which case)

Weights are not stored: both sides make them by `number` from a tensor's name, its elements' indices and the case's seed. A seed is taken where no
choice of the greedy text, and none of experts, is near.
"""
import json
import math
import pathlib
import random
import sys
import tempfile

import numpy
import torch
import transformers
from safetensors.torch import load_file, save_file

DATA = pathlib.Path(__file__).resolve().parent.parent / "data"
CONTEXT, TOKENS, TEXT, PROMPT, SOME = 96, 12, 64, 4, 6
COMMON = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "attn_implementation": "eager"}


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


def olmo2(r):
    return {**common(r, "olmo2"), **rope(r), "attention_bias": r.random() < 0.5}


def gpt_neox(r):
    return {**common(r, "gpt_neox"), **rope(r, partial_rotary_factor=r.choice([1.0, 0.5])), "layer_norm_eps": r.choice([1e-5, 1e-6])}


FAMILIES = [llama, mistral, qwen2, qwen3, smollm3, phi3, olmo2, gpt_neox]


def saved(model, folder):
    """The tensors by the names that save_pretrained gives them, which the model's own need not be."""
    model.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def load(config, folder, seed):
    """A model with the weights of a seed, and its tensors' shapes."""
    model = transformers.AutoModelForCausalLM.from_config(config)
    shapes = {name: list(t.shape) for name, t in saved(model, folder).items()}
    save_file({n: torch.from_numpy(weight(n, s, seed)) for n, s in shapes.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    return transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").double().eval(), shapes


def gradients(model, folder):
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.grad)
    return {n: [float(f"{t.abs().max().item():.8g}"), some(t)] for n, t in saved(model, folder).items()}


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
        config = transformers.AutoConfig.for_model(family.__name__, **family(r), **COMMON)
        model, tensors = load(config, folder, seed)
        tokens = torch.tensor([[r.randrange(config.vocab_size) for _ in range(TOKENS)] for _ in range(2)])
        text, least = greedy(model, tokens[0, :PROMPT])
        if least > 0.004 and len(set(text)) > 3:
            break
    else:
        raise SystemExit(f"{family.__name__}: no seed")
    written = json.loads((folder / "config.json").read_text())
    targets = tokens.roll(-1, 1)
    logits = model(tokens).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    return {"family": family.__name__, "seed": seed, "config": written, "tensors": tensors, "tokens": tokens.tolist(), "targets": targets.tolist(),
            "largest": float(f"{logits.abs().max().item():.8g}"), "logits": [float(f"{x:.8g}") for x in logits[:, ::6].flatten().tolist()],
            "loss": loss.item(), "gradients": gradients(model, folder), "text": text}


def check(folder):
    stored = json.loads((pathlib.Path(folder) / "case.json").read_text())
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").double().eval()
    with torch.no_grad():
        got = model(torch.tensor(stored["tokens"])).logits[:, ::6].flatten()
    error = (got - torch.tensor(stored["logits"])).abs().max().item() / stored["largest"]
    print(f"{folder}: {type(model).__name__}, largest difference {error:.2g} of the largest logit")
    assert error < 1e-5


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--check"]:
        for path in sys.argv[2:]:
            check(path)
    else:
        with tempfile.TemporaryDirectory() as folder:
            cases = [case(f, i, pathlib.Path(folder)) for f in FAMILIES for i in range(5)]
        made = f"tests/golden/make/decoders.py, torch {torch.__version__}, transformers {transformers.__version__}"
        lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
        (DATA / "decoders.json").write_text(f'{{"origin": "{made}", "cases": [\n{lines}\n]}}\n')
        print(len(cases), "cases")
