// mezzo lab speed: the same small model in each precision on this machine, and the time to the same loss.
#include <math.h>

#include "cli.h"
#include "lab.h"
#include "study/lab/lab.h"

static json_t *row_json(const mz_speed_row *r) {
    return json_pack("{ss ss so so so sI so sI sI ss}", "precision", mezzo_precision_name(r->asked), "effective",
                     mezzo_precision_name(r->effective), "step_ms", cli_json_number(r->ms), "tokens_per_second",
                     cli_json_number(r->tokens_per_second), "final_loss", cli_json_number(r->final_loss),
                     "steps_to_target", (json_int_t)r->steps, "seconds_to_target", cli_json_number(r->seconds),
                     "skipped", (json_int_t)r->skipped, "memory_bytes", (json_int_t)r->memory, "reason", r->reason);
}

static void print_rows(const mz_speed_row *rows, int n, const mz_speed_result *result, const mz_speed_options *o) {
    char count[32], bytes[32];
    printf("a GPT of %s parameters, %lld x 128 tokens a step, on %s\n\n%-9s %9s %10s %10s %10s %8s %11s %9s\n",
           cli_thousands((double)result->parameters, count, sizeof count), (long long)o->batch, result->device,
           "precision", "ms/step", "tokens/s", "memory", "last loss", "steps", "seconds", "times");
    for (int i = 0; i < n; i++) {
        const mz_speed_row *r = &rows[i];
        printf("%-9s %9.2f %10s %10s %10.4f", mezzo_precision_name(r->asked), r->ms,
               cli_thousands(r->tokens_per_second, count, sizeof count), cli_bytes(r->memory, bytes, sizeof bytes),
               r->final_loss);
        if (r->steps > 0)
            printf(" %8lld %11.2f %9.2f", (long long)r->steps, r->seconds, rows[0].seconds / r->seconds);
        else
            printf(" %8s %11s %9s", "-", "-", "-");
        printf("%s%s\n", r->effective != r->asked ? "  as " : "",
               r->effective != r->asked ? mezzo_precision_name(r->effective) : "");
    }
    printf("\nsteps, seconds: until the training loss, smoothed over ten steps, is %.4f. times: as fast as the first "
           "row. All start from "
           "the\nsame weights and see the same batches; each trains some steps in turn, so that a busy machine slows "
           "all alike.\n",
           result->target);
}

int cli_lab_speed(const cli_args *args) {
    mz_speed_options o = {
        .data = cli_text(args, "data", NULL), .device = cli_text(args, "device", NULL), .stop = cli_interruptible()};
    mz_speed_row rows[MZ_SPEED_MOST];
    mz_speed_result result;
    int code = cli_precisions(args, "precision", "fp32,bf16,fp16", o.precisions, MZ_SPEED_MOST, &o.n_precisions);
    if (code == CLI_DONE)
        code = cli_integer(args, "steps", 10, 1000000, 100, &o.steps);
    if (code == CLI_DONE)
        code = cli_integer(args, "layers", 1, 1000, 4, &o.layers);
    if (code == CLI_DONE)
        code = cli_integer(args, "d-model", 16, 1 << 16, 256, &o.d_model);
    if (code == CLI_DONE)
        code = cli_integer(args, "batch-size", 1, 1 << 16, 8, &o.batch);
    if (code == CLI_DONE)
        code = cli_number(args, "target", 1e-3, 1e3, 0, &o.target);
    if (code != CLI_DONE)
        return code;
    mezzo_status status = mz_speed_race(&o, rows, &result);
    if (status != MEZZO_OK)
        return cli_error(args->command, status);
    cli_plot plot;
    if (cli_plot_asked(args, &plot, &code))
        code = cli_plotted(args, mz_lab_draw_speed(plot.folder, plot.name, rows, o.n_precisions, &result), &plot);
    if (code != CLI_DONE)
        return code;
    if (cli_has(args, "json")) {
        json_t *list = json_array();
        for (int i = 0; i < o.n_precisions; i++)
            json_array_append_new(list, row_json(&rows[i]));
        return cli_json_print(args->command,
                              json_pack("{so sI ss so}", "target", cli_json_number(result.target), "parameters",
                                        (json_int_t)result.parameters, "device", result.device, "rows", list));
    }
    print_rows(rows, o.n_precisions, &result, &o);
    return CLI_DONE;
}
