// The keep pass decides where a program reads something else than a master. A low copy that the parameters do not keep
// becomes a cast, in forward and again in backward, so that it has no memory in between. Quantized weights that they
// keep become values, and the quantize that would make them is dropped.
#include "graph/graph.h"

typedef struct keep_pass {
    mezzo_graph *g;
    const mz_keeping *kept;
    mz_node *old;   // the nodes before the pass
    int *first;     // by parameter: the value that holds its quantized data, -1
    int (*cast)[2]; // by parameter: casts that are its low copy in forward, and after it; -1
} keep_pass;

// Returns the parameter whose low copy, which is not kept, the value is; -1: there is none.
static int param_of_copy(const keep_pass *p, int value) {
    const mz_value *v = value >= 0 ? &p->g->values[value] : NULL;
    const bool unkept = v != NULL && v->kind == MZ_VALUE_LOW_COPY && !p->kept->copied[v->param];
    return unkept ? v->param : -1;
}

// Inserts a cast from the master before the first reader of a low copy that is not kept, and before the first one after
// forward.
static mezzo_status cast_copies(keep_pass *p, mz_node *reader) {
    for (int k = 0; k < reader->n_in; k++) {
        const int param = param_of_copy(p, reader->in[k]);
        if (param < 0)
            continue;
        int *made = &p->cast[param][reader->phase != MZ_FORWARD];
        if (*made < 0) {
            const mz_value *copy = &p->g->values[reader->in[k]];
            const mezzo_dtype dtype = copy->dtype;
            const mz_value v = {.kind = MZ_VALUE_TEMP, .dtype = dtype, .shape = copy->shape, .param = -1, .alias = -1};
            MEZZO_TRY(mz_graph_value(p->g, v, made));
            MEZZO_TRY(mz_graph_node(p->g,
                                    (mz_node){.op = MZ_OP_cast,
                                              .n_in = 1,
                                              .n_out = 1,
                                              .in = {p->g->params[param].value},
                                              .out = {*made},
                                              .phase = reader->phase,
                                              .module = reader->module,
                                              .precision = reader->precision,
                                              .segment = -1,
                                              .numerics = {dtype, MEZZO_F32, MEZZO_F32},
                                              .formats = {MEZZO_F32, dtype, dtype, MZ_SCALING_NONE, false},
                                              .rule = "a copy that the parameters do not keep"},
                                    NULL));
        }
        reader->in[k] = *made;
    }
    return MEZZO_OK;
}

// Returns whether the node is a quantize of a whole parameter that the update can do instead.
static bool makes_quantized(const keep_pass *p, const mz_node *n) {
    const mz_value *x = n->op == MZ_OP_quantize ? &p->g->values[n->in[0]] : NULL;
    if (x == NULL || x->kind != MZ_VALUE_PARAM || !p->kept->quantized[x->param] || n->attrs.act != MZ_ACT_NONE ||
        n->n_in > 1 || mz_node_out(n, MZ_OUT(quantize, dbias)) >= 0)
        return false;
    for (int k = 0; k <= MZ_OUT(quantize, columnwise); k++) {
        const mz_value *y = mz_node_out(n, k) >= 0 ? &p->g->values[n->out[k]] : NULL;
        const int first = p->first[x->param];
        if (y != NULL && (!mz_scalings[y->scaling].history || (first >= 0 && p->g->values[first].dtype != y->dtype)))
            return false;
    }
    return true;
}

// If several calls quantize one parameter, they share the first call's scale entry.
static void keep_quantized(keep_pass *p, const mz_node *n) {
    const int param = p->g->values[n->in[0]].param;
    for (int k = 0; k <= MZ_OUT(quantize, columnwise); k++) {
        if (mz_node_out(n, k) < 0)
            continue;
        mz_value *y = &p->g->values[n->out[k]];
        y->kind = MZ_VALUE_QUANTIZED;
        y->param = param;
        y->producer = -1;
        if (p->first[param] < 0)
            p->first[param] = n->out[k];
        const int scale = p->g->values[p->first[param]].scale;
        if (y->scale != scale) // so nothing reads the other entry any more
            p->g->values[y->scale].kind = MZ_VALUE_TEMP;
        y->scale = scale;
    }
}

mezzo_status mz_graph_keep(mezzo_graph *g, const mz_keeping *kept) {
    keep_pass p = {.g = g,
                   .kept = kept,
                   .old = g->nodes,
                   .first = mz_alloc(g->n_params + 1, sizeof *p.first),
                   .cast = mz_alloc(g->n_params + 1, sizeof *p.cast)};
    const size_t n = g->n_nodes;
    mezzo_status status = MEZZO_OK;
    if (p.first == NULL || p.cast == NULL) {
        MZ_FREE(p.first, p.cast);
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    }
    for (size_t i = 0; i < g->n_params; i++)
        p.first[i] = p.cast[i][0] = p.cast[i][1] = -1;
    g->nodes = NULL;
    g->n_nodes = g->cap_nodes = 0;
    for (size_t i = 0; i < n && status == MEZZO_OK; i++) {
        if (makes_quantized(&p, &p.old[i])) {
            keep_quantized(&p, &p.old[i]);
            continue;
        }
        status = cast_copies(&p, &p.old[i]);
        if (status == MEZZO_OK)
            status = mz_graph_node(g, p.old[i], NULL);
    }
    for (size_t i = 0; i < g->n_values; i++) // nothing reads these any more
        if (param_of_copy(&p, (int)i) >= 0) {
            g->values[i].kind = MZ_VALUE_TEMP;
            g->values[i].param = -1;
        }
    mz_graph_relink(g);
    MZ_FREE(p.first, p.cast, p.old);
    return status;
}
