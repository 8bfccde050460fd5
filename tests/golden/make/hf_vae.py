"""A small AutoencoderKL as diffusers saves it, and what diffusers makes of it: hf_vae/ and hf_vae_values.safetensors (pictures, the means of
their latents, and these decoded, in float64, [n, height, width, channels]).

    python hf_vae.py                    needs torch, diffusers, safetensors
    python hf_vae.py --check FOLDER     loads what mezzo exported and compares its latents and pictures with the stored ones

Norms and biases are drawn too: as diffusers begins, they would hide mistakes.
"""
import pathlib
import shutil
import sys

import torch
from diffusers import AutoencoderKL
from safetensors.torch import load_file

from store import DATA, deterministic, write_tensors

SIDE, LATENT = 16, 3


def make():
    vae = AutoencoderKL(in_channels=1, out_channels=1, down_block_types=["DownEncoderBlock2D"] * 3, up_block_types=["UpDecoderBlock2D"] * 3,
                        block_out_channels=[4, 8, 8], layers_per_block=1, latent_channels=LATENT, norm_num_groups=2, sample_size=SIDE)
    with torch.no_grad():
        for name, p in vae.named_parameters():
            if p.dim() == 1:
                p.copy_(torch.randn(p.shape) * 0.2 + (1 if "norm" in name and name.endswith("weight") else 0))
    return vae.eval()


@torch.no_grad()
def values(vae, pictures):
    vae = vae.double()
    latent = vae.encode(pictures).latent_dist.mean
    return latent, vae.decode(latent).sample


def nhwc(x):
    return x.permute(0, 2, 3, 1).float().contiguous()


def main():
    if sys.argv[1:2] == ["--check"]:
        stored = load_file(pathlib.Path(DATA) / "hf_vae_values.safetensors")
        vae = AutoencoderKL.from_pretrained(sys.argv[2])
        latent, back = values(vae, stored["pictures"].permute(0, 3, 1, 2).double())
        for name, ours in (("latents", latent), ("decoded", back)):
            off = (nhwc(ours) - stored[name]).abs().max().item()
            print(f"{name}: {off:.2e}")
            assert off < 1e-6
        return
    deterministic(31)
    vae, folder = make(), pathlib.Path(DATA) / "hf_vae"
    pictures = torch.rand(2, 1, SIDE, SIDE).mul(2).sub(1)
    shutil.rmtree(folder, ignore_errors=True)
    vae.save_pretrained(folder)
    latent, back = values(vae, pictures.double())
    write_tensors("hf_vae_values.safetensors", __file__, {"pictures": nhwc(pictures), "latents": nhwc(latent), "decoded": nhwc(back)})


if __name__ == "__main__":
    main()
