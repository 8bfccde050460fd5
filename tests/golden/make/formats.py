"""FP8, FP4 and E8M0 by ml_dtypes: what every code stands for, and the codes of numbers on, between and beside all of them;
MX and NVFP4 blocks by NumPy, from the definitions (OCP MX v1.0 §6.3; NVFP4 as published), their elements by ml_dtypes;
the same blocks rounded at random, and turned by Hadamard matrices with random signs."""

import json
import os

import ml_dtypes
import numpy as np
from safetensors.numpy import save

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "data")
E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
E2M1, E8M0 = ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e8m0fnu
f32 = np.float32


def codes(x, dtype):
    return np.asarray(x, f32).astype(dtype).view(np.uint8)


def around(values):
    """Every finite value, every midpoint of two neighbours, and the floats on both sides of each; far ones; both signs."""
    v = np.unique(np.abs(values[np.isfinite(values)].astype(np.float64)))
    v = np.concatenate([v, [2 * v[-1] - v[-2]]])  # the number that would come behind the largest
    at = np.concatenate([v, (v[1:] + v[:-1]) / 2, v[1:2] / 2, [1e-38, 1e30, np.inf, np.nan]]).astype(f32)
    at = np.concatenate([at, np.nextafter(at, f32(0)), np.nextafter(at, f32(np.inf))])
    return np.concatenate([at, -at])


def saturated(x, dtype):
    """NaN stays; everything else becomes at most the largest number."""
    most = f32(ml_dtypes.finfo(dtype).max)
    return codes(np.where(np.isnan(x), x, np.clip(x, -most, most)), dtype)


def mx(x, dtype, top):
    """x [blocks, 32] → codes, scales."""
    most = np.abs(x).max(axis=1).astype(np.float64)
    exponent = np.where(most > 0, np.floor(np.log2(np.where(most > 0, most, 1))) - top, -127).clip(-127, 127)
    scale = np.exp2(exponent)
    return saturated((x / scale[:, None]).astype(f32), dtype), (exponent + 127).astype(np.uint8)


def nvfp4(x):
    """x [blocks, 16] → codes, scales, the tensor's scale."""
    tensor = f32(np.abs(x).max()) / f32(6 * 448)
    scale = np.clip(np.abs(x).max(axis=1) / f32(6) / tensor, 0, 448).astype(f32)
    code = codes(scale, E4M3)
    held = code.view(E4M3).astype(f32)
    inverse = np.divide(f32(1), held * tensor, out=np.zeros_like(held), where=held > 0)
    return saturated(x * inverse[:, None], E2M1), code, tensor


def philox(seed, tensor, step, block):
    """Philox4x32-10 (Salmon et al. 2011), key seed, counter (block, tensor, step): 4 words a block."""
    c = np.stack([block & 0xFFFFFFFF, block >> 32, np.full_like(block, tensor), np.full_like(block, step)]).astype(np.uint64)
    k = [np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32)]
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = np.stack([(p1 >> np.uint64(32)) ^ c[1] ^ k[0], p1 & low, (p0 >> np.uint64(32)) ^ c[3] ^ k[1], p0 & low])
        k = [(k[0] + np.uint64(0x9E3779B9)) & low, (k[1] + np.uint64(0xBB67AE85)) & low]
    return c


def at_random(scaled, dtype, uniform):
    """To the neighbour below or above, the latter where the random number is less than the way there; at most the largest."""
    values = np.arange(16 if dtype == E2M1 else 256, dtype=np.uint8).view(dtype).astype(np.float64)
    grid = np.unique(np.abs(values[np.isfinite(values)]))
    a = np.minimum(np.abs(scaled).astype(np.float64), grid[-1])
    i = np.minimum(np.searchsorted(grid, a, side="right") - 1, len(grid) - 2)
    up = uniform < (a - grid[i]) / (grid[i + 1] - grid[i])
    return np.copysign(np.where(up | (a == grid[-1]), grid[i + 1], grid[i]), scaled)


def turned(x, signs):
    """Blocks [n, size] times diag(signs) and the Hadamard matrix (Sylvester's) over its root, in float64."""
    size = x.shape[1]
    h = np.ones((1, 1))
    while len(h) < size:
        h = np.block([[h, h], [h, -h]])
    return (x.astype(np.float64) * signs[:size]) @ h.T / np.sqrt(size)


def main():
    out = {}
    for name, dtype, n in [("e4m3", E4M3, 256), ("e5m2", E5M2, 256), ("e2m1", E2M1, 16), ("e8m0", E8M0, 256)]:
        values = np.arange(n, dtype=np.uint8).view(dtype).astype(f32)
        x = around(values)
        if name == "e2m1":
            x = x[~np.isnan(x)]  # E2M1 has no NaN: what becomes of one is not defined
        if name == "e8m0":
            x = x[~np.isfinite(x) | (np.abs(x) >= 2.0**-126)]  # ml_dtypes 0.6 rounds subnormal numbers otherwise
        out[name + ".values"] = values
        out[name + ".x"] = x
        out[name + ".codes"] = codes(x, dtype)
        if name in ("e4m3", "e5m2"):
            out[name + ".saturated"] = saturated(x, dtype)
    rng = np.random.default_rng(21)
    x = (rng.standard_normal((24, 32)) * np.exp2(rng.integers(-30, 30, (24, 1)))).astype(f32)
    x[0], x[1, 1:], x[2, 0] = 0, 0, 3 * x[2, 1:].max()
    x[3] = np.exp2(-np.arange(32)) * 7  # the last ones underflow
    near = (rng.standard_normal((24, 32)) * np.exp2(rng.integers(-6, 6, (24, 1)))).astype(f32).reshape(48, 16)
    near[0], near[1] = 0, near[1] * f32(2.0**-12)  # a scale that is 0 in units of the tensor's
    out["mx.x"], out["nvfp4.x"] = x, near
    out["mxfp8.codes"], out["mxfp8.scales"] = mx(x, E4M3, 8)
    out["mxfp4.codes"], out["mxfp4.scales"] = mx(x, E2M1, 2)
    out["nvfp4.codes"], out["nvfp4.scales"], tensor = nvfp4(near)
    out["nvfp4.tensor"] = np.array([tensor], f32)
    key = (12345678901234567, 0x20000007, 99)
    for name, dtype, numbers, size in [("mxfp8", E4M3, x, 32), ("mxfp4", E2M1, x, 32), ("nvfp4", E2M1, near, 16)]:
        scale = out[name + ".scales"]
        held = scale.view(E8M0).astype(f32) if size == 32 else scale.view(E4M3).astype(f32)
        factor = held * tensor if size == 16 else held
        with np.errstate(divide="ignore"):
            inverse = np.where(held == 0, 0, f32(1) / factor).astype(np.float64) if size == 16 else 1 / held.astype(np.float64)
        element = np.arange(numbers.size, dtype=np.int64)
        words = philox(*key, element >> 2)
        uniform = (words[element & 3, element] >> np.uint64(8)).astype(np.float64) * 2.0**-24
        scaled = (numbers.astype(np.float64) * inverse[:, None]).astype(f32)
        out[name + ".random"] = (at_random(scaled, dtype, uniform.reshape(numbers.shape)).astype(f32) * factor[:, None]).astype(f32)
    word = int(philox(key[0], 0x60000000, 0, np.zeros(1, np.int64))[0, 0])
    signs = np.array([-1.0 if word >> i & 1 else 1.0 for i in range(32)])
    out["mx.turned"], out["nvfp4.turned"] = turned(x, signs), turned(near, signs)
    origin = {"script": "tests/golden/make/formats.py", "ml_dtypes": ml_dtypes.__version__, "numpy": np.__version__}
    with open(os.path.join(DATA, "formats.safetensors"), "wb") as f:
        f.write(save(dict(sorted(out.items())), metadata={"origin": json.dumps(origin, sort_keys=True)}))


main()
