// Makes a report that the owner of a device can send to those who do not have one: every self-test, and the rates of
// its kernels.
#ifndef MZ_STUDY_DEVICE_REPORT_H
#define MZ_STUDY_DEVICE_REPORT_H

#include <signal.h>

#include "backend/backend.h"
#include "io/json.h"
#include "study/measure/kernels.h"

// Adds to `report`: "mezzo" and "system" (versions), "models" (mz_selftest of each family in each precision that the
// device has), "kernels" (mz_check_kernels), "rates" (mz_bench_kernels on a GPT's shapes) and "failed", the number of
// failed rows of the first two. It takes a minute or two. `stop` may be NULL. Errors: MEMORY, a device's own,
// INTERRUPTED.
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
    // result, divided by that of ref's result.
    double error, tolerance;
    bool passed;
} mz_check;
typedef void mz_check_fn(void *user, const mz_check *check);

// Checks kernels, with one row for each op of mz_bench_ops, shape (one with round sizes, one with odd ones), precision
// and kernel that takes the call. `stop` may be NULL. Errors: MEMORY, a device's own, INTERRUPTED.
mezzo_status mz_check_kernels(mezzo_device *device, const volatile sig_atomic_t *stop, mz_check_fn *visit, void *user);

// --- steps beside FP32 (selftest.c) ----------------------------------------------------------------------------------
// Trains a few steps in each precision and compares them with FP32's, to test the device's kernels.
typedef struct mz_selftest {
    const char *model; // borrowed
    mezzo_precision asked, runs;
    char reason[160];   // from mezzo_precision_resolve
    double first, last; // loss after 1 step and after MZ_SELFTEST_STEPS
    double off; // the largest difference from FP32's loss, as a share of the decrease of FP32's loss; for FP32 from the
                // ref device's
    double bound;        // the bound for `off`
    double milliseconds; // of a step, the median of 5 timings
    bool passed;
} mz_selftest;

#define MZ_SELFTEST_STEPS 12
// Trains `model` with 2 layers and width 128 on 8 × 64 random tokens, or 8 examples, in FP32 and then in each of
// asked[0 … n): out[0 … n]. FP32's own result is first, judged by a smaller run on the ref device. It takes about a
// second for each. `stop` may be NULL.
// Errors: as mz_rig_create, INTERRUPTED.
mezzo_status mz_selftest_run(mezzo_device *device, const char *model, const mezzo_precision *asked, int n,
                             const volatile sig_atomic_t *stop, mz_selftest *out);
const char *mz_selftest_model(int i); // the models that together run every op; NULL after the last one

#endif
