// Multiplies a matrix of few rows in FP32: a router's logits and their gradients. There x [rows, k] is all there is to
// read, once.
#include "route.cuh"
#include "rows.cuh"

namespace {
enum { BLOCK = 256, MOST = 16 };

struct small_n_args {
    const float *x, *w, *dy;      // [rows, k], [n, k], [rows, n]
    float *y, *dx, *dw, *partial; // partial: workspace of dw
    int64_t rows;
    int n, k; // n at most 16, k a multiple of 4
    bool accumulate;
};

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
template <int N> __device__ __forceinline__ void route_row(const route_args &r, int64_t m, int n, float logit) {
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
__global__ void __launch_bounds__(Y_BLOCK) small_n_y_kernel(const small_n_args g, const route_args r) {
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
__device__ __forceinline__ void unroute_row(const route_dx_args &r, int64_t m, float *to) {
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
__global__ void __launch_bounds__(BLOCK) small_n_dx_kernel(const small_n_args g, const route_dx_args r) {
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
template <int N> __global__ void __launch_bounds__(DW_BLOCK) small_n_dw_kernel(const small_n_args g, int chunk) {
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

enum { ADD_COLUMNS = 32, ADD_SHARES = 16 };
__global__ void __launch_bounds__(ADD_COLUMNS *ADD_SHARES) small_n_add_kernel(const small_n_args g, int chunks) {
    const int64_t i = thread_index<ADD_COLUMNS>(), all = static_cast<int64_t>(g.n) * g.k;
    const float sum = sum_shares<ADD_COLUMNS, ADD_SHARES, 8>(
        i < all, chunks, [&](int c) { return g.partial[static_cast<int64_t>(c) * all + i]; });
    if (threadIdx.y != 0 || i >= all)
        return;
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

template <bool ROUTES> static void launch_y(cudaStream_t stream, const small_n_args &g, const route_args &r) {
    const unsigned blocks = blocks_of(g.rows, 2 * Y_WARPS);
    if (blocks > 0)
        (g.n <= 8 ? small_n_y_kernel<8, ROUTES> : small_n_y_kernel<MOST, ROUTES>)<<<blocks, Y_BLOCK, 0, stream>>>(g, r);
}
template <bool ROUTES> static void launch_dx(cudaStream_t stream, const small_n_args &g, const route_dx_args &r) {
    const unsigned blocks = blocks_of((g.rows + DX_ROWS - 1) / DX_ROWS * (g.k / 4), BLOCK);
    if (blocks > 0)
        small_n_dx_kernel<ROUTES><<<blocks, BLOCK, 0, stream>>>(g, r);
}
static void launch_dw(cudaStream_t stream, const small_n_args &g, int sms) {
    const int chunks = chunks_of(g.rows, sms), chunk = chunk_rows(g.rows, sms);
    const dim3 grid(blocks_of(g.k / 4, DW_BLOCK), static_cast<unsigned>(chunks));
    if (chunks > 0)
        (g.n <= 8 ? small_n_dw_kernel<8> : small_n_dw_kernel<MOST>)<<<grid, DW_BLOCK, 0, stream>>>(g, chunk);
    small_n_add_kernel<<<blocks_of(static_cast<int64_t>(g.n) * g.k, ADD_COLUMNS), dim3(ADD_COLUMNS, ADD_SHARES), 0,
                         stream>>>(g, chunks);
}

// --- linear, linear_dx and linear_dw -------------------------------------------------------------------------------
// x [M, K], dy [M, N], w [N, K]. cuBLASLt has no kernel for such a shape that reads x at the memory's pace.
static const mz_tensor *matrix_of(const mz_call *call) {
    return call->op == MZ_OP_linear      ? mz_in(call, linear, w)
           : call->op == MZ_OP_linear_dx ? mz_in(call, linear_dx, w)
                                         : mz_out(call, linear_dw, dw);
}

static small_n_args small_n_args_of(const mz_call *call) {
    const mz_tensor *w = matrix_of(call);
    small_n_args g = {.n = static_cast<int>(w->shape.dim[0]), .k = static_cast<int>(w->shape.dim[1])};
    if (call->op == MZ_OP_linear) {
        g.x = data_of<float>(mz_in(call, linear, x));
        g.w = data_of<float>(w);
        g.y = data_of<float>(mz_out(call, linear, y));
        g.rows = mz_shape_count(&mz_in(call, linear, x)->shape) / g.k;
        return g;
    }
    const mz_tensor *dy = mz_in(call, linear_dx, dy); // linear_dw's too
    g.dy = data_of<float>(dy);
    g.rows = mz_shape_count(&dy->shape) / g.n;
    if (call->op == MZ_OP_linear_dx) {
        g.w = data_of<float>(w);
        g.dx = data_of<float>(mz_out(call, linear_dx, dx));
    } else {
        g.x = data_of<float>(mz_in(call, linear_dw, x));
        g.dw = data_of<float>(w);
        g.partial = static_cast<float *>(call->workspace);
        g.accumulate = call->attrs.accumulate;
    }
    return g;
}

static const char *small_n_refusal(const mz_call *call) {
    const char *reason = mz_cuda_storages(call, "f", "f");
    if (reason != NULL)
        return reason;
    if (call->numerics.compute != MEZZO_F32 && call->numerics.compute != MEZZO_TF32)
        return "computes in fp32";
    const mz_shape *w = &matrix_of(call)->shape;
    if (w->dim[0] > MOST || w->dim[1] % 4 != 0 || w->dim[1] >= 1 << 24)
        return "is for matrices of at most 16 rows, of a multiple of 4 columns";
    bool more = call->op == MZ_OP_linear && call->attrs.act != MZ_ACT_NONE;
    for (int i = 2; i < call->n_in; i++)
        more = more || mz_present(&call->in[i]);
    for (int i = 1; i < call->n_out; i++)
        more = more || mz_present(&call->out[i]);
    return more ? "multiplies and nothing else" : NULL;
}

static const char *small_n_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    const char *reason = small_n_refusal(call);
    if (reason != NULL || call->op != MZ_OP_linear_dw)
        return reason;
    const small_n_args g = small_n_args_of(call);
    out->workspace =
        sizeof(float) * static_cast<size_t>(chunks_of(g.rows, mz_cuda(device)->sms)) * static_cast<size_t>(g.n) * g.k;
    return NULL;
}

static void launch_small_n(const mz_cuda_device *cuda, const mz_call *call) {
    const small_n_args g = small_n_args_of(call);
    if (call->op == MZ_OP_linear)
        launch_y<false>(cuda->stream, g, {});
    else if (call->op == MZ_OP_linear_dx)
        launch_dx<false>(cuda->stream, g, {});
    else
        launch_dw(cuda->stream, g, cuda->sms);
}
const mz_kernel mz_cuda_linear_small_n = {"linear__cuda_small_n", small_n_prepare, enqueue<launch_small_n>};
const mz_kernel mz_cuda_linear_dx_small_n = {"linear_dx__cuda_small_n", small_n_prepare, enqueue<launch_small_n>};
const mz_kernel mz_cuda_linear_dw_small_n = {"linear_dw__cuda_small_n", small_n_prepare, enqueue<launch_small_n>};

// --- a router's logits and the experts' choice in one kernel; backward ---------------------------------------------
static mezzo_status run_forward(mezzo_device *device, const mz_call *first, const mz_call *second) {
    launch_y<true>(mz_cuda(device)->stream, small_n_args_of(first), route_args_of(second));
    MZ_CUDA_TRY(cudaGetLastError());
    return MEZZO_OK;
}
static const mz_fused_kernel forward = {"linear_route__cuda_small_n", run_forward, nullptr};

static mezzo_status run_backward(mezzo_device *device, const mz_call *first, const mz_call *second) {
    launch_dx<true>(mz_cuda(device)->stream, small_n_args_of(second), route_dx_args_of(first));
    MZ_CUDA_TRY(cudaGetLastError());
    return MEZZO_OK;
}
static const mz_fused_kernel backward = {"route_dx_linear_dx__cuda_small_n", run_backward, nullptr};

const mz_fused_kernel *mz_cuda_fuse_router(const mz_call *first, const mz_call *second) {
    if (second->in[0].data != first->out[0].data || mz_cuda_in_the_way(first, second))
        return NULL;
    if (first->op == MZ_OP_linear && second->op == MZ_OP_route) {
        const bool can = !second->attrs.softmax && small_n_refusal(first) == NULL &&
                         mz_cuda_storages(second, "af", "fi") == NULL && few_experts_of_route(second) == NULL;
        return can && second->attrs.groups <= 1 && second->attrs.top_k <= mz_in(first, linear, w)->shape.dim[0]
                   ? &forward
                   : NULL;
    }
    if (first->op == MZ_OP_route_dx && second->op == MZ_OP_linear_dx) {
        const bool can =
            !first->attrs.softmax && small_n_refusal(second) == NULL && mz_cuda_storages(first, "fai", "a") == NULL;
        return can && mz_in(first, route_dx, logits)->dtype == MEZZO_F32 &&
                       mz_in(second, linear_dx, w)->shape.dim[1] >= DX_LEAST
                   ? &backward
                   : NULL;
    }
    return NULL;
}
