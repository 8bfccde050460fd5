// Opens cuDNN, builds graphs, and makes plans.
#include "backend/cuda/cudnn.h"

#include <dlfcn.h>

#ifdef MZ_CUDA_HAS_CUDNN

enum { MAX_DESCRIPTORS = 320, MAX_OPERATIONS = 32, MAX_CONFIGS = 48, MAX_CANDIDATES = 8, REASON = 256 };

#define CUDNN_FUNCTIONS(X)                                                                                             \
    X(cudnnCreate)                                                                                                     \
    X(cudnnDestroy)                                                                                                    \
    X(cudnnSetStream)                                                                                                  \
    X(cudnnGetVersion)                                                                                                 \
    X(cudnnGetErrorString)                                                                                             \
    X(cudnnBackendCreateDescriptor)                                                                                    \
    X(cudnnBackendDestroyDescriptor)                                                                                   \
    X(cudnnBackendSetAttribute)                                                                                        \
    X(cudnnBackendGetAttribute)                                                                                        \
    X(cudnnBackendFinalize)                                                                                            \
    X(cudnnBackendExecute)

typedef struct candidate {
    cudnnBackendDescriptor_t descriptor;
    size_t workspace;
} candidate;

typedef struct kept_plan {
    mz_cudnn_plan plan;                   // first member; its descriptor is one of the candidates'
    candidate candidates[MAX_CANDIDATES]; // in the heuristics' order, best first; after measuring only the chosen one
    int n_candidates;
    bool measured;
    struct kept_plan *next;
    mz_cudnn_build *build;
    char reason[REASON];
    size_t key_size;
    char key[];
} kept_plan;

struct mz_cudnn {
#define X(name) __typeof__(name) *name;
    CUDNN_FUNCTIONS(X)
#undef X
    void *library;
    size_t version;        // 91900
    size_t most_workspace; // most bytes of a plan
    char reason[REASON];   // why cuDNN is not available; "" if it is
    cudnnHandle_t handle;
    cudaStream_t stream; // the stream of the handle
    kept_plan *plans;
};

// --- the library ---------------------------------------------------------------------------------------------------
static void open_library(mz_cuda_device *cuda, struct mz_cudnn *api) {
    api->library = mz_cuda_library("libcudnn.so.9", api->reason, sizeof api->reason);
    if (api->library == NULL)
        return;
    api->reason[0] = '\0';
#define X(name)                                                                                                        \
    api->name = (__typeof__(api->name))dlsym(api->library, #name);                                                     \
    if (api->name == NULL) {                                                                                           \
        snprintf(api->reason, sizeof api->reason, "libcudnn.so.9 has no " #name);                                      \
        return;                                                                                                        \
    }
    CUDNN_FUNCTIONS(X)
#undef X
    api->version = api->cudnnGetVersion();
    api->most_workspace = cuda->memory / 64;
    cudnnStatus_t status = api->cudnnCreate(&api->handle); // of the current device
    if (status == CUDNN_STATUS_SUCCESS)
        status = api->cudnnSetStream(api->handle, api->stream = cuda->stream);
    if (status != CUDNN_STATUS_SUCCESS)
        snprintf(api->reason, sizeof api->reason, "cuDNN %zu: %s", api->version, api->cudnnGetErrorString(status));
}

const char *mz_cudnn_open(mz_cuda_device *cuda, struct mz_cudnn **out) {
    if (cuda->cudnn == NULL) {
        cuda->cudnn = mz_alloc(1, sizeof *cuda->cudnn);
        if (cuda->cudnn == NULL)
            return mz_out_of_memory;
        open_library(cuda, cuda->cudnn);
    }
    *out = cuda->cudnn;
    return cuda->cudnn->reason[0] != '\0' ? cuda->cudnn->reason : NULL;
}

size_t mz_cudnn_version(const struct mz_cudnn *cudnn) {
    return cudnn->version;
}

void mz_cudnn_close(mz_cuda_device *cuda) {
    struct mz_cudnn *own = cuda->cudnn;
    if (own == NULL)
        return;
    for (kept_plan *p = own->plans, *next; p != NULL; p = next) {
        next = p->next;
        for (int i = 0; i < p->n_candidates; i++)
            own->cudnnBackendDestroyDescriptor(p->candidates[i].descriptor);
        mz_free(p);
    }
    if (own->handle != NULL)
        own->cudnnDestroy(own->handle);
    mz_free(own); // the library stays open: it cannot be opened again after it was closed
    cuda->cudnn = NULL;
}

// --- descriptors ---------------------------------------------------------------------------------------------------
struct mz_cudnn_graph {
    const struct mz_cudnn *api;
    cudnnStatus_t status;
    const char *what;
    cudnnBackendDescriptor_t made[MAX_DESCRIPTORS], operations[MAX_OPERATIONS];
    int n_made, n_operations;
    mz_cudnn_engines engines;
    int64_t next_virtual; // unique ids of tensors that exist inside the graph only
};

static void note(mz_cudnn_graph *g, cudnnStatus_t status, const char *what) {
    if (g->status == CUDNN_STATUS_SUCCESS && status != CUDNN_STATUS_SUCCESS) {
        g->status = status;
        g->what = what;
    }
}

cudnnBackendDescriptor_t mz_cudnn_create(mz_cudnn_graph *g, cudnnBackendDescriptorType_t type) {
    cudnnBackendDescriptor_t d = NULL;
    if (g->status != CUDNN_STATUS_SUCCESS)
        return NULL;
    if (g->n_made == MAX_DESCRIPTORS) {
        note(g, CUDNN_STATUS_INTERNAL_ERROR, "too many descriptors");
        return NULL;
    }
    note(g, g->api->cudnnBackendCreateDescriptor(type, &d), "a descriptor");
    if (d != NULL)
        g->made[g->n_made++] = d;
    return d;
}

void mz_cudnn_set(mz_cudnn_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                  cudnnBackendAttributeType_t type, int64_t count, const void *value) {
    if (g->status == CUDNN_STATUS_SUCCESS)
        note(g, g->api->cudnnBackendSetAttribute(d, name, type, count, value), "an attribute");
}

void mz_cudnn_set_descriptor(mz_cudnn_graph *g, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                             cudnnBackendDescriptor_t value) {
    mz_cudnn_set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, (const void *)&value);
}

void mz_cudnn_finalize(mz_cudnn_graph *g, cudnnBackendDescriptor_t d, const char *what) {
    if (g->status == CUDNN_STATUS_SUCCESS)
        note(g, g->api->cudnnBackendFinalize(d), what);
}

static void destroy_made(mz_cudnn_graph *g) {
    for (int i = g->n_made - 1; i >= 0; i--)
        g->api->cudnnBackendDestroyDescriptor(g->made[i]);
    g->n_made = 0;
}

// --- tensors and operations ----------------------------------------------------------------------------------------
static mz_cudnn_tensor tensor(mz_cudnn_graph *g, int64_t id, cudnnDataType_t dtype, mz_cudnn_extent size,
                              mz_cudnn_extent stride, bool is_virtual, bool by_value, int64_t alignment) {
    mz_cudnn_tensor t = mz_cudnn_create(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    mz_cudnn_set(g, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    mz_cudnn_set(g, t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &dtype);
    mz_cudnn_set(g, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, size.n);
    mz_cudnn_set(g, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride.n);
    mz_cudnn_set(g, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    mz_cudnn_set(g, t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    if (by_value)
        mz_cudnn_set(g, t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    mz_cudnn_finalize(g, t, "a tensor");
    return t;
}

static int64_t usual_alignment(cudnnDataType_t dtype) {
    return dtype == CUDNN_DATA_FLOAT ? 4 : 16;
}

mz_cudnn_extent mz_cudnn_dense(mz_cudnn_extent n) {
    return (mz_cudnn_extent){{n.n[1] * n.n[2] * n.n[3], n.n[2] * n.n[3], n.n[3], 1}};
}

mz_cudnn_tensor mz_cudnn_stored(mz_cudnn_graph *g, int64_t id, cudnnDataType_t dtype, mz_cudnn_extent size,
                                mz_cudnn_extent stride) {
    return tensor(g, id, dtype, size, stride, false, false, usual_alignment(dtype));
}

mz_cudnn_tensor mz_cudnn_aligned(mz_cudnn_graph *g, int64_t id, cudnnDataType_t dtype, mz_cudnn_extent size,
                                 mz_cudnn_extent stride) {
    return tensor(g, id, dtype, size, stride, false, false, 16);
}

mz_cudnn_tensor mz_cudnn_virtual(mz_cudnn_graph *g, cudnnDataType_t dtype, mz_cudnn_extent size,
                                 mz_cudnn_extent stride) {
    return tensor(g, g->next_virtual++, dtype, size, stride, true, false, usual_alignment(dtype));
}

mz_cudnn_tensor mz_cudnn_constant(mz_cudnn_graph *g, int64_t id) {
    return tensor(g, id, CUDNN_DATA_FLOAT, (mz_cudnn_extent){{1, 1, 1, 1}}, (mz_cudnn_extent){{1, 1, 1, 1}}, false,
                  true, 4);
}

void mz_cudnn_operation(mz_cudnn_graph *g, cudnnBackendDescriptor_t operation, const char *what) {
    mz_cudnn_finalize(g, operation, what);
    if (g->n_operations == MAX_OPERATIONS)
        note(g, CUDNN_STATUS_INTERNAL_ERROR, "too many operations");
    else
        g->operations[g->n_operations++] = operation;
}

void mz_cudnn_matmul(mz_cudnn_graph *g, mz_cudnn_tensor x, mz_cudnn_tensor y, mz_cudnn_tensor out) {
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t how = mz_cudnn_create(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    mz_cudnn_set(g, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    mz_cudnn_finalize(g, how, "a product");
    cudnnBackendDescriptor_t operation = mz_cudnn_create(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    mz_cudnn_set_descriptor(g, operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, x);
    mz_cudnn_set_descriptor(g, operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, y);
    mz_cudnn_set_descriptor(g, operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, out);
    mz_cudnn_set_descriptor(g, operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    mz_cudnn_operation(g, operation, "a product");
}

void mz_cudnn_pointwise(mz_cudnn_graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t compute, mz_cudnn_tensor x,
                        mz_cudnn_tensor y, mz_cudnn_tensor t, int64_t axis, mz_cudnn_tensor out) {
    cudnnBackendDescriptor_t how = mz_cudnn_create(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    mz_cudnn_set(g, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    mz_cudnn_set(g, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    if (axis >= 0)
        mz_cudnn_set(g, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    mz_cudnn_finalize(g, how, "an element-wise operation");
    cudnnBackendDescriptor_t operation = mz_cudnn_create(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    mz_cudnn_set_descriptor(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    mz_cudnn_set_descriptor(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (y != NULL)
        mz_cudnn_set_descriptor(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, y);
    if (t != NULL)
        mz_cudnn_set_descriptor(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
    mz_cudnn_set_descriptor(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, out);
    mz_cudnn_operation(g, operation, "an element-wise operation");
}

void mz_cudnn_reduce(mz_cudnn_graph *g, cudnnReduceTensorOp_t with, mz_cudnn_tensor x, mz_cudnn_tensor out) {
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t how = mz_cudnn_create(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    mz_cudnn_set(g, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &with);
    mz_cudnn_set(g, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    mz_cudnn_finalize(g, how, "a reduction");
    cudnnBackendDescriptor_t operation = mz_cudnn_create(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    mz_cudnn_set_descriptor(g, operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    mz_cudnn_set_descriptor(g, operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, out);
    mz_cudnn_set_descriptor(g, operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    mz_cudnn_operation(g, operation, "a reduction");
}

void mz_cudnn_reshape(mz_cudnn_graph *g, mz_cudnn_tensor x, mz_cudnn_tensor out) {
    cudnnBackendDescriptor_t operation = mz_cudnn_create(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    mz_cudnn_set_descriptor(g, operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    mz_cudnn_set_descriptor(g, operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, out);
    mz_cudnn_operation(g, operation, "a transposition");
}

// --- plans ---------------------------------------------------------------------------------------------------------
void mz_cudnn_take(mz_cudnn_graph *g, mz_cudnn_engines engines) {
    g->engines = engines;
}

static bool allowed(cudnnBackendNumericalNote_t note, mz_cudnn_engines engines) {
    switch (note) {
    case CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC:
        return false;
    case CUDNN_NUMERICAL_NOTE_TENSOR_CORE:
        return engines != MZ_CUDNN_FMA;
    case CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP:
        return true;
    default: // these compute operands or sums in fewer bits, or other sums than requested
        return engines == MZ_CUDNN_ANY;
    }
}

static bool may_serve(const struct mz_cudnn *api, cudnnBackendDescriptor_t config, mz_cudnn_engines engines) {
    cudnnBackendDescriptor_t engine = NULL;
    if (api->cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine) != CUDNN_STATUS_SUCCESS)
        return false;
    int64_t n = 0;
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    bool good = api->cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n,
                                              (void *)&engine) == CUDNN_STATUS_SUCCESS &&
                api->cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                              CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &n, notes) == CUDNN_STATUS_SUCCESS;
    for (int64_t i = 0; good && i < n; i++)
        good = allowed(notes[i], engines);
    api->cudnnBackendDestroyDescriptor(engine);
    return good;
}

// Returns the plan of a configuration; NULL where it has none.
static cudnnBackendDescriptor_t plan_with(const struct mz_cudnn *api, cudnnBackendDescriptor_t config,
                                          int64_t *workspace) {
    cudnnBackendDescriptor_t made = NULL;
    int64_t count;
    if (api->cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &made) != CUDNN_STATUS_SUCCESS)
        return NULL;
    if (api->cudnnBackendSetAttribute(made, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
                                      (const void *)&api->handle) == CUDNN_STATUS_SUCCESS &&
        api->cudnnBackendSetAttribute(made, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                      (const void *)&config) == CUDNN_STATUS_SUCCESS &&
        api->cudnnBackendFinalize(made) == CUDNN_STATUS_SUCCESS &&
        api->cudnnBackendGetAttribute(made, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count,
                                      workspace) == CUDNN_STATUS_SUCCESS)
        return made;
    api->cudnnBackendDestroyDescriptor(made);
    return NULL;
}

// Gets the configurations that the heuristics of a mode propose, best first, and returns their number.
static int64_t propose(mz_cudnn_graph *g, cudnnBackendDescriptor_t graph, cudnnBackendHeurMode_t mode,
                       cudnnBackendDescriptor_t configs[MAX_CONFIGS]) {
    int64_t n = 0;
    cudnnBackendDescriptor_t heuristics = mz_cudnn_create(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    mz_cudnn_set_descriptor(g, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    mz_cudnn_set(g, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    mz_cudnn_finalize(g, heuristics, "the choice of an engine");
    for (int i = 0; i < MAX_CONFIGS; i++)
        configs[i] = mz_cudnn_create(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (g->status == CUDNN_STATUS_SUCCESS)
        note(g,
             g->api->cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                              MAX_CONFIGS, &n, (void *)configs),
             "the choice of an engine");
    return n;
}

// Takes the first configurations of a mode that may serve and become plans with at most `most` bytes of workspace.
static void take_from(mz_cudnn_graph *g, cudnnBackendDescriptor_t graph, cudnnBackendHeurMode_t mode, size_t most,
                      kept_plan *p) {
    const struct mz_cudnn *api = g->api;
    const int wanted = g->engines == MZ_CUDNN_ANY ? 1 : MAX_CANDIDATES;
    cudnnBackendDescriptor_t configs[MAX_CONFIGS];
    const int64_t n = propose(g, graph, mode, configs);
    for (int64_t i = 0; i < n && g->status == CUDNN_STATUS_SUCCESS && p->n_candidates < wanted; i++) {
        int64_t workspace = 0;
        cudnnBackendDescriptor_t plan =
            may_serve(api, configs[i], g->engines) ? plan_with(api, configs[i], &workspace) : NULL;
        if (plan != NULL && (size_t)workspace > most)
            api->cudnnBackendDestroyDescriptor(plan);
        else if (plan != NULL)
            p->candidates[p->n_candidates++] = (candidate){plan, (size_t)workspace};
    }
}

// Chooses a plan within `most` bytes of workspace where some engine needs no more.
static void choose(mz_cudnn_graph *g, size_t most, kept_plan *p) {
    cudnnBackendDescriptor_t graph = mz_cudnn_create(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    mz_cudnn_set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, (const void *)&g->api->handle);
    mz_cudnn_set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->n_operations,
                 (const void *)g->operations);
    mz_cudnn_finalize(g, graph, "the graph");
    take_from(g, graph, CUDNN_HEUR_MODE_A, most, p);
    if (p->n_candidates == 0)
        take_from(g, graph, CUDNN_HEUR_MODE_A, SIZE_MAX, p);
    if (p->n_candidates == 0)
        note(g, CUDNN_STATUS_NOT_SUPPORTED, "no engine for this graph");
    p->plan.descriptor = p->candidates[0].descriptor;
    p->plan.workspace = p->candidates[0].workspace;
}

static mz_cudnn_plan *make_plan(struct mz_cudnn *cudnn, mz_cudnn_build *build, const void *key, size_t size) {
    kept_plan *p = mz_alloc(1, sizeof *p + size);
    mz_cudnn_graph *g = mz_alloc(1, sizeof *g);
    if (p == NULL || g == NULL) {
        mz_free(p);
        mz_free(g);
        return NULL;
    }
    p->build = build;
    p->key_size = size;
    memcpy(p->key, key, size);
    g->api = cudnn;
    g->next_virtual = MZ_CUDNN_FIRST_VIRTUAL;
    build(g, key);
    choose(g, cudnn->most_workspace, p);
    if (g->status != CUDNN_STATUS_SUCCESS) {
        snprintf(p->reason, sizeof p->reason, "cuDNN %zu.%zu.%zu: %s (%s)", cudnn->version / 10000,
                 cudnn->version / 100 % 100, cudnn->version % 100, g->what, cudnn->cudnnGetErrorString(g->status));
        p->plan.refusal = p->reason;
    }
    destroy_made(g);
    mz_free(g);
    p->next = cudnn->plans;
    cudnn->plans = p;
    return &p->plan;
}

mz_cudnn_plan *mz_cudnn_find(struct mz_cudnn *cudnn, mz_cudnn_build *build, const void *key, size_t size) {
    for (kept_plan *p = cudnn->plans; p != NULL; p = p->next)
        if (p->build == build && p->key_size == size && memcmp(p->key, key, size) == 0)
            return &p->plan;
    return make_plan(cudnn, build, key, size);
}

mezzo_status mz_cudnn_run(mz_cuda_device *cuda, const mz_cudnn_plan *plan, const mz_cudnn_pointers *p,
                          void *workspace) {
    struct mz_cudnn *api = cuda->cudnn;
    mz_cudnn_graph g = {.api = api};
    if (api->stream != cuda->stream) // another stream of a captured graph is current
        note(&g, api->cudnnSetStream(api->handle, api->stream = cuda->stream), "its stream");
    cudnnBackendDescriptor_t pack = mz_cudnn_create(&g, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    mz_cudnn_set(&g, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, p->n, p->ids);
    mz_cudnn_set(&g, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, p->n, (const void *)p->data);
    mz_cudnn_set(&g, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, (const void *)&workspace);
    mz_cudnn_finalize(&g, pack, "a call's tensors");
    if (g.status == CUDNN_STATUS_SUCCESS)
        note(&g, api->cudnnBackendExecute(api->handle, plan->descriptor, pack), "running");
    destroy_made(&g);
    if (g.status != CUDNN_STATUS_SUCCESS)
        return mz_fail(MEZZO_ERR_DEVICE, "cuDNN %zu: %s (%s)", api->version, g.what,
                       api->cudnnGetErrorString(g.status));
    return MEZZO_OK;
}

// --- measuring -----------------------------------------------------------------------------------------------------
typedef struct engines {
    mz_rehearsal r; // first member
    const kept_plan *plan;
    const mz_cudnn_memory *tensors;
    mz_cudnn_pointers pointers;
    void *workspace;
} engines;

static size_t bytes_of(const mz_cudnn_memory *t) {
    return mz_align_up((size_t)t->count * mezzo_dtype_size((mezzo_dtype)t->dtype), 256);
}

static bool fill(const mz_rehearsal *r, bool cancel) {
    const engines *e = (const engines *)(const void *)r;
    bool ok = true;
    for (int i = 0; i < (int)e->pointers.n && ok; i++)
        ok = mz_cu_fill(r->cuda->stream, (mz_cu_array){e->pointers.data[i], e->tensors[i].dtype}, e->tensors[i].count,
                        1 + (uint32_t)i, cancel) == cudaSuccess;
    return ok;
}

static bool run_candidate(const mz_rehearsal *r, int i) {
    const engines *e = (const engines *)(const void *)r;
    const candidate *c = &e->plan->candidates[i];
    const mz_cudnn_plan plan = {.descriptor = c->descriptor, .workspace = c->workspace};
    return mz_cudnn_run(r->cuda, &plan, &e->pointers, e->workspace) == MEZZO_OK;
}

static bool rehearse(engines *e, int n) {
    mz_rehearsal *r = &e->r;
    size_t workspace = 0;
    for (int i = 0; i < e->plan->n_candidates; i++)
        workspace = e->plan->candidates[i].workspace > workspace ? e->plan->candidates[i].workspace : workspace;
    r->result_bytes = bytes_of(&e->tensors[n - 1]);
    size_t needed = r->result_bytes + mz_align_up(workspace, 256) + 256;
    for (int i = 0; i < n; i++)
        needed += bytes_of(&e->tensors[i]);
    if (!mz_rehearsal_open(r, needed))
        return false;
    char *at = r->memory;
    for (int i = 0; i < n; i++) {
        r->result = at;
        mz_cudnn_point(&e->pointers, e->tensors[i].id, at);
        at += bytes_of(&e->tensors[i]);
    }
    r->first = at;
    r->differs = (int32_t *)(void *)(at += r->result_bytes);
    e->workspace = at + 256;
    return true;
}

void mz_cudnn_measure(mz_cuda_device *cuda, mz_cudnn_plan *plan, const mz_cudnn_memory *tensors, int n,
                      const char *what) {
    kept_plan *p = (kept_plan *)(void *)plan;
    engines e = {.r = {.cuda = cuda, .fill = fill, .run = run_candidate}, .plan = p, .tensors = tensors};
    mz_rehearsal_times t = {0};
    if (p->measured || plan->refusal != NULL || cuda->capturing)
        return;
    p->measured = true;
    const int best = rehearse(&e, n) ? mz_rehearsal_fastest(&e.r, p->n_candidates, &t) : 0;
    mz_rehearsal_close(&e.r);
    if (t.chosen > 0)
        mz_log("dispatch",
               "cuda: %s: engine %d of %d, %.4f ms (the first %.4f; %d give other bits, the fastest of all %.4f)", what,
               best, p->n_candidates, (double)t.chosen, (double)t.first, t.others, (double)t.shortest);
    const candidate chosen = p->candidates[best >= 0 ? best : 0];
    for (int i = 0; i < p->n_candidates; i++)
        if (p->candidates[i].descriptor != chosen.descriptor)
            cuda->cudnn->cudnnBackendDestroyDescriptor(p->candidates[i].descriptor);
    p->candidates[0] = chosen;
    p->n_candidates = 1;
    plan->descriptor = chosen.descriptor;
    plan->workspace = chosen.workspace;
    if (best < 0)
        plan->refusal = "none of cuDNN's engines for it runs";
}

#endif
