// Defines, for C and CUDA, how numbers are rounded to 8 and 4 bits and how the scales of their blocks follow from the
// largest magnitude. It handles floats as their bits, which have the order of magnitudes.
#ifndef MZ_SMALL_H
#define MZ_SMALL_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define MZ_SMALL_FUNCTION static __device__ __forceinline__
#else
#define MZ_SMALL_FUNCTION static inline
#endif

// Describes a format. Its numbers below `least`, its smallest normal one, are multiples of the last bit of `shift`;
// above it they are FP32 numbers without `drop` bits. `least` and `largest` are bits of FP32.
typedef struct mz_small_form {
    int drop;
    float shift;
    int32_t least, largest;
} mz_small_form;
#define MZ_SMALL_FORM_E4M3                                                                                             \
    { 20, 0x1p14F, 0x3C800000, 0x43E00000 }
#define MZ_SMALL_FORM_E5M2                                                                                             \
    { 21, 0x1p7F, 0x38800000, 0x47600000 }
#define MZ_SMALL_FORM_E2M1                                                                                             \
    { 22, 0x1p22F, 0x3F800000, 0x40C00000 }

enum { MZ_FLOAT_INFINITY = 0x7F800000, MZ_FLOAT_MAGNITUDE = 0x7FFFFFFF };

MZ_SMALL_FUNCTION int32_t mz_float_bits(float x) {
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
MZ_SMALL_FUNCTION float mz_bits_float(int32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

// Returns the bits of a magnitude, with one pattern for every NaN, because conversions treat its lower bits
// differently.
MZ_SMALL_FUNCTION int32_t mz_magnitude_of_one_nan(int32_t magnitude) {
    return magnitude > MZ_FLOAT_INFINITY ? 0x7FC00000 : magnitude;
}

// Rounds a finite number to the nearest of the format, ties to even, at most its largest one.
MZ_SMALL_FUNCTION float mz_small_nearest(float x, const mz_small_form f) {
    const int32_t bits = mz_float_bits(x), magnitude = bits & MZ_FLOAT_MAGNITUDE;
    const int32_t low = mz_float_bits((fabsf(x) + f.shift) - f.shift);
    const int32_t even = magnitude >> f.drop & 1, half = (1 << (f.drop - 1)) - 1;
    int32_t rounded = (magnitude + half + even) & -(1 << f.drop); // magnitude is finite: there is no overflow
    rounded = magnitude < f.least ? low : rounded;
    rounded = rounded < f.largest ? rounded : f.largest;
    return mz_bits_float(rounded | (bits & INT32_MIN));
}

// Says how the code of a block's scale follows from the block's largest magnitude.
typedef enum mz_scale_rule {
    MZ_SCALE_POWER, // quant/entry.h's mz_scale_for, as E8M0: 1 for zeros and where a number is not finite
    MZ_SCALE_MX,    // base/blocks.h's mz_blocks_scale for MX: E8M0
    MZ_SCALE_NVFP4  // mz_blocks_scale for NVFP4: E4M3, times the tensor's scale
} mz_scale_rule;

// Returns the code of a scale. largest: of the elements' format. A magnitude that is not finite gives NaN, which E8M0
// and E4M3 have.
MZ_SMALL_FUNCTION int mz_scale_code(mz_scale_rule rule, int32_t amax, int32_t largest, float tensor) {
    const mz_small_form e4m3 = MZ_SMALL_FORM_E4M3;
    if (rule == MZ_SCALE_NVFP4) {
        if (amax >= MZ_FLOAT_INFINITY)
            return 0x7F;
        const float scale = mz_small_nearest(mz_bits_float(amax) / 6.0F / tensor, e4m3);
        return scale < 0x1p-6F ? (int)(scale * 0x1p9F) : (mz_float_bits(scale) >> 20) - (120 << 3);
    }
    const int top = (largest >> 23) - 127; // the exponent of the format's largest number
    if (rule == MZ_SCALE_MX) {
        const int code = (amax >> 23) - top;
        return amax >= MZ_FLOAT_INFINITY ? 0xFF : code < 0 ? 0 : code;
    }
    const int code = (amax >> 23) - top + ((amax & 0x7FFFFF) > (largest & 0x7FFFFF));
    return amax == 0 || amax >= MZ_FLOAT_INFINITY ? 127 : code < 1 ? 1 : code;
}

MZ_SMALL_FUNCTION float mz_scale_of_code(mz_scale_rule rule, int code, float tensor) {
    if (rule == MZ_SCALE_NVFP4)
        return code == 0x7F ? (float)NAN
                            : (code < 8 ? (float)code * 0x1p-9F : mz_bits_float((code + (120 << 3)) << 20)) * tensor;
    return code == 0xFF ? (float)NAN : mz_bits_float(code == 0 ? 0x00400000 : code << 23);
}

// Returns NVFP4's scale of a tensor: 1 where the tensor is not finite or its magnitudes are below 2^-88.
MZ_SMALL_FUNCTION float mz_scale_of_tensor(int32_t amax) {
    const float scale = mz_bits_float(amax) / (6.0F * 448.0F);
    return amax < MZ_FLOAT_INFINITY && scale >= 0x1p-100F ? scale : 1;
}

#endif
