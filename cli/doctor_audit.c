// mezzo doctor --run and --trace judge what a PyTorch program did in its first steps.
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli.h"
#include "io/file.h"
#include "study/audit/cost.h"
#include "study/audit/judge.h"
#include "study/page/page_text.h"
#include "io/json.h"

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

typedef struct report {
    const mz_torch_trace *traces; // in order of the ranks
    int n;
    const mz_audit *audit;
    const mz_torch_costs *costs;     // of the first rank
    const mz_torch_kernels *kernels; // NULL: Mezzo's kernels were not timed
    const char *device;              // the device on which they were timed
} report;

// --- showing -------------------------------------------------------------------------------------------------------
// Makes the heading of a finding: its rule and its place.
static mz_shown heading_of(const mz_audit_finding *f, const char *kind) {
    mz_shown out;
    char line[16] = "", ranks[32] = "";
    if (f->file[0] != '\0')
        snprintf(line, sizeof line, ":%d", f->line);
    if (f->ranks > 1)
        snprintf(ranks, sizeof ranks, " (%d ranks)", f->ranks);
    snprintf(out.text, sizeof out.text, "%s%s: %.4000s%s%s", kind, mz_rule_of(f->rule)->name,
             f->file[0] != '\0' ? f->file : "the program", line, ranks);
    return out;
}

static void print_wrapped(const char *label, const char *text) {
    char line[4300];
    snprintf(line, sizeof line, "%s%s", label, mz_show(text).text);
    printf("  ");
    cli_wrap(line, 2, 4, MZ_TEXT_COLUMNS);
}

static void print_finding(const mz_audit_finding *f, int *number) {
    const mz_rule *rule = mz_rule_of(f->rule);
    char kind[32] = "note, ";
    if (rule->conflict)
        snprintf(kind, sizeof kind, "conflict %d, ", ++*number);
    printf("\n%s\n", mz_show(heading_of(f, kind).text).text);
    print_wrapped("", rule->what);
    if (f->inner[0] != '\0')
        print_wrapped("inside: ", f->inner);
    print_wrapped("seen: ", f->numbers);
    print_wrapped("why: ", rule->why);
    if (f->change[0] != '\0')
        print_wrapped("change: ", f->change);
}

static void print_head(const mz_torch_trace *t, size_t ranks, const mz_audit *audit) {
    printf("followed   %d steps of %zu rank%s of %d: torch %s on %s (%s)\n", t->steps, ranks, ranks == 1 ? "" : "s",
           t->world, mz_show(t->torch).text, mz_show(t->device).text, mz_show(t->device_name).text);
    if (!isnan(t->step_seconds))
        printf("step       %.3g ms; %.3g ms while it was followed\n", 1e3 * t->step_seconds, 1e3 * t->followed_seconds);
    else
        printf("step       %.3g ms while it was followed; no step came after\n", 1e3 * t->followed_seconds);
    if (audit->asked != MEZZO_DTYPE_COUNT)
        printf("asked for  %s by autocast\n", mz_torch_dtype_name(audit->asked));
    else
        printf("asked for  no 16 bits by autocast\n");
    printf("16 bits    had %.0f %% of the forward FLOPs of products\n", 100 * audit->low_share);
}

static const mz_row_field cost_fields[] = {
    {MZ_FIELD(mz_torch_cost, format), "format", "precision"},
    {MZ_FIELD(mz_torch_cost, now), "as_it_is", "", "%s", .words = {"predicted", "as it is"}},
    {MZ_FIELD(mz_torch_cost, seconds), "step_ms", "ms/step", "%.3g", .factor = 1e3},
    {MZ_FIELD(mz_torch_cost, least), "least_ms", "at least", "%.3g", .factor = 1e3},
    {MZ_FIELD(mz_torch_cost, most), "most_ms", "at most", "%.3g", .factor = 1e3},
    {MZ_FIELD(mz_torch_cost, speedup), "speedup", "times as fast", "%.2f"},
};

// Selects the formats with a prediction.
static size_t known_costs(const mz_torch_costs *costs, mz_torch_cost *rows) {
    size_t n = 0;
    for (int i = 0; i < MZ_TORCH_FORMATS; i++)
        if (costs->rows[i].known)
            rows[n++] = costs->rows[i];
    return n;
}

static void print_costs(const report *r) {
    const mz_torch_costs *costs = r->costs;
    mz_torch_cost rows[MZ_TORCH_FORMATS];
    const size_t n = known_costs(costs, rows);
    if (n < 2 && r->traces[0].no_replay[0] != '\0')
        printf("\nno prediction for other precisions: %s\n", mz_show(r->traces[0].no_replay).text);
    if (n < 2)
        return;
    printf("\nthis step in each precision:\n\n");
    CLI_TABLE(cost_fields, rows, n);
    double bf16 = NAN;
    for (size_t i = 0; i < n; i++) {
        bf16 = strcmp(rows[i].format, "bf16") == 0 ? rows[i].seconds : bf16;
        if (strcmp(rows[i].format, "fp8") == 0 && bf16 > 0)
            printf("fp8 %s: %.2f times as fast as bf16, with its products quantized in each call\n",
                   rows[i].seconds < bf16 ? "would pay" : "would not pay", bf16 / rows[i].seconds);
    }
    if (costs->unsteady)
        printf("wide bounds: what a processor takes differs from run to run\n");
    if (costs->launch_bound)
        printf("the GPU waits for the program: faster operations do not shorten this step\n");
    if (costs->with_hooks)
        printf("no step came after the followed ones: the time has the recorder in it\n");
}

typedef struct kernel_time {
    const char *precision;
    double seconds;
} kernel_time;
static const mz_row_field kernel_fields[] = {
    {MZ_FIELD(kernel_time, precision), "precision", "precision"},
    {MZ_FIELD(kernel_time, seconds), "step_ms", "ms/step", "%.3g", .factor = 1e3},
};

static size_t kernel_times(const mz_torch_kernels *k, kernel_time *rows) {
    size_t n = 0;
    if (!isnan(k->torch_seconds))
        rows[n++] = (kernel_time){"the program", k->torch_seconds};
    for (int p = 0; p < MEZZO_PRECISION_COUNT; p++)
        if (k->seconds[p] > 0)
            rows[n++] = (kernel_time){mezzo_precision_name((mezzo_precision)p), k->seconds[p]};
    return n;
}

static void print_kernels(const report *r) {
    kernel_time rows[MEZZO_PRECISION_COUNT + 1];
    if (r->kernels == NULL || r->kernels->n_shapes == 0)
        return;
    printf("\nits products in Mezzo's kernels, on %s: %d shapes, %.0f %% of the FLOPs\n\n", r->device,
           r->kernels->n_shapes, 100 * r->kernels->share);
    CLI_TABLE(kernel_fields, rows, kernel_times(r->kernels, rows));
}

static void print_audit(const report *r) {
    const mz_audit *audit = r->audit;
    int number = 0;
    print_head(&r->traces[0], (size_t)r->n, audit);
    for (size_t i = 0; i < audit->n_findings; i++)
        print_finding(&audit->findings[i], &number);
    print_costs(r);
    print_kernels(r);
    if (audit->n_conflicts == 0)
        printf("\nno conflict\n");
    else
        printf("\n%d conflict%s\n", audit->n_conflicts, audit->n_conflicts == 1 ? "" : "s");
}

static json_t *finding_json(const mz_audit_finding *f) {
    const mz_rule *rule = mz_rule_of(f->rule);
    return json_pack("{ss sb so si so ss so ss so si si}", "kind", rule->name, "conflict", (int)rule->conflict, "file",
                     f->file[0] != '\0' ? mz_json_text(f->file) : json_null(), "line", f->line, "inside",
                     f->inner[0] != '\0' ? mz_json_text(f->inner) : json_null(), "what", rule->what, "seen",
                     mz_json_text(f->numbers), "why", rule->why, "change", mz_json_text(f->change), "rank", f->rank,
                     "ranks", f->ranks);
}

static json_t *audit_json(const report *r) {
    const mz_torch_trace *first = &r->traces[0];
    const mz_audit *audit = r->audit;
    json_t *findings = json_array();
    mz_torch_cost rows[MZ_TORCH_FORMATS];
    kernel_time times[MEZZO_PRECISION_COUNT + 1];
    for (size_t i = 0; i < audit->n_findings; i++)
        json_array_append_new(findings, finding_json(&audit->findings[i]));
    return json_pack("{so so si si si so so so so so si so so sb}", "torch", mz_json_text(first->torch), "device",
                     mz_json_text(first->device), "ranks", r->n, "world", first->world, "steps", first->steps,
                     "step_seconds", mz_json_number(first->step_seconds), "followed_seconds",
                     mz_json_number(first->followed_seconds), "asked_for",
                     audit->asked != MEZZO_DTYPE_COUNT ? json_string(mz_torch_dtype_name(audit->asked)) : json_null(),
                     "share_in_16_bits", mz_json_number(audit->low_share), "findings", findings, "conflicts",
                     audit->n_conflicts, "costs", MZ_LIST(cost_fields, rows, known_costs(r->costs, rows)), "kernels",
                     r->kernels != NULL ? MZ_LIST(kernel_fields, times, kernel_times(r->kernels, times)) : json_null(),
                     "launch_bound", (int)r->costs->launch_bound);
}

// Makes the sections of the page: single values are a table, and each list is a section.
static json_t *page_json(const report *r) {
    json_t *all = audit_json(r), *page = json_object(), *summary = json_object(), *findings = json_array(), *value;
    const char *key;
    for (size_t i = 0; i < r->audit->n_findings; i++) {
        const mz_audit_finding *f = &r->audit->findings[i];
        const mz_rule *rule = mz_rule_of(f->rule);
        const mz_shown heading = heading_of(f, rule->conflict ? "" : "note, ");
        json_array_append_new(findings,
                              json_pack("{so ss so so ss so}", "finding", mz_json_text(heading.text), "what",
                                        rule->what, "inside", mz_json_text(f->inner), "seen", mz_json_text(f->numbers),
                                        "why", rule->why, "change", mz_json_text(f->change)));
    }
    json_object_set_new(page, "summary", summary);
    json_object_set_new(all, "findings", findings);
    json_object_foreach(all, key, value) {
        json_object_set(json_is_array(value) ? page : summary, key, value);
    }
    json_decref(all);
    return page;
}

static mezzo_status write_page(const report *r, const char *path) {
    mz_text html = {0};
    json_t *page = page_json(r);
    html.status = mz_json_page("Audit of a PyTorch program", page, &html);
    json_decref(page);
    return mz_text_save(&html, path);
}

static int show(const report *r) {
    const char *page = cli_out_file("out", NULL);
    if (cli_has("json"))
        CLI_TRY(cli_json_print(audit_json(r)));
    else
        print_audit(r);
    if (page != NULL)
        CLI_DO(write_page(r, page));
    return r->audit->n_conflicts > 0 ? CLI_CHECK_FAILED : CLI_DONE;
}

// Times Mezzo's kernels at the program's shapes, on the program's device.
static mezzo_status time_kernels(report *r, mz_torch_kernels *kernels) {
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
    report all = {.traces = t->list, .n = (int)t->n, .audit = &audit, .costs = &costs};
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
