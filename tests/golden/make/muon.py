"""Muon and NorMuon on three matrices for 20 steps: references in float64, Muon with each set of coefficients and rule of scale, and
torch.optim.Muon, whose Newton-Schulz iterations are in bfloat16.

Weights and gradients are made of integers, and the test makes the same ones. What is stored is the weights after the steps.
"""

import pathlib
import sys

import numpy as np
import torch

from store import deterministic, write_tensors

sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "bench"))
import newton_schulz

SHAPES = {"wide": (24, 40), "tall": (40, 24), "odd": (13, 7)}
STEPS, LR, DECAY, MOMENTUM = 20, 0.02, 0.1, 0.95
QUINTIC, POLAR = newton_schulz.QUINTIC[:5], newton_schulz.POLAR[:5]


def numbers(shape, step, which):
    """Numbers between -1 and 1 that float32 holds."""
    i = np.arange(shape[0] * shape[1], dtype=np.uint64) + np.uint64(1)
    x = (i * np.uint64(2654435761) + np.uint64((step * 97 + which) * 2246822519)) & np.uint64(0xFFFFFFFF)
    x ^= x >> np.uint64(15)
    x = (x * np.uint64(2246822519)) & np.uint64(0xFFFFFFFF)
    x ^= x >> np.uint64(13)
    return ((x & np.uint64(0xFFFF)).astype(np.float64) / 32768 - 1).reshape(shape)


def orthogonal(x, coefficients, factor):
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / max(np.linalg.norm(x), 1e-7) * factor
    for a, b, c in coefficients:
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


def scale_of(rule, rows, columns):
    return max(1, rows / columns) ** 0.5 if rule == "original" else 0.2 * max(rows, columns) ** 0.5


def reference(shape, which, coefficients, factor, rule):
    p, m = numbers(shape, 0, which), np.zeros(shape)
    for step in range(1, STEPS + 1):
        g = numbers(shape, step, which)
        m = MOMENTUM * m + (1 - MOMENTUM) * g
        direction = (1 - MOMENTUM) * g + MOMENTUM * m
        p = p * (1 - LR * DECAY) - LR * scale_of(rule, *shape) * orthogonal(direction, coefficients, factor)
    return p


def normuon(shape, which, rule, nesterov, beta2=0.95, eps=1e-8):
    """Li et al. 2025, arXiv 2510.05491, algorithm 1, which has no Nesterov momentum. Its step is 0.2·lr·√(rows·columns)/‖Ô‖: that of the
    rule match_rms_adamw for a matrix whose norm is √min(rows, columns)."""
    p, m, v = numbers(shape, 0, which), np.zeros(shape), np.zeros((shape[0], 1))
    for step in range(1, STEPS + 1):
        g = numbers(shape, step, which)
        m = MOMENTUM * m + (1 - MOMENTUM) * g
        o = orthogonal((1 - MOMENTUM) * g + MOMENTUM * m if nesterov else m, QUINTIC, 1)
        v = beta2 * v + (1 - beta2) * (o * o).mean(1, keepdims=True)
        o = o / (np.sqrt(v) + eps)
        o = o * min(shape) ** 0.5 / np.linalg.norm(o)
        p = p * (1 - LR * DECAY) - LR * scale_of(rule, *shape) * o
    return p


def by_torch(shape, which, rule):
    p = torch.nn.Parameter(torch.from_numpy(numbers(shape, 0, which)).float())
    optimizer = torch.optim.Muon([p], lr=LR, weight_decay=DECAY, momentum=MOMENTUM, nesterov=True, adjust_lr_fn=rule)
    for step in range(1, STEPS + 1):
        p.grad = torch.from_numpy(numbers(shape, step, which)).float()
        optimizer.step()
    return p.detach()


def main():
    deterministic(0)
    tensors = {}
    for which, (name, shape) in enumerate(SHAPES.items()):
        for rule in ("original", "match_rms_adamw"):
            for kind, coefficients, factor in (("quintic", QUINTIC, 1), ("polar_express", POLAR, 1 / newton_schulz.SAFETY)):
                tensors[f"{kind}.{rule}.{name}"] = torch.from_numpy(reference(shape, which, coefficients, factor, rule))
            for nesterov in (False, True):
                kind = "normuon" if nesterov else "plain_normuon"
                tensors[f"{kind}.{rule}.{name}"] = torch.from_numpy(normuon(shape, which, rule, nesterov))
            tensors[f"torch.{rule}.{name}"] = by_torch(shape, which, rule)
            moved = tensors[f"torch.{rule}.{name}"].double() - torch.from_numpy(numbers(shape, 0, which))
            off = tensors[f"torch.{rule}.{name}"].double() - tensors[f"quintic.{rule}.{name}"]
            print(f"{name}, {rule}: torch's own distance from float64, over the way: {off.norm() / moved.norm():.2e}")
    write_tensors("muon.safetensors", __file__, tensors)


if __name__ == "__main__":
    main()
