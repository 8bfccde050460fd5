// The experts' products of FP32 matrices, rounded to TF32.
#include "grouped_mma.cuh"

extern "C" cudaError_t mz_cu_grouped_tf32(cudaStream_t stream, const mz_cu_grouped *args, bool prepare) {
    return grouped_mma_of<float>(stream, *args, prepare);
}
