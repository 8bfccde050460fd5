// mezzo sample generates text, or pictures, from a run.
#include <stdlib.h>

#include "cli.h"

typedef struct texts {
    bool json;
    int index; // number of the present sample
    const char *prompt;
    mz_text text;
    json_t *all; // with json: the finished samples
} texts;

static void finish_one(texts *t) {
    if (t->json) {
        json_array_append_new(t->all, mz_json_bytes(t->text.data != NULL ? t->text.data : "", t->text.len));
        mz_text_free(&t->text);
    } else {
        putchar('\n');
    }
}

// Prints text as it is drawn; a line of dashes separates samples.
static void on_text(void *user, int index, const char *text, size_t bytes) {
    texts *t = user;
    bool first = t->index < 0;
    if (index != t->index) {
        if (!first) {
            finish_one(t);
            if (!t->json)
                printf("----\n");
        }
        t->index = index;
        if (!t->json)
            fputs(t->prompt, stdout);
    }
    if (t->json) {
        mz_text_add(&t->text, text, bytes);
    } else {
        cli_print_text(stdout, text, bytes);
        fflush(stdout);
    }
}

static const mz_row_field fields[] = {
    {MZ_FIELD(mezzo_sample_options, prompt), "prompt"},
    {MZ_FIELD(mezzo_sample_options, chat), "chat"},
    {MZ_FIELD(mezzo_sample_options, temperature), "temperature"},
    {MZ_FIELD(mezzo_sample_options, top_p), "top_p"},
    {MZ_FIELD(mezzo_sample_options, top_k), "top_k"},
    {MZ_FIELD(mezzo_sample_options, seed), "seed"},
};

// The limits of mezzo_sample_defaults.
static const cli_range ranges[] = {
    {MZ_FIELD(mezzo_sample_options, tokens), "tokens", 1, 1 << 24, 200},
    {MZ_FIELD(mezzo_sample_options, samples), "count", 1, 100000, 1},
    {MZ_FIELD(mezzo_sample_options, top_k), "top-k", 0, INT32_MAX, 0},
    {MZ_FIELD(mezzo_sample_options, seed), "seed", 0, 0x1p63, 1},
    {MZ_FIELD(mezzo_sample_options, threads), "threads", 0, 4096, 0},
    {MZ_FIELD(mezzo_sample_options, top_p), "top-p", 0, 1, 0},
    {MZ_FIELD(mezzo_sample_options, temperature), "temperature", 0, 1000, 0.8},
};

int cli_sample_options(mezzo_sample_options *options) {
    CLI_TRY(CLI_RANGES(ranges, options));
    options->path = cli_line.operands[0];
    options->best = cli_has("best");
    options->no_ema = cli_has("no-ema");
    options->prompt = cli_text("prompt", "");
    options->device = cli_text("device", NULL);
    options->precision = cli_text("precision", NULL);
    return CLI_DONE;
}

// --- pictures: sample RUN --out DIR --------------------------------------------------------------------------------
typedef struct shown {
    mezzo_predict_result result;
    const char *folder;
} shown;

static const mz_row_field picture_fields[] = {
    {MZ_FIELD(shown, folder), "folder", "pictures in"},
    {MZ_FIELD(shown, result.pictures), "pictures", "pictures", "count"},
    {MZ_FIELD(shown, result.nmse), "nmse", "NMSE", "%.6f"},
    {MZ_FIELD(shown, result.rmse), "rmse", "RMSE", "%.6f"},
    {MZ_FIELD(shown, result.ssim), "ssim", "SSIM", "%.4f"},
    {MZ_FIELD(shown, result.psnr), "psnr", "PSNR", "%.2f dB"},
    {MZ_FIELD(shown, result.seconds), "seconds", "seconds", "%.1f"},
    {MZ_FIELD(shown, result.step), "step"},
    {MZ_FIELD(shown, result.ema), "ema"},
    {MZ_FIELD(shown, result.checkpoint), "checkpoint"},
};

static const cli_range picture_ranges[] = {
    {MZ_FIELD(mezzo_predict_options, count), "count", 1, 1 << 30, 0},
    {MZ_FIELD(mezzo_predict_options, batch_size), "batch-size", 1, 1024, 0},
    {MZ_FIELD(mezzo_predict_options, rows), "rows", 1, 1000, 6},
    {MZ_FIELD(mezzo_predict_options, steps), "steps", 1, 100000, 5},
    {MZ_FIELD(mezzo_predict_options, eta), "eta", 0, 1, 0},
    {MZ_FIELD(mezzo_predict_options, seed), "seed", 0, 0x1p63, 1},
    {MZ_FIELD(mezzo_predict_options, threads), "threads", 0, 4096, 0},
};

static int sample_pictures(void) {
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
    CLI_TRY(CLI_RANGES(picture_ranges, &options));
    const mezzo_hooks hooks = {.stop = cli_interrupts(NULL)};
    CLI_DO(mezzo_run_predict(&options, &hooks, &s.result));
    return CLI_FIELDS(picture_fields, &s, NULL, 12);
}

int cli_sample(void) {
    mezzo_sample_options options = mezzo_sample_defaults();
    if (cli_has("out"))
        return sample_pictures();
    CLI_TRY(
        CLI_REFUSE("is for images: name their folder with --out DIR", "data", "steps", "eta", "rows", "batch-size"));
    CLI_TRY(cli_sample_options(&options));
    options.chat = cli_text("chat", NULL);
    if (options.chat != NULL && cli_has("prompt"))
        return cli_wrong("give --chat or --prompt, not both");
    texts t = {.json = cli_has("json"), .index = -1, .prompt = options.prompt, .all = json_array()};
    const mezzo_status status = mezzo_run_sample(&options, NULL, on_text, &t);
    if (t.index >= 0)
        finish_one(&t);
    int code = cli_code(status);
    if (code == CLI_DONE && t.json) {
        json_t *o = MZ_OBJECT(fields, &options);
        json_object_set(o, "samples", t.all);
        code = cli_json_print(o);
    }
    mz_text_free(&t.text);
    json_decref(t.all);
    return code;
}
