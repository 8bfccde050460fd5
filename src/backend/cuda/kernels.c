// Lists the kernels of an op, and the kernels that serve pairs of calls.
#include <stdlib.h>

#include "backend/cuda/cuda.h"

static const struct {
    mz_op op;
    const mz_kernel *kernel;
} listed[] = {
#define KERNEL(op, name) {MZ_OP_##op, &mz_cuda_##name},
#include "backend/cuda/kernels.def"
#undef KERNEL
};

// Returns the entry of MEZZO_CUDA_WITHOUT after `entry`, or with NULL the first one; NULL: there is none.
static const char *next_without(const char *entry) {
    entry = entry == NULL ? getenv("MEZZO_CUDA_WITHOUT") : entry + strcspn(entry, ",");
    while (entry != NULL && *entry == ',')
        entry++;
    return entry == NULL || *entry == '\0' ? NULL : entry;
}

static bool is_entry(const char *entry, const char *name) {
    return strlen(name) == strcspn(entry, ",") && strncmp(entry, name, strlen(name)) == 0;
}

bool mz_cuda_without(const char *name) {
    const char *entry = next_without(NULL);
    while (entry != NULL && !is_entry(entry, name))
        entry = next_without(entry);
    return entry != NULL;
}

static mezzo_status check_without(void) {
    for (const char *entry = next_without(NULL); entry != NULL; entry = next_without(entry)) {
        bool known = is_entry(entry, MZ_CUDA_EARLY_LAUNCHES);
        for (size_t i = 0; i < MZ_COUNT(listed) && !known; i++)
            known = is_entry(entry, listed[i].kernel->name);
        if (!known)
            return mz_fail(MEZZO_ERR_INVALID,
                           "MEZZO_CUDA_WITHOUT has '%.*s': it must be names of kernels (mezzo explain --after plan "
                           "shows them) or " MZ_CUDA_EARLY_LAUNCHES ", with commas",
                           (int)strcspn(entry, ","), entry);
    }
    return MEZZO_OK;
}

mezzo_status mz_cuda_list_kernels(mz_cuda_device *cuda) {
    size_t n = 0;
    MEZZO_TRY(check_without());
    cuda->kernels = mz_alloc(MZ_COUNT(listed), sizeof *cuda->kernels);
    if (cuda->kernels == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (int op = 0; op < MZ_OP_COUNT; op++) {
        cuda->first_kernel[op] = n;
        for (size_t i = 0; i < MZ_COUNT(listed); i++)
            if ((int)listed[i].op == op && !mz_cuda_without(listed[i].kernel->name))
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

static bool share_bytes(const mz_tensor *a, const mz_tensor *b) {
    const char *p = a->data, *q = b->data;
    return mz_present(a) && mz_present(b) && p < q + mz_tensor_bytes_stored(b) && q < p + mz_tensor_bytes_stored(a);
}

bool mz_cuda_in_the_way(const mz_call *first, const mz_call *second) {
    bool shared = false;
    for (int k = 0; k < second->n_out; k++) {
        for (int i = 0; i < first->n_in; i++)
            shared = shared || share_bytes(&first->in[i], &second->out[k]);
        for (int i = 0; i < first->n_out; i++)
            shared = shared || share_bytes(&first->out[i], &second->out[k]);
    }
    return shared;
}

const mz_fused_kernel *mz_cuda_fuse_calls(mezzo_device *device, const mz_call *first, const mz_call *second,
                                          bool is_private) {
    const mz_fused_kernel *joined = mz_cuda_fuse_quantize(first, second, is_private);
    joined = joined != NULL ? joined : mz_cuda_fuse_router(first, second);
    joined = joined != NULL ? joined : mz_cuda_fuse_gradient(first, second, is_private);
    return joined != NULL ? joined : mz_cuda_fuse_loss(device, first, second);
}
