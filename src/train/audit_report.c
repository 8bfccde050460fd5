// Writes the audit of a run as text and JSON.
#include "io/fields.h"
#include "train/audit.h"

static const mz_row_field interval_fields[] = {
    {MZ_FIELD(mz_run_interval, from), "from", "from", "%.0f"},
    {MZ_FIELD(mz_run_interval, to), "to", "to", "%.0f"},
    {MZ_FIELD(mz_run_interval, word), "verdict", "verdict"},
    {MZ_FIELD(mz_run_interval, confirmed), "confirmed_to", "confirmed to", "%.0f"},
    {MZ_FIELD(mz_run_interval, records), "records", "records", "%.0f"},
    {MZ_FIELD(mz_run_interval, values), "values", "values", "%.0f"},
    {MZ_FIELD(mz_run_interval, tensors), "tensors", "tensors", "%.0f"},
    {MZ_FIELD(mz_run_interval, differing), "differing", "differing", "%.0f"},
    {MZ_FIELD(mz_run_interval, exact), "exact"},
    {MZ_FIELD(mz_run_interval, losses), "losses"},
    {MZ_FIELD(mz_run_interval, difference), "loss_difference"},
    {MZ_FIELD(mz_run_interval, bound), "loss_bound"},
};

static const mz_row_field finding_fields[] = {
    {MZ_FIELD(mz_run_finding, kind), "kind"},   {MZ_FIELD(mz_run_finding, missing), "missing"},
    {MZ_FIELD(mz_run_finding, from), "from"},   {MZ_FIELD(mz_run_finding, to), "to"},
    {MZ_FIELD(mz_run_finding, step), "step"},   {MZ_FIELD(mz_run_finding, place), "place"},
    {MZ_FIELD(mz_run_finding, saved), "saved"}, {MZ_FIELD(mz_run_finding, here), "computed"},
    {MZ_FIELD(mz_run_finding, text), "text"},
};

static const mz_row_field fields[] = {
    {MZ_FIELD(mz_run_audit, word), "verdict"},
    {MZ_FIELD(mz_run_audit, device), "device"},
    {MZ_FIELD(mz_run_audit, run_device), "run_device", .flags = MZ_NULL},
    {MZ_FIELD(mz_run_audit, ranks), "ranks"},
    {MZ_FIELD(mz_run_audit, run_ranks), "run_ranks", .flags = MZ_NULL},
    {MZ_FIELD(mz_run_audit, checkpoints), "checkpoints"},
};

static const char *const sentences[] = {
    [MZ_AUDIT_CONFIRMED] = "confirmed: every value is the same, bit for bit",
    [MZ_AUDIT_DIFFERS] = "not confirmed: the run's files differ from what its configuration computes",
    [MZ_AUDIT_IN_BOUNDS] = "not confirmed: this device computes other bits; the losses are within their bounds",
    [MZ_AUDIT_NOT_POSSIBLE] = "not possible: something is missing",
};

void mz_run_audit_text(const mz_run_audit *r, int columns, mz_text *t) {
    if (r->n_intervals > 0)
        MZ_TABLE(interval_fields, r->intervals, (size_t)r->n_intervals, columns, t);
    for (int i = 0; i < r->n_intervals; i++)
        if (r->intervals[i].losses > 0)
            mz_text_tell(
                t, "steps %lld to %lld: %lld losses beside their bounds; nearest: a difference of %.3g, bound %.3g",
                (long long)r->intervals[i].from + 1, (long long)r->intervals[i].to, (long long)r->intervals[i].losses,
                r->intervals[i].difference, r->intervals[i].bound);
    for (int i = 0; i < r->n_findings; i++)
        mz_text_tell(t, "%s%s", r->findings[i].missing ? "missing: " : "", r->findings[i].text);
    mz_text_tell(t, "%s", sentences[r->verdict]);
}

json_t *mz_run_audit_json(const mz_run_audit *r) {
    json_t *o = MZ_OBJECT(fields, r);
    json_object_set_new(o, "intervals", MZ_LIST(interval_fields, r->intervals, (size_t)r->n_intervals));
    json_object_set_new(o, "findings", MZ_LIST(finding_fields, r->findings, (size_t)r->n_findings));
    return o;
}
