// Builds the ONNX ops that work element by element: on known numbers here, else by Mezzo's own ops, in the order in
// which the largest operand is stored.
#include <math.h>

#include "onnx/convert.h"

// --- known numbers -------------------------------------------------------------------------------------------------
// Broadcasts two shapes by NumPy's rules. Returns false where they do not fit.
static bool broadcast(int rank_a, const int64_t *a, int rank_b, const int64_t *b, int *rank, int64_t *out) {
    int64_t made[MEZZO_MAX_RANK];
    *rank = rank_a > rank_b ? rank_a : rank_b;
    for (int i = 0; i < *rank; i++) {
        const int64_t x = i < *rank - rank_a ? 1 : a[i - (*rank - rank_a)],
                      y = i < *rank - rank_b ? 1 : b[i - (*rank - rank_b)];
        if (x != y && x != 1 && y != 1)
            return false;
        made[i] = x == 1 ? y : x;
    }
    memcpy(out, made, (size_t)*rank * sizeof *out);
    return true;
}

static mezzo_status common_shape(mz_onnx_call *call, int *rank, int64_t *dim) {
    *rank = 0;
    for (int i = 0; i < call->n_in; i++)
        if (call->in[i] && !broadcast(*rank, dim, call->in[i]->rank, call->in[i]->dim, rank, dim))
            return mz_onnx_fail(call, MEZZO_ERR_INVALID, "its shapes do not fit");
    return MEZZO_OK;
}

// Returns the element of `value` at element `index` of a shape to which it was broadcast.
int64_t mz_onnx_repeated(const mz_onnx_value *value, int rank, const int64_t *dim, int64_t index) {
    int64_t place = 0, step = 1;
    for (int i = rank - 1; i >= 0; i--) {
        const int own = i - (rank - value->rank);
        if (own >= 0) {
            if (value->dim[own] != 1)
                place += index % dim[i] * step;
            step *= value->dim[own];
        }
        index /= dim[i];
    }
    return place;
}

static mezzo_status fold(mz_onnx_call *call, bool integer) {
    const mz_onnx_op *op = call->op;
    const bool divides = op->make2 == mezzo_div;
    int rank;
    int64_t dim[MEZZO_MAX_RANK];
    double *out;
    MEZZO_TRY(common_shape(call, &rank, dim));
    MEZZO_TRY(mz_onnx_host(call, 0, integer, rank, dim, &out));
    const int64_t n = mz_onnx_elements(rank, dim);
    for (int64_t i = 0; i < n; i++) {
        double y = call->in[0]->numbers[mz_onnx_repeated(call->in[0], rank, dim, i)];
        if (op->host1)
            y = op->host1(y);
        for (int k = 1; k < call->n_in && op->host2; k++) {
            const double b = call->in[k]->numbers[mz_onnx_repeated(call->in[k], rank, dim, i)];
            if (integer && divides && b == 0)
                return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "it divides a known integer by 0");
            y = op->host2(y, b);
            y = integer && divides ? trunc(y) : y;
        }
        out[i] = integer ? y : (double)(float)y;
    }
    return MEZZO_OK;
}

// --- operands ------------------------------------------------------------------------------------------------------
// Gets all inputs in one order, *perm's, in which the first input of the result's size is stored.
static mezzo_status operands(mz_onnx_call *call, int *rank, int *perm, mezzo_value *v) {
    int64_t dim[MEZZO_MAX_RANK];
    MEZZO_TRY(common_shape(call, rank, dim));
    for (int i = 0; i < *rank; i++)
        perm[i] = i;
    for (int k = 0; k < call->n_in; k++) {
        const mz_onnx_value *x = call->in[k];
        if (x && x->kind == MZ_ONNX_VALUE && x->rank == *rank && !mz_onnx_in_order(x) &&
            mz_onnx_elements(*rank, x->dim) == mz_onnx_elements(*rank, dim)) {
            memcpy(perm, x->perm, sizeof x->perm);
            break;
        }
    }
    for (int k = 0; k < call->n_in; k++)
        if (call->in[k])
            MEZZO_TRY(mz_onnx_ordered(call, call->in[k], *rank, perm, &v[k]));
    return MEZZO_OK;
}

// Gets input 0 as it is stored, to which an element-wise function applies.
static mezzo_status stored(mz_onnx_call *call, mezzo_value *v) {
    MEZZO_TRY(mz_onnx_ordered(call, call->in[0], call->in[0]->rank,
                              call->in[0]->kind == MZ_ONNX_HOST ? (const int[]){0, 1, 2, 3, 4, 5} : call->in[0]->perm,
                              v));
    return MEZZO_OK;
}

static mezzo_status give_stored(mz_onnx_call *call, mezzo_value v) {
    const bool integer = call->in[0]->integer;
    MEZZO_TRY(call->in[0]->kind == MZ_ONNX_HOST
                  ? mz_onnx_give(call, 0, integer, call->in[0]->rank, v)
                  : mz_onnx_give_as(call, 0, integer, call->in[0]->rank, v, call->in[0]->perm));
    call->out[0]->floats = integer;
    return MEZZO_OK;
}

// --- one input -----------------------------------------------------------------------------------------------------
mezzo_value mz_onnx_neg(mezzo_graph *g, mezzo_value x) {
    return mezzo_scale(g, x, -1.0F);
}
mezzo_value mz_onnx_tan(mezzo_graph *g, mezzo_value x) {
    return mezzo_div(g, mezzo_sin(g, x), mezzo_cos(g, x));
}
mezzo_value mz_onnx_mish(mezzo_graph *g, mezzo_value x) {
    return mezzo_mul(g, x, mezzo_tanh(g, mezzo_softplus(g, x)));
}
mezzo_value mz_onnx_softsign(mezzo_graph *g, mezzo_value x) {
    const mezzo_value one = mezzo_constant(g, MEZZO_F32, 1, 1, &(int64_t){1});
    return mezzo_div(g, x, mezzo_add(g, mezzo_abs(g, x), one));
}

mezzo_status mz_onnx_unary(mz_onnx_call *call) {
    mezzo_value v;
    if (call->op->host1 && mz_onnx_known(call))
        return fold(call, call->in[0]->integer);
    MEZZO_TRY(stored(call, &v));
    return give_stored(call, call->op->make1(call->build->g, v));
}

// Makes clamp(slope · x + offset) between 0 and 1; HardSwish multiplies it by x.
static mezzo_value hard(mz_onnx_call *call, mezzo_value x, double slope, double offset) {
    mezzo_graph *g = call->build->g;
    return mezzo_clamp(g, mezzo_add(g, mezzo_scale(g, x, (float)slope), mz_onnx_scalar(call, offset)), 0, 1);
}

mezzo_status mz_onnx_activation(mz_onnx_call *call) {
    mezzo_graph *g = call->build->g;
    const MzPb__Node *node = call->node;
    const double alpha = mz_onnx_float_or(node, "alpha", 1),
                 gamma = mz_onnx_float_or(node, "gamma", 1.0507009873554805);
    mezzo_value x, y = MEZZO_NONE;
    MEZZO_TRY(stored(call, &x));
    switch ((mz_onnx_act)call->op->which) {
    case MZ_ONNX_LEAKY_RELU:
        y = mezzo_leaky_relu(g, x, (float)mz_onnx_float_or(node, "alpha", 0.01));
        break;
    case MZ_ONNX_ELU:
        y = mezzo_elu(g, x, (float)alpha);
        break;
    case MZ_ONNX_SELU:
        y = mezzo_scale(g, mezzo_elu(g, x, (float)mz_onnx_float_or(node, "alpha", 1.6732632423543772)), (float)gamma);
        break;
    case MZ_ONNX_CELU: // computes max(0, x) + min(0, alpha · (exp(x / alpha) - 1))
        y = mezzo_scale(g, mezzo_elu(g, mezzo_scale(g, x, (float)(1 / alpha)), 1), (float)alpha);
        break;
    case MZ_ONNX_THRESHOLDED_RELU:
        y = mezzo_where(g, mezzo_less(g, mz_onnx_scalar(call, alpha), x), x, mz_onnx_scalar(call, 0));
        break;
    case MZ_ONNX_GELU:
        y = mezzo_gelu(g, x, mz_onnx_is(node, "approximate", "tanh", false));
        break;
    case MZ_ONNX_SWISH:
        y = alpha == 1 ? mezzo_silu(g, x) : mezzo_mul(g, x, mezzo_sigmoid(g, mezzo_scale(g, x, (float)alpha)));
        break;
    case MZ_ONNX_HARD_SIGMOID:
        y = hard(call, x, mz_onnx_float_or(node, "alpha", 0.2), mz_onnx_float_or(node, "beta", 0.5));
        break;
    case MZ_ONNX_HARD_SWISH:
        y = mezzo_mul(g, x, hard(call, x, 1.0 / 6, 0.5));
        break;
    }
    return give_stored(call, y);
}

mezzo_status mz_onnx_clip(mz_onnx_call *call) {
    double low = -INFINITY, high = INFINITY;
    mezzo_value x;
    if ((mz_onnx_has(call, 1) && !mz_onnx_one_number(call->in[1], &low)) ||
        (mz_onnx_has(call, 2) && !mz_onnx_one_number(call->in[2], &high)))
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "its bounds must be known when the model is built");
    if (call->in[0]->kind == MZ_ONNX_HOST) {
        double *out;
        MEZZO_TRY(mz_onnx_host(call, 0, call->in[0]->integer, call->in[0]->rank, call->in[0]->dim, &out));
        const int64_t n = mz_onnx_elements(call->in[0]->rank, call->in[0]->dim);
        for (int64_t i = 0; i < n; i++)
            out[i] = fmin(fmax(call->in[0]->numbers[i], low), high);
        return MEZZO_OK;
    }
    MEZZO_TRY(stored(call, &x));
    return give_stored(call, mezzo_clamp(call->build->g, x, (float)low, (float)high));
}

mezzo_status mz_onnx_prelu(mz_onnx_call *call) { // computes max(0, x) - slope · max(0, -x)
    mezzo_graph *g = call->build->g;
    int rank, perm[MEZZO_MAX_RANK];
    mezzo_value v[MZ_ONNX_SLOTS];
    MEZZO_TRY(operands(call, &rank, perm, v));
    const mezzo_value below = mezzo_mul(g, v[1], mezzo_relu(g, mezzo_scale(g, v[0], -1)));
    return mz_onnx_give_as(call, 0, false, rank, mezzo_sub(g, mezzo_relu(g, v[0]), below), perm);
}

mezzo_status mz_onnx_same(mz_onnx_call *call) {
    return mz_onnx_give_same(call, call->in[0]);
}

// Builds Dropout, which drops elements in files that were exported for training, and there in programs that train.
mezzo_status mz_onnx_dropout(mz_onnx_call *call) {
    double training = 0, ratio = 0.5;
    if (mz_onnx_has(call, 1) && !mz_onnx_one_number(call->in[1], &ratio))
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "its ratio must be known when the model is built");
    if (mz_onnx_has(call, 2) && !mz_onnx_one_number(call->in[2], &training))
        return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "its training mode must be known when the model is built");
    if (training == 0 || ratio == 0 || call->in[0]->kind == MZ_ONNX_HOST)
        return mz_onnx_give_same(call, call->in[0]);
    mezzo_value x;
    MEZZO_TRY(stored(call, &x));
    return give_stored(call, mezzo_dropout(call->build->g, x, (float)ratio));
}

// Builds Not and IsNaN: the result means the opposite of what is stored.
mezzo_status mz_onnx_truth(mz_onnx_call *call) {
    const int which = call->op->which;
    mezzo_graph *g = call->build->g;
    mz_onnx_value *x = call->in[0];
    if (x->kind == MZ_ONNX_HOST) {
        double *out;
        MEZZO_TRY(mz_onnx_host(call, 0, true, x->rank, x->dim, &out));
        const int64_t n = mz_onnx_elements(x->rank, x->dim);
        for (int64_t i = 0; i < n; i++)
            out[i] = which ? isnan(x->numbers[i]) : x->numbers[i] == 0;
        return MEZZO_OK;
    }
    if (which == 0 && x->kind == MZ_ONNX_VALUE) {
        MEZZO_TRY(mz_onnx_give_same(call, x));
        call->out[0]->negated = !x->negated;
        return MEZZO_OK;
    }
    mezzo_value v;
    MEZZO_TRY(stored(call, &v));
    MEZZO_TRY(give_stored(call, mezzo_equal(g, v, v)));
    call->out[0]->integer = call->out[0]->negated = true;
    call->out[0]->floats = false;
    return MEZZO_OK;
}

// --- several inputs ------------------------------------------------------------------------------------------------
mezzo_value mz_onnx_greater(mezzo_graph *g, mezzo_value a, mezzo_value b) {
    return mezzo_less(g, b, a);
}
mezzo_value mz_onnx_greater_equal(mezzo_graph *g, mezzo_value a, mezzo_value b) {
    return mezzo_less_equal(g, b, a);
}
mezzo_value mz_onnx_mod(mezzo_graph *g, mezzo_value a, mezzo_value b) {
    return mezzo_sub(g, a, mezzo_mul(g, b, mezzo_floor(g, mezzo_div(g, a, b))));
}

// Makes x OP a known number, where Mezzo has one op for that.
static bool by_number(mz_onnx_call *call, mezzo_value *out, int *other, mezzo_status *status) {
    mezzo_graph *g = call->build->g;
    mezzo_value (*const make)(mezzo_graph *, mezzo_value, mezzo_value) = call->op->make2;
    double number;
    *other = mz_onnx_one_number(call->in[1], &number) ? 0 : mz_onnx_one_number(call->in[0], &number) ? 1 : -1;
    mz_onnx_value *x = *other < 0 || call->n_in != 2 ? NULL : call->in[*other];
    if (!x || x->integer || call->in[1 - *other]->rank > x->rank)
        return false;
    mezzo_value v;
    const bool factor = make == mezzo_mul || (make == mezzo_div && *other == 0);
    if (!factor && !(make == mezzo_pow && *other == 0 && (number == 2 || number == 3 || number == 0.5)))
        return false;
    if ((*status = mz_onnx_base(call, x, &v)) != MEZZO_OK)
        return true;
    *out = make == mezzo_mul   ? mezzo_scale(g, v, (float)number)
           : make == mezzo_div ? mezzo_scale(g, v, (float)(1 / number))
           : number == 0.5     ? mezzo_sqrt(g, v)
           : number == 2       ? mezzo_mul(g, v, v)
                               : mezzo_mul(g, mezzo_mul(g, v, v), v);
    return true;
}

mezzo_status mz_onnx_binary(mz_onnx_call *call) {
    const int truth = call->op->which;
    mezzo_graph *g = call->build->g;
    bool integer = truth || call->in[0]->integer;
    for (int k = 0; k < call->n_in; k++)
        if (!call->in[k])
            return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "it has no input %d", k);
    if (call->op->host2 && mz_onnx_known(call))
        return fold(call, integer);
    mezzo_value y, v[MZ_ONNX_SLOTS];
    int rank, other, perm[MEZZO_MAX_RANK];
    mezzo_status status = MEZZO_OK;
    if (by_number(call, &y, &other, &status)) {
        MEZZO_TRY(status);
        return mz_onnx_give_as(call, 0, false, call->in[other]->rank, y, call->in[other]->perm);
    }
    MEZZO_TRY(operands(call, &rank, perm, v));
    y = v[0];
    for (int k = 1; k < call->n_in; k++)
        y = call->op->make2(g, y, v[k]);
    if (call->op->make2 == mezzo_div && integer) // integers round towards 0
        y = mezzo_mul(g, mezzo_sign(g, y), mezzo_floor(g, mezzo_abs(g, y)));
    if (mezzo_value_rank(g, y) < rank) { // all operands have one element
        int64_t ones[MEZZO_MAX_RANK] = {1, 1, 1, 1, 1, 1};
        y = mz_onnx_shaped(g, y, rank, ones);
    }
    MEZZO_TRY(mz_onnx_give_as(call, 0, integer, rank, y, perm));
    call->out[0]->floats = integer && !truth;
    return MEZZO_OK;
}

mezzo_status mz_onnx_mean(mz_onnx_call *call) { // the mean of several values
    call->op = mz_onnx_op_of("Sum");
    MEZZO_TRY(mz_onnx_binary(call));
    if (call->out[0]->kind == MZ_ONNX_VALUE)
        call->out[0]->base = mezzo_scale(call->build->g, call->out[0]->base, 1.0F / (float)call->n_in);
    if (call->out[0]->kind == MZ_ONNX_VALUE && call->out[0]->moved.id >= 0)
        call->out[0]->moved = call->out[0]->base;
    const int64_t n = mz_onnx_elements(call->out[0]->rank, call->out[0]->dim);
    for (int64_t i = 0; call->out[0]->kind == MZ_ONNX_HOST && i < n; i++)
        call->out[0]->numbers[i] /= call->n_in;
    return mezzo_graph_status(call->build->g);
}

mezzo_status mz_onnx_where(mz_onnx_call *call) {
    mezzo_graph *g = call->build->g;
    mz_onnx_value *condition = call->in[0];
    const bool integer = call->in[1]->integer;
    int rank, perm[MEZZO_MAX_RANK];
    mezzo_value v[3];
    if (mz_onnx_known(call)) {
        int64_t dim[MEZZO_MAX_RANK];
        double *out;
        MEZZO_TRY(common_shape(call, &rank, dim));
        MEZZO_TRY(mz_onnx_host(call, 0, integer, rank, dim, &out));
        const int64_t n = mz_onnx_elements(rank, dim);
        for (int64_t i = 0; i < n; i++) {
            const mz_onnx_value *x =
                call->in[condition->numbers[mz_onnx_repeated(condition, rank, dim, i)] != 0 ? 1 : 2];
            out[i] = x->numbers[mz_onnx_repeated(x, rank, dim, i)];
        }
        return MEZZO_OK;
    }
    const bool negated = condition->kind == MZ_ONNX_VALUE && condition->negated;
    condition->negated = false;
    const mezzo_status status = operands(call, &rank, perm, v);
    condition->negated = negated;
    MEZZO_TRY(status);
    v[0] = mezzo_not_equal(g, v[0], mz_onnx_scalar(call, 0)); // makes integers 1 or 0
    MEZZO_TRY(
        mz_onnx_give_as(call, 0, integer, rank, mezzo_where(g, v[0], v[negated ? 2 : 1], v[negated ? 1 : 2]), perm));
    call->out[0]->floats = integer;
    return MEZZO_OK;
}

mezzo_status mz_onnx_cast(mz_onnx_call *call) {
    const int like = call->op->which;
    const mz_onnx_value *model = like ? call->in[1] : NULL;
    const int64_t to = like ? (model->integer ? MZ_ONNX_INT64 : MZ_ONNX_FLOAT) : mz_onnx_int_or(call->node, "to", 1);
    const bool integer = mz_onnx_is_integer(to);
    mz_onnx_value *x = call->in[0];
    if (x->kind == MZ_ONNX_HOST) {
        double *out;
        MEZZO_TRY(mz_onnx_host(call, 0, integer, x->rank, x->dim, &out));
        const int64_t n = mz_onnx_elements(x->rank, x->dim);
        for (int64_t i = 0; i < n; i++)
            out[i] = to == MZ_ONNX_BOOL ? x->numbers[i] != 0
                     : integer          ? trunc(x->numbers[i])
                                        : (double)(float)x->numbers[i];
        return MEZZO_OK;
    }
    mezzo_graph *g = call->build->g;
    mezzo_value v;
    if (integer == x->integer && to != MZ_ONNX_BOOL)
        return mz_onnx_give_same(call, x);
    MEZZO_TRY(stored(call, &v));
    if (to == MZ_ONNX_BOOL)
        v = mezzo_not_equal(g, v, mz_onnx_scalar(call, 0));
    else if (integer) // integers round towards 0
        v = mezzo_mul(g, mezzo_sign(g, v), mezzo_floor(g, mezzo_abs(g, v)));
    MEZZO_TRY(give_stored(call, v));
    call->out[0]->integer = integer;
    call->out[0]->floats = integer && to != MZ_ONNX_BOOL;
    return MEZZO_OK;
}
