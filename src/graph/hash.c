// Hashes what the builder recorded: ops, attributes, shapes and names, in order.
#include "base/scope.h"
#include "graph/graph.h"

static void add_value(mz_text *t, const mezzo_graph *g, int id) {
    if (id < 0) {
        mz_text_addf(t, " -");
        return;
    }
    const mz_value *v = &g->values[id];
    char shape[128];
    mz_text_addf(t, " %d:%d:%s:%s", id, (int)v->dtype, mz_shape_text(&v->shape, shape, sizeof shape),
                 v->name != NULL ? v->name : "");
}

static void add_node(mz_text *t, const mezzo_graph *g, const mz_node *n) {
    const mz_attrs *a = &n->attrs;
    mz_text_addf(t, "%s %s %d:", mz_op_table[n->op].name, g->modules[n->module], n->precision);
    for (int k = 0; k < n->n_in; k++)
        add_value(t, g, n->in[k]);
    mz_text_addf(t, " =");
    for (int k = 0; k < n->n_out; k++)
        add_value(t, g, n->out[k]);
    mz_text_addf(t, " %a %a %a %d %lld %lld %d %d %d %d %a %d %d", (double)a->alpha, (double)a->eps, (double)a->p,
                 a->axis, (long long)a->begin, (long long)a->end, a->causal, a->heads, a->kv_heads, a->rotated,
                 (double)a->theta, a->interleaved, a->inverse);
    mz_text_addf(t, " %d %d %d %d %d %d %d %d %a %a %d %d %d %d %d", a->experts, a->top_k, a->groups, a->top_groups,
                 a->stride, a->pad_before, a->pad_after, a->factor, (double)a->low, (double)a->high, a->normalise,
                 (int)a->ignore_index, a->transpose_a, a->transpose_b, a->tanh);
    for (int d = 0; d < MEZZO_MAX_RANK; d++)
        mz_text_addf(t, " %d", a->permutation[d]);
    // Zeros are left out, so that graphs without these attributes keep the hash that older checkpoints have.
    if (a->window != 0 || a->score_cap != 0)
        mz_text_addf(t, " %lld %a", (long long)a->window, (double)a->score_cap);
    if (a->offset != 0 || a->softmax)
        mz_text_addf(t, " %a %d", (double)a->offset, a->softmax);
    if (a->step != 0 || a->elementwise || a->reverse || a->exclusive)
        mz_text_addf(t, " %lld %d %d %d", (long long)a->step, a->elementwise, a->reverse, a->exclusive);
    if (a->by_mode)
        mz_text_addf(t, " by_mode");
    if (a->rope.divisor != 0)
        mz_text_addf(t, " %a %a %a %a %d", (double)a->rope.divisor, (double)a->rope.offset, (double)a->rope.slope,
                     (double)a->rope.amplitude, a->rope.by_index);
    mz_text_addf(t, "\n");
}

mezzo_status mz_graph_hash(const mezzo_graph *g, uint64_t *hash) {
    MZ_SCOPED(mz_text_free) mz_text t = {0};
    MEZZO_TRY(mezzo_graph_status(g));
    for (size_t i = 0; i < g->n_nodes; i++)
        add_node(&t, g, &g->nodes[i]);
    for (size_t i = 0; i < g->n_outputs; i++)
        mz_text_addf(&t, "%s %d\n", g->outputs[i].name, g->outputs[i].value);
    for (size_t i = 0; i < g->n_tracked; i++)
        mz_text_addf(&t, "track %d %d %a\n", g->tracked[i].param, g->tracked[i].value, g->tracked[i].momentum);
    mz_text_addf(&t, "loss %d\n", g->loss);
    *hash = UINT64_C(0xCBF29CE484222325); // FNV-1a
    for (size_t i = 0; i < t.len; i++)
        *hash = (*hash ^ (unsigned char)t.data[i]) * UINT64_C(0x100000001B3);
    return t.status;
}
