"""Hidden states are converted to FP32 and at once back."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(1)

first, second = nn.Linear(32, 64), nn.Linear(64, 16)
optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()], lr=1e-3)
for _ in range(5):
    x, y = torch.randn(8, 32), torch.randint(16, (8,))
    with torch.autocast("cpu", torch.bfloat16):
        hidden = first(x).relu()
        hidden = hidden.float()
        logits = second(hidden)  # here: casts-back-and-forth
    loss = F.cross_entropy(logits.float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
