"""A file of ONNX ops in many forms (onnx_forms.onnx), each of the same input, flattened side by side; onnx_forms.safetensors has the input
and what onnxruntime gives.

    python onnx_forms.py        needs numpy, onnx, onnxruntime, safetensors
"""
import pathlib

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file

DATA = pathlib.Path(__file__).parents[1] / "data"
nodes, tables, parts = [], [], []
rng = np.random.default_rng(7)


def table(values, kind=np.int64):
    tables.append(numpy_helper.from_array(np.asarray(values, kind), f"t{len(tables)}"))
    return tables[-1].name


def op(name, *inputs, keep=True, n=1, **attributes):
    outs = [f"v{len(nodes)}_{i}" for i in range(n)]
    nodes.append(helper.make_node(name, inputs, outs, **attributes))
    if keep:
        for out in outs:
            flat = f"f{len(nodes)}"
            nodes.append(helper.make_node("Flatten", [out], [flat], axis=1))
            parts.append(flat)
    return outs[0]


def weight(*shape):
    return table(rng.standard_normal(shape), np.float32)


x = "x"  # [2, 4, 6, 6]
positive = op("Exp", x, keep=False)
for name in "Abs Ceil Cos Erf Floor HardSwish Mish Neg Reciprocal Relu Round Sigmoid Sign Sin Softplus Softsign Sqrt Tan Tanh Log".split():
    op(name, positive if name in ("Reciprocal", "Sqrt", "Log") else x)
for name, more in (("Celu", {"alpha": 0.7}), ("Elu", {"alpha": 0.5}), ("Gelu", {}), ("Gelu", {"approximate": "tanh"}), ("HardSigmoid", {}), ("LeakyRelu", {}), ("Selu", {}), ("ThresholdedRelu", {"alpha": 0.3})):
    op(name, x, **more)
op("Clip", x, table(-0.5, np.float32), table(0.5, np.float32))
op("PRelu", x, weight(4, 1, 1))
for name in ("Add", "Sub", "Mul", "Div", "Max", "Min"):
    op(name, x, weight(4, 1, 6))
op("Mean", x, positive, weight(6))
op("Sum", x, positive, x)
op("Pow", positive, table(1.5, np.float32))
op("Mod", op("Cast", op("Mul", x, table(9, np.float32), keep=False), keep=False, to=TensorProto.INT64), table(4), keep=False)
less = op("Less", x, weight(6), keep=False)
op("Where", op("Or", op("Not", less, keep=False), op("Xor", less, op("GreaterOrEqual", x, weight(1), keep=False), keep=False), keep=False), x, positive)
op("BatchNormalization", x, weight(4), weight(4), weight(4), table(rng.random(4) + 0.5, np.float32))
op("InstanceNormalization", x, weight(4), weight(4))
op("GroupNormalization", x, weight(4), weight(4), num_groups=2)
op("LayerNormalization", x, weight(6, 6), weight(6, 6), axis=2)
op("Conv", x, weight(6, 2, 3, 2), weight(6), group=2, strides=[2, 1], dilations=[1, 2], pads=[1, 0, 0, 2])
op("Conv", x, weight(5, 4, 3, 3), auto_pad="SAME_LOWER", strides=[2, 2])
op("ConvTranspose", x, weight(4, 3, 3, 2), weight(6), group=2, strides=[2, 3], pads=[1, 0, 0, 1], output_padding=[1, 0])
op("MaxPool", x, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1], ceil_mode=1)
op("AveragePool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
op("AveragePool", x, kernel_shape=[2, 3], pads=[1, 0, 0, 1], count_include_pad=1)
op("GlobalMaxPool", x)
for mode, more in (("nearest", {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}), ("linear", {}), ("linear", {"coordinate_transformation_mode": "align_corners"}), ("cubic", {})):
    op("Resize", x, "", table([1, 1, 2, 1.5], np.float32), mode=mode, **more)
op("Resize", x, "", "", table([2, 4, 3, 9]), mode="nearest")
op("DepthToSpace", x, blocksize=2)
op("DepthToSpace", x, blocksize=2, mode="CRD")
op("SpaceToDepth", x, blocksize=3)
for mode in ("constant", "edge", "reflect"):
    op("Pad", x, table([0, 0, 2, 1, 0, 1, 0, 3]), table(0.5, np.float32), mode=mode)
op("Slice", x, table([5, 0]), table([-9, 6]), table([2, 3]), table([-2, 3]))
op("Split", x, table([1, 3]), axis=1, n=2)
op("Tile", x, table([1, 2, 1, 3]))
op("Expand", op("Slice", x, table([0]), table([1]), table([1]), keep=False), table([2, 3, 6, 6]))
op("Transpose", op("Squeeze", op("Unsqueeze", x, table([1, 3]), keep=False), table([1]), keep=False), perm=[0, 3, 1, 4, 2])
op("Reshape", x, table([0, -1, 4]))
op("Concat", op("Transpose", x, keep=False, perm=[0, 1, 3, 2]), x, axis=1)
op("Trilu", x, table(1))
op("Gather", x, table([[3, 0], [1, 1]]), axis=1)
op("GatherND", x, table([[0, 1], [1, 3]]))
op("GatherElements", x, op("ArgMax", x, keep=False, axis=3), axis=3)
op("ScatterND", x, table([[0, 1], [0, 2]]), weight(2, 6, 6))
op("CumSum", x, table(2), exclusive=1, reverse=1)
for name in "L1 L2 LogSumExp Max Mean Min Prod Sum SumSquare".split():
    op("Reduce" + name, x, table([1, 3]))
op("ReduceLogSum", positive, table([2]), keepdims=0)
op("Softmax", x, axis=1)
op("LogSoftmax", x, axis=-1)
op("MatMul", x, weight(4, 6, 3))
op("MatMul", x, weight(6))
op("Einsum", x, weight(4, 6, 5), equation="bchw,cwo->boh")
op("OneHot", op("ArgMax", op("Flatten", x, keep=False), keep=False, axis=1, keepdims=0), table(144), table([0.25, 2], np.float32))
heads = [op("Mul", x, weight(6), keep=False) for _ in range(3)]
op("Attention", *heads, is_causal=1, softcap=2.0)
op("Attention", *heads, op("Less", x, table(0.5, np.float32), keep=False))
op("Attention", *heads, table(np.tri(6) - np.tri(6, k=-3), bool))  # a window of 3
op("RotaryEmbedding", x, table(np.cos(np.arange(18).reshape(6, 3)), np.float32), table(np.sin(np.arange(18).reshape(6, 3)), np.float32), table([[0, 2, 4, 1, 3, 5]] * 2), interleaved=1)
op("RMSNormalization", x, weight(6))
op("Swish", x, alpha=1.5) if onnx.defs.onnx_opset_version() >= 24 else None

if __name__ == "__main__":
    halves = [parts[:50], parts[50:]]  # a node has at most 64 inputs
    nodes += [helper.make_node("Concat", half, [f"half{i}"], axis=1) for i, half in enumerate(halves)]
    nodes.append(helper.make_node("Concat", ["half0", "half1"], ["logits"], axis=1))
    kinds = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", [2, 4, 6, 6]), ("logits", None))]
    graph = helper.make_graph(nodes, "forms", kinds[:1], kinds[1:], tables)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)
    onnx.save(model, DATA / "onnx_forms.onnx")
    data = rng.standard_normal((2, 4, 6, 6)).astype(np.float32)
    session = onnxruntime.InferenceSession(DATA / "onnx_forms.onnx")
    save_file({"input.x": data, "logits": session.run(None, {"x": data})[0]}, DATA / "onnx_forms.safetensors")
