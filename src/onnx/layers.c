// Builds the ONNX ops that are layers: products, norms of rows, softmax, reductions, losses.
#include <math.h>

#include "onnx/convert.h"

// --- products ------------------------------------------------------------------------------------------------------
// Returns whether the product of x with a matrix [K, N] is a linear layer: the matrix is stored as [N, K].
static bool is_linear(const mz_onnx_value *w) {
    return w->rank == 2 && (w->kind == MZ_ONNX_WEIGHT || (w->kind == MZ_ONNX_VALUE && w->perm[0] == 1));
}

// Adds an adapter; the layer has its weight's name without ".weight".
static void add_adapter(mz_onnx_build *build, const char *weight, mezzo_value x, mezzo_value *y) {
    char module[256];
    const size_t n = strlen(weight), end = strlen(".weight");
    const bool ends = n > end && strcmp(weight + n - end, ".weight") == 0;
    if (n >= sizeof module)
        return;
    snprintf(module, sizeof module, "%.*s", (int)(ends ? n - end : n), weight);
    const char *node = mz_onnx_module(build, module);
    *y = mezzo_adapted(build->g, x, *y);
    mz_onnx_module(build, node);
}

static mezzo_status by_rows(mz_onnx_call *call, mezzo_value x, mz_onnx_value *w, bool turned, mezzo_value bias,
                            mezzo_value *y) {
    mezzo_graph *g = call->build->g;
    mezzo_value v;
    MEZZO_TRY(mz_onnx_base(call, w, &v));
    const bool moves = (w->perm[0] == 1) == turned; // the product needs [N, K]
    const mezzo_value rows = mz_onnx_rows(g, x);    // so that no view lies between two layers
    *y = mezzo_linear(g, rows, moves ? mezzo_transpose(g, v, 0, 1) : v, bias);
    if (w->kind == MZ_ONNX_WEIGHT && !moves)
        add_adapter(call->build, w->of ? w->of->name : w->name, rows, y);
    int64_t dim[MEZZO_MAX_RANK];
    const int rank = mezzo_value_rank(g, x);
    for (int i = 0; i < rank; i++)
        dim[i] = i < rank - 1 ? mezzo_value_dim(g, x, i) : mezzo_value_dim(g, *y, -1);
    *y = mz_onnx_shaped(g, *y, rank, dim);
    return MEZZO_OK;
}

mezzo_status mz_onnx_linear(mz_onnx_call *call, mz_onnx_value *x, mz_onnx_value *w, mezzo_value bias) {
    mezzo_value v, y;
    MEZZO_TRY(mz_onnx_value_of(call, x, &v));
    MEZZO_TRY(by_rows(call, v, w, false, bias, &y));
    return mz_onnx_give(call, 0, false, x->rank, y);
}

static mezzo_status known_product(mz_onnx_call *call) {
    const mz_onnx_value *a = call->in[0], *b = call->in[1];
    const int rank = a->rank > b->rank ? a->rank : b->rank;
    int64_t dim[MEZZO_MAX_RANK], leading[MEZZO_MAX_RANK];
    for (int i = 0; i < rank - 2; i++) {
        const int ia = i - (rank - a->rank), ib = i - (rank - b->rank);
        const int64_t x = ia < 0 ? 1 : a->dim[ia], y = ib < 0 ? 1 : b->dim[ib];
        if (x != y && x != 1 && y != 1)
            return mz_onnx_fail(call, MEZZO_ERR_INVALID, "its shapes do not fit");
        dim[i] = x == 1 ? y : x;
    }
    const int64_t m = a->dim[a->rank - 2], k = a->dim[a->rank - 1], n = b->dim[b->rank - 1];
    if (b->dim[b->rank - 2] != k)
        return mz_onnx_fail(call, MEZZO_ERR_INVALID, "its shapes do not fit");
    dim[rank - 2] = m;
    dim[rank - 1] = n;
    double *out;
    MEZZO_TRY(mz_onnx_host(call, 0, a->integer, rank, dim, &out));
    mz_onnx_value la = *a, lb = *b;
    la.rank -= 2;
    lb.rank -= 2;
    memcpy(leading, dim, sizeof leading);
    const int64_t batches = mz_onnx_elements(rank - 2, dim);
    for (int64_t batch = 0; batch < batches; batch++) {
        const double *pa = a->numbers + mz_onnx_repeated(&la, rank - 2, leading, batch) * m * k,
                     *pb = b->numbers + mz_onnx_repeated(&lb, rank - 2, leading, batch) * k * n;
        for (int64_t i = 0; i < m * n; i++) {
            double sum = 0;
            for (int64_t j = 0; j < k; j++)
                sum += pa[i / n * k + j] * pb[j * n + i % n];
            *out++ = a->integer ? sum : (double)(float)sum;
        }
    }
    return MEZZO_OK;
}

mezzo_status mz_onnx_matmul(mz_onnx_call *call) {
    mezzo_graph *g = call->build->g;
    mz_onnx_value *a = call->in[0], *b = call->in[1];
    mezzo_value x, w, y;
    if (mz_onnx_known(call) && a->rank > 1 && b->rank > 1)
        return known_product(call);
    MEZZO_TRY(mz_onnx_number(call, 0, &x));
    if (a->rank > 1 && is_linear(b)) {
        MEZZO_TRY(by_rows(call, x, b, false, MEZZO_NONE, &y));
        return mz_onnx_give(call, 0, false, a->rank, y);
    }
    MEZZO_TRY(mz_onnx_number(call, 1, &w));
    if (a->rank < 1 || b->rank < 1)
        return mz_onnx_fail(call, MEZZO_ERR_INVALID, "it multiplies a scalar");
    if (a->rank == 1) // adds 1 for a row or for a column
        x = mz_onnx_shaped(g, x, 2, (int64_t[]){1, a->dim[0]});
    if (b->rank == 1)
        w = mz_onnx_shaped(g, w, 2, (int64_t[]){b->dim[0], 1});
    y = mezzo_matmul(g, x, w, false, false);
    int64_t dim[MEZZO_MAX_RANK];
    int rank = 0;
    const int whole = mezzo_value_rank(g, y);
    for (int i = 0; i < whole && i < MEZZO_MAX_RANK; i++)
        if (!(i == whole - 2 && a->rank == 1) && !(i == whole - 1 && b->rank == 1))
            dim[rank++] = mezzo_value_dim(g, y, i);
    return mz_onnx_give(call, 0, false, rank, rank == whole ? y : mz_onnx_shaped(g, y, rank, dim));
}

mezzo_status mz_onnx_gemm(mz_onnx_call *call) {
    mezzo_graph *g = call->build->g;
    const MzPb__Node *node = call->node;
    const bool flip_a = mz_onnx_int_or(node, "transA", 0), flip_b = mz_onnx_int_or(node, "transB", 0);
    const double alpha = mz_onnx_float_or(node, "alpha", 1), beta = mz_onnx_float_or(node, "beta", 1);
    mz_onnx_value *b = call->in[1], *c = call->n_in > 2 ? call->in[2] : NULL;
    if (call->in[0]->rank != 2 || b->rank != 2)
        return mz_onnx_fail(call, MEZZO_ERR_INVALID, "its operands are no matrices");
    mezzo_value x, y, bias = MEZZO_NONE;
    MEZZO_TRY(mz_onnx_number(call, 0, &x));
    if (flip_a)
        x = mezzo_transpose(g, x, 0, 1);
    if (c)
        MEZZO_TRY(mz_onnx_number(call, 2, &bias));
    const int64_t n = b->dim[flip_b ? 0 : 1];
    const bool fits = c && alpha == 1 && beta == 1 && c->rank == 1 && c->dim[0] == n; // it is a linear layer's bias
    if (b->kind == MZ_ONNX_WEIGHT) {
        MEZZO_TRY(by_rows(call, x, b, flip_b, fits ? bias : MEZZO_NONE, &y));
    } else {
        mezzo_value w;
        MEZZO_TRY(mz_onnx_number(call, 1, &w));
        y = mezzo_matmul(g, x, w, false, flip_b);
        if (fits)
            y = mezzo_add(g, y, bias);
    }
    if (alpha != 1)
        y = mezzo_scale(g, y, (float)alpha);
    if (c && !fits)
        y = mezzo_add(g, y, beta == 1 ? bias : mezzo_scale(g, bias, (float)beta));
    return mz_onnx_give(call, 0, false, 2, y);
}

// --- Einsum: of two operands, as a product of matrices -------------------------------------------------------------
typedef struct term {
    int n;
    char letter[MEZZO_MAX_RANK];
} term;

static int find_letter(const term *t, char letter) {
    for (int i = 0; i < t->n; i++)
        if (t->letter[i] == letter)
            return i;
    return -1;
}

// Reads "bhqd,bhkd->bhqk": the letters of two operands and of the result. Returns false for another form.
static bool read_equation(const MzPb__Attribute *a, term *terms) {
    int at = 0;
    memset(terms, 0, 3 * sizeof *terms);
    for (size_t i = 0; a && i < a->s.len; i++) {
        const char c = (char)a->s.data[i];
        if (c == ' ')
            continue;
        if (c == ',' && at == 0) {
            at = 1;
        } else if (c == '-' && at == 1 && i + 1 < a->s.len && a->s.data[i + 1] == '>') {
            at = 2;
            i++;
        } else if (((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) && terms[at].n < MEZZO_MAX_RANK &&
                   find_letter(&terms[at], c) < 0) {
            terms[at].letter[terms[at].n++] = c;
        } else {
            return false;
        }
    }
    for (int t = 0; t < 3; t++) // each letter is in two terms
        for (int i = 0; i < terms[t].n; i++)
            if (find_letter(&terms[(t + 1) % 3], terms[t].letter[i]) < 0 &&
                find_letter(&terms[(t + 2) % 3], terms[t].letter[i]) < 0)
                return false;
    return at == 2;
}

// Collects the letters in a, not in `without` (NULL: none), and in `in`.
static void letters_of(const term *a, const term *without, const term *in, term *out) {
    for (int i = 0; i < a->n; i++)
        if ((!without || find_letter(without, a->letter[i]) < 0) && find_letter(in, a->letter[i]) >= 0)
            out->letter[out->n++] = a->letter[i];
}

// Makes an operand [batch, rows, columns] by the letters of each dimension.
static mezzo_status as_matrices(mz_onnx_call *call, int in, const term *t, const term *const parts[3], int64_t sizes[3],
                                mezzo_value *out) {
    mezzo_graph *g = call->build->g;
    int axes[MEZZO_MAX_RANK], n = 0;
    for (int p = 0; p < 3; p++) {
        sizes[p] = 1;
        for (int i = 0; i < parts[p]->n; i++) {
            axes[n] = find_letter(t, parts[p]->letter[i]);
            sizes[p] *= call->in[in]->dim[axes[n++]];
        }
    }
    if (n != t->n || n != call->in[in]->rank)
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "its equation");
    MEZZO_TRY(mz_onnx_number(call, in, out));
    *out = mz_onnx_shaped(g, mezzo_permute(g, *out, axes), 3, sizes);
    return mezzo_graph_status(g);
}

mezzo_status mz_onnx_einsum(mz_onnx_call *call) {
    mezzo_graph *g = call->build->g;
    term t[3], batch = {0}, rows = {0}, columns = {0}, shared = {0}, order = {0};
    if (call->n_in != 2 || !call->in[1] || !read_equation(mz_onnx_attribute(call->node, "equation"), t) ||
        t[0].n != call->in[0]->rank || t[1].n != call->in[1]->rank)
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "an equation that is no product of two operands");
    for (int i = 0; i < t[0].n; i++) {
        const int other = find_letter(&t[1], t[0].letter[i]);
        if (other >= 0 && call->in[0]->dim[i] != call->in[1]->dim[other])
            return mz_onnx_fail(call, MEZZO_ERR_INVALID, "its shapes do not fit");
        if (other >= 0 && find_letter(&t[2], t[0].letter[i]) >= 0)
            batch.letter[batch.n++] = t[0].letter[i];
        else if (other >= 0)
            shared.letter[shared.n++] = t[0].letter[i];
    }
    letters_of(&t[0], &t[1], &t[2], &rows);
    letters_of(&t[1], &t[0], &t[2], &columns);
    mezzo_value a, b;
    int64_t sa[3], sb[3], dim[MEZZO_MAX_RANK];
    MEZZO_TRY(as_matrices(call, 0, &t[0], (const term *[]){&batch, &rows, &shared}, sa, &a));
    MEZZO_TRY(as_matrices(call, 1, &t[1], (const term *[]){&batch, &columns, &shared}, sb, &b));
    const mezzo_value y = mezzo_matmul(g, a, b, false, true);
    const term *made[] = {&batch, &rows, &columns};
    for (int p = 0; p < 3; p++)
        for (int i = 0; i < made[p]->n; i++) {
            const char c = made[p]->letter[i];
            const int in = find_letter(&t[0], c) >= 0 ? 0 : 1;
            dim[order.n] = call->in[in]->dim[find_letter(&t[in], c)];
            order.letter[order.n++] = c;
        }
    int perm[MEZZO_MAX_RANK];
    for (int i = 0; i < t[2].n; i++)
        perm[i] = find_letter(&order, t[2].letter[i]);
    return mz_onnx_give_as(call, 0, false, t[2].n, mz_onnx_shaped(g, y, t[2].n, dim), perm);
}

// --- norms and rows ------------------------------------------------------------------------------------------------
mezzo_status mz_onnx_layer_norm(mz_onnx_call *call) {
    const int rms = call->op->which;
    mezzo_graph *g = call->build->g;
    const mz_onnx_value *x = call->in[0];
    int axis;
    MEZZO_TRY(mz_onnx_axis_of(call, -1, x->rank, &axis));
    for (int i = 1; i < call->n_out; i++)
        if (call->node->output[i][0] != '\0')
            return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "its mean and deviation are not outputs");
    mezzo_value v, weight, bias = MEZZO_NONE;
    MEZZO_TRY(mz_onnx_number(call, 0, &v));
    MEZZO_TRY(mz_onnx_number(call, 1, &weight));
    if (!rms && mz_onnx_has(call, 2))
        MEZZO_TRY(mz_onnx_number(call, 2, &bias));
    const float eps = (float)mz_onnx_float_or(call->node, "epsilon", 1e-5);
    const int64_t width = mz_onnx_elements(x->rank - axis, x->dim + axis);
    if (axis < x->rank - 1) // several dimensions are joined
        v = mz_onnx_shaped(g, v, 2, (int64_t[]){-1, width});
    if (mezzo_value_rank(g, weight) > 1)
        weight = mz_onnx_shaped(g, weight, 1, &width);
    if (mezzo_value_rank(g, bias) > 1)
        bias = mz_onnx_shaped(g, bias, 1, &width);
    v = rms ? mezzo_rmsnorm(g, v, weight, eps) : mezzo_layernorm(g, v, weight, bias, eps);
    return mz_onnx_give(call, 0, false, x->rank, axis < x->rank - 1 ? mz_onnx_shaped(g, v, x->rank, x->dim) : v);
}

// Makes x - max - log(Σ exp(x - max)), along the last dimension.
static mezzo_value log_softmax(mezzo_graph *g, mezzo_value x) {
    const mezzo_value shifted = mezzo_sub(g, x, mezzo_reduce(g, MEZZO_REDUCE_MAX, x, 1, (int[]){-1}, true));
    const mezzo_value sum = mezzo_reduce(g, MEZZO_REDUCE_SUM, mezzo_exp(g, shifted), 1, (int[]){-1}, true);
    return mezzo_sub(g, shifted, mezzo_log(g, sum));
}

mezzo_status mz_onnx_softmax(mz_onnx_call *call) {
    mezzo_graph *g = call->build->g;
    const mz_onnx_value *x = call->in[0];
    int axis;
    MEZZO_TRY(mz_onnx_axis_of(call, -1, x->rank, &axis));
    mezzo_value v;
    MEZZO_TRY(mz_onnx_number(call, 0, &v));
    const bool last = axis == x->rank - 1;
    if (!last)
        v = mezzo_transpose(g, v, axis, -1);
    v = call->op->which ? log_softmax(g, v) : mezzo_softmax(g, v);
    return mz_onnx_give(call, 0, false, x->rank, last ? v : mezzo_transpose(g, v, axis, -1));
}

// --- reductions ----------------------------------------------------------------------------------------------------
static mezzo_status known_reduction(mz_onnx_call *call, int which, const bool *named, int rank, const int64_t *dim) {
    const mz_onnx_value *x = call->in[0];
    double *out;
    MEZZO_TRY(mz_onnx_host(call, 0, x->integer, rank, dim, &out));
    const int64_t n = mz_onnx_elements(x->rank, x->dim), made = mz_onnx_elements(rank, dim);
    if (made < 1 || n < 1)
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "it reduces nothing");
    const double none = which == MEZZO_REDUCE_PROD  ? 1
                        : which == MEZZO_REDUCE_MAX ? -INFINITY
                        : which == MEZZO_REDUCE_MIN ? INFINITY
                                                    : 0;
    for (int64_t i = 0; i < made; i++)
        out[i] = none;
    for (int64_t i = 0; i < n; i++) {
        int64_t place = 0, step = 1, rest = i;
        for (int k = x->rank - 1; k >= 0; rest /= x->dim[k--]) {
            place += named[k] ? 0 : rest % x->dim[k] * step;
            step *= named[k] ? 1 : x->dim[k];
        }
        const double a = out[place], b = x->numbers[i];
        out[place] = which == MEZZO_REDUCE_PROD  ? a * b
                     : which == MEZZO_REDUCE_MAX ? fmax(a, b)
                     : which == MEZZO_REDUCE_MIN ? fmin(a, b)
                                                 : a + b;
    }
    for (int64_t i = 0; i < made && which == MEZZO_REDUCE_MEAN; i++)
        out[i] /= (double)(n / made);
    return MEZZO_OK;
}

static mezzo_value reduce(mezzo_graph *g, int which, mezzo_value x, int n, const int *axes, bool keep) {
    mezzo_value most;
    switch (which) {
    case MZ_ONNX_L1:
        return mezzo_reduce(g, MEZZO_REDUCE_SUM, mezzo_abs(g, x), n, axes, keep);
    case MZ_ONNX_L2:
        return mezzo_sqrt(g, mezzo_reduce(g, MEZZO_REDUCE_SUM, mezzo_mul(g, x, x), n, axes, keep));
    case MZ_ONNX_SUM_SQUARE:
        return mezzo_reduce(g, MEZZO_REDUCE_SUM, mezzo_mul(g, x, x), n, axes, keep);
    case MZ_ONNX_LOG_SUM:
        return mezzo_log(g, mezzo_reduce(g, MEZZO_REDUCE_SUM, x, n, axes, keep));
    case MZ_ONNX_LOG_SUM_EXP:
        most = mezzo_reduce(g, MEZZO_REDUCE_MAX, x, n, axes, true);
        x = mezzo_reduce(g, MEZZO_REDUCE_SUM, mezzo_exp(g, mezzo_sub(g, x, most)), n, axes, keep);
        return mezzo_add(g, mezzo_log(g, x), keep ? most : mezzo_reduce(g, MEZZO_REDUCE_MAX, most, n, axes, false));
    default:
        return mezzo_reduce(g, (mezzo_reduction)which, x, n, axes, keep);
    }
}

mezzo_status mz_onnx_reduce(mz_onnx_call *call) {
    const int which = call->op->which;
    mezzo_graph *g = call->build->g;
    mz_onnx_value *x = call->in[0];
    int n, rank = 0, axes[MEZZO_MAX_RANK], stored[MEZZO_MAX_RANK];
    int64_t given[MEZZO_MAX_RANK], dim[MEZZO_MAX_RANK];
    bool named[MEZZO_MAX_RANK] = {false};
    MEZZO_TRY(mz_onnx_ints_or(call, 1, "axes", MEZZO_MAX_RANK, &n, given));
    if (n <= 0 && mz_onnx_int_or(call->node, "noop_with_empty_axes", 0))
        return mz_onnx_give_same(call, x);
    for (int i = 0; i < n; i++) {
        axes[i] = mz_onnx_axis(given[i], x->rank);
        if (axes[i] < 0 || named[axes[i]])
            return mz_onnx_bad_axis(call, given[i]);
        named[axes[i]] = true;
    }
    const bool keep = mz_onnx_int_or(call->node, "keepdims", 1) != 0;
    if (n <= 0) // no list means all axes
        for (n = 0; n < x->rank; n++) {
            axes[n] = n;
            named[n] = true;
        }
    for (int i = 0; i < x->rank; i++)
        if (!named[i] || keep)
            dim[rank++] = named[i] ? 1 : x->dim[i];
    if (x->kind == MZ_ONNX_HOST && which <= MEZZO_REDUCE_PROD)
        return known_reduction(call, which, named, rank, dim);
    mezzo_value v;
    if (x->kind == MZ_ONNX_VALUE && !x->integer && keep) { // it is taken in storage order
        MEZZO_TRY(mz_onnx_base(call, x, &v));
        for (int i = 0; i < n; i++)
            stored[i] = x->perm[axes[i]];
        return mz_onnx_give_as(call, 0, false, rank, reduce(g, which, v, n, stored, true), x->perm);
    }
    MEZZO_TRY(mz_onnx_number(call, 0, &v));
    if (n > 0)
        v = reduce(g, which, v, n, axes, keep);
    return mz_onnx_give_floats(call, x, rank, mz_onnx_shaped(g, v, rank, dim));
}

mezzo_status mz_onnx_argmax(mz_onnx_call *call) {
    mezzo_graph *g = call->build->g;
    const mz_onnx_value *x = call->in[0];
    int axis;
    MEZZO_TRY(mz_onnx_axis_of(call, 0, x->rank, &axis));
    if (mz_onnx_int_or(call->node, "select_last_index", 0))
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "it takes the last of equal ones");
    const bool keep = mz_onnx_int_or(call->node, "keepdims", 1) != 0;
    int64_t dim[MEZZO_MAX_RANK];
    int rank = 0;
    for (int i = 0; i < x->rank; i++)
        if (i != axis || keep)
            dim[rank++] = i == axis ? 1 : x->dim[i];
    mezzo_value v;
    MEZZO_TRY(mz_onnx_number(call, 0, &v));
    v = mezzo_argmax(g, v, x->rank == 1 ? -1 : axis);
    return mz_onnx_give(call, 0, true, rank, mz_onnx_shaped(g, v, rank, dim));
}

mezzo_status mz_onnx_cumsum(mz_onnx_call *call) {
    const mz_onnx_value *x = call->in[0];
    const bool exclusive = mz_onnx_int_or(call->node, "exclusive", 0),
               reverse = mz_onnx_int_or(call->node, "reverse", 0);
    int n;
    int64_t given;
    MEZZO_TRY(mz_onnx_ints(call, 1, 1, &n, &given));
    const int axis = n == 1 ? mz_onnx_axis(given, x->rank) : -1;
    if (axis < 0)
        return mz_onnx_bad_axis(call, n == 1 ? given : 0);
    if (x->kind == MZ_ONNX_HOST) {
        double *out;
        const int64_t size = x->dim[axis], rest = mz_onnx_elements(x->rank - axis - 1, x->dim + axis + 1),
                      all = mz_onnx_elements(x->rank, x->dim);
        MEZZO_TRY(mz_onnx_host(call, 0, x->integer, x->rank, x->dim, &out));
        for (int64_t i = 0; i < all; i++) {
            const int64_t at = i / rest % size, first = i - at * rest;
            out[i] = 0;
            for (int64_t k = reverse ? at + exclusive : 0; k < (reverse ? size : at + !exclusive); k++)
                out[i] += x->numbers[first + k * rest];
        }
        return MEZZO_OK;
    }
    mezzo_value v;
    MEZZO_TRY(mz_onnx_number(call, 0, &v));
    return mz_onnx_give_floats(call, x, x->rank, mezzo_cumsum(call->build->g, v, axis, exclusive, reverse));
}

// Builds SoftmaxCrossEntropyLoss: scores [B, C, …], labels [B, …], the mean over labels that are not ignored.
mezzo_status mz_onnx_cross_entropy(mz_onnx_call *call) {
    mezzo_graph *g = call->build->g;
    const mz_onnx_value *x = call->in[0];
    if (!mz_onnx_is(call->node, "reduction", "mean", true) || mz_onnx_has(call, 2) || x->rank < 2 ||
        (call->n_out > 1 && call->node->output[1][0] != '\0'))
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "anything but the mean without weights");
    mezzo_value v, labels;
    const int64_t ignored = mz_onnx_int_or(call->node, "ignore_index", -1);
    if (ignored < INT32_MIN || ignored > INT32_MAX)
        return mz_onnx_fail(call, MEZZO_ERR_INVALID, "ignore_index %lld", (long long)ignored);
    MEZZO_TRY(mz_onnx_number(call, 0, &v));
    MEZZO_TRY(mz_onnx_index(call, 1, &labels));
    if (x->rank > 2) {
        int axes[MEZZO_MAX_RANK] = {0};
        for (int i = 1; i < x->rank; i++)
            axes[i] = i == x->rank - 1 ? 1 : i + 1;
        v = mezzo_permute(g, v, axes);
    }
    v = mezzo_cross_entropy(g, v, labels, (int32_t)ignored);
    return mz_onnx_give(call, 0, false, 0, v);
}
