"""Reads a run folder of `mezzo train` as it grows: its configuration, its metrics line by line, the report of `mezzo verify`."""

import json
import math
import os
import time

# metrics.jsonl is JSON, which has no infinities; they are strings there.
NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def records(folder, live=False, interval=1.0, idle=None):
    """Yields (step, numbers, texts) for every whole line of FOLDER/metrics.jsonl.

    live: waits for more at the end, until nothing was added for `idle` seconds (None: for ever). A line that is still being written
    is read when it is whole. ValueError names a line that is no record.
    """
    path = os.path.join(folder, "metrics.jsonl")
    with open(path, encoding="utf-8") as file:
        number, waited, rest = 0, 0.0, ""
        while True:
            line = file.readline()
            if line.endswith("\n"):
                number, waited = number + 1, 0.0
                yield parse(rest + line, f"{path}:{number}")
                rest = ""
                continue
            rest += line
            if not live or (idle is not None and waited >= idle):
                return
            time.sleep(interval)
            waited += interval


def parse(line, where):
    try:
        record = json.loads(line)
        step = record.pop("step")
    except (ValueError, KeyError, AttributeError) as error:
        raise ValueError(f"{where}: not a record of mezzo train") from error
    numbers, texts = {}, {}
    for name, value in record.items():
        if isinstance(value, str) and value in NOT_FINITE:
            numbers[name] = NOT_FINITE[value]
        elif isinstance(value, bool):
            numbers[name] = int(value)
        elif isinstance(value, str):
            texts[name] = value
        else:
            numbers[name] = value
    return step, numbers, texts


def benchmark(path):
    """The numbers of mezzo verify's JSON, named amp_benchmark/…"""
    with open(path, encoding="utf-8") as file:
        report = json.load(file)
    names = ["speedup", "memory_reduction_percent", "accuracy_difference", "loss_difference", "fp32_time_seconds", "amp_time_seconds"]
    values = {f"amp_benchmark/{name}": report[name] for name in names if report.get(name) is not None}
    for name, met in report.get("requirements_met", {}).items():
        if met is not None:
            values[f"amp_benchmark/requirements_met/{name}"] = int(met)
    return values


def configuration(folder):
    """config.yaml as it stands, or None."""
    path = os.path.join(folder, "config.yaml")
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        return file.read()


def arguments(parser):
    parser.add_argument("run", help="the run folder of mezzo train")
    parser.add_argument("--verify", metavar="FILE", help="verify.json of mezzo verify, as amp_benchmark/…")
    parser.add_argument("--live", action="store_true", help="go on while the run writes")
    parser.add_argument("--idle", type=float, metavar="SECONDS", help="with --live: end when nothing came for so long [never]")
    parser.add_argument("--project", default="mezzo", help="the project or experiment [mezzo]")
    parser.add_argument("--name", help="the run's name there [the folder's]")
    return parser
