// Runs one optimizer step, and reads its results without waiting for it.
#include <math.h>

#include "train/inject.h"
#include "train/run.h"

uint64_t mz_run_batches(const mz_training *run) {
    return (uint64_t)(run->config.grad_accum * run->engine.size);
}

static int64_t micro_of(const mz_training *run, int64_t i) {
    return mz_micro_of(run->config.shard, run->engine.rank, run->engine.size, run->config.grad_accum, i);
}

uint64_t mz_run_batch(const mz_training *run, uint64_t begin, int64_t i) {
    return begin + (uint64_t)micro_of(run, i);
}

static mezzo_status draw(mz_training *run, uint64_t batch, char *fault, size_t size) {
    const double start = mz_seconds();
    const mezzo_status status = mz_guard_draw(run, batch, fault, size);
    run->report.host[MZ_HOST_DRAW] += mz_seconds() - start;
    run->data_failed = status != MEZZO_OK;
    return status;
}

// Finds each micro batch's share in the loss of a step, which is a mean over all targets that count: n × its own / all.
// A batch is a function of its number, so every rank finds the same shares without communication. The last batch drawn
// is the one that runs first, which need not be drawn again. *empty: no target of the step counts, and none of its
// batches is bad.
static mezzo_status find_shares(mz_training *run, int64_t step, bool *empty) {
    const uint64_t n = mz_run_batches(run), first = (uint64_t)micro_of(run, 0);
    double **shares = &run->shares[step & 1], all = 0;
    bool bad = false;
    char fault[sizeof run->guard.batch[0]];
    *empty = false;
    if (!run->task->masks)
        return MEZZO_OK;
    if (*shares == NULL)
        *shares = mz_alloc(n, sizeof **shares);
    if (*shares == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (uint64_t i = 1; i <= n; i++) {
        const uint64_t at = (first + i) % n;
        MEZZO_TRY(draw(run, run->data->position + at, fault, sizeof fault));
        (*shares)[at] = (double)run->task->kind->weight(&run->data->examples);
        all += (*shares)[at];
        bad = bad || fault[0] != '\0';
    }
    run->drawn = fault[0] == '\0' && run->data->spoil == NULL ? run->data->position + first + 1 : 0;
    for (uint64_t i = 0; i < n; i++)
        (*shares)[i] = all > 0 ? (*shares)[i] * (double)n / all : 1;
    *empty = all == 0 && !bad;
    return MEZZO_OK;
}

mezzo_status mz_run_write_share(mz_training *run, int64_t step, int64_t i) {
    if (!run->engine.plan.program.loss_share)
        return MEZZO_OK;
    const float share = (float)run->shares[step & 1][micro_of(run, i)];
    return mezzo_program_write(run->engine.session.train, "loss_share", &share, sizeof share);
}

// Runs forward and backward of the next micro batch, and adds its gradients.
static mezzo_status run_micro(mz_training *run, int64_t step, int64_t i) {
    const uint64_t batch = mz_run_batch(run, run->data->position, i);
    char fault[sizeof run->guard.batch[0]];
    MZ_INJECT_AT_DATA(run, step, i, run->data->position);
    mz_profile_push(run->profile, "data");
    if (run->drawn == batch + 1) {
        run->drawn = 0; // a replay reads the data again
        fault[0] = '\0';
    } else {
        MEZZO_TRY(draw(run, batch, fault, sizeof fault));
    }
    mz_profile_pop(run->profile);
    if (fault[0] != '\0') {
        memcpy(run->guard.batch[step & 1], fault, sizeof fault);
        MEZZO_TRY(mz_guard_bad_batch(run));
    }
    const double start = mz_seconds();
    mz_profile_push(run->profile, "inputs");
    MEZZO_TRY(mz_examples_write(&run->data->examples, run->engine.session.train));
    const mz_input *positions = mz_examples_input(&run->data->examples, MZ_ROLE_POSITIONS);
    if (positions != NULL)
        mz_rates_count(&run->report.rates, positions);
    MEZZO_TRY(mz_run_write_share(run, step, i));
    mz_profile_pop(run->profile);
    run->report.host[MZ_HOST_WRITE] += mz_seconds() - start;
    bool counts = run->engine.counting && i == 0;
    if (counts)
        MEZZO_TRY(mz_magnitudes_begin(run->engine.magnitudes, run->engine.session.train));
    const bool compares = run->engine.comparing && i == 0;
    if (compares)
        mz_counterfactual_begin(run->engine.counterfactual, run->engine.session.train);
    mz_profile_push(run->profile, "micro");
    mezzo_status status =
        mezzo_step_micro(run->engine.session.step, mezzo_seed(run->config.seed, MEZZO_SEED_DROPOUT), batch);
    mz_profile_pop(run->profile);
    if (compares)
        mz_counterfactual_end(run->engine.counterfactual, run->engine.session.train);
    if (counts)
        mz_magnitudes_end(run->engine.magnitudes, run->engine.session.train);
    MEZZO_TRY(status);
    MZ_INJECT_GRADIENT(run);
    return MEZZO_OK;
}

// Runs all of this rank's micro batches. losses: the result of each; NULL: they are not read.
static mezzo_status run_micros(mz_training *run, int64_t step, double *losses) {
    mezzo_program *program = run->engine.session.train;
    const mezzo_dtype dtype = program->c.graph->values[program->c.graph->loss].dtype;
    unsigned char loss[8];
    for (int64_t i = 0; i < run->config.grad_accum; i++) {
        MEZZO_TRY(run_micro(run, step, i));
        if (losses == NULL)
            continue;
        MEZZO_TRY(mezzo_program_read(program, "loss", loss, mezzo_dtype_size(dtype)));
        MEZZO_TRY(mezzo_convert(loss, dtype, &losses[i], MEZZO_F64, 1));
    }
    return MEZZO_OK;
}

bool mz_run_asks_save(mz_training *run) {
    const sig_atomic_t now = run->hooks.save != NULL ? *run->hooks.save : 0;
    const bool asks = now != run->saves_asked;
    run->saves_asked = now;
    return asks;
}

// Returns what this rank asks for: ranks learn of a save with the step; a process without ranks reads the flag itself.
static int asked_of(mz_training *run) {
    int asked = run->hooks.stop != NULL && *run->hooks.stop != 0 ? MZ_ASKED_STOP : 0;
    if (run->engine.size > 1 && mz_run_asks_save(run))
        asked |= MZ_ASKED_SAVE;
    return asked;
}

mezzo_status mz_run_step(mz_training *run) {
    int64_t step = run->step + 1;
    char place[40];
    snprintf(place, sizeof place, "step %lld", (long long)step);
    mz_group_at(run->engine.group, place); // for the line about a rank that fails
    MZ_INJECT_AT(run, step, 0);
    MZ_INJECT_DROP(run, step);
    MZ_INJECT_PARAMETER(run);
    bool *empty = &run->empty[step & 1];
    MEZZO_TRY(find_shares(run, step, empty));
    MEZZO_TRY(mz_guard_begin_step(run, step, !*empty));
    if (*empty) { // there is nothing to learn: the device runs nothing, and nothing there changes
        run->data->position += mz_run_batches(run);
        run->engine.counting = run->engine.comparing = false;
        run->step = step;
        return MEZZO_OK;
    }
    const bool replays = mz_replay_due(run, step);
    MEZZO_TRY(run_micros(run, step, replays ? run->replay.losses[0] : NULL));
    if (replays)
        MEZZO_TRY(mz_replay_check(run, step, run_micros));
    mz_step_ask(run->engine.session.step, asked_of(run));
    // A step that is counted leaves its gradients unscaled in memory until the next run writes them.
    mz_profile_push(run->profile, "update");
    MEZZO_TRY(replays && mz_replay_updates(run) ? mz_replay_update(run, step, run->engine.counting)
                                                : mz_step_finish(run->engine.session.step, run->engine.counting));
    mz_profile_pop(run->profile);
    if (!replays || !mz_replay_updates(run))
        MZ_INJECT_UPDATE(run);
    run->data->position += mz_run_batches(run);
    if (run->engine.counting)
        MEZZO_TRY(mz_magnitudes_gradients(run->engine.magnitudes, run->engine.session.params));
    run->step = step;
    return MEZZO_OK;
}

static mezzo_status read_one(mz_training *run, int64_t step) {
    mz_step_report *last = &run->engine.readout.last;
    mz_step_values v;
    int back = 0; // steps that the device has taken since
    for (int64_t later = step + 1; later <= run->step; later++)
        back += !run->empty[later & 1];
    MEZZO_TRY(mz_step_values_of(run->engine.session.step, back, run->shares[step & 1], &v));
    *last = (mz_step_report){.step = step, .loss = v.loss, .state = v.state, .scaler = v.scaler, .asked = v.asked};
    if (run->guard.batch[step & 1][0] != '\0') // an empty batch replaced the bad one
        last->loss = (double)NAN;
    return MEZZO_OK;
}

mezzo_status mz_run_read_step(mz_training *run, bool all, bool *fresh) {
    mz_step_report *last = &run->engine.readout.last;
    const int64_t newest = all ? run->step : run->step - run->engine.readout.lag;
    int64_t step = newest;
    *fresh = false;
    if (newest <= last->step || newest <= run->first_step)
        return MEZZO_OK;
    if (run->empty[step & 1] && step == run->step && step - 1 > last->step && step - 1 > run->first_step)
        step--;                 // its report is still to come
    if (run->empty[step & 1]) { // the device still holds the last step with targets
        last->step = newest;
        return MEZZO_OK;
    }
    MEZZO_TRY(read_one(run, step));
    run->stopping = run->stopping || (last->asked & MZ_ASKED_STOP) != 0;
    run->saving = run->saving || (last->asked & MZ_ASKED_SAVE) != 0;
    *fresh = true;
    return MEZZO_OK;
}
