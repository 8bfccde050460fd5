// Runs mean squared error: the host side.
#include "backend/cuda/storage.h"

static const char *mse_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device;
    out->workspace = mz_cu_mse_bytes(mz_shape_count(&call->in[MZ_IN(mse, x)].shape));
    return mz_cuda_storages(call, "a", "f");
}

static mezzo_status run_mse(mezzo_device *device, const mz_call *call) {
    const mz_tensor *x = &call->in[MZ_IN(mse, x)], *target = &call->in[MZ_IN(mse, target)];
    MZ_CUDA_TRY(mz_cu_mse(mz_cuda(device)->stream, mz_cuda_array(x), mz_cuda_array(target),
                          call->out[MZ_OUT(mse, loss)].data, mz_shape_count(&x->shape), call->workspace));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_mse = {"mse__cuda", mse_prepare, run_mse};

static const char *mse_dx_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    return mz_cuda_storages(call, "fa", "a");
}

static mezzo_status run_mse_dx(mezzo_device *device, const mz_call *call) {
    const mz_tensor *dx = &call->out[MZ_OUT(mse_dx, dx)];
    MZ_CUDA_TRY(mz_cu_mse_dx(
        mz_cuda(device)->stream, call->in[MZ_IN(mse_dx, dloss)].data, mz_cuda_array(&call->in[MZ_IN(mse_dx, x)]),
        mz_cuda_array(&call->in[MZ_IN(mse_dx, target)]), mz_cuda_array(dx), mz_shape_count(&dx->shape)));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_mse_dx = {"mse_dx__cuda", mse_dx_prepare, run_mse_dx};
