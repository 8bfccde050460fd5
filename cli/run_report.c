// mezzo report writes an HTML page of one run or several.
#include <stdlib.h>

#include "cli.h"
#include "io/file.h"
#include "study/page/run_log.h"

enum { RUNS_MAX = 16 };

static int write_page(const mz_run_log *logs, int n, const char *out) {
    char title[256] = "";
    for (int i = 0; i < n; i++) {
        const char *slash = strrchr(logs[i].folder, '/');
        cli_add(title, sizeof title, "%s%.127s", i > 0 ? ", " : "", slash != NULL ? slash + 1 : logs[i].folder);
    }
    mz_text html = {0};
    html.status = mz_run_page(logs, n, title, &html);
    const mz_short bytes = mz_bytes_text((double)html.len);
    CLI_DO(mz_text_save(&html, out));
    const bool piped = strcmp(out, CLI_STDOUT) == 0;
    fprintf(piped ? stderr : stdout, "wrote %s (%s): open it in a browser, it needs no network\n",
            piped ? "standard output" : mz_show(out).text, bytes.text);
    return CLI_DONE;
}

static int read_run(const char *operand, mz_run_log *log) {
    mz_path folder = mz_path_of("%s", operand);
    for (size_t k = strlen(folder.text); k > 1 && folder.text[k - 1] == '/'; k--)
        folder.text[k - 1] = '\0';
    CLI_DO(mz_run_log_open(folder.text, NULL, log));
    if (log->records == 0)
        return cli_wrong("%s: no metrics.jsonl with records in it: is it a run folder of mezzo train?", operand);
    return CLI_DONE;
}

// Writes a page for each run, in its folder; or one of all together.
static int write_pages(const mz_run_log *logs, int n) {
    if (cli_has("compare"))
        return write_page(logs, n, cli_out_file("out", "compare.html"));
    for (int i = 0; i < n; i++)
        CLI_TRY(write_page(&logs[i], 1, cli_out_file("out", mz_path_of("%s/report.html", cli_line.operands[i]).text)));
    return CLI_DONE;
}

typedef struct runs {
    mz_run_log logs[RUNS_MAX];
} runs;

static void free_runs(runs *r) {
    for (int i = 0; i < RUNS_MAX; i++)
        mz_run_log_free(&r->logs[i]);
}

int cli_report(void) {
    MZ_SCOPED(free_runs) runs r = {.logs = {{0}}};
    const bool compare = cli_has("compare");
    const int n = cli_line.n_operands;
    if (n == 0)
        return cli_wrong("name a run folder: mezzo report runs/mezzo");
    if (compare && n == 1)
        return cli_wrong("--compare: name at least two run folders");
    if (!compare && n > 1 && cli_has("out"))
        return cli_wrong("--out names one file: give one run, or --compare them on one page");
    for (int i = 0; i < n; i++)
        CLI_TRY(read_run(cli_line.operands[i], &r.logs[i]));
    return write_pages(r.logs, n);
}
