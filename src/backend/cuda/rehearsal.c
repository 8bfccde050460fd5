// Chooses among a library's plans for the same work: it runs each, compares the bits of the results, and takes times.
#include "backend/cuda/cuda.h"

bool mz_rehearsal_open(mz_rehearsal *r, size_t bytes) {
    size_t available, total;
    return cudaMemGetInfo(&available, &total) == cudaSuccess && bytes <= available / 2 &&
           cudaMalloc(&r->memory, bytes) == cudaSuccess && cudaEventCreate(&r->from) == cudaSuccess &&
           cudaEventCreate(&r->to) == cudaSuccess;
}

void mz_rehearsal_close(mz_rehearsal *r) {
    (void)cudaStreamSynchronize(r->cuda->stream);
    if (r->from != NULL)
        (void)cudaEventDestroy(r->from);
    if (r->to != NULL)
        (void)cudaEventDestroy(r->to);
    (void)cudaFree(r->memory);
    (void)cudaGetLastError();
}

// Sets the result before a run: zeros, or the values to which a plan adds in place, because the order in which it adds
// them may change the rounding.
static bool set_result(const mz_rehearsal *r) {
    return (r->added != NULL
                ? cudaMemcpyAsync(r->result, r->added, r->result_bytes, cudaMemcpyDeviceToDevice, r->cuda->stream)
                : cudaMemsetAsync(r->result, 0, r->result_bytes, r->cuda->stream)) == cudaSuccess;
}

// Returns whether the plan runs and gives the bits that the first one left in r->first.
static bool same_bits(const mz_rehearsal *r, int plan, bool first) {
    const cudaStream_t stream = r->cuda->stream;
    int32_t differs = 0;
    bool ok = set_result(r) && r->run(r, plan);
    if (first)
        ok = ok &&
             cudaMemcpyAsync(r->first, r->result, r->result_bytes, cudaMemcpyDeviceToDevice, stream) == cudaSuccess;
    else
        ok = ok && cudaMemsetAsync(r->differs, 0, sizeof *r->differs, stream) == cudaSuccess &&
             mz_cu_differs(stream, r->result, r->first, r->result_bytes, r->differs) == cudaSuccess &&
             cudaMemcpyAsync(&differs, r->differs, sizeof differs, cudaMemcpyDeviceToHost, stream) == cudaSuccess;
    return cudaStreamSynchronize(stream) == cudaSuccess && ok && !differs;
}

// Returns the milliseconds of one run; 0 where it failed.
static float time_of(const mz_rehearsal *r, int plan, int runs) {
    float milliseconds = 0;
    bool ok = cudaEventRecord(r->from, r->cuda->stream) == cudaSuccess;
    for (int i = 0; i < runs && ok; i++)
        ok = r->run(r, plan);
    ok = ok && cudaEventRecord(r->to, r->cuda->stream) == cudaSuccess && cudaEventSynchronize(r->to) == cudaSuccess &&
         cudaEventElapsedTime(&milliseconds, r->from, r->to) == cudaSuccess;
    return ok ? milliseconds / (float)runs : 0;
}

int mz_rehearsal_fastest(const mz_rehearsal *r, int n, mz_rehearsal_times *times) {
    bool same[MZ_REHEARSAL_PLANS];
    int best = -1, reference = -1;
    *times = (mz_rehearsal_times){0};
    if (!r->fill(r, true))
        return 0;
    for (int i = 0; i < n; i++) {
        same[i] = same_bits(r, i, reference < 0);
        reference = reference < 0 && same[i] ? i : reference;
    }
    if (reference < 0 || r->cuda->first_plans || !r->fill(r, false))
        return reference;
    for (int i = reference; i < n; i++) {
        const float once = time_of(r, i, 1);
        const int runs = once > 1 ? 2 : once > 0.1f ? 5 : 20;
        float t = time_of(r, i, runs), again = time_of(r, i, runs);
        t = again > 0 && again < t ? again : t;
        if (once <= 0 || t <= 0)
            continue;
        times->others += !same[i];
        times->shortest = times->shortest <= 0 || t < times->shortest ? t : times->shortest;
        times->first = i == reference ? t : times->first;
        if (same[i] && (best < 0 || (t < times->chosen) != r->cuda->slowest))
            times->chosen = t, best = i;
    }
    return best >= 0 ? best : reference;
}
