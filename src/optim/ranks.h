// What the ranks of a group do together in a step, as calls after the micro batches: gradients are summed, what each
// rank found is gathered so that all decide alike, and where each moves its own part of the parameters the shards are
// brought to all. Rank r runs micro batches r·n … r·n + n - 1 of a step of size·n; where gradients are in shards
// it runs r, r + size, r + 2·size …, because sums over ranks come before those over a rank's micro batches.
//
// `canonical` fixes the order of every sum of gradients: a micro batch's gradient is made whole by itself, and they are
// added two and two, neighbours first, whoever computed them. So 1, 2 and 4 ranks give the same bits.
#ifndef MZ_OPTIM_RANKS_H
#define MZ_OPTIM_RANKS_H

#include "backend/collective.h"
#include "optim/optimizer.h"
#include "runtime/program.h"

typedef enum mz_shard {
    MZ_SHARD_NONE,       // every rank moves all parameters
    MZ_SHARD_OPTIMIZER,  // its part, and has moments of that alone
    MZ_SHARD_GRADIENTS,  // and gradients of that alone: parameters are scattered (mz_cut)
    MZ_SHARD_PARAMETERS, // and parameters of that alone: they are sharded, and programs gather what they read
} mz_shard;

typedef struct mz_ranks mz_ranks;

typedef struct mz_ranks_options {
    mz_shard shard;
    bool canonical;
    bool bf16_wire; // gradients travel as BF16, and are summed in FP32
    int64_t micro;  // micro batches of a rank a step
} mz_ranks_options;

// Which of a step's micro batches a rank's i-th is.
static inline int64_t mz_micro_of(mz_shard shard, int rank, int size, int64_t micro, int64_t i) {
    return shard >= MZ_SHARD_GRADIENTS ? i * size + rank : rank * micro + i;
}

static inline int64_t mz_bucket_elements(double mib) { // of FP32 gradients
    return (int64_t)(mib * ((1 << 20) / sizeof(float)));
}

// Alone, without canonical sums, nothing is cut. bucket: elements of gradients that are summed together, at most.
static inline mz_cut mz_ranks_cut(mz_shard shard, bool canonical, int rank, int size, int64_t bucket) {
    const bool scattered = shard >= MZ_SHARD_GRADIENTS && size > 1;
    const mz_cut cut = {size, bucket, scattered, scattered && shard == MZ_SHARD_PARAMETERS, rank};
    return size > 1 || canonical ? cut : (mz_cut){0};
}

// Of the device's group (device->comm; NULL: one rank alone, for canonical sums). `params` are cut for its size
// (mz_params_create). INVALID: canonical, and the micro batches of a step are not a power of two that the ranks divide,
// or gradients would travel as BF16.
mezzo_status mz_ranks_create(mezzo_params *params, const mz_ranks_options *options, mz_ranks **out);
void mz_ranks_free(mz_ranks *ranks);                   // NULL is fine; after its optimizer and step
int mz_ranks_shard(const mz_ranks *ranks);             // for mz_optimizer_create: whose part it moves, -1: all
mz_tensor mz_ranks_norm_blocks(const mz_ranks *ranks); // likewise: where sums of squares go
size_t mz_ranks_memory(const mz_ranks *ranks);         // bytes of the device
// What mz_ranks_memory would be, of parameters that are cut for `size` ranks.
size_t mz_ranks_plan(const mezzo_params *params, int size, const mz_ranks_options *options);
// The norm of a parameter's gradient in the last step: waits.
mezzo_status mz_ranks_norms(mz_ranks *ranks, const mezzo_optimizer *optimizer, double *norms); // [optimizer->n]

// Gradients are summed beside the last micro batch of `program`, a region as soon as it is finished, and
// mz_ranks_issue_sum adds no calls. Not where canonical sums have to wait for a rank's other micro batches.
mezzo_status mz_ranks_overlap(mz_ranks *ranks, mezzo_program *program);
// After micro batch i (from 0): keeps its loss; canonical: adds its gradient where it belongs.
mezzo_status mz_ranks_micro(mz_ranks *ranks, int64_t i, const void *loss);
mezzo_status mz_ranks_stop(mz_ranks *ranks, bool asked); // before the calls of a step: this rank was asked to stop
// The calls of a step, added to `into`: before grad_stats; after it; after the update.
mezzo_status mz_ranks_issue_sum(mz_ranks *ranks, mz_sequence *into);
mezzo_status mz_ranks_issue_norm(mz_ranks *ranks, mezzo_optimizer *optimizer, mz_sequence *into);
mezzo_status mz_ranks_issue_gather_params(mz_ranks *ranks, mz_sequence *into);
// What all ranks kept, for a fetch: device address and bytes; and what it says, on the host: the mean of all losses in
// order of micro batches, by their shares (mz_step_values_of), and whether any rank was asked to stop.
const void *mz_ranks_step_record(const mz_ranks *ranks, size_t *bytes);
void mz_ranks_read_step_record(const mz_ranks *ranks, const void *host, const double *shares, double *loss, bool *stop);
// Moments of all shards, and low halves of masters, brought together to be saved; all ranks call it. Those that `keep`
// have the moments on the host until mz_ranks_release. Gradients are overwritten: after a step only.
mezzo_status mz_ranks_gather_moments(mz_ranks *ranks, mezzo_optimizer *optimizer, bool keep);
void mz_ranks_release(mezzo_optimizer *optimizer);
// Parameters in shards brought together on the host of ranks that `keep`, until mz_ranks_release_weights: meanwhile
// these run programs by themselves. All ranks call it, after a step. Nothing where parameters are whole.
mezzo_status mz_ranks_gather_weights(mz_ranks *ranks, bool keep);
void mz_ranks_release_weights(mz_ranks *ranks);

#endif
