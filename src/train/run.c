// Opens and closes a run: configuration → device, data, engine, guard, report.
#include "train/run.h"

#include <math.h>

#include "base/stop.h"

const mz_injections *mz_injecting;

// Finds the precision of the checkpoint that the run resumes; *found is false without one, or where it names none.
static mezzo_status precision_of_checkpoint(mz_training *run, bool *found) {
    const char *resume = run->config.resume;
    char path[4096] = "";
    mezzo_checkpoint c = {0};
    mezzo_precision began;
    *found = false;
    if (resume[0] == '\0')
        return MEZZO_OK;
    mezzo_status status = strcmp(resume, "auto") == 0
                              ? mezzo_checkpoint_find(run->checkpoints, false, path, sizeof path)
                              : mz_find_checkpoint(resume, false, MZ_CHECKPOINT_WHOLE, path, sizeof path);
    if (status != MEZZO_OK || mezzo_checkpoint_describe(path, &c) != MEZZO_OK) // the run's start reports the error
        return MEZZO_OK;
    if (c.precision[0] == '\0' || mezzo_precision_parse(c.precision, &began) != MEZZO_OK)
        return MEZZO_OK;
    *found = true;
    MEZZO_TRY(mezzo_precision_resolve(run->engine.device, began, &run->engine.plan.program.precision,
                                      run->engine.precision_reason, sizeof run->engine.precision_reason));
    snprintf(run->engine.precision_reason, sizeof run->engine.precision_reason, "auto: %s, as at the start of the run",
             c.precision);
    return MEZZO_OK;
}

// Settles the precision: the checkpoint's first one, or the caller's choice, replaces what the device alone decided.
static mezzo_status settle_precision(mz_training *run) {
    mz_engine *e = &run->engine;
    bool found = false;
    if (run->config.program.precision != MEZZO_PRECISION_AUTO)
        return MEZZO_OK;
    MEZZO_TRY(precision_of_checkpoint(run, &found));
    if (found || run->hooks.choose == NULL)
        return MEZZO_OK;
    const mezzo_auto_request request = {.device = e->device,
                                        .model = &e->plan.model.config,
                                        .program = &e->plan.program,
                                        .batch = run->config.batch_size,
                                        .grad_accum = run->config.grad_accum,
                                        .seed = run->config.seed,
                                        .stop = run->hooks.stop};
    return run->hooks.choose(run->hooks.user, &request, &e->plan.program.precision, e->precision_reason,
                             sizeof e->precision_reason);
}

static mezzo_status give_latents(mz_training *run, const mz_task_options *data) {
    mz_vae vae;
    MEZZO_TRY(mz_vae_open(run->engine.device, data->latents, &run->latents, &vae));
    const mezzo_status status = mz_latents_give(&vae, data->path, run->task, &run->latents);
    mz_vae_close(&vae);
    return status;
}

// Opens latents. A resumed run learns those that it began with. Rank 0 makes them; the others read its file.
static mezzo_status open_latents(mz_training *run, const mz_task_options *data) {
    if (data->latents[0] == '\0')
        return MEZZO_OK;
    if (data->folder != NULL)
        MEZZO_TRY(mz_latents_load(data->folder, &run->latents));
    MEZZO_TRY(mz_run_follow(run, "latents", mz_run_leads(run) ? give_latents(run, data) : MEZZO_OK));
    return mz_run_leads(run) ? MEZZO_OK : give_latents(run, data);
}

// Holds the weights from which a run begins or resumes, and the tokenizer that their run kept.
typedef struct origin {
    char folder[4096], own[4096 + sizeof(((mezzo_checkpoint *)0)->tokenizer)];
} origin;

static mezzo_status find_origin(const mz_training *run, origin *out) {
    const mz_run_config *c = &run->config;
    const bool automatic = strcmp(c->resume, "auto") == 0, resumes = c->resume[0] != '\0';
    char path[4096] = "";
    mezzo_checkpoint kept = {0};
    *out = (origin){0};
    if (automatic && mezzo_checkpoint_find(run->checkpoints, false, path, sizeof path) != MEZZO_OK)
        path[0] = '\0';
    if (resumes && !automatic)
        MEZZO_TRY(mz_find_checkpoint(c->resume, false, MZ_CHECKPOINT_WHOLE, path, sizeof path));
    if (path[0] == '\0' && c->init[0] != '\0')
        MEZZO_TRY(mz_find_checkpoint(c->init, false, MZ_CHECKPOINT_WEIGHTS, path, sizeof path));
    if (path[0] == '\0')
        return MEZZO_OK;
    MEZZO_TRY(mezzo_checkpoint_describe(path, &kept));
    MEZZO_TRY(mz_run_folder(path, out->folder, sizeof out->folder));
    if (kept.tokenizer[0] != '\0')
        snprintf(out->own, sizeof out->own, "%s/%s", out->folder, kept.tokenizer);
    return MEZZO_OK;
}

// Fits a model of a graph file to the data: to texts, or to arrays, whose shapes decide sizes that it leaves open.
static mezzo_status fit_graph_file(const mz_training *run, mezzo_model_config *family) {
    family->texts = run->task->kind == &mz_task_language;
    return run->task->kind->bind != NULL ? run->task->kind->bind(run->task, family) : MEZZO_OK;
}

static mezzo_status open_task(mz_training *run) {
    mezzo_model_config family;
    origin from;
    const char *name = run->config.model_name;
    MEZZO_TRY(mezzo_model_defaults(name, &family));
    mz_task_options options = run->config.data;
    if (run->config.resume[0] != '\0')
        options.folder = run->config.out;
    if (family.graph[0] != '\0') {
        family.texts = mz_task_reads_texts(&options);
        snprintf(family.loss, sizeof family.loss, "%s", run->config.loss);
    }
    MEZZO_TRY(find_origin(run, &from));
    options.weights = from.folder;
    options.own = from.own;
    if (options.latents[0] != '\0' && strcmp(family.name, "radio_unet") != 0)
        return mz_fail(MEZZO_ERR_INVALID, "data.latents is for radio_unet: %s learns from the data itself",
                       family.name);
    if (options.pack && mezzo_model_task(&family) != MEZZO_TASK_LANGUAGE)
        return mz_fail(MEZZO_ERR_INVALID, "data.pack is for texts and records, and %s is no language model: remove it",
                       family.name);
    if (options.pack && family.graph[0] != '\0')
        return mz_fail(MEZZO_ERR_INVALID,
                       "data.pack needs attention that tells documents apart, which '%s' has "
                       "not: remove it",
                       family.graph);
    MEZZO_TRY(mz_task_open(&family, &options, &run->task));
    if (strcmp(family.name, "radio_unet") == 0 && run->task->sizes.condition_channels == 0)
        return mz_fail(MEZZO_ERR_INVALID, "%s predicts images from other images, but %s has none to predict from", name,
                       options.path);
    MEZZO_TRY(open_latents(run, &options));
    MEZZO_TRY(mz_run_config_model(&run->config, &run->task->sizes, &family));
    if (family.graph[0] != '\0')
        MEZZO_TRY(fit_graph_file(run, &family));
    MEZZO_TRY(mz_model_of(&family, &run->engine.plan.model));
    MEZZO_TRY(mz_task_set_model(run->task, &run->engine.plan.model));
    if (mz_run_leads(run))
        mz_task_report(run->task);
    return MEZZO_OK;
}

static mezzo_status open_source(mz_training *run, mz_set set, mz_order order, mz_source **out) {
    uint64_t seed = mezzo_seed(run->config.seed, set == MZ_SET_TRAIN ? MEZZO_SEED_DATA : MEZZO_SEED_VALIDATION);
    bool scores = set == MZ_SET_VALIDATION && run->task->kind->scores;
    return mz_source_open(run->task, set, order, run->config.batch_size, seed, scores, out);
}

static mezzo_status open_sources(mz_training *run) {
    MEZZO_TRY(open_source(run, MZ_SET_TRAIN, MZ_ORDER_RANDOM, &run->data));
    if (!run->task->kind->has(run->task, MZ_SET_VALIDATION))
        return MEZZO_OK;
    MEZZO_TRY(open_source(run, MZ_SET_VALIDATION, MZ_ORDER_RANDOM, &run->val_random));
    return open_source(run, MZ_SET_VALIDATION, MZ_ORDER_SEQUENTIAL, &run->val_all);
}

// Returns whether the run scores and draws pictures: they are gray, and a decoder's memory is available where samples
// are drawn.
static bool draws_pictures(const mz_training *run) {
    return run->task->kind->pictures && run->config.out[0] != '\0' && run->config.sample_every >= 0 &&
           run->config.batch_size <= 1024 && mz_images_describe(run->task).channels == 1;
}

static mezzo_status open_pictures(mz_training *run) {
    run->samples = true;
    if (!run->latents.given || !mz_run_leads(run))
        return MEZZO_OK;
    MEZZO_TRY(mz_vae_open(run->engine.device, run->config.data.latents, &run->latents, &run->vae));
    return mz_vae_program(&run->vae, MZ_PART_DECODER, run->config.batch_size, &run->decoder);
}

static mezzo_status open_sampler(mz_training *run) {
    if (draws_pictures(run))
        return open_pictures(run);
    run->samples = run->config.sample_every >= 0 && mz_task_has_samples(run->task);
    return run->samples ? mz_task_open_sampler(run->task, run->engine.session.params, &run->engine.plan.program)
                        : MEZZO_OK;
}

// Takes rank 0's precision on all ranks, because the machine of one rank may measure differently.
static mezzo_status follow_precision(mz_training *run) {
    mz_engine *e = &run->engine;
    int32_t precision = (int32_t)e->plan.program.precision;
    MEZZO_TRY(mz_run_follow_text(run, "precision", (char *)&precision, sizeof precision));
    MEZZO_TRY(mz_run_follow_text(run, "choice of precision", e->precision_reason, sizeof e->precision_reason));
    memcpy(&e->plan.program.precision, &precision, sizeof precision);
    e->plan.master = mz_run_config_master(&run->config, e->plan.program.precision);
    return MEZZO_OK;
}

static mezzo_status open_parts(mezzo_device *device, bool joins, const mezzo_config *config, const mezzo_hooks *hooks,
                               mz_training *run) {
    *run = (mz_training){.source = config, .engine = {.device = device, .borrowed = device != NULL}};
    run->report.best_val_loss = (double)NAN;
    for (int kind = 0; kind < MZ_VAL_KINDS; kind++)
        run->report.val[kind] = (mz_validation){{(double)NAN, (double)NAN, (double)NAN, (double)NAN, 0, 0}, -1};
    run->engine.readout.last.loss = (double)NAN;
    run->report.started = mz_seconds();
    if (hooks != NULL)
        run->hooks = *hooks;
    MEZZO_TRY(mz_run_config_read(config, &run->config));
    run->checkpoints = mz_format("%s/checkpoints", run->config.out);
    if (run->checkpoints == NULL)
        return MEZZO_ERR_MEMORY;
    MEZZO_TRY(joins ? mz_engine_join(&run->engine, &run->config)
                    : mz_engine_open_device(&run->engine, device, &run->config));
    MEZZO_TRY(mz_run_config_share(&run->config, run->engine.size));
    if (!mz_run_leads(run))
        run->hooks.progress = NULL;
    MEZZO_TRY(open_task(run));
    run->engine.plan.form.documents = run->task->packs;
    run->engine.plan.program.loss_share = run->task->masks && mz_run_batches(run) > 1;
    MEZZO_TRY(open_sources(run));
    MEZZO_TRY(mz_run_config_count_epochs(config, run->data->batches, run->engine.size, &run->config));
    MEZZO_TRY(settle_precision(run));
    MEZZO_TRY(follow_precision(run));
    MEZZO_TRY(mz_engine_build(&run->engine, &run->config, run->task->kind->scores || draws_pictures(run)));
    MEZZO_TRY(mz_source_bind(run->data, run->engine.session.train));
    MEZZO_TRY(open_sampler(run));
    MEZZO_TRY(mz_guard_open(run));
    MEZZO_TRY(mz_replay_open(run));
    MEZZO_TRY(mz_report_open(run));
    MZ_INJECT_OPEN(run);
    return MEZZO_OK;
}

static mezzo_status open_run(mezzo_device *device, bool joins, const mezzo_config *config, const mezzo_hooks *hooks,
                             mz_training *run) {
    mz_stop *former = mz_stop_enter(hooks != NULL ? hooks->stop : NULL);
    const mezzo_status status = open_parts(device, joins, config, hooks, run);
    mz_stop_leave(former);
    return status;
}

mezzo_status mz_run_open(const mezzo_config *config, const mezzo_hooks *hooks, mz_training *run) {
    return open_run(NULL, false, config, hooks, run);
}

mezzo_status mz_run_open_on(mezzo_device *device, const mezzo_config *config, const mezzo_hooks *hooks,
                            mz_training *run) {
    return open_run(device, false, config, hooks, run);
}

mezzo_status mz_run_join(const mezzo_config *config, const mezzo_hooks *hooks, mz_training *run) {
    return open_run(NULL, true, config, hooks, run);
}

void mz_run_close(mz_training *run) {
    mz_profile_close(run->profile);
    mz_report_close(run);
    mz_lock_release(&run->lock);
    mz_replay_close(run);
    mz_guard_close(run);
    if (mz_injecting != NULL)
        mz_injecting->close(run);
    mz_source_close(run->data);
    mz_source_close(run->val_random);
    mz_source_close(run->val_all);
    mezzo_program_free(run->decoder);
    mz_vae_close(&run->vae);
    mz_task_close(run->task); // closes its sampler before the parameters that it reads
    mz_engine_close(&run->engine);
    MZ_FREE(run->checkpoints, run->resolved, run->shares[0], run->shares[1]);
}
