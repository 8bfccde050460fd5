// Computes the experts' products on tensor cores: BF16 and FP16, FP32 storage as TF32, or under FP32 as sums of three
// BF16 parts (PARTS, ptx.cuh). All rows are multiples of 16 bytes. A block of four warps makes a tile of TILE × TILE
// results, a warp a quarter of it; pieces of DEPTH bytes of l come through a pipeline of asynchronous copies. Sums are
// FP32, in order of l.
#ifndef MZ_GROUPED_MMA_CUH
#define MZ_GROUPED_MMA_CUH

#include "grouped.cuh"

enum { GROUPED_THREADS = 128 };

template <typename T> struct grouped_element {
    static constexpr int PIECE = 16 / static_cast<int>(sizeof(T)); // in 16 bytes
};

// An operand's piece in shared memory: rows of l where l is contiguous, of m or c where it is not. Padded so that the
// eight 16-byte pieces that an ldmatrix reads at once, and the 32 numbers that a warp reads one by one, lie in
// different banks.
template <typename T, bool CONTIGUOUS, int TILE, int DEPTH> struct grouped_piece {
    static constexpr int E = grouped_element<T>::PIECE, L = DEPTH / static_cast<int>(sizeof(T));
    static constexpr int ROWS = CONTIGUOUS ? TILE : L, WIDTH = CONTIGUOUS ? L : TILE;
    static constexpr int PITCH = WIDTH + (CONTIGUOUS ? E : 8), SIZE = ROWS * PITCH;
    static constexpr int PIECES = WIDTH / E, STRIDE = GROUPED_THREADS / PIECES, COUNT = ROWS / STRIDE;
    static_assert(ROWS % STRIDE == 0 && GROUPED_THREADS % PIECES == 0, "every thread copies the same number of pieces");

    // From l0 on; `from` is the tile's beginning, `others` how much is left of m or c, `l` of l.
    static __device__ __forceinline__ void copy(T *to, const T *from, int pitch, int others, int l, int l0) {
        int row = static_cast<int>(threadIdx.x) / PIECES, column = static_cast<int>(threadIdx.x) % PIECES * E;
        int rows = CONTIGUOUS ? others : l - l0;
        bool inside = column < (CONTIGUOUS ? l - l0 : others);
        const T *source =
            from + (CONTIGUOUS ? l0 : static_cast<int64_t>(l0) * pitch) + static_cast<int64_t>(row) * pitch + column;
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            bool in = inside && row + i * STRIDE < rows;
            copy_async_16(to + (row + i * STRIDE) * PITCH + column,
                          in ? source + static_cast<int64_t>(i * STRIDE) * pitch : from, in);
        }
    }
};

// The A operand [16 of m, 16 of l; of FP32 8] at (m, l).
template <typename T, bool CONTIGUOUS, int PITCH>
__device__ __forceinline__ void grouped_a(uint32_t (&r)[4], const T *tile, int m, int l) {
    int lane = static_cast<int>(threadIdx.x) & 31;
    if constexpr (CONTIGUOUS) {
        load_matrices(r, tile + (m + (lane & 15)) * PITCH + l + (lane >> 4) * grouped_element<T>::PIECE);
    } else if constexpr (sizeof(T) == 2) {
        load_matrices_transposed(r, tile + (l + (lane & 7) + (lane >> 4) * 8) * PITCH + m + ((lane >> 3) & 1) * 8);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            r[i] = __float_as_uint(tile[(l + (lane & 3) + (i >> 1) * 4) * PITCH + m + (lane >> 2) + (i & 1) * 8]);
    }
}

// Two B operands [16 of l (of FP32 8), 8 of c] at (l, c) and (l, c + 8).
template <typename T, bool CONTIGUOUS, int PITCH>
__device__ __forceinline__ void grouped_b(uint32_t (&r)[4], const T *tile, int c, int l) {
    int lane = static_cast<int>(threadIdx.x) & 31;
    if constexpr (CONTIGUOUS) {
        load_matrices(r, tile + (c + (lane & 7) + (lane >> 4) * 8) * PITCH + l +
                             ((lane >> 3) & 1) * grouped_element<T>::PIECE);
    } else if constexpr (sizeof(T) == 2) {
        load_matrices_transposed(r, tile + (l + (lane & 15)) * PITCH + c + (lane >> 4) * 8);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            r[i] = __float_as_uint(tile[(l + (lane & 3) + (i & 1) * 4) * PITCH + c + (lane >> 2) + (i >> 1) * 8]);
    }
}

template <typename T, int OP, int TILE, int DEPTH, int STAGES> struct grouped_mma {
    using layout = grouped_layout<OP>;
    using piece_a = grouped_piece<T, layout::A_CONTIGUOUS, TILE, DEPTH>;
    using piece_b = grouped_piece<T, layout::B_CONTIGUOUS, TILE, DEPTH>;
    static constexpr int L = DEPTH / static_cast<int>(sizeof(T)), WARP_TILE = TILE / 2;
    static constexpr int STAGE = piece_a::SIZE + piece_b::SIZE;
    static constexpr int BYTES = STAGES * STAGE * static_cast<int>(sizeof(T));
    static_assert(4 * WARP_TILE * (WARP_TILE + 8) * 2 <= BYTES, "the results go through the pipeline's memory");
};

// Adds 16 of l to a warp's results.
template <typename K, int W, bool PARTS, typename T>
__device__ __forceinline__ void grouped_multiply(float (&sum)[W / 16][W / 8][4], const T *tile_a, const T *tile_b,
                                                 int m0, int c0, int l) {
    using PA = typename K::piece_a;
    using PB = typename K::piece_b;
    constexpr bool A = K::layout::A_CONTIGUOUS, B = K::layout::B_CONTIGUOUS;
    uint32_t a[W / 16][4], b[W / 16][4];
#pragma unroll
    for (int i = 0; i < W / 16; i++)
        grouped_a<T, A, PA::PITCH>(a[i], tile_a, m0 + i * 16, l);
#pragma unroll
    for (int j = 0; j < W / 16; j++)
        grouped_b<T, B, PB::PITCH>(b[j], tile_b, c0 + j * 16, l);
#pragma unroll
    for (int i = 0; i < W / 16; i++)
#pragma unroll
        for (int j = 0; j < W / 8; j++)
            multiply<T>(sum[i][j], a[i], b[j / 2][2 * (j & 1)], b[j / 2][2 * (j & 1) + 1]);
}

// The same of FP32: a thread's four of a row are l + t, l + t + 4, l + t + 8 and l + t + 12, in both operands.
template <typename K, int W, bool PARTS>
__device__ __forceinline__ void grouped_multiply(float (&sum)[W / 16][W / 8][4], const float *tile_a,
                                                 const float *tile_b, int m0, int c0, int l) {
    using PA = typename K::piece_a;
    using PB = typename K::piece_b;
    constexpr bool A = K::layout::A_CONTIGUOUS, B = K::layout::B_CONTIGUOUS;
    fp32_operand<PARTS, 2> a[W / 16];
#pragma unroll
    for (int i = 0; i < W / 16; i++) {
        uint32_t x[2][4];
        grouped_a<float, A, PA::PITCH>(x[0], tile_a, m0 + i * 16, l);
        grouped_a<float, A, PA::PITCH>(x[1], tile_a, m0 + i * 16, l + 8);
#pragma unroll
        for (int r = 0; r < 2; r++)
            a[i].set(r, __uint_as_float(x[0][r]), __uint_as_float(x[0][r + 2]), __uint_as_float(x[1][r]),
                     __uint_as_float(x[1][r + 2]));
    }
#pragma unroll
    for (int j = 0; j < W / 16; j++) {
        uint32_t x[2][4];
        grouped_b<float, B, PB::PITCH>(x[0], tile_b, c0 + j * 16, l);
        grouped_b<float, B, PB::PITCH>(x[1], tile_b, c0 + j * 16, l + 8);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            fp32_operand<PARTS, 1> b;
            b.set(0, __uint_as_float(x[0][2 * h]), __uint_as_float(x[0][2 * h + 1]), __uint_as_float(x[1][2 * h]),
                  __uint_as_float(x[1][2 * h + 1]));
#pragma unroll
            for (int i = 0; i < W / 16; i++)
                multiply_fp32<PARTS>(sum[i][2 * j + h], a[i], b);
        }
    }
}

template <typename T, int OP, int TILE, int DEPTH, int STAGES, bool PARTS>
__global__ void __launch_bounds__(GROUPED_THREADS, TILE == 128 ? 2 : 3) grouped_mma_kernel(const mz_cu_grouped g) {
    using K = grouped_mma<T, OP, TILE, DEPTH, STAGES>;
    using PA = typename K::piece_a;
    using PB = typename K::piece_b;
    constexpr int W = K::WARP_TILE;
    extern __shared__ __align__(128) unsigned char grouped_shared[];
    T *shared = reinterpret_cast<T *>(grouped_shared);
    const grouped_tile t = grouped_find<OP, TILE>(g);
    if (!t.any)
        return;
    const T *a = static_cast<const T *>(g.a.data) + t.a, *b = static_cast<const T *>(g.b.data) + t.b;
    int warp = static_cast<int>(threadIdx.x) >> 5, m0 = (warp & 1) * W, c0 = (warp >> 1) * W;
    int pieces = (t.l + K::L - 1) / K::L;
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < pieces) {
            PA::copy(shared + s * K::STAGE, a, t.a_row, t.m, t.l, s * K::L);
            PB::copy(shared + s * K::STAGE + PA::SIZE, b, t.b_row, t.c, t.l, s * K::L);
        }
        copies_commit();
    }
    float sum[W / 16][W / 8][4] = {};
    int at = 0, next = STAGES - 1;
    for (int p = 0; p < pieces; p++) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        if (p + STAGES - 1 < pieces) { // into the memory that all warps have done with
            PA::copy(shared + next * K::STAGE, a, t.a_row, t.m, t.l, (p + STAGES - 1) * K::L);
            PB::copy(shared + next * K::STAGE + PA::SIZE, b, t.b_row, t.c, t.l, (p + STAGES - 1) * K::L);
        }
        copies_commit();
        const T *tile_a = shared + at * K::STAGE, *tile_b = tile_a + PA::SIZE;
#pragma unroll
        for (int l = 0; l < K::L; l += 16)
            grouped_multiply<K, W, PARTS>(sum, tile_a, tile_b, m0, c0, l);
        at = at + 1 < STAGES ? at + 1 : 0;
        next = next + 1 < STAGES ? next + 1 : 0;
    }
    if constexpr (sizeof(T) == 2) {
        if (g.out.dtype != MEZZO_F32) {
            copies_wait<0>();
            __syncthreads();
            store_low<T>(g, t, m0, c0, shared + warp * W * (W + 8), sum);
            return;
        }
    }
    store_fp32(g, t, m0, c0, sum);
}

template <typename T, int OP, int TILE, int DEPTH, int STAGES, bool PARTS>
cudaError_t grouped_mma_run(cudaStream_t stream, const mz_cu_grouped &g, bool prepare) {
    return grouped_launch(grouped_mma_kernel<T, OP, TILE, DEPTH, STAGES, PARTS>, GROUPED_THREADS,
                          grouped_mma<T, OP, TILE, DEPTH, STAGES>::BYTES, TILE, stream, g, prepare);
}

// Large tiles read less, and need many results to give every multiprocessor some; they also need 80 KiB of shared
// memory.
inline bool grouped_large(const mz_cu_grouped &g) {
    return g.shared_optin >= 96 << 10 && grouped_tiles(g, 128) >= g.sms;
}

// Both are prepared where large tiles are chosen, because fewer experts may come with a run.
template <typename T, int OP, bool PARTS>
cudaError_t grouped_mma_op(cudaStream_t stream, const mz_cu_grouped &g, bool prepare) {
    const bool large = grouped_large(g);
    if (large && prepare) {
        const cudaError_t error = grouped_mma_run<T, OP, 64, 128, 3, PARTS>(stream, g, true);
        if (error != cudaSuccess)
            return error;
    }
    if (large)
        return grouped_mma_run<T, OP, 128, 64, 4, PARTS>(stream, g, prepare);
    return grouped_mma_run<T, OP, 64, 128, 3, PARTS>(stream, g, prepare);
}

template <typename T, bool PARTS = false>
cudaError_t grouped_mma_of(cudaStream_t stream, const mz_cu_grouped &g, bool prepare) {
    return grouped_for_op(g, [&]<int OP>() { return grouped_mma_op<T, OP, PARTS>(stream, g, prepare); });
}

// grouped_low.cu: BF16 (from 8.0) or FP16 operands of one storage, n and k multiples of 8; grouped_tf32.cu: FP32 as
// TF32 or as three BF16 terms (from 8.0), multiples of 4. Stored as the operands are or as FP32. prepare: launches
// nothing; once before the first launch, outside of any capture.
cudaError_t grouped_mma_low(cudaStream_t stream, const mz_cu_grouped &g, bool prepare);
cudaError_t grouped_mma_tf32(cudaStream_t stream, const mz_cu_grouped &g, bool prepare);
const char *grouped_mma_refusal(const mz_cuda_device *cuda, const mz_call *call);

#endif
