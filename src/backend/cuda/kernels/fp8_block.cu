// Products of E4M3 operands with a power of two for every 128 terms of the sum, on Hopper's tensor cores (compute
// capability 9.0 only). These keep about 14 bits of a sum of 8-bit products, so they add up 128 terms at most: FP32
// registers multiply by both operands' scales and add ("promotion").
//
// A block is a thread that asks for tiles of the operands (TMA) and two warpgroups that make 64 of a tile's 128 rows
// each, 128 of its 256 columns at a time: while one promotes, the other multiplies. Two blocks, a cluster, share each
// tile of b: either fetches half of it for both. Where tiles are too few for the card the sum is divided, and a second
// kernel adds the parts in order.
#include "barrier.cuh"
#include "cluster.cuh"
#include "early.cuh"
#include "fp8_block.h"
#include "ptx.cuh"
#include "vec.cuh"
#include "wgmma.cuh"

namespace {
enum { ROWS = 128, COLS = 256, HALF = COLS / 2, L = 128, GROUP_ROWS = 64 }; // L: terms of a piece, a byte each
enum { A_BYTES = ROWS * L, B_BYTES = COLS * L, STAGE = A_BYTES + B_BYTES, STAGES = 4 };
enum { SCALE_BYTES = (ROWS + COLS) * 4 }; // of a stage
enum { GROUPS = 2, THREADS = WARPGROUP * (1 + GROUPS), WARPS = GROUPS * WARPGROUP / 32 };
enum { AT_SCALES = STAGES * STAGE, AT_BARRIERS = AT_SCALES + STAGES * SCALE_BYTES, ALIGN = 1024 };
enum { BYTES = AT_BARRIERS + 2 * STAGES * 8 + ALIGN };
static_assert(BYTES <= 227 * 1024, "shared memory of a block");

struct work { // of a cluster: a pair of tiles, one below the other, and a share of the sum; columns first
    int64_t unit, units, step, tiles;
    int across, pieces;
};
struct share {
    int64_t row; // of the cluster's first tile
    int col, split, from, to;
};

__device__ __forceinline__ work work_begin(const mz_cu_fp8_block &g) {
    work w;
    w.across = static_cast<int>((g.cols + COLS - 1) / COLS);
    w.pieces = static_cast<int>((g.inner + L - 1) / L);
    w.tiles = (g.rows + CLUSTER * ROWS - 1) / (CLUSTER * ROWS) * w.across;
    w.units = w.tiles * g.splits;
    w.unit = blockIdx.x / CLUSTER;
    w.step = gridDim.x / CLUSTER;
    return w;
}

__device__ __forceinline__ share share_of(const mz_cu_fp8_block &g, const work &w) {
    const int64_t tile = w.unit % w.tiles;
    const int split = static_cast<int>(w.unit / w.tiles);
    share s = {tile / w.across * (CLUSTER * ROWS), static_cast<int>(tile % w.across) * COLS, split};
    s.from = static_cast<int>(static_cast<int64_t>(w.pieces) * split / g.splits);
    s.to = static_cast<int>(static_cast<int64_t>(w.pieces) * (split + 1) / g.splits);
    return s;
}

// --- results -------------------------------------------------------------------------------------------------------
// Numbers i and i + 1 of an array; ALIGNED: i is even and its rows are too.
template <bool ALIGNED> __device__ __forceinline__ float2 load2(const mz_cu_array &x, int64_t i, bool second) {
    if (ALIGNED && x.dtype == MZ_CU_F32)
        return *reinterpret_cast<const float2 *>(static_cast<const float *>(x.data) + i);
    if (ALIGNED)
        return widen2(*reinterpret_cast<const uint32_t *>(static_cast<const uint16_t *>(x.data) + i), x.dtype);
    return make_float2(load1(x.data, x.dtype, i), second ? load1(x.data, x.dtype, i + 1) : 0.0f);
}

// What is added to a product, known when this is compiled: with a choice among formats inside, 64 times, a tile's end
// took 7 µs, as long as 8 pieces.
enum { NONE = -1, ANY = -2 }; // or a format
template <int BIAS_, int RESIDUAL_> struct addends { static constexpr int BIAS = BIAS_, RESIDUAL = RESIDUAL_; };

// Numbers i and i + 1 of an array of a known format, or of its own.
template <int FORMAT, bool ALIGNED>
__device__ __forceinline__ float2 addend(const mz_cu_array &x, int64_t i, bool second) {
    if (FORMAT == NONE || (FORMAT == ANY && x.data == nullptr))
        return make_float2(0, 0);
    const mz_cu_array known = {x.data, FORMAT == ANY ? x.dtype : FORMAT};
    return load2<ALIGNED>(known, i, second);
}

// A thread has columns 8·j + 2·(lane % 4), + 1 of rows lane/4 (x[j][0, 1]) and lane/4 + 8 ([2, 3]) of its warp's 16, of
// 128 columns from col on. What is added is asked for before anything is stored.
template <bool LOW, bool ALIGNED, typename WITH>
__device__ __forceinline__ void finish_with(const mz_cu_fp8_block &g, float *to, int64_t row, int col,
                                            const float (&x)[16][4]) {
    const int lane = static_cast<int>(threadIdx.x) & 31, quarter = lane & 3;
    const bool rounds = g.via != MZ_CU_F32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int64_t m = row + r * 8 + (lane >> 2);
        float2 v[16];
#pragma unroll
        for (int j = 0; j < 16; j++) {
            const int64_t c = col + j * 8 + quarter * 2;
            v[j] = make_float2(0, 0);
            if (WITH::RESIDUAL != NONE && m < g.rows && c < g.cols)
                v[j] = addend<WITH::RESIDUAL, ALIGNED>(g.residual, m * g.cols + c, c + 1 < g.cols);
        }
#pragma unroll
        for (int j = 0; j < 16; j++) {
            const int64_t c = col + j * 8 + quarter * 2;
            float2 z = make_float2(x[j][2 * r], x[j][2 * r + 1]);
            if (WITH::BIAS != NONE && c < g.cols) {
                const float2 bias = addend<WITH::BIAS, ALIGNED>(g.bias, c, c + 1 < g.cols);
                z = make_float2(z.x + bias.x, z.y + bias.y);
            }
            if (WITH::RESIDUAL == ANY && g.residual.data != nullptr)
                z = make_float2(round_to(z.x, g.via) + v[j].x, round_to(z.y, g.via) + v[j].y);
            else if (WITH::RESIDUAL >= 0) // `via` is BF16 then, or FP32
                z = make_float2((rounds ? round_to(z.x, MZ_CU_BF16) : z.x) + v[j].x,
                                (rounds ? round_to(z.y, MZ_CU_BF16) : z.y) + v[j].y);
            v[j] = z;
        }
        if constexpr (LOW && ALIGNED) { // neighbours change places, so that each has four columns of one j: whole
                                        // sectors
#pragma unroll
            for (int j = 0; j < 16; j += 2) {
                const uint32_t first = pack<__nv_bfloat16>(v[j].x, v[j].y);
                const uint32_t second = pack<__nv_bfloat16>(v[j + 1].x, v[j + 1].y);
                const bool odd = (lane & 1) != 0;
                const uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, odd ? first : second, 1);
                const int64_t c = col + (j + (odd ? 1 : 0)) * 8 + (quarter >> 1) * 4;
                if (m < g.rows && c < g.cols)
                    *reinterpret_cast<uint2 *>(static_cast<uint16_t *>(g.out.data) + m * g.cols + c) =
                        odd ? make_uint2(other, second) : make_uint2(first, other);
            }
        } else {
#pragma unroll
            for (int j = 0; j < 16; j++) {
                const int64_t c = col + j * 8 + quarter * 2, at = m * g.cols + c;
                if (m >= g.rows || c >= g.cols)
                    continue;
                if (ALIGNED) {
                    *reinterpret_cast<float2 *>(to + at) = v[j];
                    continue;
                }
                store1(LOW ? g.out.data : to, LOW ? MZ_CU_BF16 : MZ_CU_F32, at, v[j].x);
                if (c + 1 < g.cols)
                    store1(LOW ? g.out.data : to, LOW ? MZ_CU_BF16 : MZ_CU_F32, at + 1, v[j].y);
            }
        }
    }
}

// Parts of a sum have nothing added. Only aligned rows have code of their own for what is.
template <bool LOW, bool ALIGNED>
__device__ __forceinline__ void finish(const mz_cu_fp8_block &g, int64_t row, int col, int split,
                                       const float (&x)[16][4]) {
    float *to = static_cast<float *>(g.out.data);
    if (g.splits > 1)
        to = g.partial + split * g.rows * g.cols;
    const int bias = g.splits > 1 || g.bias.data == nullptr ? NONE : g.bias.dtype;
    const int residual = g.splits > 1 || g.residual.data == nullptr ? NONE : g.residual.dtype;
    const bool f16 = g.via == MZ_CU_F16;
    if (bias == NONE && residual == NONE)
        finish_with<LOW, ALIGNED, addends<NONE, NONE>>(g, to, row, col, x);
    else if (ALIGNED && bias == NONE && residual == MZ_CU_F32 && !f16)
        finish_with<LOW, ALIGNED, addends<NONE, MZ_CU_F32>>(g, to, row, col, x);
    else if (ALIGNED && bias == MZ_CU_BF16 && residual == NONE)
        finish_with<LOW, ALIGNED, addends<MZ_CU_BF16, NONE>>(g, to, row, col, x);
    else if (ALIGNED && bias == MZ_CU_BF16 && residual == MZ_CU_F32 && !f16)
        finish_with<LOW, ALIGNED, addends<MZ_CU_BF16, MZ_CU_F32>>(g, to, row, col, x);
    else
        finish_with<LOW, ALIGNED, addends<ANY, ANY>>(g, to, row, col, x);
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// --- loads ---------------------------------------------------------------------------------------------------------
template <bool TILES>
__device__ __forceinline__ void produce(const mz_cu_fp8_block &g, const CUtensorMap *a, const CUtensorMap *b,
                                        uint32_t shared, uint32_t full, uint32_t empty) {
    const uint32_t rank = block_of_cluster();
    uint32_t count = 0;
    for (work w = work_begin(g); w.unit < w.units; w.unit += w.step) {
        const share s = share_of(g, w);
        const int64_t row = s.row + rank * ROWS;
        // A cluster's second tile may lie behind all rows, and half of b's behind all columns: these have no scales.
        const uint32_t of_a = row < g.a_pitch ? ROWS * 4 : 0;
        const uint32_t of_b = TILES ? 0 : (g.b_pitch - s.col < COLS ? HALF : COLS) * 4;
        for (int k = s.from; k < s.to; k++, count++) {
            const uint32_t stage = count % STAGES, ready = full + stage * 8;
            const uint32_t to = shared + stage * STAGE, scales = shared + AT_SCALES + stage * SCALE_BYTES;
            barrier_wait(empty + stage * 8, (count / STAGES & 1) ^ 1);
            barrier_expect(ready, STAGE + of_a + of_b);
            fetch_box(to, a, k * L, static_cast<int>(row), ready);
            fetch_box_for_all(to + A_BYTES + rank * (B_BYTES / CLUSTER), b, k * L,
                              s.col + static_cast<int>(rank) * HALF, ready);
            if (of_a > 0)
                fetch_run(scales, g.a_scale + k * g.a_pitch + row, of_a, ready);
            if (of_b > 0)
                fetch_run(scales + ROWS * 4, g.b_scale + k * g.b_pitch + s.col, of_b, ready);
        }
    }
}

// --- products ------------------------------------------------------------------------------------------------------
// d = 64 rows of a times 128 columns of b, 128 terms.
__device__ __forceinline__ void multiply_piece(float (&d)[16][4], uint64_t a, uint64_t b) {
    wgmma_begin();
    wgmma_multiply_e4m3<0>(d, a, b);
#pragma unroll
    for (int l = 32; l < L; l += 32)
        wgmma_multiply_e4m3<1>(d, a + (l >> 4), b + (l >> 4));
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_settle(d);
}

template <bool TILES, bool LOW, bool ALIGNED>
__device__ __forceinline__ void consume(const mz_cu_fp8_block &g, const unsigned char *shared, uint32_t address,
                                        uint32_t full, uint32_t empty) {
    const int thread = static_cast<int>(threadIdx.x) - WARPGROUP, group = group_of(thread);
    const int warp = thread % WARPGROUP / 32, lane = thread & 31, line = group * GROUP_ROWS + warp * 16 + (lane >> 2);
    const uint32_t rank = block_of_cluster();
    uint32_t count = 0;
    for (work w = work_begin(g); w.unit < w.units; w.unit += w.step) {
        const share s = share_of(g, w);
        const bool both = s.col + HALF < g.cols; // halves of the tile
        float total[2][16][4], d[16][4];
#pragma unroll
        for (int i = 0; i < 128; i++)
            total[i / 64][i / 4 % 16][i % 4] = 0;
#pragma unroll
        for (int i = 0; i < 64; i++)
            d[i / 4][i % 4] = 0;
        for (int k = s.from; k < s.to; k++, count++) {
            const uint32_t stage = count % STAGES, place = address + stage * STAGE;
            const float *scales = reinterpret_cast<const float *>(shared + AT_SCALES + stage * SCALE_BYTES);
            float tile[2] = {0, 0};
            if (TILES) {
                const float *of = g.b_scale + k * g.b_step + s.col / HALF * g.b_tile;
                tile[0] = __ldg(of);
                tile[1] = both ? __ldg(of + g.b_tile) : 0;
            }
            barrier_wait(full + stage * 8, count / STAGES & 1);
            const float up = scales[line], down = scales[line + 8]; // of the rows lane/4 and lane/4 + 8
#pragma unroll
            for (int h = 0; h < 2; h++) {
                if (h == 1 && !both)
                    continue;
                multiply_piece(d, wgmma_operand(place + group * (GROUP_ROWS * L), 0),
                               wgmma_operand(place + A_BYTES + h * (HALF * L), 0));
#pragma unroll
                for (int j = 0; j < 16; j++) {
                    float2 right = make_float2(tile[h], tile[h]);
                    if (!TILES)
                        right = *reinterpret_cast<const float2 *>(scales + ROWS + h * HALF + j * 8 + (lane & 3) * 2);
                    total[h][j][0] = fmaf(d[j][0], up * right.x, total[h][j][0]);
                    total[h][j][1] = fmaf(d[j][1], up * right.y, total[h][j][1]);
                    total[h][j][2] = fmaf(d[j][2], down * right.x, total[h][j][2]);
                    total[h][j][3] = fmaf(d[j][3], down * right.y, total[h][j][3]);
                }
            }
            __syncwarp(); // all lanes have read their scales
            if (lane < CLUSTER)
                barrier_arrive_at(empty + stage * 8, static_cast<uint32_t>(lane));
        }
        const int64_t row = s.row + rank * ROWS + group * GROUP_ROWS + warp * 16;
        finish<LOW, ALIGNED>(g, row, s.col, s.split, total[0]);
        if (both)
            finish<LOW, ALIGNED>(g, row, s.col + HALF, s.split, total[1]);
    }
}
#endif

template <bool TILES, bool LOW, bool ALIGNED>
__global__ void __launch_bounds__(THREADS, 1) IN_CLUSTERS
    fp8_block_kernel(const mz_cu_fp8_block g, const __grid_constant__ CUtensorMap a,
                     const __grid_constant__ CUtensorMap b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ unsigned char fp8_block_shared[];
    const uint32_t begin = shared_address(fp8_block_shared), first = (begin + ALIGN - 1) / ALIGN * ALIGN;
    const uint32_t full = first + AT_BARRIERS, empty = full + STAGES * 8;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(full + s * 8, 1);
            barrier_init(empty + s * 8, CLUSTER * WARPS); // both blocks' warps read what either fetches
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync();
    wait_for_before();
    if (threadIdx.x < WARPGROUP) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0)
            produce<TILES>(g, &a, &b, first, full, empty);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        consume<TILES, LOW, ALIGNED>(g, fp8_block_shared + (first - begin), first, full, empty);
    }
    __syncwarp();
    cluster_sync(); // a block's memory stays while the other may still write to it
#endif
}

enum { BLOCK = 256 };
__global__ void __launch_bounds__(BLOCK) add_parts_kernel(const mz_cu_fp8_block g) {
    wait_for_before();
    const int64_t n = g.rows * g.cols, i = static_cast<int64_t>(blockIdx.x) * BLOCK + threadIdx.x;
    if (i >= n)
        return;
    float x = g.partial[i];
#pragma unroll 4
    for (int s = 1; s < g.splits; s++)
        x += g.partial[s * n + i];
    if (g.residual.data != nullptr)
        x += static_cast<const float *>(g.residual.data)[i];
    static_cast<float *>(g.out.data)[i] = x;
}

// --- rows of any length ----------------------------------------------------------------------------------------------
__global__ void __launch_bounds__(BLOCK)
    spread_rows_kernel(const uint8_t *from, uint8_t *to, int64_t rows, int64_t bytes, int64_t stride) {
    wait_for_before();
    const int64_t i = static_cast<int64_t>(blockIdx.x) * BLOCK + threadIdx.x;
    if (i < rows * bytes)
        to[i / bytes * stride + i % bytes] = from[i];
}

// --- launching -----------------------------------------------------------------------------------------------------
// Boxes of 128 × 128 bytes of a matrix [rows, inner]; what lies outside reads as zeros.
bool describe(CUtensorMap *map, const void *data, int64_t rows, int64_t inner, int64_t stride) {
    const tensor_map_encode encode = find_tensor_map_encode();
    const cuuint64_t sizes[] = {static_cast<cuuint64_t>(inner), static_cast<cuuint64_t>(rows)};
    const cuuint64_t pitch[] = {static_cast<cuuint64_t>(stride)};
    const cuuint32_t box[] = {L, HALF}, steps[] = {1, 1};
    static_assert(ROWS == HALF, "one kind of box");
    return encode != nullptr &&
           encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void *>(data), sizes, pitch, box, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

int64_t pairs_of(const mz_cu_fp8_block &g) {
    return (g.rows + CLUSTER * ROWS - 1) / (CLUSTER * ROWS) * ((g.cols + COLS - 1) / COLS);
}

template <bool TILES, bool LOW, bool ALIGNED>
cudaError_t run(cudaStream_t stream, const mz_cu_fp8_block &g, int sms, bool prepare) {
    const auto kernel = fp8_block_kernel<TILES, LOW, ALIGNED>;
    if (prepare)
        return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    CUtensorMap a, b;
    if (!describe(&a, g.a, g.rows, g.inner, g.a_stride) || !describe(&b, g.b, g.cols, g.inner, g.b_stride))
        return cudaErrorNotSupported;
    const int64_t units = pairs_of(g) * g.splits, most = sms / CLUSTER, clusters = units < most ? units : most;
    const cudaError_t error =
        launch_early(stream, kernel, dim3(static_cast<unsigned>(clusters * CLUSTER)), dim3(THREADS), BYTES, g, a, b);
    if (error != cudaSuccess || g.splits == 1)
        return error;
    return launch_early(stream, add_parts_kernel, static_cast<unsigned>((g.rows * g.cols + BLOCK - 1) / BLOCK), BLOCK,
                        0, g);
}

template <bool TILES, bool LOW>
cudaError_t run_aligned(cudaStream_t stream, const mz_cu_fp8_block &g, int sms, bool prepare) {
    return g.cols % 4 == 0 ? run<TILES, LOW, true>(stream, g, sms, prepare)
                           : run<TILES, LOW, false>(stream, g, sms, prepare);
}
} // namespace

// By rough times in ns: a piece takes 700, two more begin and end a tile, and a part of the sum is written and read.
extern "C" int mz_cu_fp8_block_splits(const mz_cu_fp8_block *g, int sms) {
    enum { MOST = 16, LEAST_PIECES = 4, PIECE = 700, EDGES = 2, LAUNCH = 3000, BYTES_PER_NS = 3000 };
    const int64_t pieces = (g->inner + L - 1) / L, pairs = pairs_of(*g), clusters = sms / CLUSTER;
    int64_t best = 0;
    int splits = 1;
    for (int s = 1; s <= MOST && (s == 1 || pieces / s >= LEAST_PIECES); s++) {
        int64_t time = (pairs * s + clusters - 1) / clusters * ((pieces + s - 1) / s + EDGES) * PIECE;
        if (s > 1)
            time += LAUNCH + 8 * s * g->rows * g->cols / BYTES_PER_NS;
        if (s == 1 || time < best) {
            best = time;
            splits = s;
        }
    }
    return splits;
}

extern "C" cudaError_t mz_cu_fp8_block_run(cudaStream_t stream, const mz_cu_fp8_block *g, int sms, bool prepare) {
#ifndef MZ_CU_90A
    return cudaErrorNoKernelImageForDevice;
#endif
    const bool low = g->out.dtype == MZ_CU_BF16;
    if (!g->b_tiles)
        return low ? cudaErrorInvalidValue : run_aligned<false, false>(stream, *g, sms, prepare);
    return low ? run_aligned<true, true>(stream, *g, sms, prepare) : run_aligned<true, false>(stream, *g, sms, prepare);
}

extern "C" cudaError_t mz_cu_spread_rows(cudaStream_t stream, const void *from, void *to, int64_t rows, int64_t bytes,
                                         int64_t stride) {
    return launch_early(stream, spread_rows_kernel, static_cast<unsigned>((rows * bytes + BLOCK - 1) / BLOCK), BLOCK, 0,
                        static_cast<const uint8_t *>(from), static_cast<uint8_t *>(to), rows, bytes, stride);
}
