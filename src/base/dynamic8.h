// Numbers in 8 bits with a scale a block: block-wise dynamic quantization, as Dettmers et al., "8-bit Optimizers via
// Block-wise Quantization" (ICLR 2022), and the library bitsandbytes have it, for an optimizer's moments.
//
// A block is 256 numbers one after another. A number is code · scale, FP32. The codes' magnitudes are 0, seven decades
// of numbers equally far from each other, and 1: decade i (0 … 6) has n = 2^i of them with signs, 2^(i+1) without,
// 10^(i-6) · (0.1 + 0.9·(k + ½)/n) for k < n. Codes are numbered from the least to the largest; there is no -1.
// The scale is the block's number of largest magnitude, *with its sign* (of x and -x, x > 0): it is code 1 exactly,
// whatever its sign, so that numbers that were read and are written again stay as they are. A scale with the
// magnitude alone, as published, would take a negative one for -0.993 of it; where it is positive, the two agree.
#ifndef MZ_DYNAMIC8_H
#define MZ_DYNAMIC8_H

#include "base/base.h"

enum {
    MZ_DYNAMIC8_BLOCK = 256,
    MZ_DYNAMIC8_RECORD = 4 + 256, // bytes: the scale, the codes
};

// Returns the bytes of a number of elements, a multiple of MZ_DYNAMIC8_BLOCK.
static inline int64_t mz_dynamic8_bytes(int64_t elements) {
    return elements / MZ_DYNAMIC8_BLOCK * MZ_DYNAMIC8_RECORD;
}

// Returns the address of an element's record; `element` is a multiple of MZ_DYNAMIC8_BLOCK.
static inline void *mz_dynamic8_at(void *records, int64_t element) {
    return (char *)records + mz_dynamic8_bytes(element);
}

// Encodes n <= 256 numbers as a whole record; missing numbers are zeros. The code of x is the one nearest to the FP32
// quotient x/scale, and of two equally near the smaller magnitude; `signs` selects the codes. A block with a number
// that is not finite has a scale that is not finite, and reads as NaN.
void mz_dynamic8_encode(bool signs, const float *x, int n, void *record);
void mz_dynamic8_decode(bool signs, const void *record, int n, float *x);
float mz_dynamic8_value(bool signs, uint8_t code); // for a scale of 1

#endif
