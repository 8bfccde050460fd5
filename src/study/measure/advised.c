#include "study/measure/advised.h"

#include <math.h>

#include "models/model.h"
#include "train/config.h"
#include "train/trial.h"
#include "io/json.h"

#define SEEDS         8
#define WARMUP_SHARE  10   // one in this many steps
#define EVAL_BATCHES  8    // batches of a validation
#define ENERGY        0.6  // seconds of steps between two readings
#define CHANGE_STEPS  9    // steps of each precision
#define CHANGE_SECOND 4.0  // a changed shape whose steps in both precisions take longer is not timed
#define MEMORY_WORTH  0.02 // where speeds are within this of each other, less memory decides

void mz_advised_free(mz_advised *a) {
    if (a->compared != NULL)
        mz_verify_free(a->compared);
    mz_free(a->compared);
    a->compared = NULL;
}

// --- choosing ------------------------------------------------------------------------------------------------------
// Reads the model as a run on this data has it: the data decides the vocabulary.
static mezzo_status read_model(mezzo_device *device, const mz_advised_options *o, mezzo_model_config *model) {
    mz_trial *trial;
    MEZZO_TRY(mezzo_config_set(o->config, "amp.precision", "fp32", "advise"));
    MEZZO_TRY(mz_trial_open(device, o->config, o->stop, &trial));
    *model = *mz_trial_describe(trial).model;
    mz_trial_close(trial);
    return MEZZO_OK;
}

static mezzo_status session_of(const mezzo_model_config *model, const mz_run_config *c, int64_t batch,
                               mz_session_options *out) {
    MEZZO_TRY(mz_session_usual(model, batch, out));
    out->step.micro_batches = c->grad_accum;
    out->program = c->program;
    out->seed = c->seed;
    return MEZZO_OK;
}

static const mz_candidate *candidate_of(const mz_choice *choice, mezzo_precision precision) {
    for (int i = 0; i < choice->n; i++)
        if (choice->candidates[i].precision == precision)
            return &choice->candidates[i];
    return NULL;
}

// Returns the fastest precision that passed, other than fp32; fp32 where there is none.
static mezzo_precision rival_of(const mz_choice *choice) {
    if (choice->precision != MEZZO_PRECISION_FP32)
        return choice->precision;
    const mz_candidate *best = NULL;
    for (int i = 0; i < choice->n; i++) {
        const mz_candidate *c = &choice->candidates[i];
        if (c->precision != MEZZO_PRECISION_FP32 && c->passed && c->timed &&
            (best == NULL || c->step_seconds < best->step_seconds))
            best = c;
    }
    return best != NULL ? best->precision : MEZZO_PRECISION_FP32;
}

static mezzo_status choose(mezzo_device *device, const mz_advised_options *o, const mezzo_model_config *model,
                           const mz_run_config *c, mz_advised *out) {
    mz_choose_options choose = mz_choose_defaults();
    MEZZO_TRY(session_of(model, c, c->batch_size, &choose.session));
    choose.precisions = o->precisions;
    choose.n_precisions = o->n_precisions;
    choose.stop = o->stop;
    choose.tell = o->tell_candidate;
    choose.user = o->user;
    MEZZO_TRY(mz_choose(device, &choose, &out->choice));
    out->baseline = MEZZO_PRECISION_FP32;
    out->candidate = rival_of(&out->choice);
    return MEZZO_OK;
}

// --- timing ---------------------------------------------------------------------------------------------------------
// Times steps of the two in turn, so that other load affects neighbours alike. The first three prepare and warm up.
static mezzo_status time_in_turn(mz_rig *rigs[2], const mz_advised_options *o, double ratios[CHANGE_STEPS]) {
    const mz_repeats once = {.iters = 1, .stop = o->stop};
    double seconds[2];
    for (int k = -3, n; k < CHANGE_STEPS; k++) {
        for (int i = 0; i < 2; i++)
            MEZZO_TRY(mz_rig_time(rigs[i], MZ_TIMED_STEP, &once, &seconds[i], &n));
        if (k == -2 && seconds[0] + seconds[1] > CHANGE_SECOND)
            return mz_fail(MEZZO_ERR_UNSUPPORTED, "two steps take %.1f s: not timed", seconds[0] + seconds[1]);
        if (k >= 0)
            ratios[k] = seconds[0] / seconds[1];
    }
    return MEZZO_OK;
}

static mezzo_status time_change(mezzo_device *device, mz_session_options *session, const mz_advised_options *o,
                                const mz_advised *a, mz_advised_change *change) {
    double ratios[CHANGE_STEPS];
    mz_rig *rigs[2] = {NULL, NULL};
    mezzo_status status = MEZZO_OK;
    change->speedup = (mz_measured){(double)NAN, {(double)NAN, (double)NAN}};
    for (int i = 0; i < 2 && status == MEZZO_OK; i++) {
        mz_session_set_precision(session, i == 0 ? a->baseline : a->candidate);
        status = mz_rig_create(device, session, &rigs[i]);
    }
    if (status == MEZZO_OK)
        status = time_in_turn(rigs, o, ratios);
    if (status == MEZZO_OK)
        change->speedup = mz_measure_ratio(ratios, CHANGE_STEPS, o->level);
    for (int i = 0; i < 2; i++)
        mz_rig_free(rigs[i]);
    if (status != MEZZO_ERR_MEMORY && status != MEZZO_ERR_UNSUPPORTED && status != MEZZO_ERR_INVALID)
        return status;
    snprintf(change->note, sizeof change->note, "%s", mezzo_error_message());
    return MEZZO_OK;
}

static mezzo_status time_changes(mezzo_device *device, const mz_advised_options *o, const mezzo_model_config *model,
                                 const mz_run_config *c, mz_advised *out) {
    for (int i = 0; i < 4; i++) {
        mz_session_options session;
        mezzo_model_config changed = *model;
        const bool doubles = i % 2 == 1, width = i >= 2;
        int64_t batch = c->batch_size;
        int64_t *what = width ? &changed.d_model : &batch;
        if ((!doubles && *what % 2 != 0) || *what == 0) // a graph file has no width that can change
            continue;
        *what = doubles ? *what * 2 : *what / 2;
        if (width)
            changed.d_ff = doubles ? changed.d_ff * 2 : changed.d_ff / 2;
        mz_advised_change *change = &out->changes[out->n_changes++];
        *change = (mz_advised_change){.what = width ? "width" : "batch", .value = *what};
        MEZZO_TRY(session_of(&changed, c, batch, &session));
        MEZZO_TRY(time_change(device, &session, o, out, change));
    }
    return MEZZO_OK;
}

static mezzo_status measure_energy(mezzo_device *device, const mezzo_model_config *model, const mz_run_config *c,
                                   mz_advised *out) {
    for (int i = 0; i < 2; i++) {
        const mezzo_precision precision = i == 0 ? out->baseline : out->candidate;
        const mz_candidate *timed = candidate_of(&out->choice, precision);
        mz_session_options session;
        mz_rig *rig;
        out->energy[i] = (mz_energy){(double)NAN, (double)NAN};
        if (timed == NULL || !timed->timed)
            continue;
        MEZZO_TRY(session_of(model, c, c->batch_size, &session));
        mz_session_set_precision(&session, precision);
        MEZZO_TRY(mz_rig_create(device, &session, &rig));
        mezzo_status status = mz_rig_run_steps(rig, 2);
        if (status == MEZZO_OK)
            status = mz_rig_energy(rig, ENERGY, timed->step_seconds, &out->energy[i]);
        mz_rig_free(rig);
        MEZZO_TRY(status);
    }
    return MEZZO_OK;
}

// --- comparing -----------------------------------------------------------------------------------------------------
// Returns how many steps let three pairs of runs end in time. A validation batch takes a third of a step.
static int64_t steps_that_fit(const mz_advised_options *o, const mz_advised *a) {
    double both = 0;
    const mezzo_precision precisions[2] = {a->baseline, a->candidate};
    for (int i = 0; i < 2; i++)
        both += candidate_of(&a->choice, precisions[i])->step_seconds;
    const double fit = 60 * o->minutes / 3 / both - EVAL_BATCHES / 3.0;
    return fit < MZ_ADVISED_STEPS ? MZ_ADVISED_STEPS : fit < (double)o->steps ? (int64_t)fit : o->steps;
}

static mezzo_status compare(const mz_advised_options *o, mz_advised *out) {
    const int64_t steps = steps_that_fit(o, out);
    MEZZO_TRY(mz_config_set_int(o->config, "train.steps", steps, "advise"));
    MEZZO_TRY(mz_config_set_int(o->config, "schedule.warmup", steps / WARMUP_SHARE, "advise"));
    MEZZO_TRY(mz_config_set_int(o->config, "train.eval_iters", EVAL_BATCHES, "advise"));
    MEZZO_TRY(mezzo_config_set(o->config, "amp.precision", mezzo_precision_name(out->candidate), "advise"));
    out->as = (mz_verify_options){.config = o->config,
                                  .seeds = SEEDS,
                                  .level = o->level,
                                  .stop = o->stop,
                                  .matched = true,
                                  .baseline = out->baseline,
                                  .within = o->within,
                                  .minutes = o->minutes};
    MEZZO_TRY(MZ_NEW(out->compared, 1));
    MEZZO_TRY(mz_verify(&out->as, o->tell, o->user, out->compared));
    return out->compared->same ? MEZZO_OK
                               : mz_fail(MEZZO_ERR_NUMERIC, "the runs of a seed did not see the same weights and data");
}

static void conclude(mz_advised *a) {
    const char *base = mezzo_precision_name(a->baseline), *other = mezzo_precision_name(a->candidate);
    const double saved = a->memory[0] > 0 ? 1 - (double)a->memory[1] / (double)a->memory[0] : 0;
    a->decided = true;
    a->precision = a->baseline;
    if (a->compared == NULL) {
        snprintf(a->verdict, sizeof a->verdict, "%.600s", a->choice.reason);
        return;
    }
    const mz_matched *m = &a->compared->matched;
    switch (m->verdict) {
    case MZ_MATCHED_FASTER:
        a->precision = a->candidate;
        snprintf(a->verdict, sizeof a->verdict, "%s: at equal quality it is %.2f times as fast as %s", other,
                 m->speedup.value, base);
        break;
    case MZ_MATCHED_SLOWER:
        snprintf(a->verdict, sizeof a->verdict, "%s: at equal quality %s takes %.2f times as long", base, other,
                 1 / m->speedup.value);
        break;
    case MZ_MATCHED_EQUAL:
        a->precision = saved > MEMORY_WORTH ? a->candidate : a->baseline;
        snprintf(a->verdict, sizeof a->verdict, "%s: at equal quality %s and %s are equally fast, and %s",
                 mezzo_precision_name(a->precision), base, other,
                 saved > MEMORY_WORTH ? "it takes less memory" : "the wider one is safer");
        break;
    case MZ_MATCHED_OPEN:
    case MZ_MATCHED_FLAT:
        a->decided = false;
        snprintf(a->verdict, sizeof a->verdict, "no verdict: %s",
                 m->verdict == MZ_MATCHED_OPEN
                     ? "the noise is larger than the difference; an idle machine, or more steps and minutes (--steps, "
                       "--minutes), would narrow it"
                     : "the loss did not fall enough to compare qualities; use another learning rate (--lr) or a "
                       "larger batch");
        break;
    }
}

static mezzo_status plan_memory(mezzo_device *device, const mezzo_model_config *model, const mz_run_config *c,
                                mz_advised *out) {
    for (int i = 0; i < 2; i++) {
        mz_session_options session;
        MEZZO_TRY(session_of(model, c, c->batch_size, &session));
        mz_session_set_precision(&session, i == 0 ? out->baseline : out->candidate);
        MEZZO_TRY(mz_session_bytes(device, &session, &out->memory[i]));
    }
    return MEZZO_OK;
}

static mezzo_status measure_all(mezzo_device *device, const mz_advised_options *o, const mz_run_config *c,
                                mz_advised *out) {
    mezzo_model_config model;
    MEZZO_TRY(read_model(device, o, &model));
    MEZZO_TRY(choose(device, o, &model, c, out));
    MEZZO_TRY(plan_memory(device, &model, c, out));
    MEZZO_TRY(measure_energy(device, &model, c, out));
    return out->candidate != out->baseline ? time_changes(device, o, &model, c, out) : MEZZO_OK;
}

mezzo_status mz_advised_find(const mz_advised_options *o, mz_advised *out) {
    mz_run_config c;
    mezzo_device *device;
    *out = (mz_advised){0};
    MEZZO_TRY(mz_config_set_int(o->config, "train.steps", o->steps, "advise"));
    MEZZO_TRY(mezzo_config_set(o->config, "train.sample_every", "-1", "advise"));
    MEZZO_TRY(mz_run_config_read(o->config, &c));
    MEZZO_TRY(mezzo_device_open(c.device, c.threads, &device));
    mezzo_status status = measure_all(device, o, &c, out);
    mezzo_device_close(device);
    if (status == MEZZO_OK && out->candidate != out->baseline)
        status = compare(o, out);
    if (status == MEZZO_OK)
        conclude(out);
    return status;
}

// --- the page ------------------------------------------------------------------------------------------------------
#define MIB (1.0 / (1 << 20))

static json_t *measured(const mz_measured *m) {
    return json_pack("{s:o, s:o, s:o}", "value", mz_json_number(m->value), "low", mz_json_number(m->interval.low),
                     "high", mz_json_number(m->interval.high));
}

// Describes whether another batch or width could give the other answer; it writes nothing where there is no answer.
static const char *describe_turn(const mz_advised *a, const mz_advised_change *c) {
    const mz_interval x = c->speedup.interval;
    if (!a->decided || isnan(c->speedup.value))
        return "";
    if (x.low <= 1 && 1 <= x.high)
        return "could turn it";
    return (x.low > 1) != (a->precision == a->candidate) ? "would turn it" : "";
}

static json_t *changes_json(const mz_advised *a) {
    json_t *list = json_array();
    for (int i = 0; i < a->n_changes; i++) {
        const mz_advised_change *c = &a->changes[i];
        json_array_append_new(list, json_pack("{s:s, s:I, s:o, s:o, s:o, s:s}", "changed", c->what, "to",
                                              (json_int_t)c->value, "raw_speedup", mz_json_number(c->speedup.value),
                                              "low", mz_json_number(c->speedup.interval.low), "high",
                                              mz_json_number(c->speedup.interval.high), "note",
                                              c->note[0] != '\0' ? c->note : describe_turn(a, c)));
    }
    return list;
}

static json_t *basis_json(const mz_advised *a) {
    const mz_verify_result *r = a->compared;
    if (r == NULL)
        return json_pack("{s:s}", "compared", "nothing: no other precision was timed here");
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:o, s:I, s:I, s:I, s:o, s:o}", "baseline",
                     mezzo_precision_name(a->baseline), "candidate", mezzo_precision_name(a->candidate), "model",
                     mz_model_config_name(&r->model), "loss",
                     r->model.loss[0] != '\0' ? r->model.loss : "the model's own", "data", r->data, "device", r->device,
                     "params_m", mz_json_number(r->params_m), "batch", (json_int_t)(r->batch * r->grad_accum), "steps",
                     (json_int_t)r->steps, "seeds", (json_int_t)r->n, "interval_level",
                     mz_json_number(r->matched.look_level), "level_over_all_looks", mz_json_number(a->as.level));
}

json_t *mz_advised_json(const mz_advised *a) {
    const mz_verify_result *r = a->compared;
    json_t *o = json_object();
    json_object_set_new(o, "precision", a->decided ? json_string(mezzo_precision_name(a->precision)) : json_null());
    json_object_set_new(o, "verdict", json_string(a->verdict));
    json_object_set_new(o, "speed",
                        r == NULL ? json_null()
                                  : json_pack("{s:o, s:o, s:o}", "speedup_at_equal_quality",
                                              measured(&r->matched.speedup), "raw_speedup", measured(&r->matched.raw),
                                              "steps_for_the_same_loss", measured(&r->matched.steps_ratio)));
    json_object_set_new(o, "memory",
                        json_pack("{s:o, s:o}", "baseline_mib", mz_json_number((double)a->memory[0] * MIB),
                                  "candidate_mib", mz_json_number((double)a->memory[1] * MIB)));
    json_object_set_new(o, "loss_difference",
                        r == NULL ? json_null()
                                  : json_pack("{s:o, s:o}", "validation", measured(&r->loss_difference), "training",
                                              measured(&r->matched.loss_difference)));
    json_object_set_new(o, "energy",
                        json_pack("{s:o, s:o}", "baseline_joules_a_step", mz_json_number(a->energy[0].joules),
                                  "candidate_joules_a_step", mz_json_number(a->energy[1].joules)));
    json_object_set_new(o, "what_would_change_it", changes_json(a));
    if (json_object_set_new(o, "measured", basis_json(a)) != 0) {
        json_decref(o);
        return NULL;
    }
    return o;
}

static void add_measured(mz_text *t, const char *what, const mz_measured *m, int digits, const char *after) {
    if (isnan(m->value))
        mz_text_addf(t, "%-12s -%s\n", what, after);
    else
        mz_text_addf(t, m->interval.high < 1e6 ? "%-12s %.*f (%.*f to %.*f)%s\n" : "%-12s %.*f (%.*f to %.*g)%s\n",
                     what, digits, m->value, digits, m->interval.low, digits, m->interval.high, after);
}

static void add_changes(const mz_advised *a, mz_text *t) {
    for (int i = 0; i < a->n_changes; i++) {
        const mz_advised_change *c = &a->changes[i];
        char name[48];
        snprintf(name, sizeof name, "  %s %lld", c->what, (long long)c->value);
        if (isnan(c->speedup.value)) {
            mz_text_addf(t, "%-16s not timed: %.50s\n", name, c->note);
            continue;
        }
        const mz_interval x = c->speedup.interval;
        const char *turn = describe_turn(a, c);
        mz_text_addf(t, "%-16s raw speedup %.2f (%.2f to %.2f)%s%s\n", name, c->speedup.value, x.low, x.high,
                     turn[0] != '\0' ? ": " : "", turn);
    }
}

void mz_advised_text(const mz_advised *a, mz_text *t) {
    const mz_verify_result *r = a->compared;
    mz_text_addf(t, "%-12s %s\n", "precision", a->decided ? mezzo_precision_name(a->precision) : "undecided");
    if (r != NULL) {
        add_measured(t, "speed", &r->matched.speedup, 3, " at equal quality");
        add_measured(t, "", &r->matched.raw, 3, " raw");
    }
    mz_text_addf(t, "%-12s %.0f MiB", "memory", (double)a->memory[1] * MIB);
    if (r != NULL)
        mz_text_addf(t, ", %s %.0f MiB", mezzo_precision_name(a->baseline), (double)a->memory[0] * MIB);
    mz_text_addf(t, "\n");
    if (r != NULL)
        add_measured(t, "loss", &r->loss_difference, 5, " more on validation data");
    if (isnan(a->energy[1].joules))
        mz_text_addf(t, "%-12s not known: no counter can be read here\n", "energy");
    else
        mz_text_addf(t, "%-12s %.3g J a step, %s %.3g J\n", "energy", a->energy[1].joules,
                     mezzo_precision_name(a->baseline), a->energy[0].joules);
    if (a->n_changes > 0)
        mz_text_addf(t, "what would change it\n");
    add_changes(a, t);
    if (r != NULL)
        mz_text_addf(t, "\n%s against %s: %zu seeds of %lld steps\nintervals of %.4g %% (%g %% over all looks)\n%s\n",
                     mezzo_precision_name(a->candidate), mezzo_precision_name(a->baseline), r->n, (long long)r->steps,
                     100 * r->matched.look_level, 100 * a->as.level, r->device);
}
