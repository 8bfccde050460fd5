// The statistics of a study against SciPy and NumPy (tests/golden/make/stats.py).
// Seen to fail with: quantiles of type 6; n instead of n - 1 or n - k below a variance; a one-sided sign test; the
// upper triangle of R's inverse summed by columns; a one-sided t interval; the draw's number left out of the resampling
// key.
#include <math.h>

#include "golden.h"
#include "study/analyse/stats.h"

enum { MOST = 512 };

static size_t numbers(const json_t *list, double *out) {
    size_t n = json_array_size(list);
    assert_true(n <= MOST);
    for (size_t i = 0; i < n; i++)
        out[i] = json_number_value(json_array_get(list, i));
    return n;
}

// Both sides are sums of a few hundred doubles, in another order at most: 1e-12 is thousands of roundings.
static void near(const char *what, double got, double want) {
    if (!(fabs(got - want) <= 1e-12 * fmax(1, fabs(want))))
        fail_msg("%s: %.17g, not %.17g", what, got, want);
}

TEST(test_order) {
    json_t *file = golden_json("stats.json"), *list = json_object_get(file, "quantiles");
    double x[MOST];
    size_t n = numbers(json_object_get(file, "x"), x);
    near("deviation", mz_deviation(x, n), golden_number(file, "deviation"));
    mz_sort(x, n);
    assert_true(json_array_size(list) >= 10);
    for (size_t i = 0; i < json_array_size(list); i++) {
        double pair[2];
        numbers(json_array_get(list, i), pair);
        near("quantile", mz_quantile(x, n, pair[0]), pair[1]);
    }
    json_decref(file);
}

static void same_indices(const json_t *list, const size_t *got) {
    for (size_t i = 0; i < json_array_size(list); i++)
        assert_int_equal(got[i], json_integer_value(json_array_get(list, i)));
}

TEST(test_draws) {
    json_t *file = golden_json("stats.json"), *o = json_object_get(file, "resample");
    size_t index[64];
    const json_t *list = json_object_get(o, "indices");
    mz_resample((uint64_t)json_integer_value(json_object_get(o, "seed")),
                (uint32_t)json_integer_value(json_object_get(o, "stream")),
                (uint32_t)json_integer_value(json_object_get(o, "draw")), json_array_size(list), index);
    same_indices(list, index);
    o = json_object_get(file, "shuffle");
    list = json_object_get(o, "order");
    mz_shuffle((uint64_t)json_integer_value(json_object_get(o, "seed")),
               (uint32_t)json_integer_value(json_object_get(o, "stream")), json_array_size(list), index);
    same_indices(list, index);
    json_decref(file);
}

static double mean_of(double *x, size_t n, void *user) {
    (void)user;
    return mz_mean(x, n);
}

TEST(test_bootstrap) {
    json_t *file = golden_json("stats.json");
    const struct {
        const char *name;
        mz_statistic statistic;
    } both[] = {{"median", mz_statistic_median}, {"mean", mean_of}};
    double x[MOST], want[2], low[2], high[2];
    size_t n = numbers(json_object_get(file, "x"), x);
    for (size_t i = 0; i < MZ_COUNT(both); i++) {
        mz_interval got;
        const json_t *levels = json_object_get(json_object_get(file, "levels"), both[i].name);
        must(mz_bootstrap(x, n, both[i].statistic, NULL, 2000, 0.95, 1, 1, &got));
        numbers(json_object_get(json_object_get(file, "exact"), both[i].name), want);
        near("low", got.low, want[0]);
        near("high", got.high, want[1]);
        numbers(json_object_get(levels, "low"), low);
        numbers(json_object_get(levels, "high"), high);
        for (uint64_t seed = 1; seed < 6; seed++) { // SciPy's own draws: within four standard errors of the level
            must(mz_bootstrap(x, n, both[i].statistic, NULL, 2000, 0.95, seed, 9, &got));
            assert_true(got.low >= low[0] && got.low <= low[1]);
            assert_true(got.high >= high[0] && got.high <= high[1]);
        }
    }
    json_decref(file);
}

TEST(test_sign) {
    json_t *file = golden_json("stats.json"), *list = json_object_get(file, "sign");
    assert_true(json_array_size(list) >= 12);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *o = json_array_get(list, i);
        int64_t wins = (int64_t)golden_number(o, "wins"), losses = (int64_t)golden_number(o, "losses");
        mz_sign_test got = mz_sign(wins, losses, 5);
        double p = golden_number(o, "p");
        // lgamma of n has a relative error near 1e-16 of a number near n·ln(n): times n, that is what p may be off by.
        double bound = 1e-15 * (double)(wins + losses + 10) * log((double)(wins + losses + 10)) * 10;
        if (!(fabs(got.p - p) <= bound * p))
            fail_msg("sign test of %lld and %lld: %.17g, not %.17g", (long long)wins, (long long)losses, got.p, p);
        assert_true(fabs(got.log10_p - golden_number(o, "log10_p")) <= bound);
    }
    assert_true(mz_sign(4000, 4, 0).p == 0 && mz_sign(4000, 4, 0).log10_p < -1000); // its logarithm does not underflow
    list = json_object_get(file, "wilson");
    for (size_t i = 0; i < json_array_size(list); i++) {
        double v[4];
        numbers(json_array_get(list, i), v);
        mz_interval got = mz_wilson((int64_t)v[0], (int64_t)v[1], 1.959963984540054);
        near("wilson low", got.low, v[2]);
        near("wilson high", got.high, v[3]);
    }
    json_decref(file);
}

TEST(test_student) {
    json_t *file = golden_json("stats.json"), *list = json_object_get(file, "student");
    double x[MOST], want[2];
    assert_true(json_array_size(list) > 20);
    for (size_t i = 0; i < json_array_size(list); i++) {
        double v[3];
        numbers(json_array_get(list, i), v);
        near("t", mz_student(v[0], v[1]), v[2]);
    }
    size_t n = numbers(json_object_get(file, "x"), x);
    numbers(json_object_get(file, "mean_interval"), want);
    near("low", mz_mean_interval(x, n, 0.95).low, want[0]);
    near("high", mz_mean_interval(x, n, 0.95).high, want[1]);
    assert_true(isinf(mz_mean_interval(x, 1, 0.95).high)); // one number says nothing about its scatter
    json_decref(file);
}

TEST(test_least_squares) {
    json_t *file = golden_json("stats.json"), *list = json_object_get(file, "ols");
    for (size_t c = 0; c < json_array_size(list); c++) {
        const json_t *o = json_array_get(list, c), *rows = json_object_get(o, "x");
        static double x[MOST * 8];
        double y[MOST], beta[MZ_OLS_MAX], error[MZ_OLS_MAX];
        size_t n = numbers(json_object_get(o, "y"), y), k = numbers(json_object_get(o, "beta"), beta);
        numbers(json_object_get(o, "error"), error);
        for (size_t i = 0; i < n; i++)
            numbers(json_array_get(rows, i), x + i * k);
        mz_ols fit;
        must(mz_ols_fit(x, y, n, k, &fit));
        for (size_t i = 0; i < k; i++) { // SciPy inverts XᵀX: the square of X's condition, about 1e3, times 1e-16
            assert_true(fabs(fit.beta[i] - beta[i]) <= 1e-9 * fabs(beta[i]));
            assert_true(fabs(fit.error[i] - error[i]) <= 1e-9 * error[i]);
        }
        assert_true(fabs(fit.r2 - golden_number(o, "r2")) <= 1e-11);
        if (json_is_number(json_object_get(o, "sigma")))
            assert_true(fabs(fit.sigma - golden_number(o, "sigma")) <= 1e-11);
        // What is not finite is named, a column that repeats another too; so is too little to fit.
        double kept = x[1], target = y[n - 1];
        x[1] = (double)NAN;
        assert_int_equal(mz_ols_fit(x, y, n, k, &fit), MEZZO_ERR_NUMERIC);
        x[1] = kept;
        y[n - 1] = (double)INFINITY;
        assert_int_equal(mz_ols_fit(x, y, n, k, &fit), MEZZO_ERR_NUMERIC);
        y[n - 1] = target;
        for (size_t i = 0; i < n; i++)
            x[i * k + k - 1] = 3 * x[i * k] - (k > 2 ? x[i * k + 1] : 0);
        assert_int_equal(mz_ols_fit(x, y, n, k, &fit), MEZZO_ERR_INVALID);
        assert_int_equal(mz_ols_fit(x, y, k, k, &fit), MEZZO_ERR_INVALID);
    }
    json_decref(file);
}
