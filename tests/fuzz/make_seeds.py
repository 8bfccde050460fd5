"""make_seeds.py: writes the seed inputs of the fuzzers into corpus/, small examples of every form that the readers know.
The seeds are committed; run this again after a format changes."""
import io
import json
import pathlib
import pickle
import struct
import zipfile
import zlib

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


def archive(arrays, method=zipfile.ZIP_STORED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as file:
        for name, data in arrays.items():
            with file.open(zipfile.ZipInfo(name + ".npy"), "w", force_zip64=True) as entry:
                entry.write(data)
    return out.getvalue()


two = {"x": npy(1, npy_header("<f4", "(2, 3)"), struct.pack("<6f", *range(6))), "labels": npy(1, npy_header("<i8", "(2,)"), struct.pack("<2q", 1, -1))}
write("npz", "two", archive(two))
write("npz", "packed", archive({"x": npy(1, npy_header("|b1", "(64,)"), bytes(64))}, zipfile.ZIP_DEFLATED))
write("npz", "empty", archive({}))
write("npz", "bomb", archive({"x": b"\x93NUMPY"}, zipfile.ZIP_DEFLATED).replace(struct.pack("<L", 6), struct.pack("<L", 2**31)))
write("npz", "wide", archive({"x": npy(1, npy_header("<f8", "()"), struct.pack("<d", 0.5))})[:-22] + bytes.fromhex("504b0606") + bytes(52) +
      bytes.fromhex("504b0607") + bytes(16) + bytes.fromhex("504b0506") + bytes(18))


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, depth, kind, rows, *between, interlace=0):
    head = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, interlace)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + b"".join(between) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


write("png", "gray", png(3, 2, 8, 0, bytes([0, 1, 2, 255, 1, 9, 9, 9])))
write("png", "bits", png(9, 2, 1, 0, bytes([0, 0xA5, 0x80, 2, 1, 0])))
write("png", "deep", png(2, 1, 16, 0, bytes([0, 1, 2, 255, 254])))
write("png", "palette", png(2, 1, 8, 3, bytes([0, 0, 1]), chunk(b"PLTE", bytes([255, 0, 0, 0, 0, 255])), chunk(b"tRNS", b"\x80")))
write("png", "rgba", png(1, 1, 8, 6, bytes([0, 10, 200, 30, 128]), chunk(b"gAMA", struct.pack(">I", 45455))))
write("png", "adam7", png(3, 3, 8, 0, bytes([0, 1, 0, 2, 0, 3, 4, 0, 5, 0, 6, 0, 7, 8, 9]), interlace=1))
write("png", "huge", png(8000, 8000, 8, 0, b""))
write("png", "wide", png(2**31 - 1, 1, 8, 0, bytes(9)))
write("png", "short", png(3, 2, 8, 0, bytes([0, 1])))
write("png", "bomb", png(3, 2, 8, 0, bytes(16 << 20)))
write("png", "bomb7", png(3, 3, 8, 0, bytes(16 << 20), interlace=1))
write("png", "texts", png(3, 2, 8, 0, bytes(8), *[chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(99)))] * 3))

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


def published(name, vocab, merges, normalizer=None, pre=None, decoder=None, added=(), **rules):
    tokens = [{"id": i, "content": c, "single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False, **flags}
              for i, c, flags in added]
    model = {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False, **rules, "vocab": {t: i for i, t in enumerate(vocab)},
             "merges": merges}
    root = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens, "normalizer": normalizer, "pre_tokenizer": pre,
            "post_processor": None, "decoder": decoder, "model": model}
    write("json_tokenizer", name, json.dumps(root, separators=(",", ":"), ensure_ascii=False))


def sequence(key, *items):
    return {"type": "Sequence", key: list(items)}


byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
llama = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+(?!\S)|\s+"
split = {"type": "Split", "pattern": {"Regex": llama}, "behavior": "Isolated", "invert": False}
metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}
fallback = [f"<0x{b:02X}>" for b in range(256)]
published("hf_bytes", ["a", "b", "ab", "Ġ", "Ġab"], [["a", "b"], ["Ġ", "ab"]], None, byte_level, {"type": "ByteLevel"}, [(5, "<x>", {"special": True})])
published("hf_split", ["a", "b", "ab"], ["a b"], None, sequence("pretokenizers", split, {**byte_level, "use_regex": False}, {
    "type": "Digits", "individual_digits": True}), sequence("decoders", {"type": "ByteLevel"}), ignore_merges=True)
published("hf_metaspace", ["<unk>", "▁", "a", "▁a"], [["▁", "a"]], None, metaspace, metaspace, unk_token="<unk>", fuse_unk=True)
published("hf_fallback", ["<unk>", *fallback, "▁", "a", "▁a"], [["▁", "a"]], sequence("normalizers", {"type": "Prepend", "prepend": "▁"}, {
    "type": "Replace", "pattern": {"String": " "}, "content": "▁"}), None, sequence("decoders", {
        "type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}, {
            "type": "Strip", "content": " ", "start": 1, "stop": 0}), byte_fallback=True)
published("hf_normal", ["u", "a", "b"], [], sequence("normalizers", {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "NFKD"}, {
    "type": "StripAccents"}, {"type": "Lowercase"}, {"type": "NFC"}, {"type": "Replace", "pattern": {"Regex": "b+|(?=a)"}, "content": "b"}),
    sequence("pretokenizers", {"type": "WhitespaceSplit"}, {"type": "Whitespace"}, {"type": "Punctuation", "behavior": "MergedWithNext"}, {
        "type": "Split", "pattern": {"String": "a"}, "behavior": "MergedWithPrevious", "invert": True}),
    added=[(3, "Ab", {"lstrip": True, "rstrip": True}), (4, "<x>", {"single_word": True, "normalized": False})], unk_token="u")
published("hf_hole", [], [], added=[(3, "x", {})])
published("hf_unigram", ["a"], [], type="Unigram")

write("bpe", "derived", b"\0#version: 0.2\na b\nab ab\nb a\n\0abababa ba aab\xff\xfe 12 's\n\n x")
write("bpe", "vocab", json.dumps({t: i for i, t in enumerate(own)}).encode() + b"\0a b\nab c\n\0abc abcabc")
write("bpe", "line", b"\0a b\nab\n\0x")
write("bpe", "long", b"\0a a\naa aa\naaaa aaaa\n\0" + b"a" * 999)

write("csv", "plain", "a,b\n1,2.5\n-3,nan\n")
write("csv", "quoted", "\ufeffx,\"y, z\"\r\n\"say \"\"hi\"\"\",\"two\nlines\"\r\n,\r\n")
write("csv", "study", "layers,d_model,bs,seqlen,prec,tps,times\n4,128,1,64,fp32,2886.2,\"[0.02, 0.02]\"\n")
write("csv", "ragged", "a,b\n1\n")
write("csv", "open", "a,b\n\"1,2\n")

record = '{"step": %d, "train/loss": %s, "amp/enabled": false, "amp/precision": "fp32"}\n'
counts = '{"step": 2, "gradients/log2_counts": "-3:1 0:12", "sample/text": "a\\u00e9\\n"}\n'
rows = "".join(record % (i, 3 - i / 4) for i in range(1, 6))
write("metrics", "whole", "3\x80" + rows)
write("metrics", "texts", "2\x20" + record % (1, '"NaN"') + counts + record % (2, '"-Infinity"') + counts)
write("metrics", "torn", "4\x70" + rows + '{"step": 6, "train/lo')
write("metrics", "zeroed", b"9\x40" + rows.encode() + bytes(40))
write("metrics", "middle", "1\x55" + record % (1, 2.5) + "garbage\n\n[1]\n" + record % (2, 2))
write("metrics", "odd", '0\xf0{"step": -1}\n{"step": 1e3, "x": {}}\n{"step": 7, "a": null, "b": [1], "step2": 1e999}\n')

def entry(step, **more):
    return {"name": f"step-{step:08}", "step": step, "val_loss": None, "state_bytes": 1123, "state_crc32c": 1, **more}


manifest = {"format": "mezzo-manifest", "version": 1}
write("manifest", "two", json.dumps({**manifest, "checkpoints": [entry(1), entry(2, val_loss=2.5)]}, indent=2))
write("manifest", "none", json.dumps({**manifest, "checkpoints": []}))
write("manifest", "twice", json.dumps({**manifest, "checkpoints": [entry(3, val_loss=1), entry(3, val_loss=1)]}))
write("manifest", "outside", json.dumps({**manifest, "checkpoints": [entry(1, name="../step-00000001")]}))
write("manifest", "large", json.dumps({**manifest, "checkpoints": [entry(10**18, state_bytes=2**63 - 1)]}))
write("manifest", "unsealed", json.dumps({**manifest, "version": 2, "checkpoints": [entry(1)]}))

write("config", "gpt2", "model:\n  name: gpt2\n  size: small\ntrain:\n  steps: 3\n  out: \"r\"\namp:\n  precision: bf16\nautocast: {\"h.*\": fp32}\n")
write("config", "moe", "model.name: glm4_moe\nmodel.experts: 8\nmodel.experts_per_token: 2\nmodel.kv_heads: 1\nmodel.rotary: 0.5\n")
write("config", "mlp", "model: {name: mlp, features: 3, classes: 2}\ndata:\n  features: x.npy\n  labels: y.npy\noptimizer: {kind: sgd, momentum: 0.9, min_lr: -1}\n")
write("config", "guard", "guard: {policy: rollback, spike: skip, limit: 1e4}\nschedule: {kind: constant}\nscaler: {}\namp.scaler.enabled: \"false\"\n")
write("config", "range", "train:\n  batch_size: 0\n  grad_accum: 99999999999\n")

gpt2 = {"model_type": "gpt2", "vocab_size": 4, "n_positions": 2, "n_embd": 2, "n_layer": 1, "n_head": 1}
shapes = {"wte.weight": [4, 2], "wpe.weight": [2, 2], "ln_f.weight": [2], "ln_f.bias": [2]}
for name, shape in {"ln_1": [2], "ln_2": [2], "attn.c_attn": [2, 6], "attn.c_proj": [2, 2], "mlp.c_fc": [2, 8], "mlp.c_proj": [8, 2]}.items():
    shapes |= {f"h.0.{name}.weight": shape, f"h.0.{name}.bias": shape[-1:]}


def weights(shapes):
    at, header = 0, {}
    for name, shape in shapes.items():
        n = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = tensor("BF16", shape, at, at + n)
        at += n
    return safetensors(header, bytes(at))


def folder(config, tensors=b""):
    return json.dumps(config).encode() + b"\0" + tensors


llama = {"model_type": "llama", "vocab_size": 8, "max_position_embeddings": 4, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2,
         "num_key_value_heads": 1, "intermediate_size": 8, "rms_norm_eps": 1e-5, "rope_theta": 10000, "tie_word_embeddings": False}
glm = {**llama, "model_type": "glm4_moe", "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 0,
       "moe_intermediate_size": 4, "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.0,
       "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}
write("hf", "gpt2", folder(gpt2, weights(shapes)))
write("hf", "prefix", folder(gpt2, weights({f"transformer.{k}": v for k, v in shapes.items() if not k.endswith(".bias")})))
write("hf", "llama", folder(llama, weights({"model.embed_tokens.weight": [8, 4]})))
write("hf", "glm4_moe", folder(glm, weights({"model.embed_tokens.weight": [8, 4]})))
write("hf", "large", folder({**gpt2, "n_layer": 2**31 - 1, "n_embd": 2**31 - 1}))
write("hf", "wrong", folder({**gpt2, "n_head": 3, "activation_function": "relu"}))

# fuzz_sharded.c's configuration, whose ln_f.bias is in a file of its own
wide = {"wte.weight": [8, 4], "wpe.weight": [4, 4], "ln_f.weight": [4]}
for name, shape in {"ln_1": [4], "ln_2": [4], "attn.c_attn": [4, 12], "attn.c_proj": [4, 4], "mlp.c_fc": [4, 16], "mlp.c_proj": [16, 4]}.items():
    wide |= {f"h.0.{name}.weight": shape, f"h.0.{name}.bias": shape[-1:]}
wide = {f"transformer.{name}": shape for name, shape in wide.items()}


def index(**others):
    places = {**{name: "model-1.safetensors" for name in wide}, "transformer.ln_f.bias": "model-2.safetensors", **others}
    return {"metadata": {"total_size": 1}, "weight_map": places}


write("sharded", "whole", folder(index(), weights(wide)))
write("sharded", "elsewhere", folder(index(**{"transformer.wte.weight": "../model-1.safetensors"}), weights(wide)))
write("sharded", "another", folder(index(**{"transformer.wte.weight": "model-2.safetensors"}), weights(wide)))
write("sharded", "missing", folder(index(**{"transformer.wte.weight": "model-3.safetensors"}), weights(wide)))
write("sharded", "number", folder({"weight_map": {"transformer.wte.weight": 1}}))
write("sharded", "list", folder({"weight_map": []}))


def llmc(version, seq, vocab, layers, heads, width, padded, size=None):
    head = struct.pack("<256i", 20240326, version, seq, vocab, layers, heads, width, padded, *[0] * 248)
    numbers = padded * width + seq * width + layers * (12 * width * width + 13 * width) + 2 * width
    return head + bytes(size if size is not None else numbers * (4 if version == 3 else 2))


write("llmc", "bf16", llmc(5, 4, 6, 1, 1, 4, 8))
write("llmc", "fp32", llmc(3, 4, 6, 1, 2, 4, 8))
write("llmc", "layers", llmc(5, 2, 4, 3, 1, 2, 4))
write("llmc", "cut", llmc(5, 4, 6, 1, 1, 4, 8, size=100))
write("llmc", "version", llmc(1, 4, 6, 1, 1, 4, 8))
write("llmc", "padding", llmc(5, 4, 6, 1, 1, 4, 5))
write("llmc", "huge", llmc(5, 2**31 - 1, 2**31 - 1, 2**31 - 1, 1, 2**31 - 1, 2**31 - 1, size=0))
write("llmc", "header", llmc(5, 4, 6, 1, 1, 4, 8)[:40])

for protocol in 2, 4:
    write("meta", f"protocol{protocol}", pickle.dumps({"vocab_size": 65, "itos": {0: "\n"}, "stoi": {"\n": 0}}, protocol))
write("meta", "wide", pickle.dumps({"vocab_size": 200000}, 4))
write("meta", "negative", pickle.dumps({"vocab_size": -1}, 4))
write("meta", "code", b"cos\nsystem\n(S'true'\ntR.")
write("meta", "long", b"\x80\4}\x94(X\xff\xff\xff\xffvocab_size\x94K\1")

facts = {"version": "0.1.0", "device": "cpu", "ranks": 1, "configuration": "model:\n  name: gpt2\n"}
write("run_facts", "plain", json.dumps(facts))
write("run_facts", "ranks", json.dumps({**facts, "ranks": 0}))
write("run_facts", "long", json.dumps({**facts, "device": "x" * 300}))
write("run_facts", "escape", json.dumps({**facts, "configuration": "\u001b[2J\u0000"}))
write("run_facts", "unsealed", json.dumps({**facts, "crc32c": "00000000"}))

chat = json.loads((CORPUS.parent.parent / "golden" / "data" / "chat.json").read_text())
for template in chat["templates"]:
    if not template["name"].startswith(("random", "broken")) or template["name"].endswith("00"):
        write("template", template["name"].replace(" ", "_"), template["source"])
write("template", "deep", "{{ " + "(" * 70 + "1" + ")" * 70 + " }}")
write("template", "recursive", "{% macro a(x) %}{{ a(x ~ x) }}{% endmacro %}{{ a('y') }}")
write("template", "open", "{% for a in messages %}{{ '\\")
# Each bound of the machine, and what is seldom written.
names = "abcdefghijklmnopqrstuvwxyz"
write("template", "arguments", "{{ f(1,1,1,1,1,1,1,1,1) }}")
write("template", "elements", "{{ [" + "1," * 65 + "] }}")
write("template", "members", "{% set n=namespace() %}" + "".join(f"{{%set n.{c}=1%}}" for c in names[:17]))
write("template", "member_of_message", "{% for m in messages %}{% set m.x = 1 %}{% endfor %}")
write("template", "variables", "{% macro again(" + ",".join(names) + ") %}{{ again(1) }}{% endmacro %}{{ again() }}")
write("template", "deep_lists", "{% set n=namespace(a=[],b=[]) %}" + 2 * ("{% for i in [" + "1," * 60 + "] %}{% set n.a=[n.a] %}"
      "{% set n.b=[n.b] %}{% endfor %}") + "{{ n.a == n.b }}")
write("template", "much", "{% set s='" + "a" * 64 + "' %}" + "{%set s=s+s%}" * 10 + "{{s}}" * 9)
write("template", "tests", "{% set f=1==2 %}{{ f is false }}{{ f is true }}{{ f is not false }}{{ [] is iterable }}"
      "{{ messages[0] is iterable }}{{ messages[0] is mapping }}{{ 1 is sequence }}{{ none is none }}{{ x is undefined }}"
      "{{ 'abc'.endswith('bc') }}{{ 'bc'.endswith('abc') }}{{ 'bc'.startswith('abc') }}{{ [1,2]|last }}{{ [1,2]|first }}{{ []|last }}"
      "{{ true is number }}{{ 1 is integer }}{{ 'a' is string }}{{ f is boolean }}{{ messages|count }}{{ 'é'|length }}{{ [3]|list }}")
for name, text in {"minus_none": "1 - none", "minus_undefined": "1 - x", "minus_text": "-'a'", "modulo_zero": "1 % 0", "in_number": "1 in 2",
                   "in_undefined": "1 in x", "attribute": "x.y", "index": "x[0]", "index_text": "'a'['b']", "escape": "'\\q'",
                   "real": "1.5", "braces": "{1:2}", "filter": "1|upper", "test": "1 is odd", "method": "'a'.title()", "function": "range(3)",
                   "raised": "raise_exception('no')", "raised_silent": "raise_exception()", "order": "'a' < 1", "divided": "4 / 2"}.items():
    write("template", "refused_" + name, "{{ " + text + " }}")
for name, text in {"end": "{% endif %}", "tag": "{{ 1", "if": "{% if 1 %}", "mixed": "{% if 1 %}{% endfor %}", "loop": "{% for a, b in messages %}",
                   "loop_number": "{% for a in 1 %}{% endfor %}", "loop_undefined": "{% for a in x %}{% endfor %}",
                   "loop_filtered": "{% for a in messages if a %}{% endfor %}", "set": "{% set a %}", "statement": "{% include 'x' %}",
                   "namespace": "{% set a=1 %}{% set a.b=2 %}", "list": "{{ [1] }}", "nested": "{% if 1 %}" * 70}.items():
    write("template", "refused_" + name, text)
write("json_tokenizer", "chat", json.dumps({"format": "mezzo-tokenizer", "version": 1, "kind": "byte", "vocab_size": 256, "chat_template": "{{ bos_token }}",
                                            "bos_token": "<s>", "eos_token": 1}))


def torch_trace(**changes):
    shape = ["bf16", [8, 32]]
    place, step = {"at": 0, "user": 0}, {"step": 0, "at": 0}
    op = {"phase": "forward", "region": 0, **place, "out": "bf16", "count": 3, "seconds": 1e-4}
    ops = [{**op, "op": "aten.addmm", "in": [["bf16", [6]], shape, ["bf16", [32, 6]]]},
           {**op, "op": "aten.mm", "in": [["fp32", [8, 32]], ["fp32", [32, 64]]], "out": "fp32", "region": -1},
           {**op, "op": "aten.lerp_", "in": [["bf16", [8]], ["bf16", [8]]], "scalar": 0.001, "region": -1},
           {**op, "op": "aten._to_copy", "in": [shape], "out": "fp32", "returned": 2},
           {**op, "op": "aten.convolution", "in": [["bf16", [2, 8, 4, 4]], ["bf16", [6, 8, 3, 3]]]},
           {**op, "op": "aten._scaled_dot_product_flash_attention", "in": [["bf16", [1, 2, 4, 6]]] * 3}]
    events = [{"kind": "scale", "enabled": True, "scale": 65536.0, "scalers": 1}, {"kind": "backward", "factor": 1.0, "reduction": "mean", "weight": 8.0},
              {"kind": "write", "op": "clamp", "count": 2}, {"kind": "clip", "norm": 9.5, "limit": 1.0}, {"kind": "unscale", "by_step": True, "optimizer": 0},
              {"kind": "optimizer_step", "optimizer": 0, "norm": 1.5, "sharded": False, "scaled_by_step": True}, {"kind": "scaler_step", "enabled": True},
              {"kind": "schedule"}, {"kind": "scaler_update", "enabled": True}, {"kind": "zero_grad"}, {"kind": "reduce"}, {"kind": "parallel", "sync": True}]
    trace = {"mezzo_audit": 1, "torch": "2.9.0", "rank": 0, "world": 2, "device": "cuda", "device_name": "a GPU", "capability": 90, "threads": 2,
             "steps": 3, "step_seconds": 1e-3, "followed_seconds": [0.1], "unchanged": 1, "compared": 2,
             "settings": {"tf32": True, "cudnn_deterministic": True, "cudnn_benchmark": True}, "settings_at": {"cudnn.benchmark": 0},
             "places": [["train.py", 7]], "regions": [{"at": 0, "device": "cuda", "dtype": "bf16", "enabled": True, "entered": 3}],
             "compiled": [0], "parameters": [{"optimizer": 0, "dtype": "bf16", "count": 2, "numel": 9}],
             "states": [{"optimizer": "AdamW", "at": 0, "tensors": [{"key": "exp_avg", "dtype": "bf16", "of": "fp32", "count": 2, "numel": 9}]}],
             "events": [{**step, **event} for event in events], "ops": ops, "dropped": 1,
             "launch_seconds": 9e-4, "replay": {"now": {"seconds": 5e-4, "spread": 0.1, "launch_seconds": 3e-4},
                                                "fp32": {"seconds": 8e-4, "launch_seconds": 2e-4}, "fp8": {"seconds": 4e-4}}}
    return json.dumps({**trace, **changes}, separators=(",", ":"))


write("torch_trace", "whole", torch_trace())
write("torch_trace", "cpu", torch_trace(device="cpu", capability=0, world=1, step_seconds=None))
write("torch_trace", "refused", json.dumps({"mezzo_audit": 1, "refused": "torch 1.13 is too old"}))
write("torch_trace", "places", torch_trace(places=[]))
write("torch_trace", "empty", torch_trace(ops=[], events=[], regions=[], states=[], parameters=[]))


# --- a model of sentencepiece (protobuf), and texts to train a tokenizer on ---
def varint(n):
    return bytes([n & 0x7F | 0x80]) + varint(n >> 7) if n > 0x7F else bytes([n])


def number(key, value):
    return varint(key << 3) + varint(value)


def inner(key, data):
    return varint(key << 3 | 2) + varint(len(data)) + data


def piece(text, score=0.0, kind=1):
    return inner(1, inner(1, text.encode()) + b"\x15" + struct.pack("<f", score) + number(3, kind))


def sentencepiece(name, *pieces, kind=2, fallback=False, rules=b"", dummy=1, extra=1, more=b""):
    everything = [piece("<unk>", kind=2), piece("<s>", kind=3), *pieces]
    if fallback:
        everything += [piece(f"<0x{b:02X}>", kind=6) for b in range(256)]
    normal = inner(2, rules) * bool(rules) + number(3, dummy) + number(4, extra) + number(5, 1)
    write("sentencepiece", name, b"".join(everything) + inner(2, number(3, kind) + number(35, int(fallback))) + inner(3, normal) + more)


letters = [piece(c, -9.0) for c in "\u2581abé"]
# Units of a trie of one rule, "A" becomes "a": the root's offset 1, "A" at 1 ^ 0x41, a value after it.
units = [1 << 10] + [0] * 0x3F + [0x80000000] + [0] * 0x3F
units[0x40] = 0x41 | 1 << 8 | 1 << 10
units[0x41] = 0x80000000
one_rule = struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + b"a\0"
sentencepiece("plain", *letters, piece("ab", -1.0), piece("\u2581a", -2.0), piece("\u2581ab", -3.0))
sentencepiece("bytes", *letters, piece("aa", -1.0), fallback=True, dummy=0, extra=0)
sentencepiece("symbols", *letters, piece("<x>", 0.0, 4), piece("\n", 0.0, 4), piece("ab", -1.0))
sentencepiece("rules", *letters, rules=one_rule)
sentencepiece("unigram", *letters, kind=1)
sentencepiece("suffix", *letters, more=inner(2, number(24, 1)))
sentencepiece("twice", *letters, *letters)
sentencepiece("endless", *letters, more=b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")
write("train", "ties", b"\x10\x00ab ba ab ba aab abb\n")
write("train", "runs", b"\x40\x01aaaaaaaaaaaaaaaa aaaa   \n\n\n\t aaa 12345 1234")
write("train", "twice", b"\x7f\x02ab ab abc abc bcd bcd xbc xbc")
write("train", "bytes", b"\x20\x03\xff\xfe caf\xc3\xa9 \xe6\xbc\xa2\xe5\xad\x97 \x00\x01")
write("train", "special", b"\x30\x80the end the end, thethe <|end|>")

chat = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "assistant", "content": "b", "weight": 0}]
shared = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
alpaca = {"instruction": "a", "input": None, "output": "b", "system": "s", "history": [["c", "d"]]}
records = [{"messages": chat}, {"conversations": shared, "system": "s"}, alpaca, {"instruction": "a", "context": "c", "response": "b"},
           {"prompt": "a", "completion": "b"}, {"prompt": chat, "completion": chat[2:]}, {"text": "é"}]
lines = "".join(json.dumps(r) + "\n" for r in records)
write("records", "lines", lines)
write("records", "list", json.dumps(records, indent=1))
write("records", "windows", b"\xef\xbb\xbf" + lines.replace("\n", "\r\n\r\n").encode())
write("records", "half", json.dumps(records)[:-20])
write("records", "scalars", '[1, "a\\"]", [], {"text": "]"}, null ,true]')
packed = zlib.compressobj(9, zlib.DEFLATED, 31)
write("records", "gzip", packed.compress(lines.encode()) + packed.flush())


# --- GGUF: a Llama of one layer with bytes for tokens, and files that are wrong
def gguf_text(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def gguf_value(value):
    if isinstance(value, bool):
        return struct.pack("<IB", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + gguf_text(value)
    kind, pack = (8, gguf_text) if not value or isinstance(value[0], str) else \
        (5, lambda x: struct.pack("<i", x)) if isinstance(value[0], int) else (6, lambda x: struct.pack("<f", x))
    return struct.pack("<IIQ", 9, kind, len(value)) + b"".join(pack(x) for x in value)


def gguf(values, tensors, version=3, data=None, counts=None):
    """tensors: (name, sizes with the last first, type, bytes)"""
    head = b"GGUF" + struct.pack("<IQQ", version, *(counts or (len(tensors), len(values))))
    head += b"".join(gguf_text(key) + gguf_value(value) for key, value in values.items())
    blob = b""
    for name, sizes, kind, content in tensors:
        head += gguf_text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, len(blob))
        blob += content + bytes(-len(content) % 32)
    return head + bytes(-len(head) % 32) + (blob if data is None else data)


def letters():  # GPT-2's alphabet of bytes
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(b) for b in plain] + [chr(256 + i) for i in range(256 - len(plain))]


LLAMA = {"general.architecture": "llama", "llama.block_count": 1, "llama.context_length": 8, "llama.embedding_length": 32,
         "llama.feed_forward_length": 32, "llama.attention.head_count": 2, "llama.attention.head_count_kv": 1,
         "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.dimension_count": 16}
BYTES = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": letters() + ["<|end|>"],
         "tokenizer.ggml.token_type": [1] * 256 + [3], "tokenizer.ggml.merges": [], "tokenizer.ggml.eos_token_id": 256,
         "tokenizer.chat_template": "{{ messages[0].content }}"}
PIECES = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + ["\u2581", "a", "b", "\u2581a", "ab"]
SENTENCES = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": PIECES,
             "tokenizer.ggml.scores": [0.0] * 259 + [-9.0, -9.0, -9.0, -2.0, -1.0],  # not in the order of the tokens
             "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * 5, "tokenizer.ggml.bos_token_id": 1,
             "tokenizer.ggml.eos_token_id": 2}


def llama_tensors(vocab, kind=0, rows=32):
    size = {0: lambda n: struct.pack("<f", 0.25) * n, 1: lambda n: struct.pack("<H", 0x3400) * n,
            8: lambda n: (struct.pack("<H", 0x2000) + bytes(range(32))) * (n // 32),
            30: lambda n: struct.pack("<H", 0x3E80) * n}[kind]
    def matrix(name, out):
        return (name, (32, out), kind, size(32 * out))
    def norm(name):
        return (name, (32,), 0, struct.pack("<f", 1) * 32)
    block = [norm("blk.0.attn_norm.weight"), matrix("blk.0.attn_q.weight", 32), matrix("blk.0.attn_k.weight", 16),
             matrix("blk.0.attn_v.weight", 16), matrix("blk.0.attn_output.weight", rows), norm("blk.0.ffn_norm.weight"),
             matrix("blk.0.ffn_gate.weight", 32), matrix("blk.0.ffn_up.weight", 32), matrix("blk.0.ffn_down.weight", 32)]
    return [matrix("token_embd.weight", vocab), *block, norm("output_norm.weight")]


write("gguf", "llama", gguf({**LLAMA, **BYTES}, llama_tensors(257)))
write("gguf", "f16", gguf(LLAMA, llama_tensors(8, 1), version=2))
write("gguf", "bf16", gguf(LLAMA, llama_tensors(8, 30)))
write("gguf", "q8_0", gguf({**LLAMA, **SENTENCES}, llama_tensors(264, 8)))
write("gguf", "empty", gguf({}, []))
write("gguf", "counts", gguf({}, [], counts=(1 << 60, 1 << 60)))
write("gguf", "version", gguf({}, [], version=1))
write("gguf", "swapped", gguf({}, [], version=0x03000000))
write("gguf", "shape", gguf(LLAMA, llama_tensors(8, rows=16)))
write("gguf", "cut", gguf(LLAMA, llama_tensors(8), data=bytes(100)))
write("gguf", "long", gguf(LLAMA, llama_tensors(8), data=bytes(100000)))
write("gguf", "type", gguf(LLAMA, [("token_embd.weight", (32, 8), 12, bytes(144))]))
write("gguf", "rows", gguf(LLAMA, [("token_embd.weight", (31, 8), 8, bytes(34 * 8))]))
write("gguf", "huge", gguf(LLAMA, [("token_embd.weight", (1 << 62, 1 << 62), 0, b"")]))
write("gguf", "twice", gguf(LLAMA, [("a", (1,), 0, bytes(4)), ("a", (1,), 0, bytes(4))]))
write("gguf", "unknown", gguf({**LLAMA, "llama.attention.clamp_kqv": 3.0}, llama_tensors(8)))
write("gguf", "arch", gguf({"general.architecture": "mamba"}, []))
write("gguf", "align", gguf({"general.alignment": 24}, []))
write("gguf", "merge", gguf({**LLAMA, **BYTES, "tokenizer.ggml.merges": ["ab"]}, llama_tensors(257)))
write("gguf", "overlap", gguf(LLAMA, llama_tensors(8)).replace(struct.pack("<QIQ", 32, 0, 1024), struct.pack("<QIQ", 32, 0, 992)))
