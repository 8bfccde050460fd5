// Finds where two runs part: the first op whose result differs by more than so many units in the last place, computed
// by both configurations from the same weights and the same batch.
#ifndef MZ_STUDY_DIFFERENCE_H
#define MZ_STUDY_DIFFERENCE_H

#include <signal.h>

#include "mezzo/train.h"

typedef struct mz_difference_options {
    const char *runs[2]; // run folders; the first one's newest checkpoint has the weights and the place in the data
    double ulp; // units in the last place of the narrowest format that either run has computed or stored a result in so
                // far, at the tensor's largest value
    const char *device;                // NULL: each run's own
    const volatile sig_atomic_t *stop; // may be NULL
} mz_difference_options;

typedef struct mz_difference {
    int64_t step;            // of the checkpoint
    int weights, weights_of; // parameters that differ between the two runs' own checkpoints, of how many; of 0: not
                             // compared, because the models differ
    char weight[128];        // the name of the first of these weights
    int compared, unmatched; // results that both have; those that only one has
    bool found;
    char op[32], module[128], phase[16];
    char dtype[2][16];         // as each stores it
    double by;                 // ulp; infinite where only one is finite
    int64_t element, elements; // the one that differs most, of how many that were read
    double value[2];
} mz_difference;

// Compares up to 65,536 numbers of each result at equal distances; 8-bit data are left out, because their scales
// differ. IO, FORMAT: a folder that is no run's or has no checkpoint; INVALID: models or batches that do not fit each
// other.
mezzo_status mz_difference_find(const mz_difference_options *options, mz_difference *out);

#endif
