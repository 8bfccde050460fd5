#include "train/trial.h"

#include <math.h>

#include "train/run.h"

#define LOGITS_MOST (INT64_C(1) << 26) // numbers of one validation batch

mezzo_status mz_trial_open(mezzo_device *device, const mezzo_config *config, const volatile sig_atomic_t *stop,
                           mz_trial **out) {
    const mezzo_hooks hooks = {.stop = stop};
    *out = NULL;
    mz_trial *trial;
    MEZZO_TRY(MZ_NEW(trial, 1));
    mezzo_status status = mz_run_open_on(device, config, &hooks, trial);
    trial->source = NULL; // a trial writes no folder
    if (status == MEZZO_OK)
        *out = trial;
    else
        mz_trial_close(trial);
    MEZZO_TRY(status);
    return MEZZO_OK;
}

void mz_trial_close(mz_trial *trial) {
    if (trial == NULL)
        return;
    mz_run_close(trial);
    mz_free(trial);
}

mz_trial_facts mz_trial_describe(const mz_trial *t) {
    mezzo_memory m;
    mezzo_program_memory(t->engine.session.train, &m);
    return (mz_trial_facts){.model = &t->engine.plan.model.config,
                            .program = t->engine.plan.program,
                            .device = t->engine.info.description,
                            .reason = t->engine.precision_reason,
                            .data = t->config.data.path[0] != '\0' ? t->config.data.path : t->config.data.train,
                            .steps = t->config.steps,
                            .batch = t->config.batch_size,
                            .grad_accum = t->config.grad_accum,
                            .parameters = mezzo_params_elements(t->engine.session.params),
                            .items = t->data->examples.items,
                            .memory = t->report.memory,
                            .training_memory = m.masters + m.gradients + m.shadows + m.activations + m.workspace +
                                               m.inputs + mezzo_optimizer_memory(t->engine.session.optimizer),
                            .activations = m.activations + m.activations_in_gradients,
                            .validates = t->val_all != NULL,
                            .val_batches = t->val_all == NULL         ? 0
                                           : t->config.eval_iters > 0 ? (uint64_t)t->config.eval_iters
                                                                      : t->val_all->batches,
                            .scaler = &t->engine.plan.scaler};
}

mezzo_status mz_trial_load(mz_trial *trial, const char *path, int64_t *step) {
    char folder[4096] = "";
    mezzo_checkpoint c = {.params = trial->engine.session.params};
    mezzo_status status;
    int tries = 0;
    do {
        status = mz_find_checkpoint(path, false, MZ_CHECKPOINT_WEIGHTS, folder, sizeof folder);
        status = status == MEZZO_OK ? mezzo_checkpoint_load(folder, &c) : status;
    } while (mz_checkpoint_find_again(status, folder, &tries));
    MEZZO_TRY(status);
    trial->data->position = c.batches;
    *step = c.step + 1;
    return MEZZO_OK;
}

static mezzo_status read_step(mz_trial *trial, bool wait, const mz_step_report **report) {
    bool fresh;
    MEZZO_TRY(mz_run_read_step(trial, wait, &fresh));
    *report = fresh ? &trial->engine.readout.last : NULL;
    return MEZZO_OK;
}

mezzo_status mz_trial_step(mz_trial *trial, bool wait, const mz_step_report **report) {
    MEZZO_TRY(mz_run_step(trial));
    return read_step(trial, wait, report);
}

mezzo_status mz_trial_settle(mz_trial *trial, const mz_step_report **report) {
    return read_step(trial, true, report);
}

const mz_step_report *mz_trial_last(const mz_trial *trial) {
    return &trial->engine.readout.last;
}

int64_t mz_trial_steps(const mz_trial *trial) {
    return trial->step;
}

mezzo_status mz_trial_count_step(mz_trial *trial, const mz_magnitudes **out) {
    *out = trial->engine.magnitudes;
    if (*out == NULL)
        return mz_fail(MEZZO_ERR_INVALID, "train.histograms_every is 0: nothing is counted");
    trial->engine.counting = true;
    mezzo_status status = mz_run_step(trial);
    trial->engine.counting = false;
    MEZZO_TRY(status);
    return mz_magnitudes_read(trial->engine.magnitudes);
}

const mz_examples *mz_trial_examples(const mz_trial *trial) {
    return &trial->data->examples;
}

mezzo_status mz_trial_draw(mz_trial *trial, uint64_t number) {
    return mz_source_draw(trial->data, number, NULL, 0);
}

uint64_t mz_trial_position(const mz_trial *trial) {
    return trial->data->position;
}

mezzo_status mz_trial_scale_weights(mz_trial *trial, const char *pattern, double by) {
    mezzo_params *params = trial->engine.session.params;
    mezzo_status status = MEZZO_OK;
    for (int i = 0; i < mezzo_params_count(params) && status == MEZZO_OK; i++) {
        size_t n = 1;
        if (!mz_glob_match(pattern, mezzo_params_name(params, i)))
            continue;
        for (int d = 0; d < mezzo_params_rank(params, i); d++)
            n *= (size_t)mezzo_params_shape(params, i)[d];
        float *values;
        MEZZO_TRY(MZ_NEW(values, n));
        status = mezzo_params_read(params, i, values);
        for (size_t k = 0; k < n; k++)
            values[k] = (float)(by * (double)values[k]);
        if (status == MEZZO_OK)
            status = mezzo_params_write(params, i, values);
        mz_free(values);
    }
    return status;
}

mezzo_status mz_trial_replay(mz_trial *t, uint64_t number, mz_program_hook hook, void *user) {
    mezzo_program *program = t->engine.session.train;
    MEZZO_TRY(mezzo_optimizer_zero_grad(t->engine.session.optimizer));
    MEZZO_TRY(mz_source_draw(t->data, number, NULL, 0));
    MEZZO_TRY(mz_examples_write(&t->data->examples, program));
    program->hook = hook;
    program->hook_user = user;
    mezzo_status status =
        mezzo_program_run(program, t->engine.session.scaler, mezzo_seed(t->config.seed, MEZZO_SEED_DROPOUT), number);
    program->hook = NULL;
    if (status == MEZZO_OK)
        status = mezzo_optimizer_zero_grad(t->engine.session.optimizer);
    return status;
}

const mezzo_params *mz_trial_params(const mz_trial *trial) {
    return trial->engine.session.params;
}

// --- validating ----------------------------------------------------------------------------------
static int64_t rows_that_fit(const mz_trial *t) {
    const int64_t of_one = t->data->examples.items / t->config.batch_size * t->data->classes;
    int64_t rows = t->config.batch_size;
    while (rows > 1 && rows * of_one > LOGITS_MOST)
        rows = (rows + 1) / 2;
    return rows;
}

mezzo_status mz_trial_validate(mz_trial *t, const volatile sig_atomic_t *stop, mz_evaluation *out) {
    mezzo_status status = MEZZO_OK;
    mz_source *source = NULL;
    mezzo_program *program = NULL;
    const mz_model *model = &t->engine.plan.model;
    const int64_t rows = rows_that_fit(t), iters = t->config.eval_iters;
    const bool classes = t->task->wants.classes > 0; // pictures have no classes to count
    *out = (mz_evaluation){(double)NAN, (double)NAN, (double)NAN, (double)NAN, 0, 0};
    MEZZO_TRY_GOTO(status, mz_source_open(t->task, MZ_SET_VALIDATION, iters > 0 ? MZ_ORDER_RANDOM : MZ_ORDER_SEQUENTIAL,
                                          rows, mezzo_seed(t->config.seed, MEZZO_SEED_VALIDATION), classes, &source));
    MEZZO_TRY_GOTO(
        status,
        mz_model_program(
            model,
            &(mz_form){.batch = rows, .length = t->task->wants.length, .outputs = true, .documents = t->task->packs},
            t->engine.session.params, &t->engine.plan.program, &program));
    // Validates on as many examples as training's own validation does.
    uint64_t n = iters > 0 ? (uint64_t)((iters * t->config.batch_size + rows - 1) / rows) : source->batches;
    MEZZO_TRY_GOTO(status, mz_evaluate(program, source, n, stop, out));
fail:
    mezzo_program_free(program);
    mz_source_close(source);
    return status;
}
