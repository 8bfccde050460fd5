// Passes log lines to the one sink that the program sets; the library itself never prints.
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>

#include "base/names.h"

enum { LINE_BYTES = 2048 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static mezzo_log_fn sink;
static void *sink_user;

void mezzo_log_set(mezzo_log_fn fn, void *user) {
    pthread_mutex_lock(&lock);
    sink = fn;
    sink_user = user;
    pthread_mutex_unlock(&lock);
}

static mezzo_log_fn sink_get(void **user) {
    pthread_mutex_lock(&lock);
    mezzo_log_fn fn = sink;
    *user = sink_user;
    pthread_mutex_unlock(&lock);
    return fn;
}

bool mz_verbose_names(const char *topic) {
    const char *list = getenv("MEZZO_VERBOSE");
    return list != NULL && (mz_is_listed(list, "all") || mz_is_listed(list, topic));
}

bool mz_log_enabled(const char *topic) {
    void *user;
    if (sink_get(&user) == NULL)
        return false;
    return strcmp(topic, "dispatch") != 0 || mz_verbose_names(topic);
}

void mz_log(const char *topic, const char *fmt, ...) {
    if (!mz_log_enabled(topic))
        return;
    char line[LINE_BYTES];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    if (n < 0)
        return;
    mz_text_tame(line); // removes line ends and control characters of names from files
    void *user;
    mezzo_log_fn fn = sink_get(&user);
    if (fn != NULL)
        fn(user, topic, line);
}

// --- work --------------------------------------------------------------------------------------------------------
static mz_work_fn listener;

void mz_work_set(mz_work_fn fn) {
    listener = fn;
}

void mz_work(const char *what, int64_t done, int64_t total) {
    if (listener != NULL)
        listener(what, done, total);
}
