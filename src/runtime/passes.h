// Declares the passes that turn a graph into a program: one table, in their order.
#ifndef MZ_PASSES_H
#define MZ_PASSES_H

#include "runtime/program.h"

typedef struct mz_pass {
    const char *name;
    mz_pass_fn *run;
    bool asks_device; // the target needs its device, parameters and compiled program
    const char *says; // the predicate of its description: "inserts casts"
} mz_pass;
extern const mz_pass mz_pass_table[];              // its last row has no name
const mz_pass *mz_pass_find(const char *name);     // NULL: there is none of this name
const char *mz_pass_names(char *buf, size_t size); // writes "autocast, autodiff, …"

// Copies g and runs the passes up to `until` on the copy, *out, which belongs to the caller. Where the target has a
// compiled program, *out is its graph, and mz_compiled_free frees what the passes left in it, on errors, too. INVALID:
// no such pass, or one that needs what the target lacks; g's own error.
mezzo_status mz_passes(const mezzo_graph *g, const mz_target *target, const char *until, mezzo_graph **out);

mezzo_status mz_pass_choose(mezzo_graph *g, const mz_target *target); // defined in choose.c
mz_storage_options mz_storage_options_of(const mezzo_device *device);

#endif
