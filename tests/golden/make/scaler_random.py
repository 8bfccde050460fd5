"""Random call sequences on torch.amp.GradScaler, for the same calls on Mezzo's: right orders, wrong ones, overflow anywhere.

    python scaler_random.py [COUNT [FILE [SEED]]]      what is stored: 230; docs/dev/GOLDEN.md says how more are run

Events are those of scaler_traces.py, with scale, tracker and an optimizer's parameters only where they changed. A sequence ends at
the first call where Mezzo departs on purpose; that event's "mezzo" says what Mezzo's call does:
  skips      unscaling overflowed, or gradients were rewritten after it: torch's step takes the infinity, Mezzo's skips it
  backs off  the same without a step: torch's update sees no overflow, Mezzo's lowers the scale
  refused    torch's step has no gradients and does nothing, or a scale of 0 is loaded; Mezzo's call fails
  accepted   torch's pair fails for ever after a call that came before any gradient; Mezzo's works again
  grows      the tracker was loaded past the interval: torch's scale never grows again, Mezzo's does
"""

import json
import math
import random
import sys

import torch

from scaler_traces import INF, NAN, Trace
from store import deterministic, origin, path_of, report


class Random(Trace):
    SIZES = (2, 1)

    def __init__(self, name, rng):
        self.rng = rng
        self.done = False
        super().__init__(name, "random", optimizers=rng.choice((1, 1, 2)), enabled=rng.random() > 0.08,
                         init_scale=2.0 ** rng.choice((-140, -127, -3, 0, 4, 10, 16, 16, 100, 126)),
                         growth_factor=rng.choice((2.0, 2.0, 4.0)), backoff_factor=rng.choice((0.5, 0.5, 0.25)),
                         growth_interval=rng.choice((1, 2, 3, 5)))
        self.wedged = [False] * len(self.optimizers)  # a step failed before any gradient, and no unscale came before it
        self.overflowed = [False] * len(self.optimizers)  # unscaling made what is not finite of what was
        self.scale()  # torch makes its scale here; calls before it raise (not_scaled_first in scaler_traces.py)

    # --- what torch did, and whether Mezzo's rule is another --------------------------------------------------------
    def has_grads(self, o):
        return any(p.grad is not None for p in self.params[o])

    def ends(self, mezzo):
        self.events[-1]["mezzo"] = mezzo
        self.done = True

    def finite(self, o):
        return all(torch.isfinite(p.grad).all() for p in self.params[o] if p.grad is not None)

    def state(self, o):
        return self.scaler._per_optimizer_states[id(self.optimizers[o])] if self.settings["enabled"] else None

    def unscaled(self, o):
        return self.settings["enabled"] and self.state(o)["stage"].name == "UNSCALED"

    def unscale(self, optimizer=0):
        nothing = self.unscaled(optimizer) and not self.state(optimizer)["found_inf_per_device"]
        finite = self.finite(optimizer)
        super().unscale(optimizer)
        if "error" not in self.events[-1]:
            self.overflowed[optimizer] = finite and not self.finite(optimizer)
        elif nothing and (self.has_grads(optimizer) or self.wedged[optimizer]):
            self.ends("accepted")

    def step(self, optimizer=0):
        grads, unscaled = self.has_grads(optimizer), self.unscaled(optimizer)
        super().step(optimizer)
        event = self.events[-1]
        if "error" in event and event["error"].startswith("No inf checks"):
            self.wedged[optimizer] = self.wedged[optimizer] or not unscaled
            if grads:
                self.ends("accepted")
        elif "error" not in event and not grads:
            self.ends("refused")
        elif event["stepped"] and (self.overflowed[optimizer] or not self.finite(optimizer)):
            self.ends("skips")

    def update(self, new_scale=None):
        before, loaded = self.scaler._get_growth_tracker(), self.scaler.get_scale()
        overflowed = any(self.overflowed)
        super().update(new_scale)
        event = self.events[-1]
        if "error" not in event and new_scale is None and self.settings["enabled"]:
            self.wedged, self.overflowed = [False] * len(self.optimizers), [False] * len(self.optimizers)
            if overflowed and event["scale"] >= loaded:
                self.ends("backs off")
            elif event["tracker"] == before + 1 and event["tracker"] >= self.scaler.get_growth_interval():
                self.ends("grows")
        elif new_scale is not None:
            self.wedged, self.overflowed = [False] * len(self.optimizers), [False] * len(self.optimizers)

    def load(self, **state):
        super().load(**state)
        if state["scale"] == 0:
            self.ends("refused")

    # --- a random call ----------------------------------------------------------------------------------------------
    def value(self, odds):
        return self.rng.choice((INF, -INF, NAN)) if self.rng.random() < odds else self.rng.choice((-1.0, 0.25, 0.5, 2.0))

    def some_grads(self, o):
        scale = self.scaler.get_scale() if self.rng.random() < 0.8 else 2.0 ** self.rng.choice((-20, 0, 20))
        odds = self.rng.choice((0, 0, 0, 0.3))
        bounded = lambda v: v if not math.isfinite(v) or abs(v * scale) < 2.0**127 else math.copysign(2.0**126, v)
        lists = [[bounded(self.value(odds) * scale) for _ in range(n)] if self.rng.random() > 0.07 else None for n in self.SIZES]
        self.grads(*lists, optimizer=o, add=self.rng.random() < 0.2)

    def call(self):
        o = self.rng.randrange(len(self.optimizers))
        kind = self.rng.choices(("iteration", "grads", "none", "unscale", "step", "update", "new_scale", "save", "load"),
                                (30, 12, 3, 12, 14, 14, 2, 1, 3))[0]
        if kind == "iteration":
            self.scale()
            self.some_grads(o)
            for call in (self.unscale,) * self.rng.randrange(2) + (self.step,):
                if not self.done:
                    call(o)
            if not self.done:
                self.update()
        elif kind == "grads":
            self.some_grads(o)
        elif kind == "none":
            self.grads(None, None, optimizer=o)
        elif kind == "new_scale":
            self.update(2.0 ** self.rng.choice((-130, 0, 8, 20)))
        elif kind == "save":
            self.save()
        elif kind == "load":
            if self.settings["enabled"]:
                self.load(scale=self.rng.choice((256.0, 1.0, self.scaler.get_scale())), growth_factor=self.settings["growth_factor"],
                          backoff_factor=self.settings["backoff_factor"], growth_interval=self.rng.choice((1, 2, 3)),
                          _growth_tracker=self.rng.choice((0, 0, 1, 4)))
        else:
            getattr(self, kind)(*(() if kind == "update" else (o,)))

    def row(self):
        scale, tracker, params, events = None, None, {}, []
        for e in self.events:
            e = dict(e)
            if "error" in e:
                e["error"] = e["error"][:24]
            if (e["scale"], e["tracker"]) == (scale, tracker):
                del e["scale"], e["tracker"]
            else:
                scale, tracker = e["scale"], e["tracker"]
            if "params" in e:
                if params.get(e["optimizer"]) == e["params"]:
                    del e["params"]
                else:
                    params[e["optimizer"]] = e["params"]
            if e["op"] in ("scale", "state_dict"):
                continue  # no state changes, but for the first scale, which is the settings'
            if e["op"] == "unscale" and "error" in e:
                del e["grads"]
            events.append(e)
        row = super().row()
        return {"name": row["name"], "settings": row["settings"], "params": row["params"], "events": events}


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 230
    name = sys.argv[2] if len(sys.argv) > 2 else "scaler_random.json"
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    deterministic(0)
    rows = []
    for i in range(count):
        t = Random(f"random_{seed}_{i}", random.Random(seed * 1000003 + i))
        for _ in range(t.rng.randrange(2, 14)):
            if not t.done:
                t.call()
        rows.append(t.row())
    with open(path_of(name), "w", encoding="utf-8") as f:
        f.write('{"origin":' + json.dumps(origin(__file__)) + ',"cases":[\n')
        f.write(",\n".join(json.dumps(r, allow_nan=False, separators=(",", ":")) for r in rows) + "\n]}\n")
    report(name)


if __name__ == "__main__":
    main()
