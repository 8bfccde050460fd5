"""Runs a step's forward and backward again, in each precision that autocast could give them, and times the whole.

The operations of the forward pass are those that the program had, in their order, on its own parameters and data; autograd makes the
backward pass from them. In another precision autocast converts what it converts in a program, and attention takes the kernel that torch
chooses. Parameters and gradients of the program stay as they are.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from ._ops import Ref, Stand
from ._trace import Row, Trace

SECONDS = 12.0  # for all precisions together
RUNS, MOST_RUNS, ENOUGH = 12, 40, 3.0  # of each: so many, or more until these seconds are over; the first is untimed
STRANGE = 0.1  # of the program's operations in backward, that the replay may have more or less

# What autocast converts under names that lie above those of a tape: to 16 bits, to FP32.
_NARROW = {"convolution", "mv", "addmv"}
_WIDE = {"_log_softmax", "nll_loss_forward", "nll_loss2d_forward", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy"}
_WIDE_ON_GPU = {"native_group_norm", "_fused_rms_norm", "_softmax"}


def measure(torch: Any, trace: Trace, recorder: Any) -> None:
    """Fills trace.replay: by name of the precision the seconds of a replayed step, on a GPU also those in which it is launched."""
    tape, externals = recorder.tape, recorder.externals
    if not tape or not externals:
        trace.replay = {"why": recorder.why or "no operation was kept"}
        return
    gpu = next((t.device for t in externals if t.is_cuda), None)
    began = time.perf_counter()
    names = ["now", "bf16", "fp32", "fp16", "tf32", "fp8"] if gpu is not None else ["now", "bf16", "fp32"]
    if gpu is not None and torch.cuda.get_device_capability(gpu) < (8, 9):
        names.remove("fp8")
    mode, why = torch.get_float32_matmul_precision(), ""
    with _no_autocast(torch), torch.random.fork_rng([] if gpu is None else [gpu]):
        replays: Dict[str, Replay] = {}
        for turn in range(MOST_RUNS + 1):  # in turns, so that a clock that changes changes all of them
            taken = time.perf_counter() - began
            if taken > SECONDS or (turn > RUNS and taken > ENOUGH):
                break
            for name in names if turn == 0 else list(replays):
                if name != "now" and (turn == 0 and "now" not in replays or time.perf_counter() - began > SECONDS and turn < 2):
                    replays.pop(name, None)
                    continue
                if name != "now":
                    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest" if name == "fp32" else mode)
                try:
                    replay = replays.setdefault(name, Replay(torch, tape, externals, name))
                    if turn == 0:
                        replay.warm(recorder.backward_calls)
                    else:
                        replay.time(gpu)
                except Exception as error:  # an operation that cannot be repeated, or too little memory; the program goes on
                    replays.pop(name, None)
                    why = why or f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
                torch.set_float32_matmul_precision(mode)
        if "now" in replays:
            trace.replay = {name: replay.json() for name, replay in replays.items() if replay.runs}
        else:
            trace.replay = {"why": why}
        if gpu is not None:
            _time_products(torch, trace, began + SECONDS)


def _no_autocast(torch: Any) -> Any:
    import contextlib

    stack = contextlib.ExitStack()
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        stack.enter_context(torch.autocast(device, enabled=False))
    return stack


class Replay:
    """A step of the tape in one precision; "now" repeats it as it was."""

    def __init__(self, torch: Any, tape: List[Any], externals: List[Any], name: str) -> None:
        self.torch, self.tape, self.name = torch, tape, name
        self.low = {"bf16": torch.bfloat16, "fp8": torch.bfloat16, "fp16": torch.float16}.get(name)
        self.floats = (torch.float32, torch.bfloat16, torch.float16)
        self.device = "cuda" if any(t.is_cuda for t in externals) else "cpu"
        self.externals = [self._external(t) for t in externals]
        last: Dict[int, int] = {}
        for index, (_, args, kwargs, outs, _) in enumerate(tape):
            for ref in _refs((args, kwargs)) + [out for out in outs if out is not None]:
                last[ref] = index
        self.ends: List[List[int]] = [[] for _ in tape]
        for ref, index in last.items():
            if ref >= 0:
                self.ends[index].append(ref)
        self.runs: List[List[float]] = []  # seconds of each: launches, until all is done, of the device alone
        self._eight: Any = None

    def json(self) -> Dict[str, Any]:
        launch, whole, device = ([run[i] for run in self.runs] for i in range(3))
        found: Dict[str, Any] = {"seconds": min(device), "spread": sorted(whole)[len(whole) // 2] / min(whole) - 1, "runs": self.runs}
        return {**found, "launch_seconds": min(launch)} if self.device == "cuda" else found

    # A buffer may be written; parameters are only read, and have gradients of their own.
    def _external(self, t: Any) -> Any:
        leaf = t.is_leaf and t.requires_grad
        if t.dtype in self.floats[1:] and self.name != "now":
            value = t.detach().to(self.low or self.torch.float32)
        else:
            value = t.detach() if leaf else t.detach().clone()
        return value.requires_grad_() if leaf else value

    def warm(self, calls: int) -> None:
        """Runs once; a backward pass with other operations than the program's is none of its."""
        counter = _counter(self.torch)
        self.run(counter)
        if self.name == "now" and abs(counter.calls - calls) > STRANGE * calls + 1:
            raise RuntimeError(f"the backward pass has {counter.calls} operations, the program's {calls}")

    def time(self, gpu: Any) -> None:
        """Adds a run; on a GPU also one whose launches are ahead of the device."""
        torch = self.torch
        if gpu is not None:
            torch.cuda.synchronize(gpu)
        began = time.perf_counter()
        self.run()
        launched = time.perf_counter() - began
        if gpu is None:
            self.runs.append([launched, launched, launched])
            return
        torch.cuda.synchronize(gpu)
        whole = time.perf_counter() - began
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(int(2.5e9 * launched))  # cycles
        first.record()
        self.run()
        last.record()
        torch.cuda.synchronize(gpu)
        self.runs.append([launched, whole, first.elapsed_time(last) / 1e3])

    def run(self, counter: Any = None) -> None:
        torch = self.torch
        env: Dict[int, Any] = {-1 - i: t for i, t in enumerate(self.externals)}

        def bind(value: Any) -> Any:
            if isinstance(value, Ref):
                return env[value.id]
            if isinstance(value, list):
                return [bind(item) for item in value]
            return value

        with torch.enable_grad(), torch.autocast(self.device, dtype=self.low or torch.bfloat16, enabled=self.low is not None):
            for index, (func, args, kwargs, outs, grad) in enumerate(self.tape):
                bound, named = [bind(a) for a in args], {key: bind(value) for key, value in kwargs.items()}
                if not outs:
                    self._backward(func, bound, named, counter)
                else:
                    with torch.set_grad_enabled(grad):
                        result = self._call(func, bound, named)
                    for ref, value in zip(outs, result if isinstance(result, (tuple, list)) else [result]):
                        if ref is not None:
                            env[ref] = value
                    del result
                del bound, named
                for ref in self.ends[index]:
                    env.pop(ref, None)
            torch.clear_autocast_cache()
        for t in self.externals:
            t.grad = None

    def _backward(self, func: Any, args: Any, kwargs: Any, counter: Any) -> None:
        with self.torch.autocast(self.device, enabled=False):
            if counter is None:
                func(*args, **kwargs)
                return
            with counter:
                func(*args, **kwargs)

    def _call(self, func: Any, args: Any, kwargs: Any) -> Any:
        torch = self.torch
        if self.name == "now":
            return func(*args, **kwargs)
        name = str(func._schema.name).split("::")[-1]
        if "_scaled_dot_product" in name:
            return self._attention(func, args, kwargs)
        if name == "_to_copy" and isinstance(args[0], torch.Tensor) and args[0].dtype in self.floats and kwargs.get("dtype") in self.floats:
            device = kwargs.get("device")
            return args[0] if device is None or torch.device(device) == args[0].device else args[0].to(device)
        if self.name == "fp8" and name in ("mm", "addmm") and all(n % 16 == 0 for n in (*args[-2].shape, *args[-1].shape)):
            product = self._product_in_fp8(args[-2].to(self.low), args[-1].to(self.low))
            return product + args[0].to(self.low) if name == "addmm" else product
        if self.low is not None and name in _NARROW:
            args = [self._to(a, self.low) for a in args]
        elif self.low is not None and (name in _WIDE or (self.device == "cuda" and name in _WIDE_ON_GPU)):
            args = [self._to(a, torch.float32) for a in args]
        if name in ("_softmax", "_log_softmax"):
            args[2] = False
        try:
            return func(*args, **kwargs)
        except RuntimeError:  # of operands in different formats
            return func(*[self._to(a, torch.float32) for a in args], **kwargs)

    def _to(self, value: Any, dtype: Any) -> Any:
        return value.to(dtype) if isinstance(value, self.torch.Tensor) and value.dtype in self.floats else value

    def _product_in_fp8(self, a: Any, b: Any) -> Any:
        """All three products with operands that are quantized first, each with one scale."""
        torch = self.torch
        if self._eight is None:

            def quantize(x: Any) -> Any:
                return (x * (x.abs().amax().clamp(min=1e-12) / 448).reciprocal()).to(torch.float8_e4m3fn)

            def multiply(x: Any, y: Any) -> Any:
                one = torch.ones((), dtype=torch.float32, device=x.device)
                columns = y if y.stride(0) == 1 else y.t().contiguous().t()
                return torch._scaled_mm(x.contiguous(), columns, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

            class Eight(torch.autograd.Function):  # type: ignore[misc, name-defined]
                @staticmethod
                def forward(ctx: Any, x: Any, y: Any) -> Any:
                    low = quantize(x), quantize(y)
                    ctx.save_for_backward(*low)
                    return multiply(*low)

                @staticmethod
                def backward(ctx: Any, *gradients: Any) -> Any:
                    x, y = ctx.saved_tensors
                    low = quantize(gradients[0])
                    return multiply(low, y.t()), multiply(x.t(), low)

            self._eight = Eight
        return self._eight.apply(a, b)

    def _attention(self, func: Any, args: Any, kwargs: Any) -> Any:
        named = {**dict(zip([a.name for a in func._schema.arguments], args)), **kwargs}
        mask = named.get("attn_bias") if named.get("attn_bias") is not None else named.get("attn_mask")
        out = self.torch.nn.functional.scaled_dot_product_attention(
            named["query"], named["key"], named["value"], attn_mask=mask, dropout_p=named.get("dropout_p", 0.0),
            is_causal=named.get("is_causal", False), scale=named.get("scale"))
        return [out]


def _counter(torch: Any) -> Any:
    from importlib import import_module

    base: Any = import_module("torch.utils._python_dispatch").TorchDispatchMode

    class Counter(base):  # type: ignore[misc]
        calls = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.calls += 1
            return func(*args, **(kwargs or {}))

    return Counter()


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
