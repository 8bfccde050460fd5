// Computes the gradient of a convolution's weight: dw [n, (r, s, c)] = Σ over pixels of dy [pixel, n] · x [the pixel
// that (r, s) sees, c], by warpgroup matrix instructions (compute capability 9.0 only). A block of two warpgroups makes
// a tile of 128 × 256 of dw from a range of pixels; pieces of 64 pixels come through a pipeline of asynchronous copies,
// those of x from where the tap of a column is, zeros where that is padding. So no image is written out tap by tap.
// After the columns stands one of ones, where the bias's gradient is wanted too.
#include "conv.cuh"
#include "ptx.cuh"
#include "vec.cuh"
#include "wgmma.cuh"

#include <type_traits>

namespace {
enum { THREADS = 256, ROWS = 128, COLUMNS = 256, L = 64, STAGES = 4, ALIGN = 1024 };
enum { BLOCK = L * 128, OPERAND = ROWS / 64 * BLOCK, STAGE = OPERAND + COLUMNS / 64 * BLOCK };
enum { BYTES = STAGES * STAGE + ALIGN, PIECES = ROWS / 8, STRIDE = THREADS / PIECES };

// i / d of 0 ≤ i < 2^31 (Granlund and Montgomery, 1994).
struct divider {
    uint32_t factor;
    int shift, by;
};

divider divider_of(int64_t by) {
    int shift = 0;
    while (int64_t{1} << shift < by)
        shift++;
    const uint64_t factor =
        ((uint64_t{1} << 32) * ((uint64_t{1} << shift) - static_cast<uint64_t>(by))) / static_cast<uint64_t>(by) + 1;
    return {static_cast<uint32_t>(factor), shift, static_cast<int>(by)};
}

__device__ __forceinline__ int divide(int i, const divider &d) {
    const uint32_t n = static_cast<uint32_t>(i);
    return static_cast<int>((__umulhi(n, d.factor) + n) >> d.shift);
}

struct problem {
    const void *dy, *x;
    float *out, *bias;                                    // bias: sums of dy's columns, or NULL
    int64_t out_split;                                    // numbers from one range's sums to the next's
    int h, w, c, n, s, columns, stride, pad, pixels, per; // per: pixels of a range
    divider across, down;                                 // a result's width and height
    int tiles_c;
    bool accumulate, accumulate_bias;
};

// 64 rows of numbers as columns of blocks, 64 numbers each; a block's rows have 128 bytes, whose 16-byte pieces change
// places by exclusive or with the row ("128-byte swizzle").
__device__ __forceinline__ unsigned char *place_of(unsigned char *to, int row, int piece) {
    return to + piece / 8 * BLOCK + row * 128 + (((piece ^ row) & 7) << 4);
}

__device__ const uint4 one_bf16 = {0x3F80, 0, 0, 0}, one_fp16 = {0x3C00, 0, 0, 0}; // 1, and seven zeros

template <typename T> __device__ __forceinline__ const T *one() {
    return reinterpret_cast<const T *>(std::is_same<T, __nv_bfloat16>::value ? &one_bf16 : &one_fp16);
}

// Says where a result's tap (0, 0) would be without padding: its number in x, and its row, with its column from bit 16
// on.
struct spot {
    int at;
    uint32_t corner;
};

// Those of the 64 pixels from `first` on, by as many threads.
__device__ __forceinline__ void tabulate(const problem &v, spot *spots, int first) {
    if (threadIdx.x >= L)
        return;
    const int pixel = first + static_cast<int>(threadIdx.x);
    const int line = divide(pixel, v.across), image = divide(line, v.down);
    const int q = (pixel - line * v.across.by) * v.stride, p = (line - image * v.down.by) * v.stride;
    spots[threadIdx.x] = {(image * v.h + p) * v.w + q, static_cast<uint32_t>(p) | static_cast<uint32_t>(q) << 16};
}

// Holds what a thread copies: 8 columns of dy and twice 8 of x, of every 16th pixel of a piece.
template <typename T> struct copier {
    const T *dy, *x[2];                            // x: at the tap
    int row, piece, end, top[2], left[2], step[2]; // top, left: the tap's place beside a spot's
    bool dy_inside, x_inside[2], ones[2];

    __device__ __forceinline__ copier(const problem &v, int m0, int c0, int last) {
        row = static_cast<int>(threadIdx.x) / PIECES;
        piece = static_cast<int>(threadIdx.x) % PIECES;
        end = last;
        dy = static_cast<const T *>(v.dy) + m0 + piece * 8;
        dy_inside = m0 + piece * 8 < v.n;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const int column = c0 + (piece + k * PIECES) * 8, tap = column / v.c;
            x_inside[k] = column < v.columns;
            ones[k] = column == v.columns && v.bias != nullptr;
            step[k] = ones[k] ? 0 : v.c;
            top[k] = tap / v.s - v.pad;
            left[k] = tap % v.s - v.pad;
            x[k] = static_cast<const T *>(v.x) + (column - tap * v.c) +
                   (static_cast<int64_t>(top[k]) * v.w + left[k]) * v.c;
            if (ones[k])
                x[k] = one<T>();
        }
    }

    // Nothing is read where the last argument of copy_async_16 is false.
    __device__ __forceinline__ void copy(const problem &v, unsigned char *to, const spot *spots, int first) const {
#pragma unroll
        for (int i = 0; i < L / STRIDE; i++) {
            const int at = row + i * STRIDE, pixel = first + at;
            const spot s = spots[at];
            const int h0 = static_cast<int>(s.corner & 0xFFFF), w0 = static_cast<int>(s.corner >> 16);
            const bool there = pixel < end;
            copy_async_16(place_of(to, at, piece), dy + static_cast<int64_t>(pixel) * v.n, there && dy_inside);
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const bool inside = x_inside[k] && static_cast<unsigned>(h0 + top[k]) < static_cast<unsigned>(v.h) &&
                                    static_cast<unsigned>(w0 + left[k]) < static_cast<unsigned>(v.w);
                copy_async_16(place_of(to + OPERAND, at, piece + k * PIECES),
                              x[k] + static_cast<int64_t>(s.at) * step[k], there && (inside || ones[k]));
            }
        }
    }
};

// A warp's 16 × 128: thread l holds columns 8·j + 2·(l % 4), + 1 of rows l/4 (0, 1) and l/4 + 8 (2, 3).
__device__ __forceinline__ void store(const problem &v, float *out, float *bias, int m0, int c0,
                                      const float (&d)[16][4]) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int m = m0 + r * 8 + (lane >> 2);
        if (m >= v.n)
            continue;
#pragma unroll
        for (int j = 0; j < 16; j++) {
            const int c = c0 + j * 8 + (lane & 3) * 2;
            float2 x = make_float2(d[j][2 * r], d[j][2 * r + 1]);
            if (c == v.columns && bias != nullptr)
                bias[m] = v.accumulate_bias ? bias[m] + x.x : x.x;
            if (c >= v.columns)
                continue;
            float2 *to = reinterpret_cast<float2 *>(out + static_cast<int64_t>(m) * v.columns + c);
            if (v.accumulate) {
                const float2 there = *to;
                x.x += there.x;
                x.y += there.y;
            }
            *to = x;
        }
    }
}

template <typename T> __global__ void __launch_bounds__(THREADS, 1) conv_dw_kernel(const problem v) {
    extern __shared__ unsigned char dw_shared[];
    __shared__ spot spots[STAGES][L];
    const uint32_t begin = shared_address(dw_shared), first = (begin + ALIGN - 1) / ALIGN * ALIGN;
    unsigned char *shared = dw_shared + (first - begin);
    const int m0 = static_cast<int>(blockIdx.x) / v.tiles_c * ROWS;
    const int c0 = static_cast<int>(blockIdx.x) % v.tiles_c * COLUMNS;
    const int from = static_cast<int>(blockIdx.y) * v.per, end = from + v.per < v.pixels ? from + v.per : v.pixels;
    const copier<T> source(v, m0, c0, end);
    const int warp = static_cast<int>(threadIdx.x) >> 5, half = group_of(static_cast<int>(threadIdx.x)),
              pieces = (end - from + L - 1) / L;
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++)
        tabulate(v, spots[s], from + s * L);
    __syncthreads();
#pragma unroll
    for (int s = 0; s < STAGES - 2; s++) {
        if (s < pieces)
            source.copy(v, shared + s * STAGE, spots[s], from + s * L);
        copies_commit();
    }
    float d[2][16][4] = {};
    int at = 0, next = STAGES - 2;
    for (int p = 0; p < pieces; p++) {
        copies_wait<STAGES - 3>();
        async_fence();
        __syncthreads(); // both warpgroups have done with piece p - 2, and with the spots of piece p + 1
        const uint64_t a = wgmma_operand(first + at * STAGE + half * BLOCK, BLOCK);
        const uint64_t b = wgmma_operand(first + at * STAGE + OPERAND, BLOCK);
        wgmma_begin();
#pragma unroll
        for (int l = 0; l < L; l += 16) // 16 rows
#pragma unroll
            for (int k = 0; k < 2; k++)
                wgmma_multiply<T, 1, 1>(d[k], a + (l * 128 >> 4), b + (l * 128 + k * 2 * BLOCK >> 4));
        wgmma_commit();
        if (p + STAGES - 2 < pieces)
            source.copy(v, shared + next * STAGE, spots[next], from + (p + STAGES - 2) * L);
        copies_commit();
        const int after = next + 1 < STAGES ? next + 1 : 0;
        tabulate(v, spots[after], from + (p + STAGES - 1) * L);
        wgmma_wait<1>();
        at = at + 1 < STAGES ? at + 1 : 0;
        next = after;
    }
    wgmma_wait<0>();
    float *bias = v.bias != nullptr ? v.bias + blockIdx.y * v.n : nullptr;
#pragma unroll
    for (int k = 0; k < 2; k++)
        store(v, v.out + blockIdx.y * v.out_split, bias, m0 + warp * 16, c0 + k * COLUMNS / 2, d[k]);
}

// Two arrays, each out [n] = the sums of partial [parts, n], in order, added to what is there with `accumulate`; n in
// fours.
struct joined {
    const float4 *partial;
    float4 *out;
    int64_t fours;
    bool accumulate;
};

__global__ void __launch_bounds__(THREADS) conv_join_kernel(joined first, joined second, int parts) {
    int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    const joined j = i < first.fours ? first : second;
    i -= i < first.fours ? 0 : first.fours;
    if (i >= j.fours)
        return;
    float4 sum = j.partial[i];
#pragma unroll 8
    for (int k = 1; k < parts; k++)
        sum = add4(sum, j.partial[k * j.fours + i]);
    j.out[i] = j.accumulate ? add4(j.out[i], sum) : sum;
}

__global__ void __launch_bounds__(THREADS)
    conv_pad_kernel(const uint16_t *x, uint4 *y, int64_t rows, int c, int eights, divider by_eights) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= rows * eights)
        return;
    const int row = divide(static_cast<int>(i), by_eights), first = (static_cast<int>(i) - row * eights) * 8;
    uint32_t word[4] = {};
#pragma unroll
    for (int k = 0; k < 8; k++)
        if (first + k < c)
            word[k / 2] |= static_cast<uint32_t>(x[static_cast<int64_t>(row) * c + first + k]) << k % 2 * 16;
    y[i] = make_uint4(word[0], word[1], word[2], word[3]);
}

__global__ void __launch_bounds__(THREADS)
    conv_strip_kernel(const float *x, float *out, int64_t n, int64_t c, int64_t wide, bool accumulate) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= n)
        return;
    const float from = x[i / c * wide + i % c];
    out[i] = accumulate ? out[i] + from : from;
}

int64_t tiles_of(int64_t n, int64_t of) {
    return (n + of - 1) / of;
}

template <typename T> cudaError_t launch(cudaStream_t stream, const problem &v, int splits, bool prepare) {
    const void *kernel = reinterpret_cast<const void *>(conv_dw_kernel<T>);
    if (prepare)
        return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES);
    const dim3 grid(static_cast<unsigned>(tiles_of(v.n, ROWS) * v.tiles_c), static_cast<unsigned>(splits));
    conv_dw_kernel<T><<<grid, THREADS, BYTES, stream>>>(v);
    return cudaGetLastError();
}
} // namespace

// x [rows, c] of a 16-bit dtype to y [rows, wide], zeros after the c; wide a multiple of 8, less than 2^34 numbers.
static void pad(cudaStream_t stream, const void *x, void *y, int64_t rows, int64_t c, int64_t wide) {
    conv_pad_kernel<<<blocks_of(rows * (wide / 8), THREADS), THREADS, 0, stream>>>(
        static_cast<const uint16_t *>(x), static_cast<uint4 *>(y), rows, static_cast<int>(c),
        static_cast<int>(wide / 8), divider_of(wide / 8));
}

// The number of ranges that by these times is done first: a block, which has a multiprocessor to itself, takes 0.8 µs
// for 64 pixels and 5 µs to begin and end; ranges' sums are written and read at 4 TB/s.
static int splits_of(const mz_cu_conv &v, int sms) {
    const int64_t columns = v.r * v.s * v.c, wide = columns + (v.bias.data != nullptr ? 8 : 0);
    const int64_t tiles = tiles_of(v.n, ROWS) * tiles_of(wide, COLUMNS);
    const int64_t pieces = (v.b * v.p * v.q + L - 1) / L;
    const double sums = static_cast<double>(v.n * columns) * 8 / 4e6;
    int best = 1;
    double least = 0;
    for (int64_t s = 1; s <= 160 && s <= pieces; s++) {
        const double waves = static_cast<double>((tiles * s + sms - 1) / sms);
        const double time = waves * (5 + 0.8 * static_cast<double>((pieces + s - 1) / s)) +
                            (s > 1 ? 3 + static_cast<double>(s) * sums : 0);
        if (s == 1 || time < least) {
            best = static_cast<int>(s);
            least = time;
        }
    }
    const int64_t per = (pieces + best - 1) / best;
    return static_cast<int>((pieces + per - 1) / per); // no range is empty
}

// v: groups 1, c and n multiples of 8, both images of one dtype; bias: where the sums of dy's columns go, or absent.
// partial: splits·n·(r·s·c + 1) floats where splits are more than 1. prepare: launches nothing, and fails where there
// is no code for the device.
static cudaError_t conv_dw(cudaStream_t stream, const mz_cu_conv &v, int splits, float *partial, bool accumulate,
                           bool accumulate_bias, bool prepare) {
    const int64_t pixels = v.b * v.p * v.q, columns = v.r * v.s * v.c, pieces = (pixels + L - 1) / L;
    float *out = static_cast<float *>(v.weight.data), *bias = static_cast<float *>(v.bias.data);
    float *bias_partial = bias != nullptr && splits > 1 ? partial + splits * v.n * columns : nullptr;
    const problem p = {v.y.data,
                       v.x.data,
                       splits > 1 ? partial : out,
                       splits > 1 ? bias_partial : bias,
                       v.n * columns,
                       static_cast<int>(v.h),
                       static_cast<int>(v.w),
                       static_cast<int>(v.c),
                       static_cast<int>(v.n),
                       static_cast<int>(v.s),
                       static_cast<int>(columns),
                       static_cast<int>(v.stride),
                       static_cast<int>(v.pad),
                       static_cast<int>(pixels),
                       static_cast<int>((pieces + splits - 1) / splits * L),
                       divider_of(v.q),
                       divider_of(v.p),
                       static_cast<int>(tiles_of(columns + (bias != nullptr ? 8 : 0), COLUMNS)),
                       splits == 1 && accumulate,
                       splits == 1 && accumulate_bias};
    const cudaError_t error = v.x.dtype == MEZZO_BF16 ? launch<__nv_bfloat16>(stream, p, splits, prepare)
                                                      : launch<__half>(stream, p, splits, prepare);
    if (error != cudaSuccess || prepare || splits == 1)
        return error;
    const joined weights = {reinterpret_cast<const float4 *>(partial), reinterpret_cast<float4 *>(out),
                            v.n * columns / 4, accumulate};
    const joined biases = {reinterpret_cast<const float4 *>(bias_partial), reinterpret_cast<float4 *>(bias),
                           bias != nullptr ? v.n / 4 : 0, accumulate_bias};
    conv_join_kernel<<<blocks_of(weights.fours + biases.fours, THREADS), THREADS, 0, stream>>>(weights, biases, splits);
    return cudaGetLastError();
}

// --- conv2d_dw -----------------------------------------------------------------------------------------------------
static mz_cu_conv dw_of(const mz_call *call) {
    return conv_of(call, mz_in(call, conv2d_dw, x), mz_out(call, conv2d_dw, dw), mz_in(call, conv2d_dw, dy));
}

// Channels that are no multiples of 8 are copied with zeros after them, and dw is made as wide.
struct plan {
    mz_cu_conv v; // with those channels
    int splits;
    bool pad_x, pad_y;
    size_t at_x, at_y, at_sum, at_partial, at_bias, bytes;
};

static int64_t weights_of(const mz_cu_conv &v) {
    return v.n * v.r * v.s * v.c;
}

static plan plan_of(const mz_cuda_device *cuda, const mz_call *call) {
    plan p = {.v = dw_of(call)};
    mz_cu_conv &v = p.v;
    const int64_t x = v.b * v.h * v.w, y = v.b * v.p * v.q;
    p.pad_x = v.c % 8 != 0;
    p.pad_y = v.n % 8 != 0;
    if (!p.pad_y) // of padded dy the sums are made by themselves
        v.bias = mz_cuda_array(mz_out(call, conv2d_dw, db));
    v.c = v.depth = (v.c + 7) / 8 * 8;
    v.n = (v.n + 7) / 8 * 8;
    p.splits = splits_of(v, cuda->sms);
    const size_t weights = static_cast<size_t>(weights_of(v));
    p.at_x = mz_cuda_place(&p.bytes, p.pad_x ? static_cast<size_t>(x * v.c) * sizeof(uint16_t) : 0);
    p.at_y = mz_cuda_place(&p.bytes, p.pad_y ? static_cast<size_t>(y * v.n) * sizeof(uint16_t) : 0);
    p.at_sum = mz_cuda_place(&p.bytes, p.pad_x || p.pad_y ? weights * sizeof(float) : 0);
    p.at_partial = mz_cuda_place(&p.bytes, p.splits > 1 ? p.splits * (weights + v.n) * sizeof(float) : 0);
    p.at_bias = p.bytes;
    if (p.pad_y && mz_present(mz_out(call, conv2d_dw, db)))
        p.bytes += mz_cu_column_sums_bytes(y, mz_in(call, conv2d_dw, dy)->shape.dim[3]);
    return p;
}

static const char *refusal(const mz_cuda_device *cuda, const mz_call *call) {
    const mezzo_dtype dtype = mz_in(call, conv2d_dw, dy)->dtype, compute = call->numerics.compute;
    const mz_cu_conv v = dw_of(call);
    const int64_t most = static_cast<int64_t>(1) << 30;
    if (cuda->cc != 90)
        return "is for compute capability 9.0";
    if ((dtype != MEZZO_BF16 && dtype != MEZZO_F16) || mz_in(call, conv2d_dw, x)->dtype != dtype)
        return "multiplies bf16 by bf16 and fp16 by fp16";
    if (compute != dtype && compute != MEZZO_F32)
        return "multiplies what is stored as it is";
    if (v.groups != 1)
        return "serves one group";
    if (v.h >= 1 << 15 || v.w >= 1 << 15)
        return "serves images of less than 32,768 rows and columns";
    if (v.b * v.h * v.w >= most || v.b * v.p * v.q >= most || v.n >= 1 << 24 || v.r * v.s * v.c >= 1 << 24 ||
        v.b * v.h * v.w * v.c >= 8 * most || v.b * v.p * v.q * v.n >= 8 * most)
        return "2^30 pixels, 2^33 numbers of an image, 2^24 columns or rows of the weight, or more";
    return mz_cuda_storages(call, "aa", "ff");
}

static const char *conv_dw_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    const mz_cuda_device *cuda = mz_cuda(device);
    const char *reason = refusal(cuda, call);
    if (reason != NULL)
        return reason;
    const plan p = plan_of(cuda, call);
    out->workspace = p.bytes;
    return refusal_of_90a(conv_dw(cuda->stream, p.v, 1, NULL, false, false, true));
}

static void launch_conv_dw(const mz_cuda_device *cuda, const mz_call *call) {
    const mz_tensor *dy = mz_in(call, conv2d_dw, dy), *x = mz_in(call, conv2d_dw, x), *dw = mz_out(call, conv2d_dw, dw),
                    *db = mz_out(call, conv2d_dw, db);
    const bool accumulate = call->attrs.accumulate;
    char *workspace = static_cast<char *>(call->workspace);
    plan p = plan_of(cuda, call);
    const bool padded = p.pad_x || p.pad_y;
    const int64_t pixels = mz_shape_rows(&dy->shape), channels = x->shape.dim[3];
    float *sum = reinterpret_cast<float *>(workspace + p.at_sum);
    float *partial = reinterpret_cast<float *>(workspace + p.at_partial);
    if (padded)
        p.v.weight.data = sum;
    if (p.pad_x) {
        p.v.x.data = workspace + p.at_x;
        pad(cuda->stream, x->data, p.v.x.data, mz_shape_rows(&x->shape), channels, p.v.c);
    }
    if (p.pad_y) {
        p.v.y.data = workspace + p.at_y;
        pad(cuda->stream, dy->data, p.v.y.data, pixels, dy->shape.dim[3], p.v.n);
    }
    conv_dw(cuda->stream, p.v, p.splits, partial, accumulate && !padded, accumulate, false);
    if (padded) {
        const int64_t numbers = mz_shape_rows(&dw->shape) * channels;
        conv_strip_kernel<<<blocks_of(numbers, THREADS), THREADS, 0, cuda->stream>>>(sum, data_of<float>(dw), numbers,
                                                                                     channels, p.v.c, accumulate);
    }
    if (p.pad_y && mz_present(db))
        mz_cu_column_sums(cuda->stream, mz_cuda_array(dy), data_of<float>(db), pixels, dy->shape.dim[3], accumulate,
                          reinterpret_cast<float *>(workspace + p.at_bias));
}
const mz_kernel mz_cuda_conv2d_dw_wgmma = {"conv2d_dw__cuda_wgmma", conv_dw_prepare, enqueue<launch_conv_dw>};
