// A deferred call runs later, and other code waits for the bytes that it touches. On a device with streams it runs on
// another stream than the next program, concurrently with it (run.c). Any later read or write of those bytes, by a
// kernel, a host copy or another list of calls, waits for it, so results are the same as without deferral.
#ifndef MZ_RUNTIME_DEFERRED_H
#define MZ_RUNTIME_DEFERRED_H

#include "runtime/streams.h"

// Holds a call with its kernel, its constants and the bytes it touches, to run later and more than once.
typedef struct mz_bound_call {
    const mz_kernel *kernel;
    mz_call call;           // its state is that of the prepared call, which must outlive it
    mz_update_attrs update; // a copy of *call.attrs.update
    mz_traffic traffic;
    mz_span *spans; // the spans that `traffic` points to
    int stream;     // the stream on which it runs where streams are captured
} mz_bound_call;
typedef struct mz_call_list {
    mz_bound_call *calls;
    size_t n, cap;
} mz_call_list;
// Copies the call. traffic: the bytes that it reads and writes; NULL: those of its tensors.
mezzo_status mz_call_list_add(mz_call_list *list, const mz_prepared *prepared, const mz_call *call,
                              const mz_traffic *traffic);
mezzo_status mz_bound_call_run(mezzo_device *device, mz_bound_call *call);
bool mz_call_list_depends(const mz_call_list *list,
                          const mz_traffic *second); // whether `second` depends on some call of the list
bool mz_call_list_equal(const mz_call_list *a, const mz_call_list *b);
void mz_call_list_free(mz_call_list *list);

// Holds calls that wait together. Several lists may wait, in the order in which they were pushed.
enum { MZ_DEFERRED_LISTS = 4 }; // to push one more runs the earlier lists
typedef struct mz_deferred {
    mz_call_list list;
    uint64_t id; // the number of these calls; never 0, nor that of another list
    struct mz_deferred *next;
} mz_deferred;

mezzo_status mz_deferred_push(mezzo_device *device, mz_deferred *deferred); // the list waits from now on; the caller
                                                                            // owns it
bool mz_deferred_waits(const mezzo_device *device, const mz_deferred *deferred);
mezzo_status mz_deferred_flush(mezzo_device *device);                           // runs all waiting calls
mezzo_status mz_deferred_wait(mezzo_device *device, const mz_traffic *traffic); // runs the waiting calls if one of them
                                                                                // touches these bytes
// Takes all waiting lists, for a caller that runs them on a stream. After an error the caller returns them.
mz_deferred *mz_deferred_take(mezzo_device *device);
void mz_deferred_give_back(mezzo_device *device, mz_deferred *first);

#endif
