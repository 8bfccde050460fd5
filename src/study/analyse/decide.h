// Chooses a precision for doctor, advise, `train --precision auto` and rules: the fastest that passes the numeric
// check, with the time and memory that the others would cost or save, and the reason.
#ifndef MZ_STUDY_DECIDE_H
#define MZ_STUDY_DECIDE_H

#include "base/base.h"

typedef struct mz_option {
    const char *name; // as --precision accepts it
    double seconds;   // of a step, or a measure in proportion to that; NaN: not timed
    double memory;    // bytes, or a measure in proportion to them; NaN: not known
    bool native;      // the device has arithmetic for it
    bool passed;      // it passed the numeric check
    const char *note; // why it was not timed or did not pass; "" otherwise
} mz_option;

typedef struct mz_decision {
    int chosen;       // -1: no option passed
    char reason[900]; // "bf16: …", one line
} mz_decision;

#define MZ_DECIDE_TIE 0.02 // the least gain in time for which a narrower format is chosen

// Decides among options from the widest to the narrowest. Of those that passed and are within MZ_DECIDE_TIE of the
// fastest, it chooses the widest; where none was timed, the first that passed. `unit`: that of options[].seconds, in
// ms, after "12.9 " ("ms/step"); NULL: only ratios are printed.
void mz_decide(const mz_option *options, int n, const char *unit, mz_decision *out);
// Compares an option with the chosen one: "fp32 takes 1.79 x the time and 1.12 x the memory". Returns false where
// nothing is known of it.
bool mz_option_text(const mz_option *option, const mz_option *chosen, char *buf, size_t size);

#endif
