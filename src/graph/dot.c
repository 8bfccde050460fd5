// Writes the graph in Graphviz' DOT language. An op has the colour of its output's storage dtype.
#include "graph/graph.h"

// Okabe & Ito's colours, which everybody can distinguish, light enough for black text.
static const char *const colours[MEZZO_DTYPE_COUNT + 1] = {
    [MEZZO_F64] = "#9ecae9",    [MEZZO_F32] = "#9ecae9",    [MEZZO_TF32] = "#b7e3cc", [MEZZO_BF16] = "#f6c98b",
    [MEZZO_F8E4M3] = "#d6c1e3", [MEZZO_F8E5M2] = "#d6c1e3", [MEZZO_F16] = "#f2a9a0"};

static const char *colour_of(mezzo_dtype dtype) {
    return colours[dtype] != NULL ? colours[dtype] : "#e5e5e5"; // integers are gray
}

// Adds a text inside a quoted DOT string.
static void add_quoted(mz_text *t, const char *text) {
    for (; *text != '\0'; ++text)
        if (*text == '"' || *text == '\\')
            mz_text_addf(t, "\\%c", *text);
        else
            mz_text_add(t, text, 1);
}

static void add_node(mz_text *t, const mezzo_graph *g, size_t index) {
    const mz_node *n = &g->nodes[index];
    int v = mz_main_output(n);
    char shape[64];
    if (v < 0)
        return;
    mezzo_dtype stored = g->values[v].dtype;
    mz_text_addf(t, "  n%zu [label=\"%s", index, mz_op_table[n->op].name);
    if (*g->modules[n->module] != '\0') {
        mz_text_addf(t, "\\n");
        add_quoted(t, g->modules[n->module]);
    }
    mz_text_addf(t, "\\n%s %s", mz_shape_text(&g->values[v].shape, shape, sizeof shape), mezzo_dtype_name(stored));
    if (n->numerics.compute != stored && n->op != MZ_OP_reshape && stored != MEZZO_I32)
        mz_text_addf(t, ", computes in %s", mezzo_dtype_name(n->numerics.compute));
    mz_text_addf(t, "\", fillcolor=\"%s\"%s];\n", colour_of(stored),
                 n->phase == MZ_FORWARD ? "" : ", style=\"filled,dashed\"");
}

// Draws a source once for each reader, so that edges from a weight with many readers do not cross the picture.
static void add_edges(mz_text *t, const mezzo_graph *g, size_t index) {
    const mz_node *n = &g->nodes[index];
    char name[160];
    for (int k = 0; k < n->n_in; ++k) {
        int v = n->in[k];
        if (v < 0)
            continue;
        const mz_value *x = &g->values[v];
        if (x->kind == MZ_VALUE_TEMP && x->producer >= 0) {
            mz_text_addf(t, "  n%d -> n%zu;\n", x->producer, index);
        } else if (x->kind != MZ_VALUE_TEMP) {
            mz_text_addf(t, "  s%zu_%d [shape=ellipse, fillcolor=\"%s\", label=\"", index, k, colour_of(x->dtype));
            add_quoted(t, mz_graph_value_name(g, v, name, sizeof name));
            mz_text_addf(t, "\\n%s\"];\n  s%zu_%d -> n%zu;\n", mezzo_dtype_name(x->dtype), index, k, index);
        } else if (x->alias >= 0 && g->values[x->alias].producer >= 0) {
            mz_text_addf(t, "  n%d -> n%zu [label=\"rows\"];\n", g->values[x->alias].producer, index);
        }
    }
}

mezzo_status mz_graph_dot(const mezzo_graph *g, mz_text *out) {
    mz_text_addf(
        out,
        "digraph mezzo {\n"
        "  rankdir=TB;\n  node [shape=box, style=filled, fontname=\"Helvetica\", fontsize=10, color=\"#666666\"];\n"
        "  edge [color=\"#666666\", fontname=\"Helvetica\", fontsize=9];\n");
    for (size_t i = 0; i < g->n_nodes; ++i) {
        add_node(out, g, i);
        add_edges(out, g, i);
    }
    mz_text_addf(out, "}\n");
    return out->status;
}
