// Computes causal attention of FP32 storage on tensor cores: TF32 products, or six BF16 ones that make one of FP32
// (attention_tf32.cuh). The algorithm, the two backward passes and the formulas are those of attention_forward.cu,
// attention_dq.cu and attention_dkv.cu.
#include "attention_tf32.cuh"

namespace {

template <int PASS, int KIND, int D, int MT, int BN>
struct float_shared { // bytes; BN: keys (queries in the last pass) of a tile
    typedef tile_of<KIND> tile;
    static constexpr bool STORED = KIND == OF_STORED_PARTS;
    static constexpr int BM = 16 * MT * WARPS, ELEMENT = static_cast<int>(sizeof(typename tile::element));
    static constexpr int ROWS = (PASS == 0 ? 1 : 2) * tile::size(BM, D) * ELEMENT; // what the block owns
    static constexpr int TILES = (STORED ? 2 : 4) * tile::size(BN, D) * ELEMENT;   // two, and the next two
    static constexpr int ARRIVING = STORED ? 2 * BN * float_pitch(D) * 4 : 0;      // or the next two as they come
    static constexpr int STATS = ROWS + TILES + ARRIVING;
    static constexpr int TOTAL = STATS + (PASS == 0 ? 0 : PASS == 1 ? BM * 4 : 4 * BN * 4);
    static constexpr int MASK = PASS == 2 ? BN * mask_words(BM) : BM * mask_words(BN); // words
    static constexpr int WITH_MASK = TOTAL + 2 * 4 * MASK;
};

// The two tiles of a step: where they arrive, and where they are multiplied from. By turns two places, or one from
// which parts go to another.
template <typename LAYOUT, int BN, int D> struct tile_pair {
    typedef typename LAYOUT::tile::element element;
    element *tiles;
    float *arriving;
    __device__ __forceinline__ explicit tile_pair(unsigned char *shared)
        : tiles(reinterpret_cast<element *>(shared + LAYOUT::ROWS)),
          arriving(reinterpret_cast<float *>(shared + LAYOUT::ROWS + (LAYOUT::STORED ? LAYOUT::TILES : 0))) {}
    __device__ __forceinline__ float *place(int stage) const {
        return arriving + (LAYOUT::STORED ? 0 : stage * 2 * BN * float_pitch(D));
    }
    __device__ __forceinline__ void arrived() const { // all threads; the place is free for the next two
        if constexpr (LAYOUT::STORED) {
            for (int i = 0; i < 2; i++)
                store_parts<BN, D>(tiles + i * LAYOUT::tile::size(BN, D), arriving + i * BN * float_pitch(D),
                                   float_pitch(D), BN, D);
            __syncthreads();
        }
    }
    __device__ __forceinline__ const element *first(int stage) const {
        return tiles + (LAYOUT::STORED ? 0 : stage * 2 * LAYOUT::tile::size(BN, D));
    }
    __device__ __forceinline__ const element *second(int stage) const {
        return first(stage) + LAYOUT::tile::size(BN, D);
    }
};

// Loads the rows that the block owns.
template <int KIND, int ROWS, int D>
__device__ __forceinline__ void load_own(typename tile_of<KIND>::element *tile, const float *from, long long stride,
                                         int count, int width) {
    if constexpr (KIND == OF_STORED_PARTS)
        store_parts<ROWS, D>(tile, from, stride, count, width);
    else
        load_floats<ROWS, D>(tile, from, stride, count, width);
}

template <bool LIMITED, int KIND, int D, int MT, int BN>
__global__ void __launch_bounds__(THREADS, 2) attention_tf32(const __grid_constant__ mz_cu_attention a) {
    using layout = float_shared<0, KIND, D, MT, BN>;
    constexpr int BM = layout::BM, PITCH = pitch_of(KIND, D);
    static_assert(BN % (16 * MT) == 0, "no warp has a row whose keys in its first tile are all masked");
    extern __shared__ __align__(16) unsigned char shared[];
    typedef typename layout::tile::element element;
    element *tile_q = reinterpret_cast<element *>(shared);                 // [BM, D]
    const tile_pair<layout, BN, D> tiles(shared);                          // k [BN, D], v [BN, D]
    uint32_t *mask = reinterpret_cast<uint32_t *>(shared + layout::TOTAL); // 2 × [BM, BN]
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
    const int g = lane >> 2, t = lane & 3; // this thread's rows g, g + 8 and columns 2t, 2t + 1 of each 16 × 8 scores
    const int blocks = (a.length + BM - 1) / BM;
    const int head = static_cast<int>(blockIdx.x) / blocks;
    const int i0 = (blocks - 1 - static_cast<int>(blockIdx.x) % blocks) * BM; // the longest rows first
    const attention_head s = head_of(a, head / a.heads, head % a.heads);
    const float *q = static_cast<const float *>(a.q) + s.q, *k = static_cast<const float *>(a.k) + s.keys,
                *v = static_cast<const float *>(a.v) + s.keys;
    const bool drop = a.p > 0;
    dropout_rule rule = {};
    if (drop)
        rule = dropout_of(a);

    int tile = min((i0 + BM - 1) / BN, (a.length - 1) / BN);
    const int last = LIMITED ? first_key(a, s.b, i0) / BN : 0; // the last tile to visit
    auto load_keys = [&](int n, int stage) {
        float *to = tiles.place(stage);
        long long at = static_cast<long long>(n) * BN * a.kv_row;
        load_floats<BN, D>(to, k + at, a.kv_row, a.length - n * BN, a.width);
        load_floats<BN, D>(to + BN * float_pitch(D), v + at, a.kv_row, a.length - n * BN, a.width);
    };
    load_own<KIND, BM, D>(tile_q, q + i0 * a.q_row, a.q_row, a.length - i0, a.width);
    load_keys(tile, 0);
    copies_commit();

    const float scale = LIMITED ? scale_after(a) : a.scale, scale2 = scale * 1.44269504f; // log2 e
    const int row0 = warp * 16 * MT;                                                      // of this warp, in the block
    float o[MT][D / 8][4] = {}, max[MT][2], sum[MT][2] = {};
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
        max[mt][0] = max[mt][1] = -INFINITY;

    int first[LIMITED ? MT : 1][2]; // the first key that each row sees, and all rows of this warp
    const int first_of_all = LIMITED ? first_key(a, s.b, i0 + row0) : 0;
    if (LIMITED)
#pragma unroll
        for (int mt = 0; mt < MT; mt++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                first[LIMITED ? mt : 0][r] = first_key(a, s.b, i0 + row0 + mt * 16 + r * 8 + g);

    for (int stage = 0; tile >= last; tile--, stage ^= 1) {
        const int j0 = tile * BN;
        if (drop)
            draw_mask<BM, BN>(mask + stage * layout::MASK, rule, s.dropout, a.length, i0, j0);
        copies_wait<0>();
        __syncthreads(); // this tile is here, and no thread reads the other stage any more
        tiles.arrived();
        if (tile > last)
            load_keys(tile - 1, stage ^ 1);
        copies_commit();
        if (j0 > i0 + row0 + 16 * MT - 1)
            continue; // all of it is ahead of all of this warp's rows
        if (LIMITED && j0 + BN <= first_of_all)
            continue; // no row of this warp sees any of it
        const element *tile_k = tiles.first(stage), *tile_v = tiles.second(stage);
        float x[MT][BN / 8][4] = {}; // scores, then probabilities
        add_scores<KIND, D, MT, BN, layout::BM>(x, tile_q + row0 * PITCH, tile_k);
        if (LIMITED) {
#pragma unroll
            for (int mt = 0; mt < MT; mt++)
#pragma unroll
                for (int n = 0; n < BN / 8; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        x[mt][n][e] = j0 + n * 8 + 2 * t + (e & 1) < first[LIMITED ? mt : 0][e >> 1]
                                          ? -INFINITY
                                          : capped(a, x[mt][n][e]);
        }
        if (j0 + BN - 1 > i0 + row0) {
#pragma unroll
            for (int mt = 0; mt < MT; mt++)
#pragma unroll
                for (int n = 0; n < BN / 8; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        if (j0 + n * 8 + 2 * t + (e & 1) > i0 + row0 + mt * 16 + g + (e >> 1) * 8)
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
                        if (drop && !(kept[n / 4] >> (2 * t) >> (n % 4 * 8) >> (e & 1) & 1))
                            x[mt][n][e] = 0;
                    }
                sum[mt][r] = sum[mt][r] * shrink + part; // of this thread's columns
#pragma unroll
                for (int n = 0; n < D / 8; n++) {
                    o[mt][n][2 * r] *= shrink;
                    o[mt][n][2 * r + 1] *= shrink;
                }
            }
        add_columns<KIND, D, MT, BN>(o, x, tile_v);
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
    store_floats<KIND, D, MT>(static_cast<float *>(a.y) + s.y + (i0 + row0) * y_row, y_row, a.length - i0 - row0,
                              a.width, o, factor);
}

// Δ of a warp's rows, into shared and global memory: eight threads a row.
template <int ROWS>
__device__ __forceinline__ void float_products(const float *dy, const float *y, long long stride, int count, int width,
                                               float *delta, float *to) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    for (int row = lane >> 3; row < ROWS; row += 4) {
        float sum = 0;
        for (int c = (lane & 7) * 4; c < width && row < count; c += 32) {
            float4 one = read_four(dy + row * stride + c), two = read_four(y + row * stride + c);
            sum += one.x * two.x + one.y * two.y + one.z * two.z + one.w * two.w;
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

template <bool LIMITED, int KIND, int D, int MT, int BN>
__global__ void __launch_bounds__(THREADS, 2) attention_tf32_dq(const __grid_constant__ mz_cu_attention a) {
    using layout = float_shared<1, KIND, D, MT, BN>;
    constexpr int BM = layout::BM, PITCH = pitch_of(KIND, D);
    extern __shared__ __align__(16) unsigned char shared[];
    typedef typename layout::tile::element element;
    element *tile_q = reinterpret_cast<element *>(shared);                 // [BM, D]
    element *tile_dy = tile_q + layout::tile::size(BM, D);                 // [BM, D]
    const tile_pair<layout, BN, D> tiles(shared);                          // k [BN, D], v [BN, D]
    float *tile_delta = reinterpret_cast<float *>(shared + layout::STATS); // [BM]
    uint32_t *mask = reinterpret_cast<uint32_t *>(shared + layout::TOTAL); // 2 × [BM, BN]
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
    const int g = lane >> 2, t = lane & 3;
    const int blocks = (a.length + BM - 1) / BM;
    const int head = static_cast<int>(blockIdx.x) / blocks;
    const int i0 = (blocks - 1 - static_cast<int>(blockIdx.x) % blocks) * BM;
    const attention_head s = head_of(a, head / a.heads, head % a.heads);
    const float *q = static_cast<const float *>(a.q) + s.q, *k = static_cast<const float *>(a.k) + s.keys,
                *v = static_cast<const float *>(a.v) + s.keys, *dy = static_cast<const float *>(a.dy) + s.y;
    const long long y_row = static_cast<long long>(a.heads) * a.width;
    const bool drop = a.p > 0;
    dropout_rule rule = {};
    if (drop)
        rule = dropout_of(a);

    int tile = min((i0 + BM - 1) / BN, (a.length - 1) / BN);
    const int last = LIMITED ? first_key(a, s.b, i0) / BN : 0; // the last tile to visit
    auto load_keys = [&](int n, int stage) {
        float *to = tiles.place(stage);
        long long at = static_cast<long long>(n) * BN * a.kv_row;
        load_floats<BN, D>(to, k + at, a.kv_row, a.length - n * BN, a.width);
        load_floats<BN, D>(to + BN * float_pitch(D), v + at, a.kv_row, a.length - n * BN, a.width);
    };
    load_own<KIND, BM, D>(tile_q, q + i0 * a.q_row, a.q_row, a.length - i0, a.width);
    load_own<KIND, BM, D>(tile_dy, dy + i0 * y_row, y_row, a.length - i0, a.width);
    load_keys(tile, 0);
    copies_commit();

    const float scale2 = (LIMITED ? scale_after(a) : a.scale) * 1.44269504f; // log2 e
    const int row0 = warp * 16 * MT;
    float_products<16 * MT>(dy + (i0 + row0) * y_row, static_cast<const float *>(a.y) + s.y + (i0 + row0) * y_row,
                            y_row, a.length - i0 - row0, a.width, tile_delta + row0, a.delta + s.row + i0 + row0);
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
        const int j0 = tile * BN;
        if (drop)
            draw_mask<BM, BN>(mask + stage * layout::MASK, rule, s.dropout, a.length, i0, j0);
        copies_wait<0>();
        __syncthreads(); // this tile is here, and no thread reads the other stage any more
        tiles.arrived();
        if (tile > last)
            load_keys(tile - 1, stage ^ 1);
        copies_commit();
        if (j0 > i0 + row0 + 16 * MT - 1)
            continue; // ahead of all of this warp's rows
        if (LIMITED && j0 + BN <= first_of_all)
            continue; // no row of this warp sees any of it
        const element *tile_k = tiles.first(stage), *tile_v = tiles.second(stage);
        float x[MT][BN / 8][4] = {}, dp[MT][BN / 8][4] = {}; // scores, then p, then dS; dy·v
        add_scores<KIND, D, MT, BN, layout::BM>(x, tile_q + row0 * PITCH, tile_k);
        add_scores<KIND, D, MT, BN, layout::BM>(dp, tile_dy + row0 * PITCH, tile_v);
        const bool diagonal = j0 + BN - 1 > i0 + row0;
#pragma unroll
        for (int mt = 0; mt < MT; mt++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const uint32_t *kept = mask + stage * layout::MASK + (row0 + mt * 16 + r * 8 + g) * mask_words(BN);
#pragma unroll
                for (int n = 0; n < BN / 8; n++)
#pragma unroll
                    for (int e = 2 * r; e < 2 * r + 2; e++) {
                        float d = dp[mt][n][e];
                        if (drop)
                            d = kept[n / 4] >> (2 * t) >> (n % 4 * 8) >> (e & 1) & 1 ? d * rule.kept : 0;
                        const float score = LIMITED ? capped(a, x[mt][n][e]) : x[mt][n][e];
                        x[mt][n][e] = exp2_fast(fmaf(score, scale2, -lse2[mt][r])) * (d - delta[mt][r]);
                        if (LIMITED)
                            x[mt][n][e] = j0 + n * 8 + 2 * t + (e & 1) < first[LIMITED ? mt : 0][r]
                                              ? 0
                                              : x[mt][n][e] * cap_derivative(a, score);
                        if (diagonal && j0 + n * 8 + 2 * t + (e & 1) > i0 + row0 + mt * 16 + g + r * 8)
                            x[mt][n][e] = 0;
                    }
            }
        add_columns<KIND, D, MT, BN>(dq, x, tile_k);
    }
    float factor[MT][2];
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
        factor[mt][0] = factor[mt][1] = a.scale;
    store_floats<KIND, D, MT>(static_cast<float *>(a.dq) + s.q + (i0 + row0) * a.q_row, a.q_row, a.length - i0 - row0,
                              a.width, dq, factor);
}

// Scores are made transposed, keys × queries.
template <bool LIMITED, int KIND, int D, int MT, int BN>
__global__ void __launch_bounds__(THREADS, 2) attention_tf32_dkv(const __grid_constant__ mz_cu_attention a) {
    using layout = float_shared<2, KIND, D, MT, BN>;
    constexpr int BK = layout::BM, PITCH = pitch_of(KIND, D);
    extern __shared__ __align__(16) unsigned char shared[];
    typedef typename layout::tile::element element;
    element *tile_k = reinterpret_cast<element *>(shared);                 // [BK, D]
    element *tile_v = tile_k + layout::tile::size(BK, D);                  // [BK, D]
    const tile_pair<layout, BN, D> pair(shared);                           // q [BN, D], dy [BN, D]
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
    const bool drop = a.p > 0;
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
    load_own<KIND, BK, D>(tile_k, static_cast<const float *>(a.k) + s.keys + j0 * a.kv_row, a.kv_row, a.length - j0,
                          a.width);
    load_own<KIND, BK, D>(tile_v, static_cast<const float *>(a.v) + s.keys + j0 * a.kv_row, a.kv_row, a.length - j0,
                          a.width);
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

template <int PASS, bool LIMITED, int KIND, int D, int MT, int BN>
struct float_pass : float_shared<PASS, KIND, D, MT, BN> {
    static const void *kernel() { // one instance, not one of each pass
        if constexpr (PASS == 0)
            return reinterpret_cast<const void *>(attention_tf32<LIMITED, KIND, D, MT, BN>);
        else if constexpr (PASS == 1)
            return reinterpret_cast<const void *>(attention_tf32_dq<LIMITED, KIND, D, MT, BN>);
        else
            return reinterpret_cast<const void *>(attention_tf32_dkv<LIMITED, KIND, D, MT, BN>);
    }
    static unsigned grid(const mz_cu_attention &a) {
        constexpr int BM = 16 * MT * WARPS;
        return static_cast<unsigned>((a.length + BM - 1) / BM * a.batch * (PASS == 2 ? a.kv_heads : a.heads));
    }
};

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
