// Multiplies a matrix of few rows in FP32: a router's logits and their gradients. There x [rows, k] is all there is to
// read, once.
#include "route.cuh"
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

// A warp's sums of COUNT numbers, 16 or 32, each in one lane (of 16: in two): at every step a lane hands half of what
// it has to another and adds the other half's. Which one a lane ends with is what its highest bits say.
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

// A warp two rows of x, every matrix row at once; N: how many, at least g.n. Those past the last are the first once
// more, so that all loads are under way together.
enum { Y_BLOCK = 64, Y_WARPS = Y_BLOCK / WARP };

// The experts of a token among whose lanes, N apart from each other's, `logit` is expert n's: as route_kernel, bit for
// bit.
template <int N> __device__ __forceinline__ void route_row(const mz_cu_route_args &r, int64_t m, int n, float logit) {
    constexpr int LANES = N == 16 ? 1 : 2; // of an expert
    int lane = static_cast<int>(threadIdx.x) % WARP, first = lane - n * LANES;
    float score = expert_score(logit), sum = 0, chosen_score = 0;
    uint32_t key = n < r.experts ? rank_key(r.bias != nullptr ? score + r.bias[n] : score) : 0;
    int chosen = 0;
    for (int j = 0; j < r.top_k; j++) { // the largest that is left, the first among equals
        uint32_t best = key;
        int index = n;
#pragma unroll
        for (int step = N / 2; step > 0; step >>= 1) {
            uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, best, step * LANES);
            int other_index = __shfl_xor_sync(0xFFFFFFFFu, index, step * LANES);
            if (other > best || (other == best && other_index < index)) {
                best = other;
                index = other_index;
            }
        }
        float s = __shfl_sync(0xFFFFFFFFu, score, (first + index * LANES) % WARP);
        sum += s;
        if (n == j) {
            chosen = index;
            chosen_score = s;
        }
        key = n == index ? 0 : key;
    }
    if (m < r.tokens && n < r.top_k && lane % LANES == 0) {
        r.indices[m * r.top_k + n] = chosen;
        r.weights[m * r.top_k + n] = (r.normalise ? chosen_score / (sum + 1e-20f) : chosen_score) * r.alpha;
    }
}

template <int N, bool ROUTES>
__global__ void __launch_bounds__(Y_BLOCK) small_n_y_kernel(const mz_cu_small_n g, const mz_cu_route_args r) {
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
    if (ROUTES)
        route_row<N>(r, m + row, n, y);
}

// A thread four columns of four rows of dx.
enum { DX_ROWS = 4, DX_LEAST = 128, DX_MOST_ROWS = (BLOCK / (DX_LEAST / 4) + 1) * DX_ROWS };

// dx of route for row m, a thread: as route_dx_kernel, bit for bit.
__device__ __forceinline__ void unroute_row(const mz_cu_route_dx_args &r, int64_t m, float *to) {
    const float *logits = static_cast<const float *>(r.logits.data) + m * r.experts;
    float sum = 1e-20f, mean = 0;
    for (int e = 0; e < r.experts; e++)
        to[e] = 0;
    for (int64_t i = m * r.top_k; i < (m + 1) * r.top_k; i++) {
        float s = expert_score(logits[r.indices[i]]);
        sum += s;
        mean = fmaf(r.dweights[i], s, mean);
    }
    mean /= sum;
    for (int64_t i = m * r.top_k; i < (m + 1) * r.top_k; i++) {
        float s = expert_score(logits[r.indices[i]]), d = r.dweights[i];
        d = r.normalise ? (d - mean) / sum : d;
        to[r.indices[i]] = r.alpha * d * s * (1 - s);
    }
}

// ROUTES: dy is route's dx, made here by the block for its rows; the block of a row's first thread also stores it.
template <bool ROUTES>
__global__ void __launch_bounds__(BLOCK) small_n_dx_kernel(const mz_cu_small_n g, const mz_cu_route_dx_args r) {
    __shared__ float rows_dy[ROUTES ? DX_MOST_ROWS * MOST : 1];
    int across = g.k / 4;
    int64_t start = static_cast<int64_t>(blockIdx.x) * BLOCK, i = start + threadIdx.x, m = i / across * DX_ROWS;
    int64_t first = start / across * DX_ROWS, end = ((start + BLOCK - 1) / across + 1) * DX_ROWS;
    if (ROUTES) {
        int64_t row = first + threadIdx.x;
        if (row < end && row < g.rows) {
            float *to = rows_dy + threadIdx.x * MOST;
            unroute_row(r, row, to);
            if (row / DX_ROWS * across >= start)
                for (int e = 0; e < g.n; e++)
                    static_cast<float *>(r.dx.data)[row * g.n + e] = to[e];
        }
        __syncthreads();
    }
    if (m >= g.rows)
        return;
    const float *dy = ROUTES ? rows_dy + (m - first) * MOST : g.dy + m * g.n;
    int pitch = ROUTES ? static_cast<int>(MOST) : g.n;
    int k = static_cast<int>(i % across) * 4, rows = static_cast<int>(g.rows - m < DX_ROWS ? g.rows - m : DX_ROWS);
    float4 sum[DX_ROWS];
#pragma unroll
    for (int q = 0; q < DX_ROWS; q++)
        sum[q] = make_float4(0, 0, 0, 0);
#pragma unroll 8
    for (int n = 0; n < g.n; n++) {
        float4 w = load4(g.w + static_cast<int64_t>(n) * g.k + k);
#pragma unroll
        for (int q = 0; q < DX_ROWS; q++)
            sum[q] = times4(dy[(q < rows ? q : 0) * pitch + n], w, sum[q]);
    }
#pragma unroll
    for (int q = 0; q < DX_ROWS; q++)
        if (q < rows)
            *reinterpret_cast<float4 *>(g.dx + (m + q) * g.k + k) = sum[q];
}

// Blocks across k and down the rows, in chunks; a thread four columns of k for every n. The chunks' sums are added in
// order.
enum { DW_BLOCK = 128, DW_LEAST = 8 };
template <int N> __global__ void __launch_bounds__(DW_BLOCK) small_n_dw_kernel(const mz_cu_small_n g, int chunk) {
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
__global__ void __launch_bounds__(ADD_COLUMNS *ADD_SHARES) small_n_add_kernel(const mz_cu_small_n g, int chunks) {
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

template <bool ROUTES>
static cudaError_t small_n_y(cudaStream_t stream, const mz_cu_small_n &g, const mz_cu_route_args &r) {
    unsigned blocks = static_cast<unsigned>((g.rows + 2 * Y_WARPS - 1) / (2 * Y_WARPS));
    if (blocks == 0)
        return cudaSuccess;
    if (g.n <= 8)
        small_n_y_kernel<8, ROUTES><<<blocks, Y_BLOCK, 0, stream>>>(g, r);
    else
        small_n_y_kernel<MOST, ROUTES><<<blocks, Y_BLOCK, 0, stream>>>(g, r);
    return cudaGetLastError();
}

extern "C" cudaError_t mz_cu_small_n_y(cudaStream_t stream, const mz_cu_small_n *args) {
    return small_n_y<false>(stream, *args, mz_cu_route_args{});
}

extern "C" cudaError_t mz_cu_small_n_y_route(cudaStream_t stream, const mz_cu_small_n *args,
                                             const mz_cu_route_args *route) {
    return small_n_y<true>(stream, *args, *route);
}

template <bool ROUTES>
static cudaError_t small_n_dx(cudaStream_t stream, const mz_cu_small_n &g, const mz_cu_route_dx_args &r) {
    int64_t threads = (g.rows + DX_ROWS - 1) / DX_ROWS * (g.k / 4);
    if (threads == 0)
        return cudaSuccess;
    small_n_dx_kernel<ROUTES><<<static_cast<unsigned>((threads + BLOCK - 1) / BLOCK), BLOCK, 0, stream>>>(g, r);
    return cudaGetLastError();
}

extern "C" cudaError_t mz_cu_small_n_dx(cudaStream_t stream, const mz_cu_small_n *args) {
    return small_n_dx<false>(stream, *args, mz_cu_route_dx_args{});
}

extern "C" cudaError_t mz_cu_route_dx_small_n(cudaStream_t stream, const mz_cu_route_dx_args *route,
                                              const mz_cu_small_n *args) {
    return small_n_dx<true>(stream, *args, *route);
}

extern "C" size_t mz_cu_small_n_dw_workspace(int64_t rows, int n, int k, int sms) {
    return static_cast<size_t>(chunks_of(rows, sms)) * static_cast<size_t>(n) * static_cast<size_t>(k) * sizeof(float);
}

extern "C" cudaError_t mz_cu_small_n_dw(cudaStream_t stream, const mz_cu_small_n *args, int sms) {
    const mz_cu_small_n &g = *args;
    int chunks = chunks_of(g.rows, sms), chunk = chunk_rows(g.rows, sms);
    dim3 grid(static_cast<unsigned>((g.k / 4 + DW_BLOCK - 1) / DW_BLOCK), static_cast<unsigned>(chunks));
    if (chunks > 0) {
        if (g.n <= 8)
            small_n_dw_kernel<8><<<grid, DW_BLOCK, 0, stream>>>(g, chunk);
        else
            small_n_dw_kernel<MOST><<<grid, DW_BLOCK, 0, stream>>>(g, chunk);
    }
    int64_t all = static_cast<int64_t>(g.n) * g.k;
    small_n_add_kernel<<<static_cast<unsigned>((all + ADD_COLUMNS - 1) / ADD_COLUMNS), dim3(ADD_COLUMNS, ADD_SHARES), 0,
                         stream>>>(g, chunks);
    return cudaGetLastError();
}
