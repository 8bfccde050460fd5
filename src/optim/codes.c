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
    void **const tables[] = {&opt->d_rest, &opt->d_coded};
    for (int i = 0; i < opt->n_codes; i++)
        mz_prepared_free(&opt->codes[i].prepared);
    for (size_t i = 0; i < MZ_COUNT(tables); i++) {
        if (*tables[i] != NULL)
            opt->device->backend->release(opt->device, *tables[i]);
        *tables[i] = NULL;
    }
    mz_prepared_free(&opt->coded.prepared);
    mz_free(opt->codes);
    mz_free(opt->codes_of);
    mz_free(opt->codes_apart);
    opt->codes = NULL;
    opt->codes_of = NULL;
    opt->codes_apart = NULL;
    opt->n_codes = opt->n_coded = opt->n_rest = 0;
}

// --- those that the move writes ------------------------------------------------------------------------------------
// The only codes of a parameter, by their number; -1: none, or others too.
static int only_codes(const mezzo_params *p, int index) {
    int found = -1;
    for (int i = 0; i < p->n_codes; i++) {
        if (p->codes[i].param != index)
            continue;
        if (found >= 0)
            return -1;
        found = i;
    }
    return found;
}

// Whether the update can write the codes of owned parameter i: mz_coded's conditions. Moments that are rounded at
// random draw by the number of the element, which padding changes.
static bool can_code(const mezzo_optimizer *opt, int i) {
    const mz_param *p = &opt->params->list[opt->index[i]];
    const mz_segment *s = &opt->segments[opt->begin[i]];
    const mz_shape stored = mz_stored_shape(&p->shape, &p->storage);
    const int64_t columns = stored.rank > 0 ? stored.dim[stored.rank - 1] : 1;
    const bool random = opt->move.call.out[MZ_OUT(adamw, m)].dtype != MEZZO_F32;
    return opt->begin[i + 1] == opt->begin[i] + 1 && s->shadow_offset == MZ_NO_SHADOW && s->first == 0 &&
           p->master == MEZZO_MASTER_FP32 && !(p->storage.padded && random) && columns > 0 && columns % 16 == 0 &&
           p->stored / columns % 16 == 0;
}

static mz_coded coded_of(const mezzo_optimizer *opt, int i, int code) {
    const mz_codes *c = &opt->params->codes[code];
    const mz_param *p = &opt->params->list[c->param];
    const mz_shape shape = mz_stored_shape(&p->shape, &p->storage);
    return (mz_coded){.segment = opt->segments[opt->begin[i]],
                      .rows = mz_shape_rows(&shape),
                      .columns = shape.dim[shape.rank - 1],
                      .codes = c->codes,
                      .turned = c->turned,
                      .entry = &opt->params->scales.entries[c->entry],
                      .dtype = (int32_t)c->dtype};
}

static mezzo_status write_table(mezzo_optimizer *opt, const void *table, size_t bytes, void **out) {
    MEZZO_TRY(opt->device->backend->alloc(opt->device, bytes + 1, out));
    return bytes > 0 ? opt->device->backend->write(opt->device, *out, table, bytes) : MEZZO_OK;
}

static mezzo_status make_coded(mezzo_optimizer *opt, mz_segment *rest, mz_coded *coded, size_t *scratch) {
    for (int i = 0; i < opt->n; i++) {
        const int code = can_code(opt, i) ? only_codes(opt->params, opt->index[i]) : -1;
        if (code >= 0) {
            coded[opt->n_coded++] = coded_of(opt, i, code);
            for (int k = 0; k < opt->n_codes; k++)
                opt->codes_apart[k] = opt->codes_apart[k] && opt->codes_of[k] != opt->index[i];
        }
        for (size_t k = opt->begin[i]; code < 0 && k < opt->begin[i + 1]; k++)
            rest[opt->n_rest++] = opt->segments[k];
    }
    if (opt->n_coded == 0)
        return MEZZO_OK;
    const size_t segments = (size_t)opt->n_rest * sizeof *rest, table = (size_t)opt->n_coded * sizeof *coded;
    MEZZO_TRY(write_table(opt, rest, segments, &opt->d_rest));
    MEZZO_TRY(write_table(opt, coded, table, &opt->d_coded));
    opt->coded.call = opt->move.call;
    opt->coded.call.n_in = MZ_IN(adamw, codes) + 1;
    opt->coded.call.in[MZ_IN(adamw, segments)] = mz_tensor_segments(opt->params, opt->d_rest, (size_t)opt->n_rest);
    opt->coded.call.in[MZ_IN(adamw, codes)] = mz_tensor_bytes(opt->d_coded, table);
    MEZZO_TRY(mz_prepare(opt->device, &opt->coded.call, &opt->coded.prepared));
    *scratch = opt->coded.prepared.workspace > *scratch ? opt->coded.prepared.workspace : *scratch;
    return MEZZO_OK;
}

// Scales of the step to come are made in front of the move by the optimizer that ends the step for the table.
static mezzo_status prepare_coded(mezzo_optimizer *opt, size_t *scratch) {
    const mz_backend *b = opt->device->backend;
    const mezzo_dtype moments = opt->sgd ? MEZZO_F32 : opt->move.call.out[MZ_OUT(adamw, m)].dtype;
    if (b->writes_codes == NULL || opt->sgd || opt->rank >= 0 || !mz_optimizer_owns_first(opt) ||
        !b->writes_codes(moments))
        return MEZZO_OK;
    mz_segment *rest = mz_alloc(opt->n_segments + 1, sizeof *rest);
    mz_coded *coded = mz_alloc((size_t)opt->n + 1, sizeof *coded);
    mezzo_status status = rest != NULL && coded != NULL ? make_coded(opt, rest, coded, scratch) : MEZZO_ERR_MEMORY;
    mz_free(rest);
    mz_free(coded);
    return status;
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
    opt->codes_apart = mz_alloc((size_t)p->n_codes, sizeof *opt->codes_apart);
    if (opt->codes == NULL || opt->codes_of == NULL || opt->codes_apart == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (int i = 0; i < p->n_codes; i++) {
        const int index = p->codes[i].param;
        if (p->list[index].frozen || (!all && !owns_index(opt, index)))
            continue;
        opt->codes_of[opt->n_codes] = index;
        opt->codes_apart[opt->n_codes] = true;
        mz_update_op *op = &opt->codes[opt->n_codes++];
        op->call = mz_codes_call(p, i);
        MEZZO_TRY(mz_prepare(opt->device, &op->call, &op->prepared));
        *scratch = op->prepared.workspace > *scratch ? op->prepared.workspace : *scratch;
    }
    return prepare_coded(opt, scratch);
}

mezzo_status mz_optimizer_issue_codes(mezzo_optimizer *opt, mz_sequence *into) {
    for (int i = 0; i < opt->n_codes; i++)
        if (opt->codes_apart[i])
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
