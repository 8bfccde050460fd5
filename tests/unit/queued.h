// A device that captures: the CPU's, with its kernels wrapped so that a capture keeps them for later, and it can tell
// what was captured and launched. And a training that is small enough to be repeated. For tests that include it.
#ifndef MZ_TEST_QUEUED_H
#define MZ_TEST_QUEUED_H

#include <math.h>

#include "fixture.h"
#include "runtime/params.h"
#include "backend/collective.h"
#include "graph/graph.h"
#include "runtime/program.h"
#include "optim/step.h"

// --- a device that captures ----------------------------------------------------------------------------------------
extern const mz_backend mz_backend_cpu;
enum { KEPT_MOST = 512 };
typedef struct kept {
    mz_call call[KEPT_MOST];
    mz_update_attrs update[KEPT_MOST];
    struct {
        void *data;
        size_t bytes;
    } zero[KEPT_MOST];
    mz_collective collective[KEPT_MOST]; // send NULL: none
    int stream[KEPT_MOST];
    int before[KEPT_MOST][MZ_STREAMS]; // how many of each other stream's must have run before it
    int n;
    struct {
        int stream, count; // how many calls its stream had then
    } events[KEPT_MOST];
    int launched;
    int counts[MZ_STREAMS]; // per stream: how many it holds
    int now,
        waits[MZ_STREAMS][MZ_STREAMS]; // the stream under way; per stream: how many of the others' come before its next
} kept;

static mz_backend queued;
static kept *capturing;
static int captures, launches, eager, overlapped, deferred, collectives;

// A wrapped call's state: the CPU's kernel, prepared, and what it was prepared for.
typedef struct below {
    mz_prepared prepared;
    bool accumulate;
} below;
static void wrapped_release(void *state) {
    below *b = state;
    mz_prepared_free(&b->prepared);
    mz_free(b);
}
static const char *wrapped_prepare(mezzo_device *device, const mz_call *call, mz_prepared *out) {
    size_t n;
    const char *reason = "no kernel";
    const mz_kernel *const *list = mz_backend_cpu.kernels(device, call->op, &n);
    below *b = out->state = mz_alloc(1, sizeof *b);
    assert_non_null(b);
    out->release = wrapped_release;
    b->accumulate = call->attrs.accumulate;
    for (size_t i = 0; i < n && reason != NULL; i++)
        reason = mz_prepare_kernel(device, list[i], call, &b->prepared);
    out->workspace = b->prepared.workspace;
    return reason;
}
static mezzo_status run_below(mezzo_device *device, const mz_call *call) {
    const below *b = call->state;
    mz_call own = *call;
    assert_true(b->accumulate == call->attrs.accumulate); // adding and writing have a plan each
    own.state = b->prepared.state;
    return b->prepared.kernel->run(device, &own);
}
static void keep(void) {
    kept *k = capturing;
    k->stream[k->n] = k->now;
    memcpy(k->before[k->n++], k->waits[k->now], sizeof k->waits[k->now]);
    k->counts[k->now]++;
}
static mezzo_status wrapped_run(mezzo_device *device, const mz_call *call) {
    if (capturing == NULL) {
        eager++;
        return run_below(device, call);
    }
    assert_true(capturing->n < KEPT_MOST);
    capturing->call[capturing->n] = *call;
    if (call->attrs.update != NULL)
        capturing->update[capturing->n] = *call->attrs.update;
    keep();
    overlapped += capturing->now == 1;
    deferred += capturing->now == MZ_STREAM_DEFERRED;
    return MEZZO_OK;
}
static const mz_kernel wrapped = {"wrapped", wrapped_prepare, wrapped_run};

static const mz_kernel *const *queued_kernels(const mezzo_device *device, mz_op op, size_t *n) {
    static const mz_kernel *const list[] = {&wrapped};
    (void)device;
    (void)op;
    *n = 1;
    return list;
}
static mezzo_status queued_zero(mezzo_device *device, void *data, size_t bytes) {
    if (capturing == NULL) {
        must(mz_device_flush_deferred(device, data, bytes, true));
        return mz_backend_cpu.zero(device, data, bytes);
    }
    capturing->zero[capturing->n].data = data;
    capturing->zero[capturing->n].bytes = bytes;
    keep();
    return MEZZO_OK;
}
static mezzo_status queued_write(mezzo_device *device, void *dst, const void *host, size_t bytes) {
    must(mz_device_flush_deferred(device, dst, bytes, true));
    return mz_backend_cpu.write(device, dst, host, bytes);
}
static mezzo_status queued_read(mezzo_device *device, void *host, const void *src, size_t bytes) {
    must(mz_device_flush_deferred(device, src, bytes, false));
    return mz_backend_cpu.read(device, host, src, bytes);
}

// The host's memory of an upload must stay as it is until the host has waited for it.
typedef struct queued_upload {
    mz_upload base;
    void *sent; // what it had when it was uploaded; NULL: it was waited for
    size_t n;
} queued_upload;
static int uploads;
static mezzo_status queued_upload_open(mezzo_device *device, size_t bytes, mz_upload **out) {
    (void)device;
    queued_upload *u = mz_alloc(1, sizeof *u);
    assert_non_null(u);
    u->base = (mz_upload){.host = mz_alloc(bytes, 1), .bytes = bytes};
    assert_non_null(u->base.host);
    *out = &u->base;
    return MEZZO_OK;
}
static mezzo_status queued_upload_wait(mezzo_device *device, mz_upload *upload) {
    (void)device;
    queued_upload *u = (queued_upload *)(void *)upload;
    if (u->sent != NULL)
        assert_memory_equal(u->base.host, u->sent, u->n);
    mz_free(u->sent);
    u->sent = NULL;
    return MEZZO_OK;
}
static mezzo_status queued_upload_send(mezzo_device *device, mz_upload *upload, void *dst, size_t bytes) {
    queued_upload *u = (queued_upload *)(void *)upload;
    assert_null(u->sent);
    assert_true(bytes <= upload->bytes);
    u->sent = mz_alloc(bytes, 1);
    assert_non_null(u->sent);
    memcpy(u->sent, upload->host, bytes);
    u->n = bytes;
    uploads++;
    return queued_write(device, dst, upload->host, bytes);
}
static void queued_upload_close(mezzo_device *device, mz_upload *upload) {
    if (upload == NULL)
        return;
    must(queued_upload_wait(device, upload));
    mz_free(upload->host);
    mz_free(upload);
}
static mezzo_status queued_fetch(mezzo_device *device, mz_fetch *fetch, size_t at, const void *src, size_t bytes) {
    must(mz_device_flush_deferred(device, src, bytes, false));
    return mz_backend_cpu.fetch(device, fetch, at, src, bytes);
}
static mezzo_status queued_begin(mezzo_device *device) {
    (void)device;
    assert_null(capturing);
    capturing = mz_alloc(1, sizeof *capturing);
    assert_non_null(capturing);
    return MEZZO_OK;
}
static mezzo_status queued_end(mezzo_device *device, void **graph) {
    (void)device;
    *graph = capturing;
    capturing = NULL;
    captures++;
    return MEZZO_OK;
}
static mezzo_status queued_stream(mezzo_device *device, int stream) {
    (void)device;
    capturing->now = stream;
    return MEZZO_OK;
}
static mezzo_status queued_record(mezzo_device *device, int event) {
    (void)device;
    capturing->events[event].stream = capturing->now;
    capturing->events[event].count = capturing->counts[capturing->now];
    return MEZZO_OK;
}
static mezzo_status queued_wait(mezzo_device *device, int event) {
    (void)device;
    int stream = capturing->events[event].stream, count = capturing->events[event].count;
    int *waits = &capturing->waits[capturing->now][stream];
    assert_true(stream != capturing->now);
    *waits = count > *waits ? count : *waits;
    return MEZZO_OK;
}

// Rank 0 of two: what the other sends stands in this one's memory, after what this one sends; or it is the same
// (twin_agrees), so that what is between parameters, which nobody reads, comes into no sum of others.
static bool twin_agrees;
static void with_a_twin(const mz_collective *w) {
    const size_t bytes = w->count * mezzo_dtype_size(w->dtype);
    if (w->kind == MZ_ALL_GATHER) {
        if (w->recv != w->send)
            memcpy(w->recv, w->send, bytes);
        memcpy((char *)w->recv + bytes, w->send, bytes);
        return;
    }
    if (w->kind == MZ_ALL_TO_ALL) {
        memcpy(w->recv, w->send, 2 * bytes);
        if (twin_agrees)
            memcpy((char *)w->recv + bytes, w->send, bytes);
        return;
    }
    assert_true(w->kind == MZ_REDUCE_SCATTER_SUM || w->dtype == MEZZO_F64);
    for (size_t i = 0; i < w->count && w->kind == MZ_REDUCE_SCATTER_SUM; i++)
        ((float *)w->recv)[i] =
            ((const float *)w->send)[i] + ((const float *)w->send)[(twin_agrees ? 0 : w->count) + i];
    for (size_t i = 0; i < w->count && w->kind == MZ_ALL_REDUCE_SUM; i++)
        ((double *)w->recv)[i] = 2 * ((const double *)w->send)[i];
}
static mezzo_status run_with_a_twin(mz_comm *comm, mezzo_device *device, const mz_collective *what) {
    (void)comm, (void)device;
    if (capturing == NULL) {
        with_a_twin(what);
        return MEZZO_OK;
    }
    collectives += capturing->now == MZ_STREAM_COLLECTIVE;
    capturing->collective[capturing->n] = *what;
    keep();
    return MEZZO_OK;
}

static mz_comm twin;

static void launch_one(mezzo_device *device, kept *k, int i) {
    mz_call call = k->call[i];
    if (k->collective[i].send != NULL) {
        with_a_twin(&k->collective[i]);
        return;
    }
    if (k->zero[i].data != NULL) {
        must(mz_backend_cpu.zero(device, k->zero[i].data, k->zero[i].bytes));
        return;
    }
    if (call.attrs.update != NULL)
        call.attrs.update = &k->update[i]; // a graph holds the constants it was captured with
    must(run_below(device, &call));
}

static bool may_run(const kept *k, int i, const int *done) {
    for (int l = 0; i < k->n && l < MZ_STREAMS; l++)
        if (l != k->stream[i] && k->before[i][l] > done[l])
            return false;
    return i < k->n;
}

// Each stream in its order, one of them always as far ahead of the others as its waits allow, and one of these of the
// last: by turns, from launch to launch.
static mezzo_status queued_launch(mezzo_device *device, void *graph) {
    static const int turns[][MZ_STREAMS] = {{3, 1, 2, 0}, {0, 1, 3, 2}, {2, 1, 0, 3}, {1, 0, 3, 2},
                                            {3, 0, 1, 2}, {2, 0, 3, 1}, {0, 3, 1, 2}, {1, 3, 0, 2}};
    kept *k = graph;
    int done[MZ_STREAMS] = {0}, at[MZ_STREAMS] = {0};
    const int *turn = turns[k->launched++ % (int)MZ_COUNT(turns)];
    launches++;
    for (int l = 1; l < MZ_STREAMS; l++) // the end has waited for all of the others
        assert_true(k->counts[l] == 0 || k->waits[0][l] == k->counts[l]);
    for (int ran = 0; ran < k->n; ran++) {
        int next = -1;
        for (int t = 0; t < MZ_STREAMS && next < 0; t++) {
            int l = turn[t];
            while (at[l] < k->n && k->stream[at[l]] != l)
                at[l]++;
            if (may_run(k, at[l], done))
                next = l;
        }
        assert_true(next >= 0);
        launch_one(device, k, at[next]++);
        done[next]++;
    }
    return MEZZO_OK;
}
static void queued_free(mezzo_device *device, void *graph) {
    (void)device;
    mz_free(graph);
}

static int queue_open(void **state) {
    (void)state;
    twin = (mz_comm){.rank = 0, .size = 2, .run = run_with_a_twin};
    queued = mz_backend_cpu;
    queued.name = "queued";
    queued.kernels = queued_kernels;
    queued.zero = queued_zero;
    queued.write = queued_write;
    queued.read = queued_read;
    queued.fetch = queued_fetch;
    queued.upload_open = queued_upload_open;
    queued.upload = queued_upload_send;
    queued.upload_wait = queued_upload_wait;
    queued.upload_close = queued_upload_close;
    queued.queue = true;
    queued.capture_begin = queued_begin;
    queued.capture_end = queued_end;
    queued.capture_launch = queued_launch;
    queued.capture_free = queued_free;
    queued.capture_stream = queued_stream;
    queued.few_rows = 4096;
    queued.capture_record = queued_record;
    queued.capture_wait = queued_wait;
    return 0;
}

// --- training on it ------------------------------------------------------------------------------------------------
typedef struct trained {
    mezzo_params *params;
    mezzo_device *device;
    float *grads; // after the last backward, before it was zeroed
} trained;

enum { BATCH = 2, LENGTH = 8, VOCAB = 31, STEPS = 7 };

static void write_batch(mezzo_program *p, int k) {
    must(fixture_batch(p, BATCH * LENGTH, VOCAB, k));
}

// A model so small that a step takes no time.
static void tiny_model(const char *name, mezzo_model_config *c) {
    *c = fixture_model(name, 16, 64, VOCAB, LENGTH);
    c->dropout = strcmp(name, "glm4_moe") == 0 ? 0 : 0.1;
}

#endif
