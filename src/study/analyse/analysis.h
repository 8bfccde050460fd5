// Analyses a study's pairs: speedup by width and tokens per step, where it crosses 1, what changes it, which rule to
// follow.
#ifndef MZ_STUDY_ANALYSIS_H
#define MZ_STUDY_ANALYSIS_H

#include "study/analyse/pairs.h"
#include "study/analyse/rules.h"
#include "study/analyse/stats.h"

typedef struct mz_curve_point { // all pairs of one width and one number of tokens per step
    int64_t tokens;
    mz_summary speedup;
    mz_interval interval;      // 95 %, of the median speedup, from the source that mz_curve.noise names; NaN without
                               // one
    mz_summary memory, energy; // savings in per cent; n = 0 where no pair has the value
} mz_curve_point;

// Names the repeated measurements from which an interval is computed.
typedef enum mz_noise {
    MZ_NOISE_UNKNOWN, // one pair a point and no repeated timings, so there are no intervals
    MZ_NOISE_TIMING,  // the timed steps of each row; with one pair a point other shapes are not known
    MZ_NOISE_SHAPES,  // the pairs of each point, and timed steps where rows have them
} mz_noise;

typedef struct mz_crossing {
    double tokens;        // where the line of the medians crosses 1, straight in ln(tokens) and ln(speedup)
    bool up;              // it goes from below 1 to above with more tokens
    mz_interval interval; // 95 %; NaN where the noise is not known
} mz_crossing;

#define MZ_CROSSINGS_MAX 16
typedef struct mz_curve { // the curve of one width
    int64_t d_model;
    mz_curve_point *points; // in ascending order of tokens
    size_t n, cap;
    mz_noise noise;
    mz_crossing crossings[MZ_CROSSINGS_MAX]; // between a point below 1 and one above, both by more than their noise
    int n_crossings;
    int n_open;         // further crossings of the line, within the noise
    double open_tokens; // tokens at the first of those
    mz_summary speedup;
    mz_sign_test sign;
} mz_curve;

// Fills `noise`, the points' intervals and the crossings of a curve whose points are summarized (crossings.c).
// pairs[n]: its pairs, ascending by tokens. Draws use `seed`, in streams from `stream` on.
mezzo_status mz_curve_crossings(mz_curve *curve, const mz_pair *pairs, size_t n, int draws, double level, uint64_t seed,
                                uint32_t stream);

#define MZ_EFFECTS 5
typedef struct mz_effects { // of the fit ln(speedup) ≈ intercept + layers + d_model + ln bs + ln seqlen
    bool fitted;
    mz_ols fit;
    const char *names[MZ_EFFECTS]; // the columns of the fit
    char note[200];                // what was left out, or why there is no fit; "" otherwise
} mz_effects;

typedef struct mz_analysis {
    const mz_study *study; // borrowed
    int draws;
    uint64_t seed;
    mz_summary speedup;
    mz_interval median_interval; // bootstrap, 95 %
    mz_sign_test sign;
    mz_curve *curves; // in ascending order of width
    size_t n_curves, cap_curves;
    mz_effects effects;
    mz_rules rules;
    mz_score rule, rule_cv, always_candidate, always_baseline, published;
    bool rules_lose; // rules by width are worse than a constant under cross-validation (or there are too few shapes),
                     // so `rules` is the constant
    int folds;
} mz_analysis;

// Analyzes a study, which is borrowed until mz_analysis_free. draws ≥ 100, for the bootstrap, use `seed`.
mezzo_status mz_analyze(const mz_study *study, int draws, uint64_t seed, mz_analysis *out);
void mz_analysis_free(mz_analysis *analysis); // a zeroed one is allowed

// report.c
mezzo_status mz_analysis_save_summary(const mz_analysis *a, const char *path); // writes summary.json
mezzo_status mz_analysis_save_report(const mz_analysis *a, const char *path);  // writes report.md
mezzo_status mz_analysis_text(const mz_analysis *a, mz_text *out);             // writes both answers as text

#endif
