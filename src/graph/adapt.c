// Adapters of low rank beside linear layers: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (2021).
#include <math.h>

#include "graph/graph.h"

mezzo_status mezzo_graph_adapt(mezzo_graph *g, const mezzo_lora *lora) {
    MZ_REQUIRE(g, lora);
    if (lora->rank < 0 || lora->rank > 65536 || !isfinite(lora->alpha))
        return mz_fail(MEZZO_ERR_INVALID, "lora: rank %lld and alpha %g: use a rank of 0 to 65536 and a finite alpha",
                       (long long)lora->rank, lora->alpha);
    if (g->n_params > 0)
        return mz_fail(MEZZO_ERR_INVALID,
                       "lora: the graph has parameters already: ask for adapters before it is built");
    const char *modules = lora->modules != NULL ? lora->modules : "*";
    if (strlen(modules) >= sizeof g->adapted)
        return mz_fail(MEZZO_ERR_INVALID, "lora: patterns of %zu characters: use at most %zu", strlen(modules),
                       sizeof g->adapted - 1);
    snprintf(g->adapted, sizeof g->adapted, "%s", modules);
    g->lora_rank = lora->rank;
    g->lora_alpha = lora->alpha;
    return MEZZO_OK;
}

// "c_attn" is every module whose path ends so; a pattern may also be a whole path.
static bool names(const char *pattern, const char *module) {
    char tail[300];
    snprintf(tail, sizeof tail, "*.%s", pattern);
    return mz_glob_match(pattern, module) || mz_glob_match(tail, module);
}

// The next of the patterns, cut at commas; false at the end.
static bool next_pattern(const char **at, char pattern[256]) {
    size_t n = strcspn(*at, ",");
    if (**at == '\0')
        return false;
    snprintf(pattern, 256, "%.*s", (int)(n < 255 ? n : 255), *at);
    *at += n + ((*at)[n] == ',');
    return true;
}

static bool adapts(const mezzo_graph *g, const char *module) {
    const char *at = g->adapted;
    char pattern[256];
    while (g->lora_rank > 0 && next_pattern(&at, pattern))
        if (names(pattern, module))
            return true;
    return false;
}

mezzo_value mezzo_adapted(mezzo_graph *g, mezzo_value x, mezzo_value y) {
    if (g == NULL || g->status != MEZZO_OK || !adapts(g, g->modules[g->n_scopes > 0 ? g->scopes[g->n_scopes - 1] : 0]))
        return y;
    int64_t in = mezzo_value_dim(g, x, -1), out = mezzo_value_dim(g, y, -1), rank = g->lora_rank;
    const mezzo_init uniform = {.kind = MEZZO_INIT_UNIFORM, .a = 1 / sqrtf((float)in)}; // torch's of a linear layer
    mezzo_module_begin(g, "lora_A");
    mezzo_value h = mezzo_linear(g, x, mezzo_param(g, "weight", uniform, 2, (int64_t[]){rank, in}), MEZZO_NONE);
    h = mezzo_scale(g, h, (float)(g->lora_alpha / (double)rank)); // [… rank], the smallest place to scale
    mezzo_module_end(g);
    mezzo_module_begin(g, "lora_B");
    mezzo_value w = mezzo_param(g, "weight", (mezzo_init){.kind = MEZZO_INIT_ZERO}, 2, (int64_t[]){out, rank});
    mezzo_value d = mezzo_linear(g, h, w, MEZZO_NONE);
    mezzo_module_end(g);
    return mezzo_add(g, y, d);
}

bool mz_is_adapter(const char *parameter) {
    return strstr(parameter, ".lora_A.") != NULL || strstr(parameter, ".lora_B.") != NULL;
}

mezzo_status mezzo_graph_freeze_base(mezzo_graph *g) {
    MZ_REQUIRE(g);
    const char *at = g->adapted;
    char pattern[256];
    while (g->lora_rank > 0 && next_pattern(&at, pattern)) {
        bool found = false;
        for (size_t i = 0; i < g->n_params && !found; i++) {
            char *end = strstr(g->params[i].name, ".lora_A."), module[256];
            if (end == NULL)
                continue;
            snprintf(module, sizeof module, "%.*s", (int)(end - g->params[i].name), g->params[i].name);
            found = names(pattern, module);
        }
        if (!found)
            return mz_fail(MEZZO_ERR_INVALID, "lora.modules: no linear layer is called \"%s\"", pattern);
    }
    for (size_t i = 0; i < g->n_params && g->lora_rank > 0; i++)
        g->params[i].frozen = g->params[i].frozen || !mz_is_adapter(g->params[i].name);
    return MEZZO_OK;
}
