// Rounds to E4M3 with a power of two for every 128 numbers (quantize_block.cu), which fp8_block.cu multiplies.
#ifndef MZ_CU_FP8_BLOCK_H
#define MZ_CU_FP8_BLOCK_H

#include "quantize.h"

#ifdef __cplusplus
extern "C" {
#endif

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
