#!/usr/bin/env python3
"""Steps of Mezzo and of PyTorch on one GPU or CPU, each pair by turns within seconds. Appends rows to cuda-pairs.csv,
or cpu-pairs.csv.

usage: pairs.py [--build FOLDER] [--results FOLDER] [--commit S] [--turns N] [--steps N] [--seconds N]
                [--precision P] [--device D] [--threads N] [--ways W,W] [--apart] NAME...
  NAME  a row of SETS below, or a set's name: shapes wide grouped sizes tiny moe cpu images; with :PRECISION its own

PyTorch takes a minute to compile a shape, most of it on one core. So its cases are compiled at the same time, each by a
process that waits for its turns (torch_gpt2.py --turns, of models of images torch_radio.py --turns), and all that still
compile are stopped while a pair is timed: then nothing else runs on the GPU. A pair is timed as soon as PyTorch is
ready, N turns of each; PyTorch's peak of memory is that of its steps, without compiling (with CUDA graphs, with it). A
pair with several ways of PyTorch has rows for each that was ready, one without a way has ours alone. --apart: all turns
of PyTorch, which then ends, and ours within seconds, where both do not fit into the GPU's memory. --seconds bounds the
whole: what is not ready then is left out and named.
"""
import argparse, csv, ctypes, io, os, select, signal, subprocess, sys, time

HERE = os.path.dirname(os.path.abspath(__file__))


def gpt(layers, heads, width, vocab, batch, length, ways="compiled", steps=20, model="gpt2", memory=18):
    """(bench_step's options, torch_gpt2.py's model, its ways, timed steps, GiB that PyTorch may take)"""
    name = f"{'cs336-' if model == 'cs336' else ''}d{width}-l{layers}-b{batch}-t{length}-h{heads}-v{vocab}"
    inner = f" --d-ff {4 * width}" if model == "cs336" else ""
    return (f"--model {model} --layers {layers} --heads {heads} --width {width}{inner} --vocab {vocab} "
            f"--batch {batch} --length {length}", name, ways.split(), steps, memory)


def sized(name, layers, heads, width, ways, steps, memory):
    ours = gpt(layers, heads, width, 10000, 4, 512)[0]
    return (ours + " --repeat-init", name, ways.split(), steps, memory)


def experts(model, width, layers, batch, length, vocab, steps, memory):
    return (f"--model {model} --vocab {vocab} --batch {batch} --length {length}",
            f"moe-d{width}-l{layers}-b{batch}-t{length}-v{vocab}", ["eager"], steps, memory)


def named(model, batch, length, steps, memory):
    return f"--model {model} --batch {batch} --length {length} --repeat-init", f"{model}-b{batch}-t{length}", ["compiled"], steps, memory


def images(model, batch, steps, ways, memory=8):
    return f"--model {model} --batch {batch}", f"{model}:{batch}", ways.split(), steps, memory


SETS = {
    "shapes": {  # what misses the vectors of the tensor cores, beside the shape that its storage has
        "v50304": gpt(12, 12, 768, 50304, 32, 1024),
        "v50257": gpt(12, 12, 768, 50257, 32, 1024, memory=20),
        "w750h10": gpt(12, 10, 750, 50304, 32, 1024),
        "w800h10": gpt(12, 10, 800, 50304, 32, 1024),
        "w800h8": gpt(12, 8, 800, 50304, 32, 1024),
        "w832h8": gpt(12, 8, 832, 50304, 32, 1024, ways=""),
        "w768h6": gpt(12, 6, 768, 50304, 32, 1024),
        "t1000": gpt(12, 12, 768, 50304, 32, 1000),
        "t1023": gpt(12, 12, 768, 50304, 32, 1023),
        "moe32000": experts("glm4_moe-12x512", 512, 12, 8, 1024, 32000, 20, 12),
        "moe50257": experts("glm4_moe-12x512", 512, 12, 8, 1024, 50257, 20, 14),
    },
    "wide": {
        "w2048": gpt(16, 16, 2048, 32000, 4, 2048, steps=12, model="cs336", memory=40),
        "w1536": gpt(12, 12, 1536, 32003, 6, 1500, steps=16, model="cs336", memory=28),
        "t16384": gpt(12, 12, 768, 50304, 1, 16384, memory=12),
        "1558M": (gpt(48, 25, 1600, 50304, 8, 1024)[0] + " --repeat-init", "gpt2-1558M", ["compiled"], 10, 50),
    },
    "grouped": {  # decoders with fewer key heads than heads, in published sizes
        "llama-3.2-1B": named("llama-3.2-1B", 4, 1024, 12, 40),
        "qwen3-0.6B": named("qwen3-0.6B", 8, 1024, 12, 45),
    },
    "sizes": {
        "small": sized("small", 12, 12, 768, "graphs", 40, 4),
        "medium": sized("medium", 24, 16, 1024, "graphs", 30, 8),
        "large": sized("large", 36, 20, 1280, "graphs", 20, 15),
        "xl": sized("xl", 48, 25, 1600, "compiled", 10, 28),
        "2.7B": sized("2.7B", 32, 32, 2560, "graphs", 10, 43),
    },
    "tiny": {
        "d256-l4": gpt(4, 8, 256, 32000, 1, 128, ways="graphs", steps=100, memory=2),
        "d512-l12": gpt(12, 8, 512, 32000, 8, 1024, ways="graphs", steps=30, memory=6),
    },
    "cpu": {
        "gpt6x384": gpt(6, 6, 384, 65, 16, 256, ways="eager compiled", steps=2),
        "gpt2-4x1024": gpt(12, 12, 768, 50304, 4, 1024, ways="eager compiled", steps=1),
    },
    "images": {  # small ones, for CPUs
        "radio_unet": images("radio_unet", 8, 4, "eager compiled"),
        "kl_vae": images("kl_vae", 8, 4, "eager compiled"),
    },
    "moe": {
        "moe4x256": experts("glm4_moe-4x256", 256, 4, 1, 128, 32000, 50, 2),
        "moe12x512": experts("glm4_moe-12x512", 512, 12, 8, 1024, 32000, 20, 12),
    },
}
COLUMNS = ("name,precision,turn,ms,best_ms,peak_mib,watts,torch_way,torch_ms,torch_best_ms,torch_peak_mib,ratio,device,"
           "torch,driver,commit,command,torch_command")
CAPS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")  # instructions PyTorch may use


def die_with_parent():
    """Who started this may be killed; what was stopped would stay, and so would its memory on the GPU."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Served:
    """A program that prints "ready", and a row for each line it is given."""

    def __init__(self, command, gib=0):
        self.command, self.gib, self.ready, self.text = command, gib, False, ""
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sys.stderr,
                                        text=True, start_new_session=True, preexec_fn=die_with_parent)
        os.set_blocking(self.process.stdout.fileno(), False)

    def poll(self, seconds=0.0):
        """True once it waits for a turn; its other lines are kept in text."""
        if select.select([self.process.stdout], [], [], seconds)[0]:
            self.text += self.process.stdout.read() or ""
        if self.text.endswith("ready\n"):
            self.ready, self.text = True, self.text[:-6]
        return self.ready

    def dead(self):
        return self.process.poll() is not None

    def wait(self, until):
        while not self.poll(0.05) and not self.dead() and time.monotonic() < until:
            pass
        return self.ready

    def turn(self, until):
        """The row of one turn, or None."""
        self.ready = False
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        if not self.wait(until):
            return None
        row, self.text = next(csv.reader(io.StringIO(self.text.strip().splitlines()[-1]))), ""
        return row

    def signal(self, number):
        if not self.dead():
            os.killpg(self.process.pid, number)

    def close(self):
        self.signal(signal.SIGKILL)
        self.process.wait()


class Bench:
    def __init__(self, options):
        self.options, self.end = options, time.monotonic() + options.seconds
        self.peers = {}  # (name, way) → Served
        driver = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        try:
            self.driver = subprocess.run(driver, capture_output=True, text=True, check=False).stdout.split("\n")[0]
        except OSError:
            self.driver = ""
        self.cpu = options.device.startswith("cpu")
        self.threads = ["--threads", str(options.threads)] if options.threads else []
        self.path = os.path.join(options.results, "cpu-pairs.csv" if self.cpu else "cuda-pairs.csv")
        if not os.path.exists(self.path):
            with open(self.path, "w", encoding="utf-8") as file:
                file.write(COLUMNS + "\n")

    def torch(self, case, precision, way, steps):
        where = ["--cpu"] if self.cpu else []
        if ":" in case:  # a model of images and its batch
            where += ["--heuristics", *self.threads]
        return [self.options.python, os.path.join(HERE, "peers", "torch_radio.py" if ":" in case else "torch_gpt2.py"),
                "--turns", "--iters", str(steps), *where, f"{case}:{precision}:{way}"]

    def precision(self, name):
        return name.split(":")[1] if ":" in name else self.options.precision

    def start_peers(self, queue):
        """As many as have room: for compiling, and in the GPU's memory beside our own step."""
        while queue:
            name, way, (_, case, _, steps, gib) = queue[0]
            precision = self.precision(name)
            compiling = [p for p in self.peers.values() if not p.ready]
            waiting = len(self.peers) - len(compiling)
            used = sum(p.gib for p in compiling) + sum(0.3 * p.gib for p in self.peers.values() if p.ready)
            full = len(compiling) >= self.options.compilers or waiting > 8 or used + gib > self.options.memory
            if compiling and full:
                return
            self.peers[name, way] = Served(self.torch(case, precision, way, steps), gib)
            queue.pop(0)

    def pair(self, name, shape):
        """Times the pair with the ways of PyTorch that are ready, all that still compile stopped."""
        ours, _, _, steps, _ = shape
        options = self.options
        ready = [(w, p) for (n, w), p in self.peers.items() if n == name and p.ready]
        others = [p for p in self.peers.values() if not p.ready]
        for p in others:
            p.signal(signal.SIGSTOP)
        theirs = {}  # way → PyTorch's turns, where they are apart
        for way, peer in ready if options.apart else []:
            theirs[way] = [peer.turn(self.end) for _ in range(options.turns)]
            peer.close()
        mezzo = Served([options.step, "--device", options.device, "--commit", options.commit, "--no-header", "--turns",
                        *self.threads, "--name", name.split(":")[0], *ours.split(), "--steps", str(steps),
                        "--warmup", "1" if self.cpu else "4", self.precision(name)])
        if mezzo.wait(min(self.end, time.monotonic() + 60)):
            for turn in range(options.turns):
                row = mezzo.turn(self.end)
                if row is not None and not ready:
                    self.write(name, turn, row, "", None, [])
                for way, peer in ready:
                    other = theirs[way][turn] if options.apart else peer.turn(self.end) if row is not None else None
                    if row is not None and other is not None:
                        self.write(name, turn, row, way, other, peer.command)
        else:
            print(f"{name}: Mezzo was not ready", file=sys.stderr, flush=True)
        mezzo.close()
        for _, p in ready:
            p.close()
        for p in others:
            p.signal(signal.SIGCONT)
        for way, _ in ready:
            del self.peers[name, way]

    def write(self, name, turn, ours, way, theirs, command):
        if theirs and "torch_radio.py" in command[1]:
            theirs = [*theirs[:4], "", *theirs[4:]]  # its rows have no count of tokens
        theirs = theirs or [""] * 13
        ratio = f"{float(theirs[8]) / float(ours[12]):.3f}" if theirs[8] else ""
        capped = [f"{key}={os.environ[key]}" for key in CAPS if key in os.environ]
        asked = " ".join([*capped, os.path.basename(command[1]), *command[2:]]) if command else ""
        row = [name.split(":")[0], ours[8], turn, ours[12], ours[13], ours[16], ours[18], way, *theirs[8:10],
               theirs[11], ratio, ours[21], theirs[0], self.driver, ours[23], ours[24], asked]
        with open(self.path, "a", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(row)
        print(*row[:12], sep=", ", flush=True)

    def run(self, shapes):
        queue = [(n, w, s) for n, s in shapes.items() for w in s[2]]
        left = dict(shapes)
        while left and time.monotonic() < self.end:
            self.start_peers(queue)
            for (name, way), peer in list(self.peers.items()):
                if not peer.poll() and peer.dead():
                    print(f"{name} {way}: PyTorch ended with {peer.process.returncode}", file=sys.stderr, flush=True)
                    del self.peers[name, way]
            started = {n for n, _, _ in queue}
            for name in list(left):
                mine = [p for (n, _), p in self.peers.items() if n == name]
                if name in started or any(not p.ready for p in mine):
                    continue
                if mine or not left[name][2]:
                    self.pair(name, left[name])
                del left[name]
                break
            else:
                time.sleep(0.1)
        for name in left:
            print(f"{name}: PyTorch was not ready in time", file=sys.stderr, flush=True)

    def close(self):
        for p in self.peers.values():
            p.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(HERE, "..", "build", "cuda"), help="the folder of bench_step")
    parser.add_argument("--results", default=os.path.join(HERE, "results"))
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--threads", type=int, default=0, help="of a CPU, for both")
    parser.add_argument("--python", default=sys.executable, help="which has PyTorch")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--steps", type=int, help="instead of the row's own")
    parser.add_argument("--ways", help="PyTorch's, with commas between, instead of the row's own")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--compilers", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="at once")
    parser.add_argument("--memory", type=float, default=110, help="GiB for PyTorch")
    parser.add_argument("--apart", action="store_true", help="PyTorch ends before our turns")
    parser.add_argument("names", nargs="+")
    options = parser.parse_args()
    options.step = os.path.join(options.build, "bench_step")
    every = {name: shape for rows in SETS.values() for name, shape in rows.items()}
    chosen = {}
    for name in options.names:
        row, colon, precision = name.partition(":")
        if row not in SETS and row not in every:
            parser.error(f"there is no row or set {row}; rows: {' '.join(every)}")
        chosen.update({n + colon + precision: s for n, s in (SETS[row] if row in SETS else {row: every[row]}).items()})
    if options.ways is not None:
        chosen = {n: (*s[:2], options.ways.split(",") if options.ways else [], *s[3:]) for n, s in chosen.items()}
    if options.steps:
        chosen = {n: (*s[:3], options.steps, s[4]) for n, s in chosen.items()}
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")  # of each case; they share the cores
    if options.threads:
        os.environ["OMP_NUM_THREADS"] = str(options.threads)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    bench = Bench(options)
    try:
        bench.run(chosen)
    finally:
        bench.close()


if __name__ == "__main__":
    main()
