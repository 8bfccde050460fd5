"""The ops worth improving of `mezzo train --profile 1` beside Nsight Compute's times of the same step's kernels.

usage: profile_beside_ncu.py TRACE.json NCU.csv [ROWS] >CSV
  TRACE.json  OUT/profile/trace.json of a run with one recorded step, without ncu
  NCU.csv     the same command under
              ncu --nvtx --nvtx-include step/ --cache-control none --metrics gpu__time_duration.sum --csv --page raw --log-file NCU.csv
Both have a row for every op of a module, blocks' numbers left out; the profile's order is that of its table (time above the floor). Exit 1 where
a kernel lies in no op of the trace, or an op has no kernel.
"""
import csv, json, re, sys

MICROSECONDS = {"ns": 1e-3, "nsecond": 1e-3, "us": 1, "usecond": 1, "ms": 1e3, "msecond": 1e3}
TIME = "gpu__time_duration.sum"


def starred(module):
    return ".".join("*" if part.isdigit() else part for part in module.split("."))


def profiled(path):  # (op, module) -> calls, us, floor; and the ranges' names
    rows, ranges = {}, {}
    with open(path) as f:
        events = [e for e in json.load(f)["traceEvents"] if e["ph"] == "X" and e["cat"] != "host"]
    for e in events:
        key = (e["name"], starred(e["args"]["module"]))
        ranges[f"{e['name']} {e['args']['module']}".strip()] = key
        row = rows.setdefault(key, [0, 0.0, 0.0])
        row[0] += 1
        row[1] += e["dur"]
        row[2] += e["args"].get("floor_us", 0)
    return rows, ranges


def measured(path, ranges):  # (op, module) -> kernels, us; and what lies in no range
    rows, strangers = {}, []
    with open(path) as f:
        lines = [line for line in f if line.startswith('"')]
    table = csv.DictReader(lines)
    column = next(name for name in table.fieldnames if name.startswith(TIME))
    units = next(table)
    scale = MICROSECONDS[units[column]]
    words = {name: re.compile(r"(?<![\w.])" + re.escape(name) + r"(?![\w.])") for name in ranges}
    innermost = sorted(ranges, key=len, reverse=True)
    known = {}
    for row in table:
        text = "\n".join(v for k, v in row.items() if k and v and (k == "Kernel Name" or "Push/Pop" in k))
        if text not in known:
            known[text] = next((name for name in innermost if words[name].search(text)), None)
        if known[text] is None:
            strangers.append(row["Kernel Name"])
            continue
        entry = rows.setdefault(ranges[known[text]], [0, 0.0])
        entry[0] += 1
        entry[1] += float(row[column].replace(",", "")) * scale
    return rows, strangers


def main():
    ours, ranges = profiled(sys.argv[1])
    theirs, strangers = measured(sys.argv[2], ranges)
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 10
    total, total_ncu = sum(r[1] for r in ours.values()), sum(r[1] for r in theirs.values())
    order = sorted(ours, key=lambda k: -max(0.0, ours[k][1] - ours[k][2]))
    by_ncu = sorted(theirs, key=lambda k: -theirs[k][1])
    by_time = sorted(ours, key=lambda k: -ours[k][1])
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow("op module calls profile_ms profile_share place kernels ncu_ms ncu_share ncu_place".split())
    for key in order[:count]:
        calls, us, _ = ours[key]
        kernels, ncu = theirs.get(key, (0, 0.0))
        out.writerow([*key, calls, f"{us / 1e3:.4f}", f"{us / total:.4f}", by_time.index(key) + 1, kernels, f"{ncu / 1e3:.4f}",
                      f"{ncu / total_ncu:.4f}", by_ncu.index(key) + 1 if key in theirs else ""])
    out.writerow(["all", "", sum(r[0] for r in ours.values()), f"{total / 1e3:.4f}", "1.0000", "", sum(r[0] for r in theirs.values()),
                  f"{total_ncu / 1e3:.4f}", "1.0000", ""])
    without = [key for key in ours if key not in theirs]
    for name in sorted(set(strangers)):
        print(f"in no op of the trace: {name}", file=sys.stderr)
    for key in without:
        print(f"without a kernel: {' '.join(key)}", file=sys.stderr)
    return 1 if strangers or without else 0


if __name__ == "__main__":
    sys.exit(main())
