// Number formats against a reference that knows nothing of bits: a format's values are listed with ldexp, and a number
// rounds to the nearer of its two neighbours in that list.
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "base/base.h"
#include "test.h"

// --- the reference -------------------------------------------------------------------------------------------------
typedef struct format {
    const char *name;
    mezzo_dtype dtype;
    int exponent_bits, fraction_bits;
    uint32_t largest;  // code of the largest finite value
    uint32_t overflow; // code that a larger magnitude becomes
    bool has_infinity;
    uint32_t (*from_f32)(float x);
    uint32_t (*from_f64)(double x); // NULL: no such function
    float (*to_f32)(uint32_t code);
} format;

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
#define TO_FLOAT(name, stored)                                                                                         \
    static float name##_to_f32(uint32_t code) {                                                                        \
        return mezzo_##name##_to_f32((stored)code);                                                                    \
    }
#define FROM(name, from, type)                                                                                         \
    static uint32_t name##_from_##from(type x) {                                                                       \
        return mezzo_##from##_to_##name(x);                                                                            \
    }
TO_FLOAT(f16, uint16_t)
TO_FLOAT(bf16, uint16_t)
TO_FLOAT(e4m3, uint8_t)
TO_FLOAT(e5m2, uint8_t)
FROM(f16, f32, float)
FROM(f16, f64, double)
FROM(bf16, f32, float)
FROM(bf16, f64, double)
FROM(e4m3, f32, float)
FROM(e5m2, f32, float)
// TF32 is stored as a float; its code is the float without the 13 low bits, which must be zero.
static uint32_t tf32_from_f32(float x) {
    uint32_t bits = bits_of(mezzo_f32_to_tf32(x));
    assert_int_equal(bits & 0x1FFF, 0);
    return bits >> 13;
}
static float tf32_to_f32(uint32_t code) {
    return float_of(code << 13);
}

static const format formats[] = {
    {"fp16", MEZZO_F16, 5, 10, 0x7BFF, 0x7C00, true, f16_from_f32, f16_from_f64, f16_to_f32},
    {"bf16", MEZZO_BF16, 8, 7, 0x7F7F, 0x7F80, true, bf16_from_f32, bf16_from_f64, bf16_to_f32},
    {"e4m3", MEZZO_F8E4M3, 4, 3, 0x7E, 0x7F, false, e4m3_from_f32, NULL, e4m3_to_f32},
    {"e5m2", MEZZO_F8E5M2, 5, 2, 0x7B, 0x7C, true, e5m2_from_f32, NULL, e5m2_to_f32},
    {"tf32", MEZZO_TF32, 8, 10, 0x3FBFF, 0x3FC00, true, tf32_from_f32, NULL, tf32_to_f32},
};

static uint32_t sign_code(const format *f) {
    return 1u << (f->exponent_bits + f->fraction_bits);
}

// The value of a non-negative finite code; also of the one past the largest, as if the exponents went on.
static double value_of(const format *f, uint32_t code) {
    int bias = (1 << (f->exponent_bits - 1)) - 1;
    int exponent = (int)(code >> f->fraction_bits);
    int fraction = (int)(code & ((1u << f->fraction_bits) - 1));
    if (exponent == 0)
        return ldexp(fraction, 1 - bias - f->fraction_bits);
    return ldexp(fraction + (1 << f->fraction_bits), exponent - bias - f->fraction_bits);
}

// The code that x must round to. The midpoint of two neighbours needs one bit more than they have: exact in double.
static uint32_t expected_code(const format *f, double x) {
    uint32_t sign = signbit(x) ? sign_code(f) : 0;
    double magnitude = fabs(x);
    if (magnitude >= value_of(f, f->largest + 1))
        return sign | f->overflow;
    uint32_t low = 0, high = f->largest + 1; // value(low) <= magnitude < value(high)
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (value_of(f, middle) <= magnitude)
            low = middle;
        else
            high = middle;
    }
    double midpoint = (value_of(f, low) + value_of(f, high)) / 2;
    bool up = magnitude > midpoint || (magnitude == midpoint && low % 2 == 1);
    uint32_t code = up ? high : low;
    return sign | (code > f->largest ? f->overflow : code);
}

static void check_rounding(const format *f, double x) {
    uint32_t expected = expected_code(f, x);
    if ((double)(float)x == x && f->from_f32((float)x) != expected)
        fail_msg("%s: float %a gave %#x, not %#x", f->name, x, f->from_f32((float)x), expected);
    if (f->from_f64 != NULL && f->from_f64(x) != expected)
        fail_msg("%s: double %a gave %#x, not %#x", f->name, x, f->from_f64(x), expected);
    double rounded = mezzo_round_to(x, f->dtype), back = (double)f->to_f32(expected);
    if (isnan(back) ? !isnan(rounded) : memcmp(&rounded, &back, sizeof back) != 0)
        fail_msg("%s: mezzo_round_to(%a) gave %a, not %a", f->name, x, rounded, back);
}

// --- single values -------------------------------------------------------------------------------------------------
TEST(every_value_converts_to_float_and_back_bit_for_bit) {
    for (size_t i = 0; i < MZ_COUNT(formats); i++) {
        const format *f = &formats[i];
        for (uint32_t code = 0; code <= f->largest; code++) {
            double expected = value_of(f, code), plus = (double)f->to_f32(code),
                   minus = (double)f->to_f32(code | sign_code(f));
            if (plus != expected || minus != -expected || signbit(plus) || !signbit(minus))
                fail_msg("%s: code %#x is %a, not %a", f->name, code, plus, expected);
            assert_int_equal(f->from_f32((float)plus), code);
            assert_int_equal(f->from_f32((float)minus), code | sign_code(f));
        }
        if (f->has_infinity) {
            assert_true(isinf(f->to_f32(f->overflow)) && isinf(f->to_f32(f->overflow | sign_code(f))));
            assert_int_equal(f->from_f32(INFINITY), f->overflow);
            assert_int_equal(f->from_f32(-INFINITY), f->overflow | sign_code(f));
        }
    }
}

TEST(every_tie_rounds_to_even_and_its_neighbours_to_the_nearer) {
    for (size_t i = 0; i < MZ_COUNT(formats); i++) {
        const format *f = &formats[i];
        for (uint32_t low = 0; low <= f->largest; low++) {
            double tie = (value_of(f, low) + value_of(f, low + 1)) / 2;
            double around[] = {tie, nextafter(tie, 0), nextafter(tie, INFINITY), (double)nextafterf((float)tie, 0.0f),
                               (double)nextafterf((float)tie, INFINITY)};
            for (size_t j = 0; j < MZ_COUNT(around); j++) {
                check_rounding(f, around[j]);
                check_rounding(f, -around[j]);
            }
        }
    }
}

TEST(any_float_and_any_double_rounds_to_the_nearest) {
    for (uint64_t i = 0; i < 50000; i++) {
        uint32_t words[4];
        mz_philox((mz_philox_key){.seed = 99}, i, words);
        double any_double = ldexp(1.0 + ldexp(words[0], -32) + ldexp(words[1], -52), (int)(words[2] % 300) - 150);
        float any_float = float_of(words[3]);
        for (size_t j = 0; j < MZ_COUNT(formats); j++) {
            check_rounding(&formats[j], any_double);
            check_rounding(&formats[j], -any_double);
            if (!isnan(any_float))
                check_rounding(&formats[j], (double)any_float);
        }
    }
    const double edges[] = {0.0, -0.0, DBL_MIN, DBL_TRUE_MIN, DBL_MAX, FLT_MIN, FLT_TRUE_MIN, FLT_MAX, INFINITY};
    for (size_t i = 0; i < MZ_COUNT(edges); i++)
        for (size_t j = 0; j < MZ_COUNT(formats); j++)
            check_rounding(&formats[j], edges[i]);
}

TEST(overflow_begins_half_a_unit_past_the_largest) {
    assert_int_equal(mezzo_f32_to_f16(65519.996f), 0x7BFF);
    assert_int_equal(mezzo_f32_to_f16(65520.0f), 0x7C00);
    assert_int_equal(mezzo_f32_to_f16(-65520.0f), 0xFC00);
    assert_int_equal(mezzo_f64_to_f16(nextafter(65520.0, 0)), 0x7BFF);
    assert_int_equal(mezzo_f64_to_f16(65520.0), 0x7C00);
    assert_int_equal(mezzo_f32_to_bf16(float_of(0x7F7F7FFF)), 0x7F7F);
    assert_int_equal(mezzo_f32_to_bf16(float_of(0x7F7F8000)), 0x7F80);
    assert_int_equal(mezzo_f32_to_bf16(FLT_MAX), 0x7F80);
    assert_int_equal(mezzo_f32_to_e4m3(464.0f), 0x7E); // a tie: 448 has the even code
    assert_int_equal(mezzo_f32_to_e4m3(nextafterf(464.0f, 465.0f)), 0x7F);
    assert_int_equal(mezzo_f32_to_e4m3(-INFINITY), 0xFF);
    assert_int_equal(mezzo_f32_to_e5m2(nextafterf(61440.0f, 0.0f)), 0x7B);
    assert_int_equal(mezzo_f32_to_e5m2(61440.0f), 0x7C);
    assert_true(isinf(mezzo_f32_to_tf32(FLT_MAX)));
}

TEST(small_numbers_become_subnormals_or_zero_exactly) {
    assert_int_equal(mezzo_f32_to_f16(0x1p-24f), 1);
    assert_int_equal(mezzo_f32_to_f16(0x1p-25f), 0); // a tie, to even
    assert_int_equal(mezzo_f32_to_f16(nextafterf(0x1p-25f, 1.0f)), 1);
    assert_int_equal(mezzo_f32_to_f16(-0x1p-25f), 0x8000);
    assert_int_equal(mezzo_f32_to_f16(0x1.ffcp-15f), 0x03FF + 1); // rounds up from the largest subnormal to a normal
    assert_int_equal(mezzo_f32_to_bf16(0x1p-133f), 1);
    assert_int_equal(mezzo_f32_to_bf16(FLT_TRUE_MIN), 0);
    assert_int_equal(mezzo_f32_to_e4m3(0x1p-9f), 1);
    assert_int_equal(mezzo_f32_to_e5m2(0x1p-16f), 1);
}

TEST(nan_stays_nan_and_is_quiet) {
    const uint32_t nans[] = {0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001, 0x7FFFFFFF, 0x7F801000, 0x7FA00000};
    for (size_t i = 0; i < MZ_COUNT(nans); i++) {
        float nan = float_of(nans[i]);
        uint32_t sign = nans[i] >> 31;
        assert_int_equal(mezzo_f32_to_f16(nan) & 0xFE00, 0x7E00 | sign << 15);
        assert_int_equal(mezzo_f32_to_bf16(nan) & 0xFFC0, 0x7FC0 | sign << 15);
        assert_int_equal(mezzo_f32_to_e4m3(nan), 0x7F | sign << 7);
        assert_int_equal(mezzo_f32_to_e5m2(nan) & 0xFE, 0x7E | sign << 7);
        assert_int_equal(bits_of(mezzo_f32_to_tf32(nan)) & 0xFFC01FFF, 0x7FC00000 | sign << 31);
        assert_int_equal(mezzo_f32_to_bf16_stochastic(nan, UINT32_MAX) & 0xFFC0, 0x7FC0 | sign << 15);
        for (size_t j = 0; j < MZ_COUNT(formats); j++) {
            assert_true(isnan(mezzo_round_to((double)nan, formats[j].dtype)));
            if (formats[j].from_f64 != NULL)
                assert_int_equal(formats[j].from_f64((double)nan) & formats[j].overflow, formats[j].overflow);
        }
    }
    for (size_t j = 0; j < MZ_COUNT(formats); j++) {
        const format *f = &formats[j];
        uint32_t first = f->has_infinity ? f->overflow + 1 : f->overflow;
        for (uint32_t code = first; code < sign_code(f); code++)
            assert_true(isnan(f->to_f32(code)) && isnan(f->to_f32(f->from_f32(f->to_f32(code)))));
    }
    // A double whose NaN payload is all in the low bits must not turn into infinity.
    uint64_t low_payload = UINT64_C(0x7FF0000000000001);
    double nan;
    memcpy(&nan, &low_payload, sizeof nan);
    assert_int_equal(mezzo_f64_to_f16(nan), 0x7E00);
    assert_int_equal(mezzo_f64_to_bf16(nan), 0x7FC0);
}

// Rounding a double to float first would make a tie of what is above one.
TEST(a_double_rounds_once) {
    double above_f16_tie = 1 + 0x1p-11 + 0x1p-40, above_bf16_tie = 1 + 0x1p-8 + 0x1p-40;
    assert_int_equal(mezzo_f64_to_f16(above_f16_tie), 0x3C01);
    assert_int_equal(mezzo_f32_to_f16((float)above_f16_tie), 0x3C00);
    assert_int_equal(mezzo_f64_to_bf16(above_bf16_tie), 0x3F81);
    assert_int_equal(mezzo_f32_to_bf16((float)above_bf16_tie), 0x3F80);
    assert_true(mezzo_round_to(above_f16_tie, MEZZO_TF32) == 1 + 0x1p-10);
    assert_true(mezzo_round_to(1 + 0x1p-4 + 0x1p-40, MEZZO_F8E4M3) == 1.125);
    assert_true(mezzo_round_to(1 + 0x1p-3 + 0x1p-40, MEZZO_F8E5M2) == 1.25);
    uint16_t code;
    assert_int_equal(mezzo_convert(&above_f16_tie, MEZZO_F64, &code, MEZZO_F16, 1), MEZZO_OK);
    assert_int_equal(code, 0x3C01);
    assert_true(mezzo_round_to(0.1, MEZZO_F32) == (double)0.1f && mezzo_round_to(0.1, MEZZO_F64) == 0.1);
}

// --- stochastic rounding -------------------------------------------------------------------------------------------
// Over all random words the value goes up exactly as often as the distance says: no approximation, no bias.
TEST(stochastic_rounding_goes_up_exactly_as_often_as_it_should) {
    const uint32_t tails[] = {0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 12345};
    const uint32_t heads[] = {0x3F80, 0xBF80, 0x0000, 0x0001, 0x7F00, 0x4049};
    for (size_t h = 0; h < MZ_COUNT(heads); h++) {
        for (size_t t = 0; t < MZ_COUNT(tails); t++) {
            uint32_t up = 0;
            for (uint32_t r = 0; r < 0x10000; r++) {
                uint16_t code = mezzo_f32_to_bf16_stochastic(float_of(heads[h] << 16 | tails[t]), r << 16 | 0x5555);
                assert_true(code == heads[h] || code == heads[h] + 1);
                up += code != heads[h];
            }
            assert_int_equal(up, tails[t]);
        }
    }
}

TEST(stochastic_rounding_never_makes_an_infinity_that_rounding_would_not) {
    for (uint32_t r = 0; r < 0x10000; r += 17) {
        uint32_t random = r << 16 | 0xFFFF;
        assert_int_equal(mezzo_f32_to_bf16_stochastic(float_of(0x7F7F7FFF), random), 0x7F7F);
        assert_int_equal(mezzo_f32_to_bf16_stochastic(float_of(0xFF7F7FFF), random), 0xFF7F);
        assert_int_equal(mezzo_f32_to_bf16_stochastic(INFINITY, random), 0x7F80);
        assert_int_equal(mezzo_f32_to_bf16_stochastic(-INFINITY, random), 0xFF80);
    }
    assert_int_equal(mezzo_f32_to_bf16_stochastic(FLT_MAX, UINT32_MAX), 0x7F80);
}

// --- arrays --------------------------------------------------------------------------------------------------------
static const mezzo_dtype float_dtypes[] = {MEZZO_F64, MEZZO_F32, MEZZO_BF16, MEZZO_F16, MEZZO_F8E4M3, MEZZO_F8E5M2};

// Small integers are exact in every format: they go from any to any and back, at any address.
TEST(small_integers_pass_through_every_pair_of_dtypes) {
    static const mezzo_dtype all[] = {MEZZO_F64,    MEZZO_F32, MEZZO_BF16, MEZZO_F16, MEZZO_F8E4M3,
                                      MEZZO_F8E5M2, MEZZO_I64, MEZZO_I32,  MEZZO_U16, MEZZO_U8};
    const double values[] = {0, 1, 2, 3, 4, 6, 8, 112};
    enum { N = MZ_COUNT(values) };
    for (size_t i = 0; i < MZ_COUNT(all); i++) {
        for (size_t j = 0; j < MZ_COUNT(all); j++) {
            char from[8 * N + 1], to[8 * N + 1];
            double back[N];
            assert_int_equal(mezzo_convert(values, MEZZO_F64, from + 1, all[i], N), MEZZO_OK);
            assert_int_equal(mezzo_convert(from + 1, all[i], to + 1, all[j], N), MEZZO_OK);
            assert_int_equal(mezzo_convert(to + 1, all[j], back, MEZZO_F64, N), MEZZO_OK);
            assert_memory_equal(values, back, sizeof values);
        }
    }
}

TEST(arrays_convert_as_single_values_do) {
    enum { N = 4096 };
    static float x[N], direct[N], back[N];
    for (uint64_t i = 0; i < N / 4; i++) {
        uint32_t words[4];
        mz_philox((mz_philox_key){.seed = 5}, i, words);
        for (int j = 0; j < 4; j++)
            x[4 * i + (size_t)j] = isnan(float_of(words[j])) ? 0.0f : float_of(words[j]);
    }
    for (size_t d = 0; d < MZ_COUNT(float_dtypes); d++) {
        static char stored[8 * N];
        assert_int_equal(mezzo_convert(x, MEZZO_F32, stored, float_dtypes[d], N), MEZZO_OK);
        assert_int_equal(mezzo_convert(stored, float_dtypes[d], back, MEZZO_F32, N), MEZZO_OK);
        for (size_t i = 0; i < N; i++) {
            direct[i] = (float)mezzo_round_to((double)x[i], float_dtypes[d]);
            assert_true(isnan(direct[i]) ? isnan(back[i]) : bits_of(direct[i]) == bits_of(back[i]));
        }
    }
    assert_int_equal(mezzo_convert(x, MEZZO_F32, x, MEZZO_TF32, N), MEZZO_OK); // in place: sizes are equal
    for (size_t i = 0; i < N; i++)
        assert_int_equal(bits_of(x[i]) & 0x1FFF, 0);
    assert_int_equal(mezzo_convert(NULL, MEZZO_F32, NULL, MEZZO_F16, 0), MEZZO_OK);
}

static mezzo_status to_integer(double x, mezzo_dtype dtype, int64_t *out) {
    char stored[8];
    mezzo_status status = mezzo_convert(&x, MEZZO_F64, stored, dtype, 1);
    return status != MEZZO_OK ? status : mezzo_convert(stored, dtype, out, MEZZO_I64, 1);
}

TEST(floats_truncate_to_integers_and_out_of_range_is_an_error) {
    static const struct {
        double x;
        mezzo_dtype dtype;
        bool fits;
        int64_t expected;
    } rows[] = {
        {2.9, MEZZO_I32, true, 2},
        {-2.9, MEZZO_I32, true, -2},
        {2147483647.5, MEZZO_I32, true, INT32_MAX},
        {2147483648.0, MEZZO_I32, false, 0},
        {-0.9, MEZZO_U8, true, 0},
        {-1.0, MEZZO_U8, false, 0},
        {255.9, MEZZO_U8, true, 255},
        {256.0, MEZZO_U8, false, 0},
        {65536.0, MEZZO_U16, false, 0},
        {0x1p63, MEZZO_I64, false, 0},
        {-0x1p63, MEZZO_I64, true, INT64_MIN},
        {NAN, MEZZO_I64, false, 0},
        {INFINITY, MEZZO_I32, false, 0},
    };
    for (size_t i = 0; i < MZ_COUNT(rows); i++) {
        int64_t got = 0;
        mezzo_status status = to_integer(rows[i].x, rows[i].dtype, &got);
        assert_int_equal(status, rows[i].fits ? MEZZO_OK : MEZZO_ERR_INVALID);
        if (rows[i].fits)
            assert_true(got == rows[i].expected);
        else
            assert_non_null(strstr(mezzo_error_message(), mezzo_dtype_name(rows[i].dtype)));
    }
    int64_t big = 300;
    uint8_t byte;
    assert_int_equal(mezzo_convert(&big, MEZZO_I64, &byte, MEZZO_U8, 1), MEZZO_ERR_INVALID);
}

TEST(a_large_integer_rounds_once) {
    // BF16's unit at 2^60 is 2^53. Through a double the 1 would be lost and the rest be a tie.
    int64_t above_tie = (INT64_C(1) << 60) + (INT64_C(1) << 52) + 1, least = INT64_MIN;
    uint16_t code;
    float f;
    assert_int_equal(mezzo_convert(&above_tie, MEZZO_I64, &code, MEZZO_BF16, 1), MEZZO_OK);
    assert_int_equal(code, mezzo_f32_to_bf16(0x1p60f) + 1);
    above_tie = -above_tie;
    assert_int_equal(mezzo_convert(&above_tie, MEZZO_I64, &code, MEZZO_BF16, 1), MEZZO_OK);
    assert_int_equal(code, mezzo_f32_to_bf16(-0x1p60f) + 1);
    assert_int_equal(mezzo_convert(&least, MEZZO_I64, &f, MEZZO_F32, 1), MEZZO_OK);
    assert_true(f == -0x1p63f);
}

TEST(tf32_converts_only_to_and_from_fp32) {
    char data[8] = {0};
    for (int d = 0; d < MEZZO_DTYPE_COUNT; d++) {
        mezzo_status expected = d == MEZZO_F32 || d == MEZZO_TF32 ? MEZZO_OK : MEZZO_ERR_INVALID;
        char out[8];
        assert_int_equal(mezzo_convert(data, MEZZO_TF32, out, (mezzo_dtype)d, 1), expected);
        assert_int_equal(mezzo_convert(data, (mezzo_dtype)d, out, MEZZO_TF32, 1), expected);
    }
    assert_int_equal(mezzo_convert(data, MEZZO_DTYPE_COUNT, data, MEZZO_F32, 1), MEZZO_ERR_INVALID);
}

// --- names ---------------------------------------------------------------------------------------------------------
TEST(names_and_sizes_are_the_documented_ones) {
    static const size_t sizes[MEZZO_DTYPE_COUNT] = {8, 4, 4, 2, 2, 1, 1, 8, 4, 2, 1};
    for (int d = 0; d < MEZZO_DTYPE_COUNT; d++) {
        assert_int_equal(mezzo_dtype_size((mezzo_dtype)d), sizes[d]);
        assert_non_null(mezzo_dtype_name((mezzo_dtype)d));
    }
    assert_string_equal(mezzo_dtype_name(MEZZO_F32), "fp32");
    assert_string_equal(mezzo_dtype_name(MEZZO_BF16), "bf16");
    assert_string_equal(mezzo_dtype_name(MEZZO_I32), "i32");
    for (int p = 0; p < MEZZO_PRECISION_COUNT; p++) {
        mezzo_precision parsed = MEZZO_PRECISION_COUNT;
        assert_int_equal(mezzo_precision_parse(mezzo_precision_name((mezzo_precision)p), &parsed), MEZZO_OK);
        assert_int_equal(parsed, p);
    }
    mezzo_precision unchanged = MEZZO_PRECISION_BF16;
    assert_int_equal(mezzo_precision_parse("fp17", &unchanged), MEZZO_ERR_INVALID);
    assert_int_equal(unchanged, MEZZO_PRECISION_BF16);
    assert_non_null(strstr(mezzo_error_message(), "fp17"));
    assert_non_null(strstr(mezzo_error_message(), "bf16"));
}
