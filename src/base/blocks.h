// Converts numbers to block formats, OCP Microscaling (MX) v1.0 and NVFP4. The elements of a block share a scale.
#ifndef MZ_BLOCKS_H
#define MZ_BLOCKS_H

#include "base/base.h"
#include "base/small.h"

enum { MZ_BLOCK_MOST = 32 }; // elements of the largest block
// Numbers of 8 and 4 bits, without their scales.
typedef enum mz_small { MZ_SMALL_E4M3, MZ_SMALL_E5M2, MZ_SMALL_E2M1 } mz_small;
typedef struct mz_blocks_info { // blocks.def says what each field is
    const char *name;
    int size;
    mz_small element;
    mz_scale_rule scale;
} mz_blocks_info;
extern const mz_blocks_info mz_blocks_table[MEZZO_BLOCKS_COUNT];
float mz_blocks_element(mezzo_blocks b, uint8_t code);

// The FP32 scale of a tensor whose largest magnitude is `amax`: NVFP4's most/(6·448), which brings the largest block's
// scale to E4M3's largest number; 1 for the others, and for a tensor that is not finite or below 2^-88.
float mz_blocks_tensor_scale(mezzo_blocks b, float amax);
// Returns the code of a block's scale, from its largest magnitude. MX: 2^(⌊log2 most⌋ - e), e the exponent of the
// element format's largest number, at least 2^-127. NVFP4: most/6 in units of the tensor's scale, rounded to nearest
// even and at most 448. Not finite: the scale is NaN.
uint8_t mz_blocks_scale(mezzo_blocks b, float amax, float tensor);
// Returns what the code of a scale stands for, without the tensor's.
float mz_blocks_scale_value(mezzo_blocks b, uint8_t code);

// Encodes n numbers, at most a block, → their codes (a byte each) and the code of their scale. Rounds to nearest
// even and saturates; after a NaN or infinity in the block its scale is NaN.
void mz_blocks_encode(mezzo_blocks b, const float *x, int n, float tensor, uint8_t *codes, uint8_t *scale);
// x rounded to the format and back, in place; n is at most a block.
void mz_blocks_round(mezzo_blocks b, float *x, int n, float tensor);

// Holds what is done to an operand's blocks besides.
typedef struct mz_blocks_how {
    mezzo_blocks format;
    bool hadamard;     // whole blocks are turned first: mz_blocks_turn_run
    uint32_t signs;    // of that
    bool random;       // elements are rounded up or down at random, with the probabilities that make the mean right up
                       // to the format's largest number; scales to nearest. A number beyond it becomes it
    mz_philox_key key; // of that: element e of the operand takes word e mod 4 of Philox block e/4
} mz_blocks_how;

// The random signs of a run, a bit for each element of a block.
uint32_t mz_blocks_signs(uint64_t seed);
// Every whole block of a run of k numbers, x[0], x[stride], …: element i changes its sign where bit i of `signs` is
// set, then the block is multiplied by the Hadamard matrix of its size over its root. Turned alike, two operands have
// the same product. FP32, in the order of the fast transform.
void mz_blocks_turn_run(mezzo_blocks b, uint32_t signs, float *x, int64_t k, int64_t stride);
// Rounds such a run; `element`: which one of the operand x[0] is.
void mz_blocks_round_run(const mz_blocks_how *how, float *x, int64_t k, int64_t stride, float tensor, int64_t element);
// NaN where there is one.
float mz_blocks_amax(const float *x, int64_t n);

mz_small_form mz_small_form_of(mz_small format);
float mz_small_largest(mz_small format);
// Each of n finite numbers times `inverse`, rounded to nearest even and at most the format's largest number, times
// `factor`. The first is an FP32 product.
void mz_small_round(mz_small format, float *x, int n, float inverse, float factor);

#endif
