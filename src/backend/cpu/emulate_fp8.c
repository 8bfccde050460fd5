// Emulates formats that no CPU multiplies. Products of 8-bit operands with scales, and products whose operands are
// rounded to blocks (attrs.blocks), convert their operands to a format that holds them exactly and run that format's
// kernel: E4M3 and E5M2 times a power of two (a tensor's, a block's) are BF16 numbers, blocks FP32 ones.
#include "backend/cpu/cpu.h"
#include "backend/cpu/kernels/kernels.h"
#include "base/blocks.h"
#include "backend/scales.h"

static float load(const mz_tensor *t, int64_t i) {
    if (t->dtype == MEZZO_F32)
        return ((const float *)t->data)[i];
    uint16_t bits = ((const uint16_t *)t->data)[i];
    return t->dtype == MEZZO_BF16 ? mezzo_bf16_to_f32(bits) : mezzo_f16_to_f32(bits);
}

// --- products ------------------------------------------------------------------------------------------------------
enum { SCALINGS = MZ_BIT(MZ_SCALING_TENSOR) | MZ_BIT(MZ_SCALING_BLOCK128) | MZ_BIT(MZ_SCALING_TILE128) };

static bool is_8bit(const mz_tensor *t) {
    return t->dtype == MEZZO_F8E4M3 || t->dtype == MEZZO_F8E5M2;
}

// Returns the operand in the format in which it is multiplied.
static mz_tensor plain(const mz_call *call, int slot) {
    mz_tensor t = call->in[slot];
    t.dtype = is_8bit(&t) ? MEZZO_BF16 : MEZZO_F32;
    t.scaling = MZ_SCALING_NONE;
    t.scale = NULL;
    t.columnwise = false;
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
    bool emulated_operands = is_8bit(&call->in[0]) && is_8bit(&call->in[1]);
    if (!emulated_operands && call->attrs.blocks == MEZZO_BLOCKS_NONE)
        return "serves 8-bit operands, and operands rounded to blocks";
    for (int i = 0; i < 2; i++)
        if (emulated_operands != ((SCALINGS & MZ_BIT(call->in[i].scaling)) != 0))
            return "8-bit operands have scales, others none";
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

const mz_kernel mz_cpu_linear_emulated = {"linear_emulated__portable", prepare, run};
const mz_kernel mz_cpu_linear_dx_emulated = {"linear_dx_emulated__portable", prepare, run};
const mz_kernel mz_cpu_linear_dw_emulated = {"linear_dw_emulated__portable", prepare, run};

// Prepares experts' products: rows are in 8 bits with one scale, or not quantized.
static const char *prepare_grouped(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    if (call->attrs.blocks != MEZZO_BLOCKS_NONE || call->in[0].scaling != MZ_SCALING_TENSOR ||
        call->in[1].scaling != MZ_SCALING_TENSOR)
        return "serves 8-bit operands that have one scale each";
    return prepare(device, call, out);
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
            return (mz_takes){MZ_DTYPES_USUAL | emulated_formats, MZ_SCALINGS_NONE | SCALINGS, .blocks = i < 3};
    return (mz_takes){MZ_DTYPES_USUAL, MZ_SCALINGS_NONE, .blocks = false};
}
