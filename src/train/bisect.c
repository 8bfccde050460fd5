// Finds the first bad step of a finished run, from a checkpoint on, and writes nothing.
#include <math.h>

#include "train/run.h"

static void fill(const mz_fault *f, mezzo_bisect_result *out) {
    out->found = true;
    out->step = f->step;
    out->micro = f->micro;
    snprintf(out->kind, sizeof out->kind, "%s", f->kind);
    snprintf(out->op, sizeof out->op, "%s", f->op);
    snprintf(out->module, sizeof out->module, "%s", f->module);
    snprintf(out->phase, sizeof out->phase, "%s", f->phase);
    snprintf(out->dtype, sizeof out->dtype, "%s", f->dtype);
    snprintf(out->text, sizeof out->text, "%s", f->text);
}

// Takes one step. A step that the guard calls bad ends the search; so does overflow that a lower loss scale does not
// remove.
static mezzo_status try_step(mz_training *run, mezzo_bisect_result *out) {
    mz_guard *g = &run->guard;
    const mz_step_report *last = &run->engine.readout.last;
    bool fresh;
    MEZZO_TRY(mz_run_step(run));
    MEZZO_TRY(mz_run_read_step(run, true, &fresh));
    out->last_step = run->step;
    mz_fault fault = {.step = last->step, .kinds = last->state.halted};
    g->in_a_row = last->state.last_found_inf ? g->in_a_row + 1 : 0;
    if (!last->state.halted && g->in_a_row < run->config.max_skips + (run->config.max_skips == 0))
        return MEZZO_OK;
    if (!last->state.halted)
        snprintf(fault.kind, sizeof fault.kind, "overflow");
    MEZZO_TRY(mz_guard_diagnose(run, g->begin[fault.step & 1], &fault));
    fill(&fault, out);
    return MEZZO_OK;
}

static mezzo_status search(mz_training *run, mezzo_bisect_result *out) {
    run->bisecting = true;
    run->engine.readout.lag = 0;
    if (run->config.resume[0] == '\0')
        return mz_fail(MEZZO_ERR_INVALID, "train.resume is not set: name a checkpoint from before the problem "
                                          "(--resume RUN/checkpoints/step-…), or auto for the newest one");
    if (!run->guard.on) {
        mz_guard_close(run);
        MEZZO_TRY(mz_guard_open(run));
    }
    MEZZO_TRY(mz_run_start(run));
    out->first_step = run->step;
    out->last_step = run->step;
    while (run->step < run->config.steps && !out->found) {
        if (run->hooks.stop != NULL && *run->hooks.stop)
            return mz_fail(MEZZO_ERR_INTERRUPTED, "stopped at step %lld", (long long)run->step);
        MEZZO_TRY(try_step(run, out));
        mz_run_event(run, MEZZO_EVENT_STEP, "");
    }
    return MEZZO_OK;
}

mezzo_status mezzo_run_bisect(const mezzo_config *config, const mezzo_hooks *hooks, mezzo_bisect_result *result) {
    MZ_REQUIRE(config, result);
    mz_training run;
    *result = (mezzo_bisect_result){0};
    mezzo_status status = mz_run_open(config, hooks, &run);
    if (status == MEZZO_OK)
        status = search(&run, result);
    mz_run_close(&run);
    return status;
}
