// Runs ops on one element at a time, SwiGLU and rotary positions: the host side.
#include "backend/cuda/storage.h"

static const char *prepare_floats(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    return mz_cuda_storages(call, "a", "a");
}

static mz_cu_told told(const mz_call *call) {
    return (mz_cu_told){call->attrs.alpha, call->attrs.low, call->attrs.high};
}

// --- one input -----------------------------------------------------------------------------------------------------
static mezzo_status run_map(mezzo_device *device, const mz_call *call, int map) {
    MZ_CUDA_TRY(mz_cu_map(mz_cuda(device)->stream, map, mz_cuda_array(&call->in[0]), mz_cuda_array(&call->out[0]),
                          mz_shape_count(&call->out[0].shape), told(call)));
    return MEZZO_OK;
}

// --- two inputs of one size, the second perhaps repeated as a whole ------------------------------------------------
static mezzo_status run_zip(mezzo_device *device, const mz_call *call, int zip) {
    MZ_CUDA_TRY(mz_cu_zip(mz_cuda(device)->stream, zip, mz_cuda_array(&call->in[0]), mz_cuda_array(&call->in[1]),
                          mz_cuda_array(&call->out[0]), mz_shape_count(&call->out[0].shape),
                          mz_shape_count(&call->in[1].shape), told(call)));
    return MEZZO_OK;
}

// --- operands that may repeat --------------------------------------------------------------------------------------
static mz_cu_broadcast loops_of(const mz_call *call, bool *whole) {
    const mz_shape *in[MZ_OPERANDS];
    mz_cu_broadcast loops;
    _Static_assert((int)MZ_CU_RANK == (int)MEZZO_MAX_RANK && (int)MZ_CU_OPERANDS == (int)MZ_OPERANDS,
                   "one loop a dimension");
    for (int i = 0; i < call->n_in; i++)
        in[i] = &call->in[i].shape;
    mz_broadcast r = mz_broadcast_loops(in, call->n_in, &call->out[0].shape);
    loops.rank = r.rank;
    memcpy(loops.dim, r.dim, sizeof r.dim);
    memcpy(loops.step, r.step, sizeof r.step);
    *whole = mz_broadcast_whole(&r) > 0;
    return loops;
}

static mezzo_status run_binary(mezzo_device *device, const mz_call *call, int zip) {
    bool whole;
    const mz_cu_broadcast loops = loops_of(call, &whole);
    if (whole)
        return run_zip(device, call, zip);
    MZ_CUDA_TRY(mz_cu_zip_broadcast(mz_cuda(device)->stream, zip, mz_cuda_array(&call->in[0]),
                                    mz_cuda_array(&call->in[1]), mz_cuda_array(&call->out[0]), &loops));
    return MEZZO_OK;
}

static mezzo_status run_operands(mezzo_device *device, const mz_call *call, int op) {
    bool whole;
    const mz_cu_broadcast loops = loops_of(call, &whole);
    mz_cu_array in[MZ_CU_OPERANDS];
    for (int i = 0; i < call->n_in; i++)
        in[i] = mz_cuda_array(&call->in[i]);
    MZ_CUDA_TRY(mz_cu_operands(mz_cuda(device)->stream, op, in, mz_cuda_array(&call->out[0]), &loops));
    return MEZZO_OK;
}

static const char *prepare_numbers(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    return mz_cuda_storages(call, "n", "n");
}

#define KERNEL(name, prepare, run)                                                                                     \
    static mezzo_status run_##name(mezzo_device *device, const mz_call *call) {                                        \
        return run(device, call, MZ_CU_##name);                                                                        \
    }                                                                                                                  \
    const mz_kernel mz_cuda_##name = {#name "__cuda", prepare, run_##name};
#define UNARY(name, ...)      KERNEL(name, prepare_floats, run_map) KERNEL(name##_dx, prepare_floats, run_zip)
#define UNARY_OWN(name, ...)  KERNEL(name, prepare_floats, run_map)
#define UNARY_FLAT(name, ...) KERNEL(name, prepare_floats, run_map)
#define BINARY(name, ...)                                                                                              \
    KERNEL(name, prepare_numbers, run_operands)                                                                        \
    KERNEL(name##_da, prepare_numbers, run_operands)                                                                   \
    KERNEL(name##_db, prepare_numbers, run_operands)
#define BINARY_OWN(name, ...) KERNEL(name, prepare_floats, run_binary)
#define COMPARE(name, ...)    KERNEL(name, prepare_numbers, run_operands)
#define TERNARY(name, ...)    BINARY(name)
#include "graph/element.def"

static mezzo_status run_gelu(mezzo_device *device, const mz_call *call) {
    return run_map(device, call, call->attrs.tanh ? MZ_CU_GELU_TANH : MZ_CU_GELU);
}
static mezzo_status run_gelu_dx(mezzo_device *device, const mz_call *call) {
    return run_zip(device, call, call->attrs.tanh ? MZ_CU_GELU_TANH_DX : MZ_CU_GELU_DX);
}
const mz_kernel mz_cuda_gelu = {"gelu__cuda", prepare_floats, run_gelu};
const mz_kernel mz_cuda_gelu_dx = {"gelu_dx__cuda", prepare_floats, run_gelu_dx};

static const char *cast_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    return mz_cuda_storages(call, "n", "a");
}
static mezzo_status run_cast(mezzo_device *device, const mz_call *call) {
    return (call->in[0].dtype == MEZZO_I32 ? run_operands : run_map)(device, call, MZ_CU_CAST);
}
const mz_kernel mz_cuda_cast = {"cast__cuda", cast_prepare, run_cast};

static mezzo_status run_dropout(mezzo_device *device, const mz_call *call) {
    MZ_CUDA_TRY(mz_cu_dropout(mz_cuda(device)->stream, mz_cuda_array(&call->in[0]), mz_cuda_array(&call->out[0]),
                              mz_shape_count(&call->out[0].shape), call->attrs.p, call->attrs.rng, call->rng));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_dropout = {"dropout__cuda", prepare_floats, run_dropout};

// grad += x, or grad = x.
static const char *accumulate_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    return mz_cuda_storages(call, "a", "f");
}

static mezzo_status run_accumulate(mezzo_device *device, const mz_call *call) {
    if (!call->attrs.accumulate)
        return run_map(device, call, MZ_CU_CAST);
    int64_t n = mz_shape_count(&call->out[0].shape);
    mz_cu_array grad = mz_cuda_array(&call->out[0]);
    MZ_CUDA_TRY(
        mz_cu_zip(mz_cuda(device)->stream, MZ_CU_add, grad, mz_cuda_array(&call->in[0]), grad, n, n, (mz_cu_told){0}));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_accumulate = {"accumulate__cuda", accumulate_prepare, run_accumulate};

// --- swiglu --------------------------------------------------------------------------------------------------------
static const char *swiglu_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    const char *reason = mz_cuda_storages(call, "a", "a");
    return reason != NULL ? reason : mz_cuda_narrow(&call->in[0]);
}

static mezzo_status run_swiglu(mezzo_device *device, const mz_call *call) {
    int64_t width = mz_cuda_width(&call->out[0]), rows = mz_shape_count(&call->out[0].shape) / width;
    MZ_CUDA_TRY(mz_cu_swiglu(mz_cuda(device)->stream, mz_cuda_array(&call->in[0]), mz_cuda_array(&call->out[0]), rows,
                             (int)width));
    return MEZZO_OK;
}

static mezzo_status run_swiglu_dx(mezzo_device *device, const mz_call *call) {
    int64_t width = mz_cuda_width(&call->in[0]), rows = mz_shape_count(&call->in[0].shape) / width;
    MZ_CUDA_TRY(mz_cu_swiglu_dx(mz_cuda(device)->stream, mz_cuda_array(&call->in[0]), mz_cuda_array(&call->in[1]),
                                mz_cuda_array(&call->out[0]), rows, (int)width));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_swiglu = {"swiglu__cuda", swiglu_prepare, run_swiglu};
const mz_kernel mz_cuda_swiglu_dx = {"swiglu_dx__cuda", swiglu_prepare, run_swiglu_dx};

// --- rope ----------------------------------------------------------------------------------------------------------
static const char *rope_table_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    const char *reason = mz_cuda_storages(call, "i", "f");
    return reason != NULL ? reason : mz_cuda_narrow(&call->out[0]);
}

static mezzo_status run_rope_table(mezzo_device *device, const mz_call *call) {
    const mz_tensor *positions = &call->in[0], *table = &call->out[0]; // [T], [T, R]
    const mz_rope_scaling *r = &call->attrs.rope;
    const mz_cu_rope_scaling scaling = {r->divisor, r->offset, r->slope, r->amplitude, r->by_index};
    MZ_CUDA_TRY(mz_cu_rope_table(mz_cuda(device)->stream, mz_present(positions) ? positions->data : NULL, table->data,
                                 table->shape.dim[0], (int)table->shape.dim[1], call->attrs.theta, scaling));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_rope_table = {"rope_table__cuda", rope_table_prepare, run_rope_table};

static const char *rope_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    const char *reason = mz_cuda_storages(call, "af", "a");
    return reason != NULL ? reason : mz_cuda_narrow(&call->in[0]);
}

static mezzo_status run_rope(mezzo_device *device, const mz_call *call) {
    const mz_tensor *x = &call->in[0], *table = &call->in[1]; // [B, T, W], [T, R] or [B·T, R]
    mz_cu_rope_args args = {.x = mz_cuda_array(x),
                            .y = mz_cuda_array(&call->out[0]),
                            .table = table->data,
                            .rows = x->shape.dim[0] * x->shape.dim[1],
                            .length = table->shape.dim[0],
                            .heads = call->attrs.heads,
                            .rotated = call->attrs.rotated,
                            .width = (int)(x->shape.dim[2] / call->attrs.heads),
                            .dims = (int)table->shape.dim[1],
                            .interleaved = call->attrs.interleaved,
                            .inverse = call->attrs.inverse};
    MZ_CUDA_TRY(mz_cu_rope(mz_cuda(device)->stream, &args));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_rope = {"rope__cuda", rope_prepare, run_rope};
