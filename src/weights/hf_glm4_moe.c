// glm4_moe as transformers' Glm4MoeForCausalLM has it: q, k and v are three tensors, gate and up two, and every expert
// has tensors of its own, as save_pretrained writes them; transformers 5's fused experts ("gate_up_proj", "down_proj")
// have our form and are read too.
#include "io/json.h"
#include "checkpoint/checkpoint.h"
#include "weights/hf.h"

// --- config.json ---------------------------------------------------------------------------------------------------
static mezzo_status read_config(const char *where, const json_t *config, mezzo_model_config *out) {
    MEZZO_TRY(mezzo_model_defaults("glm4_moe", out));
    out->rope_theta = 10000; // Glm4MoeConfig's, where nothing is said
    out->rotary = 0.5;
    MEZZO_TRY(mz_hf_read_keys(where, "glm4_moe", config, out));
    return mz_hf_read_rope(where, config, &out->rope_theta, &out->rotary);
}

static mezzo_status write_config(const mezzo_model_config *m, json_t *config) {
    const mz_hf_entry entries[] = {
        {"architectures", json_pack("[s]", "Glm4MoeForCausalLM")},
        {"model_type", json_string("glm4_moe")},
        {"vocab_size", json_integer(m->vocab)},
        {"max_position_embeddings", json_integer(m->seq_len)},
        {"hidden_size", json_integer(m->d_model)},
        {"intermediate_size", json_integer(m->d_ff > 0 ? m->d_ff : 4 * m->d_model)},
        {"num_hidden_layers", json_integer(m->layers)},
        {"num_attention_heads", json_integer(m->heads)},
        {"num_key_value_heads", json_integer(m->kv_heads > 0 ? m->kv_heads : m->heads)},
        {"head_dim", json_integer(m->head_dim > 0 ? m->head_dim : m->d_model / m->heads)},
        {"attention_bias", json_boolean(m->attention_bias)},
        {"attention_dropout", json_real(0)},
        {"use_qk_norm", json_boolean(m->qk_norm)},
        {"hidden_act", json_string("silu")},
        {"rms_norm_eps", json_real(m->norm_eps)},
        {"first_k_dense_replace", json_integer(m->dense_layers)},
        {"n_routed_experts", json_integer(m->experts)},
        {"num_experts_per_tok", json_integer(m->experts_per_token)},
        {"n_shared_experts", json_integer(m->shared_experts)},
        {"moe_intermediate_size", json_integer(m->d_expert > 0 ? m->d_expert : m->d_model)},
        {"n_group", json_integer(m->expert_groups)},
        {"topk_group", json_integer(m->expert_groups_used)},
        {"norm_topk_prob", json_boolean(m->normalise_weights)},
        {"routed_scaling_factor", json_real(m->routed_scale)},
        {"num_nextn_predict_layers", json_integer(0)},
        {"tie_word_embeddings", json_false()},
        {"bos_token_id", json_null()},
        {"eos_token_id", json_null()},
        {"pad_token_id", json_null()},
    };
    MEZZO_TRY(mz_hf_put(config, entries, MZ_COUNT(entries)));
    return mz_hf_write_rope(config, m->rope_theta, m->rotary);
}

// --- tensors -------------------------------------------------------------------------------------------------------
// "a.b.last" → "a.b"; *n is its length.
static const char *last_of(const char *name, int *n) {
    const char *dot = strrchr(name, '.');
    *n = dot != NULL ? (int)(dot - name) : 0;
    return dot != NULL ? dot + 1 : name;
}

// qkv_proj.weight and .bias: H, then KV, then KV heads of rows.
static mezzo_status map_qkv(const mezzo_model_config *m, const char *name, const mz_shape *shape, mz_hf_parts *out) {
    int64_t kv = m->kv_heads > 0 ? m->kv_heads : m->heads, size = shape->dim[0] / (m->heads + 2 * kv);
    const int64_t rows[] = {m->heads * size, kv * size, kv * size};
    int n;
    const char *last = last_of(name, &n);
    for (int i = 0; i < 3; i++)
        MEZZO_TRY(mz_hf_add_part(out, rows[i], "%.*s%c_proj.%s", n - (int)strlen("qkv_proj"), name, "qkv"[i], last));
    return MEZZO_OK;
}

// Of a dense or shared MLP.
static mezzo_status map_gate_up(const char *name, const mz_shape *shape, mz_hf_parts *out) {
    int n = (int)(strlen(name) - strlen("gate_up_proj.weight"));
    MEZZO_TRY(mz_hf_add_part(out, shape->dim[0] / 2, "%.*sgate_proj.weight", n, name));
    return mz_hf_add_part(out, shape->dim[0] / 2, "%.*sup_proj.weight", n, name);
}

// [E, rows, cols]: expert by expert.
static mezzo_status map_experts(const char *name, const mz_shape *shape, mz_hf_parts *out) {
    int n;
    bool down = strcmp(last_of(name, &n), "down_proj") == 0;
    for (int64_t e = 0; e < shape->dim[0]; e++) {
        if (down) {
            MEZZO_TRY(mz_hf_add_part(out, shape->dim[1], "%.*s.%lld.down_proj.weight", n, name, (long long)e));
            continue;
        }
        MEZZO_TRY(mz_hf_add_part(out, shape->dim[1] / 2, "%.*s.%lld.gate_proj.weight", n, name, (long long)e));
        MEZZO_TRY(mz_hf_add_part(out, shape->dim[1] / 2, "%.*s.%lld.up_proj.weight", n, name, (long long)e));
    }
    return MEZZO_OK;
}

static mezzo_status map(const mezzo_model_config *model, const char *name, const mz_shape *shape, mz_hf_parts *out) {
    if (strstr(name, ".qkv_proj.") != NULL)
        return map_qkv(model, name, shape, out);
    if (shape->rank == 3)
        return map_experts(name, shape, out);
    if (strstr(name, ".gate_up_proj.weight") != NULL)
        return map_gate_up(name, shape, out);
    MEZZO_TRY(mz_hf_add_part(out, shape->dim[0], "%s", name));
    out->items[out->count - 1].bare = strcmp(name, "lm_head.weight") == 0;
    out->items[out->count - 1].fp32 = strstr(name, "e_score_correction_bias") != NULL; // as transformers keeps it
    return MEZZO_OK;
}

static bool is_buffer(const char *name) {
    return strstr(name, "rotary_emb.") != NULL;
}

const mz_hf_family mz_hf_glm4_moe = {
    .model = "glm4_moe",
    .model_type = "glm4_moe",
    .file = "model",
    .prefix = "model.",
    .read_config = read_config,
    .write_config = write_config,
    .map = map,
    .is_buffer = is_buffer,
    .embedding = "embed_tokens.weight",
    .later_mark = "eh_proj.weight",
};
