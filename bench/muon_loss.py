#!/usr/bin/env python3
"""Loss of AdamW, Muon and NorMuon on texts, with intervals over seeds, and the steps Muon needs for AdamW's final loss.

    bench/muon_loss.py MEZZO TEXT… [--device cuda] [--steps 1500] [--seeds 3] [--lr 1e-3] [--variants NAME,…] [--then NAME,…] [--together 1]
                       [--seconds S] [--out CSV] [--summary CSV] [-- options of mezzo train]

All runs have one learning rate (a variant NAME@RATE has its own), schedule, weight decay and the same batches for a seed. Intervals are Student's,
95 %; differences are of runs with one seed. Validation loss is that of fixed samples every steps/15 steps (val/sampled_loss), and that of the whole
validation text at the end. --then: variants that follow when all seeds of the others are there. --together runs so many at the same time: losses stay
the same, times do not. Turns of one seed begin while the longest one before fits into --seconds. An H100 takes about 10 s a run."""

import argparse
import concurrent.futures
import csv
import itertools
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
    "muon-fp16": ["--optimizer", "muon", "--ns-format", "fp16"],
    "muon-tf32": ["--optimizer", "muon", "--ns-format", "tf32"],
}
STANDARD = "adamw,muon-bf16,muon-fp32,normuon-bf16"
MODEL = "--model gpt2 --layers 6 --heads 6 --d-model 384 --seq-len 256 --batch-size 64 --dropout 0.1 --tokenizer byte --precision bf16".split()
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571}  # two-sided 95 %, by the number of seeds


def half_width(values):
    return STUDENT.get(len(values), 2.4) * statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")


def interval(values):
    return f"{statistics.mean(values):.4f} ± {half_width(values):.4f}" if len(values) > 1 else f"{values[0]:.4f}"


def run(args, text, name, seed, folder):
    kind, _, rate = name.partition("@")
    out = os.path.join(folder, f"{os.path.basename(text)}-{name}-{seed}")
    command = [args.mezzo, "train", *MODEL, "--data", text, "--device", args.device, "--steps", str(args.steps), "--lr", rate or str(args.lr), "--seed",
               str(seed), "--eval-every", str(max(1, args.steps // 15)), "--sample-every", "-1", "--checkpoint-every", "0", "--log-every", "50",
               "--out", out, "--quiet", *VARIANTS[kind], *args.rest]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
    rows = [json.loads(line) for line in open(os.path.join(out, "metrics.jsonl"), encoding="utf-8")]
    curve = [(r["step"], r["val/sampled_loss"]) for r in rows if "val/sampled_loss" in r]
    final = [r["val/loss"] for r in rows if "val/loss" in r]
    ms = [r["perf/step_ms"] for r in rows if "perf/step_ms" in r]
    return {"curve": curve, "final": final[-1] if final else curve[-1][1], "ms": statistics.median(ms)}


def first_at(curve, loss):
    """The step at which the curve is at `loss`, between evaluations by a straight line; None: it does not come to it."""
    for (s0, l0), (s1, l1) in zip([(0, float("inf")), *curve], curve):
        if l1 <= loss:
            return s1 if l0 == float("inf") else s0 + (s1 - s0) * (l0 - loss) / (l0 - l1)
    return None


def cells(values):
    """The mean and the half width of its interval, as cells of a row."""
    return [f"{x:.6f}" for x in (statistics.mean(values), half_width(values))] if values else ["", ""]


def summarize(args, text, results, writer):
    """Prints and writes a row for each variant; a variant is compared with another one over the seeds that both have."""
    print(text)
    for name, runs in results.items():
        if not runs:
            continue
        print(f"{name}: final validation loss {interval([r['final'] for r in runs.values()])}; {statistics.median(r['ms'] for r in runs.values()):.2f} ms a step")
        differences = {}
        for other in ("adamw", "muon-bf16"):
            pairs = [(r, results[other][seed]) for seed, r in runs.items() if seed in results.get(other, {})] if other != name else []
            differences[other] = [a["final"] - b["final"] for a, b in pairs]
            if pairs:
                print(f"  minus that of {other}: {interval(differences[other])}")
            if other == "adamw":
                fractions = [first_at(a["curve"], b["curve"][-1][1]) for a, b in pairs]
        came = [f / args.steps for f in fractions if f is not None]
        if len(came) < len(fractions):
            print(f"  {len(fractions) - len(came)} of {len(fractions)} seeds did not come to AdamW's final loss")
        elif came:
            print(f"  steps to AdamW's final loss, over AdamW's: {interval(came)}")
        writer.writerow([os.path.basename(text), name, args.steps, len(runs), *cells([r["final"] for r in runs.values()]), *cells(differences["adamw"]),
                         *cells(differences["muon-bf16"]), *cells(came), len(fractions) - len(came)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mezzo")
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--variants", default=STANDARD)
    parser.add_argument("--then", default="")
    parser.add_argument("--together", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--out", default=os.devnull)
    parser.add_argument("--summary", default=os.devnull)
    own = sys.argv[1:]
    own, rest = (own[: own.index("--")], own[own.index("--") + 1 :]) if "--" in own else (own, [])
    args = parser.parse_args(own)
    args.rest = rest
    args.mezzo = os.path.abspath(args.mezzo) if os.path.exists(args.mezzo) else args.mezzo
    groups = [names.split(",") for names in (args.variants, args.then) if names]
    names = sum(groups, [])
    unknown = [name for name in names if name.partition("@")[0] not in VARIANTS]
    if unknown:
        parser.error(f"{unknown[0]} is none of {', '.join(VARIANTS)}")
    results = {text: {name: {} for name in names} for text in args.texts}
    began, longest, failed = time.monotonic(), 0, False
    with tempfile.TemporaryDirectory() as folder, open(args.out, "w", newline="", encoding="utf-8") as f, \
            concurrent.futures.ThreadPoolExecutor(args.together) as pool:
        writer = csv.writer(f)
        writer.writerow(("text", "optimizer", "seed", "step", "sampled_loss", "final_loss", "step_ms"))
        for group, seed in itertools.product(groups, range(1, args.seeds + 1)):  # runs of all variants alternate
            turn = time.monotonic()
            if turn - began + longest > args.seconds:
                print(f"no time for seed {seed} of {', '.join(group)}")
                break
            runs = {pool.submit(run, args, text, name, seed, folder): (text, name) for text in args.texts for name in group}
            for done in concurrent.futures.as_completed(runs):
                text, name = runs[done]
                if done.exception():
                    print(f"FAIL: {done.exception()}", file=sys.stderr)
                    failed = True
                    continue
                r = results[text][name][seed] = done.result()
                writer.writerows([(os.path.basename(text), name, seed, s, f"{l:.6f}", f"{r['final']:.6f}", f"{r['ms']:.3f}") for s, l in r["curve"]])
                f.flush()  # an interrupted session keeps the rows of its finished runs
            longest = max(longest, time.monotonic() - turn)
    with open(args.summary, "w", newline="", encoding="utf-8") as f:
        writer = csv.writer(f, lineterminator="\n")
        writer.writerow("text optimizer steps seeds loss loss_pm minus_adamw minus_adamw_pm minus_muon_bf16 minus_muon_bf16_pm steps_to_adamw steps_to_adamw_pm "
                        "not_reached".split())
        for text in args.texts:
            summarize(args, text, results[text], writer)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
