"""Small models as torch.onnx writes them (onnx_NAME.onnx), and what PyTorch computes with them in float64: onnx_NAME.safetensors has the
inputs, the targets, the first output, the loss (cross-entropy of its rows) and the gradient of every weight of the file.

    python onnx_models.py                     needs torch, transformers, onnx, onnxscript, safetensors
    python onnx_models.py --check FILE NAME   runs onnxruntime on a file that mezzo wrote, on the inputs of NAME; prints the largest
                                              difference from the stored output, as a part of its largest number
"""
import json
import pathlib
import sys
import warnings

import onnx
import torch
from onnx import numpy_helper
from safetensors.torch import load_file, save_file
from torch import nn

DATA = pathlib.Path(__file__).parents[1] / "data"


class Logits(nn.Module):
    """A model of transformers as a function of its tensors."""

    def __init__(self, model, names, **more):
        super().__init__()
        self.m, self.names, self.more = model, names, more

    def forward(self, *tensors):
        return self.m(**dict(zip(self.names, tensors)), **self.more).logits


def convnet():
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.SiLU(), nn.AvgPool2d(2), nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=2), nn.GELU(),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


def models():
    import transformers as t
    ids, rows = torch.randint(0, 37, (2, 8)), torch.randint(0, 37, (2, 8))
    small = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)
    yield "mlp", nn.Sequential(nn.Linear(7, 12), nn.ReLU(), nn.LayerNorm(12), nn.Linear(12, 9), nn.Tanh(), nn.Linear(9, 5)), {"x": torch.randn(6, 7)}, torch.randint(0, 5, (6,))
    yield "convnet", convnet(), {"x": torch.randn(2, 3, 8, 8)}, torch.randint(0, 5, (2,))
    yield "gpt2", Logits(t.GPT2LMHeadModel(t.GPT2Config(vocab_size=37, n_positions=8, n_embd=16, n_layer=2, n_head=2)), ["input_ids"], use_cache=False), {"input_ids": ids}, rows
    yield "llama", Logits(t.LlamaForCausalLM(t.LlamaConfig(vocab_size=37, num_key_value_heads=1, max_position_embeddings=16, **small)), ["input_ids"], use_cache=False), {"input_ids": ids}, rows
    yield "vit", Logits(t.ViTForImageClassification(t.ViTConfig(image_size=8, patch_size=4, num_labels=4, **small)), ["pixel_values"]), {"pixel_values": torch.randn(2, 3, 8, 8)}, torch.randint(0, 4, (2,))


def gradients(model, path):
    """The gradient of each weight of the file, in the file's layout: a weight is found by its numbers."""
    found, left = {}, []
    for tensor in onnx.load(path).graph.initializer:
        values = torch.from_numpy(numpy_helper.to_array(tensor).copy())
        if not values.is_floating_point() or values.numel() < 2 or values.abs().max() > 1e30:
            continue
        for p in model.parameters():
            for turned, gradient in ((p, p.grad), (p.mT if p.ndim > 1 else p, p.grad.mT if p.ndim > 1 else p.grad)):
                if turned.shape == values.shape and torch.equal(turned.float(), values):
                    found[tensor.name] = gradient.double().contiguous()
        if tensor.name not in found:
            left.append(tensor.name)
    return found, left


def main():
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    for name, model, inputs, targets in (torch.manual_seed(5), *models())[1:]:
        model = model.eval()
        with torch.no_grad():
            for p in model.parameters():  # no two weights alike, which the exporter would make one
                p.copy_(torch.randn_like(p) * 0.15 + (1 if p.ndim == 1 and p.mean() == 1 else 0))
        path = DATA / f"onnx_{name}.onnx"
        torch.onnx.export(model, tuple(inputs.values()), path, input_names=list(inputs), output_names=["logits"], dynamo=True, external_data=False, verbose=False)
        model = model.double()
        logits = model(*(v.double() if v.is_floating_point() else v for v in inputs.values()))
        loss = nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))
        loss.backward()
        found, left = gradients(model, path)
        store = {f"input.{k}": v.double() if v.is_floating_point() else v.int() for k, v in inputs.items()}
        store |= {"targets": targets.int(), "logits": logits.detach(), "loss": loss.detach()[None]} | {f"gradient.{k}": v for k, v in found.items()}
        save_file({k: v.contiguous() for k, v in store.items()}, DATA / f"onnx_{name}.safetensors")
        slim(path)
        print(name, path.stat().st_size, "bytes,", len(found), "gradients; weights of the file that are no parameter:", left)


def slim(path):
    """Without what the exporter tells about its own work."""
    model = onnx.load(path)
    for node in model.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    del model.graph.value_info[:]
    del model.graph.metadata_props[:]
    del model.metadata_props[:]
    for thing in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        del thing.metadata_props[:]
    onnx.save(model, path)


def check(file, name):
    import onnxruntime
    stored = load_file(DATA / f"onnx_{name}.safetensors")
    session = onnxruntime.InferenceSession(file)
    feed = {i.name: stored[f"input.{i.name}"].to(torch.float32 if "float" in i.type else torch.int64).numpy() for i in session.get_inputs()}
    got = torch.from_numpy(session.run(None, feed)[0])
    print(json.dumps({"part": ((got - stored["logits"]).abs().max() / stored["logits"].abs().max()).item()}))


if __name__ == "__main__":
    check(*sys.argv[2:4]) if sys.argv[1:2] == ["--check"] else main()
