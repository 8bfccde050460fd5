// linear, linear_dx and linear_dw with a matrix of at most 16 rows, in FP32: the host side. cuBLASLt has no kernel for such a shape that reads x
// at the memory's pace.
#include "backend/cuda/storage.h"

// x [M, K] (dy [M, N]), w [N, K]; which slots hold them differs by op.
static mz_cu_thin thin_args(const mz_call *call) {
    mz_cu_thin g = {.accumulate = call->op == MZ_OP_linear_dw && call->attrs.accumulate};
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

static const char *thin_supports(const mezzo_device *device, const mz_call *call) {
    (void)device;
    const char *reason = mz_cuda_storages(call, "f", "f");
    if (reason != NULL)
        return reason;
    if (call->numerics.compute != MEZZO_F32 && call->numerics.compute != MEZZO_TF32)
        return "computes in fp32";
    const mz_shape *w = call->op == MZ_OP_linear_dw ? &call->out[0].shape : &call->in[1].shape;
    if (w->dim[0] > 16 || w->dim[1] % 4 != 0 || w->dim[1] >= 1 << 24)
        return "is for matrices of at most 16 rows, of a multiple of 4 columns";
    if ((call->n_out > 1 && mz_present(&call->out[1])) || (call->n_in > 2 && mz_present(&call->in[2])) ||
        (call->n_in > 3 && mz_present(&call->in[3])) || (call->op == MZ_OP_linear && call->attrs.act != MZ_ACT_NONE))
        return "multiplies and nothing else";
    return NULL;
}

static size_t thin_dw_workspace(const mezzo_device *device, const mz_call *call) {
    mz_cu_thin g = thin_args(call);
    return mz_cu_thin_dw_workspace(g.rows, g.n, g.k, mz_cuda(device)->sms);
}

static mezzo_status thin_run(mezzo_device *device, const mz_call *call) {
    mz_cu_thin g = thin_args(call);
    cudaStream_t stream = mz_cuda(device)->stream;
    if (call->op == MZ_OP_linear)
        MZ_CUDA_TRY(mz_cu_thin_y(stream, &g));
    else if (call->op == MZ_OP_linear_dx)
        MZ_CUDA_TRY(mz_cu_thin_dx(stream, &g));
    else
        MZ_CUDA_TRY(mz_cu_thin_dw(stream, &g, mz_cuda(device)->sms));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_linear_thin = {"linear__cuda_thin", thin_supports, NULL, thin_run};
const mz_kernel mz_cuda_linear_dx_thin = {"linear_dx__cuda_thin", thin_supports, NULL, thin_run};
const mz_kernel mz_cuda_linear_dw_thin = {"linear_dw__cuda_thin", thin_supports, thin_dw_workspace, thin_run};
