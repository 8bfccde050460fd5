// A study drives this training run: it is mezzo_run_train's, bit for bit, but the study says when a step is run, and
// nothing is written. This is all that verify and lab know of a run.
#ifndef MZ_TRAIN_TRIAL_H
#define MZ_TRAIN_TRIAL_H

#include "train/engine.h"

typedef struct mz_training mz_trial;

// Holds what was opened. Strings and pointers are the trial's.
typedef struct mz_trial_facts {
    const mezzo_model_config *model;
    mezzo_program_options program; // resolved
    const char *device, *reason;   // descriptions: of the device, of why this precision
    const char *data;              // as the configuration names it
    int64_t steps, batch, grad_accum, parameters;
    int64_t items;                      // tokens (or examples) of a micro batch
    size_t memory;                      // bytes of everything that is open
    size_t training_memory;             // `memory` without the programs of validation and sampling
    size_t activations;                 // of the training program, those in the gradients' memory too
    bool validates;                     // there is validation data
    uint64_t val_batches;               // that a validation covers
    const mezzo_scaler_options *scaler; // resolved
} mz_trial_facts;

// On `device`, borrowed, or, where it is NULL, on the configuration's. Trials that take turns on a device must have
// read every step before the other's turn. `config` is borrowed until the trial is closed: names in it are not copied.
// Errors as mezzo_run_train; *out is NULL then.
mezzo_status mz_trial_open(mezzo_device *device, const mezzo_config *config, const volatile sig_atomic_t *stop,
                           mz_trial **out);
void mz_trial_close(mz_trial *trial); // NULL is fine
mz_trial_facts mz_trial_describe(const mz_trial *trial);
// Weights and position in the data of a checkpoint, a run folder's newest or one by name. *step: the one that comes
// next.
mezzo_status mz_trial_load(mz_trial *trial, const char *path, int64_t *step);

// Takes one optimizer step. *report (borrowed): the newest that could be read without waiting, or, with `wait`, this
// one; NULL where none is new.
mezzo_status mz_trial_step(mz_trial *trial, bool wait, const mz_step_report **report);
// Waits for what is still on its way. *report as above.
mezzo_status mz_trial_settle(mz_trial *trial, const mz_step_report **report);
const mz_step_report *mz_trial_last(const mz_trial *trial); // the newest that was read; its loss is NaN before any
int64_t mz_trial_steps(const mz_trial *trial);              // run so far
// The next step counts magnitudes (train.histograms_every must not be 0); read them afterwards. The tables are the
// trial's.
mezzo_status mz_trial_count_step(mz_trial *trial, const mz_magnitudes **out);

// The batch that the last step's last micro batch was given, and any batch of the training data by number, into the
// same memory.
const mz_examples *mz_trial_examples(const mz_trial *trial);
mezzo_status mz_trial_draw(mz_trial *trial, uint64_t number);
// Parameters whose names match, before the first step.
mezzo_status mz_trial_scale_weights(mz_trial *trial, const char *pattern, double by);
uint64_t mz_trial_position(const mz_trial *trial); // number of the next batch
// One micro batch by number, forward and backward, call by call with `hook` after each; gradients are zero afterwards.
mezzo_status mz_trial_replay(mz_trial *trial, uint64_t number, mz_program_hook hook, void *user);
const mezzo_params *mz_trial_params(const mz_trial *trial);
// Loss and accuracy on the validation data, in the precision that is trained in: batches as train.eval_iters says, of
// fewer rows where a batch's logits are more than 2^26 numbers.
mezzo_status mz_trial_validate(mz_trial *trial, const volatile sig_atomic_t *stop, mz_evaluation *out);

#endif
