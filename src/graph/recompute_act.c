// Lets backward compute activation outputs again. A node that multiplies by an activation's derivative reads the
// activation's input, so it can write the activation output, too: its post-op act_out. The weights' gradients that
// read this result then stand after that node, and forward's copy of the result is not kept for them. A result is
// computed again from its stored input, so it has the same bits wherever forward rounds its input before the
// activation.
#include "graph/graph.h"

// A node that may get the post-op.
typedef struct host {
    const mz_post_info *row; // act_out
    int preact;
} host;

static bool find_host(const mz_node *n, bool offered, host *out) {
    const uint64_t posts = mz_node_posts(n);
    *out = (host){.preact = -1};
    for (mz_post p = 0; p < MZ_POST_COUNT && n->attrs.act != MZ_ACT_NONE; ++p) {
        const mz_post_info *row = &mz_post_table[p];
        const bool derivative = row->kind == MZ_POST_ACT_DX || row->kind == MZ_POST_GATE_DX;
        if (row->op == n->op && row->kind == MZ_POST_ACT_OUT && row->offered == offered && !(posts & MZ_POST_BIT(p)))
            out->row = row;
        if (posts & MZ_POST_BIT(p) && derivative)
            out->preact = n->in[row->with];
    }
    return out->row != NULL && out->preact >= 0;
}

// Returns the output of `n` with the activation of the host's preact as its last work, rounded to its format; -1: none.
static int output_of(const mezzo_graph *g, const mz_node *n, const mz_node *d, const host *h) {
    const uint64_t posts = mz_node_posts(n);
    if (mz_act_of(n, false) == d->attrs.act && n->in[0] == h->preact)
        return 0;
    for (mz_post p = 0; p < MZ_POST_COUNT; ++p) {
        const mz_post_info *row = &mz_post_table[p];
        const bool last = (posts & ~(MZ_POST_BIT(p) - 1)) == MZ_POST_BIT(p) && n->attrs.act == d->attrs.act &&
                          (row->kind == MZ_POST_ACT || row->kind == MZ_POST_GATE);
        if (last && !row->before && mz_node_out(n, row->keeps) == h->preact &&
            n->attrs.via == g->values[h->preact].dtype)
            return row->joint;
        if (last && row->before && n->op == d->op && n->in[row->joint] == h->preact && n->attrs.via == d->attrs.via &&
            (!h->row->one_scale || mz_graph_entry(g, n) >= 0))
            return h->row->joint;
    }
    return -1;
}

// Returns the value with the activation's result in the format that the host writes it in; -1: none.
static int result_of(const mezzo_graph *g, const mz_node *n, const mz_node *d, const host *h) {
    const int slot = output_of(g, n, d, h), v = slot >= 0 ? mz_node_out(n, slot) : -1;
    const mz_value *y = v >= 0 ? &g->values[v] : NULL;
    if (y == NULL || y->kind != MZ_VALUE_TEMP || y->keep || y->alias >= 0)
        return -1;
    return n->op == d->op || (y->scaling == MZ_SCALING_NONE && y->dtype == g->values[h->preact].dtype) ? v : -1;
}

// Returns whether the node writes parameters' gradients alone and may run later: no node up to `to` writes them.
static bool is_movable(const mezzo_graph *g, size_t at, size_t to) {
    const mz_node *n = &g->nodes[at];
    for (int k = 0; k < n->n_out; ++k) {
        if (n->out[k] >= 0 && g->values[n->out[k]].kind != MZ_VALUE_GRAD)
            return false;
        for (size_t i = at + 1; n->out[k] >= 0 && i <= to; ++i)
            for (int o = 0; o < g->nodes[i].n_out; ++o)
                if (g->nodes[i].out[o] == n->out[k])
                    return false;
    }
    return true;
}

static bool reads(const mz_node *n, int v) {
    for (int k = 0; k < n->n_in; ++k)
        if (n->in[k] == v)
            return true;
    return false;
}

static bool writes(const mz_node *n, int v) {
    for (int k = 0; k < n->n_out; ++k)
        if (n->out[k] == v)
            return true;
    return false;
}

// The nodes that read or write each value, so that no host looks at all of them. Nodes are numbered by their places
// when the pass began.
typedef struct touched {
    int *from, *nodes; // of value v: nodes[from[v]] … nodes[from[v + 1] - 1]
    int *at, *which;   // where a node stands now, and which one stands there
    bool *aliased;     // another value lies in this one
    int n_values;      // of the graph when the pass began
} touched;

static void free_touched(touched *t) {
    MZ_FREE(t->from, t->nodes, t->at, t->which, t->aliased);
}

// Counts the node in from[v + 1] of each of its values, or writes it into the list of each.
static void touch(touched *t, const mz_node *n, int node, bool counts) {
    for (int k = 0; k < n->n_in + n->n_out; ++k) {
        const int v = k < n->n_in ? n->in[k] : n->out[k - n->n_in];
        if (v >= 0 && counts)
            t->from[v + 1]++;
        else if (v >= 0)
            t->nodes[t->from[v]++] = node;
    }
}

static mezzo_status find_touched(const mezzo_graph *g, touched *t) {
    size_t entries = 0;
    for (size_t i = 0; i < g->n_nodes; ++i)
        entries += (size_t)(g->nodes[i].n_in + g->nodes[i].n_out);
    *t = (touched){.from = mz_alloc(g->n_values + 2, sizeof *t->from),
                   .nodes = mz_alloc(entries + 1, sizeof *t->nodes),
                   .at = mz_alloc(g->n_nodes + 1, sizeof *t->at),
                   .which = mz_alloc(g->n_nodes + 1, sizeof *t->which),
                   .aliased = mz_alloc(g->n_values + 1, sizeof *t->aliased),
                   .n_values = (int)g->n_values};
    if (t->from == NULL || t->nodes == NULL || t->at == NULL || t->which == NULL || t->aliased == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (size_t v = 0; v < g->n_values; ++v)
        if (g->values[v].alias >= 0)
            t->aliased[g->values[v].alias] = true;
    for (size_t i = 0; i < g->n_nodes; ++i) {
        t->at[i] = t->which[i] = (int)i;
        touch(t, &g->nodes[i], (int)i, true);
    }
    for (int v = 0; v < t->n_values; ++v)
        t->from[v + 1] += t->from[v];
    for (size_t i = 0; i < g->n_nodes; ++i)
        touch(t, &g->nodes[i], (int)i, false);
    for (int v = t->n_values; v > 0; --v) // each now begins where it ended
        t->from[v] = t->from[v - 1];
    t->from[0] = 0;
    return MEZZO_OK;
}

// Returns how many nodes may read or write v: all for a value that the pass has made.
static int count_touching(const mezzo_graph *g, const touched *t, int v) {
    return v < t->n_values ? t->from[v + 1] - t->from[v] : (int)g->n_nodes;
}

static int touching(const touched *t, int v, int k) {
    return v < t->n_values ? t->nodes[t->from[v] + k] : k;
}

// Returns whether backward reads v, and each of its readers before node `at` may stand after it. *forward: forward
// reads it, too.
static bool can_wait(const mezzo_graph *g, const touched *t, int v, size_t at, bool *forward) {
    bool any = false;
    *forward = false;
    if (v < t->n_values && t->aliased[v])
        return false;
    for (int k = 0; k < count_touching(g, t, v); ++k) {
        const size_t i = (size_t)t->at[touching(t, v, k)];
        if (!reads(&g->nodes[i], v))
            continue;
        if (g->nodes[i].phase == MZ_FORWARD)
            *forward = true;
        else if (i < at && !is_movable(g, i, at))
            return false;
        else
            any = true;
    }
    return any;
}

// Moves node `from` to the place `to`, which comes after it.
static void move_node(mezzo_graph *g, touched *t, size_t from, size_t to) {
    const mz_node moved = g->nodes[from];
    const int which = t->which[from];
    memmove(&g->nodes[from], &g->nodes[from + 1], (to - from) * sizeof moved);
    memmove(&t->which[from], &t->which[from + 1], (to - from) * sizeof which);
    g->nodes[to] = moved;
    t->which[to] = which;
    for (size_t i = from; i <= to; ++i)
        t->at[t->which[i]] = (int)i;
}

// Makes backward's readers of v read `instead`, and moves those before node `at` after it, the first of them last.
static void move_readers(mezzo_graph *g, touched *t, int v, int instead, size_t at) {
    for (int k = 0; k < count_touching(g, t, v); ++k) {
        const size_t i = (size_t)t->at[touching(t, v, k)];
        if (!reads(&g->nodes[i], v) || g->nodes[i].phase == MZ_FORWARD)
            continue;
        for (int in = 0; in < g->nodes[i].n_in; ++in)
            g->nodes[i].in[in] = g->nodes[i].in[in] == v ? instead : g->nodes[i].in[in];
        if (i <= at)
            move_node(g, t, i, at--);
    }
}

static mezzo_status recompute_act(mezzo_graph *g, touched *t, size_t at, const host *h, mz_can_recompute *can,
                                  void *user) {
    const int slot = h->row->into;
    mz_node d = g->nodes[at];
    int v = -1;
    bool possible = false, forward = false;
    size_t from = 0;
    for (int k = 0; k < count_touching(g, t, h->preact) && v < 0; ++k) {
        from = (size_t)t->at[touching(t, h->preact, k)];
        if (from >= at || (!reads(&g->nodes[from], h->preact) && !writes(&g->nodes[from], h->preact)))
            continue;
        v = result_of(g, &g->nodes[from], &d, h);
        v = v >= 0 && can_wait(g, t, v, at, &forward) ? v : -1;
    }
    if (v < 0)
        return MEZZO_OK;
    while (d.n_out <= slot)
        d.out[d.n_out++] = -1;
    d.out[slot] = v; // of v's kind
    MEZZO_TRY(can(user, g, &d, &possible));
    if (!possible)
        return MEZZO_OK;
    mz_node *maker = &g->nodes[from];
    const bool optional = mz_op_slot(maker->op, true, g->values[v].slot).is & MZ_SLOT_OPTIONAL;
    if (forward || !optional) {
        mz_value again = g->values[v];
        again.name = NULL;
        MEZZO_TRY(mz_graph_value(g, again, &d.out[slot]));
    } else {
        maker->out[g->values[v].slot] = -1;
    }
    g->nodes[at] = d;
    move_readers(g, t, v, d.out[slot], at);
    return MEZZO_OK;
}

// Returns whether nothing of the node is there or read.
static bool is_unread(const mezzo_graph *g, const mz_node *n, const int *uses) {
    for (int k = 0; k < n->n_out; ++k)
        if (n->out[k] >= 0 && g->values[n->out[k]].kind == MZ_VALUE_TEMP && uses[n->out[k]] > 0)
            return false;
    return true;
}

// Removes activations, alone or as post-ops, whose results nothing reads now.
static mezzo_status drop_unread(mezzo_graph *g) {
    int *uses = NULL;
    bool *dead = mz_alloc(g->n_nodes + 1, sizeof *dead);
    mezzo_status status =
        dead ? mz_graph_consumers(g, &uses) : mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (size_t i = 0; status == MEZZO_OK && i < g->n_nodes; ++i) {
        const mz_node *n = &g->nodes[i];
        const bool acts = mz_act_of(n, false) != MZ_ACT_NONE || (n->attrs.act != MZ_ACT_NONE && mz_node_posts(n) != 0);
        dead[i] = acts && n->phase != MZ_BACKWARD && is_unread(g, n, uses);
    }
    if (status == MEZZO_OK)
        mz_graph_compact(g, dead);
    MZ_FREE(uses, dead);
    return status;
}

mezzo_status mz_graph_recompute_act(mezzo_graph *g, bool offered, mz_can_recompute *can, void *user) {
    host h;
    touched t;
    mezzo_status status = find_touched(g, &t);
    for (size_t i = 0; status == MEZZO_OK && i < g->n_nodes; ++i)
        if (find_host(&g->nodes[i], offered, &h))
            status = recompute_act(g, &t, i, &h, can, user);
    free_touched(&t);
    return status == MEZZO_OK ? drop_unread(g) : status;
}
