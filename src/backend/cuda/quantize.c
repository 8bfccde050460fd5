// Quantizes to 8 bits with scales: both layouts and the sums of columns in one pass, after a pass that finds the amax
// under current scaling.
#include "backend/cuda/cuda.h"
#include "backend/cuda/kernels/fp8_block.h"
#include "backend/update.h"

enum { ALIGN = 256 }; // bytes of the magnitude in the workspace; the parts of sums follow

static bool in_blocks(const mz_call *call) {
    const mz_tensor *y = mz_output(call, MZ_OUT(quantize, y)),
                    *columnwise = mz_output(call, MZ_OUT(quantize, columnwise));
    const mz_tensor *any = y != NULL ? y : columnwise;
    return any != NULL && mz_scaling_in_blocks(any->scaling);
}

mz_cu_quantize mz_cuda_quantize_args(const mz_call *call) {
    const mz_tensor *x = mz_in(call, quantize, x), *scales = mz_output(call, MZ_OUT(quantize, scales));
    mz_scale_entry *entry = in_blocks(call) || scales == NULL ? NULL : scales->data;
    const mz_tensor *y = mz_output(call, MZ_OUT(quantize, y)),
                    *columnwise = mz_output(call, MZ_OUT(quantize, columnwise));
    const mz_tensor *act_out = mz_output(call, MZ_OUT(quantize, act_out));
    const mz_tensor *preact = mz_present(mz_in(call, quantize, preact)) ? mz_in(call, quantize, preact) : NULL;
    const mz_shape z = mz_quantized_shape(call->attrs.act, &x->shape, preact != NULL ? &preact->shape : NULL);
    const int64_t n = mz_shape_count(&z), cols = z.dim[z.rank - 1];
    return (mz_cu_quantize){.x = mz_cuda_array(x),
                            .preact = preact != NULL ? mz_cuda_array(preact) : (mz_cu_array){NULL, MEZZO_F32},
                            .rows = cols > 0 ? n / cols : 0,
                            .cols = cols,
                            .pitch = cols > 0 ? mz_columnwise_pitch(n / cols) : 0,
                            .act = (int)call->attrs.act,
                            .via = (int)call->attrs.via,
                            .dtype = (int)(y != NULL            ? y
                                           : columnwise != NULL ? columnwise
                                                                : x)
                                         ->dtype,
                            .y = y != NULL ? y->data : NULL,
                            .columnwise = columnwise != NULL ? columnwise->data : NULL,
                            .act_out = act_out != NULL ? act_out->data : NULL,
                            .act_out_scale = act_out != NULL ? act_out->scale : NULL,
                            .entry = entry != NULL ? &entry->scale : NULL,
                            .amax = entry == NULL || !call->attrs.record ? NULL
                                    : call->attrs.keeps                  ? &entry->weight_amax
                                                                         : &entry->amax};
}

// Checks codes in blocks or tiles of 128, and the layout of their scales.
static const char *check_blocks(const mz_call *call) {
    const mz_tensor *fp8[] = {mz_output(call, MZ_OUT(quantize, y)), mz_output(call, MZ_OUT(quantize, columnwise))};
    if (call->attrs.act == MZ_ACT_SWIGLU)
        return "SwiGLU's halves are in other blocks";
    if (mz_output(call, MZ_OUT(quantize, act_out)) != NULL)
        return "block scales need a quantize of the activation's own";
    for (int i = 0; i < 2; i++) {
        if (fp8[i] != NULL && (fp8[i]->dtype != MEZZO_F8E4M3 || fp8[i]->columnwise != (i == 1)))
            return "quantizes to e4m3 in blocks, in both layouts";
        if (fp8[i] != NULL && mz_output(call, mz_scale_slot(fp8[i]->scaling, i == 1)) == NULL)
            return "writes the scales of blocks";
        if (fp8[0] != NULL && fp8[1] != NULL && fp8[0]->scaling != fp8[1]->scaling)
            return "quantizes both layouts alike";
    }
    return NULL;
}

static const char *prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device;
    const mz_tensor *x = mz_in(call, quantize, x), *entry = mz_output(call, MZ_OUT(quantize, scales));
    const mz_tensor *fp8[] = {mz_output(call, MZ_OUT(quantize, y)), mz_output(call, MZ_OUT(quantize, columnwise))};
    if (!mz_cuda_float(x) || x->scaling != MZ_SCALING_NONE)
        return "quantizes fp32, bf16 and fp16";
    if (mz_present(mz_in(call, quantize, preact)) && mz_in(call, quantize, preact)->dtype != x->dtype)
        return "the activation's input and the gradient have one dtype";
    const mz_cu_quantize q = mz_cuda_quantize_args(call);
    const int64_t turns = in_blocks(call) ? mz_cu_quantize_block_turns(q.rows) : mz_cu_quantize_turns(q.rows, q.cols);
    const bool sums = mz_output(call, MZ_OUT(quantize, dbias)) != NULL;
    out->workspace = call->attrs.measure || sums ? ALIGN : 0;
    if (sums)
        out->workspace += (size_t)(turns * q.cols) * sizeof(float);
    if (in_blocks(call))
        return check_blocks(call);
    for (int i = 0; i < 2; i++)
        if (fp8[i] != NULL && ((fp8[i]->dtype != MEZZO_F8E4M3 && fp8[i]->dtype != MEZZO_F8E5M2) ||
                               fp8[i]->scaling != MZ_SCALING_TENSOR || fp8[i]->columnwise != (i == 1) || !entry))
            return "quantizes to 8 bits with a tensor's scale, which an entry has";
    const mz_tensor *act_out = mz_output(call, MZ_OUT(quantize, act_out));
    if (act_out != NULL && (act_out->dtype != MEZZO_F8E4M3 || !act_out->columnwise || call->attrs.act == MZ_ACT_NONE ||
                            call->n_in < 2 || !mz_present(mz_in(call, quantize, preact))))
        return "the quantized activation beside its derivative is columnwise e4m3";
    return NULL;
}

// Quantizes with current scaling, which reads and records no history.
static mezzo_status run_blocks(mz_cuda_device *cuda, const mz_call *call) {
    const mz_tensor *dbias = mz_output(call, MZ_OUT(quantize, dbias)), *y = mz_output(call, MZ_OUT(quantize, y));
    const mz_tensor *scales = mz_output(call, MZ_OUT(quantize, scales));
    const mz_tensor *columnwise = mz_output(call, MZ_OUT(quantize, columnwise_scales));
    mz_cu_quantize_block b = {.q = mz_cuda_quantize_args(call),
                              .tiles = (y != NULL ? y : mz_output(call, MZ_OUT(quantize, columnwise)))->scaling ==
                                       MZ_SCALING_TILE128,
                              .scales = scales != NULL ? scales->data : NULL,
                              .columnwise_scales = columnwise != NULL ? columnwise->data : NULL};
    b.q.sums = dbias != NULL ? (float *)(void *)((char *)call->workspace + ALIGN) : NULL;
    MZ_CUDA_TRY(mz_cu_quantize_block_run(cuda->stream, &b));
    if (dbias != NULL && b.q.rows > 0)
        MZ_CUDA_TRY(mz_cu_add_partials(cuda->stream, b.q.sums, dbias->data, b.q.cols,
                                       mz_cu_quantize_block_turns(b.q.rows), call->attrs.accumulate));
    return MEZZO_OK;
}

static mezzo_status run(mezzo_device *device, const mz_call *call) {
    mz_cuda_device *cuda = mz_cuda(device);
    if (in_blocks(call))
        return run_blocks(cuda, call);
    const mz_tensor *dbias = mz_output(call, MZ_OUT(quantize, dbias));
    mz_cu_quantize q = mz_cuda_quantize_args(call);
    uint32_t *measured = call->workspace;
    if (q.entry != NULL && call->attrs.measure) {
        mz_cu_quantize finds = q;
        finds.y = finds.columnwise = finds.act_out = NULL;
        finds.entry = NULL;
        finds.amax = measured;
        MZ_CUDA_TRY(cudaMemsetAsync(measured, 0, sizeof *measured, cuda->stream));
        MZ_CUDA_TRY(mz_cu_quantize_run(cuda->stream, &finds));
        q.measured = measured;
    }
    q.sums = dbias != NULL ? (float *)(void *)((char *)call->workspace + ALIGN) : NULL;
    MZ_CUDA_TRY(mz_cu_quantize_run(cuda->stream, &q));
    if (dbias != NULL && q.rows > 0)
        MZ_CUDA_TRY(mz_cu_add_partials(cuda->stream, q.sums, dbias->data, q.cols, mz_cu_quantize_turns(q.rows, q.cols),
                                       call->attrs.accumulate));
    return MEZZO_OK;
}

const mz_kernel mz_cuda_quantize = {"quantize__cuda", prepare, run};

// --- a step's end --------------------------------------------------------------------------------------------------
static const char *prepare_update(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)call, (void)out;
    return NULL;
}

static mezzo_status run_update(mezzo_device *device, const mz_call *call) {
    const mz_opt_state *state = mz_in(call, scales_update, state)->data;
    const mz_tensor *tables = mz_present(mz_in(call, scales_update, tables)) ? mz_in(call, scales_update, tables)
                                                                             : mz_out(call, scales_update, entries);
    const int64_t n = mz_shape_count(&mz_out(call, scales_update, entries)->shape) / (int64_t)sizeof(mz_scale_entry);
    const int64_t ranks = n > 0 ? mz_shape_count(&tables->shape) / (int64_t)sizeof(mz_scale_entry) / n : 0;
    MZ_CUDA_TRY(mz_cu_scales_update(mz_cuda(device)->stream, &state->skip, tables->data, (int)ranks,
                                    mz_out(call, scales_update, entries)->data, (int)n));
    return MEZZO_OK;
}

const mz_kernel mz_cuda_scales_update = {"scales_update__cuda", prepare_update, run_update};
