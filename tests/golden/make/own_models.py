"""Models of somebody's own as torch.onnx writes them, for any batch: own_NAME.onnx. tests/cli/own_model.sh trains them by the command;
own_losses.safetensors has what PyTorch computes in float64 for the losses that the command puts on outputs: for the same inputs each loss
and its gradient with respect to the output.

    python own_models.py                   needs torch, onnx, onnxscript, safetensors
    python own_models.py --check FILE NPZ  runs onnxruntime on a file that mezzo export --onnx wrote, on every example; prints the mean
                                           cross-entropy, which mezzo eval RUN --data NPZ has too
"""
import sys
import warnings

import torch
from onnx_models import DATA, slim
from safetensors.torch import save_file
from torch import nn
from torch.export import Dim
from torch.nn import functional as F


class Regression(nn.Module):
    """A model that has its loss inside."""

    def __init__(self):
        super().__init__()
        self.m = nn.Sequential(nn.Linear(7, 12), nn.GELU(), nn.Linear(12, 5))

    def forward(self, x, target):
        return ((self.m(x) - target) ** 2).mean()


class Tokens(nn.Module):
    """The next of 96 tokens from the sum of those so far, of any length."""

    def __init__(self):
        super().__init__()
        self.wte, self.head = nn.Embedding(96, 16), nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 96))

    def forward(self, input_ids):
        return self.head(self.wte(input_ids))


class Infinite(nn.Module):
    """Scores of which a mask and a table's row leave some out, by infinities."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(7, 5)
        table = torch.zeros(3, 5)
        table[1, 2] = table[2, 3] = -torch.inf
        self.register_buffer("table", table)
        self.register_buffer("all", torch.tensor([0, 0, -torch.inf, 0, 0.5]))

    def forward(self, x, row, keep):
        return (self.head(x) + self.table[row] + self.all).masked_fill(keep == 0, -torch.inf)


def models():
    batch = {0: Dim("batch")}
    yield "mlp", nn.Sequential(nn.Linear(7, 12), nn.ReLU(), nn.LayerNorm(12), nn.Linear(12, 5)), {"x": torch.randn(6, 7)}, "logits", (batch,)
    yield ("segment", nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1)), {"image": torch.randn(2, 3, 8, 8)}, "logits",
           ({0: Dim("batch"), 2: Dim("height"), 3: Dim("width")},))
    yield "price", nn.Sequential(nn.Linear(7, 8), nn.ReLU(), nn.Linear(8, 1)), {"features": torch.randn(6, 7)}, "price", (batch,)
    yield "picture", nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 3)), {"image": torch.randn(2, 3, 8, 8)}, "logits", (batch,)
    yield "loss", Regression(), {"x": torch.randn(6, 7), "target": torch.randn(6, 5)}, "loss", (batch, batch)
    yield "tokens", Tokens(), {"input_ids": torch.randint(0, 96, (3, 8))}, "logits", ({0: Dim("batch"), 1: Dim("length")},)
    yield "norm", nn.Sequential(nn.Linear(7, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5)).train(), {"x": torch.randn(6, 7)}, "logits", None
    with torch.random.fork_rng():  # the losses below are drawn as without it
        yield "infinite", Infinite(), {"x": torch.randn(6, 7), "row": torch.arange(6) % 3, "keep": torch.ones(6, 5, dtype=torch.int64)}, "logits", (batch,) * 3


def losses():
    """KIND: (prediction, labels, weights or None, loss)."""
    x = torch.randn(6, 5, dtype=torch.float64)
    t = torch.randn(6, 5, dtype=torch.float64)
    classes, w = torch.tensor([0, 4, -100, 2, 1, -100]), torch.tensor([1.0, 0.5, 2, 0, 3, 1], dtype=torch.float64)
    p = torch.sigmoid(x)
    yes = (torch.rand(6, 5) > 0.5).double()
    log = F.log_softmax(x, -1)
    image, plane = torch.randn(6, 4, 3, 2, dtype=torch.float64), torch.randint(0, 4, (6, 3, 2))
    rows = lambda f: lambda x, t, w: (f(x, t, reduction="none").mean(1) * w).sum() / w.sum()
    counted = lambda f: lambda x, t, w: (f(x, t, reduction="none", ignore_index=-100) * w * (t >= 0)).sum() / (w * (t >= 0)).sum()
    yield "cross_entropy", x, classes, None, F.cross_entropy
    yield "cross_entropy.weights", x, classes, w, counted(F.cross_entropy)
    yield "cross_entropy.image", image, plane, None, F.cross_entropy
    yield "nll", log, classes, None, F.nll_loss
    by_class = torch.tensor([0.5, 2, 0, 1.5, 3], dtype=torch.float64)
    holes = plane.clone()
    holes[0, 1], holes[3], holes[4, 2, 0] = -100, -100, -100
    yield "cross_entropy.classes", x, classes, None, lambda x, t: F.cross_entropy(x, t, weight=by_class, reduction="mean")
    yield "cross_entropy.pixels", image, holes, None, lambda x, t: F.cross_entropy(x, t, weight=by_class[:4], reduction="mean")
    yield "nll.classes", log, classes, None, lambda x, t: F.nll_loss(x, t, weight=by_class, reduction="mean")
    yield "mse", x, t, w, rows(F.mse_loss)
    yield "l1", x, t, w, rows(F.l1_loss)
    yield "huber", 2 * x, t, w, rows(F.huber_loss)
    yield "bce", p, yes, w, rows(F.binary_cross_entropy)
    yield "bce_with_logits", x, yes, w, rows(F.binary_cross_entropy_with_logits)


def main():
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(7)
    for name, model, inputs, output, shapes in models():
        path = DATA / f"own_{name}.onnx"
        trains = name == "norm"  # with the running statistics of its batch normalization
        how = (dict(dynamo=False, opset_version=17, training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, dynamic_axes={"x": {0: "batch"}})
               if trains else dict(dynamo=True, external_data=False, verbose=False, dynamic_shapes=shapes))
        torch.onnx.export(model if trains else model.eval(), tuple(inputs.values()), path, input_names=list(inputs), output_names=[output], **how)
        slim(path)
        print(name, path.stat().st_size, "bytes")
    store = {}
    for name, x, t, w, loss in losses():
        x = x.detach().clone().requires_grad_()
        value = loss(x, t) if w is None else loss(x, t, w)
        value.backward()
        store |= {f"{name}.x": x.detach(), f"{name}.labels": t.int() if t.dtype == torch.int64 else t, f"{name}.loss": value.detach()[None],
                  f"{name}.gradient": x.grad}
        if w is not None:
            store[f"{name}.weight"] = w
    save_file({k: v.contiguous().clone() for k, v in store.items()}, DATA / "own_losses.safetensors")


def check(file, data):
    import numpy
    import onnxruntime
    session, arrays = onnxruntime.InferenceSession(file), numpy.load(data)
    feed = {i.name: arrays[i.name].astype("float32" if "float" in i.type else "int64") for i in session.get_inputs()}
    logits, labels = torch.from_numpy(session.run(None, feed)[0]).double(), torch.from_numpy(arrays["labels"]).long()
    if logits.ndim == 3:  # [batch, length, classes]
        logits, labels = logits.flatten(0, 1), labels.flatten()
    print("loss", F.cross_entropy(logits, labels.where(labels >= 0, -100)).item())


if __name__ == "__main__":
    check(*sys.argv[2:4]) if sys.argv[1:2] == ["--check"] else main()
