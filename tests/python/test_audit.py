"""mezzo.audit: what it puts into torch is gone afterwards. With torch, a real program; without, stand-ins for its modules."""

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from mezzo.audit._patches import Patches
from mezzo.audit._trace import MOST_EVENTS, Trace

FRONT = Path(__file__).resolve().parents[2] / "python" / "mezzo" / "audit" / "front"


def test_every_name_has_its_original_again(monkeypatch):
    class Owner:
        def step(self):
            return 1

        def other(self):
            return 2

    library, early = types.ModuleType("library"), types.ModuleType("early")
    library.clip = lambda: 3
    early.clip = library.clip
    for module in (library, early):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    originals = vars(Owner)["step"], library.clip
    calls = []

    def watch(original):
        def wrapper(*args):
            calls.append(original)
            return original(*args)

        return wrapper

    patches = Patches()
    patches.method(Owner, "step", watch)
    patches.method(Owner, "absent", watch)
    patches.function(library, "clip", watch)
    late = types.ModuleType("late")  # imports the function while it is replaced
    late.clip = library.clip
    monkeypatch.setitem(sys.modules, "late", late)
    assert (Owner().step(), Owner().other(), early.clip(), late.clip()) == (1, 2, 3, 3)
    assert calls == [originals[0], originals[1], originals[1]]
    patches.restore()
    assert vars(Owner)["step"] is originals[0] and not hasattr(Owner, "absent")
    assert library.clip is early.clip is late.clip is originals[1]


def test_a_trace_is_bounded_and_finite(tmp_path):
    trace = Trace([])
    for _ in range(MOST_EVENTS + 5):
        trace.event("clip", norm=float("nan"), limit=float("inf"))
    trace.write(str(tmp_path / "trace.json"))
    read = json.loads((tmp_path / "trace.json").read_text())
    assert len(read["events"]) == MOST_EVENTS and read["dropped"] == 5
    assert read["events"][0]["norm"] is None and read["events"][0]["limit"] is None


PROGRAM = """
import sys
import torch
from torch.nn.utils import clip_grad_norm_
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

def names():
    scaler, optimizer = torch.amp.GradScaler, torch.optim.Optimizer
    found = [vars(scaler)[n] for n in ("scale", "unscale_", "step", "update")]
    found += [vars(torch.autocast)[n] for n in ("__enter__", "__exit__")]
    found += [vars(optimizer)["__init__"], vars(optimizer)["zero_grad"], vars(torch.nn.Module)["zero_grad"]]
    found += [vars(torch.optim.lr_scheduler.LRScheduler)["step"], torch.autograd.backward, torch.compile]
    found += [torch.nn.utils.clip_grad_norm_, clip_grad_norm_, vars(torch.nn.parallel.DistributedDataParallel)["forward"]]
    found += [torch.distributed.all_reduce] if torch.distributed.is_available() else []
    return found

torch.manual_seed(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
patched = [hasattr(f, "__wrapped__") and "mezzo_audit" in f.__module__ for f in names()]
for step in range(24):
    loss = model(torch.ones(2, 4)).sum()
    optimizer.zero_grad()
    loss.backward()
    clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
left = [f.__qualname__ for f in names() if "mezzo_audit" in f.__module__]
optimizers, modules = sys.modules["torch.optim.optimizer"], sys.modules["torch.nn.modules.module"]
hooks = optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks, modules._global_forward_pre_hooks
print(all(patched), left, len(_get_current_dispatch_mode_stack()), [len(h) for h in hooks], float(loss))
"""


WORKERS = """
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        clean = not _get_current_dispatch_mode_stack() and not hasattr(torch.autograd.backward, "__wrapped__")
        return torch.full((4,), float(clean))

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seen = []
for x in torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=1, multiprocessing_context="fork"):
    seen.append(float(x.min()))
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
print(seen)
"""


def test_forked_workers_are_left_alone(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "program.py").write_text(WORKERS)
    environment = {**os.environ, "PYTHONPATH": str(FRONT), "MEZZO_AUDIT_FOLDER": str(tmp_path), "MEZZO_AUDIT_STEPS": "9"}
    words = [sys.executable, str(tmp_path / "program.py")]
    assert subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout == "[1.0, 1.0, 1.0, 1.0]\n"
    assert len(list(tmp_path.glob("rank-0-*.json"))) == 1


def test_torch_is_as_before_after_the_followed_steps(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(FRONT), "MEZZO_AUDIT_FOLDER": str(tmp_path), "MEZZO_AUDIT_STEPS": "2"}
    words = [sys.executable, str(tmp_path / "program.py")]
    followed = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout.split()
    plain = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    assert followed[:6] == ["True", "[]", "0", "[0,", "0,", "0]"]
    assert followed[6] == plain[6]  # the same numbers
    (trace,) = tmp_path.glob("rank-0-*.json")
    assert json.loads(trace.read_text())["steps"] == 2


REPLAYED = """
import torch
from torch import nn

torch.manual_seed(1)
model = nn.Sequential(nn.Embedding(32, 16), nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.5), nn.Linear(16, 32))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.arange(8).reshape(2, 4)
for step in range(12):
    loss = nn.functional.cross_entropy(model(x).flatten(0, -2), x.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(float(loss))
"""


def replay_of(tmp_path, program):
    (tmp_path / "program.py").write_text(program)
    environment = {**os.environ, "PYTHONPATH": str(FRONT), "MEZZO_AUDIT_FOLDER": str(tmp_path)}
    words = [sys.executable, str(tmp_path / "program.py")]
    followed = subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout
    assert followed == subprocess.run(words, capture_output=True, text=True, check=True).stdout  # with dropout: the same generator
    (trace,) = tmp_path.glob("rank-0-*.json")
    return json.loads(trace.read_text())["replay"]


def test_a_step_is_replayed_in_other_precisions_and_changes_nothing(tmp_path):
    pytest.importorskip("torch")
    replay = replay_of(tmp_path, REPLAYED)
    assert set(replay) == {"now", "bf16", "fp32"}
    assert all(one["seconds"] == min(run[2] for run in one["runs"]) > 0 and one["spread"] >= 0 for one in replay.values())


# Half of a product's backward pass is left out: autograd would make another one of the same operations.
OWN_BACKWARD = REPLAYED.replace("model = ", """
class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        return g @ ctx.saved_tensors[0].t(), None

own = torch.randn(32, 32)
model = """).replace("model(x).flatten(0, -2)", "Own.apply(model(x).flatten(0, -2), own)")


def test_a_backward_pass_that_autograd_would_not_make_has_no_prediction(tmp_path):
    pytest.importorskip("torch")
    assert "does not require grad" in replay_of(tmp_path, OWN_BACKWARD)["why"]


@pytest.mark.parametrize("product", ["mm", "convolution"])
def test_products_of_a_replay_read_16_bits(product):
    torch = pytest.importorskip("torch")
    from mezzo.audit._costs import Replay
    from mezzo.audit._ops import Ref

    shape = {"mm": (4, 4), "convolution": (4, 4, 3, 3)}[product]
    rest = {"mm": [], "convolution": [None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1]}[product]
    func = {"mm": torch.ops.aten.mm.default, "convolution": torch.ops.aten.convolution.default}[product]
    weight, seen = torch.ones(shape, requires_grad=True), []
    tape = [(func, [Ref(-1), Ref(-2), *rest], {}, [0], True), (lambda t: seen.append(t.dtype), [Ref(0)], {}, [], True)]
    for name in ("now", "bf16"):
        Replay(torch, tape, [torch.ones(shape), weight], name).run()
    assert seen == [torch.float32, torch.bfloat16] and weight.grad is None
