// Multiplies the experts' FP32 matrices on tensor cores: rounded to TF32, or under FP32 as three BF16 terms.
#include "grouped_mma.cuh"

cudaError_t grouped_mma_tf32(cudaStream_t stream, const mz_cu_grouped &g, bool prepare) {
    return g.compute == MEZZO_TF32 ? grouped_mma_of<float>(stream, g, prepare)
                                   : grouped_mma_of<float, true>(stream, g, prepare);
}
