#!/usr/bin/env python3
"""Single bits that flip in a run with --replay 1 --replay-update: bench/replay.py BUILD [FLIPS [RANK_FLIPS [CLEAN_STEPS [SEED]]]]

FLIPS bits in one process (tests/fault/test_replay.c): in the result of a random op, or in a parameter after the update, over
fp32, bf16, fp16 and fp8, one and two micro batches; as many again that come back, whose op must be named. RANK_FLIPS bits in
one of two CPU ranks: in an op's result, in what a rank receives of a collective, or in a parameter after the update, over
all forms of --shard and --reduce. CLEAN_STEPS steps without a flip in each of 16 configurations. A flip is harmful where
a run without --replay ends with other weights or moments; every harmful one must be noticed. (A replayed step has other
collectives than one that is not, so that nothing is said of theirs.) Every run must end with the bits of one without the
flip: one that was not noticed then changed none. One CSV row for each op; exit 1 where a row is not good. Ranks need mpirun.
"""
import filecmp
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter

build = os.path.abspath(sys.argv[1])
flips, rank_flips, clean, seed = [int(w) for w in sys.argv[2:]] + [400, 60, 200, 1][len(sys.argv) - 2:]
rng = random.Random(seed)
os.environ.update(MEZZO_PLUGINS=build, OMP_WAIT_POLICY="passive", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
FEW = ("--model gpt2 --layers 1 --heads 2 --d-model 16 --seq-len 16 --batch-size 2 --global-batch 8 --warmup 2 --device cpu --threads 1 "
       "--tokenizer byte --data text.txt --steps 4 --checkpoint-every 0 --eval-every 0 --eval-final false --sample-every -1 --quiet "
       "--guard off --init-scale 1024").split()
NAMES = ["wte.weight", "h.0.ln_1.weight", "h.0.attn.c_attn.weight", "h.0.mlp.c_fc.bias"]


def one_process():
    """Rows of the test program; it ends with an error at the first flip that is not noticed, named or undone."""
    done = subprocess.run([f"{build}/tests/fault_test_replay"], capture_output=True, text=True,
                          env={**os.environ, "MEZZO_FLIPS": str(flips), "MEZZO_CLEAN_STEPS": str(clean)})
    print(f"clean,1,all,{16 * clean},,{0 if done.returncode == 0 else 'SEE'},,", flush=True)
    for line in done.stdout.splitlines():
        if line.startswith(("flip,", "flap,")):
            kind, rest = line.split(",", 1)
            print(f"{kind},1,{rest}", flush=True)
    if done.returncode != 0:
        sys.stderr.write(done.stdout + done.stderr)
    return done.returncode == 0


def train(out, options, may_fail=False):
    shutil.rmtree(out, ignore_errors=True)
    done = subprocess.run(["mpirun", "--oversubscribe", "-n", "2", f"{build}/mezzo", "train", *FEW, "--out", out, *options],
                          capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    if done.returncode != 0 and not may_fail:
        sys.exit(f"{' '.join(options)}: {done.stderr}")
    return done.returncode != 0 or "two different results" in done.stderr


def same(a, b):
    files = ("model.safetensors", "optimizer.safetensors")
    return all(filecmp.cmp(f"{a}/checkpoints/step-00000004/{f}", f"{b}/checkpoints/step-00000004/{f}", shallow=False) for f in files)


def two_ranks():
    counts = {"product or other op": Counter(), "collective": Counter(), "update": Counter()}
    good = True
    for _ in range(rank_flips):
        options = ["--precision", rng.choice(["fp32", "bf16", "fp16"]), "--reduce", rng.choice(["fast", "canonical"]),
                   "--shard", rng.choice(["none", "optimizer", "gradients", "parameters"])]
        kind, place = rng.choice([("product or other op", f"call/{rng.randrange(1000)}"), ("collective", f"sum/{rng.randrange(16)}"),
                                  ("collective", f"sum/{rng.randrange(4)}"), ("update", f"update/{rng.choice(NAMES)}")])
        micro = rng.randrange(2) + 1  # of a collective: the rank
        fault = f"flip@{rng.randrange(3) + 2}.{micro}:{place}#{rng.randrange(1000000)}"
        if kind == "update" and "parameters" in options:  # no parameter is whole there
            continue
        os.environ["MEZZO_INJECT_RANK"] = str(rng.randrange(2)) if kind != "collective" else str(micro - 1)
        clean_run = "clean" + "-".join(options)
        if not os.path.exists(clean_run):
            train(clean_run, options)
        harmful = False
        if kind != "collective":
            harmful = train("harmed", options + ["--inject", fault], may_fail=True) or not same("harmed", clean_run)
        noticed = train("replayed", options + ["--replay", "1", "--replay-update", "--replay-policy", "continue", "--inject", fault])
        undone = same("replayed", clean_run)
        counts[kind].update(flips=1, harmful=int(harmful), noticed=int(noticed), undone=int(undone))
        if not undone or (harmful and not noticed):
            good = False
            print(f"not good: {' '.join(options)} rank {os.environ['MEZZO_INJECT_RANK']} {fault}: harmful {harmful}, noticed {noticed}, "
                  f"undone {undone}", file=sys.stderr)
    for kind, c in counts.items():
        print(f"flip,2,{kind},{c['flips']},{'' if kind == 'collective' else c['harmful']},{c['noticed']},{c['undone']},", flush=True)
    return good


print("kind,ranks,where,flips_or_steps,harmful,noticed,undone,named")
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    with open("text.txt", "w") as f:
        f.writelines(f"the quick brown fox {i * 7919 % 97} jumps over the lazy dog.\n" for i in range(200))
    code = 0 if [flips == 0 or one_process(), rank_flips == 0 or two_ranks()] == [True, True] else 1
    os.chdir("/")
sys.exit(code)
