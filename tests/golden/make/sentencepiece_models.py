"""Models of sentencepiece of BPE kind, texts, and their tokens by the package `sentencepiece`: sentencepiece_models.json.
Beside them, what Mezzo makes of a model as tokenizer.json, read by the library `tokenizers`.

    python sentencepiece_models.py                          writes the golden file; needs sentencepiece
    python sentencepiece_models.py --check LIBMEZZO.so N    compares N random texts a model; needs tokenizers, too
    python sentencepiece_models.py --damage LIBMEZZO.so     60 damaged models: read, or one line
"""
import base64
import io
import json
import pathlib
import random
import sys
import tempfile

import sentencepiece as spm

from published_tokenizers import CODE, HERE, SCRIPTS, Mezzo, long_texts, random_texts

WAYS = {  # what spm_train is asked for; the rest is its default
    "llama": dict(normalization_rule_name="identity", remove_extra_whitespaces=False, byte_fallback=True, split_digits=True,
                  allow_whitespace_only_pieces=True),
    "defaults": dict(),
    "identity": dict(normalization_rule_name="identity"),
    "no_prefix": dict(normalization_rule_name="identity", add_dummy_prefix=False, remove_extra_whitespaces=False, byte_fallback=True,
                      user_defined_symbols=["<sep>", "\n", "\n\n", "<b>", "a.b|c"]),
    "symbols": dict(normalization_rule_name="identity", user_defined_symbols=["<sep>", "<sep><b>", "(x)", "ü"], byte_fallback=True),
    "folded": dict(normalization_rule_name="nmt_nfkc_cf", byte_fallback=True),
    "unknown": dict(normalization_rule_name="nfkc", character_coverage=0.98, remove_extra_whitespaces=False),
    "rules": dict(normalization_rule_tsv=[("A", "a"), ("\u00bd", "1/2"), ("e\u0301", "\u00e9"), ("e\u0301\u0301", "E"), ("\t", " "), ("\u200b", "")],
                  byte_fallback=True),
    "periods": dict(normalization_rule_name="identity", remove_extra_whitespaces=False, allow_whitespace_only_pieces=True, split_by_whitespace=False),
}


def corpus(name):
    rng = random.Random(name)
    if name == "periods":
        return ["".join(rng.choice(("a", "b", "ab", "aa", "  ", " ")) for _ in range(60)) for _ in range(400)]
    lines = [*SCRIPTS.values(), *CODE.split("\n"), "Some <sep>text(x) with <b>symbols</b>."]
    return [" ".join(rng.sample(line.split(" "), k=len(line.split(" ")))) for line in lines for _ in range(8)]


def rules_file(folder, rules):
    """What a text becomes, both as code points in hexadecimal."""
    path = pathlib.Path(folder) / "rules.tsv"
    path.write_text("".join("\t".join(" ".join(f"{ord(c):X}" for c in side) for side in rule) + "\n" for rule in rules))
    return str(path)


def models():
    made, folder = {}, tempfile.mkdtemp()
    for name, way in WAYS.items():
        out = io.BytesIO()
        if "normalization_rule_tsv" in way:
            way = {**way, "normalization_rule_tsv": rules_file(folder, way["normalization_rule_tsv"])}
        spm.SentencePieceTrainer.train(sentence_iterator=iter(corpus(name)), model_writer=out, model_type="bpe", hard_vocab_limit=False,
                                       minloglevel=2, vocab_size=120 if name == "periods" else 900, num_threads=1, **{"character_coverage": 1.0, **way})
        made[name] = out.getvalue()
    return made


def some_texts(name, count):
    rng = random.Random(name + "!")
    short = ["".join(rng.choice(("a", "b", "ab", " ", "  ", "\n", "<sep>", "<b>", "(x)", "\u2581", "ü", "e", ".")) for _ in range(rng.randrange(1, 24)))
             for _ in range(count // 2)]
    return long_texts() + random_texts("nfkc", count - len(short)) + short + [" ", "  ", "\u2581", " a", "a ", "<sep>", " <sep> a<sep>", "<sep><b>", "\n\n\n"]


def check(library, count):
    from tokenizers import Tokenizer
    mezzo, failed = Mezzo(library), 0
    with tempfile.TemporaryDirectory() as folder:
        for name, model in models().items():
            path, again = f"{folder}/{name}.model", f"{folder}/{name}.json"
            pathlib.Path(path).write_bytes(model)
            sp, tok = spm.SentencePieceProcessor(model_proto=model), mezzo.load(path)
            if tok is None:
                print(f"{name}: {mezzo.message()}")
                failed += 1
                continue
            mezzo.lib.mezzo_tokenizer_save(tok, again.encode())
            theirs, texts, wrong, other, lost = Tokenizer.from_file(again), some_texts(name, count), 0, 0, 0
            for text in texts:
                want, got = sp.encode(text), mezzo.encode(tok, text)
                if got != want:
                    wrong += 1
                    if wrong < 4:
                        print(f"{name}: {text!r}\n  {got}\n  {want}\n  {[sp.id_to_piece(i) for i in want][:40]}")
                    continue
                other += theirs.encode(text, add_special_tokens=False).ids != want
                # sentencepiece takes every space before the first word where it removes some, Mezzo the one that was put there
                if sp.unk_id() not in want and mezzo.decode(tok, want).decode(errors="replace").lstrip(" ") != sp.decode(want).lstrip(" "):
                    lost += 1
                    if lost < 3:
                        print(f"{name}: decoding {text!r}\n  {mezzo.decode(tok, want)!r}\n  {sp.decode(want)!r}")
            print(f"{name}: {sp.vocab_size()} pieces, {len(texts)} texts: {wrong} with other tokens, {other} in tokenizers, {lost} decoded otherwise")
            failed += wrong > 0
            mezzo.lib.mezzo_tokenizer_free(tok)
    return failed


def damage(library, count=60):
    mezzo, rng, read = Mezzo(library), random.Random(11), 0
    made = list(models().values())
    with tempfile.TemporaryDirectory() as folder:
        for i in range(count):
            model, path = bytearray(made[i % len(made)]), f"{folder}/{i}.model"
            for _ in range(rng.randrange(1, 4)):
                model[rng.randrange(len(model))] = rng.randrange(256)
            pathlib.Path(path).write_bytes(model[:rng.randrange(len(model))] if i % 3 == 0 else model)
            tok = mezzo.load(path)
            if tok is None:
                assert mezzo.message() and "\n" not in mezzo.message(), mezzo.message()
                print(mezzo.message().replace(folder + "/", "")[:150])
                continue
            read += 1
            for text in long_texts():
                ids = mezzo.encode(tok, text)
                assert isinstance(ids, str) or isinstance(mezzo.decode(tok, ids), bytes)
            mezzo.lib.mezzo_tokenizer_free(tok)
    print(f"{count} damaged models: {read} read, {count - read} refused in a line")


def write():
    rows = []
    for name, model in models().items():
        sp = spm.SentencePieceProcessor(model_proto=model)
        texts = [x for x in some_texts(name, 30) if len(x) < 250]
        cases = [json.dumps([text, sp.encode(text)], separators=(",", ":"), ensure_ascii=False) for text in texts]
        if len(model) > 100_000:  # a map of all of Unicode; "rules" has a small one
            continue
        rows.append('{"name": "%s", "model": "%s", "texts": [\n%s\n]}' % (name, base64.b64encode(model).decode(), ",\n".join(cases)))
    out = HERE.parent / "data" / "sentencepiece_models.json"
    out.write_text('{"made_by": "sentencepiece %s", "cases": [\n%s\n]}\n' % (spm.__version__, ",\n".join(rows)), "utf-8")
    print(f"{out}: {len(rows)} models, {out.stat().st_size} bytes", file=sys.stderr)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--check"]:
        sys.exit(check(sys.argv[2], int(sys.argv[3])))
    elif sys.argv[1:2] == ["--damage"]:
        damage(sys.argv[2])
    else:
        write()
