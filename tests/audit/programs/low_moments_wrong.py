"""A small optimizer keeps its momentum in BF16."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(1)


class Momentum(torch.optim.Optimizer):
    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p, dtype=torch.bfloat16)
                state["momentum"].mul_(0.999).add_(p.grad)
                p.add_(state["momentum"], alpha=-group["lr"])


model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))
optimizer = Momentum(model.parameters(), lr=0.01)  # here: moments-in-16-bits
for _ in range(5):
    x, y = torch.randn(8, 32), torch.randint(16, (8,))
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(x)
    loss = F.cross_entropy(logits.float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
