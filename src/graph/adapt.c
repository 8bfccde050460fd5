// Adds adapters of low rank to linear layers (Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021).
#include <math.h>

#include "graph/build.h"
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

static bool adapts(const mezzo_graph *g, const char *module) {
    const char *at = g->adapted;
    char pattern[256];
    while (g->lora_rank > 0 && mz_next_pattern(&at, pattern))
        if (mz_names_module(pattern, module))
            return true;
    return false;
}

// Builds the adapter's term alpha/rank · B·A·x, [… out], in the module that is open.
static mezzo_value delta(mezzo_graph *g, mezzo_value x, int64_t out) {
    int64_t in = mezzo_value_dim(g, x, -1), rank = g->lora_rank;
    const mezzo_init uniform = {.kind = MEZZO_INIT_UNIFORM, .a = 1 / sqrtf((float)in)}; // PyTorch's initial values of a
                                                                                        // linear layer
    mezzo_module_begin(g, "lora_A");
    mezzo_value h = mezzo_linear(g, x, mezzo_param(g, "weight", uniform, 2, (int64_t[]){rank, in}), MEZZO_NONE);
    h = mezzo_scale(g, h, (float)(g->lora_alpha / (double)rank)); // [… rank]: the smallest tensor that the factor can
                                                                  // apply to
    mezzo_module_end(g);
    mezzo_module_begin(g, "lora_B");
    mezzo_value w = mezzo_param(g, "weight", (mezzo_init){.kind = MEZZO_INIT_ZERO}, 2, (int64_t[]){out, rank});
    mezzo_value d = mezzo_linear(g, h, w, MEZZO_NONE);
    mezzo_module_end(g);
    return d;
}

static const char *open_module(const mezzo_graph *g) {
    return g->modules[g->n_scopes > 0 ? g->scopes[g->n_scopes - 1] : 0];
}

mezzo_value mezzo_adapted(mezzo_graph *g, mezzo_value x, mezzo_value y) {
    if (g == NULL || g->status != MEZZO_OK || !adapts(g, open_module(g)))
        return y;
    return mezzo_add(g, y, delta(g, x, mezzo_value_dim(g, y, -1)));
}

// --- layers of several parts ---------------------------------------------------------------------------------------
bool mz_adapted_module(const char *weight, int64_t all, const mz_parts *parts, int index, char module[512],
                       int64_t *first, int64_t *rows) {
    size_t n = strlen(weight), k = strlen(".weight");
    const bool ends = n >= k && strcmp(weight + n - k, ".weight") == 0; // other weights belong to layers that a graph
                                                                        // file names
    if (index >= (parts->n > 0 ? parts->n : 1))
        return false;
    *first = 0;
    *rows = all;
    snprintf(module, 512, "%.*s", (int)(ends ? n - k : n), weight);
    if (parts->n == 0)
        return true;
    char *dot = strrchr(module, '.'), *name = dot != NULL ? dot + 1 : module;
    snprintf(name, (size_t)(module + 512 - name), "%s", parts->list[index].name);
    *rows = parts->list[index].rows;
    for (int i = 0; i < index; i++)
        *first += parts->list[i].rows;
    return true;
}

static mezzo_status note_parts(mezzo_graph *g, mezzo_value y, mezzo_value weight, int n, const mezzo_part *parts) {
    const bool param = weight.id >= 0 && weight.id < (int)g->n_values && g->values[weight.id].kind == MZ_VALUE_PARAM;
    mz_param_spec *spec = param ? &g->params[g->values[weight.id].param] : NULL;
    char module[512];
    int64_t rows = 0, first;
    const bool unnamed = parts != NULL && parts[0].name == NULL;
    if (spec == NULL || !mz_adapted_module(spec->name, 0, &(mz_parts){0}, 0, module, &first, &rows) || parts == NULL ||
        n < 1 || n > MZ_MAX_PARTS)
        return mz_fail(MEZZO_ERR_INVALID, "adapted parts: a parameter called weight and 1 to %d parts, not %d",
                       MZ_MAX_PARTS, n);
    for (int i = 0; i < n; i++) {
        if ((parts[i].name == NULL) != unnamed || parts[i].rows < 1 ||
            (!unnamed && strlen(parts[i].name) >= sizeof spec->parts.list[i].name))
            return mz_fail(MEZZO_ERR_INVALID,
                           "adapted parts of %s: part %d needs a name of 1 to 31 characters and rows", spec->name, i);
        snprintf(spec->parts.list[i].name, sizeof spec->parts.list[i].name, "%s", unnamed ? "" : parts[i].name);
        spec->parts.list[i].rows = parts[i].rows;
        rows += parts[i].rows;
    }
    if (rows != mezzo_value_dim(g, y, -1))
        return mz_fail(MEZZO_ERR_INVALID, "adapted parts of %s: they have %lld rows, the layer %lld", spec->name,
                       (long long)rows, (long long)mezzo_value_dim(g, y, -1));
    spec->parts.layers = n;
    spec->parts.n = unnamed ? 0 : n;
    return MEZZO_OK;
}

// Returns whether the patterns name this part of a weight, by the part's name or the whole layer's.
static bool adapts_part(const mezzo_graph *g, const mz_param_spec *spec, int index) {
    char module[512];
    int64_t first, rows;
    if (mz_adapted_module(spec->name, 0, &(mz_parts){0}, 0, module, &first, &rows) && adapts(g, module))
        return true;
    return mz_adapted_module(spec->name, 0, &spec->parts, index, module, &first, &rows) && adapts(g, module);
}

mezzo_value mezzo_adapted_parts(mezzo_graph *g, mezzo_value x, mezzo_value y, mezzo_value weight, int n,
                                const mezzo_part *parts) {
    mezzo_value pieces[MZ_MAX_PARTS], deltas[MZ_MAX_PARTS];
    int64_t rows[MZ_MAX_PARTS];
    int adapted = 0;
    if (g == NULL || g->status != MEZZO_OK)
        return y;
    mezzo_status status = note_parts(g, y, weight, n, parts);
    if (status != MEZZO_OK)
        return mz_build_failed(g, status);
    for (int i = 0; i < n && parts[0].name != NULL; i++) {
        rows[i] = parts[i].rows;
        deltas[i] = MEZZO_NONE;
        if (!adapts_part(g, &g->params[g->values[weight.id].param], i))
            continue;
        mezzo_module_begin(g, parts[i].name);
        deltas[i] = delta(g, x, rows[i]);
        mezzo_module_end(g);
        adapted++;
    }
    if (adapted == 0)
        return y;
    if (adapted == n)
        return mezzo_add(g, y, mezzo_concat(g, deltas, n, -1));
    if (mezzo_split_sizes(g, y, -1, n, rows, pieces) != MEZZO_OK)
        return MEZZO_NONE;
    for (int i = 0; i < n; i++)
        pieces[i] = deltas[i].id >= 0 ? mezzo_add(g, pieces[i], deltas[i]) : pieces[i];
    return mezzo_concat(g, pieces, n, -1);
}

bool mz_is_adapter(const char *parameter) {
    return strstr(parameter, ".lora_A.") != NULL || strstr(parameter, ".lora_B.") != NULL;
}

// Returns whether the pattern names the parameter's adapter, or the layer that it is a part of.
static bool has_adapter(const mz_param_spec *spec, const char *pattern) {
    char module[512];
    int64_t first, rows;
    const char *end = strstr(spec->name, ".lora_A.");
    if (end != NULL)
        snprintf(module, sizeof module, "%.*s", (int)(end - spec->name), spec->name);
    else if (spec->parts.n == 0 || !mz_adapted_module(spec->name, 0, &(mz_parts){0}, 0, module, &first, &rows))
        return false;
    return mz_names_module(pattern, module);
}

mezzo_status mezzo_graph_freeze_base(mezzo_graph *g) {
    MZ_REQUIRE(g);
    const char *at = g->adapted;
    char pattern[256];
    while (g->lora_rank > 0 && mz_next_pattern(&at, pattern)) {
        bool found = false;
        for (size_t i = 0; i < g->n_params && !found; i++) {
            found = has_adapter(&g->params[i], pattern);
        }
        if (!found)
            return mz_fail(MEZZO_ERR_INVALID, "lora.modules: no linear layer is called \"%s\"", pattern);
    }
    for (size_t i = 0; i < g->n_params && g->lora_rank > 0; i++)
        g->params[i].frozen = g->params[i].frozen || !mz_is_adapter(g->params[i].name);
    return MEZZO_OK;
}
