// mezzo sample RUN --out DIR generates pictures from a model of images.
#include "cli.h"

typedef struct shown {
    mezzo_predict_result result;
    const char *folder;
} shown;

static const cli_field fields[] = {
    {CLI_FIELD(shown, folder), "folder", "pictures in"},
    {CLI_FIELD(shown, result.pictures), "pictures", "pictures", "count"},
    {CLI_FIELD(shown, result.nmse), "nmse", "NMSE", "%.6f"},
    {CLI_FIELD(shown, result.rmse), "rmse", "RMSE", "%.6f"},
    {CLI_FIELD(shown, result.ssim), "ssim", "SSIM", "%.4f"},
    {CLI_FIELD(shown, result.psnr), "psnr", "PSNR", "%.2f dB"},
    {CLI_FIELD(shown, result.seconds), "seconds", "seconds", "%.1f"},
    {CLI_FIELD(shown, result.step), "step"},
    {CLI_FIELD(shown, result.ema), "ema"},
    {CLI_FIELD(shown, result.checkpoint), "checkpoint"},
};

static const cli_range ranges[] = {
    {CLI_FIELD(mezzo_predict_options, count), "count", 1, 1 << 30, 0},
    {CLI_FIELD(mezzo_predict_options, batch_size), "batch-size", 1, 1024, 0},
    {CLI_FIELD(mezzo_predict_options, rows), "rows", 1, 1000, 6},
    {CLI_FIELD(mezzo_predict_options, steps), "steps", 1, 100000, 5},
    {CLI_FIELD(mezzo_predict_options, eta), "eta", 0, 1, 0},
    {CLI_FIELD(mezzo_predict_options, seed), "seed", 0, 0x1p63, 1},
    {CLI_FIELD(mezzo_predict_options, threads), "threads", 0, 4096, 0},
};

int cli_sample_pictures(void) {
    shown s = {.folder = cli_text("out", NULL)};
    mezzo_predict_options options = {.path = cli_line.operands[0],
                                     .out = s.folder,
                                     .best = cli_has("best"),
                                     .no_ema = cli_has("no-ema"),
                                     .data = cli_text("data", NULL),
                                     .device = cli_text("device", NULL),
                                     .precision = cli_text("precision", NULL)};
    CLI_TRY(CLI_REFUSE("is for texts, and --out is for images", "prompt", "chat", "tokens", "temperature", "top-k",
                       "top-p"));
    CLI_TRY(CLI_RANGES(ranges, &options));
    const mezzo_hooks hooks = {.stop = cli_interruptible()};
    CLI_TRY(cli_code(mezzo_run_predict(&options, &hooks, &s.result)));
    return cli_print_fields(fields, MZ_COUNT(fields), &s, NULL, 12);
}
