// Finds neighbouring calls that one kernel of the device runs.
#include "runtime/program.h"

void mz_find_neighbour(const mezzo_device *device, mz_compiled *c, size_t i) {
    if (device->backend->may_fuse != NULL &&
        device->backend->may_fuse(mz_compiled_call(c, i), mz_compiled_call(c, i + 1)))
        c->graph->nodes[c->node[i]].until = c->node[i + 1];
}

// Counts the readers of each value's memory, a program's output included; views count for the whole value.
static mezzo_status count_readers(const mezzo_program *p, int **readers) {
    const mezzo_graph *g = p->c.graph;
    *readers = mz_alloc(g->n_values + 1, sizeof **readers);
    if (*readers == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (size_t i = 0; i < p->c.n_calls; ++i) {
        const mz_node *n = &g->nodes[p->c.node[i]];
        for (int k = 0; k < n->n_in; ++k)
            if (n->in[k] >= 0)
                (*readers)[mz_value_root(g, n->in[k])]++;
    }
    for (size_t v = 0; v < g->n_values; ++v)
        (*readers)[mz_value_root(g, (int)v)] += g->values[v].keep;
    return MEZZO_OK;
}

// Returns whether the second node is the only reader of the first one's result.
static bool is_private(const mezzo_graph *g, const mz_node *first, const mz_node *second, const int *readers) {
    for (int k = 0; k < first->n_out; ++k) {
        const int root = first->out[k] >= 0 ? mz_value_root(g, first->out[k]) : -1;
        for (int i = 0; i < second->n_in && root >= 0; ++i)
            if (second->in[i] >= 0 && mz_value_root(g, second->in[i]) == root &&
                (readers[root] != 1 || g->values[root].kind != MZ_VALUE_TEMP))
                return false;
    }
    return true;
}

mezzo_status mz_program_find_fused(mezzo_program *p) {
    const mz_backend *b = p->device->backend;
    const mezzo_graph *g = p->c.graph;
    int *readers;
    MEZZO_TRY(MZ_NEW(p->pairs, p->c.n_calls + 1));
    if (b->fuse_calls == NULL)
        return MEZZO_OK;
    MEZZO_TRY(count_readers(p, &readers));
    for (size_t i = 0; i + 1 < p->c.n_calls; ++i) {
        const mz_node *first = &g->nodes[p->c.node[i]], *second = &g->nodes[p->c.node[i + 1]];
        bool taken = i > 0 && p->pairs[i - 1], apart = p->c.stream && p->c.stream[i] != p->c.stream[i + 1];
        if (!taken && !apart && first->gathers + second->gathers + first->exchanges + second->exchanges == 0)
            p->pairs[i] =
                b->fuse_calls(p->device, &p->c.calls[i], &p->c.calls[i + 1], is_private(g, first, second, readers));
        if (p->pairs[i])
            mz_log("dispatch", "%s: calls %zu and %zu in one piece", p->pairs[i]->name, i, i + 1);
    }
    mz_free(readers);
    return MEZZO_OK;
}
