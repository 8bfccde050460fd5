"""Tokenizers trained by `mezzo data --train-tokenizer` beside those of BpeTrainer in the library `tokenizers`: the same vocabulary and merges.

    python trained_tokenizers.py MEZZO [TEXT ...]   needs tokenizers; texts besides those that are made here
"""
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from published_tokenizers import CL100K, GPT2, O200K, SCRIPTS, CODE

PATTERNS = {"gpt2": GPT2, "gpt4": CL100K, "llama3": CL100K, "gpt4o": O200K}


def is_assigned(c):
    return unicodedata.category(c) not in ("Cn", "Co")  # to both libraries


def texts():
    rng = random.Random(5)
    words = ["".join(rng.choice("etaoinshrdlu") for _ in range(rng.randrange(1, 9))) for _ in range(400)]
    return {
        "scripts": " ".join(SCRIPTS.values()) * 3 + CODE * 5, "ties": "".join(rng.choice("ab ") for _ in range(4000)),
        "runs": "a" * 500 + " " + "ab" * 300 + "\n" * 77 + " " * 99 + "aab" * 55, "abc": "abcabc abc bcabca cab " * 40,
        "words": " ".join(rng.choice(words) for _ in range(20000)),
        "random": "".join(filter(is_assigned, (chr(rng.choice([rng.randrange(32, 127), rng.randrange(160, 0xD7FF), rng.randrange(0x10000, 0x1FFFF)])) for _ in range(4000)))),
        "special": "the <|end|> of the end, the end<|end|> then, thethe " * 30,
    }


def by_library(text, pattern, vocab, special):
    t = Tokenizer(models.BPE())
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern == "gpt2")
    t.pre_tokenizer = split if pattern == "gpt2" else pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(PATTERNS[pattern]), "isolated"), split])
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator([text] if isinstance(text, str) else text, trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return t


def same(mezzo, name, source, text, pattern, vocab, special):
    with tempfile.TemporaryDirectory() as folder:
        command = [mezzo, "data", source, "--train-tokenizer", str(vocab), "--out", f"{folder}/t.json", "--pattern", pattern, "--special", ",".join(special) or "none"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        ours = json.loads(pathlib.Path(f"{folder}/t.json").read_text())
        loaded = Tokenizer.from_file(f"{folder}/t.json")
    library = by_library(text, pattern, vocab, special)
    theirs = json.loads(library.to_str())
    equal = ours["model"]["vocab"] == theirs["model"]["vocab"] and ours["model"]["merges"] == theirs["model"]["merges"]
    equal = equal and [x["content"] for x in ours["added_tokens"]] == [x["content"] for x in theirs["added_tokens"]]
    sample = (text if isinstance(text, str) else " ".join(text))[:20000]
    equal = equal and loaded.encode(sample).ids == library.encode(sample).ids
    print(f"{name}, {pattern}, {vocab} tokens, special {special}: {len(ours['model']['merges'])} merges, {'equal' if equal else 'DIFFERENT'}")
    return equal


def main():
    mezzo, failed = sys.argv[1], 0
    with tempfile.TemporaryDirectory() as folder:
        for name, text in texts().items():
            path = pathlib.Path(folder) / name
            path.write_text(text, "utf-8", newline="")
            for pattern in PATTERNS:
                for vocab, special in ((300, []), (2000, ["<|endoftext|>"]), (600, ["<|a b|>", "the", "<é>"])):
                    failed += not same(mezzo, name, str(path), text, pattern, vocab, special)
        records = [{"text": "one text"}, {"prompt": "a question?", "completion": " an answer"}, {"messages": [{"role": "user", "content": "é hello"}]}] * 9
        path = pathlib.Path(folder) / "records.jsonl"
        path.write_text("".join(json.dumps(r) + "\n" for r in records))
        said = [s for _ in range(9) for s in ("one text", "a question?", " an answer", "é hello")]
        failed += not same(mezzo, "records", str(path), said, "gpt2", 400, ["<|endoftext|>"])
        for source in sys.argv[2:]:
            for pattern in PATTERNS:
                failed += not same(mezzo, source, source, open(source, encoding="utf-8", newline="").read(), pattern, 8000, ["<|endoftext|>"])
    print(f"{failed} differ")
    return failed


if __name__ == "__main__":
    sys.exit(main())
