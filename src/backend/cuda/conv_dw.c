// The gradient of a convolution's weight by an own kernel (kernels/conv_dw.cu): which calls it serves.
#include "backend/cuda/kernels/conv_dw.h"
#include "backend/cuda/storage.h"

static mz_cu_conv conv_of(const mz_call *call) {
    const mz_shape *x = &call->in[1].shape, *y = &call->in[0].shape, *w = &call->out[0].shape;
    return (mz_cu_conv){.x = mz_cuda_array(&call->in[1]),
                        .weight = mz_cuda_array(&call->out[0]),
                        .y = mz_cuda_array(&call->in[0]),
                        .b = x->dim[0],
                        .h = x->dim[1],
                        .w = x->dim[2],
                        .c = x->dim[3],
                        .n = w->dim[0],
                        .r = w->dim[1],
                        .s = w->dim[2],
                        .depth = w->dim[3],
                        .p = y->dim[1],
                        .q = y->dim[2],
                        .stride = call->attrs.stride,
                        .pad = call->attrs.pad_before,
                        .groups = call->attrs.groups};
}

static const mz_tensor *bias_of(const mz_call *call) {
    static const mz_tensor none = {.shape = {.rank = -1}};
    return call->n_out > 1 ? &call->out[1] : &none;
}

static size_t partial_bytes(const mz_cu_conv *v, int splits) {
    const int64_t numbers = splits > 1 ? splits * v->n * v->r * v->s * v->c : 0;
    return mz_align_up((size_t)numbers * sizeof(float), 256);
}

static const char *refusal(const mz_cuda_device *cuda, const mz_call *call, const mz_cu_conv *v) {
    const mezzo_dtype dtype = call->in[0].dtype, compute = call->numerics.compute;
    if (cuda->cc != 90)
        return "is for compute capability 9.0";
    if ((dtype != MEZZO_BF16 && dtype != MEZZO_F16) || call->in[1].dtype != dtype)
        return "multiplies bf16 by bf16 and fp16 by fp16";
    if (compute != dtype && compute != MEZZO_F32)
        return "multiplies what is stored as it is";
    if (v->groups != 1 || v->c % 8 != 0 || v->n % 8 != 0)
        return "serves one group, and channels in multiples of 8";
    if (v->b * v->h * v->w >= (int64_t)1 << 30 || v->b * v->p * v->q >= (int64_t)1 << 30 || v->n >= 1 << 24 ||
        v->r * v->s * v->c >= 1 << 24)
        return "2^30 pixels, 2^24 columns or rows of the weight, or more";
    return mz_cuda_storages(call, "aa", "ff");
}

static const char *prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    const mz_cuda_device *cuda = mz_cuda(device);
    const mz_cu_conv v = conv_of(call);
    const mz_tensor *dy = &call->in[0];
    const char *reason = refusal(cuda, call, &v);
    if (reason != NULL)
        return reason;
    const bool ready = mz_cu_conv_dw(cuda->stream, &v, 1, NULL, false, true) == cudaSuccess;
    (void)cudaGetLastError();
    if (!ready)
        return "this build has no code for compute capability 9.0a";
    out->workspace = partial_bytes(&v, mz_cu_conv_dw_splits(&v, cuda->sms));
    if (mz_present(bias_of(call)))
        out->workspace += mz_cu_column_sums_bytes(mz_shape_rows(&dy->shape), v.n);
    return NULL;
}

static mezzo_status run(mezzo_device *device, const mz_call *call) {
    const mz_cuda_device *cuda = mz_cuda(device);
    const mz_cu_conv v = conv_of(call);
    const mz_tensor *dy = &call->in[0], *db = bias_of(call);
    const int splits = mz_cu_conv_dw_splits(&v, cuda->sms);
    const bool accumulate = call->attrs.accumulate;
    MZ_CUDA_TRY(mz_cu_conv_dw(cuda->stream, &v, splits, call->workspace, accumulate, false));
    if (splits > 1)
        MZ_CUDA_TRY(mz_cu_add_partials(cuda->stream, call->workspace, call->out[0].data, v.n * v.r * v.s * v.c, splits,
                                       accumulate));
    if (mz_present(db))
        MZ_CUDA_TRY(mz_cu_column_sums(cuda->stream, mz_cuda_array(dy), db->data, mz_shape_rows(&dy->shape), v.n,
                                      accumulate,
                                      (float *)(void *)((char *)call->workspace + partial_bytes(&v, splits))));
    return MEZZO_OK;
}

const mz_kernel mz_cuda_conv2d_dw_wgmma = {"conv2d_dw__cuda_wgmma", prepare, run};
