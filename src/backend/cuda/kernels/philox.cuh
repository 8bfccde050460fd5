// Computes Philox4x32-10, bit for bit as base/philox.c (docs/dev/NUMERICS.md, "Randomness").
#ifndef MZ_PHILOX_CUH
#define MZ_PHILOX_CUH

#include "launch.h"

struct philox_key {
    uint64_t seed;
    uint32_t step, tensor;
};

// `tensor` is the call's attrs.rng.
__device__ __forceinline__ philox_key philox_key_of(const void *rng, uint32_t tensor) {
    const mz_rng_state *state = static_cast<const mz_rng_state *>(rng);
    uint64_t step = state->step;
    philox_key key = {state->seed, static_cast<uint32_t>(step ^ step >> 32), tensor};
    return key;
}

__device__ __forceinline__ uint4 philox(philox_key key, uint64_t index) {
    uint32_t k0 = static_cast<uint32_t>(key.seed), k1 = static_cast<uint32_t>(key.seed >> 32);
    uint4 c = make_uint4(static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), key.tensor, key.step);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        // The multipliers and the Weyl increments are the paper's.
        uint32_t low0 = 0xD2511F53u * c.x, high0 = __umulhi(0xD2511F53u, c.x);
        uint32_t low1 = 0xCD9E8D57u * c.z, high1 = __umulhi(0xCD9E8D57u, c.z);
        c = make_uint4(high1 ^ c.y ^ k0, low1, high0 ^ c.w ^ k1, low0);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c;
}

__device__ __forceinline__ float philox_uniform(uint32_t word) { // [0, 1): the top 24 bits
    return static_cast<float>(word >> 8) * 0x1p-24f;
}

// Dropout's factors of elements 4·block … 4·block + 3: 0, or `kept` = 1/(1-p).
__device__ __forceinline__ float4 dropout_factors(philox_key key, uint64_t block, float p, float kept) {
    uint4 w = philox(key, block);
    return make_float4(philox_uniform(w.x) >= p ? kept : 0.0f, philox_uniform(w.y) >= p ? kept : 0.0f,
                       philox_uniform(w.z) >= p ? kept : 0.0f, philox_uniform(w.w) >= p ? kept : 0.0f);
}

#endif
