// Builds the ONNX ops that read and write elements by index.
#include <math.h>

#include "onnx/convert.h"

// Gets the known indices of an input, counted from the front. An index past either end is an error.
static mezzo_status known_indices(mz_onnx_call *call, const double *numbers, int64_t n, int64_t size, int64_t *at) {
    for (int64_t i = 0; i < n; i++) {
        at[i] = fabs(numbers[i]) < 0x1p40 ? mz_onnx_integer(numbers[i]) : -1 - size;
        at[i] += at[i] < 0 ? size : 0;
        if (at[i] < 0 || at[i] >= size)
            return mz_onnx_fail(call, MEZZO_ERR_INVALID, "element %g of %lld", numbers[i], (long long)size);
    }
    return MEZZO_OK;
}

static mezzo_value repeat_slice(mezzo_graph *g, mezzo_value v, int axis, int64_t at, int64_t count) {
    int64_t dim[MEZZO_MAX_RANK] = {0};
    const int rank = mezzo_value_rank(g, v);
    for (int i = 0; i < rank; i++)
        dim[i] = i == axis ? count : mezzo_value_dim(g, v, i);
    return mezzo_expand(g, mezzo_slice(g, v, axis, at, at + 1), rank, dim);
}

// Takes the slices at[0], at[1] … of an axis; each run with a constant step is one piece.
static mezzo_status take_slices(mz_onnx_call *call, mezzo_value v, int axis, const int64_t *at, int64_t n,
                                mezzo_value *out) {
    enum { MOST = 256 };
    mezzo_graph *g = call->build->g;
    mezzo_value parts[MOST];
    int made = 0;
    for (int64_t i = 0; i < n;) {
        const int64_t step = i + 1 < n ? at[i + 1] - at[i] : 1;
        int64_t count = 1;
        while (i + count < n && at[i + count] == at[i] + count * step)
            count++;
        if (made == MOST)
            return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "more than %d separate pieces", (int)MOST);
        const int64_t size = mezzo_value_dim(g, v, axis);
        if (count > 1 && step == 0)
            parts[made++] = repeat_slice(g, v, axis, at[i], count);
        else if (count == 1 || step > 0)
            parts[made++] = mz_onnx_strided(g, v, axis, at[i], count, count == 1 ? 1 : step);
        else
            parts[made++] = mz_onnx_strided(g, mezzo_flip(g, v, axis), axis, size - 1 - at[i], count, -step);
        i += count;
    }
    *out = mz_onnx_join(g, parts, made, axis);
    return mezzo_graph_status(g);
}

// Gathers by computed numbers: rows of a table become an embedding, and slices of an axis a gather.
static mezzo_status computed_gather(mz_onnx_call *call, int axis, int rank, const int64_t *dim) {
    mezzo_graph *g = call->build->g;
    mz_onnx_value *x = call->in[0], *index = call->in[1];
    mezzo_value v, ids;
    const bool tabled = axis == 0 && x->rank == 2 && !x->integer;
    MEZZO_TRY(mz_onnx_number(call, 0, &v));
    if (index->integer && index->floats) { // computed ones, stored as F32: the product with a one-hot matrix
        const int64_t n = mz_onnx_elements(index->rank, index->dim), size = x->dim[axis];
        if (!tabled)
            return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "its indices are computed, and no rows of a table");
        MEZZO_TRY(mz_onnx_number(call, 1, &ids));
        ids = mezzo_equal(g, mz_onnx_shaped(g, ids, 2, (int64_t[]){n, 1}), mezzo_range(g, 0, 1, size));
        ids = mezzo_where(g, ids, mz_onnx_scalar(call, 1), mz_onnx_scalar(call, 0));
        v = mezzo_matmul(g, ids, v, false, false);
    } else {
        MEZZO_TRY(mz_onnx_index(call, 1, &ids));
        v = tabled ? mezzo_embedding(g, v, ids) : mezzo_gather(g, v, axis, ids, false);
    }
    return mz_onnx_give_floats(call, x, rank, mz_onnx_shaped(g, v, rank, dim));
}

mezzo_status mz_onnx_gather(mz_onnx_call *call) {
    mz_onnx_value *x = call->in[0];
    const mz_onnx_value *index = call->in[1];
    int axis;
    MEZZO_TRY(mz_onnx_axis_of(call, 0, x->rank, &axis));
    const int64_t count = mz_onnx_elements(index->rank, index->dim);
    int64_t dim[2 * MEZZO_MAX_RANK];
    const int rank = x->rank - 1 + index->rank;
    if (rank > MEZZO_MAX_RANK)
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "%d dimensions; at most %d work", rank, MEZZO_MAX_RANK);
    for (int i = 0; i < rank; i++)
        dim[i] = i < axis ? x->dim[i] : i < axis + index->rank ? index->dim[i - axis] : x->dim[i - index->rank + 1];
    if (index->kind != MZ_ONNX_HOST)
        return computed_gather(call, axis, rank, dim);
    int64_t *at = mz_onnx_take(call->build, (size_t)count, sizeof *at);
    if (!at)
        return MEZZO_ERR_MEMORY;
    MEZZO_TRY(known_indices(call, index->numbers, count, x->dim[axis], at));
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
    mezzo_value v;
    if (count == 0)
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "it takes nothing");
    MEZZO_TRY(mz_onnx_get(call, 0, &v));
    MEZZO_TRY(take_slices(call, v, axis, at, count, &v));
    MEZZO_TRY(mz_onnx_give(call, 0, x->integer, rank, mz_onnx_shaped(call->build->g, v, rank, dim)));
    call->out[0]->floats = x->floats;
    return MEZZO_OK;
}

mezzo_status mz_onnx_gather_elements(mz_onnx_call *call) {
    mz_onnx_value *x = call->in[0];
    const mz_onnx_value *index = call->in[1];
    const int64_t given = mz_onnx_int_or(call->node, "axis", 0);
    const int axis = mz_onnx_axis(given, x->rank);
    if (axis < 0 || index->rank != x->rank)
        return mz_onnx_bad_axis(call, given);
    for (int i = 0; i < x->rank; i++)
        if (i != axis && index->dim[i] > x->dim[i])
            return mz_onnx_fail(call, MEZZO_ERR_INVALID, "its indices do not fit");
    if (mz_onnx_known(call)) {
        double *out;
        MEZZO_TRY(mz_onnx_host(call, 0, x->integer, x->rank, index->dim, &out));
        const int64_t n = mz_onnx_elements(index->rank, index->dim);
        for (int64_t i = 0; i < n; i++) {
            int64_t at[MEZZO_MAX_RANK], rest = i, place = 0;
            for (int k = x->rank - 1; k >= 0; rest /= index->dim[k--])
                at[k] = rest % index->dim[k];
            MEZZO_TRY(known_indices(call, index->numbers + i, 1, x->dim[axis], &at[axis]));
            for (int k = 0; k < x->rank; k++)
                place = place * x->dim[k] + at[k];
            out[i] = x->numbers[place];
        }
        return MEZZO_OK;
    }
    mezzo_graph *g = call->build->g;
    mezzo_value v, ids;
    MEZZO_TRY(mz_onnx_number(call, 0, &v));
    MEZZO_TRY(mz_onnx_index(call, 1, &ids));
    for (int i = 0; i < x->rank; i++) // the graph's indices vary along the axis alone
        if (i != axis && index->dim[i] < x->dim[i])
            v = mezzo_slice(g, v, i, 0, index->dim[i]);
    return mz_onnx_give_floats(call, x, x->rank, mezzo_gather(g, v, axis, ids, true));
}

// Gathers by known indices whose last dimension indexes the first dimensions of x, as rows of x with those dimensions
// joined.
static mezzo_status flat_indices(mz_onnx_call *call, const mz_onnx_value *x, const mz_onnx_value *index, int batch,
                                 int *depth, int64_t *n, int64_t **at) {
    *depth = index->rank < 1 ? 0 : (int)index->dim[index->rank - 1];
    if (index->rank < 1 || *depth < 1 || *depth > x->rank - batch)
        return mz_onnx_fail(call, MEZZO_ERR_INVALID, "indices of %d places in %d dimensions", *depth, x->rank);
    *n = mz_onnx_elements(index->rank - 1, index->dim);
    if (!(*at = mz_onnx_take(call->build, (size_t)*n, sizeof **at)))
        return MEZZO_ERR_MEMORY;
    const int64_t rows = mz_onnx_elements(batch, x->dim);
    for (int64_t i = 0; i < *n; i++) {
        int64_t place = rows > 0 && batch > 0 ? i / (*n / rows) : 0, one;
        for (int k = 0; k < *depth; k++) {
            MEZZO_TRY(known_indices(call, index->numbers + i * *depth + k, 1, x->dim[batch + k], &one));
            place = place * x->dim[batch + k] + one;
        }
        (*at)[i] = place;
    }
    return MEZZO_OK;
}

mezzo_status mz_onnx_gather_nd(mz_onnx_call *call) {
    mezzo_graph *g = call->build->g;
    mz_onnx_value *x = call->in[0];
    const mz_onnx_value *index = call->in[1];
    const int batch = (int)mz_onnx_int_or(call->node, "batch_dims", 0);
    int depth, rank = index->rank - 1;
    int64_t n, *at, dim[2 * MEZZO_MAX_RANK];
    const bool rows_alone = batch == 0 && index->rank > 0 && x->rank > 0 && index->dim[rank] == 1;
    if ((index->kind != MZ_ONNX_HOST && !rows_alone) || batch < 0 || batch >= x->rank || batch >= index->rank)
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT,
                            "its indices must be known when the model is built, or be rows of the first dimension");
    depth = 1;
    n = mz_onnx_elements(rank, index->dim);
    if (index->kind == MZ_ONNX_HOST)
        MEZZO_TRY(flat_indices(call, x, index, batch, &depth, &n, &at));
    memcpy(dim, index->dim, sizeof index->dim);
    for (int k = batch + depth; k < x->rank; k++)
        dim[rank++] = x->dim[k];
    if (rank > MEZZO_MAX_RANK || n == 0)
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "%d dimensions; at most %d work", rank, MEZZO_MAX_RANK);
    if (index->kind != MZ_ONNX_HOST)
        return computed_gather(call, 0, rank, dim);
    const int64_t rows = mz_onnx_elements(batch + depth, x->dim),
                  rest = mz_onnx_elements(x->rank - batch - depth, x->dim + batch + depth);
    if (x->kind == MZ_ONNX_HOST) {
        double *out;
        MEZZO_TRY(mz_onnx_host(call, 0, x->integer, rank, dim, &out));
        for (int64_t i = 0; i < n; i++)
            memcpy(out + i * rest, x->numbers + at[i] * rest, (size_t)rest * sizeof *out);
        return MEZZO_OK;
    }
    mezzo_value v;
    MEZZO_TRY(mz_onnx_get(call, 0, &v));
    MEZZO_TRY(take_slices(call, mz_onnx_shaped(g, v, 2, (int64_t[]){rows, rest}), 0, at, n, &v));
    MEZZO_TRY(mz_onnx_give(call, 0, x->integer, rank, mz_onnx_shaped(g, v, rank, dim)));
    call->out[0]->floats = x->floats;
    return MEZZO_OK;
}

// Builds x with rows replaced, or added to: known rows that are one run, or slices that computed indices add.
mezzo_status mz_onnx_scatter(mz_onnx_call *call) {
    mezzo_graph *g = call->build->g;
    mz_onnx_value *x = call->in[0];
    const mz_onnx_value *index = call->in[1];
    const bool adds = mz_onnx_is(call->node, "reduction", "add", false);
    if (!adds && !mz_onnx_is(call->node, "reduction", "none", true))
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "its reduction; none and add work");
    mezzo_value v, src, ids;
    MEZZO_TRY(mz_onnx_number(call, 0, &v));
    MEZZO_TRY(mz_onnx_number(call, 2, &src));
    if (!call->op->which) {
        int axis;
        MEZZO_TRY(mz_onnx_axis_of(call, 0, x->rank, &axis));
        MEZZO_TRY(mz_onnx_index(call, 1, &ids));
        if (!adds) // the old elements come first
            v = mezzo_sub(
                g, v,
                mezzo_mul(
                    g, v,
                    mezzo_clamp(g,
                                mezzo_scatter_add(g, mezzo_scale(g, v, 0), axis, ids,
                                                  mezzo_add(g, mezzo_scale(g, src, 0), mz_onnx_scalar(call, 1)), true),
                                0, 1)));
        v = mezzo_scatter_add(g, v, axis, ids, src, true);
        return mz_onnx_give(call, 0, false, x->rank, v);
    }
    int depth;
    int64_t n, *at;
    if (index->kind != MZ_ONNX_HOST)
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "its indices must be known when the model is built");
    MEZZO_TRY(flat_indices(call, x, index, 0, &depth, &n, &at));
    for (int64_t i = 1; i < n; i++)
        if (at[i] != at[0] + i)
            return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "it writes rows that are no neighbours");
    const int64_t rows = mz_onnx_elements(depth, x->dim), rest = mz_onnx_elements(x->rank - depth, x->dim + depth);
    mezzo_value parts[3];
    int made = 0;
    if (n == 0)
        return mz_onnx_give_same(call, x);
    v = mz_onnx_shaped(g, v, 2, (int64_t[]){rows, rest});
    src = mz_onnx_shaped(g, src, 2, (int64_t[]){n, rest});
    if (at[0] > 0)
        parts[made++] = mezzo_slice(g, v, 0, 0, at[0]);
    parts[made++] = adds ? mezzo_add(g, src, mezzo_slice(g, v, 0, at[0], at[0] + n)) : src;
    if (at[0] + n < rows)
        parts[made++] = mezzo_slice(g, v, 0, at[0] + n, rows);
    v = made == 1 ? parts[0] : mezzo_concat(g, parts, made, 0);
    return mz_onnx_give_floats(call, x, x->rank, mz_onnx_shaped(g, v, x->rank, x->dim));
}
