// ONNX ops by name: each in terms of Mezzo's own, or, where all inputs are known, computed on the spot.
#include <math.h>

#include "onnx/moves.h"

// --- element by element --------------------------------------------------------------------------------------------
// NumPy's rules for two shapes. False: they do not fit.
static bool broadcast(int rank_a, const int64_t *a, int rank_b, const int64_t *b, int *rank, int64_t *out) {
    *rank = rank_a > rank_b ? rank_a : rank_b;
    for (int i = 0; i < *rank; i++) {
        const int64_t x = i < *rank - rank_a ? 1 : a[i - (*rank - rank_a)],
                      y = i < *rank - rank_b ? 1 : b[i - (*rank - rank_b)];
        if (x != y && x != 1 && y != 1)
            return false;
        out[i] = x == 1 ? y : x;
    }
    return true;
}

// The element of `value` that stands at element `index` of a shape that it was brought to.
static int64_t element_of(const mz_onnx_value *value, int rank, const int64_t *dim, int64_t index) {
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

enum element {
    ADD,
    SUB,
    MUL,
    DIV,
    POW,
    MAX,
    MIN,
    LESS,
    LESS_EQUAL,
    GREATER,
    GREATER_EQUAL,
    EQUAL,
    AND,
    OR,
    NOT,
    WHERE,
    RELU,
    SIGMOID,
    TANH,
    ERF,
    EXP,
    LOG,
    SQRT,
    RECIPROCAL,
    NEG,
    ABS,
    SIN,
    COS,
    SIGN,
    FLOOR,
    CEIL,
    ROUND,
    SOFTPLUS,
    GELU,
    LEAKY,
    ELU,
    CLIP,
    IS_NAN,
    IDENTITY,
    SILU,
    HARD_SWISH,
    HARD_SIGMOID
};
static bool gives_truth(int which) {
    return (which >= LESS && which <= NOT) || which == IS_NAN;
}

static double h_add(double a, double b, double c) {
    return (void)c, a + b;
}
static double h_sub(double a, double b, double c) {
    return (void)c, a - b;
}
static double h_mul(double a, double b, double c) {
    return (void)c, a * b;
}
static double h_div(double a, double b, double c) {
    return (void)c, a / b;
}
static double h_pow(double a, double b, double c) {
    return (void)c, pow(a, b);
}
static double h_max(double a, double b, double c) {
    return (void)c, fmax(a, b);
}
static double h_min(double a, double b, double c) {
    return (void)c, fmin(a, b);
}
static double h_less(double a, double b, double c) {
    return (void)c, a < b;
}
static double h_less_equal(double a, double b, double c) {
    return (void)c, a <= b;
}
static double h_greater(double a, double b, double c) {
    return (void)c, a > b;
}
static double h_greater_equal(double a, double b, double c) {
    return (void)c, a >= b;
}
static double h_equal(double a, double b, double c) {
    return (void)c, a == b;
}
static double h_and(double a, double b, double c) {
    return (void)c, a != 0 && b != 0;
}
static double h_or(double a, double b, double c) {
    return (void)c, a != 0 || b != 0;
}
static double h_not(double a, double b, double c) {
    return (void)b, (void)c, a == 0;
}
static double h_where(double a, double b, double c) {
    return a != 0 ? b : c;
}
static double h_sqrt(double a, double b, double c) {
    return (void)b, (void)c, sqrt(a);
}
static double h_neg(double a, double b, double c) {
    return (void)b, (void)c, -a;
}
static double h_abs(double a, double b, double c) {
    return (void)b, (void)c, fabs(a);
}
static double h_floor(double a, double b, double c) {
    return (void)b, (void)c, floor(a);
}
static double h_ceil(double a, double b, double c) {
    return (void)b, (void)c, ceil(a);
}
static double h_reciprocal(double a, double b, double c) {
    return (void)b, (void)c, 1 / a;
}
static double h_exp(double a, double b, double c) {
    return (void)b, (void)c, exp(a);
}
static double h_log(double a, double b, double c) {
    return (void)b, (void)c, log(a);
}
static double h_sin(double a, double b, double c) {
    return (void)b, (void)c, sin(a);
}
static double h_cos(double a, double b, double c) {
    return (void)b, (void)c, cos(a);
}
static double h_same(double a, double b, double c) {
    return (void)b, (void)c, a;
}

static mezzo_status fold_elements(mz_onnx_call *call, int which, double (*host)(double, double, double)) {
    int rank = call->in[0]->rank;
    int64_t dim[MEZZO_MAX_RANK];
    memcpy(dim, call->in[0]->dim, sizeof dim);
    for (int i = 1; i < call->n_in && i < 3; i++)
        if (!broadcast(rank, (int64_t[MEZZO_MAX_RANK]){dim[0], dim[1], dim[2], dim[3], dim[4], dim[5]},
                       call->in[i]->rank, call->in[i]->dim, &rank, dim))
            return mz_onnx_fail(call, MEZZO_ERR_INVALID, "its shapes do not fit");
    const bool integer = gives_truth(which) || call->in[which == WHERE ? 1 : 0]->integer;
    double *out, v[3] = {0};
    MEZZO_TRY(mz_onnx_host(call, 0, integer, rank, dim, &out));
    const int64_t n = mz_onnx_elements(rank, dim);
    for (int64_t i = 0; i < n; i++) {
        for (int k = 0; k < call->n_in && k < 3; k++)
            v[k] = call->in[k]->numbers[element_of(call->in[k], rank, dim, i)];
        if (which == DIV && integer && v[1] == 0)
            return mz_onnx_fail(call, MEZZO_ERR_FORMAT, "it divides a known integer by 0");
        out[i] = host(v[0], v[1], v[2]);
        if (integer && which == DIV)
            out[i] = trunc(out[i]);
        else if (!integer)
            out[i] = (double)(float)out[i];
    }
    return MEZZO_OK;
}

// One known number that is no truth value.
static bool scalar(const mz_onnx_value *value, double *out) {
    if (!value || value->kind != MZ_ONNX_HOST || mz_onnx_elements(value->rank, value->dim) != 1)
        return false;
    *out = value->numbers[0];
    return true;
}

static mezzo_status element1(mz_onnx_call *call, int which) {
    mezzo_graph *g = call->build->g;
    mezzo_value x, y = MEZZO_NONE;
    MEZZO_TRY(mz_onnx_get(call, 0, &x));
    const MzPb__Node *node = call->node;
    double low = -INFINITY, high = INFINITY;
    switch (which) {
    case RELU:
        y = mezzo_relu(g, x);
        break;
    case SIGMOID:
        y = mezzo_sigmoid(g, x);
        break;
    case TANH:
        y = mezzo_tanh(g, x);
        break;
    case ERF:
        y = mezzo_erf(g, x);
        break;
    case EXP:
        y = mezzo_exp(g, x);
        break;
    case LOG:
        y = mezzo_log(g, x);
        break;
    case SQRT:
        y = mezzo_sqrt(g, x);
        break;
    case RECIPROCAL:
        y = mezzo_reciprocal(g, x);
        break;
    case NEG:
        y = mezzo_scale(g, x, -1.0F);
        break;
    case ABS:
        y = mezzo_abs(g, x);
        break;
    case SIN:
        y = mezzo_sin(g, x);
        break;
    case COS:
        y = mezzo_cos(g, x);
        break;
    case SIGN:
        y = mezzo_sign(g, x);
        break;
    case FLOOR:
        y = mezzo_floor(g, x);
        break;
    case CEIL:
        y = mezzo_ceil(g, x);
        break;
    case ROUND:
        y = mezzo_round(g, x);
        break;
    case SOFTPLUS:
        y = mezzo_softplus(g, x);
        break;
    case SILU:
        y = mezzo_silu(g, x);
        break;
    case LEAKY:
        y = mezzo_leaky_relu(g, x, (float)mz_onnx_float_or(node, "alpha", 0.01));
        break;
    case ELU:
        y = mezzo_elu(g, x, (float)mz_onnx_float_or(node, "alpha", 1));
        break;
    case GELU: {
        const MzPb__Attribute *form = mz_onnx_attribute(node, "approximate");
        y = mezzo_gelu(g, x, form && form->s.len == 4 && memcmp(form->s.data, "tanh", 4) == 0);
        break;
    }
    case CLIP:
        if ((call->n_in > 1 && call->in[1] && !scalar(call->in[1], &low)) ||
            (call->n_in > 2 && call->in[2] && !scalar(call->in[2], &high)))
            return mz_onnx_fail(call, MEZZO_ERR_UNSUPPORTED, "its bounds must be known when the model is built");
        y = mezzo_clamp(g, x, (float)low, (float)high);
        break;
    case HARD_SIGMOID:
    case HARD_SWISH: {
        const double slope = which == HARD_SWISH ? 1.0 / 6 : mz_onnx_float_or(node, "alpha", 0.2);
        const double at = which == HARD_SWISH ? 0.5 : mz_onnx_float_or(node, "beta", 0.5);
        mezzo_value offset;
        MEZZO_TRY(mz_onnx_constant(call, false, 0, NULL, &at, &offset));
        y = mezzo_clamp(g, mezzo_add(g, mezzo_scale(g, x, (float)slope), offset), 0, 1);
        if (which == HARD_SWISH)
            y = mezzo_mul(g, x, y);
        break;
    }
    case NOT:
    case IS_NAN:
        if (which == IS_NAN)
            y = mezzo_equal(g, x, x);
        MEZZO_TRY(mz_onnx_give(call, 0, true, call->in[0]->rank, which == NOT ? x : y));
        call->out[0]->negated = true;
        return MEZZO_OK;
    default:
        break;
    }
    return mz_onnx_give(call, 0, false, call->in[0]->rank, y);
}

// x OP a known number, where that is one op of its own.
static bool by_number(mz_onnx_call *call, int which, mezzo_value *out, mezzo_status *status) {
    mezzo_graph *g = call->build->g;
    double number;
    const int other = scalar(call->in[1], &number) ? 0 : scalar(call->in[0], &number) ? 1 : -1;
    const mz_onnx_value *x = other < 0 ? NULL : call->in[other];
    if (!x || x->integer || call->in[1 - other]->rank > x->rank)
        return false;
    mezzo_value v;
    const bool factor = which == MUL || (which == DIV && other == 0);
    if (!factor && !(which == POW && other == 0 && (number == 2 || number == 0.5)))
        return false;
    if ((*status = mz_onnx_get(call, other, &v)) != MEZZO_OK)
        return true;
    *out = which == MUL    ? mezzo_scale(g, v, (float)number)
           : which == DIV  ? mezzo_scale(g, v, (float)(1 / number))
           : number == 0.5 ? mezzo_sqrt(g, v)
                           : mezzo_mul(g, v, v);
    return true;
}

static mezzo_status element2(mz_onnx_call *call, int which) {
    mezzo_graph *g = call->build->g;
    mezzo_value a, b, y = MEZZO_NONE;
    int rank = call->in[0]->rank;
    for (int i = 1; i < call->n_in; i++)
        rank = call->in[i]->rank > rank ? call->in[i]->rank : rank;
    mezzo_status status = MEZZO_OK;
    if (by_number(call, which, &y, &status)) {
        MEZZO_TRY(status);
        return mz_onnx_give(call, 0, false, rank, y);
    }
    MEZZO_TRY(mz_onnx_get(call, 0, &a));
    MEZZO_TRY(mz_onnx_get(call, 1, &b));
    const bool integers = call->in[0]->integer || call->in[1]->integer;
    if (integers && !gives_truth(which))
        return mz_onnx_fail(call, MEZZO_ERR_UNSUPPORTED, "it computes with integers of an input");
    switch (which) {
    case ADD:
        y = mezzo_add(g, a, b);
        break;
    case SUB:
        y = mezzo_sub(g, a, b);
        break;
    case MUL:
        y = mezzo_mul(g, a, b);
        break;
    case DIV:
        y = mezzo_div(g, a, b);
        break;
    case POW:
        y = mezzo_pow(g, a, b);
        break;
    case MAX:
        y = mezzo_maximum(g, a, b);
        break;
    case MIN:
        y = mezzo_minimum(g, a, b);
        break;
    case LESS:
        y = mezzo_less(g, a, b);
        break;
    case LESS_EQUAL:
        y = mezzo_less_equal(g, a, b);
        break;
    case GREATER:
        y = mezzo_less(g, b, a);
        break;
    case GREATER_EQUAL:
        y = mezzo_less_equal(g, b, a);
        break;
    case EQUAL:
        y = mezzo_equal(g, a, b);
        break;
    case AND:
        y = mezzo_logical_and(g, a, b);
        break;
    case OR:
        y = mezzo_logical_or(g, a, b);
        break;
    default:
        break;
    }
    return mz_onnx_give(call, 0, gives_truth(which), rank, y);
}

static mezzo_status element3(mz_onnx_call *call) { // Where
    mezzo_graph *g = call->build->g;
    mz_onnx_value *condition = call->in[0];
    const bool negated = condition->kind == MZ_ONNX_VALUE && condition->negated;
    mezzo_value c, a, b;
    int rank = condition->rank;
    for (int i = 1; i < 3; i++)
        rank = call->in[i]->rank > rank ? call->in[i]->rank : rank;
    if (call->in[1]->integer || call->in[2]->integer)
        return mz_onnx_fail(call, MEZZO_ERR_UNSUPPORTED, "it chooses between integers of an input");
    if (condition->kind == MZ_ONNX_HOST) { // as a number that is compared
        MEZZO_TRY(mz_onnx_constant(call, false, condition->rank, condition->dim, condition->numbers, &c));
        mezzo_value zero;
        MEZZO_TRY(mz_onnx_constant(call, false, 0, NULL, &(double){0}, &zero));
        c = mezzo_not_equal(g, c, zero);
    } else if (negated) {
        c = condition->value;
    } else {
        MEZZO_TRY(mz_onnx_get(call, 0, &c));
    }
    MEZZO_TRY(mz_onnx_get(call, 1, &a));
    MEZZO_TRY(mz_onnx_get(call, 2, &b));
    return mz_onnx_give(call, 0, false, rank, negated ? mezzo_where(g, c, b, a) : mezzo_where(g, c, a, b));
}

static const mz_onnx_op *op_of_call(const mz_onnx_call *call) {
    return mz_onnx_op_of(call->node->op_type);
}

static mezzo_status same(mz_onnx_call *call) { // the output is the input
    const mz_onnx_value *x = call->in[0];
    mz_onnx_value *y = call->out[0];
    const char *name = y->name;
    *y = *x;
    y->name = name;
    if (x->kind == MZ_ONNX_WEIGHT && !x->of)
        y->of = call->in[0];
    return MEZZO_OK;
}

static mezzo_status elements(mz_onnx_call *call, int which) {
    double (*const host)(double, double, double) = op_of_call(call)->host;
    if (which == IDENTITY)
        return same(call);
    if (which != CLIP && call->n_in != op_of_call(call)->least)
        return mz_onnx_fail(call, MEZZO_ERR_UNSUPPORTED, "%d inputs", call->n_in);
    if (host && mz_onnx_known(call) && call->n_in <= 3)
        return fold_elements(call, which, host);
    if (which == WHERE)
        return element3(call);
    return which < NOT ? element2(call, which) : element1(call, which);
}

static mezzo_status cast(mz_onnx_call *call, int which) {
    (void)which;
    const int64_t to = mz_onnx_int_or(call->node, "to", MZ_ONNX_FLOAT);
    const bool integer = to != MZ_ONNX_FLOAT && to != MZ_ONNX_DOUBLE && to != MZ_ONNX_FLOAT16 && to != MZ_ONNX_BFLOAT16;
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
    if (integer == x->integer && !(to == MZ_ONNX_BOOL))
        return same(call);
    mezzo_value v;
    MEZZO_TRY(mz_onnx_get(call, 0, &v));
    if (to == MZ_ONNX_BOOL) {
        mezzo_value zero;
        MEZZO_TRY(mz_onnx_constant(call, false, 0, NULL, &(double){0}, &zero));
        return mz_onnx_give(call, 0, true, x->rank, mezzo_not_equal(call->build->g, v, zero));
    }
    if (integer)
        return mz_onnx_fail(call, MEZZO_ERR_UNSUPPORTED, "it makes integers of computed numbers");
    return mz_onnx_give(call, 0, false, x->rank, mezzo_cast(call->build->g, v, MEZZO_F32));
}

static const mz_onnx_op ops[] = {
    {"Abs", elements, ABS, 1, h_abs},
    {"Add", elements, ADD, 2, h_add},
    {"And", elements, AND, 2, h_and},
    {"AveragePool", mz_onnx_pool, 0, 1, NULL},
    {"Cast", cast, 0, 1, NULL},
    {"Ceil", elements, CEIL, 1, h_ceil},
    {"Clip", elements, CLIP, 1, NULL},
    {"Concat", mz_onnx_concat, 0, 1, NULL},
    {"Constant", mz_onnx_constant_node, 0, 0, NULL},
    {"ConstantOfShape", mz_onnx_constant_of_shape, 0, 1, NULL},
    {"Conv", mz_onnx_conv, 0, 2, NULL},
    {"Cos", elements, COS, 1, h_cos},
    {"Div", elements, DIV, 2, h_div},
    {"Dropout", elements, IDENTITY, 1, h_same},
    {"Elu", elements, ELU, 1, NULL},
    {"Equal", elements, EQUAL, 2, h_equal},
    {"Erf", elements, ERF, 1, NULL},
    {"Exp", elements, EXP, 1, h_exp},
    {"Expand", mz_onnx_expand, 0, 2, NULL},
    {"Flatten", mz_onnx_flatten, 0, 1, NULL},
    {"Floor", elements, FLOOR, 1, h_floor},
    {"Gather", mz_onnx_gather, 0, 2, NULL},
    {"Gelu", elements, GELU, 1, NULL},
    {"Gemm", mz_onnx_gemm, 0, 2, NULL},
    {"GlobalAveragePool", mz_onnx_global_pool, 0, 1, NULL},
    {"Greater", elements, GREATER, 2, h_greater},
    {"GreaterOrEqual", elements, GREATER_EQUAL, 2, h_greater_equal},
    {"HardSigmoid", elements, HARD_SIGMOID, 1, NULL},
    {"HardSwish", elements, HARD_SWISH, 1, NULL},
    {"Identity", elements, IDENTITY, 1, h_same},
    {"IsNaN", elements, IS_NAN, 1, NULL},
    {"LayerNormalization", mz_onnx_layer_norm, 0, 2, NULL},
    {"LeakyRelu", elements, LEAKY, 1, NULL},
    {"Less", elements, LESS, 2, h_less},
    {"LessOrEqual", elements, LESS_EQUAL, 2, h_less_equal},
    {"Log", elements, LOG, 1, h_log},
    {"MatMul", mz_onnx_matmul, 0, 2, NULL},
    {"Max", elements, MAX, 2, h_max},
    {"Min", elements, MIN, 2, h_min},
    {"Mul", elements, MUL, 2, h_mul},
    {"Neg", elements, NEG, 1, h_neg},
    {"Not", elements, NOT, 1, h_not},
    {"Or", elements, OR, 2, h_or},
    {"Pow", elements, POW, 2, h_pow},
    {"Range", mz_onnx_range, 0, 3, NULL},
    {"Reciprocal", elements, RECIPROCAL, 1, h_reciprocal},
    {"ReduceMean", mz_onnx_reduce, 1, 1, NULL},
    {"ReduceSum", mz_onnx_reduce, 0, 1, NULL},
    {"Relu", elements, RELU, 1, NULL},
    {"Reshape", mz_onnx_reshape, 0, 2, NULL},
    {"RMSNormalization", mz_onnx_layer_norm, 1, 2, NULL},
    {"Round", elements, ROUND, 1, NULL},
    {"Shape", mz_onnx_shape, 0, 1, NULL},
    {"Sigmoid", elements, SIGMOID, 1, NULL},
    {"Sign", elements, SIGN, 1, NULL},
    {"Sin", elements, SIN, 1, h_sin},
    {"Slice", mz_onnx_slice, 0, 3, NULL},
    {"Softmax", mz_onnx_softmax, 0, 1, NULL},
    {"Softplus", elements, SOFTPLUS, 1, NULL},
    {"Split", mz_onnx_split, 0, 1, NULL},
    {"Sqrt", elements, SQRT, 1, h_sqrt},
    {"Squeeze", mz_onnx_squeeze, 0, 1, NULL},
    {"Sub", elements, SUB, 2, h_sub},
    {"Swish", elements, SILU, 1, NULL},
    {"Tanh", elements, TANH, 1, NULL},
    {"Transpose", mz_onnx_transpose, 0, 1, NULL},
    {"Unsqueeze", mz_onnx_squeeze, 1, 2, NULL},
    {"Where", elements, WHERE, 3, h_where},
};

const mz_onnx_op *mz_onnx_op_of(const char *name) {
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (strcmp(ops[i].name, name) == 0)
            return &ops[i];
    return NULL;
}
