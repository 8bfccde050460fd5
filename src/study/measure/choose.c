#include "study/measure/choose.h"

#include "io/fields.h"

#include <math.h>

#include "backend/backend.h"
#include "base/precision.h"
#include "base/scope.h"
#include "study/analyse/decide.h"
#include "study/analyse/stats.h"

#define GUARD_STEPS 3   // 2 where a step takes longer than SLOW seconds
#define SLOW        2.0 // in seconds
#define LOSS_WITHIN                                                                                                    \
    0.01 // of the widest candidate's loss, relatively: BF16's rounding changes a first loss by less than 0.1 %
// The share of the widest candidate's gradient, in the 2-norm, by which another one may differ. It lies between the
// errors of FP8 and of 4-bit formats (bench/results/fp8-gradients-h200.csv).
#define GRADIENT_WITHIN 0.25

mz_choose_options mz_choose_defaults(void) {
    return (mz_choose_options){.seconds = 1, .iters = 10, .gradient_within = GRADIENT_WITHIN};
}

// Holds the results of the first candidate that passed, with which the others are compared.
typedef struct beside {
    int guard_steps; // the first candidate sets it for all
    bool gradients;  // an 8-bit candidate is among them
    double loss;     // NaN: none yet
    mz_gradient gradient;
} beside;

static bool narrow(mezzo_precision precision) {
    return mz_precision(precision)->scaling != MZ_SCALING_NONE;
}

static void note(mz_candidate *c, const char *text) {
    snprintf(c->note, sizeof c->note, "%s", text);
}

// --- candidates ----------------------------------------------------------------------------------------------------
static bool listed(const mz_choice *choice, mezzo_precision p) {
    for (int i = 0; i < choice->n; i++)
        if (choice->candidates[i].precision == p)
            return true;
    return false;
}

bool mz_choose_usual(const mezzo_device_info *info, mezzo_precision precision, const char **note) {
    *note = "";
    if (precision == MEZZO_PRECISION_FP32)
        return true;
    if (!narrow(precision))
        return info->native[precision] && mz_precision_is_everywhere(precision);
    if (info->native[precision] && !info->faster[precision] && precision == MEZZO_PRECISION_FP8)
        *note = "emulated: 8-bit storage, bf16 arithmetic";
    return info->native[precision] && info->faster[precision];
}

static mz_candidate candidate_of(mezzo_precision precision, bool native) {
    return (mz_candidate){.precision = precision,
                          .native = native,
                          .step_seconds = (double)NAN,
                          .tokens_per_second = (double)NAN,
                          .loss = (double)NAN,
                          .gradient_error = (double)NAN};
}

// Returns whether a candidate is to be tried; one that is only reported has a note already.
static bool tried(const mz_candidate *c) {
    return c->note[0] == '\0';
}

static bool wanted(const mz_choose_options *o, const mezzo_device_info *info, mezzo_precision p, const char **said) {
    const bool usual = mz_choose_usual(info, p, said);
    if (o->precisions == NULL)
        return usual;
    *said = "";
    for (int k = 0; k < o->n_precisions; k++)
        if (o->precisions[k] == p)
            return true;
    return false;
}

static mezzo_status list_candidates(mezzo_device *device, const mz_choose_options *o, mz_choice *out) {
    mezzo_device_info info;
    MEZZO_TRY(mezzo_device_describe(device, &info));
    for (int p = 0; p < MEZZO_PRECISION_AUTO; p++) { // precisions.def goes from the widest to the narrowest
        mezzo_precision asked = (mezzo_precision)p, effective;
        const char *said;
        const bool listed_here = wanted(o, &info, asked, &said);
        if (!listed_here && said[0] == '\0')
            continue;
        MEZZO_TRY(mezzo_precision_resolve(device, asked, &effective, NULL, 0));
        if (listed(out, effective))
            continue;
        out->candidates[out->n] = candidate_of(effective, listed_here && info.native[effective]);
        note(&out->candidates[out->n++], said);
    }
    if (out->n == 0)
        return mz_fail(MEZZO_ERR_INVALID, "there is no precision to choose from");
    return MEZZO_OK;
}

// --- one candidate -------------------------------------------------------------------------------------------------
static mezzo_status first_steps(mz_rig *rig, const mz_choose_options *o, int *guard_steps, double *last) {
    double seconds[GUARD_STEPS];
    int n;
    const mz_repeats one = {.iters = 1, .stop = o->stop};
    MEZZO_TRY(mz_rig_time(rig, MZ_TIMED_STEP, &one, seconds, &n));
    *last = seconds[0];
    if (*guard_steps == 0)
        *guard_steps = seconds[0] > SLOW ? 1 : GUARD_STEPS;
    if (*guard_steps == 1)
        return MEZZO_OK;
    const mz_repeats more = {.iters = *guard_steps - 1, .stop = o->stop};
    MEZZO_TRY(mz_rig_time(rig, MZ_TIMED_STEP, &more, seconds, &n));
    *last = seconds[n - 1];
    return MEZZO_OK;
}

bool mz_choose_guard(mz_candidate *c, const mz_choose_options *o, const mz_rig_state *state, double reference) {
    char line[256];
    const bool loss = isnan(reference) || fabs(state->loss - reference) <= LOSS_WITHIN * fabs(reference);
    const bool gradient = !narrow(c->precision) || isnan(c->gradient_error) || c->gradient_error <= o->gradient_within;
    c->loss = state->loss;
    c->passed = state->finite && loss && gradient;
    if (!state->finite)
        note(c, "a loss or gradient of the first steps was not finite");
    else if (!loss) {
        snprintf(line, sizeof line, "the loss of the first steps is %.5g, not %.5g", state->loss, reference);
        note(c, line);
    } else if (!gradient) {
        snprintf(line, sizeof line,
                 "its first gradient differs from a wider format's by %.3g (relative), more than %.3g",
                 c->gradient_error, o->gradient_within);
        note(c, line);
    }
    return c->passed;
}

// Compares the first gradient with the reference's, or keeps it as the reference. It runs before any step, where the
// weights are the same.
static mezzo_status compare_gradient(mz_rig *rig, beside *r, mz_candidate *c) {
    mz_gradient here = {0};
    if (!r->gradients)
        return MEZZO_OK;
    mezzo_status status = mz_rig_gradient(rig, isnan(r->loss) ? &r->gradient : &here);
    if (status == MEZZO_OK && !isnan(r->loss))
        c->gradient_error = mz_gradient_error(&here, &r->gradient);
    mz_gradient_free(&here);
    return status;
}

static mezzo_status time_rig(mz_rig *rig, const mz_choose_options *o, beside *ref, mz_candidate *c) {
    double seconds[MZ_REPEATS_MAX], last = 0;
    mz_rig_state state;
    int n;
    MEZZO_TRY(compare_gradient(rig, ref, c));
    MEZZO_TRY(first_steps(rig, o, &ref->guard_steps, &last));
    MEZZO_TRY(mz_rig_look(rig, &state));
    if (!mz_choose_guard(c, o, &state, ref->loss))
        return MEZZO_OK;
    double fit = last > 0 ? o->seconds / last : o->iters;
    const mz_repeats r = {.iters = fit < 1 ? 1 : fit < o->iters ? (int)fit : o->iters, .stop = o->stop};
    if (ref->guard_steps > 1) {
        MEZZO_TRY(mz_rig_time(rig, MZ_TIMED_STEP, &r, seconds, &n));
    } else {
        seconds[0] = last;
        n = 1;
    }
    mz_sort(seconds, (size_t)n);
    c->timed = true;
    c->step_seconds = mz_quantile(seconds, (size_t)n, 0.5);
    c->tokens_per_second = (double)mz_session_items(&o->session) / c->step_seconds;
    return MEZZO_OK;
}

static void does_not_fit(mz_candidate *c, size_t room) {
    char line[128];
    snprintf(line, sizeof line, "does not fit: needs %.0f MiB, %.0f MiB are free", (double)c->memory / (1 << 20),
             (double)room / (1 << 20));
    note(c, line);
}

static mezzo_status try_candidate(mezzo_device *device, const mz_choose_options *o, beside *ref, mz_candidate *c) {
    mz_session_options session = o->session;
    size_t room = o->memory;
    mz_rig *rig;
    mz_session_set_precision(&session, c->precision);
    MEZZO_TRY(mz_session_run_bytes(device, &session, &c->memory));
    if (room == 0)
        MEZZO_TRY(mz_memory_free(device, &room));
    if (room > 0 && c->memory > room) {
        does_not_fit(c, room);
        return MEZZO_OK;
    }
    mezzo_status status = mz_rig_create(device, &session, &rig);
    if (status == MEZZO_ERR_MEMORY || status == MEZZO_ERR_UNSUPPORTED) {
        note(c, mezzo_error_message());
        return MEZZO_OK;
    }
    MEZZO_TRY(status);
    status = time_rig(rig, o, ref, c);
    mz_rig_free(rig);
    return status;
}

// --- choosing ------------------------------------------------------------------------------------------------------
static mezzo_status none_left(const mz_choice *out) {
    MZ_SCOPED(mz_text_free) mz_text t = {0};
    bool fits = false;
    for (int i = 0; i < out->n; i++) {
        const mz_candidate *c = &out->candidates[i];
        fits = fits || !isnan(c->loss);
        mz_text_addf(&t, "%s%s: %s", i > 0 ? "; " : "", mezzo_precision_name(c->precision), c->note);
    }
    return mz_fail(fits ? MEZZO_ERR_NUMERIC : MEZZO_ERR_MEMORY, "no precision works: %s%s",
                   t.status == MEZZO_OK ? t.data : "",
                   fits ? "" : "; lower the batch size (mezzo memory --limit shows what fits)");
}

static mz_option option_of(const mz_candidate *c) {
    return (mz_option){.name = mezzo_precision_name(c->precision),
                       .seconds = c->step_seconds,
                       .memory = c->memory > 0 ? (double)c->memory : (double)NAN,
                       .native = c->native,
                       .passed = c->passed,
                       .note = c->note};
}

static mezzo_status decide(mz_choice *out) {
    mz_option options[MEZZO_PRECISION_COUNT];
    mz_decision decision;
    for (int i = 0; i < out->n; i++)
        options[i] = option_of(&out->candidates[i]);
    mz_decide(options, out->n, "ms/step", &decision);
    if (decision.chosen < 0)
        return none_left(out);
    const mz_candidate *chosen = &out->candidates[decision.chosen];
    out->precision = chosen->precision;
    snprintf(out->reason, sizeof out->reason, "%s", decision.reason);
    for (int i = 0; i < out->n; i++)
        if (out->candidates[i].precision == MEZZO_PRECISION_FP32)
            out->speedup = out->candidates[i].step_seconds / chosen->step_seconds;
    return MEZZO_OK;
}

static mezzo_status plan_memory(mezzo_device *device, const mz_choose_options *o, mz_candidate *c) {
    mz_session_options session = o->session;
    mz_session_set_precision(&session, c->precision);
    return mz_session_run_bytes(device, &session, &c->memory);
}

static int natives(const mz_choice *out) {
    int n = 0;
    for (int i = 0; i < out->n; i++)
        n += tried(&out->candidates[i]);
    return n;
}

// Chooses the only precision that a device runs natively, without timing; the others' memory is planned all the same.
static mezzo_status choose_only(mezzo_device *device, const mz_choose_options *o, mz_choice *out) {
    mezzo_precision order[MEZZO_PRECISION_COUNT];
    int n = mz_precision_automatic(order), emulated = out->n;
    mz_candidate said[MEZZO_PRECISION_COUNT];
    size_t room = o->memory;
    if (room == 0)
        MEZZO_TRY(mz_memory_free(device, &room));
    memcpy(said, out->candidates, sizeof said);
    out->n = 1;
    for (int i = 0; i < n; i++) {
        if (!mz_precision_is_low(order[i]))
            continue;
        out->candidates[out->n] = candidate_of(order[i], false);
        note(&out->candidates[out->n++], "emulated: 16-bit storage, fp32 arithmetic");
    }
    for (int i = 1; i < emulated; i++)
        out->candidates[out->n++] = said[i];
    for (int i = 0; i < out->n; i++)
        MEZZO_TRY(plan_memory(device, o, &out->candidates[i]));
    mz_candidate *only = &out->candidates[0];
    only->passed = room == 0 || only->memory <= room;
    if (!only->passed)
        does_not_fit(only, room);
    return decide(out);
}

static mezzo_status try_and_tell(mezzo_device *device, const mz_choose_options *o, beside *ref, mz_candidate *c) {
    if (!tried(c))
        return plan_memory(device, o, c);
    mezzo_status status = try_candidate(device, o, ref, c);
    if (status != MEZZO_OK)
        note(c, "not timed"); // the error's own line follows
    if (o->tell != NULL)
        o->tell(o->user, c);
    MEZZO_TRY(status);
    if (c->passed && isnan(ref->loss))
        ref->loss = c->loss;
    return MEZZO_OK;
}

static mezzo_status choose_by_timing(mezzo_device *device, const mz_choose_options *o, mz_choice *out) {
    beside ref = {.loss = (double)NAN};
    mezzo_status status = MEZZO_OK;
    for (int i = 0; i < out->n; i++)
        ref.gradients = ref.gradients || (narrow(out->candidates[i].precision) && tried(&out->candidates[i]));
    for (int i = 0; i < out->n && status == MEZZO_OK; i++) {
        mz_work("timing precisions", i, out->n);
        status = try_and_tell(device, o, &ref, &out->candidates[i]);
    }
    mz_work("timing precisions", out->n, out->n);
    mz_gradient_free(&ref.gradient);
    MEZZO_TRY(status);
    return decide(out);
}

mezzo_status mz_choose(mezzo_device *device, const mz_choose_options *o, mz_choice *out) {
    *out = (mz_choice){.speedup = (double)NAN};
    MEZZO_TRY(list_candidates(device, o, out));
    if (o->precisions == NULL && natives(out) == 1)
        return choose_only(device, o, out);
    const volatile sig_atomic_t *stop = device->stop;
    device->stop = o->stop; // a step of a large model takes minutes
    mezzo_status status = choose_by_timing(device, o, out);
    device->stop = stop;
    return status;
}

mezzo_status mz_choose_for_device(mezzo_device *device, const volatile sig_atomic_t *stop, mz_choice *out) {
    mezzo_device_info info;
    mz_choose_options o = mz_choose_defaults();
    MEZZO_TRY(mezzo_device_describe(device, &info));
    const bool gpu = device->backend->gpu;
    mezzo_model_config model;
    MEZZO_TRY(mezzo_model_defaults("gpt2", &model));
    model.layers = 2;
    model.d_model = gpu ? 768 : 256;
    model.heads = model.d_model / 64;
    model.vocab = gpu ? 50257 : 4096;
    model.seq_len = gpu ? 512 : 128;
    MEZZO_TRY(mz_session_usual(&model, gpu ? 8 : 4, &o.session));
    o.session.seed = 1;
    o.stop = stop;
    return mz_choose(device, &o, out);
}

// --- the report ----------------------------------------------------------------------------------------------------
static const mz_row_field choice_fields[] = {
    {MZ_FIELD(mz_choice, precision), "precision"},
    {MZ_FIELD(mz_choice, reason), "reason"},
    {MZ_FIELD(mz_choice, speedup), "speedup_over_fp32"},
};

static const char *loss_text(const void *row, char *buf, size_t size) {
    const mz_candidate *c = row;
    snprintf(buf, size, c->timed ? "%.4f" : "-", c->loss);
    return buf;
}

static const mz_row_field candidate_fields[] = {
    {MZ_FIELD(mz_candidate, precision), "precision", "precision"},
    {MZ_FIELD(mz_candidate, step_seconds), "step_ms", "ms/step", "%.3f", .flags = MZ_DASH, .factor = 1e3},
    {MZ_FIELD(mz_candidate, tokens_per_second), "tokens_per_second", "*/s", "count", .flags = MZ_DASH},
    {MZ_FIELD(mz_candidate, memory), "memory_bytes", "memory", "mib", .legend = "of a training step. M: MiB, G: GiB"},
    {MZ_FIELD(mz_candidate, loss), "loss", "loss", .text = loss_text, .legend = "after the timed steps"},
    {MZ_FIELD(mz_candidate, gradient_error), "gradient_error"},
    {MZ_FIELD(mz_candidate, passed), "passed"},
    {MZ_FIELD(mz_candidate, note), "note", ""},
};

void mz_choice_table(const mz_choice *c, const char *unit, int columns, mz_text *t) {
    mz_fields_table(candidate_fields, MZ_COUNT(candidate_fields), c->candidates, sizeof c->candidates[0], (size_t)c->n,
                    unit, columns, t);
}

json_t *mz_choice_json(const mz_choice *c) {
    json_t *o = MZ_OBJECT(choice_fields, c);
    json_object_set_new(o, "candidates", MZ_LIST(candidate_fields, c->candidates, (size_t)c->n));
    return o;
}
