#!/usr/bin/env python3
"""replay_cost.py METRICS_WITHOUT METRICS_WITH N: what replaying every N-th step costs. Windows of N steps around a replayed one: the mean milliseconds of
a step without and with, the difference in percent, and as milliseconds of one replay; for the second window, and for the first, whose replay
also loads kernels. Exit code 1 where a run has fewer than 2.5 N steps."""
import json
import statistics
import sys


def times(path):
    rows = (json.loads(line) for line in open(path))
    return {row["step"]: row["perf/step_ms"] for row in rows if "perf/step_ms" in row}


without, replayed, n = times(sys.argv[1]), times(sys.argv[2]), int(sys.argv[3])
found = []
for replay in (2 * n, n):
    window = range(replay - n // 2 + 1, replay + n // 2 + 1)
    if not all(step in run for step in window for run in (without, replayed)):
        sys.exit(f"{sys.argv[2]}: there are not all steps from {window[0]} to {window[-1]}")
    a, b = (statistics.mean(run[step] for step in window) for run in (without, replayed))
    found += [f"{a:.3f}", f"{b:.3f}", f"{100 * (b / a - 1):.3f}", f"{len(window) * (b - a):.2f}"]
print(*found)
