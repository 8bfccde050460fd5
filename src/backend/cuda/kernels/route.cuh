// Computes a router's scores and their order, for route alone and after the product of its logits.
#ifndef MZ_ROUTE_CUH
#define MZ_ROUTE_CUH

#include "host.cuh"

__device__ __forceinline__ float expert_score(float x) { // no exponential overflows; NaN stays NaN
    float e = expf(-fabsf(x));
    return x < 0 ? e / (1 + e) : 1 / (1 + e);
}

// NaN counts as the largest number, as in torch.topk: it is chosen, so that it reaches the output.
__device__ __forceinline__ bool larger(float a, float b) {
    return a > b || (isnan(a) && !isnan(b));
}

// Maps floats to integers above 0 in the order of `larger`; 0 stands for "taken".
__device__ __forceinline__ uint32_t rank_key(float x) {
    if (isnan(x))
        return 0xFFFFFFFFu;
    uint32_t bits = __float_as_uint(x + 0.0f); // -0 is 0
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// --- the calls -----------------------------------------------------------------------------------------------------
struct route_args {
    mz_cu_array logits; // [tokens, experts]
    const float *bias;  // [experts] or NULL
    float *weights;     // [tokens, top_k]
    int32_t *indices;   // [tokens, top_k]
    int64_t tokens;
    int experts, top_k, groups, top_groups; // experts at most 1024; groups at least 1
    bool normalise, softmax;
    float alpha;
};
inline route_args route_args_of(const mz_call *call) {
    const mz_attrs *attrs = &call->attrs;
    const mz_tensor *logits = mz_in(call, route, logits), *weights = mz_out(call, route, weights);
    const int64_t tokens = weights->shape.dim[0];
    return {.logits = mz_cuda_array(logits),
            .bias = data_of<float>(mz_in(call, route, bias)),
            .weights = data_of<float>(weights),
            .indices = data_of<int32_t>(mz_out(call, route, indices)),
            .tokens = tokens,
            .experts = static_cast<int>(mz_shape_count(&logits->shape) / tokens),
            .top_k = attrs->top_k,
            .groups = attrs->groups > 1 ? attrs->groups : 1,
            .top_groups = attrs->top_groups,
            .normalise = attrs->normalise,
            .softmax = attrs->softmax,
            .alpha = attrs->alpha};
}
// 48 KiB of shared memory hold so many counters of expert_order's eight warps.
inline const char *few_experts(int64_t experts) {
    return experts <= 1024 ? NULL : "more than 1024 experts";
}
inline const char *few_experts_of_route(const mz_call *call) {
    return few_experts(mz_cuda_width(mz_in(call, route, logits)));
}

struct route_dx_args {
    const float *dweights;  // [tokens, top_k]
    mz_cu_array logits, dx; // [tokens, experts]
    const int32_t *indices; // [tokens, top_k]
    int64_t tokens;
    int experts, top_k;
    bool normalise, softmax;
    float alpha;
};
inline route_dx_args route_dx_args_of(const mz_call *call) {
    const mz_tensor *dweights = mz_in(call, route_dx, dweights), *logits = mz_in(call, route_dx, logits);
    const int64_t tokens = mz_shape_count(&dweights->shape) / call->attrs.top_k;
    return {.dweights = data_of<float>(dweights),
            .logits = mz_cuda_array(logits),
            .dx = mz_cuda_array(mz_out(call, route_dx, dx)),
            .indices = data_of<int32_t>(mz_in(call, route_dx, indices)),
            .tokens = tokens,
            .experts = static_cast<int>(mz_shape_count(&logits->shape) / tokens),
            .top_k = call->attrs.top_k,
            .normalise = call->attrs.normalise,
            .softmax = call->attrs.softmax,
            .alpha = call->attrs.alpha};
}

#endif
