// Declares the state that ranks.c and ranks_gather.c share.
#ifndef MZ_OPTIM_RANKS_STATE_H
#define MZ_OPTIM_RANKS_STATE_H

#include "optim/ranks.h"

enum { MZ_RANKS_LEVELS = 20 };

// Holds prepared sums and copies of n numbers, by the kernels of `accumulate`, and casts to BF16.
typedef struct mz_adder {
    int64_t n;
    mezzo_dtype from;
    mz_prepared adds, copies, narrows;
} mz_adder;

struct mz_ranks {
    mezzo_params *params; // borrowed
    mezzo_device *device; // borrowed
    mz_shard shard;
    bool canonical, bf16_wire;
    int rank, size;
    int64_t micro; // micro batches of a rank
    int levels;    // with `canonical`: log2(micro)
    // On the device:
    double *norm_blocks;          // [elements / MZ_NORM_BLOCK], of the gradients that this rank updates; 0 elsewhere
    double *all_norm_blocks;      // those of all ranks; the same memory where each rank updates all parameters
    mz_opt_state *states;         // [size]; NULL: one rank
    float *step_record;           // [size][micro + 1]: losses, and as int32 the rank's MZ_ASKED_…
    float *sums[MZ_RANKS_LEVELS]; // canonical: [elements], sums of 1, 2, 4 … micro batches
    float *parts;                 // canonical: [size][shard], of the largest region that is not exchanged
    float *whole;                 // scattered: [size][mz_ranks_room]
    uint16_t *wire[2];            // bf16_wire: [size][mz_ranks_room], as sent and as received
    size_t bytes;
    mz_adder *adders;
    size_t n_adders, cap_adders;
    mz_prepared norm_across_ranks, refresh[2]; // refresh: one for each low copy
    mz_collective *collectives;                // the calls' arguments
    size_t n_collectives, most_collectives;
    bool overlaps; // sums are calls of the program
    // The program to which the calls belong instead of the end of a sequence.
    mezzo_program *program; // each call runs after the program's call `after`
    size_t after;
    bool defers;  // calls are deferred to the next program
    bool beside;  // calls run beside others of the sequence
    int gathered; // regions, from the first, that the early gather of this step's list has
};

int64_t mz_ranks_longest_shard(const mezzo_params *params);
// Returns the elements of a rank in the memory where a region's gradients are gathered. Gradients of a region's only
// parameter are contiguous already. Gathers for the host go in pieces.
int64_t mz_ranks_room(const mezzo_params *params);
// Issues to = from, or to += from, of n numbers; into NULL: runs at once.
mezzo_status mz_ranks_issue_add(mz_ranks *ranks, mz_sequence *into, bool adds, float *from, float *to, int64_t n);

#endif
