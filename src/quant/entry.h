// The scale entry of a quantized tensor, which kernels of every device read and write, and its arithmetic on the host.
#ifndef MZ_QUANT_ENTRY_H
#define MZ_QUANT_ENTRY_H

#include "base/base.h"

// The scale of a tensor's data, the amax of the present step, and those of earlier steps. An amax is the bits of an
// FP32 number, which sort like the numbers; a NaN's is infinity's.
enum { MZ_SCALE_HISTORY = 8 };
typedef struct mz_scale_entry {
    float scale;
    uint32_t amax;
    int32_t dtype;                      // of the quantized data: mezzo_dtype
    int32_t n;                          // number of steps in the history; 0: the scale is not valid
    uint32_t history[MZ_SCALE_HISTORY]; // step k's is at k mod MZ_SCALE_HISTORY
    uint32_t weight_amax;               // of quantized weights: their amax; else 0
    int32_t saturated; // number of steps with a delayed scale whose amax was beyond the format's largest number
    int32_t in_a_row;  // number of such steps up to now without a break
    int32_t changes;   // number of steps after which the scale changed
} mz_scale_entry;
#define MZ_SCALE_WORDS ((int64_t)(sizeof(mz_scale_entry) / sizeof(float)))

// Returns the least power of two that brings `amax` to at most the format's largest number; 1 where that says nothing.
float mz_scale_for(float amax, mezzo_dtype dtype);
// quantize: with `measure` the entry's scale becomes that of `amax`; with `record` its amax grows to it, or with
// `weight` its weight_amax. Returns the scale of the data.
float mz_entry_quantize(void *entry, mezzo_dtype dtype, float amax, bool measure, bool record, bool weight);
// scales_update: `tables` has `bytes` of the entries of all ranks, rank by rank; NULL: `entries` are the only ones.
void mz_entries_update(void *entries, int64_t entries_bytes, const void *tables, int64_t bytes, bool skip);

#endif
