#include "nn/images.h"

#include <math.h>

#include "nn/layers.h"

static const mezzo_init zero = {.kind = MEZZO_INIT_ZERO}, one = {.kind = MEZZO_INIT_CONSTANT, .a = 1};

static mezzo_init uniform(int64_t inputs) {
    return (mezzo_init){.kind = MEZZO_INIT_UNIFORM, .a = inputs > 0 ? 1.0F / sqrtf((float)inputs) : 0};
}

static mezzo_value conv(mezzo_graph *g, const char *name, mezzo_value x, int64_t n, int size, mezzo_convolution shape) {
    const int64_t channels = mezzo_value_dim(g, x, -1);
    shape.groups = 1;
    mezzo_module_begin(g, name);
    mezzo_value w = mezzo_param(g, "weight", uniform(channels * size * size), 4, (int64_t[]){n, size, size, channels});
    mezzo_value y = mezzo_conv2d(g, x, w, mezzo_param(g, "bias", zero, 1, &n), &shape);
    mezzo_module_end(g);
    return y;
}

mezzo_value mz_layer_conv(mezzo_graph *g, const char *name, mezzo_value x, int64_t n, int size, int stride) {
    return conv(g, name, x, n, size,
                (mezzo_convolution){.stride = stride, .pad_before = size / 2, .pad_after = (size - 1) / 2});
}

mezzo_value mz_layer_conv_pad_end(mezzo_graph *g, const char *name, mezzo_value x, int64_t n) {
    return conv(g, name, x, n, 3, (mezzo_convolution){.stride = 2, .pad_after = 1});
}

mezzo_value mz_layer_group_norm(mezzo_graph *g, const char *name, mezzo_value x, mezzo_value film, mz_image_norm norm,
                                bool silu) {
    const int64_t channels = mezzo_value_dim(g, x, -1);
    mezzo_module_begin(g, name);
    mezzo_value w = mezzo_param(g, "weight", one, 1, &channels), b = mezzo_param(g, "bias", zero, 1, &channels);
    mezzo_value y = mezzo_group_norm(g, x, w, b, film, norm.groups, norm.eps, silu);
    mezzo_module_end(g);
    return y;
}

mezzo_value mz_layer_image_block(mezzo_graph *g, const char *name, mezzo_value x, int64_t n, mezzo_value time,
                                 mz_image_norm norm) {
    const int64_t channels = mezzo_value_dim(g, x, -1);
    mezzo_module_begin(g, name);
    mezzo_value film = MEZZO_NONE;
    if (time.id >= 0)
        film = mz_layer_linear(g, "time_emb_proj", time, 2 * n, uniform(mezzo_value_dim(g, time, -1)),
                               true); // [B, 2·n]
    mezzo_value h = mz_layer_group_norm(g, "norm1", x, MEZZO_NONE, norm, true);
    h = mz_layer_conv(g, "conv1", h, n, 3, 1);
    h = mz_layer_group_norm(g, "norm2", h, film, norm, true);
    h = mz_layer_conv(g, "conv2", h, n, 3, 1);
    if (channels != n)
        x = mz_layer_conv(g, "conv_shortcut", x, n, 1, 1);
    h = mezzo_add(g, x, h);
    mezzo_module_end(g);
    return h;
}

static mezzo_value as_tokens(mezzo_graph *g, mezzo_value x) {
    return mezzo_reshape(g, x, 3, (int64_t[]){mezzo_value_dim(g, x, 0), -1, mezzo_value_dim(g, x, -1)});
}

enum { WIDEST_HEAD = 256 }; // widest heads that every device's attention kernels take

static mezzo_value split_heads(mezzo_graph *g, mezzo_value x, int heads) { // [B, T, H·D] → [B, H, T, D]
    x = mezzo_reshape(g, x, 4, (int64_t[]){mezzo_value_dim(g, x, 0), mezzo_value_dim(g, x, 1), heads, -1});
    return mezzo_transpose(g, x, 1, 2);
}

// Builds attention without a mask, q [B, T, C], k and v [B, T', C]; wide heads use products, with T·T' scores in
// memory.
static mezzo_value attend(mezzo_graph *g, mezzo_value q, mezzo_value k, mezzo_value v, int heads) {
    const int64_t channels = mezzo_value_dim(g, q, -1);
    if (channels / heads <= WIDEST_HEAD)
        return mezzo_attention_full(g, q, k, v, heads, heads, 0);
    const int64_t shape[] = {mezzo_value_dim(g, q, 0), mezzo_value_dim(g, q, 1), channels};
    if (heads > 1) {
        q = split_heads(g, q, heads);
        k = split_heads(g, k, heads);
        v = split_heads(g, v, heads);
    }
    mezzo_value scores = mezzo_scale(g, mezzo_matmul(g, q, k, false, true), 1 / sqrtf((float)(channels / heads)));
    mezzo_value y = mezzo_matmul(g, mezzo_softmax(g, scores), v, false, false);
    return heads > 1 ? mezzo_reshape(g, mezzo_transpose(g, y, 1, 2), 3, shape) : y;
}

mezzo_value mz_layer_image_attention(mezzo_graph *g, const char *name, mezzo_value x, mezzo_value context, int heads,
                                     mz_image_norm norm) {
    const int64_t channels = mezzo_value_dim(g, x, -1);
    const int64_t shape[] = {mezzo_value_dim(g, x, 0), mezzo_value_dim(g, x, 1), mezzo_value_dim(g, x, 2), channels};
    mezzo_module_begin(g, name);
    mezzo_value h = as_tokens(g, mz_layer_group_norm(g, "group_norm", x, MEZZO_NONE, norm, false)); // [B, HW, C]
    mezzo_value seen = context.id >= 0 ? as_tokens(g, context) : h;                                 // [B, H'W', C']
    const mezzo_init from = uniform(mezzo_value_dim(g, seen, -1));
    mezzo_value q = mz_layer_linear(g, "to_q", h, channels, uniform(channels), true);
    mezzo_value k = mz_layer_linear(g, "to_k", seen, channels, from, true);
    mezzo_value v = mz_layer_linear(g, "to_v", seen, channels, from, true);
    h = attend(g, q, k, v, heads);
    h = mz_layer_linear(g, "to_out.0", h, channels, uniform(channels), true);
    h = mezzo_add(g, x, mezzo_reshape(g, h, 4, shape));
    mezzo_module_end(g);
    return h;
}
