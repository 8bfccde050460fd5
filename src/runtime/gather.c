#include "runtime/gather.h"

#include "backend/collective.h"
#include "base/scope.h"

// --- the graph -----------------------------------------------------------------------------------------------------
static void tell_gathers(const mezzo_graph *g) {
    for (size_t i = 0; i < g->n_nodes; i++) {
        const mz_node *n = &g->nodes[i];
        const mz_value *out = n->gathers > 0 ? &g->values[n->out[0]] : NULL;
        if (out != NULL)
            mz_log("dispatch", "gather: region %d of parameters, %lld × %s, for %s (%s)", n->gathers - 1,
                   (long long)out->shape.dim[0], mezzo_dtype_name(out->dtype), g->modules[n->module],
                   mz_phase_name(n->phase));
    }
}

mezzo_status mz_params_gather(const mezzo_params *params, bool ahead, bool trains, mezzo_graph *g) {
    if (!params->sharded)
        return MEZZO_OK;
    MZ_SCOPED(mz_free_at) int *region = mz_alloc(g->n_params + 1, sizeof *region);
    MZ_SCOPED(mz_free_at) int64_t *at = mz_alloc(g->n_params + 1, sizeof *at);
    MZ_SCOPED(mz_free_at) int64_t *elements = mz_alloc((size_t)params->n_regions + 1, sizeof *elements);
    MZ_SCOPED(mz_free_at) bool *exchanged = mz_alloc((size_t)params->n_regions + 1, sizeof *exchanged);
    if (region == NULL || at == NULL || elements == NULL || exchanged == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (int k = 0; k < params->n_regions; k++) {
        elements[k] = params->ranks * params->regions[k].shard;
        exchanged[k] = trains && mz_region_exchanged(params, k);
    }
    for (size_t i = 0; i < g->n_params; i++) {
        const int index = mz_params_index(params, g, i); // -1: binding reports the error
        region[i] = index >= 0 ? params->list[index].region : -1;
        at[i] = region[i] >= 0 ? params->list[index].offset - params->regions[region[i]].from : 0;
    }
    const mz_gathering parts = {region, at, elements, exchanged, params->n_regions, params->ranks, ahead};
    MEZZO_TRY(mz_graph_gather(g, &parts));
    tell_gathers(g);
    return MEZZO_OK;
}

// --- the call ------------------------------------------------------------------------------------------------------
typedef struct gather {
    const mezzo_params *params;
    int region;
    mz_collective what;
} gather;

static int low_copy_of(const mezzo_params *params, mezzo_dtype dtype) {
    int i = 0;
    while (i < params->n_low_copies && params->low_copies[i].dtype != dtype)
        i++;
    return i;
}

static const void *on_host(const gather *g) {
    const mz_whole *whole = g->params->whole;
    const int64_t from = g->params->regions[g->region].from;
    if (g->what.dtype == MEZZO_F32)
        return whole->master + from;
    return whole->low_copy[low_copy_of(g->params, g->what.dtype)] + (from - whole->from);
}

static mezzo_status run_gather(mezzo_device *device, const mz_call *call) {
    const gather *g = call->state;
    const size_t bytes = g->what.count * (size_t)g->params->ranks * mezzo_dtype_size(g->what.dtype);
    if (g->params->whole != NULL)
        return device->backend->write(device, g->what.recv, on_host(g), bytes);
    if (device->comm == NULL)
        return mz_fail(MEZZO_ERR_INVALID, "parameters lie in parts of %d ranks, and this process is none of them",
                       g->params->ranks);
    return device->comm->run(device->comm, device, &g->what);
}
static const mz_kernel gather_kernel = {"gather", NULL, run_gather};

mezzo_status mz_gather_prepare(mz_prepared *out) {
    *out = (mz_prepared){.kernel = &gather_kernel, .state = mz_alloc(1, sizeof(gather))};
    return out->state != NULL ? MEZZO_OK : mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
}

void mz_gather_bind(mezzo_params *params, int region, mz_call *call, mz_prepared *prepared) {
    const mezzo_dtype dtype = call->out[0].dtype;
    const mz_region *r = &params->regions[region];
    const int low_copy = low_copy_of(params, dtype);
    char *from = dtype == MEZZO_F32 ? (char *)(params->master + r->place)
                                    : (char *)params->low_copies[low_copy].data +
                                          (r->place - params->copied_from) * (int64_t)mezzo_dtype_size(dtype);
    gather *g = prepared->state;
    *g = (gather){
        .params = params,
        .region = region,
        .what = {
            .kind = MZ_ALL_GATHER, .send = from, .recv = call->out[0].data, .count = (size_t)r->shard, .dtype = dtype}};
    call->n_in = 1;
    call->in[0] = (mz_tensor){.data = from, .dtype = dtype, .shape = {1, {r->shard}}};
}

// --- all parameters on the host ------------------------------------------------------------------------------------
mezzo_status mz_params_open_whole(mezzo_params *params) {
    const int64_t copied = params->n_regions > 0 ? params->ranks * params->copied_from : 0;
    mz_whole *w;
    MEZZO_TRY(MZ_NEW(w, 1));
    params->whole = w;
    w->from = copied;
    w->master = mz_alloc((size_t)params->elements + 1, sizeof *w->master);
    bool all = w->master != NULL;
    for (int i = 0; i < params->n_low_copies && all; i++) {
        w->low_copy[i] = mz_alloc((size_t)(params->elements - copied) + 1, sizeof *w->low_copy[i]);
        all = w->low_copy[i] != NULL;
    }
    if (all)
        return MEZZO_OK;
    mz_params_close_whole(params);
    return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
}

void mz_params_close_whole(mezzo_params *params) {
    if (params->whole == NULL)
        return;
    mz_free(params->whole->master);
    for (size_t i = 0; i < MZ_COUNT(params->whole->low_copy); i++)
        mz_free(params->whole->low_copy[i]);
    mz_free(params->whole);
    params->whole = NULL;
}
