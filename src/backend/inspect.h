// The ops inspect and histogram write this: counts and ranges of a tensor's values.
#ifndef MZ_INSPECT_H
#define MZ_INSPECT_H

#include "backend/backend.h"

// inspect: found[i] is an mz_inspection of x[i]: of all values, or, where 0 < attrs.sample < count, of runs of 32:
// sample is rounded up to whole runs, run r begins at r·(count/runs) + mz_sample_start's shift, which the random
// state's step decides, so that steps look at different values. Where state is present: bad |= attrs.bad_first (of
// x[0]) or attrs.bad_rest.
typedef struct mz_inspection { // of one tensor's values
    int64_t inspected;         // how many
    int64_t nans, infs, large; // large: finite, and above attrs.limit where that is not 0
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
// zeros; bucket b from 1 to MZ_HISTOGRAM_BUCKETS - 3 the magnitudes in (2^(b - 151), 2^(b - 150)], so that what FP16
// rounds to zero, |x| ≤ 2⁻²⁵, is whole buckets; the last two have infinities and NaNs. Buckets are those of the FP32
// value of an element.
#define MZ_HISTOGRAM_BUCKETS          281
#define MZ_HISTOGRAM_EXPONENT(bucket) ((bucket)-150) // of the bucket's upper edge
// Returns the bucket of an FP32 value's bits without the sign. The bits less one of a power of two are those of the
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

#endif
