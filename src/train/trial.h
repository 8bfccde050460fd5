// Lets a study drive a training run: it is mezzo_run_train's, bit for bit, but the study decides when a step runs, and
// nothing is written. verify and lab know no more of a run than this.
#ifndef MZ_TRAIN_TRIAL_H
#define MZ_TRAIN_TRIAL_H

#include "train/engine.h"

typedef struct mz_training mz_trial;

// Holds facts of the open run. Strings and pointers belong to the trial.
typedef struct mz_trial_facts {
    const mezzo_model_config *model;
    mezzo_program_options program; // with every choice resolved
    const char *device, *reason;   // descriptions of the device, and of why it has this precision
    const char *data;              // as the configuration names it
    int64_t steps, batch, grad_accum, parameters;
    int64_t items;                      // tokens (or examples) of a micro batch
    size_t memory;                      // bytes that everything open takes
    size_t training_memory;             // `memory` without the programs of validation and sampling
    size_t activations;                 // of the training program, with those in the gradients' memory
    bool validates;                     // there is validation data
    uint64_t val_batches;               // batches of one validation
    const mezzo_scaler_options *scaler; // with every choice resolved
} mz_trial_facts;

// Opens a trial on `device`, which is borrowed, or, where it is NULL, on the configuration's device. Trials that take
// turns on a device must have read every step before the other's turn. `config` is borrowed until the trial is closed,
// because names in it are not copied. Errors as mezzo_run_train; *out is NULL then.
mezzo_status mz_trial_open(mezzo_device *device, const mezzo_config *config, const volatile sig_atomic_t *stop,
                           mz_trial **out);
void mz_trial_close(mz_trial *trial); // NULL is allowed
mz_trial_facts mz_trial_describe(const mz_trial *trial);
// Loads weights and the position in the data from a checkpoint: a run folder's newest, or one by name. *step: the next
// step.
mezzo_status mz_trial_load(mz_trial *trial, const char *path, int64_t *step);

// Takes one optimizer step. *report (borrowed): the newest one that can be read without waiting or, with `wait`, this
// step's; NULL where none is new.
mezzo_status mz_trial_step(mz_trial *trial, bool wait, const mz_step_report **report);
// Waits for results that are still to come. *report as above.
mezzo_status mz_trial_settle(mz_trial *trial, const mz_step_report **report);
const mz_step_report *mz_trial_last(const mz_trial *trial); // the newest that was read; its loss is NaN before the
                                                            // first
int64_t mz_trial_steps(const mz_trial *trial);              // number of steps so far
// Makes the next step count magnitudes (train.histograms_every must not be 0), which are read afterwards. The tables
// belong to the trial.
mezzo_status mz_trial_count_step(mz_trial *trial, const mz_magnitudes **out);

// Return the batch of the last step's last micro batch, and any batch of the training data by number, in the same
// memory.
const mz_examples *mz_trial_examples(const mz_trial *trial);
mezzo_status mz_trial_draw(mz_trial *trial, uint64_t number);
// Scales the parameters whose names match, before the first step.
mezzo_status mz_trial_scale_weights(mz_trial *trial, const char *pattern, double by);
uint64_t mz_trial_position(const mz_trial *trial); // number of the next batch
// Runs forward and backward of one micro batch by number, call by call with `hook` after each; gradients are zero
// afterwards.
mezzo_status mz_trial_replay(mz_trial *trial, uint64_t number, mz_program_hook hook, void *user);
const mezzo_params *mz_trial_params(const mz_trial *trial);
// Computes loss and accuracy on the validation data in the training precision: as many batches as train.eval_iters
// says, with fewer rows where a batch's logits are more than 2^26 numbers.
mezzo_status mz_trial_validate(mz_trial *trial, const volatile sig_atomic_t *stop, mz_evaluation *out);

#endif
