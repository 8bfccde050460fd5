// Ops on one element at a time: sums, products, activations and their gradients, dropout, casts.
#include "backend/cpu/kernels/act.h"
#include "backend/cpu/kernels/block.h"
#include "backend/cpu/kernels/dropout.h"
#include "backend/cpu/kernels/kernels.h"

// y[0 … n) from a and b (NULL for ops of one input); `at` is the block's first element.
typedef void map_fn(const mz_call *call, int64_t at, const float *a, const float *b, float *y, int n);

// Where b's elements are: its own block, or a tile of repeats when b is shorter than a block.
typedef struct repeat {
    int64_t row;   // elements after which b starts again from its beginning (a multiple of b's count)
    int64_t parts; // blocks in a row
    int64_t total; // blocks in all
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
    widen_block(b->data, b->dtype, tile, (int)nb);
    for (int64_t i = nb; i + nb <= MZ_BLOCK; i += nb)
        memcpy(tile + i, tile, 4 * (size_t)nb);
}

// `cost`: nanoseconds an element on one core, for the choice of threads.
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
            const float *av = block_in(a, at, count, a_buffer), *bv = b_buffer;
            if (!tiled)
                bv = b != NULL ? block_in(b, nb == n ? at : part, count, b_buffer) : NULL;
            float *yv = block_out(y, at, y_buffer);
            fn(call, at, av, bv, yv, count);
            block_done(y, at, count, yv);
        }
    }
    return MEZZO_OK;
}

#define MAP(name, expression)                                                                                          \
    static void name##_block(const mz_call *call, int64_t at, const float *a, const float *b, float *y, int n) {       \
        (void)call, (void)at, (void)b;                                                                                 \
        EACH_VECTOR(i, lanes, n, {                                                                                     \
            vf x = vload_lanes(a + i, lanes, 0);                                                                       \
            vstore_lanes(y + i, (expression), lanes);                                                                  \
        });                                                                                                            \
    }
#define OTHER vload_lanes(b + i, lanes, 0)

// Choices, not products: an infinite dy stays what it is, and NaN of x stays NaN.
static inline vf abs_derivative(vf dy, vf x) {
    vf at_zero = vselect(vless_equal(x, (vf){0}), (vf){0}, x); // 0, or NaN
    return vselect(vless((vf){0}, x), dy, vselect(vless(x, (vf){0}), -dy, at_zero));
}
static inline vf clamped(vf x, vf low, vf high) {
    return vselect(vless(x, low), low, vselect(vless(high, x), high, x));
}
static inline vf clamp_derivative(vf dy, vf x, vf low, vf high) {
    return vselect(vless_equal(low, x), vselect(vless_equal(x, high), dy, (vf){0}), (vf){0});
}

// Costs are nanoseconds an element on one Zen 4 core, FP32 and BF16, in cache and out of it, averaged.
#define KERNEL_OF(name, cost)                                                                                          \
    static mezzo_status run_##name(mezzo_device *device, const mz_call *call) {                                        \
        return run_map(device, call, name##_block, cost);                                                              \
    }                                                                                                                  \
    const mz_kernel MZ_SYMBOL(name) = {#name "__" MZ_LEVEL_TEXT, prepare_floats, run_##name};

MAP(scale, (x)*call->attrs.alpha)
KERNEL_OF(scale, 0.3)
MAP(relu, vact(MZ_ACT_RELU, x))
KERNEL_OF(relu, 0.3)
MAP(silu, vact(MZ_ACT_SILU, x))
KERNEL_OF(silu, 0.4)
MAP(relu_dx, vact_dx(MZ_ACT_RELU, x, OTHER))
KERNEL_OF(relu_dx, 0.4)
MAP(silu_dx, vact_dx(MZ_ACT_SILU, x, OTHER))
KERNEL_OF(silu_dx, 0.5)

MAP(exp, vexp(x))
KERNEL_OF(exp, 0.5)
MAP(abs, vabs(x))
KERNEL_OF(abs, 0.3)
MAP(abs_dx, abs_derivative(x, OTHER))
KERNEL_OF(abs_dx, 0.4)
MAP(clamp, clamped(x, vset(call->attrs.low), vset(call->attrs.high)))
KERNEL_OF(clamp, 0.3)
MAP(clamp_dx, clamp_derivative(x, OTHER, vset(call->attrs.low), vset(call->attrs.high)))
KERNEL_OF(clamp_dx, 0.4)

MAP(gelu_erf, vact(MZ_ACT_GELU, x))
MAP(gelu_tanh, vact(MZ_ACT_GELU_TANH, x))
static void gelu_block(const mz_call *call, int64_t at, const float *a, const float *b, float *y, int n) {
    (call->attrs.tanh ? gelu_tanh_block : gelu_erf_block)(call, at, a, b, y, n);
}
KERNEL_OF(gelu, 0.6)

MAP(gelu_erf_dx, vact_dx(MZ_ACT_GELU, x, OTHER))
MAP(gelu_tanh_dx, vact_dx(MZ_ACT_GELU_TANH, x, OTHER))
static void gelu_dx_block(const mz_call *call, int64_t at, const float *a, const float *b, float *y, int n) {
    (call->attrs.tanh ? gelu_tanh_dx_block : gelu_erf_dx_block)(call, at, a, b, y, n);
}
KERNEL_OF(gelu_dx, 0.7)

static void dropout_block(const mz_call *call, int64_t at, const float *a, const float *b, float *y, int n) {
    (void)b;
    float buffer[MZ_BLOCK + 2 * DROPOUT_RUN];
    dropout_stream stream = dropout_begin(call);
#if VEC_512
    if ((at & 3) == 0) { // masks at once, not factors through memory
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
        // A choice, not a product: a dropped infinity is 0, not NaN.
        vstore_lanes(y + i, vselect(vless((vf){0}, f), x * f, (vf){0}), lanes);
    }
}
KERNEL_OF(dropout, 0.8)

// --- two operands, either of which may repeat ----------------------------------------------------------------------
static const float *repeated(const mz_tensor *t, int64_t at, int64_t stride, int64_t from, int n, float *buffer) {
    if (stride != 0)
        return block_in(t, at + from, n, buffer);
    float one;
    widen_block(element_at(t, at), t->dtype, &one, 1);
    FOR_LANES(i, lanes, n)
    vstore_lanes(buffer + i, vset(one), lanes);
    return buffer;
}

static mezzo_status run_repeats(mezzo_device *device, const mz_call *call, map_fn *fn, const mz_broadcast *r,
                                double cost) {
    const mz_tensor *y = &call->out[0];
    int last = r->rank - 1;
    int64_t length = r->dim[last], n = mz_shape_count(&y->shape), parts = (length + MZ_BLOCK - 1) / MZ_BLOCK;
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, cost *(double)n))
    for (int64_t task = 0; task < n / length * parts; task++) {
        float a_buffer[MZ_BLOCK], b_buffer[MZ_BLOCK], y_buffer[MZ_BLOCK];
        int64_t row = task / parts, from = task % parts * MZ_BLOCK, a = 0, b = 0;
        int count = (int)min64(MZ_BLOCK, length - from);
        for (int64_t d = last - 1, rest = row; d >= 0; rest /= r->dim[d], d--) {
            a += rest % r->dim[d] * r->a[d];
            b += rest % r->dim[d] * r->b[d];
        }
        float *yv = block_out(y, row * length + from, y_buffer);
        fn(call, row * length + from, repeated(&call->in[0], a, r->a[last], from, count, a_buffer),
           repeated(&call->in[1], b, r->b[last], from, count, b_buffer), yv, count);
        block_done(y, row * length + from, count, yv);
    }
    return MEZZO_OK;
}

static mezzo_status run_binary(mezzo_device *device, const mz_call *call, map_fn *fn, double cost) {
    mz_broadcast r = mz_broadcast_loops(&call->in[0].shape, &call->in[1].shape, &call->out[0].shape);
    if (mz_broadcast_whole(&r) > 0 || mz_shape_count(&call->out[0].shape) == 0)
        return run_map(device, call, fn, cost);
    return run_repeats(device, call, fn, &r, cost);
}

#define BINARY(name, formula)                                                                                          \
    static void name##_block(const mz_call *call, int64_t at, const float *p, const float *q, float *y, int n) {       \
        (void)call, (void)at;                                                                                          \
        EACH_VECTOR(i, lanes, n, {                                                                                     \
            vf a = vload_lanes(p + i, lanes, 0), b = vload_lanes(q + i, lanes, 0);                                     \
            vstore_lanes(y + i, (formula), lanes);                                                                     \
        });                                                                                                            \
    }                                                                                                                  \
    static mezzo_status run_##name(mezzo_device *device, const mz_call *call) {                                        \
        return run_binary(device, call, name##_block, 0.4);                                                            \
    }                                                                                                                  \
    const mz_kernel MZ_SYMBOL(name) = {#name "__" MZ_LEVEL_TEXT, prepare_floats, run_##name};
#include "graph/binary.def"

// --- cast ----------------------------------------------------------------------------------------------------------
MAP(move, x)

static const char *cast_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    const mz_tensor *x = &call->in[0], *y = &call->out[0];
    if (is_storage_float(x) && is_storage_float(y))
        return NULL;
    bool integer = x->dtype == MEZZO_I32 && (y->dtype == MEZZO_I32 || is_storage_float(y));
    return integer ? NULL : "casts are among fp32, bf16, fp16, and from i32";
}

static mezzo_status run_cast(mezzo_device *device, const mz_call *call) {
    const mz_tensor *x = &call->in[0], *y = &call->out[0];
    size_t n = (size_t)mz_shape_count(&y->shape);
    if (is_storage_float(x) && (x->dtype != y->dtype || x->dtype == MEZZO_F32))
        return run_map(device, call, move_block, 0.2);
    return mezzo_convert(x->data, x->dtype, y->data, y->dtype, n);
}
const mz_kernel MZ_SYMBOL(cast) = {"cast__" MZ_LEVEL_TEXT, cast_prepare, run_cast};
const mz_kernel MZ_SYMBOL(reshape) = {"reshape__" MZ_LEVEL_TEXT, cast_prepare, run_cast};
