// Lists the kernels of an op, and the pairs of calls that one kernel runs.
#include "backend/cuda/cuda.h"

static const struct {
    mz_op op;
    const mz_kernel *kernel;
} listed[] = {
#define KERNEL(op, name) {MZ_OP_##op, &mz_cuda_##name},
#include "backend/cuda/kernels.def"
#undef KERNEL
};

mezzo_status mz_cuda_list_kernels(mz_cuda_device *cuda) {
    size_t n = 0;
    cuda->kernels = mz_alloc(MZ_COUNT(listed), sizeof *cuda->kernels);
    if (cuda->kernels == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (int op = 0; op < MZ_OP_COUNT; op++) {
        cuda->first_kernel[op] = n;
        for (size_t i = 0; i < MZ_COUNT(listed); i++)
            if ((int)listed[i].op == op)
                cuda->kernels[n++] = listed[i].kernel;
    }
    cuda->first_kernel[MZ_OP_COUNT] = n;
    return MEZZO_OK;
}

const mz_kernel *const *mz_cuda_kernels(const mezzo_device *device, mz_op op, size_t *n) {
    const mz_cuda_device *cuda = (const mz_cuda_device *)(const void *)device;
    *n = cuda->first_kernel[op + 1] - cuda->first_kernel[op];
    return cuda->kernels + cuda->first_kernel[op];
}

const mz_fused_kernel *mz_cuda_fuse_calls(mezzo_device *device, const mz_call *first, const mz_call *second,
                                          bool is_private) {
    const mz_fused_kernel *joined = mz_cuda_fuse_quantize(first, second, is_private);
    joined = joined != NULL ? joined : mz_cuda_fuse_router(first, second);
    return joined != NULL ? joined : mz_cuda_fuse_loss(device, first, second);
}
