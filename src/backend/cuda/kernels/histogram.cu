// Counts a tensor's elements between neighbouring powers of two in one pass. A block counts in shared memory and adds
// its table to the device's at the end; sums of integers do not depend on the order.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "launch.h"
#include "layout.cuh"
#include "vec.cuh"

enum { THREADS = 256, BUCKETS = MZ_CU_HISTOGRAM_BUCKETS };

// backend.h's mz_histogram_bucket.
__device__ __forceinline__ int bucket_of(float x) {
    unsigned magnitude = __float_as_uint(x) & 0x7FFFFFFFu;
    if (magnitude == 0)
        return 0;
    if (magnitude >= 0x7F800000u)
        return magnitude == 0x7F800000u ? BUCKETS - 2 : BUCKETS - 1;
    unsigned below = magnitude - 1;
    if (below >= 0x00800000u)
        return static_cast<int>(below >> 23) - 127 + 151;
    return below == 0 ? 1 : 31 - __clz(static_cast<int>(below)) + 2;
}

__global__ void __launch_bounds__(THREADS)
    histogram_kernel(mz_cu_array x, mz_cu_layout layout, int64_t n, int *counts) {
    __shared__ int own[BUCKETS];
    for (int k = threadIdx.x; k < BUCKETS; k += THREADS)
        own[k] = 0;
    __syncthreads();
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; i < n;
         i += static_cast<int64_t>(gridDim.x) * THREADS)
        atomicAdd(&own[bucket_of(load1(x.data, x.dtype, layout_index(layout, i)))], 1);
    __syncthreads();
    for (int k = threadIdx.x; k < BUCKETS; k += THREADS)
        if (own[k] != 0)
            atomicAdd(&counts[k], own[k]);
}

extern "C" cudaError_t mz_cu_histogram(cudaStream_t stream, mz_cu_array x, mz_cu_layout layout, int64_t n, void *counts,
                                       int sms) {
    int64_t blocks = (n + THREADS - 1) / THREADS, most = static_cast<int64_t>(sms) * 4;
    blocks = blocks < most ? blocks : most;
    if (blocks > 0)
        histogram_kernel<<<static_cast<unsigned>(blocks), THREADS, 0, stream>>>(x, layout, n,
                                                                                static_cast<int *>(counts));
    return cudaGetLastError();
}
