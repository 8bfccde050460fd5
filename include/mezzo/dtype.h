// Number formats and precisions, and the single set of conversions that everything in Mezzo uses. Ownership, threads
// and errors that a comment does not name: mezzo.h.
#ifndef MEZZO_DTYPE_H
#define MEZZO_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "mezzo/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mezzo_dtype {
    MEZZO_F64,
    MEZZO_F32,
    MEZZO_TF32, // a compute format: 8 exponent and 10 fraction bits; stored in 4 bytes
    MEZZO_BF16,
    MEZZO_F16,
    MEZZO_F8E4M3, // OCP FP8 E4M3FN: no infinity, 0x7F and 0xFF are NaN, largest 448
    MEZZO_F8E5M2,
    MEZZO_I64,
    MEZZO_I32,
    MEZZO_U16,
    MEZZO_U8,
    MEZZO_DTYPE_COUNT
} mezzo_dtype;

// Names the precision that a user requests; the autocast pass derives dtypes from it. docs/train.md describes each.
typedef enum mezzo_precision {
    MEZZO_PRECISION_FP32,
    MEZZO_PRECISION_TF32,
    MEZZO_PRECISION_BF16,
    MEZZO_PRECISION_FP16,
    MEZZO_PRECISION_FP8,       // scaled E4M3 and E5M2 operands; emulated on cpu and ref
    MEZZO_PRECISION_FP8_DW16,  // as FP8, but weights' gradients are products of BF16 operands
    MEZZO_PRECISION_FP8_BLOCK, // E4M3 with a scale for each 128 numbers of a row, and for each 128 × 128 of a weight
    MEZZO_PRECISION_FP64,      // ref backend only: the reference of tests
    MEZZO_PRECISION_AUTO,      // the best of the device; resolved by mezzo_precision_resolve before a graph sees it
    MEZZO_PRECISION_COUNT
} mezzo_precision;

// Names formats of blocks of numbers that share a scale, as OCP MX v1.0 and NVFP4 define them: products can run as if
// their operands were stored in such blocks.
typedef enum mezzo_blocks {
    MEZZO_BLOCKS_NONE,
    MEZZO_BLOCKS_MXFP8, // E4M3, a power of two (E8M0) for each 32
    MEZZO_BLOCKS_MXFP4, // E2M1, a power of two (E8M0) for each 32
    MEZZO_BLOCKS_NVFP4, // E2M1, an E4M3 number for each 16, and one FP32 number for the whole tensor
    MEZZO_BLOCKS_COUNT
} mezzo_blocks;
MEZZO_API const char *mezzo_blocks_name(mezzo_blocks blocks); // "none", "mxfp8", …; static

// The names that these return are static.
MEZZO_API size_t mezzo_dtype_size(mezzo_dtype dtype);      // bytes of one element in storage
MEZZO_API const char *mezzo_dtype_name(mezzo_dtype dtype); // "fp32", "bf16", "i32", …
MEZZO_API const char *mezzo_precision_name(mezzo_precision precision);
// Finds a precision by its name. Other tools' names are taken, too ("bfloat16", "half", "16-mixed", "torch.float32"),
// in upper or lower case. MEZZO_ERR_INVALID: no such precision (the message has the nearest name and all names), or a
// name that stands for no single precision ("amp": the message says why).
MEZZO_API mezzo_status mezzo_precision_parse(const char *name, mezzo_precision *out);
// Returns whether gradients underflow without a loss scale, so that a scaler should be on. False for
// MEZZO_PRECISION_AUTO.
MEZZO_API bool mezzo_precision_needs_loss_scale(mezzo_precision precision);

// Convert one value to or from the bits of another format. Rounding is to nearest, ties to even; overflow gives
// infinity (E4M3: NaN); NaN stays NaN (quiet); subnormals are exact. `mezzo_f32_to_*` round once from the float; the
// f64 forms round once from the double.
MEZZO_API uint16_t mezzo_f32_to_f16(float x);
MEZZO_API uint16_t mezzo_f64_to_f16(double x);
MEZZO_API float mezzo_f16_to_f32(uint16_t bits);
MEZZO_API uint16_t mezzo_f32_to_bf16(float x);
MEZZO_API uint16_t mezzo_f64_to_bf16(double x);
MEZZO_API float mezzo_bf16_to_f32(uint16_t bits);
MEZZO_API float mezzo_f32_to_tf32(float x);
MEZZO_API uint8_t mezzo_f32_to_e4m3(float x);
MEZZO_API float mezzo_e4m3_to_f32(uint8_t bits);
MEZZO_API uint8_t mezzo_f32_to_e5m2(float x);
MEZZO_API float mezzo_e5m2_to_f32(uint8_t bits);
// Convert as OCP FP8 and FP4 saturate: a number that is too large, infinities included, becomes the largest number of
// its sign. NaN stays NaN; E2M1 (the low four bits; 0, ½, 1, 1½, 2, 3, 4, 6) has no NaN and gives 6.
MEZZO_API uint8_t mezzo_f32_to_e4m3_saturating(float x);
MEZZO_API uint8_t mezzo_f32_to_e5m2_saturating(float x);
MEZZO_API uint8_t mezzo_f32_to_e2m1(float x);
MEZZO_API float mezzo_e2m1_to_f32(uint8_t bits);
// Converts to E8M0, the scale of MX blocks: 2^(bits - 127); 0xFF is NaN. The result is the power of two nearest to x,
// halfway between two the greater; 2^-127 for smaller x; 0xFF for zero, negative numbers, NaN, and x that rounds to
// 2^128.
MEZZO_API uint8_t mezzo_f32_to_e8m0(float x);
MEZZO_API float mezzo_e8m0_to_f32(uint8_t bits);

// Rounds x to a float dtype and back. Integer dtypes return x.
MEZZO_API double mezzo_round_to(double x, mezzo_dtype dtype);

// Converts n elements; the arrays must not overlap unless they are the same and the sizes equal. Float dtypes convert
// as above; a float to an integer truncates, and out of range gives MEZZO_ERR_INVALID, as does any pair of TF32 storage
// with a format other than F32.
MEZZO_API mezzo_status mezzo_convert(const void *src, mezzo_dtype src_dtype, void *dst, mezzo_dtype dst_dtype,
                                     size_t n);

// Rounds stochastically: x goes up with probability (x - below) / (above - below), decided by `random` (uniform 32
// bits, from Philox keyed by seed, step, tensor and element). A finite value never becomes infinite unless rounding to
// nearest makes it so.
MEZZO_API uint16_t mezzo_f32_to_bf16_stochastic(float x, uint32_t random);

#ifdef __cplusplus
}
#endif
#endif
