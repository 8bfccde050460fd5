// Makes the update's decisions, for the host and for devices whose memory is the host's: each function computes a few
// scalars in the optimizer's state.
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

// Computes clip ×= min(1, max_norm/(norm·clip + 1e-6)), the factor of torch.nn.utils.clip_grad_norm_; a norm that is
// not finite does not clip.
void mz_clip_control(const mz_call *call) {
    mz_opt_state *state = mz_out(call, clip_control, state)->data;
    if (!isfinite(state->norm))
        return;
    double factor = call->attrs.update->max_norm / (state->norm * state->clip + 1e-6);
    if (factor < 1)
        state->clip *= factor;
}

void mz_scales_update(const mz_call *call) {
    const mz_opt_state *state = mz_in(call, scales_update, state)->data;
    const mz_tensor *entries = mz_out(call, scales_update, entries), *tables = mz_in(call, scales_update, tables);
    const bool gathered = mz_present(tables);
    mz_entries_update(entries->data, mz_shape_count(&entries->shape), gathered ? tables->data : NULL,
                      gathered ? mz_shape_count(&tables->shape) : 0, state->skip != 0);
}

void mz_step_control(const mz_call *call) {
    const mz_update_attrs *u = call->attrs.update;
    mz_opt_state *state = mz_out(call, step_control, state)->data;
    if (state->guard & MZ_GUARD_ON && !state->halted) {
        bool gradients = state->found_inf && state->guard & MZ_GUARD_GRADIENTS;
        state->halted = state->bad | (gradients ? MZ_BAD_GRADIENTS : 0);
    }
    state->bad = 0;
    state->skip = state->found_inf || state->halted;
    state->last_found_inf = state->found_inf;
    state->last_clip = state->clip;
    if (state->halted)
        return;
    if (state->skip) {
        state->skipped++;
        return;
    }
    state->lr = mz_schedule_lr(u, state->step); // the rate for step 0, 1, …, before the step is counted
    state->step++;
    for (int group = 0; group < u->n_groups; group++)
        for (int i = 0; i < 2; i++)
            state->bias[group][i] = 1 - pow(u->betas[group][i], (double)state->step);
}

static void back_off(mz_scaler_block *block, const mz_update_attrs *u) {
    bool at_floor = u->min_scale > 0 && (double)block->scale <= u->min_scale;
    block->floor_hits = at_floor ? block->floor_hits + 1 : 0;
    block->tracker = 0;
    block->hysteresis++;
    if (block->hysteresis < u->hysteresis)
        return;
    double scale = (double)block->scale * u->backoff_factor;
    block->scale = (float)(scale > u->min_scale ? scale : u->min_scale);
}

static void count_good_step(mz_scaler_block *block, const mz_update_attrs *u) {
    block->floor_hits = 0;
    block->hysteresis = 0;
    // At or past the interval, because a smaller interval in a checkpoint must not stop growth forever. The sum is 64
    // bits wide.
    if ((int64_t)block->tracker + 1 < u->growth_interval) {
        block->tracker++;
        return;
    }
    block->tracker = 0;
    float grown = (float)((double)block->scale * u->growth_factor);
    if (u->max_scale > 0 && (double)grown > u->max_scale)
        grown = (float)u->max_scale;
    if (isfinite(grown)) // a scale that would become infinite stays, as in PyTorch
        block->scale = grown;
}

void mz_scaler_update(const mz_call *call) {
    bool found = false, halted = false;
    for (int i = 0; i < call->n_out; i++) {
        mz_opt_state *state = call->out[i].data;
        found = found || state->found_inf != 0;
        halted = halted || state->halted != 0;
        state->found_inf = 0;
        state->clip = 1;
    }
    if (!mz_present(mz_in(call, scaler_update, scaler)) || halted)
        return;
    mz_scaler_block *block = mz_in(call, scaler_update, scaler)->data;
    block->skipped += found;
    if (call->attrs.update->enabled)
        (found ? back_off : count_good_step)(block, call->attrs.update);
}
