// Compares each kernel of a device with the ref device's on small calls.
#ifndef MZ_STUDY_CHECK_H
#define MZ_STUDY_CHECK_H

#include <signal.h>

#include "study/measure/kernels.h"

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

// One row for each op of mz_bench_op_at, shape (one of round sizes, one of odd ones), precision and kernel that takes
// the call. `stop` may be NULL. Errors: MEMORY, a device's own, INTERRUPTED.
mezzo_status mz_check_kernels(mezzo_device *device, const volatile sig_atomic_t *stop, mz_check_fn *visit, void *user);

#endif
