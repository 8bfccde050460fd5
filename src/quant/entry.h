// Declares the scale entry of a quantized tensor, which kernels of every device read and write, and its arithmetic on
// the host.
#ifndef MZ_QUANT_ENTRY_H
#define MZ_QUANT_ENTRY_H

#include "base/base.h"

// Holds the scale of a tensor's data, the amax of the present step, and those of earlier steps. An amax is stored as
// the bits of an FP32 number, which sort like the numbers; NaN has the bits of infinity.
enum { MZ_SCALE_HISTORY = 8 };
typedef struct mz_scale_entry {
    float scale;
    uint32_t amax;
    int32_t dtype;                      // the mezzo_dtype of the quantized data
    int32_t n;                          // number of steps in the history; 0: the scale is not valid
    uint32_t history[MZ_SCALE_HISTORY]; // the amax of step k is at k mod MZ_SCALE_HISTORY
    uint32_t weight_amax;               // the amax of quantized weights; else 0
    int32_t saturated; // number of steps with a delayed scale whose amax exceeded the format's largest number
    int32_t in_a_row;  // number of such steps in a row up to now
    int32_t changes;   // number of steps after which the scale changed
} mz_scale_entry;
#define MZ_SCALE_WORDS ((int64_t)(sizeof(mz_scale_entry) / sizeof(float)))

// Returns the least power of two that brings `amax` to at most the format's largest number; 1 for an amax of 0 or one
// that is not finite.
float mz_scale_for(float amax, mezzo_dtype dtype);
// Updates an entry for `quantize`, and returns the scale of the data: with `measure` the entry's scale becomes that of
// `amax`; with `record` its amax grows to it or, with `weight`, its weight_amax does.
float mz_entry_quantize(void *entry, mezzo_dtype dtype, float amax, bool measure, bool record, bool weight);
// Runs scales_update: `tables` has `bytes` of the entries of all ranks, rank by rank; NULL: `entries` are the only
// ones.
void mz_entries_update(void *entries, int64_t entries_bytes, const void *tables, int64_t bytes, bool skip);

#endif
