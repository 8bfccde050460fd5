// Runs ops that move elements: parts of a tensor along an axis, and arange.
#include "backend/cpu/kernels/block.h"
#include "backend/cpu/kernels/kernels.h"

enum { COPY_RUN = 4096 }; // elements of one task

// Copies between the whole and the part that starts at `from` along the axis: one contiguous stretch for every outer
// index.
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
        copy_part(device, mz_in(call, split, x), &call->out[i], call->attrs.axis, from, false);
        from += call->out[i].shape.dim[call->attrs.axis];
    }
    return MEZZO_OK;
}

static mezzo_status run_concat(mezzo_device *device, const mz_call *call) {
    int64_t from = 0;
    for (int i = 0; i < call->n_in; i++) {
        copy_part(device, mz_out(call, concat, y), &call->in[i], call->attrs.axis, from, true);
        from += call->in[i].shape.dim[call->attrs.axis];
    }
    return MEZZO_OK;
}

static const char *moves(const mz_tensor *from, const mz_tensor *to) {
    bool floats = mz_stores_float(from) && mz_stores_float(to);
    return floats || from->dtype == to->dtype ? NULL : "moves are among fp32, bf16, fp16, or within one format";
}

static const char *split_refuses(const mezzo_device *device, const mz_call *call) {
    (void)device;
    const char *reason = NULL;
    for (int i = 0; i < call->n_out && reason == NULL; i++)
        reason = moves(mz_in(call, split, x), &call->out[i]);
    return reason;
}

static const char *concat_refuses(const mezzo_device *device, const mz_call *call) {
    (void)device;
    const char *reason = NULL;
    for (int i = 0; i < call->n_in && reason == NULL; i++)
        reason = moves(&call->in[i], mz_out(call, concat, y));
    return reason;
}
MZ_CPU_KERNEL(split, NULL, NULL, NULL, split_refuses)
MZ_CPU_KERNEL(concat, NULL, NULL, NULL, concat_refuses)

// --- slice ---------------------------------------------------------------------------------------------------------
static mezzo_status run_slice(mezzo_device *device, const mz_call *call) {
    copy_part(device, mz_in(call, slice, x), mz_out(call, slice, y), call->attrs.axis, call->attrs.begin, false);
    return MEZZO_OK;
}
MZ_CPU_KERNEL(slice, NULL, NULL, NULL, split_refuses)

// --- constants, and the padding around a part -----------------------------------------------------------------------
static void fill(const mz_tensor *y, int64_t at, int64_t n, float value) {
    float block[MZ_BLOCK];
    const int32_t whole = y->dtype == MEZZO_I32 ? (int32_t)value : 0;
    for (int i = 0; i < min64(MZ_BLOCK, n); i++)
        memcpy(&block[i], y->dtype == MEZZO_I32 ? (const void *)&whole : &value, 4);
    for (int64_t i = 0; i < n; i += MZ_BLOCK) {
        const int count = (int)min64(MZ_BLOCK, n - i);
        if (y->dtype == MEZZO_I32)
            memcpy((int32_t *)y->data + at + i, block, 4 * (size_t)count);
        else
            narrow_block(block, element_at(y, at + i), y->dtype, count);
    }
}

static mezzo_status run_constant(mezzo_device *device, const mz_call *call) {
    (void)device;
    fill(mz_out(call, constant, y), 0, mz_shape_count(&mz_out(call, constant, y)->shape), call->attrs.alpha);
    return MEZZO_OK;
}

MZ_CPU_KERNEL(constant, "", "n", NULL, NULL)

static mezzo_status run_pad(mezzo_device *device, const mz_call *call) {
    const mz_tensor *y = mz_out(call, pad, y);
    const axis_view v = view_along(&y->shape, call->attrs.axis);
    const int64_t before = call->attrs.begin * v.inner, after = (v.axis - call->attrs.end) * v.inner;
    for (int64_t outer = 0; outer < v.outer; outer++) {
        fill(y, outer * v.axis * v.inner, before, call->attrs.alpha);
        fill(y, (outer + 1) * v.axis * v.inner - after, after, call->attrs.alpha);
    }
    copy_part(device, y, mz_in(call, pad, x), call->attrs.axis, call->attrs.begin, true);
    return MEZZO_OK;
}

MZ_CPU_KERNEL(pad, "n", "n", NULL, split_refuses)

// --- permute -------------------------------------------------------------------------------------------------------
// Gathers n elements of `size` bytes, each `stride` elements of x after the one before.
static void gather(const char *x, int64_t stride, char *y, int64_t n, size_t size) {
    if (stride == 1) {
        memcpy(y, x, (size_t)n * size);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        size_t from = (size_t)(i * stride);
        if (size == 4)
            memcpy(y + 4 * i, x + 4 * from, 4);
        else if (size == 2)
            memcpy(y + 2 * i, x + 2 * from, 2);
        else
            memcpy(y + (size_t)i * size, x + from * size, size);
    }
}

static mezzo_status run_permute(mezzo_device *device, const mz_call *call) {
    const mz_tensor *x = mz_in(call, permute, x), *y = mz_out(call, permute, y);
    mz_permuted p = mz_shape_permute(&x->shape, call->attrs.permutation);
    size_t size = mezzo_dtype_size(x->dtype);
    int64_t last = p.rank - 1, length = p.dim[last], n = mz_shape_count(&y->shape);
    int64_t parts = (length + COPY_RUN - 1) / COPY_RUN;
#pragma omp parallel for schedule(static) num_threads(mz_cpu_threads(device, 0.5 * (double)n))
    for (int64_t task = 0; task < n / length * parts; task++) {
        int64_t row = task / parts, from = task % parts * COPY_RUN, at = from * p.stride[last];
        for (int64_t d = last - 1, rest = row; d >= 0; rest /= p.dim[d--])
            at += rest % p.dim[d] * p.stride[d];
        gather((const char *)x->data + (size_t)at * size, p.stride[last],
               (char *)y->data + (size_t)(row * length + from) * size, min64(COPY_RUN, length - from), size);
    }
    return MEZZO_OK;
}

static const char *permute_refuses(const mezzo_device *device, const mz_call *call) {
    (void)device;
    return mz_in(call, permute, x)->dtype == mz_out(call, permute, y)->dtype ? NULL
                                                                             : "moves elements within one format";
}
MZ_CPU_KERNEL(permute, NULL, NULL, NULL, permute_refuses)

static mezzo_status run_arange(mezzo_device *device, const mz_call *call) {
    (void)device;
    int32_t *y = mz_out(call, arange, y)->data;
    for (int64_t i = 0, n = mz_shape_count(&mz_out(call, arange, y)->shape); i < n; i++)
        y[i] = (int32_t)(call->attrs.begin + i * call->attrs.step);
    return MEZZO_OK;
}

MZ_CPU_KERNEL(arange, "", "i", NULL, NULL)
