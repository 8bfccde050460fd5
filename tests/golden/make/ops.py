"""Every op alone, forward and backward, on small odd shapes.

Inputs and output gradients are float32 values; PyTorch computes in float64, and outputs and gradients are stored as float64.
ops.json lists the cases: op, attributes, and which tensors of ops.safetensors (named "case.tensor") are inputs, outputs and
gradients. A gradient of input x is "case.d_x"; the gradient fed in for output y is "case.g_y".
Attention tensors are [B, T, H, D].
"""

import torch
import torch.nn.functional as F

from store import deterministic, numbers, write_json, write_tensors


# float32 numbers, as an attribute of a C struct holds them
EPS = torch.tensor(1e-5).item()
WIDE_EPS = torch.tensor(1e-3).item()


class Cases:
    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)
        self.tensors, self.rows = {}, []

    def noise(self, *shape, size=1.0):
        return (size * torch.randn(shape, generator=self.generator)).float()

    def add(self, op, case, inputs, fn, fixed=None, **attrs):
        """`inputs` get gradients, `fixed` (token ids) do not; `fn` takes them all by name and returns {name: output}."""
        name = f"{op}.{case}"
        leaves = {k: v.double().requires_grad_() for k, v in inputs.items()}
        outputs = fn(**leaves, **(fixed or {}))
        total = 0.0
        for k, y in outputs.items():
            g = self.noise(*y.shape) if y.dim() else torch.tensor(1.25)
            total = total + (y * g.double()).sum()
            self.tensors[f"{name}.{k}"] = y.detach().double()
            self.tensors[f"{name}.g_{k}"] = g
        total.backward()
        for k, v in inputs.items():
            self.tensors[f"{name}.{k}"] = v
            self.tensors[f"{name}.d_{k}"] = leaves[k].grad
        for k, v in (fixed or {}).items():
            self.tensors[f"{name}.{k}"] = v.int()
        self.rows.append({"op": op, "case": name, "attrs": attrs, "inputs": list(inputs), "fixed": list(fixed or {}),
                          "outputs": list(outputs)})


def linear_and_matmul(c):
    c.add("linear", "bias", {"x": c.noise(3, 5, 7), "w": c.noise(11, 7), "b": c.noise(11)},
          lambda x, w, b: {"y": F.linear(x, w, b)})
    c.add("linear", "no_bias", {"x": c.noise(9, 13), "w": c.noise(5, 13)}, lambda x, w: {"y": F.linear(x, w)})
    c.add("linear", "one_row", {"x": c.noise(1, 33), "w": c.noise(3, 33), "b": c.noise(3)},
          lambda x, w, b: {"y": F.linear(x, w, b)})
    for ta in (0, 1):
        for tb in (0, 1):
            a = c.noise(3, 7, 5) if ta else c.noise(3, 5, 7)  # [B, M, K] = [3, 5, 7]
            b = c.noise(3, 9, 7) if tb else c.noise(3, 7, 9)  # [B, K, N] = [3, 7, 9]
            c.add("matmul", f"{'t' if ta else 'n'}{'t' if tb else 'n'}", {"a": a, "b": b},
                  lambda a, b, ta=ta, tb=tb: {"y": (a.mT if ta else a) @ (b.mT if tb else b)},
                  transpose_a=ta, transpose_b=tb)
    c.add("matmul", "two_batch_dims", {"a": c.noise(2, 3, 4, 5), "b": c.noise(2, 3, 5, 3)},
          lambda a, b: {"y": a @ b}, transpose_a=0, transpose_b=0)
    c.add("matmul", "plain", {"a": c.noise(5, 6), "b": c.noise(6, 7)}, lambda a, b: {"y": a @ b},
          transpose_a=0, transpose_b=0)


def pointwise(c):
    c.add("add", "same_shape", {"a": c.noise(3, 5), "b": c.noise(3, 5)}, lambda a, b: {"y": a + b})
    c.add("add", "row", {"a": c.noise(4, 3, 5), "b": c.noise(5)}, lambda a, b: {"y": a + b})
    c.add("add", "batch", {"a": c.noise(4, 3, 5), "b": c.noise(3, 5)}, lambda a, b: {"y": a + b})
    c.add("mul", "same_shape", {"a": c.noise(3, 5), "b": c.noise(3, 5)}, lambda a, b: {"y": a * b})
    c.add("mul", "row", {"a": c.noise(4, 3, 5), "b": c.noise(5)}, lambda a, b: {"y": a * b})
    c.add("scale", "third", {"x": c.noise(7, 3)}, lambda x: {"y": x * 0.3125}, factor=0.3125)
    wide = {"x": torch.cat([c.noise(8, 9, size=2.0), torch.tensor([[-40.0, -12.0, -5.0, -0.0, 0.0, 1e-6, 5.0, 12.0, 40.0]])])}
    c.add("relu", "wide", {"x": wide["x"]}, lambda x: {"y": F.relu(x)})
    c.add("gelu", "tanh", {"x": wide["x"]}, lambda x: {"y": F.gelu(x, approximate="tanh")}, approximate="tanh")
    c.add("gelu", "erf", {"x": wide["x"]}, lambda x: {"y": F.gelu(x)}, approximate="none")
    c.add("silu", "wide", {"x": wide["x"]}, lambda x: {"y": F.silu(x)})


def norms_and_softmax(c):
    for case, width in (("c7", 7), ("c33", 33)):
        c.add("layernorm", case, {"x": c.noise(2, 5, width), "w": 1 + c.noise(width, size=0.3), "b": c.noise(width)},
              lambda x, w, b: {"y": F.layer_norm(x, w.shape, w, b, EPS)}, eps=EPS)
    # A mean 300 times the deviation: E[x^2] - E[x]^2 would lose every digit in float32.
    c.add("layernorm", "large_mean", {"x": 300 + c.noise(3, 16), "w": 1 + c.noise(16, size=0.3), "b": c.noise(16)},
          lambda x, w, b: {"y": F.layer_norm(x, w.shape, w, b, EPS)}, eps=EPS)
    c.add("layernorm", "no_bias", {"x": c.noise(4, 10), "w": 1 + c.noise(10, size=0.3)},
          lambda x, w: {"y": F.layer_norm(x, w.shape, w, None, WIDE_EPS)}, eps=WIDE_EPS)
    # Equal entries: the variance is zero and only eps is left.
    c.add("layernorm", "constant_row", {"x": torch.full((2, 6), 3.0), "w": 1 + c.noise(6, size=0.3), "b": c.noise(6)},
          lambda x, w, b: {"y": F.layer_norm(x, w.shape, w, b, EPS)}, eps=EPS)
    c.add("layernorm", "plain", {"x": c.noise(3, 12)}, lambda x: {"y": F.layer_norm(x, (12,), eps=EPS)}, eps=EPS)
    c.add("softmax", "c9", {"x": c.noise(4, 3, 9, size=2.0)}, lambda x: {"y": F.softmax(x, -1)})
    c.add("softmax", "shifted", {"x": 90 + c.noise(3, 5, size=8.0)}, lambda x: {"y": F.softmax(x, -1)})


def losses(c):
    targets = torch.tensor([0, 4, -100, 10, 7, -100, 3])
    c.add("cross_entropy", "ignore", {"x": c.noise(7, 11, size=3.0)},
          lambda x, targets: {"y": F.cross_entropy(x, targets)}, fixed={"targets": targets}, ignore_index=-100)
    c.add("cross_entropy", "all", {"x": c.noise(5, 61)}, lambda x, targets: {"y": F.cross_entropy(x, targets)},
          fixed={"targets": torch.tensor([60, 0, 1, 33, 33])}, ignore_index=-100)
    # Far from uniform: exp overflows float32 unless the row's maximum is subtracted.
    c.add("cross_entropy", "steep", {"x": c.noise(4, 9, size=60.0)}, lambda x, targets: {"y": F.cross_entropy(x, targets)},
          fixed={"targets": torch.tensor([8, 2, -100, 0])}, ignore_index=-100)


def attention(c):
    def causal(q, k, v, scale=None):
        group = q.shape[2] // k.shape[2]
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))  # [B, H, T, D]
        k, v = (t.repeat_interleave(group, dim=1) for t in (k, v))
        return {"y": F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale).transpose(1, 2).contiguous()}

    def busiest_key(q, k):
        """The largest sum of attention weights that one key gets, over all queries and the heads that share it."""
        group = q.shape[2] // k.shape[2]
        q, k = q.double().transpose(1, 2), k.double().transpose(1, 2).repeat_interleave(group, dim=1)
        scores = (q @ k.mT / q.shape[3] ** 0.5).masked_fill(torch.ones(q.shape[2], q.shape[2]).triu(1).bool(), -torch.inf)
        return scores.softmax(-1).sum(2).unflatten(1, (-1, group)).sum(2).max().item()

    for case, b, t, h, hkv, d in (("plain", 2, 5, 3, 3, 7), ("grouped", 2, 6, 4, 2, 5), ("one_kv_head", 1, 9, 4, 1, 3),
                                  ("one_token", 2, 1, 2, 2, 4), ("longer", 1, 37, 2, 1, 8)):
        tensors = {"q": c.noise(b, t, h, d), "k": c.noise(b, t, hkv, d), "v": c.noise(b, t, hkv, d)}
        c.add("attention", case, tensors, causal, heads=h, kv_heads=hkv, busiest_key=busiest_key(tensors["q"], tensors["k"]))
    x = c.noise(2, 7, 3 * 2 * 5)
    q, k, _ = (p.reshape(2, 7, 2, 5) for p in x.split(10, dim=2))
    c.add("attention_qkv", "packed", {"x": x},
          lambda x: {"y": causal(*(p.reshape(2, 7, 2, 5) for p in x.split(10, dim=2)))["y"].reshape(2, 7, 10)},
          heads=2, kv_heads=2, busiest_key=busiest_key(q, k))
    tensors = {"q": c.noise(1, 6, 2, 4, size=3.0), "k": c.noise(1, 6, 2, 4, size=3.0), "v": c.noise(1, 6, 2, 4)}
    c.add("attention", "large_scores", tensors, causal, heads=2, kv_heads=2,
          busiest_key=busiest_key(tensors["q"], tensors["k"]))


def the_rest(c):
    ids = torch.tensor([[3, 0, 3], [6, 3, 0]])  # rows 0 and 3 are used more than once, others never
    c.add("embedding", "repeated", {"w": c.noise(7, 5)}, lambda w, ids: {"y": F.embedding(ids, w)}, fixed={"ids": ids})
    c.add("sum", "all", {"x": c.noise(3, 5, 7)}, lambda x: {"y": x.sum()}, axis=-1)
    c.add("mean", "all", {"x": c.noise(3, 5, 7)}, lambda x: {"y": x.mean()}, axis=-1)
    for axis in range(3):
        c.add("sum", f"axis_{axis}", {"x": c.noise(3, 5, 7)}, lambda x, axis=axis: {"y": x.sum(axis)}, axis=axis)
        c.add("mean", f"axis_{axis}", {"x": c.noise(3, 5, 7)}, lambda x, axis=axis: {"y": x.mean(axis)}, axis=axis)
    c.add("reshape", "fold", {"x": c.noise(3, 4, 5)}, lambda x: {"y": x.reshape(12, 5) * 1.0}, shape=[12, 5])
    c.add("split", "three", {"x": c.noise(2, 3, 9)}, lambda x: dict(zip(("y0", "y1", "y2"), x.split(3, dim=2))), dim=2, parts=3)
    c.add("concat", "last", {"a": c.noise(2, 3, 4), "b": c.noise(2, 3, 5)}, lambda a, b: {"y": torch.cat([a, b], 2)}, dim=2)
    c.add("concat", "first", {"a": c.noise(2, 3), "b": c.noise(4, 3)}, lambda a, b: {"y": torch.cat([a, b], 0)}, dim=0)


def main():
    deterministic(7)
    c = Cases(7)
    for part in (linear_and_matmul, pointwise, norms_and_softmax, losses, attention, the_rest):
        part(c)
    write_tensors("ops.safetensors", __file__, c.tensors)
    empty = F.cross_entropy(torch.zeros(2, 3), torch.tensor([-100, -100]))
    write_json("ops.json", __file__, {"cases": c.rows, "cross_entropy_all_ignored": numbers(empty)[0]})


if __name__ == "__main__":
    main()
