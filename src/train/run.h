// A training run has its data, its engine, its guard and its report, and its position. Each of the four has a header
// that says what it owns.
#ifndef MZ_TRAIN_RUN_H
#define MZ_TRAIN_RUN_H

#include "io/file.h"
#include "train/config.h"
#include "train/engine.h"
#include "train/folder.h"
#include "train/guard.h"
#include "train/inject.h"
#include "train/latents.h"
#include "train/profile.h"
#include "train/replay.h"
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
    mezzo_data_mark marks[2];        // by mz_set; rank 0's, once the run starts
    mz_latents latents;              // what the task learns instead of pictures; not given: pictures
    bool samples;                    // the task's sampler is open, or its samples are pictures
    mz_vae vae;                      // latents: what decodes pictures of samples, and its program
    mezzo_program *decoder;          // NULL: none
    mz_engine engine;
    mz_guard guard;
    mz_report report;
    mz_replay replay;
    mz_profile *profile;      // NULL: none was asked for
    mz_lock lock;             // of the run folder
    char *checkpoints;        // path
    char *resolved;           // config.yaml as this run has written it; NULL before
    double *shares[2];        // of a step's micro batches in its loss, by its parity; NULL: all alike
    float *statistics;        // of this rank's micro batches: running statistics move by them; NULL: none
    bool empty[2];            // whether a step had no target, so that the device did not take it, by its parity
    mz_inject inject;         // for tests: empty
    bool bisecting;           // nothing is written
    bool writes;              // the run folder is this run's, whichever rank writes it
    bool stopping;            // all ranks know that one was asked to stop
    bool saving;              // all ranks know that one was asked to save
    sig_atomic_t saves_asked; // hooks.save, as it was last seen
    bool data_failed;         // the error of the step under way is that its data could not be read
    bool elsewhere;           // the checkpoint that it resumes from is not in its folder, which has none yet
    int64_t step, first_step; // done; done before this call
};

// ranks.c: what the ranks of a run agree on; alone each is itself.
bool mz_run_leads(const mz_training *run); // rank 0, which writes the run folder and reports
bool mz_run_keeps(const mz_training *run); // the run has a folder, whichever rank writes it
// Says whether some rank's verdict is true.
mezzo_status mz_run_any(mz_training *run, const char *what, bool mine, bool *any);
// Says what a fault is, by the first of the ranks that know best: its text then begins with that rank.
typedef enum mz_knows {
    MZ_KNOWS_NOTHING,
    MZ_KNOWS_READER, // what met it
    MZ_KNOWS_SOURCE, // where it lies: a parameter, a moment, a batch
} mz_knows;
mezzo_status mz_run_share_fault(mz_training *run, mz_knows knows, mz_fault *fault);
// Rank 0's status, for what it alone does; an error there is everybody's.
mezzo_status mz_run_follow(mz_training *run, const char *what, mezzo_status status);
mezzo_status mz_run_follow_text(mz_training *run, const char *what, char *text, size_t size); // rank 0's
// Running statistics: keeps those of this rank's micro batch i, which has just run; then moves every rank's copy by all
// micro batches of the step in the order of their numbers, as one rank does. Nothing for models without them.
mezzo_status mz_run_keep_statistics(mz_training *run, int64_t i);
mezzo_status mz_run_move_statistics(mz_training *run);
// Parameters that lie in parts of ranks, whole on the host of those that `keep`, which may run programs by themselves
// until they release them. All ranks come here at the same step. Nothing where parameters are whole.
mezzo_status mz_run_gather_weights(mz_training *run, bool keep);
void mz_run_release_weights(mz_training *run);
// run.c
mezzo_status mz_run_open(const mezzo_config *config, const mezzo_hooks *hooks, mz_training *run);
// Opens a run as one of the ranks that the environment names; only rank 0 reports progress.
mezzo_status mz_run_join(const mezzo_config *config, const mezzo_hooks *hooks, mz_training *run);
// Opens a run on a device that the caller opens and closes. Runs that take turns on one must have read every step
// before the other's turn.
mezzo_status mz_run_open_on(mezzo_device *device, const mezzo_config *config, const mezzo_hooks *hooks,
                            mz_training *run);
void mz_run_close(mz_training *run); // a zeroed or half-open one is fine
// step.c: how many micro batches a step of all ranks has; the number of this rank's micro batch i in the step whose
// data begins at `begin`: ranks have neighbouring ones, in order, so that a step is the same on any number of ranks.
uint64_t mz_run_batches(const mz_training *run);
uint64_t mz_run_batch(const mz_training *run, uint64_t begin, int64_t i);
// Writes the share of this rank's micro batch i of the step, where the program weighs its loss.
mezzo_status mz_run_write_share(mz_training *run, int64_t step, int64_t i);
bool mz_run_asks_save(mz_training *run); // hooks.save has changed since the last call
// Runs one optimizer step. Allocates nothing and, on a device with a queue, waits for nothing.
mezzo_status mz_run_step(mz_training *run);
// Reads a step into readout.last: the newest, or with `all` the very last.
mezzo_status mz_run_read_step(mz_training *run, bool all, bool *fresh);
// loop.c: between steps, with a record of each.
mezzo_status mz_run_validate(mz_training *run, mz_val_kind kind);
mezzo_status mz_run_sample(mz_training *run);
// resume.c: the folder, and where to start. The folder alone: INVALID where it holds another run's steps and nothing is
// resumed.
mezzo_status mz_run_check_folder(const mezzo_config *config);
mezzo_status mz_run_start(mz_training *run);
mezzo_status mz_run_load(mz_training *run, const char *path); // a checkpoint into everything; where the run then is
mezzo_status mz_run_save(mz_training *run);
// Describes what a checkpoint of the run would hold now; its objects are the run's.
mezzo_status mz_run_describe_state(const mz_training *run, mezzo_checkpoint *out);
// Ranks bring their parts together, and rank 0 alone uses what one rank alone would have: its error is everybody's.
mezzo_status mz_run_use_state(mz_training *run, mezzo_status (*use)(mz_training *run, void *user), void *user);

#endif
