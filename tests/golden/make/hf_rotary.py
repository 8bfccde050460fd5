"""A small GLM-4-MoE and a small Llama as transformers saves them, and what transformers makes of them: hf_NAME/, hf_NAME_sharded/ (for
glm4_moe with transformers 5's fused experts), hf_NAME_logits.safetensors (tokens; logits in float64, of the float32 and of the bfloat16 weights;
greedy continuations).

    python hf_rotary.py                       needs torch, transformers 5, safetensors
    python hf_rotary.py --check NAME FOLDER   loads what mezzo exported and compares its logits with the stored ones

Weights are drawn again until no choice is near: of an expert (or group) in the float32 weights, and of a token in the greedy texts.
"""
import copy
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Glm4MoeConfig, Glm4MoeForCausalLM, LlamaConfig, LlamaForCausalLM

from hf_gpt2 import DATA, save
from transformers_small import gap, in_double, initialise

VOCAB, CONTEXT, PROMPT = 61, 24, 5
SHAPE = {"d_model": 16, "experts": 4, "experts_per_token": 2, "expert_groups": 2, "expert_groups_used": 1}
NONE = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
GLM = Glm4MoeConfig(vocab_size=VOCAB, hidden_size=16, intermediate_size=40, moe_intermediate_size=12, num_hidden_layers=3, num_attention_heads=4,
                    num_key_value_heads=2, head_dim=8, attention_bias=True, use_qk_norm=True, first_k_dense_replace=1, n_routed_experts=4,
                    num_experts_per_tok=2, n_shared_experts=2, n_group=2, topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.5,
                    max_position_embeddings=CONTEXT, **NONE)
GLM._experts_implementation = "eager"  # the others have no float64
LLAMA = LlamaConfig(vocab_size=VOCAB, hidden_size=16, intermediate_size=40, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
                    rms_norm_eps=1e-5, max_position_embeddings=CONTEXT, **NONE)
MODELS = {"glm4_moe": (Glm4MoeForCausalLM, GLM), "llama": (LlamaForCausalLM, LLAMA)}


def logits_of(name, model, tokens):
    run = lambda: model(tokens, use_cache=False).logits
    model = copy.deepcopy(model).double()
    with torch.no_grad():
        return in_double(run) if name == "glm4_moe" else run()


def greedy_of(model, prompts):
    """Texts, and how near the likeliest token's logit came to another's."""
    texts, least = [], float("inf")
    for prompt in prompts:
        out = model.generate(prompt[None], attention_mask=torch.ones(1, PROMPT), max_new_tokens=CONTEXT - PROMPT, do_sample=False,
                             eos_token_id=None, pad_token_id=0)
        with torch.no_grad():
            best = model(out).logits[0, PROMPT - 1 : -1].topk(2)[0]
        least = min(least, (best[:, 0] - best[:, 1]).min().item())
        texts.append(out[0])
    return torch.stack(texts), least


def near(name, model, tokens):
    return name == "glm4_moe" and gap(copy.deepcopy(model).double(), SHAPE, tokens) < 0.003


def make(name):
    kind, config = MODELS[name]
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(0, VOCAB, (2, CONTEXT), generator=generator)
    prompts = torch.randint(0, VOCAB, (3, PROMPT), generator=generator)
    while True:
        model = initialise(kind(config).eval(), generator)
        greedy, least = greedy_of(model, prompts)
        if least > 0.01 and not near(name, model, tokens) and not near(name, model, greedy):
            break
    save(model, DATA / f"hf_{name}")
    save(model, DATA / f"hf_{name}_sharded", max_shard_size="20KB", save_original_format=False)
    low = copy.deepcopy(model)
    low.load_state_dict({n: t if "e_score" in n else t.bfloat16().float() for n, t in model.state_dict().items()})
    made = f"torch {torch.__version__}, transformers {transformers.__version__}"
    store = {"tokens": tokens.int(), "logits": logits_of(name, model, tokens), "logits_bf16": logits_of(name, low, tokens), "greedy": greedy.int()}
    save_file({n: t.contiguous() for n, t in store.items()}, DATA / f"hf_{name}_logits.safetensors", metadata={"origin": made})
    print(name, made, f"least difference of two logits {least:.3g}", {t[PROMPT:].unique().numel() for t in greedy})


def check(name, folder):
    stored = load_file(DATA / f"hf_{name}_logits.safetensors")
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.float32 and type(model) is MODELS[name][0], (model.dtype, type(model))
    with torch.no_grad():
        got = model(stored["tokens"].long()).logits.double()
    error = ((got - stored["logits"]).abs().max() / stored["logits"].abs().max()).item()
    print(f"{folder}: largest difference {error:.2g} of the largest logit")
    assert error < 1e-5


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--check"]:
        check(sys.argv[2], sys.argv[3])
    else:
        for model_name in MODELS:
            make(model_name)
