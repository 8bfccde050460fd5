// Connects a program with the table of scales.
#include "runtime/program.h"

mezzo_status mz_program_find_entry(mezzo_program *p, int value, mz_scale_entry **out) {
    const mezzo_graph *g = p->c.graph;
    mezzo_dtype dtype = MEZZO_F8E4M3;
    int index;
    for (size_t i = 0; i < g->n_values; ++i)
        if (g->values[i].scaling != MZ_SCALING_NONE && g->values[i].scale == value)
            dtype = g->values[i].dtype;
    MEZZO_TRY(mz_scales_find(p->device, &p->params->scales, g->values[value].name, dtype, &index));
    *out = &p->params->scales.entries[index];
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
    MEZZO_TRY(mz_scales_sync(p->device, scales)); // a validation too: what has a history by now is not measured anew
    MEZZO_TRY(mz_params_settle_quantized(p->params));
    if (p->scales_version == scales->version)
        return MEZZO_OK;
    p->scales_version = scales->version;
    bool changed = false;
    for (size_t i = 0; i < p->c.n_calls; ++i) {
        mz_call *call = &p->c.calls[i];
        if (call->op != MZ_OP_quantize || !mz_present(&call->out[MZ_OUT(quantize, entry)]))
            continue;
        const mz_scale_entry *entry = call->out[MZ_OUT(quantize, entry)].data;
        const bool measure = !scales->known[entry - scales->entries], record = !p->options.forward_only;
        changed = changed || call->attrs.measure != measure || call->attrs.record != record;
        call->attrs.measure = measure;
        call->attrs.record = record;
    }
    if (changed)
        drop_recordings(p);
    return MEZZO_OK;
}
