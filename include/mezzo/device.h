// A device runs programs. It has one backend, and one set of threads or one GPU. Ownership, threads and errors that a
// comment does not name: mezzo.h.
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

// Opens "cpu", "ref", "cuda", "cuda:N" or "auto" (a GPU if this build and machine have one, else the CPU; a notice in
// the log names the choice). `threads` 0 = every core this process may use; ignored by GPUs. The environment's
// MEZZO_ISA=amx|avx512|avx2|ref forces a lower path of the cpu backend. The caller owns *out; programs, parameters,
// optimizers and scalers made on a device must be freed before it.
// Several devices may be open in one process. A device, with all that was made on it, is used by one thread at a time;
// it need not be the thread that opened it. Devices share nothing, so that each may have a thread of its own.
// Errors: INVALID (unknown name, bad MEZZO_ISA), UNSUPPORTED (not in this build, no such device), MEMORY.
MEZZO_API mezzo_status mezzo_device_open(const char *name, int threads, mezzo_device **out);
MEZZO_API void mezzo_device_close(mezzo_device *device); // NULL is allowed; waits for running work

typedef struct mezzo_device_info {
    const char *backend;   // "ref", "cpu", "cuda"
    char description[160]; // e.g. "AMD EPYC (avx512, bf16 dot product), 2 threads"
    int threads;
    size_t memory_total;    // bytes; 0 where unknown
    size_t memory_free;     // free bytes now; 0 where unknown
    int compute_capability; // an NVIDIA GPU's, × 10: 90 is 9.0; 0 elsewhere
    char versions[160];     // driver and libraries: "driver 580.159.04, CUDA 13.0, cuBLASLt 13.0.2"; may be ""
    bool native[MEZZO_PRECISION_COUNT]; // the precision's matmul runs in that format's arithmetic
    bool faster[MEZZO_PRECISION_COUNT]; // measured when the device is opened: its matmul arithmetic is faster than
                                        // FP32's
    char identity[96]; // tells a GPU from others of its kind: "PCI 0000:1B:00.0, serial 1650923054321"; "" elsewhere
} mezzo_device_info;
// Describes the device; `backend` is static, the other members are copied.
MEZZO_API mezzo_status mezzo_device_describe(mezzo_device *device, mezzo_device_info *out);

// --- measuring -----------------------------------------------------------------------------------------------------
// Holds the readings of the device's sensors. NaN, and 0 for bytes, where there is no such sensor or it may not be
// read.
typedef struct mezzo_telemetry {
    double watts;
    double joules;  // a counter whose differences are energies
    double celsius; // temperature of the chip
    double clock_mhz, memory_clock_mhz;
    size_t memory_used;                   // bytes that all processes use on the device
    size_t memory_allocated, memory_peak; // bytes that objects of this mezzo_device use: now, and at most so far
} mezzo_telemetry;
MEZZO_API mezzo_status mezzo_device_telemetry(mezzo_device *device, mezzo_telemetry *out);
// Sets memory_peak to the present memory_allocated.
MEZZO_API void mezzo_device_reset_peak(mezzo_device *device);

// Puts a mark, 0 … 63, into the stream of work, without waiting. mezzo_device_elapsed gives the time between two marks
// on the device's own clock (a GPU's events; on a CPU the clock at the call of mark) and waits until both have passed.
// INVALID: a mark out of range.
MEZZO_API mezzo_status mezzo_device_mark(mezzo_device *device, int mark);
MEZZO_API mezzo_status mezzo_device_elapsed(mezzo_device *device, int from, int to, double *seconds);
// Waits until all work requested so far is done. DEVICE where some of it failed.
MEZZO_API mezzo_status mezzo_device_sync(mezzo_device *device);

// Resolves the requested precision on a device to the effective one, with the reason as one line (buffer of `size`
// bytes; NULL: none). AUTO takes the fastest measured. The reason always says what happened to a format that the device
// lacks: a storage format with FP32 arithmetic still stores BF16/FP16; BF16 where only FP16 has arithmetic becomes
// FP16; TF32 on a device without it runs FP32. UNSUPPORTED: the device has no way to compute it, such as FP64 outside
// ref.
MEZZO_API mezzo_status mezzo_precision_resolve(mezzo_device *device, mezzo_precision requested,
                                               mezzo_precision *effective, char *reason, size_t size);

#ifdef __cplusplus
}
#endif
#endif
