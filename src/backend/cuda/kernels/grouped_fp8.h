// Multiplies the experts' 8-bit operands that have a scale each (grouped_fp8.cu).
#ifndef MZ_CU_GROUPED_FP8_H
#define MZ_CU_GROUPED_FP8_H

#include "launch.h"

#ifdef __cplusplus
extern "C" {
#endif

// g.a and g.b: y: x [rows, k], w [experts·n, k]; dx: dy [rows, n], w turned, [k, experts·n]; dw: dy turned, [n, rows],
// x turned, [k, rows]. a is E4M3 or E5M2, b E4M3; out FP32, or BF16 of y and dx. Rows of codes begin at multiples of 16
// bytes; experts' rows may begin anywhere.
typedef struct mz_cu_grouped_fp8 {
    mz_cu_grouped g;
    const float *a_scale, *b_scale;
} mz_cu_grouped_fp8;
// prepare: finds out whether the kernel can run, and runs nothing.
cudaError_t mz_cu_grouped_fp8_run(cudaStream_t stream, const mz_cu_grouped_fp8 *args, bool prepare);

#ifdef __cplusplus
}
#endif

#endif
