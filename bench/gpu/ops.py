#!/usr/bin/env python3
"""ops.py OPS: of a profile's ops.csv, one line for each op, phase and kernel with the calls, milliseconds and floor a step, and TFLOP/s and GB/s."""
import csv
import sys

rows = {}
for op in csv.DictReader(open(sys.argv[1])):
    each = rows.setdefault((op["op"], op["phase"], op["kernel"]), [0.0] * 5)
    for i, key in enumerate(("calls_per_step", "ms_per_step", "floor_ms_per_step", "flops_per_step", "bytes_per_step")):
        each[i] += float(op[key] or 0)
print(f"{sys.argv[1].rsplit('/', 1)[-1]}: {sum(each[1] for each in rows.values()):.2f} ms a step, call by call")
for name, (calls, ms, floor, flops, size) in sorted(rows.items(), key=lambda row: -row[1][1])[:24]:
    print(f"{' '.join(name)}: {calls:.0f} calls, {ms:.3f} ms, floor {floor:.3f}, {flops / ms / 1e9:.0f} TFLOP/s, {size / ms / 1e6:.0f} GB/s")
