// toy: the model of Stanford CS336's question about mixed precision, where which tensor has which dtype can be told by
// hand: 5 → 10, ReLU, LayerNorm(10), 10 → 3, no bias in the linear layers, cross-entropy over 3 classes.
#include <math.h>

#include "base/base.h"
#include "models/models.h"
#include "nn/layers.h"

enum { FEATURES = 5, WIDTH = 10, CLASSES = 3 };

static mezzo_status check(const mezzo_model_config *config) {
    if (config->d_model != WIDTH)
        return mz_fail(MEZZO_ERR_INVALID, "model.d_model is %lld, but toy's width is always %d: leave it out",
                       (long long)config->d_model, WIDTH);
    if (config->vocab != CLASSES)
        return mz_fail(MEZZO_ERR_INVALID, "model.vocab is %lld, but toy always has %d classes: leave it out",
                       (long long)config->vocab, CLASSES);
    if (config->features != FEATURES || config->classes != CLASSES)
        return mz_fail(MEZZO_ERR_INVALID,
                       "model.features is %lld and model.classes %lld, but toy always has %d and %d: use mlp",
                       (long long)config->features, (long long)config->classes, FEATURES, CLASSES);
    if (config->layers != 1)
        return mz_fail(MEZZO_ERR_INVALID, "model.layers is %lld, but toy's layers are fixed: leave it out",
                       (long long)config->layers);
    return MEZZO_OK;
}

// torch.nn.Linear's start: uniform in ±1/√(inputs).
static mezzo_init linear_init(int inputs) {
    return (mezzo_init){.kind = MEZZO_INIT_UNIFORM, .a = 1.0F / sqrtf((float)inputs)};
}

static mezzo_status build(mezzo_graph *g, const mezzo_model_config *config, int64_t batch, int64_t seq_len,
                          bool keep_logits) {
    (void)config;
    (void)seq_len; // there is no sequence: an example is one vector
    mezzo_value x = mezzo_input(g, "x", MEZZO_F32, 2, (int64_t[]){batch, FEATURES}); // [B, 5]
    mezzo_value targets = mezzo_input(g, "targets", MEZZO_I32, 1, &batch);           // [B]

    mezzo_value h = mz_layer_linear(g, "fc1", x, WIDTH, linear_init(FEATURES), false); // [B, 10]
    mezzo_module_begin(g, "relu");
    h = mezzo_relu(g, h); // [B, 10]
    mezzo_module_end(g);
    h = mz_layer_layernorm(g, "ln", h, true);                                              // [B, 10]
    mezzo_value logits = mz_layer_linear(g, "fc2", h, CLASSES, linear_init(WIDTH), false); // [B, 3]

    return mz_layer_loss(g, logits, targets, keep_logits);
}

const mz_model mz_model_toy = {.name = "toy", .task = MEZZO_TASK_CLASSIFIER, .check = check, .build = build};
