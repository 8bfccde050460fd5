// mezzo diff finds the first op in which two runs differ.
#include "cli.h"
#include "study/measure/difference.h"

int cli_diff(void) {
    mz_difference_options o = {.device = cli_text("device", NULL), .stop = cli_interrupts(NULL)};
    mz_difference found;
    CLI_TRY(cli_number("ulp", 0, 1e300, 4, &o.ulp));
    if (cli_line.n_operands != 2)
        return cli_wrong("name two run folders; %s", cli_usage());
    o.runs[0] = cli_line.operands[0];
    o.runs[1] = cli_line.operands[1];
    CLI_DO(mz_difference_find(&o, &found));
    cli_progress_end();
    CLI_TRY(CLI_SHOW(mz_difference_json(&found), mz_difference_text, &found, o.ulp));
    return found.found ? CLI_CHECK_FAILED : CLI_DONE;
}
