// Computes learning-rate schedules and the norm across ranks, for the host and for kernels that run on it.
#include <math.h>

#include "backend/slots.h"
#include "backend/update.h"
#include "mezzo/optimizer.h"

// The formulas are in mezzo/optimizer.h.
double mz_schedule_lr(const mz_update_attrs *update, int64_t step) {
    double lr = update->lr, min_lr = update->min_lr;
    if (step < update->warmup)
        return lr * ((double)step + 1) / ((double)update->warmup + 1);
    if (update->schedule == MEZZO_LR_CONSTANT)
        return lr;
    if (step >= update->steps) // so warmup < steps below
        return min_lr;
    double progress = (double)(step - update->warmup) / (double)(update->steps - update->warmup);
    switch (update->schedule) {
    case MEZZO_LR_LINEAR:
        return lr + (min_lr - lr) * progress;
    case MEZZO_LR_COSINE:
        return min_lr + (lr - min_lr) * (1 + cos(M_PI * progress)) / 2;
    default: // MEZZO_LR_POLYNOMIAL
        return (lr - min_lr) * pow(1 - progress, update->power) + min_lr;
    }
}

void mz_norm_across_ranks(const mz_call *call) {
    const mz_tensor *pieces = mz_in(call, norm_across_ranks, pieces), *states = mz_in(call, norm_across_ranks, states);
    mz_opt_state *state = mz_out(call, norm_across_ranks, state)->data;
    const int64_t n = mz_shape_count(&pieces->shape) / (int64_t)sizeof(double),
                  ranks = mz_present(states) ? mz_shape_count(&states->shape) / (int64_t)sizeof *state : 0;
    double total = 0;
    for (int64_t i = 0; i < n; i++)
        total += ((const double *)pieces->data)[i];
    state->norm = sqrt(total);
    if (!isfinite(total))
        state->found_inf = 1;
    for (int64_t r = 0; r < ranks; r++)
        state->bad |= ((const mz_opt_state *)states->data)[r].bad;
}
