#include "train/replay.h"

#include <unistd.h>

#include "runtime/calls.h"
#include "train/run.h"

// --- checksums ---------------------------------------------------------------------------------------------------
static mezzo_status sum_some(mezzo_device *device, const mz_state_part *parts, int n, mz_checksum *sums) {
    mz_call call = {.op = MZ_OP_checksum, .n_in = n, .n_out = 1, .numerics = {MEZZO_F32, MEZZO_F32, MEZZO_F32}};
    for (int i = 0; i < n; i++)
        call.in[i] = mz_tensor_bytes((void *)(uintptr_t)parts[i].data, parts[i].bytes);
    call.out[0] = mz_tensor_bytes(sums, (size_t)n * sizeof *sums);
    return mz_run_once(device, &call);
}

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

// Computes on the device, and reads, a checksum of each part.
static mezzo_status sum_parts(mz_training *run, const mz_state_part *parts, size_t n, mz_checksum *sums) {
    mezzo_device *d = run->engine.device;
    mz_checksum *on_device = run->replay.sums;
    for (size_t from = 0, count; from < n; from += count) {
        count = least(n - from, MZ_REPLAY_SUMS);
        for (size_t i = 0; i < count; i += MZ_MAX_IN)
            MEZZO_TRY(sum_some(d, parts + from + i, (int)least(count - i, MZ_MAX_IN), on_device + i));
        MEZZO_TRY(d->backend->read(d, sums + from, on_device, count * sizeof *sums));
    }
    return MEZZO_OK;
}

static mezzo_status sum_gradients(mz_training *run, mz_checksum *sums) {
    MEZZO_TRY(mz_params_settle(run->engine.session.params));
    return sum_parts(run, run->replay.gradients, run->replay.n_gradients, sums);
}

static bool same_sums(const mz_checksum *a, const mz_checksum *b, size_t n) {
    return memcmp(a, b, n * sizeof *a) == 0;
}

// --- memory ------------------------------------------------------------------------------------------------------
// Returns whether a rank compares the shards that it owns: after an exchange the memory of other ranks' gradients, and
// between parameters, holds no result. Before it, all gradients are the rank's own.
bool mz_replay_has_shards(const mz_training *run) {
    const mz_ranks_options ranks = mz_session_ranks(&run->engine.session.options);
    return run->engine.size > 1 && !mz_ranks_add_late(&ranks);
}

// Finds the gradient of a parameter or, with shards, of a segment. *param: its parameter. No bytes: it has none here.
static mz_state_part gradient_at(const mz_training *run, size_t i) {
    const mezzo_params *p = run->engine.session.params;
    const mezzo_optimizer *o = run->engine.session.optimizer;
    if (!mz_replay_has_shards(run)) {
        const mz_param *one = &p->list[i];
        return (mz_state_part){"gradient", (int)i, (const char *)(p->grad + one->offset),
                               one->frozen ? 0 : (size_t)one->stored * sizeof(float)};
    }
    const mz_segment *s = &o->segments[i];
    if (s->count == 0)
        return (mz_state_part){0};
    const int64_t first = mz_layout_index(&s->layout, s->first),
                  end = mz_layout_index(&s->layout, s->first + s->count - 1) + 1;
    return (mz_state_part){"gradient", o->index[o->owner[i]],
                           (const char *)(p->grad + s->offset - s->grad_shift + first),
                           (size_t)(end - first) * sizeof(float)};
}

static mezzo_status list_gradients(mz_training *run) {
    mz_replay *r = &run->replay;
    const mz_session *s = &run->engine.session;
    const size_t n = mz_replay_has_shards(run) ? s->optimizer->n_segments : s->params->n;
    MEZZO_TRY(MZ_NEW(r->gradients, n + 1));
    for (size_t i = 0; i < n; i++) {
        const mz_state_part part = gradient_at(run, i);
        if (part.bytes > 0)
            r->gradients[r->n_gradients++] = part;
    }
    return MEZZO_OK;
}

static size_t gradient_bytes(const mz_training *run) {
    return (size_t)run->engine.session.params->grad_elements * sizeof(float);
}

static mezzo_status open_update(mz_training *run) {
    mz_replay *r = &run->replay;
    const mz_session *s = &run->engine.session;
    MEZZO_TRY(run->engine.device->backend->alloc(run->engine.device, gradient_bytes(run), &r->first));
    return mz_update_copy_create(s->step, s->optimizer, s->scaler, s->ranks, &r->update);
}

mezzo_status mz_replay_open(mz_training *run) {
    mz_replay *r = &run->replay;
    mezzo_device *d = run->engine.device;
    if (run->config.replay == 0)
        return MEZZO_OK;
    MEZZO_TRY(list_gradients(run));
    MEZZO_TRY(d->backend->alloc(d, MZ_REPLAY_SUMS * sizeof(mz_checksum), &r->sums));
    r->on = true;
    if (mz_replay_updates(run))
        MEZZO_TRY(open_update(run));
    for (int pass = 0; pass < MZ_REPLAY_PASSES; pass++) {
        MEZZO_TRY(MZ_NEW(r->losses[pass], (size_t)run->config.grad_accum));
        MEZZO_TRY(MZ_NEW(r->before[pass], r->n_gradients + 1));
        MEZZO_TRY(MZ_NEW(r->after[pass], r->update.n_parts + 1));
    }
    return MEZZO_OK;
}

// Returns whether the update is replayed, too; what ranks exchange at the step's end is part of it.
bool mz_replay_updates(const mz_training *run) {
    return run->config.replay_update || (run->engine.size > 1 && !mz_replay_has_shards(run));
}

size_t mz_replay_memory(const mz_training *run) {
    const mz_replay *r = &run->replay;
    const size_t update = r->first != NULL ? gradient_bytes(run) + r->update.bytes : 0;
    return r->on ? MZ_REPLAY_SUMS * sizeof(mz_checksum) + update : 0;
}

void mz_replay_close(mz_training *run) {
    mz_replay *r = &run->replay;
    mezzo_device *d = run->engine.device;
    for (int pass = 0; pass < MZ_REPLAY_PASSES; pass++) {
        MZ_FREE(r->losses[pass], r->before[pass], r->after[pass]);
    }
    mz_free(r->gradients);
    mz_update_copy_free(&r->update);
    if (d != NULL) {
        d->backend->release(d, r->first);
        d->backend->release(d, r->sums);
    }
    if (r->checked > 0)
        mz_log("notice", "%lld steps were computed twice: %lld differed", (long long)r->checked,
               (long long)r->differed);
    *r = (mz_replay){0};
}

bool mz_replay_due(const mz_training *run, int64_t step) {
    return run->replay.on && step % run->config.replay == 0;
}

// --- naming the op -----------------------------------------------------------------------------------------------
typedef struct marks { // checksums of what each call of the micro batches writes
    mz_training *run;
    uint64_t *sum, *again; // [micro batches][calls], and one of what the ranks exchanged
    size_t base;           // the first mark of the present micro batch
    bool second;
    mz_program_hook hook; // the hook that the program's owner had set
    void *user;
} marks;

static void mark(marks *m, size_t at, const mz_checksum *sums, size_t n) {
    mz_checksum all = {0};
    for (size_t i = 0; i < n; i++) {
        mz_checksum_add(&all, sums[i].weighted, 2 * i);
        mz_checksum_add(&all, sums[i].mixed, 2 * i + 1);
    }
    (m->second ? m->again : m->sum)[at] = all.mixed;
}

static mezzo_status mark_call(void *user, mezzo_program *p, size_t call) {
    marks *m = user;
    const mz_node *node = &p->c.graph->nodes[p->c.node[call]];
    mz_state_part out[MZ_MAX_OUT];
    mz_checksum sums[MZ_MAX_OUT];
    size_t n = 0;
    if (m->hook != NULL)
        MEZZO_TRY(m->hook(m->user, p, call));
    for (int k = 0; k < node->n_out; k++) {
        const mz_tensor t = node->out[k] >= 0 ? mz_program_tensor(p, node->out[k]) : mz_tensor_absent();
        if (mz_present(&t))
            out[n++] = (mz_state_part){.data = t.data, .bytes = mz_tensor_bytes_stored(&t)};
    }
    MEZZO_TRY(sum_parts(m->run, out, n, sums));
    mark(m, m->base + call, sums, n);
    return MEZZO_OK;
}

// Marks the ranks' sums in this rank's shards. The third pass, which writes its checksums later, is still to come.
static mezzo_status mark_exchange(marks *m) {
    const mz_replay *r = &m->run->replay;
    if (!mz_replay_has_shards(m->run))
        return MEZZO_OK;
    MEZZO_TRY(sum_gradients(m->run, r->before[2]));
    mark(m, (size_t)m->run->config.grad_accum * m->run->engine.session.train->c.n_calls, r->before[2], r->n_gradients);
    return MEZZO_OK;
}

static mezzo_status mark_pass(mz_training *run, int64_t step, marks *m) {
    mezzo_program *p = run->engine.session.train;
    char fault[sizeof run->guard.batch[0]];
    MEZZO_TRY(mezzo_step_drop(run->engine.session.step));
    for (int64_t i = 0; i < run->config.grad_accum; i++) {
        const uint64_t batch = mz_run_batch(run, run->data->position, i);
        m->base = (size_t)i * p->c.n_calls;
        MZ_INJECT_AT_DATA(run, step, i, run->data->position);
        MEZZO_TRY(mz_guard_draw(run, batch, fault, sizeof fault));
        MEZZO_TRY(mz_examples_write(&run->data->examples, p));
        MEZZO_TRY(mz_run_write_share(run, step, i));
        const uint64_t seed = mezzo_seed(run->config.seed, MEZZO_SEED_DROPOUT);
        MEZZO_TRY(i + 1 == run->config.grad_accum ? mz_program_run_last(p, run->engine.session.scaler, seed, batch)
                                                  : mezzo_program_run(p, run->engine.session.scaler, seed, batch));
    }
    return mark_exchange(m);
}

static void name_call(const mz_training *run, size_t at, mz_fault *f) {
    const mezzo_program *p = run->engine.session.train;
    const mezzo_graph *g = p->c.graph;
    const mz_node *n = &g->nodes[p->c.node[at % p->c.n_calls]];
    f->micro = (int64_t)(at / p->c.n_calls) + 1;
    snprintf(f->op, sizeof f->op, "%s", mz_op_table[n->op].name);
    snprintf(f->module, sizeof f->module, "%s", g->modules[n->module]);
    snprintf(f->phase, sizeof f->phase, "%s", mz_phase_name(n->phase));
}

static const char collective[] = "collective"; // the op's name for a fault in what the ranks exchanged

// Finds the op by two passes call by call. A fault that occurs in neither leaves f->op empty.
static mezzo_status find_op(mz_training *run, int64_t step, mz_fault *f) {
    mezzo_program *p = run->engine.session.train;
    const size_t n = (size_t)run->config.grad_accum * p->c.n_calls;
    marks m = {.run = run, .hook = p->hook, .user = p->hook_user};
    const bool kept_pairs = p->hook_keeps_pairs;
    mezzo_status status = MEZZO_OK;
    MEZZO_TRY(MZ_NEW(m.sum, 2 * (n + 1)));
    m.again = m.sum + n + 1;
    p->hook = mark_call;
    p->hook_user = &m;
    p->hook_keeps_pairs = false;
    MEZZO_TRY_GOTO(status, mark_pass(run, step, &m));
    m.second = true;
    MEZZO_TRY_GOTO(status, mark_pass(run, step, &m));
    for (size_t i = 0; i < n && f->op[0] == '\0'; i++)
        if (m.sum[i] != m.again[i])
            name_call(run, i, f);
    if (f->op[0] == '\0' && m.sum[n] != m.again[n])
        snprintf(f->op, sizeof f->op, "%s", collective);
fail:
    p->hook = m.hook;
    p->hook_user = m.user;
    p->hook_keeps_pairs = kept_pairs;
    mz_free(m.sum);
    return status;
}

// --- the verdict -------------------------------------------------------------------------------------------------
static mezzo_status run_pass(mz_training *run, int64_t step, int pass, mz_replay_fn compute) {
    MEZZO_TRY(mezzo_step_drop(run->engine.session.step));
    MEZZO_TRY(compute(run, step, run->replay.losses[pass]));
    return sum_gradients(run, run->replay.before[pass]);
}

static bool same_losses(const mz_training *run, int a, int b) {
    const double *const *l = (const double *const *)run->replay.losses;
    return memcmp(l[a], l[b], (size_t)run->config.grad_accum * sizeof(double)) == 0;
}

static bool same_passes(const mz_training *run, int a, int b) {
    const mz_replay *r = &run->replay;
    return same_losses(run, a, b) && same_sums(r->before[a], r->before[b], r->n_gradients);
}

static const char *verdict(bool two_agree, bool as_first) {
    return !two_agree ? "a third time gave yet another result"
           : as_first ? "a third time confirmed the first result"
                      : "a third time confirmed the second result";
}

// Writes "rank 1 on node7 (NVIDIA H100 (…), PCI 0000:1B:00.0, serial 165…)".
static const char *name_machine(const mz_training *run, char out[400]) {
    char host[80] = "";
    const mezzo_device_info *info = &run->engine.info;
    (void)gethostname(host, sizeof host - 1);
    snprintf(out, 400, "rank %d on %s (%s%s%s)", run->engine.rank, host, info->description,
             info->identity[0] != '\0' ? ", " : "", info->identity);
    return out;
}

// Counts parameters whose gradients differ between the first two passes. last: backward writes it first.
typedef struct differing {
    int n;
    const char *first, *last;
} differing;

static differing find_differing(const mz_training *run) {
    const mz_replay *r = &run->replay;
    differing d = {0};
    int last = -1;
    for (size_t i = 0; i < r->n_gradients; i++) {
        const int param = r->gradients[i].param;
        if (param == last || same_sums(&r->before[0][i], &r->before[1][i], 1))
            continue;
        d.last = run->engine.session.params->list[param].name;
        d.first = d.n == 0 ? d.last : d.first;
        d.n++;
        last = param;
    }
    return d;
}

static void describe(const mz_training *run, const char *verdict_text, mz_fault *f) {
    char machine[400], and[240] = "",
                       op[256] = "no op differed when all of them ran twice more, so that its cause did not last";
    const differing d = find_differing(run);
    if (strcmp(f->op, collective) == 0)
        snprintf(op, sizeof op, "no op differed, but what the ranks exchanged did");
    else if (f->op[0] != '\0')
        snprintf(op, sizeof op, "the first op that differs is %s of %s (%s, micro batch %lld)", f->op,
                 f->module[0] != '\0' ? f->module : "the model", f->phase, (long long)f->micro);
    if (d.n > 1)
        snprintf(and, sizeof and, " and %d other%s up to %.159s", d.n - 1, d.n > 2 ? "s" : "", d.last);
    snprintf(f->text, sizeof f->text, "step %lld: %s computed two different results of the same step: %s%s%s; %s; %s",
             (long long)f->step, name_machine(run, machine), d.n > 0 ? "the gradient of " : "the loss",
             d.n > 0 ? d.first : "", and, op, verdict_text);
}

// Ends the job by the rank at fault, where that is known: a restart with fewer ranks leaves it out.
static mezzo_status stop(mz_training *run, const mz_fault *f) {
    char text[sizeof f->text];
    int rank = -1;
    snprintf(text, sizeof text, "%s", f->text);
    MEZZO_TRY(mezzo_step_drop(run->engine.session.step));
    if (mz_run_keeps(run) && run->config.checkpoint_every >= 0 && run->step > run->first_step)
        MEZZO_TRY(mz_run_save(run));
    if (run->engine.size > 1 && sscanf(text, "rank %d: ", &rank) == 1 && rank != run->engine.rank)
        MEZZO_TRY(mz_group_barrier(run->engine.group, "the end of a rank at fault"));
    return mz_fail(MEZZO_ERR_DEVICE, "%s", text);
}

// Decides by a third pass, whose result stays in place.
static mezzo_status decide(mz_training *run, int64_t step, bool mine, mz_replay_fn compute) {
    bool undecided;
    mz_fault f = {.step = step, .kind = "replay"};
    run->replay.differed += mine;
    MEZZO_TRY(find_op(run, step, &f));
    MEZZO_TRY(run_pass(run, step, 2, compute));
    const bool as_first = same_passes(run, 0, 2), two_agree = as_first || same_passes(run, 1, 2);
    MEZZO_TRY(mz_run_any(run, "replay", !two_agree, &undecided));
    const bool stops = undecided || run->config.replay_policy == MZ_REPLAY_STOP;
    if (mine)
        describe(run, verdict(two_agree, as_first), &f);
    // An exchange brings a wrong number to every rank; a loss and an op belong to one rank.
    const bool alone = (f.op[0] != '\0' && strcmp(f.op, collective) != 0) || !same_losses(run, 0, 1);
    MEZZO_TRY(mz_run_share_fault(run, alone ? MZ_KNOWS_SOURCE : mine ? MZ_KNOWS_READER : MZ_KNOWS_NOTHING, &f));
    MEZZO_TRY(mz_guard_record(run, &f, stops ? "stop" : "continue"));
    return stops ? stop(run, &f) : MEZZO_OK;
}

mezzo_status mz_replay_check(mz_training *run, int64_t step, mz_replay_fn compute) {
    bool any;
    MEZZO_TRY(sum_gradients(run, run->replay.before[0]));
    MEZZO_TRY(run_pass(run, step, 1, compute));
    run->replay.checked++;
    const bool mine = !same_passes(run, 0, 1);
    MEZZO_TRY(mz_run_any(run, "replay", mine, &any));
    return any ? decide(run, step, mine, compute) : MEZZO_OK;
}

// --- the update --------------------------------------------------------------------------------------------------
static mezzo_status copy_floats(mz_training *run, void *from, void *to) {
    const int64_t n = run->engine.session.params->grad_elements;
    mz_call call = {.op = MZ_OP_copy, .n_in = 1, .n_out = 1, .numerics = {MEZZO_F32, MEZZO_F32, MEZZO_F32}};
    call.in[0] = mz_tensor_f32(from, n);
    call.out[0] = mz_tensor_f32(to, n);
    return mz_run_once(run->engine.device, &call);
}

static mezzo_status update_again(mz_training *run, bool restore, int pass, bool in_place) {
    mz_replay *r = &run->replay;
    if (restore) {
        MEZZO_TRY(mz_update_copy_restore(&r->update));
        MEZZO_TRY(copy_floats(run, r->first, run->engine.session.params->grad));
    }
    MEZZO_TRY(mz_step_finish(run->engine.session.step, in_place));
    MZ_INJECT_UPDATE(run);
    MEZZO_TRY(mz_deferred_flush(run->engine.device));
    return sum_parts(run, r->update.parts, r->update.n_parts, r->after[pass]);
}

// Returns the first part that differs between two passes; NULL: none.
static const mz_state_part *compare_passes(const mz_training *run, int a, int b) {
    const mz_replay *r = &run->replay;
    for (size_t i = 0; i < r->update.n_parts; i++)
        if (!same_sums(&r->after[a][i], &r->after[b][i], 1))
            return &r->update.parts[i];
    return NULL;
}

static void describe_update(const mz_training *run, const mz_state_part *part, const char *verdict_text, mz_fault *f) {
    char machine[400];
    snprintf(f->text, sizeof f->text, "step %lld: %s computed two different results of the same update: %s%s%s; %s",
             (long long)f->step, name_machine(run, machine), part->what, part->param >= 0 ? " of " : "",
             part->param >= 0 ? run->engine.session.params->list[part->param].name : "", verdict_text);
}

static mezzo_status decide_update(mz_training *run, int64_t step, const mz_state_part *part, bool in_place) {
    bool undecided;
    mz_fault f = {.step = step, .kind = "replay"};
    run->replay.differed += part != NULL;
    MEZZO_TRY(update_again(run, true, 2, in_place));
    const bool as_first = compare_passes(run, 0, 2) == NULL, agrees = as_first || compare_passes(run, 1, 2) == NULL;
    MEZZO_TRY(mz_run_any(run, "replay", !agrees, &undecided));
    const bool stops = undecided || run->config.replay_policy == MZ_REPLAY_STOP;
    if (part != NULL)
        describe_update(run, part, verdict(agrees, as_first), &f);
    MEZZO_TRY(mz_run_share_fault(run, part != NULL ? MZ_KNOWS_READER : MZ_KNOWS_NOTHING, &f));
    MEZZO_TRY(mz_guard_record(run, &f, stops ? "stop" : "continue"));
    if (!stops)
        return MEZZO_OK;
    MEZZO_TRY(mz_update_copy_restore(&run->replay.update));
    MEZZO_TRY(mz_params_refresh(run->engine.session.params));
    return stop(run, &f);
}

mezzo_status mz_replay_update(mz_training *run, int64_t step, bool in_place) {
    bool any;
    MEZZO_TRY(mz_params_settle(run->engine.session.params));
    MEZZO_TRY(copy_floats(run, run->engine.session.params->grad, run->replay.first));
    MEZZO_TRY(mz_update_copy_keep(&run->replay.update));
    MEZZO_TRY(update_again(run, false, 0, in_place));
    MEZZO_TRY(update_again(run, true, 1, in_place));
    const mz_state_part *part = compare_passes(run, 0, 1);
    MEZZO_TRY(mz_run_any(run, "replay", part != NULL, &any));
    return any ? decide_update(run, step, part, in_place) : MEZZO_OK;
}
