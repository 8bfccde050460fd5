#!/usr/bin/env python3
"""Lists every kernel of a tree's CUDA files with a hash of its instructions, its shared memory and its parameters' bytes.

    bench/device_code.py 90a >new; (cd OLD; NEW/bench/device_code.py 90a) >old; diff <(cut -d' ' -f1-4 old) <(cut -d' ' -f1-4 new)

A refactoring keeps every line but for the names at their ends, which hold types of parameters. Run it in the tree's root; further
arguments are names of files in src/backend/cuda/kernels, without .cu. The first argument is the compute capability, as
MEZZO_CUDA_ARCH has it. It needs nvcc.
"""
import glob
import hashlib
import os
import struct
import subprocess
import sys
import tempfile


def sections(data):
    """The sections of an ELF file: name -> (offset, size)."""
    (table,) = struct.unpack_from("<Q", data, 0x28)
    entry, count, names = struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", data, table + i * entry) for i in range(count)]
    start = headers[names][4]
    return {data[start + h[0]:data.index(b"\0", start + h[0])].decode(): (h[4], h[5]) for h in headers}


def kernels(cubin):
    """Lines of one cubin."""
    with open(cubin, "rb") as file:
        data = file.read()
    found = sections(data)
    for name, (offset, size) in found.items():
        if name.startswith(".text."):
            kernel = name[len(".text."):]
            shared = found.get(".nv.shared." + kernel, (0, 0))[1]
            constants = found.get(".nv.constant0." + kernel, (0, 0))[1]
            yield f"{hashlib.md5(data[offset:offset + size]).hexdigest()} {size} {shared} {constants} {kernel}"


def main():
    """Compiles the files and prints their kernels, sorted."""
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    arch, folder = sys.argv[1], "src/backend/cuda/kernels"
    files = [f"{folder}/{name}.cu" for name in sys.argv[2:]] or sorted(glob.glob(folder + "/*.cu"))
    lines = []
    with tempfile.TemporaryDirectory() as scratch:
        cubin = os.path.join(scratch, "cubin")
        for file in files:
            subprocess.run(["nvcc", "-cubin", "-O3", "-std=c++20", *(["-DMZ_CU_90A"] if arch == "90a" else []),
                            "-gencode", f"arch=compute_{arch},code=sm_{arch}", "-Iinclude", "-Isrc", "-I" + folder, "-o", cubin,
                            file], check=True)
            lines += kernels(cubin)
    print("\n".join(sorted(lines)))


if __name__ == "__main__":
    main()
