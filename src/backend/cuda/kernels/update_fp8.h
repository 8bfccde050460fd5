// These updates also write 8-bit data of the masters (update_fp8.cu).
#ifndef MZ_CU_UPDATE_FP8_H
#define MZ_CU_UPDATE_FP8_H

#include "launch.h"

#ifdef __cplusplus
extern "C" {
#endif

// update.h's mz_quantized_segment, member for member (checked in update.c).
typedef struct mz_cu_quantized_segment {
    mz_cu_segment segment;
    int64_t rows, columns;
    void *rowwise, *columnwise, *entry;
    int32_t dtype;
} mz_cu_quantized_segment;
enum { MZ_CU_ENTRY_WEIGHT_AMAX = 12 }; // words in front of mz_scale_entry's `weight_amax`
typedef struct mz_cu_quantized {
    const void *quantized; // mz_cu_quantized_segment[n]
    int n;
    int64_t elements; // of all of them, or more
} mz_cu_quantized;
// Moments are FP32 or BF16; args' segments are not looked at.
#define KIND(name, ...)                                                                                                \
    cudaError_t mz_cu_##name##_codes(cudaStream_t stream, const mz_cu_update_args *args, const mz_cu_quantized *fp8);
#include "mezzo/optimizers.def"
#undef KIND

#ifdef __cplusplus
}
#endif

#endif
