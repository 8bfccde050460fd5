// The recompute pass repeats values for backward instead of keeping them: the nodes that make a value inside a segment,
// if forward reads it in this segment only, are repeated before the first backward node that reads it. Random ops keep
// their stream, so the repetition has the original's bits.
//
// "Light" repeats only ops marked cheap in ops.def, which cost a pass over memory: activations and norms with their
// casts. It keeps the results and operands of products and attention.
#include "graph/graph.h"

typedef struct pass {
    mezzo_graph *g;
    mz_node *old; // the nodes before the pass
    size_t n_old;
    int *producer;   // per value: its node among `old` (the graph's own nodes move as others are added)
    int *clone;      // per value: its repetition, -1
    bool *boundary;  // per value: forward keeps it, because it is an output or read outside its segment
    size_t n_values; // before the pass
    bool light;
} pass;

static void mark_boundaries(pass *p) {
    for (size_t i = 0; i < p->n_old; ++i) {
        const mz_node *n = &p->old[i];
        for (int k = 0; n->phase == MZ_FORWARD && k < n->n_in; ++k) {
            if (n->in[k] < 0)
                continue;
            const mz_value *v = &p->g->values[n->in[k]];
            if (v->kind != MZ_VALUE_TEMP || v->producer < 0 || p->old[v->producer].segment != n->segment)
                p->boundary[n->in[k]] = true;
        }
    }
    for (size_t v = 0; v < p->n_values; ++v)
        p->boundary[v] = p->boundary[v] || p->g->values[v].keep;
}

static mezzo_status repeat(pass *p, int value, int *out);

static mezzo_status repeat_node(pass *p, int index) {
    mezzo_graph *g = p->g;
    mz_node n = p->old[index];
    n.phase = MZ_RECOMPUTE;
    for (int k = 0; k < n.n_in; ++k)
        if (n.in[k] >= 0)
            MEZZO_TRY(repeat(p, n.in[k], &n.in[k]));
    for (int k = 0; k < n.n_out; ++k) {
        if (n.out[k] < 0 || g->values[n.out[k]].kind == MZ_VALUE_ENTRY)
            continue;
        mz_value v = g->values[n.out[k]];
        v.name = NULL;
        v.keep = false;
        if (v.alias >= 0)
            v.alias = n.in[0];
        int id;
        MEZZO_TRY(mz_graph_value(g, v, &id));
        p->clone[n.out[k]] = id;
        n.out[k] = id;
    }
    for (int k = 0; k < n.n_out; ++k) { // a repeated value refers to the repeated scales
        mz_value *v = n.out[k] >= 0 ? &g->values[n.out[k]] : NULL;
        if (v != NULL && v->scaling != MZ_SCALING_NONE && p->clone[v->scale] >= 0)
            v->scale = p->clone[v->scale];
    }
    return mz_graph_node(g, n, NULL);
}

// Finds the value that backward reads instead of `value`: `value` itself where it is kept anyway, else its repetition.
static mezzo_status repeat(pass *p, int value, int *out) {
    *out = value;
    if ((size_t)value >= p->n_values || p->boundary[value])
        return MEZZO_OK;
    const mz_value *v = &p->g->values[value];
    if (v->kind != MZ_VALUE_TEMP || p->producer[value] < 0)
        return MEZZO_OK;
    const mz_node *maker = &p->old[p->producer[value]];
    if (maker->phase != MZ_FORWARD || maker->segment < 0 || (p->light && !mz_op_table[maker->op].cheap))
        return MEZZO_OK;
    if (p->clone[value] < 0)
        MEZZO_TRY(repeat_node(p, (int)(maker - p->old)));
    *out = p->clone[value];
    return MEZZO_OK;
}

// Drops a saved output that a forward node has without readers, because backward reads its repetition.
static mezzo_status drop_unread_outputs(mezzo_graph *g) {
    int *uses = NULL;
    MEZZO_TRY(mz_graph_consumers(g, &uses));
    for (size_t i = 0; i < g->n_nodes; ++i) {
        for (int k = 0; k < g->nodes[i].n_out; ++k) {
            int v = g->nodes[i].out[k];
            unsigned is = mz_op_slot(g->nodes[i].op, true, k).is;
            if (v >= 0 && (is & MZ_SLOT_OPTIONAL) && !(is & MZ_SLOT_GRADIENT) && uses[v] == 0)
                g->nodes[i].out[k] = -1;
        }
    }
    mz_free(uses);
    return MEZZO_OK;
}

mezzo_status mz_pass_recompute(mezzo_graph *g, const mz_target *target) {
    const mezzo_program_options *o = target->options;
    mezzo_status status;
    pass p = {.g = g, .old = g->nodes, .n_old = g->n_nodes, .n_values = g->n_values, .light = !o->recompute};
    if (g->n_segments == 0 || !(o->recompute || o->recompute_light) || o->forward_only)
        return MEZZO_OK;
    p.clone = mz_alloc(p.n_values, sizeof *p.clone);
    p.boundary = mz_alloc(p.n_values, sizeof *p.boundary);
    p.producer = mz_alloc(p.n_values, sizeof *p.producer);
    if (!p.clone || !p.boundary || !p.producer) {
        MZ_FREE(p.clone, p.boundary, p.producer);
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    }
    for (size_t v = 0; v < p.n_values; ++v) {
        p.clone[v] = -1;
        p.producer[v] = g->values[v].producer;
    }
    mark_boundaries(&p);
    g->nodes = NULL;
    g->n_nodes = g->cap_nodes = 0;
    for (size_t i = 0; i < p.n_old; ++i) {
        mz_node n = p.old[i];
        if (n.phase == MZ_BACKWARD)
            for (int k = 0; k < n.n_in; ++k)
                if (n.in[k] >= 0)
                    MEZZO_TRY_GOTO(status, repeat(&p, n.in[k], &n.in[k]));
        MEZZO_TRY_GOTO(status, mz_graph_node(g, n, NULL));
    }
    mz_graph_relink(g);
    status = drop_unread_outputs(g);
fail:
    MZ_FREE(p.old, p.producer, p.clone, p.boundary);
    return status;
}
