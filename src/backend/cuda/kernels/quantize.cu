// Rounding to E4M3 and E5M2 with a power of two as scale, in both layouts, with what stands in front (an activation, or
// the slope of one) and what is found on the way: the largest magnitude and the columns' sums. One read of each input.
#include <cuda_fp8.h>

#include "activation.cuh"
#include "quantize.h"
#include "vec.cuh"

// A block's tile is ROWS × COLS; a thread has 8 rows of 8 columns of it, turns them in registers and puts them into
// shared memory, from where each column goes out in runs of 16 bytes.
enum { ROWS = 64, COLS = 128, PARTS = COLS / 8, GROUPS = ROWS / 8, THREADS = PARTS * GROUPS };
enum { PITCH = ROWS + 16 }; // bytes of a column in shared memory: neighbours in other banks, and 16-byte runs

// The exponent of the least power of two that brings a magnitude to at most 1.75 · 2^top, the format's largest number.
__device__ __forceinline__ int scale_exponent(uint32_t most, int top) {
    if (most == 0 || most >= 0x7F800000u)
        return 0;
    const int exponent = static_cast<int>(most >> 23) - 127 - top + ((most & 0x7FFFFFu) > 0x600000u);
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

// Infinity stays outside, NaN a NaN.
__device__ __forceinline__ uint32_t to_eight(float x, float inverse, bool e4m3) {
    return __nv_cvt_float_to_fp8(x * inverse, magnitude(x) < 0x7F800000u ? __NV_SATFINITE : __NV_NOSAT,
                                 e4m3 ? __NV_E4M3 : __NV_E5M2);
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

enum { PLAIN, ACT, SLOPE };

// Where a thread's 8 × 8 numbers are.
struct place {
    int64_t row, col;
    bool inside, whole; // some of it, all of it and as vectors
};

template <int KIND, int DTYPE>
__device__ __forceinline__ void load_row(const mz_cu_quantize &q, const place &p, int u, float v[8], float w[8]) {
    for (int k = 0; k < 8; k++) {
        const bool there = p.row + u < q.rows && p.col + k < q.cols;
        const int64_t i = (p.row + u) * q.cols + p.col + k;
        v[k] = there ? load1(q.x.data, DTYPE, i) : 0;
        w[k] = KIND == SLOPE && there ? load1(q.preact.data, DTYPE, i) : 0;
    }
}

template <int KIND, int DTYPE> __global__ void __launch_bounds__(THREADS) quantize_kernel(mz_cu_quantize q) {
    __shared__ __align__(16) uint8_t tile[COLS * PITCH];
    const int part = static_cast<int>(threadIdx.x) % PARTS, group = static_cast<int>(threadIdx.x) / PARTS;
    const bool e4m3 = q.dtype == MZ_CU_F8E4M3, aligned = q.rows % 16 == 0 && q.cols % 16 == 0;
    const int64_t col0 = static_cast<int64_t>(blockIdx.x) * COLS;
    float inverse = 1, sums[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    uint32_t most = 0;
    if (q.measured != nullptr) {
        const int exponent = scale_exponent(*q.measured, e4m3 ? 8 : 15);
        inverse = power_of_two(-exponent);
        if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)
            q.entry[0] = power_of_two(exponent);
    } else if (q.entry != nullptr) {
        inverse = 1 / q.entry[0]; // exact
    }
    for (int64_t row0 = static_cast<int64_t>(blockIdx.y) * ROWS; row0 < q.rows;
         row0 += static_cast<int64_t>(gridDim.y) * ROWS) {
        place p = {row0 + group * 8, col0 + part * 8, false, false};
        p.inside = p.row < q.rows && p.col < q.cols;
        p.whole = p.inside && aligned;
        raw8 x[8], preact[8]; // all on their way before the first is looked at
        if (p.whole) {
#pragma unroll
            for (int u = 0; u < 8; u++) {
                x[u] = fetch8(q.x.data, DTYPE, (p.row + u) * q.cols + p.col);
                if (KIND == SLOPE)
                    preact[u] = fetch8(q.preact.data, DTYPE, (p.row + u) * q.cols + p.col);
            }
        }
        uint32_t lo[8], hi[8];
#pragma unroll
        for (int u = 0; u < 8; u++) {
            float v[8], w[8];
            if (p.whole) {
                widen8(x[u], DTYPE, v);
                if (KIND == SLOPE)
                    widen8(preact[u], DTYPE, w);
            } else {
                load_row<KIND, DTYPE>(q, p, u, v, w);
            }
            uint32_t largest = 0;
#pragma unroll
            for (int k = 0; k < 8; k++) {
                if (KIND != PLAIN)
                    v[k] = round_to(KIND == ACT ? activate(v[k], q.act) : times_slope(v[k], w[k], q.act), q.via);
                largest = max(largest, __float_as_uint(v[k]) & 0x7FFFFFFFu);
                sums[k] += v[k];
            }
            most = max(most, largest);
            lo[u] = hi[u] = 0;
            if (largest < 0x7F800000u) {
#pragma unroll
                for (int k = 0; k < 4; k += 2) {
                    lo[u] |= to_eights(v[k] * inverse, v[k + 1] * inverse, e4m3) << (k * 8);
                    hi[u] |= to_eights(v[k + 4] * inverse, v[k + 5] * inverse, e4m3) << (k * 8);
                }
            } else {
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    lo[u] |= to_eight(v[k], inverse, e4m3) << (k * 8);
                    hi[u] |= to_eight(v[k + 4], inverse, e4m3) << (k * 8);
                }
            }
        }
        if (q.y != nullptr && p.inside) {
            uint8_t *to = static_cast<uint8_t *>(q.y) + p.row * q.cols + p.col;
#pragma unroll
            for (int u = 0; u < 8; u++) {
                if (p.whole) {
                    *reinterpret_cast<uint2 *>(to + u * q.cols) = make_uint2(lo[u], hi[u]);
                    continue;
                }
                for (int k = 0; k < 8; k++)
                    if (p.row + u < q.rows && p.col + k < q.cols)
                        to[u * q.cols + k] = static_cast<uint8_t>((k < 4 ? lo[u] : hi[u]) >> (k % 4 * 8));
            }
        }
        if (q.turned == nullptr)
            continue;
        // Column c of part p is row c · PARTS + p of the tile, so that neighbours write to other banks.
        uint32_t top[4], bottom[4];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t *w = half == 0 ? lo : hi;
            turn4(w[0], w[1], w[2], w[3], top);
            turn4(w[4], w[5], w[6], w[7], bottom);
#pragma unroll
            for (int c = 0; c < 4; c++)
                *reinterpret_cast<uint2 *>(tile + ((half * 4 + c) * PARTS + part) * PITCH + group * 8) =
                    make_uint2(top[c], bottom[c]);
        }
        __syncthreads();
        uint8_t *turned = static_cast<uint8_t *>(q.turned);
        for (int i = static_cast<int>(threadIdx.x); i < COLS * (ROWS / 16); i += THREADS) {
            const int column = i / (ROWS / 16), run = i % (ROWS / 16) * 16;
            const int64_t col = col0 + column, row = row0 + run;
            const uint8_t *from = tile + (column % 8 * PARTS + column / 8) * PITCH + run;
            if (col >= q.cols || row >= q.rows)
                continue;
            if (aligned) {
                *reinterpret_cast<uint4 *>(turned + col * q.rows + row) = *reinterpret_cast<const uint4 *>(from);
                continue;
            }
            for (int k = 0; k < 16 && row + k < q.rows; k++)
                turned[col * q.rows + row + k] = from[k];
        }
        __syncthreads();
    }
    if (q.sums != nullptr) { // the groups' sums, in order
        float *all = reinterpret_cast<float *>(tile);
#pragma unroll
        for (int k = 0; k < 8; k++)
            all[group * COLS + part * 8 + k] = sums[k];
        __syncthreads();
        float sum = 0;
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
            sum += all[g * COLS + threadIdx.x];
        if (col0 + threadIdx.x < q.cols)
            q.sums[blockIdx.y * q.cols + col0 + threadIdx.x] = sum;
    }
    if (q.most == nullptr)
        return;
    __shared__ uint32_t seen[THREADS / 32];
    most = min(most, 0x7F800000u);
    for (int lanes = 16; lanes > 0; lanes /= 2)
        most = max(most, __shfl_xor_sync(0xFFFFFFFFu, most, lanes));
    if (threadIdx.x % 32 == 0)
        seen[threadIdx.x / 32] = most;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
#pragma unroll
    for (int k = 1; k < THREADS / 32; k++)
        most = max(most, seen[k]);
    if (most > *static_cast<volatile uint32_t *>(q.most)) // few blocks find a larger one, and the others do not queue
        atomicMax(q.most, most);
}

static_assert(THREADS == COLS && GROUPS * COLS * sizeof(float) <= COLS * PITCH, "a thread adds up a column");

extern "C" int64_t mz_cu_quantize_turns(int64_t rows, int64_t cols) {
    const int64_t across = (cols + COLS - 1) / COLS, down = (rows + ROWS - 1) / ROWS;
    const int64_t most = (MZ_CU_QUANTIZE_BLOCKS + across - 1) / across;
    return down < most ? down : most;
}

template <int KIND> static cudaError_t run(cudaStream_t stream, const mz_cu_quantize *q) {
    const dim3 grid(static_cast<unsigned>((q->cols + COLS - 1) / COLS),
                    static_cast<unsigned>(mz_cu_quantize_turns(q->rows, q->cols)));
    if (q->x.dtype == MZ_CU_F32)
        quantize_kernel<KIND, MZ_CU_F32><<<grid, THREADS, 0, stream>>>(*q);
    else if (q->x.dtype == MZ_CU_BF16)
        quantize_kernel<KIND, MZ_CU_BF16><<<grid, THREADS, 0, stream>>>(*q);
    else
        quantize_kernel<KIND, MZ_CU_F16><<<grid, THREADS, 0, stream>>>(*q);
    return cudaGetLastError();
}

extern "C" cudaError_t mz_cu_quantize_run(cudaStream_t stream, const mz_cu_quantize *q) {
    if (q->rows == 0 || q->cols == 0)
        return cudaSuccess;
    if (q->act == ACT_NONE)
        return run<PLAIN>(stream, q);
    return q->preact.data == nullptr ? run<ACT>(stream, q) : run<SLOPE>(stream, q);
}

// --- a step's end --------------------------------------------------------------------------------------------------
struct entry { // mz_scale_entry
    float scale;
    uint32_t most;
    int32_t dtype, n;
    uint32_t history[8], unused[4];
};

__global__ void scales_update_kernel(const int32_t *skip, const entry *tables, int ranks, entry *entries, int n) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= n)
        return;
    uint32_t most = 0, largest = 0;
    for (int r = 0; r < ranks && *skip == 0; r++)
        most = max(most, tables[static_cast<int64_t>(r) * n + i].most);
    entry *e = &entries[i];
    e->most = 0;
    if (most == 0 || most >= 0x7F800000u)
        return;
    e->history[e->n++ % 8] = most;
    for (int k = 0; k < 8 && k < e->n; k++)
        largest = max(largest, e->history[k]);
    e->scale = power_of_two(scale_exponent(largest, e->dtype == MZ_CU_F8E4M3 ? 8 : 15));
}

extern "C" cudaError_t mz_cu_scales_update(cudaStream_t stream, const int32_t *skip, const void *tables, int ranks,
                                           void *entries, int n) {
    static_assert(sizeof(entry) == 64, "mz_scale_entry");
    if (n == 0)
        return cudaSuccess;
    scales_update_kernel<<<(n + 127) / 128, 128, 0, stream>>>(skip, static_cast<const entry *>(tables), ranks,
                                                              static_cast<entry *>(entries), n);
    return cudaGetLastError();
}
