// mezzo report: one HTML page of one run or several.
#include <stdlib.h>

#include "cli.h"
#include "io/file.h"
#include "study/run_page.h"

enum { RUNS_MAX = 16 };

static const char *name_of(const char *folder, char *buffer, size_t size) { // "runs/a/" -> "a"
    size_t n = strlen(folder);
    while (n > 1 && folder[n - 1] == '/')
        n--;
    size_t from = n;
    while (from > 0 && folder[from - 1] != '/')
        from--;
    snprintf(buffer, size, "%.*s", (int)(n - from), folder + from);
    return buffer;
}

static int write_page(const cli_args *args, const mz_run_log *logs, int n, const char *out) {
    char title[256], name[128], bytes[32];
    snprintf(title, sizeof title, "%s", name_of(args->operands[0], name, sizeof name));
    for (int i = 1; i < n; i++) {
        size_t used = strlen(title);
        snprintf(title + used, sizeof title - used, ", %s", name_of(args->operands[i], name, sizeof name));
    }
    mz_text html = {0};
    mezzo_status status = mz_run_page(logs, n, title, &html);
    if (status == MEZZO_OK)
        status = mz_file_write_atomic(out, html.data, html.len);
    if (status == MEZZO_OK)
        printf("wrote %s (%s): open it in a browser, it needs no network\n", out,
               cli_bytes(html.len, bytes, sizeof bytes));
    mz_text_free(&html);
    return status == MEZZO_OK ? CLI_DONE : cli_error(args->command, status);
}

static int run(const cli_args *args) {
    mz_run_log logs[RUNS_MAX] = {{0}};
    int n = 0, code = CLI_DONE;
    if (args->n_operands == 0)
        return cli_wrong(args->command, "name a run folder: mezzo report runs/mezzo");
    for (; n < args->n_operands && code == CLI_DONE; n++) {
        char folder[1024];
        snprintf(folder, sizeof folder, "%s", args->operands[n]);
        for (size_t k = strlen(folder); k > 1 && folder[k - 1] == '/'; k--)
            folder[k - 1] = '\0';
        mezzo_status status = mz_run_log_open(folder, &logs[n]);
        if (status != MEZZO_OK)
            code = cli_error(args->command, status);
        else if (logs[n].records == 0)
            code =
                cli_wrong(args->command, "%s: no metrics.jsonl with records in it: is it a run folder of mezzo train?",
                          args->operands[n]);
    }
    if (code == CLI_DONE) {
        char *initial = mz_format("%s/report.html", args->operands[0]);
        code = initial == NULL ? cli_error(args->command, MEZZO_ERR_MEMORY)
                               : write_page(args, logs, n, cli_text(args, "out", initial));
        mz_free(initial);
    }
    for (int i = 0; i < n; i++)
        mz_run_log_free(&logs[i]);
    return code;
}

static const cli_option options_table[] = {
    {"out", "FILE", "the page [RUN/report.html, in the first run's folder]"},
    {0},
};

const cli_command cli_report = {
    .name = "report",
    .summary = "one HTML page of a run, or of several overlaid",
    .usage = "RUN… [--out FILE]",
    .details = "Loss, validation, learning rate, gradient norm, loss scale with skipped steps, throughput, memory, "
               "samples, the configuration "
               "and the precision of every op, in one file that opens from the disk without a network. Of several runs "
               "the curves are "
               "overlaid, with the difference in loss and the speedup against the first.",
    .options = options_table,
    .max_operands = RUNS_MAX,
    .run = run,
};
