// The BF16 microkernel on AVX512-BF16's dot product: each lane adds two products of a pair to its FP32 sum.
// vdpbf16ps takes subnormal inputs as zero and flushes subnormal results (Intel SDM): below 2^-126, where BF16's own rounding
// error of any normal partner is already larger than what is lost.
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
    for (int i = 0; i < MR; i++) {            // the sums' lines come while the products are made
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

static __m512 load_bias(const mz_matmul_epilogue *e, int64_t column) {
    if (e->bias == NULL)
        return _mm512_set1_ps(-0.0f); // keeps a sum of -0
    if (e->bias_dtype == MEZZO_F32)
        return _mm512_loadu_ps((const float *)e->bias + column);
    __m256i half = _mm256_loadu_si256((const void *)((const uint16_t *)e->bias + column));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

// vcvtne2ps2bf16 rounds 32 sums in two operations where integer arithmetic takes twenty, but takes subnormals for zero: where one
// is met, the tile is left to the epilogue that keeps them.
bool mz_matmul_finish_bf16(const mz_matmul_epilogue *e, const float *tile, int64_t ld_tile, int64_t row, int64_t column,
                           int rows) {
    bool plain = e->preact == NULL && e->act == MZ_ACT_NONE && e->residual == NULL;
    bool once = e->via == MEZZO_F32 || e->via == MEZZO_F64 || e->via == MEZZO_BF16; // rounds to BF16 and nothing else
    if (!plain || !once || e->y_dtype != MEZZO_BF16 || (e->bias != NULL && e->bias_dtype == MEZZO_F16))
        return false;
    const __m512 bias0 = load_bias(e, column), bias1 = load_bias(e, column + 16);
    uint16_t *y = (uint16_t *)e->y + row * e->ld + column;
    __mmask16 subnormal = 0;
    for (int i = 0; i < rows; i++, tile += ld_tile, y += e->ld) {
        __m512 low = _mm512_add_ps(_mm512_loadu_ps(tile), bias0),
               high = _mm512_add_ps(_mm512_loadu_ps(tile + 16), bias1);
        subnormal |= _mm512_fpclass_ps_mask(low, 0x20) | _mm512_fpclass_ps_mask(high, 0x20);
        _mm512_storeu_si512(y, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
    return subnormal == 0;
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
                                                  .finish = mz_matmul_finish_bf16};
