// What ranks.c and ranks_gather.c share of mz_ranks.
#ifndef MZ_OPTIM_RANKS_STATE_H
#define MZ_OPTIM_RANKS_STATE_H

#include "optim/ranks.h"

enum { MZ_RANKS_LEVELS = 20 };

// The sum or the copy of so many numbers, by the kernels of `accumulate`; of BF16 ones also how they are made.
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
    int64_t micro; // of a rank
    int levels;    // canonical: log2(micro)
    // Device.
    double *norm_blocks;          // [elements / MZ_NORM_BLOCK], of the gradients that this rank moves; 0 elsewhere
    double *all_norm_blocks;      // of all ranks; the same where each moves all
    mz_opt_state *states;         // [size]; NULL: alone
    float *step_record;           // [size][micro + 1]: losses, and an int32: asked to stop
    float *sums[MZ_RANKS_LEVELS]; // canonical: [elements], of 1, 2, 4 … micro batches
    float *parts;                 // canonical: [size][part], of the largest region
    float *whole;                 // scattered: [size][mz_ranks_room]
    uint16_t *wire[2];            // bf16_wire: the largest region, as it leaves and as it comes
    size_t bytes;
    mz_adder *adders;
    size_t n_adders, cap_adders;
    mz_prepared norm_across_ranks, refresh[2]; // of each low copy
    mz_collective *collectives;                // what calls point to
    size_t n_collectives, most_collectives;
    bool overlaps; // sums are calls after the program's
    // Where calls that are made go, instead of to a sequence's end.
    mezzo_program *program; // after its call `after`
    size_t after;
    bool defers; // beside the next program
};

int64_t mz_ranks_longest_shard(const mezzo_params *params);
// Elements of a rank in the room where gradients of a region are brought together. Those of one parameter alone lie so
// already; what is brought together for the host comes in pieces.
int64_t mz_ranks_room(const mezzo_params *params);
// to = from, or to += from, of n numbers; into NULL: at once.
mezzo_status mz_ranks_issue_add(mz_ranks *ranks, mz_sequence *into, bool adds, float *from, float *to, int64_t n);
// The ranks' shards of `shard` elements each, consecutive from `base` on, to all; into NULL: at once.
mezzo_status mz_ranks_issue_gather(mz_ranks *ranks, mz_sequence *into, void *base, int64_t shard, mezzo_dtype dtype);

#endif
