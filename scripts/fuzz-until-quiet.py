#!/usr/bin/env python3
"""fuzz-until-quiet.py: runs the fuzzers of a build until each has brought no new edge for QUIET seconds of processor time.

    scripts/fuzz-until-quiet.py PROGRAMS CORPORA [--slots N] [--seconds S] [--quiet Q] [--csv FILE] [--seeds FOLDER]
                                [--source FOLDER] [NAME ...]

PROGRAMS has fuzz_NAME (build/fuzz/tests), CORPORA gets a folder per NAME and state.json: what was found and how long
nothing was found, so that a later call goes on. SEEDS has a folder of further inputs per NAME (tests/fuzz/corpus).
Fuzzers that are not quiet share SLOTS processes; those of one NAME share its folder, and their times add up. A finding
ends its NAME and lies in CORPORA/NAME.found."""
import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

LONGEST = {"bpe": 1024, "template": 1200, "config": 1500, "yaml": 1024, "metrics": 2048, "csv": 1024,
           "manifest": 2048}  # bytes of an input; 4,096 of the others
# Whose texts, between quotes, a reader compares its input with: they become the fuzzer's words.
SOURCES = {"config": ["train/config.def", "include/mezzo/model_keys.def"], "template": ["data/template*.c"],
           "hf": ["weights/*.c"], "state": ["checkpoint/state.c", "checkpoint/checkpoint.c"],
           "manifest": ["checkpoint/manifest.c"], "metrics": ["study/page/run_log.c", "io/metrics.c"],
           "json_tokenizer": ["data/tokenizer*.c", "data/bpe*.c", "data/chat.c"], "bpe": ["data/bpe_read.c", "data/split.c"],
           "yaml": ["io/yaml.c", "io/config*.c"], "safetensors": ["io/safetensors.c", "base/dtype.c"]}
STATUS = re.compile(rb"^#(\d+)\s+(\w+)\s+cov: (\d+) ft: (\d+)")


def words(root, name):
    """The texts of a reader's sources, as a dictionary of libFuzzer's; config's keys as lines too."""
    found = set()
    for pattern in SOURCES.get(name, []):
        for file in root.glob(pattern if pattern.startswith("include") else "src/" + pattern):
            found.update(w for w in re.findall(r'"([^"\\\n%]{1,40})"', file.read_text())
                         if w.isascii() and w.isprintable() and w.count(" ") < 3)
    if name == "config":
        for path in [w for w in found if re.fullmatch(r"[a-z_]+\.[a-z_0-9]+", w)]:
            group, key = path.split(".")
            found.update({f"{group}:\\x0a  {key}: ", f"\\x0a  {key}: ", path + ": "})
        found.update(part for w in list(found) if "|" in w for part in w.split("|") if part)
    if name in ("hf", "state", "manifest", "metrics", "json_tokenizer", "safetensors"):
        found.update(f'\\"{w}\\":' for w in list(found) if " " not in w)
    return "".join(f'"{w}"\n' for w in sorted(found))


def processor_seconds(pid):
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError):
        return None


def plain(command):
    """clang 14's runtime does not start in every layout of memory that newer kernels draw."""
    return ["setarch", "-R", *command] if shutil.which("setarch") else command


class Target:
    def __init__(self, name, args, state):
        self.name, self.args = name, args
        self.known = state.setdefault(name, {"edges": 0, "features": 0, "executions": 0, "seconds": 0.0, "quiet": 0.0,
                                             "finding": ""})
        self.workers = []
        self.lock = threading.Lock()

    def quiet(self):
        return self.known["quiet"] >= self.args.quiet or self.known["finding"]

    def start(self):
        corpus = self.args.corpora / self.name
        found = self.args.corpora / (self.name + ".found")
        corpus.mkdir(parents=True, exist_ok=True)
        found.mkdir(exist_ok=True)
        dictionary = ""
        if self.args.source and (text := words(self.args.source, self.name)):
            dictionary = self.args.corpora / (self.name + ".words")
            dictionary.write_text(text)
        seeds = [self.args.seeds / self.name] if self.args.seeds and (self.args.seeds / self.name).is_dir() else []
        command = [str(self.args.programs / ("fuzz_" + self.name)), f"-max_len={LONGEST.get(self.name, 4096)}",
                   "-timeout=20", "-rss_limit_mb=3000", "-entropic_scale_per_exec_time=1", "-max_total_time=86400",
                   *([f"-dict={dictionary}"] if dictionary else []),
                   f"-seed={int.from_bytes(os.urandom(3), 'big') + 1}", f"-artifact_prefix={found}/", str(corpus),
                   *map(str, seeds)]
        worker = subprocess.Popen(plain(["nice", "-n", "19", *command]), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                  env=self.args.environment)
        worker.counted = worker.ran = 0.0
        worker.executions = 0
        worker.ready = False  # after its corpus, where new edges are news
        worker.tail = []
        self.workers.append(worker)
        threading.Thread(target=self.read, args=(worker,), daemon=True).start()

    def count(self, worker):
        now = processor_seconds(worker.pid)
        if now is not None and now > worker.counted:
            self.known["seconds"] += now - worker.counted
            if worker.ready:
                self.known["quiet"] += now - worker.counted
            worker.counted = now

    def read(self, worker):
        for line in worker.stderr:
            worker.tail = (worker.tail + [line])[-40:]
            status = STATUS.match(line)
            if not status:
                continue
            executions, what, edges, features = int(status[1]), status[2], int(status[3]), int(status[4])
            with self.lock:
                self.count(worker)
                self.known["executions"] += executions - worker.executions
                worker.executions = executions
                if edges > self.known["edges"]:
                    self.known["edges"], self.known["quiet"] = edges, 0.0
                self.known["features"] = max(self.known["features"], features)
                worker.ready = worker.ready or what == b"INITED"
        code = worker.wait()
        with self.lock:
            if code not in (0, -signal.SIGTERM, -signal.SIGINT, 72, -signal.SIGKILL):
                text = b"".join(worker.tail).decode(errors="replace")
                self.known["finding"] = f"code {code}"
                (self.args.corpora / (self.name + ".found") / "said.txt").write_text(text)
            self.workers.remove(worker)

    def end(self):
        for worker in list(self.workers):
            worker.send_signal(signal.SIGTERM)


def save(args, state):
    new = args.corpora / "state.json.new"
    new.write_text(json.dumps(state, indent=1))
    new.rename(args.corpora / "state.json")
    if args.csv:
        rows = ["target,executions,edges,features,processor_seconds,seconds_without_new_edge,finding"]
        for n, s in sorted(state.items()):
            rows.append(f"{n},{s['executions']},{s['edges']},{s['features']},{s['seconds']:.0f},{s['quiet']:.0f},"
                        f"{s['finding']}")
        args.csv.write_text("\n".join(rows) + "\n")


def reduce(target):
    """Replaces the corpus by as many of its inputs as its features need; stopped half-way it changes nothing."""
    corpus = target.args.corpora / target.name
    fewer = target.args.corpora / (target.name + ".fewer")
    shutil.rmtree(fewer, ignore_errors=True)
    fewer.mkdir()
    program = str(target.args.programs / ("fuzz_" + target.name))
    command = plain([program, "-merge=1", "-timeout=20", "-rss_limit_mb=3000", str(fewer), str(corpus)])
    try:
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=target.args.environment,
                              timeout=target.args.reduce)
        if done.returncode == 0 and any(fewer.iterdir()):
            shutil.rmtree(corpus)
            fewer.rename(corpus)
    except subprocess.TimeoutExpired:
        pass
    shutil.rmtree(fewer, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("corpora", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--quiet", type=float, default=600)
    parser.add_argument("--reduce", type=float, default=40,
                        help="seconds that making a corpus small may take at the end; 0: it stays")
    parser.add_argument("--csv", type=pathlib.Path)
    parser.add_argument("--seeds", type=pathlib.Path)
    parser.add_argument("--source", type=pathlib.Path, help="the repository: the readers' words are taken from it")
    args = parser.parse_intermixed_args()
    args.environment = dict(os.environ, ASAN_OPTIONS="malloc_context_size=0:quarantine_size_mb=8:detect_leaks=1:"
                                                     "thread_local_quarantine_size_kb=64")
    args.corpora.mkdir(parents=True, exist_ok=True)
    file = args.corpora / "state.json"
    state = json.loads(file.read_text()) if file.exists() else {}
    names = args.names or sorted(p.name[5:] for p in args.programs.glob("fuzz_*") if p.is_file() and os.access(p, os.X_OK))
    targets = [Target(name, args, state) for name in names]
    end = time.monotonic() + args.seconds
    saved = 0.0
    while time.monotonic() < end:
        for t in targets:
            with t.lock:
                for worker in list(t.workers):
                    t.count(worker)
            if t.quiet():
                t.end()
        free = args.slots - sum(len(t.workers) for t in targets)
        waiting = sorted((t for t in targets if not t.quiet()), key=lambda t: (len(t.workers), -t.known["quiet"]))
        if not waiting and free == args.slots:
            break
        for t in waiting[:free]:
            t.start()
        if time.monotonic() - saved > 5:
            save(args, state)
            saved = time.monotonic()
        time.sleep(0.5)
    for t in targets:
        t.end()
    limit = time.monotonic() + 20
    while any(t.workers for t in targets) and time.monotonic() < limit:
        time.sleep(0.1)
    for t in targets:
        for worker in list(t.workers):
            worker.kill()
    save(args, state)
    if args.reduce > 0:
        for group in range(0, len(targets), max(1, args.slots)):
            threads = [threading.Thread(target=reduce, args=(t,)) for t in targets[group:group + args.slots]]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    save(args, state)
    return 0 if all(t.quiet() and not t.known["finding"] for t in targets) else 1


if __name__ == "__main__":
    sys.exit(main())
