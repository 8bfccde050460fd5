// What the ops of element.def compute, against values written here by other formulas: kernels are compared with each
// other elsewhere, and all come from the same row.
#include <math.h>

#include "runtime/calls.h"
#include "test.h"

static double run(mz_op op, int n, const double *v, int32_t condition, float factor) {
    const mz_shape one = {1, {1}};
    double y = NAN;
    int32_t whole = -7;
    const bool integer = mz_op_slot(op, true, 0).is & MZ_SLOT_INTEGER;
    mezzo_device *ref;
    mz_call call = {.op = op, .attrs.alpha = factor, .attrs.low = -1, .attrs.high = 2, .n_in = n, .n_out = 1};
    call.numerics = (mz_numerics){MEZZO_F64, MEZZO_F64, MEZZO_F64};
    for (int i = 0; i < MZ_MAX_IN; i++)
        call.in[i].shape.rank = call.out[i].shape.rank = -1;
    for (int i = 0; i < n; i++) {
        const bool c = mz_op_slot(op, false, i).is & MZ_SLOT_INTEGER;
        call.in[i] = (mz_tensor){.dtype = c ? MEZZO_I32 : MEZZO_F64, .shape = one};
        call.in[i].data = c ? (void *)&condition : (void *)(uintptr_t)&v[i];
    }
    call.out[0] = (mz_tensor){.dtype = integer ? MEZZO_I32 : MEZZO_F64, .shape = one};
    call.out[0].data = integer ? (void *)&whole : (void *)&y;
    assert_int_equal(mezzo_device_open("ref", 1, &ref), MEZZO_OK);
    assert_int_equal(mz_run_once(ref, &call), MEZZO_OK);
    mezzo_device_close(ref);
    return integer ? whole : y;
}

static void expect(mz_op op, double a, double b, double want) {
    const double got = run(op, mz_op_table[op].n_in, (const double[]){a, b}, 0, 0.5f);
    if (!(fabs(got - want) <= 1e-14 * (1 + fabs(want))))
        fail_msg("%s(%g, %g) is %.17g, should be %.17g", mz_op_table[op].name, a, b, got, want);
}

TEST(values_are_those_of_the_mathematics) {
    static const double xs[] = {-2.5, -1, -0.25, 0.125, 1.5, 2.5};
    for (size_t i = 0; i < MZ_COUNT(xs); i++) {
        const double x = xs[i], e = exp(x), m = fabs(x);
        expect(MZ_OP_sigmoid, x, 0, e / (e + 1));
        expect(MZ_OP_silu, x, 0, x * e / (e + 1));
        expect(MZ_OP_tanh, x, 0, (e * e - 1) / (e * e + 1));
        expect(MZ_OP_softplus, x, 0, log(1 + e));
        expect(MZ_OP_elu, x, 0, x > 0 ? x : (e - 1) / 2);
        expect(MZ_OP_leaky_relu, x, 0, fmax(x, x / 2));
        expect(MZ_OP_squared_relu, x, 0, fmax(x, 0) * fmax(x, 0));
        expect(MZ_OP_relu, x, 0, (x + m) / 2);
        expect(MZ_OP_clamp, x, 0, fmin(fmax(x, -1), 2));
        expect(MZ_OP_erf, x, 0, 1 - erfc(x));
        expect(MZ_OP_sin, x, 0, cos(x - M_PI_2));
        expect(MZ_OP_cos, x, 0, 1 - 2 * sin(x / 2) * sin(x / 2));
        expect(MZ_OP_sqrt, m, 0, pow(m, 0.5));
        expect(MZ_OP_rsqrt, m, 0, pow(m, -0.5));
        expect(MZ_OP_reciprocal, x, 0, pow(x, -1));
        expect(MZ_OP_log, m, 0, log2(m) * M_LN2);
        expect(MZ_OP_log1p, m, 0, log(1 + m));
        expect(MZ_OP_sign, x, 0, x / m);
        expect(MZ_OP_floor, x, 0, x - (x - trunc(x) + (x < trunc(x))));
        expect(MZ_OP_ceil, x, 0, trunc(x) + (x > trunc(x)));
        expect(MZ_OP_div, x, 3, x * (1.0 / 3));
        expect(MZ_OP_pow, m, -1.5, exp(-1.5 * log(m)));
        expect(MZ_OP_maximum, x, 0.5, (x + 0.5 + fabs(x - 0.5)) / 2);
        expect(MZ_OP_minimum, x, 0.5, (x + 0.5 - fabs(x - 0.5)) / 2);
        expect(MZ_OP_less, x, 1.5, i < 4);
        expect(MZ_OP_less_equal, x, 1.5, i < 5);
        expect(MZ_OP_equal, x, 1.5, i == 4);
        expect(MZ_OP_not_equal, x, 1.5, i != 4);
        expect(MZ_OP_logical_and, x, i % 2 ? 0 : -1, i % 2 == 0);
        expect(MZ_OP_logical_or, i % 2 ? 0 : x, 0, i % 2 == 0);
    }
    expect(MZ_OP_round, 2.5, 0, 2);
    expect(MZ_OP_round, -3.5, 0, -4);
    for (int32_t c = -1; c <= 2; c++) // whatever is not 0 is true
        assert_true(run(MZ_OP_where, 3, (const double[]){5, 6}, c, 0) == (c != 0 ? 5 : 6));
}
