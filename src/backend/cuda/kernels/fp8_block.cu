// Computes products of E4M3 operands with a power of two for every 128 terms of the sum, on Hopper's tensor cores
// (compute capability 9.0 only). These keep about 14 bits of a sum of 8-bit products, so they add up 128 terms at most:
// FP32 registers multiply by both operands' scales and add ("promotion").
//
// A block is a warp that asks for tiles of the operands (TMA) and two warpgroups that make 64 of a tile's 128 rows
// each, 128 of its 256 columns at a time: while one promotes, the other multiplies, where sums are long by turns. Two
// blocks, a cluster, share each tile of b: either fetches half of it for both. Where tiles are too few for the card the
// sum is divided, and a second kernel adds the parts in order.
#include "host.cuh"
#include "tile_loop.cuh"
#include "vec.cuh"

namespace {
enum { ROWS = 128, COLS = 256, HALF = COLS / 2, L = 128, GROUP_ROWS = 64 }; // L: terms of a piece, a byte each
enum { A_BYTES = ROWS * L, B_BYTES = COLS * L, STAGE = A_BYTES + B_BYTES, STAGES = 4 };
enum { SCALE_BYTES = (ROWS + COLS) * 4 }; // of a stage
enum { LINE = 128, STRIP = 16 * LINE };   // of a warp, for its results on their way: a line of each of its rows
enum { BAND = 8 };                        // pairs of tiles
enum { AT_STRIPS = STAGES * STAGE, AT_SCALES = AT_STRIPS + WARPS * STRIP };

// out [rows, cols] = residual + round(a [rows, inner]·bᵀ [cols, inner] + bias). The scale of a's row r and terms 128·k
// … 128·k + 127 is a_scale[k·a_pitch + r]; of b's row c it is b_scale[k·b_pitch + c], or b_scale[k·b_step +
// c/128·b_tile] for tiles. Rows of codes begin at multiples of 16 bytes.
struct mz_cu_fp8_block {
    const void *a, *b;
    const float *a_scale, *b_scale;
    int64_t a_pitch, b_pitch;   // of one block's scales: the rows of a and of b, up to a multiple of 128
    int64_t b_step, b_tile;     // tiles
    int64_t a_stride, b_stride; // bytes from row to row of the codes
    bool b_tiles;               // b's scales are of tiles
    int64_t rows, cols, inner;
    mz_cu_array out;            // FP32, BF16
    mz_cu_array bias, residual; // may be absent; the residual may be `out`
    int via;                    // what the sum and its bias are rounded to before the residual is added
    int splits;                 // the sum is divided so often: an FP32 result without bias
    float *partial;             // [splits, rows, cols] where there are two or more
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
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
            store_matrices(strip + moved<true>(lane & 15, j + (lane >> 4)),
                           {pack<__nv_bfloat16>(v[j][0], v[j][1]), pack<__nv_bfloat16>(v[j][2], v[j][3]),
                            pack<__nv_bfloat16>(v[j + 1][0], v[j + 1][1]),
                            pack<__nv_bfloat16>(v[j + 1][2], v[j + 1][3])});
        } else {
#pragma unroll
            for (int half = 0; half < 2; half++)
                store_shared(strip + moved<false>((lane >> 2) + half * 8, j * 2 + (quarter >> 1)) + (quarter & 1) * 8,
                             v[j][half * 2], v[j][half * 2 + 1]);
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
__device__ __forceinline__ void store_half(const mz_cu_fp8_block &g, int64_t row, int col, int split,
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
    asm volatile(MZ_PTX_IF(0, "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%1], %2;")::"r"(static_cast<int>(now)),
                 "r"(at), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void fetch_box_if(bool now, uint32_t to, const CUtensorMap *map, int x, int y,
                                             uint32_t barrier) {
    asm volatile(MZ_PTX_IF(5, "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
                              "[%1, {%2, %3}], [%4];")::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(barrier), "r"(static_cast<int>(now))
                 : "memory");
}
__device__ __forceinline__ void fetch_box_for_all_if(bool now, uint32_t to, const CUtensorMap *map, int x, int y,
                                                     uint32_t barrier) {
    asm volatile(MZ_PTX_IF(6, "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                              ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;")::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(static_cast<uint16_t>((1 << CLUSTER) - 1)),
                 "r"(static_cast<int>(now))
                 : "memory");
}
__device__ __forceinline__ void fetch_run_if(bool now, uint32_t to, const void *from, uint32_t bytes,
                                             uint32_t barrier) {
    asm volatile(MZ_PTX_IF(4, "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
                              "[%3];")::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier), "r"(static_cast<int>(now))
                 : "memory");
}

// --- products ------------------------------------------------------------------------------------------------------
// Products of both warpgroups asked for together end together; then both promote, and nothing multiplies. So with turns
// either asks when the other has asked. Where sums are short, or promotion takes longer than products, they cost more
// than they bring. Barriers 1 and 2 are the turns of groups 0 and 1.
enum { LONG = 16 }; // pieces
__device__ __forceinline__ void turn_wait(bool turns, int group) {
    asm volatile(MZ_PTX_IF(0, "bar.sync %1, %2;")::"r"(static_cast<int>(turns)), "r"(group + 1), "n"(GROUPS * WARPGROUP)
                 : "memory");
}
__device__ __forceinline__ void turn_pass(bool turns, int group) {
    asm volatile(MZ_PTX_IF(0, "bar.arrive %1, %2;")::"r"(static_cast<int>(turns)), "r"((group ^ 1) + 1),
                 "n"(GROUPS * WARPGROUP)
                 : "memory");
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

#endif

template <bool TILES, bool LOW, bool LINES> struct block_policy : tile_policy<STAGES> {
    enum { SLOT = STAGE, BESIDE = WARPS * STRIP + STAGES * SCALE_BYTES };
    enum : bool { UNROLLED = false };
    using args = mz_cu_fp8_block;
    using fetch_stage = stage_by_turns<STAGES>;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using walk = dense_walk<args, ROWS, COLS, L, BAND, true>;
    static __device__ __forceinline__ bool fetches() {
        return __shfl_sync(0xFFFFFFFFu, threadIdx.x / 32, 0) == 0;
    }
    static __device__ __forceinline__ int readers(int) {
        return CLUSTER * WARPS;
    } // of both blocks

    struct loads {
        const mz_cu_fp8_block &g;
        int rank, row, col;
        // A cluster's second tile may lie after all rows, and half of b's after all columns: these have no scales.
        uint32_t of_a, of_b;
        const float *a_scale, *b_scale;
        bool now = (threadIdx.x & 31) == 0;
        __device__ __forceinline__ loads(const mz_cu_fp8_block &args, const tile_share &s, uint32_t block)
            : g(args), rank(static_cast<int>(block)) {
            const int first = static_cast<int>(s.right) * COLS;
            row = static_cast<int>(s.down * (CLUSTER * ROWS)) + rank * ROWS, col = first + rank * HALF;
            of_a = row < g.a_pitch ? ROWS * 4 : 0;
            of_b = TILES ? 0 : (g.b_pitch - first < COLS ? HALF : COLS) * 4;
            a_scale = g.a_scale + s.from * g.a_pitch + row, b_scale = g.b_scale;
            if (!TILES)
                b_scale += s.from * g.b_pitch + first;
        }
        __device__ __forceinline__ void fetch(const tile_maps &maps, int k, const auto &ring) {
            const uint32_t ready = ring.full(), to = ring.slot();
            const uint32_t scales = ring.m.address + AT_SCALES + ring.stage() * SCALE_BYTES;
            barrier_wait(ring.empty(), ring.parity() ^ 1);
            expect_if(now, ready, STAGE + of_a + of_b);
            fetch_box_if(now, to, maps.a, k * L, row, ready);
            fetch_box_for_all_if(now, to + A_BYTES + rank * (B_BYTES / CLUSTER), maps.b, k * L, col, ready);
            fetch_run_if(now && of_a > 0, scales, a_scale, of_a, ready);
            a_scale += g.a_pitch;
            if (!TILES) {
                fetch_run_if(now, scales + ROWS * 4, b_scale, of_b, ready);
                b_scale += g.b_pitch;
            }
        }
    };

    struct warp : tile_warp {
        int line;
        bool turns, ready = false; // ready: the next stage is known to be full
        __device__ __forceinline__ warp(const mz_cu_fp8_block &g, const tile_memory &m) : tile_warp(g, m) {
            line = group * GROUP_ROWS + index * 16 + (lane >> 2);
            turns = TILES && static_cast<int>((g.inner + L - 1) / L) >= LONG;
            turn_pass(turns && group == 1, group); // the first turn is the other's
        }
        __device__ __forceinline__ void end() const {
            turn_wait(turns && group == 0, group);
        } // the last that was passed
    };

    struct sums {
        float d[16][4], total[2][16][4];
        bool both; // halves of the tile
        const float *of;
        float next[2];
        __device__ __forceinline__ sums(const mz_cu_fp8_block &g, const warp &, const tile_share &s) {
            const int col = static_cast<int>(s.right) * COLS;
            both = col + HALF < g.cols;
#pragma unroll
            for (int i = 0; i < 128; i++)
                total[i / 64][i / 4 % 16][i % 4] = 0;
#pragma unroll
            for (int i = 0; i < 64; i++)
                d[i / 4][i % 4] = 0;
            of = g.b_scale + s.from * g.b_step + col / HALF * g.b_tile; // TILES
            next[0] = next[1] = 0;
            if (TILES)
                tile_scales(of, both, g.b_tile, next);
        }
        __device__ __forceinline__ void multiply(const mz_cu_fp8_block &g, warp &w, const tile_share &s, int k,
                                                 const auto &ring) {
            const uint32_t stage = ring.stage(), place = ring.slot();
            const uint32_t right_of = w.memory.address + AT_SCALES + stage * SCALE_BYTES + ROWS * 4 + (w.lane & 3) * 8;
            const float *scales = reinterpret_cast<const float *>(w.memory.shared + AT_SCALES + stage * SCALE_BYTES);
            const float tile[2] = {next[0], next[1]};
            of += g.b_step;
            if (TILES && k + 1 < s.to)
                tile_scales(of, both, g.b_tile, next);
            if (!w.ready)
                barrier_wait(ring.full(), ring.parity());
            auto after = ring;
            after.advance();
            const float up = scales[w.line], down = scales[w.line + 8]; // of the rows lane/4 and lane/4 + 8
#pragma unroll
            for (int h = 0; h < 2; h++) {
                if (h == 1 && !both)
                    continue;
                turn_wait(w.turns, w.group);
                wgmma_ask_e4m3(d, wgmma_operand(place + w.group * (GROUP_ROWS * L), 0),
                               wgmma_operand(place + A_BYTES + h * (HALF * L), 0));
                turn_pass(w.turns, w.group);
                float2 right[AHEAD];
#pragma unroll
                for (int j = 0; j < AHEAD; j++)
                    right[j] = TILES ? make_float2(tile[h], tile[h]) : column_scales(right_of + (h * HALF + j * 8) * 4);
                if (h == 1 || !both)
                    w.ready = barrier_passed(after.full(), after.parity());
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
            if (w.lane < CLUSTER)
                barrier_arrive_at(ring.empty(), static_cast<uint32_t>(w.lane));
        }
        __device__ __forceinline__ void finish(const mz_cu_fp8_block &g, const warp &w, const tile_share &s,
                                               const auto &) {
            const int64_t row =
                static_cast<int64_t>(s.down) * (CLUSTER * ROWS) + w.rank * ROWS + w.group * GROUP_ROWS + w.index * 16;
            const int col = static_cast<int>(s.right) * COLS;
            const uint32_t strip =
                w.memory.address + AT_STRIPS + static_cast<uint32_t>(w.group * (WARPGROUP / 32) + w.index) * STRIP;
            store_half<LOW, LINES>(g, row, col, s.split, total[0], strip);
            if (both)
                store_half<LOW, LINES>(g, row, col + HALF, s.split, total[1], strip);
        }
    };
#endif
};

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
cudaError_t spread_rows(cudaStream_t stream, const void *from, void *to, int64_t rows, int64_t bytes, int64_t stride) {
    return launch_dependent(stream, spread_rows_kernel, static_cast<unsigned>((rows * bytes + BLOCK - 1) / BLOCK),
                            BLOCK, 0, static_cast<const uint8_t *>(from), static_cast<uint8_t *>(to), rows, bytes,
                            stride);
}

// --- launching -----------------------------------------------------------------------------------------------------
// Boxes of 128 × 128 bytes of a matrix [rows, inner].
bool describe(CUtensorMap *map, const void *data, int64_t rows, int64_t inner, int64_t stride) {
    static_assert(ROWS == HALF, "one kind of box");
    return describe_boxes<2>(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, data, {inner, rows}, {stride}, {L, HALF});
}

template <bool TILES, bool LOW, bool LINES>
cudaError_t run(cudaStream_t stream, const mz_cu_fp8_block &g, int sms, bool prepare) {
    using policy = block_policy<TILES, LOW, LINES>;
    if (prepare)
        return prepare_tiles<policy>();
    CUtensorMap a, b;
    if (!describe(&a, g.a, g.rows, g.inner, g.a_stride) || !describe(&b, g.b, g.cols, g.inner, g.b_stride))
        return cudaErrorNotSupported;
    const cudaError_t error =
        launch_tiles<policy>(stream, g, a, b, count_pairs<ROWS, COLS>(g.rows, g.cols) * g.splits, sms);
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

cudaError_t run_block(const mz_cuda_device *cuda, const mz_cu_fp8_block &g, bool prepare) {
    const bool low = g.out.dtype == MEZZO_BF16;
    if (!g.b_tiles)
        return low ? cudaErrorInvalidValue : run_either<false, false>(cuda->stream, g, cuda->sms, prepare);
    return (low ? run_either<true, true> : run_either<true, false>)(cuda->stream, g, cuda->sms, prepare);
}
} // namespace

// --- calls ---------------------------------------------------------------------------------------------------------
// Both operands have what is summed over as their last dimension:
//   linear     y [M, N]  = x (M×K, blocks) · wᵀ (N×K, tiles)
//   linear_dx  dx [M, K] = dy (M×N, blocks) · w (K×N, columnwise, tiles)
//   linear_dw  dw [N, K] = dyᵀ (N×M, columnwise, blocks) · x (K×M, columnwise, blocks)
// Rows of FP8 data that do not begin at multiples of 16 bytes are spread in the workspace first; columnwise ones do.
enum { STRIDE = 16 };

struct route {
    mz_cu_fp8_block g;      // without addresses
    bool spread[2], finish; // an own kernel finishes an FP32 product
    size_t at[2], at_result, at_partial, at_sums, bytes;
};

// Checks an operand, whose blocks are along the summed dimension; a weight has scales of tiles.
static const char *check_operand(const mz_tensor *t, mz_scaling scaling, bool columnwise) {
    if (t->dtype != MEZZO_F8E4M3 || t->scaling != scaling)
        return "multiplies e4m3 in blocks of 128, weights in tiles of 128 by 128";
    return t->columnwise == columnwise ? NULL : "both operands have what is summed over as their last dimension";
}

static const char *set_product(const mz_cuda_device *cuda, const mz_call *call, route *r) {
    const bool dw = call->op == MZ_OP_linear_dw, dx = call->op == MZ_OP_linear_dx;
    const mz_scaling second = dw ? MZ_SCALING_BLOCK128 : MZ_SCALING_TILE128;
    const mz_shape *w = dw ? &call->out[0].shape : &call->in[1].shape; // [N, K]
    const char *reason = check_operand(&call->in[0], MZ_SCALING_BLOCK128, dw);
    if (reason == NULL)
        reason = check_operand(&call->in[1], second, dw || dx);
    if (reason != NULL)
        return reason;
    if (cuda->cc != 90)
        return "is for compute capability 9.0";
    const int64_t n = w->dim[0], k = w->dim[1];
    const int64_t m = mz_shape_count(&call->in[0].shape) / (call->op == MZ_OP_linear ? k : n);
    if (m >= static_cast<int64_t>(1) << 30 || n >= static_cast<int64_t>(1) << 30 || k >= static_cast<int64_t>(1) << 30)
        return "rows of a matrix fit in 30 bits";
    *r = {.g = {.rows = dw ? n : m, .cols = dx || dw ? k : n, .inner = dw ? m : dx ? n : k, .splits = 1}};
    mz_cu_fp8_block *g = &r->g;
    g->a_pitch = mz_scale_pitch(g->rows), g->b_pitch = mz_scale_pitch(g->cols);
    g->b_tiles = !dw;
    const int64_t across = mz_scale_pitch(k) / MZ_SCALE_BLOCK; // tiles next to each other in w
    g->b_step = dx ? across : 1, g->b_tile = dx ? 1 : across;
    g->a_stride = g->b_stride = static_cast<int64_t>(mz_align_up(static_cast<size_t>(g->inner), STRIDE));
    const int64_t rows[2] = {g->rows, g->cols};
    for (int i = 0; i < 2; i++) {
        r->spread[i] = g->a_stride != g->inner && !call->in[i].columnwise;
        r->at[i] = r->spread[i] ? mz_cuda_place(&r->bytes, static_cast<size_t>(rows[i] * g->a_stride)) : 0;
    }
    return NULL;
}

// Chooses what stores the product: the kernel itself, or another one after it.
static const char *set_result(const mz_call *call, route *r) {
    const bool forward = call->op == MZ_OP_linear;
    const mz_tensor *y = &call->out[0], *bias = &call->in[2], *residual = &call->in[3];
    if (forward && ((mz_present(bias) && !mz_cuda_float(bias)) || (mz_present(residual) && !mz_cuda_float(residual))))
        return "bias and residual are fp32, bf16 or fp16";
    if (!mz_cuda_float(y))
        return "writes fp32, bf16 and fp16";
    r->finish = y->dtype == MEZZO_F16 || call->attrs.act != MZ_ACT_NONE;
    if (forward)
        r->finish = r->finish || mz_present(&call->out[1]) || (mz_present(residual) && residual->dtype == MEZZO_F16);
    else
        r->finish = y->dtype == MEZZO_F16 || mz_present(&call->in[2]);
    r->g.out.dtype = r->finish ? MEZZO_F32 : static_cast<int>(y->dtype);
    if (r->finish)
        r->at_result = mz_cuda_place(&r->bytes, static_cast<size_t>(r->g.rows * r->g.cols) * sizeof(float));
    return NULL;
}

static const char *set_route(const mz_cuda_device *cuda, const mz_call *call, route *r) {
    const bool dw = call->op == MZ_OP_linear_dw, dx = call->op == MZ_OP_linear_dx;
    const mz_tensor *sums = &call->out[1]; // of the gradients; forward has none there
    const char *reason = set_product(cuda, call, r);
    if (reason == NULL && !dw)
        reason = set_result(call, r);
    if (reason != NULL)
        return reason;
    if ((dw && call->out[0].dtype != MEZZO_F32) || (dx && mz_present(sums) && sums->dtype != MEZZO_F32))
        return "gradients are fp32";
    if (dw && mz_present(sums))
        return "a bias's gradient is not summed from 8 bits";
    if (dx && mz_present(sums))
        r->at_sums = mz_cuda_place(&r->bytes, mz_cu_column_sums_bytes(r->g.rows, r->g.cols));
    if (dw) {
        r->g.out.dtype = MEZZO_F32;
        r->g.splits = choose_splits(count_pairs<ROWS, COLS>(r->g.rows, r->g.cols), (r->g.inner + L - 1) / L,
                                    r->g.rows * r->g.cols, cuda->sms, {700, 3000, 3000});
    }
    if (r->g.splits > 1)
        r->at_partial =
            mz_cuda_place(&r->bytes, static_cast<size_t>(r->g.splits * r->g.rows * r->g.cols) * sizeof(float));
    return refusal_of_90a(run_block(cuda, r->g, true));
}

static const char *prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    route *r = static_cast<route *>(out->state = mz_alloc(1, sizeof *r));
    if (r == NULL)
        return mz_out_of_memory;
    const char *reason = set_route(mz_cuda(device), call, r);
    out->workspace = r->bytes;
    return reason;
}

// --- running -------------------------------------------------------------------------------------------------------
static mezzo_status run_call(mezzo_device *device, const mz_call *call) {
    const mz_cuda_device *cuda = mz_cuda(device);
    const bool forward = call->op == MZ_OP_linear, dx = call->op == MZ_OP_linear_dx;
    const route *r = static_cast<const route *>(call->state);
    char *workspace = static_cast<char *>(call->workspace);
    const void *fp8[2];
    mz_cu_fp8_block g = r->g;
    for (int i = 0; i < 2; i++) {
        fp8[i] = r->spread[i] ? workspace + r->at[i] : call->in[i].data;
        if (r->spread[i])
            MZ_CUDA_TRY(spread_rows(cuda->stream, call->in[i].data, workspace + r->at[i], i == 0 ? g.rows : g.cols,
                                    g.inner, g.a_stride));
    }
    g.a = fp8[0], g.b = fp8[1];
    g.a_scale = call->in[0].scale, g.b_scale = call->in[1].scale;
    g.out.data = r->finish ? workspace + r->at_result : call->out[0].data;
    g.via = MEZZO_F32;
    g.partial = g.splits > 1 ? reinterpret_cast<float *>(workspace + r->at_partial) : NULL;
    if (forward && !r->finish) {
        g.bias = mz_cuda_array(mz_in(call, linear, bias));
        g.residual = mz_cuda_array(mz_in(call, linear, residual));
        g.via = static_cast<int>(call->attrs.via);
    }
    if (!forward && !dx && call->attrs.accumulate)
        g.residual = g.out;
    MZ_CUDA_TRY(run_block(cuda, g, false));
    if (dx)
        return mz_cuda_finish_dx(mz_cuda(device), call, r->finish ? g.out.data : NULL, g.rows, g.cols,
                                 workspace + r->at_sums);
    if (r->finish) {
        const mz_cu_epilogue e = mz_cuda_linear_epilogue(call, g.out, g.rows, g.cols);
        MZ_CUDA_TRY(mz_cu_linear_epilogue(cuda->stream, &e));
    }
    return MEZZO_OK;
}

const mz_kernel mz_cuda_linear_block = {"linear_fp8_block__cuda_wgmma", prepare, run_call};
const mz_kernel mz_cuda_linear_dx_block = {"linear_dx_fp8_block__cuda_wgmma", prepare, run_call};
const mz_kernel mz_cuda_linear_dw_block = {"linear_dw_fp8_block__cuda_wgmma", prepare, run_call};
