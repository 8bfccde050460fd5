// Training runs of a GPT so small that a step takes a millisecond, through the public calls. For tests of what a run
// leaves.
#ifndef TINY_RUN_H
#define TINY_RUN_H

#include <math.h>

#include "fixture.h"
#include "io/file.h"
#include "mezzo/train.h"

#define TINY_TEXT  "text.txt"
#define TINY_DATA  "--data=" TINY_TEXT
#define TINY_STEPS 64

typedef struct tiny_log {
    double loss[TINY_STEPS + 1]; // [s]: of step s; NaN where it was not seen
    int64_t stop_after;          // 0 = never
    bool stop_at_start;          // when all is prepared, before the first step
    volatile sig_atomic_t stop;
    int warnings;
    char warning[1024];
} tiny_log;

static inline void tiny_text(void) { // 6 kB, no two lines alike
    mz_text t = {0};
    for (unsigned i = 0; i < 160; i++)
        mz_text_addf(&t, "line %u of a text: %u, and %x besides.\n", i, i * 2654435761u >> 16, i * 40503u);
    must(mz_file_write_atomic(TINY_TEXT, t.data, t.len));
    mz_text_free(&t);
}

static inline int tiny_setup(void **state) { // of a test program
    (void)state;
    tiny_text();
    return 0;
}

static inline void tiny_watch(void *user, const mezzo_progress *p) {
    tiny_log *log = user;
    if (p->event == MEZZO_EVENT_WARNING) {
        log->warnings++;
        snprintf(log->warning, sizeof log->warning, "%s", p->text);
    }
    if (p->event == MEZZO_EVENT_START && log->stop_at_start)
        log->stop = 1;
    if (p->event != MEZZO_EVENT_STEP)
        return;
    if (p->step <= TINY_STEPS)
        log->loss[p->step] = p->loss;
    if (log->stop_after > 0 && p->step == log->stop_after)
        log->stop = 1;
}

// `args`: NULL-terminated words as on the command line, stronger than the tiny defaults.
static inline mezzo_status tiny_run(const char *out, const char *const *args, tiny_log *log,
                                    mezzo_train_result *result) {
    static const char *const tiny[] = {
        "--layers=2",     "--heads=2",           "--d-model=16",     "--seq-len=8",
        "--batch-size=3", "--threads=1",         "--warmup=4",       TINY_DATA,
        "--eval-every=0", "--eval-iters=2",      "--no-eval-final",  "--sample-every=-1",
        "--log-every=1",  "--schedule-steps=50", "--precision=fp32", "--checkpoint-every=0"};
    const char *rest[64];
    int n = 0, given = 0;
    mezzo_config *config;
    mezzo_hooks hooks = {.progress = tiny_watch, .user = log, .stop = &log->stop};
    for (int i = 0; i <= TINY_STEPS; i++)
        log->loss[i] = (double)NAN;
    must(mezzo_config_create(&config));
    for (size_t i = 0; i < MZ_COUNT(tiny); i++) {
        char key[64], *equals;
        snprintf(key, sizeof key, "%s", tiny[i] + 2);
        equals = strchr(key, '=');
        if (equals != NULL)
            *equals = '\0';
        if (strncmp(key, "no-", 3) == 0)
            must(mezzo_config_set(config, key + 3, "false", "tiny"));
        else
            must(mezzo_config_set(config, key, equals + 1, "tiny"));
    }
    must(mezzo_config_set(config, "device", test_device(), "tiny"));
    must(mezzo_config_set(config, "train.out", out, "tiny"));
    while (args != NULL && args[given] != NULL)
        given++;
    must(mezzo_config_args(config, given, args, rest, &n));
    assert_int_equal(n, 0);
    mezzo_status status = mezzo_run_train(config, &hooks, result);
    mezzo_config_free(config);
    return status;
}

static inline void tiny_clean(const char *out) {
    must(mz_dir_remove(out));
}

// Whether a file is the same in two folders, byte for byte.
static inline bool tiny_equal(const char *a, const char *b, const char *file) {
    char path[4200], *x, *y;
    size_t n, m;
    snprintf(path, sizeof path, "%s/%s", a, file);
    must(mz_file_read(path, 1 << 24, &x, &n));
    snprintf(path, sizeof path, "%s/%s", b, file);
    must(mz_file_read(path, 1 << 24, &y, &m));
    const bool equal = n == m && memcmp(x, y, n) == 0;
    mz_free(x);
    mz_free(y);
    return equal;
}

static inline void tiny_same_file(const char *a, const char *b, const char *file) {
    if (!tiny_equal(a, b, file))
        fail_msg("%s: %s differs from %s", file, a, b);
}

// Every file of two checkpoints.
static inline void tiny_same(const char *a, const char *b) {
    tiny_same_file(a, b, "model.safetensors");
    tiny_same_file(a, b, "optimizer.safetensors");
    tiny_same_file(a, b, "state.json");
}

// Two runs of those arguments have the same losses and the same checkpoint, to the bit.
static inline void tiny_runs_alike(const char *const *a, const char *const *b) {
    tiny_log log_a = {0}, log_b = {0};
    mezzo_train_result result_a, result_b;
    tiny_clean("a");
    tiny_clean("b");
    must(tiny_run("a", a, &log_a, &result_a));
    must(tiny_run("b", b, &log_b, &result_b));
    for (int64_t s = 1; s <= result_a.steps; s++)
        if (log_a.loss[s] != log_b.loss[s])
            fail_msg("step %lld: loss %.17g and %.17g", (long long)s, log_a.loss[s], log_b.loss[s]);
    tiny_same(result_a.checkpoint, result_b.checkpoint);
}

#endif
