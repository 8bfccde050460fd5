// mezzo eval PREDICTED --truth FOLDER compares predicted pictures with the true ones.
#include <math.h>

#include "cli.h"
#include "data/picture_score.h"

typedef struct shown {
    mz_image_score mean;
    int64_t pictures;
} shown;

static const cli_field fields[] = {
    {CLI_FIELD(shown, pictures), "pictures", "pictures", "count"},
    {CLI_FIELD(shown, mean.nmse), "nmse", "NMSE", "%.6f"},
    {CLI_FIELD(shown, mean.rmse), "rmse", "RMSE", "%.6f"},
    {CLI_FIELD(shown, mean.ssim), "ssim", "SSIM", "%.4f"},
    {CLI_FIELD(shown, mean.psnr), "psnr", "PSNR", "%.2f dB"},
};

static const cli_range ranges[] = {
    {CLI_FIELD(mz_score_options, rows), "rows", 1, 1000, 6},
    {CLI_FIELD(mz_score_options, split), "split", 0.01, 1, 0.9},
};

int cli_eval_pictures(void) {
    mz_score_options options = {.truth = cli_text("truth", NULL),
                                .predicted = cli_line.operands[0],
                                .csv = cli_out_file("csv", NULL),
                                .sheet = cli_text("sheet", NULL)};
    mz_image_total total;
    CLI_TRY(CLI_REFUSE("is for runs, not for images", "best", "data", "labels", "iters", "batch-size", "precision",
                       "device", "threads"));
    CLI_TRY(CLI_RANGES(ranges, &options));
    CLI_TRY(cli_code(mz_score_pictures(&options, &total)));
    const shown s = {mz_image_mean(&total), total.n};
    return cli_print_fields(fields, MZ_COUNT(fields), &s, NULL, 12);
}
