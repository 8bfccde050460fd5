"""bench/fp8_losses.py LOSSES.csv [WINDOWS.csv]: what bench/fp8_losses.sh measured, as a table: for each recipe the mean of the lowest and of the last
validation losses over the seeds, and its distance from BF16's; a table for each number of steps. The standard error of a mean over seeds is the root of the
seeds' variance, taken of all recipes together, over their number, where a recipe has several; that of a difference on one validation set comes from WINDOWS: differences of the
losses of each batch, in order, in pairs with BF16's."""

import csv
import math
import sys
from collections import defaultdict


def read(path):
    with open(path, newline="") as f:
        return list(csv.DictReader(f))


def spread(groups):
    """Standard deviation within groups, all of them together."""
    groups = [g for g in groups if len(g) > 1]
    squares = sum(sum((x - sum(g) / len(g)) ** 2 for x in g) for g in groups)
    free = sum(len(g) - 1 for g in groups)
    return math.sqrt(squares / free) if free else math.nan


def windows(path):
    runs = defaultdict(list)
    for r in read(path):
        runs[r["recipe"], r["seed"]].append((float(r["loss"]), int(r["counted"])))
    mean = {k: sum(x * n for x, n in v) / sum(n for _, n in v) for k, v in runs.items()}
    first = next((k for k in sorted(runs) if k[0] == "bf16"), None)
    base = runs.get(first)
    print(f"| run | loss of all batches | standard error | over bf16's, seed {first[1] if base else '?'} | its standard error |\n|---|---|---|---|---|")
    for key, v in runs.items():
        full = [x for x, n in v if n == v[0][1]]
        error = spread([full]) / math.sqrt(len(full))
        line = f"| {key[0]} seed {key[1]} | {mean[key]:.4f} | {error:.4f} |"
        if base and key != first:
            apart = [x - y for (x, n), (y, _) in zip(v, base) if n == v[0][1]]
            of = mean[first]
            line += f" {100 * (mean[key] - of) / of:+.2f} % | {100 * spread([apart]) / math.sqrt(len(apart)) / of:.2f} % |"
        else:
            line += " | |"
        print(line)


def table(steps, rows):
    base = [sum(x[k] for x in rows["bf16"]) / len(rows["bf16"]) for k in (0, 1)]
    noise = [spread([[x[k] for x in v] for v in rows.values()]) for k in (0, 1)]
    known = not math.isnan(noise[0])
    print(f"{steps} steps" + (f"; one seed's standard deviation: {noise[0]:.4f} (lowest), {noise[1]:.4f} (last)\n" if known else "\n"))
    print("| recipe | seeds | lowest | of bf16's | last | of bf16's |\n|---|---|---|---|---|---|")
    for name, v in rows.items():
        cells = []
        for k in (0, 1):
            mean = sum(x[k] for x in v) / len(v)
            error = f" ± {100 * noise[k] * math.sqrt(1 / len(v) + 1 / len(rows['bf16'])) / base[k]:.2f}" if known else ""
            cells.append(f"{mean:.4f} | {100 * (mean - base[k]) / base[k]:+.2f}{error} %" if name != "bf16" else f"{mean:.4f} |")
        print(f"| {name} | {len(v)} | {cells[0]} | {cells[1]} |")
    print()


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    lengths = defaultdict(lambda: defaultdict(list))
    for r in read(sys.argv[1]):
        lengths[int(r["steps"])][r["recipe"]].append((float(r["best_val_loss"]), float(r["val_loss"])))
    for steps in sorted(lengths, reverse=True):
        table(steps, lengths[steps])
    if len(sys.argv) == 3:
        windows(sys.argv[2])


if __name__ == "__main__":
    main()
