// Finds silent corruption: every N-th step computes its losses and gradients twice from the same batches, and compares
// them before the update. A run is deterministic, so that any difference is a fault of the machine. docs/reliability.md
// describes it for users.
#ifndef MZ_TRAIN_REPLAY_H
#define MZ_TRAIN_REPLAY_H

#include "mezzo/status.h"
#include "backend/inspect.h"
#include "optim/update_copy.h"

struct mz_training;

typedef enum mz_replay_policy { MZ_REPLAY_STOP, MZ_REPLAY_CONTINUE } mz_replay_policy;

enum { MZ_REPLAY_PASSES = 3 }; // the third pass decides

typedef struct mz_replay {
    bool on;
    mz_state_part *gradients; // those that this rank compares
    size_t n_gradients;
    void *sums;                            // on the device: mz_checksum [MZ_REPLAY_SUMS]
    double *losses[MZ_REPLAY_PASSES];      // [micro batches], by pass
    mz_checksum *before[MZ_REPLAY_PASSES]; // [n_gradients], before the update, by pass
    mz_checksum *after[MZ_REPLAY_PASSES];  // [update.n_parts], after the update, by pass
    mz_update_copy update;                 // where the update is replayed
    void *first;                           // likewise, on the device: the gradients before the update
    int64_t checked;                       // number of replayed steps
    int64_t differed;                      // number of steps that differed
} mz_replay;

// Allocates all memory: 16 KiB on the device and, where the update is replayed, as much as gradients and state. It does
// nothing where train.replay is 0.
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
