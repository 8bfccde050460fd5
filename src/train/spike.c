#include "train/spike.h"

#include <math.h>

#include "base/sort.h"

mezzo_status mz_spikes_create(int64_t window, mz_spikes *out) {
    *out = (mz_spikes){.window = window};
    out->losses = mz_alloc((size_t)window, sizeof *out->losses);
    out->sorted = mz_alloc((size_t)window, sizeof *out->sorted);
    return out->losses == NULL || out->sorted == NULL ? MEZZO_ERR_MEMORY : MEZZO_OK;
}

void mz_spikes_free(mz_spikes *s) {
    MZ_FREE(s->losses, s->sorted);
    *s = (mz_spikes){0};
}

void mz_spikes_forget(mz_spikes *s) {
    s->count = 0;
    s->jumps = 0;
}

static double score(mz_spikes *s, double loss) {
    const size_t n = (size_t)(s->count < s->window ? s->count : s->window);
    if (n < MZ_SPIKE_LEAST)
        return 0;
    memcpy(s->sorted, s->losses, n * sizeof *s->sorted);
    double middle = mz_median(s->sorted, n);
    for (size_t i = 0; i < n; i++)
        s->sorted[i] = fabs(s->losses[i] - middle);
    double deviation = 1.4826 * mz_median(s->sorted, n), least = 1e-3 * (fabs(middle) + 1e-6);
    return (loss - middle) / (deviation > least ? deviation : least);
}

double mz_spikes_see(mz_spikes *s, double loss, double limit) {
    if (!isfinite(loss))
        return (double)INFINITY;
    double z = score(s, loss);
    s->jumps = z >= limit ? s->jumps + 1 : 0;
    if (s->jumps >= s->window / 2)
        mz_spikes_forget(s);
    if (z < limit || s->count == 0) {
        s->losses[s->count % s->window] = loss;
        s->count++;
    }
    return z;
}
