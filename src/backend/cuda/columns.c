// Runs ops that go down the columns of [outer, axis, inner], and constants: the host side.
#include "backend/cuda/storage.h"

static mezzo_status run_columns(mezzo_device *device, const mz_call *call, int op) {
    const bool reads_x = op == MZ_CU_EXTREMUM_DX || op == MZ_CU_PROD_DX, adds = op == MZ_CU_SCATTER_ADD;
    const mz_shape *shape = adds ? &call->out[0].shape : &call->in[reads_x].shape;
    const int axis = call->attrs.axis;
    mz_cu_columns c = {.outer = 1, .axis = axis < 0 ? mz_shape_count(shape) : shape->dim[axis], .inner = 1};
    for (int d = 0; axis >= 0 && d < shape->rank; d++) {
        c.outer *= d < axis ? shape->dim[d] : 1;
        c.inner *= d > axis ? shape->dim[d] : 1;
    }
    for (int i = 0; i < call->n_in; i++)
        if (mz_present(&call->in[i]))
            c.in[i] = mz_cuda_array(&call->in[i]);
    c.out = mz_cuda_array(&call->out[0]);
    if (adds || op == MZ_CU_GATHER) {
        const mz_shape *index = &call->in[1].shape;
        c.index = call->in[1].data;
        c.elementwise = call->attrs.elementwise;
        c.n = c.elementwise ? index->dim[axis] : mz_shape_count(index);
        c.sum = call->out[0].dtype == MEZZO_F32 ? call->out[0].data : call->workspace;
    }
    c.reverse = call->attrs.reverse;
    c.exclusive = call->attrs.exclusive;
    MZ_CUDA_TRY(mz_cu_columns_run(mz_cuda(device)->stream, op, &c));
    return MEZZO_OK;
}

static const char *floats_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    return mz_cuda_storages(call, "a", "a");
}
static const char *argmax_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    return mz_cuda_storages(call, "n", "i");
}
static const char *indexed_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device;
    const mz_tensor *y = &call->out[0];
    if (call->op == MZ_OP_scatter_add && y->dtype != MEZZO_F32)
        out->workspace = (size_t)mz_shape_count(&y->shape) * sizeof(float);
    return mz_cuda_storages(call, "aia", "a");
}

#define COLUMNS(name, op, prepare)                                                                                     \
    static mezzo_status run_##name(mezzo_device *device, const mz_call *call) {                                        \
        return run_columns(device, call, op);                                                                          \
    }                                                                                                                  \
    const mz_kernel mz_cuda_##name = {#name "__cuda", prepare, run_##name};
COLUMNS(max, MZ_CU_MAX, floats_prepare)
COLUMNS(min, MZ_CU_MIN, floats_prepare)
COLUMNS(argmax, MZ_CU_ARGMAX, argmax_prepare)
COLUMNS(extremum_dx, MZ_CU_EXTREMUM_DX, floats_prepare)
COLUMNS(prod, MZ_CU_PROD, floats_prepare)
COLUMNS(prod_dx, MZ_CU_PROD_DX, floats_prepare)
COLUMNS(cumsum, MZ_CU_CUMSUM, floats_prepare)
COLUMNS(gather, MZ_CU_GATHER, indexed_prepare)
COLUMNS(scatter_add, MZ_CU_SCATTER_ADD, indexed_prepare)

static const char *constant_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    return mz_cuda_storages(call, "n", "n");
}

static mezzo_status run_constant(mezzo_device *device, const mz_call *call) {
    const mz_tensor *y = &call->out[0];
    MZ_CUDA_TRY(
        mz_cu_fill_with(mz_cuda(device)->stream, mz_cuda_array(y), mz_shape_count(&y->shape), call->attrs.alpha));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_constant = {"constant__cuda", constant_prepare, run_constant};
