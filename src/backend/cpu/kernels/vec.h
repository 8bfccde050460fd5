// Declares one vector of floats at the level for which this file is compiled: 16 lanes (AVX-512), 8 (AVX2) or 4 (NEON,
// and any machine by the compiler's vector extensions). Kernels are written once with it. Names: v… for float lanes, i…
// for integer lanes. Everything is static inline: one copy per level.
#ifndef MZ_CPU_VEC_H
#define MZ_CPU_VEC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/base.h"

#if defined(MZ_ISA_AVX512) || defined(MZ_ISA_AVX512BF16) || defined(MZ_ISA_AMX)
#include <immintrin.h>
#define VEC_512 1
#define VW      16
#elif defined(MZ_ISA_AVX2)
#include <immintrin.h>
#define VEC_256 1
#define VW      8
#elif defined(MZ_ISA_NEON)
#include <arm_neon.h>
#define VEC_NEON 1
#define VW       4
#else
#define VW 4
#endif
#ifndef VEC_NEON
#define VEC_NEON 0
#endif

// Adds the level to a symbol: add__avx512. Every symbol of a kernel file that others see has it.
#define MZ_PASTE2(a, b) a##__##b
#define MZ_PASTE(a, b)  MZ_PASTE2(a, b)
#define MZ_SYMBOL(name) MZ_PASTE(mz_##name, MZ_ISA)
#define MZ_TEXT2(a)     #a
#define MZ_TEXT(a)      MZ_TEXT2(a)
#define MZ_LEVEL_TEXT   MZ_TEXT(MZ_ISA)

typedef float vf __attribute__((vector_size(4 * VW)));
typedef int32_t vi __attribute__((vector_size(4 * VW)));
typedef uint32_t vu __attribute__((vector_size(4 * VW)));
typedef uint16_t vh __attribute__((vector_size(2 * VW))); // for 16-bit storage formats
typedef vf vf_any __attribute__((aligned(4), may_alias));
typedef vi vi_any __attribute__((aligned(4), may_alias));
typedef vh vh_any __attribute__((aligned(2), may_alias));

#if VEC_512
typedef __mmask16 vmask;
#else
typedef vi vmask; // all ones or zero in each lane
#endif

// --- lanes ---------------------------------------------------------------------------------------------------------
static inline vf vset(float x) {
    return x - (vf){0}; // a broadcast; x - 0 keeps -0 and NaN
}
static inline vi iset(int32_t x) {
    return x - (vi){0};
}
static inline vu uset(uint32_t x) {
    return x - (vu){0};
}
static inline vi lane_numbers(void) { // returns 0, 1, … VW-1
    vi x;
    for (int i = 0; i < VW; i++)
        x[i] = i;
    return x;
}
static inline vf vload(const float *p) {
    return *(const vf_any *)(const void *)p;
}
static inline void vstore(float *p, vf x) {
    *(vf_any *)(void *)p = x;
}
// Loads the first n lanes, 0 <= n <= VW; the others become `fill`, and their memory is not touched.
static inline vf vload_n(const float *p, int n, float fill) {
#if VEC_512
    return (vf)_mm512_mask_loadu_ps((__m512)vset(fill), (__mmask16)((1u << n) - 1), p);
#else
    float lanes[VW];
    for (int i = 0; i < VW; i++)
        lanes[i] = i < n ? p[i] : fill;
    return vload(lanes);
#endif
}
static inline void vstore_n(float *p, vf x, int n) {
#if VEC_512
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)x);
#else
    float lanes[VW];
    vstore(lanes, x);
    for (int i = 0; i < n; i++)
        p[i] = lanes[i];
#endif
}

// Computes a·b + c: fused where the level has FMA, and with two roundings on the portable level of a machine without
// it.
static inline vf vfma(vf a, vf b, vf c) {
#if VEC_512
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif VEC_256
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif VEC_NEON
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}
static inline vmask vless(vf a, vf b) { // a < b; false for NaN
#if VEC_512
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LT_OQ);
#else
    return (vmask)(a < b);
#endif
}
static inline vmask vless_equal(vf a, vf b) {
#if VEC_512
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LE_OQ);
#else
    return (vmask)(a <= b);
#endif
}
static inline vmask vequal(vf a, vf b) {
#if VEC_512
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_EQ_OQ);
#else
    return (vmask)(a == b);
#endif
}
static inline vmask iless(vi a, vi b) {
#if VEC_512
    return _mm512_cmplt_epi32_mask((__m512i)a, (__m512i)b);
#else
    return (vmask)(a < b);
#endif
}
static inline vi iselect(vmask m, vi yes, vi no) {
#if VEC_512
    return (vi)_mm512_mask_blend_epi32(m, (__m512i)no, (__m512i)yes);
#elif VEC_NEON
    return (vi)vbslq_s32((uint32x4_t)m, (int32x4_t)yes, (int32x4_t)no);
#else
    return (m & yes) | (~m & no);
#endif
}
static inline vf vselect(vmask m, vf yes, vf no) {
    return (vf)iselect(m, (vi)yes, (vi)no);
}
// Returns x so that the compiler cannot join the product that made it with a later sum; inlining decisions then change
// no bit.
static inline vf vproduct(vf x) {
#if defined(__x86_64__)
    __asm__("" : "+v"(x));
#elif defined(__aarch64__)
    __asm__("" : "+w"(x));
#else
    __asm__("" : "+m"(x));
#endif
    return x;
}
// Returns the larger as x86 does: when either is NaN, the result is the second. vmax(limit, x) lets NaN through.
static inline vf vmax(vf a, vf b) {
#if VEC_512
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif VEC_256
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return vselect(vless(b, a), a, b);
#endif
}
static inline vf vmin(vf a, vf b) {
#if VEC_512
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif VEC_256
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return vselect(vless(a, b), a, b);
#endif
}
static inline vf vabs(vf x) {
    return (vf)((vi)x & iset(0x7FFFFFFF));
}
static inline vf vsign(vf x) { // returns -1, 0 or 1; 0 for NaN
    return vselect(vless((vf){0}, x), vset(1.0f), vselect(vless(x, (vf){0}), vset(-1.0f), (vf){0}));
}
static inline vf vsqrt(vf x) {
#if VEC_512
    return (vf)_mm512_sqrt_ps((__m512)x);
#elif VEC_256
    return (vf)_mm256_sqrt_ps((__m256)x);
#elif VEC_NEON
    return (vf)vsqrtq_f32((float32x4_t)x);
#else
    for (int i = 0; i < VW; i++)
        x[i] = sqrtf(x[i]);
    return x;
#endif
}

// Reduces across the lanes, always in the same order: halves are added until one lane is left.
#if VEC_512
static inline __m256 fold_sum(vf x) {
    __m512 y = (__m512)x;
    return _mm256_add_ps(_mm512_castps512_ps256(y), _mm512_extractf32x8_ps(y, 1));
}
static inline __m256 fold_max(vf x) {
    __m512 y = (__m512)x;
    return _mm256_max_ps(_mm512_castps512_ps256(y), _mm512_extractf32x8_ps(y, 1));
}
#elif VEC_256
static inline __m256 fold_sum(vf x) {
    return (__m256)x;
}
static inline __m256 fold_max(vf x) {
    return (__m256)x;
}
#endif

static inline float vsum(vf x) {
#if VEC_512 || VEC_256
    __m256 eight = fold_sum(x);
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
#elif VEC_NEON
    const float32x4_t y = (float32x4_t)x;
    return vaddv_f32(vadd_f32(vget_low_f32(y), vget_high_f32(y)));
#else
    return (x[0] + x[2]) + (x[1] + x[3]);
#endif
}
static inline float vmax_lanes(vf x) { // NaN lanes may or may not show
#if VEC_512 || VEC_256
    __m256 eight = fold_max(x);
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
#else
    float a = x[0] > x[2] ? x[0] : x[2], b = x[1] > x[3] ? x[1] : x[3];
    return a > b ? a : b;
#endif
}

// --- 16-bit storage ------------------------------------------------------------------------------------------------
// Converts bit for bit as mezzo_f32_to_bf16, mezzo_bf16_to_f32, mezzo_f32_to_f16 and mezzo_f16_to_f32 do
// (tests/unit/test_vec_math.c). AVX512-BF16's conversion is not used, because vcvtneps2bf16 flushes subnormals.
static inline vi widen(vh x) {
#if VEC_512
    return (vi)_mm512_cvtepu16_epi32((__m256i)x);
#elif VEC_256
    return (vi)_mm256_cvtepu16_epi32((__m128i)x);
#elif VEC_NEON
    return (vi)vmovl_u16((uint16x4_t)x);
#else
    return __builtin_convertvector(x, vi);
#endif
}
static inline vh narrow(vi x) { // takes the low 16 bits of each lane
#if VEC_512
    return (vh)_mm512_cvtepi32_epi16((__m512i)x);
#elif VEC_256
    __m256i pairs = _mm256_packus_epi32((__m256i)(x & 0xFFFF), _mm256_setzero_si256()); // lanes 0-3, 0, 4-7, 0
    return (vh)_mm256_castsi256_si128(_mm256_permute4x64_epi64(pairs, 0x08));
#elif VEC_NEON
    return (vh)vmovn_u32((uint32x4_t)x);
#else
    return __builtin_convertvector(x, vh);
#endif
}
static inline vf from_bf16(vh x) {
    return (vf)(widen(x) << 16);
}
static inline vh to_bf16(vf x) {
#if VEC_512
    __m512i b = (__m512i)x, odd = _mm512_and_si512(_mm512_srli_epi32(b, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(_mm512_add_epi32(b, _mm512_set1_epi32(0x7FFF)), odd);
    __mmask16 nan = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);
    up = _mm512_mask_or_epi32(up, nan, b, _mm512_set1_epi32(0x400000)); // the NaN becomes quiet and keeps its upper
                                                                        // bits
    return (vh)_mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16));
#else
    vi bits = (vi)x;
    vi rounded = (vi)(((vu)bits + 0x7FFFu + (((vu)bits >> 16) & 1u)) >> 16);
    vi quiet = (vi)((vu)bits >> 16) | 0x40;
    return narrow(iselect(iless(iset(0x7F800000), bits & 0x7FFFFFFF), quiet, rounded));
#endif
}
static inline vf from_f16(vh x) {
#if VEC_512
    return (vf)_mm512_cvtph_ps((__m256i)x);
#elif VEC_256
    return (vf)_mm256_cvtph_ps((__m128i)x);
#elif VEC_NEON
    return (vf)vcvt_f32_f16((float16x4_t)x);
#else
    vi bits = widen(x), magnitude = bits & 0x7FFF, sign = (bits & 0x8000) << 16;
    // The exponents differ by 112; the product also corrects subnormals, and is exact.
    vi finite = (vi)((vf)(magnitude << 13) * 0x1p112f);
    vi special = (magnitude << 13) | 0x7F800000;
    special = iselect(iless(iset(0x7C00), magnitude), special | 0x00400000, special);
    return (vf)(sign | iselect(iless(magnitude, iset(0x7C00)), finite, special));
#endif
}
static inline vh to_f16(vf x) {
#if VEC_512
    return (vh)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif VEC_256
    return (vh)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif VEC_NEON
    return (vh)vcvt_f16_f32((float32x4_t)x);
#else
    vi bits = (vi)x, magnitude = bits & 0x7FFFFFFF, sign = (vi)((vu)bits >> 16) & 0x8000;
    vi rebiased = magnitude - (112 << 23);
    vi normal = (rebiased + 0xFFF + ((rebiased >> 13) & 1)) >> 13;
    // One unit of the sum below is 2^-24, FP16's smallest subnormal: the addition itself rounds to nearest even.
    vi subnormal = (vi)((vf)magnitude + 0.5f) - 0x3F000000;
    vi finite = iselect(iless(magnitude, iset(0x38800000)), subnormal, normal);
    vi special = iselect(iless(iset(0x7F800000), magnitude), ((magnitude >> 13) & 0x3FF) | 0x7E00, iset(0x7C00));
    return narrow(sign | iselect(iless(magnitude, iset(0x47800000)), finite, special));
#endif
}

// --- functions -----------------------------------------------------------------------------------------------------
// Coefficients are minimax fits made for these intervals (weighted least squares, iterated until the relative error is
// level).

// Computes eˣ, within 1 ulp where the result is normal. eˣ = 2ⁿ·eʳ with n = round(x/ln 2), |r| ≤ 0.347; eʳ = 1 + r +
// r²·q(r), relative error of the fit 3.1e-9. -inf gives 0, above 88.72 gives infinity, NaN stays NaN; subnormal results
// are rounded once. Results below half the smallest subnormal become 0 by a selection and not by underflow, which is
// slow on some processors and which every masked score of -inf would cause.
static inline vf vexp_below(vf x) {   // x <= 90, or NaN
    const vf magic = vset(0x1.8p23f); // x + magic holds round(x) in its low bits, while |x| < 2^22
    const vf least = vset(-103.98f);
#if VEC_512
    vf clamped = x; // results for values below `least` are discarded at the end
#else
    vf clamped = vmax(least, x);
#endif
    vf shifted = vfma(clamped, vset(0x1.715476p0f), magic);
    vf n = shifted - magic;
    vf r = vfma(n, vset(-0x1.62e4p-1f), clamped); // n times the top bits of ln 2 is exact
    r = vfma(n, vset(-0x1.7f7d1cp-20f), r);
    vf q = vfma(vset(0x1.6a23cep-10f), r, vset(0x1.123a2p-7f));
    q = vfma(q, r, vset(0x1.5558f2p-5f));
    q = vfma(q, r, vset(0x1.555492p-3f));
    q = vfma(q, r, vset(0x1.fffffcp-2f));
    vf y = vfma(r * r, q, r) + 1.0f;
#if VEC_512
    __mmask16 kept = _mm512_cmp_ps_mask((__m512)x, (__m512)least, _CMP_NLT_UQ); // true for NaN, too
    return (vf)_mm512_maskz_scalef_ps(kept, (__m512)y, (__m512)n);
#else
    y = vselect(vless(x, least), (vf){0}, y);
    // This is twice a normal power of two: one alone cannot reach 2^-150 or 2^129.
    vi whole = (vi)shifted - 0x4B400000, half = whole >> 1;
    y *= (vf)((half + 127) << 23);
    return y * (vf)((whole - half + 127) << 23);
#endif
}
static inline vf vexp(vf x) {
    return vexp_below(vmin(vset(90.0f), x));
}

// Computes tanh x, within 3 ulp: x + x³·p(x²) below 0.625 (relative error of the fit 6.8e-9), 1 - 2/(e²ˣ + 1) above.
static inline vf vtanh(vf x) {
    vf a = vabs(x), x2 = x * x;
    vf p = vfma(vset(-0x1.696fbcp-8f), x2, vset(0x1.4f5ea8p-6f));
    p = vfma(p, x2, vset(-0x1.b7cfe6p-5f));
    p = vfma(p, x2, vset(0x1.1103f2p-3f));
    p = vfma(p, x2, vset(-0x1.555524p-2f));
    vf small = vfma(x2 * x, p, x);
    vf large = 1.0f - 2.0f / (vexp(a + a) + 1.0f);
    large = (vf)((vi)large | ((vi)x & (vi)uset(0x80000000u)));
    return vselect(vless(a, vset(0.625f)), small, large);
}

// Computes 1/x within 1 ulp for x from 2^-100 to 2^100.
static inline vf vinverse(vf x) {
#if VEC_512
    // An estimate of 14 bits and a Newton step take fewer cycles than a division of 16 lanes.
    vf y = (vf)_mm512_rcp14_ps((__m512)x);
    return vfma(vfma(-x, y, vset(1.0f)), y, y);
#else
    return 1.0f / x;
#endif
}

// Computes 1/(1 + e⁻ˣ), accurate in relative terms on both sides: no exponential overflows.
static inline vf vsigmoid(vf x) {
    vf e = vexp_below((vf)((vi)x | (vi)uset(0x80000000u))); // exp(-|x|)
    return vselect(vless(x, (vf){0}), e, vset(1.0f)) * vinverse(1.0f + e);
}

// Returns x² - square, exactly, where square = x·x rounded. Without FMA it uses Dekker's product of halves (1971).
static inline vf square_rest(vf x, vf square) {
#if VEC_512 || VEC_256 || VEC_NEON
    return vfma(x, x, -square);
#else
    vf head = (vf)((vi)x & (vi)uset(0xFFFFF000u)), tail = x - head;
    return ((head * head - square) + 2.0f * head * tail) + tail * tail;
#endif
}

// Computes Φ(x), the normal distribution function, in *cdf, and φ(x), its density, in *pdf; within 8 and 3 ulp for |x|
// < 12. Φ(-t) = e^(-t²/2)·k·p(k), k = 1/(1 + 0.27t), t ≥ 0: without the cancellation in the tail that 0.5·(1 + erf)
// has.
static inline void vnormal(vf x, vf *cdf, vf *pdf) {
    vf t = vmin(vset(20.0f), vabs(x));
    // t² has two parts, because e^(-t²/2) would turn a rounding error of t² into one of t²/2 ulp.
    vf square = t * t, rest = square_rest(t, square);
    vf e = vexp_below(square * -0.5f);
    e = vfma(e, rest * -0.5f, e);
    vf k = vinverse(vfma(t, vset(0.27f), vset(1.0f)));
    vf p = vfma(vset(0x1.da780cp-6f), k, vset(-0x1.030688p-3f));
    p = vfma(p, k, vset(0x1.5bafdp-3f));
    p = vfma(p, k, vset(-0x1.1b6892p-4f));
    p = vfma(p, k, vset(0x1.b999b4p-4f));
    p = vfma(p, k, vset(0x1.272338p-4f));
    p = vfma(p, k, vset(0x1.a102b8p-4f));
    p = vfma(p, k, vset(0x1.b87f14p-4f));
    p = vfma(p, k, vset(0x1.b93948p-4f));
    vf below = e * (p * k);
    *cdf = vselect(vless(x, (vf){0}), below, 1.0f - below);
    *pdf = e * 0x1.988454p-2f; // 1/√(2π)
}

#endif
