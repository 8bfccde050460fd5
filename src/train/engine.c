#include "train/engine.h"

#include "io/file.h"

uint64_t mezzo_seed(uint64_t seed, mezzo_purpose purpose) {
    uint32_t words[4];
    mz_philox((mz_philox_key){seed, 0, 0x5EED0000u + (uint32_t)purpose}, 0, words);
    return (uint64_t)words[1] << 32 | words[0];
}

mezzo_status mz_engine_open_device(mz_engine *e, mezzo_device *device, const mz_run_config *config) {
    e->device = device != NULL ? device : e->device;
    e->borrowed = device != NULL;
    e->plan = mz_run_config_session(config);
    e->size = e->size > 0 ? e->size : 1;
    if (device == NULL && e->device == NULL)
        MEZZO_TRY(mezzo_device_open(config->device, config->threads, &e->device));
    MEZZO_TRY(mezzo_device_describe(e->device, &e->info));
    // The results of a device with a queue are read one step late, so that no thread waits for it.
    e->readout.lag = e->device->backend->queue ? 1 : 0;
    MEZZO_TRY(mezzo_precision_resolve(e->device, config->program.precision, &e->plan.program.precision,
                                      e->precision_reason, sizeof e->precision_reason));
    e->plan.master = mz_run_config_master(config, e->plan.program.precision);
    return MEZZO_OK;
}

// Opens this rank's GPU, where the configuration leaves the choice; a process that sees one GPU alone takes that.
static mezzo_status open_ranks_device(mz_engine *e, const mz_world *world, const mz_run_config *config) {
    const bool open = mz_device_name_is_open(config->device);
    char name[32];
    snprintf(name, sizeof name, "%s:%d", mz_gpu_name(), world->local_rank);
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

mezzo_status mz_engine_build(mz_engine *e, const mz_run_config *config, bool outputs) {
    if (config->scaling == MZ_SCALING_AUTO)
        e->plan.scaler.enabled = mz_session_needs_scale(&e->plan.program);
    if (config->histograms_every > 0 && e->size > 1)
        return mz_fail(MEZZO_ERR_INVALID, "train.histograms_every supports one rank: remove it with %d ranks", e->size);
    if (config->counterfactual[0] != '\0' && e->size > 1)
        return mz_fail(MEZZO_ERR_INVALID, "train.counterfactual supports one rank: remove it with %d ranks", e->size);
    e->plan.form = (mz_form){.batch = config->batch_size,
                             .length = mz_model_sizes_of(&e->plan.model).length,
                             .outputs = outputs,
                             .documents = e->plan.form.documents};
    e->plan.step.micro_batches = config->grad_accum; // of this rank, now that the number of ranks is known
    e->plan.rank = e->rank;
    e->plan.size = e->size;
    MEZZO_TRY(mz_session_open(e->device, &e->plan, MZ_SESSION_TRAIN | MZ_SESSION_EVAL | MZ_SESSION_STEP, &e->session));
    if (config->histograms_every > 0)
        MEZZO_TRY(mz_magnitudes_create(e->session.train, e->session.params, &e->magnitudes));
    if (config->counterfactual[0] != '\0')
        MEZZO_TRY(mz_counterfactual_create(e->session.train, config->counterfactual, config->counterfactual_ops,
                                           &e->counterfactual));
    return MEZZO_OK;
}

mezzo_status mz_weights_crc(const mezzo_params *params, uint32_t *crc) {
    *crc = 0;
    for (int i = 0; i < mezzo_params_count(params); i++) {
        const size_t n = (size_t)params->list[i].count;
        float *values;
        MEZZO_TRY(MZ_NEW(values, n));
        const mezzo_status status = mezzo_params_read(params, i, values);
        *crc = mz_crc32c(*crc, values, n * sizeof *values);
        mz_free(values);
        MEZZO_TRY(status);
    }
    return MEZZO_OK;
}

void mz_engine_close(mz_engine *e) {
    mz_magnitudes_free(e->magnitudes);
    mz_counterfactual_free(e->counterfactual);
    mz_session_close(&e->session);
    mz_group_close(e->group);
    if (!e->borrowed)
        mezzo_device_close(e->device);
}
