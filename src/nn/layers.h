// A layer is an op, its parameters and their module in one call. Layers use the public builder alone, without dtypes or
// devices.
#ifndef MZ_LAYERS_H
#define MZ_LAYERS_H

#include "mezzo/graph.h"

// After an error in the graph these do nothing and return MEZZO_NONE, as the builder's ops do.

// Builds y = x·Wᵀ (+ bias): NAME.weight [n_out, n_in] from `init`, NAME.bias [n_out] zero where `bias`. x [… n_in] → […
// n_out].
mezzo_value mz_layer_linear(mezzo_graph *g, const char *name, mezzo_value x, int64_t n_out, mezzo_init init, bool bias);
// Builds several linear layers that read x, in one product: parts[i].rows of n_out each, named for adapters.
mezzo_value mz_layer_linear_parts(mezzo_graph *g, const char *name, mezzo_value x, int n, const mezzo_part *parts,
                                  mezzo_init init, bool bias);

// Builds a layer norm: NAME.weight [C] one, NAME.bias [C] zero where `bias`. x [… C] → [… C].
mezzo_value mz_layer_layernorm(mezzo_graph *g, const char *name, mezzo_value x, float eps, bool bias);

// Builds an RMS norm: NAME.weight [C] + offset, whose sum starts as 1. x [… C] → [… C].
mezzo_value mz_layer_rmsnorm(mezzo_graph *g, const char *name, mezzo_value x, float offset, float eps);

// Builds an embedding: NAME.weight [rows, width] from `init`. ids I32 […] → [… width]. *table (may be NULL) gets the
// parameter, for a head that shares it.
mezzo_value mz_layer_embedding(mezzo_graph *g, const char *name, mezzo_value ids, int64_t rows, int64_t width,
                               mezzo_init init, mezzo_value *table);

// Builds the end of every language model: module "loss" with the cross-entropy of logits [… V] over targets [… ], I32,
// of which -1 is ignored; it becomes the graph's loss. With a cap above 0 logits are cap·tanh(logits/cap). With
// `keep_logits` they are the output "logits".
mezzo_status mz_layer_loss(mezzo_graph *g, mezzo_value logits, mezzo_value targets, float cap, bool keep_logits);

#endif
