"""Two ranks train and exchange nothing."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

dist.init_process_group("gloo")
rank = int(os.environ["RANK"])
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
for _ in range(5):
    x, y = torch.randn(8, 32), torch.randint(16, (8,))
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(x)
    loss = F.cross_entropy(logits.float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # here: gradients-not-reduced
dist.destroy_process_group()
