// Multiplies the experts' BF16 and FP16 matrices, and chooses among the tensor-core kernels of the experts' products.
#include "grouped_mma.cuh"

cudaError_t grouped_mma_low(cudaStream_t stream, const mz_cu_grouped &g, bool prepare) {
    if (g.a.dtype == MEZZO_BF16)
        return grouped_mma_of<__nv_bfloat16>(stream, g, prepare);
    return g.a.dtype == MEZZO_F16 ? grouped_mma_of<__half>(stream, g, prepare) : cudaErrorInvalidValue;
}

const char *grouped_mma_refusal(const mz_cuda_device *cuda, const mz_call *call) {
    const char *reason = grouped_refusal(call);
    if (reason != NULL)
        return reason;
    const mz_cu_grouped g = grouped_args(cuda, call);
    if (g.a.dtype != g.b.dtype)
        return "the operands have different storages";
    const bool low = g.a.dtype != MEZZO_F32;
    if (low && g.compute != g.a.dtype && g.compute != MEZZO_F32)
        return "multiplies bf16, fp16 and fp32";
    if (!low && g.compute == MEZZO_F32 && cuda->fp32_by_fma)
        return "MEZZO_CUDA_FP32 is fma";
    if (cuda->cc < 80 && g.a.dtype != MEZZO_F16)
        return "no bf16 or tf32 arithmetic before compute capability 8.0";
    if (g.out.dtype != MEZZO_F32 && g.out.dtype != g.a.dtype)
        return "stores fp32, and what the operands are stored in";
    if (g.n % (low ? 8 : 4) != 0 || g.k % (low ? 8 : 4) != 0)
        return "rows are no multiples of 16 bytes";
    return (low ? grouped_mma_low : grouped_mma_tf32)(NULL, g, true) != cudaSuccess
               ? "the kernel needs more shared memory than there is"
               : NULL;
}

static const char *grouped_mma_prepare(mezzo_device *device, const mz_call *call, mz_prepared *) {
    return grouped_mma_refusal(mz_cuda(device), call);
}

static void launch_grouped_mma(const mz_cuda_device *cuda, const mz_call *call) {
    const mz_cu_grouped g = grouped_args(cuda, call);
    (g.a.dtype == MEZZO_F32 ? grouped_mma_tf32 : grouped_mma_low)(cuda->stream, g, false);
}
GROUPED_KERNELS(mma, "__cuda_mma", grouped_mma_prepare, enqueue<launch_grouped_mma>)
