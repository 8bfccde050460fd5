// Multiplies the experts' FP32 matrices on tensor cores: rounded to TF32, or under FP32 as three BF16 terms.
#include "grouped_mma.cuh"

extern "C" cudaError_t mz_cu_grouped_tf32(cudaStream_t stream, const mz_cu_grouped *args, bool prepare) {
    return args->compute == MEZZO_TF32 ? grouped_mma_of<float>(stream, *args, prepare)
                                       : grouped_mma_of<float, true>(stream, *args, prepare);
}
