"""Gradients are unscaled before weight decay is added."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(1)

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

scaler = torch.amp.GradScaler("cpu")
for _ in range(5):
    x, y = torch.randn(8, 32), torch.randint(16, (8,))
    with torch.autocast("cpu", torch.float16):
        loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    for p in model.parameters():
        p.grad.add_(p.detach(), alpha=0.01)
    scaler.step(optimizer)
    scaler.update()
