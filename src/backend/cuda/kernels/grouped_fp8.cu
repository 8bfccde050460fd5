// Computes the experts' products of 8-bit operands with a scale each, on Hopper's tensor cores (compute capability 9.0
// only). Their instructions want what is summed over contiguous in both operands, so a gradient's operands are
// columnwise. FP32 registers add the pieces of 128 terms; the scales multiply the whole sum.
//
// A block goes through tiles of 128 × 128 results (tile_loop.cuh), of which a warpgroup makes 64 rows. While one
// promotes or stores, the other multiplies, and pieces of the next tile arrive.
// An expert's rows may begin and end anywhere in what is turned, but a piece begins at a multiple of 16 bytes (at
// others TMA is an illegal instruction). What is in a piece in front of an expert's share or after it is another's:
// both operands get zeros there first.
#include "grouped.cuh"
#include "tile_loop.cuh"

namespace {
enum { TILE = 128, L = 128, GROUP_ROWS = 64, OPERAND = TILE * L };
static_assert(WARPGROUP * GROUPS == 2 * TILE, "a thread clears a row of either operand");

// g.a and g.b: y: x [rows, k], w [experts·n, k]; dx: dy [rows, n], w columnwise, [k, experts·n]; dw: dy columnwise, [n,
// rows], x columnwise, [k, rows]. a is E4M3 or E5M2, b E4M3; out FP32, or BF16 of y and dx. Rows of FP8 data begin at
// multiples of 16 bytes; experts' rows may begin anywhere.
struct grouped_fp8_call {
    mz_cu_grouped g;
    const float *a_scale, *b_scale;
};
struct grouped_fp8_args {
    grouped_fp8_call fp8;
    int64_t tiles;
};

// Holds what a tile sums over, `from` … `to` - 1, and where its operands begin.
struct fp8_tile : grouped_place {
    int from, to, others; // the first `others` terms are not the expert's
    int a_row, b_row;     // of the operands' matrices
    int a_col, b_col;
};

template <int OP> __device__ __forceinline__ fp8_tile tile_of(const mz_cu_grouped &g, const grouped_place &t) {
    if (OP == GROUPED_Y)
        return {t, 0, g.k, 0, t.first + t.m0, t.expert * g.n + t.c0, 0, 0};
    if (OP == GROUPED_DX)
        return {t, 0, g.n, 0, t.first + t.m0, t.c0, 0, t.expert * g.n};
    const int others = t.first % 16, begin = t.first - others;
    return {t, 0, t.last > t.first ? t.last - begin : 0, others, t.m0, t.c0, begin, begin};
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__device__ __forceinline__ uint32_t first_bytes(int n) { // of a word
    return n <= 0 ? 0 : n >= 4 ? 0xFFFFFFFFu : (1u << 8 * n) - 1;
}

// In a stage's 256 rows of 128 bytes, makes what is not from `begin` to `end` zeros: a row for each thread of both
// warpgroups. The 16-byte pieces of row r have changed places by exclusive or with r.
__device__ __forceinline__ void keep_only(unsigned char *stage, int begin, int end) {
    const int row = static_cast<int>(threadIdx.x) - WARPGROUP;
#pragma unroll 1
    for (int piece = 0; piece < L / 16; piece++) {
        const int from = begin - piece * 16, to = end - piece * 16; // bytes of the piece
        if (from <= 0 && to >= 16)
            continue;
        uint4 *place = reinterpret_cast<uint4 *>(stage + row * L + (((piece ^ row) & 7) << 4));
        uint4 x = *place;
        x.x &= first_bytes(to) & ~first_bytes(from);
        x.y &= first_bytes(to - 4) & ~first_bytes(from - 4);
        x.z &= first_bytes(to - 8) & ~first_bytes(from - 8);
        x.w &= first_bytes(to - 12) & ~first_bytes(from - 12);
        *place = x;
    }
    async_fence();
    asm volatile("bar.sync 1, %0;" ::"n"(2 * TILE) : "memory"); // both warpgroups
}

// A thread has columns 8·j + 2·(lane % 4), + 1 of rows lane/4 (x[j][0, 1]) and lane/4 + 8 ([2, 3]) of its warp's 16,
// the tile's from m on. n and k are multiples of 16.
template <bool LOW>
__device__ __forceinline__ void store(const mz_cu_grouped &g, int64_t first, int row_length, int m, int rows,
                                      int columns, const float (&x)[16][4]) {
    const int lane = static_cast<int>(threadIdx.x) & 31, quarter = lane & 3;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = m + r * 8 + (lane >> 2);
        const int64_t at = first + static_cast<int64_t>(row) * row_length;
        if constexpr (LOW) { // neighbours change places, so that each has four columns of one j: whole sectors
#pragma unroll
            for (int j = 0; j < 16; j += 2) {
                const uint32_t left = pack<__nv_bfloat16>(x[j][2 * r], x[j][2 * r + 1]);
                const uint32_t right = pack<__nv_bfloat16>(x[j + 1][2 * r], x[j + 1][2 * r + 1]);
                const bool odd = (lane & 1) != 0;
                const uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, odd ? left : right, 1);
                const int c = (j + (odd ? 1 : 0)) * 8 + (quarter >> 1) * 4;
                if (row < rows && c < columns)
                    *reinterpret_cast<uint2 *>(static_cast<uint16_t *>(g.out.data) + at + c) =
                        odd ? make_uint2(other, right) : make_uint2(left, other);
            }
        } else {
            float2 there[16];
#pragma unroll
            for (int j = 0; j < 16; j++) {
                const int c = j * 8 + quarter * 2;
                there[j] = make_float2(0, 0);
                if (g.accumulate && row < rows && c < columns)
                    there[j] = *reinterpret_cast<const float2 *>(static_cast<const float *>(g.out.data) + at + c);
            }
#pragma unroll
            for (int j = 0; j < 16; j++) {
                const int c = j * 8 + quarter * 2;
                if (row < rows && c < columns)
                    *reinterpret_cast<float2 *>(static_cast<float *>(g.out.data) + at + c) =
                        make_float2(there[j].x + x[j][2 * r], there[j].y + x[j][2 * r + 1]);
            }
        }
    }
}

#endif

template <int OP, bool WIDE, bool LOW> struct grouped_fp8 : tile_policy<6> {
    enum { SLOT = 2 * OPERAND, STEP = L };
    enum : bool { CLUSTERED = false };
    using args = grouped_fp8_args;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    static __device__ __forceinline__ bool fetches() {
        return threadIdx.x < 32;
    }
    static __device__ __forceinline__ int readers(int) {
        return WARPS;
    }

    struct walk {
        static constexpr int pieces = 0;
        int64_t index = blockIdx.x, tiles;
        __device__ __forceinline__ walk(const args &g) : tiles(g.tiles) {}
        __device__ __forceinline__ bool more() const { return index < tiles; }
        __device__ __forceinline__ void next() { index += gridDim.x; }
        __device__ __forceinline__ grouped_place find(const args &g) const {
            return grouped_locate<OP, TILE>(g.fp8.g, index);
        }
        __device__ __forceinline__ fp8_tile tile(const args &g, const grouped_place &place) const {
            return tile_of<OP>(g.fp8.g, place);
        }
    };

    struct loads { // a warp's
        const fp8_tile &t;
        __device__ __forceinline__ loads(const args &, const fp8_tile &of, uint32_t) : t(of) {}
        __device__ __forceinline__ void fetch(const tile_maps &maps, int l, const auto &ring) const {
            const uint32_t ready = ring.full(), to = ring.slot();
            if (threadIdx.x == 0) {
                barrier_wait(ring.empty(), ring.parity() ^ 1);
                barrier_expect(ready, 2 * OPERAND);
                fetch_box(to, maps.a, t.a_col + l, t.a_row, ready);
                fetch_box(to + OPERAND, maps.b, t.b_col + l, t.b_row, ready);
            }
            __syncwarp();
        }
    };

    struct warp : tile_warp {
        float a_scale, b_scale;
        __device__ __forceinline__ warp(const args &args, const tile_memory &m) : tile_warp(args, m) {
            a_scale = *args.fp8.a_scale, b_scale = *args.fp8.b_scale;
        }
    };

    struct sums {
        float d[16][4], total[16][4];
        __device__ __forceinline__ sums(const args &, const warp &, const fp8_tile &) {
#pragma unroll
            for (int i = 0; i < 64; i++)
                total[i / 4][i % 4] = d[i / 4][i % 4] = 0;
        }
        __device__ __forceinline__ void multiply(const args &, const warp &w, const fp8_tile &t, int l,
                                                 const auto &ring) {
            const uint32_t place = ring.slot();
            barrier_wait(ring.full(), ring.parity());
            const int first = l == 0 ? t.others : 0;
            if (OP != GROUPED_Y && (first > 0 || t.to - l < L)) // y's x and w end with what is summed over
                keep_only(ring.m.shared + ring.stage() * 2 * OPERAND, first, t.to - l);
            wgmma_ask_e4m3<WIDE>(d, wgmma_operand(place + w.group * (GROUP_ROWS * L), 0),
                                 wgmma_operand(place + OPERAND, 0));
            wgmma_wait<0>();
            wgmma_settle(d);
            if ((threadIdx.x & 31) == 0)
                barrier_arrive(ring.empty());
#pragma unroll
            for (int i = 0; i < 64; i++)
                total[i / 4][i % 4] += d[i / 4][i % 4];
        }
        __device__ __forceinline__ void finish(const args &args, const warp &w, const fp8_tile &t, const auto &) {
            const mz_cu_grouped &g = args.fp8.g;
#pragma unroll
            for (int i = 0; i < 64; i++)
                total[i / 4][i % 4] = total[i / 4][i % 4] * w.a_scale * w.b_scale;
            constexpr bool DW = OP == GROUPED_DW;
            const int row_length = OP == GROUPED_Y ? g.n : g.k;
            const int64_t row = DW ? static_cast<int64_t>(t.expert) * g.n + t.m0 : static_cast<int64_t>(t.first) + t.m0;
            store<LOW>(g, row * row_length + t.c0, row_length, w.group * GROUP_ROWS + w.index * 16,
                       DW ? g.n - t.m0 : t.last - t.first - t.m0, row_length - t.c0, total);
        }
    };
#endif
};

// --- launching -----------------------------------------------------------------------------------------------------
// Boxes of 128 × 128 bytes of a matrix [rows, columns], a row each multiple of 16 bytes.
bool describe(CUtensorMap *map, const void *data, int64_t rows, int64_t columns) {
    return describe_boxes<2>(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, data, {columns, rows}, {(columns + 15) / 16 * 16},
                             {L, TILE});
}

template <int OP, bool WIDE, bool LOW>
cudaError_t run(cudaStream_t stream, const grouped_fp8_call &args, bool prepare) {
    using policy = grouped_fp8<OP, WIDE, LOW>;
    const mz_cu_grouped &g = args.g;
    if (prepare)
        return prepare_tiles<policy>();
    const int64_t tiles = grouped_tiles(g, TILE), n = g.n, k = g.k, matrices = g.experts * n;
    if (tiles == 0)
        return cudaSuccess;
    constexpr bool Y = OP == GROUPED_Y, DW = OP == GROUPED_DW;
    CUtensorMap a, b;
    const bool described = describe(&a, g.a.data, DW ? n : g.rows,
                                    DW  ? g.rows
                                    : Y ? k
                                        : n) &&
                           describe(&b, g.b.data, Y ? matrices : k,
                                    Y    ? k
                                    : DW ? g.rows
                                         : matrices);
    return described ? launch_tiles<policy>(stream, {args, tiles}, a, b, tiles, g.sms) : cudaErrorNotSupported;
}

template <int OP, bool WIDE> cudaError_t of(cudaStream_t stream, const grouped_fp8_call &args, bool prepare) {
    if (args.g.out.dtype == MEZZO_F32)
        return run<OP, WIDE, false>(stream, args, prepare);
    return OP == GROUPED_DW ? cudaErrorInvalidValue : run<OP, WIDE, OP != GROUPED_DW>(stream, args, prepare);
}

cudaError_t run_grouped_fp8(const mz_cuda_device *cuda, const mz_call *call, bool prepare) {
    const grouped_fp8_call args = {grouped_args(cuda, call), call->in[0].scale, call->in[1].scale};
    const bool wide = args.g.a.dtype == MEZZO_F8E5M2;
    return grouped_for_op(args.g,
                          [&]<int OP>() { return (wide ? of<OP, true> : of<OP, false>)(cuda->stream, args, prepare); });
}
} // namespace

static const char *grouped_fp8_prepare(mezzo_device *device, const mz_call *call, mz_prepared *) {
    const bool dw = call->op == MZ_OP_grouped_linear_dw, forward = call->op == MZ_OP_grouped_linear;
    const mz_cuda_device *cuda = mz_cuda(device);
    if (cuda->cc != 90)
        return "is for compute capability 9.0";
    const mz_tensor *a = &call->in[0], *b = &call->in[1], *y = &call->out[0];
    if ((a->dtype != MEZZO_F8E4M3 && a->dtype != MEZZO_F8E5M2) || b->dtype != MEZZO_F8E4M3 ||
        a->scaling != MZ_SCALING_TENSOR || b->scaling != MZ_SCALING_TENSOR)
        return "multiplies e4m3 or e5m2 by e4m3, with a scale each";
    if (a->columnwise != dw || b->columnwise != !forward)
        return "both operands have what is summed over as their last dimension";
    if (y->dtype != MEZZO_F32 && (dw || y->dtype != MEZZO_BF16))
        return "stores fp32, and y and dx in bf16 too";
    if (mz_in(call, grouped_linear, offsets)->dtype != MEZZO_I32 || a->storage.padded || b->storage.padded ||
        y->storage.padded)
        return "offsets are i32, and nothing has padding";
    const mz_cu_grouped g = grouped_args(cuda, call);
    if (g.n % 16 != 0 || g.k % 16 != 0)
        return "rows are no multiples of 16 bytes";
    if (g.rows >= 1 << 30 || static_cast<int64_t>(g.experts) * g.n >= 1 << 30)
        return "2^30 rows, or rows of matrices, or more";
    return refusal_of_90a(run_grouped_fp8(cuda, call, true));
}

static mezzo_status grouped_fp8_run(mezzo_device *device, const mz_call *call) {
    MZ_CUDA_TRY(run_grouped_fp8(mz_cuda(device), call, false));
    return MEZZO_OK;
}
GROUPED_KERNELS(fp8, "_fp8__cuda_wgmma", grouped_fp8_prepare, grouped_fp8_run)
