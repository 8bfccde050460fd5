// Products with a matrix of few rows, in FP32: a router's logits and their gradients. There x [rows, k] is all there is to read, once.
#include "rows.cuh"

namespace {
enum { BLOCK = 256, MOST = 16 };

__device__ __forceinline__ float4 load4(const float *p) {
    return *reinterpret_cast<const float4 *>(p);
}
__device__ __forceinline__ float dot4(float4 a, float4 b, float sum) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}
__device__ __forceinline__ float4 times4(float a, float4 b, float4 sum) {
    return make_float4(fmaf(a, b.x, sum.x), fmaf(a, b.y, sum.y), fmaf(a, b.z, sum.z), fmaf(a, b.w, sum.w));
}

// A warp's sums of COUNT numbers, 16 or 32, each in one lane (of 16: in two): at every step a lane hands half of what it has to another and adds the
// other half's. Which one a lane ends with is what its highest bits say.
template <int COUNT> __device__ __forceinline__ float sums_to_lanes(float (&v)[COUNT], int lane) {
    static_assert(COUNT == 16 || COUNT == 32, "one a lane, or one for two");
#pragma unroll
    for (int half = COUNT / 2, step = 16; half > 0; half /= 2, step /= 2) {
        bool upper = (lane & step) != 0;
#pragma unroll
        for (int i = 0; i < half; i++) {
            float give = upper ? v[i] : v[i + half];
            v[i] = (upper ? v[i + half] : v[i]) + __shfl_xor_sync(0xFFFFFFFFu, give, step);
        }
    }
    return COUNT == 32 ? v[0] : v[0] + __shfl_xor_sync(0xFFFFFFFFu, v[0], 1);
}

// A warp two rows of x, every matrix row at once; N: how many, at least g.n. Those past the last are the first once more, so that all loads are under
// way together.
enum { Y_BLOCK = 64, Y_WARPS = Y_BLOCK / WARP };
template <int N> __global__ void __launch_bounds__(Y_BLOCK) thin_y_kernel(const mz_cu_thin g) {
    int lane = static_cast<int>(threadIdx.x) % WARP;
    int64_t m = (static_cast<int64_t>(blockIdx.x) * Y_WARPS + threadIdx.x / WARP) * 2;
    if (m >= g.rows)
        return;
    const float *x0 = g.x + m * g.k, *x1 = m + 1 < g.rows ? x0 + g.k : x0;
    float sum[2 * N] = {};
#pragma unroll 2
    for (int k = lane * 4; k < g.k; k += WARP * 4) {
        float4 a0 = load4(x0 + k), a1 = load4(x1 + k), w[N];
#pragma unroll
        for (int n = 0; n < N; n++)
            w[n] = load4(g.w + static_cast<int64_t>(n < g.n ? n : 0) * g.k + k);
#pragma unroll
        for (int n = 0; n < N; n++) {
            sum[n] = dot4(a0, w[n], sum[n]);
            sum[N + n] = dot4(a1, w[n], sum[N + n]);
        }
    }
    float y = sums_to_lanes(sum, lane);
    int at = N == 16 ? lane : lane / 2, row = at / N, n = at % N;
    if (n < g.n && m + row < g.rows && (N == 16 || lane % 2 == 0))
        g.y[(m + row) * g.n + n] = y;
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
enum { DW_BLOCK = 128, DW_LEAST = 8 };
template <int N> __global__ void __launch_bounds__(DW_BLOCK) thin_dw_kernel(const mz_cu_thin g, int chunk) {
    int k = static_cast<int>(blockIdx.x * DW_BLOCK + threadIdx.x) * 4;
    if (k >= g.k)
        return;
    int64_t first = static_cast<int64_t>(blockIdx.y) * chunk, last = first + chunk < g.rows ? first + chunk : g.rows;
    float4 sum[N];
#pragma unroll
    for (int n = 0; n < N; n++)
        sum[n] = make_float4(0, 0, 0, 0);
#pragma unroll 8
    for (int64_t m = first; m < last; m++) {
        float4 x = load4(g.x + m * g.k + k);
#pragma unroll
        for (int n = 0; n < N; n++)
            sum[n] = times4(g.dy[m * g.n + (n < g.n ? n : 0)], x, sum[n]);
    }
    float *to = g.partial + static_cast<int64_t>(blockIdx.y) * g.n * g.k + k;
#pragma unroll
    for (int n = 0; n < N; n++)
        if (n < g.n)
            *reinterpret_cast<float4 *>(to + static_cast<int64_t>(n) * g.k) = sum[n];
}

// Each thread a strided share of the chunks, in order, then the shares in order.
enum { ADD_COLUMNS = 32, ADD_SHARES = 16 };
__global__ void __launch_bounds__(ADD_COLUMNS *ADD_SHARES) thin_add_kernel(const mz_cu_thin g, int chunks) {
    __shared__ float shares[ADD_SHARES][ADD_COLUMNS];
    int64_t i = static_cast<int64_t>(blockIdx.x) * ADD_COLUMNS + threadIdx.x, all = static_cast<int64_t>(g.n) * g.k;
    float sum = 0;
    if (i < all)
#pragma unroll 8
        for (int c = threadIdx.y; c < chunks; c += ADD_SHARES)
            sum += g.partial[static_cast<int64_t>(c) * all + i];
    shares[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || i >= all)
        return;
    sum = 0;
#pragma unroll
    for (int s = 0; s < ADD_SHARES; s++)
        sum += shares[s][threadIdx.x];
    g.dw[i] = g.accumulate ? g.dw[i] + sum : sum;
}

int chunk_rows(int64_t rows, int sms) {
    int64_t chunk = (rows + 4 * sms - 1) / (4 * sms);
    return static_cast<int>(chunk > DW_LEAST ? chunk : DW_LEAST);
}
int chunks_of(int64_t rows, int sms) {
    int chunk = chunk_rows(rows, sms);
    return static_cast<int>((rows + chunk - 1) / chunk);
}
} // namespace

extern "C" cudaError_t mz_cu_thin_y(cudaStream_t stream, const mz_cu_thin *args) {
    const mz_cu_thin &g = *args;
    unsigned blocks = static_cast<unsigned>((g.rows + 2 * Y_WARPS - 1) / (2 * Y_WARPS));
    if (blocks == 0)
        return cudaSuccess;
    if (g.n <= 8)
        thin_y_kernel<8><<<blocks, Y_BLOCK, 0, stream>>>(g);
    else
        thin_y_kernel<MOST><<<blocks, Y_BLOCK, 0, stream>>>(g);
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
    thin_add_kernel<<<static_cast<unsigned>((all + ADD_COLUMNS - 1) / ADD_COLUMNS), dim3(ADD_COLUMNS, ADD_SHARES), 0,
                      stream>>>(g, chunks);
    return cudaGetLastError();
}
