// Makes the update's decisions: each kernel computes a few scalars in the optimizer's state.
#include <math.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/kernels/kernels.h"
#include "backend/update.h"

static const char *prepare_always(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    (void)device, (void)call, (void)out;
    return NULL;
}

// Computes clip ×= min(1, max_norm/(norm·clip + 1e-6)), the factor of torch.nn.utils.clip_grad_norm_; a norm that is
// not finite does not clip.
static mezzo_status run_clip_control(mezzo_device *device, const mz_call *call) {
    (void)device;
    mz_opt_state *state = mz_out(call, clip_control, state)->data;
    if (!isfinite(state->norm))
        return MEZZO_OK;
    double factor = call->attrs.update->max_norm / (state->norm * state->clip + 1e-6);
    if (factor < 1)
        state->clip *= factor;
    return MEZZO_OK;
}
const mz_kernel mz_clip_control__portable = {"clip_control__portable", prepare_always, run_clip_control};

static mezzo_status run_norm_across_ranks(mezzo_device *device, const mz_call *call) {
    (void)device;
    mz_norm_across_ranks(call);
    return MEZZO_OK;
}
const mz_kernel mz_norm_across_ranks__portable = {"norm_across_ranks__portable", prepare_always, run_norm_across_ranks};

static mezzo_status run_scales_update(mezzo_device *device, const mz_call *call) {
    (void)device;
    const mz_opt_state *state = mz_in(call, scales_update, state)->data;
    const mz_tensor *entries = mz_out(call, scales_update, entries), *tables = mz_in(call, scales_update, tables);
    const bool gathered = mz_present(tables);
    mz_entries_update(entries->data, mz_shape_count(&entries->shape), gathered ? tables->data : NULL,
                      gathered ? mz_shape_count(&tables->shape) : 0, state->skip != 0);
    return MEZZO_OK;
}
const mz_kernel mz_scales_update__portable = {"scales_update__portable", prepare_always, run_scales_update};

static mezzo_status run_track(mezzo_device *device, const mz_call *call) {
    (void)device;
    mz_track(call);
    return MEZZO_OK;
}
const mz_kernel mz_track__portable = {"track__portable", prepare_always, run_track};

static mezzo_status run_step_control(mezzo_device *device, const mz_call *call) {
    (void)device;
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
        return MEZZO_OK;
    if (state->skip) {
        state->skipped++;
        return MEZZO_OK;
    }
    state->lr = mz_schedule_lr(u, state->step); // the rate for step 0, 1, …, before the step is counted
    state->step++;
    for (int group = 0; group < u->n_groups; group++)
        for (int i = 0; i < 2; i++)
            state->bias[group][i] = 1 - pow(u->betas[group][i], (double)state->step);
    return MEZZO_OK;
}
const mz_kernel mz_step_control__portable = {"step_control__portable", prepare_always, run_step_control};

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

static mezzo_status run_scaler_update(mezzo_device *device, const mz_call *call) {
    (void)device;
    bool found = false, halted = false;
    for (int i = 0; i < call->n_out; i++) {
        mz_opt_state *state = call->out[i].data;
        found = found || state->found_inf != 0;
        halted = halted || state->halted != 0;
        state->found_inf = 0;
        state->clip = 1;
    }
    if (!mz_present(mz_in(call, scaler_update, scaler)) || halted)
        return MEZZO_OK;
    mz_scaler_block *block = mz_in(call, scaler_update, scaler)->data;
    block->skipped += found;
    if (call->attrs.update->enabled)
        (found ? back_off : count_good_step)(block, call->attrs.update);
    return MEZZO_OK;
}
const mz_kernel mz_scaler_update__portable = {"scaler_update__portable", prepare_always, run_scaler_update};
