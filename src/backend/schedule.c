// Computes learning-rate schedules, for the host and for kernels that run on it.
#include <math.h>

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
