// Makes a verdict of the seeds' numbers that noise alone cannot give.
#include <math.h>

#include "study/measure/verify.h"

const char *mz_verdict_word(mz_verdict v) {
    return v == MZ_VERDICT_MET ? "met" : v == MZ_VERDICT_FAILED ? "not met" : "undecided";
}

mz_measured mz_measure_mean(const double *x, size_t n, double level) {
    double mean = mz_mean(x, n);
    bool scatters = n > 1 && mz_deviation(x, n) > 1e-12 * fabs(mean); // equal numbers: rounding is no scatter
    return (mz_measured){mean, scatters ? mz_mean_interval(x, n, level) : (mz_interval){mean, mean}};
}

mz_measured mz_measure_ratio(const double *x, size_t n, double level) {
    double logs[MZ_VERIFY_SEEDS] = {0};
    for (size_t i = 0; i < n; i++)
        logs[i] = log(x[i]);
    mz_measured m = mz_measure_mean(logs, n, level);
    return (mz_measured){exp(m.value), {exp(m.interval.low), exp(m.interval.high)}};
}

mz_verdict mz_judge_least(const mz_measured *m, double least) {
    if (m->interval.low >= least)
        return MZ_VERDICT_MET;
    return m->interval.high >= least ? MZ_VERDICT_OPEN : MZ_VERDICT_FAILED; // NaN fails
}

// Equivalence: the whole interval lies within ±within.
mz_verdict mz_judge_within(const mz_measured *m, double within) {
    if (m->interval.low > -within && m->interval.high < within)
        return MZ_VERDICT_MET;
    return m->interval.low < within && m->interval.high > -within ? MZ_VERDICT_OPEN : MZ_VERDICT_FAILED;
}

bool mz_verify_passed(const mz_verify_result *r) {
    return r->same && r->speed == MZ_VERDICT_MET && r->memory == MZ_VERDICT_MET && r->accuracy == MZ_VERDICT_MET;
}
