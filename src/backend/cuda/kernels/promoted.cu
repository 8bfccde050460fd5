// Computes products of FP32 matrices on Hopper's tensor cores (compute capability 9.0 only), as exact as FP32's own:
// each number is the sum of three BF16 ones (bf16_terms.cu), six products of parts make one of FP32, and the tensor
// cores, which cut their sums off, add up 64 terms at most: then FP32 registers take over ("promotion"), which round to
// nearest.
//
// A block is a thread that asks for tiles of the operands (TMA) and two warpgroups that make 64 of a tile's 128 rows
// each. All three parts of 64 terms of both operands are in shared memory at once, so that six products cost six tiles.
// Two blocks, a cluster, share each tile of b: either fetches half of it for both. Where tiles are too few for the card
// the sum is divided, and a second kernel adds the parts in order.
#include "tile_loop.cuh"
#include "vec.cuh"

namespace {
enum { TILE = 128, L = 64, HALF = TILE / 2, HALF_BYTES = HALF * L * 2, OPERAND = 2 * HALF_BYTES };
// A piece, 64 terms, has six slots: a2, b0, a1, b1, a0, b2, in the order of their first use.
enum { TERMS = 3, PRODUCTS = 6 };

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// Fetches piece k of 64 rows of an operand's part. BY_ROWS: the part is [rows, inner], else [inner, rows].
template <bool BY_ROWS>
__device__ __forceinline__ void fetch_term(uint32_t to, const CUtensorMap *map, int row, int k, int part,
                                           uint32_t barrier) {
    fetch_box_of_three(to, map, BY_ROWS ? k * L : row, BY_ROWS ? row : k * L, part, barrier);
}

// The warps of both blocks release a slot of b, which both blocks' threads write; those of one block a slot of a.
__device__ __forceinline__ void release(uint32_t empty, int slot, uint32_t rank) {
    const uint32_t lane = threadIdx.x & 31;
    if (slot % 2 == 0 ? lane == 0 : lane < CLUSTER)
        barrier_arrive_at(empty + slot * 8, slot % 2 == 0 ? rank : lane);
}

// Stores a thread's results: columns 8·j + 2·(lane % 4), + 1 of rows lane/4 ([0, 1]) and lane/4 + 8 ([2, 3]) of its
// warp's 16.
__device__ __forceinline__ void store(const mz_cu_promoted &g, int64_t row, int col, int split,
                                      const float (&total)[16][4]) {
    int lane = static_cast<int>(threadIdx.x) & 31;
    bool whole = g.splits == 1;
    float *out = whole ? g.out : g.partial + split * g.rows * g.cols;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int64_t m = row + r * 8 + (lane >> 2);
        if (m >= g.rows)
            continue;
#pragma unroll
        for (int j = 0; j < 16; j++) {
            int64_t c = col + j * 8 + (lane & 3) * 2, at = m * g.cols + c;
            if (c >= g.cols)
                continue;
            float2 x = make_float2(total[j][2 * r], total[j][2 * r + 1]);
            if (whole && g.bias != nullptr) {
                float2 bias = *reinterpret_cast<const float2 *>(g.bias + c);
                x = make_float2(x.x + bias.x, x.y + bias.y);
            }
            if (whole && g.add != nullptr) {
                float2 add = *reinterpret_cast<const float2 *>(g.add + at);
                x = make_float2(x.x + add.x, x.y + add.y);
            }
            *reinterpret_cast<float2 *>(out + at) = x;
        }
    }
}

#endif

template <bool A_BY_ROWS, bool B_BY_ROWS> struct promoted : tile_policy<2> {
    enum { SLOTS = 2 * TERMS, SLOT = OPERAND };
    using args = mz_cu_promoted;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using walk = dense_walk<args, TILE, TILE, L, 1, true>;
    static __device__ __forceinline__ int readers(int slot) {
        return slot % 2 == 0 ? WARPS : CLUSTER * WARPS;
    }

    struct loads {
        int rank, row, col;
        __device__ __forceinline__ loads(const mz_cu_promoted &, const tile_share &s, uint32_t block)
            : rank(static_cast<int>(block)) {
            row = static_cast<int>(s.down * (CLUSTER * TILE)) + rank * TILE;
            col = static_cast<int>(s.right) * TILE + rank * HALF;
        }
        __device__ __forceinline__ void fetch(const tile_maps &maps, int k, const auto &ring) const {
#pragma unroll
            for (int i = 0; i < 2 * TERMS; i++) {
                const uint32_t to = ring.slot(i), ready = ring.full(i);
                barrier_wait(ring.empty(i), ring.parity() ^ 1);
                barrier_expect(ready, OPERAND);
                if (i % 2 == 0) {
                    fetch_term<A_BY_ROWS>(to, maps.a, row, k, i / 2, ready);
                    fetch_term<A_BY_ROWS>(to + HALF_BYTES, maps.a, row + HALF, k, i / 2, ready);
                } else {
                    fetch_box_of_three_for_all(to + rank * HALF_BYTES, maps.b, B_BY_ROWS ? k * L : col,
                                               B_BY_ROWS ? col : k * L, i / 2, ready);
                }
            }
        }
    };

    struct sums {
        float total[16][4] = {};
        __device__ __forceinline__ sums(const mz_cu_promoted &, const tile_warp &, const tile_share &) {}
        __device__ __forceinline__ void multiply(const mz_cu_promoted &, const tile_warp &w, const tile_share &, int,
                                                 const auto &ring) {
            // The smallest products first, of which slots they are, which slots the one before has done with.
            constexpr int a_of[PRODUCTS] = {0, 2, 4, 2, 4, 4}, b_of[PRODUCTS] = {1, 3, 5, 1, 3, 1};
            constexpr int done[PRODUCTS] = {0, -1, 5, 2, 3, 4};
            const uint32_t place = ring.slot(), here = ring.empty();
            float d[16][4] = {};
#pragma unroll
            for (int i = 0; i < PRODUCTS; i++) {
                if (i < TERMS) {
                    barrier_wait(ring.full(a_of[i]), ring.parity());
                    barrier_wait(ring.full(b_of[i]), ring.parity());
                }
                uint64_t a = wgmma_operand(place + a_of[i] * OPERAND + w.group * HALF_BYTES, HALF_BYTES),
                         b = wgmma_operand(place + b_of[i] * OPERAND, HALF_BYTES);
                wgmma_begin();
#pragma unroll
                for (int l = 0; l < L; l += 16) // 16 of l are 32 bytes of a row, or 16 rows
                    wgmma_multiply<__nv_bfloat16, !A_BY_ROWS, !B_BY_ROWS>(
                        d, a + (A_BY_ROWS ? l * 2 >> 4 : l * 128 >> 4), b + (B_BY_ROWS ? l * 2 >> 4 : l * 128 >> 4));
                wgmma_commit();
                if (i > 0) {
                    wgmma_wait<1>();
                    if (done[i - 1] >= 0)
                        release(here, done[i - 1], w.rank);
                }
            }
            wgmma_wait<0>();
            release(here, 4, w.rank);
            release(here, 1, w.rank);
#pragma unroll
            for (int i = 0; i < 64; i++)
                total[i / 4][i % 4] += d[i / 4][i % 4];
        }
        __device__ __forceinline__ void finish(const mz_cu_promoted &g, const tile_warp &w, const tile_share &s,
                                               const auto &) const {
            store(g, static_cast<int64_t>(s.down) * (CLUSTER * TILE) + w.rank * TILE + w.group * HALF + w.index * 16,
                  static_cast<int>(s.right) * TILE, s.split, total);
        }
    };
#endif
};

enum { BLOCK = 256 };
__global__ void __launch_bounds__(BLOCK) add_splits_kernel(const mz_cu_promoted g) {
    wait_for_before();
    int64_t n = g.rows * g.cols / 4, i = static_cast<int64_t>(blockIdx.x) * BLOCK + threadIdx.x;
    if (i >= n)
        return;
    const float4 *partial = reinterpret_cast<const float4 *>(g.partial);
    float4 x = partial[i];
    for (int s = 1; s < g.splits; s++)
        x = add4(x, partial[s * n + i]);
    if (g.bias != nullptr)
        x = add4(x, *reinterpret_cast<const float4 *>(g.bias + i * 4 % g.cols));
    if (g.add != nullptr)
        x = add4(x, reinterpret_cast<const float4 *>(g.add)[i]);
    reinterpret_cast<float4 *>(g.out)[i] = x;
}

// --- launching -----------------------------------------------------------------------------------------------------
// Boxes of 64 × 64 of three matrices [rows, cols], consecutive.
bool describe(CUtensorMap *map, const void *data, bool by_rows, int64_t others, int64_t inner) {
    const int64_t cols = by_rows ? inner : others, rows = by_rows ? others : inner;
    return describe_boxes<3>(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, data, {cols, rows, TERMS},
                             {cols * 2, rows * cols * 2}, {L, HALF, 1});
}

template <bool A_BY_ROWS, bool B_BY_ROWS>
cudaError_t run(cudaStream_t stream, const mz_cu_promoted &g, int sms, bool prepare) {
    using policy = promoted<A_BY_ROWS, B_BY_ROWS>;
    if (prepare)
        return prepare_tiles<policy>();
    CUtensorMap a, b;
    if (!describe(&a, g.a, A_BY_ROWS, g.rows, g.inner) || !describe(&b, g.b, B_BY_ROWS, g.cols, g.inner))
        return cudaErrorNotSupported;
    const cudaError_t error =
        launch_tiles<policy>(stream, g, a, b, count_pairs<TILE, TILE>(g.rows, g.cols) * g.splits, sms);
    if (error != cudaSuccess || g.splits == 1)
        return error;
    return launch_dependent(stream, add_splits_kernel, static_cast<unsigned>((g.rows * g.cols / 4 + BLOCK - 1) / BLOCK),
                            BLOCK, 0, g);
}
} // namespace

extern "C" int mz_cu_promoted_splits(const mz_cu_promoted *g, int sms) {
    return choose_splits(count_pairs<TILE, TILE>(g->rows, g->cols), (g->inner + L - 1) / L, g->rows * g->cols, sms,
                         {1700, 4000, 2500});
}

extern "C" cudaError_t mz_cu_promoted_run(cudaStream_t stream, const mz_cu_promoted *args, int sms, bool prepare) {
#ifndef MZ_CU_90A
    return cudaErrorNoKernelImageForDevice;
#endif
    if (args->a_by_rows)
        return args->b_by_rows ? run<true, true>(stream, *args, sms, prepare)
                               : run<true, false>(stream, *args, sms, prepare);
    return args->b_by_rows ? cudaErrorInvalidValue : run<false, false>(stream, *args, sms, prepare);
}
