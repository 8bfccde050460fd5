// Samples values while a program runs, without waiting: it adds an `inspect` to the program's calls, which a captured
// step then contains.
#include "runtime/program.h"
#include "backend/inspect.h"

// Finds the last call that writes the loss; a head in blocks adds to it several times.
static bool find_loss(const mezzo_program *p, size_t *call) {
    const mezzo_graph *g = p->c.graph;
    bool found = false;
    for (size_t i = 0; i < p->c.n_calls; ++i) {
        const mz_node *n = &g->nodes[p->c.node[i]];
        for (int k = 0; k < n->n_out; ++k)
            if (n->out[k] >= 0 && mz_value_root(g, n->out[k]) == mz_value_root(g, g->loss)) {
                *call = i;
                found = true;
            }
    }
    return found;
}

static bool is_float(mezzo_dtype dtype) {
    return dtype == MEZZO_F32 || dtype == MEZZO_BF16 || dtype == MEZZO_F16 || dtype == MEZZO_F64;
}

// Returns the first output of a call, if it has memory of its own and a float format; else -1.
static int own_output(const mezzo_program *p, size_t call) {
    const mezzo_graph *g = p->c.graph;
    const mz_node *n = &g->nodes[p->c.node[call]];
    int v = n->op != MZ_OP_copy ? n->out[0] : -1;
    bool own = v >= 0 && g->values[v].kind == MZ_VALUE_TEMP && g->values[v].alias < 0;
    return own && is_float(g->values[v].dtype) ? v : -1;
}

// Marks each value with memory of its own that a call after `call` reads.
static mezzo_status find_read_after(const mezzo_program *p, size_t call, bool **read) {
    const mezzo_graph *g = p->c.graph;
    *read = mz_alloc(g->n_values + 1, sizeof **read);
    if (*read == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (size_t i = call + 1; i < p->c.n_calls; ++i) {
        const mz_node *n = &g->nodes[p->c.node[i]];
        for (int k = 0; k < n->n_in; ++k)
            if (n->in[k] >= 0)
                (*read)[mz_value_root(g, n->in[k])] = true;
    }
    return MEZZO_OK;
}

// Picks `want` of n candidates, evenly spaced and in their order.
static int spread(size_t *list, int n, int want) {
    if (want >= n)
        return n;
    for (int i = 0; i < want; ++i)
        list[i] = list[(size_t)i * (size_t)n / (size_t)want];
    return want;
}

// Chooses forward calls whose output backward still reads, so that it exists when the loss does. Infinities that the
// graph has as constants are no faults.
static mezzo_status choose_forward(const mezzo_program *p, size_t loss, int want, size_t *calls, int *chosen) {
    int n = 0;
    bool *read = NULL, *infinite = NULL;
    mezzo_status status = find_read_after(p, loss, &read);
    if (status == MEZZO_OK)
        status = mz_program_infinite(p, &infinite);
    for (size_t i = 0; i < loss && status == MEZZO_OK; ++i) {
        int v = own_output(p, i);
        if (v >= 0 && p->c.graph->nodes[p->c.node[i]].phase == MZ_FORWARD && read[v] && !infinite[v])
            calls[n++] = i;
    }
    MZ_FREE(read, infinite);
    *chosen = spread(calls, n, want);
    return status;
}

static int choose_backward(const mezzo_program *p, int want, size_t *calls) {
    int n = 0;
    for (size_t i = 0; i < p->c.n_calls; ++i) {
        int v = own_output(p, i);
        if (v >= 0 && p->c.graph->nodes[p->c.node[i]].phase == MZ_BACKWARD && p->c.graph->values[v].dtype == MEZZO_F16)
            calls[n++] = i;
    }
    return spread(calls, n, want);
}

static void add_tensor(mezzo_program *p, mz_monitor *w, size_t call, bool loss) {
    const mezzo_graph *g = p->c.graph;
    const mz_node *n = &g->nodes[p->c.node[call]];
    int v = loss ? g->loss : n->out[0];
    w->call.in[w->call.n_in++] = mz_program_tensor(p, v);
    p->monitored[p->n_monitored++] = (mz_monitored){.op = mz_op_table[n->op].name,
                                                    .module = g->modules[n->module],
                                                    .phase = mz_phase_name(n->phase),
                                                    .dtype = g->values[v].dtype,
                                                    .loss = loss};
}

static mezzo_status finish(mezzo_program *p, mz_monitor *w, size_t first, const mz_monitor_options *o, bool forward) {
    size_t bytes = (size_t)w->call.n_in * sizeof(mz_inspection);
    w->call.op = MZ_OP_inspect;
    w->call.attrs.sample = o->sample;
    w->call.attrs.limit = forward ? o->limit : 0;
    w->call.attrs.bad_first = MZ_BAD_LOSS;
    w->call.attrs.bad_rest = MZ_BAD_ACTIVATION;
    w->call.numerics = (mz_numerics){MEZZO_F32, MEZZO_F32, MEZZO_F32};
    w->call.n_out = 2;
    w->call.out[0] = mz_tensor_bytes(p->inspected + first, bytes);
    w->call.out[1] = forward ? mz_tensor_bytes(o->state, sizeof *o->state) : mz_tensor_absent();
    w->call.rng = p->rng;
    MEZZO_TRY(mz_prepare(p->device, &w->call, &w->prepared));
    w->call.state = w->prepared.state;
    return MEZZO_OK;
}

static mezzo_status place_monitors(mezzo_program *p, const mz_monitor_options *o, size_t loss, const size_t *forward,
                                   int n_forward, const size_t *backward, int n_backward) {
    mz_monitor *w = &p->monitors[p->n_monitors++];
    *w = (mz_monitor){.after = loss};
    add_tensor(p, w, loss, true);
    for (int i = 0; i < n_forward; ++i)
        add_tensor(p, w, forward[i], false);
    MEZZO_TRY(finish(p, w, 0, o, true));
    for (int i = 0; i < n_backward; ++i) {
        w = &p->monitors[p->n_monitors++];
        *w = (mz_monitor){.after = backward[i]};
        add_tensor(p, w, backward[i], false);
        MEZZO_TRY(finish(p, w, p->n_monitored - 1, o, false));
    }
    // Sorts by `after`, because a head in blocks has backward calls before the loss is complete.
    for (size_t i = 0; i + 1 < p->n_monitors && p->monitors[i].after > p->monitors[i + 1].after; ++i) {
        mz_monitor swap = p->monitors[i];
        p->monitors[i] = p->monitors[i + 1];
        p->monitors[i + 1] = swap;
    }
    return MEZZO_OK;
}

mezzo_status mz_program_monitor(mezzo_program *p, const mz_monitor_options *o) {
    size_t loss = 0;
    mz_program_unmonitor(p);
    if (p->options.forward_only || !find_loss(p, &loss))
        return mz_fail(MEZZO_ERR_INVALID, "the program has no backward to monitor");
    size_t *forward = mz_alloc(2 * p->c.n_calls + 2, sizeof *forward), *backward;
    if (forward == NULL)
        return MEZZO_ERR_MEMORY;
    backward = forward + p->c.n_calls + 1;
    int n_forward = 0, n_backward = choose_backward(p, o->gradients, backward);
    mezzo_status status = choose_forward(p, loss, o->activations, forward, &n_forward);
    size_t n = 1 + (size_t)n_forward + (size_t)n_backward;
    p->monitors = mz_alloc(1 + (size_t)n_backward, sizeof *p->monitors);
    p->monitored = mz_alloc(n, sizeof *p->monitored);
    if (status == MEZZO_OK && (p->monitors == NULL || p->monitored == NULL))
        status = MEZZO_ERR_MEMORY;
    if (status == MEZZO_OK)
        status = p->device->backend->alloc(p->device, n * sizeof *p->inspected, (void **)&p->inspected);
    if (status == MEZZO_OK)
        status = place_monitors(p, o, loss, forward, n_forward, backward, n_backward);
    mz_free(forward);
    if (status != MEZZO_OK)
        mz_program_unmonitor(p);
    return status;
}

void mz_program_unmonitor(mezzo_program *p) {
    for (size_t i = 0; i < p->n_monitors; ++i)
        mz_prepared_free(&p->monitors[i].prepared);
    MZ_FREE(p->monitors, p->monitored);
    p->device->backend->release(p->device, p->inspected);
    p->monitors = NULL;
    p->monitored = NULL;
    p->inspected = NULL;
    p->n_monitors = p->n_monitored = 0;
}

mezzo_status mz_program_read_monitored(mezzo_program *p) {
    mz_inspection values[64];
    for (size_t i = 0; i < p->n_monitored; i += MZ_COUNT(values)) {
        size_t n = p->n_monitored - i < MZ_COUNT(values) ? p->n_monitored - i : MZ_COUNT(values);
        MEZZO_TRY(p->device->backend->read(p->device, values, p->inspected + i, n * sizeof *values));
        for (size_t k = 0; k < n; ++k)
            p->monitored[i + k].values = values[k];
    }
    return MEZZO_OK;
}
