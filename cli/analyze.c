// mezzo analyze: a study's rows → pairs, statistics, rules, report, figures.
#include "cli.h"
#include "io/quote.h"
#include "io/file.h"
#include "study/analyse/figures.h"

typedef struct outcome {
    const char *folder;
    int drawn;
    char why[512]; // figures are missing; "" if they are there
} outcome;

static mezzo_status save(const mz_study *study, const mz_analysis *a, outcome *out) {
    static const char *const names[] = {"pairs_analysis.csv", "summary.json", "rules.json", "report.md"};
    mezzo_status status = mz_dir_create(out->folder);
    for (size_t i = 0; i < MZ_COUNT(names) && status == MEZZO_OK; i++) {
        char *path = mz_format("%s/%s", out->folder, names[i]);
        if (path == NULL)
            return MEZZO_ERR_MEMORY;
        status = i == 0   ? mz_pairs_save(study, path)
                 : i == 1 ? mz_analysis_save_summary(a, path)
                 : i == 2 ? mz_rules_save(&a->rules, &a->rule_cv, path)
                          : mz_analysis_save_report(a, path);
        mz_free(path);
    }
    if (status == MEZZO_OK)
        status = mz_analysis_figures(a, out->folder, &out->drawn, out->why, sizeof out->why);
    return status;
}

static void warn(const mz_study *s) {
    char text[256];
    if (s->n_alone > 0) {
        const mz_study_row *r = &s->rows[s->alone[0]];
        fprintf(stderr, "mezzo analyze: %zu rows have no partner and are left out; the first is line %lld: %s, %s\n",
                s->n_alone, (long long)r->line, mz_key_text(&r->key, r->variant, text, sizeof text),
                mz_quote(r->prec).text);
    }
    if (s->n_unequal > 0)
        fprintf(stderr, "mezzo analyze: %zu pairs ran on unequal rungs or shapes and are listed apart\n", s->n_unequal);
    if (s->others[0] != '\0')
        fprintf(stderr, "mezzo analyze: the file also has rows of %s: --candidate NAME compares those\n",
                mz_quote(s->others).text);
}

static int print_json(const cli_args *args, const mz_analysis *a, const outcome *out) {
    json_t *crossings = json_array();
    for (size_t i = 0; i < a->n_curves; i++)
        for (int k = 0; k < a->curves[i].n_crossings; k++) {
            const mz_crossing *x = &a->curves[i].crossings[k];
            json_t *o = json_object();
            json_object_set_new(o, "d_model", json_integer(a->curves[i].d_model));
            json_object_set_new(o, "tokens_per_step", cli_json_number(x->tokens));
            json_object_set_new(o, "direction", json_string(x->up ? "up" : "down"));
            json_object_set_new(o, "low", cli_json_number(x->interval.low));
            json_object_set_new(o, "high", cli_json_number(x->interval.high));
            json_array_append_new(crossings, o);
        }
    json_t *o = json_object();
    json_object_set_new(o, "folder", cli_json_text(out->folder, strlen(out->folder)));
    json_object_set_new(o, "pairs", json_integer((json_int_t)a->study->n_pairs));
    json_object_set_new(o, "unequal_pairs", json_integer((json_int_t)a->study->n_unequal));
    json_object_set_new(o, "rows_without_partner", json_integer((json_int_t)a->study->n_alone));
    json_object_set_new(o, "wins", json_integer(a->sign.wins));
    json_object_set_new(o, "median_speedup", cli_json_number(a->speedup.median));
    json_object_set_new(o, "min_speedup", cli_json_number(a->speedup.min));
    json_object_set_new(o, "max_speedup", cli_json_number(a->speedup.max));
    json_object_set_new(o, "sign_test_p", cli_json_number(a->sign.p));
    json_object_set_new(o, "crossings", crossings);
    json_object_set_new(o, "figures", json_integer(out->drawn));
    return cli_json_print(args->command, o);
}

static mezzo_status print_text(const mz_analysis *a, const outcome *out) {
    mz_text t = {0};
    mezzo_status status = mz_analysis_text(a, &t);
    if (status == MEZZO_OK)
        printf("%s\nwritten to %s: pairs_analysis.csv, summary.json, rules.json, report.md, %d figure%s (PNG, SVG, "
               "gnuplot)\n",
               t.data, out->folder, out->drawn, out->drawn == 1 ? "" : "s");
    mz_text_free(&t);
    return status;
}

static int run(const cli_args *args) {
    int64_t draws, seed;
    outcome out = {.folder = cli_text(args, "out", "analysis")};
    int code = cli_integer(args, "draws", 100, 1000000, 2000, &draws);
    if (code == CLI_DONE)
        code = cli_integer(args, "seed", 0, INT64_MAX, 1, &seed);
    if (code != CLI_DONE)
        return code;
    if (args->n_operands == 0)
        return cli_wrong(args->command, "a CSV file is missing: usage is mezzo analyze %s", args->command->usage);
    mz_study study = {0};
    mz_analysis analysis = {0};
    mezzo_status status = mz_study_load(args->operands[0], cli_text(args, "columns", NULL),
                                        cli_text(args, "baseline", NULL), cli_text(args, "candidate", NULL), &study);
    if (status == MEZZO_OK) {
        warn(&study);
        status = mz_analyze(&study, (int)draws, (uint64_t)seed, &analysis);
    }
    if (status == MEZZO_OK)
        status = save(&study, &analysis, &out);
    if (status == MEZZO_OK && out.why[0] != '\0')
        fprintf(stderr, "mezzo analyze: no figures: %s\n", out.why);
    if (status == MEZZO_OK && !cli_has(args, "json"))
        status = print_text(&analysis, &out);
    else if (status == MEZZO_OK)
        code = print_json(args, &analysis, &out);
    if (status != MEZZO_OK)
        code = cli_error(args->command, status);
    mz_analysis_free(&analysis);
    mz_study_free(&study);
    return code;
}

static const cli_option options_table[] = {
    {"out", "DIR", "where the tables, the report and the figures go [analysis]"},
    {"columns", "THEIRS=OURS,…", "columns of another table by our names: throughput=tps,precision=prec"},
    {"baseline", "NAME", "the precision to compare with [fp32]"},
    {"candidate", "NAME", "the precision in question [the first of amp, bf16, fp16, tf32 in the file]"},
    {"draws", "N", "bootstrap draws [2000]"},
    {"seed", "N", "of the draws and the folds [1]"},
    {"json", NULL, "the result as JSON"},
    {0},
};

const cli_command cli_analyze = {
    .name = "analyze",
    .summary = "a sweep's rows to pairs, statistics, a rule, a report and figures",
    .usage = "FILE.csv [--out DIR] [--candidate NAME]",
    .details =
        "FILE is what mezzo sweep wrote (full_data.csv), another study's table with the columns layers, d_model, bs, "
        "seqlen, prec\nand tps, or a pairs file (layers, d_model, bs, seqlen, speedup_amp_over_fp32). Only exact-shape "
        "pairs are compared.",
    .options = options_table,
    .max_operands = 1,
    .run = run,
};
