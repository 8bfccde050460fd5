"""Gradients are cleared before each micro batch, so only the last one counts."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(1)

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
MICRO = 4
for _ in range(5):
    for _ in range(MICRO):
        optimizer.zero_grad()
        x, y = torch.randn(8, 32), torch.randint(16, (8,))
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(x)
        loss = F.cross_entropy(logits.float(), y) / MICRO
        loss.backward()  # here: accumulation-divides-wrongly
    optimizer.step()
