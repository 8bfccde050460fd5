#define _GNU_SOURCE // for memmem
// Decides where a run starts and what it leaves: the run folder, the checkpoint from which it resumes, and the
// checkpoints that it writes.
#include <math.h>
#include <stdlib.h>

#include "io/file.h"
#include "io/quote.h"
#include "io/yaml.h"
#include "checkpoint/checkpoint.h"
#include "train/run.h"

// --- starting ------------------------------------------------------------------------------------
// Checks whether a checkpoint's weights fit this run's model, with another context length where `any_length`; `other`
// names what to change. A checkpoint without a model says nothing.
static mezzo_status check_model(const mz_training *run, const char *path, const mezzo_checkpoint *c, bool any_length,
                                const char *other) {
    mz_model theirs;
    if (c->model[0] == '\0')
        return MEZZO_OK;
    MEZZO_TRY(mz_description_read(path, c->model, &theirs));
    const mz_model kept = theirs;
    if (any_length)
        mz_model_set_length(&theirs, mz_model_sizes_of(&run->engine.plan.model).length);
    MEZZO_TRY(mz_model_continues(&run->engine.plan.model, &theirs, path, other));
    return mz_model_compare_hash(&kept, c->graph, path);
}

void mz_compare_data(const mz_task_options *d, mz_set set, mezzo_data_mark ours, const char *path,
                     const mezzo_checkpoint *c, const char *then) {
    const bool trains = set == MZ_SET_TRAIN;
    const mezzo_data_mark theirs = trains ? c->data : c->validation;
    const char *part = trains ? d->train : d->validation, *whole = d->path[0] != '\0' ? d->path : d->features;
    if (theirs.bytes != 0 && ours.bytes != 0 && (theirs.bytes != ours.bytes || theirs.crc32c != ours.crc32c))
        mz_log("warn", "%s: the %s data is not what it was when %s was written: %s",
               mz_quote(part[0] != '\0' ? part : whole).text, trains ? "training" : "validation", path, then);
}

static void compare_data(const mz_training *run, const char *path, const mezzo_checkpoint *c) {
    mz_compare_data(&run->config.data, MZ_SET_TRAIN, run->marks[MZ_SET_TRAIN], path, c,
                    "the run continues with the new data");
    mz_compare_data(&run->config.data, MZ_SET_VALIDATION, run->marks[MZ_SET_VALIDATION], path, c,
                    "validation losses from here on do not compare");
}

mezzo_status mz_run_load(mz_training *run, const char *path) {
    mezzo_checkpoint c = {0};
    MEZZO_TRY(mezzo_checkpoint_describe(path, &c));
    MEZZO_TRY(check_model(run, path, &c, false, "train.out"));
    c.params = run->engine.session.params;
    c.optimizer = run->engine.session.optimizer;
    c.scaler = run->engine.session.scaler;
    MEZZO_TRY(mezzo_checkpoint_load(path, &c));
    run->step = run->report.reported_step = c.step;
    run->report.reported_seconds = run->report.step_seconds;
    memcpy(run->report.reported_host, run->report.host, sizeof run->report.host);
    const mz_val_kind kind = c.val_sampled ? MZ_VAL_SAMPLE : MZ_VAL_WHOLE;
    run->report.val[kind] =
        (mz_validation){{c.val_loss, (double)NAN, (double)NAN, (double)NAN, 0, 0}, isnan(c.val_loss) ? -1 : c.step};
    run->report.best_val_loss = kind == mz_run_val_kind(run) ? c.best_val_loss : (double)NAN;
    run->data->position = c.batches;
    snprintf(run->report.result.checkpoint, sizeof run->report.result.checkpoint, "%s", path);
    mz_log("notice", "resuming from %s, step %lld", path, (long long)c.step);
    const bool averages = run->engine.session.optimizer->ema >= 0;
    if (c.has_ema && !averages)
        mz_log("warn",
               "the checkpoint has a moving average of the weights, but this run keeps none: optimizer.ema is 0");
    if (!c.has_ema && averages)
        mz_log("notice", "the checkpoint has no moving average of the weights: the average starts here");
    if (c.seed != run->config.seed)
        mz_log("warn", "train.seed is %llu, the checkpoint's is %llu: the data order changes here",
               (unsigned long long)run->config.seed, (unsigned long long)c.seed);
    if (c.packed != run->config.data.pack)
        mz_log("warn", "data.pack is %s, the checkpoint's is %s: the data order changes here",
               run->config.data.pack ? "true" : "false", c.packed ? "true" : "false");
    compare_data(run, path, &c);
    const char *precision = mezzo_precision_name(run->engine.plan.program.precision);
    if (c.precision[0] != '\0' && strcmp(c.precision, precision) != 0)
        mz_log("warn", "the precision is %s, the checkpoint's is %s", precision, c.precision);
    const char *master = mezzo_master_name(run->engine.plan.master),
               *moments = mezzo_moments_name(run->config.optimizer.moments);
    if (run->engine.plan.master == MEZZO_MASTER_STOCHASTIC && strcmp(c.master, master) != 0)
        mz_log("warn", "optimizer.master is stochastic, the checkpoint's is %s: rounding its fp32 weights to bf16 now",
               c.master[0] != '\0' ? c.master : "fp32");
    if (run->config.optimizer.moments != MEZZO_MOMENTS_FP32 && strcmp(c.moments, moments) != 0)
        mz_log("warn", "optimizer.moments is %s, the checkpoint's is %s: rounding its moments now", moments,
               c.moments[0] != '\0' ? c.moments : "fp32");
    return MEZZO_OK;
}

// Copies token ids and generation settings that an import kept, for an export of this run.
static mezzo_status keep_settings(const mz_training *run, const char *checkpoint) {
    static const char *const names[] = {"huggingface.json", "generation_config.json"};
    char folder[4096];
    MEZZO_TRY(mz_run_folder(checkpoint, folder, sizeof folder));
    for (size_t i = 0; i < MZ_COUNT(names); i++)
        MEZZO_TRY(mz_file_copy(mz_path_of("%s/%s", folder, names[i]).text,
                               mz_path_of("%s/%s", run->config.out, names[i]).text, (size_t)16 << 20));
    return MEZZO_OK;
}

// Loads weights of another run for a new one: without optimizer state, step or position in the data.
static mezzo_status load_found(mz_training *run, const char *path, char *checkpoint, size_t size) {
    mezzo_checkpoint c = {0};
    MEZZO_TRY(mz_find_checkpoint(path, false, MZ_CHECKPOINT_WEIGHTS, checkpoint, size));
    MEZZO_TRY(mezzo_checkpoint_describe(checkpoint, &c));
    MEZZO_TRY(check_model(run, checkpoint, &c, true, "train.init"));
    c.params = run->engine.session.params;
    return mezzo_checkpoint_load(checkpoint, &c);
}

static mezzo_status begin_with(mz_training *run, const char *path) {
    char checkpoint[4096] = "";
    int tries = 0;
    mezzo_status status = load_found(run, path, checkpoint, sizeof checkpoint);
    while (mz_checkpoint_find_again(status, checkpoint, &tries))
        status = load_found(run, path, checkpoint, sizeof checkpoint);
    MEZZO_TRY(status);
    mz_log("notice", "initial weights from %s", checkpoint);
    return mz_run_leads(run) ? keep_settings(run, checkpoint) : MEZZO_OK;
}

// Finds out whether any checkpoint was ever finished; a run may have been killed before or during its first save.
static mezzo_status has_checkpoint(const char *checkpoints, bool *out) {
    char **names;
    size_t n;
    *out = false;
    if (!mz_path_is_dir(checkpoints))
        return MEZZO_OK;
    MEZZO_TRY(mz_dir_list(checkpoints, &names, &n));
    for (size_t i = 0; i < n; i++)
        *out = *out || (strcmp(names[i], MZ_CHECKPOINT_STAGED) != 0 && strcmp(names[i], MZ_LOCK_FILE) != 0);
    mz_dir_list_free(names, n);
    return MEZZO_OK;
}

// Finds out whether metrics.jsonl has a step; a run that was stopped before its first one leaves nothing that could be
// lost.
static mezzo_status has_steps(const char *metrics, bool *out) {
    char *text;
    size_t n;
    *out = false;
    if (!mz_path_exists(metrics))
        return MEZZO_OK;
    mezzo_status status = mz_file_read(metrics, 1 << 16, &text, &n);
    if (status != MEZZO_OK) { // the line is longer than the buffer
        *out = true;
        return MEZZO_OK;
    }
    *out = memmem(text, n, "\"train/", 7) != NULL;
    mz_free(text);
    return MEZZO_OK;
}

static mezzo_status has_run(const char *folder, bool *out) {
    bool steps, saved;
    MEZZO_TRY(has_steps(mz_path_of("%s/metrics.jsonl", folder).text, &steps));
    MEZZO_TRY(has_checkpoint(mz_path_of("%s/checkpoints", folder).text, &saved));
    *out = steps || saved;
    return MEZZO_OK;
}

mezzo_status mz_run_check_folder(const mezzo_config *config) {
    mz_run_config c;
    bool used = false;
    MEZZO_TRY(mz_run_config_read(config, &c));
    MEZZO_TRY(has_run(c.out, &used));
    if (used && c.resume[0] == '\0')
        return mz_fail(MEZZO_ERR_INVALID,
                       "%s already holds a run: resume it (--resume auto), or choose another folder (--out)", c.out);
    return MEZZO_OK;
}

// Writes into the configuration the sizes, precision and device that "0" and "auto" became. Values derived from another
// key (min_lr, the schedule's steps) stay derived.
static mezzo_status resolve(const mz_training *run, mezzo_config *config) {
    const mz_engine *e = &run->engine;
    const char *device = mezzo_config_get(config, "device.name");
    if (device == NULL)
        return MEZZO_ERR_MEMORY;
    MEZZO_TRY(mz_config_set_model(config, &e->plan.model.config));
    MEZZO_TRY(mezzo_config_set(config, "amp.precision", mezzo_precision_name(e->plan.program.precision), "resolved"));
    MEZZO_TRY(mz_config_set_int(config, "train.steps", run->config.steps, "resolved")); // replaces train.epochs
    if (strcmp(device, "auto") == 0)
        MEZZO_TRY(mezzo_config_set(config, "device.name", e->info.backend, "resolved"));
    return MEZZO_OK;
}

static mezzo_status save_resolved(const mz_training *run, const char *path) {
    MZ_SCOPED(mz_config_free_at) mezzo_config *config = NULL;
    MEZZO_TRY(mezzo_config_save(run->source, path));
    MEZZO_TRY(mezzo_config_create(&config));
    MEZZO_TRY(mezzo_config_load(config, path));
    MEZZO_TRY(resolve(run, config));
    return mezzo_config_save(config, path);
}

static mezzo_status write_folder(mz_training *run) {
    size_t n;
    const mz_path config = mz_path_of("%s/config.yaml", run->config.out);
    MEZZO_TRY(save_resolved(run, config.text));
    MEZZO_TRY(mz_file_read_text(config.text, MZ_YAML_MAX_BYTES, &run->resolved, &n));
    MEZZO_TRY(mz_latents_save(run->config.out, &run->latents));
    const mz_model *model = &run->engine.plan.model;
    if (model->maker->keep != NULL)
        MEZZO_TRY(model->maker->keep(model, run->config.out));
    return mz_task_save(run->task, run->config.out);
}

// Locks the folder against other writers and repairs what an interrupted save or replacement left.
static mezzo_status own_folder(mz_training *run) {
    MEZZO_TRY(mz_dir_create(run->config.out));
    MEZZO_TRY(mz_lock_take(run->config.out, &run->lock));
    return mz_checkpoint_recover(run->checkpoints);
}

// Removes the first records of a run that was stopped before its first step.
static mezzo_status drop_start(const char *folder) {
    return mz_file_remove(mz_path_of("%s/metrics.jsonl", folder).text);
}

static mezzo_status begin_folder(mz_training *run) {
    MEZZO_TRY(own_folder(run));
    return run->config.resume[0] == '\0' ? drop_start(run->config.out) : MEZZO_OK;
}

// Finds the checkpoint from which a run resumes; "": it starts anew.
static mezzo_status find_start(const mz_training *run, char *path, size_t size) {
    const char *resume = run->config.resume;
    bool used = false;
    if (strcmp(resume, "auto") != 0)
        return mz_find_checkpoint(resume, false, MZ_CHECKPOINT_WHOLE, path, size);
    MEZZO_TRY(has_checkpoint(run->checkpoints, &used));
    if (used)
        return mz_checkpoint_find(run->checkpoints, false, run->guard.policy == MZ_GUARD_STOP, MZ_CHECKPOINT_WHOLE,
                                  path, size);
    mz_log("notice", "%s has no checkpoint to resume: starting at step 0", run->config.out);
    return MEZZO_OK;
}

// Warns where the schedule's length follows train.steps and the resumed run has another number of steps.
static mezzo_status compare_schedules(const mz_training *run, const char *path) {
    char folder[4096];
    mz_run_config before;
    mezzo_config *config = NULL;
    MEZZO_TRY(mz_run_folder(path, folder, sizeof folder));
    mezzo_status status = mz_run_folder_config(folder, &config);
    if (status == MEZZO_OK)
        status = mz_run_config_read(config, &before);
    if (status == MEZZO_OK) {
        const mezzo_schedule *old = &before.optimizer.schedule, *now = &run->config.optimizer.schedule;
        const double was = mezzo_schedule_lr(old, run->step + 1), is = mezzo_schedule_lr(now, run->step + 1);
        if (was != is && old->kind == now->kind && old->steps != now->steps)
            mz_log("notice",
                   "the schedule of %lld steps now has %lld: the learning rate of step %lld is %.3g, not %.3g; "
                   "--schedule-steps %lld keeps it",
                   (long long)old->steps, (long long)now->steps, (long long)run->step + 1, is, was,
                   (long long)old->steps);
    }
    mezzo_config_free(config);
    return status == MEZZO_ERR_MEMORY ? status : MEZZO_OK; // a checkpoint may have no run folder
}

// Takes from a checkpoint its record of earlier steps, and whether any steps are left.
static mezzo_status go_on(mz_training *run, const char *path) {
    const size_t n = strlen(run->checkpoints);
    mezzo_step_info before;
    MEZZO_TRY(mz_run_load(run, path));
    MEZZO_TRY(mezzo_optimizer_info(run->engine.session.optimizer, &before));
    run->engine.readout.last.state.skipped = before.skipped;
    run->elsewhere = strncmp(path, run->checkpoints, n) != 0 || path[n] != '/';
    if (run->step >= run->config.steps && !run->bisecting)
        mz_log("notice",
               "the checkpoint is at step %lld, train.steps is %lld: nothing is left to train; raise train.steps "
               "(--steps) to continue",
               (long long)run->step, (long long)run->config.steps);
    else if (mz_run_leads(run))
        return compare_schedules(run, path);
    return MEZZO_OK;
}

mezzo_status mz_run_start(mz_training *run) {
    const char *resume = run->config.resume;
    mezzo_status status;
    char path[4096] = "";
    MEZZO_TRY(mz_run_check_folder(run->source));
    run->writes = !run->bisecting;
    for (int set = 0; set < 2 && mz_run_leads(run); set++)
        run->marks[set] = mz_task_mark(run->task, (mz_set)set);
    if (!run->bisecting)
        MEZZO_TRY(mz_run_follow(run, "the run folder", mz_run_leads(run) ? begin_folder(run) : MEZZO_OK));
    if (resume[0] != '\0') {
        status = mz_run_leads(run) ? find_start(run, path, sizeof path) : MEZZO_OK;
        MEZZO_TRY(mz_run_follow(run, "the checkpoint", status));
        MEZZO_TRY(mz_run_follow_text(run, "path of the checkpoint", path, sizeof path));
    }
    if (path[0] != '\0')
        MEZZO_TRY(go_on(run, path));
    else if (run->config.init[0] != '\0')
        MEZZO_TRY(begin_with(run, run->config.init));
    run->first_step = run->step;
    MEZZO_TRY(mz_guard_arm(run));
    if (run->bisecting)
        return MEZZO_OK;
    const bool over = path[0] != '\0' && !run->elsewhere && run->step >= run->config.steps;
    status = mz_run_leads(run) && !over ? write_folder(run) : MEZZO_OK; // a run that trains nothing changes no setting
    if (status == MEZZO_OK && mz_run_leads(run))
        status = mz_run_open_metrics(run);
    return mz_run_follow(run, "the run's start", status);
}

// --- saving --------------------------------------------------------------------------------------
mezzo_status mz_run_describe_state(const mz_training *run, mezzo_checkpoint *out) {
    const mz_val_kind kind = mz_run_val_kind(run);
    const mz_validation *val = &run->report.val[kind];
    *out = (mezzo_checkpoint){.params = run->engine.session.params,
                              .optimizer = run->engine.session.optimizer,
                              .scaler = run->engine.session.scaler,
                              .step = run->step,
                              .seed = run->config.seed,
                              .batches = run->data->position,
                              .packed = run->config.data.pack,
                              .val_loss = val->step == run->step ? val->score.loss : (double)NAN,
                              .val_sampled = kind == MZ_VAL_SAMPLE,
                              .best_val_loss = run->report.best_val_loss,
                              .data = run->marks[MZ_SET_TRAIN],
                              .validation = run->marks[MZ_SET_VALIDATION]};
    MEZZO_TRY(mz_description_write(&run->engine.plan.model, out->model));
    MEZZO_TRY(mz_model_hash(&run->engine.plan.model, &out->graph));
    snprintf(out->precision, sizeof out->precision, "%s", mezzo_precision_name(run->engine.plan.program.precision));
    snprintf(out->master, sizeof out->master, "%s", mezzo_master_name(run->engine.plan.master));
    snprintf(out->moments, sizeof out->moments, "%s", mezzo_moments_name(run->config.optimizer.moments));
    snprintf(out->tokenizer, sizeof out->tokenizer, "%s", mz_task_keeps(run->task));
    return MEZZO_OK;
}

static mezzo_status write_checkpoint(mz_training *run, void *user) {
    mezzo_checkpoint c;
    (void)user;
    MEZZO_TRY(mz_lock_renew(&run->lock, run->config.out));
    MEZZO_TRY(mz_run_describe_state(run, &c));
    MZ_INJECT_DISK(run, true);
    mz_checkpoint_run facts = {.configuration = run->resolved, .ranks = run->engine.size};
    snprintf(facts.device, sizeof facts.device, "%.190s", run->engine.info.description);
    if (run->report.metrics != NULL) { // the checkpoint names a step, so the rows up to it must be on the disk
        MEZZO_TRY(mz_metrics_sync(run->report.metrics));
        facts.metrics = mz_metrics_written(run->report.metrics);
    }
    if (run->report.operands != NULL)
        MEZZO_TRY(mz_metrics_sync(run->report.operands));
    mezzo_status status = mz_checkpoint_save(run->checkpoints, &c, &facts, run->config.keep_last,
                                             run->report.result.checkpoint, sizeof run->report.result.checkpoint);
    MZ_INJECT_DISK(run, false);
    if (status == MEZZO_ERR_NUMERIC)
        return mz_fail(status, "cannot save step %lld: %.600s; the newest intact checkpoint is %.300s",
                       (long long)run->step, mezzo_error_message(),
                       run->report.result.checkpoint[0] != '\0' ? run->report.result.checkpoint : "none");
    MEZZO_TRY(status);
    mz_run_event(run, MEZZO_EVENT_CHECKPOINT, run->report.result.checkpoint);
    return MEZZO_OK;
}

mezzo_status mz_run_use_state(mz_training *run, mezzo_status (*use)(mz_training *run, void *user), void *user) {
    mz_engine *e = &run->engine;
    bool fresh;
    MEZZO_TRY(mz_run_read_step(run, true, &fresh));
    if (e->session.ranks != NULL)
        MEZZO_TRY(mz_ranks_gather_moments(e->session.ranks, e->session.optimizer, mz_run_leads(run)));
    MEZZO_TRY(mz_run_gather_weights(run, mz_run_leads(run)));
    mezzo_status status = mz_run_leads(run) ? use(run, user) : MEZZO_OK;
    mz_ranks_release(e->session.optimizer);
    mz_run_release_weights(run);
    return mz_run_follow(run, "the checkpoint", status);
}

mezzo_status mz_run_save(mz_training *run) {
    MEZZO_TRY(mz_run_use_state(run, write_checkpoint, NULL));
    run->elsewhere = false;
    return mz_run_follow_text(run, "path of the checkpoint", run->report.result.checkpoint,
                              sizeof run->report.result.checkpoint);
}
