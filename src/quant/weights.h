// Quantized weights belong to the parameters and are kept from step to step. Whenever a program runs, their data are
// the masters', rounded with the scales of their entries, and the entries have the masters' amax.
#ifndef MZ_QUANT_WEIGHTS_H
#define MZ_QUANT_WEIGHTS_H

#include "quant/table.h"

typedef struct mz_quantized {
    int param, entry;
    bool frozen;       // no update writes it
    mezzo_dtype dtype; // of the data; its scaling has a history
    mz_scaling scaling;
    mz_tensor master;           // FP32; quantize treats its padding as data
    void *rowwise, *columnwise; // on the device; NULL: no program reads this layout
} mz_quantized;

typedef struct mz_quantized_weights {
    mz_quantized *list; // in the order of first use
    int n;
    size_t cap;
    void **blocks; // on the device: their memory
    int n_blocks;
    size_t bytes;     // of all blocks
    uint64_t version; // grows with n, because optimizers must write new ones
    bool stale;       // masters or scales have changed since the data were written
} mz_quantized_weights;

void mz_quantized_free(mezzo_device *device, mz_quantized_weights *weights);
// Finds the quantized weight of this parameter and entry, or adds `made` without memory.
mezzo_status mz_quantized_find(mz_quantized_weights *weights, const mz_quantized *made, mz_quantized **out);
// Allocates memory, which the weights own, for data that a program then places in it.
mezzo_status mz_quantized_add_block(mezzo_device *device, mz_quantized_weights *weights, size_t bytes, char **out);
// Returns the `quantize` call that writes the data with the entry's scale.
mz_call mz_quantized_call(const mz_quantized *weight, const mz_scales *scales);

#endif
