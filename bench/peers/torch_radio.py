"""What a PyTorch user gets: training steps of radio_unet and kl_vae, the modules that src/models has, one CSV row each.

usage: torch_radio.py [--iters N] [--cpu] [--heuristics] [--turns] CASE...
  CASE is MODEL:BATCH:PRECISION:WAY, as radio_unet-radiodiff:8:bf16:graphs
  MODEL      radio_unet, radio_unet-tiny, radio_unet-radiodiff, kl_vae, kl_vae-tiny, kl_vae-radiodiff: Mezzo's sizes by name
  PRECISION  fp32 tf32 bf16 fp16 (fp16 with GradScaler)
  WAY        eager, compiled (torch.compile), graphs (torch.compile with mode="reduce-overhead", which captures CUDA graphs) or
             tuned (mode="max-autotune", which captures them too and times kernels first)
--cpu times on the CPU, by the wall clock; --threads N on so many.
--capture times eager and compiled cases once more, as WAY+captured, with the whole step as one CUDA graph: forward, backward, clipping, scaler, AdamW.
--times FILE appends each step's time: system,model,batch,precision,ms.
--heuristics leaves the choice of algorithms to cuDNN, which starts sooner: without it cudnn.benchmark is on.
--turns gets one case ready, says "ready", and times the case each time a line comes in (bench/pairs.py).
--parameters prints each model's parameters and times nothing.

Pictures and weights lie channels-last. A step is forward, backward, unscale, clipping at 1.0 and fused AdamW;
ms_step is the median of CUDA-event times. Memory is the allocator's peak.
"""
import contextlib, gc, math, sys, time
import torch
import torch.nn as nn
import torch.nn.functional as F

# side, channels, side and channels of the condition (0: none), width, multipliers, blocks a level, groups, heads, first level of attention
SIZES = {
    "kl_vae": (64, 1, 0, 0, 32, (1, 2, 4), 1, 8, 1, 0),
    "kl_vae-tiny": (16, 1, 0, 0, 8, (1, 2), 1, 4, 1, 0),
    "kl_vae-radiodiff": (320, 1, 0, 0, 128, (1, 2, 4), 2, 32, 1, 0),
    "radio_unet": (64, 1, 64, 2, 32, (1, 2, 2), 1, 8, 4, 2),
    "radio_unet-tiny": (16, 1, 16, 2, 8, (1, 2), 1, 4, 2, 1),
    "radio_unet-radiodiff": (80, 3, 320, 3, 128, (1, 2, 4, 4), 2, 8, 8, 2),
}
LATENT, KL_WEIGHT = 3, 1e-6
options, flags = {}, set()  # of the command line


class Norm(nn.Module):
    """Group norm, scale and shift of each picture, SiLU."""

    def __init__(self, groups, channels, eps, silu=True):
        super().__init__()
        self.norm, self.silu = nn.GroupNorm(groups, channels, eps), silu

    def forward(self, x, film=None):
        x = self.norm(x)
        if film is not None:
            scale, shift = film[:, :, None, None].chunk(2, 1)
            x = x * (1 + scale) + shift
        return F.silu(x) if self.silu else x


def conv(channels, n, size=3, stride=1):
    return nn.Conv2d(channels, n, size, stride, size // 2)


class Block(nn.Module):
    def __init__(self, channels, n, groups, eps, time=0):
        super().__init__()
        self.film = nn.Linear(time, 2 * n) if time else None
        self.norm1, self.conv1 = Norm(groups, channels, eps), conv(channels, n)
        self.norm2, self.conv2 = Norm(groups, n, eps), conv(n, n)
        self.shortcut = conv(channels, n, 1) if channels != n else nn.Identity()

    def forward(self, x, time=None):
        film = self.film(F.silu(time)) if self.film is not None else None
        return self.shortcut(x) + self.conv2(self.norm2(self.conv1(self.norm1(x)), film))


class Attention(nn.Module):
    def __init__(self, channels, seen, heads, groups, eps):
        super().__init__()
        self.heads, self.norm = heads, Norm(groups, channels, eps, silu=False)
        self.q, self.k, self.v = nn.Linear(channels, channels), nn.Linear(seen, channels), nn.Linear(seen, channels)
        self.out = nn.Linear(channels, channels)

    def forward(self, x, context=None):
        b, c, height, width = x.shape
        h = self.norm(x).flatten(2).transpose(1, 2)
        seen = h if context is None else context.flatten(2).transpose(1, 2)
        q, k, v = (f(s).view(b, -1, self.heads, c // self.heads).transpose(1, 2)
                   for f, s in ((self.q, h), (self.k, seen), (self.v, seen)))
        y = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, -1, c))
        return x + y.transpose(1, 2).reshape(b, c, height, width)


class Middle(nn.Module):
    def __init__(self, n, heads, groups, eps, time=0):
        super().__init__()
        self.first, self.last = Block(n, n, groups, eps, time), Block(n, n, groups, eps, time)
        self.attention = Attention(n, n, heads, groups, eps)

    def forward(self, x, time=None):
        return self.last(self.attention(self.first(x, time)), time)


class Vae(nn.Module):
    def __init__(self, side, channels, _side, _channels, width, multipliers, blocks, groups, heads, _from):
        super().__init__()
        eps, widths = 1e-6, [width * m for m in multipliers]
        down, x = [conv(channels, widths[0])], widths[0]
        for level, n in enumerate(widths):
            for _ in range(blocks):
                down.append(Block(x, n, groups, eps))
                x = n
            if level + 1 < len(widths):
                down += [nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(n, n, 3, 2)]
        down += [Middle(x, heads, groups, eps), Norm(groups, x, eps), conv(x, 2 * LATENT), conv(2 * LATENT, 2 * LATENT, 1)]
        up = [conv(LATENT, LATENT, 1), conv(LATENT, x), Middle(x, heads, groups, eps)]
        for level, n in enumerate(reversed(widths)):
            for _ in range(blocks + 1):
                up.append(Block(x, n, groups, eps))
                x = n
            if level + 1 < len(widths):
                up += [nn.Upsample(scale_factor=2), conv(n, n)]
        up += [Norm(groups, x, eps), conv(x, channels)]
        self.down, self.up = nn.Sequential(*down), nn.Sequential(*up)

    def forward(self, image, weight):
        mean, log_variance = self.down(image).float().chunk(2, 1)
        log_variance = log_variance.clamp(-30, 20)
        y = self.up(mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)).float()
        kl = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance)
        return (weight * ((y - image).abs() + (y - image)**2)).mean() + KL_WEIGHT * (weight * kl).sum() / image.numel()


class Unet(nn.Module):
    def __init__(self, side, channels, seen, seen_channels, width, multipliers, blocks, groups, heads, attention_from):
        super().__init__()
        eps, widths, self.width = 1e-5, [width * m for m in multipliers], width
        time = 4 * width
        self.embed = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))

        def halve(x, n):
            return nn.Sequential(conv(x, n, 3, 2), Norm(groups, n, eps))

        start, x = [conv(seen_channels, width), Norm(groups, width, eps)], width
        while seen > side:
            start.append(halve(width, width))
            seen //= 2
        self.condition = nn.ModuleList()
        for level, n in enumerate(widths):
            self.condition.append(nn.Sequential(*(start if level == 0 else [halve(x, n)]), Block(n, n, groups, eps)))
            x = n

        def conditioned(level):
            n = widths[level]
            return Attention(n, n, heads, groups, eps) if level >= attention_from else conv(n, n, 1)

        self.conv_in, x, skips = conv(channels + width, width), width, [width]
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        for level, n in enumerate(widths):
            m = nn.ModuleDict({"blocks": nn.ModuleList(), "condition": conditioned(level)})
            for _ in range(blocks):
                m["blocks"].append(Block(x, n, groups, eps, time))
                x = n
                skips.append(x)
            if level + 1 < len(widths):
                m["halve"] = conv(n, n, 3, 2)
                skips.append(n)
            self.down.append(m)
        self.middle = Middle(x, heads, groups, eps, time)
        for level, n in reversed(list(enumerate(widths))):
            m = nn.ModuleDict({"blocks": nn.ModuleList(), "condition": conditioned(level)})
            for _ in range(blocks + 1):
                m["blocks"].append(Block(x + skips.pop(), n, groups, eps, time))
                x = n
            if level > 0:
                m["twice"] = conv(n, widths[level], 3)
            self.up.append(m)
        self.norm_out, self.conv_out = Norm(groups, x, eps), conv(x, 2 * channels)

    def forward(self, image, condition, time, schedule):
        a, sigma, w1, w2 = (schedule[:, i, None, None, None] for i in range(4))
        noise = torch.randn_like(image)
        half = self.width // 2
        angle = 1000 * time[:, None] * torch.exp(-math.log(10000) * torch.arange(half, device=time.device) / half)
        t = self.embed(torch.cat([angle.cos(), angle.sin()], 1))
        features = []
        for level in self.condition:
            condition = level(condition)
            features.append(condition)

        def seen(m, x, level):
            if isinstance(m["condition"], Attention):
                return m["condition"](x, features[level])
            return x + m["condition"](features[level])

        x = self.conv_in(torch.cat([a * image + sigma * noise, features[0].float()], 1))
        skips = [x]
        for level, m in enumerate(self.down):
            for i, block in enumerate(m["blocks"]):
                x = block(x, t)
                x = seen(m, x, level) if i == 0 else x
                skips.append(x)
            if "halve" in m:
                x = m["halve"](x)
                skips.append(x)
        x = self.middle(x, t)
        for level, m in zip(reversed(range(len(self.up))), self.up):
            for i, block in enumerate(m["blocks"]):
                x = block(torch.cat([x, skips.pop()], 1), t)
                x = seen(m, x, level) if i == 0 else x
            if "twice" in m:
                x = m["twice"](F.interpolate(x, scale_factor=2))
        y = self.conv_out(self.norm_out(x)).float()
        c = image.shape[1]
        return (w1 * (y[:, :c] + image)**2).mean() + (w2 * (y[:, c:] - noise)**2).mean()


def make(model):
    return (Vae if model.startswith("kl_vae") else Unet)(*SIZES[model])


def inputs(model, batch, device):
    side, channels, seen, seen_channels = SIZES[model][:4]

    def picture(side, channels):
        return torch.rand(batch, channels, side, side, device=device).contiguous(memory_format=torch.channels_last)

    if model.startswith("kl_vae"):
        return picture(side, channels), torch.ones(batch, 1, 1, 1, device=device)
    return picture(side, channels), picture(seen, seen_channels), torch.rand(batch, device=device), torch.rand(batch, 4, device=device)


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


def captured(step):
    """The step as one CUDA graph, after some on a stream of their own, as torch's page on graphs has it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def replay():
        graph.replay()
        return loss

    return replay


def clock(step, iters, device, warmup=None):
    for _ in range(warmup if warmup is not None else 5 if iters > 5 else 1):
        step()
    times = []
    for _ in range(iters):
        ms, loss = milliseconds(step, device)
        times.append(ms)
    return times, loss


def row(net, model, batch, precision, way, times, loss, device, started):
    ms = sorted(times)[len(times) // 2]
    count = sum(p.numel() for p in net.parameters())
    peak = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else 0
    name = torch.cuda.get_device_name() if device == "cuda" else f"cpu x {torch.get_num_threads()}"
    print(f"torch {torch.__version__},{name},{model},{batch},{precision},{way},{count},{ms:.3f},{min(times):.3f},"
          f"{batch / ms * 1e3:.1f},{peak:.0f},{loss.item():.4f},{time.perf_counter() - started:.0f}", flush=True)
    if "--times" in options:
        with open(options["--times"], "a") as f:
            f.writelines(f"PyTorch {way},{model},{batch},{precision},{t:.4f}\n" for t in times)


def measure(model, batch, precision, way, iters, device):
    torch._dynamo.reset()
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.benchmark = "--heuristics" not in flags
    capture = "--capture" in flags and way in ("eager", "compiled") and device == "cuda"
    with torch.device(device):
        net = make(model).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True, capturable=capture)
    modes = {"compiled": None, "graphs": "reduce-overhead", "tuned": "max-autotune"}
    forward = net if way == "eager" else torch.compile(net, mode=modes[way])
    low = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision)
    scaler = torch.amp.GradScaler(device, enabled=precision == "fp16")
    data = inputs(model, batch, device)

    def step():
        with torch.autocast(device, low) if low else contextlib.nullcontext():
            loss = forward(*data)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return loss

    started = time.perf_counter()
    if "--turns" in flags:
        clock(step, 1, device)
        while print("ready", flush=True) or sys.stdin.readline():
            row(net, model, batch, precision, way, *clock(step, iters, device, warmup=1), device, started)
        return
    row(net, model, batch, precision, way, *clock(step, iters, device), device, started)
    if capture:
        started = time.perf_counter()
        row(net, model, batch, precision, f"{way}+captured", *clock(captured(step), iters, device), device, started)


def main():
    arguments, cases = sys.argv[1:], []
    while arguments:
        word = arguments.pop(0)
        if word in ("--iters", "--times", "--threads"):
            options[word] = arguments.pop(0)
        elif word.startswith("--"):
            flags.add(word)
        else:
            cases.append(word)
    if "--parameters" in flags:
        for model in SIZES:
            with torch.device("meta"):
                print(f"{model},{sum(p.numel() for p in make(model).parameters())}")
        return
    device, iters = "cpu" if "--cpu" in flags else "cuda", int(options.get("--iters", 20))
    if "--threads" in options:
        torch.set_num_threads(int(options["--threads"]))
    if not cases:
        sys.exit(__doc__)
    if iters > 1 and "--turns" not in flags:
        print("system,device,model,batch,precision,way,params,ms_step,ms_best,images_per_second,peak_mib,loss,seconds", flush=True)
    for case in cases:
        model, batch, precision, way = case.split(":")
        try:
            measure(model, int(batch), precision, way, iters, device)
        except Exception as error:  # out of memory, or a case that compile cannot do: said, and on to the next
            print(f"{case}: {repr(error)[:300]}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
