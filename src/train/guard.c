// Non-finite steps: which are FP16's ordinary search for a scale, which are trouble, where trouble started, and when to give up.
#include <math.h>

#include "train/run.h"

// FP16 finds its scale by overflowing: only this many times max_skips in a row are trouble while the scale can still fall.
#define SEARCH_FACTOR 3

// The micro batches of a step once more, op by op. The step moved nothing, so the weights are those it saw (where reports lag behind,
// those one step on). The loss scale may have fallen since; gradients are left zeroed.
static mezzo_status replay(mz_training *run, int64_t step, char *where, size_t size) {
    bool found = false;
    // Batches are counted from the run's start, resumes included.
    uint64_t after = mezzo_loader_position(run->batches) - (uint64_t)((run->step - step) * run->config.grad_accum);
    uint64_t first = after - (uint64_t)run->config.grad_accum;
    for (uint64_t k = first; k < after && !found; k++) {
        MEZZO_TRY(mezzo_loader_batch(run->batches, k, run->inputs, run->targets));
        MEZZO_TRY(mezzo_program_write(run->train, "tokens", run->inputs, run->count * sizeof *run->inputs));
        MEZZO_TRY(mezzo_program_write(run->train, "targets", run->targets, run->count * sizeof *run->targets));
        MEZZO_TRY(mezzo_program_check(run->train, run->scaler, mz_seed(run->config.seed, MZ_SEED_DROPOUT), k, &found,
                                      where, size));
    }
    if (!found)
        snprintf(where, size,
                 "every op's output was finite when the step was replayed: the sum of the gradients overflowed%s",
                 run->config.scaler.options.enabled ? ", or the smaller loss scale helped" : "");
    return mezzo_optimizer_zero_grad(run->optimizer);
}

static mezzo_status give_up(mz_training *run) {
    mz_guard *g = &run->guard;
    if (g->where[0] == '\0')
        MEZZO_TRY(replay(run, run->readout.last.step, g->where, sizeof g->where));
    return mz_fail(
        MEZZO_ERR_NUMERIC,
        "step %lld: %lld steps in a row were not finite, loss scale %g; first: %s. Use a smaller learning rate, or %s",
        (long long)run->readout.last.step, (long long)g->in_a_row, (double)run->readout.last.scaler.scale, g->where,
        run->config.program.precision == MEZZO_PRECISION_FP16 ? "bf16" : "fp32 for the module it names");
}

static mezzo_status warn(mz_training *run) {
    char line[1024];
    mz_guard *g = &run->guard;
    MEZZO_TRY(replay(run, run->readout.last.step, g->where, sizeof g->where));
    snprintf(line, sizeof line, "step %lld was skipped, loss or gradients were not finite; first: %s",
             (long long)run->readout.last.step, g->where);
    mz_run_event(run, MEZZO_EVENT_WARNING, line);
    return MEZZO_OK;
}

mezzo_status mz_run_guard(mz_training *run) {
    mz_guard *g = &run->guard;
    const mz_step_report *last = &run->readout.last;
    const mz_update_attrs *scaler = &run->scaler->update;
    if (!last->state.last_found_inf && isfinite(last->loss)) {
        *g = (mz_guard){0};
        return MEZZO_OK;
    }
    bool scaling = scaler->enabled;
    bool at_floor = scaling && scaler->min_scale > 0 && (double)last->scaler.scale <= scaler->min_scale;
    g->in_a_row++;
    g->floor_in_a_row = at_floor ? g->floor_in_a_row + 1 : 0;
    if (g->in_a_row == 1)
        g->first_step = last->step;
    if (!scaling && g->in_a_row == 1)
        MEZZO_TRY(warn(run));
    int64_t most = run->config.max_skips;
    bool hopeless = scaling ? g->floor_in_a_row >= most || g->in_a_row >= SEARCH_FACTOR * most : g->in_a_row >= most;
    return most > 0 && hopeless ? give_up(run) : MEZZO_OK;
}
