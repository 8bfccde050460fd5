"""Records every operation that torch dispatches, below autograd and autocast, with the line that it belongs to."""

from __future__ import annotations

import os
import time
import weakref
from typing import Any, Dict, List, Optional, Tuple

from ._trace import MOST_ROWS, Row, Trace

MOST_SHAPES, MOST_DIMS = 12, 8
MOST_TAPE = 20000  # operations of a step that are kept to be run again
MOST_IDLE = 100000  # operations without a backward pass: a process that does not train is not recorded for ever
_REDUCED = {0: "none", 1: "mean", 2: "sum"}


class _Memory:
    """What is known of tensors that are alive, by identity."""

    def __init__(self) -> None:
        self._kept: Dict[int, Tuple[Any, Any]] = {}

    def set(self, tensor: Any, value: Any) -> None:
        if len(self._kept) > 65536:
            self._kept = {key: kept for key, kept in self._kept.items() if kept[0]() is not None}
        self._kept[id(tensor)] = (weakref.ref(tensor), value)

    def get(self, tensor: Any) -> Any:
        kept = self._kept.get(id(tensor))
        return kept[1] if kept is not None and kept[0]() is tensor else None


class Recorder:
    """Turns dispatched calls into rows of the trace. `mode` is what goes onto torch's stack of modes."""

    def __init__(self, torch: Any, trace: Trace) -> None:
        self.torch, self.trace = torch, trace
        self.off = False
        self.phases = ["forward"]
        self.regions: List[int] = []
        self.gradients: Dict[int, int] = {}  # data pointers
        self.losses = _Memory()  # of a scalar on the way to a loss: factor, reduction, weight
        self._casts, self._makers = _Memory(), _Memory()
        self._forward: Dict[int, Row] = {}  # autograd's sequence numbers
        self._pending: List[Tuple[Row, Any, Any]] = []  # CUDA's events
        self._facts: Dict[Any, Tuple[bool, bool, str]] = {}
        self._process = os.getpid()
        self.idle = 0
        self.taping = False
        self.tape: Optional[List[Any]] = []  # of a step; None: it cannot be run again, and why
        self.why = ""
        self.backward_calls = 0
        self.externals: List[Any] = []  # what the step reads and did not make
        self._made: Dict[Any, int] = {}  # the last tensor that had an identity
        self._next = 0
        self._names = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.float64: "fp64"}
        self.mode = self._make_mode()

    def _make_mode(self) -> Any:
        from importlib import import_module

        base: Any = import_module("torch.utils._python_dispatch").TorchDispatchMode
        recorder = self

        class Follow(base):  # type: ignore[misc]
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                return recorder._call(func, types, args, kwargs or {})

        return Follow()

    # --- a call ------------------------------------------------------------------------------------------------------
    def _call(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if self.off or os.getpid() != self._process or any(t.__name__ in ("FakeTensor", "FunctionalTensor") for t in types):
            return func(*args, **kwargs)
        self.idle += 1
        if self.idle > MOST_IDLE:
            return func(*args, **kwargs)
        tensors = _tensors(self.torch, args)
        on_gpu = bool(tensors) and tensors[0].is_cuda
        first = self._event() if on_gpu else None
        began = time.perf_counter()
        out = func(*args, **kwargs)
        seconds = time.perf_counter() - began
        last = self._event() if on_gpu else None
        self.off = True  # what the recorder itself asks of tensors is not recorded
        try:
            row = self._record(func, args, kwargs, tensors, out)
            if self.taping and self.tape is not None and self.phases[-1] in ("forward", "backward", "scaler"):
                self._keep(func, args, kwargs, out)
            if row is not None and self.trace.step > 0 and not on_gpu:
                row.add_time(seconds)
            elif row is not None and self.trace.step > 0 and len(self._pending) < 200000:
                self._pending.append((row, first, last))
        except Exception:  # of a tensor that is like no other; the program goes on
            self.trace.dropped += 1
            if self.taping:
                self.keep_no_more("a tensor is like no other")
        finally:
            self.off = False
        return out

    # --- a step, to be run again -------------------------------------------------------------------------------------
    def _keep(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Appends an operation of the forward pass; autograd makes the backward pass again, so that is only counted."""
        name = str(func._schema.name)
        if name == "aten::_local_scalar_dense" or name.startswith("profiler::"):
            return
        if not name.startswith("aten::"):
            self.keep_no_more(f"{name} is no operation of torch's own")
        elif self.phases[-1] == "backward" or self.torch._C._current_autograd_node() is not None:
            self.backward_calls += 1
        else:
            given = [self._refer(a) for a in args], {key: self._refer(a) for key, a in kwargs.items()}
            outs: List[Optional[int]] = []
            for value in list(out) if isinstance(out, (tuple, list)) else [out]:
                outs.append(None)
                if isinstance(value, self.torch.Tensor):
                    outs[-1] = self._next
                    if name != "aten::detach":  # autograd's copies of what it saves are not read by the forward pass
                        self._made[self._identity(value)] = self._next
                    self._next += 1
            self._append(func, *given, outs, self.torch.is_grad_enabled())

    def keep_backward(self, original: Any, tensors: Any, args: Any, kwargs: Any) -> None:
        """Appends a call of torch.autograd.backward: an operation without results."""
        if self.taping and self.tape is not None:
            self._append(original, [self._refer(tensors), *[self._refer(a) for a in args]], {key: self._refer(a) for key, a in kwargs.items()}, [], True)

    def _append(self, *entry: Any) -> None:
        if self.tape is not None:
            self.tape.append(entry)
            if len(self.tape) > MOST_TAPE:
                self.keep_no_more(f"the step has more than {MOST_TAPE} operations")

    def keep_no_more(self, why: str) -> None:
        self.tape, self.why = None, self.why or why

    # A view that autograd returns is another object over the same memory than the one that was recorded.
    def _identity(self, t: Any) -> Any:
        return t.untyped_storage().data_ptr(), t.storage_offset(), tuple(t.shape), tuple(t.stride()), t.dtype

    def _refer(self, value: Any) -> Any:
        if isinstance(value, self.torch.Tensor):
            identity = self._identity(value)
            if identity not in self._made:
                self.externals.append(value.detach() if not value.is_leaf else value)
                self._made[identity] = -len(self.externals)
            return Ref(self._made[identity])
        return [self._refer(item) for item in value] if isinstance(value, (list, tuple)) else value

    def _event(self) -> Any:
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def settle(self) -> None:
        """Reads the times of a GPU's calls, once it has run them."""
        if self._pending:
            self.torch.cuda.synchronize()
        for row, first, last in self._pending:
            row.add_time(first.elapsed_time(last) / 1e3)
        self._pending = []

    def dtype_name(self, dtype: Any) -> str:
        return self._names.get(dtype) or str(dtype).replace("torch.", "").replace("float8", "fp8")

    def _shape(self, value: Any) -> List[Any]:
        if isinstance(value, (list, tuple)):
            inner = [t for t in value if isinstance(t, self.torch.Tensor)]
            return [self.dtype_name(inner[0].dtype), [len(inner), sum(t.numel() for t in inner)]]
        return [self.dtype_name(value.dtype), [int(n) for n in list(value.shape)[:MOST_DIMS]]]

    # What never changes of an operation: whether it is a view, whether it writes into its first argument, its name.
    def _about(self, func: Any) -> Tuple[bool, bool, str]:
        facts = self._facts.get(func)
        if facts is None:
            schema = func._schema
            alias = schema.returns[0].alias_info if schema.returns else None
            written = bool(schema.arguments) and schema.arguments[0].alias_info is not None and schema.arguments[0].alias_info.is_write
            view = alias is not None and not alias.is_write and not written
            name = str(schema.name).replace("::", ".")
            overload = schema.overload_name
            facts = (view, written, name + (".out" if overload == "out" else ""))
            self._facts[func] = facts
        return facts

    def _record(self, func: Any, args: Any, kwargs: Any, tensors: List[Any], out: Any) -> Optional[Row]:
        torch = self.torch
        view, written, name = self._about(func)
        result = out[0] if isinstance(out, (list, tuple)) and out else out
        is_tensor = isinstance(result, torch.Tensor)
        if view or name in ("aten._unsafe_view", "aten.lift_fresh", "aten.detach", "aten.empty", "aten.is_same_size"):
            if is_tensor and tensors:
                self._makers.set(result, self._maker(tensors[0]))
                if self._casts.get(tensors[0]) is not None:
                    self._casts.set(result, self._casts.get(tensors[0]))
            return None
        if not tensors:
            return None
        phase = self.phases[-1]
        node = torch._C._current_autograd_node()
        forward: Optional[Row] = None
        if node is not None:
            phase = "backward" if phase == "forward" else phase
            forward = self._forward.get(node._sequence_nr())
        if forward is not None:
            at, region = (forward.at, forward.user), forward.region
        else:
            at, region = self.trace.places.here(), self.regions[-1] if self.regions else -1
        scalar = next((float(a) for a in args if isinstance(a, (int, float)) and not isinstance(a, bool)), None) if written else None
        inputs = [self._shape(a) for a in list(args) + list(kwargs.values()) if self._is_input(a)][:MOST_SHAPES]
        if phase not in ("forward", "backward"):  # there, how many and of which dtype is enough
            inputs, scalar = [[dtype, []] for dtype, _ in inputs], None
        row = self._row(name, phase, region, at, inputs, result if is_tensor else None, scalar)
        if row is None:
            return None
        row.count += 1
        if row.call is None and row.phase in ("forward", "backward"):
            row.call = _template(torch, func, args, kwargs)
        if phase == "forward":
            if torch.is_grad_enabled():
                self._forward[torch.autograd._get_sequence_nr() - 1] = row
            self._losses(name, args, tensors, out)
        if is_tensor:
            self._makers.set(result, name)
            if name == "aten._to_copy" and tensors and result.is_floating_point():
                self._cast(row, tensors[0], result, phase)
        if phase != "backward" and self.gradients:
            self._gradient_write(name, written, tensors)
        return row

    def _is_input(self, value: Any) -> bool:
        if isinstance(value, (list, tuple)):
            return any(isinstance(t, self.torch.Tensor) for t in value)
        return isinstance(value, self.torch.Tensor)

    def _row(self, name: str, phase: str, region: int, at: Tuple[int, int], inputs: Any, result: Any, scalar: Optional[float]) -> Optional[Row]:
        output = self.dtype_name(result.dtype) if result is not None else ""
        key = (name, phase, region, at, str(inputs), output, scalar)
        row = self.trace.rows.get(key)
        if row is None:
            if len(self.trace.rows) >= MOST_ROWS:
                self.trace.dropped += 1
                return None
            row = self.trace.rows[key] = Row(name, phase, region, at, inputs, output, scalar)
        return row

    def _maker(self, tensor: Any) -> str:
        return self._makers.get(tensor) or ("parameter" if tensor.requires_grad else "input")

    # --- what is followed from tensor to tensor ----------------------------------------------------------------------
    def _cast(self, row: Row, source: Any, result: Any, phase: str) -> None:
        before = self._casts.get(source)
        if before is not None and before == result.dtype and phase == "forward":
            row.returned += 1
        if source.is_floating_point() and source.dtype != result.dtype:
            self._casts.set(result, source.dtype)

    # A scalar that becomes a loss: what it was divided by since its reduction, and how much the mean counted.
    def _losses(self, name: str, args: Any, tensors: List[Any], out: Any) -> None:
        result = out[0] if isinstance(out, (list, tuple)) else out
        if not isinstance(result, self.torch.Tensor) or result.dim() != 0 or not tensors or not result.is_floating_point():
            return
        short = name.replace("aten.", "").rstrip("_")
        known = self.losses.get(tensors[0])
        if short in ("div", "mul") and len(args) > 1:
            factor, reduction, weight = known or (1.0, "", None)
            by = args[1]
            if isinstance(by, self.torch.Tensor):
                self.losses.set(result, (None, reduction, weight))
            elif factor is not None and by:
                self.losses.set(result, (factor / by if short == "div" else factor * by, reduction, weight))
        elif short in ("nll_loss_forward", "nll_loss2d_forward"):
            self.losses.set(result, (1.0, _REDUCED.get(args[3], ""), float(out[1].detach())))
        elif short in ("mse_loss", "binary_cross_entropy", "smooth_l1_loss", "huber_loss"):
            kind = next((a for a in args[2:] if isinstance(a, int) and not isinstance(a, bool)), 1)
            self.losses.set(result, (1.0, _REDUCED.get(kind, ""), None))
        elif short in ("mean", "sum") and tensors[0].dim() > 0:
            self.losses.set(result, (1.0, short, None))
        elif known is not None:  # a sum with another term, a cast, a clone
            self.losses.set(result, known)

    def _gradient_write(self, name: str, written: bool, tensors: List[Any]) -> None:
        if self.phases[-1] != "forward" or not tensors or tensors[0].numel() == 0:
            return
        short = name.replace("aten.", "").replace("_foreach_", "").rstrip("_")
        if not written and short not in ("nan_to_num", "where", "clamp", "masked_fill"):
            if short in ("linalg_vector_norm", "norm") and tensors[0].data_ptr() in self.gradients:
                self._write_event("norm")
            return
        touched = tensors[1] if short == "where" and len(tensors) > 1 else tensors[0]
        if touched.data_ptr() in self.gradients and short != "zero":
            self._write_event(short)

    def _write_event(self, op: str) -> None:
        _, user = self.trace.places.here()
        last = self.trace.events[-1] if self.trace.events else {}
        if last.get("kind") == "write" and last.get("op") == op and last.get("at") == user:
            last["count"] += 1
        else:
            self.trace.event("write", op=op, count=1)

    def note_gradients(self, parameters: List[Any]) -> None:
        self.gradients = {}
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is not None and type(gradient).__name__ in ("Tensor", "Parameter") and not gradient.is_sparse:
                self.gradients[gradient.data_ptr()] = 1

    def end_step(self) -> None:
        self._forward.clear()


def _tensors(torch: Any, args: Any) -> List[Any]:
    found: List[Any] = []
    for a in args:
        if isinstance(a, torch.Tensor):
            found.append(a)
        elif isinstance(a, (list, tuple)):
            found.extend(t for t in a if isinstance(t, torch.Tensor))
    return found


class Ref:
    """In a tape: the tensor of an operation before, or with a negative number an external one."""

    __slots__ = ("id",)

    def __init__(self, number: int) -> None:
        self.id = number


class Stand(tuple):  # type: ignore[type-arg]
    """In a template: a tensor's shape, strides, dtype and device."""


def _template(torch: Any, func: Any, args: Any, kwargs: Any) -> Any:
    def stand(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return Stand((tuple(value.shape), tuple(value.stride()) if not value.is_sparse else (), value.dtype, value.device))
        if isinstance(value, (list, tuple)):
            return [stand(item) for item in value]
        return value

    return func, [stand(a) for a in args], {key: stand(value) for key, value in kwargs.items()}
