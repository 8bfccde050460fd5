// These kernels compute the experts' products that the tensor-core kernels refuse, above all FP32 without TF32. They
// take every float dtype and size, and round operands to the compute dtype.
#include "grouped.cuh"
#include "vec.cuh"

namespace {
enum { THREADS = 256, L = 16 };

// A thread's share of an operand's next piece, on its way from global to shared memory. Shared memory holds [L][TILE +
// 4], m or c contiguous.
template <bool CONTIGUOUS, int TILE> struct share {
    static constexpr int VECTORS = TILE * L / THREADS / 4, PITCH = TILE + 4;
    float4 v[VECTORS];

    static __device__ __forceinline__ void place(int i, int &other, int &l) {
        int at = static_cast<int>(threadIdx.x) + i * THREADS;
        other = CONTIGUOUS ? at / (L / 4) : at % (TILE / 4) * 4;
        l = CONTIGUOUS ? at % (L / 4) * 4 : at / (TILE / 4);
    }
    __device__ __forceinline__ void load(const mz_cu_array &x, int64_t from, int pitch, int others, int left, int l0,
                                         int compute, bool vectors) {
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            int other, l;
            place(i, other, l);
            l += l0;
            v[i] = make_float4(0, 0, 0, 0);
            if (other >= others || l >= left)
                continue;
            int64_t at =
                from + (CONTIGUOUS ? static_cast<int64_t>(other) * pitch + l : static_cast<int64_t>(l) * pitch + other);
            if (vectors) {
                v[i] = *reinterpret_cast<const float4 *>(static_cast<const float *>(x.data) + at);
                continue;
            }
            int count = CONTIGUOUS ? left - l : others - other;
            float *e = &v[i].x;
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (k < count)
                    e[k] = round_to(load1(x, at + k), compute);
        }
    }
    __device__ __forceinline__ void store(float *tile) const {
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            int other, l;
            place(i, other, l);
            if (CONTIGUOUS) {
                tile[l * PITCH + other] = v[i].x;
                tile[(l + 1) * PITCH + other] = v[i].y;
                tile[(l + 2) * PITCH + other] = v[i].z;
                tile[(l + 3) * PITCH + other] = v[i].w;
            } else {
                *reinterpret_cast<float4 *>(tile + l * PITCH + other) = v[i];
            }
        }
    }
};

// A thread makes TILE/16 × TILE/16 results: fours, 64 apart, so that a warp's reads of shared memory lie side by side.
template <int OP, int TILE> __global__ void __launch_bounds__(THREADS, 2) grouped_fma_kernel(const mz_cu_grouped g) {
    using layout = grouped_layout<OP>;
    using share_a = share<layout::A_CONTIGUOUS, TILE>;
    using share_b = share<layout::B_CONTIGUOUS, TILE>;
    constexpr int FOURS = TILE / 64, PITCH = TILE + 4;
    __shared__ __align__(16) float shared_a[2][L * PITCH], shared_b[2][L * PITCH];
    const grouped_tile t = grouped_find<OP, TILE>(g);
    if (!t.any)
        return;
    int down = static_cast<int>(threadIdx.x) / 16 * 4, across = static_cast<int>(threadIdx.x) % 16 * 4;
    float sum[FOURS * 4][FOURS * 4] = {};
    share_a next_a;
    share_b next_b;
    next_a.load(g.a, t.a, t.a_row, t.m, t.l, 0, g.compute, g.vectors);
    next_b.load(g.b, t.b, t.b_row, t.c, t.l, 0, g.compute, g.vectors);
    for (int l0 = 0, turn = 0; l0 < t.l; l0 += L, turn ^= 1) {
        next_a.store(shared_a[turn]);
        next_b.store(shared_b[turn]);
        __syncthreads(); // the other turn's readers have all been here
        if (l0 + L < t.l) {
            next_a.load(g.a, t.a, t.a_row, t.m, t.l, l0 + L, g.compute, g.vectors);
            next_b.load(g.b, t.b, t.b_row, t.c, t.l, l0 + L, g.compute, g.vectors);
        }
#pragma unroll
        for (int l = 0; l < L; l++) {
            float a[FOURS * 4], b[FOURS * 4];
#pragma unroll
            for (int f = 0; f < FOURS; f++) {
                *reinterpret_cast<float4 *>(a + 4 * f) =
                    *reinterpret_cast<const float4 *>(&shared_a[turn][l * PITCH + down + 64 * f]);
                *reinterpret_cast<float4 *>(b + 4 * f) =
                    *reinterpret_cast<const float4 *>(&shared_b[turn][l * PITCH + across + 64 * f]);
            }
#pragma unroll
            for (int i = 0; i < FOURS * 4; i++)
#pragma unroll
                for (int j = 0; j < FOURS * 4; j++)
                    sum[i][j] = fmaf(a[i], b[j], sum[i][j]);
        }
    }
#pragma unroll
    for (int i = 0; i < FOURS * 4; i++) {
        int m = down + i % 4 + i / 4 * 64;
        if (m >= t.m)
            continue;
#pragma unroll
        for (int f = 0; f < FOURS; f++) {
            int c = across + f * 64;
            int64_t at = t.out + static_cast<int64_t>(m) * t.out_row + c;
            float *x = &sum[i][4 * f];
            if (g.vectors && g.out.dtype == MEZZO_F32) {
                float4 *to = reinterpret_cast<float4 *>(static_cast<float *>(g.out.data) + at);
                if (c >= t.c)
                    continue;
                float4 there = g.accumulate ? *to : make_float4(0, 0, 0, 0);
                *to = g.accumulate ? make_float4(there.x + x[0], there.y + x[1], there.z + x[2], there.w + x[3])
                                   : make_float4(x[0], x[1], x[2], x[3]);
                continue;
            }
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (c + k < t.c)
                    store1(g.out, at + k, g.accumulate ? load1(g.out, at + k) + x[k] : x[k]);
        }
    }
}
} // namespace

static const char *grouped_fma_prepare(mezzo_device *, const mz_call *call, mz_prepared *) {
    return grouped_refusal(call);
}

static void launch_grouped_fma(const mz_cuda_device *cuda, const mz_call *call) {
    mz_cu_grouped g = grouped_args(cuda, call);
    g.vectors = g.a.dtype == MEZZO_F32 && g.b.dtype == MEZZO_F32 && g.n % 4 == 0 && g.k % 4 == 0 &&
                (g.compute == MEZZO_F32 || g.compute == MEZZO_TF32);
    const bool large = grouped_tiles(g, 128) >= g.sms;
    grouped_for_op(g, [&]<int OP>() {
        return grouped_launch(large ? grouped_fma_kernel<OP, 128> : grouped_fma_kernel<OP, 64>, THREADS, 0,
                              large ? 128 : 64, cuda->stream, g, false);
    });
}
GROUPED_KERNELS(fma, "__cuda_fma", grouped_fma_prepare, enqueue<launch_grouped_fma>)
