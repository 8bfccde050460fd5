#!/usr/bin/env python3
"""PyTorch's side of bench/duel.py: steps of a Transformer on random windows of a token file, compiled, a CSV row for each way.

usage: torch_duel.py TOKENS MODEL LAYERS HEADS KV_HEADS WIDTH INNER VOCABULARY BATCH CONTEXT ACCUMULATE WAYS [STEPS]
  TOKENS  uint16 tokens after a header of 1,024 bytes (mezzo data's llmc format)
  MODEL   cs336, or a name of Qwen 2.5 (transformers' Qwen2ForCausalLM with tied embeddings)
  WAYS    a list with commas of
          bf16        autocast, torch.compile, fused AdamW, clipping at 1.0
          tensorwise  the same with torchao's float8 training of every linear layer but the head
          rowwise     likewise
cs336 is compiled as a whole; Qwen's layers are compiled one by one, which all share one compilation, and its head with the loss.
Prints way, median ms of the last half of the steps, peak MiB of the allocator, mean loss of the last five steps.
"""
import gc
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import numpy
import torch
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


def make(model, layers, heads, kv_heads, width, inner, vocab, context):
    if model != "cs336":
        return Qwen(vocab, context, width, inner, layers, heads, kv_heads)
    net = CS336(vocab, context, width, inner, layers, heads)
    for name, weight in net.named_parameters():  # as the model that it is compared with
        if weight.dim() == 2:
            torch.nn.init.trunc_normal_(weight, std=1.0 if name.startswith("tokens") else (2 / sum(weight.shape)) ** 0.5)
    return net


def train(net, tokens, way, batch, context, accumulate, steps):
    if way != "bf16":
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        convert_to_float8_training(net, config=Float8LinearConfig.from_recipe_name(way), module_filter_fn=lambda module, name: "head" not in name)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    if isinstance(net, Qwen):
        net.compile_parts()
        forward = net
    else:
        forward = torch.compile(net)
    times, losses = [], []
    for step in range(steps):
        start, end = torch.cuda.Event(True), torch.cuda.Event(True)
        start.record()
        total = 0
        for _ in range(accumulate):
            at = torch.randint(0, len(tokens) - context - 1, (batch, 1), device="cuda") + torch.arange(context + 1, device="cuda")
            window = tokens[at]
            with torch.autocast("cuda", torch.bfloat16):
                loss = forward(window[:, :-1], window[:, 1:])
            (loss / accumulate).backward()
            total = total + loss.detach()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
        losses.append(float(total) / accumulate)
    half = sorted(times[steps // 2:])
    print(f"{way},{half[len(half) // 2]:.2f},{torch.cuda.max_memory_allocated() >> 20},{sum(losses[-5:]) / 5:.4f}", flush=True)


def main():
    path, model, ways = sys.argv[1], sys.argv[2], sys.argv[12].split(",")
    layers, heads, kv_heads, width, inner, vocab, batch, context, accumulate = map(int, sys.argv[3:12])
    steps = int(sys.argv[13]) if len(sys.argv) > 13 else 50
    tokens = torch.from_numpy(numpy.fromfile(path, numpy.uint16, offset=1024).astype(numpy.int64)).cuda()
    for way in ways:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        torch._dynamo.reset()
        torch.manual_seed(0)
        with torch.device("cuda"):
            net = make(model, layers, heads, kv_heads, width, inner, vocab, context)
        train(net, tokens, way, batch, context, accumulate, steps)
        del net


if __name__ == "__main__":
    main()
