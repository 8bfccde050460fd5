// Attention backward on tensor cores, of 16-bit storage: the second of two passes (attention_keys.cuh).
#include "attention_keys.cuh"

namespace {

template <typename T, int DROP, int SEES> struct for_width {
    static cudaError_t run(cudaStream_t stream, const mz_cu_attention &a, bool prepare) {
        if (a.width <= 32)
            return attention_run<mma_pass<2, halves<T>, DROP, SEES, 32, 1, 64, 64>>(prepare, stream, a);
        if (a.width <= 64 && a.cc >= 80 && attention_many_blocks(a, a.kv_heads))
            return attention_run<mma_pass<2, halves<T>, DROP, SEES, 64, 2, 64, 32>>(prepare, stream, a);
        if (a.width <= 64)
            return attention_run<mma_pass<2, halves<T>, DROP, SEES, 64, 1, 64, 64>>(prepare, stream, a);
        if (a.width <= 80 && a.cc < 80) // 64 KiB of shared memory
            return attention_run<mma_pass<2, halves<T, true>, DROP, SEES, 80, 1, 32, 32>>(prepare, stream, a);
        if (a.width <= 80)
            return attention_run<mma_pass<2, halves<T>, DROP, SEES, 80, 1, 64, 32>>(prepare, stream, a);
        if (a.cc < 80)
            return attention_run<mma_pass<2, halves<T, true>, DROP, SEES, 128, 1, 16, 16>>(prepare, stream, a);
        return attention_run<mma_pass<2, halves<T>, DROP, SEES, 128, 1, 32, 32>>(prepare, stream, a);
    }
};

} // namespace

cudaError_t mz_cu_attention_mma_dkv(cudaStream_t stream, const mz_cu_attention *a, bool prepare) {
    return attention_of_halves<for_width>(stream, *a, prepare);
}
