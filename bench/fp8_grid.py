#!/usr/bin/env python3
"""Steps of shapes that no tile fits, each in turns with its aligned neighbour, in bf16, fp8 and fp8-block.

usage: bench/fp8_grid.py MEZZO [--csv FILE] [--commit HASH] [--turns N] [--only WORD] [--seconds N] [--device D]

Appends one row a shape, precision and turn, each once it is measured; prints the ratios of the medians: odd to neighbour, and fp8 to bf16. After --seconds no
other case is begun. The case "tiny" runs only where --only names it.
"""
import argparse
import csv
import os
import statistics
import subprocess
import time

PRECISIONS = ["bf16", "fp8", "fp8-block"]
# name, then (layers, width, heads, vocabulary, batch, context) of the odd shape and of its neighbour; d_ff is 4 x width.
CASES = [
    ("width 1000", (2, 1000, 8, 50304, 8, 512), (2, 1024, 8, 50304, 8, 512)),
    ("width 1016", (2, 1016, 8, 50304, 8, 512), (2, 1024, 8, 50304, 8, 512)),
    ("width 750", (2, 750, 10, 50304, 8, 512), (2, 800, 10, 50304, 8, 512)),
    ("width 760", (2, 760, 10, 50304, 8, 512), (2, 800, 10, 50304, 8, 512)),
    ("vocabulary 50257", (2, 768, 12, 50257, 8, 512), (2, 768, 12, 50304, 8, 512)),
    ("vocabulary 32003", (2, 768, 12, 32003, 8, 512), (2, 768, 12, 32000, 8, 512)),
    ("12 layers, width 1000, vocabulary 50257", (12, 1000, 8, 50257, 8, 1024), (12, 1024, 8, 50304, 8, 1024)),
    ("48 layers, width 1000, vocabulary 50257", (48, 1000, 8, 50257, 4, 512), (48, 1024, 8, 50304, 4, 512)),
    ("tokens 7 x 333", (2, 768, 12, 50304, 7, 333), (2, 768, 12, 50304, 8, 292)),
    ("tokens 5 x 77", (2, 768, 12, 50304, 5, 77), (2, 768, 12, 50304, 4, 96)),
    ("vocabulary 50258", (2, 768, 12, 50258, 8, 512), (2, 768, 12, 50304, 8, 512)),
    ("vocabulary 50261", (2, 768, 12, 50261, 8, 512), (2, 768, 12, 50304, 8, 512)),
    ("vocabulary 50264", (2, 768, 12, 50264, 8, 512), (2, 768, 12, 50304, 8, 512)),
    ("tiny", (1, 40, 2, 500, 2, 16), (1, 48, 2, 512, 2, 16)),
]
FIELDS = ["case", "side", "layers", "width", "heads", "vocabulary", "batch", "context", "precision", "turn", "step_ms",
          "mib", "device", "commit", "command"]


def measure(mezzo, device, shape):
    layers, width, heads, vocabulary, batch, context = shape
    command = [mezzo, "bench", "--family", "gpt2", "--models", f"{width}x{4 * width}x{layers}x{heads}", "--vocab",
               str(vocabulary), "--batch-size", str(batch), "--context-length", str(context), "--phases", "step",
               "--precisions", ",".join(PRECISIONS), "--no-mfu", "--warmup", "8", "--iters", "20", "--device", device, "--csv", "grid.csv"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    with open("grid.csv", newline="") as file:
        row = list(csv.DictReader(file))[0]
    os.remove("grid.csv")
    return row["device"], {p: (float(row[p + "_step_ms"]), float(row[p + "_memory_mb"])) for p in PRECISIONS}, command


def compare(args, table, file, name, odd, near):
    times = {}
    for turn in range(args.turns):
        for side, shape in (("odd", odd), ("neighbour", near)):
            try:
                device, found, command = measure(args.mezzo, args.device, shape)
            except subprocess.CalledProcessError as error:
                print(f"{name}, {side}: {' '.join(error.stderr.decode().strip().splitlines()[-1:])[:300]}", flush=True)
                return
            for p, (ms, mib) in found.items():
                times.setdefault((side, p), []).append(ms)
                table.writerow(dict(zip(FIELDS, [name, side, *shape, p, turn, ms, mib, device, args.commit, " ".join(["mezzo", *command[1:-2]])])))
            file.flush()
    median = {key: statistics.median(values) for key, values in times.items()}
    print(f"{name}: " + ", ".join(f"{p} {median['odd', p]:.2f} ms ({median['odd', p] / median['neighbour', p]:.3f} of its neighbour)" for p in PRECISIONS) +
          f"; fp8 {median['odd', 'fp8'] / median['odd', 'bf16']:.3f} of bf16", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mezzo")
    parser.add_argument("--csv", default="bench/results/fp8-grid.csv")
    parser.add_argument("--commit", default="")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    end = time.monotonic() + args.seconds
    with open(args.csv, "a", newline="") as file:
        table = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if file.tell() == 0:
            table.writeheader()
        for name, odd, near in CASES:
            if args.only not in name or (name == "tiny" and args.only != name):
                continue
            if time.monotonic() > end:
                print(f"{name}: no time was left", flush=True)
                continue
            compare(args, table, file, name, odd, near)


main()
