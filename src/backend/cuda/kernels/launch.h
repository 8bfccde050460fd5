// The launchers of the device code: plain types, so that the C files beside this folder can call them. A launcher enqueues on
// `stream`, allocates nothing, waits for nothing and returns what cudaGetLastError() says of its launches.
// dtypes are mezzo_dtype values as int: 1 fp32, 3 bf16, 4 fp16 (checked in cuda.c). Strides and counts are in elements.
#ifndef MZ_CUDA_LAUNCH_H
#define MZ_CUDA_LAUNCH_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { MZ_CU_F32 = 1, MZ_CU_BF16 = 3, MZ_CU_F16 = 4, MZ_CU_I32 = 8 };

// A tensor's storage in any of the float dtypes; data NULL where it is absent.
typedef struct mz_cu_array {
    void *data;
    int dtype;
} mz_cu_array;

// --- device.cu: does nothing; cudaErrorNoKernelImageForDevice where this build has no code for the GPU.
cudaError_t mz_cu_probe(cudaStream_t stream);

// --- matmul.cu: what cuBLASLt's epilogues cannot do ---------------------------------------------------------------------------
// y = residual + round_via(act(round_via(z + bias))), preact = round_via(z + bias); all [rows, cols] but bias [cols]. Only z and y must
// be there. act is a mz_act.
typedef struct mz_cu_epilogue {
    mz_cu_array z, bias, residual, preact, y;
    int64_t rows, cols;
    int act, via;
} mz_cu_epilogue;
cudaError_t mz_cu_linear_epilogue(cudaStream_t stream, const mz_cu_epilogue *e);
// dx = round(product · act'(preact)), product FP32; preact may be absent.
cudaError_t mz_cu_act_dx(cudaStream_t stream, const void *product, mz_cu_array preact, mz_cu_array dx, int64_t n,
                         int act);
cudaError_t mz_cu_convert(cudaStream_t stream, mz_cu_array src, mz_cu_array dst, int64_t n);
// out [cols] = the columns' sums of x [rows, cols], added to what is there with `accumulate`; `partial`: scratch of ..._bytes().
size_t mz_cu_column_sums_bytes(int64_t rows, int64_t cols);
cudaError_t mz_cu_column_sums(cudaStream_t stream, mz_cu_array x, float *out, int64_t rows, int64_t cols,
                              bool accumulate, float *partial);
// For choosing algorithms: n numbers in [-1, 1); *out = 1 where any 4 bytes differ.
cudaError_t mz_cu_fill(cudaStream_t stream, mz_cu_array x, int64_t n, uint32_t seed);
cudaError_t mz_cu_differs(cudaStream_t stream, const void *a, const void *b, size_t bytes, int32_t *out);

#ifdef __cplusplus
}
#endif
#endif
