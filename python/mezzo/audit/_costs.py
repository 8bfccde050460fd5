"""Runs a step's operations again, in each precision that autocast could give them, and times the whole.

The operations of forward and backward are those that the program had, on its own parameters and data, so their order, their
caches and their number of launches are the program's. In another precision products read 16 bits, what autocast keeps in FP32
reads FP32, the conversions between them are run too, and attention takes the kernel that torch chooses.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from ._ops import Ref, Stand
from ._trace import Row, Trace

SECONDS = 12.0  # for all precisions together
RUNS = 12  # of each, the first untimed

_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "convolution", "convolution_backward"}
_WIDE = {"_log_softmax", "nll_loss_forward", "nll_loss2d_forward", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy"}
_WIDE_ON_GPU = {"native_layer_norm", "native_group_norm", "_fused_rms_norm", "_softmax", "exp", "log", "log1p", "pow", "rsqrt", "reciprocal", "sum",
                "cumsum", "prod", "softplus", "linalg_vector_norm", "binary_cross_entropy_with_logits"}


def measure(torch: Any, trace: Trace, tape: Optional[List[Any]], externals: List[Any]) -> None:
    """Fills trace.replay: by name of the precision the seconds of a replayed step, on a GPU also those in which it is launched."""
    if not tape or not externals:
        return
    gpu = next((t.device for t in externals if t.is_cuda), None)
    deadline = time.perf_counter() + SECONDS
    names = ["now", "bf16", "fp32", "fp16", "tf32", "fp8"] if gpu is not None else ["now", "bf16", "fp32"]
    if gpu is not None and torch.cuda.get_device_capability(gpu) < (8, 9):
        names.remove("fp8")
    mode = torch.get_float32_matmul_precision()
    with torch.no_grad(), _no_autocast(torch), torch.random.fork_rng([] if gpu is None else [gpu]):
        replays: Dict[str, Replay] = {}
        for turn in range(RUNS):  # in turns, so that a clock that changes changes all of them
            for name in names if turn == 0 else list(replays):
                if time.perf_counter() > deadline and (turn > 1 or name not in replays):
                    continue
                if name != "now":
                    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest" if name == "fp32" else mode)
                try:
                    replays.setdefault(name, Replay(torch, tape, externals, name))
                    _time_step(torch, replays[name], gpu, turn == 0)
                except Exception:  # an operation that cannot be repeated, or too little memory; the program goes on
                    replays.pop(name, None)
                torch.set_float32_matmul_precision(mode)
        if "now" in replays:
            trace.replay = {name: replay.json() for name, replay in replays.items() if replay.seconds < float("inf")}
            trace.replay["cast_seconds"] = _autograd_of_a_cast(torch, externals[0].device)
        if gpu is not None:
            _time_products(torch, trace, deadline)


def _no_autocast(torch: Any) -> Any:
    import contextlib

    stack = contextlib.ExitStack()
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        stack.enter_context(torch.autocast(device, enabled=False))
    return stack


def _time_step(torch: Any, replay: "Replay", gpu: Any, first_time: bool) -> None:
    if gpu is None or first_time:
        began = time.perf_counter()
        replay.run()
        replay.seconds = min(replay.seconds, time.perf_counter() - began) if not first_time else replay.seconds
        return
    torch.cuda.synchronize(gpu)
    began = time.perf_counter()
    replay.run()
    launched = time.perf_counter() - began
    torch.cuda.synchronize(gpu)
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(int(2.5e9 * launched))  # cycles, so that the launches are ahead of the device
    first.record()
    replay.run()
    last.record()
    torch.cuda.synchronize(gpu)
    replay.launched = min(replay.launched, launched)
    replay.seconds = min(replay.seconds, first.elapsed_time(last) / 1e3)


def _autograd_of_a_cast(torch: Any, device: Any) -> float:
    """Seconds that autograd adds to a conversion and its backward, half for each."""
    x, g = torch.zeros(8, device=device, requires_grad=True), torch.zeros(8, device=device, dtype=torch.bfloat16)

    def with_autograd() -> None:
        with torch.enable_grad():
            torch.autograd.grad(x.to(torch.bfloat16), x, g)

    def without() -> None:
        x.detach().to(torch.bfloat16), g.to(torch.float32)

    times = []
    for call in (with_autograd, without):
        best = float("inf")
        for _ in range(50):
            began = time.perf_counter()
            call()
            best = min(best, time.perf_counter() - began)
        times.append(best)
    return max(0.0, times[0] - times[1]) / 2


class Replay:
    """A step of the tape in one precision; "now" repeats it as it was."""

    def __init__(self, torch: Any, tape: List[Any], externals: List[Any], name: str) -> None:
        self.torch, self.tape, self.name = torch, tape, name
        self.low = {"bf16": torch.bfloat16, "fp8": torch.bfloat16, "fp16": torch.float16}.get(name, torch.float32)
        self.floats = (torch.float32, torch.bfloat16, torch.float16)
        self.on_gpu = any(t.is_cuda for t in externals)
        self.parameters = {t.untyped_storage().data_ptr() for t in externals if t.is_leaf and t.requires_grad}
        self.externals = [self._external(t) for t in externals]
        self.last: Dict[int, int] = {}
        for index, (_, args, kwargs, outs, _, _) in enumerate(tape):
            for ref in _refs((args, kwargs)) + [out for out in outs if out is not None]:
                self.last[ref] = index
        self.ends: Dict[int, List[int]] = {}
        for ref, index in self.last.items():
            self.ends.setdefault(index, []).append(ref)
        self.casts = 0
        self.seconds = self.launched = float("inf")

    def json(self) -> Dict[str, Any]:
        return {"seconds": self.seconds, "casts": self.casts, **({"launch_seconds": self.launched} if self.on_gpu else {})}

    # A buffer may be written; parameters are only read.
    def _external(self, t: Any) -> Any:
        if t.dtype in self.floats[1:] and self.name != "now":
            return t.detach().to(self.low)
        return t.detach() if t.is_leaf and t.requires_grad else t.detach().clone()

    def run(self) -> None:
        self.env: Dict[int, Any] = {-1 - i: t for i, t in enumerate(self.externals)}
        self.copies: Dict[int, Any] = {}  # of a storage in 16 bits
        self.graphs: Dict[int, Any] = {}  # attention's, by its result's storage
        self.casts = 0
        for index, (func, args, kwargs, outs, phase, dtypes) in enumerate(self.tape):
            result = self._call(func, self._bind(args), self._bind(kwargs), len(outs), phase)
            found = list(result) if isinstance(result, (tuple, list)) else [result]
            for ref, value, dtype in zip(outs, found, dtypes):
                if ref is None or not isinstance(value, self.torch.Tensor):
                    continue
                if self.last[ref] == index and phase == "backward" and value.dtype in self.floats and value.dtype != dtype and self.name != "now":
                    self._to(value, self.torch.float32)  # a parameter's gradient, back in the parameter's format
                self.env[ref] = value
            del result, found
            for ref in self.ends.get(index, ()):
                if ref >= 0:
                    self.env.pop(ref, None)
        self.env, self.copies, self.graphs = {}, {}, {}

    def _bind(self, value: Any) -> Any:
        if isinstance(value, Ref):
            return self.env[value.id]
        if isinstance(value, list):
            return [self._bind(item) for item in value]
        if isinstance(value, dict):
            return {key: self._bind(item) for key, item in value.items()}
        return value

    def _call(self, func: Any, args: Any, kwargs: Any, n: int, phase: str) -> Any:
        torch, name = self.torch, str(func._schema.name).split("::")[-1]
        if "_scaled_dot_product" in name:
            return self._attention(func, name, args, kwargs, n)
        if self.name == "now":
            return func(*args, **kwargs)
        if name == "_to_copy" and isinstance(args[0], torch.Tensor) and args[0].dtype in self.floats and kwargs.get("dtype") in self.floats:
            device = kwargs.get("device")
            return args[0] if device is None or torch.device(device) == args[0].device else args[0].to(device)
        if name.rstrip("_") in _PRODUCTS:
            args = [self._to(a, self.low, phase) for a in args]
            if self.name == "fp8" and name in ("mm", "addmm"):
                return self._fp8(args[-2], args[-1], func, args)
        elif phase == "forward" and (name in _WIDE or (self.on_gpu and name in _WIDE_ON_GPU)):
            args = [self._to(a, torch.float32) for a in args]
        elif phase == "backward" and len(args) > 1 and "backward" in name:
            args = self._match(args)
        if name in ("_softmax", "_log_softmax"):
            args[2] = False
        if name in ("_softmax_backward_data", "_log_softmax_backward_data"):
            args[3] = args[1].dtype
        try:
            return func(*args, **kwargs)
        except RuntimeError:  # of operands in different formats
            return func(*[self._to(a, torch.float32) for a in args], **kwargs)

    # Autograd hands a gradient over in the format of what it is the gradient of.
    def _match(self, args: List[Any]) -> List[Any]:
        kept = next((a for a in args[1:] if isinstance(a, self.torch.Tensor) and a.dtype in self.floats), None)
        return args if kept is None else [self._to(args[0], kept.dtype)] + args[1:]

    # Autocast converts a parameter once a step, and an activation for each product; what backward reads is converted already.
    def _to(self, value: Any, dtype: Any, phase: str = "") -> Any:
        if not isinstance(value, self.torch.Tensor) or value.dtype not in self.floats or value.dtype == dtype:
            return value
        place = value.untyped_storage().data_ptr()
        known = self.copies.get(place) if phase == "backward" or place in self.parameters else None
        if known is not None and known[0].numel() == value.numel() == known[1].numel() and known[1].dtype == dtype:
            return known[1].as_strided(value.shape, value.stride())
        self.casts += 1
        copy = value.to(dtype)
        if phase and copy.stride() == value.stride():
            self.copies[place] = (value, copy)
        return copy

    def _fp8(self, a: Any, b: Any, func: Any, args: Any) -> Any:
        """Both operands quantized first, each with one scale; as in 16 bits where the shape is off FP8's grid."""
        torch = self.torch
        if a.shape[1] % 16 or b.shape[1] % 16 or a.shape[0] % 16:
            return func(*args)
        one = torch.ones((), dtype=torch.float32, device=a.device)
        low = [(x * (x.abs().amax().clamp(min=1e-12) / 448).reciprocal()).to(torch.float8_e4m3fn) for x in (a, b)]
        b_columns = low[1] if low[1].stride(0) == 1 else low[1].t().contiguous().t()
        product = torch._scaled_mm(low[0].contiguous(), b_columns, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
        return product + args[0] if len(args) > 2 and isinstance(args[0], torch.Tensor) and func._schema.name.endswith("addmm") else product

    def _attention(self, func: Any, name: str, args: Any, kwargs: Any, n: int) -> Any:
        torch, arguments = self.torch, [a.name for a in func._schema.arguments]
        named = {**dict(zip(arguments, args)), **kwargs}
        if "backward" in name:
            graph = self.graphs.pop(named["out"].untyped_storage().data_ptr())
            gradient = next(named[key] for key in ("grad_out", "grad_out_") if key in named)
            return torch.autograd.grad(graph[0], graph[1], self._to(gradient, graph[0].dtype))

        def low(t: Any) -> Any:
            return t if self.name == "now" else self._to(t, self.low)

        with torch.enable_grad():
            qkv = [low(named[key]).detach().requires_grad_() for key in ("query", "key", "value")]
            mask = named.get("attn_bias") if named.get("attn_bias") is not None else named.get("attn_mask")
            out = torch.nn.functional.scaled_dot_product_attention(
                *qkv, attn_mask=mask if mask is None else low(mask), dropout_p=named.get("dropout_p", 0.0), is_causal=named.get("is_causal", False),
                scale=named.get("scale"))
        self.graphs[out.untyped_storage().data_ptr()] = (out, qkv)
        return [out.detach()] + [out.new_zeros(1)] * (n - 1)


def _refs(value: Any) -> List[int]:
    if isinstance(value, Ref):
        return [value.id]
    if isinstance(value, (list, tuple)):
        return [ref for item in value for ref in _refs(item)]
    return _refs(list(value.values())) if isinstance(value, dict) else []


# --- single products -------------------------------------------------------------------------------------------------
def _time_products(torch: Any, trace: Trace, deadline: float) -> None:
    """On a GPU, events around a recorded call hold the recorder's own time: products are timed again."""
    for row in list(trace.rows.values()):
        if time.perf_counter() > deadline:
            return
        if row.timed and row.call is not None and row.op in ("aten.mm", "aten.addmm", "aten.bmm", "aten.convolution"):
            try:
                row.seconds = _time_call(torch, _bind(torch, row))
            except Exception:  # an operation that cannot be repeated keeps its time
                continue


def _bind(torch: Any, row: Row) -> Callable[[], Any]:
    func, args, kwargs = row.call

    def make(value: Any) -> Any:
        if isinstance(value, Stand):
            shape, stride, kind, device = value
            return torch.empty_strided(shape, stride, dtype=kind, device=device).normal_()
        return [make(item) for item in value] if isinstance(value, list) else value

    bound: Tuple[List[Any], Dict[str, Any]] = [make(a) for a in args], {key: make(value) for key, value in kwargs.items()}
    return lambda: func(*bound[0], **bound[1])


def _time_call(torch: Any, call: Callable[[], Any]) -> float:
    times = []
    call()
    for _ in range(3):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        for _ in range(10):
            call()
        last.record()
        torch.cuda.synchronize()
        times.append(first.elapsed_time(last) / 1e4)
    return float(min(times))
