// Owns the memory of quantized weights, and makes the calls that write them.
#include "quant/weights.h"

void mz_quantized_free(mezzo_device *device, mz_quantized_weights *weights) {
    for (int i = 0; i < weights->n_blocks; i++)
        device->backend->release(device, weights->blocks[i]);
    MZ_FREE(weights->blocks, weights->list);
    *weights = (mz_quantized_weights){0};
}

mezzo_status mz_quantized_find(mz_quantized_weights *weights, const mz_quantized *made, mz_quantized **out) {
    int i = 0;
    while (i < weights->n && (weights->list[i].param != made->param || weights->list[i].entry != made->entry))
        i++;
    if (i == weights->n) {
        MEZZO_TRY(MZ_RESERVE(weights->list, weights->cap, (size_t)i + 1));
        weights->list[weights->n++] = *made;
    }
    *out = &weights->list[i];
    return MEZZO_OK;
}

mezzo_status mz_quantized_add_block(mezzo_device *device, mz_quantized_weights *weights, size_t bytes, char **out) {
    size_t cap = (size_t)weights->n_blocks;
    MEZZO_TRY(MZ_RESERVE(weights->blocks, cap, (size_t)weights->n_blocks + 1));
    MEZZO_TRY(device->backend->alloc(device, bytes, (void **)out));
    weights->blocks[weights->n_blocks++] = *out;
    weights->bytes += bytes;
    weights->stale = true;
    weights->version++;
    return MEZZO_OK;
}

mz_call mz_quantized_call(const mz_quantized *weight, const mz_scales *scales) {
    mz_call call = {.op = MZ_OP_quantize,
                    .attrs = {.via = MEZZO_F32, .record = true, .keeps = true},
                    .numerics = {weight->dtype, MEZZO_F32, MEZZO_F32},
                    .n_in = 1,
                    .n_out = MZ_OUT(quantize, scales) + 1};
    void *const data[] = {weight->rowwise, weight->columnwise};
    for (int k = 0; k < MZ_MAX_IN; k++)
        call.in[k] = mz_absent_slot;
    for (int k = 0; k < MZ_MAX_OUT; k++)
        call.out[k] = mz_absent_slot;
    call.in[MZ_IN(quantize, x)] = weight->master;
    for (int columnwise = 0; columnwise < 2; columnwise++)
        if (data[columnwise] != NULL)
            call.out[MZ_OUT(quantize, y) + columnwise] = (mz_tensor){.data = data[columnwise],
                                                                     .dtype = weight->dtype,
                                                                     .shape = weight->master.shape,
                                                                     .scaling = weight->scaling,
                                                                     .scale = &scales->entries[weight->entry].scale,
                                                                     .columnwise = columnwise == 1};
    call.out[MZ_OUT(quantize, scales)] = mz_scales_tensor(scales, weight->entry);
    return call;
}
