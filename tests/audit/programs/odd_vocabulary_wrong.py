"""A vocabulary of 1,003 is off the tensor cores' grid."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(1)

vocabulary = 1003
embed, head = nn.Embedding(vocabulary, 64), nn.Linear(64, vocabulary, bias=False)
optimizer = torch.optim.AdamW([*embed.parameters(), *head.parameters()], lr=1e-3)
for _ in range(5):
    x, y = torch.randint(1003, (32,)), torch.randint(1003, (32,))
    with torch.autocast("cpu", torch.bfloat16):
        logits = head(embed(x))  # here: shape-off-grid
    loss = F.cross_entropy(logits.float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
