// Runs linear, matmul, linear_dx and linear_dw: each is a product of cuBLASLt with its epilogue, and an own kernel for
// the remaining post-ops.
//
// Tensors are row-major and cuBLASLt's matrices column-major, so that a tensor [R, C] is its matrix [C, R]. With x [M,
// K], w [N, K], y [M, N]:
//   linear     y  = x·wᵀ   D [N, M] = wᵀ-stored(K×N, T) · x(K×M)
//   linear_dx  dx = dy·w   D [K, M] = w(K×N) · dy(N×M)
//   linear_dw  dw = dyᵀ·x  D [K, N] = x(K×M) · dy(N×M, T)
// Rounding (docs/dev/NUMERICS.md): the library's epilogues work on the FP32 sum and round once, which is more exact
// than the separate ops and within their bound; where they cannot do what an op needs, the sum or its rounded value
// goes through an own kernel.
#include "backend/cuda/matmul.h"

typedef enum target { TO_OUTPUT, TO_PREACT, TO_WORKSPACE } target; // the memory that the product writes

// Says how a call is computed: the state of a prepared call.
typedef struct route {
    mz_gemm *gemm;
    bool convert_a, convert_b, convert_bias; // into the operands' format (the bias: into FP32), in the workspace
    bool bias, residual;                     // in the product's epilogue
    bool finish;                             // our own kernel follows
    target target;
    size_t at_a, at_b, at_bias, at_result, at_sums, at_gemm, bytes;
} route;

// Returns whether the library's epilogues may be used. For rows that do not start at multiples of 16 bytes (8 elements)
// the library has older kernels, which round the product before they apply the bias, the residual or the derivative.
static bool aligned(const mz_gemm_key *key) {
    return key->lda % 8 == 0 && key->ldb % 8 == 0 && key->ldd % 8 == 0;
}

// Returns the format in which both operands are multiplied; -1: no such arithmetic. A wider storage is rounded to the
// compute dtype, a narrower one widened; two equal low formats are kept even where FP32 was requested: their products
// are exact in FP32.
int mz_cuda_operand_dtype(const mz_cuda_device *cuda, const mz_call *call) {
    const mezzo_dtype compute = call->numerics.compute, a = call->in[0].dtype, b = call->in[1].dtype;
    int dtype = MEZZO_F32;
    if (a == b && mz_cuda_16bit((int)a))
        dtype = (int)a;
    else if (mz_cuda_16bit((int)compute))
        dtype = (int)compute;
    if (dtype == MEZZO_BF16 && cuda->cc < 80)
        return compute == MEZZO_F32 || (a == MEZZO_BF16 && b == MEZZO_BF16) ? MEZZO_F32 : -1;
    return dtype;
}

static const char *check(mz_cuda_device *cuda, const mz_call *call) {
    mezzo_dtype compute = call->numerics.compute;
    if (compute != MEZZO_F32 && compute != MEZZO_TF32 && !mz_cuda_16bit((int)compute))
        return "computes in fp32, tf32, bf16 and fp16";
    if (compute == MEZZO_TF32 && cuda->cc < 80)
        return "no tf32 arithmetic before compute capability 8.0";
    if (mz_cuda_operand_dtype(cuda, call) < 0)
        return "no bf16 arithmetic before compute capability 8.0";
    return mz_gemm_library(cuda);
}

// Adds up the workspace that `r` needs, for operands in other formats than the product's too. A is input 1, B input 0.
static void book(const mz_call *call, route *r, size_t sums) {
    const mz_gemm_key *key = &r->gemm->key;
    const int b = key->other != 0 ? key->other : key->operand;
    r->bytes = 0;
    r->convert_a = (int)call->in[1].dtype != key->operand;
    r->convert_b = (int)call->in[0].dtype != b;
    if (r->convert_a)
        r->at_a = mz_cuda_place(&r->bytes, mz_cuda_bytes_as(&call->in[1], key->operand));
    if (r->convert_b)
        r->at_b = mz_cuda_place(&r->bytes, mz_cuda_bytes_as(&call->in[0], b));
    if (r->convert_bias)
        r->at_bias = mz_cuda_place(&r->bytes, mz_cuda_bytes_as(mz_in(call, linear, bias), MEZZO_F32));
    if (r->target == TO_WORKSPACE)
        r->at_result = mz_cuda_place(&r->bytes, mz_cuda_bytes_as(&call->out[0], key->result));
    if (sums > 0)
        r->at_sums = mz_cuda_place(&r->bytes, sums);
    r->at_gemm = mz_cuda_place(&r->bytes, r->gemm->workspace);
}

static mz_gemm_key product_key(const mz_cuda_device *cuda, const mz_call *call) {
    mz_gemm_key key;
    memset(&key, 0, sizeof key);
    key.batch = key.chosen_for = 1;
    key.operand = key.result = mz_cuda_operand_dtype(cuda, call);
    key.tf32 = key.operand == MEZZO_F32 && call->numerics.compute == MEZZO_TF32;
    key.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    key.bias = -1;
    return key;
}

// Takes the first of the keys that cuBLASLt supports; returns NULL, or why it does not support the last one.
static const char *take(mz_cuda_device *cuda, const mz_gemm_key *key, route *r) {
    r->gemm = mz_gemm_find(cuda, key);
    return r->gemm == NULL ? mz_out_of_memory : r->gemm->refusal;
}

mezzo_status mz_cuda_operand(mz_cuda_device *cuda, const mz_tensor *t, bool convert, void *staged, int dtype,
                             const void **out) {
    *out = convert ? staged : t->data;
    if (convert)
        MZ_CUDA_TRY(
            mz_cu_convert(cuda->stream, mz_cuda_array(t), (mz_cu_array){staged, dtype}, mz_shape_count(&t->shape)));
    return MEZZO_OK;
}

// Returns where the product goes.
static void *result_of(const mz_call *call, const route *r) {
    return r->target == TO_OUTPUT   ? call->out[0].data
           : r->target == TO_PREACT ? mz_out(call, linear, preact)->data
                                    : (char *)call->workspace + r->at_result;
}

// Runs a route's product; `data` has what is not an operand or the result.
static mezzo_status run_product(mz_cuda_device *cuda, const mz_call *call, const route *r, mz_gemm_data data) {
    char *workspace = call->workspace;
    int dtype = r->gemm->key.operand;
    MEZZO_TRY(mz_cuda_operand(cuda, &call->in[1], r->convert_a, workspace + r->at_a, dtype, &data.a));
    MEZZO_TRY(mz_cuda_operand(cuda, &call->in[0], r->convert_b, workspace + r->at_b, dtype, &data.b));
    data.scale_a = call->in[1].scale, data.scale_b = call->in[0].scale;
    data.d = result_of(call, r);
    return mz_gemm_run(cuda, r->gemm, &data, workspace + r->at_gemm);
}

// --- post-ops that the product leaves ------------------------------------------------------------------------------
mz_cu_epilogue mz_cuda_linear_epilogue(const mz_call *call, mz_cu_array z, int64_t rows, int64_t cols) {
    return (mz_cu_epilogue){.z = z,
                            .bias = mz_cuda_array(mz_in(call, linear, bias)),
                            .residual = mz_cuda_array(mz_in(call, linear, residual)),
                            .preact = mz_cuda_array(mz_out(call, linear, preact)),
                            .y = mz_cuda_array(mz_out(call, linear, y)),
                            .rows = rows,
                            .cols = cols,
                            .act = (int)call->attrs.act,
                            .via = (int)call->attrs.via};
}

mezzo_status mz_cuda_finish_dx(mz_cuda_device *cuda, const mz_call *call, const void *product, int64_t rows,
                               int64_t cols, void *workspace) {
    const mz_cu_array dx = mz_cuda_array(mz_out(call, linear_dx, dx));
    if (product != NULL)
        MZ_CUDA_TRY(mz_cu_act_dx(cuda->stream, product, mz_cuda_array(mz_in(call, linear_dx, preact)), dx, rows * cols,
                                 (int)call->attrs.act));
    if (mz_present(mz_out(call, linear_dx, dbias)))
        MZ_CUDA_TRY(mz_cu_column_sums(cuda->stream, dx, mz_out(call, linear_dx, dbias)->data, rows, cols,
                                      call->attrs.accumulate, workspace));
    return MEZZO_OK;
}

// --- linear --------------------------------------------------------------------------------------------------------
static int forward_epilogue(mz_act act, bool bias, bool preact) {
    if (act == MZ_ACT_GELU_TANH)
        return (preact ? CUBLASLT_EPILOGUE_GELU_AUX : CUBLASLT_EPILOGUE_GELU) | (bias ? CUBLASLT_EPILOGUE_BIAS : 0);
    if (act == MZ_ACT_RELU)
        return CUBLASLT_EPILOGUE_RELU | (bias ? CUBLASLT_EPILOGUE_BIAS : 0);
    return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

// Chooses the product with all post-ops of the op in its epilogue.
static bool linear_whole(mz_cuda_device *cuda, const mz_call *call, mz_gemm_key key, route *r) {
    const mz_tensor *bias = mz_in(call, linear, bias), *residual = mz_in(call, linear, residual),
                    *y = mz_out(call, linear, y), *preact = mz_out(call, linear, preact);
    mz_act act = call->attrs.act;
    if ((int)y->dtype != key.operand && y->dtype != MEZZO_F32)
        return false;
    if (!aligned(&key) && (act != MZ_ACT_NONE || mz_present(bias) || mz_present(residual)))
        return false;
    key.result = (int)y->dtype;
    if (act != MZ_ACT_NONE) {
        // The library's GELU is accurate enough for 16-bit results only. It saves ReLU's input as a bit mask and GELU's
        // in the operands' format, and rounds the sum before it adds a residual.
        if ((act != MZ_ACT_GELU_TANH && act != MZ_ACT_RELU) || mz_present(residual) || key.result != key.operand ||
            !mz_cuda_16bit(key.operand) ||
            (mz_present(preact) && (act == MZ_ACT_RELU || (int)preact->dtype != key.operand)))
            return false;
    } else if (mz_present(preact)) {
        return false;
    }
    if (mz_present(residual)) {
        if (residual->dtype != y->dtype)
            return false;
        key.beta = key.apart = 1;
    }
    key.epilogue = forward_epilogue(act, mz_present(bias), mz_present(preact));
    *r = (route){.bias = mz_present(bias), .residual = mz_present(residual)};
    if (!mz_present(bias))
        return take(cuda, &key, r) == NULL;
    key.bias = (int)bias->dtype;
    if (take(cuda, &key, r) == NULL)
        return true;
    key.bias = MEZZO_F32;
    r->convert_bias = bias->dtype != MEZZO_F32;
    return r->convert_bias && take(cuda, &key, r) == NULL;
}

// Chooses the product alone, or with the bias, and our own kernel for the other steps: on z rounded to `via` where that
// is the operands' format and z includes the bias, else on the FP32 sum.
static const char *linear_in_two(mz_cuda_device *cuda, const mz_call *call, mz_gemm_key key, route *r) {
    const mz_tensor *bias = mz_in(call, linear, bias), *preact = mz_out(call, linear, preact);
    *r = (route){.finish = true, .target = TO_WORKSPACE};
    key.result = mz_cuda_16bit(key.operand) && (int)call->attrs.via == key.operand ? key.operand : MEZZO_F32;
    if (mz_present(bias) && aligned(&key)) {
        key.bias = (int)bias->dtype;
        key.epilogue = CUBLASLT_EPILOGUE_BIAS;
        r->bias = take(cuda, &key, r) == NULL;
    }
    if (!r->bias) {
        key.bias = -1;
        key.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
        key.result = mz_present(bias) ? MEZZO_F32 : key.result;
        const char *reason = take(cuda, &key, r);
        if (reason != NULL)
            return reason;
    }
    bool whole = r->bias || !mz_present(bias); // then D equals preact
    if (mz_present(preact) && whole && (int)preact->dtype == key.result && (int)call->attrs.via == key.result)
        r->target = TO_PREACT;
    return NULL;
}

static const char *linear_route(mz_cuda_device *cuda, const mz_call *call, route *r) {
    const char *reason = check(cuda, call);
    if (reason != NULL)
        return reason;
    mz_gemm_key key = product_key(cuda, call);
    key.m = mz_in(call, linear, w)->shape.dim[0], key.k = mz_in(call, linear, w)->shape.dim[1];
    key.n = mz_shape_count(&mz_out(call, linear, y)->shape) / key.m;
    key.transpose_a = 1;
    key.lda = key.ldb = key.k, key.ldd = key.m;
    if (!linear_whole(cuda, call, key, r)) {
        reason = linear_in_two(cuda, call, key, r);
        if (reason != NULL)
            return reason;
    }
    book(call, r, 0);
    return NULL;
}

static mezzo_status linear_run(mezzo_device *device, const mz_call *call) {
    mz_cuda_device *cuda = mz_cuda(device);
    const mz_tensor *bias = mz_in(call, linear, bias), *residual = mz_in(call, linear, residual),
                    *preact = mz_out(call, linear, preact);
    const route *r = call->state;
    mz_gemm_data data = {.c = r->residual ? residual->data : NULL, .aux = preact->data};
    if (r->bias)
        MEZZO_TRY(
            mz_cuda_operand(cuda, bias, r->convert_bias, (char *)call->workspace + r->at_bias, MEZZO_F32, &data.bias));
    MEZZO_TRY(run_product(cuda, call, r, data));
    if (!r->finish)
        return MEZZO_OK;
    const mz_cu_array none = {NULL, MEZZO_F32};
    const mz_gemm_key *key = &r->gemm->key;
    mz_cu_epilogue e = mz_cuda_linear_epilogue(call, (mz_cu_array){result_of(call, r), key->result}, key->n, key->m);
    if (r->bias)
        e.bias = none;
    if (r->target == TO_PREACT)
        e.preact = none;
    MZ_CUDA_TRY(mz_cu_linear_epilogue(cuda->stream, &e));
    return MEZZO_OK;
}

// --- linear_dx -----------------------------------------------------------------------------------------------------
static const char *book_dx(const mz_call *call, route *r) {
    const mz_tensor *dbias = mz_out(call, linear_dx, dbias);
    book(call, r, mz_present(dbias) ? mz_cu_column_sums_bytes(r->gemm->key.n, r->gemm->key.m) : 0);
    return mz_present(dbias) && dbias->dtype != MEZZO_F32 ? "gradients are fp32" : NULL;
}

static const char *linear_dx_route(mz_cuda_device *cuda, const mz_call *call, route *r) {
    const mz_tensor *w = mz_in(call, linear_dx, w), *preact = mz_in(call, linear_dx, preact),
                    *dx = mz_out(call, linear_dx, dx);
    const char *reason = check(cuda, call);
    if (reason != NULL)
        return reason;
    mz_gemm_key key = product_key(cuda, call);
    key.k = w->shape.dim[0], key.m = w->shape.dim[1];
    key.n = mz_shape_count(&dx->shape) / key.m;
    key.lda = key.ldd = key.m, key.ldb = key.k;
    bool storable = (int)dx->dtype == key.operand || dx->dtype == MEZZO_F32;
    *r = (route){.target = TO_OUTPUT};
    bool whole = false, cached = (size_t)(key.m * key.n) * sizeof(float) <= (size_t)cuda->l2;
    // For a product that stays in L2, a kernel of this folder finishes the FP32 sum faster than the library's kernel
    // for dGELU.
    if (mz_present(preact) && mz_cuda_16bit(key.operand) && call->attrs.act == MZ_ACT_GELU_TANH && !cached &&
        (int)preact->dtype == key.operand && (int)dx->dtype == key.operand && aligned(&key)) {
        mz_gemm_key fused = key;
        fused.epilogue = CUBLASLT_EPILOGUE_DGELU;
        whole = take(cuda, &fused, r) == NULL;
    }
    if (!whole) {
        r->finish = mz_present(preact) || !storable;
        r->target = r->finish ? TO_WORKSPACE : TO_OUTPUT;
        key.result = r->finish ? MEZZO_F32 : (int)dx->dtype;
        reason = take(cuda, &key, r);
        if (reason != NULL)
            return reason;
    }
    return book_dx(call, r);
}

static mezzo_status linear_dx_run(mezzo_device *device, const mz_call *call) {
    mz_cuda_device *cuda = mz_cuda(device);
    const route *r = call->state;
    MEZZO_TRY(run_product(cuda, call, r, (mz_gemm_data){.aux = mz_in(call, linear_dx, preact)->data}));
    return mz_cuda_finish_dx(cuda, call, r->finish ? result_of(call, r) : NULL, r->gemm->key.n, r->gemm->key.m,
                             (char *)call->workspace + r->at_sums);
}

// --- linear_dw -----------------------------------------------------------------------------------------------------
static const char *linear_dw_route(mz_cuda_device *cuda, const mz_call *call, route *r) {
    const mz_tensor *dy = mz_in(call, linear_dw, dy), *dw = mz_out(call, linear_dw, dw),
                    *db = mz_out(call, linear_dw, db);
    const char *reason = check(cuda, call);
    if (reason != NULL)
        return reason;
    if (dw->dtype != MEZZO_F32 || (mz_present(db) && db->dtype != MEZZO_F32))
        return "gradients are fp32";
    mz_gemm_key key = product_key(cuda, call);
    key.n = dw->shape.dim[0], key.m = dw->shape.dim[1];
    key.k = mz_shape_count(&dy->shape) / key.n;
    key.transpose_b = 1;
    key.lda = key.ldd = key.m, key.ldb = key.n;
    key.result = MEZZO_F32;
    key.beta = call->attrs.accumulate;
    *r = (route){.target = TO_OUTPUT};
    reason = take(cuda, &key, r);
    if (reason != NULL)
        return reason;
    book(call, r, mz_present(db) ? mz_cu_column_sums_bytes(key.k, key.n) : 0);
    return NULL;
}

static mezzo_status linear_dw_run(mezzo_device *device, const mz_call *call) {
    mz_cuda_device *cuda = mz_cuda(device);
    const mz_tensor *db = mz_out(call, linear_dw, db);
    const route *r = call->state;
    MEZZO_TRY(run_product(cuda, call, r, (mz_gemm_data){.d = NULL}));
    if (mz_present(db))
        MZ_CUDA_TRY(mz_cu_column_sums(cuda->stream, mz_cuda_array(mz_in(call, linear_dw, dy)), db->data, r->gemm->key.k,
                                      r->gemm->key.n, call->attrs.accumulate,
                                      (float *)(void *)((char *)call->workspace + r->at_sums)));
    return MEZZO_OK;
}

// --- matmul --------------------------------------------------------------------------------------------------------
static bool with_diagonal(const mz_call *call) {
    return mz_present(mz_in(call, matmul, added)) && call->attrs.coefficients[2] != 0;
}

static const char *matmul_route(mz_cuda_device *cuda, const mz_call *call, route *r) {
    const mz_tensor *a = mz_in(call, matmul, a), *b = mz_in(call, matmul, b), *added = mz_in(call, matmul, added),
                    *y = mz_out(call, matmul, y);
    const char *reason = check(cuda, call);
    if (reason != NULL)
        return reason;
    mz_gemm_key key = product_key(cuda, call);
    int rank = y->shape.rank;
    bool ta = call->attrs.transpose_a, tb = call->attrs.transpose_b;
    key.n = y->shape.dim[rank - 2], key.m = y->shape.dim[rank - 1];
    key.k = a->shape.dim[a->shape.rank - (ta ? 2 : 1)];
    key.batch = mz_shape_count(&y->shape) / (key.m * key.n);
    key.chosen_for = call->attrs.chosen_for > 0 ? call->attrs.chosen_for : key.batch;
    key.transpose_a = tb, key.transpose_b = ta;
    key.lda = tb ? key.k : key.m, key.ldb = ta ? key.n : key.k, key.ldd = key.m;
    key.stride_a = key.m * key.k, key.stride_b = key.k * key.n, key.stride_d = key.m * key.n;
    if (mz_shape_count(&a->shape) != key.batch * key.stride_b || mz_shape_count(&b->shape) != key.batch * key.stride_a)
        return "both operands have every batch";
    const bool rounds_once = !mz_present(added) || (added->dtype == y->dtype && aligned(&key) && !with_diagonal(call));
    bool storable = ((int)y->dtype == key.operand && rounds_once) || y->dtype == MEZZO_F32;
    key.result = storable ? (int)y->dtype : MEZZO_F32;
    key.beta = key.factors = mz_present(added);
    key.apart = mz_present(added) && (int)added->dtype == key.result;
    *r = (route){.finish = !storable, .target = storable ? TO_OUTPUT : TO_WORKSPACE};
    reason = take(cuda, &key, r);
    if (reason != NULL)
        return reason;
    book(call, r, 0);
    return NULL;
}

static mezzo_status matmul_run(mezzo_device *device, const mz_call *call) {
    mz_cuda_device *cuda = mz_cuda(device);
    const mz_tensor *y = mz_out(call, matmul, y);
    const route *r = call->state;
    void *d = result_of(call, r);
    const mz_tensor *added = mz_in(call, matmul, added);
    if (r->gemm->key.beta && !r->gemm->key.apart) // the library adds what has the result's format
        MZ_CUDA_TRY(
            mz_cu_convert(cuda->stream, mz_cuda_array(added), (mz_cu_array){d, MEZZO_F32}, mz_shape_count(&y->shape)));
    const mz_gemm_data data = {.c = r->gemm->key.apart ? added->data : NULL, .factors = call->attrs.coefficients};
    MEZZO_TRY(run_product(cuda, call, r, data));
    if (with_diagonal(call)) // of FP32 numbers
        MZ_CUDA_TRY(
            mz_cu_add_to_diagonal(cuda->stream, d, r->gemm->key.batch, r->gemm->key.m, call->attrs.coefficients[2]));
    if (r->finish)
        MZ_CUDA_TRY(
            mz_cu_convert(cuda->stream, (mz_cu_array){d, MEZZO_F32}, mz_cuda_array(y), mz_shape_count(&y->shape)));
    return MEZZO_OK;
}

// --- 8-bit operands with a scale each ------------------------------------------------------------------------------
// The library's FP8 products are TN only, so a gradient's operands are columnwise: w for dx, dy and x for dw.
//   linear     D [N, M] = w(K×N, T) · x(K×M)       E4M3 · E4M3, fast accumulation
//   linear_dx  D [K, M] = wᵀ(N×K, T) · dy(N×M)     E4M3 · E5M2
//   linear_dw  D [K, N] = xᵀ(M×K, T) · dyᵀ(M×N)    E4M3 · E5M2
// first, second: whether that operand must be transposed.
static const char *check_fp8(mz_cuda_device *cuda, const mz_call *call, bool first, bool second) {
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

static mz_gemm_key key_fp8(const mz_call *call, int64_t m, int64_t n, int64_t k, mezzo_dtype result) {
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
static const char *take_fp8(mz_cuda_device *cuda, const mz_gemm_key *key, route *r) {
    if (key->k % 16 != 0 || key->m % 8 != 0)
        return "rows of operands and of the result are multiples of 16 bytes";
    return take(cuda, key, r);
}

// Chooses a product with bias and residual where the epilogue has them for these formats. An activation takes the
// product in its stored format, because recomputation quantizes the stored product and must give equal bits.
static const char *linear_whole_fp8(mz_cuda_device *cuda, const mz_call *call, mz_gemm_key key, route *r) {
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
    *r = (route){.bias = mz_present(bias), .residual = mz_present(residual), .finish = act};
    r->target = !act ? TO_OUTPUT : aux ? TO_PREACT : TO_WORKSPACE;
    return take_fp8(cuda, &key, r);
}

static const char *linear_fp8_route(mz_cuda_device *cuda, const mz_call *call, route *r) {
    const char *reason = check_fp8(cuda, call, false, false);
    if (reason != NULL)
        return reason;
    int64_t n = mz_in(call, linear, w)->shape.dim[0], k = mz_in(call, linear, w)->shape.dim[1];
    mz_gemm_key key = key_fp8(call, n, mz_shape_count(&mz_out(call, linear, y)->shape) / n, k, MEZZO_F32);
    key.fast = 1;
    if (linear_whole_fp8(cuda, call, key, r) != NULL) { // the sum in FP32, and our own kernel for the other steps
        *r = (route){.finish = true, .target = TO_WORKSPACE};
        reason = take_fp8(cuda, &key, r);
    }
    if (reason == NULL)
        book(call, r, 0);
    return reason;
}

static const char *linear_dx_fp8_route(mz_cuda_device *cuda, const mz_call *call, route *r) {
    const mz_tensor *w = mz_in(call, linear_dx, w), *dx = mz_out(call, linear_dx, dx);
    const char *reason = check_fp8(cuda, call, false, true);
    if (reason != NULL)
        return reason;
    int64_t k = w->shape.dim[0], m = w->shape.dim[1], n = mz_shape_count(&dx->shape) / m;
    r->finish = mz_present(mz_in(call, linear_dx, preact)) || dx->dtype == MEZZO_F16;
    r->target = r->finish ? TO_WORKSPACE : TO_OUTPUT;
    mz_gemm_key key = key_fp8(call, m, n, k, r->finish ? MEZZO_F32 : dx->dtype);
    reason = take_fp8(cuda, &key, r);
    return reason != NULL ? reason : book_dx(call, r);
}

static const char *linear_dw_fp8_route(mz_cuda_device *cuda, const mz_call *call, route *r) {
    const mz_tensor *dw = mz_out(call, linear_dw, dw);
    const char *reason = check_fp8(cuda, call, true, true);
    if (reason != NULL)
        return reason;
    if (dw->dtype != MEZZO_F32)
        return "gradients are fp32";
    if (mz_present(mz_out(call, linear_dw, db)))
        return "a bias's gradient is not summed from 8 bits";
    int64_t n = dw->shape.dim[0], m = dw->shape.dim[1],
            k = mz_columnwise_pitch(mz_shape_count(&mz_in(call, linear_dw, dy)->shape) / n);
    mz_gemm_key key = key_fp8(call, m, n, k, MEZZO_F32);
    key.beta = call->attrs.accumulate;
    reason = take_fp8(cuda, &key, r);
    if (reason == NULL)
        book(call, r, 0);
    return reason;
}

// --- the kernels ---------------------------------------------------------------------------------------------------
typedef const char *route_of(mz_cuda_device *cuda, const mz_call *call, route *r);

static const char *prepare(mezzo_device *device, const mz_call *call, route_of *find, mz_prepared *out) {
    mz_cuda_device *cuda = mz_cuda(device);
    route *r = out->state = mz_alloc(1, sizeof *r);
    if (r == NULL)
        return mz_out_of_memory;
    const char *reason = find(cuda, call, r);
    // Measuring may exclude a plan. Of 8-bit operands the library's first proposal stays.
    while (reason == NULL && !r->gemm->measured && !r->gemm->key.scaled && !cuda->capturing) {
        mz_gemm_measure(cuda, r->gemm);
        reason = find(cuda, call, r);
    }
    out->workspace = r->bytes;
    return reason;
}

#define MATMUL_KERNEL(symbol, name, run)                                                                               \
    static const char *symbol##_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {                 \
        return prepare(device, call, symbol##_route, out);                                                             \
    }                                                                                                                  \
    const mz_kernel mz_cuda_##symbol = {name, symbol##_prepare, run};
MATMUL_KERNEL(linear, "linear__cublaslt", linear_run)
MATMUL_KERNEL(linear_dx, "linear_dx__cublaslt", linear_dx_run)
MATMUL_KERNEL(linear_dw, "linear_dw__cublaslt", linear_dw_run)
MATMUL_KERNEL(matmul, "matmul__cublaslt", matmul_run)
MATMUL_KERNEL(linear_fp8, "linear_fp8__cublaslt", linear_run)
MATMUL_KERNEL(linear_dx_fp8, "linear_dx_fp8__cublaslt", linear_dx_run)
MATMUL_KERNEL(linear_dw_fp8, "linear_dw_fp8__cublaslt", linear_dw_run)
