// Writes TensorBoard event files: TFRecord frames with masked CRC32C around tensorflow.Event messages.
#ifndef MZ_IO_TFEVENTS_H
#define MZ_IO_TFEVENTS_H

#include "base/base.h"

typedef struct mz_tfevents mz_tfevents;

// Makes "events.out.tfevents.<seconds>.mezzo.<n>" in an existing folder; a run that goes on makes a new file beside the
// old ones, as TensorBoard expects. resume_step ≥ 0: says to TensorBoard that the run went on after that step, so that
// it forgets what the earlier files have for later steps. -1: a fresh run. MEZZO_ERR_IO names the file.
mezzo_status mz_tfevents_open(const char *folder, int64_t resume_step, mz_tfevents **out);
void mz_tfevents_close(mz_tfevents *events); // NULL is fine

// Collect values, then write them as one event of a step, with one write: a crash leaves whole records and at most one
// torn at the end, which readers skip. Tags are UTF-8, "group/name".
void mz_tfevents_add_scalar(mz_tfevents *events, const char *tag, double value); // stored as float32
void mz_tfevents_add_text(mz_tfevents *events, const char *tag, const char *text);
// Counts of numbers already sorted into n buckets of equal width: counts[i] of those in (edges[i] - width, edges[i]],
// width being the distance of neighbouring edges. Mean and deviation are those of the buckets' middles. Empty buckets
// at both ends are left out.
void mz_tfevents_add_counts(mz_tfevents *events, const char *tag, const double *edges, const double *counts, size_t n);
mezzo_status mz_tfevents_write(mz_tfevents *events, int64_t step); // nothing collected: nothing written
mezzo_status mz_tfevents_sync(mz_tfevents *events);

#endif
