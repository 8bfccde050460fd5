// The reference device has host memory, one thread, and one kernel for every op.
#include <unistd.h>

#include "backend/ref/ref.h"

// --- kernels -------------------------------------------------------------------------------------------------------
// Returns the workspace: products copy their operands to doubles, and embedding_bwd and scatter_add sum in them; other
// ops need none.
static size_t workspace_of(const mz_call *call) {
    if (!mz_op_is_product(call->op) && call->op != MZ_OP_embedding_bwd && call->op != MZ_OP_scatter_add)
        return 0;
    int64_t elements = 0;
    for (int i = 0; i < call->n_in; i++)
        elements += mz_present(&call->in[i]) ? mz_shape_count(&call->in[i].shape) : 0;
    for (int i = 0; i < call->n_out; i++)
        elements += mz_present(&call->out[i]) ? mz_shape_count(&call->out[i].shape) : 0;
    return (size_t)elements * sizeof(double);
}

static const char *ref_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device;
    out->workspace = workspace_of(call);
    return NULL;
}

// Kernels cannot fail, because prepare() refuses what could.
#define OP(name, ...)                                                                                                  \
    static mezzo_status run_##name(mezzo_device *device, const mz_call *call) {                                        \
        (void)device;                                                                                                  \
        mz_ref_##name(call);                                                                                           \
        for (int k = 0; k < call->n_out; k++)                                                                          \
            mz_ref_clear_padding(&call->out[k]);                                                                       \
        return MEZZO_OK;                                                                                               \
    }                                                                                                                  \
    static const mz_kernel kernel_##name = {#name "__ref", ref_prepare, run_##name};
#define OP_BACKWARD OP
#define OP_STATE    OP
#include "graph/ops.def"
#undef OP
#undef OP_BACKWARD
#undef OP_STATE

static const mz_kernel *const kernels[MZ_OP_COUNT] = {
#define OP(name, ...)          [MZ_OP_##name] = &kernel_##name,
#define OP_BACKWARD(name, ...) [MZ_OP_##name] = &kernel_##name,
#define OP_STATE(name, ...)    [MZ_OP_##name] = &kernel_##name,
#include "graph/ops.def"
#undef OP
#undef OP_BACKWARD
#undef OP_STATE
};

static const mz_kernel *const *ref_kernels(const mezzo_device *device, mz_op op, size_t *n) {
    (void)device;
    *n = 1;
    return &kernels[op];
}

// Kernels read and write elements one by one through mz_ref_get and mz_ref_put, in any format with any scale.
static mz_takes ref_takes(const mz_kernel *kernel) {
    bool is_kind = false;
#define KIND(name, ...) is_kind = is_kind || kernel == &kernel_##name;
#include "mezzo/optimizers.def"
#undef KIND
    return (mz_takes){UINT32_MAX, UINT32_MAX, .blocks = true, .extras = !is_kind};
}

static mz_padded ref_takes_padding(mz_op op) { // elements are read and written by their position in the shape
    (void)op;
    return MZ_PADDED_ANY;
}

// --- the device ----------------------------------------------------------------------------------------------------
extern const mz_backend mz_backend_ref;

static mezzo_status ref_open(int index, int threads, mezzo_device **out) {
    (void)index;
    (void)threads;
    mezzo_device *device;
    MEZZO_TRY(MZ_NEW(device, 1));
    device->backend = &mz_backend_ref;
    device->threads = 1;
    *out = device;
    return MEZZO_OK;
}

static void ref_close(mezzo_device *device) {
    mz_free(device);
}

static mezzo_status ref_describe(mezzo_device *device, mezzo_device_info *out) {
    *out = (mezzo_device_info){.backend = "ref", .threads = device->threads};
    snprintf(out->description, sizeof out->description, "reference (plain C, FP64 arithmetic), 1 thread");
    long pages = sysconf(_SC_PHYS_PAGES), page_size = sysconf(_SC_PAGE_SIZE);
    if (pages > 0 && page_size > 0)
        out->memory_total = (size_t)pages * (size_t)page_size;
    // Every format is rounded in software, so that all work and none is faster.
    for (int i = 0; i < MEZZO_PRECISION_COUNT; i++)
        out->native[i] = i != MEZZO_PRECISION_AUTO;
    return MEZZO_OK;
}

static mezzo_status ref_zero(mezzo_device *device, void *dst, size_t bytes) {
    (void)device;
    memset(dst, 0, bytes);
    return MEZZO_OK;
}

const mz_backend mz_backend_ref = {
    .name = "ref",
    .open = ref_open,
    .close = ref_close,
    .describe = ref_describe,
    .kernels = ref_kernels,
    .takes = ref_takes,
    .takes_padding = ref_takes_padding,
    .alloc = mz_host_alloc,
    .release = mz_host_release,
    .write = mz_host_copy,
    .read = mz_host_copy,
    .zero = ref_zero,
    .copy_rows = mz_host_copy_rows,
    .sync = mz_host_sync,
    .fetch_open = mz_host_fetch_open,
    .fetch = mz_host_fetch,
    .fetched = mz_host_fetched,
    .fetch_close = mz_host_fetch_close,
};
