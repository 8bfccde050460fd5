#include "train/engine.h"

uint64_t mezzo_seed(uint64_t seed, mezzo_purpose purpose) {
    uint32_t words[4];
    mz_philox((mz_philox_key){seed, 0, 0x5EED0000u + (uint32_t)purpose}, 0, words);
    return (uint64_t)words[1] << 32 | words[0];
}

mezzo_status mz_engine_open_device(mz_engine *e, mezzo_device *device, const mz_run_config *config) {
    e->device = device;
    e->borrowed = device != NULL;
    e->program = config->program;
    e->scaling = config->scaler.options;
    if (device == NULL)
        MEZZO_TRY(mezzo_device_open(config->device, config->threads, &e->device));
    MEZZO_TRY(mezzo_device_describe(e->device, &e->info));
    // A device with a queue is read one step late: nobody waits for it.
    e->readout.lag = e->device->backend->capture_begin != NULL ? 1 : 0;
    return mezzo_precision_resolve(e->device, config->program.precision, &e->program.precision, e->precision_reason,
                                   sizeof e->precision_reason);
}

static mezzo_status open_programs(mz_engine *e, const mz_run_config *config, bool keep_logits) {
    mezzo_status status = MEZZO_OK;
    mezzo_graph *graph = NULL;
    mezzo_program_options train = e->program, eval = e->program;
    uint64_t seed = mezzo_seed(config->seed, MEZZO_SEED_PARAMETERS);
    train.loss_weight = 1.0f / (float)config->grad_accum;
    eval.forward_only = true;
    eval.recompute = false;
    MEZZO_TRY_GOTO(status, mezzo_graph_create(&graph));
    MEZZO_TRY_GOTO(status, mezzo_graph_adapt(graph, &config->lora));
    MEZZO_TRY_GOTO(status, mezzo_model_build(graph, &e->model, config->batch_size, e->model.seq_len, keep_logits));
    MEZZO_TRY_GOTO(status, mezzo_graph_freeze(graph, config->freeze));
    MEZZO_TRY_GOTO(status, mezzo_graph_freeze_base(graph));
    MEZZO_TRY_GOTO(status, mezzo_params_create_as(e->device, graph, &train, seed, config->master, &e->params));
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
    if (config->scaler.automatic)
        e->scaling.enabled = needs_scaling(&e->program);
    MEZZO_TRY(open_programs(e, config, keep_logits));
    if (config->histograms_every > 0)
        MEZZO_TRY(mz_magnitudes_create(e->train, e->params, &e->magnitudes));
    MEZZO_TRY(mezzo_optimizer_create(e->params, &config->optimizer, &e->optimizer));
    MEZZO_TRY(mezzo_scaler_create(e->device, &e->scaling, &e->scaler));
    const mezzo_step_options step = {.micro_batches = config->grad_accum, .clip = config->clip > 0 ? config->clip : 0};
    return mezzo_step_create(e->train, &e->optimizer, 1, e->scaler, &step, &e->step);
}

void mz_engine_close(mz_engine *e) {
    mezzo_step_free(e->step);
    mz_magnitudes_free(e->magnitudes);
    mezzo_optimizer_free(e->optimizer);
    mezzo_scaler_free(e->scaler);
    mezzo_program_free(e->eval);
    mezzo_program_free(e->train);
    mezzo_params_free(e->params);
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
           mezzo_optimizer_memory(e->optimizer);
}
