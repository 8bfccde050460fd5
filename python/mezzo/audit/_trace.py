"""What was seen of a program: aggregated rows of operations and an ordered list of events, both bounded."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from typing import Any, Dict, List, Optional, Tuple

VERSION = 1
MOST_ROWS, MOST_EVENTS, MOST_PLACES, MOST_REGIONS = 4096, 2048, 4096, 256

_SKIP, _LIBRARY, _USER = 0, 1, 2


class Places:
    """Files and lines of the program, each once. A place is an index; -1 is none."""

    def __init__(self, skipped: List[str]) -> None:
        self.rows: List[Tuple[str, int]] = []
        self._index: Dict[Tuple[str, int], int] = {}
        self._kinds: Dict[str, int] = {}
        self._skipped = [os.path.join(path, "") for path in skipped]
        self._standard = os.path.join(sysconfig.get_paths()["stdlib"], "")
        self._folder = os.path.join(os.getcwd(), "")

    def _kind(self, file: str) -> int:
        kind = self._kinds.get(file)
        if kind is None:
            packaged = "site-packages" in file or "dist-packages" in file
            whole = os.path.abspath(file)
            if file.startswith("<") or any(whole.startswith(path) for path in self._skipped):
                kind = _SKIP
            elif packaged:
                kind = _LIBRARY
            else:
                kind = _SKIP if whole.startswith(self._standard) else _USER
            self._kinds[file] = kind
        return kind

    def _name(self, file: str) -> str:
        for mark in ("site-packages" + os.sep, "dist-packages" + os.sep):
            if mark in file:
                return file.rsplit(mark, 1)[1]
        whole = os.path.abspath(file)
        return whole[len(self._folder) :] if whole.startswith(self._folder) else whole

    def add(self, file: str, line: int) -> int:
        key = (file, line)
        found = self._index.get(key)
        if found is None:
            if len(self.rows) >= MOST_PLACES:
                return -1
            found = self._index[key] = len(self.rows)
            self.rows.append((self._name(file), line))
        return found

    def user_files(self) -> List[str]:
        return sorted(file for file, kind in self._kinds.items() if kind == _USER)

    def here(self, frame: Any = None) -> Tuple[int, int]:
        """The innermost line outside of torch, and the innermost one of the program itself, from `frame` outward."""
        frame = frame or sys._getframe(1)
        first = -1
        while frame is not None:
            kind = self._kind(frame.f_code.co_filename)
            if kind != _SKIP:
                place = self.add(frame.f_code.co_filename, frame.f_lineno)
                first = place if first < 0 else first
                if kind == _USER:
                    return first, place
            frame = frame.f_back
        return first, first


class Row:
    """Calls of one operation that agree in shapes, dtypes, place, region and phase."""

    __slots__ = ("op", "phase", "region", "at", "user", "inputs", "output", "scalar", "count", "timed", "seconds", "returned", "call")

    def __init__(self, op: str, phase: str, region: int, at: Tuple[int, int], inputs: Any, output: str, scalar: Optional[float]) -> None:
        self.op, self.phase, self.region, (self.at, self.user) = op, phase, region, at
        self.inputs, self.output, self.scalar = inputs, output, scalar
        self.count = self.timed = self.returned = 0
        self.seconds = 0.0
        self.call: Any = None

    def add_time(self, seconds: float) -> None:
        """Keeps the shortest: what is above it is other programs'."""
        self.seconds = min(self.seconds, seconds) if self.timed else seconds
        self.timed += 1

    def json(self) -> Dict[str, Any]:
        row: Dict[str, Any] = {"op": self.op, "phase": self.phase, "region": self.region, "at": self.at, "user": self.user, "in": self.inputs,
                               "out": self.output, "count": self.count}
        if self.timed:
            row["seconds"] = self.seconds
        if self.scalar is not None:
            row["scalar"] = self.scalar
        if self.returned:
            row["returned"] = self.returned
        return row


class Trace:
    """Everything that is written for one rank."""

    def __init__(self, skipped: List[str]) -> None:
        self.places = Places(skipped)
        self.rows: Dict[Any, Row] = {}
        self.events: List[Dict[str, Any]] = []
        self.regions: List[Dict[str, Any]] = []
        self.compiled: List[int] = []
        self.head: Dict[str, Any] = {}
        self.parameters: List[Dict[str, Any]] = []
        self.states: List[Dict[str, Any]] = []
        self.replay: Dict[str, Any] = {}
        self.dropped = 0
        self.step = 0

    def event(self, kind: str, **values: Any) -> None:
        _, user = self.places.here()
        if self.events and kind == "reduce" and self.events[-1]["kind"] == kind and self.events[-1]["at"] == user:
            self.events[-1]["count"] += 1
            return
        if len(self.events) >= MOST_EVENTS:
            self.dropped += 1
            return
        event = {"kind": kind, "step": self.step, "at": user, **values}
        if kind == "reduce":
            event["count"] = 1
        self.events.append(event)

    def region(self, device: str, dtype: str, enabled: bool) -> int:
        """The index of an autocast region; entering the same line again is the same region."""
        _, user = self.places.here()
        for index, region in enumerate(self.regions):
            if (region["at"], region["device"], region["dtype"], region["enabled"]) == (user, device, dtype, enabled):
                region["entered"] += 1
                return index
        if len(self.regions) >= MOST_REGIONS:
            return -1
        self.regions.append({"at": user, "device": device, "dtype": dtype, "enabled": enabled, "entered": 1})
        return len(self.regions) - 1

    def write(self, path: str) -> None:
        whole = {
            "mezzo_audit": VERSION,
            **self.head,
            "places": [[name, line] for name, line in self.places.rows],
            "regions": self.regions,
            "compiled": self.compiled,
            "parameters": self.parameters,
            "states": self.states,
            "events": self.events,
            "ops": [row.json() for row in self.rows.values()],
            "replay": self.replay,
            "dropped": self.dropped,
        }
        temporary = path + ".tmp"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(_finite(whole), file, separators=(",", ":"), allow_nan=False)
        os.replace(temporary, path)


def _finite(value: Any) -> Any:
    """JSON has no NaN: such numbers become null."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
