"""What contrib's scripts stored, read back: check_contrib.py wandb|mlflow FOLDER STEPS. Exit 1 and a line where it is not what was trained."""

import glob
import json
import struct
import sys


def wandb_records(path):
    """Records of a .wandb file: LevelDB's log format behind a header of 7 bytes; CRC, length, type, then a piece of a record."""
    from wandb.proto import wandb_internal_pb2

    data, at, pieces = open(path, "rb").read(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # no room for a header: the block's end is padded
            at += 32768 - at % 32768
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        pieces += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # full, last
            record = wandb_internal_pb2.Record()
            record.ParseFromString(pieces)
            pieces = b""
            yield record


def wandb(folder):
    rows, summary = [], {}
    for record in wandb_records(glob.glob(f"{folder}/wandb/offline-run-*/*.wandb")[0]):
        name = lambda item: item.key or "/".join(item.nested_key)
        if record.WhichOneof("record_type") == "history":
            rows.append({name(item): json.loads(item.value_json) for item in record.history.item})
        elif record.WhichOneof("record_type") == "summary":
            summary.update({name(item): json.loads(item.value_json) for item in record.summary.update})
    losses = {row["_step"]: row["train/loss"] for row in rows if "train/loss" in row}
    scales = [row["amp/loss_scale"] for row in rows if "amp/loss_scale" in row]
    benchmark = {key: value for row in rows for key, value in row.items() if key.startswith("amp_benchmark/")}
    return losses, scales, benchmark, summary["amp/precision"]


def mlflow(folder):
    import mlflow as sdk

    sdk.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    client = sdk.MlflowClient()
    run = client.search_runs([client.get_experiment_by_name("mezzo").experiment_id])[0]
    history = lambda name: client.get_metric_history(run.info.run_id, name)
    losses = {metric.step: metric.value for metric in history("train/loss")}
    scales = [metric.value for metric in sorted(history("amp/loss_scale"), key=lambda metric: metric.step)]
    benchmark = {key: value for key, value in run.data.metrics.items() if key.startswith("amp_benchmark/")}
    return losses, scales, benchmark, run.data.tags["amp/precision"]


def main():
    tool, folder, run = sys.argv[1:4]
    losses, scales, benchmark, precision = {"wandb": wandb, "mlflow": mlflow}[tool](folder)
    records = [json.loads(line) for line in open(f"{run}/metrics.jsonl")]
    expected = {record["step"]: record["train/loss"] for record in records if "train/loss" in record}
    scale = [record["amp/loss_scale"] for record in records if "amp/loss_scale" in record]
    problems = []
    if losses != expected:
        problems.append(f"losses are {losses}, should be {expected}")
    if scales != scale:
        problems.append(f"loss scales are {scales}, should be {scale}")
    if precision != "fp16":
        problems.append(f"the precision is {precision}")
    if benchmark.get("amp_benchmark/speedup") != 2.5 or benchmark.get("amp_benchmark/requirements_met/speedup") != 1:
        problems.append(f"the results of verify are {benchmark}")
    print("; ".join(problems))
    return len(problems) > 0


sys.exit(main())
