// Maps GPT-2 as in transformers' GPT2LMHeadModel: linear weights are Conv1D's, [inputs, outputs], the transpose of
// ours, and the head shares the token embedding. It also maps nanoGPT's checkpoints: linear weights as ours, with
// model_args as config.json.
#include <stdlib.h>

#include "io/json.h"
#include "checkpoint/checkpoint.h"
#include "weights/hf.h"

// --- config.json ---------------------------------------------------------------------------------------------------
// Reads dropout: one probability serves all three keys, as in GPT-2's own configurations.
static mezzo_status read_dropout(const char *where, const json_t *config, double *out) {
    static const char *const keys[] = {"resid_pdrop", "embd_pdrop", "attn_pdrop"};
    double each[MZ_COUNT(keys)];
    for (size_t i = 0; i < MZ_COUNT(keys); i++) {
        each[i] = 0.1; // GPT2Config has this default
        if (json_object_get(config, keys[i]) != NULL)
            MEZZO_TRY(mz_json_get_double(where, config, keys[i], &each[i]));
        if (each[i] != each[0])
            return mz_fail(MEZZO_ERR_FORMAT, "%s: key '%s' is %g and '%s' %g; only one dropout for all is supported",
                           where, keys[i], each[i], keys[0], each[0]);
    }
    *out = each[0];
    return MEZZO_OK;
}

static mezzo_status read_config(const mz_hf_family *family, const char *where, const json_t *config,
                                mezzo_model_config *out) {
    (void)family;
    MEZZO_TRY(mezzo_model_defaults("gpt2", out));
    MEZZO_TRY(mz_hf_read_keys(where, "gpt2", config, out));
    return read_dropout(where, config, &out->dropout);
}

static mezzo_status write_config(const mz_hf_family *family, const mz_model *object, json_t *config) {
    const mezzo_model_config *m = &object->config;
    const int64_t end = m->vocab == 50257 ? 50256 : -1; // the id of <|endoftext|>
    const mz_hf_entry entries[] = {
        {"architectures", json_pack("[s]", "GPT2LMHeadModel")},
        {"model_type", json_string("gpt2")},
        {"resid_pdrop", json_real(m->dropout)},
        {"embd_pdrop", json_real(m->dropout)},
        {"attn_pdrop", json_real(m->dropout)},
        {"bos_token_id", end < 0 ? json_null() : json_integer(end)},
        {"eos_token_id", end < 0 ? json_null() : json_integer(end)},
    };
    MEZZO_TRY(mz_hf_put(config, entries, MZ_COUNT(entries)));
    return mz_hf_write_keys(family->model_type, m, config);
}

// --- tensors -------------------------------------------------------------------------------------------------------
static mezzo_status map(const mz_hf_family *family, const mz_model *object, const char *name, const mz_shape *shape,
                        mz_hf_parts *out) {
    const mezzo_model_config *model = &object->config;
    (void)family, (void)model;
    static const char *const linear[] = {".c_attn.weight", ".c_proj.weight", ".c_fc.weight"};
    bool transposed = false;
    for (size_t i = 0; i < MZ_COUNT(linear); i++)
        transposed |= mz_ends_with(name, linear[i]);
    MEZZO_TRY(mz_hf_add_part(out, shape->dim[0], "%s", name));
    out->items[out->count - 1].transposed = transposed;
    return MEZZO_OK;
}

// Returns whether the tensor is the causal mask, which older versions saved.
static bool is_buffer(const char *name) {
    return mz_ends_with(name, ".attn.bias") || mz_ends_with(name, ".attn.masked_bias");
}

#define GPT2(type, read, write, rename)                                                                                \
    {                                                                                                                  \
        .model = "gpt2", .model_type = (type), .file = "model", .prefix = "transformer.", .read_config = (read),       \
        .write_config = (write), .map = (rename), .biases_optional = true, .is_buffer = is_buffer,                     \
        .embedding = "wte.weight", .positions = "wpe.weight", .head = "lm_head.weight"                                 \
    }
const mz_hf_family mz_hf_gpt2 = GPT2("gpt2", read_config, write_config, map);

// --- nanoGPT -------------------------------------------------------------------------------------------------------
// Reads {"model_type": "nanogpt", …} with the model_args of its checkpoint.
static mezzo_status read_nanogpt(const mz_hf_family *family, const char *where, const json_t *config,
                                 mezzo_model_config *out) {
    (void)family;
    MEZZO_TRY(mezzo_model_defaults("gpt2", out));
    return mz_hf_read_keys(where, "nanogpt", config, out);
}

static mezzo_status map_nanogpt(const mz_hf_family *family, const mz_model *model, const char *name,
                                const mz_shape *shape, mz_hf_parts *out) {
    (void)family, (void)model;
    return mz_hf_add_part(out, shape->dim[0], "%s", name);
}

const mz_hf_family mz_hf_nanogpt = GPT2("nanogpt", read_nanogpt, NULL, map_nanogpt);
