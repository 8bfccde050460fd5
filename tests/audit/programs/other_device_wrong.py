"""The region is for a GPU and the tensors are on the CPU."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(1)

device = torch.device("cpu")
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(5):
    x, y = torch.randn(8, 32, device=device), torch.randint(16, (8,), device=device)
    with torch.autocast("cuda", torch.bfloat16):  # here: autocast-covers-nothing
        logits = model(x)
        loss = F.cross_entropy(logits.float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
