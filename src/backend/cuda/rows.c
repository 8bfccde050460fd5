// Norms and softmax over the last dimension: the host side.
#include "backend/cuda/storage.h"

static float *floats_of(const mz_tensor *t) {
    return mz_present(t) ? t->data : NULL;
}

static void set_rows(const mz_tensor *t, int64_t *rows, int *width, int *pitch) {
    *width = (int)mz_cuda_width(t);
    *pitch = (int)mz_cuda_pitch(t);
    *rows = mz_shape_count(&t->shape) / *width;
}

// --- layer norm and RMS norm ---------------------------------------------------------------------------------------
static const char *layernorm_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    const char *reason = mz_cuda_storages(call, "affa", "affa");
    return reason != NULL ? reason : mz_cuda_narrow(&call->out[0]);
}

static mezzo_status run_layernorm(mezzo_device *device, const mz_call *call) {
    mz_cu_layernorm_args args = {.x = mz_cuda_array(&call->in[0]),
                                 .weight = floats_of(&call->in[1]),
                                 .bias = floats_of(&call->in[2]),
                                 .residual = mz_cuda_array(&call->in[3]),
                                 .y = mz_cuda_array(&call->out[0]),
                                 .mean = floats_of(&call->out[1]),
                                 .rstd = floats_of(&call->out[2]),
                                 .sum = mz_cuda_array(&call->out[3]),
                                 .eps = call->attrs.eps,
                                 .centred = true};
    set_rows(&call->out[0], &args.rows, &args.width, &args.pitch);
    MZ_CUDA_TRY(mz_cu_layernorm(mz_cuda(device)->stream, &args));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_layernorm = {"layernorm__cuda", layernorm_prepare, run_layernorm};

static const char *rmsnorm_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    const char *reason = mz_cuda_storages(call, "afa", "afa");
    return reason != NULL ? reason : mz_cuda_narrow(&call->out[0]);
}

static mezzo_status run_rmsnorm(mezzo_device *device, const mz_call *call) {
    mz_cu_layernorm_args args = {.x = mz_cuda_array(&call->in[0]),
                                 .weight = floats_of(&call->in[1]),
                                 .residual = mz_cuda_array(&call->in[2]),
                                 .y = mz_cuda_array(&call->out[0]),
                                 .rstd = floats_of(&call->out[1]),
                                 .sum = mz_cuda_array(&call->out[2]),
                                 .eps = call->attrs.eps};
    set_rows(&call->out[0], &args.rows, &args.width, &args.pitch);
    MZ_CUDA_TRY(mz_cu_layernorm(mz_cuda(device)->stream, &args));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_rmsnorm = {"rmsnorm__cuda", rmsnorm_prepare, run_rmsnorm};

// Both backward kernels share their workspace: each part's column sums, dweight's, dbias's and dsum's.
static size_t norm_bwd_workspace(mezzo_device *device, const mz_call *call) {
    int64_t rows;
    int width, pitch;
    set_rows(&call->out[0], &rows, &width, &pitch);
    int parts = mz_cu_layernorm_bwd_parts(rows, pitch, mz_cuda(device)->sms);
    return (size_t)parts * 3 * (size_t)pitch * sizeof(float);
}

static mezzo_status run_norm_bwd(mezzo_device *device, const mz_call *call, mz_cu_layernorm_bwd_args *args) {
    args->dy = mz_cuda_array(&call->in[0]);
    args->x = mz_cuda_array(&call->in[1]);
    args->weight = floats_of(&call->in[2]);
    args->dx = mz_cuda_array(&call->out[0]);
    args->dweight = floats_of(&call->out[1]);
    args->partial = call->workspace;
    args->accumulate = call->attrs.accumulate;
    set_rows(&call->out[0], &args->rows, &args->width, &args->pitch);
    args->parts = mz_cu_layernorm_bwd_parts(args->rows, args->pitch, mz_cuda(device)->sms);
    MZ_CUDA_TRY(mz_cu_layernorm_bwd(mz_cuda(device)->stream, args));
    return MEZZO_OK;
}

static const char *layernorm_bwd_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    const char *reason = mz_cuda_storages(call, "aafffa", "affaf");
    out->workspace = norm_bwd_workspace(device, call);
    return reason != NULL ? reason : mz_cuda_narrow(&call->out[0]);
}

static mezzo_status run_layernorm_bwd(mezzo_device *device, const mz_call *call) {
    mz_cu_layernorm_bwd_args args = {.mean = floats_of(&call->in[3]),
                                     .rstd = floats_of(&call->in[4]),
                                     .dres = mz_cuda_array(&call->in[5]),
                                     .dbias = floats_of(&call->out[2]),
                                     .low = mz_cuda_array(&call->out[3]),
                                     .dsum = floats_of(&call->out[4])};
    return run_norm_bwd(device, call, &args);
}
const mz_kernel mz_cuda_layernorm_bwd = {"layernorm_bwd__cuda", layernorm_bwd_prepare, run_layernorm_bwd};

static const char *rmsnorm_bwd_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    const char *reason = mz_cuda_storages(call, "aaffa", "afa");
    out->workspace = norm_bwd_workspace(device, call);
    return reason != NULL ? reason : mz_cuda_narrow(&call->out[0]);
}

static mezzo_status run_rmsnorm_bwd(mezzo_device *device, const mz_call *call) {
    mz_cu_layernorm_bwd_args args = {
        .rstd = floats_of(&call->in[3]), .dres = mz_cuda_array(&call->in[4]), .low = mz_cuda_array(&call->out[2])};
    return run_norm_bwd(device, call, &args);
}
const mz_kernel mz_cuda_rmsnorm_bwd = {"rmsnorm_bwd__cuda", rmsnorm_bwd_prepare, run_rmsnorm_bwd};

// --- softmax -------------------------------------------------------------------------------------------------------
static const char *softmax_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    const char *reason = mz_cuda_storages(call, "a", "a");
    return reason != NULL ? reason : mz_cuda_narrow(&call->out[0]);
}

static mezzo_status run_softmax(mezzo_device *device, const mz_call *call) {
    int width = (int)mz_cuda_width(&call->out[0]);
    int64_t rows = mz_shape_count(&call->out[0].shape) / width;
    MZ_CUDA_TRY(
        mz_cu_softmax(mz_cuda(device)->stream, mz_cuda_array(&call->in[0]), mz_cuda_array(&call->out[0]), rows, width));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_softmax = {"softmax__cuda", softmax_prepare, run_softmax};

static mezzo_status run_softmax_dx(mezzo_device *device, const mz_call *call) {
    int width = (int)mz_cuda_width(&call->out[0]);
    int64_t rows = mz_shape_count(&call->out[0].shape) / width;
    MZ_CUDA_TRY(mz_cu_softmax_dx(mz_cuda(device)->stream, mz_cuda_array(&call->in[0]), mz_cuda_array(&call->in[1]),
                                 mz_cuda_array(&call->out[0]), rows, width));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_softmax_dx = {"softmax_dx__cuda", softmax_prepare, run_softmax_dx};
