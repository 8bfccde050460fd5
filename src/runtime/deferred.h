// Deferred calls. On a device with streams a deferred call runs on a stream of its own, concurrently with the next program that takes it
// along (run.c). Any later read or write of the bytes it touches, by a kernel, a host copy or another batch, waits for it, so results are the
// same as without deferral. Elsewhere it runs at once.
#ifndef MZ_RUNTIME_DEFERRED_H
#define MZ_RUNTIME_DEFERRED_H

#include "runtime/streams.h"

typedef struct mz_deferred_call {
    const mz_kernel *kernel;
    mz_call call;
    mz_update_attrs update; // what call.attrs.update pointed to
    mz_traffic traffic;
    mz_span *spans; // traffic's
} mz_deferred_call;
typedef struct mz_deferred {
    mz_deferred_call *calls;
    size_t n, cap;
    uint64_t id; // the same for lists of the same calls
} mz_deferred;

void mz_deferred_set(mezzo_device *device, mz_deferred *deferred);     // the list that waits; NULL: none
mezzo_status mz_deferred_run(mezzo_device *device, mz_deferred *list); // each call, now
mezzo_status mz_deferred_flush(mezzo_device *device);                  // the list that waits, now
void mz_deferred_clear(mz_deferred *list);

#endif
