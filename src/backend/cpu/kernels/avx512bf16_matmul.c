// Computes the BF16 microkernel by AVX512-BF16's dot product: each lane adds the two products of a pair to its FP32
// sum. vdpbf16ps takes subnormal inputs as zero and flushes subnormal results (Intel SDM), which are below 2^-126;
// BF16's own rounding error of any normal operand is larger than that.
#include "backend/cpu/matmul.h"

#include <immintrin.h>

#define MR 14
#define NR 32

#define EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13)
#define DECLARE(i)  __m512 c##i##0 = _mm512_setzero_ps(), c##i##1 = _mm512_setzero_ps();
#define STEP(i)                                                                                                        \
    {                                                                                                                  \
        __m512bh pair = (__m512bh)_mm512_set1_epi32(a[i]);                                                             \
        c##i##0 = _mm512_dpbf16_ps(c##i##0, pair, b0);                                                                 \
        c##i##1 = _mm512_dpbf16_ps(c##i##1, pair, b1);                                                                 \
    }
#define ADD(i)                                                                                                         \
    c##i##0 = _mm512_add_ps(c##i##0, _mm512_loadu_ps(c + i * ldc));                                                    \
    c##i##1 = _mm512_add_ps(c##i##1, _mm512_loadu_ps(c + i * ldc + 16));
#define STORE(i)                                                                                                       \
    _mm512_storeu_ps(c + i * ldc, c##i##0);                                                                            \
    _mm512_storeu_ps(c + i * ldc + 16, c##i##1);

static void multiply_bf16(int64_t k, const void *a_panel, const void *b_panel, float *c, int64_t ldc, bool add) {
    const int32_t *a = a_panel, *b = b_panel; // pairs
    for (int i = 0; i < MR; i++) {            // the lines of the sums are prefetched during the products
        __builtin_prefetch(c + i * ldc, 1);
        __builtin_prefetch(c + i * ldc + NR - 1, 1);
    }
    EACH_ROW(DECLARE)
    for (; k > 0; k -= 2, a += MR, b += NR) {
        __m512bh b0 = (__m512bh)_mm512_loadu_si512(b), b1 = (__m512bh)_mm512_loadu_si512(b + 16);
        EACH_ROW(STEP)
    }
    if (add) {
        EACH_ROW(ADD)
    }
    EACH_ROW(STORE)
}

const mz_microkernel mz_microkernel_avx512bf16 = {.name = "bf16_dot_14x32",
                                                  .mr = MR,
                                                  .nr = NR,
                                                  .k_unit = 2,
                                                  .kc = 768,
                                                  .depth = 768,
                                                  .depth_across = 768,
                                                  .in_y = true,
                                                  .a_panel = MZ_PANEL_PAIRS,
                                                  .b_panel = MZ_PANEL_PAIRS,
                                                  .run = multiply_bf16,
                                                  .finish = mz_matmul_finish_32,
                                                  .conv = &mz_conv_avx512bf16};
