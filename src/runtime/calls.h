// Running calls outside of programs: one by one, or gathered into a batch that a device captures.
#ifndef MZ_RUNTIME_CALLS_H
#define MZ_RUNTIME_CALLS_H

#include "runtime/deferred.h"

// Runs a prepared call, for update ops and tests. With scratch NULL, a workspace is allocated for this run alone.
mezzo_status mz_run(mezzo_device *device, const mz_prepared *prepared, mz_call *call, void *scratch);
mezzo_status mz_run_once(mezzo_device *device, mz_call *call); // mz_prepare, mz_run, mz_prepared_free
// On a device that captures, what mz_run, mz_zero and mz_fetch are asked between begin and end is gathered and run in order at the end,
// fetches last; from the third time on the same calls (kernels, tensors, constants) are the launch of one graph. Nothing else that has to
// come after a gathered call may be asked of the device in between, and fetched bytes must not change any more. On other devices each call
// runs at once. *batch is made by the first begin and belongs to the caller.
typedef struct mz_batch mz_batch;
mezzo_status mz_batch_begin(mezzo_device *device, mz_batch **batch);
mezzo_status mz_batch_end(mezzo_device *device);
void mz_batch_cancel(mezzo_device *device); // after an error in between: forgets what was gathered
void mz_batch_free(mezzo_device *device, mz_batch *batch);
mezzo_status mz_zero(mezzo_device *device, void *data, size_t bytes);
mezzo_status mz_fetch(mezzo_device *device, int slot, const void *src, size_t bytes);

bool mz_can_defer(const mezzo_device *device); // now, by mz_defer
// mz_run, deferred where the device can. traffic: what the call reads and writes, if that is less than its tensors. No scratch.
mezzo_status mz_defer(mezzo_device *device, const mz_prepared *prepared, mz_call *call, const mz_traffic *traffic);

#endif
