"""Data parallel in PyTorch: training steps of GPT-2-shaped models on every GPU of a torchrun job, one CSV row a case.

usage: torchrun --nproc-per-node N torch_ddp.py [--iters N] CASE...
  CASE is MODEL:WAY[:BATCHxTOKENS[xMICRO]], as gpt2:ddp:32x1024; batch and tokens are each GPU's and each micro batch's,
             a step has MICRO [1] micro batches, of which the last alone exchanges gradients (ddp and zero1)
  MODEL      gpt2 (124M), small medium large xl 2.7B (vocabulary 10,000), as in torch_gpt2.py;
             llama-8B (transformers' LlamaForCausalLM of Llama 3.1's sizes; fsdp alone, each block compiled, its activations
             recomputed where RECOMPUTE=1; the loss compiled too)
  WAY        ddp    DistributedDataParallel; plain on one GPU
             zero1  the same with ZeroRedundancyOptimizer
             fsdp   fully_shard of every block and the whole: parameters in BF16, gradients reduced in FP32

A step is forward and backward in BF16 (torch.compile), clipping at 1.0 and fused AdamW; ms_step is the median of rank 0's CUDA-event
times, tokens a second are all GPUs', memory is rank 0's allocator's peak. NVLink's multicast is off. DEVICE=cpu tries it with ranks of a CPU; TINY=1
makes the Llama tiny.
"""
import contextlib, os, re, sys

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
import torch
import torch.distributed as dist
from torch_gpt2 import GPT, SIZES, milliseconds

SHAPES = {"gpt2": (32, 1024)}  # others: 4 x 1,024
DEVICE = os.environ.get("DEVICE", "cuda")


def describe(case):
    found = re.fullmatch(r"([^:]+):(ddp|zero1|fsdp)(?::(\d+)x(\d+)(?:x([1-9]\d*))?)?", case)
    if not found or (found.group(1) not in ("gpt2", "llama-8B") and found.group(1) not in SIZES):
        sys.exit(f"{case}: no such case; see the usage")
    batch, tokens = SHAPES.get(found.group(1), (4, 1024))
    if found.group(3):
        batch, tokens = int(found.group(3)), int(found.group(4))
    micro = int(found.group(5) or 1)
    if micro > 1 and found.group(2) == "fsdp":
        sys.exit(f"{case}: several micro batches need ddp or zero1")
    if found.group(1) == "llama-8B":
        if found.group(2) != "fsdp":
            sys.exit(f"{case}: llama-8B needs fsdp")
        return found.group(1), found.group(2), batch, tokens, micro, 128256, None
    vocab, sizes = (50304, (768, 3072, 12, 12)) if found.group(1) == "gpt2" else (10000, SIZES[found.group(1)])
    return found.group(1), found.group(2), batch, tokens, micro, vocab, sizes


class Llama(torch.nn.Module):
    """Llama 3.1 8B of transformers: forward(ids, targets) is the mean cross entropy."""

    def __init__(self, tokens):
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        width, hidden, layers = (64, 128, 2) if os.environ.get("TINY") == "1" else (4096, 14336, 32)
        net = LlamaForCausalLM(LlamaConfig(
            vocab_size=128256, hidden_size=width, intermediate_size=hidden, num_hidden_layers=layers, num_attention_heads=32, num_key_value_heads=8,
            max_position_embeddings=tokens, rope_theta=5e5, rms_norm_eps=1e-5, use_cache=False, attn_implementation="sdpa"))
        self.net, self.head = net.model, net.lm_head
        self.blocks = self.net.layers
        self.loss = torch.compile(lambda logits, targets: torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten()))

    def forward(self, ids, targets):
        return self.loss(self.head(self.net(input_ids=ids, use_cache=False).last_hidden_state), targets)


def distribute(net, way, device):
    """What forward runs, and the optimizer."""
    if way == "fsdp":
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for at, block in enumerate(net.blocks):
            if isinstance(net, Llama):
                if os.environ.get("RECOMPUTE") == "1":
                    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

                    block = checkpoint_wrapper(block)
                net.blocks[at] = block = torch.compile(block)
            fully_shard(block, mp_policy=policy)
        forward = fully_shard(net, mp_policy=policy)
    elif dist.get_world_size() > 1:
        forward = torch.nn.parallel.DistributedDataParallel(net, device_ids=[device] if DEVICE == "cuda" else None, gradient_as_bucket_view=True)
    else:
        forward = net
    if way == "zero1" and dist.get_world_size() > 1:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW, lr=1e-4, fused=True)
    else:
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    return forward if isinstance(net, Llama) else torch.compile(forward), optimizer


def measure(case, iters, device):
    model, way, batch, tokens, micro, vocab, sizes = describe(case)
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.device(device):
        net = GPT(vocab, tokens, *sizes) if sizes else Llama(tokens)
    count = sum(p.numel() for p in net.parameters())
    forward, optimizer = distribute(net, way, device)
    if DEVICE == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(1 + dist.get_rank())
    ids = torch.randint(0, vocab, (batch, tokens), device=device)
    targets = torch.randint(0, vocab, (batch, tokens), device=device)

    def forward_backward(parts):
        with contextlib.nullcontext() if way == "fsdp" else torch.autocast(DEVICE, torch.bfloat16):
            loss = forward(ids, targets)
        (loss if parts == 1 else loss / parts).backward()
        return loss

    def step():
        if micro > 1:
            with forward._orig_mod.no_sync() if dist.get_world_size() > 1 else contextlib.nullcontext():
                for _ in range(micro - 1):
                    forward_backward(micro)
        loss = forward_backward(micro)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    for _ in range(6):
        step()
    times = []
    for _ in range(iters):
        ms, loss = milliseconds(step, DEVICE)
        times.append(ms)
    if dist.get_rank() > 0:
        return
    ms, ranks = sorted(times)[len(times) // 2], dist.get_world_size()
    batches = f"{batch}x{micro}" if micro > 1 else batch
    name, peak = (torch.cuda.get_device_name(), torch.cuda.max_memory_allocated()) if DEVICE == "cuda" else ("CPU", 0)
    print(f"torch {torch.__version__},{name},{ranks},{model},{batches},{tokens},bf16,{way},{count},{ms:.3f},"
          f"{min(times):.3f},{ranks * batch * micro * tokens / ms * 1e3:.0f},{peak / 2**20:.0f},{loss.item():.4f}",
          flush=True)


def main():
    arguments = sys.argv[1:]
    iters = 20
    if "--iters" in arguments:
        at = arguments.index("--iters")
        iters = int(arguments[at + 1])
        del arguments[at:at + 2]
    if not arguments or arguments[0].startswith("-"):
        sys.exit(__doc__)
    for case in arguments:
        describe(case)
    device = int(os.environ["LOCAL_RANK"]) if DEVICE == "cuda" else "cpu"
    if DEVICE == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo")
    if dist.get_rank() == 0:
        print("system,device,ranks,model,batch,tokens,precision,way,params,ms_step,ms_best,tokens_per_second,peak_mib,loss", flush=True)
    for case in arguments:
        measure(case, iters, device)
    dist.destroy_process_group()


main()
