#!/usr/bin/env python3
"""PyTorch's side of bench/duel.py: steps of CS336's Transformer on random windows of a token file, compiled, one CSV row.

usage: torch_duel.py TOKENS LAYERS HEADS WIDTH INNER VOCABULARY BATCH CONTEXT ACCUMULATE WAY [STEPS]
  TOKENS  uint16 tokens after a header of 1,024 bytes (mezzo data's llmc format)
  WAY     bf16        autocast, torch.compile, fused AdamW, clipping at 1.0
          tensorwise  the same with torchao's float8 training of every linear layer but the head
          rowwise     likewise
Prints way, median ms of the last half of the steps, peak MiB of the allocator, mean loss of the last five steps.
"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import numpy
import torch
from torch_gpt2 import CS336


def main():
    path, way = sys.argv[1], sys.argv[10]
    layers, heads, width, inner, vocab, batch, context, accumulate = map(int, sys.argv[2:10])
    steps = int(sys.argv[11]) if len(sys.argv) > 11 else 20
    tokens = torch.from_numpy(numpy.fromfile(path, numpy.uint16, offset=1024).astype(numpy.int64)).cuda()
    torch.manual_seed(0)
    with torch.device("cuda"):
        net = CS336(vocab, context, width, inner, layers, heads)
    for name, weight in net.named_parameters():  # as the model that it is compared with
        if weight.dim() == 2:
            torch.nn.init.trunc_normal_(weight, std=1.0 if name.startswith("tokens") else (2 / sum(weight.shape)) ** 0.5)
    if way != "bf16":
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        convert_to_float8_training(net, config=Float8LinearConfig.from_recipe_name(way), module_filter_fn=lambda module, name: "head" not in name)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
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
    print(f"{way},{half[len(half) // 2]:.2f},{torch.cuda.max_memory_allocated() >> 20},{sum(losses[-5:]) / 5:.4f}")


if __name__ == "__main__":
    main()
