"""check_safetensors.py OURS THEIRS: reads OURS with the reference implementation, checks names, dtypes, shapes, values and
metadata against test_python_readers.c, and writes the same tensors to THEIRS with it."""
import json
import struct
import sys

import numpy
from safetensors import deserialize, safe_open, serialize_file

try:
    from safetensors import TensorSpec
except ImportError:  # before 0.6, tensors are given as bytes
    TensorSpec = None

ours, theirs = sys.argv[1:]
# name, dtype in the file, numpy dtype, shape, in the order of test_python_readers.c
TENSORS = [("wte", "F32", "<f4", [5, 3]), ("half", "F16", "<f2", [7]), ("brain", "BF16", "<u2", [2, 2, 2]),
           ("double", "F64", "<f8", []), ("long", "I64", "<i8", [3]), ("int", "I32", "<i4", [3]), ("short", "U16", "<u2", [3]),
           ("byte", "U8", "|u1", [5]), ("none", "F32", "<f4", [0, 4])]


def values(t, kind, shape):
    count = int(numpy.prod(shape)) if shape else 1
    numbers = numpy.arange(count) * 3 + t
    if TENSORS[t][1] == "BF16":  # the upper half of an FP32; exact for these integers
        return (numbers.astype("<f4").view("<u4") >> 16).astype("<u2").reshape(shape)
    return numbers.astype(kind).reshape(shape)


with open(ours, "rb") as f:
    raw = f.read()
found = dict(deserialize(raw))
assert sorted(found) == sorted(name for name, *_ in TENSORS), sorted(found)
for t, (name, dtype, kind, shape) in enumerate(TENSORS):
    got = found[name]
    assert got["dtype"] == dtype, (name, got["dtype"])
    assert list(got["shape"]) == shape, (name, got["shape"])
    assert bytes(got["data"]) == values(t, kind, shape).tobytes(), name

with safe_open(ours, framework="numpy") as f:
    assert f.metadata() == {"format": "pt", "note": 'é "quoted"'}, f.metadata()
    assert f.get_tensor("wte")[4, 2] == 42.0

(header_size,) = struct.unpack("<Q", raw[:8])
assert header_size % 8 == 0
start, header = 8 + header_size, json.loads(raw[8:8 + header_size])
for name, dtype, kind, _ in TENSORS:
    assert (start + header[name]["data_offsets"][0]) % numpy.dtype(kind).itemsize == 0, name

names = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64", "I64": "int64", "I32": "int32",
         "U16": "uint16", "U8": "uint8"}
arrays = {name: values(t, kind, shape) for t, (name, dtype, kind, shape) in enumerate(TENSORS)}


def spec(name, dtype, shape):
    array = arrays[name]
    if TensorSpec is None:
        return {"dtype": names[dtype], "shape": shape, "data": array.tobytes()}
    return TensorSpec(dtype=names[dtype], shape=shape, data_ptr=array.ctypes.data, data_len=array.nbytes)


serialize_file({name: spec(name, dtype, shape) for name, dtype, _, shape in TENSORS}, theirs,
               {"format": "pt", "note": 'é "quoted"'})
