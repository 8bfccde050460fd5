"""How far torch's mixed precision is from float64 on the small GPT-2: loss, logits and every gradient, in BF16 and FP16.

    python3 gpt2_amp.py [OUT.json]        (default: tests/golden/data/gpt2_amp.json)

The weights and the first batch are those of gpt2_small.safetensors. On a CUDA device torch.autocast("cuda") decides. Without one
torch.autocast("cpu") stands in for it, with the logits cast to FP32 before the loss: that is the one step of this model where
the two op lists differ (autocast.csv). FP16 scales its loss by 1024, as a grad scaler would.

Stored per tensor: the root mean square of (mixed - float64) and of float64.
"""

import copy
import os
import sys

import torch
import torch.nn.functional as F

from gpt2_model import Gpt2, initialise
from gpt2_small import BATCH, CONTEXT, STEPS, VOCABULARY, WIDTH
from store import deterministic, write_json

PRECISIONS = {"bf16": (torch.bfloat16, 1.0), "fp16": (torch.float16, 1024.0)}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def rms(x):
    return x.double().square().mean().sqrt().item()


def run(model, tokens, targets, dtype=None, scale=1.0):
    model.zero_grad()
    with torch.autocast(DEVICE, dtype=dtype, enabled=dtype is not None):
        logits = model(tokens)
        wide = logits if dtype is None else logits.float()
        loss = F.cross_entropy(wide.flatten(0, 1), targets.flatten())
    (loss * scale).backward()
    results = {"grad." + n: p.grad.detach().double() / scale for n, p in model.named_parameters()}
    results["logits"] = logits.detach().double()
    results["loss"] = loss.detach().double()
    return results


def main():
    deterministic(1234)  # the draws of gpt2_small.py
    generator = torch.Generator().manual_seed(1234)
    single = initialise(Gpt2(context=CONTEXT, vocabulary=VOCABULARY, width=WIDTH), generator)
    tokens = torch.randint(VOCABULARY, (STEPS, BATCH, CONTEXT), generator=generator)
    targets = torch.randperm(VOCABULARY, generator=generator)[tokens]
    single, tokens, targets = single.to(DEVICE), tokens[0].to(DEVICE), targets[0].to(DEVICE)
    exact = run(copy.deepcopy(single).double(), tokens, targets)
    content = {"device": DEVICE}
    for name, (dtype, scale) in PRECISIONS.items():
        mixed = run(single, tokens, targets, dtype, scale)
        content[name] = {"scale": scale, "tensors": {
            n: {"error": rms(mixed[n] - exact[n]), "size": rms(exact[n])} for n in sorted(exact)}}
    write_json(os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else "gpt2_amp.json", __file__, content)


if __name__ == "__main__":
    main()
