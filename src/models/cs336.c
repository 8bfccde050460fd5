// cs336: the Transformer of Stanford's CS336, assignment 1: pre-norm blocks, RMSNorm, rotary positions on whole heads
// (neighbouring pairs), SwiGLU, no biases, a head of its own. Parameters carry the assignment's names; q, k and v are
// one matrix, and so are w1 and w3.
#include <math.h>

#include "base/base.h"
#include "models/model.h"
#include "nn/layers.h"

static mezzo_status check(const mezzo_model_config *config) {
    if (config->d_model % config->heads != 0 || config->d_model / config->heads % 2 != 0)
        return mz_fail(MEZZO_ERR_INVALID,
                       "model.heads (%lld) does not divide model.d_model (%lld) into heads of an even width: positions "
                       "turn pairs",
                       (long long)config->heads, (long long)config->d_model);
    if (config->dropout > 0)
        return mz_fail(MEZZO_ERR_INVALID, "model.dropout is %g, but cs336 has none: leave it out", config->dropout);
    return MEZZO_OK;
}

// The assignment's starts: N(0, 2/(in + out)), cut at three deviations.
static mezzo_init linear_init(int64_t in, int64_t out) {
    return (mezzo_init){.kind = MEZZO_INIT_TRUNCATED, .a = (float)sqrt(2.0 / (double)(in + out))};
}

static mezzo_value attention(mezzo_graph *g, const mezzo_model_config *config, mezzo_value x, mezzo_value table) {
    const int64_t width = config->d_model;
    const int heads = (int)config->heads;
    const mezzo_init init = linear_init(width, width);
    mezzo_module_begin(g, "attn");
    const mezzo_part parts[] = {{"q_proj", width}, {"k_proj", width}, {"v_proj", width}};
    mezzo_value qkv = mz_layer_linear_parts(g, "qkv_proj", x, 3, parts, init, false); // [B, T, 3C]
    mezzo_module_begin(g, "rope");
    qkv = mezzo_rope(g, qkv, table, 3 * heads, 2 * heads, true); // v's heads stay
    mezzo_module_end(g);
    mezzo_value y = mezzo_attention_qkv(g, qkv, heads, 0);        // [B, T, C]
    y = mz_layer_linear(g, "output_proj", y, width, init, false); // [B, T, C]
    mezzo_module_end(g);
    return y;
}

static const mz_swiglu_names swiglu = {"w13", "w2", {"w1", "w3"}};

// x [B, T, C] → [B, T, C]. One recompute segment.
static mezzo_value block(mezzo_graph *g, const mezzo_model_config *config, int64_t index, mezzo_value x,
                         mezzo_value table) {
    const int64_t d_ff = config->d_ff > 0 ? config->d_ff : 4 * config->d_model;
    const float eps = (float)config->norm_eps;
    const mezzo_init up = linear_init(config->d_model, d_ff);
    char name[32];
    snprintf(name, sizeof name, "layers.%lld", (long long)index);

    mezzo_recompute_begin(g);
    mezzo_module_begin(g, name);
    mezzo_value h = mz_layer_rmsnorm(g, "ln1", x, eps);      // [B, T, C]
    x = mezzo_add(g, x, attention(g, config, h, table));     // [B, T, C]
    h = mz_layer_rmsnorm(g, "ln2", x, eps);                  // [B, T, C]
    h = mz_layer_swiglu(g, "ffn", &swiglu, h, d_ff, up, up); // [B, T, C]
    x = mezzo_add(g, x, h);
    mezzo_module_end(g);
    mezzo_recompute_end(g);
    return x;
}

static mezzo_status build(const mz_model *model, const mz_form *form, const mezzo_value *inputs, mezzo_graph *g) {
    const mezzo_model_config *config = &model->config;
    const mezzo_init embedding = {.kind = MEZZO_INIT_TRUNCATED, .a = 1};
    const mezzo_value tokens = inputs[0], targets = inputs[1]; // [B, T]

    mezzo_value x = mz_layer_embedding_from(g, "token_embeddings", tokens, config->vocab, config->d_model, embedding,
                                            NULL); // [B, T, C]
    mezzo_module_begin(g, "rope");
    mezzo_value table = mezzo_rope_table(g, MEZZO_NONE, form->length, (int)(config->d_model / config->heads),
                                         (float)config->rope_theta); // [T, D]
    mezzo_module_end(g);
    for (int64_t i = 0; i < config->layers; i++)
        x = block(g, config, i, x, table);
    x = mz_layer_rmsnorm(g, "ln_final", x, (float)config->norm_eps); // [B, T, C]
    mezzo_value logits = mz_layer_linear(g, "lm_head", x, config->vocab, linear_init(config->d_model, config->vocab),
                                         false); // [B, T, V]
    return mz_layer_loss(g, logits, targets, form->outputs);
}

const mz_maker mz_model_cs336 = {.name = "cs336", .check = check, .inputs = mz_language_inputs, .build = build};
