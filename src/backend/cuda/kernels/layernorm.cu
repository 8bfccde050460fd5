// Computes layer norm and RMS norm (args.centred false: the mean counts as 0), forward and backward. A row stays in
// registers between the passes over it; mean and variance are two passes, never E[s²] - E[s]² (docs/dev/NUMERICS.md).
#include "host.cuh"
#include "pdl_launch.cuh"
#include "norm.cuh"

// --- forward -------------------------------------------------------------------------------------------------------
template <int T, int V> __global__ void __launch_bounds__(row_threads<T>::block) layernorm_kernel(norm_args a) {
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
__device__ __forceinline__ float layernorm_input(const norm_args &a, int64_t i) {
    float s = load1(a.x, i);
    if (a.residual.data != nullptr)
        s += load1(a.residual, i);
    return a.sum.data != nullptr ? round_to(s, a.sum.dtype) : s;
}

__global__ void __launch_bounds__(ROW_BLOCK) layernorm_wide_kernel(norm_args a) {
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
            store1(a.sum, start + c, s);
        store1(a.y, start + c, y);
    }
    for (int c = a.width + threadIdx.x; c < a.pitch; c += ROW_BLOCK) {
        store1(a.y, start + c, 0);
        if (a.sum.data != nullptr)
            store1(a.sum, start + c, 0);
    }
    if (threadIdx.x == 0) {
        if (a.mean != nullptr)
            a.mean[row] = mean;
        if (a.rstd != nullptr)
            a.rstd[row] = rstd;
    }
}

static void launch_norm(const mz_cuda_device *cuda, const mz_call *call) {
    const norm_args a = norm_args_of(call);
    if (a.rows == 0)
        return;
    if (a.pitch > ROW_WIDTH_MAX)
        launch_rows<ROW_BLOCK>(cuda, layernorm_wide_kernel, a.rows, a);
    else
        for_row_width(a.pitch, [&]<int T, int V>() {
            launch_dependent(cuda->stream, layernorm_kernel<T, V>, blocks_of(a.rows, row_threads<T>::rows),
                             row_threads<T>::block, 0, a);
        });
}
MZ_CUDA_KERNEL(layernorm, launch_norm, storages<"affa", "affa", narrow_output>)
MZ_CUDA_KERNEL(rmsnorm, launch_norm, storages<"afa", "afa", narrow_output>)

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
    layernorm_bwd_kernel(norm_bwd_args a) {
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
                for_each<8>([&](int k) { sums[2][v][k] += round_to(dx[k], stored); });
        }
    }
    if (a.dweight == nullptr && a.dbias == nullptr && a.linear_dbias == nullptr)
        return;
    norm_bwd_sums<T, V, rows_at_once>(sums, a.linear_dbias != nullptr ? 3 : 2, pitch, columns,
                                      a.partial + static_cast<int64_t>(blockIdx.x) * 3 * pitch);
}

// Rows wider than registers hold. A block a part, columns' sums in `partial` itself, which each thread adds to in row
// order.
__global__ void __launch_bounds__(ROW_BLOCK) layernorm_bwd_wide_kernel(norm_bwd_args a) {
    __shared__ float shared[2][ROW_BLOCK / WARP];
    float *part = a.partial + static_cast<int64_t>(blockIdx.x) * 3 * a.pitch;
    bool sums = a.dweight != nullptr || a.dbias != nullptr || a.linear_dbias != nullptr;
    int stored = a.low.data != nullptr ? a.low.dtype : a.dx.dtype;
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        int64_t start = row * a.pitch;
        float mean = a.mean != nullptr ? a.mean[row] : 0, rstd = a.rstd[row], g_sum = 0, gx_sum = 0;
        for (int c = threadIdx.x; c < a.width; c += ROW_BLOCK) {
            float d = load1(a.dy, start + c);
            float x = (load1(a.x, start + c) - mean) * rstd, g = a.weight ? d * (a.weight[c] + a.offset) : d;
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
            float d = load1(a.dy, start + c), g = a.weight ? d * (a.weight[c] + a.offset) : d;
            float x = (load1(a.x, start + c) - mean) * rstd;
            float dx = rstd * (g - g_sum - x * gx_sum);
            if (a.dres.data != nullptr)
                dx += load1(a.dres, start + c);
            store1(a.dx, start + c, dx);
            if (a.low.data != nullptr)
                store1(a.low, start + c, dx);
            if (a.linear_dbias != nullptr)
                part[2 * a.pitch + c] = (row == blockIdx.x ? 0 : part[2 * a.pitch + c]) + round_to(dx, stored);
        }
        for (int c = a.width + threadIdx.x; c < a.pitch; c += ROW_BLOCK) {
            store1(a.dx, start + c, 0);
            if (a.low.data != nullptr)
                store1(a.low, start + c, 0);
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
    const int c = blockIdx.x * COLUMNS + threadIdx.x, all = columns_wanted(width, dbias, linear_dbias);
    const float sum = sum_shares<COLUMNS, SHARES, 16>(
        c < all, parts, [&](int p) { return partial[static_cast<int64_t>(p) * 3 * width + c]; });
    if (threadIdx.y != 0 || c >= all)
        return;
    float *out = c < width ? dweight : c < 2 * width ? dbias : linear_dbias;
    if (out == nullptr)
        return;
    out += c % width;
    *out = accumulate ? *out + sum : sum;
}

// Some 768 threads a multiprocessor.
static int norm_bwd_parts(int64_t rows, int pitch, int sms) {
    int at_once = 1, threads = ROW_BLOCK;
    if (pitch <= ROW_WIDTH_MAX)
        for_row_width_bwd(pitch, [&]<int T, int>() {
            at_once = bwd_threads<T>::rows;
            threads = bwd_threads<T>::block;
        });
    int64_t groups = (rows + at_once - 1) / at_once,
            most = static_cast<int64_t>(sms) * (threads < 768 ? 768 / threads : 1);
    return static_cast<int>(groups < most ? groups : most);
}

// layernorm_bwd's call, or rmsnorm_bwd's.
norm_bwd_args norm_bwd_args_of(mezzo_device *device, const mz_call *call) {
    const bool centred = call->op == MZ_OP_layernorm_bwd;
    const int rstd = centred ? MZ_IN(layernorm_bwd, rstd) : MZ_IN(rmsnorm_bwd, rstd), dres = rstd + 1;
    static_assert(MZ_IN(layernorm_bwd, dres) == MZ_IN(layernorm_bwd, rstd) + 1, "where a norm's other gradient is");
    static_assert(MZ_IN(rmsnorm_bwd, dres) == MZ_IN(rmsnorm_bwd, rstd) + 1, "where a norm's other gradient is");
    const int low = centred ? MZ_OUT(layernorm_bwd, low) : MZ_OUT(rmsnorm_bwd, low);
    const mz_tensor *weight = mz_in(call, layernorm_bwd, weight), *dx = mz_out(call, layernorm_bwd, dx);
    norm_bwd_args a = {.dy = mz_cuda_array(mz_in(call, layernorm_bwd, dy)),
                       .x = mz_cuda_array(mz_in(call, layernorm_bwd, x)),
                       .dres = mz_cuda_array(&call->in[dres]),
                       .dx = mz_cuda_array(dx),
                       .low = mz_cuda_array(&call->out[low]),
                       .weight = data_of<float>(weight),
                       .offset = mz_present(weight) ? call->attrs.offset : 0,
                       .mean = centred ? data_of<float>(mz_in(call, layernorm_bwd, mean)) : nullptr,
                       .rstd = data_of<float>(&call->in[rstd]),
                       .dweight = data_of<float>(mz_out(call, layernorm_bwd, dweight)),
                       .dbias = centred ? data_of<float>(mz_out(call, layernorm_bwd, dbias)) : nullptr,
                       .linear_dbias = centred ? data_of<float>(mz_out(call, layernorm_bwd, linear_dbias)) : nullptr,
                       .partial = static_cast<float *>(call->workspace),
                       .width = static_cast<int>(mz_cuda_width(dx)),
                       .pitch = static_cast<int>(mz_cuda_pitch(dx)),
                       .rows = mz_shape_rows(&dx->shape),
                       .accumulate = call->attrs.accumulate};
    a.parts = norm_bwd_parts(a.rows, a.pitch, mz_cuda(device)->sms);
    return a;
}

static mezzo_status run_norm_bwd(mezzo_device *device, const mz_call *call) {
    const norm_bwd_args a = norm_bwd_args_of(device, call);
    const cudaStream_t stream = mz_cuda(device)->stream;
    const unsigned parts = static_cast<unsigned>(a.parts);
    if (a.rows == 0)
        return MEZZO_OK;
    if (a.pitch > ROW_WIDTH_MAX)
        layernorm_bwd_wide_kernel<<<parts, ROW_BLOCK, 0, stream>>>(a);
    else
        for_row_width_bwd(a.pitch, [&]<int T, int V>() {
            const size_t sums = bwd_threads<T>::rows == 1 ? 0 : (a.pitch + 7) / 8 * 96 * bwd_threads<T>::rows;
            launch_dependent(stream, layernorm_bwd_kernel<T, V>, parts, bwd_threads<T>::block, sums, a);
        });
    if (a.dweight != nullptr || a.dbias != nullptr || a.linear_dbias != nullptr)
        norm_columns(stream, a, a.parts);
    MZ_CUDA_TRY(cudaGetLastError());
    return MEZZO_OK;
}

void norm_columns(cudaStream_t stream, const norm_bwd_args &a, int parts) {
    launch_dependent(stream, columns_kernel, blocks_of(columns_wanted(a.pitch, a.dbias, a.linear_dbias), COLUMNS),
                     dim3(COLUMNS, SHARES), 0, a.partial, parts, a.pitch, a.dweight, a.dbias, a.linear_dbias,
                     a.accumulate);
}

// The workspace has each part's column sums: dweight's, dbias's and linear_dbias's.
template <storage_letters IN, storage_letters OUT>
static const char *norm_bwd_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    const norm_bwd_args a = norm_bwd_args_of(device, call);
    out->workspace = static_cast<size_t>(a.parts) * 3 * static_cast<size_t>(a.pitch) * sizeof(float);
    return storages<IN, OUT, narrow_output>(device, call, out);
}
const mz_kernel mz_cuda_layernorm_bwd = {"layernorm_bwd__cuda", norm_bwd_prepare<"aafffa", "affaf">, run_norm_bwd};
const mz_kernel mz_cuda_rmsnorm_bwd = {"rmsnorm_bwd__cuda", norm_bwd_prepare<"aaffa", "afa">, run_norm_bwd};
