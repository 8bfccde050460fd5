// Counts of a run's magnitudes: they are those of the numbers themselves, taking them changes nothing, and what FP16
// would make of them is what FP16's conversion makes of them.
#include <math.h>
#include <stdlib.h>

#include "study/lab/lab.h"
#include "backend/inspect.h"
#include "test.h"

static int bucket_of(double x) {
    float f = fabsf((float)x);
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return mz_histogram_bucket(bits);
}

// (2^(e-1), 2^e] for every e that FP32 has, edges included.
TEST(buckets_end_at_powers_of_two) {
    for (int e = -148; e <= 127; e++) {
        float power = ldexpf(1, e);
        assert_int_equal(MZ_HISTOGRAM_EXPONENT(bucket_of((double)power)), e);
        assert_int_equal(MZ_HISTOGRAM_EXPONENT(bucket_of((double)nextafterf(power, INFINITY))), e + 1);
        assert_int_equal(bucket_of((double)nextafterf(power, 0)), bucket_of((double)power) - (e == -148));
    }
    assert_int_equal(bucket_of(0x1p-149), 1);
    assert_int_equal(bucket_of(-0.0), 0);
    assert_int_equal(bucket_of(INFINITY), MZ_HISTOGRAM_BUCKETS - 2);
    assert_int_equal(bucket_of(NAN), MZ_HISTOGRAM_BUCKETS - 1);
    assert_int_equal(MZ_HISTOGRAM_EXPONENT(bucket_of(3.4028234663852886e38)), 128);
}

// Numbers spread over FP16's range and beyond, each with a full FP32 fraction: what is lost, subnormal and infinite, by
// converting them.
TEST(fates_are_those_of_the_conversion) {
    enum { N = 20000 };
    static float x[N];
    int64_t counts[MZ_HISTOGRAM_BUCKETS] = {0};
    for (uint64_t i = 0; i < N; i++) {
        uint32_t draw[4];
        mz_philox((mz_philox_key){9, 0, 0}, i, draw);
        x[i] = ldexpf(1 + mz_uniform(draw[0]), (int)(draw[1] % 80) - 60);
        if (i % 10 == 0) // exactly a power of two: 2^-25 itself becomes zero
            x[i] = ldexpf(1, (int)(i / 10 % 80) - 60);
        counts[bucket_of((double)x[i])]++;
    }
    for (int scale = 0; scale <= 24; scale += 8) {
        mz_fp16_fate f = mz_fp16_fate_of(counts, scale);
        int64_t lost = 0, infinite = 0, above = 0, subnormal = 0;
        for (int i = 0; i < N; i++) {
            double scaled = ldexp((double)x[i], scale), stored = mezzo_round_to(scaled, MEZZO_F16);
            lost += stored == 0;
            infinite += isinf(stored);
            above += scaled > 65536;
            subnormal += stored != 0 && scaled <= 0x1p-14;
        }
        assert_int_equal(f.nonzero, N);
        assert_int_equal(f.lost, lost);
        assert_int_equal(f.subnormal, subnormal);
        assert_int_equal(f.overflow, above);
        assert_true(infinite >= above); // 65,520 … 65,536 are the difference
    }
    int least = mz_fp16_least_scale(counts, 0.001);
    mz_fp16_fate enough = mz_fp16_fate_of(counts, least), fewer = mz_fp16_fate_of(counts, least - 1);
    assert_true(enough.lost <= N / 1000 && fewer.lost > N / 1000);
    assert_int_equal(mz_fp16_fate_of(counts, mz_fp16_most_scale(counts)).overflow, 0);
}

static const mz_underflow_options few_steps = {.device = "cpu", .threads = 1, .steps = 3, .seed = 5};

TEST(gradients_are_counted_as_they_are) {
    mz_underflow u;
    assert_int_equal(mz_underflow_look(&few_steps, &u), MEZZO_OK);
    const mezzo_params *params = mz_trial_params(u.trial);
    const mz_magnitudes *m = u.magnitudes;
    size_t seen = 0;
    int64_t all[MZ_HISTOGRAM_BUCKETS];
    for (size_t i = 0; i < m->n; i++) {
        const mz_magnitudes_of *of = &m->list[i];
        int64_t total = 0;
        for (int b = 0; b < MZ_HISTOGRAM_BUCKETS; b++)
            total += of->counts[b];
        assert_int_equal(total, of->elements); // each element once
        if (of->kind != MZ_OF_GRADIENT)
            continue;
        int32_t counts[MZ_HISTOGRAM_BUCKETS] = {0};
        const float *grad = params->grad + params->list[of->slot].offset; // the step left them there
        for (int64_t k = 0; k < of->elements; k++)
            counts[bucket_of((double)grad[k])]++;
        assert_memory_equal(counts, of->counts, sizeof counts);
        seen++;
    }
    assert_int_equal(seen, params->n);
    mz_underflow_sum(&u, MZ_OF_ACTIVATION_GRADIENT, all);
    assert_true(mz_fp16_fate_of(all, 0).nonzero > 100000);
    assert_int_equal(all[MZ_HISTOGRAM_BUCKETS - 1] + all[MZ_HISTOGRAM_BUCKETS - 2], 0);
    mz_underflow_close(&u);
}

// The table of scales and scales of blocks are no activations and no gradients: read as numbers, the table's counts of
// steps would be the smallest there are.
TEST(scales_are_not_counted) {
    static const char *const precisions[] = {"fp8", "fp8-dw16", "fp8-block"};
    for (size_t k = 0; k < MZ_COUNT(precisions); k++) {
        mz_underflow_options o = few_steps;
        mz_underflow u;
        int64_t all[MZ_HISTOGRAM_BUCKETS];
        o.precision = precisions[k];
        assert_int_equal(mz_underflow_look(&o, &u), MEZZO_OK);
        for (size_t i = 0; i < u.magnitudes->n; i++) {
            const char *name = u.magnitudes->list[i].name;
            assert_true(strstr(name, "quantize.entry") == NULL && strstr(name, "scales") == NULL);
        }
        mz_underflow_sum(&u, MZ_OF_ACTIVATION, all);
        for (int b = 1; MZ_HISTOGRAM_EXPONENT(b) < -100; b++)
            assert_int_equal(all[b], 0);
        mz_underflow_close(&u);
    }
}

// Counting is a look: the step that is counted moves the weights by the same bits as one that is not.
TEST(counting_changes_no_bit) {
    mz_underflow counted, plain;
    mz_underflow_options one_more = few_steps;
    one_more.steps++;
    assert_int_equal(mz_underflow_look(&few_steps, &counted), MEZZO_OK);
    assert_int_equal(mz_underflow_look(&one_more, &plain), MEZZO_OK); // its third step is not counted, its fourth is
    const mz_step_report *report;
    assert_int_equal(mz_trial_step(counted.trial, false, &report), MEZZO_OK);
    const mezzo_params *a = mz_trial_params(counted.trial), *b = mz_trial_params(plain.trial);
    assert_int_equal(a->elements, b->elements);
    assert_memory_equal(a->master, b->master, (size_t)a->elements * sizeof(float));
    mz_underflow_close(&counted);
    mz_underflow_close(&plain);
}
