// Runs training from its start to its end.
#include <math.h>

#include "base/stop.h"
#include "train/run.h"

static bool due(int64_t step, int64_t every) {
    return every > 0 && step % every == 0;
}

static bool asked(const mz_training *run) { // whether this rank was asked to stop
    return run->hooks.stop != NULL && *run->hooks.stop;
}

// Returns whether to stop: ranks stop after the step with which all of them learn of it.
static bool stopping(const mz_training *run) {
    return run->engine.size > 1 ? run->stopping : asked(run);
}

// Reports a validation or a sample that is not a number, which is no result. The next step may still be sound, so
// training goes on where it can.
static mezzo_status tell_no_number(mz_training *run, const char *what, mezzo_status status) {
    if (status != MEZZO_ERR_NUMERIC)
        return status;
    mz_fault fault = {.step = run->step};
    snprintf(fault.kind, sizeof fault.kind, "%s", what);
    snprintf(fault.text, sizeof fault.text, "step %lld: %s: %.900s", (long long)run->step, what, mezzo_error_message());
    if (strcmp(what, "validation") == 0)
        snprintf(run->report.no_number, sizeof run->report.no_number, "%.1000s", fault.text);
    return mz_guard_record(run, &fault, "none");
}

static mezzo_status measure(mz_training *run, mz_source *source, mz_val_kind kind) {
    mz_report *r = &run->report;
    const uint64_t n = kind == MZ_VAL_WHOLE ? source->batches : (uint64_t)run->config.eval_iters;
    mz_evaluation score;
    mz_profile_push(run->profile, "validation");
    const double start = mz_seconds();
    r->no_number[0] = '\0';
    MEZZO_TRY(
        tell_no_number(run, "validation", mz_evaluate(run->engine.session.eval, source, n, run->hooks.stop, &score)));
    mz_run_paused(run, MZ_PAUSE_VALIDATION, (int64_t)n, start);
    mz_profile_pop(run->profile);
    if (asked(run))
        return MEZZO_OK;
    r->val[kind] = (mz_validation){score, run->step};
    if (kind == mz_run_val_kind(run) && isfinite(score.loss) && !(r->best_val_loss <= score.loss))
        r->best_val_loss = score.loss;
    MEZZO_TRY(mz_run_log_validation(run, kind));
    if (r->no_number[0] == '\0')
        mz_run_event(run, MEZZO_EVENT_EVAL, kind == MZ_VAL_WHOLE ? "whole set" : "sample");
    return MEZZO_OK;
}

// Validates on rank 0 alone, with the parameters that the other ranks send.
mezzo_status mz_run_validate(mz_training *run, mz_val_kind kind) {
    mz_source *source = kind == MZ_VAL_WHOLE ? run->val_all : run->val_random;
    if (source == NULL)
        return MEZZO_OK;
    MEZZO_TRY(mz_run_gather_weights(run, mz_run_leads(run)));
    mezzo_status status = mz_run_leads(run) ? measure(run, source, kind) : MEZZO_OK;
    mz_run_release_weights(run);
    return status;
}

static void keep_text(void *user, int index, const char *text, size_t bytes) {
    mz_training *run = user;
    char *sample = run->report.result.sample;
    size_t used = strlen(sample), room = sizeof run->report.result.sample - 1 - used;
    (void)index;
    if (bytes <= room) // a longer sample ends with its last whole token
        memcpy(sample + used, text, bytes);
}

// Draws a sheet of the first pictures that are not trained on.
enum { SAMPLE_ROWS = 4, SAMPLE_STEPS = 5, SAMPLE_SEED = 1 };

static mezzo_status write_sheet(mz_training *run, const char *path) {
    const mz_predict request = {.sheet = path,
                                .count = SAMPLE_ROWS,
                                .rows = SAMPLE_ROWS,
                                .steps = SAMPLE_STEPS,
                                .seed = SAMPLE_SEED,
                                .decoder = run->decoder};
    mz_predicted done;
    mz_profile_push(run->profile, "sample");
    const mezzo_status status = mz_images_predict(run->task, run->engine.session.eval, run->config.batch_size, &request,
                                                  run->hooks.stop, &done);
    mz_profile_pop(run->profile);
    return status;
}

static mezzo_status draw_pictures(mz_training *run) {
    mezzo_train_result *result = &run->report.result;
    snprintf(result->sample, sizeof result->sample, "samples/step-%08lld.png", (long long)run->step);
    MEZZO_TRY(mz_dir_create(mz_path_of("%s/samples", run->config.out).text));
    const mezzo_status status = write_sheet(run, mz_path_of("%s/%s", run->config.out, result->sample).text);
    if (status == MEZZO_ERR_INTERRUPTED || status == MEZZO_ERR_NUMERIC) {
        result->sample[0] = '\0';
        return status == MEZZO_ERR_NUMERIC ? tell_no_number(run, "sample", status) : MEZZO_OK;
    }
    MEZZO_TRY(status);
    mz_run_event(run, MEZZO_EVENT_SAMPLE, result->sample);
    const mz_metric sheet = mz_metric_text("sample/picture", result->sample);
    return mz_metrics_write(run->report.metrics, run->step, &sheet, 1);
}

static mezzo_status draw_sample(mz_training *run) {
    if (run->task->kind->pictures)
        return mz_run_keeps(run) ? draw_pictures(run) : MEZZO_OK;
    mezzo_train_result *result = &run->report.result;
    const mz_sample_draw draw = {.length = run->config.sample_tokens,
                                 .temperature = 0.8,
                                 .seed = run->config.seed,
                                 .index = (uint64_t)run->step << 32};
    memset(result->sample, 0, sizeof result->sample);
    mz_profile_push(run->profile, "sample");
    const mezzo_status status = run->task->kind->sample(run->task, &draw, run->hooks.stop, keep_text, run);
    mz_profile_pop(run->profile);
    if (status != MEZZO_OK) {
        result->sample[0] = '\0';
        return tell_no_number(run, "sample", status);
    }
    mz_run_event(run, MEZZO_EVENT_SAMPLE, result->sample);
    const mz_metric text = mz_metric_text("sample/text", result->sample);
    return mz_metrics_write(run->report.metrics, run->step, &text, 1);
}

mezzo_status mz_run_sample(mz_training *run) {
    if (!run->samples)
        return MEZZO_OK;
    const double start = mz_seconds();
    MEZZO_TRY(mz_run_gather_weights(run, mz_run_leads(run)));
    mezzo_status status = mz_run_leads(run) ? draw_sample(run) : MEZZO_OK;
    mz_run_release_weights(run);
    mz_run_paused(run, MZ_PAUSE_SAMPLE, 1, start);
    return status;
}

// Adds the time that the device waited for data. A device without a queue waits while the host draws a batch; one with
// a queue waits only where the host then finds the step before finished already.
static void add_waits(mz_training *run, double read) {
    const double done_already = 20e-6;
    mz_report *r = &run->report;
    bool queue = run->engine.device->backend->queue;
    if (!queue || read < done_already)
        r->rates.waits += mz_report_data_seconds(r) - r->data_before;
    r->host[MZ_HOST_READ] += read;
    r->data_before = mz_report_data_seconds(r);
}

// Reads finished steps in order, because the guard may undo the steps after a bad one.
static mezzo_status read_finished_steps(mz_training *run, bool all) {
    int64_t ran = run->step;
    bool fresh;
    double start = mz_seconds();
    MEZZO_TRY(mz_run_read_step(run, false, &fresh));
    add_waits(run, mz_seconds() - start);
    if (fresh)
        MEZZO_TRY(mz_run_guard(run));
    if (!all || run->step < ran)
        return MEZZO_OK;
    MEZZO_TRY(mz_run_read_step(run, true, &fresh));
    return fresh ? mz_run_guard(run) : MEZZO_OK;
}

// Starts counting energy; validations, samples and checkpoints do not count as the cost of a token.
static void open_energy(mz_training *run) {
    double range, joules = mz_read_joules(run->engine.device, &range);
    double items = (double)run->data->examples.items * (double)run->config.grad_accum;
    mz_energy_add(&run->report.rates.energy, joules, range, mz_seconds(), items * (double)run->step);
}

// Checks a step of `seconds` that computed for `cpu` seconds, both without drawing batches, which may wait for a disk;
// ranks wait for each other.
static void watch_cores(mz_training *run, double seconds, double cpu) {
    const mezzo_device *device = run->engine.device;
    mz_core_meter *m = &run->report.rates.cores;
    if (!device->backend->queue && run->engine.size == 1 && mz_cores_lost(m, seconds, cpu))
        mz_log("warn", "steps of %.1f s computed for %.1f s only: other programs use the cores; stop those%s",
               m->seconds, m->cpu, device->threads > 1 ? ", or take fewer threads (--threads 1)" : "");
}

// Takes one step, and handles the newest step that can be read without waiting.
static mezzo_status step(mz_training *run, bool read_all) {
    const double start = mz_seconds(), cpu = mz_cpu_seconds(), data = mz_report_data_seconds(&run->report);
    uint64_t batches = run->data->position;
    run->engine.counting = run->engine.magnitudes != NULL && due(run->step + 1, run->config.histograms_every);
    run->engine.comparing = run->engine.counterfactual != NULL && due(run->step + 1, run->config.counterfactual_every);
    if (!run->report.rates.energy.open)
        open_energy(run);
    MEZZO_TRY(mz_profile_step_begin(run));
    mezzo_status status = mz_run_step(run);
    if (status != MEZZO_OK)
        run->data->position = batches; // a resumed run draws these batches again
    MEZZO_TRY(status);
    mz_profile_push(run->profile, "read");
    status = read_finished_steps(run, read_all);
    mz_profile_pop(run->profile);
    const double seconds = mz_seconds() - start;
    run->report.step_seconds += seconds;
    watch_cores(run, seconds - (mz_report_data_seconds(&run->report) - data), mz_cpu_seconds() - cpu);
    return status == MEZZO_OK ? mz_profile_step_end(run) : status;
}

// Saves a checkpoint, but none with a parameter that is not finite.
static mezzo_status save(mz_training *run) {
    bool sound;
    const double start = mz_seconds();
    MEZZO_TRY(mz_guard_check_before_save(run, &sound));
    mz_profile_push(run->profile, "checkpoint");
    mezzo_status status = sound ? mz_run_save(run) : MEZZO_OK;
    mz_profile_pop(run->profile);
    mz_run_paused(run, MZ_PAUSE_CHECKPOINT, 1, start);
    return status;
}

// Returns whether the step is followed by an action that needs the results of all steps.
static bool waits(const mz_training *run, int64_t step) {
    const mz_run_config *c = &run->config;
    return step == c->steps || step == run->first_step + 1 || due(step, c->log_every) || due(step, c->eval_every) ||
           due(step, c->sample_every) || due(step, c->checkpoint_every);
}

// Returns whether a signal asks for a checkpoint after this step, as schedulers send one before they end a job.
static bool takes_save(mz_training *run) {
    const bool asked = run->engine.size > 1 ? run->saving : mz_run_asks_save(run);
    run->saving = false;
    return asked && run->config.checkpoint_every >= 0;
}

static mezzo_status log_counterfactual(mz_training *run) {
    mz_profile_push(run->profile, "counterfactual");
    const mezzo_status status = mz_run_log_counterfactual(run);
    mz_profile_pop(run->profile);
    return status;
}

// Does what the configuration asks for between steps and, after the last one, everything once more, on the whole
// validation set.
static mezzo_status between(mz_training *run) {
    const mz_run_config *c = &run->config;
    bool last = run->step == c->steps;
    const bool saving = takes_save(run);
    const bool logs = due(run->step, c->log_every) || last || run->step == run->first_step + 1;
    if (logs && !run->empty[run->step & 1])
        MEZZO_TRY(mz_run_log_step(run));
    if (run->engine.counting)
        MEZZO_TRY(mz_run_log_magnitudes(run));
    if (run->engine.comparing)
        MEZZO_TRY(log_counterfactual(run));
    bool more = due(run->step, c->eval_every) || due(run->step, c->sample_every) || due(run->step, c->checkpoint_every);
    if (more)
        mz_energy_begin(&run->report.rates.energy);
    if (!last && due(run->step, c->eval_every))
        MEZZO_TRY(mz_run_validate(run, mz_run_val_kind(run)));
    if (!last && due(run->step, c->sample_every))
        MEZZO_TRY(mz_run_sample(run));
    if (!last && (due(run->step, c->checkpoint_every) || saving) && !stopping(run))
        MEZZO_TRY(save(run));
    return MEZZO_OK;
}

static mezzo_status validate_last(mz_training *run) {
    for (mz_val_kind kind = MZ_VAL_SAMPLE; kind < MZ_VAL_KINDS; kind++)
        if (mz_run_validates_last(run, kind))
            MEZZO_TRY(mz_run_validate(run, kind));
    return MEZZO_OK;
}

static mezzo_status finish(mz_training *run, bool moved) {
    MEZZO_TRY(validate_last(run));
    MEZZO_TRY(mz_run_sample(run));
    if ((moved || run->elsewhere) && run->config.checkpoint_every >= 0)
        MEZZO_TRY(save(run));
    if (run->step < run->config.steps) // after a rollback it is not the end
        return MEZZO_OK;
    const bool number = run->report.no_number[0] == '\0';
    MEZZO_TRY(mz_run_follow(run, "the last validation",
                            number ? MEZZO_OK : mz_fail(MEZZO_ERR_NUMERIC, "%s", run->report.no_number)));
    mz_run_event(run, MEZZO_EVENT_END, "");
    return MEZZO_OK;
}

static mezzo_status interrupted(mz_training *run) {
    bool keeps = run->config.checkpoint_every >= 0;
    MEZZO_TRY(read_finished_steps(run, true));
    if (keeps && (run->step > run->first_step || run->elsewhere))
        MEZZO_TRY(mz_run_save(run));
    return mz_fail(
        MEZZO_ERR_INTERRUPTED, "stopped at step %lld of %lld; %s%s", (long long)run->step, (long long)run->config.steps,
        keeps ? "resume with --resume auto from " : "checkpoints are turned off", run->report.result.checkpoint);
}

static mezzo_status run_steps(mz_training *run) {
    while (run->step < run->config.steps && !stopping(run)) {
        int64_t begun = run->step;
        MEZZO_TRY(step(run, waits(run, begun + 1)));
        if (run->step > begun) // the run was not rolled back
            MEZZO_TRY(between(run));
    }
    return MEZZO_OK;
}

static mezzo_status run_to_end(mz_training *run) {
    do {
        MEZZO_TRY(run_steps(run));
        if (!stopping(run))
            MEZZO_TRY(finish(run, run->step > run->first_step));
    } while (run->step < run->config.steps && !stopping(run));
    return MEZZO_OK;
}

// Keeps the steps before the one whose data cannot be read, with the same error. Ranks end without that, because the
// others wait for this one within the step.
static mezzo_status keep_steps_before(mz_training *run, mezzo_status status) {
    if (run->engine.size > 1 || run->config.checkpoint_every < 0 || run->step == run->first_step)
        return status;
    char *message = mz_strdup(mezzo_error_message());
    const int64_t step = run->step + 1;
    mezzo_status saved = read_finished_steps(run, true);
    if (saved == MEZZO_OK)
        saved = save(run);
    if (saved == MEZZO_OK && message != NULL)
        status = mz_fail(status, "step %lld: %s", (long long)step, message);
    else if (message != NULL)
        status = mz_fail(status, "step %lld: %s; no checkpoint of the steps before it could be written: %s",
                         (long long)step, message, mezzo_error_message());
    mz_free(message);
    return status;
}

// Trains. A program that runs call by call stops between two calls, and the present step is dropped.
static mezzo_status train(mz_training *run) {
    if (mz_run_leads(run))
        MEZZO_TRY(mz_profile_open(run));
    mz_run_started(run);
    if (run->engine.size == 1) // ranks stop together, after a step
        run->engine.device->stop = run->hooks.stop;
    mezzo_status status = run_to_end(run);
    run->engine.device->stop = NULL;
    if (run->data_failed)
        return keep_steps_before(run, status);
    if (status != MEZZO_ERR_INTERRUPTED || !stopping(run))
        MEZZO_TRY(status);
    return stopping(run) ? interrupted(run) : MEZZO_OK;
}

mezzo_status mezzo_run_train(const mezzo_config *config, const mezzo_hooks *hooks, mezzo_train_result *result) {
    MZ_REQUIRE(config);
    mz_training run = {0};
    mz_stop *former = mz_stop_enter(hooks != NULL ? hooks->stop : NULL);
    mezzo_status status = mz_run_check_folder(config); // before anything that takes time
    if (status == MEZZO_OK)
        status = mz_run_join(config, hooks, &run);
    if (status == MEZZO_OK)
        status = mz_run_start(&run);
    mz_stop_leave(NULL);
    if (status == MEZZO_OK)
        status = train(&run);
    mz_stop_leave(former);
    mz_run_result(&run);
    if (status != MEZZO_OK && status != MEZZO_ERR_INTERRUPTED && run.engine.group != NULL)
        mz_group_abort(run.engine.group, NULL);
    if (result != NULL)
        *result = run.report.result;
    mz_run_close(&run);
    return status;
}
