// Shows progress on stderr: on a terminal a line that is drawn again, elsewhere a plain line at intervals.
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli.h"
#include "dist/world.h"

enum { LINE_BYTES = 512, BAR_CELLS = 20, BAR_CELLS_NARROW = 8 };
static const double REDRAW_SECONDS = 0.1, SILENT_SECONDS = 1, LINE_SECONDS = 10; // LINE_SECONDS: without a terminal

static struct {
    bool quiet, bar, drawn; // bar: stderr is a terminal
    bool all;               // prints every line at once, for tests
    double told;            // the time of the last line
    double val_loss;
} screen = {.val_loss = NAN};

void cli_progress_begin(bool quiet) {
    const char *term = getenv("TERM");
    mz_world world;
    screen.quiet = quiet || (mz_world_read(&world) == MEZZO_OK && world.rank > 0);
    screen.bar = isatty(STDERR_FILENO) && term != NULL && strcmp(term, "dumb") != 0;
    screen.told = mz_seconds();
#ifdef MEZZO_INJECT
    screen.all = getenv("MEZZO_PROGRESS_ALL") != NULL;
#endif
    mz_work_set(cli_progress_work);
}

void cli_progress_end(void) {
    if (screen.drawn)
        fputs("\r\033[K", stderr);
    screen.drawn = false;
}

void cli_progress_line(bool must, const char *fmt, ...) {
    const double t = mz_seconds();
    char line[LINE_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    if (screen.quiet || (!must && !screen.all && t - screen.told < (screen.bar ? REDRAW_SECONDS : LINE_SECONDS)))
        return;
    screen.told = t;
    if (!screen.bar) {
        fprintf(stderr, "%s\n", line);
        return;
    }
    // The last column stays free, because the terminal would wrap; characters that do not fit are dropped whole.
    const size_t most = (size_t)cli_terminal_columns(stderr) - 1;
    size_t end = strlen(line);
    if (end > most) {
        end = most;
        while (end > 0 && strncmp(line + end, "  ", 2) != 0)
            end--;
        end = end > 0 ? end : most;
    }
    fprintf(stderr, "\r%.*s\033[K", (int)end, line);
    fflush(stderr);
    screen.drawn = true;
}

// --- work ----------------------------------------------------------------------------------------------------------
// The present work, the outermost first.
static struct {
    const char *what;
    int64_t done, total;
    double began;
} works[4];
static size_t n_works;

// Returns the index of this work: work that contains it stays, and what it contained is over.
static size_t find_work(const char *what) {
    const size_t i = MZ_INDEX(works, n_works, what, what);
    if (i == n_works && i < MZ_COUNT(works)) {
        works[i].what = what;
        works[i].began = mz_seconds();
        if (i == 0 && !screen.drawn)
            screen.told = works[i].began + SILENT_SECONDS - (screen.bar ? REDRAW_SECONDS : LINE_SECONDS);
    }
    return i;
}

void cli_progress_work(const char *what, int64_t done, int64_t total) {
    const size_t at = find_work(what);
    char line[LINE_BYTES] = "";
    double left = NAN;
    if (at == MZ_COUNT(works))
        return;
    works[at].done = done;
    works[at].total = total;
    n_works = done < total ? at + 1 : at;
    if (n_works == 0)
        cli_progress_end();
    for (size_t i = 0; i < n_works; i++) {
        const double each = (mz_seconds() - works[i].began) / (double)works[i].done;
        if (works[i].done > 0 && isnan(left))
            left = each * (double)(works[i].total - works[i].done);
        cli_add(line, LINE_BYTES, "%s%s %lld/%lld", i > 0 ? ", " : "", works[i].what, (long long)works[i].done,
                (long long)works[i].total);
    }
    if (!isnan(left))
        cli_add(line, LINE_BYTES, "  %s left", mz_duration_text(left).text);
    if (n_works > 0)
        cli_progress_line(false, "%s", line);
}

// --- training ------------------------------------------------------------------------------------------------------
// Returns x, or NaN without the sign that x86 sets, which printf would show and readers would wonder about.
static double unsigned_nan(double x) {
    return isnan(x) ? fabs(x) : x;
}

// Writes a report with the most important facts first, because a narrow terminal cuts the end.
static void describe(char line[LINE_BYTES], const mezzo_progress *now) {
    cli_add(line, LINE_BYTES, "step %lld/%lld  loss %.4f", (long long)now->step, (long long)now->steps,
            unsigned_nan(now->loss));
    cli_add(line, LINE_BYTES, "  %s %s/s", mz_count_text(now->tokens_per_second).text,
            strcmp(now->unit, "tokens") == 0 ? "tok" : now->unit);
    cli_add(line, LINE_BYTES, "  %s left", mz_duration_text(now->seconds_left).text);
    if (!isnan(screen.val_loss))
        cli_add(line, LINE_BYTES, "  val %.4f", screen.val_loss);
    cli_add(line, LINE_BYTES, "  lr %.2e", now->lr);
    if (now->loss_scale != 1)
        cli_add(line, LINE_BYTES, "  scale %g", now->loss_scale);
    cli_add(line, LINE_BYTES, "  norm %.3f", unsigned_nan(now->grad_norm));
    if (now->skipped > 0 || now->loss_scale != 1)
        cli_add(line, LINE_BYTES, "  skipped %lld", (long long)now->skipped);
    if (!isnan(now->mfu))
        cli_add(line, LINE_BYTES, "  mfu %.1f %%", 100 * now->mfu);
    if (!isnan(now->joules_per_token))
        cli_add(line, LINE_BYTES, "  %.3g mJ/%s", 1e3 * now->joules_per_token,
                strcmp(now->unit, "tokens") == 0 ? "tok" : "example");
    if (now->wait_ms > 0.01 * now->step_ms)
        cli_add(line, LINE_BYTES, "  waits %.0f %%", 100 * now->wait_ms / now->step_ms);
    cli_add(line, LINE_BYTES, "  mem %s", mz_bytes_text((double)now->memory_bytes).text);
}

static void show_step(const mezzo_progress *now) {
    char line[LINE_BYTES] = "";
    if (screen.bar) {
        const double part = now->steps > 0 ? (double)now->step / (double)now->steps : 0;
        const int cells = cli_terminal_columns(stderr) < 110 ? BAR_CELLS_NARROW : BAR_CELLS, full = (int)(part * cells);
        cli_add(line, LINE_BYTES, "[");
        for (int i = 0; i < cells; i++)
            cli_add(line, LINE_BYTES, "%c", i < full ? '=' : i == full ? '>' : ' ');
        cli_add(line, LINE_BYTES, "] %3.0f%% ", 100 * part);
    }
    describe(line, now);
    cli_progress_line(!screen.bar || !screen.drawn || now->step == now->steps, "%s", line);
}

// Prints sampled text, which may contain anything: control characters must not control the terminal.
static void print_sample(const mezzo_progress *now) {
    fprintf(stderr, "sample at step %lld:\n  | ", (long long)now->step);
    for (const char *c = now->text; *c != '\0'; c++) {
        if (*c == '\n')
            fputs(c[1] != '\0' ? "\n  | " : "", stderr);
        else
            fputc((unsigned char)*c < 0x20 || *c == 0x7F ? '?' : *c, stderr);
    }
    fputc('\n', stderr);
}

void cli_progress_show(const mezzo_progress *now) {
    if (!isnan(now->val_loss))
        screen.val_loss = now->val_loss;
    if (screen.quiet && now->event != MEZZO_EVENT_WARNING)
        return;
    if (now->event == MEZZO_EVENT_STEP) {
        show_step(now);
        return;
    }
    cli_progress_end();
    switch (now->event) {
    case MEZZO_EVENT_WARNING:
        fprintf(stderr, "mezzo: warn: %s\n", now->text);
        break;
    case MEZZO_EVENT_START:
    case MEZZO_EVENT_PROFILE:
        fprintf(stderr, "%s\n", now->text);
        break;
    case MEZZO_EVENT_EVAL:
        fprintf(stderr, "step %lld/%lld  val loss %.4f (%s)\n", (long long)now->step, (long long)now->steps,
                unsigned_nan(now->val_loss), now->text);
        break;
    case MEZZO_EVENT_SAMPLE:
        print_sample(now);
        break;
    case MEZZO_EVENT_CHECKPOINT:
        fprintf(stderr, "checkpoint %s\n", mz_show(now->text).text);
        break;
    case MEZZO_EVENT_STEP:
    case MEZZO_EVENT_END:
        break;
    }
}
