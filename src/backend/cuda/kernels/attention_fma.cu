// Computes attention in FP32 arithmetic, causal or not, over any number of keys: for FP32 and TF32 (operands rounded
// where they are loaded), and for the widths and storages that the tensor-core kernels do not take. The same algorithm
// and the same two backward passes (attention_queries.cuh, attention_keys.cuh), in fused multiply-adds.
//
// A block's 128 threads are 16 × 8: thread (ty, tx) owns rows ty + 16i and columns tx + 8j of a tile of scores, and
// columns 4tx + 32c … 4tx + 32c + 3 of the results. Tiles lie in shared memory as FP32 rows of D + 4, so that eight
// neighbouring rows begin in different banks: a step of four terms reads TR + TC 16-byte pieces for 4·TR·TC
// multiply-adds.
#include "attention_mma.cuh"
#include "vec.cuh"

namespace {

// To TF32's 11 significant bits, ties to even; infinities and NaN stay what they are.
__device__ __forceinline__ float round_tf32(float x) {
    uint32_t bits = __float_as_uint(x);
    if ((bits & 0x7f800000u) == 0x7f800000u)
        return x;
    return __uint_as_float((bits + 0xfffu + (bits >> 13 & 1)) & ~0x1fffu);
}

// The first function returns whether a query, which sees keys from `first` on, does not see a key. The others return
// where the keys of queries before `row` end, and where those of a query begin.
template <bool LIMITED>
__device__ __forceinline__ bool hidden(const mz_cu_attention &a, int query, int first, int key) {
    return key >= a.keys || (a.causal && key > query) || (LIMITED && key < first);
}
template <bool LIMITED> __device__ __forceinline__ int first_of(const mz_cu_attention &a, int b, int query) {
    return LIMITED && a.causal ? first_key(a, b, query) : 0;
}
template <bool LIMITED> __device__ __forceinline__ float score_of(const mz_cu_attention &a, float x) {
    return LIMITED ? capped(a, x) : x;
}
__device__ __forceinline__ int keys_end(const mz_cu_attention &a, int row) {
    return a.causal && row < a.keys ? row : a.keys;
}

constexpr __host__ __device__ int row_pitch(int d) {
    return d + 4;
}

// Rows [0, count) of a.width elements, `stride` apart, the first at element `at`, as FP32; the rest of the tile becomes
// 0.
template <int ROWS, int D>
__device__ __forceinline__ void load_rows(float *tile, const mz_cu_attention &a, const void *from, long long at,
                                          long long stride, int count) {
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < ROWS * D; i += THREADS) {
        int row = i / D, column = i % D;
        float x = row < count && column < a.width ? load1(from, a.dtype, at + row * stride + column) : 0.0f;
        tile[row * row_pitch(D) + column] = a.compute == MEZZO_TF32 ? round_tf32(x) : x;
    }
}

__device__ __forceinline__ float4 four(const float *p) {
    return *reinterpret_cast<const float4 *>(p);
}

// x[i][j] += Σ_d a[ty + 16i][d] · b[tx + 8j][d]
template <int D, int TR, int TC>
__device__ __forceinline__ void multiply_rows(float (&x)[TR][TC], const float *a, const float *b) {
    const int ty = static_cast<int>(threadIdx.x) / 8, tx = static_cast<int>(threadIdx.x) % 8;
#pragma unroll 2
    for (int d = 0; d < D; d += 4) {
        float4 left[TR];
#pragma unroll
        for (int i = 0; i < TR; i++)
            left[i] = four(a + (ty + 16 * i) * row_pitch(D) + d);
#pragma unroll
        for (int j = 0; j < TC; j++) {
            float4 right = four(b + (tx + 8 * j) * row_pitch(D) + d);
#pragma unroll
            for (int i = 0; i < TR; i++)
                x[i][j] = fmaf(left[i].w, right.w,
                               fmaf(left[i].z, right.z, fmaf(left[i].y, right.y, fmaf(left[i].x, right.x, x[i][j]))));
        }
    }
}

// y[i][4c + e] += Σ_k p[ty + 16i][k] · b[k][4tx + 32c + e], k below COLUMNS
template <int D, int TR, int COLUMNS>
__device__ __forceinline__ void multiply_columns(float (&y)[TR][D / 8], const float *p, const float *b) {
    const int ty = static_cast<int>(threadIdx.x) / 8, tx = static_cast<int>(threadIdx.x) % 8;
#pragma unroll 1
    for (int k = 0; k < COLUMNS; k += 4) {
        float left[TR][4];
#pragma unroll
        for (int i = 0; i < TR; i++) {
            float4 f = four(p + (ty + 16 * i) * row_pitch(COLUMNS) + k);
            left[i][0] = f.x, left[i][1] = f.y, left[i][2] = f.z, left[i][3] = f.w;
        }
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int c = 0; c < D / 32; c++) {
                float4 right = four(b + (k + n) * row_pitch(D) + 4 * tx + 32 * c);
#pragma unroll
                for (int i = 0; i < TR; i++) {
                    y[i][4 * c] = fmaf(left[i][n], right.x, y[i][4 * c]);
                    y[i][4 * c + 1] = fmaf(left[i][n], right.y, y[i][4 * c + 1]);
                    y[i][4 * c + 2] = fmaf(left[i][n], right.z, y[i][4 * c + 2]);
                    y[i][4 * c + 3] = fmaf(left[i][n], right.w, y[i][4 * c + 3]);
                }
            }
    }
}

template <int TR, int TC> __device__ __forceinline__ void put_scores(float *p, const float (&x)[TR][TC]) {
    const int ty = static_cast<int>(threadIdx.x) / 8, tx = static_cast<int>(threadIdx.x) % 8;
#pragma unroll
    for (int i = 0; i < TR; i++)
#pragma unroll
        for (int j = 0; j < TC; j++)
            p[(ty + 16 * i) * row_pitch(8 * TC) + tx + 8 * j] = x[i][j];
}

template <int D, int TR>
__device__ __forceinline__ void put_rows(const mz_cu_attention &a, void *to, long long at, long long stride, int count,
                                         const float (&y)[TR][D / 8], const float (&factor)[TR]) {
    const int ty = static_cast<int>(threadIdx.x) / 8, tx = static_cast<int>(threadIdx.x) % 8;
#pragma unroll
    for (int i = 0; i < TR; i++)
#pragma unroll
        for (int c = 0; c < D / 8; c++) {
            int row = ty + 16 * i, column = 4 * tx + 32 * (c / 4) + c % 4;
            if (row < count && column < a.width)
                store1(to, a.dtype, at + row * stride + column, y[i][c] * factor[i]);
        }
}

// Shared memory of the three kernels, in floats. Rows: what a block owns; columns: what it walks.
template <int D, int TR, int TC> struct fma_shared {
    static constexpr int ROWS = 16 * TR, COLUMNS = 8 * TC;
    static constexpr int R = ROWS * row_pitch(D), C = COLUMNS * row_pitch(D), P = ROWS * row_pitch(COLUMNS);
};
template <int PASS, bool LIMITED, int D, int TR, int TC> struct fma_pass {
    using layout = fma_shared<D, TR, TC>;
    static constexpr int TOTAL = 4 * ((PASS == 0 ? 1 : 2) * layout::R + 2 * layout::C + layout::P); // bytes
    static constexpr int WITH_MASK = TOTAL + 4 * (PASS == 2 ? layout::COLUMNS * mask_words(layout::ROWS)
                                                            : layout::ROWS * mask_words(layout::COLUMNS));
    static constexpr int RESIDENT = 0;
    static constexpr bool HERE = fits_here(WITH_MASK);
    static unsigned grid(const mz_cu_attention &a) { return attention_blocks<PASS>(a, layout::ROWS); }
};

template <bool LIMITED, int D, int TR, int TC>
__device__ __forceinline__ void compute(fma_pass<0, LIMITED, D, TR, TC>, const mz_cu_attention &a) {
    using layout = fma_shared<D, TR, TC>;
    constexpr int BM = layout::ROWS, BN = layout::COLUMNS;
    extern __shared__ __align__(16) unsigned char shared[];
    float *tile_q = reinterpret_cast<float *>(shared), *tile_k = tile_q + layout::R, *tile_v = tile_k + layout::C;
    float *p = tile_v + layout::C;
    uint32_t *mask = reinterpret_cast<uint32_t *>(p + layout::P);
    const int ty = static_cast<int>(threadIdx.x) / 8, tx = static_cast<int>(threadIdx.x) % 8;
    const int blocks = (a.length + BM - 1) / BM, head = static_cast<int>(blockIdx.x) / blocks;
    const int i0 = (blocks - 1 - static_cast<int>(blockIdx.x) % blocks) * BM;
    const attention_head s = head_of(a, head / a.heads, head % a.heads);
    const bool drop = a.p > 0;
    const dropout_rule rule = drop ? dropout_of(a) : dropout_rule();
    load_rows<BM, D>(tile_q, a, a.q, s.q + i0 * a.q_row, a.q_row, a.length - i0);
    const float scale = LIMITED ? scale_after(a) : a.scale, scale2 = scale * 1.44269504f; // log2 e
    float y[TR][D / 8] = {}, max[TR], sum[TR] = {};
    int first[TR];
#pragma unroll
    for (int i = 0; i < TR; i++) {
        max[i] = -INFINITY;
        first[i] = first_of<LIMITED>(a, s.b, i0 + ty + 16 * i);
    }
    const int end = keys_end(a, i0 + BM);
    for (int j0 = first_of<LIMITED>(a, s.b, i0) / BN * BN; j0 < end; j0 += BN) {
        __syncthreads();
        load_rows<BN, D>(tile_k, a, a.k, s.keys + j0 * a.kv_row, a.kv_row, a.keys - j0);
        load_rows<BN, D>(tile_v, a, a.v, s.keys + j0 * a.kv_row, a.kv_row, a.keys - j0);
        if (drop)
            draw_mask<BM, BN>(mask, rule, s.dropout, a.keys, i0, j0, a.causal);
        __syncthreads();
        float x[TR][TC] = {};
        multiply_rows<D, TR, TC>(x, tile_q, tile_k);
#pragma unroll
        for (int i = 0; i < TR; i++) {
            float top = max[i];
#pragma unroll
            for (int j = 0; j < TC; j++) {
                x[i][j] = hidden<LIMITED>(a, i0 + ty + 16 * i, first[i], j0 + tx + 8 * j)
                              ? -INFINITY
                              : score_of<LIMITED>(a, x[i][j]);
                top = fmaxf(top, x[i][j]);
            }
#pragma unroll
            for (int step = 1; step < 8; step *= 2)
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
            const bool none = LIMITED && top == -INFINITY; // no key of the first tile is visible to the row
            float shrink = none ? 1 : exp2f((max[i] - top) * scale2), top2 = none ? 0 : top * scale2, part = 0;
            max[i] = top;
#pragma unroll
            for (int j = 0; j < TC; j++) {
                x[i][j] = exp2f(fmaf(x[i][j], scale2, -top2));
                part += x[i][j];
                if (drop && !(mask[(ty + 16 * i) * mask_words(BN) + j / 4] >> (tx + j % 4 * 8) & 1))
                    x[i][j] = 0;
            }
            sum[i] = sum[i] * shrink + part;
#pragma unroll
            for (int c = 0; c < D / 8; c++)
                y[i][c] *= shrink;
        }
        put_scores(p, x);
        __syncthreads();
        multiply_columns<D, TR, BN>(y, p, tile_v);
    }
    float factor[TR];
#pragma unroll
    for (int i = 0; i < TR; i++) {
        float all = sum[i];
#pragma unroll
        for (int step = 1; step < 8; step *= 2)
            all += __shfl_xor_sync(0xffffffffu, all, step);
        factor[i] = (drop ? rule.kept : 1.0f) / all;
        int row = i0 + ty + 16 * i;
        if (a.lse != nullptr && tx == 0 && row < a.length)
            a.lse[s.row + row] = max[i] * scale + logf(all);
    }
    const long long y_row = static_cast<long long>(a.heads) * a.width;
    put_rows<D, TR>(a, a.y, s.y + i0 * y_row, y_row, a.length - i0, y, factor);
}

template <bool LIMITED, int D, int TR, int TC>
__device__ __forceinline__ void compute(fma_pass<1, LIMITED, D, TR, TC>, const mz_cu_attention &a) {
    using layout = fma_shared<D, TR, TC>;
    constexpr int BM = layout::ROWS, BN = layout::COLUMNS;
    extern __shared__ __align__(16) unsigned char shared[];
    float *tile_q = reinterpret_cast<float *>(shared), *tile_dy = tile_q + layout::R, *tile_k = tile_dy + layout::R;
    float *tile_v = tile_k + layout::C, *p = tile_v + layout::C;
    uint32_t *mask = reinterpret_cast<uint32_t *>(p + layout::P);
    const int ty = static_cast<int>(threadIdx.x) / 8, tx = static_cast<int>(threadIdx.x) % 8;
    const int blocks = (a.length + BM - 1) / BM, head = static_cast<int>(blockIdx.x) / blocks;
    const int i0 = (blocks - 1 - static_cast<int>(blockIdx.x) % blocks) * BM;
    const attention_head s = head_of(a, head / a.heads, head % a.heads);
    const long long y_row = static_cast<long long>(a.heads) * a.width;
    const bool drop = a.p > 0;
    const dropout_rule rule = drop ? dropout_of(a) : dropout_rule();
    load_rows<BM, D>(tile_q, a, a.q, s.q + i0 * a.q_row, a.q_row, a.length - i0);
    load_rows<BM, D>(tile_dy, a, a.dy, s.y + i0 * y_row, y_row, a.length - i0);
    const float scale2 = (LIMITED ? scale_after(a) : a.scale) * 1.44269504f; // log2 e
    float dq[TR][D / 8] = {}, lse2[TR], delta[TR];
    int first[TR];
#pragma unroll
    for (int i = 0; i < TR; i++) {
        int row = ty + 16 * i;
        first[i] = first_of<LIMITED>(a, s.b, i0 + row);
        bool inside = i0 + row < a.length;
        lse2[i] = inside ? a.lse[s.row + i0 + row] * 1.44269504f : 0;
        float part = 0; // of dy·y, the values as stored
        for (int c = tx; inside && c < a.width; c += 8) {
            long long at = s.y + (i0 + row) * y_row + c;
            part = fmaf(load1(a.dy, a.dtype, at), load1(a.y, a.dtype, at), part);
        }
#pragma unroll
        for (int step = 1; step < 8; step *= 2)
            part += __shfl_xor_sync(0xffffffffu, part, step);
        delta[i] = part;
        if (tx == 0 && inside)
            a.delta[s.row + i0 + row] = part;
    }
    const int end = keys_end(a, i0 + BM);
    for (int j0 = first_of<LIMITED>(a, s.b, i0) / BN * BN; j0 < end; j0 += BN) {
        __syncthreads();
        load_rows<BN, D>(tile_k, a, a.k, s.keys + j0 * a.kv_row, a.kv_row, a.keys - j0);
        load_rows<BN, D>(tile_v, a, a.v, s.keys + j0 * a.kv_row, a.kv_row, a.keys - j0);
        if (drop)
            draw_mask<BM, BN>(mask, rule, s.dropout, a.keys, i0, j0, a.causal);
        __syncthreads();
        float x[TR][TC] = {}, dp[TR][TC] = {};
        multiply_rows<D, TR, TC>(x, tile_q, tile_k);
        multiply_rows<D, TR, TC>(dp, tile_dy, tile_v);
#pragma unroll
        for (int i = 0; i < TR; i++)
#pragma unroll
            for (int j = 0; j < TC; j++) {
                float d = dp[i][j];
                if (drop)
                    d = mask[(ty + 16 * i) * mask_words(BN) + j / 4] >> (tx + j % 4 * 8) & 1 ? d * rule.kept : 0;
                const float score = score_of<LIMITED>(a, x[i][j]);
                x[i][j] = exp2f(fmaf(score, scale2, -lse2[i])) * (d - delta[i]);
                if (LIMITED)
                    x[i][j] *= cap_derivative(a, score);
                if (hidden<LIMITED>(a, i0 + ty + 16 * i, first[i], j0 + tx + 8 * j))
                    x[i][j] = 0;
            }
        put_scores(p, x);
        __syncthreads();
        multiply_columns<D, TR, BN>(dq, p, tile_k);
    }
    float factor[TR];
#pragma unroll
    for (int i = 0; i < TR; i++)
        factor[i] = a.scale;
    put_rows<D, TR>(a, a.dq, s.q + i0 * a.q_row, a.q_row, a.length - i0, dq, factor);
}

template <bool LIMITED, int D, int TR, int TC>
__device__ __forceinline__ void compute(fma_pass<2, LIMITED, D, TR, TC>, const mz_cu_attention &a) {
    using layout = fma_shared<D, TR, TC>;
    constexpr int BK = layout::ROWS, BM = layout::COLUMNS;
    extern __shared__ __align__(16) unsigned char shared[];
    float *tile_k = reinterpret_cast<float *>(shared), *tile_v = tile_k + layout::R, *tile_q = tile_v + layout::R;
    float *tile_dy = tile_q + layout::C, *p = tile_dy + layout::C;
    uint32_t *mask = reinterpret_cast<uint32_t *>(p + layout::P); // [BM, BK]
    const int ty = static_cast<int>(threadIdx.x) / 8, tx = static_cast<int>(threadIdx.x) % 8;
    const int blocks = (a.keys + BK - 1) / BK, kv_head = static_cast<int>(blockIdx.x) / blocks;
    const int j0 = static_cast<int>(blockIdx.x) % blocks * BK;
    const int group = a.heads / a.kv_heads, b = kv_head / a.kv_heads, first_head = kv_head % a.kv_heads * group;
    const long long keys = head_of(a, b, first_head).keys + j0 * a.kv_row;
    const long long y_row = static_cast<long long>(a.heads) * a.width;
    const bool drop = a.p > 0;
    const dropout_rule rule = drop ? dropout_of(a) : dropout_rule();
    load_rows<BK, D>(tile_k, a, a.k, keys, a.kv_row, a.keys - j0);
    load_rows<BK, D>(tile_v, a, a.v, keys, a.kv_row, a.keys - j0);
    const float scale2 = (LIMITED ? scale_after(a) : a.scale) * 1.44269504f; // log2 e
    const int from = a.causal ? j0 / BM * BM : 0,
              end = LIMITED && a.causal ? min((last_query_tile(a, b, j0 / BM, BM, j0 + BK - 1) + 1) * BM, a.length)
                                        : a.length;
    float dk[TR][D / 8] = {}, dv[TR][D / 8] = {};
    for (int h = first_head; h < first_head + group; h++) {
        const attention_head s = head_of(a, b, h);
        for (int i0 = from; i0 < end; i0 += BM) {
            __syncthreads();
            const int count = a.length - i0;
            load_rows<BM, D>(tile_q, a, a.q, s.q + i0 * a.q_row, a.q_row, count);
            load_rows<BM, D>(tile_dy, a, a.dy, s.y + i0 * y_row, y_row, count);
            if (drop)
                draw_mask<BM, BK>(mask, rule, s.dropout, a.keys, i0, j0, a.causal);
            __syncthreads();
            float x[TR][TC] = {}, dp[TR][TC] = {}; // [keys, queries]
            multiply_rows<D, TR, TC>(x, tile_k, tile_q);
            multiply_rows<D, TR, TC>(dp, tile_v, tile_dy);
#pragma unroll
            for (int j = 0; j < TC; j++) {
                const int query = tx + 8 * j;
                const bool inside = query < count;
                const float lse2 = inside ? a.lse[s.row + i0 + query] * 1.44269504f : 0;
                const float delta = inside ? a.delta[s.row + i0 + query] : 0;
                const int first = first_of<LIMITED>(a, b, i0 + query);
#pragma unroll
                for (int i = 0; i < TR; i++) {
                    const int key = ty + 16 * i;
                    const bool unseen = !inside || hidden<LIMITED>(a, i0 + query, first, j0 + key);
                    const bool kept = !drop || mask[query * mask_words(BK) + key / 32] >> key % 32 & 1;
                    const float score = score_of<LIMITED>(a, x[i][j]);
                    float e = unseen ? 0 : exp2f(fmaf(score, scale2, -lse2));
                    x[i][j] = kept ? e : 0;
                    dp[i][j] = unseen ? 0 : e * ((!drop ? dp[i][j] : kept ? dp[i][j] * rule.kept : 0) - delta);
                    if (LIMITED)
                        dp[i][j] *= cap_derivative(a, score);
                }
            }
            put_scores(p, x);
            __syncthreads();
            multiply_columns<D, TR, BM>(dv, p, tile_dy);
            __syncthreads();
            put_scores(p, dp);
            __syncthreads();
            multiply_columns<D, TR, BM>(dk, p, tile_q);
        }
    }
    float factor[TR];
#pragma unroll
    for (int i = 0; i < TR; i++)
        factor[i] = a.scale;
    put_rows<D, TR>(a, a.dk, keys, a.kv_row, a.keys - j0, dk, factor);
#pragma unroll
    for (int i = 0; i < TR; i++)
        factor[i] = drop ? rule.kept : 1.0f;
    put_rows<D, TR>(a, a.dv, keys, a.kv_row, a.keys - j0, dv, factor);
}

template <int PASS, bool LIMITED> cudaError_t for_width(cudaStream_t stream, const mz_cu_attention &a, bool prepare) {
    // Compute capability 7.5 has 64 KiB of shared memory a block: tiles of 32 × 32, and no width above 128
    // (attention.c).
    if (a.width <= 32)
        return attention_run<fma_pass<PASS, LIMITED, 32, 4, 8>>(prepare, stream, a);
    if (a.width <= 64 && a.cc >= 80)
        return attention_run<fma_pass<PASS, LIMITED, 64, 4, 8>>(prepare, stream, a);
    if (a.width <= 64)
        return attention_run<fma_pass<PASS, LIMITED, 64, 2, 4>>(prepare, stream, a);
    if (a.width <= 128 && a.cc >= 80)
        return attention_run<fma_pass<PASS, LIMITED, 128, 4, 4>>(prepare, stream, a);
    if (a.width <= 128)
        return attention_run<fma_pass<PASS, LIMITED, 128, 1, 4>>(prepare, stream, a);
    return attention_run<fma_pass<PASS, LIMITED, 256, 2, 4>>(prepare, stream, a);
}

template <int PASS> cudaError_t run_pass(cudaStream_t stream, const mz_cu_attention &a, bool prepare) {
    return a.limited ? for_width<PASS, true>(stream, a, prepare) : for_width<PASS, false>(stream, a, prepare);
}

} // namespace

cudaError_t mz_cu_attention_fma(cudaStream_t stream, const mz_cu_attention *a, bool prepare) {
    return run_pass<0>(stream, *a, prepare);
}
cudaError_t mz_cu_attention_fma_bwd(cudaStream_t stream, const mz_cu_attention *a, bool prepare) {
    cudaError_t error = run_pass<1>(stream, *a, prepare);
    return error != cudaSuccess ? error : run_pass<2>(stream, *a, prepare);
}
