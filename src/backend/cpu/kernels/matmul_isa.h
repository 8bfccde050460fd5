// Declares the parts of mz_matmul_isa, which are in files of their own, for the level that is compiled.
#ifndef MZ_CPU_MATMUL_ISA_H
#define MZ_CPU_MATMUL_ISA_H

#include "backend/cpu/kernels/matmul_vec.h"

// The FP32 tile: as many accumulators as leave registers for one row of B and one element of A.
#if VW == 16
#define F32_MR 14 // uses 28 of 32 registers
#define F32_NV 2
#elif VW == 8
#define F32_MR 6 // uses 12 of 16
#define F32_NV 2
#elif VEC_NEON
#define F32_MR 8 // uses 24 of 32
#define F32_NV 3
#else
#define F32_MR 4 // uses 12 of 16
#define F32_NV 3
#endif
#define F32_NR (F32_NV * VW)

extern const mz_conv_kernels FOR_LEVEL(mz_conv_f32); // conv.c

void FOR_LEVEL(mz_matmul_pack)(mz_panel format, int width, void *dst, const mz_matmul_operand *src, int64_t i0, int ni,
                               int64_t k0, int64_t nk, int64_t k_padded);
// Packs the formats of two parts.
void FOR_LEVEL(mz_matmul_pack_split)(mz_panel format, void *dst, const mz_matmul_operand *src, int64_t i0, int ni,
                                     int64_t k0, int64_t nk, int64_t k_padded);
void FOR_LEVEL(mz_matmul_epilogue)(const mz_matmul_epilogue *e, const float *tile, int64_t ld_tile, int64_t row,
                                   int64_t column, int rows, int columns);
void FOR_LEVEL(mz_matmul_rows)(const float *x, int64_t m, int64_t k, const void *w, mezzo_dtype dtype, int columns,
                               float *tile, int64_t ld);
void FOR_LEVEL(mz_matmul_add_pieces)(const float *sums, int64_t step, int64_t pieces, float *y, int64_t n, bool add);
void FOR_LEVEL(mz_matmul_column_sums)(const void *x, mezzo_dtype dtype, int64_t rows, int64_t ld, int64_t first,
                                      int64_t count, float *sums, bool add);

#endif
