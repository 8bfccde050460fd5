// Computes activation.cuh's functions of BF16 numbers with the same bits, without branches and in fewer instructions,
// for kernels that round their results to BF16 and to 8 bits: eight numbers at a time, as four words of two.
#ifndef MZ_BRANCHLESS_ACT_CUH
#define MZ_BRANCHLESS_ACT_CUH

#include "activation.cuh"
#include "fp8_pack.cuh"
#include "ptx.cuh"
#include "vec.cuh"

// --- pairs of BF16 numbers -----------------------------------------------------------------------------------------
// The larger magnitudes, with signs that mean nothing; a NaN is the largest. From compute capability 8.6 on.
__device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b) {
#if __CUDA_ARCH__ >= 860
    asm("max.NaN.xorsign.abs.bf16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
    return a;
#else
    return __vmaxu2(a & 0x7FFF7FFFu, b & 0x7FFF7FFFu);
#endif
}
__device__ __forceinline__ uint32_t larger(uint32_t amax, uint4 x) {
    return larger(larger(amax, larger(x.x, x.y)), larger(x.z, x.w));
}

// Returns whether one of two magnitudes is at least `limit`, the bits of a BF16 number.
__device__ __forceinline__ bool reaches(uint32_t amax, uint32_t limit) {
    return (((amax & 0x7FFF7FFFu) + (0x8000u - limit) * 0x10001u) & 0x80008000u) != 0;
}

enum { BF16_INFINITY = 0x7F80 };

// Returns the bits of the larger one as FP32.
__device__ __forceinline__ uint32_t larger_of(uint32_t amax) {
    return max(amax << 16 & 0x7FFFFFFFu, amax & 0x7FFF0000u);
}

__device__ __forceinline__ uint4 pack8(const float v[8]) {
    return make_uint4(narrow2(v[0], v[1], MEZZO_BF16), narrow2(v[2], v[3], MEZZO_BF16), narrow2(v[4], v[5], MEZZO_BF16),
                      narrow2(v[6], v[7], MEZZO_BF16));
}

__device__ __forceinline__ void widen8(uint4 x, float v[8]) {
    widen8(raw8{x, make_uint4(0, 0, 0, 0)}, MEZZO_BF16, v);
}

// Codes of eight numbers, an infinity's as the largest number's; v are the numbers in FP32.
__device__ __forceinline__ uint2 finite_fp8(const float v[8], float inverse, bool e4m3) {
    uint32_t two[4];
#pragma unroll
    for (int k = 0; k < 4; k++)
        two[k] = to_eights(v[2 * k] * inverse, v[2 * k + 1] * inverse, e4m3);
    return make_uint2(two[0] | two[1] << 16, two[2] | two[3] << 16);
}
// Or of the words: a power of two times a BF16 number is one (or far below the least code).
__device__ __forceinline__ uint2 finite_fp8(uint4 x, float inverse, bool e4m3) {
    const uint32_t factors = narrow2(inverse, inverse, MEZZO_BF16), pair[4] = {x.x, x.y, x.z, x.w};
    uint32_t two[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const __nv_bfloat162 scaled = __hmul2(*reinterpret_cast<const __nv_bfloat162 *>(&pair[k]),
                                              *reinterpret_cast<const __nv_bfloat162 *>(&factors));
        const float2 v = widen2(*reinterpret_cast<const uint32_t *>(&scaled), MEZZO_BF16);
        two[k] = to_eights(v.x, v.y, e4m3);
    }
    return make_uint2(two[0] | two[1] << 16, two[2] | two[3] << 16);
}

// The infinities' codes: apart, as all that hardly ever runs, so that what does stays in the instructions' cache.
static __device__ __noinline__ uint2 mark_infinities(uint4 x, uint2 fp8, bool e4m3) {
    const uint32_t pair[4] = {x.x, x.y, x.z, x.w};
    uint32_t word[2] = {fp8.x, fp8.y};
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const uint32_t bits = k % 2 == 0 ? pair[k / 2] << 16 : pair[k / 2] & 0xFFFF0000u;
        const int shift = k % 4 * 8;
        if ((bits & 0x7FFFFFFFu) == 0x7F800000u)
            word[k / 4] = (word[k / 4] & ~(0xFFu << shift)) | infinite_fp8(__uint_as_float(bits), e4m3) << shift;
    }
    return make_uint2(word[0], word[1]);
}

// The codes of eight numbers; `amax` grows to their largest magnitude. `same`: the numbers again, in FP32 where they
// are at hand.
template <class SAME>
__device__ __forceinline__ uint2 to_fp8(uint4 x, const SAME &same, float inverse, bool e4m3, uint32_t &amax) {
    amax = larger(amax, x);
    uint2 fp8 = finite_fp8(same, inverse, e4m3);
    if (__builtin_expect(reaches(amax, BF16_INFINITY), 0))
        fp8 = mark_infinities(x, fp8, e4m3);
    return fp8;
}

// --- activations ---------------------------------------------------------------------------------------------------
// Magnitudes from which on activation.cuh's own functions are taken: products would overflow, or the reciprocal be less
// than a normal number.
template <int ACT> struct beyond {
    static constexpr bool straight = ACT == ACT_GELU_TANH || ACT == ACT_SILU || ACT == ACT_SWIGLU;
    static constexpr uint32_t limit = ACT == ACT_GELU_TANH ? 0x5380 : 0x42A0; // 2^40, 80
};

// One step of Newton's rounds the reciprocal of a number of at least 1 as __frcp_rn does. GELU's may be infinite, or
// above 2^126 (of BF16 numbers none is between 2^126 and infinity): its reciprocal is 0.
template <int ACT> __device__ __forceinline__ float sigmoid_branchless(float x) {
    float d = 1.0f + exp2_fast(x * -1.44269504f), r;
    if (ACT == ACT_GELU_TANH) {
#if __CUDA_ARCH__ >= 800
        asm("min.NaN.f32 %0, %0, 0f7F000000;" : "+f"(d));
#else
        d = d > 0x1p127f ? 0x1p127f : d; // a NaN stays one
#endif
    }
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
    return fmaf(r, -fmaf(r, d, -1.0f), r);
}

// f(x) and its derivative.
template <int ACT> __device__ __forceinline__ float2 both_branchless(float x) {
    if (ACT == ACT_GELU_TANH) {
        const float k = 1.59576912160573071f * x, s = sigmoid_branchless<ACT>(k * fmaf(0.044715f * x, x, 1.0f));
        return make_float2(x * s, fmaf(k * fmaf(0.134145f * x, x, 1.0f), s * (1.0f - s), s)); // s·(1-s) ends in 0
    }
    const float s = sigmoid_branchless<ACT>(x);
    return make_float2(x * s, s * fmaf(x, 1.0f - s, 1.0f));
}

struct acted8 { // of eight numbers f(x), and dy times its derivative
    uint4 value, derivative;
};
template <int ACT, bool DACT> __device__ __noinline__ acted8 act8_any(uint4 x, uint4 dy) {
    float v[8], d[8], f[8], g[8];
    widen8(x, v);
    widen8(dy, d);
#pragma unroll
    for (int k = 0; k < 8; k++) {
        f[k] = activate(v[k], ACT);
        g[k] = DACT ? times_derivative(d[k], v[k], ACT) : 0;
    }
    return {pack8(f), pack8(g)};
}

template <int ACT, bool DACT> __device__ __forceinline__ acted8 act8(uint4 x, uint4 dy) {
    constexpr bool always = ACT == ACT_GELU_TANH && !DACT;
    if (!beyond<ACT>::straight)
        return act8_any<ACT, DACT>(x, dy);
    float v[8], d[8], f[8], g[8];
    widen8(x, v);
    widen8(dy, d);
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const float2 both = both_branchless<ACT>(v[k]);
        f[k] = both.x;
        g[k] = DACT ? d[k] * both.y : 0;
    }
    acted8 a = {pack8(f), pack8(g)};
    if (!always && __builtin_expect(reaches(larger(0, x), beyond<ACT>::limit), 0))
        a = act8_any<ACT, DACT>(x, dy);
    return a;
}

struct gated8 { // SwiGLU's result, and its gradients
    uint4 value, gate, up;
};
template <bool DACT> __device__ __noinline__ gated8 swiglu8_any(uint4 gate, uint4 up, uint4 dy) {
    float g[8], u[8], d[8], f[8], dg[8], du[8];
    widen8(gate, g);
    widen8(up, u);
    widen8(dy, d);
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const float2 derivatives = DACT ? swiglu_derivatives(d[k], g[k], u[k]) : make_float2(0, 0);
        f[k] = swiglu(g[k], u[k]);
        dg[k] = derivatives.x;
        du[k] = derivatives.y;
    }
    return {pack8(f), pack8(dg), pack8(du)};
}

template <bool DACT> __device__ __forceinline__ gated8 swiglu8(uint4 gate, uint4 up, uint4 dy) {
    float g[8], u[8], d[8], f[8], dg[8], du[8];
    widen8(gate, g);
    widen8(up, u);
    widen8(dy, d);
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const float2 both = both_branchless<ACT_SWIGLU>(g[k]);
        f[k] = both.x * u[k];
        dg[k] = DACT ? d[k] * u[k] * both.y : 0;
        du[k] = DACT ? d[k] * both.x : 0;
    }
    gated8 a = {pack8(f), pack8(dg), pack8(du)};
    if (__builtin_expect(reaches(larger(0, gate), beyond<ACT_SWIGLU>::limit), 0))
        a = swiglu8_any<DACT>(gate, up, dy);
    return a;
}

#endif
