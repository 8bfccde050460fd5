// The lab's numbers: facts of the formats against exhaustive enumeration of their codes, values against the
// conversions, sums against PyTorch's (the four of CS336's hand-out), norms and softmax where they fail.
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "study/lab/lab.h"
#include "test.h"

// --- formats -------------------------------------------------------------------------------------------------------
static double decode(mezzo_dtype dtype, uint32_t code) {
    switch (dtype) {
    case MEZZO_F16:
        return (double)mezzo_f16_to_f32((uint16_t)code);
    case MEZZO_BF16:
        return (double)mezzo_bf16_to_f32((uint16_t)code);
    case MEZZO_F8E4M3:
        return (double)mezzo_e4m3_to_f32((uint8_t)code);
    default:
        return (double)mezzo_e5m2_to_f32((uint8_t)code);
    }
}

TEST(facts_are_those_of_all_codes) {
    const mezzo_dtype dtypes[] = {MEZZO_F16, MEZZO_BF16, MEZZO_F8E4M3, MEZZO_F8E5M2};
    for (size_t d = 0; d < MZ_COUNT(dtypes); d++) {
        const mz_lab_format *f = mz_lab_format_find(mezzo_dtype_name(dtypes[d]));
        assert_non_null(f);
        mz_lab_format_facts a = mz_lab_format_describe(f);
        double largest = 0, smallest = INFINITY;
        uint64_t finite = 0;
        for (uint32_t code = 0; code < 1U << a.bits; code++) {
            double v = decode(dtypes[d], code);
            finite += isfinite(v) != 0;
            if (!isfinite(v) || v <= 0)
                continue;
            largest = fmax(largest, v);
            smallest = fmin(smallest, v);
            mz_stored s = mz_lab_format_store(f, v); // every value is stored as itself, in its own code
            assert_true(s.code == code);
            assert_true(s.value == v && s.relative == 0);
        }
        assert_true(a.largest == largest);
        assert_true(a.smallest_subnormal == smallest);
        assert_true(a.finite == finite - 1); // +0 and -0 are one
        assert_true(mezzo_round_to(a.zero, dtypes[d]) == 0);
        assert_true(mezzo_round_to(nextafter(a.zero, 1), dtypes[d]) == smallest);
    }
}

TEST(facts_are_those_of_the_compiler) {
    mz_lab_format_facts single = mz_lab_format_describe(mz_lab_format_find("fp32"));
    mz_lab_format_facts twice = mz_lab_format_describe(mz_lab_format_find("fp64"));
    assert_true(single.largest == (double)FLT_MAX && single.smallest_normal == (double)FLT_MIN);
    assert_true(single.smallest_subnormal == (double)FLT_TRUE_MIN && single.epsilon == (double)FLT_EPSILON);
    assert_true(twice.largest == DBL_MAX && twice.smallest_normal == DBL_MIN && twice.epsilon == DBL_EPSILON);
    assert_true(twice.smallest_subnormal == DBL_TRUE_MIN);
    mz_lab_format_facts four = mz_lab_format_describe(mz_lab_format_find("mxfp4"));
    assert_true(four.largest == 6 && four.smallest_subnormal == 0.5 && four.finite == 15 && four.bits_a_value == 4.25);
    assert_null(mz_lab_format_find("fp12"));
}

static mz_stored store(const char *format, double x) {
    return mz_lab_format_store(mz_lab_format_find(format), x);
}

TEST(fates_are_told) {
    // The value that published tables give as zero.
    mz_stored s = store("fp16", 1.2e-7);
    assert_true(s.code == 2 && s.value == 0x1p-23 && s.fate == MZ_FATE_SUBNORMAL);
    assert_int_equal(store("fp16", 0x1p-25).fate, MZ_FATE_UNDERFLOW);
    assert_int_equal(store("fp16", nextafter(0x1p-25, 1)).fate, MZ_FATE_SUBNORMAL);
    assert_int_equal(store("fp16", 65519).fate, MZ_FATE_ROUNDED);
    assert_true(store("fp16", 65519).value == 65504);
    assert_int_equal(store("fp16", 65520).fate, MZ_FATE_OVERFLOW);
    assert_true(isinf(store("fp16", -65520).value) && store("fp16", -65520).sign == 1);
    assert_int_equal(store("fp8_e4m3", 500).fate, MZ_FATE_OVERFLOW);
    assert_int_equal(store("bf16", 1).fate, MZ_FATE_EXACT);
    assert_int_equal(store("bf16", 1.001).fate, MZ_FATE_ROUNDED);
    assert_int_equal(store("fp32", NAN).fate, MZ_FATE_NAN);
    assert_true(store("tf32", 1.2e-7).code == 0x1A007);
    // Alone in its block, a power of two is exact in MXFP4 at any size; 5 lies between E2M1's 4 and 6, a tie that goes
    // to the even 4.
    assert_int_equal(store("mxfp4", 0x1p-60).fate, MZ_FATE_EXACT);
    s = store("mxfp4", 5);
    assert_true(s.scale == 1 && s.value == 4 && s.fate == MZ_FATE_ROUNDED);
    assert_int_equal(store("mxfp8", 0x1p-60).fate, MZ_FATE_EXACT);
    assert_int_equal(store("mxfp8", 463).fate, MZ_FATE_ROUNDED);
    s = store("mxfp8", 500); // 1.75 · 2^8 is the largest element, and the scale is a power of two
    assert_true(s.scale == 1 && s.value == 448 && s.fate == MZ_FATE_OVERFLOW);
    s = store("nvfp4", 6);
    assert_true(s.scale == 1 && s.value == 6 && s.code == 7);
}

// --- sums ----------------------------------------------------------------------------------------------------------
static mz_sum_result sum(const char *name, double x, int64_t count) {
    for (int i = 0; i < MZ_SUM_WAYS; i++)
        if (strcmp(mz_sum_ways[i].name, name) == 0)
            return mz_sum(&mz_sum_ways[i], x, count, 0, NULL, 0);
    fail_msg("no way of adding is called %s", name);
    return (mz_sum_result){0};
}

TEST(the_handouts_sums) {
    char text[32];
    static const struct {
        const char *name, *sum;
    } expected[] = {{"fp32+fp32", "10.0001335144"},      {"fp16+fp16", "9.9531250000"}, {"fp32+fp16", "10.0021362305"},
                    {"fp32+fp16 cast", "10.0021362305"}, {"bf16+bf16", "4.0000000000"}, {"fp32+bf16", "10.0097656250"}};
    for (size_t i = 0; i < MZ_COUNT(expected); i++) {
        snprintf(text, sizeof text, "%.10f", sum(expected[i].name, 0.01, 1000).sum);
        assert_string_equal(text, expected[i].sum);
    }
    // Above 4 bf16's spacing is 1/32: half of it is more than the term.
    assert_true(sum("bf16+bf16", 0.01, 1000).stalled == 350);
    // These go on, whatever the last few additions did.
    assert_true(sum("bf16 kahan", 0.01, 1000).stalled == 0 && sum("fp16 kahan", 0.01, 1000).stalled == 0);
    assert_true(sum("bf16 stochastic", 0.01, 1000).stalled == 0 && sum("fp32+fp32", 0.01, 1000).stalled == 0);
    assert_true(sum("bf16+bf16", 0.01, 100000).sum == 4);
}

TEST(the_better_ways_are_better) {
    for (int64_t count = 1; count < 3000; count = count * 3 + 1) {
        // One rounding of the term (2⁻⁹), then one of each level (pairwise) or of the total (Kahan).
        assert_true(sum("bf16 pairwise", 0.01, count).relative <= (1 + log2((double)count) + 1) * 0x1p-8);
        assert_true(sum("fp16 kahan", 0.01, count).relative <= 4 * 0x1p-11);
        assert_true(sum("bf16 kahan", 0.01, count).relative <= 4 * 0x1p-8);
    }
    // Stochastic rounding is right on average: the mean of 64 seeds is nearer than one spacing of the sum.
    double total = 0;
    for (int i = 0; i < MZ_SUM_WAYS; i++)
        for (uint64_t seed = 0; seed < 64 && mz_sum_ways[i].how == MZ_SUM_STOCHASTIC; seed++)
            total += mz_sum(&mz_sum_ways[i], 0.01, 1000, seed, NULL, 0).sum;
    assert_true(fabs(total / 64 - 1000 * 0.010009765625) < 0.25);
}

TEST(the_path_ends_with_the_sum) {
    for (int i = 0; i < MZ_SUM_WAYS; i++) {
        double path[7];
        mz_sum_result r = mz_sum(&mz_sum_ways[i], 0.1, 100, 3, path, 7);
        assert_true(path[6] == r.sum);
        assert_true(path[0] == mz_sum(&mz_sum_ways[i], 0.1, 14, 3, NULL, 0).sum); // the first of seven: 100/7 additions
    }
}

// --- overflow, norms -----------------------------------------------------------------------------------------------
TEST(softmax_fails_where_exp_does) {
    assert_true(isfinite(mz_softmax_of(MEZZO_F16, 11).naive) && isnan(mz_softmax_of(MEZZO_F16, 11.1).naive));
    assert_true(isfinite(mz_softmax_of(MEZZO_F32, 88).naive) && isnan(mz_softmax_of(MEZZO_F32, 89).naive));
    assert_true(isfinite(mz_softmax_of(MEZZO_BF16, 88).naive) && isnan(mz_softmax_of(MEZZO_BF16, 89).naive));
    assert_true(mz_softmax_of(MEZZO_F16, 100).shifted == 1);
}

TEST(the_scale_falls_to_what_fits_and_rises_again) {
    mezzo_device *device;
    mz_scale_step rows[100];
    assert_int_equal(mezzo_device_open("cpu", 1, &device), MEZZO_OK);
    assert_int_equal(mz_scale_path(device, 64, 12, 65536, 10, rows, 100), MEZZO_OK);
    for (int i = 0; i < 100; i++)
        assert_true(rows[i].skipped == (rows[i].scale * rows[i].gradient > 65504));
    assert_true(rows[0].scale == 65536 && rows[7].scale == 512 && !rows[7].skipped);
    assert_true(rows[77].scale == 65536 && rows[77].skipped && rows[78].scale == 32768);
    mezzo_device_close(device);
}

TEST(statistics_need_fp32) {
    mz_norm_row fp16 = mz_norm_statistics(MEZZO_F16, 4096, 50, 0), bf16 = mz_norm_statistics(MEZZO_BF16, 16384, 50, 0);
    assert_true(isinf(fp16.low_mean));
    assert_true(bf16.low_mean < 10); // the sum stalled
    // Two passes in FP32: n·u of the mean, and for the variance the same of each term.
    assert_true(fabs(fp16.fp32_mean - fp16.mean) <= 4096 * 0x1p-24 * 50);
    assert_true(fabs(fp16.fp32_variance - fp16.variance) <= 2 * 4096 * 0x1p-24);
    assert_true(fabs(bf16.fp32_one_pass - bf16.variance) > 0.01);
}

// What each order does to one gradient, exactly: all numbers are powers of two but the clip factor's 1e-6.
TEST(clipping_before_unscaling_loses_the_step) {
    mezzo_device *device;
    mz_clip_order right, wrong;
    assert_int_equal(mezzo_device_open("cpu", 1, &device), MEZZO_OK);
    assert_int_equal(mz_clip_in_order(device, 0.25, 1, 65536, true, &right), MEZZO_OK);
    assert_int_equal(mz_clip_in_order(device, 0.25, 1, 65536, false, &wrong), MEZZO_OK);
    mezzo_device_close(device);
    assert_true(right.norm == 0.25 && right.clip == 1 && right.update == 0.25);
    assert_true(wrong.norm == 16384);
    assert_true(fabs(wrong.clip - 1 / (16384 + 1e-6)) < 1e-15);
    // the update is the difference of two FP32 numbers near 0.5, each off by at most 2^-25
    assert_true(fabs(wrong.update - 0.25 * wrong.clip) <= 0x1p-24);
}

// The sanitizer's test of a race: trials that go on once all of them are open. The same precision twice has the same
// losses.
TEST(a_precision_races_with_itself) {
    const mz_speed_options o = {.device = "cpu",
                                .threads = 1,
                                .precisions = {MEZZO_PRECISION_FP32, MEZZO_PRECISION_FP32},
                                .n_precisions = 2,
                                .layers = 1,
                                .d_model = 16,
                                .batch = 1,
                                .steps = 10};
    mz_speed_row rows[2];
    mz_speed_result result;
    assert_int_equal(mz_speed_race(&o, rows, &result), MEZZO_OK);
    assert_true(rows[0].final_loss == rows[1].final_loss && rows[0].final_loss == result.target);
    assert_true(result.target > 0 && result.target < 6 && result.parameters > 0);
    assert_int_equal(rows[1].effective, MEZZO_PRECISION_FP32);
    assert_true(rows[1].steps > 0 && rows[1].steps <= 10);
}
