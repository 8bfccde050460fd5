// Running calls outside of programs: one by one, or as a list that is made once and captured.
#ifndef MZ_RUNTIME_CALLS_H
#define MZ_RUNTIME_CALLS_H

#include "runtime/deferred.h"

// Runs a prepared call. With scratch NULL a workspace is allocated for this run alone, which then waits. Deferred calls
// that touch the call's tensors run before it.
mezzo_status mz_run(mezzo_device *device, const mz_prepared *prepared, mz_call *call, void *scratch);
mezzo_status mz_run_once(mezzo_device *device, mz_call *call); // mz_prepare, mz_run, mz_prepared_free

// A list of calls that is made once and run again and again: on a device that captures, call by call the first time,
// which loads kernels, and as the launch of one graph from then on.
typedef struct mz_sequence mz_sequence;
mezzo_status mz_sequence_create(mezzo_device *device, mz_sequence **out);
void mz_sequence_free(mz_sequence *sequence); // NULL is fine
// Empties the list, to be made anew; its deferred calls run first if they wait.
mezzo_status mz_sequence_clear(mz_sequence *sequence);
// The call, with its workspace, and its constants are copied. traffic: as mz_call_list_add's.
mezzo_status mz_sequence_add(mz_sequence *sequence, const mz_prepared *prepared, const mz_call *call,
                             const mz_traffic *traffic);
// The same, deferred to `stream` where the device has streams and no later call of the sequence needs what it does. Its
// kernel has no workspace.
mezzo_status mz_sequence_defer(mz_sequence *sequence, int stream, const mz_prepared *prepared, const mz_call *call,
                               const mz_traffic *traffic);
mezzo_status mz_sequence_run(mz_sequence *sequence);
bool mz_can_defer(const mezzo_device *device);

// Adds to `into`, or where that is NULL runs now.
mezzo_status mz_issue(mezzo_device *device, mz_sequence *into, const mz_prepared *prepared, mz_call *call,
                      void *scratch, const mz_traffic *traffic);

#endif
