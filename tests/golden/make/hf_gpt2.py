"""A small GPT-2 as transformers saves it, in every form that is imported, and what transformers makes of it: hf_gpt2/, hf_gpt2_sharded/,
hf_gpt2_old/ (names without "transformer.", mask buffers, the tied head saved), hf_gpt2_v3.bin and hf_gpt2_v5.bin (llm.c's files),
hf_gpt2_logits.safetensors (tokens; logits in float64, of the float32 and of the bfloat16 weights; greedy continuations).

    python hf_gpt2.py                    needs torch, transformers, safetensors, numpy
    python hf_gpt2.py --check FOLDER     loads what mezzo exported and compares its logits with the stored ones

Weights start at N(0, 0.3²), not 0.02²: the greedy choice is then far from a tie.
"""
import json
import pathlib
import shutil
import struct
import sys

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

DATA = pathlib.Path(__file__).parents[1] / "data"
LAYERS, HEADS, WIDTH, VOCAB, CONTEXT = 2, 2, 16, 61, 24


def save(model, folder, **options):
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder, **options)
    (folder / "generation_config.json").unlink(missing_ok=True)


def tensors_of(model):
    return {name.removeprefix("transformer."): t.detach() for name, t in model.state_dict().items() if name != "lm_head.weight"}


def save_old(model, folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shutil.copy(DATA / "hf_gpt2" / "config.json", folder)
    tensors = {name: t.contiguous().clone() for name, t in tensors_of(model).items()}
    for i in range(LAYERS):
        tensors[f"h.{i}.attn.bias"] = torch.tril(torch.ones(CONTEXT, CONTEXT, dtype=torch.uint8)).view(1, 1, CONTEXT, CONTEXT)
        tensors[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
    tensors["lm_head.weight"] = tensors["wte.weight"].clone()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def save_llmc(model, path, version):
    """llm.c's train_gpt2.py, write_model."""
    padded = (VOCAB + 127) // 128 * 128
    t = tensors_of(model)
    t["wte.weight"] = torch.nn.functional.pad(t["wte.weight"], (0, 0, 0, padded - VOCAB))
    header = [20240326, version, CONTEXT, VOCAB, LAYERS, HEADS, WIDTH, padded]
    stacked = ["ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight", "attn.c_proj.bias", "ln_2.weight",
               "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight", "mlp.c_proj.bias"]
    names = ["wte.weight", "wpe.weight", *(f"h.{i}.{n}" for n in stacked for i in range(LAYERS)), "ln_f.weight", "ln_f.bias"]
    with open(path, "wb") as f:
        f.write(struct.pack("<256i", *header, *[0] * (256 - len(header))))
        for name in names:
            x = t[name].t() if ".c_" in name and name.endswith("weight") else t[name]  # Conv1D to Linear
            x = x.contiguous()
            f.write(x.numpy().tobytes() if version == 3 else x.bfloat16().view(torch.int16).numpy().tobytes())


def logits_of(model, tokens):
    with torch.no_grad():
        return model.double()(tokens).logits


def check(folder):
    stored = load_file(DATA / "hf_gpt2_logits.safetensors")
    model = GPT2LMHeadModel.from_pretrained(folder)
    assert model.dtype == torch.float32, model.dtype
    model.eval()
    with torch.no_grad():
        got = model(stored["tokens"].long()).logits.double()
    error = ((got - stored["logits"]).abs().max() / stored["logits"].abs().max()).item()
    print(f"{folder}: largest difference {error:.2g} of the largest logit")
    assert error < 1e-5


def main():
    torch.manual_seed(5)
    torch.set_num_threads(1)
    config = GPT2Config(vocab_size=VOCAB, n_positions=CONTEXT, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, initializer_range=0.3, bos_token_id=0,
                        eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():  # biases and norms that are not their start
        for name, p in model.named_parameters():
            if p.dim() == 1:
                p.add_(0.1 * torch.randn_like(p))
    save(model, DATA / "hf_gpt2")
    save(model, DATA / "hf_gpt2_sharded", max_shard_size="12KB")
    save_old(model, DATA / "hf_gpt2_old")
    save_llmc(model, DATA / "hf_gpt2_v3.bin", 3)
    save_llmc(model, DATA / "hf_gpt2_v5.bin", 5)

    tokens = torch.randint(0, VOCAB, (2, CONTEXT))
    prompts = torch.randint(0, VOCAB, (3, 5))
    greedy = []
    for prompt in prompts:
        out = model.generate(prompt[None], attention_mask=torch.ones(1, 5), max_new_tokens=CONTEXT - 5, do_sample=False, eos_token_id=None,
                             pad_token_id=0)
        greedy.append(out[0])
    low = GPT2LMHeadModel(config).eval()
    low.load_state_dict({n: t.bfloat16().float() for n, t in model.state_dict().items()})
    store = {"tokens": tokens.int(), "logits": logits_of(model, tokens), "logits_bf16": logits_of(low, tokens), "greedy": torch.stack(greedy).int()}
    made = f"torch {torch.__version__}, transformers {transformers.__version__}"
    save_file({n: t.contiguous() for n, t in store.items()}, DATA / "hf_gpt2_logits.safetensors", metadata={"origin": made})
    print(made, json.dumps({p.name: p.stat().st_size for p in sorted(DATA.glob("hf_gpt2*"))}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--check"]:
        check(sys.argv[2])
    else:
        main()
