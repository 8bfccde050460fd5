// Evaluates and samples from a run's config.yaml, tokenizer and a checkpoint.
#include <math.h>
#include <stdlib.h>

#include "base/stop.h"
#include "graph/graph.h"
#include "io/file.h"
#include "io/json.h"
#include "task/images.h"
#include "train/evaluate.h"
#include "train/run.h"

typedef struct model {
    mezzo_config *config;
    mz_run_config run;
    mezzo_program_options program; // its precision resolved
    char folder[4096], path[4096]; // of the run, and of the checkpoint
    mezzo_checkpoint checkpoint;
    mezzo_device *device;
    mz_model model;
    mz_session session; // it has parameters alone
    mz_task *task;
    mz_vae vae; // for a run that learns latents
} model;

static mezzo_status load_config(model *m, const char *device, const char *precision, int threads) {
    MEZZO_TRY(mz_run_folder_config(m->folder, &m->config));
    if (device != NULL)
        MEZZO_TRY(mezzo_config_set(m->config, "device.name", device, "--device"));
    // The precision is the run's resolved one, in which the checkpoint was trained; "auto" could choose another here.
    if (precision == NULL && m->checkpoint.precision[0] != '\0')
        precision = m->checkpoint.precision;
    if (precision != NULL)
        MEZZO_TRY(mezzo_config_set(m->config, "amp.precision", precision, "--precision"));
    MEZZO_TRY(mz_run_config_read(m->config, &m->run));
    if (threads > 0)
        m->run.threads = threads;
    return MEZZO_OK;
}

// Returns the master format of the run. Products read the upper half of weights kept in two halves, which differs from
// FP32 masters rounded halfway; with the run's own format losses have its bits.
static mezzo_master master_of(const model *m) {
    const mz_precision_info *p = mz_precision(m->program.precision);
    const bool split = strcmp(m->checkpoint.master, mezzo_master_name(MEZZO_MASTER_SPLIT)) == 0;
    return split && p != NULL && p->operand == MEZZO_BF16 ? MEZZO_MASTER_SPLIT : MEZZO_MASTER_FP32;
}

// Loads the parameters of the model, which programs of any batch share.
static mezzo_status load_params(model *m) {
    const mz_session_options o = {.model = m->model,
                                  .form = {.batch = 1, .length = mz_model_sizes_of(&m->model).length, .outputs = true},
                                  .quick_init = true, // the checkpoint replaces every value
                                  .program = m->program,
                                  .master = master_of(m),
                                  .step = {.micro_batches = 1},
                                  .size = 1};
    MEZZO_TRY(mz_session_open(m->device, &o, MZ_SESSION_PARAMS, &m->session));
    m->checkpoint.params = m->session.params;
    return mezzo_checkpoint_load(m->path, &m->checkpoint);
}

typedef struct opening { // the options that these calls share
    const char *path, *device, *precision;
    bool best, no_ema;
    int threads;
} opening;
#define OPENING(o)                                                                                                     \
    (opening) {                                                                                                        \
        (o)->path, (o)->device, (o)->precision, (o)->best, (o)->no_ema, (o)->threads                                   \
    }

static mezzo_status open_found(opening o, model *m) {
    *m = (model){0};
    const int parts = MZ_CHECKPOINT_WEIGHTS | (o.no_ema ? 0 : MZ_CHECKPOINT_EMA);
    MEZZO_TRY(mz_find_checkpoint(o.path, o.best, parts, m->path, sizeof m->path));
    MEZZO_TRY(mezzo_checkpoint_describe(m->path, &m->checkpoint));
    m->checkpoint.ema = m->checkpoint.has_ema && !o.no_ema;
    MEZZO_TRY(mz_description_read(m->path, m->checkpoint.model, &m->model));
    MEZZO_TRY(mz_model_compare_hash(&m->model, m->checkpoint.graph, m->path));
    MEZZO_TRY(mz_run_folder(m->path, m->folder, sizeof m->folder));
    MEZZO_TRY(load_config(m, o.device, o.precision, o.threads));
    mezzo_status opened = mezzo_device_open(m->run.device, m->run.threads, &m->device);
    if (opened == MEZZO_ERR_UNSUPPORTED && o.device == NULL && mz_device_name_is_gpu(m->run.device)) {
        mz_log("notice", "the run trained on %s, which is not available here: using the CPU", m->run.device);
        opened = mezzo_device_open("cpu", m->run.threads, &m->device);
    }
    MEZZO_TRY(opened);
    m->program = m->run.program;
    MEZZO_TRY(mezzo_precision_resolve(m->device, m->run.program.precision, &m->program.precision, NULL, 0));
    return load_params(m);
}

static void model_close(model *m) {
    mz_task_close(m->task);
    mz_vae_close(&m->vae);
    mz_session_close(&m->session);
    mezzo_device_close(m->device);
    mezzo_config_free(m->config);
}

static mezzo_status model_open(opening o, model *m) {
    int tries = 0;
    mezzo_status status = open_found(o, m);
    while (mz_checkpoint_find_again(status, m->path, &tries)) {
        model_close(m);
        status = open_found(o, m);
    }
    return status;
}

// Finds the tokenizer that the run kept, or the one that came with the run's data.
static mezzo_status tokenizer_path(const model *m, char **out) {
    *out = NULL;
    if (m->checkpoint.tokenizer[0] == '\0')
        return MEZZO_OK;
    *out = mz_format("%s/%s", m->folder, m->checkpoint.tokenizer);
    return *out == NULL ? MEZZO_ERR_MEMORY : MEZZO_OK;
}

// --- evaluating ----------------------------------------------------------------------------------
static mezzo_status open_latents(model *m, const mz_task_options *options) {
    mz_latents latents;
    if (options->no_data || m->run.data.latents[0] == '\0')
        return MEZZO_OK;
    MEZZO_TRY(mz_latents_load(m->folder, &latents));
    if (!latents.given)
        return mz_fail(MEZZO_ERR_INVALID, "%s/latents.json is missing: it says which latents were learned", m->folder);
    MEZZO_TRY(mz_vae_open(m->device, m->run.data.latents, &latents, &m->vae));
    return mz_latents_give(&m->vae, options->all != NULL ? options->all : options->path, m->task, &latents);
}

static mezzo_status open_task(model *m, const mz_task_options *options) {
    MEZZO_TRY(mz_task_open(&m->model.config, options, &m->task));
    MEZZO_TRY(open_latents(m, options));
    MEZZO_TRY(mz_task_set_model(m->task, &m->model));
    mz_task_report(m->task);
    return MEZZO_OK;
}

static mezzo_status open_data(model *m, const mezzo_eval_options *o, const mezzo_hooks *hooks) {
    mz_task_options options = m->run.data;
    char *tokenizer;
    MEZZO_TRY(tokenizer_path(m, &tokenizer));
    if (o->data != NULL)
        options = (mz_task_options){.all = o->data, .labels = o->labels, .pack = options.pack};
    options.tokenizer = NULL; // the run keeps the tokenizer that its configuration named or made, or has none
    options.own = tokenizer;
    options.weights = m->folder;
    mz_stop *former = mz_stop_enter(hooks != NULL ? hooks->stop : NULL);
    mezzo_status status = open_task(m, &options);
    if (status == MEZZO_OK && o->data == NULL)
        mz_compare_data(&m->run.data, MZ_SET_VALIDATION, mz_task_mark(m->task, MZ_SET_VALIDATION), m->path,
                        &m->checkpoint, "its losses do not compare with the run's");
    mz_stop_leave(former);
    mz_free(tokenizer);
    return status;
}

static mezzo_status open_program(const model *m, int64_t batch, bool outputs, mezzo_program **out) {
    const mz_form form = {.batch = batch,
                          .length = mz_model_sizes_of(&m->model).length,
                          .outputs = outputs,
                          .documents = m->task != NULL && m->task->packs};
    return mz_model_program(&m->model, &form, m->session.params, &m->program, out);
}

enum { PREDICT_STEPS = 5, PREDICT_SEED = 1 }; // defaults of the sampler

// Predicts with a program of the whole model and its output; for latents the decoder follows.
static mezzo_status predict_by(const model *m, mezzo_program *program, int64_t batch, mz_predict *request,
                               const mezzo_hooks *hooks, mz_predicted *out) {
    mezzo_status status = MEZZO_OK;
    if (m->vae.session.params != NULL)
        status = mz_vae_program(&m->vae, MZ_PART_DECODER, batch, &request->decoder);
    if (status == MEZZO_OK)
        status = mz_images_predict(m->task, program, batch, request, hooks != NULL ? hooks->stop : NULL, out);
    mezzo_program_free(request->decoder);
    return status;
}

// Returns whether evaluated pictures are also predicted and scored.
static bool scores_pictures(const model *m, const mezzo_eval_options *o) {
    return mz_model_purpose(&m->model) == MEZZO_TASK_IMAGES && o->iters == 0 &&
           mz_images_describe(m->task).channels == 1;
}

static mezzo_status score_pictures(const model *m, mezzo_program *program, int64_t batch, const mezzo_hooks *hooks,
                                   mezzo_eval_result *r) {
    mz_predict request = {.steps = PREDICT_STEPS, .seed = PREDICT_SEED};
    mz_predicted done = {0};
    MEZZO_TRY(predict_by(m, program, batch, &request, hooks, &done));
    r->nmse = done.nmse;
    r->rmse = done.rmse;
    r->ssim = done.ssim;
    r->psnr = done.psnr;
    return MEZZO_OK;
}

static void fill_result(const model *m, const mz_evaluation *score, double seconds, mezzo_eval_result *r) {
    mz_task_metric metrics[MZ_TASK_METRICS];
    int n = m->task->kind->metrics(score, metrics);
    r->loss = score->loss;
    r->tokens = (int64_t)score->counted;
    r->tokens_per_second = (double)score->counted / seconds;
    r->unit = m->task->kind->unit;
    if (m->task->kind->target != NULL)
        r->perplexity_per = m->task->kind->target(m->task);
    for (int i = 0; i < n; i++)
        *(strcmp(metrics[i].name, "perplexity") == 0      ? &r->perplexity
          : strcmp(metrics[i].name, "bits_per_byte") == 0 ? &r->bits_per_byte
          : strcmp(metrics[i].name, "mae") == 0           ? &r->mae
          : strcmp(metrics[i].name, "r2") == 0            ? &r->r2
                                                          : &r->accuracy) = metrics[i].value;
}

static mezzo_status write_batches(const char *path, const mz_batch_score *each, uint64_t n) {
    mz_text csv = {0};
    mz_text_addf(&csv, "batch,counted,loss\n");
    for (uint64_t k = 0; k < n; k++)
        mz_text_addf(&csv, "%llu,%llu,%.9g\n", (unsigned long long)k, (unsigned long long)each[k].counted,
                     each[k].loss);
    return mz_text_save(&csv, path);
}

static mezzo_status evaluate(model *m, const mezzo_eval_options *o, const mezzo_hooks *hooks, mezzo_eval_result *r) {
    mezzo_status status = MEZZO_OK;
    mz_source *source = NULL;
    mezzo_program *program = NULL;
    mz_batch_score *each = NULL;
    mz_evaluation score = {(double)NAN, (double)NAN, (double)NAN, (double)NAN, 0, 0};
    const int64_t batch = o->batch_size > 0 ? o->batch_size : m->run.batch_size;
    const volatile sig_atomic_t *stop = hooks != NULL ? hooks->stop : NULL;
    MEZZO_TRY(open_data(m, o, hooks));
    MEZZO_TRY_GOTO(status, mz_source_open(m->task, o->data != NULL ? MZ_SET_TRAIN : MZ_SET_VALIDATION,
                                          o->iters > 0 ? MZ_ORDER_RANDOM : MZ_ORDER_SEQUENTIAL, batch,
                                          mezzo_seed(m->checkpoint.seed, MEZZO_SEED_VALIDATION), m->task->kind->scores,
                                          &source));
    const bool pictures = scores_pictures(m, o);
    MEZZO_TRY_GOTO(status, open_program(m, batch, m->task->kind->scores || pictures, &program));
    const uint64_t n = o->iters > 0 ? (uint64_t)o->iters : source->batches;
    if (o->csv != NULL && (source->each = each = mz_alloc(n, sizeof *each)) == NULL) {
        status = MEZZO_ERR_MEMORY;
        goto fail;
    }
    const double start = mz_seconds();
    MEZZO_TRY_GOTO(status, mz_evaluate(program, source, n, stop, &score));
    if (stop != NULL && *stop)
        status = mz_fail(MEZZO_ERR_INTERRUPTED, "stopped before the evaluation was complete");
    fill_result(m, &score, mz_seconds() - start, r);
    if (status == MEZZO_OK && pictures)
        status = score_pictures(m, program, batch, hooks, r);
    if (status == MEZZO_OK && o->csv != NULL)
        status = write_batches(o->csv, each, n);
fail:
    mezzo_program_free(program);
    mz_source_close(source);
    mz_free(each);
    return status;
}

mezzo_status mz_run_eval(const mezzo_eval_options *options, const mezzo_hooks *hooks, mz_change_fn *change, void *user,
                         mezzo_eval_result *result) {
    MZ_REQUIRE(options, result);
    MZ_REQUIRE(options->path);
    model m;
    const double none = (double)NAN;
    *result = (mezzo_eval_result){.loss = none,
                                  .loss_as = none,
                                  .perplexity = none,
                                  .perplexity_per = "",
                                  .bits_per_byte = none,
                                  .accuracy = none,
                                  .mae = none,
                                  .r2 = none,
                                  .nmse = none,
                                  .rmse = none,
                                  .ssim = none,
                                  .psnr = none,
                                  .unit = "tokens"};
    if (options->labels != NULL && options->data == NULL)
        return mz_fail(MEZZO_ERR_INVALID, "eval: labels without data: name the features too");
    if (options->batch_size < 0 || options->iters < 0)
        return mz_fail(MEZZO_ERR_INVALID, "eval: batch size %lld and batches %lld must be 0 or more",
                       (long long)options->batch_size, (long long)options->iters);
    mezzo_status status = model_open(OPENING(options), &m);
    if (status == MEZZO_OK && change != NULL)
        status = change(user, &m.model, m.session.params);
    if (status == MEZZO_OK)
        status = evaluate(&m, options, hooks, result);
    result->step = m.checkpoint.step;
    result->ema = m.checkpoint.ema;
    result->precision = m.program.precision;
    snprintf(result->checkpoint, sizeof result->checkpoint, "%s", m.path);
    model_close(&m);
    return status;
}

// --- pictures ------------------------------------------------------------------------------------
static mezzo_status predict(model *m, const mezzo_predict_options *o, const mezzo_hooks *hooks,
                            mezzo_predict_result *r) {
    mezzo_program *program = NULL;
    const int64_t batch = o->batch_size > 0 ? o->batch_size : m->run.batch_size;
    const mezzo_eval_options data = {.data = o->data};
    mz_predict request = {.out = o->out,
                          .count = o->count,
                          .rows = o->rows > 0 ? o->rows : 6,
                          .steps = o->steps > 0 ? o->steps : PREDICT_STEPS,
                          .eta = o->eta,
                          .seed = o->seed};
    mz_predicted done = {0};
    if (mz_model_purpose(&m->model) != MEZZO_TASK_IMAGES)
        return mz_fail(MEZZO_ERR_INVALID, "%s is not an image model: it predicts no images", m->model.maker->name);
    MEZZO_TRY(open_data(m, &data, hooks));
    MEZZO_TRY(open_program(m, batch, true, &program));
    const mezzo_status status = predict_by(m, program, batch, &request, hooks, &done);
    mezzo_program_free(program);
    r->pictures = done.pictures;
    r->nmse = done.nmse;
    r->rmse = done.rmse;
    r->ssim = done.ssim;
    r->psnr = done.psnr;
    r->seconds = done.seconds;
    return status;
}

mezzo_status mezzo_run_predict(const mezzo_predict_options *options, const mezzo_hooks *hooks,
                               mezzo_predict_result *result) {
    MZ_REQUIRE(options, result);
    MZ_REQUIRE(options->path, options->out);
    model m;
    *result = (mezzo_predict_result){0};
    if (options->batch_size < 0 || options->count < 0)
        return mz_fail(MEZZO_ERR_INVALID, "predict: batch size %lld and count %lld must be 0 or more",
                       (long long)options->batch_size, (long long)options->count);
    mezzo_status status = model_open(OPENING(options), &m);
    if (status == MEZZO_OK)
        status = predict(&m, options, hooks, result);
    result->step = m.checkpoint.step;
    result->ema = m.checkpoint.ema;
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

// Opens the sampler. A task without samples reports that itself.
static mezzo_status open_sampler(model *m) {
    char *tokenizer;
    MEZZO_TRY(tokenizer_path(m, &tokenizer));
    const mz_task_options options = {.no_data = true, .own = tokenizer, .weights = m->folder};
    mezzo_status status = open_task(m, &options);
    if (status == MEZZO_OK)
        status = mz_task_open_sampler(m->task, m->session.params, &m->program);
    mz_free(tokenizer);
    return mz_context(status, "%s", m->folder);
}

static mz_sample_draw draw_of(const mezzo_sample_options *o) {
    return (mz_sample_draw){.prompt = o->prompt,
                            .length = o->tokens > 0 ? o->tokens : mezzo_sample_defaults().tokens,
                            .temperature = o->temperature,
                            .top_p = o->top_p,
                            .top_k = o->top_k,
                            .seed = o->seed};
}

static mezzo_status append_message(json_t *messages, const char *role, const char *text, size_t n) {
    mz_json_begin();
    json_t *message = json_pack("{s:s, s:s%}", "role", role, "content", text, n);
    if (message == NULL && !mz_json_ran_out())
        return mz_fail(MEZZO_ERR_INVALID, "the message is not UTF-8");
    if (json_array_append_new(messages, message) != 0 || mz_json_ran_out())
        return mz_fail(MEZZO_ERR_MEMORY, "no memory for a message");
    return MEZZO_OK;
}

static mezzo_status draw_samples(model *m, const mezzo_sample_options *o, json_t *messages, const mezzo_hooks *hooks,
                                 mezzo_text_fn write, void *user) {
    const volatile sig_atomic_t *stop = hooks != NULL ? hooks->stop : NULL;
    mz_sample_draw draw = draw_of(o);
    if (o->chat != NULL) {
        MEZZO_TRY(append_message(messages, "user", o->chat, strlen(o->chat)));
        draw.messages = messages;
    }
    MEZZO_TRY(open_sampler(m));
    if (write == NULL)
        return mz_fail(MEZZO_ERR_INVALID, "mezzo_run_sample: write is NULL");
    for (int i = 0; i < (o->samples > 0 ? o->samples : 1); i++) {
        mz_answer answer = {0};
        draw.answer = &answer;
        draw.which = i;
        draw.index = (uint64_t)i << 32;
        MEZZO_TRY(m->task->kind->sample(m->task, &draw, stop, write, user));
    }
    if (stop != NULL && *stop)
        return mz_fail(MEZZO_ERR_INTERRUPTED, "stopped before the sample was complete");
    return MEZZO_OK;
}

mezzo_status mezzo_run_sample(const mezzo_sample_options *options, const mezzo_hooks *hooks, mezzo_text_fn write,
                              void *user) {
    MZ_REQUIRE(options);
    MZ_REQUIRE(options->path);
    model m;
    MEZZO_TRY(check_sample(options));
    json_t *messages = json_array();
    mezzo_status status = model_open(OPENING(options), &m);
    if (status == MEZZO_OK)
        status = draw_samples(&m, options, messages, hooks, write, user);
    model_close(&m);
    json_decref(messages);
    return status;
}

// --- conversations -------------------------------------------------------------------------------
struct mezzo_chat {
    model m;
    mz_sample_draw draw;
    mz_answer answer;
    json_t *messages; // the system's message first, if there is one
    bool has_system;
};

mezzo_status mezzo_chat_open(const mezzo_sample_options *options, mezzo_chat **out) {
    MZ_REQUIRE(options, out);
    MZ_REQUIRE(options->path);
    *out = NULL;
    MEZZO_TRY(check_sample(options));
    mezzo_chat *chat;
    MEZZO_TRY(MZ_NEW(chat, 1));
    chat->messages = json_array();
    chat->draw = draw_of(options);
    mezzo_status status = model_open(OPENING(options), &chat->m);
    if (status == MEZZO_OK)
        status = open_sampler(&chat->m);
    if (status == MEZZO_OK && chat->messages == NULL)
        status = mz_fail(MEZZO_ERR_MEMORY, "no memory for a conversation");
    if (status == MEZZO_OK)
        *out = chat;
    else
        mezzo_chat_close(chat);
    return status;
}

void mezzo_chat_close(mezzo_chat *chat) {
    if (!mz_free_once(chat, "chat"))
        return;
    model_close(&chat->m);
    json_decref(chat->messages);
    mz_free(chat);
}

mezzo_status mezzo_chat_reset(mezzo_chat *chat, const char *system) {
    MZ_REQUIRE(chat);
    json_array_clear(chat->messages);
    chat->answer = (mz_answer){0};
    chat->has_system = system != NULL && system[0] != '\0';
    return chat->has_system ? append_message(chat->messages, "system", system, strlen(system)) : MEZZO_OK;
}

typedef struct listener { // where an answer goes: to the caller and to the conversation
    mezzo_text_fn write;
    void *user;
    mz_text text;
} listener;

static void hear(void *user, int index, const char *text, size_t bytes) {
    listener *l = user;
    mz_text_add(&l->text, text, bytes);
    if (l->write != NULL)
        l->write(l->user, index, text, bytes);
}

// Appends an answer to the messages. A model's bytes need not be UTF-8, and an answer that was cut off may end within a
// character.
static mezzo_status append_answer(json_t *messages, const mz_text *text) {
    mz_text quoted = {0};
    mz_text_add(&quoted, "", 0);
    mz_json_add_text(&quoted, text->data != NULL ? text->data : "");
    json_t *content = quoted.status == MEZZO_OK ? json_loadb(quoted.data, quoted.len, JSON_DECODE_ANY, NULL) : NULL;
    json_t *message = content != NULL ? json_pack("{s:s, s:o}", "role", "assistant", "content", content) : NULL;
    mz_text_free(&quoted);
    return message != NULL && json_array_append_new(messages, message) == 0
               ? MEZZO_OK
               : mz_fail(MEZZO_ERR_MEMORY, "no memory for an answer");
}

mezzo_status mezzo_chat_say(mezzo_chat *chat, const char *message, const mezzo_hooks *hooks, mezzo_text_fn write,
                            void *user, mezzo_chat_answer *out) {
    MZ_REQUIRE(chat, message, out);
    const volatile sig_atomic_t *stop = hooks != NULL ? hooks->stop : NULL;
    const size_t before = json_array_size(chat->messages), first = chat->answer.first;
    listener l = {.write = write, .user = user};
    *out = (mezzo_chat_answer){0};
    MEZZO_TRY(append_message(chat->messages, "user", message, strlen(message)));
    chat->draw.messages = chat->messages;
    chat->draw.answer = &chat->answer;
    chat->draw.index = (uint64_t)before << 32;
    mezzo_status status = chat->m.task->kind->sample(chat->m.task, &chat->draw, stop, hear, &l);
    if (status == MEZZO_OK)
        status = l.text.status != MEZZO_OK ? l.text.status : append_answer(chat->messages, &l.text);
    mz_text_free(&l.text);
    if (status != MEZZO_OK) { // the question is dropped, as if it had not been asked
        while (json_array_size(chat->messages) > before)
            json_array_remove(chat->messages, before);
        chat->answer.first = first;
        return status;
    }
    const size_t skipped = chat->has_system && chat->answer.first > 0 ? 1 : 0;
    *out = (mezzo_chat_answer){.prompt_tokens = chat->answer.prompt,
                               .context_tokens = mz_model_sizes_of(&chat->m.model).length,
                               .left_out = (int64_t)(chat->answer.first - skipped) / 2,
                               .ended = chat->answer.ended,
                               .stopped = stop != NULL && *stop != 0};
    return MEZZO_OK;
}

mezzo_status mezzo_chat_save(const mezzo_chat *chat, const char *path) {
    MZ_REQUIRE(chat, path);
    json_t *record = json_pack("{s:O}", "messages", chat->messages);
    char *text = NULL;
    mezzo_status status = mz_json_dump(record, JSON_COMPACT, &text);
    json_decref(record);
    MEZZO_TRY(status);
    char *line = mz_format("%s\n", text);
    free(text);
    status = line != NULL ? mz_file_write_atomic(path, line, strlen(line)) : MEZZO_ERR_MEMORY;
    mz_free(line);
    return status;
}
