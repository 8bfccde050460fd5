// Group norm's kernels share a channel's factors, and the gradients of weight, bias and film.
#ifndef MZ_GROUP_NORM_CUH
#define MZ_GROUP_NORM_CUH

#include "group_norm.h"
#include "vec.cuh"

__device__ __forceinline__ float or_else(mz_cu_array a, int64_t i, float absent) {
    return a.data != nullptr ? load1(a.data, a.dtype, i) : absent;
}

struct channel {
    float weight, bias, scale, shift;
};

__device__ __forceinline__ channel channel_of(const mz_cu_group_norm &v, int64_t image, int64_t c) {
    return {or_else(v.weight, c, 1), or_else(v.bias, c, 0), 1 + or_else(v.film, image * 2 * v.c + c, 0),
            or_else(v.film, image * 2 * v.c + v.c + c, 0)};
}

struct norm_gradients {
    mz_cu_array film; // may be absent, as may the next two
    float *weight, *bias;
    const float *sums; // [2, b, c]: Σ dz and Σ dz·x̂ of each image's channels
    bool accumulate;
};

// Adds up channel c over all images in order.
__device__ __forceinline__ void add_images(const mz_cu_group_norm &v, const norm_gradients &out, int64_t c) {
    float weight = 0, bias = 0;
#pragma unroll 4
    for (int64_t image = 0; image < v.b; image++) {
        const channel k = channel_of(v, image, c);
        const float plain = out.sums[image * v.c + c], normal = out.sums[(v.b + image) * v.c + c];
        weight = fmaf(k.scale, normal, weight);
        bias = fmaf(k.scale, plain, bias);
        if (out.film.data != nullptr) {
            store1(out.film.data, out.film.dtype, image * 2 * v.c + c, fmaf(k.weight, normal, k.bias * plain));
            store1(out.film.data, out.film.dtype, image * 2 * v.c + v.c + c, plain);
        }
    }
    if (out.weight != nullptr)
        out.weight[c] = out.accumulate ? out.weight[c] + weight : weight;
    if (out.bias != nullptr)
        out.bias[c] = out.accumulate ? out.bias[c] + bias : bias;
}

#endif
