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

// Every file of two checkpoints, byte for byte.
static inline void tiny_same(const char *a, const char *b) {
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors", "state.json"};
    for (size_t i = 0; i < MZ_COUNT(files); i++) {
        char path_a[4200], path_b[4200], *data_a, *data_b;
        size_t n_a, n_b;
        snprintf(path_a, sizeof path_a, "%s/%s", a, files[i]);
        snprintf(path_b, sizeof path_b, "%s/%s", b, files[i]);
        must(mz_file_read(path_a, 1 << 24, &data_a, &n_a));
        must(mz_file_read(path_b, 1 << 24, &data_b, &n_b));
        if (n_a != n_b || memcmp(data_a, data_b, n_a) != 0)
            fail_msg("%s and %s differ", path_a, path_b);
        mz_free(data_a);
        mz_free(data_b);
    }
}

#endif
