// Writes what a graph's passes decided of each node as rows of text.
#include "graph/graph.h"

// "linear+gelu_tanh+residual": the op and its post-ops.
static const char *op_text(const mz_node *n, char *buf, size_t size) {
    const uint64_t posts = mz_node_posts(n);
    size_t len = (size_t)snprintf(buf, size, "%s", mz_op_table[n->op].name);
    for (mz_post p = 0; p < MZ_POST_COUNT; ++p)
        if (posts & MZ_POST_BIT(p) && len < size)
            len += (size_t)snprintf(buf + len, size - len, "+%s", mz_post_name(p, &n->attrs));
    return buf;
}

// Returns the scaling of what the node reads or writes with scales.
static const char *scale_of(const mezzo_graph *g, const mz_node *n) {
    mz_scaling scaling = n->out[0] >= 0 ? g->values[n->out[0]].scaling : MZ_SCALING_NONE;
    for (int k = 0; k < n->n_in && scaling == MZ_SCALING_NONE; ++k)
        if (n->in[k] >= 0)
            scaling = g->values[n->in[k]].scaling;
    return scaling == MZ_SCALING_NONE ? "-" : mz_scalings[scaling].name;
}

int mz_main_output(const mz_node *n) {
    for (int k = 0; k < n->n_out; ++k)
        if (n->out[k] >= 0)
            return n->out[k];
    return -1;
}

static void explain_node(const mezzo_graph *g, size_t i, mezzo_explain_fn visit, void *user) {
    const mz_node *n = &g->nodes[i];
    char op[64], name[160], shape[64], inputs[128] = "";
    size_t len = 0;
    for (int k = 0; k < n->n_in; ++k)
        if (n->in[k] >= 0 && len < sizeof inputs)
            len += (size_t)snprintf(inputs + len, sizeof inputs - len, "%s%s", len ? "," : "",
                                    mezzo_dtype_name(g->values[n->in[k]].dtype));
    const int out = mz_main_output(n);
    const mz_value *v = &g->values[out];
    mezzo_explain_row row = {.index = (int)i,
                             .op = op_text(n, op, sizeof op),
                             .module = g->modules[n->module],
                             .output = mz_graph_value_name(g, out, name, sizeof name),
                             .phase = mz_phase_name(n->phase),
                             .inputs = inputs,
                             .shape = mz_shape_text(&v->shape, shape, sizeof shape),
                             .operand = n->formats.operand,
                             .gradient = n->formats.gradient,
                             .storage = v->dtype,
                             .scale = scale_of(g, n),
                             .compute = n->numerics.compute,
                             .accumulate = n->numerics.accumulate,
                             .reduce = n->numerics.reduce,
                             .rule = n->rule};
    visit(user, &row);
}

void mz_graph_explain(const mezzo_graph *g, mezzo_explain_fn visit, void *user) {
    for (size_t i = 0; i < g->n_nodes; ++i)
        explain_node(g, i, visit, user);
}
