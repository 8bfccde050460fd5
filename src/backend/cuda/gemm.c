// Opens cuBLASLt, makes plans, and chooses algorithms.
#include <dlfcn.h>
#include <math.h>

#include "backend/cuda/matmul.h"

#define WORKSPACE ((size_t)32 << 20) // NVIDIA's advice for Hopper

#define LT_FUNCTIONS(X)                                                                                                \
    X(cublasLtCreate)                                                                                                  \
    X(cublasLtDestroy)                                                                                                 \
    X(cublasLtGetVersion)                                                                                              \
    X(cublasLtMatmul)                                                                                                  \
    X(cublasLtMatmulDescCreate)                                                                                        \
    X(cublasLtMatmulDescDestroy)                                                                                       \
    X(cublasLtMatmulDescSetAttribute)                                                                                  \
    X(cublasLtMatrixLayoutCreate)                                                                                      \
    X(cublasLtMatrixLayoutDestroy)                                                                                     \
    X(cublasLtMatrixLayoutSetAttribute)                                                                                \
    X(cublasLtMatmulPreferenceCreate)                                                                                  \
    X(cublasLtMatmulPreferenceDestroy)                                                                                 \
    X(cublasLtMatmulPreferenceSetAttribute)                                                                            \
    X(cublasLtMatmulAlgoGetHeuristic)                                                                                  \
    X(cublasLtMatmulAlgoConfigGetAttribute)

struct mz_cuda_matmul {
    void *library;
    char reason[200]; // why the library is not available
    cublasLtHandle_t handle;
    mz_gemm **plans;
    size_t n_plans, cap_plans;
#define X(name) __typeof__(&(name)) name;
    LT_FUNCTIONS(X)
#undef X
};

// --- the library ---------------------------------------------------------------------------------------------------
static bool find_functions(struct mz_cuda_matmul *lt) {
    void *symbol;
    bool all = true;
#define X(name)                                                                                                        \
    symbol = dlsym(lt->library, #name);                                                                                \
    memcpy(&lt->name, &symbol, sizeof symbol);                                                                         \
    all = all && symbol != NULL;
    LT_FUNCTIONS(X)
#undef X
    return all;
}

const char *mz_gemm_library(mz_cuda_device *cuda) {
    if (cuda->matmul != NULL)
        return cuda->matmul->library != NULL ? NULL : cuda->matmul->reason;
    struct mz_cuda_matmul *lt = cuda->matmul = mz_alloc(1, sizeof *lt);
    if (lt == NULL)
        return "no host memory";
    char soname[32];
    snprintf(soname, sizeof soname, "libcublasLt.so.%d", CUBLAS_VER_MAJOR);
    lt->library = mz_cuda_library(soname, lt->reason, sizeof lt->reason);
    if (lt->library == NULL)
        return lt->reason;
    if (find_functions(lt) && lt->cublasLtCreate(&lt->handle) == CUBLAS_STATUS_SUCCESS)
        return NULL;
    snprintf(lt->reason, sizeof lt->reason, "%s does not start", soname);
    dlclose(lt->library);
    lt->library = NULL;
    return lt->reason;
}

void mz_gemm_version(const mz_cuda_device *cuda, char *text, size_t size) {
    text[0] = '\0';
    if (cuda->matmul == NULL || cuda->matmul->library == NULL)
        return;
    size_t v = cuda->matmul->cublasLtGetVersion();
    snprintf(text, size, "%zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100);
}

static void plan_free(struct mz_cuda_matmul *lt, mz_gemm *gemm) {
    if (gemm == NULL)
        return;
    if (gemm->operation != NULL)
        (void)lt->cublasLtMatmulDescDestroy(gemm->operation);
    cublasLtMatrixLayout_t layouts[] = {gemm->a, gemm->b, gemm->d};
    for (size_t i = 0; i < MZ_COUNT(layouts); i++)
        if (layouts[i] != NULL)
            (void)lt->cublasLtMatrixLayoutDestroy(layouts[i]);
    mz_free(gemm);
}

void mz_gemm_close(mz_cuda_device *cuda) {
    struct mz_cuda_matmul *lt = cuda->matmul;
    if (lt == NULL)
        return;
    for (size_t i = 0; i < lt->n_plans; i++)
        plan_free(lt, lt->plans[i]);
    mz_free(lt->plans);
    if (lt->library != NULL) {
        (void)lt->cublasLtDestroy(lt->handle);
        dlclose(lt->library);
    }
    mz_free(lt);
    cuda->matmul = NULL;
}

// --- plans ---------------------------------------------------------------------------------------------------------
static cudaDataType data_type(int dtype) {
    switch (dtype) {
    case MEZZO_F32:
        return CUDA_R_32F;
    case MEZZO_BF16:
        return CUDA_R_16BF;
    case MEZZO_F16:
        return CUDA_R_16F;
    case MEZZO_F8E4M3:
        return CUDA_R_8F_E4M3;
    case MEZZO_F8E5M2:
        return CUDA_R_8F_E5M2;
    default:
        return (cudaDataType)-1; // no layout is made with it
    }
}

static int format_of_b(const mz_gemm_key *key) {
    return key->other != 0 ? key->other : key->operand;
}

static bool describe_operation(struct mz_cuda_matmul *lt, mz_gemm *gemm) {
    const mz_gemm_key *key = &gemm->key;
    cublasComputeType_t compute = key->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    if (lt->cublasLtMatmulDescCreate(&gemm->operation, compute, CUDA_R_32F) != CUBLAS_STATUS_SUCCESS)
        return false;
    int32_t a = key->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, b = key->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    uint32_t epilogue = (uint32_t)key->epilogue;
    int32_t bias = key->bias >= 0 ? (int32_t)data_type(key->bias) : -1,
            aux = (int32_t)data_type(key->scaled ? key->result : key->operand);
    int8_t fast = (int8_t)key->fast;
    bool has_aux = key->epilogue & 128;
    int64_t ld = key->ldd, stride = key->stride_d;
    const void *aligned = (const void *)(uintptr_t)256; // only its alignment is inspected before a run
#define SET(name, value)                                                                                               \
    (lt->cublasLtMatmulDescSetAttribute(gemm->operation, CUBLASLT_MATMUL_DESC_##name, &(value), sizeof(value)) ==      \
     CUBLAS_STATUS_SUCCESS)
    bool ok = SET(TRANSA, a) && SET(TRANSB, b) && SET(EPILOGUE, epilogue);
    if (key->bias >= 0)
        ok = ok && SET(BIAS_DATA_TYPE, bias) && SET(BIAS_POINTER, aligned);
    if (key->scaled)
        ok = ok && SET(A_SCALE_POINTER, aligned) && SET(B_SCALE_POINTER, aligned) && SET(FAST_ACCUM, fast);
    if (has_aux)
        ok = ok && SET(EPILOGUE_AUX_POINTER, aligned) && SET(EPILOGUE_AUX_LD, ld) &&
             SET(EPILOGUE_AUX_BATCH_STRIDE, stride) && SET(EPILOGUE_AUX_DATA_TYPE, aux);
#undef SET
    return ok;
}

static bool describe_matrix(struct mz_cuda_matmul *lt, int dtype, int64_t rows, int64_t cols, int64_t ld,
                            int64_t stride, cublasLtMatrixLayout_t *out) {
    return lt->cublasLtMatrixLayoutCreate(out, data_type(dtype), (uint64_t)rows, (uint64_t)cols, ld) ==
               CUBLAS_STATUS_SUCCESS &&
           lt->cublasLtMatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                                sizeof stride) == CUBLAS_STATUS_SUCCESS;
}

// Returns the largest power of two, up to 64 bytes, of which every matrix of a batch starts at a multiple.
static uint32_t alignment(int64_t batch, int64_t stride, int dtype) {
    uint32_t bytes = 64;
    while (batch > 1 && bytes > 1 && stride * (int64_t)mezzo_dtype_size((mezzo_dtype)dtype) % bytes != 0)
        bytes /= 2;
    return bytes;
}

static bool set_batch(struct mz_cuda_matmul *lt, const mz_gemm *gemm, int64_t batch) {
    const cublasLtMatrixLayout_t layouts[] = {gemm->a, gemm->b, gemm->d};
    const int32_t count = (int32_t)batch;
    bool ok = true;
    for (size_t i = 0; i < MZ_COUNT(layouts); i++)
        ok = ok && lt->cublasLtMatrixLayoutSetAttribute(layouts[i], CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                                        sizeof count) == CUBLAS_STATUS_SUCCESS;
    return ok;
}

// Gets the library's proposals in its own order, best first. Algorithms that split K and sum in the result's own
// format, or in place, are left out: the former round partial sums, the latter may differ from run to run.
static int propose(struct mz_cuda_matmul *lt, const mz_gemm *gemm, cublasLtMatmulHeuristicResult_t *out) {
    const mz_gemm_key *key = &gemm->key;
    cublasLtMatmulPreference_t wishes = NULL;
    uint64_t bytes = WORKSPACE;
    uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    uint32_t a = alignment(key->chosen_for, key->stride_a, key->operand);
    uint32_t b = alignment(key->chosen_for, key->stride_b, format_of_b(key));
    uint32_t d = alignment(key->chosen_for, key->stride_d, key->result);
    int found = 0;
    if (!set_batch(lt, gemm, key->chosen_for) || lt->cublasLtMatmulPreferenceCreate(&wishes) != CUBLAS_STATUS_SUCCESS)
        return 0;
#define SET(name, value)                                                                                               \
    (lt->cublasLtMatmulPreferenceSetAttribute(wishes, CUBLASLT_MATMUL_PREF_##name, &(value), sizeof(value)) ==         \
     CUBLAS_STATUS_SUCCESS)
    bool ok = SET(MAX_WORKSPACE_BYTES, bytes) && SET(REDUCTION_SCHEME_MASK, scheme) && SET(MIN_ALIGNMENT_A_BYTES, a) &&
              SET(MIN_ALIGNMENT_B_BYTES, b) && SET(MIN_ALIGNMENT_C_BYTES, d) && SET(MIN_ALIGNMENT_D_BYTES, d);
#undef SET
    if (ok && lt->cublasLtMatmulAlgoGetHeuristic(lt->handle, gemm->operation, gemm->a, gemm->b, gemm->d, gemm->d,
                                                 wishes, MZ_REHEARSAL_PLANS, out, &found) != CUBLAS_STATUS_SUCCESS)
        found = 0;
    (void)lt->cublasLtMatmulPreferenceDestroy(wishes);
    int n = 0;
    if (!set_batch(lt, gemm, key->batch))
        return 0;
    for (int i = 0; i < found; i++)
        if (out[i].state == CUBLAS_STATUS_SUCCESS)
            out[n++] = out[i];
    return n;
}

static const char *make_plan(struct mz_cuda_matmul *lt, mz_gemm *gemm) {
    const mz_gemm_key *key = &gemm->key;
    int64_t a_rows = key->transpose_a ? key->k : key->m, a_cols = key->transpose_a ? key->m : key->k;
    int64_t b_rows = key->transpose_b ? key->n : key->k, b_cols = key->transpose_b ? key->k : key->n;
    if (!describe_operation(lt, gemm) ||
        !describe_matrix(lt, key->operand, a_rows, a_cols, key->lda, key->stride_a, &gemm->a) ||
        !describe_matrix(lt, format_of_b(key), b_rows, b_cols, key->ldb, key->stride_b, &gemm->b) ||
        !describe_matrix(lt, key->result, key->m, key->n, key->ldd, key->stride_d, &gemm->d))
        return "cuBLASLt takes no such operation";
    cublasLtMatmulHeuristicResult_t results[MZ_REHEARSAL_PLANS];
    if (propose(lt, gemm, results) == 0)
        return "cuBLASLt has no algorithm for these shapes and formats";
    gemm->algorithm = results[0].algo;
    gemm->workspace = results[0].workspaceSize;
    return NULL;
}

mz_gemm *mz_gemm_find(mz_cuda_device *cuda, const mz_gemm_key *key) {
    struct mz_cuda_matmul *lt = cuda->matmul;
    for (size_t i = 0; i < lt->n_plans; i++)
        if (memcmp(&lt->plans[i]->key, key, sizeof *key) == 0)
            return lt->plans[i];
    mz_gemm *gemm = mz_alloc(1, sizeof *gemm);
    if (gemm == NULL || MZ_RESERVE(lt->plans, lt->cap_plans, lt->n_plans + 1) != MEZZO_OK) {
        mz_free(gemm);
        return NULL;
    }
    gemm->key = *key;
    gemm->refusal = make_plan(lt, gemm);
    lt->plans[lt->n_plans++] = gemm;
    return gemm;
}

// --- running -------------------------------------------------------------------------------------------------------
static cublasStatus_t run_algorithm(mz_cuda_device *cuda, const mz_gemm *gemm, const cublasLtMatmulAlgo_t *algorithm,
                                    size_t bytes, const mz_gemm_data *data, void *workspace) {
    struct mz_cuda_matmul *lt = cuda->matmul;
    const float alpha = gemm->key.factors ? data->factors[0] : 1,
                beta = gemm->key.factors ? data->factors[1] : (float)gemm->key.beta;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
#define POINT(name, value)                                                                                             \
    status = status != CUBLAS_STATUS_SUCCESS                                                                           \
                 ? status                                                                                              \
                 : lt->cublasLtMatmulDescSetAttribute(gemm->operation, CUBLASLT_MATMUL_DESC_##name##_POINTER,          \
                                                      &(value), sizeof(value))
    if (gemm->key.bias >= 0)
        POINT(BIAS, data->bias);
    if (gemm->key.scaled)
        POINT(A_SCALE, data->scale_a), POINT(B_SCALE, data->scale_b);
    if (gemm->key.epilogue & 128)
        POINT(EPILOGUE_AUX, data->aux);
#undef POINT
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    return lt->cublasLtMatmul(lt->handle, gemm->operation, &alpha, data->a, gemm->a, data->b, gemm->b, &beta,
                              data->c != NULL ? data->c : data->d, gemm->d, data->d, gemm->d, algorithm, workspace,
                              bytes, cuda->stream);
}

mezzo_status mz_gemm_run(mz_cuda_device *cuda, const mz_gemm *gemm, const mz_gemm_data *data, void *workspace) {
    cublasStatus_t status = run_algorithm(cuda, gemm, &gemm->algorithm, gemm->workspace, data, workspace);
    if (status != CUBLAS_STATUS_SUCCESS)
        return mz_fail(MEZZO_ERR_DEVICE, "cuBLASLt: status %d of a product of %lldx%lldx%lld", (int)status,
                       (long long)gemm->key.m, (long long)gemm->key.n, (long long)gemm->key.k);
    return MEZZO_OK;
}

// --- measuring -----------------------------------------------------------------------------------------------------
enum { PROBE_COLUMNS = 32 };

typedef struct rehearsal {
    mz_rehearsal r; // first member
    const mz_gemm *gemm;
    const cublasLtMatmulHeuristicResult_t *results;
    mz_gemm_data data;
    void *added; // what a key with beta adds: C, or D's values before a run
    void *exact; // FP32, of the first columns
    void *workspace;
    size_t filled; // bytes of memory that hold numbers
} rehearsal;

static size_t span(int64_t rows_by_cols, int64_t batch, int64_t stride, int dtype) {
    int64_t elements = batch > 1 ? stride * batch : rows_by_cols;
    return mz_align_up((size_t)elements * mezzo_dtype_size((mezzo_dtype)dtype), 256);
}

// Factors whose products round, so that the order of the multiplications and the sum shows in the bits. The second is
// less than 1: repeated runs in place stay finite.
static const float uneven[2] = {2.0315f, -0.7775f};

static bool prepare(const mz_gemm_key *key, rehearsal *r) {
    size_t a = span(key->m * key->k, key->batch, key->stride_a, key->operand);
    size_t b = span(key->k * key->n, key->batch, key->stride_b, key->operand);
    size_t vector = mz_align_up((size_t)(key->m > key->n ? key->m : key->n) * 4, 256);
    size_t d = r->r.result_bytes = span(key->m * key->n, key->batch, key->stride_d, key->result);
    size_t exact = mz_align_up((size_t)(key->m * PROBE_COLUMNS) * sizeof(float), 256);
    size_t needed = a + b + (key->beta ? 4 : 3) * d + vector + exact + WORKSPACE + 256;
    if (!mz_rehearsal_open(&r->r, needed))
        return false;
    char *at = r->r.memory;
    r->data.a = at, r->data.b = at += a, r->data.d = r->r.result = at += b, r->r.first = at += d;
    r->data.aux = at += d, r->data.bias = at += d;
    r->added = at += vector;
    r->exact = at += key->beta ? d : 0, r->workspace = at += exact;
    r->data.c = key->apart ? r->added : NULL;
    r->data.factors = uneven;
    r->r.added = key->beta && !key->apart ? r->added : NULL;
    r->r.differs = (int32_t *)(void *)(at + WORKSPACE);
    r->filled = needed - WORKSPACE - 256;
    return true;
}

static bool fill(const mz_rehearsal *all, bool cancel) {
    const rehearsal *r = (const rehearsal *)(const void *)all;
    const mz_gemm_key *key = &r->gemm->key;
    const cudaStream_t stream = all->cuda->stream;
    const size_t count = r->filled / mezzo_dtype_size((mezzo_dtype)key->operand);
    const size_t added = key->beta ? all->result_bytes / mezzo_dtype_size((mezzo_dtype)key->result) : 0;
    return mz_cu_fill(stream, (mz_cu_array){all->memory, key->operand}, (int64_t)count, 1, cancel) == cudaSuccess &&
           (added == 0 ||
            mz_cu_fill(stream, (mz_cu_array){r->added, key->result}, (int64_t)added, 2, cancel) == cudaSuccess);
}

static bool run_result(const mz_rehearsal *all, int i) {
    const rehearsal *r = (const rehearsal *)(const void *)all;
    return run_algorithm(all->cuda, r->gemm, &r->results[i].algo, r->results[i].workspaceSize, &r->data,
                         r->workspace) == CUBLAS_STATUS_SUCCESS;
}

// --- how often dGELU rounds ----------------------------------------------------------------------------------------
// Bounds the mean error of dGELU. For small shapes the library computes dGELU by a separate kernel, which reads the
// rounded product. The op rounds once: then the mean distance from the exact value is 1/4 of a unit in the last place,
// after two roundings more than 1/3 (the sum of two such errors).
#define MOST_MEAN_ERROR 0.29

typedef struct probe {
    float *exact, *given; // [m, columns], host
    void *low;            // the candidate's result before it is widened
    int64_t count;
} probe;

static void probe_free(probe *p) {
    mz_free(p->exact);
    mz_free(p->given);
    mz_free(p->low);
    *p = (probe){0};
}

// Computes the first columns of the product in FP32 by a plain product, and the derivative by our own kernel.
static bool probe_make(mz_cuda_device *cuda, const mz_gemm *gemm, const rehearsal *r, probe *p) {
    mz_gemm_key plain = gemm->key;
    plain.n = plain.n < PROBE_COLUMNS ? plain.n : PROBE_COLUMNS;
    plain.result = MEZZO_F32;
    plain.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    p->count = plain.m * plain.n;
    size_t bytes = (size_t)p->count * sizeof(float);
    p->exact = mz_alloc(1, bytes), p->given = mz_alloc(1, bytes), p->low = mz_alloc(1, bytes);
    const mz_gemm *product = mz_gemm_find(cuda, &plain);
    mz_gemm_data data = {.a = r->data.a, .b = r->data.b, .d = r->exact};
    mz_cu_array exact = {r->exact, MEZZO_F32}, preact = {r->data.aux, gemm->key.operand};
    return p->exact != NULL && p->given != NULL && p->low != NULL && product != NULL && product->refusal == NULL &&
           mz_gemm_run(cuda, product, &data, r->workspace) == MEZZO_OK &&
           mz_cu_act_dx(cuda->stream, r->exact, preact, exact, p->count, MZ_ACT_GELU_TANH) == cudaSuccess &&
           cudaMemcpyAsync(p->exact, r->exact, bytes, cudaMemcpyDeviceToHost, cuda->stream) == cudaSuccess &&
           cudaStreamSynchronize(cuda->stream) == cudaSuccess;
}

// Returns whether the result in r->data.d was rounded once.
static bool rounds_once(mz_cuda_device *cuda, const mz_gemm *gemm, const rehearsal *r, const probe *p) {
    int digits = -ilogb(mz_unit_roundoff((mezzo_dtype)gemm->key.result)); // BF16 8, FP16 11
    double sum = 0;
    int64_t counted = 0;
    if (cudaMemcpyAsync(p->low, r->data.d, (size_t)p->count * 2, cudaMemcpyDeviceToHost, cuda->stream) != cudaSuccess ||
        cudaStreamSynchronize(cuda->stream) != cudaSuccess ||
        mezzo_convert(p->low, (mezzo_dtype)gemm->key.result, p->given, MEZZO_F32, (size_t)p->count) != MEZZO_OK)
        return false;
    for (int64_t i = 0; i < p->count; i++) {
        int exponent;
        double exact = (double)p->exact[i];
        if (!(fabs(exact) > 1e-3)) // FP16 has all its digits above this
            continue;
        (void)frexp(exact, &exponent);
        sum += fabs((double)p->given[i] - exact) / ldexp(1, exponent - digits);
        counted++;
    }
    return counted > 0 && sum / (double)counted < MOST_MEAN_ERROR;
}

// Keeps the candidates that round as the op does, in their order, and returns their number.
static int keep_exact(mz_cuda_device *cuda, const mz_gemm *gemm, const rehearsal *r,
                      cublasLtMatmulHeuristicResult_t *results, int n) {
    probe p = {0};
    int kept = 0;
    if (probe_make(cuda, gemm, r, &p))
        for (int i = 0; i < n; i++)
            if (run_result(&r->r, i) && rounds_once(cuda, gemm, r, &p))
                results[kept++] = results[i];
    probe_free(&p);
    return kept;
}

// Names an algorithm: "id 66 tile 18 stages 36 split 4 reduction 2 option 0". Two processes with equal names run the
// same kernels.
static const char *name_algorithm(const struct mz_cuda_matmul *lt, const cublasLtMatmulAlgo_t *algorithm,
                                  char text[120]) {
    static const struct {
        const char *name;
        cublasLtMatmulAlgoConfigAttributes_t attribute;
    } parts[] = {{"id", CUBLASLT_ALGO_CONFIG_ID},
                 {"tile", CUBLASLT_ALGO_CONFIG_TILE_ID},
                 {"stages", CUBLASLT_ALGO_CONFIG_STAGES_ID},
                 {"split", CUBLASLT_ALGO_CONFIG_SPLITK_NUM},
                 {"reduction", CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME},
                 {"option", CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION}};
    int n = 0;
    for (size_t i = 0; i < MZ_COUNT(parts); i++) {
        uint32_t value = 0; // each of these has 32 bits
        size_t written;
        (void)lt->cublasLtMatmulAlgoConfigGetAttribute(algorithm, parts[i].attribute, &value, sizeof value, &written);
        n += snprintf(text + n, 120 - (size_t)n, "%s%s %u", i > 0 ? " " : "", parts[i].name, value);
    }
    return text;
}

static const char rounds_twice[] = "cuBLASLt rounds the product before the derivative multiplies it";

// Chooses the fastest candidate of those with the first one's bits. Returns NULL, or why the plan must not be used.
static const char *choose(mz_cuda_device *cuda, mz_gemm *gemm, cublasLtMatmulHeuristicResult_t *results, int n,
                          const rehearsal *r) {
    mz_rehearsal_times t;
    if (gemm->key.epilogue == CUBLASLT_EPILOGUE_DGELU) {
        n = fill(&r->r, false) ? keep_exact(cuda, gemm, r, results, n) : 0;
        if (n == 0)
            return rounds_twice;
        gemm->algorithm = results[0].algo;
        gemm->workspace = results[0].workspaceSize;
    }
    if (n < 2 || cuda->first_plans)
        return NULL;
    const int best = mz_rehearsal_fastest(&r->r, n, &t);
    if (best < 0 || t.chosen <= 0)
        return NULL;
    gemm->algorithm = results[best].algo;
    gemm->workspace = results[best].workspaceSize;
    char algorithm[120];
    mz_log("dispatch",
           "cuda: product %lldx%lldx%lld %s to %s, epilogue %d: algorithm %d of %d (%s), %.4f ms (the first "
           "%.4f; %d give other bits, the fastest of all %.4f)",
           (long long)gemm->key.m, (long long)gemm->key.n, (long long)gemm->key.k,
           mezzo_dtype_name((mezzo_dtype)gemm->key.operand), mezzo_dtype_name((mezzo_dtype)gemm->key.result),
           gemm->key.epilogue, best, n, name_algorithm(cuda->matmul, &gemm->algorithm, algorithm), (double)t.chosen,
           (double)t.first, t.others, (double)t.shortest);
    return NULL;
}

void mz_gemm_measure(mz_cuda_device *cuda, mz_gemm *gemm) {
    if (gemm->measured || gemm->refusal != NULL || cuda->capturing)
        return;
    gemm->measured = true;
    cublasLtMatmulHeuristicResult_t results[MZ_REHEARSAL_PLANS];
    rehearsal r = {.r = {.cuda = cuda, .fill = fill, .run = run_result}, .gemm = gemm, .results = results};
    bool doubtful = gemm->key.epilogue == CUBLASLT_EPILOGUE_DGELU;
    int n = propose(cuda->matmul, gemm, results);
    if (n > (doubtful ? 0 : 1) && prepare(&gemm->key, &r))
        gemm->refusal = choose(cuda, gemm, results, n, &r);
    else if (doubtful)
        gemm->refusal = rounds_twice;
    mz_rehearsal_close(&r.r);
}
