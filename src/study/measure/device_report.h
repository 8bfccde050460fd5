// The owner of a device can send this report to those who do not have one: every self-test, and the rates of its
// kernels.
#ifndef MZ_STUDY_DEVICE_REPORT_H
#define MZ_STUDY_DEVICE_REPORT_H

#include <signal.h>

#include "backend/backend.h"
#include "io/json.h"

// Adds to `report`: "mezzo" and "system" (versions), "models" (mz_selftest of each family in each precision that the
// device has), "kernels" (mz_check_kernels), "rates" (mz_bench_kernels on a GPT's shapes) and "failed", how many
// rows of the first two failed. A minute or two. `stop` may be NULL. Errors: MEMORY, a device's own, INTERRUPTED.
mezzo_status mz_device_report(mezzo_device *device, const volatile sig_atomic_t *stop, json_t *report);
// To `path`: JSON where it ends in .json, else a page.
mezzo_status mz_device_report_write(const json_t *report, const char *path);

#endif
