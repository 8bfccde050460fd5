// Counts the operations of ops, a multiply-add as two.
#include "graph/flops.h"

static double count(const mz_shape *s) {
    return (double)mz_shape_count(s);
}

// Returns the i-th dimension from the end; 1 is the last.
static double from_end(const mz_shape *s, int i) {
    return (double)s->dim[s->rank - i];
}

// Counts a product of x [… K] and w [N, K] or [E, N, K]: a row meets the matrix of one expert.
double mz_flops_product(const mz_attrs *attrs, const mz_shape *const in[], const mz_shape *const out[]) {
    (void)attrs;
    return 2 * count(out[MZ_OUT(linear, y)]) * from_end(in[MZ_IN(linear, x)], 1);
}

double mz_flops_product_dx(const mz_attrs *attrs, const mz_shape *const in[], const mz_shape *const out[]) {
    (void)attrs;
    return 2 * count(out[MZ_OUT(linear_dx, dx)]) * from_end(in[MZ_IN(linear_dx, w)], 2);
}

double mz_flops_product_dw(const mz_attrs *attrs, const mz_shape *const in[], const mz_shape *const out[]) {
    (void)attrs;
    return 2 * count(in[MZ_IN(linear_dw, dy)]) * from_end(out[MZ_OUT(linear_dw, dw)], 1);
}

double mz_flops_matmul(const mz_attrs *attrs, const mz_shape *const in[], const mz_shape *const out[]) {
    return 2 * count(out[MZ_OUT(matmul, y)]) * from_end(in[MZ_IN(matmul, a)], attrs->transpose_a ? 2 : 1);
}

// Counts pairs of a query and a key that it sees, for each head. Documents do not count, because only a batch knows
// them.
static double pairs_of(const mz_attrs *attrs, double queries, double keys) {
    double both = queries < keys ? queries : keys; // causal: these queries see a triangle of keys, and the others all
                                                   // keys
    double window = (double)attrs->window;
    if (window > 0 && window < queries)
        return window * (window + 1) / 2 + (queries - window) * window;
    return attrs->causal ? both * (both + 1) / 2 + (queries - both) * keys : queries * keys;
}

// Counts the two products q·kᵀ and p·v.
double mz_flops_attention(const mz_attrs *attrs, const mz_shape *const in[], const mz_shape *const out[]) {
    const mz_shape *y = out[MZ_OUT(attention, y)], *k = in[MZ_IN(attention, k)]; // [B, Tq, H·D]
    double queries = from_end(y, 2);
    return 4 * count(y) / queries * pairs_of(attrs, queries, k != NULL ? from_end(k, 2) : queries);
}

// Counts five products, where forward has two.
double mz_flops_attention_bwd(const mz_attrs *attrs, const mz_shape *const in[], const mz_shape *const out[]) {
    (void)out;
    const mz_shape *dy = in[MZ_IN(attention_bwd, dy)], *k = in[MZ_IN(attention_bwd, k)];
    double queries = from_end(dy, 2);
    return 10 * count(dy) / queries * pairs_of(attrs, queries, k != NULL ? from_end(k, 2) : queries);
}

// Counts the most that the op can take: with a full cache.
double mz_flops_attention_cached(const mz_attrs *attrs, const mz_shape *const in[], const mz_shape *const out[]) {
    double rows = from_end(in[MZ_IN(attention_cached, cache_k)], 2), window = (double)attrs->window;
    return 4 * count(out[MZ_OUT(attention_cached, y)]) * (window > 0 && window < rows ? window : rows);
}

// Counts R·S·C/groups products for each number of y; x [B, H, W, C], w [N, R, S, C/groups].
double mz_flops_conv2d(const mz_attrs *attrs, const mz_shape *const in[], const mz_shape *const out[]) {
    (void)attrs;
    const mz_shape *w = in[MZ_IN(conv2d, w)];
    return 2 * count(out[MZ_OUT(conv2d, y)]) * count(w) / (double)w->dim[0];
}

double mz_flops_conv2d_dx(const mz_attrs *attrs, const mz_shape *const in[], const mz_shape *const out[]) {
    (void)attrs, (void)out;
    const mz_shape *w = in[MZ_IN(conv2d_dx, w)];
    return 2 * count(in[MZ_IN(conv2d_dx, dy)]) * count(w) / (double)w->dim[0];
}

double mz_flops_conv2d_dw(const mz_attrs *attrs, const mz_shape *const in[], const mz_shape *const out[]) {
    (void)attrs;
    const mz_shape *dw = out[MZ_OUT(conv2d_dw, dw)];
    return 2 * count(in[MZ_IN(conv2d_dw, dy)]) * count(dw) / (double)dw->dim[0];
}
