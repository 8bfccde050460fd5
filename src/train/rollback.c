// Handles a bad step that is not skipped: the run goes back to the newest checkpoint, or ends.
#include <math.h>

#include "checkpoint/checkpoint.h"
#include "train/run.h"

bool mz_guard_can_roll_back(const mz_training *run) {
    char path[4096];
    return mezzo_checkpoint_find(run->checkpoints, false, path, sizeof path) == MEZZO_OK;
}

static mezzo_status halve_scale(mz_training *run) {
    mezzo_scaler_state state;
    const mz_update_attrs *scaler = &run->engine.session.scaler->update;
    if (!scaler->enabled)
        return MEZZO_OK;
    MEZZO_TRY(mezzo_scaler_get_state(run->engine.session.scaler, &state));
    state.scale = fmax(state.scale * 0.5, scaler->min_scale);
    state.growth_tracker = 0;
    return mezzo_scaler_set_state(run->engine.session.scaler, &state);
}

mezzo_status mz_guard_go_on(mz_training *run, uint64_t data) {
    MEZZO_TRY(halve_scale(run));
    MEZZO_TRY(mezzo_optimizer_zero_grad(run->engine.session.optimizer));
    run->data->position = data;
    return mz_guard_arm(run);
}

mezzo_status mz_guard_roll_back(mz_training *run, int64_t bad, uint64_t data) {
    mz_guard *g = &run->guard;
    char path[4096];
    MEZZO_TRY(run->engine.device->backend->sync(run->engine.device));
    MEZZO_TRY(mezzo_checkpoint_find(run->checkpoints, false, path, sizeof path));
    MEZZO_TRY(mz_run_load(run, path));
    MEZZO_TRY(mz_guard_go_on(run, data));
    g->rollbacks++;
    g->rollbacks_here = run->step > g->rolled_to ? 1 : g->rollbacks_here + 1;
    g->rolled_to = run->step;
    g->in_a_row = g->floor_in_a_row = 0;
    mz_spikes_forget(&g->spikes);
    run->engine.readout.last = (mz_step_report){.step = run->step, .loss = (double)NAN, .state = g->before};
    run->engine.readout.last.scaler.scale = g->scale;
    if (run->step < run->first_step)
        run->first_step = run->step;
    mz_log("notice", "step %lld: back to %s; the data continues at micro batch %llu", (long long)bad, path,
           (unsigned long long)data);
    if (run->report.metrics == NULL)
        return MEZZO_OK;
    MEZZO_TRY(mz_run_cut_metrics(run));
    return mz_run_recall_health(run);
}

// Goes back to the state before the bad step. The device has changed nothing since, so only counters and the data
// position go back.
static mezzo_status before_bad_step(mz_training *run, int64_t bad) {
    mz_guard *g = &run->guard;
    MEZZO_TRY(run->engine.device->backend->sync(run->engine.device));
    MEZZO_TRY(mz_optimizer_write_state(run->engine.session.optimizer, &g->before));
    run->engine.readout.last.state = g->before;
    run->step = bad - 1;
    run->data->position = g->begin[bad & 1];
    return MEZZO_OK;
}

mezzo_status mz_guard_stop(mz_training *run, const mz_fault *fault, bool halted, bool save) {
    char row[128] = "";
    const char *what = halted && save ? "the checkpoint from before it" : "the newest checkpoint";
    if (run->guard.in_a_row > 1)
        snprintf(row, sizeof row,
                 "step %lld: %lld steps in a row were not finite, loss scale %g; the last: ", (long long)fault->step,
                 (long long)run->guard.in_a_row, (double)run->guard.scale);
    if (halted)
        MEZZO_TRY(before_bad_step(run, fault->step));
    save = save && mz_run_keeps(run) && run->config.checkpoint_every >= 0; // only a run with a folder saves
    if (save)
        MEZZO_TRY(mz_run_save(run));
    bool any = run->report.result.checkpoint[0] != '\0';
    return mz_fail(MEZZO_ERR_NUMERIC, "%s%s; %s%s%s", row, fault->text, any ? what : "there is no checkpoint",
                   any ? " is " : "", run->report.result.checkpoint);
}
