// Runs ops on one element at a time: sums, products, activations, dropout.
#include <math.h>

#include "backend/ref/ref.h"

// GELU's tanh form is 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))), Hendrycks & Gimpel 2016.
static const double gelu_k = 0.79788456080286535588; // √(2/π)
static const double gelu_c = 0.044715;

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

double mz_ref_activation(mz_act act, double x) {
    switch (act) {
    case MZ_ACT_RELU:
        return x < 0 ? 0 : x; // NaN stays NaN
    case MZ_ACT_GELU:
        return 0.5 * x * (1 + erf(x * M_SQRT1_2));
    case MZ_ACT_GELU_TANH:
        return 0.5 * x * (1 + tanh(gelu_k * (x + gelu_c * x * x * x)));
    case MZ_ACT_SILU:
        return x * sigmoid(x);
    default:
        return x;
    }
}

double mz_ref_activation_dx(mz_act act, double dy, double x) {
    double s, t;
    switch (act) {
    case MZ_ACT_RELU:
        return x <= 0 ? 0 : dy; // a selection, not a product: an infinite dy at x < 0 is still 0, as in PyTorch
    case MZ_ACT_GELU:           // Φ(x) + x·φ(x)
        return dy * (0.5 * (1 + erf(x * M_SQRT1_2)) + x * exp(-0.5 * x * x) * (0.5 * M_2_SQRTPI * M_SQRT1_2));
    case MZ_ACT_GELU_TANH:
        t = tanh(gelu_k * (x + gelu_c * x * x * x));
        return dy * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * gelu_k * (1 + 3 * gelu_c * x * x));
    case MZ_ACT_SILU:
        s = sigmoid(x);
        return dy * (s * (1 + x * (1 - s)));
    default:
        return dy;
    }
}

double mz_ref_dropout_factor(const mz_call *call, int64_t element) {
    mz_philox_key key = {.seed = call->rng->seed,
                         .step = (uint32_t)(call->rng->step ^ call->rng->step >> 32),
                         .tensor = call->attrs.rng};
    uint32_t words[4];
    mz_philox(key, (uint64_t)element >> 2, words);
    // The factor is FP32, as in every backend, so that dropout is one correctly rounded product everywhere.
    return mz_uniform(words[element & 3]) >= call->attrs.p ? (double)(float)(1 / (1 - (double)call->attrs.p)) : 0;
}

// Returns the element of an operand for element i of y: dimensions are aligned from the last, and those of 1 repeat.
static int64_t broadcast_at(const mz_shape *from, const mz_shape *y, int64_t i) {
    int64_t at = 0, stride = 1;
    for (int d = 1; d <= from->rank; d++) {
        int64_t n = from->dim[from->rank - d], k = i % y->dim[y->rank - d];
        at += n == 1 ? 0 : k * stride;
        stride *= n;
        i /= y->dim[y->rank - d];
    }
    return at;
}

// --- element.def ---------------------------------------------------------------------------------------------------
#define num(x)            (x)
#define less(a, b)        ((a) < (b))
#define less_equal(a, b)  ((a) <= (b))
#define equal(a, b)       ((a) == (b))
#define choose(m, a, b)   ((m) ? (a) : (b))
#define fused(a, b, c)    ((a) * (b) + (c))
#define magnitude(x)      fabs(x)
#define root(x)           sqrt(x)
#define power(a, b)       pow(a, b)
#define logarithm(x)      log(x)
#define logarithm_1p(x)   log1p(x)
#define exponential(x)    exp(x)
#define hyperbolic(x)     tanh(x)
#define logistic(x)       sigmoid(x)
#define error_function(x) erf(x)
#define sine(x)           sin(x)
#define cosine(x)         cos(x)
#define down(x)           floor(x)
#define up(x)             ceil(x)
#define nearest(x)        rint(x)
#define silu(x)           mz_ref_activation(MZ_ACT_SILU, x)
#define silu_dx(dy, x)    mz_ref_activation_dx(MZ_ACT_SILU, dy, x)

typedef double element_fn(const mz_attrs *attrs, const double v[MZ_OPERANDS]);
static void each_element(const mz_call *call, element_fn *fn) {
    const mz_tensor *y = &call->out[0];
    for (int64_t i = 0, n = mz_shape_count(&y->shape); i < n; i++) {
        double v[MZ_OPERANDS] = {0};
        for (int k = 0; k < call->n_in; k++)
            v[k] = mz_ref_get(&call->in[k], broadcast_at(&call->in[k].shape, &y->shape, i));
        mz_ref_put(y, i, fn(&call->attrs, v));
    }
}

#define KERNEL(name, names, formula)                                                                                   \
    static double name##_of(const mz_attrs *attrs, const double v[MZ_OPERANDS]) {                                      \
        const double alpha = (double)attrs->alpha, low = (double)attrs->low, high = (double)attrs->high;               \
        (void)alpha, (void)low, (void)high;                                                                            \
        names return formula;                                                                                          \
    }                                                                                                                  \
    void mz_ref_##name(const mz_call *call) {                                                                          \
        each_element(call, name##_of);                                                                                 \
    }
#define NAME(a, k)                                                                                                     \
    const double a = v[k];                                                                                             \
    (void)a;
#define KERNEL1(name, a, formula)       KERNEL(name, NAME(a, 0), formula)
#define KERNEL2(name, a, b, formula)    KERNEL(name, NAME(a, 0) NAME(b, 1), formula)
#define KERNEL3(name, a, b, c, formula) KERNEL(name, NAME(a, 0) NAME(b, 1) NAME(c, 2), formula)
#include "graph/element.def"

static void activate(const mz_call *call, mz_act act) {
    int64_t n = mz_shape_count(&mz_out(call, gelu, y)->shape);
    for (int64_t i = 0; i < n; i++)
        mz_ref_put(mz_out(call, gelu, y), i, mz_ref_activation(act, mz_ref_get(mz_in(call, gelu, x), i)));
}

static void activate_dx(const mz_call *call, mz_act act) {
    int64_t n = mz_shape_count(&mz_out(call, gelu_dx, dx)->shape);
    for (int64_t i = 0; i < n; i++) {
        double dy = mz_ref_get(mz_in(call, gelu_dx, dy), i), x = mz_ref_get(mz_in(call, gelu_dx, x), i);
        mz_ref_put(mz_out(call, gelu_dx, dx), i, mz_ref_activation_dx(act, dy, x));
    }
}

// The gate of row r of F numbers is at r·2F, and the other factor F numbers further.
void mz_ref_swiglu(const mz_call *call) {
    const mz_shape *shape = &mz_out(call, swiglu, y)->shape;
    int64_t n = mz_shape_count(shape), width = shape->dim[shape->rank - 1];
    for (int64_t i = 0; i < n; i++) {
        int64_t gate = i / width * 2 * width + i % width;
        double y = mz_ref_activation(mz_act_of_gate(call->attrs.act), mz_ref_get(mz_in(call, swiglu, x), gate));
        mz_ref_put(mz_out(call, swiglu, y), i, y * mz_ref_get(mz_in(call, swiglu, x), gate + width));
    }
}

void mz_ref_swiglu_dx(const mz_call *call) {
    const mz_shape *shape = &mz_in(call, swiglu_dx, dy)->shape;
    int64_t n = mz_shape_count(shape), width = shape->dim[shape->rank - 1];
    for (int64_t i = 0; i < n; i++) {
        int64_t gate = i / width * 2 * width + i % width;
        double dy = mz_ref_get(mz_in(call, swiglu_dx, dy), i), x = mz_ref_get(mz_in(call, swiglu_dx, x), gate);
        double up = mz_ref_get(mz_in(call, swiglu_dx, x), gate + width);
        mz_ref_put(mz_out(call, swiglu_dx, dx), gate,
                   mz_ref_activation_dx(mz_act_of_gate(call->attrs.act), dy * up, x));
        mz_ref_put(mz_out(call, swiglu_dx, dx), gate + width,
                   dy * mz_ref_activation(mz_act_of_gate(call->attrs.act), x));
    }
}

static mz_act gelu_form(const mz_call *call) {
    return call->attrs.tanh ? MZ_ACT_GELU_TANH : MZ_ACT_GELU;
}

void mz_ref_gelu(const mz_call *call) {
    activate(call, gelu_form(call));
}

void mz_ref_gelu_dx(const mz_call *call) {
    activate_dx(call, gelu_form(call));
}

void mz_ref_dropout(const mz_call *call) {
    int64_t n = mz_shape_count(&mz_out(call, dropout, y)->shape);
    for (int64_t i = 0; i < n; i++) {
        double factor = mz_ref_dropout_factor(call, i);
        // A dropped infinity becomes 0, not NaN.
        mz_ref_put(mz_out(call, dropout, y), i, factor == 0 ? 0 : factor * mz_ref_get(mz_in(call, dropout, x), i));
    }
}
