// Computes attention backward on tensor cores, the first of two passes: Δ and dq. Scores are computed again from q, k
// and lse:
//   p = exp(s - lse),  Δ = dy·y,  dS = p·(f·(dy·v) - Δ),  dq = Σ_j dS·k_j/√D        (f: dropout's factor)
// A block owns 64·MT queries and walks their keys, as forward does: dq is summed in registers, in one fixed order. The
// second pass (attention_dkv.cu) owns keys; the two together multiply 7 matrices where a pass that added dq in memory
// would 5, but need no atomics, no FP32 copy of dq and no waiting between blocks.
#include "attention_mma.cuh"

namespace {

template <int D, int MT, int BN> struct dq_shared { // bytes
    static constexpr int BM = 16 * MT * WARPS;
    static constexpr int ROWS = BM * tile_pitch(D) * 2;
    static constexpr int TILE = BN * tile_pitch(D) * 2;
    static constexpr int MASK = BM * mask_words(BN); // words
    static constexpr int DELTA = 2 * ROWS + 4 * TILE;
    static constexpr int TOTAL = DELTA + BM * 4, WITH_MASK = TOTAL + 2 * 4 * MASK;
};

// Δ of this warp's rows: eight threads a row.
template <typename T, int ROWS>
__device__ __forceinline__ void row_products(const T *dy, const T *y, long long stride, int count, int width,
                                             float *delta, float *to) {
    int lane = static_cast<int>(threadIdx.x) & 31;
    for (int row = lane >> 3; row < ROWS; row += 4) {
        float sum = 0;
        for (int c = (lane & 7) * 8; c < width && row < count; c += 64) {
            T one[8], two[8];
            *reinterpret_cast<uint4 *>(one) = *reinterpret_cast<const uint4 *>(dy + row * stride + c);
            *reinterpret_cast<uint4 *>(two) = *reinterpret_cast<const uint4 *>(y + row * stride + c);
#pragma unroll
            for (int e = 0; e < 8; e++)
                sum = fmaf(static_cast<float>(one[e]), static_cast<float>(two[e]), sum);
        }
        for (int step = 4; step > 0; step >>= 1)
            sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if ((lane & 7) == 0) {
            delta[row] = sum;
            if (row < count)
                to[row] = sum;
        }
    }
}

// BN keys are in shared memory at a time, NS of their scores in registers.
template <typename T, bool DROP, bool LIMITED, int D, int MT, int BN, int NS>
__global__ void __launch_bounds__(THREADS, MT == 1 && D <= 64 ? 3 : 2)
    attention_dq(const __grid_constant__ mz_cu_attention a) {
    using layout = dq_shared<D, MT, BN>;
    constexpr int BM = layout::BM, PITCH = tile_pitch(D);
    static_assert(BN == NS || (BN % NS == 0 && NS % 32 == 0), "");
    extern __shared__ __align__(16) unsigned char shared[];
    T *tile_q = reinterpret_cast<T *>(shared);                             // [BM, D]
    T *tile_dy = tile_q + BM * PITCH;                                      // [BM, D]
    T *tile_kv = reinterpret_cast<T *>(shared + 2 * layout::ROWS);         // 2 × (k [BN, D], v [BN, D])
    float *tile_delta = reinterpret_cast<float *>(shared + layout::DELTA); // [BM]
    uint32_t *mask = reinterpret_cast<uint32_t *>(shared + layout::TOTAL); // 2 × [BM, BN]
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
    const int g = lane >> 2, t = lane & 3;
    const int blocks = (a.length + BM - 1) / BM;
    const int head = static_cast<int>(blockIdx.x) / blocks;
    const int i0 = (blocks - 1 - static_cast<int>(blockIdx.x) % blocks) * BM;
    const attention_head s = head_of(a, head / a.heads, head % a.heads);
    const T *q = static_cast<const T *>(a.q) + s.q, *k = static_cast<const T *>(a.k) + s.keys,
            *v = static_cast<const T *>(a.v) + s.keys;
    const long long y_row = static_cast<long long>(a.heads) * a.width;
    const bool drop = DROP && (!LIMITED || a.p > 0);
    dropout_rule rule = {};
    if (drop)
        rule = dropout_of(a);

    int tile = min((i0 + BM - 1) / BN, (a.length - 1) / BN);
    const int last = LIMITED ? first_key(a, s.b, i0) / BN : 0; // the last tile to visit
    auto load_keys = [&](int n, int stage) {
        T *to = tile_kv + stage * 2 * BN * PITCH;
        long long at = static_cast<long long>(n) * BN * a.kv_row;
        load_tile<T, BN, D>(to, k + at, a.kv_row, a.length - n * BN, a.width);
        load_tile<T, BN, D>(to + BN * PITCH, v + at, a.kv_row, a.length - n * BN, a.width);
    };
    const T *dy = static_cast<const T *>(a.dy) + s.y;
    load_tile<T, BM, D>(tile_q, q + i0 * a.q_row, a.q_row, a.length - i0, a.width);
    load_tile<T, BM, D>(tile_dy, dy + i0 * y_row, y_row, a.length - i0, a.width);
    load_keys(tile, 0);
    copies_commit();

    const float scale2 = (LIMITED ? scale_after(a) : a.scale) * 1.44269504f; // log2 e
    const int row0 = warp * 16 * MT;
    row_products<T, 16 * MT>(dy + (i0 + row0) * y_row, static_cast<const T *>(a.y) + s.y + (i0 + row0) * y_row, y_row,
                             a.length - i0 - row0, a.width, tile_delta + row0, a.delta + s.row + i0 + row0);
    __syncwarp();
    float lse2[MT][2], delta[MT][2];
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = row0 + mt * 16 + r * 8 + g;
            lse2[mt][r] = i0 + row < a.length ? a.lse[s.row + i0 + row] * 1.44269504f : 0;
            delta[mt][r] = tile_delta[row];
        }
    const T *my_q = tile_q + row0 * PITCH, *my_dy = tile_dy + row0 * PITCH;
    constexpr bool KEEP = MT == 1 && D <= 80; // registers to spare for the queries
    uint32_t kept_q[KEEP ? D / 16 : 1][4], kept_dy[KEEP ? D / 16 : 1][4];
    bool fresh = true;
    float dq[MT][D / 8][4] = {};

    int first[LIMITED ? MT : 1][2]; // the first key that each row sees, and all rows of this warp
    const int first_of_all = LIMITED ? first_key(a, s.b, i0 + row0) : 0;
    if (LIMITED)
#pragma unroll
        for (int mt = 0; mt < MT; mt++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                first[LIMITED ? mt : 0][r] = first_key(a, s.b, i0 + row0 + mt * 16 + r * 8 + g);

    for (int stage = 0; tile >= last; tile--, stage ^= 1) {
        if (drop)
            draw_mask<BM, BN>(mask + stage * layout::MASK, rule, s.dropout, a.length, i0, tile * BN);
        copies_wait<0>();
        __syncthreads(); // this tile is here, and no thread reads the other stage any more
        if (tile > last)
            load_keys(tile - 1, stage ^ 1);
        copies_commit();
        if (KEEP && fresh) {
#pragma unroll
            for (int kk = 0; kk < D / 16; kk++) {
                load_a<T, D>(kept_q[KEEP ? kk : 0], my_q + kk * 16);
                load_a<T, D>(kept_dy[KEEP ? kk : 0], my_dy + kk * 16);
            }
            fresh = false;
        }
#pragma unroll 1
        for (int part = 0; part < BN; part += NS) {
            const int j0 = tile * BN + part;
            if (j0 > i0 + row0 + 16 * MT - 1)
                break; // ahead of all of this warp's rows
            if (LIMITED && j0 + NS <= first_of_all)
                continue; // no row of this warp sees any of it
            const T *tile_k = tile_kv + (stage * 2 * BN + part) * PITCH, *tile_v = tile_k + BN * PITCH;
            float x[MT][NS / 8][4] = {}, dp[MT][NS / 8][4] = {}; // scores, then p, then dS; dy·v
#pragma unroll
            for (int kk = 0; kk < D / 16; kk++) {
                uint32_t fq[MT][4], fdy[MT][4];
#pragma unroll
                for (int mt = 0; mt < MT; mt++)
                    if (KEEP) {
                        copy_operand(fq[mt], kept_q[KEEP ? kk : 0]);
                        copy_operand(fdy[mt], kept_dy[KEEP ? kk : 0]);
                    } else {
                        load_a<T, D>(fq[mt], my_q + mt * 16 * PITCH + kk * 16);
                        load_a<T, D>(fdy[mt], my_dy + mt * 16 * PITCH + kk * 16);
                    }
#pragma unroll
                for (int n = 0; n < NS / 16; n++) {
                    uint32_t fk[4], fv[4];
                    load_b_rows<T, D>(fk, tile_k + n * 16 * PITCH + kk * 16);
                    load_b_rows<T, D>(fv, tile_v + n * 16 * PITCH + kk * 16);
#pragma unroll
                    for (int mt = 0; mt < MT; mt++) {
                        multiply<T>(x[mt][2 * n], fq[mt], fk[0], fk[1]);
                        multiply<T>(x[mt][2 * n + 1], fq[mt], fk[2], fk[3]);
                        multiply<T>(dp[mt][2 * n], fdy[mt], fv[0], fv[1]);
                        multiply<T>(dp[mt][2 * n + 1], fdy[mt], fv[2], fv[3]);
                    }
                }
            }
            if (drop) {
#pragma unroll
                for (int mt = 0; mt < MT; mt++)
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        const uint32_t *kept =
                            mask + stage * layout::MASK + (row0 + mt * 16 + r * 8 + g) * mask_words(BN) + part / 32;
#pragma unroll
                        for (int n = 0; n < NS / 8; n++) {
                            uint32_t bits = kept[n / 4] >> (2 * t) >> (n % 4 * 8);
                            dp[mt][n][2 * r] = bits & 1 ? dp[mt][n][2 * r] * rule.kept : 0;
                            dp[mt][n][2 * r + 1] = bits & 2 ? dp[mt][n][2 * r + 1] * rule.kept : 0;
                        }
                    }
            }
            const bool diagonal = j0 + NS - 1 > i0 + row0;
#pragma unroll
            for (int mt = 0; mt < MT; mt++)
#pragma unroll
                for (int n = 0; n < NS / 8; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        const float score = LIMITED ? capped(a, x[mt][n][e]) : x[mt][n][e];
                        float p = exp2_fast(fmaf(score, scale2, -lse2[mt][e >> 1]));
                        x[mt][n][e] = p * (dp[mt][n][e] - delta[mt][e >> 1]);
                        if (LIMITED)
                            x[mt][n][e] = j0 + n * 8 + 2 * t + (e & 1) < first[LIMITED ? mt : 0][e >> 1]
                                              ? 0
                                              : x[mt][n][e] * cap_derivative(a, score);
                        if (diagonal && j0 + n * 8 + 2 * t + (e & 1) > i0 + row0 + mt * 16 + g + (e >> 1) * 8)
                            x[mt][n][e] = 0;
                    }
#pragma unroll
            for (int kk = 0; kk < NS / 16; kk++) {
                uint32_t ds[MT][4];
#pragma unroll
                for (int mt = 0; mt < MT; mt++)
                    to_a<T>(ds[mt], x[mt][2 * kk], x[mt][2 * kk + 1]);
#pragma unroll
                for (int n = 0; n < D / 16; n++) {
                    uint32_t fk[4];
                    load_b_columns<T, D>(fk, tile_k + kk * 16 * PITCH + n * 16);
#pragma unroll
                    for (int mt = 0; mt < MT; mt++) {
                        multiply<T>(dq[mt][2 * n], ds[mt], fk[0], fk[1]);
                        multiply<T>(dq[mt][2 * n + 1], ds[mt], fk[2], fk[3]);
                    }
                }
            }
        }
    }
    float factor[MT][2];
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
        factor[mt][0] = factor[mt][1] = a.scale;
    store_rows<T, D, MT>(static_cast<T *>(a.dq) + s.q + (i0 + row0) * a.q_row, a.q_row, a.length - i0 - row0, a.width,
                         tile_q + row0 * PITCH, dq, factor);
}

template <typename T, bool DROP, bool LIMITED, int D, int MT, int BN, int NS> struct dq_pass : dq_shared<D, MT, BN> {
    static const void *kernel() {
        return reinterpret_cast<const void *>(attention_dq<T, DROP, LIMITED, D, MT, BN, NS>);
    }
    static unsigned grid(const mz_cu_attention &a) {
        constexpr int BM = dq_shared<D, MT, BN>::BM;
        return static_cast<unsigned>((a.length + BM - 1) / BM * a.batch * a.heads);
    }
};

template <typename T, bool DROP, bool LIMITED>
cudaError_t for_width(cudaStream_t stream, const mz_cu_attention &a, bool prepare) {
    if (a.width <= 32)
        return attention_run<dq_pass<T, DROP, LIMITED, 32, 1, 64, 64>>(prepare, stream, a);
    if (a.width <= 64)
        return attention_run<dq_pass<T, DROP, LIMITED, 64, 1, 32, 32>>(prepare, stream, a);
    if (a.width <= 80 && a.cc < 80) // 64 KiB of shared memory
        return attention_run<dq_pass<T, DROP, LIMITED, 80, 1, 32, 32>>(prepare, stream, a);
    if (a.width <= 80)
        return attention_run<dq_pass<T, DROP, LIMITED, 80, 1, 64, 64>>(prepare, stream, a);
    if (a.cc < 80)
        return attention_run<dq_pass<T, DROP, LIMITED, 128, 1, 16, 16>>(prepare, stream, a);
    return attention_run<dq_pass<T, DROP, LIMITED, 128, 1, 32, 32>>(prepare, stream, a);
}

template <typename T> cudaError_t for_rules(cudaStream_t stream, const mz_cu_attention &a, bool prepare) {
    if (a.limited)
        return for_width<T, true, true>(stream, a, prepare);
    return a.p > 0 ? for_width<T, true, false>(stream, a, prepare) : for_width<T, false, false>(stream, a, prepare);
}

} // namespace

cudaError_t mz_cu_attention_mma_dq(cudaStream_t stream, const mz_cu_attention *a, bool prepare) {
    if (a->dtype == MEZZO_BF16)
        return for_rules<__nv_bfloat16>(stream, *a, prepare);
    return a->dtype == MEZZO_F16 ? for_rules<__half>(stream, *a, prepare) : cudaErrorInvalidValue;
}
