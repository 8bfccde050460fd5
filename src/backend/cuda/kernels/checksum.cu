// Sums words of byte arrays as backend/inspect.h has it, up to MZ_MAX_IN arrays at once. Sums of integers do not depend
// on the order.
#include "rows.cuh"

enum { THREADS = 256, BLOCKS_OF_SM = 8, WORD = 8 };

struct checksum_args {
    const unsigned char *x[MZ_MAX_IN];
    int64_t bytes[MZ_MAX_IN];
    mz_checksum *sums;
};

__device__ __forceinline__ uint64_t word_of(const unsigned char *at, int64_t bytes) {
    uint64_t word = 0;
    for (int k = 0; k < WORD; k++)
        if (k < bytes)
            word |= static_cast<uint64_t>(at[k]) << 8 * k;
    return word;
}

// Sums every stride-th word from `first` on; the thread that comes to the end has the word that is not whole.
template <bool ALIGNED>
__device__ __forceinline__ mz_checksum sum_words(const unsigned char *x, int64_t bytes, int64_t first, int64_t stride) {
    const int64_t words = bytes / WORD;
    mz_checksum sum = {0, 0};
    int64_t i = first;
#pragma unroll 4
    for (; i < words; i += stride)
        mz_checksum_add(&sum, ALIGNED ? reinterpret_cast<const uint64_t *>(x)[i] : word_of(x + i * WORD, WORD),
                        static_cast<uint64_t>(i));
    if (i == words && bytes % WORD > 0)
        mz_checksum_add(&sum, word_of(x + i * WORD, bytes % WORD), static_cast<uint64_t>(i));
    return sum;
}

__device__ __forceinline__ void merge(mz_checksum &sum, const mz_checksum &other) {
    sum.weighted += other.weighted;
    sum.mixed += other.mixed;
}

__device__ __forceinline__ void add_to(uint64_t *sum, uint64_t x) {
    static_assert(sizeof(unsigned long long) == sizeof x, "atomicAdd has a sum of this type");
    atomicAdd(reinterpret_cast<unsigned long long *>(sum), static_cast<unsigned long long>(x));
}

__global__ void __launch_bounds__(THREADS) checksum_kernel(const checksum_args a) {
    const unsigned char *x = a.x[blockIdx.y];
    const int64_t bytes = a.bytes[blockIdx.y], begin = static_cast<int64_t>(blockIdx.x) * THREADS;
    if (begin * WORD >= bytes) // a smaller array than the largest one
        return;
    const int64_t first = begin + threadIdx.x, stride = static_cast<int64_t>(gridDim.x) * THREADS;
    mz_checksum sum = reinterpret_cast<uintptr_t>(x) % WORD == 0 ? sum_words<true>(x, bytes, first, stride)
                                                                 : sum_words<false>(x, bytes, first, stride);
    sum = block_merge<THREADS>(sum, merge);
    if (threadIdx.x != 0)
        return;
    add_to(&a.sums[blockIdx.y].weighted, sum.weighted);
    add_to(&a.sums[blockIdx.y].mixed, sum.mixed);
}

static void launch_checksum(const mz_cuda_device *cuda, const mz_call *call) {
    checksum_args a = {.sums = data_of<mz_checksum>(mz_out(call, checksum, sums))};
    const int64_t most = static_cast<int64_t>(cuda->sms) * BLOCKS_OF_SM * THREADS;
    int64_t words = 1;
    for (int i = 0; i < call->n_in; i++) {
        a.x[i] = data_of<unsigned char>(&call->in[i]);
        a.bytes[i] = a.x[i] != nullptr ? mz_shape_count(&call->in[i].shape) : 0;
        const int64_t own = (a.bytes[i] + WORD - 1) / WORD;
        words = own > words ? own : words;
    }
    (void)cudaMemsetAsync(a.sums, 0, static_cast<size_t>(call->n_in) * sizeof *a.sums, cuda->stream);
    const dim3 blocks(blocks_of(words < most ? words : most, THREADS), static_cast<unsigned>(call->n_in));
    if (call->n_in > 0)
        checksum_kernel<<<blocks, THREADS, 0, cuda->stream>>>(a);
}
MZ_CUDA_KERNEL(checksum, launch_checksum, storages<"u", "u">)
