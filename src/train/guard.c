// Handles bad steps: decides which tensors are checked, which overflows belong to FP16's ordinary search for a scale,
// and what follows others.
#include "train/guard.h"

#include <math.h>

#include "train/run.h"
#include "backend/inspect.h"

// FP16 finds its scale by overflows: while the scale can fall, only this multiple of max_skips in a row is an error.
#define SEARCH_FACTOR     3
// The number of backward's values whose underflow is inspected, where the format is FP16.
#define GRADIENTS_SAMPLED 4

mezzo_status mz_guard_open(mz_training *run) {
    const mz_run_config *c = &run->config;
    bool stops = run->bisecting && c->guard_policy == MZ_GUARD_OFF; // without a guard a search would find nothing
    run->guard.policy = stops ? MZ_GUARD_STOP : (int)c->guard_policy;
    run->guard.on = run->guard.policy != MZ_GUARD_OFF;
    if (c->guard_spike != MZ_SPIKE_OFF)
        MEZZO_TRY(mz_spikes_create(c->guard_spike_window, &run->guard.spikes));
    if (!run->guard.on)
        return MEZZO_OK;
    const mz_monitor_options monitor = {.state = run->engine.session.optimizer->d_state,
                                        .activations = (int)c->guard_activations,
                                        .sample = c->guard_sample,
                                        .limit = (float)c->guard_limit,
                                        .gradients = GRADIENTS_SAMPLED};
    return mz_program_monitor(run->engine.session.train, &monitor);
}

void mz_guard_close(mz_training *run) {
    mz_spikes_free(&run->guard.spikes);
    if (run->guard.found != NULL)
        run->engine.device->backend->release(run->engine.device, run->guard.found);
    run->guard.found = NULL;
}

mezzo_status mz_guard_arm(mz_training *run) {
    mz_guard *g = &run->guard;
    mezzo_scaler_state scaler;
    MEZZO_TRY(mz_optimizer_read_state(run->engine.session.optimizer, &g->before));
    g->before.bad = g->before.halted = 0;
    g->before.guard = 0;
    MEZZO_TRY(mezzo_scaler_get_state(run->engine.session.scaler, &scaler));
    g->scale = (float)scaler.scale;
    g->worked_scale = scaler.growth_tracker > 0 ? g->scale : 0;
    if (g->on)
        g->before.guard = MZ_GUARD_ON | (run->engine.session.scaler->update.enabled ? 0 : MZ_GUARD_GRADIENTS);
    return mz_optimizer_write_state(run->engine.session.optimizer, &g->before);
}

// --- batches -------------------------------------------------------------------------------------
mezzo_status mz_guard_draw(mz_training *run, uint64_t position, char *fault, size_t size) {
    fault[0] = '\0';
    run->drawn = 0;
    return mz_source_draw(run->data, position, run->guard.on ? fault : NULL, size);
}

mezzo_status mz_guard_bad_batch(mz_training *run) {
    static const int32_t bad = MZ_BAD_BATCH;
    return run->engine.device->backend->write(run->engine.device, &run->engine.session.optimizer->d_state->bad, &bad,
                                              sizeof bad);
}

// --- parameters ----------------------------------------------------------------------------------
// Adds n elements of one format as `parts` inputs of the call.
static void add_parts(mz_call *call, const mz_tensor *flat, int parts) {
    int64_t n = mz_shape_count(&flat->shape), part = (int64_t)mz_align_up((size_t)(n / parts + 1), 32);
    for (int64_t from = 0; from < n; from += part) {
        mz_tensor *t = &call->in[call->n_in++];
        *t = *flat;
        t->data = (char *)flat->data + (size_t)mz_tensor_index(flat, from) * mezzo_dtype_size(flat->dtype);
        t->shape.dim[0] = part < n - from ? part : n - from;
    }
}

// Inspects every FP32 master, frozen parameters included, and the low copies that serve as the other masters.
static mezzo_status look_at_parameters(mz_training *run) {
    const mezzo_params *p = run->engine.session.params;
    mz_call call = {.op = MZ_OP_inspect, .n_out = 2, .numerics = {MEZZO_F32, MEZZO_F32, MEZZO_F32}};
    const mz_tensor masters = mz_tensor_f32(p->master, p->fp32_shards),
                    frozen = mz_tensor_f32(p->master + p->frozen_at, p->frozen_fp32);
    const int parts = p->master_format == MEZZO_MASTER_FP32 ? MZ_MAX_IN : MZ_MAX_IN / 2;
    add_parts(&call, &masters, p->frozen_fp32 > 0 ? parts / 2 : parts);
    add_parts(&call, &frozen, parts / 2);
    for (int i = 0; i < p->n_low_copies && p->master_format != MEZZO_MASTER_FP32; i++)
        if (p->low_copies[i].dtype == MEZZO_BF16) {
            mz_tensor shadows = {
                .data = p->low_copies[i].data, .dtype = MEZZO_BF16, .shape = {1, {p->low_copy_elements}}};
            add_parts(&call, &shadows, MZ_MAX_IN / 2);
        }
    call.attrs.bad_first = call.attrs.bad_rest = MZ_BAD_PARAMETERS;
    if (run->guard.found == NULL)
        MEZZO_TRY(run->engine.device->backend->alloc(run->engine.device, MZ_MAX_IN * sizeof(mz_inspection),
                                                     &run->guard.found));
    call.out[0] = mz_tensor_bytes(run->guard.found, (size_t)call.n_in * sizeof(mz_inspection));
    call.out[1] =
        mz_tensor_bytes(run->engine.session.optimizer->d_state, sizeof *run->engine.session.optimizer->d_state);
    return mz_run_once(run->engine.device, &call);
}

mezzo_status mz_guard_bad_parameter(mz_training *run, int *index, mz_inspection *values) {
    const mezzo_params *p = run->engine.session.params;
    *index = -1;
    for (int i = 0; i < (int)p->n && *index < 0; i++) {
        mz_tensor parameter = mz_params_tensor(p, i);
        MEZZO_TRY(mz_program_inspect(run->engine.session.train, &parameter, 1, 0, values));
        if (values->nans + values->infs > 0)
            *index = i;
    }
    return MEZZO_OK;
}

static mezzo_status look_at_moments(mz_training *run) {
    const mezzo_optimizer *o = run->engine.session.optimizer;
    mz_call call = {.op = MZ_OP_inspect, .n_out = 2, .numerics = {MEZZO_F32, MEZZO_F32, MEZZO_F32}};
    for (int m = 0; m < o->n_moments; m++) {
        mz_tensor moments = mz_optimizer_moment_view(o, m, 0, o->moment_elements[m]);
        add_parts(&call, &moments, MZ_MAX_IN / MZ_MOMENTS);
    }
    if (call.n_in == 0)
        return MEZZO_OK;
    call.attrs.bad_first = call.attrs.bad_rest = MZ_BAD_MOMENTS;
    call.attrs.limit = MZ_GUARD_MOMENT_LIMIT;
    call.out[0] = mz_tensor_bytes(run->guard.found, (size_t)call.n_in * sizeof(mz_inspection));
    call.out[1] = mz_tensor_bytes(o->d_state, sizeof *o->d_state);
    return mz_run_once(run->engine.device, &call);
}

mezzo_status mz_guard_bad_moment(mz_training *run, int *which, int *index, mz_inspection *values) {
    const mezzo_optimizer *o = run->engine.session.optimizer;
    *which = *index = -1;
    for (int m = 0; m < o->n_moments; m++)
        for (int i = 0; i < o->n; i++)
            for (size_t k = o->begin[i]; k < o->begin[i + 1]; k++) {
                const mz_segment *s = &o->segments[k];
                if (s->count == 0 || mz_optimizer_moment_name(o, m, i) == NULL) // the moment is another rank's, or does
                                                                                // not exist
                    continue;
                mz_tensor moment = mz_optimizer_moment_view(o, m, s->state_offset + s->first, s->count);
                MEZZO_TRY(mz_program_inspect(run->engine.session.train, &moment, 1, MZ_GUARD_MOMENT_LIMIT, values));
                if (!mz_inspection_bad(values))
                    continue;
                *which = m;
                *index = i;
                return MEZZO_OK;
            }
    return MEZZO_OK;
}

mezzo_status mz_guard_begin_step(mz_training *run, int64_t step, bool looks) {
    int64_t every = run->config.guard_parameters_every;
    run->guard.begin[step & 1] = run->data->position;
    run->guard.batch[step & 1][0] = '\0';
    if (!looks || !run->guard.on || every == 0 || step % every != 0)
        return MEZZO_OK;
    MEZZO_TRY(look_at_parameters(run));
    return look_at_moments(run);
}

// --- bad steps -----------------------------------------------------------------------------------
static uint64_t end_of(const mz_training *run, int64_t step) {
    return run->guard.begin[step & 1] + mz_run_batches(run);
}

// Goes back to the end of the bad step; steps that were queued since changed nothing. The optimizer's state is that
// before the step, and nothing is halted any more.
static mezzo_status rewind_to(mz_training *run, int64_t bad, bool count) {
    mz_guard *g = &run->guard;
    run->step = bad;
    run->data->position = end_of(run, bad);
    g->before.skipped += count;
    run->engine.readout.last.state = g->before;
    return mz_optimizer_write_state(run->engine.session.optimizer, &g->before);
}

static mezzo_status skip(mz_training *run, const mz_fault *fault) {
    mz_guard *g = &run->guard;
    int64_t most = run->config.max_skips;
    g->in_a_row++;
    if (most > 0 && g->in_a_row >= most) {
        MEZZO_TRY(mz_guard_record(run, fault, "stop"));
        return mz_guard_stop(run, fault, true, true);
    }
    MEZZO_TRY(mz_guard_record(run, fault, "skip"));
    return rewind_to(run, fault->step, true);
}

static mezzo_status roll_back(mz_training *run, const mz_fault *fault) {
    mz_guard *g = &run->guard;
    if (g->rollbacks_here >= run->config.guard_max_rollbacks) {
        MEZZO_TRY(mz_guard_record(run, fault, "stop"));
        bool halted = fault->kinds != 0; // a jump is found after its step has changed the weights
        return mz_guard_stop(run, fault, halted, halted && !fault->parameter);
    }
    MEZZO_TRY(mz_guard_record(run, fault, "rollback"));
    return mz_guard_roll_back(run, fault->step, end_of(run, fault->step));
}

static mezzo_status act(mz_training *run, const mz_fault *fault) {
    int policy = run->guard.policy;
    if (policy == MZ_GUARD_SKIP && fault->parameter) // the batch is not the cause, and no other batch would help
        policy = run->config.checkpoint_every >= 0 && mz_guard_can_roll_back(run) ? MZ_GUARD_ROLLBACK : MZ_GUARD_STOP;
    if (policy == MZ_GUARD_ROLLBACK)
        return roll_back(run, fault);
    if (policy == MZ_GUARD_SKIP)
        return skip(run, fault);
    MEZZO_TRY(mz_guard_record(run, fault, "stop"));
    return mz_guard_stop(run, fault, true, !fault->parameter);
}

// Handles a bad step; nothing has changed on the device since.
static mezzo_status bad_step(mz_training *run) {
    mz_guard *g = &run->guard;
    const mz_step_report *last = &run->engine.readout.last;
    mz_fault fault = {.step = last->step, .kinds = last->state.halted};
    g->bad_steps++;
    g->last_bad = fault.step;
    MEZZO_TRY(mz_guard_diagnose(run, g->begin[fault.step & 1], &fault));
    return act(run, &fault);
}

mezzo_status mz_guard_check_before_save(mz_training *run, bool *sound) {
    mz_inspection values;
    int index = -1, which = -1, moment;
    if (run->guard.on)
        MEZZO_TRY(mz_guard_bad_parameter(run, &index, &values));
    if (run->guard.on && index < 0)
        MEZZO_TRY(mz_guard_bad_moment(run, &which, &moment, &values));
    *sound = index < 0 && which < 0;
    bool unsound = !*sound;
    if (run->guard.on)
        MEZZO_TRY(mz_run_any(run, "soundness", unsound, &unsound));
    *sound = !unsound;
    if (*sound)
        return MEZZO_OK;
    mz_fault fault = {.step = run->step, .kinds = which < 0 ? MZ_BAD_PARAMETERS : MZ_BAD_MOMENTS};
    MEZZO_TRY(mz_guard_diagnose(run, run->guard.begin[run->step & 1], &fault));
    return act(run, &fault);
}

// --- overflow: the loss scale handles it, up to a limit ------------------------------------------
static mezzo_status name_overflow(mz_training *run, mz_fault *fault) {
    mz_guard *g = &run->guard;
    float now;
    MEZZO_TRY(run->engine.device->backend->read(run->engine.device, &now,
                                                &run->engine.session.scaler->head.block->scale, sizeof now));
    // The replay uses the scale of the overflow. Where results are read late, the weights may be one step further.
    MEZZO_TRY(mezzo_scaler_set_scale(run->engine.session.scaler, (double)g->scale));
    MEZZO_TRY(mz_guard_diagnose(run, g->begin[fault->step & 1], fault));
    return mezzo_scaler_set_scale(run->engine.session.scaler, (double)now);
}

static mezzo_status overflow(mz_training *run) {
    mz_guard *g = &run->guard;
    const mz_step_report *last = &run->engine.readout.last;
    const mz_update_attrs *scaler = &run->engine.session.scaler->update;
    mz_fault fault = {.step = last->step, .kinds = MZ_BAD_GRADIENTS, .kind = "overflow"};
    bool at_floor = scaler->enabled && scaler->min_scale > 0 && (double)last->scaler.scale <= scaler->min_scale;
    g->before = last->state; // the scaler skipped this step
    g->in_a_row++;
    g->floor_in_a_row = at_floor ? g->floor_in_a_row + 1 : 0;
    // A scale that has not worked yet is under trial; one that has worked should not overflow. Without a scale every
    // overflow is a fault, which the guard handles, unless it is off.
    bool unexplained = g->in_a_row == 1 && (!scaler->enabled || g->scale <= g->worked_scale);
    int64_t most = run->config.max_skips, search = scaler->enabled ? SEARCH_FACTOR * most : most;
    bool hopeless = most > 0 && (g->floor_in_a_row >= most || g->in_a_row >= search);
    if (unexplained || hopeless) {
        MEZZO_TRY(name_overflow(run, &fault));
        MEZZO_TRY(mz_guard_record(run, &fault, hopeless ? "stop" : scaler->enabled ? "backoff" : "skip"));
    }
    g->scale = last->scaler.scale;
    return hopeless ? mz_guard_stop(run, &fault, false, true) : MEZZO_OK;
}

// --- jumps of the loss ---------------------------------------------------------------------------
static mezzo_status look_for_jump(mz_training *run) {
    const mz_run_config *c = &run->config;
    const mz_step_report *last = &run->engine.readout.last;
    if (c->guard_spike == MZ_SPIKE_OFF)
        return MEZZO_OK;
    double score = mz_spikes_see(&run->guard.spikes, last->loss, c->guard_spike_score);
    if (score < c->guard_spike_score)
        return MEZZO_OK;
    mz_fault fault = {.step = last->step, .kind = "spike"};
    snprintf(fault.text, sizeof fault.text, "step %lld: the loss jumped to %.4g, %.1f deviations above the median",
             (long long)last->step, last->loss, score);
    if (c->guard_spike == MZ_SPIKE_ROLLBACK)
        return roll_back(run, &fault);
    MEZZO_TRY(mz_guard_record(run, &fault, c->guard_spike == MZ_SPIKE_STOP ? "stop" : "none"));
    return c->guard_spike == MZ_SPIKE_STOP ? mz_guard_stop(run, &fault, false, false) : MEZZO_OK;
}

static void good_step(mz_guard *g, const mz_step_report *last) {
    g->in_a_row = g->floor_in_a_row = 0;
    g->before = last->state;
    g->worked_scale = g->scale > g->worked_scale ? g->scale : g->worked_scale;
    g->scale = last->scaler.scale;
}

// --- moments that a step overflowed ----------------------------------------------------------------
// Looks for moments that are not finite: finite gradients may have squares that overflow. That step has already changed
// the weights, so only an older checkpoint helps. The norm, which is read anyway, shows when a search is due.
static mezzo_status look_for_bad_moment(mz_training *run) {
    const mz_step_report *last = &run->engine.readout.last;
    const double worth_a_look = 1e14; // the norm's square is below the limit by a factor of 100, for (1 - beta2)
    if (!run->guard.on || !(last->state.norm * last->state.last_clip > worth_a_look))
        return MEZZO_OK;
    mz_inspection values;
    int which, index;
    MEZZO_TRY(mz_guard_bad_moment(run, &which, &index, &values));
    bool any = false;
    MEZZO_TRY(mz_run_any(run, "moments", which >= 0, &any));
    if (!any)
        return MEZZO_OK;
    mz_fault fault = {.step = last->step, .parameter = true};
    if (which >= 0)
        mz_guard_describe_moment(run, which, index, &values, &fault);
    MEZZO_TRY(mz_run_share_fault(run, which >= 0 ? MZ_KNOWS_SOURCE : MZ_KNOWS_NOTHING, &fault));
    run->guard.bad_steps++;
    bool back = run->guard.policy == MZ_GUARD_ROLLBACK || run->guard.policy == MZ_GUARD_SKIP;
    if (back && run->config.checkpoint_every >= 0 && mz_guard_can_roll_back(run))
        return roll_back(run, &fault);
    MEZZO_TRY(mz_guard_record(run, &fault, "stop"));
    return mz_guard_stop(run, &fault, false, false);
}

mezzo_status mz_run_guard(mz_training *run) {
    mz_guard *g = &run->guard;
    const mz_step_report *last = &run->engine.readout.last;
    if (last->state.halted)
        return bad_step(run);
    if (last->state.last_found_inf)
        return overflow(run);
    good_step(g, last);
    int64_t step = last->step;
    MEZZO_TRY(look_for_bad_moment(run));
    return last->step == step ? look_for_jump(run) : MEZZO_OK; // otherwise the run was rolled back
}
