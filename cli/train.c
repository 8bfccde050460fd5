// mezzo train runs a configuration, and writes a checkpoint when it is asked to stop.
#include <math.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"
#include "io/file.h"
#include "tools/inject/inject.h"
#include "weights/init.h"
#include "train/config.h"

static volatile sig_atomic_t saves;

static void on_save(int number) {
    (void)number;
    saves = saves < SIG_ATOMIC_MAX ? saves + 1 : 0;
}

// Makes each signal in the list of --signal ask for a checkpoint. mezzo launch starts ranks with these signals blocked.
static int catch_saves(void) {
    struct sigaction action = {.sa_handler = on_save, .sa_flags = SA_RESTART};
    sigset_t signals;
    CLI_TRY(cli_save_signals(cli_text("signal", NULL), &signals));
    sigemptyset(&action.sa_mask);
    for (int number = 1; number < NSIG; number++)
        if (sigismember(&signals, number) == 1)
            sigaction(number, &action, NULL);
    pthread_sigmask(SIG_UNBLOCK, &signals, NULL);
    return CLI_DONE;
}

static void print_resume(FILE *to, const char *folder, const char *more) {
    fprintf(to, "%s train --config %s --resume auto%s\n", cli_quoted(cli_line.program).text,
            cli_quoted(mz_path_of("%s/config.yaml", folder).text).text, more);
}

// Writes the loss of the whole validation set; "best" is the lowest of the losses beside it.
static const char *validation_text(const void *row, char *buf, size_t size) {
    const mezzo_train_result *r = row;
    const char *join = " (";
    if (isnan(r->val_loss))
        return NULL;
    snprintf(buf, size, "%.4f", r->val_loss);
    if (!isnan(r->val_accuracy))
        cli_add(buf, size, "%saccuracy %.2f %%", join, 100 * r->val_accuracy), join = "; ";
    if (!isnan(r->val_mae))
        cli_add(buf, size, "%sMAE %.6g", join, r->val_mae), join = "; ";
    if (!isnan(r->val_r2))
        cli_add(buf, size, "%sR² %.4f", join, r->val_r2), join = "; ";
    if (*r->perplexity_per != '\0')
        cli_add(buf, size, "%sperplexity %.6g per %s", join, exp(r->val_loss), r->perplexity_per), join = "; ";
    if (!isnan(r->val_bits_per_byte))
        cli_add(buf, size, "%s%.4f bits per byte", join, r->val_bits_per_byte), join = "; ";
    if (isnan(r->sampled_val_loss) && !isnan(r->best_val_loss))
        cli_add(buf, size, "%sbest %.4f", join, r->best_val_loss), join = "; ";
    cli_add(buf, size, "%s", *join == ';' ? ")" : "");
    return buf;
}

static const char *sampled_text(const void *row, char *buf, size_t size) {
    const mezzo_train_result *r = row;
    if (isnan(r->sampled_val_loss))
        return NULL;
    snprintf(buf, size, "%.4f (best %.4f)", r->sampled_val_loss, r->best_val_loss);
    return buf;
}

// Writes the loss; a resumed run may have had no steps left.
static const char *loss_text(const void *row, char *buf, size_t size) {
    const mezzo_train_result *r = row;
    if (r->tokens_per_second == 0)
        return NULL;
    if (isnan(r->loss))
        return "nan";
    snprintf(buf, size, "%.4f", r->loss);
    return buf;
}

static const char *speed_text(const void *row, char *buf, size_t size) {
    const mezzo_train_result *r = row;
    snprintf(buf, size, "%s %s/s", mz_count_text(r->tokens_per_second).text, r->unit);
    return r->tokens_per_second > 0 ? buf : NULL;
}

static const char *energy_text(const void *row, char *buf, size_t size) {
    const mezzo_train_result *r = row;
    snprintf(buf, size, "%.3g mJ a %.*s", 1e3 * r->joules_per_token, (int)strlen(r->unit) - 1, r->unit);
    return isnan(r->joules_per_token) ? NULL : buf;
}

static const mz_row_field fields[] = {
    {MZ_FIELD(mezzo_train_result, checkpoint), "checkpoint"},
    {MZ_FIELD(mezzo_train_result, device), "device"},
    {MZ_FIELD(mezzo_train_result, precision), "precision"},
    {MZ_FIELD(mezzo_train_result, steps), "steps"},
    {MZ_FIELD(mezzo_train_result, healthy), "healthy"},
    {MZ_FIELD(mezzo_train_result, loss), "loss", "training loss", .text = loss_text},
    {MZ_FIELD(mezzo_train_result, val_loss), "val_loss", "validation loss", .text = validation_text},
    {MZ_FIELD(mezzo_train_result, sampled_val_loss), "sampled_val_loss", "  of a sample", .flags = MZ_KNOWN,
     .text = sampled_text},
    {MZ_FIELD(mezzo_train_result, best_val_loss), "best_val_loss"},
    {MZ_FIELD(mezzo_train_result, val_bits_per_byte), "val_bits_per_byte", .flags = MZ_KNOWN},
    {MZ_FIELD(mezzo_train_result, perplexity_per), "perplexity_per", .only = "tokens"},
    {MZ_FIELD(mezzo_train_result, val_accuracy), "val_accuracy", .flags = MZ_KNOWN},
    {MZ_FIELD(mezzo_train_result, val_mae), "val_mae", .flags = MZ_KNOWN},
    {MZ_FIELD(mezzo_train_result, val_r2), "val_r2", .flags = MZ_KNOWN},
    {MZ_FIELD(mezzo_train_result, seconds), "seconds", "time", "duration"},
    {MZ_FIELD(mezzo_train_result, tokens_per_second), "*_per_second", "speed", .text = speed_text},
    {MZ_FIELD(mezzo_train_result, mfu), "mfu", .flags = MZ_KNOWN},
    {MZ_FIELD(mezzo_train_result, mfu), NULL, "mfu", "%.1f %% of the peak", MZ_KNOWN, .factor = 100},
    {MZ_FIELD(mezzo_train_result, joules_per_token), "joules_per_token", "energy", .flags = MZ_KNOWN,
     .text = energy_text},
    {MZ_FIELD(mezzo_train_result, wait_share), "wait_share"},
    {MZ_FIELD(mezzo_train_result, memory_bytes), "memory_bytes", "memory", "bytes"},
    {MZ_FIELD(mezzo_train_result, skipped), "skipped_steps", "skipped steps", "%.0f"},
    {MZ_FIELD(mezzo_train_result, health), "health", "health"},
    {MZ_FIELD(mezzo_train_result, sample), "sample"},
};

static void print_text(const char *folder, const mezzo_config *config, const mezzo_train_result *r) {
    const mz_shown program_shown = cli_quoted(cli_line.program), quoted_shown = cli_quoted(folder);
    const char *program = program_shown.text, *quoted = quoted_shown.text;
    printf("done: %lld steps of %s, %s on %s\n", (long long)r->steps, cli_key(config, "model.name"),
           mezzo_precision_name(r->precision), r->device);
    CLI_PRINT(mz_fields_lines, fields, MZ_COUNT(fields), r, r->unit, "  ", 17);
    if (*r->sample != '\0') {
        printf("\nsample:\n");
        cli_print_text(stdout, r->sample, strlen(r->sample));
        if (r->sample[strlen(r->sample) - 1] != '\n')
            putchar('\n');
    }
    printf("\nrun folder: %s\n", mz_show(folder).text);
    char more[64];
    snprintf(more, sizeof more, " --steps %lld", (long long)r->steps * 2);
    printf("next:\n");
    if (*r->checkpoint != '\0') {
        if (access(mz_path_of("%s/tokenizer.json", folder).text, R_OK) == 0) // shards may have no tokenizer
            printf("  %s sample %s --tokens 500\n", program, quoted);
        if (strcmp(r->unit, "images") == 0 &&
            access(mz_path_of("%s/samples", folder).text, R_OK) == 0) // only gray pictures are drawn
            printf("  %s sample %s --out predicted\n", program, quoted);
        printf("  %s eval %s%s\n", program, quoted, isnan(r->val_loss) ? " --data FILE" : "");
    }
    printf("  %s report %s\n  %s watch %s\n", program, quoted, program, quoted);
    if (*r->checkpoint != '\0') {
        printf("  ");
        print_resume(stdout, folder, more);
    }
    printf("  tensorboard --logdir %s\n", quoted);
}

// Prints to stderr where the checkpoint of an interrupted run is and how to continue; stdout has only results.
static void print_interrupted(const char *folder, const mezzo_train_result *r) {
    if (*r->checkpoint == '\0') {
        cli_wrong("interrupted at step %lld; wrote no checkpoint", (long long)r->steps);
        return;
    }
    cli_wrong("interrupted at step %lld; the checkpoint is %s", (long long)r->steps, r->checkpoint);
    fprintf(stderr, "Resume with: ");
    print_resume(stderr, folder, "");
}

typedef struct watch {
    bool quiet;
    const mezzo_config *config;
    mz_choice choice;
    bool chosen; // by timing, in this call
} watch;

static mezzo_status choose(void *user, const mezzo_auto_request *request, mezzo_precision *precision, char *reason,
                           size_t size) {
    watch *w = user;
    MEZZO_TRY(cli_choose(request, 0, NULL, 0, w->quiet, &w->choice));
    *precision = w->choice.precision;
    snprintf(reason, size, "auto: %s", w->choice.reason);
    w->chosen = true;
    return MEZZO_OK;
}

static void show(void *user, const mezzo_progress *p) {
    watch *w = user;
    // The run folder exists from the start on, and keeps the measurements.
    if (p->event == MEZZO_EVENT_START && w->chosen &&
        mz_json_save_owned(mz_choice_json(&w->choice),
                           mz_path_of("%s/precision.json", cli_key(w->config, "train.out")).text) != MEZZO_OK)
        fprintf(stderr, "mezzo train: could not write precision.json: %s\n", mezzo_error_message());
    cli_progress_show(p);
}

static const mz_row_field bisect_fields[] = {
    {MZ_FIELD(mezzo_bisect_result, found), "found"},
    {MZ_FIELD(mezzo_bisect_result, first_step), "first_step"},
    {MZ_FIELD(mezzo_bisect_result, last_step), "last_step"},
    {MZ_FIELD(mezzo_bisect_result, step), "step"},
    {MZ_FIELD(mezzo_bisect_result, micro), "micro"},
    {MZ_FIELD(mezzo_bisect_result, kind), "kind"},
    {MZ_FIELD(mezzo_bisect_result, op), "op"},
    {MZ_FIELD(mezzo_bisect_result, module), "module"},
    {MZ_FIELD(mezzo_bisect_result, phase), "phase"},
    {MZ_FIELD(mezzo_bisect_result, dtype), "dtype"},
    {MZ_FIELD(mezzo_bisect_result, text), "text"},
};

// Runs --bisect-nan: returns 0 where every step is good, 1 where one is not.
static int bisect(const mezzo_config *config, const mezzo_hooks *hooks) {
    mezzo_bisect_result r;
    mezzo_status status = mezzo_run_bisect(config, hooks, &r);
    cli_progress_end();
    if (status == MEZZO_ERR_INTERRUPTED) {
        cli_wrong("%s", mezzo_error_message());
        return CLI_INTERRUPTED;
    }
    CLI_DO(status);
    if (cli_has("json"))
        CLI_TRY(cli_json_print(MZ_OBJECT(bisect_fields, &r)));
    else if (r.found)
        printf("%s\n", r.text);
    else
        printf("every step from %lld to %lld is good\n", (long long)r.first_step + 1, (long long)r.last_step);
    return r.found ? CLI_CHECK_FAILED : CLI_DONE;
}

static bool names_model(void) {
    for (int i = 0; i < cli_line.n_given; i++)
        if (strncmp(cli_line.given[i].name, "model.", 6) == 0)
            return true;
    return cli_has("config") || cli_has("recipe") || cli_given_key("train.init") != NULL;
}

// Chooses a model where the configuration names none: a size that this machine trains in minutes, with a context that
// fits the text. GPT-2's own size would take days on a CPU.
static mezzo_status choose_model(mezzo_config *config) {
    const char *device = cli_key(config, "device.name"), *data = cli_key(config, "data.path");
    mezzo_device *gpu = NULL;
    struct stat text;
    if (names_model())
        return MEZZO_OK;
    if (strcmp(device, "auto") == 0 || mz_device_name_is_gpu(device))
        mezzo_log_set(NULL, NULL); // the run reports errors when it opens
    bool large = (strcmp(device, "auto") == 0 || mz_device_name_is_gpu(device)) &&
                 mezzo_device_open(strcmp(device, "auto") == 0 ? mz_gpu_name() : device, 0, &gpu) == MEZZO_OK;
    mezzo_device_close(gpu);
    mezzo_log_set(cli_has("quiet") ? cli_log_quietly : cli_log, NULL);
    int64_t context = large ? 256 : 128;
    // A tenth validates, and a token has at most a few characters.
    bool file = data != NULL && stat(data, &text) == 0 && S_ISREG(text.st_mode);
    while (file && context > 16 && (int64_t)text.st_size / 80 < context)
        context /= 2;
    const struct {
        const char *key;
        int64_t value;
    } sizes[] = {{"model.layers", large ? 6 : 4},
                 {"model.heads", large ? 6 : 4},
                 {"model.d_model", large ? 384 : 128},
                 {"model.seq_len", context}};
    for (size_t i = 0; i < MZ_COUNT(sizes); i++)
        MEZZO_TRY(mz_config_set_int(config, sizes[i].key, sizes[i].value, "chosen"));
    if (!cli_has("quiet"))
        fprintf(stderr,
                "mezzo: no --model: a GPT-2 of %lld layers, width %lld and context %lld, for %s and this text; --model "
                "gpt2-124M is GPT-2's own size\n",
                (long long)sizes[0].value, (long long)sizes[2].value, (long long)context, large ? "a GPU" : "a CPU");
    return MEZZO_OK;
}

// Resumes a copied or moved run folder at the place of its config.yaml, whatever path that file has.
static mezzo_status resume_where_it_is(mezzo_config *config) {
    const char *file = cli_text("config", ""), *slash = strrchr(file, '/'), *resume = cli_key(config, "train.resume");
    const mz_path place = mz_path_folder(file);
    const char *folder = place.text, *named = cli_key(config, "train.out");
    struct stat here, there;
    if (cli_given_key("train.out") != NULL || strcmp(resume, "auto") != 0 ||
        strcmp(slash != NULL ? slash + 1 : file, "config.yaml") != 0)
        return MEZZO_OK;
    if (stat(mz_path_of("%s/checkpoints", folder).text, &there) != 0 || stat(folder, &here) != 0 ||
        (stat(named, &there) == 0 && here.st_dev == there.st_dev && here.st_ino == there.st_ino))
        return MEZZO_OK;
    fprintf(stderr, "mezzo: resuming %s, where this config.yaml is (it names %s as its folder)\n", mz_show(folder).text,
            mz_show(named).text);
    return mezzo_config_set(config, "train.out", folder, "resolved");
}

static int train(const mezzo_config *config, const mezzo_hooks *hooks) {
    mezzo_train_result result = {.loss = NAN, .val_loss = NAN, .sampled_val_loss = NAN, .best_val_loss = NAN};
    mezzo_status status = mezzo_run_train(config, hooks, &result);
    cli_progress_end();
    const char *folder = cli_key(config, "train.out");
    if (result.rank > 0 && (status == MEZZO_OK || status == MEZZO_ERR_INTERRUPTED)) // rank 0 prints the result
        return cli_exit_code(status);
    if (status == MEZZO_ERR_INTERRUPTED) {
        print_interrupted(folder, &result);
        return CLI_INTERRUPTED;
    }
    if (status != MEZZO_OK && *result.checkpoint != '\0')
        fprintf(stderr, "the newest checkpoint is %s\n", mz_show(result.checkpoint).text);
    CLI_DO(status);
    if (cli_has("json")) {
        json_t *o = json_object();
        json_object_set_new(o, "run", mz_json_text(folder));
        return cli_json_print(mz_fields_json(fields, MZ_COUNT(fields), &result, result.unit, o));
    }
    print_text(folder, config, &result);
    return CLI_DONE;
}

// Trains or searches. A reader of the progress that goes away ("| head") does not end the run, and files on the disk
// are complete at every moment.
static int train_or_bisect(mezzo_config *config) {
    const volatile sig_atomic_t *stop = cli_interrupts("\nmezzo train: stopping; press Ctrl-C again to quit now\n");
    watch w = {.quiet = cli_has("quiet"), .config = config};
    const mezzo_hooks hooks = {.progress = show, .user = &w, .stop = stop, .choose = choose, .save = &saves};
    CLI_TRY(catch_saves());
    if (w.quiet)
        mezzo_log_set(cli_log_quietly, NULL);
    CLI_DO(resume_where_it_is(config));
    if (cli_given_key("model.name") == NULL && *cli_key(config, "train.resume") != '\0')
        CLI_DO(mz_config_find_graph(config));
    CLI_DO(choose_model(config));
    CLI_DO(mz_init_import(config));
#ifdef MEZZO_INJECT
    mz_inject_next(cli_text("inject", NULL));
#endif
    return cli_has("bisect-nan") ? bisect(config, &hooks) : train(config, &hooks);
}

int cli_train(void) {
    MZ_SCOPED(cli_free_config) mezzo_config *config = NULL;
    CLI_TRY(cli_config(&config));
    return train_or_bisect(config);
}
