// Declares how calls run outside of programs: one by one, or as a list that is made once and captured.
#ifndef MZ_RUNTIME_CALLS_H
#define MZ_RUNTIME_CALLS_H

#include "runtime/deferred.h"

// Runs a prepared call. With scratch NULL it allocates a workspace for this run alone, and waits. Deferred calls that
// touch the call's tensors run before it.
mezzo_status mz_run(mezzo_device *device, const mz_prepared *prepared, mz_call *call, void *scratch);
mezzo_status mz_run_once(mezzo_device *device, mz_call *call); // combines mz_prepare, mz_run and mz_prepared_free

// Holds a list of calls that is made once and run many times. A device that captures runs it call by call the first
// time, which loads kernels, and launches one graph from then on.
typedef struct mz_sequence mz_sequence;
mezzo_status mz_sequence_create(mezzo_device *device, mz_sequence **out);
void mz_sequence_free(mz_sequence *sequence); // NULL is allowed
// Empties the list. Deferred calls that are waiting run first.
mezzo_status mz_sequence_clear(mz_sequence *sequence);
// Copies the call with its workspace and constants. traffic: as in mz_call_list_add.
mezzo_status mz_sequence_add(mz_sequence *sequence, const mz_prepared *prepared, const mz_call *call,
                             const mz_traffic *traffic);
// Adds a call on `stream`. Where the device has streams, the call runs concurrently with calls of other streams on
// which it does not depend; the bytes that they touch decide, without a kernel's workspace.
mezzo_status mz_sequence_add_on(mz_sequence *sequence, int stream, const mz_prepared *prepared, const mz_call *call,
                                const mz_traffic *traffic);
// Adds a call and defers it to `stream`, where the device has streams and no later call of the sequence depends on it.
// Its kernel has no workspace.
mezzo_status mz_sequence_defer(mz_sequence *sequence, int stream, const mz_prepared *prepared, const mz_call *call,
                               const mz_traffic *traffic);
mezzo_status mz_sequence_run(mz_sequence *sequence);
bool mz_can_defer(const mezzo_device *device);

// Adds the call to `into`; into NULL: runs it now.
mezzo_status mz_issue(mezzo_device *device, mz_sequence *into, const mz_prepared *prepared, mz_call *call,
                      void *scratch, const mz_traffic *traffic);

#endif
