"""The sum over all tokens of a step is divided by their number."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(1)

model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
MICRO = 4
for _ in range(5):
    optimizer.zero_grad()
    lengths = [8, 3, 5, 8]
    for length in lengths:
        x, y = torch.randn(8, 32), torch.randint(16, (8,))
        y[length:] = -100  # padding
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(x)
        loss = F.cross_entropy(logits.float(), y, reduction="sum") / sum(lengths)
        loss.backward()
    optimizer.step()
