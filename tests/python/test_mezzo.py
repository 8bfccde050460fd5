"""The module over the command: results, errors, run folders, training with progress. $MEZZO is the command's path."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import mezzo

SMALL = dict(layers=1, heads=2, d_model=32, seq_len=16, batch_size=4, device="cpu", sample_every=-1, eval_every=0, log_every=1)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_text("".join(f"{n} times {n} is {n * n}, says the table.\n" for n in range(400)))
    return path


@pytest.fixture(scope="module")
def trained(text, tmp_path_factory):
    seen = []
    run = mezzo.train({"train": {"steps": 12, "seed": 3}}, seen.append, data=text, out=tmp_path_factory.mktemp("run") / "a",
                      progress=False, **SMALL)
    return run, seen


def test_version_is_the_headers():
    header = Path(os.environ["MEZZO_SOURCE"], "include/mezzo/version.h").read_text()
    parts = [re.search(rf"MEZZO_VERSION_{part} (\d+)", header).group(1) for part in ("MAJOR", "MINOR", "PATCH")]
    assert mezzo.version() == ".".join(parts)


def test_every_function_gives_the_commands_json(tmp_path):
    words = [os.environ["MEZZO"], "memory", "--model", "gpt2-124M", "--batch-size", "2", "--json"]
    expected = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    found = mezzo.memory(model="gpt2-124M", batch_size=2)
    assert dict(found) == expected
    assert found.rows.column("weights") == [row["weights"] for row in expected["rows"]]
    assert {"bf16", "fp32"} <= set(found.rows.column("precision"))
    assert found.command[:2] == ["mezzo", "memory"] and found.exit_code == 0
    assert mezzo.explain(model="toy", precision="fp16").precision == "fp16"
    assert mezzo.advise(rules="t4-glm4moe", d_model=512, batch_size=4, seq_len=256).precision == "fp16"
    assert mezzo.lab("formats", value=1e-7).rows[0]["format"] == "fp64"
    # A figure, where gnuplot is there to draw it.
    if subprocess.run(["sh", "-c", "command -v gnuplot"], capture_output=True).returncode == 0:
        mezzo.lab("accumulate", plot=tmp_path / "sums.svg")
        assert "data:image/svg+xml;base64," in mezzo.Figure(tmp_path / "sums.svg")._repr_html_()


def test_a_check_that_fails_is_a_result():
    found = mezzo.memory(model="gpt2-124M", batch_size=1, limit="1MiB")
    assert found.exit_code == 1 and "rows" in found


def test_errors_are_the_commands_lines(tmp_path):
    with pytest.raises(mezzo.UsageError, match="did you mean --batch-size") as raised:
        mezzo.memory(model="gpt2-124M", batchsize=2)
    assert isinstance(raised.value, ValueError) and raised.value.code == 2
    assert raised.value.command == ["mezzo", "memory", "--model=gpt2-124M", "--batchsize=2", "--json"]
    assert str(raised.value) == raised.value.message and raised.value.message in raised.value.log
    missing = tmp_path / "missing.txt"
    with pytest.raises(mezzo.UsageError, match=re.escape(str(missing))) as raised:
        mezzo.train(data=missing, out=tmp_path / "run", progress=False, **SMALL)
    assert raised.value.code == 2
    with pytest.raises(FileNotFoundError, match="not a run folder"):
        mezzo.run(tmp_path)
    with pytest.raises(AttributeError, match="it has model"):
        mezzo.memory().nothing


def test_metrics_are_columns(trained):
    run, seen = trained
    assert run.metrics["train/loss"].steps == list(range(1, 13))
    assert all(math.isfinite(loss) for loss in run.metrics["train/loss"])
    # What on_metrics saw is the file, line by line.
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    assert [record["step"] for record in seen] == [json.loads(line)["step"] for line in lines]
    assert run.result.steps == 12 and "seed: 3" in run.config
    assert mezzo.run(run.path).metrics["train/loss"] == run.metrics["train/loss"]
    assert run.eval().loss == pytest.approx(run.result.val_loss, rel=1e-4)
    assert run.precision.precision == run.result.precision


def test_numbers_that_json_has_not(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "x": "NaN"}\n{"step": 2, "x": "-Infinity", "note": "NaN?"}\n{"step": 3, "x"')
    columns = mezzo.run(tmp_path).metrics
    assert math.isnan(columns["x"][0]) and columns["x"][1] == -math.inf and columns["note"] == ["NaN?"]
    assert columns["x"].steps == [1, 2]


@pytest.fixture
def interrupts():
    """Ctrl-C is Python's, also where whoever started the tests has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_leaves_a_checkpoint(text, tmp_path, interrupts):
    reached = threading.Event()

    def look(record):
        if "train/loss" in record and not reached.is_set():
            reached.set()
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        mezzo.train(data=text, steps=1000000, on_metrics=look, out=tmp_path / "run", progress=False, **SMALL)
    manifest = json.loads((tmp_path / "run" / "checkpoints" / "manifest.json").read_text())
    step = max(entry["step"] for entry in manifest["checkpoints"])
    seen = []
    mezzo.train(data=text, steps=step + 2, resume="auto", on_metrics=seen.append, out=tmp_path / "run", progress=False, **SMALL)
    assert [r["step"] for r in seen if "train/loss" in r] == [step + 1, step + 2]


def test_an_error_of_on_metrics_ends_the_run(text, tmp_path):
    def fail(record):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        mezzo.train(data=text, steps=1000000, on_metrics=fail, out=tmp_path / "run", progress=False, **SMALL)
    assert mezzo.run(tmp_path / "run").metrics


def test_progress_on_stderr(text, tmp_path, capsys):
    mezzo.train(data=text, steps=3, out=tmp_path / "run", **SMALL)
    assert "step 3/3" in capsys.readouterr().err


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A command of a test's own, in the place of mezzo."""

    def make(lines):
        path = tmp_path / "stand-in"
        path.write_text(f"#!{sys.executable}\nimport json, os, sys, time\n{lines}\n")
        path.chmod(0o755)
        monkeypatch.setenv("MEZZO", str(path))
        (tmp_path / "run").mkdir()
        return tmp_path / "run" / "metrics.jsonl"

    return make


def test_progress_that_cannot_be_shown_holds_nothing_up(stand_in, tmp_path, monkeypatch):
    class Closed:
        def write(self, text):
            raise BrokenPipeError("closed")

        def isatty(self):
            return False

    metrics = stand_in("for i in range(9999): print(f'step {i}/9999 loss 3.2', file=sys.stderr)\nprint('{\"steps\": 9999}')")
    metrics.write_text("")
    for stream in (Closed(), None):
        monkeypatch.setattr(sys, "stderr", stream)
        with pytest.warns(RuntimeWarning, match="progress could not be shown"):
            run = mezzo.train(out=tmp_path / "run")
        assert run.result.steps == 9999 and run.result.log.count("\n") == 9999


def test_on_metrics_of_a_run_that_cuts_its_file_back(stand_in, tmp_path):
    """The new records make the file longer than it was before anybody can look."""
    old = "".join(json.dumps({"step": n, "x": f"old {n}"}) + "\n" for n in range(1, 9))
    metrics = stand_in(
        f"file = {str(tmp_path / 'run' / 'metrics.jsonl')!r}\n"
        "def cut(last, new, word):\n"
        "    print(f'mezzo: resuming from there, step {last}', file=sys.stderr, flush=True)\n"
        "    kept = sum(len(l) for l in open(file) if json.loads(l)['step'] <= last)\n"
        "    os.truncate(file, kept)\n"
        "    open(file, 'a').writelines(json.dumps({'step': n, 'x': word}) + '\\n' for n in range(last + 1, new))\n"
        "    time.sleep(0.5)\n"
        "cut(5, 30, 'resumed')\ncut(20, 60, 'rolled back')\nprint('{}')"
    )
    for text, first in ((old, 6), (old.replace("old", "o"), 6), ("".join(old.splitlines(True)[:5]), 6)):
        metrics.write_text(text)
        seen = []
        mezzo.train(out=tmp_path / "run", resume="auto", on_metrics=seen.append, progress=False)
        assert [r["step"] for r in seen] == [*range(first, 30), *range(21, 60)]
        assert {r["x"] for r in seen} == {"resumed", "rolled back"}


def test_damaged_metrics_are_passed_over(tmp_path):
    lines = [b'{"step": 1, "x": 1}', b'{"step": 2, "x": 2', b'{"step": 3, "x": \xff}', b"[4]", b'{"x": 5}', b"\0\0", b'{"step": 6, "x": 6}']
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    assert mezzo.run(tmp_path).metrics["x"].steps == [1, 6]


def test_what_a_notebook_shows(trained, tmp_path):
    run, _ = trained
    assert "<script>" not in mezzo.Result({"a": "<script>"})._repr_html_()
    assert mezzo.Result({"a": {"x": 1}, "b": {"x": 2}})._repr_html_().count("<table>") == 1
    shown = mezzo.memory()._repr_html_()
    assert shown.count("<table>") >= 2 and "gpt2-124M" in shown
    page = run.report(out=tmp_path / "page.html")
    assert "<iframe" in page._repr_html_() and page.path.stat().st_size > 10000
    assert "train/loss" in run.metrics._repr_html_() and str(run.path) in run._repr_html_()
    both = mezzo.report(run, run, compare=True, out=tmp_path / "both.html")
    assert both.path.exists()
    with pytest.raises(ValueError, match="compare=True"):
        mezzo.report(run, run)


def test_sweep_and_analyze(tmp_path):
    sweep = mezzo.sweep(tmp_path / "rows.csv", family="gpt2", layers=[1], d_models=[16, 32], batch_sizes=[1, 2], seq_lens=[16, 32],
                        precisions=["fp32", "bf16"], vocab=64, heads=2, warmup=1, iters=3, device="cpu", quiet=True)
    assert sweep.rows == 16
    analysis = mezzo.analyze(tmp_path / "rows.csv", out=tmp_path / "analysis", draws=100)
    assert analysis.pairs == 8 and "exact-shape pairs" in analysis.report
    assert all("data:image" in figure._repr_html_() for figure in analysis.plots.values())
    shown = analysis.report._repr_markdown_()  # with figures inside, or without where nothing drew them
    assert ("](data:image/" in shown) == bool(analysis.plots) and "](decision" not in shown


def test_doctor_on_files(trained):
    config = trained[0].path / "config.yaml"
    found = mezzo.doctor(config=[config, config])
    assert found.exit_code == 0 and len(found.files) == 2


def test_the_script_becomes_the_command():
    words = [sys.executable, "-c", "from mezzo._command import main; main()", "memory", "--batchsize", "3"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2 and "did you mean --batch-size" in done.stderr


def test_false_none_and_lists():
    from mezzo._command import option_words

    assert option_words({"a_b": 1, "c": None, "d": True, "recompute": False, "e": [1, 2], "optimizer.lr": 0.1}) == [
        "--a-b=1", "--d", "--no-recompute", "--e=1,2", "--optimizer.lr=0.1"]  # fmt: skip


@pytest.mark.parametrize("value", [b"toy", bytearray(b"toy"), {"a": 1}])
def test_options_of_bytes_and_maps_are_refused(value):
    with pytest.raises(TypeError, match="--model: a text"):
        mezzo.explain(model=value)
