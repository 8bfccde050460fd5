// Builds the decoder of every language model from a family's row and the model's keys: blocks of attention and an MLP
// or experts around a residual stream. Parameters have Hugging Face's names without "model." where the row names no
// others; q, k and v are one matrix, and so are gate and up, in this order of rows.
#include "models/decoder.h"

#include <math.h>

#include "base/scope.h"
#include "nn/layers.h"

// --- families ------------------------------------------------------------------------------------------------------
#define HF_NAMES                                                                                                       \
    .embedding = "embed_tokens", .block = "layers", .attention = "self_attn", .qkv = "qkv_proj", .out = "o_proj",      \
    .mlp = "mlp", .up = "gate_up_proj", .down = "down_proj", .before_attention = "input_layernorm", .final = "norm",   \
    .head = "lm_head"
#define HF_PARTS .q = "q_proj", .k = "k_proj", .v = "v_proj", .gate_part = "gate_proj", .up_part = "up_proj"
static const mz_decoder_names hf_names = {HF_NAMES, HF_PARTS, .before_mlp = "post_attention_layernorm"};
static const mz_decoder_names phi3_names = {HF_NAMES, .before_mlp = "post_attention_layernorm"};
static const mz_decoder_names post_names = {HF_NAMES, HF_PARTS, .after_attention = "post_attention_layernorm",
                                            .before_mlp = "pre_feedforward_layernorm",
                                            .after_mlp = "post_feedforward_layernorm"};
static const mz_decoder_names gpt2_names = {
    .embedding = "wte",
    .positions = "wpe",
    .block = "h",
    .attention = "attn",
    .qkv = "c_attn",
    .out = "c_proj",
    .mlp = "mlp",
    .up = "c_fc",
    .down = "c_proj",
    .before_attention = "ln_1",
    .before_mlp = "ln_2",
    .final = "ln_f",
    .head = "lm_head",
};
static const mz_decoder_names cs336_names = {
    .embedding = "token_embeddings",
    .block = "layers",
    .attention = "attn",
    .qkv = "qkv_proj",
    .q = "q_proj",
    .k = "k_proj",
    .v = "v_proj",
    .out = "output_proj",
    .mlp = "ffn",
    .up = "w13",
    .gate_part = "w1",
    .up_part = "w3",
    .down = "w2",
    .before_attention = "ln1",
    .before_mlp = "ln2",
    .final = "ln_final",
    .head = "lm_head",
};
static const mz_decoder_names neox_names = {
    .embedding = "embed_in",
    .block = "layers",
    .attention = "attention",
    .qkv = "query_key_value",
    .out = "dense",
    .mlp = "mlp",
    .up = "dense_h_to_4h",
    .down = "dense_4h_to_h",
    .before_attention = "input_layernorm",
    .before_mlp = "post_attention_layernorm",
    .final = "final_layer_norm",
    .head = "embed_out",
};

// Returns initial values by initializer_range of Hugging Face's configurations.
static mezzo_init hf_init(const mezzo_model_config *config, mz_decoder_weight kind, int64_t in, int64_t out) {
    (void)config, (void)kind, (void)in, (void)out;
    return (mezzo_init){.kind = MEZZO_INIT_NORMAL, .a = 0.02F};
}

// Returns GPT-2's initial values: N(0, 0.02²), and 1/√(2L) of that where a branch ends in the residual stream, which
// sums 2L of them.
static mezzo_init gpt2_init(const mezzo_model_config *config, mz_decoder_weight kind, int64_t in, int64_t out) {
    (void)in, (void)out;
    const float std = 0.02F, residual = std / sqrtf(2.0F * (float)config->layers);
    return (mezzo_init){.kind = MEZZO_INIT_NORMAL, .a = kind == MZ_WEIGHT_RESIDUAL ? residual : std};
}

// Returns CS336's initial values: N(0, 2/(in + out)), of embeddings N(0, 1), limited to three deviations.
static mezzo_init cs336_init(const mezzo_model_config *config, mz_decoder_weight kind, int64_t in, int64_t out) {
    (void)config;
    return (mezzo_init){.kind = MEZZO_INIT_TRUNCATED,
                        .a = kind == MZ_WEIGHT_EMBEDDING ? 1 : (float)sqrt(2.0 / (double)(in + out))};
}

enum { ALWAYS = 1 };
#define KEY(key)          offsetof(mezzo_model_config, key)
#define FAMILY(name, ...) {#name, __VA_ARGS__},
static const mz_decoder families[] = {
#include "models/families.def"
};

const mz_decoder *mz_decoder_find(const char *name) {
    return MZ_FIND(families, MZ_COUNT(families), name, name);
}

const mz_decoder_names *mz_decoder_names_of(const mz_decoder *family) {
    return family->names != NULL ? family->names : &hf_names;
}

static bool has(const mezzo_model_config *config, mz_decoder_flag flag) {
    return flag == ALWAYS || (flag > ALWAYS && *(const bool *)((const char *)config + flag));
}

bool mz_decoder_slides(const mezzo_model_config *config, int64_t index) {
    return config->window > 0 && index >= config->window_from &&
           (config->full_every <= 0 || (index + 1) % config->full_every != 0);
}

mezzo_model_config mz_decoder_resolve(const mz_decoder *family, const mezzo_model_config *config) {
    mezzo_model_config c = *config;
    const bool sigmoid = family->router == MZ_ROUTER_SIGMOID;
    c.kv_heads = family->ungrouped || c.kv_heads <= 0 ? c.heads : c.kv_heads;
    c.head_dim = family->ungrouped || c.head_dim <= 0 ? c.d_model / c.heads : c.head_dim;
    c.d_ff = c.d_ff > 0 ? c.d_ff : 4 * c.d_model;
    c.d_expert = c.d_expert > 0 ? c.d_expert : c.d_model;
    c.window = family->windows && c.window > 0 ? c.window : 0;
    c.window_from = family->windows_from && c.window_from > 0 ? c.window_from : 0;
    c.full_every = family->full_every > 0 && c.full_every > 0 ? c.full_every : 0;
    c.rotary = family->partial ? c.rotary : 1;
    c.dropout = family->has_dropout ? c.dropout : 0;
    c.dense_layers = family->router == MZ_ROUTER_NONE ? c.layers : sigmoid ? c.dense_layers : 0;
    c.shared_experts = sigmoid ? c.shared_experts : 0;
    c.expert_groups = sigmoid ? c.expert_groups : 1;
    c.expert_groups_used = sigmoid ? c.expert_groups_used : 1;
    c.routed_scale = sigmoid ? c.routed_scale : 1;
    if (family->tied != MZ_TIED_BY_KEY)
        c.tie_head = family->tied == MZ_TIED_ALWAYS ? MZ_HEAD_TIED : MZ_HEAD_OWN;
    if (family->tied != MZ_TIED_BY_KEY || c.rope_scaling == 0) // these families lack the keys
        c.rope_scaling = MZ_ROPE_NONE;
    return c;
}

int64_t mz_model_mixtures(const mz_model *model, int64_t *first) {
    const mz_decoder *family = mz_decoder_find(model->maker->name);
    if (family == NULL)
        return 0;
    *first = mz_decoder_resolve(family, &model->config).dense_layers;
    return model->config.layers - *first;
}

double mz_decoder_long_attention(const mezzo_model_config *c) {
    if (c->rope_attention > 0)
        return c->rope_attention;
    return c->rope_factor > 1 ? sqrt(1 + log(c->rope_factor) / log((double)c->rope_original)) : 1;
}

// --- checks --------------------------------------------------------------------------------------------------------
static int rotary_dims(const mezzo_model_config *c) {
    return (int)((double)c->head_dim * c->rotary);
}

static mezzo_status check_heads(const mz_decoder *family, const mezzo_model_config *config) {
    const mezzo_model_config c = mz_decoder_resolve(family, config);
    if (config->kv_heads < 0 || c.kv_heads > c.heads || c.heads % c.kv_heads != 0)
        return mz_fail(
            MEZZO_ERR_INVALID,
            "model.kv_heads (%lld) does not divide model.heads (%lld): give a divisor of the heads (--kv-heads; "
            "without it, it is the size's own), or 0 for as many as the heads",
            (long long)config->kv_heads, (long long)config->heads);
    if (!family->ungrouped && (config->head_dim < 0 || config->head_dim > 65536))
        return mz_fail(MEZZO_ERR_INVALID, "model.head_dim is %lld: it must be from 0 to 65536",
                       (long long)config->head_dim);
    if ((family->ungrouped || config->head_dim == 0) && config->d_model % config->heads != 0)
        return mz_fail(MEZZO_ERR_INVALID,
                       "model.heads (%lld) does not divide model.d_model (%lld): %schoose a width that is a multiple "
                       "of the heads",
                       (long long)config->heads, (long long)config->d_model,
                       family->ungrouped ? "" : "give model.head_dim, or ");
    return MEZZO_OK;
}

static mezzo_status check_long(const mezzo_model_config *c, int frequencies) {
    const mz_model_key *key = mz_model_keys;
    for (size_t i = 0; i < mz_model_key_count; i++, key++) {
        const mezzo_list list = mz_model_key_list(key, c);
        if (key->type == MZ_KEY_LIST && mz_list_count(&list) != frequencies)
            return mz_fail(MEZZO_ERR_INVALID, "%s has %d numbers, and positions turn %d pairs: give one for each pair",
                           key->path, mz_list_count(&list), frequencies);
    }
    return c->rope_original > 1 ? MEZZO_OK
                                : mz_fail(MEZZO_ERR_INVALID, "model.rope_original is %lld: longrope needs 2 or more",
                                          (long long)c->rope_original);
}

static mezzo_status check_rotary(const mz_decoder *family, const mezzo_model_config *config) {
    if (!(config->rope_theta > 0 && config->rope_theta < 1e30))
        return mz_fail(MEZZO_ERR_INVALID, "model.rope_theta is %g: it must be positive", config->rope_theta);
    if (family->local_rope && !(config->rope_local > 0 && config->rope_local < 1e30))
        return mz_fail(MEZZO_ERR_INVALID, "model.rope_local is %g: it must be positive", config->rope_local);
    const mezzo_model_config c = mz_decoder_resolve(family, config);
    const int dims = c.rotary > 0 && c.rotary <= 1 ? rotary_dims(&c) : 0;
    if (c.rope_scaling == MZ_ROPE_LONG)
        MEZZO_TRY(check_long(&c, dims / 2));
    if (dims >= 2 && dims % 2 == 0)
        return MEZZO_OK;
    if (family->partial)
        return mz_fail(MEZZO_ERR_INVALID,
                       "model.rotary is %g of a head's %lld dimensions: it must make an even number of them turn",
                       config->rotary, (long long)c.head_dim);
    return mz_fail(MEZZO_ERR_INVALID,
                   "model.heads (%lld) makes heads of %lld dimensions: their width must be even, as positions turn "
                   "pairs",
                   (long long)config->heads, (long long)c.head_dim);
}

static mezzo_status check_experts(const mezzo_model_config *config) {
    const mz_key_range ranges[] = {
        {"dense_layers", config->dense_layers, 0, config->layers},
        {"experts", config->experts, 1, 65536},
        {"experts_per_token", config->experts_per_token, 1, config->experts},
        {"shared_experts", config->shared_experts, 0, 65536},
        {"d_expert", config->d_expert, 0, INT64_C(1) << 24},
        {"expert_groups", config->expert_groups, 1, config->experts},
        {"expert_groups_used", config->expert_groups_used, 1, config->expert_groups},
    };
    MEZZO_TRY(mz_key_ranges_check(ranges, MZ_COUNT(ranges)));
    int64_t groups = config->expert_groups;
    if (config->experts % groups != 0 || (groups > 1 && config->experts / groups < 2))
        return mz_fail(MEZZO_ERR_INVALID,
                       "model.expert_groups (%lld) does not divide model.experts (%lld) into groups of two or more",
                       (long long)groups, (long long)config->experts);
    if (config->experts_per_token > config->experts / groups * config->expert_groups_used)
        return mz_fail(MEZZO_ERR_INVALID,
                       "model.experts_per_token is %lld, but the groups in use have %lld experts: use more groups",
                       (long long)config->experts_per_token,
                       (long long)(config->experts / groups * config->expert_groups_used));
    if (!(config->routed_scale > 0 && config->routed_scale < 1e30))
        return mz_fail(MEZZO_ERR_INVALID, "model.routed_scale is %g: it must be positive", config->routed_scale);
    return MEZZO_OK;
}

mezzo_status mz_decoder_check(const mezzo_model_config *config) {
    const mz_decoder *family = mz_decoder_find(config->name);
    MEZZO_TRY(check_heads(family, config));
    if (family->positions == MZ_POSITIONS_ROTARY)
        MEZZO_TRY(check_rotary(family, config));
    if (family->fixed_eps == 0 && !(config->norm_eps >= 0 && config->norm_eps < 1))
        return mz_fail(MEZZO_ERR_INVALID, "model.norm_eps is %g: it must be at least 0 and below 1", config->norm_eps);
    if (family->router != MZ_ROUTER_NONE) {
        const mezzo_model_config c = mz_decoder_resolve(family, config);
        MEZZO_TRY(check_experts(&c));
    }
    if (config->dropout > 0 && !family->has_dropout)
        return mz_fail(MEZZO_ERR_INVALID, "model.dropout is %g, but %s has none: leave it out", config->dropout,
                       config->name);
    return MEZZO_OK;
}

// --- layers --------------------------------------------------------------------------------------------------------
// Holds the values that a build needs everywhere.
typedef struct decoder {
    mezzo_graph *g;
    const mz_decoder *family;
    const mz_decoder_names *names;
    mezzo_model_config config; // with sizes resolved
    mezzo_rope_scaling scaling;
    mezzo_value table, local; // table: rotary positions [T, R]; local: those of blocks with the window
} decoder;

static mezzo_init start(const decoder *d, mz_decoder_weight kind, int64_t in, int64_t out) {
    return (d->family->init != NULL ? d->family->init : hf_init)(&d->config, kind, in, out);
}

// Applies dropout. Without dropout no op is added.
static mezzo_value drop(const decoder *d, mezzo_value x) {
    return d->config.dropout > 0 ? mezzo_dropout(d->g, x, (float)d->config.dropout) : x;
}

// Builds a norm: x [… C] → [… C].
static mezzo_value norm(const decoder *d, const char *name, mezzo_value x) {
    const float eps = d->family->fixed_eps > 0 ? d->family->fixed_eps : (float)d->config.norm_eps;
    if (d->family->norm == MZ_NORM_LAYER)
        return mz_layer_layernorm(d->g, name, x, eps, has(&d->config, d->family->norm_bias));
    return mz_layer_rmsnorm(d->g, name, x, d->family->norm_offset, eps);
}

// Normalizes x [B, T, heads·D] over each head or over all heads.
static mezzo_value norm_heads(const decoder *d, const char *name, mezzo_value x) {
    mezzo_graph *g = d->g;
    const int64_t batch = mezzo_value_dim(g, x, 0), length = mezzo_value_dim(g, x, 1), width = mezzo_value_dim(g, x, 2);
    if (d->family->whole_norms)
        return norm(d, name, x);
    x = mezzo_reshape(g, x, 4, (int64_t[]){batch, length, -1, d->config.head_dim}); // [B, T, heads, D]
    x = norm(d, name, x);
    return mezzo_reshape(g, x, 3, (int64_t[]){batch, length, width});
}

static mezzo_value rotate(const decoder *d, mezzo_value x, mezzo_value table, int64_t heads, int64_t rotated) {
    return mezzo_rope(d->g, x, table, (int)heads, (int)rotated, d->family->interleaved);
}

// Builds attention: qkv [B, T, (H + 2·Hkv)·D] → [B, T, H·D]. Where no op lies between the product and attention, q, k
// and v stay in one tensor. table MEZZO_NONE: heads are not rotated.
static mezzo_value attend(const decoder *d, mezzo_value qkv, mezzo_value table, int64_t window) {
    mezzo_graph *g = d->g;
    const mezzo_attention_form form = {.heads = (int)d->config.heads,
                                       .kv_heads = (int)d->config.kv_heads,
                                       .window = window,
                                       .scale =
                                           d->config.query_scalar > 0 ? 1 / sqrtf((float)d->config.query_scalar) : 0,
                                       .score_cap = (float)fmax(d->config.score_cap, 0),
                                       .dropout = (float)d->config.dropout};
    const int64_t heads = d->config.heads, kv = d->config.kv_heads, size = d->config.head_dim;
    const int64_t sizes[] = {heads * size, kv * size, kv * size};
    const bool rotary = table.id >= 0, norms = d->family->whole_norms || has(&d->config, d->family->head_norms);
    mezzo_value parts[3];
    if (!norms && rotary) {
        mezzo_module_begin(g, "rope");
        qkv = rotate(d, qkv, table, heads + 2 * kv, heads + kv); // the heads of v are not rotated
        mezzo_module_end(g);
    }
    if (!norms && kv == heads)
        return mezzo_attention_of(g, qkv, MEZZO_NONE, MEZZO_NONE, &form);
    if (mezzo_split_sizes(g, qkv, 2, 3, sizes, parts) != MEZZO_OK)
        return MEZZO_NONE;
    if (norms) {
        parts[0] = norm_heads(d, "q_norm", parts[0]);
        parts[1] = norm_heads(d, "k_norm", parts[1]);
    }
    if (norms && rotary) {
        mezzo_module_begin(g, "rope");
        parts[0] = rotate(d, parts[0], table, heads, heads);
        parts[1] = rotate(d, parts[1], table, kv, kv);
        mezzo_module_end(g);
    }
    return mezzo_attention_of(g, parts[0], parts[1], parts[2], &form);
}

static mezzo_value attention(const decoder *d, mezzo_value x, mezzo_value table, int64_t window) {
    const mezzo_model_config *c = &d->config;
    const mz_decoder_names *names = d->names;
    const int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    const mezzo_part parts[] = {{names->q, q}, {names->k, kv}, {names->v, kv}};
    mezzo_module_begin(d->g, names->attention);
    mezzo_value qkv = mz_layer_linear_parts(d->g, names->qkv, x, 3, parts, start(d, MZ_WEIGHT_PLAIN, c->d_model, q),
                                            has(c, d->family->qkv_bias)); // [B, T, (H + 2·Hkv)·D]
    mezzo_value y = attend(d, qkv, table, window);                        // [B, T, H·D]
    y = mz_layer_linear(d->g, names->out, y, c->d_model, start(d, MZ_WEIGHT_RESIDUAL, q, c->d_model),
                        has(c, d->family->out_bias)); // [B, T, C]
    mezzo_module_end(d->g);
    return y;
}

static mezzo_value activate(const decoder *d, mezzo_value x) {
    switch (d->family->act) {
    case MZ_DECODER_SILU:
        return mezzo_silu(d->g, x);
    case MZ_DECODER_RELU2:
        x = mezzo_relu(d->g, x);
        return mezzo_mul(d->g, x, x);
    default:
        return mezzo_gelu(d->g, x, d->family->act == MZ_DECODER_GELU_TANH);
    }
}

// Builds act(gate)·up of [… 2F], the gate's half first → [… F]; without a gate act(x).
static mezzo_value gated(const decoder *d, mezzo_value x, bool gate) {
    mezzo_module_begin(d->g, "act");
    if (!gate)
        x = activate(d, x);
    else if (d->family->act == MZ_DECODER_SILU)
        x = mezzo_swiglu(d->g, x);
    else
        x = mezzo_geglu(d->g, x, d->family->act == MZ_DECODER_GELU_TANH);
    mezzo_module_end(d->g);
    return x;
}

// Builds an MLP: x [B, T, C] → [B, T, C] through a hidden width of f.
static mezzo_value mlp(const decoder *d, const char *name, mezzo_value x, int64_t f) {
    const mz_decoder_names *names = d->names;
    const int64_t c = d->config.d_model;
    const bool gate = !d->family->plain_mlp, bias = has(&d->config, d->family->mlp_bias);
    const mezzo_part parts[] = {{names->gate_part, f}, {names->up_part, f}};
    mezzo_module_begin(d->g, name);
    mezzo_value h =
        mz_layer_linear_parts(d->g, names->up, x, gate ? 2 : 1, parts, start(d, MZ_WEIGHT_PLAIN, c, f), bias);
    h = gated(d, h, gate);                                                                  // [B, T, F]
    h = mz_layer_linear(d->g, names->down, h, c, start(d, MZ_WEIGHT_RESIDUAL, f, c), bias); // [B, T, C]
    mezzo_module_end(d->g);
    return h;
}

// --- experts -------------------------------------------------------------------------------------------------------
// Builds the router. Logits, scores and choice are FP32 in every precision, because a rounded score may choose another
// expert.
static mezzo_status route(const decoder *d, mezzo_value x, mezzo_value *weights, mezzo_value *chosen) {
    mezzo_graph *g = d->g;
    const mezzo_model_config *c = &d->config;
    const mezzo_init zero = {.kind = MEZZO_INIT_ZERO};
    const mezzo_routing routing = {.top_k = (int)c->experts_per_token,
                                   .groups = (int)c->expert_groups,
                                   .top_groups = (int)c->expert_groups_used,
                                   .normalise = c->normalise_weights,
                                   .scale = (float)c->routed_scale,
                                   .softmax = d->family->router == MZ_ROUTER_SOFTMAX};
    mezzo_autocast_begin(g, MEZZO_PRECISION_FP32);
    mezzo_module_begin(g, "gate");
    mezzo_value w = mezzo_param(g, "weight", start(d, MZ_WEIGHT_PLAIN, c->d_model, c->experts), 2,
                                (int64_t[]){c->experts, c->d_model}); // [E, C]
    mezzo_value bias =
        routing.softmax ? MEZZO_NONE : mezzo_param(g, "e_score_correction_bias", zero, 1, &c->experts); // [E]
    mezzo_value logits = mezzo_linear(g, x, w, MEZZO_NONE);                                             // [B, T, E]
    mezzo_status status = mezzo_route(g, logits, bias, &routing, weights, chosen);                      // [M, k] each
    mezzo_module_end(g);
    mezzo_autocast_end(g);
    return status;
}

// Builds experts: x [B, T, C] → [B, T, C]. *offsets I32 [E + 1]: where each expert's rows begin.
static mezzo_value experts(const decoder *d, mezzo_value x, mezzo_value *offsets) {
    mezzo_graph *g = d->g;
    const int64_t e = d->config.experts, c = d->config.d_model, f = d->config.d_expert;
    const int k = (int)d->config.experts_per_token;
    mezzo_value weights, chosen, order, place;
    if (route(d, x, &weights, &chosen) != MEZZO_OK)
        return MEZZO_NONE;
    mezzo_module_begin(g, "experts");
    mezzo_expert_order(g, chosen, (int)e, &order, &place, offsets); // [M·k], [M·k], [E + 1]
    mezzo_value up =
        mezzo_param(g, "gate_up_proj", start(d, MZ_WEIGHT_PLAIN, c, f), 3, (int64_t[]){e, 2 * f, c}); // [E, 2F, C]
    mezzo_value down =
        mezzo_param(g, "down_proj", start(d, MZ_WEIGHT_RESIDUAL, f, c), 3, (int64_t[]){e, c, f}); // [E, C, F]
    mezzo_value h = mezzo_dispatch(g, x, order, place, k);                                        // [M·k, C]
    h = mezzo_grouped_linear(g, h, up, *offsets);                                                 // [M·k, 2F]
    h = gated(d, h, true);                                                                        // [M·k, F]
    h = mezzo_grouped_linear(g, h, down, *offsets);                                               // [M·k, C]
    h = mezzo_combine(g, h, order, place, weights, k);                                            // [M, C]
    mezzo_module_end(g);
    return mezzo_reshape(g, h, 3, (int64_t[]){mezzo_value_dim(g, x, 0), mezzo_value_dim(g, x, 1), c});
}

static mezzo_value mixture(const decoder *d, mezzo_value x, mezzo_value *offsets) {
    const mezzo_model_config *c = &d->config;
    mezzo_module_begin(d->g, d->names->mlp);
    mezzo_value y = experts(d, x, offsets);
    if (c->shared_experts > 0)
        y = mezzo_add(d->g, y, mlp(d, "shared_experts", x, c->shared_experts * c->d_expert));
    mezzo_module_end(d->g);
    return y;
}

// --- the model -----------------------------------------------------------------------------------------------------
// Builds a branch of a block, from its norm to its norm: x [B, T, C] → what the residual stream adds. *offsets: NULL
// for attention.
static mezzo_value branch(const decoder *d, int64_t index, mezzo_value x, mezzo_value *offsets) {
    const mezzo_model_config *c = &d->config;
    const mz_decoder_names *names = d->names;
    const bool slides = mz_decoder_slides(c, index),
               rotary = c->no_rope_every == 0 || (index + 1) % c->no_rope_every != 0;
    const int64_t window = slides && c->window < c->seq_len ? c->window : 0; // kernels without one are faster
    if (d->family->place != MZ_NORM_POST)
        x = norm(d, offsets == NULL ? names->before_attention : names->before_mlp, x);
    if (offsets == NULL)
        x = attention(d, x, !rotary ? MEZZO_NONE : slides ? d->local : d->table, window);
    else
        x = index < c->dense_layers ? mlp(d, names->mlp, x, c->d_ff) : mixture(d, x, offsets);
    if (d->family->place != MZ_NORM_PRE)
        x = norm(d, offsets == NULL ? names->after_attention : names->after_mlp, x);
    return drop(d, x);
}

// Builds a block: x [B, T, C] → [B, T, C]. It is one recompute segment, of which backward needs only the input.
// *offsets as in experts(), MEZZO_NONE in a dense block.
static mezzo_value block(const decoder *d, int64_t index, mezzo_value x, mezzo_value *offsets) {
    char name[32];
    snprintf(name, sizeof name, "%s.%lld", d->names->block, (long long)index);
    *offsets = MEZZO_NONE;

    mezzo_recompute_begin(d->g);
    mezzo_module_begin(d->g, name);
    const mezzo_value before = x;
    x = mezzo_add(d->g, x, branch(d, index, x, NULL));                                                    // [B, T, C]
    x = mezzo_add(d->g, x, branch(d, index, has(&d->config, d->family->parallel) ? before : x, offsets)); // [B, T, C]
    mezzo_module_end(d->g);
    mezzo_recompute_end(d->g);
    return x;
}

// Joins n values, any number of them, into one, which becomes all[0].
static void join(mezzo_graph *g, mezzo_value *all, int64_t n, int axis) {
    enum { AT_ONCE = 16 };
    while (n > 1) {
        int64_t made = 0;
        for (int64_t i = 0; i < n; i += AT_ONCE)
            all[made++] = mezzo_concat(g, all + i, (int)(n - i < AT_ONCE ? n - i : AT_ONCE), axis);
        n = made;
    }
}

// Keeps all layers' offsets in one output.
static mezzo_status keep_offsets(mezzo_graph *g, mezzo_value *all, int64_t n) {
    join(g, all, n, 0);
    return n > 0 ? mezzo_graph_output(g, "experts", all[0]) : MEZZO_OK;
}

// Builds LongRoPE's table [T, R]: frequency i is 1/(factor[i]·theta^(2i/R)), each in a table of two columns.
static mezzo_value long_table(const decoder *d, int64_t length, bool is_long) {
    const mezzo_model_config *c = &d->config;
    const int dims = rotary_dims(c), half = dims / 2;
    const mezzo_list *factors = is_long ? &c->rope_long : &c->rope_short;
    mezzo_value tables[MEZZO_LIST], x;
    for (int i = 0; i < half; i++) {
        const float power = (float)pow((double)(float)c->rope_theta, (double)((float)(2 * i) / (float)dims));
        const mezzo_rope_scaling one = {.kind = MEZZO_ROPE_LINEAR,
                                        .factor = (double)(factors->at[i] * power),
                                        .attention = mz_decoder_long_attention(c)};
        tables[i] = mezzo_rope_table_scaled(d->g, MEZZO_NONE, length, 2, 1, &one); // [T, 2]
    }
    join(d->g, tables, half, 1);
    const int64_t rows = mezzo_value_dim(d->g, tables[0], 0);          // T, or B·T with documents
    x = mezzo_reshape(d->g, tables[0], 3, (int64_t[]){rows, half, 2}); // [T, R/2, 2]
    x = mezzo_permute(d->g, x, (int[]){0, 2, 1});                      // [T, 2, R/2]
    return mezzo_reshape(d->g, x, 2, (int64_t[]){rows, dims});         // [T, R]
}

// Builds the embedding: tokens [B, T] → [B, T, C]. *table gets the embedding's weight [V, C]. *d gets the rotary
// positions.
static mezzo_value embed(decoder *d, mezzo_value tokens, const mz_form *form, mezzo_value *table) {
    mezzo_graph *g = d->g;
    const mezzo_model_config *c = &d->config;
    const mezzo_init init = start(d, MZ_WEIGHT_EMBEDDING, c->vocab, c->d_model);
    const int64_t length = form->length, row = form->part == MZ_PART_CACHED ? c->seq_len : length;
    const bool is_long = (form->reach > 0 ? form->reach : row) > c->rope_original;
    mezzo_value x = mz_layer_embedding(g, d->names->embedding, tokens, c->vocab, c->d_model, init, table);
    if (d->family->positions == MZ_POSITIONS_LEARNED) {
        mezzo_value positions = mz_layer_embedding(g, d->names->positions, mezzo_positions(g, length), c->seq_len,
                                                   c->d_model, init, NULL); // [T, C]
        return drop(d, mezzo_add(g, x, positions));
    }
    if (d->family->scaled_embedding)
        x = mezzo_scale(g, x, sqrtf((float)c->d_model));
    mezzo_module_begin(g, "rope");
    d->table = c->rope_scaling == MZ_ROPE_LONG
                   ? long_table(d, length, is_long)
                   : mezzo_rope_table_scaled(g, MEZZO_NONE, length, rotary_dims(c), (float)c->rope_theta,
                                             &d->scaling); // [T, R]
    d->local = d->family->local_rope
                   ? mezzo_rope_table(g, MEZZO_NONE, length, rotary_dims(c), (float)c->rope_local) // [T, R]
                   : d->table;
    mezzo_module_end(g);
    return x;
}

// Builds the head: x [B, T, C] → logits [B, T, V].
static mezzo_value head(const decoder *d, mezzo_value x, mezzo_value table) {
    const mezzo_model_config *c = &d->config;
    if (c->tie_head != MZ_HEAD_TIED)
        return mz_layer_linear(d->g, d->names->head, x, c->vocab, start(d, MZ_WEIGHT_PLAIN, c->d_model, c->vocab),
                               false);
    mezzo_module_begin(d->g, d->names->head);
    mezzo_value logits = mezzo_linear(d->g, x, table, MEZZO_NONE);
    mezzo_module_end(d->g);
    return logits;
}

static mezzo_status build(decoder *d, const mz_form *form, const mezzo_value *inputs, mezzo_value *offsets) {
    const mezzo_value tokens = inputs[0], targets = inputs[1]; // [B, T]
    mezzo_value table;
    int64_t mixtures = 0;
    mezzo_value x = embed(d, tokens, form, &table); // [B, T, C]
    for (int64_t i = 0; i < d->config.layers; i++) {
        x = block(d, i, x, &offsets[mixtures]);
        mixtures += offsets[mixtures].id >= 0;
    }
    MEZZO_TRY(keep_offsets(d->g, offsets, mixtures)); // before the loss, so that the loss and its gradient are
                                                      // neighbours
    x = norm(d, d->names->final, x);                  // [B, T, C]
    return mz_layer_loss(d->g, head(d, x, table), targets, (float)fmax(d->config.logit_cap, 0), form->outputs);
}

static mezzo_rope_kind rope_kind(const mezzo_model_config *c) {
    static const mezzo_rope_kind kinds[] = {
        [MZ_ROPE_LINEAR] = MEZZO_ROPE_LINEAR, [MZ_ROPE_LLAMA3] = MEZZO_ROPE_LLAMA3, [MZ_ROPE_YARN] = MEZZO_ROPE_YARN};
    return c->rope_scaling >= 0 && c->rope_scaling < (int64_t)MZ_COUNT(kinds) ? kinds[c->rope_scaling]
                                                                              : MEZZO_ROPE_PLAIN;
}

mezzo_status mz_decoder_build(const mz_model *model, const mz_form *form, const mezzo_value *inputs, mezzo_graph *g) {
    const mz_decoder *family = mz_decoder_find(model->config.name);
    decoder d = {.g = g,
                 .family = family,
                 .names = mz_decoder_names_of(family),
                 .table = MEZZO_NONE,
                 .local = MEZZO_NONE,
                 .config = mz_decoder_resolve(family, &model->config)};
    const mezzo_rope_kind kind = rope_kind(&d.config);
    d.scaling = (mezzo_rope_scaling){.kind = kind,
                                     .factor = d.config.rope_factor,
                                     .low = d.config.rope_low,
                                     .high = d.config.rope_high,
                                     .original = (double)d.config.rope_original,
                                     .attention = kind == MEZZO_ROPE_YARN ? d.config.rope_attention : 0};
    MZ_SCOPED(mz_free_at) mezzo_value *offsets = NULL;
    MEZZO_TRY(MZ_NEW(offsets, d.config.layers));
    return build(&d, form, inputs, offsets);
}
