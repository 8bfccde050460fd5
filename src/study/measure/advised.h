// Recommends a precision for a model and its data, with its speedup at equal quality and an interval. It chooses by
// timing (choose.h), compares the choice with fp32 at equal quality (verify.h), and times the changes that would lead
// to another choice.
#ifndef MZ_STUDY_ADVISED_H
#define MZ_STUDY_ADVISED_H

#include "study/measure/choose.h"
#include "study/measure/verify.h"

typedef struct mz_advised_options {
    mezzo_config *config;              // with model, data, optimizer and device; train.steps is set
    const mezzo_precision *precisions; // NULL: those that mz_choose_usual selects
    int n_precisions;
    int64_t steps;  // of a run; fewer, and at least MZ_ADVISED_STEPS, where three pairs of runs would take longer than
                    // `minutes`
    double minutes; // the most that the comparison may take
    double level, within;
    const volatile sig_atomic_t *stop; // may be NULL
    void (*tell_candidate)(void *user, const mz_candidate *candidate);
    mz_verify_fn tell;
    void *user;
} mz_advised_options;
#define MZ_ADVISED_STEPS 30

// Holds the candidate's speedup where one property differs.
typedef struct mz_advised_change {
    const char *what; // "batch", "width"
    int64_t value;
    mz_measured speedup; // raw, with the interval of the timed steps; NaN where `note` has the reason
    char note[160];
} mz_advised_change;

typedef struct mz_advised {
    mz_choice choice;                    // the choice by timing
    mezzo_precision baseline, candidate; // equal where there is nothing to compare
    bool decided;
    mezzo_precision precision;  // once it is decided
    char verdict[640];          // a sentence
    mz_verify_result *compared; // NULL: there is nothing to compare
    mz_verify_options as;       // the options of the comparison
    size_t memory[2];           // planned bytes of training: baseline, candidate
    mz_energy energy[2];        // of one step
    mz_advised_change changes[4];
    int n_changes;
} mz_advised;

// Finds a recommendation. Errors as mz_choose and mz_verify. The caller frees *out with mz_advised_free after any
// outcome.
mezzo_status mz_advised_find(const mz_advised_options *options, mz_advised *out);
void mz_advised_free(mz_advised *answer);

// Returns precision, speed, memory, loss, energy and what would change the choice, in this order. The caller prints the
// verdict's sentence.
json_t *mz_advised_json(const mz_advised *a); // NULL: out of memory
void mz_advised_text(const mz_advised *a, mz_text *out);

#endif
