// Energy from a counter that moves in jumps, on a clock and a counter made for the test.
// Seen to fail with: the counter read at the window's two ends, wherever they fall; the wrap left out.
#include <math.h>

#include "study/measure/measure.h"
#include "test.h"

typedef struct fake {
    double now, phase;    // seconds; of the counter's jumps
    double period, watts; // of the jumps; while steps run
    double range;         // where the counter starts again; 0: never
    double step, launch;  // seconds that a step takes, and that asking for it takes: less where steps are queued
    int64_t steps;
} fake;

static double fake_clock(void *user) {
    return ((fake *)user)->now;
}

static mezzo_status fake_step(void *user) {
    fake *f = user;
    f->now += f->launch;
    f->steps++;
    return MEZZO_OK;
}

static mezzo_status fake_read(void *user, double *joules) {
    fake *f = user;
    f->now += 2e-4;
    *joules = f->period > 0 ? f->watts * f->period * floor((f->now + f->phase) / f->period) : 5;
    if (f->range > 0)
        *joules = fmod(*joules, f->range);
    return MEZZO_OK;
}

static mz_energy measured(fake *f, double seconds) {
    const mz_meter m = {.read = fake_read, .step = fake_step, .clock = fake_clock, .user = f};
    mz_energy e;
    assert_int_equal(mz_meter_energy(&m, seconds, f->step, f->range, &e), MEZZO_OK);
    return e;
}

TEST(test_jumps) {
    static const double steps[] = {2e-5, 7e-4, 0.011, 0.4};
    for (size_t i = 0; i < 4; i++)
        for (double phase = 0; phase < 0.1; phase += 0.013) { // wherever between two jumps it begins
            fake f = {
                .phase = phase, .period = 0.1, .watts = 300, .step = steps[i], .launch = fmin(steps[i] / 4, 1e-4)};
            mz_energy e = measured(&f, 0.15);
            // A jump is seen up to one look late: 20 ms of launches where they are slow, 0.2 ms else, at both ends of
            // 0.2 s.
            assert_true(fabs(e.watts - 300) < 300 * 0.03);
            assert_true(fabs(e.joules - e.watts * steps[i]) < 1e-9);
            assert_true(f.now < 0.45);                             // two jumps and what lies between
            assert_true((double)f.steps * f.step >= f.now - 0.03); // never idle
        }
}

TEST(test_blocking) { // a CPU: a step is over when the call returns, and the counter is fine
    fake f = {.period = 1e-3, .watts = 90, .step = 0.11, .launch = 0.11};
    mz_energy e = measured(&f, 0.3);
    assert_true(fabs(e.watts - 90) < 1);
    assert_true(f.steps <= 5);
    f = (fake){.period = 1e-3, .watts = 90, .step = 1e-3, .launch = 1.5e-3}; // slower than they were: it still looks
    e = measured(&f, 0.3);
    assert_true(fabs(e.watts - 90) < 1 && f.now < 0.5);
}

TEST(test_wrap_and_still) {
    for (double phase = 0; phase < 0.6; phase += 0.05) {
        fake f = {.phase = phase, .period = 0.01, .watts = 100, .range = 60, .step = 1e-3, .launch = 1e-5};
        mz_energy e = measured(&f, 0.2);
        assert_true(fabs(e.watts - 100) < 5);
    }
    fake f = {.step = 1e-3, .launch = 1e-5}; // a counter that does not move says nothing, and soon
    mz_energy e = measured(&f, 0.2);
    assert_true(isnan(e.joules) && isnan(e.watts) && f.now < 1);
}
