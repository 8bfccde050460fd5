#!/usr/bin/env python3
"""A training step of models from ONNX files beside PyTorch compiled, in turns on one card: bfloat16, AdamW, random weights and data.

usage: bench/onnx_torch.py MEZZO [--models LIST] [--rounds N] [--steps N] [--seconds S] [--layers N] [--batch N] [--device cuda|cpu] [--csv FILE] [--commit HASH]

Each model is made and exported by torch.onnx in a process of its own, which then compiles it and waits. PyTorch trains under autocast with the
fused AdamW on one batch that is on the device, Mezzo by `mezzo train --model FILE.onnx`, which draws, checks and transfers another batch for each
step. Both wait for the device after every 5 steps. A row has the median of a round's fives and is written at once, Mezzo's with the host's part
of a step: drawing, writing, launching (the rest) and waiting for results (read_ms: most of a step where the device limits). Lines that begin with "onnx:"
have the medians of the rounds, or what failed; NAME-ops.csv is Mezzo's profile. The last 8 s of each model are Mezzo's: where PyTorch has not
compiled by then, Mezzo runs alone.
Needs torch, onnx, onnxscript and, but for resnet18, transformers. Writes into the current folder.
"""
import argparse
import csv
import json
import os
import queue
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HOST = ["draw_ms", "write_ms", "read_ms"]  # Mezzo's times on the host: a batch drawn, and written; results waited for
FIELDS = ["model", "system", "round", "batch", "shape", "step_ms", *HOST, "launch_ms", "mib", "loss", "device", "commit", "command"]
EACH = 5  # steps from one wait to the next
BATCH = {"gpt2": 16, "llama": 16, "vit": 64, "resnet18": 128, "bert": 16}


# --- one model, in a process of its own ------------------------------------------------------------------------------------------
def make(name, layers):
    """The model, its inputs without the batch's size, the classes of its labels, and options of torch.onnx.export."""
    import torch
    from torch import nn

    class Residual(nn.Module):
        def __init__(self, a, b, stride):
            super().__init__()
            self.first = nn.Sequential(nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU())
            self.second = nn.Sequential(nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b))
            self.skip = nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b)) if stride > 1 or a != b else nn.Identity()

        def forward(self, x):
            return torch.relu(self.second(self.first(x)) + self.skip(x))

    class Logits(nn.Module):
        def __init__(self, model, names):
            super().__init__()
            self.m, self.names = model, names

        def forward(self, *tensors):
            more = {"use_cache": False} if hasattr(self.m.config, "use_cache") else {}
            return self.m(**dict(zip(self.names, tensors)), **more).logits

    if name == "resnet18":
        widths = [64, 64, 128, 256, 512]
        body = [Residual(widths[i + k], widths[i + 1], 2 if i and not k else 1) for i in range(4) for k in range(2)]
        model = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1), *body, nn.AdaptiveAvgPool2d(1),
                              nn.Flatten(), nn.Linear(512, 1000))
        options = dict(dynamo=False, opset_version=17, training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, dynamic_axes={"x": {0: "batch"}, "logits": {0: "batch"}})
        return model.train(), {"x": (3, 224, 224)}, 1000, options
    import transformers as t
    small = dict(hidden_size=768, num_hidden_layers=layers, num_attention_heads=12)
    if name == "gpt2":
        model, inputs, classes = t.GPT2LMHeadModel(t.GPT2Config(n_layer=layers, n_positions=512, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)), {"input_ids": (512,)}, 50257
    elif name == "llama":
        model = t.LlamaForCausalLM(t.LlamaConfig(vocab_size=32000, num_key_value_heads=4, intermediate_size=2048, max_position_embeddings=512, **small))
        inputs, classes = {"input_ids": (512,)}, 32000
    elif name == "bert":
        model = t.BertForMaskedLM(t.BertConfig(hidden_dropout_prob=0, attention_probs_dropout_prob=0, **small))
        inputs, classes = {"input_ids": (512,)}, 30522
    elif name == "vit":
        model = t.ViTForImageClassification(t.ViTConfig(num_labels=1000, hidden_dropout_prob=0, attention_probs_dropout_prob=0, **small))
        inputs, classes = {"pixel_values": (3, 224, 224)}, 1000
    else:
        raise SystemExit(f"no model {name}")
    batch = torch.export.Dim("batch")
    options = dict(dynamo=True, external_data=False, verbose=False, dynamic_shapes=(tuple({0: batch} for _ in inputs),))
    return Logits(model, list(inputs)).eval(), inputs, classes, options


def work(name, layers, device, batch):
    import warnings

    import numpy
    import torch
    import torch.nn.functional as F
    warnings.filterwarnings("ignore")
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(1)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 4))
    model, inputs, classes, options = make(name, layers)
    with torch.no_grad():  # no two weights alike, which the exporter would make one
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.01)
    vocabulary = min(classes, 30000)
    example = tuple(torch.randn(2, *s) if len(s) > 1 else torch.randint(0, vocabulary, (2, *s)) for s in inputs.values())
    torch.onnx.export(model, example, f"{name}.onnx", input_names=list(inputs), output_names=["logits"], **options)
    rows = 4 * batch
    data = {k: (torch.randn(rows, *s) if len(s) > 1 else torch.randint(0, vocabulary, (rows, *s))) for k, s in inputs.items()}
    first = next(iter(inputs.values()))
    labels = torch.randint(0, vocabulary, (rows, *first)) if len(first) == 1 else torch.randint(0, classes, (rows,))
    numpy.savez(f"{name}.npz", labels=labels.int().numpy(), **{k: (v if v.is_floating_point() else v.int()).numpy() for k, v in data.items()})
    print("exported", flush=True)
    model = model.to(device).train()
    images = name == "resnet18"
    if images:
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def loss_of(*tensors):
        with torch.autocast(device, dtype=torch.bfloat16):
            logits = model(*tensors[:-1])
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]).float(), tensors[-1].reshape(-1))

    compiled = torch.compile(loss_of)
    place = [v[:batch].to(device) for v in data.values()] + [labels[:batch].long().to(device)]
    if images:
        place[0] = place[0].contiguous(memory_format=torch.channels_last)

    def wait():
        if device == "cuda":
            torch.cuda.synchronize()

    def step():
        loss = compiled(*place)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    for _ in range(4):
        loss = step()
    wait()
    print("ready", flush=True)
    for line in sys.stdin:
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        times = []
        for _ in range(int(line) // EACH):
            start = time.perf_counter()
            for _ in range(EACH):
                loss = step()
            wait()
            times.append(1e3 * (time.perf_counter() - start) / EACH)
        mib = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else 0
        print(statistics.median(times), mib, loss.item(), flush=True)


# --- both in turns ---------------------------------------------------------------------------------------------------------------
def run_mezzo(o, name, more=()):
    command = [o.mezzo, "train", "--model", f"{name}.onnx", "--loss", "cross_entropy", "--data", f"{name}.npz", "--batch-size", str(o.batch or BATCH[name]), "--precision", "bf16",
               "--steps", str(o.steps), "--warmup", "0", "--schedule", "constant", "--lr", "1e-4", "--clip", "0", "--log-every", str(EACH), "--eval-every", "0",
               "--eval-final=false", "--eval-iters", "1", "--checkpoint-every", "-1", "--device", o.device, "--out", f"{name}-run", *more]
    subprocess.run(["rm", "-rf", f"{name}-run"], check=True)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60 if o.device == "cuda" else None)
    except subprocess.TimeoutExpired:
        return None, None, "stopped after 60 s", command, {}
    if done.returncode:
        return None, None, " ".join(done.stderr.strip().splitlines()[-1:]), command, {}
    with open(f"{name}-run/metrics.jsonl") as file:
        rows = [row for row in map(json.loads, file) if "train/loss" in row]
    last = [row for row in rows if "perf/step_ms" in row][-(o.steps // EACH // 2):]
    host = {key: statistics.median(row[f"perf/{key}"] for row in last) for key in HOST}
    host["launch_ms"] = statistics.median(row["perf/step_ms"] - sum(row[f"perf/{key}"] for key in HOST) for row in last)
    step = statistics.median(row["perf/step_ms"] for row in last)
    return step, max(row.get("perf/memory_bytes", 0) for row in rows) / 2**20, rows[-1]["train/loss"], command, {key: round(ms, 3) for key, ms in host.items()}


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1].split("\n")[0])
    parser.add_argument("mezzo")
    parser.add_argument("--models", default="gpt2,llama,vit,resnet18")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--card", default="")
    parser.add_argument("--csv")
    parser.add_argument("--commit", default="")
    parser.add_argument("--worker")
    o = parser.parse_args()
    if o.worker:
        return work(o.worker, o.layers, o.device, o.batch or BATCH[o.worker])
    end, workers, lines, rows = time.monotonic() + o.seconds, {}, {}, []

    def read(name):
        for line in workers[name].stdout:
            if line.split()[0:1] in (["exported"], ["ready"]) or line[:1].isdigit():
                lines[name].put(line.strip())
        lines[name].put("")

    caches = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # a process that is killed leaves half a file in its own
    for name in o.models.split(","):  # all compile side by side
        command = [sys.executable, os.path.abspath(__file__), o.mezzo, "--worker", name, "--layers", str(o.layers), "--device", o.device, "--batch", str(o.batch)]
        workers[name] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=open(f"{name}.torch.log", "w"), text=True, start_new_session=True,
                                         env=os.environ | {"TORCHINDUCTOR_CACHE_DIR": os.path.join(caches.name, name)})
        lines[name] = queue.Queue()
        threading.Thread(target=read, args=(name,), daemon=True).start()

    def signal_all(worker, number):  # the compiler's processes too
        try:
            os.killpg(worker.pid, number)
        except ProcessLookupError:
            pass

    def said(name):  # the next line that is the worker's own; "": it has ended, or its time
        last = end - 8 * (len(workers) - list(workers).index(name))
        try:
            return lines[name].get(timeout=max(0.1, last - time.monotonic()))
        except queue.Empty:
            return ""

    def failed(name):
        with open(f"{name}.torch.log") as log:
            lines_said = [line.strip() for line in log if line.strip()]
            said_last = ([line for line in lines_said if "Error" in line] or lines_said)[-1:]
        return "no time was left" if workers[name].poll() is None else f"{' '.join(said_last)[:200]} (see {name}.torch.log)"

    def note(name, system, number, ms, mib, loss, command="", host={}):
        rows.append(dict(model=name, system=system, round=number, batch=o.batch or BATCH[name], shape=f"{o.layers} layers" if name != "resnet18" else "224x224",
                         step_ms=round(ms, 3) if ms else "", **host, mib=round(mib) if mib else "", loss=loss, device=o.card or o.device, commit=o.commit, command=" ".join(["mezzo", *command[1:]] if command else [])))
        print(f"{name:9} {system:6} round {number}: {f'{ms:.2f} ms' if ms else loss}{f', {mib:.0f} MiB' if mib else ''}{''.join(f', {key[:-3]} {value}' for key, value in host.items())}", flush=True)
        if o.csv:
            with open(o.csv, "a", newline="") as file:
                writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
                if file.tell() == 0:
                    writer.writeheader()
                writer.writerow(rows[-1])

    for name, torch in workers.items():
        if said(name) != "exported":
            print(f"onnx: {name}: not exported: {failed(name)}", flush=True)
            signal_all(torch, signal.SIGKILL)
            continue
        if said(name) != "ready":
            print(f"onnx: {name}: PyTorch did not compile it: {failed(name)}", flush=True)
            signal_all(torch, signal.SIGKILL)
            torch.wait()
        others = [other for other in workers.values() if other is not torch and other.poll() is None]
        for other in others:  # which may still compile
            signal_all(other, signal.SIGSTOP)
        for number in range(o.rounds):
            if torch.poll() is None:
                torch.stdin.write(f"{o.steps}\n")
                torch.stdin.flush()
                numbers = said(name).split()
                if len(numbers) == 3:
                    note(name, "torch", number, *map(float, numbers))
            ms, *more = run_mezzo(o, name)
            note(name, "mezzo", number, ms, *more)
            if not ms:
                print(f"onnx: {name}: mezzo: {more[1]}", flush=True)
                break
        signal_all(torch, signal.SIGKILL)
        run_mezzo(o, name, ("--steps", "8", "--profile", "2"))
        if os.path.exists(f"{name}-run/profile/ops.csv"):
            os.replace(f"{name}-run/profile/ops.csv", f"{name}-ops.csv")
        for other in others:
            signal_all(other, signal.SIGCONT)
        times = {system: [row["step_ms"] for row in rows if row["model"] == name and row["system"] == system and row["step_ms"]] for system in ("torch", "mezzo")}
        if all(times.values()):
            a, b = (statistics.median(times[system]) for system in ("torch", "mezzo"))
            print(f"onnx: {name}: torch.compile {a:.2f} ms, mezzo {b:.2f} ms, {a / b:.2f} x", flush=True)
        elif times["mezzo"]:
            print(f"onnx: {name}: mezzo alone {statistics.median(times['mezzo']):.2f} ms", flush=True)
    for torch in workers.values():
        signal_all(torch, signal.SIGKILL)


if __name__ == "__main__":
    main()
