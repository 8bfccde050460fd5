"""Follows a program from the import of torch to the end of its first steps.

Settings come from the environment: MEZZO_AUDIT_FOLDER (where the trace of each rank goes), MEZZO_AUDIT_STEPS,
MEZZO_AUDIT_STOP (the program ends after the followed steps), MEZZO_AUDIT_COSTS (0: operations are not timed in other
formats).
"""

from __future__ import annotations

import atexit
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import platform
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Sequence

from ._ops import Recorder
from ._patches import Patches
from ._trace import Trace

OLDEST = (2, 4)
CLOCKED, MOST_CLOCKED, ENOUGH = 5, 20, 2.0  # steps timed after the followed ones with a clock alone: so many, or more until these seconds are over
MOST_SAMPLED = 1 << 20  # elements of a parameter that are compared before and after an update

_follower: Optional["Follower"] = None


# --- waiting for torch -----------------------------------------------------------------------------------------------
class _Finder(importlib.abc.MetaPathFinder):
    """Lets the other finders find torch, and calls `begin` once it is imported."""

    def find_spec(self, name: str, path: Optional[Sequence[str]], target: Any = None) -> Any:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            begin(module)

        setattr(spec.loader, "exec_module", exec_module)
        return spec


def wait_for_torch() -> None:
    """Called before the program's first line."""
    atexit.register(_at_exit)
    if "torch" in sys.modules:
        begin(sys.modules["torch"])
    else:
        sys.meta_path.insert(0, _Finder())


def _path(name: str) -> str:
    return os.path.join(os.environ["MEZZO_AUDIT_FOLDER"], name)


def refuse(why: str) -> None:
    """Leaves a line that tells why there is no trace."""
    with open(_path(f"refused-{os.getpid()}.json"), "w", encoding="utf-8") as file:
        json.dump({"mezzo_audit": 1, "refused": why}, file)


def begin(torch: Any) -> None:
    """Starts to follow, once torch is imported."""
    global _follower
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2] if part.isdigit())
    if version < OLDEST:
        refuse(f"torch {torch.__version__} is too old: the audit needs {OLDEST[0]}.{OLDEST[1]} or later")
        return
    _follower = Follower(torch, int(os.environ.get("MEZZO_AUDIT_STEPS", "3")), os.environ.get("MEZZO_AUDIT_STOP") == "1")


def _at_exit() -> None:
    if _follower is not None:
        _follower.finish(at_exit=True)
    elif importlib.util.find_spec("torch") is None:
        refuse(f"{sys.executable} has no torch")


# Lines of the program that set one of these: they go through properties of modules, which no hook sees.
_SETTINGS = ("cudnn.benchmark", "cudnn.deterministic", "use_deterministic_algorithms")


def _settings_at(trace: Trace) -> Dict[str, int]:
    found: Dict[str, int] = {}
    for file in trace.places.user_files():
        try:
            with open(file, encoding="utf-8", errors="replace") as lines:
                for number, line in enumerate(lines, 1):
                    for word in _SETTINGS:
                        if word in line and word not in found and not line.lstrip().startswith("#"):
                            found[word] = trace.places.add(file, number)
        except OSError:
            continue
    return found


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        return names[0]
    except (OSError, IndexError):
        return platform.machine()


# --- following -------------------------------------------------------------------------------------------------------
class Follower:
    """The hooks in torch, from `begin` until the followed steps are over."""

    def __init__(self, torch: Any, steps: int, stop: bool) -> None:
        self.torch, self.steps, self.stop = torch, steps, stop
        self.process = os.getpid()
        self.trace = Trace([os.path.dirname(torch.__file__), os.path.dirname(os.path.abspath(__file__))])
        self.recorder = Recorder(torch, self.trace)
        self.patches = Patches()
        self.handles: List[Any] = []
        self.optimizers: List[Any] = []
        self.scalers: List[Any] = []
        self.in_step = self.in_scaler = 0
        self.closing = self.finished = self.written = self.stepped = False
        self.before: List[Any] = []  # parameters in 16 bits and what they were before an update
        self.unchanged = self.compared = 0
        self.times: List[float] = []
        self.clock: List[float] = []
        self.launched: List[float] = []  # of a step on a GPU: when everything was launched
        self.clock_handle: Any = None
        self.began = time.perf_counter()
        self._install()
        self.recorder.taping = steps == 1
        self.recorder.mode.__enter__()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._leave)

    # --- hooks -------------------------------------------------------------------------------------------------------
    def _install(self) -> None:
        torch, patches = self.torch, self.patches
        from importlib import import_module

        scaler = import_module("torch.amp.grad_scaler").GradScaler
        autocast = import_module("torch.amp.autocast_mode").autocast
        patches.method(autocast, "__init__", self._autocast_made)
        patches.method(autocast, "__enter__", self._enter_autocast)
        patches.method(autocast, "__exit__", self._exit_autocast)
        for name, make in (("scale", self._scale), ("unscale_", self._unscale), ("step", self._scaler_step), ("update", self._scaler_update)):
            patches.method(scaler, name, make)
        optimizers = import_module("torch.optim.optimizer")
        patches.method(torch.optim.Optimizer, "__init__", self._optimizer_made)
        patches.method(torch.optim.Optimizer, "zero_grad", self._zero_grad)
        patches.method(torch.nn.Module, "zero_grad", self._zero_grad)
        self.handles.append(optimizers.register_optimizer_step_pre_hook(self._before_step))
        self.handles.append(optimizers.register_optimizer_step_post_hook(self._after_step))
        self.handles.append(import_module("torch.nn.modules.module").register_module_forward_pre_hook(self._before_forward))
        schedules = import_module("torch.optim.lr_scheduler")
        for kind in vars(schedules).values():
            if isinstance(kind, type) and kind.__module__ == schedules.__name__ and "step" in vars(kind):
                patches.method(kind, "step", self._schedule)
        patches.function(import_module("torch.autograd"), "backward", self._backward)
        clips = import_module("torch.nn.utils.clip_grad")
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            patches.function(clips, name, self._clip)
        patches.function(torch, "compile", self._compile)
        parallel = import_module("torch.nn.parallel.distributed").DistributedDataParallel
        patches.method(parallel, "forward", self._parallel)
        if torch.distributed.is_available():
            collectives = import_module("torch.distributed.distributed_c10d")
            for name in ("all_reduce", "all_reduce_coalesced", "reduce_scatter", "reduce_scatter_tensor", "all_gather", "all_gather_into_tensor"):
                patches.function(collectives, name, self._reduce)

    def _phase(self, name: str, original: Any, *args: Any, **kwargs: Any) -> Any:
        self.recorder.phases.append(name)
        try:
            return original(*args, **kwargs)
        finally:
            self.recorder.phases.pop()

    # torch disables a region for a device that is not there; what the program asked for is remembered.
    def _autocast_made(self, original: Any) -> Any:
        def init(region: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None) -> None:
            original(region, device_type, dtype, enabled, cache_enabled)
            region._mezzo_enabled = bool(enabled)

        return init

    def _enter_autocast(self, original: Any) -> Any:
        def enter(region: Any) -> Any:
            device, dtype = str(region.device), self.recorder.dtype_name(region.fast_dtype)
            self.recorder.regions.append(self.trace.region(device, dtype, bool(getattr(region, "_mezzo_enabled", region._enabled))))
            return original(region)

        return enter

    def _exit_autocast(self, original: Any) -> Any:
        def leave(region: Any, *args: Any) -> Any:
            if self.recorder.regions:
                self.recorder.regions.pop()
            return original(region, *args)

        return leave

    # --- the scaler --------------------------------------------------------------------------------------------------
    def _scale(self, original: Any) -> Any:
        def scale(scaler: Any, outputs: Any) -> Any:
            known = self.recorder.losses.get(outputs) if isinstance(outputs, self.torch.Tensor) else None
            scaled = self._phase("scaler", original, scaler, outputs)
            if isinstance(scaled, self.torch.Tensor):
                self.recorder.losses.set(scaled, known or (None, "", None))
            if scaler not in self.scalers and len(self.scalers) < 16:
                self.scalers.append(scaler)
            self.trace.event("scale", enabled=bool(scaler.is_enabled()), scale=self._scale_of(scaler), scalers=len(self.scalers))
            return scaled

        return scale

    def _scale_of(self, scaler: Any) -> float:
        self.recorder.off = True
        try:
            return float(scaler.get_scale()) if scaler.is_enabled() else 1.0
        finally:
            self.recorder.off = False

    def _unscale(self, original: Any) -> Any:
        def unscale_(scaler: Any, optimizer: Any) -> Any:
            result = self._phase("unscale", original, scaler, optimizer)
            self._note_gradients()
            self.trace.event("unscale", by_step=self.in_scaler > 0, optimizer=self._index(optimizer))
            return result

        return unscale_

    def _scaler_step(self, original: Any) -> Any:
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            self.in_scaler += 1
            self.stepped = False
            try:
                result = original(scaler, optimizer, *args, **kwargs)
            finally:
                self.in_scaler -= 1
            self.trace.event("scaler_step", enabled=bool(scaler.is_enabled()), skipped=not self.stepped, optimizer=self._index(optimizer))
            if not self.stepped:
                self._step_done(optimizer)
            return result

        return step

    def _scaler_update(self, original: Any) -> Any:
        def update(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            result = self._phase("scaler", original, scaler, *args, **kwargs)
            self.trace.event("scaler_update", enabled=bool(scaler.is_enabled()), scale=self._scale_of(scaler))
            return result

        return update

    # --- gradients ---------------------------------------------------------------------------------------------------
    def _backward(self, original: Any) -> Any:
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if self.closing:
                self._follow_no_more()
                return original(tensors, *args, **kwargs)
            first = tensors[0] if isinstance(tensors, (list, tuple)) else tensors
            factor, reduction, weight = self.recorder.losses.get(first) or (None, "", None)
            dtype = self.recorder.dtype_name(first.dtype)
            self.recorder.gradients = {}
            self.recorder.idle = 0
            self.recorder.keep_backward(original, tensors, args, kwargs)
            result = self._phase("backward", original, tensors, *args, **kwargs)
            self._note_gradients()
            self.trace.event("backward", factor=factor, reduction=reduction, weight=weight, loss=dtype)
            return result

        return backward

    def _parameters(self) -> List[Any]:
        return [p for optimizer in self.optimizers for group in optimizer.param_groups for p in group["params"]]

    def _note_gradients(self) -> None:
        self.recorder.off = True
        try:
            self.recorder.note_gradients(self._parameters())
        finally:
            self.recorder.off = False

    def _clip(self, original: Any) -> Any:
        by_value = original.__name__ == "clip_grad_value_"

        def clip(parameters: Any, limit: Any, *args: Any, **kwargs: Any) -> Any:
            norm = self._phase("clip", original, parameters, limit, *args, **kwargs)
            self.recorder.off = True
            try:
                value = float(norm) if isinstance(norm, self.torch.Tensor) else None
            finally:
                self.recorder.off = False
            self.trace.event("clip", by="value" if by_value else "norm", norm=value, limit=float(limit))
            return norm

        return clip

    def _zero_grad(self, original: Any) -> Any:
        def zero_grad(owner: Any, *args: Any, **kwargs: Any) -> Any:
            result = self._phase("zero", original, owner, *args, **kwargs)
            self.recorder.gradients = {}
            self.trace.event("zero_grad")
            return result

        return zero_grad

    def _parallel(self, original: Any) -> Any:
        def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
            self.trace.event("parallel", sync=bool(module.require_backward_grad_sync))
            return original(module, *args, **kwargs)

        return forward

    def _reduce(self, original: Any) -> Any:
        def reduce(*args: Any, **kwargs: Any) -> Any:
            self.trace.event("reduce", op=original.__name__)
            return self._phase("reduce", original, *args, **kwargs)

        return reduce

    def _schedule(self, original: Any) -> Any:
        def step(schedule: Any, *args: Any, **kwargs: Any) -> Any:
            self.trace.event("schedule")
            return original(schedule, *args, **kwargs)

        return step

    def _compile(self, original: Any) -> Any:
        def compile(*args: Any, **kwargs: Any) -> Any:
            _, user = self.trace.places.here()
            if user not in self.trace.compiled and len(self.trace.compiled) < 64:
                self.trace.compiled.append(user)
            return original(*args, **kwargs)

        return compile

    # --- the update --------------------------------------------------------------------------------------------------
    def _optimizer_made(self, original: Any) -> Any:
        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            frame: Any = sys._getframe(1)
            while frame is not None and frame.f_code.co_name == "__init__":  # of classes derived from it
                frame = frame.f_back
            _, user = self.trace.places.here(frame)
            if optimizer not in self.optimizers and len(self.optimizers) < 16:
                self.optimizers.append(optimizer)
                self.trace.states.append({"optimizer": type(optimizer).__name__, "at": user, "tensors": []})

        return init

    def _index(self, optimizer: Any) -> int:
        inner = getattr(optimizer, "optimizer", optimizer)  # accelerate and Lightning wrap it
        return self.optimizers.index(inner) if inner in self.optimizers else -1

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        if self.closing or os.getpid() != self.process:
            return None
        self.recorder.phases.append("update")
        self.in_step += 1
        closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
        if not callable(closure):
            self._note_step(optimizer)
            return None
        first = [True]

        def follow() -> Any:  # forward and backward run inside of the step
            result = self._phase("forward", closure)
            if first[0]:
                self._note_step(optimizer)
            first[0] = False
            return result

        if "closure" in kwargs:
            return args, {**kwargs, "closure": follow}
        return (args[0], follow, *args[2:]), kwargs

    def _note_step(self, optimizer: Any) -> None:
        """Just before the parameters change."""
        self.recorder.off = True
        try:
            self._describe_gradients(optimizer)
            self.before = []
            for group in optimizer.param_groups:
                for p in group["params"]:
                    if p.grad is not None and p.dtype in (self.torch.float16, self.torch.bfloat16) and p.numel() <= MOST_SAMPLED and len(self.before) < 64:
                        self.before.append((p, p.detach().clone(), (p.grad != 0)))
        finally:
            self.recorder.off = False

    def _describe_gradients(self, optimizer: Any) -> None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None and not p.grad.is_sparse]
        kinds: Dict[str, int] = {}
        for g in gradients:
            name = self.recorder.dtype_name(g.dtype)
            kinds[name] = kinds.get(name, 0) + 1
        norm = None
        sharded = any(type(g).__name__ == "DTensor" for g in gradients)
        if gradients and not sharded and len({g.device for g in gradients}) == 1:
            norms = self.torch.stack([g.detach().float().norm() for g in gradients])
            norm = float(norms.norm())
        self.trace.event("optimizer_step", optimizer=self._index(optimizer), gradients=kinds, norm=norm, sharded=sharded, scaled_by_step=self.in_scaler > 0)

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if self.closing or self.in_step == 0:
            return
        self.in_step -= 1
        self.recorder.phases.pop()
        self.stepped = True
        self.recorder.off = True
        try:
            for p, old, moved in self.before:
                self.unchanged += int(((p.detach() == old) & moved).sum())
                self.compared += int(moved.sum())
            self.before = []
        finally:
            self.recorder.off = False
        self._step_done(optimizer)

    def _step_done(self, optimizer: Any) -> None:
        if self._index(optimizer) > 0:
            return  # one optimizer counts the steps
        now = time.perf_counter()
        self.times.append(now - self.began)
        self.began = now
        self.recorder.gradients = {}
        self.recorder.end_step()
        self.trace.step += 1
        self.recorder.taping = self.trace.step == self.steps - 1
        self.closing = self.trace.step >= self.steps

    def _before_forward(self, *_: Any) -> None:
        if self.closing:
            self._follow_no_more()

    def _leave(self) -> None:
        """In a forked process, a data loader's worker: torch there is as it was."""
        if self.finished:
            return
        stack = self.torch.utils._python_dispatch._get_current_dispatch_mode_stack()
        if stack and stack[-1] is self.recorder.mode:
            self.recorder.mode.__exit__(None, None, None)
        self.finished = self.written = True
        self.patches.restore()
        for handle in self.handles:
            handle.remove()

    # --- the end -----------------------------------------------------------------------------------------------------
    def _follow_no_more(self) -> None:
        """Takes every hook out; then the clock runs for a few steps."""
        if self.finished or self.recorder.off:
            return
        stack = self.torch.utils._python_dispatch._get_current_dispatch_mode_stack()
        if not stack or stack[-1] is not self.recorder.mode:
            return  # another mode is inside of ours: later
        self.recorder.mode.__exit__(None, None, None)
        self.finished = True
        self.patches.restore()
        for handle in self.handles:
            handle.remove()
        self.recorder.settle()
        self._describe()
        if os.environ.get("MEZZO_AUDIT_COSTS", "1") == "1":
            from ._costs import measure

            measure(self.torch, self.trace, self.recorder)
        self.recorder.tape, self.recorder.externals = None, []
        if self.stop:
            self._write()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        from importlib import import_module

        self.clock_handle = import_module("torch.optim.optimizer").register_optimizer_step_post_hook(self._tick)

    def _tick(self, *_: Any) -> None:
        self.launched.append(time.perf_counter())
        if self.torch.cuda.is_available() and self.torch.cuda.is_initialized():
            self.torch.cuda.synchronize()
        self.clock.append(time.perf_counter())
        if len(self.clock) > MOST_CLOCKED or (len(self.clock) > CLOCKED and self.clock[-1] - self.clock[0] > ENOUGH):
            self._write()

    def finish(self, at_exit: bool) -> None:
        if os.getpid() != self.process or self.written:
            return
        if not self.finished:
            self.closing = True
            self._follow_no_more()
        if any(event["kind"] in ("backward", "optimizer_step") for event in self.trace.events):
            self._write()

    def _write(self) -> None:
        if self.clock_handle is not None:
            self.clock_handle.remove()
            self.clock_handle = None
        self.written = True
        gaps = [b - a for a, b in zip(self.clock, self.clock[1:])]
        self.trace.head["step_seconds"] = min(gaps) if gaps else None  # as of operations: the shortest
        waits = [b - a for a, b in zip(self.clock, self.launched[1:])]
        self.trace.head["launch_seconds"] = min(waits) if waits and self.trace.head.get("device") == "cuda" else None
        self.trace.head["clock"] = list(zip(gaps, waits))
        rank = self.trace.head.get("rank", 0)
        self.trace.write(_path(f"rank-{rank}-{self.process}.json"))

    def _describe(self) -> None:
        torch, name = self.torch, self.recorder.dtype_name
        cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        backends = torch.backends
        ranks = torch.distributed.is_available() and torch.distributed.is_initialized()
        major, minor = torch.cuda.get_device_capability() if cuda else (0, 0)
        self.trace.head = {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "rank": torch.distributed.get_rank() if ranks else int(os.environ.get("RANK", "0")),
            "world": torch.distributed.get_world_size() if ranks else int(os.environ.get("WORLD_SIZE", "1")),
            "device": "cuda" if cuda else "cpu",
            "device_name": torch.cuda.get_device_name() if cuda else _processor(),
            "capability": 10 * major + minor,
            "threads": torch.get_num_threads(),
            "steps": self.trace.step,
            "followed_seconds": self.times,
            "unchanged": self.unchanged,
            "compared": self.compared,
            "settings": {
                "tf32": torch.get_float32_matmul_precision() != "highest",
                "deterministic": bool(torch.are_deterministic_algorithms_enabled()),
                "deterministic_warn_only": bool(torch.is_deterministic_algorithms_warn_only_enabled()),
                "cudnn_deterministic": bool(backends.cudnn.deterministic),
                "cudnn_benchmark": bool(backends.cudnn.benchmark),
            },
        }
        self.trace.head["settings_at"] = _settings_at(self.trace)
        self._describe_parameters(name)

    def _describe_parameters(self, name: Callable[[Any], str]) -> None:
        for index, optimizer in enumerate(self.optimizers):
            sums: Dict[str, List[int]] = {}
            states: Dict[Any, List[int]] = {}
            for group in optimizer.param_groups:
                for p in group["params"]:
                    entry = sums.setdefault(name(p.dtype), [0, 0])
                    entry[0] += 1
                    entry[1] += p.numel()
                    for key, value in optimizer.state.get(p, {}).items():
                        if isinstance(value, self.torch.Tensor) and value.shape == p.shape and value.dim() > 0:
                            kept = states.setdefault((str(key)[:40], name(value.dtype), name(p.dtype)), [0, 0])
                            kept[0] += 1
                            kept[1] += value.numel()
            for dtype, (count, numel) in sums.items():
                self.trace.parameters.append({"optimizer": index, "dtype": dtype, "count": count, "numel": numel})
            for (key, dtype, of), (count, numel) in states.items():
                self.trace.states[index]["tensors"].append({"key": key, "dtype": dtype, "of": of, "count": count, "numel": numel})
