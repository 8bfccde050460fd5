// Progress on stderr: a bar on a terminal, one plain line a report elsewhere.
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli.h"

enum { LINE_BYTES = 512, BAR_CELLS = 20, BAR_CELLS_NARROW = 8 };
static const double REDRAW_SECONDS = 0.1;

void cli_progress_start(cli_progress *p, bool quiet) {
    const char *term = getenv("TERM");
    bool can_draw = isatty(STDERR_FILENO) && term != NULL && strcmp(term, "dumb") != 0;
    *p = (cli_progress){.quiet = quiet, .bar = can_draw, .val_loss = NAN};
}

void cli_progress_end(cli_progress *p) {
    if (p->drawn)
        fputs("\r\033[K", stderr);
    p->drawn = false;
}

static void add(char line[LINE_BYTES], const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void add(char line[LINE_BYTES], const char *fmt, ...) {
    size_t used = strlen(line);
    va_list args;
    va_start(args, fmt);
    vsnprintf(line + used, LINE_BYTES - used, fmt, args);
    va_end(args);
}

// x86 makes NaNs with the sign set, which printf shows; a reader would look for a reason.
static double unsigned_nan(double x) {
    return isnan(x) ? fabs(x) : x;
}

// What a report says, the most wanted first: a narrow terminal cuts the end.
static void describe(char line[LINE_BYTES], const cli_progress *p, const mezzo_progress *now) {
    char buf[32];
    add(line, "step %lld/%lld  loss %.4f", (long long)now->step, (long long)now->steps, unsigned_nan(now->loss));
    add(line, "  %s %s/s", cli_thousands(now->tokens_per_second, buf, sizeof buf),
        strcmp(now->unit, "tokens") == 0 ? "tok" : now->unit);
    add(line, "  %s left", cli_duration(now->seconds_left, buf, sizeof buf));
    if (!isnan(p->val_loss))
        add(line, "  val %.4f", p->val_loss);
    add(line, "  lr %.2e", now->lr);
    if (now->loss_scale != 1)
        add(line, "  scale %g", now->loss_scale);
    add(line, "  norm %.3f", unsigned_nan(now->grad_norm));
    if (now->skipped > 0 || now->loss_scale != 1)
        add(line, "  skipped %lld", (long long)now->skipped);
    if (!isnan(now->mfu))
        add(line, "  mfu %.1f %%", 100 * now->mfu);
    if (!isnan(now->joules_per_token))
        add(line, "  %.3g mJ/%s", 1e3 * now->joules_per_token, strcmp(now->unit, "tokens") == 0 ? "tok" : "example");
    if (now->wait_ms > 0.01 * now->step_ms)
        add(line, "  waits %.0f %%", 100 * now->wait_ms / now->step_ms);
    add(line, "  mem %s", cli_bytes(now->memory_bytes, buf, sizeof buf));
}

static void draw(cli_progress *p, const mezzo_progress *now) {
    double t = mz_seconds();
    if (p->drawn && t - p->last_drawn < REDRAW_SECONDS && now->step < now->steps)
        return;
    char line[LINE_BYTES] = "[";
    double part = now->steps > 0 ? (double)now->step / (double)now->steps : 0;
    size_t width = (size_t)cli_terminal_columns(stderr);
    int cells = width < 110 ? BAR_CELLS_NARROW : BAR_CELLS, full = (int)(part * cells);
    for (int i = 0; i < cells; i++)
        add(line, "%c", i < full ? '=' : i == full ? '>' : ' ');
    add(line, "] %3.0f%% ", 100 * part);
    describe(line, p, now);
    if (width - 1 < strlen(line)) { // the last column stays free, or the terminal would wrap; what is cut is cut whole
        size_t end = width - 1;
        while (end > 0 && strncmp(line + end, "  ", 2) != 0)
            end--;
        line[end > 0 ? end : width - 1] = '\0';
    }
    fprintf(stderr, "\r%s\033[K", line);
    fflush(stderr);
    p->drawn = true;
    p->last_drawn = t;
}

// Sampled text may hold anything: control characters must not drive the terminal.
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

void cli_progress_show(void *user, const mezzo_progress *now) {
    cli_progress *p = user;
    if (!isnan(now->val_loss))
        p->val_loss = now->val_loss;
    if (now->event == MEZZO_EVENT_WARNING) {
        cli_progress_end(p);
        fprintf(stderr, "mezzo: warn: %s\n", now->text);
        return;
    }
    if (p->quiet)
        return;
    if (now->event == MEZZO_EVENT_STEP && p->bar) {
        draw(p, now);
        return;
    }
    cli_progress_end(p);
    switch (now->event) {
    case MEZZO_EVENT_START:
        fprintf(stderr, "%s\n", now->text);
        break;
    case MEZZO_EVENT_STEP: {
        char line[LINE_BYTES] = "";
        describe(line, p, now);
        fprintf(stderr, "%s\n", line);
        break;
    }
    case MEZZO_EVENT_EVAL:
        fprintf(stderr, "step %lld/%lld  val loss %.4f\n", (long long)now->step, (long long)now->steps,
                unsigned_nan(now->val_loss));
        break;
    case MEZZO_EVENT_SAMPLE:
        print_sample(now);
        break;
    case MEZZO_EVENT_CHECKPOINT:
        fprintf(stderr, "checkpoint %s\n", cli_show(now->text).text);
        break;
    case MEZZO_EVENT_PROFILE:
        fprintf(stderr, "%s\n", now->text);
        break;
    case MEZZO_EVENT_WARNING:
    case MEZZO_EVENT_END:
        break;
    }
}

void cli_wait_show(cli_wait *w, double part) {
    const char *term = getenv("TERM");
    const bool can_draw = isatty(STDERR_FILENO) && term != NULL && strcmp(term, "dumb") != 0;
    const double now = mz_seconds();
    char left[32];
    if (w->started == 0)
        w->started = w->shown = now;
    if (now - w->started < 1 || (w->drawn && now - w->shown < REDRAW_SECONDS) || (!can_draw && now - w->shown < 10))
        return;
    const double seconds = part > 0 ? (now - w->started) * (1 - part) / part : (double)NAN;
    fprintf(stderr, "%s%s: %.0f %%, %s left%s", can_draw ? "\r" : "", cli_show(w->what).text, 100 * part,
            cli_duration(seconds, left, sizeof left), can_draw ? "\033[K" : "\n");
    fflush(stderr);
    w->shown = now;
    w->drawn = can_draw;
}

void cli_wait_end(cli_wait *w) {
    if (w->drawn)
        fputs("\r\033[K", stderr);
    w->drawn = false;
}
