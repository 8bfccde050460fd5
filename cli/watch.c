// mezzo watch: a run's numbers in a terminal, while it writes them.
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"
#include "train/config.h"
#include "io/file.h"
#include "study/page/run_log.h"
#include "train/health.h"

typedef struct row {
    const char *label, *series;
    bool logarithmic, whole;
    const char *unit;
} row;

static const row rows[] = {
    {"training loss", "train/loss", false, false, ""},
    {"validation loss", "val/loss", false, false, ""},
    {"accuracy", "val/accuracy", false, false, ""},
    {"learning rate", "train/lr", false, false, ""},
    {"gradient norm", "gradients/total_norm", true, false, ""},
    {"loss scale", "amp/loss_scale", true, true, ""},
    {"skipped steps", "amp/skipped_steps", false, true, ""},
    {"throughput", "perf/tokens_per_second", false, true, " tokens/s"},
    {"throughput", "perf/examples_per_second", false, true, " examples/s"},
    {"time of a step", "perf/step_ms", false, false, " ms"},
};

// A curve of `width` characters, each the mean of its stretch of steps; '!' where a value is not finite.
// *least and *most: the curve's ends.
static void spark(const mz_series *s, int width, bool logarithmic, char *out, size_t size, double *least,
                  double *most) {
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
        double share = high > low ? (cells[i] - low) / (high - low) : low == 0 && !logarithmic ? 0 : 0.5;
        const char *mark = broken[i] ? "!" : isnan(cells[i]) ? " " : blocks[(int)fmin(7, 8 * share)];
        used += (size_t)snprintf(out + used, size - used, "%s", mark);
    }
    *least = logarithmic ? exp(low) : low;
    *most = logarithmic ? exp(high) : high;
}

static const char *value_text(const row *r, double x, char *buffer, size_t size) {
    char number[48];
    if (isnan(x))
        snprintf(buffer, size, "nan");
    else if (r->whole)
        snprintf(buffer, size, "%s%s", cli_thousands(x, number, sizeof number), r->unit);
    else
        snprintf(buffer, size, "%.*g%s", fabs(x) >= 1000 ? 6 : 5, x, r->unit);
    return buffer;
}

// The number of steps from config.yaml's line "  steps: N" under "train:"; 0 where it is not told.
static mezzo_status planned_steps(const char *folder, int64_t *steps) {
    char *path = mz_format("%s/config.yaml", folder);
    mezzo_config *config = NULL;
    mz_run_config run;
    *steps = 0;
    if (path == NULL)
        return MEZZO_ERR_MEMORY;
    mezzo_status status = access(path, R_OK) == 0 ? mezzo_config_create(&config) : MEZZO_OK;
    if (config != NULL)
        status = mezzo_config_load(config, path);
    if (config != NULL && status == MEZZO_OK)
        status = mz_run_config_read(config, &run);
    if (config != NULL && status == MEZZO_OK)
        *steps = run.steps;
    mezzo_config_free(config);
    mz_free(path);
    return status == MEZZO_ERR_MEMORY ? status : MEZZO_OK;
}

static int columns_of_terminal(void) {
    struct winsize size;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        return size.ws_col;
    return 100;
}

// NaN where there is none, or no memory to find it: then nothing is said of the time that is left.
static double middle_of(const mz_series *series) {
    double middle;
    (void)mz_series_middle(series, &middle);
    return middle;
}

// Records come at most so far apart as the last two of them did in steps, give or take validation and samples.
static bool has_stopped(const mz_run_log *log, double age) {
    const mz_series *each = mz_run_log_find(log, "perf/step_ms");
    double steps = 100;
    if (each != NULL && each->count > 1)
        steps = (double)log->last_step / (double)each->count * 3;
    double expected = each != NULL ? steps * middle_of(each) * 1e-3 : 60;
    return age > 30 + (isfinite(expected) ? expected : 60);
}

static void print_frame(const mz_run_log *log, int64_t steps, double age, const char *line_end) {
    char buffer[64], curve[1100];
    int width = columns_of_terminal() - 64; // label, value and, behind the curve, its ends
    width = width < 10 ? 10 : width > 120 ? 120 : width;
    const char *device = mz_run_log_text(log, "run/device"), *precision = mz_run_log_text(log, "amp/precision");
    char head[1024]; // texts of a file: nothing in them may drive the terminal
    snprintf(head, sizeof head, "%s%s%s%s%s", log->folder, precision != NULL ? ", " : "",
             precision != NULL ? precision : "", device != NULL ? " on " : "", device != NULL ? device : "");
    mz_text_tame(head);
    printf("%s%s\n", head, line_end);
    if (log->last_step < 0) {
        printf("no records yet%s\n", line_end);
        return;
    }
    printf("step %lld", (long long)log->last_step);
    if (steps > 0)
        printf(" of %lld (%.0f %%)", (long long)steps, 100.0 * (double)log->last_step / (double)steps);
    const mz_series *each = mz_run_log_find(log, "perf/step_ms");
    double left = steps > log->last_step ? middle_of(each) * 1e-3 * (double)(steps - log->last_step) : 0;
    if (steps > 0 && log->last_step >= steps)
        printf(", ended");
    else if (has_stopped(log, age))
        printf(", stopped: no records for %s", cli_duration(age, buffer, sizeof buffer));
    else if (steps > log->last_step && isfinite(left))
        printf(", about %s left", cli_duration(left, buffer, sizeof buffer));
    printf("%s\n%s\n", line_end, line_end);
    for (size_t i = 0; i < MZ_COUNT(rows); i++) {
        const mz_series *s = mz_run_log_find(log, rows[i].series);
        if (s == NULL || s->n == 0)
            continue;
        double least, most;
        spark(s, width, rows[i].logarithmic, curve, sizeof curve, &least, &most);
        printf("%-16s %20s  %s  %.2g to %.2g%s\n", rows[i].label,
               value_text(&rows[i], mz_series_last(s), buffer, sizeof buffer), curve, least, most, line_end);
    }
    double memory = mz_series_last(mz_run_log_find(log, "perf/memory_bytes"));
    if (memory > 0)
        printf("%-16s %20s%s\n", "memory", cli_bytes((size_t)memory, buffer, sizeof buffer), line_end);
}

static double seconds_since_written(const char *folder) {
    char *path = mz_format("%s/metrics.jsonl", folder);
    struct stat info;
    double age = path != NULL && stat(path, &info) == 0 ? difftime(time(NULL), info.st_mtime) : 0;
    mz_free(path);
    return age;
}

// Keys one by one and unseen, until the terminal is as it was.
static bool keys_begin(struct termios *before) {
    if (!isatty(STDIN_FILENO) || tcgetattr(STDIN_FILENO, before) != 0)
        return false;
    struct termios raw = *before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    return tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
}

// Waits; true once q was pressed. A signal ends it early.
static bool wait_for_q(double seconds, bool keys) {
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    char key = 0;
    if (poll(&in, keys ? 1 : 0, (int)(1e3 * seconds)) <= 0 || !keys)
        return false;
    return read(STDIN_FILENO, &key, 1) != 1 || key == 'q' || key == 'Q';
}

static int run(const cli_args *args) {
    double interval;
    int code = cli_number(args, "interval", 0.1, 3600, 1, &interval);
    if (code != CLI_DONE)
        return code;
    if (args->n_operands == 0)
        return cli_wrong(args->command, "name a run folder: mezzo watch runs/mezzo");
    const char *folder = args->operands[0];
    mz_run_log log;
    mezzo_status status = mz_run_log_open(folder, (mz_run_log_progress){0}, &log);
    bool screen = isatty(STDOUT_FILENO) && !cli_has(args, "once");
    const volatile sig_atomic_t *stop = cli_interruptible();
    int64_t steps = 0;
    if (status == MEZZO_OK)
        status = planned_steps(folder, &steps);
    char health[512] = "";
    bool healthy = true, colours = isatty(STDOUT_FILENO) && getenv("NO_COLOR") == NULL;
    struct termios before;
    bool keys = screen && status == MEZZO_OK && keys_begin(&before);
    if (screen && status == MEZZO_OK)
        printf("\033[?1049h\033[?25l"); // another screen, no cursor: what was there comes back
    while (status == MEZZO_OK) {
        if (screen)
            printf("\033[H");
        print_frame(&log, steps, seconds_since_written(folder), screen ? "\033[K" : "");
        healthy = mz_health_verdict(&log.health, health, sizeof health);
        const char *paint = !colours ? "" : healthy ? "\033[32m" : "\033[31m";
        if (health[0] != '\0')
            printf("%s\n%s%s%s%s\n", screen ? "\033[K" : "", paint, health, colours ? "\033[0m" : "",
                   screen ? "\033[K" : "");
        if (screen)
            printf("\033[J\n(press q to quit; the run continues)");
        fflush(stdout);
        bool over = steps > 0 && log.last_step >= steps;
        if (cli_has(args, "once") || *stop != 0 || (over && !screen))
            break;
        if (wait_for_q(interval, keys) || *stop != 0)
            break;
        status = mz_run_log_read(&log, (mz_run_log_progress){0});
    }
    if (keys)
        tcsetattr(STDIN_FILENO, TCSANOW, &before);
    if (screen)
        printf("\033[?25h\033[?1049l");
    if (status != MEZZO_OK)
        code = cli_error(args->command, status);
    mz_run_log_free(&log);
    return code;
}

static const cli_option options_table[] = {
    {"interval", "SECONDS", "time between updates [1]"},
    {"once", NULL, "print the current values and exit"},
    {0},
};

const cli_command cli_watch = {
    .name = "watch",
    .summary = "show a run's metrics live in the terminal",
    .usage = "RUN [--interval SECONDS] [--once]",
    .details = "Reads the files that mezzo train writes to the run folder, and can run on another machine that sees "
               "the folder. If stdout is not a terminal, it prints one frame per interval until the run's last step.",
    .options = options_table,
    .max_operands = 1,
    .run = run,
};
