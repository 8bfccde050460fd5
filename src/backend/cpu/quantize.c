// Rounds to 8 bits with scales, in both layouts. The kernel of a preceding activation writes its result to the
// workspace.
#include <math.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/kernels/kernels.h"
#include "backend/emulate.h"
#include "quant/entry.h"

static float load(const mz_tensor *t, int64_t i) {
    if (t->dtype == MEZZO_F32)
        return ((const float *)t->data)[i];
    uint16_t bits = ((const uint16_t *)t->data)[i];
    return t->dtype == MEZZO_BF16 ? mezzo_bf16_to_f32(bits) : mezzo_f16_to_f32(bits);
}

// Returns the largest magnitude; infinity where a number is NaN. A maximum does not depend on the order.
static float amax_of(const mezzo_device *device, const mz_tensor *x, int64_t n) {
    float amax = 0;
#pragma omp parallel for schedule(static) reduction(max : amax) num_threads(mz_cpu_threads(device, (double)n))
    for (int64_t i = 0; i < n; i++) {
        float magnitude = fabsf(load(x, i));
        magnitude = isnan(magnitude) ? INFINITY : magnitude;
        amax = magnitude > amax ? magnitude : amax;
    }
    return amax;
}

typedef struct format {
    int fraction, bias;
    uint32_t overflow, largest; // their bits
} format;

// Rounds to nearest even in integers, and below the least normal number by an FP32 addition at 2^(smallest + 23).
// Finite numbers that are too large become the largest one; infinity becomes `overflow`, and NaN stays NaN.
static inline uint8_t narrow(float x, float inverse, const format *f) {
    uint32_t bits, code, drop = 23 - (uint32_t)f->fraction;
    const float scaled = x * inverse; // exact, or too large
    memcpy(&bits, &x, sizeof bits);
    const uint32_t sign = bits >> 24 & 0x80, limit = (bits & 0x7FFFFFFF) < 0x7F800000 ? f->largest : f->overflow;
    if ((bits & 0x7FFFFFFF) > 0x7F800000)
        return f->fraction == 3 ? mezzo_f32_to_e4m3(x) : mezzo_f32_to_e5m2(x);
    memcpy(&bits, &scaled, sizeof bits);
    const uint32_t magnitude = bits & 0x7FFFFFFF;
    if (magnitude >= (uint32_t)(128 - f->bias) << 23) {
        uint32_t rebiased = magnitude - ((uint32_t)(127 - f->bias) << 23);
        code = (rebiased + (1U << (drop - 1)) - 1 + (rebiased >> drop & 1)) >> drop;
    } else {
        float shifted = fabsf(scaled) + ldexpf(1, 24 - f->bias - f->fraction);
        memcpy(&bits, &shifted, sizeof bits);
        code = bits & 0x7FFFFF;
    }
    return (uint8_t)(sign | (code < limit ? code : limit));
}

static bool has_derivative(const mz_call *call) {
    return mz_present(mz_in(call, quantize, preact));
}

// --- the activation in front -----------------------------------------------------------------------------------------
// Returns the call of the activation alone, or of the derivative; its result is at the beginning of the workspace.
static mz_call act_call(const mz_call *call, bool derivative) {
    mz_call part = {.op = mz_act_op(call->attrs.act, derivative),
                    .numerics = call->numerics,
                    .n_in = derivative ? 2 : 1,
                    .n_out = 1};
    part.attrs.tanh = call->attrs.act == MZ_ACT_GELU_TANH;
    part.numerics.compute = MEZZO_F32;
    for (int i = 0; i < MZ_MAX_IN; i++)
        part.in[i].shape.rank = -1;
    for (int i = 0; i < MZ_MAX_OUT; i++)
        part.out[i].shape.rank = -1;
    for (int i = 0; i < part.n_in; i++)
        part.in[i] = call->in[i];
    if (!derivative && has_derivative(call)) // `act_out` needs the activation
        part.in[0] = *mz_in(call, quantize, preact);
    part.out[0] = (mz_tensor){
        .data = call->workspace,
        .dtype = call->attrs.via,
        .shape = mz_quantized_shape(call->attrs.act, &part.in[0].shape, derivative ? &part.in[1].shape : NULL)};
    return part;
}

// The calls before the rounding: the activation, or its derivative and for `act_out` the activation.
enum { FRONTS = 2 };

static void release(void *state) {
    for (int i = 0; i < FRONTS; i++)
        mz_prepared_free((mz_prepared *)state + i);
    mz_free(state);
}

static const char *prepare_act(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    mz_prepared *inner = mz_alloc(FRONTS, sizeof *inner);
    if (inner == NULL)
        return mz_out_of_memory;
    out->state = inner;
    out->release = release;
    for (int derivative = 0; derivative < FRONTS; derivative++) {
        if (derivative != has_derivative(call) && (derivative || mz_output(call, MZ_OUT(quantize, act_out)) == NULL))
            continue;
        mz_call part = act_call(call, derivative);
        part.out[0].data = NULL;
        mezzo_status status = mz_prepare(device, &part, &inner[derivative]);
        if (status != MEZZO_OK)
            return status == MEZZO_ERR_MEMORY ? mz_out_of_memory : "no kernel takes the activation in front";
        if (inner[derivative].workspace > 0)
            return "the activation in front needs a workspace";
    }
    const mz_call part = act_call(call, has_derivative(call)); // the tensor for `act_out` is no larger
    out->workspace = mz_align_up(mz_tensor_bytes_stored(&part.out[0]), 64);
    return NULL;
}

// --- the kernel ----------------------------------------------------------------------------------------------------
// Returns where the scales of an output are written.
static const mz_tensor *scales_of(const mz_call *call, const mz_tensor *y) {
    return mz_output(call, mz_scale_slot(y->scaling, y->columnwise));
}

static const char *check_quantized(const mz_call *call, const mz_tensor *y, bool columnwise) {
    if (y->columnwise != columnwise || (y->dtype != MEZZO_F8E4M3 && y->dtype != MEZZO_F8E5M2))
        return "quantizes to 8 bits, in both layouts";
    if (y->scaling == MZ_SCALING_NONE || scales_of(call, y) == NULL)
        return "scales are a tensor's, which an entry has, or those of blocks and tiles of 128";
    return NULL;
}

static const char *prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    const mz_tensor *x = mz_in(call, quantize, x);
    if (x->scaling != MZ_SCALING_NONE)
        return mz_transpose_refusal(call);
    const mz_tensor *codes[] = {mz_output(call, MZ_OUT(quantize, y)), mz_output(call, MZ_OUT(quantize, columnwise))};
    if ((x->dtype != MEZZO_F32 && x->dtype != MEZZO_BF16 && x->dtype != MEZZO_F16) || x->scaling != MZ_SCALING_NONE)
        return "quantizes fp32, bf16 and fp16";
    for (int i = 0; i < 2; i++) {
        const char *reason = codes[i] != NULL ? check_quantized(call, codes[i], i == 1) : NULL;
        if (reason != NULL)
            return reason;
    }
    if (mz_output(call, MZ_OUT(quantize, act_out)) != NULL &&
        ((codes[0] != NULL && mz_scaling_in_blocks(codes[0]->scaling)) || !has_derivative(call) ||
         call->attrs.act == MZ_ACT_NONE || !mz_output(call, MZ_OUT(quantize, act_out))->columnwise))
        return "the quantized activation beside its derivative is columnwise";
    return call->attrs.act != MZ_ACT_NONE ? prepare_act(device, call, out) : NULL;
}

static void sum_columns(const mezzo_device *device, const mz_call *call, const mz_tensor *x, int64_t rows,
                        int64_t columns) {
    float *sums = mz_out(call, quantize, dbias)->data;
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, (double)(rows * columns)))
    for (int64_t c = 0; c < columns; c++) {
        double sum = 0;
        for (int64_t r = 0; r < rows; r++)
            sum += (double)load(x, r * columns + c);
        sums[c] = (float)(call->attrs.accumulate ? (double)sums[c] + sum : sum);
    }
}

static const format *format_of(mezzo_dtype dtype) {
    static const format formats[] = {{3, 7, 0x7F, 0x7E}, {2, 15, 0x7C, 0x7B}};
    return &formats[dtype == MEZZO_F8E5M2];
}

// Writes zeros after each column of transposed data.
static void clear_ends(const mz_tensor *y, int64_t rows, int64_t columns) {
    const int64_t pitch = mz_columnwise_pitch(rows);
    for (int64_t c = 0; y->columnwise && pitch > rows && c < columns; c++)
        memset((uint8_t *)y->data + c * pitch + rows, 0, (size_t)(pitch - rows));
}

static void write_fp8(const mezzo_device *device, const mz_tensor *x, const mz_tensor *y, float inverse, int64_t rows,
                      int64_t columns) {
    const format *f = format_of(y->dtype);
    uint8_t *to = y->data;
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, 2 * (double)(rows * columns)))
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            to[y->columnwise ? c * mz_columnwise_pitch(rows) + r : r * columns + c] =
                narrow(load(x, r * columns + c), inverse, f);
    clear_ends(y, rows, columns);
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

// Moves codes into columns, a square of them at a time, so that lines of both layouts stay in the cache.
static mezzo_status transpose(const mezzo_device *device, const mz_tensor *x, const mz_tensor *y) {
    enum { SIDE = 64 };
    const int64_t columns = x->shape.dim[x->shape.rank - 1], rows = mz_shape_rows(&x->shape);
    const int64_t pitch = mz_columnwise_pitch(rows);
    const uint8_t *from = x->data;
    uint8_t *to = y->data;
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, (double)(rows * columns)))
    for (int64_t c0 = 0; c0 < columns; c0 += SIDE)
        for (int64_t r0 = 0; r0 < rows; r0 += SIDE)
            for (int64_t c = c0; c < least(c0 + SIDE, columns); c++)
                for (int64_t r = r0; r < least(r0 + SIDE, rows); r++)
                    to[c * pitch + r] = from[r * columns + c];
    clear_ends(y, rows, columns);
    return MEZZO_OK;
}

static mezzo_status run_act(mezzo_device *device, const mz_call *call, mz_call *act, bool derivative) {
    const mz_prepared *inner = (const mz_prepared *)call->state + derivative;
    act->state = inner->state;
    return inner->kernel->run(device, act);
}

// Writes one block or tile: its scale, and its data.
static void write_block(const mz_tensor *x, const mz_tensor *y, float *scale, int64_t row, int64_t row_end,
                        int64_t column, int64_t column_end) {
    const int64_t columns = x->shape.dim[x->shape.rank - 1], rows = mz_shape_rows(&x->shape);
    float amax = 0;
    for (int64_t r = row; r < row_end; r++)
        for (int64_t c = column; c < column_end; c++) {
            const float magnitude = fabsf(load(x, r * columns + c));
            amax = magnitude > amax ? magnitude : isnan(magnitude) ? INFINITY : amax;
        }
    *scale = mz_scale_for(amax, y->dtype);
    uint8_t *to = y->data;
    for (int64_t r = row; r < row_end; r++)
        for (int64_t c = column; c < column_end; c++)
            to[y->columnwise ? c * mz_columnwise_pitch(rows) + r : r * columns + c] =
                narrow(load(x, r * columns + c), 1 / *scale, format_of(y->dtype));
}

// Writes blocks along a row, or a column where y is columnwise, or square tiles.
static void write_blocks(const mezzo_device *device, const mz_tensor *x, const mz_tensor *y, float *scales) {
    const int64_t columns = x->shape.dim[x->shape.rank - 1], rows = mz_shape_rows(&x->shape);
    int64_t down, across;
    mz_scale_extent(y, &down, &across);
    for (int64_t i = 0; i < mz_scale_count(y); i++)
        scales[i] = 1;
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, 3 * (double)(rows * columns)))
    for (int64_t r = 0; r < rows; r += down)
        for (int64_t c = 0; c < columns; c += across)
            write_block(x, y, &scales[mz_scale_index(y, r * columns + c)], r, least(rows, r + down), c,
                        least(columns, c + across));
    clear_ends(y, rows, columns);
}

static mezzo_status run(mezzo_device *device, const mz_call *call) {
    if (mz_in(call, quantize, x)->scaling != MZ_SCALING_NONE)
        return transpose(device, mz_in(call, quantize, x), mz_out(call, quantize, columnwise));
    mz_call act = act_call(call, has_derivative(call));
    const mz_tensor *x = call->attrs.act != MZ_ACT_NONE ? &act.out[0] : mz_in(call, quantize, x);
    const int64_t n = mz_shape_count(&x->shape), columns = x->shape.dim[x->shape.rank - 1], rows = n / columns;
    if (call->attrs.act != MZ_ACT_NONE)
        MEZZO_TRY(run_act(device, call, &act, has_derivative(call)));
    if (mz_output(call, MZ_OUT(quantize, dbias)) != NULL)
        sum_columns(device, call, x, rows, columns);
    const float amax = call->attrs.measure || call->attrs.record ? amax_of(device, x, n) : 0;
    for (int k = 0; k <= MZ_OUT(quantize, columnwise); k++) {
        const mz_tensor *y = mz_output(call, k);
        if (y == NULL)
            continue;
        void *scales = scales_of(call, y)->data;
        if (mz_scaling_in_blocks(y->scaling)) {
            write_blocks(device, x, y, scales);
            continue;
        }
        const mz_attrs *a = &call->attrs;
        const float scale = mz_entry_quantize(scales, y->dtype, amax, a->measure, a->record, a->keeps);
        write_fp8(device, x, y, 1 / scale, rows, columns);
    }
    const mz_tensor *act_out = mz_output(call, MZ_OUT(quantize, act_out));
    if (act_out == NULL)
        return MEZZO_OK;
    act = act_call(call, false);
    const int64_t n_act_out = mz_shape_count(&act.out[0].shape);
    MEZZO_TRY(run_act(device, call, &act, false));
    write_fp8(device, x, act_out, 1 / *act_out->scale, rows, n_act_out / rows);
    return MEZZO_OK;
}

const mz_kernel mz_quantize__portable = {"quantize__portable", prepare, run};
