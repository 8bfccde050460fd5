// Inspects tensors: NaN, infinities, zeros, values below FP16's normal range, and the range of the rest. One block a
// tensor: a step's samples are small, and whole tensors are looked at only when a bad step is replayed.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "launch.h"
#include "layout.cuh"

enum {
    THREADS = 512,
    WARP = 32,
    RUN = 32,
    INFINITE = 0x7F800000,
    TINY = 0x38800000 /* 2^-14 */,
    MAGNITUDE = 0x7FFFFFFF
};

struct tally {
    long long nans, infs, large, zeros, tiny;
    int low, high; // finite values as integers in the same order; low > high: none
};

__device__ __forceinline__ float value_at(const mz_cu_array &x, int64_t i) {
    if (x.dtype == MZ_CU_F32)
        return static_cast<const float *>(x.data)[i];
    if (x.dtype == MZ_CU_BF16)
        return __bfloat162float(static_cast<const __nv_bfloat16 *>(x.data)[i]);
    return __half2float(static_cast<const __half *>(x.data)[i]);
}

// The bits of a float, made so that integers order them as the floats: it is its own inverse.
__device__ __forceinline__ int ordered(int bits) {
    return bits ^ (bits >> 31 & MAGNITUDE);
}

__device__ __forceinline__ void look_at(float x, int limit, tally &t) {
    int bits = __float_as_int(x), magnitude = bits & MAGNITUDE;
    bool finite = magnitude < INFINITE;
    t.nans += magnitude > INFINITE;
    t.infs += magnitude == INFINITE;
    t.large += finite && magnitude > limit;
    t.zeros += magnitude == 0;
    t.tiny += magnitude > 0 && magnitude < TINY;
    if (finite) {
        t.low = min(t.low, ordered(bits));
        t.high = max(t.high, ordered(bits));
    }
}

__device__ __forceinline__ void merge(tally &t, const tally &o) {
    t.nans += o.nans;
    t.infs += o.infs;
    t.large += o.large;
    t.zeros += o.zeros;
    t.tiny += o.tiny;
    t.low = min(t.low, o.low);
    t.high = max(t.high, o.high);
}

__device__ __forceinline__ void merge_lane(tally &t, int lane_distance) {
    const unsigned all = 0xFFFFFFFFu;
    tally o;
    o.nans = __shfl_xor_sync(all, t.nans, lane_distance);
    o.infs = __shfl_xor_sync(all, t.infs, lane_distance);
    o.large = __shfl_xor_sync(all, t.large, lane_distance);
    o.zeros = __shfl_xor_sync(all, t.zeros, lane_distance);
    o.tiny = __shfl_xor_sync(all, t.tiny, lane_distance);
    o.low = __shfl_xor_sync(all, t.low, lane_distance);
    o.high = __shfl_xor_sync(all, t.high, lane_distance);
    merge(t, o);
}

__device__ __forceinline__ float from_ordered(int key) {
    return __int_as_float(ordered(key)) + 0.0f; // one zero, not two
}

struct rng_state {
    unsigned long long seed, step;
};

__global__ void __launch_bounds__(THREADS) inspect_kernel(mz_cu_inspect_args a) {
    __shared__ tally shared[THREADS / WARP];
    const mz_cu_array x = a.x[blockIdx.x];
    const mz_cu_layout layout = a.layout[blockIdx.x];
    int64_t n = a.count[blockIdx.x], runs = (a.sample + RUN - 1) / RUN;
    bool all = a.sample == 0 || runs * RUN >= n;
    int64_t inspected = all ? n : runs * RUN, stride = all ? n : n / runs, shift = 0;
    if (!all) { // backend.h's mz_sample_start
        unsigned long long step = static_cast<const rng_state *>(a.rng)->step;
        shift = static_cast<int64_t>(static_cast<unsigned>(step ^ step >> 32) * 2654435761u %
                                     static_cast<unsigned long long>(stride - 31));
    }
    int limit = a.limit > 0 ? __float_as_int(a.limit) : INFINITE;
    tally t = {0, 0, 0, 0, 0, 0x7FFFFFFF, static_cast<int>(0x80000000u)};
    for (int64_t i = threadIdx.x; i < inspected; i += THREADS)
        look_at(value_at(x, layout_index(layout, all ? i : i / RUN * stride + shift + i % RUN)), limit, t);
    for (int step = WARP / 2; step > 0; step >>= 1)
        merge_lane(t, step);
    if (threadIdx.x % WARP == 0)
        shared[threadIdx.x / WARP] = t;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    for (int w = 1; w < THREADS / WARP; w++)
        merge(t, shared[w]);
    bool any = t.low <= t.high;
    mz_cu_inspection *found = a.found + blockIdx.x;
    found->inspected = inspected;
    found->nans = t.nans;
    found->infs = t.infs;
    found->large = t.large;
    found->zeros = t.zeros;
    found->tiny = t.tiny;
    found->low = any ? from_ordered(t.low) : 0;
    found->high = any ? from_ordered(t.high) : 0;
    if (a.state != nullptr && t.nans + t.infs + t.large > 0)
        atomicOr(&static_cast<mz_cu_opt_state *>(a.state)->bad, blockIdx.x == 0 ? a.bad_first : a.bad_rest);
}

extern "C" cudaError_t mz_cu_inspect(cudaStream_t stream, const mz_cu_inspect_args *args) {
    inspect_kernel<<<static_cast<unsigned>(args->n), THREADS, 0, stream>>>(*args);
    return cudaGetLastError();
}
