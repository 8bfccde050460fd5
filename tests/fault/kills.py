"""kills.py MEZZO [TRIES [SEED]]: commands that write are killed with SIGKILL at random moments, TRIES times each; and
where strace may be used, a call that writes fails as often, for a quota, and every one takes its time once.

Of a killed command, its output is there whole or not at all, its inputs are as they were, and the same command (of a
run: with --resume auto) then ends with the bytes of one that was never killed and leaves nothing else in the folder.
A run is killed up to three times. A failed call ends the command with 3 and a line that says why. Prints a line a command with counts; exit 1 if anything was lost or wrong."""
import hashlib
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

MEZZO = os.path.abspath(sys.argv[1])
TRIES = int(sys.argv[2]) if len(sys.argv) > 2 else 3
SEED = int(sys.argv[3]) if len(sys.argv) > 3 else 1
DATA = pathlib.Path(__file__).parents[1] / "golden/data"
FEW = ["--device", "cpu", "--threads", "1", "--precision", "fp32", "--log-every", "1", "--eval-every", "3", "--eval-iters", "1", "--sample-every", "-1",
       "--checkpoint-every", "1", "--keep-last", "2", "--batch-size", "2"]
TINY = ["--layers", "1", "--heads", "2", "--d-model", "16", "--seq-len", "8", "--data", "text.txt", *FEW]
RUN = ["train", *TINY, "--steps", "6"]
# name: words, output (and the file that it gets last, without which no command reads it); a run ends with --resume auto
JOBS = {
    "train": (RUN, "t"),
    "train with Muon and an average": ([*RUN, "--optimizer", "muon", "--ema", "0.9"], "t"),
    "train --replay 1": ([*RUN, "--replay", "1", "--replay-update"], "t"),
    "train of a model from an ONNX file": (["train", "--model", "own_mlp.onnx", "--loss", "cross_entropy", "--data", "table.csv", *FEW, "--steps", "6"], "t"),
    "export": (["export", "run"], "hf"),
    "export in shards": (["export", "run", "--max-shard-size", "0.00001"], "hf"),
    "export --gguf": (["export", "run", "--gguf", "f32"], "made.gguf"),
    "import of a folder": (["import", "run-hf"], "t"),
    "import of GGUF": (["import", "run.gguf"], "t"),
    "data": (["data", "text.txt", "--tokenizer", "byte"], "shards", "train.bin"),
    "data --train-tokenizer": (["data", "text.txt", "--threads", "1", "--train-tokenizer", "300"], "learned.json"),
}
# Of a run folder: what every command that makes one makes equal.
SAME = ("model.safetensors", "optimizer.safetensors", "state.json", "tokenizer.json", "model.onnx")


def run(words, **more):
    return subprocess.run([MEZZO, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, **more)


def must(*words):
    done = run(words)
    if done.returncode != 0:
        sys.exit(f"mezzo {' '.join(words)}: {done.stderr}")


def content(path):
    """{name: checksum} of a file, of every file of an exported folder, or of those of a run that are always the same."""
    path = pathlib.Path(path)
    files = [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path] if path.exists() else []
    if (path / "checkpoints").is_dir():
        files = [p for p in files if p.name in SAME]
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def kill(words, seconds):
    process = subprocess.Popen([MEZZO, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(seconds)
    process.kill()
    return process.wait() == -9


CALLS = ("write", "pwrite64", "fsync", "mkdir", "renameat2", "rename")


def trace(words, *options):
    command = ["strace", "-f", "-qq", "-y", "-e", "trace=" + ",".join(CALLS), "-o", "/dev/null", *options, MEZZO, *words]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)


def places(words):
    """Every call in this folder, as (name, how many of its name were made until then)."""
    here, made, found = os.getcwd(), {}, []
    with tempfile.NamedTemporaryFile("r") as file:
        trace(words, "-o", file.name)
        for line in file:
            call = line.split(maxsplit=1)[1].split("(")[0]
            made[call] = made.get(call, 0) + 1
            if here in line or call not in ("write", "pwrite64"):
                found.append((call, made[call]))
    return found


def try_quota(words, out, wanted, last, draw):
    """Failed calls that ended the command, and what is wrong."""
    wrong, ended = [], 0
    clean(out)
    all_places = places(words)
    for call, number in draw.sample(all_places, min(TRIES, len(all_places))):
        clean(out)
        done = trace(words, "-e", f"inject={call}:error=EDQUOT:when={number}")
        if done.returncode == 0 and content(out) == wanted:
            continue  # the call was not needed
        ended += 1
        if done.returncode != 3 or "quota" not in done.stderr.strip().splitlines()[-1]:
            wrong.append(f"{call} {number} fails: code {done.returncode}: {done.stderr.strip()[-200:]}")
        wrong += finish(words, out, wanted, last)
    clean(out)
    done = trace(words, "-e", f"inject={','.join(CALLS)}:delay_exit=2000")
    if done.returncode != 0 or content(out) != wanted:
        wrong.append(f"a slow disk: code {done.returncode}: {done.stderr.strip()[-200:]}")
    return ended, wrong


def clean(out):
    for path in (*pathlib.Path(".").glob(out), *pathlib.Path(".").glob(out + ".*")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def finish(words, out, wanted, last):
    """What is wrong with the output of a command that did not get to its end, and with the same command after it."""
    if words[0] != "train" and os.path.exists(os.path.join(out, last) if last else out):
        return [] if content(out) == wanted else ["the output is there and not whole"]
    done = run(words)
    if done.returncode != 0:
        return [f"then the command ends with {done.returncode}: {done.stderr.strip()[-200:]}"]
    # Older checkpoints of a run are still there where the kill came after its last save, before they were removed.
    got, is_run = content(out), words[0] == "train"
    if (others := sorted(name for name, _ in (wanted.items() - got.items() if is_run else wanted.items() ^ got.items()))):
        return [f"then the command writes other bytes: {' '.join(others)}"]
    left = [name for name in os.listdir(".") if name.startswith(out + ".")]
    return [f"left over: {left}"] if left else []


def try_job(draw, words, out, last=""):
    """Kills that met the command, calls that ended it, and what is wrong (empty: nothing)."""
    is_run = words[0] == "train"
    words = [*words, "--out", out, *(["--resume", "auto"] if is_run else [])]
    clean(out)
    inputs = {name: content(name) for name in os.listdir(".")}
    began = time.monotonic()
    must(*words)
    took, wanted, wrong, met = time.monotonic() - began, content(out), [], 0
    for _ in range(TRIES):
        clean(out)
        for _ in range(draw.randint(1, 3) if is_run else 1):
            met += kill(words, draw.uniform(0, took))
        wrong += finish(words, out, wanted, last)
    ended, others = try_quota(words, out, wanted, last, draw) if STRACE else (0, [])
    if {name: content(name) for name in inputs} != inputs:
        wrong.append("an input was changed")
    return met, ended, wrong + others


def prepare():
    pathlib.Path("text.txt").write_text("".join(f"line {i} of a text, {i * 7919 % 1000} and more\n" for i in range(300)))
    pathlib.Path("table.csv").write_text("a,b,c,d,e,f,g,label\n" + "".join(f"{i},1,{i % 5},0.5,2,3,4,{i % 3}\n" for i in range(40)))
    shutil.copy(DATA / "own_mlp.onnx", ".")
    must("train", "--model", "llama", "--kv-heads", "1", *TINY, "--tokenizer", "byte", "--steps", "2", "--out", "run")
    must("export", "run", "--out", "run-hf")
    must("export", "run", "--gguf", "f32", "--out", "run.gguf")


STRACE = shutil.which("strace") and subprocess.run(["strace", "-e", "trace=write", "true"], capture_output=True).returncode == 0
with tempfile.TemporaryDirectory() as work:
    os.chdir(work)
    prepare()
    if "reads no ONNX files" in run(["train", "--model", "own_mlp.onnx", "--data", "none.npz"]).stderr:
        del JOBS["train of a model from an ONNX file"]
    bad = 0
    for name, job in JOBS.items():
        met, ended, wrong = try_job(random.Random(f"{SEED} {name}"), *job)
        print(f"{name}: {TRIES} tries, {met} kills, {ended} ended by a quota, {len(wrong)} wrong", *sorted(set(wrong)), sep="\n    " if wrong else "")
        bad += len(wrong)
    os.chdir("/")
    sys.exit(bad > 0)
