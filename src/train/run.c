// Opening and closing a run: configuration → device, data, model, programs, optimizer, scaler.
#include "train/run.h"

#include <math.h>

#include "io/file.h"

uint64_t mz_seed(uint64_t seed, mz_purpose purpose) {
    uint32_t words[4];
    mz_philox((mz_philox_key){seed, 0, 0x5EED0000u + (uint32_t)purpose}, 0, words);
    return (uint64_t)words[1] << 32 | words[0];
}

// --- parts ------------------------------------------------------------------------------------------------------------------
static mezzo_status open_device(mz_training *run) {
    mezzo_precision asked = run->config.program.precision, *effective = &run->config.program.precision;
    if (run->device == NULL)
        MEZZO_TRY(mezzo_device_open(run->config.device, run->config.threads, &run->device));
    MEZZO_TRY(mezzo_device_describe(run->device, &run->info));
    run->automatic = asked == MEZZO_PRECISION_AUTO;
    return mezzo_precision_resolve(run->device, asked, effective, run->precision_reason, sizeof run->precision_reason);
}

// What the checkpoint that the run goes on from was trained in; *found is false where there is none, or it does not say.
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
    MEZZO_TRY(mezzo_precision_resolve(run->device, began, &run->config.program.precision, run->precision_reason,
                                      sizeof run->precision_reason));
    snprintf(run->precision_reason, sizeof run->precision_reason, "auto: %s, as the run began", c.precision);
    return MEZZO_OK;
}

static mezzo_status settle_precision(mz_training *run) {
    bool found = false;
    if (run->automatic)
        MEZZO_TRY(precision_of_checkpoint(run, &found));
    if (run->automatic && !found && run->hooks.choose != NULL) {
        const mezzo_auto_request request = {.device = run->device,
                                            .model = &run->model,
                                            .program = &run->config.program,
                                            .batch = run->config.batch_size,
                                            .grad_accum = run->config.grad_accum,
                                            .seed = run->config.seed,
                                            .stop = run->hooks.stop};
        MEZZO_TRY(run->hooks.choose(run->hooks.user, &request, &run->config.program.precision, run->precision_reason,
                                    sizeof run->precision_reason));
    }
    if (run->config.scaler.automatic) {
        run->config.scaler.options.enabled = run->config.program.precision == MEZZO_PRECISION_FP16;
        for (int i = 0; i < run->config.program.n_overrides; i++) // one module in FP16 is enough to underflow
            if (run->config.program.overrides[i].precision == MEZZO_PRECISION_FP16)
                run->config.scaler.options.enabled = true;
    }
    return MEZZO_OK;
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
    MEZZO_TRY(mezzo_config_model(run->source, tokenizer != NULL ? mezzo_tokenizer_vocab(tokenizer) : 0, &run->model));
    if (strcmp(run->model.name, "toy") == 0)
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
        .length = run->model.seq_len,
        .vocab = (int32_t)run->model.vocab,
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
    run->count = (size_t)(run->config.batch_size * run->model.seq_len);
    run->inputs = mz_alloc(run->count, sizeof *run->inputs);
    run->targets = mz_alloc(run->count, sizeof *run->targets);
    return run->inputs == NULL || run->targets == NULL ? MEZZO_ERR_MEMORY : MEZZO_OK;
}

static mezzo_status open_programs(mz_training *run) {
    mezzo_status status = MEZZO_OK;
    mezzo_graph *graph = NULL;
    mezzo_program_options train = run->config.program, eval = run->config.program;
    uint64_t seed = mz_seed(run->config.seed, MZ_SEED_PARAMETERS);
    train.loss_weight = 1.0f / (float)run->config.grad_accum;
    eval.forward_only = true;
    eval.recompute = false;
    MEZZO_TRY_GOTO(status, mezzo_graph_create(&graph));
    MEZZO_TRY_GOTO(status, mezzo_model_build(graph, &run->model, run->config.batch_size, run->model.seq_len, false));
    MEZZO_TRY_GOTO(status, mezzo_params_create_as(run->device, graph, seed, run->config.master, &run->params));
    MEZZO_TRY_GOTO(status, mezzo_program_create(graph, run->params, &train, &run->train));
    MEZZO_TRY_GOTO(status, mezzo_program_create(graph, run->params, &eval, &run->eval));
    MEZZO_TRY_GOTO(status, mz_program_output_address(run->train, "loss", &run->readout.loss));
fail:
    mezzo_graph_free(graph);
    return status;
}

static mezzo_status open_sampler(mz_training *run) {
    const mezzo_tokenizer *tokenizer = mezzo_corpus_tokenizer(run->corpus);
    if (tokenizer == NULL || run->config.sample_every < 0)
        return MEZZO_OK;
    return mz_sampler_create(run->params, &run->model, &run->config.program, tokenizer, &run->sampler);
}

static size_t program_memory(const mezzo_program *program) {
    mezzo_memory m;
    mezzo_program_memory(program, &m);
    return m.activations + m.workspace + m.inputs;
}

static void count_memory(mz_training *run) {
    mezzo_memory m;
    mezzo_program_memory(run->train, &m);
    run->memory = m.masters + m.gradients + m.shadows + program_memory(run->train) + program_memory(run->eval) +
                  (run->sampler != NULL ? mz_sampler_memory(run->sampler) : 0) + mezzo_optimizer_memory(run->optimizer);
}

mezzo_status mz_run_open(const mezzo_config *config, const mezzo_hooks *hooks, mz_training *run) {
    return mz_run_open_on(NULL, config, hooks, run);
}

mezzo_status mz_run_open_on(mezzo_device *device, const mezzo_config *config, const mezzo_hooks *hooks,
                            mz_training *run) {
    *run = (mz_training){.device = device,
                         .borrowed = device != NULL,
                         .source = config,
                         .val_loss = (double)NAN,
                         .best_val_loss = (double)NAN};
    run->readout.last.loss = (double)NAN;
    run->started = mz_seconds();
    if (hooks != NULL)
        run->hooks = *hooks;
    MEZZO_TRY(mz_run_config_read(config, &run->config));
    run->checkpoints = mz_format("%s/checkpoints", run->config.out);
    run->tokenizer_file = mz_format("%s/tokenizer.json", run->config.out);
    if (run->checkpoints == NULL || run->tokenizer_file == NULL)
        return MEZZO_ERR_MEMORY;
    if (run->config.resume[0] != '\0' && mz_path_exists(run->tokenizer_file))
        run->config.tokenizer = run->tokenizer_file;
    MEZZO_TRY(open_device(run));
    MEZZO_TRY(open_data(run));
    MEZZO_TRY(open_loaders(run));
    MEZZO_TRY(settle_precision(run));
    MEZZO_TRY(open_programs(run));
    MEZZO_TRY(mz_expert_load_create(&run->model, &run->experts));
    if (run->config.histograms_every > 0)
        MEZZO_TRY(mz_magnitudes_create(run->train, run->params, &run->magnitudes));
    MEZZO_TRY(open_sampler(run));
    MEZZO_TRY(mezzo_optimizer_create(run->params, &run->config.optimizer, &run->optimizer));
    MEZZO_TRY(mezzo_scaler_create(run->device, &run->config.scaler.options, &run->scaler));
    MEZZO_TRY(mz_guard_open(run));
    MEZZO_TRY(mz_gradient_norms_create(run->optimizer, &run->norms));
    count_memory(run);
    // A device with a queue is read one step late: nobody waits for it.
    run->readout.lag = run->device->backend->capture_begin != NULL ? 1 : 0;
    return mz_inject_open(run);
}

void mz_run_close(mz_training *run) {
    mz_metrics_close(run->metrics);
    mz_guard_close(run);
    mz_health_end(&run->health);
    mz_gradient_norms_free(run->device, run->norms);
    mz_inject_close(run);
    mz_batch_free(run->device, run->update);
    mz_expert_load_free(run->experts);
    mz_magnitudes_free(run->magnitudes);
    mezzo_optimizer_free(run->optimizer);
    mezzo_scaler_free(run->scaler);
    mz_sampler_free(run->sampler);
    mezzo_program_free(run->eval);
    mezzo_program_free(run->train);
    mezzo_params_free(run->params);
    mezzo_loader_free(run->batches);
    mezzo_loader_free(run->val_random);
    mezzo_loader_free(run->val_all);
    mezzo_corpus_free(run->corpus);
    if (!run->borrowed)
        mezzo_device_close(run->device);
    mz_free(run->inputs);
    mz_free(run->targets);
    mz_free(run->checkpoints);
    mz_free(run->tokenizer_file);
}
