// Rounding to E4M3 and E5M2 with a power of two as scale, in both layouts, with what stands in front (an activation, or
// the slope of one) and what is found on the way: the largest magnitude and the columns' sums. One read of each input.
#include "activation.cuh"
#include "early.cuh"
#include "eight.cuh"
#include "quantize.h"
#include "vec.cuh"

// A block's tile is ROWS × COLS: a thread takes 8 numbers of a row at a time, whose codes wait in shared memory; then
// 16 rows of 4 columns, turns them in registers and writes runs of 16 bytes.
enum { ROWS = 64, COLS = 128, PARTS = COLS / 8, GROUPS = ROWS / 8, THREADS = PARTS * GROUPS, PITCH = COLS + 8 };

// 1 over the scale; the first block writes one that is found.
__device__ __forceinline__ float inverse_of(const mz_cu_quantize &q) {
    if (q.measured == nullptr)
        return q.entry != nullptr ? 1 / q.entry[0] : 1; // exact
    const int exponent = scale_exponent(*q.measured, q.dtype == MZ_CU_F8E4M3 ? 8 : 15);
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)
        q.entry[0] = power_of_two(exponent);
    return power_of_two(-exponent);
}

// An act is known when this is compiled, and rows are not unrolled: with a choice among all acts, 64 times, the code
// was more than a multiprocessor keeps at hand, and slopes of 32,768 × 3,072 took 1.09 ms where reading and writing
// take 0.15.
// MOVED: a row is another's, or of another dtype, as dispatch and cast leave it.
template <int ACT, bool SLOPE, bool ACTED, int DTYPE, bool MOVED = false>
__global__ void __launch_bounds__(THREADS) quantize_kernel(mz_cu_quantize q) {
    wait_for_before();
    __shared__ __align__(16) uint8_t tile[ROWS * PITCH], acted[ACTED ? ROWS * PITCH : 16];
    const int tid = static_cast<int>(threadIdx.x), part = tid % PARTS, group = tid / PARTS;
    const bool e4m3 = q.dtype == MZ_CU_F8E4M3;
    const int64_t col0 = static_cast<int64_t>(blockIdx.x) * COLS, col = col0 + part * 8;
    const float inverse = inverse_of(q), acted_inverse = ACTED ? 1 / *q.acted_scale : 0; // exact
    float sums[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    uint32_t most = 0, acted_most = 0; // the latter is forward's
    for (int64_t row0 = static_cast<int64_t>(blockIdx.y) * ROWS; row0 < q.rows;
         row0 += static_cast<int64_t>(gridDim.y) * ROWS) {
        // GROUPS rows at a time, `once` times before the first is looked at. Rows are a multiple of 16.
        constexpr int once = ACT == ACT_NONE ? 4 : 2;
#pragma unroll 1
        for (int first = 0; first < ROWS / GROUPS; first += once) {
            raw8 x[once], preact[once];
            float weight[once];
#pragma unroll
            for (int u = 0; u < once; u++) {
                const int64_t row = row0 + (first + u) * GROUPS + group;
                x[u].lo = x[u].hi = preact[u].lo = preact[u].hi = make_uint4(0, 0, 0, 0);
                weight[u] = 1;
                if (row < q.rows && col < q.cols) {
                    int64_t from = row;
                    if (MOVED && q.order != nullptr) {
                        from = q.order[row] / q.top_k;
                        weight[u] = q.weights != nullptr ? q.weights[q.order[row]] : 1;
                    }
                    x[u] = fetch8(q.x.data, DTYPE, from * q.cols + col);
                    if (SLOPE)
                        preact[u] = fetch8(q.preact.data, DTYPE, row * q.cols + col);
                }
            }
#pragma unroll
            for (int u = 0; u < once; u++) {
                const int line = (first + u) * GROUPS + group;
                float v[8], w[8];
                widen8(x[u], DTYPE, v);
                if (SLOPE)
                    widen8(preact[u], DTYPE, w);
                if (ACTED) {
                    float a[8];
#pragma unroll
                    for (int k = 0; k < 8; k++)
                        a[k] = round_to(activate(w[k], ACT), DTYPE);
                    *reinterpret_cast<uint2 *>(acted + line * PITCH + part * 8) =
                        to_codes(a, acted_inverse, true, acted_most);
                }
#pragma unroll
                for (int k = 0; k < 8; k++) {
                    if (ACT != ACT_NONE)
                        v[k] = round_to(SLOPE ? times_slope(v[k], w[k], ACT) : activate(v[k], ACT), DTYPE);
                    if (MOVED)
                        v[k] = round_to(v[k] * weight[u], MZ_CU_BF16);
                    sums[k] += v[k];
                }
                const uint2 codes = to_codes(v, inverse, e4m3, most);
                if (q.y != nullptr && row0 + line < q.rows && col < q.cols)
                    *reinterpret_cast<uint2 *>(static_cast<uint8_t *>(q.y) + (row0 + line) * q.cols + col) = codes;
                *reinterpret_cast<uint2 *>(tile + line * PITCH + part * 8) = codes;
            }
        }
        if (q.turned == nullptr)
            continue;
        __syncthreads();
        const int run = tid % 4 * 16, quad = tid / 4 * 4;
        const int64_t to = (col0 + quad) * q.rows + row0 + run;
        if (row0 + run < q.rows && col0 + quad < q.cols) {
            turn_run(tile + run * PITCH + quad, PITCH, static_cast<uint8_t *>(q.turned) + to, q.rows);
            if (ACTED)
                turn_run(acted + run * PITCH + quad, PITCH, static_cast<uint8_t *>(q.acted) + to, q.rows);
        }
        __syncthreads();
    }
    if (q.sums != nullptr) { // the groups' sums, in order
        float *all = reinterpret_cast<float *>(tile);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < 8; k++)
            all[group * COLS + part * 8 + k] = sums[k];
        __syncthreads();
        float sum = 0;
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
            sum += all[g * COLS + threadIdx.x];
        if (col0 + threadIdx.x < q.cols)
            q.sums[blockIdx.y * q.cols + col0 + threadIdx.x] = sum;
    }
    if (q.most != nullptr)
        record_most<THREADS>(q.most, most);
}

// SwiGLU, or its slope: a tile is of columns that gate and up have alike, and the slope's results are two of them.
template <bool SLOPE, bool ACTED> __global__ void __launch_bounds__(THREADS) quantize_gated_kernel(mz_cu_quantize q) {
    wait_for_before();
    constexpr int results = SLOPE ? 2 : 1, tiles = results + ACTED, once = 2;
    __shared__ __align__(16) uint8_t tile[tiles][ROWS * PITCH];
    const int tid = static_cast<int>(threadIdx.x), part = tid % PARTS, group = tid / PARTS;
    const bool e4m3 = q.dtype == MZ_CU_F8E4M3;
    const int64_t width = q.cols / results, col0 = static_cast<int64_t>(blockIdx.x) * COLS, col = col0 + part * 8;
    const void *pairs = SLOPE ? q.preact.data : q.x.data;
    const float inverse = inverse_of(q), acted_inverse = ACTED ? 1 / *q.acted_scale : 0; // exact
    float sums[results][8] = {};
    uint32_t most = 0, acted_most = 0; // the latter is forward's
    for (int64_t row0 = static_cast<int64_t>(blockIdx.y) * ROWS; row0 < q.rows;
         row0 += static_cast<int64_t>(gridDim.y) * ROWS) {
#pragma unroll 1
        for (int first = 0; first < ROWS / GROUPS; first += once) {
            raw8 gate[once], up[once], dy[once];
#pragma unroll
            for (int u = 0; u < once; u++) {
                const int64_t row = row0 + (first + u) * GROUPS + group;
                gate[u].lo = up[u].lo = dy[u].lo = make_uint4(0, 0, 0, 0);
                if (row < q.rows && col < width) {
                    gate[u] = fetch8(pairs, MZ_CU_BF16, row * 2 * width + col);
                    up[u] = fetch8(pairs, MZ_CU_BF16, row * 2 * width + width + col);
                    if (SLOPE)
                        dy[u] = fetch8(q.x.data, MZ_CU_BF16, row * width + col);
                }
            }
#pragma unroll
            for (int u = 0; u < once; u++) {
                const int line = (first + u) * GROUPS + group;
                float g[8], v[8], d[8], z[results][8];
                widen8(gate[u], MZ_CU_BF16, g);
                widen8(up[u], MZ_CU_BF16, v);
                if (SLOPE)
                    widen8(dy[u], MZ_CU_BF16, d);
                if (ACTED) {
                    float a[8];
#pragma unroll
                    for (int k = 0; k < 8; k++)
                        a[k] = round_to(swiglu(g[k], v[k]), MZ_CU_BF16);
                    *reinterpret_cast<uint2 *>(tile[results] + line * PITCH + part * 8) =
                        to_codes(a, acted_inverse, true, acted_most);
                }
#pragma unroll
                for (int k = 0; k < 8; k++) {
                    const float2 both = SLOPE ? swiglu_slopes(d[k], g[k], v[k]) : make_float2(swiglu(g[k], v[k]), 0.0f);
                    z[0][k] = round_to(both.x, MZ_CU_BF16);
                    if (SLOPE)
                        z[results - 1][k] = round_to(both.y, MZ_CU_BF16);
                }
#pragma unroll
                for (int r = 0; r < results; r++) {
#pragma unroll
                    for (int k = 0; k < 8; k++)
                        sums[r][k] += z[r][k];
                    const uint2 codes = to_codes(z[r], inverse, e4m3, most);
                    if (q.y != nullptr && row0 + line < q.rows && col < width)
                        *reinterpret_cast<uint2 *>(static_cast<uint8_t *>(q.y) + (row0 + line) * q.cols + r * width +
                                                   col) = codes;
                    *reinterpret_cast<uint2 *>(tile[r] + line * PITCH + part * 8) = codes;
                }
            }
        }
        if (q.turned == nullptr)
            continue;
        __syncthreads();
        const int run = tid % 4 * 16, quad = tid / 4 * 4;
        const int64_t to = (col0 + quad) * q.rows + row0 + run;
        if (row0 + run < q.rows && col0 + quad < width)
#pragma unroll
            for (int t = 0; t < tiles; t++)
                turn_run(tile[t] + run * PITCH + quad, PITCH,
                         (t < results ? static_cast<uint8_t *>(q.turned) + t * width * q.rows
                                      : static_cast<uint8_t *>(q.acted)) +
                             to,
                         q.rows);
        __syncthreads();
    }
    for (int r = 0; r < results && q.sums != nullptr; r++) { // the groups' sums, in order
        float *all = reinterpret_cast<float *>(tile[r]);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < 8; k++)
            all[group * COLS + part * 8 + k] = sums[r][k];
        __syncthreads();
        float sum = 0;
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
            sum += all[g * COLS + threadIdx.x];
        if (col0 + threadIdx.x < width)
            q.sums[blockIdx.y * q.cols + r * width + col0 + threadIdx.x] = sum;
    }
    if (q.most != nullptr)
        record_most<THREADS>(q.most, most);
}

// What is rounded to `via` in front of row and col, or x there.
__device__ __forceinline__ float number_at(const mz_cu_quantize &q, int64_t row, int64_t col) {
    const bool slope = q.preact.data != nullptr;
    const int64_t i = row * q.cols + col;
    if (q.act == ACT_NONE)
        return load1(q.x.data, q.x.dtype, i);
    float z;
    if (q.act == ACT_SWIGLU) {
        const int64_t width = slope ? q.cols / 2 : q.cols, of = slope ? col % width : col, at = row * 2 * width + of;
        const mz_cu_array &pairs = slope ? q.preact : q.x;
        const float gate = load1(pairs.data, pairs.dtype, at), up = load1(pairs.data, pairs.dtype, at + width);
        const float2 both = slope ? swiglu_slopes(load1(q.x.data, q.x.dtype, row * width + of), gate, up)
                                  : make_float2(swiglu(gate, up), 0.0f);
        z = of == col ? both.x : both.y;
    } else {
        const float x = load1(q.x.data, q.x.dtype, i);
        z = slope ? times_slope(x, load1(q.preact.data, q.preact.dtype, i), q.act) : activate(x, q.act);
    }
    return round_to(z, q.via);
}

// What the others do not take: a thread a column, a number at a time.
__global__ void __launch_bounds__(THREADS) quantize_any_kernel(mz_cu_quantize q) {
    wait_for_before();
    const int64_t col = static_cast<int64_t>(blockIdx.x) * COLS + threadIdx.x;
    const bool e4m3 = q.dtype == MZ_CU_F8E4M3;
    const int64_t acted_cols = q.act == ACT_SWIGLU ? q.cols / 2 : q.cols;
    const float inverse = inverse_of(q);
    float sum = 0;
    uint32_t most = 0;
    for (int64_t row0 = static_cast<int64_t>(blockIdx.y) * ROWS; row0 < q.rows && col < q.cols;
         row0 += static_cast<int64_t>(gridDim.y) * ROWS)
        for (int64_t row = row0; row < row0 + ROWS && row < q.rows; row++) {
            const int64_t i = row * q.cols + col;
            const float z = number_at(q, row, col);
            sum += z;
            most = max(most, magnitude(z));
            const uint8_t code =
                static_cast<uint8_t>(isinf(z) ? infinite_code(z, e4m3) : to_eights(z * inverse, 0, e4m3));
            if (q.y != nullptr)
                static_cast<uint8_t *>(q.y)[i] = code;
            if (q.turned != nullptr)
                static_cast<uint8_t *>(q.turned)[col * q.rows + row] = code;
            if (q.acted != nullptr && col < acted_cols) {
                mz_cu_quantize forward = q; // number_at's
                forward.x = q.preact;
                forward.preact.data = nullptr;
                forward.cols = acted_cols;
                const float a = number_at(forward, row, col);
                static_cast<uint8_t *>(q.acted)[col * q.rows + row] = static_cast<uint8_t>(
                    isinf(a) ? infinite_code(a, true) : to_eights(a * (1 / *q.acted_scale), 0, true));
            }
        }
    if (q.sums != nullptr && col < q.cols)
        q.sums[blockIdx.y * q.cols + col] = sum;
    if (q.most != nullptr)
        record_most<THREADS>(q.most, most);
}

static_assert(THREADS == COLS && GROUPS * COLS * sizeof(float) <= ROWS * PITCH, "a thread adds up a column");
static_assert(THREADS == ROWS / 16 * (COLS / 4), "a thread turns 16 rows of 4 columns");

extern "C" int64_t mz_cu_quantize_turns(int64_t rows, int64_t cols) {
    const int64_t across = (cols + COLS - 1) / COLS, down = (rows + ROWS - 1) / ROWS;
    const int64_t most = (MZ_CU_QUANTIZE_BLOCKS + across - 1) / across;
    return down < most ? down : most;
}

static dim3 grid_of(const mz_cu_quantize *q) {
    return dim3(static_cast<unsigned>((q->cols + COLS - 1) / COLS),
                static_cast<unsigned>(mz_cu_quantize_turns(q->rows, q->cols)));
}

template <int ACT> static cudaError_t run_act(cudaStream_t stream, const mz_cu_quantize *q) {
    auto kernel = q->preact.data == nullptr ? quantize_kernel<ACT, false, false, MZ_CU_BF16>
                  : q->acted == nullptr     ? quantize_kernel<ACT, true, false, MZ_CU_BF16>
                                            : quantize_kernel<ACT, true, true, MZ_CU_BF16>;
    return launch_early(stream, kernel, grid_of(q), THREADS, 0, *q);
}

static cudaError_t run_gated(cudaStream_t stream, const mz_cu_quantize *q) {
    const bool slope = q->preact.data != nullptr;
    const auto kernel = !slope                ? quantize_gated_kernel<false, false>
                        : q->acted == nullptr ? quantize_gated_kernel<true, false>
                                              : quantize_gated_kernel<true, true>;
    dim3 grid = grid_of(q);
    if (slope)
        grid.x = static_cast<unsigned>((q->cols / 2 + COLS - 1) / COLS);
    return launch_early(stream, kernel, grid, THREADS, 0, *q);
}

extern "C" cudaError_t mz_cu_quantize_run(cudaStream_t stream, const mz_cu_quantize *q) {
    const bool usual = q->x.dtype == MZ_CU_BF16 && q->via == MZ_CU_BF16; // of an act
    if (q->rows == 0 || q->cols == 0)
        return cudaSuccess;
    const bool alone = q->acted != nullptr && q->turned == nullptr; // tiles are turned with the slope's
    const int64_t width = q->act == ACT_SWIGLU && q->preact.data != nullptr ? q->cols / 2 : q->cols;
    if (q->moved) // no other kernel is
        return launch_early(stream,
                            q->x.dtype == MZ_CU_F32 ? quantize_kernel<ACT_NONE, false, false, MZ_CU_F32, true>
                                                    : quantize_kernel<ACT_NONE, false, false, MZ_CU_BF16, true>,
                            grid_of(q), THREADS, 0, *q);
    if (q->rows % 16 != 0 || width % 16 != 0 || (q->act != ACT_NONE && !usual) || alone)
        return launch_early(stream, quantize_any_kernel, grid_of(q), THREADS, 0, *q);
    switch (q->act) {
    case ACT_RELU:
        return run_act<ACT_RELU>(stream, q);
    case ACT_GELU:
        return run_act<ACT_GELU>(stream, q);
    case ACT_GELU_TANH:
        return run_act<ACT_GELU_TANH>(stream, q);
    case ACT_SILU:
        return run_act<ACT_SILU>(stream, q);
    case ACT_SWIGLU:
        return run_gated(stream, q);
    default:
        break;
    }
    if (q->x.dtype == MZ_CU_F32)
        return launch_early(stream, quantize_kernel<ACT_NONE, false, false, MZ_CU_F32>, grid_of(q), THREADS, 0, *q);
    if (q->x.dtype == MZ_CU_BF16)
        return launch_early(stream, quantize_kernel<ACT_NONE, false, false, MZ_CU_BF16>, grid_of(q), THREADS, 0, *q);
    return launch_early(stream, quantize_kernel<ACT_NONE, false, false, MZ_CU_F16>, grid_of(q), THREADS, 0, *q);
}

// --- a step's end --------------------------------------------------------------------------------------------------
struct entry { // mz_scale_entry
    float scale;
    uint32_t most;
    int32_t dtype, n;
    uint32_t history[8], kept;
    int32_t saturated, in_a_row, changes;
};

__global__ void scales_update_kernel(const int32_t *skip, const entry *tables, int ranks, entry *entries, int n) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= n)
        return;
    uint32_t most = 0, largest = 0;
    for (int r = 0; r < ranks && *skip == 0; r++)
        most = max(most, tables[static_cast<int64_t>(r) * n + i].most);
    entry *e = &entries[i];
    e->most = 0;
    if (*skip == 0) { // of codes that stay, which the update writes anew
        most = max(most, e->kept);
        e->kept = 0;
    }
    if (most == 0 || most >= 0x7F800000u)
        return;
    const int top = e->dtype == MZ_CU_F8E4M3 ? 8 : 15;
    const float before = e->scale;
    const bool known = e->n > 0, beyond = known && __float_as_uint(1.75f * power_of_two(top) * before) < most;
    e->saturated += beyond;
    e->in_a_row = beyond ? e->in_a_row + 1 : 0;
    e->history[e->n++ % 8] = most;
    for (int k = 0; k < 8 && k < e->n; k++)
        largest = max(largest, e->history[k]);
    e->scale = power_of_two(scale_exponent(largest, top));
    e->changes += known && e->scale != before;
}

extern "C" cudaError_t mz_cu_scales_update(cudaStream_t stream, const int32_t *skip, const void *tables, int ranks,
                                           void *entries, int n) {
    static_assert(sizeof(entry) == 64, "mz_scale_entry");
    if (n == 0)
        return cudaSuccess;
    scales_update_kernel<<<(n + 127) / 128, 128, 0, stream>>>(skip, static_cast<const entry *>(tables), ranks,
                                                              static_cast<entry *>(entries), n);
    return cudaGetLastError();
}
