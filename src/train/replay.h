// Finds silent corruption: every N-th step computes its losses and gradients twice from the same batches, and compares
// them before the update. A run is deterministic, so that any difference is a fault of the machine. docs/reliability.md
// describes it for users.
#ifndef MZ_TRAIN_REPLAY_H
#define MZ_TRAIN_REPLAY_H

#include "mezzo/status.h"
#include "base/base.h"
#include "optim/update_copy.h"

struct mz_training;

typedef enum mz_replay_policy { MZ_REPLAY_STOP, MZ_REPLAY_CONTINUE } mz_replay_policy;

enum { MZ_REPLAY_PASSES = 3 }; // the third pass decides

typedef struct mz_replay {
    bool on;
    void *first;                      // on the device: the gradients of the first pass
    size_t bytes;                     // bytes of these gradients
    void *difference;                 // on a device with a queue: FP32 [chunk]
    void *found;                      // on a device with a queue: an mz_inspection for each chunk
    double *losses[MZ_REPLAY_PASSES]; // [micro batches], by pass
    mz_update_copy update;            // with train.replay_update
    uint32_t *sums[MZ_REPLAY_PASSES]; // [update.n_parts], by pass
    int64_t checked;                  // number of replayed steps
    int64_t differed;                 // number of steps that differed
} mz_replay;

// Allocates all memory: as much as the gradients, and on a device with a queue 16 MiB more. It does nothing where
// train.replay is 0.
mezzo_status mz_replay_open(struct mz_training *run);
void mz_replay_close(struct mz_training *run); // a zeroed one is allowed
bool mz_replay_due(const struct mz_training *run, int64_t step);
// Computes the micro batches of a step again by `compute`, before the update: once or, where the two differ, until a
// third pass decides. The gradients of the last pass are in place. DEVICE: they differ, and the policy is to stop, or
// no two passes agree; there is a checkpoint of the step before, and the run used nothing of this step.
typedef mezzo_status (*mz_replay_fn)(struct mz_training *run, int64_t step, double *losses);
mezzo_status mz_replay_check(struct mz_training *run, int64_t step, mz_replay_fn compute);
bool mz_replay_updates(const struct mz_training *run); // with train.replay_update, and where ranks sum within the
                                                       // update
// Returns whether this rank has, after the micro batches, sums of the ranks' gradients in its shards, and not its own
// gradients.
bool mz_replay_has_shards(const struct mz_training *run);
// Runs mz_step_finish twice from the same state, with the ranks' sums and gathers, and compares checksums of weights,
// moments and counters; a third run decides, as above. `in_place`: as mz_step_finish has it.
mezzo_status mz_replay_update(struct mz_training *run, int64_t step, bool in_place);
size_t mz_replay_memory(const struct mz_training *run); // bytes on the device

#endif
