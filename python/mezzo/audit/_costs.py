"""Times the operations that were seen, with numbers of their own, in each precision that they could have."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Optional

from ._ops import Stand
from ._trace import Row, Trace

SECONDS = 10.0  # for all operations together
SHARE = 0.98  # of the time of the step that is looked at


def measure(torch: Any, trace: Trace) -> None:
    """Fills `costs` of the rows that take most of the step: seconds of a call by name of the format."""
    rows = [row for row in trace.rows.values() if row.timed and row.phase in ("forward", "backward") and row.call is not None]
    rows.sort(key=lambda row: -row.seconds * row.count)
    total = sum(row.seconds * row.count for row in rows)
    seen, deadline = 0.0, time.perf_counter() + SECONDS
    known: Dict[str, Dict[str, float]] = {}
    generator: Dict[str, Any] = {}
    with torch.no_grad(), _no_autocast(torch):
        for row in rows:
            if seen > SHARE * total or time.perf_counter() > deadline:
                break
            seen += row.seconds * row.count
            key = row.op + str(row.inputs) + row.output
            if key not in known:
                try:
                    known[key] = _row(torch, row, generator)
                except Exception:  # an operation that cannot be repeated; the program goes on
                    known[key] = {}
            row.costs = dict(known[key])
            if "as_is" in row.costs:  # on a GPU: events around a recorded call hold the recorder's own time
                row.seconds = row.costs.pop("as_is")


def _no_autocast(torch: Any) -> Any:
    import contextlib

    stack = contextlib.ExitStack()
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        stack.enter_context(torch.autocast(device, enabled=False))
    return stack


def _row(torch: Any, row: Row, generators: Dict[str, Any]) -> Dict[str, float]:
    formats = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    costs: Dict[str, float] = {}
    device = _device(row.call[1])
    if device is None or not any(kind in formats for kind, _ in row.inputs):
        return costs
    for name, dtype in formats.items():
        if name == "fp16" and device.type == "cpu" and not any(kind == "fp16" for kind, _ in row.inputs):
            continue  # CPUs without its arithmetic take up to a hundred times as long
        try:
            costs[name] = _time(torch, _bind(torch, row.call, dtype, generators), device)
        except Exception:  # an operation that this device or format does not have has no cost
            continue
    if row.op == "aten._to_copy":
        costs = {}
    if device.type == "cuda":
        costs["as_is"] = _time(torch, _bind(torch, row.call, None, generators), device)
    if device.type == "cuda" and "fp32" in costs:
        before = torch.get_float32_matmul_precision()
        for name, precision in (("fp32", "highest"), ("tf32", "high")):
            torch.set_float32_matmul_precision(precision)
            costs[name] = _time(torch, _bind(torch, row.call, torch.float32, generators), device)
        torch.set_float32_matmul_precision(before)
    if row.op in ("aten.mm", "aten.addmm") and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9):
        costs.update(_fp8(torch, row, device))
    if row.phase == "forward" and row.op in _PRODUCTS and row.inputs[-1][0] == "fp32":
        costs["cast"] = _time(torch, _cast(torch, row, device), device)
    return costs


# Autocast converts a product's weight in each step, and backward its gradient.
_PRODUCTS = {"aten.mm": 1, "aten.addmm": 2, "aten.bmm": 1, "aten.convolution": 1}


def _cast(torch: Any, row: Row, device: Any) -> Callable[[], Any]:
    shape = row.inputs[min(_PRODUCTS[row.op], len(row.inputs) - 1)][1]
    weight = torch.zeros(shape, dtype=torch.float32, device=device)
    return lambda: weight.to(torch.bfloat16)


def _device(args: List[Any]) -> Any:
    for a in args:
        if isinstance(a, Stand):
            return a[3]
        if isinstance(a, list):
            found = _device(a)
            if found is not None:
                return found
    return None


def _bind(torch: Any, call: Any, dtype: Optional[Any], generators: Dict[str, Any]) -> Callable[[], Any]:
    func, args, kwargs = call
    floats = (torch.float32, torch.bfloat16, torch.float16)

    def make(value: Any) -> Any:
        if isinstance(value, Stand):
            shape, stride, kind, device = value
            tensor = torch.empty_strided(shape, stride, dtype=(dtype or kind) if kind in floats else kind, device=device)
            if tensor.is_floating_point():
                generator = generators.setdefault(str(device), torch.Generator(device=device))
                return tensor.normal_(generator=generator)
            return tensor.zero_()
        if isinstance(value, list):
            return [make(item) for item in value]
        return dtype if dtype and isinstance(value, torch.dtype) and value in floats else value

    bound, named = [make(a) for a in args], {key: make(value) for key, value in kwargs.items()}
    return lambda: func(*bound, **named)


def _time(torch: Any, call: Callable[[], Any], device: Any) -> float:
    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    call()
    wait()
    if device.type == "cuda":  # several in a queue, as a step has them
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        times = []
        for _ in range(5):
            first.record()
            for _ in range(10):
                call()
            last.record()
            wait()
            times.append(first.elapsed_time(last) / 1e4)
        return float(min(times))
    best, spent = float("inf"), 0.0
    for _ in range(30):
        began = time.perf_counter()
        call()
        wait()
        best = min(best, time.perf_counter() - began)
        spent += time.perf_counter() - began
        if spent > 0.05:
            break
    return best


def _fp8(torch: Any, row: Row, device: Any) -> Dict[str, float]:
    """The product with both operands quantized first, each with one scale; {} where its shape is off FP8's grid of 16."""
    (m, k), (_, n) = (shape for _, shape in row.inputs[-2:])
    if k % 16 or n % 16:
        return {}
    a = torch.zeros((m, k), dtype=torch.bfloat16, device=device)
    b = torch.zeros((n, k), dtype=torch.bfloat16, device=device)
    one = torch.ones((), dtype=torch.float32, device=device)

    def call() -> Any:
        low = [(x * (x.abs().amax().clamp(min=1e-12) / 448).reciprocal()).to(torch.float8_e4m3fn) for x in (a, b)]
        return torch._scaled_mm(low[0], low[1].t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    try:
        return {"fp8": _time(torch, call, device)}
    except Exception:  # a GPU or a torch without this product
        return {}
