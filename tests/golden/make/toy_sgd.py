"""The toy model (5 -> 10, relu, LayerNorm, 10 -> 3, no linear biases) trained by SGD: momentum, Nesterov, weight decay.

Float64 from float32 weights, stored as float32; PyTorch's own float32 errors are kept in the JSON file.
"""

import copy

import torch
import torch.nn.functional as F
from torch import nn

from store import deterministic, write_json, write_tensors

BATCH, STEPS = 8, 10
RUNS = {
    "plain": {"momentum": 0.0, "nesterov": False, "weight_decay": 0.0},
    "momentum": {"momentum": 0.9, "nesterov": False, "weight_decay": 0.01},
    "nesterov": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
}
LR = 0.1


class Toy(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(5, 10, bias=False)
        self.ln = nn.LayerNorm(10, eps=torch.tensor(1e-5).item())  # the float32 number, as Mezzo has it
        self.fc2 = nn.Linear(10, 3, bias=False)

    def forward(self, x):
        return self.fc2(self.ln(F.relu(self.fc1(x))))


def train(model, x, y, **settings):
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=LR, foreach=False, **settings), []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[step]), y[step])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main():
    deterministic(99)
    start = Toy()
    x = torch.randn(STEPS, BATCH, 5)
    y = torch.randint(3, (STEPS, BATCH))
    tensors = {"x": x, "y": y.int()}
    tensors.update({"init." + n: p for n, p in start.named_parameters()})
    runs = []
    for name, settings in RUNS.items():
        single, double = copy.deepcopy(start), copy.deepcopy(start).double()
        losses, losses32 = train(double, x.double(), y, **settings), train(single, x, y, **settings)
        finals = dict(double.named_parameters())
        tensors.update({f"{name}.{n}": p.float() for n, p in finals.items()})
        error = max((p.double() - finals[n]).abs().max().item() for n, p in single.named_parameters())
        runs.append({"name": name, "lr": LR, **settings, "losses": losses, "float32_losses": losses32, "float32_error": error})
    write_tensors("toy_sgd.safetensors", __file__, tensors)
    write_json("toy_sgd.json", __file__, {"batch_size": BATCH, "steps": STEPS, "runs": runs})


if __name__ == "__main__":
    main()
