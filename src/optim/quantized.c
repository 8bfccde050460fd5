// Quantizes parameters again after an optimizer's update, where the update does not write their 8-bit data itself.
#include "base/scope.h"
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

mezzo_status mz_optimizer_issue_scales(mezzo_optimizer *opt, mz_sequence *into) {
    mz_scales *s = &opt->params->scales;
    if (s->n == 0)
        return MEZZO_OK;
    mz_call call = {.op = MZ_OP_scales_update,
                    .numerics = {MEZZO_F32, MEZZO_F32, MEZZO_F32},
                    .n_in = 2,
                    .in = {mz_tensor_bytes(opt->d_state, sizeof *opt->d_state), mz_tensor_absent()},
                    .n_out = 1,
                    .out = {mz_tensor_bytes(s->entries, (size_t)s->n * sizeof *s->entries)}};
    if (s->tables != NULL)
        call.in[1] = mz_tensor_bytes(s->tables, s->table_bytes);
    if (s->update.kernel == NULL)
        MEZZO_TRY(mz_prepare(opt->device, &call, &s->update));
    s->steps += into == NULL; // a list counts its steps when it runs
    return mz_issue(opt->device, into, &s->update, &call, NULL, NULL);
}

static bool owns_index(const mezzo_optimizer *opt, int index) {
    for (int i = 0; i < opt->n; i++)
        if (opt->index[i] == index)
            return true;
    return false;
}

void mz_optimizer_free_quantize(mezzo_optimizer *opt) {
    for (int i = 0; i < opt->n_quantize_ops; i++)
        mz_prepared_free(&opt->quantize_ops[i].op.prepared);
    for (int g = 0; g < opt->n_groups; g++) {
        mz_group *group = &opt->groups[g];
        void **const tables[] = {&group->d_plain, &group->d_quantized};
        for (size_t i = 0; i < MZ_COUNT(tables); i++) {
            if (*tables[i] != NULL)
                opt->device->backend->release(opt->device, *tables[i]);
            *tables[i] = NULL;
        }
        mz_prepared_free(&group->update_quantized.prepared);
        group->n_quantized = group->n_plain = 0;
    }
    mz_free(opt->quantize_ops);
    opt->quantize_ops = NULL;
    opt->n_quantize_ops = 0;
}

// --- those that the update writes ------------------------------------------------------------------------------------
// Returns the number of a parameter's quantized weights, where it has exactly one; else -1.
static int only_quantized(const mezzo_params *p, int index) {
    int found = -1;
    for (int i = 0; i < p->quantized.n; i++) {
        if (p->quantized.list[i].param != index)
            continue;
        if (found >= 0)
            return -1;
        found = i;
    }
    return found;
}

// Returns whether the update can write the 8-bit data of owned parameter i, by mz_quantized_segment's conditions.
// Moments that are rounded at random draw by the element's number, which padding changes.
static bool can_quantize(const mezzo_optimizer *opt, int i) {
    const mz_param *p = &opt->params->list[opt->index[i]];
    const mz_segment *s = &opt->segments[opt->begin[i]];
    const mz_shape stored = mz_stored_shape(&p->shape, &p->storage);
    const int64_t columns = stored.rank > 0 ? stored.dim[stored.rank - 1] : 1;
    const bool random = opt->moments != MEZZO_MOMENTS_FP32;
    return opt->begin[i + 1] == opt->begin[i] + 1 && s->low_copy_offset == MZ_NO_LOW_COPY && s->first == 0 &&
           p->master == MEZZO_MASTER_FP32 && !(p->storage.padded && random) && columns > 0 && columns % 16 == 0 &&
           p->stored / columns % 16 == 0;
}

static mz_quantized_segment quantized_of(const mezzo_optimizer *opt, int i, int code) {
    const mz_quantized *c = &opt->params->quantized.list[code];
    const mz_shape *shape = &c->master.shape;
    return (mz_quantized_segment){.segment = opt->segments[opt->begin[i]],
                                  .rows = mz_shape_rows(shape),
                                  .columns = shape->dim[shape->rank - 1],
                                  .rowwise = c->rowwise,
                                  .columnwise = c->columnwise,
                                  .entry = &opt->params->scales.entries[c->entry],
                                  .dtype = (int32_t)c->dtype};
}

static mezzo_status write_table(mezzo_optimizer *opt, const void *table, size_t bytes, void **out) {
    MEZZO_TRY(opt->device->backend->alloc(opt->device, bytes + 1, out));
    return bytes > 0 ? opt->device->backend->write(opt->device, *out, table, bytes) : MEZZO_OK;
}

static mezzo_status make_quantized(mezzo_optimizer *opt, mz_group *group, mz_segment *rest,
                                   mz_quantized_segment *quantized, size_t *scratch) {
    for (int i = 0; i < opt->n; i++) {
        if (&opt->groups[opt->group_of[i]] != group)
            continue;
        const int code = can_quantize(opt, i) ? only_quantized(opt->params, opt->index[i]) : -1;
        if (code >= 0) {
            quantized[group->n_quantized++] = quantized_of(opt, i, code);
            for (int k = 0; k < opt->n_quantize_ops; k++)
                if (opt->quantize_ops[k].param == opt->index[i])
                    opt->quantize_ops[k].separately = false;
        }
        for (size_t k = opt->begin[i]; code < 0 && k < opt->begin[i + 1]; k++)
            rest[group->n_plain++] = opt->segments[k];
    }
    if (group->n_quantized == 0)
        return MEZZO_OK;
    const size_t segments = (size_t)group->n_plain * sizeof *rest,
                 table = (size_t)group->n_quantized * sizeof *quantized;
    MEZZO_TRY(write_table(opt, rest, segments, &group->d_plain));
    MEZZO_TRY(write_table(opt, quantized, table, &group->d_quantized));
    mz_call *call = &group->update_quantized.call;
    *call = group->whole.call;
    call->n_in = MZ_IN(adamw, quantized) + 1; // all kinds have the same slots
    call->in[MZ_IN(adamw, segments)] = mz_tensor_segments(opt->params, group->d_plain, (size_t)group->n_plain);
    call->in[MZ_IN(adamw, quantized)] = mz_tensor_bytes(group->d_quantized, table);
    MEZZO_TRY(mz_prepare(opt->device, call, &group->update_quantized.prepared));
    *scratch =
        group->update_quantized.prepared.workspace > *scratch ? group->update_quantized.prepared.workspace : *scratch;
    return MEZZO_OK;
}

// Returns whether the device has a kernel of the group's kind that writes 8-bit data of the parameters it updates, with
// moments as they are stored.
static bool kernel_writes_quantized(const mezzo_optimizer *opt, const mz_group *group) {
    const mz_kernel *kernel =
        mz_post_kernel(opt->device, group->kind->op, mz_post_find(group->kind->op, MZ_POST_STORE));
    mz_call call = group->whole.call;
    mz_prepared prepared;
    if (kernel == NULL)
        return false;
    call.n_in = MZ_IN(adamw, quantized) + 1;
    call.in[MZ_IN(adamw, quantized)] = mz_tensor_bytes(NULL, sizeof(mz_quantized_segment));
    const char *reason = mz_prepare_kernel(opt->device, kernel, &call, &prepared);
    mz_prepared_free(&prepared);
    return reason == NULL;
}

// Prepares the quantizing calls. The optimizer that ends the step for the table makes the next step's scales before the
// updates.
static mezzo_status prepare_quantized(mezzo_optimizer *opt, size_t *scratch) {
    if (opt->rank >= 0 || !mz_optimizer_owns_first(opt))
        return MEZZO_OK;
    MZ_SCOPED(mz_free_at) mz_segment *rest = mz_alloc(opt->n_segments + 1, sizeof *rest);
    MZ_SCOPED(mz_free_at) mz_quantized_segment *quantized = mz_alloc((size_t)opt->n + 1, sizeof *quantized);
    MEZZO_TRY(rest != NULL && quantized != NULL ? MEZZO_OK : MEZZO_ERR_MEMORY);
    for (int g = 0; g < opt->n_groups; g++)
        if (opt->groups[g].n > 0 && !opt->groups[g].kind->reads.orthogonal &&
            kernel_writes_quantized(opt, &opt->groups[g]))
            MEZZO_TRY(make_quantized(opt, &opt->groups[g], rest, quantized, scratch));
    return MEZZO_OK;
}

// Prepares the quantize of the parameters that it updates. Where it makes new scales for other optimizers, it quantizes
// their parameters, too, which may have been updated before.
mezzo_status mz_optimizer_prepare_quantize(mezzo_optimizer *opt, size_t *scratch) {
    const mezzo_params *p = opt->params;
    const bool all = mz_optimizer_owns_first(opt);
    mz_optimizer_free_quantize(opt);
    opt->quantized_version = p->quantized.version;
    if (p->quantized.n == 0)
        return MEZZO_OK;
    opt->quantize_ops = mz_alloc((size_t)p->quantized.n, sizeof *opt->quantize_ops);
    if (opt->quantize_ops == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (int i = 0; i < p->quantized.n; i++) {
        const int index = p->quantized.list[i].param;
        if (p->quantized.list[i].frozen || (!all && !owns_index(opt, index)))
            continue;
        opt->quantize_ops[opt->n_quantize_ops] = (mz_quantize_op){.param = index, .separately = true};
        mz_update_op *op = &opt->quantize_ops[opt->n_quantize_ops++].op;
        op->call = mz_quantized_call(&p->quantized.list[i], &p->scales);
        MEZZO_TRY(mz_prepare(opt->device, &op->call, &op->prepared));
        *scratch = op->prepared.workspace > *scratch ? op->prepared.workspace : *scratch;
    }
    return prepare_quantized(opt, scratch);
}

mezzo_status mz_optimizer_issue_quantize(mezzo_optimizer *opt, mz_sequence *into) {
    for (int i = 0; i < opt->n_quantize_ops; i++)
        if (opt->quantize_ops[i].separately)
            MEZZO_TRY(mz_issue(opt->device, into, &opt->quantize_ops[i].op.prepared, &opt->quantize_ops[i].op.call,
                               opt->scratch, NULL));
    return MEZZO_OK;
}

mezzo_status mz_optimizer_defer_quantize(mezzo_optimizer *opt, int first, int n, mz_sequence *into) {
    for (int i = 0; i < opt->n_quantize_ops; i++) {
        const mz_quantize_op *q = &opt->quantize_ops[i];
        bool moved = false;
        for (int k = first; k < first + n; k++)
            moved = moved || opt->index[opt->owner[k]] == q->param;
        const bool own = owns_index(opt, q->param);
        if (moved || (!own && first == 0)) // parameters of others, to which the new scales apply
            MEZZO_TRY(mz_sequence_defer(into, MZ_STREAM_DEFERRED, &q->op.prepared, &q->op.call, NULL));
    }
    return MEZZO_OK;
}
