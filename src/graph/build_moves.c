// Builds reductions, movements and constants.
#include "graph/build.h"

static mezzo_value refuse(mezzo_graph *g, const char *op, const char *why) {
    return mz_build_failed(g, mz_fail(MEZZO_ERR_INVALID, "%s: %s", op, why));
}

static bool has(const mezzo_graph *g, mezzo_value v) {
    return v.id >= 0 && (size_t)v.id < g->n_values;
}

// Returns whether x can be read: the graph has no error and x is its value; else the graph has the error.
static bool usable(mezzo_graph *g, const char *op, mezzo_value x) {
    if (mz_build_broken(g))
        return false;
    if (!has(g, x))
        refuse(g, op, "x is missing, or no value of this graph");
    return has(g, x);
}

static mezzo_value viewed(mezzo_graph *g, mezzo_value x, const mz_shape *shape) {
    if (mz_build_broken(g) || mz_shape_equal(&g->values[x.id].shape, shape))
        return x;
    return mezzo_reshape(g, x, shape->rank, shape->dim);
}

static mezzo_value finish_given(mezzo_graph *g, mz_node *node, const mz_shape *shape, mezzo_dtype dtype) {
    const mezzo_status status = mz_build_finish_node(g, node, shape, dtype);
    return status == MEZZO_OK ? (mezzo_value){node->out[0]} : mz_build_failed(g, status);
}

static int from_end(const mezzo_graph *g, mezzo_value x, int axis) {
    return axis < 0 ? axis + mezzo_value_rank(g, x) : axis;
}

// --- constants -----------------------------------------------------------------------------------------------------
mezzo_value mezzo_constant(mezzo_graph *g, mezzo_dtype dtype, float value, int rank, const int64_t *shape) {
    mz_node node = mz_build_node(g, MZ_OP_constant, NULL, 0);
    mz_shape s;
    if (mz_build_broken(g))
        return MEZZO_NONE;
    const mezzo_status status = mz_build_shape("constant", rank, shape, &s);
    if (status != MEZZO_OK)
        return mz_build_failed(g, status);
    if (dtype != MEZZO_F32 && !(dtype == MEZZO_I32 && value == (float)(int32_t)value))
        return refuse(g, "constant", "fp32, or i32 and a whole number");
    node.attrs.alpha = value;
    return finish_given(g, &node, &s, dtype);
}

mezzo_value mezzo_range(mezzo_graph *g, int64_t begin, int64_t step, int64_t n) {
    mz_node node = mz_build_node(g, MZ_OP_arange, NULL, 0);
    mz_shape shape;
    const int64_t most = INT32_MAX;
    if (mz_build_broken(g))
        return MEZZO_NONE;
    const mezzo_status status = mz_build_shape("arange", 1, &n, &shape);
    if (status != MEZZO_OK)
        return mz_build_failed(g, status);
    if (n > most || begin > most || begin < -most || step > most || step < -most || begin + step * n > most ||
        begin + step * n < -most)
        return refuse(g, "arange", "its numbers do not fit 32-bit integers");
    node.attrs.begin = begin;
    node.attrs.step = step;
    return finish_given(g, &node, &shape, MEZZO_I32);
}

mezzo_value mezzo_arange(mezzo_graph *g, int64_t n) {
    return mezzo_range(g, 0, 1, n);
}

// --- reductions -----------------------------------------------------------------------------------------------------
#define REDUCED(name)                                                                                                  \
    mezzo_value mezzo_##name(mezzo_graph *g, mezzo_value x, int axis) {                                                \
        return mz_build_unary(g, MZ_OP_##name, x, (mz_attrs){.axis = axis < 0 ? -1 : axis});                           \
    }
REDUCED(sum)
REDUCED(mean)
REDUCED(max)
REDUCED(min)
REDUCED(prod)
REDUCED(argmax)

mezzo_value mezzo_cumsum(mezzo_graph *g, mezzo_value x, int axis, bool exclusive, bool reverse) {
    return mz_build_unary(g, MZ_OP_cumsum, x,
                          (mz_attrs){.axis = from_end(g, x, axis), .exclusive = exclusive, .reverse = reverse});
}

// Marks the axes to reduce, all of them where n is 0. Returns NULL, or what is wrong.
static const char *mark_axes(int rank, int n, const int *axes, bool chosen[MEZZO_MAX_RANK]) {
    if (n < 0 || (n > 0 && axes == NULL))
        return "a list of axes is needed";
    for (int i = 0; i < rank; i++)
        chosen[i] = n == 0;
    for (int i = 0; i < n; i++) {
        const int axis = axes[i] < 0 ? axes[i] + rank : axes[i];
        if (axis < 0 || axis >= rank || chosen[axis])
            return "each axis must be one of x's, named once";
        chosen[axis] = true;
    }
    return NULL;
}

// Moves the chosen axes to the end unless they are neighbours, so that they form one axis.
mezzo_value mezzo_reduce(mezzo_graph *g, mezzo_reduction reduction, mezzo_value x, int n, const int *axes, bool keep) {
    static const mz_op ops[] = {MZ_OP_sum, MZ_OP_mean, MZ_OP_max, MZ_OP_min, MZ_OP_prod};
    bool chosen[MEZZO_MAX_RANK] = {false};
    if (!usable(g, "reduce", x))
        return MEZZO_NONE;
    const mz_shape shape = g->values[x.id].shape;
    const char *wrong = mark_axes(shape.rank, n, axes, chosen);
    if (wrong != NULL || (unsigned)reduction >= MZ_COUNT(ops))
        return refuse(g, "reduce", wrong != NULL ? wrong : "no such reduction");
    mz_shape out = {.rank = 0}, view = {3, {1, 1, 1}};
    int order[MEZZO_MAX_RANK], kept = 0, changes = 0;
    for (int i = 0; i < shape.rank; i++) {
        changes += chosen[i] && (i == 0 || !chosen[i - 1]);
        view.dim[chosen[i] ? 1 : changes == 0 ? 0 : 2] *= shape.dim[i];
        if (!chosen[i])
            order[kept++] = i;
        if (!chosen[i] || keep)
            out.dim[out.rank++] = chosen[i] ? 1 : shape.dim[i];
    }
    for (int i = 0, at = kept; i < shape.rank; i++)
        if (chosen[i])
            order[at++] = i;
    if (out.rank == 0)
        out = (mz_shape){1, {1}};
    if (changes > 1) {
        x = mezzo_permute(g, x, order);
        view = (mz_shape){3, {view.dim[0] * view.dim[2], view.dim[1], 1}};
    }
    x = viewed(g, x, &view);
    x = mz_build_unary(g, ops[reduction], x, (mz_attrs){.axis = 1});
    return viewed(g, x, &out);
}

// --- movements -----------------------------------------------------------------------------------------------------
// Inserts each run of dimensions in which x repeats by one node.
mezzo_value mezzo_expand(mezzo_graph *g, mezzo_value x, int rank, const int64_t *shape) {
    mz_shape to, both, now = {.rank = 0};
    if (!usable(g, "expand", x))
        return MEZZO_NONE;
    mezzo_status status = mz_build_shape("expand", rank, shape, &to);
    if (status != MEZZO_OK)
        return mz_build_failed(g, status);
    const mz_shape from = g->values[x.id].shape;
    if (!mz_shape_broadcast(&from, &to, &both) || !mz_shape_equal(&both, &to))
        return refuse(g, "expand", "side by side from the last, x's dimensions must be the shape's, or 1");
    const mz_broadcast r = mz_broadcast_loops((const mz_shape *const[]){&from}, 1, &to);
    for (int i = 0; i < r.rank; i++)
        if (r.step[0][i] != 0)
            now.dim[now.rank++] = r.dim[i];
    const bool one = now.rank == 0;
    x = viewed(g, x, one ? &(mz_shape){1, {1}} : &now);
    for (int i = 0; i < r.rank && !mz_build_broken(g); i++) {
        if (r.step[0][i] != 0)
            continue;
        mz_node node = MZ_BUILD_NODE(g, MZ_OP_expand, x);
        for (int k = now.rank++; k > i; k--)
            now.dim[k] = now.dim[k - 1];
        now.dim[i] = r.dim[i];
        node.attrs.alpha = 1;
        node.attrs.axis = one ? -1 : i;
        x = finish_given(g, &node, &now, MEZZO_F32);
    }
    return viewed(g, x, &to);
}

mezzo_value mezzo_pad(mezzo_graph *g, mezzo_value x, const int64_t *before, const int64_t *after, float value) {
    if (!usable(g, "pad", x))
        return MEZZO_NONE;
    if (before == NULL || after == NULL)
        return refuse(g, "pad", "two lists with a number for each dimension are needed");
    mz_shape shape = g->values[x.id].shape;
    for (int d = 0; d < shape.rank && !mz_build_broken(g); d++) {
        const int64_t most = INT64_MAX / 64 / mz_shape_count(&shape);
        mz_node node = MZ_BUILD_NODE(g, MZ_OP_pad, x);
        if (before[d] < 0 || after[d] < 0 || before[d] > most || after[d] > most)
            return refuse(g, "pad", "numbers of elements must be 0 or more, and fit");
        if (before[d] == 0 && after[d] == 0)
            continue;
        node.attrs.axis = d;
        node.attrs.begin = before[d];
        node.attrs.end = before[d] + shape.dim[d];
        node.attrs.alpha = value;
        shape.dim[d] += before[d] + after[d];
        x = finish_given(g, &node, &shape, g->values[x.id].dtype);
    }
    return x;
}

mezzo_value mezzo_gather(mezzo_graph *g, mezzo_value x, int axis, mezzo_value index, bool elementwise) {
    return mz_build_binary(g, MZ_OP_gather, x, index,
                           (mz_attrs){.axis = from_end(g, x, axis), .elementwise = elementwise});
}

mezzo_value mezzo_flip(mezzo_graph *g, mezzo_value x, int axis) {
    const int64_t n = mezzo_value_dim(g, x, axis);
    if (!usable(g, "flip", x))
        return MEZZO_NONE;
    if (n == 0)
        return refuse(g, "flip", "x has no such axis");
    return mezzo_gather(g, x, axis, mezzo_range(g, n - 1, -1, n), false);
}

mezzo_value mezzo_scatter_add(mezzo_graph *g, mezzo_value x, int axis, mezzo_value index, mezzo_value src,
                              bool elementwise) {
    mz_node node = MZ_BUILD_NODE(g, MZ_OP_scatter_add, x, index, src);
    node.attrs.axis = from_end(g, x, axis);
    node.attrs.elementwise = elementwise;
    return mz_build_finish(g, &node);
}

// --- products of several matrices ----------------------------------------------------------------------------------
static mz_shape with_matrix(const mz_shape *leading, const mz_shape *matrix) {
    mz_shape s = *leading;
    for (int i = matrix->rank - 2; i < matrix->rank; i++)
        s.dim[s.rank++] = matrix->dim[i];
    return s;
}

mezzo_value mezzo_matmul(mezzo_graph *g, mezzo_value a, mezzo_value b, bool transpose_a, bool transpose_b) {
    const mz_attrs attrs = {.transpose_a = transpose_a, .transpose_b = transpose_b};
    if (mz_build_broken(g) || !has(g, a) || !has(g, b))
        return mz_build_binary(g, MZ_OP_matmul, a, b, attrs);
    const mz_shape sa = g->values[a.id].shape, sb = g->values[b.id].shape;
    mz_shape la = sa, lb = sb, both;
    la.rank = sa.rank - 2;
    lb.rank = sb.rank - 2;
    if (la.rank < 0 || lb.rank < 0 || mz_shape_equal(&la, &lb) || !mz_shape_broadcast(&la, &lb, &both))
        return mz_build_binary(g, MZ_OP_matmul, a, b, attrs);
    if (mz_shape_count(&lb) == 1 && !transpose_a) { // a's matrices, stacked, are one matrix
        const mz_shape rows = {2, {mz_shape_rows(&sa), sa.dim[sa.rank - 1]}},
                       one = {2, {sb.dim[sb.rank - 2], sb.dim[sb.rank - 1]}};
        const mezzo_value y = mz_build_binary(g, MZ_OP_matmul, viewed(g, a, &rows), viewed(g, b, &one), attrs);
        const mz_shape out = with_matrix(&both, &(mz_shape){2, {sa.dim[sa.rank - 2], one.dim[transpose_b ? 0 : 1]}});
        return viewed(g, y, &out);
    }
    const mz_shape ea = with_matrix(&both, &sa), eb = with_matrix(&both, &sb);
    return mz_build_binary(g, MZ_OP_matmul, mezzo_expand(g, a, ea.rank, ea.dim), mezzo_expand(g, b, eb.rank, eb.dim),
                           attrs);
}
