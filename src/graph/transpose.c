// The transpose pass halves what a quantized gradient of a loss adds to the peak of memory. With one scale a tensor the
// codes are the same in both layouts, so the gradient is quantized rowwise alone, and a node of its own makes the
// columnwise codes of the rowwise ones. The gradient in 16 bits is then dead, and they can lie in its memory. Such a
// gradient is as large as the logits, often the largest value of a step. Other gradients keep one pass for both
// layouts: they are small, and a pass more would take time. A device may write the rowwise codes where it computes the
// gradient.
#include "graph/graph.h"

// Returns whether the node rounds a cross-entropy's gradient, with one scale, into both layouts and nothing else.
static bool applies(const mezzo_graph *g, const mz_node *n) {
    if (n->op != MZ_OP_quantize || n->attrs.act != MZ_ACT_NONE || mz_graph_entry(g, n) < 0)
        return false;
    const int maker = g->values[n->in[0]].producer;
    return maker >= 0 && g->nodes[maker].op == MZ_OP_cross_entropy_dx && mz_node_out(n, MZ_OUT(quantize, y)) >= 0 &&
           mz_node_out(n, MZ_OUT(quantize, columnwise)) >= 0 && mz_node_out(n, MZ_OUT(quantize, act_out)) < 0;
}

// Returns the node that makes the columnwise codes of the node's rowwise ones.
static mz_node transposing(const mz_node *rounding) {
    const int rowwise = MZ_OUT(quantize, y), columnwise = MZ_OUT(quantize, columnwise);
    mz_node n = *rounding;
    n.attrs = (mz_attrs){.via = MEZZO_F32};
    n.rule = "the same codes, columnwise, in a pass of their own";
    n.formats.operand = rounding->formats.output;
    for (int k = 0; k < MZ_MAX_OUT; ++k)
        n.out[k] = -1;
    n.in[0] = rounding->out[rowwise];
    n.out[columnwise] = rounding->out[columnwise];
    n.n_in = 1;
    n.n_out = columnwise + 1;
    return n;
}

mezzo_status mz_pass_transpose(mezzo_graph *g, const mz_target *target) {
    mz_node *old = g->nodes;
    const size_t n = g->n_nodes;
    mezzo_status status = MEZZO_OK;
    bool any = false;
    for (size_t i = 0; i < n; ++i)
        any = any || applies(g, &old[i]);
    if (!any || target->options->no_fuse)
        return MEZZO_OK;
    bool *chosen = mz_alloc(n, sizeof *chosen);
    if (chosen == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (size_t i = 0; i < n; ++i)
        chosen[i] = applies(g, &old[i]);
    g->nodes = NULL;
    g->n_nodes = g->cap_nodes = 0;
    for (size_t i = 0; i < n && status == MEZZO_OK; ++i) {
        const mz_node later = transposing(&old[i]);
        if (chosen[i])
            old[i].out[MZ_OUT(quantize, columnwise)] = -1;
        status = mz_graph_node(g, old[i], NULL);
        if (chosen[i] && status == MEZZO_OK)
            status = mz_graph_node(g, later, NULL);
    }
    mz_graph_relink(g);
    MZ_FREE(chosen, old);
    return status;
}
