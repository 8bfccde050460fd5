// mezzo advise --data recommends a precision for a model and its data by training both.
#include "cli.h"
#include "io/file.h"
#include "io/json.h"
#include "study/measure/advised.h"
#include "study/measure/per_op.h"
#include "study/page/page_text.h"
#include "train/config.h"

static void show_candidate(void *user, const mz_candidate *c) {
    (void)user;
    cli_progress_line(false, "timing %s", mezzo_precision_name(c->precision));
}

static void show_run(void *user, const mz_verify_progress *p) {
    (void)user;
    cli_progress_line(p->step == p->steps, "comparing: seed %d, at most %d  step %lld/%lld  %s", p->seed, p->seeds,
                      (long long)p->step, (long long)p->steps, mz_duration_text(p->seconds).text);
}

static int tell(const mz_advised *a, const char *folder) {
    mz_text t = {0}, html = {0};
    json_auto_t *json = mz_advised_json(a);
    CLI_DO(mz_dir_create(folder));
    CLI_DO(mz_json_save_owned(json_incref(json), mz_path_of("%s/advise.json", folder).text));
    html.status = mz_json_page("mezzo advise", json, &html);
    CLI_DO(mz_text_save(&html, mz_path_of("%s/advise.html", folder).text));
    if (cli_has("json"))
        return cli_json_print(json_incref(json));
    mz_text_addf(&t, "\n");
    mz_advised_text(a, &t);
    mz_text_addf(&t, "\nwritten to %s: advise.html, advise.json\n", mz_show(folder).text);
    if (t.status == MEZZO_OK)
        CLI_TELL("%s\n", a->verdict);
    return cli_print_made(&t);
}

static mezzo_status set_keys(mezzo_config *config) {
    MEZZO_TRY(cli_set_defaults(config));
    return cli_advise_shape(config);
}

// --- per op --------------------------------------------------------------------------------------------------------
static void show_search(void *user, int run, int runs, int kept, double gap) {
    (void)user;
    cli_progress_line(true, "run %d, at most %d: %d modules in fp32, loss above fp32's %.4f", run, runs, kept, gap);
}

static int tell_search(const mz_per_op_options *o, const mz_per_op *p) {
    return CLI_SHOW(mz_per_op_json(o, p), mz_per_op_text, o, p);
}

int cli_advise_per_op(void) {
    MZ_SCOPED(cli_free_config) mezzo_config *config = NULL;
    MZ_SCOPED(mz_per_op_free) mz_per_op found = {0};
    mz_per_op_options o = {.stop = cli_interrupts(NULL), .tell = show_search};
    int64_t runs = 0, steps = 0;
    int n = 0;
    if (!cli_has("precisions"))
        return cli_wrong("--per-op needs the precision to try: --precisions fp8");
    CLI_TRY(cli_precisions("precisions", "", &o.precision, 1, &n));
    CLI_TRY(cli_integer("runs", 2, 1000, 24, &runs));
    CLI_TRY(cli_integer("steps", 3, 1000000, 30, &steps));
    CLI_TRY(cli_number("gap", 0, 1e6, 0.01, &o.gap));
    CLI_TRY(cli_config(&config));
    CLI_DO(set_keys(config));
    CLI_DO(mz_config_set_int(config, "train.steps", steps, "advise"));
    CLI_DO(mezzo_config_set(config, "schedule.warmup", "0", "advise"));
    o.config = config;
    o.runs = (int)runs;
    CLI_DO(mz_per_op_find(&o, &found));
    cli_progress_end();
    CLI_TRY(tell_search(&o, &found));
    return found.closes ? CLI_DONE : CLI_CHECK_FAILED;
}

int cli_advise_data(void) {
    MZ_SCOPED(cli_free_config) mezzo_config *config = NULL;
    MZ_SCOPED(mz_advised_free) mz_advised answer = {0};
    mezzo_precision list[MEZZO_PRECISION_COUNT];
    mz_advised_options o = {.stop = cli_interrupts(NULL),
                            .level = 0.95,
                            .within = 0.01,
                            .tell_candidate = show_candidate,
                            .tell = show_run};
    int n = 0;
    CLI_TRY(cli_number("minutes", 0.01, 1e6, 1.5, &o.minutes));
    CLI_TRY(cli_integer("steps", MZ_ADVISED_STEPS, 1000000, 100, &o.steps));
    if (cli_has("precisions"))
        CLI_TRY(cli_precisions("precisions", "", list, (int)MZ_COUNT(list), &n));
    CLI_TRY(cli_config(&config));
    CLI_DO(set_keys(config));
    o.config = config;
    o.precisions = n > 0 ? list : NULL;
    o.n_precisions = n;
    CLI_DO(mz_advised_find(&o, &answer));
    cli_progress_end();
    CLI_TRY(tell(&answer, cli_text("out", "advise")));
    return answer.decided ? CLI_DONE : CLI_CHECK_FAILED;
}
