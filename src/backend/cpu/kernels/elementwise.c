// Runs ops on one element at a time: sums, products, activations and their gradients, dropout, casts.
#include "backend/cpu/kernels/act.h"
#include "backend/cpu/kernels/block.h"
#include "backend/cpu/kernels/dropout.h"
#include "backend/cpu/kernels/kernels.h"

// Computes y[0 … n) from a, b and c (NULL where the op has fewer inputs); `at` is the block's first element.
typedef void map_fn(const mz_call *call, int64_t at, const float *a, const float *b, const float *c, float *y, int n);

// Return where results are written, as block_out and block_done do, for integers, too.
static float *result_out(const mz_tensor *t, int64_t at, float *buffer) {
    return t->dtype == MEZZO_I32 ? buffer : block_out(t, at, buffer);
}
static void result_done(const mz_tensor *t, int64_t at, int n, const float *buffer) {
    if (t->dtype != MEZZO_I32) {
        block_done(t, at, n, buffer);
        return;
    }
    for (int i = 0; i < n; i++)
        ((int32_t *)t->data)[at + i] = (int32_t)buffer[i];
}

// Says where b's elements are: in its own block, or in a tile of repeats when b is shorter than a block.
typedef struct repeat {
    int64_t row;   // elements after which b starts again (a multiple of b's count)
    int64_t parts; // blocks of a row
    int64_t total; // number of blocks
} repeat;

static repeat repeat_of(int64_t n, int64_t nb) {
    repeat r = {.row = nb};
    if (nb < MZ_BLOCK && nb < n)
        r.row = MZ_BLOCK / nb * nb;
    r.parts = (r.row + MZ_BLOCK - 1) / MZ_BLOCK;
    r.total = (n + r.row - 1) / r.row * r.parts;
    return r;
}

static void fill_tile(const mz_tensor *b, int64_t nb, float *tile) {
    float buffer[MZ_BLOCK];
    memcpy(tile, numbers_in(b, 0, (int)nb, buffer), 4 * (size_t)nb);
    for (int64_t i = nb; i + nb <= MZ_BLOCK; i += nb)
        memcpy(tile + i, tile, 4 * (size_t)nb);
}

// Runs a function on all blocks. `cost`: nanoseconds of an element on one core, which decides the number of threads.
static mezzo_status run_map(mezzo_device *device, const mz_call *call, map_fn *fn, double cost) {
    const mz_tensor *a = &call->in[0], *b = call->n_in > 1 ? &call->in[1] : NULL, *y = &call->out[0];
    int64_t n = mz_shape_count(&y->shape), nb = b != NULL ? mz_shape_count(&b->shape) : n;
    if (n == 0)
        return MEZZO_OK;
    repeat r = repeat_of(n, nb);
    bool tiled = nb < MZ_BLOCK && nb < n;
#pragma omp parallel num_threads(mz_cpu_threads(device, cost *(double)n))
    {
        float a_buffer[MZ_BLOCK], b_buffer[MZ_BLOCK], y_buffer[MZ_BLOCK];
        if (tiled)
            fill_tile(b, nb, b_buffer);
#pragma omp for schedule(static)
        for (int64_t block = 0; block < r.total; block++) {
            int64_t part = block % r.parts * MZ_BLOCK, at = block / r.parts * r.row + part;
            int count = (int)min64(min64(MZ_BLOCK, r.row - part), n - at);
            if (count <= 0)
                continue;
            const float *av = numbers_in(a, at, count, a_buffer), *bv = b_buffer;
            if (!tiled)
                bv = b != NULL ? numbers_in(b, nb == n ? at : part, count, b_buffer) : NULL;
            float *yv = result_out(y, at, y_buffer);
            fn(call, at, av, bv, NULL, yv, count);
            result_done(y, at, count, yv);
        }
    }
    return MEZZO_OK;
}

#define MAP(name, expression)                                                                                          \
    static void name##_block(const mz_call *call, int64_t at, const float *a, const float *b, const float *c,          \
                             float *y, int n) {                                                                        \
        (void)call, (void)at, (void)b, (void)c;                                                                        \
        EACH_VECTOR(i, lanes, n, {                                                                                     \
            vf x = vload_lanes(a + i, lanes, 0);                                                                       \
            vstore_lanes(y + i, (expression), lanes);                                                                  \
        });                                                                                                            \
    }
#define OTHER vload_lanes(b + i, lanes, 0)

// Defines a kernel. `cost`: nanoseconds of an element on one core, which decides the number of threads.
#define KERNEL_OF(name, cost)                                                                                          \
    static mezzo_status run_##name(mezzo_device *device, const mz_call *call) {                                        \
        return run_map(device, call, name##_block, cost);                                                              \
    }                                                                                                                  \
    MZ_CPU_KERNEL(name, "a", "a", NULL, NULL)

MAP(gelu_erf, vact(MZ_ACT_GELU, x))
MAP(gelu_tanh, vact(MZ_ACT_GELU_TANH, x))
static void gelu_block(const mz_call *call, int64_t at, const float *a, const float *b, const float *c, float *y,
                       int n) {
    (call->attrs.tanh ? gelu_tanh_block : gelu_erf_block)(call, at, a, b, c, y, n);
}
KERNEL_OF(gelu, 0.6)

MAP(gelu_erf_dx, vact_dx(MZ_ACT_GELU, x, OTHER))
MAP(gelu_tanh_dx, vact_dx(MZ_ACT_GELU_TANH, x, OTHER))
static void gelu_dx_block(const mz_call *call, int64_t at, const float *a, const float *b, const float *c, float *y,
                          int n) {
    (call->attrs.tanh ? gelu_tanh_dx_block : gelu_erf_dx_block)(call, at, a, b, c, y, n);
}
KERNEL_OF(gelu_dx, 0.7)

static void dropout_block(const mz_call *call, int64_t at, const float *a, const float *b, const float *c, float *y,
                          int n) {
    (void)b, (void)c;
    float buffer[MZ_BLOCK + 2 * DROPOUT_RUN];
    dropout_stream stream = dropout_begin(call);
#if VEC_512
    if ((at & 3) == 0) { // the masks are used directly, without factors in memory
        for (int i = 0; i < n; i += 64) {
            __mmask16 keep[4];
            dropout_keep64(&stream, (uint64_t)(at + i) >> 2, keep);
            for (int k = 0; k < 4 && i + 16 * k < n; k++) {
                int lanes = n - i - 16 * k < 16 ? n - i - 16 * k : 16;
                vf x = vload_lanes(a + i + 16 * k, lanes, 0);
                if (stream.scale == 0)
                    keep[k] = 0;
                vstore_lanes(y + i + 16 * k, (vf)_mm512_maskz_mul_ps(keep[k], (__m512)x, _mm512_set1_ps(stream.scale)),
                             lanes);
            }
        }
        return;
    }
#endif
    const float *factors = dropout_factors(&stream, (uint64_t)at, n, buffer);
    FOR_LANES(i, lanes, n) {
        vf f = vload_lanes(factors + i, lanes, 0), x = vload_lanes(a + i, lanes, 0);
        // A selection, not a product: a dropped infinity becomes 0, not NaN.
        vstore_lanes(y + i, vselect(vless((vf){0}, f), x * f, (vf){0}), lanes);
    }
}
KERNEL_OF(dropout, 0.8)

// --- operands that may repeat --------------------------------------------------------------------------------------
static const float *repeated(const mz_tensor *t, int64_t at, int64_t stride, int64_t from, int n, float *buffer) {
    if (stride != 0)
        return numbers_in(t, at + from, n, buffer);
    float one;
    const vf all = vset(*numbers_in(t, at, 1, &one));
    FOR_LANES(i, lanes, n)
    vstore_lanes(buffer + i, all, lanes);
    return buffer;
}

static mezzo_status run_repeats(mezzo_device *device, const mz_call *call, map_fn *fn, const mz_broadcast *r,
                                double cost) {
    const mz_tensor *y = &call->out[0];
    int last = r->rank - 1;
    int64_t length = r->dim[last], n = mz_shape_count(&y->shape), parts = (length + MZ_BLOCK - 1) / MZ_BLOCK;
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, cost *(double)n))
    for (int64_t task = 0; task < n / length * parts; task++) {
        float buffer[MZ_OPERANDS][MZ_BLOCK], y_buffer[MZ_BLOCK];
        const float *v[MZ_OPERANDS] = {NULL};
        int64_t row = task / parts, from = task % parts * MZ_BLOCK;
        int count = (int)min64(MZ_BLOCK, length - from);
        for (int k = 0; k < call->n_in; k++) {
            int64_t at = 0;
            for (int64_t d = last - 1, rest = row; d >= 0; rest /= r->dim[d], d--)
                at += rest % r->dim[d] * r->step[k][d];
            v[k] = repeated(&call->in[k], at, r->step[k][last], from, count, buffer[k]);
        }
        float *yv = result_out(y, row * length + from, y_buffer);
        fn(call, row * length + from, v[0], v[1], v[2], yv, count);
        result_done(y, row * length + from, count, yv);
    }
    return MEZZO_OK;
}

static mezzo_status run_operands(mezzo_device *device, const mz_call *call, map_fn *fn) {
    const mz_shape *in[MZ_OPERANDS];
    if (call->n_in == 1 || mz_shape_count(&call->out[0].shape) == 0)
        return run_map(device, call, fn, 0.4);
    for (int k = 0; k < call->n_in; k++)
        in[k] = &call->in[k].shape;
    mz_broadcast r = mz_broadcast_loops(in, call->n_in, &call->out[0].shape);
    return call->n_in == 2 && mz_broadcast_whole(&r) > 0 ? run_map(device, call, fn, 0.4)
                                                         : run_repeats(device, call, fn, &r, 0.4);
}

// --- element.def ---------------------------------------------------------------------------------------------------
#define num(x)           vset(x##f)
#define less(a, b)       vless(a, b)
#define less_equal(a, b) vless_equal(a, b)
#define equal(a, b)      vequal(a, b)
#define choose(m, a, b)  vselect((vmask)(m), a, b)
#define fused(a, b, c)   vfma(a, b, c)
#define magnitude(x)     vabs(x)
#define root(x)          vsqrt(x)
#define exponential(x)   vexp(x)
#define hyperbolic(x)    vtanh(x)
#define logistic(x)      vsigmoid(x)
#define silu(x)          vact(MZ_ACT_SILU, x)
#define silu_dx(dy, x)   vact_dx(MZ_ACT_SILU, dy, x)
#define LANES(name, function)                                                                                          \
    static inline vf name(vf x) {                                                                                      \
        for (int i = 0; i < VW; i++)                                                                                   \
            x[i] = function(x[i]);                                                                                     \
        return x;                                                                                                      \
    }
LANES(logarithm, logf)
LANES(logarithm_1p, log1pf)
LANES(error_function, erff)
LANES(sine, sinf)
LANES(cosine, cosf)
LANES(down, floorf)
LANES(up, ceilf)
LANES(nearest, rintf)
static inline vf power(vf a, vf b) {
    for (int i = 0; i < VW; i++)
        a[i] = powf(a[i], b[i]);
    return a;
}

#define KERNEL(name, names, formula)                                                                                   \
    static void name##_block(const mz_call *call, int64_t at, const float *p0, const float *p1, const float *p2,       \
                             float *out, int n) {                                                                      \
        const vf alpha = vset(call->attrs.alpha), low = vset(call->attrs.low), high = vset(call->attrs.high);          \
        (void)at, (void)p1, (void)p2, (void)alpha, (void)low, (void)high;                                              \
        EACH_VECTOR(i, lanes, n, { names vstore_lanes(out + i, (formula), lanes); });                                  \
    }                                                                                                                  \
    static mezzo_status run_##name(mezzo_device *device, const mz_call *call) {                                        \
        return run_operands(device, call, name##_block);                                                               \
    }                                                                                                                  \
    MZ_CPU_KERNEL(name, "n", "n", NULL, NULL)
#define NAME(a, p)                                                                                                     \
    const vf a = vload_lanes(p + i, lanes, 0);                                                                         \
    (void)a;
#define KERNEL1(name, a, formula)       KERNEL(name, NAME(a, p0), formula)
#define KERNEL2(name, a, b, formula)    KERNEL(name, NAME(a, p0) NAME(b, p1), formula)
#define KERNEL3(name, a, b, c, formula) KERNEL(name, NAME(a, p0) NAME(b, p1) NAME(c, p2), formula)
#include "graph/element.def"

// --- cast ----------------------------------------------------------------------------------------------------------
MAP(move, x)

static const char *cast_refuses(const mezzo_device *device, const mz_call *call) {
    (void)device;
    const mz_tensor *x = mz_in(call, cast, x), *y = mz_out(call, cast, y);
    if (mz_stores_float(x) && mz_stores_float(y))
        return NULL;
    bool integer = x->dtype == MEZZO_I32 && (y->dtype == MEZZO_I32 || mz_stores_float(y));
    return integer ? NULL : "casts are among fp32, bf16, fp16, and from i32";
}

static mezzo_status run_cast(mezzo_device *device, const mz_call *call) {
    const mz_tensor *x = mz_in(call, cast, x), *y = mz_out(call, cast, y);
    size_t n = (size_t)mz_shape_count(&y->shape);
    if (mz_stores_float(x) && (x->dtype != y->dtype || x->dtype == MEZZO_F32))
        return run_map(device, call, move_block, 0.2);
    return mezzo_convert(x->data, x->dtype, y->data, y->dtype, n);
}
MZ_CPU_KERNEL(cast, NULL, NULL, NULL, cast_refuses)
const mz_kernel MZ_SYMBOL(reshape) = {"reshape__" MZ_LEVEL_TEXT, prepare_cast, run_cast};
