// The gather pass adds nodes that gather regions of sharded parameters. A node gathers a region before its first
// reader, so a region is a value like others: it lives until its last reader, and the plan pass then reuses its memory.
// A region that is read again later is gathered again.
//
// An exchanged region is not gathered: its readers get this rank's experts, and their nodes say so
// (runtime/exchange.h).
#include "graph/graph.h"

// The number of other regions that may be read before a region is dropped. It keeps a layer's region, the small region
// with the norms of all layers, and the last layers between forward and backward.
#define STAYS 3

enum { COPIES = 3 }; // FP32, BF16, FP16

typedef struct gathered { // a region in one format, between its first and its last reader
    int region, node, value;
    mezzo_dtype dtype;
} gathered;

typedef struct gather_pass {
    mezzo_graph *g;
    const mz_gathering *parts;
    gathered *list;
    size_t n, cap;
    int *recent; // keys of region and format, the most recently read first
    int n_recent;
    int *current;     // by region and format: index into list; -1
    int *view, *of;   // by value: the view that replaces it and its entry of `list`, or this rank's experts; -1
    size_t n_sources; // values before the pass
} gather_pass;

static int key_of(int region, mezzo_dtype dtype) {
    return region * COPIES + (dtype == MEZZO_F32 ? 0 : dtype == MEZZO_BF16 ? 1 : 2);
}

// Returns the region of the parameter that v is, or is a view of; -1: none. *offset: bytes from the region's beginning,
// *source: the parameter's own value.
static int region_of(const gather_pass *p, int value, int *source, size_t *offset) {
    const mz_value *v = value >= 0 ? &p->g->values[value] : NULL;
    *offset = 0;
    for (; v != NULL && v->alias >= 0; v = &p->g->values[v->alias])
        *offset += v->offset;
    if (v == NULL || (v->kind != MZ_VALUE_PARAM && v->kind != MZ_VALUE_LOW_COPY) || p->parts->region[v->param] < 0)
        return -1;
    *source = (int)(v - p->g->values);
    *offset += (size_t)p->parts->at[v->param] * mezzo_dtype_size(v->dtype);
    return p->parts->region[v->param];
}

// Returns how many other regions were read after this one was last read, and makes it the most recent.
static int others_since(gather_pass *p, int key) {
    int at = 0;
    while (at < p->n_recent && p->recent[at] != key)
        at++;
    const int others = at;
    if (at == p->n_recent)
        p->n_recent++;
    memmove(p->recent + 1, p->recent, (size_t)at * sizeof *p->recent);
    p->recent[0] = key;
    return others;
}

// Adds a view of the same bytes in the gathered region, as a value of the parameter's own kind.
static mezzo_status add_view(gather_pass *p, int value, int source, size_t offset, int index, int *out) {
    mz_value view = p->g->values[value];
    view.kind = p->g->values[source].kind;
    view.param = p->g->values[source].param;
    view.name = NULL;
    view.alias = p->list[index].value;
    view.offset = offset;
    view.producer = -1;
    view.keep = false;
    MEZZO_TRY(mz_graph_value(p->g, view, out));
    p->view[value] = *out;
    p->of[value] = index;
    return MEZZO_OK;
}

static mezzo_status begin_region(gather_pass *p, int key, int region, mezzo_dtype dtype, int node) {
    gathered one = {.region = region, .node = node, .dtype = dtype};
    MEZZO_TRY(MZ_RESERVE(p->list, p->cap, p->n + 1));
    const mz_value whole = {.kind = MZ_VALUE_TEMP,
                            .dtype = dtype,
                            .gradient = dtype,
                            .shape = {1, {p->parts->elements[region]}},
                            .producer = -1,
                            .param = -1,
                            .alias = -1,
                            .scale = -1};
    MEZZO_TRY(mz_graph_value(p->g, whole, &one.value));
    p->current[key] = (int)p->n;
    p->list[p->n++] = one;
    return MEZZO_OK;
}

// Gives the node's results as many experts as the shard that it reads has.
static void keep_own(gather_pass *p, const mz_node *n) {
    for (int k = 0; k < n->n_out; k++) {
        mz_value *out = n->out[k] >= 0 ? &p->g->values[n->out[k]] : NULL;
        if (out != NULL && out->kind == MZ_VALUE_TEMP)
            out->shape.dim[0] /= p->parts->ranks;
    }
}

// Gives a node this rank's experts of a parameter.
static mezzo_status read_own(gather_pass *p, int node, int k, int source) {
    mz_node *n = &p->g->nodes[node];
    const bool makes = n->op == MZ_OP_quantize || n->op == MZ_OP_cast;
    if (n->in[k] != source || (!makes && n->op != MZ_OP_grouped_linear && n->op != MZ_OP_grouped_linear_dx))
        return mz_fail(MEZZO_ERR_UNSUPPORTED, "%s reads the experts of %s: ranks.experts must be gather",
                       mz_op_table[n->op].name, p->g->params[p->g->values[source].param].name);
    if (p->view[source] < 0) {
        mz_value own = p->g->values[source];
        own.shape.dim[0] /= p->parts->ranks;
        own.name = NULL;
        own.keep = false;
        MEZZO_TRY(mz_graph_value(p->g, own, &p->view[source]));
    }
    n->in[k] = p->view[source];
    if (makes)
        keep_own(p, n);
    n->exchanges = n->op == MZ_OP_cast ? 0 : p->parts->ranks;
    return MEZZO_OK;
}

// Marks products with experts that other ranks own. Slice r of such a gradient comes from the rows of rank r.
static mezzo_status mark_products(const gather_pass *p) {
    for (size_t i = 0; i < p->g->n_nodes; i++) {
        mz_node *n = &p->g->nodes[i];
        if (n->op == MZ_OP_grouped_linear || n->op == MZ_OP_grouped_linear_dx) {
            const mz_value *w = &p->g->values[n->in[MZ_IN(grouped_linear, w)]];
            const mz_value *offsets = &p->g->values[n->in[MZ_IN(grouped_linear, offsets)]];
            if (w->shape.dim[0] != offsets->shape.dim[0] - 1)
                n->exchanges = p->parts->ranks;
        }
        for (int k = 0; k < n->n_out; k++) {
            const mz_value *root = n->out[k] >= 0 ? &p->g->values[n->out[k]] : NULL;
            while (root != NULL && root->alias >= 0)
                root = &p->g->values[root->alias];
            const int region = root != NULL && root->kind == MZ_VALUE_GRAD ? p->parts->region[root->param] : -1;
            if (region < 0 || !p->parts->exchanged[region])
                continue;
            if (n->op != MZ_OP_grouped_linear_dw)
                return mz_fail(MEZZO_ERR_UNSUPPORTED, "%s writes the gradient of %s: ranks.experts must be gather",
                               mz_op_table[n->op].name, p->g->params[root->param].name);
            n->exchanges = p->parts->ranks;
        }
    }
    return MEZZO_OK;
}

static mezzo_status read_from_regions(gather_pass *p, int node) {
    for (int k = 0; k < p->g->nodes[node].n_in; k++) {
        int source = -1;
        size_t offset;
        const int value = p->g->nodes[node].in[k], region = region_of(p, value, &source, &offset);
        if (region < 0 || p->g->nodes[node].op == MZ_OP_reshape) // a reshape does not run
            continue;
        if (p->parts->exchanged[region]) {
            MEZZO_TRY(read_own(p, node, k, source));
            continue;
        }
        const mezzo_dtype dtype = p->g->values[value].dtype;
        const int key = key_of(region, dtype);
        if (others_since(p, key) > STAYS || p->current[key] < 0)
            MEZZO_TRY(begin_region(p, key, region, dtype, node));
        int view = p->view[value];
        if (view < 0 || p->of[value] != p->current[key])
            MEZZO_TRY(add_view(p, value, source, offset, p->current[key], &view));
        p->g->nodes[node].in[k] = view;
    }
    return MEZZO_OK;
}

// Returns where the gather stands: before the region's first reader or, with `ahead`, before the first reader of the
// region before it.
static int place_of(const gather_pass *p, size_t i) {
    return p->list[p->parts->ahead && i > 0 ? i - 1 : i].node;
}

static mz_node gather_node(const gather_pass *p, const gathered *what) {
    const mz_node *reader = &p->g->nodes[what->node];
    mz_node n = {.op = MZ_OP_copy,
                 .n_out = 1,
                 .phase = reader->phase,
                 .module = reader->module,
                 .precision = -1,
                 .segment = -1,
                 .numerics = {what->dtype, what->dtype, what->dtype},
                 .rule = "parts of ranks",
                 .gathers = what->region + 1};
    for (int k = 0; k < MZ_MAX_IN; k++)
        n.in[k] = -1;
    for (int k = 0; k < MZ_MAX_OUT; k++)
        n.out[k] = k == 0 ? what->value : -1;
    return n;
}

static mezzo_status add_nodes(gather_pass *p) {
    mezzo_graph *g = p->g;
    const size_t n = g->n_nodes + p->n;
    mz_node *nodes;
    MEZZO_TRY(MZ_NEW(nodes, n + 1));
    size_t to = 0, next = 0;
    for (size_t i = 0; i < g->n_nodes; i++) {
        for (; next < p->n && place_of(p, next) == (int)i; next++)
            nodes[to++] = gather_node(p, &p->list[next]);
        nodes[to++] = g->nodes[i];
    }
    mz_free(g->nodes);
    g->nodes = nodes;
    g->n_nodes = to;
    g->cap_nodes = n + 1;
    mz_graph_relink(g);
    return MEZZO_OK;
}

mezzo_status mz_graph_gather(mezzo_graph *g, const mz_gathering *parts) {
    const size_t keys = (size_t)parts->n_regions * COPIES + 1;
    gather_pass p = {.g = g,
                     .parts = parts,
                     .recent = mz_alloc(keys, sizeof *p.recent),
                     .current = mz_alloc(keys, sizeof *p.current),
                     .view = mz_alloc(g->n_values + 1, sizeof *p.view),
                     .of = mz_alloc(g->n_values + 1, sizeof *p.of),
                     .n_sources = g->n_values};
    mezzo_status status = MEZZO_OK;
    if (p.recent == NULL || p.current == NULL || p.view == NULL || p.of == NULL)
        status = mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (size_t k = 0; k < keys && status == MEZZO_OK; k++)
        p.current[k] = -1;
    for (size_t v = 0; v < p.n_sources && status == MEZZO_OK; v++)
        p.view[v] = p.of[v] = -1;
    for (size_t i = 0; i < g->n_nodes && status == MEZZO_OK; i++)
        status = read_from_regions(&p, (int)i);
    if (status == MEZZO_OK)
        status = mark_products(&p);
    if (status == MEZZO_OK)
        status = add_nodes(&p);
    MZ_FREE(p.recent, p.current, p.view, p.of, p.list);
    return status;
}
