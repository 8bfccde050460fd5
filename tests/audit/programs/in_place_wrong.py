"""A product is added in place, which autocast leaves in FP32."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(1)

mix = nn.Parameter(torch.randn(32, 64) / 6)
model = nn.Sequential(nn.ReLU(), nn.Linear(64, 16))
optimizer = torch.optim.AdamW([mix, *model.parameters()], lr=1e-3)
for _ in range(5):
    x, y = torch.randn(8, 32), torch.randint(16, (8,))
    with torch.autocast("cpu", torch.bfloat16):
        hidden = torch.zeros(8, 64)
        hidden.addmm_(x, mix)  # here: product-not-in-16-bits
        logits = model(hidden)
    loss = F.cross_entropy(logits.float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
