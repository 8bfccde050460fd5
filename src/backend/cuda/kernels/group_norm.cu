// Computes group norm of images in pieces of pixels: a block reads all channels of its pixels, 8 side by side a thread,
// so that memory is read in order whatever a group is. Channels are a multiple of 8, at most 2,048. Sums are FP32 in an
// order that an image's shape decides.
#include "activation.cuh"
#include "pdl_launch.cuh"
#include "host.cuh"
#include "rows.cuh"

// x [b, pixels, c] in groups of depth = c/groups; weight and bias [c], film [b, 2·c], mean and rstd [b, groups].
// Backward: y is dy.
struct group_norm_args {
    mz_cu_array x, weight, bias, film, y;
    float *mean, *rstd;
    int64_t b, pixels, c, groups, depth;
    float eps;
    bool silu;
};

// A macro, for an op's slots have names; `y` is backward's dy.
#define GROUP_NORM_ARGS(call, op, y, statistic)                                                                        \
    group_norm_args_of(call, mz_in(call, op, x), mz_in(call, op, weight), mz_in(call, op, bias),                       \
                       mz_in(call, op, film), y, statistic(call, op, mean), statistic(call, op, rstd))
inline group_norm_args group_norm_args_of(const mz_call *call, const mz_tensor *x, const mz_tensor *weight,
                                          const mz_tensor *bias, const mz_tensor *film, const mz_tensor *y,
                                          const mz_tensor *mean, const mz_tensor *rstd) {
    const mz_shape *shape = &x->shape;
    const int64_t b = shape->dim[0], c = shape->dim[shape->rank - 1], groups = call->attrs.groups;
    return {.x = mz_cuda_array(x),
            .weight = mz_cuda_array(weight),
            .bias = mz_cuda_array(bias),
            .film = mz_cuda_array(film),
            .y = mz_cuda_array(y),
            .mean = data_of<float>(mean),
            .rstd = data_of<float>(rstd),
            .b = b,
            .pixels = mz_shape_count(shape) / b / c,
            .c = c,
            .groups = groups,
            .depth = c / groups,
            .eps = call->attrs.eps,
            .silu = call->attrs.act == MZ_ACT_SILU};
}
inline group_norm_args forward_of(const mz_call *call) {
    return GROUP_NORM_ARGS(call, group_norm, mz_out(call, group_norm, y), mz_out);
}
inline group_norm_args backward_of(const mz_call *call) {
    return GROUP_NORM_ARGS(call, group_norm_bwd, mz_in(call, group_norm_bwd, dy), mz_in);
}

__device__ __forceinline__ float or_else(mz_cu_array a, int64_t i, float absent) {
    return a.data != nullptr ? load1(a, i) : absent;
}

struct channel {
    float weight, bias, scale, shift;
};

__device__ __forceinline__ channel channel_of(const group_norm_args &v, int64_t image, int64_t c) {
    return {or_else(v.weight, c, 1), or_else(v.bias, c, 0), 1 + or_else(v.film, image * 2 * v.c + c, 0),
            or_else(v.film, image * 2 * v.c + v.c + c, 0)};
}

struct norm_gradients {
    mz_cu_array film; // may be absent, as may the next two
    float *weight, *bias;
    const float *sums; // [2, b, c]: Σ dz and Σ dz·x̂ of each image's channels
    bool accumulate;
};

inline norm_gradients norm_gradients_of(const mz_call *call, const float *sums) {
    return {mz_cuda_array(mz_out(call, group_norm_bwd, dfilm)), data_of<float>(mz_out(call, group_norm_bwd, dweight)),
            data_of<float>(mz_out(call, group_norm_bwd, dbias)), sums, call->attrs.accumulate};
}

// Adds up channel c over all images in order.
__device__ __forceinline__ void add_images(const group_norm_args &v, const norm_gradients &out, int64_t c) {
    float weight = 0, bias = 0;
#pragma unroll 4
    for (int64_t image = 0; image < v.b; image++) {
        const channel k = channel_of(v, image, c);
        const float plain = out.sums[image * v.c + c], normal = out.sums[(v.b + image) * v.c + c];
        weight = fmaf(k.scale, normal, weight);
        bias = fmaf(k.scale, plain, bias);
        if (out.film.data != nullptr) {
            store1(out.film, image * 2 * v.c + c, fmaf(k.weight, normal, k.bias * plain));
            store1(out.film, image * 2 * v.c + v.c + c, plain);
        }
    }
    if (out.weight != nullptr)
        out.weight[c] = out.accumulate ? out.weight[c] + weight : weight;
    if (out.bias != nullptr)
        out.bias[c] = out.accumulate ? out.bias[c] + bias : bias;
}

enum { NORM_BLOCK = 256, V = 4, LANES = NORM_BLOCK / WARP }; // V: pixels of a thread at a time
enum { FEW_PIECES = 256, SPANS = 32, MOST_TURNS = 16 };

// Holds a thread's place: thread columns have 8 channels each, thread rows take pixels in turn. A pass that keeps
// nothing in registers runs over spans of several pieces, so that fewer blocks start.
struct place {
    int64_t image;
    int across, down, column, row, first, pixels; // pixels of the piece, from `first` on
    bool used;
};

static __device__ __forceinline__ place place_of(const group_norm_args &v, int spans, int block, int turns = 1) {
    place p;
    p.across = static_cast<int>(v.c) / 8;
    p.down = NORM_BLOCK / p.across;
    p.row = static_cast<int>(threadIdx.x) / p.across;
    p.column = static_cast<int>(threadIdx.x) - p.row * p.across;
    const int image = block / spans, span = block - image * spans;
    p.image = image;
    p.first = span * turns * p.down * V;
    p.pixels = min(static_cast<int>(v.pixels) - p.first, p.down * V);
    p.used = p.row < p.down;
    return p;
}

static __device__ __forceinline__ bool has(const place &p, int i) { // pixel i of the thread
    return p.used && p.row + i * p.down < p.pixels;
}

static __device__ __forceinline__ int64_t element_of(const group_norm_args &v, const place &p, int i) {
    return (p.image * v.pixels + p.first + p.row + i * p.down) * v.c + p.column * 8;
}

// LOW: 16-bit storage, half the registers.
template <bool LOW>
static __device__ __forceinline__ void fetch(raw8 raw[V], const mz_cu_array &a, const group_norm_args &v,
                                             const place &p) {
#pragma unroll
    for (int i = 0; i < V; i++)
        if (has(p, i)) {
            if (LOW)
                raw[i].lo = static_cast<const uint4 *>(a.data)[element_of(v, p, i) / 8];
            else
                raw[i] = fetch8(a, element_of(v, p, i));
        }
}

template <bool LOW> static __device__ __forceinline__ void widen(raw8 raw, int dtype, float x[8]) {
    if (LOW)
        widen8(raw, dtype == MEZZO_BF16 ? MEZZO_BF16 : MEZZO_F16, x);
    else
        widen8(raw, dtype, x);
}

// f(i, x, dy) for the pixels of a span's pieces, which `x` and `dy` have as they are stored; `both`: of dy too.
template <bool LOW, class F>
static __device__ __forceinline__ void for_pixels(const group_norm_args &v, place &p, int turns, raw8 x[V], raw8 dy[V],
                                                  bool both, F f) {
    for (int turn = 0; turn < turns; turn++) {
#pragma unroll
        for (int i = 0; i < V; i++)
            if (has(p, i))
                f(i);
        p.first += p.down * V;
        p.pixels = min(static_cast<int>(v.pixels) - p.first, p.down * V);
        if (turn + 1 < turns) {
            fetch<LOW>(x, v.x, v, p);
            if (both)
                fetch<LOW>(dy, v.y, v, p);
        }
    }
}

// Each channel's sum over the block's threads, to channels [C]; `all` [NORM_BLOCK·8].
static __device__ __forceinline__ void add_rows(const place &p, const float sum[8], float *all, float *channels) {
    __syncthreads();
    if (p.used) {
#pragma unroll
        for (int k = 0; k < 8; k += 4)
            *reinterpret_cast<float4 *>(all + (p.row * p.across + p.column) * 8 + k) =
                make_float4(sum[k], sum[k + 1], sum[k + 2], sum[k + 3]);
    }
    __syncthreads();
    for (int c = static_cast<int>(threadIdx.x); c < p.across * 8; c += NORM_BLOCK) {
        float total = 0;
#pragma unroll 4
        for (int r = 0; r < p.down; r++)
            total += all[r * p.across * 8 + c];
        channels[c] = total;
    }
    __syncthreads();
}

// A group's sum of its channels', by a warp.
static __device__ __forceinline__ float of_group(const float *channels, int group, int depth) {
    float total = 0;
    for (int d = static_cast<int>(threadIdx.x) % WARP; d < depth; d += WARP)
        total += channels[group * depth + d];
    return warp_sum(total);
}

// --- forward -------------------------------------------------------------------------------------------------------
// Computes the mean of each piece and group and the squares about it: partial [B, pieces, groups, 2].
template <bool LOW>
__global__ void __launch_bounds__(NORM_BLOCK) norm_pieces_kernel(group_norm_args v, int pieces, float *partial) {
    __shared__ __align__(16) float all[NORM_BLOCK * 8];
    extern __shared__ float channels[]; // [C], then means [groups]
    float *means = channels + v.c;
    const place p = place_of(v, pieces, static_cast<int>(blockIdx.x));
    const int warp = static_cast<int>(threadIdx.x) / WARP, groups = static_cast<int>(v.groups);
    const int depth = static_cast<int>(v.depth);
    const bool first_lane = threadIdx.x % WARP == 0;
    const float n = static_cast<float>(p.pixels * depth);
    float sum[8] = {0}, mean[8], x[8];
    raw8 raw[V];
    wait_for_before();
    fetch<LOW>(raw, v.x, v, p);
#pragma unroll
    for (int i = 0; i < V; i++)
        if (has(p, i)) {
            widen<LOW>(raw[i], v.x.dtype, x);
            for_each<8>([&](int k) { sum[k] += x[k]; });
        }
    add_rows(p, sum, all, channels);
    for (int g = warp; g < groups; g += LANES) {
        const float total = of_group(channels, g, depth);
        if (first_lane)
            means[g] = total / n;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 8; k++) {
        mean[k] = means[(p.column * 8 + k) / depth];
        sum[k] = 0;
    }
#pragma unroll
    for (int i = 0; i < V; i++)
        if (has(p, i)) {
            widen<LOW>(raw[i], v.x.dtype, x);
            for_each<8>([&](int k) { sum[k] = fmaf(x[k] - mean[k], x[k] - mean[k], sum[k]); });
        }
    add_rows(p, sum, all, channels);
    for (int g = warp; g < groups; g += LANES) {
        const float squares = of_group(channels, g, depth);
        if (first_lane)
            *reinterpret_cast<float2 *>(partial + (static_cast<int64_t>(blockIdx.x) * groups + g) * 2) =
                make_float2(means[g], squares);
    }
}

// Mean and 1/√(variance + eps) of an image's group, by a warp, from its pieces (`of`: those of the group, `each` pixels
// but the last).
static __device__ __forceinline__ float2 statistics_of(const group_norm_args &v, int pieces, int each,
                                                       const float2 *of) {
    const float n = static_cast<float>(v.pixels * v.depth), depth = static_cast<float>(v.depth);
    const int last = static_cast<int>(v.pixels) - (pieces - 1) * each, groups = static_cast<int>(v.groups);
    float sum = 0, squares = 0;
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x) % WARP; i < pieces; i += WARP)
        sum = fmaf(static_cast<float>(i + 1 < pieces ? each : last) * depth, of[i * groups].x, sum);
    const float mean = warp_sum(sum) / n;
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x) % WARP; i < pieces; i += WARP) {
        const float2 piece = of[i * groups];
        const float d = piece.x - mean;
        squares += fmaf(static_cast<float>(i + 1 < pieces ? each : last) * depth * d, d, piece.y);
    }
    return make_float2(mean, 1 / sqrtf(warp_sum(squares) / n + v.eps));
}

static __device__ __forceinline__ void keep(const group_norm_args &v, int64_t group, float2 s) {
    if (v.mean != nullptr)
        v.mean[group] = s.x;
    if (v.rstd != nullptr)
        v.rstd[group] = s.y;
}

// Reduces an image with many pieces: a warp for each image and group, statistics [B, groups, 2].
__global__ void __launch_bounds__(WARP)
    norm_statistics_kernel(group_norm_args v, int pieces, int each, const float *partial, float *statistics) {
    const int64_t image = blockIdx.x / v.groups, group = blockIdx.x % v.groups;
    wait_for_before();
    const float2 s =
        statistics_of(v, pieces, each, reinterpret_cast<const float2 *>(partial) + image * pieces * v.groups + group);
    if (threadIdx.x != 0)
        return;
    *reinterpret_cast<float2 *>(statistics + blockIdx.x * 2) = s;
    keep(v, blockIdx.x, s);
}

static __device__ __forceinline__ void given8(const mz_cu_array &a, int64_t i, float absent, float out[8]) {
    for_each<8>([&](int k) { out[k] = absent; });
    if (a.data != nullptr)
        load8(a, i, out);
}

// z = x̂·slope + offset of a thread's 8 channels.
struct affine {
    float slope[8], offset[8];
};

static __device__ __forceinline__ affine affine_of(const group_norm_args &v, const place &p) {
    affine a;
    float scale[8], shift[8];
    const int64_t c = p.column * 8;
    given8(v.weight, c, 1, a.slope);
    given8(v.bias, c, 0, a.offset);
    given8(v.film, p.image * 2 * v.c + c, 0, scale);
    given8(v.film, p.image * 2 * v.c + v.c + c, 0, shift);
#pragma unroll
    for (int k = 0; k < 8; k++) {
        a.slope[k] *= 1 + scale[k];
        a.offset[k] = fmaf(a.offset[k], 1 + scale[k], shift[k]);
    }
    return a;
}

// A group's numbers for each of a thread's 8 channels: one pair where a group has whole eights (EIGHTS).
template <bool EIGHTS> struct of_groups {
    float x[EIGHTS ? 1 : 8], y[EIGHTS ? 1 : 8];
    template <class F> __device__ __forceinline__ void read(F pair_of, int column, int depth) { // pair_of(group)
#pragma unroll
        for (int k = 0; k < (EIGHTS ? 1 : 8); k++) {
            const float2 f = pair_of((column * 8 + k) / depth);
            x[k] = f.x;
            y[k] = f.y;
        }
    }
    __device__ __forceinline__ float first(int k) const {
        return x[EIGHTS ? 0 : k];
    }
    __device__ __forceinline__ float second(int k) const {
        return y[EIGHTS ? 0 : k];
    }
};

// With few pieces (FEW) every block computes the statistics of its image from `partial`; otherwise it reads them there.
template <bool LOW, bool EIGHTS, bool FEW>
__global__ void __launch_bounds__(NORM_BLOCK)
    norm_apply_kernel(group_norm_args v, int spans, int turns, int pieces, int each, const float *partial) {
    extern __shared__ float2 own[]; // FEW: [groups]
    place p = place_of(v, spans, static_cast<int>(blockIdx.x), turns);
    const int groups = static_cast<int>(v.groups);
    const float2 *of = reinterpret_cast<const float2 *>(partial) + p.image * groups * (FEW ? pieces : 1);
    float x[8];
    raw8 raw[V];
    of_groups<EIGHTS> s;
    wait_for_before();
    fetch<LOW>(raw, v.x, v, p);
    if (FEW) {
        for (int g = static_cast<int>(threadIdx.x) / WARP; g < groups; g += LANES) {
            const float2 made = statistics_of(v, pieces, each, of + g);
            if (threadIdx.x % WARP == 0) {
                own[g] = made;
                if (p.first == 0)
                    keep(v, p.image * groups + g, made);
            }
        }
        __syncthreads();
    }
    if (!p.used)
        return;
    const affine a = affine_of(v, p);
    s.read([&](int g) { return (FEW ? own : of)[g]; }, p.column, static_cast<int>(v.depth));
    for_pixels<LOW>(v, p, turns, raw, nullptr, false, [&](int i) {
        widen<LOW>(raw[i], v.x.dtype, x);
        for_each<8>([&](int k) {
            const float z = fmaf((x[k] - s.first(k)) * s.second(k), a.slope[k], a.offset[k]);
            x[k] = v.silu ? silu(z) : z;
        });
        store8(v.y, element_of(v, p, i), x);
    });
}

static int each_of(const group_norm_args &v) { // pixels of a piece
    return NORM_BLOCK / (static_cast<int>(v.c) / 8) * V;
}

static int pieces_of(const group_norm_args &v) {
    return static_cast<int>((v.pixels + each_of(v) - 1) / each_of(v));
}

// Returns pieces of a span, and spans.
static int turns_of(const group_norm_args &v) {
    const int turns = (pieces_of(v) + SPANS - 1) / SPANS;
    return turns < MOST_TURNS ? turns : MOST_TURNS;
}

static int spans_of(const group_norm_args &v) {
    return (pieces_of(v) + turns_of(v) - 1) / turns_of(v);
}

static bool is_low(mz_cu_array a) {
    return a.dtype != MEZZO_F32;
}

static size_t bytes_of(const group_norm_args &v, bool backward) { // of the workspace
    const size_t pieces = static_cast<size_t>(v.b * (backward ? spans_of(v) : pieces_of(v))),
                 b = static_cast<size_t>(v.b);
    const size_t c = static_cast<size_t>(v.c), groups = static_cast<size_t>(v.groups);
    return (backward ? (pieces + b) * 2 * c + b * 2 * groups : (pieces + b) * 2 * groups) * sizeof(float);
}

// cuda.c composes group norm of other channels.
static const char *pieces_refusal(const group_norm_args &v) {
    if (v.c == 0 || v.c % 8 != 0 || v.c > 2048)
        return "reads channels 8 at a time, up to 2,048";
    return v.b * v.pixels >= static_cast<int64_t>(1) << 30 ? "images of 2^30 pixels or more" : NULL;
}

template <bool LOW, bool EIGHTS> static void forward(cudaStream_t stream, const group_norm_args &v, float *workspace) {
    const int pieces = pieces_of(v), each = each_of(v), turns = turns_of(v), spans = spans_of(v);
    float *statistics = workspace + v.b * pieces * v.groups * 2;
    const unsigned applying = static_cast<unsigned>(v.b * spans);
    const size_t shared = static_cast<size_t>(v.c + v.groups) * sizeof(float);
    launch_dependent(stream, norm_pieces_kernel<LOW>, static_cast<unsigned>(v.b * pieces), NORM_BLOCK, shared, v,
                     pieces, workspace);
    if (pieces <= FEW_PIECES) {
        launch_dependent(stream, norm_apply_kernel<LOW, EIGHTS, true>, applying, NORM_BLOCK,
                         static_cast<size_t>(v.groups) * sizeof(float2), v, spans, turns, pieces, each, workspace);
        return;
    }
    launch_dependent(stream, norm_statistics_kernel, static_cast<unsigned>(v.b * v.groups), WARP, 0, v, pieces, each,
                     workspace, statistics);
    launch_dependent(stream, norm_apply_kernel<LOW, EIGHTS, false>, applying, NORM_BLOCK, 0, v, spans, turns, pieces,
                     each, statistics);
}

static void launch_forward(const mz_cuda_device *cuda, const mz_call *call) {
    const group_norm_args v = forward_of(call);
    const bool eights = v.depth % 8 == 0;
    const auto run = is_low(v.x) ? (eights ? forward<true, true> : forward<true, false>)
                                 : (eights ? forward<false, true> : forward<false, false>);
    run(cuda->stream, v, static_cast<float *>(call->workspace));
}
template <bool BACKWARD> static const char *group_norm_prepare(mezzo_device *, const mz_call *call, mz_prepared *out) {
    const group_norm_args v = BACKWARD ? backward_of(call) : forward_of(call);
    const char *reason = BACKWARD ? mz_cuda_storages(call, "aaaaaff", "aaff") : mz_cuda_storages(call, "a", "aff");
    reason = reason != NULL ? reason : pieces_refusal(v);
    if (reason == NULL)
        out->workspace = bytes_of(v, BACKWARD);
    return reason;
}
MZ_CUDA_KERNEL(group_norm, launch_forward, group_norm_prepare<false>)

// --- backward ------------------------------------------------------------------------------------------------------
// Holds what a thread needs of its 8 channels, and what follows for a pixel: x̂ and dz = dy·act'(z).
template <bool EIGHTS> struct channels8 {
    affine a;
    of_groups<EIGHTS> statistics; // mean and rstd
    __device__ __forceinline__ channels8(const group_norm_args &v, const place &p) : a(affine_of(v, p)) {
        const int64_t first = p.image * v.groups;
        statistics.read([&](int g) { return make_float2(v.mean[first + g], v.rstd[first + g]); }, p.column,
                        static_cast<int>(v.depth));
    }
    __device__ __forceinline__ float of_rstd(int k) const { return statistics.second(k); }
    __device__ __forceinline__ float normal(float x, int k) const {
        return (x - statistics.first(k)) * statistics.second(k);
    }
};

template <bool LOW, bool EIGHTS>
static __device__ __forceinline__ void derivatives_of(const group_norm_args &v, const channels8<EIGHTS> &c, raw8 x,
                                                      raw8 dy, float normal[8], float dz[8]) {
    widen<LOW>(x, v.x.dtype, normal);
    widen<LOW>(dy, v.y.dtype, dz);
#pragma unroll
    for (int k = 0; k < 8; k++) {
        normal[k] = c.normal(normal[k], k);
        if (v.silu)
            dz[k] *= silu_derivative(fmaf(normal[k], c.a.slope[k], c.a.offset[k]));
    }
}

// Σ dz and Σ dz·x̂ of each span's channels: partial [B, spans, 2, C].
template <bool LOW, bool EIGHTS>
__global__ void __launch_bounds__(NORM_BLOCK, 2)
    norm_slopes_kernel(group_norm_args v, int spans, int turns, float *partial) {
    __shared__ __align__(16) float all[NORM_BLOCK * 8];
    place p = place_of(v, spans, static_cast<int>(blockIdx.x), turns);
    float plain[8] = {0}, product[8] = {0}, normal[8], dz[8];
    wait_for_before();
    if (p.used) {
        raw8 x[V], dy[V];
        fetch<LOW>(x, v.x, v, p);
        fetch<LOW>(dy, v.y, v, p);
        const channels8<EIGHTS> c(v, p);
        for_pixels<LOW>(v, p, turns, x, dy, true, [&](int i) {
            derivatives_of<LOW>(v, c, x[i], dy[i], normal, dz);
            for_each<8>([&](int k) {
                plain[k] += dz[k];
                product[k] = fmaf(dz[k], normal[k], product[k]);
            });
        });
    }
    float *to = partial + static_cast<int64_t>(blockIdx.x) * 2 * v.c;
    add_rows(p, plain, all, to);
    add_rows(p, product, all, to + v.c);
}

// A block for each image and group: sums [2, B, C] of partial, and means [B, groups, 2] of what reaches x̂ and of that
// times x̂.
__global__ void __launch_bounds__(NORM_BLOCK)
    norm_sums_kernel(group_norm_args v, int pieces, const float *partial, float *sums, float *means) {
    __shared__ float shared[2][LANES][WARP];
    const int64_t image = blockIdx.x / v.groups, first = blockIdx.x % v.groups * v.depth;
    const int column = static_cast<int>(threadIdx.x) % WARP, lane = static_cast<int>(threadIdx.x) / WARP;
    const float n = static_cast<float>(v.pixels * v.depth);
    float of_plain = 0, of_product = 0;
    wait_for_before();
    for (int c0 = 0; c0 < v.depth; c0 += WARP) {
        const bool used = c0 + column < v.depth;
        const int64_t c = first + c0 + column;
        float plain = 0, product = 0;
        if (used) {
            const float *from = partial + image * pieces * 2 * v.c + c;
#pragma unroll 4
            for (int i = lane; i < pieces; i += LANES) {
                plain += from[i * 2 * v.c];
                product += from[(i * 2 + 1) * v.c];
            }
        }
        __syncthreads();
        shared[0][lane][column] = plain;
        shared[1][lane][column] = product;
        __syncthreads();
        if (lane > 0 || !used)
            continue;
#pragma unroll
        for (int i = 1; i < LANES; i++) {
            plain += shared[0][i][column];
            product += shared[1][i][column];
        }
        sums[image * v.c + c] = plain;
        sums[(v.b + image) * v.c + c] = product;
        const float weight = v.weight.data != nullptr ? load1(v.weight, c) : 1;
        const float scale = v.film.data != nullptr ? load1(v.film, image * 2 * v.c + c) : 0;
        of_plain = fmaf(plain, weight * (1 + scale), of_plain);
        of_product = fmaf(product, weight * (1 + scale), of_product);
    }
    if (lane > 0)
        return;
    of_plain = warp_sum(of_plain);
    of_product = warp_sum(of_product);
    if (column == 0)
        *reinterpret_cast<float2 *>(means + blockIdx.x * 2) = make_float2(of_plain / n, of_product / n);
}

// The first `ahead` blocks have channels, of which they make the gradients of weight, bias and film.
template <bool LOW, bool EIGHTS>
__global__ void __launch_bounds__(NORM_BLOCK, 2) norm_dx_kernel(group_norm_args v, int spans, int turns, mz_cu_array dx,
                                                                const float *means, norm_gradients out, int ahead) {
    wait_for_before();
    if (static_cast<int>(blockIdx.x) < ahead) {
        const int64_t channel = static_cast<int64_t>(blockIdx.x) * NORM_BLOCK + threadIdx.x;
        if (channel < v.c)
            add_images(v, out, channel);
        return;
    }
    place p = place_of(v, spans, static_cast<int>(blockIdx.x) - ahead, turns);
    if (!p.used)
        return;
    float normal[8], dz[8];
    raw8 x[V], dy[V];
    of_groups<EIGHTS> mean;
    fetch<LOW>(x, v.x, v, p);
    fetch<LOW>(dy, v.y, v, p);
    const channels8<EIGHTS> c(v, p);
    const float2 *of = reinterpret_cast<const float2 *>(means) + p.image * v.groups;
    mean.read([&](int g) { return of[g]; }, p.column, static_cast<int>(v.depth));
    for_pixels<LOW>(v, p, turns, x, dy, true, [&](int i) {
        derivatives_of<LOW>(v, c, x[i], dy[i], normal, dz);
        for_each<8>(
            [&](int k) { dz[k] = c.of_rstd(k) * (dz[k] * c.a.slope[k] - mean.first(k) - normal[k] * mean.second(k)); });
        store8(dx, element_of(v, p, i), dz);
    });
}

template <bool LOW, bool EIGHTS>
static void backward(cudaStream_t stream, const mz_call *call, const group_norm_args &v) {
    const int spans = spans_of(v), turns = turns_of(v), ahead = static_cast<int>((v.c + NORM_BLOCK - 1) / NORM_BLOCK);
    float *workspace = static_cast<float *>(call->workspace);
    float *sums = workspace + v.b * spans * 2 * v.c, *means = sums + 2 * v.b * v.c;
    const unsigned blocks = static_cast<unsigned>(v.b * spans);
    launch_dependent(stream, norm_slopes_kernel<LOW, EIGHTS>, blocks, NORM_BLOCK, 0, v, spans, turns, workspace);
    launch_dependent(stream, norm_sums_kernel, static_cast<unsigned>(v.b * v.groups), NORM_BLOCK, 0, v, spans,
                     workspace, sums, means);
    launch_dependent(stream, norm_dx_kernel<LOW, EIGHTS>, ahead + blocks, NORM_BLOCK, 0, v, spans, turns,
                     mz_cuda_array(mz_out(call, group_norm_bwd, dx)), means, norm_gradients_of(call, sums), ahead);
}

static void launch_backward(const mz_cuda_device *cuda, const mz_call *call) {
    const group_norm_args v = backward_of(call);
    const bool eights = v.depth % 8 == 0;
    const auto run = is_low(v.x) && is_low(v.y) ? (eights ? backward<true, true> : backward<true, false>)
                                                : (eights ? backward<false, true> : backward<false, false>);
    run(cuda->stream, call, v);
}
MZ_CUDA_KERNEL(group_norm_bwd, launch_backward, group_norm_prepare<true>)
