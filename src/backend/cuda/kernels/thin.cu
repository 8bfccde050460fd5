// Products with a matrix of few rows, in FP32: a router's logits and their gradients. There x [rows, k] is all there is to read, once.
#include "rows.cuh"

namespace {
enum { BLOCK = 256, WARPS = BLOCK / WARP, MOST = 16 };

__device__ __forceinline__ float4 load4(const float *p) {
    return *reinterpret_cast<const float4 *>(p);
}
__device__ __forceinline__ float dot4(float4 a, float4 b, float sum) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}
__device__ __forceinline__ float4 times4(float a, float4 b, float4 sum) {
    return make_float4(fmaf(a, b.x, sum.x), fmaf(a, b.y, sum.y), fmaf(a, b.z, sum.z), fmaf(a, b.w, sum.w));
}

// A warp two rows of x, every matrix row at once; N: how many, at least g.n.
template <int N> __global__ void __launch_bounds__(BLOCK) thin_y_kernel(const mz_cu_thin g) {
    int lane = static_cast<int>(threadIdx.x) % WARP;
    int64_t m = (static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / WARP) * 2;
    if (m >= g.rows)
        return;
    bool second = m + 1 < g.rows;
    const float *x0 = g.x + m * g.k, *x1 = second ? x0 + g.k : x0;
    float sum[2][N] = {};
    for (int k = lane * 4; k < g.k; k += WARP * 4) {
        float4 a0 = load4(x0 + k), a1 = load4(x1 + k);
#pragma unroll
        for (int n = 0; n < N; n++) {
            float4 w = n < g.n ? load4(g.w + static_cast<int64_t>(n) * g.k + k) : make_float4(0, 0, 0, 0);
            sum[0][n] = dot4(a0, w, sum[0][n]);
            sum[1][n] = dot4(a1, w, sum[1][n]);
        }
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
        float y0 = warp_sum(sum[0][n]), y1 = warp_sum(sum[1][n]);
        if (lane == n && n < g.n) {
            g.y[m * g.n + n] = y0;
            if (second)
                g.y[(m + 1) * g.n + n] = y1;
        }
    }
}

// A thread four columns of four rows of dx.
enum { DX_ROWS = 4 };
__global__ void __launch_bounds__(BLOCK) thin_dx_kernel(const mz_cu_thin g) {
    int across = g.k / 4;
    int64_t i = static_cast<int64_t>(blockIdx.x) * BLOCK + threadIdx.x, m = i / across * DX_ROWS;
    if (m >= g.rows)
        return;
    int k = static_cast<int>(i % across) * 4, rows = static_cast<int>(g.rows - m < DX_ROWS ? g.rows - m : DX_ROWS);
    float4 sum[DX_ROWS];
#pragma unroll
    for (int r = 0; r < DX_ROWS; r++)
        sum[r] = make_float4(0, 0, 0, 0);
#pragma unroll 8
    for (int n = 0; n < g.n; n++) {
        float4 w = load4(g.w + static_cast<int64_t>(n) * g.k + k);
#pragma unroll
        for (int r = 0; r < DX_ROWS; r++)
            sum[r] = times4(g.dy[(m + (r < rows ? r : 0)) * g.n + n], w, sum[r]);
    }
#pragma unroll
    for (int r = 0; r < DX_ROWS; r++)
        if (r < rows)
            *reinterpret_cast<float4 *>(g.dx + (m + r) * g.k + k) = sum[r];
}

// Blocks across k and down the rows, in chunks; a thread four columns of k for every n. The chunks' sums are added in order.
enum { DW_BLOCK = 128, DW_LEAST = 16 };
template <int N> __global__ void __launch_bounds__(DW_BLOCK) thin_dw_kernel(const mz_cu_thin g, int chunk) {
    int k = static_cast<int>(blockIdx.x * DW_BLOCK + threadIdx.x) * 4;
    if (k >= g.k)
        return;
    int64_t first = static_cast<int64_t>(blockIdx.y) * chunk, last = first + chunk < g.rows ? first + chunk : g.rows;
    float4 sum[N];
#pragma unroll
    for (int n = 0; n < N; n++)
        sum[n] = make_float4(0, 0, 0, 0);
#pragma unroll 4
    for (int64_t m = first; m < last; m++) {
        float4 x = load4(g.x + m * g.k + k);
#pragma unroll
        for (int n = 0; n < N; n++)
            if (n < g.n)
                sum[n] = times4(g.dy[m * g.n + n], x, sum[n]);
    }
    float *to = g.partial + static_cast<int64_t>(blockIdx.y) * g.n * g.k + k;
#pragma unroll
    for (int n = 0; n < N; n++)
        if (n < g.n)
            *reinterpret_cast<float4 *>(to + static_cast<int64_t>(n) * g.k) = sum[n];
}

__global__ void __launch_bounds__(DW_BLOCK) thin_add_kernel(const mz_cu_thin g, int chunks) {
    int64_t i = static_cast<int64_t>(blockIdx.x) * DW_BLOCK + threadIdx.x, all = static_cast<int64_t>(g.n) * g.k;
    if (i >= all)
        return;
    float sum = 0;
#pragma unroll 16
    for (int c = 0; c < chunks; c++)
        sum += g.partial[static_cast<int64_t>(c) * all + i];
    g.dw[i] = g.accumulate ? g.dw[i] + sum : sum;
}

int chunk_rows(int64_t rows, int sms) {
    int64_t chunk = (rows + sms - 1) / sms;
    return static_cast<int>(chunk > DW_LEAST ? chunk : DW_LEAST);
}
int chunks_of(int64_t rows, int sms) {
    int chunk = chunk_rows(rows, sms);
    return static_cast<int>((rows + chunk - 1) / chunk);
}
} // namespace

extern "C" cudaError_t mz_cu_thin_y(cudaStream_t stream, const mz_cu_thin *args) {
    const mz_cu_thin &g = *args;
    unsigned blocks = static_cast<unsigned>((g.rows + 2 * WARPS - 1) / (2 * WARPS));
    if (blocks == 0)
        return cudaSuccess;
    if (g.n <= 8)
        thin_y_kernel<8><<<blocks, BLOCK, 0, stream>>>(g);
    else
        thin_y_kernel<MOST><<<blocks, BLOCK, 0, stream>>>(g);
    return cudaGetLastError();
}

extern "C" cudaError_t mz_cu_thin_dx(cudaStream_t stream, const mz_cu_thin *args) {
    const mz_cu_thin &g = *args;
    int64_t threads = (g.rows + DX_ROWS - 1) / DX_ROWS * (g.k / 4);
    if (threads == 0)
        return cudaSuccess;
    thin_dx_kernel<<<static_cast<unsigned>((threads + BLOCK - 1) / BLOCK), BLOCK, 0, stream>>>(g);
    return cudaGetLastError();
}

extern "C" size_t mz_cu_thin_dw_workspace(int64_t rows, int n, int k, int sms) {
    return static_cast<size_t>(chunks_of(rows, sms)) * static_cast<size_t>(n) * static_cast<size_t>(k) * sizeof(float);
}

extern "C" cudaError_t mz_cu_thin_dw(cudaStream_t stream, const mz_cu_thin *args, int sms) {
    const mz_cu_thin &g = *args;
    int chunks = chunks_of(g.rows, sms), chunk = chunk_rows(g.rows, sms);
    dim3 grid(static_cast<unsigned>((g.k / 4 + DW_BLOCK - 1) / DW_BLOCK), static_cast<unsigned>(chunks));
    if (chunks > 0) {
        if (g.n <= 8)
            thin_dw_kernel<8><<<grid, DW_BLOCK, 0, stream>>>(g, chunk);
        else
            thin_dw_kernel<MOST><<<grid, DW_BLOCK, 0, stream>>>(g, chunk);
    }
    int64_t all = static_cast<int64_t>(g.n) * g.k;
    thin_add_kernel<<<static_cast<unsigned>((all + DW_BLOCK - 1) / DW_BLOCK), DW_BLOCK, 0, stream>>>(g, chunks);
    return cudaGetLastError();
}
