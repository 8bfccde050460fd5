"""Mixed-precision training: a thin wrapper around the command `mezzo`.

Each function runs one subcommand and returns its `--json` output as a `Result`, which a notebook shows as a table. Options have
the command's names with "_" for "-"; `mezzo.help("train")` lists them. A failed command raises an exception with its error line.

    import mezzo
    mezzo.doctor().device
    mezzo.memory(model="gpt2-124M", batch_size=8).rows
    run = mezzo.train(data="text.txt", steps=200, on_metrics=print)
    run.metrics["train/loss"]
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Dict, Sequence, Union

from ._command import Error, RunError, UsageError, Value, command, program, text
from ._run import Column, Columns, Run, report, run, train
from ._show import Figure, Page, Report, Result, Table

__all__ = [
    "Analysis", "Column", "Columns", "Error", "Figure", "Page", "Report", "Result", "Run", "RunError", "Table", "UsageError", "advise",
    "analyze", "bench", "command", "doctor", "explain", "help", "lab", "memory", "program", "report", "run", "sweep", "train",
    "verify", "version",
]  # fmt: skip

_Path = Union[str, "os.PathLike[str]"]


def version() -> str:
    """The command's version, as "0.2.0"."""
    return text("--version").split()[-1]


def help(subcommand: str = "") -> None:
    """Prints `mezzo SUBCOMMAND --help`, or the list of subcommands."""
    print(text(subcommand, help=True) if subcommand else text("help"), end="")


def explain(model: str = "toy", precision: str = "bf16", **options: Value) -> Result:
    """Every op's dtypes under a precision, and the rule that chose them: `rows`, `parameters`, `summary`. Runs nothing."""
    return command("explain", model=model, precision=precision, **options)


def memory(model: str = "gpt2-124M", **options: Value) -> Result:
    """Planned memory of a training step in bytes: `rows`, one per precision, optimizer and storage of masters.

    `limit="24GiB"` adds the largest batch that fits; `exit_code` is 1 if none does."""
    return command("memory", model=model, **options)


def advise(measure: bool = False, **options: Value) -> Result:
    """Recommends a `precision` for a shape, with the `reason`: by rules (`d_model`, `batch_size`, `seq_len`), or with `measure` by
    timing `model` on this machine."""
    return command("advise", measure=True if measure else None, **options)


def doctor(config: Sequence[_Path] = (), **options: Value) -> Result:
    """The `device`, its formats and a `selftest` of each precision; or, with `config`, whether configuration files agree about
    precision. `exit_code` is 1 if a test fails or the files conflict."""
    first: Dict[str, Value] = {"config": config[0]} if config else {}
    return command("doctor", *config[1:], **first, **options)


def verify(**options: Value) -> Result:
    """Trains the same run in fp32 and in `precision` on `data`: speed, memory, accuracy, and whether requirements are met."""
    return command("verify", **{"quiet": True, **options})


def bench(**options: Value) -> Result:
    """Forward, backward and step times of model sizes in several precisions."""
    return command("bench", **options)


def sweep(out: _Path = "full_data.csv", **options: Value) -> Result:
    """Times a grid of shapes in several precisions, one row each in the CSV file `out`: `layers=[2, 4]`, `d_models=[64, 128]`,
    `batch_sizes`, `seq_lens`, `precisions`. After an interruption, the same call continues."""
    return command("sweep", out=out, **{"quiet": True, **options})


class Analysis(Result):
    """The result of `analyze`: its JSON, and the files in `path`."""

    @property
    def path(self) -> Path:
        """The folder of tables, rules.json, report and figures."""
        return Path(self["folder"])

    @property
    def report(self) -> Report:
        """report.md, as text; a notebook shows it with its figures."""
        text = Report((self.path / "report.md").read_text(encoding="utf-8"))
        text.folder = self.path
        return text

    @property
    def plots(self) -> Dict[str, Figure]:
        """The figures by name; none without gnuplot."""
        return {file.stem: Figure(file) for file in sorted(self.path.glob("*.svg"))}


def analyze(table: _Path, out: _Path = "analysis", **options: Value) -> Analysis:
    """Turns rows of a sweep or another study into exact-shape pairs, statistics, one rule per width, a report and figures."""
    found = command("analyze", table, out=out, **options)
    return Analysis(found, found.command, found.exit_code, found.log)


def lab(lesson: str, *operands: str, **options: Value) -> Result:
    """A lesson's numbers: "formats", "accumulate", "underflow", "overflow", "clipping", "speed", "layernorm". `plot="sums.svg"`
    draws the figure; `Figure("sums.svg")` shows it."""
    return command("lab", lesson, *operands, **options)
