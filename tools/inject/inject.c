// Injects faults into steps. Only tests, and the command that is built with them, link this file.
#include "tools/inject/inject.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "train/run.h"

static _Thread_local const char *next_fault;
static _Thread_local int lag = -1;
static _Thread_local mz_inject last;

void mz_inject_next(const char *what) {
    next_fault = what;
}

void mz_inject_lag(int steps) {
    lag = steps;
}

const mz_inject *mz_inject_last(void) {
    return &last;
}

// --- reading KIND@STEP[.MICRO]:TARGET[#ELEMENT] --------------------------------------------------
static mezzo_status wrong(const char *what) {
    return mz_fail(MEZZO_ERR_INVALID,
                   "inject: \"%.100s\" is not nan|inf|drop@STEP[.MICRO]:TARGET[#ELEMENT]: see tools/inject/inject.h",
                   what);
}

static mezzo_status parse_target(const char *what, const char *text, size_t n, mz_inject *f) {
    static const struct {
        const char *name;
        int target;
    } prefixes[] = {{"grad/", MZ_AT_GRAD}, {"param/", MZ_AT_PARAM},   {"moment/", MZ_AT_MOMENT},
                    {"disk/", MZ_AT_DISK}, {"update/", MZ_AT_UPDATE}, {"sum/", MZ_AT_SUM},
                    {"call/", MZ_AT_CALL}, {"state/", MZ_AT_STATE}};
    char name[128], *slash;
    if (n == 0 || n >= sizeof name)
        return wrong(what);
    memcpy(name, text, n);
    name[n] = '\0';
    int target = strcmp(name, "batch") == 0 ? MZ_AT_BATCH : strcmp(name, "loss") == 0 ? MZ_AT_LOSS : MZ_AT_OP;
    const char *rest = name;
    for (size_t i = 0; i < MZ_COUNT(prefixes); i++)
        if (strncmp(name, prefixes[i].name, strlen(prefixes[i].name)) == 0) {
            target = prefixes[i].target;
            rest = name + strlen(prefixes[i].name);
        }
    memcpy(&f->target, &target, sizeof target);
    f->call = (size_t)strtoull(rest, NULL, 10);
    slash = strrchr(name, '/');
    if (target == MZ_AT_OP && slash == NULL)
        return wrong(what);
    if (target == MZ_AT_OP) {
        *slash = '\0';
        snprintf(f->op, sizeof f->op, "%.31s", slash + 1);
    }
    snprintf(f->name, sizeof f->name, "%s", rest);
    return MEZZO_OK;
}

static mezzo_status parse(const char *what, mz_inject *f) {
    const char *at = strchr(what, '@'), *colon = at != NULL ? strchr(at, ':') : NULL;
    const char *hash = colon != NULL ? strchr(colon, '#') : NULL;
    char *end;
    *f = (mz_inject){.micro = 1};
    if (strncmp(what, "nan@", 4) == 0)
        f->kind = MZ_INJECT_NAN;
    else if (strncmp(what, "inf@", 4) == 0)
        f->kind = MZ_INJECT_INF;
    else if (strncmp(what, "huge@", 5) == 0)
        f->kind = MZ_INJECT_HUGE;
    else if (strncmp(what, "flip@", 5) == 0)
        f->kind = MZ_INJECT_FLIP;
    else if (strncmp(what, "flap@", 5) == 0)
        f->kind = MZ_INJECT_FLAP;
    else if (strncmp(what, "drop@", 5) == 0)
        f->kind = MZ_INJECT_DROP;
    else if (strncmp(what, "halve@", 6) == 0)
        f->kind = MZ_INJECT_HALVE;
    else if (strncmp(what, "signal@", 7) == 0)
        f->kind = MZ_INJECT_SIGNAL;
    if (f->kind == MZ_INJECT_NONE || colon == NULL)
        return wrong(what);
    f->step = strtoll(at + 1, &end, 10);
    if (*end == '.')
        f->micro = strtoll(end + 1, &end, 10);
    f->rains = f->step == 0 && (f->kind == MZ_INJECT_FLIP || f->kind == MZ_INJECT_FLAP);
    if (end != colon || f->step < !f->rains || f->micro < 1)
        return wrong(what);
    if (hash != NULL)
        f->element = strtoll(hash + 1, NULL, 10);
    f->seed = (uint64_t)f->element;
    return parse_target(what, colon + 1, hash != NULL ? (size_t)(hash - colon - 1) : strlen(colon + 1), f);
}

// --- the target of a fault -----------------------------------------------------------------------
static bool strikes(const mz_inject *f, int target) {
    bool poisons = f->kind == MZ_INJECT_NAN || f->kind == MZ_INJECT_INF || f->kind == MZ_INJECT_HUGE ||
                   (f->kind == MZ_INJECT_FLIP && !f->met) || f->kind == MZ_INJECT_FLAP;
    return poisons && (int)f->target == target && f->now_step == f->step && (!f->met || f->now_data == f->data);
}

// Returns whether a flap strikes, in the first and the third computation, so that a third pass of a replay is right.
static bool flaps(mz_inject *f) {
    const int64_t visit = f->visits++;
    return visit == 0 || visit == 2;
}

static bool strikes_micro(const mz_inject *f, int target) {
    return strikes(f, target) && f->now_micro == f->micro;
}

static bool flips_bits(const mz_inject *f) {
    return f->kind == MZ_INJECT_FLIP || f->kind == MZ_INJECT_FLAP;
}

static mezzo_status flip_bit(const mz_inject *f, mezzo_device *device, const mz_tensor *t) {
    const size_t width = mezzo_dtype_size(t->dtype);
    const int64_t bits = 8 * (int64_t)width, n = mz_shape_count(&t->shape);
    char *at = (char *)t->data + (size_t)mz_tensor_index(t, f->element / bits % n) * width;
    unsigned char bytes[8];
    MEZZO_TRY(device->backend->read(device, bytes, at, width));
    bytes[f->element % bits / 8] ^= (unsigned char)(1u << (f->element % 8));
    return device->backend->write(device, at, bytes, width);
}

static mezzo_status poison(const mz_inject *f, mezzo_device *device, const mz_tensor *t) {
    if (flips_bits(f))
        return flip_bit(f, device, t);
    double bad = f->kind == MZ_INJECT_NAN ? (double)NAN : f->kind == MZ_INJECT_INF ? (double)INFINITY : 1e20;
    unsigned char bytes[8];
    int64_t n = mz_shape_count(&t->shape), at = mz_tensor_index(t, f->element % n);
    size_t width = mezzo_dtype_size(t->dtype);
    MEZZO_TRY(mezzo_convert(&bad, MEZZO_F64, bytes, t->dtype, 1));
    return device->backend->write(device, (char *)t->data + (size_t)at * width, bytes, width);
}

static bool is_target(const mz_inject *f, const mezzo_program *p, size_t call) {
    const mezzo_graph *g = p->c.graph;
    const mz_node *n = &g->nodes[p->c.node[call]];
    if (f->target == MZ_AT_CALL)
        return call == f->call;
    if (f->target == MZ_AT_LOSS)
        return n->out[0] >= 0 && mz_value_root(g, n->out[0]) == mz_value_root(g, g->loss);
    if (f->target != MZ_AT_OP || strcmp(mz_op_table[n->op].name, f->op) != 0 ||
        strcmp(g->modules[n->module], f->name) != 0)
        return false;
    for (size_t i = 0; i < call; i++) { // the first call of this op
        const mz_node *before = &g->nodes[p->c.node[i]];
        if (before->op == n->op && before->module == n->module)
            return false;
    }
    return true;
}

static mezzo_status after_call(void *user, mezzo_program *p, size_t call) {
    mz_inject *f = user;
    const mz_node *n = &p->c.graph->nodes[p->c.node[call]];
    mz_tensor out = mz_program_tensor(p, n->out[0]);
    for (int k = 1; k < n->n_out && !mz_present(&out); k++)
        out = mz_program_tensor(p, n->out[k]);
    if (!strikes_micro(f, (int)f->target) || !is_target(f, p, call) || (out.dtype >= MEZZO_I64 && !flips_bits(f)))
        return MEZZO_OK;
    if (f->kind == MZ_INJECT_FLAP && !flaps(f))
        return MEZZO_OK;
    f->met = true;
    f->data = f->now_data;
    snprintf(f->op, sizeof f->op, "%s", mz_op_table[n->op].name);
    snprintf(f->module, sizeof f->module, "%s", p->c.graph->modules[n->module]);
    return poison(f, p->device, &out);
}

// Puts a value that no model accepts into the first input.
static void spoil_batch(void *user, mz_examples *examples) {
    mz_inject *f = user;
    mz_input *in = &examples->input[0];
    size_t n = in->bytes / mezzo_dtype_size(in->dtype), at = (size_t)f->element % n;
    if (!strikes_micro(f, MZ_AT_BATCH))
        return;
    f->met = true;
    f->data = f->now_data;
    if (in->dtype == MEZZO_I32)
        ((int32_t *)in->data)[at] = f->kind == MZ_INJECT_NAN ? INT32_MIN : INT32_MAX;
    else
        ((float *)in->data)[at] = f->kind == MZ_INJECT_NAN ? NAN : f->kind == MZ_INJECT_INF ? INFINITY : 1e20f;
}

// Faults in collectives read and write what was received, so their calls are not captured.
static _Thread_local struct {
    mz_inject *fault;
    mz_backend eager; // the device's backend without captures
    mezzo_status (*run)(mz_comm *comm, mezzo_device *device, const mz_collective *what);
    int64_t step, n; // collectives of the present step so far
    // The collective that was hit first, so that a flap finds it in the next computations of the step.
    const mz_collective *hit;
    int64_t micro;
    bool early; // the flip comes before the update
} exchange;

// Moves the bit to one of a byte that is not 0, which skips padding.
static mezzo_status skip_zeros(mz_inject *f, mezzo_device *device, const mz_collective *what, size_t received) {
    char *bytes;
    MEZZO_TRY(MZ_NEW(bytes, received + 1));
    const mezzo_status status = device->backend->read(device, bytes, what->recv, received);
    for (size_t i = 0; i < received && bytes[(size_t)f->element / 8 % received] == 0; i++)
        f->element += 8;
    mz_free(bytes);
    return status;
}

static mezzo_status run_exchange(mz_comm *comm, mezzo_device *device, const mz_collective *what) {
    mz_inject *f = exchange.fault;
    MEZZO_TRY(exchange.run(comm, device, what));
    exchange.n = exchange.step == f->now_step ? exchange.n + 1 : 1;
    exchange.step = f->now_step;
    const bool here = f->rains ? exchange.n - 1 == (int64_t)f->call
                               : comm->rank == f->micro - 1 && (exchange.n - 1) % 16 == (int64_t)f->call % 16;
    if (f->kind == MZ_INJECT_FLAP && f->met && f->now_step == f->step && exchange.hit == what &&
        exchange.micro == f->now_micro) {
        if (!flaps(f) || !exchange.early)
            return MEZZO_OK;
    } else if (!strikes(f, MZ_AT_SUM) || f->met || !here) {
        return MEZZO_OK;
    } else {
        f->visits = 1;
        exchange.hit = what;
        exchange.micro = f->now_micro;
        exchange.early = f->looks[0] < 2;
    }
    const size_t received = mz_collective_recv_count(what, comm->size) * mezzo_dtype_size(what->dtype);
    mz_tensor t = mz_tensor_bytes(what->recv, received);
    if (f->rains)
        MEZZO_TRY(skip_zeros(f, device, what, received));
    f->met = true;
    f->data = f->now_data;
    snprintf(f->op, sizeof f->op, "collective");
    snprintf(f->module, sizeof f->module, "%s %zu", exchange.early ? "early" : "late", received);
    return flip_bit(f, device, &t);
}

// --- a flip in every step ------------------------------------------------------------------------
static void end_flip(mz_training *run) {
    mz_inject *f = run->inject;
    f->changes += f->changed;
    f->missed += f->changed && run->replay.differed == f->differed;
    f->differed = run->replay.differed;
    const char *path = getenv("MEZZO_INJECT_ROWS");
    FILE *file = path != NULL && f->step > 0 ? fopen(path, "a") : NULL;
    if (file == NULL)
        return;
    fprintf(file, "%lld,%s,%s,%d\n", (long long)f->step, f->met ? f->op : "none", f->module, f->changed);
    fclose(file);
}

static void draw_flip(mz_training *run, int64_t step) {
    mz_inject *f = run->inject;
    uint32_t words[4];
    if (f->target == MZ_AT_SUM && (f->exchanges == 0 || exchange.n < f->exchanges))
        f->exchanges = exchange.n;
    end_flip(run);
    mz_philox((mz_philox_key){.seed = f->seed}, (uint64_t)step, words);
    f->step = step;
    f->met = f->changed = false;
    f->visits = f->looks[0] = f->looks[1] = 0;
    f->micro = 1 + words[1] % run->config.grad_accum;
    f->element = words[2] & INT32_MAX;
    f->op[0] = f->module[0] = '\0';
    if (f->target == MZ_AT_CALL)
        f->call = words[0] % run->engine.session.train->c.n_calls;
    else if (f->target == MZ_AT_SUM)
        f->call = f->exchanges > 0 ? words[0] % (uint64_t)f->exchanges : SIZE_MAX;
    else if (f->target == MZ_AT_UPDATE)
        snprintf(f->name, sizeof f->name, "%s",
                 run->engine.session.params->list[words[0] % run->engine.session.params->n].name);
}

static mezzo_status add_bytes(mezzo_device *device, const void *at, size_t bytes, uint32_t *crc) {
    char *host;
    MEZZO_TRY(MZ_NEW(host, bytes + 1));
    const mezzo_status status = bytes > 0 ? device->backend->read(device, host, at, bytes) : MEZZO_OK;
    *crc = mz_crc32c(*crc, host, bytes);
    mz_free(host);
    return status;
}

// Adds the gradients that this rank has to a checksum: its own shards where the ranks have summed them, else all.
static mezzo_status add_gradients(mz_training *run, uint32_t *crc) {
    const mezzo_params *p = run->engine.session.params;
    const mezzo_optimizer *o = run->engine.session.optimizer;
    mezzo_device *d = run->engine.device;
    MEZZO_TRY(mz_params_settle(run->engine.session.params));
    if (!mz_replay_has_shards(run))
        return add_bytes(d, p->grad, (size_t)p->grad_elements * sizeof(float), crc);
    for (size_t i = 0; i < o->n_segments; i++) {
        const mz_segment *s = &o->segments[i];
        MEZZO_TRY(
            add_bytes(d, p->grad + (s->offset - s->grad_shift + s->first), (size_t)s->count * sizeof(float), crc));
    }
    return MEZZO_OK;
}

static mezzo_status add_state(mz_training *run, uint32_t *crc) {
    const mezzo_params *p = run->engine.session.params;
    const mezzo_optimizer *o = run->engine.session.optimizer;
    mezzo_device *d = run->engine.device;
    MEZZO_TRY(mz_deferred_flush(d));
    MEZZO_TRY(add_bytes(d, p->master, p->master_bytes, crc));
    for (int i = 0; i < p->n_low_copies; i++)
        MEZZO_TRY(add_bytes(d, p->low_copies[i].data,
                            (size_t)p->low_copy_elements * mezzo_dtype_size(p->low_copies[i].dtype), crc));
    for (int m = 0; m < o->n_moments; m++)
        MEZZO_TRY(add_bytes(d, o->d_moments[m], mz_optimizer_moment_bytes(o, m, o->moment_elements[m]), crc));
    if (run->engine.session.ranks != NULL) {
        size_t bytes;
        const void *record = mz_ranks_step_record(run->engine.session.ranks, &bytes);
        MEZZO_TRY(add_bytes(d, record, bytes, crc));
    }
    return add_bytes(d, o->d_state, sizeof *o->d_state, crc);
}

// Compares what the first two computations of the step left, independently of the replay's own comparison.
static mezzo_status look(mz_training *run, bool update) {
    mz_inject *f = run->inject;
    uint32_t crc = 0;
    if (!f->rains || f->looks[update] > 1)
        return MEZZO_OK;
    MEZZO_TRY(update ? add_state(run, &crc) : add_gradients(run, &crc));
    f->changed = f->changed || (f->looks[update] == 1 && crc != f->crc[update]);
    f->crc[update] = crc;
    f->looks[update]++;
    return MEZZO_OK;
}

static mezzo_status inject_open(mz_training *run) {
    MEZZO_TRY(MZ_NEW(run->inject, 1));
    mz_inject *f = run->inject;
    const char *what = next_fault;
    next_fault = NULL;
    if (lag >= 0)
        run->engine.readout.lag = lag;
    if (what == NULL)
        return MEZZO_OK;
    const char *rank = getenv("MEZZO_INJECT_RANK"); // all ranks have the option, and it applies to this rank alone
    if (rank != NULL && atoi(rank) != run->engine.rank)
        return MEZZO_OK;
    MEZZO_TRY(parse(what, f));
    run->data->spoil = spoil_batch;
    run->data->spoil_user = f;
    if (f->target == MZ_AT_CALL)
        f->call %= run->engine.session.train->c.n_calls;
    bool named = f->target == MZ_AT_GRAD || f->target == MZ_AT_PARAM || f->target == MZ_AT_MOMENT ||
                 f->target == MZ_AT_DISK || f->target == MZ_AT_UPDATE || f->target == MZ_AT_STATE;
    if (named && !f->rains && mezzo_params_find(run->engine.session.params, f->name) < 0)
        return mz_fail(MEZZO_ERR_INVALID, "inject: there is no parameter %s", f->name);
    if (f->target == MZ_AT_DISK &&
        (run->engine.session.params->master_format != MEZZO_MASTER_FP32 || run->engine.session.params->sharded))
        return mz_fail(MEZZO_ERR_INVALID, "inject: disk/NAME needs FP32 masters, whole on a rank");
    if (f->target == MZ_AT_SUM && run->engine.device->comm != NULL) {
        exchange.fault = f;
        exchange.run = run->engine.device->comm->run;
        exchange.step = exchange.n = 0;
        run->engine.device->comm->run = run_exchange;
        exchange.eager = *run->engine.device->backend;
        exchange.eager.capture_begin = NULL;
        run->engine.device->backend = &exchange.eager;
    }
    if (f->target == MZ_AT_CALL || f->target == MZ_AT_OP || f->target == MZ_AT_LOSS) {
        run->engine.session.train->hook = after_call;
        run->engine.session.train->hook_user = f;
        run->engine.session.train->hook_keeps_pairs = true; // a pair's kernel may round differently from its two calls
    }
    return MEZZO_OK;
}

static void inject_close(mz_training *run) {
    if (run->inject != NULL && run->inject->rains)
        end_flip(run);
    if (run->engine.session.train != NULL)
        run->engine.session.train->hook = NULL;
    last = run->inject != NULL ? *run->inject : (mz_inject){0};
    mz_free(run->inject);
}

static void inject_at(mz_training *run, int64_t step, int64_t micro, uint64_t data) {
    if (run->inject->rains && step != run->inject->step)
        draw_flip(run, step);
    run->inject->now_step = step;
    run->inject->now_micro = micro + 1;
    run->inject->now_data = data - (uint64_t)micro;
}

static mz_tensor of_parameter(const mz_training *run, float *buffer) {
    const mz_param *p =
        &run->engine.session.params->list[mezzo_params_find(run->engine.session.params, run->inject->name)];
    return (mz_tensor){.data = buffer + p->offset, .dtype = MEZZO_F32, .shape = p->shape, .storage = p->storage};
}

// Finds the optimizer's first segment of the fault's parameter, and how many moments the parameter has.
static bool segment_of(const mz_training *run, const mz_segment **out, int *moments) {
    const mezzo_optimizer *o = run->engine.session.optimizer;
    const int param = mezzo_params_find(run->engine.session.params, run->inject->name);
    for (int i = 0; i < o->n; i++)
        if (o->index[i] == param) {
            *out = &o->segments[o->begin[i]];
            *moments = 0;
            while (*moments < o->n_moments && mz_optimizer_moment_name(o, *moments, i) != NULL)
                ++*moments;
            return true;
        }
    return false;
}

static mezzo_status inject_gradient(mz_training *run) {
    mz_inject *f = run->inject;
    if (f->now_micro == run->config.grad_accum)
        MEZZO_TRY(look(run, false));
    if (!strikes_micro(f, MZ_AT_GRAD))
        return MEZZO_OK;
    f->met = true;
    f->data = f->now_data;
    const mezzo_params *p = run->engine.session.params;
    mz_tensor t = of_parameter(run, p->grad);
    const mz_segment *s = NULL;
    int moments;
    if (p->scattered && (!segment_of(run, &s, &moments) || s->count == 0)) // it belongs to another rank
        return MEZZO_OK;
    if (p->scattered)
        t = mz_tensor_f32(p->grad + (s->offset - s->grad_shift + s->first), s->count);
    return poison(f, run->engine.device, &t);
}

static mezzo_status poison_moment(mz_training *run) {
    const mezzo_optimizer *o = run->engine.session.optimizer;
    mz_inject *f = run->inject;
    const mz_segment *s;
    int moments;
    if (!segment_of(run, &s, &moments) || moments == 0)
        return mz_fail(MEZZO_ERR_INVALID, "inject: the optimizer has no moment of %s", f->name);
    f->met = true;
    f->data = f->now_data;
    if (s->count == 0) // it belongs to another rank
        return MEZZO_OK;
    mz_tensor t = mz_optimizer_moment_view(o, moments - 1, s->state_offset + s->first, s->count);
    return poison(f, run->engine.device, &t);
}

static mezzo_status inject_parameter(mz_training *run) {
    mz_inject *f = run->inject;
    if (strikes(f, MZ_AT_MOMENT) && !f->met)
        return poison_moment(run);
    if (!strikes(f, MZ_AT_PARAM) || f->met)
        return MEZZO_OK;
    f->met = true;
    f->data = f->now_data;
    mz_tensor t = mz_params_tensor(run->engine.session.params, mezzo_params_find(run->engine.session.params, f->name));
    if (!mz_present(&t)) // it belongs to another rank
        return MEZZO_OK;
    MEZZO_TRY(poison(f, run->engine.device, &t));
    return mz_params_refresh(run->engine.session.params);
}

static mezzo_status inject_update(mz_training *run) {
    mz_inject *f = run->inject;
    const bool moment = strikes(f, MZ_AT_STATE);
    if ((!moment && !strikes(f, MZ_AT_UPDATE)) || (f->kind == MZ_INJECT_FLAP && !flaps(f)))
        return look(run, true);
    if (moment)
        return poison_moment(run);
    mz_tensor t = mz_params_tensor(run->engine.session.params, mezzo_params_find(run->engine.session.params, f->name));
    f->met = true;
    f->data = f->now_data;
    snprintf(f->op, sizeof f->op, "update");
    snprintf(f->module, sizeof f->module, "%s", f->name);
    if (mz_present(&t))
        MEZZO_TRY(poison(f, run->engine.device, &t));
    return look(run, true);
}

static mezzo_status inject_drop(mz_training *run, int64_t step) {
    mz_inject *f = run->inject;
    mezzo_scaler_state scaler;
    bool drops = f->kind == MZ_INJECT_DROP || f->kind == MZ_INJECT_HALVE;
    if ((!drops && f->kind != MZ_INJECT_SIGNAL) || step != f->step || f->met)
        return MEZZO_OK;
    f->met = true;
    if (!drops)
        return kill(getpid(), (int)f->element) == 0 ? MEZZO_OK : mz_fail(MEZZO_ERR_INVALID, "inject: no signal");
    uint64_t batches = (uint64_t)f->micro * mz_run_batches(run);
    run->data->position += batches;
    if (f->kind == MZ_INJECT_DROP || !run->engine.session.scaler->update.enabled)
        return MEZZO_OK;
    MEZZO_TRY(mezzo_scaler_get_state(run->engine.session.scaler, &scaler));
    scaler.scale *= 0.5;
    scaler.growth_tracker = 0;
    return mezzo_scaler_set_state(run->engine.session.scaler, &scaler);
}

static mezzo_status inject_disk(mz_training *run, bool before) {
    mz_inject *f = run->inject;
    static _Thread_local float kept;
    if (f->kind == MZ_INJECT_NONE || f->target != MZ_AT_DISK || run->step != f->step || (before && f->met))
        return MEZZO_OK;
    mz_tensor t = of_parameter(run, run->engine.session.params->master);
    float *at = (float *)t.data + mz_tensor_index(&t, f->element % mz_shape_count(&t.shape));
    if (!before)
        return run->engine.device->backend->write(run->engine.device, at, &kept, sizeof kept);
    f->met = true;
    MEZZO_TRY(run->engine.device->backend->read(run->engine.device, &kept, at, sizeof kept));
    return poison(f, run->engine.device, &t);
}

// --- lookup --------------------------------------------------------------------------------------
static mezzo_status choose_storage(mezzo_device *device) {
    const char *storage = getenv("MEZZO_STORAGE"); // the storage policy of axes
    if (storage != NULL && !mz_policy_parse(storage, &device->storage))
        return mz_fail(MEZZO_ERR_INVALID, "MEZZO_STORAGE is not understood: \"%s\"", storage);
    return MEZZO_OK;
}

__attribute__((constructor)) static void begin(void) {
    static const mz_injections all = {inject_open,      inject_close, inject_at,     inject_gradient,
                                      inject_parameter, inject_drop,  inject_update, inject_disk};
    mz_injecting = &all;
    mz_device_opened = choose_storage;
}
