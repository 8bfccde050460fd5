// mezzo verify trains the same run in fp32 and in a precision, and checks whether the precision is faster without loss
// of quality.
#include <math.h>
#include <stdlib.h>

#include "cli.h"
#include "io/file.h"
#include "io/json.h"
#include "study/measure/verify.h"

// Shows progress. user: the result, whose precision is known before the first step.
static void show(void *user, const mz_verify_progress *p) {
    const mz_verify_result *r = user;
    char losses[96] = "";
    for (int i = 0; i < 2; i++)
        if (isfinite(p->loss[i]))
            cli_add(losses, sizeof losses, "%s %s %.4f", i > 0 && losses[0] ? "," : "",
                    mezzo_precision_name(i == 0 ? r->baseline : r->precision), p->loss[i]);
    cli_progress_line(p->step == p->steps, "seed %d/%d  step %lld/%lld%s%s  %s, %s left", p->seed, p->seeds,
                      (long long)p->step, (long long)p->steps, losses[0] ? "  loss" : "", losses,
                      mz_duration_text(p->seconds).text, mz_duration_text(p->seconds_left).text);
}

static json_t *report_json(const mz_verify_options *o, const mz_verify_result *r) {
    return o->matched ? mz_matched_json(o, r) : mz_verify_json(o, r);
}

static mezzo_status write_reports(const char *folder, const mz_verify_options *o, const mz_verify_result *r,
                                  const char *command) {
    mz_text t = {0};
    MEZZO_TRY(mz_dir_create(folder));
    MEZZO_TRY(mz_json_save_owned(report_json(o, r), mz_path_of("%s/verify.json", folder).text));
    if (o->matched) {
        mz_text_addf(&t, "# %s against %s at equal quality: %s\n\n```\n%s\n\n", mezzo_precision_name(r->precision),
                     mezzo_precision_name(r->baseline), mz_matched_word(r->matched.verdict), command);
        mz_matched_text(o, r, &t);
        mz_text_addf(&t, "```\n");
    } else {
        mz_verify_markdown(o, r, command, &t);
    }
    return mz_text_save(&t, mz_path_of("%s/verify.md", folder).text);
}

static int tell(const mz_verify_options *o, const mz_verify_result *r, const char *folder) {
    mz_text t = {0};
    if (cli_has("json"))
        return cli_json_print(report_json(o, r));
    (o->matched ? mz_matched_text : mz_verify_text)(o, r, &t);
    mz_text_addf(&t, "\nreport: %s/verify.md, %s/verify.json\n", mz_show(folder).text, mz_show(folder).text);
    return cli_print_made(&t);
}

static const cli_range ranges[] = {
    {MZ_FIELD(mz_verify_options, within), "within", 0, 1, 0.01},
    {MZ_FIELD(mz_verify_options, minutes), "minutes", 0, 1e6, 0},
    {MZ_FIELD(mz_verify_options, least_speedup), "min-speedup", 0, 1e6, 1.5},
    {MZ_FIELD(mz_verify_options, least_memory_percent), "min-memory-reduction", -1e6, 100, 40},
    {MZ_FIELD(mz_verify_options, most_accuracy_difference), "max-accuracy-difference", 0, 1, 0.01},
    {MZ_FIELD(mz_verify_options, level), "level", 0.5, 0.9999, 0.95},
};

// Parses the options; each mode refuses those of the other one.
static int parse(mz_verify_options *o) {
    int64_t seeds = 0;
    int n = 0;
    o->matched = cli_has("matched");
    CLI_TRY(cli_integer("seeds", 1, MZ_VERIFY_SEEDS, o->matched ? 8 : 3, &seeds));
    o->seeds = (int)seeds;
    if (o->matched)
        CLI_TRY(CLI_REFUSE("is a requirement, and there are none with --matched", "min-speedup", "min-memory-reduction",
                           "max-accuracy-difference"));
    else
        CLI_TRY(CLI_REFUSE("is for --matched", "baseline", "within", "minutes", "transfer"));
    o->baseline = MEZZO_PRECISION_FP32;
    if (cli_has("baseline"))
        CLI_TRY(cli_precisions("baseline", "", &o->baseline, 1, &n));
    return CLI_RANGES(ranges, o);
}

static bool passed(const mz_verify_options *o, const mz_verify_result *r) {
    if (!o->matched)
        return mz_verify_passed(r);
    return r->same && mz_matched_decided(&r->matched) && r->matched.verdict != MZ_MATCHED_SLOWER;
}

static int transfer(const mz_verify_options *o, const int64_t *widths, int n, mz_verify_result *r) {
    mz_transfer t;
    CLI_DO(mz_transfer_find(o, widths, n, show, r, &t, r));
    cli_progress_end();
    const int code = CLI_SHOW(mz_transfer_json(&t, o, r), mz_transfer_text, &t, o, r);
    return code == CLI_DONE && !t.inside ? CLI_CHECK_FAILED : code;
}

static int verify(const mz_verify_options *o, mz_verify_result *r) {
    const char *folder = cli_text("out", "verify");
    MZ_SCOPED(mz_free_at) char *command = cli_command_line();
    if (command == NULL)
        return cli_error(MEZZO_ERR_MEMORY);
    CLI_DO(mz_verify(o, show, r, r));
    cli_progress_end();
    CLI_DO(write_reports(folder, o, r, command));
    CLI_TRY(tell(o, r, folder));
    return passed(o, r) ? CLI_DONE : CLI_CHECK_FAILED;
}

static void free_result(mz_verify_result **r) {
    if (*r != NULL)
        mz_verify_free(*r);
    mz_free(*r);
}

int cli_verify(void) {
    MZ_SCOPED(cli_free_config) mezzo_config *config = NULL;
    MZ_SCOPED(free_result) mz_verify_result *r = NULL;
    mz_verify_options o = {.stop = cli_interrupts(NULL)};
    int64_t widths[MZ_TRANSFER_WIDTHS];
    int n_widths = 0;
    CLI_TRY(parse(&o));
    if (cli_has("transfer")) // widths below the model's own
        CLI_TRY(cli_integers("transfer", "", INT64_MAX, MZ_TRANSFER_WIDTHS, widths, &n_widths));
    CLI_TRY(cli_config(&config));
    // Without a file that says what is trained, verify trains a GPT on characters whose activations are larger than its
    // weights, in batches of 64 rows: in small ones fp32 masters, gradients and moments, which both runs have, hide the
    // difference in memory.
    if (!cli_has("config"))
        CLI_DO(cli_set_defaults(config));
    CLI_DO(MZ_NEW(r, 1));
    o.config = config;
    return n_widths > 0 ? transfer(&o, widths, n_widths, r) : verify(&o, r);
}
