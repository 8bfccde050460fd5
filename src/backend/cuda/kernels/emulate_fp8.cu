// Widens eight bits, finds a tensor's amax, and rounds to MX and NVFP4 blocks for emulation.
#include "fp8_pack.cuh"
#include "host.cuh"
#include "philox.cuh"
#include "vec.cuh"

extern "C" {
#include "backend/emulate.h"
}

enum { THREADS = 256, UNROLL = 4, BLOCK_ELEMENTS = THREADS * UNROLL * 8 };

struct scales_args { // that of (row, col) is data[(row >> row_shift)·row_step + (col >> col_shift)·col_step]
    const float *data;
    int64_t row_step, col_step;
    int row_shift, col_shift;
};
struct random_args {
    const mz_rng_state *rng; // NULL: to nearest
    uint32_t stream;
    int64_t first; // which element of the operand x[0] is
};

// --- the largest magnitude -----------------------------------------------------------------------------------------
// Positive floats are in the order of their bits, and so are BF16's and FP16's: two of these are compared at once.
__device__ __forceinline__ uint32_t amax_of(uint4 w, uint32_t mine, bool pairs) {
    const uint32_t words[4] = {w.x, w.y, w.z, w.w};
    for_each<4>(
        [&](int k) { mine = pairs ? __vmaxu2(mine, words[k] & 0x7FFF7FFFu) : max(mine, words[k] & 0x7FFFFFFFu); });
    return mine;
}

// AT_ONCE vectors of 16 bytes a thread are on their way at a time, and a block asks for the one place once: each more
// would wait for those of all others.
enum { AT_ONCE = 4 };

__global__ void __launch_bounds__(THREADS) amax_kernel(mz_cu_array x, int64_t n, uint32_t *amax) {
    const bool pairs = x.dtype != MEZZO_F32;
    const int each = pairs ? 8 : 4;
    const int64_t vectors = n / each, step = static_cast<int64_t>(gridDim.x) * THREADS;
    const uint4 *from = static_cast<const uint4 *>(x.data);
    const int64_t first = thread_index<THREADS>();
    uint32_t mine = 0;
    for (int64_t i = first; i < vectors; i += AT_ONCE * step) {
        uint4 w[AT_ONCE];
        for_each<AT_ONCE>([&](int k) { w[k] = i + k * step < vectors ? from[i + k * step] : make_uint4(0, 0, 0, 0); });
        for_each<AT_ONCE>([&](int k) { mine = amax_of(w[k], mine, pairs); });
    }
    if (pairs) { // as FP32's bits
        const float2 both = widen2(mine, x.dtype);
        mine = max(__float_as_uint(both.x), __float_as_uint(both.y));
    }
    if (first < n - vectors * each)
        mine = max(mine, __float_as_uint(load1(x, vectors * each + first)) & 0x7FFFFFFFu);
    record_largest<THREADS>(amax, mine);
}

// Finds the bits of the largest magnitude, a NaN's above all.
static void find_amax(cudaStream_t stream, mz_cu_array x, int64_t n, uint32_t *amax) {
    const unsigned blocks = blocks_of(n, BLOCK_ELEMENTS), grid = blocks < 1056 ? blocks : 1056; // 8 for each of 132
    cudaMemsetAsync(amax, 0, sizeof *amax, stream);
    if (n > 0)
        amax_kernel<<<grid, THREADS, 0, stream>>>(x, n, amax);
}

// --- from 8 bits ---------------------------------------------------------------------------------------------------
static void widen(const mz_cuda_device *cuda, mz_cu_array x, scales_args scales, void *y, int64_t rows, int64_t cols,
                  bool columnwise) {
    const __nv_fp8_interpretation_t format = x.dtype == MEZZO_F8E4M3 ? __NV_E4M3 : __NV_E5M2;
    launch_items(cuda, rows * cols, [=] __device__(int64_t i) {
        const int64_t row = i / cols, col = i % cols, from = columnwise ? col * ((rows + 15) / 16 * 16) + row : i;
        const float factor =
            scales.data[(row >> scales.row_shift) * scales.row_step + (col >> scales.col_shift) * scales.col_step];
        const __half_raw half = __nv_cvt_fp8_to_halfraw(static_cast<const uint8_t *>(x.data)[from], format);
        store1(y, MEZZO_BF16, i, __half2float(half) * factor);
    });
}

// --- blocks, emulated (base/blocks.c has the definitions) ----------------------------------------------------------
enum { MXFP8 = 1, MXFP4 = 2, NVFP4 = 3 };

__device__ __forceinline__ float round_e2m1(float x) { // to nearest even: a tie goes to the even code's number
    const float a = fabsf(x);
    const int code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5);
    const float value = code < 5 ? 0.5f * static_cast<float>(code) : code == 5 ? 3.0f : code == 6 ? 4.0f : 6.0f;
    return copysignf(value, x);
}

__device__ __forceinline__ float round_e4m3(float x) {
    const __half_raw half = __nv_cvt_fp8_to_halfraw(__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3), __NV_E4M3);
    return __half2float(half);
}

// Returns a block's scale without the tensor's; NaN where the block is not finite.
__device__ __forceinline__ float block_scale(float amax, int blocks, float tensor) {
    if (!isfinite(amax))
        return __uint_as_float(0x7FC00000u);
    if (blocks == NVFP4)
        return round_e4m3(amax / 6.0f / tensor);
    if (amax == 0)
        return __uint_as_float(0x00400000u); // 2^-127
    int exponent;
    frexpf(amax, &exponent);
    exponent += 127 - 1 - (blocks == MXFP8 ? 8 : 2);
    return exponent <= 0 ? __uint_as_float(0x00400000u) : __uint_as_float(static_cast<uint32_t>(exponent) << 23);
}

// base/blocks.c's up_or_down.
__device__ __forceinline__ float up_or_down(float x, bool eight, uint32_t random) {
    const float a = fabsf(x), largest = eight ? 448.0f : 6.0f;
    if (!(a < largest))
        return copysignf(largest, x);
    int exponent;
    frexpf(a, &exponent);
    const int least = eight ? -6 : 0, digits = eight ? 3 : 1;
    exponent = a == 0 || exponent - 1 < least ? least : exponent - 1;
    const float step = ldexpf(1, exponent - digits), low = __fmul_rn(floorf(__fdiv_rn(a, step)), step);
    const float up = __fmul_rn(step, philox_uniform(random)) < __fsub_rn(a, low) ? step : 0;
    return copysignf(__fadd_rn(low, up), x);
}

// base/blocks.h's mz_blocks_turn_run along each column of x, rounded as `via` says, a thread a block of rows; signs by
// rng's seed.
template <int SIZE>
void turn(const mz_cuda_device *cuda, mz_cu_array x, float *y, int64_t rows, int64_t cols, int via, const void *rng) {
    launch_items(cuda, (rows + SIZE - 1) / SIZE * cols, [=] __device__(int64_t index) {
        const int64_t part = index / cols, at = part * SIZE * cols + index % cols;
        const bool whole = (part + 1) * SIZE <= rows;
        const uint32_t signs =
            philox({static_cast<const mz_rng_state *>(rng)->seed, 0, 0x60000000u}, 0).x; // mz_blocks_signs
        float v[SIZE];
#pragma unroll
        for (int i = 0; i < SIZE; i++) {
            v[i] = part * SIZE + i < rows ? round_to(load1(x, at + i * cols), via) : 0;
            v[i] = whole && (signs >> i & 1) != 0 ? -v[i] : v[i];
        }
        if (whole) {
#pragma unroll
            for (int half = 1; half < SIZE; half *= 2)
#pragma unroll
                for (int i = 0; i < SIZE; i++)
                    if ((i & half) == 0) {
                        const float one = v[i], other = v[i + half];
                        v[i] = __fadd_rn(one, other);
                        v[i + half] = __fsub_rn(one, other);
                    }
        }
        const float root = SIZE == 32 ? 0x1.6a09e6p-3f : 0.25f;
#pragma unroll
        for (int i = 0; i < SIZE; i++)
            if (part * SIZE + i < rows)
                y[at + i * cols] = whole ? __fmul_rn(v[i], root) : v[i];
    });
}

// x [rows, cols], rounded as `via` says, then to blocks along the columns, or down the rows, a thread a block, whose
// numbers stay in registers. y: FP32, which may be x, or BF16, which holds a number of MX's exactly where its block's
// scale is at least 2^-124.
template <int SIZE>
void round_to_blocks(const mz_cuda_device *cuda, mz_cu_array x, const mz_tensor *result, int64_t rows, int64_t cols,
                     bool down, int blocks, int via, const uint32_t *amax_of_all, random_args random) {
    const int64_t k = down ? rows : cols, runs = down ? cols : rows, parts = (k + SIZE - 1) / SIZE;
    const mz_cu_array y = mz_cuda_array(result);
    launch_items(cuda, runs * parts, [=] __device__(int64_t index) {
        const int64_t run = down ? index % runs : index / parts, part = down ? index / runs : index % parts;
        const int64_t stride = down ? cols : 1, at = (down ? run : run * cols) + part * SIZE * stride;
        const int n = static_cast<int>(min(static_cast<int64_t>(SIZE), k - part * SIZE));
        const float all = round_to(__uint_as_float(*amax_of_all), via), asked = all / (6.0f * 448.0f);
        const float tensor = blocks == NVFP4 && asked >= 0x1p-100f && isfinite(asked) ? asked : 1.0f;
        float v[SIZE], amax = 0;
#pragma unroll
        for (int i = 0; i < SIZE; i++) {
            v[i] = i < n ? round_to(load1(x, at + i * stride), via) : 0;
            amax = fabsf(v[i]) > amax || isnan(v[i]) ? fabsf(v[i]) : amax;
        }
        const float scale = block_scale(amax, blocks, tensor), factor = scale * tensor;
        const double inverse = blocks != NVFP4 ? 1 / static_cast<double>(scale)
                               : scale == 0    ? 0
                                               : static_cast<double>(1.0f / factor);
        const philox_key key = random.rng != nullptr ? philox_key_of(random.rng, random.stream) : philox_key{0, 0, 0};
        uint4 words = make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < SIZE; i++) {
            if (i >= n)
                break;
            const float scaled = static_cast<float>(static_cast<double>(v[i]) * inverse);
            float element;
            if (random.rng != nullptr) {
                const uint64_t e = static_cast<uint64_t>(random.first + at + i * stride);
                if (i == 0 || e % 4 == 0 || stride != 1)
                    words = philox(key, e >> 2);
                const uint32_t word = e % 4 == 0 ? words.x : e % 4 == 1 ? words.y : e % 4 == 2 ? words.z : words.w;
                element = up_or_down(scaled, blocks == MXFP8, word);
            } else {
                element = blocks == MXFP8 ? round_e4m3(scaled) : round_e2m1(scaled);
            }
            store1(y, at + i * stride, isnan(factor) ? factor : element * factor);
        }
    });
}

// --- products ------------------------------------------------------------------------------------------------------
// Of formats that this GPU or cuBLASLt does not multiply: of 8-bit operands of any shape, and of operands that are
// rounded to blocks (attrs.blocks). Their operands are brought to a format that holds them exactly, BF16 and FP32, and
// that one's kernel runs (as cpu/emulate_fp8.c does).
enum { SHIFT = 7 };
static_assert(1 << SHIFT == MZ_SCALE_BLOCK, "a shift finds the block");

// mz_scale_index for kernels.
static scales_args scales_of(const mz_tensor *t) {
    const int64_t cols = t->shape.dim[t->shape.rank - 1], rows = mz_shape_rows(&t->shape);
    if (t->scaling == MZ_SCALING_TILE128)
        return scales_args{t->scale, mz_scale_pitch(cols) >> SHIFT, 1, SHIFT, SHIFT};
    if (t->scaling == MZ_SCALING_BLOCK128)
        return t->columnwise ? scales_args{t->scale, mz_scale_pitch(cols), 1, SHIFT, 0}
                             : scales_args{t->scale, 1, mz_scale_pitch(rows), 0, SHIFT};
    return {.data = t->scale};
}

// Returns what holds an operand exactly. An element of MX has at most 4 significant bits and its scale is a power of
// two; an element of NVFP4 has an FP32 scale, and turning leaves FP32 numbers, which are rounded in place.
static mezzo_dtype plain_dtype(const mz_call *call, int slot) {
    if (mz_is_8bit(&call->in[slot]))
        return MEZZO_BF16;
    const bool turns = call->op == MZ_OP_linear_dw && call->attrs.hadamard;
    return call->attrs.blocks == MEZZO_BLOCKS_NVFP4 || turns ? MEZZO_F32 : MEZZO_BF16;
}

// Returns whether the device has units and this build kernels for 8-bit operands scaled so.
static bool multiplies(const mz_cuda_device *cuda, const mz_call *call) {
    const bool grouped =
        call->op == MZ_OP_grouped_linear || call->op == MZ_OP_grouped_linear_dx || call->op == MZ_OP_grouped_linear_dw;
    return call->in[0].scaling == MZ_SCALING_TENSOR && !grouped ? cuda->cc >= 89 : cuda->cc == 90;
}

static const char *prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    if (mz_is_8bit(&call->in[0]) && mz_is_8bit(&call->in[1]) && multiplies(mz_cuda(device), call))
        return "this device multiplies 8 bits: the storage pass and autocast see to rows that its kernels take";
    return mz_plain_prepare(device, call, plain_dtype, out);
}

static mezzo_status run(mezzo_device *device, const mz_call *call) {
    const mz_cuda_device *cuda = mz_cuda(device);
    mz_call part = mz_plain_call(call, plain_dtype);
    uint32_t *amax = reinterpret_cast<uint32_t *>(static_cast<char *>(part.workspace) - MZ_PLAIN_BEFORE);
    const bool dw = call->op == MZ_OP_linear_dw, sixteen = call->attrs.blocks == MEZZO_BLOCKS_NVFP4;
    const int blocks = call->attrs.blocks;
    random_args random[2] = {};
    if (call->op != MZ_OP_linear && call->attrs.random_gradients)
        random[0] = {.rng = call->rng,
                     .stream = call->attrs.rng | static_cast<uint32_t>(dw ? MZ_STREAM_DW : MZ_STREAM_DX),
                     .first = call->attrs.first_row * mz_cuda_width(&call->in[0])};
    for (int i = 0; i < 2; i++) {
        const mz_tensor *from = &call->in[i];
        const int64_t n = mz_shape_count(&from->shape), cols = mz_cuda_width(from), rows = n / cols;
        const bool down = dw || (call->op == MZ_OP_linear_dx && i == 1);
        mz_cu_array x = mz_cuda_array(from);
        if (mz_is_8bit(from)) {
            widen(cuda, x, scales_of(from), part.in[i].data, rows, cols, from->columnwise);
            continue;
        }
        int via = call->numerics.compute;
        if (dw && call->attrs.hadamard) {
            (sixteen ? turn<16> : turn<32>)(cuda, x, static_cast<float *>(part.in[i].data), rows, cols, via, call->rng);
            x = {part.in[i].data, MEZZO_F32};
            via = MEZZO_F32;
        }
        find_amax(cuda->stream, x, n, amax);
        (sixteen ? round_to_blocks<16> : round_to_blocks<32>)(cuda, x, &part.in[i], rows, cols, down, blocks, via, amax,
                                                              random[i]);
    }
    MZ_CUDA_TRY(cudaGetLastError());
    return mz_plain_run(device, call, &part);
}

const mz_kernel mz_cuda_linear_emulated = {"linear_emulated__cuda", prepare, run};
const mz_kernel mz_cuda_linear_dx_emulated = {"linear_dx_emulated__cuda", prepare, run};
const mz_kernel mz_cuda_linear_dw_emulated = {"linear_dw_emulated__cuda", prepare, run};

static const char *prepare_grouped(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    const char *reason = mz_plain_refuses_grouped(call);
    return reason != NULL ? reason : prepare(device, call, out);
}

const mz_kernel mz_cuda_grouped_linear_emulated = {"grouped_linear_emulated__cuda", prepare_grouped, run};
const mz_kernel mz_cuda_grouped_linear_dx_emulated = {"grouped_linear_dx_emulated__cuda", prepare_grouped, run};
const mz_kernel mz_cuda_grouped_linear_dw_emulated = {"grouped_linear_dw_emulated__cuda", prepare_grouped, run};

mz_takes mz_cuda_takes(const mz_kernel *kernel) {
#define ALL(op, kind) &mz_cuda_##op##_##kind, &mz_cuda_##op##_dx_##kind, &mz_cuda_##op##_dw_##kind
    const mz_kernel *const eight[] = {ALL(linear, emulated),         ALL(linear, fp8),         ALL(linear, block),
                                      ALL(grouped_linear, emulated), ALL(grouped_linear, fp8), &mz_cuda_quantize};
#undef ALL
    for (size_t i = 0; i < MZ_COUNT(eight); i++)
        if (kernel == eight[i])
            return {.dtypes = MZ_DTYPES_USUAL | MZ_BIT(MEZZO_F8E4M3) | MZ_BIT(MEZZO_F8E5M2),
                    .scalings = MZ_SCALINGS_NONE | MZ_SCALINGS_8BIT,
                    .blocks = i < 3};
#define KIND(name, ...) || kernel == &mz_cuda_##name
    const bool extras = kernel == &mz_cuda_linear_dx_product
#include "mezzo/optimizers.def"
#undef KIND
        ;
    return {.dtypes = MZ_DTYPES_USUAL, .scalings = MZ_SCALINGS_NONE, .extras = extras};
}
