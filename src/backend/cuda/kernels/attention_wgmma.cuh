// Attention's kernels for Hopper (compute capability 9.0 only) share this: warpgroup matrix instructions, tiles fetched
// by one thread (TMA), the order of the work.
//
// A block is a warp that asks for tiles and warpgroups that own 64 rows each (queries, or keys). Their own rows, and
// tiles of the other side, which come through a ring, are operands in shared memory. Results of one product are,
// rounded, the left operand of the next (attention_mma.cuh): probabilities and their gradients never leave registers.
//
// A tile is [rows, 64] elements, rows of 128 bytes, whose 16-byte pieces change places by exclusive or with the row's
// number modulo 8 (wgmma.cuh). A head of more than 64 elements is two of them, one after the other.
#ifndef MZ_ATTENTION_WGMMA_CUH
#define MZ_ATTENTION_WGMMA_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>

#include <type_traits>

#include "barrier.cuh"
#include "cluster.cuh"
#include "pdl_launch.cuh"
#include "launch.h"
#include "ptx.cuh"
#include "wgmma.cuh"

enum { ROWS = 64, COLUMNS = 64, TILE_ALIGN = 1024 };

enum { GROUPS = 2, BM = GROUPS * ROWS, THREADS = WARPGROUP * (1 + GROUPS) }; // a block
constexpr __host__ __device__ int tile_bytes(int rows, int d) {
    return rows * d * 2;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// --- products ------------------------------------------------------------------------------------------------------
// An instruction for T, which adds to d where ADD says so.
#define MZ_WGMMA_AS(INSTRUCTION)                                                                                       \
    if constexpr (std::is_same<T, __nv_bfloat16>::value && ADD)                                                        \
        INSTRUCTION("bf16.bf16", "+f", "1");                                                                           \
    else if constexpr (std::is_same<T, __nv_bfloat16>::value)                                                          \
        INSTRUCTION("bf16.bf16", "=f", "0");                                                                           \
    else if constexpr (ADD)                                                                                            \
        INSTRUCTION("f16.f16", "+f", "1");                                                                             \
    else                                                                                                               \
        INSTRUCTION("f16.f16", "=f", "0")
#define MZ_WGMMA_64(TYPES, C, ADD)                                                                                     \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPES " {" MZ_N32 "}, "                                 \
                 "{%32, %33, %34, %35}, %36, " ADD ", 1, 1, %37;"                                                      \
                 : MZ_R32(C, 0)                                                                                        \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(B_TRANSPOSED))
#define MZ_WGMMA_128(TYPES, C, ADD)                                                                                    \
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPES " {" MZ_N64 "}, "                                \
                 "{%64, %65, %66, %67}, %68, " ADD ", 1, 1, %69;"                                                      \
                 : MZ_R32(C, 0), MZ_R32(C, 8)                                                                          \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(B_TRANSPOSED))

// d [64, N] = a [64, 16]·b [16, N], or += ; a in registers, b in shared memory; transposed: the summed dimension is not
// the contiguous one.
template <typename T, int B_TRANSPOSED, bool ADD>
__device__ __forceinline__ void multiply_by(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b) {
    MZ_WGMMA_AS(MZ_WGMMA_64);
}
template <typename T, int B_TRANSPOSED, bool ADD>
__device__ __forceinline__ void multiply_by(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b) {
    MZ_WGMMA_AS(MZ_WGMMA_128);
}

#define MZ_WGMMA_SHARED(TYPES, C, ADD)                                                                                 \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPES " {" MZ_N32 "}, %32, %33, " ADD ", 1, 1, 0, 0;"   \
                 : MZ_R32(C, 0)                                                                                        \
                 : "l"(a), "l"(b))
// d [64, 64] = a [64, 16]·b [16, 64], or += ; both in shared memory, the summed dimension contiguous.
template <typename T, bool ADD>
__device__ __forceinline__ void multiply_shared(float (&d)[8][4], uint64_t a, uint64_t b) {
    MZ_WGMMA_AS(MZ_WGMMA_SHARED);
}
// d = own·tileᵀ: 64 rows of a tile [rows, D] and a tile [8·N, D].
template <typename T, int D, int N>
__device__ __forceinline__ void multiply_rows(float (&d)[N][4], uint32_t own, int rows, uint32_t tile) {
    uint64_t a = wgmma_operand(own, 0), b = wgmma_operand(tile, 0);
    multiply_shared<T, false>(d, a, b);
#pragma unroll
    for (int k = 1; k < D / 16; k++)
        multiply_shared<T, true>(d, a + ((k / 4 * (rows * 128) + k % 4 * 32) >> 4),
                                 b + ((k / 4 * (N * 8 * 128) + k % 4 * 32) >> 4));
}
// d += a·tile: a [64, 16·K] in registers, tile [16·K, D].
template <typename T, int D, int K>
__device__ __forceinline__ void multiply_columns(float (&d)[D / 8][4], const uint32_t (&a)[K][4], uint32_t tile) {
    uint64_t b = wgmma_operand(tile, K * 16 * 128);
#pragma unroll
    for (int k = 0; k < K; k++)
        multiply_by<T, 1, true>(d, a[k], b + (k * 16 * 128 >> 4));
}

// The matrix unit's results are there after this: the compiler may move nothing that reads them before it.
template <int N> __device__ __forceinline__ void settle(float (&d)[N][4]) {
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : MZ_R4("+f", i)::"memory");
}

// --- barriers and copies -------------------------------------------------------------------------------------------
__device__ __forceinline__ void warp_arrive(uint32_t at) { // all of its threads have read what they wanted
    __syncwarp();
    if ((threadIdx.x & 31) == 0)
        barrier_arrive(at);
}
// Fetches rows [row, row + box's) of head h of batch b: D / 64 tiles.
template <int D>
__device__ __forceinline__ void fetch_rows(uint32_t to, int bytes, const CUtensorMap *map, int h, int row, int b,
                                           uint32_t barrier) {
#pragma unroll
    for (int c = 0; c < D; c += COLUMNS)
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
                     "[%1, {%2, %3, %4, %5}], [%6];" ::"r"(to + c / COLUMNS * (bytes / (D / COLUMNS))),
                     "l"(map), "r"(c), "r"(h), "r"(row), "r"(b), "r"(barrier)
                     : "memory");
}

struct attention_place { // of what is in shared memory: what the block owns, for this piece of work and, with OWNS 2,
                         // the next; the ring; barriers
    uint32_t own, stages, own_full, own_empty, full, empty;
};
template <typename layout> __device__ __forceinline__ attention_place place_begin(void *shared) {
    constexpr int STAGES = layout::STAGES, OWNS = layout::OWNS;
    attention_place at;
    at.own = (shared_address(shared) + TILE_ALIGN - 1) / TILE_ALIGN * TILE_ALIGN;
    at.stages = at.own + layout::AT_STAGES;
    at.full = at.own + layout::AT_BARRIERS;
    at.empty = at.full + STAGES * 8;
    at.own_full = at.empty + STAGES * 8;
    at.own_empty = at.own_full + OWNS * 8;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(at.full + s * 8, 1);
            barrier_init(at.empty + s * 8, GROUPS * 4); // warps
        }
        for (int s = 0; s < OWNS; s++) {
            barrier_init(at.own_full + s * 8, 1);
            barrier_init(at.own_empty + s * 8, GROUPS * 4);
        }
        barrier_inits_release();
    }
    __syncthreads();
    return at;
}

// Goes on to the place of the next piece of work; a place's parity changes when all have had their turn.
template <typename layout> __device__ __forceinline__ void next_own(uint32_t &turn, uint32_t &parity) {
    turn = turn + 1 == layout::OWNS ? 0 : turn + 1;
    parity ^= turn == 0;
}

// Loads the warp's 16 rows from `row` on of a tile [rows, D] as a left operand.
template <int D> __device__ __forceinline__ void load_left(uint32_t (&a)[D / 16][4], uint32_t tile, int rows, int row) {
    int lane = static_cast<int>(threadIdx.x) & 31, r = row + (lane & 15);
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t at = tile + k / 4 * (rows * 128) + r * 128 + (((k % 4 * 2 + (lane >> 4)) ^ (r & 7)) << 4);
        load_matrices(a[k], at);
    }
}
// Results, rounded, as the left operand of a product over their columns.
template <typename T, int N> __device__ __forceinline__ void to_left(uint32_t (&a)[N / 2][4], const float (&x)[N][4]) {
#pragma unroll
    for (int k = 0; k < N / 2; k++) {
        a[k][0] = pack<T>(x[2 * k][0], x[2 * k][1]);
        a[k][1] = pack<T>(x[2 * k][2], x[2 * k][3]);
        a[k][2] = pack<T>(x[2 * k + 1][0], x[2 * k + 1][1]);
        a[k][3] = pack<T>(x[2 * k + 1][2], x[2 * k + 1][3]);
    }
}

// Stores rows g and g + 8 of a warp's 16, of which a thread has columns 8·n + 2·t, + 1: four neighbours change words,
// so that each has eight columns in a row.
template <typename T, int D>
__device__ __forceinline__ void store_results(T *to, long long stride, int count, int width, const float (&x)[D / 8][4],
                                              float scale) {
    int lane = static_cast<int>(threadIdx.x) & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int n = 0; n < D / 8; n += 4) {
            uint32_t w[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                w[i] = pack<T>(x[n + i][2 * r] * scale, x[n + i][2 * r + 1] * scale);
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                uint32_t there = __shfl_xor_sync(0xffffffffu, t & 1 ? w[i] : w[i + 1], 1);
                w[i] = t & 1 ? there : w[i];
                w[i + 1] = t & 1 ? w[i + 1] : there;
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t there = __shfl_xor_sync(0xffffffffu, t & 2 ? w[i] : w[i + 2], 2);
                w[i] = t & 2 ? there : w[i];
                w[i + 2] = t & 2 ? w[i + 2] : there;
            }
            if (g + r * 8 < count && (n + t) * 8 < width)
                *reinterpret_cast<uint4 *>(to + (g + r * 8) * stride + (n + t) * 8) =
                    make_uint4(w[0], w[1], w[2], w[3]);
        }
}
#endif

// --- the order of the work -----------------------------------------------------------------------------------------
// Tiles are dealt out to the blocks, the long ones first, in turn and every second time in the opposite order, which
// gives each about the same work. Where there are many, that is done for some heads after the others, so that what
// their tiles share stays in the L2 cache.
struct attention_walk {
    int heads, tiles, some, turns; // heads at a time, and turns for these
    int first, turn;               // where it is
    int head, rank;                // rank 0: the head's longest tile
};
__device__ __forceinline__ bool walk_find(attention_walk &w) { // from here on
    const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
    for (; w.first < w.heads; w.first += w.some, w.turn = 0) {
        const int heads = min(w.some, w.heads - w.first);
        for (; w.turn < w.turns; w.turn++) {
            int at = w.turn * blocks + (w.turn & 1 ? blocks - 1 - block : block);
            if (at < heads * w.tiles) {
                w.head = w.first + at % heads;
                w.rank = at / heads;
                return true;
            }
        }
    }
    return false;
}
__device__ __forceinline__ attention_walk walk_begin(int tiles, int heads) {
    const int blocks = static_cast<int>(gridDim.x);
    attention_walk w;
    w.heads = heads;
    w.tiles = tiles;
    w.some = heads * tiles <= 4 * blocks ? heads : max(1, 2 * blocks / tiles);
    w.turns = (w.some * tiles + blocks - 1) / blocks;
    w.first = w.turn = 0;
    return w;
}

// A row's log-sum-exp (base 2) and Δ, for the second pass: [B·H, length padded to whole tiles].
constexpr __host__ __device__ int padded(int length) {
    return (length + ROWS - 1) / ROWS * ROWS;
}

// --- launching -----------------------------------------------------------------------------------------------------
// Boxes of `box` positions of a head of [B, T, heads, D], rows `row` elements apart; what lies outside is 0.
inline bool describe_heads(CUtensorMap *map, const mz_cu_attention &a, const void *data, int heads, long long row,
                           int box) {
    return describe_boxes<4>(map, box_type(a.dtype), data, {a.width, heads, a.length, a.batch},
                             {a.width * 2, row * 2, row * 2 * a.length}, {COLUMNS, 1, box, 1});
}

struct attention_maps {
    CUtensorMap q, k, v, dy, y;
};
// Describes queries in boxes of `queries` positions, keys of `keys`.
inline bool describe_all(attention_maps *maps, const mz_cu_attention &a, int queries, int keys) {
    long long y_row = static_cast<long long>(a.heads) * a.width;
    return describe_heads(&maps->q, a, a.q, a.heads, a.q_row, queries) &&
           describe_heads(&maps->k, a, a.k, a.kv_heads, a.kv_row, keys) &&
           describe_heads(&maps->v, a, a.v, a.kv_heads, a.kv_row, keys) &&
           describe_heads(&maps->dy, a, a.dy, a.heads, y_row, queries) &&
           describe_heads(&maps->y, a, a.y, a.heads, y_row, queries);
}
inline cudaError_t launch_attention(cudaStream_t stream, void (*kernel)(mz_cu_attention, attention_maps), int bytes,
                                    const mz_cu_attention &a, int heads, const attention_maps &maps) {
    long long items = static_cast<long long>((a.length + BM - 1) / BM) * a.batch * heads;
    return launch_dependent(stream, kernel, dim3(static_cast<unsigned>(items < a.sms ? items : a.sms)), dim3(THREADS),
                            static_cast<size_t>(bytes), a, maps);
}

// A pass: LAYOUT says what is in shared memory; its produce and consume are found beside it.
template <class LAYOUT>
__global__ void __launch_bounds__(THREADS, 1)
    attention_pass(const __grid_constant__ mz_cu_attention a, const __grid_constant__ attention_maps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ unsigned char pass_shared[];
    attention_place at = place_begin<LAYOUT>(pass_shared);
    wait_for_before();
    if (threadIdx.x < WARPGROUP) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 0)
            produce(LAYOUT(), a, maps, at);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        consume(LAYOUT(), a, at);
    }
#endif
}
// Its boxes have `queries` and `keys` positions.
template <class LAYOUT>
cudaError_t run_pass(cudaStream_t stream, const mz_cu_attention &a, bool prepare, int heads, int queries, int keys) {
    if (prepare)
        return cudaFuncSetAttribute(attention_pass<LAYOUT>, cudaFuncAttributeMaxDynamicSharedMemorySize, LAYOUT::TOTAL);
    attention_maps maps;
    if (!describe_all(&maps, a, queries, keys))
        return cudaErrorNotSupported;
    return launch_attention(stream, attention_pass<LAYOUT>, LAYOUT::TOTAL, a, heads, maps);
}
template <template <typename T, int D> class PASS>
cudaError_t run_pass_of(cudaStream_t stream, const mz_cu_attention &a, bool prepare) {
#ifndef MZ_CU_90A
    return cudaErrorNoKernelImageForDevice;
#endif
    if (a.dtype == MEZZO_BF16)
        return (a.width > 64 ? PASS<__nv_bfloat16, 128>::run : PASS<__nv_bfloat16, 64>::run)(stream, a, prepare);
    if (a.dtype == MEZZO_F16)
        return (a.width > 64 ? PASS<__half, 128>::run : PASS<__half, 64>::run)(stream, a, prepare);
    return cudaErrorInvalidValue;
}

#endif
