// Finds jumps of the loss: how many robust deviations a loss lies above earlier losses.
#ifndef MZ_TRAIN_SPIKE_H
#define MZ_TRAIN_SPIKE_H

#include "base/base.h"

#define MZ_SPIKE_LEAST 16 // losses before the first verdict

typedef struct mz_spikes {
    int64_t window, count; // window: the capacity; count: finite losses seen in all
    double *losses;        // [window], a ring buffer
    double *sorted;        // [window]
    int64_t jumps;         // consecutive jumps
} mz_spikes;

mezzo_status mz_spikes_create(int64_t window, mz_spikes *out);
void mz_spikes_free(mz_spikes *spikes);
void mz_spikes_forget(mz_spikes *spikes); // called after a rollback
// Returns (loss - median) / s over the window before this loss. s = 1.4826 · the median of |loss - median|, which
// estimates the deviation of normal noise and does not change when fewer than half of the window are outliers (Iglewicz
// and Hoaglin, 1993). s is at least 1e-3 · (|median| + 1e-6), so that on a flat stretch not every ripple is a jump. The
// result is 0 while fewer than MZ_SPIKE_LEAST losses are known. A loss that is not finite scores +infinity and is not
// kept, so that it changes neither median nor deviation. A loss scored `limit` or above is not kept either; half a
// window of them in a row is a new level, and all older losses are forgotten.
double mz_spikes_see(mz_spikes *spikes, double loss, double limit);

#endif
