// Builds toy, the model of Stanford CS336's question about mixed precision, small enough to find every tensor's dtype
// by hand: 5 → 10, ReLU, LayerNorm(10), 10 → 3, no bias in the linear layers, cross-entropy over 3 classes.
#include <math.h>

#include "base/base.h"
#include "models/model.h"
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

// Returns torch.nn.Linear's initial values: uniform in ±1/√(inputs).
static mezzo_init linear_init(int inputs) {
    return (mezzo_init){.kind = MEZZO_INIT_UNIFORM, .a = 1.0F / sqrtf((float)inputs)};
}

static mezzo_status build(const mz_model *model, const mz_form *form, const mezzo_value *inputs, mezzo_graph *g) {
    (void)model;
    const mezzo_value x = inputs[0], targets = inputs[1]; // [B, 5], [B]

    mezzo_value h = mz_layer_linear(g, "fc1", x, WIDTH, linear_init(FEATURES), false); // [B, 10]
    mezzo_module_begin(g, "relu");
    h = mezzo_relu(g, h); // [B, 10]
    mezzo_module_end(g);
    h = mz_layer_layernorm(g, "ln", h, 1e-5F, true);                                       // [B, 10]
    mezzo_value logits = mz_layer_linear(g, "fc2", h, CLASSES, linear_init(WIDTH), false); // [B, 3]

    return mz_layer_loss(g, logits, targets, 0, form->outputs);
}

const mz_maker mz_model_toy = {
    .name = "toy", .purpose = MEZZO_TASK_CLASSIFIER, .check = check, .inputs = mz_classifier_inputs, .build = build};
