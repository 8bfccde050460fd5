// Writes an analysis as sentences and tables (report.md) and as JSON (summary.json).
#include <math.h>

#include "io/file.h"
#include "io/json.h"
#include "study/analyse/analysis.h"

#define LISTED 20 // rows that a list shows; the others are counted

static const char *plural(size_t n) {
    return n == 1 ? "" : "s";
}

// Answers whether the candidate is faster, with the interval of its wins.
static void answer_faster(const mz_analysis *a, mz_text *t) {
    const mz_study *s = a->study;
    int64_t n = (int64_t)s->n_pairs;
    mz_interval wins = mz_wilson(a->sign.wins, n, 1.959964);
    const char *answer = a->sign.wins == n      ? "Yes, on every shape measured"
                         : a->sign.wins == 0    ? "No, on no shape measured"
                         : a->sign.wins * 2 > n ? "Yes, on most shapes measured, but not on all"
                                                : "On some of the shapes measured, but not on most";
    mz_text_addf(t,
                 "%s. %s was faster than %s in %lld of %lld exact-shape pairs (%.1f %%, 95 %% interval %.1f to %.1f "
                 "%%). The median speedup is %.3f (95 %% bootstrap interval %.3f to %.3f), the middle half lies "
                 "between %.3f and %.3f, all between %.3f and %.3f. ",
                 answer, s->candidate, s->baseline, (long long)a->sign.wins, (long long)n,
                 100 * (double)a->sign.wins / (double)n, 100 * wins.low, 100 * wins.high, a->speedup.median,
                 a->median_interval.low, a->median_interval.high, a->speedup.q1, a->speedup.q3, a->speedup.min,
                 a->speedup.max);
    const bool tiny = a->sign.log10_p < -4;
    mz_text_addf(t, "%s: exact two-sided sign test, p = ",
                 a->sign.p < 0.05 ? "The split is not even" : "That is not distinguishable from 50/50");
    mz_text_addf(t, tiny ? "10^%.1f.\n" : "%.2g.\n", tiny ? a->sign.log10_p : a->sign.p);
}

static void describe_crossing(const mz_analysis *a, const mz_curve *c, int k, mz_text *t) {
    const mz_crossing *x = &c->crossings[k];
    mz_text_addf(t, "%s%s becomes %s%s at %.0f tokens per step", k > 0 ? "; " : "", a->study->candidate,
                 x->up ? "faster" : "slower", k > 0 ? " again" : "", x->tokens);
    if (!isnan(x->interval.low))
        mz_text_addf(t, " (95 %% interval %.0f to %.0f%s)", x->interval.low, x->interval.high,
                     c->noise == MZ_NOISE_TIMING ? " by the timed steps" : "");
}

static void describe_noise(const mz_curve *c, mz_text *t) {
    const char *once = c->speedup.n == c->n ? "One pair a point" : "The pairs of a point are equal";
    if (c->noise == MZ_NOISE_TIMING)
        mz_text_addf(t, " %s: no interval across shapes.", once);
    else if (c->noise == MZ_NOISE_UNKNOWN)
        mz_text_addf(t, " %s, and there are no repeated timings: no intervals.", once);
}

// Describes what the points say where no crossing is established.
static void describe_no_crossing(const mz_analysis *a, const mz_curve *c, mz_text *t) {
    size_t above = 0, below = 0, unclear = 0;
    for (size_t i = 0; i < c->n; i++) {
        const mz_curve_point *p = &c->points[i];
        above += p->speedup.median > 1;
        below += p->speedup.median < 1;
        unclear += p->interval.low <= 1 && 1 <= p->interval.high; // false where the interval is not known
    }
    if (c->n_open > 0)
        mz_text_addf(
            t, "no crossing is established: the median's line crosses 1 at %.0f tokens per step, within the noise",
            c->open_tokens);
    else if (above > 0 && below > 0)
        mz_text_addf(t, "no crossing is established");
    else
        mz_text_addf(t, "the median crosses 1 nowhere; %s is faster at %s number of tokens measured",
                     a->study->candidate, above > 0 ? "every" : "no");
    if (c->n_open == 0 && unclear > 0)
        mz_text_addf(t, ", within the noise at %zu of %zu", unclear, c->n);
}

static void describe_curve(const mz_analysis *a, const mz_curve *c, mz_text *t) {
    mz_text_addf(t, "- Width %lld: ", (long long)c->d_model);
    for (int k = 0; k < c->n_crossings; k++)
        describe_crossing(a, c, k, t);
    if (c->n_crossings == 0)
        describe_no_crossing(a, c, t);
    const mz_curve_point *first = &c->points[0], *last = &c->points[c->n - 1];
    mz_text_addf(t, ". Median %.2f at %lld tokens per step, %.2f at %lld; faster in %lld of %lld pairs.",
                 first->speedup.median, (long long)first->tokens, last->speedup.median, (long long)last->tokens,
                 (long long)c->sign.wins, (long long)c->speedup.n);
    describe_noise(c, t);
    mz_text_addf(t, "\n");
}

static const double *effect(const mz_effects *e, const char *name, size_t *index) {
    for (size_t i = 0; i < e->fit.k; i++)
        if (strcmp(e->names[i], name) == 0) {
            *index = i;
            return &e->fit.beta[i];
        }
    return NULL;
}

// Writes one sentence for each effect: the factor by which a step in it multiplies the speedup, with ± two standard
// errors.
static void describe_effect(const mz_effects *e, const char *name, double step, const char *words, mz_text *t) {
    size_t i;
    const double *beta = effect(e, name, &i);
    if (beta == NULL)
        return;
    double wide = 1.959964 * e->fit.error[i];
    mz_text_addf(t, "%s multiplies the speedup by %.3f (%.3f to %.3f). ", words, exp(*beta * step),
                 exp((*beta - wide) * step), exp((*beta + wide) * step));
}

static void describe_effects(const mz_analysis *a, mz_text *t) {
    const mz_effects *e = &a->effects;
    if (!e->fitted) {
        mz_text_addf(t, "No regression: %s.\n", e->note);
        return;
    }
    if (e->fit.k == 1) {
        mz_text_addf(t, "No regression: layers, width, batch and sequence are the same on every pair.\n");
        return;
    }
    mz_text_addf(t, "Everything else equal, by least squares on ln(speedup). ");
    describe_effect(e, "ln_bs", log(2), "Doubling the batch", t);
    describe_effect(e, "ln_seqlen", log(2), "Doubling the sequence", t);
    describe_effect(e, "d_model", 128, "128 more of width", t);
    describe_effect(e, "layers", 4, "Having four more layers", t);
    mz_text_addf(t, "The fit explains %.0f %% of the variance (R² %.3f, residual deviation %.3f).%s%s%s\n",
                 100 * e->fit.r2, e->fit.r2, e->fit.sigma, e->note[0] != '\0' ? " (" : "", e->note,
                 e->note[0] != '\0' ? ")" : "");
}

static void answer_crossover(const mz_analysis *a, mz_text *t) {
    for (size_t i = 0; i < a->n_curves; i++)
        describe_curve(a, &a->curves[i], t);
    mz_text_addf(t, "\n");
    describe_effects(a, t);
}

static void describe_rules(const mz_analysis *a, mz_text *t) {
    char text[160];
    if (a->rules_lose) {
        mz_text_addf(t, "- Every width: %s. Rules by width and tokens are not offered: %s.\n",
                     mz_rule_text(&a->rules, &a->rules.rules[0], text, sizeof text),
                     a->rule_cv.n > 0 ? "cross-validated, they lose more time than this constant"
                                      : "there are too few shapes to cross-validate them");
        return;
    }
    for (int i = 0; i < a->rules.n; i++) {
        const mz_rule *r = &a->rules.rules[i];
        mz_text_addf(t, "- Width %lld: %s (right on %lld of %lld pairs, mean log-regret %.4f)\n", (long long)r->d_model,
                     mz_rule_text(&a->rules, r, text, sizeof text), (long long)r->right, (long long)r->n,
                     r->log_regret);
    }
}

mezzo_status mz_analysis_text(const mz_analysis *a, mz_text *t) {
    mz_text_addf(t, "Can %s be faster than %s here?\n", a->study->candidate, a->study->baseline);
    answer_faster(a, t);
    mz_text_addf(t, "\nHow do width, batch and length move the crossover?\n");
    answer_crossover(a, t);
    mz_text_addf(t, "\nWhich rule to follow");
    if (a->rule_cv.n > 0)
        mz_text_addf(t, " (%d-fold cross-validation: right on %.1f %%, mean log-regret %.4f", a->folds,
                     100 * a->rule_cv.accuracy, a->rule_cv.log_regret);
    else
        mz_text_addf(t, " (too few shapes to cross-validate");
    mz_text_addf(t, "; always %s: %.1f %%, %.4f; always %s: %.1f %%, %.4f)\n", a->study->candidate,
                 100 * a->always_candidate.accuracy, a->always_candidate.log_regret, a->study->baseline,
                 100 * a->always_baseline.accuracy, a->always_baseline.log_regret);
    describe_rules(a, t);
    return t->status;
}

// --- report.md -----------------------------------------------------------------------------------------------------
static void add_notes(const mz_study *s, mz_text *t) {
    if (s->others[0] != '\0')
        mz_text_addf(t, "- The file also has rows of %s; this report compares %s with %s only.\n", s->others,
                     s->candidate, s->baseline);
    if (s->energy_remade)
        mz_text_addf(t,
                     "- The file's energy_j is not the energy of a step: its median is %.2f times mean power times "
                     "step time. Energies below are mean power times step time.\n",
                     s->energy_ratio);
    if (s->noisy > 0)
        mz_text_addf(t,
                     "- The times of %zu row%s vary by more than %g %% (coefficient of variation), most in line %lld "
                     "(%.0f %%): more steps, or an idle machine, would narrow the intervals.\n",
                     s->noisy, plural(s->noisy), 100 * MZ_STUDY_NOISY, (long long)s->rows[s->noisiest].line,
                     100 * mz_row_cv(&s->rows[s->noisiest]));
    if (s->inconsistent > 0)
        mz_text_addf(t,
                     "- On %zu row%s tps differs by more than 1 %% from the tokens of a step over the mean of times.\n",
                     s->inconsistent, plural(s->inconsistent));
    if (s->n_unequal > 0)
        mz_text_addf(t, "- %zu pair%s ran on unequal rungs or shapes: listed below, never compared.\n", s->n_unequal,
                     plural(s->n_unequal));
    if (s->n_alone > 0)
        mz_text_addf(t, "- %zu row%s without a partner: listed below.\n", s->n_alone, plural(s->n_alone));
    if (s->n_failed > 0)
        mz_text_addf(t, "- %zu row%s fitted on no rung: listed below.\n", s->n_failed, plural(s->n_failed));
}

static bool any_known(const mz_analysis *a, bool energy) {
    for (size_t i = 0; i < a->n_curves; i++)
        for (size_t k = 0; k < a->curves[i].n; k++)
            if ((energy ? a->curves[i].points[k].energy.n : a->curves[i].points[k].memory.n) > 0)
                return true;
    return false;
}

static void add_saving(const mz_summary *s, mz_text *t) {
    if (s->n > 0)
        mz_text_addf(t, " | %.1f", s->median);
    else
        mz_text_addf(t, " |");
}

static void add_curves(const mz_analysis *a, mz_text *t) {
    mz_text_addf(t, "| width | tokens per step | pairs | speedup, median | 95 %% interval | quartiles | memory saved, "
                    "%% | energy saved, %% |\n|---|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < a->n_curves; i++)
        for (size_t k = 0; k < a->curves[i].n; k++) {
            const mz_curve_point *p = &a->curves[i].points[k];
            mz_text_addf(t, "| %lld | %lld | %zu | %.3f | ", (long long)a->curves[i].d_model, (long long)p->tokens,
                         p->speedup.n, p->speedup.median);
            if (!isnan(p->interval.low))
                mz_text_addf(t, "%.3f – %.3f", p->interval.low, p->interval.high);
            mz_text_addf(t, " | %.3f – %.3f", p->speedup.q1, p->speedup.q3);
            add_saving(&p->memory, t);
            add_saving(&p->energy, t);
            mz_text_addf(t, " |\n");
        }
}

static void add_score(mz_text *t, const char *name, const mz_score *s) {
    if (s->n == 0) {
        mz_text_addf(t, "| %s | | | |\n", name);
        return;
    }
    mz_text_addf(t, "| %s | %.1f %% | %.4f | %.1f %% |\n", name, 100 * s->accuracy, s->log_regret,
                 100 * (exp(s->log_regret) - 1));
}

static void add_scores(const mz_analysis *a, mz_text *t) {
    char name[96];
    mz_text_addf(t, "| rule | right | mean log-regret | time lost |\n|---|---|---|---|\n");
    snprintf(name, sizeof name, "per width, %d-fold cross-validated", a->folds);
    add_score(t, name, &a->rule_cv);
    add_score(t, "per width, on the pairs it was found on", &a->rule);
    snprintf(name, sizeof name, "always %s", a->study->candidate);
    add_score(t, name, &a->always_candidate);
    snprintf(name, sizeof name, "always %s", a->study->baseline);
    add_score(t, name, &a->always_baseline);
    add_score(t, "published: 600 tokens at width 512 and above, else 1,000", &a->published);
}

static void add_regression(const mz_effects *e, mz_text *t) {
    if (!e->fitted)
        return;
    mz_text_addf(t, "\n| ln(speedup) on | coefficient | standard error | t |\n|---|---|---|---|\n");
    for (size_t i = 0; i < e->fit.k; i++)
        mz_text_addf(t, "| %s | %.6g | %.3g | %.2f |\n", e->names[i], e->fit.beta[i], e->fit.error[i],
                     e->fit.beta[i] / e->fit.error[i]);
}

static void add_row_list(const mz_study *s, const char *title, const size_t *list, size_t n, mz_text *t) {
    char text[256];
    if (n == 0)
        return;
    mz_text_addf(t, "\n### %s\n", title);
    for (size_t i = 0; i < n && i < LISTED; i++) {
        const mz_study_row *r = &s->rows[list[i]];
        mz_text_addf(t, "- line %lld: %s, %s\n", (long long)r->line,
                     mz_key_text(&r->key, r->variant, text, sizeof text), r->prec);
    }
    if (n > LISTED)
        mz_text_addf(t, "- and %zu more\n", n - LISTED);
}

static void add_apart(const mz_study *s, mz_text *t) {
    char text[256];
    if (s->n_unequal + s->n_alone + s->n_failed == 0)
        return;
    mz_text_addf(t, "\n## Set apart\n");
    if (s->n_unequal > 0)
        mz_text_addf(t, "\n### Pairs on unequal rungs or shapes\n");
    for (size_t i = 0; i < s->n_unequal && i < LISTED; i++) {
        const mz_pair *p = &s->unequal[i];
        mz_text_addf(t, "- %s: %s on %s, %s on %s\n", mz_key_text(&p->key, p->variant, text, sizeof text), s->candidate,
                     p->adj_amp, s->baseline, p->adj_fp32);
    }
    if (s->n_unequal > LISTED)
        mz_text_addf(t, "- and %zu more\n", s->n_unequal - LISTED);
    add_row_list(s, "Rows without a partner", s->alone, s->n_alone, t);
    add_row_list(s, "Rows that fitted on no rung", s->failed, s->n_failed, t);
}

static void add_figures(const mz_analysis *a, mz_text *t) {
    mz_text_addf(t, "\n## Figures\n\n![Speedup against tokens per step](decision_boundary.png)\n");
    for (size_t i = 0; i < a->n_curves; i++)
        mz_text_addf(t, "\n![Speedup by batch and sequence at width %lld](contours_d%lld.png)\n",
                     (long long)a->curves[i].d_model, (long long)a->curves[i].d_model);
    if (any_known(a, false))
        mz_text_addf(t, "\n![Memory saved](memory_saving.png)\n");
    if (any_known(a, true))
        mz_text_addf(t, "\n![Energy saved](energy_saving.png)\n");
}

mezzo_status mz_analysis_save_report(const mz_analysis *a, const char *path) {
    const mz_study *s = a->study;
    const char *slash = strrchr(s->where, '/');
    mz_text t = {0};
    mz_text_addf(&t,
                 "# %s against %s\n\n`%s`: %zu exact-shape pairs. A pair is one request that ran in both precisions "
                 "with the same final shape on the same rung of the out-of-memory ladder; its speedup is %s's tokens "
                 "per second over %s's.\n\n",
                 s->candidate, s->baseline, slash != NULL ? slash + 1 : s->where, s->n_pairs, s->candidate,
                 s->baseline);
    add_notes(s, &t);
    mz_text_addf(&t, "\n## Can %s be faster here?\n\n", s->candidate);
    answer_faster(a, &t);
    mz_text_addf(&t, "\n## How do width, batch and length move the crossover?\n\n");
    answer_crossover(a, &t);
    add_regression(&a->effects, &t);
    mz_text_addf(&t, "\n## Which rule to follow\n\n");
    describe_rules(a, &t);
    mz_text_addf(
        &t, "\nRegret is the logarithm of the time that a choice takes over the time of the better precision.\n\n");
    add_scores(a, &t);
    mz_text_addf(&t, "\n## By width and tokens per step\n\n");
    add_curves(a, &t);
    add_figures(a, &t);
    add_apart(s, &t);
    mz_text_addf(&t,
                 "\n## How the numbers are made\n\nQuantiles interpolate between order statistics (type 7). The "
                 "interval of the overall median is a percentile bootstrap. Intervals of points and crossings are "
                 "percentiles of drawn medians: each pair of a point is drawn with the scatter of the pairs within "
                 "points (pooled over the points of a width, its variance drawn too) and with the standard errors of "
                 "its timed steps (Student's t). A crossing lies where the line between neighbouring medians, straight "
                 "in ln(tokens) and ln(speedup), meets 1; it is reported only between points whose intervals lie on "
                 "opposite sides of 1. %d draws with seed %llu. Folds keep all pairs of a shape together.\n",
                 a->draws, (unsigned long long)a->seed);
    return mz_text_save(&t, path);
}

// --- summary.json --------------------------------------------------------------------------------------------------
static json_t *summary_json(const mz_summary *s) {
    if (s->n == 0)
        return json_null();
    return json_pack("{s:I, s:o, s:o, s:o, s:o, s:o, s:o}", "n", (json_int_t)s->n, "min", mz_json_number(s->min), "q1",
                     mz_json_number(s->q1), "median", mz_json_number(s->median), "q3", mz_json_number(s->q3), "max",
                     mz_json_number(s->max), "mean", mz_json_number(s->mean));
}

static json_t *sign_json(const mz_sign_test *s) {
    return json_pack("{s:I, s:I, s:I, s:o, s:o}", "wins", (json_int_t)s->wins, "losses", (json_int_t)s->losses, "ties",
                     (json_int_t)s->ties, "p", mz_json_number(s->p), "log10_p", mz_json_number(s->log10_p));
}

static const char *noise_word(mz_noise noise) {
    return noise == MZ_NOISE_SHAPES ? "pairs and timed steps" : noise == MZ_NOISE_TIMING ? "timed steps" : "unknown";
}

static json_t *curve_json(const mz_curve *c) {
    json_t *points = json_array(), *crossings = json_array();
    for (size_t i = 0; i < c->n; i++) {
        const mz_curve_point *p = &c->points[i];
        json_array_append_new(points, json_pack("{s:I, s:o, s:o, s:o, s:o}", "tokens_per_step", (json_int_t)p->tokens,
                                                "speedup", summary_json(&p->speedup), "median_interval_95",
                                                mz_json_interval(p->interval.low, p->interval.high), "mem_saving_pct",
                                                summary_json(&p->memory), "energy_gain_pct", summary_json(&p->energy)));
    }
    for (int k = 0; k < c->n_crossings; k++) {
        const mz_crossing *x = &c->crossings[k];
        json_array_append_new(crossings, json_pack("{s:o, s:s, s:o}", "tokens_per_step", mz_json_number(x->tokens),
                                                   "direction", x->up ? "up" : "down", "interval_95",
                                                   mz_json_interval(x->interval.low, x->interval.high)));
    }
    return json_pack("{s:I, s:o, s:o, s:s, s:i, s:o, s:o}", "d_model", (json_int_t)c->d_model, "speedup",
                     summary_json(&c->speedup), "sign_test", sign_json(&c->sign), "intervals_from",
                     noise_word(c->noise), "crossings_within_noise", c->n_open, "crossings", crossings, "points",
                     points);
}

static json_t *effects_json(const mz_effects *e) {
    if (!e->fitted)
        return json_pack("{s:o, s:s}", "coefficients", json_null(), "note", e->note);
    json_t *list = json_object();
    for (size_t i = 0; i < e->fit.k; i++)
        json_object_set_new(list, e->names[i],
                            json_pack("{s:o, s:o}", "estimate", mz_json_number(e->fit.beta[i]), "standard_error",
                                      mz_json_number(e->fit.error[i])));
    return json_pack("{s:o, s:o, s:o, s:s}", "coefficients", list, "r_squared", mz_json_number(e->fit.r2),
                     "residual_deviation", mz_json_number(e->fit.sigma), "note", e->note);
}

static json_t *score_json(const mz_score *s) {
    return json_pack("{s:I, s:o, s:o}", "pairs", (json_int_t)s->n, "accuracy", mz_json_number(s->accuracy),
                     "mean_log_regret", mz_json_number(s->log_regret));
}

mezzo_status mz_analysis_save_summary(const mz_analysis *a, const char *path) {
    const mz_study *s = a->study;
    json_t *curves = json_array();
    for (size_t i = 0; i < a->n_curves; i++)
        json_array_append_new(curves, curve_json(&a->curves[i]));
    json_t *scores =
        json_pack("{s:o, s:o, s:o, s:o, s:o}", "per_width_cross_validated", score_json(&a->rule_cv), "per_width",
                  score_json(&a->rule), "always_candidate", score_json(&a->always_candidate), "always_baseline",
                  score_json(&a->always_baseline), "published_600_1000", score_json(&a->published));
    json_t *o =
        json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I}", "baseline",
                  s->baseline, "candidate", s->candidate, "pairs", (json_int_t)s->n_pairs, "unequal_pairs",
                  (json_int_t)s->n_unequal, "rows_without_partner", (json_int_t)s->n_alone, "rows_that_fitted_nowhere",
                  (json_int_t)s->n_failed, "rows_with_cv_above_10_percent", (json_int_t)s->noisy,
                  "energy_from_power_and_time", (int)s->energy_remade, "speedup", summary_json(&a->speedup),
                  "median_interval_95", mz_json_interval(a->median_interval.low, a->median_interval.high), "sign_test",
                  sign_json(&a->sign), "widths", curves, "regression", effects_json(&a->effects), "rules", scores,
                  "bootstrap_draws", (json_int_t)a->draws, "seed", (json_int_t)a->seed);
    if (o == NULL)
        return mz_fail(MEZZO_ERR_MEMORY,
                       "out of memory while writing %s, or a precision's name in the file is not UTF-8", path);
    return mz_json_save_owned(o, path);
}
