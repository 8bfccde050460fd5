"""Block-wise 8-bit numbers: the codes' values by bitsandbytes, and codes and scales of blocks of 256 by torchao, with signs and without."""

import json
import os

import bitsandbytes
import numpy as np
import torch
import torchao
from bitsandbytes import functional
from safetensors.numpy import save
from torchao.optim.quant_utils import create_dynamic_map, quantize_8bit_with_qmap, scale_tensor

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "data")
BLOCK = 256


def blocks(rng):
    """[blocks, 256]: normal numbers of one size, of sizes over seven decades, constant, mostly zero."""
    normal = rng.standard_normal((4, BLOCK)) * np.float32([[1], [1e-4], [1e-9], [3e5]])
    wide = rng.standard_normal((3, BLOCK)) * 10.0 ** rng.uniform(-7, 0, (3, BLOCK))
    rest = np.zeros((2, BLOCK))
    rest[0] = 0.3
    rest[1, ::9] = rng.standard_normal(29)
    return np.concatenate([normal, wide, rest]).astype(np.float32)


def main():
    rng, out = np.random.default_rng(256), {}
    for name, signed in [("signs", True), ("plain", False)]:
        code = functional.create_dynamic_map(signed=signed)
        x = blocks(rng) if signed else np.abs(blocks(rng))
        turn = np.where(x.max(axis=1, keepdims=True) >= -x.min(axis=1, keepdims=True), 1, -1).astype(np.float32)
        x *= turn  # the largest number of each block is positive: there the scale's sign is the published one
        scaled, scales = scale_tensor(torch.from_numpy(x).flatten(), BLOCK)
        codes = quantize_8bit_with_qmap(scaled, torch.tensor(create_dynamic_map(signed)))
        out[name + ".values"] = code.numpy()
        out[name + ".x"] = x
        out[name + ".codes"] = codes.numpy().reshape(x.shape)
        out[name + ".scales"] = scales.numpy().flatten()
    origin = {"script": "tests/golden/make/moments8.py", "bitsandbytes": bitsandbytes.__version__,
              "torchao": torchao.__version__}
    with open(os.path.join(DATA, "moments8.safetensors"), "wb") as f:
        f.write(save(dict(sorted(out.items())), metadata={"origin": json.dumps(origin, sort_keys=True)}))


main()
