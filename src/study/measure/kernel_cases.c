// Makes the calls that are timed: for each name the tensors, dtypes and attributes that the passes give the op in a
// training step, the data to run it on, and its operations and bytes.
#include <math.h>
#include <stdlib.h>

#include "backend/update.h"
#include "base/precision.h"
#include "study/measure/kernels.h"

// The formats that a precision stores tensors in, and the one that its products compute in.
typedef struct formats {
    mezzo_dtype low, compute;
    mezzo_dtype operand, gradient, dw; // of linear layers: x and w, dy, and x of dw
    mezzo_dtype scaled;                // what scaled operands are computed in
} formats;

static formats formats_of(mezzo_precision precision) {
    const mz_precision_info *p = mz_precision(precision);
    const bool scaled = p->scaling != MZ_SCALING_NONE;
    return (formats){p->output, scaled ? p->output : p->compute, p->operand, p->gradient, p->dw, p->compute};
}

// --- tensors -------------------------------------------------------------------------------------------------------
#define SHAPE(...)                                                                                                     \
    (mz_shape) {                                                                                                       \
        .rank = (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), .dim = { __VA_ARGS__ }                      \
    }

static void in(mz_call *c, int slot, mezzo_dtype dtype, mz_shape shape) {
    c->in[slot] = (mz_tensor){.dtype = dtype, .shape = shape};
    c->n_in = slot + 1 > c->n_in ? slot + 1 : c->n_in;
}
// A linear layer's operand: 8 bits have a scale, and where they are summed over their first dimension they lie
// columnwise.
static void operand(mz_call *c, int slot, mezzo_dtype dtype, mz_shape shape, bool columnwise) {
    in(c, slot, dtype, shape);
    if (mezzo_dtype_size(dtype) > 1)
        return;
    c->in[slot].scaling = MZ_SCALING_TENSOR;
    c->in[slot].columnwise = columnwise;
}
static void out(mz_call *c, int slot, mezzo_dtype dtype, mz_shape shape) {
    c->out[slot] = (mz_tensor){.dtype = dtype, .shape = shape};
    c->n_out = slot + 1 > c->n_out ? slot + 1 : c->n_out;
}

static double tensor_bytes(const mz_tensor *t) {
    return mz_present(t) ? (double)mz_shape_count(&t->shape) * (double)mezzo_dtype_size(t->dtype) : 0;
}
// Every tensor once; outputs that are added to are read as well.
static double all_bytes(const mz_call *c) {
    double bytes = 0;
    for (int i = 0; i < c->n_in; i++)
        bytes += tensor_bytes(&c->in[i]);
    for (int i = 0; i < c->n_out; i++)
        bytes += tensor_bytes(&c->out[i]);
    return bytes;
}

// --- products ------------------------------------------------------------------------------------------------------
// M×N×K: x [M, K], w [N, K], y [M, N]
typedef void make_fn(const int64_t *d, formats f, mz_bench_call *b);

static void make_linear(const int64_t *d, formats f, mz_bench_call *b) {
    operand(&b->call, 0, f.operand, SHAPE(d[0], d[2]), false);
    operand(&b->call, 1, f.operand, SHAPE(d[1], d[2]), false);
    in(&b->call, 2, f.low, SHAPE(d[1]));
    out(&b->call, 0, f.low, SHAPE(d[0], d[1]));
    b->call.attrs.via = f.low;
}
static void make_linear_gelu(const int64_t *d, formats f, mz_bench_call *b) {
    make_linear(d, f, b);
    out(&b->call, 1, f.low, SHAPE(d[0], d[1])); // preact
    b->call.attrs.act = MZ_ACT_GELU_TANH;
}
static void make_linear_residual(const int64_t *d, formats f, mz_bench_call *b) {
    make_linear(d, f, b);
    in(&b->call, 3, MEZZO_F32, SHAPE(d[0], d[1])); // the residual stream is FP32
    out(&b->call, 0, MEZZO_F32, SHAPE(d[0], d[1]));
}
static void make_linear_dx(const int64_t *d, formats f, mz_bench_call *b) {
    operand(&b->call, 0, f.gradient, SHAPE(d[0], d[1]), false);
    operand(&b->call, 1, f.operand, SHAPE(d[1], d[2]), true);
    out(&b->call, 0, f.low, SHAPE(d[0], d[2]));
}
static void make_linear_dx_gelu(const int64_t *d, formats f, mz_bench_call *b) {
    make_linear_dx(d, f, b);
    in(&b->call, 2, f.low, SHAPE(d[0], d[2])); // preact
    b->call.attrs.act = MZ_ACT_GELU_TANH;
}
static void make_linear_dw(const int64_t *d, formats f, mz_bench_call *b) {
    const bool scaled = mezzo_dtype_size(f.dw) == 1; // the quantize of dy sums the bias gradient
    operand(&b->call, 0, scaled ? f.gradient : f.dw, SHAPE(d[0], d[1]), true);
    operand(&b->call, 1, f.dw, SHAPE(d[0], d[2]), true);
    out(&b->call, 0, MEZZO_F32, SHAPE(d[1], d[2]));
    if (!scaled)
        out(&b->call, 1, MEZZO_F32, SHAPE(d[1]));
    b->call.attrs.accumulate = true;
}
// M×N×K: a [M, K] · b [K, N]
static void make_matmul(const int64_t *d, formats f, mz_bench_call *b) {
    in(&b->call, 0, f.low, SHAPE(d[0], d[2]));
    in(&b->call, 1, f.low, SHAPE(d[2], d[1]));
    out(&b->call, 0, f.low, SHAPE(d[0], d[1]));
}

// B×T×H×D: qkv [B, T, 3·H·D].
static void make_attention(const int64_t *d, formats f, mz_bench_call *b) {
    int64_t width = d[2] * d[3];
    in(&b->call, 0, f.low, SHAPE(d[0], d[1], 3 * width));
    out(&b->call, 0, f.low, SHAPE(d[0], d[1], width));
    out(&b->call, 1, MEZZO_F32, SHAPE(d[0], d[2], d[1])); // lse
    b->call.attrs.heads = b->call.attrs.kv_heads = (int)d[2];
    b->call.attrs.causal = true;
    b->call.attrs.rng = 1;
}
static void make_attention_bwd(const int64_t *d, formats f, mz_bench_call *b) {
    int64_t width = d[2] * d[3];
    in(&b->call, 0, f.low, SHAPE(d[0], d[1], width)); // dy
    in(&b->call, 1, f.low, SHAPE(d[0], d[1], 3 * width));
    in(&b->call, 4, f.low, SHAPE(d[0], d[1], width));    // y
    in(&b->call, 5, MEZZO_F32, SHAPE(d[0], d[2], d[1])); // lse
    out(&b->call, 0, f.low, SHAPE(d[0], d[1], 3 * width));
    b->call.attrs.heads = b->call.attrs.kv_heads = (int)d[2];
    b->call.attrs.causal = true;
    b->call.attrs.rng = 1;
}
static const float DROPPED = 0.2F;
static void make_attention_dropout(const int64_t *d, formats f, mz_bench_call *b) {
    make_attention(d, f, b);
    b->call.attrs.p = DROPPED;
}
static void make_attention_dropout_bwd(const int64_t *d, formats f, mz_bench_call *b) {
    make_attention_bwd(d, f, b);
    b->call.attrs.p = DROPPED;
}

// --- rows ----------------------------------------------------------------------------------------------------------
static void make_layernorm(const int64_t *d, formats f, mz_bench_call *b) {
    in(&b->call, 0, MEZZO_F32, SHAPE(d[0], d[1]));
    in(&b->call, 1, MEZZO_F32, SHAPE(d[1]));
    in(&b->call, 2, MEZZO_F32, SHAPE(d[1]));
    out(&b->call, 0, f.low, SHAPE(d[0], d[1]));
    out(&b->call, 1, MEZZO_F32, SHAPE(d[0]));
    out(&b->call, 2, MEZZO_F32, SHAPE(d[0]));
    b->call.attrs.eps = 1e-5F;
    b->work = all_bytes(&b->call);
}
static void make_layernorm_residual(const int64_t *d, formats f, mz_bench_call *b) {
    make_layernorm(d, f, b);
    in(&b->call, 3, f.low, SHAPE(d[0], d[1]));
    out(&b->call, 3, MEZZO_F32, SHAPE(d[0], d[1]));
    b->work = all_bytes(&b->call);
}
static void make_layernorm_bwd(const int64_t *d, formats f, mz_bench_call *b) {
    in(&b->call, 0, f.low, SHAPE(d[0], d[1])); // dy
    in(&b->call, 1, MEZZO_F32, SHAPE(d[0], d[1]));
    in(&b->call, 2, MEZZO_F32, SHAPE(d[1]));
    in(&b->call, 3, MEZZO_F32, SHAPE(d[0]));
    in(&b->call, 4, MEZZO_F32, SHAPE(d[0]));
    in(&b->call, 5, MEZZO_F32, SHAPE(d[0], d[1])); // dres
    out(&b->call, 0, MEZZO_F32, SHAPE(d[0], d[1]));
    out(&b->call, 1, MEZZO_F32, SHAPE(d[1]));
    out(&b->call, 2, MEZZO_F32, SHAPE(d[1]));
    b->call.attrs.accumulate = true;
    b->work = all_bytes(&b->call);
}
static void make_softmax(const int64_t *d, formats f, mz_bench_call *b) {
    in(&b->call, 0, f.low, SHAPE(d[0], d[1]));
    out(&b->call, 0, f.low, SHAPE(d[0], d[1]));
    b->work = all_bytes(&b->call);
}
static void make_element(const int64_t *d, formats f, mz_bench_call *b) {
    make_softmax(d, f, b);
    b->call.attrs.tanh = true;
    b->call.attrs.p = b->call.op == MZ_OP_dropout ? DROPPED : 0;
    b->call.attrs.rng = 1;
}
static void make_gelu_dx(const int64_t *d, formats f, mz_bench_call *b) {
    make_element(d, f, b);
    in(&b->call, 1, f.low, SHAPE(d[0], d[1])); // x
    b->work = all_bytes(&b->call);
}
// A low sum onto the FP32 residual stream.
static void make_add(const int64_t *d, formats f, mz_bench_call *b) {
    in(&b->call, 0, MEZZO_F32, SHAPE(d[0], d[1]));
    in(&b->call, 1, f.low, SHAPE(d[0], d[1]));
    out(&b->call, 0, MEZZO_F32, SHAPE(d[0], d[1]));
    b->work = all_bytes(&b->call);
}
static void make_cast(const int64_t *d, formats f, mz_bench_call *b) {
    in(&b->call, 0, MEZZO_F32, SHAPE(d[0], d[1]));
    out(&b->call, 0, f.low, SHAPE(d[0], d[1]));
    b->work = all_bytes(&b->call);
}
// rows × V
static void make_cross_entropy(const int64_t *d, formats f, mz_bench_call *b) {
    in(&b->call, 0, f.low, SHAPE(d[0], d[1]));
    in(&b->call, 1, MEZZO_I32, SHAPE(d[0]));
    out(&b->call, 0, MEZZO_F32, SHAPE(1));
    out(&b->call, 1, MEZZO_F32, SHAPE(d[0])); // lse
    b->call.attrs.ignore_index = -1;
    b->work = all_bytes(&b->call);
}
static void make_cross_entropy_dx(const int64_t *d, formats f, mz_bench_call *b) {
    in(&b->call, 0, MEZZO_F32, SHAPE(1));
    in(&b->call, 1, f.low, SHAPE(d[0], d[1]));
    in(&b->call, 2, MEZZO_I32, SHAPE(d[0]));
    in(&b->call, 3, MEZZO_F32, SHAPE(d[0]));
    out(&b->call, 0, f.low, SHAPE(d[0], d[1]));
    b->call.attrs.ignore_index = -1;
    b->work = all_bytes(&b->call);
}
// tokens × V × C: rows of the FP32 table are read; in its gradient, read and written.
static void make_embedding(const int64_t *d, formats f, mz_bench_call *b) {
    (void)f;
    in(&b->call, 0, MEZZO_F32, SHAPE(d[1], d[2]));
    in(&b->call, 1, MEZZO_I32, SHAPE(d[0]));
    out(&b->call, 0, MEZZO_F32, SHAPE(d[0], d[2]));
    b->work = 2.0 * 4 * (double)d[0] * (double)d[2];
}
static void make_embedding_bwd(const int64_t *d, formats f, mz_bench_call *b) {
    (void)f;
    in(&b->call, 0, MEZZO_F32, SHAPE(d[0], d[2]));
    in(&b->call, 1, MEZZO_I32, SHAPE(d[0]));
    out(&b->call, 0, MEZZO_F32, SHAPE(d[1], d[2]));
    b->call.attrs.accumulate = true;
    b->work = 3.0 * 4 * (double)d[0] * (double)d[2];
}

// --- the update: N parameters --------------------------------------------------------------------------------------
static void make_grad_stats(const int64_t *d, formats f, mz_bench_call *b) {
    (void)f;
    in(&b->call, 0, MEZZO_U8, SHAPE(sizeof(mz_segment)));
    out(&b->call, 0, MEZZO_F32, SHAPE(d[0]));
    out(&b->call, 1, MEZZO_U8, SHAPE(sizeof(mz_opt_state)));
    b->work = 4.0 * (double)d[0];
}
static void make_adamw(const int64_t *d, formats f, mz_bench_call *b) {
    b->low_copy = f.low;
    in(&b->call, 0, MEZZO_F32, SHAPE(d[0]));
    in(&b->call, 1, MEZZO_U8, SHAPE(sizeof(mz_segment)));
    in(&b->call, 2, MEZZO_U8, SHAPE(sizeof(mz_opt_state)));
    for (int i = 0; i < 3; i++) // master, m, v
        out(&b->call, i, MEZZO_F32, SHAPE(d[0]));
    if (f.low != MEZZO_F32)
        out(&b->call, 3, MEZZO_U8, SHAPE(2 * d[0]));
    b->update.rule = (mz_update_rule){.lr_factor = 1, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1};
    b->call.attrs.update = &b->update;
    b->work = (16 + 12 + (f.low != MEZZO_F32 ? 2 : 0)) * (double)d[0];
}

// --- the table -----------------------------------------------------------------------------------------------------
// X(name, op, what its dimensions are, maker)
#define BENCH_OPS(X)                                                                                                   \
    X(linear, linear, "MxNxK", make_linear)                                                                            \
    X(linear_gelu, linear, "MxNxK", make_linear_gelu)                                                                  \
    X(linear_residual, linear, "MxNxK", make_linear_residual)                                                          \
    X(linear_dx, linear_dx, "MxNxK", make_linear_dx)                                                                   \
    X(linear_dx_gelu, linear_dx, "MxNxK", make_linear_dx_gelu)                                                         \
    X(linear_dw, linear_dw, "MxNxK", make_linear_dw)                                                                   \
    X(matmul, matmul, "MxNxK", make_matmul)                                                                            \
    X(attention, attention, "BxTxHxD", make_attention)                                                                 \
    X(attention_dropout, attention, "BxTxHxD", make_attention_dropout)                                                 \
    X(attention_bwd, attention_bwd, "BxTxHxD", make_attention_bwd)                                                     \
    X(attention_dropout_bwd, attention_bwd, "BxTxHxD", make_attention_dropout_bwd)                                     \
    X(layernorm, layernorm, "ROWSxC", make_layernorm)                                                                  \
    X(layernorm_residual, layernorm, "ROWSxC", make_layernorm_residual)                                                \
    X(layernorm_bwd, layernorm_bwd, "ROWSxC", make_layernorm_bwd)                                                      \
    X(softmax, softmax, "ROWSxC", make_softmax)                                                                        \
    X(gelu, gelu, "ROWSxC", make_element)                                                                              \
    X(gelu_dx, gelu_dx, "ROWSxC", make_gelu_dx)                                                                        \
    X(add, add, "ROWSxC", make_add)                                                                                    \
    X(cast, cast, "ROWSxC", make_cast)                                                                                 \
    X(dropout, dropout, "ROWSxC", make_element)                                                                        \
    X(cross_entropy, cross_entropy, "ROWSxV", make_cross_entropy)                                                      \
    X(cross_entropy_dx, cross_entropy_dx, "ROWSxV", make_cross_entropy_dx)                                             \
    X(embedding, embedding, "TOKENSxVxC", make_embedding)                                                              \
    X(embedding_bwd, embedding_bwd, "TOKENSxVxC", make_embedding_bwd)                                                  \
    X(grad_stats, grad_stats, "N", make_grad_stats)                                                                    \
    X(adamw, adamw, "N", make_adamw)

struct mz_bench_op {
    const char *name;
    mz_op op;
    const char *dims;
    make_fn *make;
};

static const mz_bench_op ops[] = {
#define ROW(name, op, dims, make) {#name, MZ_OP_##op, dims, make},
    BENCH_OPS(ROW)
#undef ROW
};

enum {
#define INDEX(name, ...) INDEX_##name,
    BENCH_OPS(INDEX)
#undef INDEX
};

static const mz_bench_case defaults[] = {
#define CASE(model, name, ...) {&ops[INDEX_##name], model, {__VA_ARGS__}},
#include "study/measure/kernel_shapes.def"
#undef CASE
};

const mz_bench_op *mz_bench_find(const char *name) {
    for (size_t i = 0; i < MZ_COUNT(ops); i++)
        if (strcmp(ops[i].name, name) == 0)
            return &ops[i];
    return NULL;
}
int mz_bench_op_count(void) {
    return (int)MZ_COUNT(ops);
}
const char *mz_bench_op_name(const mz_bench_op *op) {
    return op->name;
}
const mz_bench_op *mz_bench_op_at(int index) {
    return &ops[index];
}
const char *mz_bench_op_dims(const mz_bench_op *op) {
    return op->dims;
}
bool mz_bench_op_scored(const mz_bench_op *op) {
    return mz_op_table[op->op].flops != NULL;
}
const mz_bench_case *mz_bench_default(int index) {
    return index >= 0 && index < (int)MZ_COUNT(defaults) ? &defaults[index] : NULL;
}

static int dims_of(const mz_bench_op *op) {
    int n = 1;
    for (const char *p = op->dims; *p != '\0'; p++)
        n += *p == 'x';
    return n;
}

mezzo_status mz_bench_shape(const mz_bench_op *op, const char *text, int64_t dim[MZ_BENCH_DIMS]) {
    int want = dims_of(op), n = 0;
    const char *p = text;
    double count = 1;
    for (bool more = true; more && n < want;) {
        char *end;
        long long value = strtoll(p, &end, 10);
        if (end == p || value < 1 || value > INT32_MAX)
            break;
        count *= (double)value;
        dim[n++] = value;
        more = *end == 'x';
        p = more ? end + 1 : end;
    }
    if (n != want || *p != '\0')
        return mz_fail(MEZZO_ERR_INVALID, "shape %s: %s takes %s, whole numbers from 1 to %d", text, op->name, op->dims,
                       INT32_MAX);
    if (count > 1e15)
        return mz_fail(MEZZO_ERR_INVALID, "shape %s: that is more than any machine holds", text);
    return MEZZO_OK;
}

const char *mz_bench_shape_text(const mz_bench_case *c, char *buf, size_t size) {
    size_t len = 0;
    buf[0] = '\0';
    for (int i = 0; i < dims_of(c->op) && len < size; i++)
        len += (size_t)snprintf(buf + len, size - len, "%s%lld", i > 0 ? "x" : "", (long long)c->dim[i]);
    return buf;
}

void mz_bench_make(const mz_bench_case *c, mezzo_precision precision, mz_bench_call *b) {
    formats f = formats_of(precision);
    *b = (mz_bench_call){.call = {.op = c->op->op, .numerics = {MEZZO_F32, MEZZO_F32, MEZZO_F32}}};
    for (int i = 0; i < MZ_MAX_IN; i++)
        b->call.in[i].shape.rank = -1;
    for (int i = 0; i < MZ_MAX_OUT; i++)
        b->call.out[i].shape.rank = -1;
    c->op->make(c->dim, f, b);
    if (!mz_bench_op_scored(c->op))
        return;
    const mz_shape *ins[MZ_MAX_IN] = {NULL}, *outs[MZ_MAX_OUT] = {NULL};
    for (int i = 0; i < b->call.n_in; i++)
        ins[i] = mz_present(&b->call.in[i]) ? &b->call.in[i].shape : NULL;
    for (int i = 0; i < b->call.n_out; i++)
        outs[i] = mz_present(&b->call.out[i]) ? &b->call.out[i].shape : NULL;
    b->call.numerics.compute = b->call.in[0].scaling != MZ_SCALING_NONE ? f.scaled : f.compute;
    b->work = mz_op_table[c->op->op].flops(&b->call.attrs, ins, outs);
}

static bool same_formats(const mz_tensor *a, const mz_tensor *b, int n) {
    for (int i = 0; i < n; i++)
        if (mz_present(&a[i]) != mz_present(&b[i]) || (mz_present(&a[i]) && a[i].dtype != b[i].dtype))
            return false;
    return true;
}

bool mz_bench_same(const mz_bench_case *c, mezzo_precision one, mezzo_precision other) {
    mz_bench_call a, b;
    mz_bench_make(c, one, &a);
    mz_bench_make(c, other, &b);
    return a.call.numerics.compute == b.call.numerics.compute && same_formats(a.call.in, b.call.in, MZ_MAX_IN) &&
           same_formats(a.call.out, b.call.out, MZ_MAX_OUT);
}

// --- data ----------------------------------------------------------------------------------------------------------
// Values of about a network's size. A pattern of prime length is repeated: making 10⁸ normal numbers would take longer
// than the rest.
enum { PATTERN = 8191 };

static void fill_floats(mezzo_dtype dtype, uint32_t stream, float deviation, void *data, size_t bytes) {
    float values[PATTERN + 1];
    for (uint32_t i = 0; i < PATTERN; i += 4) {
        uint32_t words[4];
        mz_philox((mz_philox_key){.seed = 1, .tensor = stream}, i, words);
        mz_normal4(words, values + i);
    }
    for (int i = 0; i < PATTERN; i++)
        values[i] *= deviation;
    size_t width = mezzo_dtype_size(dtype), whole = PATTERN * width, first = bytes < whole ? bytes : whole;
    (void)mezzo_convert(values, MEZZO_F32, data, dtype, first / width); // float formats: it cannot fail
    for (size_t at = first; at < bytes; at += whole)
        memcpy((char *)data + at, data, bytes - at < whole ? bytes - at : whole);
}

static void fill_ids(int64_t limit, int32_t *ids, size_t n) {
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)((int64_t)(i * 7919) % limit);
}

static void fill_constant(float x, float *data, size_t n) {
    for (size_t i = 0; i < n; i++)
        data[i] = x;
}

static int64_t id_limit(const mz_call *c) {
    switch (c->op) {
    case MZ_OP_embedding:
        return c->in[0].shape.dim[0];
    case MZ_OP_embedding_bwd:
        return c->out[0].shape.dim[0];
    case MZ_OP_cross_entropy_dx:
        return c->in[1].shape.dim[1];
    default:
        return c->in[0].shape.dim[1];
    }
}

static void fill_bytes(const mz_bench_call *b, bool output, int slot, void *data) {
    const mz_call *c = &b->call;
    int64_t n = mz_shape_count(&c->out[0].shape);
    bool low = c->op == MZ_OP_adamw && mz_present(&c->out[3]);
    if (!output && slot == (c->op == MZ_OP_adamw ? 1 : 0))
        *(mz_segment *)data = (mz_segment){.count = n,
                                           .low_copy_offset = low ? 0 : MZ_NO_LOW_COPY,
                                           .low_copy_dtype = (int32_t)b->low_copy,
                                           .decay = 1};
    else if (output == (c->op == MZ_OP_grad_stats))
        *(mz_opt_state *)data =
            (mz_opt_state){.step = 1, .clip = 1, .lr = 1e-4, .last_clip = 1, .bias = {{0.1, 0.001}}};
}

void mz_bench_fill(const mz_bench_call *b, bool output, int slot, void *data, size_t bytes) {
    const mz_call *c = &b->call;
    const mz_tensor *t = output ? &c->out[slot] : &c->in[slot];
    memset(data, 0, bytes);
    if (t->dtype == MEZZO_U8)
        fill_bytes(b, output, slot, data);
    else if (t->dtype == MEZZO_I32)
        fill_ids(id_limit(c), data, bytes / sizeof(int32_t));
    else if (c->op == MZ_OP_cross_entropy_dx && slot != 1)
        fill_constant(slot == 0 ? 1.0F : 11.0F, data, bytes / sizeof(float)); // the loss's gradient; lse
    else if (c->op == MZ_OP_attention_bwd && slot == 5)
        fill_constant(6.0F, data, bytes / sizeof(float)); // lse
    else if (c->op == MZ_OP_layernorm_bwd && slot == 4)
        fill_constant(1.0F, data, bytes / sizeof(float)); // rstd
    else if (c->op == MZ_OP_adamw && output && slot == 2)
        fill_constant(1e-6F, data, bytes / sizeof(float)); // second moments
    else
        fill_floats(t->dtype, (uint32_t)slot, c->op == MZ_OP_adamw ? 0.02F : 1.0F, data, bytes);
}
