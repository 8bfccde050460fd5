// Checks a program's inputs before it runs: each is written at least once, and numbers of rows and classes exist.
#include "runtime/program.h"

// Notes the op that reads these integers as numbers of rows or classes, and how many of them exist.
static void limit(mz_input_rule *rule, const mezzo_graph *g, const mz_node *node) {
    const bool loss = node->op == MZ_OP_cross_entropy;
    const mz_shape *shape = &g->values[node->in[0]].shape;
    const int64_t below = shape->dim[loss ? shape->rank - 1 : 0];
    if (rule->op != NULL && rule->below <= below)
        return;
    *rule = (mz_input_rule){
        .op = mz_op_table[node->op].name, .below = below, .ignores = loss, .ignored = node->attrs.ignore_index};
}

mezzo_status mz_input_rules(const mezzo_graph *g, size_t n, mz_input_rule **out) {
    *out = mz_alloc(n + 1, sizeof **out);
    if (*out == NULL)
        return mz_trace(MEZZO_ERR_MEMORY, __FILE__, __LINE__, __func__);
    for (size_t i = 0; i < g->n_nodes; i++) {
        const mz_node *node = &g->nodes[i];
        if (node->op != MZ_OP_embedding && node->op != MZ_OP_cross_entropy)
            continue;
        int root = mz_value_root(g, node->in[1]);
        if (g->values[root].kind == MZ_VALUE_INPUT)
            limit(&(*out)[root], g, node);
    }
    return MEZZO_OK;
}

mezzo_status mz_input_take(mz_input_rule *rule, const char *name, const void *data, size_t n) {
    for (size_t i = 0; rule->op != NULL && i < n; i++) {
        int32_t x;
        memcpy(&x, (const char *)data + i * sizeof x, sizeof x);
        if ((x < 0 || x >= rule->below) && !(rule->ignores && x == rule->ignored))
            return mz_fail(MEZZO_ERR_INVALID, "input %s: element %zu is %d: %s takes 0 to %lld%s", name, i, (int)x,
                           rule->op, (long long)rule->below - 1, rule->ignores ? ", or what it ignores" : "");
    }
    rule->written = true;
    return MEZZO_OK;
}

mezzo_status mz_program_ready(mezzo_program *p, const mezzo_scaler *scaler) {
    const mezzo_graph *g = p->c.graph;
    const mz_scaler_head *head = (const void *)scaler;
    if (head != NULL && head->device != p->device)
        return mz_fail(MEZZO_ERR_INVALID, "the scaler is on another device than the program");
    for (size_t i = 0; !p->ready && i < g->n_values; i++)
        if (g->values[i].kind == MZ_VALUE_INPUT && !g->values[i].state && !p->rules[i].written)
            return mz_fail(MEZZO_ERR_INVALID, "input %s was never written: mezzo_program_write brings it",
                           g->values[i].name);
    p->ready = true;
    return MEZZO_OK;
}
