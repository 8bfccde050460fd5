// What kernels of the experts' products share: the call's description, the rows, the matrix and the results of a tile,
// stores.
//
// Each of the three is out[m, c] = Σ_l a[m, l]·b[c, l] for one expert's rows r and its matrix w[e] [n, k]:
//   y   m = r, c = n, l = k    a = x   b = w[e]                  l is contiguous in both
//   dx  m = r, c = k, l = n    a = dy  b = w[e]                  contiguous in a, strided in b
//   dw  m = n, c = k, l = r    a = dy  b = x    out = dw[e]      strided in both
// Where an expert's rows begin is read from the device. The grid has as many tiles as there could be, whichever expert
// has the rows: of y and dx at most one an expert more than the rows fill; blocks without one leave.
#ifndef MZ_GROUPED_CUH
#define MZ_GROUPED_CUH

#include "host.cuh"
#include "ptx.cuh"

// x [rows, k], w [experts, n, k], y [rows, n]; rows offsets[e] … offsets[e + 1] - 1 are expert e's.
enum { GROUPED_Y, GROUPED_DX, GROUPED_DW };
struct mz_cu_grouped {
    int op;
    mz_cu_array a, b, out; // y: x, w, y; dx: dy, w, dx; dw: dy, x, dw
    const int32_t *offsets;
    int64_t rows;
    int experts, n, k;
    int compute;     // what operands are rounded to
    bool accumulate; // dw: add to what is there
    bool parts;      // wgmma: a and b are three BF16 arrays consecutively, as mz_cu_fp32_split writes them
    bool vectors;    // FMA: rows are multiples of 16 bytes
    int sms, shared_optin;
};

// --- calls ---------------------------------------------------------------------------------------------------------
// The host knows the sizes; only the device knows the experts' shares of the rows.
inline mz_cu_grouped grouped_args(const mz_cuda_device *cuda, const mz_call *call) {
    const bool dw = call->op == MZ_OP_grouped_linear_dw;
    const mz_shape *matrix = dw ? &call->out[0].shape : &call->in[1].shape; // [E, N, K]
    return {.op = dw                                 ? GROUPED_DW
                  : call->op == MZ_OP_grouped_linear ? GROUPED_Y
                                                     : GROUPED_DX,
            .a = mz_cuda_array(&call->in[0]),
            .b = mz_cuda_array(&call->in[1]),
            .out = mz_cuda_array(&call->out[0]),
            .offsets = static_cast<const int32_t *>(mz_in(call, grouped_linear, offsets)->data),
            .rows = call->in[0].shape.dim[0],
            .experts = static_cast<int>(matrix->dim[0]),
            .n = static_cast<int>(matrix->dim[1]),
            .k = static_cast<int>(matrix->dim[2]),
            .compute = static_cast<int>(call->numerics.compute),
            .accumulate = dw && call->attrs.accumulate,
            .sms = cuda->sms,
            .shared_optin = cuda->shared_optin};
}

inline const char *grouped_refusal(const mz_call *call) {
    const char *reason = mz_cuda_storages(call, "aai", call->op == MZ_OP_grouped_linear_dw ? "f" : "a");
    if (reason != NULL)
        return reason;
    const mz_shape *matrix = call->op == MZ_OP_grouped_linear_dw ? &call->out[0].shape : &call->in[1].shape;
    if (matrix->dim[0] >= 1 << 24 || matrix->dim[1] >= 1 << 24 || matrix->dim[2] >= 1 << 24 ||
        call->in[0].shape.dim[0] >= 1 << 30)
        return "2^24 experts, rows or columns of a matrix, or 2^30 rows, or more";
    const mezzo_dtype compute = call->numerics.compute;
    if (compute != MEZZO_F32 && compute != MEZZO_TF32 && compute != MEZZO_BF16 && compute != MEZZO_F16)
        return "computes in fp32, tf32, bf16 and fp16";
    return NULL;
}

// The three kernels of kernels.def that one prepare and one run serve; KIND and NAME end their names there and in
// lists.
#define GROUPED_KERNELS(KIND, NAME, prepare, run)                                                                      \
    const mz_kernel mz_cuda_grouped_linear_##KIND = {"grouped_linear" NAME, prepare, run};                             \
    const mz_kernel mz_cuda_grouped_linear_dx_##KIND = {"grouped_linear_dx" NAME, prepare, run};                       \
    const mz_kernel mz_cuda_grouped_linear_dw_##KIND = {"grouped_linear_dw" NAME, prepare, run};

// --- tiles ---------------------------------------------------------------------------------------------------------

template <int OP> struct grouped_layout {
    static constexpr bool A_CONTIGUOUS = OP != GROUPED_DW, B_CONTIGUOUS = OP == GROUPED_Y;
};

struct grouped_tile {
    int64_t a, b, out;         // elements from the tensors' beginnings to what the tile begins with, at l = 0
    int a_row, b_row, out_row; // pitches, in elements
    int m, c, l;               // what is left of each, from the tile's beginning
    bool any;
};

struct grouped_place { // of a tile: its expert, whose rows are first … last - 1, and its first result
    int expert, first, last, m0, c0;
    bool any;
};

// Whole-warp: every warp of the block finds the tile by itself.
template <int OP, int TILE>
__device__ __forceinline__ grouped_place grouped_locate(const mz_cu_grouped &g, int64_t tile) {
    grouped_place t;
    int lane = static_cast<int>(threadIdx.x) & 31, columns = OP == GROUPED_Y ? g.n : g.k;
    int across = (columns + TILE - 1) / TILE;
    int64_t index = tile / across;
    int m0 = 0, expert = 0, first = 0, last = 0;
    t.any = true;
    if (OP == GROUPED_DW) {
        int down = (g.n + TILE - 1) / TILE;
        expert = static_cast<int>(index / down);
        m0 = static_cast<int>(index % down) * TILE;
        first = g.offsets[expert];
        last = g.offsets[expert + 1];
    } else {
        t.any = false;
        for (int from = 0; from < g.experts && !t.any; from += 32) {
            int e = from + lane, begin = e < g.experts ? g.offsets[e] : 0, end = e < g.experts ? g.offsets[e + 1] : 0;
            int tiles = (end - begin + TILE - 1) / TILE, sum = tiles;
#pragma unroll
            for (int step = 1; step < 32; step <<= 1) {
                int other = __shfl_up_sync(0xFFFFFFFFu, sum, step);
                sum += lane >= step ? other : 0;
            }
            unsigned reached = __ballot_sync(0xFFFFFFFFu, sum > index);
            int at = reached != 0 ? __ffs(static_cast<int>(reached)) - 1 : 31;
            int before = __shfl_sync(0xFFFFFFFFu, sum - tiles, at);
            first = __shfl_sync(0xFFFFFFFFu, begin, at);
            last = __shfl_sync(0xFFFFFFFFu, end, at);
            expert = from + at;
            t.any = reached != 0;
            if (t.any)
                m0 = static_cast<int>(index - before) * TILE;
            else
                index -= __shfl_sync(0xFFFFFFFFu, sum, 31);
        }
    }
    t.expert = expert, t.first = first, t.last = last;
    t.m0 = m0, t.c0 = static_cast<int>(tile % across) * TILE;
    return t;
}

template <int OP, int TILE> __device__ __forceinline__ grouped_tile grouped_find(const mz_cu_grouped &g) {
    const grouped_place p = grouped_locate<OP, TILE>(g, blockIdx.x);
    const int first = p.first, last = p.last, m0 = p.m0, c0 = p.c0;
    int64_t matrix = static_cast<int64_t>(p.expert) * g.n * g.k, row = static_cast<int64_t>(first) + m0;
    grouped_tile t;
    t.any = p.any;
    if (OP == GROUPED_Y) {
        t.a_row = t.b_row = g.k, t.out_row = g.n;
        t.a = row * g.k, t.b = matrix + static_cast<int64_t>(c0) * g.k, t.out = row * g.n + c0;
        t.m = last - first - m0, t.c = g.n - c0, t.l = g.k;
    } else if (OP == GROUPED_DX) {
        t.a_row = g.n, t.b_row = t.out_row = g.k;
        t.a = row * g.n, t.b = matrix + c0, t.out = row * g.k + c0;
        t.m = last - first - m0, t.c = g.k - c0, t.l = g.n;
    } else {
        t.a_row = g.n, t.b_row = t.out_row = g.k;
        t.a = static_cast<int64_t>(first) * g.n + m0, t.b = static_cast<int64_t>(first) * g.k + c0;
        t.out = matrix + static_cast<int64_t>(m0) * g.k + c0;
        t.m = g.n - m0, t.c = g.k - c0, t.l = last - first;
    }
    return t;
}

// Stores a warp's results from (m0, c0) of the tile on, as matrix instructions leave them: of each 16 × 8, thread l
// holds columns 2·(l % 4), + 1 of rows l/4 (0, 1) and l/4 + 8 (2, 3).
template <int I, int J>
__device__ __forceinline__ void store_fp32(const mz_cu_grouped &g, const grouped_tile &t, int m0, int c0,
                                           const float (&sum)[I][J][4]) {
    int lane = static_cast<int>(threadIdx.x) & 31;
    float *out = static_cast<float *>(g.out.data) + t.out;
#pragma unroll
    for (int i = 0; i < I; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int m = m0 + i * 16 + r * 8 + (lane >> 2);
            if (m >= t.m)
                continue;
#pragma unroll
            for (int j = 0; j < J; j++) {
                int c = c0 + j * 8 + (lane & 3) * 2;
                if (c >= t.c)
                    continue;
                float2 *to = reinterpret_cast<float2 *>(out + static_cast<int64_t>(m) * t.out_row + c);
                float2 x = make_float2(sum[i][j][2 * r], sum[i][j][2 * r + 1]);
                if (g.accumulate) {
                    float2 there = *to;
                    x.x += there.x;
                    x.y += there.y;
                }
                *to = x;
            }
        }
}
// The same in 16 bits through shared memory of the warp's own, so that whole pieces of 16 bytes are written.
template <typename T, int I, int J>
__device__ __forceinline__ void store_low(const mz_cu_grouped &g, const grouped_tile &t, int m0, int c0, T *staging,
                                          const float (&sum)[I][J][4]) {
    constexpr int PITCH = J * 8 + 8;
    int lane = static_cast<int>(threadIdx.x) & 31;
    T *out = static_cast<T *>(g.out.data) + t.out;
#pragma unroll
    for (int i = 0; i < I; i++)
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int j = 0; j < J; j++)
                *reinterpret_cast<uint32_t *>(staging + (i * 16 + r * 8 + (lane >> 2)) * PITCH + j * 8 +
                                              (lane & 3) * 2) = pack<T>(sum[i][j][2 * r], sum[i][j][2 * r + 1]);
    __syncwarp();
#pragma unroll
    for (int i = lane; i < I * 16 * J; i += 32) {
        int row = i / J, column = i % J * 8, m = m0 + row, c = c0 + column;
        if (m < t.m && c < t.c)
            *reinterpret_cast<uint4 *>(out + static_cast<int64_t>(m) * t.out_row + c) =
                *reinterpret_cast<const uint4 *>(staging + row * PITCH + column);
    }
}

// The most tiles that there could be.
inline int64_t grouped_tiles(const mz_cu_grouped &g, int64_t tile) {
    int64_t across = ((g.op == GROUPED_Y ? g.n : g.k) + tile - 1) / tile;
    if (g.op == GROUPED_DW)
        return g.experts * across * ((g.n + tile - 1) / tile);
    int64_t most = g.rows / tile + g.experts; // each expert's last tile may be cut
    return across * (most < g.rows ? most : g.rows);
}

// Calls run<OP>().
template <class F> auto grouped_for_op(const mz_cu_grouped &g, F run) {
    return g.op == GROUPED_Y    ? run.template operator()<GROUPED_Y>()
           : g.op == GROUPED_DX ? run.template operator()<GROUPED_DX>()
                                : run.template operator()<GROUPED_DW>();
}

// A block for each tile. prepare: asks for the shared memory, and launches nothing.
inline cudaError_t grouped_launch(void (*kernel)(mz_cu_grouped), int threads, int bytes, int tile, cudaStream_t stream,
                                  const mz_cu_grouped &g, bool prepare) {
    if (prepare)
        return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    const int64_t tiles = grouped_tiles(g, tile);
    if (tiles == 0)
        return cudaSuccess;
    kernel<<<static_cast<unsigned>(tiles), threads, static_cast<size_t>(bytes), stream>>>(g);
    return cudaGetLastError();
}

#endif
