// Writes what an audit of a PyTorch program found as text, JSON and the sections of a page.
#include "study/audit/cost.h"

#include <math.h>

#include "io/fields.h"

// Makes the heading of a finding: its rule and its place.
static mz_shown heading_of(const mz_audit_finding *f, const char *kind) {
    mz_shown out;
    char line[16] = "", ranks[32] = "";
    if (f->file[0] != '\0')
        snprintf(line, sizeof line, ":%d", f->line);
    if (f->ranks > 1)
        snprintf(ranks, sizeof ranks, " (%d ranks)", f->ranks);
    snprintf(out.text, sizeof out.text, "%s%s: %.4000s%s%s", kind, mz_rule_of(f->rule)->name,
             f->file[0] != '\0' ? f->file : "the program", line, ranks);
    return out;
}

static void add_wrapped(const char *label, const char *text, mz_text *t) {
    char line[4300];
    snprintf(line, sizeof line, "%s%s", label, mz_show(text).text);
    mz_text_add(t, "  ", 2);
    mz_text_wrap(t, line, 2, 4, MZ_TEXT_COLUMNS);
    mz_text_add(t, "\n", 1);
}

static void add_finding(const mz_audit_finding *f, int *number, mz_text *t) {
    const mz_rule *rule = mz_rule_of(f->rule);
    char kind[32] = "note, ";
    if (rule->conflict)
        snprintf(kind, sizeof kind, "conflict %d, ", ++*number);
    mz_text_addf(t, "\n%s\n", mz_show(heading_of(f, kind).text).text);
    add_wrapped("", rule->what, t);
    if (f->inner[0] != '\0')
        add_wrapped("inside: ", f->inner, t);
    add_wrapped("seen: ", f->numbers, t);
    add_wrapped("why: ", rule->why, t);
    if (f->change[0] != '\0')
        add_wrapped("change: ", f->change, t);
}

static void add_head(const mz_audit_report *r, mz_text *t) {
    const mz_torch_trace *of = &r->traces[0];
    mz_text_addf(t, "followed   %d steps of %d rank%s of %d: torch %s on %s (%s)\n", of->steps, r->n,
                 r->n == 1 ? "" : "s", of->world, mz_show(of->torch).text, mz_show(of->device).text,
                 mz_show(of->device_name).text);
    if (!isnan(of->step_seconds))
        mz_text_addf(t, "step       %.3g ms; %.3g ms while it was followed\n", 1e3 * of->step_seconds,
                     1e3 * of->followed_seconds);
    else
        mz_text_addf(t, "step       %.3g ms while it was followed; no step came after\n", 1e3 * of->followed_seconds);
    if (r->audit->asked != MEZZO_DTYPE_COUNT)
        mz_text_addf(t, "asked for  %s by autocast\n", mz_torch_dtype_name(r->audit->asked));
    else
        mz_text_addf(t, "asked for  no 16 bits by autocast\n");
    mz_text_addf(t, "16 bits    had %.0f %% of the forward FLOPs of products\n", 100 * r->audit->low_share);
}

static const mz_row_field cost_fields[] = {
    {MZ_FIELD(mz_torch_cost, format), "format", "precision"},
    {MZ_FIELD(mz_torch_cost, now), "as_it_is", "", "%s", .words = {"predicted", "as it is"}},
    {MZ_FIELD(mz_torch_cost, seconds), "step_ms", "ms/step", "%.3g", .factor = 1e3},
    {MZ_FIELD(mz_torch_cost, least), "least_ms", "at least", "%.3g", .factor = 1e3},
    {MZ_FIELD(mz_torch_cost, most), "most_ms", "at most", "%.3g", .factor = 1e3},
    {MZ_FIELD(mz_torch_cost, speedup), "speedup", "times as fast", "%.2f"},
};

// Selects the formats with a prediction.
static size_t known_costs(const mz_torch_costs *costs, mz_torch_cost *rows) {
    size_t n = 0;
    for (int i = 0; i < MZ_TORCH_FORMATS; i++)
        if (costs->rows[i].known)
            rows[n++] = costs->rows[i];
    return n;
}

static void add_costs(const mz_audit_report *r, int columns, mz_text *t) {
    const mz_torch_costs *costs = r->costs;
    mz_torch_cost rows[MZ_TORCH_FORMATS];
    const size_t n = known_costs(costs, rows);
    if (n < 2 && r->traces[0].no_replay[0] != '\0')
        mz_text_addf(t, "\nno prediction for other precisions: %s\n", mz_show(r->traces[0].no_replay).text);
    if (n < 2)
        return;
    mz_text_addf(t, "\nthis step in each precision:\n\n");
    MZ_TABLE(cost_fields, rows, n, columns, t);
    double bf16 = NAN;
    for (size_t i = 0; i < n; i++) {
        bf16 = strcmp(rows[i].format, "bf16") == 0 ? rows[i].seconds : bf16;
        if (strcmp(rows[i].format, "fp8") == 0 && bf16 > 0)
            mz_text_addf(t, "fp8 %s: %.2f times as fast as bf16, with its products quantized in each call\n",
                         rows[i].seconds < bf16 ? "would pay" : "would not pay", bf16 / rows[i].seconds);
    }
    if (costs->unsteady)
        mz_text_addf(t, "wide bounds: what a processor takes differs from run to run\n");
    if (costs->launch_bound)
        mz_text_addf(t, "the GPU waits for the program: faster operations do not shorten this step\n");
    if (costs->with_hooks)
        mz_text_addf(t, "no step came after the followed ones: the time has the recorder in it\n");
}

typedef struct kernel_time {
    const char *precision;
    double seconds;
} kernel_time;
static const mz_row_field kernel_fields[] = {
    {MZ_FIELD(kernel_time, precision), "precision", "precision"},
    {MZ_FIELD(kernel_time, seconds), "step_ms", "ms/step", "%.3g", .factor = 1e3},
};

static size_t kernel_times(const mz_torch_kernels *k, kernel_time *rows) {
    size_t n = 0;
    if (!isnan(k->torch_seconds))
        rows[n++] = (kernel_time){"the program", k->torch_seconds};
    for (int p = 0; p < MEZZO_PRECISION_COUNT; p++)
        if (k->seconds[p] > 0)
            rows[n++] = (kernel_time){mezzo_precision_name((mezzo_precision)p), k->seconds[p]};
    return n;
}

static void add_kernels(const mz_audit_report *r, int columns, mz_text *t) {
    kernel_time rows[MEZZO_PRECISION_COUNT + 1];
    if (r->kernels == NULL || r->kernels->n_shapes == 0)
        return;
    mz_text_addf(t, "\nits products in Mezzo's kernels, on %s: %d shapes, %.0f %% of the FLOPs\n\n", r->device,
                 r->kernels->n_shapes, 100 * r->kernels->share);
    MZ_TABLE(kernel_fields, rows, kernel_times(r->kernels, rows), columns, t);
}

void mz_audit_text(const mz_audit_report *r, int columns, mz_text *t) {
    const mz_audit *audit = r->audit;
    int number = 0;
    add_head(r, t);
    for (size_t i = 0; i < audit->n_findings; i++)
        add_finding(&audit->findings[i], &number, t);
    add_costs(r, columns, t);
    add_kernels(r, columns, t);
    if (audit->n_conflicts == 0)
        mz_text_addf(t, "\nno conflict\n");
    else
        mz_text_addf(t, "\n%d conflict%s\n", audit->n_conflicts, audit->n_conflicts == 1 ? "" : "s");
}

static json_t *finding_json(const mz_audit_finding *f) {
    const mz_rule *rule = mz_rule_of(f->rule);
    return json_pack("{ss sb so si so ss so ss so si si}", "kind", rule->name, "conflict", (int)rule->conflict, "file",
                     f->file[0] != '\0' ? mz_json_text(f->file) : json_null(), "line", f->line, "inside",
                     f->inner[0] != '\0' ? mz_json_text(f->inner) : json_null(), "what", rule->what, "seen",
                     mz_json_text(f->numbers), "why", rule->why, "change", mz_json_text(f->change), "rank", f->rank,
                     "ranks", f->ranks);
}

json_t *mz_audit_json(const mz_audit_report *r) {
    const mz_torch_trace *first = &r->traces[0];
    const mz_audit *audit = r->audit;
    json_t *findings = json_array();
    mz_torch_cost rows[MZ_TORCH_FORMATS];
    kernel_time times[MEZZO_PRECISION_COUNT + 1];
    for (size_t i = 0; i < audit->n_findings; i++)
        json_array_append_new(findings, finding_json(&audit->findings[i]));
    return json_pack("{so so si si si so so so so so si so so sb}", "torch", mz_json_text(first->torch), "device",
                     mz_json_text(first->device), "ranks", r->n, "world", first->world, "steps", first->steps,
                     "step_seconds", mz_json_number(first->step_seconds), "followed_seconds",
                     mz_json_number(first->followed_seconds), "asked_for",
                     audit->asked != MEZZO_DTYPE_COUNT ? json_string(mz_torch_dtype_name(audit->asked)) : json_null(),
                     "share_in_16_bits", mz_json_number(audit->low_share), "findings", findings, "conflicts",
                     audit->n_conflicts, "costs", MZ_LIST(cost_fields, rows, known_costs(r->costs, rows)), "kernels",
                     r->kernels != NULL ? MZ_LIST(kernel_fields, times, kernel_times(r->kernels, times)) : json_null(),
                     "launch_bound", (int)r->costs->launch_bound);
}

json_t *mz_audit_sections(const mz_audit_report *r) {
    json_t *all = mz_audit_json(r), *page = json_object(), *summary = json_object(), *findings = json_array(), *value;
    const char *key;
    for (size_t i = 0; i < r->audit->n_findings; i++) {
        const mz_audit_finding *f = &r->audit->findings[i];
        const mz_rule *rule = mz_rule_of(f->rule);
        const mz_shown heading = heading_of(f, rule->conflict ? "" : "note, ");
        json_array_append_new(findings,
                              json_pack("{so ss so so ss so}", "finding", mz_json_text(heading.text), "what",
                                        rule->what, "inside", mz_json_text(f->inner), "seen", mz_json_text(f->numbers),
                                        "why", rule->why, "change", mz_json_text(f->change)));
    }
    json_object_set_new(page, "summary", summary);
    json_object_set_new(all, "findings", findings);
    json_object_foreach(all, key, value) {
        json_object_set(json_is_array(value) ? page : summary, key, value);
    }
    json_decref(all);
    return page;
}
