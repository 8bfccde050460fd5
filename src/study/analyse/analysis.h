// What a study's pairs say: speedup by width and tokens per step, where it crosses 1, what moves it, which rule to
// follow.
#ifndef MZ_STUDY_ANALYSIS_H
#define MZ_STUDY_ANALYSIS_H

#include "study/analyse/pairs.h"
#include "study/analyse/rules.h"
#include "study/analyse/stats.h"

typedef struct mz_curve_point { // the pairs of one width and one number of tokens per step
    int64_t tokens;
    mz_summary speedup;
    mz_summary error;          // relative standard errors of the speedups, by their timings
    mz_summary memory, energy; // savings in per cent; n = 0 where no pair knows it, as of the errors
} mz_curve_point;

typedef struct mz_crossing {
    double tokens;        // where the median's line crosses 1, straight in ln(tokens) and ln(speedup)
    bool up;              // from below 1 to above with more tokens
    mz_interval interval; // 95 %, of the draws that cross in this direction; NaN where none does
    double share;         // of the draws that do
} mz_crossing;

#define MZ_CROSSINGS_MAX 16
typedef struct mz_curve { // one width
    int64_t d_model;
    mz_curve_point *points; // ascending tokens
    size_t n, cap;
    mz_crossing crossings[MZ_CROSSINGS_MAX];
    int n_crossings;
    mz_summary speedup;
    mz_sign_test sign;
} mz_curve;

#define MZ_EFFECTS 5
typedef struct mz_effects { // ln(speedup) ≈ intercept + layers + d_model + ln bs + ln seqlen
    bool fitted;
    mz_ols fit;
    const char *names[MZ_EFFECTS]; // of the columns of the fit
    char note[200];                // what was left out, or why nothing was fitted; "" if nothing
} mz_effects;

typedef struct mz_analysis {
    const mz_study *study; // borrowed
    int draws;
    uint64_t seed;
    mz_summary speedup;
    mz_interval median_interval; // bootstrap, 95 %
    mz_sign_test sign;
    mz_curve *curves; // ascending width
    size_t n_curves, cap_curves;
    mz_effects effects;
    mz_rules rules;
    mz_score rule, rule_cv, always_candidate, always_baseline, published;
    bool rules_lose; // rules a width do worse than a constant, cross-validated (or there are too few shapes): `rules`
                     // is the constant
    int folds;
} mz_analysis;

// Borrows `study` until mz_analysis_free. draws ≥ 100 for the bootstrap, drawn from `seed`.
mezzo_status mz_analyze(const mz_study *study, int draws, uint64_t seed, mz_analysis *out);
void mz_analysis_free(mz_analysis *analysis); // zeroed is fine

// report.c
mezzo_status mz_analysis_save_summary(const mz_analysis *a, const char *path); // summary.json
mezzo_status mz_analysis_save_report(const mz_analysis *a, const char *path);  // report.md
mezzo_status mz_analysis_text(const mz_analysis *a, mz_text *out);             // the two answers, for a terminal

#endif
