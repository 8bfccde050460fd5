#include "study/analyse/decide.h"

#include <math.h>

static int choose(const mz_option *options, int n) {
    double best = INFINITY;
    int first = -1;
    for (int i = 0; i < n; i++) {
        if (!options[i].passed)
            continue;
        first = first < 0 ? i : first;
        if (options[i].seconds < best)
            best = options[i].seconds;
    }
    for (int i = 0; i < n; i++)
        if (options[i].passed && options[i].seconds <= best * (1 + MZ_DECIDE_TIE))
            return i;
    return first; // no option was timed
}

bool mz_option_text(const mz_option *option, const mz_option *chosen, char *buf, size_t size) {
    double time = option->seconds / chosen->seconds, memory = option->memory / chosen->memory;
    if (!isnan(time) && !isnan(memory))
        snprintf(buf, size, "%s takes %.2f x the time and %.2f x the memory", option->name, time, memory);
    else if (!isnan(time))
        snprintf(buf, size, "%s takes %.2f x the time", option->name, time);
    else if (!isnan(memory))
        snprintf(buf, size, "%s takes %.2f x the memory", option->name, memory);
    else
        snprintf(buf, size, "%s", option->name);
    size_t used = strlen(buf);
    if (option->note[0] != '\0' && used < size)
        snprintf(buf + used, size - used, " (%s)", option->note);
    return !isnan(time) || !isnan(memory) || option->note[0] != '\0';
}

static const char *why(const mz_option *options, int n, int chosen) {
    int timed = 0, faster = 0, native = 0;
    for (int i = 0; i < n; i++) {
        native += options[i].native;
        timed += options[i].passed && !isnan(options[i].seconds);
        faster += options[i].passed && options[i].seconds < options[chosen].seconds;
    }
    if (native == 1 && options[chosen].native && timed < 2)
        return timed == 0 ? "the only precision that this device runs natively, so nothing was timed"
                          : "the only precision that this device runs natively";
    if (timed > 1 && faster > 0)
        return "no narrower format is more than 2 % faster";
    if (timed > 1)
        return "the fastest that passes the numeric check";
    return "the only one that can be used here";
}

void mz_decide(const mz_option *options, int n, const char *unit, mz_decision *out) {
    *out = (mz_decision){.chosen = choose(options, n)};
    if (out->chosen < 0)
        return;
    const mz_option *best = &options[out->chosen];
    char line[400];
    int used = snprintf(out->reason, sizeof out->reason, "%s: %s", best->name, why(options, n, out->chosen));
    if (unit != NULL && !isnan(best->seconds))
        used += snprintf(out->reason + used, sizeof out->reason - (size_t)used, ", %.4g %s", 1e3 * best->seconds, unit);
    for (int i = 0, told = 0; i < n; i++)
        if (i != out->chosen && mz_option_text(&options[i], best, line, sizeof line) &&
            (size_t)used + strlen(line) + 3 < sizeof out->reason)
            used +=
                snprintf(out->reason + used, sizeof out->reason - (size_t)used, "%s%s", told++ > 0 ? ", " : "; ", line);
}
