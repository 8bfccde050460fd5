// A device: where programs run. One backend, one set of threads or one GPU.
// Ownership, threads and errors that a comment does not name: mezzo.h.
#ifndef MEZZO_DEVICE_H
#define MEZZO_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mezzo/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mezzo_device mezzo_device;

// Opens "cpu", "ref", "cuda", "cuda:N" or "auto" (a GPU if this build and machine have one, else the CPU; the choice is
// logged as a notice). `threads` 0 = every core this process may use; ignored by GPUs. The environment's
// MEZZO_ISA=amx|avx512|avx2|ref forces a lower path of the cpu backend. The caller owns *out; programs, parameters,
// optimizers and scalers made on a device must be freed before it.
// Several devices may be open in one process. A device, with all that was made on it, is used by one thread at a time;
// it need not be the thread that opened it. Devices share nothing, so that each may have a thread of its own.
// Errors: INVALID (unknown name, bad MEZZO_ISA), UNSUPPORTED (not in this build, no such device), MEMORY.
MEZZO_API mezzo_status mezzo_device_open(const char *name, int threads, mezzo_device **out);
MEZZO_API void mezzo_device_close(mezzo_device *device); // NULL is fine; waits for what is under way

typedef struct mezzo_device_info {
    const char *backend;   // "ref", "cpu", "cuda"
    char description[160]; // e.g. "AMD EPYC (avx512, bf16 dot product), 2 threads"
    int threads;
    size_t memory_total;    // bytes; 0 where unknown
    size_t memory_free;     // bytes that can still be had now; 0 where unknown
    int compute_capability; // of an NVIDIA GPU, × 10: 90 is 9.0; 0 elsewhere
    char versions[160];     // driver and libraries: "driver 580.159.04, CUDA 13.0, cuBLASLt 13.0.2"; may be ""
    bool native[MEZZO_PRECISION_COUNT]; // the precision's matmul runs in that format's arithmetic
    bool faster[MEZZO_PRECISION_COUNT]; // measured at open: its matmul arithmetic beats FP32's
    char identity[96]; // which one of its kind, of a GPU: "PCI 0000:1B:00.0, serial 1650923054321"; "" elsewhere
} mezzo_device_info;
// Describes the device; `backend` is static, the rest is copied.
MEZZO_API mezzo_status mezzo_device_describe(mezzo_device *device, mezzo_device_info *out);

// --- measuring -----------------------------------------------------------------------------------------------------
// Holds what the device's sensors say now. NaN, and 0 for bytes, where there is no such sensor or it may not be read.
typedef struct mezzo_telemetry {
    double watts;
    double joules;  // a counter: only differences mean something
    double celsius; // of the chip
    double clock_mhz, memory_clock_mhz;
    size_t memory_used;                   // bytes of the whole device, by everybody
    size_t memory_allocated, memory_peak; // bytes, by what was made on this mezzo_device: now, and the most so far
} mezzo_telemetry;
MEZZO_API mezzo_status mezzo_device_telemetry(mezzo_device *device, mezzo_telemetry *out);
// Starts memory_peak again from what is allocated now.
MEZZO_API void mezzo_device_reset_peak(mezzo_device *device);

// Marks 0 … 63 are put into the stream of work, without waiting; elapsed is the time between two of them on the
// device's own clock (a GPU's events; on a CPU the clock when mark was called) and waits until both have passed.
// INVALID: a mark out of range.
MEZZO_API mezzo_status mezzo_device_mark(mezzo_device *device, int mark);
MEZZO_API mezzo_status mezzo_device_elapsed(mezzo_device *device, int from, int to, double *seconds);
// Waits until everything asked so far is done. DEVICE where some of it failed.
MEZZO_API mezzo_status mezzo_device_sync(mezzo_device *device);

// requested × device → effective, with the reason as one line (buffer of `size` bytes; NULL to drop it). AUTO picks the
// fastest measured. A format the device lacks is never lost silently: the reason says what happened (a storage format
// with FP32 arithmetic still stores BF16/FP16; BF16 where only FP16 has arithmetic becomes FP16; TF32 on a device
// without it runs FP32). UNSUPPORTED: the device has no way to compute it, such as FP64 outside ref.
MEZZO_API mezzo_status mezzo_precision_resolve(mezzo_device *device, mezzo_precision requested,
                                               mezzo_precision *effective, char *reason, size_t size);

#ifdef __cplusplus
}
#endif
#endif
