// A training run: its data, its engine, its guard and its report, and where it is. Each of the four has a header that
// says what it owns.
#ifndef MZ_TRAIN_RUN_H
#define MZ_TRAIN_RUN_H

#include "io/file.h"
#include "train/config.h"
#include "train/engine.h"
#include "train/folder.h"
#include "train/guard.h"
#include "train/inject.h"
#include "train/profile.h"
#include "train/report.h"
#include "task/task.h"

// --- the run -------------------------------------------------------------------------------------
typedef struct mz_training mz_training;
struct mz_training {
    const mezzo_config *source;
    mz_run_config config; // as asked; what was resolved is in the engine
    mezzo_hooks hooks;
    mz_task *task;
    mz_source *data;                 // what is trained on; its position goes into checkpoints
    mz_source *val_random, *val_all; // NULL without validation data
    bool samples;                    // the task's sampler is open
    mz_engine engine;
    mz_guard guard;
    mz_report report;
    mz_profile *profile;      // NULL: none was asked for
    mz_lock lock;             // of the run folder
    char *checkpoints;        // path
    mz_inject inject;         // for tests: empty
    bool bisecting;           // nothing is written
    int64_t step, first_step; // done; done before this call
};

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
// resume.c: the folder, and where to start. The folder alone: INVALID where it holds another run's steps and nothing is
// resumed.
mezzo_status mz_run_check_folder(const mezzo_config *config);
mezzo_status mz_run_start(mz_training *run);
mezzo_status mz_run_load(mz_training *run, const char *path); // a checkpoint into everything; where the run then is
mezzo_status mz_run_save(mz_training *run);
mezzo_status mz_run_still_there(const mz_training *run); // IO where the run folder is gone

#endif
