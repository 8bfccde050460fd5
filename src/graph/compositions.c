// Composes layers, losses and tables of simpler ops. Shapes in comments use the letters of ops.def.
#include "graph/build.h"
#include "graph/compose.h"

// Returns the value of an input slot, which the composition then counts as read.
static mezzo_value input(mz_composition *c, int slot) {
    c->read |= 1U << slot;
    return c->in[slot];
}
#define IN(op, slot)      input(c, MZ_IN(op, slot))
#define GIVE(op, slot, v) (c->out[MZ_OUT(op, slot)] = (v))
#define VIEW(v, ...)                                                                                                   \
    mezzo_reshape(c->g, v, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]){__VA_ARGS__})
#define PERMUTE(v, ...) mezzo_permute(c->g, v, (int[]){__VA_ARGS__})

static bool present(mezzo_value v) {
    return v.id >= 0;
}
static const mz_shape *shape_of(const mz_composition *c, mezzo_value v) {
    static const mz_shape none = {1, {1}};
    return present(v) && (size_t)v.id < c->g->n_values ? &c->g->values[v.id].shape : &none;
}
static int64_t last_of(const mz_composition *c, mezzo_value v) {
    return mezzo_value_dim(c->g, v, -1);
}
static mezzo_value viewed_as(mz_composition *c, mezzo_value v, const mz_shape *shape) {
    return mezzo_reshape(c->g, v, shape->rank, shape->dim);
}
static mezzo_value number(mz_composition *c, double x) {
    return mz_compose_number(c, x);
}
static mezzo_value times(mz_composition *c, mezzo_value v, double factor) {
    return mezzo_mul(c->g, v, number(c, factor));
}
static mezzo_value plus(mz_composition *c, mezzo_value v, double term) {
    return mezzo_add(c->g, v, number(c, term));
}
// Reduces the last dimension to one element, and keeps it.
static mezzo_value over_last(mz_composition *c, mezzo_reduction reduction, mezzo_value v) {
    return mezzo_reduce(c->g, reduction, v, 1, (const int[]){-1}, true);
}
static mezzo_value as_numbers(mz_composition *c, mezzo_value integers) {
    return mezzo_cast(c->g, integers, MEZZO_F32);
}
// Returns exp(x - shift) and its row sums. shift, the integer part of the row's largest number, has no gradient.
static mezzo_value exponentials(mz_composition *c, mezzo_value x, mezzo_value *shift, mezzo_value *sum) {
    *shift = mezzo_floor(c->g, over_last(c, MEZZO_REDUCE_MAX, x));
    const mezzo_value e = mezzo_exp(c->g, mezzo_sub(c->g, x, *shift));
    *sum = over_last(c, MEZZO_REDUCE_SUM, e);
    return e;
}
// Makes a constant FP32 [n] of numbers that are known now.
static mezzo_value vector(mz_composition *c, const float *numbers, int64_t n) {
    mezzo_value part[MZ_MAX_IN];
    const int64_t one = 1, each = (n + MZ_MAX_IN - 1) / MZ_MAX_IN;
    int parts = 0;
    if (n == 1)
        return mezzo_constant(c->g, MEZZO_F32, numbers[0], 1, &one);
    for (int64_t at = 0; at < n; at += each)
        part[parts++] = vector(c, numbers + at, at + each < n ? each : n - at);
    return parts == 1 ? part[0] : mezzo_concat(c->g, part, parts, 0);
}

// --- products ------------------------------------------------------------------------------------------------------
void mz_compose_linear(mz_composition *c) {
    const mezzo_value x = IN(linear, x), w = IN(linear, w), bias = IN(linear, bias);
    mz_shape shape = *shape_of(c, x);
    if (c->attrs->act != MZ_ACT_NONE)
        return;
    shape.dim[shape.rank - 1] = mezzo_value_dim(c->g, w, 0);
    mezzo_value y = mezzo_matmul(c->g, VIEW(x, -1, last_of(c, x)), w, false, true);
    y = present(bias) ? mezzo_add(c->g, y, bias) : y;
    GIVE(linear, y, viewed_as(c, y, &shape));
}

// Computes every expert's product of all rows; a row takes its own expert's. x [R, K], w [E, N, K].
void mz_compose_grouped_linear(mz_composition *c) {
    mezzo_graph *g = c->g;
    const mezzo_value x = IN(grouped_linear, x), w = IN(grouped_linear, w), offsets = IN(grouped_linear, offsets);
    const int64_t rows = mezzo_value_dim(g, x, 0), experts = mezzo_value_dim(g, w, 0);
    const mezzo_value row = VIEW(mezzo_arange(g, rows), 1, rows, 1);
    const mezzo_value first = VIEW(mezzo_slice(g, offsets, 0, 0, experts), experts, 1, 1),
                      end = VIEW(mezzo_slice(g, offsets, 0, 1, experts + 1), experts, 1, 1);
    const mezzo_value own = mezzo_logical_and(g, mezzo_less_equal(g, first, row), mezzo_less(g, row, end)); // [E, R, 1]
    const mezzo_value mine = mezzo_where(g, own, VIEW(x, 1, rows, last_of(c, x)), number(c, 0));
    GIVE(grouped_linear, y, mezzo_sum(g, mezzo_where(g, own, mezzo_matmul(g, mine, w, false, true), number(c, 0)), 0));
}

// Multiplies the taps of each pixel, side by side, by the weights; each group of channels has a product of its own.
void mz_compose_conv2d(mz_composition *c) {
    mezzo_graph *g = c->g;
    const mezzo_value w = IN(conv2d, w), bias = IN(conv2d, bias); // [N, R, S, C/groups]
    const mz_attrs *a = c->attrs;
    const mz_shape ws = *shape_of(c, w), xs = *shape_of(c, IN(conv2d, x));
    const int64_t before[] = {0, a->pad_before, a->pad_before, 0}, after[] = {0, a->pad_after, a->pad_after, 0};
    mezzo_value x = mezzo_pad(g, c->in[MZ_IN(conv2d, x)], before, after, 0);
    int64_t size[2];
    for (int axis = 1; axis <= 2; axis++) { // rows, then columns: [B, R·P, W, C], [B, R·P, S·Q, C]
        const int64_t taps = ws.dim[axis], n = (mezzo_value_dim(g, x, axis) - taps) / a->stride + 1;
        mezzo_value at[MZ_MAX_IN];
        if (taps > MZ_MAX_IN)
            return;
        for (int64_t tap = 0; tap < taps; tap++)
            at[tap] = mezzo_range(g, tap, a->stride, n);
        x = mezzo_gather(g, x, axis, taps > 1 ? mezzo_concat(g, at, (int)taps, 0) : at[0], false);
        size[axis - 1] = n;
    }
    const int64_t r = ws.dim[1], s = ws.dim[2], n = ws.dim[0], groups = a->groups, depth = ws.dim[3],
                  pixels = xs.dim[0] * size[0] * size[1];
    x = PERMUTE(VIEW(x, xs.dim[0], r, size[0], s, size[1], xs.dim[3]), 0, 2, 4, 1, 3, 5);
    x = PERMUTE(VIEW(x, pixels, r * s, groups, depth), 2, 0, 1, 3);
    mezzo_value y = mezzo_matmul(g, VIEW(x, groups, pixels, r * s * depth), VIEW(w, groups, n / groups, r * s * depth),
                                 false, true);
    y = VIEW(PERMUTE(y, 1, 0, 2), xs.dim[0], size[0], size[1], n);
    GIVE(conv2d, y, present(bias) ? mezzo_add(g, y, bias) : y);
}

// --- attention -----------------------------------------------------------------------------------------------------
// Returns I32 [B or 1, 1, Tq, Tk]: 1 where query i sees key j.
static mezzo_value sees(mz_composition *c, mezzo_value positions, int64_t queries, int64_t keys) {
    mezzo_graph *g = c->g;
    const mezzo_value i = VIEW(mezzo_arange(g, queries), 1, 1, queries, 1),
                      j = VIEW(mezzo_arange(g, keys), 1, 1, 1, keys);
    mezzo_value seen = mezzo_less_equal(g, j, i);
    if (c->attrs->window > 0 && c->attrs->window < queries)
        seen = mezzo_logical_and(g, seen,
                                 mezzo_less(g, i, VIEW(mezzo_range(g, c->attrs->window, 1, keys), 1, 1, 1, keys)));
    if (!present(positions))
        return seen;
    const mezzo_value before = mezzo_maximum(g, as_numbers(c, positions), number(c, 0)), // the number of earlier keys
                                                                                         // that it sees
        distance = mezzo_sub(g, as_numbers(c, i), as_numbers(c, j));
    return mezzo_logical_and(
        g, seen, mezzo_less_equal(g, distance, VIEW(before, mezzo_value_dim(g, positions, 0), 1, queries, 1)));
}

// q [B, Hkv, shared·Tq, D], k and v [B, Hkv, Tk, D]: query heads that share a key head are rows of one product.
typedef struct head_rows {
    int64_t batch, queries, keys, heads, kv, shared, width;
    mezzo_value q, k, v;
} head_rows;

static head_rows heads_of(mz_composition *c, mezzo_value q, mezzo_value k, mezzo_value v) {
    mezzo_graph *g = c->g;
    head_rows h = {.heads = c->attrs->heads};
    if (!present(k)) { // q, k and v lie side by side in one tensor
        const int64_t channels = last_of(c, q) / 3;
        v = mezzo_slice(g, q, 2, 2 * channels, 3 * channels);
        k = mezzo_slice(g, q, 2, channels, 2 * channels);
        q = mezzo_slice(g, q, 2, 0, channels);
    }
    h.batch = mezzo_value_dim(g, q, 0);
    h.queries = mezzo_value_dim(g, q, 1);
    h.keys = mezzo_value_dim(g, k, 1);
    h.width = last_of(c, q) / h.heads;
    h.kv = last_of(c, k) / h.width;
    h.shared = h.heads / h.kv;
    h.q = VIEW(PERMUTE(VIEW(q, h.batch, h.queries, h.kv, h.shared, h.width), 0, 2, 3, 1, 4), h.batch, h.kv,
               h.shared * h.queries, h.width);
    h.k = PERMUTE(VIEW(k, h.batch, h.keys, h.kv, h.width), 0, 2, 1, 3);
    h.v = PERMUTE(VIEW(v, h.batch, h.keys, h.kv, h.width), 0, 2, 1, 3);
    return h;
}

// Returns the scores, [B, H, Tq, Tk].
static mezzo_value scores_of(mz_composition *c, const head_rows *h) {
    mezzo_graph *g = c->g;
    mezzo_value s = times(c, mezzo_matmul(g, h->q, h->k, false, true), mz_attention_scale(c->attrs, h->width));
    s = VIEW(s, h->batch, h->heads, h->queries, h->keys);
    return c->attrs->score_cap > 0 ? mezzo_softcap(g, s, c->attrs->score_cap) : s;
}

// Returns p times the values, [B, Tq, H, D].
static mezzo_value weigh_values(mz_composition *c, const head_rows *h, mezzo_value p) {
    mezzo_graph *g = c->g;
    const mz_attrs *a = c->attrs;
    mezzo_value y = a->p > 0 ? mz_build_unary(g, MZ_OP_dropout, p, (mz_attrs){.p = a->p, .rng = a->rng}) : p;
    y = mezzo_matmul(g, VIEW(y, h->batch, h->kv, h->shared * h->queries, h->keys), h->v, false, false);
    y = PERMUTE(VIEW(y, h->batch, h->kv, h->shared, h->queries, h->width), 0, 3, 1, 2, 4);
    return VIEW(y, h->batch, h->queries, h->heads, h->width);
}

void mz_compose_attention(mz_composition *c) {
    mezzo_graph *g = c->g;
    const head_rows h = heads_of(c, IN(attention, q), IN(attention, k), IN(attention, v));
    mezzo_value s = scores_of(c, &h), shift, sum;
    if (c->attrs->causal)
        s = mezzo_where(g, sees(c, IN(attention, positions), h.queries, h.keys), s, number(c, -INFINITY));
    const mezzo_value known = c->known[MZ_OUT(attention, lse)], result = c->known[MZ_OUT(attention, y)];
    mezzo_value p = exponentials(c, s, &shift, &sum);
    p = present(known) ? mezzo_exp(g, mezzo_sub(g, s, VIEW(known, h.batch, h.heads, h.queries, 1)))
                       : mezzo_div(g, p, sum);
    mezzo_value y = weigh_values(c, &h, p);
    if (present(result)) { // y depends on lse, which p takes as known, by -Σp · result
        const mezzo_value all = PERMUTE(over_last(c, MEZZO_REDUCE_SUM, p), 0, 2, 1, 3);
        y = mezzo_sub(g, y, mezzo_mul(g, all, VIEW(result, h.batch, h.queries, h.heads, h.width)));
    }
    GIVE(attention, y, VIEW(y, h.batch, h.queries, h.heads * h.width));
    GIVE(attention, lse, VIEW(mezzo_add(g, shift, mezzo_log(g, sum)), h.batch, h.heads, h.queries));
}

void mz_compose_attention_masked(mz_composition *c) {
    mezzo_graph *g = c->g;
    const head_rows h = heads_of(c, IN(attention_masked, q), IN(attention_masked, k), IN(attention_masked, v));
    mezzo_value s = mezzo_add(g, scores_of(c, &h), IN(attention_masked, mask));
    if (c->attrs->causal)
        s = mezzo_where(g, sees(c, MEZZO_NONE, h.queries, h.keys), s, number(c, -INFINITY));
    const mezzo_value y = weigh_values(c, &h, mezzo_softmax(g, s));
    GIVE(attention_masked, y, VIEW(y, h.batch, h.queries, h.heads * h.width));
}

// --- norms, softmax, losses ----------------------------------------------------------------------------------------
// Returns (x - mean)/√(variance + eps) over some dimensions of x, which mean and rstd keep with one element.
static mezzo_value normalized(mz_composition *c, mezzo_value x, int n, const int *axes, mezzo_value *mean,
                              mezzo_value *rstd) {
    mezzo_graph *g = c->g;
    *mean = mezzo_reduce(g, MEZZO_REDUCE_MEAN, x, n, axes, true);
    const mezzo_value d = mezzo_sub(g, x, *mean);
    const mezzo_value variance = mezzo_reduce(g, MEZZO_REDUCE_MEAN, mezzo_mul(g, d, d), n, axes, true);
    *rstd = mezzo_reciprocal(g, mezzo_sqrt(g, plus(c, variance, (double)c->attrs->eps)));
    return mezzo_mul(g, d, *rstd);
}

void mz_compose_layernorm(mz_composition *c) {
    mezzo_graph *g = c->g;
    const mezzo_value weight = IN(layernorm, weight), bias = IN(layernorm, bias);
    mezzo_value mean, rstd, y = normalized(c, IN(layernorm, x), 1, (const int[]){-1}, &mean, &rstd);
    y = present(weight) ? mezzo_mul(g, y, weight) : y;
    GIVE(layernorm, y, present(bias) ? mezzo_add(g, y, bias) : y);
    GIVE(layernorm, mean, VIEW(mean, -1));
    GIVE(layernorm, rstd, VIEW(rstd, -1));
}

void mz_compose_rmsnorm(mz_composition *c) {
    mezzo_graph *g = c->g;
    const mezzo_value x = IN(rmsnorm, x), weight = IN(rmsnorm, weight);
    const mezzo_value square = over_last(c, MEZZO_REDUCE_MEAN, mezzo_mul(g, x, x)),
                      rstd = mezzo_reciprocal(g, mezzo_sqrt(g, plus(c, square, (double)c->attrs->eps))),
                      y = mezzo_mul(g, x, rstd);
    GIVE(rmsnorm, y, present(weight) ? mezzo_mul(g, y, plus(c, weight, (double)c->attrs->offset)) : y);
    GIVE(rmsnorm, rstd, VIEW(rstd, -1));
}

// Computes on x as [B, pixels, groups, channels of a group].
void mz_compose_group_norm(mz_composition *c) {
    mezzo_graph *g = c->g;
    const mezzo_value x = IN(group_norm, x), weight = IN(group_norm, weight), bias = IN(group_norm, bias),
                      film = IN(group_norm, film);
    const int64_t batch = mezzo_value_dim(g, x, 0), channels = last_of(c, x), groups = c->attrs->groups;
    const mz_shape shape = *shape_of(c, x);
    mezzo_value mean, rstd,
        y = normalized(c, VIEW(x, batch, -1, groups, channels / groups), 2, (const int[]){1, 3}, &mean, &rstd);
    y = VIEW(y, batch, -1, channels);
    y = present(weight) ? mezzo_mul(g, y, weight) : y;
    y = present(bias) ? mezzo_add(g, y, bias) : y;
    if (present(film)) {
        const mezzo_value by = VIEW(film, batch, 1, 2 * channels);
        y = mezzo_mul(g, y, plus(c, mezzo_slice(g, by, 2, 0, channels), 1));
        y = mezzo_add(g, y, mezzo_slice(g, by, 2, channels, 2 * channels));
    }
    y = c->attrs->act == MZ_ACT_SILU ? mezzo_silu(g, y) : y;
    GIVE(group_norm, y, viewed_as(c, y, &shape));
    GIVE(group_norm, mean, VIEW(mean, batch, groups));
    GIVE(group_norm, rstd, VIEW(rstd, batch, groups));
}

void mz_compose_softmax(mz_composition *c) {
    mezzo_value shift, sum, e = exponentials(c, IN(softmax, x), &shift, &sum);
    GIVE(softmax, y, mezzo_div(c->g, e, sum));
}

void mz_compose_softmax_dx(mz_composition *c) {
    mezzo_graph *g = c->g;
    const mezzo_value y = IN(softmax_dx, y), dy = IN(softmax_dx, dy);
    const mezzo_value mean = over_last(c, MEZZO_REDUCE_SUM, mezzo_mul(g, dy, y));
    GIVE(softmax_dx, dx, mezzo_mul(g, y, mezzo_sub(g, dy, mean)));
}

// A target that is no class makes its row's factor NaN, so that loss and gradient are NaN.
void mz_compose_cross_entropy(mz_composition *c) {
    mezzo_graph *g = c->g;
    mezzo_value x = IN(cross_entropy, logits), shift, sum;
    const int64_t classes = last_of(c, x), rows = mz_shape_count(shape_of(c, x)) / classes, first = c->attrs->first_row;
    const mezzo_value all = VIEW(IN(cross_entropy, targets), -1, 1), zero = number(c, 0), one = number(c, 1);
    const mezzo_value ignored = number(c, (double)c->attrs->ignore_index);
    const mezzo_value counted =
        mezzo_maximum(g, mezzo_sum(g, mezzo_where(g, mezzo_equal(g, all, ignored), zero, one), -1), one);
    const mezzo_value target = mezzo_slice(g, all, 0, first, first + rows), known = mezzo_not_equal(g, target, ignored);
    x = VIEW(x, rows, classes);
    x = c->attrs->score_cap > 0 ? mezzo_softcap(g, x, c->attrs->score_cap) : x;
    exponentials(c, x, &shift, &sum);
    const mezzo_value lse = mezzo_add(g, shift, mezzo_log(g, sum));
    const mezzo_value beyond =
        mezzo_logical_or(g, mezzo_less(g, target, zero), mezzo_less_equal(g, number(c, (double)classes), target));
    const mezzo_value valid = mezzo_where(g, mezzo_logical_and(g, known, beyond), number(c, (double)NAN), one);
    const mezzo_value loss = mezzo_mul(g, mezzo_sub(g, lse, mezzo_gather(g, x, 1, target, true)), valid);
    GIVE(cross_entropy, loss, mezzo_div(g, mezzo_sum(g, mezzo_where(g, known, loss, zero), -1), counted));
    GIVE(cross_entropy, lse, VIEW(lse, rows));
}

void mz_compose_mse(mz_composition *c) {
    const mezzo_value d = mezzo_sub(c->g, IN(mse, x), IN(mse, target));
    GIVE(mse, loss, mezzo_mean(c->g, mezzo_mul(c->g, d, d), -1));
}

// --- activations ---------------------------------------------------------------------------------------------------
void mz_compose_gelu(mz_composition *c) {
    mezzo_graph *g = c->g;
    const mezzo_value x = IN(gelu, x), cube = mezzo_mul(g, mezzo_mul(g, x, x), x);
    const mezzo_value inner = c->attrs->tanh ? times(c, mezzo_add(g, x, times(c, cube, 0.044715)), 0.79788456080286536)
                                             : times(c, x, 0.70710678118654752);
    const mezzo_value t = c->attrs->tanh ? mezzo_tanh(g, inner) : mezzo_erf(g, inner);
    GIVE(gelu, y, mezzo_mul(g, times(c, x, 0.5), plus(c, t, 1)));
}

void mz_compose_swiglu(mz_composition *c) {
    const mezzo_value x = IN(swiglu, x);
    const int64_t n = last_of(c, x) / 2;
    const int axis = shape_of(c, x)->rank - 1;
    const mezzo_value gate = mezzo_slice(c->g, x, axis, 0, n), up = mezzo_slice(c->g, x, axis, n, 2 * n);
    const mz_act act = c->attrs->act;
    const mezzo_value open =
        act == MZ_ACT_NONE ? mezzo_silu(c->g, gate) : mezzo_gelu(c->g, gate, act == MZ_ACT_GELU_TANH);
    GIVE(swiglu, y, mezzo_mul(c->g, open, up));
}

// --- tables --------------------------------------------------------------------------------------------------------
// An id outside the table gives NaN. `gather` alone would count a negative id from the end.
void mz_compose_embedding(mz_composition *c) {
    mezzo_graph *g = c->g;
    const mezzo_value ids = IN(embedding, ids);
    mz_shape shape = *shape_of(c, ids);
    const mezzo_value rows = mezzo_gather(g, IN(embedding, table), 0, ids, false);
    shape.dim[shape.rank++] = 1;
    const mezzo_value beyond = mezzo_less(g, viewed_as(c, ids, &shape), number(c, 0));
    GIVE(embedding, y, mezzo_where(g, beyond, number(c, (double)NAN), rows));
}

enum { MAX_FREQUENCIES = 1024 };
static mezzo_value turned(mz_composition *c, mezzo_value times_of, const float *frequency, int64_t n,
                          double amplitude) {
    const mezzo_value angle = mezzo_mul(c->g, VIEW(times_of, -1, 1), vector(c, frequency, n));
    const mezzo_value both[2] = {mezzo_cos(c->g, angle), mezzo_sin(c->g, angle)};
    const mezzo_value table = mezzo_concat(c->g, both, 2, 1);
    return amplitude == 1 ? table : times(c, table, amplitude);
}

// Frequencies are FP32 numbers, as in the models' published code.
void mz_compose_rope_table(mz_composition *c) {
    const mezzo_value positions = IN(rope_table, positions);
    const int64_t rows = c->shape[0].dim[0], dims = c->shape[0].dim[1], n = dims / 2;
    const mz_rope_scaling *s = &c->attrs->rope;
    float frequency[MAX_FREQUENCIES];
    if (n > MAX_FREQUENCIES)
        return;
    for (int64_t i = 0; i < n; i++) {
        const float f = 1 / (float)pow((double)c->attrs->theta, (double)((float)(2 * i) / (float)dims));
        float kept = s->offset + s->slope * (s->by_index ? (float)i : f);
        kept = kept < 0 ? 0 : kept > 1 ? 1 : kept;
        frequency[i] = s->divisor > 0 ? f * kept + f / s->divisor * (1 - kept) : f;
    }
    GIVE(rope_table, table,
         turned(c, as_numbers(c, present(positions) ? positions : mezzo_arange(c->g, rows)), frequency, n,
                s->divisor > 0 ? (double)s->amplitude : 1));
}

void mz_compose_time_embedding(mz_composition *c) {
    const int64_t n = c->shape[0].dim[1] / 2;
    float frequency[MAX_FREQUENCIES];
    if (n > MAX_FREQUENCIES)
        return;
    for (int64_t i = 0; i < n; i++)
        frequency[i] = (float)((double)c->attrs->alpha * pow((double)c->attrs->theta, -(double)i / (double)n));
    GIVE(time_embedding, y, turned(c, IN(time_embedding, times), frequency, n, 1));
}

// A pair (a, b) becomes (a·cos - b·sin, b·cos + a·sin). x as [B, T, heads, D], the table as [B or 1, T, 1, pairs].
void mz_compose_rope(mz_composition *c) {
    mezzo_graph *g = c->g;
    const mz_attrs *attrs = c->attrs;
    const mezzo_value x = IN(rope, x), table = IN(rope, table);
    const mz_shape shape = *shape_of(c, x);
    const int64_t batch = shape.dim[0], length = shape.dim[1], heads = attrs->heads, turning = attrs->rotated,
                  width = shape.dim[2] / heads, dims = last_of(c, table), n = dims / 2;
    const bool apart = attrs->interleaved;
    const mezzo_value all = VIEW(x, batch, length, heads, width), rows = VIEW(table, -1, length, 1, dims);
    const mezzo_value cosine = mezzo_slice(g, rows, 3, 0, n), up = mezzo_slice(g, rows, 3, n, dims);
    const mezzo_value sine = attrs->inverse ? times(c, up, -1) : up;
    mezzo_value part[2], pair = mezzo_slice(g, mezzo_slice(g, all, 2, 0, turning), 3, 0, dims);
    pair = VIEW(pair, batch, length, turning, apart ? n : 2, apart ? 2 : n);
    for (int i = 0; i < 2; i++)
        part[i] = VIEW(mezzo_slice(g, pair, apart ? 4 : 3, i, i + 1), batch, length, turning, n);
    mezzo_value now[2] = {mezzo_sub(g, mezzo_mul(g, part[0], cosine), mezzo_mul(g, part[1], sine)),
                          mezzo_add(g, mezzo_mul(g, part[1], cosine), mezzo_mul(g, part[0], sine))};
    for (int i = 0; i < 2; i++)
        now[i] = VIEW(now[i], batch, length, turning, apart ? n : 1, apart ? 1 : n);
    mezzo_value y = VIEW(mezzo_concat(g, now, 2, apart ? 4 : 3), batch, length, turning, dims);
    if (dims < width)
        y = mezzo_concat(
            g, (const mezzo_value[]){y, mezzo_slice(g, mezzo_slice(g, all, 2, 0, turning), 3, dims, width)}, 2, 3);
    if (turning < heads)
        y = mezzo_concat(g, (const mezzo_value[]){y, mezzo_slice(g, all, 2, turning, heads)}, 2, 2);
    GIVE(rope, y, viewed_as(c, y, &shape));
}

// --- mixture of experts --------------------------------------------------------------------------------------------
// Returns I32 [M, n], 1 at the index of the row's largest, and the indices *index [M, 1].
static mezzo_value largest(mz_composition *c, mezzo_value x, mezzo_value *index) {
    const int64_t rows = mezzo_value_dim(c->g, x, 0), n = last_of(c, x);
    *index = VIEW(mezzo_argmax(c->g, x, 1), rows, 1);
    return mezzo_equal(c->g, *index, VIEW(mezzo_arange(c->g, n), 1, n));
}

// Returns the scores that choose experts, -∞ outside the best groups. The sum of a group's two best scores ranks it.
static mezzo_value within_groups(mz_composition *c, mezzo_value choice) {
    mezzo_graph *g = c->g;
    const int64_t rows = mezzo_value_dim(g, choice, 0), experts = last_of(c, choice), groups = c->attrs->groups;
    const mezzo_value lowest = number(c, -INFINITY), by_group = VIEW(choice, rows * groups, experts / groups);
    mezzo_value index, used = MEZZO_NONE;
    const mezzo_value second = mezzo_where(g, largest(c, by_group, &index), lowest, by_group);
    mezzo_value score = VIEW(mezzo_add(g, mezzo_max(g, by_group, 1), mezzo_max(g, second, 1)), rows, groups);
    for (int i = 0; i < c->attrs->top_groups; i++) {
        const mezzo_value best = largest(c, score, &index);
        used = present(used) ? mezzo_logical_or(g, used, best) : best;
        score = mezzo_where(g, best, lowest, score);
    }
    return VIEW(mezzo_where(g, VIEW(used, rows, groups, 1), VIEW(choice, rows, groups, experts / groups), lowest), rows,
                experts);
}

static mezzo_value chosen(mz_composition *c, mezzo_value score, mezzo_value bias) {
    mezzo_graph *g = c->g;
    mezzo_value choice = present(bias) ? mezzo_add(g, score, bias) : score, index[MZ_MAX_IN];
    if (c->attrs->top_k > MZ_MAX_IN)
        return MEZZO_NONE;
    choice = c->attrs->groups > 1 ? within_groups(c, choice) : choice;
    for (int i = 0; i < c->attrs->top_k; i++)
        choice = mezzo_where(g, largest(c, choice, &index[i]), number(c, -INFINITY), choice);
    return c->attrs->top_k > 1 ? mezzo_concat(g, index, c->attrs->top_k, 1) : index[0];
}

void mz_compose_route(mz_composition *c) {
    mezzo_graph *g = c->g;
    const mezzo_value logits = VIEW(IN(route, logits), -1, last_of(c, c->in[MZ_IN(route, logits)])),
                      known = c->known[MZ_OUT(route, indices)], bias = IN(route, bias);
    mezzo_value shift, sum, score, e = exponentials(c, logits, &shift, &sum);
    score = c->attrs->softmax ? mezzo_div(g, e, sum) : mezzo_sigmoid(g, logits);
    const mezzo_value indices = present(known) ? known : chosen(c, score, bias);
    // Every weight of a token has the sum over all experts as a divisor, so it cancels.
    mezzo_value weights = mezzo_gather(g, c->attrs->softmax && c->attrs->normalise ? e : score, 1, indices, true);
    if (c->attrs->normalise)
        weights = mezzo_div(g, weights, plus(c, over_last(c, MEZZO_REDUCE_SUM, weights), 1e-20));
    GIVE(route, weights, times(c, weights, (double)c->attrs->alpha));
    GIVE(route, indices, indices);
}

void mz_compose_dispatch(mz_composition *c) {
    mezzo_graph *g = c->g;
    const mezzo_value x = IN(dispatch, x), order = IN(dispatch, order), weights = IN(dispatch, weights);
    const int64_t k = c->attrs->top_k, width = last_of(c, x), rows = mezzo_value_dim(g, order, 0);
    mezzo_value y = mezzo_expand(g, VIEW(x, rows / k, 1, width), 3, (const int64_t[]){rows / k, k, width});
    IN(dispatch, place);
    y = present(weights) ? mezzo_mul(g, y, VIEW(weights, rows / k, k, 1)) : y;
    GIVE(dispatch, y, mezzo_gather(g, VIEW(y, rows, width), 0, order, false));
}

void mz_compose_combine(mz_composition *c) {
    mezzo_graph *g = c->g;
    const mezzo_value x = IN(combine, x), place = IN(combine, place), weights = IN(combine, weights);
    const int64_t k = c->attrs->top_k, width = last_of(c, x), rows = mezzo_value_dim(g, place, 0);
    mezzo_value y = VIEW(mezzo_gather(g, x, 0, place, false), rows / k, k, width);
    IN(combine, order);
    y = present(weights) ? mezzo_mul(g, y, VIEW(weights, rows / k, k, 1)) : y;
    y = mezzo_sum(g, y, 1);
    GIVE(combine, y, c->n_out > 0 ? viewed_as(c, y, &c->shape[0]) : y); // the output gets the dimensions of images or
                                                                        // sequences back
}

// --- reductions ----------------------------------------------------------------------------------------------------
// Views x as [outer, axis, inner].
static mezzo_value along(mz_composition *c, mezzo_value x, int64_t *n) {
    const mz_shape shape = *shape_of(c, x);
    mz_shape view = {3, {1, 1, 1}};
    for (int i = 0; i < shape.rank; i++)
        view.dim[c->attrs->axis < 0 || i == c->attrs->axis ? 1 : i < c->attrs->axis ? 0 : 2] *= shape.dim[i];
    *n = view.dim[1];
    return viewed_as(c, x, &view);
}

// Views a column's number as a tensor that broadcasts over the column's elements.
static mezzo_value beside(mz_composition *c, mezzo_value column, mezzo_value x) {
    return VIEW(column, mezzo_value_dim(c->g, x, 0), 1, mezzo_value_dim(c->g, x, 2));
}

void mz_compose_mean(mz_composition *c) {
    int64_t n;
    along(c, c->in[0], &n);
    GIVE(mean, y, times(c, mezzo_sum(c->g, IN(mean, x), c->attrs->axis), 1.0 / (double)n));
}

void mz_compose_min(mz_composition *c) {
    GIVE(min, y, times(c, mezzo_max(c->g, times(c, IN(min, x), -1), c->attrs->axis), -1));
}

void mz_compose_extremum_dx(mz_composition *c) {
    mezzo_graph *g = c->g;
    int64_t n;
    const mezzo_value x = along(c, IN(extremum_dx, x), &n), y = beside(c, IN(extremum_dx, y), x),
                      dy = beside(c, IN(extremum_dx, dy), x), is = mezzo_equal(g, x, y);
    const mezzo_value equals = mezzo_sum(g, mezzo_where(g, is, number(c, 1), number(c, 0)), 1);
    const mezzo_value each = mezzo_div(g, dy, mezzo_maximum(g, beside(c, equals, x), number(c, 1)));
    GIVE(extremum_dx, dx, viewed_as(c, mezzo_where(g, is, each, number(c, 0)), &c->shape[0]));
}

// Multiplies one half by the other until one element is left.
static mezzo_value product(mz_composition *c, mezzo_value x, int64_t n) {
    mezzo_graph *g = c->g;
    for (; n > 1; n = n / 2 + n % 2) {
        const mezzo_value halves = mezzo_mul(g, mezzo_slice(g, x, 1, 0, n / 2), mezzo_slice(g, x, 1, n / 2, n / 2 * 2));
        x = n % 2 == 0 ? halves : mezzo_concat(g, (const mezzo_value[]){halves, mezzo_slice(g, x, 1, n - 1, n)}, 2, 1);
    }
    return x;
}

void mz_compose_prod(mz_composition *c) {
    int64_t n;
    const mezzo_value x = along(c, IN(prod, x), &n);
    GIVE(prod, y, viewed_as(c, product(c, x, n), &c->shape[0]));
}

// Computes the product of the other elements: the column's product without its zeros, divided by the element.
void mz_compose_prod_dx(mz_composition *c) {
    mezzo_graph *g = c->g;
    int64_t n;
    const mezzo_value zero = number(c, 0), one = number(c, 1), x = along(c, IN(prod_dx, x), &n),
                      is_zero = mezzo_equal(g, x, zero), rest = product(c, mezzo_where(g, is_zero, one, x), n);
    const mezzo_value zeros = beside(c, mezzo_sum(g, mezzo_where(g, is_zero, one, zero), 1), x);
    const mezzo_value at_zero = mezzo_where(g, mezzo_equal(g, zeros, one), rest, zero),
                      elsewhere = mezzo_where(g, mezzo_equal(g, zeros, zero),
                                              mezzo_div(g, rest, mezzo_where(g, is_zero, one, x)), zero);
    const mezzo_value others = mezzo_where(g, is_zero, at_zero, elsewhere);
    IN(prod_dx, y);
    GIVE(prod_dx, dx, viewed_as(c, mezzo_mul(g, beside(c, IN(prod_dx, dy), x), others), &c->shape[0]));
}

// Adds y, shifted by 1, 2, 4 … elements, to y.
void mz_compose_cumsum(mz_composition *c) {
    mezzo_graph *g = c->g;
    int64_t n;
    mezzo_value x = along(c, IN(cumsum, x), &n);
    const int64_t outer = mezzo_value_dim(g, x, 0), inner = mezzo_value_dim(g, x, 2);
    x = c->attrs->reverse ? mezzo_flip(g, x, 1) : x;
    for (int64_t by = c->attrs->exclusive ? 0 : 1; by<n; by = by> 0 ? 2 * by : 1) {
        const int64_t shift = by > 0 ? by : 1, zeros[] = {outer, shift < n ? shift : n, inner};
        const mezzo_value none = mezzo_constant(g, MEZZO_F32, 0, 3, zeros);
        const mezzo_value moved =
            shift < n ? mezzo_concat(g, (const mezzo_value[]){none, mezzo_slice(g, x, 1, 0, n - shift)}, 2, 1) : none;
        x = by > 0 ? mezzo_add(g, x, moved) : moved;
    }
    x = c->attrs->reverse ? mezzo_flip(g, x, 1) : x;
    GIVE(cumsum, y, viewed_as(c, x, &c->shape[0]));
}

// --- movements and resampling --------------------------------------------------------------------------------------
void mz_compose_expand(mz_composition *c) {
    const mezzo_value x = IN(expand, x);
    mz_shape shape = c->shape[0];
    if (c->attrs->axis >= 0)
        shape.dim[c->attrs->axis] = 1;
    else
        shape = (mz_shape){1, {1}};
    const mezzo_value factor = mezzo_constant(c->g, MEZZO_F32, c->attrs->alpha, c->shape[0].rank, c->shape[0].dim);
    GIVE(expand, y, mezzo_mul(c->g, viewed_as(c, x, &shape), factor));
}

void mz_compose_pad(mz_composition *c) {
    const mezzo_value x = IN(pad, x);
    const int axis = c->attrs->axis;
    const int64_t n[2] = {c->attrs->begin, c->shape[0].dim[axis] - c->attrs->end};
    mezzo_value part[3] = {x, x, x};
    int parts = 0;
    for (int i = 0; i < 2; i++) {
        mz_shape shape = c->shape[0];
        shape.dim[axis] = n[i];
        if (n[i] > 0)
            part[parts++] = mezzo_constant(c->g, c->g->values[x.id].dtype, c->attrs->alpha, shape.rank, shape.dim);
        if (i == 0)
            part[parts++] = x;
    }
    GIVE(pad, y, parts > 1 ? mezzo_concat(c->g, part, parts, axis) : x);
}

// The first largest stays, and so does the first NaN.
void mz_compose_max_pool(mz_composition *c) {
    mezzo_graph *g = c->g;
    const mz_attrs *a = c->attrs;
    const mezzo_value whole = IN(max_pool, x);
    int64_t n;
    mezzo_value x = along(c, whole, &n), y = MEZZO_NONE;
    const int64_t outer = mezzo_value_dim(g, x, 0), inner = mezzo_value_dim(g, x, 2), reach = (a->factor - 1) * a->step,
                  out = (n + a->pad_before + a->pad_after - reach - 1) / a->stride + 1,
                  missing = reach + out * a->stride - n - a->pad_before, before[] = {0, a->pad_before, 0},
                  after[] = {0, missing > 0 ? missing : 0, 0};
    mz_shape shape = *shape_of(c, whole);
    shape.dim[a->axis] = out;
    x = mezzo_pad(g, x, before, after, -INFINITY);
    for (int k = 0; k < a->factor; k++) {
        const mezzo_value each =
            VIEW(mezzo_slice(g, x, 1, k * a->step, k * a->step + out * a->stride), outer, out, a->stride, inner);
        const mezzo_value other = VIEW(mezzo_slice(g, each, 2, 0, 1), outer, out, inner);
        y = k == 0 ? other
                   : mezzo_where(g, mezzo_equal(g, y, y), mezzo_where(g, mezzo_less_equal(g, other, y), y, other), y);
    }
    GIVE(max_pool, y, viewed_as(c, y, &shape));
}

void mz_compose_split(mz_composition *c) {
    const mezzo_value x = IN(split, x);
    int64_t at = 0;
    for (int i = 0; i < c->n_out; i++) {
        const int64_t n = c->shape[i].dim[c->attrs->axis];
        c->out[i] = mezzo_slice(c->g, x, c->attrs->axis, at, at + n);
        at += n;
    }
}

void mz_compose_upsample(mz_composition *c) {
    const mezzo_value x = IN(upsample, x);
    const int64_t f = c->attrs->factor, *d = c->shape[0].dim, split[] = {d[0], d[1] / f, f, d[2] / f, f, d[3]};
    const mezzo_value factor = mezzo_constant(c->g, MEZZO_F32, c->attrs->alpha, 6, split);
    GIVE(upsample, y,
         viewed_as(c, mezzo_mul(c->g, VIEW(x, d[0], d[1] / f, 1, d[2] / f, 1, d[3]), factor), &c->shape[0]));
}

void mz_compose_pool(mz_composition *c) {
    const mezzo_value x = IN(pool, x);
    const int64_t f = c->attrs->factor, *d = c->shape[0].dim;
    const mezzo_value y =
        mezzo_reduce(c->g, MEZZO_REDUCE_SUM, VIEW(x, d[0], d[1], f, d[2], f, d[3]), 2, (const int[]){2, 4}, false);
    GIVE(pool, y, times(c, y, (double)c->attrs->alpha));
}
