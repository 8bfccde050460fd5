// Formats that no unit of a CPU multiplies. A cast finds a tensor's scale and rounds to 8 bits; products of 8-bit
// operands with scales, and those whose operands are rounded to blocks (attrs.blocks), bring their operands to a
// format that holds them exactly and run that one's kernel: E4M3 and E5M2 times a power of two are BF16 numbers, blocks
// FP32 ones.
#include <math.h>

#include "backend/cpu/cpu.h"
#include "base/blocks.h"

// --- cast to 8 bits ------------------------------------------------------------------------------------------------
static float load(const mz_tensor *t, int64_t i) {
    if (t->dtype == MEZZO_F32)
        return ((const float *)t->data)[i];
    uint16_t bits = ((const uint16_t *)t->data)[i];
    return t->dtype == MEZZO_BF16 ? mezzo_bf16_to_f32(bits) : mezzo_f16_to_f32(bits);
}

// The least power of two that brings `most` to at most the format's largest number; 1 where that says nothing.
static float scale_for(float most, mezzo_dtype dtype) {
    int exponent = 0;
    double ratio = (double)most / mz_dtype_largest(dtype);
    if (!isfinite(ratio) || ratio == 0)
        return 1;
    if (frexp(ratio, &exponent) == 0.5)
        exponent--;
    return (float)ldexp(1, exponent < -126 ? -126 : exponent);
}

// The largest magnitude; infinity after a NaN. A maximum does not depend on the order.
static float most_of(const mezzo_device *device, const mz_tensor *x, int64_t n) {
    float most = 0;
#pragma omp parallel for schedule(static) reduction(max : most) num_threads(mz_cpu_threads(device, (double)n))
    for (int64_t i = 0; i < n; i++) {
        float magnitude = fabsf(load(x, i));
        magnitude = isnan(magnitude) ? INFINITY : magnitude;
        most = magnitude > most ? magnitude : most;
    }
    return most;
}

// Nearest even by adding what is cut off; below the least normal number by FP32's own rounding at 2^(smallest + 23).
static inline uint8_t narrow(float x, int fraction, int bias, uint32_t overflow) {
    uint32_t bits, code, drop = 23 - (uint32_t)fraction;
    memcpy(&bits, &x, sizeof bits);
    uint32_t sign = bits >> 24 & 0x80, magnitude = bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000)
        return fraction == 3 ? mezzo_f32_to_e4m3(x) : mezzo_f32_to_e5m2(x);
    if (magnitude >= (uint32_t)(128 - bias) << 23) {
        uint32_t rebiased = magnitude - ((uint32_t)(127 - bias) << 23);
        code = (rebiased + (1U << (drop - 1)) - 1 + (rebiased >> drop & 1)) >> drop;
    } else {
        float shifted = fabsf(x) + ldexpf(1, 24 - bias - fraction);
        memcpy(&bits, &shifted, sizeof bits);
        code = bits & 0x7FFFFF;
    }
    return (uint8_t)(sign | (code < overflow ? code : overflow));
}

static const char *prepare_cast(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    const mz_tensor *x = &call->in[0], *y = &call->out[0];
    bool from = x->dtype == MEZZO_F32 || x->dtype == MEZZO_BF16 || x->dtype == MEZZO_F16;
    if (!from || x->scaling != MZ_SCALING_NONE || (y->dtype != MEZZO_F8E4M3 && y->dtype != MEZZO_F8E5M2) ||
        y->scaling != MZ_SCALING_TENSOR)
        return "casts fp32, bf16 and fp16 to 8 bits with a tensor's scale";
    return NULL;
}

static mezzo_status run_cast(mezzo_device *device, const mz_call *call) {
    const mz_tensor *x = &call->in[0], *y = &call->out[0];
    const int64_t n = mz_shape_count(&y->shape);
    const bool e4m3 = y->dtype == MEZZO_F8E4M3;
    if (call->n_out > 1 && mz_present(&call->out[1]))
        *(float *)call->out[1].data = scale_for(most_of(device, x, n), y->dtype);
    const float inverse = 1 / *y->scale; // exact: a power of two
    uint8_t *to = y->data;
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, 2 * (double)n))
    for (int64_t i = 0; i < n; i++)
        to[i] = e4m3 ? narrow(load(x, i) * inverse, 3, 7, 0x7F) : narrow(load(x, i) * inverse, 2, 15, 0x7C);
    return MEZZO_OK;
}

// --- products ------------------------------------------------------------------------------------------------------
static bool is_8bit(const mz_tensor *t) {
    return t->dtype == MEZZO_F8E4M3 || t->dtype == MEZZO_F8E5M2;
}

// What the operand becomes.
static mz_tensor plain(const mz_call *call, int slot) {
    mz_tensor t = call->in[slot];
    t.dtype = is_8bit(&t) ? MEZZO_BF16 : MEZZO_F32;
    t.scaling = MZ_SCALING_NONE;
    t.scale = NULL;
    t.data = NULL;
    return t;
}

static size_t plain_bytes(const mz_call *call, int slot) {
    mz_tensor t = plain(call, slot);
    return mz_align_up((size_t)mz_shape_count(&t.shape) * mezzo_dtype_size(t.dtype), 64);
}

static mz_call plain_call(const mz_call *call) {
    mz_call part = *call;
    char *at = call->workspace;
    for (int i = 0; i < 2; i++) {
        part.in[i] = plain(call, i);
        part.in[i].data = at;
        at = at != NULL ? at + plain_bytes(call, i) : NULL;
    }
    part.numerics.compute = part.in[0].dtype;
    part.attrs.blocks = MEZZO_BLOCKS_NONE;
    part.workspace = at;
    part.state = NULL;
    return part;
}

static void release(void *state) {
    mz_prepared_free(state);
    mz_free(state);
}

static const char *prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    bool narrow_operands = is_8bit(&call->in[0]) && is_8bit(&call->in[1]);
    if (!narrow_operands && call->attrs.blocks == MEZZO_BLOCKS_NONE)
        return "serves 8-bit operands, and operands rounded to blocks";
    if (narrow_operands != (call->in[0].scaling == MZ_SCALING_TENSOR) ||
        narrow_operands != (call->in[1].scaling == MZ_SCALING_TENSOR))
        return "8-bit operands have a scale, others none";
    mz_prepared *inner = mz_alloc(1, sizeof *inner);
    if (inner == NULL)
        return mz_out_of_memory;
    mz_call part = plain_call(call);
    part.in[0].data = part.in[1].data = NULL;
    mezzo_status status = mz_prepare(device, &part, inner);
    out->state = inner;
    out->release = release;
    out->workspace = plain_bytes(call, 0) + plain_bytes(call, 1) + inner->workspace;
    if (status == MEZZO_ERR_MEMORY)
        return mz_out_of_memory;
    return status == MEZZO_OK ? NULL : "no kernel takes the operands as bf16 or fp32";
}

// 8 bits and a power of two: 256 BF16 numbers.
static void widen(const mezzo_device *device, const mz_tensor *from, uint16_t *to) {
    const int64_t n = mz_shape_count(&from->shape);
    const uint8_t *codes = from->data;
    uint16_t values[256];
    for (int i = 0; i < 256; i++) {
        uint8_t code = (uint8_t)i;
        float value = from->dtype == MEZZO_F8E4M3 ? mezzo_e4m3_to_f32(code) : mezzo_e5m2_to_f32(code);
        values[i] = mezzo_f32_to_bf16(value * *from->scale);
    }
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, 0.5 * (double)n))
    for (int64_t i = 0; i < n; i++)
        to[i] = values[codes[i]];
}

// Rounded as numerics.compute says, and then to blocks along what is summed over: the last dimension, or the first of
// the matrix [rows, columns].
static void to_blocks(const mezzo_device *device, const mz_call *call, int slot, bool first, float *to) {
    const mz_tensor *from = &call->in[slot];
    const mezzo_blocks b = call->attrs.blocks;
    const int64_t n = mz_shape_count(&from->shape), columns = from->shape.dim[from->shape.rank - 1];
    const int64_t rows = n / columns, runs = first ? columns : rows;
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, (double)n))
    for (int64_t i = 0; i < n; i++)
        to[i] = (float)mezzo_round_to((double)load(from, i), call->numerics.compute);
    const float tensor = mz_blocks_tensor_scale(b, mz_blocks_most(to, n));
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, 10 * (double)n))
    for (int64_t i = 0; i < runs; i++)
        mz_blocks_round_run(b, to + (first ? i : i * columns), first ? rows : columns, first ? columns : 1, tensor);
}

static mezzo_status run(mezzo_device *device, const mz_call *call) {
    const mz_prepared *inner = call->state;
    mz_call part = plain_call(call);
    for (int i = 0; i < 2; i++) {
        bool first = call->op == MZ_OP_linear_dw || (call->op == MZ_OP_linear_dx && i == 1);
        if (is_8bit(&call->in[i]))
            widen(device, &call->in[i], part.in[i].data);
        else
            to_blocks(device, call, i, first, part.in[i].data);
    }
    part.state = inner->state;
    return inner->kernel->run(device, &part);
}

const mz_kernel mz_cpu_cast_scaled = {"cast_scaled__portable", prepare_cast, run_cast};
const mz_kernel mz_cpu_linear_narrow = {"linear_narrow__portable", prepare, run};
const mz_kernel mz_cpu_linear_dx_narrow = {"linear_dx_narrow__portable", prepare, run};
const mz_kernel mz_cpu_linear_dw_narrow = {"linear_dw_narrow__portable", prepare, run};

mz_takes mz_cpu_takes(const mz_kernel *kernel) {
    const uint32_t narrow_formats = MZ_BIT(MEZZO_F8E4M3) | MZ_BIT(MEZZO_F8E5M2);
    bool product =
        kernel == &mz_cpu_linear_narrow || kernel == &mz_cpu_linear_dx_narrow || kernel == &mz_cpu_linear_dw_narrow;
    if (!product && kernel != &mz_cpu_cast_scaled)
        return (mz_takes){MZ_DTYPES_USUAL, MZ_SCALINGS_NONE, false};
    return (mz_takes){MZ_DTYPES_USUAL | narrow_formats, MZ_SCALINGS_NONE | MZ_BIT(MZ_SCALING_TENSOR), product};
}
