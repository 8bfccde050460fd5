#include "study/measure/per_op.h"
#include "io/json.h"

#include <math.h>

typedef struct search {
    const mz_per_op_options *o;
    mz_per_op *p;
    mezzo_device *device;
    char *overrides; // of the original configuration
    bool *trying;    // [n]
} search;

void mz_per_op_free(mz_per_op *p) {
    MZ_FREE(p->modules, p->kept);
    *p = (mz_per_op){0};
}

// --- a run ---------------------------------------------------------------------------------------------------------
static mezzo_status set_overrides(search *s, const bool *kept) {
    MZ_SCOPED(mz_text_free) mz_text t = {0};
    mz_text_addf(&t, "%s", s->overrides);
    for (int i = 0; kept != NULL && i < s->p->n; i++)
        if (kept[i])
            mz_text_addf(&t, "%s%s*=fp32", t.len > 0 ? "," : "", s->p->modules[i]);
    MEZZO_TRY(t.status);
    return mezzo_config_set(s->o->config, "autocast", t.data != NULL ? t.data : "", "advise");
}

// Trains a run and measures the mean training loss over the last third of the steps; infinite where one of them is not
// finite.
static mezzo_status train(const search *s, mz_trial *trial, double *loss) {
    const int64_t steps = mz_trial_describe(trial).steps;
    int64_t count = 0;
    *loss = 0;
    for (int64_t step = 1; step <= steps; step++) {
        const mz_step_report *report;
        if (s->o->stop != NULL && *s->o->stop)
            return mz_fail(MEZZO_ERR_INTERRUPTED, "stopped at step %lld of run %d", (long long)step, s->p->runs + 1);
        MEZZO_TRY(mz_trial_step(trial, true, &report));
        if (3 * step <= 2 * steps)
            continue;
        *loss += report != NULL && isfinite(report->loss) ? report->loss : (double)INFINITY;
        count++;
    }
    *loss /= (double)count;
    return MEZZO_OK;
}

static mezzo_status list_modules(const mezzo_params *params, mz_per_op *p);

static mezzo_status run(search *s, mezzo_precision precision, const bool *kept, double *loss) {
    mz_trial *trial;
    MEZZO_TRY(set_overrides(s, kept));
    MEZZO_TRY(mezzo_config_set(s->o->config, "amp.precision", mezzo_precision_name(precision), "advise"));
    MEZZO_TRY(mz_trial_open(s->device, s->o->config, s->o->stop, &trial));
    mezzo_status status = s->p->n == 0 ? list_modules(mz_trial_params(trial), s->p) : MEZZO_OK;
    if (status == MEZZO_OK && s->o->prepare != NULL)
        status = s->o->prepare(s->o->user, trial);
    if (status == MEZZO_OK)
        status = train(s, trial, loss);
    mz_trial_close(trial);
    s->p->runs++;
    return status;
}

static mezzo_status find_gap(search *s, const bool *kept, double *gap) {
    double loss;
    int count = 0;
    MEZZO_TRY(run(s, s->o->precision, kept, &loss));
    *gap = loss - s->p->loss;
    for (int i = 0; i < s->p->n; i++)
        count += kept[i];
    if (s->o->tell != NULL)
        s->o->tell(s->o->user, s->p->runs, s->o->runs, count, *gap);
    return MEZZO_OK;
}

// --- modules that may be kept ---------------------------------------------------------------------------------------
// Finds a parameter's module: "h.3.mlp.c_fc.weight" → "h.3.mlp"; "wte.weight" → "wte". What lies between the operands
// of neighbouring products is in one module with them.
static void module_of(const char *parameter, char *out, size_t size) {
    snprintf(out, size, "%s", parameter);
    for (int parts = 0; parts < 2; parts++) {
        char *dot = strrchr(out, '.');
        if (dot != NULL && (parts == 0 || strchr(out, '.') != dot))
            *dot = '\0';
    }
}

static mezzo_status list_modules(const mezzo_params *params, mz_per_op *p) {
    const size_t most = (size_t)mezzo_params_count(params) + 1;
    MEZZO_TRY(MZ_NEW(p->modules, most));
    MEZZO_TRY(MZ_NEW(p->kept, most));
    bool embeds = false, heads = false;
    for (int i = 0; i + 1 < (int)most; i++) {
        char name[128];
        if (mezzo_params_rank(params, i) < 2) // norms and biases are in fp32 anyway
            continue;
        module_of(mezzo_params_name(params, i), name, sizeof name);
        if (MZ_INDEX_WORD(p->modules, p->n, name) == (size_t)p->n)
            snprintf(p->modules[p->n++], sizeof *p->modules, "%s", name);
        embeds = embeds || strcmp(name, "wte") == 0;
        heads = heads || strcmp(name, "lm_head") == 0;
    }
    if (embeds && !heads) // a head that is tied to the embedding has no parameter of its own
        snprintf(p->modules[p->n++], sizeof *p->modules, "lm_head");
    return MEZZO_OK;
}

// --- the smallest set ----------------------------------------------------------------------------------------------
// Takes part `part` of `parts` of the kept modules, or all kept ones but these.
static void take_part(const search *s, int part, int parts, bool others) {
    const int size = s->p->n_kept, from = size * part / parts, to = size * (part + 1) / parts;
    for (int i = 0, k = 0; i < s->p->n; i++) {
        s->trying[i] = false;
        if (!s->p->kept[i])
            continue;
        s->trying[i] = (k >= from && k < to) != others;
        k++;
    }
}

static mezzo_status try_part(search *s, int part, int parts, bool others, bool *closes) {
    double gap;
    *closes = false;
    if (s->p->runs >= s->o->runs)
        return MEZZO_OK;
    take_part(s, part, parts, others);
    MEZZO_TRY(find_gap(s, s->trying, &gap));
    *closes = gap <= s->o->gap;
    if (!*closes)
        return MEZZO_OK;
    s->p->kept_gap = gap;
    s->p->n_kept = 0;
    for (int i = 0; i < s->p->n; i++) {
        s->p->kept[i] = s->trying[i];
        s->p->n_kept += s->trying[i];
    }
    return MEZZO_OK;
}

static mezzo_status shrink(search *s) {
    mz_per_op *p = s->p;
    for (int parts = 2; p->n_kept > 1 && p->runs < s->o->runs;) {
        bool closes = false;
        for (int i = 0; i < parts && !closes; i++)
            MEZZO_TRY(try_part(s, i, parts, false, &closes));
        if (closes) {
            parts = 2;
            continue;
        }
        for (int i = 0; i < parts && !closes && parts > 2; i++)
            MEZZO_TRY(try_part(s, i, parts, true, &closes));
        if (closes) {
            parts = parts - 1 > 2 ? parts - 1 : 2;
        } else if (parts >= p->n_kept) {
            p->minimal = p->runs < s->o->runs;
            return MEZZO_OK;
        } else {
            parts = 2 * parts < p->n_kept ? 2 * parts : p->n_kept;
        }
    }
    p->minimal = p->n_kept == 1; // without it the gap is too large: the run with nothing kept came first
    return MEZZO_OK;
}

static mezzo_status find(search *s) {
    mz_per_op *p = s->p;
    MEZZO_TRY(run(s, MEZZO_PRECISION_FP32, NULL, &p->loss));
    if (!isfinite(p->loss))
        return mz_fail(MEZZO_ERR_NUMERIC, "fp32's own loss is not finite within these steps: no precision is to blame");
    MEZZO_TRY(MZ_NEW(s->trying, p->n));
    MEZZO_TRY(find_gap(s, p->kept, &p->whole_gap));
    p->kept_gap = p->whole_gap;
    p->harmless = p->closes = p->minimal = p->whole_gap <= s->o->gap;
    if (p->harmless || p->runs >= s->o->runs)
        return MEZZO_OK;
    for (int i = 0; i < p->n; i++)
        p->kept[i] = true;
    p->n_kept = p->n;
    MEZZO_TRY(find_gap(s, p->kept, &p->kept_gap));
    p->closes = p->kept_gap <= s->o->gap;
    return p->closes ? shrink(s) : MEZZO_OK;
}

mezzo_status mz_per_op_find(const mz_per_op_options *o, mz_per_op *out) {
    mz_run_config c;
    const char *overrides = mezzo_config_get(o->config, "autocast");
    search s = {.o = o, .p = out, .overrides = mz_strdup(overrides != NULL ? overrides : "")};
    *out = (mz_per_op){0};
    mezzo_status status = s.overrides != NULL ? MEZZO_OK : MEZZO_ERR_MEMORY;
    if (status == MEZZO_OK && o->runs < 2)
        status = mz_fail(MEZZO_ERR_INVALID, "%d runs: fp32's and one more are needed", o->runs);
    if (status == MEZZO_OK)
        status = mezzo_config_set(o->config, "guard.policy", "off", "advise");
    if (status == MEZZO_OK)
        status = mezzo_config_set(o->config, "train.sample_every", "-1", "advise");
    if (status == MEZZO_OK)
        status = mz_run_config_read(o->config, &c);
    if (status == MEZZO_OK)
        status = mezzo_device_open(c.device, c.threads, &s.device);
    if (status == MEZZO_OK)
        status = find(&s);
    mezzo_device_close(s.device);
    MZ_FREE(s.overrides, s.trying);
    return status;
}

// --- reports -------------------------------------------------------------------------------------------------------
json_t *mz_per_op_json(const mz_per_op_options *o, const mz_per_op *p) {
    json_t *keep = json_array();
    for (int i = 0; i < p->n; i++)
        if (p->kept[i] && p->closes)
            json_array_append_new(keep, json_string(p->modules[i]));
    return json_pack("{s:s, s:o, s:b, s:b, s:b, s:f, s:o, s:o, s:o, s:i, s:i, s:i}", "precision",
                     mezzo_precision_name(o->precision), "keep_in_fp32", keep, "harmless", (int)p->harmless, "closes",
                     (int)p->closes, "minimal", (int)p->minimal, "gap_allowed", o->gap, "gap_with_nothing_kept",
                     mz_json_number(p->whole_gap), "gap_with_these_kept", mz_json_number(p->kept_gap), "fp32_loss",
                     mz_json_number(p->loss), "modules", p->n, "runs", p->runs, "runs_at_most", o->runs);
}

static void add_gap(mz_text *t, double gap) {
    if (isfinite(gap))
        mz_text_addf(t, "%.4f", gap);
    else
        mz_text_addf(t, "no finite loss");
}

void mz_per_op_text(const mz_per_op_options *o, const mz_per_op *p, mz_text *t) {
    const char *name = mezzo_precision_name(o->precision);
    mz_text_addf(t, "loss above fp32's, nothing kept: ");
    add_gap(t, p->whole_gap);
    mz_text_addf(t, " (allowed: %g)\n", o->gap);
    if (p->harmless) {
        mz_text_addf(t, "No module has to stay in fp32: %s is good enough everywhere (%d runs).\n", name, p->runs);
        return;
    }
    if (!p->closes) {
        mz_text_addf(t, "%s (%d runs).\n",
                     p->runs < o->runs || p->n_kept > 0
                         ? "Keeping every listed module in fp32 does not close the gap: it lies elsewhere"
                         : "The runs are spent: allow more with --runs",
                     p->runs);
        return;
    }
    mz_text_addf(t, "with these in fp32: ");
    add_gap(t, p->kept_gap);
    mz_text_addf(t, "\n\n");
    for (int i = 0; i < p->n; i++)
        if (p->kept[i])
            mz_text_addf(t, "--autocast.%s* fp32\n", p->modules[i]);
    mz_text_addf(t, "\n%d of %d modules, after %d runs; %s\n", p->n_kept, p->n, p->runs,
                 p->minimal ? "taking any one of them out opens the gap again"
                            : "the runs are spent, and a smaller set may do (--runs)");
}
