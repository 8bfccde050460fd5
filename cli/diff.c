// mezzo diff finds the first op in which two runs differ.
#include <math.h>

#include "cli.h"
#include "study/measure/difference.h"

static const mz_row_field fields[] = {
    {MZ_FIELD(mz_difference, step), "checkpoint_step"},
    {MZ_FIELD(mz_difference, weights), "weights_that_differ"},
    {MZ_FIELD(mz_difference, weights_of), "weights"},
    {MZ_FIELD(mz_difference, weight), "first_weight", .flags = MZ_NULL},
    {MZ_FIELD(mz_difference, compared), "results_compared"},
    {MZ_FIELD(mz_difference, unmatched), "results_of_one_run_only"},
    {MZ_FIELD(mz_difference, found), "found"},
    {MZ_FIELD(mz_difference, op), "op", .flags = MZ_NULL},
    {MZ_FIELD(mz_difference, module), "module", .flags = MZ_NULL},
    {MZ_FIELD(mz_difference, phase), "phase", .flags = MZ_NULL},
    {MZ_FIELD(mz_difference, by), "ulp"},
    {MZ_FIELD(mz_difference, element), "element"},
};

static void print_text(const mz_difference *d, double ulp) {
    if (d->weights > 0)
        printf("weights   %d of %d differ between the checkpoints, first %s\n", d->weights, d->weights_of, d->weight);
    else
        printf("weights   all %d are equal in both checkpoints\n", d->weights_of);
    printf("results   %d compared, from the first run's weights after step %lld\n", d->compared, (long long)d->step);
    if (!d->found) {
        printf("None differs by more than %g ulp.\n", ulp);
        return;
    }
    CLI_TELL("first to differ by more than %g ulp: %s of %s (%s), stored in %s and %s: by %.4g ulp at element %lld of "
             "%lld, %.9g and %.9g",
             ulp, d->op, d->module[0] != '\0' ? d->module : "the model", d->phase, d->dtype[0], d->dtype[1], d->by,
             (long long)d->element, (long long)d->elements, d->value[0], d->value[1]);
}

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
    if (cli_has("json"))
        CLI_TRY(cli_json_print(MZ_OBJECT(fields, &found)));
    else
        print_text(&found, o.ulp);
    return found.found ? CLI_CHECK_FAILED : CLI_DONE;
}
