#!/usr/bin/env python3
"""Mezzo, PyTorch compiled and torchao's float8 on one card: tokens a second, use of the peak, memory, loss.

usage: bench/duel.py MEZZO TOKENS [--csv FILE] [--commit HASH] [--only WORD] [--ways LIST] [--torchao WHEEL] [--steps N]

TOKENS is a folder of `mezzo data --tokenizer gpt2`. Every side trains the same model, CS336's Transformer or Qwen 2.5's, on random windows of its
tokens; the sides of a shape run one after the other. MFU counts 6 FLOP a parameter and token and attention's causal half, of 989.4 TFLOP/s.
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
    "cs336 0.5B, vocabulary 50304": ("cs336", 24, 14, 14, 896, 4864, 50304, 32, 1024, 4),
    "cs336 1.5B, vocabulary 50304": ("cs336", 28, 12, 12, 1536, 8960, 50304, 8, 1024, 16),
    "cs336 1.5B, vocabulary 151936": ("cs336", 28, 12, 12, 1536, 8960, 151936, 8, 1024, 8),
    "cs336 3B, vocabulary 50304": ("cs336", 36, 16, 16, 2048, 11008, 50304, 4, 1024, 16),
    "qwen2.5-0.5B": ("qwen2.5-0.5B", 24, 14, 2, 896, 4864, 151936, 16, 1024, 4),
    "qwen2.5-1.5B": ("qwen2.5-1.5B", 28, 12, 2, 1536, 8960, 151936, 8, 1024, 4),
    "qwen2.5-3B": ("qwen2.5-3B", 36, 16, 2, 2048, 11008, 151936, 4, 1024, 4),
}
FIELDS = ["shape", "system", "precision", "model", "layers", "heads", "kv_heads", "width", "inner", "vocabulary", "batch", "context", "micro_batches", "step_ms",
          "tokens_per_second", "mfu_percent", "mib", "loss", "steps", "device", "commit", "command"]
PEAK = 989.4e12


def flops_a_token(model, layers, heads, kv_heads, width, inner, vocab, batch, context):
    parameters = layers * (2 * width * width + 2 * width * (width // heads) * kv_heads + 3 * width * inner) + vocab * width
    return 6 * parameters + 6 * layers * width * context


def run_mezzo(args, shape, precisions, micro_batches):
    model, layers, heads, _, width, inner, vocab, batch, context, _ = shape
    precision, steps = precisions[0], args.steps
    shutil.rmtree("duel-run", ignore_errors=True)
    sizes = ["--layers", str(layers), "--heads", str(heads), "--d-model", str(width), "--model.d_ff", str(inner)] if model == "cs336" else []
    command = [args.mezzo, "train", "--data", args.tokens, "--model", model, *sizes, "--vocab", str(vocab), "--seq-len", str(context), "--batch-size",
               str(batch), "--grad-accum", str(micro_batches), "--logits-rows", "4096", "--precision", precision, "--steps", str(steps), "--lr",
               "3e-4", "--schedule", "constant", "--warmup", "0", "--clip", "1", "--log-every", "1", "--eval-every", str(10 * steps),
               "--eval-iters", "1", "--eval-final=false", "--sample-every", "-1", "--checkpoint-every", "-1", "--device", "cuda", "--out", "duel-run"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    with open("duel-run/metrics.jsonl") as file:
        rows = [row for row in map(json.loads, file) if "train/loss" in row]
    times = [row["perf/step_ms"] for row in rows if "perf/step_ms" in row][-(steps // 2):]
    memory = max(row["perf/memory_bytes"] for row in rows) / 2**20
    yield precision, statistics.median(times), memory, statistics.mean(row["train/loss"] for row in rows[-5:]), command


def run_torch(args, shape, ways, micro_batches):
    """One process for all ways, which loads PyTorch once: a row for each as it ends."""
    command = [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers", "torch_duel.py"),
               os.path.join(args.tokens, "train.bin"), *map(str, shape[:-1]), str(micro_batches), ",".join(ways), str(args.steps)]
    with tempfile.TemporaryFile("w+") as errors, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
        for line in process.stdout:
            way, ms, mib, loss = line.strip().split(",")
            yield way, float(ms), float(mib), float(loss), command
        if process.wait():
            errors.seek(0)
            raise subprocess.CalledProcessError(process.returncode, command, stderr=errors.read())


def runs_of(args, shape, micro_batches):
    """Yields way, ms a step, MiB, loss, command; a run that fails is printed, and the others go on."""
    ways = [way.split(":") for way in args.ways.split(",")]
    torch_ways = [way for system, way in ways if system == "torch"]
    jobs = [("mezzo", [precision]) for system, precision in ways if system == "mezzo"] + [("torch", torch_ways)] * bool(torch_ways)
    for system, chosen in jobs:
        run = run_mezzo if system == "mezzo" else run_torch
        try:
            for way, *rest in run(args, shape, chosen, micro_batches):
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
    parser.add_argument("--micro-batches", type=int, default=0, help="a step [the shape's]")
    args = parser.parse_args()
    if args.torchao:
        folder = os.path.abspath("torchao-wheel")
        zipfile.ZipFile(args.torchao).extractall(folder)
        os.environ["PYTHONPATH"] = folder + os.pathsep + os.environ.get("PYTHONPATH", "")
    device = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], stdout=subprocess.PIPE, text=True).stdout.split("\n")[0]
    new = not os.path.exists(args.csv)
    with open(args.csv, "a", newline="") as file:
        table = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if new:
            table.writeheader()
        for name, shape in SHAPES.items():
            if args.only not in name:
                continue
            micro_batches = args.micro_batches or shape[-1]
            for way, ms, mib, loss, command in runs_of(args, shape, micro_batches):
                rate = shape[7] * shape[8] * micro_batches / ms * 1e3
                used = 100 * rate * flops_a_token(*shape[:-1]) / PEAK
                words = " ".join(os.path.basename(word) if os.path.isabs(word) else word for word in command)
                table.writerow(dict(zip(FIELDS, [name, *way.split(":"), *shape[:-1], micro_batches, f"{ms:.2f}", f"{rate:.0f}", f"{used:.1f}",
                                                 f"{mib:.0f}", f"{loss:.4f}", args.steps, device, args.commit, words])))
                file.flush()
                print(f"{name}, {way}: {ms:.1f} ms, {rate:.0f} tok/s, {used:.1f} % of the peak, {mib:.0f} MiB, loss {loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
