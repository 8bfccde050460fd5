"""What llm.c's CPU trainer takes for the steps of torch_cpu.py (FP32, AdamW, no clipping: it has none), CSV rows of the same columns on stdout.

usage: llmc_cpu.py SOURCE [--threads N] [--shapes gpt6x384,gpt2-124M] [--steps N] [--warmup N]

SOURCE is a checkout of llm.c (github.com/karpathy/llm.c), which is compiled as its Makefile does, with the batch, length and number of steps of the
case and without validation and samples. Weights and tokens are random: N(0, 0.02²), norms 1, biases 0.
"""
import argparse, array, os, pathlib, random, re, statistics, subprocess, sys, tempfile

from torch_cpu import COLUMNS, SHAPES, where

FLAGS = ["-Ofast", "-march=native", "-fno-finite-math-only", "-Wno-unused-result", "-Wno-ignored-pragmas", "-fopenmp", "-DOMP"]
BLOCK = 1 << 16


def changed(source, batch, length, steps):
    for pattern, text in [
        (r"int B = \d+;", f"int B = {batch};"),
        (r"int T = \d+;", f"int T = {length};"),
        (r"step <= \d+;", f"step < {steps};"),
        (r"if \(step % 10 == 0\)", "if (0)"),
        (r"if \(step > 0 && step % 20 == 0\)", "if (0)"),
    ]:
        source, n = re.subn(pattern, text, source)
        if n != 1:
            sys.exit(f"llmc_cpu.py: this train_gpt2.c has {n} places of {pattern}, not one")
    return source


def write_model(path, layers, heads, width, vocabulary, length):
    padded = (vocabulary + 127) // 128 * 128
    draw = random.Random(0)
    kinds = {"random": array.array("f", (draw.gauss(0, 0.02) for _ in range(BLOCK))), "one": array.array("f", [1.0]) * BLOCK,
             "zero": array.array("f", bytes(4 * BLOCK))}
    norm = [("one", layers * width), ("zero", layers * width)]

    def linear(out, inner):
        return [("random", layers * out * inner), ("zero", layers * out)]

    with open(path, "wb") as file:
        array.array("i", [20240326, 3, length, vocabulary, layers, heads, width, padded] + [0] * 248).tofile(file)
        for kind, count in [("random", padded * width), ("random", length * width), *norm, *linear(3 * width, width),
                            *linear(width, width), *norm, *linear(4 * width, width), *linear(width, 4 * width), ("one", width),
                            ("zero", width)]:
            for at in range(0, count, BLOCK):
                kinds[kind][: min(BLOCK, count - at)].tofile(file)


def write_tokens(path, vocabulary, count):
    draw = random.Random(1)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        array.array("i", [20240520, 1, count] + [0] * 253).tofile(file)
        array.array("H", (draw.randrange(vocabulary) for _ in range(count))).tofile(file)


def one(args, shape, commit):
    layers, heads, width, vocabulary, batch, length = SHAPES[shape]
    source = pathlib.Path(args.source)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        text = (source / "train_gpt2.c").read_text(encoding="utf-8")
        (folder / "step.c").write_text(changed(text, batch, length, args.warmup + args.steps), encoding="utf-8")
        subprocess.run([os.environ.get("CC", "cc"), *FLAGS, f"-I{source}", folder / "step.c", "-o", folder / "step", "-lm"], check=True)
        write_model(folder / "gpt2_124M.bin", layers, heads, width, vocabulary, length)
        for part in "train", "val":
            write_tokens(folder / f"dev/data/tinyshakespeare/tiny_shakespeare_{part}.bin", vocabulary, 20 * batch * length + 1)
        result = subprocess.run(["./step"], cwd=folder, env=dict(os.environ, OMP_NUM_THREADS=str(args.threads)), text=True,
                                capture_output=True)
    took = [(float(loss), float(ms)) for loss, ms in re.findall(r"train loss (\S+) \(took (\S+) ms\)", result.stdout)][args.warmup:]
    if result.returncode != 0 or len(took) != args.steps:
        print(f"{shape},C,fp32,{args.threads},,,,,,exit {result.returncode},llm.c {commit},{where()}", flush=True)
        return
    times = [ms for _, ms in took]
    median = statistics.median(times)
    print(f"{shape},C,fp32,{args.threads},,{median:.3f},{min(times):.3f},{batch * length / median * 1e3:.0f},{took[-1][0]:.5f},,"
          f"llm.c {commit},{where()}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--warmup", type=int, default=1)
    args = parser.parse_args()
    commit = subprocess.run(["git", "-C", args.source, "rev-parse", "--short", "HEAD"], text=True, capture_output=True).stdout.strip()
    print(COLUMNS, flush=True)
    for shape in args.shapes.split(","):
        one(args, shape, commit or "unknown")


if __name__ == "__main__":
    main()
