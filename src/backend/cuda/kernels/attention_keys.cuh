// Attention's pass in which a block owns 64·MT keys of one key/value head: the second of the two backward passes, which
// computes dk and dv (attention_queries.cuh has the first and the formulas).
//   dv_j = Σ_i f·p·dy_i,   dk_j = Σ_i dS·q_i/√D
// It walks the queries that see any of the keys, for each query head that shares them. Scores are computed transposed,
// keys × queries: as the results of one product they then already are the operand of the next, and nothing but inputs
// goes through shared memory.
#ifndef MZ_ATTENTION_KEYS_CUH
#define MZ_ATTENTION_KEYS_CUH

#include "attention_mma.cuh"

// BM queries are in shared memory at a time, NS of their scores in registers.
template <class OPERANDS, int DROP, int SEES, int D, int MT, int BM, int NS>
__device__ __forceinline__ void compute(mma_pass<2, OPERANDS, DROP, SEES, D, MT, BM, NS>, const mz_cu_attention &a) {
    using layout = attention_shared<2, OPERANDS, D, MT, BM>;
    typedef typename OPERANDS::element element;
    typedef typename OPERANDS::stored stored;
    constexpr int BK = layout::BM, PITCH = OPERANDS::pitch(D);
    constexpr bool LIMITED = SEES == SEES_LIMITED, ALL = SEES == SEES_ALL, FUSED = OPERANDS::FUSED;
    static_assert(BM % NS == 0 && NS % 16 == 0, "");
    extern __shared__ __align__(16) unsigned char shared[];
    element *tile_k = reinterpret_cast<element *>(shared);                 // [BK, D]
    element *tile_v = tile_k + OPERANDS::size(BK, D);                      // [BK, D]
    const tile_pair<OPERANDS, layout, BM, D> pair(shared);                 // q [BM, D], dy [BM, D]
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
    const dropout_rule rule = drop ? dropout_of(a) : dropout_rule();

    const int first = ALL ? 0 : j0 / BM,
              end = LIMITED ? last_query_tile(a, b, first, BM, j0 + BK - 1) + 1 : (a.length + BM - 1) / BM;
    const int tiles = end - first;
    auto load_queries = [&](int n, int stage) { // n counts query heads × tiles
        attention_head h = head_of(a, b, first_head + n / tiles);
        int i0 = (first + n % tiles) * BM, count = a.length - i0;
        OPERANDS::template load<BM, D>(pair.place(stage), static_cast<const stored *>(a.q) + h.q + i0 * a.q_row,
                                       a.q_row, count, a.width);
        OPERANDS::template load<BM, D>(pair.second_place(stage), static_cast<const stored *>(a.dy) + h.y + i0 * y_row,
                                       y_row, count, a.width);
        for (int i = static_cast<int>(threadIdx.x); i < BM; i += THREADS) {
            long long row = i < count ? h.row + i0 + i : h.row;
            copy_async_4(stats + stage * 2 * BM + i, a.lse + row, i < count);
            copy_async_4(stats + stage * 2 * BM + BM + i, a.delta + row, i < count);
        }
    };
    OPERANDS::template load_own<BK, D>(tile_k, static_cast<const stored *>(a.k) + s.keys + j0 * a.kv_row, a.kv_row,
                                       keys - j0, a.width);
    OPERANDS::template load_own<BK, D>(tile_v, static_cast<const stored *>(a.v) + s.keys + j0 * a.kv_row, a.kv_row,
                                       keys - j0, a.width);
    load_queries(0, 0);
    copies_commit();

    const float scale2 = (LIMITED ? scale_after(a) : a.scale) * 1.44269504f; // log2 e
    const int key0 = warp * 16 * MT;                                         // of this warp, in the block
    constexpr bool KEEP = MT == 1 && D <= 64; // registers to spare for the keys and values
    typename OPERANDS::template own_rows<D, MT, BK, KEEP> my_k(tile_k + key0 * PITCH), my_v(tile_v + key0 * PITCH);
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
        pair.arrived();
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
            const element *tile_q = pair.first(stage, part), *tile_dy = pair.second(stage, part);
            const float *lse = stats + stage * 2 * BM + part, *delta = lse + BM;
            float x[MT][NS / 8][4] = {}, dp[MT][NS / 8][4] = {}; // scores, then p; v·dy, then dS: [keys, queries]
            my_k.add_scores(x, tile_q);
            if (FUSED)
                my_v.add_scores(dp, tile_dy);
            const bool diagonal = !ALL && i0 < j0 + key0 + 16 * MT - 1;
            const auto kept_keys = [&](int m, int c) { // of query (m, c), this thread's: bit mt·16 + (e >> 1)·8
                return mask[stage * layout::MASK + (part + m * 8 + 2 * t + c) * mask_words(BK) + key0 / 32] >>
                       (key0 % 32 + g);
            };
            float derivative[LIMITED && !FUSED ? MT : 1][NS / 8][4]; // the cap's derivative
#pragma unroll
            for (int m = 0; m < NS / 8; m++)
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    const float lse2 = lse[m * 8 + 2 * t + c] * 1.44269504f,
                                row_delta = FUSED ? delta[m * 8 + 2 * t + c] : 0;
                    const int first_seen = LIMITED ? first_key(a, b, i0 + m * 8 + 2 * t + c) : 0;
                    uint32_t kept = 0;
                    if (FUSED && drop)
                        kept = kept_keys(m, c);
#pragma unroll
                    for (int mt = 0; mt < MT; mt++)
#pragma unroll
                        for (int e = c; e < 4; e += 2) {
                            const float score = LIMITED ? capped(a, x[mt][m][e]) : x[mt][m][e];
                            if (LIMITED && !FUSED)
                                derivative[LIMITED && !FUSED ? mt : 0][m][e] = cap_derivative(a, score);
                            float p = exp2_fast(fmaf(score, scale2, -lse2));
                            if (LIMITED && j0 + key0 + mt * 16 + g + (e >> 1) * 8 < first_seen)
                                p = 0;
                            if (diagonal && j0 + key0 + mt * 16 + g + (e >> 1) * 8 > i0 + m * 8 + 2 * t + c)
                                p = 0;
                            x[mt][m][e] = p;
                            if (FUSED) {
                                const bool keeps = !drop || (kept >> (mt * 16 + (e >> 1) * 8) & 1);
                                float d = dp[mt][m][e];
                                if (drop)
                                    d = keeps ? d * rule.kept : 0;
                                x[mt][m][e] = keeps ? p : 0; // dropout's factor comes at the end
                                dp[mt][m][e] = p * (d - row_delta);
                                if (LIMITED)
                                    dp[mt][m][e] *= cap_derivative(a, score);
                            }
                        }
                }
            if constexpr (FUSED) {
                OPERANDS::template add_columns<D, MT, NS>(dv, x, tile_dy);
            } else {
                uint32_t kept[DROP ? NS / 8 : 1][2];
                if (drop) {
#pragma unroll
                    for (int m = 0; m < NS / 8; m++)
#pragma unroll
                        for (int c = 0; c < 2; c++)
                            kept[DROP ? m : 0][c] = kept_keys(m, c);
                }
                const auto is_kept = [&](int mt, int m, int e) {
                    return !drop || (kept[DROP ? m : 0][e & 1] >> (mt * 16 + (e >> 1) * 8) & 1);
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
                            left[e] = is_kept(mt, 2 * kk, e) ? x[mt][2 * kk][e] : 0;
                            right[e] = is_kept(mt, 2 * kk + 1, e) ? x[mt][2 * kk + 1][e] : 0;
                        }
                        to_a<element>(p[mt], left, right);
                    }
#pragma unroll
                    for (int d = 0; d < D / 16; d++) {
                        uint32_t fdy[4];
                        load_b_columns<element, D>(fdy, tile_dy + kk * 16 * PITCH + d * 16);
#pragma unroll
                        for (int mt = 0; mt < MT; mt++) {
                            multiply<element>(dv[mt][2 * d], p[mt], fdy[0], fdy[1]);
                            multiply<element>(dv[mt][2 * d + 1], p[mt], fdy[2], fdy[3]);
                        }
                    }
                }
                my_v.add_scores(dp, tile_dy);
#pragma unroll
                for (int m = 0; m < NS / 8; m++)
#pragma unroll
                    for (int c = 0; c < 2; c++) {
                        const float row_delta = delta[m * 8 + 2 * t + c];
#pragma unroll
                        for (int mt = 0; mt < MT; mt++)
#pragma unroll
                            for (int e = c; e < 4; e += 2) {
                                float d = dp[mt][m][e];
                                if (drop)
                                    d = is_kept(mt, m, e) ? d * rule.kept : 0;
                                dp[mt][m][e] = x[mt][m][e] * (d - row_delta);
                                if (LIMITED)
                                    dp[mt][m][e] *= derivative[LIMITED && !FUSED ? mt : 0][m][e];
                                if (diagonal && j0 + key0 + mt * 16 + g + (e >> 1) * 8 > i0 + m * 8 + 2 * t + c)
                                    dp[mt][m][e] = 0;
                            }
                    }
            }
            OPERANDS::template add_columns<D, MT, NS>(dk, dp, tile_q);
        }
    }
    const long long at = s.keys + (j0 + key0) * a.kv_row;
    const auto store = [&](void *to, element *tile, const float(&x)[MT][D / 8][4], float all) {
        float factor[MT][2];
#pragma unroll
        for (int mt = 0; mt < MT; mt++)
            factor[mt][0] = factor[mt][1] = all;
        OPERANDS::template store<D, MT>(static_cast<stored *>(to) + at, a.kv_row, keys - j0 - key0, a.width,
                                        tile + key0 * PITCH, x, factor);
    };
    store(a.dk, tile_k, dk, a.scale);
    store(a.dv, tile_v, dv, drop ? rule.kept : 1.0f);
}

#endif
