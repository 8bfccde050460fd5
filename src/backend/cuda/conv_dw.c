// Runs the gradient of a convolution's weight by an own kernel (kernels/conv_dw.cu), for the calls that it serves.
#include "backend/cuda/kernels/conv_dw.h"
#include "backend/cuda/storage.h"

static mz_cu_conv conv_of(const mz_call *call) {
    const mz_shape *x = &mz_in(call, conv2d_dw, x)->shape, *y = &mz_in(call, conv2d_dw, dy)->shape,
                   *w = &mz_out(call, conv2d_dw, dw)->shape;
    return (mz_cu_conv){.x = mz_cuda_array(mz_in(call, conv2d_dw, x)),
                        .weight = mz_cuda_array(mz_out(call, conv2d_dw, dw)),
                        .y = mz_cuda_array(mz_in(call, conv2d_dw, dy)),
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
    return call->n_out > 1 ? mz_out(call, conv2d_dw, db) : &none;
}

// Channels that are no multiples of 8 are copied with zeros after them, and dw is made as wide.
typedef struct plan {
    mz_cu_conv v; // with those channels
    int splits;
    bool pad_x, pad_y;
    size_t at_x, at_y, at_sum, at_partial, at_bias, bytes;
} plan;

static size_t place(plan *p, bool wanted, int64_t numbers, size_t size) {
    const size_t at = p->bytes;
    p->bytes += mz_align_up(wanted ? (size_t)numbers * size : 0, 256);
    return at;
}

static int64_t weights_of(const mz_cu_conv *v) {
    return v->n * v->r * v->s * v->c;
}

static plan plan_of(const mz_cuda_device *cuda, const mz_call *call) {
    plan p = {.v = conv_of(call)};
    mz_cu_conv *v = &p.v;
    const int64_t x = v->b * v->h * v->w, y = v->b * v->p * v->q;
    p.pad_x = v->c % 8 != 0;
    p.pad_y = v->n % 8 != 0;
    if (!p.pad_y) // of padded dy the sums are made by themselves
        v->bias = mz_cuda_array(bias_of(call));
    v->c = v->depth = (int64_t)mz_align_up((size_t)v->c, 8);
    v->n = (int64_t)mz_align_up((size_t)v->n, 8);
    p.splits = mz_cu_conv_dw_splits(v, cuda->sms);
    p.at_x = place(&p, p.pad_x, x * v->c, sizeof(uint16_t));
    p.at_y = place(&p, p.pad_y, y * v->n, sizeof(uint16_t));
    p.at_sum = place(&p, p.pad_x || p.pad_y, weights_of(v), sizeof(float));
    p.at_partial = place(&p, p.splits > 1, p.splits * (weights_of(v) + v->n), sizeof(float));
    p.at_bias = p.bytes;
    if (p.pad_y && mz_present(bias_of(call)))
        p.bytes += mz_cu_column_sums_bytes(y, mz_in(call, conv2d_dw, dy)->shape.dim[3]);
    return p;
}

static const char *refusal(const mz_cuda_device *cuda, const mz_call *call) {
    const mezzo_dtype dtype = mz_in(call, conv2d_dw, dy)->dtype, compute = call->numerics.compute;
    const mz_cu_conv v = conv_of(call);
    const int64_t most = (int64_t)1 << 30;
    if (cuda->cc != 90)
        return "is for compute capability 9.0";
    if ((dtype != MEZZO_BF16 && dtype != MEZZO_F16) || mz_in(call, conv2d_dw, x)->dtype != dtype)
        return "multiplies bf16 by bf16 and fp16 by fp16";
    if (compute != dtype && compute != MEZZO_F32)
        return "multiplies what is stored as it is";
    if (v.groups != 1)
        return "serves one group";
    if (v.h >= 1 << 15 || v.w >= 1 << 15)
        return "serves images of less than 32,768 rows and columns";
    if (v.b * v.h * v.w >= most || v.b * v.p * v.q >= most || v.n >= 1 << 24 || v.r * v.s * v.c >= 1 << 24 ||
        v.b * v.h * v.w * v.c >= 8 * most || v.b * v.p * v.q * v.n >= 8 * most)
        return "2^30 pixels, 2^33 numbers of an image, 2^24 columns or rows of the weight, or more";
    return mz_cuda_storages(call, "aa", "ff");
}

static const char *prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    const mz_cuda_device *cuda = mz_cuda(device);
    const char *reason = refusal(cuda, call);
    if (reason != NULL)
        return reason;
    const plan p = plan_of(cuda, call);
    const bool ready = mz_cu_conv_dw(cuda->stream, &p.v, 1, NULL, false, false, true) == cudaSuccess;
    (void)cudaGetLastError();
    out->workspace = p.bytes;
    return ready ? NULL : "this build has no code for compute capability 9.0a";
}

static mezzo_status run(mezzo_device *device, const mz_call *call) {
    const mz_cuda_device *cuda = mz_cuda(device);
    const mz_tensor *dy = mz_in(call, conv2d_dw, dy), *x = mz_in(call, conv2d_dw, x), *dw = mz_out(call, conv2d_dw, dw),
                    *db = bias_of(call);
    const bool accumulate = call->attrs.accumulate;
    char *workspace = call->workspace;
    plan p = plan_of(cuda, call);
    const bool padded = p.pad_x || p.pad_y;
    const int64_t pixels = mz_shape_rows(&dy->shape), channels = x->shape.dim[3];
    float *partial = (float *)(void *)(workspace + p.at_partial);
    if (padded)
        p.v.weight.data = workspace + p.at_sum;
    if (p.pad_x) {
        p.v.x.data = workspace + p.at_x;
        MZ_CUDA_TRY(mz_cu_conv_pad(cuda->stream, x->data, p.v.x.data, mz_shape_rows(&x->shape), channels, p.v.c));
    }
    if (p.pad_y) {
        p.v.y.data = workspace + p.at_y;
        MZ_CUDA_TRY(mz_cu_conv_pad(cuda->stream, dy->data, p.v.y.data, pixels, dy->shape.dim[3], p.v.n));
    }
    MZ_CUDA_TRY(mz_cu_conv_dw(cuda->stream, &p.v, p.splits, partial, accumulate && !padded, accumulate, false));
    if (padded)
        MZ_CUDA_TRY(mz_cu_conv_strip(cuda->stream, p.v.weight.data, dw->data, mz_shape_rows(&dw->shape), channels,
                                     p.v.c, accumulate));
    if (p.pad_y && mz_present(db))
        MZ_CUDA_TRY(mz_cu_column_sums(cuda->stream, mz_cuda_array(dy), db->data, pixels, dy->shape.dim[3], accumulate,
                                      (float *)(void *)(workspace + p.at_bias)));
    return MEZZO_OK;
}

const mz_kernel mz_cuda_conv2d_dw_wgmma = {"conv2d_dw__cuda_wgmma", prepare, run};
