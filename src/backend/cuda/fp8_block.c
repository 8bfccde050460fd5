// Runs linear, linear_dx and linear_dw of E4M3 operands with a power of two for every 128 terms of the sum, by an own
// kernel of compute capability 9.0 (kernels/fp8_block.cu). Both operands have what is summed over as their last
// dimension:
//   linear     y [M, N]  = x (M×K, blocks) · wᵀ (N×K, tiles)
//   linear_dx  dx [M, K] = dy (M×N, blocks) · w (K×N, turned, tiles)
//   linear_dw  dw [N, K] = dyᵀ (N×M, turned, blocks) · x (K×M, turned, blocks)
// Rows of codes that do not begin at multiples of 16 bytes are spread in the workspace first; transposed ones do.
#include "backend/cuda/kernels/fp8_block.h"

#include "backend/cuda/cuda.h"

enum { ALIGN = 256, STRIDE = 16 };

typedef struct route {
    mz_cu_fp8_block g;            // without addresses
    bool spread[2], finish, sums; // an own kernel finishes an FP32 product; dx's columns are summed
    size_t at[2], at_result, at_partial, at_sums, bytes;
} route;

static size_t place(size_t *bytes, size_t size) {
    size_t at = *bytes;
    *bytes += mz_align_up(size, ALIGN);
    return at;
}

// Checks an operand, whose blocks are along the summed dimension; a weight has scales of tiles.
static const char *check_operand(const mz_tensor *t, mz_scaling scaling, bool columnwise) {
    if (t->dtype != MEZZO_F8E4M3 || t->scaling != scaling)
        return "multiplies e4m3 in blocks of 128, weights in tiles of 128 by 128";
    return t->columnwise == columnwise ? NULL : "both operands have what is summed over as their last dimension";
}

static const char *set_product(const mz_cuda_device *cuda, const mz_call *call, route *r) {
    const bool dw = call->op == MZ_OP_linear_dw, dx = call->op == MZ_OP_linear_dx;
    const mz_scaling second = dw ? MZ_SCALING_BLOCK128 : MZ_SCALING_TILE128;
    const mz_shape *w = dw ? &call->out[0].shape : &call->in[1].shape; // [N, K]
    const char *reason = check_operand(&call->in[0], MZ_SCALING_BLOCK128, dw);
    if (reason == NULL)
        reason = check_operand(&call->in[1], second, dw || dx);
    if (reason != NULL)
        return reason;
    if (cuda->cc != 90)
        return "is for compute capability 9.0";
    const int64_t n = w->dim[0], k = w->dim[1];
    const int64_t m = mz_shape_count(&call->in[0].shape) / (call->op == MZ_OP_linear ? k : n);
    if (m >= (int64_t)1 << 30 || n >= (int64_t)1 << 30 || k >= (int64_t)1 << 30)
        return "rows of a matrix fit in 30 bits";
    *r = (route){.g = {.rows = dw ? n : m, .cols = dx || dw ? k : n, .inner = dw ? m : dx ? n : k, .splits = 1}};
    mz_cu_fp8_block *g = &r->g;
    g->a_pitch = mz_scale_pitch(g->rows), g->b_pitch = mz_scale_pitch(g->cols);
    g->b_tiles = !dw;
    const int64_t across = mz_scale_pitch(k) / MZ_SCALE_BLOCK; // tiles next to each other in w
    g->b_step = dx ? across : 1, g->b_tile = dx ? 1 : across;
    g->a_stride = g->b_stride = (int64_t)mz_align_up((size_t)g->inner, STRIDE);
    const int64_t rows[2] = {g->rows, g->cols};
    for (int i = 0; i < 2; i++) {
        r->spread[i] = g->a_stride != g->inner && !call->in[i].columnwise;
        r->at[i] = r->spread[i] ? place(&r->bytes, (size_t)(rows[i] * g->a_stride)) : 0;
    }
    return NULL;
}

static const char *check_code(mz_cuda_device *cuda, const route *r) {
    bool ready = mz_cu_fp8_block_run(cuda->stream, &r->g, cuda->sms, true) == cudaSuccess;
    (void)cudaGetLastError();
    return ready ? NULL : "this build has no code for compute capability 9.0a";
}

// Chooses what stores the product: the kernel itself, or another one after it.
static const char *set_result(const mz_call *call, route *r) {
    const bool forward = call->op == MZ_OP_linear;
    const mz_tensor *y = &call->out[0], *bias = &call->in[2], *residual = &call->in[3];
    if (forward && ((mz_present(bias) && !mz_cuda_float(bias)) || (mz_present(residual) && !mz_cuda_float(residual))))
        return "bias and residual are fp32, bf16 or fp16";
    if (!mz_cuda_float(y))
        return "writes fp32, bf16 and fp16";
    r->finish = y->dtype == MEZZO_F16 || call->attrs.act != MZ_ACT_NONE;
    if (forward)
        r->finish = r->finish || mz_present(&call->out[1]) || (mz_present(residual) && residual->dtype == MEZZO_F16);
    else
        r->finish = y->dtype == MEZZO_F16 || mz_present(&call->in[2]);
    r->g.out.dtype = r->finish ? MEZZO_F32 : (int)y->dtype;
    if (r->finish)
        r->at_result = place(&r->bytes, (size_t)(r->g.rows * r->g.cols) * sizeof(float));
    return NULL;
}

static const char *linear_route(mz_cuda_device *cuda, const mz_call *call, route *r) {
    const char *reason = set_product(cuda, call, r);
    if (reason == NULL)
        reason = set_result(call, r);
    return reason != NULL ? reason : check_code(cuda, r);
}

static const char *linear_dx_route(mz_cuda_device *cuda, const mz_call *call, route *r) {
    const char *reason = set_product(cuda, call, r);
    if (reason == NULL)
        reason = set_result(call, r);
    if (reason != NULL)
        return reason;
    r->sums = mz_present(mz_out(call, linear_dx, dbias));
    if (r->sums && mz_out(call, linear_dx, dbias)->dtype != MEZZO_F32)
        return "gradients are fp32";
    if (r->sums)
        r->at_sums = place(&r->bytes, mz_cu_column_sums_bytes(r->g.rows, r->g.cols));
    return check_code(cuda, r);
}

static const char *linear_dw_route(mz_cuda_device *cuda, const mz_call *call, route *r) {
    const char *reason = set_product(cuda, call, r);
    if (reason != NULL)
        return reason;
    if (mz_out(call, linear_dw, dw)->dtype != MEZZO_F32)
        return "gradients are fp32";
    if (mz_present(mz_out(call, linear_dw, db)))
        return "a bias's gradient is not summed from 8 bits";
    r->g.out.dtype = MEZZO_F32;
    r->g.splits = mz_cu_fp8_block_splits(&r->g, cuda->sms);
    if (r->g.splits > 1)
        r->at_partial = place(&r->bytes, (size_t)(r->g.splits * r->g.rows * r->g.cols) * sizeof(float));
    return check_code(cuda, r);
}

// --- running -------------------------------------------------------------------------------------------------------
// Sets the addresses of the product's operands; `out` is its result's.
static mezzo_status operands(mz_cuda_device *cuda, const mz_call *call, const route *r, void *out, mz_cu_fp8_block *g) {
    char *workspace = call->workspace;
    const void *fp8[2];
    *g = r->g;
    for (int i = 0; i < 2; i++) {
        fp8[i] = r->spread[i] ? workspace + r->at[i] : call->in[i].data;
        if (r->spread[i])
            MZ_CUDA_TRY(mz_cu_spread_rows(cuda->stream, call->in[i].data, workspace + r->at[i],
                                          i == 0 ? g->rows : g->cols, g->inner, g->a_stride));
    }
    g->a = fp8[0], g->b = fp8[1];
    g->a_scale = call->in[0].scale, g->b_scale = call->in[1].scale;
    g->out.data = r->finish ? workspace + r->at_result : out;
    g->via = (int)MEZZO_F32;
    g->partial = g->splits > 1 ? (float *)(void *)(workspace + r->at_partial) : NULL;
    return MEZZO_OK;
}

static mezzo_status linear_run(mezzo_device *device, const mz_call *call) {
    mz_cuda_device *cuda = mz_cuda(device);
    const route *r = call->state;
    mz_cu_fp8_block g;
    MEZZO_TRY(operands(cuda, call, r, mz_out(call, linear, y)->data, &g));
    if (!r->finish) {
        g.bias = mz_cuda_array(mz_in(call, linear, bias));
        g.residual = mz_cuda_array(mz_in(call, linear, residual));
        g.via = (int)call->attrs.via;
    }
    MZ_CUDA_TRY(mz_cu_fp8_block_run(cuda->stream, &g, cuda->sms, false));
    if (!r->finish)
        return MEZZO_OK;
    mz_cu_epilogue e = {.z = g.out,
                        .bias = mz_cuda_array(mz_in(call, linear, bias)),
                        .residual = mz_cuda_array(mz_in(call, linear, residual)),
                        .preact = mz_cuda_array(mz_out(call, linear, preact)),
                        .y = mz_cuda_array(mz_out(call, linear, y)),
                        .rows = g.rows,
                        .cols = g.cols,
                        .act = (int)call->attrs.act,
                        .via = (int)call->attrs.via};
    MZ_CUDA_TRY(mz_cu_linear_epilogue(cuda->stream, &e));
    return MEZZO_OK;
}

static mezzo_status linear_dx_run(mezzo_device *device, const mz_call *call) {
    mz_cuda_device *cuda = mz_cuda(device);
    const route *r = call->state;
    mz_cu_fp8_block g;
    MEZZO_TRY(operands(cuda, call, r, mz_out(call, linear_dx, dx)->data, &g));
    MZ_CUDA_TRY(mz_cu_fp8_block_run(cuda->stream, &g, cuda->sms, false));
    if (r->finish)
        MZ_CUDA_TRY(mz_cu_act_dx(cuda->stream, g.out.data, mz_cuda_array(mz_in(call, linear_dx, preact)),
                                 mz_cuda_array(mz_out(call, linear_dx, dx)), g.rows * g.cols, (int)call->attrs.act));
    if (r->sums)
        MZ_CUDA_TRY(mz_cu_column_sums(cuda->stream, mz_cuda_array(mz_out(call, linear_dx, dx)),
                                      mz_out(call, linear_dx, dbias)->data, g.rows, g.cols, call->attrs.accumulate,
                                      (float *)(void *)((char *)call->workspace + r->at_sums)));
    return MEZZO_OK;
}

static mezzo_status linear_dw_run(mezzo_device *device, const mz_call *call) {
    mz_cuda_device *cuda = mz_cuda(device);
    mz_cu_fp8_block g;
    MEZZO_TRY(operands(cuda, call, call->state, mz_out(call, linear_dw, dw)->data, &g));
    if (call->attrs.accumulate)
        g.residual = g.out;
    MZ_CUDA_TRY(mz_cu_fp8_block_run(cuda->stream, &g, cuda->sms, false));
    return MEZZO_OK;
}

#define BLOCK_KERNEL(op)                                                                                               \
    static const char *op##_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {                     \
        route *r = out->state = mz_alloc(1, sizeof *r);                                                                \
        if (r == NULL)                                                                                                 \
            return mz_out_of_memory;                                                                                   \
        const char *reason = op##_route(mz_cuda(device), call, r);                                                     \
        out->workspace = r->bytes;                                                                                     \
        return reason;                                                                                                 \
    }                                                                                                                  \
    const mz_kernel mz_cuda_##op##_block = {#op "_fp8_block__cuda_wgmma", op##_prepare, op##_run};
BLOCK_KERNEL(linear)
BLOCK_KERNEL(linear_dx)
BLOCK_KERNEL(linear_dw)
