// Builds the ONNX ops that give the same elements another shape or other places.
#include <math.h>

#include "onnx/convert.h"

int mz_onnx_axis(int64_t axis, int rank) {
    if (axis < 0)
        axis += rank;
    return axis < 0 || axis >= rank ? -1 : (int)axis;
}

mezzo_status mz_onnx_bad_axis(mz_onnx_call *call, int64_t axis) {
    return mz_onnx_fail(call, MEZZO_ERR_INVALID, "axis %lld of %d dimensions", (long long)axis, call->in[0]->rank);
}

mezzo_status mz_onnx_axis_of(mz_onnx_call *call, int64_t initial, int rank, int *axis) {
    const int64_t given = mz_onnx_int_or(call->node, "axis", initial);
    *axis = mz_onnx_axis(given, rank);
    return *axis >= 0 ? MEZZO_OK : mz_onnx_bad_axis(call, given);
}

static bool has_shape(const mezzo_graph *g, mezzo_value v, int rank, const int64_t *dim) {
    bool same = mezzo_value_rank(g, v) == rank;
    for (int i = 0; i < rank && same; i++)
        same = mezzo_value_dim(g, v, i) == dim[i];
    return same;
}

mezzo_value mz_onnx_shaped(mezzo_graph *g, mezzo_value x, int rank, const int64_t *dim) {
    const int64_t one = 1, *shape = rank ? dim : &one;
    const mezzo_value before = mezzo_value_reshaped(g, x);
    rank = rank ? rank : 1;
    if (has_shape(g, x, rank, shape))
        return x;
    return has_shape(g, before, rank, shape) ? before : mezzo_reshape(g, before, rank, shape);
}

mezzo_value mz_onnx_rows(mezzo_graph *g, mezzo_value x) {
    const mezzo_value before = mezzo_value_reshaped(g, x);
    return mezzo_value_dim(g, before, -1) == mezzo_value_dim(g, x, -1) ? before : x;
}

// Gives output 0 the form of x's elements: its integers may be stored as F32.
static void keep_form(mz_onnx_call *call, const mz_onnx_value *x) {
    call->out[0]->floats = x->floats;
    call->out[0]->negated = x->negated;
}

// --- the same elements in the same order ---------------------------------------------------------------------------
// Groups of dimensions of x and of a shape that become each other, with as few dimensions as possible.
typedef struct groups {
    int n;
    int from[MEZZO_MAX_RANK + 1], to[MEZZO_MAX_RANK + 1]; // where each group begins, and the end
    int place[MEZZO_MAX_RANK];                            // the group's position in the stored order
} groups;

// Finds the groups. Returns false where elements of a group are apart in x's storage.
static bool find_groups(const mz_onnx_value *x, int rank, const int64_t *dim, groups *g) {
    *g = (groups){0};
    for (int i = 0, k = 0; i < x->rank || k < rank;) {
        int64_t a = 1, b = 1;
        int last = -1;
        g->from[g->n] = i;
        g->to[g->n] = k;
        do {
            if (i < x->rank && (x->dim[i] == 1 || a < b || (a == b && !(k < rank && dim[k] == 1))))
                a *= x->dim[i++];
            else if (k < rank)
                b *= dim[k++];
            else
                a *= x->dim[i++];
        } while (a != b || (i < x->rank && x->dim[i] == 1) || (k < rank && dim[k] == 1));
        g->place[g->n] = MEZZO_MAX_RANK;
        for (int j = g->from[g->n]; j < i; j++) {
            if (x->dim[j] == 1)
                continue;
            for (int between = last + 1; last >= 0 && between < x->perm[j]; between++)
                for (int m = 0; m < x->rank; m++)
                    if (x->perm[m] == between && x->dim[m] != 1)
                        return false;
            if (last > x->perm[j])
                return false;
            last = x->perm[j];
            if (g->place[g->n] == MEZZO_MAX_RANK)
                g->place[g->n] = last;
        }
        g->n++;
        if (g->n == MEZZO_MAX_RANK && (i < x->rank || k < rank))
            return false;
    }
    g->from[g->n] = x->rank;
    g->to[g->n] = rank;
    return true;
}

// Finds the view of x in its storage, and the order that the shape then has.
static void stored_view(const groups *g, const int64_t *dim, int64_t *view, int *perm) {
    int at = 0;
    bool done[MEZZO_MAX_RANK] = {false};
    for (int made = 0; made < g->n; made++) {
        int next = -1;
        for (int i = 0; i < g->n; i++)
            if (!done[i] && (next < 0 || g->place[i] < g->place[next]))
                next = i;
        done[next] = true;
        for (int k = g->to[next]; k < g->to[next + 1]; k++) {
            view[at] = dim[k];
            perm[k] = at++;
        }
    }
}

static mezzo_status give_shape(mz_onnx_call *call, int rank, const int64_t *dim) {
    mz_onnx_value *x = call->in[0];
    if (rank > MEZZO_MAX_RANK)
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "%d dimensions; at most %d work", rank, MEZZO_MAX_RANK);
    const int64_t n = mz_onnx_elements(rank, dim);
    if (n != mz_onnx_elements(x->rank, x->dim))
        return mz_onnx_fail(call, MEZZO_ERR_INVALID, "%lld elements become %lld",
                            (long long)mz_onnx_elements(x->rank, x->dim), (long long)n);
    if (x->kind == MZ_ONNX_HOST) {
        double *out;
        MEZZO_TRY(mz_onnx_host(call, 0, x->integer, rank, dim, &out));
        memcpy(out, x->numbers, (size_t)n * sizeof *out);
        return MEZZO_OK;
    }
    mezzo_graph *g = call->build->g;
    mezzo_value v;
    groups all;
    int64_t view[MEZZO_MAX_RANK];
    int perm[MEZZO_MAX_RANK];
    const bool negated = x->negated, views = n > 0 && n < INT64_MAX && find_groups(x, rank, dim, &all);
    x->negated = false;
    const mezzo_status status = views ? mz_onnx_base(call, x, &v) : mz_onnx_value_of(call, x, &v);
    x->negated = negated;
    MEZZO_TRY(status);
    if (views) {
        stored_view(&all, dim, view, perm);
        MEZZO_TRY(mz_onnx_give_as(call, 0, x->integer, rank, mz_onnx_shaped(g, v, rank, view), perm));
    } else {
        MEZZO_TRY(mz_onnx_give(call, 0, x->integer, rank, mz_onnx_shaped(g, v, rank, dim)));
    }
    keep_form(call, x);
    return MEZZO_OK;
}

mezzo_status mz_onnx_reshape(mz_onnx_call *call) {
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

mezzo_status mz_onnx_flatten(mz_onnx_call *call) {
    const mz_onnx_value *x = call->in[0];
    int64_t axis = mz_onnx_int_or(call->node, "axis", 1);
    axis = axis < 0 ? axis + x->rank : axis;
    if (axis < 0 || axis > x->rank)
        return mz_onnx_bad_axis(call, axis);
    const int64_t rows = mz_onnx_elements((int)axis, x->dim);
    return give_shape(call, 2, (int64_t[]){rows, mz_onnx_elements(x->rank - (int)axis, x->dim + axis)});
}

mezzo_status mz_onnx_squeeze(mz_onnx_call *call) {
    const int unsqueeze = call->op->which;
    const mz_onnx_value *x = call->in[0];
    int n = 0;
    int64_t axes[MEZZO_MAX_RANK], dim[2 * MEZZO_MAX_RANK];
    bool named[2 * MEZZO_MAX_RANK] = {false};
    MEZZO_TRY(mz_onnx_ints_or(call, 1, "axes", MEZZO_MAX_RANK, &n, axes));
    const bool all = n < 0; // Squeeze without axes: every dimension of 1
    const int longer = unsqueeze && n > 0 ? x->rank + n : x->rank;
    for (int i = 0; i < n; i++) {
        const int axis = mz_onnx_axis(axes[i], longer);
        if (axis < 0 || named[axis] || (!unsqueeze && x->dim[axis] != 1))
            return mz_onnx_bad_axis(call, axes[i]);
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
// Builds Transpose, which moves known numbers alone.
mezzo_status mz_onnx_transpose(mz_onnx_call *call) {
    mz_onnx_value *x = call->in[0];
    const MzPb__Attribute *given = mz_onnx_attribute(call->node, "perm");
    int axes[MEZZO_MAX_RANK];
    int64_t dim[MEZZO_MAX_RANK];
    bool taken[MEZZO_MAX_RANK] = {false};
    if (given && given->n_ints != (size_t)x->rank)
        return mz_onnx_fail(call, MEZZO_ERR_INVALID, "%zu axes of %d dimensions", given->n_ints, x->rank);
    for (int i = 0; i < x->rank; i++) {
        axes[i] = given ? mz_onnx_axis(given->ints[i], x->rank) : x->rank - 1 - i;
        if (axes[i] < 0 || taken[axes[i]])
            return mz_onnx_bad_axis(call, given->ints[i]);
        taken[axes[i]] = true;
        dim[i] = x->dim[axes[i]];
    }
    if (x->kind != MZ_ONNX_HOST) {
        MEZZO_TRY(mz_onnx_give_same(call, x));
        mz_onnx_value *y = call->out[0];
        for (int i = 0; i < x->rank; i++) {
            y->dim[i] = dim[i];
            y->perm[i] = x->perm[axes[i]];
        }
        y->moved = MEZZO_NONE;
        return MEZZO_OK;
    }
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

static mezzo_status known_concat(mz_onnx_call *call, int axis, const int64_t *dim) {
    const mz_onnx_value *first = call->in[0];
    double *out;
    MEZZO_TRY(mz_onnx_host(call, 0, first->integer, first->rank, dim, &out));
    const int64_t rows = mz_onnx_elements(axis, dim), rest = mz_onnx_elements(first->rank - axis - 1, dim + axis + 1);
    for (int64_t row = 0; row < rows; row++)
        for (int i = 0; i < call->n_in; i++) {
            const int64_t n = call->in[i]->dim[axis] * rest;
            if (n > 0)
                memcpy(out, call->in[i]->numbers + row * n, (size_t)n * sizeof *out);
            out += n;
        }
    return MEZZO_OK;
}

mezzo_status mz_onnx_concat(mz_onnx_call *call) {
    const mz_onnx_value *first = call->in[0];
    int axis;
    MEZZO_TRY(mz_onnx_axis_of(call, 0, first->rank, &axis));
    int64_t dim[MEZZO_MAX_RANK] = {0}, along = 0;
    const int *perm = first->perm;
    int n = 0;
    mezzo_value parts[MZ_ONNX_SLOTS];
    memcpy(dim, first->dim, sizeof dim);
    for (int i = 0; i < call->n_in; i++) {
        if (!call->in[i] || call->in[i]->rank != first->rank)
            return mz_onnx_fail(call, MEZZO_ERR_INVALID, "its inputs differ in rank");
        for (int k = 0; k < first->rank; k++)
            if (k != axis && call->in[i]->dim[k] != dim[k])
                return mz_onnx_fail(call, MEZZO_ERR_INVALID, "its inputs differ in dimension %d", k);
        along += call->in[i]->dim[axis];
        if (call->in[i]->kind == MZ_ONNX_VALUE && !mz_onnx_in_order(call->in[i]))
            perm = call->in[i]->perm;
    }
    dim[axis] = along;
    if (mz_onnx_known(call))
        return known_concat(call, axis, dim);
    for (int i = 0; i < call->n_in; i++) {
        if (call->in[i]->dim[axis] == 0)
            continue; // this part is empty
        MEZZO_TRY(mz_onnx_ordered(call, call->in[i], first->rank, perm, &parts[n]));
        int64_t own[MEZZO_MAX_RANK];
        for (int k = 0; k < first->rank; k++)
            own[perm[k]] = call->in[i]->dim[k];
        parts[n] = mz_onnx_shaped(call->build->g, parts[n], first->rank, own);
        n++;
    }
    MEZZO_TRY(mz_onnx_give_as(call, 0, first->integer, first->rank, mz_onnx_join(call->build->g, parts, n, perm[axis]),
                              perm));
    call->out[0]->floats = first->integer;
    return MEZZO_OK;
}

// Takes elements first, first + step … along an axis of known numbers.
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

mezzo_status mz_onnx_split(mz_onnx_call *call) {
    mz_onnx_value *x = call->in[0];
    int axis;
    MEZZO_TRY(mz_onnx_axis_of(call, 0, x->rank, &axis));
    int n = -1;
    int64_t sizes[MZ_ONNX_SLOTS], sum = 0;
    MEZZO_TRY(mz_onnx_ints_or(call, 1, "split", MZ_ONNX_SLOTS, &n, sizes));
    if (n < 0) {
        n = call->n_out;
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
    MEZZO_TRY(mz_onnx_base(call, x, &v));
    MEZZO_TRY(mezzo_split_sizes(call->build->g, v, x->perm[axis], n, sizes, parts));
    for (int i = 0; i < n; i++) {
        MEZZO_TRY(mz_onnx_give_as(call, i, x->integer, x->rank, parts[i], x->perm));
        call->out[i]->floats = x->floats;
    }
    return MEZZO_OK;
}

// Views the axis as [outer, n, step, inner] and keeps one of `step`.
mezzo_value mz_onnx_strided(mezzo_graph *g, mezzo_value v, int axis, int64_t begin, int64_t count, int64_t step) {
    const int rank = mezzo_value_rank(g, v);
    const int64_t size = mezzo_value_dim(g, v, axis), end = begin + count * step;
    int64_t dim[MEZZO_MAX_RANK], outer = 1, inner = 1, before[MEZZO_MAX_RANK] = {0}, after[MEZZO_MAX_RANK] = {0};
    if (step == 1)
        return count == size ? v : mezzo_slice(g, v, axis, begin, begin + count);
    for (int i = 0; i < rank && i < MEZZO_MAX_RANK; i++) {
        dim[i] = i == axis ? count : mezzo_value_dim(g, v, i);
        outer *= i < axis ? dim[i] : 1;
        inner *= i > axis ? dim[i] : 1;
    }
    if (begin > 0 || end < size)
        v = mezzo_slice(g, v, axis, begin, end < size ? end : size);
    after[axis] = end > size ? end - size : 0;
    v = mezzo_pad(g, v, before, after, 0);
    v = mezzo_slice(g, mz_onnx_shaped(g, v, 4, (int64_t[]){outer, count, step, inner}), 2, 0, 1);
    return mz_onnx_shaped(g, v, rank, dim);
}

// Slices one axis: x becomes the piece, and `at` gets its shape.
static mezzo_status slice_axis(mz_onnx_call *call, mz_onnx_value *at, mezzo_value *v, int axis, int64_t first,
                               int64_t last, int64_t step) {
    const int64_t size = at->dim[axis], low = step < 0 ? -1 : 0, high = step < 0 ? size - 1 : size;
    first = first < 0 ? first + size : first;
    last = last < 0 && last > INT64_MIN / 2 ? last + size : last;
    first = first < low ? low : first > high ? high : first;
    last = last < low ? low : last > high ? high : last;
    const int64_t span = step < 0 ? first - last : last - first, stride = step < 0 ? -step : step;
    const int64_t count = span > 0 ? (span - 1) / stride + 1 : 0;
    mezzo_graph *g = call->build->g;
    if (at->kind == MZ_ONNX_HOST) {
        MEZZO_TRY(piece(call, 0, at, axis, first, count, step));
        const char *name = at->name;
        *at = *call->out[0];
        at->name = name;
        return MEZZO_OK;
    }
    if (count == 0)
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "nothing is left of axis %d", axis);
    if (step < 0) {
        *v = mezzo_flip(g, *v, at->perm[axis]);
        first = size - 1 - first;
    }
    *v = mz_onnx_strided(g, *v, at->perm[axis], first, count, stride);
    at->dim[axis] = count;
    return mezzo_graph_status(g);
}

mezzo_status mz_onnx_slice(mz_onnx_call *call) {
    mz_onnx_value *x = call->in[0];
    int n, m;
    int64_t first[MEZZO_MAX_RANK], last[MEZZO_MAX_RANK], axes[MEZZO_MAX_RANK], steps[MEZZO_MAX_RANK];
    MEZZO_TRY(mz_onnx_ints(call, 1, MEZZO_MAX_RANK, &n, first));
    MEZZO_TRY(mz_onnx_ints(call, 2, MEZZO_MAX_RANK, &m, last));
    for (int i = 0; i < n; i++)
        axes[i] = i, steps[i] = 1;
    int more = n, strides = n;
    if (mz_onnx_has(call, 3))
        MEZZO_TRY(mz_onnx_ints(call, 3, MEZZO_MAX_RANK, &more, axes));
    if (mz_onnx_has(call, 4))
        MEZZO_TRY(mz_onnx_ints(call, 4, MEZZO_MAX_RANK, &strides, steps));
    if (m != n || more != n || strides != n)
        return mz_onnx_fail(call, MEZZO_ERR_INVALID, "%d beginnings, %d ends, %d axes, %d steps", n, m, more, strides);
    mz_onnx_value at = *x;
    mezzo_value v = MEZZO_NONE;
    if (x->kind != MZ_ONNX_HOST)
        MEZZO_TRY(mz_onnx_base(call, x, &v));
    for (int i = 0; i < n; i++) {
        const int axis = mz_onnx_axis(axes[i], at.rank);
        if (axis < 0)
            return mz_onnx_bad_axis(call, axes[i]);
        if (steps[i] == 0 || steps[i] > 1 << 30 || steps[i] < -(1 << 30))
            return mz_onnx_fail(call, MEZZO_ERR_INVALID, "a step of %lld", (long long)steps[i]);
        MEZZO_TRY(slice_axis(call, &at, &v, axis, first[i], last[i], steps[i]));
    }
    if (n == 0)
        return mz_onnx_give_same(call, x);
    if (x->kind == MZ_ONNX_HOST)
        return MEZZO_OK;
    MEZZO_TRY(mz_onnx_give_as(call, 0, x->integer, x->rank, v, x->perm));
    call->out[0]->floats = x->floats;
    return MEZZO_OK;
}

// --- repeated ------------------------------------------------------------------------------------------------------
// Finds the shape that Expand or Tile makes; *view: that of x with a dimension of 1 before each one that repeats as a
// whole.
static mezzo_status repeated_shape(mz_onnx_call *call, int tile, int *rank, int64_t *dim) {
    const mz_onnx_value *x = call->in[0];
    int n;
    int64_t given[MEZZO_MAX_RANK];
    MEZZO_TRY(mz_onnx_ints(call, 1, MEZZO_MAX_RANK, &n, given));
    if (tile && n != x->rank)
        return mz_onnx_fail(call, MEZZO_ERR_INVALID, "%d repeats of %d dimensions", n, x->rank);
    *rank = n > x->rank ? n : x->rank;
    for (int i = 0; i < *rank; i++) {
        const int64_t a = i < *rank - x->rank ? 1 : x->dim[i - (*rank - x->rank)],
                      b = i < *rank - n ? 1 : given[i - (*rank - n)];
        if (b < 1 || b > 1 << 28 || (!tile && a != b && a != 1 && b != 1))
            return mz_onnx_fail(call, MEZZO_ERR_INVALID, "%lld elements do not repeat to %lld", (long long)a,
                                (long long)b);
        dim[i] = tile ? a * b : a == 1 ? b : a;
    }
    return MEZZO_OK;
}

mezzo_status mz_onnx_expand(mz_onnx_call *call) {
    const int tile = call->op->which;
    mz_onnx_value *x = call->in[0];
    mezzo_graph *g = call->build->g;
    int rank = 0;
    int64_t dim[MEZZO_MAX_RANK];
    MEZZO_TRY(repeated_shape(call, tile, &rank, dim));
    const int64_t n = mz_onnx_elements(rank, dim);
    if (n == mz_onnx_elements(x->rank, x->dim))
        return give_shape(call, rank, dim);
    if (x->kind == MZ_ONNX_HOST) {
        double *out;
        MEZZO_TRY(mz_onnx_host(call, 0, x->integer, rank, dim, &out));
        for (int64_t i = 0; i < n; i++) {
            int64_t place = 0, step = 1, rest = i;
            for (int k = rank - 1; k >= rank - x->rank; rest /= dim[k--]) {
                place += rest % dim[k] % x->dim[k - (rank - x->rank)] * step;
                step *= x->dim[k - (rank - x->rank)];
            }
            out[i] = x->numbers[place];
        }
        return MEZZO_OK;
    }
    mezzo_value v;
    MEZZO_TRY(mz_onnx_number(call, 0, &v));
    if (!tile) {
        v = mezzo_expand(g, v, rank, dim);
    } else {
        for (int i = 0; i < rank; i++) { // an axis of x.dim, which repeats as a whole
            const int64_t times = dim[i] / x->dim[i];
            if (times == 1)
                continue;
            int64_t outer = 1, inner = x->dim[i];
            for (int k = 0; k < rank; k++) {
                outer *= k < i ? dim[k] : 1;
                inner *= k > i ? x->dim[k] : 1;
            }
            v = mezzo_expand(g, mz_onnx_shaped(g, v, 3, (int64_t[]){outer, 1, inner}), 3,
                             (int64_t[]){outer, times, inner});
        }
        v = mz_onnx_shaped(g, v, rank, dim);
    }
    return mz_onnx_give_floats(call, x, rank, v);
}

// --- borders, blocks and triangles ---------------------------------------------------------------------------------
// Pads one axis with its own elements: reflected, or the last one repeated.
static mezzo_status pad_axis(mz_onnx_call *call, mezzo_value *v, int axis, int64_t before, int64_t after, bool edge) {
    mezzo_graph *g = call->build->g;
    const int rank = mezzo_value_rank(g, *v);
    const int64_t size = mezzo_value_dim(g, *v, axis);
    mezzo_value parts[3];
    int n = 0;
    if (!edge && (before >= size || after >= size))
        return mz_onnx_fail(call, MEZZO_ERR_INVALID, "%lld and %lld elements reflect %lld", (long long)before,
                            (long long)after, (long long)size);
    for (int side = 0; side < 2; side++) {
        const int64_t count = side ? after : before;
        if (side)
            parts[n++] = *v;
        if (count == 0)
            continue;
        if (edge) {
            int64_t dim[MEZZO_MAX_RANK];
            for (int i = 0; i < rank && i < MEZZO_MAX_RANK; i++)
                dim[i] = i == axis ? count : mezzo_value_dim(g, *v, i);
            parts[n++] = mezzo_expand(g, mezzo_slice(g, *v, axis, side ? size - 1 : 0, side ? size : 1), rank, dim);
        } else {
            const int64_t first = side ? size - 1 - count : 1;
            parts[n++] = mezzo_flip(g, mezzo_slice(g, *v, axis, first, first + count), axis);
        }
    }
    *v = n == 1 ? parts[0] : mezzo_concat(g, parts, n, axis);
    return mezzo_graph_status(g);
}

mezzo_status mz_onnx_pad(mz_onnx_call *call) {
    const mz_onnx_value *x = call->in[0];
    mezzo_graph *g = call->build->g;
    int n, chosen = x->rank;
    int64_t given[2 * MEZZO_MAX_RANK], axes[MEZZO_MAX_RANK] = {0, 1, 2, 3, 4, 5}, before[MEZZO_MAX_RANK] = {0},
                                       after[MEZZO_MAX_RANK] = {0};
    double value = 0;
    mezzo_value v;
    MEZZO_TRY(mz_onnx_ints(call, 1, 2 * MEZZO_MAX_RANK, &n, given));
    if (mz_onnx_has(call, 2) && !mz_onnx_one_number(call->in[2], &value))
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "its value must be known when the model is built");
    if (mz_onnx_has(call, 3))
        MEZZO_TRY(mz_onnx_ints(call, 3, MEZZO_MAX_RANK, &chosen, axes));
    const bool edge = mz_onnx_is(call->node, "mode", "edge", false),
               reflect = mz_onnx_is(call->node, "mode", "reflect", false);
    if (!edge && !reflect && !mz_onnx_is(call->node, "mode", "constant", true))
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "its mode; constant, edge and reflect work");
    if (n != 2 * chosen)
        return mz_onnx_fail(call, MEZZO_ERR_INVALID, "%d numbers for %d axes", n, chosen);
    MEZZO_TRY(mz_onnx_number(call, 0, &v));
    for (int i = 0; i < chosen; i++) {
        const int axis = mz_onnx_axis(axes[i], x->rank);
        if (axis < 0)
            return mz_onnx_bad_axis(call, axes[i]);
        if (given[i] > 1 << 28 || given[i + chosen] > 1 << 28 || given[i] < -(1 << 28) ||
            given[i + chosen] < -(1 << 28))
            return mz_onnx_fail(call, MEZZO_ERR_INVALID, "%lld and %lld elements", (long long)given[i],
                                (long long)given[i + chosen]);
        const int64_t cut = given[i] < 0 ? -given[i] : 0, end = given[i + chosen] < 0 ? -given[i + chosen] : 0,
                      size = mezzo_value_dim(g, v, axis);
        if (cut + end > 0)
            v = mezzo_slice(g, v, axis, cut, size - end);
        before[axis] = given[i] > 0 ? given[i] : 0;
        after[axis] = given[i + chosen] > 0 ? given[i + chosen] : 0;
        if ((edge || reflect) && before[axis] + after[axis] > 0)
            MEZZO_TRY(pad_axis(call, &v, axis, before[axis], after[axis], edge));
    }
    v = edge || reflect ? v : mezzo_pad(g, v, before, after, (float)value);
    return mz_onnx_give_floats(call, x, x->rank, v);
}

// Builds DepthToSpace and SpaceToDepth of [B, C, H, W].
mezzo_status mz_onnx_depth(mz_onnx_call *call) {
    const int to_space = call->op->which;
    const mz_onnx_value *x = call->in[0];
    mezzo_graph *g = call->build->g;
    const int64_t s = mz_onnx_int_or(call->node, "blocksize", 1);
    const bool crd = mz_onnx_is(call->node, "mode", "CRD", false);
    mezzo_value v;
    MEZZO_TRY(mz_onnx_get(call, 0, &v));
    if (x->rank != 4 || s < 1 || s > 1 << 14 || (to_space ? x->dim[1] % (s * s) : x->dim[2] % s || x->dim[3] % s))
        return mz_onnx_fail(call, MEZZO_ERR_INVALID, "blocks of %lld", (long long)s);
    const int64_t b = x->dim[0], c = x->dim[1], h = x->dim[2], w = x->dim[3];
    if (to_space) {
        v = crd ? mz_onnx_shaped(g, v, 6, (int64_t[]){b, c / s / s, s, s, h, w})
                : mz_onnx_shaped(g, v, 6, (int64_t[]){b, s, s, c / s / s, h, w});
        v = mezzo_permute(g, v, crd ? (int[]){0, 1, 4, 2, 5, 3} : (int[]){0, 3, 4, 1, 5, 2});
        v = mz_onnx_shaped(g, v, 4, (int64_t[]){b, c / s / s, h * s, w * s});
    } else {
        v = mezzo_permute(g, mz_onnx_shaped(g, v, 6, (int64_t[]){b, c, h / s, s, w / s, s}), (int[]){0, 3, 5, 1, 2, 4});
        v = mz_onnx_shaped(g, v, 4, (int64_t[]){b, c * s * s, h / s, w / s});
    }
    return mz_onnx_give(call, 0, false, 4, v);
}

mezzo_status mz_onnx_trilu(mz_onnx_call *call) {
    const mz_onnx_value *x = call->in[0];
    mezzo_graph *g = call->build->g;
    double k = 0;
    if (x->rank < 2 || (mz_onnx_has(call, 1) && !mz_onnx_one_number(call->in[1], &k)) || !(fabs(k) < 0x1p30))
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "its diagonal must be known, and its input a matrix");
    const bool upper = mz_onnx_int_or(call->node, "upper", 1) != 0;
    const int64_t rows = x->dim[x->rank - 2], columns = x->dim[x->rank - 1], n = mz_onnx_elements(x->rank, x->dim);
    if (x->kind == MZ_ONNX_HOST) {
        double *out;
        MEZZO_TRY(mz_onnx_host(call, 0, x->integer, x->rank, x->dim, &out));
        for (int64_t i = 0; i < n; i++) {
            const double past = (double)(i % columns) - (double)(i / columns % rows) - k; // distance to the right of
                                                                                          // the diagonal
            out[i] = (upper ? past >= 0 : past <= 0) ? x->numbers[i] : 0;
        }
        return MEZZO_OK;
    }
    mezzo_value v;
    MEZZO_TRY(mz_onnx_number(call, 0, &v));
    const mezzo_value row = mz_onnx_shaped(g, mezzo_range(g, (int64_t)k, 1, rows), 2, (int64_t[]){rows, 1}),
                      column = mezzo_range(g, 0, 1, columns);
    const mezzo_value kept = upper ? mezzo_less_equal(g, row, column) : mezzo_less_equal(g, column, row);
    return mz_onnx_give_floats(call, x, x->rank, mezzo_where(g, kept, v, mz_onnx_scalar(call, 0)));
}
