// Computes direct convolution on AVX512-BF16's dot product: see conv_direct.h, and avx512bf16_matmul.c for its
// arithmetic.
#include "backend/cpu/conv_direct.h"
#include "backend/cpu/kernels/matmul_vec.h"

#define MR 8
#define NR 32

#define EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define DECLARE(i)  __m512 c##i##0 = _mm512_setzero_ps(), c##i##1 = _mm512_setzero_ps();
#define LOAD(b)     const __m512bh b0 = (__m512bh)_mm512_loadu_si512(b), b1 = (__m512bh)_mm512_loadu_si512((b) + 16);
#define STEP(i, x)                                                                                                     \
    {                                                                                                                  \
        const __m512bh pair = (__m512bh)_mm512_set1_epi32((int32_t)(x));                                               \
        c##i##0 = _mm512_dpbf16_ps(c##i##0, pair, b0);                                                                 \
        c##i##1 = _mm512_dpbf16_ps(c##i##1, pair, b1);                                                                 \
    }
#define ADD(i)                                                                                                         \
    c##i##0 = _mm512_add_ps(c##i##0, _mm512_loadu_ps(c + i * ldc));                                                    \
    c##i##1 = _mm512_add_ps(c##i##1, _mm512_loadu_ps(c + i * ldc + 16));
#define STORE(i)                                                                                                       \
    _mm512_storeu_ps(c + i * ldc, c##i##0);                                                                            \
    _mm512_storeu_ps(c + i * ldc + 16, c##i##1);

static void copy(void *to, const void *from, mezzo_dtype dtype, mezzo_dtype compute, int64_t n) {
    (void)compute;
    const size_t size = dtype == MEZZO_F32 ? sizeof(float) : sizeof(uint16_t);
    if (dtype == MEZZO_BF16) {
        memcpy(to, from, (size_t)n * sizeof(uint16_t));
        return;
    }
    for (int64_t i = 0; i < n; i += VW)
        store_u16_part((uint16_t *)to + i,
                       to_bf16(load_as_f32_part((const char *)from + (size_t)i * size, dtype, n - i)), n - i);
}

static void words(mz_word *to, const uint16_t *first, const uint16_t *second, int64_t n) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i_u *)(const void *)(first + i)));
        const __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i_u *)(const void *)(second + i)));
        _mm512_storeu_si512(to + i, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
    for (; i < n; i++)
        to[i] = first[i] | (uint32_t)second[i] << 16;
}

#define WORD mz_word
#include "backend/cpu/kernels/conv_tile.h"

const mz_conv_kernels mz_conv_avx512bf16 = {
    .mr = MR, .nr = NR, .pair = 2, .unit = 2, .copy = copy, .words = words, .rows = rows, .columns = columns};
