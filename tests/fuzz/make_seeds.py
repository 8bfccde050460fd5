"""make_seeds.py: writes the seed inputs of the fuzzers into corpus/, small examples of every form that the readers know.
The seeds are committed; run this again after a format changes."""
import json
import pathlib
import struct

CORPUS = pathlib.Path(__file__).parent / "corpus"


def write(target, name, data):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())


def safetensors(header, data):
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def tensor(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


write("safetensors", "empty", safetensors({}, b""))
write("safetensors", "meta", safetensors({"__metadata__": {"format": "pt"}}, b""))
write("safetensors", "two", safetensors({"a": tensor("F32", [2], 0, 8), "b": tensor("U8", [3], 8, 11)}, bytes(11)))
write("safetensors", "scalar", safetensors({"s": tensor("F64", [], 0, 8)}, bytes(8)))
write("safetensors", "unaligned", safetensors({"a": tensor("U8", [1], 0, 1), "b": tensor("BF16", [1, 2], 1, 5)}, bytes(5)))
write("safetensors", "hole", safetensors({"a": tensor("F16", [1], 2, 4)}, bytes(4)))
write("safetensors", "zero", safetensors({"a": tensor("I64", [0, 3], 0, 0), "b": tensor("F8_E4M3", [1], 0, 1)}, bytes(1)))
write("safetensors", "huge", struct.pack("<Q", 2**63) + b"{}")

write("yaml", "nested", "seed: 7\noptimizer:\n  lr: 3e-4\n  eps: .inf\nrecompute: true\n")
write("yaml", "dotted", "optimizer.lr: 1\nprecision.name: \"fp16\"\n# comment\ndata.path: 'a b'\n")
write("yaml", "map", "precision:\n  overrides: {\"h.*\": fp32, ln_f: bf16}\nlabels:\n  x: |\n    block\n  y: >-\n    folded\n")
write("yaml", "alias", "labels: &l {a: b, c: \"\\u00e9\\n\"}\nprecision:\n  overrides: *l\n")
write("yaml", "wrong", "optimizer: [1, {a: 2}]\n---\n!!str x: ~\n")

words = list(range(0, 4000, 500))
def npy(version, header, data):
    size = struct.pack("<H" if version == 1 else "<I", len(header) + 1)
    return b"\x93NUMPY" + bytes([version, 0]) + size + header.encode() + b"\n" + data


def npy_header(descr, shape):
    return f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"


write("npy", "f4", npy(1, npy_header("<f4", "(2, 3)"), struct.pack("<6f", *range(6))))
write("npy", "i8", npy(2, npy_header("<i8", "(2,)"), struct.pack("<2q", 1, -1)))
write("npy", "u1", npy(1, npy_header("|u1", "(1, 2, 2)"), bytes([0, 1, 2, 255])))
write("npy", "scalar", npy(1, npy_header("<f8", "()"), struct.pack("<d", 0.5)))
write("npy", "huge", npy(1, npy_header("<f8", "(1152921504606846975, 16)"), b""))
write("npy", "fortran", npy(1, "{'descr': '<f4', 'fortran_order': True, 'shape': (1,)}", bytes(4)))
write("npy", "open", npy(1, "{'descr': '<f4', 'shape': (1", bytes(4)))
write("npy", "long", b"\x93NUMPY\x02\x00\xff\xff\xff\xff{")

write("shards", "nanogpt", struct.pack("<8H", *words))
write("shards", "llmc", struct.pack("<256i", 20240520, 1, 8, *[0] * 253) + struct.pack("<8H", *words))
write("shards", "llama", struct.pack("<256i", 20240801, 7, 8, *[0] * 253) + struct.pack("<8I", *words))
write("shards", "short", struct.pack("<256i", 20240520, 1, 9, *[0] * 253) + struct.pack("<8H", *words))
write("shards", "version", struct.pack("<3i", 20240520, 2, 1))

head = {"format": "mezzo-tokenizer", "version": 1}
write("json_tokenizer", "byte", json.dumps({**head, "kind": "byte", "vocab_size": 256}))
write("json_tokenizer", "char", json.dumps({**head, "kind": "char", "vocab_size": 4, "characters": "\n aé"}))
write("json_tokenizer", "wide", json.dumps({**head, "kind": "char", "vocab_size": 3, "characters": "\0漢😀"}, ensure_ascii=False))
write("json_tokenizer", "order", json.dumps({**head, "kind": "char", "vocab_size": 2, "characters": "ba"}))

printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
letters = [chr(b) for b in printable] + [chr(256 + i) for i in range(68)]
own = [*letters, "ab", "abc", "<|end|>"]
write("json_tokenizer", "gpt2", json.dumps({**head, "kind": "gpt2", "vocab_size": 50257}))
write("json_tokenizer", "bpe", json.dumps({**head, "kind": "bpe", "vocab_size": len(own), "vocab": own, "merges": ["a b", "ab c"]}))
write("bpe", "derived", b"\0#version: 0.2\na b\nab ab\nb a\n\0abababa ba aab\xff\xfe 12 's\n\n x")
write("bpe", "vocab", json.dumps({t: i for i, t in enumerate(own)}).encode() + b"\0a b\nab c\n\0abc abcabc")
write("bpe", "line", b"\0a b\nab\n\0x")
write("bpe", "long", b"\0a a\naa aa\naaaa aaaa\n\0" + b"a" * 999)

write("csv", "plain", "a,b\n1,2.5\n-3,nan\n")
write("csv", "quoted", "\ufeffx,\"y, z\"\r\n\"say \"\"hi\"\"\",\"two\nlines\"\r\n,\r\n")
write("csv", "study", "layers,d_model,bs,seqlen,prec,tps,times\n4,128,1,64,fp32,2886.2,\"[0.02, 0.02]\"\n")
write("csv", "ragged", "a,b\n1\n")
write("csv", "open", "a,b\n\"1,2\n")
