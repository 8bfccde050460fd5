"""The region is for the device that the tensors are on."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(1)

device = torch.device("cpu")
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(5):
    x, y = torch.randn(8, 32, device=device), torch.randint(16, (8,), device=device)
    with torch.autocast(device.type, torch.bfloat16):
        logits = model(x)
        loss = F.cross_entropy(logits.float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
