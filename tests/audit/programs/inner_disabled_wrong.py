"""A block turns autocast off for all of its products."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(32, 128), nn.Linear(128, 32)

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            h = self.up(x.float()).relu()  # here: product-not-in-16-bits
            mean = h.mean()
        return x + self.down(h) - mean


model = nn.Sequential(nn.Linear(32, 32), Block(), nn.Linear(32, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    x, y = torch.randn(8, 32), torch.randint(16, (8,))
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(x)
    loss = F.cross_entropy(logits.float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
