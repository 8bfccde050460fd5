// Computes products of E4M3 operands with a power of two for every 128 terms of the sum, on Hopper's tensor cores
// (compute capability 9.0 only). These keep about 14 bits of a sum of 8-bit products, so they add up 128 terms at most:
// FP32 registers multiply by both operands' scales and add ("promotion").
//
// A block is a warp that asks for tiles of the operands (TMA) and two warpgroups that make 64 of a tile's 128 rows
// each, 128 of its 256 columns at a time: while one promotes, the other multiplies, where sums are long by turns. Two
// blocks, a cluster, share each tile of b: either fetches half of it for both. Where tiles are too few for the card the
// sum is divided, and a second kernel adds the parts in order.
#include "barrier.cuh"
#include "cluster.cuh"
#include "pdl_launch.cuh"
#include "fp8_block.h"
#include "ptx.cuh"
#include "vec.cuh"
#include "wgmma.cuh"

namespace {
enum { ROWS = 128, COLS = 256, HALF = COLS / 2, L = 128, GROUP_ROWS = 64 }; // L: terms of a piece, a byte each
enum { A_BYTES = ROWS * L, B_BYTES = COLS * L, STAGE = A_BYTES + B_BYTES, STAGES = 4 };
enum { SCALE_BYTES = (ROWS + COLS) * 4 }; // of a stage
enum { GROUPS = 2, THREADS = WARPGROUP * (1 + GROUPS), WARPS = GROUPS * WARPGROUP / 32 };
enum { LINE = 128, STRIP = 16 * LINE }; // of a warp, for its results on their way: a line of each of its rows
enum { AT_STRIPS = STAGES * STAGE, AT_SCALES = AT_STRIPS + WARPS * STRIP };
enum { AT_BARRIERS = AT_SCALES + STAGES * SCALE_BYTES, ALIGN = 1024 };
enum { BYTES = AT_BARRIERS + 2 * STAGES * 8 + ALIGN };
static_assert(BYTES <= 227 * 1024, "shared memory of a block");

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// Tiles are taken in bands of BAND pairs, column by column of a band: as many columns of b as rows of a are read at a
// time. Row by row of long rows, all of b would pass by for two pairs of tiles.
enum { BAND = 8 };
struct work { // of a cluster: a pair of tiles, one below the other, and a share of the sum
    unsigned unit, units, step, tiles, across, down;
    int pieces;
};
struct share {
    int64_t row; // of the cluster's first tile
    int col, split, from, to;
};

__device__ __forceinline__ work work_begin(const mz_cu_fp8_block &g) {
    work w;
    w.across = static_cast<unsigned>((g.cols + COLS - 1) / COLS);
    w.down = static_cast<unsigned>((g.rows + CLUSTER * ROWS - 1) / (CLUSTER * ROWS));
    w.pieces = static_cast<int>((g.inner + L - 1) / L);
    w.tiles = w.down * w.across; // a memory that holds 2³² of them there is not
    w.units = w.tiles * static_cast<unsigned>(g.splits);
    w.unit = blockIdx.x / CLUSTER;
    w.step = gridDim.x / CLUSTER;
    return w;
}

__device__ __forceinline__ share share_of(const mz_cu_fp8_block &g, const work &w) {
    const unsigned split = w.unit / w.tiles, tile = w.unit - split * w.tiles;
    const unsigned first = tile / (BAND * w.across) * BAND, high = min(w.down - first, static_cast<unsigned>(BAND));
    const unsigned of_band = tile - first * w.across, col = of_band / high, row = first + of_band - col * high;
    share s = {static_cast<int64_t>(row) * (CLUSTER * ROWS), static_cast<int>(col) * COLS, static_cast<int>(split)};
    s.from = static_cast<int>(static_cast<int64_t>(w.pieces) * s.split / g.splits);
    s.to = static_cast<int>(static_cast<int64_t>(w.pieces) * (s.split + 1) / g.splits);
    return s;
}

// --- results -------------------------------------------------------------------------------------------------------
// Says at compile time what is added to a product: a choice among formats for each of 64 numbers would take longer
// than the products of several pieces.
enum { NONE = -1, ANY = -2 }; // or a format
template <int BIAS_, int RESIDUAL_> struct addends { static constexpr int BIAS = BIAS_, RESIDUAL = RESIDUAL_; };

// A thread has columns 8·j + 2·(lane % 4), + 1 of rows lane/4 (x[j][0, 1]) and lane/4 + 8 ([2, 3]) of its warp's 16, of
// 128 columns from col on. Here each number goes by itself: rows of any length, and what is added of any format.
template <bool LOW, typename WITH>
__device__ __forceinline__ void finish_each(const mz_cu_fp8_block &g, float *to, int64_t row, int col,
                                            const float (&x)[16][4]) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const bool bias = WITH::BIAS == ANY && g.bias.data != nullptr;
    const bool residual = WITH::RESIDUAL == ANY && g.residual.data != nullptr;
#pragma unroll
    for (int i = 0; i < 64; i++) {
        const int64_t m = row + i % 4 / 2 * 8 + (lane >> 2), c = col + i / 4 * 8 + (lane & 3) * 2 + i % 2;
        if (m >= g.rows || c >= g.cols)
            continue;
        float z = x[i / 4][i % 4];
        if (bias)
            z += load1(g.bias.data, g.bias.dtype, c);
        if (residual)
            z = round_to(z, g.via) + load1(g.residual.data, g.residual.dtype, m * g.cols + c);
        store1(LOW ? g.out.data : to, LOW ? MEZZO_BF16 : MEZZO_F32, m * g.cols + c, z);
    }
}

// Stores columns 64·c … 64·c + 63 of BF16, or 32 of FP32, into the strip. In BF16 16-byte pieces of row i change
// places by exclusive or with i % 8, in FP32 with 2·(i % 4): neither writing nor reading meets a bank twice.
template <bool LOW> __device__ __forceinline__ int moved(int row, int piece) {
    return row * LINE + ((piece ^ (LOW ? row & 7 : (row & 3) * 2)) << 4);
}
template <bool LOW, bool BIAS>
__device__ __forceinline__ void to_strip(uint32_t strip, int lane, const float (&x)[16][4], int c,
                                         const uint32_t (&bias)[16]) {
    constexpr int J = LOW ? 8 : 4; // groups of 8 columns
    const int quarter = lane & 3;
    float v[J][4];
#pragma unroll
    for (int j = 0; j < J; j++) {
        const int of = c * J + j;
        for (int i = 0; i < 4; i++) {
            const float2 two = widen2(bias[of], MEZZO_BF16);
            v[j][i] = BIAS ? x[of][i] + (i % 2 == 0 ? two.x : two.y) : x[of][i];
        }
    }
#pragma unroll
    for (int j = 0; j < J; j += LOW ? 2 : 1) {
        if constexpr (LOW) { // four 8 × 8 of 16 bits
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                             strip + moved<true>(lane & 15, j + (lane >> 4))),
                         "r"(pack<__nv_bfloat16>(v[j][0], v[j][1])), "r"(pack<__nv_bfloat16>(v[j][2], v[j][3])),
                         "r"(pack<__nv_bfloat16>(v[j + 1][0], v[j + 1][1])),
                         "r"(pack<__nv_bfloat16>(v[j + 1][2], v[j + 1][3]))
                         : "memory");
        } else {
#pragma unroll
            for (int half = 0; half < 2; half++)
                asm volatile(
                    "st.shared.v2.f32 [%0], {%1, %2};" ::"r"(
                        strip + moved<false>((lane >> 2) + half * 8, j * 2 + (quarter >> 1)) + (quarter & 1) * 8),
                    "f"(v[j][half * 2]), "f"(v[j][half * 2 + 1])
                    : "memory");
        }
    }
}

__device__ __forceinline__ uint4 from_strip(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}

__device__ __forceinline__ uint32_t add_rounded(uint32_t z, bool rounds, uint32_t residual) {
    const float x = __uint_as_float(z);
    return __float_as_uint((rounds ? round_to(x, MEZZO_BF16) : x) + __uint_as_float(residual));
}

// The same by way of the warp's strip, from which rows come back as whole lines: stored from where the product leaves
// them, eight bytes of eight rows at a time, they would take longer. Rows are multiples of 16 bytes, at addresses
// that are; a bias is BF16, and a residual FP32, as the result.
template <bool LOW, typename WITH>
__device__ __forceinline__ void finish_lines(const mz_cu_fp8_block &g, void *to, int64_t row, int col,
                                             const float (&x)[16][4], uint32_t strip) {
    static_assert(!LOW || WITH::RESIDUAL == NONE, "residuals are FP32, as their sums");
    constexpr int CHUNKS = LOW ? 2 : 4, WIDTH = LOW ? 2 : 4; // of 128 columns; bytes of a number
    int lane = static_cast<int>(threadIdx.x) & 31;
    asm volatile("" : "+r"(lane)); // addresses are found here, not kept in registers while products are made
    const int line = lane >> 3, piece = lane & 7;
    const bool rounds = g.via != MEZZO_F32; // to BF16
    uint32_t bias[16];                      // of two columns each
#pragma unroll
    for (int j = 0; j < 16; j++) {
        const int c = col + j * 8 + (lane & 3) * 2;
        bias[j] = 0;
        if (WITH::BIAS != NONE && c < g.cols)
            bias[j] = __ldg(reinterpret_cast<const uint32_t *>(static_cast<const uint16_t *>(g.bias.data) + c));
    }
    // Row `line` of four that are stored at a time, of 16 bytes from column first on.
    const int64_t first = col + piece * (16 / WIDTH), at = ((row + line) * g.cols + first) * WIDTH;
    const int64_t down = g.cols * 4 * WIDTH;
    const auto within = [&](int c, int i) {
        return row + i * 4 + line < g.rows && first + c * (LINE / WIDTH) < g.cols;
    };
    uint4 residual[2][4]; // two chunks ahead
    const auto ask = [&](int c) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            residual[c % 2][i] = make_uint4(0, 0, 0, 0); // else registers for it would be kept from tile to tile
            if (within(c, i))
                residual[c % 2][i] = *reinterpret_cast<const uint4 *>(static_cast<const char *>(g.residual.data) + at +
                                                                      c * LINE + i * down);
        }
    };
    if constexpr (WITH::RESIDUAL != NONE) {
        ask(0);
        ask(1);
    }
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        __syncwarp(); // what was there before has been read
        to_strip<LOW, WITH::BIAS != NONE>(strip, lane, x, c, bias);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint4 v = from_strip(strip + moved<LOW>(i * 4 + line, piece));
            const uint4 r = residual[c % 2][i];
            if constexpr (WITH::RESIDUAL != NONE)
                v = make_uint4(add_rounded(v.x, rounds, r.x), add_rounded(v.y, rounds, r.y),
                               add_rounded(v.z, rounds, r.z), add_rounded(v.w, rounds, r.w));
            if (within(c, i))
                *reinterpret_cast<uint4 *>(static_cast<char *>(to) + at + c * LINE + i * down) = v;
        }
        if constexpr (WITH::RESIDUAL != NONE)
            if (c + 2 < CHUNKS)
                ask(c + 2);
    }
}

// Parts of a sum have nothing added.
template <bool LOW, bool LINES>
__device__ __forceinline__ void finish(const mz_cu_fp8_block &g, int64_t row, int col, int split,
                                       const float (&x)[16][4], uint32_t strip) {
    float *to = g.splits > 1 ? g.partial + split * g.rows * g.cols : static_cast<float *>(g.out.data);
    const int bias = g.splits > 1 || g.bias.data == nullptr ? NONE : g.bias.dtype;
    const int residual = g.splits > 1 || g.residual.data == nullptr ? NONE : g.residual.dtype;
    if constexpr (LINES) {
        if (bias == NONE && residual == NONE)
            return finish_lines<LOW, addends<NONE, NONE>>(g, to, row, col, x, strip);
        if (bias == MEZZO_BF16 && residual == NONE)
            return finish_lines<LOW, addends<MEZZO_BF16, NONE>>(g, to, row, col, x, strip);
        if constexpr (!LOW) {
            if (bias == NONE && residual == MEZZO_F32 && g.via != MEZZO_F16)
                return finish_lines<LOW, addends<NONE, MEZZO_F32>>(g, to, row, col, x, strip);
            if (bias == MEZZO_BF16 && residual == MEZZO_F32 && g.via != MEZZO_F16)
                return finish_lines<LOW, addends<MEZZO_BF16, MEZZO_F32>>(g, to, row, col, x, strip);
        }
    }
    if (!LINES && bias == NONE && residual == NONE)
        finish_each<LOW, addends<NONE, NONE>>(g, to, row, col, x);
    else
        finish_each<LOW, addends<ANY, ANY>>(g, to, row, col, x);
}

// --- loads ---------------------------------------------------------------------------------------------------------
// By one lane of a warp, whose others go along, so that addresses stay in uniform registers: `now` is set in that lane.
// In a branch of one thread each address went to a uniform register after a vote, and registers were spilled.
__device__ __forceinline__ void expect_if(bool now, uint32_t at, uint32_t bytes) {
    asm volatile("{\n.reg .pred now;\n"
                 "setp.ne.b32 now, %0, 0;\n"
                 "@now mbarrier.arrive.expect_tx.shared::cta.b64 _, [%1], %2;\n}" ::"r"(static_cast<int>(now)),
                 "r"(at), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void fetch_box_if(bool now, uint32_t to, const CUtensorMap *map, int x, int y,
                                             uint32_t barrier) {
    asm volatile("{\n.reg .pred now;\n"
                 "setp.ne.b32 now, %5, 0;\n"
                 "@now cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
                 "[%1, {%2, %3}], [%4];\n}" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(barrier), "r"(static_cast<int>(now))
                 : "memory");
}
__device__ __forceinline__ void fetch_box_for_all_if(bool now, uint32_t to, const CUtensorMap *map, int x, int y,
                                                     uint32_t barrier) {
    asm volatile("{\n.reg .pred now;\n"
                 "setp.ne.b32 now, %6, 0;\n"
                 "@now cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%2, %3}], [%4], %5;\n}" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(static_cast<uint16_t>((1 << CLUSTER) - 1)),
                 "r"(static_cast<int>(now))
                 : "memory");
}
__device__ __forceinline__ void fetch_run_if(bool now, uint32_t to, const void *from, uint32_t bytes,
                                             uint32_t barrier) {
    asm volatile(
        "{\n.reg .pred now;\n"
        "setp.ne.b32 now, %4, 0;\n"
        "@now cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n}" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier), "r"(static_cast<int>(now))
        : "memory");
}

template <bool TILES>
__device__ __forceinline__ void produce(const mz_cu_fp8_block &g, const CUtensorMap *a, const CUtensorMap *b,
                                        uint32_t shared, uint32_t full, uint32_t empty) {
    const int rank = static_cast<int>(block_of_cluster());
    const bool now = (threadIdx.x & 31) == 0;
    uint32_t stage = 0, parity = 1;
    for (work w = work_begin(g); w.unit < w.units; w.unit += w.step) {
        const share s = share_of(g, w);
        const int row = static_cast<int>(s.row) + rank * ROWS, col = s.col + rank * HALF;
        // A cluster's second tile may lie after all rows, and half of b's after all columns: these have no scales.
        const uint32_t of_a = row < g.a_pitch ? ROWS * 4 : 0;
        const uint32_t of_b = TILES ? 0 : (g.b_pitch - s.col < COLS ? HALF : COLS) * 4;
        const float *a_scale = g.a_scale + s.from * g.a_pitch + row, *b_scale = g.b_scale;
        if (!TILES)
            b_scale += s.from * g.b_pitch + s.col;
#pragma unroll 1
        for (int k = s.from; k < s.to; k++) {
            const uint32_t ready = full + stage * 8;
            const uint32_t to = shared + stage * STAGE, scales = shared + AT_SCALES + stage * SCALE_BYTES;
            barrier_wait(empty + stage * 8, parity);
            expect_if(now, ready, STAGE + of_a + of_b);
            fetch_box_if(now, to, a, k * L, row, ready);
            fetch_box_for_all_if(now, to + A_BYTES + rank * (B_BYTES / CLUSTER), b, k * L, col, ready);
            fetch_run_if(now && of_a > 0, scales, a_scale, of_a, ready);
            a_scale += g.a_pitch;
            if (!TILES) {
                fetch_run_if(now, scales + ROWS * 4, b_scale, of_b, ready);
                b_scale += g.b_pitch;
            }
            if (++stage == STAGES)
                stage = 0, parity ^= 1;
        }
    }
}

// --- products ------------------------------------------------------------------------------------------------------
// Products of both warpgroups asked for together end together; then both promote, and nothing multiplies. So with turns
// either asks when the other has asked. Where sums are short, or promotion takes longer than products, they cost more
// than they bring. Barriers 1 and 2 are the turns of groups 0 and 1.
enum { LONG = 16 }; // pieces
__device__ __forceinline__ void turn_wait(bool turns, int group) {
    asm volatile("{\n.reg .pred turns;\n"
                 "setp.ne.b32 turns, %0, 0;\n"
                 "@turns bar.sync %1, %2;\n}" ::"r"(static_cast<int>(turns)),
                 "r"(group + 1), "n"(GROUPS * WARPGROUP)
                 : "memory");
}
__device__ __forceinline__ void turn_pass(bool turns, int group) {
    asm volatile("{\n.reg .pred turns;\n"
                 "setp.ne.b32 turns, %0, 0;\n"
                 "@turns bar.arrive %1, %2;\n}" ::"r"(static_cast<int>(turns)),
                 "r"((group ^ 1) + 1), "n"(GROUPS * WARPGROUP)
                 : "memory");
}

// Asks for d = 64 rows of a times 128 columns of b, 128 terms.
__device__ __forceinline__ void ask_piece(float (&d)[16][4], uint64_t a, uint64_t b) {
    wgmma_begin();
    wgmma_multiply_e4m3<0>(d, a, b);
#pragma unroll
    for (int l = 32; l < L; l += 32)
        wgmma_multiply_e4m3<1>(d, a + (l >> 4), b + (l >> 4));
    wgmma_commit();
}

// Scales of b are loaded before they are needed: those of tiles one piece ahead, those of a thread's columns AHEAD at a
// time, the first of them while products run.
enum { AHEAD = 8 };
__device__ __forceinline__ void tile_scales(const float *of, bool both, int64_t second, float (&v)[2]) {
    v[0] = __ldg(of);
    if (both)
        v[1] = __ldg(of + second);
}
__device__ __forceinline__ float2 column_scales(uint32_t at) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at));
    return v;
}

template <bool TILES, bool LOW, bool LINES>
__device__ __forceinline__ void consume(const mz_cu_fp8_block &g, const unsigned char *shared, uint32_t address,
                                        uint32_t full, uint32_t empty) {
    const int thread = static_cast<int>(threadIdx.x) - WARPGROUP, group = group_of(thread);
    const int warp = thread % WARPGROUP / 32, lane = thread & 31, line = group * GROUP_ROWS + warp * 16 + (lane >> 2);
    const uint32_t rank = block_of_cluster();
    uint32_t count = 0;
    work w = work_begin(g);
    const bool turns = TILES && w.pieces >= LONG;
    bool ready = false;                    // the next stage is known to be
    turn_pass(turns && group == 1, group); // the first turn is the other's
    for (; w.unit < w.units; w.unit += w.step) {
        const share s = share_of(g, w);
        const bool both = s.col + HALF < g.cols; // halves of the tile
        float total[2][16][4], d[16][4];
#pragma unroll
        for (int i = 0; i < 128; i++)
            total[i / 64][i / 4 % 16][i % 4] = 0;
#pragma unroll
        for (int i = 0; i < 64; i++)
            d[i / 4][i % 4] = 0;
        const float *of = g.b_scale + s.from * g.b_step + s.col / HALF * g.b_tile; // TILES
        float next[2] = {0, 0};
        if (TILES)
            tile_scales(of, both, g.b_tile, next);
        for (int k = s.from; k < s.to; k++) {
            const uint32_t stage = count % STAGES, place = address + stage * STAGE;
            const uint32_t right_of = address + AT_SCALES + stage * SCALE_BYTES + ROWS * 4 + (lane & 3) * 8;
            const float *scales = reinterpret_cast<const float *>(shared + AT_SCALES + stage * SCALE_BYTES);
            const float tile[2] = {next[0], next[1]};
            of += g.b_step;
            if (TILES && k + 1 < s.to)
                tile_scales(of, both, g.b_tile, next);
            if (!ready)
                barrier_wait(full + stage * 8, count / STAGES & 1);
            count++;
            const float up = scales[line], down = scales[line + 8]; // of the rows lane/4 and lane/4 + 8
#pragma unroll
            for (int h = 0; h < 2; h++) {
                if (h == 1 && !both)
                    continue;
                turn_wait(turns, group);
                ask_piece(d, wgmma_operand(place + group * (GROUP_ROWS * L), 0),
                          wgmma_operand(place + A_BYTES + h * (HALF * L), 0));
                turn_pass(turns, group);
                float2 right[AHEAD];
#pragma unroll
                for (int j = 0; j < AHEAD; j++)
                    right[j] = TILES ? make_float2(tile[h], tile[h]) : column_scales(right_of + (h * HALF + j * 8) * 4);
                if (h == 1 || !both)
                    ready = barrier_passed(full + count % STAGES * 8, count / STAGES & 1);
                wgmma_wait<0>();
                wgmma_settle(d);
#pragma unroll
                for (int j = 0; j < 16; j++) {
                    const float2 r = right[j % AHEAD];
                    if (!TILES && j + AHEAD < 16)
                        right[j % AHEAD] = column_scales(right_of + (h * HALF + (j + AHEAD) * 8) * 4);
                    total[h][j][0] = fmaf(d[j][0], up * r.x, total[h][j][0]);
                    total[h][j][1] = fmaf(d[j][1], up * r.y, total[h][j][1]);
                    total[h][j][2] = fmaf(d[j][2], down * r.x, total[h][j][2]);
                    total[h][j][3] = fmaf(d[j][3], down * r.y, total[h][j][3]);
                }
            }
            __syncwarp(); // all lanes have read their scales
            if (lane < CLUSTER)
                barrier_arrive_at(empty + stage * 8, static_cast<uint32_t>(lane));
        }
        const int64_t row = s.row + rank * ROWS + group * GROUP_ROWS + warp * 16;
        const uint32_t strip = address + AT_STRIPS + static_cast<uint32_t>(group * (WARPGROUP / 32) + warp) * STRIP;
        finish<LOW, LINES>(g, row, s.col, s.split, total[0], strip);
        if (both)
            finish<LOW, LINES>(g, row, s.col + HALF, s.split, total[1], strip);
    }
    turn_wait(turns && group == 0, group); // the last that was passed
}
#endif

template <bool TILES, bool LOW, bool LINES>
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
        if (__shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0) == 0)
            produce<TILES>(g, &a, &b, first, full, empty);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        consume<TILES, LOW, LINES>(g, fp8_block_shared + (first - begin), first, full, empty);
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

template <bool TILES, bool LOW, bool LINES>
cudaError_t run(cudaStream_t stream, const mz_cu_fp8_block &g, int sms, bool prepare) {
    const auto kernel = fp8_block_kernel<TILES, LOW, LINES>;
    if (prepare)
        return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    CUtensorMap a, b;
    if (!describe(&a, g.a, g.rows, g.inner, g.a_stride) || !describe(&b, g.b, g.cols, g.inner, g.b_stride))
        return cudaErrorNotSupported;
    const int64_t units = pairs_of(g) * g.splits, most = sms / CLUSTER, clusters = units < most ? units : most;
    const cudaError_t error = launch_dependent(stream, kernel, dim3(static_cast<unsigned>(clusters * CLUSTER)),
                                               dim3(THREADS), BYTES, g, a, b);
    if (error != cudaSuccess || g.splits == 1)
        return error;
    return launch_dependent(stream, add_parts_kernel, static_cast<unsigned>((g.rows * g.cols + BLOCK - 1) / BLOCK),
                            BLOCK, 0, g);
}

bool begins_at(const void *data, uintptr_t multiple) {
    return reinterpret_cast<uintptr_t>(data) % multiple == 0;
}

template <bool TILES, bool LOW>
cudaError_t run_either(cudaStream_t stream, const mz_cu_fp8_block &g, int sms, bool prepare) {
    enum { PIECE = 16, TWO = 4 }; // bytes that are stored at a time; two BF16
    const bool lines = g.cols * (LOW ? 2 : 4) % PIECE == 0 && begins_at(g.out.data, PIECE) &&
                       begins_at(g.residual.data, PIECE) && begins_at(g.bias.data, TWO);
    if (lines || prepare) {
        const cudaError_t error = run<TILES, LOW, true>(stream, g, sms, prepare);
        if (!prepare || error != cudaSuccess)
            return error;
    }
    return run<TILES, LOW, false>(stream, g, sms, prepare);
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
    const bool low = g->out.dtype == MEZZO_BF16;
    if (!g->b_tiles)
        return low ? cudaErrorInvalidValue : run_either<false, false>(stream, *g, sms, prepare);
    return low ? run_either<true, true>(stream, *g, sms, prepare) : run_either<true, false>(stream, *g, sms, prepare);
}

extern "C" cudaError_t mz_cu_spread_rows(cudaStream_t stream, const void *from, void *to, int64_t rows, int64_t bytes,
                                         int64_t stride) {
    return launch_dependent(stream, spread_rows_kernel, static_cast<unsigned>((rows * bytes + BLOCK - 1) / BLOCK),
                            BLOCK, 0, static_cast<const uint8_t *>(from), static_cast<uint8_t *>(to), rows, bytes,
                            stride);
}
