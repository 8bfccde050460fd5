// Computes sums and means along an axis, their gradient, and sums added to gradients.
#include "backend/cpu/kernels/block.h"
#include "backend/cpu/kernels/kernels.h"

// --- along contiguous elements -------------------------------------------------------------------------------------
// Runs of 4096 elements are summed in FP32 lanes, and the runs in FP64 in order.
enum { SUM_RUN = 4096 };

static int64_t runs_of(axis_view v) {
    return (v.axis + SUM_RUN - 1) / SUM_RUN;
}

static double sum_run(const mz_tensor *x, int64_t at, int64_t n) {
    float buffer[MZ_BLOCK];
    vf sum = {0};
    for (int64_t from = 0; from < n; from += MZ_BLOCK) {
        int count = (int)min64(MZ_BLOCK, n - from);
        const float *p = block_in(x, at + from, count, buffer);
        FOR_LANES(i, lanes, count)
        sum += vload_lanes(p + i, lanes, 0);
    }
    return (double)vsum(sum);
}

static void put_result(const mz_call *call, int64_t at, float value) {
    const mz_tensor *y = mz_out(call, sum, y);
    if (call->attrs.accumulate)
        value += ((const float *)y->data)[at];
    narrow_block(&value, element_at(y, at), y->dtype, 1);
}

static void sum_rows(const mezzo_device *device, const mz_call *call, axis_view v, double factor) {
    int64_t runs = runs_of(v);
    double *partial = call->workspace; // [outer, runs]
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, 0.15 * (double)(v.outer * v.axis)))
    for (int64_t i = 0; i < v.outer * runs; i++) {
        int64_t row = i / runs, from = i % runs * SUM_RUN;
        partial[i] = sum_run(mz_in(call, sum, x), row * v.axis + from, min64(SUM_RUN, v.axis - from));
    }
    for (int64_t row = 0; row < v.outer; row++) {
        double sum = 0;
        for (int64_t i = 0; i < runs; i++)
            sum += partial[row * runs + i];
        put_result(call, row, (float)(sum * factor));
    }
}

// --- along strided elements ----------------------------------------------------------------------------------------
// Neighbouring columns are summed together, down the axis: SUM_GROUP rows into one FP32 sum, and the groups' sums into
// another, so that the error grows with SUM_GROUP + axis/SUM_GROUP and not with the axis. A column's sum does not
// depend on its block's width.
enum { SUM_GROUP = 64 };

static void add_block(float *sum, const float *x, int n) {
    FOR_LANES(i, lanes, n)
    vstore_lanes(sum + i, vload_lanes(sum + i, lanes, 0) + vload_lanes(x + i, lanes, 0), lanes);
}

static void sum_columns(const mezzo_device *device, const mz_call *call, axis_view v, double factor) {
    // Blocks are narrow where that is necessary to give every core work.
    int64_t block = v.outer * v.inner >= 32 * MZ_BLOCK ? MZ_BLOCK : 64, parts = (v.inner + block - 1) / block;
#pragma omp parallel for schedule(static)                                                                              \
    num_threads(mz_cpu_threads(device, 0.2 * (double)(v.outer * v.axis * v.inner)))
    for (int64_t task = 0; task < v.outer * parts; task++) {
        float buffer[MZ_BLOCK], group[MZ_BLOCK], sum[MZ_BLOCK];
        int64_t outer = task / parts, from = task % parts * block;
        int n = (int)min64(block, v.inner - from);
        memset(sum, 0, sizeof sum);
        for (int64_t start = 0; start < v.axis; start += SUM_GROUP) {
            memset(group, 0, sizeof group);
            for (int64_t a = start; a < min64(v.axis, start + SUM_GROUP); a++)
                add_block(group, block_in(mz_in(call, sum, x), (outer * v.axis + a) * v.inner + from, n, buffer), n);
            add_block(sum, group, n);
        }
        for (int i = 0; i < n; i++)
            put_result(call, outer * v.inner + from + i, (float)((double)sum[i] * factor));
    }
}

static size_t sum_workspace(const mezzo_device *device, const mz_call *call) {
    (void)device;
    axis_view v = view_along(&mz_in(call, sum, x)->shape, call->attrs.axis);
    return v.inner == 1 ? sizeof(double) * (size_t)(v.outer * runs_of(v)) : 0;
}

static mezzo_status run_sum(mezzo_device *device, const mz_call *call) {
    axis_view v = view_along(&mz_in(call, sum, x)->shape, call->attrs.axis);
    double factor = call->op == MZ_OP_mean ? 1 / (double)v.axis : 1;
    (v.inner == 1 ? sum_rows : sum_columns)(device, call, v, factor);
    return MEZZO_OK;
}

static const char *sum_refuses(const mezzo_device *device, const mz_call *call) {
    (void)device;
    const bool added = call->attrs.accumulate && mz_out(call, sum, y)->dtype != MEZZO_F32;
    return added ? "sums are added to fp32 only" : NULL;
}
MZ_CPU_KERNEL(sum, "a", "a", sum_workspace, sum_refuses)
const mz_kernel MZ_SYMBOL(mean) = {"mean__" MZ_LEVEL_TEXT, prepare_sum, run_sum};

// --- the gradient: alpha·dy repeated along the axis ----------------------------------------------------------------
static mezzo_status run_expand(mezzo_device *device, const mz_call *call) {
    const mz_tensor *dy = mz_in(call, expand, x), *dx = mz_out(call, expand, y);
    axis_view v = view_along(&dx->shape, call->attrs.axis);
    // Rows of dx are one stretch of dy, or (inner 1) one element of it.
    bool constant = v.inner == 1;
    int64_t rows = constant ? v.outer : v.outer * v.axis, length = constant ? v.axis : v.inner;
    int64_t parts = (length + MZ_BLOCK - 1) / MZ_BLOCK;
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, 0.2 * (double)(rows * length)))
    for (int64_t task = 0; task < rows * parts; task++) {
        float in_buffer[MZ_BLOCK], out_buffer[MZ_BLOCK];
        int64_t row = task / parts, from = task % parts * MZ_BLOCK;
        int n = (int)min64(MZ_BLOCK, length - from);
        int64_t source = constant ? row : row / v.axis * v.inner + from;
        const float *x = block_in(dy, source, constant ? 1 : n, in_buffer);
        float *y = block_out(dx, row * length + from, out_buffer), one = x[0] * call->attrs.alpha;
        FOR_LANES(i, lanes, n)
        vstore_lanes(y + i, constant ? vset(one) : vload_lanes(x + i, lanes, 0) * call->attrs.alpha, lanes);
        block_done(dx, row * length + from, n, y);
    }
    return MEZZO_OK;
}
MZ_CPU_KERNEL(expand, "a", "a", NULL, NULL)

static mezzo_status run_accumulate(mezzo_device *device, const mz_call *call) {
    const mz_tensor *x = mz_in(call, accumulate, x);
    float *grad = mz_out(call, accumulate, grad)->data;
    int64_t n = mz_shape_count(&x->shape), blocks = (n + MZ_BLOCK - 1) / MZ_BLOCK;
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, 0.3 * (double)n))
    for (int64_t b = 0; b < blocks; b++) {
        int count = (int)min64(MZ_BLOCK, n - b * MZ_BLOCK);
        if (call->attrs.accumulate) {
            float buffer[MZ_BLOCK];
            add_block(grad + b * MZ_BLOCK, block_in(x, b * MZ_BLOCK, count, buffer), count);
        } else {
            widen_block(element_at(x, b * MZ_BLOCK), x->dtype, grad + b * MZ_BLOCK, count);
        }
    }
    return MEZZO_OK;
}

MZ_CPU_KERNEL(accumulate, "a", "f", NULL, NULL)
