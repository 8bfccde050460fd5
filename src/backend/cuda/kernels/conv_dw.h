// Computes the gradient of a convolution's weight from BF16 or FP16 images, on compute capability 9.0; as launch.h's
// launchers.
#ifndef MZ_CUDA_CONV_DW_H
#define MZ_CUDA_CONV_DW_H

#include "launch.h"

#ifdef __cplusplus
extern "C" {
#endif

// v as for mz_cu_conv2d_dw: groups 1, c and n multiples of 8, both images of one dtype; fewer than 2^30 pixels; bias:
// where the sums of dy's columns go, FP32 [n], or absent. splits: from how many ranges of pixels the sums are put
// together; partial: splits·n·(r·s·c + 1) floats where that is more than 1. prepare: launches nothing, and fails where
// there is no code for the device.
int mz_cu_conv_dw_splits(const mz_cu_conv *v, int sms);
cudaError_t mz_cu_conv_dw(cudaStream_t stream, const mz_cu_conv *v, int splits, float *partial, bool accumulate,
                          bool accumulate_bias, bool prepare);
// x [rows, c] of a 16-bit dtype to y [rows, wide], zeros after the c; wide a multiple of 8, less than 2^34 numbers.
cudaError_t mz_cu_conv_pad(cudaStream_t stream, const void *x, void *y, int64_t rows, int64_t c, int64_t wide);
// out [rows, c] = the first c of each row of x [rows, wide], added to what is there with `accumulate`.
cudaError_t mz_cu_conv_strip(cudaStream_t stream, const float *x, float *out, int64_t rows, int64_t c, int64_t wide,
                             bool accumulate);

#ifdef __cplusplus
}
#endif
#endif
