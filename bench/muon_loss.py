#!/usr/bin/env python3
"""Loss of AdamW, Muon and NorMuon on a text, with intervals over seeds, and the steps Muon needs for AdamW's final loss.

    bench/muon_loss.py MEZZO TEXT [--device cuda] [--steps 1500] [--seeds 3] [--lr 1e-3] [--out CSV] [-- options of mezzo train]

All runs have one learning rate, schedule, weight decay and the same batches for a seed. Intervals are Student's, 95 %. Validation loss is that
of fixed samples every steps/15 steps (val/sampled_loss), and that of the whole validation text at the end. An H100 takes about 10 s a run."""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

VARIANTS = {
    "adamw": ["--optimizer", "adamw"],
    "muon-bf16": ["--optimizer", "muon", "--ns-format", "bf16"],
    "muon-fp32": ["--optimizer", "muon", "--ns-format", "fp32"],
    "normuon-bf16": ["--optimizer", "normuon", "--ns-format", "bf16"],
}
MODEL = "--model gpt2 --layers 6 --heads 6 --d-model 384 --seq-len 256 --batch-size 64 --dropout 0.1 --tokenizer byte --precision bf16".split()
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571}  # two-sided 95 %, by the number of seeds


def interval(values):
    if len(values) < 2:
        return f"{values[0]:.4f}"
    return f"{statistics.mean(values):.4f} ± {STUDENT.get(len(values), 2.4) * statistics.stdev(values) / len(values) ** 0.5:.4f}"


def run(args, name, seed, folder):
    out = os.path.join(folder, f"{name}-{seed}")
    command = [args.mezzo, "train", *MODEL, "--data", args.text, "--device", args.device, "--steps", str(args.steps), "--lr", str(args.lr), "--seed",
               str(seed), "--eval-every", str(max(1, args.steps // 15)), "--sample-every", "-1", "--checkpoint-every", "0", "--log-every", "50",
               "--out", out, "--quiet", *VARIANTS[name], *args.rest]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    rows = [json.loads(line) for line in open(os.path.join(out, "metrics.jsonl"), encoding="utf-8")]
    curve = [(r["step"], r["val/sampled_loss"]) for r in rows if "val/sampled_loss" in r]
    final = [r["val/loss"] for r in rows if "val/loss" in r]
    ms = [r["perf/step_ms"] for r in rows if "perf/step_ms" in r]
    return {"curve": curve, "final": final[-1] if final else curve[-1][1], "ms": statistics.median(ms), "seconds": time.monotonic() - began}


def first_at(curve, loss):
    """The step at which the curve is at `loss`, between evaluations by a straight line; None: it does not come to it."""
    for (s0, l0), (s1, l1) in zip([(0, float("inf")), *curve], curve):
        if l1 <= loss:
            return s1 if l0 == float("inf") else s0 + (s1 - s0) * (l0 - loss) / (l0 - l1)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mezzo")
    parser.add_argument("text")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--out")
    own = sys.argv[1:]
    own, rest = (own[: own.index("--")], own[own.index("--") + 1 :]) if "--" in own else (own, [])
    args = parser.parse_args(own)
    args.rest = rest
    args.mezzo = os.path.abspath(args.mezzo) if os.path.exists(args.mezzo) else args.mezzo
    results = {name: [] for name in args.variants.split(",")}
    with tempfile.TemporaryDirectory() as folder, open(args.out or os.devnull, "w", newline="", encoding="utf-8") as f:
        writer = csv.writer(f)
        writer.writerow(("optimizer", "seed", "step", "sampled_loss", "final_loss", "step_ms"))
        for seed in range(1, args.seeds + 1):  # runs of all variants alternate
            for name in results:
                r = run(args, name, seed, folder)
                results[name].append(r)
                writer.writerows([(name, seed, s, f"{l:.6f}", f"{r['final']:.6f}", f"{r['ms']:.3f}") for s, l in r["curve"]])
                f.flush()  # an interrupted session keeps the rows of its finished runs
    goals = [r["curve"][-1][1] for r in results.get("adamw", [])]
    for name, runs in results.items():
        print(f"{name}: final validation loss {interval([r['final'] for r in runs])}; {statistics.median(r['ms'] for r in runs):.2f} ms a step")
        if name == "adamw" or not goals:
            continue
        fractions = [first_at(r["curve"], goal) for r, goal in zip(runs, goals)]
        if None in fractions:
            print(f"  {fractions.count(None)} of {len(fractions)} seeds did not come to AdamW's final loss")
        else:
            print(f"  steps to AdamW's final loss, over AdamW's: {interval([f / args.steps for f in fractions])}")


if __name__ == "__main__":
    main()
