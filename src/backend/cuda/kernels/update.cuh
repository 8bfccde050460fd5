// The update of four elements by a kind of optimizer, whatever their parameter's layout, master and moments are stored
// as; for the kernels that go through parameters (update.cu) and those that write codes too (update_fp8.cu). The
// arithmetic is written with explicit roundings, so that every way of storing a master moves it by the same bits.
#ifndef MZ_UPDATE_CUH
#define MZ_UPDATE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "dynamic8.cuh"
#include "host.cuh"
#include "layout.cuh"
#include "philox.cuh"
#include "rows.cuh"
#include "vec.cuh"

extern "C" {
#include "mezzo/optimizer.h"
}

enum { THREADS = 256, GROUP = 1024 };

// --- parts of parameters -------------------------------------------------------------------------------------------
// before[i] = parts of parameters [0, i) of a group; before[GROUP] = all. Called by the whole block.
template <typename F> __device__ void running_parts(int n, F count_of, int *before) {
    __shared__ int warp_total[THREADS / WARP];
    constexpr int each = GROUP / THREADS;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, count[each], total = 0;
#pragma unroll
    for (int k = 0; k < each; k++) {
        int s = threadIdx.x * each + k;
        count[k] = s < n ? count_of(s) : 0;
        total += count[k];
    }
    int scan = warp_scan(total);
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

// body(parameter, its part, number of the part among all) for every part that is this block's; returns how many there
// are. A block makes the running number of GROUP parameters' parts once and then takes every gridDim-th.
template <typename F, typename G> __device__ __forceinline__ int64_t for_parts(int n, F count_of, G body) {
    __shared__ int before[GROUP + 1];
    int64_t passed = 0; // parts of the groups before
    for (int group = 0; group < n; group += GROUP) {
        int members = n - group < GROUP ? n - group : GROUP;
        running_parts(
            members, [&](int s) { return count_of(group + s); }, before);
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
            body(group + low, index - before[low], passed + index);
        }
        passed += total;
    }
    return passed;
}

// Blocks that stay: as many as are resident at once, or fewer where there is less to do.
static inline unsigned resident_blocks(const void *kernel, int64_t parts, int sms) {
    int each = 1;
    if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, THREADS, 0) != cudaSuccess || each < 1)
        each = 1;
    int64_t limit = static_cast<int64_t>(sms) * each;
    return static_cast<unsigned>(parts < limit ? (parts > 0 ? parts : 1) : limit);
}

// --- elements ------------------------------------------------------------------------------------------------------

// Where a parameter has padding.
enum gaps {
    NO_GAPS,
    GAPS_AFTER_FOURS, // rows and their pitch are multiples of four elements
    GAPS_ANYWHERE,
};
template <gaps G> struct gaps_tag { static constexpr gaps value = G; };

// Calls body(gaps_tag) with where a segment has padding. PADDED: some segments have some.
template <bool PADDED, typename F> __device__ __forceinline__ void with_gaps(const mz_segment &s, F body) {
    if constexpr (!PADDED)
        body(gaps_tag<NO_GAPS>());
    else if ((s.layout.width | s.layout.pitch) % 4 == 0)
        body(gaps_tag<GAPS_AFTER_FOURS>());
    else
        body(gaps_tag<GAPS_ANYWHERE>());
}

// Says where four elements of a parameter lie, counted from the parameter's start. But for GAPS_ANYWHERE they are next
// to each other and the compiler sees it.
template <gaps G> struct four {
    int64_t at[G == GAPS_ANYWHERE ? 4 : 1];
    int left;   // how many of them there are, at most 4
    bool whole; // there are four, next to each other, and the first is aligned
    __device__ __forceinline__ int64_t operator[](int k) const {
        return G == GAPS_ANYWHERE ? at[G == GAPS_ANYWHERE ? k : 0] : at[0] + k;
    }
};

// `element` is a multiple of 4.
template <gaps G> __device__ __forceinline__ four<G> four_at(const mz_segment &s, int64_t element, int left) {
    four<G> f;
    f.left = left;
    f.whole = left >= 4;
    f.at[0] = element;
    if constexpr (G == GAPS_AFTER_FOURS)
        f.at[0] = layout_index(s.layout, element);
    if constexpr (G == GAPS_ANYWHERE) {
        const mz_layout &l = s.layout;
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

// Loads what no kernel reads again soon: it shall not drive other data out of L2.
template <gaps G> __device__ __forceinline__ float4 load4_once(const float *p, const four<G> &f) {
    if (f.whole)
        return __ldcs(reinterpret_cast<const float4 *>(p + f[0]));
    return make_float4(f.left > 0 ? p[f[0]] : 0, f.left > 1 ? p[f[1]] : 0, f.left > 2 ? p[f[2]] : 0,
                       G == GAPS_ANYWHERE && f.left > 3 ? p[f[3]] : 0);
}

template <gaps G> __device__ __forceinline__ float4 load4(const float *p, const four<G> &f) {
    if (f.whole)
        return *reinterpret_cast<const float4 *>(p + f[0]);
    return make_float4(f.left > 0 ? p[f[0]] : 0, f.left > 1 ? p[f[1]] : 0, f.left > 2 ? p[f[2]] : 0,
                       G == GAPS_ANYWHERE && f.left > 3 ? p[f[3]] : 0);
}

// Four numbers of one type, of which f.left are there.
template <gaps G, typename T, typename V> __device__ __forceinline__ void store_four(T *p, const four<G> &f, V x) {
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
    if (G == GAPS_ANYWHERE && f.left > 3)
        p[f[3]] = x.w;
}

__device__ __forceinline__ float inverse_of(float scale) { // torch takes the reciprocal in FP64
    return scale != 0 ? static_cast<float>(1 / static_cast<double>(scale)) : 1;
}

__device__ __forceinline__ uint16_t narrow(float x, int dtype) {
    return dtype == MEZZO_BF16 ? __bfloat16_as_ushort(__float2bfloat16_rn(x)) : __half_as_ushort(__float2half_rn(x));
}

template <gaps G>
__device__ __forceinline__ void store_low_copy4(void *low_copy, const mz_segment &s, const four<G> &f, float4 x) {
    if (low_copy == nullptr || s.low_copy_offset == MZ_NO_LOW_COPY)
        return;
    uint16_t *p = reinterpret_cast<uint16_t *>(static_cast<char *>(low_copy) + s.low_copy_offset);
    store_four(p, f,
               make_ushort4(narrow(x.x, s.low_copy_dtype), narrow(x.y, s.low_copy_dtype), narrow(x.z, s.low_copy_dtype),
                            narrow(x.w, s.low_copy_dtype)));
}

// --- masters as a segment stores them (update.h says how)  ---------------------------------------------------------
template <gaps G> __device__ __forceinline__ ushort4 load_halves(const uint16_t *p, const four<G> &f) {
    if (f.whole)
        return *reinterpret_cast<const ushort4 *>(p + f[0]);
    return make_ushort4(f.left > 0 ? p[f[0]] : 0, f.left > 1 ? p[f[1]] : 0, f.left > 2 ? p[f[2]] : 0,
                        G == GAPS_ANYWHERE && f.left > 3 ? p[f[3]] : 0);
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
    return became_infinite ? narrow(x, MEZZO_BF16) : rounded;
}

// Loads four gradients from element `from` on; the results of a kind that is per matrix are of any format.
template <typename KIND, gaps G>
__device__ __forceinline__ float4 load_gradients(const mz_cu_array &a, int64_t from, const four<G> &f) {
    if (!KIND::PER_MATRIX || a.dtype == MEZZO_F32)
        return load4_once(static_cast<const float *>(a.data) + from, f);
    const ushort4 h = load_halves(static_cast<const uint16_t *>(a.data) + from, f);
    const float2 x = widen2(h.x | static_cast<uint32_t>(h.y) << 16, a.dtype),
                 z = widen2(h.z | static_cast<uint32_t>(h.w) << 16, a.dtype);
    return make_float4(x.x, x.y, z.x, z.y);
}

struct master_place {
    float *fp32;
    uint16_t *high, *low;
    philox_key key;
};

__device__ __forceinline__ philox_key key_of(const mz_segment &s, uint64_t seed, int64_t step) {
    philox_key key;
    key.seed = seed;
    key.step = static_cast<uint32_t>(step ^ step >> 32);
    key.tensor = 0x80000000u | s.key;
    return key;
}

__device__ __forceinline__ master_place place_of(const mz_segment &s, float *master, void *low_copy, uint64_t seed,
                                                 int64_t step) {
    master_place p = {master + (s.offset - s.master_shift), nullptr, nullptr, {0, 0, 0}};
    if (s.master == MEZZO_MASTER_FP32)
        return p;
    p.high = reinterpret_cast<uint16_t *>(static_cast<char *>(low_copy) + s.low_copy_offset);
    p.low = reinterpret_cast<uint16_t *>(reinterpret_cast<char *>(master) + s.low_offset);
    p.key = key_of(s, seed, step);
    return p;
}

template <gaps G>
__device__ __forceinline__ float4 load_masters(const mz_segment &s, const master_place &p, const four<G> &f) {
    if (s.master == MEZZO_MASTER_FP32)
        return load4(p.fp32, f);
    ushort4 high = load_halves(p.high, f), low = make_ushort4(0, 0, 0, 0);
    if (s.master == MEZZO_MASTER_SPLIT)
        low = load_halves(p.low, f);
    return make_float4(join(high.x, low.x), join(high.y, low.y), join(high.z, low.z), join(high.w, low.w));
}

// `element`: the first of the four, a multiple of 4.
template <gaps G>
__device__ __forceinline__ void store_masters(const mz_segment &s, const master_place &p, void *low_copy,
                                              int64_t element, const four<G> &f, float4 x) {
    if (s.master == MEZZO_MASTER_FP32) {
        store_four(p.fp32, f, x);
        store_low_copy4(low_copy, s, f, x);
    } else if (s.master == MEZZO_MASTER_SPLIT) {
        store_four(p.high, f, make_ushort4(high_half(x.x), high_half(x.y), high_half(x.z), high_half(x.w)));
        store_four(p.low, f, make_ushort4(low_half(x.x), low_half(x.y), low_half(x.z), low_half(x.w)));
    } else if (f.left > 0) {
        uint4 w = philox(p.key, static_cast<uint64_t>(element) >> 2);
        store_four(p.high, f,
                   make_ushort4(round_at_random(x.x, w.x), round_at_random(x.y, w.y), round_at_random(x.z, w.z),
                                round_at_random(x.w, w.w)));
    }
}

// update.h's mz_ema_fresh.
__device__ __forceinline__ float ema_fresh(double ema, int64_t step) {
    double warm = step <= 1 ? 0 : static_cast<double>(step) / static_cast<double>(step + 9);
    return static_cast<float>(1 - (warm < ema ? warm : ema));
}

__device__ __forceinline__ float average(float fresh, bool first, float p, float e) {
    return first ? p : __fmaf_rn(fresh, __fsub_rn(p, e), e);
}

template <gaps G>
__device__ __forceinline__ void average_four(float *ema, float fresh, bool first, const four<G> &f, float4 p) {
    float4 e = load4_once(ema, f);
    store_four(ema, f,
               make_float4(average(fresh, first, p.x, e.x), average(fresh, first, p.y, e.y),
                           average(fresh, first, p.z, e.z), average(fresh, first, p.w, e.w)));
}

// --- the kinds (optimizers.def) ------------------------------------------------------------------------------------
// Holds what all have of a step.
struct step_numbers {
    float inverse, clip, fresh; // fresh: ema_fresh, where there is an average
    int64_t step;
};

__device__ __forceinline__ step_numbers numbers_of(const mz_opt_state *state, const mz_update_rule &rule) {
    const bool is_direction = rule.update_scale != 0; // the gradient is taken as it is
    return {is_direction ? 1.0f : inverse_of(state->scale), is_direction ? 1.0f : static_cast<float>(state->last_clip),
            ema_fresh(rule.ema, state->step), state->step};
}

__device__ __forceinline__ mz_update_rates rates_of(const mz_opt_state *state, const mz_update_rule &rule) {
    return {state->lr * rule.lr_factor, state->bias[rule.group][0], state->bias[rule.group][1], state->step};
}

constexpr bool is_orthogonal(const char *option) {
    const char *name = "orthogonal";
    while (*name != '\0' && *name == *option)
        name++, option++;
    return *name == *option;
}

#define NUMBER                 float
#define C(name)                (k.name)
#define K(name)                (k.name)
#define ADD(a, b)              __fadd_rn(a, b)
#define SUB(a, b)              __fsub_rn(a, b)
#define MUL(a, b)              __fmul_rn(a, b)
#define DIV(a, b)              __fdiv_rn(a, b)
#define FMA(a, b, c)           __fmaf_rn(a, b, c)
#define SQRT(a)                __fsqrt_rn(a)
#define SIGN(a)                (static_cast<float>((a) > 0) - static_cast<float>((a) < 0))
#define MOMENT(name, kept)     +1
#define DEFAULT(option, value) || is_orthogonal(#option)
#define KIND(name, NAME, title, defaults, kinds_moments, kinds_constants, ...)                                         \
    struct name##_kind {                                                                                               \
        typedef mz_##name##_constants constants;                                                                       \
        enum { MOMENTS = 0 kinds_moments };                                                                            \
        static constexpr bool PER_MATRIX = false defaults;                                                             \
        static __device__ __forceinline__ constants constants_of(const mz_update_rule &rule,                           \
                                                                 const mz_update_rates &rates, double decay) {         \
            return mz_##name##_constants_of(&rule, &rates, decay);                                                     \
        }                                                                                                              \
        static __device__ __forceinline__ void element(const constants &k, float g, float &p, float &m, float &v) {    \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    };
#include "mezzo/optimizers.def"
#undef KIND
#undef DEFAULT
#undef MOMENT
#undef SIGN
#undef SQRT
#undef FMA
#undef DIV
#undef MUL
#undef SUB
#undef ADD
#undef K
#undef C
#undef NUMBER

// Computes a step's numbers, and the constants of parameters without weight decay and with it; called by the whole
// block.
template <typename KIND>
__device__ __forceinline__ void prepare_step(const mz_opt_state *state, const mz_update_rule &rule,
                                             typename KIND::constants constants[2], step_numbers *numbers) {
    if (threadIdx.x == 0) {
        const mz_update_rates rates = rates_of(state, rule);
        constants[0] = KIND::constants_of(rule, rates, 0);
        constants[1] = KIND::constants_of(rule, rates, rule.weight_decay);
        *numbers = numbers_of(state, rule);
    }
    __syncthreads();
}

// Updates four elements: gradients, masters and moments.
template <typename KIND>
__device__ __forceinline__ void update_four(const typename KIND::constants &k, const step_numbers &n, const float4 &g,
                                            float4 &p, float4 &m, float4 &v) {
    KIND::element(k, __fmul_rn(__fmul_rn(g.x, n.inverse), n.clip), p.x, m.x, v.x);
    KIND::element(k, __fmul_rn(__fmul_rn(g.y, n.inverse), n.clip), p.y, m.y, v.y);
    KIND::element(k, __fmul_rn(__fmul_rn(g.z, n.inverse), n.clip), p.z, m.z, v.z);
    KIND::element(k, __fmul_rn(__fmul_rn(g.w, n.inverse), n.clip), p.w, m.w, v.w);
}

// Moments as they are stored: FP32, BF16 rounded at random (update.h's mz_moments_round), or 8 bits (dynamic8.cuh).
// `shared` is what all threads of the kernel have of them together.
struct nothing_shared {
    __device__ __forceinline__ void prepare() {}
};
struct dynamic8_shared {
    dynamic8::tables tables;
    uint32_t amax[2][2][THREADS / WARP]; // by turns: of m and v, of each warp
    __device__ __forceinline__ void prepare() { dynamic8::load(tables, THREADS); }
};
template <typename M> struct shared_for { using type = nothing_shared; };
template <> struct shared_for<uint8_t> { using type = dynamic8_shared; };

// Returns where a segment's moments begin.
template <typename M> __device__ __forceinline__ M *moments_at(M *p, int64_t element) {
    if constexpr (sizeof(M) == 1)
        return p + element / dynamic8::BLOCK * dynamic8::RECORD;
    return p + element;
}

// N: how many there are; the others stay as they are.
template <int N, gaps G>
__device__ __forceinline__ void load_moments(const float *m, const float *v, const nothing_shared &, int64_t,
                                             const four<G> &f, float4 &xm, float4 &xv) {
    if (N > 0)
        xm = load4_once(m, f);
    if (N > 1)
        xv = load4_once(v, f);
}

template <int N, gaps G>
__device__ __forceinline__ void load_moments(const uint16_t *m, const uint16_t *v, const nothing_shared &, int64_t,
                                             const four<G> &f, float4 &xm, float4 &xv) {
    ushort4 a = load_halves(m, f), b = N > 1 ? load_halves(v, f) : make_ushort4(0, 0, 0, 0);
    xm = make_float4(join(a.x, 0), join(a.y, 0), join(a.z, 0), join(a.w, 0));
    xv = make_float4(join(b.x, 0), join(b.y, 0), join(b.z, 0), join(b.w, 0));
}

// Records have no padding, and always room for whole blocks: an element's place is its number.
template <typename T> struct record { T *scale, *fp8; };
template <typename T> __device__ __forceinline__ record<T> record_at(T *p, int64_t element) {
    T *start = p + element / dynamic8::BLOCK * dynamic8::RECORD;
    return {start, start + 4 + element % dynamic8::BLOCK};
}

template <typename L> __device__ __forceinline__ float4 decode_four(const L &table, const uint8_t *p, int64_t element) {
    record<const uint8_t> r = record_at(p, element);
    float scale = *reinterpret_cast<const float *>(r.scale);
    uchar4 c = *reinterpret_cast<const uchar4 *>(r.fp8);
    return make_float4(__fmul_rn(dynamic8::decode(table, c.x), scale), __fmul_rn(dynamic8::decode(table, c.y), scale),
                       __fmul_rn(dynamic8::decode(table, c.z), scale), __fmul_rn(dynamic8::decode(table, c.w), scale));
}

template <int N, gaps G>
__device__ __forceinline__ void load_moments(const uint8_t *m, const uint8_t *v, const dynamic8_shared &shared,
                                             int64_t element, const four<G> &f, float4 &xm, float4 &xv) {
    xm = xv = make_float4(0, 0, 0, 0);
    if (f.left <= 0)
        return;
    xm = decode_four(shared.tables.m, m, element);
    if (N > 1)
        xv = decode_four(shared.tables.v, v, element);
}

template <int N, gaps G>
__device__ __forceinline__ void store_moments(float *m, float *v, nothing_shared &, int, const philox_key &, int64_t,
                                              const four<G> &f, float4 xm, float4 xv) {
    if (N > 0)
        store_four(m, f, xm);
    if (N > 1)
        store_four(v, f, xv);
}

// The rank of four numbers' largest, of which `left` are there.
__device__ __forceinline__ uint32_t amax_of(float4 x, int left) {
    uint32_t amax = 1;
    amax = left > 0 ? max(amax, dynamic8::rank_of(x.x)) : amax;
    amax = left > 1 ? max(amax, dynamic8::rank_of(x.y)) : amax;
    amax = left > 2 ? max(amax, dynamic8::rank_of(x.z)) : amax;
    return left > 3 ? max(amax, dynamic8::rank_of(x.w)) : amax;
}

template <typename L>
__device__ __forceinline__ void encode_four(const L &table, uint8_t *p, int64_t element, float4 x, int left,
                                            float scale) {
    record<uint8_t> r = record_at(p, element);
    if (element % dynamic8::BLOCK == 0)
        *reinterpret_cast<float *>(r.scale) = scale;
    *reinterpret_cast<uchar4 *>(r.fp8) = make_uchar4(
        dynamic8::encode(table, left > 0 ? x.x : 0, scale), dynamic8::encode(table, left > 1 ? x.y : 0, scale),
        dynamic8::encode(table, left > 2 ? x.z : 0, scale), dynamic8::encode(table, left > 3 ? x.w : 0, scale));
}

// All threads of the kernel's block call it, two warps a block of 256: `turn` distinguishes calls that follow one
// another.
template <int N, gaps G>
__device__ __forceinline__ void store_moments(uint8_t *m, uint8_t *v, dynamic8_shared &shared, int turn,
                                              const philox_key &, int64_t element, const four<G> &f, float4 xm,
                                              float4 xv) {
    uint32_t amax[2] = {amax_of(xm, f.left), amax_of(xv, f.left)};
    int warp = threadIdx.x / WARP;
#pragma unroll
    for (int k = 0; k < N; k++) {
#pragma unroll
        for (int step = WARP / 2; step > 0; step >>= 1)
            amax[k] = max(amax[k], __shfl_xor_sync(0xFFFFFFFFu, amax[k], step));
        if (threadIdx.x % WARP == 0)
            shared.amax[turn & 1][k][warp] = amax[k];
    }
    __syncthreads();
    // A block that begins after the segment's end belongs to no segment; one that is cut off is written whole.
    if (element % dynamic8::BLOCK + f.left <= 0)
        return;
    const uint32_t *other = &shared.amax[turn & 1][0][warp ^ 1];
    encode_four(shared.tables.m, m, element, xm, f.left, dynamic8::number_of(max(amax[0], other[0])));
    if (N > 1)
        encode_four(shared.tables.v, v, element, xv, f.left, dynamic8::number_of(max(amax[1], other[THREADS / WARP])));
}

template <int N, gaps G>
__device__ __forceinline__ void store_moments(uint16_t *m, uint16_t *v, nothing_shared &, int, const philox_key &key,
                                              int64_t element, const four<G> &f, float4 xm, float4 xv) {
    if (f.left <= 0)
        return;
    uint4 w = philox(key, static_cast<uint64_t>(element) >> 2 | 1ull << 62);
    store_four(m, f,
               make_ushort4(round_at_random(xm.x, w.x), round_at_random(xm.y, w.y), round_at_random(xm.z, w.z),
                            round_at_random(xm.w, w.w)));
    if (N > 1)
        store_four(v, f,
                   make_ushort4(round_at_random(xv.x, w.x << 16), round_at_random(xv.y, w.y << 16),
                                round_at_random(xv.z, w.z << 16), round_at_random(xv.w, w.w << 16)));
}

// --- the calls; all kinds have the slots of adamw ------------------------------------------------------------------
template <class T> int count_in(const mz_tensor *bytes) { // structs T
    return mz_present(bytes) ? static_cast<int>(static_cast<size_t>(mz_shape_count(&bytes->shape)) / sizeof(T)) : 0;
}

// update_fp8.cu: updates `quantized` and writes their 8-bit data. Moments are FP32 or BF16.
#define KIND(name, ...) void launch_##name##_fp8(const mz_cuda_device *cuda, const mz_call *call);
#include "mezzo/optimizers.def"
#undef KIND

#endif
