// mezzo sweep measures a grid of training steps and appends a row for each to a file; a later call continues the file.
#include <math.h>
#include <stdlib.h>

#include "cli.h"
#include "study/measure/sweep.h"

typedef struct watch {
    bool quiet;
    const char *unit; // of the printed speed
    int rows, failed; // of this call
    int total, done;
    double seconds;
} watch;

static const cli_range ranges[] = {
    {MZ_FIELD(mz_sweep_options, heads), "heads", 1, 65536, 0},
    {MZ_FIELD(mz_sweep_options, vocab), "vocab", 2, INT32_MAX, 0},
    {MZ_FIELD(mz_sweep_options, repeats.warmup), "warmup", 0, 1000, 3},
    {MZ_FIELD(mz_sweep_options, repeats.iters), "iters", 1, MZ_REPEATS_MAX, 5},
    {MZ_FIELD(mz_sweep_options, repeats.enough), "cv", 0, 1, 0.1},
    {MZ_FIELD(mz_sweep_options, energy_seconds), "energy-seconds", 0, 60, 0.3},
    {MZ_FIELD(mz_sweep_options, memory), "memory-gb", 0, 1e6, 0, 0x1p30},
    {MZ_FIELD(mz_sweep_options, seed), "seed", 0, 0x1p63, 1},
};

typedef struct axis {
    const char *name, *initial;
    size_t field;
} axis;
static const axis of_texts[] = {{"layers", "4,8,12", offsetof(mz_sweep_options, layers)},
                                {"d-models", "256,512", offsetof(mz_sweep_options, d_model)},
                                {"batch-sizes", "1,2,4,8", offsetof(mz_sweep_options, batch)},
                                {"seq-lens", "128,256,512,1024", offsetof(mz_sweep_options, seq_len)}};
static const axis of_images[] = {{"blocks", "1,2", offsetof(mz_sweep_options, layers)},
                                 {"d-models", "32,64", offsetof(mz_sweep_options, d_model)},
                                 {"batch-sizes", "1,2,4,8", offsetof(mz_sweep_options, batch)},
                                 {"image-sizes", "32,64", offsetof(mz_sweep_options, seq_len)}};

// Parses the grid, and refuses an axis of the other kind of grid, because no other grid than the requested one is
// measured.
static int parse_grid(bool images, mz_sweep_options *o) {
    const axis *mine = images ? of_images : of_texts, *others = images ? of_texts : of_images;
    for (size_t i = 0; i < MZ_COUNT(of_texts); i++) {
        if (strcmp(mine[i].name, others[i].name) != 0 && cli_has(others[i].name))
            return cli_wrong("--%s is not for %s: use --%s", others[i].name, o->family, mine[i].name);
        mz_sweep_axis *to = (mz_sweep_axis *)(void *)((char *)o + mine[i].field);
        CLI_TRY(cli_integers(mine[i].name, mine[i].initial, 1 << 24, MZ_SWEEP_AXIS, to->values, &to->n));
    }
    for (int i = 0; images && i < o->seq_len.n; i++)
        o->seq_len.values[i] *= o->seq_len.values[i]; // the unit is pixels
    return CLI_DONE;
}

static int parse(bool images, mz_sweep_options *o) {
    const char *residual = cli_text("residual", "widest");
    CLI_TRY(parse_grid(images, o));
    CLI_TRY(cli_precisions("precisions", "fp32,bf16", o->precisions, MZ_COUNT(o->precisions), &o->n_precisions));
    CLI_TRY(CLI_RANGES(ranges, o));
    if (strcmp(residual, "widest") != 0 && strcmp(residual, "low") != 0)
        return cli_wrong("--residual %s: it must be widest or low", residual);
    o->residual = strcmp(residual, "low") == 0 ? MEZZO_RESIDUAL_LOW : MEZZO_RESIDUAL_WIDEST;
    o->repeats.least = 3;
    o->repeats.stop = cli_interrupts(NULL);
    o->path = cli_text("out", "full_data.csv");
    o->commit = cli_commit();
    return strcmp(o->path, "-") != 0 ? CLI_DONE
                                     : cli_wrong("--out -: sweep appends rows and reads them again: name a file");
}

static void show(void *user, const mz_sweep_progress *p) {
    watch *w = user;
    char text[256];
    w->done = p->done;
    w->total = p->total;
    w->seconds = p->seconds;
    if (p->row == NULL) {
        if (!w->quiet)
            fprintf(stderr, "%d row%s%s", p->total, p->total == 1 ? "" : "s", p->earlier > 0 ? "" : "\n");
        if (!w->quiet && p->earlier > 0)
            fprintf(stderr, ", %d of them measured already\n", p->earlier);
        return;
    }
    w->rows++;
    w->failed += isnan(p->step_ms);
    if (w->quiet)
        return;
    const mz_short left = mz_duration_text(p->seconds_left);
    mz_key_text(&p->row->key, "", text, sizeof text);
    if (isnan(p->step_ms))
        cli_progress_line(true, "%d/%d  %s left  %s  %s: fits on no rung", p->done, p->total, left.text, p->row->prec,
                          text);
    else
        cli_progress_line(true, "%d/%d  %s left  %s  %s: %.3f ms, %s %s/s%s%s", p->done, p->total, left.text,
                          p->row->prec, text, p->step_ms, mz_count_text(p->row->tps).text, w->unit,
                          strcmp(p->row->rung, "base") != 0 ? ", " : "",
                          strcmp(p->row->rung, "base") != 0 ? p->row->rung : "");
}

static const mz_row_field fields[] = {
    {MZ_FIELD(watch, done), "rows"},         {MZ_FIELD(watch, total), "total"},
    {MZ_FIELD(watch, rows), "measured_now"}, {MZ_FIELD(watch, failed), "fitted_nowhere"},
    {MZ_FIELD(watch, seconds), "seconds"},
};

static int print_result(const mz_sweep_options *o, const watch *w) {
    if (cli_has("json")) {
        json_t *r = json_pack("{so}", "out", mz_json_text(o->path));
        return cli_json_print(mz_fields_json(fields, MZ_COUNT(fields), w, NULL, r));
    }
    printf("%s: %d row%s, %d of them measured now, in %s\n", mz_show(o->path).text, w->done, w->done == 1 ? "" : "s",
           w->rows, mz_duration_text(w->seconds).text);
    if (o->n_precisions < 2) // one precision has nothing to compare with
        return CLI_DONE;
    bool has_baseline = false; // the baseline of analyze
    for (int i = 0; i < o->n_precisions; i++)
        has_baseline = has_baseline || o->precisions[i] == MEZZO_PRECISION_FP32;
    printf("next:\n  %s analyze %s", cli_quoted(cli_line.program).text, cli_quoted(o->path).text);
    if (!has_baseline)
        printf(" --baseline %s --candidate %s", mezzo_precision_name(o->precisions[0]),
               mezzo_precision_name(o->precisions[1]));
    printf("\n");
    return CLI_DONE;
}

int cli_sweep(void) {
    MZ_SCOPED(cli_close_device) mezzo_device *device = NULL;
    mezzo_model_config model;
    const char *family = mezzo_model_defaults("glm4_moe", &model) == MEZZO_OK ? "glm4_moe" : "gpt2";
    mz_sweep_options o = {.family = cli_text("family", family)};
    if (mezzo_model_defaults(o.family, &model) != MEZZO_OK)
        return cli_error(MEZZO_ERR_INVALID);
    const bool images = mezzo_model_task(&model) == MEZZO_TASK_IMAGES;
    CLI_TRY(parse(images, &o));
    CLI_TRY(cli_open_device("auto", &device));
    watch w = {.unit = images ? "pixels" : "tokens", .quiet = cli_has("quiet")};
    const mezzo_status status = mz_sweep(device, &o, show, &w);
    cli_progress_end();
    const int code = status == MEZZO_OK ? print_result(&o, &w) : cli_error(status);
    if (status == MEZZO_ERR_INTERRUPTED)
        fprintf(stderr, "run the same command to continue\n");
    return code;
}
