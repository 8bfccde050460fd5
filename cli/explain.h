// The parts of mezzo explain.
#ifndef CLI_EXPLAIN_H
#define CLI_EXPLAIN_H

#include "cli.h"

int cli_explain_toy(const cli_args *args); // explain_toy.c
// The dtypes of a model's parameters and of their gradients: names, "mixed" where they differ.
mezzo_status cli_explain_params(const mezzo_graph *g, const mezzo_program_options *options, const char **param,
                                const char **gradient);

#endif
