"""check_gguf.py FOLDER F32 F16 BF16 Q8_0 WRITTEN: files of the same model in the four formats as the gguf package reads them,
beside the Hugging Face folder; its own quantization makes the same bytes. Writes WRITTEN with the package's writer."""
import json
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize
from safetensors.numpy import load_file

folder, *files, written = sys.argv[1:]
config = json.load(open(f"{folder}/config.json"))
weights = load_file(f"{folder}/model.safetensors")
readers = {name: gguf.GGUFReader(path) for name, path in zip(("f32", "f16", "bf16", "q8_0"), files)}
tensors = {name: {t.name: t for t in reader.tensors} for name, reader in readers.items()}


def value(reader, key):
    field = reader.get_field(key)
    assert field is not None, key
    return field.contents()


def halves_to_pairs(w, heads):
    return w.reshape(heads, 2, -1, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
expected = {"token_embd.weight": weights["model.embed_tokens.weight"], "output_norm.weight": weights["model.norm.weight"]}
if "lm_head.weight" in weights:
    expected["output.weight"] = weights["lm_head.weight"]
for layer in range(config["num_hidden_layers"]):
    theirs, ours = f"model.layers.{layer}.", f"blk.{layer}."
    for a, b in (("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm"), ("self_attn.v_proj", "attn_v"),
                 ("self_attn.o_proj", "attn_output"), ("mlp.gate_proj", "ffn_gate"), ("mlp.up_proj", "ffn_up"),
                 ("mlp.down_proj", "ffn_down")):
        expected[f"{ours}{b}.weight"] = weights[f"{theirs}{a}.weight"]
    expected[f"{ours}attn_q.weight"] = halves_to_pairs(weights[f"{theirs}self_attn.q_proj.weight"], heads)
    expected[f"{ours}attn_k.weight"] = halves_to_pairs(weights[f"{theirs}self_attn.k_proj.weight"], kv_heads)

types = {"f32": Type.F32, "f16": Type.F16, "bf16": Type.BF16, "q8_0": Type.Q8_0}
for form, table in tensors.items():
    assert set(table) == set(expected), set(table) ^ set(expected)
    for name, tensor in table.items():
        want = expected[name]
        kind = Type.F32 if want.ndim == 1 else types[form]
        assert tensor.tensor_type == kind, (form, name, tensor.tensor_type)
        assert list(tensor.shape) == list(reversed(want.shape)), (name, tensor.shape)
        same = quantize(want, kind)
        assert np.asarray(tensor.data).tobytes() == np.ascontiguousarray(same).tobytes(), (form, name)
        if kind == Type.Q8_0:  # half of a step, and the scale's own rounding to FP16, of 127 steps
            scale = np.abs(want.reshape(-1, 32)).max(axis=1, keepdims=True) / 127
            bound = scale * (0.5 + 127 * 2.0**-11) + 1e-7
            assert (np.abs(dequantize(tensor.data, kind) - want).reshape(-1, 32) <= bound).all(), name

reader = readers["f32"]
assert value(reader, "general.architecture") == "llama"
for key, of in (("block_count", "num_hidden_layers"), ("embedding_length", "hidden_size"), ("attention.head_count", "num_attention_heads"),
                ("attention.head_count_kv", "num_key_value_heads"), ("feed_forward_length", "intermediate_size"),
                ("context_length", "max_position_embeddings"), ("vocab_size", "vocab_size")):
    assert value(reader, f"llama.{key}") == config[of], key
assert np.float32(value(reader, "llama.attention.layer_norm_rms_epsilon")) == np.float32(config["rms_norm_eps"])
tokenizer = json.load(open(f"{folder}/tokenizer.json"))
tokens = value(reader, "tokenizer.ggml.tokens")
assert value(reader, "tokenizer.ggml.model") == "gpt2" and value(reader, "tokenizer.ggml.pre") == "llama-bpe" or \
    value(reader, "tokenizer.ggml.pre") == "dbrx", value(reader, "tokenizer.ggml.pre")
assert len(tokens) == config["vocab_size"]
for text, number in tokenizer["model"]["vocab"].items():
    assert tokens[number] == text, (number, text)
assert value(reader, "tokenizer.ggml.merges") == [" ".join(m) for m in tokenizer["model"]["merges"]]
types_of = value(reader, "tokenizer.ggml.token_type")
for one in tokenizer["added_tokens"]:
    assert tokens[one["id"]] == one["content"] and types_of[one["id"]] == 3
assert tokens[value(reader, "tokenizer.ggml.eos_token_id")] == "<|endoftext|>"

writer = gguf.GGUFWriter(written, "llama")
writer.add_block_count(config["num_hidden_layers"])
writer.add_context_length(config["max_position_embeddings"])
writer.add_embedding_length(config["hidden_size"])
writer.add_feed_forward_length(config["intermediate_size"])
writer.add_head_count(heads)
writer.add_head_count_kv(kv_heads)
writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
writer.add_rope_freq_base(config["rope_theta"])
writer.add_tokenizer_model("gpt2")
writer.add_tokenizer_pre(value(reader, "tokenizer.ggml.pre"))
writer.add_token_list(tokens)
writer.add_token_types(types_of)
writer.add_token_merges(value(reader, "tokenizer.ggml.merges"))
writer.add_eos_token_id(value(reader, "tokenizer.ggml.eos_token_id"))
for i, (name, tensor) in enumerate(expected.items()):  # a mixture of formats, as llama.cpp's own files have
    kind = Type.F32 if tensor.ndim == 1 else (Type.F32, Type.F16, Type.BF16, Type.Q8_0)[i % 4]
    writer.add_tensor(name, quantize(tensor, kind), raw_dtype=kind)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
