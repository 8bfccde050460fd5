// Builds cnn, a classifier of images: a residual network (He et al., "Identity Mappings in Deep Residual Networks",
// 2016) with group norms and SiLU in place of batch norms and ReLU, so that a row's result does not depend on its
// batch. It has levels of residual blocks, each with half the side of the one before; a norm, the mean over all pixels,
// and a linear head.
#include <math.h>

#include "base/base.h"
#include "models/image_sizes.h"
#include "models/model.h"
#include "nn/images.h"
#include "nn/layers.h"

static mezzo_status check(const mezzo_model_config *config) {
    MEZZO_TRY(mz_image_check(config));
    if (config->classes < 2 || config->classes > INT64_C(1) << 24)
        return mz_fail(MEZZO_ERR_INVALID, "model.classes is %lld: it must be from 2 to %lld",
                       (long long)config->classes, (long long)(INT64_C(1) << 24));
    return MEZZO_OK;
}

static int inputs_of(const mz_model *model, const mz_form *form, mz_input out[MZ_MODEL_INPUTS]) {
    const mezzo_model_config *c = &model->config;
    const int64_t b = form->batch, side = c->image_size;
    out[0] = MZ_INPUT("x", MZ_ROLE_FEATURES, MEZZO_F32, 4, b, side, side, c->channels);
    out[1] = MZ_INPUT("targets", MZ_ROLE_TARGETS, MEZZO_I32, 1, b);
    return 2;
}

// Builds a level: x [B, H, W, C] → [B, H/2, W/2, n], or [B, H, W, n] at the first one.
static mezzo_value level(mezzo_graph *g, const mezzo_model_config *config, mezzo_value x, int index, int64_t n) {
    const mz_image_norm norm = {(int)config->groups, 1e-5F};
    char name[32];
    snprintf(name, sizeof name, "levels.%d", index);
    mezzo_module_begin(g, name);
    if (index > 0)
        x = mz_layer_conv(g, "half", x, mezzo_value_dim(g, x, -1), 3, 2);
    for (int64_t i = 0; i < config->res_blocks; i++) {
        snprintf(name, sizeof name, "blocks.%lld", (long long)i);
        x = mz_layer_image_block(g, name, x, n, MEZZO_NONE, norm);
    }
    mezzo_module_end(g);
    return x;
}

static mezzo_status build(const mz_model *model, const mz_form *form, const mezzo_value *inputs, mezzo_graph *g) {
    const mezzo_model_config *config = &model->config;
    const mz_image_norm norm = {(int)config->groups, 1e-5F};
    const mezzo_value targets = inputs[1]; // [B]
    int widths[MZ_IMAGE_LEVELS];
    const int levels = mz_image_widths(config, widths);
    mezzo_value h = mz_layer_conv(g, "conv_in", inputs[0], widths[0], 3, 1); // [B, S, S, w]
    for (int i = 0; i < levels; i++)
        h = level(g, config, h, i, widths[i]); // [B, s, s, w]
    h = mz_layer_group_norm(g, "norm_out", h, MEZZO_NONE, norm, true);
    const int64_t width = widths[levels - 1];
    h = mezzo_reshape(g, h, 3, (int64_t[]){form->batch, -1, width}); // [B, s·s, w]
    h = mezzo_mean(g, h, 1);                                         // [B, w]
    const mezzo_init init = {.kind = MEZZO_INIT_NORMAL, .a = 1.0F / sqrtf((float)width)};
    mezzo_value logits = mz_layer_linear(g, "head", h, config->classes, init, true); // [B, classes]
    return mz_layer_loss(g, logits, targets, 0, form->outputs);
}

const mz_maker mz_model_cnn = {
    .name = "cnn", .purpose = MEZZO_TASK_CLASSIFIER, .check = check, .inputs = inputs_of, .build = build};
