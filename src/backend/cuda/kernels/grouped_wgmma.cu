// Computes the experts' products of BF16 and FP16 matrices on Hopper's tensor cores (compute capability 9.0 only):
// warpgroup matrix instructions, which read both operands from shared memory. A block of two warpgroups makes a tile of
// 128 × 128 results, one half of its rows each; pieces of 64 of l come through a pipeline of asynchronous copies. Two
// blocks share a multiprocessor, so that one computes while the other waits.
//
// FP32 as three BF16 parts (bf16_terms.cu: x2, x1, x0 and y0, y1, y2, each an array of its own) is the same six times,
// for the products x2·y0, x1·y1, x0·y2, x1·y0, x0·y1, x0·y0. The tensor cores, which cut their sums off, add up 64
// terms at most then: FP32 registers add the pieces. One block has a multiprocessor to itself.
#include "grouped_mma.cuh"
#include "wgmma.cuh"

namespace {
enum { THREADS = 256, TILE = 128, L = 64, STAGES = 3, OPERAND = TILE * L * 2, STAGE = 2 * OPERAND, ALIGN = 1024 };
enum { BYTES = STAGES * STAGE + ALIGN };

// --- operands ------------------------------------------------------------------------------------------------------
// Both layouts are rows of 128 bytes, eight of which make a block of 1024: within it the 16-byte pieces of row i change
// places by exclusive or with i ("128-byte swizzle"). l contiguous: TILE rows of 64 of l. Else: two columns of blocks
// (64 of m or c each), 64 rows of l.
template <typename T, bool CONTIGUOUS>
__device__ __forceinline__ void copy_operand(unsigned char *to, const T *from, int pitch, int others, int l, int l0) {
    constexpr int PIECES = CONTIGUOUS ? L / 8 : TILE / 8, STRIDE = THREADS / PIECES;
    int row = static_cast<int>(threadIdx.x) / PIECES, piece = static_cast<int>(threadIdx.x) % PIECES;
    int rows = CONTIGUOUS ? others : l - l0;
    bool inside = piece * 8 < (CONTIGUOUS ? l - l0 : others);
    const T *source =
        from + (CONTIGUOUS ? l0 : static_cast<int64_t>(l0) * pitch) + static_cast<int64_t>(row) * pitch + piece * 8;
    unsigned char *place = to + (CONTIGUOUS ? 0 : piece / 8 * (L * 128)) + row * 128 + (((piece ^ row) & 7) << 4);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        bool in = inside && row + i * STRIDE < rows;
        copy_async_16(place + i * STRIDE * 128, in ? source + static_cast<int64_t>(i * STRIDE) * pitch : from, in);
    }
}

// Says which pieces of the operands come next.
template <bool PARTS, typename T> struct operands {
    const T *a, *b;
    int64_t part_a, part_b; // elements of an array of parts
    int pieces, product = 0, piece = 0;
    template <bool A, bool B> __device__ __forceinline__ void copy(unsigned char *to, const grouped_tile &t) {
        constexpr int first[] = {0, 1, 2, 1, 2, 2}, second[] = {0, 1, 2, 0, 1, 0};
        const T *from_a = a, *from_b = b;
        if (PARTS) {
            int x = 0, y = 0;
#pragma unroll
            for (int i = 0; i < 6; i++) {
                x = product == i ? first[i] : x;
                y = product == i ? second[i] : y;
            }
            from_a += x * part_a;
            from_b += y * part_b;
        }
        copy_operand<T, A>(to, from_a, t.a_row, t.m, t.l, piece * L);
        copy_operand<T, B>(to + OPERAND, from_b, t.b_row, t.c, t.l, piece * L);
        if (++piece == pieces)
            piece = 0, product++;
    }
};

template <typename T, int OP, bool PARTS>
__global__ void __launch_bounds__(THREADS, PARTS ? 1 : 2) grouped_wgmma_kernel(const mz_cu_grouped g) {
    using layout = grouped_layout<OP>;
    constexpr bool A = layout::A_CONTIGUOUS, B = layout::B_CONTIGUOUS;
    extern __shared__ unsigned char wgmma_shared[];
    uint32_t begin = shared_address(wgmma_shared), first = (begin + ALIGN - 1) / ALIGN * ALIGN;
    unsigned char *shared = wgmma_shared + (first - begin);
    const grouped_tile t = grouped_find<OP, TILE>(g);
    if (!t.any)
        return;
    operands<PARTS, T> next_ones;
    next_ones.a = static_cast<const T *>(g.a.data) + t.a;
    next_ones.b = static_cast<const T *>(g.b.data) + t.b;
    int64_t matrices = static_cast<int64_t>(g.experts) * g.n * g.k;
    next_ones.part_a = g.rows * t.a_row;
    next_ones.part_b = OP == GROUPED_DW ? g.rows * t.b_row : matrices;
    next_ones.pieces = (t.l + L - 1) / L;
    int warp = static_cast<int>(threadIdx.x) >> 5, half = group_of(static_cast<int>(threadIdx.x));
    int pieces = next_ones.pieces * (PARTS ? 6 : 1);
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < pieces)
            next_ones.template copy<A, B>(shared + s * STAGE, t);
        copies_commit();
    }
    float d[1][16][4] = {}, total[1][PARTS ? 16 : 1][4] = {};
    int at = 0, next = STAGES - 1;
    for (int p = 0; p < pieces; p++) {
        copies_wait<STAGES - 2>();
        async_fence();
        __syncthreads();
        uint64_t da = wgmma_operand(first + at * STAGE + half * (A ? 64 * 128 : L * 128), L * 128);
        uint64_t db = wgmma_operand(first + at * STAGE + OPERAND, L * 128);
        wgmma_begin();
#pragma unroll
        for (int l = 0; l < L; l += 16) // 16 of l are 32 bytes of a row, or 16 rows
            wgmma_multiply<T, !A, !B>(d[0], da + (A ? l * 2 >> 4 : l * 128 >> 4), db + (B ? l * 2 >> 4 : l * 128 >> 4));
        wgmma_commit();
        if (p + STAGES - 1 < pieces) // into the memory that both warpgroups have done with
            next_ones.template copy<A, B>(shared + next * STAGE, t);
        copies_commit();
        wgmma_wait<0>();
        if constexpr (PARTS) {
#pragma unroll
            for (int i = 0; i < 64; i++) {
                total[0][i / 4][i % 4] += d[0][i / 4][i % 4];
                d[0][i / 4][i % 4] = 0;
            }
        }
        at = at + 1 < STAGES ? at + 1 : 0;
        next = next + 1 < STAGES ? next + 1 : 0;
    }
    if constexpr (PARTS) {
        store_fp32(g, t, warp * 16, 0, total);
    } else if (g.out.dtype == MEZZO_F32) {
        store_fp32(g, t, warp * 16, 0, d);
    } else {
        copies_wait<0>();
        __syncthreads();
        store_low<T>(g, t, warp * 16, 0, reinterpret_cast<T *>(shared) + warp * 16 * (TILE + 8), d);
    }
}

template <typename T, bool PARTS = false> cudaError_t of(cudaStream_t stream, const mz_cu_grouped &g, bool prepare) {
    return grouped_for_op(g, [&]<int OP>() {
        return grouped_launch(grouped_wgmma_kernel<T, OP, PARTS>, THREADS, BYTES, TILE, stream, g, prepare);
    });
}

cudaError_t run_wgmma(cudaStream_t stream, const mz_cu_grouped &g, bool prepare) {
    return (g.parts                   ? of<__nv_bfloat16, true>
            : g.a.dtype == MEZZO_BF16 ? of<__nv_bfloat16>
                                      : of<__half>)(stream, g, prepare);
}

// If large tiles occupy a third of the multiprocessors, they are faster than four times as many small ones.
const char *check_tiles(const mz_cu_grouped &g) {
    if (grouped_tiles(g, TILE) * 3 < g.sms)
        return "large tiles are too few to share";
    return refusal_of_90a(run_wgmma(NULL, g, true));
}
} // namespace

static const char *wgmma_prepare(mezzo_device *device, const mz_call *call, mz_prepared *) {
    const mz_cuda_device *cuda = mz_cuda(device);
    if (cuda->cc != 90)
        return "is for compute capability 9.0";
    const char *reason = grouped_mma_refusal(cuda, call);
    if (reason != NULL)
        return reason;
    const mz_cu_grouped g = grouped_args(cuda, call);
    return g.a.dtype == MEZZO_F32 ? "multiplies bf16 and fp16" : check_tiles(g);
}

static void launch_wgmma(const mz_cuda_device *cuda, const mz_call *call) {
    run_wgmma(cuda->stream, grouped_args(cuda, call), false);
}
GROUPED_KERNELS(wgmma, "__cuda_wgmma", wgmma_prepare, enqueue<launch_wgmma>)

// --- FP32 as three BF16 terms --------------------------------------------------------------------------------------
// Splits FP32 before the product; the mma kernels would split in registers, in each warp again.
static mz_cu_grouped terms_args(const mz_cuda_device *cuda, const mz_call *call, size_t bytes[2]) {
    mz_cu_grouped g = grouped_args(cuda, call);
    for (int i = 0; i < 2; i++)
        bytes[i] = mz_align_up(static_cast<size_t>(mz_shape_count(&call->in[i].shape)) * 3 * sizeof(uint16_t), 256);
    g.parts = true;
    g.a.dtype = g.b.dtype = MEZZO_BF16;
    return g;
}

static const char *terms_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    const mz_cuda_device *cuda = mz_cuda(device);
    const char *reason = grouped_refusal(call);
    if (cuda->cc != 90)
        return "is for compute capability 9.0";
    if (reason != NULL)
        return reason;
    if (mz_cuda_storages(call, "ffi", "f") != NULL || call->numerics.compute != MEZZO_F32)
        return "multiplies fp32";
    if (cuda->fp32_by_fma)
        return "MEZZO_CUDA_FP32 is fma";
    size_t bytes[2];
    const mz_cu_grouped g = terms_args(cuda, call, bytes);
    if (g.n % 8 != 0 || g.k % 8 != 0)
        return "rows of parts are no multiples of 16 bytes";
    out->workspace = bytes[0] + bytes[1];
    return check_tiles(g);
}

static mezzo_status terms_run(mezzo_device *device, const mz_call *call) {
    const mz_cuda_device *cuda = mz_cuda(device);
    size_t bytes[2];
    mz_cu_grouped g = terms_args(cuda, call, bytes);
    g.a.data = call->workspace;
    g.b.data = static_cast<char *>(call->workspace) + bytes[0];
    for (int i = 0; i < 2; i++) {
        const mz_cu_bf16_terms split = {.x = data_of<float>(&call->in[i]),
                                        .out = i == 0 ? g.a.data : g.b.data,
                                        .n = mz_shape_count(&call->in[i].shape),
                                        .second = i == 1};
        MZ_CUDA_TRY(mz_cu_fp32_split(cuda->stream, &split));
    }
    MZ_CUDA_TRY(run_wgmma(cuda->stream, g, false));
    return MEZZO_OK;
}
GROUPED_KERNELS(bf16_terms, "__cuda_bf16_terms", terms_prepare, terms_run)
