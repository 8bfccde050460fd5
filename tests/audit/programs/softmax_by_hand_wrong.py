"""Attention weights are exponentials in FP16."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(1)


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(-2, -1) / 8
        weights = torch.exp(scores - scores.amax(-1, keepdim=True))  # here: softmax-in-fp16
        weights = weights / weights.sum(-1, keepdim=True)
        return x + self.out(weights.to(v.dtype) @ v)


model = nn.Sequential(nn.Linear(32, 64), Attention(64), nn.Linear(64, 16))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu")
for _ in range(5):
    x, y = torch.randn(4, 8, 32), torch.randint(16, (4, 8))
    with torch.autocast("cpu", torch.float16):
        logits = model(x)
    loss = F.cross_entropy(logits.float().flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
