// Evaluating and sampling from what a run left: its config.yaml, tokenizer and a checkpoint.
#include <math.h>
#include <stdlib.h>

#include "io/file.h"
#include "train/run.h"

typedef struct model {
    mezzo_config *config;
    mz_run_config run;
    char folder[4096], path[4096]; // the run's, the checkpoint's
    mezzo_checkpoint checkpoint;
    mezzo_device *device;
    mezzo_params *params;
} model;

static mezzo_status load_config(model *m, const char *device, const char *precision, int threads) {
    char *file = mz_format("%s/config.yaml", m->folder);
    if (file == NULL)
        return MEZZO_ERR_MEMORY;
    mezzo_status status = mezzo_config_create(&m->config);
    if (status == MEZZO_OK)
        status = mezzo_config_load(m->config, file);
    mz_free(file);
    MEZZO_TRY(status);
    if (device != NULL)
        MEZZO_TRY(mezzo_config_set(m->config, "device.name", device, "--device"));
    // The precision that the run resolved, not "auto" anew: the checkpoint was trained with it.
    if (precision == NULL && m->checkpoint.precision[0] != '\0')
        precision = m->checkpoint.precision;
    if (precision != NULL)
        MEZZO_TRY(mezzo_config_set(m->config, "amp.precision", precision, "--precision"));
    MEZZO_TRY(mz_run_config_read(m->config, &m->run));
    if (threads > 0)
        m->run.threads = threads;
    return MEZZO_OK;
}

// The parameters of the model for one sequence; programs of any batch share them.
static mezzo_status load_params(model *m) {
    mezzo_status status = MEZZO_OK;
    mezzo_graph *graph = NULL;
    const mezzo_model_config *config = &m->checkpoint.model;
    MEZZO_TRY_GOTO(status, mezzo_graph_create(&graph));
    MEZZO_TRY_GOTO(status, mezzo_model_build(graph, config, 1, config->seq_len, true));
    MEZZO_TRY_GOTO(status, mezzo_params_create(m->device, graph, 0, &m->params));
    m->checkpoint.params = m->params;
    MEZZO_TRY_GOTO(status, mezzo_checkpoint_load(m->path, &m->checkpoint));
fail:
    mezzo_graph_free(graph);
    return status;
}

static mezzo_status model_open(const char *path, bool best, const char *device, const char *precision, int threads,
                               model *m) {
    mezzo_precision asked;
    *m = (model){0};
    MEZZO_TRY(mz_find_checkpoint(path, best, m->path, sizeof m->path));
    MEZZO_TRY(mezzo_checkpoint_describe(m->path, &m->checkpoint));
    if (m->checkpoint.model.name[0] == '\0')
        return mz_fail(MEZZO_ERR_FORMAT, "%s/state.json: no model is described: it was not written by a training run",
                       m->path);
    MEZZO_TRY(mezzo_model_check(&m->checkpoint.model));
    MEZZO_TRY(mz_run_folder(m->path, m->folder, sizeof m->folder));
    MEZZO_TRY(load_config(m, device, precision, threads));
    MEZZO_TRY(mezzo_device_open(m->run.device, m->run.threads, &m->device));
    asked = m->run.program.precision;
    MEZZO_TRY(mezzo_precision_resolve(m->device, asked, &m->run.program.precision, NULL, 0));
    return load_params(m);
}

static void model_close(model *m) {
    mezzo_params_free(m->params);
    mezzo_device_close(m->device);
    mezzo_config_free(m->config);
}

// The tokenizer that the run kept, or the one the run's data came with.
static mezzo_status tokenizer_path(const model *m, char **out) {
    *out = NULL;
    if (m->checkpoint.tokenizer[0] == '\0')
        return MEZZO_OK;
    *out = mz_format("%s/%s", m->folder, m->checkpoint.tokenizer);
    return *out == NULL ? MEZZO_ERR_MEMORY : MEZZO_OK;
}

// --- evaluating ----------------------------------------------------------------------------------
typedef struct evaluation {
    mezzo_corpus *corpus;
    mezzo_loader *loader;
    mezzo_program *program;
    int32_t *inputs, *targets; // [B, T]
    char *tokenizer;
} evaluation;

static mezzo_status open_corpus(const model *m, const mezzo_eval_options *o, evaluation *e) {
    MEZZO_TRY(tokenizer_path(m, &e->tokenizer));
    mezzo_corpus_options c = {.path = m->run.data_path,
                              .train = m->run.data_train,
                              .validation = m->run.data_val,
                              .tokenizer = e->tokenizer != NULL ? e->tokenizer : m->run.tokenizer,
                              .train_fraction = m->run.split};
    if (o->data != NULL) // all of it, as one stream
        c = (mezzo_corpus_options){.train = o->data, .tokenizer = c.tokenizer};
    return mezzo_corpus_open(&c, &e->corpus);
}

static mezzo_status open_evaluation(const model *m, const mezzo_eval_options *o, int64_t batch, evaluation *e) {
    mezzo_status status = MEZZO_OK;
    mezzo_graph *graph = NULL;
    const mezzo_model_config *config = &m->checkpoint.model;
    mezzo_program_options forward = m->run.program;
    forward.forward_only = true;
    forward.recompute = false;
    const mezzo_loader_options l = {.split = o->data != NULL ? MEZZO_TRAIN : MEZZO_VALIDATION,
                                    .order = o->iters > 0 ? MEZZO_LOADER_RANDOM : MEZZO_LOADER_SEQUENTIAL,
                                    .batch = batch,
                                    .length = config->seq_len,
                                    .vocab = (int32_t)config->vocab,
                                    .seed = mz_seed(m->checkpoint.seed, MZ_SEED_VALIDATION),
                                    .stream = (uint32_t)MEZZO_VALIDATION};
    MEZZO_TRY_GOTO(status, open_corpus(m, o, e));
    MEZZO_TRY_GOTO(status, mezzo_loader_create(e->corpus, &l, &e->loader));
    e->inputs = mz_alloc((size_t)(batch * config->seq_len), sizeof *e->inputs);
    e->targets = mz_alloc((size_t)(batch * config->seq_len), sizeof *e->targets);
    if (e->inputs == NULL || e->targets == NULL)
        MEZZO_TRY_GOTO(status, MEZZO_ERR_MEMORY);
    MEZZO_TRY_GOTO(status, mezzo_graph_create(&graph));
    MEZZO_TRY_GOTO(status, mezzo_model_build(graph, config, batch, config->seq_len, false));
    MEZZO_TRY_GOTO(status, mezzo_program_create(graph, m->params, &forward, &e->program));
fail:
    mezzo_graph_free(graph);
    return status;
}

static mezzo_status evaluate(const model *m, const mezzo_eval_options *o, const mezzo_hooks *hooks,
                             mezzo_eval_result *r) {
    evaluation e = {0};
    uint64_t tokens = 0;
    int64_t batch = o->batch_size > 0 ? o->batch_size : m->run.batch_size;
    size_t count = (size_t)(batch * m->checkpoint.model.seq_len);
    const volatile sig_atomic_t *stop = hooks != NULL ? hooks->stop : NULL;
    mezzo_status status = open_evaluation(m, o, batch, &e);
    double start = mz_seconds();
    if (status == MEZZO_OK) {
        uint64_t n = o->iters > 0 ? (uint64_t)o->iters : mezzo_loader_batches(e.loader);
        status = mz_validate(e.program, e.loader, n, e.inputs, e.targets, count, stop, &r->loss, &tokens);
    }
    if (status == MEZZO_OK && stop != NULL && *stop)
        status = mz_fail(MEZZO_ERR_INTERRUPTED, "stopped before the evaluation was done");
    r->tokens = (int64_t)tokens;
    r->tokens_per_second = (double)tokens / (mz_seconds() - start);
    r->perplexity = exp(r->loss);
    mezzo_program_free(e.program);
    mezzo_loader_free(e.loader);
    mezzo_corpus_free(e.corpus);
    mz_free(e.inputs);
    mz_free(e.targets);
    mz_free(e.tokenizer);
    return status;
}

mezzo_status mezzo_run_eval(const mezzo_eval_options *options, const mezzo_hooks *hooks, mezzo_eval_result *result) {
    model m;
    *result = (mezzo_eval_result){.loss = (double)NAN, .perplexity = (double)NAN};
    if (options->batch_size < 0 || options->iters < 0)
        return mz_fail(MEZZO_ERR_INVALID, "eval: batch size %lld and batches %lld must be 0 or more",
                       (long long)options->batch_size, (long long)options->iters);
    mezzo_status status =
        model_open(options->path, options->best, options->device, options->precision, options->threads, &m);
    if (status == MEZZO_OK)
        status = evaluate(&m, options, hooks, result);
    result->step = m.checkpoint.step;
    result->precision = m.run.program.precision;
    snprintf(result->checkpoint, sizeof result->checkpoint, "%s", m.path);
    model_close(&m);
    return status;
}

// --- sampling ------------------------------------------------------------------------------------
mezzo_sample_options mezzo_sample_defaults(void) {
    return (mezzo_sample_options){.tokens = 200, .samples = 1, .temperature = 0.8, .seed = 1};
}

static mezzo_status check_sample(const mezzo_sample_options *o) {
    if (!(o->temperature >= 0) || isinf(o->temperature))
        return mz_fail(MEZZO_ERR_INVALID, "sample: the temperature is %g: use a finite number, 0 or more",
                       o->temperature);
    if (!(o->top_p >= 0 && o->top_p <= 1))
        return mz_fail(MEZZO_ERR_INVALID, "sample: top_p is %g: use a number from 0 to 1", o->top_p);
    if (o->tokens < 0 || o->samples < 0 || o->top_k < 0)
        return mz_fail(MEZZO_ERR_INVALID, "sample: tokens %lld, samples %d and top_k %d must be 0 or more",
                       (long long)o->tokens, o->samples, o->top_k);
    return MEZZO_OK;
}

static mezzo_status draw_samples(const model *m, const mezzo_sample_options *o, const mezzo_hooks *hooks,
                                 mezzo_text_fn write, void *user) {
    mezzo_status status = MEZZO_OK;
    mezzo_tokenizer *tokenizer = NULL;
    mz_sampler *sampler = NULL;
    char *path;
    const volatile sig_atomic_t *stop = hooks != NULL ? hooks->stop : NULL;
    int64_t tokens = o->tokens > 0 ? o->tokens : mezzo_sample_defaults().tokens;
    MEZZO_TRY(tokenizer_path(m, &path));
    if (path == NULL)
        return mz_fail(MEZZO_ERR_INVALID, "%s: the run has no tokenizer, so tokens cannot be turned into text",
                       m->folder);
    MEZZO_TRY_GOTO(status, mezzo_tokenizer_load(path, &tokenizer));
    MEZZO_TRY_GOTO(status, mz_sampler_create(m->params, &m->checkpoint.model, &m->run.program, tokenizer, &sampler));
    for (int i = 0; i < (o->samples > 0 ? o->samples : 1); i++) {
        mz_draw draw = {.temperature = o->temperature,
                        .top_p = o->top_p,
                        .top_k = o->top_k,
                        .seed = o->seed,
                        .index = (uint64_t)i << 32};
        MEZZO_TRY_GOTO(status, mz_sampler_run(sampler, o->prompt, tokens, draw, i, stop, write, user));
    }
    if (stop != NULL && *stop)
        status = mz_fail(MEZZO_ERR_INTERRUPTED, "stopped before the sample was done");
fail:
    mz_sampler_free(sampler);
    mezzo_tokenizer_free(tokenizer);
    mz_free(path);
    return status;
}

mezzo_status mezzo_run_sample(const mezzo_sample_options *options, const mezzo_hooks *hooks, mezzo_text_fn write,
                              void *user) {
    model m;
    MEZZO_TRY(check_sample(options));
    mezzo_status status =
        model_open(options->path, options->best, options->device, options->precision, options->threads, &m);
    if (status == MEZZO_OK)
        status = draw_samples(&m, options, hooks, write, user);
    model_close(&m);
    return status;
}
