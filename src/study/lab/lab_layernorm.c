// Shows why a norm's statistics are FP32: it sums mean and variance of wide rows in the rows' format.
#include <math.h>

#include "study/lab/lab.h"

// Returns element i of the row as the format stores it.
static double element(mezzo_dtype dtype, double center, uint64_t seed, int64_t i) {
    uint32_t words[4];
    float normal[4];
    mz_philox((mz_philox_key){.seed = seed}, (uint64_t)i >> 2, words);
    mz_normal4(words, normal);
    return mezzo_round_to(center + (double)normal[i & 3], dtype);
}

typedef struct moments {
    double mean, variance, one_pass;
} moments;

// Sums from the first element to the last, each operation rounded to `work`.
static moments measure(mezzo_dtype stored, mezzo_dtype work, int64_t width, double center, uint64_t seed) {
    double sum = 0, squares = 0, deviations = 0, n = mezzo_round_to((double)width, work);
    for (int64_t i = 0; i < width; i++) {
        double x = element(stored, center, seed, i);
        sum = mezzo_round_to(sum + x, work);
        squares = mezzo_round_to(squares + mezzo_round_to(x * x, work), work);
    }
    moments out = {.mean = mezzo_round_to(sum / n, work)};
    for (int64_t i = 0; i < width; i++) {
        double d = mezzo_round_to(element(stored, center, seed, i) - out.mean, work);
        deviations = mezzo_round_to(deviations + mezzo_round_to(d * d, work), work);
    }
    out.variance = mezzo_round_to(deviations / n, work);
    out.one_pass = mezzo_round_to(mezzo_round_to(squares / n, work) - mezzo_round_to(out.mean * out.mean, work), work);
    return out;
}

mz_norm_row mz_norm_statistics(mezzo_dtype dtype, int64_t width, double center, uint64_t seed) {
    moments truth = measure(dtype, MEZZO_F64, width, center, seed);
    moments low = measure(dtype, dtype, width, center, seed), fp32 = measure(dtype, MEZZO_F32, width, center, seed);
    return (mz_norm_row){.format = dtype,
                         .width = width,
                         .mean = truth.mean,
                         .variance = truth.variance,
                         .low_mean = low.mean,
                         .low_variance = low.variance,
                         .low_one_pass = low.one_pass,
                         .fp32_mean = fp32.mean,
                         .fp32_variance = fp32.variance,
                         .fp32_one_pass = fp32.one_pass};
}
