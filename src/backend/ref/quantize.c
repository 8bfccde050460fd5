// Rounds to 8 bits with scales, in both layouts, and records amax and saturation.
#include <math.h>

#include "backend/ref/ref.h"
#include "quant/entry.h"

static bool has_derivative(const mz_call *call) {
    return mz_present(mz_in(call, quantize, preact));
}

static mz_shape shape_of(const mz_call *call) {
    return mz_quantized_shape(call->attrs.act, &mz_in(call, quantize, x)->shape,
                              has_derivative(call) ? &mz_in(call, quantize, preact)->shape : NULL);
}

// Returns number i of SwiGLU's result, of x [… 2F].
static double swiglu(const mz_tensor *x, int64_t i) {
    const int64_t width = x->shape.dim[x->shape.rank - 1] / 2, gate = i / width * 2 * width + i % width;
    return mz_ref_activation(MZ_ACT_SILU, mz_ref_get(x, gate)) * mz_ref_get(x, gate + width);
}

// Returns number i of its derivative: the gate's half first.
static double swiglu_dx(const mz_tensor *dy, const mz_tensor *x, int64_t i) {
    const int64_t width = dy->shape.dim[dy->shape.rank - 1], row = i / (2 * width), c = i % (2 * width);
    const double d = mz_ref_get(dy, row * width + c % width);
    const double gate = mz_ref_get(x, row * 2 * width + c % width),
                 up = mz_ref_get(x, row * 2 * width + width + c % width);
    return c < width ? mz_ref_activation_dx(MZ_ACT_SILU, d * up, gate) : d * mz_ref_activation(MZ_ACT_SILU, gate);
}

static double act_out(const mz_call *call, int64_t i) {
    const mz_act act = call->attrs.act;
    const mz_tensor *x = mz_in(call, quantize, preact);
    return mezzo_round_to(act == MZ_ACT_SWIGLU ? swiglu(x, i) : mz_ref_activation(act, mz_ref_get(x, i)),
                          call->attrs.via);
}

static double number(const mz_call *call, int64_t i) {
    const mz_act act = call->attrs.act;
    const mz_tensor *x = mz_in(call, quantize, x);
    double z;
    if (act == MZ_ACT_NONE)
        return mz_ref_get(x, i);
    if (act == MZ_ACT_SWIGLU)
        z = has_derivative(call) ? swiglu_dx(x, mz_in(call, quantize, preact), i) : swiglu(x, i);
    else
        z = has_derivative(call)
                ? mz_ref_activation_dx(act, mz_ref_get(x, i), mz_ref_get(mz_in(call, quantize, preact), i))
                : mz_ref_activation(act, mz_ref_get(x, i));
    return mezzo_round_to(z, call->attrs.via);
}

// Returns the amax; infinity if a number is NaN, so that every device records the same bits.
static float amax_of(const mz_call *call, int64_t n) {
    double amax = 0;
    for (int64_t i = 0; i < n; i++) {
        double magnitude = fabs(number(call, i));
        amax = magnitude > amax ? magnitude : isnan(magnitude) ? INFINITY : amax;
    }
    return (float)amax;
}

static void sum_columns(const mz_call *call, int64_t n) {
    const mz_shape shape = shape_of(call);
    const int64_t columns = shape.dim[shape.rank - 1];
    for (int64_t c = 0; c < columns; c++) {
        double sum = 0;
        for (int64_t i = c; i < n; i += columns)
            sum += number(call, i);
        mz_ref_put_gradient(call, MZ_OUT(quantize, dbias), c, sum);
    }
}

// Finds for each block or tile of y the least power of two that brings its largest magnitude to at most the format's.
static void find_block_scales(const mz_call *call, const mz_tensor *y, const mz_tensor *scales) {
    const int64_t n = mz_shape_count(&y->shape), parts = mz_scale_count(y);
    float *scale = scales->data;
    for (int64_t i = 0; i < parts; i++)
        scale[i] = 0;
    for (int64_t i = 0; i < n; i++) {
        float *amax = &scale[mz_scale_index(y, i)];
        const float magnitude = (float)fabs(number(call, i));
        *amax = magnitude > *amax || isnan(magnitude) ? magnitude : *amax; // NaN stays, because no number is greater
    }
    for (int64_t i = 0; i < parts; i++)
        scale[i] = mz_scale_for(scale[i], y->dtype);
}

// Writes zeros after each column's rows of transposed data, and into padding.
static void clear_columnwise(const mz_call *call) {
    const int slots[] = {MZ_OUT(quantize, columnwise), MZ_OUT(quantize, act_out)};
    for (size_t k = 0; k < MZ_COUNT(slots); k++)
        if (mz_output(call, slots[k]) != NULL)
            memset(mz_output(call, slots[k])->data, 0, mz_tensor_bytes_stored(mz_output(call, slots[k])));
}

// Moves codes into the other layout, each as it is.
static void transpose(const mz_tensor *x, const mz_tensor *y) {
    for (int64_t i = 0, n = mz_shape_count(&x->shape); i < n; i++)
        ((uint8_t *)y->data)[mz_tensor_index(y, i)] = ((const uint8_t *)x->data)[mz_tensor_index(x, i)];
}

void mz_ref_quantize(const mz_call *call) {
    const mz_shape shape = shape_of(call);
    const int64_t n = mz_shape_count(&shape);
    const mz_tensor *y[] = {mz_output(call, MZ_OUT(quantize, y)), mz_output(call, MZ_OUT(quantize, columnwise))};
    const mz_attrs *a = &call->attrs;
    const float amax = a->measure || a->record ? amax_of(call, n) : 0;
    clear_columnwise(call);
    if (mz_in(call, quantize, x)->scaling != MZ_SCALING_NONE) {
        transpose(mz_in(call, quantize, x), y[1]);
        return;
    }
    if (mz_output(call, MZ_OUT(quantize, dbias)) != NULL)
        sum_columns(call, n);
    for (size_t k = 0; k < MZ_COUNT(y); k++) {
        const mz_tensor *scales = y[k] != NULL ? mz_output(call, mz_scale_slot(y[k]->scaling, y[k]->columnwise)) : NULL;
        if (scales != NULL && mz_scaling_in_blocks(y[k]->scaling))
            find_block_scales(call, y[k], scales);
        else if (scales != NULL)
            mz_entry_quantize(scales->data, y[k]->dtype, amax, a->measure, a->record, a->keeps);
    }
    for (int64_t i = 0; i < n; i++) {
        const double z = number(call, i);
        for (size_t k = 0; k < MZ_COUNT(y); k++)
            if (y[k] != NULL)
                mz_ref_put(y[k], i, z);
    }
    const mz_tensor *beside = mz_output(call, MZ_OUT(quantize, act_out));
    for (int64_t i = 0; beside != NULL && i < mz_shape_count(&beside->shape); i++)
        mz_ref_put(beside, i, act_out(call, i));
}
