// bench/step: times of whole training steps (forward, backward, unscale, clip at 1.0, AdamW) of GPT-2 shaped models, or
// others by name (--model glm4_moe-4x256), on random tokens, or of models of images (--model radio_unet-radiodiff) on
// random pictures, whose heads and width may be others too; tokens are pictures then. One CSV row a precision; the
// columns are the header's. See bench/cuda.sh for how it is run. With --turns it gets ready, says so, and times the
// steps each time a line comes in, so that another program's can be timed in between (bench/pairs.py).
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "graph/graph.h"
#include "mezzo/model.h"
#include "mezzo/step.h"

#ifdef MEZZO_CUDA // marks for ncu --profile-from-start off; in cudart, which is linked in
int cudaProfilerStart(void);
int cudaProfilerStop(void);
#endif

typedef struct setup {
    const char *name, *device, *commit, *model, *master, *times, *autocast;
    char command[512];
    int64_t layers, heads, width, d_ff, vocab, batch, length;
    bool recompute, recompute_light, low_residual, everywhere, profile, repeat_init, turns;
    int64_t logits_rows;
    int accumulate, warmup, steps, threads;
} setup;

typedef struct trainer {
    mezzo_device *device;
    mezzo_params *params;
    mezzo_program *program;
    mezzo_optimizer *optimizer;
    mezzo_scaler *scaler;
    mezzo_step *step;
    int32_t *tokens;
    size_t count;    // of a step's tokens, or its pictures
    float *pictures; // numbers from 0 to 1, as many as the largest input has; their bits are the keys of noise
    mezzo_model_config model;
    uint64_t runs;
} trainer;

static bool of_images(const mezzo_model_config *model) {
    return mezzo_model_task(model) == MEZZO_TASK_IMAGES;
}

typedef struct picture {
    const char *name;
    int64_t numbers; // of one
} picture;

// The model's inputs but for its noise; how many.
static int pictures_of(const mezzo_model_config *m, picture out[4]) {
    const int64_t image = m->image_size * m->image_size * m->channels;
    const int64_t side = m->condition_size > 0 ? m->condition_size : m->image_size;
    out[0] = (picture){"image", image};
    if (strcmp(m->name, "kl_vae") == 0) {
        out[1] = (picture){"weight", 1};
        return 2;
    }
    out[1] = (picture){"condition", side * side * m->condition_channels};
    out[2] = (picture){"time", 1};
    out[3] = (picture){"schedule", 4};
    return 4;
}

static mezzo_status make_pictures(const setup *s, trainer *t) {
    picture inputs[4];
    int64_t most = 0;
    for (int i = pictures_of(&t->model, inputs) - 1; i >= 0; i--)
        most = inputs[i].numbers > most ? inputs[i].numbers : most;
    t->count = (size_t)s->batch;
    t->pictures = mz_alloc((size_t)(most * s->batch), sizeof *t->pictures);
    if (t->pictures == NULL)
        return MEZZO_ERR_MEMORY;
    for (int64_t i = 0; i < most * s->batch; i++) {
        uint32_t words[4];
        mz_philox((mz_philox_key){.seed = 7}, (uint64_t)i, words);
        t->pictures[i] = (float)words[0] * 0x1p-32F;
    }
    return MEZZO_OK;
}

static mezzo_status write_pictures(const trainer *t) {
    picture inputs[4];
    for (int i = pictures_of(&t->model, inputs) - 1; i >= 0; i--)
        MEZZO_TRY(mezzo_program_write(t->program, inputs[i].name, t->pictures,
                                      (size_t)inputs[i].numbers * t->count * sizeof *t->pictures));
    return mezzo_program_write(t->program, "noise", t->pictures, 2 * t->count * sizeof(int32_t));
}

enum { MOST_OVERRIDES = 8 };

// PATTERN=PRECISION,…; `text` keeps the patterns.
static mezzo_status overrides_of(const char *list, char *text, size_t size, mezzo_override *out, int *n) {
    if (list == NULL)
        return MEZZO_OK;
    if ((size_t)snprintf(text, size, "%s", list) >= size)
        return mz_fail(MEZZO_ERR_INVALID, "--autocast is too long");
    for (char *rest = text, *entry; (entry = strtok_r(rest, ",", &rest)) != NULL;) {
        char *precision = strchr(entry, '=');
        if (precision == NULL || *n == MOST_OVERRIDES)
            return mz_fail(MEZZO_ERR_INVALID, "--autocast is PATTERN=PRECISION,…, %d at most", MOST_OVERRIDES);
        *precision++ = '\0';
        MEZZO_TRY(mezzo_precision_parse(precision, &out[*n].precision));
        out[(*n)++].pattern = entry;
    }
    return MEZZO_OK;
}

static mezzo_status open_trainer(const setup *s, mezzo_precision precision, trainer *t) {
    mezzo_model_config model;
    mezzo_graph *graph = NULL;
    MEZZO_TRY(mezzo_device_open(s->device, s->threads, &t->device));
    mezzo_master master = mezzo_master_default(precision);
    for (int i = MEZZO_MASTER_FP32; i <= MEZZO_MASTER_STOCHASTIC; i++)
        if (strcmp(mezzo_master_name((mezzo_master)i), s->master) == 0)
            master = (mezzo_master)i;
    MEZZO_TRY(mezzo_model_defaults(s->model, &model));
    model.heads = s->heads, model.d_model = s->width, model.dropout = 0;
    if (!of_images(&model)) {
        model.layers = s->layers, model.d_ff = s->d_ff, model.vocab = s->vocab, model.seq_len = s->length;
        model.bias = model.bias || strcmp(s->model, "gpt2") == 0;
    }
    t->model = model;
    MEZZO_TRY(mezzo_graph_create(&graph));
    graph->repeats_init = s->repeat_init;
    MEZZO_TRY(mezzo_model_build(graph, &model, s->batch, s->length, false));
    mezzo_override overrides[MOST_OVERRIDES] = {{"*", precision}}; // everywhere: the head and edge blocks of fp8 too
    int n_overrides = s->everywhere;
    char text[512];
    MEZZO_TRY(overrides_of(s->autocast, text, sizeof text, overrides, &n_overrides));
    mezzo_program_options options = {.precision = precision,
                                     .overrides = overrides,
                                     .n_overrides = n_overrides,
                                     .residual = s->low_residual ? MEZZO_RESIDUAL_LOW : MEZZO_RESIDUAL_WIDEST,
                                     .recompute = s->recompute,
                                     .recompute_light = s->recompute_light,
                                     .logits_rows = s->logits_rows,
                                     .loss_weight = 1.0f / (float)s->accumulate,
                                     .single_micro_batch = s->accumulate == 1};
    MEZZO_TRY(mezzo_params_create_as(t->device, graph, &options, 1, master, &t->params));
    mezzo_optimizer_options adamw = mezzo_optimizer_defaults();
    adamw.schedule.lr = 3e-4;
    mezzo_scaler_options scaling = mezzo_scaler_defaults();
    scaling.enabled = mezzo_precision_needs_loss_scale(precision);
    MEZZO_TRY(mezzo_optimizer_create(t->params, &adamw, &t->optimizer));
    MEZZO_TRY(mezzo_scaler_create(t->device, &scaling, &t->scaler));
    MEZZO_TRY(mezzo_program_create(graph, t->params, &options, &t->program));
    const mezzo_step_options step = {.micro_batches = s->accumulate, .clip = 1.0};
    MEZZO_TRY(mezzo_step_create(t->program, &t->optimizer, 1, t->scaler, &step, &t->step));
    mezzo_graph_free(graph);
    if (of_images(&model))
        return make_pictures(s, t);
    t->count = (size_t)(s->batch * s->length);
    t->tokens = mz_alloc(2 * t->count, sizeof *t->tokens);
    if (t->tokens == NULL)
        return MEZZO_ERR_MEMORY;
    for (size_t i = 0; i < 2 * t->count; i++) {
        uint32_t words[4];
        mz_philox((mz_philox_key){.seed = 7}, i, words);
        t->tokens[i] = (int32_t)(words[0] % (uint32_t)s->vocab);
    }
    return MEZZO_OK;
}

static mezzo_status step(const setup *s, trainer *t) {
    for (int i = 0; i < s->accumulate; i++) {
        if (t->pictures != NULL) {
            MEZZO_TRY(write_pictures(t));
        } else {
            MEZZO_TRY(mezzo_program_write(t->program, "tokens", t->tokens, t->count * sizeof *t->tokens));
            MEZZO_TRY(mezzo_program_write(t->program, "targets", t->tokens + t->count, t->count * sizeof *t->tokens));
        }
        MEZZO_TRY(mezzo_step_micro(t->step, 1, t->runs++));
    }
    return mezzo_step_finish(t->step);
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Appends a row a step: system,model,batch,precision,ms.
static mezzo_status append_times(const setup *s, mezzo_precision precision, const double *seconds, int n) {
    FILE *f = fopen(s->times, "a");
    if (f == NULL)
        return mz_fail(MEZZO_ERR_IO, "%s: cannot be written", s->times);
    for (int i = 0; i < n; i++)
        fprintf(f, "Mezzo,%s,%lld,%s,%.4f\n", s->name, (long long)s->batch, mezzo_precision_name(precision),
                seconds[i] * 1e3);
    return fclose(f) == 0 ? MEZZO_OK : mz_fail(MEZZO_ERR_IO, "%s: cannot be written", s->times);
}

static mezzo_status warm_up(const setup *s, trainer *t) {
    for (int i = 0; i < s->warmup; i++) {
        MEZZO_TRY(step(s, t));
        if (i == 2) // a step with nothing deferred before it is a graph of its own: it is made before the clock starts
            MEZZO_TRY(mezzo_device_sync(t->device));
    }
    return mezzo_device_sync(t->device);
}

// Times steps and prints their row.
static mezzo_status measure(const setup *s, mezzo_precision precision, trainer *t) {
    mezzo_device_info info;
    mezzo_telemetry before, after;
    float loss = NAN;
    double seconds[1000], whole;
    MEZZO_TRY(mezzo_device_telemetry(t->device, &before));
#ifdef MEZZO_CUDA
    if (s->profile) {
        (void)cudaProfilerStart();
        MEZZO_TRY(step(s, t));
        MEZZO_TRY(mezzo_device_sync(t->device));
        (void)cudaProfilerStop();
    }
#endif
    double started = mz_seconds();
    // Steps one after another as training runs them, a mark between each two. A device may defer an update to the next
    // step: all but the first then include the one before; `whole` has as many updates as steps, as sync runs the last.
    for (int done = 0; done < s->steps; done += 32) {
        int n = s->steps - done < 32 ? s->steps - done : 32;
        MEZZO_TRY(mezzo_device_mark(t->device, 0));
        for (int i = 0; i < n; i++) {
            MEZZO_TRY(step(s, t));
            MEZZO_TRY(mezzo_device_mark(t->device, i + 1));
        }
        for (int i = 0; i < n; i++)
            MEZZO_TRY(mezzo_device_elapsed(t->device, i, i + 1, &seconds[done + i]));
    }
    MEZZO_TRY(mezzo_device_sync(t->device));
    whole = (mz_seconds() - started) / s->steps;
    MEZZO_TRY(mezzo_device_telemetry(t->device, &after));
    MEZZO_TRY(mezzo_program_read(t->program, "loss", &loss, sizeof loss));
    MEZZO_TRY(mezzo_device_describe(t->device, &info));
    int timed = s->steps > 1 ? s->steps - 1 : 1; // without the first, which may have held no update
    double *times = seconds + s->steps - timed;
    if (s->times != NULL)
        MEZZO_TRY(append_times(s, precision, times, timed));
    qsort(times, (size_t)timed, sizeof *times, by_size);
    double median = times[timed / 2], tokens = (double)t->count * s->accumulate;
    printf("%s,%lld,%lld,%lld,%lld,%lld,%lld,%lld,%s,%s,%d,%d,%.4f,%.4f,%.4f,%.0f,%.0f,%.1f,%.0f,%.5f,%lld,\"%s\",\"%"
           "s\",%s,\"bench_step%s %s\"\n",
           s->name, (long long)s->layers, (long long)s->heads, (long long)s->width, (long long)s->d_ff,
           (long long)s->vocab, (long long)s->batch, (long long)s->length, mezzo_precision_name(precision),
           s->low_residual ? "low" : "widest", s->recompute, s->accumulate, median * 1e3, times[0] * 1e3, whole * 1e3,
           tokens / median, (double)after.memory_peak / (1 << 20), (after.joules - before.joules) / s->steps,
           after.watts, (double)loss, (long long)mezzo_params_elements(t->params), info.description, info.versions,
           s->commit, s->command, mezzo_precision_name(precision));
    fflush(stdout);
    return MEZZO_OK;
}

// Warms up and measures: once, or each time a line comes in.
static mezzo_status serve(const setup *s, mezzo_precision precision, trainer *t) {
    char line[16];
    MEZZO_TRY(open_trainer(s, precision, t));
    MEZZO_TRY(warm_up(s, t));
    if (!s->turns)
        return measure(s, precision, t);
    while (printf("ready\n"), fflush(stdout), fgets(line, sizeof line, stdin) != NULL) {
        MEZZO_TRY(warm_up(s, t));
        MEZZO_TRY(measure(s, precision, t));
    }
    return MEZZO_OK;
}

static void close_trainer(trainer *t) {
    if (t->device == NULL)
        return;
    mezzo_step_free(t->step);
    mezzo_optimizer_free(t->optimizer);
    mezzo_scaler_free(t->scaler);
    mezzo_program_free(t->program);
    mezzo_params_free(t->params);
    mz_free(t->tokens);
    mz_free(t->pictures);
    mezzo_device_close(t->device);
}

static void log_line(void *user, const char *topic, const char *line) {
    (void)user;
    if (strcmp(topic, "dispatch") == 0)
        fprintf(stderr, "%s\n", line);
}

// What was not asked for is the model's own; of plain "gpt2" that is 124M with its vocabulary padded.
static mezzo_status complete(setup *s) {
    mezzo_model_config model;
    MEZZO_TRY(mezzo_model_defaults(s->model, &model));
    if (strcmp(s->model, "gpt2") == 0)
        model.layers = model.heads = 12, model.d_model = 768, model.vocab = 50304, model.d_ff = 0;
    s->name = s->name != NULL ? s->name : strcmp(s->model, "gpt2") == 0 ? "gpt2-124M" : s->model;
    s->layers = s->layers > 0 ? s->layers : model.layers;
    s->heads = s->heads > 0 ? s->heads : model.heads;
    s->width = s->width > 0 ? s->width : model.d_model;
    s->d_ff = s->d_ff > 0 ? s->d_ff : model.d_ff;
    s->vocab = s->vocab > 0 ? s->vocab : model.vocab;
    s->length = of_images(&model) ? 1 : s->length;
    return MEZZO_OK;
}

static int usage(void) {
    fprintf(stderr,
            "usage: bench_step [--device D] [--name S] [--model NAME] [--master auto|fp32|split|stochastic]\n       "
            "[--layers N] [--heads N] [--width N] [--d-ff N] [--vocab N] "
            "[--batch N]\n       [--length N] [--accumulate N] [--threads N] [--steps N] [--warmup N] "
            "[--commit S] [--times FILE] [--recompute] [--recompute-light] [--logits-rows N]\n       "
            "[--low-residual] [--everywhere] [--autocast PATTERN=PRECISION,...] [--repeat-init] [--profile] [--turns] "
            "[--no-header] PRECISION...\n");
    return 2;
}

int main(int argc, char **argv) {
    setup s = {.device = "cuda",
               .commit = "unknown",
               .model = "gpt2",
               .master = "auto",
               .batch = 32,
               .length = 1024,
               .accumulate = 1,
               .warmup = 5,
               .steps = 30};
    const struct {
        const char *name;
        const char **text;
        int64_t *number;
        int *count;
    } options[] = {{"--device", &s.device, NULL, NULL},
                   {"--name", &s.name, NULL, NULL},
                   {"--commit", &s.commit, NULL, NULL},
                   {"--model", &s.model, NULL, NULL},
                   {"--master", &s.master, NULL, NULL},
                   {"--times", &s.times, NULL, NULL},
                   {"--autocast", &s.autocast, NULL, NULL},
                   {"--layers", NULL, &s.layers, NULL},
                   {"--heads", NULL, &s.heads, NULL},
                   {"--width", NULL, &s.width, NULL},
                   {"--d-ff", NULL, &s.d_ff, NULL},
                   {"--vocab", NULL, &s.vocab, NULL},
                   {"--batch", NULL, &s.batch, NULL},
                   {"--length", NULL, &s.length, NULL},
                   {"--accumulate", NULL, NULL, &s.accumulate},
                   {"--logits-rows", NULL, &s.logits_rows, NULL},
                   {"--steps", NULL, NULL, &s.steps},
                   {"--warmup", NULL, NULL, &s.warmup},
                   {"--threads", NULL, NULL, &s.threads}};
    bool header = true;
    int at = 1;
    size_t written = 0;
    for (; at < argc && strncmp(argv[at], "--", 2) == 0; at++) {
        bool known = true;
        if (strcmp(argv[at], "--recompute") == 0)
            s.recompute = true;
        else if (strcmp(argv[at], "--recompute-light") == 0)
            s.recompute_light = true;
        else if (strcmp(argv[at], "--low-residual") == 0)
            s.low_residual = true;
        else if (strcmp(argv[at], "--everywhere") == 0)
            s.everywhere = true;
        else if (strcmp(argv[at], "--repeat-init") == 0) // billions of first values take minutes to draw
            s.repeat_init = true;
        else if (strcmp(argv[at], "--profile") == 0)
            s.profile = true;
        else if (strcmp(argv[at], "--turns") == 0)
            s.turns = true;
        else if (strcmp(argv[at], "--no-header") == 0)
            header = false;
        else {
            known = false;
            for (size_t i = 0; i < MZ_COUNT(options) && at + 1 < argc && !known; i++) {
                if (strcmp(argv[at], options[i].name) != 0)
                    continue;
                known = true;
                at++;
                if (options[i].text != NULL)
                    *options[i].text = argv[at];
                else if (options[i].number != NULL)
                    *options[i].number = atoll(argv[at]);
                else
                    *options[i].count = atoi(argv[at]);
            }
        }
        if (!known)
            return usage();
    }
    for (int i = 1; i < at; i++) // as it was asked for, without what only names the row or another file
        if (strcmp(argv[i], "--commit") == 0 || strcmp(argv[i], "--times") == 0)
            i++;
        else if (strcmp(argv[i], "--no-header") != 0 && written < sizeof s.command)
            written += (size_t)snprintf(s.command + written, sizeof s.command - written, " %s", argv[i]);
    if (at == argc || s.steps < 1 || s.steps > 1000 || s.accumulate < 1)
        return usage();
    if (complete(&s) != MEZZO_OK) {
        fprintf(stderr, "bench_step: %s\n", mezzo_error_message());
        return 2;
    }
    for (int i = at; i < argc; i++) {
        mezzo_precision precision;
        if (strncmp(argv[i], "--", 2) == 0) {
            fprintf(stderr, "bench_step: options stand before precisions: %s\n", argv[i]);
            return 2;
        }
        if (mezzo_precision_parse(argv[i], &precision) != MEZZO_OK) {
            fprintf(stderr, "bench_step: %s\n", mezzo_error_message());
            return 2;
        }
    }
    mezzo_log_set(log_line, NULL);
    if (header)
        printf(
            "name,layers,heads,width,d_ff,vocab,batch,length,precision,residual,recompute,accumulate,median_ms,best_ms,"
            "wall_ms,tokens_per_s,peak_mib,joules_per_step,watts,loss,parameters,device,versions,commit,command\n");
    int failures = 0;
    for (; at < argc; at++) {
        mezzo_precision precision;
        trainer t = {0};
        mezzo_status status = mezzo_precision_parse(argv[at], &precision);
        if (status == MEZZO_OK)
            status = serve(&s, precision, &t);
        if (status != MEZZO_OK) {
            fprintf(stderr, "%s %s: %s\n", s.name, argv[at], mezzo_error_message());
            failures++;
        }
        close_trainer(&t);
    }
    return failures > 0 ? 3 : 0;
}
