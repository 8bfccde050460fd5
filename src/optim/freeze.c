// Freezes parameters, which are then not trained.
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

static mezzo_status freeze(mezzo_graph *g, const char *pattern) {
    size_t found = 0;
    for (size_t i = 0; i < g->n_params; i++)
        if (mz_names_parameter(pattern, g->params[i].name)) {
            g->params[i].frozen = true;
            found++;
        }
    if (found == 0)
        return mz_fail(MEZZO_ERR_INVALID, "freeze: no parameter's name matches \"%s\"", pattern);
    return MEZZO_OK;
}

mezzo_status mezzo_graph_freeze(mezzo_graph *g, const char *patterns) {
    MZ_REQUIRE(g, patterns);
    char pattern[256];
    while (*patterns != '\0') {
        size_t n = strcspn(patterns, ",");
        if (n == 0 || n >= sizeof pattern)
            return mz_fail(MEZZO_ERR_INVALID, "freeze: a pattern has %zu characters: use 1 to %zu", n,
                           sizeof pattern - 1);
        snprintf(pattern, sizeof pattern, "%.*s", (int)n, patterns);
        MEZZO_TRY(freeze(g, pattern));
        patterns += n + (patterns[n] == ',');
    }
    return MEZZO_OK;
}

bool mezzo_params_frozen(const mezzo_params *params, int index) {
    return params != NULL && index >= 0 && (size_t)index < params->n && params->list[index].frozen;
}
