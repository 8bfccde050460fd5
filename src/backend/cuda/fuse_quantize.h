// These kernels write 8-bit data of their results, in place of a quantize after them (fuse_quantize.c), and take the
// arguments of the kernels that they replace.
#ifndef MZ_CUDA_FUSE_QUANTIZE_H
#define MZ_CUDA_FUSE_QUANTIZE_H

#include "backend/cuda/cuda.h"
#include "backend/cuda/kernels/quantize.h"

mz_cu_quantize mz_cuda_quantize_args(const mz_call *call);                                 // quantize.c
mz_cu_layernorm_args mz_cuda_norm_args(const mz_call *call);                               // rows.c
mz_cu_layernorm_bwd_args mz_cuda_norm_bwd_args(mezzo_device *device, const mz_call *call); // rows.c
extern const mz_kernel mz_cuda_layernorm, mz_cuda_layernorm_bwd, mz_cuda_dispatch, mz_cuda_cast, mz_cuda_quantize;

#endif
