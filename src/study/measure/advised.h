// Recommends a precision for a model and its data, with its speedup at equal quality and an interval. It chooses by
// timing (choose.h), compares the choice with fp32 at equal quality (verify.h), and times the changes that would make
// another precision the choice.
#ifndef MZ_STUDY_ADVISED_H
#define MZ_STUDY_ADVISED_H

#include "study/measure/choose.h"
#include "study/measure/verify.h"

typedef struct mz_advised_options {
    mezzo_config *config;              // model, data, optimizer, device; train.steps is set
    const mezzo_precision *precisions; // NULL: what mz_choose_usual names
    int n_precisions;
    int64_t
        steps; // of a run; fewer, and at least MZ_ADVISED_STEPS, where three pairs of runs would not fit into minutes
    double minutes; // that the comparison may take
    double level, within;
    const volatile sig_atomic_t *stop; // may be NULL
    void (*tell_candidate)(void *user, const mz_candidate *candidate);
    mz_verify_fn tell;
    void *user;
} mz_advised_options;
#define MZ_ADVISED_STEPS 30

// The candidate's speedup where one thing differs.
typedef struct mz_advised_change {
    const char *what; // "batch", "width"
    int64_t value;
    mz_measured speedup; // raw, interval of the timed steps; NaN where `note` says why
    char note[160];
} mz_advised_change;

typedef struct mz_advised {
    mz_choice choice;                    // by timing
    mezzo_precision baseline, candidate; // the same where there is nothing to compare
    bool decided;
    mezzo_precision precision;  // where it is decided
    char verdict[640];          // a sentence
    mz_verify_result *compared; // NULL: nothing to compare
    mz_verify_options as;       // how it was compared
    size_t memory[2];           // bytes of training, planned: baseline, candidate
    mz_energy energy[2];        // of a step
    mz_advised_change changes[4];
    int n_changes;
} mz_advised;

// Errors as mz_choose and mz_verify. The caller frees *out, of any outcome, with mz_advised_free.
mezzo_status mz_advised_find(const mz_advised_options *options, mz_advised *out);
void mz_advised_free(mz_advised *answer);

// Precision, speed, memory, loss, energy, what would change it: in this order on each. The verdict's sentence is for
// the caller to print.
json_t *mz_advised_json(const mz_advised *a); // NULL: out of memory
void mz_advised_text(const mz_advised *a, mz_text *out);

#endif
