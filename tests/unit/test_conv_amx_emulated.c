// Direct convolution on AMX on any machine: the tile instructions are emulated in C, everything around them (lines with
// their padding, packing, parts of a weight's gradient, edges) is what runs beside the real ones. Operands are small
// integers, so that every sum is exact.
#define MZ_AMX_EMULATE
#include <math.h>
#include <stdlib.h>

#include "backend/cpu/kernels/amx_conv.c"
#include "test.h"

#define GUARD 64
#define WARY  0x5A

typedef struct shape {
    int64_t images, height, width, channels, n, r, s;
    int stride, pad;
} shape;

typedef struct buffers {
    int64_t p, q, n_x, n_w, n_y;
    float *x, *w, *y;
    uint16_t *x16, *w16, *y16;
} buffers;

static float number(int64_t i, uint32_t stream) {
    uint32_t words[4];
    mz_philox((mz_philox_key){.seed = 11, .tensor = stream}, (uint64_t)i, words);
    return (float)(words[0] % 9) - 4;
}

static float *filled(int64_t n, uint32_t stream, uint16_t **narrow) {
    float *x = mz_alloc((size_t)n, sizeof *x);
    *narrow = mz_alloc((size_t)n, sizeof **narrow);
    assert_true(x != NULL && *narrow != NULL);
    for (int64_t i = 0; i < n; i++) {
        x[i] = number(i, stream);
        (*narrow)[i] = mezzo_f32_to_bf16(x[i]);
    }
    return x;
}

// What a convolution and its gradients are; y holds dy for the gradients, as it is an operand there.
static void convolve(const shape *c, const buffers *b, float *y, float *dx, float *dw) {
    for (int64_t i = 0; i < c->images; i++)
        for (int64_t p = 0; p < b->p; p++)
            for (int64_t q = 0; q < b->q; q++)
                for (int64_t r = 0; r < c->r; r++)
                    for (int64_t s = 0; s < c->s; s++) {
                        const int64_t row = p * c->stride - c->pad + r, column = q * c->stride - c->pad + s;
                        if (row < 0 || row >= c->height || column < 0 || column >= c->width)
                            continue;
                        const int64_t at = ((i * c->height + row) * c->width + column) * c->channels;
                        const int64_t to = ((i * b->p + p) * b->q + q) * c->n;
                        for (int64_t n = 0; n < c->n; n++) {
                            const int64_t tap = ((n * c->r + r) * c->s + s) * c->channels;
                            for (int64_t k = 0; k < c->channels; k++) {
                                y[to + n] += b->x[at + k] * b->w[tap + k];
                                dx[at + k] += b->y[to + n] * b->w[tap + k];
                                dw[tap + k] += b->y[to + n] * b->x[at + k];
                            }
                        }
                    }
}

static mz_tensor tensor(void *data, mezzo_dtype dtype, int64_t d0, int64_t d1, int64_t d2, int64_t d3) {
    return (mz_tensor){.data = data, .dtype = dtype, .shape = {.rank = 4, .dim = {d0, d1, d2, d3}}};
}

static const mz_microkernel kernel = {.name = "amx",
                                      .mr = MR,
                                      .nr = NR,
                                      .k_unit = 32,
                                      .a_panel = MZ_PANEL_TILE_A,
                                      .b_panel = MZ_PANEL_TILE_B,
                                      .conv = &mz_conv_amx};
static const mz_matmul_path path = {&kernel, &mz_matmul_isa__portable};

// On one thread and on three: the same bits, and not a byte past the end.
static void run(mz_call *call, const float *wanted, int64_t n) {
    float *first = NULL;
    for (int threads = 1; threads <= 3; threads += 2) {
        const size_t room = mz_conv_direct_workspace(path, call, threads);
        unsigned char *workspace = mz_alloc(room + GUARD, 1);
        memset(workspace, WARY, room + GUARD);
        call->workspace = workspace;
        float *out = mz_alloc((size_t)n, sizeof *out);
        for (int64_t i = 0; i < n; i++)
            out[i] = call->attrs.accumulate ? 100 : NAN;
        call->out[0].data = out;
        mz_conv_direct_run(path, call, threads);
        for (int64_t i = 0; i < n; i++) // NaN: never written
            assert_true(out[i] == wanted[i] + (call->attrs.accumulate ? 100 : 0));
        for (int i = 0; i < GUARD; i++)
            assert_int_equal(workspace[room + (size_t)i], WARY);
        mz_free(workspace);
        mz_free(first);
        first = out;
    }
    mz_free(first);
}

static void check(const shape *c) {
    buffers b = {.p = (c->height + 2 * c->pad - c->r) / c->stride + 1,
                 .q = (c->width + 2 * c->pad - c->s) / c->stride + 1};
    b.n_x = c->images * c->height * c->width * c->channels;
    b.n_w = c->n * c->r * c->s * c->channels;
    b.n_y = c->images * b.p * b.q * c->n;
    b.x = filled(b.n_x, 1, &b.x16);
    b.w = filled(b.n_w, 2, &b.w16);
    b.y = filled(b.n_y, 3, &b.y16);
    float *y = mz_alloc((size_t)b.n_y, sizeof *y), *dx = mz_alloc((size_t)b.n_x, sizeof *dx);
    float *dw = mz_alloc((size_t)b.n_w, sizeof *dw);
    convolve(c, &b, y, dx, dw);

    const mz_tensor x16 = tensor(b.x16, MEZZO_BF16, c->images, c->height, c->width, c->channels);
    const mz_tensor w16 = tensor(b.w16, MEZZO_BF16, c->n, c->r, c->s, c->channels);
    const mz_tensor y16 = tensor(b.y16, MEZZO_BF16, c->images, b.p, b.q, c->n);
    mz_tensor x32 = x16, w32 = w16, y32 = y16, absent = {.shape = {.rank = -1}};
    x32.dtype = w32.dtype = y32.dtype = MEZZO_F32;
    mz_call call = {
        .attrs = {.stride = c->stride, .pad_before = c->pad, .pad_after = c->pad, .groups = 1, .via = MEZZO_F32},
        .numerics = {MEZZO_BF16, MEZZO_F32, MEZZO_F32},
        .n_in = 3,
        .n_out = 1};
    call.op = MZ_OP_conv2d;
    call.in[0] = x16, call.in[1] = w16, call.in[2] = absent, call.out[0] = y32;
    if (mz_conv_direct_refuses(path, &call) == NULL)
        run(&call, y, b.n_y);
    else
        assert_true(c->channels % 32 != 0);
    call.op = MZ_OP_conv2d_dx, call.n_in = 2;
    call.in[0] = y16, call.out[0] = x32;
    if (mz_conv_direct_refuses(path, &call) == NULL)
        run(&call, dx, b.n_x);
    else
        assert_true(c->n % 32 != 0 || c->stride != 1);
    call.op = MZ_OP_conv2d_dw;
    call.in[0] = y16, call.in[1] = x16, call.out[0] = w32;
    call.out[1] = absent, call.n_out = 2;
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        call.attrs.accumulate = accumulate;
        assert_null(mz_conv_direct_refuses(path, &call));
        run(&call, dw, b.n_w);
    }
    float *all[] = {b.x, b.w, b.y, y, dx, dw};
    uint16_t *narrow[] = {b.x16, b.w16, b.y16};
    for (int i = 0; i < 6; i++)
        mz_free(all[i]);
    for (int i = 0; i < 3; i++)
        mz_free(narrow[i]);
}

TEST(sizes) {
    const shape shapes[] = {
        {2, 16, 16, 32, 32, 3, 3, 1, 1}, // a tile is a line
        {3, 5, 32, 32, 64, 3, 3, 1, 1},  // two tiles a line
        {1, 40, 40, 64, 32, 3, 3, 1, 1}, // tiles that go on in the next line
        {2, 7, 10, 32, 33, 3, 3, 1, 1},  // panels of the result that are not full
        {5, 9, 3, 32, 32, 3, 3, 1, 1},   // fewer pixels than a tile in a line
        {2, 20, 20, 64, 32, 3, 3, 2, 1}, // strided
        {2, 17, 15, 33, 40, 3, 3, 1, 1}, // channels that only the weight's gradient takes
        {2, 8, 64, 2, 2, 3, 3, 1, 1},    {1, 66, 1, 96, 32, 3, 1, 1, 0}, // a weight one column wide
        {3, 12, 34, 32, 32, 5, 5, 1, 2},
    };
    for (size_t i = 0; i < MZ_COUNT(shapes); i++)
        check(&shapes[i]);
}

// A pixel of the result has what is not finite from its own patch alone: no neighbour in memory, no rest of a tile.
TEST(what_is_not_finite_stays) {
    enum { SIDE = 10, CHANNELS = 32, PIXELS = SIDE * SIDE };
    uint16_t *x = mz_alloc(PIXELS * CHANNELS, sizeof *x), *w = mz_alloc((size_t)CHANNELS * 9 * CHANNELS, sizeof *w);
    uint16_t *dy = mz_alloc(PIXELS * CHANNELS, sizeof *dy);
    float *y = mz_alloc(PIXELS * CHANNELS, sizeof *y), *dw = mz_alloc((size_t)CHANNELS * 9 * CHANNELS, sizeof *dw);
    for (int i = 0; i < CHANNELS * 9 * CHANNELS; i++)
        w[i] = mezzo_f32_to_bf16(1);
    for (int i = 0; i < PIXELS * CHANNELS; i++)
        dy[i] = mezzo_f32_to_bf16(1);
    x[(4 * SIDE + 9) * CHANNELS + 5] = mezzo_f32_to_bf16(INFINITY); // the last of its line
    mz_call call = {.op = MZ_OP_conv2d,
                    .n_in = 3,
                    .n_out = 2,
                    .attrs = {.stride = 1, .pad_before = 1, .pad_after = 1, .groups = 1, .via = MEZZO_F32},
                    .numerics = {MEZZO_BF16, MEZZO_F32, MEZZO_F32}};
    call.in[0] = tensor(x, MEZZO_BF16, 1, SIDE, SIDE, CHANNELS);
    call.in[1] = tensor(w, MEZZO_BF16, CHANNELS, 3, 3, CHANNELS);
    call.in[2].shape.rank = -1;
    call.out[0] = tensor(y, MEZZO_F32, 1, SIDE, SIDE, CHANNELS);
    call.out[1].shape.rank = -1;
    call.workspace = mz_alloc(mz_conv_direct_workspace(path, &call, 1), 1);
    mz_conv_direct_run(path, &call, 1);
    mz_free(call.workspace);
    for (int i = 0; i < PIXELS; i++) {
        const bool near = abs(i / SIDE - 4) <= 1 && i % SIDE >= 8;
        assert_true(near ? y[i * CHANNELS] == INFINITY : y[i * CHANNELS] == 0);
    }
    call.op = MZ_OP_conv2d_dw;
    call.in[1] = call.in[0];
    call.in[0] = tensor(dy, MEZZO_BF16, 1, SIDE, SIDE, CHANNELS);
    call.out[0] = tensor(dw, MEZZO_F32, CHANNELS, 3, 3, CHANNELS);
    call.out[1].shape.rank = -1;
    call.workspace = mz_alloc(mz_conv_direct_workspace(path, &call, 1), 1);
    mz_conv_direct_run(path, &call, 1);
    for (int i = 0; i < 9 * CHANNELS; i++) // the first column of taps never comes to the last pixel of a line
        assert_true(i % CHANNELS == 5 && i / CHANNELS % 3 > 0 ? dw[i] == INFINITY : dw[i] == 0);
    mz_free(call.workspace);
    mz_free(x);
    mz_free(w);
    mz_free(dy);
    mz_free(y);
    mz_free(dw);
}
