// Writes a run's numbers: metrics.jsonl, one JSON object a line, and TensorBoard events beside it.
#ifndef MZ_IO_METRICS_H
#define MZ_IO_METRICS_H

#include "base/base.h"
#include "io/file.h"

typedef enum mz_metric_kind { MZ_METRIC_NUMBER, MZ_METRIC_INT, MZ_METRIC_BOOL, MZ_METRIC_TEXT } mz_metric_kind;
typedef struct mz_metric {
    const char *name; // "train/loss"; UTF-8
    mz_metric_kind kind;
    double number;
    int64_t integer; // int, bool
    const char *text;
} mz_metric;

static inline mz_metric mz_metric_number(const char *name, double value) {
    return (mz_metric){.name = name, .kind = MZ_METRIC_NUMBER, .number = value};
}
static inline mz_metric mz_metric_int(const char *name, int64_t value) {
    return (mz_metric){.name = name, .kind = MZ_METRIC_INT, .integer = value};
}
static inline mz_metric mz_metric_bool(const char *name, bool value) {
    return (mz_metric){.name = name, .kind = MZ_METRIC_BOOL, .integer = value};
}
static inline mz_metric mz_metric_text(const char *name, const char *value) {
    return (mz_metric){.name = name, .kind = MZ_METRIC_TEXT, .text = value};
}

typedef struct mz_metrics mz_metrics;

// Opens FOLDER/`file`, metrics.jsonl (the folder exists), and, where `tensorboard`, a new event file. resume_step -1: a
// fresh run; MEZZO_ERR_INVALID where the file has records already. resume_step S ≥ 0: records of later steps and an end
// torn or zeroed by a crash are cut off first, so that the file becomes the one of a run that never stopped. A line
// before them that is not a record stays as it is. MEZZO_ERR_IO names the file.
mezzo_status mz_metrics_open(const char *folder, const char *file, int64_t resume_step, bool tensorboard,
                             mz_metrics **out);
// Records go to a function, and nothing is written.
typedef mezzo_status (*mz_metrics_fn)(void *user, int64_t step, const mz_metric *values, size_t count);
mezzo_status mz_metrics_open_to(mz_metrics_fn take, void *user, mz_metrics **out);
void mz_metrics_close(mz_metrics *metrics); // NULL is fine

// Writes one record, {"step": N, "NAME": VALUE, …}, written whole with one write. Numbers are the shortest that read
// back exactly; JSON has no infinities, so those are the strings "NaN", "Infinity", "-Infinity". TensorBoard gets
// numbers, integers and truth values as scalars, and a text when it is new or has changed.
mezzo_status mz_metrics_write(mz_metrics *metrics, int64_t step, const mz_metric *values, size_t count);
// Writes to TensorBoard only, and nothing without it. Counts by bucket (mz_tfevents_add_counts), collected and then
// written as one event.
mezzo_status mz_metrics_add_counts(mz_metrics *metrics, const char *name, const double *edges, const double *counts,
                                   size_t n);
mezzo_status mz_metrics_write_counts(mz_metrics *metrics, int64_t step);
mezzo_status mz_metrics_sync(mz_metrics *metrics);        // to the disk: before a checkpoint names the step
mz_written mz_metrics_written(const mz_metrics *metrics); // the whole of metrics.jsonl now
// Checks whether FOLDER/metrics.jsonl begins with these bytes; 0 bytes: not asked.
mezzo_status mz_metrics_match(const char *folder, mz_written was, bool *same);
// The same of what it was when step `at` was saved; else a warning.
mezzo_status mz_metrics_check(const char *folder, mz_written was, int64_t at);

#endif
