// mezzo watch shows a run's metrics in a terminal while the run writes them.
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"
#include "train/config.h"
#include "train/folder.h"
#include "io/file.h"
#include "study/page/run_log.h"
#include "train/health.h"

enum { WHOLE = -1, SCIENTIFIC = -2, BYTES = -3 }; // values of `decimals` for other forms

typedef struct row {
    const char *label, *series, *unit;
    int decimals; // as many as train prints
    bool logarithmic;
} row;

static const row rows[] = {
    {"training loss", "train/loss", "", 4, false},
    {"validation loss", "val/loss", "", 4, false},
    {"sampled val. loss", "val/sampled_loss", "", 4, false},
    {"accuracy", "val/accuracy", "", 4, false},
    {"sampled accuracy", "val/sampled_accuracy", "", 4, false},
    {"MAE", "val/mae", "", 4, false},
    {"R²", "val/r2", "", 4, false},
    {"learning rate", "train/lr", "", SCIENTIFIC, false},
    {"gradient norm", "gradients/total_norm", "", 3, true},
    {"loss scale", "amp/loss_scale", "", WHOLE, true},
    {"skipped steps", "amp/skipped_steps", "", WHOLE, false},
    {"throughput", "perf/tokens_per_second", " tokens/s", WHOLE, false},
    {"throughput", "perf/examples_per_second", " examples/s", WHOLE, false},
    {"throughput", "perf/images_per_second", " images/s", WHOLE, false},
    {"time of a step", "perf/step_ms", " ms", 2, false},
    {"memory", "perf/memory_bytes", "", BYTES, false},
    {"error in fp8", "counterfactual/fp8/relative_error", "", 4, false},
    {"error in fp8-block", "counterfactual/fp8-block/relative_error", "", 4, false},
    {"error in mxfp8", "counterfactual/mxfp8/relative_error", "", 4, false},
    {"error in mxfp4", "counterfactual/mxfp4/relative_error", "", 4, false},
    {"error in nvfp4", "counterfactual/nvfp4/relative_error", "", 4, false},
};

// Draws a curve of `width` characters, each the mean of its stretch of steps; '!' where a value is not finite.
static void spark(const mz_series *s, int width, bool logarithmic, char *out, size_t size) {
    static const char *const blocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    double cells[256], low = INFINITY, high = -INFINITY;
    bool broken[256] = {false};
    int n = (int)(s->n < (size_t)width ? s->n : (size_t)width);
    for (int i = 0; i < n; i++) {
        size_t from = s->n * (size_t)i / (size_t)n, to = s->n * (size_t)(i + 1) / (size_t)n, count = 0;
        double sum = 0;
        for (size_t k = from; k < to; k++) {
            const mz_stretch *at = &s->stretches[k];
            const double x = at->sum / (double)at->finite;
            broken[i] = broken[i] || at->finite < at->count;
            if (at->finite > 0 && (!logarithmic || x > 0)) {
                sum += logarithmic ? log(x) : x;
                count++;
            }
        }
        cells[i] = count > 0 ? sum / (double)count : (double)NAN;
        low = fmin(low, cells[i]);
        high = fmax(high, cells[i]);
    }
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; i < n && used + 4 < size; i++) {
        const bool flat = !(high - low > 1e-9 * fmax(fabs(high), fabs(low))); // equal but for rounding
        const double share = !flat ? (cells[i] - low) / (high - low) : low == 0 && !logarithmic ? 0 : 0.5;
        const char *mark = broken[i] ? "!" : isnan(cells[i]) ? " " : blocks[(int)fmin(7, 8 * share)];
        used += (size_t)snprintf(out + used, size - used, "%s", mark);
    }
}

static const char *number_text(const row *r, double x, char *buffer, size_t size) {
    if (isnan(x))
        snprintf(buffer, size, "nan");
    else if (r->decimals == BYTES)
        snprintf(buffer, size, "%s", mz_bytes_text(fmax(x, 0)).text);
    else if (fabs(x) >= (r->decimals == WHOLE ? 1e12 : 1e6))
        snprintf(buffer, size, "%.3g", x);
    else if (r->decimals == WHOLE)
        snprintf(buffer, size, "%s", mz_count_text(x).text);
    else if (r->decimals == SCIENTIFIC && x != 0)
        snprintf(buffer, size, "%.2e", x);
    else
        snprintf(buffer, size, "%.*f", r->decimals > 0 ? r->decimals : 0, x);
    return buffer;
}

// Reads the number of steps from the line "  steps: N" under "train:" in config.yaml; 0 where it is not known.
static mezzo_status planned_steps(const char *folder, int64_t *steps) {
    mezzo_config *config;
    mz_run_config run;
    mezzo_status status = mz_run_folder_config(folder, &config);
    if (status == MEZZO_OK)
        status = mz_run_config_read(config, &run);
    *steps = status == MEZZO_OK ? run.steps : 0;
    mezzo_config_free(config);
    return status == MEZZO_ERR_MEMORY ? status : MEZZO_OK;
}

// Returns the median; NaN where there is none, or no memory to find it: then the remaining time is not shown.
static double middle_of(const mz_series *series) {
    double middle;
    (void)mz_series_middle(series, &middle);
    return middle;
}

// Returns whether the run has stopped: records come at most as far apart as the last two of them did in steps, apart
// from validation and samples.
static bool has_stopped(const mz_run_log *log, double age) {
    const mz_series *each = mz_run_log_find(log, "perf/step_ms");
    double steps = 100;
    if (each != NULL && each->count > 1)
        steps = (double)log->last_step / (double)each->count * 3;
    double expected = each != NULL ? steps * middle_of(each) * 1e-3 : 60;
    return age > 30 + (isfinite(expected) ? expected : 60);
}

typedef enum run_state { RUNNING, STOPPED, ENDED } run_state;

static run_state state_of(const mz_run_log *log, int64_t steps, double age) {
    if (steps > 0 && log->last_step >= steps)
        return ENDED;
    return has_stopped(log, age) ? STOPPED : RUNNING;
}

static void print_place(const mz_run_log *log, int64_t steps, double age) {
    printf("step %lld", (long long)log->last_step);
    if (steps > 0)
        printf(" of %lld (%.0f %%)", (long long)steps, 100.0 * (double)log->last_step / (double)steps);
    const mz_series *each = mz_run_log_find(log, "perf/step_ms");
    const double left = steps > log->last_step ? middle_of(each) * 1e-3 * (double)(steps - log->last_step) : 0;
    const run_state state = state_of(log, steps, age);
    if (state == ENDED)
        printf(", ended");
    else if (state == STOPPED)
        printf(", stopped: no records for %s", mz_duration_text(age).text);
    else if (steps > log->last_step && isfinite(left))
        printf(", about %s left", mz_duration_text(left).text);
    printf("\n\n");
}

typedef struct cells { // the cells of a row: the last value, and the lowest to the highest
    char value[64], range[128];
} cells;

static bool fill_cells(const mz_run_log *log, const row *r, cells *out) {
    char a[48], b[48];
    const mz_series *s = mz_run_log_find(log, r->series);
    double least = INFINITY, most = -INFINITY;
    if (s == NULL || s->n == 0)
        return false;
    for (size_t i = 0; i < s->n; i++)
        if (isfinite(s->stretches[i].low)) {
            least = fmin(least, s->stretches[i].low);
            most = fmax(most, s->stretches[i].high);
        }
    number_text(r, mz_series_last(s), a, sizeof a);
    snprintf(out->value, sizeof out->value, "%s%s", a, r->unit);
    number_text(r, least, a, sizeof a);
    number_text(r, most, b, sizeof b);
    if (!(least <= most))
        snprintf(out->range, sizeof out->range, "not finite");
    else if (least == most)
        snprintf(out->range, sizeof out->range, "constant");
    else
        snprintf(out->range, sizeof out->range, "%s to %s", a, b);
    return true;
}

static int widest(int width, const char *text) {
    return (int)strlen(text) > width ? (int)strlen(text) : width;
}

// Prints rows; the curves take the columns that labels, values and ranges leave.
static void print_rows(const mz_run_log *log, int columns) {
    static const char range_head[] = "lowest to highest";
    cells all[MZ_COUNT(rows)];
    bool there[MZ_COUNT(rows)];
    int label = 0, value = 0, range = widest(0, range_head);
    char curve[1100];
    for (size_t i = 0; i < MZ_COUNT(rows); i++) {
        there[i] = fill_cells(log, &rows[i], &all[i]);
        if (!there[i])
            continue;
        label = widest(label, rows[i].label);
        value = widest(value, all[i].value);
        range = widest(range, all[i].range);
    }
    int width = columns - label - value - range - 6;
    width = width < 8 ? 8 : width > 120 ? 120 : width;
    printf("%*s  %*s  %*s  %s\n", label, "", value, "last", width, "", range_head);
    for (size_t i = 0; i < MZ_COUNT(rows); i++) {
        if (!there[i])
            continue;
        const mz_series *s = mz_run_log_find(log, rows[i].series);
        const int drawn = s->n < (size_t)width ? (int)s->n : width;
        spark(s, width, rows[i].logarithmic, curve, sizeof curve);
        printf("%-*s  %*s  %s%*s  %s\n", label, rows[i].label, value, all[i].value, curve, width - drawn, "",
               all[i].range);
    }
}

static void print_frame(const mz_run_log *log, int64_t steps, double age) {
    const int columns = cli_terminal_columns(stdout);
    const char *device = mz_run_log_text(log, "run/device"), *precision = mz_run_log_text(log, "amp/precision");
    char head[1024]; // for texts of a file, which must not control the terminal
    snprintf(head, sizeof head, "%s%s%s%s%s", log->folder, precision != NULL ? ", " : "",
             precision != NULL ? precision : "", device != NULL ? " on " : "", device != NULL ? device : "");
    mz_text_tame(head);
    cli_wrap(head, 0, 0, columns);
    if (log->last_step < 0) {
        printf("no records yet\n");
        return;
    }
    print_place(log, steps, age);
    print_rows(log, columns);
}

static double seconds_since_written(const char *folder) {
    struct stat info;
    const bool there = stat(mz_path_of("%s/metrics.jsonl", folder).text, &info) == 0;
    return there ? difftime(time(NULL), info.st_mtime) : 0;
}

// Makes the terminal pass keys one by one without echo, until it is restored.
static bool keys_begin(struct termios *before) {
    if (!isatty(STDIN_FILENO) || tcgetattr(STDIN_FILENO, before) != 0)
        return false;
    struct termios raw = *before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    return tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
}

// Waits; returns true once q was pressed. A signal ends it early.
static bool wait_for_q(double seconds, bool keys) {
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    char key = 0;
    if (poll(&in, keys ? 1 : 0, (int)(1e3 * seconds)) <= 0 || !keys)
        return false;
    return read(STDIN_FILENO, &key, 1) != 1 || key == 'q' || key == 'Q';
}

// --- the command ---------------------------------------------------------------------------------------------------
typedef struct view {
    const char *folder;
    int64_t steps; // 0: not known
    bool screen, colours;
    const volatile sig_atomic_t *stop;
} view;

static void print_health(const view *v, const mz_run_log *log) {
    char health[512];
    const bool healthy = mz_health_verdict(&log->health, health, sizeof health);
    mz_text_tame(health);
    printf("\n%s", !v->colours ? "" : healthy ? "\033[32m" : "\033[31m");
    cli_wrap(health, 0, 0, cli_terminal_columns(stdout));
    printf("%s", v->colours ? "\033[0m" : "");
}

// Prints the view. whole: a file's tail alone gives no verdict.
static void print_view(const view *v, const mz_run_log *log, bool whole, const char *below) {
    if (v->screen)
        printf("\033[H\033[J");
    print_frame(log, v->steps, seconds_since_written(v->folder));
    if (whole)
        print_health(v, log);
    if (v->screen)
        printf("\n%s", below);
    fflush(stdout);
}

static const char *footer(const view *v, const mz_run_log *log) {
    const run_state state = state_of(log, v->steps, seconds_since_written(v->folder));
    return state == RUNNING ? "(press q to quit; the run continues)" : "(press q to quit)";
}

// Opens the log. On a screen the newest records of a long file appear at once, and the curves once all of it is read.
static mezzo_status open_log(view *v, mz_run_log *log) {
    enum { LONG_FILE = 64 << 20, TAIL = 1 << 20 };
    struct stat info;
    const bool is_long = stat(mz_path_of("%s/metrics.jsonl", v->folder).text, &info) == 0 && info.st_size > LONG_FILE;
    if (v->screen && is_long) {
        mz_run_log tail;
        mezzo_status status = mz_run_log_open_tail(v->folder, TAIL, &tail);
        if (status == MEZZO_OK)
            print_view(v, &tail, false, "");
        mz_run_log_free(&tail);
        MEZZO_TRY(status);
    }
    return mz_run_log_open(v->folder, v->stop, log);
}

static mezzo_status follow(view *v, mz_run_log *log, double interval, bool once, bool keys) {
    for (;;) {
        print_view(v, log, true, footer(v, log));
        const bool over = v->steps > 0 && log->last_step >= v->steps;
        if (once || *v->stop != 0 || (over && !v->screen))
            return MEZZO_OK;
        if (wait_for_q(interval, keys) || *v->stop != 0)
            return MEZZO_OK;
        MEZZO_TRY(mz_run_log_read(log, v->stop));
    }
}

int cli_watch(void) {
    double interval;
    CLI_TRY(cli_number("interval", 0.1, 3600, 1, &interval));
    if (cli_line.n_operands == 0)
        return cli_wrong("name a run folder: mezzo watch runs/mezzo");
    const bool once = cli_has("once");
    mz_run_log log = {0};
    view v = {.folder = cli_line.operands[0],
              .screen = isatty(STDOUT_FILENO) && !once,
              .colours = isatty(STDOUT_FILENO) && getenv("NO_COLOR") == NULL,
              .stop = cli_interrupts(NULL)};
    mezzo_status status = planned_steps(v.folder, &v.steps);
    struct termios before;
    const bool keys = v.screen && status == MEZZO_OK && keys_begin(&before);
    if (v.screen && status == MEZZO_OK) {       // another screen without a cursor; the first one comes back at the end
        setvbuf(stdout, NULL, _IOFBF, 1 << 16); // a frame appears at once
        printf("\033[?1049h\033[?25l");
    }
    if (status == MEZZO_OK)
        status = open_log(&v, &log);
    if (status == MEZZO_OK)
        status = follow(&v, &log, interval, once, keys);
    if (keys)
        tcsetattr(STDIN_FILENO, TCSANOW, &before);
    if (v.screen) {
        printf("\033[?25h\033[?1049l");
        fflush(stdout);
    }
    if (status == MEZZO_ERR_INTERRUPTED) // it has changed nothing, and the user asked to leave
        status = MEZZO_OK;
    mz_run_log_free(&log);
    return cli_code(status);
}
