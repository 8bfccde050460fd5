#!/usr/bin/env python3
"""Mezzo, PyTorch compiled and torchao's float8 on one card: tokens a second, use of the peak, memory, loss.

usage: bench/duel.py MEZZO TOKENS [--csv FILE] [--commit HASH] [--only WORD] [--ways LIST] [--torchao WHEEL] [--steps N] [--micro-batches N] [--device D]

TOKENS is a folder of `mezzo data --tokenizer gpt2`. Every side trains the same model, CS336's Transformer or Qwen 2.5's, from the weights that Mezzo
draws, on the same windows of tokens in the same order, by AdamW with one set of options; the sides of a shape run one after the other. MFU counts
6 FLOP a parameter and token and attention's causal half, of 989.4 TFLOP/s. The loss of every step goes to NAME-losses.csv beside the table.
The shapes "tiny" and "narrow" (tokens of --tokenizer byte, gpt2) are for a CPU: --only tiny --device cpu --ways mezzo:fp32,torch:fp32,mezzo:bf16,torch:bf16.
"""
import argparse
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import zipfile

# name: model, layers, heads, key heads, width, inner, vocabulary, batch, context, micro batches.
SHAPES = {
    "tiny": ("qwen2", 2, 4, 2, 64, 128, 1000, 4, 64, 2),
    "narrow": ("qwen2", 28, 2, 1, 256, 1024, 50304, 2, 128, 1),
    "cs336 0.5B, vocabulary 50304": ("cs336", 24, 14, 14, 896, 4864, 50304, 32, 1024, 4),
    "cs336 1.5B, vocabulary 50304": ("cs336", 28, 12, 12, 1536, 8960, 50304, 8, 1024, 16),
    "cs336 1.5B, vocabulary 151936": ("cs336", 28, 12, 12, 1536, 8960, 151936, 8, 1024, 8),
    "cs336 3B, vocabulary 50304": ("cs336", 36, 16, 16, 2048, 11008, 50304, 4, 1024, 16),
    "qwen2.5-0.5B": ("qwen2.5-0.5B", 24, 14, 2, 896, 4864, 151936, 16, 1024, 4),
    "qwen2.5-1.5B": ("qwen2.5-1.5B", 28, 12, 2, 1536, 8960, 151936, 8, 1024, 4),
    "qwen2.5-3B": ("qwen2.5-3B", 36, 16, 2, 2048, 11008, 151936, 4, 1024, 4),
}
FIELDS = ["shape", "system", "precision", "model", "layers", "heads", "kv_heads", "width", "inner", "vocabulary", "batch", "context", "micro_batches", "step_ms",
          "tokens_per_second", "mfu_percent", "mib", "loss", "first_loss", "steps", "device", "commit", "command"]
PEAK = 989.4e12
ADAMW = {"lr": 3e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight-decay": 0.1, "clip": 1.0}  # vectors have no weight decay; a constant rate


def flops_a_token(model, layers, heads, kv_heads, width, inner, vocab, batch, context):
    parameters = layers * (2 * width * width + 2 * width * (width // heads) * kv_heads + 3 * width * inner) + vocab * width
    return 6 * parameters + 6 * layers * width * context


def command_of(args, shape, precision, steps, batch, micro_batches, adamw, out):
    model, layers, heads, kv_heads, width, inner, vocab, _, context, _ = shape
    sizes = ["--layers", layers, "--heads", heads, "--d-model", width, "--d-ff", inner] if model in ("cs336", "qwen2") else []
    sizes += ["--kv-heads", kv_heads] if model == "qwen2" else []
    command = [args.mezzo, "train", "--data", args.tokens, "--model", model, *sizes, "--vocab", vocab, "--seq-len", context, "--batch-size", batch,
               "--grad-accum", micro_batches, "--logits-rows", 4096, "--precision", precision, "--steps", steps,
               *(word for key, value in adamw.items() for word in (f"--{key}", value)), "--schedule", "constant", "--warmup", 0, "--log-every", 1,
               "--eval-every", 0, "--eval-iters", 1, "--eval-final=false", "--sample-every", -1, "--device", args.device, "--out", out]
    return [str(word) for word in command]


def run_mezzo(args, shape, precisions, micro_batches, work):
    precision, steps = precisions[0], args.steps
    out = os.path.join(work, "run")
    shutil.rmtree(out, ignore_errors=True)
    command = [*command_of(args, shape, precision, steps, shape[7], micro_batches, ADAMW, out), "--checkpoint-every", "-1"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    with open(os.path.join(out, "metrics.jsonl")) as file:
        rows = [row for row in map(json.loads, file) if "train/loss" in row]
    times = [row["perf/step_ms"] for row in rows if "perf/step_ms" in row][-(steps // 2):]
    memory = max(row.get("perf/memory_bytes", 0) for row in rows) / 2**20
    yield precision, statistics.median(times), memory, [row["train/loss"] for row in rows], command


def initial_weights(args, shape, work):
    """The file of the weights that Mezzo begins with: those after a step of one row at a learning rate of 0."""
    out = os.path.join(work, "initial")
    if not os.path.isdir(out):
        command = command_of(args, shape, "bf16", 1, 1, 1, {"lr": 0, "optimizer": "sgd", "momentum": 0}, out)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    return os.path.join(out, "checkpoints", "step-00000001", "model.safetensors")


def run_torch(args, shape, ways, micro_batches, work):
    """One process for all ways, which loads PyTorch once: a row for each as it ends."""
    name = next(name for name in SHAPES if SHAPES[name] == shape)
    command = [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers", "torch_duel.py"), name, os.path.join(args.tokens, "train.bin"),
               initial_weights(args, shape, work), "--ways", ",".join(ways), "--micro-batches", str(micro_batches), "--steps", str(args.steps), "--device", args.device]
    with tempfile.TemporaryFile("w+") as errors, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
        for line in process.stdout:
            way, ms, mib, losses = line.strip().split(",")
            yield way, float(ms), float(mib), [float(loss) for loss in losses.split()], command
        if process.wait():
            errors.seek(0)
            raise subprocess.CalledProcessError(process.returncode, command, stderr=errors.read())


def runs_of(args, shape, micro_batches, work):
    """Yields way, ms a step, MiB, losses, command; a run that fails is printed, and the others go on."""
    jobs = {}  # Mezzo's ways one by one, PyTorch's together
    for system, way in (way.split(":") for way in args.ways.split(",")):
        jobs.setdefault(system if system == "torch" else way, (system, []))[1].append(way)
    for system, chosen in jobs.values():
        run = run_mezzo if system == "mezzo" else run_torch
        try:
            for way, *rest in run(args, shape, chosen, micro_batches, work):
                yield f"{system}:{way}", *rest
        except subprocess.CalledProcessError as error:
            print(f"{system}, {' '.join(chosen)}: {' '.join(error.stderr.strip().splitlines()[-1:])[:300]}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mezzo")
    parser.add_argument("tokens")
    parser.add_argument("--csv", default="bench/results/duel.csv")
    parser.add_argument("--commit", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--ways", default="mezzo:bf16,mezzo:fp8,torch:bf16,torch:tensorwise")
    parser.add_argument("--torchao", help="a wheel that is not installed here")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--micro-batches", type=int, default=0, help="a step [the shape's]")
    args = parser.parse_args()
    if args.torchao:
        folder = os.path.abspath("torchao-wheel")
        zipfile.ZipFile(args.torchao).extractall(folder)
        os.environ["PYTHONPATH"] = folder + os.pathsep + os.environ.get("PYTHONPATH", "")
    device = "CPU"
    if args.device == "cuda":
        device = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], stdout=subprocess.PIPE, text=True).stdout.split("\n")[0]
    losses_path = args.csv.removesuffix(".csv") + "-losses.csv"
    with tempfile.TemporaryDirectory() as work, open(args.csv, "a", newline="") as table, open(losses_path, "a", newline="") as curves:
        rows, steps = csv.DictWriter(table, FIELDS, lineterminator="\n"), csv.writer(curves, lineterminator="\n")
        if table.tell() == 0:
            rows.writeheader()
            steps.writerow(["shape", "system", "precision", "step", "loss", "device", "commit"])
        for name, shape in SHAPES.items():
            if args.only not in name or (name in ("tiny", "narrow") and args.only != name):
                continue
            micro_batches, first = args.micro_batches or shape[-1], None
            shutil.rmtree(os.path.join(work, "initial"), ignore_errors=True)
            for way, ms, mib, losses, command in runs_of(args, shape, micro_batches, work):
                rate = shape[7] * shape[8] * micro_batches / ms * 1e3
                used = f"{100 * rate * flops_a_token(*shape[:-1]) / PEAK:.1f}" if args.device == "cuda" else ""
                wide = os.environ.get("MEZZO_CUDA_WIDE_HEADS") if way.startswith("mezzo") else None
                words = " ".join([f"MEZZO_CUDA_WIDE_HEADS={wide}"] * bool(wide) + [os.path.basename(word) if os.path.isabs(word) else word for word in command])
                last = statistics.mean(losses[-5:])
                rows.writerow(dict(zip(FIELDS, [name, *way.split(":"), *shape[:-1], micro_batches, f"{ms:.2f}", f"{rate:.0f}", used,
                                                f"{mib:.0f}", f"{last:.4f}", f"{losses[0]:.4f}", args.steps, device, args.commit, words])))
                steps.writerows([name, *way.split(":"), step, f"{loss:.6f}", device, args.commit] for step, loss in enumerate(losses, 1))
                table.flush()
                curves.flush()
                first = first or (way, losses)
                apart = max(map(abs, map(float.__sub__, losses, first[1])))
                print(f"{name}, {way}: {ms:.1f} ms, {rate:.0f} tok/s, {used or '-'} % of the peak, {mib:.0f} MiB, loss {losses[0]:.4f} to {last:.4f}, "
                      f"at most {apart:.2g} from {first[0]}", flush=True)


if __name__ == "__main__":
    main()
