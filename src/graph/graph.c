// The graph is a container of values and nodes, which can be copied.
#include "graph/graph.h"

#include "quant/entry.h"

mezzo_status mezzo_graph_create(mezzo_graph **out) {
    MZ_REQUIRE(out);
    *out = NULL;
    mezzo_graph *g;
    MEZZO_TRY(MZ_NEW(g, 1));
    g->segment = -1;
    g->positions = -1;
    g->loss = -1;
    g->scale = -1;
    mezzo_status status = MZ_RESERVE(g->modules, g->cap_modules, 1);
    if (status == MEZZO_OK && !(g->modules[0] = mz_strdup("")))
        status = MEZZO_ERR_MEMORY;
    if (status != MEZZO_OK) {
        mezzo_graph_free(g);
        return mz_trace(status, __FILE__, __LINE__, __func__);
    }
    g->n_modules = 1;
    *out = g;
    return MEZZO_OK;
}

void mezzo_graph_free(mezzo_graph *g) {
    if (!mz_free_once(g, "graph"))
        return;
    for (size_t i = 0; i < g->n_values; ++i)
        mz_free(g->values[i].name);
    for (size_t i = 0; i < g->n_params; ++i)
        mz_free(g->params[i].name);
    for (size_t i = 0; i < g->n_outputs; ++i)
        mz_free(g->outputs[i].name);
    for (size_t i = 0; i < g->n_modules; ++i)
        mz_free(g->modules[i]);
    MZ_FREE(g->values, g->nodes, g->params, g->outputs, g->tracked, g->modules);
    mz_names_free(&g->sources);
    mz_names_free(&g->entries);
    mz_names_free(&g->paths);
    MZ_FREE(g->scopes, g->regions, g->message, g);
}

mezzo_status mezzo_graph_status(const mezzo_graph *g) {
    MZ_REQUIRE(g);
    if (g->status == MEZZO_OK)
        return MEZZO_OK;
    return mz_fail(g->status, "%s", g->message ? g->message : "out of memory while building the graph");
}

mezzo_status mz_graph_value(mezzo_graph *g, mz_value value, int *id) {
    mezzo_status status = MZ_RESERVE(g->values, g->cap_values, g->n_values + 1);
    if (status != MEZZO_OK) {
        mz_free(value.name);
        return mz_trace(status, __FILE__, __LINE__, __func__);
    }
    *id = (int)g->n_values;
    g->values[g->n_values++] = value;
    return MEZZO_OK;
}

mezzo_status mz_graph_node(mezzo_graph *g, mz_node node, int *id) {
    MEZZO_TRY(MZ_RESERVE(g->nodes, g->cap_nodes, g->n_nodes + 1));
    int index = (int)g->n_nodes;
    g->nodes[g->n_nodes++] = node;
    for (int i = 0; i < node.n_out; ++i)
        if (node.out[i] >= 0 && g->values[node.out[i]].kind == MZ_VALUE_TEMP) {
            g->values[node.out[i]].producer = index;
            g->values[node.out[i]].slot = i;
        }
    if (id)
        *id = index;
    return MEZZO_OK;
}

static mezzo_status copy_array(void **dst, const void *src, size_t n, size_t size) {
    if (n == 0)
        return MEZZO_OK;
    *dst = mz_alloc(n, size);
    if (!*dst)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    memcpy(*dst, src, n * size);
    return MEZZO_OK;
}

mezzo_status mz_graph_copy(const mezzo_graph *g, mezzo_graph **out) {
    *out = NULL;
    mezzo_graph *c;
    MEZZO_TRY(MZ_NEW(c, 1));
    mezzo_status status;
    c->segment = -1;
    c->positions = -1;
    c->n_segments = g->n_segments;
    c->next_rng = g->next_rng;
    c->loss = g->loss;
    c->scale = g->scale;
#define COPY(array, n, cap)                                                                                            \
    MEZZO_TRY_GOTO(status, copy_array((void **)&c->array, g->array, g->n, sizeof *g->array));                          \
    c->n = c->cap = g->n
    COPY(nodes, n_nodes, cap_nodes);
    COPY(values, n_values, cap_values);
    for (size_t i = 0; i < c->n_values; ++i)
        c->values[i].name = NULL;
    COPY(params, n_params, cap_params);
    for (size_t i = 0; i < c->n_params; ++i)
        c->params[i].name = NULL;
    COPY(outputs, n_outputs, cap_outputs);
    for (size_t i = 0; i < c->n_outputs; ++i)
        c->outputs[i].name = NULL;
    COPY(tracked, n_tracked, cap_tracked);
    COPY(modules, n_modules, cap_modules);
    for (size_t i = 0; i < c->n_modules; ++i)
        c->modules[i] = NULL;
#undef COPY
    status = MEZZO_ERR_MEMORY;
#define COPY_NAMES(array, n, field)                                                                                    \
    for (size_t i = 0; i < c->n; ++i)                                                                                  \
        if (g->array[i] field && !(c->array[i] field = mz_strdup(g->array[i] field)))                                  \
    goto fail
    COPY_NAMES(values, n_values, .name);
    COPY_NAMES(params, n_params, .name);
    COPY_NAMES(outputs, n_outputs, .name);
    COPY_NAMES(modules, n_modules, );
#undef COPY_NAMES
    *out = c;
    return MEZZO_OK;
fail:
    mezzo_graph_free(c);
    return mz_trace(status, __FILE__, __LINE__, __func__);
}

void mz_graph_relink(mezzo_graph *g) {
    for (size_t i = 0; i < g->n_nodes; ++i)
        for (int k = 0; k < g->nodes[i].n_out; ++k) {
            int v = g->nodes[i].out[k];
            if (v >= 0 && g->values[v].kind == MZ_VALUE_TEMP) {
                g->values[v].producer = (int)i;
                g->values[v].slot = k;
            }
        }
}

void mz_graph_compact(mezzo_graph *g, const bool *dead) {
    size_t n = 0;
    for (size_t i = 0; i < g->n_nodes; ++i)
        if (!dead[i])
            g->nodes[n++] = g->nodes[i];
    g->n_nodes = n;
    mz_graph_relink(g);
}

mezzo_status mz_graph_consumers(const mezzo_graph *g, int **counts) {
    int *c;
    MEZZO_TRY(MZ_NEW(c, g->n_values + 1));
    for (size_t i = 0; i < g->n_nodes; ++i)
        for (int k = 0; k < g->nodes[i].n_in; ++k)
            if (g->nodes[i].in[k] >= 0)
                ++c[g->nodes[i].in[k]];
    for (size_t i = 0; i < g->n_values; ++i) {
        c[i] += g->values[i].keep;
        if (g->values[i].scaling != MZ_SCALING_NONE) // whoever reads a scaled value reads its scales, too
            ++c[g->values[i].scale];
    }
    *counts = c;
    return MEZZO_OK;
}

// --- names ---------------------------------------------------------------------------------------------------------
// Returns a source's number: 2 · parameter, or 2 · value + 1.
static const char *source_name(const void *list, int number) {
    const mezzo_graph *g = list;
    return number % 2 == 0 ? g->params[number / 2].name : g->values[number / 2].name;
}

static const char *value_name(const void *list, int number) {
    return ((const mezzo_graph *)list)->values[number].name;
}

static const char *module_name(const void *list, int number) {
    return ((const mezzo_graph *)list)->modules[number];
}

mezzo_status mz_graph_index_names(mezzo_graph *g) {
    for (; g->named_params < g->n_params; ++g->named_params)
        MEZZO_TRY(mz_names_add(&g->sources, g->params[g->named_params].name, (int)(2 * g->named_params)));
    for (; g->named_values < g->n_values; ++g->named_values) {
        const mz_value *v = &g->values[g->named_values];
        if (v->name != NULL && v->kind == MZ_VALUE_ENTRY)
            MEZZO_TRY(mz_names_add(&g->entries, v->name, (int)g->named_values));
        else if (v->name != NULL)
            MEZZO_TRY(mz_names_add(&g->sources, v->name, (int)(2 * g->named_values + 1)));
    }
    for (; g->named_modules < g->n_modules; ++g->named_modules)
        MEZZO_TRY(mz_names_add(&g->paths, g->modules[g->named_modules], (int)g->named_modules));
    return MEZZO_OK;
}

bool mz_graph_has_name(const mezzo_graph *g, const char *name) {
    return mz_names_find(&g->sources, name, source_name, g) >= 0 ||
           mz_names_find(&g->entries, name, value_name, g) >= 0;
}

int mz_graph_module(const mezzo_graph *g, const char *path) {
    return mz_names_find(&g->paths, path, module_name, g);
}

// Returns the name "h.3.mlp.c_fc.x", or the first free one of "….x#2", "….x#3" ….
static char *entry_name(mezzo_graph *g, const char *module, const char *role) {
    if (mz_graph_index_names(g) != MEZZO_OK)
        return NULL;
    char *name = mz_format("%s%s%s", module, *module != '\0' ? "." : "", role);
    for (size_t before = 2; name != NULL && mz_names_find(&g->entries, name, value_name, g) >= 0; ++before) {
        mz_free(name);
        name = mz_format("%s%s%s#%zu", module, *module != '\0' ? "." : "", role, before);
    }
    return name;
}

// Adds the scales of y, which a quantize writes: those of its blocks, or the entry named by module and `role`.
static mezzo_status new_scales(mezzo_graph *g, const mz_value *y, const char *module, const char *role, int *out) {
    const bool entry = mz_scalings[y->scaling].history;
    const mz_tensor t = mz_value_stored(y);
    mz_value scales = {.kind = entry ? MZ_VALUE_ENTRY : MZ_VALUE_TEMP,
                       .dtype = MEZZO_F32,
                       .shape = {1, {entry ? MZ_SCALE_WORDS : mz_scale_count(&t)}},
                       .producer = -1,
                       .param = -1,
                       .alias = -1,
                       .name = entry ? entry_name(g, module, role) : NULL};
    return entry && scales.name == NULL ? mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__)
                                        : mz_graph_value(g, scales, out);
}

mezzo_status mz_graph_quantize(mezzo_graph *g, mz_node n, int v, mz_formats f, const char *role, int *out) {
    const bool scaled = f.scaling != MZ_SCALING_NONE, entry = mz_scalings[f.scaling].history;
    const int slot = MZ_OUT(quantize, scales);
    mz_value y = {.kind = MZ_VALUE_TEMP,
                  .dtype = f.operand,
                  .gradient = f.gradient,
                  .scaling = f.scaling,
                  .shape = g->values[v].shape,
                  .producer = -1,
                  .param = -1,
                  .alias = -1};
    n.op = scaled ? MZ_OP_quantize : MZ_OP_cast;
    n.attrs = (mz_attrs){.via = MEZZO_F32, .measure = entry, .record = entry};
    n.numerics = (mz_numerics){f.operand, MEZZO_F32, MEZZO_F32};
    n.formats = (mz_formats){.operand = g->values[v].dtype, .gradient = f.gradient, .output = f.operand};
    for (int k = 0; k < MZ_MAX_IN; ++k)
        n.in[k] = -1;
    for (int k = 0; k < MZ_MAX_OUT; ++k)
        n.out[k] = -1;
    n.n_in = 1;
    n.in[0] = v;
    n.n_out = scaled ? slot + 1 : 1;
    if (scaled) {
        MEZZO_TRY(new_scales(g, &y, g->modules[n.module], role, &y.scale));
        n.out[slot] = y.scale;
    }
    MEZZO_TRY(mz_graph_value(g, y, &n.out[0]));
    *out = n.out[0];
    return mz_graph_node(g, n, NULL);
}

int mz_graph_entry(const mezzo_graph *g, const mz_node *n) {
    const int v = n->op == MZ_OP_quantize ? mz_node_out(n, MZ_OUT(quantize, scales)) : -1;
    return v >= 0 && g->values[v].kind == MZ_VALUE_ENTRY ? v : -1;
}

int mz_graph_before_rounding(const mezzo_graph *g, int value) {
    const mz_value *v = &g->values[value];
    return v->scaling != MZ_SCALING_NONE ? g->nodes[v->producer].in[0] : value;
}

mezzo_status mz_graph_columnwise(mezzo_graph *g, int value, int *out) {
    const int node = g->values[value].producer, slot = MZ_OUT(quantize, columnwise);
    *out = value;
    if (g->values[value].scaling == MZ_SCALING_NONE)
        return MEZZO_OK;
    *out = g->nodes[node].out[slot];
    if (*out >= 0)
        return MEZZO_OK;
    mz_value columnwise = g->values[value];
    columnwise.columnwise = true;
    columnwise.slot = slot;
    const int scales = mz_scale_slot(columnwise.scaling, true);
    if (scales != MZ_OUT(quantize, scales)) { // columnwise data have other blocks, with scales of their own
        MEZZO_TRY(new_scales(g, &columnwise, NULL, NULL, &columnwise.scale));
        g->values[columnwise.scale].producer = node;
        g->values[columnwise.scale].slot = scales;
        g->nodes[node].out[scales] = columnwise.scale;
        g->nodes[node].n_out = scales + 1;
    }
    MEZZO_TRY(mz_graph_value(g, columnwise, out));
    g->nodes[node].out[slot] = *out;
    return MEZZO_OK;
}

mz_tensor mz_value_stored(const mz_value *v) {
    return (mz_tensor){.dtype = v->dtype,
                       .shape = v->shape,
                       .scaling = v->scaling,
                       .storage = v->storage,
                       .columnwise = v->columnwise};
}

mz_tensor mz_value_tensor(const mezzo_graph *g, int value) {
    return value >= 0 ? mz_value_stored(&g->values[value]) : (mz_tensor){.dtype = MEZZO_F32, .shape.rank = -1};
}

const char *mz_graph_value_name(const mezzo_graph *g, int value, char *buf, size_t size) {
    if (value < 0)
        return "(absent)";
    const mz_value *v = &g->values[value];
    if (v->name)
        return v->name;
    if (v->param >= 0 && v->kind != MZ_VALUE_TEMP) {
        const char *what = v->kind == MZ_VALUE_GRAD        ? "grad"
                           : v->kind == MZ_VALUE_LOW_COPY  ? "low_copy"
                           : v->kind == MZ_VALUE_QUANTIZED ? "quantized"
                                                           : "";
        snprintf(buf, size, "%s%s%s", g->params[v->param].name, *what ? "." : "", what);
    } else if (v->kind == MZ_VALUE_SCALE) {
        snprintf(buf, size, "loss_scale");
    } else if (v->producer >= 0) {
        const mz_node *node = &g->nodes[v->producer];
        const char *module = g->modules[node->module];
        snprintf(buf, size, "%s%s%s:%d", module, *module ? "." : "", mz_op_table[node->op].name, value);
    } else {
        snprintf(buf, size, "value:%d", value);
    }
    return buf;
}

const char *mz_phase_name(mz_phase phase) {
    static const char *const names[] = {"forward", "recompute", "backward"};
    return names[phase];
}

double mz_node_flops(const mezzo_graph *g, const mz_node *node) {
    const mz_shape *in[MZ_MAX_IN] = {NULL}, *out[MZ_MAX_OUT] = {NULL};
    mz_flops_fn *flops = mz_op_table[node->op].flops;
    for (int i = 0; i < node->n_in; i++)
        in[i] = node->in[i] >= 0 ? &g->values[node->in[i]].shape : NULL;
    for (int i = 0; i < node->n_out; i++)
        out[i] = node->out[i] >= 0 ? &g->values[node->out[i]].shape : NULL;
    return flops != NULL ? flops(&node->attrs, in, out) : 0;
}
