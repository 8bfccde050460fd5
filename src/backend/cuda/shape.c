// Runs sums along an axis, and ops that move pieces: the host side.
#include "backend/cuda/storage.h"

// A shape seen as [outer, axis, inner]. Axis -1: one axis of all elements.
typedef struct view {
    int64_t outer, axis, inner;
} view;

static view view_along(const mz_shape *shape, int axis) {
    view v = {1, 1, 1};
    if (axis < 0) {
        v.axis = mz_shape_count(shape);
        return v;
    }
    v.axis = shape->dim[axis];
    for (int i = 0; i < axis; i++)
        v.outer *= shape->dim[i];
    for (int i = axis + 1; i < shape->rank; i++)
        v.inner *= shape->dim[i];
    return v;
}

// --- sums ----------------------------------------------------------------------------------------------------------
static int parts_of(mezzo_device *device, const mz_call *call) {
    view v = view_along(&call->in[0].shape, call->attrs.axis);
    return mz_cu_sum_parts(v.outer, v.axis, v.inner, mz_cuda(device)->sms);
}

static const char *sum_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    view v = view_along(&call->in[0].shape, call->attrs.axis);
    int parts = parts_of(device, call);
    out->workspace = parts > 1 ? (size_t)(v.outer * v.inner) * (size_t)parts * sizeof(float) : 0;
    return mz_cuda_storages(call, "a", "a");
}

static mezzo_status run_sum_over(mezzo_device *device, const mz_call *call, bool mean) {
    view v = view_along(&call->in[0].shape, call->attrs.axis);
    mz_cu_sum_args args = {.x = mz_cuda_array(&call->in[0]),
                           .y = mz_cuda_array(&call->out[0]),
                           .outer = v.outer,
                           .axis = v.axis,
                           .inner = v.inner,
                           .parts = parts_of(device, call),
                           .partial = call->workspace,
                           .accumulate = !mean && call->attrs.accumulate,
                           .divisor = mean ? (float)v.axis : 1};
    MZ_CUDA_TRY(mz_cu_sum(mz_cuda(device)->stream, &args));
    return MEZZO_OK;
}

static mezzo_status run_sum(mezzo_device *device, const mz_call *call) {
    return run_sum_over(device, call, false);
}
static mezzo_status run_mean(mezzo_device *device, const mz_call *call) {
    return run_sum_over(device, call, true);
}
const mz_kernel mz_cuda_sum = {"sum__cuda", sum_prepare, run_sum};
const mz_kernel mz_cuda_mean = {"mean__cuda", sum_prepare, run_mean};

static const char *expand_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    return mz_cuda_storages(call, "a", "a");
}

static mezzo_status run_expand(mezzo_device *device, const mz_call *call) {
    view v = view_along(&call->out[0].shape, call->attrs.axis);
    MZ_CUDA_TRY(mz_cu_expand(mz_cuda(device)->stream, mz_cuda_array(&call->in[0]), mz_cuda_array(&call->out[0]),
                             v.outer, v.axis, v.inner, call->attrs.alpha));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_expand = {"expand__cuda", expand_prepare, run_expand};

// --- pieces --------------------------------------------------------------------------------------------------------
static const char *same_storage(const mz_call *call) {
    for (int i = 0; i < call->n_in; i++)
        if (call->in[i].dtype != call->in[0].dtype)
            return "the inputs have different storages";
    for (int i = 0; i < call->n_out; i++)
        if (call->out[i].dtype != call->in[0].dtype)
            return "the output's storage is not the input's";
    return NULL;
}

static const char *parts_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    return same_storage(call);
}

static mezzo_status run_parts(mezzo_device *device, const mz_call *call, bool join) {
    const mz_tensor *whole = join ? &call->out[0] : &call->in[0], *parts = join ? call->in : call->out;
    view v = view_along(&whole->shape, call->attrs.axis);
    int64_t size = (int64_t)mezzo_dtype_size(whole->dtype), from = 0;
    mz_cu_parts p = {.whole = whole->data,
                     .outer = v.outer,
                     .stride = v.axis * v.inner * size,
                     .n = join ? call->n_in : call->n_out};
    for (int i = 0; i < p.n; i++) {
        p.part[i] = parts[i].data;
        p.width[i] = parts[i].shape.dim[call->attrs.axis] * v.inner * size;
        p.offset[i] = from;
        from += p.width[i];
    }
    MZ_CUDA_TRY(mz_cu_copy_parts(mz_cuda(device)->stream, &p, join));
    return MEZZO_OK;
}

static mezzo_status run_split(mezzo_device *device, const mz_call *call) {
    return run_parts(device, call, false);
}
static mezzo_status run_concat(mezzo_device *device, const mz_call *call) {
    return run_parts(device, call, true);
}
_Static_assert((int)MZ_CU_PARTS >= (int)MZ_MAX_IN && (int)MZ_CU_PARTS >= (int)MZ_MAX_OUT, "room for every part");
const mz_kernel mz_cuda_split = {"split__cuda", parts_prepare, run_split};
const mz_kernel mz_cuda_concat = {"concat__cuda", parts_prepare, run_concat};

// Runs one piece of x, or of dx.
static mezzo_status run_piece(mezzo_device *device, const mz_call *call, bool join) {
    const mz_tensor *whole = join ? &call->out[0] : &call->in[0], *part = join ? &call->in[0] : &call->out[0];
    view v = view_along(&whole->shape, call->attrs.axis);
    int64_t unit = v.inner * (int64_t)mezzo_dtype_size(whole->dtype);
    mz_cu_parts p = {.whole = whole->data, .outer = v.outer, .stride = v.axis * unit, .n = 1};
    p.part[0] = part->data;
    p.width[0] = (call->attrs.end - call->attrs.begin) * unit;
    p.offset[0] = call->attrs.begin * unit;
    MZ_CUDA_TRY(mz_cu_copy_parts(mz_cuda(device)->stream, &p, join));
    return MEZZO_OK;
}

static mezzo_status run_slice(mezzo_device *device, const mz_call *call) {
    return run_piece(device, call, false);
}
static mezzo_status run_pad(mezzo_device *device, const mz_call *call) {
    const mz_tensor *y = &call->out[0];
    const int64_t n = mz_shape_count(&y->shape);
    if (call->attrs.alpha == 0)
        MZ_CUDA_TRY(cudaMemsetAsync(y->data, 0, (size_t)n * mezzo_dtype_size(y->dtype), mz_cuda(device)->stream));
    else
        MZ_CUDA_TRY(mz_cu_fill_with(mz_cuda(device)->stream, mz_cuda_array(y), n, call->attrs.alpha));
    return run_piece(device, call, true);
}
const mz_kernel mz_cuda_slice = {"slice__cuda", parts_prepare, run_slice};
static const char *pad_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    const char *reason = parts_prepare(device, call, out);
    return reason != NULL ? reason : mz_cuda_storages(call, "n", "n");
}
const mz_kernel mz_cuda_pad = {"pad__cuda", pad_prepare, run_pad};

// Where rows stay whole, their bytes are moved in the largest units that fit them.
static mezzo_status run_permute(mezzo_device *device, const mz_call *call) {
    const mz_tensor *x = &call->in[0];
    mz_permuted loops = mz_shape_permute(&x->shape, call->attrs.permutation);
    mz_cu_permuted p = {.rank = loops.rank, .size = (int)mezzo_dtype_size(x->dtype)};
    int last = p.rank - 1;
    int64_t units = 1; // elements in one
    while (loops.stride[last] == 1 && p.size < 16 && loops.dim[last] % (2 * units) == 0) {
        units *= 2;
        p.size *= 2;
    }
    for (int i = 0; i < p.rank; i++) {
        p.dim[i] = i == last ? loops.dim[i] / units : loops.dim[i];
        p.stride[i] = i == last ? loops.stride[i] : loops.stride[i] / units;
    }
    MZ_CUDA_TRY(mz_cu_permute(mz_cuda(device)->stream, x->data, call->out[0].data, &p));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_permute = {"permute__cuda", parts_prepare, run_permute};

// Programs let the two values share memory, so this runs only where a caller asks for it by hand.
static mezzo_status run_reshape(mezzo_device *device, const mz_call *call) {
    size_t bytes = (size_t)mz_shape_count(&call->in[0].shape) * mezzo_dtype_size(call->in[0].dtype);
    MZ_CUDA_TRY(
        cudaMemcpyAsync(call->out[0].data, call->in[0].data, bytes, cudaMemcpyDeviceToDevice, mz_cuda(device)->stream));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_reshape = {"reshape__cuda", parts_prepare, run_reshape};

static const char *copy_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    if (call->in[0].dtype != call->out[0].dtype)
        return "copy does not convert";
    const char *reason = mz_cuda_has_layout(&call->in[0]);
    return reason != NULL ? reason : mz_cuda_has_layout(&call->out[0]);
}

static mezzo_status run_copy(mezzo_device *device, const mz_call *call) {
    const mz_tensor *x = &call->in[0], *y = &call->out[0];
    MZ_CUDA_TRY(mz_cu_copy(mz_cuda(device)->stream, x->data, mz_cuda_layout(x), y->data, mz_cuda_layout(y),
                           mz_shape_count(&x->shape), mz_stored_count(&y->shape, &y->storage),
                           mezzo_dtype_size(x->dtype)));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_copy = {"copy__cuda", copy_prepare, run_copy};

static const char *arange_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    return mz_cuda_storages(call, "i", "i");
}

static mezzo_status run_arange(mezzo_device *device, const mz_call *call) {
    MZ_CUDA_TRY(mz_cu_arange(mz_cuda(device)->stream, call->out[0].data, mz_shape_count(&call->out[0].shape),
                             call->attrs.begin, call->attrs.step));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_arange = {"arange__cuda", arange_prepare, run_arange};
