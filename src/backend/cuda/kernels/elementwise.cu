// Runs ops on one element at a time. One kernel an op; dtypes are looked at per 8 elements (vec.cuh).
#include "element.cuh"
#include "philox.cuh"
#include "vec.cuh"

// A thread moves UNROLL vectors of 8 elements, a block's width apart: enough bytes in flight at full occupancy.
enum { THREADS = 256, UNROLL = 2, BLOCK_ELEMENTS = THREADS * UNROLL * 8 };

static unsigned blocks_for(int64_t n) {
    return static_cast<unsigned>((n + BLOCK_ELEMENTS - 1) / BLOCK_ELEMENTS);
}

// --- one input -----------------------------------------------------------------------------------------------------
template <class ELEMENT>
__global__ void __launch_bounds__(THREADS) map_kernel(mz_cu_array x, mz_cu_array y, int64_t n, mz_cu_told told) {
    int64_t first = (static_cast<int64_t>(blockIdx.x) * UNROLL * THREADS + threadIdx.x) * 8;
    raw8 raw[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
        if (first + u * THREADS * 8 + 8 <= n)
            raw[u] = fetch8(x.data, x.dtype, first + u * THREADS * 8);
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        int64_t i = first + u * THREADS * 8;
        float v[8];
        if (i + 8 <= n) {
            widen8(raw[u], x.dtype, v);
#pragma unroll
            for (int k = 0; k < 8; k++)
                v[k] = ELEMENT::of(v[k], 0, 0, told);
            store8(y.data, y.dtype, i, v);
        } else {
            for (; i < n; i++)
                store1(y.data, y.dtype, i, ELEMENT::of(load1(x.data, x.dtype, i), 0, 0, told));
        }
    }
}

extern "C" cudaError_t mz_cu_map(cudaStream_t stream, int map, mz_cu_array x, mz_cu_array y, int64_t n,
                                 mz_cu_told told) {
    if (n == 0)
        return cudaSuccess;
    switch (map) {
#define CASE(name)                                                                                                     \
    case MZ_CU_##name:                                                                                                 \
        map_kernel<element_##name><<<blocks_for(n), THREADS, 0, stream>>>(x, y, n, told);                              \
        break;
#define KERNEL1(name, ...) CASE(name)
#define KERNEL2(...)
#define KERNEL3(...)
#include "graph/element.def"
        CASE(GELU)
        CASE(GELU_TANH)
        CASE(CAST)
#undef CASE
    default:
        return cudaErrorInvalidValue;
    }
    return cudaGetLastError();
}

// --- dropout -------------------------------------------------------------------------------------------------------
// A dropped infinity is 0, not NaN: a choice and not a product.
__device__ __forceinline__ float dropped(float factor, float x) {
    return factor == 0 ? 0 : factor * x;
}

__global__ void __launch_bounds__(THREADS)
    dropout_kernel(mz_cu_array x, mz_cu_array y, int64_t n, float p, float kept, uint32_t tensor, const void *rng) {
    philox_key key = philox_key_of(rng, tensor);
    int64_t first = (static_cast<int64_t>(blockIdx.x) * UNROLL * THREADS + threadIdx.x) * 8;
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        int64_t i = first + u * THREADS * 8;
        if (i >= n)
            return;
        float4 a = dropout_factors(key, static_cast<uint64_t>(i) >> 2, p, kept);
        float4 b = dropout_factors(key, (static_cast<uint64_t>(i) >> 2) + 1, p, kept);
        const float factor[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        float v[8];
        if (i + 8 <= n) {
            load8(x.data, x.dtype, i, v);
#pragma unroll
            for (int k = 0; k < 8; k++)
                v[k] = dropped(factor[k], v[k]);
            store8(y.data, y.dtype, i, v);
        } else {
#pragma unroll
            for (int k = 0; k < 8; k++)
                if (i + k < n)
                    store1(y.data, y.dtype, i + k, dropped(factor[k], load1(x.data, x.dtype, i + k)));
        }
    }
}

extern "C" cudaError_t mz_cu_dropout(cudaStream_t stream, mz_cu_array x, mz_cu_array y, int64_t n, float p,
                                     uint32_t tensor, const void *rng) {
    if (p == 0) // factor 1 everywhere
        return mz_cu_map(stream, MZ_CU_CAST, x, y, n, mz_cu_told{});
    if (n == 0)
        return cudaSuccess;
    float kept = static_cast<float>(1 / (1 - static_cast<double>(p)));
    dropout_kernel<<<blocks_for(n), THREADS, 0, stream>>>(x, y, n, p, kept, tensor, rng);
    return cudaGetLastError();
}

// --- two inputs ----------------------------------------------------------------------------------------------------
// How b's elements repeat: not at all, every nb elements with nb a multiple of 8, or however it comes.
enum { REPEAT_NONE, REPEAT_VECTORS, REPEAT_ANY };

template <class ELEMENT>
__global__ void __launch_bounds__(THREADS)
    zip_kernel(mz_cu_array a, mz_cu_array b, mz_cu_array y, int64_t n, int64_t nb, int repeat, mz_cu_told told) {
    int64_t first = (static_cast<int64_t>(blockIdx.x) * UNROLL * THREADS + threadIdx.x) * 8;
    raw8 raw_a[UNROLL], raw_b[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        int64_t i = first + u * THREADS * 8;
        if (i + 8 > n || repeat == REPEAT_ANY)
            continue;
        int64_t j = i;
        if (repeat == REPEAT_VECTORS) // n / 8 < 2^32: the launcher sees to it
            j = static_cast<int64_t>(static_cast<uint32_t>(i >> 3) % static_cast<uint32_t>(nb >> 3)) << 3;
        raw_a[u] = fetch8(a.data, a.dtype, i);
        raw_b[u] = fetch8(b.data, b.dtype, j);
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        int64_t i = first + u * THREADS * 8;
        float v[8], w[8];
        if (i + 8 <= n && repeat != REPEAT_ANY) {
            widen8(raw_a[u], a.dtype, v);
            widen8(raw_b[u], b.dtype, w);
#pragma unroll
            for (int k = 0; k < 8; k++)
                v[k] = ELEMENT::of(v[k], w[k], 0, told);
            store8(y.data, y.dtype, i, v);
        } else {
            int64_t end = i + 8 < n ? i + 8 : n;
            for (; i < end; i++)
                store1(y.data, y.dtype, i,
                       ELEMENT::of(load1(a.data, a.dtype, i), load1(b.data, b.dtype, nb == n ? i : i % nb), 0, told));
        }
    }
}

// These macros list the ops that zip_kernel and repeats_kernel serve: element.def's that a fused kernel's speed is for.
#define CASE(name, ...)                                                                                                \
    case MZ_CU_##name:                                                                                                 \
        zip_kernel<element_##name><<<blocks_for(n), THREADS, 0, stream>>>(a, b, y, n, nb, repeat, told);               \
        break;
extern "C" cudaError_t mz_cu_zip(cudaStream_t stream, int zip, mz_cu_array a, mz_cu_array b, mz_cu_array y, int64_t n,
                                 int64_t nb, mz_cu_told told) {
    if (n == 0)
        return cudaSuccess;
    int repeat = nb == n ? REPEAT_NONE : nb % 8 == 0 && n >> 35 == 0 ? REPEAT_VECTORS : REPEAT_ANY;
    switch (zip) {
#define UNARY(name, ...) CASE(name##_dx)
#define UNARY_OWN(...)
#define UNARY_FLAT(...)
#define BINARY(...)
#define BINARY_OWN(name, ...) CASE(name)
#define COMPARE(...)
#define TERNARY(...)
#include "graph/element.def"
        CASE(GELU_DX)
        CASE(GELU_TANH_DX)
    default:
        return cudaErrorInvalidValue;
    }
    return cudaGetLastError();
}
#undef CASE

// Either operand may repeat. `step` is 8 where the innermost loop is whole vectors (its strides are 0 or 1, and all
// others then are multiples of 8), else 1.
template <int STEP>
__device__ __forceinline__ void load_repeated(mz_cu_array x, int64_t at, bool repeats, float v[STEP]) {
    if (STEP == 8 && !repeats) {
        load8(x.data, x.dtype, at, v);
        return;
    }
    float one = load1(x.data, x.dtype, at);
#pragma unroll
    for (int k = 0; k < STEP; k++)
        v[k] = one;
}

template <class ELEMENT, int STEP>
__global__ void __launch_bounds__(THREADS)
    repeats_kernel(mz_cu_array a, mz_cu_array b, mz_cu_array y, mz_cu_broadcast r, int64_t n) {
    for (int64_t i = (static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x) * STEP; i < n;
         i += static_cast<int64_t>(gridDim.x) * THREADS * STEP) {
        int64_t rest = i, at_a = 0, at_b = 0;
        for (int d = r.rank - 1; d >= 0; d--) {
            int64_t next = rest / r.dim[d], k = rest - next * r.dim[d];
            at_a += k * r.step[0][d];
            at_b += k * r.step[1][d];
            rest = next;
        }
        float v[STEP], w[STEP];
        load_repeated<STEP>(a, at_a, r.step[0][r.rank - 1] == 0, v);
        load_repeated<STEP>(b, at_b, r.step[1][r.rank - 1] == 0, w);
#pragma unroll
        for (int k = 0; k < STEP; k++)
            v[k] = ELEMENT::of(v[k], w[k], 0, mz_cu_told{});
        if (STEP == 8)
            store8(y.data, y.dtype, i, v);
        else
            store1(y.data, y.dtype, i, v[0]);
    }
}

template <class ELEMENT>
static cudaError_t launch_repeats(cudaStream_t stream, mz_cu_array a, mz_cu_array b, mz_cu_array y,
                                  const mz_cu_broadcast *r) {
    int64_t n = 1;
    for (int d = 0; d < r->rank; d++)
        n *= r->dim[d];
    if (n == 0)
        return cudaSuccess;
    bool vectors = r->dim[r->rank - 1] % 8 == 0;
    int64_t blocks = (n / (vectors ? 8 : 1) + THREADS - 1) / THREADS;
    unsigned grid = static_cast<unsigned>(blocks < 1 << 20 ? blocks : 1 << 20);
    if (vectors)
        repeats_kernel<ELEMENT, 8><<<grid, THREADS, 0, stream>>>(a, b, y, *r, n);
    else
        repeats_kernel<ELEMENT, 1><<<grid, THREADS, 0, stream>>>(a, b, y, *r, n);
    return cudaGetLastError();
}

extern "C" cudaError_t mz_cu_zip_broadcast(cudaStream_t stream, int zip, mz_cu_array a, mz_cu_array b, mz_cu_array y,
                                           const mz_cu_broadcast *repeats) {
    switch (zip) {
#define UNARY(...)
#define UNARY_OWN(...)
#define UNARY_FLAT(...)
#define BINARY(...)
#define BINARY_OWN(name, ...)                                                                                          \
    case MZ_CU_##name:                                                                                                 \
        return launch_repeats<element_##name>(stream, a, b, y, repeats);
#define COMPARE(...)
#define TERNARY(...)
#include "graph/element.def"
    default:
        return cudaErrorInvalidValue;
    }
}
