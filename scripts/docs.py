#!/usr/bin/env python3
"""scripts/docs.py [--check] [--mezzo PATH]: fills the numbers, tables and figures of docs/learn from the command.

Pages say where each number comes from, in comments that a reader does not see:

    <!-- mezzo lab formats -->            the command and what it prints stand between this line and <!-- end -->, as a code block
    <!-- figure NAME: mezzo lab … -->     figures/NAME.svg is drawn by the command with --plot; the image stands before <!-- end -->
    <!--= lab formats --json : EXPR : FORMAT-->0.5<!--=-->    one number in a sentence: EXPR of the command's JSON, which is d

EXPR is Python; pick(rows, key=value) is the row with these values. A block that says `mezzo~` trains a model: its numbers may be off in the
last digits on another machine, so --check allows each a difference of 2 % or 2 units of its last digit, whichever is more; amounts of memory, of which
a kernel's scratch depends on the machine, may be off by half a per cent of the largest in their line.
--check writes nothing; it prints how each page differs from what the commands say, and exits with 1. Figures are compared by the
gnuplot script beside them, which holds their data. Needs gnuplot to draw.
"""
import argparse
import difflib
import json
import math
import os
import pathlib
import platform
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- (mezzo~?) ([^\n]*?) -->\n)(.*?)(<!-- end -->)", re.S)
FIGURE = re.compile(r"(<!-- figure (\S+): (mezzo~?) ([^\n]*?) -->\n)(.*?)(<!-- end -->)", re.S)
NUMBER = re.compile(r"<!--=(~?) (.*?) : (.*?) : (.*?)-->(.*?)<!--=-->", re.S)
TOKEN = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")
SIZE = re.compile(r"(\d+(?:\.\d+)?)(?: (?=[MG]iB))?(MiB|GiB|M\b|G\b)")
ran = {}
if platform.machine() == "x86_64":
    os.environ["MEZZO_ISA"] = "avx2"  # a kernel's scratch, and so memory, depends on the level that the processor has


def run(mezzo, words):
    """The command's standard output; each command runs once."""
    if words not in ran:
        done = subprocess.run([mezzo, *shlex.split(words)], capture_output=True, text=True, cwd=ROOT, check=False)
        if done.returncode not in (0, 1):  # 1: a check failed, which is an answer
            sys.exit(f"mezzo {words}: exit code {done.returncode}\n{done.stderr}")
        ran[words] = done.stdout
    return ran[words]


def pick(rows, **wanted):
    return next(row for row in rows if all(row[key] == value for key, value in wanted.items()))


def number(mezzo, words, expression, form):
    data = json.loads(run(mezzo, words))
    value = eval(expression, {"pick": pick, "math": math, "abs": abs, "sum": sum, "max": max, "min": min, "d": data})  # pylint: disable=eval-used
    return form % value if "%" in form else form.format(value)


def near(old, new):
    """The same but for the last digits of numbers, and for small amounts of memory: a kernel's scratch depends on the machine's caches."""
    old, new = (re.sub(" +", " ", text) for text in (old, new))  # columns are filled up with blanks
    if TOKEN.sub("#", SIZE.sub("#", old)) != TOKEN.sub("#", SIZE.sub("#", new)):
        return False
    for was, now in zip(old.splitlines(), new.splitlines()):
        amounts = [sizes_of(line) for line in (was, now)]
        slack = 0.005 * max(amounts[0] + amounts[1], default=0)
        if any(abs(x - y) > max(slack, 0.01 * x) for x, y in zip(*amounts)):
            return False
        if was.startswith('"') or SIZE.search(was):
            was, now = SIZE.sub("", was), SIZE.sub("", now)
            if was.startswith('"'):
                continue
        for a, b in zip(TOKEN.findall(was), TOKEN.findall(now)):
            x, y = float(a.replace(",", "")), float(b.replace(",", ""))
            digits = len(a.split(".")[1]) if "." in a and "e" not in a.lower() else 0
            if abs(x - y) > max(0.02 * abs(x), 2.01 * 10.0**-digits):
                return False
    return True


def sizes_of(line):
    """Amounts of memory in a line, in MiB; of a figure's bar, which begins with its name in quotes, all its numbers."""
    if line.startswith('"'):
        return [float(x) for x in line.split('"')[2].split()]
    return [float(x) * (1024 if unit[0] == "G" else 1) for x, unit in SIZE.findall(line)]


def draw(mezzo, words, name, folder, check):
    """Draws into `folder`; returns the gnuplot script. In a check, with its data alone."""
    done = subprocess.run([mezzo, *shlex.split(words), "--plot", str(folder / f"{name}.svg")], capture_output=True, text=True,
                          cwd=ROOT, check=False)
    script = folder / f"{name}.gp"
    if not script.exists() or (done.returncode != 0 and not check):
        sys.exit(f"mezzo {words} --plot: exit code {done.returncode}\n{done.stderr}")
    (folder / f"{name}.png").unlink(missing_ok=True)
    return script.read_text(encoding="utf-8")


def filled(page, mezzo, check, problems):
    text = page.read_text(encoding="utf-8")

    def block(match):
        head, kind, words, old, end = match.groups()
        new = f"```\n$ mezzo {words}\n{run(mezzo, words).rstrip()}\n```\n"
        return head + (old if check and kind == "mezzo~" and near(old, new) else new) + end

    def figure(match):
        head, name, kind, words, old, end = match.groups()
        folder = page.parent / "figures"
        folder.mkdir(exist_ok=True)
        if check:
            kept = folder / f"{name}.gp"
            with tempfile.TemporaryDirectory() as scratch:
                new = draw(mezzo, words, name, pathlib.Path(scratch), True)
            was = kept.read_text(encoding="utf-8") if kept.exists() else ""
            if was != new and not (kind == "mezzo~" and near(was, new)):
                problems.append(f"{kept.relative_to(ROOT)} is not what `mezzo {words}` draws")
            if not (folder / f"{name}.svg").exists():
                problems.append(f"{folder.relative_to(ROOT)}/{name}.svg is missing")
        else:
            draw(mezzo, words, name, folder, False)
        caption = re.search(r"!\[(.*?)\]", old)
        return f"{head}![{caption.group(1) if caption else name}](figures/{name}.svg)\n{end}"

    def inline(match):
        loose, words, expression, form, old = match.groups()
        new = number(mezzo, words, expression, form)
        shown = old if check and loose and near(old, new) else new
        return f"<!--={loose} {words} : {expression} : {form}-->{shown}<!--=-->"

    return text, NUMBER.sub(inline, FIGURE.sub(figure, BLOCK.sub(block, text)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--mezzo", default=str(ROOT / "build/release/mezzo"))
    arguments = parser.parse_args()
    mezzo = str(pathlib.Path(arguments.mezzo).resolve())
    subprocess.run([ROOT / "scripts/demo-text.sh"], check=True)
    problems = []
    for page in sorted((ROOT / "docs/learn").glob("*.md")):
        old, new = filled(page, mezzo, arguments.check, problems)
        if old == new:
            continue
        if not arguments.check:
            page.write_text(new, encoding="utf-8")
            continue
        name = str(page.relative_to(ROOT))
        problems.append("".join(difflib.unified_diff(old.splitlines(True), new.splitlines(True), name, "what the commands say", n=0)))
    for problem in problems:
        print(problem)
    if problems:
        sys.exit("docs/learn differs from what the commands say: scripts/docs.py fills it anew")


main()
