// Builds mlp, a classifier of rows of numbers: hidden layers of linear and ReLU, all of one width, and a linear head
// over the classes. Parameters are layers.I.weight, layers.I.bias, head.weight and head.bias.
#include <math.h>

#include "base/base.h"
#include "models/model.h"
#include "nn/layers.h"

static mezzo_status check(const mezzo_model_config *config) {
    const struct {
        const char *key;
        int64_t value, least;
    } sizes[] = {{"features", config->features, 1}, {"classes", config->classes, 2}};
    for (size_t i = 0; i < MZ_COUNT(sizes); i++)
        if (sizes[i].value < sizes[i].least || sizes[i].value > INT64_C(1) << 24)
            return mz_fail(MEZZO_ERR_INVALID, "model.%s is %lld: it must be from %lld to %lld", sizes[i].key,
                           (long long)sizes[i].value, (long long)sizes[i].least, (long long)(INT64_C(1) << 24));
    return MEZZO_OK;
}

// Returns the initial values of He et al. (2015): N(0, 2/inputs) keeps the variance through a ReLU.
static mezzo_init hidden_init(int64_t inputs) {
    return (mezzo_init){.kind = MEZZO_INIT_NORMAL, .a = sqrtf(2.0F / (float)inputs)};
}

static mezzo_status build(const mz_model *model, const mz_form *form, const mezzo_value *inputs, mezzo_graph *g) {
    const mezzo_model_config *config = &model->config;
    mezzo_value h = inputs[0];             // [B, features]
    const mezzo_value targets = inputs[1]; // [B]
    const mezzo_init head = {.kind = MEZZO_INIT_NORMAL, .a = 1.0F / sqrtf((float)config->d_model)};
    for (int64_t i = 0; i < config->layers; i++) {
        char name[32];
        snprintf(name, sizeof name, "layers.%lld", (long long)i);
        h = mz_layer_linear(g, name, h, config->d_model, hidden_init(i == 0 ? config->features : config->d_model),
                            true); // [B, C]
        mezzo_module_begin(g, name);
        h = mezzo_relu(g, h); // [B, C]
        if (config->dropout > 0)
            h = mezzo_dropout(g, h, (float)config->dropout);
        mezzo_module_end(g);
    }
    mezzo_value logits = mz_layer_linear(g, "head", h, config->classes, head, true); // [B, classes]
    return mz_layer_loss(g, logits, targets, 0, form->outputs);
}

const mz_maker mz_model_mlp = {
    .name = "mlp", .purpose = MEZZO_TASK_CLASSIFIER, .check = check, .inputs = mz_classifier_inputs, .build = build};
