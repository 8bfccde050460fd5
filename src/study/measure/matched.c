// Computes the speedup at equal quality: how many of its steps the baseline needs for the loss that the candidate
// reaches.
//
// Over the window of the last third of N steps (from N/1.5 on) the baseline's loss is a straight line in ln(step), of
// slope b. Both runs of a seed see the same batches, so their difference d of losses there is free of the batches'
// noise. The baseline had the candidate's loss a factor e^(d/b) of the steps earlier; where that is further away than
// the window is wide, the function searches for an earlier window of the baseline's curve with that mean.
#include <math.h>

#include "models/model.h"
#include "study/measure/verify.h"
#include "io/json.h"

#define WINDOW 1.5

const char *mz_matched_word(mz_matched_verdict verdict) {
    static const char *const words[] = {"undecided", "faster", "slower", "no difference", "undecided"};
    return words[verdict];
}

bool mz_matched_decided(const mz_matched *m) {
    return m->verdict == MZ_MATCHED_FASTER || m->verdict == MZ_MATCHED_SLOWER || m->verdict == MZ_MATCHED_EQUAL;
}

static int64_t window_begin(int64_t steps) {
    return (int64_t)((double)steps / WINDOW);
}

// Returns the mean over the window that ends with step n; NaN: no loss is known there.
static double window_mean(const double *losses, int64_t n) {
    double sum = 0;
    int64_t count = 0;
    for (int64_t i = window_begin(n); i < n; i++)
        if (!isnan(losses[i])) {
            sum += losses[i];
            count++;
        }
    return count > 0 ? sum / (double)count : (double)NAN;
}

// Finds the slope of the loss by ln(step) over the last window; NaN where fewer than three losses are known.
static mezzo_status find_slope(const double *losses, int64_t steps, double *slope) {
    const int64_t from = window_begin(steps);
    double *x = mz_alloc(2 * (size_t)(steps - from), sizeof *x), *y = mz_alloc((size_t)(steps - from), sizeof *y);
    mezzo_status status = x != NULL && y != NULL ? MEZZO_OK : MEZZO_ERR_MEMORY;
    size_t n = 0;
    mz_ols fit;
    for (int64_t i = from; i < steps && status == MEZZO_OK; i++)
        if (!isnan(losses[i])) {
            x[2 * n] = 1;
            x[2 * n + 1] = log((double)(i + 1));
            y[n++] = losses[i];
        }
    *slope = (double)NAN;
    if (status == MEZZO_OK && n > 2) {
        status = mz_ols_fit(x, y, n, 2, &fit);
        *slope = fit.beta[1];
    }
    MZ_FREE(x, y);
    return status;
}

// Returns the mean difference over the last window, of steps whose losses both runs have.
static double find_difference(const mz_verify_pair *p, int64_t steps) {
    double sum = 0;
    int64_t count = 0;
    for (int64_t i = window_begin(steps); i < steps; i++) {
        const double d = p->run[1].losses[i] - p->run[0].losses[i];
        if (!isnan(d)) {
            sum += d;
            count++;
        }
    }
    return count > 0 ? sum / (double)count : (double)NAN;
}

// Finds the median over neighbouring turns of the two runs, so that other load during a few of them does not matter.
static mezzo_status find_raw(const mz_verify_result *r, const mz_verify_pair *p, double *raw) {
    const mz_verify_run *a = &p->run[0], *b = &p->run[1];
    const size_t n = a->n_turns < b->n_turns ? a->n_turns : b->n_turns;
    *raw = b->tokens_per_second / a->tokens_per_second;
    if (!r->in_turns || n < 3)
        return MEZZO_OK;
    double *ratios;
    MEZZO_TRY(MZ_NEW(ratios, n));
    for (size_t i = 0; i < n; i++)
        ratios[i] = a->turns[i] / b->turns[i];
    mz_sort(ratios, n);
    *raw = mz_quantile(ratios, n, 0.5);
    mz_free(ratios);
    return MEZZO_OK;
}

static double find_ratio(const mz_verify_pair *p, int64_t steps, double difference, double slope) {
    const double near = exp(difference / slope);
    if (!(near < 1 / WINDOW))
        return near; // near may be NaN, too
    const double wanted = window_mean(p->run[0].losses, steps) + difference;
    for (int64_t n = window_begin(steps); n > 1; n--) // goes backward along the baseline's curve
        if (window_mean(p->run[0].losses, n) >= wanted)
            return (double)n / (double)steps;
    return 1 / (double)steps;
}

// Returns the level of the test after n of `seeds` pairs; 0: there is no test.
static double level_of(const mz_verify_options *o, size_t n, bool last) {
    const size_t most = (size_t)o->seeds, first = most < 3 ? most : 3;
    double sum = 0;
    if (n < 2 || (n < first && !last))
        return 0;
    for (size_t k = first; k <= most; k++)
        sum += (double)(k * k);
    return 1 - (1 - o->level) * (double)(n * n) / sum;
}

static mz_matched_verdict verdict_of(const mz_verify_options *o, const mz_measured *m) {
    if (!(m->interval.low <= m->interval.high))
        return MZ_MATCHED_OPEN;
    if (m->interval.low > 1)
        return MZ_MATCHED_FASTER;
    if (m->interval.high < 1)
        return MZ_MATCHED_SLOWER;
    return m->interval.low > 1 - o->within && m->interval.high < 1 + o->within ? MZ_MATCHED_EQUAL : MZ_MATCHED_OPEN;
}

mezzo_status mz_matched_judge(const mz_verify_options *o, const mz_verify_result *r, bool spent, mz_matched *out) {
    double raw[MZ_VERIFY_SEEDS], ratio[MZ_VERIFY_SEEDS], speedup[MZ_VERIFY_SEEDS], difference[MZ_VERIFY_SEEDS];
    double slopes[MZ_VERIFY_SEEDS];
    const double level = level_of(o, r->n, spent);
    *out = (mz_matched){.look_level = level, .spent = spent};
    for (size_t i = 0; i < r->n; i++)
        MEZZO_TRY(find_slope(r->pairs[i].run[0].losses, r->steps, &slopes[i]));
    out->slope = mz_mean(slopes, r->n);
    const double doubt = r->n > 1 ? mz_deviation(slopes, r->n) / sqrt((double)r->n) : 0;
    for (size_t i = 0; i < r->n; i++) {
        const mz_verify_pair *p = &r->pairs[i];
        MEZZO_TRY(find_raw(r, p, &raw[i]));
        difference[i] = find_difference(p, r->steps);
        ratio[i] = find_ratio(p, r->steps, difference[i], out->slope);
        speedup[i] = raw[i] * ratio[i];
    }
    out->raw = mz_measure_ratio(raw, r->n, level);
    out->loss_difference = mz_measure_mean(difference, r->n, level);
    if (!(out->slope + 2 * doubt < 0)) {
        out->verdict = MZ_MATCHED_FLAT;
        out->steps_ratio = out->speedup = (mz_measured){(double)NAN, {(double)NAN, (double)NAN}};
        return MEZZO_OK;
    }
    out->steps_ratio = mz_measure_ratio(ratio, r->n, level);
    out->speedup = mz_measure_ratio(speedup, r->n, level);
    if (r->emulate != MEZZO_BLOCKS_NONE) { // an emulation's times mean nothing, so only steps are judged
        out->raw = (mz_measured){(double)NAN, {(double)NAN, (double)NAN}};
        out->speedup = out->steps_ratio;
    }
    out->verdict = level > 0 ? verdict_of(o, &out->speedup) : MZ_MATCHED_OPEN;
    return MEZZO_OK;
}

// --- reports -------------------------------------------------------------------------------------------------------
static const char *candidate_name(const mz_verify_result *r) {
    return r->emulate != MEZZO_BLOCKS_NONE ? mezzo_blocks_name(r->emulate) : mezzo_precision_name(r->precision);
}

static void add_emulated(const mz_verify_result *r, mz_text *t) {
    const mz_measured *m = &r->matched.steps_ratio;
    const char *a = mezzo_precision_name(r->baseline), *b = candidate_name(r);
    mz_text_addf(t, "%s (emulated) learns %s per step than %s: it pays from a raw speedup of %.3f on", b,
                 r->matched.verdict == MZ_MATCHED_FASTER ? "more" : "less", a, 1 / m->value);
    if (m->interval.high > m->interval.low)
        mz_text_addf(t, " (%.3f to %.3f)", 1 / m->interval.high, 1 / m->interval.low);
}

static void add_row(const char *what, const mz_measured *m, int digits, size_t n, mz_text *t) {
    if (isnan(m->value)) {
        mz_text_addf(t, "%-28s -\n", what);
        return;
    }
    mz_text_addf(t, "%-28s %.*f", what, digits, m->value);
    if (n > 1)
        mz_text_addf(t, " (%.*f to %.*f)", digits, m->interval.low, digits, m->interval.high);
    mz_text_addf(t, "\n");
}

static void add_verdict(const mz_verify_options *o, const mz_verify_result *r, mz_text *t) {
    const mz_matched *m = &r->matched;
    const char *a = mezzo_precision_name(r->baseline), *b = candidate_name(r);
    switch (m->verdict) {
    case MZ_MATCHED_FASTER:
    case MZ_MATCHED_SLOWER:
        if (r->emulate != MEZZO_BLOCKS_NONE)
            add_emulated(r, t);
        else
            mz_text_addf(t, "At equal quality %s is %s than %s", b, mz_matched_word(m->verdict), a);
        break;
    case MZ_MATCHED_EQUAL:
        mz_text_addf(t, "At equal quality %s and %s differ by less than %g %%", b, a, 100 * o->within);
        break;
    case MZ_MATCHED_FLAT:
        mz_text_addf(
            t,
            "No verdict: %s's loss no longer falls over the last third of the steps, so that no number of steps stands "
            "for a difference of losses; compare the validation losses, or train with another number of steps",
            a);
        break;
    case MZ_MATCHED_OPEN:
        mz_text_addf(t, "No verdict: the difference is smaller than the noise");
        if (r->n < 2)
            mz_text_addf(t, ", which one seed does not show");
        break;
    }
    mz_text_addf(t, " (%zu of at most %d seeds%s).\n", r->n, o->seeds,
                 !mz_matched_decided(m) && r->n < (size_t)o->seeds ? "; the time is spent" : "");
    if (r->n > 1)
        mz_text_addf(t, "Intervals: %.4g %%, Student's t over the seeds; %g %% over all %s.\n", 100 * m->look_level,
                     100 * o->level, "looks at growing numbers of seeds");
}

void mz_matched_text(const mz_verify_options *o, const mz_verify_result *r, mz_text *t) {
    const mz_matched *m = &r->matched;
    const char *a = mezzo_precision_name(r->baseline), *b = candidate_name(r);
    mz_text_addf(t, "%s against %s: %s, %.2f M parameters, %lld steps of %lld × %lld; %s\n", b, a,
                 mz_model_config_name(&r->model), r->params_m, (long long)r->steps, (long long)r->grad_accum,
                 (long long)r->batch, r->device);
    mz_text_addf(t, "data: %s; %s\n\n", r->data,
                 r->same ? "the same first weights and batches in both runs of each seed"
                         : "NOT the same first weights and batches: the runs cannot be compared");
    if (r->emulate == MEZZO_BLOCKS_NONE)
        add_row("raw speedup", &m->raw, 3, r->n, t);
    add_row("training loss difference", &m->loss_difference, 5, r->n, t);
    add_row("steps for the same loss", &m->steps_ratio, 4, r->n, t);
    if (r->emulate == MEZZO_BLOCKS_NONE)
        add_row("speedup at equal quality", &m->speedup, 3, r->n, t);
    mz_text_addf(t, "\n");
    add_verdict(o, r, t);
}

static json_t *losses_json(const double *losses, int64_t steps) {
    json_t *list = json_array();
    for (int64_t i = 0; i < steps; i++)
        json_array_append_new(list, mz_json_number(losses[i]));
    return list;
}

static json_t *seeds_json(const mz_verify_result *r) {
    json_t *seeds = json_array();
    for (size_t i = 0; i < r->n; i++) {
        const mz_verify_run *a = &r->pairs[i].run[0], *b = &r->pairs[i].run[1];
        json_array_append_new(
            seeds,
            json_pack("{s:I, s:o, s:o, s:o, s:o, s:o, s:o}", "seed", (json_int_t)r->pairs[i].seed,
                      "baseline_tokens_per_second", mz_json_number(a->tokens_per_second), "candidate_tokens_per_second",
                      mz_json_number(b->tokens_per_second), "baseline_val_loss", mz_json_number(a->val_loss),
                      "candidate_val_loss", mz_json_number(b->val_loss), "baseline_losses",
                      losses_json(a->losses, r->steps), "candidate_losses", losses_json(b->losses, r->steps)));
    }
    return seeds;
}

json_t *mz_matched_json(const mz_verify_options *o, const mz_verify_result *r) {
    const mz_matched *m = &r->matched;
    const size_t n = r->n;
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:s, s:s, s:o, s:I, s:I, s:i, s:b, s:o}",
        "baseline", mezzo_precision_name(r->baseline), "candidate", mezzo_precision_name(r->precision), "emulate",
        mezzo_blocks_name(r->emulate), "verdict", mz_matched_word(m->verdict), "decided", (int)mz_matched_decided(m),
        "raw_speedup", mz_measured_json(&m->raw, n), "loss_difference", mz_measured_json(&m->loss_difference, n),
        "steps_for_the_same_loss", mz_measured_json(&m->steps_ratio, n), "speedup_at_equal_quality",
        mz_measured_json(&m->speedup, n), "loss_slope_by_ln_step", mz_json_number(m->slope), "interval_level",
        mz_json_number(m->look_level), "level_over_all_looks", mz_json_number(o->level), "within",
        mz_json_number(o->within), "model", mz_model_config_name(&r->model), "device", r->device, "params_m",
        mz_json_number(r->params_m), "steps", (json_int_t)r->steps, "seeds_run", (json_int_t)n, "seeds_at_most",
        o->seeds, "same_data_and_weights", (int)r->same, "seeds", seeds_json(r));
}
