// Multiplies small FP32 matrices in tiles that stay in cache, for attention.
#ifndef MZ_CPU_TILE_H
#define MZ_CPU_TILE_H

#include "backend/cpu/kernels/vec.h"

// Rows × vectors of C that stay in registers. 4×4 of 16 lanes is 16 accumulators, enough to cover an FMA's latency on
// two pipes, with 8 loads for 16 FMAs; with 16 registers (AVX2, SSE) 4×2 leaves registers for the operands.
#if VEC_512
enum { TILE_ROWS = 4, TILE_VECTORS = 4 };
#else
enum { TILE_ROWS = 4, TILE_VECTORS = 2 };
#endif

// An operand whose element (i, k) is at[i·row + k·step]: a matrix or its transpose.
typedef struct tile_operand {
    const float *at;
    size_t row, step;
} tile_operand;

// Adds C[0…3][0…vectors·VW) += Σ_k A(i, k)·B[k][…], k from 0 to depth. `vectors` is a constant where this is inlined.
static inline __attribute__((always_inline)) void tile_kernel(const int vectors, tile_operand a, const float *b,
                                                              size_t b_row, float *c, size_t c_row, int depth) {
    vf sum[TILE_ROWS][TILE_VECTORS];
    for (int i = 0; i < TILE_ROWS; i++)
        for (int v = 0; v < vectors; v++)
            sum[i][v] = vload(c + (size_t)i * c_row + v * VW);
    for (int k = 0; k < depth; k++) {
        vf row[TILE_VECTORS];
        for (int v = 0; v < vectors; v++)
            row[v] = vload(b + (size_t)k * b_row + v * VW);
        for (int i = 0; i < TILE_ROWS; i++) {
            vf x = vset(a.at[(size_t)i * a.row + (size_t)k * a.step]);
            for (int v = 0; v < vectors; v++)
                sum[i][v] = vfma(x, row[v], sum[i][v]);
        }
    }
    for (int i = 0; i < TILE_ROWS; i++)
        for (int v = 0; v < vectors; v++)
            vstore(c + (size_t)i * c_row + v * VW, sum[i][v]);
}

// Adds C[0…3][0…n) += Σ_k A(i, k)·B[k][…], n a multiple of VW.
static inline void tile_rows(tile_operand a, const float *b, size_t b_row, float *c, size_t c_row, int n, int depth) {
    int at = 0;
    for (; at + TILE_VECTORS * VW <= n; at += TILE_VECTORS * VW)
        tile_kernel(TILE_VECTORS, a, b + at, b_row, c + at, c_row, depth);
#if VEC_512
    if (at + 2 * VW <= n) {
        tile_kernel(2, a, b + at, b_row, c + at, c_row, depth);
        at += 2 * VW;
    }
#endif
    if (at < n)
        tile_kernel(1, a, b + at, b_row, c + at, c_row, depth);
}

// Transposes to[j][i] = from[i][j], rows and columns in fours.
typedef float four __attribute__((vector_size(16)));
typedef four four_any __attribute__((aligned(4), may_alias));

static inline four load_four(const float *p) {
    return *(const four_any *)(const void *)p;
}
static inline void store_four(float *p, four x) {
    *(four_any *)(void *)p = x;
}

static inline void transpose_four(const float *from, size_t from_row, float *to, size_t to_row) {
    four a = load_four(from), b = load_four(from + from_row), c = load_four(from + 2 * from_row),
         d = load_four(from + 3 * from_row);
    four ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5), ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    four cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5), cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    store_four(to, __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5));
    store_four(to + to_row, __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7));
    store_four(to + 2 * to_row, __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5));
    store_four(to + 3 * to_row, __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7));
}

#endif
