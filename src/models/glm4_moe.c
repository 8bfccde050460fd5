// glm4_moe: GLM-4.5's mixture of experts (arXiv:2508.06471), as Hugging Face's Glm4MoeForCausalLM computes it:
// grouped-query attention, rotary positions on a part of each head (halves), optional norms of q and k, SwiGLU, and
// from block `dense_layers` on a sigmoid router with a correction bias over routed and shared experts. Parameters carry
// Hugging Face's names without "model."; q, k and v are one matrix, and so are gate and up, in this order of rows.
#include <math.h>

#include "base/base.h"
#include "models/model.h"
#include "nn/layers.h"

static const mezzo_init INIT = {.kind = MEZZO_INIT_NORMAL, .a = 0.02F}; // initializer_range

static const mz_swiglu_names swiglu = {"gate_up_proj", "down_proj", {"gate_proj", "up_proj"}};

static int64_t kv_heads(const mezzo_model_config *config) {
    return config->kv_heads > 0 ? config->kv_heads : config->heads;
}
static int64_t head_dim(const mezzo_model_config *config) {
    return config->head_dim > 0 ? config->head_dim : config->d_model / config->heads;
}
static int64_t d_expert(const mezzo_model_config *config) {
    return config->d_expert > 0 ? config->d_expert : config->d_model;
}
static int rotary_dims(const mezzo_model_config *config) {
    return (int)((double)head_dim(config) * config->rotary);
}

static mezzo_status check_attention(const mezzo_model_config *config) {
    if (config->kv_heads < 0 || config->kv_heads > config->heads || config->heads % kv_heads(config) != 0)
        return mz_fail(MEZZO_ERR_INVALID, "model.kv_heads (%lld) does not divide model.heads (%lld)",
                       (long long)config->kv_heads, (long long)config->heads);
    if (config->head_dim < 0 || config->head_dim > 65536)
        return mz_fail(MEZZO_ERR_INVALID, "model.head_dim is %lld: it must be from 0 to 65536",
                       (long long)config->head_dim);
    if (config->head_dim == 0 && config->d_model % config->heads != 0)
        return mz_fail(
            MEZZO_ERR_INVALID,
            "model.heads (%lld) does not divide model.d_model (%lld): give model.head_dim, or choose a width "
            "that is a multiple of the heads",
            (long long)config->heads, (long long)config->d_model);
    int dims = config->rotary > 0 && config->rotary <= 1 ? rotary_dims(config) : 0;
    if (dims < 2 || dims % 2 != 0)
        return mz_fail(MEZZO_ERR_INVALID,
                       "model.rotary is %g of a head's %lld dimensions: it must make an even number of them turn",
                       config->rotary, (long long)head_dim(config));
    return MEZZO_OK;
}

static mezzo_status check_experts(const mezzo_model_config *config) {
    const struct {
        const char *key;
        int64_t value, least, most;
    } ranges[] = {
        {"dense_layers", config->dense_layers, 0, config->layers},
        {"experts", config->experts, 1, 65536},
        {"experts_per_token", config->experts_per_token, 1, config->experts},
        {"shared_experts", config->shared_experts, 0, 65536},
        {"d_expert", config->d_expert, 0, INT64_C(1) << 24},
        {"expert_groups", config->expert_groups, 1, config->experts},
        {"expert_groups_used", config->expert_groups_used, 1, config->expert_groups},
    };
    for (size_t i = 0; i < MZ_COUNT(ranges); i++)
        if (ranges[i].value < ranges[i].least || ranges[i].value > ranges[i].most)
            return mz_fail(MEZZO_ERR_INVALID, "model.%s is %lld: it must be from %lld to %lld", ranges[i].key,
                           (long long)ranges[i].value, (long long)ranges[i].least, (long long)ranges[i].most);
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

static mezzo_status check(const mezzo_model_config *config) {
    MEZZO_TRY(check_attention(config));
    MEZZO_TRY(check_experts(config));
    if (config->dropout > 0)
        return mz_fail(MEZZO_ERR_INVALID, "model.dropout is %g, but glm4_moe has none: leave it out", config->dropout);
    return MEZZO_OK;
}

// --- attention -----------------------------------------------------------------------------------
// An RMS norm over every head's own dimensions: x [B, T, heads·D].
static mezzo_value head_norm(mezzo_graph *g, const mezzo_model_config *config, const char *name, mezzo_value x) {
    const int64_t batch = mezzo_value_dim(g, x, 0), length = mezzo_value_dim(g, x, 1), width = mezzo_value_dim(g, x, 2);
    x = mezzo_reshape(g, x, 4, (int64_t[]){batch, length, -1, head_dim(config)}); // [B, T, heads, D]
    x = mz_layer_rmsnorm(g, name, x, (float)config->norm_eps);
    return mezzo_reshape(g, x, 3, (int64_t[]){batch, length, width});
}

// Where nothing stands between the product and attention, q, k and v stay in one tensor.
static mezzo_value attend(mezzo_graph *g, const mezzo_model_config *config, mezzo_value qkv, mezzo_value table) {
    const int heads = (int)config->heads, kv = (int)kv_heads(config);
    const int64_t size = head_dim(config), sizes[] = {heads * size, kv * size, kv * size};
    mezzo_value parts[3];
    if (!config->qk_norm) {
        mezzo_module_begin(g, "rope");
        qkv = mezzo_rope(g, qkv, table, heads + 2 * kv, heads + kv, false);
        mezzo_module_end(g);
        if (kv == heads)
            return mezzo_attention_qkv(g, qkv, heads, 0);
    }
    if (mezzo_split_sizes(g, qkv, 2, 3, sizes, parts) != MEZZO_OK)
        return MEZZO_NONE;
    if (config->qk_norm) {
        parts[0] = head_norm(g, config, "q_norm", parts[0]);
        parts[1] = head_norm(g, config, "k_norm", parts[1]);
        mezzo_module_begin(g, "rope");
        parts[0] = mezzo_rope(g, parts[0], table, heads, heads, false);
        parts[1] = mezzo_rope(g, parts[1], table, kv, kv, false);
        mezzo_module_end(g);
    }
    return mezzo_attention(g, parts[0], parts[1], parts[2], heads, kv, 0);
}

static mezzo_value attention(mezzo_graph *g, const mezzo_model_config *config, mezzo_value x, mezzo_value table) {
    const int64_t q = config->heads * head_dim(config), kv = kv_heads(config) * head_dim(config);
    const mezzo_part parts[] = {{"q_proj", q}, {"k_proj", kv}, {"v_proj", kv}};
    mezzo_module_begin(g, "self_attn");
    mezzo_value qkv =
        mz_layer_linear_parts(g, "qkv_proj", x, 3, parts, INIT, config->attention_bias); // [B, T, (H + 2·Hkv)·D]
    mezzo_value y = attend(g, config, qkv, table);                                       // [B, T, H·D]
    y = mz_layer_linear(g, "o_proj", y, config->d_model, INIT, false);                   // [B, T, C]
    mezzo_module_end(g);
    return y;
}

// --- experts -------------------------------------------------------------------------------------
// Logits, scores and choice are FP32 whatever the precision: a rounded score chooses another expert.
static mezzo_status route(mezzo_graph *g, const mezzo_model_config *config, mezzo_value x, mezzo_value *weights,
                          mezzo_value *chosen) {
    const mezzo_init zero = {.kind = MEZZO_INIT_ZERO};
    const mezzo_routing routing = {.top_k = (int)config->experts_per_token,
                                   .groups = (int)config->expert_groups,
                                   .top_groups = (int)config->expert_groups_used,
                                   .normalise = config->normalise_weights,
                                   .scale = (float)config->routed_scale};
    mezzo_autocast_begin(g, MEZZO_PRECISION_FP32);
    mezzo_module_begin(g, "gate");
    mezzo_value w = mezzo_param(g, "weight", INIT, 2, (int64_t[]){config->experts, config->d_model}); // [E, C]
    mezzo_value bias = mezzo_param(g, "e_score_correction_bias", zero, 1, &config->experts);          // [E]
    mezzo_value logits = mezzo_linear(g, x, w, MEZZO_NONE);                                           // [B, T, E]
    mezzo_status status = mezzo_route(g, logits, bias, &routing, weights, chosen);                    // [M, k] each
    mezzo_module_end(g);
    mezzo_autocast_end(g);
    return status;
}

// x [B, T, C] → [B, T, C]. *offsets I32 [E + 1]: where each expert's rows begin.
static mezzo_value experts(mezzo_graph *g, const mezzo_model_config *config, mezzo_value x, mezzo_value *offsets) {
    const int64_t e = config->experts, c = config->d_model, f = d_expert(config);
    const int k = (int)config->experts_per_token;
    mezzo_value weights, chosen, order, place;
    if (route(g, config, x, &weights, &chosen) != MEZZO_OK)
        return MEZZO_NONE;
    mezzo_module_begin(g, "experts");
    mezzo_expert_order(g, chosen, (int)e, &order, &place, offsets);                     // [M·k], [M·k], [E + 1]
    mezzo_value up = mezzo_param(g, "gate_up_proj", INIT, 3, (int64_t[]){e, 2 * f, c}); // [E, 2F, C]
    mezzo_value down = mezzo_param(g, "down_proj", INIT, 3, (int64_t[]){e, c, f});      // [E, C, F]
    mezzo_value h = mezzo_dispatch(g, x, order, place, k);                              // [M·k, C]
    h = mezzo_grouped_linear(g, h, up, *offsets);                                       // [M·k, 2F]
    mezzo_module_begin(g, "act");
    h = mezzo_swiglu(g, h); // [M·k, F]
    mezzo_module_end(g);
    h = mezzo_grouped_linear(g, h, down, *offsets);    // [M·k, C]
    h = mezzo_combine(g, h, order, place, weights, k); // [M, C]
    mezzo_module_end(g);
    return mezzo_reshape(g, h, 3, (int64_t[]){mezzo_value_dim(g, x, 0), mezzo_value_dim(g, x, 1), c});
}

static mezzo_value mixture(mezzo_graph *g, const mezzo_model_config *config, mezzo_value x, mezzo_value *offsets) {
    mezzo_module_begin(g, "mlp");
    mezzo_value y = experts(g, config, x, offsets);
    if (config->shared_experts > 0)
        y = mezzo_add(
            g, y,
            mz_layer_swiglu(g, "shared_experts", &swiglu, x, config->shared_experts * d_expert(config), INIT, INIT));
    mezzo_module_end(g);
    return y;
}

// --- the model -----------------------------------------------------------------------------------
// x [B, T, C] → [B, T, C]. One recompute segment. *offsets as experts(), MEZZO_NONE in a dense block.
static mezzo_value block(mezzo_graph *g, const mezzo_model_config *config, int64_t index, mezzo_value x,
                         mezzo_value table, mezzo_value *offsets) {
    const int64_t d_ff = config->d_ff > 0 ? config->d_ff : 4 * config->d_model;
    const float eps = (float)config->norm_eps;
    char name[32];
    snprintf(name, sizeof name, "layers.%lld", (long long)index);
    *offsets = MEZZO_NONE;

    mezzo_recompute_begin(g);
    mezzo_module_begin(g, name);
    mezzo_value h = mz_layer_rmsnorm(g, "input_layernorm", x, eps); // [B, T, C]
    x = mezzo_add(g, x, attention(g, config, h, table));            // [B, T, C]
    h = mz_layer_rmsnorm(g, "post_attention_layernorm", x, eps);    // [B, T, C]
    h = index < config->dense_layers ? mz_layer_swiglu(g, "mlp", &swiglu, h, d_ff, INIT, INIT)
                                     : mixture(g, config, h, offsets); // [B, T, C]
    x = mezzo_add(g, x, h);
    mezzo_module_end(g);
    mezzo_recompute_end(g);
    return x;
}

// All layers' offsets in one output, however many layers there are.
static mezzo_status keep_offsets(mezzo_graph *g, mezzo_value *all, int64_t n) {
    enum { AT_ONCE = 16 };
    while (n > 1) {
        int64_t made = 0;
        for (int64_t i = 0; i < n; i += AT_ONCE)
            all[made++] = mezzo_concat(g, all + i, (int)(n - i < AT_ONCE ? n - i : AT_ONCE), 0);
        n = made;
    }
    return n > 0 ? mezzo_graph_output(g, "experts", all[0]) : MEZZO_OK;
}

static mezzo_status build_with(const mz_model *model, const mz_form *form, const mezzo_value *inputs, mezzo_graph *g,
                               mezzo_value *offsets) {
    const mezzo_model_config *config = &model->config;
    const mezzo_value tokens = inputs[0], targets = inputs[1]; // [B, T]
    int64_t mixtures = 0;

    mezzo_value x = mz_layer_embedding_from(g, "embed_tokens", tokens, config->vocab, config->d_model, INIT,
                                            NULL); // [B, T, C]
    mezzo_module_begin(g, "rope");
    mezzo_value table =
        mezzo_rope_table(g, MEZZO_NONE, form->length, rotary_dims(config), (float)config->rope_theta); // [T, R]
    mezzo_module_end(g);
    for (int64_t i = 0; i < config->layers; i++) {
        x = block(g, config, i, x, table, &offsets[mixtures]);
        mixtures += offsets[mixtures].id >= 0;
    }
    MEZZO_TRY(keep_offsets(g, offsets, mixtures)); // before the loss, whose gradient then is its neighbour
    x = mz_layer_rmsnorm(g, "norm", x, (float)config->norm_eps);                       // [B, T, C]
    mezzo_value logits = mz_layer_linear(g, "lm_head", x, config->vocab, INIT, false); // [B, T, V]
    return mz_layer_loss(g, logits, targets, form->outputs);
}

static mezzo_status build(const mz_model *model, const mz_form *form, const mezzo_value *inputs, mezzo_graph *g) {
    mezzo_value *offsets = mz_alloc((size_t)model->config.layers, sizeof *offsets);
    if (offsets == NULL)
        return MEZZO_ERR_MEMORY;
    mezzo_status status = build_with(model, form, inputs, g, offsets);
    mz_free(offsets);
    return status;
}

const mz_maker mz_model_glm4_moe = {.name = "glm4_moe", .check = check, .inputs = mz_language_inputs, .build = build};
