// Rounds to E4M3 and E5M2 with a power of two as scale, and transposes bytes, for kernels that write both layouts.
#ifndef MZ_FP8_PACK_CUH
#define MZ_FP8_PACK_CUH

#include <cuda_fp8.h>
#include <stdint.h>

// Returns the exponent of the least power of two that brings a magnitude to at most 1.75 · 2^top, the format's largest
// number.
__device__ __forceinline__ int scale_exponent(uint32_t amax, int top) {
    if (amax == 0 || amax >= 0x7F800000u)
        return 0;
    const int exponent = static_cast<int>(amax >> 23) - 127 - top + ((amax & 0x7FFFFFu) > 0x600000u);
    return max(exponent, -126);
}

__device__ __forceinline__ float power_of_two(int exponent) {
    return __uint_as_float(static_cast<uint32_t>(exponent + 127) << 23);
}

__device__ __forceinline__ uint32_t magnitude(float x) { // a NaN's as infinity's
    return min(__float_as_uint(x) & 0x7FFFFFFFu, 0x7F800000u);
}

// Two numbers in one instruction where there is one; what is too large becomes the largest.
__device__ __forceinline__ uint32_t to_eights(float x, float y, bool e4m3) {
    return __nv_cvt_float2_to_fp8x2(make_float2(x, y), __NV_SATFINITE, e4m3 ? __NV_E4M3 : __NV_E5M2);
}

// Infinity's code, of either sign: it stays outside. (A NaN becomes one by itself.)
__device__ __forceinline__ uint32_t infinite_fp8(float x, bool e4m3) {
    return (e4m3 ? 0x7Fu : 0x7Cu) | (__float_as_uint(x) >> 24 & 0x80u);
}

// Bytes (row, column) of four words, a row each, become words of a column each.
__device__ __forceinline__ void turn4(uint32_t a, uint32_t b, uint32_t c, uint32_t d, uint32_t column[4]) {
    const uint32_t ab = __byte_perm(a, b, 0x5140), cd = __byte_perm(c, d, 0x5140);
    const uint32_t AB = __byte_perm(a, b, 0x7362), CD = __byte_perm(c, d, 0x7362);
    column[0] = __byte_perm(ab, cd, 0x5410);
    column[1] = __byte_perm(ab, cd, 0x7632);
    column[2] = __byte_perm(AB, CD, 0x5410);
    column[3] = __byte_perm(AB, CD, 0x7632);
}

// 16 rows of 4 columns, `pitch` bytes from row to row, written as 4 runs of 16 bytes, `stride` bytes apart.
__device__ __forceinline__ void turn_run(const uint8_t *from, int pitch, uint8_t *to, int64_t stride) {
    uint32_t runs[4][4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t columns[4];
        const uint8_t *at = from + i * 4 * pitch;
        turn4(*reinterpret_cast<const uint32_t *>(at), *reinterpret_cast<const uint32_t *>(at + pitch),
              *reinterpret_cast<const uint32_t *>(at + 2 * pitch), *reinterpret_cast<const uint32_t *>(at + 3 * pitch),
              columns);
#pragma unroll
        for (int k = 0; k < 4; k++)
            runs[k][i] = columns[k];
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
        *reinterpret_cast<uint4 *>(to + k * stride) = make_uint4(runs[k][0], runs[k][1], runs[k][2], runs[k][3]);
}

// The code of one number.
__device__ __forceinline__ uint8_t to_fp8(float x, float inverse, bool e4m3) {
    return static_cast<uint8_t>(isinf(x) ? infinite_fp8(x, e4m3) : to_eights(x * inverse, 0, e4m3));
}

// 8 numbers, each times its inverse(k), as two words of codes. infinite: one of them may be so.
template <class F> __device__ __forceinline__ uint2 to_fp8(const float v[8], F inverse, bool e4m3, bool infinite) {
    uint32_t w[2] = {0, 0};
#pragma unroll
    for (int k = 0; k < 8; k += 2)
        w[k / 4] |= to_eights(v[k] * inverse(k), v[k + 1] * inverse(k + 1), e4m3) << (k % 4 * 8);
    if (infinite)
#pragma unroll
        for (int k = 0; k < 8; k++)
            if (isinf(v[k]))
                w[k / 4] = (w[k / 4] & ~(0xFFu << (k % 4 * 8))) | infinite_fp8(v[k], e4m3) << (k % 4 * 8);
    return make_uint2(w[0], w[1]);
}
// `amax` grows to the bits of their largest magnitude, a NaN's above infinity's.
__device__ __forceinline__ uint2 to_fp8(const float v[8], float inverse, bool e4m3, uint32_t &amax) {
    uint32_t largest = 0;
#pragma unroll
    for (int k = 0; k < 8; k++)
        largest = max(largest, __float_as_uint(v[k]) & 0x7FFFFFFFu);
    amax = max(amax, largest);
    return to_fp8(
        v, [&](int) { return inverse; }, e4m3, largest >= 0x7F800000u);
}

// Records the largest of a block's numbers; all threads of the block call it at the block's end.
template <int THREADS> __device__ __forceinline__ void record_largest(uint32_t *place, uint32_t amax) {
    __shared__ uint32_t seen[THREADS / 32];
    for (int lanes = 16; lanes > 0; lanes /= 2)
        amax = max(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, lanes));
    if (threadIdx.x % 32 == 0)
        seen[threadIdx.x / 32] = amax;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
#pragma unroll
    for (int k = 1; k < THREADS / 32; k++)
        amax = max(amax, seen[k]);
    if (amax > *static_cast<volatile uint32_t *>(place)) // few blocks find a larger one, and the others do not queue
        atomicMax(place, amax);
}
template <int THREADS> __device__ __forceinline__ void record_amax(uint32_t *place, uint32_t amax) { // a magnitude
    record_largest<THREADS>(place, min(amax, 0x7F800000u));
}

#endif
