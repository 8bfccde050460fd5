// A device: where programs run. One backend, one set of threads or one GPU.
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
// Errors: INVALID (unknown name, bad MEZZO_ISA), UNSUPPORTED (not in this build, no such device), MEMORY.
MEZZO_API mezzo_status mezzo_device_open(const char *name, int threads, mezzo_device **out);
MEZZO_API void mezzo_device_close(mezzo_device *device);

typedef struct mezzo_device_info {
    const char *backend;   // "ref", "cpu", "cuda"
    char description[160]; // e.g. "AMD EPYC (avx512, bf16 dot product), 2 threads"
    int threads;
    size_t memory_total;                // bytes; 0 where unknown
    bool native[MEZZO_PRECISION_COUNT]; // the precision's matmul runs in that format's arithmetic
    bool faster[MEZZO_PRECISION_COUNT]; // measured at open: its matmul arithmetic beats FP32's
} mezzo_device_info;
MEZZO_API mezzo_status mezzo_device_describe(mezzo_device *device, mezzo_device_info *out);

// requested × device → effective, with the reason as one line (buffer of `size` bytes; NULL to drop it). AUTO picks the fastest
// measured. A format the device lacks is never lost silently: the reason says what happened (a storage format with FP32
// arithmetic still stores BF16/FP16; TF32 on a device without it runs FP32).
MEZZO_API mezzo_status mezzo_precision_resolve(mezzo_device *device, mezzo_precision requested,
                                               mezzo_precision *effective, char *reason, size_t size);

#ifdef __cplusplus
}
#endif
#endif
