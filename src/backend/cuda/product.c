// Finds the calls of linear and linear_dx whose product and epilogue an own kernel does on compute capability 9.0
// (kernels/product.cu).
#include "backend/cuda/kernels/product.h"

#include "backend/cuda/storage.h"

enum { LEAST_ROWS = 256 };

static const char *set_product(const mz_cuda_device *cuda, const mz_call *call, mz_cu_product *g) {
    bool forward = call->op == MZ_OP_linear;
    const mz_tensor *a = &call->in[0], *w = mz_in(call, linear, w), *out = &call->out[0];
    int64_t cols = w->shape.dim[forward ? 0 : 1], inner = w->shape.dim[forward ? 1 : 0];
    if (cuda->cc != 90)
        return "is for compute capability 9.0";
    if ((a->dtype != MEZZO_BF16 && a->dtype != MEZZO_F16) || w->dtype != a->dtype)
        return "multiplies bf16 by bf16 and fp16 by fp16";
    if (cols % 8 != 0 || inner % 8 != 0 || cols >= 1 << 24 || inner >= 1 << 24)
        return "rows must be multiples of 16 bytes";
    *g = (mz_cu_product){.dtype = (int)a->dtype,
                         .a = a->data,
                         .w = w->data,
                         .out = out->data,
                         .rows = mz_shape_count(&out->shape) / cols,
                         .cols = (int)cols,
                         .inner = (int)inner};
    if (g->rows < LEAST_ROWS)
        return "few rows are done sooner by the library";
    return g->rows >= (int64_t)1 << 30 ? "rows of a matrix fit in 30 bits" : NULL;
}

static const char *check_code(cudaError_t prepared) {
    (void)cudaGetLastError();
    return prepared == cudaSuccess ? NULL : "this build has no code for compute capability 9.0a";
}

// --- linear: bias, FP32 residual -----------------------------------------------------------------------------------
// The residual is worth it where the product is long: a short one is the memory's work in any kernel.
enum { LEAST_INNER = 2048 };

static const char *linear_args(const mz_cuda_device *cuda, const mz_call *call, mz_cu_product *g) {
    const mz_tensor *bias = mz_in(call, linear, bias), *residual = mz_in(call, linear, residual),
                    *y = mz_out(call, linear, y), *preact = mz_out(call, linear, preact);
    const char *reason = set_product(cuda, call, g);
    if (reason != NULL)
        return reason;
    if (mz_present(bias) && !mz_cuda_float(bias))
        return "a bias is fp32, bf16 or fp16";
    g->bias = mz_cuda_array(bias);
    if (call->attrs.act != MZ_ACT_NONE || mz_present(preact) || !mz_present(residual) || residual->dtype != MEZZO_F32 ||
        y->dtype != MEZZO_F32 || g->inner < LEAST_INNER)
        return "is for an fp32 residual and long sums";
    g->epilogue = MZ_CU_PRODUCT_RESIDUAL;
    g->residual = residual->data;
    return NULL;
}

static const char *linear_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)out;
    mz_cu_product g;
    const char *reason = linear_args(mz_cuda(device), call, &g);
    return reason != NULL ? reason
                          : check_code(mz_cu_product_run(mz_cuda(device)->stream, &g, mz_cuda(device)->sms, true));
}

static mezzo_status linear_run(mezzo_device *device, const mz_call *call) {
    mz_cuda_device *cuda = mz_cuda(device);
    mz_cu_product g;
    (void)linear_args(cuda, call, &g);
    MZ_CUDA_TRY(mz_cu_product_run(cuda->stream, &g, cuda->sms, false));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_linear_product = {"linear__cuda_product", linear_prepare, linear_run};

// --- linear_dx: GELU's derivative and its result, the sums of dx's columns
// -------------------------------------------------------------
static bool recomputes(const mz_call *call) {
    return call->n_out > MZ_OUT(linear_dx, act_out) && mz_present(mz_out(call, linear_dx, act_out));
}

static cudaError_t linear_dx_product(const mz_cuda_device *cuda, const mz_call *call, const mz_cu_product *g,
                                     bool prepare) {
    return recomputes(call)
               ? mz_cu_product_recompute(cuda->stream, g, mz_out(call, linear_dx, act_out)->data, cuda->sms, prepare)
               : mz_cu_product_run(cuda->stream, g, cuda->sms, prepare);
}

static const char *linear_dx_args(const mz_cuda_device *cuda, const mz_call *call, mz_cu_product *g) {
    const mz_tensor *preact = mz_in(call, linear_dx, preact);
    bool dbias = call->n_out > 1 && mz_present(mz_out(call, linear_dx, dbias));
    const char *reason = set_product(cuda, call, g);
    if (reason != NULL)
        return reason;
    mezzo_dtype low = mz_in(call, linear_dx, dy)->dtype;
    if (mz_out(call, linear_dx, dx)->dtype != low || (dbias && mz_out(call, linear_dx, dbias)->dtype != MEZZO_F32))
        return "writes 16-bit storage, and fp32 sums";
    if (call->attrs.act != MZ_ACT_GELU_TANH || !mz_present(preact) || preact->dtype != low)
        return "is for GELU's derivative between 16-bit storages";
    if (recomputes(call) && mz_out(call, linear_dx, act_out)->dtype != low)
        return "writes GELU's result as its input is stored";
    if (dbias)
        g->partial = call->workspace;
    g->epilogue = MZ_CU_PRODUCT_DACT;
    g->preact = preact->data;
    return NULL;
}

static const char *linear_dx_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    mz_cu_product g;
    const char *reason = linear_dx_args(mz_cuda(device), call, &g);
    if (reason != NULL)
        return reason;
    if (call->n_out > 1 && mz_present(mz_out(call, linear_dx, dbias)))
        out->workspace = (size_t)(mz_cu_product_parts(g.rows) * g.cols) * sizeof(float);
    return check_code(linear_dx_product(mz_cuda(device), call, &g, true));
}

static mezzo_status linear_dx_run(mezzo_device *device, const mz_call *call) {
    mz_cuda_device *cuda = mz_cuda(device);
    mz_cu_product g;
    (void)linear_dx_args(cuda, call, &g);
    MZ_CUDA_TRY(linear_dx_product(cuda, call, &g, false));
    if (g.partial != NULL)
        MZ_CUDA_TRY(mz_cu_add_partials(cuda->stream, g.partial, mz_out(call, linear_dx, dbias)->data, g.cols,
                                       mz_cu_product_parts(g.rows), call->attrs.accumulate));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_linear_dx_product = {"linear_dx__cuda_product", linear_dx_prepare, linear_dx_run};
