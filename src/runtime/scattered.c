// Handles gradients in shards: finds the last writer of each region, and how long whole gradients live in the arena.
#include "runtime/program.h"

int mz_gradient_of(const mezzo_graph *g, int value) {
    if (value < 0)
        return -1;
    const mz_value *v = &g->values[value], *root = &g->values[mz_value_root(g, value)];
    if (root->kind != MZ_VALUE_GRAD)
        return -1;
    return mz_stored_count(&v->shape, &v->storage) == mz_stored_count(&root->shape, &root->storage) ? root->param : -2;
}

// Finds the last node that writes each parameter's gradient; -1: none.
static mezzo_status last_writers(const mezzo_graph *g, int **out) {
    *out = mz_alloc(g->n_params + 1, sizeof **out);
    if (*out == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (size_t i = 0; i < g->n_params; ++i)
        (*out)[i] = -1;
    for (size_t i = 0; i < g->n_nodes; ++i)
        for (int k = 0; k < g->nodes[i].n_out && g->nodes[i].op != MZ_OP_reshape; ++k) {
            const int param = mz_gradient_of(g, g->nodes[i].out[k]);
            if (param >= 0)
                (*out)[param] = (int)i;
        }
    return MEZZO_OK;
}

// Returns the node after which a region's gradients are finished; -1: no node writes any.
static int region_writer(const mezzo_params *params, const mezzo_graph *g, const int *writers,
                         const mz_region *region) {
    int last = -1;
    for (size_t i = 0; i < g->n_params; ++i) {
        const mz_param *p = &params->list[mz_params_index(params, g, i)];
        if (!p->frozen && mz_region_has(params, region, p) && writers[i] > last)
            last = writers[i];
    }
    return last;
}

// Finds the lives of scattered gradients. A gradient lives until all its regions are summed, and a region's shard has
// memory from its sum on.
static mezzo_status find_sums(const mezzo_params *params, const mezzo_graph *g, mz_gradient_room *room) {
    size_t from = 0;
    int *writers;
    MEZZO_TRY(last_writers(g, &writers));
    for (int k = 0; k < params->n_regions; ++k) {
        const mz_region *region = &params->regions[k];
        const int writer = region_writer(params, g, writers, region), alone = mz_region_only_param(params, k);
        for (size_t i = 0; i < g->n_params; ++i) {
            const mz_param *p = &params->list[mz_params_index(params, g, i)];
            if (alone >= 0 && p == &params->list[alone])
                room->least[i] = (size_t)(params->ranks * region->shard) * sizeof(float);
            if (!p->frozen && mz_region_has(params, region, p) && writer > room->until[i])
                room->until[i] = writer;
        }
        const size_t to = from + (size_t)region->shard * sizeof(float);
        if (room->part != NULL)
            room->part[room->n_parts++] = (mz_part){from, to, writer >= 0 ? writer : 0};
        from = to;
    }
    mz_free(writers);
    return MEZZO_OK;
}

static mezzo_status check_scattered(const mezzo_params *params, const mz_compiled *c) {
    if (!c->covers)
        return mz_fail(MEZZO_ERR_UNSUPPORTED, "gradients cannot be kept in parts: a kernel adds to them alone");
    for (size_t i = 0; i < c->graph->n_params; ++i) {
        const int index = mz_params_index(params, c->graph, i);
        if (index < 0 || !mz_shape_equal(&params->list[index].shape, &c->graph->params[i].shape))
            return mz_fail(MEZZO_ERR_INVALID, "the parameters have no %s of the shape that the graph reads",
                           c->graph->params[i].name);
    }
    return MEZZO_OK;
}

mezzo_status mz_plan_scattered(const mezzo_device *device, const mezzo_params *params, bool lends,
                               const mz_stream_plan *streams, mz_compiled *c) {
    MEZZO_TRY(check_scattered(params, c));
    mz_gradient_room room = {.bytes = (size_t)params->grad_elements * sizeof(float),
                             .until = mz_alloc(c->graph->n_params + 1, sizeof *room.until),
                             .least = mz_alloc(c->graph->n_params + 1, sizeof *room.least),
                             .part = lends ? mz_alloc((size_t)params->n_regions + 1, sizeof *room.part) : NULL,
                             .late = device->backend->capture_stream != NULL};
    mezzo_status status = MEZZO_OK;
    if (room.until == NULL || room.least == NULL || (lends && room.part == NULL))
        status = mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    if (status == MEZZO_OK)
        status = find_sums(params, c->graph, &room);
    if (status == MEZZO_OK)
        status = mz_graph_plan(c->graph, streams, &room, &c->plan);
    MZ_FREE(room.until, room.least, room.part);
    return status;
}

float *mz_program_gradient(const mezzo_program *p, int index) {
    const mezzo_graph *g = p->c.graph;
    const char *name = p->params->list[index].name;
    for (size_t v = 0; v < g->n_values; ++v)
        if (g->values[v].kind == MZ_VALUE_GRAD && g->values[v].alias < 0 &&
            strcmp(g->params[g->values[v].param].name, name) == 0)
            return p->silent[index] ? NULL : p->address[v];
    return NULL;
}

mezzo_status mz_program_region_writer(const mezzo_program *p, int region, size_t *after) {
    int *writers;
    MEZZO_TRY(last_writers(p->c.graph, &writers));
    const int node = region_writer(p->params, p->c.graph, writers, &p->params->regions[region]);
    size_t i = 0;
    while (node >= 0 && i + 1 < p->c.n_calls && p->c.node[i] < node)
        ++i;
    *after = node >= 0 ? i : p->c.n_calls - 1;
    mz_free(writers);
    return MEZZO_OK;
}
