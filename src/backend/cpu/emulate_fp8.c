// Emulates formats that no CPU multiplies. Products of 8-bit operands with scales, and products whose operands are
// rounded to blocks (attrs.blocks), convert their operands to a format that holds them exactly and run that format's
// kernel: E4M3 and E5M2 times a power of two (a tensor's, a block's) are BF16 numbers, blocks FP32 ones.
#include "backend/cpu/cpu.h"
#include "backend/cpu/kernels/kernels.h"
#include "base/blocks.h"
#include "backend/emulate.h"
#include "backend/scales.h"

static float load(const mz_tensor *t, int64_t i) {
    if (t->dtype == MEZZO_F32)
        return ((const float *)t->data)[i];
    uint16_t bits = ((const uint16_t *)t->data)[i];
    return t->dtype == MEZZO_BF16 ? mezzo_bf16_to_f32(bits) : mezzo_f16_to_f32(bits);
}

// --- products ------------------------------------------------------------------------------------------------------
static mezzo_dtype plain_dtype(const mz_call *call, int slot) {
    return mz_is_8bit(&call->in[slot]) ? MEZZO_BF16 : MEZZO_F32;
}

static const char *prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    return mz_plain_prepare(device, call, plain_dtype, out);
}

static float value_of(mezzo_dtype dtype, uint8_t code) {
    return dtype == MEZZO_F8E4M3 ? mezzo_e4m3_to_f32(code) : mezzo_e5m2_to_f32(code);
}

// Widens data with a power of two for each block or tile, to BF16.
static void widen_blocks(const mezzo_device *device, const mz_tensor *from, uint16_t *to) {
    const int64_t n = mz_shape_count(&from->shape);
    const uint8_t *codes = from->data;
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, 4 * (double)n))
    for (int64_t i = 0; i < n; i++)
        to[i] = mezzo_f32_to_bf16(value_of(from->dtype, codes[mz_tensor_index(from, i)]) *
                                  from->scale[mz_scale_index(from, i)]);
}

// Widens 8-bit data with one power of two: a table has the 256 BF16 numbers.
static void widen(const mezzo_device *device, const mz_tensor *from, uint16_t *to) {
    const int64_t n = mz_shape_count(&from->shape);
    const uint8_t *codes = from->data;
    uint16_t values[256];
    if (mz_scaling_in_blocks(from->scaling)) {
        widen_blocks(device, from, to);
        return;
    }
    for (int i = 0; i < 256; i++)
        values[i] = mezzo_f32_to_bf16(value_of(from->dtype, (uint8_t)i) * *from->scale);
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, 0.5 * (double)n))
    for (int64_t i = 0; i < n; i++)
        to[i] = values[codes[mz_tensor_index(from, i)]];
}

// Rounds an operand as numerics.compute says, and then to blocks along the dimension that the product sums over: the
// last one, or the first of the matrix [rows, columns].
static void to_blocks(const mezzo_device *device, const mz_call *call, int slot, bool first, float *to) {
    const mz_tensor *from = &call->in[slot];
    const mz_blocks_how how = mz_blocks_of(call, slot);
    const int64_t n = mz_shape_count(&from->shape), columns = from->shape.dim[from->shape.rank - 1];
    const int64_t rows = n / columns, runs = first ? columns : rows, before = call->attrs.first_row * columns;
    const int64_t k = first ? rows : columns, stride = first ? columns : 1;
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, (double)n))
    for (int64_t i = 0; i < n; i++)
        to[i] = (float)mezzo_round_to((double)load(from, i), call->numerics.compute);
    if (how.hadamard) {
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, 5 * (double)n))
        for (int64_t i = 0; i < runs; i++)
            mz_blocks_turn_run(how.format, how.signs, to + (first ? i : i * columns), k, stride);
    }
    const float tensor = mz_blocks_tensor_scale(how.format, mz_blocks_amax(to, n));
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, 10 * (double)n))
    for (int64_t i = 0; i < runs; i++) {
        const int64_t at = first ? i : i * columns;
        mz_blocks_round_run(&how, to + at, k, stride, tensor, before + at);
    }
}

static mezzo_status run(mezzo_device *device, const mz_call *call) {
    mz_call part = mz_plain_call(call, plain_dtype);
    for (int i = 0; i < 2; i++) {
        bool first = call->op == MZ_OP_linear_dw || (call->op == MZ_OP_linear_dx && i == 1);
        if (mz_is_8bit(&call->in[i]))
            widen(device, &call->in[i], part.in[i].data);
        else
            to_blocks(device, call, i, first, part.in[i].data);
    }
    return mz_plain_run(device, call, &part);
}

const mz_kernel mz_cpu_linear_emulated = {"linear_emulated__portable", prepare, run};
const mz_kernel mz_cpu_linear_dx_emulated = {"linear_dx_emulated__portable", prepare, run};
const mz_kernel mz_cpu_linear_dw_emulated = {"linear_dw_emulated__portable", prepare, run};

static const char *prepare_grouped(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    const char *reason = mz_plain_refuses_grouped(call);
    return reason != NULL ? reason : prepare(device, call, out);
}

const mz_kernel mz_cpu_grouped_linear_emulated = {"grouped_linear_emulated__portable", prepare_grouped, run};
const mz_kernel mz_cpu_grouped_linear_dx_emulated = {"grouped_linear_dx_emulated__portable", prepare_grouped, run};
const mz_kernel mz_cpu_grouped_linear_dw_emulated = {"grouped_linear_dw_emulated__portable", prepare_grouped, run};

mz_takes mz_cpu_takes(const mz_kernel *kernel) {
    const uint32_t emulated_formats = MZ_BIT(MEZZO_F8E4M3) | MZ_BIT(MEZZO_F8E5M2);
    static const mz_kernel *const eight[] = {
        &mz_cpu_linear_emulated,         &mz_cpu_linear_dx_emulated,         &mz_cpu_linear_dw_emulated,
        &mz_cpu_grouped_linear_emulated, &mz_cpu_grouped_linear_dx_emulated, &mz_cpu_grouped_linear_dw_emulated,
        &mz_quantize__portable};
    for (size_t i = 0; i < MZ_COUNT(eight); i++)
        if (kernel == eight[i])
            return (mz_takes){MZ_DTYPES_USUAL | emulated_formats, MZ_SCALINGS_NONE | MZ_SCALINGS_8BIT, .blocks = i < 3};
    return (mz_takes){MZ_DTYPES_USUAL, MZ_SCALINGS_NONE, .blocks = false};
}
