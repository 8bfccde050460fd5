// Copies the state that an update changes before it runs, so that the same update can run again, and checksums compare
// the two results.
#ifndef MZ_OPTIM_UPDATE_COPY_H
#define MZ_OPTIM_UPDATE_COPY_H

#include "optim/step.h"

enum { MZ_STATE_BUFFERS = 7 + MZ_MOMENTS };

typedef struct mz_state_buffer { // on the device
    void *data, *copy;
    size_t bytes;
} mz_state_buffer;

typedef struct mz_state_part { // of a buffer
    const char *what;          // "weights", "exp_avg", "optimizer state", …
    int param;                 // into params; -1: of all
    const char *data;
    size_t bytes;
} mz_state_part;

typedef struct mz_update_copy {
    mezzo_step *step; // borrowed, as the next four
    mezzo_params *params;
    mezzo_optimizer *optimizer;
    mezzo_scaler *scaler;
    mz_ranks *ranks; // NULL: this process alone
    mz_state_buffer buffers[MZ_STATE_BUFFERS];
    int n_buffers;
    mz_state_part *parts;
    size_t n_parts, cap_parts;
    bool *has_grad; // [params->n], of the gradients that the update takes
    size_t bytes;   // of the device
} mz_update_copy;

// Of a step with one optimizer. Takes all memory that the other calls need. Free with mz_update_copy_free also after an
// error; a zeroed one is fine.
mezzo_status mz_update_copy_create(mezzo_step *step, mezzo_optimizer *optimizer, mezzo_scaler *scaler, mz_ranks *ranks,
                                   mz_update_copy *out);
void mz_update_copy_free(mz_update_copy *copy);
// Bytes of mz_update_copy_create on parameters and an optimizer that are laid out, but for FP8 scales; `moments`: of
// all moments; `record`: numbers in the ranks' record of a step.
size_t mz_update_copy_plan(const mezzo_params *params, size_t moments, int64_t record);
mezzo_status mz_update_copy_keep(mz_update_copy *copy);    // after the micro batches, before mz_step_finish
mezzo_status mz_update_copy_restore(mz_update_copy *copy); // after it: as before, but for the gradients' numbers

#endif
