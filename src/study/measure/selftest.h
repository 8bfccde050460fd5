// Trains a few steps in each precision and compares them with FP32's, to test the device's kernels.
#ifndef MZ_STUDY_SELFTEST_H
#define MZ_STUDY_SELFTEST_H

#include <signal.h>

#include "base/base.h"
#include "mezzo/device.h"

typedef struct mz_selftest {
    const char *model; // borrowed
    mezzo_precision asked, runs;
    char reason[160];   // mezzo_precision_resolve's
    double first, last; // loss after 1 step and after MZ_SELFTEST_STEPS
    double off; // the largest difference from FP32's, as a part of how far FP32's fell; of FP32: from the ref device's
    double bound;        // what `off` may be
    double milliseconds; // a step, median of 5 timings
    bool passed;
} mz_selftest;

#define MZ_SELFTEST_STEPS 12
// `model` of 2 layers and width 128 on 8 × 64 random tokens, or 8 examples, in FP32 and then in each of asked[0 … n):
// out[0 … n]; FP32's own result is first, judged by a smaller run beside the ref device. About a second each. `stop`
// may be NULL.
// Errors: as mz_rig_create, INTERRUPTED.
mezzo_status mz_selftest_run(mezzo_device *device, const char *model, const mezzo_precision *asked, int n,
                             const volatile sig_atomic_t *stop, mz_selftest *out);
const char *mz_selftest_model(int i); // those that together run every op; NULL past the end

#endif
