// Keeps a row in registers: T threads (a warp, or a block) hold V vectors of 8 columns each; thread t's vector v is
// columns (v·T + t)·8 … + 7. Columns past the width are 0. Rows whose width is not a multiple of 8 are read one element
// at a time.
#ifndef MZ_ROWS_CUH
#define MZ_ROWS_CUH

#include "host.cuh"
#include "vec.cuh"

enum { WARP = 32, ROW_BLOCK = 256, WARPS_A_BLOCK = 4 }; // rows to a warp: WARPS_A_BLOCK rows a block

template <int T> struct row_threads {
    static constexpr int block = T == WARP ? WARP * WARPS_A_BLOCK : T;
    static constexpr int rows = block / T; // a block's rows at a time
};

// Launches a kernel that has T threads for each of the rows; with no rows nothing.
template <int T, class... P, class... A>
void launch_rows(const mz_cuda_device *cuda, void (*kernel)(P...), int64_t rows, const A &...args) {
    if (rows > 0)
        kernel<<<blocks_of(rows, row_threads<T>::rows), row_threads<T>::block, 0, cuda->stream>>>(args...);
}

template <int T> __device__ __forceinline__ int row_lane() {
    return threadIdx.x % T;
}

template <int T> __device__ __forceinline__ int row_in_block() {
    return threadIdx.x / T;
}

// The same bits in every lane: each step adds the same two numbers in both.
template <class X> __device__ __forceinline__ X warp_sum(X x) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1)
        x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
    return x;
}

// Σ x of a block's threads, by merge(sum, x), in its first thread: a warp's in a tree, then the warps' in order.
template <int BLOCK, class X, class F> __device__ __forceinline__ X block_merge(X x, F merge) {
    static_assert(sizeof(X) % sizeof(uint32_t) == 0, "lanes exchange words");
    __shared__ X shared[BLOCK / WARP];
#pragma unroll
    for (int step = WARP / 2; step > 0; step >>= 1) {
        uint32_t words[sizeof(X) / sizeof(uint32_t)];
        X other;
        memcpy(words, &x, sizeof x);
        for_each<sizeof(X) / sizeof(uint32_t)>([&](int w) { words[w] = __shfl_xor_sync(0xFFFFFFFFu, words[w], step); });
        memcpy(&other, words, sizeof x);
        merge(x, other);
    }
    if (threadIdx.x % WARP == 0)
        shared[threadIdx.x / WARP] = x;
    __syncthreads();
    for (int w = 1; threadIdx.x == 0 && w < BLOCK / WARP; w++)
        merge(x, shared[w]);
    return x;
}

// The sum over the lanes up to this one.
__device__ __forceinline__ int warp_scan(int x) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int step = 1; step < WARP; step <<= 1) {
        int other = __shfl_up_sync(0xFFFFFFFFu, x, step);
        x += lane >= step ? other : 0;
    }
    return x;
}

// Sorting by counts: the place of a lane's item, of kind `kind` (-1: it has none), among those of its kind. `next` has
// the warp's next place of each kind.
__device__ __forceinline__ int take_place(int *next, int kind) {
    const unsigned same = __match_any_sync(0xFFFFFFFFu, kind);
    const int rank = __popc(same & ((1u << threadIdx.x % WARP) - 1)), place = kind >= 0 ? next[kind] + rank : 0;
    __syncwarp();
    if (kind >= 0 && rank == 0)
        next[kind] += __popc(same);
    __syncwarp();
    return place;
}

// Σ term(p), p < parts, of a block's COLUMNS columns: SHARES threads a column, each a strided share in order, then the
// shares in order. The first share's threads have it.
template <int COLUMNS, int SHARES, int UNROLL, class P, class F>
__device__ __forceinline__ float sum_shares(bool inside, P parts, F term) {
    __shared__ float shares[SHARES][COLUMNS];
    float sum = 0;
    if (inside)
#pragma unroll UNROLL
        for (P p = threadIdx.y; p < parts; p += SHARES)
            sum += term(p);
    shares[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || !inside)
        return 0;
    sum = 0;
#pragma unroll
    for (int s = 0; s < SHARES; s++)
        sum += shares[s][threadIdx.x];
    return sum;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int step = 16; step > 0; step >>= 1)
        x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, step));
    return x;
}

// The row's sum in every one of its threads. `shared`: a float for each of the block's warps, this reduction's own; a
// block of several rows of more than a warp must get here with all of them.
template <int T> __device__ __forceinline__ float row_sum(float x, float *shared) {
    x = warp_sum(x);
    if (T == WARP)
        return x;
    if (threadIdx.x % WARP == 0)
        shared[threadIdx.x / WARP] = x;
    __syncthreads();
    float sum = 0;
#pragma unroll
    for (int w = 0; w < T / WARP; w++)
        sum += shared[row_in_block<T>() * (T / WARP) + w];
    return sum;
}

template <int T> __device__ __forceinline__ float row_max(float x, float *shared) {
    x = warp_max(x);
    if (T == WARP)
        return x;
    if (threadIdx.x % WARP == 0)
        shared[threadIdx.x / WARP] = x;
    __syncthreads();
    float max = shared[0];
#pragma unroll
    for (int w = 1; w < T / WARP; w++)
        max = fmaxf(max, shared[w]);
    return max;
}

template <int T> __device__ __forceinline__ int row_column(int v) {
    return (v * T + row_lane<T>()) * 8;
}

// Starts loading a row; widened by row_widen once something else has been started too.
template <int T, int V>
__device__ __forceinline__ void row_fetch(raw8 raw[V], mz_cu_array a, int64_t start, int width) {
#pragma unroll
    for (int v = 0; v < V; v++) {
        int c = row_column<T>(v);
        if (width % 8 == 0) {
            if (c < width)
                raw[v] = fetch8(a, start + c);
            else
                raw[v].lo = raw[v].hi = make_uint4(0, 0, 0, 0);
        } else {
            uint32_t w[8]; // as FP32, whatever the storage
#pragma unroll
            for (int k = 0; k < 8; k++)
                w[k] = c + k < width ? __float_as_uint(load1(a, start + c + k)) : 0;
            raw[v].lo = make_uint4(w[0], w[1], w[2], w[3]);
            raw[v].hi = make_uint4(w[4], w[5], w[6], w[7]);
        }
    }
}

template <int V> __device__ __forceinline__ void row_widen(const raw8 raw[V], int dtype, int width, float x[V][8]) {
#pragma unroll
    for (int v = 0; v < V; v++)
        widen8(raw[v], width % 8 == 0 ? dtype : MEZZO_F32, x[v]);
}

template <int T, int V>
__device__ __forceinline__ void row_load(mz_cu_array a, int64_t start, int width, float x[V][8]) {
    raw8 raw[V];
    row_fetch<T, V>(raw, a, start, width);
    row_widen<V>(raw, a.dtype, width, x);
}

// Stores a row's eight columns from c on; columns at `width` and past it are left out.
__device__ __forceinline__ void store_columns(mz_cu_array a, int64_t start, int c, int width, const float x[8]) {
    if (width % 8 == 0) {
        if (c < width)
            store8(a, start + c, x);
    } else {
        for_each<8>([&](int k) {
            if (c + k < width)
                store1(a, start + c + k, x[k]);
        });
    }
}
template <int T>
__device__ __forceinline__ void row_store(mz_cu_array a, int64_t start, int width, int v, const float x[8]) {
    store_columns(a, start, row_column<T>(v), width, x);
}

// FP32 vectors as wide as a row (weights, biases); `fill` where there is none.
template <int T>
__device__ __forceinline__ void row_vector(const float *data, int width, int v, float fill, float x[8]) {
    int c = row_column<T>(v);
    if (data != nullptr && width % 8 == 0 && c < width) {
        load8(data, MEZZO_F32, c, x);
        return;
    }
#pragma unroll
    for (int k = 0; k < 8; k++)
        x[k] = data != nullptr && c + k < width ? data[c + k] : fill;
}

// Calls run<T, V>() for the first of these pairs whose row holds the width, or for the last.
template <int T, int V, int... MORE, class F> void for_row_holding(int width, F run) {
    if constexpr (sizeof...(MORE) > 0)
        if (width > T * V * 8)
            return for_row_holding<MORE...>(width, run);
    run.template operator()<T, V>();
}

// A warp a row up to 1024 columns, 128 or 256 threads up to 8192. Wider rows do not stay in registers.
enum { ROW_WIDTH_MAX = 8192 };
template <class F> void for_row_width(int width, F run) {
    for_row_holding<32, 1, 32, 2, 32, 3, 32, 4, 128, 2, 128, 3, 128, 4, 256, 3, 256, 4>(width, run);
}

#endif
