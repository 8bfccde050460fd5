// Chooses a precision for a workload by timing it: the fastest that fits and passes a numeric guard.
#ifndef MZ_STUDY_CHOOSE_H
#define MZ_STUDY_CHOOSE_H

#include <jansson.h>

#include "study/measure/measure.h"

typedef struct mz_candidate {
    mezzo_precision precision;  // as it runs
    bool native, timed, passed; // native: the device has arithmetic for it; passed: by the guard
    double step_seconds;        // median; NaN where it was not timed
    double tokens_per_second, loss;
    double gradient_error; // of the first micro batch, relative to the widest candidate's; NaN where it was not
                           // compared
    size_t memory;         // planned bytes of `mezzo train`
    char note[256];        // why it was not timed or did not pass; "" otherwise
} mz_candidate;

typedef struct mz_choice {
    mezzo_precision precision;
    mz_candidate candidates[MEZZO_PRECISION_COUNT]; // from the widest to the narrowest
    int n;
    double speedup;   // of the chosen one over fp32; NaN where fp32 was not timed
    char reason[900]; // one line, which mz_decide writes
} mz_choice;

typedef struct mz_choose_options {
    mz_session_options session;        // its precision is ignored
    const mezzo_precision *precisions; // NULL: those that mz_choose_usual selects
    int n_precisions;
    double gradient_within; // the guard's bound for 8-bit candidates
    double seconds;         // the most that a candidate's timed steps may take, but at least one step is timed
    int iters;              // the most timed steps
    size_t memory;          // bytes that may be used; 0: the free memory
    const volatile sig_atomic_t *stop;
    void (*tell)(void *user, const mz_candidate *candidate); // called after a candidate was tried; may be NULL
    void *user;
} mz_choose_options;
mz_choose_options mz_choose_defaults(void); // 1 s, 10 steps, the guard's bound; all else is empty

// Returns whether mz_choose tries a precision where no list is given: FP32, and those whose arithmetic the device has;
// 8-bit ones only where they are faster. It returns false on a device that emulates the precision; *note then has the
// reason, or "".
bool mz_choose_usual(const mezzo_device_info *info, mezzo_precision precision, const char **note);
// mz_choose_guard checks a candidate: after the same first steps on the same tokens, every loss is finite, the last
// step was taken, and the loss is within 1 % of the widest candidate's; the gradient of an 8-bit candidate's first
// micro batch, too, differs by at most `gradient_within` of the widest candidate's. mz_choose then chooses by
// mz_decide. Where the device runs one precision natively and no list is given, nothing is timed. MEZZO_ERR_MEMORY:
// none fits; NUMERIC: none passes.
bool mz_choose_guard(mz_candidate *c, const mz_choose_options *options, const mz_rig_state *state,
                     double reference); // reference NaN: it is the first candidate
mezzo_status mz_choose(mezzo_device *device, const mz_choose_options *options, mz_choice *out);
// Chooses for a GPT-2 of 2 layers and a size that suits such a device, to show what to expect here where no model is
// given.
mezzo_status mz_choose_for_device(mezzo_device *device, const volatile sig_atomic_t *stop, mz_choice *out);

void mz_choice_table(const mz_choice *c, const char *unit, int columns, mz_text *t); // of candidates; unit: of speeds
json_t *mz_choice_json(const mz_choice *c);

#endif
