"""How far torch's mixed precision is from float64 on images.py's kl_vae and radio_unet: prediction, loss and every gradient, in BF16 and FP16.

    python3 images_amp.py

torch.autocast("cpu") stands in for CUDA's; where the two op lists differ (norms, losses) images.py widens by hand. FP16 scales its
loss by 1024, as a grad scaler would. kl_vae's pictures are 4 brighter than images.py's: |x - y| has a kink, and where the prediction is
near the picture a rounding turns a gradient around. Stored per tensor: the root mean square of (mixed - float64) and of float64.
"""

import torch

from images import Model, batch, unet, vae
from store import deterministic, write_json

PRECISIONS = {"bf16": (torch.bfloat16, 1.0), "fp16": (torch.float16, 1024.0)}


def rms(x):
    return x.double().square().mean().sqrt().item()


def run(family, exact, dtype=None, scale=1.0):
    """`exact`: a model that has parameters; None makes them."""
    m = Model(1 if family == "kl_vae" else 2)
    image, weight, condition, time, schedule = (t if dtype is None else t.float() for t in batch())
    if exact is not None:
        m.parameters = {n: p.detach().float().requires_grad_() for n, p in exact.parameters.items()}
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
        prediction, loss = (vae(m, image + 4, weight) if family == "kl_vae" else
                            unet(m, image, condition, time, schedule, "decoupled"))
    (loss * scale).backward()
    results = {"grad." + n: p.grad.double() / scale for n, p in m.parameters.items()}
    return m, results | {"prediction": prediction.detach().double(), "loss": loss.detach().double()}


def main():
    deterministic(20)
    content = {}
    for family in ("kl_vae", "radio_unet"):
        m, exact = run(family, None)
        for name, (dtype, scale) in PRECISIONS.items():
            _, mixed = run(family, m, dtype, scale)
            content[f"{family}.{name}"] = {"scale": scale, "tensors": {
                n: {"error": rms(mixed[n] - exact[n]), "size": rms(exact[n])} for n in sorted(exact)}}
    write_json("images_amp.json", __file__, content)


if __name__ == "__main__":
    main()
