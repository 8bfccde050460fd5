// Chooses the nodes for a second stream of a device's graph: gradients of weights, which only the update waits for, and
// independent branches, such as shared and routed experts.
#include "graph/graph.h"

#include <math.h>

// Times are in µs for an H100 and decide placement only: a node's least time, the cost of waiting for the other stream,
// and the smallest gain for which a node changes streams.
#define LAUNCH         2.5
#define WAIT           1.0
#define WORTH          2.0
#define FLOP_PER_US    4e8
#define BYTES_PER_US   2.5e6
#define FARTHEST       24 // in nodes: the results of a branch take memory from where it could begin
#define LARGEST_RESULT ((size_t)64 << 20)

// Returns whether the node writes only gradients of parameters.
static bool only_gradients(const mezzo_graph *g, const mz_node *n) {
    bool gradients = false;
    for (int k = 0; k < n->n_out; ++k) {
        if (n->out[k] < 0)
            continue;
        int root = n->out[k];
        while (g->values[root].alias >= 0)
            root = g->values[root].alias;
        if (g->values[root].kind != MZ_VALUE_GRAD)
            return false;
        gradients = true;
    }
    return gradients;
}

static double count(const mezzo_graph *g, int v) {
    return (double)mz_shape_count(&g->values[v].shape);
}

static double duration(const mezzo_graph *g, const mz_node *n) {
    double bytes = 0, flop = mz_node_flops(g, n);
    for (int k = 0; k < n->n_in; ++k)
        bytes += n->in[k] >= 0 ? count(g, n->in[k]) * (double)mezzo_dtype_size(g->values[n->in[k]].dtype) : 0;
    for (int k = 0; k < n->n_out; ++k)
        bytes += n->out[k] >= 0 ? count(g, n->out[k]) * (double)mezzo_dtype_size(g->values[n->out[k]].dtype) : 0;
    double moving = bytes / BYTES_PER_US, computing = flop / FLOP_PER_US;
    return LAUNCH + (moving > computing ? moving : computing);
}

static bool is_part(const mezzo_graph *g, int v) {
    int root = v;
    if (g->values[v].kind == MZ_VALUE_PARAM || g->values[v].kind == MZ_VALUE_LOW_COPY) // a value in a gathered region
        return false;
    while (g->values[root].alias >= 0)
        root = g->values[root].alias;
    return count(g, root) != count(g, v);
}

// Returns whether a node may move to the second stream. Blocks of a head are rows of one tensor whose memory serves one
// block at a time, so two cannot run at once; nor may large values live longer.
static bool may_leave(const mezzo_graph *g, const mz_node *n, int index, int since) {
    if (index - since > FARTHEST)
        return false;
    for (int k = 0; k < n->n_in; ++k)
        if (n->in[k] >= 0 && is_part(g, n->in[k]))
            return false;
    for (int k = 0; k < n->n_out; ++k) {
        const mz_value *v = n->out[k] >= 0 ? &g->values[n->out[k]] : NULL;
        if (v && (v->alias >= 0 || v->kind != MZ_VALUE_TEMP || v->keep ||
                  (size_t)mz_shape_count(&v->shape) * mezzo_dtype_size(v->dtype) > LARGEST_RESULT))
            return false;
    }
    return true;
}

typedef struct moment {
    double duration, ahead; // ahead: time from its beginning to the end of the longest path from it
    double done;
    int stream, since; // since: the node after which it could have run
    bool placed, gradient;
} moment;

// Returns the node that makes a value or the value it is a view of; -1: none.
static int maker(const mezzo_graph *g, int v) {
    while (v >= 0 && g->values[v].producer >= 0 && g->nodes[g->values[v].producer].op == MZ_OP_reshape)
        v = g->nodes[g->values[v].producer].in[0];
    return v >= 0 ? g->values[v].producer : -1;
}

// Returns whether the node occupies no stream here: a view, or a collective, which has a stream of its own.
static bool does_not_run(const mz_node *n) {
    return n->op == MZ_OP_reshape || n->gathers > 0;
}

static void look_ahead(const mezzo_graph *g, moment *at) {
    for (size_t i = g->n_nodes; i-- > 0;) {
        const mz_node *n = &g->nodes[i];
        if (does_not_run(n))
            continue;
        at[i].gradient = only_gradients(g, n);
        at[i].duration = duration(g, n);
        at[i].ahead += at[i].duration;
        for (int k = 0; k < n->n_in; ++k) {
            int from = maker(g, n->in[k]);
            if (from >= 0 && at[from].ahead < at[i].ahead)
                at[from].ahead = at[i].ahead; // its own duration is added when the loop reaches it
        }
    }
}

// Returns the time when a node's inputs are ready on a stream; infinite where one is not placed yet. since: the last
// node of the first stream before that.
static double ready(const mezzo_graph *g, const mz_node *n, const moment *at, int stream, int *since) {
    double start = 0;
    for (int k = 0; k < n->n_in; ++k) {
        int from = maker(g, n->in[k]);
        if (from < 0)
            continue;
        if (!at[from].placed)
            return INFINITY;
        double done = at[from].done + (at[from].stream != stream ? WAIT : 0);
        start = done > start ? done : start;
        *since = at[from].since > *since ? at[from].since : *since;
    }
    return start;
}

// Returns the longest path from the nodes soon after i that could begin on the first stream by `start`.
static double others_ahead(const mezzo_graph *g, const moment *at, size_t i, double start) {
    double most = 0;
    int since = 0;
    for (size_t k = i + 1; k < g->n_nodes && k <= i + FARTHEST; ++k)
        if (!does_not_run(&g->nodes[k]) && !at[k].gradient && at[k].ahead > most &&
            ready(g, &g->nodes[k], at, 0, &since) <= start)
            most = at[k].ahead;
    return most;
}

static double larger(double a, double b) {
    return a > b ? a : b;
}

// Places the nodes in order, each on the stream on which it and its dependents end sooner.
static void place(const mezzo_graph *g, moment *at) {
    double idle[2] = {0, 0}; // the time from which a stream is idle
    for (size_t i = 0; i < g->n_nodes; ++i) {
        const mz_node *n = &g->nodes[i];
        moment *m = &at[i];
        if (does_not_run(n))
            continue;
        int since = 0;
        double first = larger(ready(g, n, at, 0, &since), idle[0]),
               second = larger(ready(g, n, at, 1, &since), idle[1]);
        double others = others_ahead(g, at, i, first);
        double one = first + larger(m->ahead, others > 0 ? m->duration + others : 0);
        double two = larger(second + m->ahead, idle[0] + others);
        m->stream = m->gradient || (two + WORTH < one && may_leave(g, n, (int)i, since)) ? 1 : 0;
        m->done = idle[m->stream] = (m->stream == 0 ? first : second) + m->duration;
        m->since = m->stream == 0 || m->gradient ? (int)i + (m->stream == 0) : since;
        m->placed = true;
    }
}

mezzo_status mz_graph_stream(const mezzo_graph *g, mz_stream_plan *out) {
    moment *at = mz_alloc(g->n_nodes + 1, sizeof *at);
    out->stream = mz_alloc(g->n_nodes + 1, sizeof *out->stream);
    out->since = mz_alloc(g->n_nodes + 1, sizeof *out->since);
    if (!at || !out->stream || !out->since) {
        mz_free(at);
        mz_stream_plan_free(out);
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    }
    look_ahead(g, at);
    place(g, at);
    for (size_t i = 0; i < g->n_nodes; ++i) {
        out->stream[i] = (signed char)at[i].stream;
        out->since[i] = at[i].stream == 1 ? at[i].since : (int)i;
    }
    mz_free(at);
    return MEZZO_OK;
}

void mz_stream_plan_free(mz_stream_plan *plan) {
    MZ_FREE(plan->stream, plan->since);
    *plan = (mz_stream_plan){0};
}
