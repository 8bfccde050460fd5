// Computes scales from amax values: of the present step, or of the history of earlier steps.
#include "quant/entry.h"

#include <math.h>

#include "base/small.h"

float mz_scale_for(float amax, mezzo_dtype dtype) {
    int exponent = 0;
    const double ratio = (double)amax / mz_dtype_largest(dtype);
    if (!isfinite(ratio) || ratio == 0)
        return 1;
    if (frexp(ratio, &exponent) == 0.5) // a power of two is its own scale
        exponent--;
    return (float)ldexp(1, exponent < -126 ? -126 : exponent);
}

float mz_entry_quantize(void *entry, mezzo_dtype dtype, float amax, bool measure, bool record, bool weight) {
    mz_scale_entry *e = entry;
    uint32_t *so_far = weight ? &e->weight_amax : &e->amax;
    if (measure)
        e->scale = mz_scale_for(amax, dtype);
    const uint32_t bits = (uint32_t)mz_float_bits(amax);
    if (record && bits > *so_far)
        *so_far = bits;
    return e->scale;
}

static void end_step(mz_scale_entry *e, uint32_t amax) {
    uint32_t largest = 0;
    if (amax == 0 || amax >= 0x7F800000u)
        return;
    const float before = e->scale, largest_number = (float)mz_dtype_largest((mezzo_dtype)e->dtype) * before;
    const bool known = e->n > 0, beyond = known && (uint32_t)mz_float_bits(largest_number) < amax;
    e->saturated += beyond;
    e->in_a_row = beyond ? e->in_a_row + 1 : 0;
    e->history[e->n++ % MZ_SCALE_HISTORY] = amax;
    for (int i = 0; i < MZ_SCALE_HISTORY && i < e->n; i++)
        largest = e->history[i] > largest ? e->history[i] : largest;
    e->scale = mz_scale_for(mz_bits_float((int32_t)largest), (mezzo_dtype)e->dtype);
    e->changes += known && e->scale != before;
}

// Updates the entries at a step's end. The amax of quantized weights stays until the update writes them again.
void mz_entries_update(void *entries, int64_t entries_bytes, const void *tables, int64_t bytes, bool skip) {
    mz_scale_entry *list = entries;
    const mz_scale_entry *all = tables != NULL ? tables : entries;
    const int64_t n = entries_bytes / (int64_t)sizeof *list;
    const int64_t in_all = tables != NULL ? bytes / (int64_t)sizeof *all : n;
    for (int64_t i = 0; i < n; i++) {
        uint32_t amax = list[i].weight_amax;
        for (int64_t k = i; k < in_all; k += n)
            amax = all[k].amax > amax ? all[k].amax : amax;
        list[i].amax = 0;
        if (skip)
            continue;
        list[i].weight_amax = 0;
        end_step(&list[i], amax);
    }
}
