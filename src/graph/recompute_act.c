// The recompute_act pass lets backward compute activation outputs again. A product with an activation's derivative
// (linear_dx) reads the activation's input, so it can write the activation output, too. The weights' gradients that
// read this result then stand after that product, and forward's copy of the result is not kept. A result is computed
// again from its stored input, so it has the same bits wherever forward rounds its input before the activation.
#include "graph/graph.h"

// Returns the output of `n` that is the rounded result of the activation whose derivative dx applies; -1: none.
static int result_of(const mezzo_graph *g, const mz_node *n, const mz_node *dx) {
    const int preact = dx->in[MZ_IN(linear_dx, preact)], at = MZ_OUT(linear, preact),
              residual = MZ_IN(linear, residual);
    const bool alone = mz_act_of(n, false) == dx->attrs.act && n->in[0] == preact;
    const bool in_product = n->op == MZ_OP_linear && n->attrs.act == dx->attrs.act && mz_node_out(n, at) == preact &&
                            mz_node_in(n, residual) < 0 && n->attrs.via == g->values[preact].dtype;
    if (!alone && !in_product)
        return -1;
    const mz_value *y = &g->values[n->out[0]];
    const bool plain = y->kind == MZ_VALUE_TEMP && !y->keep && y->alias < 0 && y->scaling == MZ_SCALING_NONE;
    return plain && y->dtype == g->values[preact].dtype ? n->out[0] : -1;
}

// Returns whether the node is a product for a weight's gradient that reads v as x and may run later: no node up to `to`
// writes its output.
static bool is_movable(const mezzo_graph *g, size_t at, int v, size_t to) {
    const mz_node *n = &g->nodes[at];
    if (n->op != MZ_OP_linear_dw || n->in[MZ_IN(linear_dw, dy)] == v)
        return false;
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

// Returns whether only forward and products that may stand after node `dx` read v, and at least one such product does.
static bool can_wait(const mezzo_graph *g, int v, size_t dx) {
    bool any = false;
    for (size_t i = 0; i < g->n_values; ++i)
        if (g->values[i].alias == v)
            return false;
    for (size_t i = 0; i < g->n_nodes; ++i) {
        if (!reads(&g->nodes[i], v) || g->nodes[i].phase == MZ_FORWARD)
            continue;
        if (!is_movable(g, i, v, dx))
            return false;
        any = true;
    }
    return any;
}

// Makes backward's products read `instead` of v, and moves those before node `dx` after it.
static void move_readers(mezzo_graph *g, int v, int instead, size_t dx) {
    for (size_t i = 0; i < g->n_nodes; ++i) {
        if (!reads(&g->nodes[i], v) || g->nodes[i].phase == MZ_FORWARD)
            continue;
        g->nodes[i].in[MZ_IN(linear_dw, x)] = instead;
        if (i > dx)
            continue;
        const mz_node moved = g->nodes[i];
        memmove(&g->nodes[i], &g->nodes[i + 1], (dx - i) * sizeof moved);
        g->nodes[dx--] = moved;
        --i; // the next node has this index now
    }
}

static mezzo_status recompute_act(mezzo_graph *g, size_t at, mz_can_recompute *can, void *user) {
    const int slot = MZ_OUT(linear_dx, act_out);
    mz_node dx = g->nodes[at];
    int v = -1;
    bool possible = false;
    for (size_t i = 0; i < at && v < 0; ++i) {
        v = result_of(g, &g->nodes[i], &dx);
        v = v >= 0 && can_wait(g, v, at) ? v : -1;
    }
    if (v < 0)
        return MEZZO_OK;
    while (dx.n_out <= slot)
        dx.out[dx.n_out++] = -1;
    dx.out[slot] = v; // the value v has this memory from here on
    MEZZO_TRY(can(user, g, &dx, &possible));
    if (!possible)
        return MEZZO_OK;
    mz_value again = g->values[v];
    again.name = NULL;
    MEZZO_TRY(mz_graph_value(g, again, &dx.out[slot]));
    g->nodes[at] = dx;
    move_readers(g, v, dx.out[slot], at);
    return MEZZO_OK;
}

// Removes repeated activations without readers.
static mezzo_status drop_repetitions(mezzo_graph *g) {
    int *uses = NULL;
    bool *dead = mz_alloc(g->n_nodes + 1, sizeof *dead);
    mezzo_status status =
        dead ? mz_graph_consumers(g, &uses) : mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (size_t i = 0; status == MEZZO_OK && i < g->n_nodes; ++i) {
        const mz_node *n = &g->nodes[i];
        dead[i] = n->phase == MZ_RECOMPUTE && mz_act_of(n, false) != MZ_ACT_NONE && uses[n->out[0]] == 0;
    }
    if (status == MEZZO_OK)
        mz_graph_compact(g, dead);
    mz_free(uses);
    mz_free(dead);
    return status;
}

mezzo_status mz_graph_recompute_act(mezzo_graph *g, mz_can_recompute *can, void *user) {
    for (size_t i = 0; i < g->n_nodes; ++i) {
        const mz_node *n = &g->nodes[i];
        const int preact = MZ_IN(linear_dx, preact), act_out = MZ_OUT(linear_dx, act_out);
        if (n->op == MZ_OP_linear_dx && n->attrs.act != MZ_ACT_NONE && mz_node_in(n, preact) >= 0 &&
            mz_node_out(n, act_out) < 0)
            MEZZO_TRY(recompute_act(g, i, can, user));
    }
    return drop_repetitions(g);
}
