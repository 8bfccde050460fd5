// Builds radio_unet, a conditional diffusion U-Net (Ho et al. 2020; Nichol and Dhariwal 2021) that predicts a radio map
// from buildings and a transmitter, with RadioDiff's sizes by name (Wang et al., "RadioDiff: An Effective Generative
// Diffusion Model for Sampling-Free Dynamic Radio Map Construction", 2024). It differs from RadioDiff: a small
// convolutional encoder reads the condition instead of a Swin-B; its features are added at each level, or attended to
// from model.attention_from on; one decoder has both heads; there is no Fourier filter; sines of fixed frequencies
// embed times; convolutions use their weights directly.
#include "base/base.h"
#include "models/image_sizes.h"
#include "models/model.h"
#include "nn/diffusion.h"
#include "nn/images.h"
#include "nn/layers.h"

#include <math.h>

typedef struct unet {
    mezzo_graph *g;
    const mezzo_model_config *config;
    mz_image_norm norm;
    int levels, widths[MZ_IMAGE_LEVELS];
    mezzo_value time;                        // [B, 4·C]
    mezzo_value features[MZ_IMAGE_LEVELS];   // the condition's features at each level
    mezzo_value skips[MZ_IMAGE_LEVELS * 66]; // values that the decoder reads again
    int n_skips;
} unet;

static mezzo_init uniform(int64_t inputs) {
    return (mezzo_init){.kind = MEZZO_INIT_UNIFORM, .a = 1.0F / sqrtf((float)inputs)};
}

static void begin(const unet *u, const char *what, int64_t i) {
    char name[32];
    snprintf(name, sizeof name, "%s.%lld", what, (long long)i);
    mezzo_module_begin(u->g, name);
}

// --- time and condition --------------------------------------------------------------------------------------------
// Embeds t in [0, 1], as a step of a thousand, and applies the SiLU with which every block begins.
static mezzo_value embed_time(const unet *u, mezzo_value times) {
    const int64_t width = u->config->d_model;
    mezzo_module_begin(u->g, "time_embedding");
    mezzo_value x = mezzo_time_embedding(u->g, times, width, 1000, 10000);
    x = mezzo_silu(u->g, mz_layer_linear(u->g, "linear_1", x, 4 * width, uniform(width), true));
    x = mezzo_silu(u->g, mz_layer_linear(u->g, "linear_2", x, 4 * width, uniform(4 * width), true));
    mezzo_module_end(u->g);
    return x;
}

static mezzo_value halve(const unet *u, mezzo_value x, int64_t i, int64_t width) {
    begin(u, "downs", i);
    x = mz_layer_conv(u->g, "conv", x, width, 3, 2);
    x = mz_layer_group_norm(u->g, "norm", x, MEZZO_NONE, u->norm, true);
    mezzo_module_end(u->g);
    return x;
}

// Encodes the condition [B, S', S', D], halved to S and then level by level.
static void encode_condition(unet *u, mezzo_value x) {
    int64_t side = mezzo_value_dim(u->g, x, 1), n = 0;
    mezzo_module_begin(u->g, "condition");
    x = mz_layer_conv(u->g, "conv_in", x, u->widths[0], 3, 1);
    x = mz_layer_group_norm(u->g, "norm_in", x, MEZZO_NONE, u->norm, true);
    for (; side > u->config->image_size; side /= 2)
        x = halve(u, x, n++, u->widths[0]);
    for (int level = 0; level < u->levels; level++) {
        if (level > 0)
            x = halve(u, x, n++, u->widths[level]);
        begin(u, "levels", level);
        x = mz_layer_image_block(u->g, "block", x, u->widths[level], MEZZO_NONE, u->norm);
        mezzo_module_end(u->g);
        u->features[level] = x;
    }
    mezzo_module_end(u->g);
}

// Applies a level's condition to x, once in the encoder and once in the decoder.
static mezzo_value condition(const unet *u, mezzo_value x, int level) {
    mezzo_value seen = u->features[level];
    if (level >= u->config->attention_from)
        return mz_layer_image_attention(u->g, "attention", x, seen, (int)u->config->heads, u->norm);
    return mezzo_add(u->g, x, mz_layer_conv(u->g, "condition", seen, mezzo_value_dim(u->g, x, -1), 1, 1));
}

// --- encoder, middle, decoder ---------------------------------------------------------------------------------------
static void keep(unet *u, mezzo_value x) {
    u->skips[u->n_skips++] = x;
}

static mezzo_value down(unet *u, mezzo_value x) {
    keep(u, x);
    for (int level = 0; level < u->levels; level++) {
        mezzo_recompute_begin(u->g);
        begin(u, "down_blocks", level);
        for (int64_t i = 0; i < u->config->res_blocks; i++) {
            begin(u, "resnets", i);
            x = mz_layer_image_block(u->g, "block", x, u->widths[level], u->time, u->norm);
            if (i == 0)
                x = condition(u, x, level);
            mezzo_module_end(u->g);
            keep(u, x);
        }
        if (level + 1 < u->levels) {
            x = mz_layer_conv(u->g, "downsamplers.0.conv", x, u->widths[level], 3, 2);
            keep(u, x);
        }
        mezzo_module_end(u->g);
        mezzo_recompute_end(u->g);
    }
    return x;
}

static mezzo_value middle(const unet *u, mezzo_value x) {
    const int64_t width = u->widths[u->levels - 1];
    mezzo_module_begin(u->g, "mid_block");
    x = mz_layer_image_block(u->g, "resnets.0", x, width, u->time, u->norm);
    x = mz_layer_image_attention(u->g, "attentions.0", x, MEZZO_NONE, (int)u->config->heads, u->norm);
    x = mz_layer_image_block(u->g, "resnets.1", x, width, u->time, u->norm);
    mezzo_module_end(u->g);
    return x;
}

static mezzo_value up(unet *u, mezzo_value x) {
    for (int level = u->levels - 1; level >= 0; level--) {
        mezzo_recompute_begin(u->g);
        begin(u, "up_blocks", u->levels - 1 - level);
        for (int64_t i = 0; i <= u->config->res_blocks; i++) {
            const mezzo_value both[] = {x, u->skips[--u->n_skips]};
            begin(u, "resnets", i);
            x = mz_layer_image_block(u->g, "block", mezzo_concat(u->g, both, 2, -1), u->widths[level], u->time,
                                     u->norm);
            if (i == 0)
                x = condition(u, x, level);
            mezzo_module_end(u->g);
        }
        if (level > 0)
            x = mz_layer_conv(u->g, "upsamplers.0.conv", mezzo_upsample(u->g, x, 2), u->widths[level], 3, 1);
        mezzo_module_end(u->g);
        mezzo_recompute_end(u->g);
    }
    return x;
}

// --- the objective -------------------------------------------------------------------------------------------------
// Returns the mean of weight·(y - target)².
static mezzo_value squares(mezzo_graph *g, mezzo_value y, mezzo_value target, mezzo_value weight) {
    mezzo_value d = mezzo_sub(g, y, target);
    return mezzo_mean(g, mezzo_mul(g, mezzo_mul(g, d, d), weight), -1);
}

static mezzo_value loss_of(const unet *u, mezzo_value y, mezzo_value image, mezzo_value noise,
                           const mezzo_value schedule[4]) {
    mezzo_graph *g = u->g;
    const int64_t c = u->config->channels;
    switch (u->config->objective) {
    case MZ_OBJECTIVE_NOISE:
        return squares(g, y, noise, schedule[2]);
    case MZ_OBJECTIVE_VELOCITY:
        return squares(g, y, mezzo_sub(g, mezzo_mul(g, noise, schedule[0]), mezzo_mul(g, image, schedule[1])),
                       schedule[2]);
    case MZ_OBJECTIVE_DECOUPLED:
        return mezzo_add(g, squares(g, mezzo_slice(g, y, -1, 0, c), mezzo_scale(g, image, -1), schedule[2]),
                         squares(g, mezzo_slice(g, y, -1, c, 2 * c), noise, schedule[3]));
    default:
        return squares(g, y, image, schedule[2]);
    }
}

static mezzo_status check(const mezzo_model_config *config) {
    const int64_t seen = config->condition_size;
    MEZZO_TRY(mz_image_check(config));
    if (config->condition_channels < 1 || config->condition_channels > 1024)
        return mz_fail(MEZZO_ERR_INVALID, "model.condition_channels is %lld: it must be from 1 to 1024",
                       (long long)config->condition_channels);
    int64_t side = config->image_size;
    while (side < seen && side < 16384)
        side *= 2;
    if (seen != 0 && side != seen)
        return mz_fail(MEZZO_ERR_INVALID,
                       "model.condition_size is %lld: it must be model.image_size (%lld) times a power of two",
                       (long long)seen, (long long)config->image_size);
    if (config->attention_from < 0 || config->attention_from > MZ_IMAGE_LEVELS)
        return mz_fail(MEZZO_ERR_INVALID, "model.attention_from is %lld: it must be from 0 to %d",
                       (long long)config->attention_from, MZ_IMAGE_LEVELS);
    if (config->objective < MZ_OBJECTIVE_NOISE || config->objective > MZ_OBJECTIVE_REGRESSION)
        return mz_fail(MEZZO_ERR_INVALID,
                       "model.objective is %lld: 1 is the noise, 2 the velocity, 3 decoupled, 4 the image itself",
                       (long long)config->objective);
    int widths[MZ_IMAGE_LEVELS];
    for (int level = (int)config->attention_from; level < mz_image_widths(config, widths); level++)
        if (widths[level] % config->heads != 0)
            return mz_fail(MEZZO_ERR_INVALID, "model.heads (%lld) does not divide the %d channels of level %d",
                           (long long)config->heads, widths[level], level);
    return MEZZO_OK;
}

static int inputs_of(const mz_model *model, const mz_form *form, mz_input out[MZ_MODEL_INPUTS]) {
    const mezzo_model_config *c = &model->config;
    const int64_t b = form->batch, side = c->image_size, seen = c->condition_size > 0 ? c->condition_size : side;
    const mz_input all[] = {
        MZ_INPUT("image", MZ_ROLE_IMAGE, MEZZO_F32, 4, b, side, side, c->channels),
        MZ_INPUT("condition", MZ_ROLE_CONDITION, MEZZO_F32, 4, b, seen, seen, c->condition_channels),
        MZ_INPUT("time", MZ_ROLE_TIME, MEZZO_F32, 1, b), MZ_INPUT("noise", MZ_ROLE_NOISE, MEZZO_I32, 2, b, 2),
        MZ_INPUT("schedule", MZ_ROLE_SCHEDULE, MEZZO_F32, 4, b, 4, 1, 1)};
    memcpy(out, all, sizeof all);
    return (int)MZ_COUNT(all);
}

static mezzo_status build(const mz_model *model, const mz_form *form, const mezzo_value *inputs, mezzo_graph *g) {
    const mezzo_model_config *config = &model->config;
    unet u = {.g = g, .config = config, .norm = {(int)config->groups, 1e-5F}};
    u.levels = mz_image_widths(config, u.widths);
    const int64_t shape[] = {form->batch, config->image_size, config->image_size, config->channels};
    const mezzo_value image = inputs[0], given = inputs[1], times = inputs[2], keys = inputs[3], rows = inputs[4];
    mezzo_value schedule[4];
    for (int i = 0; i < 4; i++)
        schedule[i] = mezzo_slice(g, rows, 1, i, i + 1); // [B, 1, 1, 1]
    mezzo_value noise = mezzo_normal(g, keys, 4, shape);
    mezzo_value x = mezzo_add(g, mezzo_mul(g, image, schedule[0]), mezzo_mul(g, noise, schedule[1]));
    u.time = embed_time(&u, times);
    encode_condition(&u, given);
    const mezzo_value both[] = {x, u.features[0]};
    x = mz_layer_conv(g, "conv_in", mezzo_concat(g, both, 2, -1), u.widths[0], 3, 1);
    x = up(&u, middle(&u, down(&u, x)));
    x = mz_layer_group_norm(g, "conv_norm_out", x, MEZZO_NONE, u.norm, true);
    x = mz_layer_conv(g, "conv_out", x, config->channels * mz_diffusion_heads((int)config->objective), 3, 1);
    if (form->outputs)
        MEZZO_TRY(mezzo_graph_output(g, "prediction", x));
    mezzo_module_begin(g, "loss");
    mezzo_autocast_begin(g, MEZZO_PRECISION_FP32);
    mezzo_value loss = loss_of(&u, x, image, noise, schedule);
    mezzo_autocast_end(g);
    mezzo_module_end(g);
    return mezzo_graph_loss(g, loss);
}

const mz_maker mz_model_radio_unet = {
    .name = "radio_unet", .purpose = MEZZO_TASK_IMAGES, .check = check, .inputs = inputs_of, .build = build};
