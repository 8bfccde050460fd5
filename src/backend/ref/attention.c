// Computes attention one row of scores at a time, without a T×T tensor.
#include <math.h>

#include "backend/ref/ref.h"

// Says where q, k and v are: side by side in one tensor, or in three.
typedef struct layout {
    int64_t batch, length, keys, heads, kv_heads, width; // B, Tq, Tk, H, Hkv, D
    int64_t q_row, kv_row;                               // elements from one position to the next
    int64_t k_start, v_start;                            // packed: where k and v begin in a row; 0 otherwise
    bool packed;
} layout;

static layout layout_of(const mz_call *call, const mz_tensor *q, const mz_tensor *k, const mz_tensor *y) {
    layout l = {.batch = q->shape.dim[0], .length = q->shape.dim[1], .heads = call->attrs.heads};
    int64_t channels = y->shape.dim[2]; // H·D
    l.width = channels / l.heads;
    l.packed = !mz_present(k);
    l.keys = l.packed ? l.length : k->shape.dim[1];
    if (l.packed) {
        l.kv_heads = l.heads;
        l.q_row = l.kv_row = 3 * channels;
        l.k_start = channels;
        l.v_start = 2 * channels;
    } else {
        l.kv_heads = k->shape.dim[2] / l.width;
        l.q_row = channels;
        l.kv_row = k->shape.dim[2];
    }
    return l;
}

static int64_t q_at(const layout *l, int64_t b, int64_t t, int64_t h) {
    return (b * l->length + t) * l->q_row + h * l->width;
}

static int64_t kv_at(const layout *l, int64_t b, int64_t t, int64_t h) {
    return (b * l->keys + t) * l->kv_row + h / (l->heads / l->kv_heads) * l->width;
}

static double dot(const double *a, const double *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

// Returns the end of the keys that query i of row b sees, which are first_seen … seen_by - 1.
static int64_t seen_by(const mz_call *call, const layout *l, int64_t i) {
    return call->attrs.causal && i + 1 < l->keys ? i + 1 : l->keys;
}
static int64_t first_seen(const mz_call *call, const layout *l, const mz_tensor *positions, int64_t b, int64_t i) {
    if (!call->attrs.causal)
        return 0;
    const int32_t *row = mz_present(positions) ? (const int32_t *)positions->data + b * l->length : NULL;
    return mz_attention_first(&call->attrs, row, i);
}

// Returns a score before the softmax and, with a cap, its derivative by q·kᵀ·scale, 1 - tanh².
static double capped(const mz_call *call, double score, double *derivative) {
    const double cap = (double)call->attrs.score_cap, t = cap > 0 ? tanh(score / cap) : 0;
    *derivative = 1 - t * t;
    return cap > 0 ? cap * t : score;
}
static double score_of(const mz_call *call, const layout *l, const double *q, const double *k, double *derivative) {
    return capped(call, mz_attention_scale(&call->attrs, l->width) * dot(q, k, l->width), derivative);
}

// Returns dropout's factor on probability (i, j) of head h: element ((b·H + h)·Tq + i)·Tk + j of the stream.
static double keep_factor(const mz_call *call, const layout *l, int64_t b, int64_t h, int64_t i, int64_t j) {
    if (call->attrs.p == 0)
        return 1;
    return mz_ref_dropout_factor(call, ((b * l->heads + h) * l->length + i) * l->keys + j);
}

void mz_ref_attention(const mz_call *call) {
    layout l = layout_of(call, mz_in(call, attention, q), mz_in(call, attention, k), mz_out(call, attention, y));
    mz_ref_scratch scratch = mz_ref_scratch_begin(call);
    const double *q =
        mz_ref_operand(&scratch, mz_in(call, attention, q), call->numerics.compute); // [B, T, H·D] or [B, T, 3·H·D]
    const double *k =
        l.packed ? q + l.k_start : mz_ref_operand(&scratch, mz_in(call, attention, k), call->numerics.compute);
    const double *v =
        l.packed ? q + l.v_start : mz_ref_operand(&scratch, mz_in(call, attention, v), call->numerics.compute);
    double *o = mz_ref_zeros(&scratch, l.width);
    for (int64_t b = 0; b < l.batch; b++)
        for (int64_t h = 0; h < l.heads; h++)
            for (int64_t i = 0; i < l.length; i++) {
                const double *qi = q + q_at(&l, b, i, h);
                const int64_t first = first_seen(call, &l, mz_in(call, attention, positions), b, i);
                double max = -INFINITY, sum = 0, derivative;
                for (int64_t j = first; j < seen_by(call, &l, i); j++)
                    max = fmax(max, score_of(call, &l, qi, k + kv_at(&l, b, j, h), &derivative));
                for (int64_t d = 0; d < l.width; d++)
                    o[d] = 0;
                for (int64_t j = first; j < seen_by(call, &l, i); j++) {
                    double e = exp(score_of(call, &l, qi, k + kv_at(&l, b, j, h), &derivative) - max);
                    double keep = keep_factor(call, &l, b, h, i, j);
                    sum += e; // dropout changes the probabilities, not their normalization
                    for (int64_t d = 0; d < l.width; d++)
                        o[d] += keep * e * v[kv_at(&l, b, j, h) + d];
                }
                for (int64_t d = 0; d < l.width; d++)
                    mz_ref_put(mz_out(call, attention, y), ((b * l.length + i) * l.heads + h) * l.width + d,
                               o[d] / sum);
                if (mz_present(mz_out(call, attention, lse)))
                    mz_ref_put(mz_out(call, attention, lse), (b * l.heads + h) * l.length + i, max + log(sum));
            }
}

// A row of scores under a mask: its beginning in the mask, its maximum and the sum of exp(score - maximum).
typedef struct masked_row {
    const mz_call *call;
    const layout *l;
    const double *q, *k;
    const mz_tensor *mask;
    int64_t b, h, i, at;
    double max, sum;
} masked_row;

// Returns the probability of key j, which the query sees, and the derivative of its score by the scaled product.
static double masked_probability(const masked_row *r, int64_t j, double *derivative) {
    const double score =
        score_of(r->call, r->l, r->q + q_at(r->l, r->b, r->i, r->h), r->k + kv_at(r->l, r->b, j, r->h), derivative);
    return exp(score + mz_ref_get(r->mask, r->at + j) - r->max) / r->sum;
}

static masked_row masked_row_of(const mz_call *call, const layout *l, const double *q, const double *k,
                                const mz_tensor *mask, int64_t row) {
    masked_row r = {.call = call, .l = l, .q = q, .k = k, .mask = mask, .max = -INFINITY, .sum = 1};
    r.b = row / l->length / l->heads;
    r.h = row / l->length % l->heads;
    r.i = row % l->length;
    const int64_t *dim = mask->shape.dim; // [1 or B, 1 or H, 1 or Tq, Tk]
    double derivative;
    r.at = (((dim[0] > 1 ? r.b : 0) * dim[1] + (dim[1] > 1 ? r.h : 0)) * dim[2] + (dim[2] > 1 ? r.i : 0)) * dim[3];
    for (int64_t j = 0; j < seen_by(call, l, r.i); j++)
        r.max = fmax(r.max, score_of(call, l, q + q_at(l, r.b, r.i, r.h), k + kv_at(l, r.b, j, r.h), &derivative) +
                                mz_ref_get(mask, r.at + j));
    double sum = 0;
    for (int64_t j = 0; j < seen_by(call, l, r.i); j++)
        sum += masked_probability(&r, j, &derivative);
    r.sum = sum;
    return r;
}

void mz_ref_attention_masked(const mz_call *call) {
    const mz_tensor *y = mz_out(call, attention_masked, y);
    layout l = layout_of(call, mz_in(call, attention_masked, q), mz_in(call, attention_masked, k), y);
    mz_ref_scratch scratch = mz_ref_scratch_begin(call);
    const double *q = mz_ref_operand(&scratch, mz_in(call, attention_masked, q), call->numerics.compute),
                 *k = mz_ref_operand(&scratch, mz_in(call, attention_masked, k), call->numerics.compute),
                 *v = mz_ref_operand(&scratch, mz_in(call, attention_masked, v), call->numerics.compute);
    double *o = mz_ref_zeros(&scratch, l.width), derivative;
    for (int64_t row = 0; row < l.batch * l.heads * l.length; row++) {
        const masked_row r = masked_row_of(call, &l, q, k, mz_in(call, attention_masked, mask), row);
        for (int64_t d = 0; d < l.width; d++)
            o[d] = 0;
        for (int64_t j = 0; j < seen_by(call, &l, r.i); j++) {
            const double p = keep_factor(call, &l, r.b, r.h, r.i, j) * masked_probability(&r, j, &derivative);
            for (int64_t d = 0; d < l.width; d++)
                o[d] += p * v[kv_at(&l, r.b, j, r.h) + d];
        }
        for (int64_t d = 0; d < l.width; d++)
            mz_ref_put(y, ((r.b * l.length + r.i) * l.heads + r.h) * l.width + d, o[d]);
    }
}

// Queries see rows of the caches, not of k and v, because the caches have keys and values of earlier calls, too.
void mz_ref_attention_cached(const mz_call *call) {
    layout l = layout_of(call, mz_in(call, attention_cached, q), mz_in(call, attention_cached, k),
                         mz_out(call, attention_cached, y));
    const mz_tensor *caches = mz_in(call, attention_cached, cache_k);
    int64_t size = caches[0].shape.dim[1], row = caches[0].shape.dim[2],
            first = mz_ref_integer(mz_in(call, attention_cached, positions), 0);
    int64_t group = l.heads / (row / l.width);
    mezzo_dtype compute = call->numerics.compute;
    mz_ref_scratch scratch = mz_ref_scratch_begin(call);
    const double *q = mz_ref_operand(&scratch, mz_in(call, attention_cached, q), compute);
    const double *kv[2] = {
        l.packed ? q + l.k_start : mz_ref_operand(&scratch, mz_in(call, attention_cached, k), compute),
        l.packed ? q + l.v_start : mz_ref_operand(&scratch, mz_in(call, attention_cached, v), compute)};
    for (int64_t at = 0; at < l.batch * l.length * row; at++) {
        int64_t b = at / row / l.length, t = at / row % l.length, c = at % row;
        for (int i = 0; i < 2 && first + t >= 0 && first + t < size; i++)
            mz_ref_put(&caches[i], (b * size + first + t) * row + c, kv[i][(b * l.length + t) * l.kv_row + c]);
    }
    const double *k = mz_ref_operand(&scratch, &caches[0], MEZZO_F64),
                 *v = mz_ref_operand(&scratch, &caches[1], MEZZO_F64);
    double *o = mz_ref_zeros(&scratch, l.width);
    for (int64_t at = 0; at < l.batch * l.heads * l.length; at++) {
        int64_t b = at / l.length / l.heads, h = at / l.length % l.heads, t = at % l.length, i = first + t;
        const double *qi = q + q_at(&l, b, t, h);
        int64_t start = b * size * row + h / group * l.width;
        double max = -INFINITY, sum = 0, derivative;
        bool seen = i >= 0 && i < size;
        const int64_t from = seen ? mz_attention_first(&call->attrs, NULL, i) : 0;
        for (int64_t j = from; seen && j <= i; j++)
            max = fmax(max, score_of(call, &l, qi, k + start + j * row, &derivative));
        for (int64_t d = 0; d < l.width; d++)
            o[d] = 0;
        for (int64_t j = from; seen && j <= i; j++) {
            double e = exp(score_of(call, &l, qi, k + start + j * row, &derivative) - max);
            sum += e;
            for (int64_t d = 0; d < l.width; d++)
                o[d] += e * v[start + j * row + d];
        }
        for (int64_t d = 0; d < l.width; d++)
            mz_ref_put(mz_out(call, attention_cached, y), ((b * l.length + t) * l.heads + h) * l.width + d,
                       seen ? o[d] / sum : 0);
    }
}

// Computes gradients with p = exp(s - lse), m = the dropout factors, Δ_i = dy_i·y_i (= Σ_j p_ij·m_ij·(dy_i·v_j), as y
// is the sum of p·m·v):
//     dv_j = Σ_i p·m·dy_i,   dS_ij = p·(m·(dy_i·v_j) - Δ_i),   dq_i = Σ_j dS·k_j/√D,   dk_j = Σ_i dS·q_i/√D
// With a cap dS is also multiplied by 1 - (s/cap)², s the capped score; attrs.alpha replaces 1/√D.
void mz_ref_attention_bwd(const mz_call *call) {
    const mz_tensor *y = mz_in(call, attention_bwd, y), *lse = mz_in(call, attention_bwd, lse);
    layout l = layout_of(call, mz_in(call, attention_bwd, q), mz_in(call, attention_bwd, k), y);
    mezzo_dtype compute = call->numerics.compute;
    double scale = mz_attention_scale(&call->attrs, l.width);
    mz_ref_scratch scratch = mz_ref_scratch_begin(call);
    const double *dy = mz_ref_operand(&scratch, mz_in(call, attention_bwd, dy), compute); // [B, T, H·D]
    const double *q = mz_ref_operand(&scratch, mz_in(call, attention_bwd, q), compute); // [B, T, H·D] or [B, T, 3·H·D]
    const double *k = l.packed ? q + l.k_start : mz_ref_operand(&scratch, mz_in(call, attention_bwd, k), compute);
    const double *v = l.packed ? q + l.v_start : mz_ref_operand(&scratch, mz_in(call, attention_bwd, v), compute);
    const double *out = mz_ref_operand(&scratch, y, MEZZO_F64);
    double *dq = mz_ref_zeros(&scratch, mz_shape_count(&mz_out(call, attention_bwd, dq)->shape));
    double *dk =
        l.packed ? dq + l.k_start : mz_ref_zeros(&scratch, mz_shape_count(&mz_out(call, attention_bwd, dk)->shape));
    double *dv =
        l.packed ? dq + l.v_start : mz_ref_zeros(&scratch, mz_shape_count(&mz_out(call, attention_bwd, dv)->shape));
    for (int64_t b = 0; b < l.batch; b++)
        for (int64_t h = 0; h < l.heads; h++)
            for (int64_t i = 0; i < l.length; i++) {
                int64_t row = ((b * l.length + i) * l.heads + h) * l.width, qi = q_at(&l, b, i, h);
                double delta = 0;
                for (int64_t d = 0; d < l.width; d++)
                    delta += mz_ref_get(mz_in(call, attention_bwd, dy), row + d) * out[row + d];
                for (int64_t j = first_seen(call, &l, mz_in(call, attention_bwd, positions), b, i);
                     j < seen_by(call, &l, i); j++) {
                    int64_t kj = kv_at(&l, b, j, h);
                    double derivative, p = exp(score_of(call, &l, q + qi, k + kj, &derivative) -
                                               mz_ref_get(lse, (b * l.heads + h) * l.length + i));
                    double keep = keep_factor(call, &l, b, h, i, j);
                    double ds = p * (keep * dot(dy + row, v + kj, l.width) - delta) * derivative;
                    for (int64_t d = 0; d < l.width; d++) {
                        dv[kj + d] += p * keep * dy[row + d];
                        dq[qi + d] += scale * ds * k[kj + d];
                        dk[kj + d] += scale * ds * q[qi + d];
                    }
                }
            }
    const double *results[3] = {dq, dk, dv};
    for (int slot = 0; slot < (l.packed ? 1 : 3); slot++)
        for (int64_t i = 0; i < mz_shape_count(&call->out[slot].shape); i++)
            mz_ref_put(&call->out[slot], i, results[slot][i]);
}

// Computes the same with probabilities that are computed again, Δ = Σ p·m·(dy·v), and dmask = Σ p·(m·(dy·v) - Δ) over
// all scores to which a number of the mask is added.
void mz_ref_attention_masked_bwd(const mz_call *call) {
    const mz_tensor *mask = mz_in(call, attention_masked_bwd, mask);
    layout l = layout_of(call, mz_in(call, attention_masked_bwd, q), mz_in(call, attention_masked_bwd, k),
                         mz_in(call, attention_masked_bwd, dy));
    const double scale = mz_attention_scale(&call->attrs, l.width);
    mz_ref_scratch scratch = mz_ref_scratch_begin(call);
    const double *in[4]; // dy q k v
    double *result[4], derivative;
    for (int i = 0; i < 4; i++)
        in[i] = mz_ref_operand(&scratch, &call->in[i], call->numerics.compute);
    for (int i = 0; i < 4; i++) // dq dk dv dmask; NULL: absent
        result[i] = mz_present(&call->out[i]) ? mz_ref_zeros(&scratch, mz_shape_count(&call->out[i].shape)) : NULL;
    for (int64_t row = 0; row < l.batch * l.heads * l.length; row++) {
        const masked_row r = masked_row_of(call, &l, in[1], in[2], mask, row);
        const int64_t qi = q_at(&l, r.b, r.i, r.h);
        const double *dy = in[0] + ((r.b * l.length + r.i) * l.heads + r.h) * l.width;
        double delta = 0;
        for (int pass = 0; pass < 2; pass++)
            for (int64_t j = 0; j < seen_by(call, &l, r.i); j++) {
                const int64_t kj = kv_at(&l, r.b, j, r.h);
                const double p = masked_probability(&r, j, &derivative), keep = keep_factor(call, &l, r.b, r.h, r.i, j),
                             dp = keep * dot(dy, in[3] + kj, l.width), ds = p * (dp - delta);
                if (pass == 0) {
                    delta += p * dp;
                    continue;
                }
                if (result[3] != NULL)
                    result[3][r.at + j] += ds;
                for (int64_t d = 0; d < l.width; d++) {
                    if (result[0] != NULL)
                        result[0][qi + d] += scale * ds * derivative * in[2][kj + d];
                    if (result[1] != NULL)
                        result[1][kj + d] += scale * ds * derivative * in[1][qi + d];
                    if (result[2] != NULL)
                        result[2][kj + d] += p * keep * dy[d];
                }
            }
    }
    for (int slot = 0; slot < 4; slot++)
        for (int64_t i = 0; result[slot] != NULL && i < mz_shape_count(&call->out[slot].shape); i++)
            mz_ref_put(&call->out[slot], i, result[slot][i]);
}
