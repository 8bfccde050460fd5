// Computes causal attention forward on tensor cores, after Dao, "FlashAttention-2" (2023): a block owns 64·MT queries
// of one head and walks their keys from the diagonal back to 0, keeping the running maximum, sum and output of each row
// in registers. Four warps own 16·MT rows each and share the key and value tiles, of which the next is copied while one
// is used.
#include "attention_mma.cuh"

namespace {

template <int D, int MT, int BN> struct forward_shared { // bytes
    static constexpr int BM = 16 * MT * WARPS;
    static constexpr int Q = BM * tile_pitch(D) * 2;
    static constexpr int TILE = BN * tile_pitch(D) * 2;
    static constexpr int MASK = BM * mask_words(BN); // words
    static constexpr int TOTAL = Q + 4 * TILE, WITH_MASK = TOTAL + 2 * 4 * MASK;
};

template <typename T, bool DROP, bool LIMITED, int D, int MT, int BN>
__global__ void __launch_bounds__(THREADS, MT == 1 && D <= 64 ? 3 : 2)
    attention_forward(const __grid_constant__ mz_cu_attention a) {
    using shared_layout = forward_shared<D, MT, BN>;
    constexpr int BM = shared_layout::BM, PITCH = tile_pitch(D);
    static_assert(BN % (16 * MT) == 0, "no warp has a row whose keys in its first tile are all masked");
    extern __shared__ __align__(16) unsigned char shared[];
    T *tile_q = reinterpret_cast<T *>(shared);                                    // [BM, D]
    T *tile_kv = reinterpret_cast<T *>(shared + shared_layout::Q);                // 2 × (k [BN, D], v [BN, D])
    uint32_t *mask = reinterpret_cast<uint32_t *>(shared + shared_layout::TOTAL); // 2 × [BM, BN]
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
    const int g = lane >> 2, t = lane & 3; // this thread's rows g, g + 8 and columns 2t, 2t + 1 of each 16 × 8 result
    const int blocks = (a.length + BM - 1) / BM;
    const int head = static_cast<int>(blockIdx.x) / blocks;
    const int i0 = (blocks - 1 - static_cast<int>(blockIdx.x) % blocks) * BM; // the longest rows first
    const attention_head s = head_of(a, head / a.heads, head % a.heads);
    const T *q = static_cast<const T *>(a.q) + s.q, *k = static_cast<const T *>(a.k) + s.keys,
            *v = static_cast<const T *>(a.v) + s.keys;
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
    load_tile<T, BM, D>(tile_q, q + i0 * a.q_row, a.q_row, a.length - i0, a.width);
    load_keys(tile, 0);
    copies_commit();

    const float scale = LIMITED ? scale_after(a) : a.scale, scale2 = scale * 1.44269504f; // log2 e
    const int row0 = warp * 16 * MT;                                                      // of this warp, in the block
    const T *my_q = tile_q + row0 * PITCH;
    // A warp of 16 rows has registers to spare for its queries; one of 32 reads them again for every tile.
    constexpr bool KEEP = MT == 1;
    uint32_t kept_q[KEEP ? D / 16 : 1][4];
    bool fresh = true;
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
            draw_mask<BM, BN>(mask + stage * shared_layout::MASK, rule, s.dropout, a.length, i0, j0);
        copies_wait<0>();
        __syncthreads(); // this tile is here, and no thread reads the other stage any more
        if (tile > last)
            load_keys(tile - 1, stage ^ 1);
        copies_commit();
        if (KEEP && fresh) {
#pragma unroll
            for (int kk = 0; kk < D / 16; kk++)
                load_a<T, D>(kept_q[KEEP ? kk : 0], my_q + kk * 16);
            fresh = false;
        }
        if (j0 > i0 + row0 + 16 * MT - 1)
            continue; // all of it is ahead of all of this warp's rows
        if (LIMITED && j0 + BN <= first_of_all)
            continue; // no row of this warp sees any of it
        const T *tile_k = tile_kv + stage * 2 * BN * PITCH, *tile_v = tile_k + BN * PITCH;

        float x[MT][BN / 8][4] = {}; // scores, then probabilities
#pragma unroll
        for (int kk = 0; kk < D / 16; kk++) {
            uint32_t fq[MT][4];
#pragma unroll
            for (int mt = 0; mt < MT; mt++)
                if (KEEP)
                    copy_operand(fq[mt], kept_q[KEEP ? kk : 0]);
                else
                    load_a<T, D>(fq[mt], my_q + mt * 16 * PITCH + kk * 16);
#pragma unroll
            for (int n = 0; n < BN / 16; n++) {
                uint32_t fk[4];
                load_b_rows<T, D>(fk, tile_k + n * 16 * PITCH + kk * 16);
#pragma unroll
                for (int mt = 0; mt < MT; mt++) {
                    multiply<T>(x[mt][2 * n], fq[mt], fk[0], fk[1]);
                    multiply<T>(x[mt][2 * n + 1], fq[mt], fk[2], fk[3]);
                }
            }
        }
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
#pragma unroll
                for (int n = 0; n < BN / 8; n++)
#pragma unroll
                    for (int e = 2 * r; e < 2 * r + 2; e++) {
                        x[mt][n][e] = exp2_fast(fmaf(x[mt][n][e], scale2, -top2));
                        part += x[mt][n][e];
                    }
                sum[mt][r] = sum[mt][r] * shrink + part; // of this thread's columns
#pragma unroll
                for (int n = 0; n < D / 8; n++) {
                    o[mt][n][2 * r] *= shrink;
                    o[mt][n][2 * r + 1] *= shrink;
                }
            }
        if (drop) { // after the sum: dropout acts on normalised probabilities
#pragma unroll
            for (int mt = 0; mt < MT; mt++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const uint32_t *kept =
                        mask + stage * shared_layout::MASK + (row0 + mt * 16 + r * 8 + g) * mask_words(BN);
#pragma unroll
                    for (int n = 0; n < BN / 8; n++) {
                        uint32_t bits = kept[n / 4] >> (2 * t) >> (n % 4 * 8);
                        x[mt][n][2 * r] = bits & 1 ? x[mt][n][2 * r] : 0;
                        x[mt][n][2 * r + 1] = bits & 2 ? x[mt][n][2 * r + 1] : 0;
                    }
                }
        }
#pragma unroll
        for (int kk = 0; kk < BN / 16; kk++) {
            uint32_t p[MT][4];
#pragma unroll
            for (int mt = 0; mt < MT; mt++)
                to_a<T>(p[mt], x[mt][2 * kk], x[mt][2 * kk + 1]);
#pragma unroll
            for (int n = 0; n < D / 16; n++) {
                uint32_t fv[4];
                load_b_columns<T, D>(fv, tile_v + kk * 16 * PITCH + n * 16);
#pragma unroll
                for (int mt = 0; mt < MT; mt++) {
                    multiply<T>(o[mt][2 * n], p[mt], fv[0], fv[1]);
                    multiply<T>(o[mt][2 * n + 1], p[mt], fv[2], fv[3]);
                }
            }
        }
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
    T *y = static_cast<T *>(a.y) + s.y + static_cast<long long>(i0 + row0) * a.heads * a.width;
    store_rows<T, D, MT>(y, static_cast<long long>(a.heads) * a.width, a.length - i0 - row0, a.width,
                         tile_q + row0 * PITCH, o, factor);
}

template <typename T, bool DROP, bool LIMITED, int D, int MT, int BN> struct forward : forward_shared<D, MT, BN> {
    static const void *kernel() {
        return reinterpret_cast<const void *>(attention_forward<T, DROP, LIMITED, D, MT, BN>);
    }
    static unsigned grid(const mz_cu_attention &a) {
        constexpr int BM = forward_shared<D, MT, BN>::BM;
        return static_cast<unsigned>((a.length + BM - 1) / BM * a.batch * a.heads);
    }
};

template <typename T, bool DROP, bool LIMITED>
cudaError_t for_width(cudaStream_t stream, const mz_cu_attention &a, bool prepare) {
    if (a.width <= 32)
        return attention_run<forward<T, DROP, LIMITED, 32, 1, 64>>(prepare, stream, a);
    if (a.width <= 64 && attention_many_blocks(a, a.heads))
        return attention_run<forward<T, DROP, LIMITED, 64, 2, 64>>(prepare, stream, a);
    if (a.width <= 64)
        return attention_run<forward<T, DROP, LIMITED, 64, 1, 64>>(prepare, stream, a);
    if (a.width <= 80)
        return attention_run<forward<T, DROP, LIMITED, 80, 1, 64>>(prepare, stream, a);
    if (a.cc < 80) // 64 KiB of shared memory
        return attention_run<forward<T, DROP, LIMITED, 128, 1, 32>>(prepare, stream, a);
    return attention_run<forward<T, DROP, LIMITED, 128, 2, 32>>(prepare, stream, a);
}

template <typename T> cudaError_t for_rules(cudaStream_t stream, const mz_cu_attention &a, bool prepare) {
    if (a.limited)
        return for_width<T, true, true>(stream, a, prepare);
    return a.p > 0 ? for_width<T, true, false>(stream, a, prepare) : for_width<T, false, false>(stream, a, prepare);
}

} // namespace

cudaError_t mz_cu_attention_mma(cudaStream_t stream, const mz_cu_attention *a, bool prepare) {
    if (a->dtype == MEZZO_BF16)
        return for_rules<__nv_bfloat16>(stream, *a, prepare);
    return a->dtype == MEZZO_F16 ? for_rules<__half>(stream, *a, prepare) : cudaErrorInvalidValue;
}
