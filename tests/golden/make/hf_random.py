"""Random configurations of each family, as transformers, diffusers and PEFT save them and as people edit them: the loss that the library
gives is Mezzo's to 1e-5 (of itself, where it is above 1), or Mezzo refuses the folder by a key's name.

    python hf_random.py MEZZO [--count 300] [--seed 1] [--family gpt2 …] [--keep FOLDER]

needs torch, transformers (4.57 or 5), diffusers, peft, safetensors. Writes no golden file. Exits with 1 and names each configuration that
differs; with --keep, its folder stays. What the library itself cannot load is counted apart.
"""
import argparse
import json
import os
import random
import re
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")
os.environ.setdefault("DIFFUSERS_VERBOSITY", "critical")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoConfig

transformers.utils.logging.disable_progress_bar()
WINDOWS = 3
BOOLS, ODD = [True, False], [None, True, False, 0, 1, 2, 0.5, "silu", [], {}, [1], {"a": 1}, 10**30]


def draw_weights(model):
    with torch.no_grad():
        for name, p in model.named_parameters():
            size = 0.15 if p.dim() == 1 else 0.6 / p.shape[-1] ** 0.5
            p.copy_(torch.randn(p.shape) * size + (1 if p.dim() == 1 and "norm" in name.lower() or ".ln_" in name and name.endswith("weight") else 0))


def some(r, p, common, others):
    """A common value, but with probability p / 2 another one."""
    return r.choice(others) if r.random() < p / 2 else r.choice(common)


def random_rope(r, partial):
    theta = r.choice([10000.0, 500000.0, 50.0, 1e6])
    kind = r.random() * 0.85
    if kind < 0.75:
        rope = {"rope_type": "default", "rope_theta": theta}
    elif kind < 0.82:
        rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": theta}
    elif kind < 0.9:
        rope = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8, "rope_theta": theta}
    else:
        rope = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8, "rope_theta": theta}
    if partial is not None:
        rope["partial_rotary_factor"] = partial
    return rope


def restyle_rope(r, config):
    """The places where versions of transformers, and people, put the same settings."""
    rope = config.pop("rope_parameters", None)
    if rope is None:
        rope = dict(config.pop("rope_scaling", None) or {"rope_type": "default"}, rope_theta=config.pop("rope_theta", 10000.0))
    style = r.randrange(6)
    inner = {k: v for k, v in rope.items() if k not in ("rope_theta", "partial_rotary_factor")}
    if style == 0:
        config["rope_parameters"] = rope
    elif style == 1:  # transformers 4
        config["rope_theta"] = rope["rope_theta"]
        config["rope_scaling"] = None if inner.get("rope_type") == "default" else inner
    elif style == 2:
        config["rope_scaling"] = rope
    elif style == 3:
        config.update(rope_theta=rope["rope_theta"], rope_scaling={("type" if k == "rope_type" else k): v for k, v in inner.items()})
    elif style == 4:
        config.update(rope_theta=rope["rope_theta"], rope_parameters=rope)
    else:  # two places that differ
        config.update(rope_theta=rope["rope_theta"] + 1, rope_parameters=rope)
    if "partial_rotary_factor" in rope and style in (1, 3):
        config["partial_rotary_factor"] = rope["partial_rotary_factor"]


def gpt2(r):
    head, heads = r.choice([2, 4, 6, 8]), r.choice([1, 2, 3, 4])
    drop = r.choice([0.0, 0.1, 0.3])
    config = dict(model_type="gpt2", n_embd=head * heads, n_head=heads, n_layer=r.choice([1, 2, 3]), vocab_size=r.randrange(11, 80),
                  n_positions=r.randrange(4, 25), n_inner=r.choice([None, None, 12, 40]),
                  activation_function=some(r, 0.15, ["gelu_new", "gelu_pytorch_tanh", "gelu_fast"], ["gelu", "relu", "silu", "gelu_accurate"]),
                  layer_norm_epsilon=some(r, 0.15, [1e-5], [1e-6, 1e-3]), resid_pdrop=drop, embd_pdrop=drop,
                  attn_pdrop=some(r, 0.1, [drop], [0.2]), scale_attn_weights=some(r, 0.1, [True], [False]),
                  scale_attn_by_inverse_layer_idx=some(r, 0.1, [False], [True]), reorder_and_upcast_attn=r.choice(BOOLS),
                  tie_word_embeddings=some(r, 0.1, [True], [False]), use_cache=r.choice(BOOLS), bos_token_id=1, eos_token_id=2,
                  summary_type=r.choice(["cls_index", "mean"]), summary_first_dropout=r.random(), initializer_range=r.random())
    return config, config["n_positions"]


def llama(r):
    head, heads = r.choice([2, 4, 8]), r.choice([1, 2, 4])
    config = dict(model_type="llama", hidden_size=head * heads, num_attention_heads=heads, num_hidden_layers=r.choice([1, 2, 3]),
                  num_key_value_heads=some(r, 0.15, [heads], [1]), intermediate_size=r.choice([8, 24, 40]), vocab_size=r.randrange(11, 80),
                  max_position_embeddings=r.randrange(4, 25), rms_norm_eps=r.choice([1e-6, 1e-5, 1e-2]),
                  hidden_act=some(r, 0.1, ["silu", "swish"], ["gelu", "relu"]), attention_bias=some(r, 0.1, [False], [True]),
                  mlp_bias=some(r, 0.1, [False], [True]), tie_word_embeddings=some(r, 0.1, [False], [True]),
                  attention_dropout=some(r, 0.1, [0.0], [0.1]), pretraining_tp=r.choice([1, 2]), use_cache=r.choice(BOOLS),
                  bos_token_id=1, eos_token_id=2, initializer_range=r.random(), rope_parameters=random_rope(r, None))
    if r.random() < 0.5:
        config["head_dim"] = some(r, 0.2, [head, None], [2 * head])
    return config, config["max_position_embeddings"]


def glm4_moe(r):
    head, heads = r.choice([4, 8]), r.choice([2, 4])
    experts = r.choice([2, 4, 6])
    groups = r.choice([g for g in (1, 2) if experts % g == 0 and experts // g >= 2] or [1])
    config = dict(model_type="glm4_moe", hidden_size=r.choice([8, 16, head * heads]), num_attention_heads=heads, head_dim=head,
                  num_key_value_heads=r.choice([k for k in (1, 2, 4) if heads % k == 0]), num_hidden_layers=r.choice([1, 2, 3]),
                  intermediate_size=r.choice([8, 24]), moe_intermediate_size=r.choice([8, 12]), n_routed_experts=experts,
                  num_experts_per_tok=r.choice([1, 2]), n_shared_experts=r.choice([1, 1, 2]), first_k_dense_replace=r.choice([0, 1, 2]),
                  n_group=groups, topk_group=r.randrange(1, groups + 1), norm_topk_prob=r.choice(BOOLS), use_qk_norm=r.choice(BOOLS),
                  routed_scaling_factor=r.choice([1.0, 2.5]), attention_bias=r.choice(BOOLS), vocab_size=r.randrange(11, 80),
                  max_position_embeddings=r.randrange(4, 25), rms_norm_eps=r.choice([1e-6, 1e-5, 1e-2]),
                  hidden_act=some(r, 0.1, ["silu", "swish"], ["gelu", "relu"]), tie_word_embeddings=some(r, 0.08, [False], [True]),
                  attention_dropout=some(r, 0.08, [0.0], [0.1]), output_router_logits=r.choice(BOOLS),
                  rope_parameters=random_rope(r, r.choice([0.5, 1.0])))
    return config, config["max_position_embeddings"]


def decoder(r, family):
    """The other decoders: a small configuration, of which `mutate` changes more than of those above."""
    head, heads, layers, length = 8, r.choice([2, 4]), r.choice([2, 3, 4]), r.randrange(8, 33)
    config = dict(model_type=family, hidden_size=head * heads, num_attention_heads=heads, num_hidden_layers=layers, head_dim=head,
                  num_key_value_heads=r.choice([2, heads]), intermediate_size=r.choice([8, 24]), vocab_size=r.randrange(11, 80),
                  max_position_embeddings=length, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    window = r.randrange(1, length)
    if family in ("qwen2", "qwen3", "smollm3"):
        config.update(use_sliding_window=r.choice(BOOLS), sliding_window=window)
        if family != "smollm3":
            config["max_window_layers"] = r.randrange(layers + 1)
    elif family in ("mistral", "mixtral", "phi3", "gemma2", "gemma3_text"):
        config["sliding_window"] = window
    if family in ("gemma2", "gemma3_text"):
        config["query_pre_attn_scalar"] = r.choice([8, 16])
    if family in ("mixtral", "qwen3_moe"):
        config.update({"num_experts": 4, "moe_intermediate_size": 12} if family == "qwen3_moe" else {"num_local_experts": 4}, num_experts_per_tok=2)
    if family == "gpt_neox":
        config = {k: v for k, v in config.items() if k not in ("num_key_value_heads", "head_dim")}
    if family not in ("gemma3_text", "gpt_neox", "phi3"):
        config["rope_parameters"] = random_rope(r, None)
    return config, length


DECODERS = ["mistral", "qwen2", "qwen3", "smollm3", "phi3", "mixtral", "qwen3_moe", "gemma", "gemma2", "gemma3_text", "olmo2", "gpt_neox"]
TYPES = ["sliding_attention", "full_attention"]
OF_DECODERS = {  # key: what people set it to, beside leaving it out
    "sliding_window": [4, None], "use_sliding_window": BOOLS, "max_window_layers": [0, 1, 28], "layer_types": [None, *([t] * 4 for t in TYPES)],
    "no_rope_layers": [None, [1, 0, 1, 0]], "no_rope_layer_interval": [1, 2], "rms_norm_eps": [0.1], "layer_norm_eps": [0.1],
    "num_key_value_heads": [None], "head_dim": [None], "tie_word_embeddings": BOOLS, "norm_topk_prob": BOOLS, "num_experts_per_tok": [1],
    "query_pre_attn_scalar": [16], "final_logit_softcapping": [None, 5.0], "attn_logit_softcapping": [None, 5.0], "hidden_act": ["gelu"],
    "hidden_activation": ["gelu"], "partial_rotary_factor": [0.5], "rotary_pct": [0.5], "rotary_emb_base": [50.0], "rope_theta": [50.0],
    "use_parallel_residual": BOOLS, "sliding_window_pattern": [2], "rope_local_base_freq": [50.0], "rope_parameters": [{"rope_theta": 50.0}],
    "rope_scaling": [{"type": "linear", "factor": 2.0}, {"rope_type": "linear", "factor": 2.0, "rope_theta": 50.0}],
    "attention_bias": BOOLS, "decoder_sparse_step": [2], "mlp_only_layers": [[0]], "is_causal": BOOLS}

MUTATIONS = {
    "gpt2": ["n_inner", "activation_function", "layer_norm_epsilon", "scale_attn_weights", "scale_attn_by_inverse_layer_idx", "n_ctx",
             "reorder_and_upcast_attn", "summary_type", "tie_word_embeddings", "resid_pdrop", "hidden_size", "num_hidden_layers"],
    "llama": ["num_key_value_heads", "head_dim", "hidden_act", "attention_bias", "mlp_bias", "attention_dropout", "rope_theta",
              "rope_scaling", "pretraining_tp", "partial_rotary_factor", "tie_word_embeddings", "rms_norm_eps"],
    "glm4_moe": ["head_dim", "n_group", "topk_group", "norm_topk_prob", "use_qk_norm", "attention_bias", "routed_scaling_factor",
                 "first_k_dense_replace", "n_shared_experts", "partial_rotary_factor", "rope_scaling", "num_local_experts", "num_mtp_layers"],
    "any": ["is_decoder", "add_cross_attention", "pruned_heads", "is_encoder_decoder", "chunk_size_feed_forward", "torchscript",
            "is_causal", "sliding_window", "layer_types", "task_specific_params", "temperature", "model_max_length", "use_cache"],
}


def mutate(r, config, family):
    """Keys as people leave them out, set to odd values, or add."""
    for _ in range(r.choice([0, 1, 2, 3]) if family in DECODERS else 0):
        key = r.choice(sorted(OF_DECODERS))
        if r.random() < 0.5:
            config.pop(key, None)
        else:
            config[key] = r.choice(OF_DECODERS[key])
    for _ in range(r.choice([0, 0, 0, 0, 1, 1, 2]) if family not in DECODERS else 0):
        key = r.choice(MUTATIONS[family] + MUTATIONS.get("any", []) if family in ("gpt2", "llama", "glm4_moe") else MUTATIONS[family])
        if r.random() < 0.3:
            config.pop(key, None)
        else:
            config[key] = r.choice(ODD if family != "vae" else ODD[:-1])  # of which diffusers would make a layer


def write_shard(path, tokens):
    with open(path, "wb") as f:
        f.write(struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253) + struct.pack(f"<{len(tokens)}H", *tokens))


def text_case(r, family, folder):
    config, length = decoder(r, family) if family in DECODERS else globals()[family](r)
    made = AutoConfig.for_model(**{k: v for k, v in config.items()})
    if transformers.__version__ < "5" and "rope_parameters" in config:
        rope = config["rope_parameters"]
        made.rope_theta = rope["rope_theta"]
        made.rope_scaling = None if rope["rope_type"] == "default" else {k: v for k, v in rope.items() if k not in ("rope_theta", "partial_rotary_factor")}
        if "partial_rotary_factor" in rope:
            made.partial_rotary_factor = rope["partial_rotary_factor"]
    model = AutoModelForCausalLM.from_config(made)
    draw_weights(model)
    model.to(r.choice([torch.float32, torch.float32, torch.bfloat16, torch.float16])).save_pretrained(folder)
    path = os.path.join(folder, "config.json")
    written = json.load(open(path))
    if family not in ("gpt2", "gemma3_text", "phi3"):
        restyle_rope(r, written)
    mutate(r, written, family)
    json.dump(written, open(path, "w"), indent=1)
    tokens = [r.randrange(config["vocab_size"]) for _ in range(WINDOWS * length + 1)]
    write_shard(os.path.join(folder, "val.bin"), tokens)
    return folder, tokens, length


@torch.no_grad()
def text_loss(model, tokens, length):
    model = model.eval()
    single = transformers.__version__ < "5" and getattr(model.config, "n_routed_experts", 0) > 0
    if not single and not getattr(model.config, "reorder_and_upcast_attn", False):  # these work in float32 alone
        model = model.double()
    x = torch.tensor(tokens[:-1]).view(WINDOWS, length)
    y = torch.tensor(tokens[1:]).view(WINDOWS, length)
    logits = model(input_ids=x).logits
    return torch.nn.functional.cross_entropy(logits.double().flatten(0, 1), y.flatten()).item()


def theirs_text(case):
    folder, tokens, length = case
    kwargs = {"dtype": torch.float32, "attn_implementation": "eager"}
    if transformers.__version__ >= "5":
        kwargs["experts_implementation"] = "eager"
    return text_loss(AutoModelForCausalLM.from_pretrained(folder, **kwargs), tokens, length)


# --- adapters ------------------------------------------------------------------------------------------------------
def lora_case(r, folder):
    from peft import LoraConfig, get_peft_model
    family = r.choice(["gpt2", "llama"])
    base = os.path.join(folder, "base")
    if family == "gpt2":
        config = dict(model_type="gpt2", n_embd=16, n_head=2, n_layer=2, vocab_size=37, n_positions=12, bos_token_id=1, eos_token_id=2)
        names, parts = ["c_attn", "attn.c_proj", "mlp.c_proj", "c_fc", "c_proj"], r"transformer\.h\.\d+\.mlp\.c_.*"
    else:
        config = dict(model_type="llama", hidden_size=16, num_attention_heads=2, num_hidden_layers=2, num_key_value_heads=2,
                      intermediate_size=24, vocab_size=37, max_position_embeddings=12)
        names, parts = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], r"model\.layers\.[01]\.self_attn\..*"
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    draw_weights(model)
    model.save_pretrained(base)
    targets = r.choice([r.sample(names, r.randrange(1, len(names))), "all-linear", parts])
    options = dict(r=r.choice([1, 2, 4]), lora_alpha=r.choice([1, 4, 16]), target_modules=targets, lora_dropout=r.choice([0.0, 0.1]),
                   use_rslora=r.choice(BOOLS), fan_in_fan_out=r.choice(BOOLS), task_type="CAUSAL_LM",
                   init_lora_weights=some(r, 0.25, [True, False, "gaussian"], ["pissa", "pissa_niter_4", "olora", "orthogonal"]))
    extra = r.random()
    if extra < 0.06:
        options["use_dora"] = True
    elif extra < 0.12:
        options["bias"] = r.choice(["all", "lora_only"])
    elif extra < 0.18:
        options["rank_pattern"] = {"c_attn": 3, "q_proj": 3}
    elif extra < 0.24:
        options["alpha_pattern"] = {"c_attn": 3, "q_proj": 3}
    elif extra < 0.3:
        options["modules_to_save"] = ["lm_head"]
    elif extra < 0.36:
        options["lora_bias"] = True
    elif extra < 0.44 and isinstance(targets, list):
        options["layers_to_transform"] = r.choice([0, [1], [0, 1]])
    elif extra < 0.5:
        options["exclude_modules"] = [names[0]]
    if options.get("lora_bias") or options.get("use_dora"):
        options["init_lora_weights"] = True  # PEFT allows no other
    if options["init_lora_weights"] == "orthogonal":
        options["r"] = 2  # an even one
    adapted = get_peft_model(model, LoraConfig(**options))
    with torch.no_grad():
        for name, p in adapted.named_parameters():
            if "lora_" in name:
                p.copy_(torch.randn(p.shape) * 0.3)
    adapter = os.path.join(folder, "adapter")
    adapted.save_pretrained(adapter)
    path = os.path.join(adapter, "adapter_config.json")
    written = json.load(open(path))
    if r.random() < 0.25:  # edited afterwards
        key, value = r.choice([("target_modules", names[:1]), ("layers_to_transform", [0]), ("lora_alpha", 2), ("use_rslora", True), ("r", None),
                               ("init_lora_weights", None), ("a_new_option", True), ("a_new_option", False), ("lora_alpha", 10**30)])
        written[key] = value
        if value is None:
            written.pop(key)
    json.dump(written, open(path, "w"), indent=1)
    tokens = [r.randrange(37) for _ in range(WINDOWS * 12 + 1)]
    write_shard(os.path.join(folder, "val.bin"), tokens)
    return base, adapter, tokens, 12


def theirs_lora(case):
    from peft import PeftModel
    base, adapter, tokens, length = case
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager")
    return text_loss(PeftModel.from_pretrained(model, adapter), tokens, length)


# --- AutoencoderKL -------------------------------------------------------------------------------------------------
MUTATIONS["vae"] = ["act_fn", "layers_per_block", "norm_num_groups", "latent_channels", "use_quant_conv", "use_post_quant_conv",
                    "mid_block_add_attention", "scaling_factor", "shift_factor", "force_upcast", "latents_mean", "a_new_option", "sample_size"]


def vae_case(r, folder):
    from diffusers import AutoencoderKL
    levels, width, groups = r.choice([1, 2, 3]), r.choice([4, 8]), r.choice([1, 2, 4])
    odd = r.random() < 0.1
    side = r.choice([8, 16])
    vae = AutoencoderKL(in_channels=1, out_channels=some(r, 0.05, [1], [2]), latent_channels=r.choice([1, 3, 4]), norm_num_groups=groups,
                        block_out_channels=[width * m for m in sorted(r.choice([1, 2, 3]) if i else 1 for i in range(levels))],
                        down_block_types=["AttnDownEncoderBlock2D" if odd else "DownEncoderBlock2D"] * levels,
                        up_block_types=["UpDecoderBlock2D"] * levels, layers_per_block=r.choice([1, 2]), sample_size=side,
                        act_fn=some(r, 0.1, ["silu", "swish"], ["relu", "mish"]), mid_block_add_attention=some(r, 0.1, [True], [False]),
                        use_quant_conv=some(r, 0.08, [True], [False]), use_post_quant_conv=some(r, 0.08, [True], [False]),
                        scaling_factor=r.random(), shift_factor=r.choice([None, 0.1]), force_upcast=r.choice(BOOLS))
    draw_weights(vae)
    if vae.quant_conv is not None:  # Mezzo scores pictures of latents that are drawn: the smallest deviation makes them the mean
        with torch.no_grad():
            vae.quant_conv.weight[vae.config.latent_channels:] = 0
            vae.quant_conv.bias[vae.config.latent_channels:] = -30
    vae.to(r.choice([torch.float32, torch.float32, torch.bfloat16])).save_pretrained(folder)
    path = os.path.join(folder, "config.json")
    written = json.load(open(path))
    mutate(r, written, "vae")
    json.dump(written, open(path, "w"), indent=1)
    pictures = torch.randint(0, 256, (3, side, side), generator=torch.Generator().manual_seed(r.randrange(1 << 30))).to(torch.uint8)
    import numpy
    numpy.save(os.path.join(folder, "val.npy"), pictures.numpy())
    return folder, pictures


@torch.no_grad()
def theirs_vae(case):
    """The root mean square error of the pictures' reconstruction, brightness from 0 to 1."""
    from diffusers import AutoencoderKL
    folder, pictures = case
    vae = AutoencoderKL.from_pretrained(folder, torch_dtype=torch.float32).eval().double()
    x = pictures.double()[:, None] / 127.5 - 1
    back = vae.decode(vae.encode(x).latent_dist.mean).sample
    if back.shape != x.shape:
        raise ValueError("another shape comes back")
    return ((back.clamp(-1, 1) - x) / 2).square().mean().sqrt().item()


# --- Mezzo ---------------------------------------------------------------------------------------------------------
def ours(mezzo, source, data, key, adapter=None):
    """A loss, or the line that refuses."""
    run = os.path.join(os.path.dirname(data), "run")
    command = [mezzo, "import", source, "--tokenizer", "none", "--out", run] + (["--adapter", adapter] if adapter else [])
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return None, done.returncode, (done.stderr.strip().splitlines() or [""])[-1]
    done = subprocess.run([mezzo, "eval", run, "--data", data, "--json", "--precision", "fp32", "--device", "cpu", "--threads", "1"],
                          capture_output=True, text=True)
    if done.returncode:
        return None, done.returncode, (done.stderr.strip().splitlines() or [""])[-1]
    return json.loads(done.stdout)[key], 0, ""


def compare(mezzo, family, seed, folder):
    r = random.Random(f"{family} {seed}")
    torch.manual_seed(r.randrange(1 << 30))
    if family == "lora":
        case = lora_case(r, folder)
        source, adapter, theirs, key, data = case[0], case[1], theirs_lora, "loss", "val.bin"
    elif family == "vae":
        case = vae_case(r, folder)
        source, adapter, theirs, key, data = case[0], None, theirs_vae, "rmse", "val.npy"
    else:
        case = text_case(r, family, folder)
        source, adapter, theirs, key, data = case[0], None, theirs_text, "loss", "val.bin"
    got, code, line = ours(mezzo, source, os.path.join(folder, data), key, adapter)
    try:
        want = theirs(case)
    except Exception as e:  # the library refuses it: nothing to compare with
        want, why = None, f"{type(e).__name__}: {str(e).splitlines()[0][:100] if str(e) else ''}"
    if got is None and "the pictures are" in line:  # the model is read, and is one for pictures of another size
        return "read, for other pictures", line
    named = code == 2 and re.search(r"key '|tensor |model\.\w+", line)
    if got is None:
        return ("refused" if named else "refused without a name"), line
    if want is None:
        return "read, but not by the library", why
    if not abs(got - want) <= 1e-5 * max(1, abs(want)):
        return "DIFFERENT", f"{got} and {want}"
    return "same", ""


def main():
    p = argparse.ArgumentParser()
    p.add_argument("mezzo")
    p.add_argument("--count", type=int, default=300)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--family", nargs="*", default=["gpt2", "llama", "glm4_moe", *DECODERS, "vae", "lora"])
    p.add_argument("--keep")
    p.add_argument("--tell", action="store_true", help="print every configuration's result")
    o = p.parse_args()
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30))  # a size that was edited may be any number
    bad = 0
    print("transformers", transformers.__version__)
    for family in o.family:
        counts = {}
        for i in range(o.count):
            folder = tempfile.mkdtemp()
            result, text = compare(os.path.abspath(o.mezzo), family, o.seed * 100000 + i, folder)
            counts[result] = counts.get(result, 0) + 1
            wrong = result in ("DIFFERENT", "refused without a name")
            bad += wrong
            if wrong or o.tell:
                print(f"{family} {i}: {result}: {text}")
            if wrong and o.keep:
                shutil.copytree(folder, os.path.join(o.keep, f"{family}-{i}"), dirs_exist_ok=True)
            shutil.rmtree(folder)
        print(f"{family}: " + ", ".join(f"{n} {what}" for what, n in sorted(counts.items())), flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
