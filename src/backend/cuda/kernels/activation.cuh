// Computes activations and their derivatives in FP32, for elementwise kernels and matmul epilogues. Bounds:
// docs/dev/NUMERICS.md (ELEMENT, 8u of the parts; u = 2^-24).
#ifndef MZ_ACTIVATION_CUH
#define MZ_ACTIVATION_CUH

// 1/(1 + exp(-x)). __expf is off by (2 + 1.16·|x|) ulp, so the sigmoid by s·(1-s)·(4 + 2.4·|x|)·u <= 1.3u, plus u for 1
// + e and the correctly rounded reciprocal: 2.3u. exp(-x) may be infinite; the result is then 0.
__device__ __forceinline__ float sigmoid(float x) {
    return __frcp_rn(1.0f + __expf(-x));
}

// GELU's tanh form, 0.5·x·(1 + tanh(z)) with z = √(2/π)·(x + 0.044715·x³), is x·sigmoid(2z). 2z is off by 4u
// relatively, which moves the sigmoid by s·(1-s)·|2z|·4u <= 0.9u: in all 3.2u + u of |x|.
__device__ __forceinline__ float gelu_tanh(float x) {
    float z2 = 1.59576912160573071f * x * fmaf(0.044715f * x, x, 1.0f);
    return x * sigmoid(z2);
}

// s + x·2·s·(1-s)·√(2/π)·(1 + 3·0.044715·x²). Where |x| > 16, s·(1-s) is 0 and the clamp keeps the polynomial from
// making it NaN (a NaN of x itself is in s already). s·(1-s) is off by 2.5u at most, times 1.6·|x|·(1 + 0.134·x²): 8u
// of NUMERICS.md's S(x).
__device__ __forceinline__ float gelu_tanh_derivative(float x) {
    float z2 = 1.59576912160573071f * x * fmaf(0.044715f * x, x, 1.0f);
    float s = sigmoid(z2), c = fminf(fmaxf(x, -16.0f), 16.0f);
    return fmaf(1.59576912160573071f * c * fmaf(0.134145f * c, c, 1.0f), s * (1.0f - s), s);
}

__device__ __forceinline__ float gelu(float x) { // erff is within 2 ulp
    return 0.5f * x * (1.0f + erff(x * 0.707106781186547524f));
}

__device__ __forceinline__ float gelu_derivative(float x) { // Φ(x) + x·φ(x)
    return fmaf(x * 0.398942280401432678f, expf(-0.5f * x * x), 0.5f * (1.0f + erff(x * 0.707106781186547524f)));
}

__device__ __forceinline__ float silu(float x) {
    return x * sigmoid(x);
}

__device__ __forceinline__ float silu_derivative(float x) {
    float s = sigmoid(x);
    return s * fmaf(x, 1.0f - s, 1.0f);
}

enum { ACT_NONE = 0, ACT_RELU, ACT_GELU, ACT_GELU_TANH, ACT_SILU, ACT_SWIGLU }; // mz_act

__device__ __forceinline__ float swiglu(float gate, float up) {
    return silu(gate) * up;
}

// SwiGLU's gradients: the gate's and the other factor's.
__device__ __forceinline__ float2 swiglu_derivatives(float dy, float gate, float up) {
    return make_float2(dy * up * silu_derivative(gate), dy * silu(gate));
}

__device__ __forceinline__ float activate(float z, int act) {
    if (act == ACT_RELU)
        return z < 0.0f ? 0.0f : z; // NaN stays NaN, and -0 itself
    if (act == ACT_GELU)
        return gelu(z);
    if (act == ACT_GELU_TANH)
        return gelu_tanh(z);
    return act == ACT_SILU ? silu(z) : z;
}

__device__ __forceinline__ float times_derivative(float dy, float x, int act) {
    if (act == ACT_RELU)
        return x <= 0.0f ? 0.0f : dy; // 0 at x <= 0 whatever dy is
    if (act == ACT_GELU)
        return dy * gelu_derivative(x);
    if (act == ACT_GELU_TANH)
        return dy * gelu_tanh_derivative(x);
    return act == ACT_SILU ? dy * silu_derivative(x) : dy;
}

#endif
