// Reads and writes elements of tensors of any dtype.
#include <math.h>

#include "backend/ref/ref.h"

static double stored(const mz_tensor *t, int64_t logical) {
    int64_t i = mz_tensor_index(t, logical);
    switch (t->dtype) {
    case MEZZO_F64:
        return ((const double *)t->data)[i];
    case MEZZO_F32:
    case MEZZO_TF32:
        return (double)((const float *)t->data)[i];
    case MEZZO_BF16:
        return (double)mezzo_bf16_to_f32(((const uint16_t *)t->data)[i]);
    case MEZZO_F16:
        return (double)mezzo_f16_to_f32(((const uint16_t *)t->data)[i]);
    case MEZZO_F8E4M3:
        return (double)mezzo_e4m3_to_f32(((const uint8_t *)t->data)[i]);
    case MEZZO_F8E5M2:
        return (double)mezzo_e5m2_to_f32(((const uint8_t *)t->data)[i]);
    case MEZZO_I64:
        return (double)((const int64_t *)t->data)[i];
    case MEZZO_I32:
        return (double)((const int32_t *)t->data)[i];
    case MEZZO_U16:
        return (double)((const uint16_t *)t->data)[i];
    default:
        return (double)((const uint8_t *)t->data)[i];
    }
}

double mz_ref_get(const mz_tensor *t, int64_t i) {
    double x = stored(t, i);
    return t->scaling == MZ_SCALING_NONE ? x : x * (double)t->scale[mz_scale_index(t, i)];
}

// Only mz_ref_arange writes integer slots; prepare() refuses a cast to one.
void mz_ref_put(const mz_tensor *t, int64_t logical, double x) {
    int64_t i = mz_tensor_index(t, logical);
    if (t->scaling != MZ_SCALING_NONE) {
        const double most = mz_dtype_largest(t->dtype);
        x /= (double)t->scale[mz_scale_index(t, logical)];
        x = isinf(x) ? x : x > most ? most : x < -most ? -most : x; // NaN stays NaN
    }
    double rounded = mezzo_round_to(x, t->dtype); // the only rounding: the conversions below are exact
    switch (t->dtype) {
    case MEZZO_F64:
        ((double *)t->data)[i] = rounded;
        return;
    case MEZZO_F32:
    case MEZZO_TF32:
        ((float *)t->data)[i] = (float)rounded;
        return;
    case MEZZO_BF16:
        ((uint16_t *)t->data)[i] = mezzo_f64_to_bf16(rounded);
        return;
    case MEZZO_F16:
        ((uint16_t *)t->data)[i] = mezzo_f64_to_f16(rounded);
        return;
    case MEZZO_F8E4M3:
        ((uint8_t *)t->data)[i] = mezzo_f32_to_e4m3((float)rounded);
        return;
    case MEZZO_F8E5M2:
        ((uint8_t *)t->data)[i] = mezzo_f32_to_e5m2((float)rounded);
        return;
    default:
        ((int32_t *)t->data)[i] = (int32_t)x;
        return;
    }
}

void mz_ref_put_gradient(const mz_call *call, int slot, int64_t i, double x) {
    const mz_tensor *t = &call->out[slot];
    mz_ref_put(t, i, call->attrs.accumulate ? mz_ref_get(t, i) + x : x);
}

int32_t mz_ref_integer(const mz_tensor *t, int64_t i) {
    return ((const int32_t *)t->data)[mz_tensor_index(t, i)];
}

// Clears padding, which is what lies between logical elements when they are visited in order.
void mz_ref_clear_padding(const mz_tensor *t) {
    size_t size = mezzo_dtype_size(t->dtype);
    int64_t n = mz_shape_count(&t->shape), next = 0;
    for (int64_t i = 0; t->storage.padded && !t->columnwise && i <= n; i++) { // quantize clears padding in transposed
                                                                              // data
        int64_t at = i < n ? mz_tensor_index(t, i) : mz_stored_count(&t->shape, &t->storage);
        memset((char *)t->data + (size_t)next * size, 0, (size_t)(at - next) * size);
        next = at + 1;
    }
}

mz_ref_scratch mz_ref_scratch_begin(const mz_call *call) {
    return (mz_ref_scratch){.next = call->workspace};
}

double *mz_ref_operand(mz_ref_scratch *scratch, const mz_tensor *t, mezzo_dtype compute) {
    if (!mz_present(t))
        return NULL;
    int64_t n = mz_shape_count(&t->shape);
    double *copy = scratch->next;
    bool exact = t->scaling != MZ_SCALING_NONE; // it was rounded when it was made, and products use it unchanged
    for (int64_t i = 0; i < n; i++)
        copy[i] = exact ? mz_ref_get(t, i) : mezzo_round_to(mz_ref_get(t, i), compute);
    scratch->next += n;
    return copy;
}

double *mz_ref_zeros(mz_ref_scratch *scratch, int64_t n) {
    double *zeros = scratch->next;
    for (int64_t i = 0; i < n; i++)
        zeros[i] = 0;
    scratch->next += n;
    return zeros;
}

mz_ref_view mz_ref_view_along(const mz_shape *shape, int axis) {
    mz_ref_view view = {1, 1, 1};
    if (axis < 0) {
        view.axis = mz_shape_count(shape);
        return view;
    }
    view.axis = shape->dim[axis];
    for (int i = 0; i < axis; i++)
        view.outer *= shape->dim[i];
    for (int i = axis + 1; i < shape->rank; i++)
        view.inner *= shape->dim[i];
    return view;
}
