// Computes attention backward on tensor cores, the second pass: dk and dv (attention_queries.cuh has the first and the
// formulas).
//   dv_j = Σ_i f·p·dy_i,   dk_j = Σ_i dS·q_i/√D
// A block owns 64·MT keys of one key/value head and walks the queries that see any of them, for each query head that
// shares the keys. Scores are computed transposed, keys × queries: as the results of one product they then already
// are the operand of the next, and nothing but inputs goes through shared memory.
#include "attention_mma.cuh"

namespace {

// BM queries are in shared memory at a time, NS of their scores in registers.
template <typename T, int DROP, int SEES, int D, int MT, int BM, int NS>
__global__ void __launch_bounds__(THREADS, 2) attention_dkv(const __grid_constant__ mz_cu_attention a) {
    using operands = halves<T>;
    using layout = attention_shared<2, operands, D, MT, BM>;
    constexpr int BK = layout::BM, PITCH = tile_pitch(D);
    constexpr bool LIMITED = SEES == SEES_LIMITED, ALL = SEES == SEES_ALL;
    static_assert(BM % NS == 0 && NS % 16 == 0, "");
    extern __shared__ __align__(16) unsigned char shared[];
    T *tile_k = reinterpret_cast<T *>(shared);                             // [BK, D]
    T *tile_v = tile_k + BK * PITCH;                                       // [BK, D]
    T *tile_qdy = reinterpret_cast<T *>(shared + layout::ROWS);            // 2 × (q [BM, D], dy [BM, D])
    float *stats = reinterpret_cast<float *>(shared + layout::STATS);      // 2 × (lse [BM], Δ [BM])
    uint32_t *mask = reinterpret_cast<uint32_t *>(shared + layout::TOTAL); // 2 × [BM, BK]
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
    const int g = lane >> 2, t = lane & 3; // keys g, g + 8; queries 2t, 2t + 1
    const int keys = ALL ? a.keys : a.length, blocks = (keys + BK - 1) / BK;
    const int kv_head = static_cast<int>(blockIdx.x) / blocks;
    const int j0 = static_cast<int>(blockIdx.x) % blocks * BK; // the keys that most queries see first
    const int group = a.heads / a.kv_heads, b = kv_head / a.kv_heads, first_head = kv_head % a.kv_heads * group;
    const attention_head s = head_of(a, b, first_head);
    const long long y_row = static_cast<long long>(a.heads) * a.width;
    const bool drop = drops<DROP>(a);
    dropout_rule rule = {};
    if (drop)
        rule = dropout_of(a);

    const int first = ALL ? 0 : j0 / BM,
              end = LIMITED ? last_query_tile(a, b, first, BM, j0 + BK - 1) + 1 : (a.length + BM - 1) / BM;
    const int tiles = end - first;
    auto load_queries = [&](int n, int stage) { // n counts query heads × tiles
        attention_head h = head_of(a, b, first_head + n / tiles);
        int i0 = (first + n % tiles) * BM, count = a.length - i0;
        T *to = tile_qdy + stage * 2 * BM * PITCH;
        load_tile<T, BM, D>(to, static_cast<const T *>(a.q) + h.q + i0 * a.q_row, a.q_row, count, a.width);
        load_tile<T, BM, D>(to + BM * PITCH, static_cast<const T *>(a.dy) + h.y + i0 * y_row, y_row, count, a.width);
        for (int i = static_cast<int>(threadIdx.x); i < BM; i += THREADS) {
            long long row = i < count ? h.row + i0 + i : h.row;
            copy_async_4(stats + stage * 2 * BM + i, a.lse + row, i < count);
            copy_async_4(stats + stage * 2 * BM + BM + i, a.delta + row, i < count);
        }
    };
    load_tile<T, BK, D>(tile_k, static_cast<const T *>(a.k) + s.keys + j0 * a.kv_row, a.kv_row, keys - j0, a.width);
    load_tile<T, BK, D>(tile_v, static_cast<const T *>(a.v) + s.keys + j0 * a.kv_row, a.kv_row, keys - j0, a.width);
    load_queries(0, 0);
    copies_commit();

    const float scale2 = (LIMITED ? scale_after(a) : a.scale) * 1.44269504f; // log2 e
    const int key0 = warp * 16 * MT;                                         // of this warp, in the block
    constexpr bool KEEP = MT == 1 && D <= 64; // registers to spare for the keys and values
    typename operands::template own_rows<D, MT, BK, KEEP> my_k(tile_k + key0 * PITCH), my_v(tile_v + key0 * PITCH);
    bool fresh = true;
    float dk[MT][D / 8][4] = {}, dv[MT][D / 8][4] = {};

    for (int n = 0, stage = 0; n < group * tiles; n++, stage ^= 1) {
        const int tile_i0 = (first + n % tiles) * BM;
        const uint64_t dropout = s.dropout + static_cast<uint64_t>(n / tiles) * static_cast<uint64_t>(a.length) *
                                                 static_cast<uint64_t>(keys);
        if (drop)
            draw_mask<BM, BK>(mask + stage * layout::MASK, rule, dropout, keys, tile_i0, j0, !ALL);
        copies_wait<0>();
        __syncthreads(); // this tile is here, and no thread reads the other stage any more
        if (n + 1 < group * tiles)
            load_queries(n + 1, stage ^ 1);
        copies_commit();
        if (fresh) {
            my_k.keep();
            my_v.keep();
        }
        fresh = false;
#pragma unroll 1
        for (int part = 0; part < BM; part += NS) {
            const int i0 = tile_i0 + part;
            if (!ALL && i0 + NS - 1 < j0 + key0)
                continue; // before all of this warp's keys
            const T *tile_q = tile_qdy + (stage * 2 * BM + part) * PITCH, *tile_dy = tile_q + BM * PITCH;
            const float *lse = stats + stage * 2 * BM + part, *delta = lse + BM;
            float x[MT][NS / 8][4] = {}; // scores, then p, then dS: [keys, queries]
            my_k.add_scores(x, tile_q);
            const bool diagonal = !ALL && i0 < j0 + key0 + 16 * MT - 1;
            float derivative[LIMITED ? MT : 1][NS / 8][4]; // the cap's derivative
#pragma unroll
            for (int m = 0; m < NS / 8; m++)
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    float lse2 = lse[m * 8 + 2 * t + c] * 1.44269504f;
                    const int first_seen = LIMITED ? first_key(a, b, i0 + m * 8 + 2 * t + c) : 0;
#pragma unroll
                    for (int mt = 0; mt < MT; mt++)
#pragma unroll
                        for (int e = c; e < 4; e += 2) {
                            if (LIMITED) {
                                x[mt][m][e] = capped(a, x[mt][m][e]);
                                derivative[LIMITED ? mt : 0][m][e] = cap_derivative(a, x[mt][m][e]);
                            }
                            x[mt][m][e] = exp2_fast(fmaf(x[mt][m][e], scale2, -lse2));
                            if (LIMITED && j0 + key0 + mt * 16 + g + (e >> 1) * 8 < first_seen)
                                x[mt][m][e] = 0;
                            if (diagonal && j0 + key0 + mt * 16 + g + (e >> 1) * 8 > i0 + m * 8 + 2 * t + c)
                                x[mt][m][e] = 0;
                        }
                }
            uint32_t kept[DROP ? NS / 8 : 1][2]; // of query (m, c), this thread's keys: bit mt·16 + (e >> 1)·8
            if (drop) {
#pragma unroll
                for (int m = 0; m < NS / 8; m++)
#pragma unroll
                    for (int c = 0; c < 2; c++)
                        kept[DROP ? m : 0][c] =
                            mask[stage * layout::MASK + (part + m * 8 + 2 * t + c) * mask_words(BK) + key0 / 32] >>
                            (key0 % 32 + g);
            }
            auto is_kept = [&](int mt, int m, int e) {
                return kept[DROP ? m : 0][e & 1] >> (mt * 16 + (e >> 1) * 8) & 1;
            };
            // dv += pᵀ·dy, of what dropout kept; its factor comes at the end
#pragma unroll
            for (int kk = 0; kk < NS / 16; kk++) {
                uint32_t p[MT][4];
#pragma unroll
                for (int mt = 0; mt < MT; mt++) {
                    float left[4], right[4];
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        left[e] = !drop || is_kept(mt, 2 * kk, e) ? x[mt][2 * kk][e] : 0;
                        right[e] = !drop || is_kept(mt, 2 * kk + 1, e) ? x[mt][2 * kk + 1][e] : 0;
                    }
                    to_a<T>(p[mt], left, right);
                }
#pragma unroll
                for (int d = 0; d < D / 16; d++) {
                    uint32_t fdy[4];
                    load_b_columns<T, D>(fdy, tile_dy + kk * 16 * PITCH + d * 16);
#pragma unroll
                    for (int mt = 0; mt < MT; mt++) {
                        multiply<T>(dv[mt][2 * d], p[mt], fdy[0], fdy[1]);
                        multiply<T>(dv[mt][2 * d + 1], p[mt], fdy[2], fdy[3]);
                    }
                }
            }
            float dp[MT][NS / 8][4] = {}; // v·dy: [keys, queries]
            my_v.add_scores(dp, tile_dy);
#pragma unroll
            for (int m = 0; m < NS / 8; m++)
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    float row_delta = delta[m * 8 + 2 * t + c];
#pragma unroll
                    for (int mt = 0; mt < MT; mt++)
#pragma unroll
                        for (int e = c; e < 4; e += 2) {
                            float d = dp[mt][m][e];
                            if (drop)
                                d = is_kept(mt, m, e) ? d * rule.kept : 0;
                            x[mt][m][e] *= d - row_delta;
                            if (LIMITED)
                                x[mt][m][e] *= derivative[LIMITED ? mt : 0][m][e];
                            if (diagonal && j0 + key0 + mt * 16 + g + (e >> 1) * 8 > i0 + m * 8 + 2 * t + c)
                                x[mt][m][e] = 0;
                        }
                }
            operands::template add_columns<D, MT, NS>(dk, x, tile_q);
        }
    }
    float factor[MT][2];
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
        factor[mt][0] = factor[mt][1] = a.scale;
    const long long at = s.keys + (j0 + key0) * a.kv_row;
    const int count = keys - j0 - key0;
    store_rows<T, D, MT>(static_cast<T *>(a.dk) + at, a.kv_row, count, a.width, tile_k + key0 * PITCH, dk, factor);
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
        factor[mt][0] = factor[mt][1] = drop ? rule.kept : 1.0f;
    store_rows<T, D, MT>(static_cast<T *>(a.dv) + at, a.kv_row, count, a.width, tile_v + key0 * PITCH, dv, factor);
}

template <typename T, int DROP, int SEES, int D, int MT, int BM, int NS>
struct dkv_pass : attention_shared<2, halves<T>, D, MT, BM> {
    static const void *kernel() { return reinterpret_cast<const void *>(attention_dkv<T, DROP, SEES, D, MT, BM, NS>); }
    static unsigned grid(const mz_cu_attention &a) {
        constexpr int BK = 16 * MT * WARPS;
        return static_cast<unsigned>(((SEES == SEES_ALL ? a.keys : a.length) + BK - 1) / BK * a.batch * a.kv_heads);
    }
};

template <typename T, int DROP, int SEES> struct for_width {
    static cudaError_t run(cudaStream_t stream, const mz_cu_attention &a, bool prepare) {
        if (a.width <= 32)
            return attention_run<dkv_pass<T, DROP, SEES, 32, 1, 64, 64>>(prepare, stream, a);
        if (a.width <= 64 && a.cc >= 80 && attention_many_blocks(a, a.kv_heads))
            return attention_run<dkv_pass<T, DROP, SEES, 64, 2, 64, 32>>(prepare, stream, a);
        if (a.width <= 64)
            return attention_run<dkv_pass<T, DROP, SEES, 64, 1, 64, 64>>(prepare, stream, a);
        if (a.width <= 80 && a.cc < 80) // 64 KiB of shared memory
            return attention_run<dkv_pass<T, DROP, SEES, 80, 1, 32, 32>>(prepare, stream, a);
        if (a.width <= 80)
            return attention_run<dkv_pass<T, DROP, SEES, 80, 1, 64, 32>>(prepare, stream, a);
        if (a.cc < 80)
            return attention_run<dkv_pass<T, DROP, SEES, 128, 1, 16, 16>>(prepare, stream, a);
        return attention_run<dkv_pass<T, DROP, SEES, 128, 1, 32, 32>>(prepare, stream, a);
    }
};

} // namespace

cudaError_t mz_cu_attention_mma_dkv(cudaStream_t stream, const mz_cu_attention *a, bool prepare) {
    return attention_of_halves<for_width>(stream, *a, prepare);
}
