// Moves frozen parameters that follow values of a program: the program's runs leave rows on the device, and one call
// moves the parameters by all of them.
#include "base/scope.h"
#include "runtime/program.h"

size_t mz_tracker_plan(const mezzo_graph *graph, int64_t batches) {
    return (size_t)mz_graph_tracked(graph) * (sizeof(mz_tracked) + (size_t)batches * sizeof(float));
}

// Fills a parameter's entries. last: by element of the frozen masters, 1 + the last entry that moves it.
static mezzo_status fill_param(const mezzo_params *params, const mezzo_graph *g, const mz_tracking *what, int64_t first,
                               mz_tracked *entries, int64_t *last) {
    const int index = mz_params_index(params, g, (size_t)what->param);
    const mz_param *p = index >= 0 ? &params->list[index] : NULL;
    if (p == NULL || !p->frozen || p->master != MEZZO_MASTER_FP32 || p->low_copy_slot >= 0)
        return mz_fail(MEZZO_ERR_UNSUPPORTED,
                       "parameter %s follows a value, so that it must be frozen and only read in fp32",
                       g->params[what->param].name);
    for (int64_t i = 0; i < p->count; i++) {
        const int64_t place = p->offset - params->frozen_at + mz_layout_index(&p->layout, i), before = last[place];
        entries[first + i] = (mz_tracked){.place = before > 0 ? -1 : place, .next = -1, .momentum = what->momentum};
        if (before > 0)
            entries[before - 1].next = first + i;
        last[place] = first + i + 1;
    }
    return MEZZO_OK;
}

static mezzo_status fill(const mezzo_program *program, mz_tracked *entries, int64_t *last) {
    const mezzo_graph *g = program->c.graph;
    int64_t first = 0;
    for (size_t i = 0; i < g->n_tracked; i++) {
        MEZZO_TRY(fill_param(program->params, g, &g->tracked[i], first, entries, last));
        first += mz_shape_count(&g->params[g->tracked[i].param].shape);
    }
    return MEZZO_OK;
}

static mezzo_status write_entries(mz_tracker *t, const mezzo_program *p) {
    MZ_SCOPED(mz_free_at) mz_tracked *entries = mz_alloc((size_t)t->count, sizeof *entries);
    MZ_SCOPED(mz_free_at) int64_t *last = mz_alloc((size_t)p->params->frozen_fp32 + 1, sizeof *last);
    MEZZO_TRY(entries != NULL && last != NULL ? fill(p, entries, last)
                                              : mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__));
    return t->device->backend->write(t->device, t->entries, entries, (size_t)t->count * sizeof *entries);
}

static mz_call keep_call(const mezzo_program *p, int64_t count) {
    const mezzo_graph *g = p->c.graph;
    size_t i = 0;
    while (strcmp(g->outputs[i].name, MZ_TRACKED) != 0) // every program that trains has it
        i++;
    const int value = g->outputs[i].value;
    const mezzo_dtype dtype = g->values[value].dtype;
    mz_call call = {.op = dtype == MEZZO_F32 ? MZ_OP_copy : MZ_OP_cast,
                    .numerics = {MEZZO_F32, MEZZO_F32, MEZZO_F32},
                    .n_in = 1,
                    .in = {mz_tensor_f32(p->address[value], count)},
                    .n_out = 1,
                    .out = {mz_tensor_f32(NULL, count)}};
    call.in[0].dtype = dtype;
    return call;
}

static mz_call move_call(const mz_tracker *t, const mezzo_params *p) {
    mz_call call = {.op = MZ_OP_track,
                    .numerics = {MEZZO_F32, MEZZO_F32, MEZZO_F64},
                    .n_in = 3,
                    .in = {mz_tensor_f32(t->rows, t->count),
                           mz_tensor_bytes(t->entries, (size_t)t->count * sizeof *t->entries), mz_tensor_absent()},
                    .n_out = 1,
                    .out = {mz_tensor_f32(p->master + p->frozen_at, p->frozen_fp32)}};
    call.in[0].shape = (mz_shape){2, {t->batches, t->count}};
    return call;
}

static mezzo_status open_tracker(mz_tracker *t, const mezzo_program *p) {
    const mz_backend *b = t->device->backend;
    MEZZO_TRY(b->alloc(t->device, (size_t)(t->batches * t->count) * sizeof *t->rows, (void **)&t->rows));
    MEZZO_TRY(b->alloc(t->device, (size_t)t->count * sizeof *t->entries, (void **)&t->entries));
    MEZZO_TRY(write_entries(t, p));
    t->keep = keep_call(p, t->count);
    t->move = move_call(t, p->params);
    MEZZO_TRY(mz_prepare(t->device, &t->keep, &t->keeps));
    return mz_prepare(t->device, &t->move, &t->moves);
}

mezzo_status mz_tracker_open(const mezzo_program *program, int64_t batches, mz_tracker *out) {
    const int64_t count = program->options.forward_only ? 0 : mz_graph_tracked(program->c.graph);
    *out = (mz_tracker){.device = program->device, .count = count, .batches = batches};
    return count > 0 ? open_tracker(out, program) : MEZZO_OK;
}

void mz_tracker_close(mz_tracker *t) {
    if (t->count == 0)
        return;
    t->device->backend->release(t->device, t->rows);
    t->device->backend->release(t->device, t->entries);
    mz_prepared_free(&t->keeps);
    mz_prepared_free(&t->moves);
    *t = (mz_tracker){0};
}

mezzo_status mz_tracker_keep(mz_tracker *t, int64_t row) {
    if (t->count == 0)
        return MEZZO_OK;
    t->keep.out[0].data = t->rows + row * t->count;
    return mz_issue(t->device, NULL, &t->keeps, &t->keep, NULL, NULL);
}

mezzo_status mz_tracker_issue(mz_tracker *t, mz_sequence *into, int ranks, mz_opt_state *state) {
    if (t->count == 0)
        return MEZZO_OK;
    t->move.attrs.groups = ranks;
    if (state != NULL)
        t->move.in[MZ_IN(track, state)] = mz_tensor_bytes(state, sizeof *state);
    return mz_issue(t->device, into, &t->moves, &t->move, NULL, NULL);
}

mezzo_status mezzo_program_track(mezzo_program *program) {
    MZ_REQUIRE(program);
    mz_tracker t;
    mezzo_status status = mz_tracker_open(program, 1, &t);
    if (status == MEZZO_OK)
        status = mz_tracker_keep(&t, 0);
    if (status == MEZZO_OK)
        status = mz_tracker_issue(&t, NULL, 1, NULL);
    if (status == MEZZO_OK)
        status = program->device->backend->sync(program->device); // the memory must outlive the work
    mz_tracker_close(&t);
    return status;
}
