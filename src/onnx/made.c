// Builds the ONNX ops that make values of shapes and of numbers.
#include <math.h>

#include "onnx/convert.h"

mezzo_status mz_onnx_constant_node(mz_onnx_call *call) {
    const MzPb__Node *node = call->node;
    double *out;
    for (size_t i = 0; i < node->n_attribute; i++) {
        const MzPb__Attribute *a = node->attribute[i];
        if (strcmp(a->name, "value") == 0 && a->t) {
            MEZZO_TRY(mz_onnx_host(call, 0, mz_onnx_is_integer(a->t->data_type), (int)a->t->n_dims, a->t->dims, &out));
            return mz_onnx_floats(call->build->onnx, a->t, out);
        }
        const bool ints = strcmp(a->name, "value_ints") == 0, floats = strcmp(a->name, "value_floats") == 0;
        if (ints || floats) {
            const int64_t n = (int64_t)(ints ? a->n_ints : a->n_floats);
            MEZZO_TRY(mz_onnx_host(call, 0, ints, 1, &n, &out));
            for (int64_t k = 0; k < n; k++)
                out[k] = ints ? (double)a->ints[k] : (double)a->floats[k];
            return MEZZO_OK;
        }
        if (strcmp(a->name, "value_int") == 0 || strcmp(a->name, "value_float") == 0) {
            MEZZO_TRY(mz_onnx_host(call, 0, a->name[6] == 'i', 0, NULL, &out));
            *out = a->name[6] == 'i' ? (double)a->i : (double)a->f;
            return MEZZO_OK;
        }
    }
    return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "it has no dense numbers");
}

mezzo_status mz_onnx_constant_of_shape(mz_onnx_call *call) {
    int n;
    int64_t dim[MEZZO_MAX_RANK];
    MEZZO_TRY(mz_onnx_ints(call, 0, MEZZO_MAX_RANK, &n, dim));
    const MzPb__Attribute *a = mz_onnx_attribute(call->node, "value");
    double value = 0, *out;
    if (a && a->t && mz_onnx_elements((int)a->t->n_dims, a->t->dims) == 1)
        MEZZO_TRY(mz_onnx_floats(call->build->onnx, a->t, &value));
    for (int i = 0; i < n; i++)
        if (dim[i] < 0 || dim[i] > INT64_C(1) << 28)
            return mz_onnx_fail(call, MEZZO_ERR_INVALID, "a dimension of %lld", (long long)dim[i]);
    MEZZO_TRY(mz_onnx_host(call, 0, a && a->t && mz_onnx_is_integer(a->t->data_type), n, dim, &out));
    const int64_t count = mz_onnx_elements(n, dim);
    for (int64_t i = 0; i < count; i++)
        out[i] = value;
    return MEZZO_OK;
}

mezzo_status mz_onnx_range(mz_onnx_call *call) {
    const double *begin, *end, *step;
    MEZZO_TRY(mz_onnx_numbers(call, 0, &begin));
    MEZZO_TRY(mz_onnx_numbers(call, 1, &end));
    MEZZO_TRY(mz_onnx_numbers(call, 2, &step));
    for (int i = 0; i < 3; i++)
        if (mz_onnx_elements(call->in[i]->rank, call->in[i]->dim) != 1)
            return mz_onnx_fail(call, MEZZO_ERR_INVALID, "its input %d is not one number", i);
    const double count = ceil((*end - *begin) / *step);
    if (!(count >= 0 && count < 1 << 28))
        return mz_onnx_fail(call, MEZZO_ERR_INVALID, "a range of %g numbers", count);
    const int64_t n = (int64_t)count;
    double *out;
    MEZZO_TRY(mz_onnx_host(call, 0, call->in[0]->integer, 1, &n, &out));
    for (int64_t i = 0; i < n; i++)
        out[i] = *begin + (double)i * *step;
    return MEZZO_OK;
}

mezzo_status mz_onnx_shape(mz_onnx_call *call) {
    const mz_onnx_value *x = call->in[0];
    int64_t first = mz_onnx_int_or(call->node, "start", 0), last = mz_onnx_int_or(call->node, "end", x->rank);
    first = first < 0 ? first + x->rank : first;
    last = last < 0 ? last + x->rank : last;
    first = first < 0 ? 0 : first > x->rank ? x->rank : first;
    last = last < first ? first : last > x->rank ? x->rank : last;
    const int64_t n = last - first;
    double *out;
    MEZZO_TRY(mz_onnx_host(call, 0, true, 1, &n, &out));
    for (int64_t i = 0; i < n; i++)
        out[i] = (double)x->dim[first + i];
    return MEZZO_OK;
}

mezzo_status mz_onnx_size(mz_onnx_call *call) {
    double *out;
    MEZZO_TRY(mz_onnx_host(call, 0, true, 0, NULL, &out));
    *out = (double)mz_onnx_elements(call->in[0]->rank, call->in[0]->dim);
    return MEZZO_OK;
}

mezzo_status mz_onnx_eye(mz_onnx_call *call) {
    const mz_onnx_value *x = call->in[0];
    const int64_t k = mz_onnx_int_or(call->node, "k", 0);
    double *out;
    if (x->rank != 2)
        return mz_onnx_fail(call, MEZZO_ERR_INVALID, "%d dimensions", x->rank);
    MEZZO_TRY(
        mz_onnx_host(call, 0, mz_onnx_is_integer(mz_onnx_int_or(call->node, "dtype", MZ_ONNX_FLOAT)), 2, x->dim, &out));
    for (int64_t i = 0; i < x->dim[0] * x->dim[1]; i++)
        out[i] = i % x->dim[1] - i / x->dim[1] == k;
    return MEZZO_OK;
}

// Builds OneHot: 1 where the index equals the position along the new last axis.
mezzo_status mz_onnx_one_hot(mz_onnx_call *call) {
    mezzo_graph *g = call->build->g;
    const mz_onnx_value *x = call->in[0];
    const double *values;
    double depth;
    mezzo_value v;
    MEZZO_TRY(mz_onnx_numbers(call, 2, &values));
    const int64_t axis = mz_onnx_int_or(call->node, "axis", -1);
    if (!mz_onnx_one_number(call->in[1], &depth) || !(depth >= 1 && depth < 1 << 24) || x->rank >= MEZZO_MAX_RANK ||
        (axis != -1 && axis != x->rank) || mz_onnx_elements(call->in[2]->rank, call->in[2]->dim) != 2)
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "anything but a known depth along the last axis");
    int64_t dim[MEZZO_MAX_RANK] = {1, 1, 1, 1, 1, 1};
    memcpy(dim, x->dim, (size_t)x->rank * sizeof *dim);
    MEZZO_TRY(mz_onnx_number(call, 0, &v));
    v = mezzo_equal(g, mz_onnx_shaped(g, v, x->rank + 1, dim), mezzo_range(g, 0, 1, (int64_t)depth));
    v = mezzo_where(g, v, mz_onnx_scalar(call, values[1]), mz_onnx_scalar(call, values[0]));
    return mz_onnx_give(call, 0, call->in[2]->integer, x->rank + 1, v);
}
