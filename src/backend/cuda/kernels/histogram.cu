// Counts a tensor's elements between neighbouring powers of two in one pass. A block counts in shared memory and adds
// its table to the device's at the end; sums of integers do not depend on the order.
#include "host.cuh"
#include "layout.cuh"
#include "vec.cuh"

enum { THREADS = 256, BUCKETS = MZ_HISTOGRAM_BUCKETS };

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

__global__ void __launch_bounds__(THREADS) histogram_kernel(mz_cu_array x, mz_layout layout, int64_t n, int *counts) {
    __shared__ int own[BUCKETS];
    for (int k = threadIdx.x; k < BUCKETS; k += THREADS)
        own[k] = 0;
    __syncthreads();
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; i < n;
         i += static_cast<int64_t>(gridDim.x) * THREADS)
        atomicAdd(&own[bucket_of(load1(x, layout_index(layout, i)))], 1);
    __syncthreads();
    for (int k = threadIdx.x; k < BUCKETS; k += THREADS)
        if (own[k] != 0)
            atomicAdd(&counts[k], own[k]);
}

static const char *has_layout(const mz_call *call) {
    return mz_cuda_has_layout(mz_in(call, histogram, x));
}
static void launch_histogram(const mz_cuda_device *cuda, const mz_call *call) {
    const mz_tensor *x = mz_in(call, histogram, x);
    const int64_t n = mz_shape_count(&x->shape), most = static_cast<int64_t>(cuda->sms) * 4 * THREADS;
    const unsigned blocks = blocks_of(n < most ? n : most, THREADS);
    if (n > 0)
        histogram_kernel<<<blocks, THREADS, 0, cuda->stream>>>(mz_cuda_array(x), mz_cuda_layout(x), n,
                                                               data_of<int>(mz_out(call, histogram, counts)));
}
MZ_CUDA_KERNEL(histogram, launch_histogram, storages<"a", "u", has_layout>)
