// Computes losses and their gradients: cross-entropy, mean squared error.
#include <math.h>

#include "backend/ref/ref.h"

static int64_t counted_rows(const mz_call *call, const mz_tensor *targets) {
    int64_t n = 0, rows = mz_shape_count(&targets->shape);
    for (int64_t r = 0; r < rows; r++)
        n += mz_ref_integer(targets, r) != call->attrs.ignore_index;
    return n;
}

// Logit i, soft-capped where there is a cap.
static double logit_at(const mz_call *call, const mz_tensor *x, int64_t i) {
    const double cap = (double)call->attrs.score_cap, value = mz_ref_get(x, i);
    return cap > 0 ? cap * tanh(value / cap) : value;
}

static double log_sum_exp(const mz_call *call, const mz_tensor *x, int64_t start, int64_t width) {
    double max = -INFINITY, sum = 0;
    for (int64_t c = 0; c < width; c++)
        max = fmax(max, logit_at(call, x, start + c));
    for (int64_t c = 0; c < width; c++)
        sum += exp(logit_at(call, x, start + c) - max);
    return max + log(sum);
}

// A target outside [0, V) that is not ignored makes the loss NaN, and its row's gradient too: kernels cannot report bad
// data, the non-finite guard can.
void mz_ref_cross_entropy(const mz_call *call) {
    const mz_tensor *logits = &call->in[0], *targets = &call->in[1];
    int64_t width = logits->shape.dim[logits->shape.rank - 1], rows = mz_shape_count(&logits->shape) / width;
    int64_t counted = counted_rows(call, targets);
    double loss = 0;
    for (int64_t r = 0; r < rows; r++) {
        double lse = log_sum_exp(call, logits, r * width, width);
        int32_t target = mz_ref_integer(targets, call->attrs.first_row + r);
        if (mz_present(&call->out[1]))
            mz_ref_put(&call->out[1], r, lse);
        if (target != call->attrs.ignore_index)
            loss += target < 0 || target >= width ? NAN : lse - logit_at(call, logits, r * width + target);
    }
    mz_ref_put(&call->out[0], 0, counted > 0 ? loss / (double)counted : 0);
}

// dx = dloss/n·(softmax(x) - onehot(target)), times 1 - (x/cap)² of capped logits; 0 where the target is ignored.
void mz_ref_cross_entropy_dx(const mz_call *call) {
    const mz_tensor *logits = &call->in[1], *targets = &call->in[2], *lse = &call->in[3], *dx = &call->out[0];
    int64_t width = logits->shape.dim[logits->shape.rank - 1], rows = mz_shape_count(&logits->shape) / width;
    int64_t counted = counted_rows(call, targets);
    double factor = mz_ref_get(&call->in[0], 0) / (double)(counted > 0 ? counted : 1);
    for (int64_t r = 0; r < rows; r++) {
        int32_t target = mz_ref_integer(targets, call->attrs.first_row + r);
        bool ignored = target == call->attrs.ignore_index, bad = target < 0 || target >= width;
        for (int64_t c = 0; c < width; c++) {
            int64_t i = r * width + c;
            double x = logit_at(call, logits, i), t = call->attrs.score_cap > 0 ? x / (double)call->attrs.score_cap : 0;
            double p = exp(x - mz_ref_get(lse, r));
            mz_ref_put(dx, i, ignored ? 0 : bad ? NAN : factor * (1 - t * t) * (p - (c == target)));
        }
    }
}

void mz_ref_mse(const mz_call *call) {
    int64_t n = mz_shape_count(&call->in[0].shape);
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        double difference = mz_ref_get(&call->in[0], i) - mz_ref_get(&call->in[1], i);
        sum += difference * difference;
    }
    mz_ref_put(&call->out[0], 0, sum / (double)n);
}

void mz_ref_mse_dx(const mz_call *call) {
    int64_t n = mz_shape_count(&call->out[0].shape);
    double factor = mz_ref_get(&call->in[0], 0) * 2 / (double)n;
    for (int64_t i = 0; i < n; i++)
        mz_ref_put(&call->out[0], i, factor * (mz_ref_get(&call->in[1], i) - mz_ref_get(&call->in[2], i)));
}
