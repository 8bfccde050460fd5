// Runs convolution by libraries: cuDNN's graph API, and cuBLASLt for windows side by side. The kernels
// of image.cu serve the calls that the libraries refuse.
#include "backend/cuda/cudnn.h"
#include "backend/cuda/matmul.h"

enum { ALIGN = 256 };

// The calls that a convolution becomes; a state begins with them.
typedef struct parts {
    mz_prepared part[3];
} parts;

static void release_parts(void *state) {
    for (int i = 0; i < 3; i++)
        mz_prepared_free(&((parts *)state)->part[i]);
    mz_free(state);
}

static const char *prepare_part(mezzo_device *device, const mz_call *part, mz_prepared *out) {
    const mezzo_status status = mz_prepare(device, part, out);
    return status == MEZZO_OK ? NULL : status == MEZZO_ERR_MEMORY ? mz_out_of_memory : "no kernel serves these formats";
}

static mezzo_status run_part(mezzo_device *device, mz_call part, const mz_prepared *prepared) {
    part.state = prepared->state;
    return prepared->kernel->run(device, &part);
}

static void *in_workspace(const mz_call *call, size_t at) {
    return call->workspace != NULL ? (char *)call->workspace + at : NULL;
}

// --- windows side by side: a product over them ---------------------------------------------------------------------
// Runs a convolution as a product over windows side by side. A window of 1 x 1 is a pixel. With larger windows the
// image is first copied window by window, or dx is made from such a copy.
enum { PRODUCT, PERMUTE }; // permute's kernel NULL: windows of 1 x 1
typedef struct product {
    parts p;
    size_t at_rest; // after the copy
} product;

static mz_op product_of(mz_op op) {
    return op == MZ_OP_conv2d ? MZ_OP_linear : op == MZ_OP_conv2d_dx ? MZ_OP_linear_dx : MZ_OP_linear_dw;
}

static const mz_tensor *weight_of(const mz_call *call) {
    return call->op == MZ_OP_conv2d_dw ? &call->out[0] : &call->in[1];
}

// Returns x of a convolution, or its gradient.
static mz_tensor *image_in(mz_call *call) {
    return call->op == MZ_OP_conv2d ? &call->in[0] : call->op == MZ_OP_conv2d_dx ? &call->out[0] : &call->in[1];
}

// Swaps rows of a window with windows of a row: x [B·P, R, Q, S·C], windows [B·P, Q, R, S·C].
static mz_call as_permute(const mz_call *call) {
    mz_call part = *call;
    const mz_tensor x = *image_in(&part);
    const mz_shape *w = &weight_of(call)->shape;
    const int64_t r = w->dim[1], line = w->dim[2] * w->dim[3], q = x.shape.dim[2] / w->dim[2];
    const mz_shape whole = {4, {x.shape.dim[0] * x.shape.dim[1] / r, r, q, line}},
                   windows = {4, {whole.dim[0], q, r, line}};
    const bool back = call->op == MZ_OP_conv2d_dx;
    part.op = MZ_OP_permute;
    part.attrs = (mz_attrs){.permutation = {0, 2, 1, 3}};
    part.n_in = part.n_out = 1;
    part.in[0] = part.out[0] = x;
    part.in[0].shape = back ? windows : whole;
    part.out[0].shape = back ? whole : windows;
    *(back ? &part.in[0].data : &part.out[0].data) = call->workspace;
    return part;
}

static mz_call as_product(const mz_call *call, const product *p) {
    mz_call part = *call;
    mz_tensor *w = call->op == MZ_OP_conv2d_dw ? &part.out[0] : &part.in[1], *x = image_in(&part);
    const int64_t taps = w->shape.dim[1] * w->shape.dim[2] * w->shape.dim[3];
    part.op = product_of(call->op);
    w->shape = (mz_shape){2, {w->shape.dim[0], taps}};
    if (p->p.part[PERMUTE].kernel == NULL)
        return part;
    x->shape = (mz_shape){2, {mz_shape_count(&x->shape) / taps, taps}};
    x->data = call->workspace;
    part.workspace = in_workspace(call, p->at_rest);
    return part;
}

static const char *prepare_product(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    const mz_shape *w = &weight_of(call)->shape;
    const mz_attrs *a = &call->attrs;
    mz_call part = *call;
    const mz_tensor *x = image_in(&part);
    if (w->dim[1] != a->stride || w->dim[2] != a->stride || x->shape.dim[1] % a->stride != 0 ||
        x->shape.dim[2] % a->stride != 0 || a->groups != 1 || a->pad_before != 0 || a->pad_after != 0)
        return "serves windows side by side that are the whole image, one group";
    product *p = out->state = mz_alloc(1, sizeof *p);
    if (p == NULL)
        return mz_out_of_memory;
    out->release = release_parts;
    const char *reason = NULL;
    if (a->stride > 1) {
        p->at_rest = mz_align_up((size_t)mz_shape_count(&x->shape) * mezzo_dtype_size(x->dtype), ALIGN);
        part = as_permute(call);
        reason = prepare_part(device, &part, &p->p.part[PERMUTE]);
    }
    part = as_product(call, p);
    reason = reason != NULL ? reason : prepare_part(device, &part, &p->p.part[PRODUCT]);
    out->workspace = p->at_rest + p->p.part[PRODUCT].workspace;
    return reason;
}

static mezzo_status run_product(mezzo_device *device, const mz_call *call) {
    const product *p = call->state;
    const mz_prepared *permute = &p->p.part[PERMUTE];
    const bool moves = permute->kernel != NULL, after = call->op == MZ_OP_conv2d_dx;
    if (moves && !after)
        MEZZO_TRY(run_part(device, as_permute(call), permute));
    MEZZO_TRY(run_part(device, as_product(call, p), &p->p.part[PRODUCT]));
    return moves && after ? run_part(device, as_permute(call), permute) : MEZZO_OK;
}

const mz_kernel mz_cuda_conv2d_product = {"conv2d_windows__product", prepare_product, run_product};
const mz_kernel mz_cuda_conv2d_dx_product = {"conv2d_dx_windows__product", prepare_product, run_product};
const mz_kernel mz_cuda_conv2d_dw_product = {"conv2d_dw_windows__product", prepare_product, run_product};

// --- channels that are no multiple of 8, 16 bits: x and weight with zeros after them ------------------------------
enum { CONV = 2 }; // after pad of x and of the weight
typedef struct widened {
    parts p;
    size_t at[2], at_rest;
    int64_t channels; // a multiple of 8
} widened;

static mz_tensor wide_operand(const mz_call *call, const widened *p, int i) {
    mz_tensor t = call->in[i];
    t.shape.dim[3] = p->channels;
    t.data = in_workspace(call, p->at[i]);
    return t;
}

static mz_call as_pad(const mz_call *call, const widened *p, int i) {
    mz_call part = *call;
    part.op = MZ_OP_pad;
    part.attrs = (mz_attrs){.axis = 3, .end = call->in[i].shape.dim[3]};
    part.n_in = part.n_out = 1;
    part.in[0] = call->in[i];
    part.out[0] = wide_operand(call, p, i);
    return part;
}

static mz_call as_wide(const mz_call *call, const widened *p) {
    mz_call part = *call;
    for (int i = 0; i < 2; i++)
        part.in[i] = wide_operand(call, p, i);
    part.workspace = in_workspace(call, p->at_rest);
    return part;
}

static const char *prepare_widened(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    const mz_tensor *x = mz_in(call, conv2d, x);
    if (mezzo_dtype_size(x->dtype) != 2 || x->shape.dim[3] % 8 == 0 || call->attrs.groups != 1)
        return "serves 16 bits, channels that are no multiple of 8, one group";
    widened *p = out->state = mz_alloc(1, sizeof *p);
    if (p == NULL)
        return mz_out_of_memory;
    out->release = release_parts;
    p->channels = (x->shape.dim[3] + 7) / 8 * 8;
    const char *reason = NULL;
    for (int i = 0; i < 2 && reason == NULL; i++) {
        const mz_call part = as_pad(call, p, i);
        p->at[i] = p->at_rest;
        p->at_rest +=
            mz_align_up((size_t)mz_shape_count(&part.out[0].shape) * mezzo_dtype_size(part.out[0].dtype), ALIGN);
        reason = prepare_part(device, &part, &p->p.part[i]);
    }
    const mz_call part = as_wide(call, p);
    reason = reason != NULL ? reason : prepare_part(device, &part, &p->p.part[CONV]);
    out->workspace = p->at_rest + p->p.part[CONV].workspace;
    if (reason == NULL && p->p.part[CONV].kernel == &mz_cuda_conv2d)
        return "no library convolves these formats";
    return reason;
}

static mezzo_status run_widened(mezzo_device *device, const mz_call *call) {
    const widened *p = call->state;
    for (int i = 0; i < 2; i++)
        MEZZO_TRY(run_part(device, as_pad(call, p, i), &p->p.part[i]));
    return run_part(device, as_wide(call, p), &p->p.part[CONV]);
}
const mz_kernel mz_cuda_conv2d_widened = {"conv2d_widened__cudnn", prepare_widened, run_widened};

// --- dx of a stride in FP32 -----------------------------------------------------------------------------------------
// cuDNN has no deterministic engine for this dx without tensor cores. So a product over dy's pixels makes taps, of
// which each pixel of x gathers its own, for some images at a time: a product is r·s times as large as dx.
#define MOST_TAPS ((int64_t)128 << 20) // bytes of a product; an image is never divided

typedef struct strided {
    parts p;         // the product
    mz_cu_conv conv; // for some of the images
    int64_t turns;
    size_t at_rest; // after the taps
} strided;

static mz_call taps_of(const mz_call *call, const strided *p) {
    const mz_cu_conv *v = &p->conv;
    const int64_t pixels = v->b * v->p * v->q, taps = v->r * v->s * v->c;
    mz_call part = *call;
    part.op = MZ_OP_linear_dx;
    part.in[0].shape = (mz_shape){2, {pixels, v->n}};
    part.in[1].shape = (mz_shape){2, {v->n, taps}};
    part.out[0].shape = (mz_shape){2, {pixels, taps}};
    part.out[0].data = call->workspace;
    part.workspace = in_workspace(call, p->at_rest);
    return part;
}

static const char *prepare_strided(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    const mz_shape *x = &mz_out(call, conv2d_dx, dx)->shape, *y = &mz_in(call, conv2d_dx, dy)->shape,
                   *w = &mz_in(call, conv2d_dx, w)->shape;
    if (mz_in(call, conv2d_dx, dy)->dtype != MEZZO_F32 || mz_in(call, conv2d_dx, w)->dtype != MEZZO_F32 ||
        mz_out(call, conv2d_dx, dx)->dtype != MEZZO_F32)
        return "stores fp32";
    if (call->attrs.stride < 2 || call->attrs.groups != 1)
        return "serves strides from 2 on, one group";
    const int64_t image = y->dim[1] * y->dim[2] * w->dim[1] * w->dim[2] * w->dim[3] * (int64_t)sizeof(float);
    int64_t images = x->dim[0];
    while (images > 1 && (images * image > MOST_TAPS || x->dim[0] % images != 0))
        images--;
    if (images < 1 || image < 1 || images >= 1 << 16 || x->dim[1] >= 1 << 16)
        return "serves images of less than 65,536 rows";
    strided *p = out->state = mz_alloc(1, sizeof *p);
    if (p == NULL)
        return mz_out_of_memory;
    out->release = release_parts;
    p->turns = x->dim[0] / images;
    p->conv = (mz_cu_conv){.b = images,
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
                           .groups = 1};
    p->at_rest = mz_align_up((size_t)(images * image), ALIGN);
    const mz_call part = taps_of(call, p);
    const char *reason = prepare_part(device, &part, &p->p.part[PRODUCT]);
    out->workspace = p->at_rest + p->p.part[PRODUCT].workspace;
    return reason;
}

static mezzo_status run_strided(mezzo_device *device, const mz_call *call) {
    const strided *p = call->state;
    const mz_cu_conv *v = &p->conv;
    const float *dy = mz_in(call, conv2d_dx, dy)->data;
    float *dx = mz_out(call, conv2d_dx, dx)->data;
    mz_call part = taps_of(call, p);
    for (int64_t turn = 0; turn < p->turns; turn++) {
        mz_cu_conv some = *v;
        part.in[0].data = (void *)(uintptr_t)(dy + turn * v->b * v->p * v->q * v->n);
        some.x = (mz_cu_array){dx + turn * v->b * v->h * v->w * v->c, MEZZO_F32};
        MEZZO_TRY(run_part(device, part, &p->p.part[PRODUCT]));
        MZ_CUDA_TRY(mz_cu_conv2d_gather(mz_cuda(device)->stream, &some, call->workspace));
    }
    return MEZZO_OK;
}
const mz_kernel mz_cuda_conv2d_dx_strided = {"conv2d_dx_strided__product", prepare_strided, run_strided};

#ifdef MZ_CUDA_HAS_CUDNN

// Holds the key of a plan; it is compared byte by byte, so zero it first.
typedef struct shape {
    int64_t b, h, w, c, n, r, s, depth, p, q; // as mz_cu_conv's
    int64_t stride, before, after;
    int32_t op, operand, result, bias; // mezzo_dtypes; bias 0: none
    int32_t engines;
} shape;

enum { X = 1, W, Y, BIAS }; // ids of the tensors that have memory

static cudnnDataType_t data_type(int dtype) {
    return dtype == MEZZO_F32 ? CUDNN_DATA_FLOAT : dtype == MEZZO_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
}

typedef struct image { // [b, c, h, w] in cuDNN's order, channels innermost
    mz_cudnn_extent size, stride;
} image;

static image image_of(int64_t b, int64_t h, int64_t w, int64_t c) {
    return (image){{{b, c, h, w}}, {{h * w * c, 1, w * c, c}}};
}

static mz_cudnn_tensor stored(mz_cudnn_graph *g, int64_t id, int dtype, const image *i) {
    return mz_cudnn_aligned(g, id, data_type(dtype), i->size, i->stride);
}

static cudnnBackendDescriptor_t window(mz_cudnn_graph *g, const shape *s) {
    const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const int64_t dims = 2, ones[2] = {1, 1};
    const int64_t stride[2] = {s->stride, s->stride}, before[2] = {s->before, s->before},
                  after[2] = {s->after, s->after};
    cudnnBackendDescriptor_t d = mz_cudnn_create(g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    mz_cudnn_set(g, d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    mz_cudnn_set(g, d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    mz_cudnn_set(g, d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &dims);
    mz_cudnn_set(g, d, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, ones);
    mz_cudnn_set(g, d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, stride);
    mz_cudnn_set(g, d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, before);
    mz_cudnn_set(g, d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, after);
    mz_cudnn_finalize(g, d, "a convolution");
    return d;
}

// Holds the attributes' names of each of the three.
typedef struct names {
    cudnnBackendDescriptorType_t operation;
    cudnnBackendAttributeName_t alpha, beta, window, x, w, y;
} names;

static names names_of(mz_op op) {
#define NAMES(operation, prefix, x, w, y)                                                                              \
    (names) {                                                                                                          \
        CUDNN_BACKEND_OPERATION_CONVOLUTION_##operation##_DESCRIPTOR,                                                  \
            CUDNN_ATTR_OPERATION_CONVOLUTION_##prefix##_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_##prefix##_BETA,       \
            CUDNN_ATTR_OPERATION_CONVOLUTION_##prefix##_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_##prefix##_##x,    \
            CUDNN_ATTR_OPERATION_CONVOLUTION_##prefix##_##w, CUDNN_ATTR_OPERATION_CONVOLUTION_##prefix##_##y           \
    }
    return op == MZ_OP_conv2d      ? NAMES(FORWARD, FORWARD, X, W, Y)
           : op == MZ_OP_conv2d_dx ? NAMES(BACKWARD_DATA, BWD_DATA, DX, W, DY)
                                   : NAMES(BACKWARD_FILTER, BWD_FILTER, X, DW, DY);
#undef NAMES
}

static void convolve(mz_cudnn_graph *g, const shape *s, mz_cudnn_tensor x, mz_cudnn_tensor w, mz_cudnn_tensor y) {
    const names n = names_of((mz_op)s->op);
    const float one = 1, zero = 0;
    cudnnBackendDescriptor_t how = window(g, s), d = mz_cudnn_create(g, n.operation);
    mz_cudnn_set(g, d, n.alpha, CUDNN_TYPE_FLOAT, 1, &one);
    mz_cudnn_set(g, d, n.beta, CUDNN_TYPE_FLOAT, 1, &zero);
    mz_cudnn_set_descriptor(g, d, n.window, how);
    mz_cudnn_set_descriptor(g, d, n.x, x);
    mz_cudnn_set_descriptor(g, d, n.w, w);
    mz_cudnn_set_descriptor(g, d, n.y, y);
    mz_cudnn_operation(g, d, "a convolution");
}

static int result_of(mz_op op) {
    return op == MZ_OP_conv2d ? Y : op == MZ_OP_conv2d_dx ? X : W;
}

// Builds the graph. The result is the third of the tensors; with a bias the product leaves the sum in FP32, and an
// element-wise operation adds the bias.
static void build(mz_cudnn_graph *g, const void *key) {
    const shape *s = key;
    const image x = image_of(s->b, s->h, s->w, s->c), w = image_of(s->n, s->r, s->s, s->depth),
                y = image_of(s->b, s->p, s->q, s->n), bias = image_of(1, 1, 1, s->n);
    const int result = result_of((mz_op)s->op);
    const image *all[] = {[X] = &x, [W] = &w, [Y] = &y};
    const bool after = s->bias != 0;
    mz_cudnn_tensor tensors[Y + 1], sum = NULL;
    mz_cudnn_take(g, (mz_cudnn_engines)s->engines);
    for (int i = X; i <= Y; i++)
        tensors[i] = stored(g, i, i == result ? s->result : s->operand, all[i]);
    if (after)
        sum = mz_cudnn_virtual(g, CUDNN_DATA_FLOAT, all[result]->size, all[result]->stride);
    convolve(g, s, result == X && after ? sum : tensors[X], result == W && after ? sum : tensors[W],
             result == Y && after ? sum : tensors[Y]);
    if (after)
        mz_cudnn_pointwise(g, CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, sum, stored(g, BIAS, s->bias, &bias), NULL, -1,
                           tensors[result]);
}

// --- which graph a call becomes ------------------------------------------------------------------------------------
typedef struct route {
    shape key;
    mz_cudnn_plan *plan;
    bool convert_a, convert_b, convert_bias, finish; // finish: the result goes through the workspace
    size_t at_a, at_b, at_bias, at_result, at_sums, at_plan, bytes;
} route;

static const mz_tensor absent = {.shape = {.rank = -1}};

static const mz_tensor *bias_of(const mz_call *call) {
    return call->op == MZ_OP_conv2d && call->n_in > 2 ? mz_in(call, conv2d, bias) : &absent;
}
static const mz_tensor *bias_gradient_of(const mz_call *call) {
    return call->op == MZ_OP_conv2d_dw && call->n_out > 1 ? mz_out(call, conv2d_dw, db) : &absent;
}

static void measures(const mz_call *call, shape *s) {
    const mz_tensor *x = call->op == MZ_OP_conv2d      ? mz_in(call, conv2d_dw, dy)
                         : call->op == MZ_OP_conv2d_dx ? mz_out(call, conv2d_dw, dw)
                                                       : mz_in(call, conv2d_dw, x);
    const mz_tensor *y = call->op == MZ_OP_conv2d ? mz_out(call, conv2d_dw, dw) : mz_in(call, conv2d_dw, dy),
                    *w = weight_of(call);
    s->b = x->shape.dim[0], s->h = x->shape.dim[1], s->w = x->shape.dim[2], s->c = x->shape.dim[3];
    s->n = w->shape.dim[0], s->r = w->shape.dim[1], s->s = w->shape.dim[2], s->depth = w->shape.dim[3];
    s->p = y->shape.dim[1], s->q = y->shape.dim[2];
    s->stride = call->attrs.stride, s->before = call->attrs.pad_before, s->after = call->attrs.pad_after;
    s->op = (int32_t)call->op;
}

// Chooses formats. Operands of 16 bits give results in their own format. For an FP32 result they are widened and
// multiplied as TF32, which represents them exactly.
static const char *formats(const mz_cuda_device *cuda, const mz_call *call, route *r) {
    const mz_tensor *bias = bias_of(call);
    const int operand = mz_cuda_operand_dtype(cuda, call), out = (int)call->out[0].dtype;
    const bool plain = mz_cuda_16bit(operand) && out == operand && (!mz_present(bias) || (int)bias->dtype == operand);
    const bool stored_low =
        mz_cuda_16bit(operand) && (int)call->in[0].dtype == operand && (int)call->in[1].dtype == operand;
    if (mz_cuda_16bit(operand) && !plain && !stored_low)
        return "16-bit operands stored as FP32 give 16-bit results only";
    r->key.operand = r->key.result = plain ? operand : MEZZO_F32;
    r->key.bias = mz_present(bias) ? r->key.operand : 0;
    const bool tensor_cores = mz_cuda_16bit(operand) || call->numerics.compute == MEZZO_TF32;
    r->key.engines = tensor_cores ? MZ_CUDNN_SUMS : MZ_CUDNN_FMA;
    r->convert_a = (int)call->in[0].dtype != r->key.operand;
    r->convert_b = (int)call->in[1].dtype != r->key.operand;
    r->convert_bias = mz_present(bias) && (int)bias->dtype != r->key.bias;
    r->finish = out != r->key.result || call->attrs.accumulate;
    return NULL;
}

static const char *check(const mz_cuda_device *cuda, const mz_call *call) {
    const mezzo_dtype compute = call->numerics.compute;
    if (compute != MEZZO_F32 && compute != MEZZO_TF32 && !mz_cuda_16bit((int)compute))
        return "computes in fp32, tf32, bf16 and fp16";
    if (call->op == MZ_OP_conv2d_dw &&
        (mz_out(call, conv2d_dw, dw)->dtype != MEZZO_F32 ||
         (mz_present(bias_gradient_of(call)) && mz_out(call, conv2d_dw, db)->dtype != MEZZO_F32)))
        return "gradients are fp32";
    return cuda->cc < 80 ? "asks cuDNN from compute capability 8.0 on" : NULL;
}

static void book(const mz_call *call, route *r) {
    const mz_tensor *bias = bias_of(call), *db = bias_gradient_of(call), *dy = mz_in(call, conv2d_dw, dy);
    r->at_a = mz_cuda_place(&r->bytes, r->convert_a ? mz_cuda_bytes_as(mz_in(call, conv2d_dw, dy), r->key.operand) : 0);
    r->at_b = mz_cuda_place(&r->bytes, r->convert_b ? mz_cuda_bytes_as(mz_in(call, conv2d_dw, x), r->key.operand) : 0);
    r->at_bias = mz_cuda_place(&r->bytes, r->convert_bias ? mz_cuda_bytes_as(bias, r->key.bias) : 0);
    r->at_result =
        mz_cuda_place(&r->bytes, r->finish ? mz_cuda_bytes_as(mz_out(call, conv2d_dw, dw), r->key.result) : 0);
    r->at_sums = mz_cuda_place(
        &r->bytes, mz_present(db) ? mz_cu_column_sums_bytes(mz_shape_rows(&dy->shape), dy->shape.dim[3]) : 0);
    r->at_plan = mz_cuda_place(&r->bytes, r->plan->workspace);
}

static void measure(mz_cuda_device *cuda, const mz_call *call, const route *r) {
    const shape *s = &r->key;
    const int64_t x = s->b * s->h * s->w * s->c, w = s->n * s->r * s->s * s->depth, y = s->b * s->p * s->q * s->n;
    const int64_t counts[] = {[X] = x, [W] = w, [Y] = y};
    const int result = result_of(call->op);
    mz_cudnn_memory tensors[4];
    int n = 0;
    if (s->bias != 0)
        tensors[n++] = (mz_cudnn_memory){BIAS, s->n, s->bias};
    for (int i = X; i <= Y; i++)
        if (i != result)
            tensors[n++] = (mz_cudnn_memory){i, counts[i], s->operand};
    tensors[n++] = (mz_cudnn_memory){result, counts[result], s->result};
    char what[200];
    snprintf(what, sizeof what, "%s %lldx%lldx%lldx%lld to %lld by %lldx%lld, stride %lld, %s to %s",
             mz_op_table[call->op].name, (long long)s->b, (long long)s->h, (long long)s->w, (long long)s->c,
             (long long)s->n, (long long)s->r, (long long)s->s, (long long)s->stride,
             s->operand == MEZZO_F32 && s->engines == MZ_CUDNN_SUMS ? "tf32"
                                                                    : mezzo_dtype_name((mezzo_dtype)s->operand),
             mezzo_dtype_name((mezzo_dtype)s->result));
    mz_cudnn_measure(cuda, r->plan, tensors, n, what);
}

static const char *prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    mz_cuda_device *cuda = mz_cuda(device);
    struct mz_cudnn *cudnn;
    route *r = out->state = mz_alloc(1, sizeof *r); // all zero: its key is compared byte by byte
    if (r == NULL)
        return mz_out_of_memory;
    const char *reason = check(cuda, call);
    reason = reason != NULL ? reason : formats(cuda, call, r);
    reason = reason != NULL ? reason : mz_cudnn_open(cuda, &cudnn);
    if (reason != NULL)
        return reason;
    measures(call, &r->key);
    r->plan = mz_cudnn_find(cudnn, build, &r->key, sizeof r->key);
    if (r->plan == NULL)
        return mz_out_of_memory;
    if (r->plan->refusal == NULL)
        measure(cuda, call, r);
    if (r->plan->refusal != NULL)
        return r->plan->refusal;
    book(call, r);
    out->workspace = r->bytes;
    return NULL;
}

// --- running -------------------------------------------------------------------------------------------------------
// Copies cuDNN's result from the workspace to the output.
static mezzo_status finish(mz_cuda_device *cuda, const mz_call *call, const route *r, void *result) {
    const mz_tensor *out = &call->out[0];
    const int64_t n = mz_shape_count(&out->shape);
    if (call->attrs.accumulate)
        MZ_CUDA_TRY(mz_cu_add_partials(cuda->stream, result, out->data, n, 1, true));
    else
        MZ_CUDA_TRY(mz_cu_convert(cuda->stream, (mz_cu_array){result, r->key.result}, mz_cuda_array(out), n));
    return MEZZO_OK;
}

static mezzo_status run(mezzo_device *device, const mz_call *call) {
    mz_cuda_device *cuda = mz_cuda(device);
    const route *r = call->state;
    const mz_tensor *bias = bias_of(call), *db = bias_gradient_of(call), *dy = &call->in[0];
    char *workspace = call->workspace;
    void *result = r->finish ? workspace + r->at_result : call->out[0].data;
    const void *a, *b, *added = NULL;
    MEZZO_TRY(mz_cuda_operand(cuda, &call->in[0], r->convert_a, workspace + r->at_a, r->key.operand, &a));
    MEZZO_TRY(mz_cuda_operand(cuda, &call->in[1], r->convert_b, workspace + r->at_b, r->key.operand, &b));
    mz_cudnn_pointers p = {.n = 0};
    mz_cudnn_point(&p, X, call->op == MZ_OP_conv2d ? a : call->op == MZ_OP_conv2d_dx ? result : b);
    mz_cudnn_point(&p, W, call->op == MZ_OP_conv2d_dw ? result : b);
    mz_cudnn_point(&p, Y, call->op == MZ_OP_conv2d ? result : a);
    if (r->key.bias != 0) {
        MEZZO_TRY(mz_cuda_operand(cuda, bias, r->convert_bias, workspace + r->at_bias, r->key.bias, &added));
        mz_cudnn_point(&p, BIAS, added);
    }
    MEZZO_TRY(mz_cudnn_run(cuda, r->plan, &p, workspace + r->at_plan));
    if (r->finish)
        MEZZO_TRY(finish(cuda, call, r, result));
    if (mz_present(db))
        MZ_CUDA_TRY(mz_cu_column_sums(cuda->stream, mz_cuda_array(dy), db->data, mz_shape_rows(&dy->shape),
                                      dy->shape.dim[3], call->attrs.accumulate,
                                      (float *)(void *)(workspace + r->at_sums)));
    return MEZZO_OK;
}

#else            // built without cuDNN's headers

static const char *prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)call, (void)out;
    return "built without cuDNN's headers";
}
#define run NULL // never prepared
#endif

const mz_kernel mz_cuda_conv2d_cudnn = {"conv2d__cudnn", prepare, run};
const mz_kernel mz_cuda_conv2d_dx_cudnn = {"conv2d_dx__cudnn", prepare, run};
const mz_kernel mz_cuda_conv2d_dw_cudnn = {"conv2d_dw__cudnn", prepare, run};
