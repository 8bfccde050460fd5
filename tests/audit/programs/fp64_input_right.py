"""The projection is converted to FP32 where it is made."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(1)

basis = np.random.default_rng(1).standard_normal((32, 64))
project = torch.from_numpy(basis).float()
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(5):
    x, y = torch.randn(8, 32), torch.randint(16, (8,))
    with torch.autocast("cpu", torch.bfloat16):
        features = torch.matmul(x, project)
        logits = model(features)
    loss = F.cross_entropy(logits.float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
