// Multiplies the experts' BF16 and FP16 matrices.
#include "grouped_mma.cuh"

extern "C" cudaError_t mz_cu_grouped_low(cudaStream_t stream, const mz_cu_grouped *args, bool prepare) {
    if (args->a.dtype == MEZZO_BF16)
        return grouped_mma_of<__nv_bfloat16>(stream, *args, prepare);
    return args->a.dtype == MEZZO_F16 ? grouped_mma_of<__half>(stream, *args, prepare) : cudaErrorInvalidValue;
}
