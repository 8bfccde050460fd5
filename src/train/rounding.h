// Measures what a format makes of the numbers of a product's operand: how far they change, which become zero or
// saturate, and which scales they get. The op `rounding` measures on the device.
#ifndef MZ_TRAIN_ROUNDING_H
#define MZ_TRAIN_ROUNDING_H

#include "backend/inspect.h"
#include "base/blocks.h"
#include "base/precision.h"

typedef struct mz_rounding_format {
    char name[16];
    mezzo_blocks blocks; // NONE: the operands of `precision`
    const mz_precision_info *precision;
} mz_rounding_format;

// Parses the name of a block format, or of a precision whose every product has scaled operands. INVALID: another name.
mezzo_status mz_rounding_parse(const char *name, mz_rounding_format *out);

typedef struct mz_rounding {
    int64_t elements, nonzero,
        not_finite;                       // elements whose rounded number is not finite; the other statistics leave
                                          // them out
    int64_t underflow, saturated;         // elements other than 0 that round to 0; elements beyond the largest number
                                          // of the format at its scale
    double squares, error;                // Σ x² and Σ (rounded - x)²
    int64_t scales;                       // number of scales (of blocks, tiles or the tensor) with a number other than
                                          // 0
    double log2_sum, log2_squares;        // over these scales: Σ log2 and Σ log2²
    int64_t counts[MZ_HISTOGRAM_BUCKETS]; // of these scales, by magnitude: mz_histogram_bucket
} mz_rounding;

// Returns the statistics that the op `rounding` found in x of `elements` numbers.
mz_rounding mz_rounding_of(const mz_rounding_how *how, const mz_rounding_sums *found, int64_t elements);

#endif
