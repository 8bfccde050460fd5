// Group norm's kernels share a channel's factors, and the gradients of weight, bias and film.
#ifndef MZ_GROUP_NORM_CUH
#define MZ_GROUP_NORM_CUH

#include "host.cuh"
#include "vec.cuh"

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

#endif
