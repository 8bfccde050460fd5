// Computes causal attention of FP32 storage on tensor cores: TF32 products, or six BF16 ones that make one of FP32
// (attention_tf32.cuh).
#include "attention_keys.cuh"
#include "attention_queries.cuh"
#include "attention_tf32.cuh"

namespace {

template <int PASS, bool LIMITED, int KIND, int D, int MT, int BN>
using float_pass = mma_pass<PASS, floats<KIND>, DROP_ASKED, LIMITED ? SEES_LIMITED : SEES_BEFORE, D, MT, BN>;

// Chooses the rows of a warp and the tile for a head's width: BF16 terms are stored once rather than split by every
// warp, forward takes 32 rows a warp where blocks are many, and narrow heads take tiles of 64 where blocks are few.
template <int PASS, bool LIMITED>
cudaError_t stored_for_width(cudaStream_t stream, const mz_cu_attention &a, bool prepare) {
    constexpr int KIND = OF_STORED_PARTS;
    if (a.width <= 32 && (a.length + 63) / 64 * static_cast<long long>(a.batch) * a.heads < 2 * a.sms)
        return attention_run<float_pass<PASS, LIMITED, KIND, 32, 1, 64>>(prepare, stream, a);
    if (a.width <= 32)
        return attention_run<float_pass<PASS, LIMITED, KIND, 32, 1, 32>>(prepare, stream, a);
    if (PASS == 0 && a.width <= 64 && attention_many_blocks(a, a.heads))
        return attention_run<float_pass<PASS, LIMITED, KIND, 64, PASS == 0 ? 2 : 1, 32>>(prepare, stream, a);
    if (a.width <= 64)
        return attention_run<float_pass<PASS, LIMITED, KIND, 64, 1, 32>>(prepare, stream, a);
    if (a.width <= 80)
        return attention_run<float_pass<PASS, LIMITED, KIND, 80, 1, PASS == 0 ? 32 : 16>>(prepare, stream, a);
    return attention_run<float_pass<PASS, LIMITED, KIND, 128, 1, PASS == 0 ? 16 : 32>>(prepare, stream, a);
}

template <int PASS, bool LIMITED, int KIND>
cudaError_t for_width(cudaStream_t stream, const mz_cu_attention &a, bool prepare) {
    if (a.width <= 32)
        return attention_run<float_pass<PASS, LIMITED, KIND, 32, 2, 32>>(prepare, stream, a);
    if (a.width <= 64)
        return attention_run<float_pass<PASS, LIMITED, KIND, 64, 1, PASS == 2 && KIND == OF_PARTS ? 16 : 32>>(
            prepare, stream, a);
    return attention_run<float_pass<PASS, LIMITED, KIND, 128, 1, PASS == 0 ? 32 : 16>>(prepare, stream, a);
}

// Stored parts take up to 190 KiB of shared memory, which Hopper and its successors in servers have; others take 70 to
// 100.
template <int PASS, bool LIMITED> cudaError_t run_limited(cudaStream_t stream, const mz_cu_attention &a, bool prepare) {
    if (a.compute == MEZZO_TF32)
        return for_width<PASS, LIMITED, OF_TF32>(stream, a, prepare);
    return a.cc >= 90 && a.cc < 120 ? stored_for_width<PASS, LIMITED>(stream, a, prepare)
                                    : for_width<PASS, LIMITED, OF_PARTS>(stream, a, prepare);
}

template <int PASS> cudaError_t run_pass(cudaStream_t stream, const mz_cu_attention &a, bool prepare) {
    return a.limited ? run_limited<PASS, true>(stream, a, prepare) : run_limited<PASS, false>(stream, a, prepare);
}

} // namespace

cudaError_t mz_cu_attention_tf32(cudaStream_t stream, const mz_cu_attention *a, bool prepare) {
    return run_pass<0>(stream, *a, prepare);
}
cudaError_t mz_cu_attention_tf32_bwd(cudaStream_t stream, const mz_cu_attention *a, bool prepare) {
    cudaError_t error = run_pass<1>(stream, *a, prepare);
    return error != cudaSuccess ? error : run_pass<2>(stream, *a, prepare);
}
