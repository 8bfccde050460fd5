// Computes the experts' products of 8-bit operands with a scale each, on Hopper's tensor cores (compute capability 9.0
// only). Their instructions want what is summed over contiguous in both operands, so a gradient's operands are
// columnwise (grouped_fp8.h). They keep about 14 bits of a sum of 8-bit products, so they add up 128 terms at most:
// FP32 registers add the pieces ("promotion"); the scales multiply the whole sum.
//
// A block goes through tiles of 128 × 128 results: one warp asks for pieces of the operands (TMA), two warpgroups make
// 64 of the tile's rows each. While one promotes or stores, the other multiplies, and pieces of the next tile arrive.
// An expert's rows may begin and end anywhere in what is turned, but a piece begins at a multiple of 16 bytes (at
// others TMA is an illegal instruction). What is in a piece in front of an expert's share or after it is another's:
// both operands get zeros there first.
#include "barrier.cuh"
#include "cluster.cuh"
#include "pdl_launch.cuh"
#include "grouped.cuh"
#include "grouped_fp8.h"
#include "ptx.cuh"
#include "wgmma.cuh"

namespace {
enum { TILE = 128, L = 128, GROUP_ROWS = 64, OPERAND = TILE * L, STAGE = 2 * OPERAND, STAGES = 6 };
enum { GROUPS = 2, THREADS = WARPGROUP * (1 + GROUPS), CONSUMERS = WARPGROUP * GROUPS };
enum { AT_BARRIERS = STAGES * STAGE, ALIGN = 1024, BYTES = AT_BARRIERS + 2 * STAGES * 8 + ALIGN };
static_assert(BYTES <= 227 * 1024, "shared memory of a block");
static_assert(CONSUMERS == 2 * TILE, "a thread clears a row of either operand");

// Holds what a tile sums over, and where its operands begin.
struct share {
    int terms, others; // of the sum; the first `others` are not the expert's
    int a_row, b_row;  // of the operands' matrices
    int a_col, b_col;
};

template <int OP> __device__ __forceinline__ share share_of(const mz_cu_grouped &g, const grouped_place &t) {
    if (OP == MZ_CU_GROUPED_Y)
        return {g.k, 0, t.first + t.m0, t.expert * g.n + t.c0, 0, 0};
    if (OP == MZ_CU_GROUPED_DX)
        return {g.n, 0, t.first + t.m0, t.c0, 0, t.expert * g.n};
    const int others = t.first % 16, begin = t.first - others;
    return {t.last > t.first ? t.last - begin : 0, others, t.m0, t.c0, begin, begin};
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// --- loads: a warp -------------------------------------------------------------------------------------------------
template <int OP>
__device__ __forceinline__ void produce(const mz_cu_grouped &g, int64_t tiles, const CUtensorMap *a,
                                        const CUtensorMap *b, uint32_t shared, uint32_t full, uint32_t empty) {
    uint32_t count = 0;
    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const grouped_place t = grouped_locate<OP, TILE>(g, tile);
        if (!t.any)
            break;
        const share s = share_of<OP>(g, t);
        for (int l = 0; l < s.terms; l += L, count++) {
            const uint32_t stage = count % STAGES, ready = full + stage * 8, to = shared + stage * STAGE;
            if (threadIdx.x == 0) {
                barrier_wait(empty + stage * 8, (count / STAGES & 1) ^ 1);
                barrier_expect(ready, STAGE);
                fetch_box(to, a, s.a_col + l, s.a_row, ready);
                fetch_box(to + OPERAND, b, s.b_col + l, s.b_row, ready);
            }
            __syncwarp();
        }
    }
}

// --- products ------------------------------------------------------------------------------------------------------
__device__ __forceinline__ void barrier_arrive(uint32_t at) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}

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
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); // what was written here, the matrix unit may read
    asm volatile("bar.sync 1, %0;" ::"n"(2 * TILE) : "memory");  // both warpgroups
}

// d = 64 rows of a times 128 columns of b, 128 terms.
template <bool WIDE> __device__ __forceinline__ void multiply_piece(float (&d)[16][4], uint64_t a, uint64_t b) {
    wgmma_begin();
    wgmma_multiply_e4m3<0, WIDE>(d, a, b);
#pragma unroll
    for (int l = 32; l < L; l += 32)
        wgmma_multiply_e4m3<1, WIDE>(d, a + (l >> 4), b + (l >> 4));
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_settle(d);
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

template <int OP, bool WIDE, bool LOW>
__device__ __forceinline__ void consume(const mz_cu_grouped_fp8 &args, int64_t tiles, unsigned char *shared,
                                        uint32_t address, uint32_t full, uint32_t empty) {
    const mz_cu_grouped &g = args.g;
    const int thread = static_cast<int>(threadIdx.x) - WARPGROUP, group = group_of(thread);
    const int m = group * GROUP_ROWS + thread % WARPGROUP / 32 * 16;
    const float a_scale = *args.a_scale, b_scale = *args.b_scale;
    uint32_t count = 0;
    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const grouped_place t = grouped_locate<OP, TILE>(g, tile);
        if (!t.any)
            break;
        const share s = share_of<OP>(g, t);
        float total[16][4], d[16][4];
#pragma unroll
        for (int i = 0; i < 64; i++)
            total[i / 4][i % 4] = d[i / 4][i % 4] = 0;
        for (int l = 0; l < s.terms; l += L, count++) {
            const uint32_t stage = count % STAGES, place = address + stage * STAGE;
            barrier_wait(full + stage * 8, count / STAGES & 1);
            const int begin = l == 0 ? s.others : 0;
            if (OP != MZ_CU_GROUPED_Y && (begin > 0 || s.terms - l < L)) // y's x and w end with what is summed over
                keep_only(shared + stage * STAGE, begin, s.terms - l);
            multiply_piece<WIDE>(d, wgmma_operand(place + group * (GROUP_ROWS * L), 0),
                                 wgmma_operand(place + OPERAND, 0));
            if ((threadIdx.x & 31) == 0)
                barrier_arrive(empty + stage * 8);
#pragma unroll
            for (int i = 0; i < 64; i++)
                total[i / 4][i % 4] += d[i / 4][i % 4];
        }
#pragma unroll
        for (int i = 0; i < 64; i++)
            total[i / 4][i % 4] = total[i / 4][i % 4] * a_scale * b_scale;
        constexpr bool DW = OP == MZ_CU_GROUPED_DW;
        const int row_length = OP == MZ_CU_GROUPED_Y ? g.n : g.k;
        const int64_t row = DW ? static_cast<int64_t>(t.expert) * g.n + t.m0 : static_cast<int64_t>(t.first) + t.m0;
        store<LOW>(g, row * row_length + t.c0, row_length, m, DW ? g.n - t.m0 : t.last - t.first - t.m0,
                   row_length - t.c0, total);
    }
}
#endif

template <int OP, bool WIDE, bool LOW>
__global__ void __launch_bounds__(THREADS, 1)
    grouped_fp8_kernel(const mz_cu_grouped_fp8 args, int64_t tiles, const __grid_constant__ CUtensorMap a,
                       const __grid_constant__ CUtensorMap b) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ unsigned char grouped_fp8_shared[];
    const uint32_t begin = shared_address(grouped_fp8_shared), first = (begin + ALIGN - 1) / ALIGN * ALIGN;
    const uint32_t full = first + AT_BARRIERS, empty = full + STAGES * 8;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(full + s * 8, 1);
            barrier_init(empty + s * 8, CONSUMERS / 32);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    wait_for_before();
    if (threadIdx.x < WARPGROUP) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x < 32)
            produce<OP>(args.g, tiles, &a, &b, first, full, empty);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        consume<OP, WIDE, LOW>(args, tiles, grouped_fp8_shared + (first - begin), first, full, empty);
    }
#endif
}

// --- launching -----------------------------------------------------------------------------------------------------
// Boxes of 128 × 128 bytes of a matrix [rows, columns], a row each multiple of 16 bytes; what lies outside reads as
// zeros.
bool describe(CUtensorMap *map, const void *data, int64_t rows, int64_t columns) {
    const tensor_map_encode encode = find_tensor_map_encode();
    const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
    const cuuint64_t pitch[] = {static_cast<cuuint64_t>((columns + 15) / 16 * 16)};
    const cuuint32_t box[] = {L, TILE}, steps[] = {1, 1};
    return encode != nullptr &&
           encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void *>(data), sizes, pitch, box, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <int OP, bool WIDE, bool LOW>
cudaError_t run(cudaStream_t stream, const mz_cu_grouped_fp8 &args, bool prepare) {
    const auto kernel = grouped_fp8_kernel<OP, WIDE, LOW>;
    const mz_cu_grouped &g = args.g;
    if (prepare)
        return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    const int64_t tiles = grouped_tiles(g, TILE), n = g.n, k = g.k, matrices = g.experts * n;
    if (tiles == 0)
        return cudaSuccess;
    constexpr bool Y = OP == MZ_CU_GROUPED_Y, DW = OP == MZ_CU_GROUPED_DW;
    CUtensorMap a, b;
    const bool described = describe(&a, g.a.data, DW ? n : g.rows,
                                    DW  ? g.rows
                                    : Y ? k
                                        : n) &&
                           describe(&b, g.b.data, Y ? matrices : k,
                                    Y    ? k
                                    : DW ? g.rows
                                         : matrices);
    if (!described)
        return cudaErrorNotSupported;
    return launch_dependent(stream, kernel, dim3(static_cast<unsigned>(tiles < g.sms ? tiles : g.sms)), dim3(THREADS),
                            BYTES, args, tiles, a, b);
}

template <int OP, bool WIDE> cudaError_t of(cudaStream_t stream, const mz_cu_grouped_fp8 &args, bool prepare) {
    if (args.g.out.dtype == MEZZO_F32)
        return run<OP, WIDE, false>(stream, args, prepare);
    return OP == MZ_CU_GROUPED_DW ? cudaErrorInvalidValue
                                  : run<OP, WIDE, OP != MZ_CU_GROUPED_DW>(stream, args, prepare);
}
} // namespace

extern "C" cudaError_t mz_cu_grouped_fp8_run(cudaStream_t stream, const mz_cu_grouped_fp8 *args, bool prepare) {
#ifndef MZ_CU_90A
    return cudaErrorNoKernelImageForDevice;
#endif
    const bool wide = args->g.a.dtype == MEZZO_F8E5M2;
    if (args->g.op == MZ_CU_GROUPED_Y)
        return wide ? of<MZ_CU_GROUPED_Y, true>(stream, *args, prepare)
                    : of<MZ_CU_GROUPED_Y, false>(stream, *args, prepare);
    if (args->g.op == MZ_CU_GROUPED_DX)
        return wide ? of<MZ_CU_GROUPED_DX, true>(stream, *args, prepare)
                    : of<MZ_CU_GROUPED_DX, false>(stream, *args, prepare);
    return wide ? of<MZ_CU_GROUPED_DW, true>(stream, *args, prepare)
                : of<MZ_CU_GROUPED_DW, false>(stream, *args, prepare);
}
