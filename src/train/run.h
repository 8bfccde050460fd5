// A training run has its data, its engine, its guard, its report and its position. Each of the four has a header that
// says what it owns.
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
    mz_run_config config; // as asked; the engine has what was resolved
    mezzo_hooks hooks;
    mz_task *task;
    mz_source *data;                 // the training data; checkpoints keep its position
    mz_source *val_random, *val_all; // NULL without validation data
    mezzo_data_mark marks[2];        // by mz_set; of rank 0, once the run starts
    mz_latents latents;              // what the task learns instead of pictures; not given: it learns pictures
    bool samples;                    // the task's sampler is open, or its samples are pictures
    mz_vae vae;                      // latents: what decodes pictures of samples, with its program
    mezzo_program *decoder;          // NULL: none
    mz_engine engine;
    mz_guard guard;
    mz_report report;
    mz_replay replay;
    mz_profile *profile;      // NULL: none was asked for
    mz_lock lock;             // of the run folder
    char *checkpoints;        // their folder's path
    char *resolved;           // config.yaml as this run wrote it; NULL before that
    double *shares[2];        // the shares of a step's micro batches in its loss, by the step's parity; NULL: all alike
    uint64_t drawn;           // 1 + the batch in data->examples, which the step's shares left there; 0: none
    bool empty[2];            // by the step's parity: the step had no target, so the device did not take it
    struct mz_inject *inject; // NULL except in tests
    bool bisecting;           // the run is a search that writes nothing
    bool writes;              // the run folder belongs to this run, whichever rank writes it
    bool stopping;            // every rank knows of a stop request
    bool saving;              // all ranks know that one was asked to save
    sig_atomic_t saves_asked; // hooks.save at its last reading
    bool data_failed;         // the present step failed because its data could not be read
    bool elsewhere;           // the checkpoint from which it resumes is in another folder, and its own has none yet
    int64_t step, first_step; // finished steps; those finished before this call
};

// Declares what the ranks of a run agree on (ranks.c); a process without ranks agrees with itself.
bool mz_run_leads(const mz_training *run); // rank 0, which writes the run folder and reports
bool mz_run_keeps(const mz_training *run); // the run has a folder, whichever rank writes it
// Finds out whether any rank's verdict is true.
mezzo_status mz_run_any(mz_training *run, const char *what, bool mine, bool *any);
// Describes a fault by the first of the ranks that know most of it; its text then begins with that rank.
typedef enum mz_knows {
    MZ_KNOWS_NOTHING,
    MZ_KNOWS_READER, // knows the op that read it
    MZ_KNOWS_SOURCE, // knows where it lies: a parameter, a moment, a batch
} mz_knows;
mezzo_status mz_run_share_fault(mz_training *run, mz_knows knows, mz_fault *fault);
// Gives all ranks the status of what rank 0 alone does; an error there is an error on every rank.
mezzo_status mz_run_follow(mz_training *run, const char *what, mezzo_status status);
mezzo_status mz_run_follow_text(mz_training *run, const char *what, char *text, size_t size); // copies rank 0's text
// Gathers sharded parameters on the host of ranks that `keep` them, which may then run programs alone until they
// release them. All ranks call it at the same step. It does nothing where parameters are whole.
mezzo_status mz_run_gather_weights(mz_training *run, bool keep);
void mz_run_release_weights(mz_training *run);
// defined in run.c
mezzo_status mz_run_open(const mezzo_config *config, const mezzo_hooks *hooks, mz_training *run);
// Opens a run as one of the ranks that the environment describes; only rank 0 reports progress.
mezzo_status mz_run_join(const mezzo_config *config, const mezzo_hooks *hooks, mz_training *run);
// Opens a run on a device that the caller opens and closes. Runs that take turns on one device must have read every
// step before the other's turn.
mezzo_status mz_run_open_on(mezzo_device *device, const mezzo_config *config, const mezzo_hooks *hooks,
                            mz_training *run);
void mz_run_close(mz_training *run); // a zeroed or half-open one is allowed
// Declares step.c: mz_run_batches returns how many micro batches a step of all ranks has; the next function returns the
// number of this rank's micro batch i in the step whose data begins at `begin`. Ranks have neighbouring ones, in order,
// so that a step is the same on any number of ranks.
uint64_t mz_run_batches(const mz_training *run);
uint64_t mz_run_batch(const mz_training *run, uint64_t begin, int64_t i);
// Writes the share of this rank's micro batch i of the step, where the program weights its loss.
mezzo_status mz_run_write_share(mz_training *run, int64_t step, int64_t i);
bool mz_run_asks_save(mz_training *run); // hooks.save has changed since the last call
// Runs one optimizer step. Allocates nothing and, on a device with a queue, waits for nothing.
mezzo_status mz_run_step(mz_training *run);
// Reads a step into readout.last: the newest one that is ready or, with `all`, the very last.
mezzo_status mz_run_read_step(mz_training *run, bool all, bool *fresh);
// Declares loop.c: work between steps, with a record of each.
mezzo_status mz_run_validate(mz_training *run, mz_val_kind kind);
mezzo_status mz_run_sample(mz_training *run);
// Declares resume.c: the folder, and where to start. mz_run_check_folder checks the folder alone: INVALID where it
// holds another run's steps and nothing is resumed.
mezzo_status mz_run_check_folder(const mezzo_config *config);
mezzo_status mz_run_start(mz_training *run);
// Warns where the data of a set, whose mark is `ours`, differs from what the checkpoint at `path` has seen, and says
// what follows. Checkpoints without marks say nothing.
void mz_compare_data(const mz_task_options *data, mz_set set, mezzo_data_mark ours, const char *path,
                     const mezzo_checkpoint *checkpoint, const char *then);
mezzo_status mz_run_load(mz_training *run, const char *path); // loads a checkpoint, with the position of the run
mezzo_status mz_run_save(mz_training *run);
// Describes what a checkpoint of the run would hold now; its objects belong to the run.
mezzo_status mz_run_describe_state(const mz_training *run, mezzo_checkpoint *out);
// Gathers the ranks' shards, so that rank 0 alone can use the state as if it had no other ranks; an error there is an
// error on every rank.
mezzo_status mz_run_use_state(mz_training *run, mezzo_status (*use)(mz_training *run, void *user), void *user);

#endif
