// Freezes parameters, which are then not trained.
#include "base/scope.h"
#include "graph/graph.h"
#include "mezzo/step.h"
#include "optim/optimizer.h"

bool mz_names_parameter(const char *pattern, const char *parameter) {
    size_t n = strlen(parameter);
    char module[256];
    if (mz_glob_match(pattern, parameter))
        return true;
    while (n-- > 0)
        if (parameter[n] == '.' && n < sizeof module) {
            snprintf(module, sizeof module, "%.*s", (int)n, parameter);
            if (mz_glob_match(pattern, module))
                return true;
        }
    return false;
}

// Marks the parameters that a pattern names.
static mezzo_status mark(const mezzo_graph *g, const char *what, const char *pattern, bool *named) {
    bool found = false;
    for (size_t i = 0; i < g->n_params; i++)
        if (mz_names_parameter(pattern, g->params[i].name))
            named[i] = found = true;
    return found ? MEZZO_OK : mz_fail(MEZZO_ERR_INVALID, "%s: no parameter's name matches \"%s\"", what, pattern);
}

static mezzo_status mark_all(const mezzo_graph *g, const char *what, const char *patterns, bool *named) {
    char pattern[256];
    while (*patterns != '\0') {
        size_t n = strcspn(patterns, ",");
        if (n == 0 || n >= sizeof pattern)
            return mz_fail(MEZZO_ERR_INVALID, "%s: a pattern has %zu characters: use 1 to %zu", what, n,
                           sizeof pattern - 1);
        snprintf(pattern, sizeof pattern, "%.*s", (int)n, patterns);
        MEZZO_TRY(mark(g, what, pattern, named));
        patterns += n + (patterns[n] == ',');
    }
    return MEZZO_OK;
}

// Freezes the parameters that the patterns name, or all others.
static mezzo_status freeze(mezzo_graph *g, const char *what, const char *patterns, bool others) {
    MZ_SCOPED(mz_free_at) bool *named = NULL;
    MEZZO_TRY(MZ_NEW(named, g->n_params + 1));
    MEZZO_TRY(mark_all(g, what, patterns, named));
    for (size_t i = 0; i < g->n_params; i++)
        g->params[i].frozen = g->params[i].frozen || named[i] != others;
    return MEZZO_OK;
}

mezzo_status mezzo_graph_freeze(mezzo_graph *g, const char *patterns) {
    MZ_REQUIRE(g, patterns);
    return freeze(g, "freeze", patterns, false);
}

mezzo_status mz_graph_train_alone(mezzo_graph *g, const char *patterns) {
    return freeze(g, "train.parameters", patterns, true);
}

bool mezzo_params_frozen(const mezzo_params *params, int index) {
    return params != NULL && index >= 0 && (size_t)index < params->n && params->list[index].frozen;
}
