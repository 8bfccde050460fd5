// Computes the scalars that decide a step, one tiny launch each: clip factor, skip or step with its learning rate, loss
// scale.
#include "host.cuh"

extern "C" {
#include "mezzo/optimizer.h"
}

__global__ void clip_control_kernel(mz_opt_state *state, double max_norm) {
    if (isfinite(state->norm))
        state->clip *= fmin(1.0, max_norm / (state->norm * state->clip + 1e-6));
}

static void launch_clip_control(const mz_cuda_device *cuda, const mz_call *call) {
    clip_control_kernel<<<1, 1, 0, cuda->stream>>>(data_of<mz_opt_state>(mz_out(call, clip_control, state)),
                                                   call->attrs.update->max_norm);
}
MZ_CUDA_KERNEL(clip_control, launch_clip_control, storages<"u", "u">)

struct schedule_args {
    int kind;
    double lr, min_lr, power;
    int64_t warmup, steps;
};
struct betas_args {
    double beta[MZ_GROUPS][2];
    int groups;
};

// The formulas are in mezzo/optimizer.h; mz_schedule_lr is the host's.
__device__ double schedule_lr(const schedule_args &s, int64_t step) {
    if (step < s.warmup)
        return s.lr * (static_cast<double>(step) + 1) / (static_cast<double>(s.warmup) + 1);
    if (s.kind == MEZZO_LR_CONSTANT)
        return s.lr;
    if (step >= s.steps)
        return s.min_lr;
    double progress = static_cast<double>(step - s.warmup) / static_cast<double>(s.steps - s.warmup);
    if (s.kind == MEZZO_LR_LINEAR)
        return s.lr + (s.min_lr - s.lr) * progress;
    if (s.kind == MEZZO_LR_COSINE)
        return s.min_lr + (s.lr - s.min_lr) * (1 + cos(3.14159265358979323846 * progress)) / 2;
    return (s.lr - s.min_lr) * pow(1 - progress, s.power) + s.min_lr;
}

// base^n as an unevaluated sum of two doubles, rounded once: 1 - base^n cancels, so that pow's own ulp or two would be
// a thousand of the difference. Products of pairs are exact to 2^-104 or so (Dekker 1971, with a fused multiply-add).
struct pair {
    double high, low;
};

__device__ __forceinline__ pair times(pair a, pair b) {
    double high = a.high * b.high, low = fma(a.high, b.high, -high);
    low += fma(a.high, b.low, a.low * b.high);
    pair r;
    r.high = high + low;
    r.low = low - (r.high - high);
    return r;
}

__device__ double power(double base, int64_t n) {
    pair result = {1, 0}, square = {base, 0};
    for (; n > 0; n >>= 1) {
        if (n & 1)
            result = times(result, square);
        square = times(square, square);
    }
    return result.high;
}

__global__ void step_control_kernel(mz_opt_state *state, schedule_args schedule, betas_args betas) {
    int found = state->found_inf, halted = state->halted, thread = threadIdx.x;
    if ((state->guard & MZ_GUARD_ON) && !halted)
        halted = state->bad | (found && (state->guard & MZ_GUARD_GRADIENTS) ? MZ_BAD_GRADIENTS : 0);
    int64_t step = state->step;
    __syncthreads(); // everyone has read what the first thread is about to change
    if (thread == 0) {
        state->halted = halted;
        state->bad = 0;
        state->skip = found || halted;
        state->last_clip = state->clip;
        state->last_found_inf = found;
        if (found && !halted)
            ++state->skipped;
        else if (!halted)
            state->step = step + 1;
    }
    if (found || halted)
        return;
    // A thread of each warp: their branches do not wait for one another.
    if (thread == 0)
        state->lr = schedule_lr(schedule, step);
    const int bias = thread / 32 - 1;
    if (thread % 32 == 0 && thread > 0)
        state->bias[bias / 2][bias % 2] = 1 - power(betas.beta[bias / 2][bias % 2], step + 1);
}

static void launch_step_control(const mz_cuda_device *cuda, const mz_call *call) {
    const mz_update_attrs *u = call->attrs.update;
    const schedule_args schedule = {u->schedule, u->lr, u->min_lr, u->power, u->warmup, u->steps};
    betas_args betas = {.groups = u->n_groups};
    memcpy(betas.beta, u->betas, sizeof betas.beta);
    step_control_kernel<<<1, 32 * (1 + 2 * betas.groups), 0, cuda->stream>>>(
        data_of<mz_opt_state>(mz_out(call, step_control, state)), schedule, betas);
}
MZ_CUDA_KERNEL(step_control, launch_step_control, storages<"u", "u">)

struct state_args {
    mz_opt_state *state[MZ_MAX_OUT];
    int n;
};
struct scaler_args {
    bool enabled;
    double growth_factor, backoff_factor, min_scale, max_scale;
    int64_t growth_interval;
    int hysteresis;
};

// torch's _amp_update_scale_, but: growth at or past the interval, the cap, the floor and the hysteresis. A scale that
// would become infinite stays as it is.
__device__ void update_scale(const scaler_args &u, mz_scaler_block *block, bool found) {
    if (found) {
        bool at_floor = u.min_scale > 0 && static_cast<double>(block->scale) <= u.min_scale;
        block->floor_hits = at_floor ? block->floor_hits + 1 : 0;
        block->tracker = 0;
        ++block->hysteresis;
        if (block->hysteresis >= u.hysteresis)
            block->scale = static_cast<float>(fmax(static_cast<double>(block->scale) * u.backoff_factor, u.min_scale));
        return;
    }
    block->floor_hits = 0;
    block->hysteresis = 0;
    // Compared before the increment: a tracker at INT32_MAX must not wrap.
    if (static_cast<int64_t>(block->tracker) + 1 < u.growth_interval) {
        ++block->tracker;
        return;
    }
    float grown = static_cast<float>(static_cast<double>(block->scale) * u.growth_factor);
    if (u.max_scale > 0)
        grown = static_cast<float>(fmin(static_cast<double>(grown), u.max_scale));
    if (isfinite(grown))
        block->scale = grown;
    block->tracker = 0;
}

__global__ void scaler_update_kernel(mz_scaler_block *block, state_args states, scaler_args u) {
    bool found = false, halted = false;
    for (int i = 0; i < states.n; i++) {
        mz_opt_state *state = states.state[i];
        found = found || state->found_inf != 0;
        halted = halted || state->halted != 0;
        state->found_inf = 0;
        state->clip = 1;
    }
    if (block == nullptr || halted)
        return;
    block->skipped += found;
    if (u.enabled)
        update_scale(u, block, found);
}

static void launch_scaler_update(const mz_cuda_device *cuda, const mz_call *call) {
    const mz_update_attrs *u = call->attrs.update;
    state_args states = {.n = call->n_out};
    for (int i = 0; i < call->n_out; i++)
        states.state[i] = data_of<mz_opt_state>(&call->out[i]);
    const scaler_args constants = {.enabled = u->enabled,
                                   .growth_factor = u->growth_factor,
                                   .backoff_factor = u->backoff_factor,
                                   .min_scale = u->min_scale,
                                   .max_scale = u->max_scale,
                                   .growth_interval = u->growth_interval,
                                   .hysteresis = u->hysteresis};
    scaler_update_kernel<<<1, 1, 0, cuda->stream>>>(data_of<mz_scaler_block>(mz_in(call, scaler_update, scaler)),
                                                    states, constants);
}
MZ_CUDA_KERNEL(scaler_update, launch_scaler_update, storages<"u", "u">)
