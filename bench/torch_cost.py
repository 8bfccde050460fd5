#!/usr/bin/env python3
"""Predicted against measured steps of PyTorch programs: what `mezzo doctor --run` predicts for BF16 from the FP32 program, beside the time of
the same program under autocast; of both the shortest step. It needs torch, which is imported once: each program is a fork.

usage: torch_cost.py MEZZO [--device D] [--threads N] [--seconds N] [--commit S] [--results FOLDER] [KIND:SIZE…]

Appends rows to torch-cost.csv in FOLDER [bench/results] and keeps the traces, with the time of each run, in FOLDER/torch-cost. Programs of HELD_OUT
come first: neither the prediction nor its bounds were made with rows of theirs (held_out 1). SIZE multiplies the batch. After --seconds no other
program is begun. The last line counts errors within 15 % and measured times within the bounds, held out and not.
"""
import argparse
import csv
import json
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent

PROGRAM = '''
import sys, time, torch
from torch import nn
from torch.nn import functional as F
kind, precision, device, size = *sys.argv[1:4], int(sys.argv[4])
torch.manual_seed(0)

class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x))))

if kind == "mlp":
    model = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 256))
    x, y = torch.randn(128 * size, 1024), torch.randint(256, (128 * size,))
elif kind == "wide":
    model = nn.Sequential(nn.Linear(2048, 2048, bias=False), nn.GELU(), nn.Linear(2048, 2048, bias=False))
    x, y = torch.randn(128 * size, 2048), torch.randint(2048, (128 * size,))
elif kind == "transformer":
    model = nn.Sequential(*[Block(256, 4) for _ in range(2)], nn.Linear(256, 1024))
    x, y = torch.randn(2 * size, 128, 256), torch.randint(1024, (2 * size, 128))
elif kind == "encoder":
    model = nn.Sequential(nn.Embedding(2048, 192), *[Block(192, 3) for _ in range(3)], nn.Linear(192, 2048))
    x, y = torch.randint(2048, (4 * size, 64)), torch.randint(2048, (4 * size, 64))
elif kind == "convolution":
    model = nn.Sequential(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(),
                          nn.Conv2d(128, 128, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 100))
    x, y = torch.randn(4 * size, 32, 16, 16), torch.randint(100, (4 * size,))
elif kind == "residual":
    class Residual(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.first, self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.Conv2d(channels, channels, 3, padding=1, bias=False)
            self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        def forward(self, x):
            return F.relu(x + self.norm2(self.second(F.relu(self.norm1(self.first(x))))))
    model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), *[Residual(64) for _ in range(4)], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 100))
    x, y = torch.randn(4 * size, 3, 32, 32), torch.randint(100, (4 * size,))
elif kind == "gated":
    class Gated(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.norm, self.gate, self.up, self.down = nn.RMSNorm(width), *[nn.Linear(a, b, bias=False) for a, b in
                                                        [(width, 3 * width), (width, 3 * width), (3 * width, width)]]
        def forward(self, x):
            h = self.norm(x)
            return x + self.down(F.silu(self.gate(h)) * self.up(h))
    model = nn.Sequential(nn.Embedding(4096, 512), *[Gated(512) for _ in range(4)], nn.Linear(512, 4096))
    x, y = torch.randint(4096, (2 * size, 128)), torch.randint(4096, (2 * size, 128))
elif kind == "gpt":
    layers, tokens = (12, 512) if device == "cuda" else (3, 128)
    model = nn.Sequential(nn.Embedding(32000, 768), *[Block(768, 12) for _ in range(layers)], nn.Linear(768, 32000, bias=False))
    x, y = torch.randint(32000, (size, tokens)), torch.randint(32000, (size, tokens))
elif kind == "vit":
    class Patches(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches, self.places = nn.Conv2d(3, 384, 16, 16), nn.Parameter(torch.zeros(1, 64, 384))
        def forward(self, x):
            return self.patches(x).flatten(2).transpose(1, 2) + self.places
    class Mean(nn.Module):
        def forward(self, x):
            return x.mean(1)
    model = nn.Sequential(Patches(), *[Block(384, 6) for _ in range(6 if device == "cuda" else 2)], nn.LayerNorm(384), Mean(), nn.Linear(384, 1000))
    x, y = torch.randn(2 * size, 3, 128, 128), torch.randint(1000, (2 * size,))
elif kind == "mixer":
    class Mixer(nn.Module):
        def __init__(self, tokens, width):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.tokens = nn.Sequential(nn.Linear(tokens, 4 * tokens), nn.GELU(), nn.Linear(4 * tokens, tokens))
            self.channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        def forward(self, x):
            x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
            return x + self.channels(self.norm2(x))
    model = nn.Sequential(nn.Linear(768, 512), *[Mixer(64, 512) for _ in range(4)], nn.Flatten(), nn.Linear(64 * 512, 100))
    x, y = torch.randn(2 * size, 64, 768), torch.randint(100, (2 * size,))
elif kind == "unet":
    def convolve(a, b):
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(8, b), nn.SiLU())
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.down, self.middle = convolve(3, 64), nn.Conv2d(64, 128, 3, 2, 1), convolve(128, 128)
            self.up, self.last, self.head = nn.Upsample(scale_factor=2), convolve(192, 64), nn.Conv2d(64, 16, 1)
        def forward(self, x):
            a = self.first(x)
            b = self.up(self.middle(self.down(a)))
            return self.head(self.last(torch.cat((a, b), 1))).permute(0, 2, 3, 1)
    model = Net()
    x, y = torch.randn(2 * size, 3, 32, 32), torch.randint(16, (2 * size, 32, 32))
elif kind == "recommender":
    class Recommender(nn.Module):
        def __init__(self):
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(10000, 64) for _ in range(8))
            self.top = nn.Sequential(nn.Linear(8 * 64, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 2))
        def forward(self, x):
            return self.top(torch.cat([table(ids) for table, ids in zip(self.tables, x.unbind(1))], 1))
    model = Recommender()
    x, y = torch.randint(10000, (128 * size, 8)), torch.randint(2, (128 * size,))
elif kind == "translator":
    class Translator(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.net, self.head = nn.Embedding(8000, 256), nn.Transformer(256, 4, 2, 2, 1024, 0.1, batch_first=True), nn.Linear(256, 8000)
        def forward(self, x):
            w = self.words(x)
            return self.head(self.net(w, w.flip(1)))
    model = Translator()
    x, y = torch.randint(8000, (2 * size, 64)), torch.randint(8000, (2 * size, 64))
elif kind == "depthwise":
    class Separable(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(c, c, 3, padding=1, groups=c, bias=False), nn.BatchNorm2d(c), nn.ReLU6(), nn.Conv2d(c, c, 1, bias=False), nn.BatchNorm2d(c))
        def forward(self, x):
            return x + self.body(x)
    model = nn.Sequential(nn.Conv2d(3, 96, 4, 4), *[Separable(96) for _ in range(6)], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 100))
    x, y = torch.randn(4 * size, 3, 96, 96), torch.randint(100, (4 * size,))
model, x, y = model.to(device), x.to(device), y.to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
times = []
for step in range(24):
    with torch.autocast(device, dtype or torch.bfloat16, enabled=dtype is not None):
        out = model(x)
    loss = F.cross_entropy(out.float().flatten(0, -2), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if device == "cuda":
        torch.cuda.synchronize()
    times.append(time.perf_counter())
print(min(b - a for a, b in zip(times[4:], times[5:])))
'''
HELD_OUT = {
    "cuda": "vit:16 recommender:16 unet:16 translator:16 mixer:16 depthwise:16 vit:64 unet:64 mixer:128 translator:64",
    "cpu": "vit:1 recommender:1 unet:1 translator:1 mixer:1 depthwise:1 vit:4 mixer:8",
}
CASES = {
    "cuda": "mlp:16 gpt:16 transformer:16 residual:128 wide:64 gated:64 transformer:64 encoder:16 mlp:128 convolution:128 residual:16 gated:16",
    "cpu": "mlp:1 transformer:1 convolution:1 residual:1 gated:1 gpt:1 encoder:1 wide:1 transformer:8 residual:4",
}


def fork(program: str, words: list[str], threads: int, folder: str = "") -> str:
    """What the program printed; with a folder it is followed, and its trace goes there."""
    out = program + ".out"
    process = os.fork()
    if process == 0:
        code = 1
        try:
            os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
            import torch

            if threads:
                torch.set_num_threads(threads)
            sys.argv = [program, *words]
            if folder:
                os.environ["MEZZO_AUDIT_FOLDER"] = folder
                from mezzo.audit import _follow

                _follow.begin(torch)
                runpy.run_path(program, run_name="__main__")
                _follow._follower.finish(at_exit=True)
            else:
                runpy.run_path(program, run_name="__main__")
            sys.stdout.flush()
            code = 0
        except BaseException as error:
            print(f"{' '.join(words)}: {error!r}"[:400], file=sys.stderr, flush=True)
        os._exit(code)
    if os.waitpid(process, 0)[1] != 0:
        raise RuntimeError("it failed")
    return pathlib.Path(out).read_text()


def compare(options: argparse.Namespace, program: str, kind: str, size: str, traces: pathlib.Path) -> list[str]:
    def measure() -> float:
        return float(fork(program, [kind, "bf16", options.device, size], options.threads))

    measured = measure()
    folder = tempfile.mkdtemp(dir=os.path.dirname(program))
    fork(program, [kind, "fp32", options.device, size], options.threads, folder)
    (found,) = pathlib.Path(folder).glob("rank-0-*.json")
    trace = traces / f"{options.device}-{kind}-{size}.json"
    found.replace(trace)
    measured = 1e3 * min(measured, measure())
    out = subprocess.run([options.mezzo, "doctor", "--trace", str(trace), "--json"], stdout=subprocess.PIPE, check=False).stdout
    result = json.loads(out)
    costs = {row["format"]: row for row in result["costs"]}
    bf16 = costs.get("bf16")
    cells, said = ["", "", ""], "no prediction"
    error = ""
    if bf16 is not None:
        cells, error = [f"{bf16[key]:.4g}" for key in ("step_ms", "least_ms", "most_ms")], f"{bf16['step_ms'] / measured - 1:.3f}"
        said = f"predicted {bf16['step_ms']:8.3f} ms ({bf16['least_ms']:.3f} to {bf16['most_ms']:.3f})"
    print(f"{options.device} {kind:>11}:{size:3} bf16: {said}, measured {measured:8.3f} ms{f', {100 * float(error):+5.1f} %' if error else ''} (fp32 {costs['fp32']['step_ms']:.3f} ms)", flush=True)
    facts = json.loads(trace.read_text())
    return [kind, size, "bf16", *cells, f"{measured:.4g}", error, f"{costs['fp32']['step_ms']:.4g}", str(int(f" {kind}:" in f" {HELD_OUT[options.device]}")), result["torch"],
            f"{options.device}: {facts['device_name']}", str(facts["threads"]), options.commit]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mezzo")
    parser.add_argument("--device", default="cpu", choices=sorted(CASES))
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--results", type=pathlib.Path, default=HERE / "results")
    parser.add_argument("cases", nargs="*", help="KIND:SIZE")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # a process that has asked CUDA itself cannot be forked
    sys.path.insert(0, str(HERE.parent / "python"))
    import torch  # noqa: F401
    import torch._dynamo  # noqa: F401  an optimizer's first step would import it in each fork

    table, traces = options.results / "torch-cost.csv", options.results / "torch-cost"
    traces.mkdir(parents=True, exist_ok=True)
    new = not table.exists()
    with tempfile.TemporaryDirectory() as scratch, open(table, "a", newline="") as out:
        rows = csv.writer(out, lineterminator="\n")
        if new:
            rows.writerow(["program", "size", "precision", "predicted_ms", "least_ms", "most_ms", "measured_ms", "error", "fp32_ms", "held_out", "torch",
                           "device", "threads", "commit"])
        program = os.path.join(scratch, "program.py")
        pathlib.Path(program).write_text(PROGRAM)
        count = {"1": [0, 0, 0], "0": [0, 0, 0]}  # by held_out: rows, within 15 %, within the bounds
        for case in options.cases or f"{HELD_OUT[options.device]} {CASES[options.device]}".split():
            kind, _, size = case.partition(":")
            if time.monotonic() > end:
                print(f"{options.device} {case}: no time was left", flush=True)
                continue
            try:
                row = compare(options, program, kind, size or "1", traces)
                rows.writerow(row)
                out.flush()
                seen = count[row[9]]
                seen[0] += 1
                if row[7]:
                    seen[1] += abs(float(row[7])) <= 0.15
                    seen[2] += float(row[4]) <= float(row[6]) <= float(row[5])
            except (RuntimeError, ValueError) as error:
                print(f"{options.device} {case}: {error}", flush=True)
    print("; ".join(f"{what}: {near} of {n} within 15 %, {inside} within the bounds" for what, (n, near, inside) in zip(("held out", "others"), count.values())))


if __name__ == "__main__":
    main()
