#include "base/scope.h"
#include "runtime/calls.h"
#include "runtime/tracer.h"

struct mz_sequence {
    mezzo_device *device; // borrowed
    mz_call_list calls;
    mz_deferred deferred;  // pushed at the end of each run
    mz_call_list previous; // the calls that `deferred` held before the sequence was cleared, under previous_id
    uint64_t previous_id;
    void *graph;
    bool seen; // it has run once by itself, so kernels are loaded and it can be captured
};

bool mz_can_defer(const mezzo_device *device) {
    return device->backend->capture_stream != NULL;
}

mezzo_status mz_sequence_create(mezzo_device *device, mz_sequence **out) {
    *out = mz_alloc(1, sizeof **out);
    if (*out == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    (*out)->device = device;
    return MEZZO_OK;
}

static void drop_graph(mz_sequence *s) {
    if (s->graph != NULL)
        s->device->backend->capture_free(s->device, s->graph);
    s->graph = NULL;
    s->seen = false;
}

mezzo_status mz_sequence_clear(mz_sequence *s) {
    if (mz_deferred_waits(s->device, &s->deferred))
        MEZZO_TRY(mz_deferred_flush(s->device));
    drop_graph(s);
    mz_call_list_free(&s->calls);
    if (s->deferred.id != 0) {
        mz_call_list_free(&s->previous);
        s->previous = s->deferred.list;
        s->previous_id = s->deferred.id;
        s->deferred.list = (mz_call_list){0};
    }
    mz_call_list_free(&s->deferred.list);
    s->deferred.id = 0;
    return MEZZO_OK;
}

void mz_sequence_free(mz_sequence *s) {
    if (s == NULL)
        return;
    (void)mz_sequence_clear(s);
    mz_call_list_free(&s->previous);
    mz_free(s);
}

// Runs in their place deferred calls that a later call of the sequence depends on.
static mezzo_status undefer(mz_sequence *s) {
    mz_call_list *list = &s->deferred.list;
    for (size_t i = 0; i < list->n; i++) {
        mz_bound_call *c = &list->calls[i];
        if (c->call.attrs.update != NULL)
            c->call.attrs.update = &c->update;
        const mz_prepared prepared = {.kernel = c->kernel, .state = c->call.state};
        MEZZO_TRY(mz_call_list_add(&s->calls, &prepared, &c->call, &c->traffic));
    }
    mz_call_list_free(list);
    return MEZZO_OK;
}

mezzo_status mz_sequence_add(mz_sequence *s, const mz_prepared *prepared, const mz_call *call,
                             const mz_traffic *traffic) {
    mz_span whole[MZ_SPANS];
    mz_traffic tensors = mz_traffic_of(call, whole);
    traffic = traffic != NULL ? traffic : &tensors;
    if (mz_call_list_depends(&s->deferred.list, traffic))
        MEZZO_TRY(undefer(s));
    MEZZO_TRY(mz_call_list_add(&s->calls, prepared, call, traffic));
    return MEZZO_OK;
}

mezzo_status mz_sequence_add_on(mz_sequence *s, int stream, const mz_prepared *prepared, const mz_call *call,
                                const mz_traffic *traffic) {
    MEZZO_TRY(mz_sequence_add(s, prepared, call, traffic));
    if (mz_can_defer(s->device))
        s->calls.calls[s->calls.n - 1].stream = stream;
    return MEZZO_OK;
}

mezzo_status mz_sequence_defer(mz_sequence *s, int stream, const mz_prepared *prepared, const mz_call *call,
                               const mz_traffic *traffic) {
    mz_call_list *list = mz_can_defer(s->device) ? &s->deferred.list : &s->calls;
    MEZZO_TRY(mz_call_list_add(list, prepared, call, traffic));
    list->calls[list->n - 1].stream = stream;
    return MEZZO_OK;
}

// --- running -------------------------------------------------------------------------------------------------------
static mezzo_status run_calls(mz_sequence *s) {
    for (size_t i = 0; i < s->calls.n; i++)
        MEZZO_TRY(mz_bound_call_run(s->device, &s->calls.calls[i]));
    return MEZZO_OK;
}

// Orders the calls by the bytes that they touch. All are on stream 0 but those that mz_sequence_add_on adds.
static mezzo_status make_order(const mz_sequence *s, mz_stream_order *order) {
    const size_t n = s->calls.n;
    mz_traffic *traffic = mz_alloc(n + 1, sizeof *traffic);
    mezzo_status status = mz_stream_order_alloc(n, order);
    if (status == MEZZO_OK && traffic == NULL)
        status = mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (size_t i = 0; i < n && status == MEZZO_OK; i++) {
        traffic[i] = s->calls.calls[i].traffic;
        order->stream[i] = (signed char)s->calls.calls[i].stream;
    }
    if (status == MEZZO_OK)
        status = mz_stream_order_find(traffic, n, order);
    if (status != MEZZO_OK)
        mz_stream_order_free(order);
    mz_free(traffic);
    return status;
}

static mezzo_status run_streams(mz_sequence *s, const mz_stream_order *order) {
    MEZZO_TRY(mz_stream_order_fork(s->device, order, (int)s->calls.n));
    for (size_t i = 0; i < s->calls.n; i++) {
        MEZZO_TRY(mz_stream_order_begin(s->device, order, i));
        MEZZO_TRY(mz_bound_call_run(s->device, &s->calls.calls[i]));
        MEZZO_TRY(mz_stream_order_end(s->device, order, i));
    }
    return mz_stream_order_join(s->device, order);
}

static bool has_streams(const mz_sequence *s) {
    bool has = false;
    for (size_t i = 0; i < s->calls.n; i++)
        has = has || s->calls.calls[i].stream != 0;
    return has;
}

static mezzo_status run_captured(mz_sequence *s) {
    mz_stream_order order = {0};
    if (!has_streams(s))
        return run_calls(s);
    MEZZO_TRY(make_order(s, &order));
    mezzo_status status = run_streams(s, &order);
    mz_stream_order_free(&order);
    return status;
}

static mezzo_status capture(mz_sequence *s) {
    const mz_backend *b = s->device->backend;
    void *graph = NULL;
    MEZZO_TRY(b->capture_begin(s->device));
    mezzo_status ran = run_captured(s);
    mezzo_status ended = b->capture_end(s->device, &graph);
    if (ran != MEZZO_OK || ended != MEZZO_OK) {
        b->capture_free(s->device, graph);
        return ran != MEZZO_OK ? ran : ended;
    }
    s->graph = graph;
    return MEZZO_OK;
}

static mezzo_status run_or_launch(mz_sequence *s) {
    const mz_backend *b = s->device->backend;
    if (b->capture_begin == NULL || !s->seen || s->device->tracer != NULL) {
        s->seen = true;
        return run_calls(s);
    }
    if (s->graph == NULL)
        MEZZO_TRY(capture(s));
    return b->capture_launch(s->device, s->graph);
}

mezzo_status mz_sequence_run(mz_sequence *s) {
    for (size_t i = 0; i < s->calls.n && s->device->deferred != NULL; i++)
        MEZZO_TRY(mz_deferred_wait(s->device, &s->calls.calls[i].traffic));
    MEZZO_TRY(run_or_launch(s));
    if (s->deferred.list.n == 0)
        return MEZZO_OK;
    // Programs that hold these calls in a graph know them by their id, so the same calls made again keep it.
    if (s->deferred.id == 0)
        s->deferred.id =
            mz_call_list_equal(&s->deferred.list, &s->previous) ? s->previous_id : ++s->device->deferred_id;
    MEZZO_TRY(mz_deferred_push(s->device, &s->deferred));
    return MEZZO_OK;
}

// --- single calls --------------------------------------------------------------------------------------------------
static mezzo_status run_now(mezzo_device *device, const mz_prepared *prepared, mz_call *call, void *scratch,
                            const mz_traffic *traffic) {
    const mz_kernel *kernel = prepared->kernel;
    if (device->deferred != NULL) {
        mz_span spans[MZ_SPANS];
        mz_traffic tensors = mz_traffic_of(call, spans);
        MEZZO_TRY(mz_deferred_wait(device, traffic != NULL ? traffic : &tensors));
    }
    call->workspace = scratch;
    call->state = prepared->state;
    if (prepared->workspace == 0 || scratch != NULL) {
        MEZZO_TRY(mz_traced_run(device, kernel, call, "optimizer", "update", 0));
        return MEZZO_OK;
    }
    MEZZO_TRY(device->backend->alloc(device, prepared->workspace, &call->workspace));
    mezzo_status status = mz_traced_run(device, kernel, call, "optimizer", "update", 0);
    if (status == MEZZO_OK)
        status = device->backend->sync(device); // the scratch must outlive the work
    device->backend->release(device, call->workspace);
    call->workspace = NULL;
    return status;
}

mezzo_status mz_run(mezzo_device *device, const mz_prepared *prepared, mz_call *call, void *scratch) {
    return run_now(device, prepared, call, scratch, NULL);
}

mezzo_status mz_run_once(mezzo_device *device, mz_call *call) {
    MZ_SCOPED(mz_prepared_free) mz_prepared prepared = {0};
    MEZZO_TRY(mz_prepare(device, call, &prepared));
    return mz_run(device, &prepared, call, NULL);
}

mezzo_status mz_issue(mezzo_device *device, mz_sequence *into, const mz_prepared *prepared, mz_call *call,
                      void *scratch, const mz_traffic *traffic) {
    if (into == NULL)
        return run_now(device, prepared, call, scratch, traffic);
    call->workspace = scratch;
    return mz_sequence_add(into, prepared, call, traffic);
}
