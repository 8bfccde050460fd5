"""Learning-rate schedules in doubles, one value a step.

Warm-up is nanoGPT's: lr * (it + 1) / (warmup + 1), so step 0 already moves and step `warmup` is the first at the full rate.
After it, with r = (it - warmup) / (decay - warmup) for warmup <= it <= decay:
    constant    lr
    linear      min + (lr - min) * (1 - r)
    cosine      min + (lr - min) * (1 + cos(pi r)) / 2
    polynomial  min + (lr - min) * (1 - r)^power
and min for it > decay (constant has no end).
"""

import math

from store import write_json


def rate(kind, it, lr, min_lr, warmup, decay, power):
    if it < warmup:
        return lr * (it + 1) / (warmup + 1)
    if kind == "constant":
        return lr
    if it > decay:
        return min_lr
    if decay == warmup:
        return lr
    r = (it - warmup) / (decay - warmup)
    left = {"linear": 1.0 - r, "cosine": 0.5 * (1.0 + math.cos(math.pi * r)), "polynomial": (1.0 - r) ** power}[kind]
    return min_lr + (lr - min_lr) * left


CASES = [
    # kind, lr, min_lr, warmup, decay, power, steps
    ("constant", 6e-4, 0.0, 0, 0, 1.0, 12),
    ("constant", 6e-4, 0.0, 5, 0, 1.0, 12),
    ("linear", 1e-3, 1e-4, 4, 20, 1.0, 26),
    ("linear", 1e-3, 0.0, 0, 10, 1.0, 13),
    ("cosine", 1e-3, 1e-4, 10, 60, 1.0, 70),
    ("cosine", 3e-4, 0.0, 0, 16, 1.0, 20),
    ("polynomial", 2e-3, 1e-5, 3, 23, 2.0, 28),
    ("polynomial", 2e-3, 0.0, 3, 23, 0.5, 28),
    ("polynomial", 2e-3, 2e-4, 6, 30, 1.0, 34),
]


def main():
    cases = []
    for kind, lr, min_lr, warmup, decay, power, steps in CASES:
        values = [rate(kind, it, lr, min_lr, warmup, decay, power) for it in range(steps)]
        cases.append({"kind": kind, "lr": lr, "min_lr": min_lr, "warmup_steps": warmup, "decay_steps": decay,
                      "power": power, "values": values})
    write_json("schedules.json", __file__, {"cases": cases})


if __name__ == "__main__":
    main()
