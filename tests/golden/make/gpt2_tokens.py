"""Texts and their GPT-2 tokens, by tiktoken: gpt2_tokens.json. The vocabulary is made from data/tokenizers/gpt2/merges.txt, so no network is
needed. Characters are those of Unicode 14 and before, which every PCRE2 that Mezzo builds with knows.

    python gpt2_tokens.py       needs tiktoken
"""
import json
import pathlib
import random
import sys
import unicodedata

import tiktoken

HERE = pathlib.Path(__file__).parent
MERGES = HERE.parents[2] / "data" / "tokenizers" / "gpt2" / "merges.txt"
# tiktoken_ext/openai_public.py, gpt2
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""


def encoding():
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    order = printable + [b for b in range(256) if b not in printable]
    letters = {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(order[len(printable):])}
    ranks = {bytes([b]): i for i, b in enumerate(order)}
    for line in MERGES.read_text("utf-8").split("\n")[1:-1]:
        ranks[bytes(letters[c] for c in line.replace(" ", ""))] = len(ranks)
    return tiktoken.Encoding("gpt2", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256}, explicit_n_vocab=50257)


SCRIPTS = """Всё счастливые семьи похожи друг на друга. Ελληνικά: η γλώσσα μου. עברית שלום עולם! العربية مرحبا بالعالم، كيف حالك؟
हिन्दी में नमस्ते दुनिया। ไทยไม่มีช่องว่าง 中文没有空格，也没有问题。日本語のテキスト、カタカナと漢字。한국어 텍스트입니다. ქართული Հայերեն አማርኛ
ᚠᚢᚦᚨᚱᚲ 𐌰𐌱𐌲 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 ＦＵＬＬ　ＷＩＤＴＨ ａｂｃ１２３ ß ẞ ﬁ ǅ ʰ ª º Å Å é é ñ"""
TEXTS = [
    "", "a", " ", "\n", "Hello, world!", "Hello world", " leading and trailing ",
    "I'm you're he's we've they'll I'd don't CAN'T IT'S I'M 'tis 's' ''s '' ' 'll 'LL x's5's 's's l'll'm'd't're've",
    "don’t use ’smart’ quotes “here”", "a  b   c    d\n\n\ne\t\tf \t g\r\nh\r\r\n i  \n  j\n ", "   \n", "\n   ", "  \t\n x", "x \n \n y  ",
    "\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0x\u1680y\u180ez\u2000\u2003\u200a a\u2028b\u2029c\u202fd\u205fe\u3000f\u200b\u200c\u200d\u2060\ufeffg",
    "\x00\x01 \x02a\x00b\x7f \x80\x9f", " \u00a0 \u00a0\u00a0x \u3000 y\u3000\u3000 z",
    "0 1 12 123 1234 12345 3.14159 1,000,000 1e-5 0x1F ½ ¼ ² ³ ₂ Ⅷ ⑨ ٣٤٥ १२३ 五 𝟘𝟙 a1b2c3 1a 2nd 3rd",
    "e\u0301a\u0308\u0323 \u0301 \u20dd ZALGO: t\u0335\u0321\u033aȩ̷x̴̡͝t",
    "😀😃 👨‍👩‍👧‍👦 👍🏽 🇩🇪🇫🇷 ❤️ ☺︎ 1️⃣ #️⃣ 🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f 😀a😀 😀 a",
    "https://example.org/a_b-c?d=e&f=%20#g user@example.com C:\\dir\\file.txt /usr/bin/env --opt=val",
    "def f(x):\n    if x > 0:\n        return x ** 2  # square\n\n\tprint(f'{x!r:>10}')\n}\n};;;;==========-----__init__",
    "<|endoftext|> and <|endoftext|><|endoftext|>", "\\n\\t\"'`~!@#$%^&*()_+-=[]{}|;:,.<>/?",
    "supercalifragilisticexpialidocious Donaudampfschifffahrtsgesellschaftskapitän pneumonoultramicroscopicsilicovolcanoconiosis",
    SCRIPTS, SCRIPTS.replace(" ", "\u00a0"), SCRIPTS.replace(" ", ""),
    "a" * 1000, "ab" * 700, " " * 500, " " * 77 + "x", "\n" * 133, "\t \n" * 99, "." * 300, "é" * 200, "漢" * 100, "0" * 301, "😀" * 64,
    "aaab" * 150 + " " + "zyx" * 150,
]


def random_texts(rng):
    assigned = [c for c in range(0x30000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
    pools = [
        list(range(0x20, 0x7F)), [*range(0x09, 0x0E), 0x20, 0x20, 0x85, 0xA0, 0x2003, 0x3000, 0x61], list(range(0, 0x250)),
        [c for c in assigned if c < 0x3000], assigned, [*map(ord, "'sdmtlver 'a1.\n ")],
    ]
    pools = [[c for c in p if unicodedata.category(chr(c)) != "Cn"] for p in pools]
    return ["".join(chr(rng.choice(pool)) for _ in range(rng.randrange(1, 120))) for pool in pools for _ in range(12)]


def main():
    gpt2 = encoding()
    texts = TEXTS + random_texts(random.Random(20240521))
    rows = []
    for text in texts:
        tokens = gpt2.encode_ordinary(text)
        assert gpt2.decode_bytes(tokens) == text.encode()
        rows.append(json.dumps([text, tokens], separators=(",", ":")))
    made = f"tiktoken {tiktoken.__version__}, Unicode {unicodedata.unidata_version}"
    out = HERE.parent / "data" / "gpt2_tokens.json"
    out.write_text('{"made_by": "%s", "cases": [\n%s\n]}\n' % (made, ",\n".join(rows)))
    print(f"{out}: {len(rows)} texts, {out.stat().st_size} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
