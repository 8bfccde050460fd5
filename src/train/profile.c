// Records the device's calls by its tracer, and the host's work.
#include "train/profile.h"

#include <math.h>

#include "runtime/tracer.h"
#include "train/run.h"

enum {
    DEPTH = 8,
    BATCH = (MZ_MARKS - 1) / 2, // calls between two reads of the device's marks
    FILLS = 8,                  // passes over the scratch that keep a queue busy while the host adds calls
};
static const size_t SCRATCH = (size_t)64 << 20;

struct mz_profile {
    mz_tracer tracer; // must be first: the device reports to this object
    mezzo_device *device;
    mz_profile_event *events;
    size_t n, cap;
    size_t open[DEPTH]; // bars of the host that have not ended
    int depth;
    bool recording;
    mezzo_status status; // MEMORY where a bar found none
    double began;        // the host's clock at the first step
    double base;         // the host's clock when mark 0 passed
    size_t first_call;   // the first call of the batch
    int calls;           // number of calls in the batch
    void *scratch;       // on the device; NULL: none
    mz_peaks peaks;
    int64_t first_step, steps, done;
    double seconds, step_start;
};

// --- calls ---------------------------------------------------------------------------------------------------------
static void add_tensors(mz_text *t, mz_op op, bool output, const mz_tensor *tensors, int n) {
    bool any = false;
    for (int i = 0; i < n; i++) {
        if (!mz_present(&tensors[i]))
            continue;
        mz_text_addf(t, "%s%s [", any ? ", " : "", mz_op_slot(op, output, i).name);
        for (int d = 0; d < tensors[i].shape.rank; d++)
            mz_text_addf(t, "%s%lld", d > 0 ? ", " : "", (long long)tensors[i].shape.dim[d]);
        mz_text_addf(t, "] %s", mezzo_dtype_name(tensors[i].dtype));
        any = true;
    }
}

static char *tensors_of(const mz_call *call) {
    mz_text t = {0};
    add_tensors(&t, call->op, false, call->in, call->n_in);
    mz_text_addf(&t, " -> ");
    add_tensors(&t, call->op, true, call->out, call->n_out);
    if (t.status == MEZZO_OK)
        return t.data;
    mz_text_free(&t);
    return NULL;
}

// Sets the least time of a call. A format without arithmetic of its own is computed in FP32.
static void set_floor(mz_profile_event *e, const mz_peaks *peaks) {
    double rate = peaks->flops[e->compute] > 0 ? peaks->flops[e->compute] : peaks->flops[MEZZO_F32];
    double arithmetic = rate > 0 ? e->flops / rate : 0, memory = peaks->copy > 0 ? e->bytes / peaks->copy : 0;
    e->arithmetic = arithmetic > memory;
    e->floor = e->arithmetic ? arithmetic : memory;
}

// Turns the marks of the batch into times, and waits for the device; the next call then finds an empty queue.
static mezzo_status read_batch(mz_profile *p) {
    for (int i = 0; i < p->calls; i++) {
        mz_profile_event *e = &p->events[p->first_call];
        double from, to;
        while (e->host) // skips bars that began in between
            e++;
        MEZZO_TRY(mezzo_device_elapsed(p->device, 0, 2 * i + 1, &from));
        MEZZO_TRY(mezzo_device_elapsed(p->device, 0, 2 * i + 2, &to));
        e->start = p->base + from - p->began;
        e->seconds = to - from;
        p->first_call = (size_t)(e - p->events) + 1;
    }
    p->calls = 0;
    return MEZZO_OK;
}

// Begins a batch. A queue that is busy for a while lets the host get ahead: the time between two marks is then the
// kernel's alone, without its launch.
static mezzo_status begin_batch(mz_profile *p) {
    MEZZO_TRY(p->device->backend->sync(p->device));
    p->base = mz_seconds();
    p->first_call = p->n;
    MEZZO_TRY(mezzo_device_mark(p->device, 0));
    for (int i = 0; i < FILLS && p->scratch != NULL; i++)
        MEZZO_TRY(p->device->backend->zero(p->device, p->scratch, SCRATCH));
    return MEZZO_OK;
}

static mezzo_status begin_call(mz_tracer *tracer, const mz_traced *what) {
    mz_profile *p = (mz_profile *)(void *)tracer;
    const mz_call *call = what->call;
    if (p->calls == 0)
        MEZZO_TRY(begin_batch(p));
    MEZZO_TRY(MZ_RESERVE(p->events, p->cap, p->n + 1));
    mz_profile_event *e = &p->events[p->n];
    *e = (mz_profile_event){.name = mz_op_table[call->op].name,
                            .kernel = what->kernel,
                            .module = what->module,
                            .phase = what->phase,
                            .tensors = tensors_of(call),
                            .stream = what->stream,
                            .step = p->first_step + p->done,
                            .flops = what->flops,
                            .bytes = mz_traced_bytes(call),
                            .compute = call->numerics.compute};
    if (e->tensors == NULL)
        return MEZZO_ERR_MEMORY;
    if (what->second != NULL)
        e->bytes += mz_traced_bytes(what->second);
    if (what->third != NULL)
        e->bytes += mz_traced_bytes(what->third);
    set_floor(e, &p->peaks);
    p->n++;
    if (p->device->backend->range_push != NULL) {
        char range[256];
        snprintf(range, sizeof range, "%s%s%s", e->name, what->module[0] != '\0' ? " " : "", what->module);
        p->device->backend->range_push(p->device, range);
    }
    return mezzo_device_mark(p->device, 2 * p->calls + 1);
}

static mezzo_status end_call(mz_tracer *tracer) {
    mz_profile *p = (mz_profile *)(void *)tracer;
    MEZZO_TRY(mezzo_device_mark(p->device, 2 * p->calls + 2));
    if (p->device->backend->range_pop != NULL)
        p->device->backend->range_pop(p->device);
    p->calls++;
    return p->calls < BATCH ? MEZZO_OK : read_batch(p);
}

// --- the host ------------------------------------------------------------------------------------------------------
void mz_profile_push(mz_profile *p, const char *name) {
    if (p == NULL || !p->recording || p->depth == DEPTH)
        return;
    if (p->status == MEZZO_OK)
        p->status = MZ_RESERVE(p->events, p->cap, p->n + 1);
    if (p->status != MEZZO_OK)
        return;
    if (p->device->backend->range_push != NULL)
        p->device->backend->range_push(p->device, name);
    p->open[p->depth] = p->n;
    p->events[p->n++] = (mz_profile_event){.name = name,
                                           .host = true,
                                           .depth = p->depth,
                                           .step = p->first_step + p->done,
                                           .start = mz_seconds() - p->began};
    p->depth++;
}

void mz_profile_pop(mz_profile *p) {
    if (p == NULL || !p->recording || p->depth == 0)
        return;
    mz_profile_event *e = &p->events[p->open[--p->depth]];
    e->seconds = mz_seconds() - p->began - e->start;
    if (p->device->backend->range_pop != NULL)
        p->device->backend->range_pop(p->device);
}

// --- steps ---------------------------------------------------------------------------------------------------------
mezzo_status mz_profile_open(mz_training *run) {
    int64_t steps = run->config.profile, left = run->config.steps - run->step;
    if (steps == 0 || run->bisecting)
        return MEZZO_OK;
    if (left < steps + MZ_PROFILE_WARMUP)
        return mz_fail(MEZZO_ERR_INVALID,
                       "train.profile: %lld steps after %d of warm-up, but only %lld are left: raise train.steps",
                       (long long)steps, MZ_PROFILE_WARMUP, (long long)left);
    mz_profile *p;
    MEZZO_TRY(MZ_NEW(p, 1));
    run->profile = p;
    p->tracer = (mz_tracer){.begin = begin_call, .end = end_call};
    p->device = run->engine.device;
    p->first_step = run->step + MZ_PROFILE_WARMUP + 1;
    p->steps = steps;
    MEZZO_TRY(mz_device_peaks(p->device, &p->peaks));
    bool queue = p->device->backend->queue;
    if (queue && p->device->backend->alloc(p->device, SCRATCH, &p->scratch) != MEZZO_OK)
        p->scratch = NULL; // the times of the first calls of a batch then include launches
    return MEZZO_OK;
}

void mz_profile_close(mz_profile *p) {
    if (p == NULL)
        return;
    if (p->device->tracer == &p->tracer)
        p->device->tracer = NULL;
    for (size_t i = 0; i < p->n; i++)
        mz_free(p->events[i].tensors);
    if (p->scratch != NULL)
        p->device->backend->release(p->device, p->scratch);
    MZ_FREE(p->events, p);
}

mezzo_status mz_profile_step_begin(mz_training *run) {
    mz_profile *p = run->profile;
    if (p == NULL || p->done == p->steps || run->step + 1 < p->first_step)
        return MEZZO_OK;
    MEZZO_TRY(mezzo_device_sync(p->device));
    if (p->done == 0)
        p->began = mz_seconds();
    p->recording = true;
    p->device->tracer = &p->tracer;
    p->step_start = mz_seconds();
    mz_profile_push(p, "step");
    return MEZZO_OK;
}

static mezzo_status write_files(mz_training *run) {
    mz_profile *p = run->profile;
    char folder[4200], model[256];
    mz_text table = {0};
    snprintf(folder, sizeof folder, "%s/profile", run->config.out);
    mz_run_describe_model(run, model, sizeof model);
    const mz_profile_view view = {.events = p->events,
                                  .n = p->n,
                                  .first_step = p->first_step,
                                  .steps = p->steps,
                                  .seconds = p->seconds,
                                  .model = model,
                                  .device = run->engine.info.description,
                                  .precision = mezzo_precision_name(run->engine.plan.program.precision),
                                  .peaks = p->peaks,
                                  .queue = p->device->backend->queue};
    mezzo_status status = mz_profile_write(&view, folder, &table);
    if (status == MEZZO_OK)
        mz_run_event(run, MEZZO_EVENT_PROFILE, table.data);
    mz_text_free(&table);
    return status;
}

mezzo_status mz_profile_step_end(mz_training *run) {
    mz_profile *p = run->profile;
    if (p == NULL || !p->recording)
        return MEZZO_OK;
    MEZZO_TRY(mz_deferred_flush(p->device)); // the step's deferred calls belong to it
    MEZZO_TRY(read_batch(p));
    p->device->tracer = NULL;
    MEZZO_TRY(mezzo_device_sync(p->device));
    while (p->depth > 0)
        mz_profile_pop(p);
    p->seconds += mz_seconds() - p->step_start;
    p->recording = ++p->done < p->steps; // validations and checkpoints between two recorded steps have bars
    MEZZO_TRY(p->status);
    return p->done < p->steps ? MEZZO_OK : write_files(run);
}
