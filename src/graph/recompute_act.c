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

// Returns whether backward reads v, and each of its readers before node `at` may stand after it. *forward: forward
// reads it, too.
static bool can_wait(const mezzo_graph *g, int v, size_t at, bool *forward) {
    bool any = false;
    *forward = false;
    for (size_t i = 0; i < g->n_values; ++i)
        if (g->values[i].alias == v)
            return false;
    for (size_t i = 0; i < g->n_nodes; ++i) {
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

// Makes backward's readers of v read `instead`, and moves those before node `at` after it.
static void move_readers(mezzo_graph *g, int v, int instead, size_t at) {
    for (size_t i = 0; i < g->n_nodes; ++i) {
        if (!reads(&g->nodes[i], v) || g->nodes[i].phase == MZ_FORWARD)
            continue;
        for (int k = 0; k < g->nodes[i].n_in; ++k)
            g->nodes[i].in[k] = g->nodes[i].in[k] == v ? instead : g->nodes[i].in[k];
        if (i > at)
            continue;
        const mz_node moved = g->nodes[i];
        memmove(&g->nodes[i], &g->nodes[i + 1], (at - i) * sizeof moved);
        g->nodes[at--] = moved;
        --i; // the next node moved to this index
    }
}

static mezzo_status recompute_act(mezzo_graph *g, size_t at, const host *h, mz_can_recompute *can, void *user) {
    const int slot = h->row->into;
    mz_node d = g->nodes[at];
    int v = -1;
    bool possible = false, forward = false;
    size_t from = 0;
    for (; from < at && v < 0; ++from) {
        if (!reads(&g->nodes[from], h->preact) && !writes(&g->nodes[from], h->preact))
            continue;
        v = result_of(g, &g->nodes[from], &d, h);
        v = v >= 0 && can_wait(g, v, at, &forward) ? v : -1;
    }
    if (v < 0)
        return MEZZO_OK;
    while (d.n_out <= slot)
        d.out[d.n_out++] = -1;
    d.out[slot] = v; // of v's kind
    MEZZO_TRY(can(user, g, &d, &possible));
    if (!possible)
        return MEZZO_OK;
    mz_node *maker = &g->nodes[from - 1];
    const bool optional = mz_op_slot(maker->op, true, g->values[v].slot).is & MZ_SLOT_OPTIONAL;
    if (forward || !optional) {
        mz_value again = g->values[v];
        again.name = NULL;
        MEZZO_TRY(mz_graph_value(g, again, &d.out[slot]));
    } else {
        maker->out[g->values[v].slot] = -1;
    }
    g->nodes[at] = d;
    move_readers(g, v, d.out[slot], at);
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
    mz_free(uses);
    mz_free(dead);
    return status;
}

mezzo_status mz_graph_recompute_act(mezzo_graph *g, bool offered, mz_can_recompute *can, void *user) {
    host h;
    for (size_t i = 0; i < g->n_nodes; ++i)
        if (find_host(&g->nodes[i], offered, &h))
            MEZZO_TRY(recompute_act(g, i, &h, can, user));
    return drop_unread(g);
}
