// Finds run folders and the checkpoints in them from what a user names.
#ifndef MZ_TRAIN_FOLDER_H
#define MZ_TRAIN_FOLDER_H

#include "checkpoint/checkpoint.h"
#include "mezzo/train.h"

// A checkpoint's folder, from a run folder, its checkpoints/, or one checkpoint: the newest, or the best one. `parts`:
// MZ_CHECKPOINT_…, what will be read of it. INVALID where there is none.
mezzo_status mz_find_checkpoint(const char *path, bool best, int parts, char *out, size_t size);
mezzo_status mz_run_folder(const char *checkpoint, char *out, size_t size); // RUN/checkpoints/step-… → RUN

// The configuration in a run's folder. The caller frees *out, also after errors.
mezzo_status mz_run_folder_config(const char *folder, mezzo_config **out);

// Warns where a run's metrics.jsonl is not what its newest checkpoint remembers.
mezzo_status mz_run_folder_check(const char *folder);

#endif
