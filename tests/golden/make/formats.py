"""FP8, FP4 and E8M0 by ml_dtypes: what every code stands for, and the codes of numbers on, between and beside all of them;
MX and NVFP4 blocks by NumPy, from the definitions (OCP MX v1.0 §6.3; NVFP4 as published), their elements by ml_dtypes."""

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
    origin = {"script": "tests/golden/make/formats.py", "ml_dtypes": ml_dtypes.__version__, "numpy": np.__version__}
    with open(os.path.join(DATA, "formats.safetensors"), "wb") as f:
        f.write(save(dict(sorted(out.items())), metadata={"origin": json.dumps(origin, sort_keys=True)}))


main()
