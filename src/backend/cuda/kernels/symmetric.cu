// Batched products of 16-bit matrices whose result is symmetric, on Hopper's tensor cores (compute capability 9.0
// only): c₀·a·b + c₁·added + c₂·1, where b is a's transpose, or a and b are symmetric and commute. Tiles on and below
// the diagonal are computed, and each is stored twice: as it is, and transposed.
//
// A block is a thread that asks for boxes of the operands (TMA) and two warpgroups that take turns at tiles of 128 ×
// 128 results: while one finishes a tile, the other multiplies. The matrix to add comes as the last piece of a tile's
// sum. A result depends neither on how many matrices there are nor on which tiles are divided.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "host.cuh"
#include "tile_loop.cuh"
#include "vec.cuh"

namespace {
// Boxes are blocks of 64 × 64 elements, rows of 128 bytes. A slot has two of the tile's columns (rows of bᵀ)
// and two of its rows (of a), where these are the same the first two alone; or the four of the matrix to add. Block
// (r, c) of a result is staged as the r-th after 2·c.
enum { TILE = 128, L = 64, STAGES = 5, BLOCK = 64 * 64 * 2, OPERAND = 2 * BLOCK, STAGE = 2 * OPERAND, STAGING = STAGE };

struct symmetric_product {
    CUtensorMap a, b, added, out; // boxes of BLOCK; b as a lies
    int dtype;                    // of all
    bool by_rows, adds;           // a [matrices, side, inner], else [matrices, inner, side]; added is there
    bool two;                     // b is not in a's memory
    float factors[3];             // where added is there
    unsigned matrices, tiles;     // tiles of a matrix
    int sum;                      // pieces of a sum, without the matrix to add
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// A tile: blocks of 64 rows `first` … `first` + `halves` - 1 of it. The loop over tiles takes a sum in one piece; loads
// and sums go through it, the latter in a loop of its own for each number of halves: matrix instructions that a
// condition leaves out would be run one after the other.
struct symmetric_tile {
    static constexpr bool any = true;
    static constexpr int from = 0, to = 1;
    int matrix, down, right, first, halves;
    bool shares; // its rows and columns are the same numbers
    __device__ __forceinline__ bool on_diagonal() const { return down == right; }
};

// Deals out tiles on and below the diagonals. If at most half as many tiles are left for the last turn as there are
// blocks, each of them is divided between two.
struct triangle_walk {
    unsigned unit, units, step, whole;
    int pieces;
    __device__ __forceinline__ triangle_walk(const symmetric_product &g) {
        const unsigned tiles = g.matrices * g.tiles;
        unit = blockIdx.x;
        step = gridDim.x;
        pieces = g.sum + (g.adds ? 1 : 0);
        const unsigned rest = tiles % step;
        whole = 2 * rest <= step ? tiles - rest : tiles;
        units = whole + 2 * (tiles - whole);
    }
    __device__ __forceinline__ bool more() const { return unit < units; }
    __device__ __forceinline__ void next() { unit += step; }
    __device__ __forceinline__ symmetric_tile find(const symmetric_product &g) const {
        const bool divided = unit >= whole;
        const unsigned index = divided ? whole + (unit - whole) / 2 : unit;
        symmetric_tile t;
        t.matrix = static_cast<int>(index / g.tiles);
        const int i = static_cast<int>(index % g.tiles);
        t.down = static_cast<int>((sqrtf(static_cast<float>(8 * i + 1)) - 1) * 0.5f); // or one off
        t.down -= t.down * (t.down + 1) / 2 > i;
        t.down += (t.down + 1) * (t.down + 2) / 2 <= i;
        t.right = i - t.down * (t.down + 1) / 2;
        t.first = divided ? static_cast<int>((unit - whole) & 1) : 0;
        t.halves = divided ? 1 : 2;
        t.shares = t.on_diagonal() && !g.two;
        return t;
    }
    __device__ __forceinline__ symmetric_tile tile(const symmetric_product &, const symmetric_tile &t) const {
        return t;
    }
};

// Where 16 bytes (eight columns) of a row of a staged tile begin.
__device__ __forceinline__ uint32_t at(int row, int piece) {
    return static_cast<uint32_t>((piece >> 3) * (TILE * 128) + row * 128 + (((piece ^ row) & 7) << 4));
}

// A block on the diagonal with its lower half in place of the upper one.
__device__ __forceinline__ uint32_t mirrored(uint32_t matrix, int lane) {
    const uint32_t other = transposed(matrix);
    const int row = lane >> 2, col = (lane & 3) * 2;
    return ((col > row ? other : matrix) & 0xFFFFu) | ((col + 1 > row ? other : matrix) & 0xFFFF0000u);
}
#endif

template <typename T, bool BY_ROWS, bool ADDS> struct symmetric_policy : tile_policy<STAGES> {
    enum { SLOT = STAGE, BESIDE = GROUPS * STAGING };
    enum : bool { CLUSTERED = false, BY_TURNS = true, PASSES_TURNS = true };
    using args = symmetric_product;
    using stage = stage_by_turns<STAGES>;
    using fetch_stage = stage;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using walk = triangle_walk;
    static __device__ __forceinline__ int readers(int) { // the warps of a warpgroup
        return WARPS / GROUPS;
    }

    struct warp : tile_warp {
        using tile_warp::tile_warp;
        __device__ __forceinline__ bool stores() const { return index == 0 && lane == 0; }
        __device__ __forceinline__ void end() const {
            if (stores())
                stores_wait();
        }
    };

    struct loads {
        const symmetric_product &g;
        symmetric_tile t;
        __device__ __forceinline__ loads(const symmetric_product &args, const symmetric_tile &tile, uint32_t)
            : g(args), t(tile) {}
        __device__ __forceinline__ void fetch(const tile_maps &maps, int, auto &ring) const {
#pragma unroll 1
            for (int k = 0; k < g.sum; k++) {
                if (k > 0)
                    ring.advance();
                barrier_wait(ring.empty(), ring.parity() ^ 1);
                barrier_expect(ring.full(), static_cast<uint32_t>((t.shares ? 2 : 2 + t.halves) * BLOCK));
                for (int c = 0; c < 2; c++)
                    fetch_rows(ring.slot() + c * BLOCK, maps.b, t.right * TILE + c * 64, k, ring.full());
                for (int h = t.first; h < t.first + t.halves && !t.shares; h++)
                    fetch_rows(ring.slot() + OPERAND + h * BLOCK, maps.a, t.down * TILE + h * 64, k, ring.full());
            }
            if constexpr (ADDS) {
                ring.advance();
                barrier_wait(ring.empty(), ring.parity() ^ 1);
                barrier_expect(ring.full(), static_cast<uint32_t>(2 * t.halves * BLOCK));
                for (int h = t.first; h < t.first + t.halves; h++)
                    for (int c = 0; c < 2; c++)
                        fetch_box_of_three(ring.slot() + (c * 2 + h) * BLOCK, &g.added, t.right * TILE + c * 64,
                                           t.down * TILE + h * 64, t.matrix, ring.full());
            }
        }
        // 64 rows of an operand as the product has them.
        __device__ __forceinline__ void fetch_rows(uint32_t to, const CUtensorMap *map, int row, int k,
                                                   uint32_t full) const {
            fetch_box_of_three(to, map, BY_ROWS ? k * L : row, BY_ROWS ? row : k * L, t.matrix, full);
        }
    };

    struct sums {
        float d[2][16][4];
        uint32_t before = 0, addend = 0; // the stages that products under way read, and that has the matrix to add
        __device__ __forceinline__ sums(const symmetric_product &, const warp &, const symmetric_tile &) {
#pragma unroll
            for (int i = 0; i < 128; i++)
                d[i / 64][i / 4 % 16][i % 4] = 0;
        }
        static __device__ __forceinline__ void release(const warp &w, const auto &ring, uint32_t at_stage) {
            if (w.lane == 0)
                barrier_arrive(ring.m.empty + at_stage * 8);
        }
        __device__ __forceinline__ void multiply(const symmetric_product &g, const warp &w, const symmetric_tile &t,
                                                 int, auto &ring) {
            if (t.halves == 2)
                multiply_rows<2>(g, w, t, ring);
            else
                multiply_rows<1>(g, w, t, ring);
        }
        template <int HALVES>
        __device__ __forceinline__ void multiply_rows(const symmetric_product &g, const warp &w,
                                                      const symmetric_tile &t, auto &ring) {
            for (int k = 0; k < g.sum; k++) {
                if (k > 0)
                    ring.advance();
                barrier_wait(ring.full(), ring.parity());
                const uint32_t slot = ring.slot(), rows = slot + (t.shares ? 0 : OPERAND) + t.first * BLOCK;
                const uint64_t a = wgmma_operand(rows, L * 128), b = wgmma_operand(slot, L * 128);
                wgmma_begin();
#pragma unroll
                for (int l = 0; l < L; l += 16) { // 16 of l are 32 bytes of a row, or 16 rows
                    const int step = (BY_ROWS ? l * 2 : l * 128) >> 4;
                    wgmma_multiply<T, !BY_ROWS, !BY_ROWS>(d[0], a + step, b + step);
                    if constexpr (HALVES == 2)
                        wgmma_multiply<T, !BY_ROWS, !BY_ROWS>(d[1], a + step + (BLOCK >> 4), b + step);
                }
                wgmma_commit();
                if (k > 0) {
                    wgmma_wait<1>();
                    release(w, ring, before);
                }
                before = ring.stage();
            }
            if constexpr (ADDS) { // the other warpgroup asks about barriers after this one has come
                ring.advance();
                barrier_wait(ring.full(), ring.parity());
                addend = ring.stage();
            }
            turn_pass(w.group);
            wgmma_wait<0>();
            wgmma_settle(d[0]);
            wgmma_settle(d[1]);
            release(w, ring, before);
        }

        // r[i][j]: 16 × 16 results of a warp, those of 64·i … and columns 16·j …, rounded, as store_matrices takes
        // them.
        __device__ __forceinline__ void round(uint32_t (&r)[2][8][4], const symmetric_product &g, const warp &w,
                                              const symmetric_tile &t, const auto &ring) {
            constexpr int dtype = std::is_same<T, __nv_bfloat16>::value ? MEZZO_BF16 : MEZZO_F16;
            const unsigned char *added = w.memory.shared + addend * STAGE;
            const float one = t.on_diagonal() ? g.factors[2] : 0;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int block = (t.halves == 2 ? i : t.first) * 64 + w.index * 16, row = block + (w.lane & 15),
                          first = block + (w.lane >> 2) - (w.lane & 3) * 2; // a thread's first row less its column
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    uint32_t c[4] = {};
                    if (ADDS && i < t.halves)
                        load_matrices(c, added + at(row, 2 * j + (w.lane >> 4)));
#pragma unroll
                    for (int m = 0; m < 4; m++) { // two columns of rows 8·(m % 2) …, columns 8·(m / 2) …
                        float x = d[i][2 * j + m / 2][m % 2 * 2], y = d[i][2 * j + m / 2][m % 2 * 2 + 1];
                        if constexpr (ADDS) {
                            const float2 add = widen2(c[m], dtype);
                            const int below = first + m % 2 * 8 - (j * 16 + m / 2 * 8); // of the diagonal
                            x = fmaf(g.factors[0], x, fmaf(g.factors[1], add.x, below == 0 ? one : 0));
                            y = fmaf(g.factors[0], y, fmaf(g.factors[1], add.y, below == 1 ? one : 0));
                        }
                        r[i][j][m] = pack<T>(x, y);
                    }
                }
            }
            if constexpr (ADDS) {
                async_fence();
                __syncwarp();
                release(w, ring, addend);
            }
        }

        // Writes blocks to the staging: as they are, transposed, or of a tile on the diagonal those below it both ways.
        template <bool AS_IS, bool TRANSPOSED>
        static __device__ __forceinline__ void stage_blocks(const uint32_t (&r)[2][8][4], const warp &w,
                                                            const symmetric_tile &t, uint32_t staging) {
            constexpr bool DIAGONAL = AS_IS && TRANSPOSED;
            const int in_eight = w.lane & 7, matrix = w.lane >> 3;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int down = (t.halves == 2 ? i : t.first) * 4 + w.index; // of the tile's 8 × 8 blocks of 16 × 16
                if (i >= t.halves)
                    break;
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    const uint32_t here = staging + at(down * 16 + (w.lane & 15), 2 * j + (w.lane >> 4)),
                                   there = staging + at(j * 16 + (matrix >> 1) * 8 + in_eight, 2 * down + (matrix & 1));
                    if (DIAGONAL && j >= down) {
                        if (j == down) {
                            const uint32_t both[4] = {mirrored(r[i][j][0], w.lane), r[i][j][1], transposed(r[i][j][1]),
                                                      mirrored(r[i][j][3], w.lane)};
                            store_matrices(here, both);
                        }
                        continue;
                    }
                    if (AS_IS)
                        store_matrices(here, r[i][j]);
                    if (TRANSPOSED)
                        store_matrices_transposed(there, r[i][j]);
                }
            }
        }

        // Stores the staged blocks (r, c) that `has` names, as blocks of tile (down, right).
        static __device__ __forceinline__ void store(const symmetric_product &g, const warp &w, int matrix, int down,
                                                     int right, uint32_t staging, auto has) {
            async_fence();
            warpgroup_sync(w.group);
            if (!w.stores())
                return;
            for (int c = 0; c < 2; c++)
                for (int r = 0; r < 2; r++)
                    if (has(r, c))
                        store_box_of_three(staging + (c * 2 + r) * BLOCK, &g.out, right * TILE + c * 64,
                                           down * TILE + r * 64, matrix);
            stores_commit();
        }

        // Waits until what was staged before has been stored.
        static __device__ __forceinline__ void staging_free(const warp &w) {
            if (w.stores())
                stores_wait_read();
            warpgroup_sync(w.group);
        }

        __device__ __forceinline__ void finish(const symmetric_product &g, const warp &w, const symmetric_tile &t,
                                               const auto &ring) {
            const uint32_t staging = w.memory.address + STAGES * STAGE + w.group * STAGING;
            const auto is_mine = [&](int h) { return h >= t.first && h < t.first + t.halves; };
            uint32_t r[2][8][4];
            round(r, g, w, t, ring);
            staging_free(w);
            if (t.on_diagonal()) {
                stage_blocks<true, true>(r, w, t, staging);
                store(g, w, t.matrix, t.down, t.down, staging,
                      [&](int row, int col) { return is_mine(row > col ? row : col); });
                return;
            }
            stage_blocks<true, false>(r, w, t, staging);
            store(g, w, t.matrix, t.down, t.right, staging, [&](int row, int) { return is_mine(row); });
            staging_free(w);
            stage_blocks<false, true>(r, w, t, staging);
            store(g, w, t.matrix, t.right, t.down, staging, [&](int, int col) { return is_mine(col); });
        }
    };
#endif
};

template <typename P>
__global__ void __launch_bounds__(THREADS, 1) symmetric_kernel(const __grid_constant__ symmetric_product g) {
    loop_over_tiles<P>(g, {&g.a, &g.b});
}

// --- launching -----------------------------------------------------------------------------------------------------
template <typename T, bool BY_ROWS, bool ADDS>
cudaError_t run(const mz_cuda_device *cuda, const symmetric_product &g, bool prepare) {
    using policy = symmetric_policy<T, BY_ROWS, ADDS>;
    constexpr int bytes = tile_layout<policy>::BYTES;
    if (prepare)
        return cudaFuncSetAttribute(symmetric_kernel<policy>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    const unsigned units = 2 * g.matrices * g.tiles, sms = static_cast<unsigned>(cuda->sms);
    return launch_dependent(cuda->stream, symmetric_kernel<policy>, dim3(units < sms ? units : sms), dim3(THREADS),
                            bytes, g);
}

template <typename T> cudaError_t of(const mz_cuda_device *cuda, const symmetric_product &g, bool prepare) {
    return (g.by_rows ? g.adds ? run<T, true, true> : run<T, true, false>
            : g.adds ? run<T, false, true>
                      : run<T, false, false>)(cuda, g, prepare);
}

cudaError_t run_symmetric(const mz_cuda_device *cuda, const symmetric_product &g, bool prepare) {
    return (g.dtype == MEZZO_BF16 ? of<__nv_bfloat16> : of<__half>)(cuda, g, prepare);
}

// Describes boxes of BLOCK of matrices [matrices, rows, cols].
bool describe(CUtensorMap *map, int dtype, const void *data, int64_t matrices, int64_t rows, int64_t cols) {
    return describe_boxes<3>(map, box_type(dtype), data, {cols, rows, matrices}, {cols * 2, rows * cols * 2},
                             {64, 64, 1});
}
} // namespace

// --- which calls of matmul -----------------------------------------------------------------------------------------
// How many matrices there are makes no difference, so that a rank's share of them has the same bits.
enum { LEAST_SIDE = 256, MOST_SIDE = 1 << 16, MOST_INNER = 1 << 24 };

static const char *symmetric_args(const mz_cuda_device *cuda, const mz_call *call, symmetric_product *g) {
    const mz_tensor *a = mz_in(call, matmul, a), *b = mz_in(call, matmul, b), *added = mz_in(call, matmul, added),
                    *y = mz_out(call, matmul, y);
    const int64_t side = y->shape.dim[y->shape.rank - 1], cols = a->shape.dim[a->shape.rank - 1],
                  inner = a->shape.dim[a->shape.rank - (call->attrs.transpose_a ? 2 : 1)],
                  matrices = mz_shape_count(&y->shape) / (side * side), down = (side + TILE - 1) / TILE;
    if (cuda->cc != 90)
        return "is for compute capability 9.0";
    if (!call->attrs.symmetric)
        return "is for symmetric results";
    if ((a->dtype != MEZZO_BF16 && a->dtype != MEZZO_F16) || b->dtype != a->dtype || y->dtype != a->dtype ||
        (mz_present(added) && added->dtype != a->dtype))
        return "multiplies bf16 and fp16, adds and stores what it multiplies";
    if (mz_shape_count(&a->shape) != matrices * side * inner || mz_shape_count(&b->shape) != matrices * side * inner)
        return "both operands have every batch";
    if (side % 8 != 0 || cols % 8 != 0)
        return "rows must be multiples of 16 bytes";
    if (side < LEAST_SIDE)
        return "small matrices have few tiles beside the diagonal";
    if (side > MOST_SIDE || inner > MOST_INNER || matrices * (down * (down + 1)) >= static_cast<int64_t>(1) << 31)
        return "numbers of rows, columns and tiles fit in 31 bits";
    *g = {};
    g->dtype = a->dtype;
    g->by_rows = !call->attrs.transpose_a;
    g->adds = mz_present(added);
    g->factors[0] = call->attrs.coefficients[0];
    g->factors[1] = call->attrs.coefficients[1];
    g->factors[2] = call->attrs.coefficients[2];
    g->matrices = static_cast<unsigned>(matrices);
    g->tiles = static_cast<unsigned>(down * (down + 1) / 2);
    g->sum = static_cast<int>((inner + L - 1) / L);
    return NULL;
}

static const char *symmetric_prepare(mezzo_device *device, const mz_call *call, mz_prepared *) {
    symmetric_product g;
    const char *reason = symmetric_args(mz_cuda(device), call, &g);
    return reason != NULL ? reason : refusal_of_90a(run_symmetric(mz_cuda(device), g, true));
}

static mezzo_status symmetric_run(mezzo_device *device, const mz_call *call) {
    const mz_tensor *a = mz_in(call, matmul, a), *b = mz_in(call, matmul, b), *added = mz_in(call, matmul, added),
                    *y = mz_out(call, matmul, y);
    symmetric_product g;
    (void)symmetric_args(mz_cuda(device), call, &g);
    const int64_t side = y->shape.dim[y->shape.rank - 1], rows = a->shape.dim[a->shape.rank - 2],
                  cols = a->shape.dim[a->shape.rank - 1];
    g.two = b->data != a->data;
    const bool described = describe(&g.a, g.dtype, a->data, g.matrices, rows, cols) &&
                           describe(&g.b, g.dtype, b->data, g.matrices, rows, cols) &&
                           describe(&g.out, g.dtype, y->data, g.matrices, side, side) &&
                           (!g.adds || describe(&g.added, g.dtype, added->data, g.matrices, side, side));
    MZ_CUDA_TRY(described ? run_symmetric(mz_cuda(device), g, false) : cudaErrorNotSupported);
    return MEZZO_OK;
}
const mz_kernel mz_cuda_matmul_symmetric = {"matmul__cuda_symmetric", symmetric_prepare, symmetric_run};
