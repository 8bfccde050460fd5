// The guard reacts to bad steps. It remembers where the data of the last steps begins and the optimizer's state before
// them; its rules judge a step, and its policy skips the step, rolls back or stops. docs/guard.md describes it for
// users.
//
// The device finds a bad step and halts itself (update.h, mz_opt_state.halted): the update of that step and all later
// ones change nothing until the host has read the results. So it does not matter how late the host reads: it goes back
// to the bad step, with parameters, moments, counters and scaler as they were before it, finds the first bad value by
// replaying the step, and then skips, rolls back or stops.
#ifndef MZ_TRAIN_GUARD_H
#define MZ_TRAIN_GUARD_H

#include "backend/update.h"
#include "runtime/program.h"
#include "train/spike.h"
#include "backend/inspect.h"

struct mz_training;

typedef struct mz_fault {
    int64_t step, micro; // micro: from 1; 0: in none of the micro batches
    int64_t sample;      // counted over all micro batches of the step, from 1; 0: not known
    int kinds;           // MZ_BAD_… bits that the device found
    bool parameter;      // a parameter is bad, so skipping batches does not help
    char kind[16];       // "batch" "loss" "activation" "gradients" "parameters" "moments" "overflow" "spike"
    char op[32], module[128], phase[16], dtype[8]; // of the first bad op; "" where the cause is no op
    char text[1024];                               // one line of text
} mz_fault;

typedef struct mz_guard {
    bool on;
    int policy;             // MZ_GUARD_…
    int64_t in_a_row;       // number of consecutive steps with bad numbers
    int64_t floor_in_a_row; // how many of these had the loss scale at its floor
    mz_opt_state before;    // the optimizer's state after the last good step
    float scale;            // the loss scale of the oldest step that the host has not read
    float worked_scale;     // the largest loss scale with which any step was finite
    uint64_t begin[2];      // where the data of a step begins, by the step's parity
    char batch[2][256];     // what is wrong with a batch of a step, by the step's parity; "" = nothing
    mz_spikes spikes;
    void *found;                                  // on the device, mz_inspection[MZ_MAX_IN]
    int64_t bad_steps, rollbacks, rollbacks_here; // in this process; rollbacks_here: since a newer checkpoint
    int64_t rolled_to;                            // the checkpoint's step of the last rollback
    int64_t last_bad;                             // the last bad step, whose gradients are gone
} mz_guard;

// guard.c
mezzo_status mz_guard_open(struct mz_training *run); // called once parameters, program and optimizer exist
void mz_guard_close(struct mz_training *run);
// Judges engine.readout.last: skips the step or rolls back; NUMERIC when the run cannot continue.
mezzo_status mz_run_guard(struct mz_training *run);
// Arms the guard at the start, and whenever the optimizer's state was read from a checkpoint.
mezzo_status mz_guard_arm(struct mz_training *run);
// Draws micro batch `position` into run->data->examples. With the guard on, it checks the batch, and fault[size]
// describes what is wrong with it.
mezzo_status mz_guard_draw(struct mz_training *run, uint64_t position, char *fault, size_t size);
// Is called before a step's micro batches: remembers where its data begins and, where it `looks`, inspects parameters
// and moments when that is due.
mezzo_status mz_guard_begin_step(struct mz_training *run, int64_t step, bool looks);
mezzo_status mz_guard_bad_batch(struct mz_training *run); // called where the present step has a bad batch
// Decides whether the run may be saved, and waits for the device. *sound is false where a parameter or a moment is bad;
// the policy was then applied.
mezzo_status mz_guard_check_before_save(struct mz_training *run, bool *sound);
// Finds the first parameter with a value that is not finite, -1 if there is none; waits for the device.
mezzo_status mz_guard_bad_parameter(struct mz_training *run, int *index, mz_inspection *values);
// A moment of a larger magnitude is bad: AdamW would not change such a parameter for thousands of steps. A gradient
// near 1e16 makes one.
#define MZ_GUARD_MOMENT_LIMIT 1e30f
// Finds the first moment with a value that is not finite or above the limit, and waits for the device: `which` of the
// index-th parameter that the optimizer owns; *which -1 if there is none.
mezzo_status mz_guard_bad_moment(struct mz_training *run, int *which, int *index, mz_inspection *values);

// Replays a step from where its data begins, on the present parameters (diagnose.c). `fault` has `kinds` and `step`
// already, and gets everything else. Gradients are zeroed afterwards.
mezzo_status mz_guard_diagnose(struct mz_training *run, uint64_t begin, mz_fault *fault);
void mz_guard_describe_moment(struct mz_training *run, int which, int index, const mz_inspection *values,
                              mz_fault *fault);
mezzo_status mz_guard_record(struct mz_training *run, const mz_fault *fault,
                             const char *action); // writes to guard.jsonl, and warns

// Declares rollback.c: how the run goes back or ends.
mezzo_status mz_guard_roll_back(struct mz_training *run, int64_t bad, uint64_t data);
// Changes the state that a rollback read from a checkpoint: halves the loss scale, and continues with the data at
// `data`.
mezzo_status mz_guard_go_on(struct mz_training *run, uint64_t data);
bool mz_guard_can_roll_back(const struct mz_training *run);
// Ends the run with NUMERIC. Where `halted`, the run first returns to the state before the bad step; with `save` it
// writes a checkpoint of that state.
mezzo_status mz_guard_stop(struct mz_training *run, const mz_fault *fault, bool halted, bool save);

#endif
