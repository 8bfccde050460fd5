// mezzo lab speed trains the same small model in each precision and compares the times to the same loss.
#include "cli.h"
#include "study/lab/lab.h"
#include "io/json.h"

static const char *other_text(const void *row, char *buf, size_t size) {
    const mz_speed_row *r = row;
    snprintf(buf, size, "%s%s", r->effective != r->asked ? " as " : "",
             r->effective != r->asked ? mezzo_precision_name(r->effective) : "");
    return buf;
}

static const mz_row_field fields[] = {
    {MZ_FIELD(mz_speed_row, asked), "precision", "precision"},
    {MZ_FIELD(mz_speed_row, effective), "effective"},
    {MZ_FIELD(mz_speed_row, ms), "step_ms", "ms/step", "%.2f"},
    {MZ_FIELD(mz_speed_row, tokens_per_second), "tokens_per_second", "tokens/s", "count"},
    {MZ_FIELD(mz_speed_row, memory), "memory_bytes", "memory", "bytes"},
    {MZ_FIELD(mz_speed_row, final_loss), "final_loss", "last loss", "%.4f"},
    {MZ_FIELD(mz_speed_row, steps), "steps_to_target", "steps", "%.0f", .flags = MZ_DASH},
    {MZ_FIELD(mz_speed_row, seconds), "seconds_to_target", "seconds", "%.2f", .flags = MZ_DASH},
    {MZ_FIELD(mz_speed_row, times), NULL, "times", "%.2f", .flags = MZ_DASH},
    {MZ_FIELD(mz_speed_row, skipped), "skipped"},
    {MZ_FIELD(mz_speed_row, reason), "reason"},
    {MZ_FIELD(mz_speed_row, effective), NULL, "", .text = other_text},
};

static void print_rows(const mz_speed_row *rows, size_t n, const mz_speed_result *result, const mz_speed_options *o) {
    printf("a GPT of %s parameters, %lld x 128 tokens per step, on %s\n\n",
           mz_count_text((double)result->parameters).text, (long long)o->batch, result->device);
    CLI_TABLE(fields, rows, n);
    CLI_TELL("\nsteps, seconds: until the training loss, smoothed over ten steps, reaches %.4f. times: speed relative "
             "to the first row. All start\nfrom the same weights and see the same batches; they alternate every few "
             "steps, so a busy machine slows all alike.",
             result->target);
}

static const cli_range ranges[] = {
    {MZ_FIELD(mz_speed_options, steps), "steps", 10, 1000000, 100},
    {MZ_FIELD(mz_speed_options, layers), "layers", 1, 1000, 4},
    {MZ_FIELD(mz_speed_options, d_model), "d-model", 16, 1 << 16, 256},
    {MZ_FIELD(mz_speed_options, batch), "batch-size", 1, 1 << 16, 8},
    {MZ_FIELD(mz_speed_options, target), "target", 1e-3, 1e3, 0},
};

int cli_lab_speed(void) {
    mz_speed_options o = {
        .data = cli_text("data", NULL), .device = cli_text("device", NULL), .stop = cli_interrupts(NULL)};
    mz_speed_row rows[MZ_SPEED_MOST];
    mz_speed_result result;
    CLI_TRY(cli_precisions("precision", "fp32,bf16,fp16", o.precisions, MZ_SPEED_MOST, &o.n_precisions));
    CLI_TRY(CLI_RANGES(ranges, &o));
    CLI_DO(mz_speed_race(&o, rows, &result));
    CLI_PLOT(mz_lab_draw_speed, rows, o.n_precisions, &result);
    const size_t n = (size_t)o.n_precisions;
    if (cli_has("json"))
        return cli_json_print(json_pack("{so sI ss so}", "target", mz_json_number(result.target), "parameters",
                                        (json_int_t)result.parameters, "device", result.device, "rows",
                                        MZ_LIST(fields, rows, n)));
    print_rows(rows, n, &result, &o);
    return CLI_DONE;
}
