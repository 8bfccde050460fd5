// Computes attention backward for Hopper (attention_wgmma.cuh), the second pass: dk and dv. attention_keys.cuh has the
// formulas; scores are keys × queries here as there.
#include "attention_wgmma.cuh"

namespace {
enum { BN = ROWS }; // queries of a tile

template <typename T, int D> struct dkv_layout {            // bytes
    static constexpr int STAGES = 4, OWNS = D > 64 ? 1 : 2; // of the ring; places for what a block owns
    static constexpr int OWN = tile_bytes(BM, D), TILE = tile_bytes(BN, D);
    static constexpr int FETCHED = 2 * TILE + BN * 8; // with two numbers for each query
    static constexpr int STAGE = (FETCHED + TILE_ALIGN - 1) / TILE_ALIGN * TILE_ALIGN;
    static constexpr int AT_STAGES = OWNS * 2 * OWN, AT_BARRIERS = AT_STAGES + STAGES * STAGE;
    static constexpr int TOTAL = AT_BARRIERS + 2 * (STAGES + OWNS) * 8 + TILE_ALIGN;
    static_assert(TOTAL <= 227 * 1024, "shared memory of a block");
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// The query heads of a piece of work: those that share a head of keys, or a part of them.
struct shared_heads {
    int batch, kv, part, first, end;
};
__device__ __forceinline__ shared_heads heads_of(const mz_cu_attention &a, int head) {
    const int group = a.heads / a.kv_heads, part = head % a.parts, kv = head / a.parts % a.kv_heads;
    return {head / a.parts / a.kv_heads, kv, part, kv * group + part * group / a.parts,
            kv * group + (part + 1) * group / a.parts};
}
__device__ __forceinline__ attention_walk walk_keys(const mz_cu_attention &a) {
    return walk_begin((a.length + BM - 1) / BM, a.batch * a.kv_heads * a.parts);
}

template <typename T, int D>
__device__ __forceinline__ void produce(dkv_layout<T, D>, const mz_cu_attention &a, const attention_maps &maps,
                                        const attention_place &at) {
    using layout = dkv_layout<T, D>;
    const int rows = padded(a.length);
    uint32_t own_parity = 1, parity = 1;
    uint32_t turn = 0; // which of the places for what a block owns
    int stage = 0;
    for (attention_walk w = walk_keys(a); walk_find(w); w.turn++) {
        const shared_heads of = heads_of(a, w.head);
        const int b = of.batch, kv = of.kv, j0 = w.rank * BM;
        const uint32_t own = at.own + turn * 2 * layout::OWN, own_full = at.own_full + turn * 8;
        barrier_wait(at.own_empty + turn * 8, own_parity);
        next_own<layout>(turn, own_parity);
        barrier_expect(own_full, 2 * layout::OWN);
        fetch_rows<D>(own, layout::OWN, &maps.k, kv, j0, b, own_full);
        fetch_rows<D>(own + layout::OWN, layout::OWN, &maps.v, kv, j0, b, own_full);
        for (int h = of.first; h < of.end; h++)
            for (int i0 = j0; i0 < a.length; i0 += BN) {
                uint32_t to = at.stages + stage * layout::STAGE, full = at.full + stage * 8;
                barrier_wait(at.empty + stage * 8, parity);
                barrier_expect(full, layout::FETCHED);
                fetch_rows<D>(to, layout::TILE, &maps.q, h, i0, b, full);
                fetch_rows<D>(to + layout::TILE, layout::TILE, &maps.dy, h, i0, b, full);
                fetch_run(to + 2 * layout::TILE, a.delta + 2 * ((static_cast<long long>(b) * a.heads + h) * rows + i0),
                          BN * 8, full);
                if (++stage == layout::STAGES)
                    stage = 0, parity ^= 1;
            }
    }
}

// Returns lse, Δ, lse, Δ of queries 8·n + 2·t and the one after it.
__device__ __forceinline__ float4 stats_of(uint32_t at, int n, int t) {
    float4 s;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(s.x), "=f"(s.y), "=f"(s.z), "=f"(s.w)
                 : "r"(at + n * 64 + t * 16));
    return s;
}

// Stores rows g and g + 8 of a warp's 16 of a part's sums, as they are.
template <int D>
__device__ __forceinline__ void store_sums(float *to, const mz_cu_attention &a, int count, const float (&x)[D / 8][4],
                                           float scale) {
    const int lane = static_cast<int>(threadIdx.x) & 31, g = lane >> 2, t = lane & 3;
    const long long stride = static_cast<long long>(a.kv_heads) * a.width;
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            if (g + r * 8 < count && n * 8 < a.width)
                *reinterpret_cast<float2 *>(to + (g + r * 8) * stride + n * 8 + 2 * t) =
                    make_float2(x[n][2 * r] * scale, x[n][2 * r + 1] * scale);
}

template <typename T, int D>
__device__ __forceinline__ void consume(dkv_layout<T, D>, const mz_cu_attention &a, const attention_place &at) {
    using layout = dkv_layout<T, D>;
    const int thread = static_cast<int>(threadIdx.x) - WARPGROUP, lane = thread & 31, g = lane >> 2, t = lane & 3;
    const int group = group_of(thread), first = thread / 32 * 16; // the warp's first key of the block's
    constexpr int AHEAD = D <= 64;              // the next tile's scores are asked for before this one's dS is made
    const float scale2 = a.scale * 1.44269504f; // log2 e
    uint32_t own_parity = 0, parity = 0;
    uint32_t turn = 0; // which of the places for what a block owns
    int stage = 0;
    for (attention_walk w = walk_keys(a); walk_find(w); w.turn++) {
        const shared_heads of = heads_of(a, w.head);
        const int j0 = w.rank * BM;
        const uint32_t own = at.own + turn * 2 * layout::OWN, own_empty = at.own_empty + turn * 8;
        const uint32_t own_k = own + group * ROWS * 128, own_v = own_k + layout::OWN;
        barrier_wait(at.own_full + turn * 8, own_parity);
        next_own<layout>(turn, own_parity);
        float dk[D / 8][4] = {}, dv[D / 8][4] = {};
        // Scores, then p, then dS, of this tile; of the next, where registers suffice for both; dy·v.
        float x[1 + AHEAD][BN / 8][4], dp[BN / 8][4];
        int before = -1; // stage of the tile before this one
        for (int head = of.first; head < of.end; head++) {
            int i0 = j0;
            for (; i0 < a.length && i0 + BN <= j0 + group * ROWS; i0 += BN) { // before all of the warpgroup's keys
                barrier_wait(at.full + stage * 8, parity);
                warp_arrive(at.empty + stage * 8);
                if (++stage == layout::STAGES)
                    stage = 0, parity ^= 1;
            }
            if (i0 >= a.length)
                continue;
            barrier_wait(at.full + stage * 8, parity);
            wgmma_begin();
            multiply_rows<T, D>(x[0], own_k, BM, at.stages + stage * layout::STAGE);
            wgmma_commit();
            multiply_rows<T, D>(dp, own_v, BM, at.stages + stage * layout::STAGE + layout::TILE);
            wgmma_commit();
            wgmma_wait<1>();
            settle(x[0]);
            // x is there, dp under way, and before it the last tile's dk.
            auto step = [&](auto continues, float(&x)[BN / 8][4], float(&next)[BN / 8][4]) {
                constexpr bool more = decltype(continues)::value;
                const uint32_t tile_q = at.stages + stage * layout::STAGE, tile_dy = tile_q + layout::TILE,
                               stats = tile_dy + layout::TILE;
                const int now = stage;
                if (i0 < j0 + first + 15) {
#pragma unroll
                    for (int m = 0; m < BN / 8; m++)
#pragma unroll
                        for (int e = 0; e < 4; e++)
                            if (j0 + first + g + (e >> 1) * 8 > i0 + m * 8 + 2 * t + (e & 1))
                                x[m][e] = -INFINITY;
                }
                float delta[BN / 8][2];
#pragma unroll
                for (int m = 0; m < BN / 8; m++) {
                    float4 s = stats_of(stats, m, t);
                    if constexpr (AHEAD) {
                        delta[m][0] = s.y;
                        delta[m][1] = s.w;
                    }
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        x[m][e] = exp2_fast(fmaf(x[m][e], scale2, e & 1 ? -s.z : -s.x));
                }
                uint32_t p[BN / 16][4];
                to_left<T>(p, x);
                if (++stage == layout::STAGES)
                    stage = 0, parity ^= 1;
                const uint32_t next_q = at.stages + stage * layout::STAGE;
                if constexpr (more)
                    barrier_wait(at.full + stage * 8, parity);
                wgmma_begin();
                multiply_columns<T, D>(dv, p, tile_dy);
                wgmma_commit();
                if constexpr (more && AHEAD) {
                    multiply_rows<T, D>(next, own_k, BM, next_q);
                    wgmma_commit();
                }
                wgmma_wait<AHEAD ? 1 + more : 0>();
                settle(dp);
                if (before >= 0 && lane == 0)
                    barrier_arrive(at.empty + before * 8); // of the tile before: dk has it
                before = now;
#pragma unroll
                for (int m = 0; m < BN / 8; m++) {
                    if constexpr (!AHEAD) {
                        float4 s = stats_of(stats, m, t);
                        delta[m][0] = s.y;
                        delta[m][1] = s.w;
                    }
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        x[m][e] *= dp[m][e] - delta[m][e & 1];
                }
                uint32_t ds[BN / 16][4];
                to_left<T>(ds, x);
                wgmma_begin();
                multiply_columns<T, D>(dk, ds, tile_q);
                wgmma_commit();
                if constexpr (more && !AHEAD) {
                    multiply_rows<T, D>(next, own_k, BM, next_q);
                    wgmma_commit();
                }
                if constexpr (more) {
                    multiply_rows<T, D>(dp, own_v, BM, next_q + layout::TILE);
                    wgmma_commit();
                    wgmma_wait<AHEAD ? 2 : 1>();
                    settle(next);
                }
            };
            while (true) {
                if (i0 + BN >= a.length) {
                    step(std::false_type(), x[0], x[AHEAD]);
                    break;
                }
                step(std::true_type(), x[0], x[AHEAD]);
                i0 += BN;
                if constexpr (AHEAD) {
                    if (i0 + BN >= a.length) {
                        step(std::false_type(), x[1], x[0]);
                        break;
                    }
                    step(std::true_type(), x[1], x[0]);
                    i0 += BN;
                }
            }
        }
        wgmma_wait<0>();
        settle(dk);
        settle(dv);
        if (before >= 0) // else none of the queries sees the warpgroup's keys
            warp_arrive(at.empty + before * 8);
        warp_arrive(own_empty);
        const int count = a.length - j0 - first;
        const long long row = static_cast<long long>(of.batch) * a.length + j0 + first;
        if (a.parts > 1) {
            const long long one = static_cast<long long>(a.batch) * a.length * a.kv_heads * a.width;
            float *sums = a.sums + of.part * one + (row * a.kv_heads + of.kv) * a.width;
            store_sums<D>(sums, a, count, dk, a.scale);
            store_sums<D>(sums + a.parts * one, a, count, dv, 1);
            continue;
        }
        const long long to = row * a.kv_row + of.kv * a.width;
        store_results<T, D>(static_cast<T *>(a.dk) + to, a.kv_row, count, a.width, dk, a.scale);
        store_results<T, D>(static_cast<T *>(a.dv) + to, a.kv_row, count, a.width, dv, 1);
    }
}
#endif

// Adds the parts of four neighbours of dk (y = 0) or dv, in their order.
template <typename T> __global__ void __launch_bounds__(256) add_parts_kernel(const mz_cu_attention a) {
    wait_for_before();
    const long long width = static_cast<long long>(a.kv_heads) * a.width, one = width * a.batch * a.length;
    const long long at = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) * 4;
    if (at >= one)
        return;
    const float *from = a.sums + blockIdx.y * a.parts * one + at;
    float4 sum = *reinterpret_cast<const float4 *>(from);
    for (int part = 1; part < a.parts; part++) {
        const float4 x = *reinterpret_cast<const float4 *>(from + part * one);
        sum = make_float4(sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w);
    }
    T *to = static_cast<T *>(blockIdx.y == 0 ? a.dk : a.dv) + at / width * a.kv_row + at % width;
    *reinterpret_cast<uint2 *>(to) = make_uint2(pack<T>(sum.x, sum.y), pack<T>(sum.z, sum.w));
}

template <typename T, int D> struct dkv_pass {
    static cudaError_t run(cudaStream_t stream, const mz_cu_attention &a, bool prepare) {
        const cudaError_t error = run_pass<dkv_layout<T, D>>(stream, a, prepare, a.kv_heads * a.parts, BN, BM);
        if (error != cudaSuccess || prepare || a.parts == 1)
            return error;
        const long long quads = static_cast<long long>(a.batch) * a.length * a.kv_heads * a.width / 4;
        return launch_dependent(stream, add_parts_kernel<T>, dim3(static_cast<unsigned>((quads + 255) / 256), 2),
                                dim3(256), 0, a);
    }
};
} // namespace

extern "C" cudaError_t mz_cu_attention_wgmma_dkv(cudaStream_t stream, const mz_cu_attention *a, bool prepare) {
    return run_pass_of<dkv_pass>(stream, *a, prepare);
}
