// Holds the formulas of element.def in FP32: element_<op>::of(operands, attributes).
#ifndef MZ_ELEMENT_CUH
#define MZ_ELEMENT_CUH

#include "activation.cuh"
#include "launch.h"

struct element_attrs {
    float alpha, low, high;
};

__device__ __forceinline__ float logistic(float x) { // the exponential does not overflow
    const float e = expf(-fabsf(x));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

#define num(x)            (x##f)
#define less(a, b)        ((a) < (b))
#define less_equal(a, b)  ((a) <= (b))
#define equal(a, b)       ((a) == (b))
#define choose(m, a, b)   ((m) ? (a) : (b))
#define fused(a, b, c)    fmaf(a, b, c)
#define magnitude(x)      fabsf(x)
#define root(x)           sqrtf(x)
#define power(a, b)       powf(a, b)
#define logarithm(x)      logf(x)
#define logarithm_1p(x)   log1pf(x)
#define exponential(x)    expf(x)
#define hyperbolic(x)     tanhf(x)
#define error_function(x) erff(x)
#define sine(x)           sinf(x)
#define cosine(x)         cosf(x)
#define down(x)           floorf(x)
#define up(x)             ceilf(x)
#define nearest(x)        rintf(x)
#define silu_dx(dy, x)    ((dy)*silu_derivative(x))

#define ELEMENT(name, a, b, c, formula)                                                                                \
    struct element_##name {                                                                                            \
        static __device__ __forceinline__ float of(float a, float b, float c, element_attrs given) {                   \
            const float alpha = given.alpha, low = given.low, high = given.high;                                       \
            (void)alpha, (void)low, (void)high, (void)a, (void)b, (void)c;                                             \
            return formula;                                                                                            \
        }                                                                                                              \
    };
#define KERNEL1(name, a, formula)       ELEMENT(name, a, none, absent, formula)
#define KERNEL2(name, a, b, formula)    ELEMENT(name, a, b, absent, formula)
#define KERNEL3(name, a, b, c, formula) ELEMENT(name, a, b, c, formula)
#include "graph/element.def"
#define KERNEL1(name, a, formula)    ELEMENT(name, a, none, absent, formula)
#define KERNEL2(name, a, b, formula) ELEMENT(name, a, b, absent, formula)
KERNEL1(GELU, x, gelu(x))
KERNEL1(GELU_TANH, x, gelu_tanh(x))
KERNEL2(GELU_DX, dy, x, dy *gelu_derivative(x))
KERNEL2(GELU_TANH_DX, dy, x, dy *gelu_tanh_derivative(x))
KERNEL1(CAST, x, x)
#undef KERNEL1
#undef KERNEL2
#undef ELEMENT
#undef num
#undef less
#undef less_equal
#undef equal
#undef choose
#undef fused
#undef magnitude
#undef root
#undef power
#undef logarithm
#undef logarithm_1p
#undef exponential
#undef hyperbolic
#undef error_function
#undef sine
#undef cosine
#undef down
#undef up
#undef nearest
#undef silu_dx

#endif
