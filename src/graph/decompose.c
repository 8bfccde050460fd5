// The decompose pass replaces an op that the device has no kernel for by its composition (compose.h), and repeats this
// until every op has a kernel. A composition's numbers are FP32; its products have the formats of the op's own.
#include "graph/compose.h"

typedef struct decompose {
    mezzo_graph *g;
    mz_has_kernel *has_kernel;
    const void *user;
} decompose;

// Holds one composition on its way into the graph.
typedef struct inlining {
    decompose *d;
    const mz_node *at; // the node that the composition replaces
    mz_composed body;
    mezzo_dtype wide;
    int *value;  // per value of the body: the graph's value, -1: not there yet
    int *as[2];  // its cast to the wide format and to the products' format; -1: none
    bool *alive; // per node of the body: an output needs it
} inlining;

static mezzo_status emit(decompose *d, mz_node node);

// Returns whether the node's operands have neither scales nor blocks, which only kernels interpret.
static bool has_plain_numbers(const mezzo_graph *g, const mz_node *n) {
    bool plain = n->attrs.blocks == MEZZO_BLOCKS_NONE;
    for (int i = 0; i < n->n_in; i++)
        plain = plain && (n->in[i] < 0 || g->values[n->in[i]].scaling == MZ_SCALING_NONE);
    for (int i = 0; i < n->n_out; i++)
        plain = plain && (n->out[i] < 0 || g->values[n->out[i]].scaling == MZ_SCALING_NONE);
    return plain;
}

static mz_node node_like(const inlining *in, mz_op op) {
    mz_node n = *in->at;
    n.op = op;
    n.attrs = (mz_attrs){.via = in->wide};
    n.numerics = (mz_numerics){in->wide, in->wide, in->wide};
    n.formats = (mz_formats){.operand = in->wide, .gradient = in->wide, .output = in->wide};
    n.pinned = false;
    n.n_in = n.n_out = 0;
    for (int i = 0; i < MZ_MAX_IN; i++)
        n.in[i] = n.out[i] = -1;
    return n;
}

static mezzo_status new_value(inlining *in, const mz_shape *shape, mezzo_dtype dtype, int *out) {
    const mz_value v = {.kind = MZ_VALUE_TEMP,
                        .dtype = dtype,
                        .gradient = dtype,
                        .shape = *shape,
                        .producer = -1,
                        .param = -1,
                        .alias = -1};
    return mz_graph_value(in->d->g, v, out);
}

static mezzo_status emit_cast(inlining *in, int from, int to) {
    mz_node n = node_like(in, MZ_OP_cast);
    n.numerics.compute = n.attrs.via = n.formats.output = in->d->g->values[to].dtype;
    n.formats.operand = in->d->g->values[from].dtype;
    n.n_in = n.n_out = 1;
    n.in[0] = from;
    n.out[0] = to;
    return emit(in->d, n);
}

// Finds the graph's value for one of the body's, in the format; integers keep theirs. which: the index of `as`.
static mezzo_status operand(inlining *in, int v, mezzo_dtype dtype, int which, int *out) {
    mezzo_graph *g = in->d->g;
    *out = in->value[v];
    if (g->values[*out].dtype == dtype || g->values[*out].dtype == MEZZO_I32)
        return MEZZO_OK;
    if (in->as[which][v] < 0) {
        MEZZO_TRY(new_value(in, &g->values[*out].shape, dtype, &in->as[which][v]));
        MEZZO_TRY(emit_cast(in, in->value[v], in->as[which][v]));
    }
    *out = in->as[which][v];
    return MEZZO_OK;
}

static bool is_low(mezzo_dtype dtype) {
    return dtype == MEZZO_BF16 || dtype == MEZZO_F16;
}

// Appends a node of the body, with the graph's values. A product reads operands as the op's own kernel would.
static mezzo_status inline_node(inlining *in, const mz_node *from) {
    const mezzo_dtype compute = in->at->numerics.compute;
    const bool product = from->op == MZ_OP_matmul, low = product && is_low(compute);
    mz_node n = node_like(in, from->op);
    n.attrs = from->attrs;
    n.attrs.via = in->wide;
    n.numerics = product ? in->at->numerics : n.numerics;
    n.n_in = from->n_in;
    n.n_out = from->n_out;
    for (int i = 0; i < from->n_in; i++)
        if (from->in[i] >= 0)
            MEZZO_TRY(operand(in, from->in[i], low ? compute : in->wide, low, &n.in[i]));
    for (int i = 0; i < from->n_out; i++) {
        const mz_value *v = from->out[i] >= 0 ? &in->body.graph->values[from->out[i]] : NULL;
        int *to = v != NULL ? &in->value[from->out[i]] : NULL;
        if (v != NULL && *to < 0)
            MEZZO_TRY(new_value(in, &v->shape, v->dtype == MEZZO_I32 ? MEZZO_I32 : in->wide, to));
        n.out[i] = v != NULL ? *to : -1;
    }
    n.pinned = from->op == MZ_OP_cast; // a cast to or from integers stays
    if (from->op == MZ_OP_reshape)
        in->d->g->values[n.out[0]].alias = n.in[0];
    return emit(in->d, n);
}

// Marks the body's nodes that outputs need, from the end.
static void mark_alive(inlining *in) {
    const mezzo_graph *body = in->body.graph;
    for (size_t i = body->n_nodes; i-- > 0;)
        for (int k = 0; k < body->nodes[i].n_out; k++) {
            const int v = body->nodes[i].out[k];
            bool needed = false;
            for (int o = 0; o < MZ_MAX_OUT; o++)
                needed = needed || (v >= 0 && in->body.out[o] == v);
            for (size_t j = i + 1; j < body->n_nodes && !needed; j++)
                for (int m = 0; in->alive[j] && m < body->nodes[j].n_in; m++)
                    needed = needed || (v >= 0 && body->nodes[j].in[m] == v);
            in->alive[i] = in->alive[i] || needed;
        }
}

// Writes the body's results to the node's outputs, where a node of the body can write them there.
static void bind_outputs(inlining *in) {
    const mezzo_graph *body = in->body.graph;
    for (int i = 0; i < in->at->n_out; i++) {
        const int v = in->body.out[i];
        const mz_value *to = in->at->out[i] >= 0 ? &in->d->g->values[in->at->out[i]] : NULL;
        if (to != NULL && to->kind == MZ_VALUE_TEMP && body->values[v].producer >= 0 && in->value[v] < 0 &&
            (to->dtype == in->wide || to->dtype == MEZZO_I32))
            in->value[v] = in->at->out[i];
    }
}

static mezzo_status finish_output(inlining *in, int i) {
    mezzo_graph *g = in->d->g;
    const int to = in->at->out[i], v = in->body.out[i], from = in->value[v];
    if (from == to)
        return MEZZO_OK;
    if (g->values[to].kind != MZ_VALUE_GRAD)
        return emit_cast(in, from, to);
    mz_node n = node_like(in, MZ_OP_accumulate);
    n.attrs.accumulate = in->at->attrs.accumulate;
    n.rule = "parameter gradients are fp32";
    n.n_in = n.n_out = 1;
    n.in[0] = from;
    n.out[0] = to;
    return emit(in->d, n);
}

static mezzo_status inline_body(inlining *in) {
    const mezzo_graph *body = in->body.graph;
    for (size_t i = 0; i < body->n_values; i++)
        in->value[i] = in->as[0][i] = in->as[1][i] = -1;
    for (int i = 0; i < in->at->n_in; i++)
        if (in->body.in[i] >= 0)
            in->value[in->body.in[i]] = in->at->in[i];
    mark_alive(in);
    bind_outputs(in);
    for (size_t i = 0; i < body->n_nodes; i++)
        if (in->alive[i])
            MEZZO_TRY(inline_node(in, &body->nodes[i]));
    for (int i = 0; i < in->at->n_out; i++)
        if (in->at->out[i] >= 0)
            MEZZO_TRY(finish_output(in, i));
    return MEZZO_OK;
}

// Appends the node or its composition. A node without one stays, and the choose pass reports it.
static mezzo_status emit(decompose *d, mz_node node) {
    inlining in = {.d = d, .at = &node, .wide = node.numerics.reduce == MEZZO_F64 ? MEZZO_F64 : MEZZO_F32};
    if (node.op == MZ_OP_reshape || mz_op_is_primitive(node.op) || d->has_kernel(d->user, d->g, &node) ||
        !has_plain_numbers(d->g, &node))
        return mz_graph_node(d->g, node, NULL);
    MEZZO_TRY(mz_compose(d->g, &node, &in.body));
    if (in.body.graph == NULL)
        return mz_graph_node(d->g, node, NULL);
    const size_t n = in.body.graph->n_values + 1;
    mezzo_status status = MEZZO_ERR_MEMORY;
    in.value = mz_alloc(3 * n, sizeof *in.value);
    in.alive = mz_alloc(in.body.graph->n_nodes + 1, sizeof *in.alive);
    if (in.value != NULL && in.alive != NULL) {
        in.as[0] = in.value + n;
        in.as[1] = in.as[0] + n;
        status = inline_body(&in);
    }
    MZ_FREE(in.value, in.alive);
    mezzo_graph_free(in.body.graph);
    return status == MEZZO_OK ? MEZZO_OK : mz_trace(status, __FILE__, __LINE__, __func__);
}

mezzo_status mz_graph_decompose(mezzo_graph *g, mz_has_kernel *has_kernel, const void *user) {
    decompose d = {.g = g, .has_kernel = has_kernel, .user = user};
    mz_node *old = g->nodes;
    const size_t n_old = g->n_nodes;
    mezzo_status status = MEZZO_OK;
    g->nodes = NULL;
    g->n_nodes = g->cap_nodes = 0;
    for (size_t i = 0; i < n_old && status == MEZZO_OK; i++)
        status = emit(&d, old[i]);
    mz_free(old);
    return status;
}
