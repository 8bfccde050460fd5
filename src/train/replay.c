#include "train/replay.h"

#include <unistd.h>

#include "backend/inspect.h"
#include "io/file.h"
#include "runtime/calls.h"
#include "train/run.h"

// --- memory ------------------------------------------------------------------------------------------------------
// Returns whether a rank compares the shards that it owns: after an exchange the memory of other ranks' gradients, and
// between parameters, holds no result. Before it, all gradients are the rank's own.
bool mz_replay_has_shards(const mz_training *run) {
    const mz_ranks_options ranks = mz_session_ranks(&run->engine.session.options);
    return run->engine.size > 1 && !mz_ranks_add_late(&ranks);
}

typedef struct range {
    int64_t from, count; // in elements of the buffer of gradients
} range;

static int count_ranges(const mz_training *run) {
    const mz_session *s = &run->engine.session;
    return run->engine.size == 1 ? 1 : (int)(mz_replay_has_shards(run) ? s->optimizer->n_segments : s->params->n);
}

static range range_at(const mz_training *run, int i) {
    const mezzo_params *p = run->engine.session.params;
    if (run->engine.size == 1)
        return (range){0, p->grad_elements};
    if (!mz_replay_has_shards(run))
        return p->list[i].frozen ? (range){0} : (range){p->list[i].offset, p->list[i].stored};
    const mz_segment *s = &run->engine.session.optimizer->segments[i];
    if (s->count == 0)
        return (range){0};
    const int64_t first = mz_layout_index(&s->layout, s->first),
                  last = mz_layout_index(&s->layout, s->first + s->count - 1);
    return (range){s->offset - s->grad_shift + first, last + 1 - first};
}

static size_t chunks_of(const mz_training *run) {
    return run->replay.bytes / sizeof(float) / MZ_REPLAY_CHUNK + (size_t)count_ranges(run) + 1;
}

static mezzo_status open_update(mz_training *run) {
    mz_replay *r = &run->replay;
    const mz_session *s = &run->engine.session;
    MEZZO_TRY(mz_update_copy_create(s->step, s->optimizer, s->scaler, s->ranks, &r->update));
    for (int pass = 0; pass < MZ_REPLAY_PASSES; pass++) {
        r->sums[pass] = mz_alloc(r->update.n_parts + 1, sizeof *r->sums[pass]);
        if (r->sums[pass] == NULL)
            return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    }
    return MEZZO_OK;
}

mezzo_status mz_replay_open(mz_training *run) {
    mz_replay *r = &run->replay;
    mezzo_device *d = run->engine.device;
    if (run->config.replay == 0)
        return MEZZO_OK;
    r->bytes = (size_t)run->engine.session.params->grad_elements * sizeof(float);
    for (int pass = 0; pass < MZ_REPLAY_PASSES; pass++) {
        r->losses[pass] = mz_alloc((size_t)run->config.grad_accum, sizeof *r->losses[pass]);
        if (r->losses[pass] == NULL)
            return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    }
    MEZZO_TRY(d->backend->alloc(d, r->bytes, &r->first));
    if (d->backend->queue) {
        MEZZO_TRY(d->backend->alloc(d, MZ_REPLAY_CHUNK * sizeof(float), &r->difference));
        MEZZO_TRY(d->backend->alloc(d, chunks_of(run) * sizeof(mz_inspection), &r->found));
    }
    r->on = true;
    return mz_replay_updates(run) ? open_update(run) : MEZZO_OK;
}

// Returns whether the update is replayed, too; what ranks exchange at the step's end is part of it.
bool mz_replay_updates(const mz_training *run) {
    return run->config.replay_update || (run->engine.size > 1 && !mz_replay_has_shards(run));
}

size_t mz_replay_memory(const mz_training *run) {
    const mz_replay *r = &run->replay;
    if (!r->on)
        return 0;
    const size_t queue = run->engine.device->backend->queue
                             ? MZ_REPLAY_CHUNK * sizeof(float) + chunks_of(run) * sizeof(mz_inspection)
                             : 0;
    return r->bytes + r->update.bytes + queue;
}

void mz_replay_close(mz_training *run) {
    mz_replay *r = &run->replay;
    mezzo_device *d = run->engine.device;
    for (int pass = 0; pass < MZ_REPLAY_PASSES; pass++)
        mz_free(r->losses[pass]);
    for (int pass = 0; pass < MZ_REPLAY_PASSES; pass++)
        mz_free(r->sums[pass]);
    mz_update_copy_free(&r->update);
    if (d != NULL) {
        d->backend->release(d, r->first);
        d->backend->release(d, r->difference);
        d->backend->release(d, r->found);
    }
    if (r->checked > 0)
        mz_log("notice", "%lld steps were computed twice: %lld differed", (long long)r->checked,
               (long long)r->differed);
    *r = (mz_replay){0};
}

bool mz_replay_due(const mz_training *run, int64_t step) {
    return run->replay.on && step % run->config.replay == 0;
}

// --- comparing ---------------------------------------------------------------------------------------------------
static mezzo_status copy_floats(mz_training *run, void *from, void *to) {
    const int64_t n = run->engine.session.params->grad_elements;
    mz_call call = {.op = MZ_OP_copy, .n_in = 1, .n_out = 1, .numerics = {MEZZO_F32, MEZZO_F32, MEZZO_F32}};
    call.in[0] = mz_tensor_f32(from, n);
    call.out[0] = mz_tensor_f32(to, n);
    return mz_run_once(run->engine.device, &call);
}

static mezzo_status copy_gradients(mz_training *run) {
    MEZZO_TRY(mz_params_settle(run->engine.session.params));
    return copy_floats(run, run->engine.session.params->grad, run->replay.first);
}

// Compares bits on the host.
static mezzo_status compare_bits(mz_training *run, int64_t from, int64_t count, int64_t *at) {
    mezzo_device *d = run->engine.device;
    const float *now = run->engine.session.params->grad + from, *first = (const float *)run->replay.first + from;
    const size_t bytes = (size_t)count * sizeof(float);
    *at = -1;
    uint32_t *host = mz_alloc(2 * (size_t)count, sizeof *host);
    if (host == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    mezzo_status status = d->backend->read(d, host, now, bytes);
    if (status == MEZZO_OK)
        status = d->backend->read(d, host + count, first, bytes);
    for (int64_t i = 0; status == MEZZO_OK && i < count && *at < 0; i++)
        if (host[i] != host[count + i])
            *at = from + i;
    mz_free(host);
    return status;
}

// Subtracts the two passes on a device with a queue, and compares on the host the chunks that are not all zeros. A
// difference in the sign of a zero alone does not change an update, and is not found.
static mezzo_status subtract_chunk(mz_training *run, int64_t from, int64_t count, size_t chunk) {
    mz_replay *r = &run->replay;
    const mz_numerics f32 = {MEZZO_F32, MEZZO_F32, MEZZO_F32};
    mz_call sub = {.op = MZ_OP_sub, .n_in = 2, .n_out = 1, .numerics = f32};
    mz_call inspect = {.op = MZ_OP_inspect, .n_in = 1, .n_out = 2, .numerics = f32};
    sub.in[0] = mz_tensor_f32(run->engine.session.params->grad + from, count);
    sub.in[1] = mz_tensor_f32((float *)r->first + from, count);
    sub.out[0] = inspect.in[0] = mz_tensor_f32(r->difference, count);
    inspect.out[0] = mz_tensor_bytes((mz_inspection *)r->found + chunk, sizeof(mz_inspection));
    inspect.out[1] = mz_tensor_absent();
    MEZZO_TRY(mz_run_once(run->engine.device, &sub));
    return mz_run_once(run->engine.device, &inspect);
}

static mezzo_status compare_on_device(mz_training *run, int64_t *at) {
    mezzo_device *d = run->engine.device;
    const size_t slots = chunks_of(run);
    mz_inspection *found = mz_alloc(slots, sizeof *found);
    range *chunks = mz_alloc(slots, sizeof *chunks);
    size_t n = 0;
    mezzo_status status =
        found != NULL && chunks != NULL ? MEZZO_OK : mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (int i = 0; status == MEZZO_OK && i < count_ranges(run); i++) {
        const range r = range_at(run, i);
        for (int64_t done = 0; status == MEZZO_OK && done < r.count; done += MZ_REPLAY_CHUNK) {
            chunks[n] = (range){r.from + done, r.count - done < MZ_REPLAY_CHUNK ? r.count - done : MZ_REPLAY_CHUNK};
            status = subtract_chunk(run, chunks[n].from, chunks[n].count, n);
            n++;
        }
    }
    if (status == MEZZO_OK)
        status = d->backend->read(d, found, run->replay.found, n * sizeof *found);
    for (size_t c = 0; c < n && status == MEZZO_OK && *at < 0; c++)
        if (found[c].zeros != found[c].inspected)
            status = compare_bits(run, chunks[c].from, chunks[c].count, at);
    mz_free(found);
    mz_free(chunks);
    return status;
}

// Compares gradients. *at: the first element of the gradients' buffer that differs from the first pass; -1: none.
static mezzo_status compare_gradients(mz_training *run, int64_t *at) {
    const mezzo_params *p = run->engine.session.params;
    *at = -1;
    MEZZO_TRY(mz_params_settle(run->engine.session.params));
    if (run->engine.device->backend->queue)
        return compare_on_device(run, at);
    for (int i = 0; i < count_ranges(run) && *at < 0; i++) { // without a queue the device's memory is the host's
        const range r = range_at(run, i);
        const float *first = run->replay.first;
        if (memcmp(p->grad + r.from, first + r.from, (size_t)r.count * sizeof *first) != 0)
            MEZZO_TRY(compare_bits(run, r.from, r.count, at));
    }
    return MEZZO_OK;
}

static bool same_losses(const mz_training *run, int a, int b) {
    const double *const *l = (const double *const *)run->replay.losses;
    return memcmp(l[a], l[b], (size_t)run->config.grad_accum * sizeof(double)) == 0;
}

// Returns the parameter whose gradient holds an element; "" where none does.
static const char *parameter_at(const mz_training *run, int64_t at) {
    const mezzo_params *p = run->engine.session.params;
    const mezzo_optimizer *o = run->engine.session.optimizer;
    const char *name = "";
    int64_t nearest = -1;
    for (size_t i = 0; i < p->n && !p->scattered; i++)
        if (!p->list[i].frozen && p->list[i].offset <= at && p->list[i].offset > nearest) {
            nearest = p->list[i].offset;
            name = p->list[i].name;
        }
    for (int i = 0; p->scattered && i < (int)o->n_segments; i++) {
        const range r = range_at(run, i);
        if (at >= r.from && at < r.from + r.count)
            name = p->list[o->index[o->owner[i]]].name;
    }
    return name;
}

// --- naming the op -----------------------------------------------------------------------------------------------
typedef struct marks {     // checksums of what each call of the micro batches writes
    uint32_t *crc, *again; // [micro batches][calls], and one of what the ranks exchanged
    size_t base;           // the first mark of the present micro batch
    bool second;
    mz_program_hook hook; // the hook that the program's owner had set
    void *user;
    char *bytes;
    size_t cap;
} marks;

static mezzo_status mark_call(void *user, mezzo_program *p, size_t call) {
    marks *m = user;
    const mz_node *n = &p->c.graph->nodes[p->c.node[call]];
    uint32_t crc = 0;
    if (m->hook != NULL)
        MEZZO_TRY(m->hook(m->user, p, call));
    for (int k = 0; k < n->n_out; k++) {
        if (n->out[k] < 0)
            continue;
        const mz_tensor t = mz_program_tensor(p, n->out[k]);
        const size_t bytes = mz_present(&t) ? mz_tensor_bytes_stored(&t) : 0;
        MEZZO_TRY(MZ_RESERVE(m->bytes, m->cap, bytes + 1));
        MEZZO_TRY(p->device->backend->read(p->device, m->bytes, t.data, bytes));
        crc = mz_crc32c(crc, m->bytes, bytes);
    }
    (m->second ? m->again : m->crc)[m->base + call] = crc;
    return MEZZO_OK;
}

// Marks the ranks' sums in this rank's shards.
static mezzo_status mark_exchange(mz_training *run, marks *m) {
    const size_t at = (size_t)run->config.grad_accum * run->engine.session.train->c.n_calls;
    mezzo_device *d = run->engine.device;
    uint32_t *crc = &(m->second ? m->again : m->crc)[at];
    MEZZO_TRY(mz_params_settle(run->engine.session.params));
    for (int i = 0; i < count_ranges(run) && mz_replay_has_shards(run); i++) {
        const range r = range_at(run, i);
        const size_t bytes = (size_t)r.count * sizeof(float);
        MEZZO_TRY(MZ_RESERVE(m->bytes, m->cap, bytes + 1));
        MEZZO_TRY(d->backend->read(d, m->bytes, run->engine.session.params->grad + r.from, bytes));
        *crc = mz_crc32c(*crc, m->bytes, bytes);
    }
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
    return mark_exchange(run, m);
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
    marks m = {.hook = p->hook, .user = p->hook_user};
    const bool kept_pairs = p->hook_keeps_pairs;
    mezzo_status status = MEZZO_OK;
    m.crc = mz_alloc(2 * (n + 1), sizeof *m.crc);
    if (m.crc == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    m.again = m.crc + n + 1;
    p->hook = mark_call;
    p->hook_user = &m;
    p->hook_keeps_pairs = false;
    MEZZO_TRY_GOTO(status, mark_pass(run, step, &m));
    m.second = true;
    MEZZO_TRY_GOTO(status, mark_pass(run, step, &m));
    for (size_t i = 0; i < n && f->op[0] == '\0'; i++)
        if (m.crc[i] != m.again[i])
            name_call(run, i, f);
    if (f->op[0] == '\0' && m.crc[n] != m.again[n])
        snprintf(f->op, sizeof f->op, "%s", collective);
fail:
    p->hook = m.hook;
    p->hook_user = m.user;
    p->hook_keeps_pairs = kept_pairs;
    mz_free(m.crc);
    mz_free(m.bytes);
    return status;
}

// --- the verdict -------------------------------------------------------------------------------------------------
static mezzo_status run_pass(mz_training *run, int64_t step, int pass, mz_replay_fn compute) {
    MEZZO_TRY(mezzo_step_drop(run->engine.session.step));
    return compute(run, step, run->replay.losses[pass]);
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

// Counts parameters whose gradients differ between the copy of the first pass and `second`, on the host, and notes the
// last of them, which backward writes first. Parameters in shards do not count.
typedef struct differing {
    int n;
    const char *last;
} differing;

static mezzo_status find_differing(mz_training *run, const uint32_t *second, differing *out) {
    const mezzo_params *p = run->engine.session.params;
    *out = (differing){0};
    uint32_t *first = mz_alloc(run->replay.bytes + 1, 1);
    mezzo_status status = first != NULL ? MEZZO_OK : mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    if (status == MEZZO_OK)
        status = run->engine.device->backend->read(run->engine.device, first, run->replay.first, run->replay.bytes);
    for (size_t i = 0; i < p->n && status == MEZZO_OK && !p->scattered; i++) {
        const mz_param *one = &p->list[i];
        if (one->frozen || memcmp(first + one->offset, second + one->offset, (size_t)one->stored * sizeof *first) == 0)
            continue;
        out->n++;
        out->last = one->name;
    }
    mz_free(first);
    return status;
}

static void describe(const mz_training *run, int64_t at, differing d, const char *verdict, mz_fault *f) {
    char machine[400], and[240] = "",
                       op[256] = "no op differed when all of them ran twice more, so that its cause did not last";
    if (strcmp(f->op, collective) == 0)
        snprintf(op, sizeof op, "no op differed, but what the ranks exchanged did");
    else if (f->op[0] != '\0')
        snprintf(op, sizeof op, "the first op that differs is %s of %s (%s, micro batch %lld)", f->op,
                 f->module[0] != '\0' ? f->module : "the model", f->phase, (long long)f->micro);
    if (d.n > 1)
        snprintf(and, sizeof and, " and %d other%s up to %.159s", d.n - 1, d.n > 2 ? "s" : "", d.last);
    snprintf(f->text, sizeof f->text, "step %lld: %s computed two different results of the same step: %s%s%s; %s; %s",
             (long long)f->step, name_machine(run, machine), at >= 0 ? "the gradient of " : "the loss",
             at >= 0 ? parameter_at(run, at) : "", and, op, verdict);
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
static mezzo_status decide(mz_training *run, int64_t step, int64_t at, bool mine, mz_replay_fn compute) {
    int64_t again = -1;
    differing others = {0};
    bool undecided, two_agree;
    mz_fault f = {.step = step, .kind = "replay"};
    if (mine)
        run->replay.differed++;
    uint32_t *second = mz_alloc(run->replay.bytes + 1, 1);
    mezzo_device *d = run->engine.device;
    mezzo_status status = second != NULL ? MEZZO_OK : mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    if (status == MEZZO_OK)
        status = d->backend->read(d, second, run->engine.session.params->grad, run->replay.bytes);
    if (status == MEZZO_OK)
        status = find_differing(run, second, &others);
    if (status == MEZZO_OK)
        status = find_op(run, step, &f);
    if (status == MEZZO_OK)
        status = run_pass(run, step, 2, compute);
    if (status == MEZZO_OK)
        status = compare_gradients(run, &again);
    const bool as_first = again < 0 && same_losses(run, 0, 2);
    if (status == MEZZO_OK) // from here on the copy holds the second pass
        status = d->backend->write(d, run->replay.first, second, run->replay.bytes);
    if (status == MEZZO_OK)
        status = compare_gradients(run, &again);
    mz_free(second);
    MEZZO_TRY(status);
    two_agree = as_first || (again < 0 && same_losses(run, 1, 2));
    MEZZO_TRY(mz_run_any(run, "replay", !two_agree, &undecided));
    const bool stops = undecided || run->config.replay_policy == MZ_REPLAY_STOP;
    if (mine)
        describe(run, at, others,
                 !two_agree ? "a third time gave yet another result"
                 : as_first ? "a third time confirmed the first result"
                            : "a third time confirmed the second result",
                 &f);
    // An exchange brings a wrong number to every rank; a loss and an op belong to one rank.
    const bool alone = (f.op[0] != '\0' && strcmp(f.op, collective) != 0) || !same_losses(run, 0, 1);
    MEZZO_TRY(mz_run_share_fault(run, alone ? MZ_KNOWS_SOURCE : mine ? MZ_KNOWS_READER : MZ_KNOWS_NOTHING, &f));
    MEZZO_TRY(mz_guard_record(run, &f, stops ? "stop" : "continue"));
    return stops ? stop(run, &f) : MEZZO_OK;
}

mezzo_status mz_replay_check(mz_training *run, int64_t step, mz_replay_fn compute) {
    int64_t at = -1;
    bool any;
    MEZZO_TRY(copy_gradients(run));
    MEZZO_TRY(run_pass(run, step, 1, compute));
    MEZZO_TRY(compare_gradients(run, &at));
    run->replay.checked++;
    const bool mine = at >= 0 || !same_losses(run, 0, 1);
    MEZZO_TRY(mz_run_any(run, "replay", mine, &any));
    return any ? decide(run, step, at, mine, compute) : MEZZO_OK;
}

// --- the update --------------------------------------------------------------------------------------------------
enum { PIECE = 4 << 20 }; // bytes that one read from a device takes

static mezzo_status sum_part(mezzo_device *device, const mz_state_part *part, char *host, uint32_t *crc) {
    *crc = 0;
    if (!device->backend->queue) { // the device's memory is the host's
        *crc = mz_crc32c(0, part->data, part->bytes);
        return MEZZO_OK;
    }
    for (size_t at = 0, n; at < part->bytes; at += n) {
        n = part->bytes - at < PIECE ? part->bytes - at : PIECE;
        MEZZO_TRY(device->backend->read(device, host, part->data + at, n));
        *crc = mz_crc32c(*crc, host, n);
    }
    return MEZZO_OK;
}

// Computes checksums of the present state.
static mezzo_status sum_state(mz_training *run, uint32_t *crc) {
    mezzo_device *d = run->engine.device;
    const mz_update_copy *c = &run->replay.update;
    char *host = mz_alloc(d->backend->queue ? PIECE : 1, 1);
    mezzo_status status =
        host != NULL ? mz_deferred_flush(d) : mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (size_t i = 0; i < c->n_parts && status == MEZZO_OK; i++)
        status = sum_part(d, &c->parts[i], host, &crc[i]);
    mz_free(host);
    return status;
}

static mezzo_status update_again(mz_training *run, bool restore, int pass, bool in_place) {
    mz_replay *r = &run->replay;
    if (restore) {
        MEZZO_TRY(mz_update_copy_restore(&r->update));
        MEZZO_TRY(copy_floats(run, r->first, run->engine.session.params->grad));
    }
    MEZZO_TRY(mz_step_finish(run->engine.session.step, in_place));
    MZ_INJECT_UPDATE(run);
    return sum_state(run, r->sums[pass]);
}

// Returns the first part that differs between two passes; NULL: none.
static const mz_state_part *compare_passes(const mz_training *run, int a, int b) {
    const mz_replay *r = &run->replay;
    for (size_t i = 0; i < r->update.n_parts; i++)
        if (r->sums[a][i] != r->sums[b][i])
            return &r->update.parts[i];
    return NULL;
}

static void describe_update(const mz_training *run, const mz_state_part *part, const char *verdict, mz_fault *f) {
    char machine[400];
    snprintf(f->text, sizeof f->text, "step %lld: %s computed two different results of the same update: %s%s%s; %s",
             (long long)f->step, name_machine(run, machine), part->what, part->param >= 0 ? " of " : "",
             part->param >= 0 ? run->engine.session.params->list[part->param].name : "", verdict);
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
        describe_update(run, part,
                        !agrees    ? "a third time gave yet another result"
                        : as_first ? "a third time confirmed the first result"
                                   : "a third time confirmed the second result",
                        &f);
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
    MEZZO_TRY(copy_gradients(run));
    MEZZO_TRY(mz_update_copy_keep(&run->replay.update));
    MEZZO_TRY(update_again(run, false, 0, in_place));
    MEZZO_TRY(update_again(run, true, 1, in_place));
    const mz_state_part *part = compare_passes(run, 0, 1);
    MEZZO_TRY(mz_run_any(run, "replay", part != NULL, &any));
    return any ? decide_update(run, step, part, in_place) : MEZZO_OK;
}
