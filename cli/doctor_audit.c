// mezzo doctor --run and --trace judge what a PyTorch program did in its first steps.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli.h"
#include "io/file.h"
#include "study/audit/cost.h"
#include "study/page/page_text.h"

extern char **environ;

// --- running the program -------------------------------------------------------------------------------------------
// Sets PYTHONPATH, by which Python finds the module at its start; the user's own entries stay.
static int prepare_environment(const char *folder) {
    static const char *const places[] = {"../share/mezzo/python/mezzo/audit/front", "../audit/front",
                                         "../../python/mezzo/audit/front", "../python/mezzo/audit/front"};
    char front[4200], steps[24];
    int64_t n;
    CLI_TRY(cli_integer("steps", 1, 100, 3, &n));
    if (!cli_find_folder(places, MZ_COUNT(places), front, sizeof front))
        return cli_wrong("the Python module mezzo.audit is not installed beside this command");
    const char *before = getenv("PYTHONPATH");
    char *path = mz_format("%s%s%s", front, before != NULL && *before != '\0' ? ":" : "", before != NULL ? before : "");
    snprintf(steps, sizeof steps, "%lld", (long long)n);
    const bool set = path != NULL && setenv("PYTHONPATH", path, 1) == 0 &&
                     setenv("MEZZO_AUDIT_FOLDER", folder, 1) == 0 && setenv("MEZZO_AUDIT_STEPS", steps, 1) == 0 &&
                     setenv("MEZZO_AUDIT_STOP", cli_has("stop") ? "1" : "0", 1) == 0;
    mz_free(path);
    return set ? CLI_DONE : cli_error(mz_fail(MEZZO_ERR_MEMORY, "out of memory"));
}

// Runs the program and gets its exit code; 128 + N for signal N. With --json the program's output goes to stderr, so
// that stdout has only the result.
static mezzo_status run_program(char **words, int *exit_code) {
    posix_spawn_file_actions_t actions;
    pid_t pid;
    int status = 0;
    posix_spawn_file_actions_init(&actions);
    if (cli_has("json"))
        posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    fflush(stdout);
    const int failed = posix_spawnp(&pid, words[0], &actions, NULL, words, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed != 0)
        return mz_fail(MEZZO_ERR_INVALID, "%s: %s", words[0], strerror(failed));
    struct sigaction ignore = {.sa_handler = SIG_IGN}, before; // Ctrl-C belongs to the program
    sigaction(SIGINT, &ignore, &before);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    sigaction(SIGINT, &before, NULL);
    *exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return MEZZO_OK;
}

// --- reading -------------------------------------------------------------------------------------------------------
typedef struct traces {
    mz_torch_trace *list;
    size_t n, cap;
} traces;

static void free_traces(traces *t) {
    for (size_t i = 0; i < t->n; i++)
        mz_torch_trace_free(&t->list[i]);
    mz_free(t->list);
}

static mezzo_status add_trace(traces *t, const char *path) {
    if (t->n >= MZ_TRACE_RANKS_MAX)
        return mz_fail(MEZZO_ERR_INVALID, "more than %d traces", MZ_TRACE_RANKS_MAX);
    MEZZO_TRY(MZ_RESERVE(t->list, t->cap, t->n + 1));
    mz_torch_trace trace;
    MEZZO_TRY(mz_torch_trace_read(path, &trace));
    size_t k = t->n++;
    for (; k > 0 && t->list[k - 1].rank > trace.rank; k--)
        t->list[k] = t->list[k - 1];
    t->list[k] = trace;
    return MEZZO_OK;
}

// Adds the traces of a folder; a process that was not recorded says why, which is shown where no process was.
static mezzo_status add_folder(traces *t, const char *folder) {
    char **names, *refusal = NULL;
    size_t n;
    MEZZO_TRY(mz_dir_list(folder, &names, &n));
    mezzo_status status = MEZZO_OK;
    for (size_t i = 0; i < n && status == MEZZO_OK; i++) {
        if (mz_ends_with(names[i], ".json"))
            status = add_trace(t, mz_path_of("%s/%s", folder, names[i]).text);
        if (status == MEZZO_ERR_UNSUPPORTED) {
            mz_free(refusal);
            refusal = mz_strdup(mezzo_error_message());
            status = MEZZO_OK;
        }
    }
    mz_dir_list_free(names, n);
    if (status == MEZZO_OK && t->n == 0 && refusal != NULL)
        status = mz_fail(MEZZO_ERR_INVALID, "%s", refusal);
    mz_free(refusal);
    return status;
}

static mezzo_status write_page(const mz_audit_report *r, const char *path) {
    mz_text html = {0};
    json_t *page = mz_audit_sections(r);
    html.status = mz_json_page("Audit of a PyTorch program", page, &html);
    json_decref(page);
    return mz_text_save(&html, path);
}

static int show(const mz_audit_report *r) {
    const char *page = cli_out_file("out", NULL);
    CLI_TRY(CLI_SHOW(mz_audit_json(r), mz_audit_text, r, cli_terminal_columns(stdout)));
    if (page != NULL)
        CLI_DO(write_page(r, page));
    return r->audit->n_conflicts > 0 ? CLI_CHECK_FAILED : CLI_DONE;
}

// Times Mezzo's kernels at the program's shapes, on the program's device.
static mezzo_status time_kernels(mz_audit_report *r, mz_torch_kernels *kernels) {
    MZ_SCOPED(cli_close_device) mezzo_device *device = NULL;
    const mz_torch_trace *t = &r->traces[0];
    r->device = cli_text("device", t->device);
    MEZZO_TRY(mezzo_device_open(r->device, t->threads <= 4096 ? t->threads : 0, &device));
    r->kernels = kernels;
    return mz_torch_kernels_time(device, t, kernels);
}

static int judge(const traces *t) {
    mz_where where;
    CLI_TRY(cli_assume(&where));
    MZ_SCOPED(mz_audit_free) mz_audit audit = {0};
    mz_torch_costs costs;
    mz_torch_kernels kernels;
    mz_audit_report all = {.traces = t->list, .n = (int)t->n, .audit = &audit, .costs = &costs};
    CLI_DO(mz_audit_judge(t->list, (int)t->n, cli_has("assume") ? &where : NULL, &audit));
    mz_torch_costs_predict(&t->list[0], &costs);
    if (cli_has("kernels"))
        CLI_DO(time_kernels(&all, &kernels));
    return show(&all);
}

static int follow(const char *folder, traces *t) {
    MZ_SCOPED(mz_free_at) char **words = NULL;
    int program = 0;
    CLI_DO(MZ_NEW(words, cli_line.n_operands + 1));
    CLI_TRY(prepare_environment(folder));
    for (int i = 0; i < cli_line.n_operands; i++)
        words[i] = (char *)(uintptr_t)cli_line.operands[i]; // exec does not write to its words
    CLI_DO(run_program(words, &program));
    CLI_DO(add_folder(t, folder));
    if (t->n == 0 && program == 0)
        CLI_DO(mz_fail(MEZZO_ERR_INVALID, "%s: no step of a PyTorch optimizer was seen", words[0]));
    if (t->n == 0)
        CLI_DO(mz_fail(MEZZO_ERR_INVALID, "%s ended with exit code %d before a step of a PyTorch optimizer", words[0],
                       program));
    if (program != 0)
        mz_log("notice", "the program ended with exit code %d", program);
    return judge(t);
}

static int run_and_judge(traces *t) {
    if (cli_line.n_operands == 0)
        return cli_wrong("name the program: mezzo doctor --run -- python train.py");
    const char *kept = cli_text("traces", NULL), *base = getenv("TMPDIR");
    mz_path place =
        kept != NULL ? mz_path_of("%s", kept) : mz_path_of("%s/mezzo-audit-XXXXXX", base != NULL ? base : "/tmp");
    char *folder = place.text;
    if (kept != NULL ? mz_dir_create(folder) != MEZZO_OK : mkdtemp(folder) == NULL)
        return cli_error(mz_fail(MEZZO_ERR_IO, "%s: cannot make this folder", folder));
    char *whole = realpath(folder, NULL);
    const int code = follow(whole != NULL ? whole : folder, t);
    free(whole);
    if (kept == NULL)
        (void)mz_dir_remove(folder);
    return code;
}

int cli_doctor_audit(void) {
    MZ_SCOPED(free_traces) traces t = {0};
    if (cli_has("run"))
        return run_and_judge(&t);
    int at = 0;
    for (const char *path; (path = cli_next_value("trace", &at)) != NULL;)
        CLI_DO(mz_path_is_dir(path) ? add_folder(&t, path) : add_trace(&t, path));
    for (int i = 0; i < cli_line.n_operands; i++)
        CLI_DO(add_trace(&t, cli_line.operands[i]));
    if (t.n == 0)
        CLI_DO(mz_fail(MEZZO_ERR_INVALID, "--trace: no trace of mezzo.audit there"));
    return judge(&t);
}
