"""power_cuts.py MEZZO [STATES [STEPS [OPTION…]]]: what a disk may hold when the power fails during a small run, state after state.

The run's system calls are recorded with strace. After every prefix of them three disks are made: one that kept all
("all"), one that kept only what was flushed, of files and of folders ("flushed"), and one that kept every name but of file
contents only what was flushed ("names": a crash of a journal that orders nothing). On each, the newest checkpoint that
was reported must still be found, `eval` must give its loss, and a resume must end with the weights of the run that was
never cut. Prints counts; exit 1 if a state lost or accepted something wrong."""
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

MEZZO = os.path.abspath(sys.argv[1])
STATES = int(sys.argv[2]) if len(sys.argv) > 2 else 60  # 0: all of them
STEPS = int(sys.argv[3]) if len(sys.argv) > 3 else 4
TINY = ["--layers", "1", "--heads", "2", "--d-model", "16", "--seq-len", "8", "--batch-size", "2", "--device", "cpu", "--threads", "1", "--precision", "fp32",
        "--eval-iters", "1", "--sample-every", "-1", "--log-every", "1", "--checkpoint-every", "1", "--keep-last", "2", "--data", "text.txt", *sys.argv[4:]]
CALLS = "openat,write,pwrite64,fsync,fdatasync,rename,renameat,renameat2,mkdir,mkdirat,unlink,unlinkat,rmdir,ftruncate,close"


def run(*words, cwd):
    return subprocess.run([MEZZO, *words], cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True)


class Disk:
    """Folders and files by inode: what is in memory, and what is on the disk."""

    def __init__(self):
        self.dirs = {"": {}}  # path of a folder -> {name: inode number, or "dir"}; "" is where the run folder lies
        self.flushed_dirs = {"": {}}
        self.data, self.flushed, self.made = {}, {}, 0

    def split(self, path):
        return os.path.split(path)

    def mkdir(self, path):
        parent, name = self.split(path)
        self.dirs[parent][name] = "dir"
        self.dirs[path] = {}

    def create(self, path):
        parent, name = self.split(path)
        self.made += 1
        self.dirs[parent][name] = self.made
        self.data[self.made], self.flushed[self.made] = b"", b""
        return self.made

    def find(self, path):
        parent, name = self.split(path)
        return self.dirs.get(parent, {}).get(name)

    def move(self, old, new, swap):
        (p, n), (q, m) = self.split(old), self.split(new)
        a, b = self.dirs[p][n], self.dirs[q].get(m)
        if a == "dir":
            trees = {"A" + d[len(old):]: self.dirs.pop(d) for d in list(self.dirs) if d == old or d.startswith(old + "/")}
            trees |= {"B" + d[len(new):]: self.dirs.pop(d) for d in list(self.dirs) if d == new or d.startswith(new + "/")}
            for d, names in trees.items():
                if d[0] == "A":
                    self.dirs[new + d[1:]] = names
                elif swap:
                    self.dirs[old + d[1:]] = names
            # What was flushed of a folder belongs to the folder, whatever it is called.
            for table in (self.flushed_dirs,):
                moved = {"A" + d[len(old):]: table.pop(d) for d in list(table) if d == old or d.startswith(old + "/")}
                moved |= {"B" + d[len(new):]: table[d] for d in list(table) if d == new or d.startswith(new + "/")}
                for d, names in moved.items():
                    if d[0] == "A":
                        table[new + d[1:]] = names
                    elif swap:
                        table[old + d[1:]] = names
        self.dirs[q][m] = a
        if swap:
            self.dirs[p][n] = b
        else:
            del self.dirs[p][n]

    def remove(self, path):
        parent, name = self.split(path)
        self.dirs.get(parent, {}).pop(name, None)
        self.dirs.pop(path, None)

    def sync(self, path):
        if path in self.dirs:
            self.flushed_dirs[path] = dict(self.dirs[path])
        else:
            inode = self.find(path)
            if inode is not None:
                self.flushed[inode] = self.data[inode]

    def make(self, root, model):
        names, contents = (self.flushed_dirs, self.flushed) if model == "flushed" else (self.dirs, self.data if model == "all" else self.flushed)

        def fill(folder):
            os.makedirs(os.path.join(root, folder), exist_ok=True)
            for name, inode in names.get(folder, {}).items():
                path = os.path.join(folder, name)
                if inode == "dir":
                    fill(path)
                else:
                    pathlib.Path(root, path).write_bytes(contents[inode])

        fill("")


def unescape(text):
    return text.encode("latin-1").decode("unicode_escape").encode("latin-1")


def record(work):
    trace = os.path.join(work, "trace")
    out = subprocess.run(["strace", "-f", "-qq", "-y", "-xx", "-s", "100000000", "-e", "trace=" + CALLS, "-o", trace, MEZZO, "train", *TINY, "--steps", str(STEPS), "--out", "run"],
                         cwd=work, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if out.returncode != 0:
        sys.exit(out.stderr)
    events, here = [], os.path.realpath(work) + "/"
    string = r'"((?:\\x[0-9a-f]{2})*)"'

    def local(path):
        path = os.path.join(here, path) if not path.startswith("/") else path
        path = os.path.normpath(path)
        return "" if path == here[:-1] else path[len(here):] if path.startswith(here + "run") else None

    for line in open(trace):
        m = re.match(r"\d+ +(\w+)\((.*)\) += (-?\d+|\?)", line)
        if m is None or m[3] in ("?",) or m[3].startswith("-"):
            continue
        call, args = m[1], m[2]
        descriptor = re.match(r"\d+<((?:\\x[0-9a-f]{2})*|[^>]*)>", args)
        name = None
        if descriptor:
            name = unescape(descriptor[1]).decode() if descriptor[1].startswith("\\x") else descriptor[1]
            name = local(name)
        paths = [p for p in (local(unescape(s).decode("utf-8", "replace")) for s in re.findall(string, args)) if p] if call not in ("write", "pwrite64") else []
        if call == "write" and name:
            events.append(("write", name, unescape(re.search(string, args)[1])))
        elif call == "pwrite64" and name:
            events.append(("pwrite", name, unescape(re.search(string, args)[1]), int(args.rsplit(",", 1)[1])))
        elif call in ("fsync", "fdatasync") and name is not None:
            events.append(("sync", name))
        elif call == "ftruncate" and name:
            events.append(("cut", name, int(args.rsplit(",", 1)[1])))
        elif call == "openat" and paths and "O_CREAT" in args:
            events.append(("create", paths[-1], "O_TRUNC" in args))
        elif call.startswith("mkdir") and paths:
            events.append(("mkdir", paths[-1]))
        elif call.startswith("rename") and len(paths) == 2:
            events.append(("move", paths[0], paths[1], "RENAME_EXCHANGE" in args))
        elif call in ("unlink", "unlinkat", "rmdir") and paths:
            events.append(("remove", paths[-1]))
    return events


def apply(disk, event):
    kind, path = event[0], event[1]
    if kind == "mkdir":
        disk.mkdir(path)
    elif kind == "create":
        if disk.find(path) is None:
            disk.create(path)
        elif event[2]:
            disk.data[disk.find(path)] = b""
    elif kind == "write":
        disk.data[disk.find(path)] += event[2]
    elif kind == "pwrite":
        inode, at = disk.find(path), event[3]
        disk.data[inode] = disk.data[inode][:at].ljust(at, b"\0") + event[2] + disk.data[inode][at + len(event[2]):]
    elif kind == "cut":
        disk.data[disk.find(path)] = disk.data[disk.find(path)][:event[2]]
    elif kind == "move":
        disk.move(path, event[2], event[3])
    elif kind == "remove":
        disk.remove(path)
    elif kind == "sync":
        disk.sync(path)


def weights(folder):
    """The last weights' checksum, and the bytes of the records of other formats; None: there are no weights."""
    path = pathlib.Path(folder, f"run/checkpoints/step-{STEPS:08}/model.safetensors")
    records = pathlib.Path(folder, "run/counterfactual.jsonl")
    return (hashlib.sha256(path.read_bytes()).hexdigest(), records.read_bytes() if records.exists() else b"") if path.exists() else None


def step_found(text):
    m = re.search(r"step-0*(\d+)", text)
    return int(m[1]) if m else 0


with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as work:
    text = "".join(f"line {i} of a text, {i * 7919 % 1000} and more\n" for i in range(300))
    pathlib.Path(work, "text.txt").write_text(text)
    events, disk, wanted = record(work), Disk(), weights(work)
    states = [(i, model) for i in range(1, len(events) + 1) for model in ("all", "flushed", "names")]
    picked = set(states if STATES == 0 or STATES >= len(states) else [states[k * len(states) // STATES] for k in range(STATES)])
    known, lost, wrong, tried = 0, 0, 0, 0
    for i, event in enumerate(events, 1):
        apply(disk, event)
        # A save has reported success when its manifest was renamed and the folder flushed after it.
        if event == ("sync", "run/checkpoints") and events[i - 2][0] == "move" and events[i - 2][2].endswith("manifest.json"):
            known = max([step_found(n) for n in disk.dirs["run/checkpoints"] if n.startswith("step-")] + [known])
        for model in ("all", "flushed", "names"):
            if (i, model) not in picked:
                continue
            tried += 1
            root = os.path.join(work, "cut")
            shutil.rmtree(root, ignore_errors=True)
            disk.make(root, model)
            pathlib.Path(root, "text.txt").write_text(text)
            if known > 0:
                found = run("eval", "run", "--threads", "1", "--json", cwd=root)
                newest = step_found(found.stdout)
                if found.returncode != 0 or newest < known:
                    lost += 1
                    print(f"call {i} of {len(events)} ({event[0]} {event[1]}), {model}: step {known} was reported, {newest} is found: {found.stderr.strip()[-300:]}")
            again = run("train", *TINY, "--steps", str(STEPS), "--out", "run", "--resume", "auto", cwd=root)
            if again.returncode != 0 or weights(root) != wanted:
                wrong += 1
                print(f"call {i} of {len(events)} ({event[0]} {event[1]}), {model}: a resume ends with {again.returncode}: {again.stderr.strip()[-300:]}")
    print(f"{len(events)} calls, {tried} states: {lost} lost, {wrong} that did not go on to the same weights")
    sys.exit(1 if lost or wrong else 0)
