// ONNX ops that make or move elements.
#include "onnx/moves.h"

#include <math.h>

int mz_onnx_axis(int64_t axis, int rank) {
    if (axis < 0)
        axis += rank;
    return axis < 0 || axis >= rank ? -1 : (int)axis;
}

static mezzo_status bad_axis(mz_onnx_call *call, int64_t axis) {
    return mz_onnx_fail(call, MEZZO_ERR_INVALID, "axis %lld of %d dimensions", (long long)axis, call->in[0]->rank);
}

// The shape of a value in the graph: a scalar is [1].
static mezzo_value shaped(mezzo_graph *g, mezzo_value x, int rank, const int64_t *dim) {
    return mezzo_reshape(g, x, rank ? rank : 1, rank ? dim : &(int64_t){1});
}

// --- made of nothing -----------------------------------------------------------------------------------------------
mezzo_status mz_onnx_constant_node(mz_onnx_call *call, int which) {
    (void)which;
    const MzPb__Node *node = call->node;
    double *out;
    for (size_t i = 0; i < node->n_attribute; i++) {
        const MzPb__Attribute *a = node->attribute[i];
        if (strcmp(a->name, "value") == 0 && a->t) {
            const int type = a->t->data_type;
            const bool integer =
                type != MZ_ONNX_FLOAT && type != MZ_ONNX_DOUBLE && type != MZ_ONNX_FLOAT16 && type != MZ_ONNX_BFLOAT16;
            MEZZO_TRY(mz_onnx_host(call, 0, integer, (int)a->t->n_dims, a->t->dims, &out));
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
    return mz_onnx_fail(call, MEZZO_ERR_UNSUPPORTED, "it has no dense numbers");
}

mezzo_status mz_onnx_constant_of_shape(mz_onnx_call *call, int which) {
    (void)which;
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
    MEZZO_TRY(mz_onnx_host(call, 0, a && a->t && a->t->data_type != MZ_ONNX_FLOAT, n, dim, &out));
    const int64_t count = mz_onnx_elements(n, dim);
    for (int64_t i = 0; i < count; i++)
        out[i] = value;
    return MEZZO_OK;
}

mezzo_status mz_onnx_range(mz_onnx_call *call, int which) {
    (void)which;
    const double *begin, *end, *step;
    MEZZO_TRY(mz_onnx_numbers(call, 0, &begin));
    MEZZO_TRY(mz_onnx_numbers(call, 1, &end));
    MEZZO_TRY(mz_onnx_numbers(call, 2, &step));
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

mezzo_status mz_onnx_shape(mz_onnx_call *call, int which) {
    (void)which;
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

// --- the same elements in the same order ---------------------------------------------------------------------------
static mezzo_status give_shape(mz_onnx_call *call, int rank, const int64_t *dim) {
    mz_onnx_value *x = call->in[0];
    if (rank > MEZZO_MAX_RANK)
        return mz_onnx_fail(call, MEZZO_ERR_UNSUPPORTED, "%d dimensions; at most %d work", rank, MEZZO_MAX_RANK);
    if (mz_onnx_elements(rank, dim) != mz_onnx_elements(x->rank, x->dim))
        return mz_onnx_fail(call, MEZZO_ERR_INVALID, "%lld elements become %lld",
                            (long long)mz_onnx_elements(x->rank, x->dim), (long long)mz_onnx_elements(rank, dim));
    if (x->kind == MZ_ONNX_HOST) {
        double *out;
        MEZZO_TRY(mz_onnx_host(call, 0, x->integer, rank, dim, &out));
        memcpy(out, x->numbers, (size_t)mz_onnx_elements(rank, dim) * sizeof *out);
        return MEZZO_OK;
    }
    mezzo_value v;
    MEZZO_TRY(mz_onnx_get(call, 0, &v));
    return mz_onnx_give(call, 0, x->integer, rank, shaped(call->build->g, v, rank, dim));
}

mezzo_status mz_onnx_reshape(mz_onnx_call *call, int which) {
    (void)which;
    const mz_onnx_value *x = call->in[0];
    int rank, open = -1;
    int64_t dim[MEZZO_MAX_RANK], known = 1;
    MEZZO_TRY(mz_onnx_ints(call, 1, MEZZO_MAX_RANK, &rank, dim));
    const bool zero = mz_onnx_int_or(call->node, "allowzero", 0) != 0;
    for (int i = 0; i < rank; i++) {
        if (dim[i] == 0 && !zero && i < x->rank)
            dim[i] = x->dim[i];
        if (dim[i] == -1 && open < 0)
            open = i;
        else if (dim[i] < 1 || dim[i] > INT64_C(1) << 40 || known > INT64_C(1) << 40)
            return mz_onnx_fail(call, MEZZO_ERR_INVALID, "a dimension of %lld", (long long)dim[i]);
        else if (__builtin_mul_overflow(known, dim[i], &known))
            known = INT64_MAX;
    }
    if (open >= 0)
        dim[open] = mz_onnx_elements(x->rank, x->dim) / known;
    return give_shape(call, rank, dim);
}

mezzo_status mz_onnx_flatten(mz_onnx_call *call, int which) {
    (void)which;
    const mz_onnx_value *x = call->in[0];
    int64_t axis = mz_onnx_int_or(call->node, "axis", 1);
    axis = axis < 0 ? axis + x->rank : axis;
    if (axis < 0 || axis > x->rank)
        return bad_axis(call, axis);
    const int64_t rows = mz_onnx_elements((int)axis, x->dim);
    return give_shape(call, 2, (int64_t[]){rows, mz_onnx_elements(x->rank - (int)axis, x->dim + axis)});
}

mezzo_status mz_onnx_squeeze(mz_onnx_call *call, int unsqueeze) {
    const mz_onnx_value *x = call->in[0];
    int n = 0;
    int64_t axes[2 * MEZZO_MAX_RANK], dim[2 * MEZZO_MAX_RANK];
    bool named[2 * MEZZO_MAX_RANK] = {false};
    const bool all = call->n_in < 2 || !call->in[1]; // of Squeeze: every 1
    if (!all)
        MEZZO_TRY(mz_onnx_ints(call, 1, MEZZO_MAX_RANK, &n, axes));
    const int longer = unsqueeze ? x->rank + n : x->rank;
    for (int i = 0; i < n; i++) {
        const int axis = mz_onnx_axis(axes[i], longer);
        if (axis < 0 || named[axis] || (!unsqueeze && x->dim[axis] != 1))
            return bad_axis(call, axes[i]);
        named[axis] = true;
    }
    int rank = 0;
    for (int i = 0, from = 0; i < longer; i++) {
        if (unsqueeze)
            dim[rank++] = named[i] ? 1 : x->dim[from++];
        else if (all ? x->dim[i] != 1 : !named[i])
            dim[rank++] = x->dim[i];
    }
    return give_shape(call, rank, dim);
}

// --- other places --------------------------------------------------------------------------------------------------
mezzo_status mz_onnx_transpose(mz_onnx_call *call, int which) {
    (void)which;
    mz_onnx_value *x = call->in[0];
    const MzPb__Attribute *perm = mz_onnx_attribute(call->node, "perm");
    int axes[MEZZO_MAX_RANK];
    int64_t dim[MEZZO_MAX_RANK];
    bool taken[MEZZO_MAX_RANK] = {false};
    if (perm && perm->n_ints != (size_t)x->rank)
        return mz_onnx_fail(call, MEZZO_ERR_INVALID, "%zu axes of %d dimensions", perm->n_ints, x->rank);
    for (int i = 0; i < x->rank; i++) {
        axes[i] = perm ? mz_onnx_axis(perm->ints[i], x->rank) : x->rank - 1 - i;
        if (axes[i] < 0 || taken[axes[i]])
            return bad_axis(call, perm->ints[i]);
        taken[axes[i]] = true;
        dim[i] = x->dim[axes[i]];
    }
    if (x->kind == MZ_ONNX_HOST) {
        double *out;
        MEZZO_TRY(mz_onnx_host(call, 0, x->integer, x->rank, dim, &out));
        const int64_t n = mz_onnx_elements(x->rank, dim);
        for (int64_t i = 0; i < n; i++) {
            int64_t at[MEZZO_MAX_RANK], rest = i, place = 0;
            for (int k = x->rank - 1; k >= 0; k--) {
                at[axes[k]] = rest % dim[k];
                rest /= dim[k];
            }
            for (int k = 0; k < x->rank; k++)
                place = place * x->dim[k] + at[k];
            out[i] = x->numbers[place];
        }
        return MEZZO_OK;
    }
    if (x->kind == MZ_ONNX_WEIGHT && x->rank == 2 && axes[0] == 1) { // a product reads it as it is
        mz_onnx_value *y = call->out[0];
        const char *name = y->name;
        *y = *x;
        y->name = name;
        y->of = x->of ? x->of : x;
        y->transposed = !x->transposed;
        y->dim[0] = dim[0];
        y->dim[1] = dim[1];
        return MEZZO_OK;
    }
    mezzo_value v;
    MEZZO_TRY(mz_onnx_get(call, 0, &v));
    return mz_onnx_give(call, 0, x->integer, x->rank, x->rank < 2 ? v : mezzo_permute(call->build->g, v, axes));
}

mezzo_status mz_onnx_concat(mz_onnx_call *call, int which) {
    (void)which;
    const mz_onnx_value *first = call->in[0];
    const int64_t given = mz_onnx_int_or(call->node, "axis", 0);
    const int axis = mz_onnx_axis(given, first->rank);
    if (axis < 0)
        return bad_axis(call, given);
    int64_t dim[MEZZO_MAX_RANK] = {0}, along = 0;
    memcpy(dim, first->dim, sizeof dim);
    for (int i = 0; i < call->n_in; i++) {
        if (!call->in[i] || call->in[i]->rank != first->rank)
            return mz_onnx_fail(call, MEZZO_ERR_INVALID, "its inputs differ in rank");
        for (int k = 0; k < first->rank; k++)
            if (k != axis && call->in[i]->dim[k] != dim[k])
                return mz_onnx_fail(call, MEZZO_ERR_INVALID, "its inputs differ in dimension %d", k);
        along += call->in[i]->dim[axis];
    }
    dim[axis] = along;
    if (mz_onnx_known(call)) {
        double *out;
        MEZZO_TRY(mz_onnx_host(call, 0, first->integer, first->rank, dim, &out));
        const int64_t rows = mz_onnx_elements(axis, dim),
                      rest = mz_onnx_elements(first->rank - axis - 1, dim + axis + 1);
        for (int64_t row = 0; row < rows; row++)
            for (int i = 0; i < call->n_in; i++) {
                const int64_t n = call->in[i]->dim[axis] * rest;
                if (n > 0)
                    memcpy(out, call->in[i]->numbers + row * n, (size_t)n * sizeof *out);
                out += n;
            }
        return MEZZO_OK;
    }
    mezzo_value parts[MZ_ONNX_SLOTS];
    for (int i = 0; i < call->n_in; i++)
        MEZZO_TRY(mz_onnx_get(call, i, &parts[i]));
    int n = call->n_in;
    while (n > 16) { // at most 16 at a time
        int made = 0;
        for (int i = 0; i < n; i += 16) {
            const int here = n - i < 16 ? n - i : 16;
            parts[made++] = here == 1 ? parts[i] : mezzo_concat(call->build->g, parts + i, here, axis);
        }
        n = made;
    }
    return mz_onnx_give(call, 0, first->integer, first->rank,
                        n == 1 ? parts[0] : mezzo_concat(call->build->g, parts, n, axis));
}

// Elements first, first + step … of an axis.
static mezzo_status piece(mz_onnx_call *call, int out_index, const mz_onnx_value *x, int axis, int64_t first,
                          int64_t count, int64_t step) {
    int64_t dim[MEZZO_MAX_RANK];
    memcpy(dim, x->dim, sizeof dim);
    dim[axis] = count;
    double *out;
    MEZZO_TRY(mz_onnx_host(call, out_index, x->integer, x->rank, dim, &out));
    const int64_t rows = mz_onnx_elements(axis, dim), rest = mz_onnx_elements(x->rank - axis - 1, dim + axis + 1);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < count; i++)
            for (int64_t k = 0; k < rest; k++)
                *out++ = x->numbers[(row * x->dim[axis] + first + i * step) * rest + k];
    return MEZZO_OK;
}

mezzo_status mz_onnx_split(mz_onnx_call *call, int which) {
    (void)which;
    const mz_onnx_value *x = call->in[0];
    const int64_t given = mz_onnx_int_or(call->node, "axis", 0);
    const int axis = mz_onnx_axis(given, x->rank);
    if (axis < 0)
        return bad_axis(call, given);
    int n = call->n_out;
    int64_t sizes[MZ_ONNX_SLOTS], sum = 0;
    if (call->n_in > 1 && call->in[1]) {
        MEZZO_TRY(mz_onnx_ints(call, 1, MZ_ONNX_SLOTS, &n, sizes));
    } else {
        const int64_t each = (x->dim[axis] + n - 1) / n;
        for (int i = 0; i < n; i++)
            sizes[i] = i < n - 1 ? each : x->dim[axis] - each * (n - 1);
    }
    for (int i = 0; i < n; i++) {
        if (sizes[i] < 1 || sizes[i] > x->dim[axis])
            return mz_onnx_fail(call, MEZZO_ERR_INVALID, "a part of %lld", (long long)sizes[i]);
        sum += sizes[i];
    }
    if (n != call->n_out || sum != x->dim[axis])
        return mz_onnx_fail(call, MEZZO_ERR_INVALID, "%d parts of %lld for %d outputs of %lld", n, (long long)sum,
                            call->n_out, (long long)x->dim[axis]);
    if (x->kind == MZ_ONNX_HOST) {
        for (int64_t i = 0, first = 0; i < n; first += sizes[i++])
            MEZZO_TRY(piece(call, (int)i, x, axis, first, sizes[i], 1));
        return MEZZO_OK;
    }
    mezzo_value v, parts[MZ_ONNX_SLOTS];
    MEZZO_TRY(mz_onnx_get(call, 0, &v));
    MEZZO_TRY(mezzo_split_sizes(call->build->g, v, axis, n, sizes, parts));
    for (int i = 0; i < n; i++)
        MEZZO_TRY(mz_onnx_give(call, i, x->integer, x->rank, parts[i]));
    return MEZZO_OK;
}

mezzo_status mz_onnx_slice(mz_onnx_call *call, int which) {
    (void)which;
    const mz_onnx_value *x = call->in[0];
    int n, m;
    int64_t first[MEZZO_MAX_RANK], last[MEZZO_MAX_RANK], axes[MEZZO_MAX_RANK], steps[MEZZO_MAX_RANK];
    MEZZO_TRY(mz_onnx_ints(call, 1, MEZZO_MAX_RANK, &n, first));
    MEZZO_TRY(mz_onnx_ints(call, 2, MEZZO_MAX_RANK, &m, last));
    for (int i = 0; i < n; i++)
        axes[i] = i, steps[i] = 1;
    int more = n, strides = n;
    if (call->n_in > 3 && call->in[3])
        MEZZO_TRY(mz_onnx_ints(call, 3, MEZZO_MAX_RANK, &more, axes));
    if (call->n_in > 4 && call->in[4])
        MEZZO_TRY(mz_onnx_ints(call, 4, MEZZO_MAX_RANK, &strides, steps));
    if (m != n || more != n || strides != n)
        return mz_onnx_fail(call, MEZZO_ERR_INVALID, "%d beginnings, %d ends, %d axes, %d steps", n, m, more, strides);
    mz_onnx_value at = *x;
    mezzo_value v = MEZZO_NONE;
    if (x->kind != MZ_ONNX_HOST)
        MEZZO_TRY(mz_onnx_get(call, 0, &v));
    for (int i = 0; i < n; i++) {
        const int axis = mz_onnx_axis(axes[i], at.rank);
        if (axis < 0)
            return bad_axis(call, axes[i]);
        const int64_t size = at.dim[axis];
        if (steps[i] != 1)
            return mz_onnx_fail(call, MEZZO_ERR_UNSUPPORTED, "a step of %lld", (long long)steps[i]);
        int64_t begin = first[i] < 0 ? first[i] + size : first[i], end = last[i] < 0 ? last[i] + size : last[i];
        begin = begin < 0 ? 0 : begin > size ? size : begin;
        end = end < 0 ? 0 : end > size ? size : end;
        if (end <= begin && x->kind != MZ_ONNX_HOST)
            return mz_onnx_fail(call, MEZZO_ERR_INVALID, "nothing is left of axis %d", axis);
        if (x->kind == MZ_ONNX_HOST) {
            MEZZO_TRY(piece(call, 0, &at, axis, begin, end > begin ? end - begin : 0, 1));
            const char *name = at.name;
            at = *call->out[0];
            at.name = name;
        } else if (end - begin < size) {
            v = mezzo_slice(call->build->g, v, axis, begin, end);
            at.dim[axis] = end - begin;
        }
    }
    if (x->kind != MZ_ONNX_HOST)
        return mz_onnx_give(call, 0, x->integer, x->rank, v);
    return n == 0 ? give_shape(call, x->rank, x->dim) : MEZZO_OK;
}

mezzo_status mz_onnx_expand(mz_onnx_call *call, int which) {
    (void)which;
    const mz_onnx_value *x = call->in[0];
    int rank;
    int64_t dim[MEZZO_MAX_RANK], given[MEZZO_MAX_RANK];
    MEZZO_TRY(mz_onnx_ints(call, 1, MEZZO_MAX_RANK, &rank, given));
    const int wide = rank > x->rank ? rank : x->rank;
    bool changes = wide != x->rank;
    for (int i = 0; i < wide; i++) {
        const int64_t a = i < wide - x->rank ? 1 : x->dim[i - (wide - x->rank)],
                      b = i < wide - rank ? 1 : given[i - (wide - rank)];
        if (b < 1 || (a != b && a != 1 && b != 1))
            return mz_onnx_fail(call, MEZZO_ERR_INVALID, "%lld elements do not repeat to %lld", (long long)a,
                                (long long)b);
        dim[i] = a == 1 ? b : a;
        changes = changes || dim[i] != a;
    }
    if (!changes)
        return give_shape(call, x->rank, x->dim);
    if (x->kind == MZ_ONNX_HOST) {
        double *out;
        MEZZO_TRY(mz_onnx_host(call, 0, x->integer, wide, dim, &out));
        const int64_t n = mz_onnx_elements(wide, dim);
        for (int64_t i = 0; i < n; i++) {
            int64_t rest = i, place = 0, step = 1;
            for (int k = wide - 1; k >= 0; k--) {
                const int own = k - (wide - x->rank);
                if (own >= 0) {
                    place += x->dim[own] == 1 ? 0 : rest % dim[k] * step;
                    step *= x->dim[own];
                }
                rest /= dim[k];
            }
            out[i] = x->numbers[place];
        }
        return MEZZO_OK;
    }
    if (x->integer)
        return mz_onnx_fail(call, MEZZO_ERR_UNSUPPORTED, "it repeats integers of an input");
    // Times ones: broadcasting repeats, and its gradient adds.
    const int64_t n = mz_onnx_elements(wide, dim);
    if (n > INT64_C(1) << 26)
        return mz_onnx_fail(call, MEZZO_ERR_UNSUPPORTED, "a table of %lld known numbers", (long long)n);
    double *ones = mz_onnx_take(call->build, (size_t)n, sizeof *ones);
    if (!ones)
        return MEZZO_ERR_MEMORY;
    for (int64_t i = 0; i < n; i++)
        ones[i] = 1;
    mezzo_value v, one;
    MEZZO_TRY(mz_onnx_get(call, 0, &v));
    MEZZO_TRY(mz_onnx_constant(call, false, wide, dim, ones, &one));
    return mz_onnx_give(call, 0, false, wide, mezzo_mul(call->build->g, v, one));
}

// One row of an axis, or a run of them, is a slice; rows of a table by computed numbers are an embedding.
mezzo_status mz_onnx_gather(mz_onnx_call *call, int which) {
    (void)which;
    const mz_onnx_value *x = call->in[0], *index = call->in[1];
    const int64_t given = mz_onnx_int_or(call->node, "axis", 0);
    const int axis = mz_onnx_axis(given, x->rank);
    if (axis < 0)
        return bad_axis(call, given);
    const int64_t count = mz_onnx_elements(index->rank, index->dim);
    int64_t dim[2 * MEZZO_MAX_RANK];
    const int rank = x->rank - 1 + index->rank;
    if (rank > MEZZO_MAX_RANK)
        return mz_onnx_fail(call, MEZZO_ERR_UNSUPPORTED, "%d dimensions; at most %d work", rank, MEZZO_MAX_RANK);
    for (int i = 0; i < rank; i++)
        dim[i] = i < axis ? x->dim[i] : i < axis + index->rank ? index->dim[i - axis] : x->dim[i - index->rank + 1];
    mezzo_value v, ids;
    if (index->kind != MZ_ONNX_HOST) {
        if (axis != 0 || x->rank != 2 || x->integer)
            return mz_onnx_fail(call, MEZZO_ERR_UNSUPPORTED,
                                "rows by computed numbers are of a table of two dimensions");
        MEZZO_TRY(mz_onnx_get(call, 0, &v));
        MEZZO_TRY(mz_onnx_get(call, 1, &ids));
        v = mezzo_embedding(call->build->g, v, ids);
        return mz_onnx_give(call, 0, false, rank, index->rank == 0 ? shaped(call->build->g, v, rank, dim) : v);
    }
    int64_t *at = mz_onnx_take(call->build, (size_t)count, sizeof *at);
    if (!at)
        return MEZZO_ERR_MEMORY;
    for (int64_t i = 0; i < count; i++) {
        at[i] = fabs(index->numbers[i]) < 0x1p40 ? mz_onnx_integer(index->numbers[i]) : -1 - x->dim[axis];
        at[i] += at[i] < 0 ? x->dim[axis] : 0;
        if (at[i] < 0 || at[i] >= x->dim[axis])
            return mz_onnx_fail(call, MEZZO_ERR_INVALID, "element %g of %lld", index->numbers[i],
                                (long long)x->dim[axis]);
    }
    if (x->kind == MZ_ONNX_HOST) {
        double *out;
        MEZZO_TRY(mz_onnx_host(call, 0, x->integer, rank, dim, &out));
        const int64_t rows = mz_onnx_elements(axis, x->dim),
                      rest = mz_onnx_elements(x->rank - axis - 1, x->dim + axis + 1);
        for (int64_t row = 0; row < rows; row++)
            for (int64_t i = 0; i < count; i++)
                for (int64_t k = 0; k < rest; k++)
                    *out++ = x->numbers[(row * x->dim[axis] + at[i]) * rest + k];
        return MEZZO_OK;
    }
    MEZZO_TRY(mz_onnx_get(call, 0, &v));
    mezzo_value parts[16];
    int n = 0;
    for (int64_t i = 0, first = 0; i < count; i++) { // runs of neighbours
        if (i + 1 < count && at[i + 1] == at[i] + 1)
            continue;
        if (n == 16)
            return mz_onnx_fail(call, MEZZO_ERR_UNSUPPORTED, "more than 16 separate pieces");
        parts[n++] = mezzo_slice(call->build->g, v, axis, at[first], at[i] + 1);
        first = i + 1;
    }
    v = n == 1 ? parts[0] : mezzo_concat(call->build->g, parts, n, axis);
    return mz_onnx_give(call, 0, x->integer, rank, shaped(call->build->g, v, rank, dim));
}
