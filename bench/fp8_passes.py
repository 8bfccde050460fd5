"""bench/fp8_passes.py [MEZZO]: what quantizes in a step of three models in fp8, counted in the plan that `mezzo explain --after chunk` shows: launches and, under
delayed scaling, bytes. A number that a product reads is read in 16 bits and written in both layouts, 4 bytes; a weight, by the update, 4 + 2. GELU reads 2
and writes 1, its slope reads 4 and writes 3 (both layouts, and GELU's result turned); SwiGLU and its slope move 5 and 11 for each number of its width."""

import json
import math
import subprocess
import sys

MODELS = {
    "GPT-2 124M, 32 × 1,024": "--model gpt2-124M --seq-len 1024 --batch-size 32",
    "1558M, 8 × 1,024": "--model gpt2-1558M --seq-len 1024 --batch-size 8",
    "CS336, 16 layers of 2,048, 4 × 2,048": "--model cs336 --layers 16 --heads 16 --d-model 2048 --d-ff 8192 --vocab 32000 --seq-len 2048 --batch-size 4",
}
KINDS = [  # what, phase, its inputs, op, bytes for each number of the shape
    ("inputs of products", "forward", "bf16", "quantize", 4),
    ("gradients", "backward", "bf16", "quantize", 4),
    ("weights", "forward", "fp32", "quantize", 6),
    ("GELU", "forward", "bf16", "quantize+gelu_tanh", 3),
    ("GELU's slope", "backward", "bf16,bf16", "quantize+gelu_tanh", 7),
    ("SwiGLU", "forward", "bf16", "quantize+swiglu", 5),
    ("SwiGLU's slope", "backward", "bf16,bf16", "quantize+swiglu", 5.5),  # of both factors' gradients
]


def main():
    mezzo = sys.argv[1] if len(sys.argv) == 2 else "build/cuda/mezzo"
    table = {kind[0]: [] for kind in KINDS}
    for options in MODELS.values():
        shown = subprocess.run([mezzo, "explain", *options.split(), "--precision", "fp8", "--after", "chunk", "--json"], check=True, capture_output=True)
        rows = [r for r in json.loads(shown.stdout)["rows"] if r["op"].startswith("quantize")]
        for r in rows:  # what a quantize also sums or writes does not change its kind
            r["op"] = r["op"].replace("+dbias", "").replace("+act_out", "")
        for what, phase, inputs, op, size in KINDS:
            of = [math.prod(map(int, r["shape"].split("x"))) for r in rows if (r["phase"], r["inputs"], r["op"]) == (phase, inputs, op)]
            table[what].append(f"{len(of)}, {sum(of) * size / 1e9:.1f} GB" if of else "")
        if len(rows) != sum(int(cells[-1].split(",")[0]) for cells in table.values() if cells[-1]):
            sys.exit(f"{options}: quantizes what this script does not know")
    print("| |", " | ".join(MODELS), "|\n|---|---|---|---|")
    for what, cells in table.items():
        print(f"| {what} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
