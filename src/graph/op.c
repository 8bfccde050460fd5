// Holds the op table of ops.def, and shapes.
#include "graph/op.h"
#include "graph/compose.h"
#include "graph/flops.h"

#define MZ_SLOT(name, is) {#name, is},
#define OP(name, inputs, outputs, ...)                                                                                 \
    static const mz_slot name##_in[] = {inputs{"", 0}}, name##_out[] = {outputs{"", 0}};
#define OP_BACKWARD OP
#define OP_STATE    OP
#include "graph/ops.def"
#undef OP
#undef OP_BACKWARD
#undef OP_STATE
#undef MZ_SLOT

#define LOW      MZ_CAST_LOW
#define FP32     MZ_CAST_FP32
#define WIDEST   MZ_CAST_WIDEST
#define FOLLOW   MZ_CAST_FOLLOW
#define INT      MZ_CAST_INT
#define EXPLICIT MZ_CAST_EXPLICIT
#define EXACT    MZ_TOL_EXACT
#define ROUND    MZ_TOL_ROUND
#define ELEMENT  MZ_TOL_ELEMENT
#define REDUCE   MZ_TOL_REDUCE
#define MATMUL   MZ_TOL_MATMUL
#define ROW(op, of, saves, cls, ...)                                                                                   \
    [MZ_OP_##op] = {.name = #op,                                                                                       \
                    .kind = MZ_KIND_##of,                                                                              \
                    .in = op##_in,                                                                                     \
                    .out = op##_out,                                                                                   \
                    .n_in = (int)sizeof(struct mz_in_##op) - 1,                                                        \
                    .n_out = (int)sizeof(struct mz_out_##op) - 1,                                                      \
                    .saved = saves,                                                                                    \
                    .cast_class = cls,                                                                                 \
                    .tolerance = __VA_ARGS__},
#define OP(name, in, out, saved, shape, cls, ...) ROW(name, FORWARD, saved, cls, __VA_ARGS__)
#define OP_BACKWARD(name, in, out, ...)           ROW(name, BACKWARD, "", MZ_CAST_NONE, __VA_ARGS__)
#define OP_STATE(name, in, out, ...)              ROW(name, STATE, "", MZ_CAST_NONE, __VA_ARGS__)
const mz_op_info mz_op_table[MZ_OP_COUNT] = {
#include "graph/ops.def"
};

mz_slot mz_op_slot(mz_op op, bool output, int index) {
    const mz_op_info *info = &mz_op_table[op];
    const mz_slot *slots = output ? info->out : info->in;
    int n = output ? info->n_out : info->n_in;
    if (index < n)
        return slots[index];
    return n > 0 && slots[n - 1].is & MZ_SLOT_REPEATED ? slots[n - 1] : slots[n];
}

int mz_op_find_slot(mz_op op, bool output, const char *name) {
    const mz_slot *slots = output ? mz_op_table[op].out : mz_op_table[op].in;
    for (int i = 0; *slots[i].name != '\0'; i++)
        if (strcmp(slots[i].name, name) == 0)
            return i;
    return -1;
}

int mz_op_reuses(mz_op op) {
    const mz_op_info *info = &mz_op_table[op];
    for (int i = 0; i < info->n_in; i++)
        if (info->in[i].is & MZ_SLOT_REPLACED)
            return i;
    return -1;
}

int mz_op_replaces(mz_op op) {
    const mz_op_info *info = &mz_op_table[op];
    for (int i = 0; i < info->n_out; i++)
        if (info->out[i].is & MZ_SLOT_REPLACES)
            return i;
    return 0;
}

int64_t mz_shape_count(const mz_shape *s) {
    int64_t n = 1;
    for (int i = 0; i < s->rank; ++i)
        n *= s->dim[i];
    return n;
}

bool mz_shape_equal(const mz_shape *a, const mz_shape *b) {
    if (a->rank != b->rank)
        return false;
    for (int i = 0; i < a->rank; ++i)
        if (a->dim[i] != b->dim[i])
            return false;
    return true;
}

// Returns the dimension of `s` that is aligned with the i-th of `of`; 1 where the shape has none.
static int64_t beside(const mz_shape *s, const mz_shape *of, int i) {
    int k = i - of->rank + s->rank;
    return k < 0 ? 1 : s->dim[k];
}

bool mz_shape_broadcast(const mz_shape *a, const mz_shape *b, mz_shape *out) {
    *out = a->rank >= b->rank ? *a : *b;
    for (int i = 0; i < out->rank; i++) {
        int64_t x = beside(a, out, i), y = beside(b, out, i);
        if (x != y && x != 1 && y != 1)
            return false;
        out->dim[i] = x == 1 ? y : x;
    }
    return true;
}

mz_broadcast mz_broadcast_loops(const mz_shape *const in[], int n, const mz_shape *out) {
    mz_broadcast r = {.rank = 0};
    for (int i = 0; i < out->rank; i++) {
        const int last = r.rank - 1;
        bool alike = last >= 0;
        if (out->dim[i] == 1)
            continue;
        for (int k = 0; k < n; k++)
            alike = alike && (r.step[k][last] != 0) == (beside(in[k], out, i) != 1);
        if (alike) {
            r.dim[last] *= out->dim[i];
            continue;
        }
        r.dim[r.rank] = out->dim[i];
        for (int k = 0; k < n; k++)
            r.step[k][r.rank] = beside(in[k], out, i) != 1;
        r.rank++;
    }
    if (r.rank == 0)
        r = (mz_broadcast){.rank = 1, .dim = {1}, .step = {{1}, {1}, {1}}};
    for (int k = 0; k < n; k++) { // turns flags into strides
        int64_t stride = 1;
        for (int i = r.rank - 1; i >= 0; i--) {
            const bool has = r.step[k][i] != 0;
            r.step[k][i] = has ? stride : 0;
            stride *= has ? r.dim[i] : 1;
        }
    }
    return r;
}

int64_t mz_broadcast_whole(const mz_broadcast *r) {
    const int64_t *b = r->step[1];
    for (int i = 0; i < r->rank; i++)
        if (r->step[0][i] == 0)
            return 0;
    if (r->rank == 1)
        return b[0] != 0 ? r->dim[0] : 1;
    return r->rank == 2 && b[0] == 0 && b[1] != 0 ? r->dim[1] : 0;
}

mz_permuted mz_shape_permute(const mz_shape *from, const int *permutation) {
    mz_permuted p = {.rank = 0};
    int64_t stride[MEZZO_MAX_RANK] = {0}, n = 1;
    for (int i = from->rank - 1; i >= 0; n *= from->dim[i--])
        stride[i] = n;
    for (int i = 0; i < from->rank; i++) {
        int64_t dim = from->dim[permutation[i]], step = stride[permutation[i]];
        int last = p.rank - 1;
        if (dim == 1)
            continue;
        if (last >= 0 && p.stride[last] == dim * step) {
            p.dim[last] *= dim;
            p.stride[last] = step;
            continue;
        }
        p.dim[p.rank] = dim;
        p.stride[p.rank++] = step;
    }
    return p.rank > 0 ? p : (mz_permuted){.rank = 1, .dim = {1}, .stride = {1}};
}

const char *mz_shape_text(const mz_shape *s, char *buf, size_t size) {
    size_t len = 0;
    if (size)
        buf[0] = 0;
    if (s->rank == 0)
        snprintf(buf, size, "scalar");
    for (int i = 0; i < s->rank && len < size; ++i) {
        int n = snprintf(buf + len, size - len, "%s%lld", i ? "x" : "", (long long)s->dim[i]);
        len += n > 0 ? (size_t)n : 0;
    }
    return buf;
}

mz_op mz_act_op(mz_act act, bool gradient) {
    static const mz_op ops[][2] = {
        [MZ_ACT_NONE] = {MZ_OP_COUNT, MZ_OP_COUNT},  [MZ_ACT_RELU] = {MZ_OP_relu, MZ_OP_relu_dx},
        [MZ_ACT_GELU] = {MZ_OP_gelu, MZ_OP_gelu_dx}, [MZ_ACT_GELU_TANH] = {MZ_OP_gelu, MZ_OP_gelu_dx},
        [MZ_ACT_SILU] = {MZ_OP_silu, MZ_OP_silu_dx}, [MZ_ACT_SWIGLU] = {MZ_OP_swiglu, MZ_OP_swiglu_dx}};
    return ops[act][gradient];
}

mz_shape mz_quantized_shape(mz_act act, const mz_shape *x, const mz_shape *preact) {
    mz_shape z = act == MZ_ACT_SWIGLU && preact != NULL ? *preact : *x;
    if (act == MZ_ACT_SWIGLU && preact == NULL)
        z.dim[z.rank - 1] /= 2;
    return z;
}

int64_t mz_shape_rows(const mz_shape *s) {
    int64_t n = 1;
    for (int i = 0; i + 1 < s->rank; ++i)
        n *= s->dim[i];
    return n;
}

static int64_t blocks_in(int64_t n, int64_t block) {
    return (n + block - 1) / block;
}

void mz_scale_extent(const mz_tensor *t, int64_t *rows, int64_t *columns) {
    const mz_scaling_info *info = &mz_scalings[t->scaling];
    *rows = t->columnwise ? info->columns : info->rows;
    *columns = t->columnwise ? info->rows : info->columns;
}

int64_t mz_scale_count(const mz_tensor *t) {
    int64_t down, across;
    if (!mz_scaling_in_blocks(t->scaling) || t->shape.rank == 0)
        return t->scaling != MZ_SCALING_NONE;
    const int64_t columns = t->shape.dim[t->shape.rank - 1], rows = mz_shape_rows(&t->shape);
    mz_scale_extent(t, &down, &across);
    return down == across ? blocks_in(rows, down) * blocks_in(columns, across)
           : down == 1    ? blocks_in(columns, across) * mz_scale_pitch(rows)
                          : blocks_in(rows, down) * mz_scale_pitch(columns);
}

int64_t mz_scale_index(const mz_tensor *t, int64_t element) {
    int64_t down, across;
    if (!mz_scaling_in_blocks(t->scaling) || t->shape.rank == 0)
        return 0;
    const int64_t columns = t->shape.dim[t->shape.rank - 1], row = element / columns, column = element % columns;
    mz_scale_extent(t, &down, &across);
    return down == across ? row / down * blocks_in(columns, across) + column / across
           : down == 1    ? column / across * mz_scale_pitch(mz_shape_rows(&t->shape)) + row
                          : row / down * mz_scale_pitch(columns) + column;
}
