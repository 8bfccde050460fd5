"""Runs the command `mezzo` and turns what it says into results and exceptions."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Callable, List, Mapping, NoReturn, Optional, Sequence, Tuple, Union

from ._show import Result

Value = Union[str, int, float, bool, "os.PathLike[str]", Sequence[Union[str, int, float]], None]

CHECK_FAILED, USAGE, FAILED, INTERRUPTED = 1, 2, 3, 130


class Error(Exception):
    """The command failed. `str()` is its own line.

    Attributes:
        message: the command's line, without "mezzo SUBCOMMAND: "
        code: its exit code
        command: its words, as they can be typed
        log: everything it wrote to stderr
    """

    def __init__(self, message: str, code: int, command: Sequence[str], log: str) -> None:
        super().__init__(message)
        self.message, self.code, self.command, self.log = message, code, list(command), log


class UsageError(Error, ValueError):
    """An option, a key or the contents of a file is wrong (exit code 2)."""


class RunError(Error, RuntimeError):
    """Out of memory, a file, a device or a number failed (exit code 3)."""


def program() -> str:
    """The command's path: $MEZZO, the one inside this package, or the one on the PATH."""
    inside = Path(__file__).parent / "bin" / "mezzo"
    found = os.environ.get("MEZZO") or (str(inside) if inside.exists() else shutil.which("mezzo"))
    if not found:
        raise FileNotFoundError("the command mezzo is neither in this package nor on the PATH; set MEZZO to its path")
    return found


def main() -> NoReturn:
    """What the script `mezzo` of a wheel does: becomes the command."""
    path = program()
    os.execv(path, [path, *sys.argv[1:]])


def option_words(options: Mapping[str, Value]) -> List[str]:
    """Options as words. `batch_size=4` is `--batch-size 4`; True is the bare option, False `--no-OPTION`, None nothing; a
    sequence is a comma list. A dot stays: `**{"optimizer.lr": 1e-3}`."""
    words: List[str] = []
    for name, value in options.items():
        option = "--" + (name if "." in name else name.replace("_", "-"))
        if value is None:
            continue
        if value is True:
            words.append(option)
        elif value is False:
            words.append("--no-" + option[2:])
        elif isinstance(value, (str, int, float, os.PathLike)):
            words.append(f"{option}={os.fspath(value) if isinstance(value, os.PathLike) else value}")
        elif isinstance(value, (bytes, bytearray, Mapping)):
            raise TypeError(f"{option}: a text, a number, a path or a list of these, not {type(value).__name__}")
        else:
            words.append(f"{option}={','.join(str(item) for item in value)}")
    return words


def failure(words: Sequence[str], code: int, log: str) -> Error:
    """The exception for an exit code other than 0, with the last line that tells an error."""
    lines = [line for line in log.splitlines() if re.match(r"mezzo( [a-z]+)?: ", line)]
    line = lines[-1] if lines else (log.strip().splitlines() or [f"mezzo ended with {code}"])[-1]
    message = re.sub(r"^mezzo( [a-z]+)?: ", "", line)
    kind = UsageError if code == USAGE else RunError if code == FAILED else Error
    return kind(message, code, ["mezzo", *words], log)


class Process:
    """A running command. stderr goes line by line to `on_line`; stdout is kept.

    Attributes:
        deaf: what `on_line` raised. It is not called again; the command's lines are read and kept all the same, as a
            command whose stderr nobody reads stands still once the pipe is full.
    """

    def __init__(self, words: Sequence[str], on_line: Optional[Callable[[str], None]] = None) -> None:
        self.words = list(words)
        self._log: List[str] = []
        self._out: List[str] = []
        self._on_line = on_line
        self.deaf: Optional[Exception] = None
        # A session of its own: Ctrl-C reaches this process first, which passes it on once.
        self._process = subprocess.Popen(
            [program(), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        self._threads = [threading.Thread(target=self._read_err), threading.Thread(target=self._read_out)]
        for thread in self._threads:
            thread.start()

    def _read_err(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._log.append(line)
            if self._on_line is not None and self.deaf is None:
                try:
                    self._on_line(line.rstrip("\n"))
                except Exception as error:
                    self.deaf = error

    def _read_out(self) -> None:
        assert self._process.stdout is not None
        self._out.append(self._process.stdout.read())

    @property
    def log(self) -> List[str]:
        """The lines of stderr so far."""
        return self._log

    def running(self, seconds: float) -> bool:
        """Waits so long at most; False once the command has ended."""
        try:
            self._process.wait(seconds)
            return False
        except subprocess.TimeoutExpired:
            return True

    def interrupt(self) -> None:
        """As Ctrl-C does: a training run writes a checkpoint and ends. Returns when it has."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        self._process.wait()

    def finish(self) -> Tuple[int, str, str]:
        """Exit code, stdout, stderr. An interrupt in here is the command's, and goes on as KeyboardInterrupt."""
        try:
            self._process.wait()
        except BaseException:
            self.interrupt()
            raise
        finally:
            for thread in self._threads:
                thread.join()
            for stream in (self._process.stdout, self._process.stderr):
                if stream is not None:
                    stream.close()
        return self._process.returncode, "".join(self._out), "".join(self._log)


def _operands(operands: "Sequence[Union[str, os.PathLike[str]]]") -> List[str]:
    words = [os.fspath(word) for word in operands]
    return ["--", *words] if any(word.startswith("-") for word in words) else words


def text(subcommand: str, *operands: "Union[str, os.PathLike[str]]", **options: Value) -> str:
    """What `mezzo SUBCOMMAND` prints, as text. Raises as `command` does."""
    words = [subcommand, *option_words(options), *_operands(operands)]
    code, out, log = Process(words).finish()
    if code not in (0, CHECK_FAILED):
        raise failure(words, code, log)
    return out


def command(subcommand: str, *operands: "Union[str, os.PathLike[str]]", **options: Value) -> Result:
    """`mezzo SUBCOMMAND OPERANDS --option value … --json`, for every subcommand that has --json.

    Returns:
        its JSON (a list as `rows`), with `exit_code` 0, or 1 where a check failed (`verify`, `doctor`, `memory` with a limit).

    Raises:
        UsageError: exit code 2
        RunError: exit code 3
    """
    words = [subcommand, *option_words({**options, "json": True}), *_operands(operands)]
    code, out, log = Process(words).finish()
    return parse(words, code, out, log)


def parse(words: Sequence[str], code: int, out: str, log: str) -> Result:
    """The result in `out`, or the exception that `code` and `log` tell."""
    if code not in (0, CHECK_FAILED) or not out.strip():
        raise failure(words, code, log)
    found = json.loads(out)
    return Result(found if isinstance(found, dict) else {"rows": found}, command=["mezzo", *words], exit_code=code, log=log)
