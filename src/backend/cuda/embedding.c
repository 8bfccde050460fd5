// Runs embedding and the gradient of its table: the host side.
#include "backend/cuda/storage.h"

static const char *embedding_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    const char *reason = mz_cuda_storages(call, "ai", "a");
    return reason != NULL ? reason : mz_cuda_narrow(&call->in[0]);
}

static mezzo_status run_embedding(mezzo_device *device, const mz_call *call) {
    const mz_tensor *table = &call->in[0], *ids = &call->in[1]; // [V, C], [N]
    MZ_CUDA_TRY(mz_cu_embedding(mz_cuda(device)->stream, mz_cuda_array(table), ids->data, mz_cuda_array(&call->out[0]),
                                mz_shape_count(&ids->shape), table->shape.dim[0], (int)table->shape.dim[1]));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_embedding = {"embedding__cuda", embedding_prepare, run_embedding};

static const char *embedding_bwd_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device;
    const char *reason = mz_cuda_storages(call, "ai", "f");
    if (reason != NULL)
        return reason;
    if (mz_shape_count(&call->in[1].shape) >= 1 << 30 || call->out[0].shape.dim[0] >= 1 << 30)
        return "2^30 positions or rows, or more";
    out->workspace = mz_cu_embedding_bwd_workspace(mz_shape_count(&call->in[1].shape), (int)call->out[0].shape.dim[1]);
    return mz_cuda_narrow(&call->out[0]);
}

static mezzo_status run_embedding_bwd(mezzo_device *device, const mz_call *call) {
    const mz_tensor *ids = &call->in[1], *dtable = &call->out[0];
    mz_cu_embedding_bwd_args args = {.dy = mz_cuda_array(&call->in[0]),
                                     .ids = ids->data,
                                     .dtable = dtable->data,
                                     .workspace = call->workspace,
                                     .n = mz_shape_count(&ids->shape),
                                     .rows = dtable->shape.dim[0],
                                     .width = (int)dtable->shape.dim[1],
                                     .accumulate = call->attrs.accumulate};
    MZ_CUDA_TRY(mz_cu_embedding_bwd(mz_cuda(device)->stream, &args));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_embedding_bwd = {"embedding_bwd__cuda", embedding_bwd_prepare, run_embedding_bwd};
