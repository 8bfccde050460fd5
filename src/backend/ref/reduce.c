// Sums, means and their gradient.
#include "backend/ref/ref.h"

static double sum_along(const mz_tensor *x, mz_ref_view view, int64_t outer, int64_t inner) {
    double sum = 0;
    for (int64_t a = 0; a < view.axis; a++)
        sum += mz_ref_get(x, (outer * view.axis + a) * view.inner + inner);
    return sum;
}

void mz_ref_sum(const mz_call *call) {
    mz_ref_view view = mz_ref_view_along(&call->in[0].shape, call->attrs.axis);
    for (int64_t o = 0; o < view.outer; o++)
        for (int64_t i = 0; i < view.inner; i++)
            mz_ref_put_gradient(call, 0, o * view.inner + i, sum_along(&call->in[0], view, o, i));
}

void mz_ref_mean(const mz_call *call) {
    mz_ref_view view = mz_ref_view_along(&call->in[0].shape, call->attrs.axis);
    for (int64_t o = 0; o < view.outer; o++)
        for (int64_t i = 0; i < view.inner; i++)
            mz_ref_put(&call->out[0], o * view.inner + i, sum_along(&call->in[0], view, o, i) / (double)view.axis);
}

void mz_ref_expand(const mz_call *call) {
    mz_ref_view view = mz_ref_view_along(&call->out[0].shape, call->attrs.axis);
    for (int64_t o = 0; o < view.outer; o++)
        for (int64_t a = 0; a < view.axis; a++)
            for (int64_t i = 0; i < view.inner; i++)
                mz_ref_put(&call->out[0], (o * view.axis + a) * view.inner + i,
                           (double)call->attrs.alpha * mz_ref_get(&call->in[0], o * view.inner + i));
}

void mz_ref_accumulate(const mz_call *call) {
    int64_t n = mz_shape_count(&call->in[0].shape);
    for (int64_t i = 0; i < n; i++)
        mz_ref_put_gradient(call, 0, i, mz_ref_get(&call->in[0], i));
}
