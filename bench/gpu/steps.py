#!/usr/bin/env python3
"""steps.py METRICS: of a run's steps without the first third of them, which may have been cut: the median, least, greatest and mean milliseconds,
MiB, the first and the last loss, the median of tokens a second, and the number of all steps. Exit code 1 where there are fewer than four."""
import json
import statistics
import sys

rows = []
try:
    for line in open(sys.argv[1]):
        row = json.loads(line)
        if "perf/step_ms" in row:
            rows.append(row)
except (OSError, ValueError):  # there is no run, or its last line was cut
    pass
if len(rows) < 4:
    sys.exit(f"no row of {sys.argv[1]}: {len(rows)} steps")
late = rows[len(rows) // 3:]
ms = [r["perf/step_ms"] for r in late]
rate = statistics.median(r.get("perf/tokens_per_second", 0) for r in late)
memory = max(r.get("perf/memory_bytes", 0) for r in rows) / 2**20
print(*(f"{x:.3f}" for x in (statistics.median(ms), min(ms), max(ms), statistics.mean(ms))), f"{memory:.0f}",
      *(f"{r['train/loss']:.5f}" for r in (rows[0], rows[-1])), f"{rate:.0f}", len(rows))
