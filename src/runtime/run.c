// Runs a program call by call or as a device's graph, with deferred calls on other streams.
#include "runtime/program.h"
#include "runtime/tracer.h"

// Points the loss scale at the scaler's scale, or at 1.
static void bind_scale(mezzo_program *p, const mezzo_scaler *scaler) {
    int id = p->c.graph->scale;
    if (id < 0)
        return;
    void *scale = p->one;
    if (scaler)
        scale = &((const mz_scaler_head *)(const void *)scaler)->block->scale;
    if (p->address[id] == scale)
        return;
    p->address[id] = scale;
    mz_program_bind(p);
}

static mezzo_status prepare(mezzo_program *p, const mezzo_scaler *scaler, uint64_t seed, uint64_t step) {
    mz_rng_state rng = {seed, step};
    bind_scale(p, scaler);
    const mz_backend *b = p->device->backend;
    if (!p->written)
        return b->write(p->device, p->inputs, &rng, sizeof rng);
    const size_t bytes = MZ_INPUTS_AT + p->c.plan.inputs;
    memcpy(p->host_inputs, &rng, sizeof rng);
    MEZZO_TRY(p->upload != NULL ? b->upload(p->device, p->upload, p->inputs, bytes)
                                : b->write(p->device, p->inputs, p->host_inputs, bytes));
    p->written = false;
    return MEZZO_OK;
}

mezzo_status mz_program_prepare(mezzo_program *p, const mezzo_scaler *scaler, uint64_t seed, uint64_t step) {
    MEZZO_TRY(mz_deferred_flush(p->device));
    return prepare(p, scaler, seed, step);
}

static bool is_pair(const mezzo_program *p, size_t i) {
    return p->pairs[i] != NULL && (p->hook == NULL || p->hook_keeps_pairs);
}

// Runs a call, or neighbours where one kernel does all of them.
static mezzo_status launch(mezzo_program *p, size_t i, const mz_call *call) {
    if (is_pair(p, i) && p->pairs[i]->run_three != NULL)
        return p->pairs[i]->run_three(p->device, call, call + 1, call + 2);
    if (is_pair(p, i))
        return p->pairs[i]->run(p->device, call, call + 1);
    return p->c.prepared[i].kernel->run(p->device, call);
}

static mezzo_status launch_traced(mezzo_program *p, size_t i, const mz_call *call) {
    const mz_node *n = &p->c.graph->nodes[p->c.node[i]];
    bool fused = is_pair(p, i);
    const mz_traced what = {
        .call = call,
        .second = fused ? call + 1 : NULL,
        .third = fused && p->pairs[i]->run_three != NULL ? call + 2 : NULL,
        .kernel = fused ? p->pairs[i]->name : p->c.prepared[i].kernel->name,
        .module = p->c.graph->modules[n->module],
        .phase = mz_phase_name(n->phase),
        .stream = p->c.stream != NULL ? p->c.stream[i] : 0,
        .flops = mz_node_flops(p->c.graph, n) +
                 (fused ? mz_node_flops(p->c.graph, &p->c.graph->nodes[p->c.node[i + 1]]) : 0),
    };
    MEZZO_TRY(p->device->tracer->begin(p->device->tracer, &what));
    mezzo_status ran = launch(p, i, call), ended = p->device->tracer->end(p->device->tracer);
    return ran != MEZZO_OK ? ran : ended;
}

static mezzo_status run_kernel(mezzo_program *p, size_t i, const mz_call *call) {
    if ((i > 0 && is_pair(p, i - 1)) || (i > 1 && is_pair(p, i - 2) && mz_program_last_fused(p, i - 2) == i))
        return MEZZO_OK;
    return p->device->tracer == NULL ? launch(p, i, call) : launch_traced(p, i, call);
}

// Returns whether the call writes its gradients instead of adding: the run is `fresh` and this call is the first to
// touch them.
static bool overwrites(mezzo_program *p, size_t i, bool fresh) {
    mz_call *call = &p->c.calls[i];
    bool overwrite = fresh && (p->c.use[i] & MZ_USE_FIRST);
    call->attrs.accumulate = call->attrs.accumulate && !overwrite;
    call->state = overwrite ? p->c.writing[i].state : p->c.prepared[i].state;
    return overwrite;
}

static void adds_again(mezzo_program *p, size_t i, bool overwrote) {
    mz_call *call = &p->c.calls[i];
    call->attrs.accumulate = call->attrs.accumulate || overwrote;
    call->state = p->c.prepared[i].state;
}

// Runs one call, or those that one kernel runs, by the function `run`.
static mezzo_status run_as(mezzo_program *p, size_t i, bool fresh,
                           mezzo_status (*run)(mezzo_program *, size_t, const mz_call *)) {
    const size_t last = mz_program_last_fused(p, i);
    bool overwrote[3];
    for (size_t k = i; k <= last; ++k)
        overwrote[k - i] = overwrites(p, k, fresh);
    mezzo_status status = run(p, i, &p->c.calls[i]);
    for (size_t k = i; k <= last; ++k)
        adds_again(p, k, overwrote[k - i]);
    return status;
}

static mezzo_status run_alone(mezzo_program *p, size_t i, const mz_call *call) {
    return p->c.prepared[i].kernel->run(p->device, call);
}

// Runs one call. A repetition for diagnosis does not record magnitudes again.
mezzo_status mz_program_run_call(mezzo_program *p, size_t i, bool fresh) {
    const bool record = p->c.calls[i].attrs.record;
    p->c.calls[i].attrs.record = false;
    mezzo_status status = run_as(p, i, fresh, run_alone);
    p->c.calls[i].attrs.record = record;
    MEZZO_TRY(status);
    if (p->hook != NULL)
        MEZZO_TRY(p->hook(p->hook_user, p, i));
    return MEZZO_OK;
}

static mezzo_status run_call(mezzo_program *p, size_t i, bool fresh) {
    MEZZO_TRY(run_as(p, i, fresh, run_kernel));
    if (p->hook != NULL)
        MEZZO_TRY(p->hook(p->hook_user, p, i));
    for (size_t m = 0; m < p->n_monitors; ++m)
        if (p->monitors[m].after == i)
            MEZZO_TRY(mz_traced_run(p->device, p->monitors[m].prepared.kernel, &p->monitors[m].call, "guard",
                                    mz_phase_name(MZ_FORWARD), 0));
    return MEZZO_OK;
}

static mezzo_status zero_silent(mezzo_program *p) {
    const mezzo_params *params = p->params;
    for (size_t i = 0; i < params->n && !params->scattered; ++i)
        if (p->silent[i])
            MEZZO_TRY(p->device->backend->zero(p->device, params->grad + params->list[i].offset,
                                               (size_t)params->list[i].count * sizeof *params->grad));
    return MEZZO_OK;
}

// Returns whether call k of `post_gradient` runs in this run, directly after call i of the program.
static bool follows(const mezzo_program *p, size_t k, size_t i) {
    return p->finishing && k < p->post_gradient.n && p->post_gradient_after[k] == i;
}

static mezzo_status run_calls(mezzo_program *p, bool fresh) {
    if (fresh)
        MEZZO_TRY(zero_silent(p));
    const volatile sig_atomic_t *stop = p->device->stop;
    for (size_t i = 0, k = 0; i < p->c.n_calls; ++i) {
        if (stop != NULL && *stop != 0)
            return mz_fail(MEZZO_ERR_INTERRUPTED, "stopped before call %zu of %zu", i + 1, p->c.n_calls);
        MEZZO_TRY(run_call(p, i, fresh));
        for (; follows(p, k, i); ++k)
            MEZZO_TRY(mz_bound_call_run(p->device, &p->post_gradient.calls[k]));
    }
    return MEZZO_OK;
}

// Holds the calls of a capture in order: deferred calls, then the program's, each followed by its calls of
// `post_gradient`.
typedef struct order {
    mz_stream_order streams;
    size_t ahead, n; // number of deferred calls, and of all calls
} order;

static void close_order(order *o) {
    mz_stream_order_free(&o->streams);
}

static mezzo_status make_order(const mezzo_program *p, const mz_deferred *deferred, order *o) {
    *o = (order){0};
    for (const mz_deferred *d = deferred; d != NULL; d = d->next)
        o->ahead += d->list.n;
    o->n = o->ahead + p->c.n_calls + (p->finishing ? p->post_gradient.n : 0);
    mz_traffic *traffic = mz_alloc(o->n + 1, sizeof *traffic);
    mz_span *spans = mz_alloc(p->c.n_calls * MZ_SPANS + 1, sizeof *spans);
    mezzo_status status = mz_stream_order_alloc(o->n, &o->streams);
    if (status == MEZZO_OK && (!traffic || !spans))
        status = mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    size_t at = 0;
    for (const mz_deferred *d = deferred; d != NULL && status == MEZZO_OK; d = d->next)
        for (size_t i = 0; i < d->list.n; ++i, ++at) {
            traffic[at] = d->list.calls[i].traffic;
            o->streams.stream[at] = (signed char)d->list.calls[i].stream;
        }
    for (size_t i = 0, k = 0; i < p->c.n_calls && status == MEZZO_OK; ++i) {
        const bool gathers = p->c.graph->nodes[p->c.node[i]].gathers > 0;
        traffic[at] = mz_traffic_of(&p->c.calls[i], spans + i * MZ_SPANS);
        o->streams.stream[at++] = (signed char)(gathers ? MZ_STREAM_COLLECTIVE : p->c.stream ? p->c.stream[i] : 0);
        for (; follows(p, k, i); ++k) {
            traffic[at] = p->post_gradient.calls[k].traffic;
            o->streams.stream[at++] = MZ_STREAM_COLLECTIVE;
        }
    }
    if (status == MEZZO_OK)
        status = mz_stream_order_find(traffic, o->n, &o->streams);
    if (status != MEZZO_OK)
        close_order(o);
    MZ_FREE(traffic, spans);
    return status;
}

static mezzo_status run_bound(mezzo_device *device, const order *o, size_t at, mz_bound_call *call) {
    MEZZO_TRY(mz_stream_order_begin(device, &o->streams, at));
    MEZZO_TRY(mz_bound_call_run(device, call));
    return mz_stream_order_end(device, &o->streams, at);
}

// Clears gradients that no call of the program writes, after deferred calls, which may read the old ones.
static mezzo_status clear_silent(mezzo_program *p, bool fresh, const order *o) {
    const mz_backend *b = p->device->backend;
    MEZZO_TRY(b->capture_stream(p->device, o->streams.last[MZ_STREAM_DEFERRED] >= 0 ? MZ_STREAM_DEFERRED : 0));
    if (fresh)
        MEZZO_TRY(zero_silent(p));
    return b->capture_record(p->device, (int)o->n + 1);
}

// Captures each call on its stream. A call's event has the call's number; the event of the beginning has the next
// number after all calls, and that of the cleared gradients, which are last on their stream, the number after it.
static mezzo_status run_streams(mezzo_program *p, bool fresh, mz_deferred *deferred, order *o) {
    const mz_backend *b = p->device->backend;
    size_t at = 0;
    MEZZO_TRY(mz_stream_order_fork(p->device, &o->streams, (int)o->n));
    for (mz_deferred *d = deferred; d != NULL; d = d->next)
        for (size_t i = 0; i < d->list.n; ++i, ++at)
            MEZZO_TRY(run_bound(p->device, o, at, &d->list.calls[i]));
    MEZZO_TRY(clear_silent(p, fresh, o));
    if (p->finishing && p->post_gradient.n > 0) {
        MEZZO_TRY(b->capture_stream(p->device, MZ_STREAM_COLLECTIVE));
        MEZZO_TRY(b->capture_wait(p->device, (int)o->n + 1));
    }
    for (size_t i = 0, k = 0; i < p->c.n_calls; ++i, ++at) {
        MEZZO_TRY(mz_stream_order_begin(p->device, &o->streams, at));
        for (size_t later = i + 1; later <= mz_program_last_fused(p, i); ++later)
            MEZZO_TRY(mz_stream_order_wait(p->device, &o->streams, at + (later - i)));
        MEZZO_TRY(run_call(p, i, fresh));
        MEZZO_TRY(mz_stream_order_end(p->device, &o->streams, at));
        for (; follows(p, k, i); ++k)
            MEZZO_TRY(run_bound(p->device, o, ++at, &p->post_gradient.calls[k]));
    }
    if (o->streams.last[MZ_STREAM_DEFERRED] >= 0)
        o->streams.last[MZ_STREAM_DEFERRED] = (int)o->n + 1;
    return mz_stream_order_join(p->device, &o->streams);
}

static mezzo_status record(mezzo_program *p, bool fresh, mz_deferred *deferred, mz_recording *r) {
    const mz_backend *b = p->device->backend;
    void *graph = NULL;
    order o;
    MEZZO_TRY(make_order(p, deferred, &o));
    bool streams = p->c.stream || p->c.gathers || deferred || (p->finishing && p->post_gradient.n > 0);
    mezzo_status ran, ended = b->capture_begin(p->device);
    if (ended != MEZZO_OK) {
        close_order(&o);
        return ended;
    }
    ran = streams ? run_streams(p, fresh, deferred, &o) : run_calls(p, fresh);
    ended = b->capture_end(p->device, &graph);
    close_order(&o);
    if (ran != MEZZO_OK || ended != MEZZO_OK) {
        b->capture_free(p->device, graph);
        return ran != MEZZO_OK ? ran : ended;
    }
    r->graph = graph;
    return MEZZO_OK;
}

static void list_deferred(const mezzo_device *device, uint64_t ids[MZ_DEFERRED_LISTS]) {
    for (const mz_deferred *d = device->deferred; d != NULL; d = d->next)
        *ids++ = d->id;
}

static mezzo_status flush_and_run(mezzo_program *p, bool fresh) {
    MEZZO_TRY(mz_deferred_flush(p->device));
    return run_calls(p, fresh);
}

// Runs the program as captured graphs. The first run of a kind goes call by call; a device that captures replays one
// graph from then on. The run that writes gradients, a step's first, contains the deferred calls; other runs wait for
// them. While ranks exchange rows, the host reads their numbers, so nothing is captured.
static mezzo_status run_recorded(mezzo_program *p, bool fresh) {
    const mz_backend *b = p->device->backend;
    if (b->capture_begin == NULL || p->c.exchanges || p->hook != NULL || p->device->tracer != NULL ||
        p->params->whole != NULL)
        return flush_and_run(p, fresh);
    if (!fresh)
        MEZZO_TRY(mz_deferred_flush(p->device));
    bool waits = p->device->deferred != NULL;
    mz_recording *r = &p->recordings[(waits   ? MZ_RUN_DEFERRED
                                      : fresh ? MZ_RUN_WRITES
                                              : MZ_RUN_ADDS) +
                                     (p->finishing && p->post_gradient.n > 0 ? MZ_RUN_KINDS : 0)];
    mz_recording now = {.scale = p->c.graph->scale >= 0 ? p->address[p->c.graph->scale] : NULL, .seen = true};
    list_deferred(p->device, now.deferred);
    if (!r->seen || r->scale != now.scale || memcmp(r->deferred, now.deferred, sizeof r->deferred) != 0) {
        b->capture_free(p->device, r->graph);
        *r = now;
        return flush_and_run(p, fresh);
    }
    mz_deferred *deferred = mz_deferred_take(p->device); // the graph contains them
    if (r->graph == NULL) {
        mezzo_status status = record(p, fresh, deferred, r);
        if (status != MEZZO_OK)
            mz_deferred_give_back(p->device, deferred);
        MEZZO_TRY(status);
    }
    return b->capture_launch(p->device, r->graph);
}

void mz_program_wrote_gradients(mezzo_program *p) {
    mezzo_params *params = p->params;
    ++params->grad_version;
    params->grads_empty = params->grads_stale = false;
    for (size_t i = 0; i < params->n; ++i)
        params->list[i].has_grad = params->list[i].has_grad || (!p->silent[i] && !params->list[i].frozen);
}

mezzo_status mz_program_fresh(const mezzo_program *p, bool *fresh) {
    const bool empty = p->params->grads_empty;
    *fresh = !p->options.forward_only && (empty || p->params->scattered) && p->c.covers;
    if (!empty && p->c.plan.gradients > 0)
        return mz_fail(MEZZO_ERR_INVALID, "there are gradients already, and the program was made with "
                                          "single_micro_batch: zero them first, or make it without");
    return MEZZO_OK;
}

static mezzo_status run(mezzo_program *p, const mezzo_scaler *scaler, uint64_t seed, uint64_t step) {
    bool fresh;
    MEZZO_TRY(mz_program_ready(p, scaler));
    MEZZO_TRY(mz_program_follow_scales(p));
    MEZZO_TRY(mz_program_fresh(p, &fresh));
    if (!fresh)
        MEZZO_TRY(mz_deferred_flush(p->device));
    MEZZO_TRY(prepare(p, scaler, seed, step));
    if (p->options.forward_only)
        return run_recorded(p, false);
    if (!fresh || (p->params->scattered && p->c.plan.gradients == 0)) // the run adds to the shards
        MEZZO_TRY(mz_params_settle(p->params));
    mz_program_wrote_gradients(p);
    return run_recorded(p, fresh);
}

mezzo_status mezzo_program_run(mezzo_program *p, const mezzo_scaler *scaler, uint64_t seed, uint64_t step) {
    MZ_REQUIRE(p);
    p->finishing = p->params->scattered;
    mezzo_status status = run(p, scaler, seed, step);
    p->finishing = false;
    return status;
}

// --- calls after the program's own ----------------------------------------------------------------------------------
mezzo_status mz_program_run_last(mezzo_program *p, const mezzo_scaler *scaler, uint64_t seed, uint64_t step) {
    p->finishing = true;
    mezzo_status status = run(p, scaler, seed, step);
    p->finishing = false;
    return status;
}

size_t mz_program_last_writer(const mezzo_program *p, const void *from, const void *to) {
    const mz_span bytes = {from, to};
    const mz_traffic looked = {.reads = &bytes, .n_reads = 1};
    for (size_t i = p->c.n_calls; i-- > 0;) {
        mz_span spans[MZ_SPANS];
        const mz_traffic call = mz_traffic_of(&p->c.calls[i], spans);
        if (mz_traffic_depends(&looked, &call))
            return mz_program_last_fused(p, i); // all are finished with the last one
    }
    return p->c.n_calls - 1;
}

mezzo_status mz_program_add_after(mezzo_program *p, size_t after, const mz_prepared *prepared, const mz_call *call) {
    size_t *grown;
    MEZZO_TRY(MZ_NEW(grown, p->post_gradient.n + 1));
    if (p->post_gradient.n > 0)
        memcpy(grown, p->post_gradient_after, p->post_gradient.n * sizeof *grown);
    grown[p->post_gradient.n] = after;
    mz_free(p->post_gradient_after);
    p->post_gradient_after = grown;
    return mz_call_list_add(&p->post_gradient, prepared, call, NULL);
}
