#!/usr/bin/env python3
"""From a text to a fine-tuned model that other programs run: tokenizer, training from scratch, LoRA on conversations, merge,
export; then the greedy answers of Mezzo, transformers and llama.cpp, and what each format costs in loss.

    pip install torch transformers xllamacpp
    bench/finetune_story.py --mezzo build/release/mezzo --text FILE --out FOLDER [--csv FILE]

--text is what the model is trained on from scratch; the conversations are questions about words of it. Exits 1 where an
answer of transformers or of llama.cpp (from the F32 file) is not Mezzo's.
"""
import argparse
import csv
import json
import os
import re
import subprocess
import sys

from peers.llama_cpp import LlamaCpp

SPECIAL = "<|endoftext|>,<|im_start|>,<|im_end|>"
SIZES = ["--model", "llama", "--layers", "4", "--d-model", "128", "--heads", "4", "--kv-heads", "2", "--d-ff", "256", "--seq-len", "128"]


def mezzo(args, *words):
    done = subprocess.run([args.mezzo, *words], capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        sys.exit(f"mezzo {' '.join(words)}: {done.returncode}\n{done.stderr}")
    return done.stdout


def conversations(text, path):
    words = sorted({w for w in re.findall(r"[a-z]{4,9}", text)})[:120]
    with open(path, "w") as out:
        for word in words:
            answer = f"It begins with {word[0]} and has {len(word)} letters."
            out.write(json.dumps({"messages": [{"role": "user", "content": f"What of {word}?"},
                                               {"role": "assistant", "content": answer}]}) + "\n")
    return [f"What of {word}?" for word in words[::17]]


def transformers_answers(folder, questions, tokens):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    answers = []
    for question in questions:
        ids = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True,
                                            return_tensors="pt", return_dict=True)
        out = model.generate(**ids, do_sample=False, max_new_tokens=tokens)
        answers.append(tokenizer.decode(out[0][ids["input_ids"].shape[1]:], skip_special_tokens=True))
    return answers


def llama_answers(path, questions, tokens):
    model = LlamaCpp(path)
    return [model.answer(question, tokens) for question in questions]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mezzo", default="mezzo")
    parser.add_argument("--text", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", default="200")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--csv")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    base, tuned, folder = (f"{args.out}/{name}" for name in ("base", "tuned", "folder"))
    tokenizer, data = f"{args.out}/tokenizer.json", f"{args.out}/questions.jsonl"
    questions = conversations(open(args.text).read(), data)
    common = ["--quiet", "--device", "cpu", "--precision", "fp32", "--batch-size", "8", "--seed", "1"]
    mezzo(args, "data", args.text, "--train-tokenizer", "1000", "--special", SPECIAL, "--out", tokenizer)
    mezzo(args, "train", *common, *SIZES, "--data", args.text, "--tokenizer", tokenizer, "--steps", args.steps, "--lr", "2e-3",
          "--out", base)
    mezzo(args, "train", *common, "--init", base, "--data", data, "--steps", args.steps, "--lr", "3e-3", "--lora-rank", "16",
          "--lora-alpha", "32", "--lora-modules", "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj", "--out", tuned)
    mezzo(args, "export", tuned, "--out", folder)
    for form in ("f32", "bf16", "f16", "q8_0"):
        mezzo(args, "export", tuned, "--gguf", form, "--out", f"{args.out}/{form}.gguf")
    ours = [mezzo(args, "sample", tuned, "--chat", q, "--temperature", "0", "--tokens", str(args.tokens), "--device", "cpu",
                  "--precision", "fp32").strip() for q in questions]
    rows = []
    for program, answers in [("transformers", transformers_answers(folder, questions, args.tokens))] + \
            [(f"llama.cpp {form}", llama_answers(f"{args.out}/{form}.gguf", questions, args.tokens))
             for form in ("f32", "bf16", "f16", "q8_0")]:
        same = sum(a.strip() == b for a, b in zip(answers, ours))
        form = program.split()[-1] if " " in program else "f32"
        loss = json.loads(mezzo(args, "eval", tuned, "--data", data, "--as", form, "--json", "--device", "cpu"))
        rows.append({"program": program, "answers": len(ours), "same_as_mezzo": same, "loss": f"{loss['loss_as']:.6f}",
                     "loss_exact": f"{loss['loss']:.6f}"})
        print(" ".join(f"{k}={v}" for k, v in rows[-1].items()), flush=True)
        for question, a, b in zip(questions, answers, ours):
            if a.strip() != b:
                print(f"  {question} mezzo {b!r}, {program} {a!r}")
    print(f"for example: {questions[0]} {ours[0]!r}")
    if args.csv:
        with open(args.csv, "w", newline="") as out:
            writer = csv.DictWriter(out, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    return int(any(r["same_as_mezzo"] != r["answers"] for r in rows[:2]))


if __name__ == "__main__":
    sys.exit(main())
