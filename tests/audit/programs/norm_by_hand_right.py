"""The root mean square norm is computed in FP32."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(1)


class RootMeanSquare(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * (wide * scale).to(x.dtype)


model = nn.Sequential(nn.Linear(32, 64), RootMeanSquare(64), nn.ReLU(), nn.Linear(64, 16))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
for _ in range(5):
    x, y = torch.randn(8, 32), torch.randint(16, (8,))
    with torch.autocast("cpu", torch.float16):
        logits = model(x)
    loss = F.cross_entropy(logits.float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
