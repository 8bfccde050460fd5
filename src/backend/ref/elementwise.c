// Ops on one element at a time: sums, products, activations, dropout.
#include <math.h>

#include "backend/ref/ref.h"

// GELU's tanh form: 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))), Hendrycks & Gimpel 2016.
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
        return x <= 0 ? 0 : dy; // a choice, not a product: an infinite dy at x < 0 is still 0, as in torch
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
    // The factor is FP32 because every backend has it so: dropout is then one correctly rounded product everywhere.
    return mz_uniform(words[element & 3]) >= call->attrs.p ? (double)(float)(1 / (1 - (double)call->attrs.p)) : 0;
}

// Where element i of y comes from in an operand: dimensions side by side from the last, those of 1 repeat.
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

#define BINARY(name, formula)                                                                                          \
    void mz_ref_##name(const mz_call *call) {                                                                          \
        const mz_tensor *y = &call->out[0];                                                                            \
        for (int64_t i = 0, n = mz_shape_count(&y->shape); i < n; i++) {                                               \
            double a = mz_ref_get(&call->in[0], broadcast_at(&call->in[0].shape, &y->shape, i));                       \
            double b = mz_ref_get(&call->in[1], broadcast_at(&call->in[1].shape, &y->shape, i));                       \
            mz_ref_put(y, i, formula);                                                                                 \
        }                                                                                                              \
    }
#include "graph/binary.def"

void mz_ref_scale(const mz_call *call) {
    int64_t n = mz_shape_count(&call->out[0].shape);
    for (int64_t i = 0; i < n; i++)
        mz_ref_put(&call->out[0], i, (double)call->attrs.alpha * mz_ref_get(&call->in[0], i));
}

static void activate(const mz_call *call, mz_act act) {
    int64_t n = mz_shape_count(&call->out[0].shape);
    for (int64_t i = 0; i < n; i++)
        mz_ref_put(&call->out[0], i, mz_ref_activation(act, mz_ref_get(&call->in[0], i)));
}

static void activate_dx(const mz_call *call, mz_act act) {
    int64_t n = mz_shape_count(&call->out[0].shape);
    for (int64_t i = 0; i < n; i++) {
        double dy = mz_ref_get(&call->in[0], i), x = mz_ref_get(&call->in[1], i);
        mz_ref_put(&call->out[0], i, mz_ref_activation_dx(act, dy, x));
    }
}

// Of row r of F numbers: the gate's is at r·2F, the other factor's F after it.
void mz_ref_swiglu(const mz_call *call) {
    const mz_shape *shape = &call->out[0].shape;
    int64_t n = mz_shape_count(shape), width = shape->dim[shape->rank - 1];
    for (int64_t i = 0; i < n; i++) {
        int64_t gate = i / width * 2 * width + i % width;
        double y = mz_ref_activation(MZ_ACT_SILU, mz_ref_get(&call->in[0], gate));
        mz_ref_put(&call->out[0], i, y * mz_ref_get(&call->in[0], gate + width));
    }
}

void mz_ref_swiglu_dx(const mz_call *call) {
    const mz_shape *shape = &call->in[0].shape;
    int64_t n = mz_shape_count(shape), width = shape->dim[shape->rank - 1];
    for (int64_t i = 0; i < n; i++) {
        int64_t gate = i / width * 2 * width + i % width;
        double dy = mz_ref_get(&call->in[0], i), x = mz_ref_get(&call->in[1], gate);
        double up = mz_ref_get(&call->in[1], gate + width);
        mz_ref_put(&call->out[0], gate, mz_ref_activation_dx(MZ_ACT_SILU, dy * up, x));
        mz_ref_put(&call->out[0], gate + width, dy * mz_ref_activation(MZ_ACT_SILU, x));
    }
}

static mz_act gelu_form(const mz_call *call) {
    return call->attrs.tanh ? MZ_ACT_GELU_TANH : MZ_ACT_GELU;
}

void mz_ref_exp(const mz_call *call) {
    for (int64_t i = 0, n = mz_shape_count(&call->out[0].shape); i < n; i++)
        mz_ref_put(&call->out[0], i, exp(mz_ref_get(&call->in[0], i)));
}

void mz_ref_abs(const mz_call *call) {
    for (int64_t i = 0, n = mz_shape_count(&call->out[0].shape); i < n; i++)
        mz_ref_put(&call->out[0], i, fabs(mz_ref_get(&call->in[0], i)));
}

void mz_ref_abs_dx(const mz_call *call) {
    for (int64_t i = 0, n = mz_shape_count(&call->out[0].shape); i < n; i++) {
        double dy = mz_ref_get(&call->in[0], i), x = mz_ref_get(&call->in[1], i);
        mz_ref_put(&call->out[0], i, x > 0 ? dy : x < 0 ? -dy : isnan(x) ? x : 0);
    }
}

void mz_ref_clamp(const mz_call *call) {
    const double low = (double)call->attrs.low, high = (double)call->attrs.high;
    for (int64_t i = 0, n = mz_shape_count(&call->out[0].shape); i < n; i++) {
        double x = mz_ref_get(&call->in[0], i);
        mz_ref_put(&call->out[0], i, x < low ? low : x > high ? high : x); // NaN stays NaN
    }
}

void mz_ref_clamp_dx(const mz_call *call) {
    const double low = (double)call->attrs.low, high = (double)call->attrs.high;
    for (int64_t i = 0, n = mz_shape_count(&call->out[0].shape); i < n; i++) {
        double x = mz_ref_get(&call->in[1], i);
        mz_ref_put(&call->out[0], i, x >= low && x <= high ? mz_ref_get(&call->in[0], i) : 0);
    }
}

void mz_ref_relu(const mz_call *call) {
    activate(call, MZ_ACT_RELU);
}

void mz_ref_gelu(const mz_call *call) {
    activate(call, gelu_form(call));
}

void mz_ref_silu(const mz_call *call) {
    activate(call, MZ_ACT_SILU);
}

void mz_ref_relu_dx(const mz_call *call) {
    activate_dx(call, MZ_ACT_RELU);
}

void mz_ref_gelu_dx(const mz_call *call) {
    activate_dx(call, gelu_form(call));
}

void mz_ref_silu_dx(const mz_call *call) {
    activate_dx(call, MZ_ACT_SILU);
}

void mz_ref_dropout(const mz_call *call) {
    int64_t n = mz_shape_count(&call->out[0].shape);
    for (int64_t i = 0; i < n; i++) {
        double factor = mz_ref_dropout_factor(call, i);
        // A dropped infinity is 0, not NaN.
        mz_ref_put(&call->out[0], i, factor == 0 ? 0 : factor * mz_ref_get(&call->in[0], i));
    }
}
