// What the tensor-core attention kernels of FP32 storage share. Tensor cores multiply TF32 numbers, of 11 significant bits. Under FP32
// each operand is the sum of two of them, x = high + low with |low| ≤ 2⁻¹¹·|x|, and a product is high·high + high·low + low·high: what
// is left out (low·low) and what rounding `low` loses (2⁻²³ of each operand) are at most 2⁻²¹ of |a·b|: 8 of FP32's roundings, of which a
// dot product's bound has one for each of its terms. Three products of this kind take half
// the time of fused multiply-adds at their peak.
//
// A tile is ROWS rows of D floats, padded to D + 4 (D a multiple of 32), and is read in 16-byte pieces, in the order of no matrix: a sum
// over d does not depend on the order of d, so thread t of four takes elements 8t … 8t + 7 of every 32 of a row, and neither on the order
// of keys, so that the results of one product (columns 2t, 2t + 1 of eight) already are the operand of the next. The eight threads that
// read at once are in different banks either way.
#ifndef MZ_ATTENTION_TF32_CUH
#define MZ_ATTENTION_TF32_CUH

#include "attention_mma.cuh"

constexpr __host__ __device__ int float_pitch(int d) {
    return d + 4;
}

// Rows [0, count) of `width` floats, a multiple of 4; the rest of the tile becomes 0.
template <int ROWS, int D>
__device__ __forceinline__ void load_floats(float *tile, const float *from, long long stride, int count, int width) {
    constexpr int PIECES = D / 4;
#pragma unroll 4
    for (int base = 0; base < ROWS * PIECES; base += THREADS) {
        int i = base + static_cast<int>(threadIdx.x), row = i / PIECES, piece = i % PIECES;
        bool inside = row < count && piece * 4 < width;
        copy_async_16(tile + row * float_pitch(D) + piece * 4, inside ? from + row * stride + piece * 4 : from, inside);
    }
}

template <bool SPLIT, int N> struct operand { // N registers a thread
    uint32_t high[N], low[SPLIT ? N : 1];
    __device__ __forceinline__ void set(int i, float x) {
        high[i] = to_tf32(x);
        if (SPLIT)
            low[SPLIT ? i : 0] = to_tf32(x - __uint_as_float(high[i]));
    }
};

// c [16, 8] += a [16, 8] · b [8, 8]; the small products first.
template <bool SPLIT>
__device__ __forceinline__ void multiply_floats(float (&c)[4], const operand<SPLIT, 4> &a, const operand<SPLIT, 2> &b) {
    if constexpr (SPLIT) {
        multiply_tf32(c, a.low, b.high[0], b.high[1]);
        multiply_tf32(c, a.high, b.low[0], b.low[1]);
    }
    multiply_tf32(c, a.high, b.high[0], b.high[1]);
}

__device__ __forceinline__ float4 read_four(const float *p) {
    return *reinterpret_cast<const float4 *>(p);
}

// x [16·MT rows, N] += rows · tileᵀ, rows [16·MT, D] and tile [N, D] in shared memory.
template <bool SPLIT, int D, int MT, int N>
__device__ __forceinline__ void add_scores(float (&x)[MT][N / 8][4], const float *rows, const float *tile) {
    constexpr int PITCH = float_pitch(D);
    const int lane = static_cast<int>(threadIdx.x) & 31, g = lane >> 2, t = lane & 3;
    const float *from = rows + g * PITCH + 8 * t, *other = tile + g * PITCH + 8 * t;
#pragma unroll
    for (int at = 0; at < D; at += at % 32 == 0 ? 4 : 28) { // 0, 4, 32, 36, …: 16 elements of d among the four threads
        operand<SPLIT, 4> a[MT][2];
#pragma unroll
        for (int mt = 0; mt < MT; mt++) {
            float4 upper = read_four(from + mt * 16 * PITCH + at), lower = read_four(from + (mt * 16 + 8) * PITCH + at);
            a[mt][0].set(0, upper.x);
            a[mt][0].set(1, lower.x);
            a[mt][0].set(2, upper.y);
            a[mt][0].set(3, lower.y);
            a[mt][1].set(0, upper.z);
            a[mt][1].set(1, lower.z);
            a[mt][1].set(2, upper.w);
            a[mt][1].set(3, lower.w);
        }
#pragma unroll
        for (int n = 0; n < N / 8; n++) {
            float4 four = read_four(other + n * 8 * PITCH + at);
            operand<SPLIT, 2> b[2];
            b[0].set(0, four.x);
            b[0].set(1, four.y);
            b[1].set(0, four.z);
            b[1].set(1, four.w);
#pragma unroll
            for (int mt = 0; mt < MT; mt++) {
                multiply_floats<SPLIT>(x[mt][n], a[mt][0], b[0]);
                multiply_floats<SPLIT>(x[mt][n], a[mt][1], b[1]);
            }
        }
    }
}

// o [16·MT rows, D] += p [16·MT, N] · tile [N, D]. Element (e, m) of o's 8 columns n = 4i + c is column 32i + 4m + c: a thread's are
// eight neighbours, 32i + 8t … 32i + 8t + 7.
template <bool SPLIT, int D, int MT, int N>
__device__ __forceinline__ void add_columns(float (&o)[MT][D / 8][4], const float (&p)[MT][N / 8][4],
                                            const float *tile) {
    constexpr int PITCH = float_pitch(D);
    const int lane = static_cast<int>(threadIdx.x) & 31, g = lane >> 2, t = lane & 3;
    const float *from = tile + 2 * t * PITCH + 4 * g;
#pragma unroll
    for (int k = 0; k < N / 8; k++) {
        operand<SPLIT, 4> a[MT];
#pragma unroll
        for (int mt = 0; mt < MT; mt++) {
            a[mt].set(0, p[mt][k][0]);
            a[mt].set(1, p[mt][k][2]);
            a[mt].set(2, p[mt][k][1]);
            a[mt].set(3, p[mt][k][3]);
        }
#pragma unroll
        for (int i = 0; i < D / 32; i++) {
            float4 first = read_four(from + k * 8 * PITCH + 32 * i),
                   second = read_four(from + (k * 8 + 1) * PITCH + 32 * i);
            const float even[4] = {first.x, first.y, first.z, first.w},
                        odd[4] = {second.x, second.y, second.z, second.w};
#pragma unroll
            for (int c = 0; c < 4; c++) {
                operand<SPLIT, 2> b;
                b.set(0, even[c]);
                b.set(1, odd[c]);
#pragma unroll
                for (int mt = 0; mt < MT; mt++)
                    multiply_floats<SPLIT>(o[mt][4 * i + c], a[mt], b);
            }
        }
    }
}

// A warp's rows of such an o, each times its factor.
template <int D, int MT>
__device__ __forceinline__ void store_floats(float *to, long long stride, int count, int width,
                                             const float (&x)[MT][D / 8][4], const float (&factor)[MT][2]) {
    const int lane = static_cast<int>(threadIdx.x) & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = mt * 16 + r * 8 + g;
            float f = factor[mt][r];
#pragma unroll
            for (int i = 0; i < D / 32; i++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    int column = 32 * i + 8 * t + 4 * e;
                    if (row < count && column < width)
                        *reinterpret_cast<float4 *>(to + row * stride + column) =
                            make_float4(x[mt][4 * i][2 * r + e] * f, x[mt][4 * i + 1][2 * r + e] * f,
                                        x[mt][4 * i + 2][2 * r + e] * f, x[mt][4 * i + 3][2 * r + e] * f);
                }
        }
}

#endif
