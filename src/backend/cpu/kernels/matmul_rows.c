// A few rows times a matrix, as generating text does: every weight is read once, as it is stored, and meets all the
// rows while it is in a register. Nothing is packed: below about four rows packing W costs more than its product.
#include "backend/cpu/kernels/matmul_isa.h"

#define AT_ONCE 4 // rows of W: with two vectors of sums each, enough to keep both FMA pipes busy

ALWAYS_INLINE void dot(const float *x, int64_t k, const char *w, mezzo_dtype dtype, int rows, float *sums) {
    const size_t size = dtype == MEZZO_F32 ? sizeof(float) : sizeof(uint16_t), row = (size_t)k * size;
    vf sum[AT_ONCE][2] = {{{0}}};
    int64_t at = 0;
    for (; at + 2 * VW <= k; at += 2 * VW)
        for (int r = 0; r < rows; r++)
            for (int half = 0; half < 2; half++) {
                int64_t i = at + half * VW;
                sum[r][half] =
                    vfma(load_f32(x + i), load_as_f32(w + (size_t)r * row + (size_t)i * size, dtype), sum[r][half]);
            }
    for (; at < k; at += VW)
        for (int r = 0; r < rows; r++)
            sum[r][0] = vfma(load_f32_part(x + at, k - at),
                             load_as_f32_part(w + (size_t)r * row + (size_t)at * size, dtype, k - at), sum[r][0]);
    for (int r = 0; r < rows; r++)
        sums[r] = vsum(sum[r][0] + sum[r][1]);
}

ALWAYS_INLINE void multiply(const float *x, int64_t m, int64_t k, const char *w, mezzo_dtype dtype, int columns,
                            float *tile, int64_t ld) {
    const size_t row = (size_t)k * (dtype == MEZZO_F32 ? sizeof(float) : sizeof(uint16_t));
    for (int j = 0; j < columns; j += AT_ONCE)
        for (int64_t i = 0; i < m; i++) {
            float sums[AT_ONCE];
            const int n = columns - j < AT_ONCE ? columns - j : AT_ONCE;
            if (n == AT_ONCE)
                dot(x + i * k, k, w + (size_t)j * row, dtype, AT_ONCE, sums);
            else
                for (int r = 0; r < n; r++)
                    dot(x + i * k, k, w + (size_t)(j + r) * row, dtype, 1, sums + r);
            memcpy(tile + i * ld + j, sums, (size_t)n * sizeof(float));
        }
}

void FOR_LEVEL(mz_matmul_rows)(const float *x, int64_t m, int64_t k, const void *w, mezzo_dtype dtype, int columns,
                               float *tile, int64_t ld) {
    if (dtype == MEZZO_BF16)
        multiply(x, m, k, w, MEZZO_BF16, columns, tile, ld);
    else if (dtype == MEZZO_F16)
        multiply(x, m, k, w, MEZZO_F16, columns, tile, ld);
    else
        multiply(x, m, k, w, MEZZO_F32, columns, tile, ld);
}
