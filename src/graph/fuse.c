// The fuse pass saves launches and bytes and keeps the values. A narrowing cast moves into the op that makes its input,
// which rounds the same FP32 number. A widening cast moves into the ops that read it, because the conversion is exact.
// Activation, residual and gradient sums move into the neighbouring matmul or norm, which rounds between them
// (attrs.via) as the separate ops do.
#include "graph/graph.h"

typedef struct fuse {
    mezzo_graph *g;
    int *uses;  // per value: consumers, + 1 if kept
    bool *dead; // per node
} fuse;

static mz_value *value(fuse *f, int v) {
    return &f->g->values[v];
}
static int uses_of(const fuse *f, int v) {
    return f->uses[v];
}

// The living node whose output `slot` is v; else NULL.
static mz_node *maker(fuse *f, int v, int slot) {
    const mz_value *x = value(f, v);
    if (x->kind != MZ_VALUE_TEMP || x->producer < 0 || x->slot != slot || f->dead[x->producer])
        return NULL;
    return &f->g->nodes[x->producer];
}

static void kill(fuse *f, mz_node *n) {
    f->dead[n - f->g->nodes] = true;
    for (int k = 0; k < n->n_in; ++k)
        if (n->in[k] >= 0)
            --f->uses[n->in[k]];
}

static void set_input(fuse *f, mz_node *n, int slot, int v) {
    if (slot < n->n_in && n->in[slot] >= 0)
        --f->uses[n->in[slot]];
    while (n->n_in <= slot)
        n->in[n->n_in++] = -1;
    n->in[slot] = v;
    ++f->uses[v];
}

static void set_output(fuse *f, mz_node *n, int slot, int v) {
    while (n->n_out <= slot)
        n->out[n->n_out++] = -1;
    n->out[slot] = v;
    value(f, v)->producer = (int)(n - f->g->nodes);
    value(f, v)->slot = slot;
}

// Products have kernels for one low format, and ops that move bytes have one dtype, so neither takes mixed dtypes.
static bool takes_one_dtype(mz_op op) {
    return mz_op_is_product(op) || mz_op_table[op].moves || op == MZ_OP_cast;
}

static bool wider(mezzo_dtype a, mezzo_dtype b) {
    return mezzo_dtype_size(a) > mezzo_dtype_size(b);
}

// A cast that a pass put between formats without scales. A kernel of its own makes casts with scales.
static bool folds(fuse *f, const mz_node *cast) {
    return cast->op == MZ_OP_cast && !cast->pinned && value(f, cast->in[0])->scaling == MZ_SCALING_NONE &&
           value(f, cast->out[0])->scaling == MZ_SCALING_NONE;
}

// cast(low → wide): each reader that takes mixed dtypes reads the low value.
static void fold_widening(fuse *f, size_t index) {
    mz_node *cast = &f->g->nodes[index];
    int from = cast->in[0], to = cast->out[0];
    if (!folds(f, cast) || !wider(value(f, to)->dtype, value(f, from)->dtype))
        return;
    for (size_t i = index + 1; i < f->g->n_nodes && uses_of(f, to) > 0; ++i) {
        mz_node *n = &f->g->nodes[i];
        if (f->dead[i] || takes_one_dtype(n->op))
            continue;
        for (int k = 0; k < n->n_in; ++k)
            if (n->in[k] == to)
                set_input(f, n, k, from);
    }
    if (uses_of(f, to) == 0)
        kill(f, cast);
}

// cast(wide → low) is the only reader: the value's maker stores the low format.
static void fold_narrowing(fuse *f, size_t index) {
    mz_node *cast = &f->g->nodes[index];
    int from = cast->in[0], to = cast->out[0];
    if (!folds(f, cast) || !wider(value(f, from)->dtype, value(f, to)->dtype))
        return;
    mz_node *n = maker(f, from, 0);
    if (!n || takes_one_dtype(n->op) || mz_op_table[n->op].cast_class == MZ_CAST_INT || uses_of(f, from) != 1 ||
        n->phase != cast->phase)
        return;
    kill(f, cast);
    set_output(f, n, 0, to);
}

mz_act mz_act_of(const mz_node *n, bool gradient) {
    for (mz_act act = MZ_ACT_RELU; act < MZ_ACT_SWIGLU; act++)
        if (n->op == mz_act_op(act, gradient) && n->attrs.tanh == (act == MZ_ACT_GELU_TANH))
            return act;
    return MZ_ACT_NONE;
}

// A quantize may apply these ops before it rounds.
static mz_act quantized_act_of(const mz_node *act, bool gradient) {
    const bool swiglu = act->op == mz_act_op(MZ_ACT_SWIGLU, gradient) && act->attrs.act == MZ_ACT_NONE;
    return swiglu ? MZ_ACT_SWIGLU : mz_act_of(act, gradient);
}

// Readers of v stand after its maker.
static size_t after_maker(fuse *f, int v) {
    const int maker = value(f, v)->producer;
    return maker >= 0 ? (size_t)maker + 1 : 0;
}

// The only reader of v, if it is a quantize; else NULL.
static mz_node *quantizer(fuse *f, int v) {
    if (uses_of(f, v) != 1 || value(f, v)->keep)
        return NULL;
    for (size_t i = after_maker(f, v); i < f->g->n_nodes; ++i)
        for (int k = 0; !f->dead[i] && k < f->g->nodes[i].n_in; ++k)
            if (f->g->nodes[i].in[k] == v)
                return f->g->nodes[i].op == MZ_OP_quantize ? &f->g->nodes[i] : NULL;
    return NULL;
}

// An activation between a product with scaled operands and a quantize belongs to the quantize, which writes both
// layouts.
static bool left_to_quantizer(fuse *f, const mz_node *product, int result) {
    return value(f, product->in[0])->scaling != MZ_SCALING_NONE && quantizer(f, result) != NULL;
}

// act or its gradient, quantize → quantize with act.
static void fuse_quantized_activation(fuse *f, size_t index) {
    mz_node *act = &f->g->nodes[index];
    mz_act forward = quantized_act_of(act, false), backward = quantized_act_of(act, true);
    mz_node *quantize = forward == MZ_ACT_NONE && backward == MZ_ACT_NONE ? NULL : quantizer(f, act->out[0]);
    int x = act->in[0], preact = backward != MZ_ACT_NONE ? act->in[1] : -1;
    if (!quantize || quantize->phase != act->phase || quantize->attrs.act != MZ_ACT_NONE ||
        (preact >= 0 && value(f, preact)->dtype != value(f, x)->dtype))
        return;
    if ((forward == MZ_ACT_SWIGLU || backward == MZ_ACT_SWIGLU) && mz_graph_entry(f->g, quantize) < 0)
        return; // halves are in other blocks
    quantize->attrs.act = forward != MZ_ACT_NONE ? forward : backward;
    quantize->attrs.via = value(f, act->out[0])->dtype;
    kill(f, act);
    set_input(f, quantize, MZ_IN(quantize, x), x);
    if (preact >= 0)
        set_input(f, quantize, MZ_IN(quantize, preact), preact);
}

// Moves node `from` after the later node `to`.
static void move_after(fuse *f, size_t from, size_t to) {
    mz_node *nodes = f->g->nodes, moved = nodes[from];
    const bool dead = f->dead[from];
    memmove(&nodes[from], &nodes[from + 1], (to - from) * sizeof *nodes);
    memmove(&f->dead[from], &f->dead[from + 1], (to - from) * sizeof *f->dead);
    nodes[to] = moved;
    f->dead[to] = dead;
    for (size_t i = from; i <= to; ++i)
        for (int k = 0; k < nodes[i].n_out && !f->dead[i]; ++k)
            if (nodes[i].out[k] >= 0)
                set_output(f, &nodes[i], k, nodes[i].out[k]);
}

// The node is a product of a weight's gradient that may run later: no node up to `to` writes its memory.
static bool can_be_later(fuse *f, size_t from, size_t to) {
    const mz_node *n = &f->g->nodes[from];
    if (n->op != MZ_OP_linear_dw && n->op != MZ_OP_grouped_linear_dw)
        return false;
    for (int k = 0; k < n->n_out; ++k)
        if (n->out[k] >= 0 && value(f, n->out[k])->kind != MZ_VALUE_GRAD)
            return false;
    for (size_t i = from + 1; i <= to; ++i)
        for (int k = 0; k < f->g->nodes[i].n_out && !f->dead[i]; ++k)
            if (f->g->nodes[i].out[k] >= 0 && f->g->nodes[i].out[k] == n->out[0])
                return false;
    return true;
}

// The first node before `to` that reads v. The search goes backward, because backward's nodes are at the end.
static size_t first_of_readers(fuse *f, int v, size_t to) {
    size_t first = to;
    int left = uses_of(f, v);
    for (size_t i = to; i-- > 0 && left > 0;)
        for (int k = 0; k < f->g->nodes[i].n_in && !f->dead[i]; ++k)
            if (f->g->nodes[i].in[k] == v) {
                first = i;
                --left;
            }
    return first;
}

// All readers of v may stand after node `to`; with `moves` they are moved there. A node that moves leaves its index to
// the next one.
static bool readers_after(fuse *f, int v, size_t to, bool moves) {
    for (size_t i = first_of_readers(f, v, to); i < to;) {
        bool reads = false;
        for (int k = 0; k < f->g->nodes[i].n_in && !f->dead[i]; ++k)
            reads = reads || f->g->nodes[i].in[k] == v;
        if (reads && !moves && !can_be_later(f, i, to))
            return false;
        if (reads && moves)
            move_after(f, i, to--);
        else
            ++i;
    }
    return true;
}

// The quantize of act(preact) with a tensor's scale whose columnwise data only backward reads; NULL: none.
static mz_node *quantizer_of(fuse *f, int preact, mz_act act, size_t until) {
    for (size_t i = after_maker(f, preact); i < until; ++i) {
        mz_node *n = &f->g->nodes[i];
        const int columnwise = MZ_OUT(quantize, columnwise);
        if (!f->dead[i] && n->op == MZ_OP_quantize && n->attrs.act == act && n->n_in == 1 && n->in[0] == preact &&
            mz_node_out(n, columnwise) >= 0 && mz_graph_entry(f->g, n) >= 0 && uses_of(f, n->out[columnwise]) > 0 &&
            !value(f, n->out[columnwise])->keep && mz_node_out(n, MZ_OUT(quantize, dbias)) < 0)
            return n;
    }
    return NULL;
}

// quantize of act(x) in forward, columnwise for backward, and quantize of dy · act'(x) → the second one reads x anyway
// and writes the columnwise data of act(x) too, so nothing of act(x) is kept from forward to backward.
static void fuse_act_out(fuse *f, size_t index) {
    mz_node *derivative = &f->g->nodes[index];
    const int preact = MZ_IN(quantize, preact), act_out = MZ_OUT(quantize, act_out);
    if (derivative->op != MZ_OP_quantize || derivative->attrs.act == MZ_ACT_NONE ||
        mz_node_in(derivative, preact) < 0 || mz_node_out(derivative, act_out) >= 0)
        return;
    mz_node *forward = quantizer_of(f, derivative->in[preact], derivative->attrs.act, index);
    const int columnwise = forward != NULL ? forward->out[MZ_OUT(quantize, columnwise)] : -1;
    if (forward == NULL || forward->attrs.via != derivative->attrs.via || !readers_after(f, columnwise, index, false))
        return;
    forward->out[MZ_OUT(quantize, columnwise)] = -1;
    if (forward->out[0] < 0 || uses_of(f, forward->out[0]) == 0) // repeated for backward
        kill(f, forward);
    set_output(f, derivative, act_out, columnwise);
    readers_after(f, columnwise, index, true);
}

// linear, act → linear with act; the value between stays as `preact` where backward reads it.
static void fuse_activation(fuse *f, size_t index) {
    mz_node *act = &f->g->nodes[index];
    mz_act kind = mz_act_of(act, false);
    if (kind == MZ_ACT_NONE)
        return;
    int z = act->in[0], y = act->out[0];
    mz_node *linear = maker(f, z, 0);
    if (!linear || linear->op != MZ_OP_linear || linear->attrs.act != MZ_ACT_NONE || linear->phase != act->phase ||
        mz_node_in(linear, MZ_IN(linear, residual)) >= 0 || value(f, z)->keep ||
        value(f, y)->dtype != value(f, z)->dtype || left_to_quantizer(f, linear, y))
        return;
    kill(f, act);
    linear->attrs.act = kind;
    linear->attrs.via = value(f, z)->dtype;
    set_output(f, linear, 0, y);
    if (uses_of(f, z) > 0)
        set_output(f, linear, 1, z);
}

// linear_dx, act_dx → linear_dx with preact.
static void fuse_activation_gradient(fuse *f, size_t index) {
    mz_node *act = &f->g->nodes[index];
    mz_act kind = mz_act_of(act, true);
    if (kind == MZ_ACT_NONE)
        return;
    int dh = act->in[0], preact = act->in[1];
    mz_node *dx = maker(f, dh, 0);
    if (!dx || dx->op != MZ_OP_linear_dx || dx->attrs.act != MZ_ACT_NONE || uses_of(f, dh) != 1 ||
        value(f, dx->in[0])->scaling != MZ_SCALING_NONE) // the derivative's own kernel, or the quantizer, is faster
        return;
    // The matmul runs at the activation's place, where a repeated preact exists.
    mz_node merged = *dx;
    merged.attrs.act = kind;
    int out = act->out[0];
    kill(f, dx);
    kill(f, act);
    *act = merged;
    f->dead[index] = false;
    for (int k = 0; k < act->n_in; ++k)
        if (act->in[k] >= 0)
            ++f->uses[act->in[k]];
    set_input(f, act, 2, preact);
    set_output(f, act, 0, out);
}

static bool same_shape(fuse *f, int a, int b) {
    return mz_shape_equal(&value(f, a)->shape, &value(f, b)->shape);
}

// Replaces the node at `index` (an add) by `merged`, whose own node dies.
static mz_node *move_to(fuse *f, size_t index, mz_node *from) {
    mz_node merged = *from;
    mz_node *to = &f->g->nodes[index];
    int out = to->out[0];
    kill(f, from);
    kill(f, to);
    *to = merged;
    f->dead[index] = false;
    for (int k = 0; k < to->n_in; ++k)
        if (to->in[k] >= 0)
            ++f->uses[to->in[k]];
    for (int k = 0; k < to->n_out; ++k)
        if (to->out[k] >= 0)
            set_output(f, to, k, to->out[k]);
    set_output(f, to, 0, out);
    return to;
}

// x + linear → linear with residual, at the add's place.
static void fuse_residual(fuse *f, size_t index) {
    mz_node *add = &f->g->nodes[index];
    if (add->op != MZ_OP_add || add->phase == MZ_BACKWARD || !same_shape(f, add->in[0], add->in[1]))
        return;
    for (int side = 1; side >= 0; --side) {
        int y = add->in[side], x = add->in[1 - side];
        mz_node *linear = maker(f, y, 0);
        if (!linear || linear->op != MZ_OP_linear || uses_of(f, y) != 1 || linear->phase != add->phase || x == y ||
            mz_node_in(linear, MZ_IN(linear, residual)) >= 0)
            continue;
        mezzo_dtype via = value(f, y)->dtype;
        mz_node *merged = move_to(f, index, linear);
        merged->attrs.via = via;
        set_input(f, merged, MZ_IN(linear, residual), x);
        return;
    }
}

static size_t first_reader(fuse *f, int v, size_t from) {
    for (size_t i = from; i < f->g->n_nodes; ++i)
        for (int k = 0; !f->dead[i] && k < f->g->nodes[i].n_in; ++k)
            if (f->g->nodes[i].in[k] == v)
                return i;
    return f->g->n_nodes;
}

// s = a + b, then a norm of s as its first reader → the norm with residual, which stores s too.
static void fuse_residual_norm(fuse *f, size_t index) {
    mz_node *add = &f->g->nodes[index];
    if (add->op != MZ_OP_add || add->phase == MZ_BACKWARD || !same_shape(f, add->in[0], add->in[1]))
        return;
    int s = add->out[0], a = add->in[0], b = add->in[1];
    size_t reader = first_reader(f, s, index + 1);
    if (reader == f->g->n_nodes)
        return;
    mz_node *norm = &f->g->nodes[reader];
    bool layernorm = norm->op == MZ_OP_layernorm;
    int residual = layernorm ? MZ_IN(layernorm, residual) : MZ_IN(rmsnorm, residual);
    int sum = layernorm ? MZ_OUT(layernorm, sum) : MZ_OUT(rmsnorm, sum);
    if ((!layernorm && norm->op != MZ_OP_rmsnorm) || norm->in[0] != s || norm->phase != add->phase ||
        mz_node_in(norm, residual) >= 0)
        return;
    set_input(f, norm, 0, a);
    set_input(f, norm, residual, b);
    kill(f, add);
    if (uses_of(f, s) > 0)
        set_output(f, norm, sum, s);
}

// dres + dx of a norm → the norm's gradient with dres, at the add's place.
static void fuse_norm_gradient(fuse *f, size_t index) {
    mz_node *add = &f->g->nodes[index];
    if (add->op != MZ_OP_add || add->phase != MZ_BACKWARD || !same_shape(f, add->in[0], add->in[1]))
        return;
    for (int side = 1; side >= 0; --side) {
        int dx = add->in[side], dres = add->in[1 - side];
        mz_node *norm = maker(f, dx, 0);
        if (!norm || (norm->op != MZ_OP_layernorm_bwd && norm->op != MZ_OP_rmsnorm_bwd) || uses_of(f, dx) != 1 ||
            dres == dx)
            continue;
        int slot = norm->op == MZ_OP_layernorm_bwd ? MZ_IN(layernorm_bwd, dres) : MZ_IN(rmsnorm_bwd, dres);
        if (norm->in[slot] >= 0)
            continue;
        mz_node *merged = move_to(f, index, norm);
        set_input(f, merged, slot, dres);
        return;
    }
}

// combine + another gradient, in FP32 → the combine adds it, at the add's place; twice at most. Sums of the same
// numbers in the same order.
static void fuse_combine(fuse *f, size_t index) {
    mz_node *add = &f->g->nodes[index];
    if (add->op != MZ_OP_add || add->phase != MZ_BACKWARD || !same_shape(f, add->in[0], add->in[1]) ||
        value(f, add->out[0])->dtype != MEZZO_F32)
        return;
    for (int side = 0; side < 2; ++side) {
        int sum = add->in[side], other = add->in[1 - side];
        mz_node *combine = maker(f, sum, 0);
        if (!combine || combine->op != MZ_OP_combine || uses_of(f, sum) != 1 || sum == other ||
            value(f, sum)->dtype != MEZZO_F32)
            continue;
        int first = MZ_IN(combine, added), second = MZ_IN(combine, more);
        int slot = mz_node_in(combine, first) >= 0 ? second : first;
        if (mz_node_in(combine, slot) >= 0)
            continue;
        mz_node *merged = move_to(f, index, combine);
        set_input(f, merged, slot, other);
        return;
    }
}

// cast(wide → low) of a norm's gradient with FP32 readers: the norm stores both formats.
static void fuse_norm_low(fuse *f, size_t index) {
    mz_node *cast = &f->g->nodes[index];
    int from = cast->in[0], to = cast->out[0];
    if (!folds(f, cast) || value(f, from)->dtype != MEZZO_F32 || !wider(MEZZO_F32, value(f, to)->dtype))
        return;
    mz_node *norm = maker(f, from, 0);
    if (!norm || (norm->op != MZ_OP_layernorm_bwd && norm->op != MZ_OP_rmsnorm_bwd) || norm->phase != cast->phase)
        return;
    int slot = norm->op == MZ_OP_layernorm_bwd ? MZ_OUT(layernorm_bwd, low) : MZ_OUT(rmsnorm_bwd, low);
    if (mz_node_out(norm, slot) >= 0)
        return;
    kill(f, cast);
    set_output(f, norm, slot, to);
}

// Kernels of 16-bit products add up columns as they store; those of FP32 products do not.
static bool is_low(fuse *f, int v) {
    return mezzo_dtype_size(value(f, v)->dtype) == 2;
}

// A bias's gradient is the column sums of a tensor that a layer norm's gradient, or a product's with an activation's
// derivative, has just written. These kernels add the sums as they store.
static void fuse_bias_gradient(fuse *f, size_t index) {
    mz_node *dw = &f->g->nodes[index];
    if (dw->op != MZ_OP_linear_dw || mz_node_out(dw, MZ_OUT(linear_dw, db)) < 0)
        return;
    int dy = dw->in[0], db = dw->out[1], slot = value(f, dy)->kind == MZ_VALUE_TEMP ? value(f, dy)->slot : -1;
    mz_node *from = slot == MZ_OUT(layernorm_bwd, dx) || slot == MZ_OUT(layernorm_bwd, low) ? maker(f, dy, slot) : NULL;
    if (!from || from->phase != dw->phase)
        return;
    bool norm = from->op == MZ_OP_layernorm_bwd,
         product = from->op == MZ_OP_linear_dx && from->attrs.act != MZ_ACT_NONE && is_low(f, dy);
    int low = MZ_OUT(layernorm_bwd, low), sums = norm ? MZ_OUT(layernorm_bwd, linear_dbias) : MZ_OUT(linear_dx, dbias);
    if ((!norm && !product) || mz_node_out(from, sums) >= 0 ||
        (norm && (from->attrs.accumulate != dw->attrs.accumulate || (slot == 0 && mz_node_out(from, low) >= 0))))
        return;
    from->attrs.accumulate = dw->attrs.accumulate;
    dw->out[1] = -1;
    set_output(f, from, sums, db);
}

mezzo_status mz_pass_fuse(mezzo_graph *g, const mz_target *target) {
    fuse f = {.g = g};
    static void (*const patterns[])(fuse *, size_t) = {
        fold_widening, fold_narrowing,    fuse_activation,    fuse_activation_gradient, fuse_quantized_activation,
        fuse_act_out,  fuse_residual,     fuse_residual_norm, fuse_norm_gradient,       fuse_combine,
        fuse_norm_low, fuse_bias_gradient};
    if (target->options->no_fuse)
        return MEZZO_OK;
    MEZZO_TRY(mz_graph_consumers(g, &f.uses));
    f.dead = mz_alloc(g->n_nodes + 1, sizeof *f.dead);
    if (!f.dead) {
        mz_free(f.uses);
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    }
    for (size_t p = 0; p < MZ_COUNT(patterns); ++p)
        for (size_t i = 0; i < g->n_nodes; ++i)
            if (!f.dead[i])
                patterns[p](&f, i);
    mz_graph_compact(g, f.dead);
    mz_free(f.uses);
    mz_free(f.dead);
    return MEZZO_OK;
}
