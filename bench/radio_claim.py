"""bench/radio_claim.sh's rows → a Markdown table: time and memory of each precision, and what fp32 has of it.

usage: radio_claim.py TIMES.csv CSV... >TABLE
TIMES.csv has a row a step: system, model, batch, precision, ms; the others have a run's memory. Medians of a case's steps, in brackets the
interval that has the median of all such steps with 95 % (order statistics: no distribution is assumed). "×" is fp32's time over this one, its
interval from 2,000 draws of both cases' steps; "less" is how much less memory it takes than fp32.
"""
import csv, math, os, random, statistics, sys

ORDER = ["fp32", "tf32", "bf16", "fp16"]


def interval(times):
    """Ranks l and n + 1 - l, the narrowest pair between which the median lies with 95 %."""
    n, tail, low = len(times), 0.0, 0
    while low < n // 2 and tail + math.comb(n, low) / 2**n <= 0.025:
        tail += math.comb(n, low) / 2**n
        low += 1
    low = max(low, 1)
    return times[low - 1], times[n - low]


def ratio(plain, times, draws=2000):
    r = random.Random(1)
    values = sorted(statistics.median(r.choices(plain, k=len(plain))) / statistics.median(r.choices(times, k=len(times)))
                    for _ in range(draws))
    return statistics.median(plain) / statistics.median(times), values[draws // 40], values[-draws // 40 - 1]


def main():
    times, memory = {}, {}
    with open(sys.argv[1]) as f:
        for system, _, batch, precision, ms in csv.reader(f):
            times.setdefault((int(batch), system, precision), []).append(float(ms))
    for path in filter(os.path.exists, sys.argv[2:]):
        with open(path) as f:
            for row in csv.DictReader(f):
                system = "Mezzo" if "median_ms" in row else "PyTorch " + row["way"]
                memory[int(row["batch"]), system, row["precision"]] = float(row["peak_mib"])
    print("| batch | | | ms a step | × | MiB | less |\n|---|---|---|---|---|---|---|")
    for case in sorted(times, key=lambda c: (c[0], c[1], ORDER.index(c[2]))):
        batch, system, precision = case
        steps, plain = sorted(times[case]), (batch, system, "fp32")
        cells = [batch, system, precision, "{:.1f} ({:.1f} to {:.1f})".format(statistics.median(steps), *interval(steps)), "", "", ""]
        if case in memory:
            cells[5] = f"{memory[case]:,.0f}"
        if precision != "fp32" and plain in times:
            cells[4] = "{:.2f} ({:.2f} to {:.2f})".format(*ratio(times[plain], steps))
            if case in memory and memory.get(plain, 0) > 0:
                cells[6] = f"{100 * (1 - memory[case] / memory[plain]):.0f} %"
        print("|", " | ".join(map(str, cells)), "|")


if __name__ == "__main__":
    main()
