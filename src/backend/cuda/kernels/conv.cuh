// Own kernels for convolutions share the description of a call.
#ifndef MZ_CONV_CUH
#define MZ_CONV_CUH

#include "host.cuh"

inline mz_cu_conv conv_of(const mz_call *call, const mz_tensor *x, const mz_tensor *w, const mz_tensor *y) {
    return {.x = mz_cuda_array(x),
            .weight = mz_cuda_array(w),
            .y = mz_cuda_array(y),
            .b = x->shape.dim[0],
            .h = x->shape.dim[1],
            .w = x->shape.dim[2],
            .c = x->shape.dim[3],
            .n = w->shape.dim[0],
            .r = w->shape.dim[1],
            .s = w->shape.dim[2],
            .depth = w->shape.dim[3],
            .p = y->shape.dim[1],
            .q = y->shape.dim[2],
            .stride = call->attrs.stride,
            .pad = call->attrs.pad_before,
            .groups = call->attrs.groups};
}

#endif
