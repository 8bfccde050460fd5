// Layer norm and RMS norm (args.centred false: the mean counts as 0), forward and backward. A row stays in registers between the passes
// over it; mean and variance are two passes, never E[s²] - E[s]² (docs/dev/NUMERICS.md).
#include "rows.cuh"

// --- forward --------------------------------------------------------------------------------------------------------------
template <int T, int V>
__global__ void __launch_bounds__(row_threads<T>::block) layernorm_kernel(mz_cu_layernorm_args a) {
    __shared__ float shared[2][T / WARP];
    int64_t row = static_cast<int64_t>(blockIdx.x) * row_threads<T>::rows + row_in_block<T>();
    if (row >= a.rows) // a whole warp, which shares nothing with the others
        return;
    int width = a.width;
    int64_t start = row * width;
    float s[V][8], sum = 0, squares = 0;
    {
        raw8 raw_x[V], raw_r[V];
        row_fetch<T, V>(raw_x, a.x, start, width);
        if (a.residual.data != nullptr)
            row_fetch<T, V>(raw_r, a.residual, start, width);
        row_widen<V>(raw_x, a.x.dtype, width, s);
        if (a.residual.data != nullptr) {
            float r[V][8];
            row_widen<V>(raw_r, a.residual.dtype, width, r);
#pragma unroll
            for (int v = 0; v < V; v++)
#pragma unroll
                for (int k = 0; k < 8; k++)
                    s[v][k] += r[v][k];
        }
    }
    if (a.sum.data != nullptr) {
#pragma unroll
        for (int v = 0; v < V; v++) {
#pragma unroll
            for (int k = 0; k < 8; k++)
                s[v][k] = round_to(s[v][k], a.sum.dtype); // what backward will read is what is normalised
            row_store<T>(a.sum, start, width, v, s[v]);
        }
    }
#pragma unroll
    for (int v = 0; v < V; v++)
#pragma unroll
        for (int k = 0; k < 8; k++)
            sum += s[v][k];
    float mean = 0;
    if (a.centred)
        mean = row_sum<T>(sum, shared[0]) / static_cast<float>(width);
#pragma unroll
    for (int v = 0; v < V; v++)
#pragma unroll
        for (int k = 0; k < 8; k++) {
            s[v][k] -= mean;
            if (row_column<T>(v) + k < width)
                squares = fmaf(s[v][k], s[v][k], squares);
        }
    float rstd = __frsqrt_rn(row_sum<T>(squares, shared[1]) / static_cast<float>(width) + a.eps);
    if (row_lane<T>() == 0) {
        if (a.mean != nullptr)
            a.mean[row] = mean;
        if (a.rstd != nullptr)
            a.rstd[row] = rstd;
    }
#pragma unroll
    for (int v = 0; v < V; v++) {
        float w[8], b[8], y[8];
        row_vector<T>(a.weight, width, v, 1, w);
        row_vector<T>(a.bias, width, v, 0, b);
#pragma unroll
        for (int k = 0; k < 8; k++)
            y[k] = fmaf(s[v][k] * rstd, w[k], b[k]);
        row_store<T>(a.y, start, width, v, y);
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
    int64_t row = blockIdx.x, start = row * a.width;
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
        y = fmaf(y, a.weight != nullptr ? a.weight[c] : 1, a.bias != nullptr ? a.bias[c] : 0);
        if (a.sum.data != nullptr)
            store1(a.sum.data, a.sum.dtype, start + c, s);
        store1(a.y.data, a.y.dtype, start + c, y);
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
    if (a.width > ROW_WIDTH_MAX) {
        layernorm_wide_kernel<<<static_cast<unsigned>(a.rows), ROW_BLOCK, 0, stream>>>(a);
        return cudaGetLastError();
    }
#define RUN(T, V)                                                                                                      \
    layernorm_kernel<T, V><<<static_cast<unsigned>((a.rows + row_threads<T>::rows - 1) / row_threads<T>::rows),        \
                             row_threads<T>::block, 0, stream>>>(a)
    MZ_ROW_DISPATCH(a.width, RUN);
#undef RUN
    return cudaGetLastError();
}

// --- backward -------------------------------------------------------------------------------------------------------------
// With x̂ = (x - mean)·rstd and g = dy·weight: dx = rstd·(g - mean(g) - x̂·mean(g·x̂)) + dres, dweight = Σ_rows dy·x̂,
// dbias = Σ_rows dy. RMS norm (a.mean NULL) has neither mean. A block goes through its rows (every `parts`-th group) and keeps its columns' sums in registers; they meet
// in partial [parts, 3, width], which columns_kernel adds up in order.
template <int T, int V>
__global__ void __launch_bounds__(row_threads<T>::block) layernorm_bwd_kernel(mz_cu_layernorm_bwd_args a) {
    __shared__ float shared[2][2][T / WARP]; // two sets, used by turns: one barrier a row is enough
    extern __shared__ float4 columns[];      // [3, width] as 8-column vectors
    constexpr int rows_at_once = row_threads<T>::rows;
    int width = a.width;
    float inverse = 1.0f / static_cast<float>(width);
    float sums[3][V][8] = {}; // dweight, dbias, dsum
    int stored = a.low.data != nullptr ? a.low.dtype : a.dx.dtype;
    int turn = 0;
    for (int64_t group = blockIdx.x; group * rows_at_once < a.rows; group += gridDim.x) {
        int64_t row = group * rows_at_once + row_in_block<T>();
        if (row >= a.rows)
            break;
        int64_t start = row * width;
        float dy[V][8], x[V][8], mean = a.mean != nullptr ? a.mean[row] : 0, rstd = a.rstd[row];
        raw8 raw_r[V];
        {
            raw8 raw_d[V], raw_x[V];
            row_fetch<T, V>(raw_d, a.dy, start, width);
            row_fetch<T, V>(raw_x, a.x, start, width);
            if (a.dres.data != nullptr)
                row_fetch<T, V>(raw_r, a.dres, start, width);
            row_widen<V>(raw_d, a.dy.dtype, width, dy);
            row_widen<V>(raw_x, a.x.dtype, width, x);
        }
        float g_sum = 0, gx_sum = 0;
#pragma unroll
        for (int v = 0; v < V; v++) {
            float w[8];
            row_vector<T>(a.weight, width, v, 1, w);
#pragma unroll
            for (int k = 0; k < 8; k++) {
                bool inside = row_column<T>(v) + k < width;
                x[v][k] = inside ? (x[v][k] - mean) * rstd : 0;
                sums[0][v][k] = fmaf(dy[v][k], x[v][k], sums[0][v][k]);
                sums[1][v][k] += dy[v][k];
                dy[v][k] *= w[k];
                g_sum += dy[v][k];
                gx_sum = fmaf(dy[v][k], x[v][k], gx_sum);
            }
        }
        if (T == WARP) {
            g_sum = warp_sum(g_sum);
            gx_sum = warp_sum(gx_sum);
        } else {
            g_sum = warp_sum(g_sum);
            gx_sum = warp_sum(gx_sum);
            if (threadIdx.x % WARP == 0) {
                shared[turn][0][threadIdx.x / WARP] = g_sum;
                shared[turn][1][threadIdx.x / WARP] = gx_sum;
            }
            __syncthreads();
            g_sum = gx_sum = 0;
#pragma unroll
            for (int w = 0; w < T / WARP; w++) {
                g_sum += shared[turn][0][w];
                gx_sum += shared[turn][1][w];
            }
            turn ^= 1;
        }
        g_sum = a.mean != nullptr ? g_sum * inverse : 0;
        gx_sum *= inverse;
#pragma unroll
        for (int v = 0; v < V; v++) {
            float dx[8];
#pragma unroll
            for (int k = 0; k < 8; k++)
                dx[k] = rstd * (dy[v][k] - g_sum - x[v][k] * gx_sum);
            if (a.dres.data != nullptr) {
                float r[8];
                widen8(raw_r[v], width % 8 == 0 ? a.dres.dtype : MZ_CU_F32, r);
#pragma unroll
                for (int k = 0; k < 8; k++)
                    dx[k] += r[k];
            }
            row_store<T>(a.dx, start, width, v, dx);
            if (a.low.data != nullptr)
                row_store<T>(a.low, start, width, v, dx);
            if (a.dsum != nullptr)
#pragma unroll
                for (int k = 0; k < 8; k++)
                    sums[2][v][k] += round_to(dx[k], stored);
        }
    }
    if (a.dweight == nullptr && a.dbias == nullptr && a.dsum == nullptr)
        return;
    // The warps' sums in order, then out.
    int padded = (width + 7) / 8;
    if (T == WARP) {
        for (int w = 0; w < rows_at_once; w++) {
            if (row_in_block<T>() == w)
#pragma unroll
                for (int v = 0; v < V; v++) {
                    int vector = v * T + row_lane<T>();
                    if (vector >= padded)
                        continue;
#pragma unroll
                    for (int s = 0; s < 3; s++)
#pragma unroll
                        for (int half = 0; half < 2; half++) {
                            float4 *at = columns + 2 * (s * padded + vector) + half;
                            const float *mine = sums[s][v] + 4 * half;
                            float4 old = w > 0 ? *at : make_float4(0, 0, 0, 0);
                            *at = make_float4(old.x + mine[0], old.y + mine[1], old.z + mine[2], old.w + mine[3]);
                        }
                }
            __syncthreads();
        }
        float *out = a.partial + static_cast<int64_t>(blockIdx.x) * 3 * width;
        const float *all = reinterpret_cast<const float *>(columns);
        for (int c = threadIdx.x; c < width; c += row_threads<T>::block)
#pragma unroll
            for (int s = 0; s < 3; s++)
                out[s * width + c] = all[8 * s * padded + c];
    } else {
        mz_cu_array out = {a.partial, MZ_CU_F32};
        int64_t at = static_cast<int64_t>(blockIdx.x) * 3 * width;
#pragma unroll
        for (int v = 0; v < V; v++)
#pragma unroll
            for (int s = 0; s < 3; s++)
                row_store<T>(out, at + s * width, width, v, sums[s][v]);
    }
}

// Rows wider than registers hold. A block a part, columns' sums in `partial` itself, which each thread adds to in row order.
__global__ void __launch_bounds__(ROW_BLOCK) layernorm_bwd_wide_kernel(mz_cu_layernorm_bwd_args a) {
    __shared__ float shared[2][ROW_BLOCK / WARP];
    float *part = a.partial + static_cast<int64_t>(blockIdx.x) * 3 * a.width;
    bool sums = a.dweight != nullptr || a.dbias != nullptr || a.dsum != nullptr;
    int stored = a.low.data != nullptr ? a.low.dtype : a.dx.dtype;
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        int64_t start = row * a.width;
        float mean = a.mean != nullptr ? a.mean[row] : 0, rstd = a.rstd[row], g_sum = 0, gx_sum = 0;
        for (int c = threadIdx.x; c < a.width; c += ROW_BLOCK) {
            float d = load1(a.dy.data, a.dy.dtype, start + c);
            float x = (load1(a.x.data, a.x.dtype, start + c) - mean) * rstd, g = a.weight ? d * a.weight[c] : d;
            g_sum += g;
            gx_sum = fmaf(g, x, gx_sum);
            if (sums) {
                part[c] = row == blockIdx.x ? d * x : fmaf(d, x, part[c]);
                part[a.width + c] = row == blockIdx.x ? d : part[a.width + c] + d;
            }
        }
        g_sum = row_sum<ROW_BLOCK>(g_sum, shared[0]) / static_cast<float>(a.width);
        gx_sum = row_sum<ROW_BLOCK>(gx_sum, shared[1]) / static_cast<float>(a.width);
        g_sum = a.mean != nullptr ? g_sum : 0;
        for (int c = threadIdx.x; c < a.width; c += ROW_BLOCK) {
            float d = load1(a.dy.data, a.dy.dtype, start + c), g = a.weight ? d * a.weight[c] : d;
            float x = (load1(a.x.data, a.x.dtype, start + c) - mean) * rstd;
            float dx = rstd * (g - g_sum - x * gx_sum);
            if (a.dres.data != nullptr)
                dx += load1(a.dres.data, a.dres.dtype, start + c);
            store1(a.dx.data, a.dx.dtype, start + c, dx);
            if (a.low.data != nullptr)
                store1(a.low.data, a.low.dtype, start + c, dx);
            if (a.dsum != nullptr)
                part[2 * a.width + c] = (row == blockIdx.x ? 0 : part[2 * a.width + c]) + round_to(dx, stored);
        }
        __syncthreads(); // before the next row's sums are shared
    }
}

// out[c] (+)= Σ_parts partial[part, c], each thread a strided share in order, then the shares in order.
enum { COLUMNS = 32, SHARES = 32 };
__host__ __device__ __forceinline__ int columns_wanted(int width, const float *dbias, const float *dsum) {
    return dsum != nullptr ? 3 * width : dbias != nullptr ? 2 * width : width;
}

__global__ void __launch_bounds__(COLUMNS *SHARES)
    columns_kernel(const float *partial, int parts, int width, float *dweight, float *dbias, float *dsum,
                   bool accumulate) {
    __shared__ float shares[SHARES][COLUMNS];
    int c = blockIdx.x * COLUMNS + threadIdx.x, all = columns_wanted(width, dbias, dsum);
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
    float *out = c < width ? dweight : c < 2 * width ? dbias : dsum;
    if (out == nullptr)
        return;
    out += c % width;
    *out = accumulate ? *out + sum : sum;
}

// Backward keeps three rows and two rows of sums: few vectors a thread, so that many blocks are resident.
#define MZ_ROW_DISPATCH_BWD(width, run)                                                                                \
    do {                                                                                                               \
        if ((width) <= 256)                                                                                            \
            run(32, 1);                                                                                                \
        else if ((width) <= 512)                                                                                       \
            run(64, 1);                                                                                                \
        else if ((width) <= 768)                                                                                       \
            run(96, 1);                                                                                                \
        else if ((width) <= 1024)                                                                                      \
            run(128, 1);                                                                                               \
        else if ((width) <= 2048)                                                                                      \
            run(256, 1);                                                                                               \
        else if ((width) <= 3072)                                                                                      \
            run(384, 1);                                                                                               \
        else if ((width) <= 4096)                                                                                      \
            run(512, 1);                                                                                               \
        else                                                                                                           \
            run(512, 2);                                                                                               \
    } while (0)

// Some 768 threads a multiprocessor, and four groups of rows a part: with fewer the parts' sums take longer to add up than to make.
extern "C" int mz_cu_layernorm_bwd_parts(int64_t rows, int width, int sms) {
    int at_once = width <= 256 ? row_threads<WARP>::rows : 1;
    int threads = width <= 256             ? row_threads<WARP>::block
                  : width <= ROW_WIDTH_MAX ? (width + 255) / 256 * 32
                                           : ROW_BLOCK;
    int64_t groups = (rows + at_once - 1) / at_once,
            most = static_cast<int64_t>(sms) * (threads < 768 ? 768 / threads : 1);
    int64_t few = groups / 4 > sms ? groups / 4 : sms;
    most = most < few ? most : few;
    return static_cast<int>(groups < most ? groups : most);
}

extern "C" cudaError_t mz_cu_layernorm_bwd(cudaStream_t stream, const mz_cu_layernorm_bwd_args *args) {
    mz_cu_layernorm_bwd_args a = *args;
    if (a.rows == 0)
        return cudaSuccess;
    unsigned parts = static_cast<unsigned>(a.parts);
    if (a.width > ROW_WIDTH_MAX) {
        layernorm_bwd_wide_kernel<<<parts, ROW_BLOCK, 0, stream>>>(a);
    } else {
#define RUN(T, V)                                                                                                      \
    layernorm_bwd_kernel<T, V><<<parts, row_threads<T>::block, T == WARP ? (a.width + 7) / 8 * 96 : 0, stream>>>(a)
        MZ_ROW_DISPATCH_BWD(a.width, RUN);
#undef RUN
    }
    cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess || (a.dweight == nullptr && a.dbias == nullptr && a.dsum == nullptr))
        return error;
    dim3 threads(COLUMNS, SHARES);
    int all = columns_wanted(a.width, a.dbias, a.dsum);
    columns_kernel<<<static_cast<unsigned>((all + COLUMNS - 1) / COLUMNS), threads, 0, stream>>>(
        a.partial, a.parts, a.width, a.dweight, a.dbias, a.dsum, a.accumulate);
    return cudaGetLastError();
}
