// A training run: its data, its engine, its guard and its report, and where it is. Each of the four has a header that
// says what it owns.
#ifndef MZ_TRAIN_RUN_H
#define MZ_TRAIN_RUN_H

#include "mezzo/data.h"
#include "train/config.h"
#include "train/engine.h"
#include "train/guard.h"
#include "train/inject.h"
#include "train/report.h"
#include "train/sampler.h"

// --- validate.c ----------------------------------------------------------------------------------
// Mean loss over the targets of batches 0 … n-1 of `loader`, nats. *tokens (may be NULL): how many. NaN when stopped
// early.
mezzo_status mz_validate(mezzo_program *program, const mezzo_loader *loader, uint64_t n, int32_t *inputs,
                         int32_t *targets, size_t count, const volatile sig_atomic_t *stop, double *loss,
                         uint64_t *tokens);

// --- the run -------------------------------------------------------------------------------------
typedef struct mz_training {
    const mezzo_config *source;
    mz_run_config config; // as asked; what was resolved is in the engine
    mezzo_hooks hooks;
    mezzo_corpus *corpus;
    mezzo_loader *batches, *val_random, *val_all; // val_*: NULL without validation data
    mz_sampler *sampler;                          // NULL where there is no tokenizer or no sample is wanted
    int32_t *inputs, *targets;                    // [B, T]
    size_t count;                                 // B·T
    mz_engine engine;
    mz_guard guard;
    mz_report report;
    char *checkpoints, *tokenizer_file; // paths
    mz_inject inject;                   // for tests: empty
    bool bisecting;                     // nothing is written
    int64_t step, first_step;           // done; done before this call
} mz_training;

// run.c
mezzo_status mz_run_open(const mezzo_config *config, const mezzo_hooks *hooks, mz_training *run);
// On a device that the caller opened and closes. Runs that take turns on one must have read every step before the
// other's turn.
mezzo_status mz_run_open_on(mezzo_device *device, const mezzo_config *config, const mezzo_hooks *hooks,
                            mz_training *run);
void mz_run_close(mz_training *run); // a zeroed or half-open one is fine
// step.c: one optimizer step. Allocates nothing and, on a device with a queue, waits for nothing.
mezzo_status mz_run_step(mz_training *run);
// Into readout.last: the newest, or with `all` the very last.
mezzo_status mz_run_read_step(mz_training *run, bool all, bool *fresh);
void mz_run_forget_pending(mz_training *run); // losses that were not read
// resume.c: the folder, and where to start.
mezzo_status mz_run_start(mz_training *run);
mezzo_status mz_run_load(mz_training *run, const char *path); // a checkpoint into everything; where the run then is
mezzo_status mz_run_save(mz_training *run);
// A checkpoint's folder from what a user names: a run folder, its checkpoints/, or one checkpoint.
mezzo_status mz_run_folder(const char *checkpoint, char *out, size_t size); // RUN/checkpoints/step-… → RUN
mezzo_status mz_find_checkpoint(const char *path, bool best, char *out, size_t size);

#endif
