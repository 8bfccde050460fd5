// The tensor-core attention kernels share this: matrix instructions, asynchronous copies, tiles in shared memory,
// dropout.
//
// A tile is ROWS rows of D elements, padded to D + 8: an odd number of 16-byte pieces, so that the eight rows an
// ldmatrix reads at once lie in different banks, and every address is a constant away from the thread's own.
#ifndef MZ_ATTENTION_MMA_CUH
#define MZ_ATTENTION_MMA_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>

#include <type_traits>

#include "launch.h"
#include "philox.cuh"
#include "ptx.cuh"

enum { WARPS = 4, THREADS = 32 * WARPS };

constexpr __host__ __device__ int tile_pitch(int d) {
    return d + 8; // elements
}

// Says where a block's (batch, head) begins.
struct attention_head {
    int b, h, kv;     // kv: the key/value head of query head h
    long long q, y;   // element of (b, t = 0, h) in q and dq; in y and dy
    long long keys;   // in k, v, dk, dv
    long long row;    // of lse and delta
    uint64_t dropout; // element of probability (0, 0)
};

__device__ __forceinline__ attention_head head_of(const mz_cu_attention &a, int b, int h) {
    attention_head s;
    s.b = b;
    s.h = h;
    s.kv = h / (a.heads / a.kv_heads);
    long long first = static_cast<long long>(b) * a.length;
    s.q = first * a.q_row + static_cast<long long>(h) * a.width;
    s.y = (first * a.heads + h) * a.width;
    s.keys = static_cast<long long>(b) * a.keys * a.kv_row + static_cast<long long>(s.kv) * a.width;
    s.row = (static_cast<long long>(b) * a.heads + h) * a.length;
    s.dropout = static_cast<uint64_t>(s.row) * static_cast<uint64_t>(a.keys);
    return s;
}

// The first key that query i of row b sees: mz_attention_first. It does not fall with i. Queries past the end have no
// position; what they see goes nowhere, because their rows of every tile are 0.
__device__ __forceinline__ int first_key(const mz_cu_attention &a, int b, int i) {
    int before = a.window > 0 ? min(a.window - 1, i) : i;
    if (a.positions != nullptr && i < a.length)
        before = min(before, max(a.positions[static_cast<long long>(b) * a.length + i], 0));
    return i - before;
}
// The tile of queries, each `rows` long, in which the last one begins that sees a key up to `key`; from `first` on.
__device__ __forceinline__ int last_query_tile(const mz_cu_attention &a, int b, int first, int rows, int key) {
    int tile = first;
    while ((tile + 1) * rows < a.length && first_key(a, b, (tile + 1) * rows) <= key)
        tile++;
    return tile;
}
// Returns a score, scaled, with the cap, and the cap's derivative there. Without a cap the score stays as it is, not
// scaled.
__device__ __forceinline__ float capped(const mz_cu_attention &a, float x) {
    return a.cap > 0 ? a.cap * tanhf(x * a.scale / a.cap) : x;
}
__device__ __forceinline__ float cap_derivative(const mz_cu_attention &a, float x) {
    const float t = a.cap > 0 ? x / a.cap : 0;
    return 1 - t * t;
}
// Returns what a score is multiplied by after `capped`.
__device__ __forceinline__ float scale_after(const mz_cu_attention &a) {
    return a.limited && a.cap > 0 ? 1 : a.scale;
}

// Copies rows [0, count) of `width` elements, `stride` apart, into a tile; the rest of it becomes 0.
template <typename T, int ROWS, int D>
__device__ __forceinline__ void load_tile(T *tile, const T *from, long long stride, int count, int width) {
    constexpr int PIECES = D / 8;
#pragma unroll
    for (int base = 0; base < ROWS * PIECES; base += THREADS) {
        int i = base + static_cast<int>(threadIdx.x);
        if (ROWS * PIECES % THREADS != 0 && i >= ROWS * PIECES)
            break;
        int row = i / PIECES, piece = i % PIECES;
        bool inside = row < count && piece * 8 < width;
        const T *source = inside ? from + row * stride + piece * 8 : from;
        copy_async_16(tile + row * tile_pitch(D) + piece * 8, source, inside);
    }
}

// Loads a 16 × 16 piece of a tile as the A operand: rows from `tile`, columns from its first.
template <typename T, int D> __device__ __forceinline__ void load_a(uint32_t (&r)[4], const T *tile) {
    int lane = static_cast<int>(threadIdx.x) & 31;
    load_matrices(r, tile + (lane & 15) * tile_pitch(D) + (lane >> 4) * 8);
}
// As two B operands [k = 16 columns, n = 8 rows] side by side: r[0..1] are rows 0…7, r[2..3] rows 8…15. For X·tileᵀ.
template <typename T, int D> __device__ __forceinline__ void load_b_rows(uint32_t (&r)[4], const T *tile) {
    int lane = static_cast<int>(threadIdx.x) & 31;
    load_matrices(r, tile + ((lane & 7) + (lane >> 4) * 8) * tile_pitch(D) + ((lane >> 3) & 1) * 8);
}
// As two B operands [k = 16 rows, n = 8 columns]: r[0..1] are columns 0…7, r[2..3] columns 8…15. For X·tile.
template <typename T, int D> __device__ __forceinline__ void load_b_columns(uint32_t (&r)[4], const T *tile) {
    int lane = static_cast<int>(threadIdx.x) & 31;
    load_matrices_transposed(r, tile + (lane & 15) * tile_pitch(D) + (lane >> 4) * 8);
}

__device__ __forceinline__ void copy_operand(uint32_t (&to)[4], const uint32_t (&from)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        to[i] = from[i];
}

// Two neighbouring 16 × 8 results, rounded, are the A operand of the next product over their columns.
template <typename T>
__device__ __forceinline__ void to_a(uint32_t (&a)[4], const float (&left)[4], const float (&right)[4]) {
    a[0] = pack<T>(left[0], left[1]);
    a[1] = pack<T>(left[2], left[3]);
    a[2] = pack<T>(right[0], right[1]);
    a[3] = pack<T>(right[2], right[3]);
}

// Stores a warp's 16·MT × D results, scaled, through its own rows of shared memory: 16-byte pieces to global memory.
template <typename T, int D, int MT>
__device__ __forceinline__ void store_rows(T *to, long long stride, int count, int width, T *tile,
                                           const float (&x)[MT][D / 8][4], const float (&scale)[MT][2]) {
    int lane = static_cast<int>(threadIdx.x) & 31, g = lane >> 2, t = lane & 3;
    __syncwarp();
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                *reinterpret_cast<uint32_t *>(tile + (mt * 16 + r * 8 + g) * tile_pitch(D) + n * 8 + 2 * t) =
                    pack<T>(x[mt][n][2 * r] * scale[mt][r], x[mt][n][2 * r + 1] * scale[mt][r]);
    __syncwarp();
    constexpr int PIECES = D / 8;
    for (int i = lane; i < 16 * MT * PIECES; i += 32) {
        int row = i / PIECES, piece = i % PIECES;
        if (row < count && piece * 8 < width)
            *reinterpret_cast<uint4 *>(to + row * stride + piece * 8) =
                *reinterpret_cast<const uint4 *>(tile + row * tile_pitch(D) + piece * 8);
    }
}

// Returns whether blocks of 128 rows fill the GPU many times over; otherwise blocks of 64 balance the work better.
inline bool attention_many_blocks(const mz_cu_attention &a, int heads) {
    return (a.length + 127) / 128 * static_cast<long long>(a.batch) * heads >= 8 * a.sms;
}

// --- dropout -------------------------------------------------------------------------------------------------------
// Returns the 32-bit words in a row of a tile's mask. The mask has a bit for each probability, lowest bit first.
constexpr __host__ __device__ int mask_words(int columns) {
    return (columns + 31) / 32;
}
struct dropout_rule {
    philox_key key;
    uint32_t threshold; // kept where a word's top 24 bits are no less
    float kept;         // 1/(1-p)
};
__device__ __forceinline__ dropout_rule dropout_of(const mz_cu_attention &a) {
    dropout_rule rule;
    rule.key = philox_key_of(a.rng, a.stream);
    rule.threshold = static_cast<uint32_t>(ceilf(a.p * 0x1p24f)); // p·2²⁴ is exact
    rule.kept = static_cast<float>(1 / (1 - static_cast<double>(a.p)));
    return rule;
}
// Returns the four bits of elements 4·block … 4·block + 3.
__device__ __forceinline__ uint64_t keep_bits(const dropout_rule &rule, uint64_t block) {
    uint4 w = philox(rule.key, block);
    return ((w.x >> 8) >= rule.threshold) | ((w.y >> 8) >= rule.threshold) << 1 | ((w.z >> 8) >= rule.threshold) << 2 |
           ((w.w >> 8) >= rule.threshold) << 3;
}
// Draws rows i0 … i0 + ROWS - 1, columns j0 … j0 + COLUMNS - 1 of the head whose (0, 0) is element `first`, in rows of
// `keys`: a thread a word. Where the keys are no multiple of 4, a word begins within a Philox block and needs a ninth.
template <int ROWS, int COLUMNS>
__device__ __forceinline__ void draw_mask(uint32_t *mask, const dropout_rule &rule, uint64_t first, int keys, int i0,
                                          int j0, bool causal = true) {
    constexpr int WORDS = mask_words(COLUMNS);
    for (int i = static_cast<int>(threadIdx.x); i < ROWS * WORDS; i += THREADS) {
        int row = i0 + i / WORDS, column = j0 + i % WORDS * 32;
        if (causal && column > row)
            continue; // no thread needs it
        uint64_t element =
            first + static_cast<uint64_t>(row) * static_cast<uint64_t>(keys) + static_cast<uint64_t>(column);
        uint64_t block = element >> 2, bits = 0;
#pragma unroll 4
        for (int n = 0; n < 8; n++)
            bits |= keep_bits(rule, block + n) << (4 * n);
        if ((element & 3) != 0)
            bits |= keep_bits(rule, block + 8) << 32;
        mask[i] = static_cast<uint32_t>(bits >> (element & 3));
    }
}

// What a query sees: the keys up to itself, of these those that a window and its document hold, or all keys.
enum { SEES_BEFORE, SEES_LIMITED, SEES_ALL };

// --- tiles in shared memory ----------------------------------------------------------------------------------------
// A pass over queries has a block for each BM of them, the last one of backward for each BM keys.
template <int PASS> unsigned attention_blocks(const mz_cu_attention &a, int BM) {
    return static_cast<unsigned>(((PASS == 2 ? a.keys : a.length) + BM - 1) / BM * a.batch *
                                 (PASS == 2 ? a.kv_heads : a.heads));
}

// Code for an architecture whose cards never run a kernel is empty. On compute capability 7.5 a block has 64 KiB of
// shared memory, and there is no BF16.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr bool BEFORE_80 = true;
#else
constexpr bool BEFORE_80 = false;
#endif
constexpr bool fits_here(int bytes) {
    return !BEFORE_80 || bytes <= 64 << 10;
}

// Bytes of a pass: forward (0), and backward's two (1, 2). BN: keys (queries in the last pass) of a tile.
template <int PASS, class OPERANDS, int D, int MT, int BN> struct attention_shared {
    static constexpr int BM = 16 * MT * WARPS, ELEMENT = static_cast<int>(sizeof(typename OPERANDS::element));
    static constexpr int ROWS = (PASS == 0 ? 1 : 2) * OPERANDS::size(BM, D) * ELEMENT; // what the block owns
    static constexpr int ARRIVING = OPERANDS::arriving_bytes(BN, D); // two tiles as they come, if not where they stay
    static constexpr int TILES = (ARRIVING > 0 ? 2 : 4) * OPERANDS::size(BN, D) * ELEMENT; // two, and the next two
    static constexpr int STATS = ROWS + TILES + ARRIVING;
    static constexpr int TOTAL = STATS + (PASS == 0 ? 0 : PASS == 1 ? BM * 4 : 4 * BN * 4);
    static constexpr int MASK = PASS == 2 ? BN * mask_words(BM) : BM * mask_words(BN); // words
    static constexpr int WITH_MASK = TOTAL + 2 * 4 * MASK;
    static constexpr int RESIDENT = PASS == 2 ? 2 : OPERANDS::resident(D, MT);
    static constexpr bool HERE = OPERANDS::HERE && fits_here(WITH_MASK);
    static unsigned grid(const mz_cu_attention &a) { return attention_blocks<PASS>(a, BM); }
};
// NS: columns whose scores are in registers at a time, of the last pass.
template <int PASS, class OPERANDS, int DROP, int SEES, int D, int MT, int BN, int NS = BN>
struct mma_pass : attention_shared<PASS, OPERANDS, D, MT, BN> {};

// The two tiles of a step: where they arrive, and where they are multiplied from. By turns two places, or one from
// which they are split to another.
template <class OPERANDS, class LAYOUT, int BN, int D> struct tile_pair {
    typedef typename OPERANDS::element element;
    typedef typename OPERANDS::stored stored;
    static constexpr bool SPLIT = LAYOUT::ARRIVING > 0;
    element *tiles;
    stored *arriving;
    __device__ __forceinline__ explicit tile_pair(unsigned char *shared)
        : tiles(reinterpret_cast<element *>(shared + LAYOUT::ROWS)),
          arriving(reinterpret_cast<stored *>(shared + LAYOUT::ROWS + (SPLIT ? LAYOUT::TILES : 0))) {}
    __device__ __forceinline__ stored *place(int stage) const {
        return arriving + (SPLIT ? 0 : stage * 2 * BN * OPERANDS::stored_pitch(D));
    }
    __device__ __forceinline__ stored *second_place(int stage) const {
        return place(stage) + BN * OPERANDS::stored_pitch(D);
    }
    __device__ __forceinline__ void arrived() const { // all threads; the place is free for the next two
        if constexpr (SPLIT) {
            for (int i = 0; i < 2; i++)
                OPERANDS::template load_own<BN, D>(tiles + i * OPERANDS::size(BN, D),
                                                   arriving + i * BN * OPERANDS::stored_pitch(D),
                                                   OPERANDS::stored_pitch(D), BN, D);
            __syncthreads();
        }
    }
    __device__ __forceinline__ const element *first(int stage, int row = 0) const {
        return tiles + ((SPLIT ? 0 : stage * 2 * BN) + row) * OPERANDS::pitch(D);
    }
    __device__ __forceinline__ const element *second(int stage, int row = 0) const {
        return first(stage, row) + OPERANDS::size(BN, D);
    }
};

// Whether there is dropout: never, always, or where p is not 0.
enum { DROP_NEVER, DROP_ALWAYS, DROP_ASKED };
template <int DROP> __device__ __forceinline__ bool drops(const mz_cu_attention &a) {
    return DROP == DROP_ALWAYS || (DROP == DROP_ASKED && a.p > 0);
}

// --- operands of 16 bits, as they are stored -----------------------------------------------------------------------
// SMALL: for tiles that serve 7.5 alone.
template <typename T, bool SMALL = false> struct halves {
    static constexpr bool HERE = BEFORE_80 ? std::is_same<T, __half>::value : !SMALL;
    typedef T element; // of tiles
    typedef T stored;
    static constexpr __host__ __device__ int pitch(int d) { return tile_pitch(d); }
    static constexpr __host__ __device__ int stored_pitch(int d) { return tile_pitch(d); }
    static constexpr __host__ __device__ int size(int rows, int d) { return rows * tile_pitch(d); } // elements
    static constexpr __host__ __device__ int arriving_bytes(int, int) { return 0; }
    static constexpr bool FUSED = false;
    static constexpr int resident(int d, int mt) { return mt == 1 && d <= 64 ? 3 : 2; }

    template <int ROWS, int D>
    static __device__ __forceinline__ void load(T *tile, const T *from, long long stride, int count, int width) {
        load_tile<T, ROWS, D>(tile, from, stride, count, width);
    }
    template <int ROWS, int D>
    static __device__ __forceinline__ void load_own(T *tile, const T *from, long long stride, int count, int width) {
        load_tile<T, ROWS, D>(tile, from, stride, count, width);
    }

    // A warp's 16·MT rows of [BM, D]; KEEP: in registers from keep() on.
    template <int D, int MT, int BM, bool KEEP> struct own_rows {
        const T *rows;
        uint32_t kept[KEEP ? D / 16 : 1][4];
        __device__ __forceinline__ explicit own_rows(const T *from) : rows(from) {}
        __device__ __forceinline__ void keep() {
            if constexpr (KEEP)
#pragma unroll
                for (int kk = 0; kk < D / 16; kk++)
                    load_a<T, D>(kept[kk], rows + kk * 16);
        }
        __device__ __forceinline__ void operand(uint32_t (&a)[4], int mt, int kk) const {
            if constexpr (KEEP)
                copy_operand(a, kept[kk]);
            else
                load_a<T, D>(a, rows + mt * 16 * tile_pitch(D) + kk * 16);
        }
        // x [16·MT, N] += rows · tileᵀ
        template <int N> __device__ __forceinline__ void add_scores(float (&x)[MT][N][4], const T *tile) const {
#pragma unroll
            for (int kk = 0; kk < D / 16; kk++) {
                uint32_t a[MT][4];
#pragma unroll
                for (int mt = 0; mt < MT; mt++)
                    operand(a[mt], mt, kk);
#pragma unroll
                for (int n = 0; n < N / 2; n++) {
                    uint32_t b[4];
                    load_b_rows<T, D>(b, tile + n * 16 * tile_pitch(D) + kk * 16);
#pragma unroll
                    for (int mt = 0; mt < MT; mt++) {
                        multiply<T>(x[mt][2 * n], a[mt], b[0], b[1]);
                        multiply<T>(x[mt][2 * n + 1], a[mt], b[2], b[3]);
                    }
                }
            }
        }
        // The same, and y += other's rows · another tileᵀ, by turns.
        template <int N>
        __device__ __forceinline__ void add_two_scores(float (&x)[MT][N][4], const T *tile, const own_rows &other,
                                                       float (&y)[MT][N][4], const T *other_tile) const {
#pragma unroll
            for (int kk = 0; kk < D / 16; kk++) {
                uint32_t a[MT][4], c[MT][4];
#pragma unroll
                for (int mt = 0; mt < MT; mt++) {
                    operand(a[mt], mt, kk);
                    other.operand(c[mt], mt, kk);
                }
#pragma unroll
                for (int n = 0; n < N / 2; n++) {
                    uint32_t b[4], d[4];
                    load_b_rows<T, D>(b, tile + n * 16 * tile_pitch(D) + kk * 16);
                    load_b_rows<T, D>(d, other_tile + n * 16 * tile_pitch(D) + kk * 16);
#pragma unroll
                    for (int mt = 0; mt < MT; mt++) {
                        multiply<T>(x[mt][2 * n], a[mt], b[0], b[1]);
                        multiply<T>(x[mt][2 * n + 1], a[mt], b[2], b[3]);
                        multiply<T>(y[mt][2 * n], c[mt], d[0], d[1]);
                        multiply<T>(y[mt][2 * n + 1], c[mt], d[2], d[3]);
                    }
                }
            }
        }
    };

    // o [16·MT rows, D] += p [16·MT, N] · tile [N, D]
    template <int D, int MT, int N>
    static __device__ __forceinline__ void add_columns(float (&o)[MT][D / 8][4], const float (&p)[MT][N / 8][4],
                                                       const T *tile) {
#pragma unroll
        for (int kk = 0; kk < N / 16; kk++) {
            uint32_t a[MT][4];
#pragma unroll
            for (int mt = 0; mt < MT; mt++)
                to_a<T>(a[mt], p[mt][2 * kk], p[mt][2 * kk + 1]);
#pragma unroll
            for (int n = 0; n < D / 16; n++) {
                uint32_t b[4];
                load_b_columns<T, D>(b, tile + kk * 16 * tile_pitch(D) + n * 16);
#pragma unroll
                for (int mt = 0; mt < MT; mt++) {
                    multiply<T>(o[mt][2 * n], a[mt], b[0], b[1]);
                    multiply<T>(o[mt][2 * n + 1], a[mt], b[2], b[3]);
                }
            }
        }
    }
    template <int D, int MT>
    static __device__ __forceinline__ void store(T *to, long long stride, int count, int width, T *tile,
                                                 const float (&x)[MT][D / 8][4], const float (&factor)[MT][2]) {
        store_rows<T, D, MT>(to, stride, count, width, tile, x, factor);
    }
    // Δ of a warp's rows, into shared and global memory: eight threads a row.
    template <int ROWS>
    static __device__ __forceinline__ void row_products(const T *dy, const T *y, long long stride, int count, int width,
                                                        float *delta, float *to) {
        int lane = static_cast<int>(threadIdx.x) & 31;
        for (int row = lane >> 3; row < ROWS; row += 4) {
            float sum = 0;
            for (int c = (lane & 7) * 8; c < width && row < count; c += 64) {
                T one[8], two[8];
                *reinterpret_cast<uint4 *>(one) = *reinterpret_cast<const uint4 *>(dy + row * stride + c);
                *reinterpret_cast<uint4 *>(two) = *reinterpret_cast<const uint4 *>(y + row * stride + c);
#pragma unroll
                for (int e = 0; e < 8; e++)
                    sum = fmaf(static_cast<float>(one[e]), static_cast<float>(two[e]), sum);
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

// --- launching -----------------------------------------------------------------------------------------------------
// A pass is a struct that says what is in shared memory and how large the grid is; its compute is found beside it.
template <class PASS>
__global__ void __launch_bounds__(THREADS, PASS::RESIDENT) attention_kernel(const __grid_constant__ mz_cu_attention a) {
    if constexpr (PASS::HERE)
        compute(PASS(), a);
}
// prepare: launches nothing, and asks for the shared memory, which is more than 48 KiB.
template <class PASS> cudaError_t attention_run(bool prepare, cudaStream_t stream, const mz_cu_attention &a) {
    if (prepare)
        return cudaFuncSetAttribute(attention_kernel<PASS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    PASS::WITH_MASK);
    const int bytes = a.p > 0 ? PASS::WITH_MASK : PASS::TOTAL;
    attention_kernel<PASS><<<PASS::grid(a), THREADS, static_cast<size_t>(bytes), stream>>>(a);
    return cudaGetLastError();
}

// Runs the pass RUN<T, DROP, SEES> of a call's 16-bit storage and rules.
template <template <typename T, int DROP, int SEES> class RUN, typename T>
cudaError_t attention_of_rules(cudaStream_t stream, const mz_cu_attention &a, bool prepare) {
    if (!a.causal)
        return RUN<T, DROP_ASKED, SEES_ALL>::run(stream, a, prepare);
    if (a.limited)
        return RUN<T, DROP_ASKED, SEES_LIMITED>::run(stream, a, prepare);
    return a.p > 0 ? RUN<T, DROP_ALWAYS, SEES_BEFORE>::run(stream, a, prepare)
                   : RUN<T, DROP_NEVER, SEES_BEFORE>::run(stream, a, prepare);
}
template <template <typename T, int DROP, int SEES> class RUN>
cudaError_t attention_of_halves(cudaStream_t stream, const mz_cu_attention &a, bool prepare) {
    if (a.dtype == MEZZO_BF16)
        return attention_of_rules<RUN, __nv_bfloat16>(stream, a, prepare);
    return a.dtype == MEZZO_F16 ? attention_of_rules<RUN, __half>(stream, a, prepare) : cudaErrorInvalidValue;
}

#endif
