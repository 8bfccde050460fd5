// The numbers of a run folder, read back from its metrics.jsonl: for report and watch. A run that is still writing can
// be read again and again: only what was added is read, or all of it where the file was cut back, as a rollback does.
#ifndef MZ_STUDY_RUN_LOG_H
#define MZ_STUDY_RUN_LOG_H

#include "base/base.h"

// One metric over the steps. Values that are not finite are in it.
typedef struct mz_series {
    char *name; // "train/loss"
    int64_t *steps;
    double *values;
    size_t n, cap_steps, cap_values;
} mz_series;

typedef struct mz_run_text {
    int64_t step;
    char *name; // "sample/text"
    char *text;
} mz_run_text;

typedef struct mz_run_log {
    char *folder;
    mz_series *series;
    size_t n_series, cap_series;
    mz_run_text *texts; // in the order written; of a name that repeats only the changes
    size_t n_texts, cap_texts;
    uint64_t offset;                       // bytes of the file that are read
    char tail[64];                         // the end of their last line, without its newline
    size_t n_tail;                         // 0: that line was passed over, or is empty
    int64_t last_step;                     // -1: nothing yet
    int64_t records, bad_lines, first_bad; // first_bad: the line, from 1, of the first bad one
} mz_run_log;

// Reads the whole lines that were added since, or where what was read is not there any more, all of them. The folder
// must exist; a file that is not there yet adds nothing. The torn last line of a crash waits for its end; any other
// line that is no record is passed over and counted.
mezzo_status mz_run_log_open(const char *folder, mz_run_log *out); // and reads; free it in either case
mezzo_status mz_run_log_read(mz_run_log *log);
void mz_run_log_free(mz_run_log *log);

const mz_series *mz_run_log_find(const mz_run_log *log, const char *name); // NULL: not there
const char *mz_run_log_text(const mz_run_log *log, const char *name);      // the last one; NULL: not there
double mz_series_last(const mz_series *series);                            // NaN: NULL or empty
double mz_series_least(const mz_series *series);                           // of the finite ones; NaN: none
// Mean of the last tenth (one value at least) of the finite values; NaN: none.
double mz_series_end(const mz_series *series);
mezzo_status mz_series_middle(const mz_series *series, double *out); // median of the finite values; NaN: none
// At most 2 · buckets points that draw the same line: of each stretch of steps the lowest and the highest, in order,
// and always the first and the last. picks[] (room for 2 · buckets + 2) gets indices, ascending; returns how many.
size_t mz_series_thin(const mz_series *series, size_t buckets, size_t *picks);

#endif
