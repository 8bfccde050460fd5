// The guard reacts to bad steps. It remembers where the data of the last steps begins and the optimizer's state before
// them; its rules judge a step, and its policy skips the step, rolls back or stops. docs/guard.md has what a user sees.
//
// A bad step is found on the device and stops everything there (update.h, mz_opt_state.halted): its update and all
// later ones move nothing until the host has looked. So nothing depends on how late the host reads: it goes back to the
// bad step, with parameters, moments, counters and scaler as they were before it, finds the first bad value by
// replaying the step, and then skips, rolls back or stops.
#ifndef MZ_TRAIN_GUARD_H
#define MZ_TRAIN_GUARD_H

#include "backend/update.h"
#include "runtime/program.h"
#include "train/spike.h"
#include "backend/inspect.h"

struct mz_training;

typedef struct mz_fault {
    int64_t step, micro; // micro: from 1; 0: not one of them
    int64_t sample;      // of all micro batches of the step, from 1; 0: not known
    int kinds;           // MZ_BAD_…, what the device found
    bool parameter;      // a parameter itself is bad: skipping batches does not help
    char kind[16];       // "batch" "loss" "activation" "gradients" "parameters" "moments" "overflow" "spike"
    char op[32], module[128], phase[16], dtype[8]; // of the first bad op; "" where no op is to blame
    char text[1024];                               // one line
} mz_fault;

typedef struct mz_guard {
    bool on;
    int policy;             // MZ_GUARD_…
    int64_t in_a_row;       // non-finite steps
    int64_t floor_in_a_row; // of these, with the loss scale at its floor
    mz_opt_state before;    // after the last good step
    float scale;            // the loss scale of the oldest step that the host has not read
    float worked_scale;     // the largest one that any step was finite with
    uint64_t begin[2];      // where the data of a step begins, by its parity
    char batch[2][256];     // what is wrong with a batch of a step, by its parity; "" = nothing
    mz_spikes spikes;
    void *found;                                  // device, mz_inspection[MZ_MAX_IN]
    int64_t bad_steps, rollbacks, rollbacks_here; // in this process; since a newer checkpoint
    int64_t rolled_to;                            // step of the checkpoint of the last rollback
    int64_t last_bad;                             // the last step that was found bad: its gradients are gone
} mz_guard;

// guard.c
mezzo_status mz_guard_open(struct mz_training *run); // once parameters, program and optimizer are there
void mz_guard_close(struct mz_training *run);
// Judges engine.readout.last: skips the step or rolls back; NUMERIC when the run cannot continue.
mezzo_status mz_run_guard(struct mz_training *run);
// Arms the guard at the start, and whenever the optimizer's state was read from a checkpoint.
mezzo_status mz_guard_arm(struct mz_training *run);
// Draws micro batch `position` into run->data->examples; where the guard is on, it is checked, and fault[size] says
// what is wrong with it.
mezzo_status mz_guard_draw(struct mz_training *run, uint64_t position, char *fault, size_t size);
// Called before a step's micro batches, remembers where its data begins, and, where it `looks`, inspects parameters and
// moments when it is time.
mezzo_status mz_guard_begin_step(struct mz_training *run, int64_t step, bool looks);
mezzo_status mz_guard_bad_batch(struct mz_training *run); // the step under way has one
// Waits: whether the run may be saved. Where a parameter or a moment is bad, it may not, and the policy was followed.
mezzo_status mz_guard_check_before_save(struct mz_training *run, bool *sound);
// Waits: the first parameter with a value that is not finite, -1 if there is none.
mezzo_status mz_guard_bad_parameter(struct mz_training *run, int *index, mz_inspection *values);
// Magnitude of an optimizer's moment above which it is bad: AdamW would not move such a parameter for thousands of
// steps. A gradient near 1e16 makes one.
#define MZ_GUARD_MOMENT_LIMIT 1e30f
// Waits: the first moment with a value that is not finite or above the limit: `which` of the index-th parameter that
// the optimizer owns; *which -1 if there is none.
mezzo_status mz_guard_bad_moment(struct mz_training *run, int *which, int *index, mz_inspection *values);

// diagnose.c: replays a step from where its data begins, on the parameters as they are. `fault` gets everything but
// `kinds` and `step`, which it has. Gradients are left zeroed.
mezzo_status mz_guard_diagnose(struct mz_training *run, uint64_t begin, mz_fault *fault);
void mz_guard_describe_moment(struct mz_training *run, int which, int index, const mz_inspection *values,
                              mz_fault *fault);
mezzo_status mz_guard_record(struct mz_training *run, const mz_fault *fault,
                             const char *action); // guard.jsonl, and a warning

// rollback.c: what is done about it.
mezzo_status mz_guard_roll_back(struct mz_training *run, int64_t bad, uint64_t data);
// Changes the state of a checkpoint that was read for a rollback: half the loss scale, and the data goes on at `data`.
mezzo_status mz_guard_go_on(struct mz_training *run, uint64_t data);
bool mz_guard_can_roll_back(const struct mz_training *run);
// Fails with NUMERIC. Where `halted` the run is first put back to before the bad step. With `save` there is a
// checkpoint of that.
mezzo_status mz_guard_stop(struct mz_training *run, const mz_fault *fault, bool halted, bool save);

#endif
