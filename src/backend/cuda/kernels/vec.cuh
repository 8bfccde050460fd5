// Holds eight elements of a storage: 16-byte loads and stores of fp32, bf16 and fp16, widened to FP32 and rounded back.
// The dtype is an ordinary argument: the same for every thread, so a branch on it costs an instruction or two, and
// nothing at all where the caller passes a constant. Loading and widening are apart so that many loads can be in flight
// before the first one is waited for.
#ifndef MZ_VEC_CUH
#define MZ_VEC_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "launch.h"

struct raw8 { // 8 elements as they are stored: 16-bit formats fill `lo`
    uint4 lo, hi;
};

__device__ __forceinline__ int width_of(int dtype) {
    return dtype == MEZZO_F32 ? 4 : 2;
}

// `i` is a multiple of 8 and the storage 16-byte aligned.
__device__ __forceinline__ raw8 fetch8(const void *data, int dtype, int64_t i) {
    const uint4 *p = reinterpret_cast<const uint4 *>(static_cast<const char *>(data) + i * width_of(dtype));
    raw8 r;
    r.lo = p[0];
    r.hi = make_uint4(0, 0, 0, 0);
    if (dtype == MEZZO_F32)
        r.hi = p[1];
    return r;
}

__device__ __forceinline__ float2 widen2(uint32_t pair, int dtype) {
    if (dtype == MEZZO_BF16)
        return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u));
    __half2 h;
    *reinterpret_cast<uint32_t *>(&h) = pair;
    return __half22float2(h);
}

__device__ __forceinline__ void widen8(raw8 r, int dtype, float v[8]) {
    const uint32_t w[8] = {r.lo.x, r.lo.y, r.lo.z, r.lo.w, r.hi.x, r.hi.y, r.hi.z, r.hi.w};
    if (dtype == MEZZO_F32) {
#pragma unroll
        for (int k = 0; k < 8; k++)
            v[k] = __uint_as_float(w[k]);
    } else if (dtype == MEZZO_BF16) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float2 f = widen2(w[k], MEZZO_BF16);
            v[2 * k] = f.x;
            v[2 * k + 1] = f.y;
        }
    } else {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float2 f = widen2(w[k], MEZZO_F16);
            v[2 * k] = f.x;
            v[2 * k + 1] = f.y;
        }
    }
}

// Returns two FP32 numbers rounded to nearest, ties to even, as one 32-bit word; `a` in the low half.
__device__ __forceinline__ uint32_t narrow2(float a, float b, int dtype) {
    if (dtype == MEZZO_BF16) {
        __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
        return *reinterpret_cast<uint32_t *>(&pair);
    }
    __half2 pair = __floats2half2_rn(a, b);
    return *reinterpret_cast<uint32_t *>(&pair);
}

__device__ __forceinline__ void store8(void *data, int dtype, int64_t i, const float v[8]) {
    uint4 *p = reinterpret_cast<uint4 *>(static_cast<char *>(data) + i * width_of(dtype));
    if (dtype == MEZZO_F32) {
        p[0] = make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]), __float_as_uint(v[3]));
        p[1] = make_uint4(__float_as_uint(v[4]), __float_as_uint(v[5]), __float_as_uint(v[6]), __float_as_uint(v[7]));
    } else if (dtype == MEZZO_BF16) {
        p[0] = make_uint4(narrow2(v[0], v[1], MEZZO_BF16), narrow2(v[2], v[3], MEZZO_BF16),
                          narrow2(v[4], v[5], MEZZO_BF16), narrow2(v[6], v[7], MEZZO_BF16));
    } else {
        p[0] = make_uint4(narrow2(v[0], v[1], MEZZO_F16), narrow2(v[2], v[3], MEZZO_F16),
                          narrow2(v[4], v[5], MEZZO_F16), narrow2(v[6], v[7], MEZZO_F16));
    }
}

__device__ __forceinline__ void load8(const void *data, int dtype, int64_t i, float v[8]) {
    widen8(fetch8(data, dtype, i), dtype, v);
}

// --- one element: tails, and rows whose width is not a multiple of 8 -----------------------------------------------
__device__ __forceinline__ float load1(const void *data, int dtype, int64_t i) {
    if (dtype == MEZZO_F32)
        return static_cast<const float *>(data)[i];
    if (dtype == MEZZO_BF16)
        return __bfloat162float(static_cast<const __nv_bfloat16 *>(data)[i]);
    return __half2float(static_cast<const __half *>(data)[i]);
}

__device__ __forceinline__ void store1(void *data, int dtype, int64_t i, float v) {
    if (dtype == MEZZO_F32)
        static_cast<float *>(data)[i] = v;
    else if (dtype == MEZZO_BF16)
        static_cast<__nv_bfloat16 *>(data)[i] = __float2bfloat16_rn(v);
    else
        static_cast<__half *>(data)[i] = __float2half_rn(v);
}

// --- of arrays -----------------------------------------------------------------------------------------------------
__device__ __forceinline__ raw8 fetch8(const mz_cu_array &a, int64_t i) {
    return fetch8(a.data, a.dtype, i);
}
__device__ __forceinline__ void load8(const mz_cu_array &a, int64_t i, float v[8]) {
    load8(a.data, a.dtype, i, v);
}
__device__ __forceinline__ void store8(const mz_cu_array &a, int64_t i, const float v[8]) {
    store8(a.data, a.dtype, i, v);
}
__device__ __forceinline__ float load1(const mz_cu_array &a, int64_t i) {
    return load1(a.data, a.dtype, i);
}
__device__ __forceinline__ void store1(const mz_cu_array &a, int64_t i, float v) {
    store1(a.data, a.dtype, i, v);
}

// The thread's number among all of the grid's, whose blocks have BLOCK.
template <int BLOCK> __device__ __forceinline__ int64_t thread_index() {
    return static_cast<int64_t>(blockIdx.x) * BLOCK + threadIdx.x;
}

// N elements: a vector of 8, or 1. Loading and widening are apart here, too.
template <int N> __device__ __forceinline__ auto fetch(const mz_cu_array &a, int64_t i) {
    if constexpr (N == 8)
        return fetch8(a, i);
    else
        return load1(a, i);
}
__device__ __forceinline__ void widen(raw8 r, int dtype, float v[8]) {
    widen8(r, dtype, v);
}
__device__ __forceinline__ void widen(float one, int, float v[1]) {
    v[0] = one;
}
template <int N> __device__ __forceinline__ void load(const mz_cu_array &a, int64_t i, float v[N]) {
    widen(fetch<N>(a, i), a.dtype, v);
}
template <int N> __device__ __forceinline__ void store(const mz_cu_array &a, int64_t i, const float v[N]) {
    if constexpr (N == 8)
        store8(a, i, v);
    else
        store1(a, i, v[0]);
}

// f<8>(i) where elements i … i + 7 are there, all of n, and f<1> for each of those that are where they are not.
template <class F> __device__ __forceinline__ void for_vector(int64_t i, int64_t n, F f) {
    if (i + 8 <= n)
        f.template operator()<8>(i);
    else
        for (; i < n; i++)
            f.template operator()<1>(i);
}

// f(k) for k in 0 … N - 1, and f(v, k) for all of V × N, unrolled: elements that a thread has in registers.
template <int N, class F> __device__ __forceinline__ void for_each(F f) {
#pragma unroll
    for (int k = 0; k < N; k++)
        f(k);
}
template <int V, int N, class F> __device__ __forceinline__ void for_each(F f) {
#pragma unroll
    for (int v = 0; v < V; v++)
#pragma unroll
        for (int k = 0; k < N; k++)
            f(v, k);
}

// Any float, or I32.
__device__ __forceinline__ float load_number(mz_cu_array x, int64_t i) {
    return x.dtype == MEZZO_I32 ? static_cast<float>(static_cast<const int32_t *>(x.data)[i])
                                : load1(x.data, x.dtype, i);
}
__device__ __forceinline__ void store_number(mz_cu_array y, int64_t i, float v) {
    if (y.dtype == MEZZO_I32)
        static_cast<int32_t *>(y.data)[i] = static_cast<int32_t>(v);
    else
        store1(y.data, y.dtype, i, v);
}

// Returns what storing and loading again would make of v.
__device__ __forceinline__ float round_to(float v, int dtype) {
    if (dtype == MEZZO_BF16)
        return __bfloat162float(__float2bfloat16_rn(v));
    return dtype == MEZZO_F16 ? __half2float(__float2half_rn(v)) : v;
}

__device__ __forceinline__ float4 add4(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

#endif
