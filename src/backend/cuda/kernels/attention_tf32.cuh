// The tensor-core attention kernels of FP32 storage share this: operands rounded to TF32, or under FP32 in three BF16
// terms each, of whose products six make one of FP32 (ptx.cuh).
//
// A tile is ROWS rows of D floats, padded to D + 4 (D a multiple of 32), and is read in 16-byte pieces, in the order of
// no matrix: a sum over d does not depend on the order of d, so thread t of four takes elements 8t … 8t + 7 of every 32
// of a row, and neither on the order of keys, so that the results of one product (columns 2t, 2t + 1 of eight) already
// are the operand of the next. The eight threads that read at once are in different banks either way.
#ifndef MZ_ATTENTION_TF32_CUH
#define MZ_ATTENTION_TF32_CUH

#include "attention_mma.cuh"

// A kernel multiplies TF32 numbers or BF16 terms. Each warp splits FP32 numbers into terms as it reads them, or the
// block splits them once into three consecutive tiles in shared memory.
enum { OF_TF32, OF_PARTS, OF_STORED_PARTS };

// Which code has kernels that take stored parts (attention_tf32.cu), and which those that do not. Portable code of
// compute capability 9.0 has both.
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 900 || __CUDA_ARCH__ >= 1200)
constexpr bool STORES_PARTS = false, SPLITS_PARTS = true;
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr bool STORES_PARTS = true, SPLITS_PARTS = false;
#else
constexpr bool STORES_PARTS = true, SPLITS_PARTS = true;
#endif

constexpr __host__ __device__ int float_pitch(int d) {
    return d + 4;
}

template <int KIND> struct tile_element { typedef float type; };
template <> struct tile_element<OF_STORED_PARTS> { typedef __nv_bfloat16 type; };

// Rows [0, count) of `width` floats, a multiple of 4; the rest of the tile becomes 0.
template <int ROWS, int D>
__device__ __forceinline__ void load_floats(float *tile, const float *from, long long stride, int count, int width) {
    constexpr int PIECES = D / 4;
#pragma unroll 4
    for (int base = 0; base < ROWS * PIECES; base += THREADS) {
        int i = base + static_cast<int>(threadIdx.x), row = i / PIECES, piece = i % PIECES;
        if (ROWS * PIECES % THREADS != 0 && i >= ROWS * PIECES)
            break;
        bool inside = row < count && piece * 4 < width;
        copy_async_16(tile + row * float_pitch(D) + piece * 4, inside ? from + row * stride + piece * 4 : from, inside);
    }
}

__device__ __forceinline__ float4 read_four(const float *p) {
    return *reinterpret_cast<const float4 *>(p);
}

// Rows of floats, [0, count) of `width`, `stride` apart, as a tile of parts; the rest of it becomes 0.
template <int ROWS, int D>
__device__ __forceinline__ void store_parts(__nv_bfloat16 *tile, const float *from, long long stride, int count,
                                            int width) {
    constexpr int PIECES = D / 4, PITCH = tile_pitch(D);
#pragma unroll 4
    for (int base = 0; base < ROWS * PIECES; base += THREADS) {
        int i = base + static_cast<int>(threadIdx.x), row = i / PIECES, piece = i % PIECES;
        if (ROWS * PIECES % THREADS != 0 && i >= ROWS * PIECES)
            break;
        bool inside = row < count && piece * 4 < width;
        float4 x = inside ? read_four(from + row * stride + piece * 4) : make_float4(0, 0, 0, 0);
        fp32_operand<true, 1> parts;
        parts.set(0, x.x, x.y, x.z, x.w);
#pragma unroll
        for (int k = 0; k < 3; k++)
            *reinterpret_cast<uint2 *>(tile + k * ROWS * PITCH + row * PITCH + piece * 4) =
                make_uint2(parts.part[k][0], parts.part[k][1]);
    }
}

// c [16, 16] += a [16, 16] · b [16, 16] of parts: two neighbouring results, of b's columns 0 … 7 and 8 … 15. The tensor
// cores, which cut sums off, add up 16 terms; FP32 registers, which round, the rest.
__device__ __forceinline__ void multiply_parts(float (&left)[4], float (&right)[4], const uint32_t (&a)[3][4],
                                               const uint32_t (&b)[3][4]) {
    constexpr int first[] = {2, 1, 0, 1, 0, 0}, second[] = {0, 1, 2, 0, 1, 0};
    float one[4] = {}, other[4] = {};
#pragma unroll
    for (int i = 0; i < 6; i++) {
        multiply<__nv_bfloat16>(one, a[first[i]], b[second[i]][0], b[second[i]][1]);
        multiply<__nv_bfloat16>(other, a[first[i]], b[second[i]][2], b[second[i]][3]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        left[i] += one[i];
        right[i] += other[i];
    }
}

// Adds the three products below of tiles of parts. ROWS: of the tile that `rows` lie in.
template <int D, int MT, int N, int ROWS>
__device__ __forceinline__ void add_stored_scores(float (&x)[MT][N / 8][4], const __nv_bfloat16 *rows,
                                                  const __nv_bfloat16 *tile) {
    constexpr int PITCH = tile_pitch(D);
#pragma unroll
    for (int kk = 0; kk < D / 16; kk++) {
        uint32_t a[MT][3][4];
#pragma unroll
        for (int mt = 0; mt < MT; mt++)
#pragma unroll
            for (int k = 0; k < 3; k++)
                load_a<__nv_bfloat16, D>(a[mt][k], rows + (k * ROWS + mt * 16) * PITCH + kk * 16);
#pragma unroll
        for (int n = 0; n < N / 16; n++) {
            uint32_t b[3][4];
#pragma unroll
            for (int k = 0; k < 3; k++)
                load_b_rows<__nv_bfloat16, D>(b[k], tile + (k * N + n * 16) * PITCH + kk * 16);
#pragma unroll
            for (int mt = 0; mt < MT; mt++)
                multiply_parts(x[mt][2 * n], x[mt][2 * n + 1], a[mt], b);
        }
    }
}
template <int D, int MT, int N>
__device__ __forceinline__ void add_stored_columns(float (&o)[MT][D / 8][4], const float (&p)[MT][N / 8][4],
                                                   const __nv_bfloat16 *tile) {
    constexpr int PITCH = tile_pitch(D);
#pragma unroll
    for (int k = 0; k < N / 16; k++) {
        fp32_operand<true, 2> a[MT];
#pragma unroll
        for (int mt = 0; mt < MT; mt++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                a[mt].set(r, p[mt][2 * k][2 * r], p[mt][2 * k][2 * r + 1], p[mt][2 * k + 1][2 * r],
                          p[mt][2 * k + 1][2 * r + 1]);
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            uint32_t b[3][4];
#pragma unroll
            for (int i = 0; i < 3; i++)
                load_b_columns<__nv_bfloat16, D>(b[i], tile + (i * N + k * 16) * PITCH + d * 16);
#pragma unroll
            for (int mt = 0; mt < MT; mt++)
                multiply_parts(o[mt][2 * d], o[mt][2 * d + 1], a[mt].part, b);
        }
    }
}

// x [16·MT rows, N] += rows · tileᵀ, rows [16·MT, D] and tile [N, D] in shared memory.
template <int KIND, int D, int MT, int N, int ROWS>
__device__ __forceinline__ void add_scores(float (&x)[MT][N / 8][4], const typename tile_element<KIND>::type *rows,
                                           const typename tile_element<KIND>::type *tile) {
    if constexpr (KIND == OF_STORED_PARTS) {
        add_stored_scores<D, MT, N, ROWS>(x, rows, tile);
    } else {
        constexpr bool PARTS = KIND == OF_PARTS;
        constexpr int PITCH = float_pitch(D);
        const int lane = static_cast<int>(threadIdx.x) & 31, g = lane >> 2, t = lane & 3;
        const float *from = rows + g * PITCH + 8 * t, *other = tile + g * PITCH + 8 * t;
#pragma unroll
        for (int at = 0; at < D;
             at += at % 32 == 0 ? 4 : 28) { // 0, 4, 32, 36, …: 16 elements of d among the four threads
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
}

// o [16·MT rows, D] += p [16·MT, N] · tile [N, D]. Element (e, m) of o's 8 columns n = 4i + c is column 32i + 4m + c: a
// thread's are eight neighbours, 32i + 8t … 32i + 8t + 7.
template <int KIND, int D, int MT, int N>
__device__ __forceinline__ void add_columns(float (&o)[MT][D / 8][4], const float (&p)[MT][N / 8][4],
                                            const typename tile_element<KIND>::type *tile) {
    if constexpr (KIND == OF_STORED_PARTS) {
        add_stored_columns<D, MT, N>(o, p, tile);
    } else {
        constexpr bool PARTS = KIND == OF_PARTS;
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
}

// A warp's rows of such an o, each times its factor; of tiles of parts columns lie as in the matrix.
template <int KIND, int D, int MT>
__device__ __forceinline__ void store_floats(float *to, long long stride, int count, int width,
                                             const float (&x)[MT][D / 8][4], const float (&factor)[MT][2]) {
    constexpr bool STORED = KIND == OF_STORED_PARTS;
    const int lane = static_cast<int>(threadIdx.x) & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = mt * 16 + r * 8 + g;
            float f = factor[mt][r];
#pragma unroll
            for (int n = 0; n < (STORED ? D / 8 : 0); n++) {
                int column = n * 8 + 2 * t;
                if (row < count && column < width)
                    *reinterpret_cast<float2 *>(to + row * stride + column) =
                        make_float2(x[mt][n][2 * r] * f, x[mt][n][2 * r + 1] * f);
            }
#pragma unroll
            for (int i = 0; i < (STORED ? 0 : D / 32); i++)
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

// --- operands of FP32 storage --------------------------------------------------------------------------------------
template <int KIND> struct floats {
    typedef typename tile_element<KIND>::type element; // of tiles
    typedef float stored;
    static constexpr bool SPLIT = KIND == OF_STORED_PARTS;
    static constexpr bool HERE = !BEFORE_80 && (KIND == OF_TF32 || (SPLIT ? STORES_PARTS : SPLITS_PARTS));
    static constexpr __host__ __device__ int pitch(int d) { return SPLIT ? tile_pitch(d) : float_pitch(d); }
    static constexpr __host__ __device__ int stored_pitch(int d) { return float_pitch(d); }
    static constexpr __host__ __device__ int size(int rows, int d) { return (SPLIT ? 3 : 1) * rows * pitch(d); }
    static constexpr __host__ __device__ int arriving_bytes(int rows, int d) {
        return SPLIT ? 2 * rows * float_pitch(d) * 4 : 0;
    }
    // A product's sum is added to o·shrink in one rounding, which a branch between the two would make two.
    static constexpr bool FUSED = true;
    static constexpr int resident(int, int) { return 2; }

    template <int ROWS, int D>
    static __device__ __forceinline__ void load(float *tile, const float *from, long long stride, int count,
                                                int width) {
        load_floats<ROWS, D>(tile, from, stride, count, width);
    }
    template <int ROWS, int D>
    static __device__ __forceinline__ void load_own(element *tile, const float *from, long long stride, int count,
                                                    int width) {
        if constexpr (SPLIT)
            store_parts<ROWS, D>(tile, from, stride, count, width);
        else
            load_floats<ROWS, D>(tile, from, stride, count, width);
    }

    // A warp's 16·MT rows of [BM, D]; none of them are kept in registers.
    template <int D, int MT, int BM, bool> struct own_rows {
        const element *rows;
        __device__ __forceinline__ explicit own_rows(const element *from) : rows(from) {}
        __device__ __forceinline__ void keep() {}
        template <int N> __device__ __forceinline__ void add_scores(float (&x)[MT][N][4], const element *tile) const {
            ::add_scores<KIND, D, MT, 8 * N, BM>(x, rows, tile);
        }
        template <int N>
        __device__ __forceinline__ void add_two_scores(float (&x)[MT][N][4], const element *tile, const own_rows &other,
                                                       float (&y)[MT][N][4], const element *other_tile) const {
            add_scores(x, tile);
            other.add_scores(y, other_tile);
        }
    };
    template <int D, int MT, int N>
    static __device__ __forceinline__ void add_columns(float (&o)[MT][D / 8][4], const float (&p)[MT][N / 8][4],
                                                       const element *tile) {
        ::add_columns<KIND, D, MT, N>(o, p, tile);
    }
    template <int D, int MT>
    static __device__ __forceinline__ void store(float *to, long long stride, int count, int width, element *,
                                                 const float (&x)[MT][D / 8][4], const float (&factor)[MT][2]) {
        store_floats<KIND, D, MT>(to, stride, count, width, x, factor);
    }
    // Δ of a warp's rows, into shared and global memory: eight threads a row.
    template <int ROWS>
    static __device__ __forceinline__ void row_products(const float *dy, const float *y, long long stride, int count,
                                                        int width, float *delta, float *to) {
        const int lane = static_cast<int>(threadIdx.x) & 31;
        for (int row = lane >> 3; row < ROWS; row += 4) {
            float sum = 0;
            for (int c = (lane & 7) * 4; c < width && row < count; c += 32) {
                float4 one = read_four(dy + row * stride + c), two = read_four(y + row * stride + c);
                sum += one.x * two.x + one.y * two.y + one.z * two.z + one.w * two.w;
            }
            for (int step = 4; step > 0; step >>= 1)
                sum += __shfl_xor_sync(0xffffffffu, sum, step);
            if ((lane & 7) == 0) {
                delta[row] = sum;
                if (row < count)
                    to[row] = sum;
            }
        }
    }
};

#endif
