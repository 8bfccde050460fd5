// The experts' products: for each expert the linear op on its rows, by that op's own kernels. Where they begin is read when the kernel
// runs: on the CPU the offsets are in the host's memory like everything else.
#include "backend/cpu/cpu.h"

#include <omp.h>

// The linear op on rows [first, last) with expert e's matrix.
static mz_call expert_call(const mz_call *call, int64_t e, int64_t first, int64_t last) {
    mz_call part = {.attrs = call->attrs, .numerics = call->numerics, .n_in = 2, .n_out = 1};
    const bool gradient = call->op == MZ_OP_grouped_linear_dw;
    part.op = gradient ? MZ_OP_linear_dw : call->op == MZ_OP_grouped_linear ? MZ_OP_linear : MZ_OP_linear_dx;
    for (int i = 0; i < MZ_MAX_IN; i++)
        part.in[i].shape.rank = part.out[i].shape.rank = -1;
    mz_tensor *of_rows[2] = {&part.in[0], gradient ? &part.in[1] : &part.out[0]};
    mz_tensor *matrix = gradient ? &part.out[0] : &part.in[1];
    part.in[0] = call->in[0];
    part.in[1] = call->in[1];
    part.out[0] = call->out[0];
    for (int i = 0; i < 2; i++) {
        mz_tensor *t = of_rows[i];
        if (t->data != NULL)
            t->data = (char *)t->data + (size_t)(first * t->shape.dim[1]) * mezzo_dtype_size(t->dtype);
        t->shape.dim[0] = last - first;
    }
    matrix->shape = (mz_shape){2, {matrix->shape.dim[1], matrix->shape.dim[2]}};
    if (matrix->data != NULL)
        matrix->data =
            (char *)matrix->data + (size_t)(e * mz_shape_count(&matrix->shape)) * mezzo_dtype_size(matrix->dtype);
    return part;
}

static int64_t rows_of(const mz_call *call) {
    return call->in[0].shape.dim[0];
}

static int64_t experts_of(const mz_call *call) {
    return mz_shape_count(&call->in[2].shape) - 1;
}

// The linear op's kernel for an instruction set ("__avx2"); NULL with the reason where there is none for this call.
static const mz_kernel *product_kernel(const mezzo_device *device, const mz_call *call, const char *isa,
                                       const char **reason) {
    mz_call part = expert_call(call, 0, 0, rows_of(call));
    size_t n = 0;
    const mz_kernel *const *kernels = mz_cpu_matmul_kernels(mz_cpu(device), part.op, &n);
    *reason = "this build has no such product";
    for (size_t i = 0; i < n; i++) {
        if (strstr(kernels[i]->name, isa) == NULL)
            continue;
        *reason = kernels[i]->supports(device, &part);
        if (*reason == NULL)
            return kernels[i];
    }
    return NULL;
}

// One thread takes a whole expert where a product is too short to share: 16 threads meet a dozen times in one, 1 µs each. A unit is a
// nanosecond of one core; 32 multiply-adds.
static bool by_expert(const mezzo_device *device, const mz_call *call) {
    const mz_shape *w = call->op == MZ_OP_grouped_linear_dw ? &call->out[0].shape : &call->in[1].shape;
    double work = (double)rows_of(call) * (double)w->dim[1] * (double)w->dim[2] / 32;
    return device->threads > 1 && work / (double)experts_of(call) < MZ_CPU_GRAIN * (double)device->threads;
}

static mz_cpu_device alone(const mezzo_device *device) {
    mz_cpu_device one = *mz_cpu(device);
    one.base.threads = 1;
    return one;
}

// Room for the largest product: an expert may have any number of rows, and more rows may take less room.
static size_t product_bytes(const mezzo_device *device, const mz_kernel *kernel, const mz_call *call) {
    size_t most = 0;
    for (int64_t rows = rows_of(call); kernel->workspace != NULL && rows > 0; rows--) {
        mz_call part = expert_call(call, 0, 0, rows);
        size_t bytes = kernel->workspace(device, &part);
        most = bytes > most ? bytes : most;
    }
    return mz_align_up(most, 64);
}

static size_t grouped_workspace(const mezzo_device *device, const mz_call *call, const char *isa) {
    const char *reason;
    const mz_kernel *kernel = product_kernel(device, call, isa, &reason);
    mz_cpu_device one = alone(device);
    if (kernel == NULL)
        return 0;
    return by_expert(device, call) ? product_bytes(&one.base, kernel, call) * (size_t)device->threads
                                   : product_bytes(device, kernel, call);
}

// The same for the rows that the experts have, at most what was planned: it is asked at every run.
static size_t experts_bytes(const mezzo_device *device, const mz_kernel *kernel, const mz_call *call) {
    const int32_t *offsets = call->in[2].data;
    size_t most = 0;
    for (int64_t e = 0; kernel->workspace != NULL && e < experts_of(call); e++) {
        mz_call part = expert_call(call, e, offsets[e], offsets[e + 1]);
        size_t bytes = offsets[e] < offsets[e + 1] ? kernel->workspace(device, &part) : 0;
        most = bytes > most ? bytes : most;
    }
    return mz_align_up(most, 64);
}

static mezzo_status run_expert(mezzo_device *device, const mz_kernel *kernel, const mz_call *call, int64_t e,
                               void *workspace) {
    const int32_t *offsets = call->in[2].data;
    mz_call part = expert_call(call, e, offsets[e], offsets[e + 1]);
    part.workspace = workspace;
    if (offsets[e] < offsets[e + 1])
        return kernel->run(device, &part);
    if (call->op == MZ_OP_grouped_linear_dw && !call->attrs.accumulate)
        memset(part.out[0].data, 0, (size_t)mz_shape_count(&part.out[0].shape) * sizeof(float));
    return MEZZO_OK;
}

static mezzo_status run_grouped(mezzo_device *device, const mz_call *call, const char *isa) {
    const char *reason;
    const mz_kernel *kernel = product_kernel(device, call, isa, &reason);
    int64_t experts = experts_of(call);
    if (!by_expert(device, call)) {
        for (int64_t e = 0; e < experts; e++)
            MEZZO_TRY(run_expert(device, kernel, call, e, call->workspace));
        return MEZZO_OK;
    }
    mz_cpu_device one = alone(device);
    size_t bytes = experts_bytes(&one.base, kernel, call);
    mezzo_status status = MEZZO_OK;
#pragma omp parallel for schedule(dynamic) num_threads(device->threads)
    for (int64_t e = 0; e < experts; e++) {
        mezzo_status mine =
            run_expert(&one.base, kernel, call, e, (char *)call->workspace + bytes * (size_t)omp_get_thread_num());
        if (mine != MEZZO_OK) {
#pragma omp atomic write
            status = mine;
        }
    }
    return status;
}

static const char *grouped_supports(const mezzo_device *device, const mz_call *call, const char *isa) {
    const char *reason;
    if (call->in[2].dtype != MEZZO_I32)
        return "offsets must be i32";
    if (call->op == MZ_OP_grouped_linear_dw && call->out[0].dtype != MEZZO_F32)
        return "the matrices' gradients must be fp32";
    product_kernel(device, call, isa, &reason);
    return reason;
}

// --- kernels --------------------------------------------------------------------------------------------------------------------
#define ISA(isa)                                                                                                       \
    static const char *isa##_supports(const mezzo_device *device, const mz_call *call) {                               \
        return grouped_supports(device, call, "__" #isa "_");                                                          \
    }                                                                                                                  \
    static size_t isa##_workspace(const mezzo_device *device, const mz_call *call) {                                   \
        return grouped_workspace(device, call, "__" #isa "_");                                                         \
    }                                                                                                                  \
    static mezzo_status isa##_run(mezzo_device *device, const mz_call *call) {                                         \
        return run_grouped(device, call, "__" #isa "_");                                                               \
    }                                                                                                                  \
    static const mz_kernel isa##_kernels[] = {                                                                         \
        {"grouped_linear__" #isa, isa##_supports, isa##_workspace, isa##_run},                                         \
        {"grouped_linear_dx__" #isa, isa##_supports, isa##_workspace, isa##_run},                                      \
        {"grouped_linear_dw__" #isa, isa##_supports, isa##_workspace, isa##_run},                                      \
    };

ISA(portable)
#if defined(__x86_64__)
ISA(avx2)
ISA(avx512)
ISA(avx512bf16)
ISA(amx)
#define LIST(op)                                                                                                       \
    { &amx_kernels[op], &avx512bf16_kernels[op], &avx512_kernels[op], &avx2_kernels[op], &portable_kernels[op] }
#else
#define LIST(op)                                                                                                       \
    { &portable_kernels[op] }
#endif

const mz_kernel *const *mz_cpu_grouped_kernels(mz_op op, size_t *n) {
    static const mz_kernel *const lists[][5] = {LIST(0), LIST(1), LIST(2)};
    static const mz_op ops[] = {MZ_OP_grouped_linear, MZ_OP_grouped_linear_dx, MZ_OP_grouped_linear_dw};
    *n = 0;
    for (size_t i = 0; i < MZ_COUNT(ops); i++)
        if (ops[i] == op) {
            while (*n < MZ_COUNT(lists[i]) && lists[i][*n] != NULL)
                ++*n;
            return lists[i];
        }
    return NULL;
}
