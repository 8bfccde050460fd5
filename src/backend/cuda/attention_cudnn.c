// Attention by cuDNN, whose kernels use what Hopper has beyond mma.sync. It is asked through the backend C API for a graph of plain
// operations (product, scale, mask by generated indices, softmax with its statistics, product), which its engines know as attention
// and run as one kernel. libcudnn is opened when it is first wanted; without it, or where its version builds no plan, the own
// kernels serve. A plan is made at planning, kept in the device, and used by every later call of the same shape.
#include <dlfcn.h>
#include <float.h>
#include <math.h>

#include "backend/cuda/attention.h"

#if __has_include(<cudnn_graph.h>)
#include <cudnn_graph.h>

enum { MAX_DESCRIPTORS = 192, MAX_OPERATIONS = 32, MAX_CONFIGS = 16, MAX_POINTERS = 16, REASON = 256 };

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

typedef struct cudnn {
#define X(name) __typeof__(name) *name;
    CUDNN_FUNCTIONS(X)
#undef X
    void *library;
    size_t version; // 91900
    cudnnHandle_t handle;
} cudnn;

// What a plan is for.
typedef struct shape {
    mz_op op;
    int dtype, batch, length, heads, kv_heads, width, packed, with_lse;
} shape;

typedef struct plan {
    struct plan *next;
    shape of;
    const char *refusal; // NULL: usable
    char reason[REASON];
    cudnnBackendDescriptor_t plan;
    int64_t workspace;        // bytes, of cuDNN's own
    float scale, masked, one; // by-value tensors point here
} plan;

struct mz_cuda_attention {
    cudnn api;
    char reason[REASON]; // why there is no cuDNN; "" there is
    cudaStream_t stream; // the handle's
    plan *plans;
};

// --- descriptors ------------------------------------------------------------------------------------------------------------
// A graph under construction. The first failure stays, later steps do nothing; `what` names the step.
typedef struct builder {
    const cudnn *api;
    cudnnStatus_t status;
    const char *what;
    cudnnBackendDescriptor_t made[MAX_DESCRIPTORS], operations[MAX_OPERATIONS];
    int n_made, n_operations;
    int64_t next_virtual; // unique ids of tensors that exist inside the graph only
} builder;

static void note(builder *b, cudnnStatus_t status, const char *what) {
    if (b->status == CUDNN_STATUS_SUCCESS && status != CUDNN_STATUS_SUCCESS) {
        b->status = status;
        b->what = what;
    }
}

static cudnnBackendDescriptor_t create(builder *b, cudnnBackendDescriptorType_t type) {
    cudnnBackendDescriptor_t d = NULL;
    if (b->status != CUDNN_STATUS_SUCCESS)
        return NULL;
    if (b->n_made == MAX_DESCRIPTORS) {
        note(b, CUDNN_STATUS_INTERNAL_ERROR, "too many descriptors");
        return NULL;
    }
    note(b, b->api->cudnnBackendCreateDescriptor(type, &d), "a descriptor");
    if (d != NULL)
        b->made[b->n_made++] = d;
    return d;
}

static void set(builder *b, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t count, const void *value) {
    if (b->status == CUDNN_STATUS_SUCCESS)
        note(b, b->api->cudnnBackendSetAttribute(d, name, type, count, value), "an attribute");
}

static void set_descriptor(builder *b, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                           cudnnBackendDescriptor_t value) {
    set(b, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, (const void *)&value);
}

static void finalize(builder *b, cudnnBackendDescriptor_t d, const char *what) {
    if (b->status == CUDNN_STATUS_SUCCESS)
        note(b, b->api->cudnnBackendFinalize(d), what);
}

static void destroy_made(builder *b) {
    for (int i = b->n_made - 1; i >= 0; i--)
        b->api->cudnnBackendDestroyDescriptor(b->made[i]);
    b->n_made = 0;
}

// --- tensors and operations ---------------------------------------------------------------------------------------------------
typedef cudnnBackendDescriptor_t node; // a tensor
typedef struct extent {
    int64_t n[4];
} extent;

// Ids of the tensors that have memory.
enum { Q = 1, K, V, Y, LSE, DY, DQ, DK, DV, DELTA, SCALE, MASKED, ONE, FIRST_VIRTUAL = 100 };

static node tensor(builder *b, int64_t id, cudnnDataType_t dtype, extent size, extent stride, bool is_virtual,
                   bool by_value) {
    node t = create(b, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    int64_t alignment = by_value || dtype == CUDNN_DATA_FLOAT ? 4 : 16;
    set(b, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set(b, t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &dtype);
    set(b, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, size.n);
    set(b, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride.n);
    set(b, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    set(b, t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    if (by_value)
        set(b, t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    finalize(b, t, "a tensor");
    return t;
}

static extent dense(extent n) {
    return (extent){{n.n[1] * n.n[2] * n.n[3], n.n[2] * n.n[3], n.n[3], 1}};
}
static node between(builder *b, cudnnDataType_t dtype, extent size) { // inside the graph
    return tensor(b, b->next_virtual++, dtype, size, dense(size), true, false);
}
static node constant(builder *b, int64_t id) {
    return tensor(b, id, CUDNN_DATA_FLOAT, (extent){{1, 1, 1, 1}}, (extent){{1, 1, 1, 1}}, false, true);
}

static void add_operation(builder *b, cudnnBackendDescriptor_t operation, const char *what) {
    finalize(b, operation, what);
    if (b->n_operations == MAX_OPERATIONS)
        note(b, CUDNN_STATUS_INTERNAL_ERROR, "too many operations");
    else
        b->operations[b->n_operations++] = operation;
}

static void matmul(builder *b, node x, node y, node out) {
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t how = create(b, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set(b, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    finalize(b, how, "a product");
    cudnnBackendDescriptor_t operation = create(b, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, x);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, y);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, out);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    add_operation(b, operation, "a product");
}

// out = mode(x, y, chosen by t); absent operands are NULL. `axis` counts only for generated indices.
static void pointwise(builder *b, cudnnPointwiseMode_t mode, cudnnDataType_t compute, node x, node y, node t,
                      int64_t axis, node out) {
    cudnnBackendDescriptor_t how = create(b, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(b, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set(b, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    if (axis >= 0)
        set(b, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    finalize(b, how, "an element-wise operation");
    cudnnBackendDescriptor_t operation = create(b, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (y != NULL)
        set_descriptor(b, operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, y);
    if (t != NULL)
        set_descriptor(b, operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, out);
    add_operation(b, operation, "an element-wise operation");
}

static node apply(builder *b, cudnnPointwiseMode_t mode, node x, node y, extent size) {
    node out = between(b, CUDNN_DATA_FLOAT, size);
    pointwise(b, mode, CUDNN_DATA_FLOAT, x, y, NULL, -1, out);
    return out;
}

static void reduce(builder *b, cudnnReduceTensorOp_t with, node x, node out) {
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t how = create(b, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set(b, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &with);
    set(b, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    finalize(b, how, "a reduction");
    cudnnBackendDescriptor_t operation = create(b, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, out);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    add_operation(b, operation, "a reduction");
}

static void reshape(builder *b, node x, node out) {
    cudnnBackendDescriptor_t operation = create(b, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_descriptor(b, operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, out);
    add_operation(b, operation, "a transposition");
}

// --- the two graphs -----------------------------------------------------------------------------------------------------------
typedef struct sizes {
    cudnnDataType_t dtype;
    extent rows, keys, turned;          // [B, H, T, D], [B, Hkv, T, D], [B, Hkv, D, T]
    extent q_stride, y_stride;          // of rows
    extent kv_stride, kv_turned_stride; // of keys, of turned
    extent scores, column;              // [B, H, T, T], [B, H, T, 1]
} sizes;

static sizes sizes_of(const shape *s) {
    int64_t batch = s->batch, length = s->length, heads = s->heads, kv = s->kv_heads, d = s->width;
    int64_t q_row = s->packed ? 3 * heads * d : heads * d, kv_row = s->packed ? q_row : kv * d;
    sizes z = {.dtype = s->dtype == (int)MEZZO_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF,
               .rows = {{batch, heads, length, d}},
               .keys = {{batch, kv, length, d}},
               .turned = {{batch, kv, d, length}},
               .q_stride = {{length * q_row, d, q_row, 1}},
               .y_stride = {{length * heads * d, d, heads * d, 1}},
               .kv_stride = {{length * kv_row, d, kv_row, 1}},
               .kv_turned_stride = {{length * kv_row, d, 1, kv_row}},
               .scores = {{batch, heads, length, length}},
               .column = {{batch, heads, length, 1}}};
    return z;
}

// x where key <= query, else `masked`.
static node causal(builder *b, node x, extent scores, node masked) {
    node row = between(b, CUDNN_DATA_INT32, scores), column = between(b, CUDNN_DATA_INT32, scores);
    node seen = between(b, CUDNN_DATA_BOOLEAN, scores), out = between(b, CUDNN_DATA_FLOAT, scores);
    pointwise(b, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, x, NULL, NULL, 2, row);
    pointwise(b, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, x, NULL, NULL, 3, column);
    pointwise(b, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, row, column, NULL, -1, seen);
    pointwise(b, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, x, masked, seen, -1, out);
    return out;
}

static void forward_graph(builder *b, const shape *s) {
    sizes z = sizes_of(s);
    node q = tensor(b, Q, z.dtype, z.rows, z.q_stride, false, false);
    node k = tensor(b, K, z.dtype, z.turned, z.kv_turned_stride, false, false);
    node v = tensor(b, V, z.dtype, z.keys, z.kv_stride, false, false);
    node x = between(b, CUDNN_DATA_FLOAT, z.scores);
    matmul(b, q, k, x);
    x = apply(b, CUDNN_POINTWISE_MUL, x, constant(b, SCALE), z.scores);
    x = causal(b, x, z.scores, constant(b, MASKED));
    node max = between(b, CUDNN_DATA_FLOAT, z.column), sum = between(b, CUDNN_DATA_FLOAT, z.column);
    reduce(b, CUDNN_REDUCE_TENSOR_MAX, x, max);
    x = apply(b, CUDNN_POINTWISE_SUB, x, max, z.scores);
    x = apply(b, CUDNN_POINTWISE_EXP, x, NULL, z.scores);
    reduce(b, CUDNN_REDUCE_TENSOR_ADD, x, sum);
    // Always there: the engines know no attention without statistics. Where nobody wants them they have no memory.
    node log = apply(b, CUDNN_POINTWISE_LOG, sum, NULL, z.column);
    node lse = tensor(b, s->with_lse ? (int64_t)LSE : b->next_virtual++, CUDNN_DATA_FLOAT, z.column, dense(z.column),
                      !s->with_lse, false);
    pointwise(b, CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, max, log, NULL, -1, lse);
    node p = between(b, z.dtype, z.scores); // rounded for the second product
    pointwise(b, CUDNN_POINTWISE_DIV, CUDNN_DATA_FLOAT, x, sum, NULL, -1, p);
    matmul(b, p, v, tensor(b, Y, z.dtype, z.rows, z.y_stride, false, false));
}

// A [B, H, T, T] value rounded to `dtype` and seen transposed.
static node transposed(builder *b, node x, cudnnDataType_t dtype, extent scores) {
    extent stride = dense(scores), turned = {{stride.n[0], stride.n[1], stride.n[3], stride.n[2]}};
    node out = tensor(b, b->next_virtual++, dtype, scores, turned, true, false);
    reshape(b, x, out);
    return out;
}

// dq straight from its product, with no FP32 copy that blocks would add to in any order: that asks for the deterministic kernel.
static void backward_graph(builder *b, const shape *s) {
    sizes z = sizes_of(s);
    node q = tensor(b, Q, z.dtype, z.rows, z.q_stride, false, false);
    node k = tensor(b, K, z.dtype, z.turned, z.kv_turned_stride, false, false);
    node v = tensor(b, V, z.dtype, z.turned, z.kv_turned_stride, false, false);
    node y = tensor(b, Y, z.dtype, z.rows, z.y_stride, false, false);
    node dy = tensor(b, DY, z.dtype, z.rows, z.y_stride, false, false);
    node lse = tensor(b, LSE, CUDNN_DATA_FLOAT, z.column, dense(z.column), false, false);
    node scale = constant(b, SCALE);

    node product = apply(b, CUDNN_POINTWISE_MUL, dy, y, z.rows);
    node sum = between(b, CUDNN_DATA_FLOAT, z.column);
    reduce(b, CUDNN_REDUCE_TENSOR_ADD, product, sum);
    node delta = tensor(b, DELTA, CUDNN_DATA_FLOAT, z.column, dense(z.column), false, false);
    pointwise(b, CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, sum, constant(b, ONE), NULL, -1, delta);

    node x = between(b, CUDNN_DATA_FLOAT, z.scores);
    matmul(b, q, k, x);
    x = apply(b, CUDNN_POINTWISE_MUL, x, scale, z.scores);
    x = apply(b, CUDNN_POINTWISE_SUB, x, lse, z.scores);
    x = causal(b, x, z.scores, constant(b, MASKED));
    node p = apply(b, CUDNN_POINTWISE_EXP, x, NULL, z.scores);
    matmul(b, transposed(b, p, z.dtype, z.scores), dy, tensor(b, DV, z.dtype, z.keys, z.kv_stride, false, false));

    node ds = between(b, CUDNN_DATA_FLOAT, z.scores);
    matmul(b, dy, v, ds);
    ds = apply(b, CUDNN_POINTWISE_SUB, ds, delta, z.scores);
    ds = apply(b, CUDNN_POINTWISE_MUL, ds, p, z.scores);
    ds = apply(b, CUDNN_POINTWISE_MUL, ds, scale, z.scores);
    matmul(b, transposed(b, ds, z.dtype, z.scores), q, tensor(b, DK, z.dtype, z.keys, z.kv_stride, false, false));

    node straight = tensor(b, b->next_virtual++, z.dtype, z.keys, z.kv_stride, true, false);
    reshape(b, k, straight);
    matmul(b, ds, straight, tensor(b, DQ, z.dtype, z.rows, z.q_stride, false, false));
}

// --- plans --------------------------------------------------------------------------------------------------------------------
static bool deterministic(const cudnn *api, cudnnBackendDescriptor_t config) {
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
        good = notes[i] != CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    api->cudnnBackendDestroyDescriptor(engine);
    return good;
}

// The first of the heuristics' configurations that is deterministic and becomes a plan.
static void choose(builder *b, plan *p) {
    const cudnn *api = b->api;
    cudnnBackendDescriptor_t graph = create(b, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(b, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, (const void *)&api->handle);
    set(b, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, b->n_operations,
        (const void *)b->operations);
    finalize(b, graph, "the graph");
    cudnnBackendDescriptor_t heuristics = create(b, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    set_descriptor(b, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set(b, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finalize(b, heuristics, "the choice of an engine");
    cudnnBackendDescriptor_t configs[MAX_CONFIGS];
    for (int i = 0; i < MAX_CONFIGS; i++)
        configs[i] = create(b, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    int64_t n = 0;
    if (b->status == CUDNN_STATUS_SUCCESS)
        note(b,
             api->cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                           MAX_CONFIGS, &n, (void *)configs),
             "the choice of an engine");
    for (int64_t i = 0; i < n && b->status == CUDNN_STATUS_SUCCESS && p->plan == NULL; i++) {
        if (!deterministic(api, configs[i]))
            continue;
        cudnnBackendDescriptor_t made = NULL;
        int64_t count;
        if (api->cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &made) != CUDNN_STATUS_SUCCESS)
            continue;
        if (api->cudnnBackendSetAttribute(made, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
                                          (const void *)&api->handle) == CUDNN_STATUS_SUCCESS &&
            api->cudnnBackendSetAttribute(made, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                          1, (const void *)&configs[i]) == CUDNN_STATUS_SUCCESS &&
            api->cudnnBackendFinalize(made) == CUDNN_STATUS_SUCCESS &&
            api->cudnnBackendGetAttribute(made, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count,
                                          &p->workspace) == CUDNN_STATUS_SUCCESS)
            p->plan = made;
        else
            api->cudnnBackendDestroyDescriptor(made);
    }
    if (p->plan == NULL)
        note(b, CUDNN_STATUS_NOT_SUPPORTED, "no engine for this attention");
}

static plan *make_plan(struct mz_cuda_attention *own, const shape *s) {
    plan *p = mz_alloc(1, sizeof *p);
    builder *b = mz_alloc(1, sizeof *b);
    if (p == NULL || b == NULL) {
        mz_free(p);
        mz_free(b);
        return NULL;
    }
    p->of = *s;
    p->scale = (float)(1 / sqrt((double)s->width));
    p->masked = -FLT_MAX;
    p->one = 1;
    b->api = &own->api;
    b->next_virtual = FIRST_VIRTUAL;
    if (s->op == MZ_OP_attention)
        forward_graph(b, s);
    else
        backward_graph(b, s);
    choose(b, p);
    if (b->status != CUDNN_STATUS_SUCCESS) {
        snprintf(p->reason, sizeof p->reason, "cuDNN %zu.%zu.%zu: %s (%s)", own->api.version / 10000,
                 own->api.version / 100 % 100, own->api.version % 100, b->what,
                 own->api.cudnnGetErrorString(b->status));
        p->refusal = p->reason;
    }
    destroy_made(b);
    mz_free(b);
    p->next = own->plans;
    own->plans = p;
    return p;
}

// --- the library --------------------------------------------------------------------------------------------------------------
static void open_library(mz_cuda_device *cuda, struct mz_cuda_attention *own) {
    cudnn *api = &own->api;
    if (cuda->cc < 80) {
        snprintf(own->reason, sizeof own->reason, "cuDNN's attention needs compute capability 8.0");
        return;
    }
    api->library = mz_cuda_library("libcudnn.so.9", own->reason, sizeof own->reason);
    if (api->library == NULL)
        return;
    own->reason[0] = '\0';
#define X(name)                                                                                                        \
    api->name = (__typeof__(api->name))dlsym(api->library, #name);                                                     \
    if (api->name == NULL) {                                                                                           \
        snprintf(own->reason, sizeof own->reason, "libcudnn.so.9 has no " #name);                                      \
        return;                                                                                                        \
    }
    CUDNN_FUNCTIONS(X)
#undef X
    api->version = api->cudnnGetVersion();
    cudnnStatus_t status = api->cudnnCreate(&api->handle);
    if (status == CUDNN_STATUS_SUCCESS)
        status = api->cudnnSetStream(api->handle, own->stream = cuda->stream);
    if (status != CUDNN_STATUS_SUCCESS)
        snprintf(own->reason, sizeof own->reason, "cuDNN %zu: %s", api->version, api->cudnnGetErrorString(status));
}

void mz_cuda_attention_close(mz_cuda_device *cuda) {
    struct mz_cuda_attention *own = cuda->attention;
    if (own == NULL)
        return;
    for (plan *p = own->plans, *next; p != NULL; p = next) {
        next = p->next;
        if (p->plan != NULL)
            own->api.cudnnBackendDestroyDescriptor(p->plan);
        mz_free(p);
    }
    if (own->api.handle != NULL)
        own->api.cudnnDestroy(own->api.handle);
    mz_free(own); // the library stays: it does not survive being closed and opened again
    cuda->attention = NULL;
}

static shape shape_of(mezzo_device *device, const mz_call *call) {
    mz_cu_attention a = mz_cuda_attention_of(device, call);
    bool packed = !mz_present(&call->in[call->op == MZ_OP_attention_bwd ? 2 : 1]);
    return (shape){.op = call->op,
                   .dtype = a.dtype,
                   .batch = a.batch,
                   .length = a.length,
                   .heads = a.heads,
                   .kv_heads = a.kv_heads,
                   .width = a.width,
                   .packed = packed,
                   .with_lse = call->op == MZ_OP_attention_bwd || mz_present(&call->out[1])};
}

// The call's plan, made now if need be; NULL: out of memory.
static plan *plan_of(mezzo_device *device, const mz_call *call) {
    struct mz_cuda_attention *own = mz_cuda(device)->attention;
    shape s = shape_of(device, call);
    for (plan *p = own->plans; p != NULL; p = p->next)
        if (memcmp(&p->of, &s, sizeof s) == 0)
            return p;
    return make_plan(own, &s);
}

// Sums in a fixed order need dS written out, 16 bits an element, and read again for dq; tiles are 64 by 64.
static size_t scores_bytes(const mz_cu_attention *a) {
    size_t length = mz_align_up((size_t)a->length, 64);
    return 2 * length * length * (size_t)a->heads * (size_t)a->batch;
}

// Backward's own buffer, Δ, lies before cuDNN's workspace.
static size_t delta_bytes(const mz_call *call) {
    return call->op == MZ_OP_attention_bwd
               ? mz_align_up((size_t)mz_shape_count(&call->in[5].shape) * sizeof(float), 256)
               : 0;
}

static void keep_plan(void *state) { // it is the device's, and serves other calls of the same shape
    (void)state;
}

static const char *prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    mz_cuda_device *cuda = mz_cuda(device);
    const char *refusal = mz_cuda_attention_refusal(call);
    if (refusal != NULL)
        return refusal;
    mz_cu_attention a = mz_cuda_attention_of(device, call);
    if (a.dtype == MZ_CU_F32 || a.dtype != a.compute)
        return "storage and compute must be BF16 or FP16, both the same";
    if (a.width % 8 != 0 || a.width > 128)
        return "the head size must be a multiple of 8 and at most 128";
    if (a.p > 0)
        return "cuDNN's dropout does not draw this library's numbers";
    if (cuda->attention == NULL) {
        cuda->attention = mz_alloc(1, sizeof *cuda->attention);
        if (cuda->attention == NULL)
            return "out of memory";
        open_library(cuda, cuda->attention);
    }
    struct mz_cuda_attention *own = cuda->attention;
    if (own->reason[0] != '\0')
        return own->reason;
    // Up to 9.15, keys past the end of a last, partial tile of 128 count in its gradients.
    if (call->op == MZ_OP_attention_bwd && own->api.version <= 91500 && a.length % 128 != 0)
        return "before cuDNN 9.15.1 the length must be a multiple of 128";
    // The sum over the heads that share a key is one of 16-bit parts, each rounded: more than the op's bound. With FP32 parts
    // the graph is accepted too, and its dk and dv are wrong (9.14 and 9.19).
    if (call->op == MZ_OP_attention_bwd && a.heads != a.kv_heads)
        return "cuDNN rounds the gradients of shared keys once more than it may";
    if (call->op == MZ_OP_attention_bwd && scores_bytes(&a) > cuda->memory / 64)
        return "backward's [B, H, T, T] would need more than a 64th of the GPU's memory";
    plan *p = plan_of(device, call);
    if (p == NULL)
        return "out of memory";
    *out = (mz_prepared){.state = p, .release = keep_plan, .workspace = delta_bytes(call) + (size_t)p->workspace};
    return p->refusal;
}

// Measured on an H100 with cuDNN 9.14 and 9.19 (docs/dev/ATTENTION.md): from 256 positions on, and with a block of 64 queries for every
// multiprocessor, forward takes 0.95 to 0.43 of the own kernel's time and backward 0.98 to 0.5; below, up to 1.5 times as long.
static const char *prepare_faster(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    const mz_tensor *q = &call->in[call->op == MZ_OP_attention_bwd ? 1 : 0];
    int64_t length = q->shape.dim[1], blocks = q->shape.dim[0] * call->attrs.heads * ((length + 63) / 64);
    if (length < 256 || blocks < mz_cuda(device)->sms)
        return "the own kernel is faster for so few positions";
    return prepare(device, call, out);
}

typedef struct pointers {
    int64_t ids[MAX_POINTERS];
    void *data[MAX_POINTERS];
    int64_t n;
} pointers;

static void point(pointers *p, int64_t id, const void *data) {
    p->ids[p->n] = id;
    p->data[p->n++] = (void *)(uintptr_t)data;
}

static pointers pointers_of(const mz_cu_attention *a, bool backward, plan *how) {
    pointers p = {.n = 0};
    point(&p, Q, a->q);
    point(&p, K, a->k);
    point(&p, V, a->v);
    point(&p, Y, a->y);
    point(&p, SCALE, &how->scale);
    point(&p, MASKED, &how->masked);
    if (a->lse != NULL)
        point(&p, LSE, a->lse);
    if (!backward)
        return p;
    point(&p, DY, a->dy);
    point(&p, DQ, a->dq);
    point(&p, DK, a->dk);
    point(&p, DV, a->dv);
    point(&p, DELTA, a->delta);
    point(&p, ONE, &how->one);
    return p;
}

static mezzo_status run(mezzo_device *device, const mz_call *call) {
    mz_cu_attention a = mz_cuda_attention_of(device, call);
    mz_cuda_device *cuda = mz_cuda(device);
    struct mz_cuda_attention *own = cuda->attention;
    const cudnn *api = &own->api;
    plan *how = call->state;
    pointers p = pointers_of(&a, call->op == MZ_OP_attention_bwd, how);
    void *scratch = (char *)call->workspace + delta_bytes(call);
    builder b = {.api = api};
    if (own->stream != cuda->stream) // another stream of a graph
        note(&b, api->cudnnSetStream(api->handle, own->stream = cuda->stream), "its stream");
    cudnnBackendDescriptor_t pack = create(&b, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    set(&b, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, p.n, p.ids);
    set(&b, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, p.n, (const void *)p.data);
    set(&b, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, (const void *)&scratch);
    finalize(&b, pack, "a call's tensors");
    if (b.status == CUDNN_STATUS_SUCCESS)
        note(&b, api->cudnnBackendExecute(api->handle, how->plan, pack), "running");
    destroy_made(&b);
    if (b.status != CUDNN_STATUS_SUCCESS)
        return mz_fail(MEZZO_ERR_DEVICE, "attention: cuDNN %zu: %s (%s)", api->version, b.what,
                       api->cudnnGetErrorString(b.status));
    return MEZZO_OK;
}

#else // built without cuDNN's headers

static const char *prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)call, (void)out;
    return "built without cuDNN's headers";
}
static mezzo_status run(mezzo_device *device, const mz_call *call) {
    (void)device;
    (void)call;
    return mz_fail(MEZZO_ERR_UNSUPPORTED, "attention: built without cuDNN's headers");
}
#define prepare_faster prepare
void mz_cuda_attention_close(mz_cuda_device *cuda) {
    (void)cuda;
}

#endif

// Listed twice: before the own kernels where it is faster, and after them for any shape, so that tests reach it.
const mz_kernel mz_cuda_attention_cudnn = {"attention_16bit__cudnn", prepare_faster, run};
const mz_kernel mz_cuda_attention_cudnn_bwd = {"attention_bwd_16bit__cudnn", prepare_faster, run};
const mz_kernel mz_cuda_attention_cudnn_any = {"attention_16bit__cudnn_any", prepare, run};
const mz_kernel mz_cuda_attention_cudnn_any_bwd = {"attention_bwd_16bit__cudnn_any", prepare, run};
