// Multiplies a few rows by a matrix, as generating text does: every weight is read once, as it is stored, and
// multiplies all rows while it is in a register. Nothing is packed, because below about four rows packing W costs more
// than its product.
#include "backend/cpu/kernels/matmul_isa.h"

_Static_assert(MZ_MATMUL_ROWS == 4, "multiply_rows knows them by number");

// The prefetch distance in bytes (docs/dev/MATMUL.md has the measurements). Addresses after a matrix are harmless.
enum { AHEAD_FP32 = 6144, AHEAD_16 = 4096 };

// Computes the products of one row of W with every row of x, tile[i] for row i. Rows of W follow each other, from first
// number to last, so memory is requested in address order; four rows at a time, each at its own place, reach half of
// its rate. The number of outstanding cache lines limits a core, so it prefetches.
ALWAYS_INLINE void dot(const float *x, int m, int64_t k, const char *w, mezzo_dtype dtype, float *tile, int64_t ld) {
    const size_t size = dtype == MEZZO_F32 ? sizeof(float) : sizeof(uint16_t);
    vf sum[MZ_MATMUL_ROWS][2] = {{{0}}};
    int64_t at = 0;
    for (; at + 2 * VW <= k; at += 2 * VW)
        for (int half = 0; half < 2; half++) {
            const int64_t here = at + half * VW;
            __builtin_prefetch(w + (size_t)here * size + (dtype == MEZZO_F32 ? AHEAD_FP32 : AHEAD_16));
            const vf weights = load_as_f32(w + (size_t)here * size, dtype);
            for (int i = 0; i < m; i++)
                sum[i][half] = vfma(load_f32(x + i * k + here), weights, sum[i][half]);
        }
    for (; at < k; at += VW) {
        const vf weights = load_as_f32_part(w + (size_t)at * size, dtype, k - at);
        for (int i = 0; i < m; i++)
            sum[i][0] = vfma(load_f32_part(x + i * k + at, k - at), weights, sum[i][0]);
    }
    for (int i = 0; i < m; i++)
        tile[i * ld] = vsum(sum[i][0] + sum[i][1]);
}

// Computes the same for BF16 weights, two in a word: either half becomes a float by one instruction, where a vector of
// halves would have to be widened first. In x the numbers at even places come first.
ALWAYS_INLINE void dot_bf16(const float *x, int m, int64_t k, const char *w, float *tile, int64_t ld) {
    const int64_t pairs = k / 2, even = k - pairs;
    vf sum[MZ_MATMUL_ROWS][2] = {{{0}}};
    int64_t at = 0;
    for (; at + VW <= pairs; at += VW) {
        __builtin_prefetch(w + 4 * at + AHEAD_16);
        const vu words = *(const vu_any *)(const void *)(w + 4 * at);
        const vf low = (vf)(words << 16), high = (vf)(words & 0xFFFF0000u);
        for (int i = 0; i < m; i++) {
            sum[i][0] = vfma(load_f32(x + i * k + at), low, sum[i][0]);
            sum[i][1] = vfma(load_f32(x + i * k + even + at), high, sum[i][1]);
        }
    }
    if (at < pairs) {
        const vu words = (vu)load_f32_part(w + 4 * at, pairs - at);
        const vf low = (vf)(words << 16), high = (vf)(words & 0xFFFF0000u);
        for (int i = 0; i < m; i++) {
            sum[i][0] = vfma(load_f32_part(x + i * k + at, pairs - at), low, sum[i][0]);
            sum[i][1] = vfma(load_f32_part(x + i * k + even + at, pairs - at), high, sum[i][1]);
        }
    }
    const vf last = load_as_f32_part(w + 4 * pairs, MEZZO_BF16, k % 2);
    for (int i = 0; i < m; i++) {
        sum[i][0] = vfma(load_f32_part(x + i * k + pairs, k % 2), last, sum[i][0]);
        tile[i * ld] = vsum(sum[i][0] + sum[i][1]);
    }
}

ALWAYS_INLINE void multiply(const float *x, int m, int64_t k, const char *w, mezzo_dtype dtype, int columns,
                            float *tile, int64_t ld) {
    const size_t row = (size_t)k * (dtype == MEZZO_F32 ? sizeof(float) : sizeof(uint16_t));
    for (int j = 0; j < columns; j++)
        if (dtype == MEZZO_BF16)
            dot_bf16(x, m, k, w + (size_t)j * row, tile + j, ld);
        else
            dot(x, m, k, w + (size_t)j * row, dtype, tile + j, ld);
}

// Multiplies with a constant number of rows, so that their sums stay in registers.
ALWAYS_INLINE void multiply_rows(const float *x, int64_t m, int64_t k, const char *w, mezzo_dtype dtype, int columns,
                                 float *tile, int64_t ld) {
    if (m == 1)
        multiply(x, 1, k, w, dtype, columns, tile, ld);
    else if (m == 2)
        multiply(x, 2, k, w, dtype, columns, tile, ld);
    else if (m == 3)
        multiply(x, 3, k, w, dtype, columns, tile, ld);
    else
        multiply(x, 4, k, w, dtype, columns, tile, ld);
}

void FOR_LEVEL(mz_matmul_rows)(const float *x, int64_t m, int64_t k, const void *w, mezzo_dtype dtype, int columns,
                               float *tile, int64_t ld) {
    if (dtype == MEZZO_BF16)
        multiply_rows(x, m, k, w, MEZZO_BF16, columns, tile, ld);
    else if (dtype == MEZZO_F16)
        multiply_rows(x, m, k, w, MEZZO_F16, columns, tile, ld);
    else
        multiply_rows(x, m, k, w, MEZZO_F32, columns, tile, ld);
}
