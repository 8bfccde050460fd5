// bench/repeat: whether a training step has the same bits each time, and if not, which of its ops comes to other ones.
//   bench_repeat STEPS TIMES ALONE --KEY VALUE …      the keys of mezzo train, with one micro batch a step
// After STEPS steps it computes the loss and the gradients of the last batch TIMES times as training does (on a GPU:
// one captured graph) and compares them with the first time's. Where they differ, the parameter whose gradient is
// finished first says which calls are in doubt: those after the last gradient that agrees. Then each call that keeps
// its operands runs ALONE times more in its place, and its results are compared too. The last line sums up. Exit code:
// 0 all alike, 1 not, 2 usage, 3 failure.
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/calls.h"
#include "train/run.h"

enum { MOST_PLACES = 64 };

typedef struct repeats {
    mz_training run;
    mezzo_program *program;
    int *writer;              // per parameter: the last call that writes its gradient; -1: none
    void *first, *difference; // device, `bytes` each
    void *found;              // device: an mz_inspection
    size_t bytes;             // of gradients, or the most that a call writes
    int64_t differed, lost;   // computations with other gradients; with another loss
    int places[MOST_PLACES], n_places, counts[MOST_PLACES]; // the first of these calls whose gradients differed
} repeats;

static const mz_node *node_of(const repeats *r, int call) {
    return &r->program->c.graph->nodes[r->program->c.node[call]];
}

static const char *module_of(const repeats *r, int call) {
    const char *name = r->program->c.graph->modules[node_of(r, call)->module];
    return name[0] != '\0' ? name : "the model";
}

static void print_call(const repeats *r, int call) {
    const mz_fused_kernel *pair = r->program->pairs[call];
    printf(" %s of %s [%s]", mz_op_table[node_of(r, call)->op].name, module_of(r, call),
           pair != NULL ? pair->name : r->program->c.prepared[call].kernel->name);
}

static mezzo_status open_repeats(int argc, const char *const *argv, mezzo_config **config, repeats *r) {
    const char *rest[64];
    int n = 0;
    mz_training *run = &r->run;
    MEZZO_TRY(mezzo_config_create(config));
    MEZZO_TRY(mezzo_config_args(*config, argc, argv, rest, &n));
    MEZZO_TRY(mezzo_config_set(*config, "train.sample_every", "-1", "bench"));
    MEZZO_TRY(mz_run_open(*config, NULL, run));
    MEZZO_TRY(mz_guard_arm(run));
    if (run->config.grad_accum != 1 || run->engine.size != 1)
        return mz_fail(MEZZO_ERR_INVALID, "bench_repeat: one micro batch a step and one rank, please");
    mezzo_program *p = r->program = run->engine.session.train;
    const mezzo_params *params = run->engine.session.params;
    r->writer = mz_alloc(params->n + 1, sizeof *r->writer);
    if (r->writer == NULL)
        return MEZZO_ERR_MEMORY;
    for (size_t i = 0; i < params->n; i++)
        r->writer[i] = -1;
    for (int i = 0; i < (int)p->c.n_calls; i++)
        for (int k = 0; k < node_of(r, i)->n_out; k++) {
            const int param = mz_gradient_of(p->c.graph, node_of(r, i)->out[k]);
            if (param >= 0)
                r->writer[mezzo_params_find(params, p->c.graph->params[param].name)] = i;
        }
    r->bytes = (size_t)params->grad_elements * sizeof(float);
    for (size_t i = 0; i < p->c.n_calls; i++)
        for (int k = 0; k < p->c.calls[i].n_out; k++) {
            const mz_tensor *t = &p->c.calls[i].out[k];
            const size_t size = mz_present(t) ? mz_tensor_bytes_stored(t) : 0;
            r->bytes = size > r->bytes ? size : r->bytes;
        }
    mezzo_device *d = run->engine.device;
    MEZZO_TRY(d->backend->alloc(d, r->bytes, &r->first));
    MEZZO_TRY(d->backend->alloc(d, r->bytes, &r->difference));
    return d->backend->alloc(d, sizeof(mz_inspection), &r->found);
}

static mezzo_status train(repeats *r, int64_t steps) {
    bool fresh;
    for (int64_t i = 0; i < steps; i++) {
        MEZZO_TRY(mz_run_step(&r->run));
        MEZZO_TRY(mz_run_read_step(&r->run, false, &fresh));
    }
    return mezzo_device_sync(r->run.engine.device);
}

static const mz_numerics f32 = {MEZZO_F32, MEZZO_F32, MEZZO_F32};

static mezzo_status copy(const repeats *r, void *from, void *to, size_t bytes) {
    mz_call call = {.op = MZ_OP_copy, .n_in = 1, .n_out = 1, .numerics = f32};
    call.in[0] = mz_tensor_f32(from, (int64_t)(bytes / sizeof(float)));
    call.out[0] = mz_tensor_f32(to, (int64_t)(bytes / sizeof(float)));
    return mz_run_once(r->run.engine.device, &call);
}

// Whether two pieces of memory hold other numbers, looked at as FP32 (the sign of a zero is not seen).
static mezzo_status differ(const repeats *r, void *a, void *b, size_t bytes, bool *out) {
    mezzo_device *d = r->run.engine.device;
    const int64_t n = (int64_t)(bytes / sizeof(float));
    mz_call sub = {.op = MZ_OP_sub, .n_in = 2, .n_out = 1, .numerics = f32};
    mz_call inspect = {.op = MZ_OP_inspect, .n_in = 1, .n_out = 2, .numerics = f32};
    mz_inspection found = {0};
    *out = false;
    if (n == 0)
        return MEZZO_OK;
    sub.in[0] = mz_tensor_f32(a, n);
    sub.in[1] = mz_tensor_f32(b, n);
    sub.out[0] = inspect.in[0] = mz_tensor_f32(r->difference, n);
    inspect.out[0] = mz_tensor_bytes(r->found, sizeof found);
    inspect.out[1] = mz_tensor_absent();
    MEZZO_TRY(mz_run_once(d, &sub));
    MEZZO_TRY(mz_run_once(d, &inspect));
    MEZZO_TRY(d->backend->read(d, &found, r->found, sizeof found));
    *out = found.zeros != found.inspected;
    return MEZZO_OK;
}

static mezzo_status compute(repeats *r, float *loss) {
    mz_session *s = &r->run.engine.session;
    MEZZO_TRY(mezzo_step_drop(s->step));
    MEZZO_TRY(mezzo_step_micro(s->step, mezzo_seed(r->run.config.seed, MEZZO_SEED_DROPOUT), 1));
    MEZZO_TRY(mz_params_settle(s->params));
    return mezzo_program_read(r->program, "loss", loss, sizeof *loss);
}

// Notes the first call that wrote another gradient.
static mezzo_status place_difference(repeats *r, int64_t time) {
    const mezzo_params *p = r->run.engine.session.params;
    int first = INT_MAX, n = 0, k = 0;
    const char *name = "";
    for (size_t i = 0; i < p->n; i++) {
        const size_t at = (size_t)p->list[i].offset * sizeof(float);
        bool other = false;
        if (!p->list[i].frozen)
            MEZZO_TRY(differ(r, (char *)p->grad + at, (char *)r->first + at, (size_t)p->list[i].stored * sizeof(float),
                             &other));
        n += other;
        if (other && r->writer[i] < first) {
            first = r->writer[i];
            name = p->list[i].name;
        }
    }
    printf("time %lld: %d gradients differ, first %s\n", (long long)time, n, name);
    while (k < r->n_places && r->places[k] != first)
        k++;
    if (n > 0 && k < MOST_PLACES) {
        r->n_places = k == r->n_places ? k + 1 : r->n_places;
        r->places[k] = first;
        r->counts[k]++;
    }
    return MEZZO_OK;
}

static mezzo_status repeat(repeats *r, int64_t times) {
    const size_t bytes = (size_t)r->run.engine.session.params->grad_elements * sizeof(float);
    float *grad = r->run.engine.session.params->grad, first, again;
    MEZZO_TRY(compute(r, &first));
    MEZZO_TRY(copy(r, grad, r->first, bytes));
    for (int64_t i = 1; i <= times; i++) {
        bool other;
        MEZZO_TRY(compute(r, &again));
        MEZZO_TRY(differ(r, grad, r->first, bytes, &other));
        r->differed += other;
        r->lost += memcmp(&first, &again, sizeof first) != 0;
        if (other)
            MEZZO_TRY(place_difference(r, i));
    }
    return MEZZO_OK;
}

// Running the call again changes nothing that it reads.
static bool keeps_operands(const repeats *r, size_t i, bool fresh) {
    mz_span spans[MZ_SPANS];
    const mz_traffic t = mz_traffic_of(&r->program->c.calls[i], spans);
    const mz_traffic written = {.reads = t.writes, .n_reads = t.n_writes},
                     read = {.writes = t.reads, .n_writes = t.n_reads};
    const bool adds = r->program->c.calls[i].attrs.accumulate && !(fresh && r->program->c.use[i] & MZ_USE_FIRST);
    return !adds && !mz_traffic_depends(&written, &read);
}

static mezzo_status repeat_call(repeats *r, size_t i, bool fresh, int64_t times, int64_t *others) {
    const mz_call *call = &r->program->c.calls[i];
    for (int k = 0; k < call->n_out; k++) {
        const mz_tensor *t = &call->out[k];
        if (!mz_present(t) || t->data == NULL)
            continue;
        const size_t bytes = mz_tensor_bytes_stored(t);
        MEZZO_TRY(copy(r, t->data, r->first, bytes));
        for (int64_t time = 0; time < times; time++) {
            bool other;
            MEZZO_TRY(mz_program_run_call(r->program, i, fresh));
            MEZZO_TRY(differ(r, t->data, r->first, bytes, &other));
            *others += other;
        }
    }
    return MEZZO_OK;
}

// Each call in its place, several times. *others: results that were not the first ones.
static mezzo_status repeat_alone(repeats *r, int64_t times, int64_t *others, int64_t *repeated) {
    mezzo_program *p = r->program;
    mz_session *s = &r->run.engine.session;
    bool fresh;
    MEZZO_TRY(mezzo_step_drop(s->step));
    MEZZO_TRY(mz_program_prepare(p, s->scaler, mezzo_seed(r->run.config.seed, MEZZO_SEED_DROPOUT), 1));
    MEZZO_TRY(mz_program_fresh(p, &fresh));
    if (!fresh)
        MEZZO_TRY(mz_params_settle(s->params));
    mz_program_wrote_gradients(p);
    for (size_t i = 0; i < p->c.n_calls; i++) {
        int64_t mine = 0;
        MEZZO_TRY(mz_program_run_call(p, i, fresh));
        if (!keeps_operands(r, i, fresh))
            continue;
        MEZZO_TRY(repeat_call(r, i, fresh, times, &mine));
        *repeated += 1;
        if (mine > 0) {
            printf("alone, %lld of %lld results of call %zu:", (long long)mine, (long long)times, i);
            print_call(r, (int)i);
            printf("\n");
        }
        *others += mine;
    }
    return mezzo_step_drop(s->step);
}

// The calls after the last gradient that agrees up to the first that does not.
static void print_doubted(const repeats *r, int place) {
    const mezzo_params *p = r->run.engine.session.params;
    int since = -1;
    for (size_t i = 0; i < p->n; i++)
        if (r->writer[i] > since && r->writer[i] < r->places[place])
            since = r->writer[i];
    printf("; %d times first in", r->counts[place]);
    for (int i = since + 1; i <= r->places[place]; i++)
        if (i + 12 > r->places[place])
            print_call(r, i);
}

int main(int argc, char **argv) {
    static repeats r;
    mezzo_config *config = NULL;
    int64_t others = 0, repeated = 0;
    const int64_t steps = argc > 3 ? atoll(argv[1]) : 0, times = argc > 3 ? atoll(argv[2]) : 0,
                  alone = argc > 3 ? atoll(argv[3]) : 0;
    if (steps < 3 || times < 1) { // a graph is captured in the second step and replayed from the third on
        fprintf(stderr, "usage: bench_repeat STEPS TIMES ALONE --KEY VALUE ...; at least 3 steps\n");
        return 2;
    }
    mezzo_status status = open_repeats(argc - 4, (const char *const *)argv + 4, &config, &r);
    if (status == MEZZO_OK)
        status = train(&r, steps);
    if (status == MEZZO_OK)
        status = repeat(&r, times);
    if (status == MEZZO_OK && alone > 0)
        status = repeat_alone(&r, alone, &others, &repeated);
    if (status != MEZZO_OK) {
        fprintf(stderr, "bench_repeat: %s: %s\n", mezzo_status_name(status), mezzo_error_message());
        return 3;
    }
    printf("%lld of %lld times other gradients, %lld another loss", (long long)r.differed, (long long)times,
           (long long)r.lost);
    for (int k = 0; k < r.n_places; k++)
        print_doubted(&r, k);
    if (alone > 0)
        printf("; alone %lld other results in %lld calls of %zu, %lld times each", (long long)others,
               (long long)repeated, r.program->c.n_calls, (long long)alone);
    printf("\n");
    mezzo_device *d = r.run.engine.device;
    d->backend->release(d, r.first);
    d->backend->release(d, r.difference);
    d->backend->release(d, r.found);
    mz_free(r.writer);
    mz_run_close(&r.run);
    mezzo_config_free(config);
    return r.differed + r.lost + others > 0;
}
