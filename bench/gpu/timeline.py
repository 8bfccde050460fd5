#!/usr/bin/env python3
"""timeline.py RECORDS: of what bench/gpu/timeline.c recorded of a process, rows "what|order|name|stream|count|ms_step|exposed_ms|start_ms", a step being
the time from one step_control to the next, without the first third of the steps. total: medians of the steps' time, of the time in which a kernel other
than a collective runs (work), of collectives, of what of them lies outside of work (exposed), and of the time in which nothing runs (idle). update: what
ran from 2.5 ms before the step_control of the step of median length to 8 ms after it. kernel: ms a step by name. Exit code 1 without four steps."""
import collections
import csv
import re
import statistics
import sys

BEFORE, AFTER = 2.5e6, 8e6


def united(spans):
    out = []
    for start, end in sorted(spans):
        if out and start <= out[-1][1]:
            out[-1][1] = max(out[-1][1], end)
        else:
            out.append([start, end])
    return out


def length(spans):
    return sum(end - start for start, end in spans)


def outside(span, cover):
    """What of a span no span of `cover`, which are united, covers."""
    return span[1] - span[0] - sum(max(0, min(span[1], end) - max(span[0], start)) for start, end in cover)


def short(name):
    """The kernel's own name, of a mangled one; the library's products have names that are not mangled."""
    found = re.findall(r"(?=(?<!\d)(\d{1,3})([A-Za-z_]\w+))", name) if name.startswith("_Z") else []
    names = [text[:int(n)] for n, text in found if len(text) >= int(n)]
    return next((one for one in names if one.endswith("kernel") or one.startswith("nccl")), name)[:60]


records = []
with open(sys.argv[1]) as file:
    for row in csv.DictReader(file):
        if (row["end_ns"] or "").isdigit():
            records.append((int(row["start_ns"]), int(row["end_ns"]), row["stream"], short(row["name"])))
records.sort()
marks = [start for start, _, _, name in records if "step_control" in name]
marks = marks[len(marks) // 3:]
if len(marks) < 4:
    sys.exit(f"{sys.argv[1]}: {len(marks)} steps")


def in_span(begin, end):
    return [one for one in records if one[0] < end and one[1] > begin]


def row(*values):
    print("|".join(str(value) for value in values))


totals = collections.defaultdict(list)
for begin, end in zip(marks, marks[1:]):
    inside = [(max(s, begin), min(e, end), name) for s, e, _, name in in_span(begin, end)]
    work = united((s, e) for s, e, name in inside if "nccl" not in name)
    moves = united((s, e) for s, e, name in inside if "nccl" in name)
    busy = united((s, e) for s, e, _ in inside)
    for what, value in (("step", end - begin), ("work", length(work)), ("collectives", length(moves)),
                        ("exposed", length(busy) - length(work)), ("idle", end - begin - length(busy))):
        totals[what].append(value)
for i, (what, values) in enumerate(totals.items()):
    row("total", i, what, "", 1, f"{statistics.median(values) / 1e6:.4f}", "", "")

ordered = sorted(zip(totals["step"][1:], marks[1:]))
at = ordered[len(ordered) // 2][1]
inside = in_span(at - BEFORE, at + AFTER)
work = united((s, e) for s, e, _, name in inside if "nccl" not in name)
for i, (start, end, stream, name) in enumerate(inside):
    exposed = f"{outside((start, end), work) / 1e6:.4f}" if "nccl" in name else ""
    row("update", i, name, stream, 1, f"{(end - start) / 1e6:.4f}", exposed, f"{(start - at) / 1e6:.4f}")

steps, kernels = len(marks) - 1, collections.defaultdict(lambda: [0, 0])
for start, end, _, name in records:
    if marks[0] <= start < marks[-1]:
        kernels[name][0] += 1
        kernels[name][1] += end - start
for name, (count, time) in sorted(kernels.items(), key=lambda one: -one[1][1]):
    row("kernel", "", name, "", f"{count / steps:g}", f"{time / steps / 1e6:.4f}", "", "")
