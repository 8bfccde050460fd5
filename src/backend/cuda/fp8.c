// Runs linear, linear_dx and linear_dw of 8-bit operands with a scale each through cuBLASLt. Its FP8 products are TN
// only, so a gradient's operands are columnwise: w for dx, dy and x for dw. With matmul.c's words:
//   linear     D [N, M] = w(K×N, T) · x(K×M)       E4M3 · E4M3, fast accumulation
//   linear_dx  D [K, M] = wᵀ(N×K, T) · dy(N×M)     E4M3 · E5M2
//   linear_dw  D [K, N] = xᵀ(M×K, T) · dyᵀ(M×N)    E4M3 · E5M2
#include "backend/cuda/matmul.h"

typedef struct route {
    mz_gemm *gemm;
    bool bias, residual, finish; // the first two in the epilogue; an own kernel follows
    bool act;                    // an activation of the stored BF16 product, by our own kernel
    size_t at_result, at_sums, at_gemm, bytes;
} route;

// first, second: whether that operand must be transposed.
static const char *check(mz_cuda_device *cuda, const mz_call *call, bool first, bool second) {
    if (call->in[0].columnwise != first || call->in[1].columnwise != second)
        return "both operands have what is summed over as their last dimension";
    for (int i = 0; i < 2; i++) {
        const mz_tensor *t = &call->in[i];
        if ((t->dtype != MEZZO_F8E4M3 && t->dtype != MEZZO_F8E5M2) || t->scaling != MZ_SCALING_TENSOR)
            return "multiplies 8-bit operands that have a scale each";
    }
    if (call->in[0].dtype == MEZZO_F8E5M2 && call->in[1].dtype == MEZZO_F8E5M2)
        return "cuBLASLt does not multiply e5m2 with e5m2";
    if (cuda->cc < 89)
        return "no fp8 arithmetic before compute capability 8.9";
    return mz_gemm_library(cuda);
}

// Makes the key of a product. A is the call's input 1, B its input 0.
static mz_gemm_key key_of(const mz_call *call, int64_t m, int64_t n, int64_t k, mezzo_dtype result) {
    mz_gemm_key key;
    memset(&key, 0, sizeof key);
    key.m = m, key.n = n, key.k = k, key.batch = key.chosen_for = 1;
    key.lda = key.ldb = k, key.ldd = m;
    key.transpose_a = 1;
    key.operand = (int32_t)call->in[1].dtype, key.other = (int32_t)call->in[0].dtype;
    key.result = (int32_t)result;
    key.scaled = 1;
    key.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    key.bias = -1;
    return key;
}

// Takes a plan. Operands' rows have k bytes, the result's m numbers of 2 bytes or more; n may be anything.
static const char *take(mz_cuda_device *cuda, const mz_gemm_key *key, route *r) {
    if (key->k % 16 != 0 || key->m % 8 != 0)
        return "rows of operands and of the result are multiples of 16 bytes";
    r->gemm = mz_gemm_find(cuda, key);
    return r->gemm == NULL ? mz_out_of_memory : r->gemm->refusal;
}

static mz_gemm_data data_of(const mz_call *call) {
    return (mz_gemm_data){
        .a = call->in[1].data, .b = call->in[0].data, .scale_a = call->in[1].scale, .scale_b = call->in[0].scale};
}

// --- linear --------------------------------------------------------------------------------------------------------
// Chooses a product with bias and residual where the epilogue has them for these formats. An activation takes the
// product in its stored format, because recomputation quantizes the stored product and must give equal bits.
static const char *linear_whole(mz_cuda_device *cuda, const mz_call *call, mz_gemm_key key, route *r) {
    const mz_tensor *bias = mz_in(call, linear, bias), *residual = mz_in(call, linear, residual),
                    *y = mz_out(call, linear, y), *preact = mz_out(call, linear, preact);
    const bool act = call->attrs.act != MZ_ACT_NONE, aux = mz_present(preact);
    if (mz_present(bias) && bias->dtype != MEZZO_BF16)
        return "its bias is bf16";
    if (act && (mz_present(residual) || call->attrs.via != MEZZO_BF16 || (aux && preact->dtype != MEZZO_BF16)))
        return "an activation is of a product in bf16";
    if ((aux && !act) || (mz_present(residual) && residual->dtype != y->dtype))
        return "its epilogue adds what is stored alike";
    key.result = (int32_t)(act ? MEZZO_BF16 : y->dtype);
    key.beta = key.apart = mz_present(residual);
    key.bias = mz_present(bias) ? (int32_t)MEZZO_BF16 : -1;
    key.epilogue = mz_present(bias) ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    *r = (route){.bias = mz_present(bias), .residual = mz_present(residual), .act = act};
    const char *reason = take(cuda, &key, r);
    if (reason == NULL && act && !aux)
        r->at_result = mz_cuda_place(&r->bytes, (size_t)(key.m * key.n) * sizeof(uint16_t));
    return reason;
}

static const char *linear_route(mz_cuda_device *cuda, const mz_call *call, route *r) {
    const char *reason = check(cuda, call, false, false);
    if (reason != NULL)
        return reason;
    int64_t n = mz_in(call, linear, w)->shape.dim[0], k = mz_in(call, linear, w)->shape.dim[1];
    mz_gemm_key key = key_of(call, n, mz_shape_count(&mz_out(call, linear, y)->shape) / n, k, MEZZO_F32);
    key.fast = 1;
    if (linear_whole(cuda, call, key, r) == NULL) {
        r->at_gemm = mz_cuda_place(&r->bytes, r->gemm->workspace);
        return NULL;
    }
    *r = (route){.finish = true};
    reason = take(cuda, &key, r); // the sum in FP32, and our own kernel for the other steps
    if (reason != NULL)
        return reason;
    r->at_result = mz_cuda_place(&r->bytes, (size_t)(key.m * key.n) * sizeof(float));
    r->at_gemm = mz_cuda_place(&r->bytes, r->gemm->workspace);
    return NULL;
}

static mezzo_status linear_run(mezzo_device *device, const mz_call *call) {
    mz_cuda_device *cuda = mz_cuda(device);
    const route *r = call->state;
    char *workspace = call->workspace;
    mz_gemm_data data = data_of(call);
    const bool stored =
        r->act && mz_present(mz_out(call, linear, preact)); // the activation's gradient reads the product
    data.d = stored                ? mz_out(call, linear, preact)->data
             : r->finish || r->act ? workspace + r->at_result
                                   : mz_out(call, linear, y)->data;
    data.c = r->residual ? mz_in(call, linear, residual)->data : NULL;
    data.bias = mz_in(call, linear, bias)->data;
    MEZZO_TRY(mz_gemm_run(cuda, r->gemm, &data, workspace + r->at_gemm));
    if (!r->finish && !r->act)
        return MEZZO_OK;
    mz_cu_epilogue e = mz_cuda_linear_epilogue(call, (mz_cu_array){data.d, r->act ? MEZZO_BF16 : MEZZO_F32},
                                               r->gemm->key.n, r->gemm->key.m);
    if (r->act) // the product includes the others
        e.bias = e.residual = e.preact = (mz_cu_array){NULL, MEZZO_F32};
    MZ_CUDA_TRY(mz_cu_linear_epilogue(cuda->stream, &e));
    return MEZZO_OK;
}

// --- linear_dx -----------------------------------------------------------------------------------------------------
static const char *linear_dx_route(mz_cuda_device *cuda, const mz_call *call, route *r) {
    const mz_tensor *w = mz_in(call, linear_dx, w), *dx = mz_out(call, linear_dx, dx);
    const char *reason = check(cuda, call, false, true);
    if (reason != NULL)
        return reason;
    bool summed = mz_present(mz_out(call, linear_dx, dbias));
    if (summed && mz_out(call, linear_dx, dbias)->dtype != MEZZO_F32)
        return "gradients are fp32";
    int64_t k = w->shape.dim[0], m = w->shape.dim[1], n = mz_shape_count(&dx->shape) / m;
    r->finish = mz_present(mz_in(call, linear_dx, preact)) || dx->dtype == MEZZO_F16;
    mz_gemm_key key = key_of(call, m, n, k, r->finish ? MEZZO_F32 : dx->dtype);
    reason = take(cuda, &key, r);
    if (reason != NULL)
        return reason;
    r->at_result = r->finish ? mz_cuda_place(&r->bytes, (size_t)(m * n) * sizeof(float)) : 0;
    r->at_sums = summed ? mz_cuda_place(&r->bytes, mz_cu_column_sums_bytes(n, m)) : 0;
    r->at_gemm = mz_cuda_place(&r->bytes, r->gemm->workspace);
    return NULL;
}

static mezzo_status linear_dx_run(mezzo_device *device, const mz_call *call) {
    mz_cuda_device *cuda = mz_cuda(device);
    const route *r = call->state;
    const mz_gemm_key *key = &r->gemm->key;
    char *workspace = call->workspace;
    mz_gemm_data data = data_of(call);
    data.d = r->finish ? workspace + r->at_result : mz_out(call, linear_dx, dx)->data;
    MEZZO_TRY(mz_gemm_run(cuda, r->gemm, &data, workspace + r->at_gemm));
    return mz_cuda_finish_dx(cuda, call, r->finish ? data.d : NULL, key->n, key->m, workspace + r->at_sums);
}

// --- linear_dw -----------------------------------------------------------------------------------------------------
static const char *linear_dw_route(mz_cuda_device *cuda, const mz_call *call, route *r) {
    const mz_tensor *dw = mz_out(call, linear_dw, dw);
    const char *reason = check(cuda, call, true, true);
    if (reason != NULL)
        return reason;
    if (dw->dtype != MEZZO_F32)
        return "gradients are fp32";
    if (mz_present(mz_out(call, linear_dw, db)))
        return "a bias's gradient is not summed from 8 bits";
    int64_t n = dw->shape.dim[0], m = dw->shape.dim[1],
            k = mz_columnwise_pitch(mz_shape_count(&mz_in(call, linear_dw, dy)->shape) / n);
    mz_gemm_key key = key_of(call, m, n, k, MEZZO_F32);
    key.beta = call->attrs.accumulate;
    reason = take(cuda, &key, r);
    if (reason != NULL)
        return reason;
    r->at_gemm = mz_cuda_place(&r->bytes, r->gemm->workspace);
    return NULL;
}

static mezzo_status linear_dw_run(mezzo_device *device, const mz_call *call) {
    mz_cuda_device *cuda = mz_cuda(device);
    const route *r = call->state;
    char *workspace = call->workspace;
    mz_gemm_data data = data_of(call);
    data.d = mz_out(call, linear_dw, dw)->data;
    MEZZO_TRY(mz_gemm_run(cuda, r->gemm, &data, workspace + r->at_gemm));
    return MEZZO_OK;
}

// --- the kernels ---------------------------------------------------------------------------------------------------
MZ_CUDA_ROUTED(linear, mz_cuda_linear_fp8, "linear_fp8__cublaslt")
MZ_CUDA_ROUTED(linear_dx, mz_cuda_linear_dx_fp8, "linear_dx_fp8__cublaslt")
MZ_CUDA_ROUTED(linear_dw, mz_cuda_linear_dw_fp8, "linear_dw_fp8__cublaslt")
