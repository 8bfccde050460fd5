// Declares what the trainer reads of a step besides the public report.
#ifndef MZ_OPTIM_STEP_H
#define MZ_OPTIM_STEP_H

#include "mezzo/step.h"
#include "optim/optimizer.h"
#include "optim/ranks.h"
#include "optim/scaler.h"

// Makes a step that the ranks of a group take together, each with its micro batches, on one optimizer that was made for
// it. `ranks` is borrowed; NULL: as mezzo_step_create.
mezzo_status mz_step_create(mezzo_program *program, mezzo_optimizer *const *optimizers, int n_optimizers,
                            mezzo_scaler *scaler, const mezzo_step_options *options, mz_ranks *ranks, mezzo_step **out);
// What a rank's user asked for; all ranks learn it with the next step.
enum { MZ_ASKED_STOP = 1, MZ_ASKED_SAVE = 2 };
void mz_step_ask(mezzo_step *step, int asked);

// Finishes a step as mezzo_step_finish does; with in_place gradients stay unscaled for code that reads them afterwards,
// until the next run writes them.
mezzo_status mz_step_finish(mezzo_step *step, bool in_place);

// Returns the host's counters to their values before mz_step_finish, so that it can run once more. The caller restores
// the device's numbers (optim/update_copy.h).
void mz_step_take_back(mezzo_step *step);

typedef struct mz_step_values { // values of one step, from the device
    double loss;                // mean over its micro batches
    mz_opt_state state;         // of the first optimizer
    mz_scaler_block scaler;     // scale 1 without a scaler
    bool found_inf;             // by any optimizer
    int asked;                  // MZ_ASKED_… of all ranks; 0 in a process without ranks
} mz_step_values;
// Reads the values of the step `back` (0 or 1) before the last finished one, and waits for it. shares: each micro
// batch's share of the loss, over all ranks, 1 on average; NULL: all alike.
mezzo_status mz_step_values_of(mezzo_step *step, int back, const double *shares, mz_step_values *out);

#endif
