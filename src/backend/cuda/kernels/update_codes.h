// AdamW that writes 8-bit codes of the masters that it moves (update_codes.cu).
#ifndef MZ_CU_UPDATE_CODES_H
#define MZ_CU_UPDATE_CODES_H

#include "launch.h"

#ifdef __cplusplus
extern "C" {
#endif

// update.h's mz_coded, member for member (checked in update.c).
typedef struct mz_cu_coded {
    mz_cu_segment segment;
    int64_t rows, columns;
    void *codes, *turned, *entry;
    int32_t dtype;
} mz_cu_coded;
enum { MZ_CU_ENTRY_KEPT = 12 }; // words in front of mz_scale_entry's `kept`
typedef struct mz_cu_codes {
    const void *coded; // mz_cu_coded[n]
    int n;
    int64_t elements; // of all of them, or more
} mz_cu_codes;
// Moments are FP32 or BF16; args' segments are not looked at.
cudaError_t mz_cu_adamw_codes(cudaStream_t stream, const mz_cu_update_args *args, const mz_cu_codes *codes);

#ifdef __cplusplus
}
#endif

#endif
