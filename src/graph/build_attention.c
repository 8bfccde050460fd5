// Builds attention, and the positions that attention, rotary tables and learned positions share: those in a cache,
// where a model generates text, and those in documents.
#include <math.h>

#include "graph/build.h"

// --- positions -----------------------------------------------------------------------------------------------------
void mezzo_cache_begin(mezzo_graph *g, int64_t length) {
    if (mz_build_broken(g))
        return;
    if (length < 1 || length > INT32_MAX)
        (void)mz_build_failed(g, mz_fail(MEZZO_ERR_INVALID, "mezzo_cache_begin: %lld positions", (long long)length));
    else if (g->positions >= 0)
        (void)mz_build_failed(g,
                              mz_fail(MEZZO_ERR_INVALID, "mezzo_cache_begin: a graph with documents keeps no caches"));
    else
        g->cache_length = length;
}

mezzo_value mezzo_positions(mezzo_graph *g, int64_t n) {
    if (mz_build_broken(g))
        return MEZZO_NONE;
    if (g->cache_length == 0 && g->positions < 0)
        return mezzo_arange(g, n);
    if (g->positions < 0)
        g->positions = mezzo_input(g, "positions", MEZZO_I32, 1, &n).id;
    return (mezzo_value){g->positions};
}

void mezzo_documents_begin(mezzo_graph *g, mezzo_value positions) {
    if (mz_build_broken(g))
        return;
    const bool ours = positions.id >= 0 && (size_t)positions.id < g->n_values;
    const mz_value *v = ours ? &g->values[positions.id] : NULL;
    if (g->cache_length > 0)
        (void)mz_build_failed(
            g, mz_fail(MEZZO_ERR_INVALID, "mezzo_documents_begin: a graph with caches has one document a row"));
    else if (v == NULL || v->dtype != MEZZO_I32 || v->shape.rank != 2)
        (void)mz_build_failed(
            g, mz_fail(MEZZO_ERR_INVALID, "mezzo_documents_begin: positions must be integers [batch, time]"));
    else
        g->positions = positions.id;
}

// Gives an attention node a cache: two more inputs, and the positions.
static mezzo_status add_cache(mezzo_graph *g, mz_node *node, bool packed) {
    mezzo_value q = {node->in[0]};
    int heads = node->attrs.heads, kv_heads = node->attrs.kv_heads;
    if (mezzo_value_rank(g, q) != 3 || heads < 1)
        return MEZZO_OK; // the shape rule reports the error
    int64_t width = mezzo_value_dim(g, q, 2) / (packed ? 3 : 1) / heads * kv_heads;
    const int64_t shape[] = {mezzo_value_dim(g, q, 0), g->cache_length, width};
    char name[48];
    node->op = MZ_OP_attention_cached;
    node->n_in = 6;
    for (int i = 0; i < 2; ++i) {
        snprintf(name, sizeof name, "cache.%d.%s", g->n_caches, i == 0 ? "k" : "v");
        node->in[3 + i] = mezzo_input(g, name, MEZZO_F32, 3, shape).id;
        MEZZO_TRY(mezzo_graph_status(g));
        g->values[node->in[3 + i]].state = true;
    }
    ++g->n_caches;
    node->in[5] = mezzo_positions(g, mezzo_value_dim(g, q, 1)).id;
    return mezzo_graph_status(g);
}

// Refuses negative numbers, NaN and numbers too large for a position.
static mezzo_status check_attention_form(const mezzo_attention_form *form) {
    MEZZO_TRY(mz_build_check_probability("attention", form->dropout));
    if (form->window < 0 || form->window > INT32_MAX)
        return mz_fail(MEZZO_ERR_INVALID, "attention: a window of %lld positions", (long long)form->window);
    if (!(form->scale >= 0 && isfinite(form->scale)) || !(form->score_cap >= 0 && isfinite(form->score_cap)))
        return mz_fail(MEZZO_ERR_INVALID, "attention: scale %g and score_cap %g must be finite and not below 0",
                       (double)form->scale, (double)form->score_cap);
    return MEZZO_OK;
}

static mz_node attention_node(mezzo_graph *g, mz_op op, mezzo_value q, mezzo_value k, mezzo_value v,
                              const mezzo_attention_form *form) {
    mz_node node = MZ_BUILD_NODE(g, op, q, k, v);
    node.n_in = k.id < 0 && v.id < 0 ? 1 : 3;
    node.attrs.heads = form->heads;
    node.attrs.kv_heads = form->kv_heads == 0 ? form->heads : form->kv_heads;
    node.attrs.causal = !form->full;
    node.attrs.window = form->window;
    node.attrs.alpha = form->scale;
    node.attrs.score_cap = form->score_cap;
    node.attrs.p = form->dropout;
    node.attrs.rng = g->next_rng++;
    return node;
}

mezzo_value mezzo_attention_masked(mezzo_graph *g, mezzo_value q, mezzo_value k, mezzo_value v, mezzo_value mask,
                                   const mezzo_attention_form *form) {
    if (mz_build_broken(g))
        return MEZZO_NONE;
    if (form == NULL || k.id < 0 || v.id < 0 || mask.id < 0)
        return mz_build_failed(g,
                               mz_fail(MEZZO_ERR_INVALID, "attention_masked: k, v, the mask or the form is missing"));
    mz_node node = attention_node(g, MZ_OP_attention_masked, q, k, v, form);
    node.n_in = 4;
    node.in[3] = mask.id;
    mezzo_status status = check_attention_form(form);
    if (status == MEZZO_OK && g->cache_length > 0 && node.attrs.causal)
        status = mz_fail(MEZZO_ERR_INVALID, "attention_masked: causal attention with a mask keeps no cache");
    return status == MEZZO_OK ? mz_build_finish(g, &node) : mz_build_failed(g, status);
}

mezzo_value mezzo_attention_of(mezzo_graph *g, mezzo_value q, mezzo_value k, mezzo_value v,
                               const mezzo_attention_form *form) {
    if (mz_build_broken(g))
        return MEZZO_NONE;
    if (form == NULL)
        return mz_build_failed(g, mz_fail(MEZZO_ERR_INVALID, "attention: its form is missing"));
    mz_node node = attention_node(g, MZ_OP_attention, q, k, v, form);
    const bool packed = node.n_in == 1;
    mezzo_status status = check_attention_form(form);
    if (status == MEZZO_OK && !packed && (k.id < 0 || v.id < 0))
        status = mz_fail(MEZZO_ERR_INVALID, "attention: k or v is missing");
    if (status == MEZZO_OK && g->cache_length > 0 && node.attrs.causal) {
        status = add_cache(g, &node, packed);
    } else if (g->positions >= 0 && node.attrs.causal) {
        node.n_in = 4;
        node.in[3] = g->positions;
    }
    return status == MEZZO_OK ? mz_build_finish(g, &node) : mz_build_failed(g, status);
}

mezzo_value mezzo_attention(mezzo_graph *g, mezzo_value q, mezzo_value k, mezzo_value v, int heads, int kv_heads,
                            float dropout) {
    if (!mz_build_broken(g) && k.id < 0 && v.id < 0)
        return mz_build_failed(g, mz_fail(MEZZO_ERR_INVALID, "attention: k and v are missing"));
    return mezzo_attention_of(g, q, k, v,
                              &(mezzo_attention_form){.heads = heads, .kv_heads = kv_heads, .dropout = dropout});
}

mezzo_value mezzo_attention_full(mezzo_graph *g, mezzo_value q, mezzo_value k, mezzo_value v, int heads, int kv_heads,
                                 float dropout) {
    return mezzo_attention_of(
        g, q, k, v, &(mezzo_attention_form){.heads = heads, .kv_heads = kv_heads, .full = true, .dropout = dropout});
}

mezzo_value mezzo_attention_qkv(mezzo_graph *g, mezzo_value qkv, int heads, float dropout) {
    return mezzo_attention_of(g, qkv, MEZZO_NONE, MEZZO_NONE,
                              &(mezzo_attention_form){.heads = heads, .dropout = dropout});
}
