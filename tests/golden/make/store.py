"""How the golden scripts store what they computed: safetensors, JSON and CSV, each saying which PyTorch and script made it.

Every file is a pure function of the script, the PyTorch version and the processor's FP32 kernels: fixed seeds, one thread,
tensors sorted by name, no dates.
"""

import json
import math
import os
import re

import torch

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "data")


def deterministic(seed):
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it PyTorch refuses to be deterministic on CUDA
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)


def origin(script):
    return {"script": "tests/golden/make/" + os.path.basename(script), "torch": torch.__version__}


def path_of(name):  # an absolute name stays as it is
    os.makedirs(DATA, exist_ok=True)
    return os.path.normpath(os.path.join(DATA, name))


def write_tensors(name, script, tensors):
    from safetensors.torch import save  # here: scripts that write no tensors run without the package

    # One metadata key only: the safetensors writer orders several keys at random.
    meta = {"origin": json.dumps(origin(script), sort_keys=True)}
    tensors = {k: tensors[k].detach().contiguous().clone() for k in sorted(tensors)}
    with open(path_of(name), "wb") as f:
        f.write(save(tensors, metadata=meta))
    report(name)


def number(x):
    """JSON has no infinities: those and NaN are stored as strings. Finite values keep every bit (repr round-trips)."""
    if isinstance(x, float) and not math.isfinite(x):
        return "nan" if math.isnan(x) else ("inf" if x > 0 else "-inf")
    return x


def numbers(tensor):
    return [number(v) for v in tensor.detach().double().flatten().tolist()]


def write_json(name, script, content):
    text = json.dumps({"origin": origin(script), **content}, indent=1, allow_nan=False)
    text = re.sub(r"\[[^][{}]*\]", lambda m: re.sub(r"\s+", " ", m.group()), text)  # a list of scalars on one line
    with open(path_of(name), "w", encoding="utf-8") as f:
        f.write(text + "\n")
    report(name)


def report(name):
    print(f"{name}: {os.path.getsize(path_of(name))} bytes")
