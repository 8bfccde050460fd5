// Maps the decoders of transformers: hf_decoders has a row for each, hf_keys.def the keys of config.json in both
// directions, and tensors are parts of our parameters: q, k and v of one matrix, gate and up of another, experts one by
// one.
#include "checkpoint/checkpoint.h"
#include "io/json.h"
#include "models/decoder.h"
#include "weights/hf.h"

// --- config.json ---------------------------------------------------------------------------------------------------
// Reads a list with a number or text for each block; NULL: the key is missing or null.
static mezzo_status read_list(const char *where, const json_t *config, const char *key, int64_t layers,
                              const json_t **out) {
    *out = json_object_get(config, key);
    if (*out == NULL || json_is_null(*out)) {
        *out = NULL;
        return MEZZO_OK;
    }
    return (int64_t)json_array_size(*out) == layers
               ? MEZZO_OK
               : mz_fail(MEZZO_ERR_FORMAT, "%s: key '%s' is not a list of %lld, one for each block", where, key,
                         (long long)layers);
}

// Reads a list that marks every n-th block and no other; *every becomes n, 0 where the list marks none.
static mezzo_status read_every(const char *where, const json_t *list, const char *key,
                               bool (*is_marked)(const json_t *), int64_t *every) {
    const size_t layers = json_array_size(list);
    *every = 0;
    for (size_t i = layers; i-- > 0;)
        if (is_marked(json_array_get(list, i)))
            *every = (int64_t)i + 1; // the first marked block
    for (size_t i = 0; i < layers; i++)
        if (is_marked(json_array_get(list, i)) != (*every > 0 && (int64_t)(i + 1) % *every == 0))
            return mz_fail(MEZZO_ERR_FORMAT,
                           "%s: key '%s' is not regular: only patterns that mark every n-th block are supported", where,
                           key);
    return MEZZO_OK;
}

static bool is_full(const json_t *type) {
    return json_is_string(type) && strcmp(json_string_value(type), "full_attention") == 0;
}

static bool has_no_rope(const json_t *rope) {
    return json_is_integer(rope) && json_integer_value(rope) == 0;
}

// Reads which blocks see all positions, every n-th, while the others have the window: from layer_types, or as the class
// has it.
static mezzo_status read_pattern(const char *where, const json_t *config, const mz_hf_family *family,
                                 const mz_decoder *decoder, mezzo_model_config *m) {
    static const char key[] = "sliding_window_pattern";
    const json_t *types, *one;
    size_t i;
    m->window_from = 0;
    m->full_every = decoder->full_every;
    m->window = family->window;
    if (json_object_get(config, key) != NULL)
        MEZZO_TRY(mz_json_get_int(where, config, key, 1, INT32_MAX, &m->full_every));
    MEZZO_TRY(read_list(where, config, "layer_types", m->layers, &types));
    json_array_foreach(types, i,
                       one) if (!is_full(one) && (!json_is_string(one) ||
                                                  strcmp(json_string_value(one), "sliding_attention") !=
                                                      0)) return mz_fail(MEZZO_ERR_FORMAT,
                                                                         "%s: key 'layer_types' of block %zu is "
                                                                         "neither full_attention nor sliding_attention",
                                                                         where, i);
    if (types != NULL)
        MEZZO_TRY(read_every(where, types, "layer_types", is_full, &m->full_every));
    return json_object_get(config, "sliding_window") != NULL
               ? mz_json_get_int(where, config, "sliding_window", 1, INT32_MAX, &m->window)
               : MEZZO_OK;
}

// Reads the first block with a window: from layer_types, or as the class has it where the key is missing.
static mezzo_status read_windows(const char *where, const json_t *config, const mz_hf_family *family,
                                 const mz_decoder *decoder, mezzo_model_config *m) {
    const json_t *types, *one, *window = json_object_get(config, "sliding_window");
    size_t i;
    MEZZO_TRY(read_list(where, config, "layer_types", m->layers, &types));
    const bool listed = types != NULL && decoder->windows_from,
               on = !decoder->windows_from || json_is_true(json_object_get(config, "use_sliding_window"));
    m->window = on && (window == NULL || !decoder->windows) ? family->window : 0;
    m->window_from = 0;
    if (decoder->windows && (on || listed) && window != NULL && !json_is_null(window))
        MEZZO_TRY(mz_json_get_int(where, config, "sliding_window", 1, INT32_MAX, &m->window));
    if (decoder->windows_from && !listed && m->window > 0) {
        if (strcmp(family->model, "smollm3") == 0)
            return mz_fail(MEZZO_ERR_FORMAT,
                           "%s: key 'use_sliding_window' is true, and no key 'layer_types' says which blocks have the "
                           "window: its class gives it to blocks without RoPE, which is not supported",
                           where);
        m->window_from = family->window_from;
        if (json_object_get(config, "max_window_layers") != NULL)
            MEZZO_TRY(mz_json_get_int(where, config, "max_window_layers", 0, INT32_MAX, &m->window_from));
    }
    int64_t sliding = 0;
    json_array_foreach(types, i, one) {
        const char *type = json_string_value(one);
        const bool slides = type != NULL && strcmp(type, "sliding_attention") == 0;
        if (!slides && (type == NULL || strcmp(type, "full_attention") != 0 || sliding > 0))
            return mz_fail(MEZZO_ERR_FORMAT,
                           "%s: key 'layer_types' must be full_attention and then sliding_attention: block %zu is not",
                           where, i);
        sliding += slides;
    }
    if (sliding > 0 && m->window == 0)
        return mz_fail(MEZZO_ERR_FORMAT, "%s: key 'layer_types' has sliding_attention, but there is no sliding_window",
                       where);
    if (listed)
        m->window_from = m->layers - sliding;
    if (m->window_from >= m->layers)
        m->window = 0; // one as long as the folder's context stays: a run's context may be longer
    m->window_from = m->window > 0 ? m->window_from : 0;
    return types == NULL || listed || m->window == 0 || sliding == m->layers
               ? MEZZO_OK
               : mz_fail(MEZZO_ERR_FORMAT,
                         "%s: key 'layer_types' has full_attention beside a sliding_window, which classes of "
                         "transformers read differently: remove one of them",
                         where);
}

// Reads which blocks have no RoPE, every n-th: a list of ones and zeros, or n itself.
static mezzo_status read_no_rope(const char *where, const json_t *config, mezzo_model_config *m) {
    const json_t *list;
    int64_t every = 4; // SmolLM3Config's default
    if (json_object_get(config, "no_rope_layer_interval") != NULL)
        MEZZO_TRY(mz_json_get_int(where, config, "no_rope_layer_interval", 1, INT32_MAX, &every));
    MEZZO_TRY(read_list(where, config, "no_rope_layers", m->layers, &list));
    m->no_rope_every = every;
    return list != NULL ? read_every(where, list, "no_rope_layers", has_no_rope, &m->no_rope_every) : MEZZO_OK;
}

// Reads the rotary positions of a Gemma 3 model: blocks without a window have the positions that the other keys
// describe, and blocks with a window have unscaled positions of their own base.
static mezzo_status read_local_rope(const char *where, const json_t *config, mezzo_model_config *m) {
    json_t *rope = json_object_get(config, "rope_parameters"), *full = json_object_get(rope, "full_attention");
    const json_t *local = json_object_get(rope, "sliding_attention");
    mezzo_model_config sliding = {.rope_theta = 10000};
    if (json_object_get(config, "rope_local_base_freq") != NULL)
        MEZZO_TRY(mz_json_get_double(where, config, "rope_local_base_freq", &sliding.rope_theta));
    if ((full != NULL) != (local != NULL) || json_object_size(rope) != (full != NULL ? 2 : 0))
        return mz_fail(MEZZO_ERR_FORMAT,
                       "%s: key 'rope_parameters' has other members than full_attention and sliding_attention", where);
    if (json_object_get(json_object_get(config, "rope_scaling"), "type") != NULL)
        return mz_fail(MEZZO_ERR_FORMAT,
                       "%s: key 'type' of 'rope_scaling': versions of transformers read it differently; name it "
                       "rope_type",
                       where);
    json_t *parts[2] = {json_copy((json_t *)(uintptr_t)config), json_object()};
    mezzo_status status = parts[0] != NULL && parts[1] != NULL ? MEZZO_OK : MEZZO_ERR_MEMORY;
    if (status == MEZZO_OK && full != NULL)
        status = mz_json_set(parts[0], "rope_parameters", json_incref(full));
    if (status == MEZZO_OK && local != NULL)
        status = mz_json_set(parts[1], "rope_parameters", json_deep_copy(local));
    if (status == MEZZO_OK)
        status = mz_hf_read_rope(where, parts[0], &m->rope_theta, NULL, m);
    if (status == MEZZO_OK)
        status = mz_hf_read_rope(where, parts[1], &sliding.rope_theta, NULL, NULL);
    m->rope_local = sliding.rope_theta;
    json_decref(parts[0]);
    json_decref(parts[1]);
    return status;
}

// Reads the model. Every size is set, so that none becomes the default of our family.
static mezzo_status read_config(const mz_hf_family *family, const char *where, const json_t *config,
                                mezzo_model_config *out) {
    const mz_decoder *decoder = mz_decoder_find(family->model);
    MEZZO_TRY(mezzo_model_defaults(family->model, out));
    out->size[0] = '\0';
    out->rope_theta = family->theta;
    out->rotary = family->rotary > 0 ? family->rotary : out->rotary;
    MEZZO_TRY(mz_hf_read_keys(where, family->model_type, config, out));
    if (decoder->local_rope)
        MEZZO_TRY(read_local_rope(where, config, out));
    else
        MEZZO_TRY(mz_hf_read_rope(where, config, &out->rope_theta, decoder->partial ? &out->rotary : NULL,
                                  decoder->tied == MZ_TIED_BY_KEY ? out : NULL));
    MEZZO_TRY(decoder->full_every > 0 ? read_pattern(where, config, family, decoder, out)
                                      : read_windows(where, config, family, decoder, out));
    if (strcmp(family->model, "smollm3") == 0)
        MEZZO_TRY(read_no_rope(where, config, out));
    if (!decoder->ungrouped && out->kv_heads == 0)
        out->kv_heads = out->heads;
    if (!decoder->ungrouped && out->head_dim == 0 && out->heads > 0 && out->d_model % out->heads == 0)
        out->head_dim = out->d_model / out->heads;
    return MEZZO_OK;
}

static mezzo_status write_no_rope(const mezzo_model_config *m, json_t *config) {
    json_t *list = json_array();
    for (int64_t i = 0; list != NULL && i < m->layers; i++)
        (void)json_array_append_new(list, json_integer(m->no_rope_every == 0 || (i + 1) % m->no_rope_every != 0));
    MEZZO_TRY(mz_json_set(config, "no_rope_layers", list));
    return mz_json_set(config, "no_rope_layer_interval", json_integer(m->no_rope_every > 0 ? m->no_rope_every : 1));
}

static mezzo_status write_windows(const mz_decoder *decoder, const mezzo_model_config *m, json_t *config) {
    MEZZO_TRY(mz_json_set(config, "sliding_window", m->window > 0 ? json_integer(m->window) : json_null()));
    if (!decoder->windows_from && decoder->full_every == 0)
        return MEZZO_OK;
    json_t *types = json_array();
    for (int64_t i = 0; types != NULL && i < m->layers; i++) {
        (void)json_array_append_new(types,
                                    json_string(mz_decoder_slides(m, i) ? "sliding_attention" : "full_attention"));
    }
    if (decoder->full_every > 0)
        return mz_json_set(config, "layer_types", types);
    const mz_hf_entry entries[] = {{"layer_types", types},
                                   {"use_sliding_window", json_boolean(m->window > 0)},
                                   {"max_window_layers", json_integer(m->window > 0 ? m->window_from : m->layers)}};
    return mz_hf_put(config, entries, MZ_COUNT(entries));
}

static mezzo_status write_config(const mz_hf_family *family, const mz_model *object, json_t *config) {
    const mezzo_model_config *model = &object->config;
    const mz_decoder *decoder = mz_decoder_find(family->model);
    const mezzo_model_config m = mz_decoder_resolve(decoder, model);
    MEZZO_TRY(mz_hf_write_keys(family->model_type, &m, config));
    // Classes of transformers have default ids where a file gives none.
    const mz_hf_entry entries[] = {{"architectures", json_pack("[s]", family->architecture)},
                                   {"model_type", json_string(family->model_type)},
                                   {"bos_token_id", json_null()},
                                   {"eos_token_id", json_null()},
                                   {"pad_token_id", json_null()}};
    MEZZO_TRY(mz_hf_put(config, entries, MZ_COUNT(entries)));
    if (decoder->windows)
        MEZZO_TRY(write_windows(decoder, &m, config));
    if (strcmp(family->model, "smollm3") == 0)
        MEZZO_TRY(write_no_rope(&m, config));
    if (strcmp(family->model, "gpt_neox") == 0) { // transformers before version 5 read this key
        const mz_hf_entry older[] = {{"rotary_pct", json_real(m.rotary)}, {"rotary_emb_base", json_real(m.rope_theta)}};
        MEZZO_TRY(mz_hf_put(config, older, MZ_COUNT(older)));
    }
    MEZZO_TRY(mz_hf_write_rope(config, &m, decoder->partial ? m.rotary : 0));
    if (!decoder->local_rope)
        return MEZZO_OK;
    const mz_hf_entry local[] = {
        {"rope_local_base_freq", json_real(m.rope_local)},
        {"rope_parameters", json_pack("{sOs{sssf}}", "full_attention", json_object_get(config, "rope_parameters"),
                                      "sliding_attention", "rope_type", "default", "rope_theta", m.rope_local)}};
    return mz_hf_put(config, local, MZ_COUNT(local));
}

// --- tensors -------------------------------------------------------------------------------------------------------
static bool ends_with(const char *text, size_t n, const char *end) {
    size_t k = strlen(end);
    return n >= k && memcmp(text + n - k, end, k) == 0;
}

// Adds a part by its name there: MODULE.PART + rest, with the family's other words put in.
static mezzo_status add_part(const mz_hf_family *family, mz_hf_parts *out, int64_t rows, const char *name) {
    char text[sizeof out->items->name];
    snprintf(text, sizeof text, "%s", name);
    for (size_t i = 0; family->words != NULL && family->words[i][0] != NULL; i++) {
        char *at = strstr(text, family->words[i][0]), rest[sizeof text];
        if (at == NULL)
            continue;
        snprintf(rest, sizeof rest, "%s", at + strlen(family->words[i][0]));
        snprintf(at, sizeof text - (size_t)(at - text), "%s%s", family->words[i][1], rest);
    }
    MEZZO_TRY(mz_hf_add_part(out, rows, "%s", text));
    mz_hf_part *part = &out->items[out->count - 1];
    part->bare = strcmp(text, family->head) == 0;
    part->fp32 = strstr(text, "e_score_correction_bias") != NULL; // transformers keeps it in FP32
    return MEZZO_OK;
}

// A parameter MODULE.FUSED.weight with the rows of several layers, each MODULE.PART.weight there.
typedef struct fused {
    const char *last;     // ".weight" or ".bias"
    const char *names[3]; // the parts; NULL: there are no more
    int64_t rows[3];
    int64_t head; // rows of a head of the first two parts, whose rotary pairs are halves there
} fused;

static mezzo_status add_fused(const mz_hf_family *family, mz_hf_parts *out, const char *module, int n, const fused *f) {
    for (int i = 0; i < 3 && f->names[i] != NULL; i++) {
        char name[sizeof out->items->name];
        snprintf(name, sizeof name, "%.*s.%s%s", n, module, f->names[i], f->last);
        MEZZO_TRY(add_part(family, out, f->rows[i], name));
        if (i < 2)
            out->items[out->count - 1].order.head = f->head;
    }
    return MEZZO_OK;
}

// Maps "….experts.gate_up_proj" or "….experts.down_proj" [E, rows, cols], expert by expert.
static mezzo_status map_experts(const mz_hf_family *family, const char *name, const mz_shape *shape, mz_hf_parts *out) {
    const char *dot = strrchr(name, '.');
    const bool down = strcmp(dot, ".down_proj") == 0;
    const int64_t rows = down ? shape->dim[1] : shape->dim[1] / 2;
    for (int64_t e = 0; e < shape->dim[0]; e++) {
        char module[sizeof out->items->name];
        const int n = snprintf(module, sizeof module, "%.*s.%lld", (int)(dot - name), name, (long long)e);
        fused f = {.last = ".weight", .names = {"gate_proj", "up_proj"}, .rows = {rows, rows}};
        if (down)
            f.names[0] = "down_proj", f.names[1] = NULL;
        MEZZO_TRY(add_fused(family, out, module, n, &f));
    }
    return MEZZO_OK;
}

static mezzo_status map(const mz_hf_family *family, const mz_model *object, const char *name, const mz_shape *shape,
                        mz_hf_parts *out) {
    const mezzo_model_config *model = &object->config;
    const mz_decoder *decoder = mz_decoder_find(family->model);
    const mz_decoder_names *names = mz_decoder_names_of(decoder);
    const mezzo_model_config m = mz_decoder_resolve(decoder, model);
    if (shape->rank == 3)
        return map_experts(family, name, shape, out);
    const char *last = strrchr(name, '.');
    const size_t n = (size_t)(last - name);
    char qkv[64], up[64];
    snprintf(qkv, sizeof qkv, ".%s", names->qkv);
    snprintf(up, sizeof up, ".%s", names->up);
    const int64_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim, half = shape->dim[0] / 2;
    if (names->q != NULL && ends_with(name, n, qkv))
        return add_fused(
            family, out, name, (int)(n - strlen(qkv)),
            &(fused){last, {names->q, names->k, names->v}, {q, kv, kv}, decoder->interleaved ? m.head_dim : 0});
    if (names->gate_part != NULL && ends_with(name, n, up))
        return add_fused(family, out, name, (int)(n - strlen(up)),
                         &(fused){last, {names->gate_part, names->up_part}, {half, half}, 0});
    MEZZO_TRY(add_part(family, out, shape->dim[0], name));
    if (family->thirds && ends_with(name, n, qkv))
        out->items[out->count - 1].order.heads = m.heads;
    return MEZZO_OK;
}

// Returns whether the tensor holds positions or masks, which older versions saved.
static bool is_buffer(const char *name) {
    return strstr(name, "rotary_emb.") != NULL || strstr(name, ".attention.bias") != NULL ||
           strstr(name, ".attention.masked_bias") != NULL;
}

// --- families ------------------------------------------------------------------------------------------------------
static const char *const cs336_words[][2] = {{"token_embeddings.", "embed_tokens."},
                                             {"ln_final.", "norm."},
                                             {".ln1.", ".input_layernorm."},
                                             {".ln2.", ".post_attention_layernorm."},
                                             {".attn.output_proj.", ".self_attn.o_proj."},
                                             {".attn.", ".self_attn."},
                                             {".ffn.w1.", ".mlp.gate_proj."},
                                             {".ffn.w3.", ".mlp.up_proj."},
                                             {".ffn.w2.", ".mlp.down_proj."},
                                             {NULL, NULL}};

static const char *const mixtral_words[][2] = {{".mlp.", ".block_sparse_moe."},
                                               {".gate_proj.", ".w1."},
                                               {".up_proj.", ".w3."},
                                               {".down_proj.", ".w2."},
                                               {NULL, NULL}};

// A type that belongs to two of our families is read as the first.
#define MODEL .prefix = "model.", .embedding = "embed_tokens.weight", .head = "lm_head.weight"
#define NEOX  .prefix = "gpt_neox.", .embedding = "embed_in.weight", .head = "embed_out.weight"
#define DECODER(ours, type, class, base, ...)                                                                          \
    {                                                                                                                  \
        .model = (ours), .model_type = (type), .architecture = (class), .file = "model", .read_config = read_config,   \
        .write_config = write_config, .map = map, .is_buffer = is_buffer, .theta = (base), __VA_ARGS__                 \
    }
const mz_hf_family mz_hf_decoders[] = {
    DECODER("llama", "llama", "LlamaForCausalLM", 10000, MODEL),
    DECODER("cs336", "llama", "LlamaForCausalLM", 10000, MODEL, .words = cs336_words),
    DECODER("mistral", "mistral", "MistralForCausalLM", 10000, MODEL, .window = 4096),
    DECODER("qwen2", "qwen2", "Qwen2ForCausalLM", 10000, MODEL, .window = 4096, .window_from = 28),
    DECODER("qwen3", "qwen3", "Qwen3ForCausalLM", 10000, MODEL, .window = 4096, .window_from = 28),
    DECODER("smollm3", "smollm3", "SmolLM3ForCausalLM", 2000000, MODEL),
    DECODER("phi3", "phi3", "Phi3ForCausalLM", 10000, MODEL, .rotary = 1),
    DECODER("mixtral", "mixtral", "MixtralForCausalLM", 1000000, MODEL, .words = mixtral_words),
    DECODER("qwen3_moe", "qwen3_moe", "Qwen3MoeForCausalLM", 10000, MODEL),
    DECODER("gemma", "gemma", "GemmaForCausalLM", 10000, MODEL),
    DECODER("gemma2", "gemma2", "Gemma2ForCausalLM", 10000, MODEL, .window = 4096),
    DECODER("gemma3", "gemma3_text", "Gemma3ForCausalLM", 1000000, MODEL, .window = 4096),
    DECODER("olmo2", "olmo2", "Olmo2ForCausalLM", 10000, MODEL),
    DECODER("gpt_neox", "gpt_neox", "GPTNeoXForCausalLM", 10000, NEOX, .rotary = 0.25, .thirds = true),
    DECODER("glm4_moe", "glm4_moe", "Glm4MoeForCausalLM", 10000, MODEL, .rotary = 0.5, .later_mark = "eh_proj.weight"),
};
const size_t mz_hf_decoder_count = MZ_COUNT(mz_hf_decoders);
