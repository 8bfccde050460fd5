// Computes a router's scores and their order, for route alone and after the product of its logits.
#ifndef MZ_ROUTE_CUH
#define MZ_ROUTE_CUH

#include <stdint.h>

__device__ __forceinline__ float expert_score(float x) { // no exponential overflows; NaN stays NaN
    float e = expf(-fabsf(x));
    return x < 0 ? e / (1 + e) : 1 / (1 + e);
}

// NaN counts as the largest number, as in torch.topk: it is chosen, so that it reaches the output.
__device__ __forceinline__ bool larger(float a, float b) {
    return a > b || (isnan(a) && !isnan(b));
}

// In the order of `larger`, as integers above 0; 0 stands for "taken".
__device__ __forceinline__ uint32_t rank_key(float x) {
    if (isnan(x))
        return 0xFFFFFFFFu;
    uint32_t bits = __float_as_uint(x + 0.0f); // -0 is 0
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

#endif
