// Quantized weights, which the parameters keep from step to step. The update writes them. Where masters or scales
// changed otherwise, they are quantized before the next run.
#include "runtime/program.h"

// --- the graph -----------------------------------------------------------------------------------------------------
// Quantized data may have the master's layout: its rows and columns suit the device's 8-bit products.
static bool is_aligned(const mezzo_params *params, const mz_param *p) {
    const mz_shape stored = mz_stored_shape(&p->shape, &p->storage);
    const int eight = params->device->storage.eight;
    if (!p->storage.padded)
        return true;
    return eight > 0 && stored.rank >= 2 && stored.dim[stored.rank - 1] % eight == 0 &&
           stored.dim[stored.rank - 2] % eight == 0;
}

// Quantized weights need a whole master in this process, and have its padding. Programs quantize sharded parameters,
// and with recomputation all.
mezzo_status mz_params_keep(const mezzo_params *params, mezzo_graph *g) {
    mz_keeping kept = {mz_alloc(g->n_params + 1, sizeof *kept.copied),
                       mz_alloc(g->n_params + 1, sizeof *kept.quantized)};
    mezzo_status status = MEZZO_OK;
    if (kept.copied == NULL || kept.quantized == NULL)
        status = mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (size_t i = 0; i < g->n_params && status == MEZZO_OK; i++) {
        const int index = mz_params_index(params, g, i); // -1: binding reports it
        const mz_param *p = index >= 0 ? &params->list[index] : NULL;
        kept.copied[i] = p == NULL || p->low_copy_slot >= 0;
        kept.quantized[i] = p != NULL && !params->requantizes && params->ranks == 0 && p->master == MEZZO_MASTER_FP32 &&
                            is_aligned(params, p) && mz_shape_equal(&p->shape, &g->params[i].shape);
    }
    if (status == MEZZO_OK)
        status = mz_graph_keep(g, &kept);
    mz_free(kept.copied);
    mz_free(kept.quantized);
    return status;
}

static size_t bytes_of(const mezzo_graph *g, int value) {
    const mz_value *v = &g->values[value];
    return mz_align_up(mz_bytes_stored(&v->shape, &v->storage, v->dtype, v->columnwise), 256);
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
void mz_quantized_free(mezzo_params *params) {
    for (int i = 0; i < params->n_quantized_blocks; i++)
        params->device->backend->release(params->device, params->quantized_blocks[i]);
    mz_free(params->quantized_blocks);
    mz_free(params->quantized);
}

// *out: the pointer to the data of a value of kind QUANTIZED. It is NULL where memory is missing; the entry is made.
static mezzo_status find_quantized(mezzo_program *p, int value, void ***out) {
    mezzo_params *params = p->params;
    const mezzo_graph *g = p->c.graph;
    const mz_value *v = &g->values[value];
    const int index = mz_params_index(params, g, (size_t)v->param);
    mz_scale_entry *entry;
    MEZZO_TRY(mz_program_find_entry(p, v->scale, &entry));
    const int at = (int)(entry - params->scales.entries);
    int i = 0;
    while (i < params->n_quantized && (params->quantized[i].param != index || params->quantized[i].entry != at))
        i++;
    if (i == params->n_quantized) {
        MEZZO_TRY(MZ_RESERVE(params->quantized, params->cap_quantized, (size_t)i + 1));
        params->quantized[params->n_quantized++] = (mz_quantized){.param = index, .entry = at, .dtype = v->dtype};
    }
    *out = v->columnwise ? &params->quantized[i].columnwise : &params->quantized[i].rowwise;
    return MEZZO_OK;
}

static mezzo_status add_block(mezzo_params *params, size_t bytes, char **out) {
    size_t cap = (size_t)params->n_quantized_blocks;
    MEZZO_TRY(MZ_RESERVE(params->quantized_blocks, cap, (size_t)params->n_quantized_blocks + 1));
    MEZZO_TRY(params->device->backend->alloc(params->device, bytes, (void **)out));
    params->quantized_blocks[params->n_quantized_blocks++] = *out;
    params->quantized_bytes += bytes;
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
    bool(*seen)[2] = mz_alloc(p->c.graph->n_params + 1, sizeof *seen); // [parameter][turned]
    size_t bytes = 0;
    char *block = NULL;
    if (seen == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    mezzo_status status = place_quantized(p, seen, NULL, &bytes);
    if (status == MEZZO_OK && bytes > 0)
        status = add_block(p->params, bytes, &block);
    if (status == MEZZO_OK && bytes > 0)
        status = place_quantized(p, seen, block, &bytes);
    mz_free(seen);
    if (status == MEZZO_OK && block != NULL) {
        p->params->quantized_stale = true;
        p->params->quantized_version++;
    }
    return status;
}

// --- what writes them ----------------------------------------------------------------------------------------------
mz_call mz_quantized_call(const mezzo_params *params, int index) {
    const mz_quantized *c = &params->quantized[index];
    const mz_param *p = &params->list[c->param];
    mz_call call = {.op = MZ_OP_quantize,
                    .attrs = {.via = MEZZO_F32, .record = true, .keeps = true},
                    .numerics = {c->dtype, MEZZO_F32, MEZZO_F32},
                    .n_in = 1,
                    .n_out = MZ_OUT(quantize, entry) + 1};
    const mz_shape stored = mz_stored_shape(&p->shape, &p->storage); // quantize treats padding as data
    mz_tensor quantized = {.dtype = c->dtype,
                           .shape = stored,
                           .scaling = MZ_SCALING_TENSOR,
                           .scale = &params->scales.entries[c->entry].scale};
    for (int k = 0; k < MZ_MAX_IN; k++)
        call.in[k] = mz_tensor_absent();
    for (int k = 0; k < MZ_MAX_OUT; k++)
        call.out[k] = mz_tensor_absent();
    call.in[0] = (mz_tensor){.data = params->master + p->offset, .dtype = MEZZO_F32, .shape = stored};
    quantized.data = c->rowwise;
    if (c->rowwise != NULL)
        call.out[MZ_OUT(quantize, y)] = quantized;
    quantized.data = c->columnwise;
    quantized.columnwise = true;
    if (c->columnwise != NULL)
        call.out[MZ_OUT(quantize, columnwise)] = quantized;
    call.out[MZ_OUT(quantize, entry)] = mz_tensor_f32(&params->scales.entries[c->entry], MZ_SCALE_WORDS);
    return call;
}

// Before each run, measures entries without a history, as a program's quantize does. The amax of frozen weights is
// recorded once.
mezzo_status mz_params_settle_quantized(mezzo_params *params) {
    for (int i = 0; i < params->n_quantized; i++) {
        const bool known = params->scales.known[params->quantized[i].entry];
        if (known && !params->quantized_stale)
            continue;
        MEZZO_TRY(mz_deferred_flush(params->device));
        mz_call call = mz_quantized_call(params, i);
        mz_scale_entry *entry = &params->scales.entries[params->quantized[i].entry];
        call.attrs.measure = !known;
        call.attrs.record = !known || !params->list[params->quantized[i].param].frozen;
        MEZZO_TRY(params->device->backend->zero(params->device, &entry->weight_amax, sizeof entry->weight_amax));
        MEZZO_TRY(mz_run_once(params->device, &call));
    }
    params->quantized_stale = false;
    return MEZZO_OK;
}
