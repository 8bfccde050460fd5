// Builds ops on images, noise and times.
#include "graph/build.h"

mezzo_value mezzo_conv2d(mezzo_graph *g, mezzo_value x, mezzo_value w, mezzo_value bias,
                         const mezzo_convolution *convolution) {
    mz_node node = MZ_BUILD_NODE(g, MZ_OP_conv2d, x, w, bias);
    if (!mz_build_broken(g) && convolution == NULL)
        return mz_build_failed(g, mz_fail(MEZZO_ERR_INVALID, "conv2d: convolution is NULL"));
    if (convolution != NULL) {
        node.attrs.stride = convolution->stride;
        node.attrs.pad_before = convolution->pad_before;
        node.attrs.pad_after = convolution->pad_after;
        node.attrs.groups = convolution->groups;
    }
    return mz_build_finish(g, &node);
}

mezzo_value mezzo_group_norm(mezzo_graph *g, mezzo_value x, mezzo_value weight, mezzo_value bias, mezzo_value film,
                             int groups, float eps, bool silu) {
    mz_node node = MZ_BUILD_NODE(g, MZ_OP_group_norm, x, weight, bias, film);
    node.attrs.groups = groups;
    node.attrs.eps = eps;
    node.attrs.act = silu ? MZ_ACT_SILU : MZ_ACT_NONE;
    if (!mz_build_broken(g) && !(eps >= 0))
        return mz_build_failed(g, mz_fail(MEZZO_ERR_INVALID, "group_norm: eps %g, must be 0 or more", (double)eps));
    return mz_build_finish(g, &node);
}

mezzo_status mezzo_group_norm_statistics(mezzo_graph *g, mezzo_value y, mezzo_value *mean, mezzo_value *rstd) {
    MZ_REQUIRE(g, mean, rstd);
    mezzo_value *const out[] = {mean, rstd};
    *mean = *rstd = MEZZO_NONE;
    MEZZO_TRY(mezzo_graph_status(g));
    const int maker = y.id >= 0 && (size_t)y.id < g->n_values ? g->values[y.id].producer : -1;
    if (maker < 0 || g->nodes[maker].op != MZ_OP_group_norm || g->nodes[maker].out[0] != y.id)
        return mz_fail(MEZZO_ERR_INVALID, "group_norm_statistics: y is no result of mezzo_group_norm");
    const mz_shape groups = {2, {g->values[y.id].shape.dim[0], g->nodes[maker].attrs.groups}};
    for (int i = 0; i < 2; i++) {
        const int slot = 1 + i;
        if (mz_node_out(&g->nodes[maker], slot) < 0) {
            const mz_value v = {.kind = MZ_VALUE_TEMP,
                                .dtype = MEZZO_F32,
                                .shape = groups,
                                .producer = maker,
                                .slot = slot,
                                .param = -1,
                                .alias = -1};
            int made;
            MEZZO_TRY(mz_graph_value(g, v, &made));
            g->nodes[maker].out[slot] = made;
            g->nodes[maker].n_out = g->nodes[maker].n_out > slot ? g->nodes[maker].n_out : slot + 1;
        }
        out[i]->id = g->nodes[maker].out[slot];
    }
    return MEZZO_OK;
}

mezzo_value mezzo_upsample(mezzo_graph *g, mezzo_value x, int factor) {
    return mz_build_unary(g, MZ_OP_upsample, x, (mz_attrs){.factor = factor, .alpha = 1});
}

mezzo_value mezzo_average_pool(mezzo_graph *g, mezzo_value x, int factor) {
    const float alpha = factor > 0 ? 1.0F / ((float)factor * (float)factor) : 0;
    return mz_build_unary(g, MZ_OP_pool, x, (mz_attrs){.factor = factor, .alpha = alpha});
}

mezzo_value mezzo_max_pool(mezzo_graph *g, mezzo_value x, int axis, const mezzo_windows *windows) {
    if (!mz_build_broken(g) && windows == NULL)
        return mz_build_failed(g, mz_fail(MEZZO_ERR_INVALID, "max_pool: windows is NULL"));
    const mezzo_windows w = windows != NULL ? *windows : (mezzo_windows){0};
    return mz_build_unary(g, MZ_OP_max_pool, x,
                          (mz_attrs){.axis = axis,
                                     .factor = w.size,
                                     .stride = w.stride,
                                     .step = w.dilation,
                                     .pad_before = w.pad_before,
                                     .pad_after = w.pad_after});
}

// Checks that the one input has `rank` dimensions, numbers of `dtype`, and the given first and last dimension (0: any).
static mezzo_status check_source(const mezzo_graph *g, const char *op, mezzo_value x, mezzo_dtype dtype, int rank,
                                 int64_t first, int64_t last) {
    if (x.id < 0 || (size_t)x.id >= g->n_values)
        return mz_fail(MEZZO_ERR_INVALID, "%s: its input is not a value of this graph", op);
    const mz_value *v = &g->values[x.id];
    char text[64];
    if (v->dtype != dtype || v->shape.rank != rank || (first > 0 && v->shape.dim[0] != first) ||
        (last > 0 && v->shape.dim[rank - 1] != last))
        return mz_fail(MEZZO_ERR_INVALID, "%s: its input has shape %s and %s numbers", op,
                       mz_shape_text(&v->shape, text, sizeof text), mezzo_dtype_name(v->dtype));
    return MEZZO_OK;
}

static mezzo_value given(mezzo_graph *g, mz_node *node, mezzo_status status, const mz_shape *shape) {
    if (status == MEZZO_OK)
        status = mz_build_finish_node(g, node, shape, MEZZO_F32);
    return status == MEZZO_OK ? (mezzo_value){node->out[0]} : mz_build_failed(g, status);
}

mezzo_value mezzo_time_embedding(mezzo_graph *g, mezzo_value times, int64_t dims, float factor, float longest) {
    mz_node node = MZ_BUILD_NODE(g, MZ_OP_time_embedding, times);
    if (mz_build_broken(g))
        return MEZZO_NONE;
    mz_shape shape = {.rank = 2};
    mezzo_status status = check_source(g, "time_embedding", times, MEZZO_F32, 1, 0, 0);
    if (status == MEZZO_OK && (dims < 2 || dims % 2 || dims > INT32_MAX || !(longest > 0)))
        status = mz_fail(MEZZO_ERR_INVALID, "time_embedding: %lld dimensions and %g: must be even and positive",
                         (long long)dims, (double)longest);
    if (status == MEZZO_OK)
        shape = (mz_shape){2, {g->values[times.id].shape.dim[0], dims}};
    node.attrs.alpha = factor;
    node.attrs.theta = longest;
    return given(g, &node, status, &shape);
}

mezzo_value mezzo_normal(mezzo_graph *g, mezzo_value keys, int rank, const int64_t *dims) {
    mz_node node = MZ_BUILD_NODE(g, MZ_OP_normal, keys);
    if (mz_build_broken(g))
        return MEZZO_NONE;
    mz_shape shape;
    mezzo_status status = mz_build_shape("normal", rank, dims, &shape);
    if (status == MEZZO_OK)
        status = check_source(g, "normal", keys, MEZZO_I32, 2, shape.dim[0], 2);
    return given(g, &node, status, &shape);
}
