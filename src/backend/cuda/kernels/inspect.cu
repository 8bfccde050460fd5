// Inspects tensors: NaN, infinities, zeros, values below FP16's normal range, and the range of the rest. One block a
// tensor: a step's samples are small, and whole tensors are inspected only when a bad step is replayed.
#include "host.cuh"
#include "layout.cuh"
#include "rows.cuh"

enum { THREADS = 512, RUN = 32, INFINITE = 0x7F800000, TINY = 0x38800000 /* 2^-14 */, MAGNITUDE = 0x7FFFFFFF };

struct tally {
    long long nans, infs, large, zeros, tiny;
    int low, high; // finite values as integers in the same order; low > high: none
};

// Maps the bits of a float so that integers order them as the floats: the map is its own inverse.
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

__device__ __forceinline__ float from_ordered(int key) {
    return __int_as_float(ordered(key)) + 0.0f; // one zero, not two
}

struct inspect_args {
    mz_cu_array x[MZ_MAX_IN];
    mz_layout layout[MZ_MAX_IN];
    int64_t count[MZ_MAX_IN];
    int n, bad_first, bad_rest;
    int64_t sample; // 0 = all
    float limit;
    const mz_rng_state *rng;
    mz_inspection *found;
    mz_opt_state *state; // or NULL
};

__global__ void __launch_bounds__(THREADS) inspect_kernel(inspect_args a) {
    const mz_cu_array x = a.x[blockIdx.x];
    const mz_layout layout = a.layout[blockIdx.x];
    int64_t n = a.count[blockIdx.x], runs = (a.sample + RUN - 1) / RUN;
    bool all = a.sample == 0 || runs * RUN >= n;
    int64_t inspected = all ? n : runs * RUN, stride = all ? n : n / runs, shift = 0;
    if (!all) { // backend.h's mz_sample_start
        unsigned long long step = a.rng->step;
        shift = static_cast<int64_t>(static_cast<unsigned>(step ^ step >> 32) * 2654435761u %
                                     static_cast<unsigned long long>(stride - 31));
    }
    int limit = a.limit > 0 ? __float_as_int(a.limit) : INFINITE;
    tally t = {0, 0, 0, 0, 0, 0x7FFFFFFF, static_cast<int>(0x80000000u)};
    for (int64_t i = threadIdx.x; i < inspected; i += THREADS)
        look_at(load1(x, layout_index(layout, all ? i : i / RUN * stride + shift + i % RUN)), limit, t);
    t = block_merge<THREADS>(t, merge);
    if (threadIdx.x != 0)
        return;
    bool any = t.low <= t.high;
    mz_inspection *found = a.found + blockIdx.x;
    found->inspected = inspected;
    found->nans = t.nans;
    found->infs = t.infs;
    found->large = t.large;
    found->zeros = t.zeros;
    found->tiny = t.tiny;
    found->low = any ? from_ordered(t.low) : 0;
    found->high = any ? from_ordered(t.high) : 0;
    if (a.state != nullptr && t.nans + t.infs + t.large > 0)
        atomicOr(&a.state->bad, blockIdx.x == 0 ? a.bad_first : a.bad_rest);
}

static const char *inspect_prepare(mezzo_device *, const mz_call *call, mz_prepared *) {
    const char *reason = mz_cuda_storages(call, "a", "u");
    for (int i = 0; reason == NULL && i < call->n_in; i++)
        reason = mz_cuda_has_layout(&call->in[i]);
    return reason;
}
static void launch_inspect(const mz_cuda_device *cuda, const mz_call *call) {
    inspect_args a = {.n = call->n_in,
                      .bad_first = call->attrs.bad_first,
                      .bad_rest = call->attrs.bad_rest,
                      .sample = call->attrs.sample,
                      .limit = call->attrs.limit,
                      .rng = call->rng,
                      .found = data_of<mz_inspection>(mz_out(call, inspect, found)),
                      .state = data_of<mz_opt_state>(mz_out(call, inspect, state))};
    for (int i = 0; i < call->n_in; i++) {
        a.x[i] = mz_cuda_array(&call->in[i]);
        a.layout[i] = mz_cuda_layout(&call->in[i]);
        a.count[i] = mz_shape_count(&call->in[i].shape);
    }
    inspect_kernel<<<static_cast<unsigned>(a.n), THREADS, 0, cuda->stream>>>(a);
}
MZ_CUDA_KERNEL(inspect, launch_inspect, inspect_prepare)
