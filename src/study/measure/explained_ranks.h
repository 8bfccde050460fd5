// Computes what one of several ranks holds of a model's parameters and gradients, and what it gathers; for `mezzo
// explain --ranks`.
#ifndef MZ_STUDY_EXPLAINED_RANKS_H
#define MZ_STUDY_EXPLAINED_RANKS_H

#include "runtime/params.h"

typedef struct mz_explained_ranks {
    int64_t ranks, buckets;            // buckets: of gradients, and of parameters where they are gathered
    size_t masters, copies, gradients; // bytes that it holds; copies: 0 where nothing reads a low-precision one
    int64_t forward, backward;         // buckets that a micro batch gathers; backward: with what is recomputed
    size_t gathered;                   // bytes of them, its own part too
    int64_t exchanged;                 // products of a micro batch whose rows travel to the ranks of their experts
} mz_explained_ranks;

// Laid out for the device; nothing is allocated there.
mezzo_status mz_explain_ranks(mezzo_device *device, const mezzo_graph *g, const mezzo_program_options *options,
                              mezzo_master master, const mz_cut *cut, mz_explained_ranks *out);

#endif
