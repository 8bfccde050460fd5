// Draws dropout's factors, 0 or 1/(1-p), for a run of elements: Philox4x32-10, one block of four elements in each lane.
#ifndef MZ_CPU_DROPOUT_H
#define MZ_CPU_DROPOUT_H

#include "backend/backend.h"
#include "backend/cpu/kernels/vec.h"

typedef struct dropout_stream {
    mz_philox_key key;
    uint32_t least; // the smallest word that is kept
    float scale;    // 1/(1-p), rounded once
} dropout_stream;

static inline dropout_stream dropout_begin(const mz_call *call) {
    double p = (double)call->attrs.p;
    dropout_stream s = {.key = {.seed = call->rng->seed,
                                .step = (uint32_t)(call->rng->step ^ call->rng->step >> 32),
                                .tensor = call->attrs.rng},
                        .scale = p < 1 ? (float)(1 / (1 - p)) : 0};
    // mz_uniform(word) >= p in integers: word >> 8 >= ⌈p·2^24⌉. At p = 1 no element is kept: scale is 0.
    double least = ceil(p * 0x1p24);
    s.least = least >= 0x1p24 ? 0xFFFFFFFFu : (uint32_t)least << 8;
    return s;
}

// Multiplies the even lanes and the odd lanes to 64 bits, and returns the high and low words of every lane.
static inline void multiply_wide(vu a, uint32_t b, vu *high, vu *low) {
#if VEC_512
    __m512i m = _mm512_set1_epi32((int)b), x = (__m512i)a;
    __m512i even = _mm512_mul_epu32(x, m), odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), m);
    *high = (vu)_mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd);
    *low = (vu)_mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32));
#elif VEC_256
    __m256i m = _mm256_set1_epi32((int)b), x = (__m256i)a;
    __m256i even = _mm256_mul_epu32(x, m), odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), m);
    *high = (vu)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
    *low = (vu)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
#else
    for (int i = 0; i < VW; i++) {
        uint64_t product = (uint64_t)a[i] * b;
        (*high)[i] = (uint32_t)(product >> 32);
        (*low)[i] = (uint32_t)product;
    }
#endif
}

// Computes Philox of VW consecutive indices (base/philox.c has the scalar form and the constants' source).
static inline void philox_lanes(mz_philox_key key, uint64_t index, vu out[4]) {
    vu c0 = uset((uint32_t)index) + (vu)lane_numbers(), c1 = uset((uint32_t)(index >> 32));
    vu c2 = uset(key.tensor), c3 = uset(key.step);
    if ((uint32_t)index > UINT32_MAX - VW) // the low word wraps within these lanes
        c1 -= (vu)(c0 < uset((uint32_t)index));
    uint32_t k0 = (uint32_t)key.seed, k1 = (uint32_t)(key.seed >> 32);
    for (int round = 0; round < 10; round++) {
        vu high0, low0, high1, low1;
        multiply_wide(c0, 0xD2511F53u, &high0, &low0);
        multiply_wide(c2, 0xCD9E8D57u, &high1, &low1);
        c0 = high1 ^ c1 ^ uset(k0);
        c2 = high0 ^ c3 ^ uset(k1);
        c1 = low1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

#if VEC_512
// Computes eight consecutive indices with fewer shuffles than philox_lanes: each 64-bit lane holds one 32-bit word of a
// block in its lower half, where vpmuludq reads it and leaves the next one; no instruction reads the upper bits.
static inline void philox_eight(mz_philox_key key, uint64_t index, __m512i out[4]) {
    const __m512i m0 = _mm512_set1_epi64(0xD2511F53), m1 = _mm512_set1_epi64(0xCD9E8D57);
    __m512i c0 = _mm512_add_epi64(_mm512_set1_epi64((int64_t)index), _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0));
    __m512i c1 = _mm512_srli_epi64(c0, 32), c2 = _mm512_set1_epi64(key.tensor), c3 = _mm512_set1_epi64(key.step);
    uint32_t k0 = (uint32_t)key.seed, k1 = (uint32_t)(key.seed >> 32);
    for (int round = 0; round < 10; round++) {
        __m512i p0 = _mm512_mul_epu32(c0, m0), p1 = _mm512_mul_epu32(c2, m1);
        // A shuffle, not a shift, moves the upper words down: Intel's shifts and products share a port, and the
        // products fill it.
        __m512i high0 = _mm512_shuffle_epi32(p0, _MM_PERM_DDBB), high1 = _mm512_shuffle_epi32(p1, _MM_PERM_DDBB);
        c0 = _mm512_ternarylogic_epi64(high1, c1, _mm512_set1_epi64(k0), 0x96); // xor of three operands
        c2 = _mm512_ternarylogic_epi64(high0, c3, _mm512_set1_epi64(k1), 0x96);
        c1 = p1;
        c3 = p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

// Sets bit i of keep[k] where element 4·block + 16·k + i is kept.
static inline void dropout_keep64(const dropout_stream *s, uint64_t block, __mmask16 keep[4]) {
    const __m512i least = _mm512_set1_epi32((int)s->least);
    const __m512i front = _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0),
                  back = _mm512_set_epi64(15, 7, 14, 6, 13, 5, 12, 4);
    for (int half = 0; half < 2; half++) {
        __m512i w[4];
        philox_eight(s->key, block + 8 * (uint64_t)half, w);
        __m512i first = _mm512_mask_blend_epi32(0xAAAA, w[0], _mm512_slli_epi64(w[1], 32));
        __m512i last = _mm512_mask_blend_epi32(0xAAAA, w[2], _mm512_slli_epi64(w[3], 32));
        keep[2 * half] = _mm512_cmpge_epu32_mask(_mm512_permutex2var_epi64(first, front, last), least);
        keep[2 * half + 1] = _mm512_cmpge_epu32_mask(_mm512_permutex2var_epi64(first, back, last), least);
    }
}
#endif

enum { DROPOUT_RUN = 4 * VW }; // elements computed at a time

// Stores to[4·i + w] = x[w][i]: pairs of vectors are interleaved twice.
static inline void store_by_lane(float *to, const vf x[4]) {
#if VEC_512
#define ZIP_LOW(a, b)  __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#elif VEC_256
#define ZIP_LOW(a, b)  __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#else
#define ZIP_LOW(a, b)  __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define ZIP_HIGH(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#endif
    vf even_low = ZIP_LOW(x[0], x[2]), even_high = ZIP_HIGH(x[0], x[2]);
    vf odd_low = ZIP_LOW(x[1], x[3]), odd_high = ZIP_HIGH(x[1], x[3]);
    vstore(to, ZIP_LOW(even_low, odd_low));
    vstore(to + VW, ZIP_HIGH(even_low, odd_low));
    vstore(to + 2 * VW, ZIP_LOW(even_high, odd_high));
    vstore(to + 3 * VW, ZIP_HIGH(even_high, odd_high));
#undef ZIP_LOW
#undef ZIP_HIGH
}

// Computes factors[0 … n) of the elements from `element` on. `factors` has space for n + 2·DROPOUT_RUN floats, because
// whole runs are made, from the block of the first element; returns the address of the first factor.
static inline const float *dropout_factors(const dropout_stream *s, uint64_t element, int n, float *factors) {
    int skip = (int)(element & 3);
    uint64_t block = element >> 2;
    for (int made = 0; made < skip + n; made += DROPOUT_RUN, block += VW) {
        vu words[4];
        philox_lanes(s->key, block, words);
        vf factor[4];
        for (int w = 0; w < 4; w++) // compared with the sign bit inverted, because lanes compare as signed numbers
            factor[w] = vselect(iless((vi)(words[w] ^ 0x80000000u), iset((int32_t)(s->least ^ 0x80000000u))), (vf){0},
                                vset(s->scale));
        store_by_lane(factors + made, factor);
    }
    return factors + skip;
}

#endif
