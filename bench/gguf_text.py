#!/usr/bin/env python3
"""Greedy text of llama.cpp from GGUF files that Mezzo wrote, beside Mezzo's own, for every family, and what the formats
cost in loss.

    pip install xllamacpp
    bench/gguf_text.py --mezzo build/release/mezzo --text FILE --out FOLDER [--families llama,qwen2] [--csv FILE]

Every family is trained for a few steps on the text, with a tokenizer of bytes that was trained on it, exported in every
format, and continued greedily by llama.cpp and by Mezzo from the same file (imported again). A row has the format, whether
the texts are the same and for how many characters, the loss of Mezzo's weights rounded so and exact, and the file's
size. llama.cpp rounds activations to 8 bits beside Q8_0, which Mezzo does not: where two tokens are nearly as likely,
the texts may part there.
"""
import argparse
import csv
import json
import os
import shutil
import subprocess
import sys

from peers.llama_cpp import LlamaCpp

SIZES = ["--layers", "4", "--d-model", "128", "--heads", "4", "--seq-len", "128", "--d-ff", "256"]
GROUPED = ["--kv-heads", "2"]
SCALED = GROUPED + ["--model.rope_factor", "4", "--model.rope_original", "32"]
FAMILIES = {  # the part before a dash is the family
    "llama": GROUPED,
    "llama-linear": SCALED + ["--model.rope_scaling", "linear"],
    "llama-llama3": SCALED + ["--model.rope_scaling", "llama3", "--model.rope_low", "1", "--model.rope_high", "4"],
    "llama-yarn": SCALED + ["--model.rope_scaling", "yarn", "--model.rope_low", "1", "--model.rope_high", "32"],
    "llama-tied": GROUPED + ["--model.tie_head", "yes"],
    "cs336": [],
    "mistral": GROUPED + ["--model.window", "0"],
    "qwen2": GROUPED + ["--model.window", "0"],
    "qwen3": GROUPED + ["--model.window", "0", "--head-dim", "64"],
    "smollm3": GROUPED + ["--model.window", "0"],
    "phi3": GROUPED + ["--model.window", "0"],
    "phi3-longrope": SCALED + ["--model.window", "0", "--model.rope_scaling", "longrope",  # with a --prompt longer than 32 tokens
                               "--model.rope_short", ",".join(f"{1 + 0.05 * i:.3g}" for i in range(16)),
                               "--model.rope_long", ",".join(f"{1 + 0.4 * i:.3g}" for i in range(16))],
    "olmo2": GROUPED,
    "gpt_neox": ["--rotary", "0.25"],
    "gpt2": ["--dropout", "0"],
    "glm4_moe": GROUPED + ["--head-dim", "32", "--experts", "4", "--experts-per-token", "2", "--d-expert", "64", "--shared-experts",
                 "1", "--dense-layers", "1"],
    "mixtral": GROUPED + ["--model.window", "0", "--experts", "4", "--experts-per-token", "2", "--d-expert", "64"],
    "qwen3_moe": GROUPED + ["--head-dim", "32", "--experts", "4", "--experts-per-token", "2", "--d-expert", "64"],
    "gemma": GROUPED + ["--head-dim", "32"],
    "gemma2": GROUPED + ["--head-dim", "32", "--model.query_scalar", "32", "--model.window", "32"],
    "gemma3": GROUPED + ["--head-dim", "32", "--model.query_scalar", "32", "--model.window", "32"],
}
FORMATS = ["f32", "bf16", "f16", "q8_0"]


def mezzo(args, *words, check=True):
    done = subprocess.run([args.mezzo, *words], capture_output=True, text=True, errors="replace")
    if check and done.returncode != 0:
        sys.exit(f"mezzo {' '.join(words)}: {done.returncode}\n{done.stderr}")
    return done.stdout if check else done


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mezzo", default="mezzo")
    parser.add_argument("--text", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--steps", default="150")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompt", default="The model")
    parser.add_argument("--csv")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    tokenizer = f"{args.out}/tokenizer.json"
    if not os.path.exists(tokenizer):
        mezzo(args, "data", args.text, "--train-tokenizer", "1000", "--special", "<|endoftext|>", "--out", tokenizer)
    rows, failed = [], 0
    for family in args.families.split(","):
        run = f"{args.out}/{family}"
        if not os.path.exists(run):
            mezzo(args, "train", "--quiet", "--data", args.text, "--tokenizer", tokenizer, "--model", family.split("-")[0], *SIZES,
                  *FAMILIES[family], "--steps", args.steps, "--lr", "2e-3", "--batch-size", "8", "--precision", "fp32",
                  "--device", "cpu", "--seed", "1", "--out", run)
        for form in args.formats.split(","):
            file, again = f"{run}.{form}.gguf", f"{run}.{form}.run"
            for path in (file, again):
                shutil.rmtree(path, ignore_errors=True) if os.path.isdir(path) else os.path.exists(path) and os.remove(path)
            mezzo(args, "export", run, "--gguf", form, "--out", file)
            mezzo(args, "import", file, "--out", again)
            loss = json.loads(mezzo(args, "eval", run, "--as", form, "--json", "--device", "cpu"))
            theirs = LlamaCpp(file).text(args.prompt, args.tokens)
            ours = mezzo(args, "sample", again, "--prompt", args.prompt, "--temperature", "0", "--tokens",
                         str(args.tokens), "--precision", "fp32", "--device", "cpu")
            ours = ours[len(args.prompt):] if ours.startswith(args.prompt) else ours
            same = os.path.commonprefix([ours.rstrip("\n"), theirs.rstrip("\n")])
            equal = ours.rstrip("\n") == theirs.rstrip("\n")
            failed += not equal
            row = {"family": family, "format": form, "tokens": args.tokens, "same_text": "yes" if equal else "no",
                   "same_characters": len(same), "characters": len(theirs), "loss": f"{loss['loss_as']:.6f}",
                   "loss_exact": f"{loss['loss']:.6f}", "bytes": os.path.getsize(file)}
            rows.append(row)
            print(" ".join(f"{k}={v}" for k, v in row.items()), flush=True)
            if not equal:
                print(f"  mezzo     {ours!r}\n  llama.cpp {theirs!r}")
    if args.csv:
        with open(args.csv, "w", newline="") as out:
            writer = csv.DictWriter(out, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
