"""Tokenizers in the form of Hugging Face's tokenizer.json, texts, and their tokens by the library `tokenizers`:
published_tokenizers.json. Special tokens are text there (encode_special_tokens), as they are to Mezzo, and post-processors add nothing.
Characters are those of Unicode 14 and before, which utf8proc 2.8 and PCRE2 10.40 know. The library's trainer breaks ties at random where the
alphabet is limited, so that some tokenizers differ from run to run.

    python published_tokenizers.py                           writes the golden file; needs tokenizers
    python published_tokenizers.py --check LIBMEZZO.so N     compares N random texts a tokenizer, and texts in many scripts
    python published_tokenizers.py --damage LIBMEZZO.so      60 damaged files: read, or one line
    python published_tokenizers.py --speed LIBMEZZO.so TEXT  MB/s of both, one thread
"""
import ctypes
import json
import os
import pathlib
import random
import sys
import tempfile
import time
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = CL100K.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])

SCRIPTS = {
    "Latin": "The first law: don't panic. Naïve café, Zürich, mañana, Ærø, İstanbul ǅ ß ẞ ﬁ", "Greek": "Η γλώσσα μου είναι η ελληνική, ΟΔΟΣ.",
    "Cyrillic": "Всё счастливые семьи похожи друг на друга, №5.", "Hebrew": "שָׁלוֹם עולם! 12 שקלים.", "Arabic": "مرحبا بالعالم، كيف حالك؟ ٣٤٥ ﷺ",
    "Devanagari": "हिन्दी में नमस्ते दुनिया। १२३", "Thai": "ภาษาไทยไม่มีช่องว่างระหว่างคำ ๑๒๓", "Han": "中文没有空格，也没有问题。豈更車 ㍿",
    "Kana": "日本語のテキスト、カタカナと漢字。が か゚ ｶﾞ ㌔", "Hangul": "한국어 텍스트입니다. 각 ᄒ", "Ethiopic": "አማርኛ ጽሑፍ፡ ነው።", "Emoji": "👨‍👩‍👧‍👦 👍🏽 🇩🇪 1️⃣ ☺︎",
}
CODE = "def f(x):\n    if x > 0:\n\n        return x ** 2  # it's 12,345.678\n\n\t}\r\n\r\nhttps://example.org/a_b-c?d=e  <pad> [MASK] <|end|> yesterday\n"


def train(kind, **options):
    """A BPE of 480 tokens of the texts above."""
    t = Tokenizer(models.BPE(**{k: v for k, v in options.items() if k in ("unk_token", "fuse_unk", "byte_fallback", "ignore_merges")}))
    if "normalizer" in options:
        t.normalizer = options["normalizer"]
    t.pre_tokenizer = options["pre"]
    alphabet = pre_tokenizers.ByteLevel.alphabet() if kind == "bytes" else []
    special = options.get("special", [])
    if options.get("byte_fallback"):
        special = special + [f"<0x{b:02X}>" for b in range(256)]
    texts = [CODE * 3] + [s * 2 for s in SCRIPTS.values()]
    t.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=options.get("size", 480), initial_alphabet=alphabet, special_tokens=special,
                                                     limit_alphabet=options.get("limit", 1000), show_progress=False))
    if options.get("byte_fallback"):  # the trainer made them special; published files have them in the vocabulary alone
        j = json.loads(t.to_str())
        j["added_tokens"] = [a for a in j["added_tokens"] if not a["content"].startswith("<0x")]
        t = Tokenizer.from_str(json.dumps(j))
    t.decoder = options.get("decoder", decoders.ByteLevel())
    if "post" in options:
        t.post_processor = options["post"]
    t.add_tokens(options.get("added", []))
    t.add_special_tokens(options.get("more", []))
    return t


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern) if isinstance(pattern, str) else pattern[0], behavior, invert)


def bytewise(*steps):
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def tokenizers():
    llama = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    end = ["<|end|>"]
    made = {
        "gpt2": train("bytes", pre=pre_tokenizers.ByteLevel(add_prefix_space=False), special=end, post=processors.ByteLevel(trim_offsets=False)),
        "cl100k": train("bytes", pre=bytewise(split(CL100K)), special=end),
        "llama3": train("bytes", pre=bytewise(split(CL100K)), special=end, ignore_merges=True,
                        post=processors.Sequence([processors.ByteLevel(), processors.TemplateProcessing(
                            single="<|end|> $A", special_tokens=[("<|end|>", 0)])])),
        "qwen2": train("bytes", pre=bytewise(split(QWEN2)), normalizer=normalizers.NFC(), more=end),
        "o200k": train("bytes", pre=bytewise(split(O200K)), special=end),
        "prefix": train("bytes", pre=pre_tokenizers.ByteLevel(add_prefix_space=True), special=end, added=["  ", "    ", "\t\t"]),
        "digits": train("bytes", pre=pre_tokenizers.Sequence([
            pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.Digits(individual_digits=True),
            split("[0-9][0-9]", "merged_with_previous")])),
        "llama2": train("chars", pre=None, normalizer=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
                        special=["<unk>", "<s>", "</s>"], unk_token="<unk>", fuse_unk=True, byte_fallback=True, decoder=llama, limit=80, size=560),
        "metaspace": train("chars", pre=pre_tokenizers.Metaspace(prepend_scheme="first"), special=["<unk>"], unk_token="<unk>", fuse_unk=True,
                           decoder=decoders.Metaspace(prepend_scheme="first"), limit=80, size=300),
        "whole": train("chars", pre=pre_tokenizers.Metaspace(prepend_scheme="always", split=False), special=["<unk>"], unk_token="<unk>",
                       byte_fallback=True, decoder=decoders.Sequence([decoders.Metaspace(), decoders.ByteFallback()]), limit=60, size=560),
        "normal": train("chars", pre=pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation(), pre_tokenizers.Digits()]),
                        normalizer=normalizers.Sequence([normalizers.Strip(), normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(),
                                                         normalizers.Replace(Regex(r"\s+"), " "), normalizers.Replace("``", '"')]),
                        special=["[UNK]"], unk_token="[UNK]", limit=120, size=400, decoder=decoders.Fuse()),
        "forms": train("bytes", pre=bytewise(split(r"\w+|[^\w\s]+", "removed", True)), normalizer=normalizers.Sequence([
            normalizers.NFD(), normalizers.NFKC(), normalizers.Strip(left=False)])),
        "behaviours": train("bytes", pre=bytewise(split(r"\d(?=(\d{3})+\b)", "merged_with_next"), split(("-",), "contiguous"),
                                                  split(r"(?<=[a-z])(?=[A-Z])"), split(r"[aeiou]\B", "merged_with_previous"),
                                                  split(r" ?[^(\s|[.,!?…。，、।۔،])]+"), pre_tokenizers.Whitespace())),
        "added": train("bytes", pre=pre_tokenizers.ByteLevel(add_prefix_space=True), normalizer=normalizers.Lowercase(), more=[
            AddedToken("<pad>", special=True, lstrip=True), "<|end|>"], added=[
            AddedToken("[MASK]", lstrip=True, normalized=False), AddedToken("the", single_word=True, normalized=False),
            AddedToken("Yester", normalized=True), AddedToken("yesterday", normalized=True, rstrip=True), AddedToken("x *", lstrip=True, rstrip=True)]),
    }
    return made


# Python's table may be newer than Unicode 14: what later versions added below U+30000.
LATER = [(0x2FFC, 0x2FFF), (0x31E3, 0x31EF), (0xCF3, 0xCF3), (0xECE, 0xECE), (0x1C89, 0x1C8A), (0xA7CB, 0xA7CD), (0xA7DA, 0xA7DC),
         (0x10D40, 0x10D8F), (0x10EC2, 0x10EFF), (0x105C0, 0x105FF), (0x1123F, 0x11241), (0x11380, 0x113FF), (0x116D0, 0x116FF),
         (0x11B00, 0x11BFF), (0x11DB0, 0x11DEF), (0x11F00, 0x11F5F), (0x1342F, 0x143FF), (0x16100, 0x1613F), (0x16D40, 0x16D7F),
         (0x16EA0, 0x16EDF), (0x18CFF, 0x18DFF), (0x1B132, 0x1B155), (0x1CC00, 0x1CEFF), (0x1D2C0, 0x1D2DF), (0x1DF25, 0x1DFFF),
         (0x1E030, 0x1E08F), (0x1E4D0, 0x1E6FF), (0x1F6DC, 0x1F6DC), (0x1F774, 0x1F77F), (0x1F7D9, 0x1F7DF), (0x1F8B2, 0x1F8FF),
         (0x1FA55, 0x1FAFF), (0x1FBCB, 0x1FBFF), (0x2B739, 0x2B73F), (0x2B820, 0x2F7FF)]


def pools(old):
    """Characters to draw from; `old` ones alone where the library normalizes by tables that are older than Unicode 14."""
    table = unicodedata.ucd_3_2_0 if old else unicodedata
    assigned = [c for c in range(0x30000) if table.category(chr(c)) not in ("Cn", "Cs", "Co") and (old or not any(a <= c <= b for a, b in LATER))]
    words = " ".join(SCRIPTS.values()) + CODE
    all_of = [list(range(0x20, 0x7F)), [*map(ord, "'sdmtlver 'a1.\n -xTHE")], [*range(0x09, 0x0E), 0x20, 0x20, 0x85, 0xA0, 0x2003, 0x3000, 0x61],
              list(range(1, 0x250)), [c for c in assigned if c < 0x3000], assigned, [*map(ord, words)], [*range(0x300, 0x370), 0x61, 0x65, 0x323],
              [*range(0x1100, 0x1120), *range(0x1160, 0x1180), *range(0x11A8, 0x11C0), 0xAC00, 0xAC01]]
    return [[c for c in pool if table.category(chr(c)) != "Cn"] for pool in all_of]


def random_texts(name, count):
    rng, ps = random.Random(name), pools(name in ("normal", "forms", "qwen2"))
    return ["".join(chr(rng.choice(ps[i % len(ps)])) for _ in range(rng.randrange(0, 60))) for i in range(count)]


def long_texts():
    everything = " ".join(SCRIPTS.values())
    return [*SCRIPTS.values(), CODE, everything, everything.replace(" ", "\u00a0"), everything.replace(" ", ""), "a" * 300, " " * 99 + "x", "\n" * 50,
            "ab" * 200, "e\u0323\u0301" * 20, "", " ", "a", "<|end|> a<|end|>", " [MASK] the other the", "YESTERDAY  x *  x"]


class Mezzo:
    def __init__(self, library):
        self.lib = ctypes.CDLL(os.path.abspath(library))
        self.lib.mezzo_error_message.restype = ctypes.c_char_p
        self.lib.mezzo_tokenizer_max_bytes.restype = ctypes.c_size_t
        for name, types in {"load": [ctypes.c_char_p, ctypes.c_void_p], "save": [ctypes.c_void_p, ctypes.c_char_p], "free": [ctypes.c_void_p],
                            "max_bytes": [ctypes.c_void_p],
                            "encode": [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p],
                            "decode": [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p]}.items():
            getattr(self.lib, "mezzo_tokenizer_" + name).argtypes = types

    def load(self, path):
        out = ctypes.c_void_p()
        return out if self.lib.mezzo_tokenizer_load(os.fsencode(path), ctypes.byref(out)) == 0 else None

    def message(self):
        return self.lib.mezzo_error_message().decode()

    def encode(self, tok, text):
        data, count = text.encode() if isinstance(text, str) else text, ctypes.c_size_t()
        if self.lib.mezzo_tokenizer_encode(tok, data, len(data), None, ctypes.byref(count)):
            return self.message()
        ids = (ctypes.c_int32 * max(count.value, 1))()
        self.lib.mezzo_tokenizer_encode(tok, data, len(data), ids, ctypes.byref(count))
        return list(ids[:count.value])

    def encode_only(self, tok, text):
        data, count = text.encode(), ctypes.c_size_t()
        self.lib.mezzo_tokenizer_encode(tok, data, len(data), None, ctypes.byref(count))

    def decode(self, tok, ids):
        room = ctypes.create_string_buffer(len(ids) * self.lib.mezzo_tokenizer_max_bytes(tok) + 1)
        n = ctypes.c_size_t()
        if self.lib.mezzo_tokenizer_decode(tok, (ctypes.c_int32 * max(len(ids), 1))(*ids), len(ids), room, ctypes.byref(n)):
            return self.message()
        return room.raw[:n.value]


def expected(t, text):
    t.encode_special_tokens = True
    return t.encode(text, add_special_tokens=False).ids


def as_decoded(name, shown, theirs):
    """The library's Metaspace decoder takes every space before the first word, Mezzo the one that was put there."""
    return (shown.lstrip(" "), theirs.lstrip(" ")) if name in ("whole", "metaspace") else (shown, theirs)


def check(library, count):
    mezzo, failed = Mezzo(library), 0
    with tempfile.TemporaryDirectory() as folder:
        for name, t in tokenizers().items():
            path, again = f"{folder}/{name}.json", f"{folder}/{name}-again.json"
            t.save(path)
            tok = mezzo.load(path)
            if tok is None:
                print(f"{name}: {mezzo.message()}")
                failed += 1
                continue
            mezzo.lib.mezzo_tokenizer_save(tok, again.encode())
            mezzo.lib.mezzo_tokenizer_free(tok)
            tok, back = mezzo.load(again), Tokenizer.from_file(again)  # what Mezzo writes is read by both
            texts = long_texts() + random_texts(name, count)
            wrong = lost = 0
            for text in texts:
                want, got = expected(t, text), mezzo.encode(tok, text)
                if got != want or expected(back, text) != want:
                    wrong += 1
                    if wrong < 4:
                        print(f"{name}: {text!r}\n  {got}\n  {want}\n  {[t.id_to_token(i) for i in want][:40]}")
                    continue
                shown, theirs = as_decoded(name, mezzo.decode(tok, want).decode(errors="replace"), t.decode(want, skip_special_tokens=False))
                if shown != theirs:
                    lost += 1
                    if lost < 3:
                        print(f"{name}: decoding {text!r}\n  {shown!r}\n  {theirs!r}")
            print(f"{name}: {len(texts)} texts, {wrong} with other tokens, {lost} decoded otherwise")
            failed += wrong + lost > 0
            mezzo.lib.mezzo_tokenizer_free(tok)
    return failed


def damaged(text, rng):
    """A file with a value that is another, a part that is gone, or bytes that are others."""
    way = rng.randrange(6)
    if way < 2:
        at = rng.randrange(len(text))
        return text[:at] + (chr(rng.randrange(32, 127)) if way else "") + text[at + 1:]
    if way == 2:
        return text[:rng.randrange(len(text))]
    root = json.loads(text)
    node = root
    while True:
        key = rng.choice(list(node) if isinstance(node, dict) else range(len(node)))
        if not isinstance(node[key], (dict, list)) or not node[key] or rng.random() < 0.3:
            break
        node = node[key]
    if way == 3:
        del node[key]
    else:
        node[key] = rng.choice([None, True, -1, 1e300, 2**40, "", "\ud7ff\u0301", "x" * 300, [], {}, [[]], {"type": "Sequence"}, {"type": "Unigram"}])
    return json.dumps(root)


def damage(library, count=60):
    mezzo, rng, read = Mezzo(library), random.Random(7), 0
    made = tokenizers()
    with tempfile.TemporaryDirectory() as folder:
        for i in range(count):
            path = f"{folder}/{i}.json"
            pathlib.Path(path).write_text(damaged(made[list(made)[i % len(made)]].to_str(), rng), "utf-8", errors="surrogatepass")
            tok = mezzo.load(path)
            if tok is None:
                line = mezzo.message()
                assert line and "\n" not in line, line
                print(line.replace(folder + "/", "")[:150])
                continue
            read += 1
            for text in long_texts():
                ids = mezzo.encode(tok, text)
                assert isinstance(ids, str) or isinstance(mezzo.decode(tok, ids), bytes)
            mezzo.lib.mezzo_tokenizer_free(tok)
    print(f"{count} damaged files: {read} read, {count - read} refused in a line")


def speed(library, path):
    mezzo, text = Mezzo(library), pathlib.Path(path).read_text("utf-8")[:20_000_000]
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    lines = text.splitlines(keepends=True)
    pieces = ["".join(lines[i:i + 1000]) for i in range(0, len(lines), 1000)]
    size = len(text.encode()) / 1e6
    with tempfile.TemporaryDirectory() as folder:
        for name, t in tokenizers().items():
            t.save(f"{folder}/t.json")
            tok = mezzo.load(f"{folder}/t.json")
            seconds = []
            for encode in (lambda piece: mezzo.encode_only(tok, piece), lambda piece: expected(t, piece)):
                begun = time.process_time()
                for piece in pieces:
                    encode(piece)
                seconds.append(time.process_time() - begun)
            print(f"{name}: {size / seconds[0]:.1f} MB/s, tokenizers {size / seconds[1]:.1f} MB/s")
            mezzo.lib.mezzo_tokenizer_free(tok)


def write():
    import tokenizers as library
    rows = []
    for name, t in tokenizers().items():
        texts = [x for x in long_texts() if len(x) < 250] + random_texts(name, 27)
        cases = []
        for text in texts:
            ids = expected(t, text)
            shown, _ = as_decoded(name, t.decode(ids, skip_special_tokens=False), "")
            cases.append(json.dumps([text, ids, shown], separators=(",", ":"), ensure_ascii=False))
        body = json.dumps(json.loads(t.to_str()), separators=(",", ":"), ensure_ascii=False)
        rows.append('{"name": "%s", "tokenizer": %s, "texts": [\n%s\n]}' % (name, body, ",\n".join(cases)))
    out = HERE.parent / "data" / "published_tokenizers.json"
    out.write_text('{"made_by": "tokenizers %s", "cases": [\n%s\n]}\n' % (library.__version__, ",\n".join(rows)), "utf-8")
    print(f"{out}: {len(rows)} tokenizers, {out.stat().st_size} bytes", file=sys.stderr)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--check"]:
        sys.exit(check(sys.argv[2], int(sys.argv[3])))
    elif sys.argv[1:2] == ["--damage"]:
        damage(sys.argv[2])
    elif sys.argv[1:2] == ["--speed"]:
        speed(sys.argv[2], sys.argv[3])
    else:
        write()
