// Group norm over images in pieces of pixels: a block reads all channels of its pixels, 8 side by side a thread, so
// that memory is read in order whatever a group is. Channels are a multiple of 8, at most 2,048. Sums are FP32 in an
// order that an image's shape decides.
#include "activation.cuh"
#include "early.cuh"
#include "group_norm.cuh"
#include "rows.cuh"

enum { NORM_BLOCK = 256, V = 4, LANES = NORM_BLOCK / WARP, FEW_PIECES = 256 }; // V: pixels of a thread

// Where a thread is: thread columns have 8 channels each, thread rows take pixels in turn. A piece may be read in
// `turns`.
struct place {
    int64_t image;
    int across, down, column, row, first, pixels; // pixels of the piece, from `first` on
    bool used;
};

static __device__ __forceinline__ place place_of(const mz_cu_group_norm &v, int pieces, int block, int turns = 1,
                                                 int turn = 0) {
    place p;
    p.across = static_cast<int>(v.c) / 8;
    p.down = NORM_BLOCK / p.across;
    p.row = static_cast<int>(threadIdx.x) / p.across;
    p.column = static_cast<int>(threadIdx.x) - p.row * p.across;
    const int image = block / pieces, piece = block - image * pieces;
    p.image = image;
    p.first = (piece * turns + turn) * p.down * V;
    p.pixels = static_cast<int>(v.pixels) - p.first < p.down * V ? static_cast<int>(v.pixels) - p.first : p.down * V;
    p.used = p.row < p.down;
    return p;
}

static __device__ __forceinline__ bool has(const place &p, int i) { // pixel i of the thread
    return p.used && p.row + i * p.down < p.pixels;
}

static __device__ __forceinline__ int64_t element_of(const mz_cu_group_norm &v, const place &p, int i) {
    return (p.image * v.pixels + p.first + p.row + i * p.down) * v.c + p.column * 8;
}

static __device__ __forceinline__ void fetch(raw8 raw[V], const mz_cu_array &a, const mz_cu_group_norm &v,
                                             const place &p) {
#pragma unroll
    for (int i = 0; i < V; i++)
        if (has(p, i))
            raw[i] = fetch8(a.data, a.dtype, element_of(v, p, i));
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
// Of each piece and group the mean and the squares about it: partial [B, pieces, groups, 2].
__global__ void __launch_bounds__(NORM_BLOCK) norm_pieces_kernel(mz_cu_group_norm v, int pieces, float *partial) {
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
    fetch(raw, v.x, v, p);
#pragma unroll
    for (int i = 0; i < V; i++)
        if (has(p, i)) {
            widen8(raw[i], v.x.dtype, x);
#pragma unroll
            for (int k = 0; k < 8; k++)
                sum[k] += x[k];
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
            widen8(raw[i], v.x.dtype, x);
#pragma unroll
            for (int k = 0; k < 8; k++)
                sum[k] = fmaf(x[k] - mean[k], x[k] - mean[k], sum[k]);
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
static __device__ __forceinline__ float2 statistics_of(const mz_cu_group_norm &v, int pieces, int each,
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

static __device__ __forceinline__ void keep(const mz_cu_group_norm &v, int64_t group, float2 s) {
    if (v.mean != nullptr)
        v.mean[group] = s.x;
    if (v.rstd != nullptr)
        v.rstd[group] = s.y;
}

// Of an image with many pieces: a warp for each image and group, statistics [B, groups, 2].
__global__ void __launch_bounds__(WARP)
    norm_statistics_kernel(mz_cu_group_norm v, int pieces, int each, const float *partial, float *statistics) {
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
#pragma unroll
    for (int k = 0; k < 8; k++)
        out[k] = absent;
    if (a.data != nullptr)
        load8(a.data, a.dtype, i, out);
}

// z = x̂·slope + offset of a thread's 8 channels.
struct affine {
    float slope[8], offset[8];
};

static __device__ __forceinline__ affine affine_of(const mz_cu_group_norm &v, const place &p) {
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

// Of few pieces (FEW) every block makes the statistics of its image from `partial`, else it reads them there.
template <bool FEW>
__global__ void __launch_bounds__(NORM_BLOCK)
    norm_apply_kernel(mz_cu_group_norm v, int pieces, int each, const float *partial) {
    extern __shared__ float2 own[]; // FEW: [groups]
    const place p = place_of(v, pieces, static_cast<int>(blockIdx.x));
    const int depth = static_cast<int>(v.depth), groups = static_cast<int>(v.groups);
    const float2 *of = reinterpret_cast<const float2 *>(partial) + p.image * groups * (FEW ? pieces : 1);
    float mean[8], rstd[8], x[8];
    raw8 raw[V];
    wait_for_before();
    fetch(raw, v.x, v, p);
    if (FEW) {
        for (int g = static_cast<int>(threadIdx.x) / WARP; g < groups; g += LANES) {
            const float2 s = statistics_of(v, pieces, each, of + g);
            if (threadIdx.x % WARP == 0) {
                own[g] = s;
                if (p.first == 0)
                    keep(v, p.image * groups + g, s);
            }
        }
        __syncthreads();
    }
    if (!p.used)
        return;
    const affine a = affine_of(v, p);
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const int group = (p.column * 8 + k) / depth;
        const float2 s = FEW ? own[group] : of[group];
        mean[k] = s.x;
        rstd[k] = s.y;
    }
#pragma unroll
    for (int i = 0; i < V; i++)
        if (has(p, i)) {
            widen8(raw[i], v.x.dtype, x);
#pragma unroll
            for (int k = 0; k < 8; k++) {
                const float z = fmaf((x[k] - mean[k]) * rstd[k], a.slope[k], a.offset[k]);
                x[k] = v.silu ? silu(z) : z;
            }
            store8(v.y.data, v.y.dtype, element_of(v, p, i), x);
        }
}

static int each_of(const mz_cu_group_norm *v) { // pixels of a piece
    return NORM_BLOCK / (static_cast<int>(v->c) / 8) * V;
}

static int pieces_of(const mz_cu_group_norm *v) {
    return static_cast<int>((v->pixels + each_of(v) - 1) / each_of(v));
}

// Backward a large image's pieces are read in turns: a piece leaves two sums of each channel.
static int turns_of(const mz_cu_group_norm *v) {
    const int turns = pieces_of(v) / 64;
    return turns < 1 ? 1 : turns > 16 ? 16 : turns;
}

static int slope_pieces_of(const mz_cu_group_norm *v) {
    return (pieces_of(v) + turns_of(v) - 1) / turns_of(v);
}

extern "C" size_t mz_cu_group_norm_pieces_bytes(const mz_cu_group_norm *v, bool backward) {
    const size_t pieces = static_cast<size_t>(v->b * (backward ? slope_pieces_of(v) : pieces_of(v))),
                 b = static_cast<size_t>(v->b);
    const size_t c = static_cast<size_t>(v->c), groups = static_cast<size_t>(v->groups);
    return (backward ? (pieces + b) * 2 * c + b * 2 * groups : (pieces + b) * 2 * groups) * sizeof(float);
}

extern "C" cudaError_t mz_cu_group_norm_forward_pieces(cudaStream_t stream, const mz_cu_group_norm *v,
                                                       float *workspace) {
    const int pieces = pieces_of(v), each = each_of(v);
    float *statistics = workspace + v->b * pieces * v->groups * 2;
    const dim3 blocks(static_cast<unsigned>(v->b * pieces)), block(NORM_BLOCK);
    const dim3 groups(static_cast<unsigned>(v->b * v->groups));
    const size_t shared = static_cast<size_t>(v->c + v->groups) * sizeof(float);
    const float *partial = workspace;
    cudaError_t error = launch_early(stream, norm_pieces_kernel, blocks, block, shared, *v, pieces, workspace);
    if (error == cudaSuccess && pieces <= FEW_PIECES)
        return launch_early(stream, norm_apply_kernel<true>, blocks, block,
                            static_cast<size_t>(v->groups) * sizeof(float2), *v, pieces, each, partial);
    if (error == cudaSuccess)
        error = launch_early(stream, norm_statistics_kernel, groups, dim3(WARP), size_t{0}, *v, pieces, each, partial,
                             statistics);
    if (error == cudaSuccess)
        error = launch_early(stream, norm_apply_kernel<false>, blocks, block, size_t{0}, *v, pieces, each,
                             static_cast<const float *>(statistics));
    return error;
}

// --- backward ------------------------------------------------------------------------------------------------------
// What a thread needs of its 8 channels, and what follows for a pixel: x̂ and dz = dy·act'(z).
struct channels8 {
    affine a;
    float mean[8], rstd[8];
};

static __device__ __forceinline__ channels8 channels_of(const mz_cu_group_norm &v, const place &p) {
    channels8 c;
    c.a = affine_of(v, p);
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const int64_t group = p.image * v.groups + (p.column * 8 + k) / static_cast<int>(v.depth);
        c.mean[k] = v.mean[group];
        c.rstd[k] = v.rstd[group];
    }
    return c;
}

static __device__ __forceinline__ void slopes_of(const mz_cu_group_norm &v, const channels8 &c, raw8 x, raw8 dy,
                                                 float normal[8], float dz[8]) {
    widen8(x, v.x.dtype, normal);
    widen8(dy, v.y.dtype, dz);
#pragma unroll
    for (int k = 0; k < 8; k++) {
        normal[k] = (normal[k] - c.mean[k]) * c.rstd[k];
        if (v.silu)
            dz[k] *= silu_slope(fmaf(normal[k], c.a.slope[k], c.a.offset[k]));
    }
}

// Σ dz and Σ dz·x̂ of each piece's channels: partial [B, pieces, 2, C].
__global__ void __launch_bounds__(NORM_BLOCK, 2)
    norm_slopes_kernel(mz_cu_group_norm v, int pieces, int turns, float *partial) {
    __shared__ __align__(16) float all[NORM_BLOCK * 8];
    const place p = place_of(v, pieces, static_cast<int>(blockIdx.x));
    float plain[8] = {0}, product[8] = {0}, normal[8], dz[8];
    wait_for_before();
    if (p.used) {
        const channels8 c = channels_of(v, p);
        for (int turn = 0; turn < turns; turn++) {
            const place now = place_of(v, pieces, static_cast<int>(blockIdx.x), turns, turn);
            raw8 x[V], dy[V];
            fetch(x, v.x, v, now);
            fetch(dy, v.y, v, now);
#pragma unroll
            for (int i = 0; i < V; i++)
                if (has(now, i)) {
                    slopes_of(v, c, x[i], dy[i], normal, dz);
#pragma unroll
                    for (int k = 0; k < 8; k++) {
                        plain[k] += dz[k];
                        product[k] = fmaf(dz[k], normal[k], product[k]);
                    }
                }
        }
    }
    float *to = partial + static_cast<int64_t>(blockIdx.x) * 2 * v.c;
    add_rows(p, plain, all, to);
    add_rows(p, product, all, to + v.c);
}

// A block for each image and group: sums [2, B, C] of partial, and means [B, groups, 2] of what reaches x̂ and of that
// times x̂.
__global__ void __launch_bounds__(NORM_BLOCK)
    norm_sums_kernel(mz_cu_group_norm v, int pieces, const float *partial, float *sums, float *means) {
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
        const float weight = v.weight.data != nullptr ? load1(v.weight.data, v.weight.dtype, c) : 1;
        const float scale = v.film.data != nullptr ? load1(v.film.data, v.film.dtype, image * 2 * v.c + c) : 0;
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
__global__ void __launch_bounds__(NORM_BLOCK, 2)
    norm_dx_kernel(mz_cu_group_norm v, int pieces, mz_cu_array dx, const float *means, norm_gradients out, int ahead) {
    wait_for_before();
    if (static_cast<int>(blockIdx.x) < ahead) {
        const int64_t c = static_cast<int64_t>(blockIdx.x) * NORM_BLOCK + threadIdx.x;
        if (c < v.c)
            add_images(v, out, c);
        return;
    }
    const place p = place_of(v, pieces, static_cast<int>(blockIdx.x) - ahead);
    if (!p.used)
        return;
    float plain[8], product[8], normal[8], dz[8];
    raw8 x[V], dy[V];
    fetch(x, v.x, v, p);
    fetch(dy, v.y, v, p);
    const channels8 c = channels_of(v, p);
    const float2 *of = reinterpret_cast<const float2 *>(means) + p.image * v.groups;
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const float2 m = of[(p.column * 8 + k) / static_cast<int>(v.depth)];
        plain[k] = m.x;
        product[k] = m.y;
    }
#pragma unroll
    for (int i = 0; i < V; i++)
        if (has(p, i)) {
            slopes_of(v, c, x[i], dy[i], normal, dz);
#pragma unroll
            for (int k = 0; k < 8; k++)
                dz[k] = c.rstd[k] * (dz[k] * c.a.slope[k] - plain[k] - normal[k] * product[k]);
            store8(dx.data, dx.dtype, element_of(v, p, i), dz);
        }
}

extern "C" cudaError_t mz_cu_group_norm_backward_pieces(cudaStream_t stream, const mz_cu_group_norm *v, mz_cu_array dx,
                                                        mz_cu_array dfilm, float *dweight, float *dbias,
                                                        bool accumulate, float *workspace) {
    const int pieces = slope_pieces_of(v);
    float *sums = workspace + v->b * pieces * 2 * v->c, *means = sums + 2 * v->b * v->c;
    const int ahead = static_cast<int>((v->c + NORM_BLOCK - 1) / NORM_BLOCK);
    const dim3 blocks(static_cast<unsigned>(v->b * pieces)), block(NORM_BLOCK);
    const dim3 groups(static_cast<unsigned>(v->b * v->groups)), all(static_cast<unsigned>(ahead + v->b * pieces_of(v)));
    cudaError_t error =
        launch_early(stream, norm_slopes_kernel, blocks, block, size_t{0}, *v, pieces, turns_of(v), workspace);
    if (error == cudaSuccess)
        error = launch_early(stream, norm_sums_kernel, groups, block, size_t{0}, *v, pieces,
                             static_cast<const float *>(workspace), sums, means);
    if (error == cudaSuccess)
        error = launch_early(stream, norm_dx_kernel, all, block, size_t{0}, *v, pieces_of(v), dx,
                             static_cast<const float *>(means), norm_gradients{dfilm, dweight, dbias, sums, accumulate},
                             ahead);
    return error;
}
