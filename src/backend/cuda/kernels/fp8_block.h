// Multiplies E4M3 operands with a power of two for every 128 terms of the sum (fp8_block.cu), and rounds to them
// (quantize_block.cu).
#ifndef MZ_CU_FP8_BLOCK_H
#define MZ_CU_FP8_BLOCK_H

#include "quantize.h"

#ifdef __cplusplus
extern "C" {
#endif

// out [rows, cols] = residual + round(a [rows, inner]·bᵀ [cols, inner] + bias). The scale of a's row r and terms 128·k
// … 128·k + 127 is a_scale[k·a_pitch + r]; of b's row c it is b_scale[k·b_pitch + c], or b_scale[k·b_step +
// c/128·b_tile] for tiles. Rows of codes begin at multiples of 16 bytes.
typedef struct mz_cu_fp8_block {
    const void *a, *b;
    const float *a_scale, *b_scale;
    int64_t a_pitch, b_pitch;   // of one block's scales: the rows of a and of b, up to a multiple of 128
    int64_t b_step, b_tile;     // tiles
    int64_t a_stride, b_stride; // bytes from row to row of the codes
    bool b_tiles;               // b's scales are of tiles
    int64_t rows, cols, inner;
    mz_cu_array out;            // FP32, BF16
    mz_cu_array bias, residual; // may be absent; the residual may be `out`
    int via;                    // what the sum and its bias are rounded to before the residual is added
    int splits;                 // the sum is divided so often: an FP32 result without bias
    float *partial;             // [splits, rows, cols] where there are two or more
} mz_cu_fp8_block;
int mz_cu_fp8_block_splits(const mz_cu_fp8_block *g, int sms); // worth it: 1 where tiles are enough for the card
// prepare: finds out whether the kernel can run, and runs nothing.
cudaError_t mz_cu_fp8_block_run(cudaStream_t stream, const mz_cu_fp8_block *g, int sms, bool prepare);
// Rows of `bytes` bytes, `stride` from one to the next in `to`; what is between is left as it is.
cudaError_t mz_cu_spread_rows(cudaStream_t stream, const void *from, void *to, int64_t rows, int64_t bytes,
                              int64_t stride);

// q's x, preact, act, via, y, turned, sums: as there, to E4M3, but `sums` are [mz_cu_quantize_block_turns, cols]. The
// scales of y, of blocks of a row or of tiles, and of turned's blocks of rows, as mz_scale_index has them.
typedef struct mz_cu_quantize_block {
    mz_cu_quantize q;
    bool tiles;
    float *scales, *columnwise_scales;
} mz_cu_quantize_block;
int64_t mz_cu_quantize_block_turns(int64_t rows);
cudaError_t mz_cu_quantize_block_run(cudaStream_t stream, const mz_cu_quantize_block *q);

#ifdef __cplusplus
}
#endif

#endif
