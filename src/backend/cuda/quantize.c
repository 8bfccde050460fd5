// Rounding to 8 bits with a tensor's scale: both layouts, and the columns' sums, in one pass; current scaling takes one
// more in front, which finds the largest magnitude.
#include "backend/cuda/kernels/quantize.h"

#include "backend/cuda/cuda.h"

_Static_assert((int)MZ_CU_F8E4M3 == (int)MEZZO_F8E4M3 && (int)MZ_CU_F8E5M2 == (int)MEZZO_F8E5M2,
               "launch.h's dtypes are mezzo_dtype's");

enum { ALIGN = 256 };         // bytes of the magnitude in the workspace; the sums' parts are behind it
enum { MOST = 1, KEPT = 12 }; // words of an entry

static const mz_tensor *output(const mz_call *call, int slot) {
    return slot < call->n_out && mz_present(&call->out[slot]) ? &call->out[slot] : NULL;
}

static mz_cu_quantize arguments(const mz_call *call) {
    const mz_tensor *x = &call->in[0], *entry = output(call, MZ_OUT(quantize, entry));
    const mz_tensor *y = output(call, MZ_OUT(quantize, y)), *turned = output(call, MZ_OUT(quantize, turned));
    const mz_tensor *acted = output(call, MZ_OUT(quantize, acted));
    const int64_t n = mz_shape_count(&x->shape), cols = x->shape.dim[x->shape.rank - 1];
    return (mz_cu_quantize){.x = mz_cuda_array(x),
                            .preact = call->n_in > 1 ? mz_cuda_array(&call->in[1]) : (mz_cu_array){NULL, MZ_CU_F32},
                            .rows = cols > 0 ? n / cols : 0,
                            .cols = cols,
                            .act = (int)call->attrs.act,
                            .via = (int)call->attrs.via,
                            .dtype = (int)(y != NULL        ? y
                                           : turned != NULL ? turned
                                                            : x)
                                         ->dtype,
                            .y = y != NULL ? y->data : NULL,
                            .turned = turned != NULL ? turned->data : NULL,
                            .acted = acted != NULL ? acted->data : NULL,
                            .acted_scale = acted != NULL ? acted->scale : NULL,
                            .entry = entry != NULL ? entry->data : NULL};
}

static const char *prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device;
    const mz_tensor *x = &call->in[0], *entry = output(call, MZ_OUT(quantize, entry));
    const mz_tensor *codes[] = {output(call, MZ_OUT(quantize, y)), output(call, MZ_OUT(quantize, turned))};
    if (!mz_cuda_float(x) || x->scaling != MZ_SCALING_NONE)
        return "quantizes fp32, bf16 and fp16";
    if (call->n_in > 1 && mz_present(&call->in[1]) && call->in[1].dtype != x->dtype)
        return "what its slope is of has its input's dtype";
    for (int i = 0; i < 2; i++)
        if (codes[i] != NULL && ((codes[i]->dtype != MEZZO_F8E4M3 && codes[i]->dtype != MEZZO_F8E5M2) ||
                                 codes[i]->scaling != MZ_SCALING_TENSOR || codes[i]->turned != (i == 1) || !entry))
            return "quantizes to 8 bits with a tensor's scale, which an entry has";
    const mz_tensor *acted = output(call, MZ_OUT(quantize, acted));
    if (acted != NULL && (acted->dtype != MEZZO_F8E4M3 || !acted->turned || call->attrs.act == MZ_ACT_NONE ||
                          call->n_in < 2 || !mz_present(&call->in[1])))
        return "an activation's codes beside its slope's are e4m3, turned";
    const mz_cu_quantize q = arguments(call);
    const bool sums = output(call, MZ_OUT(quantize, dsum)) != NULL;
    out->workspace = call->attrs.measure || sums ? ALIGN : 0;
    if (sums)
        out->workspace += (size_t)(mz_cu_quantize_turns(q.rows, q.cols) * q.cols) * sizeof(float);
    return NULL;
}

static mezzo_status run(mezzo_device *device, const mz_call *call) {
    mz_cuda_device *cuda = mz_cuda(device);
    const mz_tensor *dsum = output(call, MZ_OUT(quantize, dsum));
    mz_cu_quantize q = arguments(call);
    uint32_t *measured = call->workspace;
    if (q.entry != NULL && call->attrs.measure) {
        mz_cu_quantize finds = q;
        finds.y = finds.turned = finds.acted = NULL;
        finds.entry = NULL;
        finds.most = measured;
        MZ_CUDA_TRY(cudaMemsetAsync(measured, 0, sizeof *measured, cuda->stream));
        MZ_CUDA_TRY(mz_cu_quantize_run(cuda->stream, &finds));
        q.measured = measured;
    }
    if (q.entry != NULL && call->attrs.record)
        q.most = (uint32_t *)(void *)(q.entry + (call->attrs.keeps ? KEPT : MOST));
    q.sums = dsum != NULL ? (float *)(void *)((char *)call->workspace + ALIGN) : NULL;
    MZ_CUDA_TRY(mz_cu_quantize_run(cuda->stream, &q));
    if (dsum != NULL && q.rows > 0)
        MZ_CUDA_TRY(mz_cu_add_partials(cuda->stream, q.sums, dsum->data, q.cols, mz_cu_quantize_turns(q.rows, q.cols),
                                       call->attrs.accumulate));
    return MEZZO_OK;
}

_Static_assert(offsetof(mz_scale_entry, most) == MOST * sizeof(float) &&
                   offsetof(mz_scale_entry, kept) == KEPT * sizeof(float),
               "where an entry has its magnitudes");

const mz_kernel mz_cuda_quantize = {"quantize__cuda", prepare, run};

// --- a step's end --------------------------------------------------------------------------------------------------
static const char *prepare_update(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)call, (void)out;
    return NULL;
}

static mezzo_status run_update(mezzo_device *device, const mz_call *call) {
    const mz_opt_state *state = call->in[0].data;
    const mz_tensor *tables = call->n_in > 1 && mz_present(&call->in[1]) ? &call->in[1] : &call->out[0];
    const int64_t n = mz_shape_count(&call->out[0].shape) / (int64_t)sizeof(mz_scale_entry);
    const int64_t ranks = n > 0 ? mz_shape_count(&tables->shape) / (int64_t)sizeof(mz_scale_entry) / n : 0;
    MZ_CUDA_TRY(mz_cu_scales_update(mz_cuda(device)->stream, &state->skip, tables->data, (int)ranks, call->out[0].data,
                                    (int)n));
    return MEZZO_OK;
}

_Static_assert(sizeof(mz_scale_entry) == 64 && offsetof(mz_scale_entry, dtype) == 8 &&
                   offsetof(mz_scale_entry, n) == 12 && offsetof(mz_scale_entry, history) == 16 &&
                   offsetof(mz_scale_entry, saturated) == 52 && offsetof(mz_scale_entry, changes) == 60 &&
                   MZ_SCALE_HISTORY == 8,
               "kernels/quantize.cu's entry is mz_scale_entry");

const mz_kernel mz_cuda_scales_update = {"scales_update__cuda", prepare_update, run_update};
