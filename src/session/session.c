#include "session/session.h"

#include <math.h>

#include "base/stop.h"
#include "graph/graph.h"

// --- options -------------------------------------------------------------------------------------------------------
mezzo_status mz_session_usual(const mezzo_model_config *model, int64_t batch, mz_session_options *out) {
    *out = (mz_session_options){.quick_init = true,
                                .optimizer = mezzo_optimizer_defaults(),
                                .scaler = mezzo_scaler_defaults(),
                                .step = {.micro_batches = 1, .clip = 1},
                                .size = 1};
    MEZZO_TRY(mz_model_of(model, &out->model));
    out->form = (mz_form){.batch = batch, .length = mz_model_sizes_of(&out->model).length};
    out->optimizer.schedule.lr = 1e-4; // it changes the weights, and every number stays finite
    out->optimizer.decay_min_rank = 2;
    return MEZZO_OK;
}

bool mz_session_needs_scale(const mezzo_program_options *program) {
    bool any = mezzo_precision_needs_loss_scale(program->precision);
    for (int i = 0; i < program->n_overrides; i++) // one module in FP16 is enough for underflow
        any = any || mezzo_precision_needs_loss_scale(program->overrides[i].precision);
    return any;
}

void mz_session_set_precision(mz_session_options *o, mezzo_precision precision) {
    o->program.precision = precision;
    o->master = mezzo_master_default(precision);
    o->scaler.enabled = mz_session_needs_scale(&o->program);
}

mezzo_program_options mz_session_training(const mz_session_options *o) {
    mezzo_program_options program = o->program;
    program.loss_weight = 1.0F / (float)(o->step.micro_batches * o->size);
    program.single_micro_batch = o->step.micro_batches == 1 && !o->canonical;
    return program;
}

mezzo_program_options mz_session_forward(const mz_session_options *o) {
    mezzo_program_options program = o->program;
    program.forward_only = true;
    program.recompute = program.recompute_light = false;
    return program;
}

// --- graphs --------------------------------------------------------------------------------------------------------
// Draws uniform numbers of the same variance, of which a large parameter repeats a million: they take a fraction of the
// time of as many normal ones, and a step's time is the same.
static void init_quickly(mezzo_graph *g) {
    g->repeats_init = true;
    for (size_t i = 0; i < g->n_params; i++)
        if (g->params[i].init.kind == MEZZO_INIT_NORMAL || g->params[i].init.kind == MEZZO_INIT_TRUNCATED)
            g->params[i].init = (mezzo_init){.kind = MEZZO_INIT_UNIFORM, .a = g->params[i].init.a * sqrtf(3.0F)};
}

static mezzo_status build_graph(const mz_session_options *o, const mz_form *form, mezzo_graph *g) {
    MEZZO_TRY(mezzo_graph_adapt(g, &o->lora));
    MEZZO_TRY(mz_model_build(&o->model, form, g));
    if (o->freeze != NULL)
        MEZZO_TRY(mezzo_graph_freeze(g, o->freeze));
    if (o->train != NULL && o->train[0] != '\0')
        MEZZO_TRY(mz_graph_train_alone(g, o->train));
    MEZZO_TRY(mezzo_graph_freeze_base(g));
    if (o->quick_init)
        init_quickly(g);
    return MEZZO_OK;
}

mezzo_status mz_session_graph(const mz_session_options *o, const mz_form *form, mezzo_graph **out) {
    *out = NULL;
    MEZZO_TRY(mezzo_graph_create(out));
    mezzo_status status = build_graph(o, form, *out);
    if (status == MEZZO_OK)
        return MEZZO_OK;
    mezzo_graph_free(*out);
    *out = NULL;
    return mz_trace(status, __FILE__, __LINE__, __func__);
}

mezzo_status mz_model_graph(const mz_model *model, mezzo_graph **out) {
    const mz_session_options alone = {.model = *model, .form = {.batch = 1, .length = 1}};
    return mz_session_graph(&alone, &alone.form, out);
}

mezzo_status mz_model_program(const mz_model *model, const mz_form *form, mezzo_params *params,
                              const mezzo_program_options *options, mezzo_program **out) {
    MZ_SCOPED(mz_graph_free_at) mezzo_graph *graph = NULL;
    mezzo_program_options forward = *options;
    forward.forward_only = true;
    forward.recompute = forward.recompute_light = false;
    MEZZO_TRY(mezzo_graph_create(&graph));
    MEZZO_TRY(mz_params_adapt(params, graph));
    MEZZO_TRY(mz_model_build(model, form, graph));
    return mezzo_program_create(graph, params, &forward, out);
}

void mz_session_set_optimizer(mz_session_options *o, mezzo_optimizer_kind kind, mezzo_optimizer_options *matrices) {
    mezzo_optimizer_set_kind(&o->optimizer, kind);
    if (!mz_optimizer_split_matrices(&o->optimizer, matrices))
        return;
    o->optimizer.groups = matrices;
    o->optimizer.n_groups = 1;
}

mezzo_status mz_model_hash(const mz_model *model, uint64_t *hash) {
    MZ_SCOPED(mz_graph_free_at) mezzo_graph *g = NULL;
    MEZZO_TRY(mz_model_graph(model, &g));
    return mz_graph_hash(g, hash);
}

mezzo_status mz_model_compare_hash(const mz_model *model, uint64_t kept, const char *where) {
    uint64_t ours;
    if (kept == 0)
        return MEZZO_OK;
    MEZZO_TRY(mz_model_hash(model, &ours));
    if (ours != kept)
        mz_log("warn",
               "%s: this version of Mezzo builds another graph of %s than the one that wrote the checkpoint: results "
               "may differ",
               where, mz_model_name(model));
    return MEZZO_OK;
}

// --- opening -------------------------------------------------------------------------------------------------------
static mezzo_status open_programs(mz_session *s, unsigned parts) {
    const mz_session_options *o = &s->options;
    MZ_SCOPED(mz_graph_free_at) mezzo_graph *graph = NULL;
    const mezzo_program_options train = mz_session_training(o), eval = mz_session_forward(o);
    const mz_cut cut = mz_session_cut(o, o->rank);
    MEZZO_TRY(mz_session_graph(o, &o->form, &graph));
    MEZZO_TRY(mz_params_create(s->device, graph, &train, o->seed, o->master, &cut, &s->params));
    if (o->model.maker->load != NULL)
        MEZZO_TRY(o->model.maker->load(&o->model, &o->form, s->params));
    MEZZO_TRY(mz_stop_check("planning"));
    if (parts & MZ_SESSION_TRAIN)
        MEZZO_TRY(mezzo_program_create(graph, s->params, &train, &s->train));
    if (parts & MZ_SESSION_EVAL)
        MEZZO_TRY(mezzo_program_create(graph, s->params, &eval, &s->eval));
    return MEZZO_OK;
}

static mezzo_status open_step(mz_session *s) {
    const mz_session_options *o = &s->options;
    const mz_ranks_options ranks = mz_session_ranks(o);
    if (s->params->ranks > 0) {
        MEZZO_TRY(mz_ranks_create(s->params, &ranks, &s->ranks));
        MEZZO_TRY(mz_ranks_overlap(s->ranks, s->train));
    }
    const int part = s->ranks != NULL ? mz_ranks_shard(s->ranks) : -1;
    const mz_tensor pieces = s->ranks != NULL ? mz_ranks_norm_blocks(s->ranks) : mz_tensor_absent();
    MEZZO_TRY(mz_optimizer_create(s->params, &o->optimizer, part, pieces, &s->optimizer));
    MEZZO_TRY(mezzo_scaler_create(s->device, &o->scaler, &s->scaler));
    return mz_step_create(s->train, &s->optimizer, 1, s->scaler, &o->step, s->ranks, &s->step);
}

mezzo_status mz_session_open(mezzo_device *device, const mz_session_options *options, unsigned parts, mz_session *s) {
    *s = (mz_session){.device = device, .options = *options};
    MEZZO_TRY(open_programs(s, parts));
    if (parts & MZ_SESSION_STEP)
        MEZZO_TRY(open_step(s));
    return mz_stop_check("planning");
}

void mz_session_close(mz_session *s) {
    mezzo_step_free(s->step);
    mezzo_optimizer_free(s->optimizer);
    mezzo_scaler_free(s->scaler);
    mezzo_program_free(s->eval);
    mezzo_program_free(s->train);
    mz_ranks_free(s->ranks);
    mezzo_params_free(s->params);
    *s = (mz_session){0};
}

size_t mz_session_memory(const mz_session *s) {
    const mezzo_program *programs[] = {s->train, s->eval};
    size_t bytes = mezzo_optimizer_memory(s->optimizer) + (s->ranks != NULL ? mz_ranks_memory(s->ranks) : 0);
    if (s->step != NULL)
        bytes += mz_tracker_plan(s->train->c.graph, s->options.size * s->options.step.micro_batches);
    for (size_t i = 0; i < MZ_COUNT(programs); i++) {
        mezzo_memory m;
        mezzo_program_memory(programs[i], &m);
        bytes += m.activations + m.workspace + m.inputs + (i == 0 ? m.masters + m.gradients + m.shadows : 0);
    }
    return bytes;
}
