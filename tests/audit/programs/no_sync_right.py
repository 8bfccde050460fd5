"""no_sync() is open during all backward passes but the last."""

import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

dist.init_process_group("gloo")
rank = int(os.environ["RANK"])
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
for _ in range(5):
    optimizer.zero_grad()
    for micro in range(2):
        x, y = torch.randn(8, 32), torch.randint(16, (8,))
        with model.no_sync() if micro == 0 else contextlib.nullcontext():
            with torch.autocast("cpu", torch.bfloat16):
                logits = model(x)
            (F.cross_entropy(logits.float(), y) / 2).backward()
    optimizer.step()
dist.destroy_process_group()
