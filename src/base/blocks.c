// Rounds blocks of numbers with a shared scale, as OCP Microscaling Formats v1.0 (§6.3) and NVIDIA's NVFP4 define them.
#include <math.h>

#include "base/blocks.h"
#include "base/small.h"

const mz_blocks_info mz_blocks_table[MEZZO_BLOCKS_COUNT] = {
#define BLOCKS(id, name, size, element, scale) [MEZZO_BLOCKS_##id] = {name, size, MZ_SMALL_##element, MZ_SCALE_##scale},
#include "base/blocks.def"
#undef BLOCKS
};

static const float largest_e2m1 = 6, largest_e4m3 = 448;

static bool has_tensor_scale(mezzo_blocks b) {
    return mz_blocks_table[b].scale == MZ_SCALE_NVFP4;
}

static bool is_e4m3(mezzo_blocks b) { // false: elements are E2M1
    return mz_blocks_table[b].element == MZ_SMALL_E4M3;
}

const char *mezzo_blocks_name(mezzo_blocks b) {
    return (unsigned)b < MEZZO_BLOCKS_COUNT ? mz_blocks_table[b].name : "?";
}

float mz_blocks_element(mezzo_blocks b, uint8_t code) {
    return is_e4m3(b) ? mezzo_e4m3_to_f32(code) : mezzo_e2m1_to_f32(code);
}

float mz_blocks_tensor_scale(mezzo_blocks b, float amax) {
    float scale = amax / (largest_e2m1 * largest_e4m3);
    return has_tensor_scale(b) && scale >= 0x1p-100F && isfinite(scale) ? scale : 1; // so its inverse is finite, too
}

uint8_t mz_blocks_scale(mezzo_blocks b, float amax, float tensor) {
    int exponent;
    if (has_tensor_scale(b))
        return isfinite(amax) ? mezzo_f32_to_e4m3_saturating(amax / largest_e2m1 / tensor) : 0x7F;
    if (!isfinite(amax))
        return 0xFF;
    if (amax == 0)
        return 0;
    frexpf(amax, &exponent);                    // most is [½, 1) · 2^exponent
    exponent += 127 - 1 - (is_e4m3(b) ? 8 : 2); // subtracts the exponent of the largest element
    return (uint8_t)(exponent < 0 ? 0 : exponent);
}

float mz_blocks_scale_value(mezzo_blocks b, uint8_t code) {
    return has_tensor_scale(b) ? mezzo_e4m3_to_f32(code) : mezzo_e8m0_to_f32(code);
}

// Returns the largest magnitude. Magnitudes are ordered as their bits, and a NaN's are above infinity's. It takes four
// numbers at a time, for which compilers use vectors.
float mz_blocks_amax(const float *x, int64_t n) {
    enum { LANES = 4 };
    int32_t largest[LANES] = {0}, bits[LANES] = {0};
    for (; n >= LANES; n -= LANES, x += LANES) {
        memcpy(bits, x, sizeof bits);
        for (int i = 0; i < LANES; i++)
            largest[i] = (bits[i] & INT32_MAX) > largest[i] ? bits[i] & INT32_MAX : largest[i];
    }
    for (int i = 0; i < LANES; i++) {
        const float last = i < n ? x[i] : 0;
        memcpy(&bits[0], &last, sizeof last);
        largest[0] = largest[i] > largest[0] ? largest[i] : largest[0];
        largest[0] = (bits[0] & INT32_MAX) > largest[0] ? bits[0] & INT32_MAX : largest[0];
    }
    float amax;
    memcpy(&amax, &largest[0], sizeof amax);
    return amax;
}

// --- small numbers -------------------------------------------------------------------------------
enum { SOME = 16 }; // numbers that are rounded as one vector

static const mz_small_form smalls[] = {
    [MZ_SMALL_E4M3] = MZ_SMALL_FORM_E4M3, [MZ_SMALL_E5M2] = MZ_SMALL_FORM_E5M2, [MZ_SMALL_E2M1] = MZ_SMALL_FORM_E2M1};

mz_small_form mz_small_form_of(mz_small format) {
    return smalls[format];
}

float mz_small_largest(mz_small format) {
    return mz_bits_float(smalls[format].largest);
}

// Rounds as base/small.h's mz_small_nearest, in steps that compilers turn into vector instructions.
static inline void round_some(float *x, float inverse, float factor, const mz_small_form f) {
    float y[SOME], tiny[SOME];
    int32_t bits[SOME], low[SOME];
    for (int i = 0; i < SOME; i++)
        y[i] = x[i] * inverse;
    memcpy(bits, y, sizeof bits);
    for (int i = 0; i < SOME; i++)
        tiny[i] = (fabsf(y[i]) + f.shift) - f.shift;
    memcpy(low, tiny, sizeof low);
    for (int i = 0; i < SOME; i++) {
        const int32_t sign = bits[i] & INT32_MIN, magnitude = bits[i] & INT32_MAX;
        const int32_t even = magnitude >> f.drop & 1, half = (1 << (f.drop - 1)) - 1;
        int32_t rounded = (magnitude + half + even) & -(1 << f.drop); // magnitude is finite: there is no overflow
        rounded = magnitude < f.least ? low[i] : rounded;
        bits[i] = (rounded < f.largest ? rounded : f.largest) | sign;
    }
    memcpy(y, bits, sizeof y);
    for (int i = 0; i < SOME; i++)
        x[i] = y[i] * factor;
}

static inline void round_all(float *x, int n, float inverse, float factor, const mz_small_form f) {
    int at = 0;
    for (; n - at >= SOME; at += SOME)
        round_some(x + at, inverse, factor, f);
    float rest[SOME] = {0};
    if (at == n)
        return;
    memcpy(rest, x + at, (size_t)(n - at) * sizeof *x);
    round_some(rest, inverse, factor, f);
    memcpy(x + at, rest, (size_t)(n - at) * sizeof *x);
}

void mz_small_round(mz_small format, float *x, int n, float inverse, float factor) {
    switch (format) { // the loops are compiled for these constants
    case MZ_SMALL_E4M3:
        round_all(x, n, inverse, factor, smalls[MZ_SMALL_E4M3]);
        break;
    case MZ_SMALL_E5M2:
        round_all(x, n, inverse, factor, smalls[MZ_SMALL_E5M2]);
        break;
    case MZ_SMALL_E2M1:
        round_all(x, n, inverse, factor, smalls[MZ_SMALL_E2M1]);
        break;
    }
}

// Returns the factor of an element before it is rounded. A power of two has an exact inverse in the range of doubles;
// NVFP4's is the FP32 quotient, as published. A block of zeros has none.
static double inverse_of(mezzo_blocks b, uint8_t code, float tensor) {
    float scale = mz_blocks_scale_value(b, code);
    if (!has_tensor_scale(b))
        return 1 / (double)scale;
    return scale == 0 ? 0 : (double)(1 / (scale * tensor));
}

void mz_blocks_encode(mezzo_blocks b, const float *x, int n, float tensor, uint8_t *codes, uint8_t *scale) {
    *scale = mz_blocks_scale(b, mz_blocks_amax(x, n), tensor);
    double inverse = inverse_of(b, *scale, tensor);
    for (int i = 0; i < n; i++) {
        float scaled = (float)((double)x[i] * inverse); // FP32 suffices: for a power of two the product is exact
        codes[i] = is_e4m3(b) ? mezzo_f32_to_e4m3_saturating(scaled) : mezzo_f32_to_e2m1(scaled);
    }
}

// Rounds to the number of the format at or below a magnitude, or to the next one above it if a random number in [0, 1)
// is less than the relative distance. Below the format's largest number all differences are exact.
static float up_or_down(mezzo_blocks b, float x, uint32_t random) {
    const float a = fabsf(x), largest = is_e4m3(b) ? largest_e4m3 : largest_e2m1;
    int exponent;
    if (!(a < largest))
        return copysignf(largest, x);
    frexpf(a, &exponent); // a is [½, 1) · 2^exponent
    const int least = is_e4m3(b) ? -6 : 0, digits = is_e4m3(b) ? 3 : 1;
    exponent = a == 0 || exponent - 1 < least ? least : exponent - 1;
    const float step = ldexpf(1, exponent - digits), low = floorf(a / step) * step;
    const float up = step * ((float)(random >> 8) * 0x1p-24F) < a - low ? step : 0;
    return copysignf(low + up, x);
}

void mz_blocks_round(mezzo_blocks b, float *x, int n, float tensor) {
    const uint8_t scale = mz_blocks_scale(b, mz_blocks_amax(x, n), tensor);
    const float factor = mz_blocks_scale_value(b, scale) * tensor;
    if (!isnan(factor)) {
        mz_small_round(mz_blocks_table[b].element, x, n, (float)inverse_of(b, scale, tensor), factor);
        return;
    }
    for (int i = 0; i < n; i++)
        x[i] = factor;
}

// Rounds elements element, element + stride, ….
static void round_at_random(const mz_blocks_how *how, float *x, int n, float tensor, int64_t element, int64_t stride) {
    const uint8_t scale = mz_blocks_scale(how->format, mz_blocks_amax(x, n), tensor);
    const double inverse = inverse_of(how->format, scale, tensor);
    const float factor = mz_blocks_scale_value(how->format, scale) * tensor;
    for (int i = 0; i < n; i++) {
        uint32_t words[4];
        const uint64_t e = (uint64_t)(element + i * stride);
        mz_philox(how->key, e >> 2, words);
        x[i] = isnan(factor) ? factor : up_or_down(how->format, (float)((double)x[i] * inverse), words[e & 3]) * factor;
    }
}

uint32_t mz_blocks_signs(uint64_t seed) {
    uint32_t words[4];
    mz_philox((mz_philox_key){.seed = seed, .tensor = 0x60000000u}, 0, words); // no operand uses this stream
    return words[0];
}

void mz_blocks_turn_run(mezzo_blocks b, uint32_t signs, float *x, int64_t k, int64_t stride) {
    const int size = mz_blocks_table[b].size;
    const float root = size == 32 ? 0x1.6a09e6p-3F : 0.25F; // 1/√size
    for (int64_t at = 0; at + size <= k; at += size) {
        float v[MZ_BLOCK_MOST];
        for (int i = 0; i < size; i++)
            v[i] = signs >> i & 1 ? -x[(at + i) * stride] : x[(at + i) * stride];
        for (int half = 1; half < size; half *= 2)
            for (int i = 0; i < size; i++)
                if ((i & half) == 0) {
                    const float one = v[i], other = v[i + half];
                    v[i] = one + other;
                    v[i + half] = one - other;
                }
        for (int i = 0; i < size; i++)
            x[(at + i) * stride] = v[i] * root;
    }
}

void mz_blocks_round_run(const mz_blocks_how *how, float *x, int64_t k, int64_t stride, float tensor, int64_t element) {
    int size = mz_blocks_table[how->format].size;
    for (int64_t at = 0; at < k; at += size) {
        float block[MZ_BLOCK_MOST];
        int n = k - at < size ? (int)(k - at) : size;
        for (int i = 0; i < n; i++)
            block[i] = x[(at + i) * stride];
        if (how->random)
            round_at_random(how, block, n, tensor, element + at * stride, stride);
        else
            mz_blocks_round(how->format, block, n, tensor);
        for (int i = 0; i < n; i++)
            x[(at + i) * stride] = block[i];
    }
}
