"""Processor time of training steps of radio_unet and kl_vae on one thread, ours and PyTorch's (eager), by turns: one CSV row a turn.

usage: radio_cpu.py --step BENCH_STEP --torch PYTHON [--commit C] [--batch 8] [--turns 3] [MODEL...] >rows.csv
Processor time, not the clock's: other work on the machine then disturbs less. A step is the difference of a long run and a short one over
their steps' difference, so that starting does not count. tf32 is no precision of CPUs, and fp16 has no arithmetic there: fp32 and bf16.
"""
import argparse, os, resource, subprocess, sys

HERE = os.path.dirname(os.path.abspath(__file__))
SHORT, LONG = 2, 24


def seconds(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--step", required=True)
    p.add_argument("--torch", required=True)
    p.add_argument("--commit", default="unknown")
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--turns", type=int, default=3)
    p.add_argument("models", nargs="*", default=["radio_unet", "kl_vae"])
    o = p.parse_args()

    def ours(model, precision, steps):
        return [o.step, "--device", "cpu", "--threads", "1", "--model", model, "--batch", str(o.batch), "--steps", str(steps),
                "--warmup", "1", "--no-header", precision]

    def peer(model, precision, steps):  # above five steps it runs five more first: both runs are above
        return [o.torch, f"{HERE}/peers/torch_radio.py", "--cpu", "--threads", "1", "--iters", str(steps + 5),
                f"{model}:{o.batch}:{precision}:eager"]

    version = subprocess.run([o.torch, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True).stdout.strip()
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    print("turn,model,batch,precision,ours_ms,torch_ms,ratio,cpu,torch,commit")
    for turn in range(o.turns):
        for model in o.models:
            for precision in ("fp32", "bf16"):
                ms = [1e3 * (seconds(f(model, precision, LONG)) - seconds(f(model, precision, SHORT))) / (LONG - SHORT) for f in (ours, peer)]
                print(f"{turn},{model},{o.batch},{precision},{ms[0]:.0f},{ms[1]:.0f},{ms[1] / ms[0]:.2f},{cpu},{version},{o.commit}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
