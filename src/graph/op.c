// The op table, from ops.def, and shapes.
#include "graph/op.h"

#define LOW                                MZ_CAST_LOW
#define FP32                               MZ_CAST_FP32
#define WIDEST                             MZ_CAST_WIDEST
#define FOLLOW                             MZ_CAST_FOLLOW
#define INT                                MZ_CAST_INT
#define EXPLICIT                           MZ_CAST_EXPLICIT
#define OP(name, in, out, saved, cls, tol) [MZ_OP_##name] = {#name, in, out, saved, cls, MZ_TOL_##tol, MZ_KIND_FORWARD},
#define OP_BACKWARD(name, in, out, tol)                                                                                \
    [MZ_OP_##name] = {#name, in, out, "", MZ_CAST_NONE, MZ_TOL_##tol, MZ_KIND_BACKWARD},
#define OP_STATE(name, in, out, tol) [MZ_OP_##name] = {#name, in, out, "", MZ_CAST_NONE, MZ_TOL_##tol, MZ_KIND_STATE},
const mz_op_info mz_op_table[MZ_OP_COUNT] = {
#include "graph/ops.def"
};

int mz_op_slots(mz_op op, bool outputs, mz_slot slots[MZ_MAX_IN]) {
    const char *s = outputs ? mz_op_table[op].outputs : mz_op_table[op].inputs;
    int n = 0;
    memset(slots, 0, MZ_MAX_IN * sizeof *slots);
    while (*s) {
        size_t len = strcspn(s, " ");
        size_t name = strcspn(s, " ?*+");
        mz_slot *slot = &slots[n++];
        memcpy(slot->name, s, name);
        slot->optional = memchr(s, '?', len) != NULL;
        slot->repeated = memchr(s, '*', len) != NULL;
        slot->gradient = memchr(s, '+', len) != NULL;
        s += len;
        s += strspn(s, " ");
    }
    int listed = n;
    if (n > 0 && slots[n - 1].repeated)
        for (; n < MZ_MAX_IN; ++n)
            slots[n] = slots[n - 1];
    return listed;
}

bool mz_slot_integer(const char *name) {
    static const char *const names[] = {"ids", "targets", "positions", "indices", "order", "place", "offsets"};
    for (size_t i = 0; i < MZ_COUNT(names); ++i)
        if (!strcmp(name, names[i]))
            return true;
    return false;
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

int64_t mz_shape_rows(const mz_shape *s) {
    int64_t n = 1;
    for (int i = 0; i + 1 < s->rank; ++i)
        n *= s->dim[i];
    return n;
}

int mz_op_reuses(mz_op op) {
    switch (op) {
    case MZ_OP_add:
    case MZ_OP_mul:
    case MZ_OP_scale:
    case MZ_OP_relu:
    case MZ_OP_gelu:
    case MZ_OP_silu:
    case MZ_OP_dropout:
    case MZ_OP_rope:
    case MZ_OP_relu_dx:
    case MZ_OP_gelu_dx:
    case MZ_OP_silu_dx:
        return 0;
    case MZ_OP_cross_entropy_dx:
        return 1; // logits: a row is read whole before its gradient is written
    default:
        return -1;
    }
}
