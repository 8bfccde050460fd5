// Declares conversions to block formats, OCP Microscaling (MX) v1.0 and NVFP4. The elements of a block share a scale.
#ifndef MZ_BLOCKS_H
#define MZ_BLOCKS_H

#include "base/base.h"
#include "base/small.h"

enum { MZ_BLOCK_MOST = 32 }; // elements of the largest block
// Lists formats of 8 and 4 bits, without their scales.
typedef enum mz_small { MZ_SMALL_E4M3, MZ_SMALL_E5M2, MZ_SMALL_E2M1 } mz_small;
typedef struct mz_blocks_info { // blocks.def describes the fields
    const char *name;
    int size;
    mz_small element;
    mz_scale_rule scale;
} mz_blocks_info;
extern const mz_blocks_info mz_blocks_table[MEZZO_BLOCKS_COUNT];
float mz_blocks_element(mezzo_blocks b, uint8_t code);

// Returns the FP32 scale of a tensor whose largest magnitude is `amax`: NVFP4's amax/(6·448), which makes the largest
// block's scale E4M3's largest number; 1 for the others, and for a tensor that is not finite or below 2^-88.
float mz_blocks_tensor_scale(mezzo_blocks b, float amax);
// Returns the code of a block's scale, from its largest magnitude `amax`. MX: 2^(⌊log2 amax⌋ - e), e the exponent of
// the element format's largest number, at least 2^-127. NVFP4: amax/6 in units of the tensor's scale, rounded to
// nearest even and at most 448. Not finite: the scale is NaN.
uint8_t mz_blocks_scale(mezzo_blocks b, float amax, float tensor);
// Returns the value of a scale's code, without the tensor's scale.
float mz_blocks_scale_value(mezzo_blocks b, uint8_t code);

// Encodes n numbers, at most a block: their codes (a byte each) and the code of their scale. Rounds to nearest even and
// saturates; a NaN or infinity in the block makes its scale NaN.
void mz_blocks_encode(mezzo_blocks b, const float *x, int n, float tensor, uint8_t *codes, uint8_t *scale);
// Rounds x to the format and back, in place; n is at most a block.
void mz_blocks_round(mezzo_blocks b, float *x, int n, float tensor);

// Says how an operand's blocks are rounded.
typedef struct mz_blocks_how {
    mezzo_blocks format;
    bool hadamard;     // whole blocks are first multiplied by a Hadamard matrix: mz_blocks_turn_run
    uint32_t signs;    // its signs
    bool random;       // elements are rounded stochastically up to the format's largest number, which replaces larger
                       // ones; scales are rounded to nearest
    mz_philox_key key; // random key: element e of the operand takes word e mod 4 of Philox block e/4
} mz_blocks_how;

// Returns the random signs of a run, one bit for each element of a block.
uint32_t mz_blocks_signs(uint64_t seed);
// Multiplies every whole block of a run of k numbers, x[0], x[stride], …, by a Hadamard matrix: element i changes its
// sign where bit i of `signs` is set, then the block is multiplied by the Hadamard matrix of its size divided by its
// root. Two operands that are multiplied alike keep their product. It computes in FP32, in the order of the fast
// transform.
void mz_blocks_turn_run(mezzo_blocks b, uint32_t signs, float *x, int64_t k, int64_t stride);
// Rounds such a run; `element`: the index of x[0] in the operand.
void mz_blocks_round_run(const mz_blocks_how *how, float *x, int64_t k, int64_t stride, float tensor, int64_t element);
// Returns the largest magnitude, or NaN if there is one.
float mz_blocks_amax(const float *x, int64_t n);

mz_small_form mz_small_form_of(mz_small format);
float mz_small_largest(mz_small format);
// Multiplies each of n finite numbers by `inverse` in FP32, rounds it to nearest even and at most the format's largest
// number, and multiplies it by `factor`.
void mz_small_round(mz_small format, float *x, int n, float inverse, float factor);

#endif
