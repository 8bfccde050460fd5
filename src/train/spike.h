// Finds jumps of the loss: how many robust deviations a loss lies above the losses before it.
#ifndef MZ_TRAIN_SPIKE_H
#define MZ_TRAIN_SPIKE_H

#include "base/base.h"

#define MZ_SPIKE_LEAST 16 // losses before the first verdict

typedef struct mz_spikes {
    int64_t window, count; // room; finite losses seen in all
    double *losses;        // [window], a ring
    double *sorted;        // [window]
    int64_t jumps;         // in a row
} mz_spikes;

mezzo_status mz_spikes_create(int64_t window, mz_spikes *out);
void mz_spikes_free(mz_spikes *spikes);
void mz_spikes_forget(mz_spikes *spikes); // after a rollback
// (loss - median) / s over the window before this loss, s = 1.4826 · the median of |loss - median|, which estimates the
// deviation of normal noise and stays what it is when fewer than half of the window are outliers (Iglewicz and Hoaglin,
// 1993); at least 1e-3 · (|median| + 1e-6), so that a flat stretch does not make every ripple a jump. 0 while fewer
// than MZ_SPIKE_LEAST losses are known. A loss that is not finite is +infinity, and is not kept: it neither moves the
// median nor widens the deviation. A loss scored `limit` or above is not kept either; half a window of them in a row is
// a new level, and all older ones are forgotten.
double mz_spikes_see(mz_spikes *spikes, double loss, double limit);

#endif
