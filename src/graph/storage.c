// The storage pass gives every value the storage of its axes and inserts copies where an op cannot take it. Values that
// the host writes or reads are stored without padding.
#include "graph/graph.h"

typedef struct pass {
    mezzo_graph *g;
    const mz_storage_options *options;
    mz_storage *want; // per value before the pass: the storage of its axes
    int *other;       // per value before the pass: the same value in another storage; -1
    size_t n_old;
} pass;

static const mz_storage plain = {0};

static const mz_storage *stored(const pass *p, int v) {
    return &p->g->values[v].storage;
}

mz_padded mz_takes_padding(const mz_storage_options *o, mz_op op) {
    if (o->takes_padding == NULL || (o->policy.physical && op != MZ_OP_copy))
        return MZ_PADDED_NONE;
    return o->takes_padding(op);
}

// Gives each value its present storage: sources have their own, a block of rows has that of the whole value.
static void store_values(pass *p) {
    mezzo_graph *g = p->g;
    for (size_t i = 0; i < g->n_values; i++) {
        mz_value *v = &g->values[i];
        if (v->kind == MZ_VALUE_INPUT || v->kind == MZ_VALUE_SCALE || v->kind == MZ_VALUE_ENTRY)
            continue;
        v->storage = p->want[i];
        if (v->kind != MZ_VALUE_TEMP && g->params[v->param].stored)
            v->storage = g->params[v->param].storage;
        if (!mz_value_is_rows(g, (int)i))
            continue;
        const mz_value *of = &g->values[v->alias];
        int last = v->shape.rank - 1, of_last = of->shape.rank - 1;
        size_t size = mezzo_dtype_size(v->dtype);
        v->storage = plain;
        v->storage.padded = of->storage.padded;
        v->storage.inner[last] = of->storage.inner[of_last];
        v->storage.pitch[last] = of->storage.pitch[of_last];
        v->offset = (size_t)mz_stored_index(&of->shape, &of->storage, (int64_t)(v->offset / size)) * size;
    }
}

// Sizes blocks of scales by the stored extent, because padding may divide an axis of runs into more blocks.
static void size_scales(pass *p) {
    mezzo_graph *g = p->g;
    for (size_t i = 0; i < p->n_old; i++) {
        const mz_value *v = &g->values[i];
        if (!v->storage.padded || !mz_scaling_in_blocks(v->scaling))
            continue;
        const mz_tensor stored = {
            .shape = mz_stored_shape(&v->shape, &v->storage), .scaling = v->scaling, .columnwise = v->columnwise};
        g->values[v->scale].shape.dim[0] = mz_scale_count(&stored);
    }
}

// Adds a node next to `by`, with one input and one output.
static mezzo_status emit(pass *p, const mz_node *by, mz_op op, int x, int y, bool accumulate) {
    mz_node n = {.op = op,
                 .attrs.accumulate = accumulate,
                 .n_in = 1,
                 .n_out = 1,
                 .phase = by->phase,
                 .module = by->module,
                 .precision = by->precision,
                 .segment = -1,
                 .numerics = {MEZZO_F32, MEZZO_F32, MEZZO_F32},
                 .rule = "storage of its axes"};
    n.in[0] = x;
    n.out[0] = y;
    return mz_graph_node(p->g, n, NULL);
}

static mezzo_status new_like(pass *p, int v, const mz_storage *storage, int *out) {
    const mz_value *of = &p->g->values[v];
    mz_value value = {.kind = MZ_VALUE_TEMP,
                      .dtype = of->dtype,
                      .shape = of->shape,
                      .storage = *storage,
                      .producer = -1,
                      .param = -1,
                      .alias = -1};
    return mz_graph_value(p->g, value, out);
}

// Returns v, or a copy of v stored as `storage`.
static mezzo_status as_stored(pass *p, const mz_node *by, int *v, const mz_storage *storage) {
    if (mz_storage_equal(stored(p, *v), storage))
        return MEZZO_OK;
    int own = -1, *other = (size_t)*v < p->n_old ? &p->other[*v] : &own;
    if (*other < 0 || !mz_storage_equal(stored(p, *other), storage)) {
        MEZZO_TRY(new_like(p, *v, storage, other));
        MEZZO_TRY(emit(p, by, MZ_OP_copy, *v, *other, false));
    }
    *v = *other;
    return MEZZO_OK;
}

// Describes how node n's outputs are stored. Where that differs from the value's storage, the node writes a new value,
// and `after` copies it to the value. Either one node adds up all parameter gradients of a call, or none does.
typedef struct redirect {
    int from, to; // value ids; -1: nothing
} redirect;

static mezzo_status redirect_outputs(pass *p, mz_node *n, const mz_storage *const *wanted, redirect *after) {
    bool any = false;
    for (int k = 0; k < n->n_out; k++) {
        after[k] = (redirect){-1, -1};
        any = any || (n->out[k] >= 0 && !mz_storage_equal(stored(p, n->out[k]), wanted[k]));
    }
    for (int k = 0; any && k < n->n_out; k++) {
        int v = n->out[k];
        bool added = n->attrs.accumulate && v >= 0 && p->g->values[v].kind == MZ_VALUE_GRAD;
        if (v < 0 || (!added && mz_storage_equal(stored(p, v), wanted[k])))
            continue;
        MEZZO_TRY(new_like(p, v, wanted[k], &n->out[k]));
        after[k] = (redirect){n->out[k], v};
    }
    return MEZZO_OK;
}

static mezzo_status finish_outputs(pass *p, const mz_node *n, bool accumulate, const redirect *after) {
    for (int k = 0; k < n->n_out; k++) {
        int from = after[k].from, to = after[k].to;
        if (from < 0)
            continue;
        if (!accumulate || p->g->values[to].kind != MZ_VALUE_GRAD) {
            MEZZO_TRY(emit(p, n, MZ_OP_copy, from, to, false));
            continue;
        }
        MEZZO_TRY(as_stored(p, n, &from, stored(p, to)));
        MEZZO_TRY(emit(p, n, MZ_OP_accumulate, from, to, true));
    }
    return MEZZO_OK;
}

// Puts the node between copies that store its inputs and outputs as `wanted` says.
static mezzo_status between_copies(pass *p, mz_node n, const mz_storage *const *in, const mz_storage *const *out) {
    redirect after[MZ_MAX_OUT];
    for (int k = 0; k < n.n_in; k++)
        if (n.in[k] >= 0 && (mz_op_slot(n.op, false, k).is & MZ_SLOT_STATE) == 0)
            MEZZO_TRY(as_stored(p, &n, &n.in[k], in[k]));
    bool accumulate = n.attrs.accumulate;
    MEZZO_TRY(redirect_outputs(p, &n, out, after));
    for (int k = 0; k < n.n_out; k++)
        n.attrs.accumulate = n.attrs.accumulate && after[k].from < 0;
    if (n.op == MZ_OP_reshape)
        p->g->values[n.out[0]].alias = n.in[0];
    MEZZO_TRY(mz_graph_node(p->g, n, NULL));
    for (int k = 0; n.op == MZ_OP_reshape && k < 1 && after[k].to >= 0; k++)
        p->g->values[after[k].to].alias = -1;
    return finish_outputs(p, &n, accumulate, after);
}

static bool any_padded(const pass *p, const int *list, int n) {
    for (int k = 0; k < n; k++)
        if (list[k] >= 0 && stored(p, list[k])->padded)
            return true;
    return false;
}

// Returns whether each tensor is stored as its axes are; tensors that share an axis are stored alike.
static bool as_axes(const pass *p, const int *list, int n) {
    for (int k = 0; k < n; k++)
        if (list[k] >= 0 && !mz_storage_equal(stored(p, list[k]), &p->want[list[k]]))
            return false;
    return true;
}

static bool axes_are_rows(const pass *p, const int *list, int n) {
    for (int k = 0; k < n; k++)
        if (list[k] >= 0 && !mz_storage_is_rows(&p->g->values[list[k]].shape, &p->want[list[k]]))
            return false;
    return true;
}

// Returns whether kernels take the node once its tensors are stored as their axes: those that know padding, and those
// that may run over it.
static bool takes_axes(const pass *p, const mz_node *n, mz_padded takes) {
    if (mz_op_table[n->op].padding == MZ_PADDING_ZERO || takes == MZ_PADDED_AXES)
        return true;
    return takes == MZ_PADDED_ROWS && axes_are_rows(p, n->in, n->n_in) && axes_are_rows(p, n->out, n->n_out);
}

static mezzo_status place(pass *p, const mz_node *n) {
    const mz_storage *in[MZ_MAX_IN], *out[MZ_MAX_OUT];
    mz_padded takes = mz_takes_padding(p->options, n->op);
    bool padded = any_padded(p, n->in, n->n_in) || any_padded(p, n->out, n->n_out), axes = takes_axes(p, n, takes);
    bool alike = axes && as_axes(p, n->in, n->n_in) && as_axes(p, n->out, n->n_out);
    if (n->op != MZ_OP_reshape && (!padded || takes == MZ_PADDED_ANY || alike))
        return mz_graph_node(p->g, *n, NULL);
    const mz_value *x = n->n_in > 0 && n->in[0] >= 0 ? &p->g->values[n->in[0]] : NULL, *y = &p->g->values[n->out[0]];
    if (n->op == MZ_OP_reshape && mz_storage_same_places(&x->shape, &x->storage, &y->shape, &y->storage))
        return mz_graph_node(p->g, *n, NULL);
    for (int k = 0; k < n->n_in; k++)
        in[k] = axes && n->in[k] >= 0 ? &p->want[n->in[k]] : &plain;
    for (int k = 0; k < n->n_out; k++)
        out[k] = axes && n->out[k] >= 0 ? &p->want[n->out[k]] : &plain;
    return between_copies(p, *n, in, out);
}

// Stores outputs for the host without padding, at the end, when blocks of rows form whole values again.
static mezzo_status place_outputs(pass *p) {
    mezzo_graph *g = p->g;
    mz_node last = {.phase = MZ_FORWARD, .precision = -1};
    for (size_t i = 0; i < g->n_outputs; i++) {
        int v = g->outputs[i].value;
        if (!stored(p, v)->padded)
            continue;
        g->values[v].keep = false;
        MEZZO_TRY(as_stored(p, &last, &g->outputs[i].value, &plain));
        g->values[g->outputs[i].value].keep = true;
    }
    return MEZZO_OK;
}

static mezzo_status place_all(pass *p) {
    mezzo_graph *g = p->g;
    mz_node *old = g->nodes;
    size_t n_old = g->n_nodes;
    mezzo_status status = MEZZO_OK;
    g->nodes = NULL;
    g->n_nodes = g->cap_nodes = 0;
    for (size_t i = 0; i < n_old && status == MEZZO_OK; i++)
        status = place(p, &old[i]);
    mz_free(old);
    if (status == MEZZO_OK)
        status = place_outputs(p);
    mz_graph_relink(g);
    return status;
}

static bool stores_otherwise(const mezzo_graph *g, const mz_storage_options *o) {
    for (size_t i = 0; i < g->n_params; i++)
        if (g->params[i].stored && g->params[i].storage.padded)
            return true;
    return mz_policy_pads(&o->policy);
}

mezzo_status mz_graph_store(mezzo_graph *g, const mz_storage_options *options) {
    if (!stores_otherwise(g, options))
        return MEZZO_OK;
    mezzo_status status;
    pass p = {.g = g, .options = options, .n_old = g->n_values};
    p.want = mz_alloc(g->n_values + 1, sizeof *p.want);
    p.other = mz_alloc(g->n_values + 1, sizeof *p.other);
    if (p.want == NULL || p.other == NULL)
        MEZZO_TRY_GOTO(status, mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__));
    for (size_t v = 0; v < g->n_values; v++)
        p.other[v] = -1;
    MEZZO_TRY_GOTO(status, mz_graph_storage(g, &options->policy, p.want));
    store_values(&p);
    size_scales(&p);
    status = place_all(&p);
fail:
    MZ_FREE(p.want, p.other);
    return status;
}
