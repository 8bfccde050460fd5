// Calls gathered and run at once: on a device that can capture, the same calls as the last time are one graph's launch.
#include "runtime/calls.h"

typedef enum kind { RUN, ZERO, FETCH } kind;
typedef struct entry {
    kind kind;
    const mz_kernel *kernel;
    mz_call call;
    mz_update_attrs update; // what call.attrs.update pointed to: its numbers are part of what a graph holds
    const void *data;       // ZERO, FETCH
    size_t bytes;
    int slot;
} entry;

typedef struct list {
    entry *entries;
    size_t n, cap;
} list;

struct mz_batch {
    list now, before; // gathered this time; what `graph` does
    void *graph;
    bool seen;                             // `before` has been run once: kernels are loaded, so that it can be captured
    mz_deferred deferred, deferred_before; // this time's, and the last time's
};

// --- comparing ------------------------------------------------------------------------------------------------------------
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

// Copies of one object compare equal to the byte; tensors may be made anew at each call, so these are compared by member.
static bool same_entry(const entry *a, const entry *b) {
    if (a->kind != b->kind || a->data != b->data || a->bytes != b->bytes || a->slot != b->slot)
        return false;
    return a->kind != RUN || (a->kernel == b->kernel && a->call.op == b->call.op && a->call.n_in == b->call.n_in &&
                              a->call.n_out == b->call.n_out && a->call.workspace == b->call.workspace &&
                              a->call.state == b->call.state && a->call.rng == b->call.rng &&
                              memcmp(&a->call.attrs, &b->call.attrs, sizeof a->call.attrs) == 0 &&
                              memcmp(&a->update, &b->update, sizeof a->update) == 0 &&
                              same_tensors(a->call.in, b->call.in, a->call.n_in) &&
                              same_tensors(a->call.out, b->call.out, a->call.n_out));
}

static bool same_deferred(const mz_deferred *a, const mz_deferred *b) {
    bool same = a->n == b->n;
    for (size_t i = 0; same && i < a->n; i++) {
        const mz_deferred_call *x = &a->calls[i], *y = &b->calls[i];
        same = x->kernel == y->kernel && x->call.op == y->call.op && x->call.n_in == y->call.n_in &&
               x->call.n_out == y->call.n_out && memcmp(&x->update, &y->update, sizeof x->update) == 0 &&
               same_tensors(x->call.in, y->call.in, x->call.n_in) &&
               same_tensors(x->call.out, y->call.out, x->call.n_out);
    }
    return same;
}

static bool same_lists(const list *a, const list *b) {
    bool same = a->n == b->n;
    for (size_t i = 0; same && i < a->n; i++)
        same = same_entry(&a->entries[i], &b->entries[i]);
    return same;
}

// --- running --------------------------------------------------------------------------------------------------------------
static mezzo_status run_entry(mezzo_device *device, const entry *e) {
    mz_call call = e->call;
    if (call.attrs.update != NULL) // as it was when the call was gathered
        call.attrs.update = &e->update;
    return e->kernel->run(device, &call);
}

// Fetches are events for the host to wait for: they stay outside the graph and follow it. Nothing in a batch changes what an earlier
// fetch of it has asked for (backend.h).
static mezzo_status run_list(mezzo_device *device, list *l, bool fetches) {
    for (size_t i = 0; i < l->n; i++) {
        entry *e = &l->entries[i];
        if (fetches != (e->kind == FETCH))
            continue;
        if (e->kind == RUN)
            MEZZO_TRY(run_entry(device, e));
        else if (e->kind == ZERO)
            MEZZO_TRY(device->backend->zero(device, (void *)(uintptr_t)e->data, e->bytes));
        else
            MEZZO_TRY(device->backend->fetch(device, e->slot, e->data, e->bytes));
    }
    return MEZZO_OK;
}

static mezzo_status capture(mezzo_device *device, mz_batch *batch) {
    const mz_backend *b = device->backend;
    void *graph = NULL;
    MEZZO_TRY(b->capture_begin(device));
    mezzo_status ran = run_list(device, &batch->now, false);
    mezzo_status ended = b->capture_end(device, &graph);
    if (ran != MEZZO_OK || ended != MEZZO_OK) {
        b->capture_free(device, graph);
        return ran != MEZZO_OK ? ran : ended;
    }
    batch->graph = graph;
    return MEZZO_OK;
}

static mezzo_status run_batch(mezzo_device *device, mz_batch *batch) {
    const mz_backend *b = device->backend;
    bool same = batch->seen && same_lists(&batch->now, &batch->before);
    if (!same) {
        b->capture_free(device, batch->graph);
        batch->graph = NULL;
        list swap = batch->before;
        batch->before = batch->now;
        batch->now = swap;
        batch->seen = true;
        MEZZO_TRY(run_list(device, &batch->before, false));
        return run_list(device, &batch->before, true);
    }
    if (batch->graph == NULL)
        MEZZO_TRY(capture(device, batch));
    MEZZO_TRY(b->capture_launch(device, batch->graph));
    return run_list(device, &batch->now, true);
}

static mezzo_status gather_run(mezzo_device *device, const mz_kernel *kernel, const mz_call *call);

// --- deferring --------------------------------------------------------------------------------------------------------------
bool mz_can_defer(const mezzo_device *device) {
    return device->batch != NULL && device->backend->capture_stream != NULL;
}

mezzo_status mz_defer(mezzo_device *device, const mz_prepared *prepared, mz_call *call, const mz_traffic *traffic) {
    if (!mz_can_defer(device))
        return mz_run(device, prepared, call, NULL);
    mz_deferred *waiting = &device->batch->deferred;
    size_t cap = waiting->cap, n_reads = (size_t)traffic->n_reads, n_writes = (size_t)traffic->n_writes;
    MEZZO_TRY(MZ_RESERVE(waiting->calls, waiting->cap, waiting->n + 1));
    memset(waiting->calls + cap, 0, (waiting->cap - cap) * sizeof *waiting->calls);
    mz_deferred_call *c = &waiting->calls[waiting->n];
    mz_free(c->spans);
    *c = (mz_deferred_call){.kernel = prepared->kernel, .spans = mz_alloc(n_reads + n_writes + 1, sizeof *c->spans)};
    if (c->spans == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    memcpy(&c->call, call, sizeof c->call);
    c->call.state = prepared->state;
    memcpy(&c->update, call->attrs.update, sizeof c->update);
    memcpy(c->spans, traffic->reads, n_reads * sizeof *c->spans);
    memcpy(c->spans + n_reads, traffic->writes, n_writes * sizeof *c->spans);
    c->traffic = (mz_traffic){c->spans, c->spans + n_reads, traffic->n_reads, traffic->n_writes};
    waiting->n++;
    return MEZZO_OK;
}

// A later call of the batch needs the deferred ones: they run before it, in their order.
static mezzo_status undefer(mezzo_device *device) {
    mz_deferred *waiting = &device->batch->deferred;
    size_t n = waiting->n;
    waiting->n = 0;
    for (size_t i = 0; i < n; i++) {
        mz_deferred_call *c = &waiting->calls[i];
        c->call.attrs.update = &c->update;
        MEZZO_TRY(gather_run(device, c->kernel, &c->call));
    }
    return MEZZO_OK;
}

// Not for scaler_update: deferred moves do not read what it changes (backend.h).
static mezzo_status undefer_for(mezzo_device *device, const mz_traffic *traffic) {
    const mz_deferred *waiting = &device->batch->deferred;
    for (size_t i = 0; i < waiting->n; i++)
        if (mz_traffic_depends(traffic, &waiting->calls[i].traffic))
            return undefer(device);
    return MEZZO_OK;
}

static mezzo_status undefer_for_bytes(mezzo_device *device, const void *data, size_t bytes, bool writes) {
    const mz_span span = {data, (const char *)data + bytes};
    const mz_traffic touch = {.reads = &span, .writes = &span, .n_reads = !writes, .n_writes = writes};
    return undefer_for(device, &touch);
}

// The device has one list of deferred calls, which belongs to a batch.
static void hand_over(mezzo_device *device, mz_batch *batch) {
    mz_deferred swap = batch->deferred_before;
    if (batch->deferred.n == 0)
        return;
    batch->deferred.id =
        same_deferred(&batch->deferred, &batch->deferred_before) ? batch->deferred_before.id : ++device->deferred_id;
    batch->deferred_before = batch->deferred;
    batch->deferred = swap;
    mz_deferred_set(device, &batch->deferred_before);
}

// --- gathering ------------------------------------------------------------------------------------------------------------
mezzo_status mz_batch_begin(mezzo_device *device, mz_batch **batch) {
    if (device->backend->capture_begin == NULL || device->batch != NULL)
        return MEZZO_OK;
    if (*batch == NULL)
        *batch = mz_alloc(1, sizeof **batch);
    if (*batch == NULL)
        return MEZZO_ERR_MEMORY;
    MEZZO_TRY(mz_deferred_flush(device));
    (*batch)->now.n = (*batch)->deferred.n = 0;
    device->batch = *batch;
    return MEZZO_OK;
}

mezzo_status mz_batch_end(mezzo_device *device) {
    mz_batch *batch = device->batch;
    device->batch = NULL;
    if (batch == NULL)
        return MEZZO_OK;
    MEZZO_TRY(run_batch(device, batch));
    hand_over(device, batch);
    return MEZZO_OK;
}

void mz_batch_cancel(mezzo_device *device) {
    device->batch = NULL;
}

void mz_batch_free(mezzo_device *device, mz_batch *batch) {
    if (batch == NULL)
        return;
    if (device->batch == batch)
        device->batch = NULL;
    if (device->deferred == &batch->deferred_before)
        (void)mz_deferred_flush(device);
    mz_deferred_clear(&batch->deferred);
    mz_deferred_clear(&batch->deferred_before);
    device->backend->capture_free(device, batch->graph);
    mz_free(batch->now.entries);
    mz_free(batch->before.entries);
    mz_free(batch);
}

static mezzo_status gather(mezzo_device *device, entry **out) {
    list *l = &device->batch->now;
    MEZZO_TRY(MZ_RESERVE(l->entries, l->cap, l->n + 1));
    *out = &l->entries[l->n++];
    memset(*out, 0, sizeof **out);
    return MEZZO_OK;
}

static mezzo_status gather_run(mezzo_device *device, const mz_kernel *kernel, const mz_call *call) {
    entry *e;
    mz_span spans[MZ_SPANS];
    mz_traffic traffic = mz_traffic_of(call, spans);
    if (call->op != MZ_OP_scaler_update)
        MEZZO_TRY(undefer_for(device, &traffic));
    MEZZO_TRY(gather(device, &e));
    e->kind = RUN;
    e->kernel = kernel;
    memcpy(&e->call, call, sizeof e->call);
    if (call->attrs.update != NULL)
        memcpy(&e->update, call->attrs.update, sizeof e->update);
    return MEZZO_OK;
}

mezzo_status mz_run(mezzo_device *device, const mz_prepared *prepared, mz_call *call, void *scratch) {
    const mz_kernel *kernel = prepared->kernel;
    call->workspace = scratch;
    call->state = prepared->state;
    if (device->batch == NULL)
        MEZZO_TRY(mz_deferred_flush(device));
    if (prepared->workspace == 0 || scratch != NULL) {
        MEZZO_TRY(device->batch != NULL ? gather_run(device, kernel, call) : kernel->run(device, call));
        return MEZZO_OK;
    }
    if (device->batch != NULL)
        return mz_fail(MEZZO_ERR_INVALID, "%s needs scratch of its own while calls are gathered", kernel->name);
    MEZZO_TRY(device->backend->alloc(device, prepared->workspace, &call->workspace));
    mezzo_status status = kernel->run(device, call);
    if (status == MEZZO_OK)
        status = device->backend->sync(device); // the scratch must outlive the work
    device->backend->release(device, call->workspace);
    call->workspace = NULL;
    return status;
}

mezzo_status mz_run_once(mezzo_device *device, mz_call *call) {
    mz_prepared prepared;
    MEZZO_TRY(mz_prepare(device, call, &prepared));
    mezzo_status status =
        device->batch != NULL && prepared.state != NULL
            ? mz_fail(MEZZO_ERR_INVALID, "%s keeps a state that a batch would outlive", prepared.kernel->name)
            : mz_run(device, &prepared, call, NULL);
    mz_prepared_free(&prepared);
    return status;
}

mezzo_status mz_zero(mezzo_device *device, void *data, size_t bytes) {
    entry *e;
    if (device->batch == NULL)
        return device->backend->zero(device, data, bytes);
    MEZZO_TRY(undefer_for_bytes(device, data, bytes, true));
    MEZZO_TRY(gather(device, &e));
    e->kind = ZERO;
    e->data = data;
    e->bytes = bytes;
    return MEZZO_OK;
}

mezzo_status mz_fetch(mezzo_device *device, int slot, const void *data, size_t bytes) {
    entry *e;
    if (device->batch == NULL)
        return device->backend->fetch(device, slot, data, bytes);
    MEZZO_TRY(undefer_for_bytes(device, data, bytes, false));
    MEZZO_TRY(gather(device, &e));
    e->kind = FETCH;
    e->data = data;
    e->bytes = bytes;
    e->slot = slot;
    return MEZZO_OK;
}
