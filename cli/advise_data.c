// mezzo advise --data recommends a precision for a model and its data by training both.
#include "choose.h"
#include "cli.h"
#include "io/file.h"
#include "io/json.h"
#include "study/measure/advised.h"
#include "study/measure/per_op.h"
#include "study/page/page_text.h"
#include "train/config.h"

static void show_candidate(void *user, const mz_candidate *c) {
    (void)user;
    char line[128];
    snprintf(line, sizeof line, "timing %s", mezzo_precision_name(c->precision));
    cli_progress_line(line, false);
}

static void show_run(void *user, const mz_verify_progress *p) {
    (void)user;
    char line[128];
    snprintf(line, sizeof line, "comparing: seed %d, at most %d  step %lld/%lld  %s", p->seed, p->seeds,
             (long long)p->step, (long long)p->steps, cli_duration(p->seconds).text);
    cli_progress_line(line, p->step == p->steps);
}

// Saves the answer, and takes a reference of its JSON.
static mezzo_status save(const char *folder, json_t *json) {
    mz_text html = {0};
    MEZZO_TRY(mz_dir_create(folder));
    MEZZO_TRY(mz_json_save_owned(json_incref(json), mz_path_of("%s/advise.json", folder).text));
    html.status = mz_json_page("mezzo advise", json, &html);
    return mz_text_save(&html, mz_path_of("%s/advise.html", folder).text);
}

static int tell(const mz_advised *a, const char *folder) {
    mz_text t = {0};
    json_t *json = mz_advised_json(a);
    mezzo_status status = save(folder, json);
    if (status == MEZZO_OK && cli_has("json"))
        return cli_json_print(json);
    json_decref(json);
    CLI_TRY(cli_code(status));
    mz_text_addf(&t, "\n");
    mz_advised_text(a, &t);
    mz_text_addf(&t, "\nwritten to %s: advise.html, advise.json\n", cli_show(folder).text);
    if (t.status == MEZZO_OK)
        cli_tell("%s\n", a->verdict);
    return cli_print_made(&t);
}

static mezzo_status set_keys(mezzo_config *config) {
    MEZZO_TRY(cli_set_defaults(config));
    return cli_advise_shape(config);
}

// --- per op --------------------------------------------------------------------------------------------------------
static void show_search(void *user, int run, int runs, int kept, double gap) {
    (void)user;
    char line[128];
    snprintf(line, sizeof line, "run %d, at most %d: %d modules in fp32, loss above fp32's %.4f", run, runs, kept, gap);
    cli_progress_line(line, true);
}

static int tell_search(const mz_per_op_options *o, const mz_per_op *p) {
    mz_text t = {0};
    if (cli_has("json"))
        return cli_json_print(mz_per_op_json(o, p));
    mz_per_op_text(o, p, &t);
    return cli_print_made(&t);
}

int cli_advise_per_op(void) {
    mz_per_op_options o = {.stop = cli_interrupts(NULL), .tell = show_search};
    mz_per_op found = {0};
    int64_t runs = 0, steps = 0;
    if (!cli_has("precisions"))
        return cli_wrong("--per-op needs the precision to try: --precisions fp8");
    int n = 0;
    CLI_TRY(cli_precisions("precisions", "", &o.precision, 1, &n));
    CLI_TRY(cli_integer("runs", 2, 1000, 24, &runs));
    CLI_TRY(cli_integer("steps", 3, 1000000, 30, &steps));
    CLI_TRY(cli_number("gap", 0, 1e6, 0.01, &o.gap));
    CLI_TRY(cli_config(&o.config));
    o.runs = (int)runs;
    mezzo_status status = set_keys(o.config);
    if (status == MEZZO_OK)
        status = mz_config_set_int(o.config, "train.steps", steps, "advise");
    if (status == MEZZO_OK)
        status = mezzo_config_set(o.config, "schedule.warmup", "0", "advise");
    if (status == MEZZO_OK)
        status = mz_per_op_find(&o, &found);
    cli_progress_end();
    int code = status == MEZZO_OK ? tell_search(&o, &found) : cli_error(status);
    if (code == CLI_DONE && !found.closes)
        code = CLI_CHECK_FAILED;
    mz_per_op_free(&found);
    mezzo_config_free(o.config);
    return code;
}

int cli_advise_data(void) {
    mezzo_precision list[MEZZO_PRECISION_COUNT];
    mz_advised_options o = {.stop = cli_interrupts(NULL),
                            .level = 0.95,
                            .within = 0.01,
                            .tell_candidate = show_candidate,
                            .tell = show_run};
    mz_advised answer = {0};
    int n = 0;
    CLI_TRY(cli_number("minutes", 0.01, 1e6, 1.5, &o.minutes));
    CLI_TRY(cli_integer("steps", MZ_ADVISED_STEPS, 1000000, 100, &o.steps));
    if (cli_has("precisions"))
        CLI_TRY(cli_precisions("precisions", "", list, (int)MZ_COUNT(list), &n));
    CLI_TRY(cli_config(&o.config));
    if (n > 0)
        o.precisions = list;
    o.n_precisions = n;
    mezzo_status status = set_keys(o.config);
    if (status == MEZZO_OK)
        status = mz_advised_find(&o, &answer);
    cli_progress_end();
    int code = status == MEZZO_OK ? tell(&answer, cli_text("out", "advise")) : cli_error(status);
    if (code == CLI_DONE && !answer.decided)
        code = CLI_CHECK_FAILED;
    mz_advised_free(&answer);
    mezzo_config_free(o.config);
    return code;
}
