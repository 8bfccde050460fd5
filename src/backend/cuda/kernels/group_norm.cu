// Group norm over images in pieces of pixels: a block reads all channels of its pixels, 8 side by side a thread, so
// that memory is read in order whatever a group is. Channels are a multiple of 8, at most 2,048. Sums are FP32 in an
// order that the shapes decide.
#include "activation.cuh"
#include "group_norm.h"
#include "rows.cuh"

enum { NORM_BLOCK = 256, PIECE = 8192, MOST_PIECES = 1024 };

// Where a block is, and a thread in it: thread columns have 8 channels each, thread rows take pixels in turn.
struct place {
    int64_t image, first, end; // pixels
    int across, down, column, row;
    bool used;
};

static __device__ __forceinline__ place place_of(const mz_cu_group_norm &v, int64_t pieces) {
    place p;
    const int64_t piece = blockIdx.x % pieces, each = (v.pixels + pieces - 1) / pieces;
    p.image = blockIdx.x / pieces;
    p.first = piece * each;
    p.end = p.first + each < v.pixels ? p.first + each : v.pixels;
    p.across = static_cast<int>(v.c / 8);
    p.down = NORM_BLOCK / p.across;
    p.column = static_cast<int>(threadIdx.x) % p.across;
    p.row = static_cast<int>(threadIdx.x) / p.across;
    p.used = p.row < p.down;
    return p;
}

// Each channel's sum over the block's threads, to channels [C]; `all` [NORM_BLOCK·8].
static __device__ __forceinline__ void add_rows(const place &p, const float sum[8], float *all, float *channels) {
    __syncthreads();
    if (p.used)
        for (int k = 0; k < 8; k++)
            all[(p.row * p.across + p.column) * 8 + k] = sum[k];
    __syncthreads();
    for (int c = static_cast<int>(threadIdx.x); c < p.across * 8; c += NORM_BLOCK) {
        float total = 0;
        for (int r = 0; r < p.down; r++)
            total += all[r * p.across * 8 + c];
        channels[c] = total;
    }
    __syncthreads();
}

static __device__ __forceinline__ float of_group(const float *channels, int64_t group, int64_t depth) {
    float total = 0;
    for (int64_t d = 0; d < depth; d++)
        total += channels[group * depth + d];
    return total;
}

// --- forward -------------------------------------------------------------------------------------------------------
// Of each piece and group the mean and the squares about it: partial [B, pieces, groups, 2].
__global__ void __launch_bounds__(NORM_BLOCK) norm_pieces_kernel(mz_cu_group_norm v, int64_t pieces, float *partial) {
    __shared__ float all[NORM_BLOCK * 8];
    extern __shared__ float channels[]; // [C], then means [groups]
    float *means = channels + v.c;
    const place p = place_of(v, pieces);
    const float n = static_cast<float>((p.end - p.first) * v.depth);
    float sum[8] = {0}, mean[8], x[8];
    if (p.used)
        for (int64_t pixel = p.first + p.row; pixel < p.end; pixel += p.down) {
            load8(v.x.data, v.x.dtype, (p.image * v.pixels + pixel) * v.c + p.column * 8, x);
            for (int k = 0; k < 8; k++)
                sum[k] += x[k];
        }
    add_rows(p, sum, all, channels);
    for (int64_t g = threadIdx.x; g < v.groups; g += NORM_BLOCK)
        means[g] = of_group(channels, g, v.depth) / n;
    __syncthreads();
    for (int k = 0; k < 8; k++) {
        mean[k] = means[(p.column * 8 + k) / v.depth];
        sum[k] = 0;
    }
    if (p.used)
        for (int64_t pixel = p.first + p.row; pixel < p.end; pixel += p.down) {
            load8(v.x.data, v.x.dtype, (p.image * v.pixels + pixel) * v.c + p.column * 8, x);
            for (int k = 0; k < 8; k++)
                sum[k] = fmaf(x[k] - mean[k], x[k] - mean[k], sum[k]);
        }
    add_rows(p, sum, all, channels);
    for (int64_t g = threadIdx.x; g < v.groups; g += NORM_BLOCK) {
        partial[(blockIdx.x * v.groups + g) * 2] = means[g];
        partial[(blockIdx.x * v.groups + g) * 2 + 1] = of_group(channels, g, v.depth);
    }
}

// A warp for each image and group: statistics [B, groups, 2] are mean and 1/√(variance + eps).
__global__ void __launch_bounds__(WARP)
    norm_statistics_kernel(mz_cu_group_norm v, int64_t pieces, const float *partial, float *statistics) {
    const int64_t image = blockIdx.x / v.groups, group = blockIdx.x % v.groups;
    const int64_t each = (v.pixels + pieces - 1) / pieces;
    const float n = static_cast<float>(v.pixels * v.depth);
    float sum = 0, squares = 0;
    for (int64_t i = threadIdx.x; i < pieces; i += WARP) {
        const int64_t own = (i + 1) * each < v.pixels ? each : v.pixels - i * each;
        sum = fmaf(static_cast<float>(own * v.depth), partial[((image * pieces + i) * v.groups + group) * 2], sum);
    }
    const float mean = warp_sum(sum) / n;
    for (int64_t i = threadIdx.x; i < pieces; i += WARP) {
        const int64_t own = (i + 1) * each < v.pixels ? each : v.pixels - i * each;
        const float *of = partial + ((image * pieces + i) * v.groups + group) * 2;
        const float d = of[0] - mean;
        squares += fmaf(static_cast<float>(own * v.depth) * d, d, of[1]);
    }
    const float rstd = 1 / sqrtf(warp_sum(squares) / n + v.eps);
    if (threadIdx.x != 0)
        return;
    statistics[blockIdx.x * 2] = mean;
    statistics[blockIdx.x * 2 + 1] = rstd;
    if (v.mean != nullptr)
        v.mean[blockIdx.x] = mean;
    if (v.rstd != nullptr)
        v.rstd[blockIdx.x] = rstd;
}

static __device__ __forceinline__ float given(mz_cu_array a, int64_t i, float absent) {
    return a.data != nullptr ? load1(a.data, a.dtype, i) : absent;
}

// z = x̂·slope + offset of a thread's 8 channels.
struct affine {
    float slope[8], offset[8];
};

static __device__ __forceinline__ affine affine_of(const mz_cu_group_norm &v, const place &p) {
    affine a;
    for (int k = 0; k < 8; k++) {
        const int64_t c = p.column * 8 + k;
        const float scale = 1 + given(v.film, p.image * 2 * v.c + c, 0);
        a.slope[k] = given(v.weight, c, 1) * scale;
        a.offset[k] = fmaf(given(v.bias, c, 0), scale, given(v.film, p.image * 2 * v.c + v.c + c, 0));
    }
    return a;
}

__global__ void __launch_bounds__(NORM_BLOCK)
    norm_apply_kernel(mz_cu_group_norm v, int64_t pieces, const float *statistics) {
    const place p = place_of(v, pieces);
    if (!p.used)
        return;
    const affine a = affine_of(v, p);
    float mean[8], rstd[8], x[8];
    for (int k = 0; k < 8; k++) {
        const int64_t group = p.image * v.groups + (p.column * 8 + k) / v.depth;
        mean[k] = statistics[group * 2];
        rstd[k] = statistics[group * 2 + 1];
    }
    for (int64_t pixel = p.first + p.row; pixel < p.end; pixel += p.down) {
        const int64_t at = (p.image * v.pixels + pixel) * v.c + p.column * 8;
        load8(v.x.data, v.x.dtype, at, x);
        for (int k = 0; k < 8; k++) {
            const float z = fmaf((x[k] - mean[k]) * rstd[k], a.slope[k], a.offset[k]);
            x[k] = v.silu ? silu(z) : z;
        }
        store8(v.y.data, v.y.dtype, at, x);
    }
}

static int64_t pieces_of(const mz_cu_group_norm *v) {
    const int64_t pieces = (v->pixels * v->c + PIECE - 1) / PIECE, most = pieces < MOST_PIECES ? pieces : MOST_PIECES;
    const int64_t each = (v->pixels + most - 1) / most;
    return (v->pixels + each - 1) / each; // none of them is empty
}

extern "C" size_t mz_cu_group_norm_pieces_bytes(const mz_cu_group_norm *v, bool backward) {
    const size_t pieces = static_cast<size_t>(v->b * pieces_of(v)), b = static_cast<size_t>(v->b);
    const size_t numbers = backward ? pieces * 2 * static_cast<size_t>(v->c) + b * 2 * static_cast<size_t>(v->c)
                                    : (pieces + b) * 2 * static_cast<size_t>(v->groups);
    return numbers * sizeof(float);
}

static size_t shared_of(const mz_cu_group_norm *v) {
    return static_cast<size_t>(v->c + 2 * v->groups) * sizeof(float);
}

extern "C" cudaError_t mz_cu_group_norm_forward_pieces(cudaStream_t stream, const mz_cu_group_norm *v,
                                                       float *workspace) {
    const int64_t pieces = pieces_of(v);
    float *statistics = workspace + v->b * pieces * v->groups * 2;
    const unsigned blocks = static_cast<unsigned>(v->b * pieces);
    norm_pieces_kernel<<<blocks, NORM_BLOCK, shared_of(v), stream>>>(*v, pieces, workspace);
    norm_statistics_kernel<<<static_cast<unsigned>(v->b * v->groups), WARP, 0, stream>>>(*v, pieces, workspace,
                                                                                         statistics);
    norm_apply_kernel<<<blocks, NORM_BLOCK, 0, stream>>>(*v, pieces, statistics);
    return cudaGetLastError();
}

// --- backward ------------------------------------------------------------------------------------------------------
// x̂ and dz = dy·act'(z) of 8 channels.
struct slopes {
    float normal[8], dz[8];
};

static __device__ __forceinline__ slopes slopes_at(const mz_cu_group_norm &v, const affine &a, const float mean[8],
                                                   const float rstd[8], int64_t at) {
    slopes s;
    float x[8];
    load8(v.x.data, v.x.dtype, at, x);
    load8(v.y.data, v.y.dtype, at, s.dz);
    for (int k = 0; k < 8; k++) {
        s.normal[k] = (x[k] - mean[k]) * rstd[k];
        if (v.silu)
            s.dz[k] *= silu_slope(fmaf(s.normal[k], a.slope[k], a.offset[k]));
    }
    return s;
}

static __device__ __forceinline__ void read_statistics(const mz_cu_group_norm &v, const place &p, float mean[8],
                                                       float rstd[8]) {
    for (int k = 0; k < 8; k++) {
        const int64_t group = p.image * v.groups + (p.column * 8 + k) / v.depth;
        mean[k] = v.mean[group];
        rstd[k] = v.rstd[group];
    }
}

// Σ dz and Σ dz·x̂ of each piece's channels: partial [B, pieces, 2, C].
__global__ void __launch_bounds__(NORM_BLOCK) norm_slopes_kernel(mz_cu_group_norm v, int64_t pieces, float *partial) {
    __shared__ float all[NORM_BLOCK * 8];
    const place p = place_of(v, pieces);
    float plain[8] = {0}, normal[8] = {0}, mean[8], rstd[8];
    const affine a = affine_of(v, p);
    read_statistics(v, p, mean, rstd);
    if (p.used)
        for (int64_t pixel = p.first + p.row; pixel < p.end; pixel += p.down) {
            const slopes s = slopes_at(v, a, mean, rstd, (p.image * v.pixels + pixel) * v.c + p.column * 8);
            for (int k = 0; k < 8; k++) {
                plain[k] += s.dz[k];
                normal[k] = fmaf(s.dz[k], s.normal[k], normal[k]);
            }
        }
    add_rows(p, plain, all, partial + blockIdx.x * 2 * v.c);
    add_rows(p, normal, all, partial + blockIdx.x * 2 * v.c + v.c);
}

// sums [2, B, C] of partial.
__global__ void __launch_bounds__(NORM_BLOCK)
    norm_sums_kernel(mz_cu_group_norm v, int64_t pieces, const float *partial, float *sums) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * NORM_BLOCK + threadIdx.x;
    if (i >= 2 * v.b * v.c)
        return;
    const int64_t c = i % v.c, image = i / v.c % v.b, which = i / v.c / v.b;
    float total = 0;
    for (int64_t k = 0; k < pieces; k++)
        total += partial[((image * pieces + k) * 2 + which) * v.c + c];
    sums[i] = total;
}

__global__ void __launch_bounds__(NORM_BLOCK)
    norm_dx_kernel(mz_cu_group_norm v, int64_t pieces, mz_cu_array dx, const float *sums) {
    extern __shared__ float groups[]; // [groups, 2]: means of what reaches x̂, and of it times x̂
    const place p = place_of(v, pieces);
    const float n = static_cast<float>(v.pixels * v.depth);
    for (int64_t i = threadIdx.x; i < 2 * v.groups; i += NORM_BLOCK) {
        const int64_t group = i / 2, which = i % 2;
        float total = 0;
        for (int64_t c = group * v.depth; c < (group + 1) * v.depth; c++)
            total = fmaf(sums[(which * v.b + p.image) * v.c + c],
                         given(v.weight, c, 1) * (1 + given(v.film, p.image * 2 * v.c + c, 0)), total);
        groups[i] = total / n;
    }
    __syncthreads();
    if (!p.used)
        return;
    const affine a = affine_of(v, p);
    float mean[8], rstd[8], plain[8], normal[8], out[8];
    read_statistics(v, p, mean, rstd);
    for (int k = 0; k < 8; k++) {
        plain[k] = groups[(p.column * 8 + k) / v.depth * 2];
        normal[k] = groups[(p.column * 8 + k) / v.depth * 2 + 1];
    }
    for (int64_t pixel = p.first + p.row; pixel < p.end; pixel += p.down) {
        const int64_t at = (p.image * v.pixels + pixel) * v.c + p.column * 8;
        const slopes s = slopes_at(v, a, mean, rstd, at);
        for (int k = 0; k < 8; k++)
            out[k] = rstd[k] * (s.dz[k] * a.slope[k] - plain[k] - s.normal[k] * normal[k]);
        store8(dx.data, dx.dtype, at, out);
    }
}

extern "C" cudaError_t mz_cu_group_norm_backward_pieces(cudaStream_t stream, const mz_cu_group_norm *v, mz_cu_array dx,
                                                        mz_cu_array dfilm, float *dweight, float *dbias,
                                                        bool accumulate, float *workspace) {
    const int64_t pieces = pieces_of(v), all = 2 * v->b * v->c;
    float *sums = workspace + v->b * pieces * 2 * v->c;
    const unsigned blocks = static_cast<unsigned>(v->b * pieces);
    norm_slopes_kernel<<<blocks, NORM_BLOCK, 0, stream>>>(*v, pieces, workspace);
    norm_sums_kernel<<<static_cast<unsigned>((all + NORM_BLOCK - 1) / NORM_BLOCK), NORM_BLOCK, 0, stream>>>(
        *v, pieces, workspace, sums);
    norm_dx_kernel<<<blocks, NORM_BLOCK, shared_of(v), stream>>>(*v, pieces, dx, sums);
    return mz_cu_group_norm_parameters(stream, v, dfilm, dweight, dbias, accumulate, sums);
}
