// Computes group norm where channels are a multiple of 8 and at most 2,048, in pieces of pixels; as launch.h's
// launchers.
#ifndef MZ_CUDA_GROUP_NORM_H
#define MZ_CUDA_GROUP_NORM_H

#include "launch.h"

#ifdef __cplusplus
extern "C" {
#endif

size_t mz_cu_group_norm_pieces_bytes(const mz_cu_group_norm *v, bool backward); // of the workspace
cudaError_t mz_cu_group_norm_forward_pieces(cudaStream_t stream, const mz_cu_group_norm *v, float *workspace);
cudaError_t mz_cu_group_norm_backward_pieces(cudaStream_t stream, const mz_cu_group_norm *v, mz_cu_array dx,
                                             mz_cu_array dfilm, float *dweight, float *dbias, bool accumulate,
                                             float *workspace);

#ifdef __cplusplus
}
#endif
#endif
