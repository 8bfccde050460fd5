// Makes the calls that are timed: for each name the tensors, dtypes and attributes that the passes give the op in a
// training step, its data, operations and bytes.
#include <math.h>
#include <stdlib.h>

#include "backend/update.h"
#include "base/precision.h"
#include "study/measure/kernels.h"

// Holds the formats in which a precision stores tensors, and the one in which its products compute.
typedef struct formats {
    mezzo_dtype low, compute;
    mezzo_dtype operand, gradient, dw; // of linear layers: x and w, dy, and x of dw
    mezzo_dtype scaled;                // the compute format of scaled operands
} formats;

static formats formats_of(mezzo_precision precision) {
    const mz_precision_info *p = mz_precision(precision);
    const bool scaled = p->scaling != MZ_SCALING_NONE;
    return (formats){p->output, scaled ? p->output : p->compute, p->operand, p->gradient, p->dw, p->compute};
}

// --- tensors -------------------------------------------------------------------------------------------------------
static double tensor_bytes(const mz_tensor *t) {
    return mz_present(t) ? (double)mz_shape_count(&t->shape) * (double)mezzo_dtype_size(t->dtype) : 0;
}
// Counts the bytes of every tensor once, and of outputs that accumulate twice.
static double all_bytes(const mz_call *c) {
    double bytes = 0;
    for (int i = 0; i < c->n_in; i++)
        bytes += tensor_bytes(&c->in[i]);
    for (int i = 0; i < c->n_out; i++)
        bytes += tensor_bytes(&c->out[i]);
    return bytes;
}

// --- the table -----------------------------------------------------------------------------------------------------
// X(name, op, what its dimensions are, its tensors, attributes)
// A tensor is a word: its dtype, then its dimensions, each by the first letter of its name, which a digit multiplies;
// "HD" in brackets is one dimension. "-" is absent; outputs stand after ">".
//   l  the low format, of activations and of the copies of weights   f  FP32   i  I32
//   o O  a linear layer's operand, O columnwise   g  dy            s  mz_segment   t  mz_opt_state
//   d e  of dw: x and dy, columnwise; e is `gradient` where x has a scale          b  FP32, absent where d has a scale
//   c  the low copy's bytes, absent where the low format is FP32
#define DROPPED   0.2F
#define ATTENTION .causal = true, .rng = 1
#define BENCH_OPS(X)                                                                                                   \
    X(linear, linear, "MxNxK", "oMK oNK lN > lMN")                                                                     \
    X(linear_gelu, linear, "MxNxK", "oMK oNK lN > lMN lMN", .act = MZ_ACT_GELU_TANH)                                   \
    X(linear_residual, linear, "MxNxK", "oMK oNK lN fMN > fMN")                                                        \
    X(linear_dx, linear_dx, "MxNxK", "gMN ONK > lMK")                                                                  \
    X(linear_dx_gelu, linear_dx, "MxNxK", "gMN ONK lMK > lMK", .act = MZ_ACT_GELU_TANH)                                \
    X(linear_dw, linear_dw, "MxNxK", "eMN dMK > fNK bN", .accumulate = true)                                           \
    X(matmul, matmul, "MxNxK", "lMK lKN > lMN")                                                                        \
    X(attention, attention, "BxTxHxD", "lBT(3HD) > lBT(HD) fBHT", ATTENTION)                                           \
    X(attention_dropout, attention, "BxTxHxD", "lBT(3HD) > lBT(HD) fBHT", ATTENTION, .p = DROPPED)                     \
    X(attention_bwd, attention_bwd, "BxTxHxD", "lBT(HD) lBT(3HD) - - lBT(HD) fBHT > lBT(3HD)", ATTENTION)              \
    X(attention_dropout_bwd, attention_bwd, "BxTxHxD", "lBT(HD) lBT(3HD) - - lBT(HD) fBHT > lBT(3HD)", ATTENTION,      \
      .p = DROPPED)                                                                                                    \
    X(attention_shared, attention, "BxTxHxKxD", "lBT(HD) lBT(KD) lBT(KD) > lBT(HD) fBHT", ATTENTION)                   \
    X(attention_shared_bwd, attention_bwd, "BxTxHxKxD",                                                                \
      "lBT(HD) lBT(HD) lBT(KD) lBT(KD) lBT(HD) fBHT > lBT(HD) lBT(KD) lBT(KD)", ATTENTION)                             \
    X(layernorm, layernorm, "ROWSxC", "fRC fC fC > lRC fR fR", .eps = 1e-5F)                                           \
    X(layernorm_residual, layernorm, "ROWSxC", "fRC fC fC lRC > lRC fR fR fRC", .eps = 1e-5F)                          \
    X(layernorm_bwd, layernorm_bwd, "ROWSxC", "lRC fRC fC fR fR fRC > fRC fC fC", .accumulate = true)                  \
    X(softmax, softmax, "ROWSxC", "lRC > lRC")                                                                         \
    X(gelu, gelu, "ROWSxC", "lRC > lRC", .tanh = true, .rng = 1)                                                       \
    X(gelu_dx, gelu_dx, "ROWSxC", "lRC lRC > lRC", .tanh = true, .rng = 1)                                             \
    X(add, add, "ROWSxC", "fRC lRC > fRC")                                                                             \
    X(cast, cast, "ROWSxC", "fRC > lRC")                                                                               \
    X(dropout, dropout, "ROWSxC", "lRC > lRC", .tanh = true, .rng = 1, .p = DROPPED)                                   \
    X(cross_entropy, cross_entropy, "ROWSxV", "lRV iR > f1 fR", .ignore_index = -1)                                    \
    X(cross_entropy_dx, cross_entropy_dx, "ROWSxV", "f1 lRV iR fR > lRV", .ignore_index = -1)                          \
    X(embedding, embedding, "TOKENSxVxC", "fVC iT > fTC")                                                              \
    X(embedding_bwd, embedding_bwd, "TOKENSxVxC", "fTC iT > fVC", .accumulate = true)                                  \
    X(grad_stats, grad_stats, "N", "s > fN t")                                                                         \
    X(adamw, adamw, "N", "fN s t > fN fN fN c(2N)")

const mz_bench_op mz_bench_ops[MZ_BENCH_OPS] = {
#define ROW(name, op, dims, tensors, ...) {#name, MZ_OP_##op, dims, tensors, {__VA_ARGS__}},
    BENCH_OPS(ROW)
#undef ROW
};

enum {
#define INDEX(name, ...) INDEX_##name,
    BENCH_OPS(INDEX)
#undef INDEX
};

static const mz_bench_case defaults[] = {
#define CASE(model, name, ...) {&mz_bench_ops[INDEX_##name], model, {__VA_ARGS__}},
#include "study/measure/kernel_shapes.def"
#undef CASE
};

const mz_bench_op *mz_bench_find(const char *name) {
    return MZ_FIND(mz_bench_ops, MZ_BENCH_OPS, name, name);
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

// Parses a dimension, or several in brackets as one, and advances.
static int64_t parse_dimension(const mz_bench_case *c, const char **p) {
    int64_t product = 1;
    const bool several = **p == '(';
    for (const char *at = *p + several;; at++) {
        if (*at >= '0' && *at <= '9') {
            product *= *at - '0';
        } else {
            int index = 0;
            for (const char *name = c->op->dims; *name != *at; name = strchr(name, 'x') + 1)
                index++;
            product *= c->dim[index];
        }
        if (!several || at[1] == ')') {
            *p = at + 1 + several;
            return product;
        }
    }
}

static mezzo_dtype dtype_of(char kind, const formats *f) {
    switch (kind) {
    case 'f':
    case 'b':
        return MEZZO_F32;
    case 'i':
        return MEZZO_I32;
    case 'o':
    case 'O':
        return f->operand;
    case 'g':
        return f->gradient;
    case 'd':
        return f->dw;
    case 'e': // the quantize of dy sums the bias gradient
        return mezzo_dtype_size(f->dw) == 1 ? f->gradient : f->dw;
    case 'l':
        return f->low;
    default:
        return MEZZO_U8;
    }
}

// Parses a tensor's word and advances. Returns false where the tensor is absent.
static bool parse_tensor(const mz_bench_case *c, const formats *f, const char **p, mz_tensor *t) {
    const char kind = *(*p)++;
    mz_tensor is = {.dtype = dtype_of(kind, f)};
    while (**p != ' ' && **p != '\0')
        is.shape.dim[is.shape.rank++] = parse_dimension(c, p);
    if (kind == 's' || kind == 't')
        is.shape = (mz_shape){1, {kind == 's' ? sizeof(mz_segment) : sizeof(mz_opt_state)}};
    if (strchr("oOgde", kind) != NULL && mezzo_dtype_size(is.dtype) == 1) { // it has a scale
        is.scaling = MZ_SCALING_TENSOR;
        is.columnwise = strchr("Ode", kind) != NULL;
    }
    if (kind == '-' || (kind == 'b' && mezzo_dtype_size(f->dw) == 1) || (kind == 'c' && f->low == MEZZO_F32))
        return false;
    *t = is;
    return true;
}

static void parse_tensors(const mz_bench_case *c, const formats *f, mz_call *call) {
    bool outputs = false;
    int slot = 0;
    for (const char *p = c->op->tensors; *p != '\0'; p += *p == ' ') {
        if (*p == '>') {
            outputs = true;
            slot = 0;
            p++;
            continue;
        }
        if (parse_tensor(c, f, &p, outputs ? &call->out[slot] : &call->in[slot]))
            *(outputs ? &call->n_out : &call->n_in) = slot + 1;
        slot++;
    }
}

// Returns the bytes that an op without a count of operations moves.
static double moved_bytes(const mz_bench_case *c, const mz_call *call) {
    switch (call->op) {
    case MZ_OP_embedding: // it reads rows of the FP32 table, and in its gradient reads and writes them
        return 2.0 * 4 * (double)c->dim[0] * (double)c->dim[2];
    case MZ_OP_embedding_bwd:
        return 3.0 * 4 * (double)c->dim[0] * (double)c->dim[2];
    case MZ_OP_grad_stats:
        return 4.0 * (double)c->dim[0];
    case MZ_OP_adamw:
        return (16 + 12 + (mz_present(&call->out[3]) ? 2 : 0)) * (double)c->dim[0];
    default:
        return all_bytes(call);
    }
}

static void set_attrs(const mz_bench_case *c, const formats *f, mz_bench_call *b) {
    mz_attrs *a = &b->call.attrs;
    *a = c->op->attrs;
    if (b->call.op == MZ_OP_linear)
        a->via = f->low;
    if (a->causal) { // BxTxHxD, or BxTxHxKxD with K heads of keys and values
        a->heads = (int)c->dim[2];
        a->kv_heads = (int)c->dim[dims_of(c->op) == 5 ? 3 : 2];
    }
    if (b->call.op != MZ_OP_adamw)
        return;
    b->low_copy = f->low;
    b->update.rule = (mz_update_rule){.lr_factor = 1, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1};
    a->update = &b->update;
}

void mz_bench_make(const mz_bench_case *c, mezzo_precision precision, mz_bench_call *b) {
    const formats f = formats_of(precision);
    *b = (mz_bench_call){.call = {.op = c->op->op, .numerics = {MEZZO_F32, MEZZO_F32, MEZZO_F32}}};
    for (int i = 0; i < MZ_MAX_IN; i++)
        b->call.in[i].shape.rank = -1;
    for (int i = 0; i < MZ_MAX_OUT; i++)
        b->call.out[i].shape.rank = -1;
    parse_tensors(c, &f, &b->call);
    set_attrs(c, &f, b);
    if (!mz_bench_op_scored(c->op)) {
        b->work = moved_bytes(c, &b->call);
        return;
    }
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
// Fills with values of about a network's size. A pattern of prime length repeats, because to draw 10⁸ normal numbers
// would take longer than the rest.
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
    (void)mezzo_convert(values, MEZZO_F32, data, dtype, first / width); // it cannot fail for float formats
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
        fill_constant(slot == 0 ? 1.0F : 11.0F, data, bytes / sizeof(float)); // slot 0 is the loss's gradient, the
                                                                              // other one lse
    else if (c->op == MZ_OP_attention_bwd && slot == 5)
        fill_constant(6.0F, data, bytes / sizeof(float)); // lse
    else if (c->op == MZ_OP_layernorm_bwd && slot == 4)
        fill_constant(1.0F, data, bytes / sizeof(float)); // rstd
    else if (c->op == MZ_OP_adamw && output && slot == 2)
        fill_constant(1e-6F, data, bytes / sizeof(float)); // second moments
    else
        fill_floats(t->dtype, (uint32_t)slot, c->op == MZ_OP_adamw ? 0.02F : 1.0F, data, bytes);
}
