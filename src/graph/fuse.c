// The fuse pass saves launches and bytes and keeps the values: nodes become post-ops of their neighbours, as the rows
// of post.def say, which round between them as the separate ops do. A widening cast moves into the ops that read it,
// because the conversion is exact.
#include "graph/graph.h"

typedef struct fuse {
    mezzo_graph *g;
    int *uses;  // per value: consumers, + 1 if kept
    bool *dead; // per node
    mz_takes_post *takes_post;
    const void *user; // of takes_post
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

// --- post-ops ------------------------------------------------------------------------------------------------------
mz_act mz_act_of(const mz_node *n, bool gradient) {
    for (mz_act act = MZ_ACT_RELU; act < MZ_ACT_SWIGLU; act++)
        if (n->op == mz_act_op(act, gradient) && n->attrs.tanh == (act == MZ_ACT_GELU_TANH))
            return act;
    return MZ_ACT_NONE;
}

static bool same_shape(fuse *f, int a, int b) {
    return mz_shape_equal(&value(f, a)->shape, &value(f, b)->shape);
}

// The activation of a node of the row's kind; NONE: the kind is none of activations.
static mz_act act_of(const mz_post_info *row, const mz_node *n) {
    const bool gate = row->kind == MZ_POST_GATE || row->kind == MZ_POST_GATE_DX;
    const bool gradient = row->kind == MZ_POST_ACT_DX || row->kind == MZ_POST_GATE_DX;
    if (gate)
        return n->op == mz_act_op(MZ_ACT_SWIGLU, gradient) && n->attrs.act == MZ_ACT_NONE ? MZ_ACT_SWIGLU : MZ_ACT_NONE;
    return row->kind == MZ_POST_ACT || gradient ? mz_act_of(n, gradient) : MZ_ACT_NONE;
}

static bool is_of_kind(fuse *f, const mz_post_info *row, const mz_node *n) {
    switch (row->kind) {
    case MZ_POST_ACT_OUT:
    case MZ_POST_STORE:
        return false;
    case MZ_POST_CAST:
        return folds(f, n) && wider(value(f, n->in[0])->dtype, value(f, n->out[0])->dtype);
    case MZ_POST_ADD:
        return n->op == MZ_OP_add && same_shape(f, n->in[0], n->in[1]);
    case MZ_POST_SUMS:
        return n->op == MZ_OP_linear_dw && mz_node_out(n, MZ_OUT(linear_dw, db)) >= 0;
    default:
        return act_of(row, n) != MZ_ACT_NONE;
    }
}

static size_t first_reader(fuse *f, int v) {
    const int maker = value(f, v)->producer;
    for (size_t i = maker >= 0 ? (size_t)maker + 1 : 0; i < f->g->n_nodes; ++i)
        for (int k = 0; !f->dead[i] && k < f->g->nodes[i].n_in; ++k)
            if (f->g->nodes[i].in[k] == v)
                return i;
    return f->g->n_nodes;
}

// The node of the row's op that takes `n` before its own work; NULL: none.
static mz_node *reader_that_takes(fuse *f, const mz_post_info *row, const mz_node *n) {
    const int v = n->out[0];
    if (row->keeps == 0 && uses_of(f, v) != 1)
        return NULL;
    const size_t reader = first_reader(f, v);
    mz_node *host = reader < f->g->n_nodes ? &f->g->nodes[reader] : NULL;
    return host != NULL && host->op == row->op && mz_node_in(host, row->joint) == v ? host : NULL;
}

// A before row of the only reader takes the node.
static bool reader_takes(fuse *f, const mz_node *n) {
    for (const mz_post_info *row = mz_post_table; row < mz_post_table + MZ_POST_COUNT; ++row)
        if (row->before && row->keeps == 0 && is_of_kind(f, row, n) && reader_that_takes(f, row, n) != NULL)
            return true;
    return false;
}

// The row may be added to the host's list: at its end, or at its beginning.
static bool is_next(const mz_node *host, const mz_post_info *row) {
    const uint64_t rows = mz_node_posts(host), upto = MZ_POST_BIT(row - mz_post_table);
    const bool acts = row->kind >= MZ_POST_ACT && row->kind <= MZ_POST_GATE_DX;
    if (acts && host->attrs.act != MZ_ACT_NONE)
        return false;
    return (rows & (row->before ? upto | (upto - 1) : ~(upto - 1))) == 0;
}

// The row's facts hold for what is joined: v is the joint.
static bool facts_hold(fuse *f, const mz_post_info *row, const mz_node *host, const mz_node *n, int v) {
    const mezzo_dtype joint = value(f, v)->dtype,
                      other = value(f, row->before ? n->in[row->with > 0] : n->out[0])->dtype;
    const bool scaled = host->n_in > 0 && host->in[0] >= 0 && value(f, host->in[0])->scaling != MZ_SCALING_NONE;
    return (!row->alike || (row->before ? value(f, n->in[0])->dtype : joint) == other) &&
           (!row->fp32 || joint == MEZZO_F32) && (!row->low || mezzo_dtype_size(joint) == 2) &&
           !(row->unscaled && scaled) && !(row->yields && scaled && reader_takes(f, n)) &&
           (!row->one_scale || mz_graph_entry(f->g, host) >= 0) && (!row->derived || host->attrs.act != MZ_ACT_NONE) &&
           (!row->backward || n->phase == MZ_BACKWARD);
}

static bool accepts(fuse *f, const mz_post_info *row, const mz_node *host, const mz_node *n, int v) {
    if (row->op == MZ_OP_COUNT && (takes_one_dtype(host->op) || mz_op_table[host->op].cast_class == MZ_CAST_INT))
        return false;
    return host->phase == n->phase && is_next(host, row) && facts_hold(f, row, host, n, v) &&
           (f->takes_post == NULL || f->takes_post(f->user, host->op, (mz_post)(row - mz_post_table)));
}

static void set_attrs(fuse *f, const mz_post_info *row, mz_node *host, const mz_node *n, int v) {
    const mz_act act = act_of(row, n);
    host->attrs.act = act != MZ_ACT_NONE ? act : host->attrs.act;
    host->attrs.via = row->rounds ? value(f, v)->dtype : host->attrs.via;
}

static void keep_joint(fuse *f, const mz_post_info *row, mz_node *host, int v) {
    if (row->keeps > 0 && uses_of(f, v) > 0)
        set_output(f, host, row->keeps, v);
}

// No node before `index` reads what the host makes, so that the host may move there.
static bool can_move_to(fuse *f, size_t index, const mz_node *host) {
    const int at = (int)(host - f->g->nodes);
    for (size_t i = (size_t)at + 1; i < index; ++i)
        for (int k = 0; k < f->g->nodes[i].n_in && !f->dead[i]; ++k) {
            const int v = f->g->nodes[i].in[k];
            if (v >= 0 && value(f, v)->kind == MZ_VALUE_TEMP && value(f, v)->producer == at)
                return false;
        }
    return true;
}

// Replaces the node at `index` by `from`, whose own node dies.
static mz_node *move_to(fuse *f, size_t index, mz_node *from) {
    mz_node merged = *from;
    mz_node *to = &f->g->nodes[index];
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
    return to;
}

// The host reads what the node makes, and takes the node before its own work.
static void add_before(fuse *f, const mz_post_info *row, size_t index) {
    mz_node *n = &f->g->nodes[index], *host = reader_that_takes(f, row, n);
    const int v = n->out[0];
    if (host == NULL || !accepts(f, row, host, n, v))
        return;
    set_attrs(f, row, host, n, v);
    set_input(f, host, row->joint, n->in[0]);
    if (row->with > 0)
        set_input(f, host, row->with, n->in[1]);
    kill(f, n);
    keep_joint(f, row, host, v);
}

// The node reads what the host makes, an add on either side, and the host takes it after its own work.
static void add_after(fuse *f, const mz_post_info *row, size_t index) {
    mz_node *n = &f->g->nodes[index];
    for (int side = row->kind == MZ_POST_ADD; side >= 0; --side) {
        const int v = n->in[side], other = row->with > 0 ? n->in[1 - side] : -1, result = n->out[0];
        mz_node *host = maker(f, v, row->joint);
        if (host == NULL || (host->op != row->op && row->op != MZ_OP_COUNT) || !accepts(f, row, host, n, v) ||
            (row->keeps == 0 && row->into == 0 && uses_of(f, v) != 1) ||
            (row->with > 0 && !can_move_to(f, index, host)))
            continue;
        set_attrs(f, row, host, n, v);
        if (row->with > 0) {
            host = move_to(f, index, host);
            set_input(f, host, row->with, other);
        } else {
            kill(f, n);
        }
        set_output(f, host, row->into > 0 ? row->into : row->joint, result);
        keep_joint(f, row, host, v);
        return;
    }
}

// The output with the result that a host stores last.
static int last_result(const mz_node *host) {
    const uint64_t rows = mz_node_posts(host);
    int slot = 0;
    for (mz_post p = 0; p < MZ_POST_COUNT; ++p)
        if (rows & MZ_POST_BIT(p) && mz_post_table[p].kind == MZ_POST_CAST)
            slot = mz_post_table[p].into;
    return slot;
}

// A bias gradient is the column sums of dy, and the node that makes dy adds them up as it stores.
static void add_sums(fuse *f, const mz_post_info *row, size_t index) {
    mz_node *dw = &f->g->nodes[index];
    const int dy = dw->in[0], db = MZ_OUT(linear_dw, db);
    mz_node *host = maker(f, dy, value(f, dy)->slot);
    if (host == NULL || host->op != row->op || value(f, dy)->slot != last_result(host) ||
        !accepts(f, row, host, dw, dy))
        return;
    for (int k = 0; k < host->n_out; ++k) // one attribute says for all gradients whether they are added to
        if (host->out[k] >= 0 && value(f, host->out[k])->kind == MZ_VALUE_GRAD &&
            host->attrs.accumulate != dw->attrs.accumulate)
            return;
    host->attrs.accumulate = dw->attrs.accumulate;
    set_output(f, host, row->into, dw->out[db]);
    dw->out[db] = -1;
}

static void try_row(fuse *f, const mz_post_info *row) {
    for (size_t i = 0; i < f->g->n_nodes; ++i) {
        if (f->dead[i] || !is_of_kind(f, row, &f->g->nodes[i]))
            continue;
        if (row->kind == MZ_POST_SUMS)
            add_sums(f, row, i);
        else if (row->before)
            add_before(f, row, i);
        else
            add_after(f, row, i);
    }
}

mezzo_status mz_graph_fuse(mezzo_graph *g, mz_takes_post *takes_post, const void *user) {
    fuse f = {.g = g, .takes_post = takes_post, .user = user};
    MEZZO_TRY(mz_graph_consumers(g, &f.uses));
    f.dead = mz_alloc(g->n_nodes + 1, sizeof *f.dead);
    if (!f.dead) {
        mz_free(f.uses);
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    }
    for (size_t i = 0; i < g->n_nodes; ++i)
        if (!f.dead[i])
            fold_widening(&f, i);
    for (const mz_post_info *row = mz_post_table; row < mz_post_table + MZ_POST_COUNT; ++row)
        try_row(&f, row);
    mz_graph_compact(g, f.dead);
    MZ_FREE(f.uses, f.dead);
    return MEZZO_OK;
}
