"""A small GPT-2 written for the golden values: pre-norm, learned positions, tanh GELU, tied head, biases.

Names are Hugging Face's without "transformer."; linear weights are [out, in].
"""

import torch
import torch.nn.functional as F
from torch import nn

EPS = torch.tensor(1e-5).item()  # the float32 number, as Mezzo has it


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)

    def forward(self, x):  # [B, T, C]
        b, t, c = x.shape
        q, k, v = (p.view(b, t, self.heads, c // self.heads).transpose(1, 2) for p in self.c_attn(x).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # [B, H, T, D]
        return self.c_proj(y.transpose(1, 2).reshape(b, t, c))


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_proj = nn.Linear(4 * width, width)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, eps=EPS)
        self.attn = Attention(width, heads)
        self.ln_2 = nn.LayerNorm(width, eps=EPS)
        self.mlp = Mlp(width)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt2(nn.Module):
    def __init__(self, layers=2, heads=2, width=32, context=16, vocabulary=61):
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(context, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width, eps=EPS)

    def forward(self, tokens):  # [B, T] -> [B, T, V]
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)

    def loss(self, tokens, targets):
        logits = self(tokens)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def initialise(model, generator):
    """Larger than a training initialisation, so that softmax, GELU and the norms are away from their linear parts."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if name.startswith("wte"):
                p.copy_(0.3 * noise)
            elif name.startswith("wpe"):
                p.copy_(0.1 * noise)
            elif p.dim() == 2:
                p.copy_(noise * (0.8 / p.shape[1] ** 0.5))
            elif name.endswith("weight"):  # the gain of a norm
                p.copy_(1.0 + 0.1 * noise)
            else:
                p.copy_(0.1 * noise)
    return model
