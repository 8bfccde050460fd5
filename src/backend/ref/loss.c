// Computes losses and their gradients: cross-entropy, mean squared error.
#include <math.h>

#include "backend/ref/ref.h"

static int64_t counted_rows(const mz_call *call, const mz_tensor *targets) {
    int64_t n = 0, rows = mz_shape_count(&targets->shape);
    for (int64_t r = 0; r < rows; r++)
        n += mz_ref_integer(targets, r) != call->attrs.ignore_index;
    return n;
}

// Returns logit i, soft-capped where there is a cap.
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

// A target outside [0, V) that is not ignored makes the loss NaN, and its row's gradient, too: kernels cannot report
// bad data, but the guard notices NaN.
void mz_ref_cross_entropy(const mz_call *call) {
    const mz_tensor *logits = mz_in(call, cross_entropy, logits), *targets = mz_in(call, cross_entropy, targets);
    int64_t width = logits->shape.dim[logits->shape.rank - 1], rows = mz_shape_count(&logits->shape) / width;
    int64_t counted = counted_rows(call, targets);
    double loss = 0;
    for (int64_t r = 0; r < rows; r++) {
        double lse = log_sum_exp(call, logits, r * width, width);
        int32_t target = mz_ref_integer(targets, call->attrs.first_row + r);
        if (mz_present(mz_out(call, cross_entropy, lse)))
            mz_ref_put(mz_out(call, cross_entropy, lse), r, lse);
        if (target != call->attrs.ignore_index)
            loss += target < 0 || target >= width ? NAN : lse - logit_at(call, logits, r * width + target);
    }
    mz_ref_put(mz_out(call, cross_entropy, loss), 0, counted > 0 ? loss / (double)counted : 0);
}

// Computes dx = dloss/n·(softmax(x) - onehot(target)), times 1 - (x/cap)² for capped logits; 0 where the target is
// ignored.
void mz_ref_cross_entropy_dx(const mz_call *call) {
    const mz_tensor *logits = mz_in(call, cross_entropy_dx, logits), *targets = mz_in(call, cross_entropy_dx, targets),
                    *lse = mz_in(call, cross_entropy_dx, lse), *dx = mz_out(call, cross_entropy_dx, dx);
    int64_t width = logits->shape.dim[logits->shape.rank - 1], rows = mz_shape_count(&logits->shape) / width;
    int64_t counted = counted_rows(call, targets);
    double factor = mz_ref_get(mz_in(call, cross_entropy_dx, dloss), 0) / (double)(counted > 0 ? counted : 1);
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
    int64_t n = mz_shape_count(&mz_in(call, mse, x)->shape);
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        double difference = mz_ref_get(mz_in(call, mse, x), i) - mz_ref_get(mz_in(call, mse, target), i);
        sum += difference * difference;
    }
    mz_ref_put(mz_out(call, mse, loss), 0, sum / (double)n);
}

void mz_ref_mse_dx(const mz_call *call) {
    int64_t n = mz_shape_count(&mz_out(call, mse_dx, dx)->shape);
    double factor = mz_ref_get(mz_in(call, mse_dx, dloss), 0) * 2 / (double)n;
    for (int64_t i = 0; i < n; i++)
        mz_ref_put(mz_out(call, mse_dx, dx), i,
                   factor * (mz_ref_get(mz_in(call, mse_dx, x), i) - mz_ref_get(mz_in(call, mse_dx, target), i)));
}
