// Opening and closing a run: configuration → device, data, engine, guard, report.
#include "train/run.h"

#include <math.h>

#include "io/file.h"

// The precision of the checkpoint that the run resumes; *found is false without one, or where it names none.
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
                              : mz_find_checkpoint(resume, false, path, sizeof path);
    if (status != MEZZO_OK || mezzo_checkpoint_describe(path, &c) != MEZZO_OK) // told where the run starts
        return MEZZO_OK;
    if (c.precision[0] == '\0' || mezzo_precision_parse(c.precision, &began) != MEZZO_OK)
        return MEZZO_OK;
    *found = true;
    MEZZO_TRY(mezzo_precision_resolve(run->engine.device, began, &run->engine.program.precision,
                                      run->engine.precision_reason, sizeof run->engine.precision_reason));
    snprintf(run->engine.precision_reason, sizeof run->engine.precision_reason, "auto: %s, as the run began",
             c.precision);
    return MEZZO_OK;
}

// What the checkpoint began in, or what the caller chooses, stands above what the device alone decided.
static mezzo_status settle_precision(mz_training *run) {
    mz_engine *e = &run->engine;
    bool found = false;
    if (run->config.program.precision != MEZZO_PRECISION_AUTO)
        return MEZZO_OK;
    MEZZO_TRY(precision_of_checkpoint(run, &found));
    if (found || run->hooks.choose == NULL)
        return MEZZO_OK;
    const mezzo_auto_request request = {.device = e->device,
                                        .model = &e->model,
                                        .program = &e->program,
                                        .batch = run->config.batch_size,
                                        .grad_accum = run->config.grad_accum,
                                        .seed = run->config.seed,
                                        .stop = run->hooks.stop};
    return run->hooks.choose(run->hooks.user, &request, &e->program.precision, e->precision_reason,
                             sizeof e->precision_reason);
}

// A resumed run keeps the tokenizer it began with.
static mezzo_status open_data(mz_training *run) {
    const mz_run_config *c = &run->config;
    if (c->data_path[0] == '\0' && c->data_train[0] == '\0')
        return mz_fail(MEZZO_ERR_INVALID,
                       "data.path is not set: give a text file or a folder of token shards (--data FILE)");
    const mezzo_corpus_options options = {.path = c->data_path,
                                          .train = c->data_train,
                                          .validation = c->data_val,
                                          .tokenizer = c->tokenizer,
                                          .train_fraction = c->split};
    MEZZO_TRY(mezzo_corpus_open(&options, &run->corpus));
    const mezzo_tokenizer *tokenizer = mezzo_corpus_tokenizer(run->corpus);
    MEZZO_TRY(
        mezzo_config_model(run->source, tokenizer != NULL ? mezzo_tokenizer_vocab(tokenizer) : 0, &run->engine.model));
    if (strcmp(run->engine.model.name, "toy") == 0)
        return mz_fail(MEZZO_ERR_INVALID,
                       "model.name is toy, which reads no text: use gpt2 (the toy model is trained in examples/toy.c)");
    return MEZZO_OK;
}

static mezzo_status open_loader(mz_training *run, mezzo_corpus_part part, mezzo_loader_order order,
                                mezzo_loader **out) {
    const mezzo_loader_options options = {
        .split = part,
        .order = order,
        .batch = run->config.batch_size,
        .length = run->engine.model.seq_len,
        .vocab = (int32_t)run->engine.model.vocab,
        .seed = mz_seed(run->config.seed, part == MEZZO_TRAIN ? MZ_SEED_DATA : MZ_SEED_VALIDATION),
        .stream = (uint32_t)part};
    return mezzo_loader_create(run->corpus, &options, out);
}

static mezzo_status open_loaders(mz_training *run) {
    MEZZO_TRY(open_loader(run, MEZZO_TRAIN, MEZZO_LOADER_RANDOM, &run->batches));
    if (mezzo_corpus_tokens(run->corpus, MEZZO_VALIDATION) > 0) {
        MEZZO_TRY(open_loader(run, MEZZO_VALIDATION, MEZZO_LOADER_RANDOM, &run->val_random));
        MEZZO_TRY(open_loader(run, MEZZO_VALIDATION, MEZZO_LOADER_SEQUENTIAL, &run->val_all));
    }
    run->count = (size_t)(run->config.batch_size * run->engine.model.seq_len);
    run->inputs = mz_alloc(run->count, sizeof *run->inputs);
    run->targets = mz_alloc(run->count, sizeof *run->targets);
    return run->inputs == NULL || run->targets == NULL ? MEZZO_ERR_MEMORY : MEZZO_OK;
}

static mezzo_status open_sampler(mz_training *run) {
    const mezzo_tokenizer *tokenizer = mezzo_corpus_tokenizer(run->corpus);
    if (tokenizer == NULL || run->config.sample_every < 0)
        return MEZZO_OK;
    return mz_sampler_create(run->engine.params, &run->engine.model, &run->engine.program, tokenizer, &run->sampler);
}

mezzo_status mz_run_open(const mezzo_config *config, const mezzo_hooks *hooks, mz_training *run) {
    return mz_run_open_on(NULL, config, hooks, run);
}

mezzo_status mz_run_open_on(mezzo_device *device, const mezzo_config *config, const mezzo_hooks *hooks,
                            mz_training *run) {
    *run = (mz_training){.source = config, .engine = {.device = device, .borrowed = device != NULL}};
    run->report.val_loss = run->report.best_val_loss = run->engine.readout.last.loss = (double)NAN;
    run->report.started = mz_seconds();
    if (hooks != NULL)
        run->hooks = *hooks;
    MEZZO_TRY(mz_run_config_read(config, &run->config));
    run->checkpoints = mz_format("%s/checkpoints", run->config.out);
    run->tokenizer_file = mz_format("%s/tokenizer.json", run->config.out);
    if (run->checkpoints == NULL || run->tokenizer_file == NULL)
        return MEZZO_ERR_MEMORY;
    if (run->config.resume[0] != '\0' && mz_path_exists(run->tokenizer_file))
        run->config.tokenizer = run->tokenizer_file;
    MEZZO_TRY(mz_engine_open_device(&run->engine, device, &run->config));
    MEZZO_TRY(open_data(run));
    MEZZO_TRY(open_loaders(run));
    MEZZO_TRY(settle_precision(run));
    MEZZO_TRY(mz_engine_build(&run->engine, &run->config));
    MEZZO_TRY(open_sampler(run));
    MEZZO_TRY(mz_guard_open(run));
    MEZZO_TRY(mz_report_open(run));
    return mz_inject_open(run);
}

void mz_run_close(mz_training *run) {
    mz_report_close(run);
    mz_guard_close(run);
    mz_inject_close(run);
    mz_sampler_free(run->sampler);
    mz_engine_close(&run->engine);
    mezzo_loader_free(run->batches);
    mezzo_loader_free(run->val_random);
    mezzo_loader_free(run->val_all);
    mezzo_corpus_free(run->corpus);
    mz_free(run->inputs);
    mz_free(run->targets);
    mz_free(run->checkpoints);
    mz_free(run->tokenizer_file);
}
