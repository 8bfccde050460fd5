"""Nsight Compute's CSV of one training step → a row a kernel: how often, time, bytes, share of the step.

usage: cuda_kernels.py LOG COMMIT DRIVER >CSV
LOG has gpu__time_duration.sum and dram__bytes.sum of every launch; families are what the floors in docs/dev/EXPERIMENTS.md are stated for.
"""
import csv, re, sys

MICROSECONDS = {"ns": 1e-3, "nsecond": 1e-3, "us": 1, "usecond": 1, "ms": 1e3, "msecond": 1e3}
MEGABYTES = {"byte": 1e-6, "Kbyte": 1e-3, "Mbyte": 1, "Gbyte": 1e3, "B": 1e-6, "KB": 1e-3, "MB": 1, "GB": 1e3}
FAMILIES = [
    ("product", r"nvjet|xmma|cutlass|cublas|gemm|splitK"),
    ("attention", r"attention|flash|fmha|sdpa"),
    ("cross-entropy", r"cross_entropy"),
    ("quantization", r"quantize_kernel|scales_update"),
    ("norm", r"norm_kernel|norm_bwd|^columns_kernel"),
    ("bias gradient", r"column_sums|add_partials"),
    ("embedding", r"embedding|histogram|scatter|piece_|join_"),
    ("update", r"adamw|sgd|grad_stats|_control|scaler|refresh"),
]


def short(name):
    name = re.sub(r"<unnamed>::|\(anonymous namespace\)::|void ", "", name)
    return name.split("(")[0][:90]


def main():
    log, commit, driver = sys.argv[1:4]
    with open(log) as f:
        rows = list(csv.DictReader(line for line in f if not line.startswith("==")))
    kernels = {}
    for row in rows:
        k = kernels.setdefault(short(row["Kernel Name"]), {"launches": set(), "us": 0.0, "mb": 0.0})
        k["launches"].add(row["ID"])
        value = float(row["Metric Value"].replace(",", ""))
        if "time" in row["Metric Name"]:
            k["us"] += value * MICROSECONDS[row["Metric Unit"]]
        else:
            k["mb"] += value * MEGABYTES[row["Metric Unit"]]
    total = sum(k["us"] for k in kernels.values())
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow("family kernel launches us share mb gb_per_s driver commit".split())
    for name, k in sorted(kernels.items(), key=lambda item: -item[1]["us"]):
        family = next((f for f, pattern in FAMILIES if re.search(pattern, name)), "elementwise")
        out.writerow([family, name, len(k["launches"]), f"{k['us']:.1f}", f"{k['us'] / total:.4f}", f"{k['mb']:.1f}",
                      f"{k['mb'] / k['us'] * 1e3:.0f}", driver, commit])


if __name__ == "__main__":
    main()
