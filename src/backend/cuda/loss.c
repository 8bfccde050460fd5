// Cross-entropy and its gradient: the host side.
#include "backend/cuda/storage.h"

static const char *cross_entropy_supports(const mezzo_device *device, const mz_call *call) {
    (void)device;
    const char *reason = mz_cuda_storages(call, "ai", "ff");
    return reason != NULL ? reason : mz_cuda_narrow(&call->in[0]);
}

static size_t cross_entropy_workspace(const mezzo_device *device, const mz_call *call) {
    (void)device;
    return (size_t)(mz_shape_count(&call->in[0].shape) / mz_cuda_width(&call->in[0])) * sizeof(float);
}

static mezzo_status run_cross_entropy(mezzo_device *device, const mz_call *call) {
    mz_cu_cross_entropy_args args = {.logits = mz_cuda_array(&call->in[0]),
                                     .targets = call->in[1].data,
                                     .loss = call->out[0].data,
                                     .lse = mz_present(&call->out[1]) ? call->out[1].data : NULL,
                                     .terms = call->workspace,
                                     .ignore_index = call->attrs.ignore_index,
                                     .width = (int)mz_cuda_width(&call->in[0]),
                                     .rows = mz_shape_count(&call->in[0].shape) / mz_cuda_width(&call->in[0]),
                                     .all = mz_shape_count(&call->in[1].shape),
                                     .first_row = call->attrs.first_row};
    MZ_CUDA_TRY(mz_cu_cross_entropy(mz_cuda(device)->stream, &args));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_cross_entropy = {"cross_entropy__cuda", cross_entropy_supports, cross_entropy_workspace,
                                         run_cross_entropy};

static const char *cross_entropy_dx_supports(const mezzo_device *device, const mz_call *call) {
    (void)device;
    const char *reason = mz_cuda_storages(call, "faif", "a");
    return reason != NULL ? reason : mz_cuda_narrow(&call->in[1]);
}

static size_t cross_entropy_dx_workspace(const mezzo_device *device, const mz_call *call) {
    (void)device, (void)call;
    return sizeof(float);
}

static mezzo_status run_cross_entropy_dx(mezzo_device *device, const mz_call *call) {
    mz_cu_cross_entropy_dx_args args = {.dloss = call->in[0].data,
                                        .logits = mz_cuda_array(&call->in[1]),
                                        .targets = call->in[2].data,
                                        .lse = call->in[3].data,
                                        .dx = mz_cuda_array(&call->out[0]),
                                        .factor = call->workspace,
                                        .ignore_index = call->attrs.ignore_index,
                                        .width = (int)mz_cuda_width(&call->in[1]),
                                        .rows = mz_shape_count(&call->in[1].shape) / mz_cuda_width(&call->in[1]),
                                        .all = mz_shape_count(&call->in[2].shape),
                                        .first_row = call->attrs.first_row};
    MZ_CUDA_TRY(mz_cu_cross_entropy_dx(mz_cuda(device)->stream, &args));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_cross_entropy_dx = {"cross_entropy_dx__cuda", cross_entropy_dx_supports,
                                            cross_entropy_dx_workspace, run_cross_entropy_dx};
