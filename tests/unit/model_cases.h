// What tests of models begin with: a named model's sizes, its graph, its parameters by name, and what a wrong size is
// told.
#ifndef MODEL_CASES_H
#define MODEL_CASES_H

#include <math.h>

#include "graph/graph.h"
#include "mezzo/model.h"
#include "test.h"

typedef struct named_shape {
    const char *name;
    mz_shape shape;
} named_shape;

static inline mezzo_model_config defaults(const char *name) {
    mezzo_model_config config;
    assert_int_equal(mezzo_model_defaults(name, &config), MEZZO_OK);
    return config;
}

// With logits, for `batch` sequences of `seq_len` tokens. mezzo_graph_free it.
static inline mezzo_graph *build(const mezzo_model_config *config, int64_t batch, int64_t seq_len) {
    mezzo_graph *g = NULL;
    assert_int_equal(mezzo_graph_create(&g), MEZZO_OK);
    if (mezzo_model_build(g, config, batch, seq_len, true) != MEZZO_OK)
        fail_msg("%s", mezzo_error_message());
    return g;
}

static inline int64_t count_parameters(const char *name) {
    mezzo_model_config config = defaults(name);
    mezzo_graph *g = build(&config, 1, config.seq_len);
    int64_t count = 0;
    for (size_t p = 0; p < g->n_params; p++)
        count += mz_shape_count(&g->params[p].shape);
    mezzo_graph_free(g);
    return count;
}

// NULL: there is none of that name.
static inline const mz_param_spec *find_param(const mezzo_graph *g, const char *name) {
    for (size_t i = 0; i < g->n_params; i++)
        if (strcmp(g->params[i].name, name) == 0)
            return &g->params[i];
    return NULL;
}

static inline const mz_param_spec *param(const mezzo_graph *g, const char *name) {
    const mz_param_spec *found = find_param(g, name);
    if (found == NULL)
        fail_msg("no parameter %s", name);
    return found;
}

static inline void expect_shapes(const mezzo_graph *g, const named_shape *rows, size_t n) {
    for (size_t i = 0; i < n; i++)
        assert_true(mz_shape_equal(&param(g, rows[i].name)->shape, &rows[i].shape));
}

// The config is refused in one line with both words.
static inline void refused(const mezzo_model_config *config, const char *word1, const char *word2) {
    if (mezzo_model_check(config) != MEZZO_ERR_INVALID)
        fail_msg("accepted, but %s and %s are wrong", word1, word2);
    if (strstr(mezzo_error_message(), word1) == NULL || strstr(mezzo_error_message(), word2) == NULL)
        fail_msg("\"%s\" does not name %s and %s", mezzo_error_message(), word1, word2);
}

#endif
