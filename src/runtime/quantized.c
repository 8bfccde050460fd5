// Connects a program with the parameters' table of scales and their quantized weights. The update writes these; where
// masters or scales changed otherwise, they are quantized before the next run.
#include "runtime/program.h"

// --- the graph -----------------------------------------------------------------------------------------------------
// Returns whether quantized data may have the master's layout: its rows and columns suit the device's 8-bit products.
static bool is_aligned(const mezzo_params *params, const mz_param *p) {
    const mz_shape stored = mz_stored_shape(&p->shape, &p->storage);
    const int eight = params->device->storage.eight;
    if (!p->storage.padded)
        return true;
    return eight > 0 && stored.rank >= 2 && stored.dim[stored.rank - 1] % eight == 0 &&
           stored.dim[stored.rank - 2] % eight == 0;
}

// Keeps the quantized weights of masters that are whole in this process. Programs themselves quantize sharded
// parameters and, with recomputation, all of them.
mezzo_status mz_params_keep(const mezzo_params *params, mezzo_graph *g) {
    mz_keeping kept = {mz_alloc(g->n_params + 1, sizeof *kept.copied),
                       mz_alloc(g->n_params + 1, sizeof *kept.quantized)};
    mezzo_status status = MEZZO_OK;
    if (kept.copied == NULL || kept.quantized == NULL)
        status = mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (size_t i = 0; i < g->n_params && status == MEZZO_OK; i++) {
        const int index = mz_params_index(params, g, i); // -1: binding reports the error
        const mz_param *p = index >= 0 ? &params->list[index] : NULL;
        kept.copied[i] = p == NULL || p->low_copy_slot >= 0;
        kept.quantized[i] = p != NULL && !params->requantizes && params->ranks == 0 && p->master == MEZZO_MASTER_FP32 &&
                            is_aligned(params, p) && mz_shape_equal(&p->shape, &g->params[i].shape);
    }
    if (status == MEZZO_OK)
        status = mz_graph_keep(g, &kept);
    MZ_FREE(kept.copied, kept.quantized);
    return status;
}

static size_t bytes_of(const mezzo_graph *g, int value) {
    const mz_tensor t = mz_value_tensor(g, value);
    return mz_align_up(mz_tensor_bytes_stored(&t), 256);
}

mezzo_status mz_quantized_bytes(const mezzo_graph *g, size_t *bytes) {
    bool(*seen)[2] = mz_alloc(g->n_params + 1, sizeof *seen); // [parameter][columnwise]
    *bytes = 0;
    if (seen == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (size_t i = 0; i < g->n_values; i++) {
        const mz_value *v = &g->values[i];
        if (v->kind != MZ_VALUE_QUANTIZED || seen[v->param][v->columnwise])
            continue;
        seen[v->param][v->columnwise] = true;
        *bytes += bytes_of(g, (int)i);
    }
    mz_free(seen);
    return MEZZO_OK;
}

// --- memory --------------------------------------------------------------------------------------------------------
mezzo_status mz_program_bind_entry(mezzo_program *p, int value) {
    const mezzo_graph *g = p->c.graph;
    mezzo_dtype dtype = MEZZO_F8E4M3;
    int index;
    for (size_t i = 0; i < g->n_values; ++i)
        if (g->values[i].scaling != MZ_SCALING_NONE && g->values[i].scale == value)
            dtype = g->values[i].dtype;
    MEZZO_TRY(mz_scales_find(p->device, &p->params->scales, g->values[value].name, dtype, &index));
    p->address[value] = mz_scales_tensor(&p->params->scales, index).data;
    return MEZZO_OK;
}

// Finds the pointer to the data of a value of kind QUANTIZED. It is NULL where the data have no memory yet.
static mezzo_status find_quantized(mezzo_program *p, int value, void ***out) {
    const mezzo_params *params = p->params;
    const mz_value *v = &p->c.graph->values[value];
    const int index = mz_params_index(params, p->c.graph, (size_t)v->param);
    const mz_param *param = &params->list[index];
    const mz_quantized made = {.param = index,
                               .entry = mz_scales_index(&params->scales, p->address[v->scale]),
                               .frozen = param->frozen,
                               .dtype = v->dtype,
                               .scaling = v->scaling,
                               .master = {.data = params->master + param->offset,
                                          .dtype = MEZZO_F32,
                                          .shape = mz_stored_shape(&param->shape, &param->storage)}};
    mz_quantized *found;
    MEZZO_TRY(mz_quantized_find(&p->params->quantized, &made, &found));
    *out = v->columnwise ? &found->columnwise : &found->rowwise;
    return MEZZO_OK;
}

// Counts the bytes of quantized values without memory, and with `block` places each in it. With recompute several
// values may have the same data.
static mezzo_status place_quantized(mezzo_program *p, bool (*seen)[2], char *block, size_t *bytes) {
    const mezzo_graph *g = p->c.graph;
    *bytes = 0;
    memset(seen, 0, (g->n_params + 1) * sizeof *seen);
    for (size_t i = 0; i < g->n_values; i++) {
        const mz_value *v = &g->values[i];
        void **at = NULL;
        if (v->kind != MZ_VALUE_QUANTIZED)
            continue;
        MEZZO_TRY(find_quantized(p, (int)i, &at));
        if (*at == NULL && !seen[v->param][v->columnwise]) {
            seen[v->param][v->columnwise] = true;
            *at = block != NULL ? block + *bytes : NULL;
            *bytes += bytes_of(g, (int)i);
        }
        p->address[i] = *at;
    }
    return MEZZO_OK;
}

// Goes over the values twice: to count the missing bytes, and to place the values.
mezzo_status mz_program_bind_quantized(mezzo_program *p) {
    bool(*seen)[2] = mz_alloc(p->c.graph->n_params + 1, sizeof *seen); // [parameter][columnwise]
    size_t bytes = 0;
    char *block = NULL;
    if (seen == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    mezzo_status status = place_quantized(p, seen, NULL, &bytes);
    if (status == MEZZO_OK && bytes > 0)
        status = mz_quantized_add_block(p->device, &p->params->quantized, bytes, &block);
    if (status == MEZZO_OK && bytes > 0)
        status = place_quantized(p, seen, block, &bytes);
    mz_free(seen);
    return status;
}

// --- before a run --------------------------------------------------------------------------------------------------
// Measures entries without a history, as a program's quantize does, and records the amax of frozen weights once.
static mezzo_status settle(mezzo_params *params) {
    for (int i = 0; i < params->quantized.n; i++) {
        const mz_quantized *q = &params->quantized.list[i];
        const bool known = params->scales.known[q->entry];
        if (known && !params->quantized.stale)
            continue;
        MEZZO_TRY(mz_deferred_flush(params->device));
        mz_call call = mz_quantized_call(q, &params->scales);
        uint32_t *amax = &params->scales.entries[q->entry].weight_amax;
        call.attrs.measure = !known;
        call.attrs.record = !known || !q->frozen;
        MEZZO_TRY(params->device->backend->zero(params->device, amax, sizeof *amax));
        MEZZO_TRY(mz_run_once(params->device, &call));
    }
    params->quantized.stale = false;
    return MEZZO_OK;
}

static void drop_recordings(mezzo_program *p) {
    for (size_t i = 0; i < MZ_COUNT(p->recordings); ++i) {
        if (p->recordings[i].graph)
            p->device->backend->capture_free(p->device, p->recordings[i].graph);
        p->recordings[i] = (mz_recording){0};
    }
}

mezzo_status mz_program_follow_scales(mezzo_program *p) {
    mz_scales *scales = &p->params->scales;
    MEZZO_TRY(mz_scales_sync(p->device, scales)); // this also checks them: an entry that has a history by now is not
                                                  // measured again
    MEZZO_TRY(settle(p->params));
    if (p->scales_version == scales->version)
        return MEZZO_OK;
    p->scales_version = scales->version;
    bool changed = false;
    for (size_t i = 0; i < p->c.n_calls; ++i) {
        mz_call *call = &p->c.calls[i];
        if (mz_graph_entry(p->c.graph, &p->c.graph->nodes[p->c.node[i]]) < 0)
            continue;
        const void *entry = call->out[MZ_OUT(quantize, scales)].data;
        const bool measure = !scales->known[mz_scales_index(scales, entry)], record = !p->options.forward_only;
        changed = changed || call->attrs.measure != measure || call->attrs.record != record;
        call->attrs.measure = measure;
        call->attrs.record = record;
    }
    if (changed)
        drop_recordings(p);
    return MEZZO_OK;
}
