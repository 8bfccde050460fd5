// Launching a kernel while the one before it in the stream still ends (compute capability 9.0 on): its blocks are made
// and wait. It must call wait_for_before() before it touches memory that another kernel has to do with. Elsewhere an
// ordinary launch.
#ifndef MZ_PDL_LAUNCH_CUH
#define MZ_PDL_LAUNCH_CUH

#include <cuda_runtime.h>

#include "launch.h"

__device__ __forceinline__ void wait_for_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

inline bool can_launch_dependent() {
    int device = 0, major = 0;
    return !mz_cuda_without(MZ_CUDA_EARLY_LAUNCHES) && cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major >= 9;
}

template <typename... P, typename... A>
cudaError_t launch_dependent(cudaStream_t stream, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                             const A &...args) {
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = can_launch_dependent() ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

#endif
