// Parameters' 8-bit codes: what programs read of them, kept from step to step. The update writes them anew; where the
// masters or the scales changed otherwise, they are quantized before the next run.
#include "runtime/program.h"

// --- the graph -----------------------------------------------------------------------------------------------------
// Whether codes may lie as the master does: rows and columns as 8-bit products of the device take them.
static bool is_aligned(const mezzo_params *params, const mz_param *p) {
    const mz_shape stored = mz_stored_shape(&p->shape, &p->storage);
    const int eight = params->device->storage.eight;
    if (!p->storage.padded)
        return true;
    return eight > 0 && stored.rank >= 2 && stored.dim[stored.rank - 1] % eight == 0 &&
           stored.dim[stored.rank - 2] % eight == 0;
}

// 8-bit codes lie beside a master that is here, whole, and have its padding; those of parts are quantized by programs.
mezzo_status mz_params_keep(const mezzo_params *params, mezzo_graph *g) {
    mz_keeping kept = {mz_alloc(g->n_params + 1, sizeof *kept.copied), mz_alloc(g->n_params + 1, sizeof *kept.coded)};
    mezzo_status status = MEZZO_OK;
    if (kept.copied == NULL || kept.coded == NULL)
        status = mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (size_t i = 0; i < g->n_params && status == MEZZO_OK; i++) {
        const int index = mz_params_index(params, g, i); // -1: told where it is bound
        const mz_param *p = index >= 0 ? &params->list[index] : NULL;
        kept.copied[i] = p == NULL || p->shadow_slot >= 0;
        kept.coded[i] = p != NULL && params->ranks == 0 && p->master == MEZZO_MASTER_FP32 && is_aligned(params, p) &&
                        mz_shape_equal(&p->shape, &g->params[i].shape);
    }
    if (status == MEZZO_OK)
        status = mz_graph_keep(g, &kept);
    mz_free(kept.copied);
    mz_free(kept.coded);
    return status;
}

static size_t bytes_of(const mezzo_graph *g, int value) {
    const mz_value *v = &g->values[value];
    return mz_align_up(mz_bytes_stored(&v->shape, &v->storage, v->dtype, v->turned), 256);
}

mezzo_status mz_codes_bytes(const mezzo_graph *g, size_t *bytes) {
    bool(*seen)[2] = mz_alloc(g->n_params + 1, sizeof *seen); // [parameter][turned]
    *bytes = 0;
    if (seen == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (size_t i = 0; i < g->n_values; i++) {
        const mz_value *v = &g->values[i];
        if (v->kind != MZ_VALUE_CODES || seen[v->param][v->turned])
            continue;
        seen[v->param][v->turned] = true;
        *bytes += bytes_of(g, (int)i);
    }
    mz_free(seen);
    return MEZZO_OK;
}

// --- memory --------------------------------------------------------------------------------------------------------
void mz_codes_free(mezzo_params *params) {
    for (int i = 0; i < params->n_code_blocks; i++)
        params->device->backend->release(params->device, params->code_blocks[i]);
    mz_free(params->code_blocks);
    mz_free(params->codes);
}

// The place of what a value of kind CODES names, in *out; made where there is none, without memory.
static mezzo_status find_codes(mezzo_program *p, int value, void ***out) {
    mezzo_params *params = p->params;
    const mezzo_graph *g = p->c.graph;
    const mz_value *v = &g->values[value];
    const int index = mz_params_index(params, g, (size_t)v->param);
    mz_scale_entry *entry;
    MEZZO_TRY(mz_program_find_entry(p, v->scale, &entry));
    const int at = (int)(entry - params->scales.entries);
    int i = 0;
    while (i < params->n_codes && (params->codes[i].param != index || params->codes[i].entry != at))
        i++;
    if (i == params->n_codes) {
        MEZZO_TRY(MZ_RESERVE(params->codes, params->cap_codes, (size_t)i + 1));
        params->codes[params->n_codes++] = (mz_codes){.param = index, .entry = at, .dtype = v->dtype};
    }
    *out = v->turned ? &params->codes[i].turned : &params->codes[i].codes;
    return MEZZO_OK;
}

static mezzo_status add_block(mezzo_params *params, size_t bytes, char **out) {
    size_t cap = (size_t)params->n_code_blocks;
    MEZZO_TRY(MZ_RESERVE(params->code_blocks, cap, (size_t)params->n_code_blocks + 1));
    MEZZO_TRY(params->device->backend->alloc(params->device, bytes, (void **)out));
    params->code_blocks[params->n_code_blocks++] = *out;
    params->codes_bytes += bytes;
    return MEZZO_OK;
}

// The values of codes that have no place yet: how much they take, and, with a block, where each lies in it. With
// recompute several values are the same codes, which lie there once.
static mezzo_status place_codes(mezzo_program *p, bool (*seen)[2], char *block, size_t *bytes) {
    const mezzo_graph *g = p->c.graph;
    *bytes = 0;
    memset(seen, 0, (g->n_params + 1) * sizeof *seen);
    for (size_t i = 0; i < g->n_values; i++) {
        const mz_value *v = &g->values[i];
        void **at = NULL;
        if (v->kind != MZ_VALUE_CODES)
            continue;
        MEZZO_TRY(find_codes(p, (int)i, &at));
        if (*at == NULL && !seen[v->param][v->turned]) {
            seen[v->param][v->turned] = true;
            *at = block != NULL ? block + *bytes : NULL;
            *bytes += bytes_of(g, (int)i);
        }
        p->address[i] = *at;
    }
    return MEZZO_OK;
}

// Twice over the values: how much is missing, and then where it lies.
mezzo_status mz_program_bind_codes(mezzo_program *p) {
    bool(*seen)[2] = mz_alloc(p->c.graph->n_params + 1, sizeof *seen); // [parameter][turned]
    size_t bytes = 0;
    char *block = NULL;
    if (seen == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    mezzo_status status = place_codes(p, seen, NULL, &bytes);
    if (status == MEZZO_OK && bytes > 0)
        status = add_block(p->params, bytes, &block);
    if (status == MEZZO_OK && bytes > 0)
        status = place_codes(p, seen, block, &bytes);
    mz_free(seen);
    if (status == MEZZO_OK && block != NULL) {
        p->params->codes_stale = true;
        p->params->codes_version++;
    }
    return status;
}

// --- what writes them ----------------------------------------------------------------------------------------------
mz_call mz_codes_call(const mezzo_params *params, int index) {
    const mz_codes *c = &params->codes[index];
    const mz_param *p = &params->list[c->param];
    mz_call call = {.op = MZ_OP_quantize,
                    .attrs = {.via = MEZZO_F32, .record = true, .keeps = true},
                    .numerics = {c->dtype, MEZZO_F32, MEZZO_F32},
                    .n_in = 1,
                    .n_out = MZ_OUT(quantize, entry) + 1};
    const mz_shape stored = mz_stored_shape(&p->shape, &p->storage); // quantize runs over padding as if it were data
    mz_tensor codes = {.dtype = c->dtype,
                       .shape = stored,
                       .scaling = MZ_SCALING_TENSOR,
                       .scale = &params->scales.entries[c->entry].scale};
    for (int k = 0; k < MZ_MAX_IN; k++)
        call.in[k] = mz_tensor_absent();
    for (int k = 0; k < MZ_MAX_OUT; k++)
        call.out[k] = mz_tensor_absent();
    call.in[0] = (mz_tensor){.data = params->master + p->offset, .dtype = MEZZO_F32, .shape = stored};
    codes.data = c->codes;
    if (c->codes != NULL)
        call.out[MZ_OUT(quantize, y)] = codes;
    codes.data = c->turned;
    codes.turned = true;
    if (c->turned != NULL)
        call.out[MZ_OUT(quantize, turned)] = codes;
    call.out[MZ_OUT(quantize, entry)] = mz_tensor_f32(&params->scales.entries[c->entry], MZ_SCALE_WORDS);
    return call;
}

// An entry without a history is measured before each run, as quantize in a program does. Weights that do not move are
// in it once, whoever writes their codes again.
mezzo_status mz_params_settle_codes(mezzo_params *params) {
    for (int i = 0; i < params->n_codes; i++) {
        const bool known = params->scales.known[params->codes[i].entry];
        if (known && !params->codes_stale)
            continue;
        MEZZO_TRY(mz_deferred_flush(params->device));
        mz_call call = mz_codes_call(params, i);
        mz_scale_entry *entry = &params->scales.entries[params->codes[i].entry];
        call.attrs.measure = !known;
        call.attrs.record = !known || !params->list[params->codes[i].param].frozen;
        MEZZO_TRY(params->device->backend->zero(params->device, &entry->kept, sizeof entry->kept));
        MEZZO_TRY(mz_run_once(params->device, &call));
    }
    params->codes_stale = false;
    return MEZZO_OK;
}
