"""cs336 and glm4_moe at small shapes: weights, a batch, logits, loss and every gradient, and how far mixed precision is from them.

    python3 transformers_small.py        (needs torch, safetensors and, for glm4_moe, transformers 5)

Reference values are float64 from float32 weights, as for gpt2_small. glm4_moe is transformers' Glm4MoeForCausalLM, in float64 everywhere
(its router and norms ask for float32, which is answered with float64 here), but for the angles of the rotary positions, which are
float32 by definition. Two of it: `plain`, the shape of the study, and `full`, with every option of the large models.

Experts are chosen by comparing scores. So that no rounding of a low precision decides, weights are drawn again until every token's
last chosen and first rejected expert (and group) differ by GAP.

The mixed-precision part is torch.autocast("cpu"): the root mean square of (mixed - float64) and of float64, for every gradient and
the logits. The router is kept out of autocast, as Mezzo's is. FP16 scales its loss by 1024.
"""

import copy

import torch
import torch.nn.functional as F

from cs336_model import Cs336
from store import deterministic, write_json, write_tensors

BATCH, CONTEXT, VOCABULARY, WIDTH, GAP = 2, 12, 61, 32, 0.04
PRECISIONS = {"bf16": (torch.bfloat16, 1.0), "fp16": (torch.float16, 1024.0)}
CS336 = {"family": "cs336", "layers": 2, "heads": 2, "d_model": WIDTH, "d_ff": 48}
PLAIN = {"family": "glm4_moe", "layers": 2, "heads": 4, "kv_heads": 4, "head_dim": 8, "d_model": WIDTH, "d_ff": 40,
         "attention_bias": False, "qk_norm": False, "dense_layers": 1, "experts": 8, "experts_per_token": 2,
         "shared_experts": 1, "d_expert": 16, "expert_groups": 1, "expert_groups_used": 1, "normalise_weights": True,
         "routed_scale": 1.0}
FULL = {**PLAIN, "layers": 3, "kv_heads": 2, "head_dim": 12, "attention_bias": True, "qk_norm": True,
        "experts_per_token": 3, "shared_experts": 2, "expert_groups": 4, "expert_groups_used": 2,
        "normalise_weights": False, "routed_scale": 1.5}


def glm(shape):
    from transformers import Glm4MoeConfig, Glm4MoeForCausalLM
    config = Glm4MoeConfig(
        vocab_size=VOCABULARY, hidden_size=shape["d_model"], intermediate_size=shape["d_ff"],
        moe_intermediate_size=shape["d_expert"], num_hidden_layers=shape["layers"], num_attention_heads=shape["heads"],
        num_key_value_heads=shape["kv_heads"], head_dim=shape["head_dim"], attention_bias=shape["attention_bias"],
        use_qk_norm=shape["qk_norm"], first_k_dense_replace=shape["dense_layers"], n_routed_experts=shape["experts"],
        num_experts_per_tok=shape["experts_per_token"], n_shared_experts=shape["shared_experts"],
        n_group=shape["expert_groups"], topk_group=shape["expert_groups_used"],
        norm_topk_prob=shape["normalise_weights"], routed_scaling_factor=shape["routed_scale"],
        rms_norm_eps=torch.tensor(1e-5).item(), max_position_embeddings=64, use_cache=False)
    config._experts_implementation = "eager"
    return Glm4MoeForCausalLM(config)


class Doubled:
    """torch, but for float32, which is float64."""

    def __getattr__(self, name):
        return torch.float64 if name == "float32" else getattr(torch, name)


def in_double(run):
    from transformers.models.glm4_moe import modeling_glm4_moe as modeling
    real, modeling.torch = modeling.torch, Doubled()
    try:
        return run()
    finally:
        modeling.torch = real


def initialise(model, generator):
    """Larger than a training initialisation, so that softmax, SiLU and the norms are away from their linear parts."""
    with torch.no_grad():
        for name, p in list(model.named_parameters()) + [b for b in model.named_buffers() if "e_score" in b[0]]:
            noise = torch.randn(p.shape, generator=generator)
            if "embed" in name:
                p.copy_(noise)
            elif "e_score" in name:
                p.copy_(0.2 * noise)
            elif name.endswith("gate.weight"):
                p.copy_(noise * (1.5 / p.shape[-1] ** 0.5))
            elif p.dim() >= 2:
                p.copy_(noise * (0.8 / p.shape[-1] ** 0.5))
            else:  # norms' weights around 1, biases around 0
                p.copy_((0.0 if name.endswith("bias") else 1.0) + 0.1 * noise)
    return model


def packed(tensors):
    """transformers' tensors by Mezzo's names."""
    out = {}
    for name, t in tensors.items():
        name = name.removeprefix("model.")
        for part, whole in (("q_proj", "qkv_proj"), ("gate_proj", "gate_up_proj")):
            if "." + part + "." not in name:
                continue
            others = ("k_proj", "v_proj") if part == "q_proj" else ("up_proj",)
            t = torch.cat([t] + [tensors["model." + name.replace(part, o)] for o in others])
            name = name.replace(part, whole)
        if not any("." + o + "." in name for o in ("k_proj", "v_proj", "up_proj")):
            out[name] = t
    return out


def gap(model, shape, tokens):
    """The least distance between a chosen and a rejected expert, or group."""
    least = [float("inf")]

    def look(module, inputs, _):
        x = inputs[0].reshape(-1, shape["d_model"])
        choice = F.linear(x, module.weight.to(x)).sigmoid() + module.e_score_correction_bias.to(x)
        groups = choice.view(len(x), shape["expert_groups"], -1)
        if shape["expert_groups"] > 1:
            best = groups.topk(2, dim=-1)[0].sum(-1).sort(descending=True)[0]
            used = shape["expert_groups_used"]
            least[0] = min(least[0], (best[:, used - 1] - best[:, used]).min().item())
            rank = groups.topk(2, dim=-1)[0].sum(-1).argsort(descending=True)[:, used:]
            groups = groups.scatter(1, rank[..., None].expand(-1, -1, groups.shape[-1]), float("-inf"))
        ranked = groups.flatten(1).sort(descending=True)[0]
        k = shape["experts_per_token"]
        least[0] = min(least[0], (ranked[:, k - 1] - ranked[:, k]).min().item())

    hooks = [m.register_forward_hook(look) for n, m in model.named_modules() if n.endswith("mlp.gate")]
    with torch.no_grad():
        in_double(lambda: model(input_ids=tokens))
    for h in hooks:
        h.remove()
    return least[0]


def keep_router_out(model):
    for name, module in model.named_modules():
        if not name.endswith("mlp.gate"):
            continue
        inner = module.forward

        def forward(x, inner=inner):
            with torch.autocast("cpu", enabled=False):
                return inner(x.float())

        module.forward = forward
    return model


def rms(x):
    return x.double().square().mean().sqrt().item()


def run(model, rename, tokens, targets, dtype=None, scale=1.0):
    model.zero_grad()
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
        logits = model(tokens)
        logits = getattr(logits, "logits", logits)
        loss = F.cross_entropy((logits if dtype is None else logits.float()).flatten(0, 1), targets.flatten())
    (loss * scale).backward()
    grads = rename({n: p.grad.detach().double() / scale for n, p in model.named_parameters()})
    return logits.detach().double(), loss.item(), grads


def store(name, shape, model, rename, tokens, targets, least=None):
    weights = rename({n: p.detach().clone() for n, p in model.named_parameters()})
    double = copy.deepcopy(model).double()
    exact = lambda: run(double, rename, tokens, targets)
    logits, loss, grads = in_double(exact) if shape["family"] == "glm4_moe" else exact()
    for n, b in model.named_buffers():
        if "e_score" in n:  # a parameter here, without a gradient
            weights[n.removeprefix("model.")] = b.clone()
            grads[n.removeprefix("model.")] = torch.zeros_like(b)
    tensors = {"tokens": tokens.int()[None], "targets": targets.where(targets >= 0, -1).int()[None], "logits": logits.float()}
    tensors.update({"init." + n: w for n, w in weights.items()})
    tensors.update({"grad." + n: g.float() for n, g in grads.items()})
    content = {"model": {**shape, "vocab_size": VOCABULARY, "seq_len": CONTEXT, "batch_size": BATCH}, "loss": loss}
    if least is not None:
        content["gap"] = least
    for precision, (dtype, scale) in {"fp32": (None, 1.0), **PRECISIONS}.items():
        mixed_logits, _, mixed = run(keep_router_out(copy.deepcopy(model)), rename, tokens, targets, dtype, scale)
        errors = {"grad." + n: {"error": rms(g - grads[n]), "size": rms(grads[n])} for n, g in sorted(mixed.items())}
        errors["logits"] = {"error": rms(mixed_logits - logits), "size": rms(logits)}
        content[precision] = {"scale": scale, "tensors": errors}
    write_tensors(name + ".safetensors", __file__, tensors)
    write_json(name + ".json", __file__, content)


def main():
    deterministic(1234)
    generator = torch.Generator().manual_seed(1234)
    tokens = torch.randint(VOCABULARY, (BATCH, CONTEXT), generator=generator)
    targets = torch.randint(VOCABULARY, (BATCH, CONTEXT), generator=generator)
    targets[0, 3] = -100  # ignored; stored as -1, which is Mezzo's number for it
    model = Cs336(CS336["layers"], CS336["heads"], WIDTH, CS336["d_ff"], VOCABULARY)
    initialise(model, generator)
    store("cs336_small", CS336, model, lambda t: t, tokens, targets)
    for name, shape in (("glm4_moe_plain", PLAIN), ("glm4_moe_full", FULL)):
        model = glm(shape)
        least = 0
        while least < (GAP if shape is PLAIN else GAP / 4):
            initialise(model, generator)
            least = gap(copy.deepcopy(model).double(), shape, tokens)
        store(name, shape, model, packed, tokens, targets, least)


if __name__ == "__main__":
    main()
