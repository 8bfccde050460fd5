// Computes attention backward for Hopper (attention_wgmma.cuh), the first of two passes: Δ and dq.
// attention_queries.cuh has the formulas.
#include "attention_wgmma.cuh"

namespace {
enum { BN = ROWS }; // keys of a tile

template <typename T, int D> struct dq_layout {             // bytes
    static constexpr int STAGES = D > 64 ? 3 : 4, OWNS = 2; // of the ring; places for what a block owns
    static constexpr bool OWNS_Y = D <= 64;                 // beside q and dy; else y comes through the ring
    static constexpr int OWN = tile_bytes(BM, D), TILE = tile_bytes(BN, D), STAGE = 2 * TILE;
    static constexpr int OWNED = (OWNS_Y ? 3 : 2) * OWN;
    static constexpr int AT_STAGES = OWNS * OWNED, AT_BARRIERS = AT_STAGES + STAGES * STAGE;
    static constexpr int TOTAL = AT_BARRIERS + 2 * (STAGES + OWNS) * 8 + TILE_ALIGN;
    static_assert(STAGE == OWN, "y fits a stage of the ring");
    static_assert(TOTAL <= 227 * 1024, "shared memory of a block");
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
template <typename T, int D>
__device__ __forceinline__ void produce(dq_layout<T, D>, const mz_cu_attention &a, const attention_maps &maps,
                                        const attention_place &at) {
    using layout = dq_layout<T, D>;
    uint32_t own_parity = 1, parity = 1;
    uint32_t turn = 0; // which of the places for what a block owns
    int stage = 0;
    for (attention_walk w = walk_begin((padded(a.length) + BM - 1) / BM, a.batch * a.heads); walk_find(w); w.turn++) {
        int head = w.head, b = head / a.heads, h = head % a.heads, kv = h / (a.heads / a.kv_heads);
        int i0 = padded(a.length) - (w.rank + 1) * BM, tile = min((i0 + BM - 1) / BN, (a.length - 1) / BN);
        const uint32_t own = at.own + turn * layout::OWNED, own_full = at.own_full + turn * 8;
        barrier_wait(at.own_empty + turn * 8, own_parity);
        next_own<layout>(turn, own_parity);
        barrier_expect(own_full, layout::OWNED);
        fetch_rows<D>(own, layout::OWN, &maps.q, h, i0, b, own_full);
        fetch_rows<D>(own + layout::OWN, layout::OWN, &maps.dy, h, i0, b, own_full);
        if constexpr (layout::OWNS_Y)
            fetch_rows<D>(own + 2 * layout::OWN, layout::OWN, &maps.y, h, i0, b, own_full);
        for (bool is_y = !layout::OWNS_Y; tile >= 0; tile -= !is_y, is_y = false) { // y, which is read once, first
            uint32_t to = at.stages + stage * layout::STAGE, full = at.full + stage * 8;
            barrier_wait(at.empty + stage * 8, parity);
            barrier_expect(full, layout::STAGE);
            if (is_y) {
                fetch_rows<D>(to, layout::OWN, &maps.y, h, i0, b, full);
            } else {
                fetch_rows<D>(to, layout::TILE, &maps.k, kv, tile * BN, b, full);
                fetch_rows<D>(to + layout::TILE, layout::TILE, &maps.v, kv, tile * BN, b, full);
            }
            if (++stage == layout::STAGES)
                stage = 0, parity ^= 1;
        }
    }
}

// Δ of rows g and g + 8: the four threads of a row have 2 columns of 8 each.
template <typename T, int D>
__device__ __forceinline__ void row_products(float (&delta)[2], const uint32_t (&dy)[D / 16][4],
                                             const uint32_t (&y)[D / 16][4]) {
    delta[0] = delta[1] = 0;
#pragma unroll
    for (int k = 0; k < D / 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            T one[2], two[2];
            memcpy(one, &dy[k][i], 4);
            memcpy(two, &y[k][i], 4);
            delta[i & 1] = fmaf(static_cast<float>(one[0]), static_cast<float>(two[0]), delta[i & 1]);
            delta[i & 1] = fmaf(static_cast<float>(one[1]), static_cast<float>(two[1]), delta[i & 1]);
        }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        delta[r] += __shfl_xor_sync(0xffffffffu, delta[r], 1);
        delta[r] += __shfl_xor_sync(0xffffffffu, delta[r], 2);
    }
}

template <typename T, int D>
__device__ __forceinline__ void consume(dq_layout<T, D>, const mz_cu_attention &a, const attention_place &at) {
    using layout = dq_layout<T, D>;
    const int thread = static_cast<int>(threadIdx.x) - WARPGROUP, lane = thread & 31, g = lane >> 2, t = lane & 3;
    const int group = group_of(thread), first = thread / 32 * 16; // the warp's first row of the block's
    const float scale2 = a.scale * 1.44269504f;                   // log2 e
    uint32_t own_parity = 0, parity = 0;
    uint32_t turn = 0; // which of the places for what a block owns
    int stage = 0;
    for (attention_walk w = walk_begin((padded(a.length) + BM - 1) / BM, a.batch * a.heads); walk_find(w); w.turn++) {
        const int head = w.head, b = head / a.heads, h = head % a.heads, i0 = padded(a.length) - (w.rank + 1) * BM;
        const int last = i0 + group * ROWS + ROWS - 1; // the warpgroup's last row
        float lse2[2], delta[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = i0 + first + g + r * 8;
            lse2[r] = static_cast<unsigned>(row) < static_cast<unsigned>(a.length)
                          ? a.lse[static_cast<long long>(head) * a.length + row] * 1.44269504f
                          : INFINITY;
        }
        const uint32_t own = at.own + turn * layout::OWNED, own_empty = at.own_empty + turn * 8;
        const uint32_t own_q = own + group * ROWS * 128, own_dy = own_q + layout::OWN;
        barrier_wait(at.own_full + turn * 8, own_parity);
        next_own<layout>(turn, own_parity);
        {
            uint32_t dy[D / 16][4], y[D / 16][4];
            load_left<D>(dy, own + layout::OWN, BM, first);
            if constexpr (layout::OWNS_Y) {
                load_left<D>(y, own + 2 * layout::OWN, BM, first);
                row_products<T, D>(delta, dy, y);
            } else {
                barrier_wait(at.full + stage * 8, parity);
                load_left<D>(y, at.stages + stage * layout::STAGE, BM, first);
                row_products<T, D>(delta, dy, y);
                async_fence();
                warp_arrive(at.empty + stage * 8);
                if (++stage == layout::STAGES)
                    stage = 0, parity ^= 1;
            }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = i0 + first + g + r * 8, rows = padded(a.length);
            if (t == 0 && row >= 0 && row < rows)
                reinterpret_cast<float2 *>(a.delta)[static_cast<long long>(head) * rows + row] =
                    make_float2(lse2[r], delta[r]);
        }
        float dq[D / 8][4] = {};
        uint32_t ahead = 0; // barrier of the stage that dq's product still reads
        for (int tile = min((i0 + BM - 1) / BN, (a.length - 1) / BN); tile >= 0; tile--) {
            const uint32_t tile_k = at.stages + stage * layout::STAGE, empty = at.empty + stage * 8;
            const int j0 = tile * BN;
            barrier_wait(at.full + stage * 8, parity);
            if (++stage == layout::STAGES)
                stage = 0, parity ^= 1;
            if (j0 > last) {
                warp_arrive(empty);
                continue;
            }
            float x[BN / 8][4], dp[BN / 8][4]; // scores, then p, then dS; dy·v
            wgmma_begin();
            multiply_rows<T, D>(x, own_q, BM, tile_k);
            wgmma_commit();
            multiply_rows<T, D>(dp, own_dy, BM, tile_k + layout::TILE);
            wgmma_commit();
            wgmma_wait<2>();
            if (ahead != 0)
                warp_arrive(ahead);
            ahead = empty;
            wgmma_wait<1>();
            settle(x);
            if (j0 + BN - 1 > i0 + first) { // in a branch, so that dp's products are not waited for before
#pragma unroll
                for (int n = 0; n < BN / 8; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        float p = exp2_fast(fmaf(x[n][e], scale2, -lse2[e >> 1]));
                        x[n][e] = j0 + n * 8 + 2 * t + (e & 1) > i0 + first + g + (e >> 1) * 8 ? 0 : p;
                    }
            } else {
#pragma unroll
                for (int n = 0; n < BN / 8; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        x[n][e] = exp2_fast(fmaf(x[n][e], scale2, -lse2[e >> 1]));
            }
            wgmma_wait<0>();
            settle(dp);
#pragma unroll
            for (int n = 0; n < BN / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    x[n][e] *= dp[n][e] - delta[e >> 1];
            uint32_t ds[BN / 16][4];
            to_left<T>(ds, x);
            wgmma_begin();
            multiply_columns<T, D>(dq, ds, tile_k);
            wgmma_commit();
        }
        wgmma_wait<0>();
        settle(dq);
        if (ahead != 0)
            warp_arrive(ahead);
        warp_arrive(own_empty);
        const long long at_row = static_cast<long long>(b) * a.length + i0 + first;
        if (last >= 0)
            store_results<T, D>(static_cast<T *>(a.dq) + at_row * a.q_row + h * a.width, a.q_row, a.length - i0 - first,
                                a.width, dq, a.scale);
    }
}
#endif

template <typename T, int D> struct dq_pass {
    static cudaError_t run(cudaStream_t stream, const mz_cu_attention &a, bool prepare) {
        return run_pass<dq_layout<T, D>>(stream, a, prepare, a.heads, BM, BN);
    }
};
} // namespace

extern "C" cudaError_t mz_cu_attention_wgmma_dq(cudaStream_t stream, const mz_cu_attention *a, bool prepare) {
    return run_pass_of<dq_pass>(stream, *a, prepare);
}
