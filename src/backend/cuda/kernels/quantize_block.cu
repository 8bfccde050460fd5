// Rounding to E4M3 with a power of two for each 128 numbers of a row, and in the turned copy of a column, or for 128 by
// 128, with what stands in front and the columns' sums: as quantize.cu, in one read of each input.
#include "activation.cuh"
#include "pdl_launch.cuh"
#include "fp8_pack.cuh"
#include "quantize.cuh"
#include "vec.cuh"

namespace {
// A block's tile is 128 × 128: a thread has 8 numbers of each of 8 rows in registers, because a scale is known when all
// of its numbers are. Codes for the turned copy then wait in shared memory, where a thread turns 16 rows of 4 columns.
enum { TILE = 128, PARTS = TILE / 8, GROUPS = 16, TIMES = TILE / GROUPS, THREADS = PARTS * GROUPS };
enum { TOP = 8 }; // of E4M3: its largest number is 1.75 · 2^8

struct place { // of a thread's numbers: rows group, group + GROUPS … of the tile, 8 columns
    int64_t row0, col0, col;
    int part, group;
};

// Says which numbers there are, known when a kernel is compiled (quantize.cu says why), or, with ANY, when it runs:
// then each is read by itself.
template <int ACT_, bool DACT_, int DTYPE_, bool ANY_> struct input {
    static constexpr int ACT = ACT_, DTYPE = DTYPE_;
    static constexpr bool DACT = DACT_, ANY = ANY_, RAW = !ANY && !DACT && ACT == ACT_NONE && DTYPE != MEZZO_F32;
};

// Numbers of a row as they are rounded, zeros outside: 16 bits each where the format is known to have no more, so that
// more blocks find room.
template <typename INPUT> struct held {
    static constexpr bool SHORT = !INPUT::ANY && INPUT::DTYPE != MEZZO_F32;
    uint32_t w[SHORT ? 4 : 8];
    __device__ __forceinline__ void keep(const float v[8]) {
#pragma unroll
        for (int k = 0; k < (SHORT ? 4 : 8); k++)
            w[k] = SHORT ? narrow2(v[2 * k % 8], v[(2 * k + 1) % 8], INPUT::DTYPE) : __float_as_uint(v[k]);
    }
    __device__ __forceinline__ void widen(float v[8]) const {
#pragma unroll
        for (int k = 0; k < (SHORT ? 4 : 8); k++) {
            if (SHORT) {
                const float2 two = widen2(w[k], INPUT::DTYPE);
                v[2 * k % 8] = two.x;
                v[(2 * k + 1) % 8] = two.y;
            } else {
                v[k] = __uint_as_float(w[k]);
            }
        }
    }
};

// Numbers are widened again after this: kept as FP32 from step to step they would take the registers of a block.
template <typename INPUT> __device__ __forceinline__ void forget_widened(held<INPUT> x[TIMES]) {
    if constexpr (INPUT::RAW)
        for_each<TIMES, 4>([&](int t, int k) { asm volatile("" : "+r"(x[t].w[k])); });
}

template <typename INPUT>
__device__ __forceinline__ void read(const mz_cu_quantize &q, const place &p, int line, float v[8]) {
    const int64_t row = p.row0 + line, at = row * q.cols + p.col;
    const int act = INPUT::ANY ? q.act : INPUT::ACT;
    const bool derivative = INPUT::ANY ? q.preact.data != nullptr : INPUT::DACT;
    float w[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    for_each<8>([&](int k) { v[k] = 0; });
    if constexpr (INPUT::ANY) {
#pragma unroll
        for (int k = 0; k < 8; k++)
            if (row < q.rows && p.col + k < q.cols) {
                v[k] = load1(q.x, at + k);
                if (derivative)
                    w[k] = load1(q.preact, at + k);
            }
    } else if (row < q.rows && p.col < q.cols) {
        load8(q.x.data, INPUT::DTYPE, at, v);
        if (derivative)
            load8(q.preact.data, INPUT::DTYPE, at, w);
    }
    if constexpr (INPUT::ANY || INPUT::ACT != ACT_NONE) {
#pragma unroll
        for (int k = 0; k < 8; k++)
            if (act != ACT_NONE)
                v[k] = round_to(derivative ? times_derivative(v[k], w[k], act) : activate(v[k], act),
                                INPUT::ANY ? q.via : INPUT::DTYPE);
    }
}

// Holds the scale of a block whose largest magnitude has these bits, and 1 over it.
struct scale {
    float value, inverse;
};
__device__ __forceinline__ scale scale_for(uint32_t amax) {
    const int exponent = scale_exponent(amax, TOP);
    return {power_of_two(exponent), power_of_two(-exponent)};
}

template <bool WHOLE> __device__ __forceinline__ void store_row(const mz_cu_quantize &q, int64_t at, int n, uint2 fp8) {
    uint8_t *to = static_cast<uint8_t *>(q.y) + at;
    if constexpr (WHOLE) {
        *reinterpret_cast<uint2 *>(to) = fp8;
    } else {
#pragma unroll
        for (int k = 0; k < 8; k++)
            if (k < n)
                to[k] = static_cast<uint8_t>((k < 4 ? fp8.x : fp8.y) >> (k % 4 * 8));
    }
}

// Codes of 4 columns of row `line` wait here: rows of 128 bytes, in which quads of columns change places by exclusive
// or with 4 times line/16, so that neither writing rows nor reading columns meets a bank twice.
__device__ __forceinline__ int waiting(int line, int quad) {
    return line * TILE + ((quad ^ (line / 16 * 4)) << 2);
}

// Stores the tile's codes as columns of the tensor. Eight runs of 16 rows and 4 quads of columns a warp: whole lines.
template <bool WHOLE>
__device__ __forceinline__ void store_columnwise(const mz_cu_quantize &q, const place &p, const uint8_t *fp8) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int run = lane % 8 * 16, quad = warp * 4 + lane / 8, col = quad * 4;
    uint8_t *to = static_cast<uint8_t *>(q.columnwise) + (p.col0 + col) * q.pitch + p.row0 + run;
    const uint8_t *from = fp8 + waiting(run, quad);
    if constexpr (WHOLE) {
        if (p.row0 + run < q.rows && p.col0 + col < q.cols)
            turn_run(from, TILE, to, q.pitch);
    } else {
        for (int k = 0; k < 4; k++)
            for (int i = 0; i < 16; i++)
                if (p.row0 + run + i < q.pitch && p.col0 + col + k < q.cols)
                    to[k * q.pitch + i] = from[i * TILE + k];
    }
}

// Stores the tile, and keeps what waits to be transposed. INFINITE: one of this thread's numbers may be so.
template <typename INPUT, bool INFINITE>
__device__ __forceinline__ void store_fp8(const mz_cu_quantize &q, const place &p, const held<INPUT> x[TIMES],
                                          const float of_row[TIMES], const float of_columns[8], uint8_t *fp8) {
    const int n = static_cast<int>(min(q.cols - p.col, static_cast<int64_t>(8)));
#pragma unroll
    for (int t = 0; t < TIMES; t++) {
        const int line = t * GROUPS + p.group;
        const int64_t row = p.row0 + line;
        float v[8];
        x[t].widen(v);
        if (q.y != nullptr && row < q.rows && n > 0) {
            const auto own = [&](int) { return of_row[t]; };
            store_row<!INPUT::ANY>(q, row * q.cols + p.col, n, to_fp8(v, own, true, INFINITE));
        }
        if (q.columnwise != nullptr)
            *reinterpret_cast<uint2 *>(fp8 + waiting(line, p.part * 2)) = to_fp8(
                v, [&](int k) { return of_columns[k]; }, true, INFINITE);
    }
}

// Columns are a multiple of 16, but for any input; codes of rows after the last are zeros.
template <typename INPUT, bool TILES>
__global__ void __launch_bounds__(THREADS, INPUT::RAW ? 3 : 2) quantize_block_kernel(mz_cu_quantize_block b) {
    wait_for_before();
    __shared__ __align__(16) uint8_t fp8[TILE * TILE];
    __shared__ __align__(16) uint32_t largest[GROUPS][TILE];
    __shared__ __align__(16) float inverse[TILE];
    const mz_cu_quantize &q = b;
    const int tid = static_cast<int>(threadIdx.x);
    place p = {static_cast<int64_t>(blockIdx.y) * TILE, static_cast<int64_t>(blockIdx.x) * TILE, 0, tid % PARTS,
               tid / PARTS};
    p.col = p.col0 + p.part * 8;
    held<INPUT> x[TIMES];
#pragma unroll
    for (int t = 0; t < TIMES; t++) {
        if constexpr (INPUT::RAW) { // as it is stored
            const int64_t row = p.row0 + t * GROUPS + p.group;
            x[t].w[0] = x[t].w[1] = x[t].w[2] = x[t].w[3] = 0;
            if (row < q.rows && p.col < q.cols) {
                const uint4 raw = fetch8(q.x.data, INPUT::DTYPE, row * q.cols + p.col).lo;
                x[t].w[0] = raw.x;
                x[t].w[1] = raw.y;
                x[t].w[2] = raw.z;
                x[t].w[3] = raw.w;
            }
        } else {
            float v[8];
            read<INPUT>(q, p, t * GROUPS + p.group, v);
            x[t].keep(v);
        }
    }
    const int64_t row_pitch = (q.rows + TILE - 1) / TILE * TILE, col_pitch = (q.cols + TILE - 1) / TILE * TILE;
    float of_row[TIMES];
    bool infinite = false;
    if constexpr (INPUT::RAW && INPUT::DTYPE == MEZZO_BF16 && !TILES) { // magnitudes of BF16 are FP32's upper halves
        uint32_t of_column[4] = {0, 0, 0, 0}, two[TIMES / 2];
#pragma unroll
        for (int t = 0; t < TIMES; t++) {
            uint32_t amax = 0;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const uint32_t bits = x[t].w[k] & 0x7FFF7FFFu; // a NaN's are above infinity's
                amax = __vmaxu2(amax, bits);
                of_column[k] = __vmaxu2(of_column[k], bits);
            }
            amax = __vmaxu2(amax, amax >> 16) & 0xFFFFu;
            two[t / 2] = t % 2 == 0 ? amax : two[t / 2] | amax << 16;
        }
#pragma unroll
        for (int lanes = PARTS / 2; lanes > 0; lanes /= 2)
#pragma unroll
            for (int t = 0; t < TIMES / 2; t++)
                two[t] = __vmaxu2(two[t], __shfl_xor_sync(0xFFFFFFFFu, two[t], lanes));
#pragma unroll
        for (int t = 0; t < TIMES; t++) {
            const scale of = scale_for(t % 2 == 0 ? two[t / 2] << 16 : two[t / 2] & 0xFFFF0000u);
            of_row[t] = of.inverse;
            if (p.part == 0 && b.scales != nullptr) // rows after the last have zeros, and the scale 1
                b.scales[blockIdx.x * row_pitch + p.row0 + t * GROUPS + p.group] = of.value;
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            *reinterpret_cast<uint2 *>(&largest[p.group][p.part * 8 + k * 2]) =
                make_uint2(of_column[k] << 16, of_column[k] & 0xFFFF0000u);
            infinite = infinite || (of_column[k] & 0xFFFFu) >= 0x7F80u || of_column[k] >= 0x7F800000u;
        }
    } else {
        uint32_t of_column[8] = {0, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll
        for (int t = 0; t < TIMES; t++) {
            uint32_t amax = 0;
            float v[8];
            x[t].widen(v);
#pragma unroll
            for (int k = 0; k < 8; k++) {
                const uint32_t bits = __float_as_uint(v[k]) & 0x7FFFFFFFu; // a NaN's are above infinity's
                amax = max(amax, bits);
                of_column[k] = max(of_column[k], bits);
            }
            if constexpr (!TILES) {
#pragma unroll
                for (int lanes = PARTS / 2; lanes > 0; lanes /= 2)
                    amax = max(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, lanes));
                const scale of = scale_for(amax);
                of_row[t] = of.inverse;
                if (p.part == 0 && b.scales != nullptr) // rows after the last have zeros, and the scale 1
                    b.scales[blockIdx.x * row_pitch + p.row0 + t * GROUPS + p.group] = of.value;
            }
        }
#pragma unroll
        for (int k = 0; k < 8; k++) {
            largest[p.group][p.part * 8 + k] = of_column[k];
            infinite = infinite || of_column[k] >= 0x7F800000u;
        }
    }
    forget_widened<INPUT>(x);
    __syncthreads();
    if (tid < TILE) {
        uint32_t amax = 0;
        for_each<GROUPS>([&](int g) { amax = max(amax, largest[g][tid]); });
        if constexpr (TILES) {
            largest[0][tid] = amax;
        } else {
            const scale of = scale_for(amax);
            inverse[tid] = of.inverse;
            if (b.columnwise_scales != nullptr)
                b.columnwise_scales[blockIdx.y * col_pitch + p.col0 + tid] = of.value;
        }
    }
    __syncthreads();
    if constexpr (TILES) { // every warp finds the same
        uint32_t amax = 0;
#pragma unroll
        for (int k = tid % 32; k < TILE; k += 32)
            amax = max(amax, largest[0][k]);
#pragma unroll
        for (int lanes = 16; lanes > 0; lanes /= 2)
            amax = max(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, lanes));
        const scale of = scale_for(amax);
        if (tid == 0)
            b.scales[blockIdx.y * gridDim.x + blockIdx.x] = of.value;
        for_each<TIMES>([&](int t) { of_row[t] = of.inverse; });
    }
    float of_columns[8];
    for_each<8>([&](int k) { of_columns[k] = TILES ? of_row[0] : inverse[p.part * 8 + k]; });
    if (infinite)
        store_fp8<INPUT, true>(q, p, x, of_row, of_columns, fp8);
    else
        store_fp8<INPUT, false>(q, p, x, of_row, of_columns, fp8);
    __syncthreads();
    if (q.columnwise != nullptr)
        store_columnwise<!INPUT::ANY>(q, p, fp8);
    if (q.sums == nullptr)
        return;
    forget_widened<INPUT>(x);
    float *all = reinterpret_cast<float *>(&largest[0][0]);
    float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
#pragma unroll
    for (int t = 0; t < TIMES; t++) {
        float v[8];
        x[t].widen(v);
        for_each<8>([&](int k) { sum[k] += v[k]; });
    }
    for_each<8>([&](int k) { all[p.group * TILE + p.part * 8 + k] = sum[k]; });
    __syncthreads();
    if (tid < TILE && p.col0 + tid < q.cols) {
        float total = 0;
        for_each<GROUPS>([&](int g) { total += all[g * TILE + tid]; });
        q.sums[blockIdx.y * q.cols + p.col0 + tid] = total;
    }
}
static_assert(THREADS == TILE / 16 * (TILE / 4), "a thread turns 16 rows of 4 columns");

template <typename INPUT, bool TILES> cudaError_t launch(cudaStream_t stream, const mz_cu_quantize_block &q) {
    const dim3 grid(blocks_of(q.cols, TILE), blocks_of(q.rows, TILE));
    return launch_dependent(stream, quantize_block_kernel<INPUT, TILES>, grid, dim3(THREADS), 0, q);
}

template <bool TILES> cudaError_t launch_any(cudaStream_t stream, const mz_cu_quantize_block &q) {
    return launch<input<ACT_NONE, false, MEZZO_F32, true>, TILES>(stream, q);
}

template <int ACT> cudaError_t launch_act(cudaStream_t stream, const mz_cu_quantize_block &q) {
    return q.preact.data != nullptr ? launch<input<ACT, true, MEZZO_BF16, false>, false>(stream, q)
                                    : launch<input<ACT, false, MEZZO_BF16, false>, false>(stream, q);
}
} // namespace

int64_t quantize_block_turns(int64_t rows) {
    return (rows + TILE - 1) / TILE;
}

cudaError_t quantize_block_run(cudaStream_t stream, const mz_cu_quantize_block &q) {
    const bool even = q.cols % 16 == 0;
    if (q.rows == 0 || q.cols == 0)
        return cudaSuccess;
    if (q.tiles)
        return even && q.act == ACT_NONE && q.x.dtype == MEZZO_F32
                   ? launch<input<ACT_NONE, false, MEZZO_F32, false>, true>(stream, q)
                   : launch_any<true>(stream, q);
    if (!even || q.x.dtype != MEZZO_BF16 || (q.act != ACT_NONE && q.via != MEZZO_BF16))
        return launch_any<false>(stream, q);
    switch (q.act) {
    case ACT_RELU:
        return launch_act<ACT_RELU>(stream, q);
    case ACT_GELU:
        return launch_act<ACT_GELU>(stream, q);
    case ACT_GELU_TANH:
        return launch_act<ACT_GELU_TANH>(stream, q);
    case ACT_SILU:
        return launch_act<ACT_SILU>(stream, q);
    default:
        return launch<input<ACT_NONE, false, MEZZO_BF16, false>, false>(stream, q);
    }
}
