// Inspects tensors: NaN, infinities, zeros, values below FP16's normal range, and the range of the rest. It works on a
// value's bits, so that counts are integers and the compiler can vectorize.
#include "backend/cpu/kernels/block.h"
#include "backend/cpu/kernels/kernels.h"
#include "backend/update.h"
#include "backend/inspect.h"

enum { RUN = 32, INFINITE = 0x7F800000, TINY = 0x38800000 /* 2^-14 */, SIGN = 0x7FFFFFFF };

typedef struct tally {
    int64_t nans, infs, large, zeros, tiny;
    int32_t low, high; // finite values as integers in the same order; low > high: none
} tally;

// Maps the bits of a float so that integers order them like the floats; the map is its own inverse.
static inline int32_t ordered(int32_t bits) {
    return bits ^ (bits >> 31 & SIGN);
}

static void tally_block(const float *x, int n, int32_t limit, tally *to) {
    int32_t nans = 0, infs = 0, large = 0, zeros = 0, tiny = 0, low = to->low, high = to->high;
    for (int i = 0; i < n; i++) {
        int32_t bits, magnitude, key;
        memcpy(&bits, x + i, sizeof bits);
        magnitude = bits & SIGN;
        key = ordered(bits);
        bool finite = magnitude < INFINITE;
        nans += magnitude > INFINITE;
        infs += magnitude == INFINITE;
        large += finite & (magnitude > limit);
        zeros += magnitude == 0;
        tiny += (magnitude > 0) & (magnitude < TINY);
        int32_t below = finite ? key : INT32_MAX, above = finite ? key : INT32_MIN;
        low = below < low ? below : low;
        high = above > high ? above : high;
    }
    to->nans += nans;
    to->infs += infs;
    to->large += large;
    to->zeros += zeros;
    to->tiny += tiny;
    to->low = low;
    to->high = high;
}

static void tally_range(const mz_tensor *t, const mz_layout *layout, int64_t from, int64_t n, int32_t limit,
                        tally *to) {
    float buffer[MZ_BLOCK];
    for (int64_t at = from, count; at < from + n; at += count) {
        count = mz_layout_run(layout, at, min64(MZ_BLOCK, from + n - at));
        tally_block(block_in(t, mz_layout_index(layout, at), (int)count, buffer), (int)count, limit, to);
    }
}

static float from_ordered(int32_t key) {
    int32_t bits = ordered(key);
    float x;
    memcpy(&x, &bits, sizeof x);
    return x + 0.0f; // turns -0 into 0
}

static mz_inspection inspect(const mezzo_device *device, const mz_call *call, const mz_tensor *x) {
    int64_t n = mz_shape_count(&x->shape), runs = (call->attrs.sample + RUN - 1) / RUN, length = RUN;
    int32_t limit = INFINITE;
    mz_layout layout;
    mz_layout_of(&x->shape, &x->storage, &layout);
    if (call->attrs.limit > 0)
        memcpy(&limit, &call->attrs.limit, sizeof limit);
    bool all = call->attrs.sample == 0 || runs * RUN >= n;
    if (all) {
        length = 64 * MZ_BLOCK;
        runs = (n + length - 1) / length;
    }
    int64_t nans = 0, infs = 0, large = 0, zeros = 0, tiny = 0;
    int32_t low = INT32_MAX, high = INT32_MIN;
    int threads = mz_cpu_threads(device, 0.3 * (double)(runs * length));
#pragma omp parallel for schedule(static) num_threads(threads) reduction(+ : nans, infs, large, zeros, tiny)           \
    reduction(min : low) reduction(max : high)
    for (int64_t r = 0; r < runs; r++) {
        tally t = {.low = INT32_MAX, .high = INT32_MIN};
        int64_t start = all ? r * length : mz_sample_start(r, n / runs, call->rng->step);
        tally_range(x, &layout, start, min64(length, n - start), limit, &t);
        nans += t.nans, infs += t.infs, large += t.large, zeros += t.zeros, tiny += t.tiny;
        low = t.low < low ? t.low : low;
        high = t.high > high ? t.high : high;
    }
    bool any = low <= high;
    return (mz_inspection){.inspected = all ? n : runs * RUN,
                           .nans = nans,
                           .infs = infs,
                           .large = large,
                           .zeros = zeros,
                           .tiny = tiny,
                           .low = any ? from_ordered(low) : 0,
                           .high = any ? from_ordered(high) : 0};
}

static mezzo_status run_inspect(mezzo_device *device, const mz_call *call) {
    mz_inspection *found = mz_out(call, inspect, found)->data;
    mz_opt_state *state = mz_present(mz_out(call, inspect, state)) ? mz_out(call, inspect, state)->data : NULL;
    for (int i = 0; i < call->n_in; i++) {
        found[i] = inspect(device, call, &call->in[i]);
        if (state != NULL && mz_inspection_bad(&found[i]))
            state->bad |= i == 0 ? call->attrs.bad_first : call->attrs.bad_rest;
    }
    return MEZZO_OK;
}

static const char *inspect_refuses(const mezzo_device *device, const mz_call *call) {
    (void)device;
    for (int i = 0; i < call->n_in; i++) {
        const char *reason = mz_present(&call->in[i]) ? mz_layout_refusal(&call->in[i]) : NULL;
        if (reason != NULL)
            return reason;
    }
    return NULL;
}
MZ_CPU_KERNEL(inspect, NULL, NULL, NULL, inspect_refuses)
