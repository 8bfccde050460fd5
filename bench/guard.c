// bench/guard: what the guard costs. Two runs of one configuration in one process, one with the guard and one without
// it, take turns of a few steps each, the first of a pair alternating; a row says what a step takes in both and how
// they compare, pair by pair. On a CPU processor time is counted, which other processes do not add to; on a device with
// a queue, time from an idle device to an idle device.
//   bench_guard TURNS STEPS COMMIT --KEY VALUE …      the keys of mezzo train
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "train/run.h"

enum { OFF, ON, MOST_TURNS = 1000 };

static double now(const mz_training *run) {
    struct timespec t;
    clock_gettime(run->engine.device->backend->capture_begin != NULL ? CLOCK_MONOTONIC : CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static mezzo_status open_run(int argc, const char *const *argv, const char *policy, mezzo_config **config,
                             mz_training *run) {
    const char *rest[64];
    int n = 0;
    MEZZO_TRY(mezzo_config_create(config));
    MEZZO_TRY(mezzo_config_args(*config, argc, argv, rest, &n));
    MEZZO_TRY(mezzo_config_set(*config, "guard.policy", policy, "bench"));
    MEZZO_TRY(mezzo_config_set(*config, "train.sample_every", "-1", "bench"));
    MEZZO_TRY(mz_run_open(*config, NULL, run));
    return mz_guard_arm(run);
}

static mezzo_status turn(mz_training *run, int64_t steps, double *seconds) {
    bool fresh;
    MEZZO_TRY(mezzo_device_sync(run->engine.device));
    double start = now(run);
    for (int64_t i = 0; i < steps; i++) {
        MEZZO_TRY(mz_run_step(run));
        MEZZO_TRY(mz_run_read_step(run, false, &fresh));
        if (fresh)
            MEZZO_TRY(mz_run_guard(run));
    }
    MEZZO_TRY(mezzo_device_sync(run->engine.device));
    *seconds = (now(run) - start) / (double)steps;
    return MEZZO_OK;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(double *values, int64_t n, double at) {
    qsort(values, (size_t)n, sizeof *values, compare);
    return values[(int64_t)(at * (double)(n - 1) + 0.5)];
}

static mezzo_status measure(mz_training runs[2], int64_t turns, int64_t steps, double out[2][MOST_TURNS]) {
    double warm;
    for (int i = 0; i < 2; i++)
        MEZZO_TRY(turn(&runs[i], steps < 5 ? 5 : steps, &warm));
    for (int64_t k = 0; k < turns; k++)
        for (int i = 0; i < 2; i++) {
            int which = (int)((i + k) % 2);
            MEZZO_TRY(turn(&runs[which], steps, &out[which][k]));
        }
    return MEZZO_OK;
}

int main(int argc, char **argv) {
    static double times[2][MOST_TURNS], ratio[MOST_TURNS];
    static mz_training runs[2];
    mezzo_config *configs[2] = {NULL, NULL};
    int64_t turns = argc > 3 ? atoll(argv[1]) : 0, steps = argc > 3 ? atoll(argv[2]) : 0;
    if (turns < 1 || turns > MOST_TURNS || steps < 1) {
        fprintf(stderr, "usage: bench_guard TURNS STEPS COMMIT --KEY VALUE ...\n");
        return 2;
    }
    mezzo_status status = MEZZO_OK;
    for (int i = 0; i < 2 && status == MEZZO_OK; i++)
        status = open_run(argc - 4, (const char *const *)argv + 4, i == ON ? "skip" : "off", &configs[i], &runs[i]);
    if (status == MEZZO_OK)
        status = measure(runs, turns, steps, times);
    if (status != MEZZO_OK) {
        fprintf(stderr, "bench_guard: %s: %s\n", mezzo_status_name(status), mezzo_error_message());
        return 3;
    }
    for (int64_t k = 0; k < turns; k++)
        ratio[k] = 100 * (times[ON][k] / times[OFF][k] - 1);
    printf("\"%s\",%s,\"bench_guard", runs[ON].engine.info.description, argv[3]);
    for (int i = 1; i < argc; i++)
        printf(" %s", i == 3 ? "COMMIT" : argv[i]);
    double least = 100 * (quantile(times[ON], turns, 0) / quantile(times[OFF], turns, 0) - 1);
    printf("\",%s,%lld,%.4f,%.4f,%.3f,%.3f,%.3f,%.3f\n", mezzo_precision_name(runs[ON].engine.plan.program.precision),
           (long long)(turns * steps), 1e3 * quantile(times[OFF], turns, 0.5), 1e3 * quantile(times[ON], turns, 0.5),
           quantile(ratio, turns, 0.25), quantile(ratio, turns, 0.5), quantile(ratio, turns, 0.75), least);
    for (int i = 0; i < 2; i++) {
        mz_run_close(&runs[i]);
        mezzo_config_free(configs[i]);
    }
    return 0;
}
