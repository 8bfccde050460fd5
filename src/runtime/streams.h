// Declares the bytes that calls read and write, and the order between streams that follows from them.
#ifndef MZ_RUNTIME_STREAMS_H
#define MZ_RUNTIME_STREAMS_H

#include "backend/backend.h"

// Holds the device bytes that a call reads and writes; the call may also read what it writes.
typedef struct mz_span {
    const char *from, *to;
} mz_span;
typedef struct mz_traffic {
    const mz_span *reads, *writes;
    int n_reads, n_writes;
} mz_traffic;
enum { MZ_SPANS = 2 * (MZ_MAX_IN + MZ_MAX_OUT) };
mz_traffic mz_traffic_of(const mz_call *call, mz_span spans[MZ_SPANS]); // of its whole tensors and scales
bool mz_traffic_depends(const mz_traffic *second, const mz_traffic *first);

// Says for each call and each other stream the newest call there that it must wait for: one that wrote bytes that it
// reads or writes, or read bytes that it writes. -1: none, or the stream has waited for it before.
typedef struct mz_stream_order {
    signed char *stream;     // per call; chosen by the caller before mz_stream_order_find
    int (*wait)[MZ_STREAMS]; // per call: the calls it waits for
    bool *recorded;          // per call: another stream waits for it
    int last[MZ_STREAMS];    // per stream: its last call; -1: none
} mz_stream_order;
mezzo_status mz_stream_order_alloc(size_t n, mz_stream_order *order);
mezzo_status mz_stream_order_find(const mz_traffic *traffic, size_t n, mz_stream_order *order);
void mz_stream_order_free(mz_stream_order *order);

// Orders calls in a capture, where call i's event has number i: fork, then each call between begin and end, then join.
// Each stream with calls starts at the capture's beginning, whose event is `beginning`. wait: for the calls that call i
// waits for.
mezzo_status mz_stream_order_fork(mezzo_device *device, const mz_stream_order *order, int beginning);
mezzo_status mz_stream_order_wait(mezzo_device *device, const mz_stream_order *order, size_t i);
mezzo_status mz_stream_order_begin(mezzo_device *device, const mz_stream_order *order, size_t i);
mezzo_status mz_stream_order_end(mezzo_device *device, const mz_stream_order *order, size_t i);
mezzo_status mz_stream_order_join(mezzo_device *device, const mz_stream_order *order);

#endif
