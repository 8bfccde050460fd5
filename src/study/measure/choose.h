// Chooses a precision for a workload by timing it: the fastest that fits and passes a numeric guard.
#ifndef MZ_STUDY_CHOOSE_H
#define MZ_STUDY_CHOOSE_H

#include "study/measure/measure.h"

typedef struct mz_candidate {
    mezzo_precision precision;  // as it runs
    bool native, timed, passed; // native: the device has arithmetic for it; passed: the guard
    double step_seconds;        // median; NaN where it was not timed
    double tokens_per_second, loss;
    double gradient_error; // of the first micro batch, beside the widest candidate's; NaN where it was not compared
    size_t memory;         // bytes that `mezzo train` would take, as planned
    char note[256];        // why it was not timed or did not pass; "" if there is nothing to say
} mz_candidate;

typedef struct mz_choice {
    mezzo_precision precision;
    mz_candidate candidates[MEZZO_PRECISION_COUNT]; // from the widest to the narrowest
    int n;
    double speedup;   // of the chosen over fp32; NaN where fp32 was not timed
    char reason[900]; // one line, mz_decide's
} mz_choice;

typedef struct mz_choose_options {
    mz_session_options session;        // its precision is not inspected
    const mezzo_precision *precisions; // NULL: what mz_choose_usual names
    int n_precisions;
    double gradient_within; // the guard's, of 8-bit candidates
    double seconds;         // that the timed steps of a candidate may take, one step at least
    int iters;              // and how many they are at most
    size_t memory;          // bytes that may be used; 0: what is free
    const volatile sig_atomic_t *stop;
    void (*tell)(void *user, const mz_candidate *candidate); // one was tried; may be NULL
    void *user;
} mz_choose_options;
mz_choose_options mz_choose_defaults(void); // 1 s, 10 steps, the guard's bound; all else empty

// Returns whether mz_choose tries a precision where no list is given: FP32, and those whose arithmetic the device has,
// of 8 bits only where it is faster. false on a device that emulates it, *note is then why, or "" where nothing is to
// be said.
bool mz_choose_usual(const mezzo_device_info *info, mezzo_precision precision, const char **note);
// Checks a candidate: after the same first steps on the same tokens, every loss is finite, the last step was taken, and
// the loss is within 1 % of the widest candidate's; of an 8-bit candidate the gradient of the first micro batch is,
// too, off by at most `gradient_within` of the widest candidate's. mz_decide chooses. Where the device runs one
// precision natively and no list is given, nothing is timed. MEZZO_ERR_MEMORY: none fits; NUMERIC: none passes.
bool mz_choose_guard(mz_candidate *c, const mz_choose_options *options, const mz_rig_state *state,
                     double reference); // reference NaN: the first candidate
mezzo_status mz_choose(mezzo_device *device, const mz_choose_options *options, mz_choice *out);
// The same for a GPT-2 of 2 layers and of a size that such a device is used for: what to expect here, no model given.
mezzo_status mz_choose_for_device(mezzo_device *device, const volatile sig_atomic_t *stop, mz_choice *out);

#endif
