#include "study/measure/explained_ranks.h"

#include "study/measure/explained.h"

static void count(const mezzo_graph *g, const mezzo_params *params, mz_explained_ranks *out) {
    for (size_t i = 0; i < g->n_values; i++)
        if (g->values[i].kind == MZ_VALUE_LOW_COPY)
            out->copies = (size_t)params->low_copy_elements * mezzo_dtype_size(g->values[i].dtype);
    for (size_t i = 0; i < g->n_nodes; i++) {
        const mz_node *n = &g->nodes[i];
        out->exchanged += n->exchanges > 0 && n->op != MZ_OP_quantize;
        if (n->gathers == 0)
            continue;
        const mz_value *v = &g->values[n->out[0]];
        *(n->phase == MZ_FORWARD ? &out->forward : &out->backward) += 1;
        out->gathered += (size_t)mz_shape_count(&v->shape) * mezzo_dtype_size(v->dtype);
    }
}

mezzo_status mz_explain_ranks(mezzo_device *device, const mezzo_graph *g, const mezzo_program_options *options,
                              mezzo_master master, const mz_cut *cut, mz_explained_ranks *out) {
    mz_explained_graph run;
    mezzo_status status = mz_explained_open(device, g, options, master, cut, "gather", &run);
    const mezzo_params *params = run.params;
    if (status != MEZZO_OK) {
        mz_explained_close(&run);
        return status;
    }
    *out = (mz_explained_ranks){.ranks = cut->ranks,
                                .buckets = params->n_regions,
                                .masters = params->master_bytes,
                                .gradients = (size_t)params->grad_elements * sizeof(float)};
    count(run.c.graph, params, out);
    mz_explained_close(&run);
    return MEZZO_OK;
}
