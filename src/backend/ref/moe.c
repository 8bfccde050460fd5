// Computes a mixture of experts: the choice of experts, dispatch and combine, and the experts' products.
#include <math.h>

#include "backend/ref/ref.h"

// Compares numbers where NaN is the largest, as in torch.topk: it is chosen, so that it reaches the output.
static bool larger(double a, double b) {
    return a > b || (isnan(a) && !isnan(b));
}

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

typedef struct token {
    const mz_call *call;
    const mz_tensor *logits;
    int64_t start, experts; // the first of its logits; their number
    double lse;             // of its logits, where scores are softmax(logits)
} token;

static token token_at(const mz_call *call, const mz_tensor *logits, int64_t experts, int64_t m) {
    token t = {call, logits, m * experts, experts, 0};
    double max = -INFINITY, sum = 0;
    for (int64_t e = 0; e < experts; e++)
        max = fmax(max, mz_ref_get(logits, t.start + e));
    for (int64_t e = 0; e < experts; e++)
        sum += exp(mz_ref_get(logits, t.start + e) - max);
    t.lse = max + log(sum);
    return t;
}

static double score_at(const token *t, int64_t e) {
    const double x = mz_ref_get(t->logits, t->start + e);
    return t->call->attrs.softmax ? exp(x - t->lse) : sigmoid(x);
}

// Returns the number by which expert e of a token is chosen; experts outside the best groups count as -∞. The sum of a
// group's two best scores ranks it.
static double choice(const token *t, int64_t e) {
    double score = score_at(t, e);
    return mz_present(mz_in(t->call, route, bias)) ? score + mz_ref_get(mz_in(t->call, route, bias), e) : score;
}

static double group_score(const token *t, int64_t group) {
    int64_t size = t->experts / t->call->attrs.groups;
    double best = -INFINITY, second = -INFINITY;
    for (int64_t e = group * size; e < (group + 1) * size; e++) {
        double c = choice(t, e);
        if (larger(c, best)) {
            second = best;
            best = c;
        } else if (larger(c, second)) {
            second = c;
        }
    }
    return best + second;
}

static bool group_is_used(const token *t, int64_t group) {
    int better = 0;
    double own = group_score(t, group);
    for (int64_t g = 0; g < t->call->attrs.groups; g++) {
        double other = group_score(t, g);
        better += larger(other, own) || (g < group && !larger(own, other));
    }
    return better < t->call->attrs.top_groups;
}

static double masked_choice(const token *t, int64_t e) {
    bool grouped = t->call->attrs.groups > 1;
    return !grouped || group_is_used(t, e / (t->experts / t->call->attrs.groups)) ? choice(t, e) : -INFINITY;
}

void mz_ref_route(const mz_call *call) {
    const mz_tensor *weights = mz_out(call, route, weights), *indices = mz_out(call, route, indices);
    int64_t k = call->attrs.top_k, tokens = weights->shape.dim[0];
    for (int64_t m = 0; m < tokens; m++) {
        const token t =
            token_at(call, mz_in(call, route, logits), mz_shape_count(&mz_in(call, route, logits)->shape) / tokens, m);
        double sum = 0;
        for (int64_t j = 0; j < k; j++) {
            int64_t best = -1;
            for (int64_t e = 0; e < t.experts; e++) {
                bool taken = false;
                for (int64_t i = 0; i < j; i++)
                    taken = taken || mz_ref_integer(indices, m * k + i) == e;
                if (!taken && (best < 0 || larger(masked_choice(&t, e), masked_choice(&t, best))))
                    best = e;
            }
            mz_ref_put(indices, m * k + j, (double)best);
            sum += score_at(&t, best);
        }
        double factor = (double)call->attrs.alpha / (call->attrs.normalise ? sum + 1e-20 : 1);
        for (int64_t j = 0; j < k; j++)
            mz_ref_put(weights, m * k + j, factor * score_at(&t, mz_ref_integer(indices, m * k + j)));
    }
}

// Computes, for w_j = α·s_j/S, S = Σ s + 1e-20, s = sigmoid(x): dx_j = α/S·(dw_j - Σ_i dw_i·s_i/S)·s_j·(1 - s_j); not
// normalized: α·dw_j·s_j·(1 - s_j). For softmax: α/S·(dw_j - Σ_i dw_i·s_i/S)·s_j; not normalized: α·(dw_e - Σ_i
// dw_i·s_i)·s_e for every expert, with dw_e 0 where it was not chosen.
void mz_ref_route_dx(const mz_call *call) {
    const mz_tensor *dw = mz_in(call, route_dx, dweights), *x = mz_in(call, route_dx, logits),
                    *indices = mz_in(call, route_dx, indices), *dx = mz_out(call, route_dx, dx);
    int64_t k = call->attrs.top_k, tokens = mz_shape_count(&dw->shape) / k,
            experts = mz_shape_count(&x->shape) / tokens;
    for (int64_t m = 0; m < tokens; m++) {
        const token t = token_at(call, x, experts, m);
        const bool normalise = call->attrs.normalise, softmax = call->attrs.softmax;
        double sum = 1e-20, mean = 0;
        for (int64_t j = 0; j < k; j++)
            sum += score_at(&t, mz_ref_integer(indices, m * k + j));
        sum = normalise ? sum : 1;
        for (int64_t j = 0; j < k; j++)
            mean += mz_ref_get(dw, m * k + j) * score_at(&t, mz_ref_integer(indices, m * k + j)) / sum;
        for (int64_t e = 0; e < experts; e++)
            mz_ref_put(dx, t.start + e,
                       softmax && !normalise ? -(double)call->attrs.alpha * mean * score_at(&t, e) : 0);
        for (int64_t j = 0; j < k; j++) {
            int64_t e = mz_ref_integer(indices, m * k + j);
            double s = score_at(&t, e), d = mz_ref_get(dw, m * k + j);
            d = normalise || softmax ? (d - mean) / sum : d;
            mz_ref_put(dx, t.start + e, (double)call->attrs.alpha * d * s * (softmax ? 1 : 1 - s));
        }
    }
}

// An index that is no expert counts as the last one, so that every row has a place for any numbers.
void mz_ref_expert_order(const mz_call *call) {
    const mz_tensor *indices = mz_in(call, expert_order, indices);
    int64_t experts = call->attrs.experts, rows = mz_shape_count(&indices->shape), r = 0;
    for (int64_t e = 0; e < experts; e++) {
        mz_ref_put(mz_out(call, expert_order, offsets), e, (double)r);
        for (int64_t i = 0; i < rows; i++) {
            int32_t index = mz_ref_integer(indices, i);
            if ((index < 0 || index >= experts ? experts - 1 : index) != e)
                continue;
            mz_ref_put(mz_out(call, expert_order, order), r, (double)i);
            mz_ref_put(mz_out(call, expert_order, place), i, (double)r++);
        }
    }
    mz_ref_put(mz_out(call, expert_order, offsets), experts, (double)r);
}

void mz_ref_dispatch(const mz_call *call) {
    const mz_tensor *x = mz_in(call, dispatch, x), *order = mz_in(call, dispatch, order),
                    *weights = mz_in(call, dispatch, weights), *y = mz_out(call, dispatch, y);
    int64_t rows = mz_shape_count(&order->shape), width = mz_shape_count(&y->shape) / rows;
    for (int64_t r = 0; r < rows; r++) {
        int64_t i = mz_ref_integer(order, r), from = i / call->attrs.top_k;
        double w = mz_present(weights) ? mz_ref_get(weights, i) : 1;
        for (int64_t c = 0; c < width; c++)
            mz_ref_put(y, r * width + c, w * mz_ref_get(x, from * width + c));
    }
}

void mz_ref_combine(const mz_call *call) {
    const mz_tensor *x = mz_in(call, combine, x), *place = mz_in(call, combine, place),
                    *weights = mz_in(call, combine, weights), *y = mz_out(call, combine, y);
    const mz_tensor *added = mz_in(call, combine, added), *more = mz_in(call, combine, more);
    int64_t k = call->attrs.top_k, tokens = mz_shape_count(&place->shape) / k,
            width = mz_shape_count(&y->shape) / tokens;
    for (int64_t m = 0; m < tokens; m++)
        for (int64_t c = 0; c < width; c++) {
            double sum = 0;
            for (int64_t j = 0; j < k; j++) {
                double w = mz_present(weights) ? mz_ref_get(weights, m * k + j) : 1;
                sum += w * mz_ref_get(x, mz_ref_integer(place, m * k + j) * width + c);
            }
            sum += mz_present(added) ? mz_ref_get(added, m * width + c) : 0;
            sum += mz_present(more) ? mz_ref_get(more, m * width + c) : 0;
            mz_ref_put(y, m * width + c, sum);
        }
}

void mz_ref_combine_dw(const mz_call *call) {
    const mz_tensor *dy = mz_in(call, combine_dw, dy), *x = mz_in(call, combine_dw, x),
                    *place = mz_in(call, combine_dw, place);
    int64_t k = call->attrs.top_k, rows = mz_shape_count(&place->shape), width = mz_shape_count(&x->shape) / rows;
    for (int64_t i = 0; i < rows; i++) {
        double sum = 0;
        for (int64_t c = 0; c < width; c++)
            sum += mz_ref_get(dy, i / k * width + c) * mz_ref_get(x, mz_ref_integer(place, i) * width + c);
        mz_ref_put(mz_out(call, combine_dw, dweights), i, sum);
    }
}

// --- the experts' products -----------------------------------------------------------------------------------------
// w's [E, N, K] and, for a row of an expert, which one. Rows before offsets[0] and from offsets[E] on have none.
static int64_t expert_of(const mz_tensor *offsets, int64_t row) {
    int64_t e = 0;
    while (mz_ref_integer(offsets, e + 1) <= row)
        e++;
    return e;
}

void mz_ref_grouped_linear(const mz_call *call) {
    const mz_shape *ws = &mz_in(call, grouped_linear, w)->shape;
    mz_ref_scratch scratch = mz_ref_scratch_begin(call);
    const double *x = mz_ref_operand(&scratch, mz_in(call, grouped_linear, x), call->numerics.compute); // [R, K]
    const double *w = mz_ref_operand(&scratch, mz_in(call, grouped_linear, w), call->numerics.compute); // [E, N, K]
    const mz_tensor *offsets = mz_in(call, grouped_linear, offsets);
    int64_t n_out = ws->dim[1], n_in = ws->dim[2], last = mz_ref_integer(offsets, ws->dim[0]);
    for (int64_t i = mz_ref_integer(offsets, 0) * n_out; i < last * n_out; i++) {
        int64_t r = i / n_out, e = expert_of(offsets, r);
        double sum = 0;
        for (int64_t k = 0; k < n_in; k++)
            sum += x[r * n_in + k] * w[(e * n_out + i % n_out) * n_in + k];
        mz_ref_put(mz_out(call, grouped_linear, y), i, sum);
    }
}

void mz_ref_grouped_linear_dx(const mz_call *call) {
    const mz_shape *ws = &mz_in(call, grouped_linear_dx, w)->shape;
    mz_ref_scratch scratch = mz_ref_scratch_begin(call);
    const double *dy = mz_ref_operand(&scratch, mz_in(call, grouped_linear_dx, dy), call->numerics.compute); // [R, N]
    const double *w = mz_ref_operand(&scratch, mz_in(call, grouped_linear_dx, w), call->numerics.compute); // [E, N, K]
    const mz_tensor *offsets = mz_in(call, grouped_linear_dx, offsets);
    int64_t n_out = ws->dim[1], n_in = ws->dim[2], last = mz_ref_integer(offsets, ws->dim[0]);
    for (int64_t i = mz_ref_integer(offsets, 0) * n_in; i < last * n_in; i++) {
        int64_t r = i / n_in, e = expert_of(offsets, r);
        double sum = 0;
        for (int64_t n = 0; n < n_out; n++)
            sum += dy[r * n_out + n] * w[(e * n_out + n) * n_in + i % n_in];
        mz_ref_put(mz_out(call, grouped_linear_dx, dx), i, sum);
    }
}

void mz_ref_grouped_linear_dw(const mz_call *call) {
    const mz_shape *ws = &mz_out(call, grouped_linear_dw, dw)->shape; // [E, N, K]
    mz_ref_scratch scratch = mz_ref_scratch_begin(call);
    const double *dy = mz_ref_operand(&scratch, mz_in(call, grouped_linear_dw, dy), call->numerics.compute); // [R, N]
    const double *x = mz_ref_operand(&scratch, mz_in(call, grouped_linear_dw, x), call->numerics.compute);   // [R, K]
    int64_t n_out = ws->dim[1], n_in = ws->dim[2];
    for (int64_t i = 0; i < mz_shape_count(ws); i++) {
        int64_t e = i / (n_out * n_in), n = i / n_in % n_out, k = i % n_in;
        double sum = 0;
        for (int64_t r = mz_ref_integer(mz_in(call, grouped_linear_dw, offsets), e);
             r < mz_ref_integer(mz_in(call, grouped_linear_dw, offsets), e + 1); r++)
            sum += dy[r * n_out + n] * x[r * n_in + k];
        mz_ref_put_gradient(call, 0, i, sum);
    }
}
