"""The head's product runs after the autocast region has ended."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(1)

body = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64))
head = nn.Linear(64, 16)
optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
for _ in range(5):
    x, y = torch.randn(8, 32), torch.randint(16, (8,))
    with torch.autocast("cpu", torch.bfloat16):
        hidden = body(x)
    logits = head(hidden.float())  # here: product-not-in-16-bits
    loss = F.cross_entropy(logits.float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
