// One optimizer step, and reading what it did without waiting for it.
#include <math.h>

#include "train/inject.h"
#include "train/run.h"

// Fetch slots: the optimizer's state in 0 and 1, the scaler's block in 2 and 3 (by the step's parity), losses in 4 … 7.
#define STATE_SLOT  0
#define SCALER_SLOT 2
#define LOSS_SLOT   4

static mezzo_status collect_loss(mz_training *run, int slot) {
    mz_readout *r = &run->engine.readout;
    const void *host;
    float loss;
    if (r->pending[slot] == 0)
        return MEZZO_OK;
    MEZZO_TRY(run->engine.device->backend->fetched(run->engine.device, LOSS_SLOT + slot, &host));
    memcpy(&loss, host, sizeof loss);
    r->sum[r->pending[slot] & 1] += (double)loss;
    r->pending[slot] = 0;
    return MEZZO_OK;
}

// Forward and backward of the next micro batch, its gradients added to what is there.
static mezzo_status run_micro(mz_training *run, int64_t step, int64_t i) {
    uint64_t batch = run->data->position;
    int slot = (int)(i % MZ_LOSS_SLOTS);
    char fault[sizeof run->guard.batch[0]];
    MZ_INJECT_AT(run, step, i);
    MEZZO_TRY(mz_guard_draw(run, batch, fault, sizeof fault));
    run->data->position = batch + 1;
    if (fault[0] != '\0') {
        memcpy(run->guard.batch[step & 1], fault, sizeof fault);
        MEZZO_TRY(mz_guard_bad_batch(run));
    }
    MEZZO_TRY(mz_examples_write(&run->data->examples, run->engine.train));
    uint64_t dropout = mz_seed(run->config.seed, MZ_SEED_DROPOUT);
    if (run->engine.counting && i == 0)
        MEZZO_TRY(mz_magnitudes_run(run->engine.magnitudes, run->engine.train, run->engine.scaler, dropout, batch));
    else
        MEZZO_TRY(mezzo_program_run(run->engine.train, run->engine.scaler, dropout, batch));
    MZ_INJECT_GRADIENT(run);
    MEZZO_TRY(collect_loss(run, slot));
    MEZZO_TRY(run->engine.device->backend->fetch(run->engine.device, LOSS_SLOT + slot, run->engine.readout.loss,
                                                 sizeof(float)));
    run->engine.readout.pending[slot] = step;
    return MEZZO_OK;
}

// Unscale and check, clip, step, next scale, gradients empty again. Nothing here waits for the device or depends on
// what it found.
static mezzo_status run_update(mz_training *run) {
    run->engine.optimizer->unscales_in_place = run->engine.counting; // gradients are looked at behind it
    MEZZO_TRY(mezzo_scaler_unscale(run->engine.scaler, run->engine.optimizer));
    if (run->config.clip > 0)
        MEZZO_TRY(mezzo_optimizer_clip(run->engine.optimizer, run->config.clip));
    MEZZO_TRY(mezzo_scaler_step(run->engine.scaler, run->engine.optimizer));
    MEZZO_TRY(mezzo_scaler_update(run->engine.scaler));
    MEZZO_TRY(mezzo_optimizer_zero_grad(run->engine.optimizer));
    return MEZZO_OK;
}

mezzo_status mz_run_step(mz_training *run) {
    int64_t step = run->step + 1;
    run->engine.readout.sum[step & 1] = 0;
    MZ_INJECT_AT(run, step, 0);
    MZ_INJECT_DROP(run, step);
    MZ_INJECT_PARAMETER(run);
    MEZZO_TRY(mz_guard_begin_step(run, step));
    for (int64_t i = 0; i < run->config.grad_accum; i++)
        MEZZO_TRY(run_micro(run, step, i));
    MEZZO_TRY(mz_batch_begin(run->engine.device, &run->engine.update));
    mezzo_status status = run_update(run);
    if (status != MEZZO_OK)
        mz_batch_cancel(run->engine.device);
    MEZZO_TRY(status);
    MEZZO_TRY(mz_batch_end(run->engine.device));
    if (run->engine.counting) // gradients stay in memory, unscaled, until the next run writes or clears them
        MEZZO_TRY(mz_magnitudes_gradients(run->engine.magnitudes, run->engine.params));
    MEZZO_TRY(mz_optimizer_fetch(run->engine.optimizer, STATE_SLOT + (int)(step & 1)));
    MEZZO_TRY(mz_scaler_fetch(run->engine.scaler, SCALER_SLOT + (int)(step & 1)));
    run->step = step;
    return MEZZO_OK;
}

static mezzo_status read_one(mz_training *run, int64_t step) {
    mz_readout *r = &run->engine.readout;
    const void *host;
    for (int slot = 0; slot < MZ_LOSS_SLOTS; slot++)
        if (r->pending[slot] == step)
            MEZZO_TRY(collect_loss(run, slot));
    r->last.step = step;
    r->last.loss = r->sum[step & 1] / (double)run->config.grad_accum;
    if (run->guard.batch[step & 1][0] != '\0') // an empty batch stood for it
        r->last.loss = (double)NAN;
    MEZZO_TRY(run->engine.device->backend->fetched(run->engine.device, STATE_SLOT + (int)(step & 1), &host));
    memcpy(&r->last.state, host, sizeof r->last.state);
    MEZZO_TRY(run->engine.device->backend->fetched(run->engine.device, SCALER_SLOT + (int)(step & 1), &host));
    memcpy(&r->last.scaler, host, sizeof r->last.scaler);
    return MEZZO_OK;
}

mezzo_status mz_run_read_step(mz_training *run, bool all, bool *fresh) {
    int64_t newest = all ? run->step : run->step - run->engine.readout.lag;
    *fresh = false;
    if (newest <= run->engine.readout.last.step || newest <= run->first_step)
        return MEZZO_OK;
    MEZZO_TRY(read_one(run, newest));
    *fresh = true;
    return MEZZO_OK;
}

void mz_run_forget_pending(mz_training *run) {
    memset(run->engine.readout.pending, 0, sizeof run->engine.readout.pending);
    run->engine.readout.sum[0] = run->engine.readout.sum[1] = 0;
}
