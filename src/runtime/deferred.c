#include "runtime/deferred.h"

#include "runtime/tracer.h"

// --- lists of calls ------------------------------------------------------------------------------------------------
mezzo_status mz_call_list_add(mz_call_list *list, const mz_prepared *prepared, const mz_call *call,
                              const mz_traffic *traffic) {
    mz_span whole[MZ_SPANS];
    mz_traffic tensors = mz_traffic_of(call, whole);
    traffic = traffic != NULL ? traffic : &tensors;
    size_t n_reads = (size_t)traffic->n_reads, n_writes = (size_t)traffic->n_writes;
    MEZZO_TRY(MZ_RESERVE(list->calls, list->cap, list->n + 1));
    mz_bound_call *c = &list->calls[list->n];
    *c = (mz_bound_call){.kernel = prepared->kernel, .spans = mz_alloc(n_reads + n_writes + 1, sizeof *c->spans)};
    if (c->spans == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    memcpy(&c->call, call, sizeof c->call);
    c->call.state = prepared->state;
    if (call->attrs.update != NULL)
        memcpy(&c->update, call->attrs.update, sizeof c->update);
    memcpy(c->spans, traffic->reads, n_reads * sizeof *c->spans);
    memcpy(c->spans + n_reads, traffic->writes, n_writes * sizeof *c->spans);
    c->traffic = (mz_traffic){c->spans, c->spans + n_reads, traffic->n_reads, traffic->n_writes};
    list->n++;
    return MEZZO_OK;
}

static mezzo_status run_on_stream(mezzo_device *device, mz_bound_call *c, int stream) {
    if (c->call.attrs.update != NULL) // the list may have moved in memory
        c->call.attrs.update = &c->update;
    return mz_traced_run(device, c->kernel, &c->call, "optimizer", "update", stream);
}

mezzo_status mz_bound_call_run(mezzo_device *device, mz_bound_call *c) {
    return run_on_stream(device, c, 0);
}

bool mz_call_list_depends(const mz_call_list *list, const mz_traffic *second) {
    for (size_t i = 0; i < list->n; i++)
        if (mz_traffic_depends(second, &list->calls[i].traffic))
            return true;
    return false;
}

static bool same_tensors(const mz_tensor *a, const mz_tensor *b, int n) {
    for (int i = 0; i < n; i++) {
        if (mz_present(&a[i]) != mz_present(&b[i]))
            return false;
        if (mz_present(&a[i]) &&
            (a[i].data != b[i].data || a[i].dtype != b[i].dtype || !mz_shape_equal(&a[i].shape, &b[i].shape) ||
             a[i].scaling != b[i].scaling || a[i].scale != b[i].scale))
            return false;
    }
    return true;
}

// Constants are copies of one object, so memcmp compares them.
bool mz_call_list_equal(const mz_call_list *a, const mz_call_list *b) {
    bool same = a->n == b->n;
    for (size_t i = 0; same && i < a->n; i++) {
        const mz_bound_call *x = &a->calls[i], *y = &b->calls[i];
        same =
            x->kernel == y->kernel && x->stream == y->stream && x->call.op == y->call.op &&
            x->call.n_in == y->call.n_in && x->call.n_out == y->call.n_out && x->call.workspace == y->call.workspace &&
            x->call.state == y->call.state && memcmp(&x->update, &y->update, sizeof x->update) == 0 &&
            same_tensors(x->call.in, y->call.in, x->call.n_in) && same_tensors(x->call.out, y->call.out, x->call.n_out);
    }
    return same;
}

void mz_call_list_free(mz_call_list *list) {
    for (size_t i = 0; i < list->n; i++)
        mz_free(list->calls[i].spans);
    mz_free(list->calls);
    *list = (mz_call_list){0};
}

// --- deferred calls ------------------------------------------------------------------------------------------------
static mezzo_status flush_deferred(mezzo_device *device, const void *data, size_t bytes, bool writes) {
    const mz_span span = {data, (const char *)data + bytes};
    const mz_traffic host = {.reads = &span, .writes = &span, .n_reads = !writes, .n_writes = writes};
    return mz_deferred_wait(device, &host);
}

mz_deferred *mz_deferred_take(mezzo_device *device) {
    mz_deferred *first = device->deferred;
    device->deferred = NULL;
    device->flush_deferred = NULL;
    return first;
}

void mz_deferred_give_back(mezzo_device *device, mz_deferred *first) {
    device->deferred = first;
    device->flush_deferred = first != NULL ? flush_deferred : NULL;
}

mezzo_status mz_deferred_flush(mezzo_device *device) {
    for (mz_deferred *d = mz_deferred_take(device); d != NULL; d = d->next)
        for (size_t i = 0; i < d->list.n; i++)
            MEZZO_TRY(run_on_stream(device, &d->list.calls[i], MZ_STREAM_DEFERRED));
    return MEZZO_OK;
}

mezzo_status mz_deferred_wait(mezzo_device *device, const mz_traffic *traffic) {
    for (const mz_deferred *d = device->deferred; d != NULL; d = d->next)
        if (mz_call_list_depends(&d->list, traffic))
            return mz_deferred_flush(device);
    return MEZZO_OK;
}

bool mz_deferred_waits(const mezzo_device *device, const mz_deferred *deferred) {
    const mz_deferred *d = device->deferred;
    while (d != NULL && d != deferred)
        d = d->next;
    return d != NULL;
}

mezzo_status mz_deferred_push(mezzo_device *device, mz_deferred *deferred) {
    int waiting = 0;
    for (const mz_deferred *d = device->deferred; d != NULL; d = d->next)
        waiting++;
    if (waiting == MZ_DEFERRED_LISTS || mz_deferred_waits(device, deferred))
        MEZZO_TRY(mz_deferred_flush(device));
    mz_deferred **last = &device->deferred;
    while (*last != NULL)
        last = &(*last)->next;
    *last = deferred;
    deferred->next = NULL;
    device->flush_deferred = flush_deferred;
    return MEZZO_OK;
}

mezzo_status mezzo_device_sync(mezzo_device *device) {
    MZ_REQUIRE(device);
    MEZZO_TRY(mz_deferred_flush(device));
    MEZZO_TRY(device->backend->sync(device));
    return MEZZO_OK;
}
