// The update's passes over parameters: gradient statistics, the optimizers, shadow weights; and the few scalars that
// decide a step. Formulas, order of operations and rounding: docs/dev/NUMERICS.md, "The update". The arithmetic of the
// optimizers is written with explicit roundings, so that every way of storing a master moves it by the same bits.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "dynamic8.cuh"
#include "launch.h"
#include "layout.cuh"
#include "philox.cuh"

// --- chunks of segments --------------------------------------------------------------------------------------------
// Work is cut into chunks of 4096 elements of each segment. Blocks stay for the whole pass: each makes the running
// number of chunks of GROUP segments once, in shared memory, and then takes every gridDim-th chunk.
enum { CHUNK = 4096, THREADS = 256, GROUP = 1024, WARP = 32, VECTORS = CHUNK / (4 * THREADS) };
// Beside other kernels a block makes one chunk of 1024 and goes: products take a multiprocessor's registers whole, so
// that they start when the blocks there have ended, and those of a lower priority that have not begun stand back.
enum { BRIEF = 1024 };

struct chunk {
    mz_cu_segment segment;
    int64_t start; // element of the parameter
    int n;         // elements
};

// before[i] = chunks of segments [0, i) of the group; before[GROUP] = all. Called by the whole block.
template <int C> __device__ void running_chunks(const mz_cu_segment *segments, int n, int *before) {
    __shared__ int warp_total[THREADS / WARP];
    constexpr int each = GROUP / THREADS;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, count[each], total = 0;
#pragma unroll
    for (int k = 0; k < each; k++) {
        int s = threadIdx.x * each + k;
        count[k] = s < n ? static_cast<int>((segments[s].count + C - 1) / C) : 0;
        total += count[k];
    }
    int scan = total;
#pragma unroll
    for (int step = 1; step < WARP; step <<= 1) {
        int other = __shfl_up_sync(0xFFFFFFFFu, scan, step);
        scan += lane >= step ? other : 0;
    }
    __syncthreads(); // the group before is done with `before`
    if (lane == WARP - 1)
        warp_total[warp] = scan;
    __syncthreads();
    for (int w = 0; w < warp; w++)
        scan += warp_total[w];
    int at = scan - total;
#pragma unroll
    for (int k = 0; k < each; k++) {
        before[threadIdx.x * each + k] = at;
        at += count[k];
    }
    if (threadIdx.x == THREADS - 1)
        before[GROUP] = at;
    __syncthreads();
}

// body(chunk, its number) for every chunk that is this block's; returns how many chunks there are.
template <int C = CHUNK, typename F>
__device__ __forceinline__ int64_t for_chunks(const mz_cu_segment *segments, int n, F body) {
    __shared__ int before[GROUP + 1];
    int64_t passed = 0; // chunks of the groups before
    for (int group = 0; group < n; group += GROUP) {
        int members = n - group < GROUP ? n - group : GROUP;
        running_chunks<C>(segments + group, members, before);
        int total = before[GROUP], grid = static_cast<int>(gridDim.x);
        int first = (static_cast<int>(blockIdx.x) - static_cast<int>(passed % grid) + grid) % grid;
        for (int index = first; index < total; index += grid) {
            int low = 0, high = members; // before[low] <= index < before[high]
            while (high - low > 1) {
                int middle = (low + high) / 2;
                if (before[middle] <= index)
                    low = middle;
                else
                    high = middle;
            }
            chunk c;
            c.segment = segments[group + low];
            int64_t into = static_cast<int64_t>(index - before[low]) * C, left = c.segment.count - into;
            c.start = c.segment.first + into;
            c.n = left < C ? static_cast<int>(left) : C;
            body(c, passed + index);
        }
        passed += total;
    }
    return passed;
}

// A chunk's elements, 4 to a thread at a time: a whole vector, or what is left of one.
__device__ __forceinline__ int vector_at(int v) {
    return (v * THREADS + static_cast<int>(threadIdx.x)) * 4;
}

// Where four elements of a parameter lie, counted from the parameter's start. In kernels without padding they are next
// to each other and the compiler sees it.
template <bool PADDED> struct four {
    int64_t at[PADDED ? 4 : 1];
    int left;   // how many of them there are, at most 4
    bool whole; // there are four, next to each other, and the first is aligned
    __device__ __forceinline__ int64_t operator[](int k) const { return PADDED ? at[PADDED ? k : 0] : at[0] + k; }
};

template <bool PADDED>
__device__ __forceinline__ four<PADDED> four_at(const mz_cu_segment &s, int64_t element, int left) {
    four<PADDED> f;
    f.left = left;
    f.whole = left >= 4;
    f.at[0] = element;
    if constexpr (PADDED) {
        const mz_cu_layout &l = s.layout;
        int64_t column = element, row = l.width == 0 ? 0 : layout_row(l, element, column);
        f.at[0] = l.width == 0 ? element : layout_row_start(l, row) + column;
#pragma unroll
        for (int k = 1; k < 4; k++) {
            bool next_row = ++column == l.width;
            column = next_row ? 0 : column;
            row += next_row;
            f.at[k] = next_row ? layout_row_start(l, row) : f.at[k - 1] + 1;
        }
        f.whole = left >= 4 && f.at[0] % 4 == 0 && f.at[3] == f.at[0] + 3;
    }
    return f;
}

// What nobody reads again soon: it shall not drive other data out of L2.
template <bool PADDED> __device__ __forceinline__ float4 load4_once(const float *p, const four<PADDED> &f) {
    if (f.whole)
        return __ldcs(reinterpret_cast<const float4 *>(p + f[0]));
    return make_float4(f.left > 0 ? p[f[0]] : 0, f.left > 1 ? p[f[1]] : 0, f.left > 2 ? p[f[2]] : 0,
                       PADDED && f.left > 3 ? p[f[3]] : 0);
}

template <bool PADDED> __device__ __forceinline__ float4 load4(const float *p, const four<PADDED> &f) {
    if (f.whole)
        return *reinterpret_cast<const float4 *>(p + f[0]);
    return make_float4(f.left > 0 ? p[f[0]] : 0, f.left > 1 ? p[f[1]] : 0, f.left > 2 ? p[f[2]] : 0,
                       PADDED && f.left > 3 ? p[f[3]] : 0);
}

// Four numbers of one type, of which f.left are there.
template <bool PADDED, typename T, typename V>
__device__ __forceinline__ void store_four(T *p, const four<PADDED> &f, V x) {
    if (f.whole) {
        *reinterpret_cast<V *>(p + f[0]) = x;
        return;
    }
    if (f.left > 0)
        p[f[0]] = x.x;
    if (f.left > 1)
        p[f[1]] = x.y;
    if (f.left > 2)
        p[f[2]] = x.z;
    if (PADDED && f.left > 3)
        p[f[3]] = x.w;
}

// Blocks that stay: as many as are resident at once, or fewer where there is less to do.
static unsigned resident(const void *kernel, int64_t elements, int n_segments, int sms) {
    int each = 1;
    if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, THREADS, 0) != cudaSuccess || each < 1)
        each = 1;
    int64_t chunks = elements / CHUNK + n_segments, most = static_cast<int64_t>(sms) * each;
    return static_cast<unsigned>(chunks < most ? (chunks > 0 ? chunks : 1) : most);
}

// --- grad_stats ----------------------------------------------------------------------------------------------------
__device__ __forceinline__ float inverse_of(float scale) { // torch takes the reciprocal in FP64
    return scale != 0 ? static_cast<float>(1 / static_cast<double>(scale)) : 1;
}

// partial[0] as int64 = chunks; partial[1 + c] = Σ g² of chunk c, FP64: finite exactly when every g is, as no float's
// square overflows.
template <bool PADDED>
__global__ void __launch_bounds__(THREADS)
    grad_stats_kernel(const mz_cu_segment *segments, int n, const float *scale, bool keeps, float *grad,
                      mz_cu_opt_state *state, double *pieces, double *partial) {
    __shared__ double sums[2][THREADS / WARP];
    __shared__ float shared_inverse;
    if (threadIdx.x == 0)
        shared_inverse = scale != nullptr ? inverse_of(*scale) : 1;
    __syncthreads();
    float inverse = shared_inverse;
    int turn = 0;
    int64_t chunks = for_chunks(segments, n, [&](const chunk &c, int64_t index) {
        float *g = grad + (c.segment.offset - c.segment.grad_shift);
        float4 x[VECTORS];
        double sum = 0;
#pragma unroll
        for (int v = 0; v < VECTORS; v++)
            x[v] = load4(g, four_at<PADDED>(c.segment, c.start + vector_at(v), c.n - vector_at(v)));
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            if (inverse != 1) {
                x[v] = make_float4(__fmul_rn(x[v].x, inverse), __fmul_rn(x[v].y, inverse), __fmul_rn(x[v].z, inverse),
                                   __fmul_rn(x[v].w, inverse));
                if (!keeps)
                    store_four(g, four_at<PADDED>(c.segment, c.start + vector_at(v), c.n - vector_at(v)), x[v]);
            }
            double a = x[v].x, b = x[v].y, e = x[v].z, f = x[v].w;
            sum += (a * a + b * b) + (e * e + f * f);
        }
#pragma unroll
        for (int step = 16; step > 0; step >>= 1)
            sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
        if (threadIdx.x % WARP == 0)
            sums[turn][threadIdx.x / WARP] = sum;
        __syncthreads();
        if (threadIdx.x == 0) {
            sum = 0;
#pragma unroll
            for (int w = 0; w < THREADS / WARP; w++)
                sum += sums[turn][w];
            *(pieces != nullptr ? pieces + (c.segment.offset + c.start) / CHUNK : partial + 1 + index) = sum;
        }
        turn ^= 1; // the next chunk's sums go elsewhere: one barrier a chunk is enough
    });
    if (blockIdx.x != 0 || threadIdx.x != 0)
        return;
    if (pieces != nullptr)
        state->scale = keeps && scale != nullptr ? *scale : 0;
    else
        *reinterpret_cast<int64_t *>(partial) = chunks;
}

// Thread t adds chunks t, t + 1024, … in order; then the threads' sums in a fixed tree: the same on every card. The
// first thread's is the sum of all.
enum { NORM_BLOCK = 1024 };
__device__ __forceinline__ double sum_of(const double *x, int64_t n) {
    __shared__ double sums[NORM_BLOCK / WARP];
    double sum = 0;
#pragma unroll 8
    for (int64_t i = threadIdx.x; i < n; i += NORM_BLOCK)
        sum += x[i];
#pragma unroll
    for (int step = 16; step > 0; step >>= 1)
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
    if (threadIdx.x % WARP == 0)
        sums[threadIdx.x / WARP] = sum;
    __syncthreads();
    if (threadIdx.x >= WARP)
        return 0;
    sum = sums[threadIdx.x];
#pragma unroll
    for (int step = 16; step > 0; step >>= 1)
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
    return sum;
}

__global__ void __launch_bounds__(NORM_BLOCK)
    norm_kernel(const double *partial, const float *scale, mz_cu_opt_state *state) {
    double sum = sum_of(partial + 1, *reinterpret_cast<const int64_t *>(partial));
    if (threadIdx.x != 0)
        return;
    state->norm = sqrt(sum);
    state->scale = scale != nullptr ? *scale : 0;
    if (!isfinite(sum))
        state->found_inf = 1;
}

__global__ void __launch_bounds__(NORM_BLOCK)
    agree_kernel(const double *pieces, int64_t n, const mz_cu_opt_state *states, int ranks, mz_cu_opt_state *state) {
    double sum = sum_of(pieces, n);
    if (threadIdx.x != 0)
        return;
    state->norm = sqrt(sum);
    if (!isfinite(sum))
        state->found_inf = 1;
    for (int r = 0; r < ranks; r++)
        state->bad |= states[r].bad;
}

extern "C" cudaError_t mz_cu_agree(cudaStream_t stream, const double *pieces, int64_t n, const void *states, int ranks,
                                   void *state) {
    agree_kernel<<<1, NORM_BLOCK, 0, stream>>>(pieces, n, static_cast<const mz_cu_opt_state *>(states), ranks,
                                               static_cast<mz_cu_opt_state *>(state));
    return cudaGetLastError();
}

extern "C" cudaError_t mz_cu_grad_stats(cudaStream_t stream, const void *segments, int n, const float *scale,
                                        bool keeps, float *grad, int64_t elements, void *state, double *pieces,
                                        double *partial, int sms, bool padded) {
    auto kernel = padded ? grad_stats_kernel<true> : grad_stats_kernel<false>;
    unsigned blocks = resident(reinterpret_cast<const void *>(kernel), elements, n, sms);
    kernel<<<blocks, THREADS, 0, stream>>>(static_cast<const mz_cu_segment *>(segments), n, scale, keeps, grad,
                                           static_cast<mz_cu_opt_state *>(state), pieces, partial);
    if (pieces == nullptr)
        norm_kernel<<<1, NORM_BLOCK, 0, stream>>>(partial, keeps ? scale : nullptr,
                                                  static_cast<mz_cu_opt_state *>(state));
    return cudaGetLastError();
}

// --- optimizers ----------------------------------------------------------------------------------------------------
__device__ __forceinline__ uint16_t narrow(float x, int dtype) {
    return dtype == MZ_CU_BF16 ? __bfloat16_as_ushort(__float2bfloat16_rn(x)) : __half_as_ushort(__float2half_rn(x));
}

template <bool PADDED>
__device__ __forceinline__ void store_shadow4(void *shadow, const mz_cu_segment &s, const four<PADDED> &f, float4 x) {
    if (shadow == nullptr || s.shadow_offset == MZ_CU_NO_SHADOW)
        return;
    uint16_t *p = reinterpret_cast<uint16_t *>(static_cast<char *>(shadow) + s.shadow_offset);
    store_four(p, f,
               make_ushort4(narrow(x.x, s.shadow_dtype), narrow(x.y, s.shadow_dtype), narrow(x.z, s.shadow_dtype),
                            narrow(x.w, s.shadow_dtype)));
}

// --- masters as a segment stores them (backend.h says how) ---------------------------------------------------------
template <bool PADDED> __device__ __forceinline__ ushort4 load_halves(const uint16_t *p, const four<PADDED> &f) {
    if (f.whole)
        return *reinterpret_cast<const ushort4 *>(p + f[0]);
    return make_ushort4(f.left > 0 ? p[f[0]] : 0, f.left > 1 ? p[f[1]] : 0, f.left > 2 ? p[f[2]] : 0,
                        PADDED && f.left > 3 ? p[f[3]] : 0);
}

__device__ __forceinline__ float join(uint16_t high, uint16_t low) {
    return __uint_as_float((static_cast<uint32_t>(high) << 16) +
                           static_cast<uint32_t>(static_cast<int32_t>(static_cast<int16_t>(low))));
}

__device__ __forceinline__ uint16_t high_half(float x) { // to nearest, ties away from zero
    return isnan(x) ? static_cast<uint16_t>(__float_as_uint(x) >> 16 | 0x40u)
                    : static_cast<uint16_t>((__float_as_uint(x) + 0x8000u) >> 16);
}

__device__ __forceinline__ uint16_t low_half(float x) {
    return isnan(x) ? static_cast<uint16_t>(0) : static_cast<uint16_t>(__float_as_uint(x));
}

// mezzo_f32_to_bf16_stochastic
__device__ __forceinline__ uint16_t round_at_random(float x, uint32_t random) {
    uint32_t bits = __float_as_uint(x);
    if (isnan(x))
        return static_cast<uint16_t>(bits >> 16 | 0x40u);
    uint16_t rounded = static_cast<uint16_t>((bits + (random >> 16)) >> 16);
    bool became_infinite = (rounded & 0x7FFFu) == 0x7F80u && (bits & 0x7FFFFFFFu) != 0x7F800000u;
    return became_infinite ? narrow(x, MZ_CU_BF16) : rounded;
}

struct master_place {
    float *fp32;
    uint16_t *high, *low;
    philox_key key;
};

__device__ __forceinline__ philox_key key_of(const mz_cu_segment &s, uint64_t seed, int64_t step) {
    philox_key key;
    key.seed = seed;
    key.step = static_cast<uint32_t>(step ^ step >> 32);
    key.tensor = 0x80000000u | s.key;
    return key;
}

__device__ __forceinline__ master_place place_of(const mz_cu_segment &s, float *master, void *shadow, uint64_t seed,
                                                 int64_t step) {
    master_place p = {master + (s.offset - s.master_shift), nullptr, nullptr, {0, 0, 0}};
    if (s.master == MZ_CU_MASTER_FP32)
        return p;
    p.high = reinterpret_cast<uint16_t *>(static_cast<char *>(shadow) + s.shadow_offset);
    p.low = reinterpret_cast<uint16_t *>(reinterpret_cast<char *>(master) + s.low_offset);
    p.key = key_of(s, seed, step);
    return p;
}

template <bool PADDED>
__device__ __forceinline__ float4 load_masters(const mz_cu_segment &s, const master_place &p, const four<PADDED> &f) {
    if (s.master == MZ_CU_MASTER_FP32)
        return load4(p.fp32, f);
    ushort4 high = load_halves(p.high, f), low = make_ushort4(0, 0, 0, 0);
    if (s.master == MZ_CU_MASTER_SPLIT)
        low = load_halves(p.low, f);
    return make_float4(join(high.x, low.x), join(high.y, low.y), join(high.z, low.z), join(high.w, low.w));
}

// `element`: the first of the four, a multiple of 4.
template <bool PADDED>
__device__ __forceinline__ void store_masters(const mz_cu_segment &s, const master_place &p, void *shadow,
                                              int64_t element, const four<PADDED> &f, float4 x) {
    if (s.master == MZ_CU_MASTER_FP32) {
        store_four(p.fp32, f, x);
        store_shadow4(shadow, s, f, x);
    } else if (s.master == MZ_CU_MASTER_SPLIT) {
        store_four(p.high, f, make_ushort4(high_half(x.x), high_half(x.y), high_half(x.z), high_half(x.w)));
        store_four(p.low, f, make_ushort4(low_half(x.x), low_half(x.y), low_half(x.z), low_half(x.w)));
    } else if (f.left > 0) {
        uint4 w = philox(p.key, static_cast<uint64_t>(element) >> 2);
        store_four(p.high, f,
                   make_ushort4(round_at_random(x.x, w.x), round_at_random(x.y, w.y), round_at_random(x.z, w.z),
                                round_at_random(x.w, w.w)));
    }
}

// backend.h's mz_ema_fresh.
__device__ __forceinline__ float ema_fresh(double ema, int64_t step) {
    double warm = step <= 1 ? 0 : static_cast<double>(step) / static_cast<double>(step + 9);
    return static_cast<float>(1 - (warm < ema ? warm : ema));
}

__device__ __forceinline__ float average(float fresh, bool first, float p, float e) {
    return first ? p : __fmaf_rn(fresh, __fsub_rn(p, e), e);
}

template <bool PADDED>
__device__ __forceinline__ void average_four(float *ema, float fresh, bool first, const four<PADDED> &f, float4 p) {
    float4 e = load4_once(ema, f);
    store_four(ema, f,
               make_float4(average(fresh, first, p.x, e.x), average(fresh, first, p.y, e.y),
                           average(fresh, first, p.z, e.z), average(fresh, first, p.w, e.w)));
}

struct adamw_constants {
    float inverse, clip, eps, fresh1, beta2, fresh2, step_size, root_bias2, kept, fresh;
};

// torch.optim.AdamW: p ·= 1 - lr·wd; m.lerp(g, 1-β₁); v = v·β₂ + (1-β₂)·g·g; p -= lr/bias1 · m/(√v/√bias2 + eps).
__device__ __forceinline__ void adamw_element(const adamw_constants &k, float kept, float g, float &p, float &m,
                                              float &v) {
    g = __fmul_rn(__fmul_rn(g, k.inverse), k.clip);
    m = __fmaf_rn(k.fresh1, __fsub_rn(g, m), m);
    v = __fmaf_rn(__fmul_rn(g, k.fresh2), g, __fmul_rn(v, k.beta2));
    float denominator = __fadd_rn(__fdiv_rn(__fsqrt_rn(v), k.root_bias2), k.eps);
    p = __fsub_rn(__fmul_rn(p, kept), __fdiv_rn(__fmul_rn(m, k.step_size), denominator));
}

// Moments as they are stored: FP32, BF16 rounded at random (backend.h's mz_moments_round), or 8 bits (dynamic8.cuh).
// `shared` is what all threads of the kernel have of them together.
struct nothing_shared {
    __device__ __forceinline__ void prepare() {}
};
struct dynamic8_shared {
    dynamic8::tables tables;
    uint32_t most[2][2][THREADS / WARP]; // by turns: of m and v, of each warp
    __device__ __forceinline__ void prepare() { dynamic8::load(tables, THREADS); }
};
template <typename M> struct shared_for { using type = nothing_shared; };
template <> struct shared_for<uint8_t> { using type = dynamic8_shared; };

// Where a segment's moments begin.
template <typename M> __device__ __forceinline__ M *moments_at(M *p, int64_t element) {
    if constexpr (sizeof(M) == 1)
        return p + element / dynamic8::BLOCK * dynamic8::RECORD;
    return p + element;
}

template <bool PADDED>
__device__ __forceinline__ void load_moments(const float *m, const float *v, const nothing_shared &, int64_t,
                                             const four<PADDED> &f, float4 &xm, float4 &xv) {
    xm = load4_once(m, f);
    xv = load4_once(v, f);
}

template <bool PADDED>
__device__ __forceinline__ void load_moments(const uint16_t *m, const uint16_t *v, const nothing_shared &, int64_t,
                                             const four<PADDED> &f, float4 &xm, float4 &xv) {
    ushort4 a = load_halves(m, f), b = load_halves(v, f);
    xm = make_float4(join(a.x, 0), join(a.y, 0), join(a.z, 0), join(a.w, 0));
    xv = make_float4(join(b.x, 0), join(b.y, 0), join(b.z, 0), join(b.w, 0));
}

// Records have no padding, and always room for whole blocks: an element's place is its number.
template <typename T> struct record { T *scale, *codes; };
template <typename T> __device__ __forceinline__ record<T> record_at(T *p, int64_t element) {
    T *start = p + element / dynamic8::BLOCK * dynamic8::RECORD;
    return {start, start + 4 + element % dynamic8::BLOCK};
}

template <typename L> __device__ __forceinline__ float4 decode_four(const L &table, const uint8_t *p, int64_t element) {
    record<const uint8_t> r = record_at(p, element);
    float scale = *reinterpret_cast<const float *>(r.scale);
    uchar4 c = *reinterpret_cast<const uchar4 *>(r.codes);
    return make_float4(__fmul_rn(dynamic8::decode(table, c.x), scale), __fmul_rn(dynamic8::decode(table, c.y), scale),
                       __fmul_rn(dynamic8::decode(table, c.z), scale), __fmul_rn(dynamic8::decode(table, c.w), scale));
}

template <bool PADDED>
__device__ __forceinline__ void load_moments(const uint8_t *m, const uint8_t *v, const dynamic8_shared &shared,
                                             int64_t element, const four<PADDED> &f, float4 &xm, float4 &xv) {
    xm = xv = make_float4(0, 0, 0, 0);
    if (f.left <= 0)
        return;
    xm = decode_four(shared.tables.m, m, element);
    xv = decode_four(shared.tables.v, v, element);
}

template <bool PADDED>
__device__ __forceinline__ void store_moments(float *m, float *v, nothing_shared &, int, const philox_key &, int64_t,
                                              const four<PADDED> &f, float4 xm, float4 xv) {
    store_four(m, f, xm);
    store_four(v, f, xv);
}

// The rank of four numbers' largest, of which `left` are there.
__device__ __forceinline__ uint32_t most_of(float4 x, int left) {
    uint32_t most = 1;
    most = left > 0 ? max(most, dynamic8::rank_of(x.x)) : most;
    most = left > 1 ? max(most, dynamic8::rank_of(x.y)) : most;
    most = left > 2 ? max(most, dynamic8::rank_of(x.z)) : most;
    return left > 3 ? max(most, dynamic8::rank_of(x.w)) : most;
}

template <typename L>
__device__ __forceinline__ void encode_four(const L &table, uint8_t *p, int64_t element, float4 x, int left,
                                            float scale) {
    record<uint8_t> r = record_at(p, element);
    if (element % dynamic8::BLOCK == 0)
        *reinterpret_cast<float *>(r.scale) = scale;
    *reinterpret_cast<uchar4 *>(r.codes) = make_uchar4(
        dynamic8::encode(table, left > 0 ? x.x : 0, scale), dynamic8::encode(table, left > 1 ? x.y : 0, scale),
        dynamic8::encode(table, left > 2 ? x.z : 0, scale), dynamic8::encode(table, left > 3 ? x.w : 0, scale));
}

// By all threads of the kernel's block, two warps a block of 256: `turn` tells calls that follow one another apart.
template <bool PADDED>
__device__ __forceinline__ void store_moments(uint8_t *m, uint8_t *v, dynamic8_shared &shared, int turn,
                                              const philox_key &, int64_t element, const four<PADDED> &f, float4 xm,
                                              float4 xv) {
    uint32_t most[2] = {most_of(xm, f.left), most_of(xv, f.left)};
    int warp = threadIdx.x / WARP;
#pragma unroll
    for (int k = 0; k < 2; k++) {
#pragma unroll
        for (int step = WARP / 2; step > 0; step >>= 1)
            most[k] = max(most[k], __shfl_xor_sync(0xFFFFFFFFu, most[k], step));
        if (threadIdx.x % WARP == 0)
            shared.most[turn & 1][k][warp] = most[k];
    }
    __syncthreads();
    // A block that begins behind the segment's end is nobody's; one that is cut off is written whole.
    if (element % dynamic8::BLOCK + f.left <= 0)
        return;
    const uint32_t *other = &shared.most[turn & 1][0][warp ^ 1];
    float scale_m = dynamic8::number_of(max(most[0], other[0])),
          scale_v = dynamic8::number_of(max(most[1], other[THREADS / WARP]));
    encode_four(shared.tables.m, m, element, xm, f.left, scale_m);
    encode_four(shared.tables.v, v, element, xv, f.left, scale_v);
}

template <bool PADDED>
__device__ __forceinline__ void store_moments(uint16_t *m, uint16_t *v, nothing_shared &, int, const philox_key &key,
                                              int64_t element, const four<PADDED> &f, float4 xm, float4 xv) {
    if (f.left <= 0)
        return;
    uint4 w = philox(key, static_cast<uint64_t>(element) >> 2 | 1ull << 62);
    store_four(m, f,
               make_ushort4(round_at_random(xm.x, w.x), round_at_random(xm.y, w.y), round_at_random(xm.z, w.z),
                            round_at_random(xm.w, w.w)));
    store_four(v, f,
               make_ushort4(round_at_random(xv.x, w.x << 16), round_at_random(xv.y, w.y << 16),
                            round_at_random(xv.z, w.z << 16), round_at_random(xv.w, w.w << 16)));
}

template <int C, bool PADDED, bool AVERAGES, typename M>
__global__ void __launch_bounds__(THREADS)
    adamw_kernel(const mz_cu_segment *segments, int n, const mz_cu_opt_state *state, mz_cu_update_constants u,
                 const float *grad, float *master, M *m, M *v, void *shadow, float *ema) {
    __shared__ adamw_constants shared;
    __shared__ typename shared_for<M>::type together;
    if (state->skip)
        return;
    together.prepare();
    int turn = 0;
    if (threadIdx.x == 0) { // FP64, rounded once, as torch does
        double bias2 = state->bias2, lr = state->lr;
        adamw_constants k = {inverse_of(state->scale),
                             static_cast<float>(state->last_clip),
                             static_cast<float>(u.eps),
                             static_cast<float>(1 - u.beta1),
                             static_cast<float>(u.beta2),
                             static_cast<float>(1 - u.beta2),
                             static_cast<float>(lr / state->bias1),
                             static_cast<float>(sqrt(bias2)),
                             static_cast<float>(1 - lr * u.weight_decay),
                             AVERAGES ? ema_fresh(u.ema, state->step) : 0.0f};
        shared = k;
    }
    __syncthreads();
    adamw_constants k = shared;
    int64_t step = state->step;
    for_chunks<C>(segments, n, [&](const chunk &c, int64_t) {
        const float *g = grad + (c.segment.offset - c.segment.grad_shift);
        master_place p = place_of(c.segment, master, shadow, u.seed, step);
        M *m1 = moments_at(m, c.segment.state_offset), *v1 = moments_at(v, c.segment.state_offset);
        const philox_key key = key_of(c.segment, u.seed, step);
        float kept = c.segment.decay ? k.kept : 1.0f;
#pragma unroll 2
        for (int i = 0; i < C / (4 * THREADS); i++) {
            int64_t element = c.start + vector_at(i);
            four<PADDED> f = four_at<PADDED>(c.segment, element, c.n - vector_at(i));
            float4 xg = load4_once(g, f), xp = load_masters(c.segment, p, f);
            float4 xm, xv;
            load_moments(m1, v1, together, element, f, xm, xv);
            adamw_element(k, kept, xg.x, xp.x, xm.x, xv.x);
            adamw_element(k, kept, xg.y, xp.y, xm.y, xv.y);
            adamw_element(k, kept, xg.z, xp.z, xm.z, xv.z);
            adamw_element(k, kept, xg.w, xp.w, xm.w, xv.w);
            store_moments(m1, v1, together, turn++, key, element, f, xm, xv);
            if (AVERAGES)
                average_four(ema + c.segment.state_offset, k.fresh, step == 1, f, xp);
            store_masters(c.segment, p, shadow, element, f, xp);
        }
    });
}

template <bool AVERAGES, typename M> auto adamw_of(const mz_cu_update_args &a) {
    if (a.padded)
        return a.overlaps ? adamw_kernel<BRIEF, true, AVERAGES, M> : adamw_kernel<CHUNK, true, AVERAGES, M>;
    return a.overlaps ? adamw_kernel<BRIEF, false, AVERAGES, M> : adamw_kernel<CHUNK, false, AVERAGES, M>;
}

template <typename M> cudaError_t launch_adamw(cudaStream_t stream, const mz_cu_update_args &a) {
    auto kernel = a.ema != nullptr ? adamw_of<true, M>(a) : adamw_of<false, M>(a);
    unsigned blocks = resident(reinterpret_cast<const void *>(kernel), a.elements, a.n, a.sms);
    if (a.overlaps)
        blocks = static_cast<unsigned>(a.elements / BRIEF + a.n);
    kernel<<<blocks, THREADS, 0, stream>>>(
        static_cast<const mz_cu_segment *>(a.segments), a.n, static_cast<const mz_cu_opt_state *>(a.state), a.constants,
        a.grad, a.master, static_cast<M *>(a.moment[0]), static_cast<M *>(a.moment[1]), a.shadow, a.ema);
    return cudaGetLastError();
}

extern "C" cudaError_t mz_cu_adamw(cudaStream_t stream, const mz_cu_update_args *args) {
    switch (args->moment_bytes) {
    case 1:
        return launch_adamw<uint8_t>(stream, *args);
    case 2:
        return launch_adamw<uint16_t>(stream, *args);
    default:
        return launch_adamw<float>(stream, *args);
    }
}

struct sgd_constants {
    float inverse, clip, lr, decay, momentum, fresh;
    bool nesterov, first;
};

// torch.optim.SGD: g += wd·p; b = μ·b + (1-dampening)·g (the first step: b = g); g = nesterov ? g + μ·b : b; p -= lr·g.
__device__ __forceinline__ void sgd_element(const sgd_constants &k, float decay, bool has_momentum, float g, float &p,
                                            float &b) {
    g = __fmul_rn(__fmul_rn(g, k.inverse), k.clip);
    if (decay != 0)
        g = __fmaf_rn(decay, p, g);
    if (has_momentum) {
        b = k.first ? g : __fmaf_rn(k.momentum, b, __fmul_rn(g, k.fresh));
        g = k.nesterov ? __fmaf_rn(k.momentum, b, g) : b;
    }
    p = __fmaf_rn(-k.lr, g, p);
}

template <bool PADDED, bool AVERAGES>
__global__ void __launch_bounds__(THREADS)
    sgd_kernel(const mz_cu_segment *segments, int n, const mz_cu_opt_state *state, mz_cu_update_constants u,
               const float *grad, float *master, float *momentum, void *shadow, float *ema) {
    if (state->skip)
        return;
    int64_t step = state->step;
    sgd_constants k = {inverse_of(state->scale),
                       static_cast<float>(state->last_clip),
                       static_cast<float>(state->lr),
                       static_cast<float>(u.weight_decay),
                       static_cast<float>(u.momentum),
                       static_cast<float>(1 - u.dampening),
                       u.nesterov,
                       step == 1};
    float fresh = AVERAGES ? ema_fresh(u.ema, step) : 0.0f;
    for_chunks(segments, n, [&](const chunk &c, int64_t) {
        const float *g = grad + (c.segment.offset - c.segment.grad_shift);
        master_place p = place_of(c.segment, master, shadow, u.seed, step);
        float *b = momentum != nullptr ? momentum + c.segment.state_offset : nullptr;
        float decay = c.segment.decay ? k.decay : 0.0f;
#pragma unroll 2
        for (int i = 0; i < VECTORS; i++) {
            int64_t element = c.start + vector_at(i);
            four<PADDED> f = four_at<PADDED>(c.segment, element, c.n - vector_at(i));
            float4 xg = load4(g, f), xp = load_masters(c.segment, p, f), xb = make_float4(0, 0, 0, 0);
            if (b != nullptr)
                xb = load4(b, f);
            sgd_element(k, decay, b != nullptr, xg.x, xp.x, xb.x);
            sgd_element(k, decay, b != nullptr, xg.y, xp.y, xb.y);
            sgd_element(k, decay, b != nullptr, xg.z, xp.z, xb.z);
            sgd_element(k, decay, b != nullptr, xg.w, xp.w, xb.w);
            if (b != nullptr)
                store_four(b, f, xb);
            if (AVERAGES)
                average_four(ema + c.segment.state_offset, fresh, step == 1, f, xp);
            store_masters(c.segment, p, shadow, element, f, xp);
        }
    });
}

extern "C" cudaError_t mz_cu_sgd(cudaStream_t stream, const mz_cu_update_args *args) {
    const mz_cu_update_args &a = *args;
    auto kernel = a.padded ? sgd_kernel<true, false> : sgd_kernel<false, false>;
    if (a.ema != nullptr)
        kernel = a.padded ? sgd_kernel<true, true> : sgd_kernel<false, true>;
    unsigned blocks = resident(reinterpret_cast<const void *>(kernel), a.elements, a.n, a.sms);
    kernel<<<blocks, THREADS, 0, stream>>>(static_cast<const mz_cu_segment *>(a.segments), a.n,
                                           static_cast<const mz_cu_opt_state *>(a.state), a.constants, a.grad, a.master,
                                           static_cast<float *>(a.moment[0]), a.shadow, a.ema);
    return cudaGetLastError();
}

template <bool PADDED>
__global__ void __launch_bounds__(THREADS)
    refresh_kernel(const mz_cu_segment *segments, int n, const float *master, void *shadow) {
    for_chunks(segments, n, [&](const chunk &c, int64_t) {
        const float *p = master + (c.segment.offset - c.segment.master_shift);
        if (c.segment.master != MZ_CU_MASTER_FP32) // the shadow is a part of the master
            return;
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            four<PADDED> f = four_at<PADDED>(c.segment, c.start + vector_at(i), c.n - vector_at(i));
            store_shadow4(shadow, c.segment, f, load4(p, f));
        }
    });
}

extern "C" cudaError_t mz_cu_refresh(cudaStream_t stream, const void *segments, int n, const float *master,
                                     int64_t elements, void *shadow, int sms, bool padded) {
    auto kernel = padded ? refresh_kernel<true> : refresh_kernel<false>;
    unsigned blocks = resident(reinterpret_cast<const void *>(kernel), elements, n, sms);
    kernel<<<blocks, THREADS, 0, stream>>>(static_cast<const mz_cu_segment *>(segments), n, master, shadow);
    return cudaGetLastError();
}
