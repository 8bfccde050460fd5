// Computes a session's sizes: it lays out the same graph, parameters, programs and optimizer without allocating memory.
#include "backend/inspect.h"
#include "optim/update_copy.h"
#include "runtime/program.h"
#include "session/session.h"

static mezzo_status plan_forward(mezzo_device *device, const mezzo_graph *g, const mz_session_options *o,
                                 const mezzo_program_options *options, mezzo_memory *out) {
    const mz_cut cut = mz_session_cut(o, 0);
    return mz_plan_memory(device, g, options, o->master, &cut, out);
}

mezzo_status mz_session_sketch_forward(mezzo_device *device, const mz_session_options *o, const mz_form *form,
                                       mezzo_memory *out) {
    mezzo_program_options options = mz_session_forward(o);
    MZ_SCOPED(mz_graph_free_at) mezzo_graph *g = NULL;
    options.logits_rows = 0;
    MEZZO_TRY(mz_session_graph(o, form, &g));
    return plan_forward(device, g, o, &options, out);
}

static mezzo_status size_optimizer(mezzo_device *device, const mezzo_graph *g, const mz_session_options *o,
                                   mz_optimizer_size *out) {
    const mezzo_program_options options = mz_session_training(o);
    const mz_cut cut = mz_session_cut(o, 0);
    const mz_ranks_options ranks = mz_session_ranks(o);
    mezzo_params *params;
    MEZZO_TRY(mz_params_sketch(device, g, &options, o->master, &cut, &params));
    const bool parts = cut.ranks > 1 && o->shard != MZ_SHARD_NONE;
    mezzo_status status = mz_optimizer_sketch(params, &o->optimizer, parts ? 0 : -1, out);
    out->bytes += mz_tracker_plan(g, o->size * o->step.micro_batches);
    if (cut.ranks > 0)
        out->bytes += mz_ranks_plan(params, o->size, &ranks);
    const bool update = o->replays_update || (cut.ranks > 1 && mz_ranks_add_late(&ranks));
    if (o->replays)
        out->replay = MZ_REPLAY_SUMS * sizeof(mz_checksum) +
                      (update ? (size_t)params->grad_elements * sizeof(float) +
                                    mz_update_copy_plan(params, out->moments, cut.ranks * (ranks.micro + 1))
                              : 0);
    mezzo_params_free(params);
    return status;
}

mezzo_status mz_session_sketch_optimizer(mezzo_device *device, const mz_session_options *o, mz_optimizer_size *out) {
    MZ_SCOPED(mz_graph_free_at) mezzo_graph *g = NULL;
    MEZZO_TRY(mz_session_graph(o, &o->form, &g));
    return size_optimizer(device, g, o, out);
}

static size_t padding_in(size_t bytes) {
    return mz_alloc_bytes(bytes) - bytes;
}

// Returns the padding of the blocks that a step's memory lies in, besides the optimizer's.
static size_t padding_of(const mz_footprint *f) {
    const size_t blocks[] = {f->weights,          f->gradients,      f->shadows > 0 ? f->shadows + 64 : 0,
                             f->activations + 64, f->workspace + 64, f->inputs + 64};
    size_t padding = 0;
    for (size_t i = 0; i < MZ_COUNT(blocks); i++)
        padding += blocks[i] > 0 ? padding_in(blocks[i]) : 0;
    return padding;
}

void mz_footprint_set_optimizer(const mezzo_device *device, mz_optimizer_size optimizer, mz_footprint *f) {
    f->optimizer = optimizer.bytes;
    f->replay = optimizer.replay;
    f->padding = device->backend->gpu ? 0 : padding_of(f) + optimizer.padding;
}

static mezzo_status sketch(mezzo_device *device, const mezzo_graph *g, const mz_session_options *o,
                           const mz_footprint *like, mz_footprint *out) {
    const mezzo_program_options train = mz_session_training(o), forward = mz_session_forward(o);
    const mz_cut cut = mz_session_cut(o, 0);
    mz_optimizer_size optimizer;
    mezzo_memory m;
    MEZZO_TRY(mz_plan_memory(device, g, &train, o->master, &cut, &m));
    *out = (mz_footprint){.weights = m.masters,
                          .shadows = m.shadows,
                          .gradients = m.gradients,
                          .activations = m.activations,
                          .workspace = m.workspace,
                          .inputs = m.inputs,
                          .unshared = m.activations_unshared};
    for (size_t i = 0; i < g->n_params; i++)
        out->parameters += mz_shape_count(&g->params[i].shape);
    if (like != NULL)
        out->evaluation = like->evaluation;
    else {
        MEZZO_TRY(plan_forward(device, g, o, &forward, &m));
        out->evaluation = m.activations + m.workspace + m.inputs;
    }
    MEZZO_TRY(size_optimizer(device, g, o, &optimizer));
    mz_footprint_set_optimizer(device, optimizer, out);
    return MEZZO_OK;
}

mezzo_status mz_session_sketch(mezzo_device *device, const mz_session_options *o, const mz_footprint *like,
                               mz_footprint *out) {
    MZ_SCOPED(mz_graph_free_at) mezzo_graph *g = NULL;
    MEZZO_TRY(mz_session_graph(o, &o->form, &g));
    return sketch(device, g, o, like, out);
}
