// Attention passes in which a block owns 64·MT queries of one head: forward, and the first of the two backward passes.
// OPERANDS (attention_mma.cuh, attention_tf32.cuh) says how tiles are stored and multiplied, DROP when there is
// dropout.
#ifndef MZ_ATTENTION_QUERIES_CUH
#define MZ_ATTENTION_QUERIES_CUH

#include "attention_mma.cuh"

// The first key that each of this thread's rows sees; row0: the first row of its warp.
template <int MT>
__device__ __forceinline__ void first_keys(const mz_cu_attention &a, int b, int row0, int (&first)[MT][2]) {
    const int g = (static_cast<int>(threadIdx.x) & 31) >> 2;
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
#pragma unroll
        for (int r = 0; r < 2; r++)
            first[mt][r] = first_key(a, b, row0 + mt * 16 + r * 8 + g);
}

// --- forward -------------------------------------------------------------------------------------------------------
// After Dao, "FlashAttention-2" (2023): a block walks its queries' keys from the last one back to 0, keeping the
// running maximum, sum and output of each row in registers. Four warps own 16·MT rows each and share the key and value
// tiles, of which the next is copied while one is used.
template <class OPERANDS, int DROP, int SEES, int D, int MT, int BN>
__device__ __forceinline__ void compute(mma_pass<0, OPERANDS, DROP, SEES, D, MT, BN>, const mz_cu_attention &a) {
    using layout = attention_shared<0, OPERANDS, D, MT, BN>;
    typedef typename OPERANDS::element element;
    typedef typename OPERANDS::stored stored;
    constexpr int BM = layout::BM, PITCH = OPERANDS::pitch(D);
    constexpr bool LIMITED = SEES == SEES_LIMITED, ALL = SEES == SEES_ALL;
    static_assert(BN % (16 * MT) == 0, "no warp has a row whose keys in its first tile are all masked");
    extern __shared__ __align__(16) unsigned char shared[];
    element *tile_q = reinterpret_cast<element *>(shared);                 // [BM, D]
    const tile_pair<OPERANDS, layout, BN, D> tiles(shared);                // k [BN, D], v [BN, D]
    uint32_t *mask = reinterpret_cast<uint32_t *>(shared + layout::TOTAL); // 2 × [BM, BN]
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
    const int g = lane >> 2, t = lane & 3; // this thread's rows g, g + 8 and columns 2t, 2t + 1 of each 16 × 8 result
    const int blocks = (a.length + BM - 1) / BM;
    const int head = static_cast<int>(blockIdx.x) / blocks;
    const int i0 = (blocks - 1 - static_cast<int>(blockIdx.x) % blocks) * BM; // the longest rows first
    const attention_head s = head_of(a, head / a.heads, head % a.heads);
    const stored *q = static_cast<const stored *>(a.q) + s.q, *k = static_cast<const stored *>(a.k) + s.keys,
                 *v = static_cast<const stored *>(a.v) + s.keys;
    const bool drop = drops<DROP>(a);
    const dropout_rule rule = drop ? dropout_of(a) : dropout_rule();

    const int keys = ALL ? a.keys : a.length;
    int tile = ALL ? (keys - 1) / BN : min((i0 + BM - 1) / BN, (keys - 1) / BN);
    const int last = LIMITED ? first_key(a, s.b, i0) / BN : 0; // the last tile to visit
    auto load_keys = [&](int n, int stage) {
        long long at = static_cast<long long>(n) * BN * a.kv_row;
        OPERANDS::template load<BN, D>(tiles.place(stage), k + at, a.kv_row, keys - n * BN, a.width);
        OPERANDS::template load<BN, D>(tiles.second_place(stage), v + at, a.kv_row, keys - n * BN, a.width);
    };
    OPERANDS::template load_own<BM, D>(tile_q, q + i0 * a.q_row, a.q_row, a.length - i0, a.width);
    load_keys(tile, 0);
    copies_commit();

    const float scale = LIMITED ? scale_after(a) : a.scale, scale2 = scale * 1.44269504f; // log2 e
    const int row0 = warp * 16 * MT;                                                      // of this warp, in the block
    // A warp of 16 rows has registers to spare for its queries; one of 32 reads them again for every tile.
    typename OPERANDS::template own_rows<D, MT, BM, MT == 1> my_q(tile_q + row0 * PITCH);
    bool fresh = true;
    float o[MT][D / 8][4] = {}, max[MT][2], sum[MT][2] = {};
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
        max[mt][0] = max[mt][1] = -INFINITY;

    int first[MT][2] = {}; // the first key that each row sees, and all rows of this warp
    const int first_of_all = LIMITED ? first_key(a, s.b, i0 + row0) : 0;
    if (LIMITED)
        first_keys<MT>(a, s.b, i0 + row0, first);

    for (int stage = 0; tile >= last; tile--, stage ^= 1) {
        const int j0 = tile * BN;
        if (drop)
            draw_mask<BM, BN>(mask + stage * layout::MASK, rule, s.dropout, keys, i0, j0, !ALL);
        copies_wait<0>();
        __syncthreads(); // this tile is here, and no thread reads the other stage any more
        tiles.arrived();
        if (tile > last)
            load_keys(tile - 1, stage ^ 1);
        copies_commit();
        if (fresh)
            my_q.keep();
        fresh = false;
        if (!ALL && j0 > i0 + row0 + 16 * MT - 1)
            continue; // all of it is ahead of all of this warp's rows
        if (LIMITED && j0 + BN <= first_of_all)
            continue;                // no row of this warp sees any of it
        float x[MT][BN / 8][4] = {}; // scores, then probabilities
        my_q.add_scores(x, tiles.first(stage));
        if (LIMITED) {
#pragma unroll
            for (int mt = 0; mt < MT; mt++)
#pragma unroll
                for (int n = 0; n < BN / 8; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        x[mt][n][e] =
                            j0 + n * 8 + 2 * t + (e & 1) < first[mt][e >> 1] ? -INFINITY : capped(a, x[mt][n][e]);
        }
        if (ALL ? j0 + BN > keys : j0 + BN - 1 > i0 + row0) {
#pragma unroll
            for (int mt = 0; mt < MT; mt++)
#pragma unroll
                for (int n = 0; n < BN / 8; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        if (j0 + n * 8 + 2 * t + (e & 1) > (ALL ? keys - 1 : i0 + row0 + mt * 16 + g + (e >> 1) * 8))
                            x[mt][n][e] = -INFINITY;
        }
#pragma unroll
        for (int mt = 0; mt < MT; mt++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float top = max[mt][r];
#pragma unroll
                for (int n = 0; n < BN / 8; n++)
                    top = fmaxf(top, fmaxf(x[mt][n][2 * r], x[mt][n][2 * r + 1]));
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
                float shrink = exp2_fast((max[mt][r] - top) * scale2), top2 = top * scale2, part = 0;
                max[mt][r] = top;
                const uint32_t *kept = mask + stage * layout::MASK + (row0 + mt * 16 + r * 8 + g) * mask_words(BN);
#pragma unroll
                for (int n = 0; n < BN / 8; n++)
#pragma unroll
                    for (int e = 2 * r; e < 2 * r + 2; e++) {
                        x[mt][n][e] = exp2_fast(fmaf(x[mt][n][e], scale2, -top2));
                        part += x[mt][n][e]; // dropout acts on normalised probabilities, after the sum
                        if (OPERANDS::FUSED && drop && !(kept[n / 4] >> (2 * t) >> (n % 4 * 8) >> (e & 1) & 1))
                            x[mt][n][e] = 0;
                    }
                sum[mt][r] = sum[mt][r] * shrink + part; // of this thread's columns
#pragma unroll
                for (int n = 0; n < D / 8; n++) {
                    o[mt][n][2 * r] *= shrink;
                    o[mt][n][2 * r + 1] *= shrink;
                }
            }
        if (!OPERANDS::FUSED && drop) {
#pragma unroll
            for (int mt = 0; mt < MT; mt++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const uint32_t *kept = mask + stage * layout::MASK + (row0 + mt * 16 + r * 8 + g) * mask_words(BN);
#pragma unroll
                    for (int n = 0; n < BN / 8; n++) {
                        uint32_t bits = kept[n / 4] >> (2 * t) >> (n % 4 * 8);
                        x[mt][n][2 * r] = bits & 1 ? x[mt][n][2 * r] : 0;
                        x[mt][n][2 * r + 1] = bits & 2 ? x[mt][n][2 * r + 1] : 0;
                    }
                }
        }
        OPERANDS::template add_columns<D, MT, BN>(o, x, tiles.second(stage));
    }

    float factor[MT][2];
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float all = sum[mt][r];
            all += __shfl_xor_sync(0xffffffffu, all, 1);
            all += __shfl_xor_sync(0xffffffffu, all, 2);
            factor[mt][r] = (drop ? rule.kept : 1.0f) / all;
            int i = i0 + row0 + mt * 16 + r * 8 + g;
            if (a.lse != nullptr && t == 0 && i < a.length)
                a.lse[s.row + i] = max[mt][r] * scale + logf(all);
        }
    const long long y_row = static_cast<long long>(a.heads) * a.width;
    OPERANDS::template store<D, MT>(static_cast<stored *>(a.y) + s.y + (i0 + row0) * y_row, y_row, a.length - i0 - row0,
                                    a.width, tile_q + row0 * PITCH, o, factor);
}

// --- backward, the first of two passes: Δ and dq -------------------------------------------------------------------
// Scores are computed again from q, k and lse:
//   p = exp(s - lse),  Δ = dy·y,  dS = p·(f·(dy·v) - Δ),  dq = Σ_j dS·k_j/√D        (f: dropout's factor)
// A block walks its queries' keys as forward does: dq is summed in registers, in one fixed order. The second pass
// (attention_keys.cuh) owns keys; the two together multiply 7 matrices where a pass that added dq in memory would 5,
// but need no atomics, no FP32 copy of dq and no waiting between blocks.
template <class OPERANDS, int DROP, int SEES, int D, int MT, int BN>
__device__ __forceinline__ void compute(mma_pass<1, OPERANDS, DROP, SEES, D, MT, BN>, const mz_cu_attention &a) {
    using layout = attention_shared<1, OPERANDS, D, MT, BN>;
    typedef typename OPERANDS::element element;
    typedef typename OPERANDS::stored stored;
    constexpr int BM = layout::BM, PITCH = OPERANDS::pitch(D);
    constexpr bool LIMITED = SEES == SEES_LIMITED, ALL = SEES == SEES_ALL;
    extern __shared__ __align__(16) unsigned char shared[];
    element *tile_q = reinterpret_cast<element *>(shared);                 // [BM, D]
    element *tile_dy = tile_q + OPERANDS::size(BM, D);                     // [BM, D]
    const tile_pair<OPERANDS, layout, BN, D> tiles(shared);                // k [BN, D], v [BN, D]
    float *tile_delta = reinterpret_cast<float *>(shared + layout::STATS); // [BM]
    uint32_t *mask = reinterpret_cast<uint32_t *>(shared + layout::TOTAL); // 2 × [BM, BN]
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
    const int g = lane >> 2, t = lane & 3;
    const int blocks = (a.length + BM - 1) / BM;
    const int head = static_cast<int>(blockIdx.x) / blocks;
    const int i0 = (blocks - 1 - static_cast<int>(blockIdx.x) % blocks) * BM;
    const attention_head s = head_of(a, head / a.heads, head % a.heads);
    const stored *q = static_cast<const stored *>(a.q) + s.q, *k = static_cast<const stored *>(a.k) + s.keys,
                 *v = static_cast<const stored *>(a.v) + s.keys;
    const long long y_row = static_cast<long long>(a.heads) * a.width;
    const bool drop = drops<DROP>(a);
    const dropout_rule rule = drop ? dropout_of(a) : dropout_rule();

    const int keys = ALL ? a.keys : a.length;
    int tile = ALL ? (keys - 1) / BN : min((i0 + BM - 1) / BN, (keys - 1) / BN);
    const int last = LIMITED ? first_key(a, s.b, i0) / BN : 0; // the last tile to visit
    auto load_keys = [&](int n, int stage) {
        long long at = static_cast<long long>(n) * BN * a.kv_row;
        OPERANDS::template load<BN, D>(tiles.place(stage), k + at, a.kv_row, keys - n * BN, a.width);
        OPERANDS::template load<BN, D>(tiles.second_place(stage), v + at, a.kv_row, keys - n * BN, a.width);
    };
    const stored *dy = static_cast<const stored *>(a.dy) + s.y;
    OPERANDS::template load_own<BM, D>(tile_q, q + i0 * a.q_row, a.q_row, a.length - i0, a.width);
    OPERANDS::template load_own<BM, D>(tile_dy, dy + i0 * y_row, y_row, a.length - i0, a.width);
    load_keys(tile, 0);
    copies_commit();

    const float scale2 = (LIMITED ? scale_after(a) : a.scale) * 1.44269504f; // log2 e
    const int row0 = warp * 16 * MT;
    OPERANDS::template row_products<16 * MT>(
        dy + (i0 + row0) * y_row, static_cast<const stored *>(a.y) + s.y + (i0 + row0) * y_row, y_row,
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
    constexpr bool KEEP = MT == 1 && D <= 80; // registers to spare for the queries
    typename OPERANDS::template own_rows<D, MT, BM, KEEP> my_q(tile_q + row0 * PITCH), my_dy(tile_dy + row0 * PITCH);
    bool fresh = true;
    float dq[MT][D / 8][4] = {};

    int first[MT][2] = {}; // the first key that each row sees, and all rows of this warp
    const int first_of_all = LIMITED ? first_key(a, s.b, i0 + row0) : 0;
    if (LIMITED)
        first_keys<MT>(a, s.b, i0 + row0, first);

    for (int stage = 0; tile >= last; tile--, stage ^= 1) {
        const int j0 = tile * BN;
        if (drop)
            draw_mask<BM, BN>(mask + stage * layout::MASK, rule, s.dropout, keys, i0, j0, !ALL);
        copies_wait<0>();
        __syncthreads(); // this tile is here, and no thread reads the other stage any more
        tiles.arrived();
        if (tile > last)
            load_keys(tile - 1, stage ^ 1);
        copies_commit();
        if (fresh) {
            my_q.keep();
            my_dy.keep();
        }
        fresh = false;
        if (!ALL && j0 > i0 + row0 + 16 * MT - 1)
            continue; // ahead of all of this warp's rows
        if (LIMITED && j0 + BN <= first_of_all)
            continue;                                        // no row of this warp sees any of it
        float x[MT][BN / 8][4] = {}, dp[MT][BN / 8][4] = {}; // scores, then p, then dS; dy·v
        my_q.add_two_scores(x, tiles.first(stage), my_dy, dp, tiles.second(stage));
        if (!OPERANDS::FUSED && drop) {
#pragma unroll
            for (int mt = 0; mt < MT; mt++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const uint32_t *kept = mask + stage * layout::MASK + (row0 + mt * 16 + r * 8 + g) * mask_words(BN);
#pragma unroll
                    for (int n = 0; n < BN / 8; n++) {
                        uint32_t bits = kept[n / 4] >> (2 * t) >> (n % 4 * 8);
                        dp[mt][n][2 * r] = bits & 1 ? dp[mt][n][2 * r] * rule.kept : 0;
                        dp[mt][n][2 * r + 1] = bits & 2 ? dp[mt][n][2 * r + 1] * rule.kept : 0;
                    }
                }
        }
        const bool partial = ALL ? j0 + BN > keys : j0 + BN - 1 > i0 + row0; // some rows do not see all of it
#pragma unroll
        for (int mt = 0; mt < MT; mt++)
#pragma unroll
            for (int r = 0; r < (OPERANDS::FUSED ? 2 : 1); r++) { // row by row, or both rows together
                const uint32_t *kept = mask + stage * layout::MASK + (row0 + mt * 16 + r * 8 + g) * mask_words(BN);
#pragma unroll
                for (int n = 0; n < BN / 8; n++)
#pragma unroll
                    for (int e = 2 * r; e < (OPERANDS::FUSED ? 2 * r + 2 : 4); e++) {
                        const int row = OPERANDS::FUSED ? r : e >> 1;
                        float d = dp[mt][n][e];
                        if (OPERANDS::FUSED && drop)
                            d = kept[n / 4] >> (2 * t) >> (n % 4 * 8) >> (e & 1) & 1 ? d * rule.kept : 0;
                        const float score = LIMITED ? capped(a, x[mt][n][e]) : x[mt][n][e];
                        x[mt][n][e] = exp2_fast(fmaf(score, scale2, -lse2[mt][row])) * (d - delta[mt][row]);
                        if (LIMITED)
                            x[mt][n][e] = j0 + n * 8 + 2 * t + (e & 1) < first[mt][row]
                                              ? 0
                                              : x[mt][n][e] * cap_derivative(a, score);
                        if (partial &&
                            j0 + n * 8 + 2 * t + (e & 1) > (ALL ? keys - 1 : i0 + row0 + mt * 16 + g + row * 8))
                            x[mt][n][e] = 0;
                    }
            }
        OPERANDS::template add_columns<D, MT, BN>(dq, x, tiles.first(stage));
    }
    float factor[MT][2];
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
        factor[mt][0] = factor[mt][1] = a.scale;
    OPERANDS::template store<D, MT>(static_cast<stored *>(a.dq) + s.q + (i0 + row0) * a.q_row, a.q_row,
                                    a.length - i0 - row0, a.width, tile_q + row0 * PITCH, dq, factor);
}

#endif
