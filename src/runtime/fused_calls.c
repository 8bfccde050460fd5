// Finds two or three neighbouring calls that one kernel of the device runs.
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

size_t mz_program_last_fused(const mezzo_program *p, size_t i) {
    return p->pairs[i] == NULL ? i : i + (p->pairs[i]->run_three != NULL ? 2 : 1);
}

// Returns whether one kernel may run both calls: they are on one stream, and neither moves other ranks' data.
static bool may_join(const mezzo_program *p, size_t i, size_t k) {
    const mz_node *first = &p->c.graph->nodes[p->c.node[i]], *second = &p->c.graph->nodes[p->c.node[k]];
    return (p->c.stream == NULL || p->c.stream[i] == p->c.stream[k]) &&
           first->gathers + second->gathers + first->exchanges + second->exchanges == 0;
}

// Returns the kernel that runs call i and one or two after it; NULL: each has its own.
static const mz_fused_kernel *kernel_from(const mezzo_program *p, size_t i, const int *readers) {
    const mz_backend *b = p->device->backend;
    const mz_call *calls = &p->c.calls[i];
    const mz_node *nodes = p->c.graph->nodes;
    const int *node = &p->c.node[i];
    const mz_fused_kernel *found = NULL;
    if (!may_join(p, i, i + 1))
        return NULL;
    if (b->fuse_three != NULL && i + 2 < p->c.n_calls && may_join(p, i, i + 2) &&
        is_private(p->c.graph, &nodes[node[1]], &nodes[node[2]], readers))
        found = b->fuse_three(p->device, calls, calls + 1, calls + 2);
    return found != NULL ? found
                         : b->fuse_calls(p->device, calls, calls + 1,
                                         is_private(p->c.graph, &nodes[node[0]], &nodes[node[1]], readers));
}

mezzo_status mz_program_find_fused(mezzo_program *p) {
    int *readers;
    MEZZO_TRY(MZ_NEW(p->pairs, p->c.n_calls + 1));
    if (p->device->backend->fuse_calls == NULL)
        return MEZZO_OK;
    MEZZO_TRY(count_readers(p, &readers));
    for (size_t i = 0; i + 1 < p->c.n_calls; i = mz_program_last_fused(p, i) + 1) {
        p->pairs[i] = kernel_from(p, i, readers);
        if (p->pairs[i])
            mz_log("dispatch", "%s: calls %zu to %zu in one piece", p->pairs[i]->name, i, mz_program_last_fused(p, i));
    }
    mz_free(readers);
    return MEZZO_OK;
}
