// Compares the records of metrics.jsonl with the ones that an audit computes.
#ifndef MZ_TRAIN_AUDIT_RECORDS_H
#define MZ_TRAIN_AUDIT_RECORDS_H

#include "io/record.h"

enum { MZ_RECORDED_LOSSES = 4096 };

typedef struct mz_recorded_value {
    char *name, *text; // owned by the record; text: where the value is one
    mz_metric value;
    bool seen; // the audit has computed it, too
} mz_recorded_value;

typedef struct mz_recorded_loss {
    int64_t step;
    double saved, here;
} mz_recorded_loss;

// Holds the records of one interval. The records of a step are read before it is computed, and compared after it.
typedef struct mz_records {
    mz_lines *lines; // NULL: the file does not exist
    mz_record ahead; // the next record
    bool has_ahead;
    int64_t wrong_line; // the interval's first line that is no record, from 1; 0: none
    int64_t line;
    mz_recorded_value *values; // of the present step
    size_t n, cap;
    bool skips_validation; // the run's validation data are not those of the audit
    bool skips_samples;    // values that rank 0 takes from its own micro batches are skipped, where it had other ones
    bool whole;            // this version wrote the records, so no computed value may be missing
    int64_t step;
    int64_t compared, steps, differing;
    int64_t first_recorded; // the first step with a record; 0: none yet
    struct {                // the first difference
        int64_t step;
        char name[160], saved[48], here[48];
    } first;
    mz_recorded_loss losses[MZ_RECORDED_LOSSES]; // the first losses of the interval
    int n_losses;
} mz_records;

// Opens the records of FOLDER/metrics.jsonl from step `from` + 1 on. Free with mz_records_close after an error, too.
mezzo_status mz_records_open(const char *folder, int64_t from, mz_records *out);
void mz_records_close(mz_records *records);
mezzo_status mz_records_take(mz_records *records, int64_t step); // reads the step's records
bool mz_records_have(const mz_records *records, const char *name);
// Compares a computed record (it is a mz_metrics_fn). It skips a step without any record, and values that are measured,
// counted since the start of a process, or sampled over several records.
mezzo_status mz_records_compare(void *records, int64_t step, const mz_metric *values, size_t count);
// Finishes the interval: a record that the audit never computed is a difference, too.
void mz_records_finish(mz_records *records);

// --- rollbacks, of guard.jsonl ---
enum { MZ_ROLLBACKS = 64 };
typedef struct mz_rollback {
    int64_t to;    // the run went back to the state after this step
    int times;     // this number of times
    int64_t steps; // number of steps whose data it skipped
} mz_rollback;
// Finds the guard's rollbacks after step `from` that together skipped the data of `passed` steps, in a run with a
// checkpoint each `every` steps; none where no consecutive ones do.
mezzo_status mz_rollbacks_find(const char *folder, int64_t from, int64_t every, int64_t passed,
                               mz_rollback list[MZ_ROLLBACKS], int *n);

#endif
