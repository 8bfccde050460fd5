// mezzo analyze turns a study's rows into pairs, statistics, rules, a report and figures.
#include "cli.h"
#include "io/quote.h"
#include "io/file.h"
#include "study/analyse/figures.h"

typedef struct outcome {
    const char *folder;
    int draws; // as the user asked
    uint64_t seed;
    int drawn;
    char why[512]; // the reason for missing figures; "" if there are none
} outcome;

static mezzo_status save(const mz_study *study, const mz_analysis *a, outcome *out) {
    MEZZO_TRY(mz_dir_create(out->folder));
    MEZZO_TRY(mz_pairs_save(study, mz_path_of("%s/pairs_analysis.csv", out->folder).text));
    MEZZO_TRY(mz_analysis_save_summary(a, mz_path_of("%s/summary.json", out->folder).text));
    MEZZO_TRY(mz_rules_save(&a->rules, &a->rule_cv, mz_path_of("%s/rules.json", out->folder).text));
    MEZZO_TRY(mz_analysis_save_report(a, mz_path_of("%s/report.md", out->folder).text));
    return mz_analysis_figures(a, out->folder, &out->drawn, out->why, sizeof out->why);
}

static void warn(const mz_study *s) {
    char text[256];
    if (s->n_alone > 0) {
        const mz_study_row *r = &s->rows[s->alone[0]];
        fprintf(stderr, "mezzo analyze: left out %zu rows without a partner; the first is line %lld: %s, %s\n",
                s->n_alone, (long long)r->line, mz_key_text(&r->key, r->variant, text, sizeof text),
                mz_quote(r->prec).text);
    }
    if (s->n_unequal > 0)
        fprintf(stderr, "mezzo analyze: %zu pairs ran on different rungs or shapes and are listed separately\n",
                s->n_unequal);
    if (s->noisy > 0)
        fprintf(stderr,
                "mezzo analyze: the times of %zu row%s vary by more than %g %% (coefficient of variation), most in "
                "line %lld (%.0f %%)\n",
                s->noisy, s->noisy == 1 ? "" : "s", 100 * MZ_STUDY_NOISY, (long long)s->rows[s->noisiest].line,
                100 * mz_row_cv(&s->rows[s->noisiest]));
    if (s->others[0] != '\0')
        fprintf(stderr, "mezzo analyze: the file also has rows of %s: compare them with --candidate NAME\n",
                mz_quote(s->others).text);
}

static const mz_row_field crossing_fields[] = {
    {MZ_FIELD(mz_crossing, tokens), "tokens_per_step"},
    {MZ_FIELD(mz_crossing, up), "direction", .words = {"down", "up"}},
    {MZ_FIELD(mz_crossing, interval.low), "low"},
    {MZ_FIELD(mz_crossing, interval.high), "high"},
};
static const mz_row_field study_fields[] = {
    {MZ_FIELD(mz_study, n_pairs), "pairs"},
    {MZ_FIELD(mz_study, n_unequal), "unequal_pairs"},
    {MZ_FIELD(mz_study, n_alone), "rows_without_partner"},
};
static const mz_row_field analysis_fields[] = {
    {MZ_FIELD(mz_analysis, sign.wins), "wins"},          {MZ_FIELD(mz_analysis, speedup.median), "median_speedup"},
    {MZ_FIELD(mz_analysis, speedup.min), "min_speedup"}, {MZ_FIELD(mz_analysis, speedup.max), "max_speedup"},
    {MZ_FIELD(mz_analysis, sign.p), "sign_test_p"},
};

static int print_json(const mz_analysis *a, const outcome *out) {
    json_t *o = json_object(), *crossings = json_array();
    json_object_set_new(o, "folder", mz_json_text(out->folder));
    mz_fields_json(study_fields, MZ_COUNT(study_fields), a->study, NULL, o);
    mz_fields_json(analysis_fields, MZ_COUNT(analysis_fields), a, NULL, o);
    for (size_t i = 0; i < a->n_curves; i++)
        for (int k = 0; k < a->curves[i].n_crossings; k++) {
            json_t *one = json_object();
            json_object_set_new(one, "d_model", json_integer(a->curves[i].d_model));
            json_array_append_new(crossings, mz_fields_json(crossing_fields, MZ_COUNT(crossing_fields),
                                                            &a->curves[i].crossings[k], NULL, one));
        }
    json_object_set_new(o, "crossings", crossings);
    json_object_set_new(o, "figures", json_integer(out->drawn));
    return cli_json_print(o);
}

static int print_text(const mz_analysis *a, const outcome *out) {
    mz_text t = {0};
    t.status = mz_analysis_text(a, &t);
    mz_text_addf(
        &t,
        "\nwritten to %s: pairs_analysis.csv, summary.json, rules.json, report.md, %d figure%s (PNG, SVG, gnuplot)\n",
        out->folder, out->drawn, out->drawn == 1 ? "" : "s");
    return cli_print_made(&t);
}

static const cli_range ranges[] = {
    {MZ_FIELD(outcome, draws), "draws", 100, 1000000, 2000},
    {MZ_FIELD(outcome, seed), "seed", 0, 0x1p63, 1},
};

int cli_analyze(void) {
    outcome out = {.folder = cli_text("out", "analysis")};
    CLI_TRY(CLI_RANGES(ranges, &out));
    MZ_SCOPED(mz_study_free) mz_study study = {0};
    MZ_SCOPED(mz_analysis_free) mz_analysis analysis = {0};
    CLI_DO(mz_study_load(cli_line.operands[0], cli_text("columns", NULL), cli_text("baseline", NULL),
                         cli_text("candidate", NULL), &study));
    warn(&study);
    CLI_DO(mz_analyze(&study, out.draws, out.seed, &analysis));
    CLI_DO(save(&study, &analysis, &out));
    if (out.why[0] != '\0')
        fprintf(stderr, "mezzo analyze: no figures: %s\n", out.why);
    return cli_has("json") ? print_json(&analysis, &out) : print_text(&analysis, &out);
}
