// Copies the state that an update changes before it runs, so that the same update can run again and checksums can
// compare the two results.
#ifndef MZ_OPTIM_UPDATE_COPY_H
#define MZ_OPTIM_UPDATE_COPY_H

#include "optim/step.h"

enum { MZ_STATE_BUFFERS = 7 + MZ_MOMENTS };

typedef struct mz_state_buffer { // on the device
    void *data, *copy;
    size_t bytes;
} mz_state_buffer;

typedef struct mz_state_part { // part of a buffer
    const char *what;          // "weights", "exp_avg", "optimizer state", …
    int param;                 // index into params; -1: the part belongs to all
    const char *data;
    size_t bytes;
} mz_state_part;

typedef struct mz_update_copy {
    mezzo_step *step; // borrowed, as are the next four
    mezzo_params *params;
    mezzo_optimizer *optimizer;
    mezzo_scaler *scaler;
    mz_ranks *ranks; // NULL: this process alone
    mz_state_buffer buffers[MZ_STATE_BUFFERS];
    int n_buffers;
    mz_state_part *parts;
    size_t n_parts, cap_parts;
    bool *has_grad; // [params->n]: whether the update has a gradient of the parameter
    size_t bytes;   // bytes on the device
} mz_update_copy;

// Makes the copy for a step with one optimizer, with all memory that the other calls need. Free it with
// mz_update_copy_free after an error, too; a zeroed copy is allowed there.
mezzo_status mz_update_copy_create(mezzo_step *step, mezzo_optimizer *optimizer, mezzo_scaler *scaler, mz_ranks *ranks,
                                   mz_update_copy *out);
void mz_update_copy_free(mz_update_copy *copy);
// Returns the bytes that mz_update_copy_create takes for parameters and an optimizer that are laid out, without FP8
// scales. `moments`: bytes of all moments; `record`: numbers in the ranks' record of a step.
size_t mz_update_copy_plan(const mezzo_params *params, size_t moments, int64_t record);
mezzo_status mz_update_copy_keep(mz_update_copy *copy);    // called after the micro batches, before mz_step_finish
mezzo_status mz_update_copy_restore(mz_update_copy *copy); // called after mz_step_finish: restores all but the
                                                           // gradients' numbers

#endif
