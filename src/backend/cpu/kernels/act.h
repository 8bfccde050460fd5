// Computes activations and their gradients, one vector at a time, in FP32.
#ifndef MZ_CPU_ACT_H
#define MZ_CPU_ACT_H

#include "backend/cpu/kernels/vec.h"
#include "graph/op.h"

// Computes GELU's tanh form, 0.5·x·(1 + tanh u) with u = √(2/π)·(x + 0.044715·x³), as x·sigmoid(2u), without
// cancellation for negative x.
static inline vf gelu_tanh_sigmoid(vf x) {
    const float k = 1.5957691216057308f; // 2·√(2/π)
    return vsigmoid(x * vfma(x * x, vset(k * 0.044715f), vset(k)));
}

static inline vf vact(mz_act act, vf x) {
    vf cdf, pdf;
    switch (act) {
    case MZ_ACT_RELU:
        return vselect(vless(x, (vf){0}), (vf){0}, x); // NaN stays NaN
    case MZ_ACT_GELU:
        vnormal(x, &cdf, &pdf);
        return x * cdf;
    case MZ_ACT_GELU_TANH:
        return x * gelu_tanh_sigmoid(x);
    case MZ_ACT_SILU:
        return x * vsigmoid(x);
    default:
        return x;
    }
}

// Computes dy·act'(x).
static inline vf vact_dx(mz_act act, vf dy, vf x) {
    vf s, cdf, pdf;
    switch (act) {
    case MZ_ACT_RELU: // a selection, not a product: an infinite dy at x <= 0 is still 0, as in PyTorch
        return vselect(vless_equal(x, (vf){0}), (vf){0}, dy);
    case MZ_ACT_GELU: // Φ(x) + x·φ(x)
        vnormal(x, &cdf, &pdf);
        return dy * vfma(x, pdf, cdf);
    case MZ_ACT_GELU_TANH: { // s + x·s·(1-s)·2u'
        const float k = 1.5957691216057308f;
        vf du = vfma(x * x, vset(3 * k * 0.044715f), vset(k));
        s = gelu_tanh_sigmoid(x);
        return dy * vfma(x * s * (1.0f - s), du, s);
    }
    case MZ_ACT_SILU: // s·(1 + x·(1-s))
        s = vsigmoid(x);
        return dy * (s * vfma(x, 1.0f - s, vset(1.0f)));
    default:
        return dy;
    }
}

#endif
