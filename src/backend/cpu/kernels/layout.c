// Ops that move elements: pieces of a tensor along an axis, and counting.
#include "backend/cpu/kernels/block.h"
#include "backend/cpu/kernels/kernels.h"

enum { COPY_RUN = 4096 }; // elements of one task

// Copies between the whole and the part that starts at `from` along the axis: for every outer index one contiguous stretch.
static void copy_part(const mezzo_device *device, const mz_tensor *whole, const mz_tensor *part, int axis, int64_t from,
                      bool into_whole) {
    axis_view w = view_along(&whole->shape, axis), p = view_along(&part->shape, axis);
    int64_t stretch = p.axis * p.inner, parts = (stretch + COPY_RUN - 1) / COPY_RUN;
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, 0.2 * (double)(p.outer * stretch)))
    for (int64_t task = 0; task < p.outer * parts; task++) {
        int64_t outer = task / parts, start = task % parts * COPY_RUN, n = min64(COPY_RUN, stretch - start);
        int64_t at_whole = (outer * w.axis + from) * w.inner + start, at_part = outer * stretch + start;
        if (into_whole)
            copy_elements(part, at_part, whole, at_whole, n);
        else
            copy_elements(whole, at_whole, part, at_part, n);
    }
}

static mezzo_status run_split(mezzo_device *device, const mz_call *call) {
    int64_t from = 0;
    for (int i = 0; i < call->n_out; i++) {
        copy_part(device, &call->in[0], &call->out[i], call->attrs.axis, from, false);
        from += call->out[i].shape.dim[call->attrs.axis];
    }
    return MEZZO_OK;
}

static mezzo_status run_concat(mezzo_device *device, const mz_call *call) {
    int64_t from = 0;
    for (int i = 0; i < call->n_in; i++) {
        copy_part(device, &call->out[0], &call->in[i], call->attrs.axis, from, true);
        from += call->in[i].shape.dim[call->attrs.axis];
    }
    return MEZZO_OK;
}

static const char *moves(const mz_tensor *from, const mz_tensor *to) {
    bool floats = is_storage_float(from) && is_storage_float(to);
    return floats || from->dtype == to->dtype ? NULL : "moves are among fp32, bf16, fp16, or within one format";
}

static const char *split_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    const char *reason = NULL;
    for (int i = 0; i < call->n_out && reason == NULL; i++)
        reason = moves(&call->in[0], &call->out[i]);
    return reason;
}

static const char *concat_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    const char *reason = NULL;
    for (int i = 0; i < call->n_in && reason == NULL; i++)
        reason = moves(&call->in[i], &call->out[0]);
    return reason;
}
const mz_kernel MZ_SYMBOL(split) = {"split__" MZ_LEVEL_TEXT, split_prepare, run_split};
const mz_kernel MZ_SYMBOL(concat) = {"concat__" MZ_LEVEL_TEXT, concat_prepare, run_concat};

static mezzo_status run_arange(mezzo_device *device, const mz_call *call) {
    (void)device;
    int32_t *y = call->out[0].data;
    for (int64_t i = 0, n = mz_shape_count(&call->out[0].shape); i < n; i++)
        y[i] = (int32_t)i;
    return MEZZO_OK;
}

static const char *arange_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    return call->out[0].dtype == MEZZO_I32 ? NULL : "arange counts in i32";
}
const mz_kernel MZ_SYMBOL(arange) = {"arange__" MZ_LEVEL_TEXT, arange_prepare, run_arange};
