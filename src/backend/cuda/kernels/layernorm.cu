// Computes layer norm and RMS norm (args.centred false: the mean counts as 0), forward and backward. A row stays in
// registers between the passes over it; mean and variance are two passes, never E[s²] - E[s]² (docs/dev/NUMERICS.md).
#include "pdl_launch.cuh"
#include "norm.cuh"
#include "norm_fp8.h"

// --- forward -------------------------------------------------------------------------------------------------------
template <int T, int V>
__global__ void __launch_bounds__(row_threads<T>::block) layernorm_kernel(mz_cu_layernorm_args a) {
    wait_for_before();
    __shared__ float shared[2][T / WARP];
    int64_t row = static_cast<int64_t>(blockIdx.x) * row_threads<T>::rows + row_in_block<T>();
    if (row >= a.rows) // a whole warp, which shares nothing with the others
        return;
    float s[V][8], rstd = norm_row<T, V>(a, row, shared[0], shared[1], s);
#pragma unroll
    for (int v = 0; v < V; v++) {
        float y[8];
        norm_result<T>(a, v, s[v], rstd, y);
        row_store<T>(a.y, row * a.pitch, a.pitch, v, y);
    }
}

// Rows wider than registers hold: a block a row, read three times.
__device__ __forceinline__ float layernorm_input(const mz_cu_layernorm_args &a, int64_t i) {
    float s = load1(a.x.data, a.x.dtype, i);
    if (a.residual.data != nullptr)
        s += load1(a.residual.data, a.residual.dtype, i);
    return a.sum.data != nullptr ? round_to(s, a.sum.dtype) : s;
}

__global__ void __launch_bounds__(ROW_BLOCK) layernorm_wide_kernel(mz_cu_layernorm_args a) {
    __shared__ float shared[2][ROW_BLOCK / WARP];
    int64_t row = blockIdx.x, start = row * a.pitch;
    float sum = 0, squares = 0;
    for (int c = threadIdx.x; a.centred && c < a.width; c += ROW_BLOCK)
        sum += layernorm_input(a, start + c);
    float mean = row_sum<ROW_BLOCK>(sum, shared[0]) / static_cast<float>(a.width);
    for (int c = threadIdx.x; c < a.width; c += ROW_BLOCK) {
        float centred = layernorm_input(a, start + c) - mean;
        squares = fmaf(centred, centred, squares);
    }
    float rstd = __frsqrt_rn(row_sum<ROW_BLOCK>(squares, shared[1]) / static_cast<float>(a.width) + a.eps);
    for (int c = threadIdx.x; c < a.width; c += ROW_BLOCK) {
        float s = layernorm_input(a, start + c);
        float y = (s - mean) * rstd;
        y = fmaf(y, a.weight != nullptr ? a.weight[c] + a.offset : 1, a.bias != nullptr ? a.bias[c] : 0);
        if (a.sum.data != nullptr)
            store1(a.sum.data, a.sum.dtype, start + c, s);
        store1(a.y.data, a.y.dtype, start + c, y);
    }
    for (int c = a.width + threadIdx.x; c < a.pitch; c += ROW_BLOCK) {
        store1(a.y.data, a.y.dtype, start + c, 0);
        if (a.sum.data != nullptr)
            store1(a.sum.data, a.sum.dtype, start + c, 0);
    }
    if (threadIdx.x == 0) {
        if (a.mean != nullptr)
            a.mean[row] = mean;
        if (a.rstd != nullptr)
            a.rstd[row] = rstd;
    }
}

extern "C" cudaError_t mz_cu_layernorm(cudaStream_t stream, const mz_cu_layernorm_args *args) {
    mz_cu_layernorm_args a = *args;
    if (a.rows == 0)
        return cudaSuccess;
    if (a.pitch > ROW_WIDTH_MAX) {
        layernorm_wide_kernel<<<static_cast<unsigned>(a.rows), ROW_BLOCK, 0, stream>>>(a);
        return cudaGetLastError();
    }
#define RUN(T, V)                                                                                                      \
    error = launch_dependent(stream, layernorm_kernel<T, V>,                                                           \
                             static_cast<unsigned>((a.rows + row_threads<T>::rows - 1) / row_threads<T>::rows),        \
                             row_threads<T>::block, 0, a)
    cudaError_t error = cudaSuccess;
    MZ_ROW_DISPATCH(a.pitch, RUN);
#undef RUN
    return error != cudaSuccess ? error : cudaGetLastError();
}

// --- backward ------------------------------------------------------------------------------------------------------
// With x̂ = (x - mean)·rstd and g = dy·weight: dx = rstd·(g - mean(g) - x̂·mean(g·x̂)) + dres, dweight = Σ_rows dy·x̂,
// dbias = Σ_rows dy. RMS norm (a.mean NULL) has neither mean. A block has several rows at a time, T threads to each,
// and goes through its share of them; their threads keep the columns' sums in registers. At the end a block's rows are
// added up, in order, and the blocks meet in partial [parts, 3, pitch], which columns_kernel adds up in order. Many
// rows at a time hide the memory's latency, few parts make that last sum short.
template <int T> struct bwd_threads {
    static constexpr int rows = T <= 192 ? 384 / T : 1; // at a time
    static constexpr int block = T * rows;
    static constexpr int resident = 768 / block; // on a multiprocessor
};

template <int T, int V>
__global__ void __launch_bounds__(bwd_threads<T>::block, bwd_threads<T>::resident)
    layernorm_bwd_kernel(mz_cu_layernorm_bwd_args a) {
    wait_for_before();
    constexpr int rows_at_once = bwd_threads<T>::rows;
    __shared__ float shared[rows_at_once][2][2][T / WARP]; // two sets, used by turns: one barrier a row is enough
    extern __shared__ float4 columns[];                    // [rows_at_once, 3, pitch] as 8-column vectors
    int pitch = a.pitch;
    float sums[3][V][8] = {}; // dweight, dbias, linear_dbias
    int stored = a.low.data != nullptr ? a.low.dtype : a.dx.dtype;
    int turn = 0;
    for (int64_t group = blockIdx.x; group * rows_at_once < a.rows; group += gridDim.x) {
        int64_t row = group * rows_at_once + row_in_block<T>();
        if (row >= a.rows)
            break;
        int64_t start = row * pitch;
        float all[V][8];
        norm_bwd_row<T, V, rows_at_once>(a, row, shared[row_in_block<T>()][turn], sums, all);
        turn ^= 1;
#pragma unroll
        for (int v = 0; v < V; v++) {
            const float *dx = all[v];
            row_store<T>(a.dx, start, pitch, v, dx);
            if (a.low.data != nullptr)
                row_store<T>(a.low, start, pitch, v, dx);
            if (a.linear_dbias != nullptr)
#pragma unroll
                for (int k = 0; k < 8; k++)
                    sums[2][v][k] += round_to(dx[k], stored);
        }
    }
    if (a.dweight == nullptr && a.dbias == nullptr && a.linear_dbias == nullptr)
        return;
    norm_bwd_sums<T, V, rows_at_once>(sums, a.linear_dbias != nullptr ? 3 : 2, pitch, columns,
                                      a.partial + static_cast<int64_t>(blockIdx.x) * 3 * pitch);
}

// Rows wider than registers hold. A block a part, columns' sums in `partial` itself, which each thread adds to in row
// order.
__global__ void __launch_bounds__(ROW_BLOCK) layernorm_bwd_wide_kernel(mz_cu_layernorm_bwd_args a) {
    __shared__ float shared[2][ROW_BLOCK / WARP];
    float *part = a.partial + static_cast<int64_t>(blockIdx.x) * 3 * a.pitch;
    bool sums = a.dweight != nullptr || a.dbias != nullptr || a.linear_dbias != nullptr;
    int stored = a.low.data != nullptr ? a.low.dtype : a.dx.dtype;
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        int64_t start = row * a.pitch;
        float mean = a.mean != nullptr ? a.mean[row] : 0, rstd = a.rstd[row], g_sum = 0, gx_sum = 0;
        for (int c = threadIdx.x; c < a.width; c += ROW_BLOCK) {
            float d = load1(a.dy.data, a.dy.dtype, start + c);
            float x = (load1(a.x.data, a.x.dtype, start + c) - mean) * rstd,
                  g = a.weight ? d * (a.weight[c] + a.offset) : d;
            g_sum += g;
            gx_sum = fmaf(g, x, gx_sum);
            if (sums) {
                part[c] = row == blockIdx.x ? d * x : fmaf(d, x, part[c]);
                part[a.pitch + c] = row == blockIdx.x ? d : part[a.pitch + c] + d;
            }
        }
        g_sum = row_sum<ROW_BLOCK>(g_sum, shared[0]) / static_cast<float>(a.width);
        gx_sum = row_sum<ROW_BLOCK>(gx_sum, shared[1]) / static_cast<float>(a.width);
        g_sum = a.mean != nullptr ? g_sum : 0;
        for (int c = threadIdx.x; c < a.width; c += ROW_BLOCK) {
            float d = load1(a.dy.data, a.dy.dtype, start + c), g = a.weight ? d * (a.weight[c] + a.offset) : d;
            float x = (load1(a.x.data, a.x.dtype, start + c) - mean) * rstd;
            float dx = rstd * (g - g_sum - x * gx_sum);
            if (a.dres.data != nullptr)
                dx += load1(a.dres.data, a.dres.dtype, start + c);
            store1(a.dx.data, a.dx.dtype, start + c, dx);
            if (a.low.data != nullptr)
                store1(a.low.data, a.low.dtype, start + c, dx);
            if (a.linear_dbias != nullptr)
                part[2 * a.pitch + c] = (row == blockIdx.x ? 0 : part[2 * a.pitch + c]) + round_to(dx, stored);
        }
        for (int c = a.width + threadIdx.x; c < a.pitch; c += ROW_BLOCK) {
            store1(a.dx.data, a.dx.dtype, start + c, 0);
            if (a.low.data != nullptr)
                store1(a.low.data, a.low.dtype, start + c, 0);
            if (sums)
                part[c] = part[a.pitch + c] = part[2 * a.pitch + c] = 0;
        }
        __syncthreads(); // before the next row's sums are shared
    }
}

// out[c] (+)= Σ_parts partial[part, c], each thread a strided share in order, then the shares in order.
enum { COLUMNS = 32, SHARES = 32 };
__host__ __device__ __forceinline__ int columns_wanted(int width, const float *dbias, const float *linear_dbias) {
    return linear_dbias != nullptr ? 3 * width : dbias != nullptr ? 2 * width : width;
}

__global__ void __launch_bounds__(COLUMNS *SHARES)
    columns_kernel(const float *partial, int parts, int width, float *dweight, float *dbias, float *linear_dbias,
                   bool accumulate) {
    wait_for_before();
    __shared__ float shares[SHARES][COLUMNS];
    int c = blockIdx.x * COLUMNS + threadIdx.x, all = columns_wanted(width, dbias, linear_dbias);
    float sum = 0;
    if (c < all)
#pragma unroll 16
        for (int p = threadIdx.y; p < parts; p += SHARES)
            sum += partial[static_cast<int64_t>(p) * 3 * width + c];
    shares[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || c >= all)
        return;
    sum = 0;
#pragma unroll
    for (int s = 0; s < SHARES; s++)
        sum += shares[s][threadIdx.x];
    float *out = c < width ? dweight : c < 2 * width ? dbias : linear_dbias;
    if (out == nullptr)
        return;
    out += c % width;
    *out = accumulate ? *out + sum : sum;
}

// Some 768 threads a multiprocessor.
extern "C" int mz_cu_layernorm_bwd_parts(int64_t rows, int pitch, int sms) {
    int at_once = 1, threads = ROW_BLOCK;
#define SET(T, V) (at_once = bwd_threads<T>::rows, threads = bwd_threads<T>::block)
    if (pitch <= ROW_WIDTH_MAX)
        MZ_ROW_DISPATCH_BWD(pitch, SET);
#undef SET
    int64_t groups = (rows + at_once - 1) / at_once,
            most = static_cast<int64_t>(sms) * (threads < 768 ? 768 / threads : 1);
    return static_cast<int>(groups < most ? groups : most);
}

extern "C" cudaError_t mz_cu_layernorm_bwd(cudaStream_t stream, const mz_cu_layernorm_bwd_args *args) {
    mz_cu_layernorm_bwd_args a = *args;
    if (a.rows == 0)
        return cudaSuccess;
    unsigned parts = static_cast<unsigned>(a.parts);
    cudaError_t error = cudaSuccess;
    if (a.pitch > ROW_WIDTH_MAX) {
        layernorm_bwd_wide_kernel<<<parts, ROW_BLOCK, 0, stream>>>(a);
    } else {
#define RUN(T, V)                                                                                                      \
    error = launch_dependent(stream, layernorm_bwd_kernel<T, V>, parts, bwd_threads<T>::block,                         \
                             bwd_threads<T>::rows == 1 ? 0 : (a.pitch + 7) / 8 * 96 * bwd_threads<T>::rows, a)
        MZ_ROW_DISPATCH_BWD(a.pitch, RUN);
#undef RUN
    }
    error = error != cudaSuccess ? error : cudaGetLastError();
    if (error != cudaSuccess || (a.dweight == nullptr && a.dbias == nullptr && a.linear_dbias == nullptr))
        return error;
    return mz_cu_norm_columns(stream, &a, a.parts);
}

extern "C" cudaError_t mz_cu_norm_columns(cudaStream_t stream, const mz_cu_layernorm_bwd_args *a, int parts) {
    dim3 threads(COLUMNS, SHARES);
    int all = columns_wanted(a->pitch, a->dbias, a->linear_dbias);
    return launch_dependent(stream, columns_kernel, static_cast<unsigned>((all + COLUMNS - 1) / COLUMNS), threads, 0,
                            static_cast<const float *>(a->partial), parts, a->pitch, a->dweight, a->dbias,
                            a->linear_dbias, a->accumulate);
}
