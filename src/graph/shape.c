// Infers the shapes of a node's outputs. An error names the op, the values and both shapes.
#include "graph/graph.h"

// The state of one rule: the graph and the node whose shapes it infers.
typedef struct rule {
    const mezzo_graph *g;
    const mz_node *node;
} rule;

static const mz_shape *shape_of(rule r, int slot) {
    return &r.g->values[r.node->in[slot]].shape;
}
static bool present(rule r, int slot) {
    return slot < r.node->n_in && r.node->in[slot] >= 0;
}

// Reports "linear in h.0: x (wte, 4x8) and w (fc.weight, 3x7): why".
static mezzo_status mismatch(rule r, int a, int b, const char *why) {
    char na[128], nb[128], sa[64], sb[64];
    const char *slot_a = mz_op_slot(r.node->op, false, a).name;
    const char *module = r.g->modules[r.node->module];
    const char *op = mz_op_table[r.node->op].name;
    const char *va = mz_graph_value_name(r.g, r.node->in[a], na, sizeof na);
    mz_shape_text(shape_of(r, a), sa, sizeof sa);
    if (b < 0)
        return mz_fail(MEZZO_ERR_INVALID, "%s%s%s: %s (%s, shape %s): %s", op, *module ? " in " : "", module, slot_a,
                       va, sa, why);
    const char *vb = mz_graph_value_name(r.g, r.node->in[b], nb, sizeof nb);
    mz_shape_text(shape_of(r, b), sb, sizeof sb);
    return mz_fail(MEZZO_ERR_INVALID, "%s%s%s: %s (%s, shape %s) and %s (%s, shape %s): %s", op, *module ? " in " : "",
                   module, slot_a, va, sa, mz_op_slot(r.node->op, false, b).name, vb, sb, why);
}

static mz_shape vector(int64_t n) {
    return (mz_shape){1, {n}};
}
static int64_t last(const mz_shape *s) {
    return s->rank ? s->dim[s->rank - 1] : 1;
}

static mezzo_status infer_linear(rule r, mz_shape *out) {
    const mz_shape *x = shape_of(r, 0), *w = shape_of(r, 1);
    if (w->rank != 2)
        return mismatch(r, 1, -1, "a weight is [out, in]");
    if (x->rank < 1 || last(x) != w->dim[1])
        return mismatch(r, 0, 1, "x's last dimension must be the weight's second");
    if (present(r, 2) && (shape_of(r, 2)->rank != 1 || shape_of(r, 2)->dim[0] != w->dim[0]))
        return mismatch(r, 1, 2, "the bias must have one number for each output");
    out[0] = *x;
    out[0].dim[x->rank - 1] = w->dim[0];
    out[1] = out[0];
    return MEZZO_OK;
}

static mezzo_status infer_matmul(rule r, mz_shape *out) {
    const mz_shape *a = shape_of(r, 0), *b = shape_of(r, 1);
    if (a->rank < 2 || b->rank != a->rank)
        return mismatch(r, 0, 1, "both need the same rank, two or more");
    int n = a->rank;
    for (int i = 0; i < n - 2; ++i)
        if (a->dim[i] != b->dim[i])
            return mismatch(r, 0, 1, "the leading dimensions must be the same");
    bool ta = r.node->attrs.transpose_a, tb = r.node->attrs.transpose_b;
    int64_t m = a->dim[n - 2 + ta], ka = a->dim[n - 1 - ta], kb = b->dim[n - 2 + tb], nn = b->dim[n - 1 - tb];
    if (ka != kb)
        return mismatch(r, 0, 1, "the inner dimensions must be the same");
    out[0] = *a;
    out[0].dim[n - 2] = m;
    out[0].dim[n - 1] = nn;
    return MEZZO_OK;
}

static mezzo_status infer_layernorm(rule r, mz_shape *out) {
    const mz_shape *x = shape_of(r, 0);
    if (x->rank < 1)
        return mismatch(r, 0, -1, "needs a last dimension to normalise");
    for (int i = 1; i <= 2; ++i)
        if (present(r, i) && (shape_of(r, i)->rank != 1 || shape_of(r, i)->dim[0] != last(x)))
            return mismatch(r, 0, i, "must have one number for each of x's last dimension");
    out[0] = out[3] = *x;
    out[1] = out[2] = vector(mz_shape_rows(x));
    return MEZZO_OK;
}

static mezzo_status infer_rmsnorm(rule r, mz_shape *out) {
    const mz_shape *x = shape_of(r, 0);
    if (x->rank < 1)
        return mismatch(r, 0, -1, "needs a last dimension to normalise");
    if (present(r, 1) && (shape_of(r, 1)->rank != 1 || shape_of(r, 1)->dim[0] != last(x)))
        return mismatch(r, 0, 1, "must have one number for each of x's last dimension");
    out[0] = out[2] = *x;
    out[1] = vector(mz_shape_rows(x));
    return MEZZO_OK;
}

static mezzo_status infer_rope(rule r, mz_shape *out) {
    const mz_shape *x = shape_of(r, 0), *table = shape_of(r, 1);
    int heads = r.node->attrs.heads, rotated = r.node->attrs.rotated;
    if (x->rank != 3)
        return mismatch(r, 0, -1, "must be [batch, time, width]");
    if (heads < 1 || rotated < 0 || rotated > heads)
        return mz_fail(MEZZO_ERR_INVALID, "rope: %d of %d heads cannot be turned", rotated, heads);
    if (x->dim[2] % heads)
        return mismatch(r, 0, -1, "the heads must divide the width");
    if (table->rank != 2 || (table->dim[0] != x->dim[1] && table->dim[0] != x->dim[0] * x->dim[1]) ||
        table->dim[1] % 2 || table->dim[1] > x->dim[2] / heads)
        return mismatch(r, 0, 1,
                        "the table needs a row for each time, of one row of the batch or of all, and no more columns "
                        "than a head has dimensions");
    out[0] = *x;
    return MEZZO_OK;
}

static mezzo_status infer_swiglu(rule r, mz_shape *out) {
    const mz_shape *x = shape_of(r, 0);
    if (x->rank < 1 || last(x) % 2)
        return mismatch(r, 0, -1, "the last dimension must hold two halves, gate and up");
    out[0] = *x;
    out[0].dim[x->rank - 1] /= 2;
    return MEZZO_OK;
}

static mezzo_status must_be_integers(rule r, int slot) {
    return r.g->values[r.node->in[slot]].dtype == MEZZO_I32 ? MEZZO_OK : mismatch(r, slot, -1, "must be integers");
}

static mezzo_status infer_route(rule r, mz_shape *out) {
    const mz_shape *x = shape_of(r, 0);
    const mz_attrs *a = &r.node->attrs;
    int64_t experts = last(x);
    if (x->rank < 2)
        return mismatch(r, 0, -1, "must be [tokens, experts]");
    if (present(r, 1) && (shape_of(r, 1)->rank != 1 || shape_of(r, 1)->dim[0] != experts))
        return mismatch(r, 0, 1, "the bias must have one number for each expert");
    if (a->groups < 1 || experts % a->groups || a->top_groups < 1 || a->top_groups > a->groups)
        return mz_fail(MEZZO_ERR_INVALID, "route: %lld experts in %d groups of which %d are used: must divide",
                       (long long)experts, a->groups, a->top_groups);
    if (a->groups > 1 && experts / a->groups < 2)
        return mz_fail(MEZZO_ERR_INVALID, "route: groups of %lld expert: a group's score is its two best",
                       (long long)(experts / a->groups));
    int64_t eligible = experts / a->groups * a->top_groups;
    if (a->top_k < 1 || a->top_k > eligible)
        return mz_fail(MEZZO_ERR_INVALID, "route: %d experts a token of %lld that can be chosen", a->top_k,
                       (long long)eligible);
    out[0] = out[1] = (mz_shape){2, {mz_shape_rows(x), a->top_k}};
    return MEZZO_OK;
}

static mezzo_status infer_expert_order(rule r, mz_shape *out) {
    int64_t rows = mz_shape_count(shape_of(r, 0));
    MEZZO_TRY(must_be_integers(r, 0));
    if (r.node->attrs.experts < 1 || rows > INT32_MAX)
        return mz_fail(MEZZO_ERR_INVALID, "expert_order: %lld rows for %d experts: must be positive, and fit 32 bits",
                       (long long)rows, r.node->attrs.experts);
    out[0] = out[1] = vector(rows);
    out[2] = vector(r.node->attrs.experts + 1);
    return MEZZO_OK;
}

// Infers [M, C] → [R, C] for dispatch, and the reverse for combine.
static mezzo_status infer_rearrange(rule r, mz_shape *out) {
    const mz_shape *x = shape_of(r, 0), *order = shape_of(r, 1), *place = shape_of(r, 2);
    int64_t rows = mz_shape_count(order), top_k = r.node->attrs.top_k;
    bool spread = r.node->op == MZ_OP_dispatch;
    MEZZO_TRY(must_be_integers(r, 1));
    MEZZO_TRY(must_be_integers(r, 2));
    if (!mz_shape_equal(order, place))
        return mismatch(r, 1, 2, "must be the two outputs of one expert_order");
    if (top_k < 1 || x->rank < 2 || mz_shape_rows(x) * (spread ? top_k : 1) != rows)
        return mismatch(r, 0, 1,
                        spread ? "order must hold top_k numbers for each row of x"
                               : "order must hold one number for each row of x");
    if (rows % top_k || (present(r, 3) && mz_shape_count(shape_of(r, 3)) != rows))
        return mismatch(r, 1, present(r, 3) ? 3 : 2, "must hold top_k numbers for each token");
    out[0] = (mz_shape){2, {spread ? rows : rows / top_k, last(x)}};
    for (int slot = 4; slot < 6; ++slot)
        if (present(r, slot) && mz_shape_count(shape_of(r, slot)) != mz_shape_count(&out[0]))
            return mismatch(r, 0, slot, "what is added must be as large as the result");
    return MEZZO_OK;
}

static mezzo_status infer_grouped_linear(rule r, mz_shape *out) {
    const mz_shape *x = shape_of(r, 0), *w = shape_of(r, 1), *offsets = shape_of(r, 2);
    MEZZO_TRY(must_be_integers(r, 2));
    if (w->rank != 3)
        return mismatch(r, 1, -1, "weights are [experts, out, in]");
    if (x->rank != 2 || x->dim[1] != w->dim[2])
        return mismatch(r, 0, 1, "x must be [rows, in]");
    if (mz_shape_count(offsets) != w->dim[0] + 1)
        return mismatch(r, 1, 2, "offsets must have one number more than there are experts");
    out[0] = (mz_shape){2, {x->dim[0], w->dim[1]}};
    return MEZZO_OK;
}

static mezzo_status infer_embedding(rule r, mz_shape *out) {
    const mz_shape *table = shape_of(r, 0), *ids = shape_of(r, 1);
    if (table->rank != 2)
        return mismatch(r, 0, -1, "a table is [rows, width]");
    if (r.g->values[r.node->in[1]].dtype != MEZZO_I32)
        return mismatch(r, 1, -1, "ids must be integers");
    if (ids->rank + 1 > MEZZO_MAX_RANK)
        return mismatch(r, 0, 1, "the result would have too many dimensions");
    out[0] = *ids;
    out[0].dim[out[0].rank++] = table->dim[1];
    return MEZZO_OK;
}

static mezzo_status infer_heads(rule r, mz_shape *out) {
    const mz_shape *q = shape_of(r, 0);
    int heads = r.node->attrs.heads, kv = r.node->attrs.kv_heads;
    if (q->rank != 3)
        return mismatch(r, 0, -1, "must be [batch, time, width]");
    if (heads < 1 || kv < 1 || heads % kv)
        return mz_fail(MEZZO_ERR_INVALID,
                       "attention: %d heads over %d key/value heads: the second must divide the first", heads, kv);
    out[0] = *q;
    if (!present(r, 1)) {
        if (kv != heads)
            return mismatch(r, 0, -1, "q, k and v in one tensor have as many heads each");
        if (q->dim[2] % (3 * (int64_t)heads))
            return mismatch(r, 0, -1, "the width must be 3 x heads x head size");
        out[0].dim[2] = q->dim[2] / 3;
    } else {
        const mz_shape *k = shape_of(r, 1), *v = shape_of(r, 2);
        if (q->dim[2] % heads)
            return mismatch(r, 0, -1, "the heads must divide the width");
        if (!mz_shape_equal(k, v))
            return mismatch(r, 1, 2, "must be the same");
        if (k->rank != 3 || k->dim[0] != q->dim[0] || k->dim[2] != q->dim[2] / heads * kv)
            return mismatch(r, 0, 1, "must agree in batch and head size");
    }
    out[1] = (mz_shape){3, {q->dim[0], heads, q->dim[1]}}; // lse
    return MEZZO_OK;
}

static mezzo_status infer_attention(rule r, mz_shape *out) {
    const mz_shape *q = shape_of(r, 0);
    const mz_attrs *attrs = &r.node->attrs;
    MEZZO_TRY(infer_heads(r, out));
    bool same = !present(r, 1) || shape_of(r, 1)->dim[1] == q->dim[1];
    if (attrs->window != 0 && (!attrs->causal || !same))
        return mismatch(r, 0, -1, "a window is of causal attention with as many keys as queries");
    if (!present(r, 3))
        return MEZZO_OK;
    MEZZO_TRY(must_be_integers(r, 3));
    const mz_shape *positions = shape_of(r, 3);
    if (positions->rank != 2 || positions->dim[0] != q->dim[0] || positions->dim[1] != q->dim[1])
        return mismatch(r, 0, 3, "documents need a position for each token");
    return attrs->causal && same ? MEZZO_OK
                                 : mismatch(r, 0, -1, "documents are of causal attention with as many keys as queries");
}

static mezzo_status infer_attention_masked(rule r, mz_shape *out) {
    const mz_shape *q = shape_of(r, 0), *mask = shape_of(r, 3);
    mz_shape as_attention[MZ_MAX_OUT];
    MEZZO_TRY(infer_heads(r, as_attention));
    out[0] = as_attention[0];
    if (r.node->attrs.window != 0)
        return mismatch(r, 0, -1, "a window is of attention without a mask");
    const int64_t whole[] = {q->dim[0], r.node->attrs.heads, q->dim[1], shape_of(r, 1)->dim[1]};
    bool fits = mask->rank == 4 && mask->dim[3] == whole[3];
    for (int i = 0; fits && i < 3; i++)
        fits = mask->dim[i] == 1 || mask->dim[i] == whole[i];
    return fits ? MEZZO_OK : mismatch(r, 0, 3, "the mask must be [1 or batch, 1 or heads, 1 or queries, keys]");
}

static mezzo_status infer_attention_cached(rule r, mz_shape *out) {
    const mz_shape *q = shape_of(r, 0), *k = shape_of(r, 3), *positions = shape_of(r, 5);
    mz_shape as_attention[MZ_MAX_OUT];
    MEZZO_TRY(infer_heads(r, as_attention));
    if (present(r, 1) && shape_of(r, 1)->dim[1] != q->dim[1])
        return mismatch(r, 0, 1, "must be of the same times, which the cache keeps");
    out[0] = as_attention[0];
    int64_t width = out[0].dim[2] / r.node->attrs.heads * r.node->attrs.kv_heads;
    if (!mz_shape_equal(k, shape_of(r, 4)))
        return mismatch(r, 3, 4, "must be the same");
    if (k->rank != 3 || k->dim[0] != q->dim[0] || k->dim[2] != width)
        return mismatch(r, 0, 3, "the cache must be [batch, positions, key/value heads x head size]");
    MEZZO_TRY(must_be_integers(r, 5));
    return positions->rank == 1 && positions->dim[0] == q->dim[1] ? MEZZO_OK
                                                                  : mismatch(r, 0, 5, "a position for each time");
}

static mezzo_status infer_cross_entropy(rule r, mz_shape *out) {
    const mz_shape *x = shape_of(r, 0), *t = shape_of(r, 1);
    bool same = x->rank == t->rank + 1;
    for (int i = 0; same && i < t->rank; ++i)
        same = x->dim[i] == t->dim[i];
    if (!same)
        return mismatch(r, 0, 1, "logits need the targets' shape and one more dimension, the classes");
    if (r.g->values[r.node->in[1]].dtype != MEZZO_I32)
        return mismatch(r, 1, -1, "targets must be integers");
    out[0] = vector(1);
    out[1] = vector(mz_shape_count(t));
    return MEZZO_OK;
}

static mezzo_status infer_reduced(rule r, mz_shape *out) {
    const mz_shape *x = shape_of(r, 0);
    int axis = r.node->attrs.axis;
    if (axis >= x->rank)
        return mismatch(r, 0, -1, "has no such axis");
    if (axis < 0 || x->rank == 1) {
        out[0] = vector(1);
        return MEZZO_OK;
    }
    out[0].rank = 0;
    for (int i = 0; i < x->rank; ++i)
        if (i != axis)
            out[0].dim[out[0].rank++] = x->dim[i];
    return MEZZO_OK;
}

static mezzo_status infer_along(rule r, mz_shape *out) {
    const int axis = r.node->attrs.axis;
    out[0] = *shape_of(r, 0);
    return axis >= 0 && axis < out[0].rank ? MEZZO_OK : mismatch(r, 0, -1, "has no such axis");
}

static mezzo_status infer_gather(rule r, mz_shape *out) {
    const mz_shape *x = shape_of(r, 0), *index = shape_of(r, 1);
    const int axis = r.node->attrs.axis;
    MEZZO_TRY(infer_along(r, out));
    MEZZO_TRY(must_be_integers(r, 1));
    if (r.node->attrs.elementwise) {
        out[0].dim[axis] = index->rank == x->rank ? index->dim[axis] : 0;
        if (!mz_shape_equal(&out[0], index))
            return mismatch(r, 0, 1, "an index for each element may differ in shape only along the axis");
        return MEZZO_OK;
    }
    if (x->rank - 1 + index->rank > MEZZO_MAX_RANK)
        return mismatch(r, 0, 1, "the result would have too many dimensions");
    out[0].rank = 0;
    for (int i = 0; i < x->rank; ++i)
        for (int k = 0; k < (i == axis ? index->rank : 1); ++k)
            out[0].dim[out[0].rank++] = i == axis ? index->dim[k] : x->dim[i];
    return MEZZO_OK;
}

static mezzo_status infer_scatter_add(rule r, mz_shape *out) {
    mz_shape src;
    if (!present(r, 0))
        return mz_fail(MEZZO_ERR_INVALID, "scatter_add: x is missing");
    MEZZO_TRY(infer_gather(r, &src));
    if (!mz_shape_equal(&src, shape_of(r, 2)))
        return mismatch(r, 1, 2, "there must be an index for each element, or for each slice, of src");
    out[0] = *shape_of(r, 0);
    return MEZZO_OK;
}

static mezzo_status infer_split(rule r, mz_shape *out) {
    const mz_shape *x = shape_of(r, 0);
    int axis = r.node->attrs.axis;
    if (axis < 0 || axis >= x->rank || x->dim[axis] % r.node->n_out)
        return mismatch(r, 0, -1, "that axis does not split into so many equal parts");
    for (int i = 0; i < r.node->n_out; ++i) {
        out[i] = *x;
        out[i].dim[axis] /= r.node->n_out;
    }
    return MEZZO_OK;
}

static mezzo_status infer_concat(rule r, mz_shape *out) {
    int axis = r.node->attrs.axis;
    out[0] = *shape_of(r, 0);
    if (axis < 0 || axis >= out[0].rank)
        return mismatch(r, 0, -1, "has no such axis");
    for (int i = 1; i < r.node->n_in; ++i) {
        const mz_shape *x = shape_of(r, i);
        bool same = x->rank == out[0].rank;
        for (int k = 0; same && k < x->rank; ++k)
            same = k == axis || x->dim[k] == out[0].dim[k];
        if (!same)
            return mismatch(r, 0, i, "may differ only along the axis");
        out[0].dim[axis] += x->dim[axis];
    }
    return MEZZO_OK;
}

static mezzo_status infer_permute(rule r, mz_shape *out) {
    const mz_shape *x = shape_of(r, 0);
    unsigned seen = 0;
    out[0] = *x;
    for (int i = 0; i < x->rank; i++) {
        int from = r.node->attrs.permutation[i];
        if (from < 0 || from >= x->rank || seen >> from & 1)
            return mismatch(r, 0, -1, "each of its dimensions must be named once");
        seen |= 1u << from;
        out[0].dim[i] = x->dim[from];
    }
    return MEZZO_OK;
}

static mezzo_status infer_slice(rule r, mz_shape *out) {
    const mz_shape *x = shape_of(r, 0);
    const mz_attrs *a = &r.node->attrs;
    if (a->axis < 0 || a->axis >= x->rank)
        return mismatch(r, 0, -1, "has no such axis");
    if (a->begin < 0 || a->begin >= a->end || a->end > x->dim[a->axis])
        return mismatch(r, 0, -1, "begin and end must lie in that dimension, and something between them");
    out[0] = *x;
    out[0].dim[a->axis] = a->end - a->begin;
    return MEZZO_OK;
}

static mezzo_status infer_conv2d(rule r, mz_shape *out) {
    const mz_shape *x = shape_of(r, 0), *w = shape_of(r, 1);
    const mz_attrs *a = &r.node->attrs;
    if (x->rank != 4)
        return mismatch(r, 0, -1, "must be [images, height, width, channels]");
    if (w->rank != 4)
        return mismatch(r, 1, -1, "a weight is [channels out, height, width, channels in of a group]");
    if (a->groups < 1 || a->stride < 1 || a->pad_before < 0 || a->pad_after < 0)
        return mz_fail(MEZZO_ERR_INVALID,
                       "conv2d: stride %d, padding %d and %d, %d groups: must be 1 or more, 0 or more", a->stride,
                       a->pad_before, a->pad_after, a->groups);
    if (x->dim[3] != w->dim[3] * a->groups || w->dim[0] % a->groups)
        return mismatch(r, 0, 1, "the groups must divide the channels, and a weight's last dimension is one group's");
    if (present(r, 2) && (shape_of(r, 2)->rank != 1 || shape_of(r, 2)->dim[0] != w->dim[0]))
        return mismatch(r, 1, 2, "the bias must have one number for each channel out");
    out[0] = (mz_shape){4, {x->dim[0], 0, 0, w->dim[0]}};
    for (int d = 1; d < 3; d++) {
        const int64_t room = x->dim[d] + a->pad_before + a->pad_after - w->dim[d];
        if (room < 0)
            return mismatch(r, 0, 1, "the weight must fit the padded image");
        if (a->pad_before >= w->dim[d] || a->pad_after >= w->dim[d])
            return mismatch(r, 1, -1, "padding must be less than the weight's height and width");
        out[0].dim[d] = room / a->stride + 1;
    }
    return MEZZO_OK;
}

static mezzo_status infer_group_norm(rule r, mz_shape *out) {
    const mz_shape *x = shape_of(r, 0);
    const int64_t channels = last(x), groups = r.node->attrs.groups;
    if (x->rank < 2)
        return mismatch(r, 0, -1, "must be [images, …, channels]");
    if (groups < 1 || channels % groups)
        return mz_fail(MEZZO_ERR_INVALID, "group_norm: %lld groups of %lld channels: the first must divide the second",
                       (long long)groups, (long long)channels);
    for (int i = 1; i <= 2; i++)
        if (present(r, i) && (shape_of(r, i)->rank != 1 || shape_of(r, i)->dim[0] != channels))
            return mismatch(r, 0, i, "must have one number for each channel");
    const mz_shape film = {2, {x->dim[0], 2 * channels}};
    if (present(r, 3) && !mz_shape_equal(shape_of(r, 3), &film))
        return mismatch(r, 0, 3, "must be [images, 2 x channels]: scales, then shifts");
    out[0] = *x;
    out[1] = out[2] = (mz_shape){2, {x->dim[0], groups}};
    return MEZZO_OK;
}

static mezzo_status infer_resampled(rule r, mz_shape *out, bool larger) {
    const mz_shape *x = shape_of(r, 0);
    const int64_t factor = r.node->attrs.factor;
    if (x->rank != 4)
        return mismatch(r, 0, -1, "must be [images, height, width, channels]");
    if (factor < 1 || factor > 64 || (!larger && (x->dim[1] % factor || x->dim[2] % factor)))
        return mismatch(r, 0, -1, "the factor must be 1 to 64, and divide height and width where they shrink");
    out[0] = *x;
    for (int d = 1; d < 3; d++)
        out[0].dim[d] = larger ? x->dim[d] * factor : x->dim[d] / factor;
    return MEZZO_OK;
}

static mezzo_status infer_upsample(rule r, mz_shape *out) {
    return infer_resampled(r, out, true);
}

static mezzo_status infer_pool(rule r, mz_shape *out) {
    return infer_resampled(r, out, false);
}

static mezzo_status infer_max_pool(rule r, mz_shape *out) {
    const mz_attrs *a = &r.node->attrs;
    MEZZO_TRY(infer_along(r, out));
    const int64_t span = (a->factor - 1) * a->step + 1,
                  room = out[0].dim[a->axis] + a->pad_before + a->pad_after - span;
    if (a->factor < 1 || a->stride < 1 || a->step < 1 || a->step > 1 << 24)
        return mismatch(r, 0, -1, "a window's size, stride and dilation must be 1 or more");
    if (a->pad_before < 0 || a->pad_after < 0 || a->pad_before >= span || a->pad_after >= span || room < 0)
        return mismatch(r, 0, -1, "windows must fit, and padding be less than a window");
    out[0].dim[a->axis] = room / a->stride + 1;
    return MEZZO_OK;
}

static mezzo_status infer_mse(rule r, mz_shape *out) {
    if (!mz_shape_equal(shape_of(r, 0), shape_of(r, 1)))
        return mismatch(r, 0, 1, "must be the same");
    out[0] = vector(1);
    return MEZZO_OK;
}

static mezzo_status infer_same(rule r, mz_shape *out) {
    out[0] = *shape_of(r, 0);
    return MEZZO_OK;
}

static mezzo_status infer_broadcast(rule r, mz_shape *out) {
    out[0] = *shape_of(r, 0);
    for (int i = 0; i < r.node->n_in; i++) {
        const mz_shape so_far = out[0];
        if (!mz_shape_broadcast(&so_far, shape_of(r, i), &out[0]))
            return mismatch(r, 0, i, "dimensions side by side from the last must be the same, or one of them 1");
        if (mz_op_slot(r.node->op, false, i).is & MZ_SLOT_INTEGER)
            MEZZO_TRY(must_be_integers(r, i));
    }
    return MEZZO_OK;
}

static mezzo_status infer_rows(rule r, mz_shape *out) {
    if (shape_of(r, 0)->rank < 1)
        return mismatch(r, 0, -1, "needs a last dimension");
    out[0] = *shape_of(r, 0);
    return MEZZO_OK;
}

// Infers nothing: the builder knows the shape from its own arguments.
static mezzo_status infer_given(rule r, mz_shape *out) {
    (void)out;
    return mz_fail(MEZZO_ERR_INVALID, "%s: its shape does not follow from its inputs", mz_op_table[r.node->op].name);
}

// The type of the rule that an op's row names: infer_<rule>.
typedef mezzo_status (*shape_rule)(rule r, mz_shape *out);
#define OP(name, in, out, saved, shape, ...) [MZ_OP_##name] = infer_##shape,
#define OP_BACKWARD(name, ...)
#define OP_STATE(name, ...)
static const shape_rule shape_rules[MZ_OP_COUNT] = {
#include "graph/ops.def"
};

mezzo_status mz_infer(const mezzo_graph *g, const mz_node *node, mz_shape out[MZ_MAX_OUT]) {
    rule r = {g, node};
    if (shape_rules[node->op] == NULL)
        return mz_fail(MEZZO_ERR_INVALID, "%s is not an op that a model may use", mz_op_table[node->op].name);
    return shape_rules[node->op](r, out);
}
