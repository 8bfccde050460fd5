#include "backend/cpu/conv.h"

// --- reading -------------------------------------------------------------------------------------------------------
typedef struct pixel {
    int64_t image, row, column;
} pixel;

static pixel pixel_at(const mz_matmul_gather *g, int64_t i) {
    return (pixel){i / g->over_width / g->over_height, i / g->over_width % g->over_height, i % g->over_width};
}

static void next_pixel(const mz_matmul_gather *g, pixel *p) {
    if (++p->column < g->over_width)
        return;
    p->column = 0;
    if (++p->row < g->over_height)
        return;
    p->row = 0;
    p->image++;
}

// Returns the position of a pixel's tap (r, s) along one direction; -1: it is in the padding, or between two steps.
static int64_t tapped(const mz_matmul_gather *g, int64_t at, int64_t tap, int64_t extent) {
    if (g->what != MZ_GATHER_TRANSPOSED) {
        const int64_t from = at * g->stride - g->pad + tap;
        return from < 0 || from >= extent ? -1 : from;
    }
    const int64_t step = at + g->pad - tap;
    return step < 0 || step % g->stride != 0 || step / g->stride >= extent ? -1 : step / g->stride;
}

static void copy_run(char *dst, const char *src, size_t bytes) {
    if (src == NULL)
        memset(dst, 0, bytes);
    else if (bytes == 16)
        memcpy(dst, src, 16);
    else if (bytes == 64)
        memcpy(dst, src, 64);
    else if (bytes == 256)
        memcpy(dst, src, 256);
    else
        memcpy(dst, src, bytes);
}

// Copies elements `from` … from + n - 1 of one pixel's patch: [R, S, depth].
static void copy_patch(const mz_matmul_gather *g, const char *data, size_t size, char *dst, pixel p, int64_t from,
                       int64_t n) {
    int64_t tap = from / g->depth, channel = from % g->depth;
    int64_t r = tap / g->s, s = tap % g->s;
    while (n > 0) {
        const int64_t run = g->depth - channel < n ? g->depth - channel : n;
        const int64_t row = tapped(g, p.row, r, g->height), column = tapped(g, p.column, s, g->width);
        const int64_t at = ((p.image * g->height + row) * g->width + column) * g->pitch + channel;
        copy_run(dst, row < 0 || column < 0 ? NULL : data + (size_t)at * size, (size_t)run * size);
        dst += (size_t)run * size;
        n -= run;
        channel = 0;
        if (++s == g->s) {
            s = 0;
            r++;
        }
    }
}

void mz_gather_copy(const mz_matmul_gather *g, const void *data, size_t size, void *dst, int64_t i0, int ni, int64_t k0,
                    int64_t nk) {
    char *to = dst;
    if (g->what == MZ_GATHER_WEIGHT) { // w [N, R, S, C]
        const int64_t taps = g->r * g->s;
        for (int64_t k = k0; k < k0 + nk; k++, to += MZ_GATHER_WIDTH * size) {
            const int64_t n = k % g->depth, at = k / g->depth, tap = g->flipped ? taps - 1 - at : at;
            memcpy(to, (const char *)data + (size_t)((n * taps + tap) * g->pitch + i0) * size, (size_t)ni * size);
        }
        return;
    }
    const bool by_k = g->what == MZ_GATHER_PATCHES_T;
    pixel p = pixel_at(g, by_k ? k0 : i0);
    for (int64_t i = 0; i < (by_k ? nk : ni); i++, next_pixel(g, &p)) {
        copy_patch(g, data, size, to, p, by_k ? i0 : k0, by_k ? ni : nk);
        to += (by_k ? MZ_GATHER_WIDTH : MZ_GATHER_DEPTH) * size;
    }
}

// --- from a call to a product --------------------------------------------------------------------------------------
// Returns the address of element i. x [B, H, W, C], w [N, R, S, C/groups], y [B, P, Q, N].
static const void *element(const mz_tensor *t, int64_t i) {
    return t->data == NULL ? NULL : (const char *)t->data + (size_t)i * mezzo_dtype_size(t->dtype);
}

static mz_matmul_operand operand(const mz_tensor *t, mezzo_dtype compute, int64_t first, const mz_matmul_gather *gather,
                                 bool along_k) {
    return (mz_matmul_operand){.data = element(t, first),
                               .dtype = t->dtype,
                               .compute = compute,
                               .i_stride = along_k ? 0 : 1,
                               .k_stride = along_k ? 1 : 0,
                               .gather = gather};
}

static mz_matmul_gather gather_of(const mz_call *call, const mz_shape *read, const mz_shape *over, const mz_shape *w) {
    return (mz_matmul_gather){.height = read->dim[1],
                              .width = read->dim[2],
                              .pitch = read->dim[3],
                              .over_height = over->dim[1],
                              .over_width = over->dim[2],
                              .r = w->dim[1],
                              .s = w->dim[2],
                              .depth = w->dim[3],
                              .stride = call->attrs.stride,
                              .pad = call->attrs.pad_before};
}

// Returns whether the weight has one pixel: the patches are then the image, and its pixels the rows of a linear layer.
static bool is_linear(const mz_call *call, const mz_shape *w) {
    return w->dim[1] == 1 && w->dim[2] == 1 && call->attrs.stride == 1;
}

static mz_matmul_operand plain(mz_matmul_operand o, int64_t row) {
    o.gather = NULL;
    if (o.k_stride == 1)
        o.i_stride = row;
    else
        o.k_stride = row;
    return o;
}

static mz_matmul_problem forward_problem(const mz_call *call, int64_t group, mz_matmul_gather *patches) {
    static char later; // a placeholder address, because no tensor has one while memory is planned
    const mz_tensor *x = mz_in(call, conv2d, x), *w = mz_in(call, conv2d, w), *bias = mz_in(call, conv2d, bias),
                    *y = mz_out(call, conv2d, y);
    const mz_shape *ws = &w->shape;
    const int64_t n = ws->dim[0] / call->attrs.groups, k = ws->dim[1] * ws->dim[2] * ws->dim[3];
    const mezzo_dtype compute = call->numerics.compute;
    *patches = gather_of(call, &x->shape, &y->shape, ws);
    patches->what = MZ_GATHER_PATCHES;
    mz_matmul_problem p = {.m = mz_shape_rows(&y->shape), .n = n, .k = k, .batches = 1};
    p.a = operand(x, compute, group * ws->dim[3], patches, true);
    if (is_linear(call, ws))
        p.a = plain(p.a, x->shape.dim[3]);
    p.b = plain(operand(w, compute, group * n * k, NULL, true), k);
    p.out = (mz_matmul_epilogue){
        .y = (void *)element(y, group * n), .y_dtype = y->dtype, .via = call->attrs.via, .ld = ws->dim[0]};
    if (mz_present(bias)) {
        p.out.bias = bias->data != NULL ? element(bias, group * n) : &later;
        p.out.bias_dtype = bias->dtype;
    }
    return p;
}

static mz_matmul_problem dx_problem(const mz_call *call, int64_t group, mz_matmul_gather gathers[2]) {
    const mz_tensor *dy = mz_in(call, conv2d_dx, dy), *w = mz_in(call, conv2d_dx, w), *dx = mz_out(call, conv2d_dx, dx);
    const mz_shape *ws = &w->shape;
    const int64_t n = ws->dim[0] / call->attrs.groups, taps = ws->dim[1] * ws->dim[2], depth = ws->dim[3];
    const mezzo_dtype compute = call->numerics.compute;
    gathers[0] = gather_of(call, &dy->shape, &dx->shape, ws);
    gathers[0].what = MZ_GATHER_TRANSPOSED;
    gathers[0].depth = n;
    gathers[1] =
        (mz_matmul_gather){.what = MZ_GATHER_WEIGHT, .r = ws->dim[1], .s = ws->dim[2], .depth = n, .pitch = depth};
    mz_matmul_problem p = {.m = mz_shape_rows(&dx->shape), .n = depth, .k = taps * n, .batches = 1};
    p.a = operand(dy, compute, group * n, &gathers[0], true);
    p.b = operand(w, compute, group * n * taps * depth, &gathers[1], false);
    if (is_linear(call, ws)) {
        p.a = plain(p.a, dy->shape.dim[3]);
        p.b = plain(p.b, depth);
    }
    p.out = (mz_matmul_epilogue){
        .y = (void *)element(dx, group * depth), .y_dtype = dx->dtype, .via = MEZZO_F32, .ld = dx->shape.dim[3]};
    return p;
}

static mz_matmul_problem dw_problem(const mz_call *call, int64_t group, mz_matmul_gather *patches) {
    const mz_tensor *dy = mz_in(call, conv2d_dw, dy), *x = mz_in(call, conv2d_dw, x), *dw = mz_out(call, conv2d_dw, dw);
    const mz_shape *ws = &dw->shape;
    const int64_t m = ws->dim[0] / call->attrs.groups, n = ws->dim[1] * ws->dim[2] * ws->dim[3];
    const mezzo_dtype compute = call->numerics.compute;
    *patches = gather_of(call, &x->shape, &dy->shape, ws);
    patches->what = MZ_GATHER_PATCHES_T;
    mz_matmul_problem p = {.m = m, .n = n, .k = mz_shape_rows(&dy->shape), .batches = 1};
    p.a = plain(operand(dy, compute, group * m, NULL, false), dy->shape.dim[3]);
    p.b = operand(x, compute, group * ws->dim[3], patches, false);
    if (is_linear(call, ws))
        p.b = plain(p.b, x->shape.dim[3]);
    p.out =
        (mz_matmul_epilogue){.y = (void *)element(dw, group * m * n), .y_dtype = dw->dtype, .via = MEZZO_F32, .ld = n};
    p.accumulate = call->attrs.accumulate;
    return p;
}

mz_matmul_problem mz_conv_problem(const mz_call *call, int64_t group, mz_matmul_gather gathers[2]) {
    if (call->op == MZ_OP_conv2d)
        return forward_problem(call, group, gathers);
    return call->op == MZ_OP_conv2d_dx ? dx_problem(call, group, gathers) : dw_problem(call, group, gathers);
}
