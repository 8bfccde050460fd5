// Computes the statistics of a study: quantiles, percentile bootstrap, the exact sign test, ordinary least squares.
// Tests compare them with SciPy and NumPy (tests/golden/make/stats.py).
#ifndef MZ_STUDY_STATS_H
#define MZ_STUDY_STATS_H

#include "base/base.h"
#include "base/sort.h"

// Returns the p-quantile of n ≥ 1 numbers, 0 ≤ p ≤ 1, by linear interpolation between order statistics (Hyndman & Fan's
// type 7, the default of NumPy and R). `sorted` is ascending.
double mz_quantile(const double *sorted, size_t n, double p);
double mz_mean(const double *x, size_t n);
double mz_deviation(const double *x, size_t n); // of a sample, divided by n - 1; NaN for n < 2

typedef struct mz_summary {
    size_t n;
    double min, q1, median, q3, max, mean;
} mz_summary;
mezzo_status mz_summarize(const double *x, size_t n, mz_summary *out); // n is at least 1

// Draws indices with replacement: draw `draw` of a bootstrap of n elements, by Philox keyed with (seed, stream).
// out[n].
void mz_resample(uint64_t seed, uint32_t stream, uint32_t draw, size_t n, size_t *out);
// Makes a random order of 0 … n-1 (Fisher–Yates, same generator).
void mz_shuffle(uint64_t seed, uint32_t stream, size_t n, size_t *out);

typedef double (*mz_statistic)(double *x, size_t n, void *user); // it may reorder x
double mz_statistic_median(double *x, size_t n, void *user);
typedef struct mz_interval {
    double low, high;
} mz_interval;
// Computes a percentile bootstrap: the (1 ± level)/2 quantiles of the statistic over `draws` resamples of x. n ≥ 1,
// draws ≥ 1.
mezzo_status mz_bootstrap(const double *x, size_t n, mz_statistic statistic, void *user, int draws, double level,
                          uint64_t seed, uint32_t stream, mz_interval *out);

typedef struct mz_sign_test {
    int64_t wins, losses, ties; // ties count for neither side
    double p;                   // exact, two-sided; 1 without wins and losses; underflows to 0 below 1e-307
    double log10_p;
} mz_sign_test;
// Returns the probability of a split at least this uneven if both sides were equally likely: Binomial(wins + losses,
// 1/2).
mz_sign_test mz_sign(int64_t wins, int64_t losses, int64_t ties);

// Fits y ≈ X·beta by QR. x: [n, k] row-major, with a column of ones for an intercept. INVALID: n ≤ k, or dependent
// columns, naming the first one's index.
#define MZ_OLS_MAX 16
typedef struct mz_ols {
    size_t n, k;
    double beta[MZ_OLS_MAX], error[MZ_OLS_MAX]; // standard errors, sqrt(s²·diag((XᵀX)⁻¹)), s² = RSS/(n - k)
    double r2, sigma;                           // r2: 1 - RSS/TSS about the mean; sigma: s
} mz_ols;
mezzo_status mz_ols_fit(const double *x, const double *y, size_t n, size_t k, mz_ols *out);

// Fits y ≈ a + b·x through n ≥ 3 points; computes its value at x0, and the interval that contains one more observation
// there at `level`, ± t·s·√(1 + 1/n + (x0 - x̄)²/Σ(x - x̄)²). Errors as mz_ols_fit.
mezzo_status mz_line_predict(const double *x, const double *y, size_t n, double x0, double level, double *slope,
                             double *value, mz_interval *out);

// Returns Student's t: a variable with `df` ≥ 1 degrees of freedom is below it with probability p, 0.5 ≤ p < 1.
double mz_student(double p, double df);
// Returns the t interval of the mean, mean ± t·s/√n at `level`. n < 2: from -∞ to ∞, because nothing is known.
mz_interval mz_mean_interval(const double *x, size_t n, double level);

// Returns the Wilson score interval of a share: wins of n at z standard deviations (Wilson 1927). n ≥ 1.
mz_interval mz_wilson(int64_t wins, int64_t n, double z);

#endif
