// Computes cross-entropy over logits of any width and storage, and its gradient. A row is read once in each.
#include <cuda_pipeline_primitives.h>

#include "branchless_act.cuh"
#include "host.cuh"
#include "ptx.cuh"
#include "quantize.cuh"
#include "rows.cuh"

enum { LOSS_WARP_WIDTH = 2048 }; // up to here a row of logits is a warp's, above a block's

struct logit_rows {
    mz_cu_array logits;     // [rows, width], a row `pitch` elements after the one before
    const int32_t *targets; // [all]; the rows' are those from first_row on
    int ignore_index, width, pitch;
    float cap; // logits are cap·tanh(x/cap); 0: they stay
    int64_t rows, all, first_row;
};
struct loss_args : logit_rows {
    float *loss, *lse; // [1]: the rows' share of the mean over all targets; [rows] or NULL
    float *terms;      // [rows], workspace
};
struct gradient_args : logit_rows {
    mz_cu_array dx;     // [rows, width] with `pitch`; may be logits; its padding becomes 0
    const float *dloss; // [1]
    const float *lse;   // [rows]
    float *factor;      // [1], workspace
};
struct code_args : gradient_args { // dx, rounded to BF16, in 8 bits with the scale of an entry, instead of dx
    uint8_t *codes;                // [rows, pitch]
    const float *entry;
    uint32_t *amax; // NULL: not recorded
    bool e4m3;
};

static logit_rows rows_of(const mz_call *call, const mz_tensor *logits, const mz_tensor *targets) {
    return {.logits = mz_cuda_array(logits),
            .targets = data_of<int32_t>(targets),
            .ignore_index = call->attrs.ignore_index,
            .width = static_cast<int>(mz_cuda_width(logits)),
            .pitch = static_cast<int>(mz_cuda_pitch(logits)),
            .cap = call->attrs.score_cap,
            .rows = mz_shape_rows(&logits->shape),
            .all = mz_shape_count(&targets->shape),
            .first_row = call->attrs.first_row};
}

// A row that starts anywhere: a thread's vectors are aligned by element index, and the row's ends go one by one.
struct row_span {
    int64_t head_end, tail_start, end; // elements [start, head_end) and [tail_start, end) singly, vectors of 8 between
};

__device__ __forceinline__ row_span span_of(int64_t start, int width) {
    int64_t end = start + width, head = (start + 7) / 8 * 8, tail = end / 8 * 8;
    row_span s = {head < end ? head : end, tail > head ? tail : (head < end ? head : end), end};
    return s;
}

enum { LOSS_UNROLL = 4, LOSS_BLOCK = 512 };

// f(i, x) for the elements of a row from i on: x[8], with the loads of LOSS_UNROLL of them under way, and x[1].
template <int T, class F>
__device__ __forceinline__ void for_row(mz_cu_array row, int64_t start, const row_span &span, F f) {
    const int lane = row_lane<T>();
    for (int64_t i = span.head_end + lane * 8; i < span.tail_start; i += LOSS_UNROLL * T * 8) {
        raw8 raw[LOSS_UNROLL];
#pragma unroll
        for (int u = 0; u < LOSS_UNROLL; u++)
            if (i + u * T * 8 < span.tail_start)
                raw[u] = fetch8(row, i + u * T * 8);
#pragma unroll
        for (int u = 0; u < LOSS_UNROLL; u++)
            if (i + u * T * 8 < span.tail_start) {
                float x[8];
                widen8(raw[u], row.dtype, x);
                f(i + u * T * 8, x);
            }
    }
    const auto singly = [&](int64_t first, int64_t end) {
        for (int64_t i = first + lane; i < end; i += T) {
            float x[1] = {load1(row, i)};
            f(i, x);
        }
    };
    singly(start, span.head_end);
    singly(span.tail_start, span.end);
}

// --- forward -------------------------------------------------------------------------------------------------------
// Running maximum and Σ exp(x - max), in units of log 2: max is M = round(max·log2(e)), a term ex2(x·log2(e) - M), one
// fused multiply-add and one instruction. Rounding M costs nothing, since every term is relative to M itself, and
// M/log2(e) with log2(e)'s own FP32 value gives back exactly what was multiplied: what is left is 0.3u·|x - max| of
// log2(e), in the bound of lse.
struct running {
    float max, sum;
};
static const float LOG2E = 1.44269504088896341f;
static const float LEAST = -0x1p99f; // instead of -∞, whose difference with itself is not a number

__device__ __forceinline__ running merge(running a, running b) {
    float max = fmaxf(a.max, b.max);
    running r = {max, a.sum * exp2_fast(a.max - max) + b.sum * exp2_fast(b.max - max)};
    return r;
}

__device__ __forceinline__ running merge_warp(running r) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) {
        running other = {__shfl_xor_sync(0xFFFFFFFFu, r.max, step), __shfl_xor_sync(0xFFFFFFFFu, r.sum, step)};
        r = merge(r, other);
    }
    return r;
}

template <int N> __device__ __forceinline__ void take(running &r, const float x[N]) {
    float max = x[0];
#pragma unroll
    for (int k = 1; k < N; k++)
        max = fmaxf(max, x[k]);
    max *= LOG2E;
    if (max > r.max) { // false for NaN, which comes into the sum below
        r.sum *= exp2_fast(r.max - max);
        r.max = max;
    }
#pragma unroll
    for (int k = 0; k < N; k++)
        r.sum += exp2_fast(fmaf(x[k], LOG2E, -r.max));
}

__device__ __forceinline__ float log_sum_exp(running r) { // M/LOG2E in two parts + log(sum), rounded once
    return fmaf(r.max, 0x1.62e4300000000p-1f, fmaf(r.max, 0x1.f8ff940000000p-28f, logf(r.sum)));
}

// CAP: a logit x stands for cap·tanh(x/cap), whose derivative is 1 - tanh².
template <bool CAP> __device__ __forceinline__ float capped(float x, float cap) {
    return CAP ? cap * tanhf(x / cap) : x;
}
template <bool CAP> __device__ __forceinline__ float cap_slope(float y, float cap) { // of y = capped(x)
    return CAP ? 1 - y / cap * (y / cap) : 1;
}

template <int T, bool CAP> __global__ void __launch_bounds__(row_threads<T>::block) cross_entropy_kernel(loss_args a) {
    __shared__ running shared[T / WARP];
    int lane = row_lane<T>();
    int64_t row = static_cast<int64_t>(blockIdx.x) * row_threads<T>::rows + row_in_block<T>();
    if (row >= a.rows)
        return;
    const int64_t start = row * a.pitch;
    running r = {LEAST, 0};
    for_row<T>(a.logits, start, span_of(start, a.width), [&]<int N>(int64_t, float(&x)[N]) {
        for_each<N>([&](int k) { x[k] = capped<CAP>(x[k], a.cap); });
        take<N>(r, x);
    });
    r = merge_warp(r);
    if (T > WARP) {
        if (lane % WARP == 0)
            shared[lane / WARP] = r;
        __syncthreads();
        if (lane == 0)
            for (int w = 1; w < T / WARP; w++)
                r = merge(r, shared[w]);
    }
    if (lane != 0)
        return;
    float lse = log_sum_exp(r);
    int target = a.targets[a.first_row + row];
    if (a.lse != nullptr)
        a.lse[row] = lse;
    float term_of_row = 0;
    if (target != a.ignore_index)
        term_of_row = target < 0 || target >= a.width ? NAN : lse - capped<CAP>(load1(a.logits, start + target), a.cap);
    a.terms[row] = term_of_row;
}

// loss = Σ terms / counted rows, 0 where none counts. One block; FP64, each thread a strided share in order.
enum { MEAN_BLOCK = 1024 };

__device__ __forceinline__ int block_count(const int32_t *targets, int64_t rows, int ignore_index, int *shared) {
    int count = 0;
#pragma unroll 8
    for (int64_t r = threadIdx.x; r < rows; r += blockDim.x)
        count += targets[r] != ignore_index;
    if (threadIdx.x == 0)
        *shared = 0;
    __syncthreads();
    count = warp_sum(count);
    if (threadIdx.x % WARP == 0)
        atomicAdd(shared, count); // integers: the order does not matter
    __syncthreads();
    return *shared;
}

__global__ void __launch_bounds__(MEAN_BLOCK) cross_entropy_mean_kernel(loss_args a) {
    __shared__ double sums[MEAN_BLOCK / WARP];
    __shared__ int count;
    double sum = 0;
#pragma unroll 4
    for (int64_t r = threadIdx.x; r < a.rows; r += MEAN_BLOCK)
        sum += static_cast<double>(a.terms[r]);
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0)
        sums[threadIdx.x / WARP] = sum;
    int counted = block_count(a.targets, a.all, a.ignore_index, &count);
    if (threadIdx.x != 0)
        return;
    sum = 0;
    for (int w = 0; w < MEAN_BLOCK / WARP; w++)
        sum += sums[w];
    *a.loss = counted > 0 ? static_cast<float>(sum / counted) : 0;
}

static const char *cross_entropy_prepare(mezzo_device *, const mz_call *call, mz_prepared *out) {
    const mz_tensor *logits = mz_in(call, cross_entropy, logits);
    const char *reason = mz_cuda_storages(call, "ai", "ff");
    // The sums hold one term for each row, and after them the gradient's inputs where one kernel serves both.
    out->workspace = static_cast<size_t>(mz_shape_rows(&logits->shape) + 1) * sizeof(float);
    return reason != NULL ? reason : mz_cuda_narrow(logits);
}
static loss_args loss_of(const mz_call *call) {
    return {rows_of(call, mz_in(call, cross_entropy, logits), mz_in(call, cross_entropy, targets)),
            data_of<float>(mz_out(call, cross_entropy, loss)), data_of<float>(mz_out(call, cross_entropy, lse)),
            static_cast<float *>(call->workspace)};
}
static void launch_cross_entropy(const mz_cuda_device *cuda, const mz_call *call) {
    const loss_args a = loss_of(call);
    const bool cap = a.cap > 0;
    if (a.width <= LOSS_WARP_WIDTH)
        launch_rows<WARP>(cuda, cap ? cross_entropy_kernel<WARP, true> : cross_entropy_kernel<WARP, false>, a.rows, a);
    else
        launch_rows<LOSS_BLOCK>(
            cuda, cap ? cross_entropy_kernel<LOSS_BLOCK, true> : cross_entropy_kernel<LOSS_BLOCK, false>, a.rows, a);
    cross_entropy_mean_kernel<<<1, MEAN_BLOCK, 0, cuda->stream>>>(a);
}
MZ_CUDA_KERNEL(cross_entropy, launch_cross_entropy, cross_entropy_prepare)

// --- backward ------------------------------------------------------------------------------------------------------
// dx = dloss/counted·(exp(x - lse) - onehot(target)); 0 where the target is ignored, NaN where it is no class. x - lse
// is taken first, so that the exponent's error is relative to it and not to lse. dx may be the logits' storage.
enum {
    COUNT_ROWS = 4096
}; // up to here every block counts the targets for itself (16 KiB of L2); else a kernel before it

__device__ __forceinline__ float loss_factor(float dloss, int counted) {
    return static_cast<float>(static_cast<double>(dloss) / (counted > 0 ? counted : 1));
}

__global__ void __launch_bounds__(MEAN_BLOCK) cross_entropy_factor_kernel(gradient_args a) {
    __shared__ int count;
    int counted = block_count(a.targets, a.all, a.ignore_index, &count);
    if (threadIdx.x == 0)
        *a.factor = loss_factor(*a.dloss, counted);
}

// What a thread writes of a gradient, or of its codes with quantize.cu's arithmetic, and what it finds on the way.
struct written {
    float inverse; // of the scale
    uint32_t amax;
};
__device__ __forceinline__ written begin(const gradient_args &) {
    return {0, 0};
}
__device__ __forceinline__ written begin(const code_args &a) {
    return {1 / *a.entry, 0}; // exact
}
__device__ __forceinline__ void put(const gradient_args &a, int64_t i, const float (&x)[8], written &) {
    store8(a.dx, i, x);
}
__device__ __forceinline__ void put(const code_args &a, int64_t i, const float (&x)[8], written &w) {
    const uint4 z = pack8(x);
    *reinterpret_cast<uint2 *>(a.codes + i) = to_fp8(z, z, w.inverse, a.e4m3, w.amax);
}
__device__ __forceinline__ void put(const gradient_args &a, int64_t i, const float (&x)[1], written &) {
    store1(a.dx, i, x[0]);
}
__device__ __forceinline__ void put(const code_args &a, int64_t i, const float (&x)[1], written &w) {
    const float z = round_to(x[0], MEZZO_BF16);
    w.amax = larger(w.amax, __float_as_uint(z) >> 16);
    a.codes[i] = to_fp8(z, w.inverse, a.e4m3);
}
__device__ __forceinline__ void finish(const gradient_args &, const written &) {}
__device__ __forceinline__ void finish(const code_args &a, const written &w) { // by all threads of a block
    if (a.amax != nullptr)
        record_amax<LOSS_BLOCK>(a.amax, larger_of(w.amax));
}

template <int T, bool CAP, class ARGS>
__global__ void __launch_bounds__(row_threads<T>::block) cross_entropy_dx_kernel(ARGS a) {
    __shared__ int count;
    float factor =
        a.all <= COUNT_ROWS ? loss_factor(*a.dloss, block_count(a.targets, a.all, a.ignore_index, &count)) : *a.factor;
    int64_t row = static_cast<int64_t>(blockIdx.x) * row_threads<T>::rows + row_in_block<T>();
    if (row >= a.rows)
        return;
    int lane = row_lane<T>(), target = a.targets[a.first_row + row];
    int64_t start = row * a.pitch, at = start + target; // the target's element
    row_span span = span_of(start, a.width);
    float lse = a.lse[row];
    bool ignored = target == a.ignore_index;
    if (!ignored && (target < 0 || target >= a.width))
        factor = NAN;
    written w = begin(a);
    for_row<T>(a.logits, start, span, [&]<int N>(int64_t i, float(&x)[N]) {
        if (!ignored && (at < i || at >= i + N))
            for_each<N>([&](int k) {
                x[k] = capped<CAP>(x[k], a.cap);
                x[k] = factor * cap_slope<CAP>(x[k], a.cap) * expf(x[k] - lse);
            });
        else
            for_each<N>([&](int k) {
                const float y = capped<CAP>(x[k], a.cap);
                x[k] = ignored ? 0 : factor * cap_slope<CAP>(y, a.cap) * (expf(y - lse) - (i + k == at ? 1.0f : 0.0f));
            });
        put(a, i, x, w);
    });
    const float nothing[1] = {0};
    for (int64_t i = span.end + lane; i < start + a.pitch; i += T)
        put(a, i, nothing, w);
    finish(a, w);
}

static const char *cross_entropy_dx_prepare(mezzo_device *, const mz_call *call, mz_prepared *out) {
    const char *reason = mz_cuda_storages(call, "faif", "a");
    out->workspace = sizeof(float);
    return reason != NULL ? reason : mz_cuda_narrow(mz_in(call, cross_entropy_dx, logits));
}
static gradient_args gradient_of(const mz_call *call) {
    return {rows_of(call, mz_in(call, cross_entropy_dx, logits), mz_in(call, cross_entropy_dx, targets)),
            mz_cuda_array(mz_out(call, cross_entropy_dx, dx)), data_of<float>(mz_in(call, cross_entropy_dx, dloss)),
            data_of<float>(mz_in(call, cross_entropy_dx, lse)), static_cast<float *>(call->workspace)};
}
template <int T, class ARGS> static void launch_gradient(const mz_cuda_device *cuda, const ARGS &a) {
    if (a.all > COUNT_ROWS && a.rows > 0)
        cross_entropy_factor_kernel<<<1, MEAN_BLOCK, 0, cuda->stream>>>(a);
    launch_rows<T>(cuda, a.cap > 0 ? cross_entropy_dx_kernel<T, true, ARGS> : cross_entropy_dx_kernel<T, false, ARGS>,
                   a.rows, a);
}
static void launch_cross_entropy_dx(const mz_cuda_device *cuda, const mz_call *call) {
    const gradient_args a = gradient_of(call);
    if (a.width <= LOSS_WARP_WIDTH)
        launch_gradient<WARP>(cuda, a);
    else
        launch_gradient<LOSS_BLOCK>(cuda, a);
}
MZ_CUDA_KERNEL(cross_entropy_dx, launch_cross_entropy_dx, cross_entropy_dx_prepare)

// --- both ----------------------------------------------------------------------------------------------------------
// A block a row, which it reads once: each thread's vectors are on their way to shared memory, all at once, and stay
// there until the row's log-sum-exp is known. The sums are cross_entropy_kernel's, in its order, and the gradient
// cross_entropy_dx_kernel's.
__device__ __forceinline__ void wait_for_all_but(int groups) {
    if (groups >= 3)
        __pipeline_wait_prior(3);
    else if (groups == 2)
        __pipeline_wait_prior(2);
    else if (groups == 1)
        __pipeline_wait_prior(1);
    else
        __pipeline_wait_prior(0);
}

// DTYPE and CAP are known of the logits: what is done for each of them is not held up by asking which.
template <int DTYPE, bool CAP, class ARGS>
__global__ void __launch_bounds__(LOSS_BLOCK) cross_entropy_both_kernel(loss_args a, ARGS b) {
    constexpr int pieces = DTYPE == MEZZO_F32 ? 2 : 1; // of 16 bytes, of eight logits
    extern __shared__ uint4 kept[];                    // [pitch / 8 · pieces]
    __shared__ running shared[LOSS_BLOCK / WARP];
    __shared__ int count;
    __shared__ float lse_of_row;
    int vectors = a.pitch / 8, whole = a.width / 8, lane = threadIdx.x;
    int64_t row = blockIdx.x, start = row * a.pitch;
    int target = a.targets[a.first_row + row];
    const bool ignored = target == a.ignore_index, no_class = target < 0 || target >= a.width;
    const float at_target =
        lane == 0 && !no_class ? capped<CAP>(load1(a.logits.data, DTYPE, start + target), a.cap) : 0;
    const char *from = static_cast<const char *>(a.logits.data) + start * width_of(DTYPE);
    int groups = 0;
    for (int i = lane; i < vectors; i += LOSS_UNROLL * LOSS_BLOCK, groups++) {
#pragma unroll
        for (int u = 0; u < LOSS_UNROLL; u++)
            for (int p = 0; p < pieces && i + u * LOSS_BLOCK < vectors; p++)
                __pipeline_memcpy_async(&kept[p * vectors + i + u * LOSS_BLOCK],
                                        from + (static_cast<int64_t>(i + u * LOSS_BLOCK) * pieces + p) * 16, 16);
        __pipeline_commit();
    }
    const auto row_at = [&](int i) { return raw8{kept[i], pieces == 2 ? kept[vectors + i] : make_uint4(0, 0, 0, 0)}; };
    running r = {LEAST, 0};
    for (int i = lane; i < vectors; i += LOSS_UNROLL * LOSS_BLOCK) {
        wait_for_all_but(--groups);
#pragma unroll
        for (int u = 0; u < LOSS_UNROLL; u++)
            if (i + u * LOSS_BLOCK < vectors) {
                const int at = i + u * LOSS_BLOCK;
                float x[8];
                widen8(row_at(at), DTYPE, x);
                for_each<8>([&](int k) { x[k] = capped<CAP>(x[k], a.cap); });
                if (at >= whole) // padding
                    for_each<8>([&](int k) { x[k] = at * 8 + k < a.width ? x[k] : -INFINITY; });
                take<8>(r, x);
            }
    }
    r = merge_warp(r);
    if (lane % WARP == 0)
        shared[lane / WARP] = r;
    float factor =
        b.all <= COUNT_ROWS ? loss_factor(*b.dloss, block_count(b.targets, b.all, b.ignore_index, &count)) : *b.factor;
    __syncthreads();
    if (lane == 0) {
        for (int w = 1; w < LOSS_BLOCK / WARP; w++)
            r = merge(r, shared[w]);
        float lse = log_sum_exp(r);
        lse_of_row = lse;
        a.lse[row] = lse;
        a.terms[row] = ignored ? 0 : no_class ? NAN : lse - at_target;
    }
    __syncthreads();
    float lse = lse_of_row;
    if (!ignored && no_class)
        factor = NAN;
    written w = begin(b);
    for (int i = lane; i < vectors; i += LOSS_BLOCK) {
        float x[8], slope[8];
        widen8(row_at(i), DTYPE, x);
        for_each<8>([&](int k) {
            x[k] = capped<CAP>(x[k], a.cap);
            slope[k] = factor * cap_slope<CAP>(x[k], a.cap);
        });
        const bool plain = !ignored && i < whole && static_cast<unsigned>(target) - static_cast<unsigned>(i * 8) >= 8u;
        if (plain)
            for_each<8>([&](int k) { x[k] = slope[k] * expf(x[k] - lse); });
        else
            for_each<8>([&](int k) {
                x[k] = ignored || (i >= whole && i * 8 + k >= a.width)
                           ? 0
                           : slope[k] * (expf(x[k] - lse) - (i * 8 + k == target ? 1.0f : 0.0f));
            });
        put(b, start + static_cast<int64_t>(i) * 8, x, w);
    }
    finish(b, w);
}

static size_t both_bytes(int64_t pitch, int dtype) { // of shared memory
    return static_cast<size_t>(pitch) * (dtype == MEZZO_F32 ? 4 : 2);
}

template <class ARGS>
static mezzo_status launch_both(cudaStream_t stream, void (*kernel)(loss_args, ARGS), const loss_args &loss,
                                ARGS gradient) {
    const size_t bytes = both_bytes(loss.pitch, loss.logits.dtype);
    gradient.factor = loss.terms + loss.rows;
    MZ_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
    if (gradient.all > COUNT_ROWS)
        cross_entropy_factor_kernel<<<1, MEAN_BLOCK, 0, stream>>>(gradient);
    if (loss.rows > 0)
        kernel<<<static_cast<unsigned>(loss.rows), LOSS_BLOCK, bytes, stream>>>(loss, gradient);
    cross_entropy_mean_kernel<<<1, MEAN_BLOCK, 0, stream>>>(loss);
    MZ_CUDA_TRY(cudaGetLastError());
    return MEZZO_OK;
}
#define KERNEL(DTYPE, ARGS)                                                                                            \
    (loss.cap > 0 ? cross_entropy_both_kernel<DTYPE, true, ARGS> : cross_entropy_both_kernel<DTYPE, false, ARGS>)

static mezzo_status run_both(mezzo_device *device, const mz_call *first, const mz_call *second) {
    const loss_args loss = loss_of(first);
    const int dtype = loss.logits.dtype;
    const auto kernel = dtype == MEZZO_F32    ? KERNEL(MEZZO_F32, gradient_args)
                        : dtype == MEZZO_BF16 ? KERNEL(MEZZO_BF16, gradient_args)
                                              : KERNEL(MEZZO_F16, gradient_args);
    return launch_both(mz_cuda(device)->stream, kernel, loss, gradient_of(second));
}
static const mz_fused_kernel both = {"cross_entropy_both__cuda", run_both, nullptr};

// A row stays in shared memory between its two halves, where pitches are vectors of 8.
const mz_fused_kernel *mz_cuda_fuse_loss(mezzo_device *device, const mz_call *first, const mz_call *second) {
    if (first->op != MZ_OP_cross_entropy || second->op != MZ_OP_cross_entropy_dx ||
        !mz_present(mz_out(first, cross_entropy, lse)))
        return NULL;
    const mz_tensor *logits = mz_in(first, cross_entropy, logits), *again = mz_in(second, cross_entropy_dx, logits);
    const int64_t pitch = mz_cuda_pitch(logits);
    const bool same = again->data == logits->data && mz_shape_equal(&again->shape, &logits->shape) &&
                      again->dtype == logits->dtype && mz_storage_equal(&again->storage, &logits->storage) &&
                      mz_in(second, cross_entropy_dx, targets)->data == mz_in(first, cross_entropy, targets)->data &&
                      mz_in(second, cross_entropy_dx, lse)->data == mz_out(first, cross_entropy, lse)->data &&
                      second->attrs.first_row == first->attrs.first_row &&
                      second->attrs.ignore_index == first->attrs.ignore_index;
    // The loss's gradient does not come of the loss.
    const bool early = mz_in(second, cross_entropy_dx, dloss)->data != mz_out(first, cross_entropy, loss)->data;
    // Two blocks to a multiprocessor: one alone waits for the memory half of the time.
    const bool fits =
        pitch % 8 == 0 && mz_cuda_width(logits) > LOSS_WARP_WIDTH &&
        2 * (both_bytes(pitch, logits->dtype) + 1024) <= static_cast<size_t>(mz_cuda(device)->shared_optin);
    return same && early && fits ? &both : NULL;
}

// --- the gradient's codes ------------------------------------------------------------------------------------------
// Rows of BF16 whose gradient a quantize rounds, rowwise alone, with a scale from a history; before tensors have
// addresses.
bool mz_cuda_may_round_gradient(const mz_call *first, const mz_call *second) {
    const mz_tensor *dx = mz_out(first, cross_entropy_dx, dx), *logits = mz_in(first, cross_entropy_dx, logits);
    return mz_cuda_only_rounds(second, dx) && mz_output(second, MZ_OUT(quantize, y)) != NULL &&
           mz_output(second, MZ_OUT(quantize, columnwise)) == NULL &&
           mz_output(second, MZ_OUT(quantize, dbias)) == NULL && dx->dtype == MEZZO_BF16 &&
           logits->dtype == MEZZO_BF16 && mz_storage_equal(&dx->storage, &logits->storage) &&
           mz_cuda_pitch(dx) % 16 == 0 && mz_cuda_width(dx) > LOSS_WARP_WIDTH;
}

static code_args codes_of(const mz_call *gradient, const mz_call *rounding) {
    const mz_cu_quantize q = quantize_args_of(rounding);
    return {gradient_of(gradient), static_cast<uint8_t *>(q.y), q.entry, q.amax, q.dtype == MEZZO_F8E4M3};
}

// A scale that is found in the whole gradient needs the gradient.
static mezzo_status run_codes(mezzo_device *device, const mz_call *first, const mz_call *second) {
    const mz_cuda_device *cuda = mz_cuda(device);
    if (second->attrs.measure) {
        MEZZO_TRY(mz_cuda_cross_entropy_dx.run(device, first));
        return mz_cuda_quantize.run(device, second);
    }
    launch_gradient<LOSS_BLOCK>(cuda, codes_of(first, second));
    MZ_CUDA_TRY(cudaGetLastError());
    return MEZZO_OK;
}

static mezzo_status run_both_codes(mezzo_device *device, const mz_call *first, const mz_call *second,
                                   const mz_call *third) {
    const loss_args loss = loss_of(first);
    if (!third->attrs.measure)
        return launch_both(mz_cuda(device)->stream, KERNEL(MEZZO_BF16, code_args), loss, codes_of(second, third));
    MEZZO_TRY(run_both(device, first, second));
    return mz_cuda_quantize.run(device, third);
}
#undef KERNEL

static const mz_fused_kernel gradient_codes = {"cross_entropy_dx_fp8__cuda", run_codes, nullptr},
                             loss_and_codes = {"cross_entropy_fp8__cuda", nullptr, run_both_codes};

const mz_fused_kernel *mz_cuda_fuse_gradient(const mz_call *first, const mz_call *second, bool is_private) {
    const bool taken = is_private && first->op == MZ_OP_cross_entropy_dx && mz_cuda_may_round_gradient(first, second) &&
                       mz_out(first, cross_entropy_dx, dx)->data == mz_in(second, quantize, x)->data &&
                       !mz_cuda_in_the_way(first, second);
    return taken ? &gradient_codes : NULL;
}

const mz_fused_kernel *mz_cuda_fuse_three(mezzo_device *device, const mz_call *first, const mz_call *second,
                                          const mz_call *third) {
    const bool taken = mz_cuda_fuse_loss(device, first, second) != NULL &&
                       mz_cuda_fuse_gradient(second, third, true) != NULL && !mz_cuda_in_the_way(first, third);
    return taken ? &loss_and_codes : NULL;
}
