// 8 bits with scales, in both layouts, and what is recorded on the way.
#include <math.h>

#include "backend/ref/ref.h"

static double acted(const mz_call *call, int64_t i) {
    return mezzo_round_to(mz_ref_activation(call->attrs.act, mz_ref_get(&call->in[1], i)), call->attrs.via);
}

static double number(const mz_call *call, int64_t i) {
    const mz_act act = call->attrs.act;
    double x = mz_ref_get(&call->in[0], i);
    if (act == MZ_ACT_NONE)
        return x;
    bool slope = call->n_in > 1 && mz_present(&call->in[1]);
    x = slope ? mz_ref_activation_dx(act, x, mz_ref_get(&call->in[1], i)) : mz_ref_activation(act, x);
    return mezzo_round_to(x, call->attrs.via);
}

static const mz_tensor *output(const mz_call *call, int slot) {
    return slot < call->n_out && mz_present(&call->out[slot]) ? &call->out[slot] : NULL;
}

// Infinity after a NaN, so that the bits are those of a number that every device records.
static float most_of(const mz_call *call, int64_t n) {
    double most = 0;
    for (int64_t i = 0; i < n; i++) {
        double magnitude = fabs(number(call, i));
        most = magnitude > most ? magnitude : isnan(magnitude) ? INFINITY : most;
    }
    return (float)most;
}

static void sum_columns(const mz_call *call, int64_t n) {
    const int64_t columns = call->in[0].shape.dim[call->in[0].shape.rank - 1];
    for (int64_t c = 0; c < columns; c++) {
        double sum = 0;
        for (int64_t i = c; i < n; i += columns)
            sum += number(call, i);
        mz_ref_put_gradient(call, MZ_OUT(quantize, dsum), c, sum);
    }
}

// Of each block or tile of y the least power of two that brings its largest magnitude to at most the format's.
static void find_block_scales(const mz_call *call, const mz_tensor *y, const mz_tensor *scales) {
    const int64_t n = mz_shape_count(&y->shape), parts = mz_scale_count(y->scaling, y->turned, &y->shape);
    float *scale = scales->data;
    for (int64_t i = 0; i < parts; i++)
        scale[i] = 0;
    for (int64_t i = 0; i < n; i++) {
        float *most = &scale[mz_scale_index(y->scaling, y->turned, &y->shape, i)];
        const float magnitude = (float)fabs(number(call, i));
        *most = magnitude > *most || isnan(magnitude) ? magnitude : *most; // a NaN stays: nothing is greater
    }
    for (int64_t i = 0; i < parts; i++)
        scale[i] = mz_ref_scale_for((double)scale[i], y->dtype);
}

// Current scaling of blocks and tiles.
static void quantize_blocks(const mz_call *call, const mz_tensor *y, const mz_tensor *turned) {
    const mz_tensor *scales = output(call, MZ_OUT(quantize, scales));
    const mz_tensor *turned_scales = output(call, MZ_OUT(quantize, turned_scales));
    if (turned_scales != NULL && turned != NULL)
        find_block_scales(call, turned, turned_scales);
    if (scales != NULL && (y != NULL || turned->scaling == MZ_SCALING_TILE128))
        find_block_scales(call, y != NULL ? y : turned, scales);
    for (int64_t i = 0; i < mz_shape_count(&call->in[0].shape); i++) {
        const double z = number(call, i);
        if (y != NULL)
            mz_ref_put(y, i, z);
        if (turned != NULL)
            mz_ref_put(turned, i, z);
    }
}

void mz_ref_quantize(const mz_call *call) {
    const int64_t n = mz_shape_count(&call->in[0].shape);
    const mz_tensor *y = output(call, MZ_OUT(quantize, y)), *turned = output(call, MZ_OUT(quantize, turned));
    const mz_tensor *entry = output(call, MZ_OUT(quantize, entry)), *any = y != NULL ? y : turned;
    if (output(call, MZ_OUT(quantize, dsum)) != NULL)
        sum_columns(call, n);
    if (any != NULL && any->scaling != MZ_SCALING_TENSOR)
        quantize_blocks(call, y, turned);
    if (entry == NULL || any == NULL)
        return;
    mz_scale_entry *e = entry->data;
    const float most = most_of(call, n);
    uint32_t bits;
    memcpy(&bits, &most, sizeof bits);
    if (call->attrs.measure)
        e->scale = mz_ref_scale_for((double)most, any->dtype);
    uint32_t *most_so_far = call->attrs.keeps ? &e->kept : &e->most;
    if (call->attrs.record)
        *most_so_far = bits > *most_so_far ? bits : *most_so_far;
    for (int64_t i = 0; i < n; i++) {
        double z = number(call, i);
        if (y != NULL)
            mz_ref_put(y, i, z);
        if (turned != NULL)
            mz_ref_put(turned, i, z);
        if (output(call, MZ_OUT(quantize, acted)) != NULL)
            mz_ref_put(output(call, MZ_OUT(quantize, acted)), i, acted(call, i));
    }
}
