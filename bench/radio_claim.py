"""bench/radio_claim.sh's rows → a Markdown table: time and memory of each precision, and what fp32 has of it.

usage: radio_claim.py CSV... >TABLE
Medians of a case's runs, the least and the most in brackets. "×" is fp32's time over this one; "less" is what fp32's memory is above it.
"""
import csv, statistics, sys


def read(path):
    with open(path) as f:
        for row in csv.DictReader(f):
            ours = "median_ms" in row
            yield ((("Mezzo" if ours else "PyTorch " + row["way"]), int(row["batch"]), row["precision"]),
                   float(row["median_ms" if ours else "ms_step"]), float(row["peak_mib"]))


def main():
    cases = {}
    for path in sys.argv[1:]:
        for case, ms, mib in read(path):
            cases.setdefault(case, []).append((ms, mib))
    print("| batch | | | ms a step | × | MiB | less |\n|---|---|---|---|---|---|---|")
    for system, batch, precision in sorted(cases, key=lambda c: (c[1], c[0], ["fp32", "tf32", "bf16", "fp16"].index(c[2]))):
        times = sorted(ms for ms, _ in cases[system, batch, precision])
        ms, mib = statistics.median(times), statistics.median(m for _, m in cases[system, batch, precision])
        spread = f" ({times[0]:.1f} to {times[-1]:.1f})" if len(times) > 1 else ""
        ratio = less = ""
        if (system, batch, "fp32") in cases and precision != "fp32":
            plain = cases[system, batch, "fp32"]
            ratio = f"{statistics.median(t for t, _ in plain) / ms:.2f}"
            less = f"{100 * (1 - mib / statistics.median(m for _, m in plain)):.0f} %"
        print(f"| {batch} | {system} | {precision} | {ms:.1f}{spread} | {ratio} | {mib:,.0f} | {less} |")


if __name__ == "__main__":
    main()
