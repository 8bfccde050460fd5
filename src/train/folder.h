// Finds run folders and the checkpoints in them from what a user names.
#ifndef MZ_TRAIN_FOLDER_H
#define MZ_TRAIN_FOLDER_H

#include "checkpoint/checkpoint.h"
#include "mezzo/train.h"

// Finds a checkpoint's folder from a run folder, its checkpoints/, or one checkpoint: the newest, or the best one.
// `parts`: MZ_CHECKPOINT_…, the files that will be read. INVALID where there is none.
mezzo_status mz_find_checkpoint(const char *path, bool best, int parts, char *out, size_t size);
mezzo_status mz_run_folder(const char *checkpoint, char *out, size_t size); // turns RUN/checkpoints/step-… into RUN

// Reads the configuration in a run's folder. The caller frees *out, after errors, too.
mezzo_status mz_run_folder_config(const char *folder, mezzo_config **out);

// Warns where a run's metrics.jsonl differs from what its newest checkpoint records.
mezzo_status mz_run_folder_check(const char *folder);

#endif
