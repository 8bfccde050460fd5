// Declares what the ops inspect, histogram, checksum and rounding write about a tensor's values.
#ifndef MZ_INSPECT_H
#define MZ_INSPECT_H

#include "backend/backend.h"
#include "base/blocks.h"

// inspect: found[i] is an mz_inspection of x[i]: of all values, or, where 0 < attrs.sample < count, of runs of 32:
// sample is rounded up to whole runs, run r begins at r·(count/runs) + mz_sample_start's shift, which the random
// state's step decides, so that steps look at different values. Where state is present: bad |= attrs.bad_first (of
// x[0]) or attrs.bad_rest.
typedef struct mz_inspection { // of one tensor's values
    int64_t inspected;         // number of inspected values
    int64_t nans, infs, large; // large: finite, and above attrs.limit if that is not 0
    int64_t zeros, tiny;       // tiny: not 0, and below 2^-14, the smallest normal number of FP16
    float low, high;           // of the finite values; +0 and +0 where there are none
} mz_inspection;
static inline bool mz_inspection_bad(const mz_inspection *i) {
    return i->nans + i->infs + i->large > 0;
}
// Returns where run r of a sample begins. `stride` = count / runs, at least 32.
static inline int64_t mz_sample_start(int64_t r, int64_t stride, uint64_t step) {
    uint32_t folded = (uint32_t)(step ^ step >> 32) * 2654435761u;
    return r * stride + (int64_t)(folded % (uint64_t)(stride - 31));
}

// histogram: adds the elements of x to `counts`, a U8 tensor that holds int32 [MZ_HISTOGRAM_BUCKETS]. Bucket 0 has the
// zeros; bucket b from 1 to MZ_HISTOGRAM_BUCKETS - 3 the magnitudes in (2^(b - 151), 2^(b - 150)], so that the numbers
// which FP16 rounds to zero, |x| ≤ 2⁻²⁵, fill whole buckets; the last two have infinities and NaNs. The FP32 value of
// an element decides its bucket.
#define MZ_HISTOGRAM_BUCKETS          281
#define MZ_HISTOGRAM_EXPONENT(bucket) ((bucket)-150) // of the bucket's upper edge
// Returns the bucket of an FP32 value's bits without the sign. For a power of two, the bits minus one belong to the
// number just below it.
static inline int mz_histogram_bucket(uint32_t magnitude) {
    if (magnitude == 0)
        return 0;
    if (magnitude >= 0x7F800000u)
        return magnitude == 0x7F800000u ? MZ_HISTOGRAM_BUCKETS - 2 : MZ_HISTOGRAM_BUCKETS - 1;
    uint32_t below = magnitude - 1;
    if (below >= 0x00800000u)
        return (int)(below >> 23) - 127 + 151;
    return below == 0 ? 1 : 31 - __builtin_clz(below) + 2; // subnormal: floor(log2) is the highest bit - 149
}

// checksum: sums[i] is an mz_checksum of x[i]'s bytes, which are little-endian words of 64 bits; zeros fill up the last
// one. All sums are modulo 2^64, so that their order does not matter. Two contents of one length below 16 GiB differ
//   in `mixed` where a single word of 64 bits differs, because mixing is a bijection;
//   in `weighted` where a single half word of 32 bits differs, and where two different halves are swapped: these sums
//   differ by a product of two numbers below 2^32, neither of which is 0;
//   and otherwise in `mixed`, but for one of 2^64 pairs, as sums of random numbers do.
typedef struct mz_checksum {
    uint64_t weighted; // Σ (2·i + 1)·low half + (2·i + 2)·high half, of word i
    uint64_t mixed;    // Σ of mixed words
} mz_checksum;
MZ_SMALL_FUNCTION void mz_checksum_add(mz_checksum *sum, uint64_t word, uint64_t i) {
    const uint64_t high = word >> 32, halves = (uint32_t)word + high;
    uint64_t mixed = word + (i + 1) * 0x9E3779B97F4A7C15u;
    sum->weighted += (2 * i + 1) * halves + high;
    mixed = (mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93u;
    mixed = (mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93u;
    sum->mixed += mixed ^ mixed >> 32;
}

// rounding: found[f] describes x [rows, columns], rounded to `via`, in format f of attrs.rounding. Blocks are along the
// columns, or down the rows where `columnwise`.
enum { MZ_ROUNDING_FORMATS = 8, MZ_SCALE_CODES = 256 };
typedef struct mz_rounding_how {
    mezzo_blocks blocks;
    mezzo_dtype dtype;  // format of its numbers where blocks is NONE
    mz_scaling scaling; // a scaling of 8-bit tensors, where blocks is NONE
} mz_rounding_how;
typedef struct mz_rounding_attrs {
    int n;
    bool columnwise;
    mezzo_dtype via; // BF16 or F16; others round nothing
    mz_rounding_how how[MZ_ROUNDING_FORMATS];
} mz_rounding_attrs;

// A number that is not finite, or whose scale is NaN, is counted as not_finite and left out of the rest. All others are
// q = scale·nearest(x/scale), where x/scale is x times the FP32 inverse.
//
// Sums are FP64, of FP32 numbers' squares, in this order. A tile is 128 numbers of 32 runs: 32 rows of 128 columns, or
// 128 rows of 32. sums[32·i + 8·s + l] adds up, by rows and then columns,
//   of rows of 128: row i's columns 32·s + 8·k + l; columnwise: rows 32·i to 32·i + 31, column 8·s + l.
// The second half is added to the first until one sum is left. Lane t mod 256 adds up tiles t in their order, by rows
// of tiles; then the lanes are halved alike.
typedef struct mz_rounding_sums {
    int64_t nonzero, not_finite;
    int64_t underflow, saturated; // not 0 but rounded to 0; above the format's largest number times the scale
    double squares, error;        // Σ x² and Σ (q - x)², the difference in FP32
    int32_t amax;                 // the bits of the largest magnitude of x; 0x7FC00000: a NaN
    int32_t unused;
    int64_t scales[MZ_SCALE_CODES]; // number of blocks with this code as their scale, whose numbers are finite and not
                                    // all 0
} mz_rounding_sums;
enum { MZ_ROUNDING_LONG = 128, MZ_ROUNDING_SHORT = 32, MZ_ROUNDING_SUMS = 1024, MZ_ROUNDING_LANES = 256 };

// Holds the facts of a format that kernels read.
typedef struct mz_rounding_form {
    mz_small_form small;
    mz_scale_rule rule;
    int block;  // numbers of a run that share one scale: 16, 32 or 128
    bool tile;  // the scale covers 128 x 128 numbers
    bool whole; // one scale covers the tensor
} mz_rounding_form;
static inline mz_small mz_rounding_small(const mz_rounding_how *how) {
    if (how->blocks != MEZZO_BLOCKS_NONE)
        return mz_blocks_table[how->blocks].element;
    return how->dtype == MEZZO_F8E4M3 ? MZ_SMALL_E4M3 : MZ_SMALL_E5M2;
}
static inline mz_rounding_form mz_rounding_form_of(const mz_rounding_how *how) {
    const bool blocks = how->blocks != MEZZO_BLOCKS_NONE;
    const mz_blocks_info *info = &mz_blocks_table[how->blocks];
    mz_rounding_form form;
    form.small = mz_small_form_of(mz_rounding_small(how));
    form.rule = info->scale;
    form.block = blocks ? info->size : MZ_SCALE_BLOCK;
    form.tile = !blocks && mz_scalings[how->scaling].rows > 1;
    form.whole = !blocks && !mz_scaling_in_blocks(how->scaling);
    return form;
}
static inline bool mz_scale_counts(int32_t amax, float scale) {
    return amax > 0 && amax < MZ_FLOAT_INFINITY && scale > 0;
}

#endif
