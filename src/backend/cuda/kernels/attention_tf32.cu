// Computes causal attention of FP32 storage on tensor cores: TF32 products, or six BF16 ones that make one of FP32
// (attention_tf32.cuh). Forward and the first backward pass are those of attention_queries.cuh; the second has the
// formulas of attention_dkv.cu.
#include <type_traits>

#include "attention_queries.cuh"
#include "attention_tf32.cuh"

namespace {

// Scores are made transposed, keys × queries.
template <bool LIMITED, int KIND, int D, int MT, int BN>
__global__ void __launch_bounds__(THREADS, 2) attention_tf32_dkv(const __grid_constant__ mz_cu_attention a) {
    using operands = floats<KIND>;
    using layout = attention_shared<2, operands, D, MT, BN>;
    constexpr int BK = layout::BM, PITCH = operands::pitch(D);
    extern __shared__ __align__(16) unsigned char shared[];
    typedef typename operands::element element;
    element *tile_k = reinterpret_cast<element *>(shared);                 // [BK, D]
    element *tile_v = tile_k + operands::size(BK, D);                      // [BK, D]
    const tile_pair<operands, layout, BN, D> pair(shared);                 // q [BN, D], dy [BN, D]
    float *stats = reinterpret_cast<float *>(shared + layout::STATS);      // 2 × (lse [BN], Δ [BN])
    uint32_t *mask = reinterpret_cast<uint32_t *>(shared + layout::TOTAL); // 2 × [BN, BK]
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
    const int g = lane >> 2, t = lane & 3; // keys g, g + 8; queries 2t, 2t + 1
    const int blocks = (a.length + BK - 1) / BK;
    const int kv_head = static_cast<int>(blockIdx.x) / blocks;
    const int j0 = static_cast<int>(blockIdx.x) % blocks * BK; // the keys that most queries see first
    const int group = a.heads / a.kv_heads, b = kv_head / a.kv_heads, first_head = kv_head % a.kv_heads * group;
    const attention_head s = head_of(a, b, first_head);
    const long long y_row = static_cast<long long>(a.heads) * a.width;
    const bool drop = drops<DROP_ASKED>(a);
    dropout_rule rule = {};
    if (drop)
        rule = dropout_of(a);

    const int first = j0 / BN,
              end = LIMITED ? last_query_tile(a, b, first, BN, j0 + BK - 1) + 1 : (a.length + BN - 1) / BN;
    const int tiles = end - first;
    auto load_queries = [&](int n, int stage) { // n counts query heads × tiles
        attention_head h = head_of(a, b, first_head + n / tiles);
        int i0 = (first + n % tiles) * BN, count = a.length - i0;
        float *to = pair.place(stage);
        load_floats<BN, D>(to, static_cast<const float *>(a.q) + h.q + i0 * a.q_row, a.q_row, count, a.width);
        load_floats<BN, D>(to + BN * float_pitch(D), static_cast<const float *>(a.dy) + h.y + i0 * y_row, y_row, count,
                           a.width);
        for (int i = static_cast<int>(threadIdx.x); i < BN; i += THREADS) {
            long long row = i < count ? h.row + i0 + i : h.row;
            copy_async_4(stats + stage * 2 * BN + i, a.lse + row, i < count);
            copy_async_4(stats + stage * 2 * BN + BN + i, a.delta + row, i < count);
        }
    };
    operands::template load_own<BK, D>(tile_k, static_cast<const float *>(a.k) + s.keys + j0 * a.kv_row, a.kv_row,
                                       a.length - j0, a.width);
    operands::template load_own<BK, D>(tile_v, static_cast<const float *>(a.v) + s.keys + j0 * a.kv_row, a.kv_row,
                                       a.length - j0, a.width);
    load_queries(0, 0);
    copies_commit();

    const float scale2 = (LIMITED ? scale_after(a) : a.scale) * 1.44269504f; // log2 e
    const int key0 = warp * 16 * MT;                                         // of this warp, in the block
    float dk[MT][D / 8][4] = {}, dv[MT][D / 8][4] = {};

    for (int n = 0, stage = 0; n < group * tiles; n++, stage ^= 1) {
        const int i0 = (first + n % tiles) * BN;
        if (drop)
            draw_mask<BN, BK>(mask + stage * layout::MASK, rule,
                              s.dropout + static_cast<uint64_t>(n / tiles) * static_cast<uint64_t>(a.length) *
                                              static_cast<uint64_t>(a.length),
                              a.length, i0, j0);
        copies_wait<0>();
        __syncthreads(); // this tile is here, and no thread reads the other stage any more
        pair.arrived();
        if (n + 1 < group * tiles)
            load_queries(n + 1, stage ^ 1);
        copies_commit();
        if (i0 + BN - 1 < j0 + key0)
            continue; // before all of this warp's keys
        const element *tile_q = pair.first(stage), *tile_dy = pair.second(stage);
        const float *lse = stats + stage * 2 * BN, *delta = lse + BN;
        float x[MT][BN / 8][4] = {}, dp[MT][BN / 8][4] = {}; // scores, then p; v·dy, then dS: [keys, queries]
        add_scores<KIND, D, MT, BN, layout::BM>(x, tile_k + key0 * PITCH, tile_q);
        add_scores<KIND, D, MT, BN, layout::BM>(dp, tile_v + key0 * PITCH, tile_dy);
        const bool diagonal = i0 < j0 + key0 + 16 * MT - 1;
#pragma unroll
        for (int m = 0; m < BN / 8; m++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const int query = m * 8 + 2 * t + c;
                const float lse2 = lse[query] * 1.44269504f, row_delta = delta[query];
                const int first_seen = LIMITED ? first_key(a, b, i0 + query) : 0;
                uint32_t kept = 0; // this thread's keys: bit mt·16 + (e >> 1)·8
                if (drop)
                    kept = mask[stage * layout::MASK + query * mask_words(BK) + key0 / 32] >> (key0 % 32 + g);
#pragma unroll
                for (int mt = 0; mt < MT; mt++)
#pragma unroll
                    for (int e = c; e < 4; e += 2) {
                        const float score = LIMITED ? capped(a, x[mt][m][e]) : x[mt][m][e];
                        float p = exp2_fast(fmaf(score, scale2, -lse2)), d = dp[mt][m][e];
                        if (LIMITED && j0 + key0 + mt * 16 + g + (e >> 1) * 8 < first_seen)
                            p = 0;
                        if (diagonal && j0 + key0 + mt * 16 + g + (e >> 1) * 8 > i0 + query)
                            p = 0;
                        const bool keeps = !drop || (kept >> (mt * 16 + (e >> 1) * 8) & 1);
                        if (drop)
                            d = keeps ? d * rule.kept : 0;
                        x[mt][m][e] = keeps ? p : 0; // dropout's factor comes at the end
                        dp[mt][m][e] = p * (d - row_delta);
                        if (LIMITED)
                            dp[mt][m][e] *= cap_derivative(a, score);
                    }
            }
        add_columns<KIND, D, MT, BN>(dv, x, tile_dy);
        add_columns<KIND, D, MT, BN>(dk, dp, tile_q);
    }
    float factor[MT][2];
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
        factor[mt][0] = factor[mt][1] = a.scale;
    const long long at = s.keys + (j0 + key0) * a.kv_row;
    store_floats<KIND, D, MT>(static_cast<float *>(a.dk) + at, a.kv_row, a.length - j0 - key0, a.width, dk, factor);
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
        factor[mt][0] = factor[mt][1] = drop ? rule.kept : 1.0f;
    store_floats<KIND, D, MT>(static_cast<float *>(a.dv) + at, a.kv_row, a.length - j0 - key0, a.width, dv, factor);
}

template <bool LIMITED, int KIND, int D, int MT, int BN>
struct dkv_pass : attention_shared<2, floats<KIND>, D, MT, BN> {
    static const void *kernel() { return reinterpret_cast<const void *>(attention_tf32_dkv<LIMITED, KIND, D, MT, BN>); }
    static unsigned grid(const mz_cu_attention &a) {
        constexpr int BK = 16 * MT * WARPS;
        return static_cast<unsigned>((a.length + BK - 1) / BK * a.batch * a.kv_heads);
    }
};

template <int PASS, bool LIMITED, int KIND, int D, int MT, int BN>
using float_pass =
    std::conditional_t<PASS == 2, dkv_pass<LIMITED, KIND, D, MT, BN>,
                       query_pass<PASS, floats<KIND>, DROP_ASKED, LIMITED ? SEES_LIMITED : SEES_BEFORE, D, MT, BN>>;

// Chooses the rows of a warp and the tile for a head's width: BF16 terms are stored once rather than split by every
// warp, forward takes 32 rows a warp where blocks are many, and narrow heads take tiles of 64 where blocks are few.
template <int PASS, bool LIMITED>
cudaError_t stored_for_width(cudaStream_t stream, const mz_cu_attention &a, bool prepare) {
    constexpr int KIND = OF_STORED_PARTS;
    if (a.width <= 32 && (a.length + 63) / 64 * static_cast<long long>(a.batch) * a.heads < 2 * a.sms)
        return attention_run<float_pass<PASS, LIMITED, KIND, 32, 1, 64>>(prepare, stream, a);
    if (a.width <= 32)
        return attention_run<float_pass<PASS, LIMITED, KIND, 32, 1, 32>>(prepare, stream, a);
    if (PASS == 0 && a.width <= 64 && attention_many_blocks(a, a.heads))
        return attention_run<float_pass<PASS, LIMITED, KIND, 64, PASS == 0 ? 2 : 1, 32>>(prepare, stream, a);
    if (a.width <= 64)
        return attention_run<float_pass<PASS, LIMITED, KIND, 64, 1, 32>>(prepare, stream, a);
    if (a.width <= 80)
        return attention_run<float_pass<PASS, LIMITED, KIND, 80, 1, PASS == 0 ? 32 : 16>>(prepare, stream, a);
    return attention_run<float_pass<PASS, LIMITED, KIND, 128, 1, PASS == 0 ? 16 : 32>>(prepare, stream, a);
}

template <int PASS, bool LIMITED, int KIND>
cudaError_t for_width(cudaStream_t stream, const mz_cu_attention &a, bool prepare) {
    if (a.width <= 32)
        return attention_run<float_pass<PASS, LIMITED, KIND, 32, 2, 32>>(prepare, stream, a);
    if (a.width <= 64)
        return attention_run<float_pass<PASS, LIMITED, KIND, 64, 1, PASS == 2 && KIND == OF_PARTS ? 16 : 32>>(
            prepare, stream, a);
    return attention_run<float_pass<PASS, LIMITED, KIND, 128, 1, PASS == 0 ? 32 : 16>>(prepare, stream, a);
}

// Stored parts take up to 190 KiB of shared memory, which Hopper and its successors in servers have; others take 70 to
// 100.
template <int PASS, bool LIMITED> cudaError_t run_limited(cudaStream_t stream, const mz_cu_attention &a, bool prepare) {
    if (a.compute == MEZZO_TF32)
        return for_width<PASS, LIMITED, OF_TF32>(stream, a, prepare);
    return a.cc >= 90 && a.cc < 120 ? stored_for_width<PASS, LIMITED>(stream, a, prepare)
                                    : for_width<PASS, LIMITED, OF_PARTS>(stream, a, prepare);
}

template <int PASS> cudaError_t run_pass(cudaStream_t stream, const mz_cu_attention &a, bool prepare) {
    return a.limited ? run_limited<PASS, true>(stream, a, prepare) : run_limited<PASS, false>(stream, a, prepare);
}

} // namespace

cudaError_t mz_cu_attention_tf32(cudaStream_t stream, const mz_cu_attention *a, bool prepare) {
    return run_pass<0>(stream, *a, prepare);
}
cudaError_t mz_cu_attention_tf32_bwd(cudaStream_t stream, const mz_cu_attention *a, bool prepare) {
    cudaError_t error = run_pass<1>(stream, *a, prepare);
    return error != cudaSuccess ? error : run_pass<2>(stream, *a, prepare);
}
