// Finds where two runs diverge: the first op whose result differs by more than a number of units in the last place,
// computed by both configurations from the same weights and the same batch.
#ifndef MZ_STUDY_DIFFERENCE_H
#define MZ_STUDY_DIFFERENCE_H

#include <signal.h>

#include "io/json.h"
#include "mezzo/train.h"

typedef struct mz_difference_options {
    const char *runs[2]; // run folders; the newest checkpoint of the first one gives the weights and the position in
                         // the data
    double ulp; // units in the last place of the narrowest format in which either run has computed or stored a result
                // so far, at the tensor's largest value
    const char *device;                // NULL: each run's own
    const volatile sig_atomic_t *stop; // may be NULL
} mz_difference_options;

typedef struct mz_difference {
    int64_t step;            // of the checkpoint
    int weights, weights_of; // parameters that differ between the runs' own checkpoints, and of how many; of 0: not
                             // compared, because the models differ
    char weight[128];        // the first parameter that differs
    int compared, unmatched; // results that both have, and those that only one has
    bool found;
    char op[32], module[128], phase[16];
    char dtype[2][16];         // the format in which each stores it
    double by;                 // in ulp; infinite where only one is finite
    int64_t element, elements; // the element that differs most, and how many were compared
    double value[2];
} mz_difference;

// Compares up to 65,536 numbers of each result at equal distances; it leaves out 8-bit data, because their scales
// differ. IO, FORMAT: a folder that belongs to no run or has no checkpoint; INVALID: models or batches that do not fit
// each other.
mezzo_status mz_difference_find(const mz_difference_options *options, mz_difference *out);
void mz_difference_text(const mz_difference *d, double ulp, mz_text *t);
json_t *mz_difference_json(const mz_difference *d);

#endif
