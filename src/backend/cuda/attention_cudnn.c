// Runs attention by cuDNN, whose kernels use Hopper's instructions beyond mma.sync. Its engines recognize attention in
// a graph of plain operations (product, scale, for causal attention a mask by generated indices, softmax with its
// statistics, product) and run it as one kernel. Where the library is missing or its version makes no plan, this
// backend's own kernels serve.
#include <float.h>

#include "backend/cuda/attention.h"
#include "backend/cuda/cudnn.h"

#ifdef MZ_CUDA_HAS_CUDNN

// Holds the key of a plan; compared byte by byte.
typedef struct shape {
    mz_op op;
    int dtype, batch, length, keys, heads, kv_heads, width, packed, with_lse, causal;
} shape;

// Ids of the tensors that have memory.
enum { Q = 1, K, V, Y, LSE, DY, DQ, DK, DV, DELTA, SCALE, MASKED, ONE };

typedef mz_cudnn_tensor node;
typedef mz_cudnn_extent extent;

static node between(mz_cudnn_graph *g, cudnnDataType_t dtype, extent size) {
    return mz_cudnn_virtual(g, dtype, size, mz_cudnn_dense(size));
}

static node apply(mz_cudnn_graph *g, cudnnPointwiseMode_t mode, node x, node y, extent size) {
    node out = between(g, CUDNN_DATA_FLOAT, size);
    mz_cudnn_pointwise(g, mode, CUDNN_DATA_FLOAT, x, y, NULL, -1, out);
    return out;
}

// --- the two graphs ------------------------------------------------------------------------------------------------
typedef struct sizes {
    cudnnDataType_t dtype;
    extent rows, keys, transposed;          // [B, H, T, D], [B, Hkv, T', D], [B, Hkv, D, T']
    extent q_stride, y_stride;              // of rows
    extent kv_stride, kv_transposed_stride; // of keys, of transposed keys
    extent scores, column;                  // [B, H, T, T'], [B, H, T, 1]
} sizes;

static sizes sizes_of(const shape *s) {
    int64_t batch = s->batch, length = s->length, keys = s->keys, heads = s->heads, kv = s->kv_heads, d = s->width;
    int64_t q_row = s->packed ? 3 * heads * d : heads * d, kv_row = s->packed ? q_row : kv * d;
    bool bf16 = s->dtype == (int)MEZZO_BF16; // prepare takes BF16 and FP16 alone
    sizes z = {.dtype = bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF,
               .rows = {{batch, heads, length, d}},
               .keys = {{batch, kv, keys, d}},
               .transposed = {{batch, kv, d, keys}},
               .q_stride = {{length * q_row, d, q_row, 1}},
               .y_stride = {{length * heads * d, d, heads * d, 1}},
               .kv_stride = {{keys * kv_row, d, kv_row, 1}},
               .kv_transposed_stride = {{keys * kv_row, d, 1, kv_row}},
               .scores = {{batch, heads, length, keys}},
               .column = {{batch, heads, length, 1}}};
    return z;
}

// Returns x where key <= query, else `masked`.
static node causal(mz_cudnn_graph *g, node x, extent scores, node masked) {
    node row = between(g, CUDNN_DATA_INT32, scores), column = between(g, CUDNN_DATA_INT32, scores);
    node seen = between(g, CUDNN_DATA_BOOLEAN, scores), out = between(g, CUDNN_DATA_FLOAT, scores);
    mz_cudnn_pointwise(g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, x, NULL, NULL, 2, row);
    mz_cudnn_pointwise(g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, x, NULL, NULL, 3, column);
    mz_cudnn_pointwise(g, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, row, column, NULL, -1, seen);
    mz_cudnn_pointwise(g, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, x, masked, seen, -1, out);
    return out;
}

static void forward_graph(mz_cudnn_graph *g, const shape *s) {
    sizes z = sizes_of(s);
    node q = mz_cudnn_stored(g, Q, z.dtype, z.rows, z.q_stride);
    node k = mz_cudnn_stored(g, K, z.dtype, z.transposed, z.kv_transposed_stride);
    node v = mz_cudnn_stored(g, V, z.dtype, z.keys, z.kv_stride);
    node x = between(g, CUDNN_DATA_FLOAT, z.scores);
    mz_cudnn_matmul(g, q, k, x);
    x = apply(g, CUDNN_POINTWISE_MUL, x, mz_cudnn_constant(g, SCALE), z.scores);
    if (s->causal)
        x = causal(g, x, z.scores, mz_cudnn_constant(g, MASKED));
    node max = between(g, CUDNN_DATA_FLOAT, z.column), sum = between(g, CUDNN_DATA_FLOAT, z.column);
    mz_cudnn_reduce(g, CUDNN_REDUCE_TENSOR_MAX, x, max);
    x = apply(g, CUDNN_POINTWISE_SUB, x, max, z.scores);
    x = apply(g, CUDNN_POINTWISE_EXP, x, NULL, z.scores);
    mz_cudnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, x, sum);
    // The graph always has this output, because the engines have no attention without statistics. Where no call needs
    // them, they have no memory.
    node log = apply(g, CUDNN_POINTWISE_LOG, sum, NULL, z.column);
    extent packed = mz_cudnn_dense(z.column);
    node lse = s->with_lse ? mz_cudnn_stored(g, LSE, CUDNN_DATA_FLOAT, z.column, packed)
                           : mz_cudnn_virtual(g, CUDNN_DATA_FLOAT, z.column, packed);
    mz_cudnn_pointwise(g, CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, max, log, NULL, -1, lse);
    node p = between(g, z.dtype, z.scores); // rounded for the second product
    mz_cudnn_pointwise(g, CUDNN_POINTWISE_DIV, CUDNN_DATA_FLOAT, x, sum, NULL, -1, p);
    mz_cudnn_matmul(g, p, v, mz_cudnn_stored(g, Y, z.dtype, z.rows, z.y_stride));
}

// Returns a [B, H, T, T'] value rounded to `dtype` and read transposed.
static node transposed(mz_cudnn_graph *g, node x, cudnnDataType_t dtype, extent scores) {
    extent stride = mz_cudnn_dense(scores), transposed = {{stride.n[0], stride.n[1], stride.n[3], stride.n[2]}};
    extent size = {{scores.n[0], scores.n[1], scores.n[3], scores.n[2]}};
    node out = mz_cudnn_virtual(g, dtype, size, transposed);
    mz_cudnn_reshape(g, x, out);
    return out;
}

// Builds backward, with dq directly from its product and without an FP32 copy to which blocks would add in any order:
// this requests the deterministic kernel.
static void backward_graph(mz_cudnn_graph *g, const shape *s) {
    sizes z = sizes_of(s);
    node q = mz_cudnn_stored(g, Q, z.dtype, z.rows, z.q_stride);
    node k = mz_cudnn_stored(g, K, z.dtype, z.transposed, z.kv_transposed_stride);
    node v = mz_cudnn_stored(g, V, z.dtype, z.transposed, z.kv_transposed_stride);
    node y = mz_cudnn_stored(g, Y, z.dtype, z.rows, z.y_stride);
    node dy = mz_cudnn_stored(g, DY, z.dtype, z.rows, z.y_stride);
    node lse = mz_cudnn_stored(g, LSE, CUDNN_DATA_FLOAT, z.column, mz_cudnn_dense(z.column));
    node scale = mz_cudnn_constant(g, SCALE);

    node product = apply(g, CUDNN_POINTWISE_MUL, dy, y, z.rows);
    node sum = between(g, CUDNN_DATA_FLOAT, z.column);
    mz_cudnn_reduce(g, CUDNN_REDUCE_TENSOR_ADD, product, sum);
    node delta = mz_cudnn_stored(g, DELTA, CUDNN_DATA_FLOAT, z.column, mz_cudnn_dense(z.column));
    mz_cudnn_pointwise(g, CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, sum, mz_cudnn_constant(g, ONE), NULL, -1, delta);

    node x = between(g, CUDNN_DATA_FLOAT, z.scores);
    mz_cudnn_matmul(g, q, k, x);
    x = apply(g, CUDNN_POINTWISE_MUL, x, scale, z.scores);
    x = apply(g, CUDNN_POINTWISE_SUB, x, lse, z.scores);
    if (s->causal)
        x = causal(g, x, z.scores, mz_cudnn_constant(g, MASKED));
    node p = apply(g, CUDNN_POINTWISE_EXP, x, NULL, z.scores);
    mz_cudnn_matmul(g, transposed(g, p, z.dtype, z.scores), dy, mz_cudnn_stored(g, DV, z.dtype, z.keys, z.kv_stride));

    node ds = between(g, CUDNN_DATA_FLOAT, z.scores);
    mz_cudnn_matmul(g, dy, v, ds);
    ds = apply(g, CUDNN_POINTWISE_SUB, ds, delta, z.scores);
    ds = apply(g, CUDNN_POINTWISE_MUL, ds, p, z.scores);
    ds = apply(g, CUDNN_POINTWISE_MUL, ds, scale, z.scores);
    mz_cudnn_matmul(g, transposed(g, ds, z.dtype, z.scores), q, mz_cudnn_stored(g, DK, z.dtype, z.keys, z.kv_stride));

    node straight = mz_cudnn_virtual(g, z.dtype, z.keys, z.kv_stride);
    mz_cudnn_reshape(g, k, straight);
    mz_cudnn_matmul(g, ds, straight, mz_cudnn_stored(g, DQ, z.dtype, z.rows, z.q_stride));
}

static void build(mz_cudnn_graph *g, const void *key) {
    const shape *s = key;
    if (s->op == MZ_OP_attention)
        forward_graph(g, s);
    else
        backward_graph(g, s);
}

// --- the kernels ---------------------------------------------------------------------------------------------------
static shape shape_of(const mz_cu_attention *a, const mz_call *call) {
    bool backward = call->op == MZ_OP_attention_bwd;
    return (shape){.op = call->op,
                   .dtype = a->dtype,
                   .batch = a->batch,
                   .length = a->length,
                   .keys = a->keys,
                   .heads = a->heads,
                   .kv_heads = a->kv_heads,
                   .width = a->width,
                   .packed = !mz_present(&call->in[backward ? 2 : 1]),
                   .with_lse = backward || mz_present(&call->out[1]),
                   .causal = a->causal};
}

// Returns the bytes of dS, which sums in a fixed order need in memory, 16 bits for each element, and read again for dq;
// tiles are 64 by 64.
static size_t scores_bytes(const mz_cu_attention *a) {
    size_t length = mz_align_up((size_t)a->length, 64), keys = mz_align_up((size_t)a->keys, 64);
    return 2 * length * keys * (size_t)a->heads * (size_t)a->batch;
}

// Returns the bytes of backward's own buffer, Δ, which precedes cuDNN's workspace.
static size_t delta_bytes(const mz_call *call) {
    return call->op == MZ_OP_attention_bwd
               ? mz_align_up((size_t)mz_shape_count(&mz_in(call, attention_bwd, lse)->shape) * sizeof(float), 256)
               : 0;
}

static const char *refuse_backward(const mz_cuda_device *cuda, const struct mz_cudnn *cudnn, const mz_cu_attention *a) {
    // In versions up to 9.15, keys past the end of a last, partial tile of 128 enter its gradients.
    if (mz_cudnn_version(cudnn) <= 91500 && (a->length % 128 != 0 || a->keys % 128 != 0))
        return "before cuDNN 9.15.1 lengths must be multiples of 128";
    // The sum over the heads that share a key is a sum of 16-bit parts, each rounded, which exceeds the op's bound. A
    // graph with FP32 parts is accepted, too, but its dk and dv are wrong (9.14 and 9.19).
    if (a->heads != a->kv_heads)
        return "cuDNN rounds the gradients of shared keys once more than it may";
    if (scores_bytes(a) > cuda->memory / 64)
        return "backward's [B, H, T, T'] would need more than a 64th of the GPU's memory";
    return NULL;
}

typedef struct state {
    const mz_cudnn_plan *plan;
    float scale, masked, one; // a run points to these
} state;

static const char *prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    mz_cuda_device *cuda = mz_cuda(device);
    const char *refusal = mz_cuda_attention_refusal(call);
    if (refusal != NULL)
        return refusal;
    mz_cu_attention a = mz_cuda_attention_of(device, call);
    struct mz_cudnn *cudnn;
    if (a.dtype == MEZZO_F32 || a.dtype != a.compute)
        return "storage and compute must be BF16 or FP16, both the same";
    if (a.width % 8 != 0 || a.width > 128)
        return "the head size must be a multiple of 8 and at most 128";
    if (a.causal && a.keys != a.length)
        return "causal attention has as many keys as queries";
    if (a.p > 0)
        return "cuDNN's dropout does not draw this library's numbers";
    if (a.cc < 80)
        return "cuDNN's attention needs compute capability 8.0";
    if (a.limited)
        return mz_cuda_limits_refusal(&a);
    refusal = mz_cudnn_open(cuda, &cudnn);
    if (refusal == NULL && call->op == MZ_OP_attention_bwd)
        refusal = refuse_backward(cuda, cudnn, &a);
    if (refusal != NULL)
        return refusal;
    shape s = shape_of(&a, call);
    const mz_cudnn_plan *plan = mz_cudnn_find(cudnn, build, &s, sizeof s);
    state *kept = out->state = mz_alloc(1, sizeof *kept);
    if (plan == NULL || kept == NULL)
        return mz_out_of_memory;
    *kept = (state){.plan = plan, .scale = a.scale, .masked = -FLT_MAX, .one = 1};
    out->workspace = delta_bytes(call) + plan->workspace;
    return plan->refusal;
}

// Prepares cuDNN where it is faster than the kernels of this folder: where attention is causal, from 256 positions on,
// if every multiprocessor has a block of 64 queries (docs/dev/ATTENTION.md); elsewhere always.
static const char *prepare_faster(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    const mz_tensor *q = &call->in[call->op == MZ_OP_attention_bwd ? 1 : 0];
    if (!call->attrs.causal)
        return prepare(device, call, out);
    int64_t length = q->shape.dim[1], blocks = q->shape.dim[0] * call->attrs.heads * ((length + 63) / 64);
    if (length < 256 || blocks < mz_cuda(device)->sms)
        return "the own kernel is faster for so few positions";
    return prepare(device, call, out);
}

static mezzo_status run(mezzo_device *device, const mz_call *call) {
    mz_cu_attention a = mz_cuda_attention_of(device, call);
    const state *kept = call->state;
    mz_cudnn_pointers p = {.n = 0};
    mz_cudnn_point(&p, Q, a.q);
    mz_cudnn_point(&p, K, a.k);
    mz_cudnn_point(&p, V, a.v);
    mz_cudnn_point(&p, Y, a.y);
    mz_cudnn_point(&p, SCALE, &kept->scale);
    if (a.causal)
        mz_cudnn_point(&p, MASKED, &kept->masked);
    if (a.lse != NULL)
        mz_cudnn_point(&p, LSE, a.lse);
    if (call->op == MZ_OP_attention_bwd) {
        mz_cudnn_point(&p, DY, a.dy);
        mz_cudnn_point(&p, DQ, a.dq);
        mz_cudnn_point(&p, DK, a.dk);
        mz_cudnn_point(&p, DV, a.dv);
        mz_cudnn_point(&p, DELTA, a.delta);
        mz_cudnn_point(&p, ONE, &kept->one);
    }
    MEZZO_TRY(mz_cudnn_run(mz_cuda(device), kept->plan, &p, (char *)call->workspace + delta_bytes(call)));
    return MEZZO_OK;
}

#else                       // built without cuDNN's headers

static const char *prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)call, (void)out;
    return "built without cuDNN's headers";
}
#define run            NULL // never prepared
#define prepare_faster prepare

#endif

// cuDNN is listed twice: before our own kernels where it is faster, and after them for any shape, so that tests reach
// it.
const mz_kernel mz_cuda_attention_cudnn = {"attention_16bit__cudnn", prepare_faster, run};
const mz_kernel mz_cuda_attention_cudnn_bwd = {"attention_bwd_16bit__cudnn", prepare_faster, run};
const mz_kernel mz_cuda_attention_cudnn_any = {"attention_16bit__cudnn_any", prepare, run};
const mz_kernel mz_cuda_attention_cudnn_any_bwd = {"attention_bwd_16bit__cudnn_any", prepare, run};
