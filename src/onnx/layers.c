// ONNX ops that are layers: products, convolutions, norms, softmax, means.
#include "onnx/moves.h"

// The product of x with a weight of the file, as a linear layer: its parameter is [N, K].
static mezzo_status by_weight(mz_onnx_call *call, mezzo_value x, mz_onnx_value *w, bool flip, mezzo_value bias,
                              mezzo_value *y) {
    mezzo_value v;
    MEZZO_TRY(mz_onnx_parameter(call, w, &v));
    const bool columns = (w->of ? w->of : w)->columns; // the parameter is the transpose of the file's tensor
    // [N, K] wanted. flip: the operand, as the node sees it, is [N, K] already.
    if ((columns != w->transposed) == flip)
        v = mezzo_transpose(call->build->g, v, 0, 1);
    *y = mezzo_linear(call->build->g, x, v, bias);
    return MEZZO_OK;
}

mezzo_status mz_onnx_matmul(mz_onnx_call *call, int which) {
    (void)which;
    mezzo_graph *g = call->build->g;
    mz_onnx_value *a = call->in[0], *b = call->in[1];
    if (a->rank < 2 || b->rank < 2)
        return mz_onnx_fail(call, MEZZO_ERR_UNSUPPORTED, "products of vectors");
    mezzo_value x, w, y;
    MEZZO_TRY(mz_onnx_get(call, 0, &x));
    if (b->rank == 2 && b->kind == MZ_ONNX_WEIGHT) {
        MEZZO_TRY(by_weight(call, x, b, false, MEZZO_NONE, &y));
        return mz_onnx_give(call, 0, false, a->rank, y);
    }
    MEZZO_TRY(mz_onnx_get(call, 1, &w));
    if (b->rank == 2 && a->rank > 2) { // the same matrix for every batch
        int64_t dim[MEZZO_MAX_RANK];
        memcpy(dim, a->dim, sizeof dim);
        x = mezzo_reshape(g, x, 2, (int64_t[]){-1, a->dim[a->rank - 1]});
        y = mezzo_matmul(g, x, w, false, false);
        dim[a->rank - 1] = b->dim[1];
        return mz_onnx_give(call, 0, false, a->rank, mezzo_reshape(g, y, a->rank, dim));
    }
    bool same = a->rank == b->rank;
    for (int i = 0; same && i < a->rank - 2; i++)
        same = a->dim[i] == b->dim[i];
    if (!same)
        return mz_onnx_fail(call, MEZZO_ERR_UNSUPPORTED, "products whose leading dimensions differ");
    return mz_onnx_give(call, 0, false, a->rank, mezzo_matmul(g, x, w, false, false));
}

mezzo_status mz_onnx_gemm(mz_onnx_call *call, int which) {
    (void)which;
    mezzo_graph *g = call->build->g;
    const MzPb__Node *node = call->node;
    const bool flip_a = mz_onnx_int_or(node, "transA", 0), flip_b = mz_onnx_int_or(node, "transB", 0);
    const double alpha = mz_onnx_float_or(node, "alpha", 1), beta = mz_onnx_float_or(node, "beta", 1);
    mz_onnx_value *b = call->in[1], *c = call->n_in > 2 ? call->in[2] : NULL;
    if (call->in[0]->rank != 2 || b->rank != 2)
        return mz_onnx_fail(call, MEZZO_ERR_INVALID, "its operands are no matrices");
    mezzo_value x, y, bias = MEZZO_NONE;
    MEZZO_TRY(mz_onnx_get(call, 0, &x));
    if (flip_a)
        x = mezzo_transpose(g, x, 0, 1);
    if (c)
        MEZZO_TRY(mz_onnx_get(call, 2, &bias));
    const int64_t n = b->dim[flip_b ? 0 : 1];
    const bool fits = c && alpha == 1 && beta == 1 && c->rank == 1 && c->dim[0] == n; // a linear layer's bias
    if (b->kind == MZ_ONNX_WEIGHT) {
        MEZZO_TRY(by_weight(call, x, b, flip_b, fits ? bias : MEZZO_NONE, &y));
    } else {
        mezzo_value w;
        MEZZO_TRY(mz_onnx_get(call, 1, &w));
        y = mezzo_matmul(g, x, w, false, flip_b);
        if (fits)
            y = mezzo_add(g, y, bias);
    }
    if (alpha != 1)
        y = mezzo_scale(g, y, (float)alpha);
    if (c && !fits)
        y = mezzo_add(g, y, beta == 1 ? bias : mezzo_scale(g, bias, (float)beta));
    return mz_onnx_give(call, 0, false, 2, y);
}

// --- images: [B, C, H, W] in the file, [B, H, W, C] in the graph -----------------------------------------------------
static mezzo_value to_images(mezzo_graph *g, mezzo_value x) {
    return mezzo_permute(g, x, (int[]){0, 2, 3, 1});
}

static mezzo_value from_images(mezzo_graph *g, mezzo_value x) {
    return mezzo_permute(g, x, (int[]){0, 3, 1, 2});
}

// One number for both directions, of an attribute.
static mezzo_status both(mz_onnx_call *call, const char *name, int64_t otherwise, int64_t *out) {
    const MzPb__Attribute *a = mz_onnx_attribute(call->node, name);
    *out = a && a->n_ints > 0 ? a->ints[0] : otherwise;
    for (size_t i = 1; a && i < a->n_ints; i++)
        if (a->ints[i] != *out)
            return mz_onnx_fail(call, MEZZO_ERR_UNSUPPORTED, "'%s' differs between directions", name);
    return MEZZO_OK;
}

static mezzo_status paddings(mz_onnx_call *call, int64_t *before, int64_t *after) {
    const MzPb__Attribute *pads = mz_onnx_attribute(call->node, "pads"),
                          *own = mz_onnx_attribute(call->node, "auto_pad");
    *before = *after = 0;
    if (own && own->s.len > 0 && !(own->s.len == 6 && memcmp(own->s.data, "NOTSET", 6) == 0) &&
        !(own->s.len == 5 && memcmp(own->s.data, "VALID", 5) == 0))
        return mz_onnx_fail(call, MEZZO_ERR_UNSUPPORTED, "'auto_pad' other than NOTSET and VALID");
    if (!pads || pads->n_ints == 0)
        return MEZZO_OK;
    if (pads->n_ints != 4 || pads->ints[0] != pads->ints[1] || pads->ints[2] != pads->ints[3])
        return mz_onnx_fail(call, MEZZO_ERR_UNSUPPORTED, "'pads' differs between directions");
    *before = pads->ints[0];
    *after = pads->ints[2];
    return MEZZO_OK;
}

mezzo_status mz_onnx_conv(mz_onnx_call *call, int which) {
    (void)which;
    mezzo_graph *g = call->build->g;
    if (call->in[0]->rank != 4 || call->in[1]->rank != 4)
        return mz_onnx_fail(call, MEZZO_ERR_UNSUPPORTED, "convolutions of %d dimensions", call->in[0]->rank - 2);
    int64_t stride, dilation, before, after;
    MEZZO_TRY(both(call, "strides", 1, &stride));
    MEZZO_TRY(both(call, "dilations", 1, &dilation));
    MEZZO_TRY(paddings(call, &before, &after));
    const int64_t groups = mz_onnx_int_or(call->node, "group", 1);
    if (dilation != 1)
        return mz_onnx_fail(call, MEZZO_ERR_UNSUPPORTED, "a dilation of %lld", (long long)dilation);
    if (stride < 1 || stride > 1 << 20 || before < 0 || before > 1 << 20 || after < 0 || after > 1 << 20 ||
        groups < 1 || groups > 1 << 20)
        return mz_onnx_fail(call, MEZZO_ERR_INVALID, "strides, paddings or groups that make no sense");
    mezzo_value x, w, bias = MEZZO_NONE;
    MEZZO_TRY(mz_onnx_get(call, 0, &x));
    MEZZO_TRY(mz_onnx_get(call, 1, &w));
    if (call->n_in > 2 && call->in[2])
        MEZZO_TRY(mz_onnx_get(call, 2, &bias));
    const mezzo_convolution form = {(int)stride, (int)before, (int)after, (int)groups};
    return mz_onnx_give(call, 0, false, 4,
                        from_images(g, mezzo_conv2d(g, to_images(g, x), to_images(g, w), bias, &form)));
}

mezzo_status mz_onnx_pool(mz_onnx_call *call, int which) {
    (void)which;
    mezzo_graph *g = call->build->g;
    int64_t size, stride, before, after;
    MEZZO_TRY(both(call, "kernel_shape", 1, &size));
    MEZZO_TRY(both(call, "strides", 1, &stride));
    MEZZO_TRY(paddings(call, &before, &after));
    if (call->in[0]->rank != 4 || size != stride || size < 1 || size > 1 << 20 || before != 0 || after != 0)
        return mz_onnx_fail(call, MEZZO_ERR_UNSUPPORTED, "pooling of overlapping or padded windows");
    mezzo_value x;
    MEZZO_TRY(mz_onnx_get(call, 0, &x));
    return mz_onnx_give(call, 0, false, 4, from_images(g, mezzo_average_pool(g, to_images(g, x), (int)size)));
}

mezzo_status mz_onnx_global_pool(mz_onnx_call *call, int which) {
    (void)which;
    mezzo_graph *g = call->build->g;
    const mz_onnx_value *x = call->in[0];
    if (x->rank < 3)
        return mz_onnx_fail(call, MEZZO_ERR_INVALID, "%d dimensions", x->rank);
    mezzo_value v;
    MEZZO_TRY(mz_onnx_get(call, 0, &v));
    int64_t dim[MEZZO_MAX_RANK] = {x->dim[0], x->dim[1], 1, 1, 1, 1};
    v = mezzo_mean(g, mezzo_reshape(g, v, 3, (int64_t[]){x->dim[0], x->dim[1], -1}), 2);
    return mz_onnx_give(call, 0, false, x->rank, mezzo_reshape(g, v, x->rank, dim));
}

// --- norms and rows --------------------------------------------------------------------------------------------------
mezzo_status mz_onnx_layer_norm(mz_onnx_call *call, int rms) {
    mezzo_graph *g = call->build->g;
    const mz_onnx_value *x = call->in[0];
    const int64_t given = mz_onnx_int_or(call->node, "axis", -1);
    const int axis = mz_onnx_axis(given, x->rank);
    if (axis < 0)
        return mz_onnx_fail(call, MEZZO_ERR_INVALID, "axis %lld of %d dimensions", (long long)given, x->rank);
    for (int i = 1; i < call->n_out; i++)
        if (call->out[i]->name[0] != '\0')
            return mz_onnx_fail(call, MEZZO_ERR_UNSUPPORTED, "its mean and deviation are not outputs");
    mezzo_value v, weight, bias = MEZZO_NONE;
    MEZZO_TRY(mz_onnx_get(call, 0, &v));
    MEZZO_TRY(mz_onnx_get(call, 1, &weight));
    if (!rms && call->n_in > 2 && call->in[2])
        MEZZO_TRY(mz_onnx_get(call, 2, &bias));
    const float eps = (float)mz_onnx_float_or(call->node, "epsilon", 1e-5);
    if (axis < x->rank - 1) { // over several dimensions: as one
        const int64_t width = mz_onnx_elements(x->rank - axis, x->dim + axis);
        v = mezzo_reshape(g, v, 2, (int64_t[]){-1, width});
        weight = mezzo_reshape(g, weight, 1, &width);
        bias = bias.id < 0 ? bias : mezzo_reshape(g, bias, 1, &width);
    }
    v = rms ? mezzo_rmsnorm(g, v, weight, eps) : mezzo_layernorm(g, v, weight, bias, eps);
    return mz_onnx_give(call, 0, false, x->rank, axis < x->rank - 1 ? mezzo_reshape(g, v, x->rank, x->dim) : v);
}

mezzo_status mz_onnx_softmax(mz_onnx_call *call, int which) {
    (void)which;
    mezzo_graph *g = call->build->g;
    const mz_onnx_value *x = call->in[0];
    const int64_t given = mz_onnx_int_or(call->node, "axis", -1);
    const int axis = mz_onnx_axis(given, x->rank);
    if (axis < 0)
        return mz_onnx_fail(call, MEZZO_ERR_INVALID, "axis %lld of %d dimensions", (long long)given, x->rank);
    mezzo_value v;
    MEZZO_TRY(mz_onnx_get(call, 0, &v));
    const bool last = axis == x->rank - 1;
    if (!last)
        v = mezzo_transpose(g, v, axis, -1);
    v = mezzo_softmax(g, v);
    return mz_onnx_give(call, 0, false, x->rank, last ? v : mezzo_transpose(g, v, axis, -1));
}

mezzo_status mz_onnx_reduce(mz_onnx_call *call, int mean) {
    mezzo_graph *g = call->build->g;
    const mz_onnx_value *x = call->in[0];
    const MzPb__Attribute *own = mz_onnx_attribute(call->node, "axes"); // an attribute before opset 18 (13 of the sum)
    int n = 0;
    int64_t axes[MEZZO_MAX_RANK];
    bool named[MEZZO_MAX_RANK] = {false};
    if (own && own->n_ints <= MEZZO_MAX_RANK)
        for (; n < (int)own->n_ints; n++)
            axes[n] = own->ints[n];
    else if (call->n_in > 1 && call->in[1])
        MEZZO_TRY(mz_onnx_ints(call, 1, MEZZO_MAX_RANK, &n, axes));
    for (int i = 0; i < n; i++) {
        const int axis = mz_onnx_axis(axes[i], x->rank);
        if (axis < 0)
            return mz_onnx_fail(call, MEZZO_ERR_INVALID, "axis %lld of %d dimensions", (long long)axes[i], x->rank);
        named[axis] = true;
    }
    mezzo_value v;
    MEZZO_TRY(mz_onnx_get(call, 0, &v));
    if (n == 0 && mz_onnx_int_or(call->node, "noop_with_empty_axes", 0))
        return mz_onnx_give(call, 0, x->integer, x->rank, v);
    if (x->integer)
        return mz_onnx_fail(call, MEZZO_ERR_UNSUPPORTED, "it adds integers of an input");
    const bool keep = mz_onnx_int_or(call->node, "keepdims", 1) != 0;
    int64_t dim[MEZZO_MAX_RANK];
    int rank = 0;
    for (int i = x->rank - 1; i >= 0; i--)
        if (n == 0 || named[i])
            v = mean ? mezzo_mean(g, v, mezzo_value_rank(g, v) > 1 ? i : -1)
                     : mezzo_sum(g, v, mezzo_value_rank(g, v) > 1 ? i : -1);
    for (int i = 0; i < x->rank; i++)
        if (!(n == 0 || named[i]))
            dim[rank++] = x->dim[i];
        else if (keep)
            dim[rank++] = 1;
    return mz_onnx_give(call, 0, false, rank, mezzo_reshape(g, v, rank ? rank : 1, rank ? dim : &(int64_t){1}));
}
