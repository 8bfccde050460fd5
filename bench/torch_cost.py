#!/usr/bin/env python3
"""Predicted against measured steps of PyTorch programs: what `mezzo doctor --run` predicts for BF16 from the FP32
program, beside the time of the same program under autocast; of both the shortest step. It needs torch.

    python bench/torch_cost.py MEZZO [DEVICE [KIND…]]    appends rows to bench/results/torch-cost.csv, or to $OUT/torch-cost.csv

The rows say which programs the prediction was developed with; the two others are held out.
"""
import csv
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile

PROGRAM = '''
import sys, time, torch
from torch import nn
from torch.nn import functional as F
kind, precision, device = sys.argv[1:4]
size = 16 if device == "cuda" else 1
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
KINDS = ["mlp", "wide", "transformer", "encoder", "convolution"]
HELD_OUT = ["residual", "gated"]


def main() -> None:
    mezzo, device = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "cpu"
    here = pathlib.Path(__file__).resolve().parent
    folder = pathlib.Path(os.environ.get("OUT") or here / "results")
    table = folder / "torch-cost.csv"
    commit = subprocess.run(["git", "-C", here, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    new = not table.exists()
    with tempfile.TemporaryDirectory() as scratch, open(table, "a", newline="") as out:
        rows = csv.writer(out, lineterminator="\n")
        if new:
            rows.writerow(["program", "precision", "predicted_ms", "measured_ms", "error", "fp32_ms", "held_out", "torch", "device", "commit"])
        program = os.path.join(scratch, "program.py")
        pathlib.Path(program).write_text(PROGRAM)
        for kind in sys.argv[3:] or KINDS + HELD_OUT:
            words = [mezzo, "doctor", "--run", "--json", "--", sys.executable, program, kind, "fp32", device]
            result = json.loads(subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout)
            costs = {row["format"]: row["step_ms"] for row in result["costs"]}
            for precision in ["bf16"]:
                words = [sys.executable, program, kind, precision, device]
                measured = 1e3 * float(subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout)
                predicted = costs.get(precision, float("nan"))
                error = predicted / measured - 1
                name = result["torch"]
                rows.writerow([kind, precision, f"{predicted:.4g}", f"{measured:.4g}", f"{error:.3f}", f"{costs['fp32']:.4g}", int(kind in HELD_OUT), name,
                               f"{device}: {platform.processor() or platform.machine()}", commit])
                print(f"{kind:12} {precision}: predicted {predicted:8.3f} ms, measured {measured:8.3f} ms, {100 * error:+5.1f} %"
                      f" (fp32 {costs['fp32']:.3f} ms)", flush=True)


main()
