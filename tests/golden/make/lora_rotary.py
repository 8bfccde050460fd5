"""PEFT's LoRA on the small Llama and GLM-4-MoE of hf_NAME/: hf_NAME_lora/ (adapter_model.safetensors, adapter_config.json, as PEFT saves them)
and lora_NAME.safetensors (tokens, targets; logits with the adapters and the gradients of a cross-entropy for them, in float64).

    python lora_rotary.py                              needs torch, transformers 5, peft, safetensors
    python lora_rotary.py --check NAME FOLDER BASE     loads an adapter that mezzo wrote on BASE, and compares its logits with stored ones

Llama's adapters leave k and the gate alone, whose rows lie beside others' here, and are scaled by alpha/sqrt(r). GLM-4-MoE's are on attention alone: with
transformers 5, PEFT 0.21 takes every target called gate_proj, up_proj or down_proj for the fused experts'. They are drawn again until no choice of an
expert is near.
"""
import json
import sys

import peft
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

from hf_gpt2 import DATA
from hf_rotary import MODELS, SHAPE, VOCAB
from transformers_small import gap, in_double

CONFIGS = {
    "llama": dict(r=3, lora_alpha=4, use_rslora=True, target_modules=["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"]),
    "glm4_moe": dict(r=2, lora_alpha=5, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]),
}


def base(name, folder):
    model = MODELS[name][0].from_pretrained(folder)
    model.config._experts_implementation = "eager"
    return model.double().eval()


def logits_of(name, model, tokens):
    run = lambda: model(input_ids=tokens, use_cache=False).logits
    return in_double(run) if name == "glm4_moe" else run()


def check(name, adapter, folder):
    stored = load_file(DATA / f"lora_{name}.safetensors")
    model = PeftModel.from_pretrained(base(name, folder), adapter).double().eval()
    with torch.no_grad():
        error = (logits_of(name, model, stored["tokens"].long()) - stored["logits"]).abs().max() / stored["logits"].abs().max()
    print(f"{adapter}: largest difference {error.item():.2g} of the largest logit")
    assert error < 1e-6


def adapted(name, generator):
    model = get_peft_model(base(name, DATA / f"hf_{name}"), LoraConfig(bias="none", task_type="CAUSAL_LM", **CONFIGS[name])).eval()
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "lora_" in key:  # numbers of float32, as they are stored; PEFT starts B at zero, where A has no gradient
                p.copy_((torch.randn(p.shape, generator=generator) * (0.2 if "lora_B" in key else 0.25)).float())
    return model.double()


def make(name):
    generator = torch.Generator().manual_seed(11)
    tokens = torch.randint(0, VOCAB, (2, 12), generator=generator)
    targets = torch.randint(0, VOCAB, (2, 12), generator=generator)
    targets[0, :4] = -1
    while True:
        model = adapted(name, generator)
        if name == "llama" or gap(model.base_model.model, SHAPE, tokens) > 0.003:
            break
    logits = logits_of(name, model, tokens)
    loss = torch.nn.functional.cross_entropy(logits.view(-1, VOCAB), targets.view(-1), ignore_index=-1)
    loss.backward()
    store = {"tokens": tokens.int(), "targets": targets.int(), "logits": logits.detach(), "loss": loss.detach()[None]}
    for key, p in model.named_parameters():
        if p.requires_grad:
            store["grad." + key.replace(".default", "")] = p.grad
    made = f"torch {torch.__version__}, transformers {transformers.__version__}, peft {peft.__version__}"
    save_file({n: t.contiguous() for n, t in store.items()}, DATA / f"lora_{name}.safetensors", metadata={"origin": made})
    folder = DATA / f"hf_{name}_lora"
    model.float().save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    settings = folder / "adapter_config.json"
    read = json.loads(settings.read_text())
    read["base_model_name_or_path"] = None
    read["target_modules"] = sorted(read["target_modules"])  # PEFT keeps a set, and leaves an empty one for glm4_moe
    read["target_parameters"] = read["target_parameters"] or None
    settings.write_text(json.dumps(read, indent=2) + "\n")
    print(name, made, {n.removeprefix("grad.").split(".lora")[0].split(".")[-1] for n in store if n.startswith("grad.")})


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--check"]:
        check(*sys.argv[2:5])
    else:
        for model_name in CONFIGS:
            make(model_name)
