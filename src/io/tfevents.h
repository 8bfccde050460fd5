// Writes TensorBoard event files: TFRecord frames with masked CRC32C around tensorflow.Event messages.
#ifndef MZ_IO_TFEVENTS_H
#define MZ_IO_TFEVENTS_H

#include "base/base.h"

typedef struct mz_tfevents mz_tfevents;

// Makes "events.out.tfevents.<seconds>.mezzo.<n>" in an existing folder; a resumed run makes a new file beside the old
// ones, as TensorBoard expects. resume_step ≥ 0 makes TensorBoard drop what earlier files have for later steps. -1: a
// new run. MEZZO_ERR_IO names the file.
mezzo_status mz_tfevents_open(const char *folder, int64_t resume_step, mz_tfevents **out);
void mz_tfevents_close(mz_tfevents *events); // NULL is allowed

// Collect values, which mz_tfevents_write then writes as one event of a step, with one write: a crash leaves whole
// records and at most one incomplete record at the end, which readers skip. Tags are UTF-8, "group/name".
void mz_tfevents_add_scalar(mz_tfevents *events, const char *tag, double value); // stored as float32
void mz_tfevents_add_text(mz_tfevents *events, const char *tag, const char *text);
// Adds counts of numbers that are sorted into n buckets of equal width: counts[i] of those in (edges[i] - width,
// edges[i]], width being the distance of neighbouring edges. Mean and deviation are computed from the buckets' middles.
// Empty buckets at both ends are left out.
void mz_tfevents_add_counts(mz_tfevents *events, const char *tag, const double *edges, const double *counts, size_t n);
mezzo_status mz_tfevents_write(mz_tfevents *events, int64_t step); // writes nothing where no values were collected
mezzo_status mz_tfevents_sync(mz_tfevents *events);

#endif
