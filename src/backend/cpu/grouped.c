// Runs the experts' products: for each expert the linear op on its rows, by that op's own kernels. A kernel reads where
// the rows begin when it runs, because the offsets are in the host's memory.
#include "backend/cpu/cpu.h"
#include "base/scope.h"

#include <omp.h>

// Returns the linear op on rows [first, last) with expert e's matrix.
static mz_call expert_call(const mz_call *call, int64_t e, int64_t first, int64_t last) {
    mz_call part = {.attrs = call->attrs, .numerics = call->numerics, .n_in = 2, .n_out = 1};
    const bool gradient = call->op == MZ_OP_grouped_linear_dw;
    part.op = gradient ? MZ_OP_linear_dw : call->op == MZ_OP_grouped_linear ? MZ_OP_linear : MZ_OP_linear_dx;
    for (int i = 0; i < MZ_MAX_IN; i++)
        part.in[i].shape.rank = part.out[i].shape.rank = -1;
    mz_tensor *of_rows[2] = {&part.in[0], gradient ? &part.in[1] : &part.out[0]};
    mz_tensor *matrix = gradient ? &part.out[0] : &part.in[1];
    part.in[0] = *mz_in(call, grouped_linear, x);
    part.in[1] = *mz_in(call, grouped_linear, w);
    part.out[0] = *mz_out(call, grouped_linear, y);
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
    return mz_in(call, grouped_linear, x)->shape.dim[0];
}

static int64_t experts_of(const mz_call *call) {
    return mz_shape_count(&mz_in(call, grouped_linear, offsets)->shape) - 1;
}

// Returns the linear op's kernel for an instruction set ("__avx2"); NULL with the reason where there is none for this
// call.
static const mz_kernel *product_kernel(mezzo_device *device, const mz_call *call, const char *isa,
                                       const char **reason) {
    mz_call part = expert_call(call, 0, 0, rows_of(call));
    size_t n = 0;
    const mz_kernel *const *kernels = mz_cpu_matmul_kernels(mz_cpu(device), part.op, &n);
    *reason = "this build has no such product";
    for (size_t i = 0; i < n; i++) {
        mz_prepared ready;
        if (strstr(kernels[i]->name, isa) == NULL)
            continue;
        *reason = mz_prepare_kernel(device, kernels[i], &part, &ready);
        mz_prepared_free(&ready);
        if (*reason == NULL)
            return kernels[i];
    }
    return NULL;
}

// Returns whether each thread takes whole experts, because products are too short to share: threads wait for each other
// about twelve times in a product. A unit is a nanosecond of one core, or 32 multiply-adds.
static bool by_expert(const mezzo_device *device, const mz_call *call) {
    const mz_shape *w = call->op == MZ_OP_grouped_linear_dw ? &mz_out(call, grouped_linear, y)->shape
                                                            : &mz_in(call, grouped_linear, w)->shape;
    double work = (double)rows_of(call) * (double)w->dim[1] * (double)w->dim[2] / 32;
    return device->threads > 1 && work / (double)experts_of(call) < MZ_CPU_GRAIN * (double)device->threads;
}

static mz_cpu_device alone(const mezzo_device *device) {
    mz_cpu_device one = *mz_cpu(device);
    one.base.threads = 1;
    return one;
}

// Returns the workspace of a product of expert e's rows; its kernel needs nothing else.
static size_t product_bytes(mezzo_device *device, const mz_kernel *kernel, const mz_call *call, int64_t e,
                            int64_t first, int64_t last) {
    mz_call part = expert_call(call, e, first, last);
    MZ_SCOPED(mz_prepared_free) mz_prepared ready = {0};
    (void)mz_prepare_kernel(device, kernel, &part, &ready); // it serves all rows, and so these
    return ready.workspace;
}

// The most rows of an expert in one product, which limits the number of products that planning considers. Gradients of
// the matrices are summed over such parts in order.
enum { MOST_ROWS = 4096 };

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

// Holds the numbers on which the workspace of the largest product depends. It has no gaps, because it is compared byte
// by byte.
typedef struct sizes {
    const mz_kernel *kernel;
    int64_t rows, dim[2]; // rows: the most in one product
    mz_numerics numerics;
    mezzo_dtype dtype[3];
    int threads, accumulate;
} sizes;
_Static_assert(sizeof(sizes) == sizeof(void *) + 3 * sizeof(int64_t) + 6 * sizeof(mezzo_dtype) + 2 * sizeof(int),
               "gaps");

static sizes sizes_of(const mezzo_device *device, const mz_kernel *kernel, const mz_call *call) {
    const mz_shape *w = call->op == MZ_OP_grouped_linear_dw ? &call->out[0].shape : &call->in[1].shape;
    return (sizes){.kernel = kernel,
                   .rows = least(rows_of(call), MOST_ROWS),
                   .dim = {w->dim[1], w->dim[2]},
                   .numerics = call->numerics,
                   .dtype = {call->in[0].dtype, call->in[1].dtype, call->out[0].dtype},
                   .threads = device->threads,
                   .accumulate = call->attrs.accumulate};
}

// Returns the workspace of the largest product: an expert may have any number of rows, and more rows may need less
// memory. A model's blocks, and the batches that `memory --limit` tries, repeat the same sizes, so each thread keeps
// the last results.
static size_t most_bytes(mezzo_device *device, const mz_kernel *kernel, const mz_call *call) {
    enum { KEPT = 32 };
    static _Thread_local struct {
        sizes of;
        size_t bytes;
    } kept[KEPT];
    static _Thread_local unsigned next;
    const sizes asked = sizes_of(device, kernel, call);
    for (int i = 0; i < KEPT; i++)
        if (memcmp(&kept[i].of, &asked, sizeof asked) == 0)
            return kept[i].bytes;
    size_t most = 0;
    for (int64_t rows = asked.rows; rows > 0; rows--) {
        size_t bytes = product_bytes(device, kernel, call, 0, 0, rows);
        most = bytes > most ? bytes : most;
    }
    kept[next % KEPT].of = asked;
    kept[next++ % KEPT].bytes = mz_align_up(most, 64);
    return mz_align_up(most, 64);
}

// Returns the same for the experts' present rows, at most what was planned; every run calls it.
static size_t experts_bytes(mezzo_device *device, const mz_kernel *kernel, const mz_call *call) {
    const int32_t *offsets = mz_in(call, grouped_linear, offsets)->data;
    size_t most = 0;
    for (int64_t e = 0; e < experts_of(call); e++) {
        const int64_t rows = offsets[e + 1] - offsets[e], last = rows % MOST_ROWS;
        size_t bytes = last > 0 ? product_bytes(device, kernel, call, e, 0, last) : 0;
        size_t whole = rows >= MOST_ROWS ? product_bytes(device, kernel, call, e, 0, MOST_ROWS) : 0;
        bytes = whole > bytes ? whole : bytes;
        most = bytes > most ? bytes : most;
    }
    return mz_align_up(most, 64);
}

// --- prepared ------------------------------------------------------------------------------------------------------
typedef struct plan {
    const mz_kernel *product;
    bool by_expert;
} plan;

static const char *prepare(mezzo_device *device, const mz_call *call, const char *isa, mz_prepared *out) {
    const char *reason;
    if (call->op == MZ_OP_grouped_linear_dw && call->out[0].dtype != MEZZO_F32)
        return "the matrices' gradients must be fp32";
    const mz_kernel *product = product_kernel(device, call, isa, &reason);
    if (product == NULL)
        return reason;
    plan *p = out->state = mz_alloc(1, sizeof *p);
    if (p == NULL)
        return mz_out_of_memory;
    *p = (plan){product, by_expert(device, call)};
    mz_cpu_device one = alone(device);
    out->workspace = p->by_expert ? most_bytes(&one.base, product, call) * (size_t)device->threads
                                  : most_bytes(device, product, call);
    return NULL;
}

static mezzo_status run_expert(mezzo_device *device, const mz_kernel *kernel, const mz_call *call, int64_t e,
                               void *workspace) {
    const int32_t *offsets = mz_in(call, grouped_linear, offsets)->data;
    const int64_t end = offsets[e + 1];
    for (int64_t at = offsets[e]; at < end; at += MOST_ROWS) {
        mz_call part = expert_call(call, e, at, least(end, at + MOST_ROWS));
        part.workspace = workspace;
        part.attrs.accumulate |= at > offsets[e] && call->op == MZ_OP_grouped_linear_dw;
        MEZZO_TRY(kernel->run(device, &part));
    }
    if (offsets[e] == end && call->op == MZ_OP_grouped_linear_dw && !call->attrs.accumulate) {
        mz_call part = expert_call(call, e, end, end);
        memset(part.out[0].data, 0, (size_t)mz_shape_count(&part.out[0].shape) * sizeof(float));
    }
    return MEZZO_OK;
}

static mezzo_status run(mezzo_device *device, const mz_call *call) {
    const plan *p = call->state;
    int64_t experts = experts_of(call);
    if (!p->by_expert) {
        for (int64_t e = 0; e < experts; e++)
            MEZZO_TRY(run_expert(device, p->product, call, e, call->workspace));
        return MEZZO_OK;
    }
    mz_cpu_device one = alone(device);
    size_t bytes = experts_bytes(&one.base, p->product, call);
    mezzo_status status = MEZZO_OK;
#pragma omp parallel for schedule(dynamic) num_threads(device->threads)
    for (int64_t e = 0; e < experts; e++) {
        mezzo_status mine =
            run_expert(&one.base, p->product, call, e, (char *)call->workspace + bytes * (size_t)omp_get_thread_num());
        if (mine != MEZZO_OK) {
#pragma omp atomic write
            status = mine;
        }
    }
    return status;
}

// --- kernels -------------------------------------------------------------------------------------------------------
#define ISA(isa)                                                                                                       \
    static const char *isa##_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {                    \
        return prepare(device, call, "__" #isa "_", out);                                                              \
    }                                                                                                                  \
    static const mz_kernel isa##_kernels[] = {                                                                         \
        {"grouped_linear__" #isa, isa##_prepare, run},                                                                 \
        {"grouped_linear_dx__" #isa, isa##_prepare, run},                                                              \
        {"grouped_linear_dw__" #isa, isa##_prepare, run},                                                              \
    };

ISA(portable)
#if defined(__x86_64__)
ISA(avx2)
ISA(avx512)
ISA(avx512bf16)
ISA(amx)
#define LIST(op, narrow)                                                                                               \
    {                                                                                                                  \
        &amx_kernels[op], &avx512bf16_kernels[op], &avx512_kernels[op], &avx2_kernels[op], &portable_kernels[op],      \
            &narrow                                                                                                    \
    }
#elif defined(__aarch64__)
ISA(neon)
ISA(neonbf16)
#define LIST(op, narrow)                                                                                               \
    { &neonbf16_kernels[op], &neon_kernels[op], &portable_kernels[op], &narrow }
#else
#define LIST(op, narrow)                                                                                               \
    { &portable_kernels[op], &narrow }
#endif

const mz_kernel *const *mz_cpu_grouped_kernels(mz_op op, size_t *n) {
    static const mz_kernel *const lists[][6] = {LIST(0, mz_cpu_grouped_linear_emulated),
                                                LIST(1, mz_cpu_grouped_linear_dx_emulated),
                                                LIST(2, mz_cpu_grouped_linear_dw_emulated)};
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
