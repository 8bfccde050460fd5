// The owner of a device can send this report to those who do not have one: every self-test, and the rates of its
// kernels.
#ifndef MZ_STUDY_DEVICE_REPORT_H
#define MZ_STUDY_DEVICE_REPORT_H

#include <signal.h>

#include "backend/backend.h"
#include "io/json.h"
#include "study/measure/kernels.h"

// Adds to `report`: "mezzo" and "system" (versions), "models" (mz_selftest of each family in each precision that the
// device has), "kernels" (mz_check_kernels), "rates" (mz_bench_kernels on a GPT's shapes) and "failed", how many
// rows of the first two failed. A minute or two. `stop` may be NULL. Errors: MEMORY, a device's own, INTERRUPTED.
mezzo_status mz_device_report(mezzo_device *device, const volatile sig_atomic_t *stop, json_t *report);
// Writes the report to `path`: JSON where it ends in .json, else a page.
mezzo_status mz_device_report_write(const json_t *report, const char *path);

// --- kernels beside the ref device (check.c) -------------------------------------------------------------------------
// Compares each kernel of a device with the ref device's on small calls.
typedef struct mz_check {
    const char *op, *kernel; // borrowed
    char shape[64];
    mezzo_precision precision;
    // For the output that differs most, relative to its tolerance: the root mean square of its difference from ref's
    // result, over the root mean square of that.
    double error, tolerance;
    bool passed;
} mz_check;
typedef void mz_check_fn(void *user, const mz_check *check);

// One row for each op of mz_bench_ops, shape (one of round sizes, one of odd ones), precision and kernel that takes
// the call. `stop` may be NULL. Errors: MEMORY, a device's own, INTERRUPTED.
mezzo_status mz_check_kernels(mezzo_device *device, const volatile sig_atomic_t *stop, mz_check_fn *visit, void *user);

// --- steps beside FP32 (selftest.c) ----------------------------------------------------------------------------------
// Trains a few steps in each precision and compares them with FP32's, to test the device's kernels.
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
