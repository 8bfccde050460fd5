// Bounds of attention, as bounds.c's.
#include <math.h>

#include "bounds.h"
#include "test.h"

static const double u32 = 0x1p-24;
static const double function_ulps = 8; // as in bounds.c

static bool has(const trial_tensor *t) {
    return mz_present(&t->t);
}

static double through(mezzo_dtype dtype) {
    return dtype == MEZZO_F64 || dtype == MEZZO_F32 ? 0 : unit_roundoff(dtype);
}

// What rounding to a format may lose of a number that is too small for it: half of FP16's smallest subnormal.
static double lost_below(mezzo_dtype dtype) {
    return dtype == MEZZO_F16 ? 0x1p-25 : 0;
}

static double dot_magnitude(const double *a, int64_t a_step, const double *b, int64_t b_step, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += fabs(a[i * a_step] * b[i * b_step]);
    return sum;
}

typedef struct heads {
    int64_t batch, length, keys, heads, group, width, q_row, kv_row, k_start, v_start;
    bool packed, causal;
    const mz_attrs *attrs;
    const int32_t *positions; // NULL: a row is one document
} heads;

static heads heads_of(const trial *t, const trial_tensor *q, const trial_tensor *k, const trial_tensor *y,
                      const trial_tensor *positions) {
    heads s = {.batch = q->t.shape.dim[0], .length = q->t.shape.dim[1], .heads = t->attrs.heads, .group = 1};
    int64_t channels = y->t.shape.dim[2];
    s.width = channels / s.heads;
    s.packed = !has(k);
    s.q_row = s.packed ? 3 * channels : channels;
    s.kv_row = s.packed ? s.q_row : k->t.shape.dim[2];
    s.k_start = s.packed ? channels : 0;
    s.v_start = s.packed ? 2 * channels : 0;
    if (!s.packed)
        s.group = channels / s.kv_row;
    s.keys = s.packed ? s.length : k->t.shape.dim[1];
    s.causal = t->attrs.causal;
    s.attrs = &t->attrs;
    s.positions = positions != NULL && has(positions) ? (const int32_t *)(const void *)positions->stored : NULL;
    return s;
}

static int64_t first_seen(const heads *s, int64_t b, int64_t i) {
    return s->causal ? mz_attention_first(s->attrs, s->positions != NULL ? s->positions + b * s->length : NULL, i) : 0;
}

// How many keys query i sees.
static int64_t seen_by(const heads *s, int64_t i) {
    return s->causal && i + 1 < s->keys ? i + 1 : s->keys;
}

static double keep_factor(const trial *t, const heads *s, int64_t b, int64_t h, int64_t i, int64_t j) {
    if (t->attrs.p == 0)
        return 1;
    uint64_t element = (uint64_t)(((b * s->heads + h) * s->length + i) * s->keys + j);
    uint32_t words[4], step = (uint32_t)(t->rng.step ^ t->rng.step >> 32);
    mz_philox((mz_philox_key){.seed = t->rng.seed, .step = step, .tensor = t->attrs.rng}, element >> 2, words);
    return mz_uniform(words[element & 3]) >= t->attrs.p ? 1 / (1 - (double)t->attrs.p) : 0;
}

// A score's value and its error: (D + 3)·u·Σ|q·k|·scale. A cap's derivative is at most 1, and tanh adds its own error.
static double score(const heads *s, const double *q, const double *k, double *error) {
    const double scale = mz_attention_scale(s->attrs, s->width), cap = (double)s->attrs->score_cap;
    double sum = 0, terms = 0;
    for (int64_t d = 0; d < s->width; d++) {
        sum += q[d] * k[d];
        terms += fabs(q[d] * k[d]);
    }
    *error = (double)(s->width + 3) * u32 * terms * scale;
    if (cap == 0)
        return sum * scale;
    const double capped = cap * tanh(sum * scale / cap);
    *error += (function_ulps + 3) * u32 * fabs(capped);
    return capped;
}

// A probability's relative error: its score's; the subtraction from the maximum; the sum's (n terms, each with its own
// score's error, weighted by the probabilities); exp; and its rounding to the compute format before it meets v.
void bound_attention(trial *t) {
    heads s = heads_of(t, &t->in[0], &t->in[1], &t->out[0], &t->in[3]);
    const double *q = t->in[0].value, *k = s.packed ? q + s.k_start : t->in[1].value;
    const double *v = s.packed ? q + s.v_start : t->in[2].value;
    double *x = mz_alloc((size_t)s.keys, sizeof *x), *error = mz_alloc((size_t)s.keys, sizeof *error);
    assert_true(x != NULL && error != NULL);
    for (int64_t row = 0; row < s.batch * s.heads * s.length; row++) {
        int64_t b = row / (s.heads * s.length), h = row / s.length % s.heads, i = row % s.length;
        const int64_t n = seen_by(&s, i), from = first_seen(&s, b, i);
        double max = -INFINITY, sum = 0, sum_error = 0;
        for (int64_t j = from; j < n; j++) {
            x[j] = score(&s, q + (b * s.length + i) * s.q_row + h * s.width,
                         k + (b * s.keys + j) * s.kv_row + h / s.group * s.width, &error[j]);
            max = fmax(max, x[j]);
        }
        for (int64_t j = from; j < n; j++) {
            error[j] += 2 * u32 * (fabs(x[j]) + fabs(max));
            sum += exp(x[j] - max);
            sum_error += exp(x[j] - max) * error[j];
        }
        double all = sum_error / sum + (double)(n + 2 * (int64_t)function_ulps) * u32;
        for (int64_t d = 0; d < s.width; d++) {
            double total = 0;
            for (int64_t j = from; j < n; j++)
                total += keep_factor(t, &s, b, h, i, j) / sum *
                         fabs(v[(b * s.keys + j) * s.kv_row + h / s.group * s.width + d]) *
                         (lost_below(t->numerics.compute) +
                          exp(x[j] - max) * (error[j] + all + (double)n * u32 + 2 * through(t->numerics.compute)));
            t->out[0].bound[((b * s.length + i) * s.heads + h) * s.width + d] = total;
        }
        if (has(&t->out[1]))
            t->out[1].bound[row] = all + 2 * u32 * (fabs(max) + fabs(max + log(sum)));
    }
    mz_free(x);
    mz_free(error);
}

// The same sums over the rows of the cache as the reference leaves it (`after`).
void bound_attention_cached(trial *t) {
    heads s = heads_of(t, &t->in[0], &t->in[1], &t->out[0], NULL);
    const double *q = t->in[0].value;
    const float *k = (const float *)(const void *)t->in[3].after, *v = (const float *)(const void *)t->in[4].after;
    int64_t size = t->in[3].t.shape.dim[1], row = t->in[3].t.shape.dim[2], group = s.heads / (row / s.width);
    int32_t first;
    memcpy(&first, t->in[5].stored, sizeof first);
    double *x = mz_alloc((size_t)size, sizeof *x), *error = mz_alloc((size_t)size, sizeof *error), key[256];
    assert_true(x != NULL && error != NULL && s.width <= 256);
    for (int64_t at = 0; at < s.batch * s.heads * s.length; at++) {
        int64_t b = at / (s.heads * s.length), h = at / s.length % s.heads, i = at % s.length;
        int64_t n = first + i < size ? first + i + 1 : 0, start = b * size * row + h / group * s.width;
        const int64_t from = n > 0 ? mz_attention_first(&t->attrs, NULL, first + i) : 0;
        double max = -INFINITY, sum = 0, sum_error = 0;
        for (int64_t j = from; j < n; j++) {
            for (int64_t d = 0; d < s.width; d++)
                key[d] = (double)k[start + j * row + d];
            x[j] = score(&s, q + (b * s.length + i) * s.q_row + h * s.width, key, &error[j]);
            max = fmax(max, x[j]);
        }
        for (int64_t j = from; j < n; j++) {
            error[j] += 2 * u32 * (fabs(x[j]) + fabs(max));
            sum += exp(x[j] - max);
            sum_error += exp(x[j] - max) * error[j];
        }
        double all = sum_error / sum + (double)(n + 2 * (int64_t)function_ulps) * u32;
        for (int64_t d = 0; d < s.width; d++) {
            double total = 0;
            for (int64_t j = from; j < n; j++)
                total += exp(x[j] - max) / sum * fabs((double)v[start + j * row + d]) *
                         (error[j] + all + (double)n * u32 + 2 * through(t->numerics.compute));
            t->out[0].bound[((b * s.length + i) * s.heads + h) * s.width + d] = total;
        }
    }
    mz_free(x);
    mz_free(error);
}

// What rounding to a format is off by where its numbers are subnormal: half of the smallest. Only FP16's is of any
// size.
static double half_subnormal(mezzo_dtype dtype) {
    return dtype == MEZZO_F16 ? 0x1p-25 : 0;
}

// The formulas of the reference, with an error beside each number. A kernel may round dS with the scale, which is at
// most 1, already in it: then what is lost among subnormal numbers is not scaled down.
void bound_attention_bwd(trial *t) {
    const trial_tensor *dy = &t->in[0], *y = &t->in[4], *lse = &t->in[5];
    heads s = heads_of(t, &t->in[1], &t->in[2], y, &t->in[6]);
    const double *q = t->in[1].value, *k = s.packed ? q + s.k_start : t->in[2].value;
    const double *v = s.packed ? q + s.v_start : t->in[3].value;
    double *dq = t->out[0].bound, *dk = s.packed ? dq + s.k_start : t->out[1].bound;
    double *dv = s.packed ? dq + s.v_start : t->out[2].bound;
    double scale = mz_attention_scale(s.attrs, s.width), cap = (double)s.attrs->score_cap,
           u_c = through(t->numerics.compute);
    double tiny = half_subnormal(t->numerics.compute);
    for (int64_t row = 0; row < s.batch * s.heads * s.length; row++) {
        int64_t b = row / (s.heads * s.length), h = row / s.length % s.heads, i = row % s.length;
        const double *dyi = dy->value + ((b * s.length + i) * s.heads + h) * s.width;
        const double *yi = y->value + ((b * s.length + i) * s.heads + h) * s.width;
        int64_t qi = (b * s.length + i) * s.q_row + h * s.width;
        double delta = 0, delta_error = (double)s.width * u32 * dot_magnitude(dyi, 1, yi, 1, s.width);
        for (int64_t d = 0; d < s.width; d++)
            delta += dyi[d] * yi[d];
        for (int64_t j = first_seen(&s, b, i); j < seen_by(&s, i); j++) {
            int64_t kj = (b * s.keys + j) * s.kv_row + h / s.group * s.width;
            double x_error,
                dp = 0,
                terms = (double)((s.keys > s.length ? s.keys : s.length) + 4) * u32; // of the sums over positions
            double x = score(&s, q + qi, k + kj, &x_error);
            double p = exp(x - lse->value[row]), keep = keep_factor(t, &s, b, h, i, j);
            double p_error = x_error + 2 * u32 * (fabs(x) + fabs(lse->value[row])) + function_ulps * u32;
            for (int64_t d = 0; d < s.width; d++)
                dp += keep * dyi[d] * v[kj + d];
            double dp_error = keep * (double)(s.width + 2) * u32 * dot_magnitude(dyi, 1, v + kj, 1, s.width);
            double ds = p * fabs(dp - delta);
            double ds_error = ds * p_error + p * (dp_error + delta_error + u32 * (fabs(dp) + fabs(delta))) + u_c * ds;
            if (cap > 0) { // times 1 - (x/cap)²
                const double ratio = x / cap, derivative = 1 - ratio * ratio;
                ds_error =
                    ds_error * derivative + ds * (2 * fabs(ratio) * (x_error / cap + u32 * fabs(ratio)) + 3 * u32);
                ds *= derivative;
            }
            for (int64_t d = 0; d < s.width; d++) {
                dv[kj + d] += keep * fabs(dyi[d]) * (p * (p_error + u_c + terms * (double)s.group) + tiny);
                dq[qi + d] += fabs(k[kj + d]) * (scale * (ds_error + terms * ds) + tiny);
                dk[kj + d] += fabs(q[qi + d]) * (scale * (ds_error + terms * (double)s.group * ds) + tiny);
            }
        }
    }
}

// --- with a mask ---------------------------------------------------------------------------------------------------
// A row of scores with its mask, of probabilities, and the relative errors of both. Returns the key after the last one
// that is seen.
typedef struct masked_row {
    double *x, *p, *error, *derivative; // [keys]; the cap's
} masked_row;

static masked_row masked_row_new(const heads *s) {
    double *all = mz_alloc(4 * (size_t)s->keys, sizeof *all);
    assert_non_null(all);
    return (masked_row){all, all + s->keys, all + 2 * s->keys, all + 3 * s->keys};
}

static int64_t mask_at(const trial_tensor *mask, int64_t b, int64_t h, int64_t i) {
    const int64_t *dim = mask->t.shape.dim;
    return (((dim[0] > 1 ? b : 0) * dim[1] + (dim[1] > 1 ? h : 0)) * dim[2] + (dim[2] > 1 ? i : 0)) * dim[3];
}

static int64_t masked_probabilities(const heads *s, const double *q, const double *k, const trial_tensor *mask,
                                    int64_t b, int64_t h, int64_t i, masked_row *r) {
    const int64_t n = seen_by(s, i), at = mask_at(mask, b, h, i);
    const double cap = (double)s->attrs->score_cap;
    double max = -INFINITY, sum = 0, sum_error = 0;
    for (int64_t j = 0; j < n; j++) {
        r->x[j] = score(s, q + (b * s->length + i) * s->q_row + h * s->width,
                        k + (b * s->keys + j) * s->kv_row + h / s->group * s->width, &r->error[j]);
        r->derivative[j] = cap > 0 ? 1 - r->x[j] * r->x[j] / (cap * cap) : 1;
        r->x[j] += mask->value[at + j];
        r->error[j] += u32 * fabs(r->x[j]);
        max = fmax(max, r->x[j]);
    }
    for (int64_t j = 0; j < n; j++) {
        r->p[j] = exp(r->x[j] - max);
        r->error[j] = r->p[j] > 0 ? r->error[j] + 2 * u32 * (fabs(r->x[j]) + fabs(max)) : 0; // 0 is exact
        sum += r->p[j];
        sum_error += r->p[j] * r->error[j];
    }
    for (int64_t j = 0; j < n; j++) {
        r->p[j] /= sum;
        r->error[j] += sum_error / sum + (double)(n + 2 * (int64_t)function_ulps) * u32;
    }
    return n;
}

void bound_attention_masked(trial *t) {
    heads s = heads_of(t, &t->in[0], &t->in[1], &t->out[0], NULL);
    masked_row r = masked_row_new(&s);
    for (int64_t row = 0; row < s.batch * s.heads * s.length; row++) {
        int64_t b = row / (s.heads * s.length), h = row / s.length % s.heads, i = row % s.length;
        const int64_t n = masked_probabilities(&s, t->in[0].value, t->in[1].value, &t->in[3], b, h, i, &r);
        for (int64_t d = 0; d < s.width; d++) {
            double total = 0;
            for (int64_t j = 0; j < n; j++)
                total += keep_factor(t, &s, b, h, i, j) *
                         fabs(t->in[2].value[(b * s.keys + j) * s.kv_row + h / s.group * s.width + d]) *
                         (lost_below(t->numerics.compute) +
                          r.p[j] * (r.error[j] + (double)n * u32 + 2 * through(t->numerics.compute)));
            t->out[0].bound[((b * s.length + i) * s.heads + h) * s.width + d] = total;
        }
    }
    mz_free(r.x);
}

// Δ = Σ p·dp is computed over the keys, so each of its terms has the errors of p and dp.
void bound_attention_masked_bwd(trial *t) {
    const trial_tensor *dy = &t->in[0], *mask = &t->in[4];
    heads s = heads_of(t, &t->in[1], &t->in[2], dy, NULL);
    const double *q = t->in[1].value, *k = t->in[2].value, *v = t->in[3].value, u_c = through(t->numerics.compute),
                 scale = mz_attention_scale(s.attrs, s.width), tiny = half_subnormal(t->numerics.compute);
    masked_row r = masked_row_new(&s);
    double *dp = mz_alloc(2 * (size_t)s.keys, sizeof *dp), *dp_error = dp + s.keys;
    assert_non_null(dp);
    for (int64_t row = 0; row < s.batch * s.heads * s.length; row++) {
        int64_t b = row / (s.heads * s.length), h = row / s.length % s.heads, i = row % s.length;
        const double *dyi = dy->value + ((b * s.length + i) * s.heads + h) * s.width;
        const int64_t n = masked_probabilities(&s, q, k, mask, b, h, i, &r), at = mask_at(mask, b, h, i);
        double delta = 0, delta_error = 0;
        for (int64_t j = 0; j < n; j++) {
            const double *vj = v + (b * s.keys + j) * s.kv_row + h / s.group * s.width;
            const double keep = keep_factor(t, &s, b, h, i, j);
            dp[j] = 0;
            for (int64_t d = 0; d < s.width; d++)
                dp[j] += keep * dyi[d] * vj[d];
            dp_error[j] = keep * (double)(s.width + 2) * u32 * dot_magnitude(dyi, 1, vj, 1, s.width);
            delta += r.p[j] * dp[j];
            delta_error += r.p[j] * (fabs(dp[j]) * (r.error[j] + (double)n * u32) + dp_error[j]);
        }
        for (int64_t j = 0; j < n; j++) {
            const int64_t kj = (b * s.keys + j) * s.kv_row + h / s.group * s.width,
                          qi = (b * s.length + i) * s.q_row + h * s.width;
            const double keep = keep_factor(t, &s, b, h, i, j), ds = r.p[j] * fabs(dp[j] - delta),
                         terms = (double)((s.keys > s.length ? s.keys : s.length) + 4) * u32;
            const double ds_error =
                ds * r.error[j] + r.p[j] * (dp_error[j] + delta_error + 2 * u32 * (fabs(dp[j]) + fabs(delta)));
            const double slope = r.derivative[j], x_error = r.error[j] + (function_ulps + 6) * u32,
                         dx = ds * fabs(slope), dx_error = (ds_error + u_c * ds) * fabs(slope) + 4 * ds * x_error;
            if (mz_present(&t->out[3].t))
                t->out[3].bound[at + j] += ds_error + (double)(s.batch * s.heads * s.length) * u32 * ds;
            for (int64_t d = 0; d < s.width; d++) {
                t->out[2].bound[kj + d] +=
                    keep * fabs(dyi[d]) * (r.p[j] * (r.error[j] + u_c + terms * (double)s.group) + tiny);
                t->out[0].bound[qi + d] += fabs(k[kj + d]) * (scale * (dx_error + terms * dx) + tiny);
                t->out[1].bound[kj + d] += fabs(q[qi + d]) * (scale * (dx_error + terms * (double)s.group * dx) + tiny);
            }
        }
    }
    mz_free(dp);
    mz_free(r.x);
}
