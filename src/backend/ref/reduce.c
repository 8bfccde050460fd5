// Computes reductions along an axis, and their gradients.
#include <math.h>

#include "backend/ref/ref.h"

static double sum_along(const mz_tensor *x, mz_ref_view view, int64_t outer, int64_t inner) {
    double sum = 0;
    for (int64_t a = 0; a < view.axis; a++)
        sum += mz_ref_get(x, (outer * view.axis + a) * view.inner + inner);
    return sum;
}

void mz_ref_sum(const mz_call *call) {
    mz_ref_view view = mz_ref_view_along(&mz_in(call, sum, x)->shape, call->attrs.axis);
    for (int64_t o = 0; o < view.outer; o++)
        for (int64_t i = 0; i < view.inner; i++)
            mz_ref_put_gradient(call, 0, o * view.inner + i, sum_along(mz_in(call, sum, x), view, o, i));
}

void mz_ref_mean(const mz_call *call) {
    mz_ref_view view = mz_ref_view_along(&mz_in(call, mean, x)->shape, call->attrs.axis);
    for (int64_t o = 0; o < view.outer; o++)
        for (int64_t i = 0; i < view.inner; i++)
            mz_ref_put(mz_out(call, mean, y), o * view.inner + i,
                       sum_along(mz_in(call, mean, x), view, o, i) / (double)view.axis);
}

// Returns the index of the largest of a column, of the smallest with sign -1; NaN is beyond all.
static int64_t extremum(const mz_tensor *x, mz_ref_view v, int64_t o, int64_t i, double sign) {
    int64_t best = 0;
    for (int64_t a = 1; a < v.axis; a++) {
        const double one = mz_ref_get(x, (o * v.axis + a) * v.inner + i) * sign,
                     most = mz_ref_get(x, (o * v.axis + best) * v.inner + i) * sign;
        best = !isnan(most) && (isnan(one) || one > most) ? a : best;
    }
    return best;
}

static void each_extremum(const mz_call *call, double sign, bool index) {
    const mz_tensor *x = mz_in(call, max, x);
    const mz_ref_view v = mz_ref_view_along(&x->shape, call->attrs.axis);
    for (int64_t o = 0; o < v.outer; o++)
        for (int64_t i = 0; i < v.inner; i++) {
            const int64_t best = extremum(x, v, o, i, sign);
            mz_ref_put(mz_out(call, max, y), o * v.inner + i,
                       index ? (double)best : mz_ref_get(x, (o * v.axis + best) * v.inner + i));
        }
}

void mz_ref_max(const mz_call *call) {
    each_extremum(call, 1, false);
}

void mz_ref_min(const mz_call *call) {
    each_extremum(call, -1, false);
}

void mz_ref_argmax(const mz_call *call) {
    each_extremum(call, 1, true);
}

void mz_ref_extremum_dx(const mz_call *call) {
    const mz_tensor *x = mz_in(call, extremum_dx, x);
    const mz_ref_view v = mz_ref_view_along(&x->shape, call->attrs.axis);
    for (int64_t k = 0; k < mz_shape_count(&x->shape); k++) {
        const int64_t column = k / v.inner / v.axis * v.inner + k % v.inner;
        const double y = mz_ref_get(mz_in(call, extremum_dx, y), column);
        double equals = 0;
        for (int64_t a = 0; a < v.axis; a++)
            equals += mz_ref_get(x, (column / v.inner * v.axis + a) * v.inner + column % v.inner) == y;
        mz_ref_put(mz_out(call, extremum_dx, dx), k,
                   mz_ref_get(x, k) == y ? mz_ref_get(mz_in(call, extremum_dx, dy), column) / equals : 0);
    }
}

// Returns the product of a column without element `except`; -1: of all.
static double product(const mz_tensor *x, mz_ref_view v, int64_t o, int64_t i, int64_t except) {
    double y = 1;
    for (int64_t a = 0; a < v.axis; a++)
        y *= a == except ? 1 : mz_ref_get(x, (o * v.axis + a) * v.inner + i);
    return y;
}

void mz_ref_prod(const mz_call *call) {
    const mz_ref_view v = mz_ref_view_along(&mz_in(call, prod, x)->shape, call->attrs.axis);
    for (int64_t k = 0; k < v.outer * v.inner; k++)
        mz_ref_put(mz_out(call, prod, y), k, product(mz_in(call, prod, x), v, k / v.inner, k % v.inner, -1));
}

void mz_ref_prod_dx(const mz_call *call) {
    const mz_tensor *x = mz_in(call, prod_dx, x);
    const mz_ref_view v = mz_ref_view_along(&x->shape, call->attrs.axis);
    for (int64_t k = 0; k < mz_shape_count(&x->shape); k++) {
        const int64_t o = k / v.inner / v.axis, i = k % v.inner;
        mz_ref_put(mz_out(call, prod_dx, dx), k,
                   mz_ref_get(mz_in(call, prod_dx, dy), o * v.inner + i) * product(x, v, o, i, k / v.inner % v.axis));
    }
}

void mz_ref_cumsum(const mz_call *call) {
    const mz_ref_view v = mz_ref_view_along(&mz_in(call, cumsum, x)->shape, call->attrs.axis);
    for (int64_t k = 0; k < v.outer * v.inner; k++) {
        double sum = 0;
        for (int64_t a = 0; a < v.axis; a++) {
            const int64_t along = call->attrs.reverse ? v.axis - 1 - a : a;
            const int64_t at = (k / v.inner * v.axis + along) * v.inner + k % v.inner;
            const double x = mz_ref_get(mz_in(call, cumsum, x), at);
            mz_ref_put(mz_out(call, cumsum, y), at, call->attrs.exclusive ? sum : sum + x);
            sum += x;
        }
    }
}

void mz_ref_expand(const mz_call *call) {
    mz_ref_view view = mz_ref_view_along(&mz_out(call, expand, y)->shape, call->attrs.axis);
    for (int64_t o = 0; o < view.outer; o++)
        for (int64_t a = 0; a < view.axis; a++)
            for (int64_t i = 0; i < view.inner; i++)
                mz_ref_put(mz_out(call, expand, y), (o * view.axis + a) * view.inner + i,
                           (double)call->attrs.alpha * mz_ref_get(mz_in(call, expand, x), o * view.inner + i));
}

void mz_ref_accumulate(const mz_call *call) {
    int64_t n = mz_shape_count(&mz_in(call, accumulate, x)->shape);
    for (int64_t i = 0; i < n; i++)
        mz_ref_put_gradient(call, 0, i, mz_ref_get(mz_in(call, accumulate, x), i));
}
