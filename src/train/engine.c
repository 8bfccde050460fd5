#include "train/engine.h"

uint64_t mezzo_seed(uint64_t seed, mezzo_purpose purpose) {
    uint32_t words[4];
    mz_philox((mz_philox_key){seed, 0, 0x5EED0000u + (uint32_t)purpose}, 0, words);
    return (uint64_t)words[1] << 32 | words[0];
}

mezzo_status mz_engine_open_device(mz_engine *e, mezzo_device *device, const mz_run_config *config) {
    e->device = device != NULL ? device : e->device;
    e->borrowed = device != NULL;
    e->program = config->program;
    e->scaling = config->scaler;
    e->size = e->size > 0 ? e->size : 1;
    if (device == NULL && e->device == NULL)
        MEZZO_TRY(mezzo_device_open(config->device, config->threads, &e->device));
    MEZZO_TRY(mezzo_device_describe(e->device, &e->info));
    // A device with a queue is read one step late: nobody waits for it.
    e->readout.lag = e->device->backend->capture_begin != NULL ? 1 : 0;
    MEZZO_TRY(mezzo_precision_resolve(e->device, config->program.precision, &e->program.precision, e->precision_reason,
                                      sizeof e->precision_reason));
    e->master = mz_run_config_master(config, e->program.precision);
    return MEZZO_OK;
}

// This rank's GPU, where the configuration leaves open which; a process that is shown one alone takes that.
static mezzo_status open_ranks_device(mz_engine *e, const mz_world *world, const mz_run_config *config) {
    const bool open = strcmp(config->device, "auto") == 0 || strcmp(config->device, "cuda") == 0;
    char name[32];
    snprintf(name, sizeof name, "cuda:%d", world->local_rank);
    if (open && mezzo_device_open(name, config->threads, &e->device) == MEZZO_OK)
        return MEZZO_OK;
    MEZZO_TRY(mezzo_device_open(config->device, config->threads, &e->device));
    return MEZZO_OK;
}

mezzo_status mz_engine_join(mz_engine *e, const mz_run_config *config) {
    mz_world world;
    MEZZO_TRY(mz_world_read(&world));
    if (world.size > 1) {
        MEZZO_TRY(open_ranks_device(e, &world, config));
        MEZZO_TRY(mz_group_open(&world, e->device, &e->group));
    }
    e->rank = mz_group_rank_of(e->group);
    e->size = mz_group_size(e->group);
    return mz_engine_open_device(e, NULL, config);
}

static mezzo_status open_programs(mz_engine *e, const mz_run_config *config, bool keep_logits) {
    mezzo_status status = MEZZO_OK;
    mezzo_graph *graph = NULL;
    mezzo_program_options train = e->program, eval = e->program;
    uint64_t seed = mezzo_seed(config->seed, MEZZO_SEED_PARAMETERS);
    train.loss_weight = 1.0f / (float)(config->grad_accum * e->size);
    train.single_micro_batch = config->grad_accum == 1 && !config->canonical;
    eval.forward_only = true;
    eval.recompute = false;
    MEZZO_TRY_GOTO(status, mezzo_graph_create(&graph));
    MEZZO_TRY_GOTO(status, mezzo_graph_adapt(graph, &config->lora));
    MEZZO_TRY_GOTO(status, mezzo_model_build(graph, &e->model, config->batch_size, e->model.seq_len, keep_logits));
    MEZZO_TRY_GOTO(status, mezzo_graph_freeze(graph, config->freeze));
    MEZZO_TRY_GOTO(status, mezzo_graph_freeze_base(graph));
    const mz_cut cut =
        mz_ranks_cut(config->shard, config->canonical, e->rank, e->size, mz_bucket_elements(config->bucket_mib));
    MEZZO_TRY_GOTO(status, mz_params_create(e->device, graph, &train, seed, e->master, &cut, &e->params));
    MEZZO_TRY_GOTO(status, mezzo_program_create(graph, e->params, &train, &e->train));
    MEZZO_TRY_GOTO(status, mezzo_program_create(graph, e->params, &eval, &e->eval));
fail:
    mezzo_graph_free(graph);
    return status;
}

// One module in FP16 is enough to underflow.
static bool needs_scaling(const mezzo_program_options *program) {
    bool any = mezzo_precision_needs_loss_scale(program->precision);
    for (int i = 0; i < program->n_overrides; i++)
        any = any || mezzo_precision_needs_loss_scale(program->overrides[i].precision);
    return any;
}

mezzo_status mz_engine_build(mz_engine *e, const mz_run_config *config, bool keep_logits) {
    if (config->scaling == MZ_SCALING_AUTO)
        e->scaling.enabled = needs_scaling(&e->program);
    MEZZO_TRY(open_programs(e, config, keep_logits));
    if (config->histograms_every > 0 && e->size > 1)
        return mz_fail(MEZZO_ERR_INVALID, "train.histograms_every supports one rank: remove it with %d ranks", e->size);
    if (config->histograms_every > 0)
        MEZZO_TRY(mz_magnitudes_create(e->train, e->params, &e->magnitudes));
    if (e->params->ranks > 0)
        MEZZO_TRY(mz_ranks_create(e->params,
                                  &(mz_ranks_options){.shard = config->shard,
                                                      .canonical = config->canonical,
                                                      .bf16_wire = config->bf16_wire,
                                                      .micro = config->grad_accum},
                                  &e->ranks));
    if (e->ranks != NULL)
        MEZZO_TRY(mz_ranks_overlap(e->ranks, e->train));
    const int part = e->ranks != NULL ? mz_ranks_part(e->ranks) : -1;
    const mz_tensor pieces = e->ranks != NULL ? mz_ranks_pieces(e->ranks) : mz_tensor_absent();
    MEZZO_TRY(mz_optimizer_create(e->params, &config->optimizer, part, pieces, &e->optimizer));
    MEZZO_TRY(mezzo_scaler_create(e->device, &e->scaling, &e->scaler));
    const mezzo_step_options step = {.micro_batches = config->grad_accum, .clip = config->clip > 0 ? config->clip : 0};
    return mz_step_create(e->train, &e->optimizer, 1, e->scaler, &step, e->ranks, &e->step);
}

void mz_engine_close(mz_engine *e) {
    mezzo_step_free(e->step);
    mz_magnitudes_free(e->magnitudes);
    mezzo_optimizer_free(e->optimizer);
    mezzo_scaler_free(e->scaler);
    mezzo_program_free(e->eval);
    mezzo_program_free(e->train);
    mz_ranks_free(e->ranks);
    mezzo_params_free(e->params);
    mz_group_close(e->group);
    if (!e->borrowed)
        mezzo_device_close(e->device);
}

static size_t program_memory(const mezzo_program *program) {
    mezzo_memory m;
    mezzo_program_memory(program, &m);
    return m.activations + m.workspace + m.inputs;
}

size_t mz_engine_memory(const mz_engine *e) {
    mezzo_memory m;
    mezzo_program_memory(e->train, &m);
    return m.masters + m.gradients + m.shadows + program_memory(e->train) + program_memory(e->eval) +
           mezzo_optimizer_memory(e->optimizer) + (e->ranks != NULL ? mz_ranks_memory(e->ranks) : 0);
}
