// mezzo audit computes a run's intervals again and compares them with what the run wrote.
#include "cli.h"
#include "train/audit.h"

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
    if (r->rank == 0)
        CLI_TRY(CLI_SHOW(mz_run_audit_json(r), mz_run_audit_text, r, cli_terminal_columns(stdout)));
    return code_of(r->verdict);
}
