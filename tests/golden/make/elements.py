"""Every op of element.def, every reduction and movement: values and gradients in FP32, BF16 and FP16.

Inputs are float32 leaves that PyTorch casts to the format; a row of class FP32 (as torch.amp's lists have it) is computed in float32 then.
The gradient fed in is float32. elements.json lists the cases; tensors of elements.safetensors are "case.x" (an input), "case.g" (the
gradient fed in), "case.bf16.y" and "case.bf16.d_x". Inputs hold the places where a row chooses: zeros, equal numbers, edges.
"""

import torch
import torch.nn.functional as F

from store import deterministic, write_json, write_tensors

FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
ALPHA, LOW, HIGH = 0.75, -1.0, 0.5
SHAPE = (3, 8)


def values(generator, shape=SHAPE):
    """Numbers of few bits, equal in every format, zeros and edges among them."""
    x = torch.randint(-24, 25, shape, generator=generator).float() / 8
    edges = torch.tensor([0.0, LOW, HIGH, 1.0])
    x.view(-1)[:4] = edges[: x.numel()]
    return x


def positive(generator, shape=SHAPE):
    return torch.randint(1, 33, shape, generator=generator).float() / 8


UNARY = {
    "scale": lambda x: x * ALPHA, "relu": F.relu, "squared_relu": lambda x: F.relu(x).square(),
    "leaky_relu": lambda x: F.leaky_relu(x, ALPHA), "elu": lambda x: F.elu(x, ALPHA), "silu": F.silu, "exp": torch.exp,
    "abs": torch.abs, "clamp": lambda x: torch.clamp(x, LOW, HIGH), "sigmoid": torch.sigmoid, "tanh": torch.tanh,
    "softcap": lambda x: ALPHA * torch.tanh(x / ALPHA), "sqrt": torch.sqrt, "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal, "log": torch.log, "log1p": torch.log1p, "softplus": F.softplus, "erf": torch.erf,
    "sin": torch.sin, "cos": torch.cos, "sign": torch.sign, "floor": torch.floor, "ceil": torch.ceil,
    "round": torch.round,
}
POSITIVE = {"sqrt", "rsqrt", "reciprocal", "log", "log1p", "div", "pow"}
BINARY = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "pow": torch.pow,
          "maximum": torch.maximum, "minimum": torch.minimum}
COMPARE = {"less": torch.lt, "less_equal": torch.le, "equal": torch.eq, "not_equal": torch.ne,
           "logical_and": torch.logical_and, "logical_or": torch.logical_or}
FP32 = {"exp", "rsqrt", "reciprocal", "log", "log1p", "softplus", "pow", "sum", "prod", "cumsum"}


class Cases:
    def __init__(self):
        self.tensors, self.rows = {}, []

    def add(self, op, case, inputs, fn, fixed=None, **attrs):
        name = f"{op}.{case}"
        fixed = fixed or {}
        for k, v in {**inputs, **fixed}.items():
            self.tensors[f"{name}.{k}"] = v if v.dtype == torch.int32 else v.float()
        for label, dtype in FORMATS.items():
            leaves = {k: v.clone().requires_grad_() for k, v in inputs.items()}
            low = {k: v.to(dtype) for k, v in leaves.items()}
            y = fn(*(v.float() if op in FP32 else v for v in low.values()), *(v.long() for v in fixed.values()))
            if f"{name}.g" not in self.tensors:
                generator = torch.Generator().manual_seed(len(self.rows))
                self.tensors[f"{name}.g"] = torch.randint(-16, 17, y.shape or (1,), generator=generator).float() / 8
            self.tensors[f"{name}.{label}.y"] = y.detach().float().reshape(y.shape or (1,))
            if y.dtype.is_floating_point:
                (y.float() * self.tensors[f"{name}.g"].reshape(y.shape)).sum().backward()
            for k, leaf in leaves.items():
                self.tensors[f"{name}.{label}.d_{k}"] = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        self.rows.append({"op": op, "case": name, "inputs": list(inputs), "fixed": list(fixed), "fp32": op in FP32,
                          "attrs": attrs})


def elements(c, generator):
    for op, fn in UNARY.items():
        x = positive(generator) if op in POSITIVE else values(generator)
        if op == "clamp":  # at an edge PyTorch's gradient depends on its version
            x = torch.where((x == LOW) | (x == HIGH), x + 0.0625, x)
        c.add(op, "plain", {"x": x}, fn, alpha=ALPHA, low=LOW, high=HIGH)
    for op, fn in BINARY.items():
        make = positive if op in POSITIVE else values
        for case, shape in (("same", SHAPE), ("row", (8,)), ("column", (3, 1))):
            c.add(op, case, {"a": make(generator), "b": make(generator, shape)}, fn)
    for op, fn in COMPARE.items():
        c.add(op, "plain", {"a": values(generator), "b": values(generator)}, lambda a, b, fn=fn: fn(a, b).int())
    condition = torch.randint(-1, 2, SHAPE, generator=generator).int()
    c.add("where", "same", {"a": values(generator), "b": values(generator)}, lambda a, b, k: torch.where(k != 0, a, b),
          fixed={"c": condition})
    c.add("where", "row", {"a": values(generator, (8,)), "b": values(generator)},
          lambda a, b, k: torch.where(k != 0, a, b), fixed={"c": condition})


def reductions(c, generator):
    every = {"sum": lambda x, d: x.sum(d), "mean": lambda x, d: x.mean(d), "max": lambda x, d: x.amax(d),
             "min": lambda x, d: x.amin(d), "prod": lambda x, d: x.prod(d) if d is not None else x.prod()}
    for op, fn in every.items():
        for axis in (0, 1, -1):
            c.add(op, f"axis{axis}".replace("-1", "_all"), {"x": values(generator)},
                  lambda x, fn=fn, axis=axis: fn(x, None if axis < 0 else axis) if axis >= 0 or fn is every["prod"]
                  else fn(x, (0, 1)), axis=axis)
    nonzero = values(generator)
    c.add("prod", "no_zero", {"x": torch.where(nonzero == 0, torch.ones(()), nonzero)}, lambda x: x.prod(1), axis=1)
    for exclusive in (0, 1):
        for reverse in (0, 1):
            def cumsum(x, exclusive=exclusive, reverse=reverse):
                x = x.flip(1) if reverse else x
                y = x.cumsum(1)
                y = y - x if exclusive else y
                return y.flip(1) if reverse else y
            c.add("cumsum", f"{exclusive}{reverse}", {"x": values(generator)}, cumsum, axis=1, exclusive=exclusive,
                  reverse=reverse)


def movements(c, generator):
    c.add("expand", "row", {"x": values(generator, (8,))}, lambda x: x.expand(3, 8), shape=[3, 8])
    c.add("expand", "column", {"x": values(generator, (3, 1, 4))}, lambda x: x.expand(2, 3, 5, 4), shape=[2, 3, 5, 4])
    c.add("pad", "both", {"x": values(generator)}, lambda x: F.pad(x, (2, 1, 1, 0), value=0.5), before=[1, 2],
          after=[0, 1], alpha=0.5)
    c.add("slice", "middle", {"x": values(generator)}, lambda x: x[:, 2:7], axis=1, begin=2, end=7)
    c.add("flip", "last", {"x": values(generator)}, lambda x: x.flip(1), axis=1)
    c.add("permute", "swap", {"x": values(generator, (2, 3, 4))}, lambda x: x.permute(2, 0, 1), axes=[2, 0, 1])
    c.add("concat", "last", {"a": values(generator), "b": values(generator, (3, 4))},
          lambda a, b: torch.cat([a, b], 1), axis=1)
    c.add("split", "second", {"x": values(generator)}, lambda x: x[:, 4:], axis=1)
    index = torch.tensor([2, 0, 2, 1, 2]).int()
    c.add("gather", "rows", {"x": values(generator)}, lambda x, i: x[i], fixed={"i": index}, axis=0, elementwise=0)
    each = torch.randint(0, 8, (3, 5), generator=generator).int()
    c.add("gather", "each", {"x": values(generator)}, lambda x, i: x.gather(1, i), fixed={"i": each}, axis=1,
          elementwise=1)
    c.add("scatter_add", "each", {"x": values(generator), "s": values(generator, (3, 5))},
          lambda x, s, i: x.scatter_add(1, i, s), fixed={"i": each}, axis=1, elementwise=1)
    c.add("scatter_add", "rows", {"x": values(generator), "s": values(generator, (5, 8))},
          lambda x, s, i: x.index_add(0, i, s), fixed={"i": index}, axis=0, elementwise=0)


def main():
    deterministic(7)
    generator, c = torch.Generator().manual_seed(7), Cases()
    elements(c, generator)
    reductions(c, generator)
    movements(c, generator)
    write_tensors("elements.safetensors", __file__, c.tensors)
    write_json("elements.json", __file__, {"cases": c.rows})


if __name__ == "__main__":
    main()
