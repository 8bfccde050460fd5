// mezzo advise --data: a precision for a model and its data, by trying it.
#include "choose.h"
#include "cli.h"
#include "io/file.h"
#include "io/json.h"
#include "study/measure/advised.h"
#include "study/measure/per_op.h"
#include "study/page/device_page.h"

// A GPT whose step takes well under a second on a laptop, where nothing is said.
static const struct {
    const char *key, *value;
} defaults[] = {{"model.name", "gpt2"},   {"model.layers", "4"},    {"model.heads", "4"},
                {"model.d_model", "128"}, {"model.seq_len", "128"}, {"train.batch_size", "8"}};

static void show_candidate(void *user, const mz_candidate *c) {
    (void)user;
    char line[128];
    snprintf(line, sizeof line, "timing %s", mezzo_precision_name(c->precision));
    cli_progress_line(line, false);
}

static void show_run(void *user, const mz_verify_progress *p) {
    (void)user;
    char line[128], took[32];
    snprintf(line, sizeof line, "comparing: seed %d, at most %d  step %lld/%lld  %s", p->seed, p->seeds,
             (long long)p->step, (long long)p->steps, cli_duration(p->seconds, took, sizeof took));
    cli_progress_line(line, p->step == p->steps);
}

static mezzo_status save(const char *folder, json_t *json) {
    mz_text html = {0};
    mezzo_status status = mz_dir_create(folder);
    char *page = mz_format("%s/advise.html", folder), *data = mz_format("%s/advise.json", folder);
    if (status == MEZZO_OK && (page == NULL || data == NULL || json == NULL))
        status = MEZZO_ERR_MEMORY;
    if (status == MEZZO_OK)
        status = mz_json_save(data, json);
    if (status == MEZZO_OK)
        status = mz_json_page("mezzo advise", json, &html);
    if (status == MEZZO_OK)
        status = mz_file_write_atomic(page, html.data, html.len);
    mz_text_free(&html);
    mz_free(page);
    mz_free(data);
    return status;
}

static int tell(const cli_args *args, const mz_advised *a, const char *folder) {
    mz_text t = {0};
    json_t *json = mz_advised_json(a);
    mezzo_status status = save(folder, json);
    if (status == MEZZO_OK && cli_has(args, "json"))
        return cli_json_print(args->command, json);
    json_decref(json);
    mz_advised_text(a, &t);
    status = status != MEZZO_OK ? status : t.status;
    if (status == MEZZO_OK)
        cli_tell("%s\n", a->verdict);
    if (status == MEZZO_OK)
        printf("\n%s\nwritten to %s: advise.html, advise.json\n", t.data, cli_show(folder).text);
    mz_text_free(&t);
    return status == MEZZO_OK ? CLI_DONE : cli_error(args->command, status);
}

static bool given_key(const cli_args *args, const char *key) {
    for (int i = 0; i < args->n_given; i++)
        if (args->given[i].config && strcmp(args->given[i].name, key) == 0)
            return true;
    return false;
}

// --d-model, --batch-size and --seq-len are the rules' options and keys at once.
static mezzo_status set_keys(const cli_args *args, mezzo_config *config) {
    static const char *const options[] = {"d-model", "batch-size", "seq-len"};
    static const char *const keys[] = {"model.d_model", "train.batch_size", "model.seq_len"};
    const bool named = given_key(args, "model.name");
    for (size_t i = 0; i < MZ_COUNT(defaults); i++)
        if (!given_key(args, defaults[i].key) && !(named && strncmp(defaults[i].key, "model.", 6) == 0))
            MEZZO_TRY(mezzo_config_set(config, defaults[i].key, defaults[i].value, "advise"));
    for (size_t i = 0; i < MZ_COUNT(options); i++)
        if (cli_has(args, options[i]))
            MEZZO_TRY(mezzo_config_set(config, keys[i], cli_text(args, options[i], ""), options[i]));
    return MEZZO_OK;
}

// --- per op --------------------------------------------------------------------------------------------------------
static void show_search(void *user, int run, int runs, int kept, double gap) {
    (void)user;
    char line[128];
    snprintf(line, sizeof line, "run %d, at most %d: %d modules in fp32, loss above fp32's %.4f", run, runs, kept, gap);
    cli_progress_line(line, true);
}

static int tell_search(const cli_args *args, const mz_per_op_options *o, const mz_per_op *p) {
    mz_text t = {0};
    if (cli_has(args, "json"))
        return cli_json_print(args->command, mz_per_op_json(o, p));
    mz_per_op_text(o, p, &t);
    if (t.status == MEZZO_OK)
        printf("%s", t.data);
    int code = t.status == MEZZO_OK ? CLI_DONE : cli_error(args->command, t.status);
    mz_text_free(&t);
    return code;
}

int cli_advise_per_op(const cli_args *args) {
    mz_per_op_options o = {.stop = cli_interruptible(), .tell = show_search};
    mz_per_op found = {0};
    int64_t runs = 0, steps = 0;
    if (!cli_has(args, "precisions"))
        return cli_wrong(args->command, "--per-op needs the precision to try: --precisions fp8");
    int n = 0, code = cli_precisions(args, "precisions", "", &o.precision, 1, &n);
    if (code == CLI_DONE)
        code = cli_integer(args, "runs", 2, 1000, 24, &runs);
    if (code == CLI_DONE)
        code = cli_integer(args, "steps", 3, 1000000, 30, &steps);
    if (code == CLI_DONE)
        code = cli_number(args, "gap", 0, 1e6, 0.01, &o.gap);
    if (code == CLI_DONE)
        code = cli_config(args, &o.config);
    if (code != CLI_DONE)
        return code;
    char text[32];
    o.runs = (int)runs;
    snprintf(text, sizeof text, "%lld", (long long)steps);
    mezzo_status status = set_keys(args, o.config);
    if (status == MEZZO_OK)
        status = mezzo_config_set(o.config, "train.steps", text, "advise");
    if (status == MEZZO_OK)
        status = mezzo_config_set(o.config, "schedule.warmup", "0", "advise");
    if (status == MEZZO_OK)
        status = mz_per_op_find(&o, &found);
    cli_progress_end();
    code = status == MEZZO_OK ? tell_search(args, &o, &found) : cli_error(args->command, status);
    if (code == CLI_DONE && !found.closes)
        code = CLI_CHECK_FAILED;
    mz_per_op_free(&found);
    mezzo_config_free(o.config);
    return code;
}

int cli_advise_data(const cli_args *args) {
    mezzo_precision list[MEZZO_PRECISION_COUNT];
    mz_advised_options o = {.stop = cli_interruptible(),
                            .steps = 100,
                            .level = 0.95,
                            .within = 0.01,
                            .tell_candidate = show_candidate,
                            .tell = show_run};
    mz_advised answer = {0};
    int n = 0, code = cli_number(args, "minutes", 0.01, 1e6, 1.5, &o.minutes);
    if (code == CLI_DONE && cli_has(args, "precisions"))
        code = cli_precisions(args, "precisions", "", list, (int)MZ_COUNT(list), &n);
    if (code == CLI_DONE)
        code = cli_config(args, &o.config);
    if (code != CLI_DONE)
        return code;
    if (n > 0)
        o.precisions = list;
    o.n_precisions = n;
    mezzo_status status = set_keys(args, o.config);
    if (status == MEZZO_OK)
        status = mz_advised_find(&o, &answer);
    cli_progress_end();
    code = status == MEZZO_OK ? tell(args, &answer, cli_text(args, "out", "advise")) : cli_error(args->command, status);
    if (code == CLI_DONE && !answer.decided)
        code = CLI_CHECK_FAILED;
    mz_advised_free(&answer);
    mezzo_config_free(o.config);
    return code;
}
