// Rounds to blocks, emulated (emulate_fp8.cu).
#ifndef MZ_CU_EMULATE_FP8_H
#define MZ_CU_EMULATE_FP8_H

#include "launch.h"

#ifdef __cplusplus
extern "C" {
#endif

// mz_cu_blocks, but to BF16, which holds a number of MX's exactly where its block's scale is at least 2^-124; y is not
// x.
cudaError_t mz_cu_blocks_bf16(cudaStream_t stream, mz_cu_array x, void *y, int64_t rows, int64_t cols, int down,
                              int blocks, int via, const uint32_t *amax, const mz_cu_at_random *random);

#ifdef __cplusplus
}
#endif
#endif
