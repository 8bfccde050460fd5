"""Twelve small models as torch.onnx writes them (onnx_NAME.onnx), and what PyTorch computes with them in float64: onnx_NAME.safetensors has
the inputs, the targets, the first output, the loss (cross-entropy of its rows), the gradient of every weight of the file, the losses of 100
AdamW steps, and how far torch.autocast is from these: of bfloat16 and float16 the relative error of the output and of all gradients.

    python onnx_models.py [NAME …]            needs torch, transformers, onnx, onnxscript, safetensors
    python onnx_models.py --check FILE NAME   runs onnxruntime on a file that mezzo wrote, on the inputs of NAME; prints the largest
                                              difference from the stored output, as a part of its largest number
"""
import copy
import json
import pathlib
import sys
import warnings

import onnx
import torch
import torch.nn.functional as F
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


class Residual(nn.Module):
    """ResNet's basic block."""

    def __init__(self, a, b, stride):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b))
        self.skip = nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b)) if stride > 1 or a != b else nn.Identity()

    def forward(self, x):
        return F.relu(self.second(self.first(x)) + self.skip(x))


def resnet18():
    widths = [4, 4, 6, 8, 8]
    stem = [nn.Conv2d(3, 4, 7, 2, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    body = [Residual(widths[i + k], widths[i + 1], 2 if i and not k else 1) for i in range(4) for k in range(2)]
    return nn.Sequential(*stem, *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


class ConvNeXtBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.wide, self.norm, self.up, self.down = nn.Conv2d(c, c, 7, padding=3, groups=c), nn.LayerNorm(c, 1e-6), nn.Linear(c, 2 * c), nn.Linear(2 * c, c)
        self.gamma = nn.Parameter(torch.ones(c))

    def forward(self, x):
        y = self.up(self.norm(self.wide(x).permute(0, 2, 3, 1)))
        return x + (self.gamma * self.down(F.gelu(y))).permute(0, 3, 1, 2)


def convnext():
    return nn.Sequential(nn.Conv2d(3, 6, 4, 4), ConvNeXtBlock(6), nn.Conv2d(6, 8, 2, 2), ConvNeXtBlock(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.LayerNorm(8), nn.Linear(8, 5))


class UNet(nn.Module):
    """Segmentation: instance and group norms, a dilated convolution, both ways up."""

    def __init__(self):
        super().__init__()

        def two(a, b):
            return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.InstanceNorm2d(b, affine=True), nn.LeakyReLU(0.1),
                                 nn.Conv2d(b, b, 3, padding=2, dilation=2), nn.GroupNorm(2, b), nn.SiLU())

        self.down, self.deep = nn.ModuleList([two(3, 4), two(4, 6)]), two(6, 6)
        self.turned, self.plain = nn.ConvTranspose2d(6, 6, 2, 2), nn.Conv2d(6, 4, 1)
        self.up, self.head = nn.ModuleList([two(12, 6), two(8, 4)]), nn.Conv2d(4, 3, 1)

    def forward(self, x):
        a = self.down[0](x)
        b = self.down[1](F.max_pool2d(a, 2))
        y = self.up[0](torch.cat([self.turned(self.deep(F.max_pool2d(b, 2))), b], 1))
        y = F.interpolate(self.plain(y), scale_factor=2, mode="bilinear", align_corners=False)
        return self.head(self.up[1](torch.cat([y, a], 1))).permute(0, 2, 3, 1)


class Mixer(nn.Module):
    def __init__(self, tokens=4, c=12, depth=2):
        super().__init__()
        self.patch, self.norm, self.head = nn.Conv2d(3, c, 4, 4), nn.LayerNorm(c), nn.Linear(c, 5)
        self.norms = nn.ModuleList(nn.LayerNorm(c) for _ in range(2 * depth))
        self.tokens = nn.ModuleList(nn.Sequential(nn.Linear(tokens, 8), nn.GELU(), nn.Linear(8, tokens)) for _ in range(depth))
        self.channels = nn.ModuleList(nn.Sequential(nn.Linear(c, 16), nn.GELU("tanh"), nn.Linear(16, c)) for _ in range(depth))

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        for i, (tokens, channels) in enumerate(zip(self.tokens, self.channels)):
            x = x + tokens(self.norms[2 * i](x).transpose(1, 2)).transpose(1, 2)
            x = x + channels(self.norms[2 * i + 1](x))
        return self.head(self.norm(x).mean(1))


def autoencoder():
    return nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1), nn.ReLU(), nn.AvgPool2d(3, 1, 1), nn.Conv2d(6, 8, (3, 5), (2, 1), (1, 2)), nn.Hardswish(),
                         nn.ConvTranspose2d(8, 6, 3, (2, 1), 1, (1, 0)), nn.ELU(), nn.ConvTranspose2d(6, 4, 4, 2, 1, groups=2), nn.Softplus(),
                         nn.Conv2d(4, 1, 3, 1, 1, padding_mode="reflect"), nn.Hardsigmoid(), nn.Tanh(), nn.Flatten())


class Tabular(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, 4) for n in (7, 5))
        self.net = nn.Sequential(nn.BatchNorm1d(14), nn.Linear(14, 16), nn.SELU(), nn.Dropout(0.1), nn.Linear(16, 8), nn.PReLU(), nn.Linear(8, 3))

    def forward(self, numbers, classes):
        return self.net(torch.cat([numbers] + [table(classes[:, i]) for i, table in enumerate(self.tables)], 1))


class Whisper(nn.Module):
    def __init__(self, t):
        super().__init__()
        config = t.WhisperConfig(d_model=16, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=24, num_mel_bins=6, max_source_positions=8)
        self.m, self.head = t.models.whisper.modeling_whisper.WhisperEncoder(config), nn.Linear(16, 5)

    def forward(self, features):
        return self.head(self.m(features).last_hidden_state)


def models():
    """Name, model, inputs, targets; options of torch.onnx.export."""
    import transformers as t
    ids, rows, image = torch.randint(0, 37, (2, 8)), torch.randint(0, 37, (2, 8)), torch.randn(2, 3, 8, 8)
    mask = torch.tensor([[1] * 8, [1] * 5 + [0] * 3])
    small = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)
    training = dict(dynamo=False, opset_version=17, training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)
    yield "gpt2", Logits(t.GPT2LMHeadModel(t.GPT2Config(vocab_size=37, n_positions=8, n_embd=16, n_layer=2, n_head=2)), ["input_ids"], use_cache=False), {"input_ids": ids}, rows, {}
    yield "llama", Logits(t.LlamaForCausalLM(t.LlamaConfig(vocab_size=37, num_key_value_heads=1, max_position_embeddings=16, **small)), ["input_ids"], use_cache=False), {"input_ids": ids}, rows, {}
    names = ["input_ids", "attention_mask", "token_type_ids"]
    yield "bert", Logits(t.BertForTokenClassification(t.BertConfig(vocab_size=37, max_position_embeddings=8, num_labels=4, **small)), names), dict(zip(names, (ids, mask, ids % 2))), torch.where(mask > 0, rows % 4, -1), {}
    yield "vit", Logits(t.ViTForImageClassification(t.ViTConfig(image_size=8, patch_size=4, num_labels=4, **small)), ["pixel_values"]), {"pixel_values": image}, torch.randint(0, 4, (2,)), dict(opset_version=23, dynamic_shapes=(({0: torch.export.Dim("batch")},),))
    yield "resnet18", resnet18().train(), {"x": torch.randn(3, 3, 40, 40)}, torch.randint(0, 5, (3,)), training
    yield "convnext", convnext(), {"x": torch.randn(2, 3, 16, 16)}, torch.randint(0, 5, (2,)), dict(dynamo=False, opset_version=13)
    yield "unet", UNet(), {"x": torch.randn(2, 3, 8, 8)}, torch.randint(0, 3, (2, 8, 8)), {}
    yield "mixer", Mixer(), {"x": image}, torch.randint(0, 5, (2,)), {}
    yield "autoencoder", autoencoder(), {"x": torch.randn(2, 3, 8, 8)}, torch.randint(0, 64, (2,)), {}
    yield "whisper", Whisper(t), {"features": torch.randn(2, 6, 16)}, torch.randint(0, 5, (2, 8)), {}
    names = ["input_ids", "attention_mask", "decoder_input_ids"]
    t5 = t.T5Config(vocab_size=37, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, feed_forward_proj="gated-gelu", tie_word_embeddings=False, dropout_rate=0, decoder_start_token_id=0)
    yield "t5", Logits(t.T5ForConditionalGeneration(t5), names, use_cache=False), dict(zip(names, (ids, mask, rows[:, :6]))), rows[:, 2:], dict(dynamo=False, opset_version=17, do_constant_folding=False)
    yield "tabular", Tabular(), {"numbers": torch.randn(6, 6), "classes": torch.randint(0, 5, (6, 2))}, torch.randint(0, 3, (6,)), {}


def alike(values, p):
    """Whether p, or its transposition (True), has these numbers; None: neither. Dimensions of 1 do not count."""
    shape = [n for n in values.shape if n > 1]
    for turned in (p, p.mT) if p.ndim > 1 else (p,):
        if [n for n in turned.shape if n > 1] == shape and torch.equal(turned.float().reshape(-1), values.reshape(-1)):
            return turned is not p
    return None


def gradients(model, path):
    """The gradient of each weight of the file, in the file's layout: a weight is found by its numbers."""
    found, left = {}, []
    for tensor in onnx.load(path).graph.initializer:
        values = torch.from_numpy(numpy_helper.to_array(tensor).copy())
        if not values.is_floating_point() or not values.ndim or values.abs().max() > 1e30:
            continue
        for p in model.parameters():
            turned = alike(values, p) if p.grad is not None else None
            if turned is not None:
                found[tensor.name] = (p.grad.mT if turned else p.grad).reshape(values.shape).contiguous()
        if tensor.name not in found:
            left.append(tensor.name)
    return found, left


def magnitudes(model, inputs, targets, path):
    """Of each weight of one number, the sum of the magnitudes of which its gradient is the sum: of a bias those of its output's gradients, of a
    PReLU's slope those of its output's gradients times the negative inputs."""
    terms, hooks = {}, []

    def hook(module, given, out):
        p = module.weight if isinstance(module, nn.PReLU) else module.bias
        factor = given[0].detach().clamp(max=0) if isinstance(module, nn.PReLU) else 1
        out.register_hook(lambda dy: terms.__setitem__(p, (dy * factor).abs().sum()[None]))

    for module in model.modules():
        own = [p for p in module.parameters(recurse=False) if p.numel() == 1]
        if own:
            hooks.append(module.register_forward_hook(hook))
    loss_of(model, inputs, targets)[1].backward()
    for h in hooks:
        h.remove()
    model.zero_grad(set_to_none=True)
    numbers = {t.name: torch.from_numpy(numpy_helper.to_array(t).copy()) for t in onnx.load(path).graph.initializer}
    return {f"magnitude.{k}": terms[p].float() for k, v in numbers.items() for p in terms if alike(v, p) is not None}


def loss_of(model, inputs, targets):
    logits = model(*inputs)
    return logits, F.cross_entropy(logits.reshape(-1, logits.shape[-1]).to(torch.promote_types(logits.dtype, torch.float32)), targets.reshape(-1), ignore_index=-1)


def run(model, inputs, targets, low=None):
    """Output and gradients, with torch.autocast in a low format; float16 with a loss scale."""
    model.zero_grad(set_to_none=True)
    scale = 1024 if low == torch.float16 else 1
    with torch.autocast("cpu", dtype=low, enabled=low is not None):
        logits, loss = loss_of(model, inputs, targets)
    (loss * scale).backward()
    return logits.detach().double(), {n: p.grad.double() / scale for n, p in model.named_parameters() if p.grad is not None}


def distance(ours, exact):
    return (sum((a - b).square().sum() for a, b in zip(ours, exact)) / sum(b.square().sum() for b in exact)).sqrt()


def main(only):
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(5)
    for name, model, inputs, targets, options in models():
        torch.manual_seed({"resnet18": 12, "t5": 5}.get(name, 1))  # draws whose 100 steps PyTorch's own float32 follows to 1e-5
        model = model.train(options.get("training") == torch.onnx.TrainingMode.TRAINING).requires_grad_(True)
        with torch.no_grad():
            for p in model.parameters():  # no two weights alike, which the exporter would make one
                p.copy_(torch.randn_like(p) * 0.15 + (1 if p.ndim == 1 and p.mean() == 1 else 0))
            for name_of, b in model.named_buffers():
                if "running" in name_of:
                    b.add_(torch.rand_like(b) * 0.2)
        if only and name not in only:
            continue
        path = DATA / f"onnx_{name}.onnx"
        kept = copy.deepcopy(model.state_dict())
        torch.onnx.export(model, tuple(inputs.values()), path, input_names=list(inputs), output_names=["logits"], **({"dynamo": True, "external_data": False, "verbose": False} | options))
        model.load_state_dict(kept)
        single = copy.deepcopy(model)
        model = model.double()
        wide = [v.double() if v.is_floating_point() else v for v in inputs.values()]
        logits, exact = run(model, wide, targets)
        loss = loss_of(model, wide, targets)[1].detach()
        found, left = gradients(model, path)
        store = {f"input.{k}": v if v.is_floating_point() else v.int() for k, v in inputs.items()}
        store |= {"targets": targets.int(), "logits": logits.float(), "loss": loss[None]} | {f"gradient.{k}": v.float() for k, v in found.items()}
        store |= magnitudes(model, wide, targets, path)
        for low in (torch.bfloat16, torch.float16):
            out, grads = run(copy.deepcopy(single), list(inputs.values()), targets, low)
            store[f"autocast.{str(low)[6:]}"] = torch.stack([distance([out], [logits]), distance([grads[k] for k in exact], list(exact.values()))])
        store["adamw"] = train(copy.deepcopy(model), wide, targets)
        follows = ((train(single, list(inputs.values()), targets) / store["adamw"] - 1).abs().max()).item()
        if model.training:  # running statistics after one batch, and what the model then says in evaluation
            other = copy.deepcopy(model)
            theirs = {t.name: torch.from_numpy(numpy_helper.to_array(t).copy()) for t in onnx.load(path).graph.initializer}
            for k, v in other.named_buffers():  # as the exporter, which ran the model, left them
                v.copy_(theirs.get(k, v))
            other(*wide)
            store |= {f"running.{k}": v.float() for k, v in other.named_buffers() if v.is_floating_point()}
            store["evaluated"] = other.eval()(*wide).detach().float()
        save_file({k: v.contiguous() for k, v in store.items()}, DATA / f"onnx_{name}.safetensors")
        slim(path)
        print(name, path.stat().st_size, "bytes,", len(found), f"gradients, float32's losses within {follows:.1e}; weights of the file that are no parameter:", left)


def train(model, inputs, targets):
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-3), []
    for _ in range(100):
        optimizer.zero_grad()
        loss = loss_of(model, inputs, targets)[1]
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def slim(path):
    """Without what the exporter tells about its own work, long names of values included."""
    model = onnx.load(path)
    kept = {thing.name for thing in (*model.graph.input, *model.graph.output, *model.graph.initializer)}
    short = {}
    for node in model.graph.node if path.stat().st_size > 100_000 else ():
        node.name = ""
        for names in (node.input, node.output):
            names[:] = [n if n in kept or not n else short.setdefault(n, f"v{len(short)}") for n in names]
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
    check(*sys.argv[2:4]) if sys.argv[1:2] == ["--check"] else main(sys.argv[1:])
