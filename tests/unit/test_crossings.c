// The 95 % intervals of crossings hold the true crossing in 95 % of studies: 400 studies with planted crossings, whose
// steps vary as those of bench/results do.
#include <math.h>

#include "fixture.h"
#include "io/csv.h"
#include "study/analyse/analysis.h"

#define STUDIES 400
#define POINTS  7

// --- noise of real rows --------------------------------------------------------------------------------------------
typedef struct residuals {
    double *each; // of all rows, each row's with mean 0 and deviation 1
    size_t n_residuals, cap_residuals;
    double *cv; // of each row
    int *repeats;
    size_t n_rows, cap_cv, cap_repeats;
} residuals;

static void add_row(residuals *noise, const char *cell) {
    double times[64], mean, deviation;
    size_t n = 0;
    for (char *end; *cell != '\0' && n < MZ_COUNT(times);) {
        const double x = strtod(cell, &end);
        if (end == cell) {
            cell++;
            continue;
        }
        times[n++] = x;
        cell = end;
    }
    if (n < 3)
        return;
    mean = mz_mean(times, n);
    deviation = mz_deviation(times, n);
    must(MZ_RESERVE(noise->cv, noise->cap_cv, noise->n_rows + 1));
    must(MZ_RESERVE(noise->repeats, noise->cap_repeats, noise->n_rows + 1));
    must(MZ_RESERVE(noise->each, noise->cap_residuals, noise->n_residuals + n));
    noise->cv[noise->n_rows] = deviation / mean;
    noise->repeats[noise->n_rows++] = (int)n;
    // The residuals of n numbers from their own mean scatter by √((n-1)/n) of what the numbers do.
    for (size_t i = 0; i < n; i++)
        noise->each[noise->n_residuals++] = (times[i] - mean) / deviation * sqrt((double)n / (double)(n - 1));
}

static void load_noise(const char *name, residuals *noise) {
    char path[4096];
    const char *source = getenv("MEZZO_SOURCE");
    mz_csv *csv;
    int column;
    snprintf(path, sizeof path, "%s/bench/results/%s/full_data.csv", source != NULL ? source : ".", name);
    must(mz_csv_load(path, &csv));
    must(mz_csv_need(csv, "times", &column));
    for (size_t i = 0; i < mz_csv_rows(csv); i++)
        add_row(noise, mz_csv_cell(csv, i, (size_t)column));
    mz_csv_free(csv);
}

// --- planted studies -----------------------------------------------------------------------------------------------
typedef struct stream {
    uint32_t study;
    uint64_t index;
} stream;

static double uniform(stream *r) {
    uint32_t w[4];
    mz_philox((mz_philox_key){44, r->study, 7}, r->index++, w);
    return ((double)w[0] + (double)w[1] * 0x1p-32) * 0x1p-32;
}

static double normal(stream *r) {
    return sqrt(-2 * log(1 - uniform(r))) * cos(6.283185307179586 * uniform(r));
}

// The mean of a row's steps over its true time, and its standard error.
static double time_row(const residuals *noise, stream *r, double *error, int *repeats) {
    double x[64];
    const size_t row = (size_t)(uniform(r) * (double)noise->n_rows);
    *repeats = noise->repeats[row];
    for (int i = 0; i < *repeats; i++)
        x[i] = 1 + noise->cv[row] * noise->each[(size_t)(uniform(r) * (double)noise->n_residuals)];
    const double mean = mz_mean(x, (size_t)*repeats);
    *error = mz_deviation(x, (size_t)*repeats) / sqrt(*repeats) / mean;
    return mean;
}

typedef struct outcome {
    int held, missed, open;
} outcome;

// ln(speedup) is a straight line in ln(tokens) through 1 at `truth`; pairs of a point scatter about it by `between`.
static void study(const residuals *noise, uint32_t number, int pairs_a_point, double between, outcome *out) {
    stream r = {.study = number};
    const double truth = log(128) + (1 + uniform(&r) * (POINTS - 3)) * log(2), slope = 0.1 + 0.3 * uniform(&r);
    mz_pair pairs[POINTS * 8];
    size_t n = 0;
    for (int i = 0; i < POINTS; i++)
        for (int j = 0; j < pairs_a_point; j++, n++) {
            mz_pair *p = &pairs[n];
            *p = (mz_pair){.key = {j + 1, 256, 1, 128 << i}, .tokens = 128 << i};
            const double base = time_row(noise, &r, &p->errors[0], &p->repeats[0]);
            const double low = time_row(noise, &r, &p->errors[1], &p->repeats[1]);
            p->speedup = exp(slope * (log(128 << i) - truth) + between * normal(&r)) * base / low;
            p->error = hypot(p->errors[0], p->errors[1]);
        }
    const mz_study s = {.pairs = pairs, .n_pairs = n, .baseline = "fp32", .candidate = "bf16", .where = (char[]){"-"}};
    mz_analysis a;
    must(mz_analyze(&s, 1000, number, &a));
    if (a.curves[0].n_crossings != 1 || !a.curves[0].crossings[0].up) {
        out->open++;
    } else {
        const mz_interval i = a.curves[0].crossings[0].interval;
        *(i.low <= exp(truth) && exp(truth) <= i.high ? &out->held : &out->missed) += 1;
    }
    mz_analysis_free(&a);
}

static void covers(const char *name, int pairs_a_point, double between) {
    residuals noise = {0};
    outcome out = {0};
    load_noise(name, &noise);
    for (uint32_t i = 0; i < STUDIES; i++)
        study(&noise, i + 1000 * (uint32_t)pairs_a_point, pairs_a_point, between, &out);
    const double coverage = 100.0 * out.held / (out.held + out.missed);
    print_message("%s, %d pair(s) a point, scatter %g: %d intervals, %.1f %% hold the crossing; %d open\n", name,
                  pairs_a_point, between, out.held + out.missed, coverage, out.open);
    mz_free(noise.each);
    mz_free(noise.cv);
    mz_free(noise.repeats);
    if (coverage < 93 || coverage > 97)
        fail_msg("coverage %.1f %%", coverage);
}

TEST(test_timing) { // one pair a point: the steps alone
    covers("sweep-cpu-amx", 1, 0);
}

TEST(test_shapes) {
    covers("sweep-cpu-amx", 4, 0.1);
}

TEST(test_quiet) { // a GPU's steps, between shapes that scatter
    covers("sweep-h100", 3, 0.05);
}
