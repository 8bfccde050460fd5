// cs336 as transformers' LlamaForCausalLM: the same Transformer, but for the order of a head's dimensions. A rotary
// pair is two neighbours with us, and one dimension of each half there, so that rows of q and k change places; scores
// are sums over a head and stay the same.
#include "io/json.h"
#include "checkpoint/checkpoint.h"
#include "weights/hf.h"

// --- config.json ---------------------------------------------------------------------------------------------------
static mezzo_status check_sizes(const char *where, const json_t *config, const mezzo_model_config *m) {
    const struct {
        const char *key, *what;
        int64_t want;
    } sizes[] = {{"num_key_value_heads", "the heads", m->heads},
                 {"head_dim", "the width divided by the heads", m->d_model / m->heads}};
    for (size_t i = 0; i < MZ_COUNT(sizes); i++) {
        int64_t size = sizes[i].want;
        const json_t *value = json_object_get(config, sizes[i].key);
        if (value != NULL && !json_is_null(value))
            MEZZO_TRY(mz_json_get_int(where, config, sizes[i].key, 1, INT32_MAX, &size));
        if (size != sizes[i].want)
            return mz_fail(MEZZO_ERR_FORMAT, "%s: key '%s' is %lld; it must equal %s, %lld", where, sizes[i].key,
                           (long long)size, sizes[i].what, (long long)sizes[i].want);
    }
    return MEZZO_OK;
}

static mezzo_status read_config(const char *where, const json_t *config, mezzo_model_config *out) {
    MEZZO_TRY(mezzo_model_defaults("cs336", out));
    out->rope_theta = 10000; // LlamaConfig's, where nothing is said
    MEZZO_TRY(mz_hf_read_keys(where, "llama", config, out));
    MEZZO_TRY(mz_hf_read_rope(where, config, &out->rope_theta, NULL));
    return check_sizes(where, config, out);
}

static mezzo_status write_config(const mezzo_model_config *m, json_t *config) {
    const mz_hf_entry entries[] = {
        {"architectures", json_pack("[s]", "LlamaForCausalLM")},
        {"model_type", json_string("llama")},
        {"vocab_size", json_integer(m->vocab)},
        {"max_position_embeddings", json_integer(m->seq_len)},
        {"hidden_size", json_integer(m->d_model)},
        {"intermediate_size", json_integer(m->d_ff > 0 ? m->d_ff : 4 * m->d_model)},
        {"num_hidden_layers", json_integer(m->layers)},
        {"num_attention_heads", json_integer(m->heads)},
        {"num_key_value_heads", json_integer(m->heads)},
        {"head_dim", json_integer(m->d_model / m->heads)},
        {"hidden_act", json_string("silu")},
        {"rms_norm_eps", json_real(m->norm_eps)},
        {"attention_bias", json_false()},
        {"attention_dropout", json_real(0)},
        {"mlp_bias", json_false()},
        {"tie_word_embeddings", json_false()},
        {"bos_token_id", json_null()},
        {"eos_token_id", json_null()},
        {"pad_token_id", json_null()},
    };
    MEZZO_TRY(mz_hf_put(config, entries, MZ_COUNT(entries)));
    return mz_hf_write_rope(config, m->rope_theta, 0); // a whole head: the key is not LlamaConfig's
}

// --- tensors -------------------------------------------------------------------------------------------------------
static mezzo_status map_qkv(const mezzo_model_config *m, int n, const char *layer, mz_hf_parts *out) {
    for (int i = 0; i < 3; i++) {
        MEZZO_TRY(mz_hf_add_part(out, m->d_model, "%.*s.self_attn.%c_proj.weight", n, layer, "qkv"[i]));
        out->items[out->count - 1].head = i < 2 ? m->d_model / m->heads : 0;
    }
    return MEZZO_OK;
}

static mezzo_status map(const mezzo_model_config *model, const char *name, const mz_shape *shape, mz_hf_parts *out) {
    static const char *const names[][2] = {{"ln1.weight", "input_layernorm.weight"},
                                           {"attn.output_proj.weight", "self_attn.o_proj.weight"},
                                           {"ln2.weight", "post_attention_layernorm.weight"},
                                           {"ffn.w2.weight", "mlp.down_proj.weight"}};
    const int64_t rows = shape->dim[0];
    if (strcmp(name, "token_embeddings.weight") == 0)
        return mz_hf_add_part(out, rows, "embed_tokens.weight");
    if (strcmp(name, "ln_final.weight") == 0)
        return mz_hf_add_part(out, rows, "norm.weight");
    if (strcmp(name, "lm_head.weight") == 0) {
        MEZZO_TRY(mz_hf_add_part(out, rows, "%s", name));
        out->items[out->count - 1].bare = true;
        return MEZZO_OK;
    }
    const char *dot = strchr(name, '.'), *rest = dot != NULL ? strchr(dot + 1, '.') : NULL;
    if (rest == NULL)
        return mz_fail(MEZZO_ERR_INVALID, "cs336's parameter %s has no name in a llama model", name);
    int n = (int)(rest++ - name); // "layers.N"
    if (strcmp(rest, "attn.qkv_proj.weight") == 0)
        return map_qkv(model, n, name, out);
    if (strcmp(rest, "ffn.w13.weight") == 0) {
        MEZZO_TRY(mz_hf_add_part(out, rows / 2, "%.*s.mlp.gate_proj.weight", n, name));
        return mz_hf_add_part(out, rows / 2, "%.*s.mlp.up_proj.weight", n, name);
    }
    for (size_t i = 0; i < MZ_COUNT(names); i++)
        if (strcmp(rest, names[i][0]) == 0)
            return mz_hf_add_part(out, rows, "%.*s.%s", n, name, names[i][1]);
    return mz_fail(MEZZO_ERR_INVALID, "cs336's parameter %s has no name in a llama model", name);
}

static bool is_buffer(const char *name) {
    return strstr(name, "rotary_emb.") != NULL;
}

const mz_hf_family mz_hf_llama = {
    .model = "cs336",
    .model_type = "llama",
    .file = "model",
    .prefix = "model.",
    .read_config = read_config,
    .write_config = write_config,
    .map = map,
    .is_buffer = is_buffer,
    .embedding = "embed_tokens.weight",
};
