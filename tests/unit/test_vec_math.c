// The vector functions against libm in double, and the vector conversions against the scalar ones bit for bit, at every
// level that this machine can run.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "backend/cpu/isa.h"
#include "backend/cpu/kernels/functions.h"
#include "test.h"

static const struct {
    mz_level level;
    mz_vec_apply_fn *apply;
    mz_vec_convert_fn *convert;
} levels[] = {
    {MZ_LEVEL_PORTABLE, mz_vec_apply__portable, mz_vec_convert__portable},
#if defined(__x86_64__)
    {MZ_LEVEL_AVX2, mz_vec_apply__avx2, mz_vec_convert__avx2},
    {MZ_LEVEL_AVX512, mz_vec_apply__avx512, mz_vec_convert__avx512},
#elif defined(__aarch64__)
    {MZ_LEVEL_NEON, mz_vec_apply__neon, mz_vec_convert__neon},
#endif
};

static bool can_run(mz_level level) {
    mz_isa isa;
    assert_int_equal(mz_isa_probe(NULL, &isa), MEZZO_OK);
    return isa.found >= level;
}

static float from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

// --- functions -----------------------------------------------------------------------------------------------------
static double exact_sigmoid(double x) {
    return 1 / (1 + exp(-x));
}
static double exact_cdf(double x) {
    return 0.5 * erfc(-x * 0.70710678118654752440);
}
static double exact_pdf(double x) {
    return 0.39894228040143267794 * exp(-0.5 * x * x);
}

// In units in the last place of the exact value; below FP32's normal range, in units of its smallest subnormal.
static double error_in_ulp(float got, double want) {
    int exponent;
    frexp(want, &exponent);
    if (exponent < -125)
        exponent = -125;
    return fabs((double)got - want) / ldexp(1, exponent - 24);
}

enum { BATCH = 1021 }; // not a multiple of any vector's width: ends are covered

// Every 251st float from 0 to `limit`, on both sides: every exponent, down to the subnormals.
static double worst_error(mz_vec_apply_fn *apply, mz_vec_function f, double (*exact)(double), float limit) {
    static float x[BATCH], y[BATCH];
    double worst = 0;
    uint32_t last = bits_of(limit);
    for (int sign = 0; sign < 2; sign++)
        for (uint32_t bits = 0; bits <= last;) {
            int n = 0;
            for (; n < BATCH && bits <= last; n++, bits += 251)
                x[n] = sign ? -from_bits(bits) : from_bits(bits);
            apply(f, x, y, n);
            for (int i = 0; i < n; i++) {
                double want = exact((double)x[i]), error;
                if (want > 3.4028235e38) { // beyond FP32: infinity, but the last half ulp may round either way
                    assert_true(y[i] > 3.4e38f);
                    continue;
                }
                error = error_in_ulp(y[i], want);
                worst = error > worst ? error : worst;
            }
        }
    return worst;
}

// The bounds are the functions' own (vec.h). The portable level may lack FMA, whose place two roundings take: half an
// ulp or so more.
TEST(functions_keep_their_bounds) {
    static const struct {
        const char *name;
        mz_vec_function f;
        double (*exact)(double);
        float limit;
        double bound;
    } cases[] = {
        {"exp", MZ_VEC_EXP, exp, 110, 1.0},
        {"tanh", MZ_VEC_TANH, tanh, 20, 3.0},
        {"sigmoid", MZ_VEC_SIGMOID, exact_sigmoid, 88, 3.0},
        // In ulp: the fit 0.4; k's two roundings, of which k·p(k) makes twice as much, 2; Horner's roundings, by terms
        // that add up to 1.8 times their sum, 2; eˣ, its correction and two products 3.
        {"normal cdf", MZ_VEC_NORMAL_CDF, exact_cdf, 12, 7.5},
        {"normal pdf", MZ_VEC_NORMAL_PDF, exact_pdf, 12, 3.0},
    };
    for (size_t l = 0; l < sizeof levels / sizeof *levels; l++) {
        if (!can_run(levels[l].level))
            continue;
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
            double worst = worst_error(levels[l].apply, cases[c].f, cases[c].exact, cases[c].limit);
            double bound = cases[c].bound + (levels[l].level == MZ_LEVEL_PORTABLE ? 0.5 : 0);
            print_message("%s, %s: %.2f ulp\n", cases[c].name, mz_level_name(levels[l].level), worst);
            assert_true(worst <= bound);
        }
    }
}

TEST(functions_meet_infinity_and_nan) {
    const float in[4] = {INFINITY, -INFINITY, NAN, -0.0f};
    static const struct {
        mz_vec_function f;
        float at_infinity, at_minus_infinity, at_zero;
    } cases[] = {{MZ_VEC_EXP, INFINITY, 0, 1},
                 {MZ_VEC_TANH, 1, -1, -0.0f},
                 {MZ_VEC_SIGMOID, 1, 0, 0.5f},
                 {MZ_VEC_NORMAL_CDF, 1, 0, 0.5f},
                 {MZ_VEC_NORMAL_PDF, 0, 0, 0x1.988454p-2f}};
    for (size_t l = 0; l < sizeof levels / sizeof *levels; l++)
        for (size_t c = 0; c < sizeof cases / sizeof *cases && can_run(levels[l].level); c++) {
            float out[4];
            levels[l].apply(cases[c].f, in, out, 4);
            assert_true(out[0] == cases[c].at_infinity);
            assert_true(out[1] == cases[c].at_minus_infinity);
            assert_true(isnan(out[2]));
            assert_true(error_in_ulp(out[3], (double)cases[c].at_zero) <= 2);
        }
}

// A lane's result must not depend on its neighbours or on where in the array it lies: programs are cut into blocks
// anywhere.
TEST(lanes_do_not_see_each_other) {
    float x[40], whole[40], single;
    for (int i = 0; i < 40; i++)
        x[i] = (float)(i - 20) * 0.37f;
    for (size_t l = 0; l < sizeof levels / sizeof *levels; l++)
        for (int f = MZ_VEC_EXP; f <= MZ_VEC_NORMAL_PDF && can_run(levels[l].level); f++) {
            levels[l].apply((mz_vec_function)f, x, whole, 40);
            for (int i = 0; i < 40; i++) {
                levels[l].apply((mz_vec_function)f, x + i, &single, 1);
                assert_int_equal(bits_of(single), bits_of(whole[i]));
            }
        }
}

// --- conversions ---------------------------------------------------------------------------------------------------
TEST(every_16_bit_value_widens_as_the_scalar_form) {
    static uint16_t codes[65536];
    static float wide[65536];
    for (int i = 0; i < 65536; i++)
        codes[i] = (uint16_t)i;
    for (size_t l = 0; l < sizeof levels / sizeof *levels; l++) {
        if (!can_run(levels[l].level))
            continue;
        levels[l].convert(codes, MEZZO_BF16, wide, MEZZO_F32, 65536);
        for (int i = 0; i < 65536; i++)
            assert_int_equal(bits_of(wide[i]), bits_of(mezzo_bf16_to_f32((uint16_t)i)));
        levels[l].convert(codes, MEZZO_F16, wide, MEZZO_F32, 65536);
        for (int i = 0; i < 65536; i++)
            assert_int_equal(bits_of(wide[i]), bits_of(mezzo_f16_to_f32((uint16_t)i)));
    }
}

static void check_narrowing(const float *x, int n) {
    uint16_t bf16[BATCH], f16[BATCH];
    for (size_t l = 0; l < sizeof levels / sizeof *levels; l++) {
        if (!can_run(levels[l].level))
            continue;
        levels[l].convert(x, MEZZO_F32, bf16, MEZZO_BF16, n);
        levels[l].convert(x, MEZZO_F32, f16, MEZZO_F16, n);
        for (int i = 0; i < n; i++)
            if (bf16[i] != mezzo_f32_to_bf16(x[i]) || f16[i] != mezzo_f32_to_f16(x[i]))
                fail_msg("%s: %a (%08x) narrows to bf16 %04x (scalar %04x), fp16 %04x (scalar %04x)",
                         mz_level_name(levels[l].level), (double)x[i], bits_of(x[i]), bf16[i], mezzo_f32_to_bf16(x[i]),
                         f16[i], mezzo_f32_to_f16(x[i]));
    }
}

// Every 16-bit value, the ties between neighbours and what lies next to those: rounding, overflow, subnormals, NaN
// payloads.
TEST(narrowing_rounds_as_the_scalar_form) {
    static float x[BATCH];
    int n = 0;
    for (uint32_t high = 0; high < 65536; high++) {
        static const uint32_t low[] = {0, 1, 0x0FFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF};
        for (size_t k = 0; k < sizeof low / sizeof *low; k++) {
            x[n++] = from_bits(high << 16 | low[k]);
            if (n == BATCH) {
                check_narrowing(x, n);
                n = 0;
            }
        }
    }
    check_narrowing(x, n);
    // FP16's subnormals: ties at every half unit of 2^-25 below 2^-14, and one FP32 ulp to either side.
    for (int i = 0; i < 2048; i += 340) {
        n = 0;
        for (int k = i; k < i + 340; k++) {
            float tie = (float)k * 0x1p-25f;
            x[n++] = tie;
            x[n++] = nextafterf(tie, 1);
            x[n++] = -nextafterf(tie, -1);
        }
        check_narrowing(x, n);
    }
}
