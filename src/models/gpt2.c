// gpt2: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), any size. Pre-norm blocks,
// learned positions, a head tied to the token embedding. Parameters carry Hugging Face's names without "transformer.";
// linear weights are [outputs, inputs] (Hugging Face's Conv1D stores their transpose).
#include <math.h>

#include "base/base.h"
#include "models/model.h"
#include "nn/layers.h"

// GPT-2's starts: N(0, 0.02²), and 1/√(2L) of that where a branch ends in the residual stream, which sums 2L of them.
static const float INIT_STD = 0.02F;

static mezzo_status check(const mezzo_model_config *config) {
    if (config->d_model % config->heads != 0)
        return mz_fail(MEZZO_ERR_INVALID,
                       "model.heads (%lld) does not divide model.d_model (%lld): choose a width that is a multiple of "
                       "the heads",
                       (long long)config->heads, (long long)config->d_model);
    return MEZZO_OK;
}

// Without dropout there is no op, so that nothing has to be taken out again.
static mezzo_value dropped(mezzo_graph *g, mezzo_value x, double p) {
    return p > 0 ? mezzo_dropout(g, x, (float)p) : x;
}

// x [B, T, C] → [B, T, C]. One recompute segment: of a block only its input need be kept for backward.
static mezzo_value block(mezzo_graph *g, const mezzo_model_config *config, int64_t index, mezzo_value x) {
    const float std_residual = INIT_STD / sqrtf(2.0F * (float)config->layers);
    const int64_t d_ff = config->d_ff > 0 ? config->d_ff : 4 * config->d_model;
    char name[32];
    snprintf(name, sizeof name, "h.%lld", (long long)index);

    mezzo_recompute_begin(g);
    mezzo_module_begin(g, name);
    mezzo_value h = mz_layer_layernorm(g, "ln_1", x, config->bias); // [B, T, C]
    h = mz_layer_attention(g, "attn", h, (int)config->heads, INIT_STD, std_residual, (float)config->dropout,
                           config->bias);
    x = mezzo_add(g, x, dropped(g, h, config->dropout)); // [B, T, C]
    h = mz_layer_layernorm(g, "ln_2", x, config->bias);  // [B, T, C]
    h = mz_layer_mlp(g, "mlp", h, d_ff, INIT_STD, std_residual, config->bias);
    x = mezzo_add(g, x, dropped(g, h, config->dropout)); // [B, T, C]
    mezzo_module_end(g);
    mezzo_recompute_end(g);
    return x;
}

static mezzo_status build(const mz_model *model, const mz_form *form, const mezzo_value *inputs, mezzo_graph *g) {
    const mezzo_model_config *config = &model->config;
    const mezzo_value tokens = inputs[0], targets = inputs[1]; // [B, T]

    mezzo_value wte;                                                                                      // [V, C]
    mezzo_value x = mz_layer_embedding(g, "wte", tokens, config->vocab, config->d_model, INIT_STD, &wte); // [B, T, C]
    mezzo_value positions = mz_layer_embedding(g, "wpe", mezzo_positions(g, form->length), config->seq_len,
                                               config->d_model, INIT_STD, NULL); // [T, C]
    x = dropped(g, mezzo_add(g, x, positions), config->dropout);                 // [B, T, C]
    for (int64_t i = 0; i < config->layers; i++)
        x = block(g, config, i, x);
    x = mz_layer_layernorm(g, "ln_f", x, config->bias); // [B, T, C]

    mezzo_module_begin(g, "lm_head");
    mezzo_value logits = mezzo_linear(g, x, wte, MEZZO_NONE); // [B, T, V]
    mezzo_module_end(g);
    return mz_layer_loss(g, logits, targets, form->outputs);
}

const mz_maker mz_model_gpt2 = {.name = "gpt2", .check = check, .inputs = mz_language_inputs, .build = build};
