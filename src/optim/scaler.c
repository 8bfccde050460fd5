// The grad scaler: torch.amp.GradScaler's state machine on the host, its numbers on the device.
#include "optim/scaler.h"

#include <math.h>

#define FETCH_SLOT 0

mezzo_scaler_options mezzo_scaler_defaults(void) {
    return (mezzo_scaler_options){.enabled = true,
                                  .init_scale = 65536,
                                  .growth_factor = 2,
                                  .backoff_factor = 0.5,
                                  .growth_interval = 2000,
                                  .hysteresis = 1};
}

// --- creation -------------------------------------------------------------------------------------------------------------
static mezzo_status check_scale(double scale) {
    if (!(scale > 0) || !isfinite((float)scale) || (float)scale <= 0)
        return mz_fail(MEZZO_ERR_INVALID, "grad scaler: the scale is %g: use a positive number that fp32 can hold",
                       scale);
    return MEZZO_OK;
}

static mezzo_status check_factors(double growth, double backoff, int64_t interval) {
    if (!(growth > 1) || isinf(growth))
        return mz_fail(MEZZO_ERR_INVALID, "grad scaler: growth_factor is %g: the growth factor must be > 1.0", growth);
    if (!(backoff > 0 && backoff < 1))
        return mz_fail(MEZZO_ERR_INVALID,
                       "grad scaler: backoff_factor is %g: the backoff factor must be < 1.0, and > 0", backoff);
    if (interval < 1)
        return mz_fail(MEZZO_ERR_INVALID, "grad scaler: growth_interval is %lld: use 1 or more", (long long)interval);
    return MEZZO_OK;
}

static mezzo_status check_options(const mezzo_scaler_options *o) {
    MEZZO_TRY(check_scale(o->init_scale));
    MEZZO_TRY(check_factors(o->growth_factor, o->backoff_factor, o->growth_interval));
    if (!(o->min_scale >= 0) || !isfinite(o->min_scale) || !(o->max_scale >= 0) || !isfinite(o->max_scale))
        return mz_fail(MEZZO_ERR_INVALID, "grad scaler: min_scale %g and max_scale %g must be finite, 0 for none",
                       o->min_scale, o->max_scale);
    if (o->max_scale > 0 && o->max_scale < o->min_scale)
        return mz_fail(MEZZO_ERR_INVALID, "grad scaler: max_scale %g is below min_scale %g", o->max_scale,
                       o->min_scale);
    if (o->hysteresis < 0 || o->floor_patience < 0)
        return mz_fail(MEZZO_ERR_INVALID, "grad scaler: hysteresis %d and floor_patience %d must be 0 or more",
                       o->hysteresis, o->floor_patience);
    return MEZZO_OK;
}

static mezzo_status choose_kernel(mezzo_scaler *s) {
    s->call = (mz_call){.op = MZ_OP_scaler_update,
                        .attrs = {.update = &s->update},
                        .numerics = {MEZZO_F32, MEZZO_F32, MEZZO_F32},
                        .n_in = 1,
                        .in = {mz_tensor_bytes(s->head.block, sizeof *s->head.block)},
                        .n_out = 1,
                        .out = {mz_tensor_bytes(NULL, sizeof(mz_opt_state))}};
    MEZZO_TRY(mz_prepare(s->device, &s->call, &s->prepared));
    return MEZZO_OK;
}

mezzo_status mezzo_scaler_create(mezzo_device *device, const mezzo_scaler_options *options, mezzo_scaler **out) {
    mezzo_status status = MEZZO_OK;
    *out = NULL;
    MEZZO_TRY(check_options(options));
    mezzo_scaler *s = mz_alloc(1, sizeof *s);
    if (s == NULL)
        return MEZZO_ERR_MEMORY;
    s->device = device;
    s->update = (mz_update_attrs){
        .enabled = options->enabled,
        .growth_factor = options->growth_factor,
        .backoff_factor = options->backoff_factor,
        .growth_interval = options->growth_interval,
        // As the FP32 scale meets them. Not by two casts: gcc 12.2 drops such a pair in this literal at -O2.
        .min_scale = mezzo_round_to(options->min_scale, MEZZO_F32),
        .max_scale = mezzo_round_to(options->max_scale, MEZZO_F32),
        .hysteresis = options->hysteresis,
        .floor_patience = options->floor_patience};
    void *shared = NULL;
    MEZZO_TRY_GOTO(status, device->backend->alloc(device, sizeof *s->shared, &shared));
    s->shared = shared;
    s->head.block = &s->shared->block;
    mz_scaler_shared initial = {.block.scale = options->enabled ? (float)options->init_scale : 1, .owner = s};
    MEZZO_TRY_GOTO(status, device->backend->write(device, s->shared, &initial, sizeof initial));
    MEZZO_TRY_GOTO(status, choose_kernel(s));
    *out = s;
    return MEZZO_OK;
fail:
    mezzo_scaler_free(s);
    return status;
}

static void clear_entries(mezzo_scaler *s) {
    for (int i = 0; i < s->n_entries; i++)
        s->entries[i].optimizer->pending = NULL;
    s->n_entries = 0;
}

void mezzo_scaler_free(mezzo_scaler *s) {
    if (s == NULL)
        return;
    clear_entries(s);
    if (s->shared != NULL)
        s->device->backend->release(s->device, s->shared);
    mz_prepared_free(&s->prepared);
    mz_free(s);
}

void mz_scaler_forget(mezzo_scaler *s, mezzo_optimizer *optimizer) {
    for (int i = 0; i < s->n_entries; i++)
        if (s->entries[i].optimizer == optimizer)
            s->entries[i--] = s->entries[--s->n_entries];
    optimizer->pending = NULL;
}

// --- unscale, step, update ------------------------------------------------------------------------------------------------
static mezzo_status find_entry(mezzo_scaler *s, mezzo_optimizer *optimizer, mz_scaler_entry **out) {
    for (int i = 0; i < s->n_entries; i++)
        if (s->entries[i].optimizer == optimizer) {
            *out = &s->entries[i];
            return MEZZO_OK;
        }
    if (optimizer->device != s->device)
        return mz_fail(MEZZO_ERR_INVALID, "grad scaler: the optimizer's parameters are on another device");
    if (optimizer->pending != NULL)
        return mz_fail(MEZZO_ERR_INVALID,
                       "grad scaler: another scaler has unscaled this optimizer since its last update");
    if (s->n_entries == MZ_SCALER_OPTIMIZERS)
        return mz_fail(MEZZO_ERR_INVALID, "grad scaler: more than %d optimizers between two updates",
                       MZ_SCALER_OPTIMIZERS);
    s->entries[s->n_entries] = (mz_scaler_entry){.optimizer = optimizer, .stage = MZ_SCALER_READY};
    *out = &s->entries[s->n_entries++];
    optimizer->pending = s;
    return MEZZO_OK;
}

static mezzo_status unscale(mezzo_scaler *s, mz_scaler_entry *entry) {
    if (mz_optimizer_has_grads(entry->optimizer)) {
        MEZZO_TRY(mz_optimizer_stats(entry->optimizer, &s->head.block->scale));
        entry->checked = true;
    }
    entry->stage = MZ_SCALER_UNSCALED;
    return MEZZO_OK;
}

mezzo_status mezzo_scaler_unscale(mezzo_scaler *s, mezzo_optimizer *optimizer) {
    if (!s->update.enabled)
        return MEZZO_OK; // as torch: nothing to undo, and nothing to misuse
    mz_scaler_entry *entry;
    MEZZO_TRY(find_entry(s, optimizer, &entry));
    if (entry->stage == MZ_SCALER_UNSCALED)
        return mz_fail(MEZZO_ERR_INVALID,
                       "unscale_() has already been called on this optimizer since the last update().");
    if (entry->stage == MZ_SCALER_STEPPED)
        return mz_fail(MEZZO_ERR_INVALID, "unscale_() is being called after step().");
    MEZZO_TRY(unscale(s, entry));
    return MEZZO_OK;
}

// Disabled, torch hands the call through and checks nothing. Here the non-finite check stays, and found_inf is kept for update's
// count of skips.
static mezzo_status step_disabled(mezzo_scaler *s, mezzo_optimizer *optimizer) {
    mz_scaler_entry *entry;
    MEZZO_TRY(find_entry(s, optimizer, &entry));
    if (entry->stage == MZ_SCALER_STEPPED)
        MEZZO_TRY(mz_optimizer_reset(optimizer));
    MEZZO_TRY(mezzo_optimizer_step(optimizer));
    entry->stage = MZ_SCALER_STEPPED;
    entry->checked = true;
    return MEZZO_OK;
}

mezzo_status mezzo_scaler_step(mezzo_scaler *s, mezzo_optimizer *optimizer) {
    if (!s->update.enabled)
        return step_disabled(s, optimizer);
    mz_scaler_entry *entry;
    MEZZO_TRY(find_entry(s, optimizer, &entry));
    if (entry->stage == MZ_SCALER_STEPPED)
        return mz_fail(MEZZO_ERR_INVALID, "step() has already been called since the last update().");
    if (entry->stage == MZ_SCALER_READY)
        MEZZO_TRY(unscale(s, entry));
    if (!entry->checked)
        return mz_fail(MEZZO_ERR_INVALID, "No inf checks were recorded for this optimizer: no program has written "
                                          "gradients since they were zeroed.");
    MEZZO_TRY(mezzo_optimizer_step(optimizer));
    entry->stage = MZ_SCALER_STEPPED;
    return MEZZO_OK;
}

// What the update before the last one left, fetched then, so that nobody waits for it now.
static mezzo_status watch_floor(mezzo_scaler *s) {
    if (!s->update.enabled || s->update.floor_patience == 0)
        return MEZZO_OK;
    int32_t hits = 0;
    double scale = 0;
    if (s->fetching) {
        const void *host = NULL;
        MEZZO_TRY(s->device->backend->fetched(s->device, FETCH_SLOT, &host));
        const mz_scaler_shared *seen = host;
        if (seen->owner == s) { // another scaler on this device may have used the slot since
            hits = seen->block.floor_hits;
            scale = (double)seen->block.scale;
        }
    }
    MEZZO_TRY(mz_scaler_fetch(s, FETCH_SLOT));
    s->fetching = true;
    if (hits >= s->update.floor_patience)
        return mz_fail(MEZZO_ERR_NUMERIC,
                       "the loss scale is at its floor, %g, and %d steps in a row had non-finite gradients: the "
                       "gradients themselves are not finite; use bf16 or a smaller learning rate",
                       scale, (int)hits);
    return MEZZO_OK;
}

mezzo_status mezzo_scaler_update(mezzo_scaler *s) {
    int n = 0;
    for (int i = 0; i < s->n_entries; i++)
        if (s->entries[i].checked)
            s->call.out[n++] = mz_tensor_bytes(s->entries[i].optimizer->d_state, sizeof(mz_opt_state));
    if (n == 0) {
        if (!s->update.enabled)
            return MEZZO_OK;
        return mz_fail(MEZZO_ERR_INVALID, "No inf checks were recorded prior to update.");
    }
    s->call.attrs.update = &s->update;
    s->call.n_out = n;
    MEZZO_TRY(mz_run(s->device, &s->prepared, &s->call, NULL));
    for (int i = 0; i < s->n_entries; i++)
        s->entries[i].optimizer->touched = false;
    clear_entries(s);
    MEZZO_TRY(watch_floor(s));
    return MEZZO_OK;
}

// --- state ----------------------------------------------------------------------------------------------------------------
mezzo_status mezzo_scaler_set_scale(mezzo_scaler *s, double scale) {
    if (!s->update.enabled)
        return MEZZO_OK;
    MEZZO_TRY(check_scale(scale));
    float value = (float)scale;
    MEZZO_TRY(s->device->backend->write(s->device, &s->head.block->scale, &value, sizeof value));
    for (int i = 0; i < s->n_entries; i++)
        MEZZO_TRY(mz_optimizer_reset(s->entries[i].optimizer));
    clear_entries(s);
    return MEZZO_OK;
}

mezzo_status mz_scaler_fetch(mezzo_scaler *s, int slot) {
    return mz_fetch(s->device, slot, s->shared, sizeof *s->shared);
}

mezzo_status mezzo_scaler_get_state(mezzo_scaler *s, mezzo_scaler_state *out) {
    mz_scaler_block block;
    MEZZO_TRY(s->device->backend->read(s->device, &block, s->head.block, sizeof block));
    *out = (mezzo_scaler_state){.scale = (double)block.scale,
                                .growth_factor = s->update.growth_factor,
                                .backoff_factor = s->update.backoff_factor,
                                .growth_interval = s->update.growth_interval,
                                .growth_tracker = block.tracker,
                                .hysteresis_tracker = block.hysteresis,
                                .floor_hits = block.floor_hits,
                                .skipped = block.skipped};
    return MEZZO_OK;
}

static mezzo_status check_tracker(const char *name, int64_t value) {
    if (value < 0 || value > INT32_MAX)
        return mz_fail(MEZZO_ERR_INVALID, "grad scaler: %s is %lld: use 0 to %d", name, (long long)value, INT32_MAX);
    return MEZZO_OK;
}

mezzo_status mezzo_scaler_set_state(mezzo_scaler *s, const mezzo_scaler_state *state) {
    MEZZO_TRY(check_scale(state->scale));
    MEZZO_TRY(check_factors(state->growth_factor, state->backoff_factor, state->growth_interval));
    MEZZO_TRY(check_tracker("growth_tracker", state->growth_tracker));
    MEZZO_TRY(check_tracker("hysteresis_tracker", state->hysteresis_tracker));
    MEZZO_TRY(check_tracker("floor_hits", state->floor_hits));
    if (state->skipped < 0)
        return mz_fail(MEZZO_ERR_INVALID, "grad scaler: skipped is %lld: use 0 or more", (long long)state->skipped);
    mz_scaler_block block = {.scale = s->update.enabled ? (float)state->scale : 1,
                             .tracker = (int32_t)state->growth_tracker,
                             .hysteresis = (int32_t)state->hysteresis_tracker,
                             .floor_hits = (int32_t)state->floor_hits,
                             .skipped = state->skipped};
    MEZZO_TRY(s->device->backend->write(s->device, s->head.block, &block, sizeof block));
    s->update.growth_factor = state->growth_factor;
    s->update.backoff_factor = state->backoff_factor;
    s->update.growth_interval = state->growth_interval;
    return MEZZO_OK;
}
