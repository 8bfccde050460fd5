// Every backend computes scales of 8-bit tensors from their amax in this way, and rounds operands in blocks alike.
#ifndef MZ_BACKEND_SCALES_H
#define MZ_BACKEND_SCALES_H

#include <math.h>

#include "backend/backend.h"
#include "base/blocks.h"

// How an operand of a product with attrs.blocks is rounded. Dropout's streams are small numbers.
enum { MZ_STREAM_DX = 0x20000000, MZ_STREAM_DW = 0x40000000 };
static inline mz_blocks_how mz_blocks_of(const mz_call *call, int slot) {
    const bool dw = call->op == MZ_OP_linear_dw, backward = dw || call->op == MZ_OP_linear_dx;
    mz_blocks_how how = {.format = call->attrs.blocks,
                         .hadamard = dw && call->attrs.hadamard,
                         .random = backward && slot == 0 && call->attrs.random_gradients};
    if (how.hadamard)
        how.signs = mz_blocks_signs(call->rng->seed);
    if (how.random)
        how.key = (mz_philox_key){.seed = call->rng->seed,
                                  .step = (uint32_t)(call->rng->step ^ call->rng->step >> 32),
                                  .tensor = call->attrs.rng | (dw ? MZ_STREAM_DW : MZ_STREAM_DX)};
    return how;
}

// The least power of two that brings `amax` to at most the format's largest number; 1 where that says nothing.
static inline float mz_scale_for(double amax, mezzo_dtype dtype) {
    int exponent = 0;
    const double ratio = amax / mz_dtype_largest(dtype);
    if (!isfinite(ratio) || ratio == 0)
        return 1;
    if (frexp(ratio, &exponent) == 0.5) // a power of two is its own scale
        exponent--;
    return (float)ldexp(1, exponent < -126 ? -126 : exponent);
}

static inline uint32_t mz_magnitude(float x) { // of a positive number, in the order of magnitudes
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

// The largest magnitude of a step, with that of codes that stay, which is theirs until the update writes them anew.
static inline uint32_t mz_scale_take(mz_scale_entry *e, uint32_t amax) {
    const uint32_t weight_amax = e->weight_amax;
    e->weight_amax = 0;
    return weight_amax > amax ? weight_amax : amax;
}

// Computes what scales_update makes of an entry whose largest magnitude of the step is `amax`.
static inline void mz_scale_advance(mz_scale_entry *e, uint32_t amax) {
    const int top = e->dtype == (int32_t)MEZZO_F8E4M3 ? 8 : 15; // the format's largest number is 1.75 · 2^top
    uint32_t largest = 0, bits;
    e->amax = 0;
    if (amax == 0 || amax >= 0x7F800000u)
        return;
    const float before = e->scale, largest_number = ldexpf(1.75F, top) * before;
    const bool known = e->n > 0, beyond = known && mz_magnitude(largest_number) < amax;
    e->saturated += beyond;
    e->in_a_row = beyond ? e->in_a_row + 1 : 0;
    e->history[e->n++ % MZ_SCALE_HISTORY] = amax;
    for (int i = 0; i < MZ_SCALE_HISTORY && i < e->n; i++)
        largest = e->history[i] > largest ? e->history[i] : largest;
    const int exponent = (int)(largest >> 23) - 127 - top + ((largest & 0x7FFFFFu) > 0x600000u);
    bits = (uint32_t)((exponent < -126 ? -126 : exponent) + 127) << 23;
    memcpy(&e->scale, &bits, sizeof bits);
    e->changes += known && e->scale != before;
}

#endif
