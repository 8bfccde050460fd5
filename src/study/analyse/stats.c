#include "study/analyse/stats.h"

#include <math.h>

// --- order statistics ----------------------------------------------------------------------------------------------
double mz_quantile(const double *sorted, size_t n, double p) {
    double h = (double)(n - 1) * p;
    size_t i = (size_t)h;
    if (i + 1 >= n)
        return sorted[n - 1];
    return sorted[i] + (h - (double)i) * (sorted[i + 1] - sorted[i]);
}

double mz_mean(const double *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i];
    return sum / (double)n;
}

double mz_deviation(const double *x, size_t n) {
    double mean = mz_mean(x, n), sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (x[i] - mean) * (x[i] - mean);
    return n < 2 ? (double)NAN : sqrt(sum / (double)(n - 1));
}

mezzo_status mz_summarize(const double *x, size_t n, mz_summary *out) {
    double *sorted;
    MEZZO_TRY(MZ_NEW(sorted, n));
    memcpy(sorted, x, n * sizeof *x);
    mz_sort(sorted, n);
    *out = (mz_summary){.n = n,
                        .min = sorted[0],
                        .q1 = mz_quantile(sorted, n, 0.25),
                        .median = mz_quantile(sorted, n, 0.5),
                        .q3 = mz_quantile(sorted, n, 0.75),
                        .max = sorted[n - 1],
                        .mean = mz_mean(sorted, n)};
    mz_free(sorted);
    return MEZZO_OK;
}

// --- bootstrap -----------------------------------------------------------------------------------------------------
// Returns 64 random bits scaled to [0, n): the high word of the product (Lemire 2019, without the rejection: for n <
// 2^20 the bias is below 2^-44).
static size_t below(uint64_t bits, size_t n) {
    return (size_t)(((unsigned __int128)bits * n) >> 64);
}

void mz_resample(uint64_t seed, uint32_t stream, uint32_t draw, size_t n, size_t *out) {
    uint32_t w[4];
    for (size_t i = 0; i < n; i += 2) {
        mz_philox((mz_philox_key){seed, draw, stream}, i / 2, w);
        out[i] = below((uint64_t)w[1] << 32 | w[0], n);
        if (i + 1 < n)
            out[i + 1] = below((uint64_t)w[3] << 32 | w[2], n);
    }
}

void mz_shuffle(uint64_t seed, uint32_t stream, size_t n, size_t *out) {
    for (size_t i = 0; i < n; i++)
        out[i] = i;
    for (size_t i = n; i > 1; i--) {
        uint32_t w[4];
        mz_philox((mz_philox_key){seed, 0, stream}, i, w);
        size_t k = below((uint64_t)w[1] << 32 | w[0], i), keep = out[i - 1];
        out[i - 1] = out[k];
        out[k] = keep;
    }
}

double mz_statistic_median(double *x, size_t n, void *user) {
    (void)user;
    mz_sort(x, n);
    return mz_quantile(x, n, 0.5);
}

mezzo_status mz_bootstrap(const double *x, size_t n, mz_statistic statistic, void *user, int draws, double level,
                          uint64_t seed, uint32_t stream, mz_interval *out) {
    mezzo_status status = MEZZO_OK;
    double *sample = mz_alloc(n, sizeof *sample), *values = mz_alloc((size_t)draws, sizeof *values);
    size_t *index = mz_alloc(n, sizeof *index);
    if (sample == NULL || values == NULL || index == NULL)
        MEZZO_TRY_GOTO(status, MEZZO_ERR_MEMORY);
    for (int d = 0; d < draws; d++) {
        mz_resample(seed, stream, (uint32_t)d, n, index);
        for (size_t i = 0; i < n; i++)
            sample[i] = x[index[i]];
        values[d] = statistic(sample, n, user);
    }
    mz_sort(values, (size_t)draws);
    out->low = mz_quantile(values, (size_t)draws, (1 - level) / 2);
    out->high = mz_quantile(values, (size_t)draws, (1 + level) / 2);
fail:
    MZ_FREE(sample, values, index);
    return status;
}

// --- sign test -----------------------------------------------------------------------------------------------------
mz_sign_test mz_sign(int64_t wins, int64_t losses, int64_t ties) {
    int64_t n = wins + losses, k = wins < losses ? wins : losses;
    mz_sign_test t = {.wins = wins, .losses = losses, .ties = ties, .p = 1, .log10_p = 0};
    if (2 * k >= n) // with an even split, every split is at least as uneven
        return t;
    // The lower tail up to k, from its largest term down; both tails are equal, so the result is twice that.
    // Binomial(n, 1/2) at k; top: its logarithm.
    double top = lgamma((double)n + 1) - lgamma((double)k + 1) - lgamma((double)(n - k) + 1) - (double)n * log(2);
    double sum = 0, term = 1;
    for (int64_t i = k; i >= 0 && term > sum * 1e-18; i--) {
        sum += term;
        term *= (double)i / (double)(n - i + 1);
    }
    double log_p = fmin(0, top + log(sum) + log(2));
    t.p = exp(log_p);
    t.log10_p = log_p / log(10);
    return t;
}

mz_interval mz_wilson(int64_t wins, int64_t n, double z) {
    double count = (double)n, share = (double)wins / count, z2 = z * z;
    double middle = (share + z2 / (2 * count)) / (1 + z2 / count);
    double half = z / (1 + z2 / count) * sqrt(share * (1 - share) / count + z2 / (4 * count * count));
    return (mz_interval){fmax(0, middle - half), fmin(1, middle + half)};
}

// --- Student's t ---------------------------------------------------------------------------------------------------
// Returns the continued fraction of the incomplete beta function by Lentz's method (Abramowitz & Stegun 26.5.8); it
// converges fast for x < (a + 1)/(a + b + 2).
static double beta_fraction(double a, double b, double x) {
    const double tiny = 1e-300;
    double c = 1, d = 1 - (a + b) * x / (a + 1), h;
    d = 1 / (fabs(d) < tiny ? tiny : d);
    h = d;
    for (int m = 1; m <= 500; m++) {
        for (int half = 0; half < 2; half++) {
            double k = half == 0 ? m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
                                 : -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
            d = 1 + k * d;
            d = 1 / (fabs(d) < tiny ? tiny : d);
            c = 1 + k / c;
            c = fabs(c) < tiny ? tiny : c;
            h *= d * c;
        }
        if (fabs(d * c - 1) < 1e-16)
            break;
    }
    return h;
}

// Returns P(T > t), t ≥ 0: half of I_x(df/2, 1/2) at x = df/(df + t²) (A&S 26.7.1).
static double student_tail(double t, double df) {
    double a = df / 2, b = 0.5, x = df / (df + t * t), y = t * t / (df + t * t);
    if (t <= 0)
        return 0.5;
    double front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log(y));
    double i = x < (a + 1) / (a + b + 2) ? front * beta_fraction(a, b, x) / a : 1 - front * beta_fraction(b, a, y) / b;
    return i / 2;
}

double mz_student(double p, double df) {
    double low = 0, high = 1;
    while (student_tail(high, df) > 1 - p && high < 1e100)
        high *= 2;
    for (int i = 0; i < 200 && high - low > 1e-15 * high; i++) { // bisection works because the tail falls
        double middle = low + (high - low) / 2;
        *(student_tail(middle, df) > 1 - p ? &low : &high) = middle;
    }
    return high;
}

mz_interval mz_mean_interval(const double *x, size_t n, double level) {
    if (n < 2)
        return (mz_interval){-(double)INFINITY, (double)INFINITY};
    double mean = mz_mean(x, n),
           half = mz_student((1 + level) / 2, (double)(n - 1)) * mz_deviation(x, n) / sqrt((double)n);
    return (mz_interval){mean - half, mean + half};
}

// --- least squares -------------------------------------------------------------------------------------------------
// Computes b - 2 v vᵀb / vᵀv over rows from j on; b's elements are `stride` apart.
static void reflect(const double *v, double square, double *b, size_t stride, size_t j, size_t n) {
    double dot = 0;
    for (size_t i = j; i < n; i++)
        dot += v[i] * b[i * stride];
    for (size_t i = j; i < n; i++)
        b[i * stride] -= 2 * dot / square * v[i];
}

// Factors by Householder QR in place: R in a's upper triangle, Qᵀb in b. v: memory for n.
static mezzo_status factor(double *a, double *b, double *v, size_t n, size_t k) {
    for (size_t j = 0; j < k; j++) {
        double whole = 0, left = 0; // norms of the column, and of what earlier columns leave of it; reflections keep
                                    // `whole`
        for (size_t i = 0; i < n; i++) {
            v[i] = a[i * k + j];
            whole += v[i] * v[i];
            left += i < j ? 0 : v[i] * v[i];
        }
        if (!isfinite(whole))
            return mz_fail(MEZZO_ERR_NUMERIC, "column %zu of the regression has a non-finite value", j);
        if (!(left > 1e-20 * whole))
            return mz_fail(MEZZO_ERR_INVALID, "column %zu of the regression is a combination of those before it", j);
        double norm = sqrt(left);
        v[j] += v[j] < 0 ? -norm : norm; // this sign avoids cancellation
        double square = 2 * norm * fabs(v[j]);
        for (size_t c = j; c < k; c++)
            reflect(v, square, a + c, k, j, n);
        reflect(v, square, b, 1, j, n);
    }
    return MEZZO_OK;
}

// Solves for the coefficients, from Qᵀy, and the standard errors, from the inverse of R.
static mezzo_status solve(double *a, double *b, double *v, size_t n, size_t k, double *inverse, mz_ols *out) {
    MEZZO_TRY(factor(a, b, v, n, k));
    for (size_t j = 0; j < k; j++) {
        for (size_t i = j + 1; i-- > 0;) { // goes upward from the diagonal
            double sum = i == j;
            for (size_t m = i + 1; m <= j; m++)
                sum -= a[i * k + m] * inverse[m * k + j];
            inverse[i * k + j] = sum / a[i * k + i];
        }
    }
    for (size_t i = 0; i < k; i++)
        for (size_t j = i; j < k; j++)
            out->beta[i] += inverse[i * k + j] * b[j];
    return MEZZO_OK;
}

mezzo_status mz_ols_fit(const double *x, const double *y, size_t n, size_t k, mz_ols *out) {
    mezzo_status status = MEZZO_OK;
    double inverse[MZ_OLS_MAX * MZ_OLS_MAX];
    *out = (mz_ols){.n = n, .k = k};
    if (k < 1 || k > MZ_OLS_MAX || n <= k)
        return mz_fail(MEZZO_ERR_INVALID,
                       "a regression of %zu observations on %zu columns: more observations are needed", n, k);
    double *a = mz_alloc(n * k, sizeof *a), *b = mz_alloc(n, sizeof *b), *v = mz_alloc(n, sizeof *v);
    if (a == NULL || b == NULL || v == NULL)
        MEZZO_TRY_GOTO(status, MEZZO_ERR_MEMORY);
    memcpy(a, x, n * k * sizeof *a);
    memcpy(b, y, n * sizeof *b);
    MEZZO_TRY_GOTO(status, solve(a, b, v, n, k, inverse, out));
    double rss = 0, tss = 0, mean = mz_mean(y, n);
    for (size_t i = 0; i < n; i++) {
        double fit = 0;
        for (size_t j = 0; j < k; j++)
            fit += x[i * k + j] * out->beta[j];
        rss += (y[i] - fit) * (y[i] - fit);
        tss += (y[i] - mean) * (y[i] - mean);
    }
    if (!isfinite(rss))
        MEZZO_TRY_GOTO(status,
                       mz_fail(MEZZO_ERR_NUMERIC, "the regression: a value of the dependent variable is not finite"));
    out->sigma = sqrt(rss / (double)(n - k));
    out->r2 = tss > 0 ? 1 - rss / tss : (double)NAN;
    for (size_t i = 0; i < k; i++) {
        double sum = 0;
        for (size_t j = i; j < k; j++)
            sum += inverse[i * k + j] * inverse[i * k + j];
        out->error[i] = out->sigma * sqrt(sum);
    }
fail:
    MZ_FREE(a, b, v);
    return status;
}

mezzo_status mz_line_predict(const double *x, const double *y, size_t n, double x0, double level, double *slope,
                             double *value, mz_interval *out) {
    double *columns = mz_alloc(2 * n, sizeof *columns), squares = 0;
    const double mean = mz_mean(x, n);
    mz_ols fit;
    if (columns == NULL)
        return MEZZO_ERR_MEMORY;
    for (size_t i = 0; i < n; i++) {
        columns[2 * i] = 1;
        columns[2 * i + 1] = x[i] - mean;
        squares += (x[i] - mean) * (x[i] - mean);
    }
    mezzo_status status = mz_ols_fit(columns, y, n, 2, &fit);
    mz_free(columns);
    MEZZO_TRY(status);
    const double away = x0 - mean, half = mz_student((1 + level) / 2, (double)n - 2) * fit.sigma *
                                          sqrt(1 + 1 / (double)n + away * away / squares);
    *slope = fit.beta[1];
    *value = fit.beta[0] + fit.beta[1] * away;
    *out = (mz_interval){*value - half, *value + half};
    return MEZZO_OK;
}
