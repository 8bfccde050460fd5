"""Traces of torch.amp.GradScaler: every call, what it raised, and the scale, growth tracker, gradients and parameters after it.

The gradients are set by hand, already scaled, so that a trace is a pure test of the scaler's state machine. Optimizers are
SGD with learning rate 1: a step is param -= grad, and "stepped" says whether the optimizer really ran.

Where Mezzo departs from PyTorch on purpose the case says so in "mezzo", and its events carry "mezzo_scale" and
"mezzo_tracker": the values after the same call under Mezzo's rule (growth when the tracker is at or past the interval;
PyTorch compares with ==, so that a tracker loaded past a smaller interval never grows the scale again).
"""

import math

import torch
import torch.nn.functional as F

from store import deterministic, number, numbers, write_json
from toy_sgd import BATCH, STEPS, Toy

INF, NAN = math.inf, math.nan

class CountingSgd(torch.optim.SGD):
    calls = 0

    def step(self, closure=None):
        self.calls += 1
        return super().step(closure)


class Trace:
    SIZES = (3, 2)  # elements of each optimizer's two parameters

    def __init__(self, name, about, optimizers=1, mezzo="same", dtype=torch.float32, **settings):
        self.defaults = {"init_scale": 65536.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000}
        self.settings = {**self.defaults, **settings}
        self.scaler = torch.amp.GradScaler("cpu", **self.settings)
        self.params = [[torch.nn.Parameter(torch.linspace(1, 2, n).to(dtype)) for n in self.SIZES] for _ in range(optimizers)]
        self.optimizers = [CountingSgd(p, lr=1.0, foreach=False) for p in self.params]
        self.name, self.about, self.mezzo, self.events = name, about, mezzo, []
        self.start = [[numbers(p) for p in group] for group in self.params]
        self.rule = None  # Mezzo's own (scale, tracker, ...) after load_state_dict, where the rules differ

    def record(self, op, call, optimizer=None, grads=False, params=False, **given):
        event = {"op": op, **({} if optimizer is None else {"optimizer": optimizer}), **given}
        before = [o.calls for o in self.optimizers]
        try:
            result = call()
            if isinstance(result, dict):
                event["result"] = result
            elif isinstance(result, torch.Tensor):
                event["result"] = number(result.item())
        except (RuntimeError, ValueError, AssertionError) as e:
            event["error"] = str(e).strip()
        event["scale"], event["tracker"] = number(self.scaler.get_scale()), self.scaler._get_growth_tracker()
        if grads:
            event["grads"] = [None if p.grad is None else numbers(p.grad) for p in self.params[optimizer]]
        if params:
            event["stepped"] = self.optimizers[optimizer].calls > before[optimizer]
            event["params"] = [numbers(p) for p in self.params[optimizer]]
        self.events.append(event)
        return event

    def scale(self, loss=1.0):
        self.record("scale", lambda: self.scaler.scale(torch.tensor(loss)), loss=number(loss))
        return self

    def grads(self, *values, optimizer=0, add=False):
        """`values` per parameter: a list, or None for a parameter that took no part."""
        for p, v in zip(self.params[optimizer], values):
            if v is None:
                p.grad = None
            elif add and p.grad is not None:
                p.grad += torch.tensor(v, dtype=p.dtype)
            else:
                p.grad = torch.tensor(v, dtype=p.dtype)
        self.record("add_grads" if add else "set_grads", lambda: None, optimizer, grads=True)
        return self

    def scaled_grads(self, *values, optimizer=0, add=False):
        s = self.scaler.get_scale()
        return self.grads(*[None if v is None else [x * s for x in v] for v in values], optimizer=optimizer, add=add)

    def unscale(self, optimizer=0):
        self.record("unscale", lambda: self.scaler.unscale_(self.optimizers[optimizer]), optimizer, grads=True)
        return self

    def clip(self, max_norm, optimizer=0):
        clip = torch.nn.utils.clip_grad_norm_
        self.record("clip", lambda: clip(self.params[optimizer], max_norm), optimizer, grads=True, max_norm=max_norm)
        return self

    def step(self, optimizer=0):
        self.record("step", lambda: self.scaler.step(self.optimizers[optimizer]) and None, optimizer, params=True)
        return self

    def update(self, new_scale=None):
        states = getattr(self.scaler, "_per_optimizer_states", {}).values()  # a disabled scaler has none
        found = any(v.item() for s in states for v in s["found_inf_per_device"].values())
        given = {} if new_scale is None else {"new_scale": new_scale}
        event = self.record("update", lambda: self.scaler.update(new_scale), **given)
        if self.rule is not None and "error" not in event:
            self.mezzo_update(found)
            event["mezzo_scale"], event["mezzo_tracker"] = number(self.rule["scale"]), self.rule["tracker"]
        return self

    def mezzo_update(self, found):
        r = self.rule
        if found:
            r["scale"], r["tracker"] = r["scale"] * r["backoff_factor"], 0
            return
        r["tracker"] += 1
        if r["tracker"] >= r["growth_interval"]:
            r["scale"], r["tracker"] = r["scale"] * r["growth_factor"], 0

    def save(self):
        self.record("state_dict", lambda: dict(self.scaler.state_dict()))
        return self

    def load(self, **state):
        full = {"scale": 65536.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000,
                "_growth_tracker": 0, **state}
        if self.mezzo != "same":
            self.rule = {**full, "tracker": full["_growth_tracker"]}
        self.record("load_state_dict", lambda: self.scaler.load_state_dict(full), state=full)
        return self

    def iteration(self, found=False, bad=INF):
        """One ordinary iteration on optimizer 0, with a non-finite value in one element where `found`."""
        self.scale()
        self.scaled_grads([0.125, -0.25, 0.5], [0.0625, bad if found else 0.03125])
        return self.step().update()

    def row(self):
        return {"name": self.name, "about": self.about, "mezzo": self.mezzo, "settings": {k: number(v) for k, v in self.settings.items()},
                "params": self.start, "events": self.events}

def growth_and_backoff():
    rows = []
    for interval, pattern in ((1, "....x..x."), (2, ".....x...."), (3, "..x......xx...."), (4, "........x........")):
        t = Trace(f"interval_{interval}", "growth after `interval` clean steps in a row, backoff at once",
                  init_scale=1024.0, growth_interval=interval)
        for c in pattern:
            t.iteration(found=c == "x")
        rows.append(t)
    t = Trace("factors", "factors that are not powers of two", init_scale=1000.0, growth_factor=1.5, backoff_factor=0.7,
              growth_interval=2)
    for c in "....x..xx....":
        t.iteration(found=c == "x", bad=NAN)
    rows.append(t)
    t = Trace("infinities", "infinity, minus infinity and NaN all skip the step", init_scale=8.0, growth_interval=10)
    for bad in (INF, -INF, NAN):
        t.iteration(found=True, bad=bad)
    rows.append(t)
    t = Trace("defaults", "the default settings")
    rows.append(t.iteration().iteration(found=True).iteration())
    return rows


def limits():
    t = Trace("cap_power_of_two", "growth past the largest float32 leaves the scale and resets the tracker",
              init_scale=2.0**125, growth_interval=2)
    for _ in range(8):
        t.scale(2.0**-126).grads([2.0**100, 0.0, 1.0], [1.0, 2.0]).step().update()
    u = Trace("cap_between", "2.5e38 x 1.5 does not fit in float32: the scale stays", init_scale=2.5e38, growth_factor=1.5,
              growth_interval=1)
    u.scale(2.0**-126).grads([2.0**100, 0.0, 1.0], [1.0, 2.0]).step().update()
    u.scale(2.0**-126).grads([INF, 0.0, 1.0], [1.0, 2.0]).step().update()
    v = Trace("no_floor", "PyTorch has no floor: the scale can fall to zero, where every later gradient is non-finite",
              init_scale=2.0**-148, mezzo="has a floor")
    for _ in range(3):
        v.scale().grads([INF, 0.0, 1.0], [1.0, 2.0]).step().update()
    return [t, u, v]


def checkpoints():
    t = Trace("smaller_interval_loaded", "the tracker is already past the interval that is loaded",
              mezzo="grows at or past the interval")
    t.load(scale=256.0, growth_interval=3, _growth_tracker=7)
    for c in "....x....":
        t.iteration(found=c == "x")
    u = Trace("tracker_at_interval_loaded", "the tracker equals the interval that is loaded",
              mezzo="grows at or past the interval")
    u.load(scale=256.0, growth_interval=4, _growth_tracker=4)
    for _ in range(5):
        u.iteration()
    v = Trace("saved_and_loaded", "a state saved between growth steps goes on where it was", init_scale=512.0, growth_interval=3)
    v.iteration().iteration(found=True).iteration().iteration().save()
    state = {k: x for k, x in v.events[-1]["result"].items()}
    w = Trace("loaded", "loads the state of saved_and_loaded: growth comes at the first clean step")
    w.load(**state).save().iteration().iteration()
    return [t, u, v, w]


def call_order():
    g = ([0.5, 0.25, 1.0], [2.0, -1.0])
    rows = []

    def trace(name, about, **settings):
        t = Trace(name, about, init_scale=16.0, growth_interval=100, **settings)
        rows.append(t)
        return t

    trace("unscale_twice", "raises, and the gradients stay unscaled once").scale().scaled_grads(*g).unscale().unscale().step().update()
    trace("step_twice", "raises, and the second step does not move the parameters").scale().scaled_grads(*g).step().step().update()
    trace("unscale_after_step", "raises").scale().scaled_grads(*g).step().unscale().update()
    trace("step_without_gradients", "raises: no gradient was checked").scale().grads(None, None).step().update()
    trace("one_parameter_without_gradient", "that parameter stays").scale().scaled_grads(g[0], None).step().update()
    trace("update_without_step", "raises, the scale stays").scale().update()
    trace("update_after_unscale_only", "the check of unscale is enough").scale().scaled_grads(*g).unscale().update()
    trace("overflow_unscale_only", "the check of unscale is enough").scale().grads([INF, 1.0, 1.0], g[1]).unscale().update()
    trace("update_twice", "the second raises").scale().scaled_grads(*g).step().update().update()
    trace("next_iteration_after_update", "update makes every optimizer ready again").scale().scaled_grads(*g).unscale() \
        .step().update().scale().scaled_grads(*g).unscale().step().update()
    trace("new_scale", "update(new_scale) sets the scale and leaves the tracker").scale().scaled_grads(*g).step().update() \
        .scale().scaled_grads(*g).step().update(4.0).scale().scaled_grads(*g).step().update()
    trace("not_scaled_first", "PyTorch makes the scale at the first scale(); before it other calls raise",
          mezzo="has its scale from the start").grads(*g).unscale().step().update()
    trace("disabled", "step always steps, nothing is scaled", enabled=False).scale(3.0).grads(*g).unscale().step().update() \
        .save()
    trace("disabled_infinity", "PyTorch steps into the infinity", mezzo="checks gradients all the same", enabled=False) \
        .scale().grads([INF, 1.0, 1.0], g[1]).step().update()
    trace("fp16_gradients", "raises: gradients of FP16 parameters would round when unscaled",
          mezzo="has FP32 gradients only", dtype=torch.float16) \
        .scale().grads(*g).unscale()
    return rows


def several_optimizers():
    g0, g1 = ([0.5, 0.25, 1.0], [2.0, -1.0]), ([1.0, -0.5, 0.125], [0.25, 4.0])
    t = Trace("two_optimizers_one_overflows", "only the optimizer with the infinity skips; the scale backs off for both",
              optimizers=2, init_scale=64.0, growth_interval=2)
    t.scale(0.5).scale(0.25)
    t.scaled_grads(*g0).scaled_grads([INF, -0.5, 0.125], [0.25, 4.0], optimizer=1)
    t.step(0).step(1).update()
    for _ in range(3):
        t.scale(0.5).scale(0.25).scaled_grads(*g0).scaled_grads(*g1, optimizer=1).unscale(1).step(0).step(1).update()
    u = Trace("two_optimizers_one_unscaled_twice", "the state machine is kept for each optimizer", optimizers=2,
              init_scale=64.0, growth_interval=2)
    u.scale().scaled_grads(*g0).scaled_grads(*g1, optimizer=1).unscale(0).unscale(1).unscale(0).step(1).step(1).step(0).update()
    v = Trace("two_optimizers_one_steps", "the other optimizer took no part in this iteration", optimizers=2,
              init_scale=64.0, growth_interval=1)
    v.scale().scaled_grads(*g0).step(0).update()
    return [t, u, v]


def accumulation_and_clipping():
    g = ([0.5, 0.25, 1.0], [2.0, -1.0])
    t = Trace("accumulation", "gradients of two micro batches add up at one scale; update comes once", init_scale=32.0,
              growth_interval=2)
    for _ in range(2):
        t.scale().scaled_grads(*g).scale().scaled_grads(*g, add=True).step().update()
    u = Trace("accumulation_first_overflows", "an infinity of the first micro batch stays in the sum", init_scale=32.0,
              growth_interval=2)
    u.scale().grads([INF, 1.0, 1.0], [1.0, 1.0]).scale().scaled_grads(*g, add=True).step().update()
    v = Trace("clip_after_unscale", "right: the norm is that of the true gradient", init_scale=1024.0)
    v.scale().scaled_grads(*g).unscale().clip(1.0).step().update()
    w = Trace("clip_before_unscale", "wrong on purpose: the scaled gradient is clipped, then divided by the scale",
              init_scale=1024.0)
    w.scale().scaled_grads(*g).clip(1.0).step().update()
    x = Trace("clip_with_infinity", "clipping a non-finite norm makes NaN; the step is skipped all the same", init_scale=1024.0)
    x.scale().grads([INF, 1.0, 1.0], g[1]).unscale().clip(1.0).step().update()
    return [t, u, v, w, x]


def infinity_in_one_gradient():
    """Scale 128, interval 1, four iterations of the toy model, infinity in one element of one gradient at the third.

    The data and first weights are those of toy_sgd.safetensors; the control never scales and leaves the third step out."""
    torch.manual_seed(99)  # the seed of toy_sgd.py, whose draws these are
    start = Toy()
    x, y = torch.randn(STEPS, BATCH, 5), torch.randint(3, (STEPS, BATCH))

    def run(scaled):
        model = Toy()
        model.load_state_dict(start.state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
        scaler = torch.amp.GradScaler("cpu", init_scale=128.0, growth_interval=1, enabled=scaled)
        scales = []
        for i in range(4):
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(model(x[i]), y[i])).backward()
            if i == 2:
                if not scaled:
                    continue
                model.fc2.weight.grad[1, 3] = INF
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return scales, {n: numbers(p) for n, p in model.named_parameters()}

    scales, params = run(True)
    _, control = run(False)
    return {"init_scale": 128.0, "growth_interval": 1, "lr": 0.1, "iterations": 4, "infinity_at": 2,
            "infinity_in": "fc2.weight", "infinity_element": 13, "scales": scales, "params": params, "control": control}


def main():
    deterministic(0)
    traces = (growth_and_backoff() + limits() + checkpoints() + call_order() + several_optimizers()
              + accumulation_and_clipping())
    write_json("scaler.json", __file__, {"cases": [t.row() for t in traces], "toy": infinity_in_one_gradient()})


if __name__ == "__main__":
    main()
