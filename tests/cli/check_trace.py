"""check_trace.py PROFILE FIRST STEPS: trace.json against the Trace Event Format, as Perfetto and Chrome read it."""
import csv
import json
import math
import pathlib
import sys
from collections import defaultdict

folder, first, steps = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])


def no_constant(name):
    raise ValueError(f"{name} is no JSON")


def no_twice(pairs):
    keys = [key for key, _ in pairs]
    assert len(set(keys)) == len(keys), keys
    return dict(pairs)


trace = json.loads((folder / "trace.json").read_text(), parse_constant=no_constant, object_pairs_hook=no_twice)
assert trace["displayTimeUnit"] in ("ms", "ns")
events = trace["traceEvents"]
lanes, names = defaultdict(list), {}
for event in events:
    assert event["ph"] in ("X", "M"), event
    for key in ("pid", "tid"):
        assert type(event[key]) is int and event[key] >= 0, event
    assert type(event["ts"]) in (int, float) and math.isfinite(event["ts"]) and event["ts"] >= 0, event
    assert isinstance(event["name"], str) and event["name"], event
    lane = (event["pid"], event["tid"])
    if event["ph"] == "M":
        assert event["name"] in ("process_name", "thread_name"), event
        key = (event["name"], event["pid"]) + ((event["tid"],) if event["name"] == "thread_name" else ())
        assert isinstance(event["args"]["name"], str) and key not in names, event
        names[key] = event["args"]["name"]
        continue
    assert math.isfinite(event["dur"]) and event["dur"] >= 0, event
    assert isinstance(event["cat"], str) and event["cat"], event
    assert first <= event["args"]["step"] < first + steps, event
    lanes[lane].append(event)

# Every lane with a bar has a name, and so has its process.
assert sorted(names[("process_name", p)] for p in {p for p, _ in lanes}) == ["device", "host"], names
for process, thread in lanes:
    assert ("thread_name", process, thread) in names, (process, thread)

# Bars of a lane lie beside or inside each other, to the nanosecond that times are written in.
SLACK = 0.0015
for (process, thread), bars in lanes.items():
    open_bars = []
    for bar in sorted(bars, key=lambda b: (b["ts"], -b["dur"])):
        while open_bars and open_bars[-1]["ts"] + open_bars[-1]["dur"] <= bar["ts"] + SLACK:
            open_bars.pop()
        for outer in open_bars:
            assert bar["ts"] + bar["dur"] <= outer["ts"] + outer["dur"] + SLACK, (outer, bar)
        assert not open_bars or names[("process_name", process)] == "host", bar  # one call at a time
        open_bars.append(bar)

host = [e for e in events if e.get("cat") == "host"]
assert sum(e["name"] == "step" for e in host) == steps
assert {"step", "data", "micro", "update"} <= {e["name"] for e in host}, {e["name"] for e in host}
calls = [e for e in events if e["ph"] == "X" and e.get("cat") != "host"]
assert {e["cat"] for e in calls} >= {"forward", "backward", "update"}
for e in calls:
    assert {"module", "kernel", "tensors", "bytes", "flops"} <= set(e["args"]), e
    if "share_of_peak" in e["args"]:
        assert e["args"]["bound"] in ("arithmetic", "memory"), e

# The table has the same calls: their number and their time, a step.
with open(folder / "ops.csv", newline="") as file:
    rows = list(csv.DictReader(file))
assert round(sum(float(r["calls_per_step"]) for r in rows) * steps) == len(calls)
table, bars = sum(float(r["ms_per_step"]) for r in rows) * steps, sum(e["dur"] for e in calls) / 1e3
assert math.isclose(table, bars, rel_tol=1e-3), (table, bars)
print(f"{len(events)} events, {len(calls)} calls, {len(lanes)} lanes")
