// Runs a mixture of experts around the experts' products: the host side.
#include "backend/cuda/storage.h"

// 48 KiB of shared memory hold so many counters of expert_order's eight warps.
enum { MOST_EXPERTS = 1024 };

static const char *few_experts(int64_t experts) {
    return experts <= MOST_EXPERTS ? NULL : "more than 1024 experts";
}

// --- route ---------------------------------------------------------------------------------------------------------
const char *mz_cuda_route_refusal(const mz_call *call) {
    const char *reason = mz_cuda_storages(call, "af", "fi");
    return reason != NULL ? reason : few_experts(mz_cuda_width(&call->in[0]));
}

static const char *route_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    return mz_cuda_route_refusal(call);
}

mz_cu_route_args mz_cuda_route_args(const mz_call *call) {
    const mz_attrs *attrs = &call->attrs;
    int64_t tokens = call->out[0].shape.dim[0];
    return (mz_cu_route_args){.logits = mz_cuda_array(&call->in[0]),
                              .bias = mz_present(&call->in[1]) ? call->in[1].data : NULL,
                              .weights = call->out[0].data,
                              .indices = call->out[1].data,
                              .tokens = tokens,
                              .experts = (int)(mz_shape_count(&call->in[0].shape) / tokens),
                              .top_k = attrs->top_k,
                              .groups = attrs->groups > 1 ? attrs->groups : 1,
                              .top_groups = attrs->top_groups,
                              .normalise = attrs->normalise,
                              .softmax = attrs->softmax,
                              .alpha = attrs->alpha};
}

static mezzo_status run_route(mezzo_device *device, const mz_call *call) {
    mz_cu_route_args args = mz_cuda_route_args(call);
    MZ_CUDA_TRY(mz_cu_route(mz_cuda(device)->stream, &args));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_route = {"route__cuda", route_prepare, run_route};

const char *mz_cuda_route_dx_refusal(const mz_call *call) {
    return mz_cuda_storages(call, "fai", "a");
}

static const char *route_dx_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    return mz_cuda_route_dx_refusal(call);
}

mz_cu_route_dx_args mz_cuda_route_dx_args(const mz_call *call) {
    int64_t tokens = mz_shape_count(&call->in[0].shape) / call->attrs.top_k;
    return (mz_cu_route_dx_args){.dweights = call->in[0].data,
                                 .logits = mz_cuda_array(&call->in[1]),
                                 .indices = call->in[2].data,
                                 .dx = mz_cuda_array(&call->out[0]),
                                 .tokens = tokens,
                                 .experts = (int)(mz_shape_count(&call->in[1].shape) / tokens),
                                 .top_k = call->attrs.top_k,
                                 .normalise = call->attrs.normalise,
                                 .softmax = call->attrs.softmax,
                                 .alpha = call->attrs.alpha};
}

static mezzo_status run_route_dx(mezzo_device *device, const mz_call *call) {
    mz_cu_route_dx_args args = mz_cuda_route_dx_args(call);
    MZ_CUDA_TRY(mz_cu_route_dx(mz_cuda(device)->stream, &args));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_route_dx = {"route_dx__cuda", route_dx_prepare, run_route_dx};

// --- expert_order --------------------------------------------------------------------------------------------------
static const char *expert_order_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device;
    const char *reason = mz_cuda_storages(call, "i", "i");
    out->workspace = mz_cu_expert_order_workspace(mz_shape_count(&call->in[0].shape), call->attrs.experts);
    return reason != NULL ? reason : few_experts(call->attrs.experts);
}

static mezzo_status run_expert_order(mezzo_device *device, const mz_call *call) {
    MZ_CUDA_TRY(mz_cu_expert_order(mz_cuda(device)->stream, call->in[0].data, mz_shape_count(&call->in[0].shape),
                                   call->attrs.experts, call->out[0].data, call->out[1].data, call->out[2].data,
                                   call->workspace));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_expert_order = {"expert_order__cuda", expert_order_prepare, run_expert_order};

// --- rows there and back -------------------------------------------------------------------------------------------
static const char *move_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    const char *reason = mz_cuda_storages(call, "aiifa", "a");
    return reason != NULL ? reason : mz_cuda_narrow(&call->out[0]);
}

static mz_cu_move_args move_args(const mz_call *call, int index) {
    int64_t rows = mz_shape_count(&call->in[1].shape); // M·k
    return (mz_cu_move_args){.x = mz_cuda_array(&call->in[0]),
                             .y = mz_cuda_array(&call->out[0]),
                             .index = call->in[index].data,
                             .weights = mz_present(&call->in[3]) ? call->in[3].data : NULL,
                             .added = {mz_cuda_array(&call->in[4]), mz_cuda_array(&call->in[5])},
                             .rows = rows,
                             .width = (int)mz_cuda_width(&call->out[0]),
                             .top_k = call->attrs.top_k};
}

static mezzo_status run_dispatch(mezzo_device *device, const mz_call *call) {
    mz_cu_move_args args = move_args(call, 1);
    MZ_CUDA_TRY(mz_cu_dispatch(mz_cuda(device)->stream, &args));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_dispatch = {"dispatch__cuda", move_prepare, run_dispatch};

static mezzo_status run_combine(mezzo_device *device, const mz_call *call) {
    mz_cu_move_args args = move_args(call, 2);
    MZ_CUDA_TRY(mz_cu_combine(mz_cuda(device)->stream, &args));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_combine = {"combine__cuda", move_prepare, run_combine};

static const char *combine_dw_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    const char *reason = mz_cuda_storages(call, "aai", "f");
    return reason != NULL ? reason : mz_cuda_narrow(&call->in[1]);
}

static mezzo_status run_combine_dw(mezzo_device *device, const mz_call *call) {
    int64_t rows = mz_shape_count(&call->in[2].shape);
    MZ_CUDA_TRY(mz_cu_combine_dw(mz_cuda(device)->stream, mz_cuda_array(&call->in[0]), mz_cuda_array(&call->in[1]),
                                 call->in[2].data, call->out[0].data, rows,
                                 (int)(mz_shape_count(&call->in[1].shape) / rows), call->attrs.top_k));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_combine_dw = {"combine_dw__cuda", combine_dw_prepare, run_combine_dw};
