// Compares the records of metrics.jsonl with the ones that an audit computes.
#ifndef MZ_TRAIN_AUDIT_RECORDS_H
#define MZ_TRAIN_AUDIT_RECORDS_H

#include "io/record.h"

enum { MZ_RECORDED_LOSSES = 4096 };

typedef struct mz_recorded_value {
    char *name, *text; // owned; text: of a text
    mz_metric value;
    bool seen; // computed, too
} mz_recorded_value;

typedef struct mz_recorded_loss {
    int64_t step;
    double saved, here;
} mz_recorded_loss;

// Holds the records of one interval. The records of a step are read before it is computed, and compared after it.
typedef struct mz_records {
    mz_lines *lines; // NULL: there is no such file
    mz_record ahead; // the next record
    bool has_ahead;
    int64_t wrong_line; // the first of the interval that is no record, from 1; 0: none
    int64_t line;
    mz_recorded_value *values; // of the step under way
    size_t n, cap;
    bool skips_validation; // its data is another
    bool skips_samples;    // values that rank 0 takes from its own micro batches, where it had others
    bool whole;            // this version wrote them: no value that is computed is missing
    int64_t step;
    int64_t compared, steps, differing;
    int64_t first_recorded; // step; 0: none yet
    struct {                // the first difference
        int64_t step;
        char name[160], saved[48], here[48];
    } first;
    mz_recorded_loss losses[MZ_RECORDED_LOSSES]; // the first ones
    int n_losses;
} mz_records;

// Records of FOLDER/metrics.jsonl from step `from` + 1 on. Free with mz_records_close also after an error.
mezzo_status mz_records_open(const char *folder, int64_t from, mz_records *out);
void mz_records_close(mz_records *records);
mezzo_status mz_records_take(mz_records *records, int64_t step); // the step's
bool mz_records_have(const mz_records *records, const char *name);
// Compares a computed record: a mz_metrics_fn. A record that the step has not at all is skipped, and so is what is
// measured, counted since the start of a process, or sampled over several records.
mezzo_status mz_records_compare(void *records, int64_t step, const mz_metric *values, size_t count);
// A record that is never computed differs too.
void mz_records_finish(mz_records *records);

// --- rollbacks, of guard.jsonl ---
enum { MZ_ROLLBACKS = 64 };
typedef struct mz_rollback {
    int64_t to;    // the run went back to the state after this step,
    int times;     // so often,
    int64_t steps; // the steps whose data it skipped
} mz_rollback;
// The guard's rollbacks after step `from` that together passed over the data of `passed` steps, of a run with a
// checkpoint each `every` steps; none where no consecutive ones do.
mezzo_status mz_rollbacks_find(const char *folder, int64_t from, int64_t every, int64_t passed,
                               mz_rollback list[MZ_ROLLBACKS], int *n);

#endif
