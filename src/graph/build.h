// Declares what the builder's files (build_*.c) share: how a node is begun and finished.
#ifndef MZ_BUILD_H
#define MZ_BUILD_H

#include "graph/graph.h"

// Returns whether the builder adds nothing more, because the graph has an error or there is none.
bool mz_build_broken(const mezzo_graph *g);
mezzo_value mz_build_failed(mezzo_graph *g, mezzo_status status); // remembers the error; returns MEZZO_NONE
mezzo_status mz_build_check_probability(const char *op, float p);
mezzo_status mz_build_shape(const char *name, int rank, const int64_t *shape, mz_shape *out);
// Builds a node under construction, in the builder's present module, region and segment, with these inputs.
mz_node mz_build_node(const mezzo_graph *g, mz_op op, const mezzo_value *in, int n_in);
#define MZ_BUILD_NODE(g, op, ...)                                                                                      \
    mz_build_node((g), (op), (const mezzo_value[]){__VA_ARGS__}, MZ_COUNT(((const mezzo_value[]){__VA_ARGS__})))
// Appends the node with its output values. `shape` has one entry an output; with NULL the op's rule gives them.
mezzo_status mz_build_finish_node(mezzo_graph *g, mz_node *node, const mz_shape *shape, mezzo_dtype dtype);
mezzo_value mz_build_finish(mezzo_graph *g, mz_node *node); // appends it with the shapes of the op's rule; returns its
                                                            // first output
mezzo_value mz_build_unary(mezzo_graph *g, mz_op op, mezzo_value x, mz_attrs attrs);
mezzo_value mz_build_binary(mezzo_graph *g, mz_op op, mezzo_value a, mezzo_value b, mz_attrs attrs);

#endif
