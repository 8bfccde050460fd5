"""npz.py FILE NAME=TYPE,SHAPE,EXPRESSION …: an .npz as NumPy writes it, without NumPy. TYPE f2, f4, u1, u2, i8 or c8; SHAPE 8x3; EXPRESSION of i, the
element's number, and r(), a random number in [0, 1). --deflate: compressed."""
import math
import random
import struct
import sys
import zipfile

random.seed(3)
words = sys.argv[1:]
method = zipfile.ZIP_STORED
if words[0] == "--deflate":
    method, words = zipfile.ZIP_DEFLATED, words[1:]
with zipfile.ZipFile(words[0], "w", method) as archive:
    for word in words[1:]:
        name, rest = word.split("=", 1)
        kind, shape, text = rest.split(",", 2)
        dims = [int(n) for n in shape.split("x")]
        count = math.prod(dims)
        code = compile(text, name, "eval")
        values = [eval(code, {"i": i, "r": random.random, "math": math}) for i in range(count)]
        descr = {"f2": "<f2", "f4": "<f4", "u1": "|u1", "u2": "<u2", "i8": "<i8", "c8": "<c8"}[kind]
        shape = "(" + ", ".join(map(str, dims)) + ("," if len(dims) == 1 else "") + ")"
        header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
        data = struct.pack(f"<{count}{ {'f2': 'e', 'f4': 'f', 'u1': 'B', 'u2': 'H', 'i8': 'q', 'c8': 'd'}[kind]}", *values)
        with archive.open(name + ".npy", "w", force_zip64=True) as file:
            file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data)
