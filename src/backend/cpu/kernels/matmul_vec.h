// Declares what packing, the FP32 microkernel and the epilogue need besides vec.h: storage formats by name, partial
// vectors, transposition.
#ifndef MZ_CPU_MATMUL_VEC_H
#define MZ_CPU_MATMUL_VEC_H

#include "backend/cpu/matmul.h"

#include "backend/cpu/kernels/vec.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline, unused))

#define FOR_LEVEL(name) MZ_PASTE(name, MZ_ISA) // turns f into f__avx512

typedef int int_any __attribute__((aligned(2), may_alias));
typedef vu vu_any __attribute__((aligned(2), may_alias));

ALWAYS_INLINE vf load_f32(const void *p) {
    return vload(p);
}
ALWAYS_INLINE vh load_u16(const void *p) {
    return *(const vh_any *)p;
}
ALWAYS_INLINE void store_f32(void *p, vf x) {
    vstore(p, x);
}
ALWAYS_INLINE void store_u32(void *p, vu x) {
    *(vu_any *)p = x;
}
ALWAYS_INLINE void store_u16(void *p, vh x) {
    *(vh_any *)p = x;
}

// Rounds x to BF16 in each lane's upper half; the lower half is zero.
ALWAYS_INLINE vu round_bf16(vf x) {
    vu u = (vu)x;
    vu rounded = u + (0x7FFF + ((u >> 16) & 1));
    vu nan = (vu)(x != x);
    return ((rounded & ~nan) | ((u | 0x400000) & nan)) & 0xFFFF0000u;
}

// Loads VW consecutive elements of a float dtype as FP32. `dtype` is a constant where speed matters.
ALWAYS_INLINE vf load_as_f32(const void *p, mezzo_dtype dtype) {
    if (dtype == MEZZO_F32)
        return load_f32(p);
    return dtype == MEZZO_BF16 ? from_bf16(load_u16(p)) : from_f16(load_u16(p));
}

// --- the first n elements, zeros after them; n ≤ 0 reads nothing ---------------------------------------------------
#if defined(MZ_ISA_AVX512)
ALWAYS_INLINE uint16_t lanes(int64_t n) {
    return (uint16_t)(n >= VW ? 0xFFFF : n <= 0 ? 0 : (1 << n) - 1);
}
ALWAYS_INLINE vf load_f32_part(const void *p, int64_t n) {
    return (vf)_mm512_maskz_loadu_ps(lanes(n), p);
}
ALWAYS_INLINE vh load_u16_part(const void *p, int64_t n) {
    return (vh)_mm256_maskz_loadu_epi16(lanes(n), p);
}
ALWAYS_INLINE void store_f32_part(void *p, vf x, int64_t n) {
    _mm512_mask_storeu_ps(p, lanes(n), (__m512)x);
}
ALWAYS_INLINE void store_u16_part(void *p, vh x, int64_t n) {
    _mm256_mask_storeu_epi16(p, lanes(n), (__m256i)x);
}
#else
ALWAYS_INLINE size_t lanes(int64_t n) {
    return (size_t)(n >= VW ? VW : n <= 0 ? 0 : n);
}
ALWAYS_INLINE vf load_f32_part(const void *p, int64_t n) {
    vf x = {0};
#if VEC_256
    if (n == 6) // the AVX2 tile's rows: a copy through memory would wait for its store
        return (vf)_mm256_maskload_ps(p, _mm256_setr_epi32(-1, -1, -1, -1, -1, -1, 0, 0));
#endif
    memcpy(&x, p, lanes(n) * sizeof(float));
    return x;
}
ALWAYS_INLINE vh load_u16_part(const void *p, int64_t n) {
    vh x = {0};
#if VEC_256
    if (n == 6)
        return (vh)_mm_insert_epi32(_mm_loadl_epi64(p), *(const int_any *)((const char *)p + 8), 2);
#endif
    memcpy(&x, p, lanes(n) * sizeof(uint16_t));
    return x;
}
ALWAYS_INLINE void store_f32_part(void *p, vf x, int64_t n) {
    memcpy(p, &x, lanes(n) * sizeof(float));
}
ALWAYS_INLINE void store_u16_part(void *p, vh x, int64_t n) {
    memcpy(p, &x, lanes(n) * sizeof(uint16_t));
}
#endif

ALWAYS_INLINE vf load_as_f32_part(const void *p, mezzo_dtype dtype, int64_t n) {
    if (dtype == MEZZO_F32)
        return load_f32_part(p, n);
    vh h = load_u16_part(p, n);
    return dtype == MEZZO_BF16 ? from_bf16(h) : from_f16(h);
}

ALWAYS_INLINE void store_as_part(void *p, vf x, mezzo_dtype dtype, int64_t n) {
    if (dtype == MEZZO_F32)
        store_f32_part(p, x, n);
    else
        store_u16_part(p, dtype == MEZZO_BF16 ? to_bf16(x) : to_f16(x), n);
}

ALWAYS_INLINE vf round_to(vf x, mezzo_dtype dtype) {
    if (dtype == MEZZO_BF16)
        return (vf)round_bf16(x);
    return dtype == MEZZO_F16 ? from_f16(to_f16(x)) : x;
}

ALWAYS_INLINE void store_as(void *p, vf x, mezzo_dtype dtype) {
    if (dtype == MEZZO_F32)
        store_f32(p, x);
    else
        store_u16(p, dtype == MEZZO_BF16 ? to_bf16(x) : to_f16(x));
}

// --- transposition -------------------------------------------------------------------------------------------------
// Transposes r, a VW × VW block of words, one vector a row. Stage s exchanges the off-diagonal s × s blocks of every 2s
// × 2s block.
#if VW == 16
#define LOW_8(a, b)  __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)
#define HIGH_8(a, b) __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31)
#define LOW_4(a, b)  __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27)
#define HIGH_4(a, b) __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31)
#define LOW_2(a, b)  __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
#define HIGH_2(a, b) __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)
#define LOW_1(a, b)  __builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30)
#define HIGH_1(a, b) __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31)
#elif VW == 8
#define LOW_4(a, b)  __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11)
#define HIGH_4(a, b) __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15)
#define LOW_2(a, b)  __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13)
#define HIGH_2(a, b) __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15)
#define LOW_1(a, b)  __builtin_shufflevector(a, b, 0, 8, 2, 10, 4, 12, 6, 14)
#define HIGH_1(a, b) __builtin_shufflevector(a, b, 1, 9, 3, 11, 5, 13, 7, 15)
#else
#define LOW_2(a, b)  __builtin_shufflevector(a, b, 0, 1, 4, 5)
#define HIGH_2(a, b) __builtin_shufflevector(a, b, 2, 3, 6, 7)
#define LOW_1(a, b)  __builtin_shufflevector(a, b, 0, 4, 2, 6)
#define HIGH_1(a, b) __builtin_shufflevector(a, b, 1, 5, 3, 7)
#endif

#define EXCHANGE(s)                                                                                                    \
    for (int i = 0; i < VW; i++)                                                                                       \
        if ((i & s) == 0) {                                                                                            \
            vu low = LOW_##s(r[i], r[i + s]), high = HIGH_##s(r[i], r[i + s]);                                         \
            r[i] = low;                                                                                                \
            r[i + s] = high;                                                                                           \
        }

ALWAYS_INLINE void transpose(vu r[VW]) {
#if VW >= 16
    EXCHANGE(8)
#endif
#if VW >= 8
    EXCHANGE(4)
#endif
    EXCHANGE(2)
    EXCHANGE(1)
}

#endif
