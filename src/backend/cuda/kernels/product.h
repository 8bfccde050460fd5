// Computes products whose epilogue writes two results (product.cu).
#ifndef MZ_PRODUCT_H
#define MZ_PRODUCT_H

#include "launch.h"

#ifdef __cplusplus
extern "C" {
#endif

// mz_cu_product_run with MZ_CU_PRODUCT_DACT, and act_out [rows, cols] = round(gelu(preact)), which may be preact
// itself.
cudaError_t mz_cu_product_recompute(cudaStream_t stream, const mz_cu_product *args, void *act_out, int sms,
                                    bool prepare);

#ifdef __cplusplus
}
#endif

#endif
