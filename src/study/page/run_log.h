// Reads the numbers of a run folder from its metrics.jsonl, for report and watch. It can read a run that is still
// writing repeatedly: only new lines are read, or all where the file was truncated, as by a rollback. Memory does not
// grow with the file: the reader keeps stretches of a long metric, and some lines of a long list of texts.
#ifndef MZ_STUDY_RUN_LOG_H
#define MZ_STUDY_RUN_LOG_H

#include <signal.h>

#include "io/record.h"
#include "train/health.h"

enum { MZ_STRETCHES_MAX = 4096, MZ_TEXTS_MAX = 128, MZ_SERIES_MAX = 4096 };

typedef struct mz_stretch { // summarizes consecutive values of a metric
    int64_t step;           // of the first value
    double first;
    int64_t low_step, high_step; // where the lowest and the highest first occurred
    double low, high;            // both are a value that is not finite, where there is one
    double sum;                  // of the finite values
    int64_t count, finite;
} mz_stretch;

// Holds one metric over the steps. Up to MZ_STRETCHES_MAX values each is a stretch of its own, and every query is
// exact; beyond that, stretches are joined in pairs, and `each` is the next power of two.
typedef struct mz_series {
    char *name; // "train/loss"
    mz_stretch *stretches;
    size_t n, cap; // stretches
    int64_t count; // number of values
    int64_t each;  // values in every stretch but the last
    int64_t last_step;
    double last, least; // least: of the finite values; NaN: none
} mz_series;

typedef struct mz_run_text {
    int64_t step;
    char *text;
} mz_run_text;

typedef struct mz_run_texts { // texts of one name, in the order written; of equal ones in a row only the first
    char *name;               // "sample/text"
    mz_run_text *items;       // with more than MZ_TEXTS_MAX texts, every second, fourth … one, and always the last
    size_t n, cap;
    int64_t count, each; // number of texts written; every `each`-th of them is kept
} mz_run_texts;

typedef struct mz_run_log {
    char *folder;
    mz_series *series;
    size_t n_series, cap_series, next; // next: where the search for the next name starts
    mz_run_texts *texts;
    size_t n_texts, cap_texts;
    uint64_t offset;     // bytes of the file that were read
    char tail[64];       // the end of the last line read, without its newline
    size_t n_tail;       // 0: that line was skipped, or is empty
    int64_t last_step;   // -1: none yet
    int64_t lines;       // number of lines read
    int64_t records;     // number of records among them
    int64_t bad;         // number of lines that are no records, and of impossible values in records
    char first_bad[400]; // "metrics.jsonl:3: key 'amp/precision': …"; "" where there is none
    double step_seconds; // time spent in steps up to timed_step: perf/step_ms of each record times the steps that it
                         // covers
    int64_t timed_step;
    mz_health health;
} mz_run_log;

// mz_run_log_read reads the complete lines that were added since or, where the earlier ones are gone, all of them. The
// folder must exist; a missing file adds nothing. An incomplete last line waits for its end. Any other line that is no
// record, and a value that is impossible for its key, is left out and counted; the first is reported in `first_bad`.
// mz_work reports long reading; *stop (NULL: never) ends it with INTERRUPTED.
mezzo_status mz_run_log_open(const char *folder, const volatile sig_atomic_t *stop,
                             mz_run_log *out); // opens it and reads
mezzo_status mz_run_log_read(mz_run_log *log, const volatile sig_atomic_t *stop);
// Opens a log and reads only the records within the last `bytes` of a long file, which shows the newest values while
// all of it is read.
mezzo_status mz_run_log_open_tail(const char *folder, uint64_t bytes, mz_run_log *out);
void mz_run_log_free(mz_run_log *log); // also after an open that failed

const mz_series *mz_run_log_find(const mz_run_log *log, const char *name);     // NULL: there is none
const mz_run_texts *mz_run_log_texts(const mz_run_log *log, const char *name); // NULL: there is none
const char *mz_run_log_unit(const mz_run_log *log); // the unit of throughput: "tokens", "examples" or "images"
const char *mz_run_log_text(const mz_run_log *log, const char *name); // the last one; NULL: there is none

mezzo_status mz_series_add(mz_series *series, int64_t step, double value); // a zeroed series is empty
void mz_series_free(mz_series *series);
double mz_series_last(const mz_series *series);             // NaN: the series is NULL or empty
double mz_series_least(const mz_series *series);            // of the finite values; NaN: none
double mz_series_at(const mz_series *series, int64_t step); // NaN: no value is kept for this step
// Returns the mean of the last tenth (at least one value) of the finite values up to a step; NaN: none.
double mz_series_end(const mz_series *series, int64_t up_to);
// Returns the median of the finite values, or of the stretches' first values; NaN: none.
mezzo_status mz_series_middle(const mz_series *series, double *out);
// Returns the last step at which both have a finite value; -1: none.
int64_t mz_series_last_common(const mz_series *a, const mz_series *b);
// Adds a − b, at the steps that begin stretches of both, to an empty series.
mezzo_status mz_series_subtract(const mz_series *a, const mz_series *b, mz_series *out);

typedef struct mz_point {
    int64_t step;
    double value;
} mz_point;
// Finds at most 2 · buckets + 2 points that draw the same line, ascending: all, or the lowest and the highest of each
// bucket, and always the first and the last value. Returns their number.
size_t mz_series_thin(const mz_series *series, size_t buckets, mz_point *points);

// --- their page (run_page.c) ---------------------------------------------------------------------------------------
// Writes one self-contained HTML page: curves, samples, configuration, and the precision of every op of logs[0 … n),
// drawn by the charting library that the build found. Curves of more than 2,000 points are thinned without a visible
// difference. UNSUPPORTED: the build found no charting library; MEMORY. The caller frees *html with mz_text_free.
mezzo_status mz_run_page(const mz_run_log *logs, int n, const char *title, mz_text *html);

#endif
