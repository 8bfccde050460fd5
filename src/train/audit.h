// Checks whether a run's folder holds what the run's configuration computes. The audit computes intervals between two
// checkpoints again from the earlier one, by the run's own steps, and compares every record of metrics.jsonl and the
// later checkpoint bit for bit. It writes nothing. docs/reliability.md describes it for users.
#ifndef MZ_TRAIN_AUDIT_H
#define MZ_TRAIN_AUDIT_H

#include <signal.h>

#include "io/json.h"
#include "mezzo/train.h"

enum { MZ_AUDIT_FINDINGS = 64 };

typedef enum mz_audit_verdict {
    MZ_AUDIT_CONFIRMED,
    MZ_AUDIT_DIFFERS,
    MZ_AUDIT_IN_BOUNDS,    // on another kind of device losses are within bounds, which confirms no step
    MZ_AUDIT_NOT_POSSIBLE, // a file or a fact that the audit needs is missing
} mz_audit_verdict;

typedef struct mz_run_audit_options {
    const char *run;                   // the run's folder
    int64_t intervals;                 // their number, at even distances from the newest on; 0: all
    const char *device;                // NULL: the run's device
    int threads;                       // 0: the run's number
    const volatile sig_atomic_t *stop; // may be NULL
} mz_run_audit_options;

// Holds the first difference of one kind in one interval, or what is missing.
typedef struct mz_run_finding {
    char kind[16];          // "file" "data" "key" "record" "weight" "moment" "average" "state" "step" "missing"
    bool missing;           // the audit lacks it; no difference is known
    int64_t from, to, step; // the interval, -1: of none; the step, -1: of none
    char place[240];        // a file, a key of a record or configuration, or a tensor
    char saved[48], here[48];
    char text[1000]; // one line of text
} mz_run_finding;

typedef struct mz_run_interval {
    int64_t from, to;         // the checkpoints' steps
    int64_t confirmed;        // the last step up to which all is confirmed; `from`: none
    int64_t values, records;  // compared numbers and texts, and records that hold them
    int tensors;              // compared tensors; state.json counts as one
    int64_t differing;        // how many of all these differ
    bool exact;               // this device and number of ranks compute the same bits as the run
    int64_t losses;           // not exact: number of losses that were compared with their bound
    double difference, bound; // not exact: of the loss that is nearest to its bound, or beyond it
    mz_audit_verdict verdict;
    const char *word; // the verdict's word
} mz_run_interval;

typedef struct mz_run_audit {
    mz_audit_verdict verdict;
    const char *word;
    char device[200], run_device[200]; // this device, and the newest checkpoint's; "": not known
    int rank, ranks, run_ranks;        // run_ranks 0: not known
    int checkpoints;
    mz_run_interval *intervals; // in order of steps
    int n_intervals;
    mz_run_finding findings[MZ_AUDIT_FINDINGS];
    int n_findings;
} mz_run_audit;

// Audits a run; all ranks of a job call it. A missing or wrong fact of the folder is a finding. Errors: INTERRUPTED,
// MEMORY, DEVICE, what the job fails with; IO: there is no such folder. The caller frees *out after an error, too.
mezzo_status mz_run_audit_find(const mz_run_audit_options *options, mz_run_audit *out);
void mz_run_audit_free(mz_run_audit *audit);
void mz_run_audit_text(const mz_run_audit *audit, int columns, mz_text *t);
json_t *mz_run_audit_json(const mz_run_audit *audit);

#endif
