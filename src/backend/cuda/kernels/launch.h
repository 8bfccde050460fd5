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

#ifdef __cplusplus
}
#endif
#endif
