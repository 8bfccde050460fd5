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
    int64_t integer; // of an integer or truth value
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

// Opens FOLDER/`file`, metrics.jsonl (the folder exists), and, with `tensorboard`, a new event file. resume_step -1: a
// new run; MEZZO_ERR_INVALID where the file has records already. resume_step S ≥ 0: records of later steps, and an end
// that a crash truncated or zeroed, are removed first, so that the file is that of a run that never stopped. An earlier
// line that is not a record stays. MEZZO_ERR_IO names the file.
mezzo_status mz_metrics_open(const char *folder, const char *file, int64_t resume_step, bool tensorboard,
                             mz_metrics **out);
// Receives the records instead of a file.
typedef mezzo_status (*mz_metrics_fn)(void *user, int64_t step, const mz_metric *values, size_t count);
mezzo_status mz_metrics_open_to(mz_metrics_fn take, void *user, mz_metrics **out);
void mz_metrics_close(mz_metrics *metrics); // NULL is allowed

// Writes one record, {"step": N, "NAME": VALUE, …}, with one write. Numbers have the shortest form that reads back
// exactly; JSON has no infinities, so those are the strings "NaN", "Infinity", "-Infinity". TensorBoard gets numbers,
// integers and truth values as scalars, and a text when it is new or has changed.
mezzo_status mz_metrics_write(mz_metrics *metrics, int64_t step, const mz_metric *values, size_t count);
// Collects counts by bucket (mz_tfevents_add_counts), which go to TensorBoard alone as one event; without TensorBoard
// it does nothing.
mezzo_status mz_metrics_add_counts(mz_metrics *metrics, const char *name, const double *edges, const double *counts,
                                   size_t n);
mezzo_status mz_metrics_write_counts(mz_metrics *metrics, int64_t step);
mezzo_status mz_metrics_sync(mz_metrics *metrics);        // flushes to the disk, before a checkpoint names the step
mz_written mz_metrics_written(const mz_metrics *metrics); // size and checksum of metrics.jsonl now
// Finds out whether FOLDER/metrics.jsonl begins with these bytes; it does not ask for 0 bytes.
mezzo_status mz_metrics_match(const char *folder, mz_written was, bool *same);
// Warns where it does not begin with what it was when step `at` was saved.
mezzo_status mz_metrics_check(const char *folder, mz_written was, int64_t at);

#endif
