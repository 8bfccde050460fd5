"""GPT-2 at a small shape: weights, batches, logits, loss, every gradient, then 20 AdamW steps.

The reference values are PyTorch's at float64, from float32 weights, stored rounded to float32; PyTorch's own float32 run is
kept as losses, norms and its largest error per tensor, which shows what a good FP32 implementation can be expected to reach.
The key third of c_attn.bias has a gradient of exactly zero in real arithmetic (softmax ignores a shift common to all keys),
so what an FP32 run has there is rounding noise, and AdamW divides noise by its own size: that third of the bias says nothing.
"""

import copy

import torch

from gpt2_model import Gpt2, initialise
from store import deterministic, write_json, write_tensors

BATCH, CONTEXT, VOCABULARY, WIDTH, STEPS = 3, 16, 61, 32, 20
LR, BETAS, EPS, DECAY = 1e-3, (0.9, 0.95), 1e-8, 0.1
CLIP = 4.5  # about half of the steps have a larger gradient norm, half a smaller one


def adamw(model):
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    plain = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS, foreach=False)


def train(model, tokens, targets):
    optimizer, losses, norms = adamw(model), [], []
    for x, y in zip(tokens, targets):
        optimizer.zero_grad()
        _, loss = model.loss(x, y)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
        losses.append(loss.item())
    correction = 1 - BETAS[1] ** STEPS
    rms = {n: (optimizer.state[p]["exp_avg_sq"] / correction).sqrt() for n, p in model.named_parameters()}
    return losses, norms, rms


def noiseless(name, tensor):
    """The part of a tensor whose gradient is not identically zero."""
    if name.endswith("c_attn.bias"):
        return torch.cat([tensor[:WIDTH], tensor[2 * WIDTH:]])
    return tensor


def worst(exact, rounded):
    """Largest |rounded - exact| per tensor, and the largest |exact| it stands against."""
    return {name: {"error": (noiseless(name, rounded[name]).double() - noiseless(name, exact[name])).abs().max().item(),
                   "size": noiseless(name, exact[name]).abs().max().item()} for name in sorted(exact)}


def main():
    deterministic(1234)
    generator = torch.Generator().manual_seed(1234)
    single = initialise(Gpt2(context=CONTEXT, vocabulary=VOCABULARY, width=WIDTH), generator)
    double = copy.deepcopy(single).double()
    tokens = torch.randint(VOCABULARY, (STEPS, BATCH, CONTEXT), generator=generator)
    # Targets that can be learned: a fixed permutation of the input token.
    targets = torch.randperm(VOCABULARY, generator=generator)[tokens]

    tensors = {"tokens": tokens.int(), "targets": targets.int()}
    tensors.update({"init." + n: p.detach().clone() for n, p in single.named_parameters()})

    logits, loss = double.loss(tokens[0], targets[0])
    loss.backward()
    logits32, loss32 = single.loss(tokens[0], targets[0])
    loss32.backward()
    grads = {n: p.grad.clone() for n, p in double.named_parameters()}
    grads32 = {n: p.grad.clone() for n, p in single.named_parameters()}
    tensors["logits"] = logits.float()
    tensors.update({"grad." + n: g.float() for n, g in grads.items()})

    losses, norms, rms = train(double, tokens, targets)
    losses32, norms32, _ = train(single, tokens, targets)
    final = {n: p.detach() for n, p in double.named_parameters()}
    final32 = {n: p.detach() for n, p in single.named_parameters()}
    tensors.update({"final." + n: p.float() for n, p in final.items()})
    # AdamW divides a gradient by this, so an error of the gradient reaches the weight as lr * error / rms.
    tensors.update({"rms." + n: r.float() for n, r in rms.items()})
    write_tensors("gpt2_small.safetensors", __file__, tensors)
    write_json("gpt2_small.json", __file__, {
        "model": {"layers": 2, "heads": 2, "d_model": WIDTH, "seq_len": CONTEXT, "vocab_size": VOCABULARY,
                  "batch_size": BATCH, "layernorm_eps": 1e-5},
        "adamw": {"lr": LR, "beta1": BETAS[0], "beta2": BETAS[1], "eps": EPS, "weight_decay": DECAY, "clip": CLIP,
                  "steps": STEPS},
        "loss": loss.item(), "losses": losses, "grad_norms": norms,
        "float32": {"loss": loss32.item(), "losses": losses32, "grad_norms": norms32,
                    "logits_error": (logits32.double() - logits).abs().max().item(),
                    "grads": worst(grads, grads32), "final": worst(final, final32)},
    })


if __name__ == "__main__":
    main()
