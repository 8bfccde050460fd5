"""The program asks for determinism, and lets cuDNN choose by time."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(1)

torch.backends.cudnn.deterministic = True
torch.backends.cudnn.benchmark = True  # here: not-deterministic
model = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 16))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(5):
    x, y = torch.randn(4, 8, 8, 8), torch.randint(16, (4,))
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(x)
    loss = F.cross_entropy(logits.float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
