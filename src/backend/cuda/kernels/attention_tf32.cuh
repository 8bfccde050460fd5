// What the tensor-core attention kernels of FP32 storage share: operands rounded to TF32, or under FP32 in three BF16 parts each, of whose products six
// make one of FP32 (ptx.cuh).
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

__device__ __forceinline__ float4 read_four(const float *p) {
    return *reinterpret_cast<const float4 *>(p);
}

// x [16·MT rows, N] += rows · tileᵀ, rows [16·MT, D] and tile [N, D] in shared memory.
template <bool PARTS, int D, int MT, int N>
__device__ __forceinline__ void add_scores(float (&x)[MT][N / 8][4], const float *rows, const float *tile) {
    constexpr int PITCH = float_pitch(D);
    const int lane = static_cast<int>(threadIdx.x) & 31, g = lane >> 2, t = lane & 3;
    const float *from = rows + g * PITCH + 8 * t, *other = tile + g * PITCH + 8 * t;
#pragma unroll
    for (int at = 0; at < D; at += at % 32 == 0 ? 4 : 28) { // 0, 4, 32, 36, …: 16 elements of d among the four threads
        fp32_operand<PARTS, 2> a[MT];
#pragma unroll
        for (int mt = 0; mt < MT; mt++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float4 four = read_four(from + (mt * 16 + r * 8) * PITCH + at);
                a[mt].set(r, four.x, four.y, four.z, four.w);
            }
#pragma unroll
        for (int n = 0; n < N / 8; n++) {
            float4 four = read_four(other + n * 8 * PITCH + at);
            fp32_operand<PARTS, 1> b;
            b.set(0, four.x, four.y, four.z, four.w);
#pragma unroll
            for (int mt = 0; mt < MT; mt++)
                multiply_fp32<PARTS>(x[mt][n], a[mt], b);
        }
    }
}

// o [16·MT rows, D] += p [16·MT, N] · tile [N, D]. Element (e, m) of o's 8 columns n = 4i + c is column 32i + 4m + c: a thread's are
// eight neighbours, 32i + 8t … 32i + 8t + 7.
template <bool PARTS, int D, int MT, int N>
__device__ __forceinline__ void add_columns(float (&o)[MT][D / 8][4], const float (&p)[MT][N / 8][4],
                                            const float *tile) {
    constexpr int PITCH = float_pitch(D);
    const int lane = static_cast<int>(threadIdx.x) & 31, g = lane >> 2, t = lane & 3;
    const float *from = tile + 2 * t * PITCH + 4 * g;
#pragma unroll
    for (int k = 0; k < N / 16; k++) {
        fp32_operand<PARTS, 2> a[MT];
#pragma unroll
        for (int mt = 0; mt < MT; mt++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                a[mt].set(r, p[mt][2 * k][2 * r], p[mt][2 * k][2 * r + 1], p[mt][2 * k + 1][2 * r],
                          p[mt][2 * k + 1][2 * r + 1]);
#pragma unroll
        for (int i = 0; i < D / 32; i++) {
            float x[4][4]; // of this thread's four keys
#pragma unroll
            for (int j = 0; j < 4; j++)
                *reinterpret_cast<float4 *>(x[j]) = read_four(from + (k * 16 + j / 2 * 8 + j % 2) * PITCH + 32 * i);
#pragma unroll
            for (int c = 0; c < 4; c++) {
                fp32_operand<PARTS, 1> b;
                b.set(0, x[0][c], x[1][c], x[2][c], x[3][c]);
#pragma unroll
                for (int mt = 0; mt < MT; mt++)
                    multiply_fp32<PARTS>(o[mt][4 * i + c], a[mt], b);
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
