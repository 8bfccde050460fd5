// Runs products on operands that are first brought to a format which the device multiplies.
#include "backend/emulate.h"

#include "backend/slots.h"

static size_t plain_bytes(const mz_call *call, mz_plain_dtype *dtype, int slot) {
    return mz_align_up((size_t)mz_shape_count(&call->in[slot].shape) * mezzo_dtype_size(dtype(call, slot)), 256);
}

mz_call mz_plain_call(const mz_call *call, mz_plain_dtype *dtype) {
    mz_call part = *call;
    char *at = call->workspace;
    for (int i = 0; i < 2; i++) {
        mz_tensor *t = &part.in[i];
        t->dtype = dtype(call, i);
        t->scaling = MZ_SCALING_NONE;
        t->scale = NULL;
        t->columnwise = false;
        t->data = at;
        at = at != NULL ? at + plain_bytes(call, dtype, i) : NULL;
    }
    part.numerics.compute = part.in[0].dtype;
    part.attrs.blocks = MEZZO_BLOCKS_NONE;
    part.workspace = at != NULL ? at + MZ_PLAIN_BEFORE : NULL;
    part.state = NULL;
    return part;
}

static void release(void *state) {
    mz_prepared_free(state);
    mz_free(state);
}

const char *mz_plain_prepare(mezzo_device *device, const mz_call *call, mz_plain_dtype *dtype, mz_prepared *out) {
    const bool eight = mz_is_8bit(&call->in[0]) && mz_is_8bit(&call->in[1]);
    if (!eight && call->attrs.blocks == MEZZO_BLOCKS_NONE)
        return "serves 8-bit operands, and operands rounded to blocks";
    for (int i = 0; i < 2; i++)
        if (eight != ((MZ_SCALINGS_8BIT & MZ_BIT(call->in[i].scaling)) != 0))
            return "8-bit operands have scales, others none";
    mz_prepared *inner = mz_alloc(1, sizeof *inner);
    if (inner == NULL)
        return mz_out_of_memory;
    mz_call part = mz_plain_call(call, dtype);
    part.in[0].data = part.in[1].data = part.workspace = NULL;
    const mezzo_status status = mz_prepare(device, &part, inner);
    out->state = inner;
    out->release = release;
    out->workspace = plain_bytes(call, dtype, 0) + plain_bytes(call, dtype, 1) + MZ_PLAIN_BEFORE + inner->workspace;
    if (status == MEZZO_ERR_MEMORY)
        return mz_out_of_memory;
    return status == MEZZO_OK ? NULL : "no kernel takes the operands as bf16 or fp32";
}

mezzo_status mz_plain_run(mezzo_device *device, const mz_call *call, mz_call *part) {
    const mz_prepared *inner = call->state;
    part->state = inner->state;
    return inner->kernel->run(device, part);
}

const char *mz_plain_refuses_grouped(const mz_call *call) {
    return call->attrs.blocks != MEZZO_BLOCKS_NONE || call->in[0].scaling != MZ_SCALING_TENSOR ||
                   call->in[1].scaling != MZ_SCALING_TENSOR
               ? "serves 8-bit operands that have one scale each"
               : NULL;
}

const char *mz_transpose_refusal(const mz_call *call) {
    const mz_tensor *x = mz_in(call, quantize, x), *columnwise = mz_output(call, MZ_OUT(quantize, columnwise));
    for (int k = 0; k < call->n_out; k++)
        if (k != MZ_OUT(quantize, columnwise) && mz_present(&call->out[k]))
            return "codes are moved into columns alone";
    if (columnwise == NULL || !columnwise->columnwise || x->columnwise || !mz_is_8bit(x) ||
        columnwise->dtype != x->dtype || x->scaling != MZ_SCALING_TENSOR || columnwise->scaling != MZ_SCALING_TENSOR ||
        columnwise->scale != x->scale)
        return "codes keep their format and a tensor's scale";
    return call->attrs.act != MZ_ACT_NONE ? "codes have no activation in front" : NULL;
}
