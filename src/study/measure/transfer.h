// Tests whether small models predict what a larger one gains: a straight line in ln(parameters) goes through a few
// widths' speedups at equal quality, and the model itself is compared with it.
#ifndef MZ_STUDY_TRANSFER_H
#define MZ_STUDY_TRANSFER_H

#include "study/measure/verify.h"

#define MZ_TRANSFER_WIDTHS 8
#define MZ_TRANSFER_LEAST  3 // two points leave nothing to draw an interval from

typedef struct mz_transfer_point {
    int64_t width;
    double params_m;
    mz_measured speedup; // at equal quality
} mz_transfer_point;

typedef struct mz_transfer {
    mz_transfer_point small[MZ_TRANSFER_WIDTHS];
    int n;
    double slope;          // of ln(speedup) by ln(parameters)
    mz_measured predicted; // for the model itself: the prediction interval of one more such point
    bool inside;           // the measured speedup lies in it
} mz_transfer;

// `options`: matched; its model is the one that is predicted. widths: n of them, the model's other keys as they are.
// *target is the model's own verification, which the caller frees with mz_verify_free. Errors as mz_verify; INVALID:
// too few or too many widths; NUMERIC: a width whose loss does not fall, so that there is no speedup at equal quality.
mezzo_status mz_transfer_find(const mz_verify_options *options, const int64_t *widths, int n, mz_verify_fn tell,
                              void *user, mz_transfer *out, mz_verify_result *target);
json_t *mz_transfer_json(const mz_transfer *t, const mz_verify_options *o, const mz_verify_result *target);
void mz_transfer_text(const mz_transfer *t, const mz_verify_options *o, const mz_verify_result *target, mz_text *out);

#endif
