"""python -m mezzo.audit [--steps N] [--stop] [--out FOLDER] train.py ARGUMENTS"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from typing import List

from . import _follow


def main(words: List[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m mezzo.audit", description="Follow the first steps of a PyTorch program.",
                                     epilog="`mezzo doctor --trace FOLDER/*.json` judges what was written.")
    parser.add_argument("--steps", type=int, default=3, metavar="N", help="steps of the optimizer to follow [3]")
    parser.add_argument("--stop", action="store_true", help="end the program after them")
    parser.add_argument("--out", default="mezzo-audit", metavar="FOLDER", help="where the trace of each rank goes [mezzo-audit]")
    parser.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module")
    parser.add_argument("program", metavar="PROGRAM", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS")
    given = parser.parse_args(words)
    if not 1 <= given.steps <= 100:
        parser.error("--steps: 1 to 100")
    if importlib_missing():
        parser.exit(2, f"python -m mezzo.audit: {sys.executable} has no torch\n")
    os.makedirs(given.out, exist_ok=True)
    os.environ["MEZZO_AUDIT_FOLDER"] = os.path.abspath(given.out)
    os.environ["MEZZO_AUDIT_STEPS"] = str(given.steps)
    os.environ["MEZZO_AUDIT_STOP"] = "1" if given.stop else "0"
    sys.argv = [given.program, *given.arguments]
    _follow.wait_for_torch()
    if given.module:
        runpy.run_module(given.program, run_name="__main__", alter_sys=True)
    else:
        if not os.path.isfile(given.program):
            parser.exit(2, f"python -m mezzo.audit: {given.program}: no such file\n")
        sys.path[0] = os.path.dirname(os.path.abspath(given.program))
        runpy.run_path(given.program, run_name="__main__")


def importlib_missing() -> bool:
    import importlib.util

    return importlib.util.find_spec("torch") is None


if __name__ == "__main__":
    main(sys.argv[1:])
