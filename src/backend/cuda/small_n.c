// Runs linear, linear_dx and linear_dw with a matrix of at most 16 rows, in FP32: the host side. cuBLASLt has no kernel
// for such a shape that reads x at the memory's pace.
#include "backend/cuda/storage.h"

// x [M, K] (dy [M, N]), w [N, K]; which slots hold them differs by op.
static mz_cu_small_n small_n_args(const mz_call *call) {
    mz_cu_small_n g = {.accumulate = call->op == MZ_OP_linear_dw && call->attrs.accumulate};
    const mz_tensor *w = call->op == MZ_OP_linear_dw ? &call->out[0] : &call->in[1];
    g.n = (int)w->shape.dim[0];
    g.k = (int)w->shape.dim[1];
    if (call->op == MZ_OP_linear) {
        g.x = call->in[0].data;
        g.w = w->data;
        g.y = call->out[0].data;
        g.rows = mz_shape_count(&call->in[0].shape) / g.k;
        return g;
    }
    g.dy = call->in[0].data;
    g.rows = mz_shape_count(&call->in[0].shape) / g.n;
    if (call->op == MZ_OP_linear_dx) {
        g.w = w->data;
        g.dx = call->out[0].data;
    } else {
        g.x = call->in[1].data;
        g.dw = w->data;
        g.partial = call->workspace;
    }
    return g;
}

static const char *small_n_refusal(const mz_call *call) {
    const char *reason = mz_cuda_storages(call, "f", "f");
    if (reason != NULL)
        return reason;
    if (call->numerics.compute != MEZZO_F32 && call->numerics.compute != MEZZO_TF32)
        return "computes in fp32";
    const mz_shape *w = call->op == MZ_OP_linear_dw ? &call->out[0].shape : &call->in[1].shape;
    if (w->dim[0] > 16 || w->dim[1] % 4 != 0 || w->dim[1] >= 1 << 24)
        return "is for matrices of at most 16 rows, of a multiple of 4 columns";
    if ((call->n_out > 1 && mz_present(&call->out[1])) || (call->n_out > 2 && mz_present(&call->out[2])) ||
        (call->n_in > 2 && mz_present(&call->in[2])) || (call->n_in > 3 && mz_present(&call->in[3])) ||
        (call->op == MZ_OP_linear && call->attrs.act != MZ_ACT_NONE))
        return "multiplies and nothing else";
    return NULL;
}

static const char *small_n_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    const char *reason = small_n_refusal(call);
    if (reason != NULL || call->op != MZ_OP_linear_dw)
        return reason;
    mz_cu_small_n g = small_n_args(call);
    out->workspace = mz_cu_small_n_dw_workspace(g.rows, g.n, g.k, mz_cuda(device)->sms);
    return NULL;
}

static mezzo_status small_n_run(mezzo_device *device, const mz_call *call) {
    mz_cu_small_n g = small_n_args(call);
    cudaStream_t stream = mz_cuda(device)->stream;
    if (call->op == MZ_OP_linear)
        MZ_CUDA_TRY(mz_cu_small_n_y(stream, &g));
    else if (call->op == MZ_OP_linear_dx)
        MZ_CUDA_TRY(mz_cu_small_n_dx(stream, &g));
    else
        MZ_CUDA_TRY(mz_cu_small_n_dw(stream, &g, mz_cuda(device)->sms));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_linear_small_n = {"linear__cuda_small_n", small_n_prepare, small_n_run};
const mz_kernel mz_cuda_linear_dx_small_n = {"linear_dx__cuda_small_n", small_n_prepare, small_n_run};
const mz_kernel mz_cuda_linear_dw_small_n = {"linear_dw__cuda_small_n", small_n_prepare, small_n_run};

// --- a router's logits and what they choose, in one piece; the way back --------------------------------------------
static mezzo_status run_forward(mezzo_device *device, const mz_call *first, const mz_call *second) {
    mz_cu_small_n g = small_n_args(first);
    mz_cu_route_args route = mz_cuda_route_args(second);
    MZ_CUDA_TRY(mz_cu_small_n_y_route(mz_cuda(device)->stream, &g, &route));
    return MEZZO_OK;
}
static const mz_fused_kernel forward = {"linear_route__cuda_small_n", run_forward};

static mezzo_status run_backward(mezzo_device *device, const mz_call *first, const mz_call *second) {
    mz_cu_route_dx_args route = mz_cuda_route_dx_args(first);
    mz_cu_small_n g = small_n_args(second);
    MZ_CUDA_TRY(mz_cu_route_dx_small_n(mz_cuda(device)->stream, &route, &g));
    return MEZZO_OK;
}
static const mz_fused_kernel backward = {"route_dx_linear_dx__cuda_small_n", run_backward};

// Returns whether the second call writes where the first one reads.
static bool in_the_way(const mz_call *first, const mz_call *second) {
    for (int i = 0; i < first->n_in; i++)
        for (int k = 0; k < second->n_out; k++) {
            const mz_tensor *in = &first->in[i], *out = &second->out[k];
            const char *p = in->data, *q = out->data;
            if (mz_present(in) && mz_present(out) &&
                p < q + (size_t)mz_shape_count(&out->shape) * mezzo_dtype_size(out->dtype) &&
                q < p + (size_t)mz_shape_count(&in->shape) * mezzo_dtype_size(in->dtype))
                return true;
        }
    return false;
}

const mz_fused_kernel *mz_cuda_fuse_router(const mz_call *first, const mz_call *second) {
    if (second->in[0].data != first->out[0].data || in_the_way(first, second))
        return NULL;
    if (first->op == MZ_OP_linear && second->op == MZ_OP_route) {
        bool can = !second->attrs.softmax && small_n_refusal(first) == NULL && mz_cuda_route_refusal(second) == NULL;
        return can && second->attrs.groups <= 1 && second->attrs.top_k <= first->in[1].shape.dim[0] ? &forward : NULL;
    }
    if (first->op == MZ_OP_route_dx && second->op == MZ_OP_linear_dx) {
        bool can = !first->attrs.softmax && small_n_refusal(second) == NULL && mz_cuda_route_dx_refusal(first) == NULL;
        return can && first->in[1].dtype == MEZZO_F32 && second->in[1].shape.dim[1] >= 128 ? &backward : NULL;
    }
    return NULL;
}
