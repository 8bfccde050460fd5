// Times calls of kernels of any backend through the backend contract.
#include "study/measure/kernels.h"

#include "base/precision.h"
#include "study/analyse/stats.h"

enum { MOST_SETS = 64, MOST_ROUNDS = 101, LEAST_ROUNDS = 5 };

// Sets of tensors with this many bytes alternate, so that no cache keeps them from one call to the next, as in a
// training step, which touches gigabytes in between.
static const double COLD_BYTES = 512.0 * (1 << 20);
// A round lasts at least this long, so that launches and clocks are below a percent of it.
static const double LEAST_ROUND = 1e-3;
static const double LEAST_TIME = 0.25; // seconds for all rounds of a case

// --- memory --------------------------------------------------------------------------------------------------------
typedef struct bench {
    mezzo_device *device;
    mz_prepared prepared;
    mz_bench_call made;
    mz_call sets[MOST_SETS];
    int n_sets;
    void *memory[MOST_SETS]; // all of a set's tensors
    void *workspace, *host, *rng;
    void *scale; // the scale 1 of every scaled tensor
} bench;

static size_t tensor_room(const mz_tensor *t) {
    return mz_present(t) ? mz_align_up(mz_tensor_bytes_stored(t), 64) : 0;
}

// Returns whether the op works in place: the loss's gradient overwrites the logits in every plan.
static bool works_in_place(const mz_call *c) {
    return c->op == MZ_OP_cross_entropy_dx;
}

static size_t set_bytes(const mz_call *c) {
    size_t bytes = 0;
    for (int i = 0; i < c->n_in; i++)
        bytes += tensor_room(&c->in[i]);
    for (int i = 0; i < c->n_out; i++)
        bytes += works_in_place(c) ? 0 : tensor_room(&c->out[i]);
    return bytes;
}

static mezzo_status fill_tensor(bench *b, bool output, int slot, mz_tensor *t, char **next) {
    size_t room = tensor_room(t);
    if (room == 0)
        return MEZZO_OK;
    t->data = *next;
    *next += room;
    t->scale = t->scaling != MZ_SCALING_NONE ? b->scale : NULL;
    mz_bench_fill(&b->made, output, slot, b->host, mz_tensor_bytes_stored(t));
    return b->device->backend->write(b->device, t->data, b->host, room);
}

static size_t largest_tensor(const mz_call *c) {
    size_t most = 64;
    for (int i = 0; i < c->n_in; i++)
        most = tensor_room(&c->in[i]) > most ? tensor_room(&c->in[i]) : most;
    for (int i = 0; i < c->n_out; i++)
        most = tensor_room(&c->out[i]) > most ? tensor_room(&c->out[i]) : most;
    return most;
}

static mezzo_status make_set(bench *b, size_t bytes) {
    mz_call *c = &b->sets[b->n_sets];
    MEZZO_TRY(b->device->backend->alloc(b->device, bytes + 64, &b->memory[b->n_sets]));
    char *next = b->memory[b->n_sets++];
    *c = b->made.call;
    c->attrs.update = &b->made.update;
    c->workspace = b->workspace;
    c->state = b->prepared.state;
    c->rng = b->rng;
    for (int i = 0; i < c->n_in; i++)
        MEZZO_TRY(fill_tensor(b, false, i, &c->in[i], &next));
    for (int i = 0; i < c->n_out; i++) {
        if (works_in_place(c))
            c->out[i].data = c->in[1].data;
        else
            MEZZO_TRY(fill_tensor(b, true, i, &c->out[i], &next));
    }
    return MEZZO_OK;
}

static void bench_free(bench *b) {
    const mz_backend *backend = b->device->backend;
    for (int i = 0; i < b->n_sets; i++)
        backend->release(b->device, b->memory[i]);
    backend->release(b->device, b->workspace);
    backend->release(b->device, b->rng);
    backend->release(b->device, b->scale);
    mz_prepared_free(&b->prepared);
    mz_free(b->host);
}

static mezzo_status bench_prepare(bench *b, bool warm) {
    const mz_backend *backend = b->device->backend;
    const mz_call *call = &b->made.call;
    size_t bytes = set_bytes(call);
    const mz_rng_state rng = {.seed = 1, .step = 1};
    const float one = 1;
    MEZZO_TRY(backend->alloc(b->device, b->prepared.workspace + 64, &b->workspace));
    MEZZO_TRY(backend->alloc(b->device, sizeof rng, &b->rng));
    MEZZO_TRY(backend->write(b->device, b->rng, &rng, sizeof rng));
    MEZZO_TRY(backend->alloc(b->device, sizeof one, &b->scale));
    MEZZO_TRY(backend->write(b->device, b->scale, &one, sizeof one));
    b->host = mz_alloc(1, largest_tensor(call));
    if (b->host == NULL)
        return MEZZO_ERR_MEMORY;
    double wanted = warm ? 1 : COLD_BYTES / (double)(bytes + 1) + 1;
    int sets = wanted < MOST_SETS ? (int)wanted : MOST_SETS;
    for (int i = 0; i < sets; i++)
        MEZZO_TRY(make_set(b, bytes));
    return MEZZO_OK;
}

// --- time ----------------------------------------------------------------------------------------------------------
// Returns the seconds of a call, from `calls` calls in a row; *turn is the next set of tensors.
static mezzo_status time_calls(bench *b, int calls, int *turn, double *seconds) {
    const mz_backend *backend = b->device->backend;
    MEZZO_TRY(backend->sync(b->device));
    double start = mz_seconds();
    for (int i = 0; i < calls; i++, *turn = (*turn + 1) % b->n_sets)
        MEZZO_TRY(b->prepared.kernel->run(b->device, &b->sets[*turn]));
    MEZZO_TRY(backend->sync(b->device));
    *seconds = (mz_seconds() - start) / calls;
    return MEZZO_OK;
}

static mezzo_status time_rounds(bench *b, int asked, mz_bench_row *row) {
    double times[MOST_ROUNDS], first;
    int turn = 0;
    for (int i = 0; i < 2; i++) // so that every page is touched and every thread awake
        MEZZO_TRY(time_calls(b, 1, &turn, &first));
    int calls = first < LEAST_ROUND ? (int)(LEAST_ROUND / (first + 1e-9)) + 1 : 1;
    double wanted = asked > 0 ? asked : LEAST_TIME / (first * calls);
    int least = asked > 0 ? 1 : first > LEAST_TIME ? 3 : LEAST_ROUNDS;
    row->rounds = wanted > MOST_ROUNDS ? MOST_ROUNDS : wanted < least ? least : (int)wanted;
    for (int i = 0; i < row->rounds; i++)
        MEZZO_TRY(time_calls(b, calls, &turn, &times[i]));
    row->median = mz_median(times, (size_t)row->rounds);
    row->best = times[0];
    row->rate = b->made.work / row->median;
    return MEZZO_OK;
}

static mezzo_status time_case(mezzo_device *device, const mz_bench_case *c, mezzo_precision precision, int rounds,
                              bool warm, mz_bench_row *row) {
    bench b = {.device = device};
    mezzo_status status;
    *row = (mz_bench_row){.of = c, .precision = precision};
    mz_bench_make(c, precision, &b.made);
    b.made.call.attrs.update = &b.made.update;
    MEZZO_TRY(mz_prepare(device, &b.made.call, &b.prepared));
    row->kernel = b.prepared.kernel->name;
    MEZZO_TRY_GOTO(status, bench_prepare(&b, warm));
    MEZZO_TRY_GOTO(status, time_rounds(&b, rounds, row));
fail:
    bench_free(&b);
    return status;
}

// --- cases ----------------------------------------------------------------------------------------------------------
static bool timed_before(const mz_bench_options *o, const mz_bench_case *c, int p) {
    for (int i = 0; i < p; i++)
        if (mz_bench_same(c, o->precisions[i], o->precisions[p]))
            return true;
    return false;
}

mezzo_status mz_bench_kernels(mezzo_device *device, const mz_bench_options *options, const mz_peaks *peaks,
                              mz_bench_fn *visit, void *user) {
    for (int i = 0; i < options->n_cases; i++)
        for (int p = 0; p < options->n_precisions; p++) {
            const mz_bench_case *c = &options->cases[i];
            mezzo_precision precision = options->precisions[p];
            mz_bench_row row;
            if (timed_before(options, c, p))
                continue;
            mezzo_status status = time_case(device, c, precision, options->rounds, options->warm, &row);
            if (status == MEZZO_ERR_UNSUPPORTED) {
                mz_log("notice", "%s in %s left out: %s", c->op->name, mezzo_precision_name(precision),
                       mezzo_error_message());
                continue;
            }
            MEZZO_TRY(status);
            row.peak = mz_bench_op_scored(c->op) ? peaks->flops[mz_precision(precision)->compute] : peaks->copy;
            visit(user, &row);
        }
    return MEZZO_OK;
}
