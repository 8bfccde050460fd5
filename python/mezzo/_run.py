"""Run folders of `mezzo train`: their metrics as columns, and training with progress."""

from __future__ import annotations

import html
import json
import math
import os
import re
import sys
import warnings
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple, Union

from ._command import Process, Value, command, failure, option_words, parse, text
from ._show import Page, Result, _html

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}  # JSON has no numbers for them
Metrics = Dict[str, Any]


def _record(line: bytes) -> Optional[Metrics]:
    """None: the line is damaged, and readers pass over it."""
    try:
        found = json.loads(line.decode("utf-8"))
    except ValueError:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("step"), int):
        return None
    return {name: _NOT_FINITE.get(value, value) if isinstance(value, str) else value for name, value in found.items()}


class Column(List[Any]):
    """A metric's values, one per record; `steps` has their steps."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: List[int] = []


class Columns(Mapping[str, Column]):
    """metrics.jsonl by column: `metrics["train/loss"]`, `metrics["train/loss"].steps`."""

    def __init__(self, path: Path) -> None:
        self._columns: Dict[str, Column] = {}
        with open(path, "rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break  # a run is writing it
                record = _record(line)
                if record is None:
                    continue
                step = record.pop("step")
                for name, value in record.items():
                    column = self._columns.setdefault(name, Column())
                    column.append(value)
                    column.steps.append(step)

    def __getitem__(self, name: str) -> Column:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def _repr_html_(self) -> str:
        rows = [(name, len(column), column.steps[-1], column[-1]) for name, column in self.items()]
        return _html(rows, ("metric", "values", "last step", "last value"))


class Run:
    """A run folder.

    Attributes:
        path: the folder
        result: what `train` returned at its end; None for a run that was only opened
    """

    def __init__(self, path: "Union[str, os.PathLike[str]]", result: Optional[Result] = None) -> None:
        self.path, self.result = Path(path), result
        if not (self.path / "metrics.jsonl").exists():
            raise FileNotFoundError(f"{self.path}: no metrics.jsonl, so it is not a run folder of mezzo train")

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def metrics(self) -> Columns:
        """metrics.jsonl as it is now, by column."""
        return Columns(self.path / "metrics.jsonl")

    @property
    def precision(self) -> Result:
        """precision.json: the run's precision and, for `auto`, the measurements behind the choice."""
        with open(self.path / "precision.json", encoding="utf-8") as file:
            return Result(json.load(file))

    @property
    def config(self) -> str:
        """config.yaml: every key with the value the run used."""
        return (self.path / "config.yaml").read_text(encoding="utf-8")

    def sample(self, prompt: Optional[str] = None, **options: Value) -> Result:
        """`mezzo sample`: text from the newest checkpoint."""
        return command("sample", self.path, prompt=prompt, **options)

    def eval(self, **options: Value) -> Result:
        """`mezzo eval`: loss and perplexity of the newest checkpoint."""
        return command("eval", self.path, **options)

    def report(self, out: "Union[str, os.PathLike[str], None]" = None) -> Page:
        """`mezzo report`: the run as one HTML page [report.html in its folder]."""
        return report(self.path, out=out)

    def _repr_html_(self) -> str:
        known = [("run", str(self.path)), *(self.result or {}).items()]
        return _html((name, value) for name, value in known if not isinstance(value, (list, dict)) and value is not None)


def run(path: "Union[str, os.PathLike[str]]") -> Run:
    """Opens a run folder. Raises FileNotFoundError if it is not one."""
    return Run(path)


def report(
    *runs: "Union[str, os.PathLike[str], Run]", compare: bool = False, out: "Union[str, os.PathLike[str], None]" = None
) -> Page:
    """`mezzo report`: the page of one run, or, with `compare`, of several overlaid."""
    folders = [item.path if isinstance(item, Run) else Path(item) for item in runs]
    if len(folders) != 1 and not compare:
        raise ValueError("one run gives one page; several are overlaid by compare=True")
    page = Path(out) if out is not None else Path("compare.html") if compare else folders[0] / "report.html"
    text("report", *folders, compare=True if compare else None, out=page)
    return Page(page)


class _Tail:
    """The lines that a run adds to its metrics.jsonl. Where a run resumes, and where it rolls back, it first cuts the file
    back to a checkpoint: its log tells to which step, and then the bytes before the place are others."""

    _CUTS = re.compile(r"mezzo: (?:resuming from .*, step (\d+)|.* has no checkpoint to resume: .*)\n")

    def __init__(self, path: Path, resumes: bool) -> None:
        self._path, self._at, self._lines = path, 0, 0
        self._known = b""  # what stands before the place
        self._steps: List[int] = []  # of cuts that the log told of, and that were not seen yet
        self._starts = resumes and path.exists()
        if self._starts:
            self._at = path.stat().st_size
            self._known = self._read(max(0, self._at - 64), self._at)

    def _read(self, start: int, end: Optional[int] = None) -> bytes:
        with open(self._path, "rb") as file:
            file.seek(start)
            return file.read() if end is None else file.read(end - start)

    def _find(self, last: int) -> None:
        """The place behind the records of steps up to `last`."""
        self._at = 0
        with open(self._path, "rb") as file:
            for line in file:
                step = re.match(rb'\{"step": (\d+),', line)
                if not line.endswith(b"\n") or (step and int(step[1]) > last):
                    break
                self._at += len(line)

    def records(self, log: List[str]) -> Iterator[Metrics]:
        while self._lines < len(log):
            found = self._CUTS.match(log[self._lines])
            self._steps += [int(found[1] or -1)] if found else []
            self._lines += 1
        if not self._path.exists():
            return
        if self._read(self._at - len(self._known), self._at) != self._known:
            if not self._steps:
                return  # the log's reader has the line in a moment
            self._find(min(self._steps))
            self._known = self._read(max(0, self._at - 64), self._at)
            self._steps = []
            self._starts = False
        text = self._read(self._at)
        text = text[: text.rfind(b"\n") + 1]
        if not text:
            return
        if self._starts:  # nothing had to be cut
            self._steps, self._starts = self._steps[1:], False
        self._at += len(text)
        self._known = (self._known + text)[-64:]
        for line in text.splitlines():
            record = _record(line)
            if record is not None:
                yield record


class _Progress:
    """The command's progress lines: a bar that replaces itself in a notebook, one line on a terminal, lines elsewhere."""

    def __init__(self) -> None:
        self._display: Any = None
        self._drawn = False
        if "ipykernel" in sys.modules:
            from IPython import display

            self._html: Any = getattr(display, "HTML")
            show: Any = display.display
            self._display = show(self._html(""), display_id=True)

    def show(self, line: str) -> None:
        is_step = line.startswith("step ")
        if is_step and self._display is not None:
            done, _, total = line.split()[1].partition("/")
            bar = f'<progress max="{html.escape(total)}" value="{html.escape(done)}"></progress> '
            self._display.update(self._html(bar + html.escape(line)))
        elif is_step and sys.stderr.isatty():
            print("\r\033[K" + line, end="", file=sys.stderr, flush=True)
            self._drawn = True
        else:
            self.end()
            print(line, file=sys.stderr)

    def end(self) -> None:
        if self._drawn:
            print(file=sys.stderr)
        self._drawn = False


def _end(bar: Optional[_Progress], failed: Optional[Exception]) -> None:
    try:
        if bar is not None and failed is None:
            bar.end()
    except Exception as error:
        failed = error
    if failed is not None:
        warnings.warn(f"progress could not be shown: {failed!r}", RuntimeWarning, stacklevel=3)


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[Any]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def train(
    config: "Union[str, os.PathLike[str], Mapping[str, Any], None]" = None,
    on_metrics: Optional[Callable[[Metrics], None]] = None,
    *,
    out: "Union[str, os.PathLike[str]]" = "runs/mezzo",
    progress: bool = True,
    **options: Value,
) -> Run:
    """`mezzo train`.

    Args:
        config: a YAML file, or its sections as dicts ({"model": {"layers": 4}, "train": {"steps": 100}})
        on_metrics: called with every line of metrics.jsonl as it is written, as a dict with "step"; what it raises ends
            the run as Ctrl-C does, and is raised here
        out: the run folder; overrides the configuration's
        progress: show the command's progress; where it cannot be shown (stderr is closed), a RuntimeWarning says so, and
            the run goes on
        options: as the command's, over the configuration's: data="text.txt", steps=200, precision="bf16"

    Returns:
        the run; `run.result` has losses, speed and memory.

    Raises:
        UsageError, RunError: as the command says
        KeyboardInterrupt: interrupted; the run has written a checkpoint, and resume="auto" continues from it
    """
    words = ["train"]
    if isinstance(config, Mapping):
        options = {**{name: "true" if value is True else value for name, value in _flat(config)}, **options}
    elif config is not None:
        words.append(f"--config={os.fspath(config)}")
    progress = progress and not options.pop("quiet", None)
    words += option_words({**options, "out": out, "json": True})
    tail = _Tail(Path(out) / "metrics.jsonl", resumes="resume" in options or "train.resume" in options)
    bar = _Progress() if progress else None
    process = Process(words, bar.show if bar is not None else None)

    def tell() -> None:
        for record in tail.records(process.log) if on_metrics is not None else ():
            on_metrics(record)  # type: ignore[misc]

    try:
        while process.running(0.1):
            tell()
        code, printed, log = process.finish()
        tell()
    except BaseException:  # also what on_metrics raises: the run ends as Ctrl-C ends it
        process.interrupt()
        process.finish()
        raise
    _end(bar, process.deaf)
    if code != 0:
        raise failure(words, code, log)
    return Run(out, parse(words, code, printed, log))
