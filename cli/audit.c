// mezzo audit computes a run's intervals again and compares them with what the run wrote.
#include "cli.h"
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

static void print_text(const mz_run_audit *r) {
    if (r->n_intervals > 0)
        CLI_TABLE(interval_fields, r->intervals, (size_t)r->n_intervals);
    for (int i = 0; i < r->n_intervals; i++)
        if (r->intervals[i].losses > 0)
            CLI_TELL("steps %lld to %lld: %lld losses beside their bounds; nearest: a difference of %.3g, bound %.3g",
                     (long long)r->intervals[i].from + 1, (long long)r->intervals[i].to,
                     (long long)r->intervals[i].losses, r->intervals[i].difference, r->intervals[i].bound);
    for (int i = 0; i < r->n_findings; i++)
        CLI_TELL("%s%s", r->findings[i].missing ? "missing: " : "", r->findings[i].text);
    CLI_TELL("%s", sentences[r->verdict]);
}

static int print_json(const mz_run_audit *r) {
    json_t *o = MZ_OBJECT(fields, r);
    json_object_set_new(o, "intervals", MZ_LIST(interval_fields, r->intervals, (size_t)r->n_intervals));
    json_object_set_new(o, "findings", MZ_LIST(finding_fields, r->findings, (size_t)r->n_findings));
    return cli_json_print(o);
}

static int code_of(mz_audit_verdict verdict) {
    return verdict == MZ_AUDIT_CONFIRMED ? CLI_DONE : verdict == MZ_AUDIT_DIFFERS ? CLI_CHECK_FAILED : CLI_USAGE;
}

static const cli_range ranges[] = {
    {MZ_FIELD(mz_run_audit_options, intervals), "intervals", 0, 1 << 20, 1},
    {MZ_FIELD(mz_run_audit_options, threads), "threads", 0, 4096, 0},
};

static void free_audit(mz_run_audit **r) {
    if (*r != NULL)
        mz_run_audit_free(*r);
    mz_free(*r);
}

int cli_audit(void) {
    mz_run_audit_options o = {.device = cli_text("device", NULL), .stop = cli_interrupts(NULL)};
    MZ_SCOPED(free_audit) mz_run_audit *r = NULL;
    CLI_TRY(CLI_RANGES(ranges, &o));
    if (cli_line.n_operands != 1)
        return cli_wrong("name a run folder; %s", cli_usage());
    o.run = cli_line.operands[0];
    CLI_DO(MZ_NEW(r, 1));
    mezzo_log_set(cli_log_quietly, NULL); // the notices of a resumed run are not shown
    CLI_DO(mz_run_audit_find(&o, r));
    cli_progress_end();
    if (r->rank == 0 && cli_has("json"))
        CLI_TRY(print_json(r));
    else if (r->rank == 0)
        print_text(r);
    return code_of(r->verdict);
}
