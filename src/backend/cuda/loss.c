// Runs cross-entropy and its gradient: the host side.
#include "backend/cuda/storage.h"

static const char *cross_entropy_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device;
    const char *reason = mz_cuda_storages(call, "ai", "ff");
    // A term a row; and after them what the gradient takes where both run in one piece.
    out->workspace = (size_t)(mz_shape_count(&call->in[0].shape) / mz_cuda_width(&call->in[0]) + 1) * sizeof(float);
    return reason != NULL ? reason : mz_cuda_narrow(&call->in[0]);
}

static mz_cu_cross_entropy_args loss_args(const mz_call *call) {
    return (mz_cu_cross_entropy_args){.logits = mz_cuda_array(&call->in[0]),
                                      .targets = call->in[1].data,
                                      .loss = call->out[0].data,
                                      .lse = mz_present(&call->out[1]) ? call->out[1].data : NULL,
                                      .terms = call->workspace,
                                      .ignore_index = call->attrs.ignore_index,
                                      .cap = call->attrs.score_cap,
                                      .width = (int)mz_cuda_width(&call->in[0]),
                                      .pitch = (int)mz_cuda_pitch(&call->in[0]),
                                      .rows = mz_shape_count(&call->in[0].shape) / mz_cuda_width(&call->in[0]),
                                      .all = mz_shape_count(&call->in[1].shape),
                                      .first_row = call->attrs.first_row};
}

static mezzo_status run_cross_entropy(mezzo_device *device, const mz_call *call) {
    mz_cu_cross_entropy_args args = loss_args(call);
    MZ_CUDA_TRY(mz_cu_cross_entropy(mz_cuda(device)->stream, &args));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_cross_entropy = {"cross_entropy__cuda", cross_entropy_prepare, run_cross_entropy};

static const char *cross_entropy_dx_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device;
    const char *reason = mz_cuda_storages(call, "faif", "a");
    out->workspace = sizeof(float);
    return reason != NULL ? reason : mz_cuda_narrow(&call->in[1]);
}

static mz_cu_cross_entropy_dx_args gradient_args(const mz_call *call) {
    return (mz_cu_cross_entropy_dx_args){.dloss = call->in[0].data,
                                         .logits = mz_cuda_array(&call->in[1]),
                                         .targets = call->in[2].data,
                                         .lse = call->in[3].data,
                                         .dx = mz_cuda_array(&call->out[0]),
                                         .factor = call->workspace,
                                         .ignore_index = call->attrs.ignore_index,
                                         .cap = call->attrs.score_cap,
                                         .width = (int)mz_cuda_width(&call->in[1]),
                                         .pitch = (int)mz_cuda_pitch(&call->in[1]),
                                         .rows = mz_shape_count(&call->in[1].shape) / mz_cuda_width(&call->in[1]),
                                         .all = mz_shape_count(&call->in[2].shape),
                                         .first_row = call->attrs.first_row};
}

static mezzo_status run_cross_entropy_dx(mezzo_device *device, const mz_call *call) {
    mz_cu_cross_entropy_dx_args args = gradient_args(call);
    MZ_CUDA_TRY(mz_cu_cross_entropy_dx(mz_cuda(device)->stream, &args));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_cross_entropy_dx = {"cross_entropy_dx__cuda", cross_entropy_dx_prepare, run_cross_entropy_dx};

// --- both in one pass ----------------------------------------------------------------------------------------------
static mezzo_status run_both(mezzo_device *device, const mz_call *first, const mz_call *second) {
    mz_cu_cross_entropy_args loss = loss_args(first);
    mz_cu_cross_entropy_dx_args gradient = gradient_args(second);
    gradient.factor = loss.terms + loss.rows;
    MZ_CUDA_TRY(mz_cu_cross_entropy_both(mz_cuda(device)->stream, &loss, &gradient));
    return MEZZO_OK;
}
static const mz_fused_kernel both = {"cross_entropy_both__cuda", run_both};

const mz_fused_kernel *mz_cuda_fuse_loss(mezzo_device *device, const mz_call *first, const mz_call *second) {
    if (first->op != MZ_OP_cross_entropy || second->op != MZ_OP_cross_entropy_dx || !mz_present(&first->out[1]))
        return NULL;
    const mz_tensor *logits = &first->in[0];
    int64_t pitch = mz_cuda_pitch(logits);
    bool same = second->in[1].data == logits->data && mz_shape_equal(&second->in[1].shape, &logits->shape) &&
                second->in[1].dtype == logits->dtype && mz_storage_equal(&second->in[1].storage, &logits->storage) &&
                second->in[2].data == first->in[1].data && second->in[3].data == first->out[1].data &&
                second->attrs.first_row == first->attrs.first_row &&
                second->attrs.ignore_index == first->attrs.ignore_index;
    bool early = second->in[0].data != first->out[0].data; // the loss's gradient does not come of the loss
    // Two blocks to a multiprocessor: one alone waits for the memory half of the time.
    bool fits = pitch % 8 == 0 && mz_cuda_width(logits) > MZ_CU_LOSS_WARP_WIDTH &&
                2 * (mz_cu_cross_entropy_both_bytes((int)pitch, (int)logits->dtype) + 1024) <=
                    (size_t)mz_cuda(device)->shared_optin;
    return same && early && fits ? &both : NULL;
}
