// Runs norms and softmax over the last dimension: the host side.
#include "backend/cuda/fuse_quantize.h"
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

// layernorm's call, or rmsnorm's.
mz_cu_layernorm_args mz_cuda_norm_args(const mz_call *call) {
    const bool centred = call->op == MZ_OP_layernorm;
    const int residual = centred ? MZ_IN(layernorm, residual) : MZ_IN(rmsnorm, residual);
    const int rstd = centred ? MZ_OUT(layernorm, rstd) : MZ_OUT(rmsnorm, rstd);
    mz_cu_layernorm_args args = {.x = mz_cuda_array(&call->in[0]),
                                 .weight = floats_of(&call->in[1]),
                                 .bias = centred ? floats_of(&call->in[MZ_IN(layernorm, bias)]) : NULL,
                                 .residual = mz_cuda_array(&call->in[residual]),
                                 .y = mz_cuda_array(&call->out[0]),
                                 .mean = centred ? floats_of(&call->out[MZ_OUT(layernorm, mean)]) : NULL,
                                 .rstd = floats_of(&call->out[rstd]),
                                 .sum = mz_cuda_array(&call->out[rstd + 1]),
                                 .eps = call->attrs.eps,
                                 .offset = mz_present(&call->in[1]) ? call->attrs.offset : 0,
                                 .centred = centred};
    set_rows(&call->out[0], &args.rows, &args.width, &args.pitch);
    return args;
}
_Static_assert(MZ_OUT(layernorm, sum) == MZ_OUT(layernorm, rstd) + 1 &&
                   MZ_OUT(rmsnorm, sum) == MZ_OUT(rmsnorm, rstd) + 1,
               "where a norm's sum is");

static mezzo_status run_norm(mezzo_device *device, const mz_call *call) {
    const mz_cu_layernorm_args args = mz_cuda_norm_args(call);
    MZ_CUDA_TRY(mz_cu_layernorm(mz_cuda(device)->stream, &args));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_layernorm = {"layernorm__cuda", layernorm_prepare, run_norm};

static const char *rmsnorm_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    const char *reason = mz_cuda_storages(call, "afa", "afa");
    return reason != NULL ? reason : mz_cuda_narrow(&call->out[0]);
}
const mz_kernel mz_cuda_rmsnorm = {"rmsnorm__cuda", rmsnorm_prepare, run_norm};

// Both backward kernels share their workspace: each part's column sums, dweight's, dbias's and dbias's.
static size_t norm_bwd_workspace(mezzo_device *device, const mz_call *call) {
    int64_t rows;
    int width, pitch;
    set_rows(&call->out[0], &rows, &width, &pitch);
    int parts = mz_cu_layernorm_bwd_parts(rows, pitch, mz_cuda(device)->sms);
    return (size_t)parts * 3 * (size_t)pitch * sizeof(float);
}

// layernorm_bwd's call, or rmsnorm_bwd's.
mz_cu_layernorm_bwd_args mz_cuda_norm_bwd_args(mezzo_device *device, const mz_call *call) {
    const bool centred = call->op == MZ_OP_layernorm_bwd;
    const int rstd = centred ? MZ_IN(layernorm_bwd, rstd) : MZ_IN(rmsnorm_bwd, rstd);
    const int low = centred ? MZ_OUT(layernorm_bwd, low) : MZ_OUT(rmsnorm_bwd, low);
    mz_cu_layernorm_bwd_args args = {.dy = mz_cuda_array(&call->in[0]),
                                     .x = mz_cuda_array(&call->in[1]),
                                     .weight = floats_of(&call->in[2]),
                                     .offset = mz_present(&call->in[2]) ? call->attrs.offset : 0,
                                     .mean = centred ? floats_of(&call->in[MZ_IN(layernorm_bwd, mean)]) : NULL,
                                     .rstd = floats_of(&call->in[rstd]),
                                     .dres = mz_cuda_array(&call->in[rstd + 1]),
                                     .dx = mz_cuda_array(&call->out[0]),
                                     .dweight = floats_of(&call->out[1]),
                                     .dbias = centred ? floats_of(&call->out[MZ_OUT(layernorm_bwd, dbias)]) : NULL,
                                     .low = mz_cuda_array(&call->out[low]),
                                     .linear_dbias =
                                         centred ? floats_of(&call->out[MZ_OUT(layernorm_bwd, linear_dbias)]) : NULL,
                                     .partial = call->workspace,
                                     .accumulate = call->attrs.accumulate};
    set_rows(&call->out[0], &args.rows, &args.width, &args.pitch);
    args.parts = mz_cu_layernorm_bwd_parts(args.rows, args.pitch, mz_cuda(device)->sms);
    return args;
}
_Static_assert(MZ_IN(layernorm_bwd, dres) == MZ_IN(layernorm_bwd, rstd) + 1 &&
                   MZ_IN(rmsnorm_bwd, dres) == MZ_IN(rmsnorm_bwd, rstd) + 1,
               "where a norm's other gradient is");

static mezzo_status run_norm_bwd(mezzo_device *device, const mz_call *call) {
    const mz_cu_layernorm_bwd_args args = mz_cuda_norm_bwd_args(device, call);
    MZ_CUDA_TRY(mz_cu_layernorm_bwd(mz_cuda(device)->stream, &args));
    return MEZZO_OK;
}

static const char *layernorm_bwd_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    const char *reason = mz_cuda_storages(call, "aafffa", "affaf");
    out->workspace = norm_bwd_workspace(device, call);
    return reason != NULL ? reason : mz_cuda_narrow(&call->out[0]);
}

const mz_kernel mz_cuda_layernorm_bwd = {"layernorm_bwd__cuda", layernorm_bwd_prepare, run_norm_bwd};

static const char *rmsnorm_bwd_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    const char *reason = mz_cuda_storages(call, "aaffa", "afa");
    out->workspace = norm_bwd_workspace(device, call);
    return reason != NULL ? reason : mz_cuda_narrow(&call->out[0]);
}

const mz_kernel mz_cuda_rmsnorm_bwd = {"rmsnorm_bwd__cuda", rmsnorm_bwd_prepare, run_norm_bwd};

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
