// Rounding to E4M3 and E5M2 with a power of two as scale, in both layouts, with what stands in front (an activation, or
// the derivative of one) and what is found on the way: the largest magnitude and the columns' sums. One read of each
// input.
#include "activation.cuh"
#include "pdl_launch.cuh"
#include "fp8_pack.cuh"
#include "quantize.cuh"
#include "branchless_act.cuh"
#include "vec.cuh"

extern "C" {
#include "backend/emulate.h"
#include "backend/update.h"
}

// A block's tile is ROWS × COLS. A thread quantizes 8 numbers of a row at a time into shared memory; then it reads 16
// rows of 4 columns, transposes them in registers and writes runs of 16 bytes.
enum { ROWS = 64, COLS = 128, PARTS = COLS / 8, THREADS = COLS, GROUPS = THREADS / PARTS, PITCH = COLS + 8 };

// 1 over the scale; the first block writes one that is found.
__device__ __forceinline__ float inverse_of(const mz_cu_quantize &q) {
    if (q.measured == nullptr)
        return q.entry != nullptr ? 1 / q.entry[0] : 1; // exact
    const int exponent = scale_exponent(*q.measured, q.dtype == MEZZO_F8E4M3 ? 8 : 15);
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)
        q.entry[0] = power_of_two(exponent);
    return power_of_two(-exponent);
}

// Returns where a thread's codes wait: words of a row change places so that 16 rows of 4 columns are in banks of their
// own.
__device__ __forceinline__ int waits_at(int line, int byte) {
    constexpr int runs = ROWS / 16;
    return line * PITCH + (byte ^ line / 16 % runs * (128 / runs));
}

// A tile of codes to where it stays turned, by all threads. `pitch` is a multiple of 16, and codes after the last row
// are zeros.
__device__ __forceinline__ void write_columnwise(const uint8_t *tile, void *data, int64_t col0, int64_t cols,
                                                 int64_t row0, int64_t pitch) {
#pragma unroll 1
    for (int t = static_cast<int>(threadIdx.x); t < ROWS / 16 * (COLS / 4); t += THREADS) {
        const int run = t % (ROWS / 16) * 16, quad = t / (ROWS / 16) * 4;
        if (row0 + run < pitch && col0 + quad < cols)
            turn_run(tile + waits_at(run, quad), PITCH,
                     static_cast<uint8_t *>(data) + (col0 + quad) * pitch + row0 + run, pitch);
    }
}

// A block's sums of columns, the groups' in order, by way of a tile.
__device__ __forceinline__ void write_sums(uint8_t *tile, const float sums[8], int64_t col0, int64_t cols, float *to) {
    float *all = reinterpret_cast<float *>(tile);
    const int tid = static_cast<int>(threadIdx.x);
    __syncthreads();
    for_each<8>([&](int k) { all[tid / PARTS * COLS + tid % PARTS * 8 + k] = sums[k]; });
    __syncthreads();
    float sum = 0;
    for_each<GROUPS>([&](int g) { sum += all[g * COLS + tid]; });
    if (col0 + tid < cols)
        to[col0 + tid] = sum;
}

// --- what a thread reads of 8 columns of a row, and the numbers that it makes of them: RESULTS rows side by side
// ------ A kernel's source is known when it is compiled, and rows are not unrolled: with a choice among all acts, 64
// times, the code was more than a multiprocessor keeps at hand.

// BF16: x, act(x), or x times act'(preact), and act(preact) beside it (ACT_OUT).
template <int ACT, bool DACT, bool BESIDE> struct acted_rows {
    using numbers = uint4;
    static constexpr int RESULTS = 1, ONCE = ACT == ACT_NONE ? 4 : 2;
    static constexpr bool ACT_OUT = BESIDE, WIDENS = DACT;
    // A derivative's loads need more blocks at a time than the compiler's registers allow (ReLU's has hardly any code).
    static constexpr int BLOCKS = DACT && ACT != ACT_RELU ? 8 : 1;
    struct raw {
        uint4 x, preact;
    };
    const uint16_t *x, *preact;
    __device__ __forceinline__ acted_rows(const mz_cu_quantize &q, int64_t row0, int64_t col)
        : x(static_cast<const uint16_t *>(q.x.data) + row0 * q.cols + col),
          preact(static_cast<const uint16_t *>(q.preact.data) + row0 * q.cols + col) {}
    __device__ __forceinline__ void fetch(const mz_cu_quantize &, uint32_t line, uint32_t pitch, raw &to) const {
        to.x = *reinterpret_cast<const uint4 *>(x + line * pitch);
        if (DACT)
            to.preact = *reinterpret_cast<const uint4 *>(preact + line * pitch);
    }
    static __device__ __forceinline__ void make(const raw &from, uint4 z[1], uint4 &act_out) {
        z[0] = act_out = from.x;
        if (ACT == ACT_NONE)
            return;
        const acted8 both = act8<ACT, DACT>(DACT ? from.preact : from.x, from.x);
        act_out = both.value;
        z[0] = DACT ? both.derivative : both.value;
    }
};

// SwiGLU, or its derivatives: a tile is of columns that gate and up have alike.
template <bool DACT, bool BESIDE> struct gated_rows {
    using numbers = uint4;
    static constexpr int RESULTS = DACT ? 2 : 1, ONCE = 2, BLOCKS = DACT ? 5 : 7;
    static constexpr bool ACT_OUT = BESIDE, WIDENS = false;
    struct raw {
        uint4 gate, up, dy;
    };
    const uint16_t *pairs, *dys;
    __device__ __forceinline__ gated_rows(const mz_cu_quantize &q, int64_t row0, int64_t col) {
        const int64_t width = q.cols / RESULTS;
        pairs = static_cast<const uint16_t *>(DACT ? q.preact.data : q.x.data) + row0 * 2 * width + col;
        dys = static_cast<const uint16_t *>(q.x.data) + row0 * width + col;
    }
    __device__ __forceinline__ void fetch(const mz_cu_quantize &, uint32_t line, uint32_t pitch, raw &to) const {
        to.gate = *reinterpret_cast<const uint4 *>(pairs + 2 * line * pitch);
        to.up = *reinterpret_cast<const uint4 *>(pairs + (2 * line + 1) * pitch);
        if (DACT)
            to.dy = *reinterpret_cast<const uint4 *>(dys + line * pitch);
    }
    static __device__ __forceinline__ void make(const raw &from, uint4 z[RESULTS], uint4 &act_out) {
        const gated8 all = swiglu8<DACT>(from.gate, from.up, from.dy);
        act_out = all.value;
        z[0] = DACT ? all.gate : all.value;
        if (DACT)
            z[RESULTS - 1] = all.up;
    }
};

// FP32 and FP16, and MOVED: a row is another's, or of another dtype, as dispatch and cast leave it.
struct numbers8 {
    float v[8];
};
template <int DTYPE, bool MOVED> struct plain_rows {
    using numbers = numbers8;
    static constexpr int RESULTS = 1, ONCE = 4, BLOCKS = DTYPE == MEZZO_BF16 ? 8 : 7;
    static constexpr bool ACT_OUT = false, WIDENS = false;
    struct raw {
        raw8 x;
        float weight;
    };
    int64_t row0, col;
    __device__ __forceinline__ plain_rows(const mz_cu_quantize &, int64_t first, int64_t from)
        : row0(first), col(from) {}
    __device__ __forceinline__ void fetch(const mz_cu_quantize &q, uint32_t line, uint32_t, raw &to) const {
        int64_t from = row0 + line;
        to.weight = 1;
        if (MOVED && q.order != nullptr) {
            to.weight = q.weights != nullptr ? q.weights[q.order[from]] : 1;
            from = q.order[from] / q.top_k;
        }
        to.x = fetch8(q.x.data, DTYPE, from * q.cols + col);
    }
    static __device__ __forceinline__ void make(const raw &from, numbers8 z[1], uint4 &) {
        widen8(from.x, DTYPE, z[0].v);
        if (MOVED)
            for_each<8>([&](int k) { z[0].v[k] = round_to(z[0].v[k] * from.weight, MEZZO_BF16); });
    }
};

// The rest for either type of numbers.
__device__ __forceinline__ void widen8(const numbers8 &z, float v[8]) {
    for_each<8>([&](int k) { v[k] = z.v[k]; });
}
template <class SAME>
__device__ __forceinline__ uint2 to_fp8(const numbers8 &z, const SAME &, float inverse, bool e4m3, uint32_t &amax) {
    return to_fp8(z.v, inverse, e4m3, amax);
}
__device__ __forceinline__ uint32_t bits_of_amax(const numbers8 *, uint32_t amax) {
    return amax;
}
__device__ __forceinline__ uint32_t bits_of_amax(const uint4 *, uint32_t amax) {
    return larger_of(amax);
}

template <class SOURCE> __global__ void __launch_bounds__(THREADS, SOURCE::BLOCKS) quantize_kernel(mz_cu_quantize q) {
    wait_for_before();
    using numbers = typename SOURCE::numbers;
    constexpr int results = SOURCE::RESULTS, once = SOURCE::ONCE, tiles = results + SOURCE::ACT_OUT;
    __shared__ __align__(16) uint8_t tile[tiles][ROWS * PITCH];
    const int tid = static_cast<int>(threadIdx.x), part = tid % PARTS, group = tid / PARTS;
    const bool e4m3 = q.dtype == MEZZO_F8E4M3, adds = q.sums != nullptr;
    const int64_t width = q.cols / results, col0 = static_cast<int64_t>(blockIdx.x) * COLS, col = col0 + part * 8;
    const uint32_t pitch = static_cast<uint32_t>(width);
    const float inverse = inverse_of(q), act_out_inverse = SOURCE::ACT_OUT ? 1 / *q.act_out_scale : 0; // exact
    float sums[results][8] = {};
    uint32_t amax = 0;
    for (int64_t row0 = static_cast<int64_t>(blockIdx.y) * ROWS; row0 < q.rows;
         row0 += static_cast<int64_t>(gridDim.y) * ROWS) {
        const int lines =
            col < width ? static_cast<int>(min(q.rows - row0, static_cast<int64_t>(ROWS))) : 0; // this thread's
        const SOURCE source(q, row0, col);
        uint8_t *y = static_cast<uint8_t *>(q.y) + row0 * q.cols + col;
        // GROUPS rows at a time, `once` times before the first is inspected.
#pragma unroll 1
        for (int first = 0; first < ROWS / GROUPS; first += once) {
            typename SOURCE::raw raw[once];
#pragma unroll
            for (int u = 0; u < once; u++) {
                const uint32_t line = (first + u) * GROUPS + group;
                raw[u] = {};
                if (static_cast<int>(line) < lines)
                    source.fetch(q, line, pitch, raw[u]);
            }
#pragma unroll
            for (int u = 0; u < once; u++) {
                const int line = (first + u) * GROUPS + group;
                numbers z[results];
                uint4 act_out;
                SOURCE::make(raw[u], z, act_out);
                if (SOURCE::ACT_OUT) {
                    uint32_t own = 0;
                    *reinterpret_cast<uint2 *>(tile[tiles - 1] + waits_at(line, part * 8)) =
                        to_fp8(act_out, act_out, act_out_inverse, true, own);
                }
#pragma unroll
                for (int r = 0; r < results; r++) {
                    float v[8];
                    if (SOURCE::WIDENS || adds) {
                        widen8(z[r], v);
                        for_each<8>([&](int k) { sums[r][k] += v[k]; });
                    }
                    const uint2 fp8 =
                        SOURCE::WIDENS ? to_fp8(z[r], v, inverse, e4m3, amax) : to_fp8(z[r], z[r], inverse, e4m3, amax);
                    if (q.y != nullptr && line < lines)
                        *reinterpret_cast<uint2 *>(y + static_cast<uint32_t>(line * results + r) * pitch) = fp8;
                    if (q.columnwise != nullptr)
                        *reinterpret_cast<uint2 *>(tile[r] + waits_at(line, part * 8)) = fp8;
                }
            }
        }
        if (q.columnwise == nullptr)
            continue;
        __syncthreads();
        for_each<tiles>([&](int t) {
            write_columnwise(tile[t],
                             t < results ? static_cast<uint8_t *>(q.columnwise) + t * width * q.pitch
                                         : static_cast<uint8_t *>(q.act_out),
                             col0, width, row0, q.pitch);
        });
        __syncthreads();
    }
    for (int r = 0; r < results && adds; r++)
        write_sums(tile[r], sums[r], col0, width, q.sums + blockIdx.y * q.cols + r * width);
    if (q.amax != nullptr)
        record_amax<THREADS>(q.amax, bits_of_amax(static_cast<const numbers *>(nullptr), amax));
}

// Returns what is rounded to `via` in front of row and col, or x there.
__device__ __forceinline__ float number_at(const mz_cu_quantize &q, int64_t row, int64_t col) {
    const bool derivative = q.preact.data != nullptr;
    const int64_t i = row * q.cols + col;
    if (q.act == ACT_NONE)
        return load1(q.x, i);
    float z;
    if (q.act == ACT_SWIGLU) {
        const int64_t width = derivative ? q.cols / 2 : q.cols, of = derivative ? col % width : col,
                      at = row * 2 * width + of;
        const mz_cu_array &pairs = derivative ? q.preact : q.x;
        const float gate = load1(pairs, at), up = load1(pairs, at + width);
        const float2 both = derivative ? swiglu_derivatives(load1(q.x, row * width + of), gate, up)
                                       : make_float2(swiglu(gate, up), 0.0f);
        z = of == col ? both.x : both.y;
    } else {
        const float x = load1(q.x, i);
        z = derivative ? times_derivative(x, load1(q.preact, i), q.act) : activate(x, q.act);
    }
    return round_to(z, q.via);
}

// Returns what the others do not take: a thread a column, a number at a time.
__global__ void __launch_bounds__(THREADS) quantize_any_kernel(mz_cu_quantize q) {
    wait_for_before();
    const int64_t col = static_cast<int64_t>(blockIdx.x) * COLS + threadIdx.x;
    const bool e4m3 = q.dtype == MEZZO_F8E4M3;
    const int64_t act_out_cols = q.act == ACT_SWIGLU ? q.cols / 2 : q.cols;
    const float inverse = inverse_of(q);
    float sum = 0;
    uint32_t amax = 0;
    for (int64_t row0 = static_cast<int64_t>(blockIdx.y) * ROWS; row0 < q.rows && col < q.cols;
         row0 += static_cast<int64_t>(gridDim.y) * ROWS)
        for (int64_t row = row0; row < row0 + ROWS && row < q.rows; row++) {
            const int64_t i = row * q.cols + col;
            const float z = number_at(q, row, col);
            sum += z;
            amax = max(amax, magnitude(z));
            const uint8_t code = to_fp8(z, inverse, e4m3);
            if (q.y != nullptr)
                static_cast<uint8_t *>(q.y)[i] = code;
            if (q.columnwise != nullptr)
                static_cast<uint8_t *>(q.columnwise)[col * q.pitch + row] = code;
            if (q.act_out != nullptr && col < act_out_cols) {
                mz_cu_quantize forward = q; // number_at's
                forward.x = q.preact;
                forward.preact.data = nullptr;
                forward.cols = act_out_cols;
                const float a = number_at(forward, row, col);
                static_cast<uint8_t *>(q.act_out)[col * q.pitch + row] = to_fp8(a, 1 / *q.act_out_scale, true);
            }
        }
    for (int64_t row = q.rows; blockIdx.y == 0 && row < q.pitch && col < q.cols; row++) {
        if (q.columnwise != nullptr)
            static_cast<uint8_t *>(q.columnwise)[col * q.pitch + row] = 0;
        if (q.act_out != nullptr && col < act_out_cols)
            static_cast<uint8_t *>(q.act_out)[col * q.pitch + row] = 0;
    }
    if (q.sums != nullptr && col < q.cols)
        q.sums[blockIdx.y * q.cols + col] = sum;
    if (q.amax != nullptr)
        record_amax<THREADS>(q.amax, amax);
}

static_assert(THREADS == COLS && GROUPS * COLS * sizeof(float) <= ROWS * PITCH, "a thread adds up a column");

static int64_t quantize_turns(const mz_cu_quantize &q) {
    const int64_t across = (q.cols + COLS - 1) / COLS, down = (q.rows + ROWS - 1) / ROWS;
    const int64_t limit = (MZ_CU_QUANTIZE_BLOCKS + across - 1) / across;
    return down < limit ? down : limit;
}

using quantizer = void (*)(mz_cu_quantize);

template <int ACT> static quantizer kernel_of_act(const mz_cu_quantize &q) {
    return q.preact.data == nullptr ? quantize_kernel<acted_rows<ACT, false, false>>
           : q.act_out == nullptr   ? quantize_kernel<acted_rows<ACT, true, false>>
                                    : quantize_kernel<acted_rows<ACT, true, true>>;
}

// Rows of a tile: those of gate and up where a derivative is of both.
static int64_t width_of(const mz_cu_quantize &q) {
    return q.act == ACT_SWIGLU && q.preact.data != nullptr ? q.cols / 2 : q.cols;
}

static quantizer kernel_of(const mz_cu_quantize &q) {
    const bool usual = q.x.dtype == MEZZO_BF16 && q.via == MEZZO_BF16;  // of an act
    const bool alone = q.act_out != nullptr && q.columnwise == nullptr; // tiles are turned with the derivative's
    const bool wide = q.cols > INT32_MAX / (4 * ROWS);                  // places in a tile have 32 bits
    if (q.moved)                                                        // no other kernel is
        return q.x.dtype == MEZZO_F32 ? quantize_kernel<plain_rows<MEZZO_F32, true>>
                                      : quantize_kernel<plain_rows<MEZZO_BF16, true>>;
    if (width_of(q) % 16 != 0 || (q.act != ACT_NONE && !usual) || alone || wide)
        return quantize_any_kernel;
    switch (q.act) {
    case ACT_RELU:
        return kernel_of_act<ACT_RELU>(q);
    case ACT_GELU:
        return kernel_of_act<ACT_GELU>(q);
    case ACT_GELU_TANH:
        return kernel_of_act<ACT_GELU_TANH>(q);
    case ACT_SILU:
        return kernel_of_act<ACT_SILU>(q);
    case ACT_SWIGLU:
        return q.preact.data == nullptr ? quantize_kernel<gated_rows<false, false>>
               : q.act_out == nullptr   ? quantize_kernel<gated_rows<true, false>>
                                        : quantize_kernel<gated_rows<true, true>>;
    default:
        return q.x.dtype == MEZZO_F32    ? quantize_kernel<plain_rows<MEZZO_F32, false>>
               : q.x.dtype == MEZZO_BF16 ? quantize_kernel<acted_rows<ACT_NONE, false, false>>
                                         : quantize_kernel<plain_rows<MEZZO_F16, false>>;
    }
}

cudaError_t quantize_run(cudaStream_t stream, const mz_cu_quantize &q) {
    if (q.rows == 0 || q.cols == 0)
        return cudaSuccess;
    const quantizer kernel = kernel_of(q);
    const dim3 grid(blocks_of(kernel == quantize_any_kernel ? q.cols : width_of(q), COLS),
                    static_cast<unsigned>(quantize_turns(q)));
    return launch_dependent(stream, kernel, grid, THREADS, 0, q);
}

// --- codes into columns ----------------------------------------------------------------------------------------------
// Rows are multiples of 16 codes. A warp reads four rows of a tile at a time.
__global__ void __launch_bounds__(THREADS) transpose_kernel(mz_cu_quantize q) {
    wait_for_before();
    constexpr int parts = COLS / 16, lines = THREADS / parts;
    __shared__ __align__(16) uint8_t tile[ROWS * PITCH];
    const int tid = static_cast<int>(threadIdx.x), part = tid % parts, group = tid / parts;
    const int64_t col0 = static_cast<int64_t>(blockIdx.x) * COLS, col = col0 + part * 16;
    const uint8_t *x = static_cast<const uint8_t *>(q.x.data);
    for (int64_t row0 = static_cast<int64_t>(blockIdx.y) * ROWS; row0 < q.rows;
         row0 += static_cast<int64_t>(gridDim.y) * ROWS) {
        uint4 codes[ROWS / lines];
#pragma unroll
        for (int u = 0; u < ROWS / lines; u++) {
            const int64_t row = row0 + u * lines + group;
            codes[u] = make_uint4(0, 0, 0, 0);
            if (row < q.rows && col < q.cols)
                codes[u] = *reinterpret_cast<const uint4 *>(x + row * q.cols + col);
        }
#pragma unroll
        for (int u = 0; u < ROWS / lines; u++) { // a row of the tile begins at a multiple of 8 bytes
            uint2 *to = reinterpret_cast<uint2 *>(tile + waits_at(u * lines + group, part * 16));
            to[0] = make_uint2(codes[u].x, codes[u].y);
            to[1] = make_uint2(codes[u].z, codes[u].w);
        }
        __syncthreads();
        write_columnwise(tile, q.columnwise, col0, q.cols, row0, q.pitch);
        __syncthreads();
    }
}

static cudaError_t transpose_run(cudaStream_t stream, const mz_cu_quantize &q) {
    if (q.rows == 0 || q.cols == 0)
        return cudaSuccess;
    const dim3 grid(blocks_of(q.cols, COLS), static_cast<unsigned>(quantize_turns(q)));
    return launch_dependent(stream, transpose_kernel, grid, THREADS, 0, q);
}

// --- the call ------------------------------------------------------------------------------------------------------
// Quantizes to 8 bits with scales: both layouts and the sums of columns in one pass, after a pass that finds the amax
// under current scaling.
enum { ALIGN = 256 }; // bytes of the magnitude in the workspace; the parts of sums follow

struct quantized { // outputs; NULL: absent
    const mz_tensor *y, *columnwise, *scales, *columnwise_scales, *act_out, *dbias;
    const mz_tensor *any; // of the first two
    bool blocks;
};
static quantized outputs_of(const mz_call *call) {
    quantized o = {mz_output(call, MZ_OUT(quantize, y)),       mz_output(call, MZ_OUT(quantize, columnwise)),
                   mz_output(call, MZ_OUT(quantize, scales)),  mz_output(call, MZ_OUT(quantize, columnwise_scales)),
                   mz_output(call, MZ_OUT(quantize, act_out)), mz_output(call, MZ_OUT(quantize, dbias))};
    o.any = o.y != NULL ? o.y : o.columnwise;
    o.blocks = o.any != NULL && mz_scaling_in_blocks(o.any->scaling);
    return o;
}
template <class T> static T *memory_of(const mz_tensor *t) {
    return t != NULL ? static_cast<T *>(t->data) : nullptr;
}

mz_cu_quantize quantize_args_of(const mz_call *call) {
    const mz_tensor *x = mz_in(call, quantize, x), *preact = mz_in(call, quantize, preact);
    const quantized o = outputs_of(call);
    mz_scale_entry *entry = o.blocks ? nullptr : memory_of<mz_scale_entry>(o.scales);
    const mz_shape z = mz_quantized_shape(call->attrs.act, &x->shape, mz_present(preact) ? &preact->shape : NULL);
    const int64_t n = mz_shape_count(&z), cols = z.dim[z.rank - 1];
    return {.x = mz_cuda_array(x),
            .preact = mz_present(preact) ? mz_cuda_array(preact) : mz_cu_array{NULL, MEZZO_F32},
            .rows = cols > 0 ? n / cols : 0,
            .cols = cols,
            .pitch = cols > 0 ? mz_columnwise_pitch(n / cols) : 0,
            .act = call->attrs.act,
            .via = call->attrs.via,
            .dtype = (o.any != NULL ? o.any : x)->dtype,
            .y = memory_of<void>(o.y),
            .columnwise = memory_of<void>(o.columnwise),
            .entry = entry != nullptr ? &entry->scale : nullptr,
            .amax = entry == nullptr || !call->attrs.record ? nullptr
                    : call->attrs.keeps                     ? &entry->weight_amax
                                                            : &entry->amax,
            .act_out = memory_of<void>(o.act_out),
            .act_out_scale = o.act_out != NULL ? o.act_out->scale : nullptr};
}

// Checks codes in blocks or tiles of 128, and the layout of their scales.
static const char *check_blocks(const mz_call *call, const quantized &o) {
    const mz_tensor *fp8[] = {o.y, o.columnwise};
    if (call->attrs.act == MZ_ACT_SWIGLU)
        return "SwiGLU's halves are in other blocks";
    if (o.act_out != NULL)
        return "block scales need a quantize of the activation's own";
    for (int i = 0; i < 2; i++) {
        if (fp8[i] != NULL && (fp8[i]->dtype != MEZZO_F8E4M3 || fp8[i]->columnwise != (i == 1)))
            return "quantizes to e4m3 in blocks, in both layouts";
        if (fp8[i] != NULL && mz_output(call, mz_scale_slot(fp8[i]->scaling, i == 1)) == NULL)
            return "writes the scales of blocks";
        if (fp8[0] != NULL && fp8[1] != NULL && fp8[0]->scaling != fp8[1]->scaling)
            return "quantizes both layouts alike";
    }
    return NULL;
}

static int64_t turns_of(const mz_cu_quantize &q, bool blocks) {
    return blocks ? quantize_block_turns(q.rows) : quantize_turns(q);
}

static const char *prepare(mezzo_device *, const mz_call *call, mz_prepared *out) {
    const mz_tensor *x = mz_in(call, quantize, x), *preact = mz_in(call, quantize, preact);
    const quantized o = outputs_of(call);
    const mz_tensor *fp8[] = {o.y, o.columnwise};
    if (x->scaling != MZ_SCALING_NONE)
        return x->shape.dim[x->shape.rank - 1] % 16 != 0 ? "moves rows of 16 codes into columns"
                                                         : mz_transpose_refusal(call);
    if (!mz_cuda_float(x))
        return "quantizes fp32, bf16 and fp16";
    if (mz_present(preact) && preact->dtype != x->dtype)
        return "the activation's input and the gradient have one dtype";
    const mz_cu_quantize q = quantize_args_of(call);
    out->workspace = call->attrs.measure || o.dbias != NULL ? ALIGN : 0;
    if (o.dbias != NULL)
        out->workspace += static_cast<size_t>(turns_of(q, o.blocks) * q.cols) * sizeof(float);
    if (o.blocks)
        return check_blocks(call, o);
    for (int i = 0; i < 2; i++)
        if (fp8[i] != NULL && ((fp8[i]->dtype != MEZZO_F8E4M3 && fp8[i]->dtype != MEZZO_F8E5M2) ||
                               fp8[i]->scaling != MZ_SCALING_TENSOR || fp8[i]->columnwise != (i == 1) || !o.scales))
            return "quantizes to 8 bits with a tensor's scale, which an entry has";
    if (o.act_out != NULL && (o.act_out->dtype != MEZZO_F8E4M3 || !o.act_out->columnwise ||
                              call->attrs.act == MZ_ACT_NONE || call->n_in < 2 || !mz_present(preact)))
        return "the quantized activation beside its derivative is columnwise e4m3";
    return NULL;
}

// In blocks with current scaling, which reads and records no history.
static mezzo_status run(mezzo_device *device, const mz_call *call) {
    const cudaStream_t stream = mz_cuda(device)->stream;
    const quantized o = outputs_of(call);
    mz_cu_quantize_block q = {quantize_args_of(call), o.blocks && o.any->scaling == MZ_SCALING_TILE128,
                              memory_of<float>(o.scales), memory_of<float>(o.columnwise_scales)};
    uint32_t *measured = static_cast<uint32_t *>(call->workspace);
    if (mz_in(call, quantize, x)->scaling != MZ_SCALING_NONE) {
        MZ_CUDA_TRY(transpose_run(stream, q));
        return MEZZO_OK;
    }
    if (q.entry != nullptr && call->attrs.measure) {
        mz_cu_quantize finds = q;
        finds.y = finds.columnwise = finds.act_out = nullptr;
        finds.entry = nullptr;
        finds.amax = measured;
        MZ_CUDA_TRY(cudaMemsetAsync(measured, 0, sizeof *measured, stream));
        MZ_CUDA_TRY(quantize_run(stream, finds));
        q.measured = measured;
    }
    if (o.dbias != NULL)
        q.sums = reinterpret_cast<float *>(static_cast<char *>(call->workspace) + ALIGN);
    MZ_CUDA_TRY(o.blocks ? quantize_block_run(stream, q) : quantize_run(stream, q));
    if (o.dbias != NULL && q.rows > 0)
        MZ_CUDA_TRY(mz_cu_add_partials(stream, q.sums, memory_of<float>(o.dbias), q.cols, turns_of(q, o.blocks),
                                       call->attrs.accumulate));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_quantize = {"quantize__cuda", prepare, run};

// --- a step's end --------------------------------------------------------------------------------------------------
__global__ void scales_update_kernel(const int32_t *skip, const mz_scale_entry *tables, int ranks,
                                     mz_scale_entry *entries, int n) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= n)
        return;
    uint32_t amax = 0, largest = 0;
    for (int r = 0; r < ranks && *skip == 0; r++)
        amax = max(amax, tables[static_cast<int64_t>(r) * n + i].amax);
    mz_scale_entry *e = &entries[i];
    e->amax = 0;
    if (*skip == 0) { // of codes that stay, which the update writes anew
        amax = max(amax, e->weight_amax);
        e->weight_amax = 0;
    }
    if (amax == 0 || amax >= 0x7F800000u)
        return;
    const int top = e->dtype == MEZZO_F8E4M3 ? 8 : 15;
    const float before = e->scale;
    const bool known = e->n > 0, beyond = known && __float_as_uint(1.75f * power_of_two(top) * before) < amax;
    e->saturated += beyond;
    e->in_a_row = beyond ? e->in_a_row + 1 : 0;
    e->history[e->n++ % 8] = amax;
    for (int k = 0; k < 8 && k < e->n; k++)
        largest = max(largest, e->history[k]);
    e->scale = power_of_two(scale_exponent(largest, top));
    e->changes += known && e->scale != before;
}

// The state's `skip` is the optimizer's; tables [ranks, n] entries, which are the result itself with one rank.
static void launch_scales_update(const mz_cuda_device *cuda, const mz_call *call) {
    const mz_tensor *entries = mz_out(call, scales_update, entries), *given = mz_in(call, scales_update, tables);
    const mz_tensor *tables = mz_present(given) ? given : entries;
    const int64_t size = sizeof(mz_scale_entry), n = mz_shape_count(&entries->shape) / size;
    const int ranks = n > 0 ? static_cast<int>(mz_shape_count(&tables->shape) / size / n) : 0;
    launch_threads<128>(cuda, scales_update_kernel, n, &data_of<mz_opt_state>(mz_in(call, scales_update, state))->skip,
                        data_of<mz_scale_entry>(tables), ranks, data_of<mz_scale_entry>(entries), static_cast<int>(n));
}
MZ_CUDA_KERNEL(scales_update, launch_scales_update, storages<"u", "u">)
