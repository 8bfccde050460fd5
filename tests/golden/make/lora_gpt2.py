"""PEFT's LoRA on the small GPT-2 of hf_gpt2/: hf_gpt2_lora/ (adapter_model.safetensors, adapter_config.json, as PEFT saves them) and
lora_gpt2.safetensors (tokens, targets; logits with the adapters and the gradients of a cross-entropy for them, in float64).

    python lora_gpt2.py                  needs torch, transformers, peft, safetensors
    python lora_gpt2.py --check FOLDER BASE    loads an adapter that mezzo wrote on BASE, and prints how far its logits are from stored ones
"""
import json
import pathlib
import sys

import peft
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import GPT2LMHeadModel

DATA = pathlib.Path(__file__).parents[1] / "data"


def base(folder):
    return GPT2LMHeadModel.from_pretrained(folder).double().eval()


def check(adapter, folder):
    stored = load_file(DATA / "lora_gpt2.safetensors")
    model = PeftModel.from_pretrained(base(folder), adapter).double().eval()
    with torch.no_grad():
        got = model(stored["tokens"].long()).logits
    print("largest difference of logits:", (got - stored["logits"]).abs().max().item(), "of", stored["logits"].abs().max().item())


def main():
    torch.manual_seed(11)
    torch.set_num_threads(1)
    config = LoraConfig(r=3, lora_alpha=6, target_modules=["attn.c_attn", "mlp.c_proj"], fan_in_fan_out=True, bias="none", task_type="CAUSAL_LM")
    model = get_peft_model(base(DATA / "hf_gpt2"), config).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:  # PEFT starts it at zero, where A has no gradient
                p.copy_(torch.randn_like(p).mul(0.2).float())
            elif "lora_A" in name:
                p.copy_(p.float())  # numbers of float32, as they are stored
    model = model.double()
    tokens = torch.randint(0, 61, (2, 12))
    targets = torch.randint(0, 61, (2, 12))
    targets[0, :4] = -1
    logits = model(tokens).logits
    loss = torch.nn.functional.cross_entropy(logits.view(-1, 61), targets.view(-1), ignore_index=-1)
    loss.backward()
    store = {"tokens": tokens.int(), "targets": targets.int(), "logits": logits.detach(), "loss": loss.detach()[None]}
    for name, p in model.named_parameters():
        if p.requires_grad:
            store["grad." + name.replace(".default", "")] = p.grad
    made = f"torch {torch.__version__}, peft {peft.__version__}"
    save_file({n: t.contiguous() for n, t in store.items()}, DATA / "lora_gpt2.safetensors", metadata={"origin": made})
    model.float().save_pretrained(DATA / "hf_gpt2_lora")
    (DATA / "hf_gpt2_lora" / "README.md").unlink(missing_ok=True)
    settings = DATA / "hf_gpt2_lora" / "adapter_config.json"
    read = json.loads(settings.read_text())
    read["base_model_name_or_path"] = None
    settings.write_text(json.dumps(read, indent=2) + "\n")
    print(made)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--check"]:
        check(sys.argv[2], sys.argv[3])
    else:
        main()
