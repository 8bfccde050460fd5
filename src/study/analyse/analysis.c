#include "study/analyse/analysis.h"

#include "base/scope.h"

#include <math.h>
#include <stdlib.h>

#define LEVEL 0.95
#define FOLDS 5
// Streams of the seed, one for each purpose, so that no two share random numbers.
enum { STREAM_MEDIAN = 1, STREAM_CURVES = 0x100 };

void mz_analysis_free(mz_analysis *a) {
    for (size_t i = 0; i < a->n_curves; i++)
        mz_free(a->curves[i].points);
    mz_free(a->curves);
    mz_rules_free(&a->rules);
    *a = (mz_analysis){0};
}

static void count_signs(const mz_pair *pairs, size_t n, mz_sign_test *out) {
    int64_t wins = 0, losses = 0;
    for (size_t i = 0; i < n; i++) {
        wins += pairs[i].speedup > 1;
        losses += pairs[i].speedup < 1;
    }
    *out = mz_sign(wins, losses, (int64_t)n - wins - losses);
}

// Summarizes one field of the pairs that have it.
static mezzo_status summarize_field(const mz_pair *pairs, size_t n, size_t field, double *scratch, mz_summary *out) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        double x;
        memcpy(&x, (const char *)&pairs[i] + field, sizeof x);
        if (!isnan(x))
            scratch[count++] = x;
    }
    *out = (mz_summary){0};
    return count > 0 ? mz_summarize(scratch, count, out) : MEZZO_OK;
}

// --- a width -------------------------------------------------------------------------------------------------------
static mezzo_status curve_points(mz_curve *c, const mz_pair *pairs, size_t n, double *scratch) {
    for (size_t from = 0, to; from < n; from = to) {
        for (to = from; to < n && pairs[to].tokens == pairs[from].tokens;)
            to++;
        MEZZO_TRY(MZ_RESERVE(c->points, c->cap, c->n + 1));
        mz_curve_point *p = &c->points[c->n++];
        *p = (mz_curve_point){.tokens = pairs[from].tokens};
        MEZZO_TRY(summarize_field(pairs + from, to - from, offsetof(mz_pair, speedup), scratch, &p->speedup));
        MEZZO_TRY(summarize_field(pairs + from, to - from, offsetof(mz_pair, mem_saving_pct), scratch, &p->memory));
        MEZZO_TRY(summarize_field(pairs + from, to - from, offsetof(mz_pair, energy_gain_pct), scratch, &p->energy));
    }
    return MEZZO_OK;
}

// Makes the curve of one width's pairs, which ascend by tokens.
static mezzo_status make_curve(mz_analysis *a, const mz_pair *pairs, size_t n, double *scratch) {
    MEZZO_TRY(MZ_RESERVE(a->curves, a->cap_curves, a->n_curves + 1));
    mz_curve *c = &a->curves[a->n_curves++];
    *c = (mz_curve){.d_model = pairs[0].key.d_model};
    count_signs(pairs, n, &c->sign);
    MEZZO_TRY(summarize_field(pairs, n, offsetof(mz_pair, speedup), scratch, &c->speedup));
    MEZZO_TRY(curve_points(c, pairs, n, scratch));
    return mz_curve_crossings(c, pairs, n, a->draws, LEVEL, a->seed, (uint32_t)(STREAM_CURVES * a->n_curves));
}

static mezzo_status make_curves(mz_analysis *a) {
    size_t n = a->study->n_pairs;
    MZ_SCOPED(mz_free_at) mz_pair *sorted = mz_alloc(n, sizeof *sorted);
    MZ_SCOPED(mz_free_at) double *scratch = mz_alloc(n, sizeof *scratch);
    if (sorted == NULL || scratch == NULL)
        MEZZO_TRY(MEZZO_ERR_MEMORY);
    memcpy(sorted, a->study->pairs, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, mz_pairs_order);
    for (size_t from = 0, to; from < n; from = to) {
        for (to = from; to < n && sorted[to].key.d_model == sorted[from].key.d_model;)
            to++;
        MEZZO_TRY(make_curve(a, sorted + from, to - from, scratch));
    }
    return MEZZO_OK;
}

// --- what moves the speedup ----------------------------------------------------------------------------------------
static double column_value(const mz_pair *p, size_t column) {
    const double values[MZ_EFFECTS] = {1, (double)p->key.layers, (double)p->key.d_model, log((double)p->key.bs),
                                       log((double)p->key.seqlen)};
    return values[column];
}

static const char *const effect_names[MZ_EFFECTS] = {"intercept", "layers", "d_model", "ln_bs", "ln_seqlen"};

// Chooses the columns of the fit, and leaves out one that is the same in every pair.
static size_t choose_columns(const mz_study *s, mz_effects *e, size_t chosen[MZ_EFFECTS]) {
    size_t k = 0;
    for (size_t c = 0; c < MZ_EFFECTS; c++) {
        bool varies = c == 0;
        for (size_t i = 1; i < s->n_pairs && !varies; i++)
            varies = column_value(&s->pairs[i], c) != column_value(&s->pairs[0], c);
        size_t used = strlen(e->note);
        if (varies) {
            e->names[k] = effect_names[c];
            chosen[k++] = c;
        } else {
            snprintf(e->note + used, sizeof e->note - used, "%s%s",
                     used > 0 ? ", " : "left out, being the same on every pair: ", effect_names[c]);
        }
    }
    return k;
}

static mezzo_status fit_effects(const mz_study *s, mz_effects *e) {
    size_t chosen[MZ_EFFECTS], k = choose_columns(s, e, chosen), n = s->n_pairs;
    double *x = mz_alloc(n * k, sizeof *x), *y = mz_alloc(n, sizeof *y);
    mezzo_status status = x != NULL && y != NULL ? MEZZO_OK : MEZZO_ERR_MEMORY;
    for (size_t i = 0; i < n && status == MEZZO_OK; i++) {
        for (size_t c = 0; c < k; c++)
            x[i * k + c] = column_value(&s->pairs[i], chosen[c]);
        y[i] = log(s->pairs[i].speedup);
    }
    if (status == MEZZO_OK)
        status = mz_ols_fit(x, y, n, k, &e->fit);
    MZ_FREE(x, y);
    e->fitted = status == MEZZO_OK;
    if (status == MEZZO_ERR_INVALID) { // too few pairs, or a grid that varies two columns together: it is reported, and
                                       // no error
        snprintf(e->note, sizeof e->note, "%s", mezzo_error_message());
        status = MEZZO_OK;
    }
    return status;
}

// --- the whole analysis --------------------------------------------------------------------------------------------
static void score_rules(mz_analysis *a) {
    const mz_study *s = a->study;
    mz_rules fixed = {.n = 1};
    fixed.rules[0] = (mz_rule){.least_width = 1, .kind = MZ_RULE_ALWAYS};
    a->always_candidate = mz_rules_score(&fixed, s->pairs, s->n_pairs);
    fixed.rules[0].kind = MZ_RULE_NEVER;
    a->always_baseline = mz_rules_score(&fixed, s->pairs, s->n_pairs);
    mz_rules_t4_glm4moe(&fixed);
    a->published = mz_rules_score(&fixed, s->pairs, s->n_pairs);
    a->rule = mz_rules_score(&a->rules, s->pairs, s->n_pairs);
}

static mezzo_status find_rules(mz_analysis *a) {
    const mz_study *s = a->study;
    const char *slash = strrchr(s->where, '/'), *file = slash != NULL ? slash + 1 : s->where;
    MEZZO_TRY(mz_rules_fit(s->pairs, s->n_pairs, &a->rules));
    snprintf(a->rules.name, sizeof a->rules.name, "%.*s", (int)strcspn(file, "."), file);
    if (a->rules.name[0] == '\0')
        snprintf(a->rules.name, sizeof a->rules.name, "rules");
    snprintf(a->rules.baseline, sizeof a->rules.baseline, "%s", s->baseline);
    snprintf(a->rules.candidate, sizeof a->rules.candidate, "%s", s->candidate);
    snprintf(a->rules.source, sizeof a->rules.source, "minimum regret on %zu exact-shape pairs of %.128s", s->n_pairs,
             file);
    a->folds = FOLDS;
    score_rules(a);
    MEZZO_TRY(mz_rules_cross_validate(s->pairs, s->n_pairs, FOLDS, a->seed, &a->rule_cv));
    double constant = fmin(a->always_candidate.log_regret, a->always_baseline.log_regret);
    a->rules_lose = a->rules.n > 0 && !(a->rule_cv.n > 0 && a->rule_cv.log_regret <= constant);
    if (a->rules_lose)
        mz_rules_make_constant(&a->rules, s->pairs, s->n_pairs);
    return MEZZO_OK;
}

static mezzo_status overall(mz_analysis *a) {
    const mz_study *s = a->study;
    double *x;
    MEZZO_TRY(MZ_NEW(x, s->n_pairs));
    for (size_t i = 0; i < s->n_pairs; i++)
        x[i] = s->pairs[i].speedup;
    mezzo_status status = mz_summarize(x, s->n_pairs, &a->speedup);
    if (status == MEZZO_OK)
        status = mz_bootstrap(x, s->n_pairs, mz_statistic_median, NULL, a->draws, LEVEL, a->seed, STREAM_MEDIAN,
                              &a->median_interval);
    mz_free(x);
    count_signs(s->pairs, s->n_pairs, &a->sign);
    return status;
}

mezzo_status mz_analyze(const mz_study *study, int draws, uint64_t seed, mz_analysis *out) {
    mezzo_status status = MEZZO_OK;
    *out = (mz_analysis){.study = study, .draws = draws, .seed = seed};
    if (study->n_pairs == 0 || draws < 100)
        MEZZO_TRY_GOTO(status, mz_fail(MEZZO_ERR_INVALID, "an analysis needs a pair and 100 bootstrap draws"));
    MEZZO_TRY_GOTO(status, overall(out));
    MEZZO_TRY_GOTO(status, make_curves(out));
    MEZZO_TRY_GOTO(status, fit_effects(study, &out->effects));
    MEZZO_TRY_GOTO(status, find_rules(out));
    return MEZZO_OK;
fail:
    mz_analysis_free(out);
    return status;
}
