"""kl_vae and radio_unet at a small size: weights, a batch, prediction, loss and every gradient; samplers step by step.

    python3 images.py        (needs torch, numpy, safetensors)

Reference values are float64 from float32 weights. The models are written here a second time, with torch's own convolution, group norm and
softmax; weights are stored in Mezzo's order, [out, height, width, in]. Noise is Philox's, as the graph draws it.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F

from store import deterministic, write_tensors

WIDTHS, GROUPS, HEADS, SIDE, BATCH, LATENT = (4, 8), 2, 2, 8, 2, 3
OBJECTIVES = {"noise": 1, "velocity": 1, "decoupled": 2, "image": 1}  # and how many images each predicts


def philox(seed, index, tensor, step=0):
    mask = 0xFFFFFFFF
    k0, k1 = seed & mask, seed >> 32
    c = [index & mask, index >> 32, tensor, step]
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k0, p1 & mask, (p0 >> 32) ^ c[3] ^ k1, p0 & mask]
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    return c


def noise(rows, count):
    """Row b has the key (7b + 1, 13b + 5)."""
    out = np.zeros((rows, count), np.float32)
    for b in range(rows):
        for i in range(0, count, 4):
            words = philox(7 * b + 1 | (13 * b + 5) << 32, i >> 2, 0x1D1F0000)
            for k in (0, 2):
                radius = math.sqrt(-2 * math.log((words[k] + 1) / 2**32))
                angle = 2 * math.pi * words[k + 1] / 2**32
                for n, value in enumerate((radius * math.cos(angle), radius * math.sin(angle))):
                    if i + k + n < count:
                        out[b, i + k + n] = value
    return torch.from_numpy(out)


def wide(x):
    """As torch.autocast("cuda") does before norms and losses."""
    return x if x.dtype == torch.float64 else x.float()


class Model:
    """Parameters are made when they are first asked for."""

    def __init__(self, seed):
        self.generator, self.parameters, self.path = torch.Generator().manual_seed(seed), {}, []

    def get(self, name, shape, spread, middle=0.0):
        name = ".".join(self.path + [name])
        if name not in self.parameters:
            value = (torch.randn(shape, generator=self.generator) * spread + middle).double()
            self.parameters[name] = value.requires_grad_()
        return self.parameters[name]

    def inside(self, name):
        model = self

        class Scope:
            def __enter__(self):
                model.path.append(name)

            def __exit__(self, *_):
                model.path.pop()
        return Scope()

    def conv(self, name, x, n, size=3, stride=1, behind=False):  # x [B, C, H, W]; behind: padded below and on the right alone
        with self.inside(name):
            c, pad = x.shape[1], size // 2
            if behind:
                x, pad = F.pad(x, (0, 1, 0, 1)), 0
            weight = self.get("weight", (n, size, size, c), 1 / math.sqrt(c * size * size)).permute(0, 3, 1, 2)
            return F.conv2d(x, weight, self.get("bias", (n,), 0.1), stride, pad)

    def linear(self, name, x, n):
        with self.inside(name):
            return F.linear(x, self.get("weight", (n, x.shape[-1]), 1 / math.sqrt(x.shape[-1])), self.get("bias", (n,), 0.1))

    def norm(self, name, x, eps, silu, film=None):
        with self.inside(name):
            c = x.shape[1]
            x = F.group_norm(wide(x), GROUPS, self.get("weight", (c,), 0.2, 1.0), self.get("bias", (c,), 0.2), eps)
        if film is not None:
            scale, shift = film[:, :, None, None].chunk(2, 1)
            x = x * (1 + scale) + shift
        return F.silu(x) if silu else x

    def block(self, name, x, n, eps, time=None):
        with self.inside(name):
            film = None if time is None else self.linear("time_emb_proj", F.silu(time), 2 * n)
            h = self.conv("conv1", self.norm("norm1", x, eps, True), n)
            h = self.conv("conv2", self.norm("norm2", h, eps, True, film), n)
            return (self.conv("conv_shortcut", x, n, 1) if x.shape[1] != n else x) + h

    def attention(self, name, x, heads, eps, context=None):
        with self.inside(name):
            b, c, height, width = x.shape
            h = self.norm("group_norm", x, eps, False).flatten(2).transpose(1, 2)
            seen = h if context is None else context.flatten(2).transpose(1, 2)
            q, k, v = (self.linear(n, s, c).reshape(b, -1, heads, c // heads).transpose(1, 2)
                       for n, s in (("to_q", h), ("to_k", seen), ("to_v", seen)))
            if torch.is_autocast_enabled("cpu"):  # as users write it
                y = F.scaled_dot_product_attention(q, k, v)
            else:
                y = torch.softmax(q @ k.transpose(2, 3) / math.sqrt(c // heads), -1) @ v
            y = self.linear("to_out.0", y.transpose(1, 2).reshape(b, -1, c), c)
            return x + y.transpose(1, 2).reshape(b, c, height, width)

    def middle(self, x, heads, eps, time=None):
        with self.inside("mid_block"):
            x = self.block("resnets.0", x, x.shape[1], eps, time)
            x = self.attention("attentions.0", x, heads, eps)
            return self.block("resnets.1", x, x.shape[1], eps, time)


def vae(m, image, weight, eps=1e-6):
    with m.inside("encoder"):
        x = m.conv("conv_in", image, WIDTHS[0])
        for level, width in enumerate(WIDTHS):
            with m.inside(f"down_blocks.{level}"):
                x = m.block("resnets.0", x, width, eps)
                if level + 1 < len(WIDTHS):
                    x = m.conv("downsamplers.0.conv", x, width, 3, 2, behind=True)
        x = m.middle(x, 1, eps)
        x = m.conv("conv_out", m.norm("conv_norm_out", x, eps, True), 2 * LATENT)
    mean, log_variance = wide(m.conv("quant_conv", x, 2 * LATENT, 1)).chunk(2, 1)
    log_variance = log_variance.clamp(-30, 20)
    b, c, height, width = mean.shape
    epsilon = noise(b, c * height * width).to(image).reshape(b, height, width, c).permute(0, 3, 1, 2)
    x = m.conv("post_quant_conv", mean + torch.exp(0.5 * log_variance) * epsilon, LATENT, 1)
    with m.inside("decoder"):
        x = m.middle(m.conv("conv_in", x, WIDTHS[-1]), 1, eps)
        for level, width in enumerate(reversed(WIDTHS)):
            with m.inside(f"up_blocks.{level}"):
                for i in range(2):
                    x = m.block(f"resnets.{i}", x, width, eps)
                if level + 1 < len(WIDTHS):
                    x = m.conv("upsamplers.0.conv", F.interpolate(x, scale_factor=2), width)
        x = wide(m.conv("conv_out", m.norm("conv_norm_out", x, eps, True), 1))
    kl = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance)
    loss = (weight * ((x - image).abs() + (x - image)**2)).mean()
    return x, loss + 0.5 * (weight * kl).sum() / image.numel()


def unet(m, image, condition, time, schedule, objective, eps=1e-5):
    b, c = image.shape[:2]
    epsilon = noise(b, image[0].numel()).to(image).reshape(b, SIDE, SIDE, c).permute(0, 3, 1, 2)
    a, sigma, w1, w2 = (schedule[:, i, None, None, None] for i in range(4))
    with m.inside("time_embedding"):
        half = WIDTHS[0] // 2
        angle = 1000 * time[:, None] * 10000.0 ** (-torch.arange(half).to(time) / half)
        emb = m.linear("linear_1", torch.cat([angle.cos(), angle.sin()], 1), 4 * WIDTHS[0])
        emb = m.linear("linear_2", F.silu(emb), 4 * WIDTHS[0])
    features = []
    with m.inside("condition"):
        y = m.norm("norm_in", m.conv("conv_in", condition, WIDTHS[0]), eps, True)
        n = 0
        while y.shape[2] > SIDE or len(features) < len(WIDTHS):
            if y.shape[2] > SIDE or features:
                with m.inside(f"downs.{n}"):
                    y = m.norm("norm", m.conv("conv", y, WIDTHS[len(features)], 3, 2), eps, True)
                n += 1
            if y.shape[2] <= SIDE:
                y = m.block(f"levels.{len(features)}.block", y, WIDTHS[len(features)], eps)
                features.append(y)

    def conditioned(x, level):
        if level >= 1:
            return m.attention("attention", x, HEADS, eps, features[level])
        return x + m.conv("condition", features[level], x.shape[1], 1)

    x = m.conv("conv_in", torch.cat([a * image + sigma * epsilon, features[0]], 1), WIDTHS[0])
    skips = [x]
    for level, width in enumerate(WIDTHS):
        with m.inside(f"down_blocks.{level}"):
            with m.inside("resnets.0"):
                x = conditioned(m.block("block", x, width, eps, emb), level)
            skips.append(x)
            if level + 1 < len(WIDTHS):
                x = m.conv("downsamplers.0.conv", x, width, 3, 2)
                skips.append(x)
    x = m.middle(x, HEADS, eps, emb)
    for i, level in enumerate(reversed(range(len(WIDTHS)))):
        with m.inside(f"up_blocks.{i}"):
            for k in range(2):
                with m.inside(f"resnets.{k}"):
                    x = m.block("block", torch.cat([x, skips.pop()], 1), WIDTHS[level], eps, emb)
                    if k == 0:
                        x = conditioned(x, level)
            if level > 0:
                x = m.conv("upsamplers.0.conv", F.interpolate(x, scale_factor=2), WIDTHS[level])
    x = wide(m.conv("conv_out", m.norm("conv_norm_out", x, eps, True), c * OBJECTIVES[objective]))
    if objective == "decoupled":
        return x, (w1 * (x[:, :c] + image)**2).mean() + (w2 * (x[:, c:] - epsilon)**2).mean()
    target = {"noise": epsilon, "velocity": a * epsilon - sigma * image, "image": image}[objective]
    return x, (w1 * (x - target)**2).mean()


def store(prefix, m, out, prediction, loss, weights):
    loss.backward()
    out[f"{prefix}.loss"] = loss.detach().reshape(1)
    out[f"{prefix}.prediction"] = prediction.detach().permute(0, 2, 3, 1).float().contiguous()
    for name, p in m.parameters.items():
        if weights:
            out[f"{weights}.init.{name}"] = p.detach().float()
        out[f"{prefix}.grad.{name}"] = p.grad.float()
        p.grad = None


def images(generator, *shape):
    return torch.rand(shape, generator=generator).mul(2).sub(1).double()


def batch():
    """image, weight, condition, time, schedule"""
    generator = torch.Generator().manual_seed(20)
    image, weight = images(generator, BATCH, 1, SIDE, SIDE), torch.tensor([0.5, 1.5]).double().reshape(BATCH, 1, 1, 1)
    condition, time = images(generator, BATCH, 2, 2 * SIDE, 2 * SIDE), torch.tensor([0.3, 0.85]).double()
    return image, weight, condition, time, torch.tensor([[0.7, 0.6, 1.5, 2.0], [0.2, 0.9, 0.5, 1.25]]).double()


def main():
    deterministic(20)
    out = {}
    image, weight, condition, time, schedule = batch()
    m = Model(1)
    prediction, loss = vae(m, image, weight)
    store("kl_vae", m, out, prediction, loss, "kl_vae")
    for objective in OBJECTIVES:
        m = Model(2)
        prediction, loss = unet(m, image, condition, time, schedule, objective)
        prefix, keep = f"radio_unet.{objective}", objective == "decoupled"
        store(prefix, m, out, prediction, loss, "radio_unet" if keep else None)
        if not keep:  # the last layer differs; its gradient and the loss say enough of the rest
            out = {k: v for k, v in out.items() if not k.startswith(prefix + ".grad") or "conv_out" in k}
            del out[prefix + ".prediction"]
            for name in ("conv_out.weight", "conv_out.bias"):
                out[f"{prefix}.init.{name}"] = m.parameters[name].detach().float()

    def nhwc(x):
        return x.permute(0, 2, 3, 1).float().contiguous()

    out |= {"image": nhwc(image), "condition": nhwc(condition), "time": time.float(), "schedule": schedule.float(),
            "weight": weight.float()}
    write_tensors("images.safetensors", __file__, out)


if __name__ == "__main__":
    main()
