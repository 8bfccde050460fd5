// Parameters' 8-bit codes behind an optimizer's move: those that it does not write itself are quantized again.
#include "optim/optimizer.h"

bool mz_optimizer_owns_first(const mezzo_optimizer *opt) {
    int first = 0;
    while (opt->params->list[first].frozen)
        first++;
    for (int i = 0; i < opt->n; i++)
        if (opt->index[i] == first)
            return true;
    return false;
}

static bool owns_index(const mezzo_optimizer *opt, int index) {
    for (int i = 0; i < opt->n; i++)
        if (opt->index[i] == index)
            return true;
    return false;
}

void mz_optimizer_free_codes(mezzo_optimizer *opt) {
    for (int i = 0; i < opt->n_codes; i++)
        mz_prepared_free(&opt->codes[i].prepared);
    mz_free(opt->codes);
    mz_free(opt->codes_of);
    opt->codes = NULL;
    opt->codes_of = NULL;
    opt->n_codes = 0;
}

// Codes of what it moves; where it makes new scales for others too, theirs: those may have moved before.
mezzo_status mz_optimizer_prepare_codes(mezzo_optimizer *opt, size_t *scratch) {
    const mezzo_params *p = opt->params;
    const bool all = mz_optimizer_owns_first(opt);
    mz_optimizer_free_codes(opt);
    opt->codes_version = p->codes_version;
    if (p->n_codes == 0)
        return MEZZO_OK;
    opt->codes = mz_alloc((size_t)p->n_codes, sizeof *opt->codes);
    opt->codes_of = mz_alloc((size_t)p->n_codes, sizeof *opt->codes_of);
    if (opt->codes == NULL || opt->codes_of == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (int i = 0; i < p->n_codes; i++) {
        const int index = p->codes[i].param;
        if (p->list[index].frozen || (!all && !owns_index(opt, index)))
            continue;
        opt->codes_of[opt->n_codes] = index;
        mz_update_op *op = &opt->codes[opt->n_codes++];
        op->call = mz_codes_call(p, i);
        MEZZO_TRY(mz_prepare(opt->device, &op->call, &op->prepared));
        *scratch = op->prepared.workspace > *scratch ? op->prepared.workspace : *scratch;
    }
    return MEZZO_OK;
}

mezzo_status mz_optimizer_issue_codes(mezzo_optimizer *opt, mz_sequence *into) {
    for (int i = 0; i < opt->n_codes; i++)
        MEZZO_TRY(mz_issue(opt->device, into, &opt->codes[i].prepared, &opt->codes[i].call, opt->scratch, NULL));
    return MEZZO_OK;
}

mezzo_status mz_optimizer_defer_codes(mezzo_optimizer *opt, int first, int n, mz_sequence *into) {
    for (int i = 0; i < opt->n_codes; i++) {
        bool moved = false, own = false;
        for (int k = 0; k < opt->n; k++) {
            moved = moved || (opt->index[k] == opt->codes_of[i] && k >= first && k < first + n);
            own = own || opt->index[k] == opt->codes_of[i];
        }
        if (moved || (!own && first == 0)) // others' codes, which the new scales concern
            MEZZO_TRY(mz_sequence_defer(into, MZ_STREAM_DEFERRED, &opt->codes[i].prepared, &opt->codes[i].call, NULL));
    }
    return MEZZO_OK;
}
