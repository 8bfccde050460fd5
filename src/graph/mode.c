// Selects one of two values by the kind of program: one for programs that train, one for those that run forward only.
#include "base/scope.h"
#include "graph/build.h"

mezzo_value mezzo_by_mode(mezzo_graph *g, mezzo_value training, mezzo_value evaluation) {
    const mezzo_value condition = mezzo_constant(g, MEZZO_I32, 1, 1, &(int64_t){1});
    mz_node node = MZ_BUILD_NODE(g, MZ_OP_where, training, evaluation, condition);
    if (mz_build_broken(g))
        return MEZZO_NONE;
    for (int i = 0; i < 2; i++) {
        const mezzo_value v = i ? evaluation : training;
        if (v.id < 0 || (size_t)v.id >= g->n_values)
            return mz_build_failed(g, mz_fail(MEZZO_ERR_INVALID, "by_mode: a value is missing"));
    }
    if (!mz_shape_equal(&g->values[training.id].shape, &g->values[evaluation.id].shape))
        return mz_build_failed(g, mz_fail(MEZZO_ERR_INVALID, "by_mode: two values of unlike shapes"));
    node.attrs.by_mode = true;
    return mz_build_finish(g, &node);
}

static void rename_value(mezzo_graph *g, size_t after, int from, int to) {
    for (size_t i = after; i < g->n_nodes; i++)
        for (int k = 0; k < g->nodes[i].n_in; k++)
            if (g->nodes[i].in[k] == from)
                g->nodes[i].in[k] = to;
    for (size_t i = 0; i < g->n_values; i++)
        if (g->values[i].alias == from)
            g->values[i].alias = to;
    for (size_t i = 0; i < g->n_outputs; i++)
        if (g->outputs[i].value == from)
            g->outputs[i].value = to;
    g->values[to].keep = g->values[to].keep || g->values[from].keep;
    g->loss = g->loss == from ? to : g->loss;
}

// Finds nodes that no output depends on, and no state that a run writes.
static void find_dead(const mezzo_graph *g, bool *read, bool *dead) {
    for (size_t i = 0; i < g->n_outputs; i++)
        read[g->outputs[i].value] = true;
    for (size_t i = g->n_nodes; i-- > 0;) {
        const mz_node *n = &g->nodes[i];
        bool lives = false;
        for (int k = 0; k < n->n_out; k++)
            lives = lives || (n->out[k] >= 0 && read[n->out[k]]);
        for (int k = 0; k < n->n_in; k++)
            lives = lives || (n->in[k] >= 0 && g->values[n->in[k]].state);
        for (int k = 0; k < n->n_in && lives; k++)
            if (n->in[k] >= 0)
                read[n->in[k]] = true;
        dead[i] = !lives;
    }
}

// Notes the parameters of which a program of the other mode reads the FP32 master.
static void note_other_mode(mezzo_graph *g, const bool *dead) {
    for (size_t i = 0; i < g->n_nodes; i++) {
        const mz_node *n = &g->nodes[i];
        const mz_cast_class cast_class = mz_op_table[n->op].cast_class;
        for (int k = 0; k < n->n_in && dead[i] && (cast_class == MZ_CAST_WIDEST || cast_class == MZ_CAST_FP32); k++) {
            const mz_value *v = n->in[k] >= 0 ? &g->values[n->in[k]] : NULL;
            if (v != NULL && v->kind == MZ_VALUE_PARAM)
                g->params[v->param].read_in_other_mode = true;
        }
    }
}

mezzo_status mz_graph_choose_mode(mezzo_graph *g, bool forward_only) {
    if (!forward_only && g->n_outputs > 0)
        MEZZO_TRY(mz_graph_join_tracked(g));
    for (size_t i = 0; i < g->n_nodes; i++) {
        const mz_node *n = &g->nodes[i];
        if (n->attrs.by_mode)
            rename_value(g, i + 1, n->out[0], n->in[forward_only ? 1 : 0]);
    }
    if (g->n_outputs == 0) // a graph without outputs is only looked at, so every node stays
        return MEZZO_OK;
    MZ_SCOPED(mz_free_at) bool *read = mz_alloc(g->n_values + 1, sizeof *read);
    MZ_SCOPED(mz_free_at) bool *dead = mz_alloc(g->n_nodes + 1, sizeof *dead);
    if (!read || !dead)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    find_dead(g, read, dead);
    note_other_mode(g, dead);
    mz_graph_compact(g, dead);
    return MEZZO_OK;
}
