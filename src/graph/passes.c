// The passes in their order, and explain, which prints what they decided.
#include "graph/graph.h"

static const char *const pass_names[] = {"build", "autocast", "autodiff", "recompute", "fuse", "chunk"};

static int pass_index(const char *name) {
    for (int i = 0; i < (int)MZ_COUNT(pass_names); ++i)
        if (!strcmp(name, pass_names[i]))
            return i;
    return -1;
}

mezzo_status mz_passes(const mezzo_graph *g, const mezzo_program_options *options, const char *until,
                       mezzo_graph **out) {
    int stop = pass_index(until);
    mezzo_status status;
    mezzo_graph *c = NULL;
    *out = NULL;
    MEZZO_TRY(mezzo_graph_status(g));
    if (stop < 0)
        return mz_fail(MEZZO_ERR_INVALID, "no pass '%s': build, autocast, autodiff, recompute, fuse, chunk", until);
    if (g->n_scopes || g->n_regions || g->segment >= 0)
        return mz_fail(MEZZO_ERR_INVALID, "the graph has an open %s: end it before making a program",
                       g->n_scopes    ? "module"
                       : g->n_regions ? "autocast region"
                                      : "recompute segment");
    MEZZO_TRY(mz_graph_copy(g, &c));
    if (stop >= 1)
        MEZZO_TRY_GOTO(status, mz_pass_autocast(c, options));
    if (stop >= 2)
        MEZZO_TRY_GOTO(status, mz_pass_autodiff(c, options));
    if (stop >= 3 && (options->recompute || options->recompute_light) && !options->forward_only)
        MEZZO_TRY_GOTO(status, mz_pass_recompute(c, !options->recompute));
    if (stop >= 4 && !options->no_fuse)
        MEZZO_TRY_GOTO(status, mz_pass_fuse(c));
    if (stop >= 5 && !options->no_fuse)
        MEZZO_TRY_GOTO(status, mz_pass_chunk(c, options));
    *out = c;
    return MEZZO_OK;
fail:
    mezzo_graph_free(c);
    return status;
}

static const char *phase_name(mz_phase phase) {
    switch (phase) {
    case MZ_FORWARD:
        return "forward";
    case MZ_RECOMPUTE:
        return "recompute";
    default:
        return "backward";
    }
}

static bool reads(const mz_node *n, const char *name) {
    int slot = mz_op_find_slot(n->op, false, name);
    return slot >= 0 && slot < n->n_in && n->in[slot] >= 0;
}

// Only the rule that decided can tell a matmul's op class apart from its fused form; name what was fused.
static const char *op_text(const mz_node *n, char *buf, size_t size) {
    static const char *const acts[] = {"", "+relu", "+gelu", "+gelu_tanh", "+silu", "+swiglu"};
    bool residual = reads(n, "residual") || reads(n, "dres");
    snprintf(buf, size, "%s%s%s", mz_op_table[n->op].name, acts[n->attrs.act], residual ? "+residual" : "");
    return buf;
}

// Of what the node reads or writes with scales.
static const char *scale_of(const mezzo_graph *g, const mz_node *n) {
    mz_scaling scaling = n->out[0] >= 0 ? g->values[n->out[0]].scaling : MZ_SCALING_NONE;
    for (int k = 0; k < n->n_in && scaling == MZ_SCALING_NONE; ++k)
        if (n->in[k] >= 0)
            scaling = g->values[n->in[k]].scaling;
    return scaling == MZ_SCALING_NONE ? "-" : mz_scaling_name(scaling);
}

static void explain_node(const mezzo_graph *g, size_t i, mezzo_explain_fn visit, void *user) {
    const mz_node *n = &g->nodes[i];
    char op[48], name[160], shape[64], inputs[128] = "";
    size_t len = 0;
    int out = 0;
    while (out < n->n_out - 1 && n->out[out] < 0)
        ++out;
    for (int k = 0; k < n->n_in; ++k)
        if (n->in[k] >= 0 && len < sizeof inputs)
            len += (size_t)snprintf(inputs + len, sizeof inputs - len, "%s%s", len ? "," : "",
                                    mezzo_dtype_name(g->values[n->in[k]].dtype));
    const mz_value *v = &g->values[n->out[out]];
    mezzo_explain_row row = {.index = (int)i,
                             .op = op_text(n, op, sizeof op),
                             .module = g->modules[n->module],
                             .output = mz_graph_value_name(g, n->out[out], name, sizeof name),
                             .phase = phase_name(n->phase),
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

mezzo_status mezzo_graph_explain(const mezzo_graph *graph, const mezzo_program_options *options, const char *after,
                                 mezzo_explain_fn visit, void *user) {
    MZ_REQUIRE(graph, options, after);
    if (visit == NULL)
        return mz_fail(MEZZO_ERR_INVALID, "mezzo_graph_explain: visit is NULL");
    mezzo_graph *g = NULL;
    MEZZO_TRY(mz_passes(graph, options, after, &g));
    for (size_t i = 0; i < g->n_nodes; ++i)
        explain_node(g, i, visit, user);
    mezzo_graph_free(g);
    return MEZZO_OK;
}

mezzo_status mezzo_graph_explain_params(const mezzo_graph *graph, const mezzo_program_options *options,
                                        mezzo_master master, mezzo_explain_param_fn visit, void *user) {
    MZ_REQUIRE(graph, options);
    if (visit == NULL)
        return mz_fail(MEZZO_ERR_INVALID, "mezzo_graph_explain_params: visit is NULL");
    mezzo_graph *g = NULL;
    char shape[64];
    MEZZO_TRY(mz_passes(graph, options, "autocast", &g));
    for (size_t i = 0; i < g->n_params; ++i) {
        const mz_param_spec *p = &g->params[i];
        mezzo_explain_param row = {.name = p->name,
                                   .shape = mz_shape_text(&p->shape, shape, sizeof shape),
                                   .copy = p->shadow >= 0 ? g->values[p->shadow].dtype : MEZZO_DTYPE_COUNT};
        row.master = mz_master_of(g, i, master, &row.rule);
        visit(user, &row);
    }
    mezzo_graph_free(g);
    return MEZZO_OK;
}
