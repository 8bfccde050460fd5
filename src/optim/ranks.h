// Lists the collectives of a step, as calls after the micro batches. Ranks sum gradients and gather what each found, so
// that all decide alike. Where each rank updates its own shards of the parameters, these are gathered, too. Rank r runs
// micro batches r·n … r·n + n - 1 of a step of size·n. With gradients in shards it runs r, r + size, r + 2·size …,
// because sums over ranks come before those over a rank's micro batches.
//
// `canonical` fixes the order of every sum of gradients: each micro batch's gradient is computed by itself, and
// neighbours are added in pairs, whichever rank computed them. So 1, 2 and 4 ranks give the same bits.
#ifndef MZ_OPTIM_RANKS_H
#define MZ_OPTIM_RANKS_H

#include "backend/collective.h"
#include "optim/optimizer.h"
#include "runtime/program.h"

typedef enum mz_shard {
    MZ_SHARD_NONE,       // every rank updates all parameters
    MZ_SHARD_OPTIMIZER,  // a rank updates its shards and has moments of these alone
    MZ_SHARD_GRADIENTS,  // and has gradients of its shards alone: they are scattered (mz_cut)
    MZ_SHARD_PARAMETERS, // and has parameters of its shards alone: programs gather them
} mz_shard;

// Runs the mz_collective in its state.
extern const mz_kernel mz_collective_kernel;

typedef struct mz_ranks mz_ranks;

typedef struct mz_ranks_options {
    mz_shard shard;
    bool canonical;
    bool bf16_wire; // gradients travel as BF16 and are summed in FP32
    int64_t micro;  // micro batches of a rank in a step
} mz_ranks_options;

// Returns the number, within the step, of a rank's i-th micro batch.
static inline int64_t mz_micro_of(mz_shard shard, int rank, int size, int64_t micro, int64_t i) {
    return shard >= MZ_SHARD_GRADIENTS ? i * size + rank : rank * micro + i;
}

static inline int64_t mz_bucket_elements(double mib) { // number of FP32 gradients in this many MiB
    return (int64_t)(mib * ((1 << 20) / sizeof(float)));
}

// Returns how parameters are divided; one rank without canonical sums divides nothing. bucket: the largest number of
// gradients that are summed together.
static inline mz_cut mz_ranks_cut(mz_shard shard, bool canonical, int rank, int size, int64_t bucket) {
    const bool scattered = shard >= MZ_SHARD_GRADIENTS && size > 1;
    const mz_cut cut = {size, bucket, scattered, scattered && shard == MZ_SHARD_PARAMETERS, rank, false};
    return size > 1 || canonical ? cut : (mz_cut){0};
}

// Makes the ranks' part of a step, for the device's group (device->comm; NULL: one rank, for canonical sums). `params`
// are divided for its size (mz_params_create). INVALID: canonical with BF16 gradients, or with a number of micro
// batches in a step that is not a power of two which the ranks divide.
mezzo_status mz_ranks_create(mezzo_params *params, const mz_ranks_options *options, mz_ranks **out);
void mz_ranks_free(mz_ranks *ranks);       // NULL is allowed; called after its optimizer and step are freed
int mz_ranks_shard(const mz_ranks *ranks); // for mz_optimizer_create: the rank whose shards it updates, -1: all
mz_tensor mz_ranks_norm_blocks(const mz_ranks *ranks); // for mz_optimizer_create: the memory for sums of squares
size_t mz_ranks_memory(const mz_ranks *ranks);         // bytes on the device
// Returns mz_ranks_memory for parameters that are divided among `size` ranks, before they exist.
size_t mz_ranks_plan(const mezzo_params *params, int size, const mz_ranks_options *options);
// Reads the norms of the parameters' gradients in the last step, and waits for the device.
mezzo_status mz_ranks_norms(mz_ranks *ranks, const mezzo_optimizer *optimizer, double *norms); // [optimizer->n]

// Sums gradients during the last micro batch of `program`, each region as soon as it is finished; mz_ranks_issue_sum
// then adds no calls. It changes nothing where canonical sums wait for a rank's other micro batches.
mezzo_status mz_ranks_overlap(mz_ranks *ranks, mezzo_program *program);
// Returns whether sums are canonical over several micro batches of a rank, so that whole gradients wait for the step's
// end.
static inline bool mz_ranks_add_late(const mz_ranks_options *o) {
    return o->canonical && o->micro > 1 && o->shard < MZ_SHARD_GRADIENTS;
}
// Is called after micro batch i (from 0): keeps its loss and, with canonical sums, adds its gradient to its sum.
mezzo_status mz_ranks_micro(mz_ranks *ranks, int64_t i, const void *loss);
mezzo_status mz_ranks_ask(mz_ranks *ranks, int asked); // called before a step's calls: MZ_ASKED_… of this rank
// Add the calls of a step to `into`: before grad_stats, after it, during the update, and after it. The third gathers
// what the optimizers' begin_update has updated, and the last one the other parameters.
mezzo_status mz_ranks_issue_sum(mz_ranks *ranks, mz_sequence *into);
mezzo_status mz_ranks_issue_norm(mz_ranks *ranks, mezzo_optimizer *optimizer, mz_sequence *into);
mezzo_status mz_ranks_issue_early_gather(mz_ranks *ranks, const mezzo_optimizer *const *optimizers, int n,
                                         mz_sequence *into);
mezzo_status mz_ranks_issue_gather_params(mz_ranks *ranks, mz_sequence *into);
// All-gathers the ranks' shards of `shard` elements each, contiguous from `base` on; into NULL: runs at once.
mezzo_status mz_ranks_issue_gather(mz_ranks *ranks, mz_sequence *into, void *base, int64_t shard, mezzo_dtype dtype);
// Returns the device address and bytes of the step's record of all ranks, for a fetch. mz_ranks_read_step_record reads
// it on the host: the mean of all losses in order of micro batches, weighted by their shares (mz_step_values_of), and
// whether any rank was asked to stop.
const void *mz_ranks_step_record(const mz_ranks *ranks, size_t *bytes);
void mz_ranks_read_step_record(const mz_ranks *ranks, const void *host, const double *shares, double *loss, int *asked);
// Gathers moments of all shards and low halves of masters, to save them; all ranks call it. Ranks with `keep` have the
// moments on the host until mz_ranks_release. It overwrites gradients, so it is called after a step.
mezzo_status mz_ranks_gather_moments(mz_ranks *ranks, mezzo_optimizer *optimizer, bool keep);
void mz_ranks_release(mezzo_optimizer *optimizer);
// Gathers sharded parameters to the host of ranks with `keep`, which can then run programs without the others until
// mz_ranks_release_weights. All ranks call it after a step. Whole parameters need no gather.
mezzo_status mz_ranks_gather_weights(mz_ranks *ranks, bool keep);
void mz_ranks_release_weights(mz_ranks *ranks);

#endif
