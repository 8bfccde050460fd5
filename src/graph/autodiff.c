// The autodiff pass walks the forward nodes backward and appends the nodes of one rule for each. A value's gradient has
// its shape and the gradient format that autocast chose. The gradient of a cast is a cast; the gradient of a cast with
// scales passes through unchanged. Parameter gradients are FP32; nodes add to them and never overwrite them.
#include "graph/compose.h"
#include "graph/tape.h"

mezzo_status mz_tape_value(tape *t, mz_shape shape, mezzo_dtype dtype, int *out) {
    mz_value v = {.kind = MZ_VALUE_TEMP, .dtype = dtype, .shape = shape, .producer = -1, .param = -1, .alias = -1};
    return mz_graph_value(t->g, v, out);
}

static mezzo_status new_like(tape *t, int v, int *out) {
    return mz_tape_value(t, *shape_of(t, v), dtype_of(t, v), out);
}

// Returns the format in which gradients of v are made and added.
static mezzo_dtype mz_grad_dtype(const tape *t, int v) {
    return is_param(t, v) ? MEZZO_F32 : t->g->values[v].gradient;
}

mezzo_status mz_tape_gradient(tape *t, int v, int *out) {
    return mz_tape_value(t, *shape_of(t, v), mz_grad_dtype(t, v), out);
}

// Returns a backward node with the forward node's module and numerics.
mz_node mz_tape_node(const tape *t, mz_op op) {
    mz_node n = *t->at;
    n.op = op;
    n.phase = MZ_BACKWARD;
    n.pinned = false;
    n.rule = "gradient: its value's format";
    n.n_in = n.n_out = 0;
    n.attrs.accumulate = false;
    n.attrs.via = MEZZO_F32;
    for (int i = 0; i < MZ_MAX_IN; ++i)
        n.in[i] = -1;
    for (int i = 0; i < MZ_MAX_OUT; ++i)
        n.out[i] = -1;
    return n;
}

mz_node mz_tape_reads(const tape *t, mz_op op, int n, const int *in) {
    mz_node node = mz_tape_node(t, op);
    for (int i = 0; i < n; i++)
        add_in(&node, in[i]);
    return node;
}

// Appends a node with one input whose output is a gradient of `like`.
static mezzo_status emit_unary(tape *t, mz_op op, const mz_attrs *attrs, int x, int like, int *out) {
    mz_node n = mz_tape_reads(t, op, 1, &x);
    if (attrs)
        n.attrs = *attrs;
    MEZZO_TRY(mz_tape_gradient(t, like, out));
    add_out(&n, *out);
    if (op == MZ_OP_reshape)
        t->g->values[*out].alias = x;
    return mz_graph_node(t->g, n, NULL);
}

static mezzo_status param_grad(tape *t, int v, int *out) {
    mezzo_graph *g = t->g;
    mz_param_spec *spec = &g->params[g->values[v].param];
    if (spec->grad < 0) {
        mz_value value = {.kind = MZ_VALUE_GRAD,
                          .dtype = MEZZO_F32,
                          .shape = spec->shape,
                          .producer = -1,
                          .param = g->values[v].param,
                          .alias = -1};
        MEZZO_TRY(mz_graph_value(g, value, &spec->grad));
    }
    *out = spec->grad;
    return MEZZO_OK;
}

// Adds `grad` to the gradient of v: to the parameter's, or to the value's sum.
mezzo_status mz_tape_deliver(tape *t, int v, int grad) {
    if (is_param(t, v)) {
        mz_node n = mz_tape_reads(t, MZ_OP_accumulate, 1, &grad);
        int out;
        MEZZO_TRY(param_grad(t, v, &out));
        n.attrs.accumulate = true;
        n.rule = "parameter gradients are fp32";
        add_out(&n, out);
        return mz_graph_node(t->g, n, NULL);
    }
    if (dtype_of(t, grad) != mz_grad_dtype(t, v)) {
        const int maker = t->g->values[v].producer;
        const mz_node *n = maker >= 0 ? &t->g->nodes[maker] : NULL;
        if (n && n->op == MZ_OP_cast && t->needs[n->in[0]] && mz_grad_dtype(t, n->in[0]) == dtype_of(t, grad))
            return mz_tape_deliver(t, n->in[0], grad); // a cast would round the gradient on its way to the parameter's
        int cast;
        MEZZO_TRY(emit_unary(t, MZ_OP_cast, NULL, grad, v, &cast));
        grad = cast;
    }
    if (t->grad[v] < 0) {
        t->grad[v] = grad;
        return MEZZO_OK;
    }
    mz_node n = mz_tape_reads(t, MZ_OP_add, 2, (int[]){t->grad[v], grad});
    int sum;
    MEZZO_TRY(mz_tape_gradient(t, v, &sum));
    add_out(&n, sum);
    t->grad[v] = sum;
    return mz_graph_node(t->g, n, NULL);
}

// Appends the node of dx of an op with one output; it reads dy and the inputs that the caller added.
mezzo_status mz_tape_dx(tape *t, mz_node n, int x) {
    int dx;
    MEZZO_TRY(mz_tape_gradient(t, x, &dx));
    n.out[0] = dx;
    n.n_out = n.n_out ? n.n_out : 1;
    MEZZO_TRY(mz_graph_node(t->g, n, NULL));
    return mz_tape_deliver(t, x, dx);
}

// Directs outputs that may be parameter gradients: all are written to the parameters' gradients, or all to values that
// are delivered later.
mezzo_status mz_tape_gradients(tape *t, mz_node n, int first_out, const int *targets, int count) {
    const mezzo_dtype wide = n.numerics.reduce == MEZZO_F64 ? MEZZO_F64 : MEZZO_F32; // the format that these slots are
                                                                                     // written in
    bool direct = true;
    for (int i = 0; i < count; ++i)
        direct = direct && (targets[i] < 0 || is_param(t, targets[i]));
    n.attrs.accumulate = direct;
    n.rule = direct ? "parameter gradients are fp32" : n.rule;
    n.n_out = first_out + count;
    for (int i = 0; i < count; ++i) {
        int *out = &n.out[first_out + i];
        if (targets[i] < 0)
            *out = -1;
        else if (direct)
            MEZZO_TRY(param_grad(t, targets[i], out));
        else
            MEZZO_TRY(mz_tape_value(t, *shape_of(t, targets[i]), wide, out));
    }
    MEZZO_TRY(mz_graph_node(t->g, n, NULL));
    for (int i = 0; !direct && i < count; ++i)
        if (targets[i] >= 0)
            MEZZO_TRY(mz_tape_deliver(t, targets[i], n.out[first_out + i]));
    return MEZZO_OK;
}

// Makes a view with the same elements in the same order.
static mezzo_status view_as(tape *t, int v, mz_shape shape, int *out) {
    mz_node view = mz_tape_reads(t, MZ_OP_reshape, 1, (int[]){v});
    MEZZO_TRY(mz_tape_value(t, shape, dtype_of(t, v), out));
    add_out(&view, *out);
    t->g->values[*out].alias = v;
    return mz_graph_node(t->g, view, NULL);
}

// Sums `grad`, which has a broadcast result's shape, over the dimensions that repeat v, and delivers it. Neighbouring
// dimensions that are summed, or are not, count as one. All sums but the last are values of the sums' own format.
static mezzo_status deliver_broadcast(tape *t, int v, int grad) {
    if (mz_shape_equal(shape_of(t, v), shape_of(t, grad)))
        return mz_tape_deliver(t, v, grad);
    mz_broadcast r = mz_broadcast_loops((const mz_shape *const[]){shape_of(t, v)}, 1, shape_of(t, grad));
    mz_shape shape = {.rank = r.rank};
    int sums = 0;
    for (int i = 0; i < r.rank; i++) {
        shape.dim[i] = r.dim[i];
        sums += r.step[0][i] == 0;
    }
    if (sums == 0) { // the shapes differ only in dimensions of 1
        MEZZO_TRY(view_as(t, grad, *shape_of(t, v), &grad));
        return mz_tape_deliver(t, v, grad);
    }
    for (int axis = 0, i = 0; i < r.rank; i++) {
        if (r.step[0][i] != 0) {
            axis++;
            continue;
        }
        if (axis == 0 && shape.rank == 1) // one sum over all elements
            shape = (mz_shape){2, {shape.dim[0], 1}};
        mz_node sum = mz_tape_node(t, MZ_OP_sum);
        int viewed;
        MEZZO_TRY(view_as(t, grad, shape, &viewed));
        sum.attrs.axis = axis;
        add_in(&sum, viewed);
        if (--sums == 0)
            return mz_tape_gradients(t, sum, 0, &v, 1);
        shape.rank--;
        for (int k = axis; k < shape.rank; k++)
            shape.dim[k] = shape.dim[k + 1];
        MEZZO_TRY(mz_tape_value(t, shape, t->at->numerics.reduce, &grad));
        add_out(&sum, grad);
        MEZZO_TRY(mz_graph_node(t->g, sum, NULL));
    }
    return MEZZO_OK;
}

static int target(const tape *t, int slot) {
    return needs(t, slot) ? t->at->in[slot] : -1;
}

// Adds an output for backward to the forward node under differentiation.
static mezzo_status save_output(tape *t, int slot, mz_shape shape, int *out) {
    mz_node *n = &t->g->nodes[t->node];
    if (slot < n->n_out && n->out[slot] >= 0) {
        *out = n->out[slot];
        return MEZZO_OK;
    }
    mezzo_dtype wide = n->numerics.reduce;
    MEZZO_TRY(mz_tape_value(t, shape, wide, out));
    n = &t->g->nodes[t->node];
    n->out[slot] = *out;
    if (n->n_out <= slot)
        n->n_out = slot + 1;
    t->g->values[*out].producer = t->node;
    t->g->values[*out].slot = slot;
    return MEZZO_OK;
}

// Finds dy as a gradient's products read it, in the format and with the scales that autocast chose for the node.
static mezzo_status gradient_operand(tape *t, int dy, int *out) {
    const mz_formats *f = &t->at->formats;
    *out = dy;
    if (f->gradient == dtype_of(t, dy) && f->scaling == MZ_SCALING_NONE)
        return MEZZO_OK;
    mz_node n = mz_tape_node(t, MZ_OP_cast);
    n.rule =
        f->scaling != MZ_SCALING_NONE ? "gradient: the product's operand, scaled" : "gradient: the product's operand";
    mz_formats operand = {
        .operand = f->gradient, .gradient = dtype_of(t, dy), .output = f->gradient, .scaling = f->scaling};
    return mz_graph_quantize(t->g, n, dy, operand, "dy", out);
}

// Returns the value that a product's weight gradient belongs to: with scales, the parameter that was quantized.
static int weight_target(const tape *t) {
    const int from = mz_graph_before_rounding(t->g, t->at->in[1]);
    return needs(t, 1) && is_param(t, from) ? from : target(t, 1);
}

// Emits a weight's gradient as a product, on the other product's operands or on those before rounding.
static mezzo_status emit_dw(tape *t, mz_op op, int read, int dy, int x, const int *targets, int count) {
    mz_node n = mz_tape_node(t, op);
    int operands[2] = {dy, mz_graph_before_rounding(t->g, x)};
    if (n.formats.plain_dw) {
        n.numerics.compute = n.formats.output;
        n.formats = (mz_formats){n.formats.output, n.formats.output, n.formats.output, MZ_SCALING_NONE, false};
    } else {
        MEZZO_TRY(mz_graph_columnwise(t->g, read, &operands[0]));
        MEZZO_TRY(mz_graph_columnwise(t->g, x, &operands[1]));
    }
    add_in(&n, operands[0]);
    add_in(&n, operands[1]);
    if (op == MZ_OP_grouped_linear_dw)
        add_in(&n, t->at->in[2]);
    return mz_tape_gradients(t, n, 0, targets, count);
}

// Lets the quantize of dy also compute the bias gradient.
static mezzo_status sum_quantized(tape *t, int quantized, int bias) {
    int out;
    MEZZO_TRY(param_grad(t, bias, &out));
    mz_node *n = &t->g->nodes[t->g->values[quantized].producer];
    n->attrs.accumulate = true;
    n->out[MZ_OUT(quantize, dbias)] = out;
    n->n_out = n->n_out > MZ_OUT(quantize, dbias) ? n->n_out : MZ_OUT(quantize, dbias) + 1;
    return MEZZO_OK;
}

// Builds gradients of products: linear and conv2d have x, w and a bias; grouped_linear has x, w and experts' first
// rows.
static mezzo_status mz_grad_product(tape *t, int dy, mz_op dx_op, mz_op dw_op) {
    int x = t->at->in[0], w = t->at->in[1], read = dy;
    if (needs(t, 0) || (needs(t, 1) && !t->at->formats.plain_dw))
        MEZZO_TRY(gradient_operand(t, dy, &read));
    if (needs(t, 0)) {
        MEZZO_TRY(mz_graph_columnwise(t->g, w, &w));
        mz_node n = mz_tape_reads(t, dx_op, 2, (int[]){read, w});
        if (dx_op == MZ_OP_linear_dx)
            add_in(&n, -1);
        if (dx_op == MZ_OP_grouped_linear_dx)
            add_in(&n, t->at->in[2]);
        MEZZO_TRY(mz_tape_dx(t, n, x));
    }
    int targets[2] = {weight_target(t), dx_op == MZ_OP_grouped_linear_dx ? -1 : target(t, 2)};
    // The bias gradient sums dy before the products round it.
    bool apart =
        targets[0] < 0 || dw_op == MZ_OP_grouped_linear_dw || read != dy || t->at->attrs.blocks != MEZZO_BLOCKS_NONE;
    if (targets[0] >= 0)
        MEZZO_TRY(emit_dw(t, dw_op, read, dy, x, targets, apart ? 1 : 2));
    if (read != dy && t->g->values[read].scaling != MZ_SCALING_NONE && targets[1] >= 0 && is_param(t, targets[1]))
        return sum_quantized(t, read, targets[1]);
    return apart && targets[1] >= 0 ? deliver_broadcast(t, targets[1], dy) : MEZZO_OK;
}
static mezzo_status mz_grad_linear(tape *t, int dy) {
    return mz_grad_product(t, dy, MZ_OP_linear_dx, MZ_OP_linear_dw);
}
static mezzo_status mz_grad_conv2d(tape *t, int dy) {
    return mz_grad_product(t, dy, MZ_OP_conv2d_dx, MZ_OP_conv2d_dw);
}
static mezzo_status mz_grad_grouped_linear(tape *t, int dy) {
    return mz_grad_product(t, dy, MZ_OP_grouped_linear_dx, MZ_OP_grouped_linear_dw);
}

static mezzo_status emit_matmul(tape *t, int a, int b, bool ta, bool tb, int like) {
    mz_node n = mz_tape_reads(t, MZ_OP_matmul, 2, (int[]){a, b});
    n.attrs.transpose_a = ta;
    n.attrs.transpose_b = tb;
    return mz_tape_dx(t, n, like);
}

// Builds the gradient of C = op(A)·op(B): d op(A) = dC·op(B)ᵀ, d op(B) = op(A)ᵀ·dC, transposed where the operand was.
static mezzo_status mz_grad_matmul(tape *t, int dy) {
    int a = t->at->in[0], b = t->at->in[1];
    bool ta = t->at->attrs.transpose_a, tb = t->at->attrs.transpose_b;
    if (needs(t, 0))
        MEZZO_TRY(ta ? emit_matmul(t, b, dy, tb, true, a) : emit_matmul(t, dy, b, false, !tb, a));
    if (needs(t, 1))
        MEZZO_TRY(tb ? emit_matmul(t, dy, a, true, ta, b) : emit_matmul(t, a, dy, !ta, false, b));
    return MEZZO_OK;
}

static mezzo_status mz_grad_add(tape *t, int dy) {
    if (needs(t, 0))
        MEZZO_TRY(deliver_broadcast(t, t->at->in[0], dy));
    return needs(t, 1) ? deliver_broadcast(t, t->at->in[1], dy) : MEZZO_OK;
}

static mezzo_status mz_grad_sub(tape *t, int dy) {
    if (needs(t, 0))
        MEZZO_TRY(deliver_broadcast(t, t->at->in[0], dy));
    if (!needs(t, 1))
        return MEZZO_OK;
    int negative;
    mz_node n = mz_tape_reads(t, MZ_OP_scale, 1, &dy);
    n.attrs = (mz_attrs){.alpha = -1, .via = MEZZO_F32};
    MEZZO_TRY(new_like(t, dy, &negative));
    add_out(&n, negative);
    MEZZO_TRY(mz_graph_node(t->g, n, NULL));
    return deliver_broadcast(t, t->at->in[1], negative);
}

// Builds the gradient of ops whose gradient is one node that reads dy alone, with the same attributes.
static mezzo_status mz_grad_same(tape *t, int dy, mz_op op) {
    int dx;
    MEZZO_TRY(emit_unary(t, op, &t->at->attrs, dy, t->at->in[0], &dx));
    return mz_tape_deliver(t, t->at->in[0], dx);
}
#define GRAD_SAME(op, gradient)                                                                                        \
    static mezzo_status mz_grad_##op(tape *t, int dy) {                                                                \
        return mz_grad_same(t, dy, MZ_OP_##gradient);                                                                  \
    }
GRAD_SAME(scale, scale)
GRAD_SAME(dropout, dropout)
GRAD_SAME(reshape, reshape)
GRAD_SAME(upsample, pool)
GRAD_SAME(pool, upsample)
static mezzo_status mz_grad_cast(tape *t, int dy) {
    // A parameter's gradient takes any dtype. Rounding and scales have no derivative, so the gradient passes straight
    // through.
    if (is_param(t, t->at->in[0]) || t->g->values[t->at->out[0]].scaling != MZ_SCALING_NONE)
        return mz_tape_deliver(t, t->at->in[0], dy);
    return mz_grad_same(t, dy, MZ_OP_cast);
}

// Builds the gradient of ops whose gradient reads dy and one saved value.
static mezzo_status mz_grad_with(tape *t, mz_op op, int dy, int saved) {
    mz_node n = mz_tape_reads(t, op, 2, (int[]){dy, saved});
    return mz_tape_dx(t, n, t->at->in[0]);
}
#define GRAD_WITH(op, gradient, saved)                                                                                 \
    static mezzo_status mz_grad_##op(tape *t, int dy) {                                                                \
        return mz_grad_with(t, MZ_OP_##gradient, dy, saved);                                                           \
    }
GRAD_WITH(gelu, gelu_dx, t->at->in[0])
GRAD_WITH(exp, mul, t->at->out[0])
GRAD_WITH(softmax, softmax_dx, t->at->out[0])

// Defines the rule of an op without a gradient.
#define GRAD_NONE(op)                                                                                                  \
    static mezzo_status mz_grad_##op(tape *t, int dy) {                                                                \
        return (void)t, (void)dy, MEZZO_OK;                                                                            \
    }

// --- element.def ---------------------------------------------------------------------------------------------------
// Builds the gradient of operand `slot`, by an op that reads dy and `saved`.
static mezzo_status mz_grad_operand(tape *t, mz_op op, int slot, int dy, const int *saved, int n_saved) {
    if (!needs(t, slot))
        return MEZZO_OK;
    mz_node n = mz_tape_reads(t, op, 1, &dy);
    int d;
    for (int i = 0; i < n_saved; i++)
        add_in(&n, saved[i]);
    MEZZO_TRY(new_like(t, dy, &d));
    add_out(&n, d);
    MEZZO_TRY(mz_graph_node(t->g, n, NULL));
    return deliver_broadcast(t, t->at->in[slot], d);
}

static mezzo_status mz_grad_operands(tape *t, mz_op da, mz_op db, int dy, const int *saved, int n_saved) {
    MEZZO_TRY(mz_grad_operand(t, da, 0, dy, saved, n_saved));
    return mz_grad_operand(t, db, 1, dy, saved, n_saved);
}

static mezzo_status mz_grad_mul(tape *t, int dy) {
    MEZZO_TRY(mz_grad_operand(t, MZ_OP_mul, 0, dy, &t->at->in[1], 1));
    return mz_grad_operand(t, MZ_OP_mul, 1, dy, &t->at->in[0], 1);
}

#define SAVED_x                       in[0]
#define SAVED_y                       out[0]
#define UNARY(name, told, saved, ...) GRAD_WITH(name, name##_dx, t->at->SAVED_##saved)
#define UNARY_OWN(...)
#define UNARY_FLAT(name, ...) GRAD_NONE(name)
#define BINARY(name, ...)                                                                                              \
    static mezzo_status mz_grad_##name(tape *t, int dy) {                                                              \
        return mz_grad_operands(t, MZ_OP_##name##_da, MZ_OP_##name##_db, dy, t->at->in, 2);                            \
    }
#define BINARY_OWN(...)
#define COMPARE(name, ...) GRAD_NONE(name)
#define TERNARY(name, ...)                                                                                             \
    static mezzo_status mz_grad_##name(tape *t, int dy) {                                                              \
        return mz_grad_operands(t, MZ_OP_##name##_da, MZ_OP_##name##_db, dy, &t->at->in[2], 1);                        \
    }
#include "graph/element.def"

static mezzo_status mz_grad_layernorm(tape *t, int dy) {
    int x = t->at->in[0], mean, rstd;
    mz_shape rows = {1, {mz_shape_rows(shape_of(t, x))}};
    MEZZO_TRY(save_output(t, 1, rows, &mean));
    MEZZO_TRY(save_output(t, 2, rows, &rstd));
    mz_node n = mz_tape_reads(t, MZ_OP_layernorm_bwd, 6, (int[]){dy, x, t->at->in[1], mean, rstd, -1});
    int dx;
    MEZZO_TRY(mz_tape_gradient(t, x, &dx));
    n.out[0] = dx;
    int targets[2] = {target(t, 1), target(t, 2)};
    MEZZO_TRY(mz_tape_gradients(t, n, 1, targets, 2));
    return needs(t, 0) ? mz_tape_deliver(t, x, dx) : MEZZO_OK;
}

static mezzo_status mz_grad_rmsnorm(tape *t, int dy) {
    int x = t->at->in[0], weight = target(t, 1), rstd, dx;
    MEZZO_TRY(save_output(t, 1, (mz_shape){1, {mz_shape_rows(shape_of(t, x))}}, &rstd));
    mz_node n = mz_tape_reads(t, MZ_OP_rmsnorm_bwd, 5, (int[]){dy, x, t->at->in[1], rstd, -1});
    MEZZO_TRY(mz_tape_gradient(t, x, &dx));
    n.out[0] = dx;
    MEZZO_TRY(mz_tape_gradients(t, n, 1, &weight, 1));
    return needs(t, 0) ? mz_tape_deliver(t, x, dx) : MEZZO_OK;
}

static mezzo_status mz_grad_group_norm(tape *t, int dy) {
    const int *in = t->at->in, x = in[0];
    const mz_shape groups = {2, {shape_of(t, x)->dim[0], t->at->attrs.groups}};
    int statistics[2];
    for (int i = 0; i < 2; i++)
        MEZZO_TRY(save_output(t, 1 + i, groups, &statistics[i]));
    mz_node n = mz_tape_reads(t, MZ_OP_group_norm_bwd, 1, &dy);
    for (int i = 0; i < 4; i++)
        add_in(&n, in[i]);
    add_in(&n, statistics[0]);
    add_in(&n, statistics[1]);
    MEZZO_TRY(mz_tape_gradient(t, x, &n.out[0]));
    if (needs(t, 3))
        MEZZO_TRY(mz_tape_gradient(t, in[3], &n.out[1]));
    const int dx = n.out[0], dfilm = n.out[1], targets[2] = {target(t, 1), target(t, 2)};
    MEZZO_TRY(mz_tape_gradients(t, n, 2, targets, 2));
    if (dfilm >= 0)
        MEZZO_TRY(mz_tape_deliver(t, in[3], dfilm));
    return needs(t, 0) ? mz_tape_deliver(t, x, dx) : MEZZO_OK;
}

GRAD_NONE(time_embedding)
GRAD_NONE(normal)
GRAD_NONE(rope_table)
// Builds the gradient of a rotation: its transpose is the inverse rotation.
static mezzo_status mz_grad_rope(tape *t, int dy) {
    mz_node n = mz_tape_reads(t, MZ_OP_rope, 2, (int[]){dy, t->at->in[1]});
    n.attrs.inverse = !n.attrs.inverse;
    return mz_tape_dx(t, n, t->at->in[0]);
}

GRAD_WITH(swiglu, swiglu_dx, t->at->in[0])

static mezzo_status mz_grad_route(tape *t, int dy) {
    if (!needs(t, 0))
        return MEZZO_OK;
    mz_node n = mz_tape_reads(t, MZ_OP_route_dx, 3, (int[]){dy, t->at->in[0], t->at->out[1]});
    return mz_tape_dx(t, n, t->at->in[0]); // the bias has no derivative: it only decides which experts are chosen
}

GRAD_NONE(expert_order)
// Builds the gradients of dispatch and combine, which are each other's.
static mezzo_status mz_grad_dispatch(tape *t, int dy) {
    mz_node n = mz_tape_reads(t, MZ_OP_combine, 3, (int[]){dy, t->at->in[1], t->at->in[2]});
    return mz_tape_dx(t, n, t->at->in[0]);
}

static mezzo_status mz_grad_combine(tape *t, int dy) {
    bool weighted = mz_node_in(t->at, 3) >= 0;
    if (needs(t, 3)) {
        mz_node n = mz_tape_reads(t, MZ_OP_combine_dw, 3, (int[]){dy, t->at->in[0], t->at->in[2]});
        MEZZO_TRY(mz_tape_dx(t, n, t->at->in[3]));
    }
    if (!needs(t, 0))
        return MEZZO_OK;
    mz_node n = mz_tape_node(t, MZ_OP_dispatch); // stands directly before its reader
    add_in(&n, dy);
    for (int i = 1; i < (weighted ? 4 : 3); ++i)
        add_in(&n, t->at->in[i]);
    return mz_tape_dx(t, n, t->at->in[0]);
}

static mezzo_status mz_grad_embedding(tape *t, int dy) {
    mz_node n = mz_tape_reads(t, MZ_OP_embedding_bwd, 2, (int[]){dy, t->at->in[1]});
    return mz_tape_gradients(t, n, 0, &t->at->in[0], 1);
}

static mezzo_status mz_grad_attention(tape *t, int dy) {
    int q = t->at->in[0], lse;
    const mz_shape *y = shape_of(t, t->at->out[0]);
    MEZZO_TRY(save_output(t, 1, (mz_shape){3, {y->dim[0], t->at->attrs.heads, y->dim[1]}}, &lse));
    const int parts = mz_node_in(t->at, 1) >= 0 ? 3 : 1, k = parts > 1 ? t->at->in[1] : -1,
              v = parts > 1 ? t->at->in[2] : -1;
    mz_node n = mz_tape_reads(t, MZ_OP_attention_bwd, 6, (int[]){dy, q, k, v, t->at->out[0], lse});
    if (t->at->n_in > 3)
        add_in(&n, t->at->in[3]);
    n.n_out = 3;
    for (int i = 0; i < parts; ++i)
        MEZZO_TRY(mz_tape_gradient(t, t->at->in[i], &n.out[i]));
    MEZZO_TRY(mz_graph_node(t->g, n, NULL));
    for (int i = 0; i < parts; ++i)
        if (needs(t, i))
            MEZZO_TRY(mz_tape_deliver(t, t->at->in[i], n.out[i]));
    return MEZZO_OK;
}

static mezzo_status mz_grad_attention_masked(tape *t, int dy) {
    mz_node n = mz_tape_reads(t, MZ_OP_attention_masked_bwd, 1, &dy);
    for (int i = 0; i < 4; i++)
        add_in(&n, t->at->in[i]);
    n.n_out = 4;
    for (int i = 0; i < 4; i++)
        if (needs(t, i))
            MEZZO_TRY(mz_tape_gradient(t, t->at->in[i], &n.out[i]));
    MEZZO_TRY(mz_graph_node(t->g, n, NULL));
    for (int i = 0; i < 4; i++)
        if (needs(t, i))
            MEZZO_TRY(mz_tape_deliver(t, t->at->in[i], n.out[i]));
    return MEZZO_OK;
}

static mezzo_status mz_grad_attention_cached(tape *t, int dy) {
    (void)t, (void)dy;
    return mz_fail(MEZZO_ERR_UNSUPPORTED, "attention_cached has no gradient: a graph for generating runs forward only");
}

static mezzo_status mz_grad_cross_entropy(tape *t, int dy) {
    int lse;
    MEZZO_TRY(save_output(t, 1, (mz_shape){1, {mz_shape_count(shape_of(t, t->at->in[1]))}}, &lse));
    mz_node n = mz_tape_reads(t, MZ_OP_cross_entropy_dx, 4, (int[]){dy, t->at->in[0], t->at->in[1], lse});
    return mz_tape_dx(t, n, t->at->in[0]);
}

static mezzo_status mz_grad_mse(tape *t, int dy) {
    for (int i = 0; i < 2; i++) {
        if (!needs(t, i))
            continue;
        mz_node n = mz_tape_reads(t, MZ_OP_mse_dx, 3, (int[]){dy, t->at->in[i], t->at->in[1 - i]});
        MEZZO_TRY(mz_tape_dx(t, n, t->at->in[i]));
    }
    return MEZZO_OK;
}

GRAD_NONE(arange)
GRAD_NONE(constant)
GRAD_NONE(argmax)
// Each forward op has one rule: without its grad_ function an op of ops.def does not compile.
typedef mezzo_status (*gradient_rule)(tape *t, int dy);
#define OP(name, ...) [MZ_OP_##name] = mz_grad_##name,
#define OP_BACKWARD(name, ...)
#define OP_STATE(name, ...)
static const gradient_rule gradient_rules[MZ_OP_COUNT] = {
#include "graph/ops.def"
    [MZ_OP_quantize] = mz_grad_cast, // autocast may put it in before there are gradients
};

// Adds the product of the loss scale and the input "loss_share".
static mezzo_status add_share(tape *t, int *scale) {
    mezzo_graph *g = t->g;
    mz_value v = {
        .kind = MZ_VALUE_INPUT, .dtype = MEZZO_F32, .shape = {1, {1}}, .producer = -1, .param = -1, .alias = -1};
    mz_node n = mz_tape_node(t, MZ_OP_mul);
    n.rule = "loss scale x the micro batch's share, fp32";
    n.numerics = (mz_numerics){MEZZO_F32, MEZZO_F32, MEZZO_F32};
    v.name = mz_format("loss_share");
    if (v.name == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    add_in(&n, *scale);
    int share;
    MEZZO_TRY(mz_graph_value(g, v, &share));
    add_in(&n, share);
    MEZZO_TRY(mz_tape_value(t, v.shape, MEZZO_F32, &n.out[0]));
    n.n_out = 1;
    *scale = n.out[0];
    return mz_graph_node(g, n, NULL);
}

static mezzo_status seed(tape *t, bool shared) {
    mezzo_graph *g = t->g;
    mz_value v = {
        .kind = MZ_VALUE_SCALE, .dtype = MEZZO_F32, .shape = {1, {1}}, .producer = -1, .param = -1, .alias = -1};
    MEZZO_TRY(mz_graph_value(g, v, &g->scale));
    mz_node at = g->nodes[g->values[g->loss].producer];
    t->at = &at;
    int scale = g->scale;
    if (shared)
        MEZZO_TRY(add_share(t, &scale));
    mz_node n = mz_tape_node(t, MZ_OP_scale);
    n.attrs.alpha = t->weight;
    n.rule = "d loss: loss scale x weight, fp32";
    n.numerics = (mz_numerics){MEZZO_F32, MEZZO_F32, MEZZO_F32};
    add_in(&n, scale);
    mz_shape shape = *shape_of(t, g->loss);
    mezzo_dtype wide = dtype_of(t, g->loss) == MEZZO_F64 ? MEZZO_F64 : MEZZO_F32;
    MEZZO_TRY(mz_tape_value(t, shape, wide, &n.out[0]));
    n.n_out = 1;
    MEZZO_TRY(mz_graph_node(g, n, NULL));
    t->grad[g->loss] = n.out[0];
    if (dtype_of(t, g->loss) != wide) {
        MEZZO_TRY(emit_unary(t, MZ_OP_cast, NULL, n.out[0], g->loss, &t->grad[g->loss]));
    }
    return MEZZO_OK;
}

// Marks values that depend on a trained parameter.
static void mark_needs(tape *t) {
    mezzo_graph *g = t->g;
    for (size_t i = 0; i < g->n_values; ++i)
        t->needs[i] = t->needs[i] || (is_param(t, (int)i) && !g->params[g->values[i].param].frozen);
    for (size_t i = 0; i < g->n_nodes; ++i) {
        bool any = false;
        for (int k = 0; k < g->nodes[i].n_in; ++k)
            any = any || (g->nodes[i].in[k] >= 0 && t->needs[g->nodes[i].in[k]]);
        for (int k = 0; k < g->nodes[i].n_out; ++k)
            if (g->nodes[i].out[k] >= 0)
                t->needs[g->nodes[i].out[k]] = any;
    }
}

static mezzo_status open_tape(tape *t) {
    const size_t n = t->g->n_values + 1;
    MEZZO_TRY(MZ_NEW(t->grad, n));
    MEZZO_TRY(MZ_NEW(t->needs, n));
    for (size_t i = 0; i < n; ++i)
        t->grad[i] = -1;
    return MEZZO_OK;
}

// Appends the gradients of the first n_forward nodes, whose values are the first n_values.
static mezzo_status walk_backward(tape *t, size_t n_forward, size_t n_values) {
    for (size_t i = n_forward; i-- > 0;) {
        mz_node at = t->g->nodes[i];
        int dy = -1;
        bool wanted = false;
        for (int k = 0; k < at.n_in; ++k)
            wanted = wanted || (at.in[k] >= 0 && t->needs[at.in[k]]);
        for (int k = 0; k < at.n_out && dy < 0; ++k)
            if (at.out[k] >= 0 && (size_t)at.out[k] < n_values)
                dy = t->grad[at.out[k]];
        if (dy < 0 || !wanted)
            continue;
        t->at = &at;
        t->node = (int)i;
        MEZZO_TRY(gradient_rules[at.op](t, dy));
    }
    return MEZZO_OK;
}

mezzo_status mz_pass_autodiff(mezzo_graph *g, const mz_target *target) {
    const mezzo_program_options *options = target->options;
    tape t = {.g = g, .weight = options->loss_weight == 0 ? 1.0f : options->loss_weight};
    mezzo_status status;
    if (options->forward_only)
        return MEZZO_OK;
    if (g->loss < 0)
        return mz_fail(MEZZO_ERR_INVALID, "the graph has no loss (mezzo_graph_loss): nothing to differentiate");
    if (g->values[g->loss].producer < 0)
        return mz_fail(MEZZO_ERR_INVALID, "the loss is not computed by any op: nothing to differentiate");
    size_t n_forward = g->n_nodes, n_values = g->n_values;
    MEZZO_TRY_GOTO(status, open_tape(&t));
    mark_needs(&t);
    if (!t.needs[g->loss]) {
        status =
            mz_fail(MEZZO_ERR_INVALID, "the loss depends on no parameter that is trained: nothing to differentiate");
        goto fail;
    }
    MEZZO_TRY_GOTO(status, seed(&t, options->loss_share));
    status = walk_backward(&t, n_forward, n_values);
fail:
    MZ_FREE(t.grad, t.needs);
    return status;
}

mezzo_status mz_graph_pull_back(mezzo_graph *g, int y, int dy, int n, const int *wanted, int *gradient) {
    tape t = {.g = g, .weight = 1};
    const size_t n_values = g->n_values;
    mezzo_status status;
    MEZZO_TRY_GOTO(status, open_tape(&t));
    for (size_t i = 0; i < n_values; ++i)
        g->values[i].gradient = g->values[i].dtype;
    for (int i = 0; i < n; ++i)
        t.needs[wanted[i]] = true;
    mark_needs(&t);
    t.grad[y] = dy;
    status = walk_backward(&t, g->n_nodes, n_values);
    for (int i = 0; i < n; ++i)
        gradient[i] = t.grad[wanted[i]];
fail:
    MZ_FREE(t.grad, t.needs);
    return status;
}
