// Builds the composition of one node as a graph of its own. A gradient's composition is the gradient of the forward
// op's.
#include "graph/compose.h"

// Makes a node's slot an input of its composition, of the same shape, in FP32 or I32.
static mezzo_value source(mz_composition *c, const mezzo_graph *g, const char *name, int value) {
    const mz_value *v = &g->values[value];
    return mezzo_input(c->g, name, v->dtype == MEZZO_I32 ? MEZZO_I32 : MEZZO_F32, v->shape.rank, v->shape.dim);
}

// Returns the forward op's input whose gradient an output slot is: dx is x's or the logits', db the bias's, dweight the
// weight's.
static int target_of(mz_op forward, const char *gradient) {
    const int own = mz_op_find_slot(forward, false, gradient + 1);
    return own >= 0                      ? own
           : strcmp(gradient, "dx") == 0 ? mz_op_find_slot(forward, false, "logits")
           : strcmp(gradient, "db") == 0 ? mz_op_find_slot(forward, false, "bias")
                                         : -1;
}

static mezzo_status compose_forward(mz_composition *c, const mezzo_graph *g, const mz_node *node, mz_composed *out) {
    const mz_op_info *info = &mz_op_table[node->op];
    uint32_t given = 0;
    for (int i = 0; i < node->n_in; i++) {
        if (node->in[i] < 0)
            continue;
        c->in[i] = source(c, g, info->in[i].name, node->in[i]);
        out->in[i] = c->in[i].id;
        given |= 1U << i;
    }
    for (int i = 0; i < node->n_out; i++)
        if (node->out[i] >= 0)
            c->shape[i] = g->values[node->out[i]].shape;
    c->n_out = node->n_out;
    info->compose(c);
    bool serves = (given & ~c->read) == 0;
    for (int i = 0; i < node->n_out; i++) {
        serves = serves && (node->out[i] < 0 || c->out[i].id >= 0);
        out->out[i] = node->out[i] >= 0 ? c->out[i].id : -1;
    }
    MEZZO_TRY(mezzo_graph_status(c->g));
    if (!serves) {
        mezzo_graph_free(out->graph);
        out->graph = NULL;
    }
    return MEZZO_OK;
}

// Adds the forward op's inputs: values for those that the gradient reads by the same name; the shape alone for those
// whose gradient it writes and that it does not read.
static bool forward_inputs(mz_composition *c, const mezzo_graph *g, const mz_node *node, mz_composed *out) {
    const mz_op_info *info = &mz_op_table[node->op];
    for (int i = 1; i < node->n_in; i++) {
        const int in = mz_op_find_slot(c->op, false, info->in[i].name),
                  kept = mz_op_find_slot(c->op, true, info->in[i].name);
        if (node->in[i] < 0)
            continue;
        if (in < 0 && kept < 0)
            return false; // such a slot belongs to a fused form
        const mezzo_value v = source(c, g, info->in[i].name, node->in[i]);
        out->in[i] = v.id;
        *(in >= 0 ? &c->in[in] : &c->known[kept]) = v;
    }
    for (int i = 0; i < node->n_out; i++) {
        const int in = node->out[i] >= 0 ? target_of(c->op, info->out[i].name) : -1;
        if (node->out[i] >= 0 && in < 0)
            return false;
        if (in >= 0 && c->in[in].id < 0)
            c->in[in] = source(c, g, mz_op_table[c->op].in[in].name, node->out[i]);
    }
    return true;
}

static mezzo_status compose_gradient(mz_composition *c, const mezzo_graph *g, const mz_node *node, mz_composed *out) {
    const mz_op_info *info = &mz_op_table[node->op];
    int wanted[MZ_MAX_OUT], gradient[MZ_MAX_OUT], n = 0, slot[MZ_MAX_OUT];
    c->op = info->gradient_of;
    const mz_post sums = mz_post_find(node->op, MZ_POST_SUMS); // of dx, not the gradient of a bias that forward has
    const bool is_fused = sums < MZ_POST_COUNT && (mz_node_posts(node) & MZ_POST_BIT(sums)) != 0;
    bool serves = !is_fused && forward_inputs(c, g, node, out);
    if (serves) {
        const mezzo_value dy = source(c, g, "dy", node->in[0]);
        out->in[0] = dy.id;
        mz_op_table[c->op].compose(c);
        MEZZO_TRY(mezzo_graph_status(c->g));
        serves = c->out[0].id >= 0;
    }
    for (int i = 0; serves && i < node->n_out; i++)
        if (node->out[i] >= 0) {
            slot[n] = i;
            wanted[n++] = c->in[target_of(c->op, info->out[i].name)].id;
        }
    if (serves)
        MEZZO_TRY(mz_graph_pull_back(c->g, c->out[0].id, out->in[0], n, wanted, gradient));
    for (int i = 0; serves && i < n; i++) {
        out->out[slot[i]] = gradient[i];
        serves = gradient[i] >= 0;
    }
    if (!serves) {
        mezzo_graph_free(out->graph);
        out->graph = NULL;
    }
    return MEZZO_OK;
}

static mezzo_status check_shapes(const mezzo_graph *g, const mz_node *node, const mz_composed *out) {
    for (int i = 0; out->graph != NULL && i < node->n_out; i++)
        if (out->out[i] >= 0 && !mz_shape_equal(&out->graph->values[out->out[i]].shape, &g->values[node->out[i]].shape))
            return mz_fail(MEZZO_ERR_INVALID, "%s: its composition gives %s another shape", mz_op_table[node->op].name,
                           mz_op_slot(node->op, true, i).name);
    return MEZZO_OK;
}

mezzo_status mz_compose(const mezzo_graph *g, const mz_node *node, mz_composed *out) {
    const mz_op_info *info = &mz_op_table[node->op];
    mz_composition c = {.op = node->op, .attrs = &node->attrs, .wide = node->numerics.reduce == MEZZO_F64};
    *out = (mz_composed){.graph = NULL};
    for (int i = 0; i < MZ_MAX_IN; i++) {
        c.in[i] = c.known[i] = c.out[i] = MEZZO_NONE;
        out->in[i] = out->out[i] = -1;
    }
    if (info->compose == NULL && !info->is_gradient)
        return MEZZO_OK;
    MEZZO_TRY(mezzo_graph_create(&out->graph));
    c.g = out->graph;
    mezzo_status status = info->is_gradient ? compose_gradient(&c, g, node, out) : compose_forward(&c, g, node, out);
    if (status == MEZZO_OK)
        status = check_shapes(g, node, out);
    if (status != MEZZO_OK) {
        mezzo_graph_free(out->graph);
        out->graph = NULL;
    }
    return status;
}
