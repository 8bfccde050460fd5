// Computes norms whose results are rounded to 8 bits at once (norm_fp8.cu).
#ifndef MZ_CU_NORM_FP8_H
#define MZ_CU_NORM_FP8_H

#include "launch.h"
#include "quantize.h"

#ifdef __cplusplus
extern "C" {
#endif

bool mz_cu_norm_fp8_fits(int64_t rows, int64_t width);
// layernorm, and quantize of y, which has a dtype and may have no data: then it is not stored. q: x is not looked at,
// no act in front, no sums; the scale is known. Rows have no padding.
cudaError_t mz_cu_norm_fp8(cudaStream_t stream, const mz_cu_layernorm_args *a, const mz_cu_quantize *q, int sms);
// layernorm_bwd, and quantize of low, likewise. linear_dbias: column sums of low, of whichever of the two asks for
// them.
cudaError_t mz_cu_norm_bwd_fp8(cudaStream_t stream, const mz_cu_layernorm_bwd_args *a, const mz_cu_quantize *q,
                               int sms);
// layernorm_bwd's last step: dweight, dbias and linear_dbias of so many parts (layernorm.cu).
cudaError_t mz_cu_norm_columns(cudaStream_t stream, const mz_cu_layernorm_bwd_args *args, int parts);

#ifdef __cplusplus
}
#endif

#endif
