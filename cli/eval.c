// mezzo eval computes loss, and perplexity or accuracy, of a run, or compares pictures with the true ones.
#include <math.h>
#include <unistd.h>

#include "cli.h"
#include "data/picture_score.h"

static const char *checkpoint_text(const void *row, char *buf, size_t size) {
    const mezzo_eval_result *r = row;
    snprintf(buf, size, "%s (step %lld%s)", mz_show(r->checkpoint).text, (long long)r->step,
             r->ema ? ", averaged weights" : "");
    return buf;
}

static const char *as_text(const void *row, char *buf, size_t size) {
    const mezzo_eval_result *r = row;
    snprintf(buf, size, "%.6f as %s, %+.6f", r->loss_as, r->as, r->loss_as - r->loss);
    return buf;
}

static const char *perplexity_text(const void *row, char *buf, size_t size) {
    const mezzo_eval_result *r = row;
    snprintf(buf, size, "%.4f per %s", r->perplexity, r->perplexity_per);
    return buf;
}

static const mz_row_field fields[] = {
    {MZ_FIELD(mezzo_eval_result, loss), "loss", "loss", "%.6f"},
    {MZ_FIELD(mezzo_eval_result, loss_as), "loss_as", "rounded", .flags = MZ_KNOWN, .text = as_text},
    {MZ_FIELD(mezzo_eval_result, perplexity), "perplexity", "perplexity", .only = "tokens", .text = perplexity_text},
    {MZ_FIELD(mezzo_eval_result, perplexity_per), "perplexity_per", .only = "tokens"},
    {MZ_FIELD(mezzo_eval_result, bits_per_byte), "bits_per_byte", "bits/byte", "%.4f", .flags = MZ_KNOWN},
    {MZ_FIELD(mezzo_eval_result, accuracy), "accuracy", "accuracy", "%.4f", .flags = MZ_KNOWN},
    {MZ_FIELD(mezzo_eval_result, mae), "mae", "MAE", "%.6g", .flags = MZ_KNOWN},
    {MZ_FIELD(mezzo_eval_result, r2), "r2", "R²", "%.4f", .flags = MZ_KNOWN},
    {MZ_FIELD(mezzo_eval_result, nmse), "nmse", "NMSE", "%.6f", .flags = MZ_KNOWN},
    {MZ_FIELD(mezzo_eval_result, rmse), "rmse", "RMSE", "%.6f", .flags = MZ_KNOWN},
    {MZ_FIELD(mezzo_eval_result, ssim), "ssim", "SSIM", "%.4f", .flags = MZ_KNOWN},
    {MZ_FIELD(mezzo_eval_result, psnr), "psnr", "PSNR", "%.2f dB", .flags = MZ_KNOWN},
    {MZ_FIELD(mezzo_eval_result, tokens), "*", "*", "count"},
    {MZ_FIELD(mezzo_eval_result, tokens_per_second), "*_per_second", "speed", "count */s"},
    {MZ_FIELD(mezzo_eval_result, precision), "precision", "precision"},
    {MZ_FIELD(mezzo_eval_result, step), "step"},
    {MZ_FIELD(mezzo_eval_result, ema), "ema"},
    {MZ_FIELD(mezzo_eval_result, checkpoint), "checkpoint", "checkpoint", .text = checkpoint_text},
};

static const cli_range ranges[] = {
    {MZ_FIELD(mezzo_eval_options, threads), "threads", 0, 4096, 0},
    {MZ_FIELD(mezzo_eval_options, batch_size), "batch-size", 1, 1 << 24, 0},
    {MZ_FIELD(mezzo_eval_options, iters), "iters", 0, INT32_MAX, 0},
};

// --- pictures: eval PREDICTED --truth FOLDER -----------------------------------------------------------------------
typedef struct shown {
    mz_image_score mean;
    int64_t pictures;
} shown;

static const mz_row_field picture_fields[] = {
    {MZ_FIELD(shown, pictures), "pictures", "pictures", "count"}, {MZ_FIELD(shown, mean.nmse), "nmse", "NMSE", "%.6f"},
    {MZ_FIELD(shown, mean.rmse), "rmse", "RMSE", "%.6f"},         {MZ_FIELD(shown, mean.ssim), "ssim", "SSIM", "%.4f"},
    {MZ_FIELD(shown, mean.psnr), "psnr", "PSNR", "%.2f dB"},
};

static const cli_range picture_ranges[] = {
    {MZ_FIELD(mz_score_options, rows), "rows", 1, 1000, 6},
    {MZ_FIELD(mz_score_options, split), "split", 0.01, 1, 0.9},
};

static int eval_pictures(void) {
    mz_score_options options = {.truth = cli_text("truth", NULL),
                                .predicted = cli_line.operands[0],
                                .csv = cli_out_file("csv", NULL),
                                .sheet = cli_text("sheet", NULL)};
    mz_image_total total;
    CLI_TRY(CLI_REFUSE("is for runs, not for images", "best", "data", "labels", "iters", "batch-size", "precision",
                       "device", "threads"));
    CLI_TRY(CLI_RANGES(picture_ranges, &options));
    CLI_DO(mz_score_pictures(&options, &total));
    const shown s = {mz_image_mean(&total), total.n};
    return CLI_FIELDS(picture_fields, &s, NULL, 12);
}

int cli_eval(void) {
    if (cli_has("truth"))
        return eval_pictures();
    CLI_TRY(CLI_REFUSE("is for images: name the true ones with --truth FOLDER", "sheet", "rows", "split"));
    const char *word = cli_line.operands[0];
    if ((strcmp(word, "mean") == 0 || strcmp(word, "free-space") == 0) && access(word, F_OK) != 0)
        return cli_wrong("%s predicts pictures: name the true ones, --truth FOLDER", word);
    mezzo_eval_options options = {
        .path = cli_line.operands[0],
        .best = cli_has("best"),
        .no_ema = cli_has("no-ema"),
        .data = cli_text("data", NULL),
        .labels = cli_text("labels", NULL),
        .device = cli_text("device", NULL),
        .precision = cli_text("precision", NULL),
        .csv = cli_out_file("csv", NULL),
        .as = cli_text("as", NULL),
    };
    mezzo_eval_result result;
    const mezzo_hooks hooks = {.stop = cli_interrupts(NULL)};
    CLI_TRY(CLI_RANGES(ranges, &options));
    CLI_DO(mezzo_run_eval(&options, &hooks, &result));
    return CLI_FIELDS(fields, &result, result.unit, 12);
}
