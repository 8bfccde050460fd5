// The grad scaler is the state machine of torch.amp.GradScaler on the host, with its numbers on the device.
#include "optim/scaler.h"

#include <math.h>

mezzo_scaler_options mezzo_scaler_defaults(void) {
    return (mezzo_scaler_options){.enabled = true,
                                  .init_scale = 65536,
                                  .growth_factor = 2,
                                  .backoff_factor = 0.5,
                                  .growth_interval = 2000,
                                  .hysteresis = 1};
}

// --- creation ------------------------------------------------------------------------------------------------------
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
    MZ_REQUIRE(device, options, out);
    mezzo_status status = MEZZO_OK;
    *out = NULL;
    MEZZO_TRY(check_options(options));
    mezzo_scaler *s;
    MEZZO_TRY(MZ_NEW(s, 1));
    s->device = device;
    s->update = (mz_update_attrs){.enabled = options->enabled,
                                  .growth_factor = options->growth_factor,
                                  .backoff_factor = options->backoff_factor,
                                  .growth_interval = options->growth_interval,
                                  // The bounds are rounded to FP32 as the scale is, but not by two casts: gcc 12.2
                                  // drops such a pair in this literal at -O2.
                                  .min_scale = mezzo_round_to(options->min_scale, MEZZO_F32),
                                  .max_scale = mezzo_round_to(options->max_scale, MEZZO_F32),
                                  .hysteresis = options->hysteresis,
                                  .floor_patience = options->floor_patience};
    void *block = NULL;
    MEZZO_TRY_GOTO(status, device->backend->alloc(device, sizeof *s->head.block, &block));
    s->head.block = block;
    s->head.device = device;
    mz_scaler_block initial = {.scale = options->enabled ? (float)options->init_scale : 1};
    MEZZO_TRY_GOTO(status, device->backend->write(device, s->head.block, &initial, sizeof initial));
    if (options->enabled && options->floor_patience > 0)
        MEZZO_TRY_GOTO(status, device->backend->fetch_open(device, sizeof initial, &s->floor));
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
    if (!mz_free_once(s, "scaler"))
        return;
    clear_entries(s);
    if (s->floor != NULL)
        s->device->backend->fetch_close(s->device, s->floor);
    if (s->head.block != NULL)
        s->device->backend->release(s->device, s->head.block);
    mz_prepared_free(&s->prepared);
    mz_free(s);
}

void mz_scaler_forget(mezzo_scaler *s, mezzo_optimizer *optimizer) {
    for (int i = 0; i < s->n_entries; i++)
        if (s->entries[i].optimizer == optimizer)
            s->entries[i--] = s->entries[--s->n_entries];
    optimizer->pending = NULL;
}

// --- unscale, step, update -----------------------------------------------------------------------------------------
// Finds the optimizer's entry or, where it has none, sets *fresh to one that `admit` adds. A call that fails must leave
// no entry.
static mezzo_status find_entry(mezzo_scaler *s, mezzo_optimizer *optimizer, mz_scaler_entry *fresh,
                               mz_scaler_entry **out) {
    *fresh = (mz_scaler_entry){.optimizer = optimizer, .stage = MZ_SCALER_READY};
    *out = fresh;
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
    return MEZZO_OK;
}

static mz_scaler_entry *admit(mezzo_scaler *s, mz_scaler_entry *entry, const mz_scaler_entry *fresh) {
    if (entry != fresh)
        return entry;
    s->entries[s->n_entries] = *fresh;
    fresh->optimizer->pending = s;
    return &s->entries[s->n_entries++];
}

// Returns whether there were no gradients when they were unscaled; those written since must still be inspected, where
// PyTorch would fail on every later call.
static bool unscaled_nothing(const mz_scaler_entry *entry) {
    return entry->stage == MZ_SCALER_UNSCALED && !entry->checked && mz_optimizer_has_grads(entry->optimizer);
}

static mezzo_status unscale(mezzo_scaler *s, mz_scaler_entry **entry, const mz_scaler_entry *fresh) {
    bool gradients = mz_optimizer_has_grads((*entry)->optimizer);
    if (gradients)
        MEZZO_TRY(mz_optimizer_stats((*entry)->optimizer, &s->head.block->scale));
    *entry = admit(s, *entry, fresh);
    (*entry)->checked = gradients;
    (*entry)->stage = MZ_SCALER_UNSCALED;
    return MEZZO_OK;
}

mezzo_status mezzo_scaler_unscale(mezzo_scaler *s, mezzo_optimizer *optimizer) {
    MZ_REQUIRE(s, optimizer);
    if (!s->update.enabled)
        return MEZZO_OK; // as in PyTorch, without an error: there is nothing to undo
    mz_scaler_entry fresh, *entry;
    MEZZO_TRY(find_entry(s, optimizer, &fresh, &entry));
    if (entry->stage == MZ_SCALER_UNSCALED && !unscaled_nothing(entry))
        return mz_fail(MEZZO_ERR_INVALID,
                       "unscale_() has already been called on this optimizer since the last update().");
    if (entry->stage == MZ_SCALER_STEPPED)
        return mz_fail(MEZZO_ERR_INVALID, "unscale_() is being called after step().");
    MEZZO_TRY(unscale(s, &entry, &fresh));
    return MEZZO_OK;
}

// Steps without scaling. PyTorch then calls the optimizer and checks nothing; here the check for numbers that are not
// finite stays, and found_inf is kept for update's count of skipped steps.
static mezzo_status step_disabled(mezzo_scaler *s, mezzo_optimizer *optimizer) {
    mz_scaler_entry fresh, *entry;
    MEZZO_TRY(find_entry(s, optimizer, &fresh, &entry));
    if (entry->stage == MZ_SCALER_STEPPED && mz_optimizer_has_grads(optimizer))
        MEZZO_TRY(mz_optimizer_reset(optimizer));
    mezzo_scaler *pending = optimizer->pending;
    optimizer->pending = s; // update reads found_inf later
    mezzo_status status = mezzo_optimizer_step(optimizer);
    optimizer->pending = pending;
    MEZZO_TRY(status);
    entry = admit(s, entry, &fresh);
    entry->stage = MZ_SCALER_STEPPED;
    entry->checked = true;
    return MEZZO_OK;
}

mezzo_status mezzo_scaler_step(mezzo_scaler *s, mezzo_optimizer *optimizer) {
    MZ_REQUIRE(s, optimizer);
    if (!s->update.enabled)
        return step_disabled(s, optimizer);
    mz_scaler_entry fresh, *entry;
    MEZZO_TRY(find_entry(s, optimizer, &fresh, &entry));
    if (entry->stage == MZ_SCALER_STEPPED)
        return mz_fail(MEZZO_ERR_INVALID, "step() has already been called since the last update().");
    if (!entry->checked && !mz_optimizer_has_grads(optimizer))
        return mz_fail(MEZZO_ERR_INVALID, "No inf checks were recorded for this optimizer: no program has written "
                                          "gradients since they were zeroed.");
    if (entry->stage == MZ_SCALER_READY || unscaled_nothing(entry))
        MEZZO_TRY(unscale(s, &entry, &fresh));
    MEZZO_TRY(mezzo_optimizer_step(optimizer));
    entry->stage = MZ_SCALER_STEPPED;
    return MEZZO_OK;
}

mezzo_status mz_scaler_check_floor(mezzo_scaler *s) {
    mz_scaler_block seen = {0};
    if (s->floor == NULL)
        return MEZZO_OK;
    if (s->fetching) { // fetches what the previous update left, so that no thread waits for it now
        const void *host = NULL;
        MEZZO_TRY(s->device->backend->fetched(s->device, s->floor, &host));
        memcpy(&seen, host, sizeof seen);
    }
    MEZZO_TRY(s->device->backend->fetch(s->device, s->floor, 0, s->head.block, sizeof *s->head.block));
    s->fetching = true;
    if (seen.floor_hits >= s->update.floor_patience)
        return mz_fail(MEZZO_ERR_NUMERIC,
                       "the loss scale is at its floor, %g, and %d steps in a row had non-finite gradients: the "
                       "gradients themselves are not finite; use bf16 or a smaller learning rate",
                       (double)seen.scale, (int)seen.floor_hits);
    return MEZZO_OK;
}

mezzo_status mz_scaler_issue_update(mezzo_scaler *s, mz_sequence *into, const mezzo_optimizer *const *optimizers,
                                    int n) {
    mz_span spans[2 * MZ_SCALER_OPTIMIZERS + 1];
    mz_traffic traffic = mz_optimizer_reset_traffic(optimizers, n, spans);
    spans[traffic.n_writes++] = (mz_span){(const char *)s->head.block, (const char *)(s->head.block + 1)};
    for (int i = 0; i < n; i++)
        s->call.out[i] = mz_tensor_bytes(optimizers[i]->d_state, sizeof(mz_opt_state));
    s->call.attrs.update = &s->update;
    s->call.n_out = n;
    return mz_issue(s->device, into, &s->prepared, &s->call, NULL, &traffic);
}

mezzo_status mezzo_scaler_update(mezzo_scaler *s) {
    MZ_REQUIRE(s);
    const mezzo_optimizer *checked[MZ_SCALER_OPTIMIZERS];
    int n = 0;
    for (int i = 0; i < s->n_entries; i++)
        if (s->entries[i].checked)
            checked[n++] = s->entries[i].optimizer;
    if (n == 0) {
        if (!s->update.enabled)
            return MEZZO_OK;
        return mz_fail(MEZZO_ERR_INVALID, "No inf checks were recorded prior to update.");
    }
    MEZZO_TRY(mz_scaler_issue_update(s, NULL, checked, n));
    for (int i = 0; i < s->n_entries; i++)
        s->entries[i].optimizer->touched = false;
    clear_entries(s);
    MEZZO_TRY(mz_scaler_check_floor(s));
    return MEZZO_OK;
}

// --- state ---------------------------------------------------------------------------------------------------------
mezzo_status mezzo_scaler_set_scale(mezzo_scaler *s, double scale) {
    MZ_REQUIRE(s);
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

mezzo_status mezzo_scaler_get_state(mezzo_scaler *s, mezzo_scaler_state *out) {
    MZ_REQUIRE(s, out);
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
    MZ_REQUIRE(s, state);
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
    s->version++;
    return MEZZO_OK;
}
