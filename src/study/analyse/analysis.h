// Analyses a study's pairs: speedup by width and tokens per step, where it crosses 1, what changes it, which rule to
// follow.
#ifndef MZ_STUDY_ANALYSIS_H
#define MZ_STUDY_ANALYSIS_H

#include "study/analyse/pairs.h"
#include "study/analyse/rules.h"
#include "study/analyse/stats.h"

typedef struct mz_curve_point { // the pairs of one width and one number of tokens per step
    int64_t tokens;
    mz_summary speedup;
    mz_interval interval;      // 95 %, of the median speedup, from what mz_curve.noise names; NaN where that is nothing
    mz_summary memory, energy; // savings in per cent; n = 0 where no pair knows it
} mz_curve_point;

// Names the repeated measurements that an interval is computed from.
typedef enum mz_noise {
    MZ_NOISE_UNKNOWN, // one pair a point and no repeated timings: there are no intervals
    MZ_NOISE_TIMING,  // the timed steps of each row; one pair a point says nothing of other shapes
    MZ_NOISE_SHAPES,  // the pairs of each point, and timed steps where rows have them
} mz_noise;

typedef struct mz_crossing {
    double tokens;        // where the median's line crosses 1, straight in ln(tokens) and ln(speedup)
    bool up;              // from below 1 to above with more tokens
    mz_interval interval; // 95 %; NaN where the noise is not known
} mz_crossing;

#define MZ_CROSSINGS_MAX 16
typedef struct mz_curve { // one width
    int64_t d_model;
    mz_curve_point *points; // ascending tokens
    size_t n, cap;
    mz_noise noise;
    mz_crossing crossings[MZ_CROSSINGS_MAX]; // those between a point that is below 1 and one that is above, both beyond
                                             // their noise
    int n_crossings;
    int n_open;         // further crossings of the line, which are within the noise
    double open_tokens; // the first of those
    mz_summary speedup;
    mz_sign_test sign;
} mz_curve;

// crossings.c: fills `noise`, the points' intervals and the crossings of a curve whose points are summarized. pairs[n]:
// its pairs, ascending tokens. Draws are made from `seed`, in streams from `stream` on.
mezzo_status mz_curve_crossings(mz_curve *curve, const mz_pair *pairs, size_t n, int draws, double level, uint64_t seed,
                                uint32_t stream);

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
