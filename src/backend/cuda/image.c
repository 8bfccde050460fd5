// Runs ops on images, noise and times: the host side. Convolution here sums each number by one thread, right and slow,
// for what conv.c refuses.
#include "backend/cuda/kernels/group_norm.h"
#include "backend/cuda/storage.h"

static const char *prepare_floats(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    return mz_cuda_storages(call, "a", "a");
}

// --- convolution ---------------------------------------------------------------------------------------------------
static mz_cu_conv conv_of(const mz_call *call, const mz_tensor *x, const mz_tensor *w, const mz_tensor *y) {
    return (mz_cu_conv){.x = mz_cuda_array(x),
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

static mezzo_status run_conv2d(mezzo_device *device, const mz_call *call) {
    mz_cu_conv v = conv_of(call, &call->in[0], &call->in[1], &call->out[0]);
    v.bias = mz_cuda_array(&call->in[2]);
    MZ_CUDA_TRY(mz_cu_conv2d(mz_cuda(device)->stream, &v));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_conv2d = {"conv2d__cuda", prepare_floats, run_conv2d};

static mezzo_status run_conv2d_dx(mezzo_device *device, const mz_call *call) {
    const mz_cu_conv v = conv_of(call, &call->out[0], &call->in[1], &call->in[0]);
    MZ_CUDA_TRY(mz_cu_conv2d_dx(mz_cuda(device)->stream, &v));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_conv2d_dx = {"conv2d_dx__cuda", prepare_floats, run_conv2d_dx};

static const char *conv2d_dw_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    const mz_tensor *dy = &call->in[0];
    (void)device;
    out->workspace = mz_cu_column_sums_bytes(mz_shape_rows(&dy->shape), dy->shape.dim[3]);
    return mz_cuda_storages(call, "a", "f");
}

static mezzo_status run_conv2d_dw(mezzo_device *device, const mz_call *call) {
    const mz_tensor *dy = &call->in[0], *db = &call->out[1];
    const mz_cu_conv v = conv_of(call, &call->in[1], &call->out[0], dy);
    MZ_CUDA_TRY(mz_cu_conv2d_dw(mz_cuda(device)->stream, &v, call->attrs.accumulate));
    if (mz_present(db))
        MZ_CUDA_TRY(mz_cu_column_sums(mz_cuda(device)->stream, mz_cuda_array(dy), db->data, mz_shape_rows(&dy->shape),
                                      dy->shape.dim[3], call->attrs.accumulate, call->workspace));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_conv2d_dw = {"conv2d_dw__cuda", conv2d_dw_prepare, run_conv2d_dw};

// --- group norm ----------------------------------------------------------------------------------------------------
// `slot`: of the weight.
static mz_cu_group_norm norm_of(const mz_call *call, const mz_tensor *x, const mz_tensor *y, int slot) {
    const mz_shape *shape = &x->shape;
    const int64_t b = shape->dim[0], c = shape->dim[shape->rank - 1], groups = call->attrs.groups;
    return (mz_cu_group_norm){.x = mz_cuda_array(x),
                              .weight = mz_cuda_array(&call->in[slot]),
                              .bias = mz_cuda_array(&call->in[slot + 1]),
                              .film = mz_cuda_array(&call->in[slot + 2]),
                              .y = mz_cuda_array(y),
                              .b = b,
                              .pixels = mz_shape_count(shape) / b / c,
                              .c = c,
                              .groups = groups,
                              .depth = c / groups,
                              .eps = call->attrs.eps,
                              .silu = call->attrs.act == MZ_ACT_SILU};
}

static float *floats_of(const mz_tensor *t) {
    return mz_present(t) ? t->data : NULL;
}

static mz_cu_group_norm forward_of(const mz_call *call) {
    mz_cu_group_norm v = norm_of(call, &call->in[0], &call->out[0], 1);
    v.mean = floats_of(&call->out[1]);
    v.rstd = floats_of(&call->out[2]);
    return v;
}

static mz_cu_group_norm backward_of(const mz_call *call) {
    mz_cu_group_norm v = norm_of(call, &call->in[1], &call->in[0], 2);
    v.mean = floats_of(&call->in[5]);
    v.rstd = floats_of(&call->in[6]);
    return v;
}

static const char *pieces_refusal(const mz_cu_group_norm *v) {
    if (v->c == 0 || v->c % 8 != 0 || v->c > 2048)
        return "reads channels 8 at a time, up to 2,048";
    return v->b * v->pixels >= (int64_t)1 << 30 ? "images of 2^30 pixels or more" : NULL;
}

static const char *group_norm_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    return mz_cuda_storages(call, "a", "aff");
}

static const char *group_norm_pieces_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    const mz_cu_group_norm v = forward_of(call);
    const char *reason = group_norm_prepare(device, call, out);
    reason = reason != NULL ? reason : pieces_refusal(&v);
    if (reason == NULL)
        out->workspace = mz_cu_group_norm_pieces_bytes(&v, false);
    return reason;
}

static mezzo_status run_group_norm_pieces(mezzo_device *device, const mz_call *call) {
    const mz_cu_group_norm v = forward_of(call);
    MZ_CUDA_TRY(mz_cu_group_norm_forward_pieces(mz_cuda(device)->stream, &v, call->workspace));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_group_norm_pieces = {"group_norm_pieces__cuda", group_norm_pieces_prepare,
                                             run_group_norm_pieces};

static mezzo_status run_group_norm(mezzo_device *device, const mz_call *call) {
    const mz_cu_group_norm v = forward_of(call);
    MZ_CUDA_TRY(mz_cu_group_norm_forward(mz_cuda(device)->stream, &v));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_group_norm = {"group_norm__cuda", group_norm_prepare, run_group_norm};

static const char *group_norm_bwd_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    const mz_shape *x = &call->in[1].shape;
    (void)device;
    out->workspace = sizeof(float) * 2 * (size_t)(x->dim[0] * x->dim[x->rank - 1]);
    return mz_cuda_storages(call, "aaaaaff", "aaff");
}

static const char *group_norm_bwd_pieces_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    const mz_cu_group_norm v = backward_of(call);
    const char *reason = group_norm_bwd_prepare(device, call, out);
    reason = reason != NULL ? reason : pieces_refusal(&v);
    if (reason == NULL)
        out->workspace = mz_cu_group_norm_pieces_bytes(&v, true);
    return reason;
}

static mezzo_status run_group_norm_bwd_pieces(mezzo_device *device, const mz_call *call) {
    const mz_cu_group_norm v = backward_of(call);
    MZ_CUDA_TRY(mz_cu_group_norm_backward_pieces(mz_cuda(device)->stream, &v, mz_cuda_array(&call->out[0]),
                                                 mz_cuda_array(&call->out[1]), floats_of(&call->out[2]),
                                                 floats_of(&call->out[3]), call->attrs.accumulate, call->workspace));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_group_norm_bwd_pieces = {"group_norm_bwd_pieces__cuda", group_norm_bwd_pieces_prepare,
                                                 run_group_norm_bwd_pieces};

static mezzo_status run_group_norm_bwd(mezzo_device *device, const mz_call *call) {
    const mz_cu_group_norm v = backward_of(call);
    MZ_CUDA_TRY(mz_cu_group_norm_backward(mz_cuda(device)->stream, &v, mz_cuda_array(&call->out[0]),
                                          mz_cuda_array(&call->out[1]), floats_of(&call->out[2]),
                                          floats_of(&call->out[3]), call->attrs.accumulate, call->workspace));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_group_norm_bwd = {"group_norm_bwd__cuda", group_norm_bwd_prepare, run_group_norm_bwd};

// --- resampling, noise, times --------------------------------------------------------------------------------------
static mezzo_status resample(mezzo_device *device, const mz_call *call, bool larger) {
    const mz_shape *x = &call->in[0].shape, *y = &call->out[0].shape;
    const mz_cu_resampling v = {.rows = y->dim[0] * y->dim[1],
                                .width = y->dim[2],
                                .channels = y->dim[3],
                                .from_width = x->dim[2],
                                .factor = call->attrs.factor,
                                .alpha = call->attrs.alpha};
    MZ_CUDA_TRY(
        mz_cu_resample(mz_cuda(device)->stream, mz_cuda_array(&call->in[0]), mz_cuda_array(&call->out[0]), &v, larger));
    return MEZZO_OK;
}
static mezzo_status run_upsample(mezzo_device *device, const mz_call *call) {
    return resample(device, call, true);
}
static mezzo_status run_pool(mezzo_device *device, const mz_call *call) {
    return resample(device, call, false);
}
const mz_kernel mz_cuda_upsample = {"upsample__cuda", prepare_floats, run_upsample};
const mz_kernel mz_cuda_pool = {"pool__cuda", prepare_floats, run_pool};

static const char *normal_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    return mz_cuda_storages(call, "i", "a");
}

static mezzo_status run_normal(mezzo_device *device, const mz_call *call) {
    const mz_tensor *y = &call->out[0];
    const int64_t rows = y->shape.dim[0];
    MZ_CUDA_TRY(mz_cu_normal(mz_cuda(device)->stream, call->in[0].data, mz_cuda_array(y), rows,
                             mz_shape_count(&y->shape) / rows, mz_noise_key(0, 0).tensor));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_normal = {"normal__cuda", normal_prepare, run_normal};

static mezzo_status run_time_embedding(mezzo_device *device, const mz_call *call) {
    const mz_tensor *y = &call->out[0];
    MZ_CUDA_TRY(mz_cu_time_embedding(mz_cuda(device)->stream, mz_cuda_array(&call->in[0]), mz_cuda_array(y),
                                     mz_shape_count(&y->shape), y->shape.dim[1], call->attrs.alpha, call->attrs.theta));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_time_embedding = {"time_embedding__cuda", prepare_floats, run_time_embedding};
