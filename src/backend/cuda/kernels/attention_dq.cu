// Attention backward on tensor cores, of 16-bit storage: the first of two passes (attention_queries.cuh).
#include "attention_queries.cuh"

namespace {

template <class OPERANDS, int DROP, int SEES>
cudaError_t for_width(cudaStream_t stream, const mz_cu_attention &a, bool prepare) {
    if (a.width <= 32)
        return attention_run<query_pass<1, OPERANDS, DROP, SEES, 32, 1, 64>>(prepare, stream, a);
    if (a.width <= 64)
        return attention_run<query_pass<1, OPERANDS, DROP, SEES, 64, 1, 32>>(prepare, stream, a);
    if (a.width <= 80 && a.cc < 80) // 64 KiB of shared memory
        return attention_run<query_pass<1, OPERANDS, DROP, SEES, 80, 1, 32>>(prepare, stream, a);
    if (a.width <= 80)
        return attention_run<query_pass<1, OPERANDS, DROP, SEES, 80, 1, 64>>(prepare, stream, a);
    if (a.cc < 80)
        return attention_run<query_pass<1, OPERANDS, DROP, SEES, 128, 1, 16>>(prepare, stream, a);
    return attention_run<query_pass<1, OPERANDS, DROP, SEES, 128, 1, 32>>(prepare, stream, a);
}

template <typename T> cudaError_t for_rules(cudaStream_t stream, const mz_cu_attention &a, bool prepare) {
    if (!a.causal)
        return for_width<halves<T>, DROP_ASKED, SEES_ALL>(stream, a, prepare);
    if (a.limited)
        return for_width<halves<T>, DROP_ASKED, SEES_LIMITED>(stream, a, prepare);
    return a.p > 0 ? for_width<halves<T>, DROP_ALWAYS, SEES_BEFORE>(stream, a, prepare)
                   : for_width<halves<T>, DROP_NEVER, SEES_BEFORE>(stream, a, prepare);
}

} // namespace

cudaError_t mz_cu_attention_mma_dq(cudaStream_t stream, const mz_cu_attention *a, bool prepare) {
    if (a->dtype == MEZZO_BF16)
        return for_rules<__nv_bfloat16>(stream, *a, prepare);
    return a->dtype == MEZZO_F16 ? for_rules<__half>(stream, *a, prepare) : cudaErrorInvalidValue;
}
