#!/usr/bin/env python3
"""How orthogonal Newton-Schulz steps make the momentum of a run, by the format of their products.

    bench/newton_schulz.py RUN/checkpoints/step-00000200 [--steps 5] [--coefficients quintic|polar_express] [--apart] [--csv FILE]

Reads the momentum_buffer of matrices in optimizer.safetensors. Each matrix is divided by its norm and goes through the steps with X, A = XXᵀ
and B = b·A + c·A² rounded to the format, and sums in FP32, as the optimizer does (FP64: no rounding). FP8 has E4M3 and a scale for each
tensor, a power of two. A row: the format, the matrix, the singular values' least, median and largest, ‖XXᵀ - I‖/√n, and the distance
from the steps in FP64 over their result's size. In BF16 and FP16 wide matrices take two steps at once, as the optimizer's do; --apart: none
does. Needs numpy."""

import argparse
import csv
import json
import struct
import sys

import numpy as np

QUINTIC = [(3.4445, -4.7750, 2.0315)] * 10
# Amsel et al. 2025, arXiv 2505.16932, algorithm 1.
POLAR = [
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
]
SAFETY = 1.01
POLAR = [(a / SAFETY, b / SAFETY**3, c / SAFETY**5) for a, b, c in POLAR] + [(1.875, -1.25, 0.375)] * 3
SIGNIFICANT = {"bf16": 8, "fp16": 11, "tf32": 11, "fp32": 24, "fp8": 4}  # bits, with the implicit one
FORMATS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")


def to_bits(x, bits, least):
    """x to nearest with so many significant bits; numbers below 2^least lose those below its last place."""
    fraction, exponent = np.frexp(x)
    last = np.maximum(exponent, least) - bits
    return np.ldexp(np.rint(np.ldexp(x, -last)), last)


def rounded(x, kind):
    if kind == "fp64":
        return x
    if kind == "fp8":  # the power of two that brings the largest number to at most 448
        largest = np.abs(x).max()
        scale = 2.0 ** np.ceil(np.log2(largest / 448)) if largest > 0 else 1.0
        return to_bits(x / scale, 4, -5) * scale
    return to_bits(x, SIGNIFICANT[kind], -13 if kind == "fp16" else -125)


def product(a, b, kind):
    return a @ b if kind == "fp64" else (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float64)


def orthogonal(x, kind, coefficients, factor, apart=False):
    def polynomial(gram, a, b, c):
        return rounded(a * np.eye(len(gram)) + b * gram + c * product(gram, gram, kind), kind)

    at_once = 2 if not apart and kind in ("bf16", "fp16") and 2 * max(x.shape) > 3 * min(x.shape) else 1
    x = rounded(x / np.linalg.norm(x) * factor, kind)
    i = 0
    while i < len(coefficients):
        gram = rounded(product(x, x.T, kind), kind)
        if at_once == 1 or i + 1 == len(coefficients) or (i == 2 and len(coefficients) % 2 == 1):  # of an odd number the third is alone
            x = rounded(coefficients[i][0] * x + product(polynomial(gram, 0, *coefficients[i][1:]), x, kind), kind)
            i += 1
            continue
        first = polynomial(gram, *coefficients[i])
        for _ in range(2):  # Z·A, Z·A·Z
            gram = rounded(product(first, gram, kind), kind)
        both = rounded(product(polynomial(gram, *coefficients[i + 1]), first, kind), kind)
        x = rounded(product(both, x, kind), kind)
        i += 2
    return x


def matrices(path):
    with open(path, "rb") as f:
        (size,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(size))
        start = 8 + size
        for name, entry in sorted(header.items()):
            if not name.endswith(".momentum_buffer") or len(entry["shape"]) != 2 or entry["dtype"] != "F32":
                continue
            f.seek(start + entry["data_offsets"][0])
            data = f.read(entry["data_offsets"][1] - entry["data_offsets"][0])
            yield name.removesuffix(".momentum_buffer"), np.frombuffer(data, "<f4").reshape(entry["shape"]).astype(np.float64)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--coefficients", choices=("quintic", "polar_express"), default="quintic")
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--csv")
    args = parser.parse_args()
    quintic = args.coefficients == "quintic"
    coefficients = (QUINTIC if quintic else POLAR)[: args.steps]
    rows = []
    for name, m in matrices(args.checkpoint + "/optimizer.safetensors"):
        m = m.T if m.shape[0] > m.shape[1] else m
        best = orthogonal(m, "fp64", coefficients, 1 if quintic else 1 / SAFETY)
        before = np.linalg.svd(m / np.linalg.norm(m), compute_uv=False)
        for kind in FORMATS:
            x = best if kind == "fp64" else orthogonal(m, kind, coefficients, 1 if quintic else 1 / SAFETY, args.apart)
            s = np.linalg.svd(x, compute_uv=False)
            off = np.linalg.norm(x @ x.T - np.eye(len(x))) / len(x) ** 0.5
            rows.append((kind, name, before.min() / before.max(), s.min(), np.median(s), s.max(), off, np.linalg.norm(x - best) / np.linalg.norm(best)))
    if not rows:
        sys.exit(f"{args.checkpoint}: no FP32 momentum_buffer of a matrix: use a run of --optimizer muon")
    names = ("format", "matrix", "condition", "least", "median", "largest", "from_identity", "from_fp64")
    if args.csv:
        with open(args.csv, "w", newline="", encoding="utf-8") as f:
            writer = csv.writer(f)
            writer.writerow(names)
            writer.writerows([r[:2] + tuple(f"{v:.6g}" for v in r[2:]) for r in rows])
    print(f"{len(rows) // len(FORMATS)} matrices, least to largest singular value before: {min(r[2] for r in rows):.1e} to {max(r[2] for r in rows):.1e}")
    print("format  least  largest  off identity (mean)  off FP64 (mean)  off FP64 (worst)")
    for kind in FORMATS:
        of = [r for r in rows if r[0] == kind]
        print(f"{kind:<6} {min(r[3] for r in of):6.3f} {max(r[5] for r in of):8.3f} {np.mean([r[6] for r in of]):20.4f} "
              f"{np.mean([r[7] for r in of]):16.2e} {max(r[7] for r in of):17.2e}")


if __name__ == "__main__":
    main()
