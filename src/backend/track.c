// Moves running statistics by those of batches, for devices whose memory is the host's.
#include <math.h>

#include "backend/slots.h"
#include "backend/update.h"

// Returns the row of batch i of n: with `ranks`, rank r's rows are batches r, r + ranks, r + 2·ranks …
static int64_t row_of(int64_t i, int64_t n, int ranks) {
    return i % ranks * (n / ranks) + i / ranks;
}

static bool is_sound(const float *batch, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(batch[i]))
            return false;
    return true;
}

void mz_track(const mz_call *call) {
    const mz_tensor *batches = mz_in(call, track, batches), *state = mz_in(call, track, state);
    const mz_tracked *entries = mz_in(call, track, entries)->data;
    float *master = mz_out(call, track, master)->data;
    const int64_t n = batches->shape.dim[0], count = batches->shape.dim[1];
    if (mz_present(state) && ((const mz_opt_state *)state->data)->halted)
        return;
    for (int64_t b = 0; b < n; b++) {
        const float *batch = (const float *)batches->data + row_of(b, n, call->attrs.groups) * count;
        if (!is_sound(batch, count))
            continue;
        for (int64_t i = 0; i < count; i++)
            for (int64_t k = entries[i].place >= 0 ? i : -1; k >= 0; k = entries[k].next) {
                float *x = &master[entries[i].place];
                *x = (float)(entries[k].momentum * (double)*x + (1 - entries[k].momentum) * (double)batch[k]);
            }
    }
}
