// Norms a row for kernels that write its result in one way or another (layernorm.cu, norm_fp8.cu): the same sums in the
// same order.
#ifndef MZ_NORM_CUH
#define MZ_NORM_CUH

#include "host.cuh"
#include "rows.cuh"

struct norm_args {
    // [rows, width], a row `pitch` elements after the one before, padding 0; residual and sum may be absent
    mz_cu_array x, residual, y, sum;
    const float *weight, *bias; // [width] or NULL
    float *mean, *rstd;         // [rows] or NULL
    float eps, offset;          // offset: added to weight
    bool centred;               // false: RMS norm
    int width, pitch;
    int64_t rows;
};
struct norm_bwd_args {
    mz_cu_array dy, x, dres, dx; // [rows, width] with `pitch`, padding 0; dres may be absent; dx may be dy
    mz_cu_array low;             // [rows, width], dx rounded once more; may be absent
    const float *weight;         // [width] or NULL
    float offset;                // added to weight
    const float *mean, *rstd;    // [rows]; mean NULL: RMS norm
    float *dweight, *dbias;      // [width] or NULL
    float *linear_dbias;         // [width] or NULL: column sums of low, or of dx without it
    float *partial;              // [parts, 3, pitch], workspace; not touched where these three are NULL
    int parts;                   // norm_bwd_parts()
    int width, pitch;
    int64_t rows;
    bool accumulate;
};

// layernorm's call, or rmsnorm's.
inline norm_args norm_args_of(const mz_call *call) {
    const bool centred = call->op == MZ_OP_layernorm;
    const int residual = centred ? MZ_IN(layernorm, residual) : MZ_IN(rmsnorm, residual);
    const int rstd = centred ? MZ_OUT(layernorm, rstd) : MZ_OUT(rmsnorm, rstd), sum = rstd + 1;
    static_assert(MZ_OUT(layernorm, sum) == MZ_OUT(layernorm, rstd) + 1, "where a norm's sum is");
    static_assert(MZ_OUT(rmsnorm, sum) == MZ_OUT(rmsnorm, rstd) + 1, "where a norm's sum is");
    const mz_tensor *weight = mz_in(call, layernorm, weight), *y = mz_out(call, layernorm, y);
    return {.x = mz_cuda_array(mz_in(call, layernorm, x)),
            .residual = mz_cuda_array(&call->in[residual]),
            .y = mz_cuda_array(y),
            .sum = mz_cuda_array(&call->out[sum]),
            .weight = data_of<float>(weight),
            .bias = centred ? data_of<float>(mz_in(call, layernorm, bias)) : nullptr,
            .mean = centred ? data_of<float>(mz_out(call, layernorm, mean)) : nullptr,
            .rstd = data_of<float>(&call->out[rstd]),
            .eps = call->attrs.eps,
            .offset = mz_present(weight) ? call->attrs.offset : 0,
            .centred = centred,
            .width = static_cast<int>(mz_cuda_width(y)),
            .pitch = static_cast<int>(mz_cuda_pitch(y)),
            .rows = mz_shape_rows(&y->shape)};
}

// layernorm.cu. columns: the last step of backward, of so many parts.
norm_bwd_args norm_bwd_args_of(mezzo_device *device, const mz_call *call);
void norm_columns(cudaStream_t stream, const norm_bwd_args &a, int parts);

// s: the row, x + residual as it is stored, less its mean; mean and rstd are stored too. Returns rstd. The two are as
// row_sum's.
template <int T, int V>
__device__ __forceinline__ float norm_row(const norm_args &a, int64_t row, float *shared_sum, float *shared_squares,
                                          float s[V][8]) {
    int width = a.width, pitch = a.pitch;
    int64_t start = row * pitch;
    float sum = 0, squares = 0;
    {
        raw8 raw_x[V], raw_r[V];
        row_fetch<T, V>(raw_x, a.x, start, pitch);
        if (a.residual.data != nullptr)
            row_fetch<T, V>(raw_r, a.residual, start, pitch);
        row_widen<V>(raw_x, a.x.dtype, pitch, s);
        if (a.residual.data != nullptr) {
            float r[V][8];
            row_widen<V>(raw_r, a.residual.dtype, pitch, r);
            for_each<V, 8>([&](int v, int k) { s[v][k] += r[v][k]; });
        }
    }
    if (a.sum.data != nullptr) {
#pragma unroll
        for (int v = 0; v < V; v++) {
            // What backward will read is what is normalised.
            for_each<8>([&](int k) { s[v][k] = round_to(s[v][k], a.sum.dtype); });
            row_store<T>(a.sum, start, pitch, v, s[v]);
        }
    }
    for_each<V, 8>([&](int v, int k) { sum += s[v][k]; });
    float mean = 0;
    if (a.centred)
        mean = row_sum<T>(sum, shared_sum) / static_cast<float>(width);
    for_each<V, 8>([&](int v, int k) {
        s[v][k] -= mean;
        if (row_column<T>(v) + k < width)
            squares = fmaf(s[v][k], s[v][k], squares);
    });
    float rstd = __frsqrt_rn(row_sum<T>(squares, shared_squares) / static_cast<float>(width) + a.eps);
    if (row_lane<T>() == 0) {
        if (a.mean != nullptr)
            a.mean[row] = mean;
        if (a.rstd != nullptr)
            a.rstd[row] = rstd;
    }
    return rstd;
}

// The row's vector v of the result.
template <int T>
__device__ __forceinline__ void norm_result(const norm_args &a, int v, const float s[8], float rstd, float y[8]) {
    float w[8], b[8];
    row_vector<T>(a.weight, a.pitch, v, 1, w);
    row_vector<T>(a.bias, a.pitch, v, 0, b);
    for_each<8>([&](int k) { y[k] = row_column<T>(v) + k < a.width ? fmaf(s[k] * rstd, w[k] + a.offset, b[k]) : 0; });
}

// --- backward ------------------------------------------------------------------------------------------------------
// Synchronizes a row's T threads, in a block of ROWS rows.
template <int T, int ROWS> __device__ __forceinline__ void row_barrier() {
    if (ROWS == 1)
        __syncthreads();
    else
        asm volatile("bar.sync %0, %1;" ::"r"(row_in_block<T>() + 1), "r"(T) : "memory");
}

// dx: the row's gradient, dres with it; sums: dweight's and dbias's, to which it adds. `mine`: of two such, used by
// turns, so that one barrier a row is enough.
template <int T, int V, int ROWS>
__device__ __forceinline__ void norm_bwd_row(const norm_bwd_args &a, int64_t row, float (*mine)[T / WARP],
                                             float sums[][V][8], float dx[V][8]) {
    int width = a.width, pitch = a.pitch;
    int64_t start = row * pitch;
    float inverse = 1.0f / static_cast<float>(width);
    float dy[V][8], x[V][8], mean = a.mean != nullptr ? a.mean[row] : 0, rstd = a.rstd[row];
    raw8 raw_r[V];
    {
        raw8 raw_d[V], raw_x[V];
        row_fetch<T, V>(raw_d, a.dy, start, pitch);
        row_fetch<T, V>(raw_x, a.x, start, pitch);
        if (a.dres.data != nullptr)
            row_fetch<T, V>(raw_r, a.dres, start, pitch);
        row_widen<V>(raw_d, a.dy.dtype, pitch, dy);
        row_widen<V>(raw_x, a.x.dtype, pitch, x);
    }
    float g_sum = 0, gx_sum = 0;
#pragma unroll
    for (int v = 0; v < V; v++) {
        float w[8];
        row_vector<T>(a.weight, pitch, v, 1, w);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            bool inside = row_column<T>(v) + k < width;
            x[v][k] = inside ? (x[v][k] - mean) * rstd : 0;
            sums[0][v][k] = fmaf(dy[v][k], x[v][k], sums[0][v][k]);
            sums[1][v][k] += dy[v][k];
            dy[v][k] *= w[k] + a.offset;
            g_sum += dy[v][k];
            gx_sum = fmaf(dy[v][k], x[v][k], gx_sum);
        }
    }
    g_sum = warp_sum(g_sum);
    gx_sum = warp_sum(gx_sum);
    if (T > WARP) {
        if (threadIdx.x % WARP == 0) {
            mine[0][row_lane<T>() / WARP] = g_sum;
            mine[1][row_lane<T>() / WARP] = gx_sum;
        }
        row_barrier<T, ROWS>();
        g_sum = gx_sum = 0;
#pragma unroll
        for (int w = 0; w < T / WARP; w++) {
            g_sum += mine[0][w];
            gx_sum += mine[1][w];
        }
    }
    g_sum = a.mean != nullptr ? g_sum * inverse : 0;
    gx_sum *= inverse;
#pragma unroll
    for (int v = 0; v < V; v++) {
        for_each<8>([&](int k) { dx[v][k] = rstd * (dy[v][k] - g_sum - x[v][k] * gx_sum); });
        if (a.dres.data != nullptr) {
            float r[8];
            widen8(raw_r[v], pitch % 8 == 0 ? a.dres.dtype : MEZZO_F32, r);
            for_each<8>([&](int k) { dx[v][k] += r[k]; });
        }
        for_each<8>([&](int k) { dx[v][k] = row_column<T>(v) + k < width ? dx[v][k] : 0; });
    }
}

// A block's sums, rows in order: [3, pitch] of a part, of which `wanted` are written. `columns`: [ROWS, 3, pitch] as
// 8-column vectors, where a block has more than one row.
template <int T, int V, int ROWS>
__device__ __forceinline__ void norm_bwd_sums(const float sums[3][V][8], int wanted, int pitch, float4 *columns,
                                              float *out) {
    if (ROWS == 1) {
        for_each<V, 3>([&](int v, int s) {
            if (s < wanted)
                row_store<T>({out, MEZZO_F32}, s * pitch, pitch, v, sums[s][v]);
        });
        return;
    }
    int padded = (pitch + 7) / 8;
#pragma unroll
    for (int v = 0; v < V; v++) {
        int vector = v * T + row_lane<T>();
        if (vector >= padded)
            continue;
#pragma unroll
        for (int s = 0; s < 3; s++) {
            float4 *at = columns + 2 * ((row_in_block<T>() * 3 + s) * padded + vector);
            const float *mine = sums[s][v];
            at[0] = make_float4(mine[0], mine[1], mine[2], mine[3]);
            at[1] = make_float4(mine[4], mine[5], mine[6], mine[7]);
        }
    }
    __syncthreads();
    const float *all = reinterpret_cast<const float *>(columns);
    for (int c = threadIdx.x; c < wanted * pitch; c += T * ROWS) {
        int from = c / pitch * 8 * padded + c % pitch;
        float total = 0;
        for_each<ROWS>([&](int r) { total += all[r * 24 * padded + from]; });
        out[c] = total;
    }
}

// Backward keeps three rows and two rows of sums: few vectors a thread, so that many blocks are resident.
template <class F> void for_row_width_bwd(int width, F run) {
    for_row_holding<32, 1, 64, 1, 96, 1, 128, 1, 160, 1, 256, 1, 384, 1, 512, 1, 512, 2>(width, run);
}

#endif
