"""What a PyTorch user gets on a CPU: GPT-2-shaped training steps (forward, backward, clip at 1.0, fused AdamW), CSV rows on stdout.

usage: torch_cpu.py [--threads N] [--shapes gpt6x384,gpt2-124M] [--steps N] [--warmup N] [--ways eager,compiled] [--precisions fp32,bf16]

Every case runs in a process of its own: BF16 through oneDNN dies with SIGILL at its first tile instruction on some virtual machines. Such
a death is a row of its own, and the case runs again with oneDNN's instruction set capped at AVX512-BF16.
"""
import argparse, contextlib, os, statistics, subprocess, sys, time

SHAPES = {  # layers, heads, width, vocabulary, batch, length
    "gpt6x384": (6, 6, 384, 65, 16, 256),
    "gpt2-124M": (12, 12, 768, 50304, 4, 1024),
}
COLUMNS = "name,way,precision,threads,onednn_isa,median_ms,best_ms,tokens_per_s,loss,died,torch,device,commit,command"


def where():  # the end of a row: device, Mezzo's commit, command
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        name = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "unknown")
    words = " ".join(word for word in sys.argv[1:] if word != "--one" and not os.path.isdir(word))
    return f'"{name}",{os.environ.get("MEZZO_COMMIT", "unknown")},"{os.path.basename(sys.argv[0])} {words}"'


def model(layers, heads, width, vocabulary, length):
    import torch
    import torch.nn as nn
    import torch.nn.functional as F

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):  # [B, T, C]
            b, t, c = x.shape
            q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, heads, c // heads).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
            return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
            for p in self.parameters():
                if p.dim() == 2:
                    nn.init.normal_(p, std=0.02)
            self.head.weight = self.tokens.weight

        def forward(self, x, targets):
            h = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
            for block in self.blocks:
                h = block(h)
            return F.cross_entropy(self.head(self.norm(h)).view(-1, vocabulary), targets.view(-1))

    return GPT()


def one(args):
    import torch

    layers, heads, width, vocabulary, batch, length = SHAPES[args.shapes]
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    net = model(layers, heads, width, vocabulary, length)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, fused=True)
    forward = torch.compile(net) if args.ways == "compiled" else net
    low = args.precisions == "bf16"
    x, y = (torch.randint(0, vocabulary, (batch, length)) for _ in range(2))
    times = []
    for i in range(args.warmup + args.steps):
        started = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16) if low else contextlib.nullcontext():
            loss = forward(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if i >= args.warmup:
            times.append(time.perf_counter() - started)
    median = statistics.median(times)
    isa = os.environ.get("ONEDNN_MAX_CPU_ISA", "")
    print(f"{args.shapes},{args.ways},{args.precisions},{args.threads},{isa},{median * 1e3:.3f},{min(times) * 1e3:.3f},"
          f"{batch * length / median:.0f},{loss.item():.5f},,{torch.__version__},{where()}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--ways", default="eager,compiled")
    parser.add_argument("--precisions", default="fp32,bf16")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--one", action="store_true")
    args = parser.parse_args()
    if args.one:
        return one(args)
    print(COLUMNS, flush=True)
    for shape in args.shapes.split(","):
        for precision in args.precisions.split(","):
            for way in args.ways.split(","):
                for isa in [None, "AVX512_CORE_BF16"] if precision == "bf16" else [None]:
                    environment = dict(os.environ, OMP_NUM_THREADS=str(args.threads))
                    if isa is not None:
                        environment["ONEDNN_MAX_CPU_ISA"] = isa
                    result = subprocess.run(
                        [sys.executable, __file__, "--one", "--threads", str(args.threads), "--shapes", shape, "--ways", way,
                         "--precisions", precision, "--steps", str(args.steps), "--warmup", str(args.warmup)],
                        env=environment, stderr=subprocess.PIPE, text=True)
                    if result.returncode == 0:
                        break
                    why = f"signal {-result.returncode}" if result.returncode < 0 else f"exit {result.returncode}"
                    print(f"{shape},{way},{precision},{args.threads},{isa or ''},,,,,{why},,{where()}", flush=True)
                    if result.returncode > 0:
                        print(result.stderr[-400:], file=sys.stderr)


if __name__ == "__main__":
    main()
