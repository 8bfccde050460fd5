// Builds kl_vae, the autoencoder of latent diffusion (Rombach et al., "High-Resolution Image Synthesis with Latent
// Diffusion Models", 2022) with RadioDiff's sizes by name. An image [B, S, S, C] becomes a normal distribution over a
// latent [B, s, s, Z], s = S/2^(levels - 1), and a draw from it becomes an image again. The loss is |x - y| + (x - y)²
// and the divergence from N(0, 1), without the perceptual and adversarial terms of the original. Parameters have the
// names of diffusers' AutoencoderKL.
#include "base/base.h"
#include "models/image_sizes.h"
#include "models/model.h"
#include "nn/images.h"

typedef struct vae {
    mezzo_graph *g;
    const mezzo_model_config *config;
    mz_image_norm norm;
    int levels, widths[MZ_IMAGE_LEVELS]; // widths: channels of each level
} vae;

static vae vae_of(mezzo_graph *g, const mezzo_model_config *config) {
    vae v = {.g = g, .config = config, .norm = {(int)config->groups, 1e-6F}};
    v.levels = mz_image_widths(config, v.widths);
    return v;
}

static mezzo_value middle(const vae *v, mezzo_value x) {
    const int64_t width = mezzo_value_dim(v->g, x, -1);
    mezzo_module_begin(v->g, "mid_block");
    x = mz_layer_image_block(v->g, "resnets.0", x, width, MEZZO_NONE, v->norm);
    x = mz_layer_image_attention(v->g, "attentions.0", x, MEZZO_NONE, (int)v->config->heads, v->norm);
    x = mz_layer_image_block(v->g, "resnets.1", x, width, MEZZO_NONE, v->norm);
    mezzo_module_end(v->g);
    return x;
}

static mezzo_value blocks(const vae *v, mezzo_value x, int64_t n, int64_t width) {
    for (int64_t i = 0; i < n; i++) {
        char name[32];
        snprintf(name, sizeof name, "resnets.%lld", (long long)i);
        x = mz_layer_image_block(v->g, name, x, width, MEZZO_NONE, v->norm);
    }
    return x;
}

static void begin_level(const vae *v, const char *what, int level) {
    char name[32];
    snprintf(name, sizeof name, "%s.%d", what, level);
    mezzo_recompute_begin(v->g);
    mezzo_module_begin(v->g, name);
}

static void end_level(const vae *v) {
    mezzo_module_end(v->g);
    mezzo_recompute_end(v->g);
}

static mezzo_value last(const vae *v, mezzo_value x, int64_t n) {
    x = mz_layer_group_norm(v->g, "conv_norm_out", x, MEZZO_NONE, v->norm, true);
    return mz_layer_conv(v->g, "conv_out", x, n, 3, 1);
}

// Builds the encoder: x [B, S, S, C] → [B, s, s, 2·Z], means, then logarithms of variances.
static mezzo_value encode(const vae *v, mezzo_value x) {
    mezzo_module_begin(v->g, "encoder");
    x = mz_layer_conv(v->g, "conv_in", x, v->widths[0], 3, 1);
    for (int level = 0; level < v->levels; level++) {
        begin_level(v, "down_blocks", level);
        x = blocks(v, x, v->config->res_blocks, v->widths[level]);
        if (level + 1 < v->levels)
            x = mz_layer_conv_pad_end(v->g, "downsamplers.0.conv", x, v->widths[level]);
        end_level(v);
    }
    x = last(v, middle(v, x), 2 * v->config->latent_channels);
    mezzo_module_end(v->g);
    return mz_layer_conv(v->g, "quant_conv", x, 2 * v->config->latent_channels, 1, 1);
}

// Builds the decoder: z [B, s, s, Z] → [B, S, S, C].
static mezzo_value decode(const vae *v, mezzo_value z) {
    mezzo_value x = mz_layer_conv(v->g, "post_quant_conv", z, v->config->latent_channels, 1, 1);
    mezzo_module_begin(v->g, "decoder");
    x = middle(v, mz_layer_conv(v->g, "conv_in", x, v->widths[v->levels - 1], 3, 1));
    for (int level = 0; level < v->levels; level++) {
        const int64_t width = v->widths[v->levels - 1 - level];
        begin_level(v, "up_blocks", level);
        x = blocks(v, x, v->config->res_blocks + 1, width);
        if (level + 1 < v->levels)
            x = mz_layer_conv(v->g, "upsamplers.0.conv", mezzo_upsample(v->g, x, 2), width, 3, 1);
        end_level(v);
    }
    x = last(v, x, v->config->channels);
    mezzo_module_end(v->g);
    return x;
}

// Returns 0.5·(mean² + variance - 1 - log variance), the divergence of N(mean, variance) from N(0, 1).
static mezzo_value divergence(mezzo_graph *g, mezzo_value mean, mezzo_value log_variance) {
    mezzo_value sum = mezzo_sub(g, mezzo_exp(g, log_variance), log_variance);
    sum = mezzo_add(g, mezzo_mul(g, mean, mean), sum);
    return mezzo_scale(g, sum, 0.5F); // the term -0.5, which has no gradient, is subtracted from the mean
}

static mezzo_value loss_of(const vae *v, mezzo_value image, mezzo_value y, mezzo_value mean, mezzo_value log_variance,
                           mezzo_value weight) {
    mezzo_graph *g = v->g;
    const double pixels = (double)(v->config->image_size * v->config->image_size * v->config->channels);
    const double latents =
        (double)(mezzo_value_dim(g, mean, 1) * mezzo_value_dim(g, mean, 2) * mezzo_value_dim(g, mean, 3));
    mezzo_module_begin(g, "loss");
    mezzo_autocast_begin(g, MEZZO_PRECISION_FP32);
    mezzo_value d = mezzo_sub(g, y, image);
    mezzo_value error = mezzo_mul(g, mezzo_add(g, mezzo_abs(g, d), mezzo_mul(g, d, d)), weight);
    mezzo_value kl = mezzo_mean(g, mezzo_mul(g, divergence(g, mean, log_variance), weight), -1);
    mezzo_value offset = mezzo_scale(g, mezzo_mean(g, weight, -1), -0.5F);
    kl = mezzo_scale(g, mezzo_add(g, kl, offset), (float)(v->config->kl_weight * latents / pixels));
    mezzo_value loss = mezzo_add(g, mezzo_mean(g, error, -1), kl);
    mezzo_autocast_end(g);
    mezzo_module_end(g);
    return loss;
}

static mezzo_status check(const mezzo_model_config *config) {
    MEZZO_TRY(mz_image_check(config));
    if (config->latent_channels < 1 || config->latent_channels > 1024)
        return mz_fail(MEZZO_ERR_INVALID, "model.latent_channels is %lld: it must be from 1 to 1024",
                       (long long)config->latent_channels);
    if (!(config->kl_weight >= 0 && config->kl_weight <= 1e6))
        return mz_fail(MEZZO_ERR_INVALID, "model.kl_weight is %g: it must be from 0 to 1e6", config->kl_weight);
    return MEZZO_OK;
}

static int inputs_of(const mz_model *model, const mz_form *form, mz_input out[MZ_MODEL_INPUTS]) {
    const mezzo_model_config *c = &model->config;
    int widths[MZ_IMAGE_LEVELS];
    const int64_t b = form->batch, side = c->image_size, small = side >> (mz_image_widths(c, widths) - 1);
    const mz_input image = MZ_INPUT("image", MZ_ROLE_IMAGE, MEZZO_F32, 4, b, side, side, c->channels);
    out[0] = image;
    out[1] = MZ_INPUT("noise", MZ_ROLE_NOISE, MEZZO_I32, 2, b, 2);
    out[2] = MZ_INPUT("weight", MZ_ROLE_WEIGHT, MEZZO_F32, 4, b, 1, 1, 1);
    if (form->part == MZ_PART_DECODER)
        out[0] = MZ_INPUT("latent", MZ_ROLE_LATENT, MEZZO_F32, 4, b, small, small, c->latent_channels);
    return form->part == MZ_PART_WHOLE ? 3 : 1;
}

static mezzo_status build_part(const vae *v, mz_model_part part, mezzo_value x) {
    if (part == MZ_PART_DECODER)
        return mezzo_graph_output(v->g, "prediction", decode(v, x));
    mezzo_value moments = encode(v, x);
    return mezzo_graph_output(v->g, "latent", mezzo_slice(v->g, moments, -1, 0, v->config->latent_channels));
}

static mezzo_status build(const mz_model *model, const mz_form *form, const mezzo_value *inputs, mezzo_graph *g) {
    const mezzo_model_config *config = &model->config;
    const vae v = vae_of(g, config);
    const int64_t z = config->latent_channels;
    if (form->part != MZ_PART_WHOLE)
        return build_part(&v, form->part, inputs[0]);
    const mezzo_value image = inputs[0], keys = inputs[1], weight = inputs[2];
    mezzo_value moments = encode(&v, image); // [B, s, s, 2·Z]
    const int64_t shape[] = {form->batch, mezzo_value_dim(g, moments, 1), mezzo_value_dim(g, moments, 2), z};
    mezzo_autocast_begin(g, MEZZO_PRECISION_FP32);
    mezzo_value mean = mezzo_slice(g, moments, -1, 0, z);
    mezzo_value log_variance = mezzo_clamp(g, mezzo_slice(g, moments, -1, z, 2 * z), -30, 20);
    mezzo_value deviation = mezzo_exp(g, mezzo_scale(g, log_variance, 0.5F));
    mezzo_value drawn = mezzo_add(g, mean, mezzo_mul(g, deviation, mezzo_normal(g, keys, 4, shape)));
    mezzo_autocast_end(g);
    mezzo_value y = decode(&v, drawn);
    if (form->outputs) {
        MEZZO_TRY(mezzo_graph_output(g, "prediction", y));
        MEZZO_TRY(mezzo_graph_output(g, "latent", mean));
    }
    return mezzo_graph_loss(g, loss_of(&v, image, y, mean, log_variance, weight));
}

const mz_maker mz_model_kl_vae = {.name = "kl_vae",
                                  .purpose = MEZZO_TASK_IMAGES,
                                  .has_parts = true,
                                  .check = check,
                                  .inputs = inputs_of,
                                  .build = build};
