"""What a PyTorch user gets: training steps of GPT-2-shaped models, cs336's and GLM-4's mixture of experts, one CSV row each.

usage: torch_gpt2.py [--iters N] [--prewarm | --turns] [--cpu] CASE...
  CASE is MODEL:PRECISION:WAY, as small:bf16:graphs
  MODEL      gpt2 (124M, 32 x 1,024), small medium large xl 2.7B (4 x 512), dW-lL-bB-tT[-hH][-vV] (8 heads and a vocabulary of
             32,000 unless told otherwise), moe-dW-lL-bB-tT[-hH][-vV],
             cs336-dW-lL-bB-tT[-hH][-vV] (RMSNorm, rotary positions, SwiGLU of inner width 4 W, no biases, a head of its own),
             gpt2-1558M (8 x 1,024), llama-3.2-1B-bB-tT and qwen3-0.6B-bB-tT (transformers' classes in the published sizes)
  PRECISION  fp32 tf32 bf16 fp16 (fp16 with GradScaler)
  WAY        eager, compiled (torch.compile) or graphs (torch.compile with mode="reduce-overhead", which captures CUDA graphs)
--cpu times on the CPU, by the wall clock.
--turns compiles one case, gives back what memory it can, says "ready", and times the case each time a line comes in (bench/pairs.py).
--prewarm compiles the cases, each in a process of its own and one process for two cores at a time, so that the timed run after it finds
Inductor's cache filled. Processes that meet no free memory are run again, alone.

A step is forward, backward, unscale, clipping at 1.0 and fused AdamW; ms_step is the median of CUDA-event times. Memory is the
allocator's peak.
"""
import contextlib, gc, os, re, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor
import torch
import torch.nn as nn
import torch.nn.functional as F

SIZES = {  # width, inner width, layers, heads
    "small": (768, 3072, 12, 12),
    "medium": (1024, 4096, 24, 16),
    "large": (1280, 5120, 36, 20),
    "xl": (1600, 6400, 48, 25),
    "2.7B": (2560, 10240, 32, 32),
}


class Block(nn.Module):
    def __init__(self, width, inner, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.out(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, vocab, context, width, inner, layers, heads):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, inner, heads) for _ in range(layers))
        self.lnf, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)
        self.head.weight = self.wte.weight

    def forward(self, ids, targets):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.lnf(x)).view(-1, self.head.out_features), targets.view(-1))


class GatedBlock(nn.Module):
    def __init__(self, width, inner, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)

    def forward(self, x, table):
        B, T, C = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(turned(q, table), turned(k, table), v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))
        gate, value = self.up(self.ln2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * value)


def turned(x, table):
    """Neighbouring pairs of x [B, H, T, D] turned by their position's angles; table [2, T, D / 2] holds cosines and sines."""
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cosine, sine = table[:, : x.shape[-2]]
    return torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), -1).flatten(-2).to(x.dtype)


class CS336(nn.Module):
    def __init__(self, vocab, context, width, inner, layers, heads):
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(GatedBlock(width, inner, heads) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width, eps=1e-5), nn.Linear(width, vocab, bias=False)
        half = width // heads // 2
        angles = torch.arange(context)[:, None] * 1e4 ** (-torch.arange(half) / half)
        self.register_buffer("table", torch.stack((angles.cos(), angles.sin())))

    def forward(self, ids, targets):
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x, self.table)
        return F.cross_entropy(self.head(self.norm(x)).view(-1, self.head.out_features), targets.view(-1))


class Experts(nn.Module):
    def __init__(self, width, layers, heads, vocab):
        super().__init__()
        from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

        self.model = Glm4MoeForCausalLM(
            Glm4MoeConfig(
                vocab_size=vocab, hidden_size=width, intermediate_size=4 * width, moe_intermediate_size=width,
                num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=heads, head_dim=width // heads,
                n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1, first_k_dense_replace=1, n_group=1,
                topk_group=1, max_position_embeddings=2048, use_cache=False))

    def forward(self, ids, targets):
        return self.model(input_ids=ids, labels=targets).loss


NAMED = {  # transformers' class, vocabulary, width, inner width, layers, heads, key heads, the heads' width
    "llama-3.2-1B": ("Llama", 128256, 2048, 8192, 16, 32, 8, 64),
    "qwen3-0.6B": ("Qwen3", 151936, 1024, 3072, 28, 16, 8, 128),
}


class Named(nn.Module):
    def __init__(self, kind, vocab, width, inner, layers, heads, kv_heads, head_dim):
        super().__init__()
        import transformers

        config = getattr(transformers, f"{kind}Config")(
            vocab_size=vocab, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
            num_key_value_heads=kv_heads, head_dim=head_dim, max_position_embeddings=4096, tie_word_embeddings=True, use_cache=False,
            attn_implementation="sdpa")
        self.net = getattr(transformers, f"{kind}ForCausalLM")(config)

    def forward(self, ids, targets):
        logits = self.net.lm_head(self.net.model(input_ids=ids).last_hidden_state)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def describe(model):
    """name -> (maker, vocabulary, batch, tokens)"""
    named = re.fullmatch(r"(.+)-b(\d+)-t(\d+)", model)
    if named and named.group(1) in NAMED:
        sizes = NAMED[named.group(1)]
        return lambda: Named(*sizes), sizes[1], int(named.group(2)), int(named.group(3))
    if model == "gpt2":
        return lambda: GPT(50304, 1024, 768, 3072, 12, 12), 50304, 32, 1024
    if model == "gpt2-1558M":
        return lambda: GPT(50304, 1024, 1600, 6400, 48, 25), 50304, 8, 1024
    if model in SIZES:
        return lambda: GPT(10000, 512, *SIZES[model]), 10000, 4, 512
    found = re.fullmatch(r"(moe-|cs336-)?d(\d+)-l(\d+)-b(\d+)-t(\d+)(?:-h(\d+))?(?:-v(\d+))?", model)
    if not found:
        sys.exit(f"{model}: no such model; see the usage")
    width, layers, batch, tokens, heads, vocab = (int(g or 0) for g in found.groups()[1:])
    heads, vocab = heads or 8, vocab or 32000
    if found.group(1) == "moe-":
        return lambda: Experts(width, layers, heads, vocab), vocab, batch, tokens
    kind = CS336 if found.group(1) else GPT
    return lambda: kind(vocab, max(1024, tokens), width, 4 * width, layers, heads), vocab, batch, tokens


def milliseconds(step, device):
    """One step's time, and what it returned."""
    if device == "cpu":
        start = time.perf_counter()
        loss = step()
        return (time.perf_counter() - start) * 1e3, loss
    start, end = torch.cuda.Event(True), torch.cuda.Event(True)
    start.record()
    loss = step()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end), loss


def measure(model, precision, way, iters, device, turns):
    make, vocab, batch, tokens = describe(model)
    torch._dynamo.reset()
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    with torch.device(device):  # 2.7 billion numbers are drawn where they are wanted
        net = make()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    forward = {"eager": lambda: net, "compiled": lambda: torch.compile(net),
               "graphs": lambda: torch.compile(net, mode="reduce-overhead")}[way]()
    low = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision)
    scaler = torch.amp.GradScaler(device, enabled=precision == "fp16")
    ids = torch.randint(0, vocab, (batch, tokens), device=device)
    targets = torch.randint(0, vocab, (batch, tokens), device=device)

    def step():
        with torch.autocast(device, low) if low else contextlib.nullcontext():
            loss = forward(ids, targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return loss

    def timed():
        times = []
        for _ in range(iters):
            ms, loss = milliseconds(step, device)
            times.append(ms)
        ms = sorted(times)[len(times) // 2]
        count = sum(p.numel() for p in net.parameters())
        peak = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else 0
        name = torch.cuda.get_device_name() if device == "cuda" else f"cpu x {torch.get_num_threads()}"
        print(f"torch {torch.__version__},{name},{model},{batch},{tokens},{precision},{way},{count},"
              f"{ms:.3f},{min(times):.3f},{batch * tokens / ms * 1e3:.0f},{peak:.0f},{loss.item():.4f}", flush=True)

    for _ in range(5 if iters > 5 else 1):
        step()
    if not turns:
        return timed()
    while True:
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
            if way != "graphs":  # the pool that a graph keeps would not be counted
                torch.cuda.reset_peak_memory_stats()
        print("ready", flush=True)
        if not sys.stdin.readline():
            return
        for _ in range(3 if device == "cuda" else 1):
            step()
        timed()


def prepare(cases, options):
    def start(case):
        return subprocess.Popen([sys.executable, __file__, "--iters", "1", *options, case], stdout=subprocess.PIPE)

    with ThreadPoolExecutor(max(1, os.cpu_count() // 2)) as pool:
        rows = list(pool.map(lambda case: start(case).communicate()[0], cases))
    for case, row in zip(cases, rows):
        if not row:
            start(case).communicate()


def main():
    arguments = sys.argv[1:]
    iters, prewarm, turns = 20, "--prewarm" in arguments, "--turns" in arguments
    if "--iters" in arguments:
        at = arguments.index("--iters")
        iters = int(arguments[at + 1])
        del arguments[at:at + 2]
    device = "cpu" if "--cpu" in arguments else "cuda"
    cases = [a for a in arguments if not a.startswith("--")]
    if not cases:
        sys.exit(__doc__)
    if prewarm:
        prepare([c for c in cases if not c.endswith(":eager")], ["--cpu"] if device == "cpu" else [])
        return
    if iters > 1 and not turns:
        print("system,device,model,batch,tokens,precision,way,params,ms_step,ms_best,tokens_per_second,peak_mib,loss", flush=True)
    for case in cases:
        try:
            measure(*case.split(":"), iters, device, turns)
        except Exception as error:  # out of memory, or a case that compile cannot do: said, and on to the next
            print(f"{case}: {repr(error)[:300]}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
