// Frozen parameters that follow values of the graph, as running statistics do.
#include "graph/build.h"

static mezzo_status check(const mezzo_graph *g, mezzo_value parameter, mezzo_value value, double momentum) {
    const mezzo_value both[] = {parameter, value};
    for (int i = 0; i < 2; i++)
        if (both[i].id < 0 || (size_t)both[i].id >= g->n_values)
            return mz_fail(MEZZO_ERR_INVALID, "track: %s is no value of this graph", i == 0 ? "parameter" : "value");
    const mz_value *p = &g->values[parameter.id], *v = &g->values[value.id];
    char a[64], b[64];
    if (p->kind != MZ_VALUE_PARAM || !g->params[p->param].frozen)
        return mz_fail(MEZZO_ERR_INVALID, "track: %s is no frozen parameter", p->name != NULL ? p->name : "a value");
    if (v->dtype == MEZZO_I32 || mz_shape_count(&p->shape) != mz_shape_count(&v->shape))
        return mz_fail(MEZZO_ERR_INVALID, "track: %s of shape %s cannot follow a value of %s, shape %s", p->name,
                       mz_shape_text(&p->shape, a, sizeof a), v->dtype == MEZZO_I32 ? "integers" : "numbers",
                       mz_shape_text(&v->shape, b, sizeof b));
    if (!(momentum >= 0 && momentum <= 1))
        return mz_fail(MEZZO_ERR_INVALID, "track: the momentum of %s is %g: use 0 to 1", p->name, momentum);
    return MEZZO_OK;
}

mezzo_status mezzo_graph_track(mezzo_graph *g, mezzo_value parameter, mezzo_value value, double momentum) {
    MZ_REQUIRE(g);
    MEZZO_TRY(mezzo_graph_status(g));
    MEZZO_TRY(check(g, parameter, value, momentum));
    MEZZO_TRY(MZ_RESERVE(g->tracked, g->cap_tracked, g->n_tracked + 1));
    g->tracked[g->n_tracked++] = (mz_tracking){g->values[parameter.id].param, value.id, momentum};
    return MEZZO_OK;
}

int64_t mz_graph_tracked(const mezzo_graph *g) {
    int64_t n = 0;
    for (size_t i = 0; i < g->n_tracked; i++)
        n += mz_shape_count(&g->params[g->tracked[i].param].shape);
    return n;
}

mezzo_status mz_graph_join_tracked(mezzo_graph *g) {
    mezzo_value parts[MZ_MAX_IN], all = MEZZO_NONE;
    for (size_t i = 0; i < g->n_tracked;) {
        int n = 0;
        if (all.id >= 0)
            parts[n++] = all;
        for (; n < MZ_MAX_IN && i < g->n_tracked; i++) {
            const int64_t count = mz_shape_count(&g->values[g->tracked[i].value].shape);
            parts[n++] = mezzo_reshape(g, (mezzo_value){g->tracked[i].value}, 1, &count);
        }
        all = n == 1 ? parts[0] : mezzo_concat(g, parts, n, 0);
    }
    return g->n_tracked > 0 ? mezzo_graph_output(g, MZ_TRACKED, all) : MEZZO_OK;
}
