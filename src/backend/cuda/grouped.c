// Runs the experts' products on the host side. The host knows the sizes; only the device knows the experts' shares of
// the rows.
#include "backend/cuda/kernels/grouped_fp8.h"

#include "backend/cuda/storage.h"

static mz_cu_grouped grouped_args(mezzo_device *device, const mz_call *call) {
    const mz_cuda_device *cuda = mz_cuda(device);
    bool dw = call->op == MZ_OP_grouped_linear_dw;
    const mz_shape *matrix = dw ? &call->out[0].shape : &call->in[1].shape; // [E, N, K]
    return (mz_cu_grouped){.op = dw                                 ? MZ_CU_GROUPED_DW
                                 : call->op == MZ_OP_grouped_linear ? MZ_CU_GROUPED_Y
                                                                    : MZ_CU_GROUPED_DX,
                           .a = mz_cuda_array(&call->in[0]),
                           .b = mz_cuda_array(&call->in[1]),
                           .out = mz_cuda_array(&call->out[0]),
                           .offsets = mz_in(call, grouped_linear, offsets)->data,
                           .rows = call->in[0].shape.dim[0],
                           .experts = (int)matrix->dim[0],
                           .n = (int)matrix->dim[1],
                           .k = (int)matrix->dim[2],
                           .compute = (int)call->numerics.compute,
                           .accumulate = dw && call->attrs.accumulate,
                           .sms = cuda->sms,
                           .shared_optin = cuda->shared_optin};
}

static const char *check(const mz_call *call) {
    const char *reason = mz_cuda_storages(call, "aai", call->op == MZ_OP_grouped_linear_dw ? "f" : "a");
    if (reason != NULL)
        return reason;
    const mz_shape *matrix = call->op == MZ_OP_grouped_linear_dw ? &call->out[0].shape : &call->in[1].shape;
    if (matrix->dim[0] >= 1 << 24 || matrix->dim[1] >= 1 << 24 || matrix->dim[2] >= 1 << 24 ||
        call->in[0].shape.dim[0] >= 1 << 30)
        return "2^24 experts, rows or columns of a matrix, or 2^30 rows, or more";
    mezzo_dtype compute = call->numerics.compute;
    if (compute != MEZZO_F32 && compute != MEZZO_TF32 && compute != MEZZO_BF16 && compute != MEZZO_F16)
        return "computes in fp32, tf32, bf16 and fp16";
    return NULL;
}

// --- tensor cores --------------------------------------------------------------------------------------------------
static const char *mma_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)out;
    const mz_cuda_device *cuda = mz_cuda(device);
    const char *reason = check(call);
    if (reason != NULL)
        return reason;
    mz_cu_grouped g = grouped_args(device, call);
    if (g.a.dtype != g.b.dtype)
        return "the operands have different storages";
    bool low = g.a.dtype != MEZZO_F32;
    if (low && g.compute != g.a.dtype && g.compute != MEZZO_F32)
        return "multiplies bf16, fp16 and fp32";
    if (!low && g.compute == MEZZO_F32 && cuda->fp32_by_fma)
        return "MEZZO_CUDA_FP32 is fma";
    if (cuda->cc < 80 && g.a.dtype != MEZZO_F16)
        return "no bf16 or tf32 arithmetic before compute capability 8.0";
    if (g.out.dtype != MEZZO_F32 && g.out.dtype != g.a.dtype)
        return "stores fp32, and what the operands are stored in";
    if (g.n % (low ? 8 : 4) != 0 || g.k % (low ? 8 : 4) != 0)
        return "rows are no multiples of 16 bytes";
    cudaError_t error = low ? mz_cu_grouped_low(NULL, &g, true) : mz_cu_grouped_tf32(NULL, &g, true);
    return error != cudaSuccess ? "the kernel needs more shared memory than there is" : NULL;
}

static mezzo_status mma_run(mezzo_device *device, const mz_call *call) {
    mz_cu_grouped g = grouped_args(device, call);
    cudaStream_t stream = mz_cuda(device)->stream;
    MZ_CUDA_TRY(g.a.dtype == MEZZO_F32 ? mz_cu_grouped_tf32(stream, &g, false) : mz_cu_grouped_low(stream, &g, false));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_grouped_linear_mma = {"grouped_linear__cuda_mma", mma_prepare, mma_run};
const mz_kernel mz_cuda_grouped_linear_dx_mma = {"grouped_linear_dx__cuda_mma", mma_prepare, mma_run};
const mz_kernel mz_cuda_grouped_linear_dw_mma = {"grouped_linear_dw__cuda_mma", mma_prepare, mma_run};

static const char *wgmma_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    if (mz_cuda(device)->cc != 90)
        return "is for compute capability 9.0";
    const char *reason = mma_prepare(device, call, out);
    if (reason != NULL)
        return reason;
    mz_cu_grouped g = grouped_args(device, call);
    if (g.a.dtype == MEZZO_F32)
        return "multiplies bf16 and fp16";
    // If large tiles occupy a third of the multiprocessors, they are faster than four times as many small ones.
    if (mz_cu_grouped_tiles(&g, 128) * 3 < g.sms)
        return "large tiles are too few to share";
    return mz_cu_grouped_wgmma(NULL, &g, true) != cudaSuccess ? "this build has no code for compute capability 9.0"
                                                              : NULL;
}

static mezzo_status wgmma_run(mezzo_device *device, const mz_call *call) {
    mz_cu_grouped g = grouped_args(device, call);
    MZ_CUDA_TRY(mz_cu_grouped_wgmma(mz_cuda(device)->stream, &g, false));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_grouped_linear_wgmma = {"grouped_linear__cuda_wgmma", wgmma_prepare, wgmma_run};
const mz_kernel mz_cuda_grouped_linear_dx_wgmma = {"grouped_linear_dx__cuda_wgmma", wgmma_prepare, wgmma_run};
const mz_kernel mz_cuda_grouped_linear_dw_wgmma = {"grouped_linear_dw__cuda_wgmma", wgmma_prepare, wgmma_run};

// Splits FP32 into three BF16 parts before the product; the mma kernels would split in registers, in each warp again.
static bool terms_args(mezzo_device *device, const mz_call *call, mz_cu_grouped *g, size_t bytes[2]) {
    *g = grouped_args(device, call);
    bool fp32 = g->a.dtype == MEZZO_F32 && g->b.dtype == MEZZO_F32 && g->out.dtype == MEZZO_F32;
    for (int i = 0; i < 2; i++)
        bytes[i] = mz_align_up((size_t)mz_shape_count(&call->in[i].shape) * 3 * sizeof(uint16_t), 256);
    g->parts = true;
    g->a.dtype = g->b.dtype = MEZZO_BF16;
    return fp32 && g->compute == MEZZO_F32;
}

static const char *terms_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    const char *reason = check(call);
    mz_cu_grouped g;
    size_t bytes[2];
    if (mz_cuda(device)->cc != 90)
        return "is for compute capability 9.0";
    if (reason != NULL)
        return reason;
    if (!terms_args(device, call, &g, bytes))
        return "multiplies fp32";
    if (mz_cuda(device)->fp32_by_fma)
        return "MEZZO_CUDA_FP32 is fma";
    if (g.n % 8 != 0 || g.k % 8 != 0)
        return "rows of parts are no multiples of 16 bytes";
    if (mz_cu_grouped_tiles(&g, 128) * 3 < g.sms)
        return "large tiles are too few to share";
    out->workspace = bytes[0] + bytes[1];
    return mz_cu_grouped_wgmma(NULL, &g, true) != cudaSuccess ? "this build has no code for compute capability 9.0"
                                                              : NULL;
}

static mezzo_status terms_run(mezzo_device *device, const mz_call *call) {
    mz_cu_grouped g;
    size_t bytes[2];
    cudaStream_t stream = mz_cuda(device)->stream;
    (void)terms_args(device, call, &g, bytes);
    void *parts[2] = {call->workspace, (char *)call->workspace + bytes[0]};
    for (int i = 0; i < 2; i++) {
        mz_cu_bf16_terms split = {
            .x = call->in[i].data, .out = parts[i], .n = mz_shape_count(&call->in[i].shape), .second = i == 1};
        MZ_CUDA_TRY(mz_cu_fp32_split(stream, &split));
    }
    g.a.data = parts[0];
    g.b.data = parts[1];
    MZ_CUDA_TRY(mz_cu_grouped_wgmma(stream, &g, false));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_grouped_linear_bf16_terms = {"grouped_linear__cuda_bf16_terms", terms_prepare, terms_run};
const mz_kernel mz_cuda_grouped_linear_dx_bf16_terms = {"grouped_linear_dx__cuda_bf16_terms", terms_prepare, terms_run};
const mz_kernel mz_cuda_grouped_linear_dw_bf16_terms = {"grouped_linear_dw__cuda_bf16_terms", terms_prepare, terms_run};

// --- 8 bits --------------------------------------------------------------------------------------------------------
static mz_cu_grouped_fp8 fp8_args(mezzo_device *device, const mz_call *call) {
    return (mz_cu_grouped_fp8){grouped_args(device, call), call->in[0].scale, call->in[1].scale};
}

static const char *fp8_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)out;
    const bool dw = call->op == MZ_OP_grouped_linear_dw, forward = call->op == MZ_OP_grouped_linear;
    if (mz_cuda(device)->cc != 90)
        return "is for compute capability 9.0";
    const mz_tensor *a = &call->in[0], *b = &call->in[1], *y = &call->out[0];
    if ((a->dtype != MEZZO_F8E4M3 && a->dtype != MEZZO_F8E5M2) || b->dtype != MEZZO_F8E4M3 ||
        a->scaling != MZ_SCALING_TENSOR || b->scaling != MZ_SCALING_TENSOR)
        return "multiplies e4m3 or e5m2 by e4m3, with a scale each";
    if (a->columnwise != dw || b->columnwise != !forward)
        return "both operands have what is summed over as their last dimension";
    if (y->dtype != MEZZO_F32 && (dw || y->dtype != MEZZO_BF16))
        return "stores fp32, and y and dx in bf16 too";
    if (mz_in(call, grouped_linear, offsets)->dtype != MEZZO_I32 || a->storage.padded || b->storage.padded ||
        y->storage.padded)
        return "offsets are i32, and nothing has padding";
    const mz_cu_grouped_fp8 args = fp8_args(device, call);
    const mz_cu_grouped *g = &args.g;
    if (g->n % 16 != 0 || g->k % 16 != 0)
        return "rows are no multiples of 16 bytes";
    if (g->rows >= 1 << 30 || (int64_t)g->experts * g->n >= 1 << 30)
        return "2^30 rows, or rows of matrices, or more";
    bool ready = mz_cu_grouped_fp8_run(mz_cuda(device)->stream, &args, true) == cudaSuccess;
    (void)cudaGetLastError();
    return ready ? NULL : "this build has no code for compute capability 9.0";
}

static mezzo_status fp8_run(mezzo_device *device, const mz_call *call) {
    const mz_cu_grouped_fp8 args = fp8_args(device, call);
    MZ_CUDA_TRY(mz_cu_grouped_fp8_run(mz_cuda(device)->stream, &args, false));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_grouped_linear_fp8 = {"grouped_linear_fp8__cuda_wgmma", fp8_prepare, fp8_run};
const mz_kernel mz_cuda_grouped_linear_dx_fp8 = {"grouped_linear_dx_fp8__cuda_wgmma", fp8_prepare, fp8_run};
const mz_kernel mz_cuda_grouped_linear_dw_fp8 = {"grouped_linear_dw_fp8__cuda_wgmma", fp8_prepare, fp8_run};

// --- FP32 arithmetic -----------------------------------------------------------------------------------------------
static const char *fma_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)out;
    return check(call);
}

static mezzo_status fma_run(mezzo_device *device, const mz_call *call) {
    mz_cu_grouped g = grouped_args(device, call);
    MZ_CUDA_TRY(mz_cu_grouped_fma(mz_cuda(device)->stream, &g));
    return MEZZO_OK;
}
const mz_kernel mz_cuda_grouped_linear_fma = {"grouped_linear__cuda_fma", fma_prepare, fma_run};
const mz_kernel mz_cuda_grouped_linear_dx_fma = {"grouped_linear_dx__cuda_fma", fma_prepare, fma_run};
const mz_kernel mz_cuda_grouped_linear_dw_fma = {"grouped_linear_dw__cuda_fma", fma_prepare, fma_run};
