#include "study/measure/sweep.h"

static void add(mz_rung *rungs, int *n, const char *name, mz_rung rung) {
    rungs[*n] = rung;
    snprintf(rungs[*n].name, sizeof rungs[*n].name, "%s", name);
    ++*n;
}

int mz_ladder(int64_t batch, int64_t seq_len, mz_rung rungs[MZ_RUNGS_MAX]) {
    int n = 0;
    mz_rung r = {.micro_batch = batch, .grad_accum = 1, .seq_len = seq_len};
    add(rungs, &n, "base", r);
    r.recompute = true;
    add(rungs, &n, "recompute", r);
    if (batch % 2 == 0) {
        r.micro_batch = batch / 2;
        r.grad_accum = 2;
        add(rungs, &n, "ga2", r);
    }
    if (r.micro_batch > 1) { // half of the step's sequences, in as many micro batches as before
        r.micro_batch /= 2;
        add(rungs, &n, "half_batch", r);
    }
    if (seq_len > 1) {
        r.seq_len = seq_len / 2;
        add(rungs, &n, "half_seq", r);
    }
    return n;
}
