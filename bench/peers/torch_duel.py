#!/usr/bin/env python3
"""PyTorch's side of bench/duel.py: steps of a Transformer on random windows of a token file, compiled, a CSV row for each way.

usage: torch_duel.py SHAPE TOKENS WEIGHTS --ways LIST --micro-batches N --steps N --device D
  SHAPE    a row of bench/duel.py: CS336's Transformer, or Qwen 2.5's (transformers' Qwen2ForCausalLM with tied embeddings)
  TOKENS   uint16 tokens after a header of 1,024 bytes (mezzo data's llmc format)
  WEIGHTS  model.safetensors of a run's checkpoint, which training begins with
  --ways   a list with commas of
           fp32        torch.compile, fused AdamW with the options of bench/duel.py
           bf16        the same with autocast
           tensorwise  bf16 with torchao's float8 training of every linear layer but the head
           rowwise     likewise
Windows of tokens are those that `mezzo train --seed 1` draws.
cs336 is compiled as a whole; Qwen's layers are compiled one by one, which all share one compilation, and its head with the loss.
Prints way, median ms of the last half of the steps, peak MiB of the allocator (of the process on a CPU), the steps' losses with spaces between.
"""
import argparse
import gc
import os
import resource
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
import numpy
import torch
from duel import ADAMW, SHAPES
from safetensors import safe_open
from torch_gpt2 import CS336


class Qwen(torch.nn.Module):
    def __init__(self, vocab, context, width, inner, layers, heads, kv_heads):
        super().__init__()
        from transformers import Qwen2Config, Qwen2ForCausalLM

        self.net = Qwen2ForCausalLM(Qwen2Config(
            vocab_size=vocab, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
            num_key_value_heads=kv_heads, max_position_embeddings=32768, rope_theta=1e6, rms_norm_eps=1e-6, tie_word_embeddings=True,
            use_cache=False, attn_implementation="sdpa"))

    def loss(self, x, targets):
        logits = self.net.lm_head(x)
        return torch.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))

    def compile_parts(self):
        for layer in self.net.model.layers:
            layer.compile()
        self.loss = torch.compile(self.loss)

    def forward(self, ids, targets):
        return self.loss(self.net.model(input_ids=ids).last_hidden_state, targets)


CS336_NAMES = {"token_embeddings": "tokens", "layers": "blocks", "qkv_proj": "qkv", "output_proj": "proj", "w13": "up", "w2": "down", "ln_final": "norm",
               "lm_head": "head", "attn": "", "ffn": ""}
QWEN_PARTS = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def named_weights(net, path):
    """The checkpoint's tensors by the model's names. One with the rows of q, k and v, or of gate and up, is cut where the model has parts."""
    with safe_open(path, "pt") as file:
        for name in file.keys():
            words, value = name.split("."), file.get_tensor(name)
            if isinstance(net, CS336):
                yield ".".join(filter(None, (CS336_NAMES.get(word, word) for word in words))), value
                continue
            prefix, kind, last = ".".join(["net.model", *words[:-2]]), words[-2], words[-1]
            names = [f"{prefix}.{part}.{last}" for part in QWEN_PARTS.get(kind, [kind])]
            yield from zip(names, value.split([net.get_parameter(part).shape[0] for part in names]))
            if kind == "embed_tokens":
                yield "net.lm_head.weight", value


def make(shape, weights, device):
    model, layers, heads, kv_heads, width, inner, vocab, _, context, _ = shape
    with torch.device(device):
        net = CS336(vocab, context, width, inner, layers, heads) if model == "cs336" else Qwen(vocab, context, width, inner, layers, heads, kv_heads)
    net.load_state_dict({name: value for name, value in net.state_dict().items() if name == "table"} | dict(named_weights(net, weights)))
    return net


def philox(seed, tensor, step, index):
    """Philox4x32-10's four words."""
    k0, k1, c0, c1, c2, c3 = seed & 0xFFFFFFFF, seed >> 32, index & 0xFFFFFFFF, index >> 32, tensor, step
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & 0xFFFFFFFF, (p0 >> 32) ^ c3 ^ k1, p0 & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def starts(rows, places, seed=1):
    """Where rows 0, 1 … of `mezzo train --seed` begin among `places` positions: docs/data.md, "Batches"."""
    words = philox(seed, 0x5EED0002, 0, 0)
    data_seed = words[1] << 32 | words[0]
    drawn = (philox(data_seed, 0xDA7A0000, 0, row) for row in range(rows))
    return torch.tensor([(words[1] << 32 | words[0]) * places >> 64 for words in drawn])


def train(net, windows, way, options, batch, context):
    device, low = options.device, way != "fp32"
    if way not in ("fp32", "bf16"):
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        convert_to_float8_training(net, config=Float8LinearConfig.from_recipe_name(way), module_filter_fn=lambda module, name: "head" not in name)
    matrices, vectors = [[p for p in net.parameters() if (p.dim() > 1) == many] for many in (True, False)]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": ADAMW["weight-decay"]}, {"params": vectors, "weight_decay": 0.0}],
                                  lr=ADAMW["lr"], betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=ADAMW["eps"], fused=True)
    if isinstance(net, Qwen):
        net.compile_parts()
        forward = net
    else:
        forward = torch.compile(net)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    times, losses = [], []
    for rows in windows.split(batch * options.micro_batches):
        wait()
        start = time.perf_counter()
        total = 0
        for ids in rows.split(batch):
            with torch.autocast(device, torch.bfloat16, enabled=low):
                loss = forward(ids[:, :-1], ids[:, 1:])
            (loss / options.micro_batches).backward()
            total = total + loss.detach()
        torch.nn.utils.clip_grad_norm_(net.parameters(), ADAMW["clip"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        wait()
        times.append(1e3 * (time.perf_counter() - start))
        losses.append(float(total) / options.micro_batches)
    half = sorted(times[options.steps // 2:])
    peak = torch.cuda.max_memory_allocated() >> 20 if device == "cuda" else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{way},{half[len(half) // 2]:.2f},{peak},{' '.join(f'{loss:.6f}' for loss in losses)}", flush=True)


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n")[0])
    for word in ("shape", "tokens", "weights"):
        parser.add_argument(word)
    parser.add_argument("--ways", default="bf16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--micro-batches", type=int, default=1)
    options = parser.parse_args()
    shape = SHAPES[options.shape]
    batch, context = shape[7:9]
    tokens = torch.from_numpy(numpy.fromfile(options.tokens, numpy.uint16, offset=1024).astype(numpy.int64))
    at = starts(options.steps * options.micro_batches * batch, len(tokens) - context)
    windows = tokens[at[:, None] + torch.arange(context + 1)].to(options.device)
    for way in options.ways.split(","):
        gc.collect()
        torch._dynamo.reset()
        if options.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        net = make(shape, options.weights, options.device)
        train(net, windows, way, options, batch, context)
        del net


if __name__ == "__main__":
    main()
