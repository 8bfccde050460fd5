// Widths and heads that are no multiple of what kernels read at a time: every op of a convolutional and of a
// Transformer layer runs, with its gradients, in FP32, BF16 and FP16, on weights that are parameters and on computed
// ones, whose gradients CUDA's convolutions, norms and embeddings write in FP32 alone.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"

#include "device.h"
#include "mezzo/mezzo.h"

enum { B = 2, SIDE = 5, T = 6, TOKENS = 11, MOST = 1 << 14 };

static mezzo_value param(mezzo_graph *g, const char *name, int rank, const int64_t *dim) {
    return mezzo_param(g, name, (mezzo_init){.kind = MEZZO_INIT_NORMAL, .a = 0.4F}, rank, dim);
}

// A weight [a, b, c, d] that is computed: a parameter [a·b·c, d] in another shape.
static mezzo_value computed(mezzo_graph *g, const char *name, int64_t a, int64_t b, int64_t c, int64_t d) {
    return mezzo_reshape(g, param(g, name, 2, (int64_t[]){a * b * c, d}), 4, (int64_t[]){a, b, c, d});
}

static mezzo_value image_layers(mezzo_graph *g, int64_t w) {
    const mezzo_convolution same = {1, 1, 1, 1}, apart = {1, 1, 1, (int)w}, point = {1, 0, 0, 1}, half = {2, 1, 1, 1};
    mezzo_value x = mezzo_input(g, "x", MEZZO_F32, 4, (int64_t[]){B, SIDE, SIDE, w});
    x = mezzo_conv2d(g, x, computed(g, "first", w, 3, 3, w), param(g, "first.bias", 1, &w), &same);
    x = mezzo_relu(g, mezzo_group_norm(g, x, param(g, "norm", 1, &w), MEZZO_NONE, MEZZO_NONE, 1, 1e-5F, false));
    x = mezzo_conv2d(g, x, param(g, "apart", 4, (int64_t[]){w, 3, 3, 1}), MEZZO_NONE, &apart);
    x = mezzo_conv2d(g, mezzo_silu(g, x), computed(g, "point", w, 1, 1, w), param(g, "point.bias", 1, &w), &point);
    x = mezzo_conv2d(g, x, param(g, "half", 4, (int64_t[]){w, 3, 3, w}), MEZZO_NONE, &half);
    return mezzo_reshape(g, x, 2, (int64_t[]){-1, w});
}

// Two heads of w numbers.
static mezzo_value rows_layers(mezzo_graph *g, int64_t w) {
    const int64_t wide = 2 * w, square[] = {wide, wide};
    const mezzo_value ids = mezzo_input(g, "ids", MEZZO_I32, 2, (int64_t[]){B, T});
    mezzo_value table = param(g, "table", 1, (int64_t[]){TOKENS * wide}), q, k, v;
    mezzo_value x = mezzo_embedding(g, mezzo_reshape(g, table, 2, (int64_t[]){TOKENS, wide}), ids);
    x = mezzo_layernorm(g, x, param(g, "norm", 1, &wide), param(g, "norm.bias", 1, &wide), 1e-5F);
    q = mezzo_linear(g, x, param(g, "q", 2, square), param(g, "q.bias", 1, &wide));
    k = mezzo_linear(g, x, param(g, "k", 2, square), MEZZO_NONE);
    v = mezzo_linear(g, x, param(g, "v", 2, square), MEZZO_NONE);
    x = mezzo_add(g, x, mezzo_attention(g, q, k, v, 2, 2, 0));
    x = mezzo_add(g, x, mezzo_attention_full(g, q, k, v, 2, 2, 0));
    x = mezzo_rmsnorm(g, x, param(g, "rms", 1, &wide), 1e-5F);
    x = mezzo_gelu(g, mezzo_linear(g, x, param(g, "up", 2, (int64_t[]){w, wide}), MEZZO_NONE), false);
    return mezzo_reshape(g, x, 2, (int64_t[]){B * T, w});
}

typedef struct result {
    float loss, gradient[MOST];
    size_t n;
} result;

static void run(mezzo_device *device, mezzo_precision precision, bool image, int64_t w, result *r) {
    mezzo_graph *g;
    mezzo_params *params;
    mezzo_program *program;
    mezzo_scaler *scaler = NULL;
    mezzo_scaler_options scaling = mezzo_scaler_defaults();
    const float scale = precision == MEZZO_PRECISION_FP16 ? 64 : 1;
    must(mezzo_graph_create(&g));
    const mezzo_value x = image ? image_layers(g, w) : rows_layers(g, w);
    const int64_t rows = mezzo_value_dim(g, x, 0);
    const mezzo_value logits = mezzo_linear(g, x, param(g, "head", 2, (int64_t[]){w + 1, w}), MEZZO_NONE);
    must(mezzo_graph_loss(g, mezzo_cross_entropy(g, logits, mezzo_input(g, "labels", MEZZO_I32, 1, &rows), -1)));
    must(mezzo_params_create(device, g, 7, &params));
    must(mezzo_program_create(g, params, &(mezzo_program_options){.precision = precision}, &program));
    int32_t numbers[B * SIDE * SIDE];
    float pixels[B * SIDE * SIDE * 12];
    for (int i = 0; i < B * SIDE * SIDE; i++)
        numbers[i] = (int32_t)((i * 7 + i / 3) % (w + 1));
    must(mezzo_program_write(program, "labels", numbers, (size_t)rows * sizeof *numbers));
    for (int i = 0; i < B * SIDE * SIDE * 12; i++)
        pixels[i] = (float)(i * 37 % 41) / 20 - 1;
    for (int i = 0; i < B * T; i++)
        numbers[i] = i * 5 % TOKENS;
    if (image)
        must(mezzo_program_write(program, "x", pixels, (size_t)(B * SIDE * SIDE * w) * sizeof *pixels));
    else
        must(mezzo_program_write(program, "ids", numbers, B * T * sizeof *numbers));
    scaling.init_scale = scale;
    must(mezzo_scaler_create(device, &scaling, &scaler));
    must(mezzo_program_run(program, scaler, 1, 0));
    must(mezzo_program_read(program, "loss", &r->loss, sizeof r->loss));
    r->n = 0;
    for (int i = 0; i < mezzo_params_count(params); i++) {
        size_t n = 1;
        for (int k = 0; k < mezzo_params_rank(params, i); k++)
            n *= (size_t)mezzo_params_shape(params, i)[k];
        assert_true(r->n + n <= MOST);
        must(mezzo_params_read_grad(params, i, r->gradient + r->n));
        r->n += n;
    }
    for (size_t i = 0; i < r->n; i++)
        r->gradient[i] /= scale;
    mezzo_scaler_free(scaler);
    mezzo_program_free(program);
    mezzo_params_free(params);
    mezzo_graph_free(g);
}

static double distance(const result *a, const result *b) { // relative, of all gradients together
    double off = 0, all = 0;
    assert_int_equal(a->n, b->n);
    for (size_t i = 0; i < a->n; i++) {
        off += pow((double)a->gradient[i] - (double)b->gradient[i], 2);
        all += pow((double)b->gradient[i], 2);
    }
    return sqrt(off / (all > 0 ? all : 1));
}

// The bounds: 32 roundings in a row of 2^-24, 2^-8 and 2^-11, and, in 16 bits, a ReLU that a rounding turns.
TEST(every_width_trains) {
    static const int64_t widths[] = {1, 3, 4, 5, 7, 8, 10, 12};
    static const struct {
        mezzo_precision precision;
        const char *name;
        double most;
    } rows[] = {{MEZZO_PRECISION_FP32, "fp32", 0x1p-19},
                {MEZZO_PRECISION_BF16, "bf16", 0x1p-3},
                {MEZZO_PRECISION_FP16, "fp16", 0x1p-6}};
    static result exact, got;
    mezzo_device *ref;
    must(mezzo_device_open("ref", 1, &ref));
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (int image = 0; image < 2; image++) {
            run(ref, MEZZO_PRECISION_FP32, image, widths[i], &exact);
            for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
                run(*state, rows[k].precision, image, widths[i], &got);
                const double off = distance(&got, &exact);
                if (!(off <= rows[k].most) || !(fabsf(got.loss - exact.loss) <= rows[k].most * fabsf(exact.loss)))
                    fail_msg("%s of width %d in %s: loss %g, gradients off by %g; in ref: loss %g",
                             image ? "image" : "rows", (int)widths[i], rows[k].name, (double)got.loss, off,
                             (double)exact.loss);
            }
        }
    mezzo_device_close(ref);
}

TEST_GROUP(test_open_device, test_close_device)
