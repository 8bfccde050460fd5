// Images [B, height, width, channels]: convolution with one sum a thread, resampling, noise, the embedding of times.
// Sums are FP32 in an order that the shapes decide.
#include "conv.cuh"
#include "philox.cuh"
#include "rows.cuh"

enum { IMAGE_BLOCK = 256 };

// --- convolution ---------------------------------------------------------------------------------------------------
__device__ __forceinline__ void conv2d_at(const mz_cu_conv &v, int64_t i) {
    const int64_t n = i % v.n, q = i / v.n % v.q, p = i / v.n / v.q % v.p, b = i / v.n / v.q / v.p;
    const int64_t first = n / (v.n / v.groups) * v.depth, taps = v.r * v.s * v.depth;
    float sum = 0;
    for (int64_t r = 0; r < v.r; r++)
        for (int64_t s = 0; s < v.s; s++) {
            const int64_t h = p * v.stride - v.pad + r, w = q * v.stride - v.pad + s;
            if (h < 0 || h >= v.h || w < 0 || w >= v.w)
                continue;
            const int64_t x = ((b * v.h + h) * v.w + w) * v.c + first, weight = n * taps + (r * v.s + s) * v.depth;
            for (int64_t d = 0; d < v.depth; d++)
                sum = fmaf(load1(v.x, x + d), load1(v.weight, weight + d), sum);
        }
    if (v.bias.data != nullptr)
        sum += load1(v.bias, n);
    store1(v.y, i, sum);
}

__device__ __forceinline__ void conv2d_dx_at(const mz_cu_conv &v, int64_t i) {
    const int64_t c = i % v.c, w = i / v.c % v.w, h = i / v.c / v.w % v.h, b = i / v.c / v.w / v.h;
    const int64_t own = v.n / v.groups, first = c / v.depth * own, taps = v.r * v.s * v.depth;
    float sum = 0;
    for (int64_t r = 0; r < v.r; r++)
        for (int64_t s = 0; s < v.s; s++) {
            const int64_t p = h + v.pad - r, q = w + v.pad - s;
            if (p < 0 || q < 0 || p % v.stride || q % v.stride || p / v.stride >= v.p || q / v.stride >= v.q)
                continue;
            const int64_t y = ((b * v.p + p / v.stride) * v.q + q / v.stride) * v.n + first;
            const int64_t weight = first * taps + (r * v.s + s) * v.depth + c % v.depth;
            for (int64_t n = 0; n < own; n++)
                sum = fmaf(load1(v.y, y + n), load1(v.weight, weight + n * taps), sum);
        }
    store1(v.x, i, sum);
}

// dx of some images from `taps`, what each pixel of dy gives each tap: [images, p, q, r, s, c]. A pixel adds those that
// it was seen through, row by row. T: one number or four.
__device__ __forceinline__ float plus(float a, float b) {
    return a + b;
}
__device__ __forceinline__ float4 plus(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
template <typename T>
__global__ void __launch_bounds__(IMAGE_BLOCK) conv2d_gather_kernel(mz_cu_conv v, const T *taps, T *dx) {
    const int channels = static_cast<int>(v.c / static_cast<int64_t>(sizeof(T) / sizeof(float)));
    const int64_t i = thread_index<IMAGE_BLOCK>(), w = i / channels, h = blockIdx.y, b = blockIdx.z;
    if (w >= v.w)
        return;
    T sum = {};
    for (int64_t r = (h + v.pad) % v.stride; r < v.r; r += v.stride)
        for (int64_t s = (w + v.pad) % v.stride; s < v.s; s += v.stride) {
            const int64_t p = (h + v.pad - r) / v.stride, q = (w + v.pad - s) / v.stride;
            if (h + v.pad < r || w + v.pad < s || p >= v.p || q >= v.q)
                continue;
            sum = plus(sum, taps[((((b * v.p + p) * v.q + q) * v.r + r) * v.s + s) * channels + i % channels]);
        }
    dx[(b * v.h + h) * v.w * channels + i] = sum;
}

// A block a weight: its threads have pixels, and are added in a tree.
__global__ void __launch_bounds__(IMAGE_BLOCK) conv2d_dw_kernel(mz_cu_conv v, bool accumulate) {
    __shared__ float shared[IMAGE_BLOCK / WARP];
    const int64_t i = blockIdx.x, taps = v.r * v.s * v.depth, n = i / taps, tap = i % taps;
    const int64_t d = tap % v.depth, s = tap / v.depth % v.s, r = tap / v.depth / v.s;
    const int64_t c = n / (v.n / v.groups) * v.depth + d;
    float sum = 0;
    for (int64_t pixel = threadIdx.x; pixel < v.b * v.p * v.q; pixel += IMAGE_BLOCK) {
        const int64_t q = pixel % v.q, p = pixel / v.q % v.p, b = pixel / v.q / v.p;
        const int64_t h = p * v.stride - v.pad + r, w = q * v.stride - v.pad + s;
        if (h >= 0 && h < v.h && w >= 0 && w < v.w)
            sum = fmaf(load1(v.y, pixel * v.n + n), load1(v.x, ((b * v.h + h) * v.w + w) * v.c + c), sum);
    }
    sum = row_sum<IMAGE_BLOCK>(sum, shared);
    float *out = static_cast<float *>(v.weight.data);
    if (threadIdx.x == 0)
        out[i] = accumulate ? out[i] + sum : sum;
}

extern "C" cudaError_t mz_cu_conv2d_gather(cudaStream_t stream, const mz_cu_conv *v, const float *taps) {
    const int64_t line = v->w * v->c, vector = v->c % 4 == 0 ? 4 : 1;
    const dim3 grid(blocks_of(line / vector, IMAGE_BLOCK), static_cast<unsigned>(v->h), static_cast<unsigned>(v->b));
    if (vector == 4)
        conv2d_gather_kernel<<<grid, IMAGE_BLOCK, 0, stream>>>(*v, reinterpret_cast<const float4 *>(taps),
                                                               static_cast<float4 *>(v->x.data));
    else
        conv2d_gather_kernel<<<grid, IMAGE_BLOCK, 0, stream>>>(*v, taps, static_cast<float *>(v->x.data));
    return cudaGetLastError();
}

static void launch_conv2d(const mz_cuda_device *cuda, const mz_call *call) {
    mz_cu_conv v = conv_of(call, mz_in(call, conv2d, x), mz_in(call, conv2d, w), mz_out(call, conv2d, y));
    v.bias = mz_cuda_array(mz_in(call, conv2d, bias));
    launch_items(cuda, v.b * v.p * v.q * v.n, [=] __device__(int64_t i) { conv2d_at(v, i); });
}
MZ_CUDA_KERNEL(conv2d, launch_conv2d, storages<"a", "a">)

static void launch_conv2d_dx(const mz_cuda_device *cuda, const mz_call *call) {
    const mz_cu_conv v =
        conv_of(call, mz_out(call, conv2d_dx, dx), mz_in(call, conv2d_dx, w), mz_in(call, conv2d_dx, dy));
    launch_items(cuda, v.b * v.h * v.w * v.c, [=] __device__(int64_t i) { conv2d_dx_at(v, i); });
}
MZ_CUDA_KERNEL(conv2d_dx, launch_conv2d_dx, storages<"a", "a">)

static const char *conv2d_dw_prepare(mezzo_device *, const mz_call *call, mz_prepared *out) {
    const mz_shape *dy = &mz_in(call, conv2d_dw, dy)->shape;
    out->workspace = mz_cu_column_sums_bytes(mz_shape_rows(dy), dy->dim[3]);
    return mz_cuda_storages(call, "a", "f");
}
static void launch_conv2d_dw(const mz_cuda_device *cuda, const mz_call *call) {
    const mz_tensor *dy = mz_in(call, conv2d_dw, dy), *db = mz_out(call, conv2d_dw, db);
    const mz_cu_conv v = conv_of(call, mz_in(call, conv2d_dw, x), mz_out(call, conv2d_dw, dw), dy);
    conv2d_dw_kernel<<<static_cast<unsigned>(v.n * v.r * v.s * v.depth), IMAGE_BLOCK, 0, cuda->stream>>>(
        v, call->attrs.accumulate);
    if (mz_present(db))
        mz_cu_column_sums(cuda->stream, mz_cuda_array(dy), data_of<float>(db), mz_shape_rows(&dy->shape),
                          dy->shape.dim[3], call->attrs.accumulate, static_cast<float *>(call->workspace));
}
MZ_CUDA_KERNEL(conv2d_dw, launch_conv2d_dw, conv2d_dw_prepare)

// --- resampling ----------------------------------------------------------------------------------------------------
// y [rows, width, channels], rows of all images; a thread N channels of a pixel.
static void launch_resampling(const mz_cuda_device *cuda, const mz_call *call) {
    const mz_shape *shape = &mz_out(call, upsample, y)->shape; // pool has these too
    const mz_cu_array x = mz_cuda_array(mz_in(call, upsample, x)), y = mz_cuda_array(mz_out(call, upsample, y));
    const int64_t width = shape->dim[2], channels = shape->dim[3], from_width = mz_in(call, upsample, x)->shape.dim[2];
    const int factor = call->attrs.factor;
    const float alpha = call->attrs.alpha;
    const auto upsample = [=] __device__(auto lanes, int64_t i) {
        constexpr int N = lanes;
        const int64_t pixel = i / channels, c = i - pixel * channels, h = pixel / width, w = pixel - h * width;
        float k[N];
        load<N>(x, (h / factor * from_width + w / factor) * channels + c, k);
        for_each<N>([&](int j) { k[j] *= alpha; });
        store<N>(y, i, k);
    };
    const auto pool = [=] __device__(auto lanes, int64_t i) {
        constexpr int N = lanes;
        const int64_t pixel = i / channels, c = i - pixel * channels;
        const int64_t h = pixel / width * factor, w = pixel % width * factor;
        float sum[N] = {}, k[N];
        for (int r = 0; r < factor; r++)
            for (int s = 0; s < factor; s++) {
                load<N>(x, ((h + r) * from_width + w + s) * channels + c, k);
                for_each<N>([&](int j) { sum[j] += k[j]; });
            }
        for_each<N>([&](int j) { sum[j] *= alpha; });
        store<N>(y, i, sum);
    };
    if (call->op == MZ_OP_upsample)
        launch_vectors(cuda, mz_shape_count(shape), channels, upsample);
    else
        launch_vectors(cuda, mz_shape_count(shape), channels, pool);
}
MZ_CUDA_KERNEL(upsample, launch_resampling, storages<"a", "a">)
MZ_CUDA_KERNEL(pool, launch_resampling, storages<"a", "a">)

// --- the largest of windows along an axis --------------------------------------------------------------------------
// x [outer, axis, inner], y [outer, n, inner]; V elements of inner a thread.
struct window_args {
    mz_cu_array x, y, dy, dx;
    int64_t outer, axis, inner, n;
    int size, stride, step, before;
};

template <int V> __device__ __forceinline__ void max_pool_at(const window_args &v, int64_t i) {
    const int64_t row = i / v.inner, c = i - row * v.inner, outer = row / v.n, first = (row - outer * v.n) * v.stride;
    float most[V], x[V];
    for_each<V>([&](int j) { most[j] = -INFINITY; });
    for (int k = 0; k < v.size; k++) {
        const int64_t a = first + static_cast<int64_t>(k) * v.step - v.before;
        if (a < 0 || a >= v.axis)
            continue;
        load<V>(v.x, (outer * v.axis + a) * v.inner + c, x);
        for_each<V>([&](int j) { most[j] = most[j] == most[j] && !(x[j] <= most[j]) ? x[j] : most[j]; });
    }
    store<V>(v.y, i, most);
}

// An element gets dy of each window of which it is the first that is not smaller than y.
template <int V> __device__ __forceinline__ void max_pool_dx_at(const window_args &v, int64_t i) {
    const int64_t row = i / v.inner, c = i - row * v.inner, outer = row / v.axis, own = row - outer * v.axis;
    float sum[V] = {}, x[V], y[V], given[V];
    for (int k = 0; k < v.size; k++) {
        const int64_t from = own + v.before - static_cast<int64_t>(k) * v.step, o = from / v.stride;
        if (from < 0 || o * v.stride != from || o >= v.n)
            continue;
        load<V>(v.y, (outer * v.n + o) * v.inner + c, y);
        load<V>(v.dy, (outer * v.n + o) * v.inner + c, given);
        for (int j = 0; j <= k; j++) {
            const int64_t a = own - static_cast<int64_t>(k - j) * v.step;
            if (a < 0)
                continue;
            load<V>(v.x, (outer * v.axis + a) * v.inner + c, x);
            for_each<V>([&](int l) { given[l] = (x[l] < y[l]) == (j < k) ? given[l] : 0; });
        }
        for_each<V>([&](int l) { sum[l] += given[l]; });
    }
    store<V>(v.dx, i, sum);
}

static window_args windows_of(const mz_call *call, const mz_tensor *x, const mz_tensor *y) {
    const axis_view view(&x->shape, call->attrs.axis);
    return {.x = mz_cuda_array(x),
            .y = mz_cuda_array(y),
            .outer = view.outer,
            .axis = view.axis,
            .inner = view.inner,
            .n = y->shape.dim[call->attrs.axis],
            .size = call->attrs.factor,
            .stride = call->attrs.stride,
            .step = static_cast<int>(call->attrs.step),
            .before = call->attrs.pad_before};
}

static void launch_max_pool(const mz_cuda_device *cuda, const mz_call *call) {
    const window_args v = windows_of(call, mz_in(call, max_pool, x), mz_out(call, max_pool, y));
    launch_vectors(cuda, v.outer * v.n * v.inner, v.inner,
                   [=] __device__(auto lanes, int64_t i) { max_pool_at<lanes>(v, i); });
}
MZ_CUDA_KERNEL(max_pool, launch_max_pool, storages<"a", "a">)

static void launch_max_pool_dx(const mz_cuda_device *cuda, const mz_call *call) {
    window_args v = windows_of(call, mz_in(call, max_pool_dx, x), mz_in(call, max_pool_dx, y));
    v.dy = mz_cuda_array(mz_in(call, max_pool_dx, dy));
    v.dx = mz_cuda_array(mz_out(call, max_pool_dx, dx));
    launch_vectors(cuda, v.outer * v.axis * v.inner, v.inner,
                   [=] __device__(auto lanes, int64_t i) { max_pool_dx_at<lanes>(v, i); });
}
MZ_CUDA_KERNEL(max_pool_dx, launch_max_pool_dx, storages<"aaa", "a">)

// --- noise and times -----------------------------------------------------------------------------------------------
// Computes mz_normal4's formula in FP64, as mz_normal4 does.
static void launch_normal(const mz_cuda_device *cuda, const mz_call *call) {
    const mz_shape *shape = &mz_out(call, normal, y)->shape;
    const mz_cu_array y = mz_cuda_array(mz_out(call, normal, y));
    const int32_t *keys = data_of<int32_t>(mz_in(call, normal, keys));
    const int64_t rows = shape->dim[0], row = mz_shape_count(shape) / rows, quads = (row + 3) / 4;
    const uint32_t tensor = mz_noise_key(0, 0).tensor;
    launch_items(cuda, rows * quads, [=] __device__(int64_t i) {
        const int64_t image = i / quads, first = i % quads * 4;
        const uint64_t low = static_cast<uint32_t>(keys[2 * image]), high = static_cast<uint32_t>(keys[2 * image + 1]);
        const philox_key key = {low | high << 32, 0, tensor};
        const uint4 w = philox(key, static_cast<uint64_t>(first / 4));
        const uint32_t words[4] = {w.x, w.y, w.z, w.w};
        for (int k = 0; k < 4; k += 2) {
            const double u = (static_cast<double>(words[k]) + 1.0) * 0x1p-32;
            const double angle = 6.283185307179586 * (static_cast<double>(words[k + 1]) * 0x1p-32);
            const double radius = sqrt(-2.0 * log(u));
            if (first + k < row)
                store1(y, image * row + first + k, static_cast<float>(radius * cos(angle)));
            if (first + k + 1 < row)
                store1(y, image * row + first + k + 1, static_cast<float>(radius * sin(angle)));
        }
    });
}
MZ_CUDA_KERNEL(normal, launch_normal, storages<"i", "a">)

static void launch_time_embedding(const mz_cuda_device *cuda, const mz_call *call) {
    const mz_tensor *out = mz_out(call, time_embedding, y);
    const mz_cu_array times = mz_cuda_array(mz_in(call, time_embedding, times)), y = mz_cuda_array(out);
    const int64_t dims = out->shape.dim[1], half = dims / 2;
    const double factor = static_cast<double>(call->attrs.alpha), longest = static_cast<double>(call->attrs.theta);
    launch_items(cuda, mz_shape_count(&out->shape), [=] __device__(int64_t i) {
        const double frequency = pow(longest, -static_cast<double>(i % dims % half) / static_cast<double>(half));
        const double angle = factor * static_cast<double>(load1(times, i / dims)) * frequency;
        store1(y, i, static_cast<float>(i % dims < half ? cos(angle) : sin(angle)));
    });
}
MZ_CUDA_KERNEL(time_embedding, launch_time_embedding, storages<"a", "a">)
