#!/usr/bin/env python3
"""Audits of honest and of changed runs: bench/audit.py BUILD [SEED] >bench/results/audit-cpu.csv

30 honest runs (skips, rollbacks, resumes, other numbers of ranks, adapters, averages, optimizers, precisions) must be
confirmed bit for bit. 40 runs in which one bit of a weight, moment or average, a number of state.json, a record, a key or
a byte of the data was changed, with every checksum written anew, must be found, and the place must be named. One CSV row
each; exit 1 where a row is not good. Runs with ranks need mpirun. Nothing of the runs is kept.
"""
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile

build = os.path.abspath(sys.argv[1])
source = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
rng = random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
os.environ.update(MEZZO_PLUGINS=build, OMP_WAIT_POLICY="passive", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
FEW = ("--model gpt2 --layers 2 --heads 2 --d-model 32 --seq-len 32 --batch-size 2 --warmup 2 --eval-iters 2 --sample-tokens 16 "
       "--log-every 1 --device cpu --threads 1 --tokenizer byte --data text.txt --steps 12 --checkpoint-every 4 --eval-every 5 "
       "--keep-last 0 --quiet").split()
# name, ranks, options, (ranks, options) of a second process that resumes
HONEST = [
    ("fp32", 1, "--precision fp32", None),
    ("bf16", 1, "--precision bf16", None),
    ("fp8", 1, "--precision fp8", None),
    ("tf32", 1, "--precision tf32", None),
    ("fp16, skips", 1, "--precision fp16 --init-scale 4194304", None),
    ("fp16, many skips", 1, "--precision fp16 --init-scale 1e9", None),
    ("skipped batch", 1, "--precision bf16 --inject nan@7:loss --guard rollback --checkpoint-every 3", None),
    ("rollback", 1, "--guard rollback --inject nan@8:loss", None),
    ("rollback, fp16", 1, "--guard rollback --inject nan@6:loss --precision fp16", None),
    ("rollback of an activation", 1, "--guard rollback --inject inf@7:h.0.attn/attention --grad-accum 2", None),
    ("rollback, sparse checkpoints", 1, "--guard rollback --inject nan@11:loss --keep-last 2", None),
    ("resumed", 1, "--steps 6 --schedule-steps 12", (1, "--steps 12")),
    ("resumed, dropped checkpoint", 1, "--steps 6 --schedule-steps 12 --keep-last 2", (1, "--steps 16")),
    ("resumed, another rate", 1, "--steps 6 --schedule-steps 12", (1, "--steps 12 --lr 0.0005")),
    ("resumed, fp8", 1, "--precision fp8 --steps 7 --schedule-steps 12", (1, "--steps 12")),
    ("resumed, two ranks", 1, "--steps 6 --schedule-steps 12 --global-batch 8 --reduce canonical", (2, "--steps 12")),
    ("two ranks to one", 2, "--steps 6 --schedule-steps 12 --global-batch 8 --reduce canonical", (1, "--steps 12")),
    ("two ranks to four", 2, "--steps 6 --schedule-steps 12 --global-batch 8 --reduce canonical", (4, "--steps 12")),
    ("two ranks, parameters", 2, "--global-batch 8 --reduce canonical --shard parameters --precision bf16", None),
    ("four ranks, gradients", 4, "--global-batch 8 --reduce canonical --shard gradients", None),
    ("two ranks, average", 2, "--global-batch 8 --reduce canonical --ema 0.9", None),
    ("LoRA", 1, "--lora-rank 2", None),
    ("LoRA, bf16, average", 1, "--lora-rank 4 --precision bf16 --ema 0.9", None),
    ("average", 1, "--ema 0.95 --precision bf16", None),
    ("average, resumed", 1, "--ema 0.9 --steps 6 --schedule-steps 12", (1, "--steps 12")),
    ("dropout, recompute", 1, "--dropout 0.1 --recompute --precision bf16", None),
    ("muon", 1, "--optimizer muon --precision bf16", None),
    ("sgd", 1, "--optimizer sgd", None),
    ("adamw, 8-bit moments", 1, "--moments int8 --grad-accum 2", None),
    ("stochastic masters", 1, "--precision bf16 --master stochastic --moments bf16 --grad-accum 4 --reduce canonical", None),
]
# The run that is changed has skips and an average; "here" stands for the place that was printed.
CHANGED = (
    [("weight", ["weight", "8", None, None, None]) for _ in range(6)]
    + [("last weight", ["weight", "12", None, None, None]) for _ in range(4)]
    + [("moment", ["moment", "8", None, None, None]) for _ in range(4)]
    + [("last moment", ["moment", "12", None, None, None]) for _ in range(2)]
    + [("average", ["average", "8", None, None, None]) for _ in range(3)]
    + [("weight, checksum left", ["--raw", "weight", "8", None, None, None])]
    + [("state", ["state", "8", key, value]) for key, value in
       (("batches", "9"), ("scaler.scale", "4096.0"), ("optimizer.skipped", "1"), ("scaler.growth_tracker", "1"))]
    + [("record", ["record", step, key, value]) for step, key, value in
       (("6", "train/loss", "5.2"), ("7", "gradients/total_norm", "0.5"), ("9", "amp/loss_scale", "1024.0"), ("10", "val/sampled_loss", "4.9"),
        ("11", "train/lr", "0.1"), ("12", "amp/skipped_steps", "99"), ("8", "gradients/norm/h.1", ""))]
    + [("removed records", ["forget", step]) for step in ("6", "11")]
    + [("key in config.yaml", ["key", key, value]) for key, value in (("optimizer.lr", "0.002"), ("train.seed", "3"))]
    + [("key everywhere", ["keys", key, value]) for key, value in (("train.seed", "3"), ("optimizer.weight_decay", "0.2"))]
    + [("data", None) for _ in range(3)]
)


def mezzo(ranks, *words):
    command = [f"{build}/mezzo", *words]
    if ranks > 1:
        command = ["mpirun", "--oversubscribe", "-n", str(ranks)] + command
    return subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)


def train(name, ranks, options, second):
    done = mezzo(ranks, "train", *FEW, "--out", name, *options.split())
    if done.returncode == 0 and second is not None:
        done = mezzo(second[0], "train", "--config", f"{name}/config.yaml", "--resume", "auto", "--quiet", *second[1].split())
    if done.returncode != 0:
        sys.exit(f"{name}: {done.stderr}")


def audit(name):
    done = mezzo(1, "audit", name, "--intervals", "0", "--quiet", "--json")
    return done.returncode, json.loads(done.stdout)


def row(kind, what, code, result, expected, good):
    places = "; ".join(f"{f['kind']} {f['place']} step {f['step']}" for f in result["findings"][:2])
    compared = sum(i["values"] + i["tensors"] for i in result["intervals"])
    print(f'{kind},"{what}",{code},{result["verdict"]},{len(result["intervals"])},{compared},"{expected}","{places}",{"yes" if good else "NO"}',
          flush=True)
    return good


def spoil_text():
    with open("text.txt", "rb") as f:
        data = bytearray(f.read())
    data[rng.randrange(len(data) * 8 // 10)] ^= 1
    with open("text.txt", "wb") as f:
        f.write(data)


def change(words):
    words = [str(rng.randrange(32 if i == len(words) - 1 else 10000)) if w is None else w for i, w in enumerate(words)]
    if "moment" in words or "weight" in words or "average" in words:
        words[-1] = str(rng.randrange(23))  # of the mantissa: the number stays finite
    done = subprocess.run([sys.executable, f"{source}/tests/cli/change_run.py", "changed", *words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return words, done.stdout.strip()


def main():
    good = [0, 0]
    with open("text.txt", "w") as f:
        f.writelines(f"the quick brown fox {i * 7919 % 97} jumps over the lazy dog.\n" for i in range(400))
    print("kind,what,exit,verdict,intervals,compared,expected,found,good")
    for name, ranks, options, second in HONEST:
        train("run", ranks, options, second)
        code, result = audit("run")
        good[0] += row("honest", name, code, result, "confirmed", code == 0 and result["verdict"] == "confirmed" and not result["findings"])
        shutil.rmtree("run")
    train("run", 1, "--precision fp16 --init-scale 1048576 --ema 0.9", None)
    shutil.copy("text.txt", "kept.txt")
    for what, words in CHANGED:
        shutil.copytree("run", "changed")
        if words is None:
            spoil_text()
            expected, code = "text.txt", 2
        else:
            words, expected = change(words)
            code = 1
            if words[0] == "keys":
                expected = expected if words[1] == "train.seed" else "train/"  # it is in no checkpoint: what it changes is named
            if words[0] == "forget":
                expected = "train/loss"
        found, result = audit("changed")
        named = any(expected in f["place"] for f in result["findings"])
        good[1] += row("changed", what + ": " + " ".join(words or []), found, result, expected, found == code and named)
        shutil.rmtree("changed")
        shutil.copy("kept.txt", "text.txt")
    print(f"{good[0]} of {len(HONEST)} honest runs confirmed, {good[1]} of {len(CHANGED)} changed runs found and named", file=sys.stderr)
    return 0 if good == [len(HONEST), len(CHANGED)] else 1


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    code = main()
    os.chdir("/")
sys.exit(code)
