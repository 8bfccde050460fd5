// Computes softmax over the last dimension, and its gradient.
#include "host.cuh"
#include "rows.cuh"

template <int T, int V>
__global__ void __launch_bounds__(row_threads<T>::block)
    softmax_kernel(mz_cu_array x, mz_cu_array y, int64_t rows, int width) {
    __shared__ float shared[2][T / WARP];
    int64_t row = static_cast<int64_t>(blockIdx.x) * row_threads<T>::rows + row_in_block<T>();
    if (row >= rows)
        return;
    float e[V][8], max = -INFINITY, sum = 0;
    row_load<T, V>(x, row * width, width, e);
    for_each<V, 8>([&](int v, int k) {
        if (row_column<T>(v) + k < width)
            max = fmaxf(max, e[v][k]);
    });
    max = row_max<T>(max, shared[0]);
    for_each<V, 8>([&](int v, int k) {
        e[v][k] = row_column<T>(v) + k < width ? expf(e[v][k] - max) : 0;
        sum += e[v][k];
    });
    float inverse = 1.0f / row_sum<T>(sum, shared[1]);
#pragma unroll
    for (int v = 0; v < V; v++) {
        for_each<8>([&](int k) { e[v][k] *= inverse; });
        row_store<T>(y, row * width, width, v, e[v]);
    }
}

// Rows wider than registers hold.
__global__ void __launch_bounds__(ROW_BLOCK) softmax_wide_kernel(mz_cu_array x, mz_cu_array y, int width) {
    __shared__ float shared[2][ROW_BLOCK / WARP];
    int64_t start = static_cast<int64_t>(blockIdx.x) * width;
    float max = -INFINITY, sum = 0;
    for (int c = threadIdx.x; c < width; c += ROW_BLOCK)
        max = fmaxf(max, load1(x, start + c));
    max = row_max<ROW_BLOCK>(max, shared[0]);
    for (int c = threadIdx.x; c < width; c += ROW_BLOCK)
        sum += expf(load1(x, start + c) - max);
    float inverse = 1.0f / row_sum<ROW_BLOCK>(sum, shared[1]);
    for (int c = threadIdx.x; c < width; c += ROW_BLOCK)
        store1(y, start + c, expf(load1(x, start + c) - max) * inverse);
}

static void launch_softmax(const mz_cuda_device *cuda, const mz_call *call) {
    const mz_cu_array x = mz_cuda_array(mz_in(call, softmax, x)), y = mz_cuda_array(mz_out(call, softmax, y));
    const int width = static_cast<int>(mz_cuda_width(mz_out(call, softmax, y)));
    const int64_t rows = mz_shape_rows(&mz_out(call, softmax, y)->shape);
    if (width > ROW_WIDTH_MAX)
        launch_rows<ROW_BLOCK>(cuda, softmax_wide_kernel, rows, x, y, width);
    else
        for_row_width(width,
                      [&]<int T, int V>() { launch_rows<T>(cuda, softmax_kernel<T, V>, rows, x, y, rows, width); });
}
MZ_CUDA_KERNEL(softmax, launch_softmax, storages<"a", "a", narrow_output>)

// dx = y·(dy - Σ dy·y)
template <int T, int V>
__global__ void __launch_bounds__(row_threads<T>::block)
    softmax_dx_kernel(mz_cu_array dy, mz_cu_array y, mz_cu_array dx, int64_t rows, int width) {
    __shared__ float shared[T / WARP];
    int64_t row = static_cast<int64_t>(blockIdx.x) * row_threads<T>::rows + row_in_block<T>();
    if (row >= rows)
        return;
    int64_t start = row * width;
    raw8 raw_d[V], raw_y[V];
    float d[V][8], p[V][8], sum = 0;
    row_fetch<T, V>(raw_d, dy, start, width);
    row_fetch<T, V>(raw_y, y, start, width);
    row_widen<V>(raw_d, dy.dtype, width, d);
    row_widen<V>(raw_y, y.dtype, width, p);
    for_each<V, 8>([&](int v, int k) { sum = fmaf(d[v][k], p[v][k], sum); });
    sum = row_sum<T>(sum, shared);
#pragma unroll
    for (int v = 0; v < V; v++) {
        for_each<8>([&](int k) { d[v][k] = p[v][k] * (d[v][k] - sum); });
        row_store<T>(dx, start, width, v, d[v]);
    }
}

__global__ void __launch_bounds__(ROW_BLOCK)
    softmax_dx_wide_kernel(mz_cu_array dy, mz_cu_array y, mz_cu_array dx, int width) {
    __shared__ float shared[ROW_BLOCK / WARP];
    int64_t start = static_cast<int64_t>(blockIdx.x) * width;
    float sum = 0;
    for (int c = threadIdx.x; c < width; c += ROW_BLOCK)
        sum = fmaf(load1(dy, start + c), load1(y, start + c), sum);
    sum = row_sum<ROW_BLOCK>(sum, shared);
    for (int c = threadIdx.x; c < width; c += ROW_BLOCK)
        store1(dx, start + c, load1(y, start + c) * (load1(dy, start + c) - sum));
}

static void launch_softmax_dx(const mz_cuda_device *cuda, const mz_call *call) {
    const mz_cu_array dy = mz_cuda_array(mz_in(call, softmax_dx, dy)), y = mz_cuda_array(mz_in(call, softmax_dx, y)),
                      dx = mz_cuda_array(mz_out(call, softmax_dx, dx));
    const int width = static_cast<int>(mz_cuda_width(mz_out(call, softmax_dx, dx)));
    const int64_t rows = mz_shape_rows(&mz_out(call, softmax_dx, dx)->shape);
    if (width > ROW_WIDTH_MAX)
        launch_rows<ROW_BLOCK>(cuda, softmax_dx_wide_kernel, rows, dy, y, dx, width);
    else
        for_row_width(width, [&]<int T, int V>() {
            launch_rows<T>(cuda, softmax_dx_kernel<T, V>, rows, dy, y, dx, rows, width);
        });
}
MZ_CUDA_KERNEL(softmax_dx, launch_softmax_dx, storages<"a", "a", narrow_output>)
