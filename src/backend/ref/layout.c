// Runs ops that move elements: casts, tables, parts of tensors.
#include <math.h>

#include "backend/ref/ref.h"

void mz_ref_cast(const mz_call *call) {
    int64_t n = mz_shape_count(&mz_out(call, cast, y)->shape);
    for (int64_t i = 0; i < n; i++)
        mz_ref_put(mz_out(call, cast, y), i, mz_ref_get(mz_in(call, cast, x), i));
}

// Programs let the two values share memory, so this runs only in a call that is made outside a program.
void mz_ref_reshape(const mz_call *call) {
    mz_ref_cast(call);
}

void mz_ref_copy(const mz_call *call) {
    mz_ref_cast(call);
}

void mz_ref_arange(const mz_call *call) {
    int64_t n = mz_shape_count(&mz_out(call, arange, y)->shape);
    for (int64_t i = 0; i < n; i++)
        mz_ref_put(mz_out(call, arange, y), i, (double)(call->attrs.begin + i * call->attrs.step));
}

void mz_ref_constant(const mz_call *call) {
    for (int64_t i = 0, n = mz_shape_count(&mz_out(call, constant, y)->shape); i < n; i++)
        mz_ref_put(mz_out(call, constant, y), i, (double)call->attrs.alpha);
}

// An id outside the table gives a row of NaN, which the guard notices.
void mz_ref_embedding(const mz_call *call) {
    const mz_tensor *table = mz_in(call, embedding, table), *ids = mz_in(call, embedding, ids); // [V, C], [N]
    int64_t rows = table->shape.dim[0], width = table->shape.dim[1], n = mz_shape_count(&ids->shape);
    for (int64_t r = 0; r < n; r++) {
        int32_t id = mz_ref_integer(ids, r);
        bool known = id >= 0 && id < rows;
        for (int64_t c = 0; c < width; c++)
            mz_ref_put(mz_out(call, embedding, y), r * width + c, known ? mz_ref_get(table, id * width + c) : NAN);
    }
}

void mz_ref_embedding_bwd(const mz_call *call) {
    const mz_tensor *dtable = mz_out(call, embedding_bwd, dtable),
                    *ids = mz_in(call, embedding_bwd, ids); // [V, C], [N]
    int64_t rows = dtable->shape.dim[0], width = dtable->shape.dim[1], n = mz_shape_count(&ids->shape);
    mz_ref_scratch scratch = mz_ref_scratch_begin(call);
    double *sum = mz_ref_zeros(&scratch, rows * width);
    for (int64_t r = 0; r < n; r++) {
        int32_t id = mz_ref_integer(ids, r);
        for (int64_t c = 0; id >= 0 && id < rows && c < width; c++)
            sum[id * width + c] += mz_ref_get(mz_in(call, embedding_bwd, dy), r * width + c);
    }
    for (int64_t i = 0; i < rows * width; i++)
        mz_ref_put_gradient(call, 0, i, sum[i]);
}

// Copies one part between the whole and a tensor that starts at `from` along the axis.
static void copy_part(const mz_tensor *whole, const mz_tensor *part, int axis, int64_t from, bool into_whole) {
    mz_ref_view w = mz_ref_view_along(&whole->shape, axis), p = mz_ref_view_along(&part->shape, axis);
    for (int64_t o = 0; o < p.outer; o++)
        for (int64_t a = 0; a < p.axis; a++)
            for (int64_t i = 0; i < p.inner; i++) {
                int64_t at_whole = (o * w.axis + from + a) * w.inner + i, at_part = (o * p.axis + a) * p.inner + i;
                if (into_whole)
                    mz_ref_put(whole, at_whole, mz_ref_get(part, at_part));
                else
                    mz_ref_put(part, at_part, mz_ref_get(whole, at_whole));
            }
}

void mz_ref_split(const mz_call *call) {
    int64_t from = 0;
    for (int i = 0; i < call->n_out; i++) {
        copy_part(mz_in(call, split, x), &call->out[i], call->attrs.axis, from, false);
        from += call->out[i].shape.dim[call->attrs.axis];
    }
}

void mz_ref_concat(const mz_call *call) {
    int64_t from = 0;
    for (int i = 0; i < call->n_in; i++) {
        copy_part(mz_out(call, concat, y), &call->in[i], call->attrs.axis, from, true);
        from += call->in[i].shape.dim[call->attrs.axis];
    }
}

void mz_ref_slice(const mz_call *call) {
    copy_part(mz_in(call, slice, x), mz_out(call, slice, y), call->attrs.axis, call->attrs.begin, false);
}

void mz_ref_pad(const mz_call *call) {
    mz_ref_constant(call);
    copy_part(mz_out(call, pad, y), mz_in(call, pad, x), call->attrs.axis, call->attrs.begin, true);
}

// Returns the element of x [outer, axis, inner] that index j of the column (o, i) names; -1: past either end.
static int64_t indexed(const mz_call *call, const mz_tensor *x, int64_t o, int64_t j, int64_t i, int64_t n) {
    const mz_ref_view v = mz_ref_view_along(&x->shape, call->attrs.axis);
    int64_t at = mz_ref_integer(mz_in(call, gather, index), call->attrs.elementwise ? (o * n + j) * v.inner + i : j);
    at += at < 0 ? v.axis : 0;
    return at < 0 || at >= v.axis ? -1 : (o * v.axis + at) * v.inner + i;
}

static int64_t indices_of(const mz_call *call) { // number of indices along the axis
    const mz_shape *index = &call->in[1].shape;
    return call->attrs.elementwise ? index->dim[call->attrs.axis] : mz_shape_count(index);
}

void mz_ref_gather(const mz_call *call) {
    const mz_tensor *x = mz_in(call, gather, x), *y = mz_out(call, gather, y);
    const mz_ref_view v = mz_ref_view_along(&x->shape, call->attrs.axis);
    const int64_t n = indices_of(call);
    for (int64_t k = 0; k < mz_shape_count(&y->shape); k++) {
        const int64_t at = indexed(call, x, k / v.inner / n, k / v.inner % n, k % v.inner, n);
        mz_ref_put(y, k, at >= 0 ? mz_ref_get(x, at) : NAN);
    }
}

void mz_ref_scatter_add(const mz_call *call) {
    const mz_tensor *x = mz_in(call, scatter_add, x), *src = mz_in(call, scatter_add, src),
                    *y = mz_out(call, scatter_add, y);
    const mz_ref_view v = mz_ref_view_along(&y->shape, call->attrs.axis);
    const int64_t n = indices_of(call);
    mz_ref_scratch scratch = mz_ref_scratch_begin(call);
    double *sum = mz_ref_zeros(&scratch, mz_shape_count(&y->shape));
    for (int64_t k = 0; mz_present(x) && k < mz_shape_count(&y->shape); k++)
        sum[k] = mz_ref_get(x, k);
    for (int64_t k = 0; k < mz_shape_count(&src->shape); k++) {
        const int64_t at = indexed(call, y, k / v.inner / n, k / v.inner % n, k % v.inner, n);
        if (at >= 0)
            sum[at] += mz_ref_get(src, k);
    }
    for (int64_t k = 0; k < mz_shape_count(&y->shape); k++)
        mz_ref_put(y, k, sum[k]);
}

// Element i of y has, with its indices permuted, the same place in x.
void mz_ref_permute(const mz_call *call) {
    const mz_shape *x = &mz_in(call, permute, x)->shape, *y = &mz_out(call, permute, y)->shape;
    for (int64_t i = 0, n = mz_shape_count(y); i < n; i++) {
        int64_t index[MEZZO_MAX_RANK] = {0}, at = 0;
        for (int64_t d = y->rank - 1, rest = i; d >= 0; rest /= y->dim[d--])
            index[call->attrs.permutation[d]] = rest % y->dim[d];
        for (int d = 0; d < x->rank; d++)
            at = at * x->dim[d] + index[d];
        mz_ref_put(mz_out(call, permute, y), i, mz_ref_get(mz_in(call, permute, x), at));
    }
}
