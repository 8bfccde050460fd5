"""A small CS336 Transformer written for the golden values: RMSNorm, rotary positions on neighbouring pairs, SwiGLU, no biases, untied head.

Names are Mezzo's: q, k and v are one matrix, and so are w1 and w3 of the assignment. Linear weights are [out, in].
"""

import torch
import torch.nn.functional as F
from torch import nn

EPS = torch.tensor(1e-5).item()  # the float32 number, as Mezzo has it


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x if x.dtype == torch.float64 else x.float()
        return wide * (wide.square().mean(-1, keepdim=True) + EPS).rsqrt() * self.weight


def rotate(x, theta=10000.0):  # [B, H, T, D]; frequencies and angles are float32 numbers, whatever the precision
    t, d = x.shape[-2:]
    frequencies = 1.0 / theta ** (torch.arange(0, d, 2, dtype=torch.float32) / d)
    angles = (torch.arange(t, dtype=torch.float32)[:, None] * frequencies).double()  # [T, D/2]
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    c, s = angles.cos().float().to(wide), angles.sin().float().to(wide)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * c - b * s, b * c + a * s), dim=-1).flatten(-2).to(x.dtype)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv_proj = nn.Linear(width, 3 * width, bias=False)
        self.output_proj = nn.Linear(width, width, bias=False)

    def forward(self, x):  # [B, T, C]
        b, t, c = x.shape
        q, k, v = (p.view(b, t, self.heads, c // self.heads).transpose(1, 2)
                   for p in self.qkv_proj(x).split(c, dim=2))
        y = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)  # [B, H, T, D]
        return self.output_proj(y.transpose(1, 2).reshape(b, t, c))


class SwiGLU(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.w13 = nn.Linear(width, 2 * inner, bias=False)
        self.w2 = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        gate, up = self.w13(x).chunk(2, dim=-1)
        return self.w2(F.silu(gate) * up)


class Block(nn.Module):
    def __init__(self, width, inner, heads):
        super().__init__()
        self.ln1, self.attn = RMSNorm(width), Attention(width, heads)
        self.ln2, self.ffn = RMSNorm(width), SwiGLU(width, inner)

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.ffn(self.ln2(x))


class Cs336(nn.Module):
    def __init__(self, layers, heads, width, inner, vocabulary):
        super().__init__()
        self.token_embeddings = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Block(width, inner, heads) for _ in range(layers))
        self.ln_final = RMSNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):  # [B, T] -> [B, T, V]
        x = self.token_embeddings(tokens)
        for block in self.layers:
            x = block(x)
        return self.lm_head(self.ln_final(x))
